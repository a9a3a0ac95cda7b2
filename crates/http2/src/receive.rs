//! Frames of the peer (RFC 9113, section 6).

use crate::connection::{
    ALIVE, CloseProgress, Connection, DataFrame, Event, Failure, GONE, OpenBlock, Reading, Role,
    Target,
};
use crate::flood::{ERRORS, Flood, UNSEEN_RESETS};
use crate::frame::{
    self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADER_BYTES, HEADERS, Header,
    MOST_PAYLOAD, MOST_WINDOW, PADDED, PING, PREFACE, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, WITH_PRIORITY, cut_padding,
};
use crate::head::{Block, Head};
use crate::reason::Reason;
use crate::stream::{Break, Cause, Key, Stream, StreamSide};

/// Most heads of interim responses that wait in a stream until they are taken.
const MOST_HEADS: usize = 8;

/// Fewest CONTINUATION frames that a field block may have.
const CONTINUATIONS: usize = 5;

/// Weight and dependency in a HEADERS frame, in bytes.
const PRIORITY_BYTES: usize = 5;

impl Connection {
    pub(crate) fn take_bytes(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        bytes = self.take_preface(bytes)?;
        loop {
            match &mut self.reading {
                Reading::Header => {
                    let Some(header) = self.take_header(&mut bytes) else {
                        return Ok(());
                    };
                    self.begin_frame(header)?;
                }
                Reading::Data(_) => {
                    if !self.take_data(&mut bytes)? {
                        return Ok(());
                    }
                    self.reading = Reading::Header;
                }
                Reading::Whole(header) => {
                    let header = *header;
                    let missing = header.length.saturating_sub(self.payload.len());
                    let Some((part, rest)) = bytes.split_at_checked(missing) else {
                        self.payload.extend_from_slice(bytes);
                        return Ok(());
                    };
                    bytes = rest;
                    self.reading = Reading::Header;
                    if self.payload.is_empty() {
                        self.take_frame(header, part)?;
                    } else {
                        let mut payload = std::mem::take(&mut self.payload);
                        payload.extend_from_slice(part);
                        // A copy is fine: frames come in parts seldom enough.
                        self.take_frame(header, &payload)?;
                    }
                }
            }
        }
    }

    fn take_preface<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Failure> {
        let expected = PREFACE.get(self.preface..).unwrap_or_default();
        let n = expected.len().min(bytes.len());
        let (part, rest) = bytes.split_at_checked(n).unwrap_or((bytes, &[]));
        if !expected.starts_with(part) {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        self.preface += n;
        Ok(rest)
    }

    fn take_header(&mut self, bytes: &mut &[u8]) -> Option<Header> {
        if self.header_filled == 0
            && let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>()
        {
            *bytes = rest;
            return Some(Header::parse(header));
        }
        let n = (HEADER_BYTES - self.header_filled).min(bytes.len());
        let (part, rest) = bytes.split_at_checked(n)?;
        let place = self
            .header
            .get_mut(self.header_filled..self.header_filled + n)?;
        place.copy_from_slice(part);
        self.header_filled += n;
        *bytes = rest;
        if self.header_filled < HEADER_BYTES {
            return None;
        }
        self.header_filled = 0;
        Some(Header::parse(&self.header))
    }

    /// Looks at the header of a frame.
    fn begin_frame(&mut self, header: Header) -> Result<(), Failure> {
        if header.length > MOST_PAYLOAD {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        }
        let Header { kind, stream, .. } = header;
        if !self.has_settings && (kind != SETTINGS || header.has_flag(ACK)) {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        // Nothing may come between the parts of a field block.
        let begun = self.block.as_ref().map(|block| block.stream);
        if begun.is_some_and(|begun| kind != CONTINUATION || stream != begun)
            || begun.is_none() && kind == CONTINUATION
        {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        let is_of_connection = matches!(kind, SETTINGS | PING | GOAWAY);
        let is_of_stream = matches!(kind, DATA | HEADERS | PRIORITY | RST_STREAM | CONTINUATION);
        if is_of_connection && stream != 0 || is_of_stream && stream == 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        let has_length = match kind {
            RST_STREAM | WINDOW_UPDATE => header.length == 4,
            PING => header.length == 8,
            GOAWAY => header.length >= 8,
            SETTINGS if header.has_flag(ACK) => header.length == 0,
            SETTINGS => header.length.is_multiple_of(6),
            _ => true,
        };
        if !has_length {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        }
        match kind {
            // Looked at when it is known if a stream takes it.
            HEADERS => {}
            DATA if header.length > 0 || header.has_flag(END_STREAM) => {}
            _ if self.credit.spend_frame() => {}
            _ => return Err(Failure::of_flood(flood_of(kind))),
        }
        if kind == DATA {
            return self.begin_data(header);
        }
        self.payload.clear();
        self.reading = Reading::Whole(header);
        Ok(())
    }

    /// True if a stream of this number was never opened.
    fn is_idle(&self, id: u32) -> bool {
        let is_own = (id % 2 == 1) == (self.config.role == Role::Client);
        if is_own {
            id >= self.next_own
        } else {
            id > self.last_peer
        }
    }

    fn begin_data(&mut self, header: Header) -> Result<(), Failure> {
        let length = header.length as i64;
        if length > self.available {
            return Err(Reason::FLOW_CONTROL_ERROR.into());
        }
        self.available -= length;
        self.held += header.length;
        self.received += header.length as u64;
        self.offer_room();
        let mut frame = DataFrame {
            key: None,
            ends: header.has_flag(END_STREAM),
            is_padded: header.has_flag(PADDED),
            content: header.length,
            padding: 0,
        };
        let is_idle = self.is_idle(header.stream);
        let known = self.streams.find(header.stream);
        let state = match known {
            Some(key) => self.streams.get_mut(key).map(|stream| (key, stream)),
            None => None,
        };
        match state {
            None if is_idle => return Err(Reason::PROTOCOL_ERROR.into()),
            None => self.refuse_closed(header.stream)?,
            Some((_, stream)) if stream.is_reset_by_peer() => self.refuse_closed(header.stream)?,
            // Frames for a stream that has ended here are dropped.
            Some((_, stream)) if stream.broken.is_some() || stream.is_released => {}
            Some((key, stream)) if stream.receiving != StreamSide::Body => {
                let reason = match stream.receiving {
                    StreamSide::Ended => Reason::STREAM_CLOSED,
                    _ => Reason::PROTOCOL_ERROR,
                };
                self.stream_error(key.id, reason)?;
            }
            Some((key, stream)) if length > stream.available => {
                self.stream_error(key.id, Reason::FLOW_CONTROL_ERROR)?;
            }
            Some((key, stream)) => {
                stream.available -= length;
                stream.held += header.length;
                frame.key = Some(key);
            }
        }
        if !frame.is_padded {
            self.check_content(&mut frame)?;
        }
        self.reading = Reading::Data(frame);
        Ok(())
    }

    /// Holds the content of a frame against the length that the message says.
    fn check_content(&mut self, frame: &mut DataFrame) -> Result<(), Failure> {
        let Some((key, stream)) = frame
            .key
            .and_then(|key| Some((key, self.streams.get_mut(key)?)))
        else {
            return Ok(());
        };
        let Some(left) = &mut stream.left else {
            return Ok(());
        };
        let rest = left.checked_sub(frame.content as u64);
        match rest {
            Some(rest) if rest == 0 || !frame.ends => {
                *left = rest;
                Ok(())
            }
            _ => {
                frame.key = None;
                // From now on it is nobody's.
                stream.held = stream.held.saturating_sub(frame.bytes_left());
                self.stream_error(key.id, Reason::PROTOCOL_ERROR)
            }
        }
    }

    /// Takes content; true if the frame is over.
    fn take_data(&mut self, bytes: &mut &[u8]) -> Result<bool, Failure> {
        let Reading::Data(frame) = std::mem::replace(&mut self.reading, Reading::Header) else {
            return Ok(true);
        };
        let mut frame = frame;
        let is_over = self.take_content(&mut frame, bytes)?;
        if !is_over {
            self.reading = Reading::Data(frame);
        }
        Ok(is_over)
    }

    fn take_content(&mut self, frame: &mut DataFrame, bytes: &mut &[u8]) -> Result<bool, Failure> {
        if frame.is_padded {
            let Some(rest) = frame.content.checked_sub(1) else {
                return Err(Reason::FRAME_SIZE_ERROR.into());
            };
            let Some((&padding, after)) = bytes.split_first() else {
                return Ok(false);
            };
            *bytes = after;
            frame.is_padded = false;
            frame.padding = usize::from(padding);
            let content = rest.checked_sub(frame.padding);
            frame.content = content.ok_or(Reason::PROTOCOL_ERROR)?;
            // Nothing but padding carries nothing, either.
            if frame.content == 0 && !frame.ends && !self.credit.spend_frame() {
                return Err(Failure::of_flood(Flood::Data));
            }
            self.drop_content(frame.key, 1);
            self.check_content(frame)?;
        }
        let n = frame.content.min(bytes.len());
        let (content, rest) = bytes.split_at_checked(n).unwrap_or_default();
        *bytes = rest;
        frame.content -= n;
        let stream = frame.key.and_then(|key| self.streams.get_mut(key));
        match stream {
            Some(stream) if stream.broken.is_none() && !stream.is_released => {
                stream.append_content(content);
                if n > 0 {
                    self.events.extend(frame.key.map(Event::Readable));
                }
            }
            _ => self.drop_content(frame.key, n),
        }
        if frame.content == 0 {
            let n = frame.padding.min(bytes.len());
            *bytes = bytes.get(n..).unwrap_or_default();
            frame.padding -= n;
            self.drop_content(frame.key, n);
        }
        let is_over = frame.content == 0 && frame.padding == 0;
        if is_over
            && frame.ends
            && let Some(key) = frame.key
            && let Some(stream) = self.streams.get_mut(key)
        {
            stream.receiving = StreamSide::Ended;
            self.events.push_back(Event::Readable(key));
        }
        Ok(is_over)
    }

    /// Gives back the window of content that is not read.
    fn drop_content(&mut self, key: Option<Key>, n: usize) {
        match key {
            _ if n == 0 => {}
            Some(key) => self.give_back_in(key, n),
            None => self.give_back(n),
        }
    }

    /// A frame came for a stream that has ended.
    fn refuse_closed(&mut self, id: u32) -> Result<(), Failure> {
        if self.reset_here.has_id(id) {
            return Ok(());
        }
        if self.finished.has_id(id) {
            return Err(Reason::STREAM_CLOSED.into());
        }
        self.stream_error(id, Reason::STREAM_CLOSED)
    }

    /// Ends a stream with an error of the peer.
    fn stream_error(&mut self, id: u32, reason: Reason) -> Result<(), Failure> {
        self.put_reset(id, reason);
        if let Some(key) = self.streams.find(id) {
            let end = Break {
                reason,
                cause: Cause::Local,
                unprocessed: false,
            };
            self.break_stream(key, end);
        }
        self.errors = self.errors.saturating_add(1);
        let is_server = self.config.role == Role::Server;
        if is_server && self.errors > ERRORS.max(self.completed) {
            return Err(Failure::of_flood(Flood::Headers));
        }
        Ok(())
    }

    /// Takes a whole frame, other than DATA.
    fn take_frame(&mut self, header: Header, payload: &[u8]) -> Result<(), Failure> {
        match header.kind {
            HEADERS => self.take_headers(header, payload),
            CONTINUATION => self.take_continuation(header, payload),
            PRIORITY => self.take_priority(header.stream, payload),
            RST_STREAM => self.take_reset(header.stream, payload),
            SETTINGS if header.has_flag(ACK) => Ok(()),
            SETTINGS => self.take_settings(payload),
            PUSH_PROMISE => Err(Reason::PROTOCOL_ERROR.into()),
            PING => {
                self.take_ping(header, payload);
                Ok(())
            }
            GOAWAY => {
                self.take_goaway(payload);
                Ok(())
            }
            WINDOW_UPDATE => self.take_window_update(header.stream, payload),
            // Others mean nothing (RFC 9113, section 4.1).
            _ => Ok(()),
        }
    }

    fn take_headers(&mut self, header: Header, payload: &[u8]) -> Result<(), Failure> {
        let id = header.stream;
        let payload =
            cut_padding(header.has_flag(PADDED), payload).ok_or(Reason::PROTOCOL_ERROR)?;
        let mut depends_on = None;
        let mut block = payload;
        if header.has_flag(WITH_PRIORITY) {
            let (priority, rest) = payload
                .split_at_checked(PRIORITY_BYTES)
                .ok_or(Reason::FRAME_SIZE_ERROR)?;
            depends_on = read_number(priority);
            block = rest;
        }
        let ended = header.has_flag(END_STREAM);
        let is_server = self.config.role == Role::Server;
        let mut kind = match is_server {
            true => Block::Request,
            false => Block::Response,
        };
        let target = match self.streams.find(id) {
            Some(key) => {
                let stream = self.streams.get(key);
                if !stream.is_some_and(|stream| stream.receiving == StreamSide::Head) {
                    kind = Block::Trailers;
                }
                let is_closed = |stream: &Stream| {
                    stream.receiving == StreamSide::Ended || stream.is_reset_by_peer()
                };
                match stream.is_some_and(is_closed) {
                    true => Target::Closed,
                    false => Target::Known(key),
                }
            }
            None if !self.is_idle(id) => Target::Closed,
            None if !is_server || id.is_multiple_of(2) => return Err(Reason::PROTOCOL_ERROR.into()),
            None => {
                self.last_peer = id;
                if self.going == CloseProgress::Last {
                    // Too late: all of it is dropped.
                    self.reset_here.add_id(id);
                    Target::Nobody
                } else {
                    self.last_processed = id;
                    Target::New
                }
            }
        };
        let mut head = self.spare.pop().unwrap_or_default();
        head.begin_block(kind, ended, self.config.max_head_bytes);
        if depends_on == Some(id) {
            head.mark_malformed();
        }
        self.decoder.begin_block();
        self.rest_of_block.clear();
        self.block = Some(OpenBlock {
            stream: id,
            target,
            head,
            continuations: 0,
        });
        self.take_block(block, header.has_flag(END_HEADERS))
    }

    fn take_continuation(&mut self, header: Header, payload: &[u8]) -> Result<(), Failure> {
        let needed = self.config.max_head_bytes / MOST_PAYLOAD;
        let most = (needed + needed / 4).max(CONTINUATIONS);
        if let Some(block) = &mut self.block {
            block.continuations += 1;
            if block.continuations > most {
                return Err(Failure::of_flood(Flood::Headers));
            }
        }
        self.take_block(payload, header.has_flag(END_HEADERS))
    }

    /// Decodes a part of a field block, and takes the head if that was the last one.
    fn take_block(&mut self, part: &[u8], is_last: bool) -> Result<(), Failure> {
        let Some(mut open) = self.block.take() else {
            return Ok(());
        };
        if self.rest_of_block.is_empty() {
            let used = self.decode_block(part, &mut open.head)?;
            self.rest_of_block
                .extend_from_slice(part.get(used..).unwrap_or_default());
        } else {
            let mut block = std::mem::take(&mut self.rest_of_block);
            block.extend_from_slice(part);
            let used = self.decode_block(&block, &mut open.head)?;
            block.drain(..used);
            self.rest_of_block = block;
        }
        if open.head.is_far_too_large() {
            return Err(Failure::of_flood(Flood::Headers));
        }
        if !is_last {
            self.block = Some(open);
            return Ok(());
        }
        if !self.rest_of_block.is_empty() {
            return Err(Reason::COMPRESSION_ERROR.into());
        }
        self.rest_of_block = Vec::new();
        self.take_message(open)
    }

    fn decode_block(&mut self, block: &[u8], head: &mut Head) -> Result<usize, Failure> {
        let used = self.decoder.decode_fields(block, head);
        used.map_err(|_| Reason::COMPRESSION_ERROR.into())
    }

    /// Takes a complete field block.
    fn take_message(&mut self, open: OpenBlock) -> Result<(), Failure> {
        let OpenBlock {
            stream: id,
            target,
            mut head,
            ..
        } = open;
        let is_fine = head.finish_block();
        match target {
            Target::Nobody => self.give_head(head),
            Target::Closed => {
                self.give_head(head);
                let is_known = self.streams.find(id).is_some()
                    || self.reset_here.has_id(id)
                    || self.reset_there.has_id(id)
                    || self.finished.has_id(id);
                if !is_known && self.config.role == Role::Server {
                    // Numbers of streams grow (RFC 9113, section 5.1.1).
                    return Err(Reason::PROTOCOL_ERROR.into());
                }
                self.refuse_closed(id)?;
            }
            Target::New => self.open_stream(id, head, is_fine)?,
            Target::Known(key) => self.take_more(key, head, is_fine)?,
        }
        Ok(())
    }

    /// Opens a stream of the peer.
    fn open_stream(&mut self, id: u32, head: Head, is_fine: bool) -> Result<(), Failure> {
        let length = head.content_length().filter(|_| head.method() != "CONNECT");
        let ended = head.has_ended();
        if self.streams.len() >= self.config.max_streams as usize {
            self.give_head(head);
            self.put_reset(id, Reason::REFUSED_STREAM);
            return match self.credit.spend_frame() {
                true => Ok(()),
                false => Err(Failure::of_flood(Flood::Resets)),
            };
        }
        // A head that is too large is not complete, and may lack required fields.
        if head.is_too_large() {
            self.give_head(head);
            self.put_answer(id, 431);
            if !ended {
                self.put_reset(id, Reason::NO_ERROR);
            }
            self.completed = self.completed.saturating_add(1);
            return Ok(());
        }
        if !is_fine || ended && length.is_some_and(|length| length > 0) {
            self.give_head(head);
            return self.stream_error(id, Reason::PROTOCOL_ERROR);
        }
        self.credit.take_message();
        let (may_send, available) = (self.peer_window, i64::from(self.config.stream_window));
        let (key, stream) = self.streams.insert(id);
        stream.may_send = may_send;
        stream.available = available;
        stream.left = length;
        stream.connects = head.method() == "CONNECT";
        stream.receiving = match ended {
            true => StreamSide::Ended,
            false => StreamSide::Body,
        };
        stream.heads.push_back(head);
        self.events.push_back(Event::Request(key));
        Ok(())
    }

    /// Takes a head of a response, or trailers.
    fn take_more(&mut self, key: Key, head: Head, is_fine: bool) -> Result<(), Failure> {
        let Some(stream) = self.streams.get_mut(key) else {
            self.give_head(head);
            return Ok(());
        };
        if stream.broken.is_some() || stream.is_released {
            self.give_head(head);
            return Ok(());
        }
        let ended = head.has_ended();
        let mut reason = match is_fine {
            true => None,
            false => Some(Reason::PROTOCOL_ERROR),
        };
        if head.is_too_large() || stream.heads.len() >= MOST_HEADS {
            reason = Some(Reason::ENHANCE_YOUR_CALM);
        }
        let status = head.status();
        let is_interim = (100..200).contains(&status);
        let mut left = stream.left;
        if stream.receiving == StreamSide::Head && !is_interim {
            let has_none = stream.asks_for_head || matches!(status, 204 | 304);
            left = match has_none {
                true => Some(0),
                false => head.content_length().filter(|_| !stream.connects),
            };
        }
        if ended && left.is_some_and(|left| left > 0) {
            reason = Some(Reason::PROTOCOL_ERROR);
        }
        if let Some(reason) = reason {
            self.give_head(head);
            return self.stream_error(key.id, reason);
        }
        self.credit.take_message();
        stream.left = left;
        match stream.receiving {
            StreamSide::Head => {
                stream.heads.push_back(head);
                if !is_interim {
                    stream.receiving = StreamSide::Body;
                }
            }
            _ => stream.trailers = Some(head),
        }
        if ended {
            stream.receiving = StreamSide::Ended;
        }
        self.events.push_back(Event::Readable(key));
        Ok(())
    }

    fn take_priority(&mut self, id: u32, payload: &[u8]) -> Result<(), Failure> {
        let reason = match read_number(payload) {
            _ if payload.len() != PRIORITY_BYTES => Reason::FRAME_SIZE_ERROR,
            Some(depends_on) if depends_on == id => Reason::PROTOCOL_ERROR,
            // Nobody looks at priorities (RFC 9113, section 5.3.2).
            _ => return Ok(()),
        };
        match self.is_idle(id) {
            true => Err(reason.into()),
            false => self.stream_error(id, reason),
        }
    }

    fn take_reset(&mut self, id: u32, payload: &[u8]) -> Result<(), Failure> {
        let Some(key) = self.streams.find(id) else {
            return match self.is_idle(id) {
                true => Err(Reason::PROTOCOL_ERROR.into()),
                false => Ok(()),
            };
        };
        let reason = Reason(
            payload
                .first_chunk()
                .map_or(0, |code| u32::from_be_bytes(*code)),
        );
        let is_seen = self.streams.get(key).is_some_and(|stream| stream.is_seen);
        let end = Break {
            reason,
            cause: Cause::Peer,
            unprocessed: reason == Reason::REFUSED_STREAM,
        };
        self.break_stream(key, end);
        if self.config.role == Role::Server && !is_seen {
            self.cancelled = self.cancelled.saturating_add(1);
            self.unseen_resets += 1;
            if self.unseen_resets > UNSEEN_RESETS {
                return Err(Failure::of_flood(Flood::Resets));
            }
        }
        self.check_cancelled()
    }

    fn take_settings(&mut self, payload: &[u8]) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.has_settings, true) {
            // Without a word there is no limit (RFC 9113, section 6.5.2).
            self.peer_streams = u32::MAX;
        }
        let mut window = self.peer_window;
        for setting in payload.chunks_exact(6) {
            let [a, b, c, d, e, f] = *setting else {
                continue;
            };
            let value = u32::from_be_bytes([c, d, e, f]);
            match u16::from_be_bytes([a, b]) {
                frame::SET_TABLE_SIZE => self.encoder.set_most(value as usize),
                // A server asks for no push (RFC 9113, section 6.5.2).
                frame::SET_PUSH if value > 1 || value == 1 && self.config.role == Role::Client => {
                    return Err(Reason::PROTOCOL_ERROR.into());
                }
                frame::SET_STREAMS => self.peer_streams = value,
                frame::SET_WINDOW if i64::from(value) > MOST_WINDOW => {
                    return Err(Reason::FLOW_CONTROL_ERROR.into());
                }
                frame::SET_WINDOW => window = i64::from(value),
                frame::SET_FRAME_SIZE => {
                    let size = value as usize;
                    if !(MOST_PAYLOAD..1 << 24).contains(&size) {
                        return Err(Reason::PROTOCOL_ERROR.into());
                    }
                    self.peer_frame = size;
                }
                frame::SET_CONNECT if value > 1 => return Err(Reason::PROTOCOL_ERROR.into()),
                frame::SET_CONNECT => self.peer_connects = value == 1,
                _ => {}
            }
        }
        let more = window - self.peer_window;
        self.peer_window = window;
        if more != 0 {
            for stream in self.streams.iter_mut() {
                stream.may_send += more;
                if stream.may_send > MOST_WINDOW {
                    return Err(Reason::FLOW_CONTROL_ERROR.into());
                }
            }
        }
        frame::put_frame(SETTINGS, ACK, 0, &[], &mut self.out);
        self.events.push_back(Event::Settled);
        if more > 0 {
            let keys: Vec<Key> = self.streams.keys().collect();
            keys.into_iter().for_each(|key| self.open_send_window(key));
        }
        Ok(())
    }

    fn take_ping(&mut self, header: Header, payload: &[u8]) {
        if !header.has_flag(ACK) {
            frame::put_frame(PING, ACK, 0, payload, &mut self.out);
        } else if payload == ALIVE {
            self.events.push_back(Event::Pong);
        } else if payload == GONE && self.going == CloseProgress::Announced {
            self.going = CloseProgress::Last;
            frame::put_goaway(self.last_processed, Reason::NO_ERROR, &mut self.out);
        }
    }

    fn take_goaway(&mut self, payload: &[u8]) {
        let Some(last) = read_number(payload) else {
            return;
        };
        let reason = payload.get(4..8).and_then(read_code);
        let reason = Reason(reason.unwrap_or(0));
        self.peer_is_going = true;
        if self.config.role == Role::Client {
            let end = Break {
                reason,
                cause: Cause::Peer,
                unprocessed: true,
            };
            let keys: Vec<Key> = self.streams.keys().filter(|key| key.id > last).collect();
            keys.into_iter().for_each(|key| self.break_stream(key, end));
        }
        self.events.push_back(Event::Settled);
    }

    fn take_window_update(&mut self, id: u32, payload: &[u8]) -> Result<(), Failure> {
        let more = i64::from(read_number(payload).unwrap_or(0));
        if id == 0 {
            if more == 0 {
                return Err(Reason::PROTOCOL_ERROR.into());
            }
            let had_none = self.may_send <= 0;
            self.may_send += more;
            if self.may_send > MOST_WINDOW {
                return Err(Reason::FLOW_CONTROL_ERROR.into());
            }
            // Whoever waits for anything else is told when some of the output is sent.
            if had_none {
                self.wake_waiting();
            }
            return Ok(());
        }
        let Some(key) = self.streams.find(id) else {
            return match self.is_idle(id) {
                true => Err(Reason::PROTOCOL_ERROR.into()),
                false => Ok(()),
            };
        };
        let Some(stream) = self.streams.get_mut(key) else {
            return Ok(());
        };
        if stream.broken.is_some() {
            return Ok(());
        }
        if more == 0 {
            return self.stream_error(id, Reason::PROTOCOL_ERROR);
        }
        stream.may_send += more;
        if stream.may_send > MOST_WINDOW {
            return self.stream_error(id, Reason::FLOW_CONTROL_ERROR);
        }
        self.open_send_window(key);
        Ok(())
    }
}

/// Kind of flood that a frame is a part of.
fn flood_of(kind: u8) -> Flood {
    match kind {
        DATA => Flood::Data,
        HEADERS | CONTINUATION => Flood::Headers,
        RST_STREAM => Flood::Resets,
        _ => Flood::Control,
    }
}

fn read_code(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.first_chunk()?))
}

/// The number of 31 bits that `bytes` begin with.
fn read_number(bytes: &[u8]) -> Option<u32> {
    Some(read_code(bytes)? & MOST_WINDOW as u32)
}

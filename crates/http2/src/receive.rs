//! Frames of the peer (RFC 9113, section 6); DATA is in `content.rs`, HEADERS and CONTINUATION are in
//! `field_block.rs`.

use crate::connection::{ALIVE, CloseProgress, Connection, Event, Failure, GONE, Reading, Role};
use crate::flood::{Flood, UNSEEN_RESETS};
use crate::frame::{
    self, ACK, CONTINUATION, DATA, END_STREAM, GOAWAY, HEADER_BYTES, HEADERS, Header, MOST_PAYLOAD,
    MOST_WINDOW, PING, PREFACE, PRIORITY, PRIORITY_BYTES, PUSH_PROMISE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, read_code, read_number,
};
use crate::reason::Reason;
use crate::stream::{Break, Cause, Key};

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

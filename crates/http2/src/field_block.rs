//! Field blocks of the peer: HEADERS and CONTINUATION frames (RFC 9113, sections 6.2 and 6.10).

use crate::connection::{CloseProgress, Connection, Event, Failure, OpenBlock, Role, Target};
use crate::flood::Flood;
use crate::frame::{
    END_HEADERS, END_STREAM, Header, MOST_PAYLOAD, PADDED, PRIORITY_BYTES, WITH_PRIORITY,
    cut_padding, read_number,
};
use crate::head::{Block, Head};
use crate::reason::Reason;
use crate::stream::{Key, Stream, StreamSide};

/// Most heads of interim responses that wait in a stream until they are taken.
const MOST_HEADS: usize = 8;

/// Fewest CONTINUATION frames that a field block may have.
const CONTINUATIONS: usize = 5;

impl Connection {
    pub(crate) fn take_headers(&mut self, header: Header, payload: &[u8]) -> Result<(), Failure> {
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

    pub(crate) fn take_continuation(
        &mut self,
        header: Header,
        payload: &[u8],
    ) -> Result<(), Failure> {
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
}

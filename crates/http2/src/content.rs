//! Content of the peer: DATA frames (RFC 9113, section 6.1).

use crate::connection::{Connection, DataFrame, Event, Failure, Reading};
use crate::flood::Flood;
use crate::frame::{END_STREAM, Header, PADDED};
use crate::reason::Reason;
use crate::stream::{Key, StreamSide};

impl Connection {
    pub(crate) fn begin_data(&mut self, header: Header) -> Result<(), Failure> {
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
    pub(crate) fn take_data(&mut self, bytes: &mut &[u8]) -> Result<bool, Failure> {
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
}

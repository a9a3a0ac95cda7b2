//! Messages of this end: heads, content and trailers, as far as there is room.

use bytes::Bytes;

use crate::connection::{Connection, Event, OUTPUT_ROOM};
use crate::fields::Fields;
use crate::frame::{
    self, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADER_BYTES, HEADERS, Header, MOST_PAYLOAD,
};
use crate::head::SensitiveParts;
use crate::reason::Reason;
use crate::stream::{Break, Cause, Key, StreamSide};

/// First line of a request, as pseudo-fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opening<'a> {
    /// Value of `:method`.
    pub method: &'a [u8],
    /// Value of `:scheme`.
    pub scheme: &'a [u8],
    /// Value of `:authority`, if there is one.
    pub authority: Option<&'a [u8]>,
    /// Value of `:path`.
    pub path: &'a [u8],
    /// `:protocol`, with the method `CONNECT` (RFC 8441).
    pub protocol: Option<&'a [u8]>,
    /// Parts that are literals in any case.
    pub sensitive: SensitiveParts,
}

/// Reason for which a stream could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// The peer takes no more at once: [`Event::Settled`] says when to try again.
    Full,
    /// The connection takes no more at all.
    Closing,
}

impl Connection {
    /// Opens a stream with a request. `ends` says that there is no body.
    ///
    /// # Errors
    ///
    /// The stream was not opened, and nothing was sent.
    pub fn open_request(
        &mut self,
        opening: Opening<'_>,
        fields: &Fields,
        ends: bool,
    ) -> Result<Key, NotOpened> {
        if self.is_closing() {
            return Err(NotOpened::Closing);
        }
        if self.streams.len() >= self.peer_streams as usize {
            self.is_awaited = true;
            return Err(NotOpened::Full);
        }
        let id = self.next_own;
        self.next_own += 2;
        let (may_send, available) = (self.peer_window, i64::from(self.config.stream_window));
        let (key, stream) = self.streams.insert(id);
        stream.is_seen = true;
        stream.may_send = may_send;
        stream.available = available;
        stream.asks_for_head = opening.method == b"HEAD";
        stream.connects = opening.method == b"CONNECT";
        stream.sending = match ends {
            true => StreamSide::Ended,
            false => StreamSide::Body,
        };
        let start = self.begin_block();
        self.encode_field(b":method", opening.method);
        self.encode_field(b":scheme", opening.scheme);
        if let Some(authority) = opening.authority {
            let is_sensitive = opening.sensitive.authority;
            self.encode_marked(b":authority", authority, is_sensitive);
        }
        self.encode_marked(b":path", opening.path, opening.sensitive.path);
        if let Some(protocol) = opening.protocol {
            self.encode_field(b":protocol", protocol);
        }
        self.end_block(start, id, fields, ends);
        Ok(key)
    }

    /// Sends the head of a response, or of an interim one. `ends` says that there is no body.
    ///
    /// # Errors
    ///
    /// The stream has ended, or has a head already.
    pub fn send_head(
        &mut self,
        key: Key,
        status: u16,
        fields: &Fields,
        ends: bool,
    ) -> Result<(), Break> {
        let stream = self.sending_stream(key, StreamSide::Head)?;
        let is_interim = (100..200).contains(&status);
        if !is_interim {
            stream.sending = match ends {
                true => StreamSide::Ended,
                false => StreamSide::Body,
            };
        }
        let start = self.begin_block();
        self.encode_status(status);
        self.end_block(start, key.id, fields, ends && !is_interim);
        Ok(())
    }

    /// Sends an answer without fields in a stream that is not reported.
    pub(crate) fn put_answer(&mut self, id: u32, status: u16) {
        let start = self.begin_block();
        self.encode_status(status);
        self.end_block(start, id, &Fields::new(), true);
    }

    fn encode_status(&mut self, status: u16) {
        let digit = |unit: u16| b'0' + (status / unit % 10) as u8;
        self.encode_field(b":status", &[digit(100), digit(10), digit(1)]);
    }

    /// Sends content, as much as there is room for; returns the number of bytes. If that is 0, [`Event::Writable`] says
    /// when to try again. `ends` says that nothing follows this content.
    ///
    /// # Errors
    ///
    /// The stream has ended.
    pub fn send_data(&mut self, key: Key, bytes: &[u8], ends: bool) -> Result<usize, Break> {
        let (turn, peer_frame) = (self.turn, self.peer_frame);
        let in_buffer = OUTPUT_ROOM.saturating_sub(self.pending_output().len());
        let in_connection = usize::try_from(self.may_send).unwrap_or(0);
        let others_wait = !self.waiting.is_empty() && !self.pending_output().is_empty();
        let stream = self.sending_stream(key, StreamSide::Body)?;
        let in_stream = usize::try_from(stream.may_send).unwrap_or(0);
        let is_empty = bytes.is_empty();
        if in_stream == 0 && !is_empty {
            stream.waits_for_window = true;
            self.leave_queue(key);
            return Ok(0);
        }
        let mut room = in_buffer.min(in_connection);
        // Others have their turn first.
        if others_wait && stream.turn == turn {
            room = 0;
        }
        let most = room.min(in_stream).min(MOST_PAYLOAD).min(peer_frame);
        let part = bytes.get(..most).unwrap_or(bytes);
        if part.is_empty() && !is_empty {
            if !std::mem::replace(&mut stream.is_waiting, true) {
                self.waiting.push_back(key);
            }
            return Ok(0);
        }
        let is_last = ends && part.len() == bytes.len();
        stream.turn = turn;
        stream.may_send -= part.len() as i64;
        if is_last {
            stream.sending = StreamSide::Ended;
        }
        self.may_send -= part.len() as i64;
        if !is_empty {
            let is_whole = part.len() == bytes.len();
            self.credit.take_content(part.len(), is_whole);
        }
        let flags = if is_last { END_STREAM } else { 0 };
        if !part.is_empty() || is_last {
            frame::put_frame(DATA, flags, key.id, part, &mut self.out);
        }
        self.leave_queue(key);
        Ok(part.len())
    }

    /// Sends the last part of a body, which waits for room if there is none.
    ///
    /// # Errors
    ///
    /// The stream has ended.
    pub fn send_tail(&mut self, key: Key, bytes: Bytes) -> Result<(), Break> {
        self.sending_stream(key, StreamSide::Body)?.tail = Some(bytes);
        self.send_rest(key);
        Ok(())
    }

    /// Sends as much of a stream's tail as there is room for.
    fn send_rest(&mut self, key: Key) {
        let tail = |stream: &mut crate::stream::Stream| stream.tail.take();
        while let Some(mut rest) = self.streams.get_mut(key).and_then(tail) {
            let sent = self.send_data(key, &rest, true);
            let Ok(n) = sent else {
                return;
            };
            let _ = rest.split_to(n.min(rest.len()));
            let Some(stream) = self.streams.get_mut(key) else {
                return;
            };
            if stream.sending == StreamSide::Ended {
                if stream.is_released {
                    self.end_stream(key, None);
                }
                return;
            }
            stream.tail = Some(rest);
            if n == 0 {
                return;
            }
        }
    }

    /// Ends a body with trailers.
    ///
    /// # Errors
    ///
    /// The stream has ended.
    pub fn send_trailers(&mut self, key: Key, fields: &Fields) -> Result<(), Break> {
        self.sending_stream(key, StreamSide::Body)?.sending = StreamSide::Ended;
        self.leave_queue(key);
        let start = self.begin_block();
        self.end_block(start, key.id, fields, true);
        Ok(())
    }

    /// Resets a stream.
    pub fn reset_stream(&mut self, key: Key, reason: Reason) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if stream.is_over() {
            return;
        }
        stream.broken = Some(Break {
            reason,
            cause: Cause::Local,
            unprocessed: false,
        });
        stream.tail = None;
        self.put_reset(key.id, reason);
        self.leave_queue(key);
    }

    /// A stream that may send what belongs to `side`.
    fn sending_stream(
        &mut self,
        key: Key,
        side: StreamSide,
    ) -> Result<&mut crate::stream::Stream, Break> {
        let gone = Break {
            reason: Reason::STREAM_CLOSED,
            cause: Cause::Local,
            unprocessed: false,
        };
        let stream = self.streams.get_mut(key).ok_or(gone)?;
        match stream.broken {
            Some(broken) => Err(broken),
            None if stream.sending != side => Err(gone),
            None => Ok(stream),
        }
    }

    /// Takes a stream off the list of streams that wait for room.
    pub(crate) fn leave_queue(&mut self, key: Key) {
        let stream = self.streams.get_mut(key);
        if !stream.is_some_and(|stream| std::mem::replace(&mut stream.is_waiting, false)) {
            return;
        }
        // Mostly the first stream, whose turn it is, or the last one, which was reported just now.
        if self.waiting.front() == Some(&key) {
            self.waiting.pop_front();
        } else if self.waiting.back() == Some(&key) {
            self.waiting.pop_back();
        } else {
            self.waiting.retain(|waiting| *waiting != key);
        }
    }

    /// Tells streams that there is room in the connection, the first one first. Each keeps its place until it has sent something.
    pub(crate) fn wake_waiting(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        for _ in 0..self.waiting.len() {
            let Some(key) = self.waiting.pop_front() else {
                return;
            };
            self.waiting.push_back(key);
            self.push_writable(key);
        }
    }

    /// Tells a stream that its window is larger.
    pub(crate) fn open_send_window(&mut self, key: Key) {
        let stream = self
            .streams
            .get_mut(key)
            .filter(|stream| stream.may_send > 0);
        if stream.is_some_and(|stream| std::mem::replace(&mut stream.waits_for_window, false)) {
            self.push_writable(key);
        }
    }

    fn push_writable(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if stream.tail.is_some() {
            self.send_rest(key);
        } else if !std::mem::replace(&mut stream.is_woken, true) {
            self.events.push_back(Event::Writable(key));
        }
    }

    /// Begins a field block in the output. Returns where.
    fn begin_block(&mut self) -> usize {
        let start = self.out.len();
        self.out.extend_from_slice(&[0; HEADER_BYTES]);
        self.encoder.begin_block(&mut self.out);
        start
    }

    fn encode_field(&mut self, name: &[u8], value: &[u8]) {
        self.encode_marked(name, value, false);
    }

    fn encode_marked(&mut self, name: &[u8], value: &[u8], is_sensitive: bool) {
        let out = &mut self.out;
        self.encoder.encode_field(name, value, is_sensitive, out);
    }

    /// Ends the block that begins at `start`, with these fields.
    fn end_block(&mut self, start: usize, id: u32, fields: &Fields, ends: bool) {
        for (name, value, is_sensitive) in fields.marked() {
            self.encode_marked(name.as_bytes(), value, is_sensitive);
        }
        let length = self.out.len().saturating_sub(start + HEADER_BYTES);
        let flags = if ends { END_STREAM } else { 0 };
        if length <= MOST_PAYLOAD {
            let header = Header {
                length,
                kind: HEADERS,
                flags: flags | END_HEADERS,
                stream: id,
            };
            if let Some(place) = self.out.get_mut(start..start + HEADER_BYTES) {
                place.copy_from_slice(&header.bytes());
            }
            return;
        }
        let block = self.out.split_off(start);
        let block = block.get(HEADER_BYTES..).unwrap_or_default();
        let parts = block.len().div_ceil(MOST_PAYLOAD);
        for (at, part) in block.chunks(MOST_PAYLOAD).enumerate() {
            let last = if at + 1 == parts { END_HEADERS } else { 0 };
            let (kind, first) = match at {
                0 => (HEADERS, flags),
                _ => (CONTINUATION, 0),
            };
            frame::put_frame(kind, first | last, id, part, &mut self.out);
        }
    }
}

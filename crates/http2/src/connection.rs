//! A connection: its settings, its streams, its windows, and its end.

use std::collections::VecDeque;
use std::time::Duration;

use crate::flood::{Credit, Flood};
use crate::frame::{self, HEADER_BYTES, Header, MOST_PAYLOAD, MOST_WINDOW};
use crate::head::Head;
use crate::hpack::decoder::Decoder;
use crate::hpack::encoder::Encoder;
use crate::reason::Reason;
use crate::stream::{Break, Cause, Key, Next, Slab, StreamSide};

/// Window of a connection before the peer sets another one (RFC 9113, section 6.9.2).
const FIRST_WINDOW: i64 = 65_535;

/// Streams that a client opens before the server has said how many it takes.
const FIRST_STREAMS: u32 = 100;

/// Bytes that wait in the output, beyond which no content is appended.
pub(crate) const OUTPUT_ROOM: usize = 32 * 1024;

/// Bytes that wait in the output, beyond which nothing more is to be read from the peer: who takes no answers asks for no more of
/// them.
const MOST_OUTPUT: usize = 256 * 1024;

/// Memory that the output keeps when it is empty, and when there is no stream either.
const KEPT_OUTPUT: usize = 2 * OUTPUT_ROOM;
const IDLE_OUTPUT: usize = 4 * 1024;

/// Events that the queue keeps room for when it is empty.
const KEPT_EVENTS: usize = 256;

/// Heads that are kept to be filled again.
pub(crate) const SPARE_HEADS: usize = 8;
pub(crate) const IDLE_HEADS: usize = 1;

/// Numbers of streams of which it is known how they ended.
const REMEMBERED: usize = 128;

/// Role of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The peer sends requests.
    Server,
    /// The peer answers requests.
    Client,
}

/// Settings of this end.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Role of this end.
    pub role: Role,
    /// Streams that the peer may have open at once.
    pub max_streams: u32,
    /// Largest list of fields, as HTTP/2 counts: 32 bytes more for each field.
    pub max_head_bytes: usize,
    /// Bytes that the peer may send in a stream before some are consumed.
    pub stream_window: u32,
    /// Bytes that the peer may send in all streams before some are consumed; at least 65,535.
    pub connection_window: u32,
}

/// News of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer has sent a request: its head can be taken.
    Request(Key),
    /// A head, content, trailers or the end has come.
    Readable(Key),
    /// There is room to send.
    Writable(Key),
    /// A stream has ended before its time.
    Broken(Key),
    /// Another stream may be opened, or the peer's settings have come.
    Settled,
    /// The peer has answered [`Connection::send_ping`].
    Pong,
}

/// Error of a connection, which ends it. The peer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Reason that the peer is given.
    pub reason: Reason,
    /// Kind of frames that there were too many of, if that was the reason.
    pub flood: Option<Flood>,
}

impl Failure {
    pub(crate) fn of_flood(flood: Flood) -> Self {
        Failure {
            reason: Reason::ENHANCE_YOUR_CALM,
            flood: Some(flood),
        }
    }
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Self {
        Failure {
            reason,
            flood: None,
        }
    }
}

/// Frame that is being read.
#[derive(Debug)]
pub(crate) enum Reading {
    Header,
    /// A frame whose payload is looked at as a whole.
    Whole(Header),
    /// DATA, which is passed on as it comes.
    Data(DataFrame),
}

#[derive(Debug)]
pub(crate) struct DataFrame {
    /// The stream, if its content is wanted.
    pub(crate) key: Option<Key>,
    pub(crate) ends: bool,
    /// The length of the padding is still to come.
    pub(crate) is_padded: bool,
    /// Bytes of content, and of padding behind it, that are still to come.
    pub(crate) content: usize,
    pub(crate) padding: usize,
}

impl DataFrame {
    /// Number of bytes that are still to come.
    pub(crate) fn bytes_left(&self) -> usize {
        self.content + self.padding
    }
}

/// A field block that is being read.
#[derive(Debug)]
pub(crate) struct OpenBlock {
    pub(crate) stream: u32,
    pub(crate) target: Target,
    pub(crate) head: Head,
    pub(crate) continuations: usize,
}

/// Use of a field block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A new stream of the peer.
    New,
    /// A stream that is there.
    Known(Key),
    /// None: it is only decoded.
    Nobody,
    /// None, and the stream is reset: it had ended.
    Closed,
}

/// Progress of an orderly end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseProgress {
    NotStarted,
    /// The peer was told that there are to be no new streams.
    Announced,
    /// The peer knows, and was told the last one.
    Last,
}

/// Numbers of the last streams of a kind.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    ids: VecDeque<u32>,
}

impl Remembered {
    pub(crate) fn add_id(&mut self, id: u32) {
        if self.ids.len() == REMEMBERED {
            self.ids.pop_front();
        }
        self.ids.push_back(id);
    }

    pub(crate) fn has_id(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }
}

/// Payloads of PING: to see if the peer lives, and to know when it has seen GOAWAY.
pub(crate) const ALIVE: [u8; 8] = *b"evenkeel";
pub(crate) const GONE: [u8; 8] = *b"even-end";

/// An end of a connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) config: Config,
    pub(crate) streams: Slab,
    pub(crate) events: VecDeque<Event>,
    pub(crate) out: Vec<u8>,
    out_sent: usize,
    pub(crate) decoder: Decoder,
    pub(crate) encoder: Encoder,
    pub(crate) spare: Vec<Head>,

    /// Bytes of the preface that have come.
    pub(crate) preface: usize,
    pub(crate) reading: Reading,
    pub(crate) header: [u8; HEADER_BYTES],
    pub(crate) header_filled: usize,
    pub(crate) payload: Vec<u8>,
    /// End of a field block that is not decoded yet.
    pub(crate) rest_of_block: Vec<u8>,
    pub(crate) block: Option<OpenBlock>,

    pub(crate) peer_window: i64,
    pub(crate) peer_frame: usize,
    pub(crate) peer_streams: u32,
    pub(crate) peer_connects: bool,
    pub(crate) has_settings: bool,

    /// Bytes that may be sent in all streams.
    pub(crate) may_send: i64,
    /// Bytes that the peer may send, bytes that are not consumed yet, and the sum to be kept.
    pub(crate) available: i64,
    pub(crate) held: usize,
    window: i64,
    pub(crate) received: u64,

    /// Last stream of the peer, and next one of this end.
    pub(crate) last_peer: u32,
    pub(crate) next_own: u32,
    /// True if a caller waits for room for another stream.
    pub(crate) is_awaited: bool,
    /// Last stream of the peer that was looked at.
    pub(crate) last_processed: u32,
    pub(crate) reset_here: Remembered,
    pub(crate) reset_there: Remembered,
    pub(crate) finished: Remembered,

    pub(crate) going: CloseProgress,
    /// True if the peer takes no more streams, or opens none.
    pub(crate) peer_is_going: bool,
    failed: bool,

    pub(crate) credit: Credit,
    pub(crate) unseen_resets: u32,
    /// Streams that have ended: in order, given up by the peer, and by its errors.
    pub(crate) completed: u32,
    pub(crate) cancelled: u32,
    pub(crate) errors: u32,

    /// Streams that wait for room, the first one first; and the number of times that there was some.
    pub(crate) waiting: VecDeque<Key>,
    pub(crate) turn: u32,
}

impl Connection {
    /// Begins a connection: the first bytes to send are in the output.
    pub fn new(config: Config) -> Self {
        let mut out = Vec::new();
        let window = (frame::SET_WINDOW, config.stream_window);
        let head = u32::try_from(config.max_head_bytes).unwrap_or(u32::MAX);
        let head = (frame::SET_HEAD_SIZE, head);
        match config.role {
            Role::Server => {
                let streams = (frame::SET_STREAMS, config.max_streams);
                frame::put_settings(&[streams, window, head, (frame::SET_CONNECT, 1)], &mut out);
            }
            Role::Client => {
                out.extend_from_slice(frame::PREFACE);
                frame::put_settings(&[(frame::SET_PUSH, 0), window, head], &mut out);
            }
        }
        let mut connection = Connection {
            config,
            streams: Slab::default(),
            events: VecDeque::new(),
            out,
            out_sent: 0,
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            spare: Vec::new(),
            preface: match config.role {
                Role::Server => 0,
                Role::Client => frame::PREFACE.len(),
            },
            reading: Reading::Header,
            header: [0; HEADER_BYTES],
            header_filled: 0,
            payload: Vec::new(),
            rest_of_block: Vec::new(),
            block: None,
            peer_window: FIRST_WINDOW,
            peer_frame: MOST_PAYLOAD,
            peer_streams: FIRST_STREAMS,
            peer_connects: false,
            has_settings: false,
            may_send: FIRST_WINDOW,
            available: FIRST_WINDOW,
            held: 0,
            window: FIRST_WINDOW,
            received: 0,
            last_peer: 0,
            next_own: 1,
            is_awaited: false,
            last_processed: 0,
            reset_here: Remembered::default(),
            reset_there: Remembered::default(),
            finished: Remembered::default(),
            going: CloseProgress::NotStarted,
            peer_is_going: false,
            failed: false,
            credit: Credit::new(),
            unseen_resets: 0,
            completed: 0,
            cancelled: 0,
            errors: 0,
            waiting: VecDeque::new(),
            turn: 1,
        };
        connection.set_window(config.connection_window);
        connection
    }

    /// Takes in bytes of the peer. `now` is the time since any fixed moment.
    ///
    /// # Errors
    ///
    /// The connection has failed: the peer is told in the output, and nothing more is taken in.
    pub fn receive_bytes(&mut self, bytes: &[u8], now: Duration) -> Result<(), Failure> {
        if self.failed {
            return Ok(());
        }
        self.credit.renew_until(now);
        let taken = self.take_bytes(bytes);
        if let Err(failure) = taken {
            self.abort(failure.reason);
        }
        taken
    }

    /// Takes the next event.
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Request(key) => {
                    // A stream that was reset before anybody saw it is gone.
                    if let Some(stream) = self.streams.get_mut(key) {
                        stream.is_seen = true;
                        return Some(event);
                    }
                }
                Event::Writable(key) => {
                    if let Some(stream) = self.streams.get_mut(key) {
                        stream.is_woken = false;
                    }
                    return Some(event);
                }
                _ => return Some(event),
            }
        }
        if self.events.capacity() > KEPT_EVENTS {
            self.events = VecDeque::new();
        }
        self.unseen_resets = 0;
        None
    }

    /// Bytes that are to be sent.
    pub fn pending_output(&self) -> &[u8] {
        self.out.get(self.out_sent..).unwrap_or_default()
    }

    /// Takes note that the first `n` bytes of the output were sent.
    pub fn consume_output(&mut self, n: usize) {
        let n = n.min(self.pending_output().len());
        self.credit.take_sent(n);
        self.out_sent += n;
        if self.out_sent == self.out.len() {
            self.out.clear();
            self.out_sent = 0;
            self.shrink_output();
        } else if self.out_sent > self.out.len() / 2 {
            self.out.drain(..self.out_sent);
            self.out_sent = 0;
        }
        // Without a window there is no room, however little waits.
        if self.pending_output().len() < OUTPUT_ROOM && self.may_send > 0 {
            self.wake_waiting();
        }
    }

    /// Gives memory of the output back that it need not keep, if it is empty.
    pub(crate) fn shrink_output(&mut self) {
        let most = match self.streams.len() {
            0 => IDLE_OUTPUT,
            _ => KEPT_OUTPUT,
        };
        if self.out.is_empty() && self.out.capacity() > most {
            self.out = Vec::new();
        }
    }

    /// True if more bytes of the peer are to be read.
    pub fn wants_input(&self) -> bool {
        !self.failed && self.pending_output().len() < MOST_OUTPUT
    }

    /// True if the connection is over as soon as the output is sent.
    pub fn is_done(&self) -> bool {
        let is_ending = self.going == CloseProgress::Last || self.peer_is_going;
        self.failed || is_ending && self.streams.len() == 0
    }

    /// Number of streams that were not released.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Number of streams with errors of the peer.
    pub fn error_count(&self) -> u32 {
        self.errors
    }

    /// True if the peer has said hello.
    pub fn has_begun(&self) -> bool {
        self.preface == frame::PREFACE.len()
    }

    /// True if there is an event to be taken.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Bytes of DATA that have come since the beginning.
    pub fn received_bytes(&self) -> u64 {
        self.received
    }

    /// Bytes of content that have come and were not consumed, in all streams.
    pub fn unread_bytes(&self) -> usize {
        self.held
    }

    /// True if bytes are counted once: the bytes that count for the connection are the bytes of its streams, and the
    /// bytes still to come in a frame of no stream; and if the peer knows of half of the room at least. For tests.
    #[doc(hidden)]
    pub fn is_balanced(&self) -> bool {
        let of_streams: usize = self.streams.iter().map(|stream| stream.held).sum();
        let of_nobody = match &self.reading {
            Reading::Data(frame) if frame.key.is_none() => frame.bytes_left(),
            _ => 0,
        };
        let room = self.window - self.held as i64;
        self.failed || self.held == of_streams + of_nobody && room <= 2 * self.available
    }

    /// Sets the number of bytes that the peer may send in all streams before some are consumed.
    pub fn set_window(&mut self, bytes: u32) {
        self.window = i64::from(bytes).clamp(FIRST_WINDOW, MOST_WINDOW);
        let more = self.window - self.held as i64 - self.available;
        if more > 0 {
            self.open_window(more);
        }
    }

    fn open_window(&mut self, more: i64) {
        self.available += more;
        frame::put_window(0, more as u32, &mut self.out);
    }

    /// Gives `n` bytes that need not be read any more back to the connection's window.
    pub(crate) fn give_back(&mut self, n: usize) {
        self.held = self.held.saturating_sub(n);
        self.offer_room();
    }

    /// Tells the peer of room in the connection if this room is as large as the one that the peer knows of. Must be
    /// called when content comes, too: if the known room is full of content that is never read, nothing else would tell
    /// the peer of more.
    pub(crate) fn offer_room(&mut self) {
        let more = self.window - self.held as i64 - self.available;
        if more > 0 && more >= self.available && !self.failed {
            self.open_window(more);
        }
    }

    /// Takes the next head of a stream: of a request, or of an interim or final response.
    pub fn take_head(&mut self, key: Key) -> Option<Head> {
        self.streams.get_mut(key)?.heads.pop_front()
    }

    /// Gives a head back to be filled again.
    pub fn give_head(&mut self, head: Head) {
        let most = match self.streams.len() {
            0 => IDLE_HEADS,
            _ => SPARE_HEADS,
        };
        if self.spare.len() < most && head.is_worth_keeping() {
            self.spare.push(head);
        }
    }

    /// True if the peer has ended its message, and none of its content was or is to be read.
    pub fn has_no_body(&self, key: Key) -> bool {
        self.streams.get(key).is_none_or(|stream| {
            let is_empty = stream.unread_content().is_empty() && stream.trailers.is_none();
            stream.receiving == StreamSide::Ended && is_empty
        })
    }

    /// Looks at the body of a stream.
    pub fn read(&self, key: Key) -> Next<'_> {
        let Some(stream) = self.streams.get(key) else {
            return Next::End;
        };
        let unread = stream.unread_content();
        match stream.broken {
            _ if !unread.is_empty() => Next::Data(unread),
            _ if stream.receiving == StreamSide::Ended => Next::End,
            Some(broken) => Next::Broken(broken),
            None => Next::Wait,
        }
    }

    /// Takes `n` bytes off the front of a stream's body, which makes room for more.
    pub fn consume_body(&mut self, key: Key, n: usize) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        let n = n.min(stream.unread_content().len());
        stream.skip_content(n);
        self.give_back_in(key, n);
    }

    /// Gives the windows of a stream and of the connection bytes back.
    pub(crate) fn give_back_in(&mut self, key: Key, n: usize) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.held = stream.held.saturating_sub(n);
            let window = i64::from(self.config.stream_window);
            let more = window - stream.held as i64 - stream.available;
            let goes_on = stream.receiving != StreamSide::Ended && stream.broken.is_none();
            // A window that opens by little would be used by little. Whoever reads has the rest of it to read before.
            let is_worth = more >= window / 4 && more >= stream.available;
            if goes_on && is_worth && more > 0 {
                stream.available += more;
                frame::put_window(key.id, more as u32, &mut self.out);
            }
        }
        self.give_back(n);
    }

    /// Takes the trailers of a stream, when its body has ended.
    pub fn take_trailers(&mut self, key: Key) -> Option<Head> {
        self.streams.get_mut(key)?.trailers.take()
    }

    /// Takes no more streams of the peer; the existing ones may end.
    pub fn shut_down(&mut self) {
        if self.going != CloseProgress::NotStarted || self.failed {
            return;
        }
        self.going = CloseProgress::Announced;
        frame::put_goaway(MOST_WINDOW as u32, Reason::NO_ERROR, &mut self.out);
        frame::put_frame(frame::PING, 0, 0, &GONE, &mut self.out);
    }

    /// Ends the connection and all streams. The peer is told why.
    pub fn abort(&mut self, reason: Reason) {
        if self.failed {
            return;
        }
        frame::put_goaway(self.last_processed, reason, &mut self.out);
        self.failed = true;
        self.break_all(reason);
    }

    /// Takes note that the peer has closed the connection.
    pub fn mark_disconnected(&mut self) {
        if !self.failed {
            self.failed = true;
            self.break_all(Reason::CANCEL);
        }
    }

    fn break_all(&mut self, reason: Reason) {
        let end = Break {
            reason,
            cause: Cause::Connection,
            unprocessed: false,
        };
        let keys: Vec<Key> = self.streams.keys().collect();
        for key in keys {
            self.break_stream(key, end);
        }
        self.events.push_back(Event::Settled);
    }

    /// Asks the peer for a sign of life, which is [`Event::Pong`].
    pub fn send_ping(&mut self) {
        frame::put_frame(frame::PING, 0, 0, &ALIVE, &mut self.out);
    }

    /// True if the peer has said what it can.
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// True if the peer takes other protocols in streams (RFC 8441).
    pub fn peer_connects(&self) -> bool {
        self.peer_connects
    }

    /// Number of streams that the peer takes at once.
    pub fn peer_streams(&self) -> u32 {
        self.peer_streams
    }

    /// True if no new stream can be opened here any more.
    pub fn is_closing(&self) -> bool {
        self.failed || self.peer_is_going || self.next_own > MOST_WINDOW as u32
    }
}

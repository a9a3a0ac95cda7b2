//! The streams of a connection, in a slab.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use bytes::Bytes;

use crate::head::Head;
use crate::reason::Reason;

/// Names a stream of a connection, also after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub(crate) slot: u32,
    pub(crate) id: u32,
}

impl Key {
    /// Place among the streams that exist at the same time: a small number, which another stream gets later.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// Number of the stream on the wire.
    pub fn id(self) -> u32 {
        self.id
    }
}

/// Side that has ended a stream before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer has reset it.
    Peer,
    /// The peer has sent what it must not, or the stream was reset here.
    Local,
    /// The connection has ended.
    Connection,
}

/// End of a stream before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Break {
    /// Reason that was given to the peer, or by it.
    pub reason: Reason,
    /// Side that has ended it.
    pub cause: Cause,
    /// True if the peer says that it has not processed any of the stream.
    pub unprocessed: bool,
}

/// Next part of a body.
#[derive(Debug)]
pub enum Next<'a> {
    /// Content, of which some is to be consumed.
    Data(&'a [u8]),
    /// Nothing yet.
    Wait,
    /// The end; trailers, if there are any, can be taken.
    End,
    /// There will be no more.
    Broken(Break),
}

/// State of one direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamSide {
    /// The head of the message is to come.
    Head,
    Body,
    Ended,
}

#[derive(Debug)]
pub(crate) struct Stream {
    /// 0 if the slot is free.
    pub(crate) id: u32,
    pub(crate) receiving: StreamSide,
    pub(crate) sending: StreamSide,
    /// Heads that were not taken.
    pub(crate) heads: VecDeque<Head>,
    pub(crate) trailers: Option<Head>,
    /// Content that was not consumed: all from `read` on.
    pub(crate) data: Vec<u8>,
    pub(crate) read: usize,
    /// Bytes that may be sent.
    pub(crate) may_send: i64,
    /// Bytes that the peer may send, and bytes that it has sent and that are not consumed yet.
    pub(crate) available: i64,
    pub(crate) held: usize,
    /// Bytes that are still to come, by the length that the message says.
    pub(crate) left: Option<u64>,
    /// The request that was sent is one whose response has no content.
    pub(crate) asks_for_head: bool,
    /// The request is a CONNECT: what comes has no length.
    pub(crate) connects: bool,
    pub(crate) broken: Option<Break>,
    /// False until the stream has been reported.
    pub(crate) is_seen: bool,
    /// True if the stream is not used any more, but its tail is to be sent.
    pub(crate) is_released: bool,
    /// True while it waits for room in the buffer or in the connection's window; or for its own window.
    pub(crate) is_waiting: bool,
    pub(crate) waits_for_window: bool,
    /// True while [`crate::Event::Writable`] waits to be taken.
    pub(crate) is_woken: bool,
    /// Turn in which it has sent last.
    pub(crate) turn: u32,
    /// Last part of the body, which is sent when there is room.
    pub(crate) tail: Option<Bytes>,
}

impl Stream {
    fn new() -> Self {
        Stream {
            id: 0,
            receiving: StreamSide::Head,
            sending: StreamSide::Head,
            heads: VecDeque::new(),
            trailers: None,
            data: Vec::new(),
            read: 0,
            may_send: 0,
            available: 0,
            held: 0,
            left: None,
            asks_for_head: false,
            connects: false,
            broken: None,
            is_seen: false,
            is_released: false,
            is_waiting: false,
            waits_for_window: false,
            is_woken: false,
            turn: 0,
            tail: None,
        }
    }

    /// True if the peer has reset it: it is to send nothing more in it (RFC 9113, section 5.1).
    pub(crate) fn is_reset_by_peer(&self) -> bool {
        self.broken.is_some_and(|end| end.cause == Cause::Peer)
    }

    /// Content that was not consumed.
    pub(crate) fn unread_content(&self) -> &[u8] {
        self.data.get(self.read..).unwrap_or_default()
    }

    /// Takes `n` bytes of content off the front.
    pub(crate) fn skip_content(&mut self, n: usize) {
        self.read += n;
        if self.read >= self.data.len() && self.data.capacity() > KEPT_READ {
            self.data = Vec::new();
            self.read = 0;
        }
    }

    /// Takes content in.
    pub(crate) fn append_content(&mut self, content: &[u8]) {
        if self.read == self.data.len() {
            self.data.clear();
            self.read = 0;
        } else if self.read > self.data.len() / 2 {
            self.data.drain(..self.read);
            self.read = 0;
        }
        self.data.extend_from_slice(content);
    }

    /// True if both directions have ended, or the stream has.
    pub(crate) fn is_over(&self) -> bool {
        let both = self.receiving == StreamSide::Ended && self.sending == StreamSide::Ended;
        both && self.tail.is_none() || self.broken.is_some()
    }
}

/// Hashes numbers of streams, which follow each other.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Bytes of memory that a stream keeps for content when all of the content was read.
const KEPT_READ: usize = 16 * 1024;

/// Content that a free slot keeps memory for, in bytes.
const KEPT_BYTES: usize = 4096;

/// Heads that a free slot keeps room for.
const KEPT_HEADS: usize = 4;

/// Slots that keep their memory while there is no stream.
const KEPT_SLOTS: usize = 4;

/// All streams.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    slots: Vec<Stream>,
    free: Vec<u32>,
    ids: HashMap<u32, u32, BuildHasherDefault<IdHasher>>,
}

impl Slab {
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Key of the stream with this number.
    pub(crate) fn find(&self, id: u32) -> Option<Key> {
        let slot = *self.ids.get(&id)?;
        Some(Key { slot, id })
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Stream> {
        self.slots
            .get(key.slot as usize)
            .filter(|stream| stream.id == key.id)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Stream> {
        self.slots
            .get_mut(key.slot as usize)
            .filter(|stream| stream.id == key.id)
    }

    /// Makes a stream with this number, which is not 0.
    pub(crate) fn insert(&mut self, id: u32) -> (Key, &mut Stream) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Stream::new());
                (self.slots.len() - 1) as u32
            }
        };
        self.ids.insert(id, slot);
        let key = Key { slot, id };
        let at = (slot as usize).min(self.slots.len().saturating_sub(1));
        #[allow(clippy::indexing_slicing)] // A slot that is free, or was pushed just now.
        let stream = &mut self.slots[at];
        stream.id = id;
        (key, stream)
    }

    /// Forgets a stream. Heads that were not taken go to `heads`.
    pub(crate) fn remove(&mut self, key: Key, mut give: impl FnMut(Head)) {
        let Some(stream) = self.get_mut(key) else {
            return;
        };
        stream.heads.drain(..).for_each(&mut give);
        stream.trailers.take().into_iter().for_each(&mut give);
        let mut data = std::mem::take(&mut stream.data);
        let mut heads = std::mem::take(&mut stream.heads);
        if data.capacity() > KEPT_BYTES {
            data = Vec::new();
        }
        if heads.capacity() > KEPT_HEADS {
            heads = VecDeque::new();
        }
        data.clear();
        *stream = Stream {
            data,
            heads,
            ..Stream::new()
        };
        self.ids.remove(&key.id);
        self.free.push(key.slot);
        if self.ids.is_empty() {
            self.slots.truncate(KEPT_SLOTS);
            self.free.clear();
            self.free.extend((0..self.slots.len() as u32).rev());
        }
    }

    /// Keys of all streams.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        let used = self.slots.iter().enumerate();
        used.filter(|(_, stream)| stream.id != 0)
            .map(|(slot, stream)| Key {
                slot: slot as u32,
                id: stream.id,
            })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.slots.iter().filter(|stream| stream.id != 0)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.slots.iter_mut().filter(|stream| stream.id != 0)
    }
}

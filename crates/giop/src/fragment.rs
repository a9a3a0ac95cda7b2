//! Messages in fragments (CORBA 3.3, part 2, 9.4.9).
//!
//! In 1.2 fragments carry the request id, so that those of several messages may be mixed,
//! and all but the last are multiples of 8 long: put one behind the other they are the
//! message. In 1.1 there is no id, so they follow each other, and values are aligned from
//! the start of the fragment that they stand in. A message of 1.1 therefore keeps its
//! [joints](Message::joints): they tell a reader how values are aligned
//! ([`Reader::of_fragments`](crate::cdr::Reader::of_fragments)), and it is passed on with
//! the same ones ([`cut_like`]). Only arrays of numbers of 8 bytes are ambiguous: omniORB
//! does not align them anew in the next fragment.

use std::mem;

use crate::cdr::Endian;
use crate::message::{Content, GiopError, Header, Kind, Message, Request, Version};

/// Joins the fragments that come over one connection, from one side.
#[derive(Debug)]
pub struct Assembler {
    max_bytes: usize,
    max_messages: usize,
    /// Messages that lack fragments, and how many bytes they take in all.
    open: Vec<Partial>,
    held: usize,
    /// Message that was handed out last.
    done: Partial,
}

#[derive(Debug, Default)]
struct Partial {
    /// Request id that the fragments of the message name: none in 1.1.
    named: Option<u32>,
    /// Id of the request; none if the id is not in the first fragment.
    request_id: Option<u32>,
    bytes: Vec<u8>,
    /// Positions at which fragments were joined, in 1.1 only.
    joints: Vec<usize>,
}

impl Partial {
    /// Returns the bytes that the message takes: a joint costs as well, so that there cannot be
    /// many joints for nothing.
    fn size(&self) -> usize {
        self.bytes.len() + mem::size_of_val(self.joints.as_slice())
    }
}

impl Assembler {
    /// Takes messages that are `max_bytes` long together, and `max_messages` at once, while
    /// they lack fragments.
    pub fn new(max_bytes: usize, max_messages: usize) -> Self {
        Assembler {
            max_bytes,
            max_messages,
            open: Vec::new(),
            held: 0,
            done: Partial::default(),
        }
    }

    /// Returns true if a message lacks fragments.
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Bytes of the messages that lack fragments.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// Takes the next message of the connection, and gives a whole one: this one, if it is
    /// no fragment, or the one that it completes. An error is the end of the connection.
    ///
    /// A cancelled request that lacks fragments is forgotten. Fragments in 1.2 whose
    /// beginning is not known are passed over: they may be what is left of such a one.
    pub fn add_message<'a>(
        &'a mut self,
        message: Message<'a>,
    ) -> Result<Option<Message<'a>>, GiopError> {
        if !self.done.bytes.is_empty() {
            self.done = Partial::default();
        }
        let Header {
            version,
            endian,
            more,
            kind,
            ..
        } = message.header;
        let one_at_a_time = version < Version::V1_2;
        match kind {
            Kind::Fragment => {}
            Kind::CancelRequest => {
                if let Content::CancelRequest { request_id } = message.read_content()? {
                    self.cancel(request_id);
                }
            }
            Kind::Request | Kind::Reply | Kind::LocateRequest | Kind::LocateReply => {
                if self.is_open() && one_at_a_time {
                    return Err(GiopError::Fragment("another message is not complete yet"));
                }
            }
            Kind::CloseConnection | Kind::MessageError => {}
        }
        if kind != Kind::Fragment {
            if more {
                self.open(message)?;
                return Ok(None);
            }
            return Ok(Some(message));
        }
        let Content::Fragment(fragment) = message.read_content()? else {
            return Ok(None);
        };
        let found = self
            .open
            .iter_mut()
            .position(|partial| partial.named == fragment.request_id);
        let Some(at) = found else {
            return match one_at_a_time {
                true => Err(GiopError::Fragment("no first fragment precedes this one")),
                false => Ok(None),
            };
        };
        if more {
            check_length(&message)?;
            if fragment.data.is_empty() {
                return Err(GiopError::Fragment("a fragment is empty, and not the last"));
            }
        }
        let Some(partial) = self.open.get_mut(at) else {
            return Ok(None);
        };
        let started = Header::peek(&partial.bytes, usize::MAX)?;
        if started.is_none_or(|start| (start.version, start.endian) != (version, endian)) {
            let why =
                "the version or byte order of a fragment differs from that of its first fragment";
            return Err(GiopError::Fragment(why));
        }
        let before = partial.size();
        if one_at_a_time {
            partial.joints.push(partial.bytes.len());
        }
        partial.bytes.extend_from_slice(fragment.data);
        self.held += partial.size() - before;
        self.check_held()?;
        if more {
            return Ok(None);
        }
        self.done = self.open.swap_remove(at);
        self.held -= self.done.size();
        self.done.finish().map(Some)
    }

    /// Keeps the beginning of a message.
    fn open(&mut self, message: Message<'_>) -> Result<(), GiopError> {
        let Header {
            version,
            endian,
            kind,
            ..
        } = message.header;
        let fragmented = match version {
            Version::V1_0 => false,
            Version::V1_1 => matches!(kind, Kind::Request | Kind::Reply),
            Version::V1_2 => matches!(
                kind,
                Kind::Request | Kind::Reply | Kind::LocateRequest | Kind::LocateReply
            ),
        };
        if !fragmented {
            return Err(GiopError::Fragment(
                "messages of this type have no fragments",
            ));
        }
        check_length(&message)?;
        let request_id = match version {
            Version::V1_2 => match (message.bytes.get(Header::LEN..), endian) {
                (Some(&[a, b, c, d, ..]), Endian::Big) => Some(u32::from_be_bytes([a, b, c, d])),
                (Some(&[a, b, c, d, ..]), _) => Some(u32::from_le_bytes([a, b, c, d])),
                _ => {
                    return Err(GiopError::Fragment(
                        "the request id is not in the first fragment",
                    ));
                }
            },
            _ => match message.read_content() {
                Ok(Content::Request(Request { request_id, .. })) => Some(request_id),
                _ => None,
            },
        };
        let named = request_id.filter(|_| version == Version::V1_2);
        if self.open.iter().any(|open| open.named == named) {
            return Err(GiopError::Fragment(
                "the request id is in use by another message",
            ));
        }
        if self.open.len() >= self.max_messages {
            return Err(GiopError::Fragment(
                "too many messages are not complete yet",
            ));
        }
        self.held += message.bytes.len();
        self.check_held()?;
        self.open.push(Partial {
            named,
            request_id,
            bytes: message.bytes.to_vec(),
            joints: Vec::new(),
        });
        Ok(())
    }

    fn check_held(&self) -> Result<(), GiopError> {
        match self.held > self.max_bytes {
            false => Ok(()),
            true => Err(GiopError::TooLarge {
                size: self.held,
                limit: self.max_bytes,
            }),
        }
    }

    /// Forgets what has come of a request.
    fn cancel(&mut self, request_id: u32) {
        let held = &mut self.held;
        self.open.retain(|partial| {
            let keep = partial.request_id != Some(request_id);
            if !keep {
                *held -= partial.size();
            }
            keep
        });
    }
}

impl Partial {
    /// The whole message.
    fn finish(&mut self) -> Result<Message<'_>, GiopError> {
        let len = self.bytes.len();
        let Some(mut header) = Header::peek(&self.bytes, usize::MAX)? else {
            return Err(GiopError::NotWhole(len));
        };
        header.more = false;
        header.size = u32::try_from(len - Header::LEN).map_err(|_| GiopError::NotWhole(len))?;
        if let Some(start) = self.bytes.first_chunk_mut() {
            *start = header.encode();
        }
        Ok(Message {
            header,
            bytes: &self.bytes,
            joints: &self.joints,
        })
    }
}

/// All fragments but the last of a message of 1.2 are multiples of 8 long: otherwise it
/// would not be certain how what follows is aligned.
fn check_length(message: &Message<'_>) -> Result<(), GiopError> {
    match message.header.version {
        Version::V1_2 if !message.bytes.len().is_multiple_of(8) => Err(GiopError::Fragment(
            "a fragment is not the last, and its length is not a multiple of 8",
        )),
        _ => Ok(()),
    }
}

/// Cuts the message that `out` holds from `start` to its end as `like` was cut, whose body
/// it has. Nothing is done if `like` came in one piece, or in 1.2. It fails if the new one
/// is of another version or byte order, or if already the header was cut.
pub fn cut_like(like: &Message<'_>, out: &mut Vec<u8>, start: usize) -> Result<(), GiopError> {
    let Some(&first) = like.joints.first() else {
        return Ok(());
    };
    let message = Message::from_whole(out.get(start..).unwrap_or_default())?;
    let body = match message.read_content()? {
        Content::Request(request) => request.body.len(),
        Content::Reply(reply) => reply.body.len(),
        _ => 0,
    };
    let Header {
        version, endian, ..
    } = like.header;
    let header = message.header;
    if (header.version, header.endian) != (version, endian) {
        return Err(GiopError::Fragment(
            "fragments of GIOP 1.1 cannot be passed on in another version or byte order",
        ));
    }
    // From the end, since the headers may be of different lengths.
    let tail = like.bytes.len().saturating_sub(first);
    if tail > body {
        return Err(GiopError::Fragment(
            "the header of the message is in several fragments",
        ));
    }
    let whole = out.split_off(out.len() - tail);
    set_header(out, start, true, header);
    let mut done = 0;
    let ends = like.joints.iter().map(|joint| joint - first).skip(1);
    let mut ends = ends.chain([tail]).peekable();
    while let Some(end) = ends.next() {
        let at = out.len();
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(whole.get(done..end).unwrap_or_default());
        let kind = Kind::Fragment;
        set_header(out, at, ends.peek().is_some(), Header { kind, ..header });
        done = end;
    }
    Ok(())
}

/// Writes the header of the message that stands at `at` up to the end.
fn set_header(out: &mut [u8], at: usize, more: bool, header: Header) {
    if let Some(message) = out.get_mut(at..) {
        // As long as a part of a message whose length a header could say.
        let size = message.len().saturating_sub(Header::LEN) as u32;
        if let Some(start) = message.first_chunk_mut() {
            *start = Header {
                more,
                size,
                ..header
            }
            .encode();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Fragment, LocateRequest, Target};

    /// A request cut into pieces of `piece` bytes of its body each.
    fn cut(version: Version, id: u32, body: &[u8], piece: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut request = Request::new(id, Target::Key(b"key"), "ping");
        let mut whole = Vec::new();
        request.body = body;
        request.encode(version, Endian::Big, &mut whole).unwrap();
        let mut pieces = body.chunks(piece);
        request.body = pieces.next().unwrap();
        let mut messages = vec![Vec::new()];
        request
            .encode(version, Endian::Big, &mut messages[0])
            .unwrap();
        messages[0][6] |= 2;
        let count = pieces.len();
        for (at, data) in pieces.enumerate() {
            let request_id = (version == Version::V1_2).then_some(id);
            let mut out = Vec::new();
            Fragment { request_id, data }
                .encode(version, Endian::Big, at + 1 < count, &mut out)
                .unwrap();
            messages.push(out);
        }
        (whole, messages)
    }

    fn message(bytes: &[u8]) -> Message<'_> {
        Message::from_whole(bytes).unwrap()
    }

    fn refused(assembler: &mut Assembler, bytes: &[u8]) -> String {
        assembler
            .add_message(message(bytes))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn in_1_2_several_messages_may_be_mixed() {
        let body: Vec<u8> = (0..100).collect();
        let (first, mut a) = cut(Version::V1_2, 1, &body, 24);
        let (second, b) = cut(Version::V1_2, 2, &body[..60], 32);
        assert!(a.len() > b.len());
        let mut assembler = Assembler::new(1000, 2);
        let last = a.pop().unwrap();
        for bytes in a.iter().zip(b.iter().take(1)).flat_map(|(a, b)| [a, b]) {
            assert!(assembler.add_message(message(bytes)).unwrap().is_none());
        }
        // Other messages pass.
        let mut cancel = Vec::new();
        let other = Content::CancelRequest { request_id: 77 };
        other
            .encode(Version::V1_2, Endian::Little, &mut cancel)
            .unwrap();
        assert!(assembler.add_message(message(&cancel)).unwrap().is_some());
        let whole = assembler.add_message(message(&b[1])).unwrap().unwrap();
        assert_eq!(whole.bytes, second);
        assert!(whole.joints.is_empty());
        for bytes in &a[1..] {
            assert!(assembler.add_message(message(bytes)).unwrap().is_none());
        }
        let whole = assembler.add_message(message(&last)).unwrap().unwrap();
        assert_eq!(whole.bytes, first);
        assert!(!assembler.is_open());
        assert_eq!(assembler.held, 0);
        // What comes late is passed over.
        assert!(assembler.add_message(message(&last)).unwrap().is_none());
    }

    #[test]
    fn in_1_1_one_follows_the_other_and_is_passed_on_as_it_was_cut() {
        let body: Vec<u8> = (0..100).collect();
        for piece in [8, 33, 99] {
            let (whole, mut cut_up) = cut(Version::V1_1, 1, &body, piece);
            // omniORB may send an empty one as the last.
            cut_up.last_mut().unwrap()[6] |= 2;
            let mut empty = Vec::new();
            Fragment {
                request_id: None,
                data: &[],
            }
            .encode(Version::V1_1, Endian::Big, false, &mut empty)
            .unwrap();
            cut_up.push(empty);
            let mut assembler = Assembler::new(4000, 1);
            let (last, first) = cut_up.split_last().unwrap();
            for bytes in first {
                assert!(assembler.add_message(message(bytes)).unwrap().is_none());
            }
            let joined = assembler.add_message(message(last)).unwrap().unwrap();
            assert_eq!(joined.bytes, whole);
            assert_eq!(joined.joints.len(), first.len());
            // The same again, behind another message.
            let mut out = b"before".to_vec();
            out.extend_from_slice(&whole);
            cut_like(&joined, &mut out, 6).unwrap();
            assert_eq!(out[6..], cut_up.concat());
            // With another key the body is cut at the same places.
            let Content::Request(request) = joined.read_content().unwrap() else {
                panic!("a request");
            };
            let onward = Request {
                target: Target::Key(b"a longer key"),
                ..request
            };
            let mut out = Vec::new();
            onward.encode(Version::V1_1, Endian::Big, &mut out).unwrap();
            cut_like(&joined, &mut out, 0).unwrap();
            let start = Header::peek(&out, 1000).unwrap().unwrap().total();
            assert_eq!(start % 8, cut_up[0].len() % 8);
            assert_eq!(out[start..], cut_up[1..].concat());
            // In another version it would not be the same.
            let mut out = Vec::new();
            onward.encode(Version::V1_0, Endian::Big, &mut out).unwrap();
            assert!(cut_like(&joined, &mut out, 0).is_err());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let body = [7; 100];
        let (whole, cut_up) = cut(Version::V1_1, 1, &body, 40);
        let new = || Assembler::new(1000, 1);
        let says = |error: String, what: &str| assert!(error.contains(what), "{error}");

        says(
            refused(&mut new(), &cut_up[1]),
            "no first fragment precedes",
        );
        let mut open = new();
        assert!(open.add_message(message(&cut_up[0])).unwrap().is_none());
        says(refused(&mut open, &whole), "not complete yet");
        let mut other = cut_up[1].clone();
        other[6] ^= 1;
        other[8..12].reverse();
        says(refused(&mut open, &other), "byte order");

        let (_, cut_up) = cut(Version::V1_2, 1, &body, 24);
        let (_, others) = cut(Version::V1_2, 2, &body, 24);
        let mut open = new();
        assert!(open.add_message(message(&cut_up[0])).unwrap().is_none());
        says(refused(&mut open, &cut_up[0]), "in use");
        says(refused(&mut open, &others[0]), "too many");
        let (_, odd) = cut(Version::V1_2, 3, &body, 7);
        says(refused(&mut new(), &odd[0]), "multiple of 8");
        let mut open = new();
        assert!(open.add_message(message(&cut_up[0])).unwrap().is_none());
        let mut empty = Vec::new();
        Fragment {
            request_id: Some(1),
            data: &[],
        }
        .encode(Version::V1_2, Endian::Big, true, &mut empty)
        .unwrap();
        says(refused(&mut open, &empty), "empty");

        let mut locate = Vec::new();
        LocateRequest {
            request_id: 1,
            target: Target::Key(b"key"),
        }
        .encode(Version::V1_1, Endian::Big, &mut locate)
        .unwrap();
        locate[6] |= 2;
        says(refused(&mut new(), &locate), "have no fragments");
    }

    #[test]
    fn memory_is_bounded_and_a_cancelled_request_is_forgotten() {
        let body = [7; 400];
        for version in [Version::V1_1, Version::V1_2] {
            let (whole, cut_up) = cut(version, 9, &body, 40);
            let mut assembler = Assembler::new(300, 4);
            let error = cut_up
                .iter()
                .find_map(|bytes| assembler.add_message(message(bytes)).err());
            let Some(GiopError::TooLarge { limit: 300, .. }) = error else {
                panic!("{error:?}");
            };
            let mut assembler = Assembler::new(1000, 4);
            assert!(
                assembler
                    .add_message(message(&cut_up[0]))
                    .unwrap()
                    .is_none()
            );
            let mut cancel = Vec::new();
            let content = Content::CancelRequest { request_id: 9 };
            content.encode(version, Endian::Big, &mut cancel).unwrap();
            assert!(assembler.add_message(message(&cancel)).unwrap().is_some());
            assert!(!assembler.is_open());
            assert_eq!(assembler.held, 0);
            assert!(assembler.add_message(message(&whole)).unwrap().is_some());
        }
    }
}

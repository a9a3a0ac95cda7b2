//! Round trips: encoded values are decoded to the same, in all versions and byte orders, and no
//! bytes make a decoder panic.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use evenkeel_giop::cdr::{Endian, Reader, Writer};
use evenkeel_giop::context::{CodeSetChoice, CodeSetInfo, CodeSets, Contexts, ServiceContext};
use evenkeel_giop::fragment::{Assembler, cut_like};
use evenkeel_giop::ior::{IiopProfile, Ior, TAG_INTERNET_IOP, TaggedPart};
use evenkeel_giop::message::{
    Content, Fragment, GiopError, Header, LocateReply, LocateRequest, LocateStatus, Message, Reply,
    ReplyStatus, Request, Target, Version,
};
use proptest::prelude::*;

const VERSIONS: [Version; 3] = [Version::V1_0, Version::V1_1, Version::V1_2];

fn version() -> impl Strategy<Value = Version> {
    prop::sample::select(&VERSIONS[..])
}

fn endian() -> impl Strategy<Value = Endian> {
    prop::sample::select(&[Endian::Big, Endian::Little][..])
}

fn octets() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..24)
}

fn tagged() -> impl Strategy<Value = TaggedPart> {
    // Never tag 0, whose data must be a profile for IIOP.
    (1..=u32::MAX, octets()).prop_map(|(tag, data)| TaggedPart { tag, data })
}

fn profile() -> impl Strategy<Value = TaggedPart> {
    let iiop = (
        0u8..4,
        "[a-z0-9.:]{0,12}",
        any::<u16>(),
        octets(),
        prop::collection::vec(tagged(), 0..3),
        endian(),
    );
    prop_oneof![
        tagged(),
        iiop.prop_map(|(minor, host, port, object_key, mut components, endian)| {
            if minor == 0 {
                components.clear();
            }
            let profile = IiopProfile {
                minor,
                host,
                port,
                object_key,
                components,
            };
            let data = profile.encode(endian);
            assert_eq!(IiopProfile::decode(&data), Ok(Some(profile)));
            TaggedPart {
                tag: TAG_INTERNET_IOP,
                data,
            }
        }),
    ]
}

fn ior() -> impl Strategy<Value = Ior> {
    ("[ -~ü]{0,20}", prop::collection::vec(profile(), 0..4))
        .prop_map(|(type_id, profiles)| Ior { type_id, profiles })
}

/// The parts that messages are made of, owned.
#[derive(Clone, Debug)]
struct Parts {
    kind: u8,
    id: u32,
    flags: u8,
    mode: u8,
    key: Vec<u8>,
    number: u32,
    ior: Ior,
    operation: String,
    contexts: Vec<(u32, Vec<u8>)>,
    principal: Vec<u8>,
    body: Vec<u8>,
    body_at: usize,
}

fn parts() -> impl Strategy<Value = Parts> {
    (
        (0u8..8, any::<u32>(), 0u8..4, 0u8..3, octets(), 0u32..6),
        (ior(), "[a-z_]{0,12}", octets(), octets(), 0usize..16),
        prop::collection::vec((any::<u32>(), octets()), 0..4),
    )
        .prop_map(
            |(
                (kind, id, flags, mode, key, number),
                (ior, operation, principal, body, body_at),
                contexts,
            )| {
                Parts {
                    kind,
                    id,
                    flags,
                    mode,
                    key,
                    number,
                    ior,
                    operation,
                    contexts,
                    principal,
                    body,
                    body_at,
                }
            },
        )
}

impl Parts {
    fn target(&self, version: Version) -> Target<'_> {
        match self.mode {
            1 if version == Version::V1_2 => Target::Profile {
                tag: self.number,
                data: &self.key,
            },
            2 if version == Version::V1_2 => Target::Reference {
                selected: self.number,
                ior: self.ior.clone(),
            },
            _ => Target::Key(&self.key),
        }
    }

    fn content<'a>(&'a self, version: Version, contexts: &'a [ServiceContext<'a>]) -> Content<'a> {
        let contexts = Contexts::from_list(contexts);
        let new = version == Version::V1_2;
        match self.kind {
            0 => Content::Request(Request {
                request_id: self.id,
                request_id_at: 0,
                response_flags: if new { self.flags } else { self.flags & 1 },
                target: self.target(version),
                operation: &self.operation,
                contexts,
                principal: if new { &[] } else { &self.principal },
                body: &self.body,
                body_at: if new { 0 } else { self.body_at },
            }),
            1 => Content::Reply(Reply {
                request_id: self.id,
                request_id_at: 0,
                status: [
                    ReplyStatus::NoException,
                    ReplyStatus::UserException,
                    ReplyStatus::SystemException,
                    ReplyStatus::LocationForward,
                    ReplyStatus::LocationForwardPerm,
                    ReplyStatus::NeedsAddressingMode,
                ][if new { self.number } else { self.number % 4 } as usize],
                contexts,
                body: &self.body,
                body_at: if new { 0 } else { self.body_at / 4 * 4 },
            }),
            2 => Content::CancelRequest {
                request_id: self.id,
            },
            3 => Content::LocateRequest(LocateRequest {
                request_id: self.id,
                target: self.target(version),
            }),
            4 => Content::LocateReply(LocateReply {
                request_id: self.id,
                status: [
                    LocateStatus::UnknownObject,
                    LocateStatus::ObjectHere,
                    LocateStatus::ObjectForward,
                    LocateStatus::ObjectForwardPerm,
                    LocateStatus::SystemException,
                    LocateStatus::NeedsAddressingMode,
                ][if new { self.number } else { self.number % 3 } as usize],
                body: &self.body,
            }),
            5 => Content::CloseConnection,
            7 if version > Version::V1_0 => Content::Fragment(Fragment {
                request_id: new.then_some(self.id),
                data: &self.body,
            }),
            _ => Content::MessageError,
        }
    }
}

/// Returns the content without the bytes that encoding fills up and without positions in the
/// message.
fn plain<'a>(content: Content<'a>, given: &Content<'a>) -> Content<'a> {
    match (content, given) {
        (Content::Request(got), Content::Request(given)) => {
            assert!(got.principal.starts_with(given.principal));
            assert!(got.principal.len() - given.principal.len() < 8);
            if !got.body.is_empty() {
                assert_eq!(got.body_at % 8, given.body_at % 8);
            }
            Content::Request(Request {
                request_id_at: given.request_id_at,
                body_at: given.body_at,
                principal: given.principal,
                ..got
            })
        }
        (Content::Reply(got), Content::Reply(given)) => {
            let extra = got.contexts.len() - given.contexts.len();
            assert!(extra <= 1);
            assert!(
                got.contexts
                    .iter()
                    .take(given.contexts.len())
                    .eq(given.contexts.iter())
            );
            if !got.body.is_empty() {
                assert_eq!(got.body_at % 8, given.body_at % 8);
            }
            Content::Reply(Reply {
                request_id_at: given.request_id_at,
                body_at: given.body_at,
                contexts: given.contexts.clone(),
                ..got
            })
        }
        (content, _) => content,
    }
}

proptest! {
    #[test]
    fn messages(parts in parts(), version in version(), endian in endian(), ahead in octets()) {
        let contexts: Vec<_> = parts
            .contexts
            .iter()
            .map(|(id, data)| ServiceContext { id: *id, data })
            .collect();
        let content = parts.content(version, &contexts);
        let mut out = ahead.clone();
        content.encode(version, endian, &mut out).unwrap();
        prop_assert_eq!(&out[..ahead.len()], &ahead[..]);
        let message = Message::from_whole(&out[ahead.len()..]).unwrap();
        prop_assert_eq!(message.header.version, version);
        prop_assert_eq!(message.header.endian, endian);
        let got = message.read_content().unwrap();
        if let Content::Request(Request { request_id_at: at, .. })
        | Content::Reply(Reply { request_id_at: at, .. }) = got
        {
            let mut reader = Reader::at_offset(at, &message.bytes[at..], endian);
            prop_assert_eq!(reader.read_u32(), Ok(parts.id));
        }
        prop_assert_eq!(plain(got, &content), content);
    }

    #[test]
    fn damaged_messages_are_refused_or_are_others(
        parts in parts(),
        version in version(),
        endian in endian(),
        cut in 0usize..64,
        change in any::<u8>(),
    ) {
        let content = parts.content(version, &[]);
        let mut out = Vec::new();
        content.encode(version, endian, &mut out).unwrap();
        let at = cut.min(out.len() - 1);
        out[at] ^= change;
        for end in [at, out.len()] {
            let bytes = &out[..end];
            if let Ok(Some(header)) = Header::peek(bytes, 1 << 20) {
                let message = Message::new(header, bytes);
                if let Ok(content) = message.read_content() {
                    // Whatever was taken can be passed on, or is refused.
                    for version in VERSIONS {
                        let mut out = Vec::new();
                        match content.encode(version, endian, &mut out) {
                            Ok(()) => prop_assert!(Message::from_whole(&out).unwrap().read_content().is_ok()),
                            Err(_) => prop_assert!(out.is_empty()),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn references(ior in ior(), endian in endian(), words in 0usize..4) {
        let mut writer = Writer::at_offset(4 * words, endian);
        ior.write(&mut writer);
        // The same bytes wherever a multiple of 4 is the start.
        let mut elsewhere = Writer::new(endian);
        ior.write(&mut elsewhere);
        prop_assert_eq!(writer.bytes(), elsewhere.bytes());
        let got = Ior::read(&mut Reader::new(writer.bytes(), endian)).unwrap();
        prop_assert_eq!(&got, &ior);
        let text = ior.to_string();
        prop_assert_eq!(&text.parse::<Ior>().unwrap(), &ior);
        let upper = text.to_ascii_uppercase();
        prop_assert_eq!(&upper.parse::<Ior>().unwrap(), &ior);
    }

    #[test]
    fn no_string_makes_a_reference_panic(text in "(?i:ior:)?[0-9a-fA-F]{0,200}", any in ".*") {
        let _ = text.parse::<Ior>();
        let _ = any.parse::<Ior>();
    }

    #[test]
    fn code_sets(chars in any::<u32>(), wchars in any::<u32>(), endian in endian(),
                 conversion in prop::collection::vec(any::<u32>(), 0..4)) {
        let sets = CodeSets { chars, wchars };
        prop_assert_eq!(CodeSets::decode(&sets.encode(endian)), Ok(sets));
        let info = CodeSetInfo {
            chars: CodeSetChoice { native: chars, conversion },
            wchars: CodeSetChoice { native: wchars, conversion: vec![] },
        };
        prop_assert_eq!(CodeSetInfo::decode(&info.encode(endian)), Ok(info));
    }

    #[test]
    fn a_body_keeps_its_alignment_behind_another_key_and_in_another_version(
        parts in parts(),
        from in version(),
        to in version(),
        endian in endian(),
        key in octets(),
    ) {
        let content = Parts { kind: 0, mode: 0, ..parts.clone() };
        let content = content.content(from, &[]);
        let mut bytes = Vec::new();
        content.encode(from, endian, &mut bytes).unwrap();
        let Ok(Content::Request(request)) = Message::from_whole(&bytes).unwrap().read_content() else {
            unreachable!()
        };
        let mut out = Vec::new();
        let onward = Request { target: Target::Key(&key), ..request.clone() };
        let aligned = request.body_at % 8 == 0 || request.body.is_empty();
        match onward.encode(to, endian, &mut out) {
            Ok(()) => {
                prop_assert!(to < Version::V1_2 || aligned);
                let Ok(Content::Request(got)) = Message::from_whole(&out).unwrap().read_content() else {
                    unreachable!()
                };
                prop_assert_eq!(got.target, Target::Key(&key));
                prop_assert_eq!(got.body, request.body);
                prop_assert!(got.body.is_empty() || got.body_at % 8 == request.body_at % 8);
            }
            Err(error) => {
                prop_assert!(to == Version::V1_2 && !aligned);
                prop_assert!(matches!(error, GiopError::NotInVersion { .. }), "{}", error);
            }
        }
    }

    #[test]
    fn fragments_are_joined_however_they_are_cut_and_mixed(
        version in prop::sample::select(&[Version::V1_1, Version::V1_2][..]),
        endian in endian(),
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 1..5),
        sizes in prop::collection::vec(1usize..60, 1..8),
        order in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let mut wanted = Vec::new();
        let mut queues = Vec::new();
        for (id, body) in bodies.iter().enumerate() {
            let request = Request {
                body,
                ..Request::new(id as u32, Target::Key(b"key"), "ping")
            };
            let mut whole = Vec::new();
            request.encode(version, endian, &mut whole).unwrap();
            queues.push(cut(&whole, version, endian, id as u32, &sizes));
            wanted.push(whole);
        }
        let count = queues.iter().map(VecDeque::len).sum::<usize>();
        let mut joined = Vec::new();
        let mut assembler = Assembler::new(10_000, 5);
        for turn in 0..count {
            queues.retain(|queue| !queue.is_empty());
            // In 1.1 one message follows the other.
            let at = match version {
                Version::V1_2 => order[turn % order.len()].index(queues.len()),
                _ => 0,
            };
            let bytes = queues[at].pop_front().unwrap();
            if let Some(message) = assembler.add_message(Message::from_whole(&bytes).unwrap()).unwrap() {
                joined.push(message.bytes.to_vec());
                let mut again = message.bytes.to_vec();
                cut_like(&message, &mut again, 0).unwrap();
                let pieces = message.joints.len();
                prop_assert_eq!(again.len(), message.bytes.len() + 12 * pieces);
            }
        }
        prop_assert!(!assembler.is_open());
        prop_assert_eq!(assembler.held_bytes(), 0);
        joined.sort();
        wanted.sort();
        prop_assert_eq!(joined, wanted);
    }
}

/// Cuts a message into fragments of such sizes, behind its header at the earliest.
fn cut(
    whole: &[u8],
    version: Version,
    endian: Endian,
    id: u32,
    sizes: &[usize],
) -> VecDeque<Vec<u8>> {
    let round = |size: usize| match version {
        Version::V1_2 => size.next_multiple_of(8),
        _ => size,
    };
    let header = Header::peek(whole, 1000).unwrap().unwrap();
    // No header here is longer.
    let (mut first, mut rest) = (80.min(whole.len()), &whole[..0]);
    if first < whole.len() {
        first = round(first);
        rest = whole.get(first..).unwrap_or_default();
    }
    if rest.is_empty() {
        return [whole.to_vec()].into();
    }
    let mut bytes = whole[..first].to_vec();
    let start = Header {
        more: true,
        size: (first - 12) as u32,
        ..header
    };
    bytes[..12].copy_from_slice(&start.encode());
    let mut pieces = VecDeque::from([bytes]);
    for size in sizes.iter().cycle() {
        let (data, after) = rest.split_at(round(*size).min(rest.len()));
        rest = after;
        let mut bytes = Vec::new();
        let request_id = (version == Version::V1_2).then_some(id);
        Fragment { request_id, data }
            .encode(version, endian, !rest.is_empty(), &mut bytes)
            .unwrap();
        pieces.push_back(bytes);
        if rest.is_empty() {
            return pieces;
        }
    }
    pieces
}

//! Golden tests: messages that omniORB and JacORB really send (`tests/golden/README.md`) are read
//! as they are meant, and written again to the same bytes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::path::PathBuf;

use evenkeel_giop::any::Any;
use evenkeel_giop::cdr::{Endian, Reader};
use evenkeel_giop::context::{CODE_SETS, CodeSetInfo, CodeSets, ISO_8859_1, UTF_8, UTF_16};
use evenkeel_giop::exception::{Completion, Kind as Exception, SystemException};
use evenkeel_giop::fragment::{Assembler, cut_like};
use evenkeel_giop::ior::{Ior, TAG_ALTERNATE_IIOP_ADDRESS};
use evenkeel_giop::message::{
    Content, Header, LocateStatus, Message, Reply, ReplyStatus, Target, Version,
};

const ECHO: &str = "IDL:evenkeel.org/Golden/Echo:1.0";

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden"]
        .iter()
        .collect()
}

/// Bytes of one side of a connection.
struct Piece {
    /// Text of the comment above the bytes.
    about: String,
    /// Number of the connection in the file.
    connection: usize,
    from_client: bool,
    bytes: Vec<u8>,
}

fn pieces(file: &str) -> Vec<Piece> {
    let text = std::fs::read_to_string(folder().join(file)).unwrap();
    let (mut about, mut connection) = (String::new(), 0);
    let mut pieces = Vec::new();
    for line in text.lines() {
        match line.split_once(' ').unwrap() {
            ("#", comment) => {
                if comment.starts_with("another connection") || file.contains("script") {
                    connection += 1;
                }
                comment.clone_into(&mut about);
            }
            (side, hex) => pieces.push(Piece {
                about: about.clone(),
                connection,
                from_client: side == ">",
                bytes: (0..hex.len())
                    .step_by(2)
                    .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                    .collect(),
            }),
        }
    }
    assert!(!pieces.is_empty(), "{file}");
    pieces
}

/// Calls `see` with all whole messages of a file and what is said about them, fragments
/// joined. Answers what was refused, and why.
fn messages(file: &str, mut see: impl FnMut(&Piece, Message<'_>)) -> Vec<(String, String)> {
    let mut refused = Vec::new();
    let mut assemblers = HashMap::new();
    for piece in pieces(file) {
        let assembler = assemblers
            .entry((piece.connection, piece.from_client))
            .or_insert_with(|| Assembler::new(100_000, 10));
        let mut rest = &piece.bytes[..];
        while !rest.is_empty() {
            let next = Header::peek(rest, 100_000).and_then(|header| {
                let header = header.expect("whole headers");
                let (bytes, after) = rest.split_at(header.total());
                rest = after;
                assembler.add_message(Message::new(header, bytes))
            });
            match next {
                Ok(Some(message)) => see(&piece, message),
                Ok(None) => {}
                Err(error) => {
                    refused.push((piece.about.clone(), error.to_string()));
                    break;
                }
            }
        }
    }
    refused
}

fn files() -> Vec<String> {
    let names = std::fs::read_dir(folder()).unwrap().map(|entry| {
        let name = entry.unwrap().file_name();
        name.into_string().unwrap()
    });
    let files: Vec<_> = names.filter(|name| name.ends_with(".hex")).collect();
    assert!(files.len() > 10);
    files
}

#[test]
fn each_message_is_read_and_written_again() {
    for file in files() {
        let mut count = 0;
        let refused = messages(&file, |piece, message| {
            count += 1;
            let about = format!("{file}: {}", piece.about);
            let Header {
                version, endian, ..
            } = message.header;
            let content = message.read_content().expect(&about);
            let mut again = Vec::new();
            content.encode(version, endian, &mut again).expect(&about);
            // omniORB leaves in padding what was in its buffer: that does not count.
            let second = Message::from_whole(&again).unwrap().read_content().unwrap();
            assert_eq!(second, content, "{about}");
            assert_eq!(again.len(), message.bytes.len(), "{about}");
            if endian == Endian::Big {
                assert_eq!(again, message.bytes, "{about}");
            }
        });
        assert!(count > 1, "{file}");
        let refused: Vec<_> = refused.iter().map(|(about, _)| about.as_str()).collect();
        let expected: &[&str] = match file.contains("script") {
            true => &[
                "version 1.3",
                "version 2.0",
                "type 9",
                "magic",
                "interleaved 1.2 not multiple of 8",
            ],
            false => &[],
        };
        assert_eq!(refused, expected, "{file}");
    }
}

/// A body, where it stands, and where fragments begin.
type Body = (Vec<u8>, usize, Vec<usize>);

/// A request with its reply, both owned.
#[derive(Debug)]
struct Call {
    operation: String,
    version: Version,
    endian: Endian,
    key: Vec<u8>,
    flags: u8,
    code_sets: Option<CodeSets>,
    arguments: Body,
    reply: Option<(ReplyStatus, Body)>,
}

fn calls(file: &str) -> Vec<Call> {
    let mut calls = Vec::<Call>::new();
    let mut open = HashMap::new();
    let refused = messages(file, |piece, message| {
        let Header {
            version, endian, ..
        } = message.header;
        let joints = message.joints.to_vec();
        match message.read_content().unwrap() {
            Content::Request(request) => {
                assert!(piece.from_client);
                let code_sets = request.contexts.get(CODE_SETS);
                open.insert((piece.connection, request.request_id), calls.len());
                calls.push(Call {
                    operation: request.operation.to_owned(),
                    version,
                    endian,
                    key: request.target.object_key().unwrap().to_vec(),
                    flags: request.response_flags,
                    code_sets: code_sets.map(|data| CodeSets::decode(data).unwrap()),
                    arguments: (request.body.to_vec(), request.body_at, joints),
                    reply: None,
                });
            }
            Content::Reply(reply) => {
                assert!(!piece.from_client);
                let call = open[&(piece.connection, reply.request_id)];
                let body = (reply.body.to_vec(), reply.body_at, joints);
                calls[call].reply = Some((reply.status, body));
            }
            _ => {}
        }
    });
    assert!(refused.is_empty(), "{refused:?}");
    calls
}

impl Call {
    fn reader<'a>(&self, (body, at, joints): &'a Body) -> Reader<'a> {
        Reader::at_offset(*at, body, self.endian)
            .of_minor(self.version.minor())
            .of_fragments(joints)
    }

    fn arguments(&self) -> Reader<'_> {
        self.reader(&self.arguments)
    }

    /// The reply's body, if it has that status.
    fn reply(&self, expected: ReplyStatus) -> Reader<'_> {
        let (status, body) = self.reply.as_ref().expect("a reply");
        assert_eq!(*status, expected, "{}", self.operation);
        self.reader(body)
    }

    fn results(&self) -> Reader<'_> {
        self.reply(ReplyStatus::NoException)
    }

    fn exception(&self) -> SystemException {
        let mut reader = self.reply(ReplyStatus::SystemException);
        SystemException::read(&mut reader).unwrap()
    }
}

fn doubles(reader: &mut Reader<'_>) -> Vec<f64> {
    let count = reader.read_len(8, "doubles").unwrap();
    (0..count).map(|_| reader.read_f64().unwrap()).collect()
}

#[test]
fn calls_mean_what_was_called() {
    for (file, version) in [
        ("omniorb-1.0-calls.hex", Version::V1_0),
        ("omniorb-1.1-calls.hex", Version::V1_1),
        ("omniorb-1.2-calls.hex", Version::V1_2),
        ("jacorb-1.0-calls.hex", Version::V1_0),
        ("jacorb-1.0-calls-unlocated.hex", Version::V1_0),
        ("jacorb-1.1-calls.hex", Version::V1_1),
        ("jacorb-1.2-calls.hex", Version::V1_2),
        ("jacorb-1.2-calls-unlocated.hex", Version::V1_2),
    ] {
        let omni = file.starts_with("omni");
        let calls = calls(file);
        let (endian, near, far) = match omni {
            true => (Endian::Little, &b"near"[..], &b"farr"[..3]),
            false => (
                Endian::Big,
                &b"golden/golden/near"[..],
                &b"golden/golden/far"[..],
            ),
        };
        for call in &calls {
            assert_eq!((call.version, call.endian), (version, endian), "{file}");
            let flags = match (call.operation.as_str(), version) {
                ("post", _) => 0,
                (_, Version::V1_2) => 3,
                _ => 1,
            };
            assert_eq!(call.flags, flags, "{file}");
            assert_eq!(call.reply.is_some(), flags != 0, "{file}");
        }
        let named = |name: &str| {
            let found = calls.iter().filter(|call| call.operation == name);
            found.collect::<Vec<_>>()
        };

        let ping = named("ping")[0];
        assert_eq!(ping.key, near);
        assert_eq!(ping.arguments().remaining_bytes(), 0);
        assert_eq!(ping.results().remaining_bytes(), 0);
        assert_eq!(named("post")[0].arguments().read_i32(), Ok(42));

        let narrow = named("narrow")[0];
        let text = narrow.arguments().read_string("text").unwrap().into_owned();
        assert_eq!(text, "grüß", "{file}");
        assert_eq!(narrow.results().read_string("text").unwrap(), text);

        match named("broad").first() {
            // 1.0 has no wide strings, and omniORB's client does not send any in 1.1.
            None => assert!(omni && version < Version::V1_2),
            Some(broad) if version == Version::V1_0 => {
                assert_eq!(broad.exception().kind, Exception::Marshal);
            }
            Some(broad) => {
                for mut reader in [broad.arguments(), broad.results()] {
                    let units = reader.read_wstring("text").unwrap();
                    assert_eq!(String::from_utf16(&units).unwrap(), "grüß€", "{file}");
                    assert_eq!(reader.remaining_bytes(), 0);
                }
            }
        }

        let numbers = named("numbers")[0];
        let mut arguments = numbers.arguments();
        assert_eq!(arguments.read_u8(), Ok(b'x'));
        assert_eq!(doubles(&mut arguments), [1.5, -2.0]);
        assert_eq!(doubles(&mut numbers.results()), [1.5, -2.0]);

        let fail = named("fail");
        for (what, call) in (0..3).zip(&fail) {
            assert_eq!(call.arguments().read_i32(), Ok(what));
        }
        let mut odd = fail[0].reply(ReplyStatus::UserException);
        let id = odd.read_string("id").unwrap();
        assert_eq!(id, "IDL:evenkeel.org/Golden/Odd:1.0");
        assert_eq!(odd.read_string("why").unwrap(), "as asked");
        assert_eq!(odd.read_u32(), Ok(1));
        assert_eq!(odd.read_u32(), Ok(3));
        let numbers = [(); 3].map(|()| odd.read_i32().unwrap());
        assert_eq!(numbers, [1, -1, 42]);
        assert_eq!(odd.remaining_bytes(), 0);
        assert_eq!(
            fail[1].exception(),
            SystemException::new(Exception::Transient).with_minor(7)
        );
        assert_eq!(
            fail[2].exception(),
            SystemException::new(Exception::NoImplement)
                .with_minor(9)
                .with_completion(Completion::Yes)
        );

        let other = Ior::read(&mut named("other")[0].results()).unwrap();
        assert_eq!(other.type_id, ECHO);
        let profile = other.iiop_profiles().next().unwrap();
        assert_eq!(profile.minor, version.minor());
        assert_eq!(profile.host, "127.0.0.1");
        assert!(profile.object_key.starts_with(far));
        let gone = named("_non_existent")[0];
        assert_eq!(gone.key, profile.object_key);
        assert_eq!(gone.results().read_bool(), Ok(false));

        // Forwarded: sent again to the other object.
        let forwards = || {
            calls
                .iter()
                .filter(|call| call.reply.as_ref().is_some_and(is_forward))
        };
        fn is_forward(reply: &(ReplyStatus, Body)) -> bool {
            reply.0 == ReplyStatus::LocationForward
        }
        // JacORB locates first, and is forwarded then.
        let count = usize::from(omni || file.contains("unlocated"));
        assert_eq!(forwards().count(), count, "{file}");
        if let Some(call) = forwards().next() {
            let to = Ior::read(&mut call.reply(ReplyStatus::LocationForward)).unwrap();
            assert_eq!(to, other, "{file}");
            let at = calls
                .iter()
                .position(|one| std::ptr::eq(one, call))
                .unwrap();
            assert_eq!(calls[at + 1].operation, call.operation);
            assert_eq!(calls[at + 1].key, profile.object_key);
        }

        // The code sets come with the first request of a connection, as far as known.
        let sets: Vec<_> = calls.iter().filter_map(|call| call.code_sets).collect();
        let expected = |chars| CodeSets {
            chars,
            wchars: UTF_16,
        };
        match (omni, version) {
            (true, Version::V1_0 | Version::V1_1) => assert!(sets.is_empty()),
            (true, Version::V1_2) => assert_eq!(sets, [expected(ISO_8859_1)]),
            (false, _) => {
                assert!(sets.len() >= 2, "{file}: {sets:x?}");
                assert!(sets.iter().all(|&set| set == expected(UTF_8)), "{sets:x?}");
            }
        }
    }
}

#[test]
fn locate_requests_and_their_answers() {
    for file in files().into_iter().filter(|name| !name.contains("script")) {
        let mut questions = Vec::new();
        let mut forwards = 0;
        messages(&file, |piece, message| {
            match message.read_content().unwrap() {
                Content::LocateRequest(request) => {
                    let key = request.target.object_key().unwrap().to_vec();
                    questions.push((request.request_id, key));
                }
                Content::LocateReply(reply) => {
                    let (id, key) = questions.last().unwrap();
                    assert_eq!(reply.request_id, *id, "{file}: {}", piece.about);
                    if !key.ends_with(b"moved") {
                        assert_eq!(reply.status, LocateStatus::ObjectHere);
                        assert!(reply.body.is_empty());
                        return;
                    }
                    forwards += 1;
                    assert_eq!(reply.status, LocateStatus::ObjectForward);
                    // Right behind the status, in all versions.
                    let endian = message.header.endian;
                    let mut reader = Reader::at_offset(20, reply.body, endian);
                    let to = Ior::read(&mut reader).unwrap();
                    assert_eq!(to.type_id, ECHO);
                    assert_eq!(reader.remaining_bytes(), 0);
                }
                _ => {}
            }
        });
        let located = !file.contains("unlocated") && !file.contains("addressing");
        assert_eq!(!questions.is_empty(), located, "{file}");
        let moved = file.starts_with("jacorb") && file.ends_with("-calls.hex");
        assert_eq!(forwards, usize::from(moved), "{file}");
    }
}

/// Returns the answers of an ORB to the messages of a script.
fn answers(file: &str, about: &str) -> Vec<(ReplyStatus, Vec<u8>, Endian)> {
    let mut answers = Vec::new();
    messages(file, |piece, message| {
        if piece.about == about
            && let Content::Reply(reply) = message.read_content().unwrap()
        {
            answers.push((reply.status, reply.body.to_vec(), message.header.endian));
        }
    });
    answers
}

#[test]
fn what_the_orbs_answer_to_what_is_rare() {
    let (omni, jac) = ("omniorb-1.2-script.hex", "jacorb-1.2-script.hex");
    for file in [omni, jac] {
        let exception = |about: &str| {
            let (status, body, endian) = answers(file, about).pop().unwrap();
            assert_eq!(status, ReplyStatus::SystemException, "{file}: {about}");
            SystemException::read(&mut Reader::new(&body, endian)).unwrap()
        };
        assert_eq!(exception("unknown object").kind, Exception::ObjectNotExist);
        assert_eq!(exception("unknown op").kind, Exception::BadOperation);
        // A request whose only flag is "with server" is answered by both.
        assert_eq!(answers(file, "flags 1").len(), 1);
        assert_eq!(answers(file, "flags 0 then ping").len(), 1);
        assert_eq!(answers(file, "cancel, then ping").len(), 1);
        let texts = answers(file, "interleaved");
        let letters = texts.iter().map(|(status, body, _)| {
            assert_eq!(*status, ReplyStatus::NoException);
            assert_eq!(body.len(), 44);
            body[4]
        });
        // Answered at the same time, so in either order.
        let mut letters: Vec<_> = letters.collect();
        letters.sort_unstable();
        assert_eq!(letters, b"ab");

        let mut located = Vec::new();
        messages(file, |piece, message| {
            if let Content::LocateReply(reply) = message.read_content().unwrap() {
                located.push((piece.about.clone(), reply.status));
            }
        });
        let expected: &[(&str, LocateStatus)] = &[
            ("locate 1.0", LocateStatus::ObjectHere),
            ("locate unknown 1.0", LocateStatus::UnknownObject),
            ("locate 1.1", LocateStatus::ObjectHere),
            ("locate unknown 1.1", LocateStatus::UnknownObject),
            ("locate", LocateStatus::ObjectHere),
            ("locate unknown", LocateStatus::UnknownObject),
            ("locate profile", LocateStatus::ObjectHere),
            ("locate reference", LocateStatus::ObjectHere),
            ("locate moved", LocateStatus::ObjectForward),
        ];
        let expected = if file == omni {
            &expected[..6]
        } else {
            expected
        };
        let located: Vec<_> = located.iter().map(|(a, s)| (a.as_str(), *s)).collect();
        assert_eq!(located, expected, "{file}");
    }
    for (about, status) in [
        ("fail 3, a forward", ReplyStatus::LocationForward),
        (
            "fail 4, a forward for good",
            ReplyStatus::LocationForwardPerm,
        ),
    ] {
        let (got, body, endian) = answers(omni, about).pop().unwrap();
        assert_eq!(got, status);
        let to = Ior::read(&mut Reader::new(&body, endian)).unwrap();
        assert_eq!(to.iiop_profiles().next().unwrap().object_key, b"far");
    }
    // An object key that came in a profile or a reference is understood by JacORB.
    for about in ["key", "profile", "reference"] {
        assert_eq!(answers(jac, about)[0].0, ReplyStatus::NoException);
    }
    // What only JacORB does not say: goodbye, and that a message was not understood.
    let count = |file, kind: fn(&Content<'_>) -> bool| {
        let mut count = 0;
        messages(file, |piece, message| {
            count += usize::from(!piece.from_client && kind(&message.read_content().unwrap()));
        });
        count
    };
    let error = |content: &Content<'_>| matches!(content, Content::MessageError);
    let close = |content: &Content<'_>| matches!(content, Content::CloseConnection);
    assert_eq!((count(omni, error), count(omni, close)), (2, 1));
    assert_eq!((count(jac, error), count(jac, close)), (0, 0));
}

#[test]
fn an_object_is_named_by_profile_or_reference_too() {
    let mut targets = Vec::new();
    let mut wanted = Vec::new();
    messages("omniorb-1.2-addressing.hex", |_, message| {
        let endian = message.header.endian;
        match message.read_content().unwrap() {
            Content::Request(request) => {
                assert_eq!(request.target.object_key(), Some(&b"near"[..]));
                targets.push(match &request.target {
                    Target::Key(_) => "key",
                    Target::Profile { tag: 0, .. } => "profile",
                    Target::Reference { selected: 0, ior } if ior.profiles.len() == 1 => {
                        assert_eq!(ior.type_id, "");
                        "reference"
                    }
                    other => panic!("{other:?}"),
                });
            }
            Content::Reply(Reply {
                status: ReplyStatus::NeedsAddressingMode,
                body,
                ..
            }) => wanted.push(Reader::new(body, endian).read_u16().unwrap()),
            _ => {}
        }
    });
    assert_eq!(targets, ["key", "profile", "key", "reference"]);
    assert_eq!(wanted, [1, 2]);
}

#[test]
fn fragments_of_omniorb_are_joined_and_passed_on_with_the_same_cuts() {
    for (file, version) in [
        ("omniorb-1.1-fragments.hex", Version::V1_1),
        ("omniorb-1.2-fragments.hex", Version::V1_2),
    ] {
        let calls = calls(file);
        let blob: Vec<u8> = (0..1200u32).map(|i| (i % 251) as u8).collect();
        let numbers: Vec<f64> = (0..150).map(|i| f64::from(i) * 0.5).collect();
        // omniORB does not align an array anew behind a joint of 1.1.
        let results = &calls[0].reply.as_ref().unwrap().1;
        for (body, arguments) in [(&calls[0].arguments, true), (results, false)] {
            let mut reader = Reader::at_offset(body.1, &body.0, Endian::Little);
            if arguments {
                assert_eq!(reader.read_u8(), Ok(b'x'));
            }
            assert_eq!(doubles(&mut reader), numbers);
            assert_eq!(reader.remaining_bytes(), 0);
        }
        for mut reader in [calls[1].arguments(), calls[1].results()] {
            assert_eq!(reader.read_octets("blob"), Ok(&blob[..]));
            assert_eq!(reader.remaining_bytes(), 0);
        }
        // But single values.
        for mut reader in [calls[2].arguments(), calls[2].results()] {
            let seen = format!("{:?}", Any::read(&mut reader).unwrap());
            assert_eq!(reader.remaining_bytes(), 0, "{seen}");
        }
        let body = &calls[2].arguments;
        let mut reader = Reader::at_offset(body.1, &body.0, Endian::Little);
        let read = Any::read(&mut reader).is_ok() && reader.remaining_bytes() == 0;
        assert_eq!(read, version == Version::V1_2);
        assert_eq!(calls[3].operation, "ping");

        // As a relay passes them on: with another request id and the same key.
        let mut passed = HashMap::<bool, Vec<u8>>::new();
        messages(file, |piece, message| {
            let Header {
                version, endian, ..
            } = message.header;
            let out = passed.entry(piece.from_client).or_default();
            let start = out.len();
            let content = message.read_content().unwrap();
            content.encode(version, endian, out).unwrap();
            cut_like(&message, out, start).unwrap();
        });
        if version == Version::V1_2 {
            continue;
        }
        let mut sent = HashMap::<bool, Vec<u8>>::new();
        for piece in pieces(file) {
            sent.entry(piece.from_client)
                .or_default()
                .extend(piece.bytes);
        }
        for side in [true, false] {
            let heads = |mut bytes: &[u8]| {
                let mut heads = Vec::new();
                while let Some(header) = Header::peek(bytes, 10_000).unwrap() {
                    heads.push(header);
                    bytes = &bytes[header.total()..];
                }
                heads
            };
            let (passed, sent) = (&passed[&side], &sent[&side]);
            assert_eq!(heads(passed), heads(sent));
            // Only the padding in headers differs.
            let different = passed.iter().zip(sent).filter(|(a, b)| a != b).count();
            assert!(different < 40, "{different}");
        }
    }
}

#[test]
fn references_say_where_and_how() {
    let text = std::fs::read_to_string(folder().join("references.txt")).unwrap();
    let mut lines = text.lines();
    let mut seen = 0;
    while let (Some(about), Some(line)) = (lines.next(), lines.next()) {
        seen += 1;
        let ior: Ior = line.parse().unwrap_or_else(|e| panic!("{about}: {e}"));
        let omni = about.contains("omniORB");
        if about.contains("nil") {
            assert!(ior.is_nil(), "{about}");
            assert_eq!(ior.type_id, "");
            continue;
        }
        assert_eq!(ior.type_id, ECHO, "{about}");
        let profiles: Vec<_> = ior.iiop_profiles().collect();
        // In 1.0 JacORB says its components in a profile of their own (tag 1).
        let components = ior.profiles.iter().filter(|p| p.tag == 1).count();
        assert_eq!(ior.profiles.len(), profiles.len() + components, "{about}");
        assert_eq!(components, usize::from(about.contains("version=0")));
        let profile = &profiles[0];
        // Written in the byte order in which it came, it is the same.
        let endian = if omni { Endian::Little } else { Endian::Big };
        let again = profile.encode(endian);
        assert_eq!(again.len(), ior.profiles[0].data.len(), "{about}");
        let minor = match about {
            _ if about.contains("1.0") || about.contains("version=0") => 0,
            _ if about.contains("1.1") || about.contains("version=1") => 1,
            _ => 2,
        };
        assert_eq!(profile.minor, minor, "{about}");
        let host = if about.contains("IPv6") {
            "::1"
        } else {
            "127.0.0.1"
        };
        assert_eq!(
            (profile.host.as_str(), profile.port),
            (host, 17101),
            "{about}"
        );
        assert!(profile.object_key.ends_with(b"near"), "{about}");
        let orb = if omni { 0x4154_5400 } else { 0x4a41_4300 };
        let expected = (minor > 0).then_some(orb);
        assert_eq!(profile.orb_type(), expected, "{about}");
        let addresses: Vec<_> = profile.list_addresses().collect();
        let more = match about {
            _ if about.contains("two") => vec![(String::from("127.0.0.1"), 17102)],
            _ if about.contains("alternate") => vec![(String::from("127.0.0.2"), 17102)],
            _ => Vec::new(),
        };
        assert_eq!(addresses[1..], more, "{about}");
        assert_eq!(
            profile.find_component(TAG_ALTERNATE_IIOP_ADDRESS).is_some(),
            !more.is_empty()
        );
        if minor == 2 {
            let CodeSetInfo { chars, wchars } = profile.code_sets().unwrap();
            assert_eq!(wchars.native, UTF_16, "{about}");
            let (native, other) = match omni {
                true => (ISO_8859_1, UTF_8),
                false => (UTF_8, ISO_8859_1),
            };
            assert_eq!(chars.native, native, "{about}");
            assert!(chars.conversion.contains(&other), "{about}");
        }
    }
    assert!(seen > 8);
}

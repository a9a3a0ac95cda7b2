//! A connection against scripted peers.

use std::time::Duration;

use crate::connection::{Config, Connection, Event, Failure, Role};
use crate::fields::Fields;
use crate::flood::{BURST, Flood};
use crate::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Header, PADDED, PING,
    PREFACE, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, WITH_PRIORITY, put_frame,
};
use crate::head::SensitiveParts;
use crate::reason::Reason;
use crate::send::{NotOpened, Opening};
use crate::stream::{Cause, Key, Next};
use proptest::prelude::*;

const CONFIG: Config = Config {
    role: Role::Server,
    max_streams: 10,
    max_head_bytes: 2000,
    stream_window: 65_536,
    connection_window: 65_535,
};

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(kind, flags, stream, payload, &mut out);
    out
}

/// A block of literal fields. Fields whose names begin with `+` are added to the table.
fn block(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        let (first, name) = match name.strip_prefix(b"+") {
            Some(name) => (0x40, name),
            None => (0, *name),
        };
        out.push(first);
        for text in [name, *value] {
            assert!(text.len() < 127);
            out.push(text.len() as u8);
            out.extend_from_slice(text);
        }
    }
    out
}

/// First line of a request for `path`.
fn opening(path: &[u8]) -> Opening<'_> {
    Opening {
        method: b"GET",
        scheme: b"http",
        authority: Some(b"test"),
        path,
        ..Opening::default()
    }
}

type Field = (&'static [u8], &'static [u8]);

const GET: [Field; 4] = [
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":authority", b"test"),
    (b":path", b"/"),
];

const OK: [Field; 1] = [(b":status", b"200")];

fn head(stream: u32, ends: bool, fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let end = if ends { END_STREAM } else { 0 };
    frame(HEADERS, END_HEADERS | end, stream, &block(fields))
}

fn with(fields: &[Field], more: &[Field]) -> Vec<Field> {
    [fields, more].concat()
}

/// Fields of [`GET`], one of them replaced.
fn instead(name: &'static [u8], value: &'static [u8]) -> Vec<Field> {
    let swap = |(known, old): Field| (known, if known == name { value } else { old });
    GET.map(swap).to_vec()
}

fn without(name: &[u8]) -> Vec<Field> {
    GET.into_iter()
        .filter(|(known, _)| *known != name)
        .collect()
}

/// An end of a connection, and the frames that its peer gets.
struct End {
    connection: Connection,
    events: Vec<Event>,
    frames: Vec<(Header, Vec<u8>)>,
}

impl End {
    /// A server whose client has said hello.
    fn server() -> Self {
        Self::server_of(CONFIG)
    }

    fn server_of(config: Config) -> Self {
        let mut end = Self::new(config);
        end.take(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat())
            .unwrap();
        end.frames.clear();
        end.events.clear();
        end
    }

    /// A client whose server has said hello.
    fn client() -> Self {
        let mut end = Self::new(Config {
            role: Role::Client,
            ..CONFIG
        });
        assert!(end.connection.pending_output().starts_with(PREFACE));
        end.connection.consume_output(PREFACE.len());
        end.take(&frame(SETTINGS, 0, 0, &[])).unwrap();
        end.frames.clear();
        end.events.clear();
        end
    }

    fn new(config: Config) -> Self {
        End {
            connection: Connection::new(config),
            events: Vec::new(),
            frames: Vec::new(),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let taken = self.connection.receive_bytes(bytes, Duration::ZERO);
        self.look();
        taken
    }

    /// Reads the output and the events.
    fn look(&mut self) {
        assert!(self.connection.is_balanced(), "bytes are counted once");
        while let Some(event) = self.connection.next_event() {
            self.events.push(event);
        }
        if self.connection.pending_output().starts_with(PREFACE) {
            return;
        }
        while let Some((header, rest)) = self.connection.pending_output().split_first_chunk() {
            let header = Header::parse(header);
            let payload = rest[..header.length].to_vec();
            self.connection.consume_output(9 + header.length);
            self.frames.push((header, payload));
        }
    }

    fn ask(&mut self, path: &[u8], ends: bool) -> Key {
        self.connection
            .open_request(opening(path), &Fields::new(), ends)
            .unwrap()
    }

    /// A server whose client has windows of `window` bytes for streams, and has asked for something: the head of the answer
    /// is sent.
    fn answering(window: u32, status: u16) -> (Self, Key) {
        let mut end = Self::server();
        let window = window.to_be_bytes();
        end.take(&frame(SETTINGS, 0, 0, &[&[0, 4], &window[..]].concat()))
            .unwrap();
        let key = end.answer(1, status);
        (end, key)
    }

    /// Takes a request in a stream, and sends the head of the answer.
    fn answer(&mut self, stream: u32, status: u16) -> Key {
        self.take(&head(stream, true, &GET)).unwrap();
        let key = *self.requests().last().unwrap();
        self.connection
            .send_head(key, status, &Fields::new(), false)
            .unwrap();
        key
    }

    /// Reasons with which streams were reset.
    fn resets(&self) -> Vec<(u32, Reason)> {
        let resets = self
            .frames
            .iter()
            .filter(|(header, _)| header.kind == RST_STREAM);
        resets
            .map(|(header, payload)| (header.stream, code(payload)))
            .collect()
    }

    fn goaway(&self) -> Option<Reason> {
        let frame = self.frames.iter().find(|(header, _)| header.kind == GOAWAY);
        frame.map(|(_, payload)| code(&payload[4..]))
    }

    /// Keys of requests that have come.
    fn requests(&self) -> Vec<Key> {
        let requests = self.events.iter().filter_map(|event| match event {
            Event::Request(key) => Some(*key),
            _ => None,
        });
        requests.collect()
    }

    /// Content that was sent in a stream.
    fn data(&self, stream: u32) -> usize {
        let data = self
            .frames
            .iter()
            .filter(|(header, _)| header.kind == DATA && header.stream == stream);
        data.map(|(_, payload)| payload.len()).sum()
    }
}

fn code(payload: &[u8]) -> Reason {
    Reason(u32::from_be_bytes(payload[..4].try_into().unwrap()))
}

#[test]
fn errors_of_streams_that_were_seen_do_not_make_up_for_themselves() {
    let window = |stream| frame(WINDOW_UPDATE, 0, stream, &[0; 4]);
    let content = |stream| frame(DATA, 0, stream, b"x");
    let length = |stream| frame(DATA, END_STREAM, stream, b"x");
    let post = with(&GET, &[(b"content-length", b"5")]);
    type Bad<'a> = (&'a str, bool, Vec<Field>, &'a dyn Fn(u32) -> Vec<u8>);
    let cases: [Bad<'_>; 3] = [
        ("window of nothing", true, GET.to_vec(), &window),
        ("content behind the end", true, GET.to_vec(), &content),
        ("another length", false, post, &length),
    ];
    for (why, ends, fields, bad) in cases {
        let mut end = End::server();
        let mut failed = None;
        for n in 0..300 {
            let stream = 2 * n + 1;
            let is_honest = n < 50;
            end.take(&head(
                stream,
                ends || is_honest,
                if is_honest { &GET } else { &fields },
            ))
            .unwrap();
            let key = *end.requests().last().unwrap();
            if is_honest {
                end.connection
                    .send_head(key, 204, &Fields::new(), true)
                    .unwrap();
            } else if let Err(failure) = end.take(&bad(stream)) {
                failed = Some((n, failure));
                break;
            }
            end.connection.release_stream(key, None);
            end.look();
        }
        let expected = Some((150, Failure::of_flood(Flood::Headers)));
        assert_eq!(failed, expected, "{why}");
        assert_eq!(end.connection.error_count(), 101, "{why}");
    }
}

#[test]
fn a_stream_is_told_once_that_there_is_room() {
    let mut end = End::server();
    let streams = CONFIG.max_streams;
    end.take(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0, 0, 0]))
        .unwrap();
    for n in 0..streams {
        end.take(&head(2 * n + 1, true, &GET)).unwrap();
    }
    let keys = end.requests();
    for key in &keys {
        end.connection
            .send_head(*key, 200, &Fields::new(), false)
            .unwrap();
    }
    let body = [b'x'; 100_000];
    while end.connection.send_data(keys[0], &body, false).unwrap() > 0 {
        end.look();
    }
    end.look();
    let wait = |end: &mut End| {
        for key in &keys {
            assert_eq!(end.connection.send_data(*key, &body, false), Ok(0));
        }
    };
    wait(&mut end);
    // While there is no window, room in the output brings no event.
    end.events.clear();
    end.take(&frame(PING, 0, 0, &[0; 8])).unwrap();
    end.look();
    assert_eq!(end.events, []);
    let window = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
    let ping = frame(PING, 0, 0, &[0; 8]);
    for _ in 0..400 {
        end.connection
            .receive_bytes(&window, Duration::ZERO)
            .unwrap();
        end.connection.receive_bytes(&ping, Duration::ZERO).unwrap();
        let sent = end.connection.pending_output().len();
        end.connection.consume_output(sent);
        assert!(end.connection.events.len() <= streams as usize);
    }
    let written: Vec<Event> = keys.iter().copied().map(Event::Writable).collect();
    end.look();
    assert_eq!(end.events, written);
    // And told again when there is some again.
    assert_eq!(end.connection.send_data(keys[3], &body, false), Ok(400));
    end.look();
    wait(&mut end);
    end.events.clear();
    end.take(&window).unwrap();
    assert_eq!(end.events.len(), keys.len());
}

#[test]
fn the_queue_of_events_keeps_little_memory() {
    let mut end = End::server();
    let settings = frame(SETTINGS, 0, 0, &[]).repeat(900);
    end.connection
        .receive_bytes(&settings, Duration::ZERO)
        .unwrap();
    assert!(end.connection.events.capacity() >= 900);
    end.look();
    assert!(end.connection.events.capacity() < 300);
}

#[test]
fn heads_that_no_stream_takes_make_up_for_no_frames() {
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(BURST as usize - 10);
    let flood = Err(Failure::of_flood(Flood::Control));
    for is_refused in [false, true] {
        let mut end = End::server();
        let heads: Vec<u8> = if is_refused {
            for n in 0..CONFIG.max_streams {
                end.take(&head(2 * n + 1, true, &GET)).unwrap();
            }
            (0..200)
                .flat_map(|n| head(2 * n + 101, true, &GET))
                .collect()
        } else {
            end.take(&head(1, true, &[(b"X", b"y")])).unwrap();
            head(1, true, &[(b"x", b"y")]).repeat(200)
        };
        // Nothing is sent meanwhile, which would make up for some.
        let connection = &mut end.connection;
        connection.receive_bytes(&pings, Duration::ZERO).unwrap();
        let result = connection
            .receive_bytes(&heads, Duration::ZERO)
            .and_then(|()| connection.receive_bytes(&pings, Duration::ZERO));
        let expected = match is_refused {
            true => Err(Failure::of_flood(Flood::Resets)),
            false => flood,
        };
        assert_eq!(result, expected);
    }
    // A head that opens a stream does make up for some.
    let mut end = End::server();
    let connection = &mut end.connection;
    connection.receive_bytes(&pings, Duration::ZERO).unwrap();
    let heads: Vec<u8> = (0..5).flat_map(|n| head(2 * n + 1, true, &GET)).collect();
    connection.receive_bytes(&heads, Duration::ZERO).unwrap();
    let more = frame(PING, 0, 0, &[0; 8]).repeat(40);
    assert_eq!(connection.receive_bytes(&more, Duration::ZERO), Ok(()));
}

#[test]
fn a_stream_whose_content_was_read_keeps_little_memory() {
    let mut end = End::server();
    end.take(&head(1, false, &GET)).unwrap();
    let key = end.requests()[0];
    for _ in 0..3 {
        for _ in 0..3 {
            end.take(&frame(DATA, 0, 1, &[b'x'; 16_000])).unwrap();
        }
        let capacity = |end: &End| end.connection.streams.get(key).unwrap().data.capacity();
        end.connection.consume_body(key, 47_999);
        assert!(matches!(end.connection.read(key), Next::Data(b"x")));
        assert!(capacity(&end) >= 48_000);
        end.connection.consume_body(key, 1);
        assert!(matches!(end.connection.read(key), Next::Wait));
        assert!(capacity(&end) <= 16_384);
        end.look();
    }
}

#[test]
fn bytes_of_a_stream_that_ends_within_a_frame_come_back_once() {
    // Too much for the length that the request has said: with and without padding, seen and unseen.
    let post = with(&GET, &[(b"content-length", b"5")]);
    let padded = [&[99][..], &[b'x'; 1000]].concat();
    for (flags, payload) in [(0, vec![b'x'; 1000]), (PADDED, padded)] {
        for (is_seen, size) in [(true, 1), (true, 700), (false, 1), (false, 5000)] {
            let mut end = End::server();
            end.take(&[head(1, false, &GET), frame(DATA, 0, 1, &[b'y'; 5000])].concat())
                .unwrap();
            let bad = [head(3, false, &post), frame(DATA, flags, 3, &payload)].concat();
            for part in bad.chunks(size) {
                end.connection.receive_bytes(part, Duration::ZERO).unwrap();
                assert!(end.connection.is_balanced());
                if is_seen {
                    end.look();
                }
            }
            end.look();
            assert_eq!(end.resets(), [(3, Reason::PROTOCOL_ERROR)]);
            assert_eq!(end.connection.unread_bytes(), 5000);
            if let Some(key) = end.connection.streams.find(3) {
                end.connection.release_stream(key, None);
            }
            end.look();
            assert_eq!(
                end.connection.unread_bytes(),
                5000,
                "those of the other stream"
            );
        }
    }
    // Given up here, while the rest is under way.
    for cut in [0, 1, 400, 1060] {
        let mut end = End::server();
        end.take(&[head(1, false, &GET), frame(DATA, 0, 1, &[b'y'; 5000])].concat())
            .unwrap();
        end.take(&head(3, false, &GET)).unwrap();
        let key = *end.requests().last().unwrap();
        let padded = [&[99][..], &[b'x'; 1100]].concat();
        let data = frame(DATA, PADDED | END_STREAM, 3, &padded);
        let (before, after) = data.split_at(9 + cut);
        end.take(before).unwrap();
        end.connection.release_stream(key, None);
        end.look();
        assert_eq!(end.connection.unread_bytes(), 5000 + after.len());
        for part in after.chunks(300) {
            end.take(part).unwrap();
        }
        assert_eq!(end.connection.unread_bytes(), 5000);
        assert_eq!(end.resets(), [(3, Reason::CANCEL)]);
    }
}

#[test]
fn a_pseudo_field_that_makes_a_head_too_large_is_answered_too() {
    let mut end = End::server();
    // The path is the last one, and the first one that does not fit.
    let mut long = block(&GET[..2]);
    long.extend([0, 5]);
    long.extend(b":path");
    // A length of 7 bits, and more of it.
    let length = CONFIG.max_head_bytes - 127;
    long.extend([127, (length % 128) as u8 | 128, (length / 128) as u8]);
    long.extend([b'x'; CONFIG.max_head_bytes]);
    for stream in [1, 3] {
        end.take(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &long))
            .unwrap();
        let (answer, payload) = &end.frames[0];
        assert_eq!((answer.kind, answer.stream), (HEADERS, stream));
        assert!(
            answer.has_flag(END_STREAM) && payload.ends_with(b"431"),
            "{payload:x?}"
        );
        assert_eq!((end.resets(), end.connection.error_count()), (vec![], 0));
        end.frames.clear();
    }
}

#[test]
fn output_that_was_sent_is_given_back_with_the_last_stream() {
    let mut end = End::server();
    end.take(&head(1, true, &GET)).unwrap();
    let key = end.requests()[0];
    end.connection
        .send_head(key, 200, &Fields::new(), false)
        .unwrap();
    assert!(
        end.connection
            .send_data(key, &[b'x'; 16_000], false)
            .unwrap()
            > 0
    );
    assert_eq!(end.connection.send_data(key, &[b'x'; 9], true), Ok(9));
    end.look();
    assert!(end.connection.out.capacity() >= 16_000);
    end.connection.release_stream(key, None);
    assert_eq!(end.connection.out.capacity(), 0);
}

/// Every way in which a request can be malformed.
fn malformed_requests() -> Vec<(&'static str, Vec<Field>)> {
    vec![
        (
            "byte that is no UTF-8 in the path",
            instead(b":path", b"/\xe9"),
        ),
        ("the same in the authority", instead(b":authority", b"\xe9")),
        ("the same in the scheme", instead(b":scheme", b"\xe9")),
        ("the same in the method", instead(b":method", b"\xe9")),
        ("empty method", instead(b":method", b"")),
        ("method with a blank", instead(b":method", b"GET /")),
        ("empty path", instead(b":path", b"")),
        ("LF in the path", instead(b":path", b"/a\nb")),
        ("NUL in the path", instead(b":path", b"/a\0b")),
        ("empty authority", instead(b":authority", b"")),
        ("empty scheme", instead(b":scheme", b"")),
        ("scheme with a colon", instead(b":scheme", b"http:")),
        ("no method", without(b":method")),
        ("no scheme", without(b":scheme")),
        ("no path", without(b":path")),
        ("two paths", with(&GET, &[(b":path", b"/")])),
        ("two authorities", with(&GET, &[(b":authority", b"test")])),
        ("unknown pseudo-field", with(&GET, &[(b":x", b"y")])),
        (
            "pseudo-field of responses",
            with(&GET, &[(b":status", b"200")]),
        ),
        (
            "protocol without CONNECT",
            with(&GET, &[(b":protocol", b"websocket")]),
        ),
        ("CONNECT with a path", instead(b":method", b"CONNECT")),
        (
            "pseudo-field behind others",
            [&[(&b"x"[..], &b"y"[..])], &GET[..]].concat(),
        ),
        ("NUL in a value", with(&GET, &[(b"x", b"a\0b")])),
        ("CR LF in a value", with(&GET, &[(b"x", b"a\r\nb: c")])),
        ("LF in a value", with(&GET, &[(b"x", b"a\nb")])),
        ("DEL in a value", with(&GET, &[(b"x", b"a\x7f")])),
        ("blank before a value", with(&GET, &[(b"x", b" a")])),
        ("tabulator behind a value", with(&GET, &[(b"x", b"a\t")])),
        ("capital in a name", with(&GET, &[(b"X", b"a")])),
        ("blank in a name", with(&GET, &[(b"a b", b"c")])),
        ("bracket in a name", with(&GET, &[(b"a[]", b"c")])),
        (
            "byte that is no ASCII in a name",
            with(&GET, &[(b"\xe9", b"c")]),
        ),
        ("colon in a name", with(&GET, &[(b"a:b", b"c")])),
        ("empty name", with(&GET, &[(b"", b"c")])),
        ("connection", with(&GET, &[(b"connection", b"close")])),
        ("keep-alive", with(&GET, &[(b"keep-alive", b"1")])),
        (
            "proxy-connection",
            with(&GET, &[(b"proxy-connection", b"close")]),
        ),
        (
            "transfer-encoding",
            with(&GET, &[(b"transfer-encoding", b"chunked")]),
        ),
        ("upgrade", with(&GET, &[(b"upgrade", b"websocket")])),
        ("te", with(&GET, &[(b"te", b"gzip")])),
        (
            "two lengths",
            with(
                &GET,
                &[(b"content-length", b"0"), (b"content-length", b"1")],
            ),
        ),
        ("bad length", with(&GET, &[(b"content-length", b"+0")])),
        (
            "length without content",
            with(&GET, &[(b"content-length", b"5")]),
        ),
    ]
}

#[test]
fn a_malformed_request_is_an_error_of_its_stream() {
    for (why, fields) in malformed_requests() {
        let mut end = End::server();
        end.take(&head(1, false, &GET)).unwrap();
        // Fields that the malformed head adds to the table are there for later ones.
        let fields = [&fields[..], &[(&b"+x-added"[..], &b"here"[..])]].concat();
        assert_eq!(end.take(&head(3, true, &fields)), Ok(()), "{why}");
        assert_eq!(end.resets(), [(3, Reason::PROTOCOL_ERROR)], "{why}");
        let indexed = [&block(&GET)[..], &[0xbe]].concat();
        end.take(&frame(HEADERS, END_HEADERS | END_STREAM, 5, &indexed))
            .unwrap();
        end.take(&frame(DATA, END_STREAM, 1, b"hello")).unwrap();
        let [first, last] = end.requests()[..] else {
            panic!("{why}: {:?}", end.events);
        };
        assert_eq!((first.id, last.id), (1, 5));
        let read = end.connection.read(first);
        assert!(matches!(read, Next::Data(b"hello")), "{why}: {read:?}");
        let request = end.connection.take_head(last).unwrap();
        assert_eq!(request.fields.get("x-added"), Some(&b"here"[..]), "{why}");
        // Frames still under way in the stream that was reset are dropped.
        end.take(&frame(DATA, 0, 3, b"more")).unwrap();
        end.take(&head(3, true, &[(b"x", b"y")])).unwrap();
        end.take(&frame(WINDOW_UPDATE, 0, 3, &[0, 0, 0, 1]))
            .unwrap();
        assert_eq!(end.resets().len(), 1, "{why}");
        assert_eq!(
            (end.goaway(), end.connection.error_count()),
            (None, 1),
            "{why}"
        );
    }
}

#[test]
fn malformed_trailers_and_content_are_errors_of_their_stream() {
    let five: &[Field] = &[(b"content-length", b"5")];
    for (why, more, frames) in [
        ("capital", &[][..], head(1, true, &[(b"X", b"y")])),
        ("pseudo-field", &[], head(1, true, &[(b":path", b"/")])),
        ("LF", &[], head(1, true, &[(b"x", b"a\nb")])),
        ("connection", &[], head(1, true, &[(b"connection", b"x")])),
        ("no end", &[], head(1, false, &[(b"x", b"y")])),
        ("less content", five, frame(DATA, END_STREAM, 1, b"1234")),
        ("more content", five, frame(DATA, 0, 1, b"123456")),
        (
            "padded content",
            five,
            frame(DATA, PADDED, 1, b"\x01123456\0"),
        ),
        ("less before trailers", five, head(1, true, &[(b"x", b"y")])),
    ] {
        let mut end = End::server();
        end.take(&head(1, false, &with(&GET, more))).unwrap();
        end.take(&head(3, true, &GET)).unwrap();
        end.take(&frames).unwrap();
        assert_eq!(end.resets(), [(1, Reason::PROTOCOL_ERROR)], "{why}");
        let [first, other] = end.requests()[..] else {
            panic!("{why}");
        };
        let broken = end.connection.stream_break(first).unwrap();
        assert_eq!(broken.cause, Cause::Local, "{why}");
        assert!(end.events.contains(&Event::Broken(first)));
        assert_eq!(end.connection.stream_break(other), None);
        assert_eq!(
            end.connection.send_head(other, 200, &Fields::new(), true),
            Ok(())
        );
        // All of the window comes back.
        end.connection.release_stream(first, None);
        end.connection.release_stream(other, None);
        assert_eq!(
            (end.connection.unread_bytes(), end.connection.stream_count()),
            (0, 0)
        );
    }
}

#[test]
fn a_malformed_response_is_an_error_of_its_stream() {
    let ok = |more: &[Field]| head(1, false, &with(&OK, more));
    for (why, frames) in [
        ("capital in a name", ok(&[(b"X", b"y")])),
        ("blank in a name", ok(&[(b"x y", b"z")])),
        ("NUL in a value", ok(&[(b"x", b"\0")])),
        ("LF in a value", ok(&[(b"x", b"a\nb")])),
        ("unknown pseudo-field", ok(&[(b":x", b"y")])),
        ("status of letters", head(1, true, &[(b":status", b"abc")])),
        (
            "status of four digits",
            head(1, true, &[(b":status", b"2000")]),
        ),
        ("status below 100", head(1, true, &[(b":status", b"099")])),
        ("no status", head(1, true, &[(b"x", b"y")])),
        ("two statuses", ok(&[(b":status", b"200")])),
        ("pseudo-field of requests", ok(&[(b":path", b"/")])),
        ("connection", ok(&[(b"connection", b"close")])),
        (
            "transfer-encoding",
            ok(&[(b"transfer-encoding", b"chunked")]),
        ),
        (
            "switch of protocols",
            head(1, false, &[(b":status", b"101")]),
        ),
        (
            "end with an interim response",
            head(1, true, &[(b":status", b"103")]),
        ),
        ("content before the head", frame(DATA, 0, 1, b"x")),
        (
            "length",
            head(1, true, &with(&OK, &[(b"content-length", b"3")])),
        ),
        (
            "content in a 204",
            [
                head(1, false, &[(b":status", b"204")]),
                frame(DATA, END_STREAM, 1, b"x"),
            ]
            .concat(),
        ),
        (
            "less content",
            [
                ok(&[(b"content-length", b"3")]),
                frame(DATA, END_STREAM, 1, b"ab"),
            ]
            .concat(),
        ),
        (
            "trailers",
            [ok(&[]), head(1, true, &[(b"X", b"y")])].concat(),
        ),
        (
            "pseudo-field in trailers",
            [ok(&[]), head(1, true, &[(b":status", b"200")])].concat(),
        ),
        ("two heads", [ok(&[]), ok(&[])].concat()),
    ] {
        let mut end = End::client();
        let bad = end.ask(b"/bad", true);
        let good = end.ask(b"/good", false);
        assert_eq!(end.take(&frames), Ok(()), "{why}");
        assert_eq!(end.resets(), [(1, Reason::PROTOCOL_ERROR)], "{why}");
        let broken = end.connection.stream_break(bad).unwrap();
        assert_eq!(
            (broken.cause, broken.unprocessed),
            (Cause::Local, false),
            "{why}"
        );
        assert_eq!(end.connection.send_data(good, b"on", true), Ok(2), "{why}");
        end.take(&head(good.id, true, &OK)).unwrap();
        assert_eq!(end.connection.take_head(good).unwrap().status(), 200);
        assert!(matches!(end.connection.read(good), Next::End), "{why}");
        assert_eq!(end.goaway(), None, "{why}");
    }
}

#[test]
fn responses_without_content_have_any_length() {
    for (method, fields) in [
        (&b"HEAD"[..], with(&OK, &[(b"content-length", b"100")])),
        (
            b"GET",
            vec![(b":status", b"304"), (b"content-length", b"5")],
        ),
        (b"GET", vec![(b":status", b"204")]),
    ] {
        let mut end = End::client();
        let opening = Opening {
            method,
            scheme: b"http",
            authority: None,
            path: b"/",
            ..Opening::default()
        };
        let key = end
            .connection
            .open_request(opening, &Fields::new(), true)
            .unwrap();
        end.take(&head(1, true, &[(b":status", b"103"), (b"link", b"x")])[..0])
            .unwrap();
        end.take(&head(1, false, &[(b":status", b"103"), (b"link", b"x")]))
            .unwrap();
        end.take(&head(1, true, &fields)).unwrap();
        assert_eq!(end.resets(), []);
        assert_eq!(end.connection.take_head(key).unwrap().status(), 103);
        assert!(end.connection.take_head(key).unwrap().status() > 103);
        assert!(end.connection.has_no_body(key));
        end.connection.release_stream(key, None);
        end.look();
        assert_eq!(end.resets(), [], "it has ended in order");
    }
}

#[test]
fn errors_of_the_connection_end_it() {
    let open = || head(1, false, &GET);
    let large = |stream| {
        let mut header = frame(DATA, 0, stream, &[]);
        header[..3].copy_from_slice(&[0, 0x40, 1]);
        header
    };
    let setting = |name: u8, value: u32| {
        let value = value.to_be_bytes();
        frame(SETTINGS, 0, 0, &[&[0, name], &value[..]].concat())
    };
    for (why, bytes, reason) in [
        ("length", large(1), Reason::FRAME_SIZE_ERROR),
        (
            "DATA, idle",
            frame(DATA, 0, 1, b"x"),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "DATA, connection",
            frame(DATA, 0, 0, b"x"),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "padding",
            [open(), frame(DATA, PADDED, 1, &[5, 1, 2])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        ("HEADERS, even", head(2, true, &GET), Reason::PROTOCOL_ERROR),
        (
            "HEADERS, connection",
            head(0, true, &GET),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "priority",
            frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, &[0; 4]),
            Reason::FRAME_SIZE_ERROR,
        ),
        (
            "compression",
            frame(HEADERS, END_HEADERS, 1, &[0xff, 0xff]),
            Reason::COMPRESSION_ERROR,
        ),
        (
            "half a block",
            frame(HEADERS, END_HEADERS, 1, &[0x00, 5, b'x']),
            Reason::COMPRESSION_ERROR,
        ),
        (
            "in a block",
            [frame(HEADERS, 0, 1, &[]), frame(PING, 0, 0, &[0; 8])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "another block",
            [frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, 0, 3, &[])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "CONTINUATION",
            frame(CONTINUATION, 4, 1, &[]),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "PUSH_PROMISE",
            frame(PUSH_PROMISE, 4, 1, &[0; 4]),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "RST_STREAM, idle",
            frame(RST_STREAM, 0, 1, &[0; 4]),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "RST_STREAM, length",
            frame(RST_STREAM, 0, 1, &[0; 3]),
            Reason::FRAME_SIZE_ERROR,
        ),
        (
            "PING, length",
            frame(PING, 0, 0, &[0; 7]),
            Reason::FRAME_SIZE_ERROR,
        ),
        (
            "PING, stream",
            frame(PING, 0, 1, &[0; 8]),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "SETTINGS, length",
            frame(SETTINGS, 0, 0, &[0; 5]),
            Reason::FRAME_SIZE_ERROR,
        ),
        (
            "SETTINGS, ack",
            frame(SETTINGS, ACK, 0, &[0; 6]),
            Reason::FRAME_SIZE_ERROR,
        ),
        (
            "SETTINGS, stream",
            frame(SETTINGS, 0, 1, &[]),
            Reason::PROTOCOL_ERROR,
        ),
        ("push", setting(2, 2), Reason::PROTOCOL_ERROR),
        ("window", setting(4, 1 << 31), Reason::FLOW_CONTROL_ERROR),
        ("frame size", setting(5, 16_383), Reason::PROTOCOL_ERROR),
        ("connect", setting(8, 2), Reason::PROTOCOL_ERROR),
        (
            "GOAWAY, length",
            frame(GOAWAY, 0, 0, &[0; 7]),
            Reason::FRAME_SIZE_ERROR,
        ),
        (
            "no window",
            frame(WINDOW_UPDATE, 0, 0, &[0; 4]),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "window beyond the largest",
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
            Reason::FLOW_CONTROL_ERROR,
        ),
        (
            "WINDOW_UPDATE, idle",
            frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "number of a stream that is smaller",
            [head(3, true, &GET), head(1, true, &GET)].concat(),
            Reason::PROTOCOL_ERROR,
        ),
    ] {
        for size in [1, 3, 10_000] {
            let mut end = End::server();
            let result = bytes.chunks(size).try_for_each(|part| end.take(part));
            assert_eq!(result, Err(reason.into()), "{why}");
            assert_eq!(end.goaway(), Some(reason), "{why}");
            assert!(end.connection.is_done() && !end.connection.wants_input());
            // Nothing more is taken in.
            assert_eq!(end.take(&head(7, true, &GET)), Ok(()));
        }
    }
    let mut end = End::new(CONFIG);
    let wrong = b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n";
    assert_eq!(end.take(wrong), Err(Reason::PROTOCOL_ERROR.into()));
    let mut end = End::new(CONFIG);
    let first = [PREFACE, &frame(PING, 0, 0, &[0; 8])].concat();
    assert_eq!(end.take(&first), Err(Reason::PROTOCOL_ERROR.into()));
}

#[test]
fn frames_for_streams_that_have_ended_are_refused() {
    // Ended by both: the connection is over. Given up by the client: the stream is, once more.
    for frames in [frame(DATA, 0, 1, b"x"), head(1, true, &[(b"x", b"y")])] {
        let mut end = End::server();
        end.take(&head(1, true, &GET)).unwrap();
        let key = end.requests()[0];
        // The client has ended its side.
        let mut other = End::server();
        other.take(&head(1, true, &GET)).unwrap();
        other.take(&frames).unwrap();
        assert_eq!(other.resets(), [(1, Reason::STREAM_CLOSED)]);
        end.connection
            .send_head(key, 200, &Fields::new(), true)
            .unwrap();
        end.connection.release_stream(key, None);
        assert_eq!(end.take(&frames), Err(Reason::STREAM_CLOSED.into()));
        let mut end = End::server();
        end.take(&head(1, false, &GET)).unwrap();
        let key = end.requests()[0];
        end.take(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
        assert_eq!(end.connection.stream_break(key).unwrap().cause, Cause::Peer);
        // Before somebody has seen it, and after.
        end.take(&frames).unwrap();
        assert_eq!(end.resets(), [(1, Reason::STREAM_CLOSED)]);
        assert_eq!(end.connection.stream_break(key).unwrap().cause, Cause::Peer);
        end.connection.release_stream(key, None);
        end.take(&frames).unwrap();
        assert_eq!(
            end.resets(),
            [(1, Reason::STREAM_CLOSED)],
            "it is said once"
        );
        let mut end = End::server();
        end.take(&head(1, false, &GET)).unwrap();
        end.take(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
        let key = end.requests()[0];
        end.connection.release_stream(key, None);
        end.take(&frames).unwrap();
        assert_eq!(end.resets(), [(1, Reason::STREAM_CLOSED)]);
    }
}

#[test]
fn floods_end_the_connection() {
    let open = || head(1, false, &GET);
    let many = |frame: Vec<u8>| frame.repeat(BURST as usize + 100);
    let streams =
        |of: &dyn Fn(u32) -> Vec<u8>| -> Vec<u8> { (0..400).flat_map(|n| of(2 * n + 3)).collect() };
    let reset = |stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
    for (why, bytes, flood) in [
        ("PING", many(frame(PING, 0, 0, &[0; 8])), Flood::Control),
        ("SETTINGS", many(frame(SETTINGS, 0, 0, &[])), Flood::Control),
        (
            "WINDOW_UPDATE",
            many(frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
            Flood::Control,
        ),
        (
            "PRIORITY",
            many(frame(PRIORITY, 0, 1, &[0; 5])),
            Flood::Control,
        ),
        (
            "unknown",
            many(frame(0xfa, 0, 1, b"grease")),
            Flood::Control,
        ),
        ("empty DATA", many(frame(DATA, 0, 1, &[])), Flood::Data),
        ("padding", many(frame(DATA, PADDED, 1, &[0])), Flood::Data),
        ("RST_STREAM", many(reset(1)), Flood::Resets),
        (
            "CONTINUATION",
            [
                frame(HEADERS, 0, 3, &[]),
                many(frame(CONTINUATION, 0, 3, &[])),
            ]
            .concat(),
            Flood::Headers,
        ),
        (
            "list of fields",
            frame(
                HEADERS,
                END_HEADERS,
                3,
                &[block(&[(b"+x", &[b'y'; 100])]), vec![0xbe; 1000]].concat(),
            ),
            Flood::Headers,
        ),
        (
            "rapid reset",
            streams(&|stream| [head(stream, true, &GET), reset(stream)].concat()),
            Flood::Resets,
        ),
        (
            "malformed requests",
            streams(&|stream| head(stream, true, &[(b"X", b"y")])),
            Flood::Headers,
        ),
        // The stream is reset here, as the client wants (CVE-2025-8671).
        (
            "windows of nothing",
            streams(&|stream| {
                let window = frame(WINDOW_UPDATE, 0, stream, &[0; 4]);
                [head(stream, true, &GET), window].concat()
            }),
            Flood::Headers,
        ),
        (
            "frames for streams that have ended",
            streams(&|stream| {
                let data = frame(DATA, 0, stream, b"x");
                [head(stream, true, &GET), data].concat()
            }),
            Flood::Headers,
        ),
    ] {
        let mut end = End::server();
        end.take(&open()).unwrap();
        let result = end.take(&bytes);
        assert_eq!(result, Err(Failure::of_flood(flood)), "{why}");
        assert_eq!(end.goaway(), Some(Reason::ENHANCE_YOUR_CALM), "{why}");
        assert!(end.frames.len() < 2 * BURST as usize, "{why}");
        assert!(end.connection.stream_count() <= CONFIG.max_streams as usize);
    }
}

/// Frames of a peer that has taken a message of stream 1: windows of the stream and of the connection, and a PING.
fn acknowledgement(bytes: u8) -> Vec<u8> {
    [
        frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, bytes]),
        frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, bytes]),
        frame(PING, 0, 0, &[0; 8]),
    ]
    .concat()
}

#[test]
fn messages_of_a_stream_may_each_be_acknowledged() {
    // Once as a server, and once as a client that uploads.
    let mut client = End::client();
    let opened = client.ask(b"/", false);
    for (mut end, key) in [End::answering(65_535, 200), (client, opened)] {
        for _ in 0..10 * BURST {
            assert_eq!(end.connection.send_data(key, b"tick", false), Ok(4));
            end.look();
            end.take(&acknowledgement(4)).unwrap();
        }
    }
}

#[test]
fn content_that_was_sent_long_before_may_be_acknowledged_in_pieces() {
    // Windows of 4 MB for each stream, as Go's client has them; it says what was read in pieces of 4 KB.
    const WINDOW: u32 = 4 << 20;
    const PIECE: u32 = 4096;
    let (mut end, first) = End::answering(WINDOW, 200);
    end.take(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()))
        .unwrap();
    let body = vec![b'x'; WINDOW as usize];
    let streams = [1, 3, 5, 7];
    for stream in streams {
        let key = match stream {
            1 => first,
            _ => end.answer(stream, 200),
        };
        let mut sent = 0;
        while sent < body.len() {
            sent += end.connection.send_data(key, &body[sent..], false).unwrap();
            end.look();
        }
    }
    for _ in 0..WINDOW / PIECE {
        for stream in streams {
            for to in [stream, 0] {
                let window = frame(WINDOW_UPDATE, 0, to, &PIECE.to_be_bytes());
                assert_eq!(end.take(&window), Ok(()));
            }
        }
    }
}

#[test]
fn windows_of_a_byte_are_a_flood() {
    let (mut end, key) = End::answering(0, 200);
    let body = vec![b'x'; 100_000];
    let mut sent = 0;
    let failure = loop {
        if let Err(failure) = end.take(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])) {
            break failure;
        }
        sent += end.connection.send_data(key, &body[sent..], true).unwrap();
        end.look();
    };
    assert_eq!(failure, Failure::of_flood(Flood::Control));
    assert!(sent < 2 * BURST as usize, "{sent}");
}

#[test]
fn streams_that_are_given_up_one_by_one_are_a_flood_too() {
    let mut end = End::server();
    let mut failed = None;
    for n in 0..1000 {
        let stream = 2 * n + 1;
        let reset = frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        if let Err(failure) = end
            .take(&head(stream, true, &GET))
            .and_then(|()| end.take(&reset))
        {
            failed = Some((n, failure));
            break;
        }
        let key = *end.requests().last().unwrap();
        end.connection.release_stream(key, None);
    }
    let (n, failure) = failed.unwrap();
    assert_eq!(failure, Failure::of_flood(Flood::Resets));
    assert!((100..110).contains(&n), "{n}");
    // A client that gets as many answers may give up as many streams.
    let mut end = End::server();
    for n in 0..1000 {
        let stream = 2 * n + 1;
        end.take(&head(stream, true, &GET)).unwrap();
        let key = *end.requests().last().unwrap();
        if n % 2 == 0 {
            end.take(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]))
                .unwrap();
        } else {
            end.connection
                .send_head(key, 204, &Fields::new(), true)
                .unwrap();
        }
        end.connection.release_stream(key, None);
        end.look();
    }
}

#[test]
fn more_streams_than_allowed_are_refused_and_large_heads_answered() {
    let mut end = End::server();
    for n in 0..12 {
        end.take(&head(2 * n + 1, true, &GET)).unwrap();
    }
    let refused = [(21, Reason::REFUSED_STREAM), (23, Reason::REFUSED_STREAM)];
    assert_eq!(end.resets(), refused);
    assert_eq!(end.requests().len(), 10);
    let mut end = End::server();
    let large: &[u8] = &[b'x'; 120];
    let fields: Vec<(&[u8], &[u8])> = [&GET[..], &[(&b"y"[..], large); 20]].concat();
    end.take(&head(1, true, &fields)).unwrap();
    let (answer, payload) = &end.frames[0];
    assert_eq!((answer.kind, answer.stream), (HEADERS, 1));
    // `:status` with three digits, of which the code has 16 bits.
    assert!(
        answer.has_flag(END_STREAM) && payload[0] == 0x08,
        "{payload:x?}"
    );
    end.take(&head(3, true, &GET)).unwrap();
    assert_eq!(end.requests().len(), 1);
}

#[test]
fn who_reads_slowly_holds_up_himself() {
    let config = Config {
        connection_window: 1 << 20,
        ..CONFIG
    };
    let mut end = End::server_of(config);
    let part = [b'x'; 16_384];
    end.take(&[head(1, false, &GET), head(3, false, &GET)].concat())
        .unwrap();
    let [slow, quick] = end.requests()[..] else {
        panic!();
    };
    (0..4).for_each(|_| end.take(&frame(DATA, 0, 1, &part)).unwrap());
    // The window of the stream is used up, and the connection's is not.
    for _ in 0..1000 {
        end.take(&frame(DATA, 0, 3, &part)).unwrap();
        let Next::Data(data) = end.connection.read(quick) else {
            panic!();
        };
        assert_eq!(data.len(), part.len());
        end.connection.consume_body(quick, part.len());
        end.look();
    }
    let windows = |stream: u32| -> u64 {
        let frames = end
            .frames
            .iter()
            .filter(|(header, _)| header.kind == WINDOW_UPDATE && header.stream == stream);
        frames.map(|(_, payload)| u64::from(code(payload).0)).sum()
    };
    assert_eq!(windows(1), 0);
    let sent = 1000 * 16_384;
    assert!((sent - 65_536..=sent).contains(&windows(3)));
    assert_eq!(end.connection.unread_bytes(), 4 * part.len());
    end.take(&frame(DATA, 0, 1, b"x")).unwrap();
    assert_eq!(end.resets(), [(1, Reason::FLOW_CONTROL_ERROR)]);
    // Content that will not be read any more is room for other streams.
    end.connection.release_stream(slow, None);
    assert_eq!(end.connection.unread_bytes(), 0);
}

#[test]
fn room_is_offered_when_others_fill_what_was_known() {
    const WINDOW: usize = 65_535;
    let mut end = End::server_of(Config {
        stream_window: 1 << 20,
        connection_window: WINDOW as u32,
        ..CONFIG
    });
    end.take(&[head(1, false, &GET), head(3, false, &GET)].concat())
        .unwrap();
    let quick = end.requests()[0];
    end.take(&frame(DATA, 0, 1, &[b'x'; 16_000])).unwrap();
    end.take(&frame(DATA, 0, 1, &[b'x'; 16_000])).unwrap();
    end.connection.consume_body(quick, 32_000);
    end.look();
    assert_eq!(end.frames.len(), 0, "it knows of more than half");
    // All that it knows of goes to a stream that nobody reads.
    end.take(&frame(DATA, 0, 3, &[b'y'; 16_000])).unwrap();
    end.take(&frame(DATA, 0, 3, &[b'y'; 16_000])).unwrap();
    let offered: u64 = end
        .frames
        .iter()
        .filter(|(header, _)| header.kind == WINDOW_UPDATE && header.stream == 0)
        .map(|(_, payload)| u64::from(code(payload).0))
        .sum();
    assert_eq!(offered, 32_000);
    end.take(&frame(DATA, 0, 1, &[b'x'; 16_000])).unwrap();
}

#[test]
fn the_window_of_the_connection_is_kept() {
    let mut end = End::server();
    end.take(&[head(1, false, &GET), head(3, false, &GET)].concat())
        .unwrap();
    let part = [b'x'; 16_384];
    for stream in [1, 1, 3] {
        end.take(&frame(DATA, 0, stream, &part)).unwrap();
    }
    let result = end.take(&frame(DATA, 0, 3, &part));
    assert_eq!(result, Err(Reason::FLOW_CONTROL_ERROR.into()));
}

#[test]
fn content_goes_as_far_as_windows_allow_and_in_turns() {
    let mut end = End::server();
    let window = [0, 4, 0, 0, 0, 100];
    end.take(&frame(SETTINGS, 0, 0, &window)).unwrap();
    end.take(
        &[
            head(1, true, &GET),
            head(3, true, &GET),
            head(5, true, &GET),
        ]
        .concat(),
    )
    .unwrap();
    let keys = end.requests();
    let [first, second, third] = keys[..] else {
        panic!();
    };
    for key in &keys {
        end.connection
            .send_head(*key, 200, &Fields::new(), false)
            .unwrap();
    }
    let body = [b'x'; 200_000];
    assert_eq!(end.connection.send_data(first, &body, true), Ok(100));
    assert_eq!(end.connection.send_data(first, &body, true), Ok(0));
    end.look();
    end.events.clear();
    end.take(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 50]))
        .unwrap();
    assert_eq!(end.events, [Event::Writable(first)]);
    assert_eq!(end.connection.send_data(first, &body, true), Ok(50));
    // Now the streams' windows are large, and the buffer is what they share.
    end.take(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0, 0, 0]))
        .unwrap();
    end.take(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]))
        .unwrap();
    let mut sent = [0_usize; 3];
    let mut write = |end: &mut End, at: usize, key| loop {
        let n = end.connection.send_data(key, &body, false).unwrap();
        sent[at] += n;
        if n == 0 {
            break;
        }
    };
    for (at, key) in [first, second, third].into_iter().enumerate() {
        write(&mut end, at, key);
    }
    for _ in 0..100 {
        end.events.clear();
        assert!(end.connection.pending_output().len() < 50_000);
        end.look();
        for event in end.events.clone() {
            if let Event::Writable(key) = event {
                let at = keys.iter().position(|known| *known == key).unwrap();
                write(&mut end, at, key);
            }
        }
    }
    let most = sent.iter().max().unwrap();
    assert!(sent.iter().all(|bytes| bytes * 2 > *most), "{sent:?}");
}

#[test]
fn a_tail_waits_for_room_after_the_stream_is_released() {
    let (mut end, key) = End::answering(10, 503);
    let text = bytes::Bytes::from(vec![b'x'; 100]);
    end.connection.send_tail(key, text).unwrap();
    end.connection.release_stream(key, None);
    end.look();
    assert_eq!((end.data(1), end.connection.stream_count()), (10, 1));
    end.take(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 1, 0]))
        .unwrap();
    end.look();
    assert_eq!((end.data(1), end.connection.stream_count()), (100, 0));
    assert_eq!(end.resets(), []);
}

#[test]
fn an_orderly_end_lets_streams_end() {
    let mut end = End::server();
    end.take(&head(1, true, &GET)).unwrap();
    end.connection.shut_down();
    end.look();
    assert_eq!(end.goaway(), Some(Reason::NO_ERROR));
    let (_, ping) = end
        .frames
        .iter()
        .find(|(header, _)| header.kind == PING)
        .unwrap();
    let ping = ping.clone();
    // On its way when the client heard of the end.
    end.take(&head(3, true, &GET)).unwrap();
    end.take(&frame(PING, ACK, 0, &ping)).unwrap();
    let last = end.frames.last().unwrap();
    assert_eq!((last.0.kind, code(&last.1)), (GOAWAY, Reason(3)));
    end.take(&head(5, false, &GET)).unwrap();
    end.take(&frame(DATA, END_STREAM, 5, b"more")).unwrap();
    let keys = end.requests();
    assert_eq!(
        (keys.len(), end.resets().len()),
        (2, 0),
        "the third one is too late"
    );
    for key in keys {
        assert!(!end.connection.is_done());
        end.connection
            .send_head(key, 204, &Fields::new(), true)
            .unwrap();
        end.connection.release_stream(key, None);
    }
    assert!(end.connection.is_done());
}

#[test]
fn a_client_knows_what_the_server_has_not_processed() {
    let mut end = End::client();
    let [one, two, three] = [b"/1", b"/2", b"/3"].map(|path| end.ask(path, true));
    end.take(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 7])).unwrap();
    end.take(&frame(GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]))
        .unwrap();
    let unprocessed = |end: &End, key| end.connection.stream_break(key).map(|end| end.unprocessed);
    assert_eq!(unprocessed(&end, one), Some(true));
    assert_eq!(unprocessed(&end, two), None);
    assert_eq!(unprocessed(&end, three), Some(true));
    let opening = Opening {
        method: b"GET",
        scheme: b"http",
        authority: None,
        path: b"/",
        ..Opening::default()
    };
    let opened = end.connection.open_request(opening, &Fields::new(), true);
    assert_eq!(opened, Err(NotOpened::Closing));
    end.take(&head(3, true, &OK)).unwrap();
    for key in [one, two, three] {
        end.connection.release_stream(key, None);
    }
    assert!(end.connection.is_done());
}

#[test]
fn a_client_opens_as_many_streams_as_it_may() {
    let mut end = End::client();
    end.take(&frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]))
        .unwrap();
    let key = end.ask(b"/", true);
    let opening = Opening {
        method: b"CONNECT",
        scheme: b"http",
        authority: Some(b"test"),
        path: b"/chat",
        protocol: Some(b"websocket"),
        ..Opening::default()
    };
    let opened = end.connection.open_request(opening, &Fields::new(), false);
    assert_eq!(opened, Err(NotOpened::Full));
    assert!(!end.connection.peer_connects());
    end.take(&frame(SETTINGS, 0, 0, &[0, 8, 0, 0, 0, 1]))
        .unwrap();
    assert!(end.connection.peer_connects());
    end.take(&head(1, true, &OK)).unwrap();
    end.events.clear();
    end.connection.release_stream(key, None);
    end.look();
    assert_eq!(end.events, [Event::Settled]);
    assert!(
        end.connection
            .open_request(opening, &Fields::new(), false)
            .is_ok()
    );
    end.connection.send_ping();
    end.look();
    let (_, payload) = end.frames.last().unwrap().clone();
    end.take(&frame(PING, ACK, 0, &payload)).unwrap();
    assert!(end.events.contains(&Event::Pong));
}

#[test]
fn marks_of_sensitive_parts_reach_the_peer() {
    for (path, authority) in [(true, false), (false, true)] {
        let (mut client, mut server) = (End::client(), End::server());
        let opening = Opening {
            method: b"GET",
            scheme: b"http",
            authority: Some(b"test"),
            path: b"/",
            sensitive: SensitiveParts { path, authority },
            ..Opening::default()
        };
        let mut fields = Fields::new();
        assert!(fields.push(b"x-plain", b"a") && fields.push(b"x-note", b"b"));
        fields.mark_last_sensitive();
        let opened = client.connection.open_request(opening, &fields, true);
        assert!(opened.is_ok());
        client.look();
        for (header, payload) in &client.frames {
            server.take(&header.bytes()).unwrap();
            server.take(payload).unwrap();
        }
        let key = server.requests()[0];
        let head = server.connection.take_head(key).unwrap();
        assert_eq!(head.sensitive(), SensitiveParts { path, authority });
        let marks: Vec<_> = head.fields.marked().map(|(_, _, mark)| mark).collect();
        assert_eq!(marks, [false, true]);
    }
}

#[test]
fn a_head_beyond_a_frame_is_continued() {
    let mut client = End::client();
    let mut fields = Fields::new();
    for n in 0..300 {
        assert!(fields.push(format!("x-{n}").as_bytes(), &[b'~'; 200]));
    }
    let opening = Opening {
        method: b"GET",
        scheme: b"http",
        authority: Some(b"test"),
        path: b"/",
        ..Opening::default()
    };
    client
        .connection
        .open_request(opening, &fields, true)
        .unwrap();
    client.look();
    assert!(client.frames.len() > 2);
    let mut server = End::server_of(Config {
        max_head_bytes: 100_000,
        ..CONFIG
    });
    for (header, payload) in &client.frames {
        assert!(header.length <= 16_384);
        server.take(&header.bytes()).unwrap();
        server.take(payload).unwrap();
    }
    let key = server.requests()[0];
    let head = server.connection.take_head(key).unwrap();
    assert_eq!(head.fields.text(), fields.text());
    assert!(head.has_ended());
}

/// A client and a server with all bytes that are under way between them.
struct Pair {
    client: Connection,
    server: Connection,
    /// Bodies that the server has still to send, by streams.
    unsent: Vec<(Key, usize)>,
    /// Streams of which the client may read something.
    readable: Vec<Key>,
    /// Bytes that the client has read, by numbers of streams, and whether that was all.
    read: std::collections::BTreeMap<u32, (usize, bool)>,
}

impl Pair {
    fn new(window: u32) -> Self {
        let config = |role| Config {
            role,
            stream_window: window,
            ..CONFIG
        };
        Pair {
            client: Connection::new(config(Role::Client)),
            server: Connection::new(config(Role::Server)),
            unsent: Vec::new(),
            readable: Vec::new(),
            read: Default::default(),
        }
    }

    fn ask(&mut self) -> Key {
        let opened = self
            .client
            .open_request(opening(b"/"), &Fields::new(), true);
        opened.unwrap()
    }

    /// Moves at most `bytes` from one end to the other; true if there were any.
    fn pass(&mut self, to_client: bool, bytes: usize) -> bool {
        let (from, to) = match to_client {
            true => (&mut self.server, &mut self.client),
            false => (&mut self.client, &mut self.server),
        };
        let part = from.pending_output();
        let part = part[..bytes.min(part.len())].to_vec();
        from.consume_output(part.len());
        assert_eq!(to.receive_bytes(&part, Duration::ZERO), Ok(()));
        assert!(from.is_balanced() && to.is_balanced());
        !part.is_empty()
    }

    /// Has the server do what its streams are told: `sizes` are those of bodies, by numbers of requests.
    fn serve(&mut self, sizes: &[usize]) {
        while let Some(event) = self.server.next_event() {
            let key = match event {
                Event::Request(key) => {
                    let size = sizes[(key.id / 2) as usize];
                    self.server.take_head(key).unwrap();
                    self.server
                        .send_head(key, 200, &Fields::new(), false)
                        .unwrap();
                    self.unsent.push((key, size));
                    key
                }
                Event::Writable(key) => key,
                _ => continue,
            };
            let Some(at) = self.unsent.iter().position(|(known, _)| *known == key) else {
                continue;
            };
            while let (_, left @ 1..) = self.unsent[at] {
                let sent = self.server.send_data(key, &vec![b'x'; left], true).unwrap();
                self.unsent[at].1 -= sent;
                if sent == 0 {
                    break;
                }
            }
            if self.unsent[at].1 == 0 {
                self.unsent.remove(at);
                self.server.release_stream(key, None);
            }
        }
    }

    /// Has one stream of the client that is told so read at most `bytes`, unless it is `stuck`.
    fn read(&mut self, bytes: usize, stuck: &[Key]) -> bool {
        while let Some(event) = self.client.next_event() {
            if let Event::Readable(key) = event
                && !self.readable.contains(&key)
                && !stuck.contains(&key)
            {
                self.readable.push(key);
            }
        }
        if self.readable.is_empty() {
            return false;
        }
        let key = self.readable.remove(0);
        if let Some(head) = self.client.take_head(key) {
            self.client.give_head(head);
        }
        let read = self.read.entry(key.id).or_default();
        match self.client.read(key) {
            Next::Data(data) => {
                let n = bytes.min(data.len());
                self.client.consume_body(key, n);
                read.0 += n;
                self.readable.push(key);
            }
            Next::End => read.1 = true,
            Next::Wait => {}
            Next::Broken(end) => panic!("{end:?}"),
        }
        true
    }
}

proptest! {
    /// A stream that is read gets all of its content, beside others that are not read, as long as these leave room in
    /// the connection; and no end takes the frames of the other one for a flood.
    #[test]
    fn who_reads_gets_everything_beside_others_that_read_nothing(
        sizes in proptest::collection::vec(1_usize..100_000, 8),
        stuck in proptest::sample::subsequence(vec![0_usize, 1, 2, 3, 4, 5, 6, 7], 0..=3),
        window in 1_000_u32..20_000,
        steps in proptest::collection::vec(1_usize..30_000, 1..20),
    ) {
        let mut pair = Pair::new(window);
        let keys: Vec<Key> = sizes.iter().map(|_| pair.ask()).collect();
        let stuck: Vec<Key> = stuck.into_iter().map(|at| keys[at]).collect();
        let mut steps = steps.into_iter().cycle();
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for to_client in [true, false] {
                goes_on |= pair.pass(to_client, steps.next().unwrap());
            }
            pair.serve(&sizes);
            goes_on |= pair.read(steps.next().unwrap(), &stuck);
        }
        for (key, size) in keys.iter().zip(sizes) {
            if !stuck.contains(key) {
                prop_assert_eq!(pair.read.get(&key.id), Some(&(size, true)));
            }
        }
    }

    /// Nothing panics, and it does not matter how bytes are cut.
    #[test]
    fn any_frames_have_the_same_outcome_however_they_are_cut(
        frames in proptest::collection::vec(
            (0_u8..11, any::<u8>(), 0_u32..8, proptest::collection::vec(any::<u8>(), 0..40), any::<bool>()),
            0..30,
        ),
        cut in 1_usize..50,
        server in any::<bool>(),
    ) {
        let mut bytes = Vec::new();
        for (kind, flags, stream, payload, proper) in frames {
            match (proper, kind) {
                (true, 0..4) => bytes.extend(head(stream, flags % 2 == 0, &GET)),
                (true, 4..6) => bytes.extend(head(stream, flags % 2 == 0, &OK)),
                (true, _) => put_frame(DATA, flags % 2, stream, &payload, &mut bytes),
                _ => put_frame(kind, flags, stream, &payload, &mut bytes),
            }
        }
        let run = |size: usize| {
            let mut end = if server { End::server() } else { End::client() };
            if !server {
                end.ask(b"/", true);
                end.ask(b"/", false);
            }
            let results: Vec<_> = bytes.chunks(size).map(|part| end.take(part)).collect();
            let error = results.into_iter().find(Result::is_err);
            let mut bodies = Vec::new();
            for id in 1..8 {
                // A stream that was reset is forgotten sooner if it was not reported.
                if let Some(key) = end.connection.streams.find(id)
                    && end.connection.stream_break(key).is_none()
                {
                    let data = match end.connection.read(key) {
                        Next::Data(data) => data.to_vec(),
                        _ => Vec::new(),
                    };
                    bodies.push((id, data));
                }
            }
            (error, end.frames, bodies)
        };
        let whole = run(bytes.len().max(1));
        let pieces = run(cut);
        prop_assert_eq!(&whole.0, &pieces.0);
        prop_assert_eq!(whole.1, pieces.1);
        prop_assert_eq!(whole.2, pieces.2);
    }
}

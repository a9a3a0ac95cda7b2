//! Whole exchanges over HTTP/2: frames from a client, right and wrong ones, through a real proxy on loopback to a
//! member that speaks HTTP/1.1. What the member gets is what one stream has sent, no more and from no other; what
//! comes back in a stream is the answer to that stream; and a request beside all of this is answered, unless the
//! proxy ends the connection with an error.
//!
//! The input is a script of lines that end with `0xFF`. Those of the member are in [`member`]; the client's are:
//!
//! - `H`, stream, flags, text: HEADERS. Each line of the text is a field: its name, a space, its value;
//! - `C`, stream, flags, text: CONTINUATION;
//! - `D`, stream, flags, bytes: DATA;
//! - `X`, type, stream, flags, bytes: any other frame;
//! - `G`: a request that is right, in the next stream;
//! - `P`: a pause, in which the proxy reads.
//!
//! Streams are those of one byte. The first field block of each has a field with the stream's number at its end.
#![no_main]

mod member;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use member::{Answers, GOOD, Read, Reply, Served, pause, read_answer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fuzz_target!(|input: &[u8]| {
    let script = Script::of(input);
    let frames = script.frames.clone();
    let (goods, cancels) = (script.goods.clone(), script.cancels());
    let client = async |stream| ask(stream, frames, goods, cancels).await;
    let (got, served) = member::run(script.answers.clone(), client);
    script.compare(&got, &served);
});

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// The field that says of which stream a request is.
const STREAM: &str = "x-stream";

/// Name and value.
type Field = (Vec<u8>, Vec<u8>);

/// Bytes that a stream has sent.
#[derive(Clone, Default)]
struct Sent {
    /// Of the first field block.
    fields: Vec<Field>,
    has_fields: bool,
    body: Vec<u8>,
    ended: bool,
}

impl Sent {
    fn value(&self, name: &str) -> &[u8] {
        let mut found = self.fields.iter().filter(|(of, _)| of == name.as_bytes());
        found.next().map_or(b"", |(_, value)| value)
    }
}

struct Script {
    /// Bytes that are written, and the places up to which the proxy may read.
    frames: Vec<Vec<u8>>,
    answers: Vec<Reply>,
    sent: BTreeMap<u32, Sent>,
    /// Streams whose requests must be answered.
    goods: BTreeSet<u32>,
}

impl Script {
    fn of(input: &[u8]) -> Script {
        let mut answers = Answers::default();
        let mut script = Script {
            frames: Vec::new(),
            answers: Vec::new(),
            sent: BTreeMap::new(),
            goods: BTreeSet::new(),
        };
        let (mut highest, mut answered) = (0, true);
        for line in input.split(|&byte| byte == 0xFF).take(48) {
            match line {
                [kind @ (b'H' | b'C'), stream, flags, text @ ..] => {
                    highest = highest.max(u32::from(*stream));
                    script.goods.remove(&u32::from(*stream));
                    script.headers(*kind == b'H', u32::from(*stream), *flags, text);
                }
                [b'D', stream, flags, bytes @ ..] => {
                    script.goods.remove(&u32::from(*stream));
                    script.data(u32::from(*stream), *flags, bytes);
                }
                [b'X', kind, stream, flags, bytes @ ..] => {
                    let kind = match *kind {
                        // Those have lines of their own.
                        DATA | HEADERS | CONTINUATION => 0xFA,
                        kind => kind,
                    };
                    script.goods.remove(&u32::from(*stream));
                    // The client's windows, or its end: answers may be kept from it.
                    if matches!(kind, SETTINGS | GOAWAY) {
                        answered = false;
                        script.goods.clear();
                    }
                    script.frame(kind, u32::from(*stream), *flags, bytes);
                }
                [b'G', ..] => {
                    highest = (highest + 1) | 1;
                    let text = format!(":method GET\n:scheme http\n:authority a\n:path {GOOD}");
                    let flags = END_STREAM | END_HEADERS;
                    script.headers(true, highest, flags, text.as_bytes());
                    if answered {
                        script.goods.insert(highest);
                    }
                }
                [b'P', ..] => script.frames.push(Vec::new()),
                line => answers.add(line),
            }
        }
        script.answers = answers.end();
        script
    }

    fn frame(&mut self, kind: u8, stream: u32, flags: u8, payload: &[u8]) {
        let mut bytes = frame(kind, stream, flags, payload);
        match self.frames.last_mut() {
            Some(last) if !last.is_empty() => last.append(&mut bytes),
            _ => self.frames.push(bytes),
        }
    }

    fn headers(&mut self, begins: bool, stream: u32, flags: u8, text: &[u8]) {
        let mut fields: Vec<Field> = Vec::new();
        for line in text.split(|&byte| byte == b'\n').take(32) {
            let at = line.iter().position(|&byte| byte == b' ');
            let (name, value) = line.split_at(at.unwrap_or(line.len()));
            if !name.is_empty() && name != STREAM.as_bytes() {
                fields.push((name.to_vec(), value.get(1..).unwrap_or_default().to_vec()));
            }
        }
        let sent = self.sent.entry(stream).or_default();
        if begins && !std::mem::replace(&mut sent.has_fields, true) {
            fields.push((STREAM.into(), stream.to_string().into_bytes()));
        }
        sent.ended |= begins && flags & END_STREAM != 0;
        // A block in several frames has the fields of all of them.
        sent.fields.extend(fields.iter().cloned());
        let mut payload = Vec::new();
        if begins && flags & PADDED != 0 {
            payload.push(0);
        }
        if begins && flags & PRIORITY != 0 {
            payload.extend_from_slice(&[0, 0, 0, 0, 0]);
        }
        for (name, value) in &fields {
            // A literal field that is in no table, with a new name (RFC 7541, section 6.2.2).
            payload.push(0);
            for text in [name, value] {
                put_length(text.len(), &mut payload);
                payload.extend_from_slice(text);
            }
        }
        let kind = if begins { HEADERS } else { CONTINUATION };
        self.frame(kind, stream, flags, &payload);
    }

    fn data(&mut self, stream: u32, flags: u8, bytes: &[u8]) {
        let content = match (flags & PADDED, bytes) {
            (0, content) => content,
            (_, [padding, content @ ..]) => {
                let length = content.len().checked_sub(usize::from(*padding));
                length.map_or(&[][..], |length| &content[..length])
            }
            _ => &[],
        };
        let sent = self.sent.entry(stream).or_default();
        if !sent.ended {
            sent.body.extend_from_slice(content);
            sent.ended = flags & END_STREAM != 0;
        }
        self.frame(DATA, stream, flags, bytes);
    }

    /// Frames that end all streams that have begun, and then the connection.
    fn cancels(&self) -> Vec<u8> {
        let streams = self.sent.keys().filter(|stream| **stream % 2 == 1);
        let mut bytes: Vec<u8> = streams
            .flat_map(|stream| frame(RST_STREAM, *stream, 0, &[0, 0, 0, 8]))
            .collect();
        bytes.extend(frame(GOAWAY, 0, 0, &[0; 8]));
        bytes
    }

    /// The oracle.
    fn compare(&self, got: &Got, served: &[Served]) {
        for of in served {
            self.compare_request(of);
        }
        // More than one answer behind a request: no proxy can tell whose it is.
        if served.iter().any(|served| served.late) {
            return;
        }
        for (stream, answer) in &got.answers {
            assert!(self.sent.contains_key(stream), "nobody opened {stream}");
            if !answer.is_ok {
                continue;
            }
            let theirs = served
                .iter()
                .filter(|served| stream_of(served) == Some(*stream));
            let mut bodies = theirs.map(|served| {
                match read_answer(&served.answer, &served.request, served.closed) {
                    Read::Message(theirs, _) | Read::Head(theirs, _) | Read::Broken(theirs, _) => {
                        theirs.body
                    }
                    Read::Partial | Read::Bad(_) => Vec::new(),
                }
            });
            assert!(
                bodies.any(|body| body.starts_with(&answer.body)),
                "{stream} has an answer of somebody else: {}",
                answer.body.escape_ascii()
            );
        }
        if got.error || got.reset {
            return;
        }
        for stream in &self.goods {
            let answer = got.answers.get(stream);
            assert!(
                answer.is_some_and(|answer| answer.is_ok && answer.ended && answer.body == b"good"),
                "the request in {stream} has no answer, and the connection no error"
            );
        }
    }

    /// A request that the member got is that of a stream.
    fn compare_request(&self, served: &Served) {
        let text = || served.bytes.escape_ascii().to_string();
        let stream = stream_of(served).unwrap_or_else(|| panic!("of no stream: {}", text()));
        let sent = self.sent.get(&stream);
        let sent = sent.unwrap_or_else(|| panic!("of a stream that is not there: {}", text()));
        let method = match sent.value(":protocol") {
            b"" => sent.value(":method"),
            // WebSocket over a stream (RFC 8441).
            _ => b"GET",
        };
        let request = &served.request;
        assert_eq!(request.line.0.as_bytes(), method, "{}", text());
        assert_eq!(request.line.1.as_bytes(), sent.value(":path"), "{}", text());
        match request.complete {
            // What follows the head of a WebSocket is no body.
            _ if !sent.value(":protocol").is_empty() => {}
            true => {
                // As much as the length says may be on its way before more of it comes, which ends the stream.
                let length = std::str::from_utf8(sent.value("content-length")).ok();
                let is_told =
                    length.and_then(|length| length.parse().ok()) == Some(request.body.len());
                let is_whole = sent.ended && request.body == sent.body;
                assert!(
                    is_whole || is_told && sent.body.starts_with(&request.body),
                    "{}",
                    text()
                );
            }
            false => assert!(sent.body.starts_with(&request.body), "{}", text()),
        }
        let mut fields = [httparse::EMPTY_HEADER; 300];
        let mut head = httparse::Request::new(&mut fields);
        let _ = head.parse(&served.bytes);
        for field in head.headers.iter() {
            let name = field.name.to_ascii_lowercase();
            let is_own = OWN.contains(&&*name);
            let is_sent = sent
                .fields
                .iter()
                .any(|(of, value)| of == name.as_bytes() && value.trim_ascii() == field.value);
            assert!(is_own || is_sent, "nobody sent {name}: {}", text());
        }
    }
}

/// Fields that the balancer writes.
const OWN: [&str; 13] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "te",
    "cookie",
    "upgrade",
    "sec-websocket-key",
    "sec-websocket-version",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "via",
];

/// The stream of a request that the member got.
fn stream_of(served: &Served) -> Option<u32> {
    let mut fields = [httparse::EMPTY_HEADER; 300];
    let mut head = httparse::Request::new(&mut fields);
    head.parse(&served.bytes).ok()?;
    // The fuzzer may write others before it.
    let mut of = head.headers.iter().rev();
    let field = of.find(|field| field.name == STREAM)?;
    std::str::from_utf8(field.value).ok()?.parse().ok()
}

fn frame(kind: u8, stream: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A length in seven bits and as many bytes more as it needs (RFC 7541, section 5.1).
fn put_length(length: usize, out: &mut Vec<u8>) {
    let Some(mut rest) = length.checked_sub(127) else {
        return out.push(length as u8);
    };
    out.push(127);
    while rest >= 128 {
        out.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    out.push(rest as u8);
}

/// Response that the client got in a stream.
#[derive(Debug, Default)]
struct Answer {
    /// True if the status is 200.
    is_ok: bool,
    body: Vec<u8>,
    ended: bool,
}

/// Responses that the client got.
#[derive(Debug, Default)]
struct Got {
    answers: BTreeMap<u32, Answer>,
    /// The proxy has said that the connection is broken.
    error: bool,
    /// The connection was reset, so that the end of what was sent may be missing.
    reset: bool,
}

impl Got {
    /// Takes in whole frames. Returns how many bytes they have.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while let Some((head, after)) = rest.split_first_chunk::<9>() {
            let [a, b, c, kind, flags, stream @ ..] = *head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((payload, after)) = after.split_at_checked(length) else {
                break;
            };
            let stream = u32::from_be_bytes(stream);
            match kind {
                DATA | HEADERS => {
                    assert_eq!(flags & (PADDED | PRIORITY), 0, "frames are plain");
                    let answer = self.answers.entry(stream).or_default();
                    assert!(!answer.ended, "more in a stream that has ended");
                    if kind == DATA {
                        answer.body.extend_from_slice(payload);
                    } else {
                        // Sizes of the table come first, and then `:status` (RFC 7541, sections 6.1 and 6.3).
                        let size = |byte: &u8| *byte >> 5 == 1;
                        let field = payload.iter().find(|byte| !size(byte));
                        answer.is_ok |= field == Some(&0x88);
                    }
                    answer.ended = flags & END_STREAM != 0;
                }
                GOAWAY => {
                    let code = payload.get(4..8);
                    self.error |= code != Some(&[0; 4]);
                }
                _ => {}
            }
            rest = after;
        }
        bytes.len() - rest.len()
    }

    fn has(&self, goods: &BTreeSet<u32>) -> bool {
        let ended = |stream: &u32| self.answers.get(stream).is_some_and(|answer| answer.ended);
        self.error || goods.iter().all(ended)
    }
}

/// The client: what it got.
async fn ask(
    stream: TcpStream,
    frames: Vec<Vec<u8>>,
    goods: BTreeSet<u32>,
    cancels: Vec<u8>,
) -> Got {
    let (mut read, mut write) = stream.into_split();
    let (tell, answered) = tokio::sync::oneshot::channel();
    let writing = tokio::task::spawn_local(async move {
        let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        if write.write_all(&begin).await.is_err() {
            return;
        }
        for frame in frames {
            if write.write_all(&frame).await.is_err() {
                return;
            }
            pause().await;
        }
        // An error of the connection is no answer, either.
        let _ = tokio::time::timeout(Duration::from_secs(5), answered).await;
        let _ = write.write_all(&cancels).await;
        let _ = write.shutdown().await;
    });
    let (mut got, mut bytes) = (Got::default(), Vec::new());
    let mut tell = Some(tell);
    loop {
        if got.has(&goods)
            && let Some(tell) = tell.take()
        {
            let _ = tell.send(());
        }
        match read.read_buf(&mut bytes).await {
            Ok(1..) => {
                let taken = got.take(&bytes);
                bytes.drain(..taken);
            }
            Ok(0) => break,
            // A reset is how a connection ends, too.
            Err(_) => {
                got.reset = true;
                break;
            }
        }
    }
    writing.abort();
    got
}

//! A proxy on loopback, its member, and readers of HTTP/1.1 that share no code with the proxy: what the targets
//! `exchange` and `http2_exchange` have in common.
//!
//! Lines of a script that are the member's:
//!
//! - `<`: the member writes the rest of the line in its next answer;
//! - `.`: the answer ends here, and the next one is for the next request;
//! - `!`: the same, and the member closes the connection then;
//! - `^`: the next answer begins when the head of the request is there, not its body.
//!
//! Requests of [`GOOD`] are answered with [`GOOD_ANSWER`] instead.
//!
//! Each run's client has an address of its own, and requests of others are not looked at: a
//! connection that the proxy made for the client of the run before may come late.

// Each target uses a part of it.
#![allow(dead_code)]

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use evenkeel_manager::Manager;
use evenkeel_net::Clock;
use evenkeel_proxy::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// A path that is always answered.
pub const GOOD: &str = "/good";

/// Bytes that the member sends there.
pub const GOOD_ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood";

/// Runs `client` with a connection to the proxy, before a member that has these `answers`. Returns what the client
/// found, and what the member was asked.
pub fn run<T>(answers: Vec<Reply>, client: impl AsyncFnOnce(TcpStream) -> T) -> (T, Vec<Served>) {
    let (runtime, proxy, members) = system();
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed) % 0x00FF_0000;
    let address = Ipv4Addr::from_bits(Ipv4Addr::new(127, 0, 1, 0).to_bits() + run);
    let seen = Rc::new(RefCell::new(Member {
        client: format!("\r\nX-Forwarded-For: {address}\r\n").into_bytes(),
        answers,
        next: 0,
        requests: Vec::new(),
    }));
    let got = LocalSet::new().block_on(runtime, async {
        let side = Rc::clone(&seen);
        let accepting = tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = members.accept().await {
                tokio::task::spawn_local(serve(stream, Rc::clone(&side)));
            }
        });
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .bind((address, 0).into())
            .expect("a loopback address");
        let stream = socket.connect(proxy).await.expect("it listens");
        let _ = stream.set_nodelay(true);
        let client = tokio::time::timeout(Duration::from_secs(10), client(stream));
        let got = client.await.expect("the proxy ends the connection");
        accepting.abort();
        got
    });
    let requests = std::mem::take(&mut seen.borrow_mut().requests);
    (got, requests)
}

/// The member's answers, as the lines of a script say them.
#[derive(Default)]
pub struct Answers {
    all: Vec<Reply>,
    next: Reply,
}

impl Answers {
    /// Takes in a line, if it is one of the member's.
    pub fn add(&mut self, line: &[u8]) {
        match line {
            [b'<', piece @ ..] => self.next.pieces.push(piece.to_vec()),
            [b'^', ..] => self.next.early = true,
            [kind @ (b'.' | b'!'), ..] => {
                self.next.close = *kind == b'!';
                self.all.push(std::mem::take(&mut self.next));
            }
            _ => {}
        }
    }

    /// All of them. The last one ends with the script.
    pub fn end(mut self) -> Vec<Reply> {
        self.next.close = true;
        self.all.push(self.next);
        self.all
    }
}

/// An answer of the member.
#[derive(Clone, Default)]
pub struct Reply {
    pieces: Vec<Vec<u8>>,
    early: bool,
    close: bool,
}

/// A proxy with one rule and one member, where that member listens, and what runs both
/// ends.
fn system() -> (&'static Runtime, SocketAddr, &'static TcpListener) {
    static SYSTEM: OnceLock<(Runtime, SocketAddr, TcpListener)> = OnceLock::new();
    let (runtime, proxy, members) = SYSTEM.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let members = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let members = members.expect("a port");
        let config = format!(
            "[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{}\"]\n\
             health_check = false\nslow_start = \"0s\"\n\
             response_timeout = \"300ms\"\nheader_timeout = \"300ms\"\nbody_timeout = \"300ms\"\n\
             idle_timeout = \"300ms\"\n[rule.web.http]\nretry_budget = 1.0\ncost_header = \"X-Cost\"\n",
            members.local_addr().expect("its address")
        );
        let clock = Clock::start();
        let proxy = Proxy::start(clock, 1).expect("a worker");
        let manager = Manager::new(clock, Arc::new(proxy.clone()));
        let config = evenkeel_config::parse("fuzz", &config).expect("it is valid");
        let listen = config.rules[0].listen[0].socket().expect("an address");
        let applied = runtime.block_on(manager.apply_config(config));
        applied.expect("it is applied");
        let address = proxy.local_address("web", listen).expect("it listens");
        // They serve as long as the process lives.
        std::mem::forget((proxy, manager));
        (runtime, address, members)
    });
    (runtime, *proxy, members)
}

/// Lets the proxy read what was written before more follows; if it does not, then the
/// pieces are larger, which is no fault. Sleeps, as a thread that only yields to a busy
/// machine is not scheduled for long.
pub async fn pause() {
    for _ in 0..2 {
        std::thread::sleep(Duration::from_micros(20));
        tokio::task::yield_now().await;
    }
}

/// The member, over all of its connections.
struct Member {
    /// The field that the requests of this run's client have.
    client: Vec<u8>,
    answers: Vec<Reply>,
    next: usize,
    requests: Vec<Served>,
}

/// A request that the member got, and what it wrote in answer.
pub struct Served {
    pub request: Message,
    /// The request as it came.
    pub bytes: Vec<u8>,
    pub answer: Vec<u8>,
    /// True if the connection was closed then.
    pub closed: bool,
    /// True if more was written when the answer was complete and the next request may have
    /// been on its way: no proxy can tell whose answer that is.
    pub late: bool,
}

/// One connection to the member.
async fn serve(mut stream: TcpStream, member: Rc<RefCell<Member>>) {
    let _ = stream.set_nodelay(true);
    let mut input = Vec::new();
    loop {
        // The head.
        let (request, length) = loop {
            match read_request(&input) {
                Read::Message(request, length) => break (request, length),
                Read::Head(request, _) if member.borrow().is_early() => {
                    break (request, input.len());
                }
                Read::Head(..) | Read::Partial => {}
                Read::Broken(_, why) | Read::Bad(why) => {
                    panic!("{why}: {}", input.escape_ascii())
                }
            }
            match stream.read_buf(&mut input).await {
                Ok(1..) => {}
                _ => {
                    if let Read::Head(request, _) = read_request(&input)
                        && member.borrow().is_asked(&input)
                    {
                        member.borrow_mut().requests.push(Served {
                            request,
                            bytes: std::mem::take(&mut input),
                            answer: Vec::new(),
                            closed: true,
                            late: false,
                        });
                    }
                    return;
                }
            }
        };
        if !member.borrow().is_asked(&input[..length]) {
            return;
        }
        let reply = {
            let mut member = member.borrow_mut();
            let mut reply = member.answer(&request);
            let answer = reply.pieces.concat();
            let before_last = reply.pieces.len().saturating_sub(1);
            let late = (1..=before_last).any(|pieces| {
                let read = read_answer(&reply.pieces[..pieces].concat(), &request, false);
                matches!(read, Read::Message(..))
            });
            // Whoever waits for the rest of an answer that does not come is not tested here.
            let is_whole = matches!(
                read_answer(&answer, &request, false),
                Read::Message(_, length) if length == answer.len()
            );
            reply.close |= !is_whole || !request.complete;
            member.requests.push(Served {
                request,
                bytes: input[..length].to_vec(),
                answer,
                closed: reply.close,
                late,
            });
            reply
        };
        input.drain(..length);
        for piece in &reply.pieces {
            if stream.write_all(piece).await.is_err() {
                return;
            }
            pause().await;
        }
        if reply.close {
            return;
        }
    }
}

impl Member {
    /// The answer to a request that has come.
    fn answer(&mut self, request: &Message) -> Reply {
        if request.line.1 == GOOD {
            return Reply {
                pieces: vec![GOOD_ANSWER.to_vec()],
                ..Reply::default()
            };
        }
        let reply = self.answers.get(self.next).cloned();
        self.next += 1;
        reply.unwrap_or(Reply {
            close: true,
            ..Reply::default()
        })
    }

    /// True if a request is one of this run.
    fn is_asked(&self, request: &[u8]) -> bool {
        let mut parts = request.windows(self.client.len());
        parts.any(|part| part == self.client)
    }

    fn is_early(&self) -> bool {
        self.answers.get(self.next).is_none_or(|reply| reply.early)
    }
}

/// A request or an answer, as our readers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Method and target, or the status.
    pub line: (String, String),
    pub body: Vec<u8>,
    pub complete: bool,
    /// True if the bytes after the head are no HTTP: a tunnel.
    pub tunnel: bool,
}

pub enum Read {
    /// All of it, and its length.
    Message(Message, usize),
    /// The head, with what there is of the body. The rest may only follow.
    Head(Message, usize),
    /// The head, and the body up to where nobody can read on.
    Broken(Message, &'static str),
    Partial,
    Bad(&'static str),
}

/// Length of a body.
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// A strict reader: what two readers could understand differently is bad.
pub fn read_request(bytes: &[u8]) -> Read {
    let mut fields = [httparse::EMPTY_HEADER; 300];
    let mut head = httparse::Request::new(&mut fields);
    if bytes.starts_with(b"\r\n\r\n") {
        return Read::Bad("more than one empty line before a request");
    }
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Read::Partial,
        Err(_) => return Read::Bad("no request"),
    };
    if has_bare_line_ends(&bytes[..length]) {
        return Read::Bad("a bare CR or LF in a head");
    }
    let framing = match framing(head.headers) {
        Ok(Some(framing)) => framing,
        Ok(None) => Framing::Length(0),
        Err(why) => return Read::Bad(why),
    };
    let upgrade = head
        .headers
        .iter()
        .any(|field| field.name.eq_ignore_ascii_case("upgrade"));
    let line = (
        head.method.unwrap_or_default().to_owned(),
        head.path.unwrap_or_default().to_owned(),
    );
    let tunnel = upgrade || line.0 == "CONNECT";
    with_body(line, bytes, length, framing, tunnel)
}

/// The final answer to `request`; `closed` is whether the connection ended after `bytes`.
pub fn read_answer(bytes: &[u8], request: &Message, closed: bool) -> Read {
    let mut start = 0;
    loop {
        let rest = bytes.get(start..).unwrap_or_default();
        let mut fields = [httparse::EMPTY_HEADER; 300];
        let mut head = httparse::Response::new(&mut fields);
        let length = match head.parse(rest) {
            Ok(httparse::Status::Complete(length)) => start + length,
            Ok(httparse::Status::Partial) => return Read::Partial,
            Err(_) => return Read::Bad("no response"),
        };
        if has_bare_line_ends(&bytes[start..length]) {
            return Read::Bad("a bare CR or LF in a head");
        }
        let status = head.code.unwrap_or_default();
        let line = (status.to_string(), String::new());
        if status == 101 || (request.line.0 == "CONNECT" && (200..300).contains(&status)) {
            return with_body(line, bytes, length, Framing::UntilClose, true);
        }
        if (100..200).contains(&status) {
            start = length;
            continue;
        }
        let framing = match framing(head.headers) {
            _ if request.line.0 == "HEAD" || matches!(status, 204 | 304) => Framing::Length(0),
            Ok(framing) => framing.unwrap_or(Framing::UntilClose),
            Err(why) => return Read::Bad(why),
        };
        let until_close = matches!(framing, Framing::UntilClose);
        return match with_body(line, bytes, length, framing, false) {
            Read::Head(mut message, length) if until_close && closed => {
                message.complete = true;
                Read::Message(message, length)
            }
            read => read,
        };
    }
}

/// True if a CR or LF is no part of a CR LF.
fn has_bare_line_ends(bytes: &[u8]) -> bool {
    let count = |is: fn(&u8) -> bool| bytes.iter().filter(|&byte| is(byte)).count();
    let pairs = bytes.windows(2).filter(|two| two == b"\r\n").count();
    count(|&byte| byte == b'\r') != pairs || count(|&byte| byte == b'\n') != pairs
}

fn framing(fields: &[httparse::Header<'_>]) -> Result<Option<Framing>, &'static str> {
    let mut found = None;
    for field in fields {
        let is = |name| field.name.eq_ignore_ascii_case(name);
        let framing = if is("transfer-encoding") {
            if !field.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err("an unknown transfer coding");
            }
            Framing::Chunked
        } else if is("content-length") {
            let digits = field.value.trim_ascii();
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return Err("a length that is none");
            }
            let text = std::str::from_utf8(digits).unwrap_or_default();
            Framing::Length(text.parse().map_err(|_| "a length that is too large")?)
        } else {
            continue;
        };
        if found.is_some() {
            return Err("two framings");
        }
        found = Some(framing);
    }
    Ok(found)
}

fn with_body(
    line: (String, String),
    bytes: &[u8],
    head: usize,
    framing: Framing,
    tunnel: bool,
) -> Read {
    let rest = bytes.get(head..).unwrap_or_default();
    let (body, end) = match framing {
        Framing::UntilClose => (rest.to_vec(), Ok(None)),
        Framing::Length(length) => {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            match rest.get(..length) {
                Some(body) => (body.to_vec(), Ok(Some(length))),
                None => (rest.to_vec(), Ok(None)),
            }
        }
        Framing::Chunked => {
            let mut body = Vec::new();
            let end = read_chunks(rest, &mut body);
            (body, end)
        }
    };
    let message = Message {
        line,
        body,
        complete: matches!(end, Ok(Some(_))),
        tunnel,
    };
    match end {
        Ok(Some(length)) => Read::Message(message, head + length),
        Ok(None) => Read::Head(message, bytes.len()),
        Err(why) => Read::Broken(message, why),
    }
}

/// Adds the data; the length of all chunks with the trailers, once they are there.
fn read_chunks(bytes: &[u8], data: &mut Vec<u8>) -> Result<Option<usize>, &'static str> {
    let line_at = |at: usize| {
        let rest = bytes.get(at..).unwrap_or_default();
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else {
            return Ok(None);
        };
        match has_bare_line_ends(&rest[..end]) {
            true => Err("a bare CR or LF in a chunked body"),
            false => Ok(Some(&rest[..end])),
        }
    };
    let mut at = 0;
    loop {
        let Some(line) = line_at(at)? else {
            return Ok(None);
        };
        let size = line.split(|&byte| byte == b';').next().unwrap_or_default();
        if !size.iter().all(u8::is_ascii_hexdigit) {
            return Err("no chunk size");
        }
        let size = std::str::from_utf8(size).unwrap_or_default();
        let size = u64::from_str_radix(size, 16).map_err(|_| "no chunk size")?;
        at += line.len() + 2;
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let rest = &bytes[at..];
        let Some((chunk, after)) = rest.split_at_checked(size) else {
            data.extend_from_slice(rest);
            return Ok(None);
        };
        data.extend_from_slice(chunk);
        match after {
            [b'\r', b'\n', ..] => at += size + 2,
            [] | [b'\r'] => return Ok(None),
            _ => return Err("no end of a chunk"),
        }
    }
    // Trailers, up to an empty line.
    loop {
        let Some(line) = line_at(at)? else {
            return Ok(None);
        };
        at += line.len() + 2;
        if line.is_empty() {
            return Ok(Some(at));
        }
    }
}

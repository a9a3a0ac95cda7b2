//! The load generator: single-threaded, one event loop over all its connections.
//!
//! `evenkeel_load` cannot take its place in these rows. Before each planned arrival it looks at the clock for 100 us instead of
//! sleeping: at 8,000 requests per second that would take the processor from the back-end, which shares it. And it has no
//! handshakes alone, no streams without an end (TCP and FTP, both ways), no connections that stay idle, and no meter that is
//! read at the moments between which requests count. Latencies are counted in its histogram.
//!
//! Closed loop: each connection sends its next request when it has the answer to the last.
//! Open loop: requests are due at a fixed rate, whatever the answers do, and a latency
//! counts from the moment its request was *due*; otherwise a stalled proxy would hold back
//! the very requests that would have shown the stall (coordinated omission).

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_load::stats::Latencies;
use rustls::ClientConfig;

use crate::epoll::{Epoll, READ, WRITE};
use crate::tls::{self, Handshake, Stream};

/// First byte of a TCP connection whose back-end sends as fast as it can.
pub const BULK_DOWN: u8 = b'D';
/// First byte of a TCP connection whose back-end takes all and answers nothing.
pub const BULK_UP: u8 = b'U';
/// First byte of a TCP connection whose back-end sends back what it gets.
pub const ECHO: u8 = b'E';
/// User of FTP for whom the back-end sends as fast as it can.
pub const USER_DOWN: &[u8] = b"down";
/// User of FTP whose file the back-end takes.
pub const USER_UP: &[u8] = b"up";
/// The host that requests are for.
pub const HOST: &str = "bench.local";

/// Nothing may stall longer than this: a run ends with an error instead of hanging.
const STALL: Duration = Duration::from_secs(10);
/// A run with more failures than this ends.
const MAX_FAILURES: u64 = 1000;

/// Traffic on the connections.
#[derive(Clone, Debug)]
pub enum Traffic {
    /// GET requests on connections that stay.
    Http {
        /// Path asked for.
        path: &'static str,
    },
    /// GET requests over TLS on connections that stay.
    Https {
        /// Path asked for.
        path: &'static str,
    },
    /// A connection for every handshake of TLS, and nothing else in it.
    Handshake {
        /// True if each handshake resumes the session of an earlier one.
        resumed: bool,
    },
    /// Requests like `Http`, answered with a redirect.
    Redirect {
        /// Path asked for.
        path: &'static str,
    },
    /// A connection for every request; it ends when the other side has closed.
    HttpClose {
        /// Path asked for.
        path: &'static str,
    },
    /// Bytes sent there and back again.
    TcpEcho {
        /// Bytes of a request, and of its answer.
        bytes: usize,
    },
    /// Bytes as fast as they go through: every other connection down, the others up.
    TcpBulk,
    /// Bytes in data connections of FTP, in both directions like `TcpBulk`: a session for each, with one file in
    /// passive mode.
    FtpBulk,
}

impl Traffic {
    /// True if the traffic is counted in bytes.
    pub fn is_bulk(&self) -> bool {
        matches!(self, Traffic::TcpBulk | Traffic::FtpBulk)
    }
}

/// A run to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Address of the proxy.
    pub target: SocketAddr,
    /// Traffic to send.
    pub traffic: Traffic,
    /// Connections at once.
    pub connections: usize,
    /// Open loop: requests per second.
    pub rate: Option<f64>,
    /// Length of the warm-up, which is not counted.
    pub warm_up: Duration,
    /// Length of the counted run.
    pub measure: Duration,
}

/// Results of a run, without its warm-up.
pub struct Outcome {
    /// Requests that were answered in full.
    pub requests: u64,
    /// Bytes of bulk in both directions.
    pub bytes: u64,
    /// Requests that were not answered in full, or not with 200.
    pub failures: u64,
    /// Length of the run.
    pub elapsed: Duration,
    /// CPU time that the meter has seen pass.
    pub cpu: Duration,
    /// Latencies of the requests.
    pub latency: Latencies,
}

/// Makes a run. `cpu_meter` reads the CPU time that the measured processes have used so
/// far; it is read where the warm-up and the run end.
///
/// # Errors
///
/// Returns an error if the target cannot be connected to, answers nothing for ten seconds, or fails a
/// thousand requests.
pub fn run(
    plan: &Plan,
    cpu_meter: &mut dyn FnMut() -> io::Result<Duration>,
) -> io::Result<Outcome> {
    let mut run = Run {
        plan,
        request: request_bytes(&plan.traffic),
        epoll: Epoll::new()?,
        connections: Vec::with_capacity(plan.connections),
        sessions: Vec::new(),
        idle: VecDeque::with_capacity(plan.connections),
        known_head: Vec::new(),
        known_body: 0,
        buffer: vec![0; 256 * 1024],
        outcome: Outcome {
            requests: 0,
            bytes: 0,
            failures: 0,
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
            latency: Latencies::default(),
        },
    };
    for index in 0..plan.connections {
        run.connections.push(Connection {
            stream: None,
            handshake: None,
            client: client(&plan.traffic)?,
            known: false,
            due: Instant::now(),
            busy: false,
            head: Vec::new(),
            missing: None,
        });
        run.idle.push_back(index);
    }

    let start = Instant::now();
    let counted_from = start + plan.warm_up;
    let end = counted_from + plan.measure;
    let mut counting: Option<(Instant, Duration)> = None;
    let mut schedule = plan.rate.map(|rate| Schedule {
        next: start,
        gap: Duration::from_secs_f64(1.0 / rate),
    });
    let mut last_progress = (start, 0);
    loop {
        let now = Instant::now();
        match counting {
            None if now >= counted_from => {
                run.outcome.latency.clear();
                run.outcome.requests = 0;
                run.outcome.bytes = 0;
                last_progress = (now, 0);
                counting = Some((Instant::now(), cpu_meter()?));
            }
            Some((from, cpu)) if now >= end => {
                run.outcome.elapsed = from.elapsed();
                run.outcome.cpu = cpu_meter()?.saturating_sub(cpu);
                return Ok(run.outcome);
            }
            _ => {}
        }
        let progress = run.outcome.requests + run.outcome.bytes;
        if progress != last_progress.1 {
            last_progress = (now, progress);
        } else if now - last_progress.0 > STALL {
            return Err(io::Error::other(format!(
                "{} answered nothing for {STALL:?}",
                plan.target
            )));
        }
        if run.outcome.failures > MAX_FAILURES {
            return Err(io::Error::other(format!(
                "{} failed more than {MAX_FAILURES} requests",
                plan.target
            )));
        }

        let wake = run.start_what_is_due(&mut schedule, now)?;
        let limit = wake.map_or(Duration::from_millis(20), |wake| {
            wake.saturating_duration_since(Instant::now())
                .min(Duration::from_millis(20))
        });
        for event in 0..run.epoll.wait_for_events(Some(limit))? {
            let (token, events) = run.epoll.event(event);
            run.advance(token as usize, events)?;
        }
    }
}

/// Opens `count` connections, sends one byte of a request head on each, and leaves them so.
/// One more is answered after that: by then the others were read, too.
///
/// # Errors
///
/// Returns an error if a connection cannot be made or the last request is not answered.
pub fn open_slow(target: SocketAddr, count: usize) -> io::Result<Vec<Stream>> {
    let mut open = Vec::with_capacity(count + 1);
    for index in 0..count {
        let at = |error: io::Error| {
            io::Error::new(error.kind(), format!("slow connection {index}: {error}"))
        };
        let mut stream = TcpStream::connect(target).map_err(at)?;
        stream.write_all(b"G").map_err(at)?;
        open.push(Stream::Plain(stream));
    }
    open.extend(open_idle(target, &Traffic::Http { path: "/" }, 1)?);
    Ok(open)
}

/// Opens `count` connections, has one request answered on each, and leaves them idle.
///
/// # Errors
///
/// Returns an error if a connection cannot be made or its request is not answered.
pub fn open_idle(target: SocketAddr, traffic: &Traffic, count: usize) -> io::Result<Vec<Stream>> {
    let request = request_bytes(traffic);
    let client = client(traffic)?;
    let mut open = Vec::with_capacity(count);
    let mut buffer = vec![0; 4096];
    for index in 0..count {
        let at = |error: io::Error| {
            io::Error::new(error.kind(), format!("idle connection {index}: {error}"))
        };
        let stream = TcpStream::connect(target).map_err(at)?;
        stream.set_read_timeout(Some(STALL)).map_err(at)?;
        let mut stream = secured(client.as_ref(), stream).map_err(at)?;
        stream.write_all(&request).map_err(at)?;
        let mut answer = Vec::new();
        loop {
            let count = stream.read(&mut buffer).map_err(at)?;
            if count == 0 {
                return Err(at(io::ErrorKind::UnexpectedEof.into()));
            }
            answer.extend_from_slice(&buffer[..count]);
            let complete = match traffic {
                Traffic::TcpEcho { bytes } => answer.len() >= *bytes,
                _ => match parse_head(&answer, status(traffic)) {
                    Some(Ok((head, body))) => answer.len() >= head + body,
                    Some(Err(reason)) => return Err(at(io::Error::other(reason))),
                    None => false,
                },
            };
            if complete {
                break;
            }
        }
        open.push(stream);
    }
    Ok(open)
}

struct Schedule {
    next: Instant,
    gap: Duration,
}

struct Run<'a> {
    plan: &'a Plan,
    request: Vec<u8>,
    epoll: Epoll,
    connections: Vec<Connection>,
    /// Control connections of FTP.
    sessions: Vec<TcpStream>,
    /// Connections with no request on them, longest idle first.
    idle: VecDeque<usize>,
    /// The last response head and its body's length: the next is most often the same, and
    /// comparing is cheaper than parsing.
    known_head: Vec<u8>,
    known_body: usize,
    buffer: Vec<u8>,
    outcome: Outcome,
}

struct Connection {
    /// `None` until a request needs it.
    stream: Option<Stream>,
    /// Handshake in place of `tls`, where there is nothing but handshakes.
    handshake: Option<Handshake>,
    /// With TLS.
    client: Option<Arc<ClientConfig>>,
    /// Has a session that can be resumed.
    known: bool,
    due: Instant,
    busy: bool,
    /// Start of a response head that has not all come.
    head: Vec<u8>,
    /// Bytes of the response still to come; `None` before its head is known.
    missing: Option<usize>,
}

impl Run<'_> {
    fn connect(&mut self, index: usize) -> io::Result<Stream> {
        let mut stream = TcpStream::connect(self.plan.target)?;
        if matches!(self.plan.traffic, Traffic::FtpBulk) {
            let data = transfer(&stream, is_upload(index))?;
            self.sessions.push(std::mem::replace(&mut stream, data));
        }
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL))?;
        let stream = secured(self.connections[index].client.as_ref(), stream)?;
        stream.socket().set_nonblocking(true)?;
        let interest = if self.plan.traffic.is_bulk() && is_upload(index) {
            READ | WRITE
        } else {
            READ
        };
        self.epoll.add(stream.socket(), interest, index as u64)?;
        Ok(stream)
    }

    /// Sends all that is due and can be sent; returns the latest time of the next call.
    fn start_what_is_due(
        &mut self,
        schedule: &mut Option<Schedule>,
        now: Instant,
    ) -> io::Result<Option<Instant>> {
        while let Some(&index) = self.idle.front() {
            let due = match schedule {
                None => Instant::now(),
                Some(schedule) if schedule.next <= now => {
                    let due = schedule.next;
                    schedule.next += schedule.gap;
                    due
                }
                Some(schedule) => return Ok(Some(schedule.next)),
            };
            self.idle.pop_front();
            self.start(index, due)?;
        }
        Ok(None)
    }

    fn start(&mut self, index: usize, due: Instant) -> io::Result<()> {
        if matches!(self.plan.traffic, Traffic::Handshake { .. }) {
            return self.start_handshake(index, due);
        }
        let mut stream = match self.connections[index].stream.take() {
            Some(stream) => stream,
            None => self.connect(index)?,
        };
        let connection = &mut self.connections[index];
        connection.due = due;
        connection.busy = true;
        connection.missing = match self.plan.traffic {
            Traffic::TcpEcho { bytes } => Some(bytes),
            _ => None,
        };
        let bulk = [if is_upload(index) { BULK_UP } else { BULK_DOWN }];
        let bytes = match self.plan.traffic {
            Traffic::TcpBulk => &bulk[..],
            _ => &self.request,
        };
        // A request fits into an empty socket buffer, or something is wrong.
        let sent = stream.write(bytes);
        connection.stream = Some(stream);
        if !matches!(sent, Ok(count) if count == bytes.len()) {
            self.fail(index);
        }
        Ok(())
    }

    fn start_handshake(&mut self, index: usize, due: Instant) -> io::Result<()> {
        let stream = TcpStream::connect(self.plan.target)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        self.epoll.add(&stream, READ, index as u64)?;
        let connection = &mut self.connections[index];
        connection.due = due;
        connection.busy = true;
        if let Some(client) = &connection.client {
            connection.handshake = Some(Handshake::new(client, stream)?);
        }
        Ok(())
    }

    fn advance_handshake(&mut self, index: usize, wants_resumed: bool) {
        let connection = &mut self.connections[index];
        let Some(handshake) = &mut connection.handshake else {
            return;
        };
        let outcome = handshake.advance();
        if matches!(outcome, Ok(None)) {
            return;
        }
        connection.handshake = None;
        let known = std::mem::replace(&mut connection.known, wants_resumed);
        match outcome {
            Ok(Some(was_resumed)) if was_resumed == known => self.finish(index),
            _ => self.fail(index),
        }
    }

    fn advance(&mut self, index: usize, events: u32) -> io::Result<()> {
        if let Traffic::Handshake { resumed } = self.plan.traffic {
            self.advance_handshake(index, resumed);
            return Ok(());
        }
        if self.plan.traffic.is_bulk() {
            return self.advance_bulk(index, events);
        }
        if !self.receive(index) {
            self.fail(index);
        }
        Ok(())
    }

    /// Takes in the bytes that have come; `false` if they are not as expected.
    fn receive(&mut self, index: usize) -> bool {
        let connection = &mut self.connections[index];
        let Some(stream) = &mut connection.stream else {
            return true;
        };
        let count = match stream.read(&mut self.buffer) {
            Ok(count) => count,
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        };
        if !connection.busy {
            return false;
        }
        let closing = matches!(self.plan.traffic, Traffic::HttpClose { .. });
        if count == 0 {
            let complete = closing && connection.missing == Some(0);
            if complete {
                connection.stream = None;
                self.finish(index);
            }
            return complete;
        }
        let bytes = &self.buffer[..count];
        let left = match connection.missing {
            Some(missing) => missing.checked_sub(count),
            None if connection.head.is_empty()
                && !self.known_head.is_empty()
                && bytes.starts_with(&self.known_head) =>
            {
                (self.known_head.len() + self.known_body).checked_sub(count)
            }
            None => {
                connection.head.extend_from_slice(bytes);
                match parse_head(&connection.head, status(&self.plan.traffic)) {
                    None => return true,
                    Some(Err(_)) => return false,
                    Some(Ok((head, body))) => {
                        self.known_head.clear();
                        self.known_head.extend_from_slice(&connection.head[..head]);
                        self.known_body = body;
                        let received = connection.head.len();
                        connection.head.clear();
                        (head + body).checked_sub(received)
                    }
                }
            }
        };
        let Some(left) = left else {
            // More than was asked for.
            return false;
        };
        connection.missing = Some(left);
        if left == 0 && !closing {
            self.finish(index);
        }
        true
    }

    fn advance_bulk(&mut self, index: usize, events: u32) -> io::Result<()> {
        let Some(stream) = &mut self.connections[index].stream else {
            return Ok(());
        };
        let moved = if is_upload(index) && events & WRITE != 0 {
            stream.write(&self.buffer)
        } else {
            stream.read(&mut self.buffer)
        };
        match moved {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.outcome.bytes += count as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn finish(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.busy = false;
        let latency = connection.due.elapsed();
        self.outcome.latency.record(latency);
        self.outcome.requests += 1;
        self.idle.push_back(index);
    }

    /// Counts a failure and gives the connection up.
    fn fail(&mut self, index: usize) {
        self.outcome.failures += 1;
        let connection = &mut self.connections[index];
        connection.stream = None;
        connection.head.clear();
        if std::mem::take(&mut connection.busy) {
            self.idle.push_back(index);
        }
    }
}

/// Begins a session of FTP and the transfer of a file: its data connection.
fn transfer(session: &TcpStream, is_upload: bool) -> io::Result<TcpStream> {
    session.set_read_timeout(Some(STALL))?;
    let mut replies = BufReader::new(session);
    let mut reply = |wanted: &str| {
        let mut line = String::new();
        replies.read_line(&mut line)?;
        match line.starts_with(wanted) {
            true => Ok(line),
            false => Err(io::Error::other(format!(
                "expected {wanted}, found {line:?}"
            ))),
        }
    };
    let (user, command) = match is_upload {
        true => (USER_UP, "STOR file"),
        false => (USER_DOWN, "RETR file"),
    };
    let say = |line: &[u8]| {
        let mut session = session;
        session.write_all(&[line, b"\r\n"].concat())
    };
    reply("220 ")?;
    say(&[b"USER ", user].concat())?;
    reply("230 ")?;
    say(b"EPSV")?;
    let passive = reply("229 ")?;
    let port = passive.split('|').nth(3).and_then(|port| port.parse().ok());
    let port = port.ok_or_else(|| io::Error::other(format!("no port in {passive:?}")))?;
    let data = TcpStream::connect((session.peer_addr()?.ip(), port))?;
    say(command.as_bytes())?;
    reply("150 ")?;
    Ok(data)
}

fn is_upload(index: usize) -> bool {
    index % 2 == 1
}

fn client(traffic: &Traffic) -> io::Result<Option<Arc<ClientConfig>>> {
    let resumes = match traffic {
        Traffic::Https { .. } => false,
        Traffic::Handshake { resumed } => *resumed,
        _ => return Ok(None),
    };
    tls::client(resumes).map(Some)
}

fn secured(client: Option<&Arc<ClientConfig>>, stream: TcpStream) -> io::Result<Stream> {
    match client {
        Some(client) => Stream::secure(client, stream),
        None => Ok(Stream::Plain(stream)),
    }
}

fn request_bytes(traffic: &Traffic) -> Vec<u8> {
    match traffic {
        Traffic::Http { path } | Traffic::Https { path } | Traffic::Redirect { path } => {
            format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
                .into_bytes()
        }
        Traffic::HttpClose { path } => {
            format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: bench\r\nAccept: */*\r\nConnection: close\r\n\r\n")
                .into_bytes()
        }
        Traffic::TcpEcho { bytes } => vec![ECHO; *bytes],
        Traffic::TcpBulk | Traffic::FtpBulk | Traffic::Handshake { .. } => Vec::new(),
    }
}

/// The status of a good answer.
fn status(traffic: &Traffic) -> &'static str {
    match traffic {
        Traffic::Redirect { .. } => "307",
        _ => "200",
    }
}

/// Lengths of the head (its empty line included) and of the body of a response; `None`
/// when the head has not all come.
fn parse_head(bytes: &[u8], wanted: &str) -> Option<Result<(usize, usize), String>> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]);
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if status.split(' ').nth(1) != Some(wanted) {
        return Some(Err(format!("expected status {wanted}, found {status:?}")));
    }
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        if !name.eq_ignore_ascii_case("content-length") {
            return None;
        }
        value.trim().parse().ok()
    });
    Some(match length {
        Some(length) => Ok((end + 4, length)),
        None => Err("expected a Content-Length field, found none".into()),
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn heads_give_both_lengths_or_a_reason() {
        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        assert_eq!(parse_head(ok, "200"), Some(Ok((38, 5))));
        assert_eq!(parse_head(&ok[..30], "200"), None);
        assert!(matches!(
            parse_head(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "307"),
            Some(Err(_))
        ));
        assert!(matches!(
            parse_head(b"HTTP/1.1 200 OK\r\n\r\n", "200"),
            Some(Err(_))
        ));
    }

    /// A server that answers `answers` requests on each connection, then closes it.
    fn serve(answers: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut buffer = [0; 1024];
                    for _ in 0..answers {
                        match stream.read(&mut buffer) {
                            Ok(count) if count > 0 => {}
                            _ => return,
                        }
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                        if stream.write_all(answer).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    fn plan(target: SocketAddr, traffic: Traffic, rate: Option<f64>) -> Plan {
        Plan {
            target,
            traffic,
            connections: 3,
            rate,
            warm_up: Duration::from_millis(20),
            measure: Duration::from_millis(100),
        }
    }

    #[test]
    fn both_loops_count_answers() {
        let target = serve(usize::MAX);
        for rate in [None, Some(500.0)] {
            let plan = plan(target, Traffic::Http { path: "/" }, rate);
            let outcome = run(&plan, &mut || Ok(Duration::ZERO)).unwrap();
            assert!(outcome.requests > 0);
            assert_eq!(outcome.failures, 0);
            assert!(outcome.latency.quantile(0.5) > Duration::ZERO);
        }
    }

    #[test]
    fn closed_connections_are_answers_only_where_asked_for() {
        let closing = plan(serve(1), Traffic::HttpClose { path: "/" }, None);
        let outcome = run(&closing, &mut || Ok(Duration::ZERO)).unwrap();
        assert!(outcome.requests > 0);
        assert_eq!(outcome.failures, 0);

        let keeping = plan(serve(1), Traffic::Http { path: "/" }, Some(300.0));
        let outcome = run(&keeping, &mut || Ok(Duration::ZERO)).unwrap();
        assert!(outcome.failures > 0);
    }
}

//! The back-end of all measurements: answers with as little work as it can.
//!
//! `backend` binds loopback ports, prints `HTTP_ADDRESS TCP_ADDRESS H2_ADDRESS FTP_ADDRESS` on a
//! line, and serves until it is ended.
//!
//! HTTP: a path that starts with `/64k` is answered with 64 KiB, any other with
//! [`SMALL_BODY`], for one that starts with `/apart` in two writes, head and body, under Nagle's algorithm; a request with `Connection: close` also closes. TCP: the first byte of
//! a connection says what it is for, see [`evenkeel_bench::load`]. HTTP/2 (by prior knowledge, in a
//! thread of its own): a call of gRPC is answered with a message and a status, any other request
//! with [`SMALL_BODY`]. FTP, in passive mode: the user says where files go, see
//! [`evenkeel_bench::load`], and so at which of two ports data connections are taken; what is sent
//! and taken there is what TCP has, with the same code.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};

use evenkeel_bench::epoll::{EDGE, Epoll, READ, WRITE};
use evenkeel_bench::load::{BULK_DOWN, BULK_UP, USER_DOWN, USER_UP};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const SMALL_BODY: &[u8] = b"Hello from a back-end that has little to say.\n";
const LARGE_BODY_BYTES: usize = 64 * 1024;
/// Longest request head; a longer one closes the connection.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Services of the loop's listeners; the token of a listener is its index here.
const SERVICES: [Service; 5] = [
    Service::Http,
    Service::Unknown,
    Service::Ftp,
    Service::Source,
    Service::Sink,
];
const FIRST_CONNECTION: u64 = SERVICES.len() as u64;

fn main() -> io::Result<()> {
    let mut listeners = Vec::new();
    for _ in SERVICES {
        listeners.push(TcpListener::bind("127.0.0.1:0")?);
    }
    let mut stdout = io::stdout();
    let http2 = TcpListener::bind("127.0.0.1:0")?;
    let [http, tcp, ftp, down, up] = &listeners[..] else {
        return Err(io::Error::other("as many listeners as services"));
    };
    let addresses = [http, tcp, &http2, ftp].map(TcpListener::local_addr);
    let [http_address, tcp_address, http2_address, ftp_address] = addresses;
    writeln!(
        stdout,
        "{} {} {} {}",
        http_address?, tcp_address?, http2_address?, ftp_address?
    )?;
    stdout.flush()?;
    let answers = Answers::new(down.local_addr()?.port(), up.local_addr()?.port());
    std::thread::spawn(|| serve_http2(http2));

    let mut epoll = Epoll::new()?;
    for (token, listener) in (0..).zip(&listeners) {
        listener.set_nonblocking(true)?;
        epoll.add(listener, READ, token)?;
    }
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut free = Vec::new();
    let mut ended = Vec::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = epoll.wait_for_events(None)?;
        for index in 0..count {
            let (token, events) = epoll.event(index);
            if token < FIRST_CONNECTION {
                let service = SERVICES[token as usize];
                let Ok((stream, _)) = listeners[token as usize].accept() else {
                    continue;
                };
                let slot = free.pop().unwrap_or_else(|| {
                    connections.push(None);
                    connections.len() - 1
                });
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                let token = FIRST_CONNECTION + slot as u64;
                epoll.add(&stream, interest(service), token)?;
                let mut connection = Connection::new(stream, service);
                if service == Service::Ftp {
                    connection.send(b"220 Here is a back-end.\r\n")?;
                }
                connections[slot] = Some(connection);
                continue;
            }
            let slot = (token - FIRST_CONNECTION) as usize;
            let Some(connection) = &mut connections[slot] else {
                continue;
            };
            let was_source = connection.service == Service::Source;
            if !matches!(connection.advance(events, &answers, &mut buffer), Ok(true)) {
                connections[slot] = None;
                ended.push(slot);
            } else if connection.service == Service::Source && !was_source {
                epoll.modify(&connection.stream, interest(Service::Source), token)?;
            }
        }
        free.append(&mut ended);
    }
}

fn interest(service: Service) -> u32 {
    match service {
        // Level triggered: one write per turn, so that all sources get theirs.
        Service::Source => READ | WRITE,
        _ => READ | WRITE | EDGE,
    }
}

fn serve_http2(listener: TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            // Errors of a proxy's connection are the proxy's own affair.
            tokio::spawn(async { serve_connection(stream).await.ok() });
        }
    })
}

async fn serve_connection(stream: tokio::net::TcpStream) -> Result<(), Failure> {
    let mut connection = h2::server::Builder::new()
        .max_concurrent_streams(1000)
        .initial_connection_window_size(1 << 20)
        .handshake(stream)
        .await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        if request.body().is_end_stream() {
            answer_http2(&request, respond)?;
        } else {
            tokio::spawn(async {
                let mut request = request;
                while let Some(data) = request.body_mut().data().await {
                    let length = data?.len();
                    request.body_mut().flow_control().release_capacity(length)?;
                }
                answer_http2(&request, respond)
            });
        }
    }
    Ok(())
}

fn answer_http2(
    request: &Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), Failure> {
    let is_grpc = request
        .headers()
        .get("content-type")
        .is_some_and(|kind| kind == "application/grpc");
    if is_grpc {
        let head = Response::builder().header("content-type", "application/grpc");
        let mut stream = respond.send_response(head.body(())?, false)?;
        stream.send_data(Bytes::from_static(b"\0\0\0\0\x08whatever"), false)?;
        let status = ("grpc-status".parse()?, HeaderValue::from_static("0"));
        stream.send_trailers(HeaderMap::from_iter([status]))?;
        return Ok(());
    }
    let head = Response::builder()
        .header("content-type", "text/plain")
        .header("content-length", SMALL_BODY.len());
    let mut stream = respond.send_response(head.body(())?, false)?;
    stream.send_data(Bytes::from_static(SMALL_BODY), true)?;
    Ok(())
}

struct Answers {
    small: Vec<u8>,
    small_close: Vec<u8>,
    large: Vec<u8>,
    large_close: Vec<u8>,
    /// Of FTP: where data connections are taken, down and up.
    passive: [Vec<u8>; 2],
}

impl Answers {
    fn new(down: u16, up: u16) -> Self {
        let passive =
            |port| format!("229 Entering Extended Passive Mode (|||{port}|)\r\n").into_bytes();
        let large_body = vec![b'x'; LARGE_BODY_BYTES];
        let answer = |body: &[u8], connection: &str| {
            let mut bytes = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{connection}\r\n",
                body.len()
            )
            .into_bytes();
            bytes.extend_from_slice(body);
            bytes
        };
        Self {
            small: answer(SMALL_BODY, ""),
            small_close: answer(SMALL_BODY, "Connection: close\r\n"),
            large: answer(&large_body, ""),
            large_close: answer(&large_body, "Connection: close\r\n"),
            passive: [passive(down), passive(up)],
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Service {
    Http,
    /// TCP, before its first byte.
    Unknown,
    Echo,
    Source,
    Sink,
    /// A control connection.
    Ftp,
}

struct Connection {
    stream: TcpStream,
    service: Service,
    /// The start of a request head whose end has not come yet.
    head: Vec<u8>,
    unsent: Vec<u8>,
    close_when_sent: bool,
    /// Of FTP: its user sends files.
    is_upload: bool,
}

impl Connection {
    fn new(stream: TcpStream, service: Service) -> Self {
        Self {
            stream,
            service,
            head: Vec::new(),
            unsent: Vec::new(),
            close_when_sent: false,
            is_upload: false,
        }
    }

    /// Goes on as far as the socket allows; `false` when the connection is done with.
    fn advance(&mut self, events: u32, answers: &Answers, buffer: &mut [u8]) -> io::Result<bool> {
        if events & WRITE != 0 && !self.unsent.is_empty() {
            let unsent = std::mem::take(&mut self.unsent);
            self.send(&unsent)?;
        }
        if events & READ != 0 {
            loop {
                match self.stream.read(buffer) {
                    Ok(0) => return Ok(false),
                    Ok(count) => {
                        if !self.receive(&buffer[..count], answers)? {
                            return Ok(false);
                        }
                        if count < buffer.len() && events & (READ & !libc::EPOLLIN as u32) == 0 {
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        if self.service == Service::Source && events & WRITE != 0 {
            match self.stream.write(buffer) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => return Ok(true),
            }
        }
        if self.close_when_sent && self.unsent.is_empty() {
            self.stream.shutdown(Shutdown::Write)?;
            return Ok(false);
        }
        Ok(true)
    }

    fn receive(&mut self, bytes: &[u8], answers: &Answers) -> io::Result<bool> {
        if self.service == Service::Unknown {
            self.service = match bytes[0] {
                BULK_DOWN => Service::Source,
                BULK_UP => Service::Sink,
                _ => Service::Echo,
            };
        }
        match self.service {
            Service::Echo => self.send(bytes)?,
            Service::Http => return self.answer(bytes, answers),
            Service::Ftp => return self.reply(bytes, answers),
            Service::Source | Service::Sink | Service::Unknown => {}
        }
        Ok(true)
    }

    fn answer(&mut self, bytes: &[u8], answers: &Answers) -> io::Result<bool> {
        let kept;
        let mut rest = if self.head.is_empty() {
            bytes
        } else {
            self.head.extend_from_slice(bytes);
            kept = std::mem::take(&mut self.head);
            &kept
        };
        while let Some(end) = find_head_end(rest) {
            let head = &rest[..end];
            rest = &rest[end..];
            let close = asks_to_close(head);
            if head.starts_with(b"GET /apart") {
                // Like servers that know neither `TCP_NODELAY` nor one write for both.
                self.stream.set_nodelay(false)?;
                let answer = if close {
                    &answers.small_close
                } else {
                    &answers.small
                };
                let (head, body) = answer.split_at(answer.len() - SMALL_BODY.len());
                self.send(head)?;
                self.send(body)?;
                self.close_when_sent |= close;
                continue;
            }
            let answer = match (head.starts_with(b"GET /64k"), close) {
                (false, false) => &answers.small,
                (false, true) => &answers.small_close,
                (true, false) => &answers.large,
                (true, true) => &answers.large_close,
            };
            self.send(answer)?;
            self.close_when_sent |= close;
        }
        self.head.extend_from_slice(rest);
        Ok(self.head.len() <= MAX_HEAD_BYTES)
    }

    /// Replies to commands of FTP.
    fn reply(&mut self, bytes: &[u8], answers: &Answers) -> io::Result<bool> {
        self.head.extend_from_slice(bytes);
        let lines = std::mem::take(&mut self.head);
        let mut rest = &lines[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = rest[..end].trim_ascii_end();
            rest = &rest[end + 1..];
            let mut parts = line.splitn(2, |byte| *byte == b' ');
            match (parts.next(), parts.next()) {
                (Some(b"USER"), Some(user)) if [USER_DOWN, USER_UP].contains(&user) => {
                    self.is_upload = user == USER_UP;
                    self.send(b"230 Welcome.\r\n")?;
                }
                (Some(b"EPSV"), None) => {
                    self.send(&answers.passive[usize::from(self.is_upload)])?
                }
                (Some(b"RETR"), Some(_)) if !self.is_upload => self.send(b"150 Here it is.\r\n")?,
                (Some(b"STOR"), Some(_)) if self.is_upload => self.send(b"150 Go on.\r\n")?,
                _ => self.send(b"502 Not here.\r\n")?,
            }
        }
        self.head.extend_from_slice(rest);
        Ok(self.head.len() <= MAX_HEAD_BYTES)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() && self.unsent.is_empty() {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.unsent.extend_from_slice(rest);
        Ok(())
    }
}

/// Returns the end of the first head in `bytes`, with its empty line.
fn find_head_end(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some(end + 4)
}

fn asks_to_close(head: &[u8]) -> bool {
    head.split(|byte| *byte == b'\n')
        .any(|line| line.len() >= 17 && line[..17].eq_ignore_ascii_case(b"connection: close"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_end_at_their_empty_line() {
        assert_eq!(find_head_end(b"GET / HTTP/1.1\r\n\r\n"), Some(18));
        assert_eq!(find_head_end(b"a\r\n\r\nb\r\n\r\n"), Some(5));
        assert_eq!(find_head_end(b"a\r\nb\r\n"), None);
    }

    #[test]
    fn connection_close_in_any_case() {
        assert!(asks_to_close(
            b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
        ));
        assert!(asks_to_close(
            b"GET / HTTP/1.1\r\nconnection: Close\r\n\r\n"
        ));
        assert!(!asks_to_close(
            b"GET / HTTP/1.1\r\nConnection: keep-alive\r\n\r\n"
        ));
    }
}

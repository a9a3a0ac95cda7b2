//! A connection whose ends are scripted byte by byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::HANG;

/// A connection. Reads are buffered, writes are not.
pub struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
}

/// A message as it came: the head with its empty line, and the body without framing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Start line and fields.
    pub head: String,
    /// Content of the message.
    pub body: Vec<u8>,
    /// Trailer lines of a chunked body, each with its line end.
    pub trailers: String,
}

/// Place where a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// End between two messages.
    Between,
    /// End within a message.
    Within,
}

impl Message {
    /// The first line, without its end.
    pub fn start_line(&self) -> &str {
        self.head.split("\r\n").next().unwrap_or_default()
    }

    /// Second word of the first line: the target or the status.
    pub fn second_word(&self) -> &str {
        self.start_line().split(' ').nth(1).unwrap_or_default()
    }

    /// Values of a field, in order.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.head.split("\r\n").skip(1);
        let fields = lines.filter_map(|line| line.split_once(':'));
        fields
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }

    /// The content as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

impl Wire {
    /// Connects to `address`.
    pub fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).expect("something listens"))
    }

    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(HANG)).expect("a limit");
        stream.set_write_timeout(Some(HANG)).expect("a limit");
        stream.set_nodelay(true).expect("no delay");
        Self {
            stream,
            read: Vec::new(),
        }
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("sent");
    }

    /// Returns true if something has arrived that was not read yet.
    pub fn has_input(&self) -> bool {
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        !self.read.is_empty() || rustix::net::recv(&self.stream, &mut [0], flags).is_ok()
    }

    /// Sends bytes to somebody who may have gone; tells whether it worked.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends as much as the other side takes before it takes nothing for a while; answers
    /// how much that was. A busy machine only makes it less.
    pub fn send_until_stuck(&mut self, bytes: &[u8]) -> usize {
        const STUCK: Duration = Duration::from_millis(500);
        self.stream.set_write_timeout(Some(STUCK)).expect("a limit");
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("cannot send: {error}"),
            }
        }
        self.stream.set_write_timeout(Some(HANG)).expect("a limit");
        sent
    }

    /// Ends the sending side.
    pub fn end_sending(&mut self) {
        // The other side may have reset the connection.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Another handle to the same socket, to write while this one reads.
    pub fn writer(&self) -> Self {
        Self::new(self.stream.try_clone().expect("another handle"))
    }

    /// Reads up to and with `end`; `None` if the connection ends before.
    pub fn try_read_until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            let found = self.read.windows(end.len()).position(|part| part == end);
            if let Some(start) = found {
                return Some(self.read.drain(..start + end.len()).collect());
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// Reads exactly so many bytes; `None` if the connection ends before.
    pub fn try_read_exact(&mut self, len: usize) -> Option<Vec<u8>> {
        while self.read.len() < len {
            if !self.fill() {
                return None;
            }
        }
        Some(self.read.drain(..len).collect())
    }

    /// Reads a head; panics if the connection ends before.
    pub fn read_head(&mut self) -> Message {
        self.try_read_head().expect("a head")
    }

    /// Reads a head; `None` if the connection ends before.
    pub fn try_read_head(&mut self) -> Option<Message> {
        let head = self.try_read_until(b"\r\n\r\n")?;
        Some(Message {
            head: String::from_utf8(head).expect("a head is text"),
            body: Vec::new(),
            trailers: String::new(),
        })
    }

    /// Reads a request with its body.
    pub fn read_request(&mut self) -> Result<Message, Ended> {
        let Some(mut request) = self.try_read_head() else {
            return Err(if self.read.is_empty() {
                Ended::Between
            } else {
                Ended::Within
            });
        };
        self.read_framed_body(&mut request).ok_or(Ended::Within)?;
        Ok(request)
    }

    /// Reads a response with its body, which the end of the connection may end.
    pub fn read_response(&mut self) -> Message {
        let mut response = self.read_head();
        let framed = self.read_framed_body(&mut response);
        framed.expect("a whole body");
        let bodyless = matches!(
            response.second_word().as_bytes(),
            b"204" | b"304" | [b'1', ..]
        );
        let unframed = response.values("content-length").is_empty()
            && response.values("transfer-encoding").is_empty();
        if unframed && !bodyless {
            response.body = self.read_to_end();
        }
        response
    }

    /// Reads a body by its framing. This reader is another one than the balancer's, on purpose.
    fn read_framed_body(&mut self, message: &mut Message) -> Option<()> {
        let lengths = message.values("content-length");
        let codings = message.values("transfer-encoding");
        assert!(
            lengths.len() + codings.len() <= 1,
            "ambiguous: {}",
            message.head
        );
        if let [length] = lengths[..] {
            let length = length.parse().expect("a length");
            message.body = self.try_read_exact(length)?;
        } else if let [coding] = codings[..] {
            assert_eq!(coding, "chunked", "ambiguous: {}", message.head);
            loop {
                let line = self.try_read_until(b"\r\n")?;
                let line = String::from_utf8(line).expect("a chunk size is text");
                let digits = line.trim_end().split(';').next().unwrap_or_default();
                let size = usize::from_str_radix(digits, 16).expect("a chunk size");
                if size == 0 {
                    break;
                }
                message.body.extend(self.try_read_exact(size)?);
                assert_eq!(self.try_read_exact(2)?, b"\r\n", "after a chunk");
            }
            loop {
                let line = self.try_read_until(b"\r\n")?;
                if line == b"\r\n" {
                    break;
                }
                message.trailers += std::str::from_utf8(&line).expect("trailers are text");
            }
        }
        Some(())
    }

    /// All that comes until the connection ends.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        while self.fill() {}
        std::mem::take(&mut self.read)
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).expect("an option");
    }

    /// Returns true if the connection has ended with nothing more to read.
    pub fn is_at_end(&mut self) -> bool {
        self.read.is_empty() && !self.fill()
    }

    /// Reads more; false at the end of the connection. A reset is an end, too.
    fn fill(&mut self) -> bool {
        let mut part = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return false,
                Ok(len) => {
                    self.read.extend_from_slice(&part[..len]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
                Err(error) => panic!("nothing came in time: {error}"),
            }
        }
    }
}

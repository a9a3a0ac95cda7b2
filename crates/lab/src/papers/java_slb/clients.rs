//! Clients of the real test: crawls and FTP sessions at the pace of the paper's clients, each from an address of
//! its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use evenkeel_wire::ftp::{Lines, Replies, read_pasv_reply};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// Longer than anything takes: then something is broken.
const LONG: Duration = Duration::from_secs(20);

/// Most bytes of a file that are read at once.
const PIECE: usize = 64 * 1024;

/// A client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    /// Address of the client.
    pub(super) from: Ipv4Addr,
    /// Address that the client asks.
    pub(super) to: SocketAddr,
    /// Time at which the client ends, whatever it does.
    pub(super) until: Instant,
}

/// Duration of something, or nothing if the time was over before.
type Took = Result<Option<Duration>, String>;

impl Client {
    fn connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        // Bytes that have not been read stay with the balancer, as behind a slow line.
        sockopt::set_socket_recv_buffer_size(&socket, 2 * PIECE)?;
        net::bind(&socket, &SocketAddrV4::new(self.from, 0))?;
        net::connect(&socket, &to)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(LONG))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    fn fails(&self, what: &str, why: impl std::fmt::Display) -> String {
        format!("client {}: {what}: {why}", self.from)
    }

    /// Fetches the site's files of these numbers and sizes, a connection for each, and takes its time before
    /// each.
    pub(super) fn crawl(&self, files: &[(usize, u64)], pace: Duration) -> Took {
        let begun = Instant::now();
        for &(number, size) in files {
            if self.is_over() {
                return Ok(None);
            }
            let got = self.fetch(number);
            let got = got.map_err(|error| self.fails(&format!("file {number}"), error))?;
            if got != size {
                let why = format!("{got} bytes and not {size}");
                return Err(self.fails(&format!("file {number}"), why));
            }
            std::thread::sleep(pace);
        }
        Ok(Some(begun.elapsed()))
    }

    /// Fetches a file and returns its number of bytes. An answer other than 200 is an error.
    fn fetch(&self, number: usize) -> std::io::Result<u64> {
        let mut stream = self.connect(self.to)?;
        write!(
            stream,
            "GET /{number} HTTP/1.1\r\nHost: slb\r\nConnection: close\r\n\r\n"
        )?;
        let mut reader = BufReader::with_capacity(PIECE, stream);
        let mut line = String::new();
        reader.by_ref().take(4096).read_line(&mut line)?;
        if !line.starts_with("HTTP/1.1 200 ") {
            let said = format!("the answer is {}", line.trim());
            return Err(std::io::Error::other(said));
        }
        while line.trim() != "" {
            line.clear();
            reader.by_ref().take(4096).read_line(&mut line)?;
        }
        std::io::copy(&mut reader, &mut std::io::sink())
    }

    /// An FTP session: logs in, and downloads files of these sizes, which are called 0, 1 and so on. It takes its
    /// time for each piece.
    pub(super) fn run_ftp_session(&self, files: &[u64], pace: Duration) -> Took {
        let begun = Instant::now();
        let ended = self.try_session(files, pace);
        let ended = ended.map_err(|error| self.fails("FTP session", error))?;
        Ok(ended.then(|| begun.elapsed()))
    }

    fn try_session(&self, files: &[u64], pace: Duration) -> std::io::Result<bool> {
        let mut control = Control {
            stream: BufReader::new(self.connect(self.to)?),
            lines: Lines::of_server(),
            replies: Replies::default(),
        };
        control.reply(220)?;
        control.ask("USER anonymous", 331)?;
        control.ask("PASS a@example.org", 230)?;
        control.ask("TYPE I", 200)?;
        for (number, &size) in files.iter().enumerate() {
            let reply = control.ask("PASV", 227)?;
            let port =
                read_pasv_reply(&reply).ok_or_else(|| std::io::Error::other("no port in it"))?;
            let mut data = self.connect(SocketAddr::new(self.to.ip(), port))?;
            control.ask(&format!("RETR {number}"), 150)?;
            let (mut piece, mut got) = (vec![0; PIECE], 0u64);
            loop {
                let read = fill(&mut data, &mut piece)?;
                got += read as u64;
                std::thread::sleep(pace.mul_f64(read as f64 / PIECE as f64));
                if read < PIECE {
                    break;
                }
                if self.is_over() {
                    return Ok(false);
                }
            }
            control.reply(226)?;
            if got != size {
                let why = format!("file {number} has {got} bytes and not {size}");
                return Err(std::io::Error::other(why));
            }
        }
        control.ask("QUIT", 221)?;
        Ok(true)
    }
}

/// Reads until the piece is full, or nothing more comes.
fn fill(stream: &mut TcpStream, piece: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while let Some(room) = piece.get_mut(filled..).filter(|room| !room.is_empty()) {
        match stream.read(room)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

/// A control connection.
struct Control {
    stream: BufReader<TcpStream>,
    lines: Lines,
    replies: Replies,
}

impl Control {
    fn ask(&mut self, command: &str, expected: u16) -> std::io::Result<Vec<u8>> {
        let line = format!("{command}\r\n");
        self.stream.get_mut().write_all(line.as_bytes())?;
        self.reply(expected)
    }

    /// The text of the last line of a reply, which has to have this code.
    fn reply(&mut self, expected: u16) -> std::io::Result<Vec<u8>> {
        loop {
            let bytes = self.stream.fill_buf()?;
            if bytes.is_empty() {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let taken = self.lines.take(bytes).map_err(std::io::Error::other)?;
            self.stream.consume(taken.used);
            if !taken.line_ended {
                continue;
            }
            let line = self.lines.current_line();
            let Some(part) = self.replies.take(line) else {
                continue;
            };
            if part.last && part.code != expected {
                let said = String::from_utf8_lossy(line);
                let said = format!("{said} where {expected} was expected");
                return Err(std::io::Error::other(said));
            }
            if part.last {
                return Ok(line.get(4..).unwrap_or_default().to_vec());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_several_lines_are_read_to_their_end() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut control = Control {
            stream: BufReader::new(stream),
            lines: Lines::of_server(),
            replies: Replies::default(),
        };
        let replies = "220-Welcome\r\n220 is not the end with other text\r\n227 (127,0,0,1,117,49)\r\n\
                       530 no\r\nno reply\r\n";
        server.write_all(replies.as_bytes()).unwrap();
        drop(server);
        assert_eq!(
            control.reply(220).unwrap(),
            b"is not the end with other text"
        );
        let reply = control.reply(227).unwrap();
        assert_eq!(read_pasv_reply(&reply), Some(117 * 256 + 49));
        let error = control.reply(230).unwrap_err().to_string();
        assert_eq!(error, "530 no where 230 was expected");
        assert!(control.reply(230).is_err());
        assert!(control.reply(230).is_err());
    }
}

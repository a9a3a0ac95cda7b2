//! Clients of the real test: crawls and FTP sessions at the pace of the paper's clients, each from an address of
//! its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use evenkeel_wire::ftp::read_pasv_reply;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// Longer than anything takes: then something is broken.
const LONG: Duration = Duration::from_secs(20);

/// Files come in so many bytes at once.
const PIECE: usize = 64 * 1024;

/// A client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    /// Its address.
    pub(super) from: Ipv4Addr,
    /// What it asks.
    pub(super) to: SocketAddr,
    /// When it ends, whatever it does.
    pub(super) until: Instant,
}

/// How long something took, or nothing if the time was over before.
type Took = Result<Option<Duration>, String>;

impl Client {
    fn connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        // What has not been read stays with the balancer, as behind a slow line.
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

    /// How many bytes a file has; nothing where the answer is not 200.
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
    pub(super) fn session(&self, files: &[u64], pace: Duration) -> Took {
        let begun = Instant::now();
        let ended = self.try_session(files, pace);
        let ended = ended.map_err(|error| self.fails("FTP session", error))?;
        Ok(ended.then(|| begun.elapsed()))
    }

    fn try_session(&self, files: &[u64], pace: Duration) -> std::io::Result<bool> {
        let mut control = Control(BufReader::new(self.connect(self.to)?));
        control.reply("220")?;
        control.ask("USER anonymous", "331")?;
        control.ask("PASS a@example.org", "230")?;
        control.ask("TYPE I", "200")?;
        for (number, &size) in files.iter().enumerate() {
            let reply = control.ask("PASV", "227")?;
            let port = port(&reply).ok_or_else(|| std::io::Error::other("no port in it"))?;
            let mut data = self.connect(SocketAddr::new(self.to.ip(), port))?;
            control.ask(&format!("RETR {number}"), "150")?;
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
            control.reply("226")?;
            if got != size {
                let why = format!("file {number} has {got} bytes and not {size}");
                return Err(std::io::Error::other(why));
            }
        }
        control.ask("QUIT", "221")?;
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

/// The port in the answer to PASV, after its code.
fn port(reply: &str) -> Option<u16> {
    read_pasv_reply(reply.as_bytes().get(4..)?)
}

/// A control connection.
struct Control(BufReader<TcpStream>);

impl Control {
    fn ask(&mut self, command: &str, expected: &str) -> std::io::Result<String> {
        self.0
            .get_mut()
            .write_all(format!("{command}\r\n").as_bytes())?;
        self.reply(expected)
    }

    /// The last line of a reply, which has to begin like that.
    fn reply(&mut self, expected: &str) -> std::io::Result<String> {
        loop {
            let mut line = String::new();
            let read = self.0.by_ref().take(4096).read_line(&mut line)?;
            let goes_on = line.as_bytes().get(3) == Some(&b'-') || line.starts_with(' ');
            if read > 0 && goes_on {
                continue;
            }
            return match line.starts_with(expected) {
                true => Ok(line),
                false => {
                    let said = format!("{} where {expected} was expected", line.trim());
                    Err(std::io::Error::other(said))
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_stands_in_the_answer() {
        let reply = "227 Entering Passive Mode (127,0,0,1,117,49).";
        assert_eq!(port(reply), Some(117 * 256 + 49));
        assert_eq!(port("227 (1,2,3,4,5)"), None);
        assert_eq!(port("227 (1,2,3,4,500,1)"), None);
    }
}

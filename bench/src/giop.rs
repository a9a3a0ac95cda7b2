//! A load generator for GIOP: closed loop, one event loop over all its connections, each
//! of which has one request outstanding.
//!
//! Requests are made before the run, only their ids change, and of an answer no more is
//! looked at than is needed to know that it is the right one: the generator must be
//! faster than what it measures.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::epoll::{Epoll, READ};
use evenkeel_load::stats::Latencies;

/// Bytes of a message's header.
const HEADER: usize = 12;
/// Offset of the id in a request and a reply of GIOP 1.2; the status of a reply follows it.
const ID: usize = HEADER;
const STATUS: usize = ID + 4;
/// Reply status of results.
pub const NO_EXCEPTION: u32 = 0;
/// Reply status of a forward.
pub const LOCATION_FORWARD: u32 = 3;
/// A run without any message for this time ends with an error.
const STALL: Duration = Duration::from_secs(10);

/// A run to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Address of the server.
    pub target: SocketAddr,
    /// The object key.
    pub key: Vec<u8>,
    /// The status that each reply must have.
    pub status: u32,
    /// Connections, each with one request outstanding.
    pub connections: usize,
    /// Length of the warm-up, which is not counted.
    pub warm_up: Duration,
    /// Length of the counted run.
    pub measure: Duration,
}

/// Results of a run, without its warm-up.
pub struct Outcome {
    /// Requests that were answered.
    pub replies: u64,
    /// Length of the run.
    pub elapsed: Duration,
    /// CPU time that the meter has seen pass.
    pub cpu: Duration,
    /// Latencies of the requests.
    pub latency: Latencies,
    /// The longest wait of a connection for an answer, including an answer that had not come when the run ended.
    pub longest: Duration,
    /// Answers of each connection.
    pub answers: Vec<u64>,
}

impl Outcome {
    /// Answers of the connection that got fewest, and of the one that got most.
    pub fn fewest_and_most(&self) -> (u64, u64) {
        let (least, most) = (self.answers.iter().min(), self.answers.iter().max());
        (least.copied().unwrap_or(0), most.copied().unwrap_or(0))
    }
}

/// The request: GIOP 1.2, least significant byte first, for an operation with one
/// `unsigned long` as its argument.
pub fn encode_request(key: &[u8]) -> Vec<u8> {
    let mut bytes = b"GIOP\x01\x02\x01\x00\0\0\0\0".to_vec();
    let long = |bytes: &mut Vec<u8>, value: u32| bytes.extend(value.to_le_bytes());
    let align = |bytes: &mut Vec<u8>, to: usize| bytes.resize(bytes.len().next_multiple_of(to), 0);
    long(&mut bytes, 0);
    bytes.extend([3, 0, 0, 0]);
    // The object key as the target.
    long(&mut bytes, 0);
    long(&mut bytes, key.len() as u32);
    bytes.extend(key);
    align(&mut bytes, 4);
    let operation = b"is_prime\0";
    long(&mut bytes, operation.len() as u32);
    bytes.extend(operation);
    align(&mut bytes, 4);
    // No service contexts.
    long(&mut bytes, 0);
    align(&mut bytes, 8);
    long(&mut bytes, 7919);
    let size = (bytes.len() - HEADER) as u32;
    bytes[8..HEADER].copy_from_slice(&size.to_le_bytes());
    bytes
}

/// Makes a run. `cpu_meter` reads the CPU time that the measured process has used so far.
///
/// # Errors
///
/// The target cannot be connected to, answers nothing for ten seconds, or gives an unexpected answer.
pub fn run(
    plan: &Plan,
    cpu_meter: &mut dyn FnMut() -> io::Result<Duration>,
) -> io::Result<Outcome> {
    let mut epoll = Epoll::new()?;
    let request = encode_request(&plan.key);
    let mut connections = Vec::with_capacity(plan.connections);
    for index in 0..plan.connections {
        let stream = TcpStream::connect(plan.target)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll.add(&stream, READ, index as u64)?;
        connections.push(Connection {
            stream,
            request: request.clone(),
            status: plan.status,
            id: 0,
            sent: Instant::now(),
            answer: Box::new([0; 4096]),
            filled: 0,
            answers: 0,
            longest: Duration::ZERO,
        });
    }
    let mut latency = Latencies::default();
    for connection in &mut connections {
        connection.send()?;
    }
    let counted_from = Instant::now() + plan.warm_up;
    let end = counted_from + plan.measure;
    let mut counting: Option<(Instant, Duration)> = None;
    let mut last_answer = Instant::now();
    loop {
        let events = epoll.wait_for_events(Some(Duration::from_millis(20)))?;
        for event in 0..events {
            let (index, _) = epoll.event(event);
            if let Some(waited) = connections[index as usize].receive()? {
                latency.record(waited);
                connections[index as usize].send()?;
            }
        }
        let now = Instant::now();
        match (counting, events) {
            (_, 0) if now - last_answer > STALL => {
                return Err(io::Error::other("no connection gets an answer any more"));
            }
            (_, 0) => {}
            _ => last_answer = now,
        }
        match counting {
            None if now >= counted_from => {
                latency.clear();
                for connection in &mut connections {
                    connection.answers = 0;
                    connection.longest = Duration::ZERO;
                }
                counting = Some((Instant::now(), cpu_meter()?));
            }
            Some((from, cpu)) if now >= end => {
                let longest = connections.iter().map(|c| c.longest.max(c.sent.elapsed()));
                let answers: Vec<_> = connections.iter().map(|c| c.answers).collect();
                return Ok(Outcome {
                    replies: answers.iter().sum(),
                    elapsed: from.elapsed(),
                    cpu: cpu_meter()?.saturating_sub(cpu),
                    latency,
                    longest: longest.max().unwrap_or_default(),
                    answers,
                });
            }
            _ => {}
        }
    }
}

struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    status: u32,
    id: u32,
    sent: Instant,
    answer: Box<[u8; 4096]>,
    filled: usize,
    answers: u64,
    longest: Duration,
}

impl Connection {
    fn send(&mut self) -> io::Result<()> {
        self.id = self.id.wrapping_add(1);
        self.request[ID..ID + 4].copy_from_slice(&self.id.to_le_bytes());
        self.sent = Instant::now();
        // A request fits into an empty socket buffer, or something is wrong.
        match self.stream.write(&self.request)? {
            all if all == self.request.len() => Ok(()),
            _ => Err(io::Error::other("a request does not fit into the socket")),
        }
    }

    /// Takes in the bytes that have come. Returns the latency of an answer, if it is complete.
    fn receive(&mut self) -> io::Result<Option<Duration>> {
        let count = match self.stream.read(&mut self.answer[self.filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        self.filled += count;
        let bytes = &self.answer[..self.filled];
        let Some(size) = long(bytes, 8) else {
            return Ok(None);
        };
        let size = size as usize + HEADER;
        if size > self.answer.len() {
            return Err(io::Error::other("an answer is longer than it should be"));
        }
        if bytes.len() < size {
            return Ok(None);
        }
        let right = bytes.len() == size
            && bytes.starts_with(b"GIOP\x01\x02\x01\x01")
            && long(bytes, ID) == Some(self.id)
            && long(bytes, STATUS) == Some(self.status);
        if !right {
            let text = format!("not the reply that was asked for: {bytes:?}");
            return Err(io::Error::other(text));
        }
        self.filled = 0;
        self.answers += 1;
        let waited = self.sent.elapsed();
        self.longest = self.longest.max(waited);
        Ok(Some(waited))
    }
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*four))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_as_the_standard_has_it() {
        let bytes = encode_request(b"key");
        assert_eq!(bytes.len() % 8, 4, "the argument stands at a multiple of 8");
        let size = long(&bytes, 8).map(|size| size as usize + HEADER);
        assert_eq!(size, Some(bytes.len()));
        let (head, argument) = bytes.split_at(bytes.len() - 4);
        assert_eq!(argument, 7919u32.to_le_bytes());
        assert_eq!(head.len() % 8, 0);
        assert_eq!(&bytes[24..31], b"\x03\0\0\0key");
    }
}

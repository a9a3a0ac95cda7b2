//! The clients of web sites.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_load::stats::Latencies;

use super::clock;

/// Longest time of any operation.
const HANG: Duration = Duration::from_secs(20);

/// Process of arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arrivals {
    /// Closed loop: number of clients that send one request after the other.
    Closed(usize),
    /// Open loop: requests per second, at random, independent of the answers; a response time counts from the time at
    /// which the request was due.
    Open(f64),
}

/// Clients of a site.
pub(crate) struct Site {
    pub address: SocketAddr,
    /// Names its documents.
    pub name: usize,
    /// Exponent of their popularity.
    pub alpha: f64,
    pub documents: usize,
    pub arrivals: Arrivals,
    pub seed: u64,
}

/// Results of the clients.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    pub requests: u64,
    pub failures: u64,
    pub latency: Latencies,
}

/// Connections of an open loop, and so the most requests that are under way. More are due
/// only where all is lost already, and their waiting counts.
const OPEN_CONNECTIONS: usize = 64;

impl Site {
    /// Sends requests until `end`, and counts the requests from `begin` on.
    pub(crate) fn run(&self, begin: u64, end: u64) -> io::Result<Seen> {
        let popularity = popularity(self.documents, self.alpha);
        let count = match self.arrivals {
            Arrivals::Closed(clients) => clients,
            Arrivals::Open(_) => OPEN_CONNECTIONS,
        };
        let schedule = self.schedule(end);
        let next = AtomicU64::new(0);
        let client = |index: usize| {
            let mut rng = fastrand::Rng::with_seed(self.seed.wrapping_add(index as u64));
            let mut connection = Connection::new(self.address)?;
            let mut seen = Seen::default();
            loop {
                let due = match self.arrivals {
                    Arrivals::Closed(_) => clock::monotonic_nanos(),
                    Arrivals::Open(_) => {
                        let turn = next.fetch_add(1, Ordering::Relaxed) as usize;
                        let Some(&due) = schedule.get(turn) else {
                            break;
                        };
                        clock::sleep_until(due);
                        due
                    }
                };
                if due >= end {
                    break;
                }
                let luck = rng.f64();
                let document = popularity.partition_point(|&below| below < luck);
                let is_good = connection.get(self.name, document)?;
                let now = clock::monotonic_nanos();
                // Requests that end after the end would make slow arms seem faster.
                let counts = match self.arrivals {
                    Arrivals::Closed(_) => now >= begin && now < end,
                    Arrivals::Open(_) => due >= begin,
                };
                if counts {
                    seen.requests += 1;
                    seen.failures += u64::from(!is_good);
                    seen.latency.record(Duration::from_nanos(now - due));
                }
            }
            Ok(seen)
        };
        std::thread::scope(|scope| {
            let client = &client;
            let clients: Vec<_> = (0..count)
                .map(|index| scope.spawn(move || client(index)))
                .collect();
            let mut all = Seen::default();
            for client in clients {
                let seen: io::Result<Seen> = client
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("a client has panicked")));
                all.add(&seen?);
            }
            Ok(all)
        })
    }

    /// Draws the times at which requests of an open loop are due.
    fn schedule(&self, end: u64) -> Vec<u64> {
        let Arrivals::Open(rate) = self.arrivals else {
            return Vec::new();
        };
        let mut rng = fastrand::Rng::with_seed(!self.seed);
        let mut at = clock::monotonic_nanos() as f64;
        let gap = || {
            at += -(1.0 - rng.f64()).ln() * 1e9 / rate;
            Some(at as u64)
        };
        std::iter::from_fn(gap).take_while(|at| *at < end).collect()
    }
}

/// Cumulated shares of popularity of this many documents with this exponent.
pub(crate) fn popularity(documents: usize, alpha: f64) -> Vec<f64> {
    let weights = (1..documents).map(|rank| (rank as f64).powf(-alpha));
    let all: f64 = weights.clone().sum::<f64>() + (documents as f64).powf(-alpha);
    weights
        .scan(0.0, |sum, weight| {
            *sum += weight / all;
            Some(*sum)
        })
        .collect()
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Seen) {
        self.requests += other.requests;
        self.failures += other.failures;
        self.latency.add(&other.latency);
    }
}

/// A connection that stays.
pub(crate) struct Connection {
    writer: TcpStream,
    reader: BufReader<TcpStream>,
    line: String,
    body: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(address: SocketAddr) -> io::Result<Self> {
        let writer = TcpStream::connect(address)?;
        writer.set_nodelay(true)?;
        writer.set_read_timeout(Some(HANG))?;
        Ok(Connection {
            reader: BufReader::new(writer.try_clone()?),
            writer,
            line: String::new(),
            body: Vec::new(),
        })
    }

    /// Requests a document; true if the answer was 200 and complete.
    pub(crate) fn get(&mut self, site: usize, document: usize) -> io::Result<bool> {
        let request = format!("GET /{site}/{document} HTTP/1.1\r\nHost: bench\r\n\r\n");
        self.writer.write_all(request.as_bytes())?;
        self.read_line()?;
        let is_good = self.line.starts_with("HTTP/1.1 200");
        let mut length = 0;
        loop {
            self.read_line()?;
            let Some((name, value)) = self.line.split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        self.body.resize(length, 0);
        self.reader.read_exact(&mut self.body)?;
        Ok(is_good)
    }

    fn read_line(&mut self) -> io::Result<()> {
        self.line.clear();
        match self.reader.read_line(&mut self.line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popularity_is_zipfs() {
        // 1, 1/2, 1/3, together 11/6.
        let sums = popularity(3, 1.0);
        assert!((sums[0] - 6.0 / 11.0).abs() < 1e-9);
        assert!((sums[1] - 9.0 / 11.0).abs() < 1e-9);
        assert_eq!(sums.len(), 2);
    }
}

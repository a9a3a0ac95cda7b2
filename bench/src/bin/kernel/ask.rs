//! Readers of load, as a front-end has them.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use evenkeel_kernel::host::Host;
use evenkeel_kernel::loads::{Before, Loads};
use evenkeel_kernel::query::{Answer, Key, LONGEST, Query, WITH_PORTS};
use evenkeel_kernel::record::Base;
use evenkeel_kernel::shared::Reader;

use super::ground::Link;
use super::{Result, clock};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Asks a responder, one query at a time.
pub(crate) struct Asker {
    socket: UdpSocket,
    key: Key,
    query: Query,
    before: Option<Before>,
    /// The base of the last answer.
    pub last: Option<Base>,
    out: Vec<u8>,
    buffer: Vec<u8>,
    /// Queries without an answer.
    pub lost: u64,
}

impl Asker {
    /// For a responder at the other end of a link.
    pub(crate) fn new(link: &Link, port: u16, key: &Key, target: u16) -> Result<Self> {
        let (front, back) = (link.front, link.back);
        let socket = link.at_front(|| Self::socket(front, back, port))?;
        Self::over(socket, back, key, target)
    }

    /// For a responder at the other end of a cable between machines.
    pub(crate) fn between_machines(
        front: Ipv4Addr,
        back: Ipv4Addr,
        port: u16,
        key: &Key,
    ) -> Result<Self> {
        Self::over(Self::socket(front, back, port)?, back, key, 0)
    }

    fn over(socket: UdpSocket, back: Ipv4Addr, key: &Key, target: u16) -> Result<Self> {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut rng = fastrand::Rng::new();
        Ok(Asker {
            socket,
            key: key.clone(),
            query: Query {
                length: WITH_PORTS as u16,
                target,
                first_cpu: 0,
                reader: rng.u64(..),
                number: 1,
                host: Host::from_address(back.into()),
            },
            before: None,
            last: None,
            out: Vec::with_capacity(LONGEST),
            buffer: vec![0; LONGEST + 1],
            lost: 0,
        })
    }

    fn socket(front: Ipv4Addr, back: Ipv4Addr, port: u16) -> Result<UdpSocket> {
        let socket = UdpSocket::bind((front, 0))?;
        socket.connect(SocketAddr::from((back, port)))?;
        Ok(socket)
    }

    /// Makes queries of this length from now on.
    pub(crate) fn set_length(&mut self, length: usize) {
        self.query.length = length as u16;
    }

    /// Waits until the responder answers.
    pub(crate) fn wait_for_answer(&mut self, who: &str) -> Result<()> {
        for _ in 0..40 {
            if self.query_loads().is_some() {
                self.lost = 0;
                return Ok(());
            }
            // Refused at once where nobody listens yet.
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("{who} answers no query").into())
    }

    /// The time that a query and its answer took, in nanoseconds, and the loads since the
    /// last one. None if there was no answer.
    pub(crate) fn query_loads(&mut self) -> Option<(u64, Loads)> {
        self.query.number += 1;
        self.query.write(&self.key, &mut self.out);
        let sent = clock::monotonic_nanos();
        let answered = self.socket.send(&self.out).is_ok() && self.receive();
        let took = clock::monotonic_nanos() - sent;
        if !answered {
            self.lost += 1;
            return None;
        }
        let length = usize::from(self.query.length);
        let answer = Answer::parse(self.buffer.get(..length)?, &self.key).ok()?;
        let loads = Loads::since_last(self.before.as_ref(), &answer.record);
        self.before = Some(Before::new(&answer.record.base));
        self.last = Some(answer.record.base);
        Some((took, loads))
    }

    /// Waits for the answer to the last query; answers to earlier ones are too late.
    fn receive(&mut self) -> bool {
        loop {
            let Ok(length) = self.socket.recv(&mut self.buffer) else {
                return false;
            };
            let datagram = self.buffer.get(..length).unwrap_or_default();
            match Answer::parse(datagram, &self.key) {
                Ok(answer) if answer.query == self.query => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// Asks `count` times without a look at the answers; returns the number of answers.
    pub(crate) fn flood_queries(&mut self, count: usize) -> u64 {
        // Number of queries under way at once.
        const WINDOW: usize = 16;
        let mut answered = 0;
        for _ in 0..count.div_ceil(WINDOW) {
            let mut sent = 0;
            for _ in 0..WINDOW {
                self.query.number += 1;
                self.query.write(&self.key, &mut self.out);
                sent += usize::from(self.socket.send(&self.out).is_ok());
            }
            for _ in 0..sent {
                match self.socket.recv(&mut self.buffer) {
                    Ok(_) => answered += 1,
                    Err(_) => break,
                }
            }
        }
        answered
    }
}

/// Reads the page that a helper on this machine writes.
pub(crate) struct Page {
    reader: Reader,
    before: Option<Base>,
    last: Option<Loads>,
}

impl Page {
    /// Opens a page once there is one.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut reader = Reader::new(path);
        let mut error = None;
        for _ in 0..200 {
            match reader.read() {
                Ok(_) => {
                    return Ok(Page {
                        reader,
                        before: None,
                        last: None,
                    });
                }
                Err(why) => error = Some(why),
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        let why = error.map(|why| why.to_string()).unwrap_or_default();
        Err(format!("no page is written: {why}").into())
    }

    /// The loads between the last two times that the page was written, as far as this reader
    /// has seen them.
    pub(crate) fn read(&mut self) -> Option<Loads> {
        // A writer that is interrupted may take its time; then the last reading holds.
        if let Ok(reading) = self.reader.read() {
            let record = reading.record;
            if self.before.map(|before| before.time_ns) != Some(record.base.time_ns) {
                let before = self.before.as_ref().map(Before::new);
                self.last = Some(Loads::since_last(before.as_ref(), &record));
                self.before = Some(record.base);
            }
        }
        self.last
    }
}

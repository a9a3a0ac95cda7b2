//! Records that are read rather than asked for: in shared memory and over RDMA.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_config::MonitorKind;
use evenkeel_kernel::rdma;
use evenkeel_kernel::shared::{self, ReadError};
use evenkeel_net::Clock;

use crate::poller::{Poller, RecordSource, Verdict};

/// Interval at which the libraries of RDMA are looked for, if they are missing.
const LOOK: Duration = Duration::from_secs(10);

/// Checks that this program can read loads in that way; the error is what it lacks.
pub(crate) fn can_read(kind: MonitorKind) -> Result<(), &'static str> {
    match kind {
        MonitorKind::Rdma if cfg!(not(feature = "rdma")) => Err(
            "a monitor with `type = \"rdma\"`: this program was built without RDMA; build the program \
             with --features kernel, or choose `type = \"kernel\"`",
        ),
        _ => Ok(()),
    }
}

/// Pages that are open.
#[derive(Default)]
pub(crate) struct Pages {
    shared: HashMap<PathBuf, shared::Reader>,
    rdma: Option<Result<Rdma, Missing>>,
}

/// Reason why there is no RDMA, and the time until which it is not looked for again.
struct Missing(rdma::Error, std::time::Instant);

struct Rdma {
    reader: rdma::Reader,
    /// Connections by the poller's places.
    connections: HashMap<usize, (SocketAddr, rdma::ConnectionId)>,
    /// Place that each connection belongs to.
    places: HashMap<rdma::ConnectionId, usize>,
}

impl Pages {
    /// Reads the page of a place, or begins to.
    pub(crate) fn read(&mut self, poller: &mut Poller, index: usize, clock: Clock) {
        let Some(wanted) = poller.wanted(index) else {
            return;
        };
        match &wanted.place {
            // Asked by the caller.
            RecordSource::Udp(_) => {}
            RecordSource::Shared(path) => {
                let new = || shared::Reader::new(path);
                if !self.shared.contains_key(path) {
                    self.shared.insert(path.clone(), new());
                }
                let Some(reader) = self.shared.get_mut(path) else {
                    return;
                };
                let read = reader.read();
                let now = clock.now();
                let read = match &read {
                    Ok(reading) => Ok(&reading.record),
                    Err(error @ ReadError::Record(_, bad)) => {
                        Err((Verdict::of_record(*bad), error as &dyn Display))
                    }
                    Err(error) => Err((Verdict::Unreadable, error as _)),
                };
                poller.read(index, read, None, now);
            }
            RecordSource::Rdma(address) => {
                let address = *address;
                self.ask(poller, index, address, clock);
            }
        }
    }

    fn ask(&mut self, poller: &mut Poller, index: usize, address: SocketAddr, clock: Clock) {
        let now = std::time::Instant::now();
        if let Some(Err(Missing(_, until))) = &self.rdma
            && *until <= now
        {
            self.rdma = None;
        }
        let rdma = self.rdma.get_or_insert_with(|| match rdma::Reader::new() {
            Ok(reader) => Ok(Rdma {
                reader,
                connections: HashMap::new(),
                places: HashMap::new(),
            }),
            Err(error) => Err(Missing(error, now + LOOK)),
        });
        match rdma {
            Ok(rdma) => rdma.ask(index, address, now),
            Err(Missing(error, _)) => {
                poller.read(index, Err((Verdict::Unreadable, error)), None, clock.now());
            }
        }
    }

    /// Takes what has been read over RDMA.
    pub(crate) fn poll(&mut self, poller: &mut Poller, clock: Clock) {
        let Some(Ok(rdma)) = &mut self.rdma else {
            return;
        };
        let places = &rdma.places;
        let now = std::time::Instant::now();
        let polled = rdma.reader.poll(now, |connection, answer| {
            let Some(&index) = places.get(&connection) else {
                return;
            };
            match &answer {
                Ok(answer) => {
                    let round_trip = Some(answer.round_trip);
                    poller.read(index, Ok(&answer.record), round_trip, clock.now());
                }
                Err(rdma::Error::Record(error)) => {
                    let verdict = Verdict::of_record(*error);
                    poller.read(index, Err((verdict, error)), None, clock.now());
                }
                Err(error) => {
                    poller.read(index, Err((Verdict::Unreadable, error)), None, clock.now());
                }
            }
        });
        if let Err(error) = polled {
            self.rdma = Some(Err(Missing(error, now + LOOK)));
        }
    }

    /// Closes what is not wanted any more.
    pub(crate) fn close_unwanted(&mut self, poller: &Poller) {
        let is_shared = |path: &PathBuf| {
            let mut views = poller.views();
            views.any(
                |view| matches!(&view.target.place, RecordSource::Shared(other) if other == path),
            )
        };
        self.shared.retain(|path, _| is_shared(path));
        if let Some(Ok(rdma)) = &mut self.rdma {
            let is_wanted = |index: usize, address: SocketAddr| {
                let wanted = poller.wanted(index);
                wanted.is_some_and(|wanted| wanted.place == RecordSource::Rdma(address))
            };
            let gone = rdma.connections.iter();
            let gone = gone.filter(|(index, (address, _))| !is_wanted(**index, *address));
            let gone: Vec<usize> = gone.map(|(index, _)| *index).collect();
            gone.into_iter().for_each(|index| rdma.close(index));
            if rdma.connections.is_empty() {
                self.rdma = None;
            }
        }
    }

    /// Returns the file that can be read when [`Pages::poll`] has something to do. `poll` also has something
    /// to do every 20 ms.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.rdma {
            Some(Ok(rdma)) => Some(rdma.reader.as_fd()),
            _ => None,
        }
    }
}

impl Rdma {
    fn ask(&mut self, index: usize, address: SocketAddr, now: std::time::Instant) {
        if self
            .connections
            .get(&index)
            .is_some_and(|known| known.0 != address)
        {
            self.close(index);
        }
        let connection = match self.connections.get(&index) {
            Some((_, connection)) => *connection,
            None => {
                let connection = self.reader.connect(address, now);
                self.connections.insert(index, (address, connection));
                self.places.insert(connection, index);
                connection
            }
        };
        // If there is no connection yet, or no answer to the last question, there is no news.
        let _ = self.reader.begin_read(connection, now);
    }

    fn close(&mut self, index: usize) {
        if let Some((_, connection)) = self.connections.remove(&index) {
            self.reader.close(connection);
            self.places.remove(&connection);
        }
    }
}

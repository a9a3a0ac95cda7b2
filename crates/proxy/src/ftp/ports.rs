//! Ports at which data connections are waited for.
//!
//! They are the machine's, so all rules and workers of the process share one table: a bit for each
//! port, without a lock. Who has a bit tries to listen there; a port that another process has is
//! passed over.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use socket2::{Domain, Protocol, Socket, Type};

/// Most ports of other processes that are tried for one lease.
const MAX_TAKEN: usize = 64;

/// Connections that may wait to be accepted: one is wanted, and a stranger's may come before it.
const BACKLOG: i32 = 8;

static PORTS: Ports = Ports([const { AtomicU64::new(0) }; 1024]);

struct Ports([AtomicU64; 1024]);

impl Ports {
    fn port_word(&self, port: u16) -> Option<(&AtomicU64, u64)> {
        let word = self.0.get(usize::from(port / 64))?;
        Some((word, 1 << (port % 64)))
    }

    /// Takes a port, unless somebody has it.
    fn take(&'static self, port: u16) -> Option<Lease> {
        let (word, bit) = self.port_word(port)?;
        let is_taken = |word: u64| word & bit != 0;
        // Looked at first: a table that is full is searched without a write.
        if is_taken(word.load(Ordering::Relaxed)) || is_taken(word.fetch_or(bit, Ordering::Relaxed))
        {
            return None;
        }
        Some(Lease(port))
    }
}

/// The right to a port, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease(u16);

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((word, bit)) = PORTS.port_word(self.0) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// Listens at a free port of `range`, sought from the one on that `drawn` names. Strangers must not be able to guess
/// it: what is `drawn` comes from the system's generator.
///
/// # Errors
///
/// [`io::ErrorKind::AddrInUse`] if there is none; any other is that of a socket.
pub(crate) fn listen_in_range(
    ip: IpAddr,
    range: &RangeInclusive<u16>,
    drawn: u32,
) -> io::Result<(Lease, TcpListener)> {
    let mut taken = 0;
    for port in ports_from(range, drawn) {
        let Some(lease) = PORTS.take(port) else {
            continue;
        };
        match listen_at(SocketAddr::new(ip, port)) {
            Ok(listener) => return Ok((lease, listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && taken < MAX_TAKEN => {
                taken += 1
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Returns all ports of `range`, from the port on that `drawn` names.
fn ports_from(range: &RangeInclusive<u16>, drawn: u32) -> impl Iterator<Item = u16> {
    let (first, last) = (*range.start(), *range.end());
    let count = u32::from(last.saturating_sub(first)) + 1;
    let begin = first.saturating_add((drawn % count) as u16);
    (begin..=last).chain(first..begin)
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // Connections that came here earlier may not be over for the kernel.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drawn, as in use: tests run side by side, and each gives a port back for a moment.
    fn drawn() -> u32 {
        fastrand::u32(..)
    }

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_port_is_leased_once_and_again_when_it_is_given_back() {
        // Of another test's port nothing is known, so one that is free is looked for.
        let free = listen_in_range(LOCAL, &(20_000..=29_000), drawn()).unwrap();
        let port = free.1.local_addr().unwrap().port();
        let only = port..=port;
        let none = listen_in_range(LOCAL, &only, drawn()).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::AddrInUse);
        drop(free);
        let again = listen_in_range(LOCAL, &only, drawn()).unwrap();
        assert_eq!(again.1.local_addr().unwrap().port(), port);
        drop(again);
        // Somebody else's, of whom the table knows nothing.
        let other = TcpListener::bind((LOCAL, port)).unwrap();
        let none = listen_in_range(LOCAL, &only, drawn()).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::AddrInUse);
        drop(other);
        assert!(listen_in_range(LOCAL, &only, drawn()).is_ok());
    }

    #[test]
    fn n19_each_port_of_the_range_may_be_the_first_one() {
        let port = 20_000;
        for (range, drawn) in [
            (port..=port, u32::MAX),
            (port - 1..=port, 1),
            (port..=port + 1, 2),
            (port - 3..=port, u32::MAX),
            (1..=u16::MAX, u32::from(port) - 1),
        ] {
            let mut all: Vec<u16> = ports_from(&range, drawn).collect();
            assert_eq!(all.first(), Some(&port), "{range:?} {drawn}");
            all.sort_unstable();
            assert_eq!(all, range.collect::<Vec<_>>());
        }
    }

    #[test]
    fn several_threads_never_get_one_port() {
        let begin = listen_in_range(LOCAL, &(20_000..=29_000), drawn()).unwrap();
        let port = begin.1.local_addr().unwrap().port();
        drop(begin);
        let range = port..=port + 15;
        let lease = |seed: u64| {
            let mut rng = fastrand::Rng::with_seed(seed);
            let next = || listen_in_range(LOCAL, &range, rng.u32(..)).ok();
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|seed| scope.spawn(move || lease(seed)))
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        let mut ports: Vec<_> = all.iter().map(|(lease, _)| lease.0).collect();
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
        assert!(count > 0 && count <= 16);
    }
}

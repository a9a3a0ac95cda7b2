//! Idle connections to members, kept by each worker for itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use tokio::net::TcpStream;

/// The idle connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct UpstreamPool {
    idle: RefCell<BTreeMap<MemberId, Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    stream: TcpStream,
    expires: Instant,
}

impl UpstreamPool {
    /// The connection to `member` that was used last and is still alive.
    pub(crate) fn take(&self, member: MemberId) -> Option<TcpStream> {
        let mut idle = self.idle.borrow_mut();
        let connections = idle.get_mut(&member)?;
        // The last one is the one least likely to be closed by the member just now.
        while let Some(connection) = connections.pop() {
            if is_quiet(&connection.stream) {
                return Some(connection.stream);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is outstanding. `most` is the limit per
    /// member; above it the connection is closed.
    pub(crate) fn give(&self, member: MemberId, stream: TcpStream, most: usize, expires: Instant) {
        let mut idle = self.idle.borrow_mut();
        let connections = idle.entry(member).or_default();
        if connections.len() < most {
            connections.push(Idle { stream, expires });
        }
    }

    /// Closes what has been idle for too long or was closed by the member.
    pub(crate) fn sweep(&self, now: Instant) {
        self.idle.borrow_mut().retain(|_, connections| {
            connections
                .retain(|connection| now < connection.expires && is_quiet(&connection.stream));
            !connections.is_empty()
        });
    }
}

/// Whether neither a byte nor the end has arrived: anything is wrong on a connection
/// that is idle. Without an event since the last read this is no system call.
fn is_quiet(stream: &TcpStream) -> bool {
    let nothing = stream.try_read(&mut [0]);
    matches!(nothing, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    async fn pair() -> (TcpStream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        (ours, listener.accept().unwrap().0)
    }

    #[tokio::test]
    async fn the_last_one_given_is_the_first_one_lent() {
        let pool = UpstreamPool::default();
        let member = MemberId(7);
        let ((a, _a), (b, _b), (c, _c)) = (pair().await, pair().await, pair().await);
        let second = b.local_addr().unwrap();
        for stream in [a, b, c] {
            pool.give(member, stream, 2, at(100));
        }
        assert!(pool.take(MemberId(8)).is_none());
        assert_eq!(pool.take(member).unwrap().local_addr().unwrap(), second);
        assert!(pool.take(member).is_some());
        assert!(pool.take(member).is_none());
    }

    #[tokio::test]
    async fn connections_that_are_closed_or_talk_out_of_turn_are_not_lent() {
        let pool = UpstreamPool::default();
        let member = MemberId(1);
        let ((a, closed), (b, mut talks)) = (pair().await, pair().await);
        drop(closed);
        talks
            .write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            .unwrap();
        // The runtime has seen both events once it says so itself.
        a.readable().await.unwrap();
        b.readable().await.unwrap();
        pool.give(member, a, 8, at(100));
        pool.give(member, b, 8, at(100));
        assert!(pool.take(member).is_none());
    }

    #[tokio::test]
    async fn idle_connections_expire() {
        let pool = UpstreamPool::default();
        let (a, _peer) = pair().await;
        pool.give(MemberId(1), a, 8, at(50));
        pool.sweep(at(49));
        assert_eq!(pool.idle.borrow().len(), 1);
        pool.sweep(at(50));
        assert!(pool.idle.borrow().is_empty());
    }
}

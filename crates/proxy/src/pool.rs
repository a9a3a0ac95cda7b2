//! Idle connections to members, kept by each worker for itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;

use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;

use crate::connection::PeerConnection;
use crate::files::ConnectionFile;

/// A connection of its own to a member.
#[derive(Debug)]
pub(crate) struct MemberConnection {
    connection: PeerConnection,
    file: ConnectionFile,
    /// The number of the [`Client`](evenkeel_tls::client::Client) that has done the handshake; 0 is
    /// none.
    tls: u64,
}

impl MemberConnection {
    pub(crate) fn new(connection: PeerConnection, file: ConnectionFile, tls: u64) -> Self {
        MemberConnection {
            connection,
            file,
            tls,
        }
    }

    /// The number of what has done its handshake; 0 is nobody.
    pub(crate) fn tls_id(&self) -> u64 {
        self.tls
    }

    pub(crate) fn into_parts(self) -> (PeerConnection, ConnectionFile) {
        (self.connection, self.file)
    }
}

impl Deref for MemberConnection {
    type Target = PeerConnection;

    fn deref(&self) -> &PeerConnection {
        &self.connection
    }
}

/// The idle connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct UpstreamPool {
    idle: RefCell<BTreeMap<MemberId, Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    connection: MemberConnection,
    expires: Instant,
}

impl UpstreamPool {
    /// The connection to `member` that was used last and is still alive. `tls` is who would do the
    /// handshake of a new one: nobody gets a connection that somebody else has secured, or nobody.
    ///
    /// What the runtime knows is not enough: a response that nobody asked for may have come
    /// since it last looked, and would be given to the next request. So the socket itself is
    /// asked, right before it is used.
    pub(crate) fn take(&self, member: MemberId, tls: u64) -> Option<MemberConnection> {
        let mut idle = self.idle.borrow_mut();
        let connections = idle.get_mut(&member)?;
        // The last one is the one least likely to be closed by the member just now.
        while let Some(Idle { mut connection, .. }) = connections.pop() {
            if connection.tls == tls && connection.connection.is_silent() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is outstanding. `most` is the limit per
    /// member; above it the connection is closed.
    pub(crate) fn give_back(
        &self,
        member: MemberId,
        connection: MemberConnection,
        most: usize,
        expires: Instant,
    ) {
        let mut idle = self.idle.borrow_mut();
        let connections = idle.entry(member).or_default();
        if connections.len() < most {
            connections.push(Idle {
                connection,
                expires,
            });
        }
    }

    /// Closes the connection that would be closed first anyway, so that another one can be
    /// opened; answers whether there was one.
    pub(crate) fn evict_oldest(&self) -> bool {
        let mut idle = self.idle.borrow_mut();
        // Those that were given back first are in front.
        let first = |connections: &Vec<Idle>| connections.first().map(|idle| idle.expires);
        let oldest = idle
            .iter()
            .filter_map(|(member, connections)| Some((first(connections)?, *member)))
            .min();
        let Some((_, member)) = oldest else {
            return false;
        };
        if let Some(connections) = idle.get_mut(&member) {
            connections.remove(0);
        }
        true
    }

    /// Closes what has been idle for too long or was closed by the member.
    pub(crate) fn close_expired(&self, now: Instant) {
        self.idle.borrow_mut().retain(|_, connections| {
            connections
                .retain_mut(|idle| now < idle.expires && idle.connection.connection.is_quiet());
            !connections.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::SocketAddr;

    use evenkeel_limits::files::Shares;
    use tokio::net::TcpStream;

    use super::*;
    use crate::files::Files;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    async fn pair() -> (MemberConnection, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let files = Files::new(Shares::of_process());
        let file = files.take_connection().unwrap();
        let ours = MemberConnection::new(PeerConnection::from(ours), file, 0);
        (ours, listener.accept().unwrap().0)
    }

    /// Address of this end.
    fn address(connection: &MemberConnection) -> Option<SocketAddr> {
        connection.socket()?.local_addr().ok()?.as_socket()
    }

    #[tokio::test]
    async fn s5_what_is_idle_for_longest_makes_way_first() {
        let pool = UpstreamPool::default();
        assert!(!pool.evict_oldest());
        let ((a, _a), (b, _b), (c, _c)) = (pair().await, pair().await, pair().await);
        let last = address(&c);
        pool.give_back(MemberId(1), b, 8, at(20));
        pool.give_back(MemberId(1), c, 8, at(30));
        pool.give_back(MemberId(2), a, 8, at(10));
        assert!(pool.evict_oldest() && pool.take(MemberId(2), 0).is_none());
        assert!(pool.evict_oldest());
        assert_eq!(address(&pool.take(MemberId(1), 0).unwrap()), last);
        assert!(!pool.evict_oldest());
    }

    #[tokio::test]
    async fn the_last_one_given_is_the_first_one_lent() {
        let pool = UpstreamPool::default();
        let member = MemberId(7);
        let ((a, _a), (b, _b), (c, _c)) = (pair().await, pair().await, pair().await);
        let second = address(&b);
        for stream in [a, b, c] {
            pool.give_back(member, stream, 2, at(100));
        }
        assert!(pool.take(MemberId(8), 0).is_none());
        assert_eq!(address(&pool.take(member, 0).unwrap()), second);
        assert!(pool.take(member, 0).is_some());
        assert!(pool.take(member, 0).is_none());
    }

    /// Bytes that are in the socket already when the next request is about to be sent were not sent
    /// for that request, whether the runtime has heard of them or not.
    #[tokio::test]
    async fn s9_the_socket_itself_is_asked_before_a_connection_is_lent() {
        let pool = UpstreamPool::default();
        let member = MemberId(1);
        let (mut stream, mut peer) = pair().await;
        // The runtime knows that there is nothing to read, as after an answer.
        assert!(stream.connection.is_quiet());
        pool.give_back(member, stream, 8, at(100));
        peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        assert!(pool.take(member, 0).is_none());
        let (mut stream, closed) = pair().await;
        assert!(stream.connection.is_quiet());
        pool.give_back(member, stream, 8, at(100));
        drop(closed);
        assert!(pool.take(member, 0).is_none());
    }

    #[tokio::test]
    async fn connections_that_are_closed_or_talk_out_of_turn_are_not_lent() {
        let pool = UpstreamPool::default();
        let member = MemberId(1);
        let ((mut a, closed), (mut b, mut talks)) = (pair().await, pair().await);
        drop(closed);
        talks
            .write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            .unwrap();
        // The runtime has seen both events once it says so itself.
        a.connection
            .watch_socket()
            .unwrap()
            .readable()
            .await
            .unwrap();
        b.connection
            .watch_socket()
            .unwrap()
            .readable()
            .await
            .unwrap();
        pool.give_back(member, a, 8, at(100));
        pool.give_back(member, b, 8, at(100));
        assert!(pool.take(member, 0).is_none());
    }

    #[tokio::test]
    async fn a_connection_is_lent_to_whom_it_was_secured_for() {
        let pool = UpstreamPool::default();
        let member = MemberId(1);
        for (secured, wanted, lent) in [(0, 0, true), (0, 1, false), (1, 0, false), (1, 2, false)] {
            let (mut stream, _peer) = pair().await;
            stream.tls = secured;
            pool.give_back(member, stream, 8, at(100));
            assert_eq!(pool.take(member, wanted).is_some(), lent);
            assert!(pool.take(member, secured).is_none(), "it is closed");
        }
    }

    #[tokio::test]
    async fn idle_connections_expire() {
        let pool = UpstreamPool::default();
        let (a, _peer) = pair().await;
        pool.give_back(MemberId(1), a, 8, at(50));
        pool.close_expired(at(49));
        assert_eq!(pool.idle.borrow().len(), 1);
        pool.close_expired(at(50));
        assert!(pool.idle.borrow().is_empty());
    }
}

//! Queues of copies of connections, between forwarding in the kernel and the other balancers.

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Most bodies that wait in each direction.
const MAX_WAITING: usize = 16_384;

/// Longest body, in bytes.
pub const MAX_BODY: usize = 1200;

/// Body for a balancer, or with `None` for all.
pub type OutgoingCopies = (Option<SocketAddr>, Vec<u8>);

/// Body of another balancer.
pub type ReceivedCopies = (SocketAddr, Vec<u8>);

/// Queues of copies of connections. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct CopyQueues {
    inner: Arc<Mutex<Queues>>,
}

#[derive(Debug, Default)]
struct Queues {
    outgoing: VecDeque<OutgoingCopies>,
    received: VecDeque<ReceivedCopies>,
    /// True while somebody takes what others send.
    is_read: bool,
    lost: u64,
}

impl CopyQueues {
    /// Starts or ends taking copies: while nobody takes them, both queues are empty.
    pub fn set_read(&self, is_read: bool) {
        let mut queues = self.inner.lock();
        if queues.is_read != is_read {
            *queues = Queues {
                is_read,
                lost: queues.lost,
                ..Queues::default()
            };
        }
    }

    /// Adds a body for a balancer, or with `None` for all. A full queue drops the body.
    pub fn push_outgoing(&self, to: Option<SocketAddr>, body: Vec<u8>) {
        let mut queues = self.inner.lock();
        if queues.outgoing.len() < MAX_WAITING {
            queues.outgoing.push_back((to, body));
        } else {
            queues.lost += 1;
        }
    }

    /// Takes all bodies for others.
    pub fn take_outgoing(&self) -> VecDeque<OutgoingCopies> {
        mem::take(&mut self.inner.lock().outgoing)
    }

    /// Adds bodies of others; `lost` is the number of bodies that were lost before.
    pub fn push_received(&self, bodies: Vec<ReceivedCopies>, lost: u64) {
        let mut queues = self.inner.lock();
        queues.lost += lost;
        if queues.is_read {
            for body in bodies {
                if queues.received.len() < MAX_WAITING {
                    queues.received.push_back(body);
                } else {
                    queues.lost += 1;
                }
            }
        }
    }

    /// Takes at most `most` bodies of others.
    pub fn take_received(&self, most: usize) -> Vec<ReceivedCopies> {
        let mut queues = self.inner.lock();
        let count = queues.received.len().min(most);
        queues.received.drain(..count).collect()
    }

    /// Returns the number of bodies for which there was no room.
    pub fn count_lost(&self) -> u64 {
        self.inner.lock().lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_bounded_and_empty_while_nobody_reads() {
        let queues = CopyQueues::default();
        let from: SocketAddr = "10.0.0.1:9910".parse().unwrap();
        queues.push_received(vec![(from, vec![1])], 2);
        assert_eq!(queues.take_received(10), []);
        assert_eq!(queues.count_lost(), 2);
        queues.set_read(true);
        let bodies = (0..MAX_WAITING + 3).map(|_| (from, vec![1]));
        queues.push_received(bodies.collect(), 0);
        assert_eq!(queues.count_lost(), 5);
        assert_eq!(queues.take_received(10).len(), 10);
        (0..MAX_WAITING + 1).for_each(|_| queues.push_outgoing(None, vec![2]));
        assert_eq!(queues.count_lost(), 6);
        assert_eq!(queues.take_outgoing().len(), MAX_WAITING);
        queues.set_read(false);
        queues.set_read(true);
        assert_eq!(queues.take_received(10), []);
    }
}

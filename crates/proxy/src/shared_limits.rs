//! Limits of rules whose connections the workers count together with forwarding in the kernel.
//!
//! A connection of a worker is counted in the kernel while it is open, so that both sides keep the limit. Without forwarding
//! in the kernel the workers count alone.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::access::Limit;

/// Listening address of a protocol, by which the kernel finds the limits of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenPlace {
    /// Address of the listener.
    pub address: SocketAddr,
    /// True for datagrams.
    pub is_udp: bool,
}

/// Counts of connections in the kernel.
pub trait KernelCounts: fmt::Debug + Send + Sync {
    /// Returns the number of open connections of a rule that the kernel forwards, and whose clients have shown that their
    /// addresses are not forged.
    fn count_confirmed(&self, place: ListenPlace) -> u32;

    /// Counts a connection of a worker until the result is dropped: for a client, or without one for all clients of the rule
    /// together.
    ///
    /// # Errors
    ///
    /// The limit that the client has reached.
    fn take_place(&self, place: ListenPlace, client: Option<IpAddr>) -> Result<KernelPlace, Limit>;
}

/// Connection of a worker that the kernel counts, until dropped.
#[derive(Debug)]
pub struct KernelPlace {
    /// Ends the count when dropped.
    pub count: Box<dyn fmt::Debug + Send>,
    /// True if the connection counts for its client, too.
    pub counts_client: bool,
}

#[derive(Debug, Default)]
struct Inner {
    kernel: Mutex<Option<Arc<dyn KernelCounts>>>,
    room: Notify,
}

/// Way to the counts in the kernel. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct SharedLimits {
    inner: Arc<Inner>,
}

impl SharedLimits {
    /// Lets the workers count in the kernel until the result is dropped.
    pub fn follow(&self, counts: Arc<dyn KernelCounts>) -> FollowedLimits {
        self.set_kernel(Some(counts));
        FollowedLimits {
            limits: self.clone(),
        }
    }

    fn set_kernel(&self, counts: Option<Arc<dyn KernelCounts>>) {
        let kernel = self.inner.kernel.lock();
        *kernel.unwrap_or_else(PoisonError::into_inner) = counts;
        self.inner.room.notify_waiters();
    }

    fn find_kernel(&self) -> Option<Arc<dyn KernelCounts>> {
        let kernel = self.inner.kernel.lock();
        kernel.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of connections as [`KernelCounts::count_confirmed`] does; 0 without forwarding in the kernel.
    pub(crate) fn count_confirmed(&self, place: ListenPlace) -> u32 {
        self.find_kernel()
            .map_or(0, |kernel| kernel.count_confirmed(place))
    }

    /// Counts a connection as [`KernelCounts::take_place`] does; `None` without forwarding in the kernel.
    pub(crate) fn take_place(
        &self,
        place: ListenPlace,
        client: Option<IpAddr>,
    ) -> Result<Option<KernelPlace>, Limit> {
        let kernel = self.find_kernel();
        kernel
            .map(|kernel| kernel.take_place(place, client))
            .transpose()
    }

    /// Waits until connections in the kernel have ended.
    pub(crate) fn wait_for_ends(&self) -> Notified<'_> {
        self.inner.room.notified()
    }
}

/// Counts of the kernel, in which the workers count until this is dropped.
#[derive(Debug)]
pub struct FollowedLimits {
    limits: SharedLimits,
}

impl FollowedLimits {
    /// Tells workers that wait for room that connections in the kernel may have ended.
    pub fn tell_ends(&self) {
        self.limits.inner.room.notify_waiters();
    }
}

impl Drop for FollowedLimits {
    fn drop(&mut self) {
        self.limits.set_kernel(None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Kernel with a limit of one connection.
    #[derive(Clone, Debug, Default)]
    struct OneConnection(Arc<AtomicU32>);

    #[derive(Debug)]
    struct Held(Arc<AtomicU32>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl KernelCounts for OneConnection {
        fn count_confirmed(&self, _place: ListenPlace) -> u32 {
            7
        }

        fn take_place(
            &self,
            _place: ListenPlace,
            client: Option<IpAddr>,
        ) -> Result<KernelPlace, Limit> {
            if self.0.fetch_add(1, Ordering::Relaxed) > 0 {
                self.0.fetch_sub(1, Ordering::Relaxed);
                return Err(Limit::Connections);
            }
            Ok(KernelPlace {
                count: Box::new(Held(Arc::clone(&self.0))),
                counts_client: client.is_some(),
            })
        }
    }

    #[test]
    fn s41_workers_count_in_the_kernel_while_there_is_one() {
        let limits = SharedLimits::default();
        let place = ListenPlace {
            address: "192.0.2.1:80".parse().unwrap(),
            is_udp: false,
        };
        let client = Some("192.0.2.7".parse().unwrap());
        assert!(limits.take_place(place, client).unwrap().is_none());
        assert_eq!(limits.count_confirmed(place), 0);
        let followed = limits.follow(Arc::new(OneConnection::default()));
        assert_eq!(limits.count_confirmed(place), 7);
        let held = limits.take_place(place, client).unwrap().unwrap();
        assert!(held.counts_client);
        let refused = limits.clone().take_place(place, client).unwrap_err();
        assert_eq!(refused, Limit::Connections);
        drop(held);
        let waiting = limits.take_place(place, None).unwrap().unwrap();
        assert!(!waiting.counts_client);
        drop(followed);
        assert!(limits.take_place(place, client).unwrap().is_none());
    }
}

//! Looks names up.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::net::IpAddr;
#[cfg(test)]
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

mod system;

use crate::config::Dns;
use crate::lists::service::{MAX_SERVICES, Service};
use system::System;

/// Looks up the addresses of a host name, for tests.
#[cfg(test)]
pub(crate) type Lookup = Arc<
    dyn Fn(String) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> + Send + Sync,
>;

/// Resolver that is asked.
#[derive(Clone)]
enum Source {
    System(Arc<System>),
    #[cfg(test)]
    Given(Lookup),
}

/// Time after which a lookup has failed.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that all lookups before a start or reload may take. Addresses that are not there by then come later.
const START_TIMEOUT: Duration = Duration::from_secs(3);

/// Time between two lookups of a name that never had an address, if that is shorter
/// than its interval.
pub(crate) const RETRY_UNKNOWN: Duration = Duration::from_secs(1);

/// Time between two lookups if the answer does not say how long it counts, or there was none.
pub(crate) const FAILED: Duration = Duration::from_secs(10);

/// Lookups at the same time. Each one may hold a thread for as long as the system's
/// resolver likes.
const CONCURRENT_LOOKUPS: usize = 16;

/// Most addresses of one name that become members.
const MAX_ADDRESSES: usize = 256;

/// Looks names up, not too many at a time.
pub(crate) struct Resolver {
    source: Source,
    permits: Arc<Semaphore>,
    /// Names of which more was found than becomes members, and how much was left out.
    left_out: Mutex<HashMap<String, usize>>,
}

impl Resolver {
    /// Returns a resolver that asks the system's resolver, or those of the configuration.
    pub(crate) fn system() -> Self {
        Self::new(Source::System(Arc::default()))
    }

    /// Returns a resolver that asks `lookup`.
    #[cfg(test)]
    pub(crate) fn given(lookup: Lookup) -> Self {
        Self::new(Source::Given(lookup))
    }

    fn new(source: Source) -> Self {
        Resolver {
            source,
            permits: Arc::new(Semaphore::new(CONCURRENT_LOOKUPS)),
            left_out: Mutex::default(),
        }
    }

    /// Keeps in mind that `count` addresses or records of `name` are left out. Returns true if that is news.
    fn note_left_out(&self, name: &str, count: usize) -> bool {
        let mut known = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        match count {
            0 => {
                known.remove(name);
                false
            }
            count => known.insert(name.to_owned(), count) != Some(count),
        }
    }

    /// The addresses of the host `name`, in order and without duplicates; at least one.
    ///
    /// A name with addresses of both families stands for hosts that have both, more
    /// often than not. Each must become one member and not two, so only the IPv4
    /// addresses are taken if there are any.
    pub(crate) async fn addresses(&self, dns: &Dns, name: &str) -> Result<Found, LookupError> {
        let (source, dns, host) = (self.source.clone(), dns.clone(), name.to_owned());
        let lookup = async move {
            match source {
                Source::System(system) => system.addresses(&dns, &host).await,
                #[cfg(test)]
                Source::Given(lookup) => Ok((lookup(host).await?, None)),
            }
        };
        let (found, ttl) = self.run(lookup).await?;
        let any_v4 = found.iter().any(IpAddr::is_ipv4);
        let mut ips: Vec<IpAddr> = found
            .into_iter()
            .filter(|ip| ip.is_ipv4() == any_v4)
            .collect();
        ips.sort_unstable();
        ips.dedup();
        let left_out = ips.len().saturating_sub(MAX_ADDRESSES);
        if self.note_left_out(name, left_out) {
            warn!(
                host = name,
                "a member's name has {} addresses, of which only the lowest {MAX_ADDRESSES} become members: list the \
                 others in a file of `members_files`",
                ips.len()
            );
        }
        ips.truncate(MAX_ADDRESSES);
        match ips.is_empty() {
            true => Err(LookupError::Empty),
            false => Ok(Found { ips, ttl }),
        }
    }

    /// The records of the service `name`, in order, at least one, and how long they count.
    pub(crate) async fn services(
        &self,
        dns: &Dns,
        name: &str,
    ) -> Result<(Vec<Service>, Duration), LookupError> {
        let (source, dns, asked) = (self.source.clone(), dns.clone(), name.to_owned());
        let lookup = async move {
            match source {
                Source::System(system) => system.services(&dns, &asked).await,
                #[cfg(test)]
                Source::Given(_) => Err(io::Error::other("there are no services")),
            }
        };
        let (records, ttl) = self.run(lookup).await?;
        if self.note_left_out(name, records.len().saturating_sub(MAX_SERVICES)) {
            warn!(
                name,
                "the service has {} records, of which only the first {MAX_SERVICES} become members",
                records.len()
            );
        }
        Ok((records, ttl))
    }

    async fn run<T: Send + 'static>(
        &self,
        lookup: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> Result<T, LookupError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        // A lookup cannot be stopped. It keeps its permit until it is really over.
        let lookup = tokio::spawn(async move {
            let _permit = permit;
            lookup.await
        });
        match timeout(LOOKUP_TIMEOUT, lookup).await {
            Ok(Ok(found)) => Ok(found?),
            Ok(Err(panicked)) => Err(io::Error::other(panicked).into()),
            Err(_) => Err(LookupError::Timeout),
        }
    }

    /// The records of those services, each as far as it is known in time.
    pub(crate) async fn all_services(
        self: &Arc<Self>,
        dns: &Dns,
        names: HashSet<String>,
    ) -> HashMap<String, Result<Vec<Service>, String>> {
        let late = || Err(LookupError::Timeout.to_string());
        let mut all: HashMap<_, _> = names.iter().map(|name| (name.clone(), late())).collect();
        let mut lookups = JoinSet::new();
        for name in names {
            let (resolver, dns) = (Arc::clone(self), dns.clone());
            lookups.spawn(async move {
                let found = resolver.services(&dns, &name).await;
                (name, found)
            });
        }
        let _ = timeout(START_TIMEOUT, async {
            while let Some(joined) = lookups.join_next().await {
                if let Ok((name, found)) = joined {
                    let found = found.map(|(records, _)| records);
                    all.insert(name, found.map_err(|error| error.to_string()));
                }
            }
        })
        .await;
        all
    }

    /// The addresses of those `hosts` that resolve in time.
    pub(crate) async fn lookup_all(
        self: &Arc<Self>,
        dns: &Dns,
        hosts: HashSet<String>,
    ) -> HashMap<String, Vec<IpAddr>> {
        let mut lookups = JoinSet::new();
        for host in hosts {
            let (resolver, dns) = (Arc::clone(self), dns.clone());
            lookups.spawn(async move {
                let found = resolver.addresses(&dns, &host).await;
                (host, found)
            });
        }
        let mut all = HashMap::new();
        let _ = timeout(START_TIMEOUT, async {
            while let Some(joined) = lookups.join_next().await {
                match joined {
                    Ok((host, Ok(found))) => {
                        all.insert(host, found.ips);
                    }
                    Ok((host, Err(error))) => {
                        warn!(host, "a member's name does not resolve: {error}; the member gets no traffic until the name resolves");
                    }
                    Err(_) => {}
                }
            }
        })
        .await;
        all
    }
}

/// The addresses of a name.
pub(crate) struct Found {
    pub ips: Vec<IpAddr>,
    /// Time for which the addresses count, if that is known.
    pub ttl: Option<Duration>,
}

/// Reason why a name has no addresses.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("no answer within {LOOKUP_TIMEOUT:?}")]
    Timeout,
    #[error("the name has no addresses")]
    Empty,
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn f11_addresses_that_become_no_members_are_told_once() {
        let given = |_: String| -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
            let all = (0..300u16).map(|n| IpAddr::from([10, 0, (n >> 8) as u8, n as u8]));
            let all: Vec<_> = all.collect();
            Box::pin(std::future::ready(Ok(all)))
        };
        let resolver = Resolver::given(Arc::new(given));
        let found = resolver.addresses(&Dns::default(), "a.test").await;
        assert_eq!(found.map(|found| found.ips.len()).ok(), Some(MAX_ADDRESSES));
        let left_out = 300 - MAX_ADDRESSES;
        assert!(!resolver.note_left_out("a.test", left_out), "it was told");
        assert!(resolver.note_left_out("a.test", left_out + 1));
        assert!(resolver.note_left_out("b.test", left_out));
        assert!(!resolver.note_left_out("a.test", 0));
        assert!(
            resolver.note_left_out("a.test", left_out),
            "and again after all fitted"
        );
    }
}

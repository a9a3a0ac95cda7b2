//! Looks names up.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

/// Looks up the addresses of a host name.
pub(crate) type Lookup = Arc<
    dyn Fn(String) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> + Send + Sync,
>;

/// What the system's resolver says (`/etc/hosts` and whatever else it is set to).
pub(crate) fn system() -> Lookup {
    Arc::new(|host| {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    })
}

/// Time after which a lookup has failed.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that all lookups before a start or reload may take. What is not there by then
/// comes later.
const START_TIMEOUT: Duration = Duration::from_secs(3);

/// Time between two lookups of a name that never had an address, if that is shorter
/// than its interval.
pub(crate) const RETRY_UNKNOWN: Duration = Duration::from_secs(1);

/// Lookups at the same time. Each one may hold a thread for as long as the system's
/// resolver likes.
const CONCURRENT_LOOKUPS: usize = 16;

/// Most addresses of one name that become members.
const MAX_ADDRESSES: usize = 256;

/// Looks names up, not too many at a time.
pub(crate) struct Resolver {
    lookup: Lookup,
    permits: Arc<Semaphore>,
}

impl Resolver {
    pub(crate) fn new(lookup: Lookup) -> Self {
        Resolver {
            lookup,
            permits: Arc::new(Semaphore::new(CONCURRENT_LOOKUPS)),
        }
    }

    /// The addresses of `host`, in order and without duplicates; at least one.
    ///
    /// A name with addresses of both families stands for hosts that have both, more
    /// often than not. Each must become one member and not two, so only the IPv4
    /// addresses are taken if there are any.
    pub(crate) async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, LookupError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let lookup = (self.lookup)(host.to_owned());
        // A lookup cannot be stopped. It keeps its permit until it is really over.
        let lookup = tokio::spawn(async move {
            let _permit = permit;
            lookup.await
        });
        let found = match timeout(LOOKUP_TIMEOUT, lookup).await {
            Ok(Ok(found)) => found?,
            Ok(Err(panicked)) => return Err(io::Error::other(panicked).into()),
            Err(_) => return Err(LookupError::Timeout),
        };
        let any_v4 = found.iter().any(IpAddr::is_ipv4);
        let mut ips: Vec<IpAddr> = found
            .into_iter()
            .filter(|ip| ip.is_ipv4() == any_v4)
            .collect();
        ips.sort_unstable();
        ips.dedup();
        ips.truncate(MAX_ADDRESSES);
        match ips.is_empty() {
            true => Err(LookupError::Empty),
            false => Ok(ips),
        }
    }

    /// The addresses of those `hosts` that resolve in time.
    pub(crate) async fn lookup_all(
        self: &Arc<Self>,
        hosts: HashSet<String>,
    ) -> HashMap<String, Vec<IpAddr>> {
        let mut lookups = JoinSet::new();
        for host in hosts {
            let resolver = Arc::clone(self);
            lookups.spawn(async move {
                let found = resolver.addresses(&host).await;
                (host, found)
            });
        }
        let mut all = HashMap::new();
        let _ = timeout(START_TIMEOUT, async {
            while let Some(joined) = lookups.join_next().await {
                match joined {
                    Ok((host, Ok(addresses))) => {
                        all.insert(host, addresses);
                    }
                    Ok((host, Err(error))) => {
                        warn!(host, "a member's name does not resolve yet: {error}");
                    }
                    Err(_) => {}
                }
            }
        })
        .await;
        all
    }
}

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("no answer within {LOOKUP_TIMEOUT:?}")]
    Timeout,
    #[error("it has no addresses")]
    Empty,
    #[error(transparent)]
    Io(#[from] io::Error),
}

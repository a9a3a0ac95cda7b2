//! The resolver: `/etc/hosts`, the DNS servers that the configuration or `/etc/resolv.conf` names,
//! and the system's own lookup for names that only it knows.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, RecordType};

use crate::config::Dns;
use crate::lists::service::Service;

/// How long `/etc/hosts` and `/etc/resolv.conf` count before they are read again.
const READ_AGAIN: Duration = Duration::from_secs(10);

/// An answer of `/etc/hosts` seems to count so long: it has no TTL.
const STATIC: Duration = Duration::from_secs(86_400);

/// See the module.
#[derive(Default)]
pub(super) struct System {
    resolver: Mutex<Option<Known>>,
}

struct Known {
    dns: Dns,
    since: Instant,
    resolver: Arc<TokioResolver>,
}

impl System {
    /// The resolver for these settings.
    fn resolver(&self, dns: &Dns) -> io::Result<Arc<TokioResolver>> {
        let mut known = self.resolver.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known
            && known.dns == *dns
            && known.since.elapsed() < READ_AGAIN
        {
            return Ok(Arc::clone(&known.resolver));
        }
        let resolver = Arc::new(build(dns)?);
        *known = Some(Known {
            dns: dns.clone(),
            since: Instant::now(),
            resolver: Arc::clone(&resolver),
        });
        Ok(resolver)
    }

    /// The addresses of a host, and how long they count if that is known.
    pub(super) async fn addresses(
        &self,
        dns: &Dns,
        host: &str,
    ) -> io::Result<(Vec<IpAddr>, Option<Duration>)> {
        let asked = match self.resolver(dns) {
            Ok(resolver) => resolver.lookup_ip(host).await.map_err(io::Error::other),
            Err(error) => Err(error),
        };
        match asked {
            Ok(found) => {
                let ttl = ttl(found.as_lookup()).filter(|ttl| *ttl < STATIC);
                Ok((found.iter().collect(), ttl))
            }
            // The system may know names from elsewhere.
            Err(_) if dns.resolvers.is_empty() => {
                let found = tokio::net::lookup_host((host, 0)).await?;
                Ok((found.map(|address| address.ip()).collect(), None))
            }
            Err(error) => Err(error),
        }
    }

    /// The SRV records of a service, and how long they count.
    pub(super) async fn services(
        &self,
        dns: &Dns,
        name: &str,
    ) -> io::Result<(Vec<Service>, Duration)> {
        let resolver = self.resolver(dns)?;
        let found = resolver.lookup(format!("{name}."), RecordType::SRV).await;
        let found = found.map_err(io::Error::other)?;
        let records = found
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                RData::SRV(srv) => {
                    let target = srv.target.to_ascii();
                    Service::new(srv.priority, srv.weight, srv.port, &target)
                }
                _ => None,
            });
        let mut records: Vec<Service> = records.collect();
        records.sort_unstable();
        if records.is_empty() {
            return Err(io::Error::other("its SRV records name no host"));
        }
        Ok((records, ttl(&found).unwrap_or_default()))
    }
}

/// How long all of an answer counts.
fn ttl(found: &Lookup) -> Option<Duration> {
    let ttls = found.answers().iter().map(|record| record.ttl);
    ttls.min()
        .map(|seconds| Duration::from_secs(seconds.into()))
}

fn build(dns: &Dns) -> io::Result<TokioResolver> {
    let mut builder = match dns.resolvers.is_empty() {
        true => TokioResolver::builder_tokio().map_err(io::Error::other)?,
        false => {
            let servers = dns.resolvers.iter().map(|address| {
                let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
                for connection in &mut connections {
                    connection.port = address.port();
                }
                NameServerConfig::new(address.ip(), true, connections)
            });
            let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
            let mut builder =
                TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
            builder.options_mut().timeout = Duration::from_secs(2);
            builder
        }
    };
    let options = builder.options_mut();
    // Whoever asks knows how long answers count.
    options.cache_size = 0;
    options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
    options.use_hosts_file = ResolveHosts::Always;
    builder.build().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    use super::*;

    /// A DNS server that knows no name.
    fn knows_nothing() -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut message = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut message) {
                let Some(answer) = message.get_mut(..length).filter(|query| query.len() > 12)
                else {
                    continue;
                };
                // An answer; there is no such name (RFC 1035, section 4.1.1).
                answer[2] |= 0x80;
                answer[3] = 0x83;
                let _ = socket.send_to(answer, from);
            }
        });
        address
    }

    /// What the C library reads as an address is a name for nobody else.
    const ONLY_OF_THE_SYSTEM: &str = "127.1";

    #[tokio::test]
    async fn what_dns_does_not_know_the_system_may() {
        let named = Dns {
            resolvers: vec![knows_nothing()],
            ..Dns::default()
        };
        let system = System::default();
        let asked = system.addresses(&named, ONLY_OF_THE_SYSTEM).await;
        asked.unwrap_err();
        // As if the server stood in /etc/resolv.conf.
        let of_system = System::default();
        *of_system.resolver.lock().unwrap() = Some(Known {
            dns: Dns::default(),
            since: Instant::now(),
            resolver: Arc::new(build(&named).unwrap()),
        });
        let dns = Dns::default();
        let asked = of_system.addresses(&dns, ONLY_OF_THE_SYSTEM).await;
        let (found, ttl) = asked.unwrap();
        assert_eq!(found, [IpAddr::from(Ipv4Addr::LOCALHOST)]);
        assert_eq!(ttl, None, "it does not tell");
    }
}

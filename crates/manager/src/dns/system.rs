//! The resolver: `/etc/hosts`, the DNS servers that the configuration or `/etc/resolv.conf` names,
//! and the system's own lookup for names that only it knows.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::lookup_ip::LookupIp;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::{Hosts, TokioResolver};

use crate::config::Dns;
use crate::lists::service::Service;

/// Time for which `/etc/hosts` and `/etc/resolv.conf` count before they are read again.
const READ_AGAIN: Duration = Duration::from_secs(10);

/// An answer of `/etc/hosts` seems to count so long: it has no TTL.
const STATIC: Duration = Duration::from_secs(86_400);

/// Resolvers for the settings in use, built anew when the settings change and after [`READ_AGAIN`].
#[derive(Default)]
pub(super) struct System {
    known: Mutex<Option<Known>>,
}

struct Known {
    dns: Dns,
    since: Instant,
    resolvers: Arc<Resolvers>,
}

/// A resolver for the addresses of each family: what one family's servers say of a name must not be taken for what
/// the other's would have said.
struct Resolvers {
    v4: TokioResolver,
    v6: TokioResolver,
    /// Contents of `/etc/hosts`.
    hosts: Hosts,
}

impl Resolvers {
    fn new(dns: &Dns) -> io::Result<Self> {
        Ok(Resolvers {
            v4: build(dns, LookupIpStrategy::Ipv4Only)?,
            v6: build(dns, LookupIpStrategy::Ipv6Only)?,
            hosts: Hosts::from_system().unwrap_or_default(),
        })
    }

    /// Looks the addresses of `host` up. IPv6 addresses count only where it is known that there is no IPv4 address; a
    /// failure is no such answer.
    async fn lookup(&self, host: &str) -> Result<LookupIp, (NetError, Option<Family>)> {
        let error = match self.v4.lookup_ip(host).await {
            Ok(found) if found.iter().next().is_some() => return Ok(found),
            Ok(_) => None,
            Err(error) => Some(error),
        };
        let is_none = error.as_ref().is_none_or(NetError::is_no_records_found);
        if is_none || self.is_in_hosts(host) {
            return self.v6.lookup_ip(host).await.map_err(|error| (error, None));
        }
        let error = error.unwrap_or(NetError::Message("no answer"));
        Err((error, Some(Family::V4)))
    }

    fn is_in_hosts(&self, host: &str) -> bool {
        let Ok(name) = Name::from_utf8(host) else {
            return false;
        };
        let query = Query::query(name, RecordType::AAAA);
        self.hosts.lookup_static_host(&query).is_some()
    }
}

/// The only addresses that count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
}

impl System {
    /// The resolver for these settings.
    fn resolvers(&self, dns: &Dns) -> io::Result<Arc<Resolvers>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known
            && known.dns == *dns
            && known.since.elapsed() < READ_AGAIN
        {
            return Ok(Arc::clone(&known.resolvers));
        }
        let resolvers = Arc::new(Resolvers::new(dns)?);
        *known = Some(Known {
            dns: dns.clone(),
            since: Instant::now(),
            resolvers: Arc::clone(&resolvers),
        });
        Ok(resolvers)
    }

    /// The addresses of a host, and how long they count if that is known.
    pub(super) async fn addresses(
        &self,
        dns: &Dns,
        host: &str,
    ) -> io::Result<(Vec<IpAddr>, Option<Duration>)> {
        let asked = match self.resolvers(dns) {
            Ok(resolvers) => {
                let found = resolvers.lookup(host).await;
                found.map_err(|(error, only)| (io::Error::other(error), only))
            }
            Err(error) => Err((error, None)),
        };
        match asked {
            Ok(found) => {
                let ttl = ttl(found.as_lookup()).filter(|ttl| *ttl < STATIC);
                Ok((found.iter().collect(), ttl))
            }
            // The system may know names from elsewhere.
            Err((_, only)) if dns.resolvers.is_empty() => {
                let found = tokio::net::lookup_host((host, 0)).await?;
                let found = found.map(|address| address.ip());
                let counts = |ip: &IpAddr| only.is_none() || ip.is_ipv4();
                Ok((found.filter(counts).collect(), None))
            }
            Err((error, _)) => Err(error),
        }
    }

    /// The SRV records of a service, and how long they count.
    pub(super) async fn services(
        &self,
        dns: &Dns,
        name: &str,
    ) -> io::Result<(Vec<Service>, Duration)> {
        let resolvers = self.resolvers(dns)?;
        let found = resolvers
            .v4
            .lookup(format!("{name}."), RecordType::SRV)
            .await;
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
            return Err(io::Error::other("the SRV records name no host"));
        }
        Ok((records, ttl(&found).unwrap_or_default()))
    }
}

/// Returns the time for which all of an answer counts.
fn ttl(found: &Lookup) -> Option<Duration> {
    let ttls = found.answers().iter().map(|record| record.ttl);
    ttls.min()
        .map(|seconds| Duration::from_secs(seconds.into()))
}

fn build(dns: &Dns, families: LookupIpStrategy) -> io::Result<TokioResolver> {
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
    options.ip_strategy = families;
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

    /// A DNS server that answers questions for A with `code`, and those for AAAA with `::1`.
    fn fails_for_a(code: u8) -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut message = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut message) {
                let query = &message[..length];
                // The question ends with its type and class, behind the root's empty label.
                let Some(end) = query.iter().skip(12).position(|byte| *byte == 0) else {
                    continue;
                };
                let end = 12 + end + 5;
                let mut answer = query[..end].to_vec();
                answer[2] |= 0x80;
                answer[3] = 0x80;
                answer[6..12].fill(0);
                if query[end - 3] == 28 {
                    answer[7] = 1;
                    answer.extend([0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 60, 0, 16]);
                    answer.extend([0; 15]);
                    answer.push(1);
                } else {
                    answer[3] |= code;
                }
                let _ = socket.send_to(&answer, from);
            }
        });
        address
    }

    #[tokio::test]
    async fn f4_a_failing_query_for_ipv4_is_no_answer_in_ipv6() {
        // SERVFAIL, NOTIMP, REFUSED; and at last no data, and no such name.
        for (code, expected) in [(2, false), (4, false), (5, false), (0, true), (3, true)] {
            let dns = Dns {
                resolvers: vec![fails_for_a(code)],
                ..Dns::default()
            };
            let found = System::default().addresses(&dns, "six.test").await;
            let found = found.map(|(found, _)| found);
            match expected {
                true => assert_eq!(found.unwrap(), ["::1".parse::<IpAddr>().unwrap()], "{code}"),
                false => drop(found.expect_err("a failure is taken for an answer")),
            }
        }
    }

    /// Text that the C library alone reads as an address; for other resolvers it is a name.
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
        *of_system.known.lock().unwrap() = Some(Known {
            dns: Dns::default(),
            since: Instant::now(),
            resolvers: Arc::new(Resolvers::new(&named).unwrap()),
        });
        let dns = Dns::default();
        let asked = of_system.addresses(&dns, ONLY_OF_THE_SYSTEM).await;
        let (found, ttl) = asked.unwrap();
        assert_eq!(found, [IpAddr::from(Ipv4Addr::LOCALHOST)]);
        assert_eq!(ttl, None, "it does not tell");
    }
}

//! What each client of a rule may have: requests, connections, and new connections in a time.
//!
//! The workers share the tables of a rule. A decision is a hash with a secret of this process, so
//! that nobody can choose keys which share a place, and a look into a [`RateTable`].

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::rate::{CountTable, Entered, Rate, RateTable};
use evenkeel_core::key::Key;
use evenkeel_core::time::Instant;
use evenkeel_manager::config::{LimitKey, Limits};

use crate::access::Limit;
use crate::message::Request;

/// The limits of a rule, with what its clients have used of them.
#[derive(Debug)]
pub(crate) struct Quotas {
    limits: Limits,
    hasher: RandomState,
    requests: Option<(Rate, Arc<RateTable>)>,
    arrivals: Option<(Rate, Arc<RateTable>)>,
    connections: Option<(u32, Arc<CountTable>)>,
}

/// A connection that counts as one of its client until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    table: Arc<CountTable>,
    place: u32,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.table.leave(self.place);
    }
}

/// How a table is filled.
pub(crate) struct Fill {
    pub(crate) limit: Limit,
    /// Clients that are remembered now.
    pub(crate) clients: usize,
    /// How often one was forgotten, or not remembered, for want of a place.
    pub(crate) lifted: u64,
}

impl Quotas {
    /// What `limits` need; `None` if they say nothing of single clients. What clients have used is
    /// kept from `old` where the limit is the same.
    pub(crate) fn next(limits: &Limits, old: Option<&Arc<Quotas>>) -> Option<Arc<Quotas>> {
        if let Some(old) = old
            && old.limits == *limits
        {
            return Some(Arc::clone(old));
        }
        let counted = |limits: &Limits| (limits.ipv4_prefix, limits.ipv6_prefix, limits.table_size);
        let kept = old.filter(|old| counted(&old.limits) == counted(limits));
        let of_requests = |limits: &Limits| (limits.requests, limits.burst(), limits.key.clone());
        let of_arrivals =
            |limits: &Limits| (limits.new_connections, limits.new_connections_burst());
        let places = limits.table_size;
        let requests = limits.requests.map(|rate| {
            let same = kept.filter(|old| of_requests(&old.limits) == of_requests(limits));
            let table = same.and_then(|old| Some(Arc::clone(&old.requests.as_ref()?.1)));
            let table = table.unwrap_or_else(|| Arc::new(RateTable::new(places)));
            (Rate::new(rate.count, rate.per, limits.burst()), table)
        });
        let arrivals = limits.new_connections.map(|rate| {
            let same = kept.filter(|old| of_arrivals(&old.limits) == of_arrivals(limits));
            let table = same.and_then(|old| Some(Arc::clone(&old.arrivals.as_ref()?.1)));
            let table = table.unwrap_or_else(|| Arc::new(RateTable::new(places)));
            let burst = limits.new_connections_burst();
            (Rate::new(rate.count, rate.per, burst), table)
        });
        let connections = limits.connections.map(|most| {
            let table = kept.and_then(|old| Some(Arc::clone(&old.connections.as_ref()?.1)));
            (
                most,
                table.unwrap_or_else(|| Arc::new(CountTable::new(places))),
            )
        });
        if requests.is_none() && arrivals.is_none() && connections.is_none() {
            return None;
        }
        Some(Arc::new(Quotas {
            limits: limits.clone(),
            hasher: kept.map_or_else(RandomState::new, |old| old.hasher.clone()),
            requests,
            arrivals,
            connections,
        }))
    }

    /// Takes a request from what its client has. If that is used up, it is the time in seconds
    /// after which the client has one again.
    #[inline]
    pub(crate) fn request(
        &self,
        client: impl Into<Option<IpAddr>>,
        request: &Request<'_>,
        now: Instant,
    ) -> Option<NonZeroU32> {
        let (rate, table) = self.requests.as_ref()?;
        let mut client = client.into();
        let key = match &self.limits.key {
            LimitKey::Part(Key::Client) => None,
            LimitKey::Part(key) => request
                .part(key)
                .map(|part| self.hasher.hash_one((1, part))),
            LimitKey::ForwardedFor => {
                client = forwarded_for(request).or(client);
                None
            }
        };
        if client.is_some_and(|client| self.is_excepted(client)) {
            return None;
        }
        let key = key.or_else(|| Some(self.hash(client?)))?;
        table.take(key, now, rate).err().map(in_seconds)
    }

    /// Takes a connection from what its client has.
    ///
    /// # Errors
    ///
    /// What limit is reached.
    pub(crate) fn connection(
        &self,
        client: IpAddr,
        now: impl FnOnce() -> Instant,
    ) -> Result<Option<Box<Counted>>, Limit> {
        if self.is_excepted(client) || self.arrivals.is_none() && self.connections.is_none() {
            return Ok(None);
        }
        let key = self.hash(client);
        let counted = match &self.connections {
            None => None,
            Some((most, table)) => match table.enter(key, *most) {
                Entered::Counted(place) => {
                    let table = Arc::clone(table);
                    Some(Box::new(Counted { table, place }))
                }
                Entered::Uncounted => None,
                Entered::Full => return Err(Limit::Connections),
            },
        };
        if let Some((rate, table)) = &self.arrivals {
            let taken = table.take(key, now(), rate);
            taken.map_err(|_| Limit::NewConnections)?;
        }
        Ok(counted)
    }

    fn is_excepted(&self, client: IpAddr) -> bool {
        let except = self.limits.except.as_ref();
        except.is_some_and(|networks| networks.contains(client))
    }

    /// Equal for addresses that are one client.
    fn hash(&self, client: IpAddr) -> u64 {
        let (family, network) = match client.to_canonical() {
            IpAddr::V4(ip) => {
                let beyond = 32_u32.saturating_sub(self.limits.ipv4_prefix.into());
                let bits = u64::from(ip.to_bits()) >> beyond;
                (4, u128::from(bits))
            }
            IpAddr::V6(ip) => {
                let beyond = 128_u32.saturating_sub(self.limits.ipv6_prefix.into());
                (6, ip.to_bits().checked_shr(beyond).unwrap_or(0))
            }
        };
        self.hasher.hash_one((0, family, network))
    }

    /// How full its tables are.
    pub(crate) fn fill(&self, now: Instant) -> impl Iterator<Item = Fill> {
        let of_rate = move |limit, table: &RateTable| Fill {
            limit,
            clients: table.used(now),
            lifted: table.evictions(),
        };
        let requests = self.requests.iter();
        let requests = requests.map(move |(_, table)| of_rate(Limit::Requests, table));
        let arrivals = self.arrivals.iter();
        let arrivals = arrivals.map(move |(_, table)| of_rate(Limit::NewConnections, table));
        let connections = self.connections.iter().map(|(_, table)| Fill {
            limit: Limit::Connections,
            clients: table.used(),
            lifted: table.overflows(),
        });
        requests.chain(arrivals).chain(connections)
    }
}

/// The address that the nearest proxy in front has added, with or without a port.
fn forwarded_for(request: &Request<'_>) -> Option<IpAddr> {
    let last = request.values("x-forwarded-for").last()?;
    let last = last.rsplit(|&byte| byte == b',').next()?;
    let last = std::str::from_utf8(last).ok()?.trim();
    let of_socket = || Some(last.parse::<SocketAddr>().ok()?.ip());
    let bare = last
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(last).parse().ok().or_else(of_socket)
}

/// As `Retry-After` says it: whole seconds, and never too early.
fn in_seconds(wait: Duration) -> NonZeroU32 {
    let part = u64::from(wait.subsec_nanos() > 0);
    let seconds = u32::try_from(wait.as_secs().saturating_add(part)).unwrap_or(u32::MAX);
    NonZeroU32::new(seconds).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::config::{Config, parse};

    use super::*;
    use crate::message::tests::with_request;

    fn limits(text: &str) -> Limits {
        let text = format!(
            "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"127.0.0.1:2\"]\n\
             http = {{ trust_forwarded = true }}\n[rule.web.limits]\n{text}"
        );
        let config: Config = parse("evenkeel.toml", &text).unwrap();
        config.rules[0].limits.clone()
    }

    fn quotas(text: &str) -> Arc<Quotas> {
        Quotas::next(&limits(text), None).unwrap()
    }

    const NOW: Instant = Instant::from_nanos(5_000_000_000);

    /// How many of ten requests pass.
    fn passed(quotas: &Quotas, client: &str, head: &str) -> usize {
        let client: IpAddr = client.parse().unwrap();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{head}\r\n");
        let taken = (0..10).filter(|_| {
            with_request(&head, |request| quotas.request(client, request, NOW)).is_none()
        });
        taken.count()
    }

    #[test]
    fn nothing_is_made_where_nothing_is_limited() {
        assert!(Quotas::next(&Limits::default(), None).is_none());
    }

    #[test]
    fn a_client_is_an_address_or_a_network() {
        let quotas = quotas("requests = \"3/m\"\nexcept = [\"10.0.0.0/8\"]");
        assert_eq!(passed(&quotas, "192.0.2.1", ""), 3);
        assert_eq!(passed(&quotas, "::ffff:192.0.2.1", ""), 0, "the same one");
        assert_eq!(passed(&quotas, "192.0.2.2", ""), 3);
        assert_eq!(passed(&quotas, "10.1.2.3", ""), 10);
        assert_eq!(passed(&quotas, "2001:db8::1", ""), 3);
        assert_eq!(passed(&quotas, "2001:db8::ffff:1", ""), 0, "a /64");
        assert_eq!(passed(&quotas, "2001:db8:0:1::1", ""), 3);
        let networks = self::quotas("requests = \"3/m\"\nipv4_prefix = 24\nipv6_prefix = 128");
        assert_eq!(passed(&networks, "192.0.2.1", ""), 3);
        assert_eq!(passed(&networks, "192.0.2.2", ""), 0);
        assert_eq!(passed(&networks, "192.0.3.2", ""), 3);
        assert_eq!(passed(&networks, "2001:db8::1", ""), 3);
        assert_eq!(passed(&networks, "2001:db8::2", ""), 3);
    }

    #[test]
    fn a_client_is_what_its_request_says() {
        let quotas = quotas("requests = \"4/m\"\nkey = \"header:X-Key\"\nburst = 2");
        assert_eq!(passed(&quotas, "192.0.2.1", "X-Key: a\r\n"), 2);
        assert_eq!(passed(&quotas, "192.0.2.2", "x-key: a\r\n"), 0);
        assert_eq!(passed(&quotas, "192.0.2.1", "X-Key: b\r\n"), 2);
        assert_eq!(passed(&quotas, "192.0.2.1", ""), 2, "by its address");
        assert_eq!(passed(&quotas, "192.0.2.1", ""), 0);
        assert_eq!(passed(&quotas, "192.0.2.2", ""), 2);
    }

    #[test]
    fn the_last_address_is_that_of_the_proxys_client() {
        let quotas = quotas(
            "requests = \"2/m\"\nkey = \"forwarded_for\"\nexcept = [\"192.0.2.77\", \"127.0.0.1\"]",
        );
        let passed = |fields: &str| passed(&quotas, "127.0.0.1", fields);
        assert_eq!(passed("X-Forwarded-For: 192.0.2.1\r\n"), 2);
        assert_eq!(passed("X-Forwarded-For: 192.0.2.77, 192.0.2.1\r\n"), 0);
        assert_eq!(
            passed("X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 192.0.2.1\r\n"),
            0
        );
        assert_eq!(passed("X-Forwarded-For: 192.0.2.1:4711\r\n"), 0);
        assert_eq!(passed("X-Forwarded-For: 192.0.2.2,192.0.2.77\r\n"), 10);
        assert_eq!(passed("X-Forwarded-For: [2001:db8::1]\r\n"), 2);
        assert_eq!(passed("X-Forwarded-For: [2001:db8::1]:80\r\n"), 0);
        // The proxy itself, which is excepted.
        assert_eq!(passed("X-Forwarded-For: unknown\r\n"), 10);
    }

    #[test]
    fn connections_are_counted_while_they_are_open() {
        let quotas = quotas("connections = 2\nnew_connections = \"3/m\"");
        let enter = |client: &str| quotas.connection(client.parse().unwrap(), || NOW);
        let held = [enter("192.0.2.1").unwrap(), enter("192.0.2.1").unwrap()];
        assert_eq!(enter("192.0.2.1").unwrap_err(), Limit::Connections);
        assert!(enter("192.0.2.2").is_ok());
        drop(held);
        // A third one may come, but not a fourth; that one counts no longer as open.
        for _ in 0..3 {
            drop(enter("192.0.2.1"));
        }
        assert_eq!(enter("192.0.2.1").unwrap_err(), Limit::NewConnections);
        assert!(quotas.fill(NOW).all(|fill| fill.lifted == 0));
        let open = quotas
            .fill(NOW)
            .find(|fill| fill.limit == Limit::Connections);
        assert_eq!(open.unwrap().clients, 0);
    }

    #[test]
    fn what_was_used_stays_used_where_the_limit_stays() {
        let first = quotas("requests = \"3/m\"\nconnections = 1");
        assert_eq!(passed(&first, "192.0.2.1", ""), 3);
        let held = first.connection("192.0.2.1".parse().unwrap(), || NOW);
        let again = |text: &str| Quotas::next(&limits(text), Some(&first)).unwrap();
        assert!(Arc::ptr_eq(
            &first,
            &again("requests = \"3/m\"\nconnections = 1")
        ));
        let next = again("requests = \"3/m\"\nconnections = 1\nstatus = 503");
        assert_eq!(passed(&next, "192.0.2.1", ""), 0);
        let more = again("requests = \"4/m\"\nconnections = 2");
        assert_eq!(passed(&more, "192.0.2.1", ""), 4);
        let enter = || more.connection("192.0.2.1".parse().unwrap(), || NOW);
        let second = enter();
        assert!(second.is_ok());
        assert_eq!(enter().unwrap_err(), Limit::Connections);
        drop((held, second));
        assert!(enter().is_ok());
        let other = again("requests = \"3/m\"\nipv4_prefix = 24");
        assert_eq!(passed(&other, "192.0.2.1", ""), 3);
    }

    #[test]
    fn a_client_is_told_whole_seconds() {
        for (wait, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (60_000, 60)] {
            assert_eq!(in_seconds(Duration::from_millis(wait)).get(), seconds);
        }
        assert_eq!(in_seconds(Duration::MAX).get(), u32::MAX);
    }
}

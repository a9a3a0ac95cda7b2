//! Limits of each client of a rule: requests, tokens, connections, and new connections in a time.
//!
//! The workers share the tables of a rule. A decision is a hash with a secret of this process, so
//! that nobody can choose keys which share a place, and a look into a [`RateTable`].

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_control::rate::{CountResult, CountTable, Rate, RateTable};
use evenkeel_core::key::Key;
use evenkeel_core::time::Instant;
use evenkeel_manager::config::routing::Conditions;
use evenkeel_manager::config::{
    LimitKey, Limits, MAX_REQUEST_LIMITS, Networks, Protocol, RequestLimit, Route, Rule,
};
use evenkeel_net::http::answer::retry_after_seconds;

use crate::access::Limit;
use crate::message::Request;
use crate::metrics::{Metrics, RuleMetrics};

pub(crate) mod tokens;

/// The limits of a rule, with what its clients have used of them.
#[derive(Debug)]
pub(crate) struct Quotas {
    limits: Limits,
    hasher: RandomState,
    /// Limits of requests and of tokens: first those of the rule, then those of its routes.
    requests: Box<[Requests]>,
    /// Ranges of `requests` with the limits of each route; empty if no route has any.
    routes: Box<[Range<usize>]>,
    of_rule: usize,
    arrivals: Option<(Rate, Arc<RateTable>)>,
    connections: Option<(u32, Arc<CountTable>)>,
}

/// Most limits that a request can have: that of `limits`, and the lists of the rule and a route.
const MOST: usize = 1 + 2 * MAX_REQUEST_LIMITS;

/// A limit of requests or of tokens, with what clients have used of it.
#[derive(Debug)]
struct Requests {
    /// Name of the limit in the log and in metrics.
    label: Arc<str>,
    /// Route that the limit belongs to, by its name or else by its conditions.
    route: Option<Owner>,
    limit: RequestLimit,
    rate: Rate,
    table: Arc<RateTable>,
    /// Number of requests that the limit has refused; the workers count those of the limit in
    /// `limits`.
    refused: Option<Arc<AtomicU64>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Owner {
    Named(String),
    Nameless(Arc<Conditions>),
}

impl Owner {
    fn of_route(route: &Route) -> Self {
        match &route.name {
            Some(name) => Owner::Named(name.clone()),
            None => Owner::Nameless(Arc::clone(&route.conditions)),
        }
    }
}

/// Verdict on a request above a limit: the number of seconds after which there is a request again,
/// and the place of the limit among the limits of the request. The verdict is one word, as each
/// request of a connection has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over(NonZeroU32);

/// Bits of the place.
const PLACE_BITS: u32 = 5;
const _: () = assert!(MOST <= 1 << PLACE_BITS);

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

/// Fill of a table.
pub(crate) struct Fill {
    pub(crate) limit: Limit,
    /// Name of the limit.
    pub(crate) label: Arc<str>,
    /// Limits of requests and of tokens: the rate, and whose are counted together.
    pub(crate) requests: Option<(String, LimitKey)>,
    /// Number of requests that the limit has refused, if workers do not count that.
    pub(crate) refused: Option<u64>,
    /// Clients that are remembered now.
    pub(crate) clients: usize,
    /// Number of times that a client was forgotten, or not remembered, for want of a place.
    pub(crate) lifted: u64,
}

impl Quotas {
    /// Returns the tables that the limits of `rule` need; `None` if no limit is for single clients.
    /// What clients have used is kept from `old` where the limit is the same.
    pub(crate) fn next(
        rule: &Rule,
        metrics: &Metrics,
        old: Option<&Arc<Quotas>>,
    ) -> Option<Arc<Quotas>> {
        let limits = &rule.limits;
        let counted = |limits: &Limits| (limits.ipv4_prefix, limits.ipv6_prefix, limits.table_size);
        let kept = old.filter(|old| counted(&old.limits) == counted(limits));
        let of_arrivals =
            |limits: &Limits| (limits.new_connections, limits.new_connections_burst());
        let places = limits.table_size;
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
        let requests = requests_of(rule, metrics, old);
        if requests.all.is_empty() && arrivals.is_none() && connections.is_none() {
            return None;
        }
        Some(Arc::new(Quotas {
            limits: limits.clone(),
            hasher: old.map_or_else(RandomState::new, |old| old.hasher.clone()),
            of_rule: requests.of_rule,
            routes: requests.routes.into(),
            requests: requests.all.into(),
            arrivals,
            connections,
        }))
    }

    /// Takes a request for the route at this place from what its client has: one from each limit, or, if one
    /// of them is used up, none from any. Then it is the limit that has one again last.
    #[inline]
    pub(crate) fn take_request(
        &self,
        client: Option<IpAddr>,
        request: &Request<'_>,
        route: usize,
        now: Instant,
    ) -> Option<Over> {
        if self.requests.is_empty() {
            return None;
        }
        let [of_rule, of_route] = self.request_limits(route);
        let all = of_rule.iter().chain(of_route).enumerate();
        if let ([only], []) = (of_rule, of_route) {
            // One decides at once.
            let key = self.request_key(only, client, request)?;
            let taken = only.table.take(key, now, &only.rate);
            return taken.err().map(|wait| Over::new(wait, 0));
        }
        let mut keys = [None; MOST];
        for (key, (_, limit)) in keys.iter_mut().zip(all.clone()) {
            *key = self.request_key(limit, client, request);
        }
        let counted = || {
            let with_keys = all.clone().zip(keys);
            with_keys.filter_map(|((place, limit), key)| Some((place, limit, key?)))
        };
        let over = counted().filter_map(|(place, limit, key)| {
            let checked = limit.table.check_key(key, now, &limit.rate);
            Some((checked.err()?, place))
        });
        if let Some((wait, place)) = over.max() {
            return Some(Over::new(wait, place));
        }
        for (number, (place, limit, key)) in counted().enumerate() {
            if let Err(wait) = limit.table.take(key, now, &limit.rate) {
                // Another worker was faster: this one is refused, and so has used nothing.
                for (_, limit, key) in counted().take(number) {
                    limit.table.give_back(key, &limit.rate);
                }
                return Some(Over::new(wait, place));
            }
        }
        None
    }

    /// The limits of requests for the route at this place: those of the rule, and its own.
    #[inline]
    fn request_limits(&self, route: usize) -> [&[Requests]; 2] {
        let of_route = self.routes.get(route).cloned();
        let of_route = of_route.and_then(|range| self.requests.get(range));
        let of_rule = self.requests.get(..self.of_rule);
        [of_rule, of_route].map(Option::unwrap_or_default)
    }

    /// The limit that a request for the route at this place is above.
    fn exceeded_limit(&self, route: usize, over: Over) -> Option<&Requests> {
        self.limit_at(route, over.limit_place())
    }

    /// The limit at a place among those of requests for the route at `route`.
    fn limit_at(&self, route: usize, place: usize) -> Option<&Requests> {
        let [of_rule, of_route] = self.request_limits(route);
        of_rule.iter().chain(of_route).nth(place)
    }

    /// Returns the key under which a limit of requests counts a request; `None` if the request does not count there.
    #[inline]
    fn request_key(
        &self,
        of: &Requests,
        client: Option<IpAddr>,
        request: &Request<'_>,
    ) -> Option<u64> {
        match of.limit.tokens {
            None => self.limit_key(of, client, request),
            Some(_) => None,
        }
    }

    /// Returns the key under which a limit counts a request: a hash; `None` if the request does not
    /// count there.
    #[inline]
    fn limit_key(
        &self,
        of: &Requests,
        client: Option<IpAddr>,
        request: &Request<'_>,
    ) -> Option<u64> {
        let limit = &of.limit;
        let mut client = client;
        let key = match &limit.key {
            LimitKey::Part(Key::Client) => None,
            LimitKey::Part(key) => request
                .find_part(key)
                .map(|part| self.hasher.hash_one((1, part))),
            LimitKey::ForwardedFor => {
                client = forwarded_for(request).or(client);
                None
            }
            LimitKey::All => Some(0),
        };
        if client.is_some_and(|client| is_in(limit.except.as_ref(), client)) {
            return None;
        }
        key.or_else(|| Some(self.hash_client(client?, limit.ipv4_prefix, limit.ipv6_prefix)))
    }

    /// Returns the name of the limit that a request for the route at this place is above.
    pub(crate) fn limit_label(&self, route: usize, over: Over) -> Option<&Arc<str>> {
        self.exceeded_limit(route, over).map(|limit| &limit.label)
    }

    /// Counts a request that is refused, and gives the status of the answer to it.
    pub(crate) fn count_refusal(&self, route: usize, over: Over, metrics: &RuleMetrics) -> u16 {
        let limit = self.exceeded_limit(route, over);
        match limit.and_then(|limit| limit.refused.as_ref()) {
            Some(refused) => {
                refused.fetch_add(1, Ordering::Relaxed);
            }
            None => metrics.count_limit(Limit::Requests),
        }
        limit.map_or(429, |limit| limit.limit.status)
    }

    /// Takes a connection from what its client has. `has_rate`: the rate has been looked at already, where connections of the
    /// kernel count, too.
    ///
    /// # Errors
    ///
    /// What limit is reached.
    pub(crate) fn take_connection(
        &self,
        client: IpAddr,
        has_rate: bool,
        now: impl FnOnce() -> Instant,
    ) -> Result<Option<Box<Counted>>, Limit> {
        let limits = &self.limits;
        let is_free = self.arrivals.is_none() && self.connections.is_none();
        if is_free || is_in(limits.except.as_ref(), client) {
            return Ok(None);
        }
        let key = self.hash_client(client, limits.ipv4_prefix, limits.ipv6_prefix);
        let counted = match &self.connections {
            None => None,
            Some((most, table)) => match table.enter(key, *most) {
                CountResult::Counted(place) => {
                    let table = Arc::clone(table);
                    Some(Box::new(Counted { table, place }))
                }
                CountResult::Uncounted => None,
                CountResult::Full => return Err(Limit::Connections),
            },
        };
        if let Some((rate, table)) = self.arrivals.as_ref().filter(|_| !has_rate) {
            let taken = table.take(key, now(), rate);
            taken.map_err(|_| Limit::NewConnections)?;
        }
        Ok(counted)
    }

    /// Equal for addresses that have these bits in common.
    fn hash_client(&self, client: IpAddr, ipv4_prefix: u16, ipv6_prefix: u16) -> u64 {
        let (family, network) = match client.to_canonical() {
            IpAddr::V4(ip) => {
                let beyond = 32_u32.saturating_sub(ipv4_prefix.into());
                let bits = u64::from(ip.to_bits()) >> beyond;
                (4, u128::from(bits))
            }
            IpAddr::V6(ip) => {
                let beyond = 128_u32.saturating_sub(ipv6_prefix.into());
                (6, ip.to_bits().checked_shr(beyond).unwrap_or(0))
            }
        };
        self.hasher.hash_one((0, family, network))
    }

    /// Returns the fill of each table.
    pub(crate) fn table_fills(&self, now: Instant) -> impl Iterator<Item = Fill> {
        let requests = self.requests.iter().map(move |of| Fill {
            limit: Limit::Requests,
            label: Arc::clone(&of.label),
            requests: Some((of.limit.shown_rate(), of.limit.key.clone())),
            refused: of
                .refused
                .as_ref()
                .map(|refused| refused.load(Ordering::Relaxed)),
            clients: of.table.count_used(now),
            lifted: of.table.evictions(),
        });
        let arrivals = self.arrivals.iter().map(move |(_, table)| Fill {
            limit: Limit::NewConnections,
            label: Limit::NewConnections.name().into(),
            requests: None,
            refused: None,
            clients: table.count_used(now),
            lifted: table.evictions(),
        });
        let connections = self.connections.iter().map(|(_, table)| Fill {
            limit: Limit::Connections,
            label: Limit::Connections.name().into(),
            requests: None,
            refused: None,
            clients: table.count_used(),
            lifted: table.overflows(),
        });
        requests.chain(arrivals).chain(connections)
    }
}

impl Over {
    fn new(wait: Duration, place: usize) -> Self {
        let place = u32::try_from(place).unwrap_or_default();
        let seconds = retry_after_seconds(wait).min(LONGEST);
        Over(seconds.saturating_mul(SECOND) | place)
    }

    /// Returns the number of seconds after which there is a request again.
    pub(crate) fn retry_seconds(self) -> u32 {
        self.0.get() >> PLACE_BITS
    }

    fn limit_place(self) -> usize {
        (self.0.get() & ((1 << PLACE_BITS) - 1)) as usize
    }
}

/// A second in such a word.
const SECOND: NonZeroU32 = match NonZeroU32::new(1 << PLACE_BITS) {
    Some(power) => power,
    None => NonZeroU32::MIN,
};

/// Most seconds that have room there: four years.
const LONGEST: NonZeroU32 = match NonZeroU32::new(u32::MAX >> PLACE_BITS) {
    Some(most) => most,
    None => NonZeroU32::MIN,
};

/// The limits of requests of a rule and its routes.
struct OfRequests {
    all: Vec<Requests>,
    /// Number of limits, from the first, that are for all requests of the rule.
    of_rule: usize,
    /// Ranges of `all` with the limits of each route.
    routes: Vec<Range<usize>>,
}

fn requests_of(rule: &Rule, metrics: &Metrics, old: Option<&Arc<Quotas>>) -> OfRequests {
    let mut before: Vec<&Requests> = old.iter().flat_map(|old| &old.requests).collect();
    let mut all: Vec<Requests> = Vec::new();
    let mut add = |label: String, route: Option<Owner>, limit: &RequestLimit| {
        let counted = |limit: &RequestLimit| {
            let prefixes = (limit.ipv4_prefix, limit.ipv6_prefix);
            let rate = (limit.requests, limit.tokens, limit.burst());
            (
                limit.name.clone(),
                rate,
                limit.key.clone(),
                prefixes,
                limit.table_size,
            )
        };
        let is_same = |old: &&Requests| old.route == route && counted(&old.limit) == counted(limit);
        // Each goes on in one only.
        let same = before.iter().position(is_same).map(|at| before.remove(at));
        let table = same.map_or_else(
            || {
                let places = match limit.key {
                    LimitKey::All => 1,
                    _ => limit.table_size,
                };
                Arc::new(RateTable::new(places))
            },
            |same| Arc::clone(&same.table),
        );
        let is_counted_by_workers = label == Limit::Requests.name();
        all.push(Requests {
            refused: (!is_counted_by_workers).then(|| metrics.refused_counter(&rule.name, &label)),
            label: label.into(),
            route,
            rate: Rate::new(limit.rate().count, limit.rate().per, limit.burst()),
            limit: limit.clone(),
            table,
        });
        all.len()
    };
    let mut end = 0;
    if let Some(limit) = rule.limits.of_requests() {
        end = add(limit.label(0, None), None, &limit);
    }
    if rule.protocol != Protocol::Http {
        return OfRequests {
            all,
            of_rule: end,
            routes: Vec::new(),
        };
    }
    for (place, limit) in rule.request_limits.iter().enumerate() {
        end = add(limit.label(place, None), None, limit);
    }
    let of_rule = end;
    let mut ranges = Vec::new();
    let has_limits =
        { rule.routes.list_special().iter() }.any(|route| !route.request_limits.is_empty());
    let routes = { rule.routes.list().iter() }.filter(|_| has_limits);
    // Routes of the same name with equal limits count together.
    let mut named: HashMap<&str, (&[RequestLimit], Range<usize>)> = HashMap::new();
    for route in routes {
        let twin = route.name.as_deref().and_then(|name| named.get(name));
        if let Some((_, range)) = twin.filter(|(limits, _)| **limits == *route.request_limits) {
            ranges.push(range.clone());
            continue;
        }
        let begin = end;
        for (place, limit) in route.request_limits.iter().enumerate() {
            let label = limit.label(place, Some(&route.label));
            end = add(label, Some(Owner::of_route(route)), limit);
        }
        ranges.push(begin..end);
        if let Some(name) = route.name.as_deref().filter(|_| begin < end) {
            named.insert(name, (&route.request_limits, begin..end));
        }
    }
    if of_rule == end {
        ranges.clear();
    }
    OfRequests {
        all,
        of_rule,
        routes: ranges,
    }
}

fn is_in(networks: Option<&Networks>, client: IpAddr) -> bool {
    networks.is_some_and(|networks| networks.contains(client))
}

/// The address that the nearest proxy in front has added, with or without a port.
pub(crate) fn forwarded_for(request: &Request<'_>) -> Option<IpAddr> {
    let last = request.values("x-forwarded-for").last()?;
    let last = last.rsplit(|&byte| byte == b',').next()?;
    let last = std::str::from_utf8(last).ok()?.trim();
    let of_socket = || Some(last.parse::<SocketAddr>().ok()?.ip());
    let bare = last
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(last).parse().ok().or_else(of_socket)
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::config::{Config, parse};

    use super::*;
    use crate::message::tests::with_request;

    fn rule(text: &str) -> Rule {
        let text = format!(
            "[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"127.0.0.1:2\"]\n\
             http = {{ trust_forwarded = true }}\n[rule.web.limits]\n{text}"
        );
        let config: Config = parse("evenkeel.toml", &text).unwrap();
        config.rules[0].clone()
    }

    fn quotas(text: &str) -> Arc<Quotas> {
        Quotas::next(&rule(text), &Metrics::default(), None).unwrap()
    }

    const NOW: Instant = Instant::from_nanos(5_000_000_000);

    /// Returns the number of requests that pass, of ten.
    fn passed(quotas: &Quotas, client: &str, head: &str) -> usize {
        let client: IpAddr = client.parse().unwrap();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{head}\r\n");
        let taken = (0..10).filter(|_| {
            with_request(&head, |request| {
                quotas.take_request(Some(client), request, usize::MAX, NOW)
            })
            .is_none()
        });
        taken.count()
    }

    #[test]
    fn nothing_is_made_where_nothing_is_limited() {
        assert!(Quotas::next(&Rule::default(), &Metrics::default(), None).is_none());
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

    /// Returns the results of ten requests for a route: for each the name of the limit that the
    /// request is above, or nothing.
    fn met(quotas: &Quotas, client: &str, head: &str, route: usize) -> Vec<String> {
        let client: IpAddr = client.parse().unwrap();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{head}\r\n");
        let one = |_| {
            let over = with_request(&head, |request| {
                quotas.take_request(Some(client), request, route, NOW)
            });
            over.map_or(String::new(), |over| {
                quotas.limit_label(route, over).unwrap().to_string()
            })
        };
        (0..10).map(one).collect()
    }

    fn count(met: &[String], label: &str) -> usize {
        met.iter().filter(|one| *one == label).count()
    }

    const SEVERAL: &str = "requests = \"8/m\"\n\
        [[rule.web.request_limits]]\nrequests = \"5/h\"\nkey = \"header:X-Key\"\n\
        [[rule.web.request_limits]]\nname = \"sum\"\nrequests = \"14/d\"\nkey = \"all\"\n\
        [[rule.web.routes]]\npath = \"/a\"\n\
        [[rule.web.routes]]\npath = \"/b\"\nname = \"b\"\n\
        request_limits = [{ requests = \"2/m\", ipv4_prefix = 24 }, { requests = \"9/s\" }]\n";

    #[test]
    fn a_request_needs_one_of_each_limit_and_a_refused_one_has_used_none() {
        let quotas = quotas(SEVERAL);
        // Above that of the key, which is the one that lasts; five of the client's eight are used.
        let key = "X-Key: a\r\n";
        let first = met(&quotas, "192.0.2.1", key, 0);
        assert_eq!((count(&first, ""), count(&first, "1")), (5, 5));
        let other_key = met(&quotas, "192.0.2.1", "X-Key: b\r\n", 0);
        assert_eq!(
            (count(&other_key, ""), count(&other_key, "requests")),
            (3, 7)
        );
        // The route has its own, by network. Of the sum 6 of 14 were left.
        let of_route = met(&quotas, "192.0.2.2", "X-Key: c\r\n", 1);
        assert_eq!((count(&of_route, ""), count(&of_route, "b/1")), (2, 8));
        let neighbour = met(&quotas, "192.0.2.3", "X-Key: d\r\n", 1);
        assert_eq!(count(&neighbour, "b/1"), 10);
        // What the route has refused counts in no other.
        let rest = met(&quotas, "192.0.2.3", "X-Key: d\r\n", usize::MAX);
        assert_eq!((count(&rest, ""), count(&rest, "sum")), (4, 6));
        let fills: Vec<_> = quotas.table_fills(NOW).collect();
        let labels: Vec<_> = fills.iter().map(|fill| &*fill.label).collect();
        assert_eq!(labels, ["requests", "1", "sum", "b/1", "b/2"]);
        let clients: Vec<_> = fills.iter().map(|fill| fill.clients).collect();
        assert_eq!(clients, [3, 4, 1, 1, 1]);
    }

    #[test]
    fn routes_of_a_name_with_equal_limits_count_together() {
        let route = |path: &str, name: &str| {
            let limits =
                "request_limits = [{ requests = \"3/m\" }, { requests = \"9/s\", key = \"all\" }]";
            format!("[[rule.web.routes]]\npath = \"{path}\"\nname = \"{name}\"\n{limits}\n")
        };
        let text = ["/a", "/b"].map(|path| route(path, "one")).concat() + &route("/c", "other");
        let quotas = quotas(&text);
        let pass = |route: usize| count(&met(&quotas, "192.0.2.1", "", route), "");
        assert_eq!([0, 1, 2].map(pass), [3, 0, 3]);
        let fills: Vec<_> = quotas.table_fills(NOW).collect();
        let labels: Vec<_> = fills.iter().map(|fill| &*fill.label).collect();
        assert_eq!(labels, ["one/1", "one/2", "other/1", "other/2"]);
    }

    #[test]
    fn refusals_are_counted_by_limit() {
        let metrics = Metrics::default();
        let quotas = Quotas::next(&rule(SEVERAL), &metrics, None).unwrap();
        let workers = RuleMetrics::default();
        for route in [0, 1] {
            for _ in 0..7 {
                let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Key: a\r\n\r\n";
                let client = Some("192.0.2.1".parse().unwrap());
                let over = with_request(head, |request| {
                    quotas.take_request(client, request, route, NOW)
                });
                if let Some(over) = over {
                    assert_eq!(quotas.count_refusal(route, over, &workers), 429);
                }
            }
        }
        let counted: Vec<_> = metrics.refused_counts().into_iter().collect();
        let of = |limit: &str, refused| (("web".into(), limit.into()), refused);
        // Those for the second route were above that of the key already.
        assert_eq!(
            counted,
            [of("1", 9), of("b/1", 0), of("b/2", 0), of("sum", 0)]
        );
        assert_eq!(workers.limited_requests.get(), 0);
    }

    #[test]
    fn threads_take_what_there_is_of_each_limit() {
        let quotas = quotas(
            "requests = \"100/d\"\n[[rule.web.request_limits]]\nrequests = \"60/d\"\nkey = \"all\"\n",
        );
        let passed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..10)
                            .map(|_| passed(&quotas, "192.0.2.1", ""))
                            .sum::<usize>()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(passed, 60);
        // Whoever came too late for the second has given back what it took of the first.
        let [first, _] = &*quotas.requests else {
            panic!("there are two limits");
        };
        let client = Some("192.0.2.1".parse().unwrap());
        let key = with_request("GET / HTTP/1.1\r\nHost: a\r\n\r\n", |request| {
            quotas.limit_key(first, client, request).unwrap()
        });
        let left = (0..100).filter(|_| first.table.take(key, NOW, &first.rate).is_ok());
        assert_eq!(left.count(), 40);
    }

    #[test]
    fn each_limit_goes_on_that_is_still_there() {
        let first = quotas(SEVERAL);
        assert_eq!(count(&met(&first, "192.0.2.1", "X-Key: a\r\n", 1), ""), 2);
        let again =
            |text: &str| Quotas::next(&rule(text), &Metrics::default(), Some(&first)).unwrap();
        // Numbers are others now, and so is the place of the route.
        let more = SEVERAL
            .replacen("[[rule.web.request_limits]]", "[[rule.web.request_limits]]\nrequests = \"9/s\"\n[[rule.web.request_limits]]", 1)
            .replacen("[[rule.web.routes]]", "[[rule.web.routes]]\npath = \"/new\"\nrequest_limits = { requests = \"2/m\", ipv4_prefix = 24 }\n[[rule.web.routes]]", 1);
        let next = again(&more);
        assert_eq!(count(&met(&next, "192.0.2.1", "X-Key: a\r\n", 2), ""), 0);
        assert_eq!(
            count(&met(&next, "192.0.2.1", "X-Key: a\r\n", 9), ""),
            3,
            "of the key"
        );
        assert_eq!(count(&met(&next, "192.0.2.1", "X-Key: e\r\n", 0), ""), 2);
        // The rate of one has changed: that one begins anew.
        let next = again(&SEVERAL.replace("\"2/m\"", "\"3/m\""));
        assert_eq!(
            count(&met(&next, "192.0.2.1", "X-Key: f\r\n", 1), ""),
            1,
            "of the client"
        );
    }

    #[test]
    fn connections_are_counted_while_they_are_open() {
        let quotas = quotas("connections = 2\nnew_connections = \"3/m\"");
        let enter = |client: &str| quotas.take_connection(client.parse().unwrap(), false, || NOW);
        let held = [enter("192.0.2.1").unwrap(), enter("192.0.2.1").unwrap()];
        assert_eq!(enter("192.0.2.1").unwrap_err(), Limit::Connections);
        assert!(enter("192.0.2.2").is_ok());
        drop(held);
        // A third one may come, but not a fourth; that one counts no longer as open.
        for _ in 0..3 {
            drop(enter("192.0.2.1"));
        }
        assert_eq!(enter("192.0.2.1").unwrap_err(), Limit::NewConnections);
        // Where connections of the kernel count, the kernel has looked at the rate.
        let has_rate = quotas.take_connection("192.0.2.1".parse().unwrap(), true, || NOW);
        assert!(has_rate.is_ok());
        drop(has_rate);
        assert!(quotas.table_fills(NOW).all(|fill| fill.lifted == 0));
        let open = quotas
            .table_fills(NOW)
            .find(|fill| fill.limit == Limit::Connections);
        assert_eq!(open.unwrap().clients, 0);
    }

    #[test]
    fn what_was_used_stays_used_where_the_limit_stays() {
        let first = quotas("requests = \"3/m\"\nconnections = 1");
        assert_eq!(passed(&first, "192.0.2.1", ""), 3);
        let held = first.take_connection("192.0.2.1".parse().unwrap(), false, || NOW);
        let again =
            |text: &str| Quotas::next(&rule(text), &Metrics::default(), Some(&first)).unwrap();
        let same = again("requests = \"3/m\"\nconnections = 1");
        assert_eq!(passed(&same, "192.0.2.1", ""), 0);
        let next = again("requests = \"3/m\"\nconnections = 1\nstatus = 503");
        assert_eq!(passed(&next, "192.0.2.1", ""), 0);
        let more = again("requests = \"4/m\"\nconnections = 2");
        assert_eq!(passed(&more, "192.0.2.1", ""), 4);
        let enter = || more.take_connection("192.0.2.1".parse().unwrap(), false, || NOW);
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
        for (wait, place, seconds) in [
            (Duration::from_millis(1), 0, 1),
            (Duration::from_secs(86_400 * 365), MOST - 1, 86_400 * 365),
            (Duration::MAX, 3, u32::MAX >> PLACE_BITS),
        ] {
            let over = Over::new(wait, place);
            assert_eq!((over.retry_seconds(), over.limit_place()), (seconds, place));
        }
    }
}

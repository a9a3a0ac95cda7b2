//! Choice of a request's route: conditions, and a structure that finds the first one whose
//! conditions hold among thousands.

mod parts;
pub mod path;
pub mod template;
mod tree;
pub mod value_regex;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::sync::Arc;

pub use parts::RequestView;
use parts::{RequestParts, decoded};
use tree::{Tree, segments};
use value_regex::ValueRegex;

use crate::schema::networks::Networks;

/// Condition on a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// No value.
    Absent,
    /// Exactly this value.
    Exact(Box<str>),
    /// Value with this beginning; any value, if the beginning is empty.
    Prefix(Box<str>),
    /// Value that matches a regular expression.
    Regex(Box<ValueRegex>),
}

impl Pattern {
    /// A pattern as it stands in the file.
    pub fn from_text(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Pattern::Prefix(prefix.into()),
            None => Pattern::Exact(text.into()),
        }
    }

    /// True if `value` matches the pattern.
    pub fn matches_value(&self, value: &[u8]) -> bool {
        match self {
            Pattern::Absent => false,
            Pattern::Exact(text) => value == text.as_bytes(),
            Pattern::Prefix(text) => value.starts_with(text.as_bytes()),
            Pattern::Regex(regex) => regex.matches(value),
        }
    }

    /// True if a value of which these are the bytes matches the pattern.
    fn matches_bytes(&self, mut value: impl Iterator<Item = u8>) -> bool {
        match self {
            Pattern::Absent => false,
            Pattern::Exact(text) => value.eq(text.bytes()),
            Pattern::Prefix(text) => text.bytes().all(|byte| value.next() == Some(byte)),
            Pattern::Regex(regex) => regex.matches(&value.collect::<Vec<_>>()),
        }
    }

    /// True if every value that matches `other` matches the pattern, too.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Pattern::Prefix(prefix), Pattern::Exact(text) | Pattern::Prefix(text)) => {
                text.starts_with(&**prefix)
            }
            (Pattern::Prefix(prefix), Pattern::Regex(_)) => prefix.is_empty(),
            (one, other) => one == other,
        }
    }
}

/// Conditions on a request, which must all hold for a route.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Hosts in lower case; any, if there are none. `*.` is for all names right below, `**.` for all names below.
    pub hosts: Vec<String>,
    /// Paths; any, if there are none. A path that ends in `/*` is for itself and all paths below it.
    pub paths: Vec<String>,
    /// Regular expressions of which the path must match one; none, if there are none.
    pub path_regexes: Vec<ValueRegex>,
    /// Methods; any, if there are none.
    pub methods: Vec<String>,
    /// Networks of clients; any client, if there are none.
    pub clients: Networks,
    /// Networks whose clients do not match.
    pub except_clients: Networks,
    /// Fields by their names, in lower case.
    pub headers: BTreeMap<String, Pattern>,
    /// Parameters of the query.
    pub query: BTreeMap<String, Pattern>,
    /// Cookies by their names.
    pub cookies: BTreeMap<String, Pattern>,
}

impl Conditions {
    /// True if some depend on the client's address.
    fn is_by_client(&self) -> bool {
        !self.clients.0.is_empty() || !self.except_clients.0.is_empty()
    }

    /// True if `client` matches. A client without an address is in no network.
    fn admit(&self, client: Option<IpAddr>) -> bool {
        let is_in = |networks: &Networks| client.is_some_and(|client| networks.contains(client));
        (self.clients.0.is_empty() || is_in(&self.clients)) && !is_in(&self.except_clients)
    }

    /// True if all conditions but those on hosts and those that paths equal or begin with hold.
    fn hold(&self, parts: &RequestParts<'_, impl RequestView>, client: Option<IpAddr>) -> bool {
        if self.is_by_client() && !self.admit(client) {
            return false;
        }
        let is_method = || {
            self.methods
                .iter()
                .any(|method| method == parts.asks.method())
        };
        if !self.methods.is_empty() && !is_method() {
            return false;
        }
        let mut regexes = self.path_regexes.iter();
        if !self.path_regexes.is_empty() && !regexes.any(|regex| regex.matches(parts.plain_path()))
        {
            return false;
        }
        let headers = self.headers.iter().all(|(name, pattern)| {
            let mut values = parts.asks.fields(name);
            match pattern {
                Pattern::Absent => values.next().is_none(),
                pattern => values.any(|value| pattern.matches_value(value)),
            }
        });
        headers
            && self.query.iter().all(|(name, pattern)| {
                let mut values = parts.find_parameters(name);
                match pattern {
                    Pattern::Absent => values.next().is_none(),
                    pattern => values.any(|value| pattern.matches_bytes(decoded(value))),
                }
            })
            && self.cookies.iter().all(|(name, pattern)| {
                let value = parts.find_cookie(name);
                match pattern {
                    Pattern::Absent => value.is_none(),
                    pattern => value.is_some_and(|value| pattern.matches_value(value)),
                }
            })
    }

    /// True if all conditions but those on hosts and paths hold wherever the ones of `other` hold.
    fn cover(&self, other: &Self) -> bool {
        let methods = self.methods.is_empty()
            || !other.methods.is_empty()
                && other
                    .methods
                    .iter()
                    .all(|method| self.methods.contains(method));
        let regexes = self.path_regexes.is_empty()
            || !other.path_regexes.is_empty() && { other.path_regexes.iter() }
                .all(|regex| self.path_regexes.contains(regex));
        let covered = |own: &BTreeMap<String, Pattern>, theirs: &BTreeMap<String, Pattern>| {
            own.iter().all(|(name, pattern)| {
                theirs
                    .get(name)
                    .is_some_and(|theirs| pattern.covers(theirs))
            })
        };
        let (own, theirs) = (&self.clients, &other.clients);
        let clients = own.0.is_empty() || !theirs.0.is_empty() && own.cover(theirs);
        // Those who are left out here never get there, or there are left out, too.
        let except = &self.except_clients;
        let except = other.except_clients.cover(except)
            || !theirs.0.is_empty() && except.is_apart_from(theirs);
        methods
            && regexes
            && clients
            && except
            && covered(&self.headers, &other.headers)
            && covered(&self.query, &other.query)
            && covered(&self.cookies, &other.cookies)
    }
}

/// Longest host that a route may name.
const MAX_HOST: usize = 253;

/// The host of an authority without its port, and without the dot of a name that is fully qualified.
pub fn host_of(authority: &str) -> &str {
    let host = match authority.strip_prefix('[') {
        // An address of IPv6 has colons of its own.
        Some(rest) => match rest.find(']') {
            Some(end) => authority.get(..end + 2).unwrap_or(authority),
            None => authority,
        },
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.strip_suffix('.').unwrap_or(host)
}

/// Calls `find` with the host of an authority in lower case, as conditions on hosts see the host. Returns `None` if there
/// is no host, or none that a condition can name.
pub fn find_by_host<T>(authority: Option<&str>, find: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut space = [0; MAX_HOST];
    find(plain_host(host_of(authority?), &mut space)?)
}

/// The port of an authority with its colon, or nothing.
pub fn port_of(authority: &str) -> &str {
    let from = authority.rfind(']').unwrap_or_default();
    let rest = authority.get(from..).unwrap_or_default();
    match rest.find(':').and_then(|at| rest.get(at..)) {
        Some(port) if port.len() > 1 => port,
        _ => "",
    }
}

/// Finds routes. The first one in the order of the file whose conditions hold is the one: where it
/// can be is found by host and path, at a cost that depends on the length of the path only.
///
/// Routes have numbers, which stay while other routes come and go, so that an index shares with the next one what is
/// about hosts whose routes stay as they are.
#[derive(Clone, Debug, Default)]
pub struct Index {
    hosts: Trees,
    /// By what follows the first dot.
    below: Trees,
    /// By what follows any dot.
    deep: Trees,
    anywhere: Option<Arc<Tree>>,
    /// Routes by their numbers.
    routes: Vec<IndexedRoute>,
    /// Numbers of the routes in the order of the file.
    order: Vec<u32>,
    /// Numbers that no route has.
    free: Vec<u32>,
    /// Number of the routes that look at paths.
    by_path: usize,
    /// Number of the routes that depend on the client's address.
    by_client: usize,
}

/// Trees by hosts.
type Trees = HashMap<Arc<str>, Arc<Tree>>;

/// Route of an index.
#[derive(Clone, Debug, Default)]
struct IndexedRoute {
    /// Place in the order of the file.
    place: u32,
    conditions: Arc<Conditions>,
}

/// Number of segments of the prefix `path` of a route; `None` if it is no prefix.
pub fn depth(path: &str) -> Option<usize> {
    let (segments, is_prefix) = segments(path);
    is_prefix.then(|| segments.count())
}

impl Index {
    /// Finds routes with these conditions, in this order.
    pub fn new(conditions: Vec<Conditions>) -> Self {
        Index::of_shared(conditions.into_iter().map(Arc::new).collect())
    }

    /// Finds routes with these conditions, which others share, in this order.
    pub fn of_shared(conditions: Vec<Arc<Conditions>>) -> Self {
        let mut index = Index::default();
        index.replace(0..0, &conditions);
        index
    }

    /// Returns an index that has other routes in place of those at the places `gone`. Only the routes of hosts for which
    /// routes come or go are looked at.
    pub(crate) fn with_others(&self, gone: Range<usize>, new: &[Arc<Conditions>]) -> Self {
        let mut index = self.clone();
        index.replace(gone, new);
        // After a great change most of the numbers may be free.
        match index.free.len() > index.order.len() {
            true => {
                let routes = { index.order.iter() }.filter_map(|of| index.routes.get(*of as usize));
                let conditions = routes.map(|route| Arc::clone(&route.conditions));
                Index::of_shared(conditions.collect())
            }
            false => index,
        }
    }

    /// True if any route looks at paths.
    pub fn by_path(&self) -> bool {
        self.by_path > 0
    }

    /// True if any route depends on the client's address.
    pub fn by_client(&self) -> bool {
        self.by_client > 0
    }

    /// Puts other routes in place of those at the places `gone`.
    fn replace(&mut self, gone: Range<usize>, new: &[Arc<Conditions>]) {
        let gone_numbers = self.order.get(gone.clone()).unwrap_or_default().to_vec();
        let leaving: HashSet<u32> = gone_numbers.iter().copied().collect();
        self.free.extend(gone_numbers.iter().rev());
        let old: Vec<IndexedRoute> = { gone_numbers.iter() }
            .filter_map(|number| self.routes.get_mut(*number as usize).map(std::mem::take))
            .collect();
        let numbers: Vec<u32> = { new.iter() }
            .map(|conditions| self.give_number(conditions))
            .collect();
        // Routes that come, by the hosts whose trees change.
        let mut touched: HashMap<Option<&str>, Vec<u32>> = HashMap::with_capacity(new.len());
        for route in &old {
            self.count(&route.conditions, -1);
            for host in list_hosts(&route.conditions) {
                touched.entry(host).or_default();
            }
        }
        for (number, conditions) in numbers.iter().zip(new) {
            self.count(conditions, 1);
            for host in list_hosts(conditions) {
                touched.entry(host).or_default().push(*number);
            }
        }
        let first = gone.start;
        self.order.splice(gone, numbers);
        for (place, number) in (0..).zip(&self.order).skip(first) {
            if let Some(route) = self.routes.get_mut(*number as usize) {
                route.place = place;
            }
        }
        for (host, mut routes) in touched {
            let before = match self.trees_mut(host) {
                None => self.anywhere.take(),
                Some((trees, key)) => trees.remove(key),
            };
            let known = before.iter().flat_map(|tree| tree.list_routes());
            routes.extend(known.filter(|number| !leaving.contains(number)));
            let Some(tree) = self.make_tree(routes).map(Arc::new) else {
                continue;
            };
            match self.trees_mut(host) {
                None => self.anywhere = Some(tree),
                Some((trees, key)) => drop(trees.insert(key.into(), tree)),
            }
        }
    }

    /// Gives a route a number.
    fn give_number(&mut self, conditions: &Arc<Conditions>) -> u32 {
        let route = IndexedRoute {
            place: 0,
            conditions: Arc::clone(conditions),
        };
        let number = self.free.pop();
        if let Some(number) = number
            && let Some(free) = self.routes.get_mut(number as usize)
        {
            *free = route;
            return number;
        }
        self.routes.push(route);
        // A text of a configuration has fewer bytes.
        u32::try_from(self.routes.len() - 1).unwrap_or(u32::MAX)
    }

    /// Counts a route that comes, or goes.
    fn count(&mut self, conditions: &Conditions, by: isize) {
        let change = |count: &mut usize| *count = count.saturating_add_signed(by);
        if !conditions.paths.is_empty() || !conditions.path_regexes.is_empty() {
            change(&mut self.by_path);
        }
        if conditions.is_by_client() {
            change(&mut self.by_client);
        }
    }

    /// Makes the tree of routes with these numbers; `None` if there are none.
    fn make_tree(&self, mut numbers: Vec<u32>) -> Option<Tree> {
        let find = |number: &u32| self.routes.get(*number as usize);
        numbers.sort_unstable_by_key(|number| find(number).map(|route| route.place));
        numbers.dedup();
        let mut tree = (!numbers.is_empty()).then(Tree::new)?;
        for number in numbers {
            if let Some(route) = find(&number) {
                tree.add(number, &route.conditions.paths);
            }
        }
        Some(tree)
    }

    /// Returns the trees among which that of a host is, with the tree's key there; `None` if the host is any.
    fn trees_mut<'h>(&mut self, host: Option<&'h str>) -> Option<(&mut Trees, &'h str)> {
        let host = host?;
        Some(match (host.strip_prefix("*."), host.strip_prefix("**.")) {
            (Some(host), _) => (&mut self.below, host),
            (None, Some(host)) => (&mut self.deep, host),
            (None, None) => (&mut self.hosts, host),
        })
    }

    /// Finds the first route for a request of a client at this address, if it is known.
    pub fn find_route(&self, asks: &impl RequestView, client: Option<IpAddr>) -> Option<usize> {
        let mut first = u32::MAX;
        let parts = RequestParts::new(asks);
        let mut look = |routes: &[u32]| {
            for &route in routes {
                let Some(IndexedRoute { place, conditions }) = self.routes.get(route as usize)
                else {
                    continue;
                };
                if *place >= first {
                    return;
                }
                if conditions.hold(&parts, client) {
                    first = *place;
                    return;
                }
            }
        };
        let host = asks.host().map(host_of);
        let mut space = [0; MAX_HOST];
        let host = host.and_then(|host| plain_host(host, &mut space));
        let exact = host.and_then(|host| self.hosts.get(host));
        let below = host.and_then(|host| self.below.get(host.split_once('.')?.1));
        let mut visit = |tree: &Arc<Tree>| {
            look(&tree.all);
            tree.walk(asks.path(), &mut look);
        };
        exact.into_iter().chain(below).for_each(&mut visit);
        // Most configurations have none.
        if let (Some(host), false) = (host, self.deep.is_empty()) {
            self.deep_trees(host).for_each(&mut visit);
        }
        self.anywhere.iter().for_each(visit);
        (first != u32::MAX).then_some(first as usize)
    }

    /// Returns the routes of the domains above `host`, at any height.
    fn deep_trees<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Arc<Tree>> {
        let dots = host.match_indices('.');
        dots.filter_map(move |(at, _)| self.deep.get(host.get(at + 1..)?))
    }

    /// An earlier route that takes all requests of `route`, if there is one: of each of its hosts and
    /// paths.
    pub fn covering(&self, route: usize) -> Option<usize> {
        let number = *self.order.get(route)?;
        let conditions = &self.routes.get(number as usize)?.conditions;
        let mut covering = None;
        let any = [String::new()];
        let hosts: &[String] = match conditions.hosts.is_empty() {
            true => &any,
            false => &conditions.hosts,
        };
        let paths: &[String] = match conditions.paths.is_empty() {
            true => &any,
            false => &conditions.paths,
        };
        for host in hosts {
            for path in paths {
                let one = self.covering_one(route, conditions, host, path)?;
                covering = covering.or(Some(one));
            }
        }
        covering
    }

    /// Returns an earlier route that covers the route for one of its hosts and one of its paths; empty ones
    /// stand for all.
    fn covering_one(
        &self,
        route: usize,
        conditions: &Conditions,
        host: &str,
        path: &str,
    ) -> Option<usize> {
        let mut left = MAX_COMPARED;
        let mut found = None;
        let mut look = |routes: &[u32]| {
            for &earlier in routes {
                let Some(earlier) = self.routes.get(earlier as usize) else {
                    continue;
                };
                let place = earlier.place as usize;
                if found.is_some() || place >= route || left == 0 {
                    return;
                }
                left -= 1;
                if earlier.conditions.cover(conditions) {
                    found = Some(place);
                }
            }
        };
        let (exact, below) = match (host.strip_prefix("*."), host.starts_with("**.")) {
            (Some(below), _) => (None, Some(below)),
            (None, true) => (None, None),
            (None, false) => (Some(host), host.split_once('.').map(|(_, below)| below)),
        };
        let exact = exact.and_then(|host| self.hosts.get(host));
        let below = below.and_then(|host| self.below.get(host));
        let deep = self.deep_trees(host);
        let trees = exact.into_iter().chain(below).chain(deep);
        for tree in trees.chain(&self.anywhere) {
            look(&tree.all);
            if path.is_empty() {
                continue;
            }
            tree.walk_covering(path, &mut look);
        }
        found
    }
}

/// Most routes that one is compared with to find out whether they leave it anything, so that the
/// check of many routes of one path does not take the square of their number.
const MAX_COMPARED: usize = 500;

/// Returns the hosts of a route; one that is any, if it has none.
fn list_hosts(conditions: &Conditions) -> impl Iterator<Item = Option<&str>> {
    let any = conditions.hosts.is_empty().then_some(None);
    let hosts = conditions.hosts.iter().map(|host| Some(host.as_str()));
    any.into_iter().chain(hosts)
}

/// A host in lower case, and an address of IPv6 as it is usually written, in `space`; `None` if it is too long to be
/// one.
fn plain_host<'a>(host: &str, space: &'a mut [u8; MAX_HOST]) -> Option<&'a str> {
    let inside = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let space = match inside.and_then(|host| host.parse::<Ipv6Addr>().ok()) {
        Some(address) => {
            let mut room = &mut space[..];
            write!(room, "[{address}]").ok()?;
            let left = room.len();
            space.get_mut(..MAX_HOST - left)?
        }
        None => {
            let space = space.get_mut(..host.len())?;
            space.copy_from_slice(host.as_bytes());
            space
        }
    };
    space.make_ascii_lowercase();
    std::str::from_utf8(space).ok()
}

#[cfg(test)]
mod tests;

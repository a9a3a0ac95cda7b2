//! Choice of a request's route: conditions, and a structure that finds the first one whose
//! conditions hold among thousands.

pub mod path;
pub mod template;

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use path::{MAX_SEGMENT, normalize_segment};

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
    pub fn matches_value(&self, mut value: impl Iterator<Item = u8>) -> bool {
        match self {
            Pattern::Absent => false,
            Pattern::Exact(text) => value.eq(text.bytes()),
            Pattern::Prefix(text) => text.bytes().all(|byte| value.next() == Some(byte)),
        }
    }

    /// True if every value that matches `other` matches the pattern, too.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Pattern::Prefix(prefix), Pattern::Exact(text) | Pattern::Prefix(text)) => {
                text.starts_with(&**prefix)
            }
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

/// A request, as conditions see it.
pub trait RequestView {
    /// Method of the request.
    fn method(&self) -> &str;
    /// The host that it is for, perhaps with a port.
    fn host(&self) -> Option<&str>;
    /// Path of the request without the query, or `*`.
    fn path(&self) -> &str;
    /// Query of the request without the question mark.
    fn query(&self) -> &str;
    /// The values of the fields called `name`, in any case.
    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]>;
    /// The value of a cookie.
    fn cookie(&self, name: &str) -> Option<&[u8]>;
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

    /// True if all conditions but those on hosts and paths hold.
    fn hold(&self, asks: &impl RequestView, client: Option<IpAddr>) -> bool {
        if self.is_by_client() && !self.admit(client) {
            return false;
        }
        let is_method = || self.methods.iter().any(|method| method == asks.method());
        if !self.methods.is_empty() && !is_method() {
            return false;
        }
        let headers = self.headers.iter().all(|(name, pattern)| {
            let mut values = asks.fields(name);
            match pattern {
                Pattern::Absent => values.next().is_none(),
                pattern => values.any(|value| pattern.matches_value(value.iter().copied())),
            }
        });
        headers
            && self.query.iter().all(|(name, pattern)| {
                let mut values = parameters(asks.query(), name);
                match pattern {
                    Pattern::Absent => values.next().is_none(),
                    pattern => values.any(|value| pattern.matches_value(decoded(value))),
                }
            })
            && self.cookies.iter().all(|(name, pattern)| {
                let value = asks.cookie(name);
                match pattern {
                    Pattern::Absent => value.is_none(),
                    pattern => {
                        value.is_some_and(|value| pattern.matches_value(value.iter().copied()))
                    }
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
            && clients
            && except
            && covered(&self.headers, &other.headers)
            && covered(&self.query, &other.query)
            && covered(&self.cookies, &other.cookies)
    }
}

/// The values of a parameter of a query, encoded.
fn parameters<'a>(query: &'a str, wanted: &'a str) -> impl Iterator<Item = &'a str> {
    query.split('&').filter_map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        decoded(name).eq(wanted.bytes()).then_some(value)
    })
}

/// The bytes of a name or value of a query, as forms encode them.
fn decoded(text: &str) -> impl Iterator<Item = u8> + '_ {
    let mut rest = text.as_bytes();
    std::iter::from_fn(move || {
        let (byte, after) = match rest {
            [b'%', high, low, after @ ..] => match (path::digit(*high), path::digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (b'%', rest.get(1..)?),
            },
            [b'+', after @ ..] => (b' ', after),
            [byte, after @ ..] => (*byte, after),
            [] => return None,
        };
        rest = after;
        Some(byte)
    })
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
#[derive(Debug, Default)]
pub struct Index {
    hosts: HashMap<Box<str>, Tree>,
    /// By what follows the first dot.
    below: HashMap<Box<str>, Tree>,
    /// By what follows any dot.
    deep: HashMap<Box<str>, Tree>,
    anywhere: Option<Tree>,
    /// Segments of paths; each tree begins at one.
    nodes: Vec<Node>,
    conditions: Vec<Arc<Conditions>>,
    /// True if any route looks at paths.
    by_path: bool,
    /// True if any route depends on the client's address.
    by_client: bool,
}

/// The routes of one host.
#[derive(Debug)]
struct Tree {
    /// Routes for all paths.
    all: Vec<u32>,
    root: usize,
}

/// A path: what is known of the routes that begin with it. Numbers of routes ascend.
#[derive(Debug, Default)]
struct Node {
    children: HashMap<Box<[u8]>, usize>,
    /// Routes for this very path.
    exact: Vec<u32>,
    /// Routes for this path and all below it.
    below: Vec<u32>,
}

/// A path of a route: its segments, and whether it is for all below it, too.
fn segments(path: &str) -> (impl Iterator<Item = &str>, bool) {
    let (path, is_prefix) = match path.strip_suffix("/*") {
        Some(path) => (path, true),
        None => (path, false),
    };
    (path.split('/').skip(1), is_prefix)
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
        for (route, one) in (0..).zip(&conditions) {
            index.add(route, one);
        }
        index.by_path = conditions.iter().any(|one| !one.paths.is_empty());
        index.by_client = conditions.iter().any(|one| one.is_by_client());
        index.conditions = conditions;
        index
    }

    /// True if any route looks at paths.
    pub fn by_path(&self) -> bool {
        self.by_path
    }

    /// True if any route depends on the client's address.
    pub fn by_client(&self) -> bool {
        self.by_client
    }

    fn add(&mut self, route: u32, conditions: &Conditions) {
        let Index {
            hosts,
            below,
            deep,
            anywhere,
            nodes,
            ..
        } = self;
        if conditions.hosts.is_empty() {
            let tree = anywhere.get_or_insert_with(|| Tree::new(nodes));
            tree.add(route, conditions, nodes);
        }
        for host in &conditions.hosts {
            let (trees, host) = match (host.strip_prefix("*."), host.strip_prefix("**.")) {
                (Some(host), _) => (&mut *below, host),
                (None, Some(host)) => (&mut *deep, host),
                (None, None) => (&mut *hosts, host.as_str()),
            };
            let tree = trees.entry(host.into());
            let tree = tree.or_insert_with(|| Tree::new(nodes));
            tree.add(route, conditions, nodes);
        }
    }

    /// Finds the first route for a request of a client at this address, if it is known.
    pub fn find_route(&self, asks: &impl RequestView, client: Option<IpAddr>) -> Option<usize> {
        let mut first = u32::MAX;
        let mut look = |routes: &[u32]| {
            for &route in routes {
                if route >= first {
                    return;
                }
                let conditions = self.conditions.get(route as usize);
                if conditions.is_some_and(|conditions| conditions.hold(asks, client)) {
                    first = route;
                    return;
                }
            }
        };
        let host = asks.host().map(host_of);
        let mut space = [0; MAX_HOST];
        let host = host.and_then(|host| plain_host(host, &mut space));
        let exact = host.and_then(|host| self.hosts.get(host));
        let below = host.and_then(|host| self.below.get(host.split_once('.')?.1));
        let mut visit = |tree: &Tree| {
            look(&tree.all);
            self.walk(tree, asks.path(), &mut look);
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
    fn deep_trees<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Tree> {
        let dots = host.match_indices('.');
        dots.filter_map(move |(at, _)| self.deep.get(host.get(at + 1..)?))
    }

    /// Shows `look` the routes of `tree` for `path`.
    fn walk(&self, tree: &Tree, path: &str, look: &mut impl FnMut(&[u32])) {
        let Some(rest) = path.strip_prefix('/') else {
            return;
        };
        let Some(mut node) = self.nodes.get(tree.root) else {
            return;
        };
        look(&node.below);
        for segment in rest.split('/') {
            if node.children.is_empty() {
                return;
            }
            let mut space = [0; MAX_SEGMENT];
            let child =
                normalize_segment(segment, &mut space).and_then(|name| node.children.get(name));
            match child.and_then(|&child| self.nodes.get(child)) {
                Some(child) => node = child,
                None => return,
            }
            look(&node.below);
        }
        look(&node.exact);
    }

    /// An earlier route that takes all requests of `route`, if there is one: of each of its hosts and
    /// paths.
    pub fn covering(&self, route: usize) -> Option<usize> {
        let conditions = self.conditions.get(route)?;
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
                let earlier = earlier as usize;
                if found.is_some() || earlier >= route || left == 0 {
                    return;
                }
                left -= 1;
                let earlier_ones = self.conditions.get(earlier);
                if earlier_ones.is_some_and(|one| one.cover(conditions)) {
                    found = Some(earlier);
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
            let (segments, is_prefix) = segments(path);
            let mut node = self.nodes.get(tree.root);
            look(node.map_or(&[], |node| &node.below));
            for segment in segments {
                let mut space = [0; MAX_SEGMENT];
                let name = normalize_segment(segment, &mut space);
                node = node.and_then(|node| self.nodes.get(*node.children.get(name?)?));
                look(node.map_or(&[], |node| &node.below));
            }
            if !is_prefix {
                look(node.map_or(&[], |node| &node.exact));
            }
        }
        found
    }
}

/// Most routes that one is compared with to find out whether they leave it anything, so that the
/// check of many routes of one path does not take the square of their number.
const MAX_COMPARED: usize = 500;

impl Tree {
    fn new(nodes: &mut Vec<Node>) -> Self {
        nodes.push(Node::default());
        Tree {
            all: Vec::new(),
            root: nodes.len() - 1,
        }
    }

    fn add(&mut self, route: u32, conditions: &Conditions, nodes: &mut Vec<Node>) {
        if conditions.paths.is_empty() {
            put(&mut self.all, route);
        }
        for path in &conditions.paths {
            let (segments, is_prefix) = segments(path);
            let mut at = self.root;
            for segment in segments {
                let mut space = [0; MAX_SEGMENT];
                let Some(name) = normalize_segment(segment, &mut space) else {
                    return;
                };
                let next = nodes.len();
                let Some(node) = nodes.get_mut(at) else {
                    return;
                };
                at = *node.children.entry(name.into()).or_insert(next);
                if at == next {
                    nodes.push(Node::default());
                }
            }
            if let Some(node) = nodes.get_mut(at) {
                let routes = match is_prefix {
                    true => &mut node.below,
                    false => &mut node.exact,
                };
                put(routes, route);
            }
        }
    }
}

/// Adds a route once.
fn put(routes: &mut Vec<u32>, route: u32) {
    if routes.last() != Some(&route) {
        routes.push(route);
    }
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

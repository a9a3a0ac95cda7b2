//! Groups of members that routes name: their names, their tables, and the rules that use them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use evenkeel_config::{GeneratedPart, ServicePort};

use super::binding::Binding;
use super::group_policies::GroupTuning;
use super::objects::ObjectName;
use super::route_key::RouteKey;
use super::shares::{self, ServiceShare};
use super::text::{Lines, OwnedPart, Owner, Text, hash_of, quote, short_name};

/// Group whose requests fail: the share of targets that cannot be used.
pub(crate) const NOBODY: &str = "kubernetes.nobody";

/// Returns the name for `parts`, of at most 64 characters, that `is_free` lets them have.
fn find_name(parts: &[&str], is_free: impl Fn(&str) -> bool) -> String {
    let base = short_name(parts);
    let mut number = 1;
    loop {
        let name = match number {
            1 => base.clone(),
            _ => {
                let kept: String = base.chars().take(56).collect();
                format!("{kept}-{number}")
            }
        };
        if is_free(&name) {
            return name;
        }
        number += 1;
    }
}

/// Unique names of rules of at most 64 characters.
#[derive(Debug, Default)]
pub(crate) struct Names {
    used: HashMap<String, Vec<String>>,
}

impl Names {
    /// Returns the name for `parts`. Other parts never get the same name.
    pub(crate) fn find(&mut self, parts: &[&str]) -> String {
        let name = find_name(parts, |name| {
            self.used.get(name).is_none_or(|known| *known == parts)
        });
        let parts = || parts.iter().map(|part| (*part).to_owned()).collect();
        self.used.entry(name.clone()).or_insert_with(parts);
        name
    }
}

/// Protocol of the members of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    /// Protocol HTTP/1.1, or any of connections.
    Plain,
    /// Protocol HTTP/2 by prior knowledge.
    Http2,
}

/// Members of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Members {
    /// Endpoints of a port of a service.
    Service(u16, Protocol),
    /// Endpoints of a port of a service for datagrams: the number of the port, and the name, if the port has one.
    Datagrams(u16, Option<String>),
    /// Endpoints of a port of a service that speak TLS, with the line that says how, and the secret of the certificate that
    /// they see.
    Tls(u16, Protocol, String, Option<ObjectName>),
    /// Engines of a pool: pods and ports, as members of a configuration name them.
    Pool(Vec<ServicePort>),
    /// Endpoints of a port of a service, with further lines of the group.
    Tuned(u16, Vec<String>),
    /// Endpoints of several services, with the share of each, and further lines of the group.
    Shares(Vec<ServiceShare>, Vec<String>),
}

/// Group of members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    /// Service or pool.
    pub(crate) target: ObjectName,
    pub(crate) members: Members,
    pub(crate) binding: Option<Binding>,
    /// Settings by policies.
    pub(crate) tuning: Option<Arc<GroupTuning>>,
    /// Hash of the actions by which the group differs from another one with the same members, if a rule has both.
    pub(crate) actions: Option<u64>,
}

impl Group {
    /// Writes the members, and what they need.
    fn write_members(&self, text: &mut Lines) {
        let list = |members: &[String]| {
            let members = members.iter();
            let keys = self.tuning.iter().flat_map(|of| &of.member);
            let keys: String = keys.map(|line| format!(", {}", line.write())).collect();
            let members: Vec<String> = members
                .map(|member| format!("{{ kubernetes = {}{keys} }}", quote(member)))
                .collect();
            format!("members = [{}]", members.join(", "))
        };
        self.write_tuning(text);
        match &self.members {
            Members::Service(port, protocol) => {
                text.line(&list(&[format!("{}:{port}", self.target)]));
                if *protocol == Protocol::Http2 {
                    text.line("member_protocol = \"h2\"");
                }
            }
            Members::Datagrams(port, name) => {
                // A port for TCP may have the same number, and has another name.
                let port = port.to_string();
                let port = name.as_deref().unwrap_or(&port);
                text.line(&list(&[format!("{}:{port}", self.target)]));
            }
            Members::Tls(port, protocol, line, _) => {
                text.line(&list(&[format!("{}:{port}", self.target)]));
                text.line(line);
                if *protocol == Protocol::Http2 {
                    text.line("member_protocol = \"h2\"");
                }
            }
            Members::Shares(shares, lines) => shares::write_shares(shares, lines, text),
            Members::Pool(ports) => {
                let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
                text.line(&list(&ports));
                text.line("strategy = \"inference\"");
            }
            Members::Tuned(port, lines) => {
                text.line(&list(&[format!("{}:{port}", self.target)]));
                lines.iter().for_each(|line| text.line(line));
            }
        }
    }
}

impl Group {
    /// Writes the settings by policies that neither the members nor annotations of an Ingress set.
    fn write_tuning(&self, text: &mut Lines) {
        let is_set = |key: &str| match &self.members {
            Members::Pool(_) => key == "strategy",
            Members::Tuned(_, lines) => lines.iter().any(|line| {
                let (set, _) = line.split_once('=').unwrap_or_default();
                set.trim_end() == key
            }),
            _ => false,
        };
        let lines = self.tuning.iter().flat_map(|of| &of.group);
        for line in lines.filter(|line| !is_set(&line.key)) {
            text.line(&line.write());
        }
    }
}

/// Group with its name.
#[derive(Debug)]
pub(crate) struct NamedGroup {
    name: String,
    /// Parts of which the name is made. Other parts never get the same name.
    parts: Vec<String>,
    group: Group,
    /// Table of the group in the text, once somebody has needed the table.
    table: OnceLock<Box<str>>,
}

impl PartialEq for NamedGroup {
    fn eq(&self, other: &Self) -> bool {
        // The name is made of the parts, and the table of both.
        self.name == other.name && self.parts == other.parts && self.group == other.group
    }
}

impl GeneratedPart for NamedGroup {
    fn text(&self) -> &str {
        self.table.get_or_init(|| self.write_table().into())
    }
}

impl NamedGroup {
    /// Returns the name of the group.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Writes the table of the group.
    fn write_table(&self) -> String {
        let (mut text, group) = (Lines::default(), &self.group);
        text.line(&format!("[group.{}]", quote(&self.name)));
        group.write_members(&mut text);
        if let Some(binding) = &group.binding {
            text.line(&binding.write_line(&self.name));
        }
        text.into_string()
    }
}

/// Groups of a rule.
#[derive(Debug)]
pub(crate) struct RuleGroups {
    pub(crate) owner: Arc<Owner>,
    /// All groups that the rule names.
    pub(crate) groups: Vec<Arc<NamedGroup>>,
    /// True if the rule is part of the configuration.
    pub(crate) is_used: bool,
}

/// Use of a group: the route, and the number of its rule.
type Use = (RouteKey, usize);

/// Group that routes of requests name.
#[derive(Clone, Debug)]
struct KnownGroup {
    named: Arc<NamedGroup>,
    /// Number of times that rules name the group.
    count: usize,
    /// Rules that use the group, with the place of the group among those that the rule names.
    users: BTreeMap<Use, (usize, Arc<Owner>)>,
}

impl KnownGroup {
    /// Returns the first use, and the place among the groups of the rule.
    fn find_first(&self) -> Option<(Use, usize)> {
        let (first, (place, _)) = self.users.first_key_value()?;
        Some((first.clone(), *place))
    }
}

/// Groups of routes of requests, which come and go one by one.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouteGroups {
    known: HashMap<String, KnownGroup>,
    /// Groups that rules use, by their first uses.
    used: BTreeMap<(Use, usize), Arc<NamedGroup>>,
    /// Number of routes some of whose requests fail.
    failing: usize,
}

impl RouteGroups {
    /// Adds the groups of the rules of a route: equal groups become one. Returns false if another group has the name of one
    /// of them; then these groups are of no use any more.
    pub(crate) fn add_route(
        &mut self,
        route: &RouteKey,
        rules: &mut [RuleGroups],
        is_failing: bool,
    ) -> bool {
        self.failing += usize::from(is_failing);
        for (number, rule) in rules.iter_mut().enumerate() {
            for (place, named) in rule.groups.iter_mut().enumerate() {
                if !self.known.contains_key(&named.name) {
                    let known = KnownGroup {
                        named: Arc::clone(named),
                        count: 0,
                        users: BTreeMap::new(),
                    };
                    self.known.insert(named.name.clone(), known);
                }
                let Some(known) = self.known.get_mut(&named.name) else {
                    continue;
                };
                if !Arc::ptr_eq(&known.named, named) {
                    if known.named != *named {
                        return false;
                    }
                    *named = Arc::clone(&known.named);
                }
                known.count += 1;
                if rule.is_used {
                    let first = known.find_first();
                    let of_rule = (route.clone(), number);
                    let user = || (place, Arc::clone(&rule.owner));
                    known.users.entry(of_rule).or_insert_with(user);
                    move_group(&mut self.used, first, known);
                }
            }
        }
        true
    }

    /// Removes the groups of the rules of a route.
    pub(crate) fn remove_route(
        &mut self,
        route: &RouteKey,
        rules: &[RuleGroups],
        is_failing: bool,
    ) {
        self.failing = self.failing.saturating_sub(usize::from(is_failing));
        for (number, rule) in rules.iter().enumerate() {
            for named in &rule.groups {
                let Some(known) = self.known.get_mut(&named.name) else {
                    continue;
                };
                let first = known.find_first();
                known.users.remove(&(route.clone(), number));
                move_group(&mut self.used, first, known);
                known.count = known.count.saturating_sub(1);
                if known.count == 0 {
                    self.known.remove(&named.name);
                }
            }
        }
    }
}

/// Puts a group, whose first use was `before`, at the place of its first use.
fn move_group(
    used: &mut BTreeMap<(Use, usize), Arc<NamedGroup>>,
    before: Option<(Use, usize)>,
    group: &KnownGroup,
) {
    let now = group.find_first();
    if before == now {
        return;
    }
    if let Some(before) = before {
        used.remove(&before);
    }
    if let Some(now) = now {
        used.insert(now, Arc::clone(&group.named));
    }
}

/// All groups that routes use.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Groups of routes of requests.
    of_requests: Arc<RouteGroups>,
    /// Other groups.
    known: HashMap<String, Arc<NamedGroup>>,
    /// Rules that use a group, but for those of routes of requests.
    users: HashMap<String, Vec<Arc<Owner>>>,
    /// Groups that rules use, and rules of routes of requests do not, in the order of their first uses.
    used: Vec<Arc<NamedGroup>>,
    /// Groups of the rule that is being read.
    current: Vec<Arc<NamedGroup>>,
    needs_nobody: bool,
}

impl Groups {
    /// Returns the groups of routes of requests, to which others may be added.
    pub(crate) fn of_requests(groups: &Arc<RouteGroups>) -> Self {
        Groups {
            of_requests: Arc::clone(groups),
            ..Groups::default()
        }
    }

    /// Notes that the rule which was read uses the groups that it names. Without this call the groups are left out.
    pub(crate) fn use_current(&mut self, owner: &Arc<Owner>) {
        for named in std::mem::take(&mut self.current) {
            let is_first = self.users_of(&named.name).next().is_none();
            let users = self.users.entry(named.name.clone()).or_default();
            // A rule has one owner, at one address in memory.
            if { users.last() }.is_none_or(|last| !Arc::ptr_eq(last, owner)) {
                users.push(Arc::clone(owner));
            }
            if is_first {
                self.used.push(named);
            }
        }
    }

    /// Returns the groups of the rule that was read, and forgets them.
    pub(crate) fn take_current(&mut self) -> Vec<Arc<NamedGroup>> {
        let mut groups = std::mem::take(&mut self.current);
        groups.shrink_to_fit();
        groups
    }

    /// Notes that requests of some rules fail.
    pub(crate) fn need_nobody(&mut self) {
        self.needs_nobody = true;
    }

    /// True if requests of some rules fail.
    pub(crate) fn needs_nobody(&self) -> bool {
        self.needs_nobody || self.of_requests.failing > 0
    }

    /// Forgets the groups of the rule that was read.
    pub(crate) fn drop_current(&mut self) {
        self.current.clear();
    }

    fn find_named(&self, name: &str) -> Option<&Arc<NamedGroup>> {
        let other = || Some(&self.of_requests.known.get(name)?.named);
        self.known.get(name).or_else(other)
    }

    /// Returns the group of a name.
    pub(super) fn find(&self, name: &str) -> Option<&Group> {
        Some(&self.find_named(name)?.group)
    }

    /// Returns the rules that use a group.
    pub(crate) fn users_of(&self, name: &str) -> impl Iterator<Item = &Arc<Owner>> {
        let of_requests = self.of_requests.known.get(name);
        let of_requests = of_requests.into_iter().flat_map(|of| of.users.values());
        let others = self.users.get(name).into_iter().flatten();
        of_requests.map(|(_, owner)| owner).chain(others)
    }

    /// Returns the name of the sessions of a group, if a route has set one.
    pub(crate) fn session_of(&self, name: &str) -> Option<&str> {
        self.find(name)?.binding.as_ref()?.name()
    }

    /// Returns the name of a group.
    pub(crate) fn add(&mut self, group: Group) -> String {
        let port = match &group.members {
            Members::Service(port, Protocol::Plain) => port.to_string(),
            Members::Service(port, Protocol::Http2) => format!("{port}.h2"),
            Members::Datagrams(port, _) => format!("{port}.udp"),
            Members::Tls(port, Protocol::Plain, ..) => format!("{port}.tls"),
            Members::Tls(port, Protocol::Http2, ..) => format!("{port}.tls.h2"),
            Members::Pool(_) => "pool".into(),
            Members::Shares(shares, lines) => format!("shares.{:016x}", hash_of(&(shares, lines))),
            Members::Tuned(port, lines) => format!("{port}.{:016x}", hash_of(lines)),
        };
        let binding = group.binding.as_ref().map(Binding::label);
        let mut parts = vec![
            "kubernetes",
            &group.target.namespace,
            &group.target.name,
            &port,
        ];
        let secret = match &group.members {
            Members::Tls(.., secret) => secret.as_ref(),
            _ => None,
        };
        if let Some(secret) = secret {
            parts.extend(["client", &secret.namespace, &secret.name]);
        }
        if let Some(binding) = &binding {
            parts.extend(["sticky", binding]);
        }
        let scope = group.tuning.iter().flat_map(|of| &of.scope);
        let mut scope: Vec<&str> = scope.map(String::as_str).collect();
        let has_dot = |name: &str| name.contains('.');
        let has_dots = has_dot(&group.target.namespace)
            || has_dot(&group.target.name)
            || secret.is_some_and(|secret| has_dot(&secret.name))
            || binding.as_deref().is_some_and(has_dot)
            || scope.iter().any(|name| has_dot(name));
        if !scope.is_empty() {
            scope.insert(0, "policy");
            parts.append(&mut scope);
        }
        let actions = group.actions.map(|hash| format!("{hash:016x}"));
        if let Some(hash) = &actions {
            parts.extend(["filters", hash]);
        }
        // Other parts could read alike.
        let hash = has_dots.then(|| format!("{:016x}", hash_of(&parts)));
        parts.extend(hash.as_deref());
        let name = find_name(&parts, |name| {
            let known = self.find_named(name);
            known.is_none_or(|known| known.parts == parts)
        });
        let parts = parts.iter().map(|part| (*part).to_owned()).collect();
        let named = match self.find_named(&name) {
            Some(known) => Arc::clone(known),
            None => {
                let named = Arc::new(NamedGroup {
                    name: name.clone(),
                    parts,
                    group,
                    table: OnceLock::new(),
                });
                self.known.insert(name.clone(), Arc::clone(&named));
                named
            }
        };
        self.current.push(named);
        name
    }

    /// Adds a group with the members of the group `name`, for requests with other actions. Returns its name; `None` if there
    /// is no such group.
    pub(crate) fn add_twin(&mut self, name: &str, actions: &str) -> Option<String> {
        let mut group = self.find(name)?.clone();
        let hash = hash_of(actions);
        // One cookie cannot bind clients to members of both groups.
        if let Some(binding) = &mut group.binding {
            binding.extend_name(&format!("{hash:016x}"));
        }
        group.actions = Some(hash);
        Some(self.add(group))
    }

    /// Adds groups that were made by themselves, as if they had been made here. Returns false if another group has the name
    /// of one of them; then none is added.
    pub(crate) fn add_all(&mut self, others: &Groups) -> bool {
        let is_free = |(name, named): (&String, &Arc<NamedGroup>)| {
            let known = self.find_named(name);
            known.is_none_or(|known| Arc::ptr_eq(known, named) || known == named)
        };
        if !others.known.iter().all(is_free) {
            return false;
        }
        for named in &others.used {
            if self.users_of(&named.name).next().is_none() {
                self.used.push(Arc::clone(named));
            }
            let users = others.users.get(&named.name).into_iter().flatten();
            let known = self.users.entry(named.name.clone()).or_default();
            known.extend(users.cloned());
        }
        for (name, named) in &others.known {
            let known = self.known.entry(name.clone());
            known.or_insert_with(|| Arc::clone(named));
        }
        self.needs_nobody |= others.needs_nobody;
        true
    }

    /// Returns the name of the group whose requests fail.
    pub(crate) fn use_nobody(&mut self) -> String {
        self.need_nobody();
        NOBODY.into()
    }

    /// Adds the tables of all groups to a text.
    pub(crate) fn write(&self, text: &mut Text) {
        let parts = text.groups_mut();
        parts.reserve(self.of_requests.used.len() + self.used.len() + 1);
        for named in self.of_requests.used.values().chain(&self.used) {
            parts.push(Arc::<NamedGroup>::clone(named));
        }
        if self.needs_nobody() {
            let mut lines = Lines::default();
            lines.line(&format!("[group.{}]", quote(NOBODY)));
            lines.line("members = [{ address = \"192.0.2.1:9\", drain = true }]");
            lines.line("maintenance = { on = true, status = 500 }");
            parts.push(OwnedPart::new(Owner::Group(NOBODY.into()), lines));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::{HttpRoute, Kind, Metadata};
    use super::*;

    #[test]
    fn parts_that_read_alike_get_names_of_their_own() {
        let mut names = Names::default();
        let (one, two) = (names.find(&["a", "b.c"]), names.find(&["a.b", "c"]));
        assert_eq!((one.as_str(), two.as_str()), ("a.b.c", "a.b.c-2"));
        assert_eq!(names.find(&["a", "b.c"]), one);
    }

    /// Returns a route that was created in this second.
    fn route(second: usize) -> RouteKey {
        let metadata = Metadata {
            name: format!("r{second}"),
            creation_timestamp: format!("2026-01-01T00:00:0{second}Z"),
            ..Metadata::default()
        };
        let route = HttpRoute {
            metadata,
            ..HttpRoute::default()
        };
        RouteKey {
            kind: Kind::HttpRoute,
            route: Arc::new(route),
        }
    }

    /// Returns a rule, of this number, that uses services, or only names them.
    fn rule(number: usize, services: &[&str], is_used: bool) -> RuleGroups {
        let mut groups = Groups::default();
        for service in services {
            groups.add(Group {
                target: ObjectName::new("shop", service),
                members: Members::Service(80, Protocol::Plain),
                binding: None,
                tuning: None,
                actions: None,
            });
        }
        let object = ObjectName::new("shop", "r");
        RuleGroups {
            owner: Arc::new(Owner::Rule(Kind::HttpRoute, object, number)),
            groups: groups.take_current(),
            is_used,
        }
    }

    fn list_used(of: &RouteGroups) -> Vec<&str> {
        of.used.values().map(|named| named.name()).collect()
    }

    #[test]
    fn groups_stand_in_the_order_of_their_first_uses() {
        let mut groups = RouteGroups::default();
        let mut all = [
            (
                route(1),
                vec![rule(0, &["b"], true), rule(1, &["c", "b"], true)],
            ),
            (
                route(2),
                vec![rule(2, &["a", "c"], true), rule(3, &["d"], false)],
            ),
            (route(0), vec![rule(4, &["c"], true)]),
        ];
        for (key, rules) in &mut all {
            assert!(groups.add_route(key, rules, false));
        }
        let name = |service: &str| format!("kubernetes.shop.{service}.80");
        let names = |services: &[&str]| services.iter().map(|of| name(of)).collect::<Vec<_>>();
        // No rule uses `d`, and the oldest one is the first that uses `c`.
        assert_eq!(list_used(&groups), names(&["c", "b", "a"]));
        // Equal groups are one in memory.
        assert!(Arc::ptr_eq(&all[0].1[1].groups[0], &all[2].1[0].groups[0]));
        let (used, name) = (Groups::of_requests(&Arc::new(groups.clone())), name("c"));
        let users: Vec<Owner> = used.users_of(&name).map(|of| Owner::clone(of)).collect();
        let owner = |number| Owner::Rule(Kind::HttpRoute, ObjectName::new("shop", "r"), number);
        assert_eq!(users, [4, 1, 2].map(owner));
        let (key, rules) = &mut all[2];
        groups.remove_route(key, rules, false);
        assert_eq!(list_used(&groups), names(&["b", "c", "a"]));
        assert!(groups.add_route(key, rules, false));
        assert_eq!(list_used(&groups), names(&["c", "b", "a"]));
        for (key, rules) in &all {
            groups.remove_route(key, rules, false);
        }
        assert!(groups.known.is_empty() && groups.used.is_empty());
    }

    #[test]
    fn another_group_of_the_same_name_is_noticed() {
        let mut groups = RouteGroups::default();
        let mut one = [rule(0, &["a"], true)];
        assert!(groups.add_route(&route(0), &mut one, true));
        let mut other = [rule(1, &["a"], true)];
        other[0].groups[0] = Arc::new(NamedGroup {
            name: one[0].groups[0].name.clone(),
            parts: vec!["x".into()],
            group: one[0].groups[0].group.clone(),
            table: OnceLock::new(),
        });
        assert!(!groups.add_route(&route(1), &mut other, false));
        assert!(Groups::of_requests(&Arc::new(groups)).needs_nobody());
    }
}

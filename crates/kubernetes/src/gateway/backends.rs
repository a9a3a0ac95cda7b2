//! Targets of routes: services and pools, which become groups.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_config::ServicePort;

use super::conditions::Refusal;
use super::grants::is_granted;
use super::group_policies::{GroupTuning, Layer};
use super::objects::{
    self, GROUP, INFERENCE_GROUP, Kind, ObjectName, Objects, Reference, SessionPersistence,
};
use super::policies::Policies;
use super::pools;
use super::shares::{self, ServiceShare};
use super::text::{Owner, Text, hash_of, quote, short_name};

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

/// Binding of clients to members of a group by a cookie.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Binding {
    /// Name of the cookie; a name of the balancer's, if there is none.
    cookie: Option<String>,
    /// Milliseconds for which browsers keep the cookie.
    max_age: Option<u64>,
}

impl Binding {
    /// Reads the binding of a rule.
    ///
    /// # Errors
    ///
    /// The reason why the binding is not supported.
    pub(crate) fn read(of: &SessionPersistence) -> Result<Self, String> {
        let kind = of.kind.as_deref().unwrap_or("Cookie");
        if kind != "Cookie" {
            return Err(format!(
                "sessionPersistence of type {kind} is not supported; use Cookie"
            ));
        }
        if of.idle_timeout.is_some() {
            return Err(
                "idleTimeout of sessionPersistence is not supported; use absoluteTimeout".into(),
            );
        }
        let age = of
            .absolute_timeout
            .as_deref()
            .map(read_duration)
            .transpose()?;
        let lifetime = of
            .cookie_config
            .lifetime_type
            .as_deref()
            .unwrap_or("Session");
        Ok(Binding {
            cookie: of.session_name.clone(),
            max_age: age
                .filter(|_| lifetime == "Permanent")
                .map(|age| age.max(1_000)),
        })
    }

    /// Returns the binding to one of several targets of a rule: each target has a cookie of its own.
    pub(super) fn of_several(&self, target: &Reference) -> Self {
        let port = target.port.unwrap_or_default();
        let name = |cookie: &String| format!("{cookie}-{}-{port}", target.name);
        Binding {
            cookie: self.cookie.as_ref().map(name),
            ..self.clone()
        }
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
    /// Endpoints of a port of a service that speak TLS, with the line that says how.
    Tls(u16, Protocol, String),
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
    fn write_members(&self, text: &mut Text) {
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
            Members::Tls(port, protocol, line) => {
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
    fn write_tuning(&self, text: &mut Text) {
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
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamedGroup {
    name: String,
    /// Parts of which the name is made. Other parts never get the same name.
    parts: Vec<String>,
    group: Group,
}

/// Group that routes name, and the rules that use it.
#[derive(Debug)]
struct KnownGroup {
    named: Arc<NamedGroup>,
    users: Vec<Arc<Owner>>,
}

/// All groups that routes use.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    known: HashMap<String, KnownGroup>,
    /// Groups that rules use, in the order of their first uses.
    used: Vec<Arc<NamedGroup>>,
    /// Groups of the rule that is being read.
    current: Vec<Arc<NamedGroup>>,
    needs_nobody: bool,
}

impl Groups {
    /// Returns no groups, with room for a number of them.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Groups {
            known: HashMap::with_capacity(count),
            used: Vec::with_capacity(count),
            ..Groups::default()
        }
    }

    /// Returns the number of groups.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Notes that the rule which was read uses the groups that it names. Without this call the groups are left out.
    pub(crate) fn use_current(&mut self, owner: &Arc<Owner>) {
        for named in self.current.drain(..) {
            let Some(known) = self.known.get_mut(&named.name) else {
                continue;
            };
            if known.users.is_empty() {
                self.used.push(named);
            }
            // A rule has one owner, at one address in memory.
            if { known.users.last() }.is_none_or(|last| !Arc::ptr_eq(last, owner)) {
                known.users.push(Arc::clone(owner));
            }
        }
    }

    /// Returns the groups of the rule that was read, and forgets them.
    pub(crate) fn take_current(&mut self) -> Vec<Arc<NamedGroup>> {
        std::mem::take(&mut self.current)
    }

    /// Adds the groups of a rule that was read with groups of its own: equal groups become one. Returns false if another
    /// group has the name of one of them.
    pub(crate) fn add_named(&mut self, groups: &mut [Arc<NamedGroup>]) -> bool {
        for named in groups {
            match self.known.get(&named.name) {
                Some(known) if Arc::ptr_eq(&known.named, named) => {}
                Some(known) if known.named == *named => *named = Arc::clone(&known.named),
                Some(_) => return false,
                None => {
                    let known = KnownGroup {
                        named: Arc::clone(named),
                        users: Vec::new(),
                    };
                    self.known.insert(named.name.clone(), known);
                }
            }
            self.current.push(Arc::clone(named));
        }
        true
    }

    /// Notes that requests of some rules fail.
    pub(crate) fn need_nobody(&mut self) {
        self.needs_nobody = true;
    }

    /// True if requests of some rules fail.
    pub(crate) fn needs_nobody(&self) -> bool {
        self.needs_nobody
    }

    /// Forgets the groups of the rule that was read.
    pub(crate) fn drop_current(&mut self) {
        self.current.clear();
    }

    /// Returns the group of a name.
    pub(super) fn find(&self, name: &str) -> Option<&Group> {
        Some(&self.known.get(name)?.named.group)
    }

    /// Returns the rules that use a group.
    pub(crate) fn users_of(&self, name: &str) -> &[Arc<Owner>] {
        self.known.get(name).map_or(&[], |known| &known.users)
    }

    /// Returns the name of a group's cookie, if a route has set one.
    pub(crate) fn cookie_of(&self, name: &str) -> Option<&str> {
        let binding = self.find(name)?.binding.as_ref()?;
        binding.cookie.as_deref()
    }

    /// Returns the name of a group.
    pub(crate) fn add(&mut self, group: Group) -> String {
        let port = match &group.members {
            Members::Service(port, Protocol::Plain) => port.to_string(),
            Members::Service(port, Protocol::Http2) => format!("{port}.h2"),
            Members::Datagrams(port, _) => format!("{port}.udp"),
            Members::Tls(port, Protocol::Plain, _) => format!("{port}.tls"),
            Members::Tls(port, Protocol::Http2, _) => format!("{port}.tls.h2"),
            Members::Pool(_) => "pool".into(),
            Members::Shares(shares, lines) => format!("shares.{:016x}", hash_of(&(shares, lines))),
            Members::Tuned(port, lines) => format!("{port}.{:016x}", hash_of(lines)),
        };
        let binding = group.binding.as_ref().map(|of| {
            format!(
                "{}-{}",
                of.cookie.as_deref().unwrap_or_default(),
                of.max_age.unwrap_or_default()
            )
        });
        let mut parts = vec![
            "kubernetes",
            &group.target.namespace,
            &group.target.name,
            &port,
        ];
        if let Some(binding) = &binding {
            parts.extend(["sticky", binding]);
        }
        let scope = group.tuning.iter().flat_map(|of| &of.scope);
        let mut scope: Vec<&str> = scope.map(String::as_str).collect();
        if !scope.is_empty() {
            scope.insert(0, "policy");
            parts.append(&mut scope);
        }
        let actions = group.actions.map(|hash| format!("{hash:016x}"));
        if let Some(hash) = &actions {
            parts.extend(["filters", hash]);
        }
        let name = find_name(&parts, |name| {
            let known = self.known.get(name);
            known.is_none_or(|known| known.named.parts == parts)
        });
        let parts = parts.iter().map(|part| (*part).to_owned()).collect();
        let known = self.known.entry(name.clone()).or_insert_with(|| {
            let name = name.clone();
            let named = Arc::new(NamedGroup { name, parts, group });
            KnownGroup {
                named,
                users: Vec::new(),
            }
        });
        self.current.push(Arc::clone(&known.named));
        name
    }

    /// Adds a group with the members of the group `name`, for requests with other actions. Returns its name; `None` if there
    /// is no such group.
    pub(crate) fn add_twin(&mut self, name: &str, actions: &str) -> Option<String> {
        let mut group = self.find(name)?.clone();
        let hash = hash_of(actions);
        // One cookie cannot bind clients to members of both groups.
        if let Some(cookie) = group.binding.as_mut().and_then(|of| of.cookie.as_mut()) {
            cookie.push_str(&format!("-{hash:016x}"));
        }
        group.actions = Some(hash);
        Some(self.add(group))
    }

    /// Returns the name of the group whose requests fail.
    pub(crate) fn use_nobody(&mut self) -> String {
        self.need_nobody();
        NOBODY.into()
    }

    /// Writes the tables of all groups.
    pub(crate) fn write(&self, text: &mut Text) {
        for named in &self.used {
            let (name, group) = (&named.name, &named.group);
            text.begin_group(Owner::Group(name.clone()));
            text.line(&format!("[group.{}]", quote(name)));
            group.write_members(text);
            if let Some(binding) = &group.binding {
                let cookie = binding
                    .cookie
                    .as_ref()
                    .map(|name| format!("cookie = {}", quote(name)));
                let age = binding.max_age.map(|age| format!("max_age = \"{age}ms\""));
                let keys: Vec<String> = cookie.into_iter().chain(age).collect();
                text.line(&format!("sticky = {{ {} }}", keys.join(", ")));
            }
        }
        if self.needs_nobody {
            text.begin_group(Owner::Group(NOBODY.into()));
            text.line(&format!("[group.{}]", quote(NOBODY)));
            text.line("members = [{ address = \"192.0.2.1:9\", drain = true }]");
            text.line("maintenance = { on = true, status = 500 }");
        }
    }
}

/// Route whose targets are looked at.
#[derive(Clone, Copy)]
pub(crate) struct Referrer<'o> {
    pub(crate) objects: &'o Objects,
    pub(crate) policies: &'o Policies,
    /// Policies of the route and its gateways.
    pub(crate) inherited: &'o [Arc<Layer>],
    pub(crate) kind: Kind,
    pub(crate) namespace: &'o str,
    /// True if TLS of clients ends at the balancer.
    pub(crate) ends_tls: bool,
}

impl Referrer<'_> {
    /// Returns the group of a target.
    ///
    /// # Errors
    ///
    /// The reason why the target cannot be used.
    pub(crate) fn find_group(
        self,
        target: &Reference,
        binding: Option<&Binding>,
        groups: &mut Groups,
    ) -> Result<String, Refusal> {
        let group = target.group.as_deref().unwrap_or_default();
        let kind = target.kind.as_deref().unwrap_or("Service");
        let is_pool = (group, kind) == (INFERENCE_GROUP, Kind::InferencePool.name())
            && self.kind == Kind::HttpRoute;
        if (group, kind) != ("", "Service") && !is_pool {
            let message = match self.kind {
                Kind::HttpRoute => {
                    format!(
                        "a target cannot be a {group}/{kind}; name a Service or an InferencePool"
                    )
                }
                _ => format!("a target cannot be a {group}/{kind}; name a Service"),
            };
            return Err(("InvalidKind", message));
        }
        let name = target.target(self.namespace);
        let from = (GROUP, self.kind.name(), self.namespace);
        if !is_granted(self.objects, from, (group, kind), &name) {
            let message = format!(
                "no ReferenceGrant in namespace {} lets a {} of {} refer to {kind} {}; create one",
                name.namespace,
                self.kind.name(),
                self.namespace,
                name.name
            );
            return Err(("RefNotPermitted", message));
        }
        let members = match is_pool {
            true => Members::Pool(pools::list_engines(self.objects, &name)?),
            false => match self.find_port(target, &name)? {
                Some(members) => members,
                None => return Ok(groups.use_nobody()),
            },
        };
        let tuning = match is_pool {
            true => self.find_tuning(Kind::InferencePool, &name, None),
            false => {
                let ports = { self.objects.services.get(&name) }
                    .into_iter()
                    .flat_map(|of| of.spec.ports.iter());
                let mut ports = ports.filter(|of| Some(of.port) == target.port);
                let port = ports.find(|of| self.has_transport(of));
                let port = port.and_then(|of| of.name.as_deref());
                self.find_tuning(Kind::Service, &name, port)
            }
        };
        Ok(groups.add(Group {
            target: name,
            members,
            binding: binding.cloned(),
            tuning,
            actions: None,
        }))
    }

    /// Returns the settings of a group by policies.
    fn find_tuning(
        self,
        kind: Kind,
        name: &ObjectName,
        port: Option<&str>,
    ) -> Option<Arc<GroupTuning>> {
        let of_groups = &self.policies.groups;
        of_groups.find_tuning(kind, name, port, self.inherited)
    }

    /// Returns the protocol of the transport to members.
    fn transport(self) -> &'static str {
        match self.kind {
            Kind::UdpRoute => "UDP",
            _ => "TCP",
        }
    }

    /// True if a port of a service is one for the transport to members.
    fn has_transport(self, port: &objects::ServicePort) -> bool {
        port.protocol.as_deref().unwrap_or("TCP") == self.transport()
    }

    /// Returns the members of a service to which a target refers: those of a port. `None` if requests fail, because
    /// certificates of members cannot be verified.
    ///
    /// # Errors
    ///
    /// The reason why the service or the port cannot be used.
    fn find_port(self, target: &Reference, name: &ObjectName) -> Result<Option<Members>, Refusal> {
        let not_found = |message| ("BackendNotFound", message);
        let service = self.objects.services.get(name);
        let service =
            service.ok_or_else(|| not_found(format!("there is no Service {name}; create it")))?;
        let Some(number) = target.port else {
            return Err(not_found(format!(
                "the reference to Service {name} has no port; add one"
            )));
        };
        let (is_udp, transport) = (self.kind == Kind::UdpRoute, self.transport());
        let mut ports = service.spec.ports.iter();
        let port = ports.find(|port| port.port == number && self.has_transport(port));
        let Some(port) = port else {
            return Err(not_found(format!(
                "Service {name} has no port {number} of {transport}; choose one of its ports"
            )));
        };
        let port_name = port.name.as_deref().filter(|name| !name.is_empty());
        let number_text = number.to_string();
        let wanted = port_name.filter(|_| is_udp).unwrap_or(&number_text);
        if service.spec.kind.as_deref() == Some("ExternalName")
            || ServicePort::from_text(&format!("{name}:{wanted}")).is_none()
        {
            let message =
                format!("Service {name} has no endpoints of its own; name another Service");
            return Err(("UnsupportedProtocol", message));
        }
        if is_udp {
            let port_name = port_name.map(str::to_owned);
            return Ok(Some(Members::Datagrams(number, port_name)));
        }
        let tls = match self.kind {
            // TLS of the client ends at the members.
            Kind::TlsRoute if !self.ends_tls => None,
            _ => self.policies.find_line(name, port),
        };
        let protocol = self.find_protocol(name, port, tls.is_some())?;
        Ok(match tls {
            None => Some(Members::Service(number, protocol)),
            Some(Ok(line)) => Some(Members::Tls(number, protocol, line.to_owned())),
            Some(Err(_)) if self.kind.is_of_requests() => None,
            Some(Err(message)) => return Err(("InvalidBackendTLSPolicy", message)),
        })
    }

    /// Returns the protocol of the members at a port of a service.
    ///
    /// # Errors
    ///
    /// The balancer does not speak the protocol.
    fn find_protocol(
        self,
        name: &ObjectName,
        port: &objects::ServicePort,
        has_tls: bool,
    ) -> Result<Protocol, Refusal> {
        Ok(match port.app_protocol.as_deref() {
            _ if !self.kind.is_of_requests() => Protocol::Plain,
            Some(protocol @ ("kubernetes.io/wss" | "https")) if !has_tls => {
                let message = format!(
                    "port {} of Service {name} has appProtocol {protocol}, which needs a BackendTLSPolicy; create one, or name a port without TLS",
                    port.port
                );
                return Err(("UnsupportedProtocol", message));
            }
            Some("kubernetes.io/h2c") => Protocol::Http2,
            _ if self.kind == Kind::GrpcRoute => Protocol::Http2,
            _ => Protocol::Plain,
        })
    }
}

/// Reads a duration of the Gateway API (GEP-2257) in milliseconds.
///
/// # Errors
///
/// The text is no duration.
pub(crate) fn read_duration(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no duration; write one as \"1m30s\"");
    let (mut sum, mut rest) = (0_u64, text);
    if rest.is_empty() || rest.len() > 32 {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let end = rest
            .find(|byte: char| !byte.is_ascii_digit())
            .ok_or_else(wrong)?;
        let (digits, after) = rest.split_at(end);
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
        let unit = units
            .iter()
            .find_map(|(unit, millis)| Some((after.strip_prefix(unit)?, millis)));
        let (after, millis) = unit.ok_or_else(wrong)?;
        sum = sum.saturating_add(number.saturating_mul(*millis));
        rest = after;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(read_duration("1h30m5s10ms"), Ok(5_405_010));
        assert_eq!(read_duration("0s"), Ok(0));
        for wrong in ["", "1", "s", "1d", "-1s", "1.5s", "é", &"9".repeat(40)] {
            assert!(read_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_that_read_alike_get_names_of_their_own() {
        let mut names = Names::default();
        let (one, two) = (names.find(&["a", "b.c"]), names.find(&["a.b", "c"]));
        assert_eq!((one.as_str(), two.as_str()), ("a.b.c", "a.b.c-2"));
        assert_eq!(names.find(&["a", "b.c"]), one);
    }
}

//! Inputs from which a state is made: the configuration file, the live changes, and the addresses that DNS
//! gave.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::member::Weight;
use evenkeel_core::strategy::Values;
use evenkeel_core::time::Instant;

use crate::admission::Admission;
use crate::config::{Config, GroupConfig, MemberConfig, SharedGroup};
use crate::files::Files;
use crate::lists::Lists;
use crate::member_tls::Clients;
use crate::sticky::Cookies;

/// Time for which an endpoint that left is kept, and longer while it has requests. A DNS server that gives a
/// part of its addresses at a time gives each of them again sooner. The endpoint must find its slot then, or
/// it would start slowly again and again, and get more than `max_connections` while its old requests run.
pub(crate) const DEPARTED_FOR: Duration = Duration::from_secs(300);

/// Administrator's setting for a member.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    schemars::JsonSchema,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum AdminState {
    /// The member takes traffic.
    #[default]
    Ready,
    /// The member gets no new traffic; bindings may stay.
    Drain,
    /// The member gets no traffic; bindings are moved.
    Maintenance,
}

/// Administrator's setting for the load alert of a location.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    schemars::JsonSchema,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum AlertSetting {
    /// Groups raise and lift it by the load.
    #[default]
    Auto,
    /// The location has an alert, whatever the load: its clients leave it bit by bit.
    On,
    /// The location has no alert, whatever the load.
    Off,
}

/// Inputs from which a state is made.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    /// Configuration as in the file, with the rules and groups that a controller has generated.
    pub config: Arc<Config>,
    /// Configuration as in the file.
    pub own: Arc<Config>,
    /// Changes since the file was read.
    pub live: Live,
    /// Contents of the lists of members.
    pub lists: Lists,
    /// The last addresses of each DNS name; names that never resolved are not there.
    pub addresses: HashMap<String, Vec<IpAddr>>,
    /// Addresses where the data plane listens already.
    pub listening: Vec<SocketAddr>,
    /// TLS clients for `member_tls` of groups, as they were read with the file.
    pub clients: Clients,
    /// The cookies of groups, with keys that were read in the same way.
    pub cookies: Cookies,
    /// Contents of the files of rules and routes, read in the same way.
    pub files: Files,
}

/// Live changes. They last until the process ends, or until the file changes the very thing that they change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    /// True for a rule that is enabled, by the rule's name.
    pub enabled: HashMap<String, bool>,
    /// True for a rule in maintenance, by the rule's name.
    pub maintenance: HashMap<String, bool>,
    /// True for a group in maintenance, by the group's name.
    pub group_maintenance: HashMap<String, bool>,
    /// Strategies of groups, by the groups' names.
    pub strategies: HashMap<String, Values>,
    /// Administrators' settings by group and member. A member is named as in the file, or by one endpoint's
    /// full name, which is stronger.
    pub admin: HashMap<(String, String), AdminState>,
    /// Weights by group and member, as in `admin`.
    pub weights: HashMap<(String, String), Weight>,
    /// Backups (true) and members that are none (false), by group and member, as in `admin`.
    pub backups: HashMap<(String, String), bool>,
    /// Members that agents have registered, by group. A member counts if agents may join the group, and the
    /// file has no such member.
    pub joined: HashMap<String, Vec<MemberConfig>>,
    /// Members of lists and agents that are not there now, by group and name, and since when: changes of them still
    /// count when they come back.
    pub absent_members: HashMap<(String, String), Instant>,
    /// Forced and suppressed load alerts by location, about which the file says nothing.
    pub alerts: HashMap<String, bool>,
    /// Groups that do not stand in the file, by name, with who owns them.
    pub groups: BTreeMap<String, (&'static str, SharedGroup)>,
    /// Locations that somebody needs, whether a member is there or not.
    pub needed_locations: BTreeSet<String>,
}

impl Inputs {
    pub(crate) fn new() -> Self {
        Inputs {
            config: Arc::default(),
            own: Arc::default(),
            live: Live::default(),
            lists: Lists::default(),
            addresses: HashMap::new(),
            listening: Vec::new(),
            clients: Clients::new(),
            cookies: Cookies::new(),
            files: Files::default(),
        }
    }

    /// The inputs after the file has become `config`. A live change stays where the
    /// file says the same as before; where it says something new, the file wins.
    pub(crate) fn with_config(&self, config: Config, lists: Lists, now: Instant) -> Inputs {
        let mut next = Inputs {
            config: Arc::new(config),
            lists,
            own: Arc::clone(&self.own),
            live: self.live.clone(),
            addresses: self.addresses.clone(),
            listening: self.listening.clone(),
            clients: self.clients.clone(),
            cookies: self.cookies.clone(),
            files: self.files.clone(),
        };
        next.keep_live(self, now);
        next.forget_addresses();
        next
    }

    /// The inputs after lists have become `lists`. A live change of a member stays as in
    /// [`Inputs::with_config`].
    pub(crate) fn with_lists(&self, lists: Lists, now: Instant) -> Inputs {
        let mut next = Inputs {
            lists,
            ..self.clone()
        };
        next.keep_live(self, now);
        next.forget_addresses();
        next
    }

    /// Forgets the addresses of names that no member has.
    fn forget_addresses(&mut self) {
        if self.addresses.is_empty() {
            return;
        }
        let hosts = self.host_names();
        self.addresses.retain(|host, _| hosts.contains_key(host));
    }

    /// The DNS names of members, each with how often it is to be resolved, at least; `None` is
    /// as its TTL has it.
    pub(crate) fn host_names(&self) -> HashMap<String, Option<Duration>> {
        host_names(&self.config, &self.lists)
    }

    /// The inputs after the groups that do not stand in the file, and that `owner` has,
    /// have become `groups`. A live change stays as in [`Inputs::with_config`].
    pub(crate) fn with_groups(
        &self,
        owner: &'static str,
        groups: Vec<GroupConfig>,
        now: Instant,
    ) -> Inputs {
        let mut next = self.clone();
        next.live.groups.retain(|_, (of, _)| *of != owner);
        let named = |group: GroupConfig| (group.name.clone(), (owner, group.into()));
        next.live.groups.extend(groups.into_iter().map(named));
        next.keep_live(self, now);
        next
    }

    /// Takes in the members that agents have registered now. Live changes of one that is gone stay as in
    /// [`Inputs::with_lists`].
    pub(crate) fn set_joined(&mut self, joined: HashMap<String, Vec<MemberConfig>>, now: Instant) {
        let old = self.clone();
        self.live.joined = joined;
        self.keep_live(&old, now);
    }

    /// Forgets live changes of what is gone, or is not as it was in `old`. Changes of members that a list or an agent
    /// has taken away stay for [`DEPARTED_FOR`].
    fn keep_live(&mut self, old: &Inputs, now: Instant) {
        let mut live = std::mem::take(&mut self.live);
        // Who looks for members must see them.
        self.live.groups = std::mem::take(&mut live.groups);
        let new = &*self;
        let enabled = |inputs: &Inputs, name: &str| {
            let mut rules = inputs.config.rules.iter();
            rules.find(|rule| rule.name == name).map(|r| r.enabled)
        };
        let maintenance = |inputs: &Inputs, name: &str| {
            let mut rules = inputs.config.rules.iter();
            let rule = rules.find(|rule| rule.name == name);
            rule.map(|rule| rule.responses.is_in_maintenance())
        };
        let group_maintenance = |inputs: &Inputs, name: &str| {
            let group = inputs.group(name);
            group.map(|group| group.responses.is_in_maintenance())
        };
        let same = |before: Option<bool>, after: Option<bool>| after.is_some() && before == after;
        live.enabled
            .retain(|name, _| same(enabled(old, name), enabled(new, name)));
        live.maintenance
            .retain(|name, _| same(maintenance(old, name), maintenance(new, name)));
        let of_group =
            |name: &str| same(group_maintenance(old, name), group_maintenance(new, name));
        live.group_maintenance.retain(|name, _| of_group(name));
        let changed_groups = live.list_groups();
        let with_lists = |inputs: &Inputs| -> HashMap<String, GroupConfig> {
            let groups = inputs.config.groups.iter();
            let groups = groups.filter(|group| changed_groups.contains(&group.name));
            let groups = groups.filter_map(|group| {
                let listed = inputs.lists.list_members(group);
                let mut group = (!listed.is_empty()).then(|| GroupConfig::clone(group))?;
                group.members.extend(listed);
                Some((group.name.clone(), group))
            });
            groups.collect()
        };
        let (old_lists, new_lists) = (with_lists(old), with_lists(new));
        live.keep_of_groups(now, |name| {
            let old = old_lists.get(name).or_else(|| old.group(name));
            (old, new_lists.get(name).or_else(|| new.group(name)))
        });
        live.groups = std::mem::take(&mut self.live.groups);
        self.live = live;
    }

    /// Returns the judge of members whose address the file does not name: nobody becomes a member where the
    /// data plane listens, or is about to.
    pub(crate) fn admission(&self) -> Admission {
        let all = self.listening.iter().copied().chain(self.config.listens());
        Admission::new(all.filter(|address| address.port() != 0).collect())
    }

    /// The zone of a member at this location: its own, or else that of the location.
    pub(crate) fn zone_of<'a>(
        &'a self,
        member: &'a MemberConfig,
        location: &str,
    ) -> Option<&'a str> {
        let of_location = || {
            let mut locations = self.config.locations.iter();
            let found = locations.find(|of| of.name == location)?;
            found.zone.as_deref()
        };
        member.zone.as_deref().or_else(of_location)
    }

    /// True if there may be members whose address the file does not name.
    pub(crate) fn has_guests(&self) -> bool {
        !self.live.joined.is_empty() || !self.addresses.is_empty()
    }

    /// Returns all groups, each with its owner if the group does not stand in the file.
    pub(crate) fn all_groups(&self) -> impl Iterator<Item = (Option<&'static str>, &SharedGroup)> {
        let in_file = self.config.groups.iter().map(|group| (None, group));
        let live = self.live.groups.values();
        in_file.chain(live.map(|(owner, group)| (Some(*owner), group)))
    }

    /// True if the group is in maintenance, by the file or a live change.
    pub(crate) fn is_in_maintenance(&self, group: &GroupConfig) -> bool {
        let live = self.live.group_maintenance.get(&group.name);
        live.copied()
            .unwrap_or_else(|| group.responses.is_in_maintenance())
    }

    pub(crate) fn group(&self, name: &str) -> Option<&GroupConfig> {
        let mut in_file = self.config.groups.iter();
        let in_file = in_file.find(|group| group.name == name);
        let in_file = in_file.map(|group| &**group);
        in_file.or_else(|| Some(&*self.live.groups.get(name)?.1))
    }

    #[cfg(test)]
    pub(crate) fn member(&self, group: &str, name: &str) -> Option<&MemberConfig> {
        member_of(self.group(group)?, name)
    }
}

/// Returns the DNS names of members, with the resolving interval of [`Inputs::host_names`].
pub(crate) fn host_names(config: &Config, lists: &Lists) -> HashMap<String, Option<Duration>> {
    let mut hosts: HashMap<String, Option<Duration>> = HashMap::new();
    for group in &config.groups {
        // Members that subsystems find have addresses.
        let may_have_names = !group.members_files.is_empty()
            || group.services.iter().any(|of| of.kubernetes.is_none());
        let listed = match may_have_names {
            true => lists.list_members(group),
            false => Vec::new(),
        };
        let names = group.members.iter().chain(&listed);
        for member in names.filter(|member| member.is_looked_up()) {
            let interval = group.dns_interval;
            match hosts.get_mut(&member.host) {
                Some(known) => *known = interval.into_iter().chain(*known).min(),
                None => drop(hosts.insert(member.host.clone(), interval)),
            }
        }
    }
    hosts
}

/// The member of a group that `name`, its own or an endpoint's, belongs to.
fn member_of<'a>(group: &'a GroupConfig, name: &str) -> Option<&'a MemberConfig> {
    let called = |name: &str| group.members.iter().find(|member| member.name() == name);
    called(name).or_else(|| called(endpoint_of(name)?))
}

impl Live {
    /// Returns the names of the groups whose strategies or members were changed live.
    fn list_groups(&self) -> HashSet<String> {
        let of_members = { self.admin.keys() }.chain(self.weights.keys());
        let of_members = of_members.chain(self.backups.keys());
        let of_members = of_members.chain(self.absent_members.keys());
        let of_members = of_members.map(|(group, _)| group);
        of_members.chain(self.strategies.keys()).cloned().collect()
    }

    /// Forgets changes of what is gone, or is not as it was: `group` answers, for each group
    /// of which something is known, what it was and what it is.
    pub(crate) fn keep_of_groups<'a>(
        &mut self,
        now: Instant,
        group: impl Fn(&str) -> (Option<&'a GroupConfig>, Option<&'a GroupConfig>),
    ) {
        self.strategies.retain(|name, _| match group(name) {
            (Some(old), Some(new)) => old.strategy == new.strategy,
            _ => false,
        });
        let joined = &self.joined;
        let (before, mut gone) = (std::mem::take(&mut self.absent_members), HashMap::new());
        let mut stays =
            |name: &str, member: &str, same: fn(&MemberConfig, &MemberConfig) -> bool| {
                let (old, new) = group(name);
                let key = (name.to_owned(), member.to_owned());
                let since = before.get(&key).copied();
                let is_kept = |since: Instant| now.since(since) <= DEPARTED_FOR;
                match new.and_then(|new| member_of(new, member)) {
                    Some(new) => match old.and_then(|old| member_of(old, member)) {
                        Some(old) => same(old, new),
                        // A list lacked it for a while.
                        None => since.is_some_and(is_kept),
                    },
                    // The file has never said anything about those.
                    None => {
                        let mut joined = joined.get(name).into_iter().flatten();
                        let is_there = joined.any(|joined| joined.name() == member);
                        let is_of_others = new.is_some_and(takes_members_of_others);
                        let since = since.unwrap_or(now);
                        let stays = is_there || is_of_others && is_kept(since);
                        if stays && !is_there {
                            gone.insert(key, since);
                        }
                        stays
                    }
                }
            };
        self.admin
            .retain(|(group, name), _| stays(group, name, |old, new| old.drain == new.drain));
        self.weights
            .retain(|(group, name), _| stays(group, name, |old, new| old.weight == new.weight));
        self.backups
            .retain(|(group, name), _| stays(group, name, |old, new| old.backup == new.backup));
        self.absent_members = gone;
    }
}

/// True if somebody else than the file says which members the group has.
fn takes_members_of_others(group: &GroupConfig) -> bool {
    group.agents_may_join || !group.services.is_empty() || !group.members_files.is_empty()
}

/// The member of which `name` is an endpoint, if it can be one's.
pub(crate) fn endpoint_of(name: &str) -> Option<&str> {
    let (member, ip) = name.rsplit_once('/')?;
    ip.parse::<IpAddr>().is_ok().then_some(member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lists::service::Service;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn f6_what_an_operator_has_set_outlives_an_answer_without_the_member() {
        let text = "[group.web]\nmembers = [{ srv = \"_http._tcp.web\" }, \"x.example:1\"]\n";
        let config = crate::config::parse("x", text).unwrap();
        let lists = |hosts: &[&str]| {
            let records = hosts
                .iter()
                .map(|host| Service::new(0, 1, 80, host).unwrap());
            let services = [("_http._tcp.web".to_owned(), records.collect())];
            Lists {
                services: services.into(),
                ..Lists::default()
            }
        };
        let all = lists(&["a.example.", "b.example."]);
        let mut inputs = Inputs::new().with_config(config.clone(), all.clone(), at(1));
        let names = inputs.lists.list_members(&config.groups[0]);
        let names: Vec<String> = names.iter().map(MemberConfig::name).collect();
        let key = |name: &str| ("web".to_owned(), name.to_owned());
        let live = &mut inputs.live;
        live.admin.insert(key(&names[0]), AdminState::Drain);
        live.admin.insert(key("x.example:1"), AdminState::Drain);
        live.weights
            .insert(key(&names[0]), Weight::new(0.0).unwrap());
        live.backups.insert(key(&names[0]), true);
        let one = inputs.with_lists(lists(&["b.example."]), at(10));
        let set = |inputs: &Inputs| {
            let live = &inputs.live;
            let key = key(&names[0]);
            [
                live.admin.contains_key(&key),
                live.weights.contains_key(&key),
                live.backups.contains_key(&key),
            ]
        };
        // In the next answer it is there again; an unrelated reload in between changes nothing.
        let reloaded = one.with_config(config.clone(), one.lists.clone(), at(20));
        let back = reloaded.with_lists(all.clone(), at(30));
        assert_eq!(set(&back), [true; 3]);
        assert!(back.live.absent_members.is_empty());
        // After five minutes it may be another machine.
        let late = one.with_lists(all.clone(), at(10 + 301));
        assert_eq!(set(&late), [false; 3]);
        assert!(late.live.admin.contains_key(&key("x.example:1")));
        // The file has the last word on its own members.
        let other = text.replace(", \"x.example:1\"", "");
        let other = crate::config::parse("x", &other).unwrap();
        let without = back.with_config(other, back.lists.clone(), at(40));
        assert!(set(&without)[0]);
    }
}

//! Checks between sections: groups with the rules that use them, members with other groups, rules with ACME.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use evenkeel_core::address::Address;

use super::acme::{Acme, AcmeChallenge};
use super::auth;
use super::gateway::GENERATED_PREFIX;
use super::group::GroupConfig;
use super::member::MemberConfig;
use super::mirror::MIRRORED;
use super::negotiator::Cluster;
use super::protocol::Source;
use super::rule::{Forward, Protocol, ReturnPath, Rule};
use super::shared_group::SharedGroup;
use crate::schema::document::{Span, join_key};
use crate::schema::report::Report;
use crate::schema::table::Table;

/// Addresses at which rules listen, by their ports; those that have none, by 0.
type Listening<'a> = HashMap<u16, Vec<(&'a Rule, &'a Address)>>;

/// Collects the addresses of all rules.
pub(super) fn listening_addresses(rules: &[Rule]) -> Listening<'_> {
    let mut all = Listening::new();
    for rule in rules {
        for listen in &rule.listen {
            let port = match listen {
                Address::Ip(listen) => listen.port(),
                _ => 0,
            };
            all.entry(port).or_default().push((rule, listen));
        }
    }
    all
}

/// Warns of members that are the address of a rule that uses them: each request would come back to it.
pub(super) fn warn_of_loops(
    listening: &Listening<'_>,
    group: &GroupConfig,
    span: &Span,
    report: &mut Report<'_>,
) {
    for member in &group.members {
        let ports: &[u16] = match member.port {
            0 => &[0],
            port => &[port, 0],
        };
        let same_port = ports
            .iter()
            .filter_map(|port| listening.get(port))
            .flatten();
        for (rule, listen) in same_port {
            if leads_to(member, listen) && rule.group_names().contains(&&*group.name) {
                let message = format!(
                    "member {} is the address of the rule {:?}, {listen}: requests would come back to the rule in a loop. Name the servers behind the balancer",
                    member.name(),
                    rule.name
                );
                report.add_warning(span, &group.path(), message);
            }
        }
    }
}

/// Looks at what a group cannot have if the kernel forwards connections to its members.
pub(super) fn check_forward(
    rules: &[Rule],
    group: &GroupConfig,
    span: &Span,
    report: &mut Report<'_>,
) {
    let forwards = |rule: &&Rule| rule.forward == Forward::Kernel && rule.group == group.name;
    let Some(rule) = rules.iter().find(forwards) else {
        return;
    };
    let wants = [
        ("member_tls", group.member_tls.is_some()),
        ("send_proxy", group.send_proxy.is_some()),
        ("chooser", group.chooser.is_some()),
    ];
    for (key, _) in wants.into_iter().filter(|(_, is_wanted)| *is_wanted) {
        let message = format!(
            "`{key}` needs the proxy, and the rule {:?} has `forward = \"kernel\"`: remove one of the two",
            rule.name
        );
        report.add_problem(span, &group.path(), message, None);
    }
    if group.settings.alert.close_idle.is_some() {
        let message = format!(
            "`close_idle` closes connections of the proxy only: those that the kernel forwards for the rule {:?} stay",
            rule.name
        );
        report.add_warning(span, &group.path(), message);
    }
    for rule in rules.iter().filter(forwards) {
        check_source(rule, group, span, report);
        if rule.return_path.is_direct() {
            check_direct_ports(rule, group, span, report);
        }
    }
}

/// Looks for members that would see the client's address with the proxy only, or whose answers to the proxy would pass it
/// by.
fn check_source(rule: &Rule, group: &GroupConfig, span: &Span, report: &mut Report<'_>) {
    if group.source == Source::Balancer || rule.return_path == ReturnPath::Route {
        return;
    }
    let why = match rule.return_path {
        ReturnPath::Nat => "members see the balancer's address",
        _ => "members answer clients without the balancer, and so not connections of the proxy",
    };
    let message = format!(
        "`source = \"client\"` needs `return_path = \"route\"` at the rule {:?}: with another one {why}. Change one of the two",
        rule.name
    );
    report.add_problem(span, &group.path(), message, None);
}

/// Looks for members with another port than a rule whose packets they get unchanged.
fn check_direct_ports(rule: &Rule, group: &GroupConfig, span: &Span, report: &mut Report<'_>) {
    for listen in &rule.listen {
        let Address::Ip(listen) = listen else {
            continue;
        };
        // Members that are found later have no port yet.
        let other = |member: &&MemberConfig| member.port != 0 && member.port != listen.port();
        for member in group.members.iter().filter(other) {
            let message = format!(
                "the member {} has another port than {listen}, where the rule {:?} listens: with `return_path = \"direct\"` or `\"tunnel\"` \
                 members get the packets of clients unchanged. Let both have the same port, or set `return_path = \"nat\"`",
                member.name(),
                rule.name
            );
            report.add_problem(span, &group.path(), message, None);
        }
    }
}

/// True if a connection to `member` is one to `listen`, at this machine.
fn leads_to(member: &MemberConfig, listen: &Address) -> bool {
    let Address::Ip(listen) = listen else {
        let own = listen.to_string();
        return member.host == own;
    };
    let ip = match &*member.host {
        "localhost" => Some(IpAddr::from(Ipv4Addr::LOCALHOST)),
        host => host.parse::<IpAddr>().ok(),
    };
    let Some(ip) = ip.map(|ip| ip.to_canonical()) else {
        return false;
    };
    let all = listen.ip().is_unspecified() && (ip.is_loopback() || ip.is_unspecified());
    listen.port() == member.port && (all || listen.ip().to_canonical() == ip)
}

/// Warns of members at one location that report a load each: the location has one load, that of the last report.
pub(super) fn warn_of_one_location(group: &GroupConfig, span: &Span, report: &mut Report<'_>) {
    let mut keys = ["orca", "prometheus"].into_iter();
    let Some(key) = keys.find(|key| group.sources.asks_each_member(key)) else {
        return;
    };
    let mut members: HashMap<_, u32> = HashMap::new();
    for member in &group.members {
        *members.entry(member.location_name()).or_default() += 1;
    }
    let shared = group.members.iter().find_map(|member| {
        let location = member.location_name();
        let count = *members.get(&location)?;
        (count > 1).then_some((location, count))
    });
    if let Some((location, count)) = shared {
        let message = format!(
            "{count} members are at the location {location:?} and report by `{key}`: a location has one load, so each \
             report replaces those of the others. Give each member a `location` of its own"
        );
        report.add_warning(span, &group.path(), message);
    }
}

/// Warns of a load of a location that sources of two groups report, unless both are the same: the load is that of
/// the last report.
pub(super) fn warn_of_shared_loads(groups: &[(Span, SharedGroup)], report: &mut Report<'_>) {
    // By location and load: the group whose source says it, that source, and the member if each one says it.
    let mut known = HashMap::new();
    for (span, group) in groups {
        let mut shared = None;
        for (key, loads) in group.sources.named_loads() {
            let is_of_member = group.sources.asks_each_member(key);
            for member in group.members.iter().filter(|_| !loads.is_empty()) {
                let of = is_of_member.then_some((&member.host, member.port));
                for load in &loads {
                    let place = (member.location_name(), *load);
                    let (other, other_key, other_of) =
                        *known.entry(place).or_insert((group, key, of));
                    let is_other = (other_key, other_of) != (key, of);
                    if is_other && other.name != group.name && shared.is_none() {
                        shared = Some((member.location_name(), *load, key, other, other_key));
                    }
                }
            }
        }
        if let Some((location, load, key, other, other_key)) = shared {
            let message = format!(
                "load {load} of the location {location:?} comes from `{key}` here and from `{other_key}` of the group \
                 \"{}\": whichever was reported last counts. Take it out of one of them, or give the members a \
                 `location` of their own",
                other.name
            );
            report.add_warning(span, &group.path(), message);
        }
    }
}

/// Looks at the cookies of all groups, with the rules that use each.
pub(super) fn check_cookies<'a>(
    groups: &'a [(Span, SharedGroup)],
    users: &HashMap<&str, Vec<&Rule>>,
    report: &mut Report<'_>,
) {
    let mut names: HashMap<(bool, String), &'a str> = HashMap::new();
    for (span, group) in groups {
        let Some(sticky) = &group.sticky else {
            continue;
        };
        let users = users.get(group.name.as_str()).into_iter().flatten();
        for rule in users.filter(|rule| rule.protocol != Protocol::Http) {
            let message = format!(
                "has `sticky`, but the rule {:?} that uses the group sees no cookies: only a rule with `protocol = \"http\"` does",
                rule.name
            );
            report.add_problem(span, &group.path(), message, None);
        }
        let name = sticky.name_of(&group.name);
        let (kind, key) = match sticky.header {
            Some(_) => ("field", (true, name.to_ascii_lowercase())),
            None => ("cookie", (false, name.clone())),
        };
        // Generated groups may be of different hosts, whose cookies browsers keep apart.
        let other = names.get(&key).filter(|_| !report.is_generated());
        if let Some(other) = other {
            let key = if key.0 { "header" } else { "cookie" };
            let message = format!(
                "has the same {kind}, {name:?}, as the group {other:?}, and each would replace the \
                 other's: give one of them another name with `{key}` in `sticky`"
            );
            report.add_problem(span, &group.path(), message, None);
        }
        names.insert(key, &group.name);
    }
}

/// Looks at a group of an FTP rule.
pub(super) fn check_ftp(group: &GroupConfig, rule: &str, span: &Span, report: &mut Report<'_>) {
    if let Some(member) = group.unix() {
        let message = format!(
            "member {} is a Unix socket, but members of the FTP rule {rule:?} are connected to at other \
             ports for data: write their addresses",
            member.name()
        );
        report.add_problem(span, &group.path(), message, None);
    }
    if group.member_tls.is_some() {
        let message = format!(
            "has `member_tls`, but members of the FTP rule {rule:?} are spoken to without TLS"
        );
        report.add_problem(span, &group.path(), message, None);
    }
    if group.source == Source::Client {
        let message = format!(
            "has `source = \"client\"`, but members of the FTP rule {rule:?} get data connections from the \
             balancer's address: leave it out, or give the rule another group"
        );
        report.add_problem(span, &group.path(), message, None);
    }
    if group.send_proxy.is_some() {
        let message = format!(
            "has `send_proxy`: members of the FTP rule {rule:?} are told the client's address, and \
             have to accept data connections from the balancer's"
        );
        report.add_warning(span, &group.path(), message);
    }
}

/// Refuses a group whose strategy reads the bodies of requests if one of the rules that use the group does not read
/// requests.
pub(super) fn check_body_readers(
    group: &GroupConfig,
    rules: &[&Rule],
    span: &Span,
    report: &mut Report<'_>,
) {
    let is_blind = |rule: &&&Rule| group.reads_bodies() && rule.protocol != Protocol::Http;
    for rule in rules.iter().filter(is_blind) {
        let message = format!(
            "has strategy `inference`, which reads the prompts of requests, but the rule {:?} does not read \
             requests: write protocol = \"http\" in the rule, or use another strategy",
            rule.name
        );
        report.add_problem(span, &group.path(), message, None);
    }
}

/// Refuses limits of tokens in a rule none of whose groups reads the bodies of requests: nobody counts tokens there.
pub(super) fn check_token_limits(
    rule: &Rule,
    groups: &[(Span, SharedGroup)],
    table: &Table<'_>,
    report: &mut Report<'_>,
) {
    let of_routes = rule.routes.list_special().iter();
    let of_routes = of_routes.flat_map(|route| &route.request_limits);
    let mut limits = rule.request_limits.iter().chain(of_routes);
    if !limits.any(|limit| limit.tokens.is_some()) {
        return;
    }
    let names = rule.group_names();
    let mut used = groups
        .iter()
        .filter(|(_, group)| names.contains(&group.name.as_str()));
    if !used.any(|(_, group)| group.reads_bodies()) {
        let message = "has a limit of `tokens`, but tokens are counted in groups with strategy = \"inference\" only, \
                       and the rule has no such group";
        let path = join_key("rule", &rule.name);
        report.add_problem(table.name_span(), &path, message, None);
    }
}

/// Refuses a group whose strategy reads the bodies of requests if the group serves a cluster, whose clients go to
/// members themselves.
pub(super) fn check_clusters(
    groups: &[(Span, SharedGroup)],
    clusters: &[Cluster],
    report: &mut Report<'_>,
) {
    for (span, group) in groups.iter().filter(|(_, group)| group.reads_bodies()) {
        let mut users = clusters.iter();
        if let Some(cluster) = users.find(|cluster| cluster.group == group.name) {
            let message = format!(
                "has strategy `inference`, which reads the prompts of requests, but clients of the cluster {:?} send \
                 requests to the members themselves: use another strategy, or a rule with protocol = \"http\"",
                cluster.name
            );
            report.add_problem(span, &group.path(), message, None);
        }
    }
}

/// Missing part of a table `tls` with names for ACME.
pub(super) const NO_AUTHORITY: &str =
    "`acme` in `tls` needs a table [acme] with `folder` and `agree_to_terms = true`";

/// Warns if nobody answers when the authority asks for a file at port 80.
pub(super) fn check_port(acme: &Acme, rules: &[Rule], top: &Table<'_>, report: &mut Report<'_>) {
    if acme.names.is_empty() || acme.challenge != AcmeChallenge::Http01 {
        return;
    }
    let plain =
        |rule: &&Rule| rule.enabled && rule.protocol == Protocol::Http && rule.tls.is_none();
    let listening = rules.iter().filter(plain).flat_map(|rule| &rule.listen);
    let mut listening = listening.filter_map(Address::socket);
    let message = match listening.next() {
        None => {
            "no rule answers the authority, which asks at port 80 in the clear: add a rule with HTTP and \
             without `tls` that listens there, or use `challenge = \"tls-alpn-01\"`"
        }
        Some(first) if first.port() != 80 && listening.all(|other| other.port() != 80) => {
            "the authority asks at port 80, where no rule with HTTP and without `tls` listens: \
             something else must lead from there to one, or use `challenge = \"tls-alpn-01\"`"
        }
        Some(_) => return,
    };
    report.add_warning(&top.span_of("acme"), "acme", message);
}

/// Reserves fields that rules set for members. No client of another rule may send such a field, because rules
/// may share members.
pub(super) fn reserve_fields(rules: &mut [Rule]) {
    let clients = rules.iter().flat_map(|rule| &rule.tls);
    let clients = clients.flat_map(|tls| &tls.client_certificates);
    let clients = clients.filter_map(|clients| clients.header.clone());
    let users = rules.iter().flat_map(Rule::auths);
    let users = users.flat_map(auth::Auth::reserved).map(str::to_owned);
    let mut reserved: Vec<_> = clients.chain(users).collect();
    let mirrors = rules
        .iter()
        .any(|rule| rule.mirror_groups().next().is_some());
    reserved.extend(mirrors.then(|| MIRRORED.to_owned()));
    reserved.sort_unstable();
    reserved.dedup();
    for rule in rules.iter_mut() {
        rule.http.reserved.clone_from(&reserved);
    }
}
/// Reports rules and groups whose names are those of generated rules and groups. Groups of rules have the rules' names.
pub(super) fn reserve_names<'s>(
    rules: impl Iterator<Item = (&'s Span, &'s Rule)>,
    groups: &[(Span, SharedGroup)],
    report: &mut Report<'_>,
) {
    let mut names = HashSet::new();
    let rules = rules.map(|(span, rule)| (span, &rule.name, join_key("rule", &rule.name)));
    let groups = groups
        .iter()
        .map(|(span, group)| (span, &group.name, group.path()));
    for (span, name, path) in rules.chain(groups) {
        if name.starts_with(GENERATED_PREFIX) && names.insert((span.start, name)) {
            let message = format!(
                "names that begin with {GENERATED_PREFIX:?} are those of [kubernetes.gateway]: choose another name"
            );
            report.add_problem(span, &path, message, None);
        }
    }
}

//! The whole configuration: reading, checking and the rules between sections.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::address::Address;

use super::acme::{self, Acme, AcmeChallenge};
use super::admin::{self, AccessLog, Admin};
use super::broker::{self, Broker};
use super::corba::{self, Corba};
use super::dns::{self, Dns};
use super::fleet::{self, Fleet};
use super::group::{self, GroupConfig};
use super::listeners::Listeners;
use super::location::{self, LocationConfig, Placed};
use super::log_format::LogFormat;
use super::member::{self, MemberConfig};
use super::mirror::{self, MIRRORED};
use super::negotiator::{self, Cluster, Negotiator};
use super::node::{self, Node};
use super::process::{self, Process};
use super::protocol::{MemberProtocol, Source};
use super::reach::Reach;
use super::route;
use super::rule::{self, Defaults, Protocol, Rule};
use super::sources::Hosts;
use super::steer::{self, Steer};
use super::store::{self, Store};
use super::tls::{self, ClientTls, Tls};
use super::tracing::{self, Tracing};
use super::xds::{self, Xds};
use super::{
    alert, auth, chooser, compression, cors, ejection, ftp, health, hedge, limits, maintenance,
    monitor, priority, request_id, sources, sticky, zones,
};
use crate::schema::document::Span;
use crate::schema::errors::{Errors, Problem};
use crate::schema::key::{DAY, describe_keys, secs, section};
use crate::schema::overrides::Override;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::source;
use crate::schema::table::{NAMES, Reading, Table, document_with};

/// Reads and checks the configuration in the file at `path`.
///
/// # Errors
///
/// Everything that is wrong, with its place in the file. A file that is missing,
/// unreadable, too large or not UTF-8 is an error of the same type.
pub fn load_config(path: &Path) -> Result<Config, Errors> {
    source::load_file(path, parse)
}

/// Checks the configuration in `text`. `file` names it in messages, and is where relative paths of
/// files start, those that it includes among them.
///
/// # Errors
///
/// Everything that is wrong, with its place in the text.
pub fn parse(file: &str, text: &str) -> Result<Config, Errors> {
    parse_with(file, text, &[])
}

/// Checks the configuration in `text`, with the values of `changes` in place of values in the text. An error in
/// a change is reported at the place of the change.
///
/// # Errors
///
/// Everything that is wrong.
pub fn parse_with(file: &str, text: &str, changes: &[Override]) -> Result<Config, Errors> {
    let with = Reading {
        changes,
        ..Reading::default()
    };
    parse_reading(file, text, with)
}

/// Checks a balancer's own configuration in `text` together with the configuration shared with other balancers.
/// `shared` is a name for messages, and a text from a store.
///
/// # Errors
///
/// Everything that is wrong with both, and with the combination of both.
pub fn parse_shared(file: &str, text: &str, shared: (&str, &str)) -> Result<Config, Errors> {
    let with = Reading {
        shared: Some(shared),
        ..Reading::default()
    };
    let mut config = parse_reading(file, text, with)?;
    let (name, _) = shared;
    config.included.retain(|path| path != Path::new(name));
    Ok(config)
}

/// Part of a balancer's own file about the source of the shared configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedConfigSource {
    /// The store.
    pub store: Store,
    /// Name and zone of this balancer.
    pub node: Node,
}

/// Reads only `[store]` and `[node]`: rules may refer to groups that are shared, so the rest of the file cannot
/// be checked alone. `None` without a store; other errors are reported by [`parse`] or [`parse_shared`].
///
/// # Errors
///
/// What is wrong with `[store]` and `[node]`, or with the syntax.
pub fn parse_config_source(file: &str, text: &str) -> Result<Option<SharedConfigSource>, Errors> {
    let with = Reading {
        includes: true,
        ..Reading::default()
    };
    let mut is_shared = false;
    let parsed = document_with(
        file,
        text,
        with,
        describe_tables,
        |mut top, folder, report| {
            let store = store::read(&mut top, folder, report);
            is_shared = store.is_some();
            Some(SharedConfigSource {
                store: store?,
                node: node::read(&mut top, report),
            })
        },
    );
    match is_shared {
        true => parsed.map(|(own, _)| own),
        false => Ok(None),
    }
}

/// Checks the configuration in `text` as [`parse`] does, with these readers.
pub(crate) fn parse_reading(file: &str, text: &str, with: Reading<'_>) -> Result<Config, Errors> {
    let changes = with.changes;
    let with = Reading {
        includes: true,
        ..with
    };
    let parsed = document_with(file, text, with, describe_tables, read);
    let (mut config, warnings) = parsed.map_err(|mut errors| {
        let moved = |problem| {
            changes
                .iter()
                .fold(problem, |problem, of| of.moved(problem))
        };
        errors.problems = errors.problems.into_iter().map(moved).collect();
        errors
    })?;
    config.warnings = warnings;
    Ok(config)
}

section! {
    /// A whole, valid configuration.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Config {
        /// User, group and file rights of the process.
        process: Process = Process::default(),
        /// Name and zone of this balancer.
        node: Node = Node::default(),
        /// Store of the shared configuration; `None` without a store.
        store: Option<Store> = None,
        /// The admin API.
        admin: Option<Admin> = Some(Admin::default()),
        /// Source of certificates obtained by ACME; `None` without one.
        acme: Option<Acme> = None,
        /// Collector of traces; `None` if nobody collects traces.
        tracing: Option<Tracing> = None,
        /// Resolution of members' names.
        dns: Dns = Dns::default(),
        /// The other balancers; `None` is none.
        fleet: Option<Fleet> = None,
        /// Rules, in the order of the file. Names are unique.
        rules: Vec<Rule> = Vec::new(),
        /// Groups, in the order of the file. Names are unique.
        groups: Vec<GroupConfig> = Vec::new(),
        /// Locations that the file says something of, in its order. Names are unique.
        locations: Vec<LocationConfig> = Vec::new(),
        /// Receiver of agents' reports; `None` if agents cannot report.
        broker: Option<Broker> = None,
        /// Negotiator for clients; `None` without a negotiator.
        negotiator: Option<Negotiator> = None,
        /// Clusters of the negotiator, in the order of the file. Names are unique.
        clusters: Vec<Cluster> = Vec::new(),
        /// The CORBA service; `None` is none.
        corba: Option<Corba> = None,
        /// Server of xDS; `None` without the server.
        xds: Option<Xds> = None,
        /// Other balancers that get weights, in the order of the file. Names are unique.
        steer: Vec<Steer> = Vec::new(),
        /// Included files, in order.
        included: Vec<PathBuf> = Vec::new(),
        /// Settings that are allowed but probably not meant (a group that nobody uses).
        warnings: Vec<Problem> = Vec::new(),
    }
    keys TOP {
        /// Further files of the configuration. Write paths relative to the folder of the main file; the last
        /// part of a path may contain `*` (which does not match a leading dot). Each file may add rules,
        /// groups, locations and clusters, and tables found in no other file; a key set in two files is an
        /// error. Other paths in included files are relative to the folder of the main file, too. Included
        /// files cannot include others. The balancer watches included files like the main file: changed, added
        /// and removed files take effect.
        include: Vec<String> = Vec::new(); r#"["conf.d/*.toml"]"#,
        /// Number of threads for forwarding traffic. The default is one thread per core. Lower the number if
        /// you share the machine with other programs. Changes need a restart.
        workers: Option<usize> [Number(1.0, 1024.0, "threads")] = None; "4",
        /// Time limit for open connections after SIGTERM. New connections are refused at once; an idle client
        /// has one second to send a request already on the way. Raise the limit if your clients need longer to
        /// finish.
        shutdown_grace: Duration [Time(secs(0), DAY)] = secs(30); r#""1m""#,
    }
    keys ACCESS_LOG {
        /// Destination of the [access log](cli.md#the-access-log): one line per request (HTTP) or connection
        /// (TCP). Give the path of a file, or `stdout`. The balancer appends to the file, and opens the file
        /// again on SIGHUP. If the disk is too slow, lines are dropped and counted; traffic never waits for the
        /// log.
        access_log "output": Option<AccessLog> = None; r#""/var/log/evenkeel/access.log""#,
        /// Format of a line: `json`, one object per line; `combined`, the format of Apache httpd and nginx,
        /// which common log tools read; or your own text with [fields](cli.md#formats) in braces.
        access_log_format "format": LogFormat = LogFormat::Json; r#""combined""#,
    }
}

impl Config {
    /// The files beside the configuration that are read with it.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let admin = self.admin.iter();
        let token = admin.filter_map(|admin| admin.token_file.as_ref());
        let broker = self.broker.iter().map(|broker| &broker.key_file);
        let broker = broker.chain(self.fleet.iter().map(|fleet| &fleet.key_file));
        let groups = self.groups.iter().map(|group| &group.monitor);
        let locations = self.locations.iter().map(|location| &location.monitor);
        let monitors = groups.chain(locations).flatten();
        let monitors = monitors.filter_map(|monitor| monitor.key_file.as_ref());
        let rules = self.rules.iter().flat_map(|rule| &rule.tls);
        let negotiator = self.negotiator.iter().flat_map(|own| &own.tls);
        let tls = self.admin.iter().flat_map(|admin| &admin.tls);
        let tls = rules.chain(negotiator).chain(tls);
        let tls = tls.chain(self.xds.iter().flat_map(|own| &own.tls));
        let members = self.groups.iter().flat_map(|group| &group.member_tls);
        let members = members.chain(self.tracing.iter().flat_map(|tracing| &tracing.tls));
        let members = members.chain(self.store.iter().flat_map(|store| &store.tls));
        let checks = self.groups.iter().flat_map(|group| &group.health_check);
        let passwords = checks.filter_map(|check| check.password_file.as_ref());
        let rules = self.rules.iter();
        let users = self.rules.iter().flat_map(Rule::auths);
        let users = users.filter_map(|auth| auth.users_file.as_ref());
        let cookies = self.groups.iter().flat_map(|group| &group.sticky);
        let cookies = cookies.filter_map(|sticky| sticky.key_file.as_ref());
        let pages = self.groups.iter().flat_map(|group| group.responses.files());
        let answers = rules.flat_map(Rule::answer_files).chain(pages);
        let administrators = self.admin.iter().flat_map(|admin| &admin.users_file);
        let users = users.chain(administrators);
        let answers = answers.chain(cookies).chain(users).map(|file| &file.path);
        let all = token
            .chain(broker)
            .chain(monitors)
            .chain(passwords)
            .chain(answers);
        let passwords = self.store.iter().flat_map(|store| &store.password_file);
        let all = all.chain(passwords.map(|file| &file.path));
        let all = all.chain(tls.flat_map(Tls::files));
        all.chain(members.flat_map(ClientTls::files))
            .map(PathBuf::as_path)
    }

    /// The files that the running balancer makes or writes, with the keys that name them; but for those in
    /// the folder of `[acme]` and the configuration itself.
    pub fn written_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let log = self.access_log.iter().filter_map(|log| match log {
            AccessLog::File(path) => Some(("access_log.output", path.as_path())),
            AccessLog::Stdout => None,
        });
        let audit = self
            .admin
            .iter()
            .filter_map(|admin| admin.audit_log.as_deref());
        let state = self
            .corba
            .iter()
            .filter_map(|own| own.state_file.as_deref());
        let reference = self.corba.iter().filter_map(|own| own.ior_file.as_deref());
        let listens = self.rules.iter().flat_map(|rule| &rule.listen);
        let sockets = listens.filter_map(|address| match address {
            Address::Unix(path) if !path.starts_with('@') => {
                Some(("rule.listen", Path::new(&**path)))
            }
            _ => None,
        });
        let steered = self.steer.iter().filter_map(Steer::file);
        let copy = self.store.iter().map(|store| store.copy_file.as_path());
        log.chain(audit.map(|path| ("admin.audit_log", path)))
            .chain(copy.map(|path| ("store.copy_file", path)))
            .chain(steered.map(|path| ("steer.nginx.file", path)))
            .chain(state.map(|path| ("corba.state_file", path)))
            .chain(reference.map(|path| ("corba.ior_file", path)))
            .chain(sockets)
    }
}

fn read(mut top: Table<'_>, folder: &Path, report: &mut Report<'_>) -> Config {
    let mut config = Config {
        included: report.other_files().map(PathBuf::from).collect(),
        ..Config::default()
    };
    top.read(TOP, &mut config, report);
    if let Some(mut table) = top.read_table("access_log", report) {
        table.read(ACCESS_LOG, &mut config, report);
        table.report_unread(report);
    }
    config.process = process::read(&mut top, report);
    config.node = node::read(&mut top, report);
    config.store = store::read(&mut top, folder, report);
    config.tracing = tracing::read(&mut top, folder, report);
    let mut listeners = Listeners::default();
    config.admin = admin::read(&mut top, folder, &mut listeners, report);

    config.acme = acme::read(&mut top, folder, report);
    config.dns = dns::read(&mut top, report);
    config.fleet = fleet::read(&mut top, folder, &config.node, report);
    let defaults = Defaults::read(&mut top, report);
    // With where each stands: rules refer to groups, and own ones keep their order.
    let mut groups: Vec<(Span, GroupConfig)> = Vec::new();
    for mut table in top.named_tables("group", NAMES, report) {
        let mut group = GroupConfig::of_table(&mut table, &defaults.group, report);
        group.responses.read(&mut table, report);
        group.responses.resolve(folder);
        if !group.agents_may_join && group.members_files.is_empty() {
            table.require("members", report);
        }
        groups.push((table.name_span().clone(), group));
        table.report_unread(report);
    }
    let place = |(span, group): &(Span, GroupConfig)| (group.name.clone(), span.clone());
    let shared: HashMap<String, Span> = groups.iter().map(place).collect();
    let mut used = HashSet::new();
    for mut table in top.named_tables("rule", NAMES, report) {
        let (mut rule, own) = rule::read(&mut table, &defaults, &shared, report);
        let who = format!("rule {:?}", rule.name);
        rule.routes.resolve(folder);
        listeners.add_addresses(&rule.listen, &who, (&table, "listen"), report);
        groups.extend(own.map(|group| (table.name_span().clone(), group)));
        used.extend(rule.group_names().into_iter().map(str::to_owned));
        rule.responses.resolve(folder);
        if let Some(auth) = &mut rule.auth {
            auth.resolve(folder);
        }
        if let Some(tls) = &mut rule.tls {
            tls.resolve(folder);
            if !tls.have_issued(&mut config.acme) {
                table.report_problem("tls", NO_AUTHORITY, report);
            }
        }
        config.rules.push(rule);
        table.report_unread(report);
    }
    reserve(&mut config.rules);
    let mut users: HashMap<&str, Vec<&Rule>> = HashMap::new();
    for rule in &config.rules {
        for group in rule.group_names() {
            users.entry(group).or_default().push(rule);
        }
    }
    for (span, group) in &mut groups {
        let users = users
            .get(group.name.as_str())
            .map_or(&[][..], Vec::as_slice);
        let of_http = users.iter().filter(|rule| rule.protocol == Protocol::Http);
        let spoken = of_http.map(|rule| rule.http.member_protocol);
        let is_shared = spoken.clone().any(|spoken| spoken != MemberProtocol::Http1);
        let of_one = [
            ("send_proxy", group.send_proxy.is_some()),
            ("source", group.source == Source::Client),
        ];
        for (key, _) in of_one.into_iter().filter(|(_, said)| *said && is_shared) {
            let message = format!(
                "has `{key}`, which is about one client: with HTTP/2 many share a connection. Write \
                 member_protocol = \"http1\" in the rules that use it"
            );
            report.add_problem(span, &group.path(), message, None);
        }
        if let Some(check) = &mut group.health_check {
            check.adopt_protocol(spoken);
        }
        if let Some(rule) = users.iter().find(|rule| rule.protocol == Protocol::Ftp) {
            check_ftp(group, &rule.name, span, report);
        }
    }
    check_cookies(&groups, &users, report);
    groups.sort_by_key(|(span, _)| span.start);
    // Agents tell of hosts.
    if !top.has_key("broker") {
        let hosts = Hosts::of_members(groups.iter().flat_map(|(_, group)| &group.members));
        groups
            .iter_mut()
            .for_each(|(_, group)| group.separate(&hosts));
    }

    let placed = groups.iter().map(|(span, group)| Placed { span, group });
    let placed: Vec<Placed<'_>> = placed.collect();
    // Agents, CORBA servers and lists of members name locations of their own.
    let elsewhere = |group: &GroupConfig| {
        group.agents_may_join || !group.services.is_empty() || !group.members_files.is_empty()
    };
    let others = groups.iter().any(|(_, group)| elsewhere(group)) || top.has_key("corba");
    config.locations = location::read(&mut top, &defaults.group, &placed, others, report);
    location::check_locations(&placed, &config.locations, report);
    let (node, locations) = (&config.node, &config.locations);
    zones::check_zones(&placed, node, locations, others, &top, report);
    config.groups = groups.iter().map(|(_, group)| group.clone()).collect();
    let of_groups = config.groups.iter_mut().map(|group| &mut group.monitor);
    let of_locations = config
        .locations
        .iter_mut()
        .map(|location| &mut location.monitor);
    for monitor in of_groups.chain(of_locations).flatten() {
        monitor.resolve(folder);
    }
    for ((span, _), group) in groups.iter().zip(&mut config.groups) {
        let check = group.health_check.as_mut();
        if let Some(Err(message)) = check.map(|check| check.read_password(folder)) {
            let path = format!("{}.health_check", group.path());
            report.add_problem(span, &path, message, None);
        }
    }
    for group in &mut config.groups {
        for pattern in &mut group.members_files {
            *pattern = folder.join(&*pattern).display().to_string();
        }
        if let Some(sticky) = &mut group.sticky {
            sticky.resolve(folder);
        }
        for tls in group.member_tls.iter_mut().chain(group.sources.tls_mut()) {
            tls.resolve(folder);
        }
    }
    // What clusters have to say below may depend on the load.
    for group in &mut config.groups {
        group.choose_defaults(Reach::Carried);
    }
    let carried = used.clone();
    (config.negotiator, config.clusters) = negotiator::read(
        &mut top,
        folder,
        &config.groups,
        &mut used,
        &mut listeners,
        report,
    );
    let of_admin = config
        .admin
        .iter_mut()
        .map(|admin| ("admin", &mut admin.tls));
    let own = config.negotiator.iter_mut();
    let of_negotiator = own.map(|own| ("negotiator", &mut own.tls));
    let around = xds::XdsDependencies {
        groups: &config.groups,
        shared: &shared,
        rules: &config.rules,
    };
    let before = used.clone();
    config.xds = xds::read(&mut top, folder, &around, &mut used, &mut listeners, report);
    let of_xds = config.xds.iter_mut().map(|own| ("xds", &mut own.tls));
    for (key, tls) in of_admin.chain(of_negotiator).chain(of_xds) {
        if let Some(tls) = tls
            && !tls.have_issued(&mut config.acme)
        {
            top.report_problem(key, NO_AUTHORITY, report);
        }
    }
    if let Some(acme) = &config.acme {
        check_port(acme, &config.rules, &top, report);
    }
    for group in &mut config.groups {
        // Where a rule carries clients, too, what is good for them counts.
        if before.contains(&group.name) && !carried.contains(&group.name) {
            group.choose_defaults(Reach::Redirected);
        }
    }
    config.broker = broker::read(&mut top, folder, report);
    let has_store = config.store.is_some();
    config.corba = corba::read(&mut top, folder, &mut listeners, has_store, report);
    let process = &config.process;
    config.steer = steer::read(&mut top, folder, &groups, process, &mut used, report);
    let listening = listening(&config.rules);
    warn_of_shared_loads(&groups, report);
    for (span, group) in &groups {
        warn_of_loops(&listening, group, span, report);
        warn_of_one_location(group, span, report);
        if group.agents_may_join && config.broker.is_none() {
            let message = "agents may join this group, but there is no [broker] for them";
            report.add_warning(span, &group.path(), message);
        }
        if !used.contains(&group.name) {
            report.add_warning(
                span,
                &group.path(),
                "no rule, no cluster and no [xds] uses this group",
            );
        } else if group.chooser.is_some() && !before.contains(&group.name) {
            let message = "`chooser` has no effect: it is asked for clients of rules and clusters, and none of \
                           these uses this group";
            report.add_warning(span, &group.path(), message);
        }
    }
    top.report_unread(report);
    config
}

/// Addresses at which rules listen, by their ports; those that have none, by 0.
type Listening<'a> = HashMap<u16, Vec<(&'a Rule, &'a Address)>>;

/// Collects the addresses of all rules.
fn listening(rules: &[Rule]) -> Listening<'_> {
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
fn warn_of_loops(
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
fn warn_of_one_location(group: &GroupConfig, span: &Span, report: &mut Report<'_>) {
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
fn warn_of_shared_loads(groups: &[(Span, GroupConfig)], report: &mut Report<'_>) {
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
fn check_cookies<'a>(
    groups: &'a [(Span, GroupConfig)],
    users: &HashMap<&str, Vec<&Rule>>,
    report: &mut Report<'_>,
) {
    let mut cookies: HashMap<String, &'a str> = HashMap::new();
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
        let cookie = sticky.cookie_of(&group.name);
        if let Some(other) = cookies.get(&cookie) {
            let message = format!(
                "has the same cookie, {cookie:?}, as the group {other:?}, and each would replace the \
                 other's: give one of them another name with `cookie` in `sticky`"
            );
            report.add_problem(span, &group.path(), message, None);
        }
        cookies.insert(cookie, &group.name);
    }
}

/// Looks at a group of an FTP rule.
fn check_ftp(group: &GroupConfig, rule: &str, span: &Span, report: &mut Report<'_>) {
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

/// Missing part of a table `tls` with names for ACME.
const NO_AUTHORITY: &str =
    "`acme` in `tls` needs a table [acme] with `folder` and `agree_to_terms = true`";

/// Warns if nobody answers when the authority asks for a file at port 80.
fn check_port(acme: &Acme, rules: &[Rule], top: &Table<'_>, report: &mut Report<'_>) {
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
fn reserve(rules: &mut [Rule]) {
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

/// All tables of the file.
pub(crate) fn describe_tables() -> Vec<TableDoc> {
    let top = "Keys before the first table.";
    let access_log = [describe_keys(ACCESS_LOG, Config::default())];
    let mut tables = vec![
        TableDoc::new("", top, [describe_keys(TOP, Config::default())]),
        process::describe_table(),
        node::describe_table(),
        admin::describe_table(),
        acme::describe_table(),
        dns::describe_table(),
        fleet::describe_table(),
        TableDoc::new("[access_log]", "The access log.", access_log),
        tracing::describe_table(),
    ];
    tables.extend(rule::describe_tables());
    tables.extend([
        mirror::describe_table(),
        hedge::describe_table(),
        request_id::describe_table(),
    ]);
    tables.extend(limits::describe_tables());
    tables.push(priority::describe_table());
    tables.extend([maintenance::describe_table(), cors::describe_table()]);
    tables.push(ftp::describe_table());
    tables.extend(tls::describe_tables());
    tables.extend([
        group::describe_table(),
        sticky::describe_table(),
        chooser::describe_table(),
    ]);
    tables.push(health::describe_table());
    tables.extend(route::describe_tables());
    tables.extend(sources::describe_tables());
    tables.extend([compression::describe_table(), auth::describe_table()]);
    tables.push(monitor::describe_table());
    tables.extend([
        alert::describe_table(),
        ejection::describe_table(),
        zones::describe_table(),
    ]);
    tables.extend([
        member::describe_table(),
        location::describe_table(),
        broker::describe_table(),
    ]);
    tables.extend(negotiator::describe_tables());
    tables.push(corba::describe_table());
    tables.push(xds::describe_table());
    tables.extend(steer::describe_tables());
    tables.extend(store::describe_tables());
    tables
}

//! The whole configuration: reading, checking and the rules between sections.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::address::Address;

use super::acme::{self, Acme};
use super::admin::{self, AccessLog, Admin};
use super::broker::{self, Broker};
use super::corba::{self, Corba};
use super::cross_checks::{
    NO_AUTHORITY, check_cookies, check_forward, check_ftp, check_port, listening_addresses,
    reserve_fields, warn_of_loops, warn_of_one_location, warn_of_shared_loads,
};
use super::dns::{self, Dns};
use super::fleet::{self, Fleet};
use super::group::{self, GroupConfig};
use super::kubernetes::{self, Kubernetes};
use super::listeners::Listeners;
use super::location::{self, LocationConfig, Placed};
use super::log_format::LogFormat;
use super::member;
use super::mirror;
use super::negotiator::{self, Cluster, Negotiator};
use super::node::{self, Node};
use super::process::{self, Process};
use super::protocol::{MemberProtocol, Source};
use super::reach::Reach;
use super::rule::{self, Defaults, Protocol, Rule};
use super::sources::Hosts;
use super::steer::{self, Steer};
use super::store::{self, Store};
use super::tls::{self, ClientTls, Tls};
use super::tracing::{self, Tracing};
use super::xds::{self, Xds};
use super::{
    alert, auth, chooser, compression, cors, ejection, ftp, health, hedge, limits, maintenance,
    monitor, priority, request_id, route, sources, sticky, udp, zones,
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
        /// Access to the API server of Kubernetes; `None` if nobody needs the server.
        kubernetes: Option<Kubernetes> = None,
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
        let clusters = { self.kubernetes.iter() }.flat_map(|kubernetes| &kubernetes.kubeconfig);
        let all = all.chain(clusters.map(|file| &file.path));
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
        match rule.protocol {
            Protocol::Udp => {
                listeners.add_datagrams(&rule.listen, &who, (&table, "listen"), report);
            }
            _ => listeners.add_addresses(&rule.listen, &who, (&table, "listen"), report),
        }
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
    reserve_fields(&mut config.rules);
    let templates = groups.iter().flat_map(|(_, group)| &group.services);
    let services = templates.filter_map(|member| member.kubernetes.as_deref());
    config.kubernetes = kubernetes::read(&mut top, folder, services, report);
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
        if let Some(rule) = users.iter().find(|rule| rule.protocol == Protocol::Udp) {
            udp::check_group(group, &rule.name, span, report);
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
    let listening = listening_addresses(&config.rules);
    warn_of_shared_loads(&groups, report);
    for (span, group) in &groups {
        warn_of_loops(&listening, group, span, report);
        check_forward(&config.rules, group, span, report);
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
        kubernetes::describe_table(),
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
    tables.push(udp::describe_table());
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

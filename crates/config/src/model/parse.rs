//! Reading of the whole configuration: table by table, then the checks of what stands in several tables.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::config::{ACCESS_LOG, Config, TOP, describe_tables};
use super::cross_checks::{
    NO_AUTHORITY, check_body_readers, check_clusters, check_cookies, check_forward, check_ftp,
    check_port, check_token_limits, listening_addresses, reserve_fields, reserve_names,
    warn_of_loops, warn_of_one_location, warn_of_shared_loads,
};
use super::group::GroupConfig;
use super::kernel_forwarding;
use super::listeners::Listeners;
use super::location::{self, Placed};
use super::node::{self, Node};
use super::parts::PartReader;
use super::protocol::{MemberProtocol, Source};
use super::reach::Reach;
use super::rule::{Protocol, Rule};
use super::rules::{self, Defaults};
use super::shared_group::SharedGroup;
use super::sources::Hosts;
use super::store::{self, Store};
use super::{
    acme, admin, broker, corba, dns, fleet, kubernetes, negotiator, process, steer, tracing, udp,
    xds, zones,
};
use crate::schema::document::Span;
use crate::schema::errors::Errors;
use crate::schema::overrides::Override;
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

/// Checks a configuration that the balancer has made of objects of others, such as those of the Gateway API. Variables
/// of the environment are not put into texts, and no file is included: whoever may write such an object must learn
/// nothing of the process. All problems are reported, however many there are. Routes that can never match are none.
///
/// # Errors
///
/// Everything that is wrong, with its line in the text.
pub fn parse_generated(text: &str) -> Result<Config, Errors> {
    let with = Reading {
        is_generated: true,
        ..Reading::default()
    };
    let parsed = document_with("generated", text, with, describe_tables, read);
    let (config, _) = parsed?;
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
/// Errors of `[store]` and `[node]`, and of the syntax.
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

/// Reads all tables. Problems are reported in the order of the steps.
fn read(top: Table<'_>, folder: &Path, report: &mut Report<'_>) -> Config {
    read_with(None, top, folder, report)
}

/// Reads all tables, as [`read`] does. `parts` has groups and routes that the tables have not.
pub(super) fn read_with(
    mut parts: Option<&mut PartReader<'_>>,
    mut top: Table<'_>,
    folder: &Path,
    report: &mut Report<'_>,
) -> Config {
    let mut draft = Draft::new(folder, report);
    draft.read_process(&mut top, report);
    let defaults = Defaults::read(&mut top, report);
    match parts.as_mut() {
        Some(parts) => draft.add_groups(parts.take_groups()),
        None => draft.read_groups(&mut top, &defaults, report),
    }
    draft.read_rules(&mut top, &defaults, parts.as_deref_mut(), report);
    draft.config.kernel_forwarding = kernel_forwarding::read(&mut top, &draft.config.rules, report);
    draft.check_users(report);
    draft.place_groups(&mut top, &defaults, report);
    draft.resolve_groups(parts, report);
    draft.read_redirecting(&mut top, report);
    draft.read_reports(&mut top, report);
    draft.warn_of_groups(report);
    top.report_unread(report);
    draft.config
}

/// A configuration while its tables are read.
struct Draft<'f> {
    config: Config,
    /// Folder where relative paths start.
    folder: &'f Path,
    listeners: Listeners,
    /// Groups with the places of their names.
    groups: Vec<(Span, SharedGroup)>,
    /// Places of the groups with a table of their own, by name.
    shared: HashMap<String, Span>,
    /// Names of the groups that something uses.
    used: HashSet<String>,
    /// Names of the groups whose clients rules or clusters know.
    with_clients: HashSet<String>,
}

impl<'f> Draft<'f> {
    fn new(folder: &'f Path, report: &Report<'_>) -> Self {
        Draft {
            config: Config {
                included: report.other_files().map(PathBuf::from).collect(),
                ..Config::default()
            },
            folder,
            listeners: Listeners::default(),
            groups: Vec::new(),
            shared: HashMap::new(),
            used: HashSet::new(),
            with_clients: HashSet::new(),
        }
    }

    /// Reads what is about the process, and not about its traffic.
    fn read_process(&mut self, top: &mut Table<'_>, report: &mut Report<'_>) {
        let (config, folder) = (&mut self.config, self.folder);
        top.read(TOP, config, report);
        if let Some(mut table) = top.read_table("access_log", report) {
            table.read(ACCESS_LOG, config, report);
            table.report_unread(report);
        }
        config.process = process::read(top, report);
        config.node = node::read(top, report);
        config.store = store::read(top, folder, report);
        config.tracing = tracing::read(top, folder, report);
        config.admin = admin::read(top, folder, &mut self.listeners, report);

        config.acme = acme::read(top, folder, report);
        config.dns = dns::read(top, report);
        config.fleet = fleet::read(top, folder, &config.node, report);
    }

    /// Reads the groups with a table of their own.
    fn read_groups(&mut self, top: &mut Table<'_>, defaults: &Defaults, report: &mut Report<'_>) {
        for mut table in top.named_tables("group", NAMES, report) {
            let mut group = GroupConfig::read_whole(&mut table, &defaults.group, report);
            group.responses.resolve(self.folder);
            let span = table.name_span().clone();
            self.shared.insert(group.name.clone(), span.clone());
            self.groups.push((span, group.into()));
            table.report_unread(report);
        }
    }

    /// Takes groups that were read from texts of their own.
    fn add_groups(&mut self, groups: Vec<(Span, SharedGroup)>) {
        let names = groups.iter();
        let names = names.map(|(span, group)| (group.name.clone(), span.clone()));
        self.shared.extend(names);
        self.groups.extend(groups);
    }

    /// Reads the rules, and the groups of their own; then what members' services need.
    fn read_rules(
        &mut self,
        top: &mut Table<'_>,
        defaults: &Defaults,
        mut parts: Option<&mut PartReader<'_>>,
        report: &mut Report<'_>,
    ) {
        let (config, folder, listeners) = (&mut self.config, self.folder, &mut self.listeners);
        let mut places = Vec::new();
        for mut table in top.named_tables("rule", NAMES, report) {
            places.push(table.name_span().clone());
            let (mut rule, own) = {
                let parts = parts.as_deref_mut();
                rules::read(&mut table, defaults, &self.shared, parts, report)
            };
            let who = format!("rule {:?}", rule.name);
            rule.routes.resolve(folder);
            match rule.protocol {
                Protocol::Udp => {
                    listeners.add_datagrams(&rule.listen, &who, (&table, "listen"), report);
                }
                _ => listeners.add_addresses(&rule.listen, &who, (&table, "listen"), report),
            }
            self.groups
                .extend(own.map(|group| (table.name_span().clone(), group.into())));
            check_token_limits(&rule, &self.groups, &table, report);
            self.used
                .extend(rule.group_names().into_iter().map(str::to_owned));
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
        let list_services = |groups: &[(Span, SharedGroup)]| {
            let templates = groups.iter().flat_map(|(_, group)| &group.services);
            kubernetes::list_services(templates.filter_map(|of| of.kubernetes.as_deref()))
        };
        let services = match parts {
            Some(parts) => parts.find_services(&self.groups, list_services),
            None => list_services(&self.groups),
        };
        config.kubernetes = kubernetes::read(top, folder, services, report);
        let section = config.kubernetes.as_ref();
        if section.is_some_and(|section| section.gateway.is_some()) {
            reserve_names(places.iter().zip(&config.rules), &self.groups, report);
        }
    }

    /// Checks each group against the rules that use the group.
    fn check_users(&mut self, report: &mut Report<'_>) {
        let mut users: HashMap<&str, Vec<&Rule>> = HashMap::new();
        for rule in &self.config.rules {
            for group in rule.group_names() {
                users.entry(group).or_default().push(rule);
            }
        }
        for (span, group) in &mut self.groups {
            let users = users.get(group.name.as_str());
            check_users_of(group, users.map_or(&[], Vec::as_slice), span, report);
        }
        check_cookies(&self.groups, &users, report);
    }

    /// Puts the groups in the order of the file, and reads the locations of their members.
    fn place_groups(&mut self, top: &mut Table<'_>, defaults: &Defaults, report: &mut Report<'_>) {
        let (config, groups) = (&mut self.config, &mut self.groups);
        groups.sort_by_key(|(span, _)| span.start);
        // Agents tell of hosts.
        if !top.has_key("broker") {
            let hosts = Hosts::of_members(groups.iter().flat_map(|(_, group)| &group.members));
            let groups = groups.iter_mut().map(|(_, group)| group);
            // Others stay shared.
            let groups = groups.filter(|group| group.is_separated_by(&hosts));
            groups.for_each(|group| group.separate(&hosts));
        }
        let placed = groups.iter().map(|(span, group)| Placed { span, group });
        let placed: Vec<Placed<'_>> = placed.collect();
        // Agents, CORBA servers and lists of members name locations of their own.
        let elsewhere = |group: &GroupConfig| {
            group.agents_may_join || !group.services.is_empty() || !group.members_files.is_empty()
        };
        let others = groups.iter().any(|(_, group)| elsewhere(group)) || top.has_key("corba");
        config.locations = location::read(top, &defaults.group, &placed, others, report);
        location::check_locations(&placed, &config.locations, report);
        let (node, locations) = (&config.node, &config.locations);
        zones::check_zones(&placed, node, locations, others, top, report);
        config.groups = groups.iter().map(|(_, group)| group.clone()).collect();
    }

    /// Makes paths of groups and locations absolute, reads passwords, and chooses the defaults for members that rules
    /// carry clients to.
    fn resolve_groups(&mut self, mut parts: Option<&mut PartReader<'_>>, report: &mut Report<'_>) {
        let (config, folder) = (&mut self.config, self.folder);
        // Groups without such settings stay shared.
        let of_groups = config.groups.iter_mut();
        let of_groups = of_groups.filter(|group| group.monitor.is_some());
        let of_groups = of_groups.map(|group| &mut group.monitor);
        let of_locations = config
            .locations
            .iter_mut()
            .map(|location| &mut location.monitor);
        for monitor in of_groups.chain(of_locations).flatten() {
            monitor.resolve(folder);
        }
        for ((span, _), group) in self.groups.iter().zip(&mut config.groups) {
            if group.health_check.is_none() {
                continue;
            }
            let check = group.health_check.as_mut();
            if let Some(Err(message)) = check.map(|check| check.read_password(folder)) {
                let path = format!("{}.health_check", group.path());
                report.add_problem(span, &path, message, None);
            }
        }
        for group in &mut config.groups {
            if !group.has_paths() {
                continue;
            }
            let group = &mut **group;
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
            match parts.as_deref_mut() {
                Some(parts) => parts.choose_defaults(group),
                None => group.choose_defaults(Reach::Carried),
            }
        }
    }

    /// Reads the servers that tell clients and other balancers of members: the negotiator and xDS.
    fn read_redirecting(&mut self, top: &mut Table<'_>, report: &mut Report<'_>) {
        let (config, folder, listeners) = (&mut self.config, self.folder, &mut self.listeners);
        let used = &mut self.used;
        let carried = used.clone();
        (config.negotiator, config.clusters) =
            negotiator::read(top, folder, &config.groups, used, listeners, report);
        self.with_clients.clone_from(used);
        check_clusters(&self.groups, &config.clusters, report);
        let around = xds::XdsDependencies {
            groups: &config.groups,
            shared: &self.shared,
            rules: &config.rules,
        };
        config.xds = xds::read(top, folder, &around, used, listeners, report);
        let of_admin = { config.admin.iter_mut() }.map(|own| ("admin", &mut own.tls));
        let of_negotiator =
            { config.negotiator.iter_mut() }.map(|own| ("negotiator", &mut own.tls));
        let of_xds = config.xds.iter_mut().map(|own| ("xds", &mut own.tls));
        for (key, tls) in of_admin.chain(of_negotiator).chain(of_xds) {
            if let Some(tls) = tls
                && !tls.have_issued(&mut config.acme)
            {
                top.report_problem(key, NO_AUTHORITY, report);
            }
        }
        if let Some(acme) = &config.acme {
            check_port(acme, &config.rules, top, report);
        }
        for group in &mut config.groups {
            // Where a rule carries clients, too, what is good for them counts.
            if self.with_clients.contains(&group.name) && !carried.contains(&group.name) {
                group.choose_defaults(Reach::Redirected);
            }
        }
    }

    /// Reads the broker, the CORBA service, and the balancers that are steered.
    fn read_reports(&mut self, top: &mut Table<'_>, report: &mut Report<'_>) {
        let (config, folder) = (&mut self.config, self.folder);
        config.broker = broker::read(top, folder, report);
        let has_store = config.store.is_some();
        config.corba = corba::read(top, folder, &mut self.listeners, has_store, report);
        let process = &config.process;
        config.steer = steer::read(top, folder, &self.groups, process, &mut self.used, report);
    }

    /// Warns of groups that nothing uses, or not as they are meant.
    fn warn_of_groups(&self, report: &mut Report<'_>) {
        let config = &self.config;
        let listening = listening_addresses(&config.rules);
        warn_of_shared_loads(&self.groups, report);
        for (span, group) in &self.groups {
            warn_of_loops(&listening, group, span, report);
            check_forward(&config.rules, group, span, report);
            warn_of_one_location(group, span, report);
            if group.agents_may_join && config.broker.is_none() {
                let message = "agents may join this group, but there is no [broker] for them";
                report.add_warning(span, &group.path(), message);
            }
            if !self.used.contains(&group.name) {
                let message = "no rule, no cluster and no [xds] uses this group";
                report.add_warning(span, &group.path(), message);
            } else if group.chooser.is_some() && !self.with_clients.contains(&group.name) {
                let message = "`chooser` has no effect: it is asked for clients of rules and clusters, and \
                               none of these uses this group";
                report.add_warning(span, &group.path(), message);
            }
        }
    }
}

/// Checks a group against the rules that use the group.
fn check_users_of(group: &mut SharedGroup, users: &[&Rule], span: &Span, report: &mut Report<'_>) {
    let of_http = users.iter().filter(|rule| rule.protocol == Protocol::Http);
    let own = group.member_protocol;
    let spoken = of_http.map(|rule| own.unwrap_or(rule.http.member_protocol));
    let is_shared = spoken.clone().any(|spoken| spoken != MemberProtocol::Http1);
    let of_one = [
        ("send_proxy", group.send_proxy.is_some()),
        ("source", group.source == Source::Client),
    ];
    for (key, _) in of_one.into_iter().filter(|(_, said)| *said && is_shared) {
        let message = format!(
            "has `{key}`, which is about one client: with HTTP/2 many share a connection. Write \
             member_protocol = \"http1\" in the group, or in the rules that use it"
        );
        report.add_problem(span, &group.path(), message, None);
    }
    if group.health_check.is_some()
        && let Some(check) = &mut group.health_check
    {
        check.adopt_protocol(spoken);
    }
    if let Some(rule) = users.iter().find(|rule| rule.protocol == Protocol::Ftp) {
        check_ftp(group, &rule.name, span, report);
    }
    if let Some(rule) = users.iter().find(|rule| rule.protocol == Protocol::Udp) {
        udp::check_group(group, &rule.name, span, report);
    }
    check_body_readers(group, users, span, report);
}

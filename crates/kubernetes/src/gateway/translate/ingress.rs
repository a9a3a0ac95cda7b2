//! Ingresses: routes of the rules at the ports of Ingresses.
//!
//! A path that restricts access, or that the configuration refuses, is never left out: requests would get to a shorter path
//! without the restriction. The path answers 503.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::super::http::{MAX_EXPRESSIONS, MatchRank, PathKind};
use super::super::ingress::annotations::{Treatment, read_annotations};
use super::super::ingress::listeners::list_own;
use super::super::ingress::paths::{
    PathMatch, ReadPath, WrongPath, read_path, read_rewrite, sure_length,
};
use super::super::ingress::{
    HostPath, MAX_PATHS, Notice, find_port, has_tls, list_paths, show_status,
};
use super::super::listeners::{Class, ListenerState};
use super::super::objects::{Ingress, Kind, ObjectName};
use super::super::policy_keys::LIMITS;
use super::super::text::{Owner, is_host, quote, quote_list, short_name};
use super::entry::{Entry, Source};
use super::route::ALL_PATHS;
use super::targets::{PathCanary, Piece, Targets};
use super::{HostRank, Work, rank_host};

/// Precedence of a route that comes before all others of its host.
const FIRST: MatchRank = (
    PathKind::Exact,
    Reverse(usize::MAX),
    false,
    Reverse(usize::MAX),
    Reverse(usize::MAX),
);

/// Precedence of a route that comes behind all others of its host.
const LAST: MatchRank = (PathKind::Prefix, Reverse(0), true, Reverse(0), Reverse(0));

/// Key of a path: namespace, host name and requests.
type PathKey = (String, Option<String>, PathMatch);

/// All Ingresses that are served, and facts about several of them.
#[derive(Default)]
struct Facts<'o> {
    /// Canaries by their paths; the oldest counts.
    canaries: HashMap<PathKey, PathCanary<'o>>,
    /// Namespace of the oldest Ingress of each host.
    hosts: HashMap<Option<String>, String>,
    /// Hosts that have a route for all paths, at each listener.
    rooted: HashSet<(usize, Option<String>)>,
    /// Hosts of Ingresses, with the owner of a route.
    seen: BTreeMap<(usize, String), (ObjectName, usize)>,
    /// Number of regular expressions of the Ingress that is translated.
    expressions: usize,
}

/// Path of an Ingress at a host, ready to be written.
struct Place<'a> {
    ingress: &'a Ingress,
    number: usize,
    host: Option<String>,
    path: Option<&'a PathMatch>,
    rank: MatchRank,
    owner: Owner,
}

/// Returns the rank of a path. An expression comes before prefixes if its Ingress restricts access, and else among them,
/// by the prefix that it surely has: it must not take requests from a longer prefix that restricts access.
fn rank_path(path: &PathMatch, restricts: bool) -> MatchRank {
    let (kind, length) = match path {
        PathMatch::Exact(path) => (PathKind::Exact, path.len()),
        PathMatch::Prefix(path) => (PathKind::Prefix, path.len()),
        PathMatch::Regex(regex) if restricts => (PathKind::Regex, regex.len()),
        PathMatch::Regex(regex) => (PathKind::Prefix, sure_length(regex)),
    };
    (kind, Reverse(length), true, Reverse(0), Reverse(0))
}

/// Returns the owner of the route of a path. A path whose route is refused has a second owner: that of the answer in its
/// place.
fn owner_of(ingress: &Ingress, number: usize, is_closed: bool) -> Owner {
    let number = number * 2 + usize::from(is_closed);
    Owner::Rule(Kind::Ingress, ingress.metadata.object_name(), number)
}

/// Returns the number of owners that an Ingress may have.
pub(super) fn count_owners(ingress: &Ingress) -> usize {
    list_paths(&ingress.spec).len().min(MAX_PATHS) * 2
}

/// Reads the path of a part of an Ingress; without a path all requests.
fn read_host_path(of: &HostPath<'_>, treatment: &Treatment) -> Result<ReadPath, WrongPath> {
    match of.path {
        Some(path) => read_path(
            path.path.as_deref(),
            path.path_type.as_deref(),
            treatment.use_regex,
        ),
        None => Ok(ReadPath {
            selected: PathMatch::Prefix(String::new()),
            rest: None,
        }),
    }
}

fn lower(host: Option<&str>) -> Option<String> {
    host.map(str::to_ascii_lowercase)
}

impl<'o> Work<'o> {
    /// Translates all Ingresses.
    pub(super) fn translate_ingresses(&mut self, entries: &mut BTreeMap<usize, Vec<Entry>>) {
        let Some(settings) = &self.settings.ingress else {
            return;
        };
        let own = list_own(self.objects, settings);
        let own: Vec<(&Ingress, Treatment)> = { own.into_iter() }
            .map(|of| (of.as_ref(), read_annotations(&of.metadata.annotations)))
            .collect();
        let mut facts = Facts::default();
        for (ingress, treatment) in &own {
            let namespace = &ingress.metadata.namespace;
            for of in list_paths(&ingress.spec).iter().take(MAX_PATHS) {
                let host = lower(of.host);
                let Some(canary) = &treatment.canary else {
                    let aliases = treatment.aliases.iter().filter(|_| host.is_some());
                    let aliases = aliases.map(|alias| lower(Some(alias)));
                    for host in aliases.chain([host.clone()]) {
                        facts.hosts.entry(host).or_insert_with(|| namespace.clone());
                    }
                    continue;
                };
                let Ok(path) = read_host_path(of, treatment) else {
                    continue;
                };
                let canary = PathCanary {
                    canary: canary.clone(),
                    target: of.target,
                };
                let key = (namespace.clone(), host, path.selected);
                facts.canaries.entry(key).or_insert(canary);
            }
        }
        for (ingress, treatment) in &own {
            self.translate_ingress(ingress, treatment, &mut facts, entries);
            let status = show_status(&self.settings.publish);
            self.note_status(Kind::Ingress, &ingress.metadata, status);
        }
        self.close_hosts(&facts, entries);
    }

    /// Adds an answer 404 to hosts whose other paths nobody serves: requests for a host never get to a wider host.
    fn close_hosts(&self, facts: &Facts<'_>, entries: &mut BTreeMap<usize, Vec<Entry>>) {
        for ((listener, host), (object, number)) in &facts.seen {
            let host = Some(host.clone());
            let Some(index) = self.frontend_of(*listener) else {
                continue;
            };
            if facts.rooted.contains(&(*listener, host.clone())) {
                continue;
            }
            let conditions: Vec<String> = host.iter().map(|host| write_host(host)).collect();
            let actions = ["answer = { status = 404 }".to_owned()];
            let owner = Owner::Rule(Kind::Ingress, object.clone(), number * 2 + 1);
            let own_host = { self.listeners.get(*listener) }.and_then(ListenerState::hostname);
            entries.entry(index).or_default().push(make_entry(
                (*listener, own_host, rank_host(host.as_deref()), LAST),
                // After `z` no time begins, so routes of others come first.
                Source::Other("~".into(), object.clone()),
                (*number, usize::MAX),
                owner,
                "none",
                &conditions,
                &actions,
            ));
        }
    }

    /// Translates an Ingress, and notes what people are to know.
    fn translate_ingress(
        &mut self,
        ingress: &'o Ingress,
        treatment: &Treatment,
        facts: &mut Facts<'o>,
        entries: &mut BTreeMap<usize, Vec<Entry>>,
    ) {
        facts.expressions = 0;
        let mut closed: BTreeSet<String> = treatment.closed.iter().cloned().collect();
        let mut ignored: BTreeSet<String> = treatment.ignored.iter().cloned().collect();
        for tls in ingress.spec.tls.iter() {
            let secret = tls.secret_name.as_deref().unwrap_or_default();
            let secret = ObjectName::new(&ingress.metadata.namespace, secret);
            ignored.extend(self.ingress.faults.get(&secret).cloned());
        }
        for number in &self.ingress.listeners {
            ignored.extend(self.find_conflict(*number).cloned());
        }
        if treatment.canary.is_some() {
            // The annotations that count are those of the Ingress whose canary this is.
            ignored.append(&mut closed);
            let namespace = &ingress.metadata.namespace;
            let targets = list_paths(&ingress.spec).into_iter().take(MAX_PATHS);
            let targets = targets.map(|of| find_port(of.target, namespace, self.objects));
            ignored.extend(targets.filter_map(Result::err));
        } else {
            let mut paths = list_paths(&ingress.spec);
            let mut treatment = treatment.clone();
            if paths.len() > MAX_PATHS {
                let told = format!("more than {MAX_PATHS} paths; write several Ingresses");
                treatment.closed.push(told.clone());
                treatment.closes_hosts = true;
                closed.insert(told);
                let mut hosts = HashSet::new();
                paths.retain_mut(|of| {
                    of.path = None;
                    hosts.insert(of.host)
                });
                paths.truncate(MAX_PATHS);
            }
            for (number, of) in paths.iter().enumerate() {
                self.translate_path(
                    ingress,
                    &treatment,
                    (number, of),
                    facts,
                    entries,
                    &mut closed,
                );
            }
            self.add_app_root(ingress, &treatment, &paths, entries);
        }
        let mut note = |reason, messages: BTreeSet<String>| {
            if !messages.is_empty() {
                let messages: Vec<String> = messages.into_iter().collect();
                self.ingress.notices.push(Notice {
                    kind: Kind::Ingress,
                    object: ingress.metadata.object_name(),
                    uid: ingress.metadata.uid.clone(),
                    reason,
                    message: messages.join("; "),
                });
            }
        };
        note("Closed", closed);
        note("Ignored", ignored);
    }

    /// Translates a path of an Ingress.
    fn translate_path(
        &mut self,
        ingress: &'o Ingress,
        treatment: &Treatment,
        (number, of): (usize, &HostPath<'o>),
        facts: &mut Facts<'o>,
        entries: &mut BTreeMap<usize, Vec<Entry>>,
        told: &mut BTreeSet<String>,
    ) {
        if let Some(host) = of.host.filter(|host| !is_host(host)) {
            told.insert(format!("{host:?} is no host name; change it"));
            return;
        }
        let (open, shut) = (
            owner_of(ingress, number, false),
            owner_of(ingress, number, true),
        );
        told.extend(
            [&open, &shut]
                .into_iter()
                .filter_map(|of| self.refused.get(of).cloned()),
        );
        // Not even the answer in place of the route can be written.
        if self.refused.contains_key(&shut) {
            return;
        }
        let mut read = read_host_path(of, treatment);
        if let Ok(ReadPath {
            selected: PathMatch::Regex(_),
            ..
        }) = &read
        {
            facts.expressions += 1;
            if facts.expressions > MAX_EXPRESSIONS {
                read = Err(WrongPath {
                    around: PathMatch::Prefix(String::new()),
                    message: format!(
                        "more than {MAX_EXPRESSIONS} regular expressions; write several Ingresses"
                    ),
                });
            }
        }
        let (path, rank) = match &read {
            Ok(path) if !treatment.closes_hosts => (
                &path.selected,
                rank_path(&path.selected, treatment.restricts),
            ),
            Ok(path) => (&path.selected, FIRST),
            Err(wrong) => {
                told.insert(wrong.message.clone());
                if !treatment.restricts {
                    return;
                }
                (&wrong.around, FIRST)
            }
        };
        let is_closed =
            !treatment.closed.is_empty() || read.is_err() || self.refused.contains_key(&open);
        let aliases = { treatment.aliases.iter() }.filter(|_| of.host.is_some());
        let hosts = of
            .host
            .into_iter()
            .map(Some)
            .chain(aliases.map(|alias| Some(alias.as_str())));
        let hosts: Vec<Option<&str>> = match of.host {
            Some(_) => hosts.collect(),
            None => vec![None],
        };
        for host in hosts.into_iter().map(lower) {
            let of_others = |known: &String| *known != ingress.metadata.namespace;
            let rank = match facts.hosts.get(&host).is_some_and(of_others) {
                // Nobody closes hosts of other namespaces, or takes requests from longer prefixes there.
                true => rank_path(path, false),
                false => rank,
            };
            let key = (
                ingress.metadata.namespace.clone(),
                host.clone(),
                path.clone(),
            );
            let canary = facts.canaries.get(&key).cloned();
            let unverified = self.refuse_clients(ingress, treatment, host.as_deref());
            let is_closed = is_closed || unverified.is_some();
            told.extend(unverified);
            let pieces = match (&read, is_closed) {
                (Ok(path), false) => {
                    let targets = Targets {
                        ingress,
                        treatment,
                        target: of.target,
                        canary: canary.as_ref(),
                        host: host.as_deref(),
                    };
                    self.make_pieces(&targets, path, &open, told)
                }
                _ => vec![Piece::answer(Vec::new(), 503)],
            };
            let owner = if is_closed {
                shut.clone()
            } else {
                open.clone()
            };
            let place = Place {
                ingress,
                number,
                host,
                path: Some(path),
                rank,
                owner,
            };
            self.add_pieces(&place, &pieces, !is_closed, treatment, facts, entries);
        }
    }

    /// Makes the routes of a path, in order.
    fn make_pieces(
        &mut self,
        targets: &Targets<'_, 'o>,
        path: &ReadPath,
        owner: &Owner,
        told: &mut BTreeSet<String>,
    ) -> Vec<Piece> {
        let treatment = targets.treatment;
        let mut pieces = Vec::new();
        let list = |networks: &[String]| quote_list(networks.iter().map(String::as_str));
        for (key, networks) in [
            ("client", &treatment.denied),
            ("except_client", &treatment.allowed),
        ] {
            if !networks.is_empty() {
                let condition = format!("{key} = {}", list(networks));
                pieces.push(Piece::answer(vec![condition], 403));
            }
        }
        if let Some((address, status)) = &treatment.redirect {
            pieces.push(Piece::redirect(&address.replace('{', "{{"), *status));
            return pieces;
        }
        let rewrite = treatment.rewrite_target.as_deref();
        let rewrite = match rewrite.map(|target| read_rewrite(target, path)).transpose() {
            Ok(rewrite) => rewrite.map(|rewrite| rewrite.action()),
            Err(message) => {
                told.insert(message);
                pieces.push(Piece::answer(Vec::new(), 503));
                return pieces;
            }
        };
        match self.write_targets(targets, owner) {
            Ok(routes) => pieces.extend(routes.into_iter().map(|mut piece| {
                piece.actions.extend(rewrite.clone());
                piece
            })),
            Err(message) => {
                self.groups.drop_current();
                told.insert(message);
                pieces.push(Piece::answer(Vec::new(), 503));
            }
        }
        pieces
    }

    /// Adds the routes of a path at all listeners of Ingresses.
    fn add_pieces(
        &self,
        place: &Place<'_>,
        pieces: &[Piece],
        redirects: bool,
        treatment: &Treatment,
        facts: &mut Facts<'_>,
        entries: &mut BTreeMap<usize, Vec<Entry>>,
    ) {
        let to_tls = self.redirect_to_tls(place, treatment).filter(|_| redirects);
        let to_tls = to_tls.map(|address| [Piece::redirect(&address, 308)]);
        for listener in self.list_listeners(place.host.as_deref()) {
            let Some(index) = self.frontend_of(listener) else {
                continue;
            };
            let of = self.listeners.get(listener);
            let is_plain = of.is_some_and(|of| of.class == Some(Class::Http));
            let own_host = of.and_then(ListenerState::hostname);
            let pieces = match &to_tls {
                Some(redirect) if is_plain => redirect.as_slice(),
                _ => pieces,
            };
            if let Some(host) = &place.host {
                let owner = (place.ingress.metadata.object_name(), place.number);
                facts.seen.entry((listener, host.clone())).or_insert(owner);
            }
            if place
                .path
                .is_some_and(|path| *path == PathMatch::Prefix(String::new()))
            {
                facts.rooted.insert((listener, place.host.clone()));
            }
            let metadata = &place.ingress.metadata;
            for (position, piece) in pieces.iter().enumerate() {
                let rewrites = piece
                    .actions
                    .iter()
                    .any(|line| line.starts_with("rewrite_prefix"));
                let condition = place.path.and_then(PathMatch::condition);
                let condition = condition.or_else(|| rewrites.then(|| ALL_PATHS.into()));
                let mut conditions: Vec<String> = condition.into_iter().collect();
                conditions.extend(piece.conditions.iter().cloned());
                conditions.extend(place.host.iter().map(|host| write_host(host)));
                let (number, at) = (place.number.to_string(), position.to_string());
                let host = place
                    .host
                    .as_deref()
                    .unwrap_or_default()
                    .replace('*', "any");
                let creation = metadata.creation_timestamp.clone();
                let is_limited = piece.actions.iter().any(|line| line.starts_with(LIMITS));
                let (namespace, name) = (&*metadata.namespace, &*metadata.name);
                let name = match is_limited {
                    // Limits count by the names of routes: those of an Ingress count once for all its paths and hosts.
                    true => short_name(&[namespace, name, "ingress"]),
                    false => short_name(&[namespace, name, &number, &at, &host]),
                };
                entries.entry(index).or_default().push(make_entry(
                    (
                        listener,
                        own_host,
                        rank_host(place.host.as_deref()),
                        place.rank,
                    ),
                    Source::Other(creation, metadata.object_name()),
                    (place.number, position),
                    place.owner.clone(),
                    &name,
                    &conditions,
                    &piece.actions,
                ));
            }
        }
    }

    /// Returns the address with TLS of requests that come without.
    fn redirect_to_tls(&self, place: &Place<'_>, treatment: &Treatment) -> Option<String> {
        let is_usual = treatment.ssl_redirect.unwrap_or(true);
        let has_tls = is_usual && has_tls(&place.ingress.spec, place.host.as_deref());
        // Clients without TLS show no certificates.
        let host = place.host.as_ref();
        let verified = host.and_then(|host| self.ingress.hosts.get(host)?.as_ref());
        if !has_tls && !treatment.force_ssl_redirect && verified.is_none() {
            return None;
        }
        let gateway = &self.settings.ingress.as_ref()?.gateway;
        let port = gateway
            .spec
            .listeners
            .iter()
            .find(|of| of.protocol == "HTTPS")?
            .port;
        let port = match port {
            443 => String::new(),
            other => format!(":{other}"),
        };
        Some(format!("https://{{host}}{port}{{path}}{{query}}"))
    }

    /// Adds the redirect of requests for `/` at each host of an Ingress.
    fn add_app_root(
        &self,
        ingress: &Ingress,
        treatment: &Treatment,
        paths: &[HostPath<'_>],
        entries: &mut BTreeMap<usize, Vec<Entry>>,
    ) {
        let Some(root) = treatment
            .app_root
            .as_ref()
            .filter(|_| treatment.closed.is_empty())
        else {
            return;
        };
        let path = PathMatch::Exact("/".into());
        let address = format!("{{scheme}}://{{host}}{{port}}{}", root.replace('{', "{{"));
        let mut hosts = HashSet::new();
        for (number, of) in paths.iter().enumerate() {
            let owner = owner_of(ingress, number, false);
            let is_good = of.host.is_none_or(is_host) && !self.refused.contains_key(&owner);
            if !is_good || !hosts.insert(of.host) {
                continue;
            }
            let place = Place {
                ingress,
                number,
                host: lower(of.host),
                path: Some(&path),
                rank: rank_path(&path, false),
                owner,
            };
            let pieces = [Piece::redirect(&address, 302)];
            self.add_pieces(
                &place,
                &pieces,
                true,
                treatment,
                &mut Facts::default(),
                entries,
            );
        }
    }
}

/// Makes a route of the configuration, at a listener, which may be for a single host.
fn make_entry(
    (listener, own_host, host, rank): (usize, Option<&str>, HostRank, MatchRank),
    source: Source,
    (number, position): (usize, usize),
    owner: Owner,
    name: &str,
    conditions: &[String],
    actions: &[String],
) -> Entry {
    let mut lines = format!("name = {}\n", quote(name));
    for line in conditions.iter().chain(actions) {
        lines.push_str(line);
        lines.push('\n');
    }
    Entry {
        ranks: (rank_host(own_host), host, rank),
        source,
        kind: Kind::Ingress,
        numbers: (number, position, 0),
        serial: 0,
        owner: Arc::new(owner),
        listener,
        host: None,
        serves_all: conditions.last().is_none_or(|line| line == ALL_PATHS),
        lines: lines.into(),
    }
}

/// Writes the condition on a host: a `*` is one label.
fn write_host(host: &str) -> String {
    format!("host = [{}]", quote(host))
}

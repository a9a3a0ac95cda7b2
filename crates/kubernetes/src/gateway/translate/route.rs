//! Translation of a single route of requests.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::attach::{Attachment, Parent, RouteFacts, RouteFindings, is_isolated};
use super::super::backends::{Groups, Referrer, RuleGroups};
use super::super::http::{MAX_EXPRESSIONS, RuleText, count_expressions};
use super::super::listeners::Class;
use super::super::objects::{HttpRoute, Kind, ObjectName};
use super::super::pools::list_pools;
use super::super::text::{Owner, quote, short_name};
use super::entry::{Entry, RouteTranslation, SessionClaim, Source};
use super::frontend::write_condition;
use super::{Work, rank_host, refuse_host};

/// Condition of a route for all paths.
pub(super) const ALL_PATHS: &str = "path = [\"/*\"]";

/// Rule of a route.
struct RouteRule<'r> {
    kind: Kind,
    route: &'r Arc<HttpRoute>,
    owner: &'r Arc<Owner>,
    number: usize,
    text: &'r RuleText,
}

/// Translates a route. `refusals` has the rules that are left out, and `add` gets the entries of frontends.
pub(super) fn translate_route(
    work: &Work<'_>,
    kind: Kind,
    route: &Arc<HttpRoute>,
    refusals: &[(usize, String)],
    groups: &mut Groups,
    mut add: impl FnMut(usize, Entry),
) -> RouteTranslation {
    let metadata = &route.metadata;
    let facts = RouteFacts {
        kind,
        metadata,
        parents: &route.spec.parent_refs,
        hosts: Some(&route.spec.hostnames),
    };
    let (parents, attachments) = work.attach(&facts);
    let (mut findings, mut dropped) = (RouteFindings::default(), Vec::new());
    let object = metadata.object_name();
    let wrong_host = refuse_host(&route.spec.hostnames);
    let mut rules = Vec::with_capacity(route.spec.rules.len());
    let (mut claims, mut pools, mut count) = (Vec::new(), Vec::new(), 0);
    let mut secured = Vec::new();
    let of_groups = &work.policies.groups;
    let inherited = of_groups.list_inherited(kind, &object, &route.spec.parent_refs, work.objects);
    let by_identity = work.split_by_identity(&attachments);
    let mut expressions = 0;
    for (number, rule) in route.spec.rules.iter().enumerate() {
        let owner = Arc::new(Owner::Rule(kind, object.clone(), number));
        let refusal = refusals.iter().find(|(of, _)| *of == number);
        let refusal = refusal.map(|(_, message)| message).or(wrong_host.as_ref());
        expressions += count_expressions(rule);
        let too_many = (expressions > MAX_EXPRESSIONS).then(|| {
            format!("the route has more than {MAX_EXPRESSIONS} regular expressions; write several routes")
        });
        let refusal = refusal.or(too_many.as_ref());
        let read = by_identity.iter().map(|(identity, _)| {
            let referrer = Referrer {
                objects: work.objects,
                policies: &work.policies,
                inherited: &inherited,
                kind,
                namespace: &metadata.namespace,
                ends_tls: false,
                identity: identity.as_ref(),
            };
            match refusal {
                Some(message) => Err(message.clone()),
                None => RuleText::read(rule, referrer, groups),
            }
        });
        let read: Result<Vec<RuleText>, String> = read.collect();
        let mut rule_groups = RuleGroups {
            owner: Arc::clone(&owner),
            groups: groups.take_current(),
            is_used: false,
        };
        let texts = match read {
            Ok(texts) => texts,
            Err(message) => {
                rules.push(rule_groups);
                dropped.push(format!("rule {}: {message}", number + 1));
                continue;
            }
        };
        let references = texts.iter().find_map(|of| of.actions.references.as_ref());
        if let Some(refusal) = references {
            findings.references.get_or_insert_with(|| refusal.clone());
        }
        rule_groups.is_used = !attachments.is_empty();
        rules.push(rule_groups);
        for pool in list_pools(rule, &metadata.namespace, work.objects) {
            let gateways = list_gateways(work, &attachments);
            pools.extend(gateways.map(|gateway| (pool.clone(), gateway)));
        }
        let targets = rule.list_targets();
        let namespace = &metadata.namespace;
        for service in work
            .policies
            .list_services(targets, kind, namespace, work.objects)
        {
            let gateways = list_gateways(work, &attachments);
            secured.extend(gateways.map(|gateway| (service.clone(), gateway)));
        }
        for (text, (_, attachments)) in texts.iter().zip(&by_identity) {
            let rule = RouteRule {
                kind,
                route,
                owner: &owner,
                number,
                text,
            };
            for attachment in attachments {
                rule.add_entries(work, groups, attachment, &mut claims, |frontend, entry| {
                    let (rule, place, _) = entry.numbers;
                    let numbers = (rule, place, count);
                    count += 1;
                    add(frontend, Entry { numbers, ..entry });
                });
            }
        }
    }
    note_dropped(&mut findings, &dropped, route.spec.rules.len());
    RouteTranslation {
        rules,
        needs_nobody: groups.needs_nobody(),
        claims,
        pools,
        secured,
        listeners: list_listeners(&parents, &findings),
        status: work.make_route_status(kind, metadata, &parents, &findings),
    }
}

/// Returns the gateways of the listeners that take a route.
fn list_gateways(work: &Work<'_>, attachments: &[Attachment]) -> impl Iterator<Item = ObjectName> {
    let listeners = { attachments.iter() }.filter_map(|of| work.listeners.get(of.listener));
    listeners.map(|of| of.gateway.metadata.object_name())
}

/// Notes the reasons why some of the rules of a route, or all of them, are left out.
fn note_dropped(findings: &mut RouteFindings, dropped: &[String], rules: usize) {
    if dropped.is_empty() {
        return;
    }
    let message = dropped.join("; ");
    match dropped.len() == rules {
        true => findings.refusal = Some(("UnsupportedValue", message)),
        false => findings.dropped = Some(message),
    }
}

/// Returns the numbers of the listeners that count a route.
fn list_listeners(parents: &[Parent], findings: &RouteFindings) -> Vec<usize> {
    if findings.refusal.is_some() {
        return Vec::new();
    }
    let numbers = { parents.iter() }.flat_map(|parent| parent.listeners.iter().copied());
    let once: BTreeSet<usize> = numbers.collect();
    once.into_iter().collect()
}

impl RouteRule<'_> {
    /// Adds the entries of the rule at a listener, and the session names that it wants.
    fn add_entries(
        &self,
        work: &Work<'_>,
        groups: &Groups,
        attachment: &Attachment,
        claims: &mut Vec<SessionClaim>,
        mut add: impl FnMut(usize, Entry),
    ) {
        let Some(index) = work.frontend_of(attachment.listener) else {
            return;
        };
        let (Some(frontend), Some(listener)) = (
            work.frontends.get(index),
            work.listeners.get(attachment.listener),
        ) else {
            return;
        };
        let scheme = match listener.class == Some(Class::Https) {
            true => "https",
            false => "http",
        };
        let actions = self.text.write_actions(scheme, frontend.port);
        let own = listener.hostname().map(str::to_ascii_lowercase);
        let metadata = &self.route.metadata;
        let number = self.number.to_string();
        let mut parts = vec![metadata.namespace.as_str(), &metadata.name];
        // An HTTPRoute may have the name, too, and limits count by the names of routes.
        let is_limited = actions
            .iter()
            .any(|line| line.starts_with("request_limits"));
        parts.extend((is_limited && self.kind == Kind::GrpcRoute).then_some("grpc"));
        parts.push(&number);
        let name = short_name(&parts);
        for host in &attachment.hosts {
            if is_isolated(host.as_deref(), own.as_deref(), frontend) {
                continue;
            }
            let bound = self.text.groups.iter();
            let bound = bound.filter_map(|group| Some((group, groups.session_of(group)?)));
            claims.extend(bound.map(|(group, session)| SessionClaim {
                owner: Arc::clone(self.owner),
                host: host.clone(),
                cookie: session.to_owned(),
                group: group.clone(),
            }));
            for (place, conditions) in self.text.conditions.iter().enumerate() {
                let host_line = host.as_ref().map(|host| write_condition(host));
                let all = [format!("name = {}", quote(&name))];
                let all = all.iter().chain(&host_line);
                let mut lines = String::new();
                for line in all.chain(&conditions.lines).chain(&actions) {
                    lines.push_str(line);
                    lines.push('\n');
                }
                let last = conditions.lines.last();
                let entry = Entry {
                    ranks: (
                        rank_host(own.as_deref()),
                        rank_host(host.as_deref()),
                        conditions.rank,
                    ),
                    source: Source::Route(Arc::clone(self.route)),
                    kind: self.kind,
                    numbers: (self.number, place, 0),
                    serial: 0,
                    owner: Arc::clone(self.owner),
                    listener: attachment.listener,
                    host: host.clone(),
                    serves_all: last.is_none_or(|line| line == ALL_PATHS),
                    lines: lines.into(),
                };
                add(index, entry);
            }
        }
    }
}

//! Translation of all objects: the text of a configuration, contents of secrets, and statuses.
//!
//! An object that cannot be used harms nobody but itself. The text is checked by the parser of configurations: what the
//! parser refuses is left out, with the parser's message in the status of the object.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use evenkeel_config::{Config, GeneratedText};
use serde_json::{Value, json};

use super::addresses::{GatewayAddresses, assign_addresses, refuse_addresses, show_addresses};
use super::attach::{self, Attachment, Parent, RouteFacts, RouteFindings, attach_route};
use super::backends::{Groups, NOBODY, Names, Referrer};
use super::certificates::Files;
use super::conditions::{Condition, Status, list_conditions};
use super::features::list_features;
use super::gateway_tls::{GatewayTls, MemberIdentity, refuse_tls};
use super::ingress::Notice;
use super::ingress::listeners::{IngressState, add_listeners};
use super::listener_sets::{
    SetName, SetState, count_attached, list_sets, refuse_set, show_attached, show_set,
};
use super::listeners::{Class, Frontend, ListenerState, place_listeners};
use super::objects::{
    Gateway, HttpRoute, Kind, Metadata, ObjectName, Objects, Reference, StreamRoute,
};
use super::policies::{Policies, PolicyAncestors};
use super::pools::{self, PoolParents};
use super::rule_policies::RuleKeys;
use super::service_annotations::list_service_notices;
use super::settings::Settings;
use super::text::{Owner, Text, is_host};

mod blame;
mod entry;
mod frontend;
mod ingress;
mod ingress_listeners;
mod kept;
mod others;
mod route;
pub mod settle;
mod stream_targets;
mod targets;

/// Result of a translation.
#[derive(Clone, Debug)]
pub struct Translation {
    /// Text of the configuration.
    pub text: GeneratedText,
    /// Configuration that the parser makes of the text. An error is the reason why the configuration cannot be made, if
    /// nobody is known to be at fault: the configuration before stays.
    pub config: Result<Arc<Config>, String>,
    /// Contents of secrets, by the paths that the text names.
    pub files: Files,
    /// Statuses of all objects of this controller.
    pub statuses: Vec<Arc<Status>>,
    /// Listeners of each rule of the configuration.
    pub rules: BTreeMap<String, Vec<Owner>>,
    /// Number of rounds that the translation took.
    pub rounds: usize,
    /// Reports about Ingresses and Services.
    pub notices: Vec<Notice>,
}

/// Owners of lines that cannot be used, with the reason.
pub type Refused = BTreeMap<Owner, String>;

/// Age of an object, the oldest first.
fn rank_age(metadata: &Metadata) -> (String, ObjectName) {
    (metadata.creation_timestamp.clone(), metadata.object_name())
}

/// Returns the reason why host names of a route cannot be used.
fn refuse_host(hosts: &[String]) -> Option<String> {
    let wrong = hosts.iter().find(|host| !is_host(host))?;
    Some(format!("hostname {wrong:?} is no host name; change it"))
}

/// Precedence of routes at a port: the most specific listener first, then the most specific host name.
type HostRank = (u8, Reverse<usize>);

fn rank_host(host: Option<&str>) -> HostRank {
    match host {
        None => (2, Reverse(0)),
        Some(host) => (u8::from(host.starts_with("*.")), Reverse(host.len())),
    }
}

/// Target of connections.
#[derive(Debug)]
struct StreamTarget {
    /// Name that clients ask for; `None` stands for all other clients.
    host: Option<String>,
    group: String,
    owner: Arc<Owner>,
    /// True if TLS of the clients ends at the members.
    passes: bool,
}

/// Targets of connections, by the numbers of the frontends.
type StreamTargets = BTreeMap<usize, Vec<Arc<StreamTarget>>>;

struct Work<'o> {
    objects: &'o Objects,
    settings: &'o Settings,
    refused: &'o Refused,
    listeners: Vec<ListenerState<'o>>,
    by_gateway: BTreeMap<ObjectName, Vec<usize>>,
    sets: Vec<SetState<'o>>,
    by_set: BTreeMap<SetName, Vec<usize>>,
    gateways: Vec<&'o Gateway>,
    addresses: BTreeMap<ObjectName, GatewayAddresses>,
    /// Settings of TLS of all gateways.
    tls: BTreeMap<ObjectName, GatewayTls>,
    frontends: Vec<Frontend>,
    /// Number of the frontend of each listener that has one.
    frontend_of: HashMap<usize, usize>,
    files: Files,
    groups: Groups,
    names: Names,
    text: Text,
    statuses: Vec<Arc<Status>>,
    rules: BTreeMap<String, Vec<Owner>>,
    /// Keys of rules that policies set, by the names of the rules.
    rule_lines: BTreeMap<String, RuleKeys>,
    /// Groups by host and by the name of a cookie that binds clients of the host to the group.
    cookies: HashMap<(Option<String>, String), String>,
    /// Rules that contradict rules of older routes, and policies that contradict their rules, with the reason.
    contradictions: Vec<(Owner, String)>,
    /// Server names that have a target, by the numbers of the frontends.
    server_names: HashSet<(usize, Option<String>)>,
    pool_parents: PoolParents,
    policies: Policies,
    policy_ancestors: PolicyAncestors,
    ingress: IngressState,
}

impl<'o> Work<'o> {
    fn new(objects: &'o Objects, settings: &'o Settings, refused: &'o Refused) -> Self {
        let is_own = |name: &str| {
            let class = objects.classes.get(&ObjectName::new("", name));
            class.is_some_and(|class| {
                settings.has_class(class) && class.spec.parameters_ref.is_none()
            })
        };
        let gateways = objects.gateways.values().map(Arc::as_ref);
        let mut gateways: Vec<&Gateway> = gateways
            .filter(|of| is_own(&of.spec.gateway_class_name))
            .collect();
        gateways.sort_by_cached_key(|of| rank_age(&of.metadata));
        let mut addresses = assign_addresses(&gateways, settings);
        let mut files = Files::new();
        let tls = gateways.iter().map(|of| {
            let tls = GatewayTls::read(of, objects, &mut files);
            (of.metadata.object_name(), tls)
        });
        let tls: BTreeMap<ObjectName, GatewayTls> = tls.collect();
        let (mut listeners, mut by_gateway) = (Vec::new(), BTreeMap::new());
        let (mut sets, sets_of) = (Vec::new(), list_sets(objects));
        for gateway in &gateways {
            let name = gateway.metadata.object_name();
            let is_refused = refuse_gateway(gateway).is_some();
            let (addresses, tls) = (addresses.get(&name), tls.get(&name));
            let mut add = |set, listener| {
                let mut state =
                    ListenerState::with_set(gateway, tls, set, listener, objects, &mut files);
                if let Some(message) = refused.get(&state.owner()) {
                    state.refusal = Some(("PortUnavailable", message.clone()));
                } else if is_refused {
                    let message = "the gateway is not accepted: see its conditions";
                    state.refusal.get_or_insert(("Invalid", message.into()));
                } else if let Some((_, message)) = { addresses }
                    .filter(|of| of.listen.is_empty())
                    .and_then(|of| of.refusal.as_ref())
                {
                    state.not_in_effect = Some(message.clone());
                }
                listeners.push(state);
                listeners.len() - 1
            };
            let own = gateway.spec.listeners.iter();
            let numbers = own.map(|listener| add(None, listener)).collect();
            for (kind, set) in { sets_of.get(&name) }.into_iter().flatten() {
                let refusal = refuse_set(gateway, set, objects);
                let own = set.spec.listeners.iter().filter(|_| refusal.is_none());
                let numbers = own.map(|listener| add(Some((*kind, *set)), listener));
                sets.push(SetState {
                    kind: *kind,
                    set,
                    gateway,
                    listeners: numbers.collect(),
                    refusal,
                });
            }
            by_gateway.insert(name, numbers);
        }
        let by_set = sets.iter().map(|of| (of.name(), of.listeners.clone()));
        let by_set = by_set.collect();
        let policies = Policies::new(objects, refused, &mut files);
        let ingress = add_listeners(
            objects,
            settings,
            refused,
            &mut listeners,
            &mut addresses,
            &mut files,
        );
        let frontends = place_listeners(&mut listeners, |gateway| {
            let addresses = addresses.get(&gateway.metadata.object_name())?;
            (!addresses.listen.is_empty()).then(|| addresses.listen.clone())
        });
        let numbers = frontends.iter().enumerate();
        let frontend_of = numbers
            .flat_map(|(index, of)| of.listeners.iter().map(move |listener| (*listener, index)))
            .collect();
        Work {
            objects,
            settings,
            refused,
            listeners,
            by_gateway,
            sets,
            by_set,
            gateways,
            addresses,
            tls,
            frontends,
            frontend_of,
            files,
            groups: Groups::default(),
            names: Names::default(),
            text: Text::default(),
            statuses: Vec::new(),
            rules: BTreeMap::new(),
            rule_lines: BTreeMap::new(),
            cookies: HashMap::new(),
            contradictions: Vec::new(),
            server_names: HashSet::new(),
            pool_parents: PoolParents::new(),
            policies,
            policy_ancestors: PolicyAncestors::new(),
            ingress,
        }
    }

    /// Returns the number of the frontend of a listener, if the listener serves clients.
    fn frontend_of(&self, listener: usize) -> Option<usize> {
        let serves = self
            .listeners
            .get(listener)
            .is_some_and(ListenerState::serves);
        let found = self.frontend_of.get(&listener).copied();
        found.filter(|_| serves)
    }

    /// Returns the attachments of a route by the certificate that members see; at least one list.
    fn split_by_identity(
        &self,
        attachments: &[Attachment],
    ) -> Vec<(Option<MemberIdentity>, Vec<Attachment>)> {
        let find_identity = |attachment: &Attachment| {
            // The gateway that stands for Ingresses has no settings of TLS.
            let gateway = self.listeners.get(attachment.listener)?.gateway;
            self.tls.get(&gateway.metadata.object_name())?.identity()
        };
        let mut all: BTreeMap<Option<&MemberIdentity>, Vec<Attachment>> = BTreeMap::new();
        for attachment in attachments {
            let of_identity = all.entry(find_identity(attachment)).or_default();
            of_identity.push(attachment.clone());
        }
        if all.is_empty() {
            all.insert(None, Vec::new());
        }
        let all = all.into_iter();
        all.map(|(identity, attachments)| (identity.cloned(), attachments))
            .collect()
    }

    fn attach(&self, facts: &RouteFacts<'_>) -> (Vec<Parent>, Vec<Attachment>) {
        attach_route(
            facts,
            &self.listeners,
            &self.by_gateway,
            &self.by_set,
            self.objects,
        )
    }

    /// Counts a route at its listeners and notes its status.
    fn note_route(
        &mut self,
        kind: Kind,
        metadata: &Metadata,
        parents: &[Parent],
        findings: &RouteFindings,
    ) {
        if findings.refusal.is_none() {
            let numbers = parents
                .iter()
                .flat_map(|parent| parent.listeners.iter().copied());
            for number in numbers.collect::<BTreeSet<_>>() {
                if let Some(listener) = self.listeners.get_mut(number) {
                    listener.attached += 1;
                }
            }
        }
        let status = self.make_route_status(kind, metadata, parents, findings);
        self.statuses.push(status);
    }

    /// Makes the status of a route.
    fn make_route_status(
        &self,
        kind: Kind,
        metadata: &Metadata,
        parents: &[Parent],
        findings: &RouteFindings,
    ) -> Arc<Status> {
        let controller = &self.settings.controller;
        let status = attach::show_parents(parents, findings, controller, metadata.generation);
        let object = metadata.object_name();
        Arc::new(Status::new(kind, object, metadata.generation, &status))
    }

    fn note_status(&mut self, kind: Kind, metadata: &Metadata, status: Value) {
        let status = Status::new(kind, metadata.object_name(), metadata.generation, &status);
        self.statuses.push(Arc::new(status));
    }

    /// Returns all routes of requests.
    fn list_routes(&self) -> impl Iterator<Item = (Kind, &'o Arc<HttpRoute>)> {
        let objects = self.objects;
        let http = objects.http_routes.values();
        let http = http.map(|route| (Kind::HttpRoute, route));
        let grpc = objects.grpc_routes.values();
        http.chain(grpc.map(|route| (Kind::GrpcRoute, route)))
    }

    fn translate_stream(&mut self, kind: Kind, route: &StreamRoute, targets: &mut StreamTargets) {
        let metadata = &route.metadata;
        let facts = RouteFacts {
            kind,
            metadata,
            parents: &route.spec.parent_refs,
            hosts: (kind == Kind::TlsRoute).then_some(&route.spec.hostnames),
        };
        let (parents, attachments) = self.attach(&facts);
        let mut findings = RouteFindings::default();
        let owner = Arc::new(Owner::Rule(kind, metadata.object_name(), 0));
        let groups = &self.policies.groups;
        let parents_of = &route.spec.parent_refs;
        let inherited =
            groups.list_inherited(kind, &metadata.object_name(), parents_of, self.objects);
        let is_ended = |attachment: &Attachment| {
            let listener = self.listeners.get(attachment.listener);
            listener
                .and_then(|of| of.class)
                .is_some_and(Class::ends_tls)
        };
        let ends_tls = attachments.iter().any(is_ended);
        let has_both_modes = ends_tls && !attachments.iter().all(is_ended);
        let backends = route
            .spec
            .rules
            .iter()
            .flat_map(|rule| rule.backend_refs.iter().cloned());
        let backends: Vec<_> = backends.collect();
        let named = backends.iter().map(|of| &of.target);
        let namespace = &metadata.namespace;
        let secured = self
            .policies
            .list_services(named, kind, namespace, self.objects);
        let is_secured = !secured.is_empty();
        let wrong_host = facts.hosts.and_then(refuse_host);
        for (identity, attachments) in self.split_by_identity(&attachments) {
            let referrer = Referrer {
                objects: self.objects,
                policies: &self.policies,
                inherited: &inherited,
                kind,
                namespace: &metadata.namespace,
                ends_tls,
                identity: identity.as_ref(),
            };
            let found = referrer.find_groups(&backends, None, &mut self.groups);
            let mut served = found.sum_weights(&mut self.groups);
            findings.references = found.refusal;
            served.retain(|(_, weight)| *weight > 0);
            // A target that cannot be used would fail its share of the connections: none is served then.
            let is_failing = served.iter().any(|(name, _)| name == NOBODY);
            let can_join = served.len() > 1 && !is_failing;
            if can_join {
                let shares = self.groups.add_shares(&served);
                served.splice(.., shares.map(|name| (name, 1)));
            }
            if kind == Kind::TlsRoute && !can_join && (is_failing || served.is_empty()) {
                // Clients that ask for the name are refused, and get to no other route.
                self.groups.drop_current();
                served = vec![(NOBODY.to_owned(), 1)];
            }
            if let Some(message) = self.refused.get(&*owner).or(wrong_host.as_ref()) {
                findings.refusal = Some(("UnsupportedValue", message.clone()));
            } else if has_both_modes && is_secured {
                // One group cannot have members that get TLS from the balancer, and from the client.
                let message = "listeners of both modes of TLS cannot share a route to a Service with a BackendTLSPolicy; use a route for each mode";
                findings.refusal = Some(("UnsupportedValue", message.into()));
            } else if route.spec.rules.len() > 1 {
                let message = "several rules are not supported for connections; use one rule";
                findings.refusal = Some(("UnsupportedValue", message.into()));
            } else if served.is_empty() && can_join {
                let message = "several targets for connections must all speak TLS in the same way, or none of them";
                findings.refusal = Some(("UnsupportedValue", message.into()));
            } else if let [(group, _)] = served.as_slice()
                && !attachments.is_empty()
            {
                self.groups.use_current(&owner);
                self.add_stream_targets(&attachments, group, &owner, targets);
            }
            self.groups.drop_current();
        }
        if kind == Kind::TcpRoute || ends_tls {
            let named = backends.iter().map(|of| &of.target);
            self.note_ancestors(kind, &metadata.namespace, named, &attachments);
        }
        self.note_route(kind, metadata, &parents, &findings);
    }

    /// Notes the gateways through which clients of a route for connections reach services with a policy.
    fn note_ancestors<'t>(
        &mut self,
        kind: Kind,
        namespace: &str,
        targets: impl Iterator<Item = &'t Reference>,
        attachments: &[Attachment],
    ) {
        let services = self
            .policies
            .list_services(targets, kind, namespace, self.objects);
        for attachment in attachments {
            let Some(listener) = self.listeners.get(attachment.listener) else {
                continue;
            };
            for service in &services {
                let of_service = self.policy_ancestors.entry(service.clone()).or_default();
                of_service.insert(listener.gateway.metadata.object_name());
            }
        }
    }

    /// Makes the statuses of classes and gateways, and the result.
    fn finish(
        mut self,
        text: GeneratedText,
        config: Result<Arc<Config>, String>,
        rounds: usize,
    ) -> Translation {
        let objects = self.objects;
        for class in objects.classes.values() {
            if !self.settings.has_class(class) {
                continue;
            }
            let accepted = match class.spec.parameters_ref {
                None => Condition::holds("Accepted", "Accepted"),
                Some(_) => {
                    let message = "parametersRef is not supported; remove it";
                    Condition::fails("Accepted", "InvalidParameters", message)
                }
            };
            let conditions = list_conditions(&[accepted], class.metadata.generation);
            self.note_status(
                Kind::GatewayClass,
                &class.metadata,
                json!({ "conditions": conditions, "supportedFeatures": list_features() }),
            );
        }
        for (name, pool) in &objects.pools {
            let parents = self.pool_parents.get(name);
            let status = pools::show_pool(pool, parents, &self.settings.controller);
            self.note_status(Kind::InferencePool, &pool.metadata, status);
        }
        for policy in objects.tls_policies.values() {
            let (ancestors, controller) = (&self.policy_ancestors, &self.settings.controller);
            let status = self.policies.show_policy(policy, ancestors, controller);
            self.note_status(Kind::BackendTlsPolicy, &policy.metadata, status);
        }
        for policy in objects.evenkeel_policies.values() {
            let (groups, controller) = (&self.policies.groups, &self.settings.controller);
            let status = groups.show_policy(policy, self.refused, controller);
            self.note_status(Kind::EvenkeelPolicy, &policy.metadata, status);
        }
        for gateway in self.gateways.clone() {
            let status = self.show_gateway(gateway);
            self.note_status(Kind::Gateway, &gateway.metadata, status);
        }
        let sets = std::mem::take(&mut self.sets);
        for set in &sets {
            let refusal = refuse_gateway(set.gateway);
            let status = show_set(set, &self.listeners, refusal.as_ref());
            self.note_status(set.kind, &set.set.metadata, status);
        }
        Translation {
            text,
            config,
            files: self.files,
            statuses: self.statuses,
            rules: self.rules,
            rounds,
            notices: { self.ingress.notices.into_iter() }
                .chain(list_service_notices(objects))
                .collect(),
        }
    }

    fn show_gateway(&self, gateway: &Gateway) -> Value {
        let name = gateway.metadata.object_name();
        let addresses = self.addresses.get(&name).cloned().unwrap_or_default();
        let numbers = self.by_gateway.get(&name);
        let listeners = numbers
            .into_iter()
            .flatten()
            .filter_map(|number| self.listeners.get(*number));
        let listeners: Vec<&ListenerState<'_>> = listeners.collect();
        let is_valid = |of: &&&ListenerState<'_>| match addresses.refusal {
            // The gateway is accepted all the same: the condition Programmed says what is wrong.
            Some(_) => of.serves(),
            None => of.is_valid(),
        };
        let valid = listeners.iter().filter(is_valid).count();
        let message = "some listeners are not valid: see their conditions";
        let refusal = refuse_gateway(gateway);
        let accepted = match &refusal {
            Some((reason, message)) => Condition::fails("Accepted", reason, message),
            None if valid == listeners.len() => Condition::holds("Accepted", "Accepted"),
            None if valid > 0 => Condition {
                message: message.into(),
                ..Condition::holds("Accepted", "ListenersNotValid")
            },
            None => Condition::fails(
                "Accepted",
                "ListenersNotValid",
                "no listener is valid: see their conditions",
            ),
        };
        let programmed = if let Some((reason, message)) = &addresses.refusal {
            Condition::fails("Programmed", reason, message)
        } else if valid == 0 {
            let message = "no listener serves clients: see the other conditions";
            Condition::fails("Programmed", "Invalid", message)
        } else {
            Condition::holds("Programmed", "Programmed")
        };
        let sets = self.sets.iter();
        let sets = sets.filter(|of| of.gateway.metadata.object_name() == name);
        let mut conditions = vec![accepted, programmed];
        let are_resolved = listeners.iter().all(|of| of.is_resolved());
        conditions.extend(
            { self.tls.get(&name).into_iter() }.flat_map(|tls| tls.list_conditions(are_resolved)),
        );
        conditions.extend(show_attached(gateway, sets.clone()));
        json!({
            "addresses": show_addresses(&addresses.publish),
            "attachedListenerSets": count_attached(sets, &self.listeners, refusal.as_ref()),
            "conditions": list_conditions(&conditions, gateway.metadata.generation),
            "listeners": listeners.iter().map(|of| of.show()).collect::<Vec<_>>(),
        })
    }
}

/// Returns the reason why a gateway as a whole cannot be used.
fn refuse_gateway(gateway: &Gateway) -> Option<(&'static str, String)> {
    let spec = &gateway.spec;
    let infrastructure = spec.infrastructure.as_ref();
    if infrastructure.is_some_and(|of| of.parameters_ref.is_some()) {
        return Some((
            "InvalidParameters",
            "infrastructure.parametersRef is not supported; remove it".into(),
        ));
    }
    refuse_tls(gateway).or_else(|| refuse_addresses(gateway))
}

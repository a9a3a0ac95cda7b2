//! EvenkeelPolicies: settings of groups, by service, route and gateway.
//!
//! A key counts as the most specific policy sets it: the policy of a service's port, then those of the service (or pool),
//! of the route, and of the gateway, and then the annotation of the service. Of two policies with the same target, the older
//! one counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_config::Problem;
use serde_json::{Value, json};

use super::conditions::{Condition, Refusal, list_conditions};
use super::gateway_spec::Listener;
use super::objects::{
    EvenkeelPolicy, Kind, Metadata, ObjectName, Objects, ParentRef, PolicyTarget,
};
use super::policy_keys::PolicyLine;
use super::service_annotations::read_service_lines;
use super::text::Owner;

/// Most targets of a policy; the API has the same bound for ancestors in a status.
pub(crate) const MAX_TARGETS: usize = 16;

/// Object for which a policy holds, and the name of a port of a service.
type Target = (Kind, ObjectName, Option<String>);

/// Settings of a policy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(super) policy: ObjectName,
    group: Vec<PolicyLine>,
    member: Vec<PolicyLine>,
    pub(super) route: Vec<PolicyLine>,
    pub(super) rule: Vec<PolicyLine>,
    /// Limits of `route` for routes without engines: those of tokens are left out. `None` if all limits hold for all routes.
    pub(super) limits_without_engines: Option<PolicyLine>,
    /// True if the target is a gateway: what does not go together with a route is left out of the route.
    pub(super) is_of_gateway: bool,
}

impl Layer {
    fn new(policy: &EvenkeelPolicy, is_of_gateway: bool) -> Arc<Self> {
        let spec = &policy.spec;
        let without = spec.limits_without_tokens.clone();
        Arc::new(Layer {
            policy: policy.metadata.object_name(),
            group: spec.group.clone(),
            member: spec.member.clone(),
            route: spec.route.clone(),
            rule: spec.rule.clone(),
            limits_without_engines: without.filter(|_| is_of_gateway),
            is_of_gateway,
        })
    }

    /// True if the policy has keys of groups or members.
    fn is_of_groups(&self) -> bool {
        !self.group.is_empty() || !self.member.is_empty()
    }
}

/// Settings of a group by all policies that hold for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupTuning {
    /// Keys of the group.
    pub(crate) group: Vec<PolicyLine>,
    /// Keys of each member.
    pub(crate) member: Vec<PolicyLine>,
    /// Namespaces and names of the policies of the route and its gateways: other routes to the same service have groups of their own.
    pub(crate) scope: Vec<String>,
    /// All policies, the most specific first.
    pub(crate) policies: Vec<ObjectName>,
    /// Keys, each with the place of its policy among the policies.
    origins: Vec<(String, usize)>,
    /// Number of policies before those of gateways.
    own: usize,
}

/// Policy to which a problem of a group is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Culprit<'t> {
    pub(crate) policy: &'t ObjectName,
    /// True if the policy is one of a gateway, which others need all the same.
    pub(crate) is_of_gateway: bool,
}

impl GroupTuning {
    /// Adds the keys of a policy that no more specific policy sets.
    fn add(&mut self, layer: &Layer) {
        if !layer.is_of_groups() {
            return;
        }
        for (own, added) in [
            (&mut self.group, &layer.group),
            (&mut self.member, &layer.member),
        ] {
            for line in added {
                if own.iter().all(|known| known.key != line.key) {
                    own.push(line.clone());
                    self.origins.push((line.key.clone(), self.policies.len()));
                }
            }
        }
        self.policies.push(layer.policy.clone());
        if !layer.is_of_gateway {
            self.own = self.policies.len();
        }
    }

    /// Adds the keys of a service's annotations that no policy sets.
    fn add_annotations(&mut self, lines: Vec<PolicyLine>) {
        for line in lines {
            if self.group.iter().all(|known| known.key != line.key) {
                self.group.push(line);
            }
        }
    }

    /// Returns the policy to which a problem of the group is due: the least specific one of those that have set the keys in
    /// question. `None` if no policy has set one.
    pub(crate) fn find_culprit(&self, problem: &Problem) -> Option<Culprit<'_>> {
        let causes: Vec<&str> = match problem.key.rsplit('.').next() {
            // The parser reports there that the keys do not go together.
            Some("sticky") => vec!["granularity", "adaptive"],
            _ => problem.key.rsplit('.').collect(),
        };
        // A problem between the group and its rules has the group's name as its key, and names what does not fit.
        let is_named = |key: &str| {
            problem.message.contains(&format!("`{key}`"))
                || problem.message.contains(&format!("has {key} `"))
        };
        let find = |is_cause: &dyn Fn(&str) -> bool| {
            let origins = self.origins.iter().filter(|(key, _)| is_cause(key));
            origins.map(|(_, policy)| *policy).max()
        };
        let found = find(&|key| causes.contains(&key)).or_else(|| find(&is_named))?;
        Some(Culprit {
            policy: self.policies.get(found)?,
            is_of_gateway: found >= self.own,
        })
    }
}

/// Targets of a policy, each with the reason why the policy does not hold for it.
type Findings = Vec<(PolicyTarget, Option<Refusal>)>;

/// All EvenkeelPolicies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupPolicies {
    layers: BTreeMap<Target, Arc<Layer>>,
    /// Targets of policies with which the configuration cannot be made.
    held: BTreeMap<Target, ObjectName>,
    /// Policies of gateways that do not go together with routes, with these routes.
    unfit: BTreeSet<(ObjectName, Kind, ObjectName)>,
    findings: BTreeMap<ObjectName, Findings>,
}

/// Returns the kind of a target; `None` if policies do not hold for such objects.
fn find_kind(target: &PolicyTarget) -> Option<Kind> {
    let kinds = [
        Kind::Service,
        Kind::InferencePool,
        Kind::HttpRoute,
        Kind::GrpcRoute,
        Kind::TlsRoute,
        Kind::TcpRoute,
        Kind::UdpRoute,
        Kind::Gateway,
    ];
    let is_kind = |kind: &Kind| kind.api_group() == target.group && kind.name() == target.kind;
    kinds.into_iter().find(is_kind)
}

/// Age of a policy, the oldest first.
fn rank_age(metadata: &Metadata) -> (&str, &str, &str) {
    let of = metadata;
    (&of.creation_timestamp, &of.namespace, &of.name)
}

/// Returns the object of a target.
///
/// # Errors
///
/// The reason why the policy does not hold for the target.
fn find_target(
    target: &PolicyTarget,
    namespace: &str,
    objects: &Objects,
) -> Result<Target, Refusal> {
    let Some(kind) = find_kind(target) else {
        let message = format!(
            "a target cannot be a {}/{}; name a Service, an InferencePool, a route or a Gateway",
            target.group, target.kind
        );
        return Err(("Invalid", message));
    };
    let name = ObjectName::new(namespace, &target.name);
    let (shown, not_found) = (kind.name(), |message| Err(("TargetNotFound", message)));
    if !objects.has(kind, &name) {
        return not_found(format!("there is no {shown} {name}; create it"));
    }
    let section = { target.section_name.clone() }.filter(|name| !name.is_empty());
    let Some(section) = section else {
        return Ok((kind, name, None));
    };
    if kind != Kind::Service {
        let message =
            format!("sectionName of a {shown} is not supported; remove it, or name a Service");
        return Err(("Invalid", message));
    }
    let mut ports = { objects.services.get(&name) }
        .into_iter()
        .flat_map(|service| service.spec.ports.iter());
    match ports.any(|port| port.name.as_ref() == Some(&section)) {
        true => Ok((kind, name, Some(section))),
        false => not_found(format!(
            "Service {name} has no port with the name {section:?}; change sectionName"
        )),
    }
}

/// Refuses a policy with keys of routes or rules for a target that has none.
///
/// # Errors
///
/// The reason why the policy does not hold for the target.
fn check_sections(target: Target, layer: &Layer) -> Result<Target, Refusal> {
    let kind = target.0;
    let has_routes = matches!(kind, Kind::Gateway | Kind::HttpRoute | Kind::GrpcRoute);
    let has_rules = matches!(
        kind,
        Kind::Gateway | Kind::TlsRoute | Kind::TcpRoute | Kind::UdpRoute
    );
    let shown = kind.name();
    let message = if !layer.route.is_empty() && !has_routes {
        format!(
            "spec.route does not hold for a {shown}; name an HTTPRoute, GRPCRoute or Gateway in a policy with spec.route"
        )
    } else if !layer.rule.is_empty() && !has_rules {
        format!(
            "spec.rule does not hold for a {shown}; name a TCPRoute, UDPRoute, TLSRoute or Gateway in a policy with spec.rule"
        )
    } else {
        return Ok(target);
    };
    Err(("Invalid", message))
}

impl GroupPolicies {
    /// Reads all policies. `refused` has those with which the configuration cannot be made.
    pub(crate) fn new(objects: &Objects, refused: &BTreeMap<Owner, String>) -> Self {
        let unfit = refused.keys().filter_map(|owner| match owner {
            Owner::PolicyAtRoute(policy, kind, route) => {
                Some((policy.clone(), *kind, route.clone()))
            }
            _ => None,
        });
        let mut policies = GroupPolicies {
            unfit: unfit.collect(),
            ..GroupPolicies::default()
        };
        let all = objects.evenkeel_policies.values();
        let mut sorted: Vec<&EvenkeelPolicy> = all.map(AsRef::as_ref).collect();
        sorted.sort_by_key(|of| rank_age(&of.metadata));
        for policy in sorted {
            let name = policy.metadata.object_name();
            let spec = &policy.spec;
            let refused = refused.get(&Owner::Policy(name.clone()));
            let problem = spec.problem.as_ref().or(refused);
            let [layer, of_gateway] = [false, true].map(|of| Layer::new(policy, of));
            let targets = spec.target_refs.iter().take(MAX_TARGETS).map(|target| {
                let found = match problem {
                    Some(message) => {
                        if refused.is_some() {
                            policies.hold_target(target, &layer, objects);
                        }
                        Err(("Invalid", message.clone()))
                    }
                    None => find_target(target, &name.namespace, objects),
                };
                let refusal = found
                    .and_then(|found| check_sections(found, &layer))
                    .and_then(|found| {
                        let is_of_gateway = found.0 == Kind::Gateway;
                        let layer = if is_of_gateway { &of_gateway } else { &layer };
                        policies.add_layer(found, layer)
                    })
                    .err();
                (target.clone(), refusal)
            });
            let targets = targets.collect();
            policies.findings.insert(name, targets);
        }
        policies
    }

    /// Keeps a target of a policy with which the configuration cannot be made from younger policies: one after the other,
    /// they would take a round of the translation each.
    fn hold_target(&mut self, target: &PolicyTarget, layer: &Layer, objects: &Objects) {
        let found = find_target(target, &layer.policy.namespace, objects)
            .and_then(|found| check_sections(found, layer));
        if let Ok(found) = found
            && !self.layers.contains_key(&found)
        {
            let policy = || layer.policy.clone();
            self.held.entry(found).or_insert_with(policy);
        }
    }

    /// Lets a policy hold for a target.
    ///
    /// # Errors
    ///
    /// An older policy holds for the target.
    fn add_layer(&mut self, target: Target, layer: &Arc<Layer>) -> Result<(), Refusal> {
        let known = self.layers.get(&target).map(|known| &known.policy);
        if let Some(known) = known.or_else(|| self.held.get(&target))
            && *known != layer.policy
        {
            let message = format!(
                "EvenkeelPolicy {known} is older and has the same target; remove one of them"
            );
            return Err(("Conflicted", message));
        }
        self.layers.insert(target, Arc::clone(layer));
        Ok(())
    }

    pub(super) fn find(
        &self,
        kind: Kind,
        name: &ObjectName,
        section: Option<&str>,
    ) -> Option<&Arc<Layer>> {
        let key = (kind, name.clone(), section.map(str::to_owned));
        self.layers.get(&key)
    }

    /// Returns the policies of a route and of its gateways, the most specific first. Of the gateways of a route, those that
    /// the route names first go first. A gateway that takes no routes of the namespace is none of them: a stranger's route
    /// must not have a part in the gateway's policies.
    pub(crate) fn list_inherited(
        &self,
        kind: Kind,
        route: &ObjectName,
        parents: &[ParentRef],
        objects: &Objects,
    ) -> Vec<Arc<Layer>> {
        if self.layers.is_empty() {
            return Vec::new();
        }
        let mut gateways = Vec::new();
        let admits = |listeners: &[Listener], home: &str| {
            let mut listeners = listeners.iter();
            listeners.any(|of| {
                let allowed = &of.allowed_routes.namespaces;
                allowed.choose("Same", home, &route.namespace, objects)
            })
        };
        for parent in parents {
            let namespace = parent.namespace.as_deref().unwrap_or(&route.namespace);
            let name = ObjectName::new(namespace, &parent.name);
            let sets = match parent.kind.as_deref().unwrap_or("Gateway") {
                "Gateway" => {
                    let gateway = objects.gateways.get(&name);
                    if gateway.is_some_and(|of| admits(&of.spec.listeners, &name.namespace)) {
                        gateways.push(name);
                    }
                    continue;
                }
                "ListenerSet" => &objects.listener_sets,
                "XListenerSet" => &objects.x_listener_sets,
                _ => continue,
            };
            let set = sets.get(&name);
            let set = set.filter(|set| admits(&set.spec.listeners, &name.namespace));
            let gateway = set.map(|set| {
                let of = &set.spec.parent_ref;
                let home = of.namespace.as_deref().unwrap_or(&name.namespace);
                ObjectName::new(home, &of.name)
            });
            gateways.extend(gateway.filter(|gateway| {
                let of = objects.gateways.get(gateway);
                of.is_some_and(|of| {
                    let allowed = &of.spec.allowed_listeners.namespaces;
                    allowed.choose("None", &gateway.namespace, &name.namespace, objects)
                })
            }));
        }
        let mut seen = BTreeSet::new();
        let of_gateways = { gateways.iter() }
            .filter(|name| seen.insert(*name))
            .filter_map(|name| self.find(Kind::Gateway, name, None))
            .filter(|layer| {
                let at = || (layer.policy.clone(), kind, route.clone());
                self.unfit.is_empty() || !self.unfit.contains(&at())
            });
        let of_route = self.find(kind, route, None).into_iter();
        let all = of_route.chain(of_gateways);
        all.filter(|layer| layer.is_of_groups() || !layer.route.is_empty())
            .cloned()
            .collect()
    }

    /// Returns the settings of the group of a service's port, or of a pool; `None` without any. `inherited` has the
    /// policies of the route.
    pub(crate) fn find_tuning(
        &self,
        kind: Kind,
        name: &ObjectName,
        port: Option<&str>,
        inherited: &[Arc<Layer>],
        objects: &Objects,
    ) -> Option<Arc<GroupTuning>> {
        let service = objects.services.get(name).filter(|_| kind == Kind::Service);
        // What is wrong with annotations is told by an event.
        let annotations = service.and_then(|of| read_service_lines(of).ok());
        let annotations = annotations.unwrap_or_default();
        if self.layers.is_empty() && annotations.is_empty() {
            return None;
        }
        let mut tuning = GroupTuning::default();
        let of_port = port.and_then(|port| self.find(kind, name, Some(port)));
        for layer in of_port.into_iter().chain(self.find(kind, name, None)) {
            tuning.add(layer);
        }
        for layer in inherited.iter().filter(|layer| layer.is_of_groups()) {
            tuning.add(layer);
            let ObjectName { namespace, name } = &layer.policy;
            tuning.scope.extend([namespace.clone(), name.clone()]);
        }
        tuning.add_annotations(annotations);
        (tuning != GroupTuning::default()).then(|| Arc::new(tuning))
    }

    /// Returns for people what a gateway's policy does not hold for, although it is accepted. `refused` has the reasons.
    fn show_exceptions(&self, policy: &ObjectName, refused: &BTreeMap<Owner, String>) -> String {
        let of_rules = Self::show_rule_refusals(policy, refused);
        let mut of_routes = self.unfit.iter().filter(|(of, ..)| of == policy);
        let first = of_routes.next().map(|(_, kind, route)| {
            let owner = Owner::PolicyAtRoute(policy.clone(), *kind, route.clone());
            let message = refused.get(&owner).map_or("", String::as_str);
            let others = match of_routes.count() {
                0 => String::new(),
                count => format!(", and for {count} other routes"),
            };
            format!(
                "the policy does not hold for {} {route}{others}: {message}",
                kind.name()
            )
        });
        let all: Vec<String> = of_rules.into_iter().chain(first).collect();
        all.join("; ")
    }

    /// Makes the status of a policy: an entry for each target. `refused` has rules that cannot have keys of the policy.
    pub(crate) fn show_policy(
        &self,
        policy: &EvenkeelPolicy,
        refused: &BTreeMap<Owner, String>,
        controller: &str,
    ) -> Value {
        let (name, generation) = (policy.metadata.object_name(), policy.metadata.generation);
        let findings = self.findings.get(&name).into_iter().flatten();
        let mut ancestors: Vec<Value> = Vec::new();
        for (target, refusal) in findings {
            let mut reference = json!({
                "group": target.group,
                "kind": target.kind,
                "namespace": name.namespace,
                "name": target.name,
            });
            let section = { target.section_name.as_ref() }.filter(|of| !of.is_empty());
            if let (Some(section), Some(fields)) = (section, reference.as_object_mut()) {
                fields.insert("sectionName".into(), section.as_str().into());
            }
            if ancestors
                .iter()
                .any(|of| of.get("ancestorRef") == Some(&reference))
            {
                continue;
            }
            let accepted = match refusal {
                Some((reason, message)) => Condition::fails("Accepted", reason, message),
                None => Condition {
                    message: find_kind(target)
                        .filter(|kind| *kind == Kind::Gateway)
                        .map(|_| self.show_exceptions(&name, refused))
                        .unwrap_or_default(),
                    ..Condition::holds("Accepted", "Accepted")
                },
            };
            ancestors.push(json!({
                "ancestorRef": reference,
                "controllerName": controller,
                "conditions": list_conditions(&[accepted], generation),
            }));
        }
        json!({ "ancestors": ancestors })
    }
}

//! ListenerSets: further listeners of a gateway, which others than the gateway's owner write.
//!
//! The experimental channel of the Gateway API has them as XListenerSets, in a group of their own.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::conditions::{Condition, Refusal, list_conditions};
use super::listeners::ListenerState;
use super::objects::{GROUP, Gateway, Kind, ListenerSet, Metadata, ObjectName, Objects};

/// Kind and name of a set.
pub(crate) type SetName = (Kind, ObjectName);

/// Set of a gateway of this controller.
#[derive(Debug)]
pub(crate) struct SetState<'o> {
    pub(crate) kind: Kind,
    pub(crate) set: &'o ListenerSet,
    pub(crate) gateway: &'o Gateway,
    /// Reason why the gateway does not take the set.
    pub(crate) refusal: Option<Refusal>,
    /// Numbers of the listeners.
    pub(crate) listeners: Vec<usize>,
}

impl SetState<'_> {
    /// Returns the kind and the name of the set.
    pub(crate) fn name(&self) -> SetName {
        (self.kind, self.set.metadata.object_name())
    }
}

/// Precedence of a set: the age, then the place of `NAMESPACE/NAME` in the alphabet.
fn rank_set(metadata: &Metadata) -> (String, String) {
    let name = metadata.object_name().to_string();
    (metadata.creation_timestamp.clone(), name)
}

/// Returns the gateway that a set names; `None` if the set names another object.
fn find_gateway(set: &ListenerSet) -> Option<ObjectName> {
    let parent = &set.spec.parent_ref;
    let group = parent.group.as_deref().unwrap_or(GROUP);
    let kind = parent.kind.as_deref().unwrap_or("Gateway");
    let own = &set.metadata.namespace;
    let namespace = parent.namespace.as_deref().unwrap_or(own);
    let is_gateway = (group, kind) == (GROUP, Kind::Gateway.name());
    is_gateway.then(|| ObjectName::new(namespace, &parent.name))
}

/// Returns the sets by the gateways that they name, the oldest first.
pub(crate) fn list_sets(objects: &Objects) -> BTreeMap<ObjectName, Vec<(Kind, &ListenerSet)>> {
    let sets = objects.listener_sets.values();
    let sets = sets.map(|set| (Kind::ListenerSet, set.as_ref()));
    let experimental = objects.x_listener_sets.values();
    let experimental = experimental.map(|set| (Kind::XListenerSet, set.as_ref()));
    let mut by_gateway: BTreeMap<ObjectName, Vec<(Kind, &ListenerSet)>> = BTreeMap::new();
    for (kind, set) in sets.chain(experimental) {
        if let Some(gateway) = find_gateway(set) {
            by_gateway.entry(gateway).or_default().push((kind, set));
        }
    }
    for sets in by_gateway.values_mut() {
        sets.sort_by_cached_key(|(_, set)| rank_set(&set.metadata));
    }
    by_gateway
}

/// Returns the reason why a gateway does not take a set.
pub(crate) fn refuse_set(
    gateway: &Gateway,
    set: &ListenerSet,
    objects: &Objects,
) -> Option<Refusal> {
    let namespaces = &gateway.spec.allowed_listeners.namespaces;
    let own = &set.metadata.namespace;
    let is_allowed = namespaces.choose("None", &gateway.metadata.namespace, own, objects);
    (!is_allowed).then(|| {
        let message = format!(
            "gateway {} allows no listeners of namespace {own}; change allowedListeners of the gateway",
            gateway.metadata.object_name()
        );
        ("NotAllowed", message)
    })
}

/// Returns the condition `Accepted` of a set. `gateway_refusal` is the reason why the gateway as a whole is not used.
fn judge_set(
    state: &SetState<'_>,
    all: &[ListenerState<'_>],
    gateway_refusal: Option<&Refusal>,
) -> Condition {
    let listeners = { state.listeners.iter() }.filter_map(|number| all.get(*number));
    let valid = listeners.filter(|of| of.is_valid()).count();
    match (&state.refusal, gateway_refusal) {
        (Some((reason, message)), _) => Condition::fails("Accepted", reason, message),
        (None, Some((_, message))) => {
            let message = format!("the gateway is not accepted: {message}");
            Condition::fails("Accepted", "ParentNotAccepted", message)
        }
        (None, None) if valid == 0 => {
            let message = "no listener is valid: see their conditions";
            Condition::fails("Accepted", "ListenersNotValid", message)
        }
        (None, None) if valid == state.listeners.len() => Condition::holds("Accepted", "Accepted"),
        (None, None) => Condition {
            message: "some listeners are not valid: see their conditions".into(),
            ..Condition::holds("Accepted", "ListenersNotValid")
        },
    }
}

/// Counts the ListenerSets in `sets` that are accepted. `gateway_refusal` is the reason why their gateway is not used.
/// XListenerSets do not count: the API that has them has no such count.
pub(crate) fn count_attached<'s>(
    sets: impl Iterator<Item = &'s SetState<'s>>,
    all: &[ListenerState<'_>],
    gateway_refusal: Option<&Refusal>,
) -> usize {
    let sets = sets.filter(|of| of.kind == Kind::ListenerSet);
    sets.filter(|of| judge_set(of, all, gateway_refusal).status)
        .count()
}

/// Makes the status of a set. `gateway_refusal` is the reason why the gateway as a whole is not used.
pub(crate) fn show_set(
    state: &SetState<'_>,
    all: &[ListenerState<'_>],
    gateway_refusal: Option<&Refusal>,
) -> Value {
    let listeners = { state.listeners.iter() }.filter_map(|number| all.get(*number));
    let accepted = judge_set(state, all, gateway_refusal);
    let programmed = match accepted.status {
        true => Condition::holds("Programmed", "Programmed"),
        // A set is accepted if one of its listeners serves clients.
        false => Condition::fails("Programmed", accepted.reason, accepted.message.clone()),
    };
    let conditions = list_conditions(&[accepted, programmed], state.set.metadata.generation);
    json!({
        "conditions": conditions,
        "listeners": listeners.map(ListenerState::show).collect::<Vec<_>>(),
    })
}

/// Returns the condition of a gateway about its sets; `None` if the gateway says nothing of sets.
pub(crate) fn show_attached<'s>(
    gateway: &Gateway,
    mut sets: impl Iterator<Item = &'s SetState<'s>>,
) -> Option<Condition> {
    const KIND: &str = "AttachedListenerSets";
    let from = gateway.spec.allowed_listeners.namespaces.from.as_deref()?;
    if from == "None" {
        return None;
    }
    Some(match sets.any(|set| set.refusal.is_none()) {
        true => Condition::holds(KIND, "ListenerSetsAttached"),
        false => Condition::fails(KIND, "NoListenerSetsAttached", ""),
    })
}

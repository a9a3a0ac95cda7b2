//! Routes and their parents: which listeners take a route, and for which host names.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::conditions::{Condition, list_conditions};
use super::listener_sets::SetName;
use super::listeners::{Frontend, ListenerState};
use super::objects::{EXPERIMENTAL_GROUP, GROUP, Kind, Metadata, ObjectName, Objects, ParentRef};
use super::text::covers_host;

/// Listener that takes a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// Number of the listener.
    pub(crate) listener: usize,
    /// Host names for which the route serves there; `None` stands for all.
    pub(crate) hosts: Vec<Option<String>>,
}

/// Parent of a route, and what the route's status says of the parent.
#[derive(Debug)]
pub(crate) struct Parent {
    /// The reference as the route has it.
    reference: Value,
    /// Reason why no listener takes the route.
    refusal: Option<Condition>,
    /// Numbers of the listeners that take the route.
    pub(crate) listeners: Vec<usize>,
}

/// Facts of a route that decide about its attachment.
pub(crate) struct RouteFacts<'o> {
    pub(crate) kind: Kind,
    pub(crate) metadata: &'o Metadata,
    pub(crate) parents: &'o [ParentRef],
    /// Host names; `None` for routes without such.
    pub(crate) hosts: Option<&'o [String]>,
}

/// Writes a reference as the route has it.
fn show_reference(parent: &ParentRef) -> Value {
    let mut shown = Map::new();
    let mut put = |key: &str, value: Option<&String>| {
        if let Some(value) = value {
            shown.insert(key.into(), value.as_str().into());
        }
    };
    put("group", parent.group.as_ref());
    put("kind", parent.kind.as_ref());
    put("namespace", parent.namespace.as_ref());
    put("name", Some(&parent.name));
    put("sectionName", parent.section_name.as_ref());
    if let Some(port) = parent.port {
        shown.insert("port".into(), port.into());
    }
    shown.into()
}

/// Returns the host names for which both a listener and a route serve; `None` if there are none.
pub(crate) fn intersect_host(listener: Option<&str>, route: &str) -> Option<String> {
    let route = route.to_ascii_lowercase();
    let Some(listener) = listener.map(str::to_ascii_lowercase) else {
        return Some(route);
    };
    if covers_host(&listener, &route) {
        Some(route)
    } else if covers_host(&route, &listener) {
        Some(listener)
    } else {
        None
    }
}

/// Returns the hosts of a route at a listener; none if the route serves no host there.
fn find_hosts(listener: &ListenerState<'_>, route: &RouteFacts<'_>) -> Vec<Option<String>> {
    let own = listener.hostname();
    let Some(hosts) = route.hosts.filter(|hosts| !hosts.is_empty()) else {
        return vec![own.map(str::to_ascii_lowercase)];
    };
    let mut found: Vec<Option<String>> = Vec::new();
    for host in hosts {
        let host = intersect_host(own, host).map(Some);
        found.extend(host.filter(|host| !found.contains(host)));
    }
    found
}

/// Attaches a route to listeners. Returns its parents among gateways of this controller, and the listeners.
pub(crate) fn attach_route(
    route: &RouteFacts<'_>,
    listeners: &[ListenerState<'_>],
    by_gateway: &BTreeMap<ObjectName, Vec<usize>>,
    by_set: &BTreeMap<SetName, Vec<usize>>,
    objects: &Objects,
) -> (Vec<Parent>, Vec<Attachment>) {
    let (mut parents, mut attachments): (_, Vec<Attachment>) = (Vec::new(), Vec::new());
    for parent in route.parents {
        let group = parent.group.as_deref().unwrap_or(GROUP);
        let kind = parent.kind.as_deref().unwrap_or("Gateway");
        let namespace = parent.namespace.as_deref();
        let namespace = namespace.unwrap_or(&route.metadata.namespace);
        let object = ObjectName::new(namespace, &parent.name);
        let numbers = match (group, kind) {
            (GROUP, "Gateway") => by_gateway.get(&object),
            (GROUP, "ListenerSet") => by_set.get(&(Kind::ListenerSet, object.clone())),
            (EXPERIMENTAL_GROUP, "XListenerSet") => {
                by_set.get(&(Kind::XListenerSet, object.clone()))
            }
            _ => None,
        };
        let Some(numbers) = numbers else {
            continue;
        };
        let gateway = match kind {
            "Gateway" => format!("gateway {object}"),
            kind => format!("{kind} {object}"),
        };
        let of_gateway =
            { numbers.iter() }.filter_map(|number| Some((*number, listeners.get(*number)?)));
        let wanted: Vec<_> = of_gateway
            .filter(|(_, of)| {
                { parent.section_name.as_ref() }.is_none_or(|name| *name == of.listener.name)
                    && parent.port.is_none_or(|port| port == of.listener.port)
            })
            .collect();
        let refuse = |reason, message: String| Some(Condition::fails("Accepted", reason, message));
        let mut entry = Parent {
            reference: show_reference(parent),
            refusal: None,
            listeners: Vec::new(),
        };
        let allowed: Vec<_> = { wanted.iter() }
            .filter(|(_, of)| {
                of.allows_route(
                    route.kind,
                    &of.home().namespace,
                    &route.metadata.namespace,
                    objects,
                )
            })
            .collect();
        let serving: Vec<_> = { allowed.iter() }
            .map(|(number, of)| (*number, find_hosts(of, route)))
            .filter(|(_, hosts)| !hosts.is_empty())
            .collect();
        entry.refusal = if wanted.is_empty() {
            let message = format!(
                "{gateway} has no listener with this name and port; change sectionName and port of the parentRef"
            );
            refuse("NoMatchingParent", message)
        } else if allowed.is_empty() {
            let message = format!(
                "no listener of {gateway} allows a {} of namespace {}; change allowedRoutes of a listener",
                route.kind.name(),
                route.metadata.namespace
            );
            refuse("NotAllowedByListeners", message)
        } else if serving.is_empty() {
            let message = format!(
                "no listener of {gateway} serves any of the hostnames; change the hostnames of the route or of a listener"
            );
            refuse("NoMatchingListenerHostname", message)
        } else {
            None
        };
        for (number, hosts) in serving {
            entry.listeners.push(number);
            match attachments.iter_mut().find(|of| of.listener == number) {
                Some(known) => {
                    for host in hosts {
                        if !known.hosts.contains(&host) {
                            known.hosts.push(host);
                        }
                    }
                }
                None => attachments.push(Attachment {
                    listener: number,
                    hosts,
                }),
            }
        }
        parents.push(entry);
    }
    (parents, attachments)
}

/// Findings about a route as a whole, the same for each of its parents.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouteFindings {
    /// Reason why the route as a whole is not used.
    pub(crate) refusal: Option<(&'static str, String)>,
    /// Reason why some of its rules are not used.
    pub(crate) dropped: Option<String>,
    /// Reason why targets cannot be used.
    pub(crate) references: Option<(&'static str, String)>,
}

/// Writes the status of a route: an entry for each of its parents.
pub(crate) fn show_parents(
    parents: &[Parent],
    findings: &RouteFindings,
    controller: &str,
    generation: i64,
) -> Value {
    let entries = parents.iter().map(|parent| {
        let accepted = match (&parent.refusal, &findings.refusal) {
            (Some(refusal), _) => refusal.clone(),
            (None, Some((reason, message))) => Condition::fails("Accepted", reason, message),
            (None, None) => Condition::holds("Accepted", "Accepted"),
        };
        let references = match &findings.references {
            Some((reason, message)) => Condition::fails("ResolvedRefs", reason, message),
            None => Condition::holds("ResolvedRefs", "ResolvedRefs"),
        };
        let mut conditions = vec![accepted, references];
        if let Some(message) = &findings.dropped {
            conditions.push(Condition {
                message: format!("Dropped Rule: {message}"),
                ..Condition::holds("PartiallyInvalid", "UnsupportedValue")
            });
        }
        json!({
            "parentRef": parent.reference,
            "controllerName": controller,
            "conditions": list_conditions(&conditions, generation),
        })
    });
    json!({ "parents": entries.collect::<Vec<_>>() })
}

/// Returns the listeners at which a host name belongs to another listener, which is more specific: requests for the
/// name never get to `listener`.
pub(crate) fn is_isolated(host: Option<&str>, own: Option<&str>, frontend: &Frontend) -> bool {
    let Some(host) = host else {
        return false;
    };
    let length = |host: Option<&str>| {
        host.map_or(0, |host| {
            usize::from(!host.starts_with("*.")) * 1_000 + host.len()
        })
    };
    frontend.hosts.iter().flatten().any(|other| {
        let other = other.as_str();
        covers_host(other, host) && length(Some(other)) > length(own)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_listener_and_route_meet() {
        for (listener, route, both) in [
            (None, "A.example", Some("a.example")),
            (Some("*.example"), "a.b.example", Some("a.b.example")),
            (Some("a.example"), "*.example", Some("a.example")),
            (Some("*.b.example"), "*.example", Some("*.b.example")),
            (Some("a.example"), "b.example", None),
            (Some("*.example"), "example", None),
        ] {
            assert_eq!(
                intersect_host(listener, route).as_deref(),
                both,
                "{listener:?} {route}"
            );
        }
    }
}

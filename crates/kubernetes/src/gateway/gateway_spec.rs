//! Specifications of gateways and their listeners: the fields that the controller uses.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::values::{Items, ParentRef, Reference, or_default};

/// Specification of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewaySpec {
    /// Class of the gateway.
    pub gateway_class_name: String,
    /// Listeners of the gateway.
    pub listeners: Items<Listener>,
    /// Sets whose listeners the gateway takes.
    #[serde(deserialize_with = "or_default")]
    pub allowed_listeners: AllowedListeners,
    /// Wanted addresses.
    pub addresses: Items<GatewayAddress>,
    /// Settings of TLS for all listeners.
    pub tls: Option<Value>,
    /// Infrastructure of the gateway.
    pub infrastructure: Option<Infrastructure>,
}

impl GatewaySpec {
    /// True if certificates of clients' authorities are in ConfigMaps.
    pub fn names_authorities(&self) -> bool {
        let frontend = |tls: &Value| tls.get("frontend").is_some();
        self.tls.as_ref().is_some_and(frontend)
    }
}

/// Specification of a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSetSpec {
    /// Gateway of the listeners.
    pub parent_ref: ParentRef,
    /// Listeners of the set.
    pub listeners: Items<Listener>,
}

/// Sets whose listeners a gateway takes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedListeners {
    /// Namespaces of the sets; none, if there are none.
    #[serde(deserialize_with = "or_default")]
    pub namespaces: RouteNamespaces,
}

/// Infrastructure of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Infrastructure {
    /// Reference to parameters.
    pub parameters_ref: Option<Value>,
}

/// Address of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GatewayAddress {
    /// `IPAddress`, `Hostname` or a type of an implementation.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Address; any, if it is empty.
    pub value: String,
}

/// Listener of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Listener {
    /// Name of the listener, unique in its gateway.
    pub name: String,
    /// Host name of requests; any, if there is none.
    pub hostname: Option<String>,
    /// Port of clients.
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS`, `TCP`, `UDP` or a protocol of an implementation.
    pub protocol: String,
    /// Settings of TLS.
    pub tls: Option<ListenerTls>,
    /// Routes that may attach.
    pub allowed_routes: AllowedRoutes,
}

/// Settings of TLS of a listener.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerTls {
    /// `Terminate`, or `Passthrough`.
    pub mode: Option<String>,
    /// Certificates of the listener.
    pub certificate_refs: Items<Reference>,
    /// Verification of clients' certificates.
    pub frontend_validation: Option<Value>,
}

/// Routes that may attach to a listener.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedRoutes {
    /// Namespaces of the routes.
    pub namespaces: RouteNamespaces,
    /// Kinds of the routes; those of the protocol, if there are none.
    pub kinds: Items<RouteKind>,
}

/// Namespaces of routes that may attach to a listener, or of sets whose listeners a gateway takes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RouteNamespaces {
    /// Choice of namespaces: `Same`, `All`, `Selector` or `None`.
    pub from: Option<String>,
    /// Labels of namespaces.
    pub selector: Option<Selector>,
}

/// Selector of labels.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Selector {
    /// Labels with their values.
    #[serde(deserialize_with = "or_default")]
    pub match_labels: BTreeMap<String, String>,
    /// Further conditions.
    pub match_expressions: Items<Requirement>,
}

/// Condition of a selector.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Requirement {
    /// Label of the condition.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// Values of the condition.
    pub values: Items<String>,
}

impl Selector {
    /// True if an object with these labels is selected.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.match_labels.iter().all(has)
            && self.match_expressions.iter().all(|of| {
                let value = labels.get(&of.key);
                let is_in = value.is_some_and(|value| of.values.contains(value));
                match of.operator.as_str() {
                    "In" => is_in,
                    "NotIn" => !is_in,
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
    }
}

/// Kind of routes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RouteKind {
    /// Group of the API; that of the Gateway API, if there is none.
    pub group: Option<String>,
    /// Name of the kind.
    pub kind: String,
}

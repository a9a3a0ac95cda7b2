//! Objects of Kubernetes and of the Gateway API: the fields that the controller uses.
//!
//! Every list has a bound, and fields that nobody needs are skipped.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

pub use super::gateway_spec::{
    AllowedListeners, AllowedRoutes, GatewayAddress, GatewaySpec, Infrastructure, Listener,
    ListenerSetSpec, ListenerTls, Requirement, RouteKind, RouteNamespaces, Selector,
};
pub use super::group_policy_spec::EvenkeelPolicySpec;
use super::grpc;
pub use super::ingress_spec::{IngressClassSpec, IngressPath, IngressSpec, IngressTls, Target};
pub use super::policy_keys::PolicyLine;
pub use super::policy_spec::{AlternativeName, PolicySpec, PolicyTarget, Validation};
pub use super::routes::{
    BackendRef, CookieConfig, Cors, Filter, Fraction, Header, HeaderModifier, HttpMatch, HttpRule,
    Mirror, PathChange, Redirect, Retry, RouteSpec, SessionPersistence, StreamRule, Timeouts,
    UrlRewrite, ValueMatch,
};
use super::secret_contents::{leave_authorities, leave_certificates, leave_passwords};
use super::values::or_default;
pub(crate) use super::values::{
    EXPERIMENTAL_GROUP, GROUP, INFERENCE_GROUP, INGRESS_GROUP, OWN_GROUP,
};
pub use super::values::{Items, ObjectName, ParentRef, Reference};
use crate::read_value::ReadValue;

/// Kind of objects that the controller follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Class of gateways, which names the controller.
    GatewayClass,
    /// Gateway with listeners.
    Gateway,
    /// Further listeners of a gateway.
    ListenerSet,
    /// Further listeners of a gateway, in the experimental channel.
    XListenerSet,
    /// Routes of HTTP requests.
    HttpRoute,
    /// Routes of calls of gRPC.
    GrpcRoute,
    /// Routes of TLS connections by their server name.
    TlsRoute,
    /// Routes of TCP connections.
    TcpRoute,
    /// Routes of UDP datagrams.
    UdpRoute,
    /// TLS to members of services.
    BackendTlsPolicy,
    /// Settings of groups.
    EvenkeelPolicy,
    /// Texts, such as certificates of authorities.
    ConfigMap,
    /// Permission for references between namespaces.
    ReferenceGrant,
    /// Namespace, whose labels select routes.
    Namespace,
    /// Service, the target of routes.
    Service,
    /// Secret with a certificate.
    Secret,
    /// Secret with passwords.
    OpaqueSecret,
    /// Pool of engines of language models, a target of HTTPRoutes.
    InferencePool,
    /// Rules for requests by host and path.
    Ingress,
    /// Class of Ingresses, which names the controller.
    IngressClass,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 20] = [
        Kind::GatewayClass,
        Kind::Gateway,
        Kind::ListenerSet,
        Kind::XListenerSet,
        Kind::HttpRoute,
        Kind::GrpcRoute,
        Kind::TlsRoute,
        Kind::TcpRoute,
        Kind::UdpRoute,
        Kind::BackendTlsPolicy,
        Kind::EvenkeelPolicy,
        Kind::ConfigMap,
        Kind::ReferenceGrant,
        Kind::Namespace,
        Kind::Service,
        Kind::Secret,
        Kind::OpaqueSecret,
        Kind::InferencePool,
        Kind::Ingress,
        Kind::IngressClass,
    ];

    /// Returns the name of the kind in the API. Secrets with passwords have a name of their own, as they are followed by
    /// themselves.
    pub fn name(self) -> &'static str {
        match self {
            Kind::GatewayClass => "GatewayClass",
            Kind::Gateway => "Gateway",
            Kind::ListenerSet => "ListenerSet",
            Kind::XListenerSet => "XListenerSet",
            Kind::HttpRoute => "HTTPRoute",
            Kind::GrpcRoute => "GRPCRoute",
            Kind::TlsRoute => "TLSRoute",
            Kind::TcpRoute => "TCPRoute",
            Kind::UdpRoute => "UDPRoute",
            Kind::BackendTlsPolicy => "BackendTLSPolicy",
            Kind::EvenkeelPolicy => "EvenkeelPolicy",
            Kind::ConfigMap => "ConfigMap",
            Kind::ReferenceGrant => "ReferenceGrant",
            Kind::Namespace => "Namespace",
            Kind::Service => "Service",
            Kind::Secret => "Secret",
            Kind::OpaqueSecret => "OpaqueSecret",
            Kind::InferencePool => "InferencePool",
            Kind::Ingress => "Ingress",
            Kind::IngressClass => "IngressClass",
        }
    }

    /// Returns the name of the kind's objects in paths.
    pub fn plural(self) -> &'static str {
        match self {
            Kind::GatewayClass => "gatewayclasses",
            Kind::Gateway => "gateways",
            Kind::ListenerSet => "listenersets",
            Kind::XListenerSet => "xlistenersets",
            Kind::HttpRoute => "httproutes",
            Kind::GrpcRoute => "grpcroutes",
            Kind::TlsRoute => "tlsroutes",
            Kind::TcpRoute => "tcproutes",
            Kind::UdpRoute => "udproutes",
            Kind::BackendTlsPolicy => "backendtlspolicies",
            Kind::EvenkeelPolicy => "evenkeelpolicies",
            Kind::ConfigMap => "configmaps",
            Kind::ReferenceGrant => "referencegrants",
            Kind::Namespace => "namespaces",
            Kind::Service => "services",
            Kind::Secret | Kind::OpaqueSecret => "secrets",
            Kind::InferencePool => "inferencepools",
            Kind::Ingress => "ingresses",
            Kind::IngressClass => "ingressclasses",
        }
    }

    /// Returns the versions of the kind's API, the best first.
    pub fn versions(self) -> &'static [&'static str] {
        match self {
            Kind::TlsRoute => &["v1", "v1alpha3", "v1alpha2"],
            Kind::TcpRoute | Kind::UdpRoute => &["v1", "v1alpha2"],
            Kind::XListenerSet | Kind::EvenkeelPolicy => &["v1alpha1"],
            Kind::BackendTlsPolicy => &["v1", "v1alpha3"],
            Kind::ReferenceGrant => &["v1", "v1beta1"],
            _ => &["v1"],
        }
    }

    /// Returns the group of the kind in the API; empty for kinds that every cluster has.
    pub fn api_group(self) -> &'static str {
        match self {
            Kind::Namespace | Kind::Service | Kind::ConfigMap => "",
            Kind::Secret | Kind::OpaqueSecret => "",
            Kind::InferencePool => INFERENCE_GROUP,
            Kind::XListenerSet => EXPERIMENTAL_GROUP,
            Kind::EvenkeelPolicy => OWN_GROUP,
            Kind::Ingress | Kind::IngressClass => INGRESS_GROUP,
            _ => GROUP,
        }
    }

    /// True for kinds that CRDs define, which clusters need not have.
    pub fn is_of_crd(self) -> bool {
        !matches!(self.api_group(), "" | INGRESS_GROUP)
    }

    /// True for the kinds that are followed only if the settings say so.
    pub fn is_of_ingress(self) -> bool {
        matches!(
            self,
            Kind::Ingress | Kind::IngressClass | Kind::OpaqueSecret
        )
    }

    /// True for kinds of which no object is needed if Ingresses are served: those of the Gateway API.
    pub(crate) fn is_of_gateways(self) -> bool {
        self.api_group() == GROUP
    }

    /// True for kinds without which the controller works: clusters without the experimental channel of the Gateway API, or
    /// without its extension for inference, do not have them.
    pub fn is_optional(self) -> bool {
        use Kind::{BackendTlsPolicy, ConfigMap, EvenkeelPolicy, GrpcRoute, InferencePool};
        use Kind::{TcpRoute, TlsRoute, UdpRoute};
        let is_route = matches!(self, GrpcRoute | TlsRoute | TcpRoute | UdpRoute);
        is_route
            || matches!(
                self,
                BackendTlsPolicy | ConfigMap | EvenkeelPolicy | InferencePool
            )
            || matches!(self, Kind::ListenerSet | Kind::XListenerSet)
            || self.is_of_ingress()
    }

    /// True for kinds that are followed only while an object of another kind refers to them.
    pub(crate) fn is_on_demand(self) -> bool {
        matches!(self, Kind::ConfigMap | Kind::OpaqueSecret)
    }

    /// True for kinds to whose objects the controller writes statuses.
    pub(crate) fn has_status(self) -> bool {
        use Kind::{ConfigMap, IngressClass, Namespace, ReferenceGrant, Service};
        let without = matches!(
            self,
            ConfigMap | ReferenceGrant | Namespace | Service | IngressClass
        );
        !without && !self.is_secret()
    }

    /// True for secrets, of which the versions count.
    fn is_secret(self) -> bool {
        matches!(self, Kind::Secret | Kind::OpaqueSecret)
    }

    /// True for routes of requests of HTTP, and of calls, which are such requests.
    pub(crate) fn is_of_requests(self) -> bool {
        matches!(self, Kind::HttpRoute | Kind::GrpcRoute)
    }

    /// Returns the path of the kind's group in a version.
    fn group_path(self, version: &str) -> String {
        match self.api_group() {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        }
    }

    /// Returns the path of all objects of the kind in a version.
    pub fn path(self, version: &str) -> String {
        format!("{}/{}", self.group_path(version), self.plural())
    }

    /// Returns the path of the status of an object.
    pub fn status_path(self, version: &str, object: &ObjectName) -> String {
        let (group, plural) = (self.group_path(version), self.plural());
        let name = &object.name;
        match object.namespace.as_str() {
            "" => format!("{group}/{plural}/{name}/status"),
            namespace => format!("{group}/namespaces/{namespace}/{plural}/{name}/status"),
        }
    }

    /// Returns a selector of fields, so that the server sends only objects that may be used.
    pub fn field_selector(self) -> Option<&'static str> {
        match self {
            Kind::Secret => Some("type%3Dkubernetes.io%2Ftls"),
            Kind::OpaqueSecret => Some("type%3DOpaque"),
            _ => None,
        }
    }
}

/// Metadata of an object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    /// Number of changes of the object's specification.
    #[serde(deserialize_with = "or_default")]
    pub generation: i64,
    /// Version of a secret; empty for other objects.
    #[serde(deserialize_with = "or_default")]
    pub resource_version: String,
    /// Time of the object's creation (RFC 3339), which sorts as text.
    #[serde(deserialize_with = "or_default")]
    pub creation_timestamp: String,
    /// Labels of a namespace; none for other objects.
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the object, of those that the controller uses.
    #[serde(deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
    /// Identity of the object, which no other object ever has.
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
}

impl Metadata {
    /// Returns the namespace and the name.
    pub fn object_name(&self) -> ObjectName {
        ObjectName::new(&self.namespace, &self.name)
    }
}

/// Object with a specification and perhaps a status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Object<S: Default> {
    /// Metadata of the object.
    pub metadata: Metadata,
    /// Specification of the object.
    #[serde(
        deserialize_with = "or_default",
        bound(deserialize = "S: Deserialize<'de>")
    )]
    pub spec: S,
    /// Part of the status at the API server that the translation reads.
    #[serde(deserialize_with = "or_default")]
    pub status: Value,
}

/// Specification of a class.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClassSpec {
    /// Name of the controller.
    pub controller_name: String,
    /// Reference to parameters.
    pub parameters_ref: Option<Value>,
}

/// Specification of a grant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrantSpec {
    /// Objects that may refer.
    pub from: Items<GrantFrom>,
    /// Objects that may be referred to.
    pub to: Items<GrantTo>,
}

/// Objects that may refer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrantFrom {
    /// Group of the API.
    pub group: String,
    /// Kind of the objects.
    pub kind: String,
    /// Namespace of the objects.
    pub namespace: String,
}

/// Objects that may be referred to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrantTo {
    /// Group of the API.
    pub group: String,
    /// Kind of the objects.
    pub kind: String,
    /// Name; all, if there is none.
    pub name: Option<String>,
}

/// Specification of a service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// Ports of the service.
    pub ports: Items<ServicePort>,
    /// `ClusterIP`, `ExternalName` and so on.
    #[serde(rename = "type")]
    pub kind: Option<String>,
}

/// Port of a service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// Name of the port; none if the service has a single port.
    pub name: Option<String>,
    /// Number of the port.
    pub port: u16,
    /// Protocol of the transport; `TCP`, if there is none.
    pub protocol: Option<String>,
    /// Protocol of the application.
    pub app_protocol: Option<String>,
}

/// Specification of a pool of engines.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PoolSpec {
    /// Labels of the pods of the pool.
    pub selector: Selector,
    /// Ports of the pods; each port of a pod is an engine.
    pub target_ports: Items<PoolPort>,
    /// Protocol of the engines; HTTP/1.1, if there is none.
    pub app_protocol: Option<String>,
}

/// Port of a pool.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PoolPort {
    /// Number of the port.
    pub number: u16,
}

/// Empty specification.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NoSpec {}

/// Secret with contents.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Secret {
    /// Metadata of the secret.
    pub metadata: Metadata,
    /// Contents in base64, by their names.
    #[serde(deserialize_with = "or_default")]
    pub data: BTreeMap<String, String>,
}

/// Shows no secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

/// ConfigMap with contents.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// Metadata of the object.
    pub metadata: Metadata,
    /// Contents by their names, of those that the controller uses.
    #[serde(deserialize_with = "or_default")]
    pub data: BTreeMap<String, String>,
}

/// Class of gateways.
pub type GatewayClass = Object<ClassSpec>;
/// Gateway with its status.
pub type Gateway = Object<GatewaySpec>;
/// ListenerSet or XListenerSet of a gateway.
pub type ListenerSet = Object<ListenerSetSpec>;
/// HTTPRoute of the API.
pub type HttpRoute = Object<RouteSpec<HttpRule>>;
/// TLSRoute, TCPRoute or UDPRoute.
pub type StreamRoute = Object<RouteSpec<StreamRule>>;
/// BackendTLSPolicy of services.
pub type TlsPolicy = Object<PolicySpec>;
/// EvenkeelPolicy of services, routes and gateways.
pub type EvenkeelPolicy = Object<EvenkeelPolicySpec>;
/// ReferenceGrant of a namespace.
pub type ReferenceGrant = Object<GrantSpec>;
/// Namespace with its labels.
pub type Namespace = Object<NoSpec>;
/// Service with its ports.
pub type Service = Object<ServiceSpec>;

/// Pool of engines of language models.
pub type InferencePool = Object<PoolSpec>;

/// Ingress with its status.
pub type Ingress = Object<IngressSpec>;
/// Class of Ingresses.
pub type IngressClass = Object<IngressClassSpec>;

/// Objects of a kind by their names.
pub type ByName<T> = BTreeMap<ObjectName, Arc<T>>;

/// All objects that the controller knows.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Classes of the cluster.
    pub classes: ByName<GatewayClass>,
    /// Gateways of the cluster.
    pub gateways: ByName<Gateway>,
    /// ListenerSets of the cluster.
    pub listener_sets: ByName<ListenerSet>,
    /// XListenerSets of the cluster.
    pub x_listener_sets: ByName<ListenerSet>,
    /// HTTPRoutes of the cluster.
    pub http_routes: ByName<HttpRoute>,
    /// GRPCRoutes of the cluster, with paths in place of methods.
    pub grpc_routes: ByName<HttpRoute>,
    /// TLSRoutes of the cluster.
    pub tls_routes: ByName<StreamRoute>,
    /// TCPRoutes of the cluster.
    pub tcp_routes: ByName<StreamRoute>,
    /// UDPRoutes of the cluster.
    pub udp_routes: ByName<StreamRoute>,
    /// BackendTLSPolicies of the cluster.
    pub tls_policies: ByName<TlsPolicy>,
    /// EvenkeelPolicies of the cluster.
    pub evenkeel_policies: ByName<EvenkeelPolicy>,
    /// ConfigMaps of the cluster, with certificates of authorities only.
    pub config_maps: ByName<ConfigMap>,
    /// ReferenceGrants of the cluster.
    pub grants: ByName<ReferenceGrant>,
    /// Namespaces of the cluster.
    pub namespaces: ByName<Namespace>,
    /// Services of the cluster.
    pub services: ByName<Service>,
    /// Secrets of the cluster.
    pub secrets: ByName<Secret>,
    /// Secrets of the cluster with passwords: other contents are left out.
    pub opaque_secrets: ByName<Secret>,
    /// InferencePools of the cluster.
    pub pools: ByName<InferencePool>,
    /// Ingresses of the cluster.
    pub ingresses: ByName<Ingress>,
    /// Classes of Ingresses of the cluster.
    pub ingress_classes: ByName<IngressClass>,
}

/// Calls a macro with the field of [`Objects`] that has the objects of a kind.
macro_rules! with_field {
    ($kind:expr, $call:ident) => {
        match $kind {
            Kind::GatewayClass => $call!(classes),
            Kind::Gateway => $call!(gateways),
            Kind::ListenerSet => $call!(listener_sets),
            Kind::XListenerSet => $call!(x_listener_sets),
            Kind::HttpRoute => $call!(http_routes),
            Kind::GrpcRoute => $call!(grpc_routes),
            Kind::TlsRoute => $call!(tls_routes),
            Kind::TcpRoute => $call!(tcp_routes),
            Kind::UdpRoute => $call!(udp_routes),
            Kind::BackendTlsPolicy => $call!(tls_policies),
            Kind::EvenkeelPolicy => $call!(evenkeel_policies),
            Kind::ConfigMap => $call!(config_maps),
            Kind::ReferenceGrant => $call!(grants),
            Kind::Namespace => $call!(namespaces),
            Kind::Service => $call!(services),
            Kind::Secret => $call!(secrets),
            Kind::OpaqueSecret => $call!(opaque_secrets),
            Kind::InferencePool => $call!(pools),
            Kind::Ingress => $call!(ingresses),
            Kind::IngressClass => $call!(ingress_classes),
        }
    };
}

/// Takes out of an object what the translation does not read.
fn keep_meaning(kind: Kind, object: &mut Value) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    let status = fields.remove("status");
    let data = fields.get_mut("data").and_then(Value::as_object_mut);
    if let Some(data) = data {
        match kind {
            Kind::ConfigMap => leave_authorities(data),
            Kind::Secret => leave_certificates(data),
            Kind::OpaqueSecret => leave_passwords(data),
            _ => {}
        }
    }
    if kind == Kind::ConfigMap {
        fields.remove("binaryData");
    }
    let used = match kind {
        // A gateway keeps the address that it has.
        Kind::Gateway => Some("addresses"),
        // Gateways may have the addresses of a service.
        Kind::Service => Some("loadBalancer"),
        _ => None,
    };
    if let Some((key, value)) = used.and_then(|key| Some((key, status?.get(key)?.clone()))) {
        fields.insert("status".into(), json!({ key: value }));
    }
    let metadata = fields.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        // The version of a secret is part of the path of its contents.
        if !kind.is_secret() {
            metadata.remove("resourceVersion");
        }
        // Listeners select namespaces by their labels.
        if kind != Kind::Namespace {
            metadata.remove("labels");
        }
    }
}

/// Inserts an object that was read from `value`.
fn put<T: for<'de> Deserialize<'de> + PartialEq>(
    all: &mut ByName<T>,
    name: ObjectName,
    value: Value,
) -> Result<bool, serde_json::Error> {
    let object = T::deserialize(ReadValue(value))?;
    // An object that stays the same is known by its address.
    if all.get(&name).is_some_and(|known| **known == object) {
        return Ok(false);
    }
    all.insert(name, Arc::new(object));
    Ok(true)
}

impl Objects {
    /// Takes an object of a kind as JSON. Returns true if that changes anything.
    ///
    /// # Errors
    ///
    /// The object is not what its kind demands. The object that was known before stays.
    pub fn put(&mut self, kind: Kind, mut object: Value) -> Result<bool, serde_json::Error> {
        keep_meaning(kind, &mut object);
        let text = |key: &str| {
            let metadata = object.get("metadata");
            let text = metadata.and_then(|of| of.get(key)).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let name = ObjectName::new(&text("namespace"), &text("name"));
        macro_rules! put_into {
            (grpc_routes) => {
                put(&mut self.grpc_routes, name, grpc::write_paths(object))
            };
            ($field:ident) => {
                put(&mut self.$field, name, object)
            };
        }
        with_field!(kind, put_into)
    }

    /// Removes an object. Returns true if it was there.
    pub fn remove(&mut self, kind: Kind, name: &ObjectName) -> bool {
        macro_rules! remove_from {
            ($field:ident) => {
                self.$field.remove(name).is_some()
            };
        }
        with_field!(kind, remove_from)
    }

    /// Returns the names of all objects of a kind.
    pub fn names(&self, kind: Kind) -> Vec<ObjectName> {
        macro_rules! list_names {
            ($field:ident) => {
                self.$field.keys().cloned().collect()
            };
        }
        with_field!(kind, list_names)
    }

    /// True if there is an object of a kind with this name.
    pub(crate) fn has(&self, kind: Kind, name: &ObjectName) -> bool {
        macro_rules! has {
            ($field:ident) => {
                self.$field.contains_key(name)
            };
        }
        with_field!(kind, has)
    }

    /// Returns the number of objects of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        macro_rules! count {
            ($field:ident) => {
                self.$field.len()
            };
        }
        with_field!(kind, count)
    }

    /// True if an object may refer to ConfigMaps.
    pub(crate) fn need_config_maps(&self) -> bool {
        let mut gateways = self.gateways.values();
        !self.tls_policies.is_empty() || gateways.any(|of| of.spec.names_authorities())
    }

    /// Brings an object up to date: it becomes that of `from`, or is removed.
    pub(crate) fn copy(&mut self, kind: Kind, name: &ObjectName, from: &Objects) {
        macro_rules! copy {
            ($field:ident) => {
                match from.$field.get(name) {
                    Some(object) => drop(self.$field.insert(name.clone(), Arc::clone(object))),
                    None => drop(self.$field.remove(name)),
                }
            };
        }
        with_field!(kind, copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Value {
        json!({ "metadata": { "namespace": "shop", "name": "a", "resourceVersion": "1", "generation": 3,
                              "labels": { "team": "a" } },
                "status": { "addresses": [{ "value": "10.0.0.1" }], "loadBalancer": { "ingress": [{ "ip": "10.0.0.2" }] },
                            "conditions": [] } })
    }

    #[test]
    fn an_object_of_which_only_status_and_version_differ_is_the_same() {
        for kind in Kind::ALL {
            let mut objects = Objects::default();
            assert!(objects.put(kind, object()).unwrap(), "{kind:?}");
            let mut with = |path: &str, value: Value| {
                let mut other = object();
                *other.pointer_mut(path).unwrap() = value;
                let is_changed = objects.put(kind, other).unwrap();
                objects.put(kind, object()).unwrap();
                is_changed
            };
            assert!(
                !with("/status/conditions", json!([{ "type": "Accepted" }])),
                "{kind:?}"
            );
            let is_secret = kind.is_secret();
            assert_eq!(
                with("/metadata/resourceVersion", json!("2")),
                is_secret,
                "{kind:?}"
            );
            let is_namespace = kind == Kind::Namespace;
            assert_eq!(
                with("/metadata/labels/team", json!("b")),
                is_namespace,
                "{kind:?}"
            );
            let is_gateway = kind == Kind::Gateway;
            assert_eq!(
                with("/status/addresses/0/value", json!("10.0.0.3")),
                is_gateway,
                "{kind:?}"
            );
            let is_service = kind == Kind::Service;
            let path = "/status/loadBalancer/ingress/0/ip";
            assert_eq!(with(path, json!("10.0.0.3")), is_service, "{kind:?}");
            assert!(with("/metadata/generation", json!(4)), "{kind:?}");
        }
    }

    #[test]
    fn no_contents_are_kept_but_passwords() {
        let mut objects = Objects::default();
        let data = json!({ "auth": "YTpi", "anna": "JDJ5JGE=", "token": "c2VjcmV0", "number": 7, "ca.crt": "Yw==" });
        let secret = json!({ "metadata": { "namespace": "shop", "name": "a" }, "data": data });
        objects.put(Kind::OpaqueSecret, secret.clone()).unwrap();
        let name = ObjectName::new("shop", "a");
        let kept = &objects.opaque_secrets[&name].data;
        let kept: Vec<(&str, &str)> = kept.iter().map(|(k, v)| (&**k, &**v)).collect();
        let wanted = [
            ("anna", "JDJ5JGE="),
            ("auth", "YTpi"),
            ("ca.crt", "Yw=="),
            ("number", ""),
            ("token", ""),
        ];
        assert_eq!(kept, wanted);
        objects.put(Kind::Secret, secret).unwrap();
        let kept: Vec<&String> = objects.secrets[&name].data.keys().collect();
        assert_eq!(kept, ["ca.crt"]);
    }
}

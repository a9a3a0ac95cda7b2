//! Specifications of Ingresses and their classes: the fields that the controller uses.

use serde::Deserialize;

use super::values::{Items, ORCA_ANNOTATION, or_default};

/// Beginning of the names of annotations that say how an Ingress is served.
pub(crate) const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// Annotation with the name of a secret with passwords.
pub(crate) const AUTH_SECRET: &str = "nginx.ingress.kubernetes.io/auth-secret";

/// Annotation with the name of a secret with authorities of clients' certificates.
pub(crate) const AUTH_TLS_SECRET: &str = "nginx.ingress.kubernetes.io/auth-tls-secret";

/// Annotation with further host names.
pub(crate) const ALIASES: &str = "nginx.ingress.kubernetes.io/server-alias";

/// Annotation with the name of a class, from before Ingresses had a field for the name.
pub(crate) const OLD_CLASS: &str = "kubernetes.io/ingress.class";

/// Annotation of the class of Ingresses that name none.
pub(crate) const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";

/// True if the controller uses an annotation of this name.
pub(crate) fn is_used_annotation(name: &str) -> bool {
    name.starts_with(PREFIX) || matches!(name, OLD_CLASS | DEFAULT_CLASS | ORCA_ANNOTATION)
}

/// Specification of a class of Ingresses.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IngressClassSpec {
    /// Name of the controller.
    pub controller: String,
}

/// Specification of an Ingress.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressSpec {
    /// Name of the class.
    pub ingress_class_name: Option<String>,
    /// Target of requests that no rule takes.
    pub default_backend: Option<Target>,
    /// Certificates by host names.
    pub tls: Items<IngressTls>,
    /// Rules by host name.
    pub rules: Items<IngressRule>,
}

/// Certificate of host names.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressTls {
    /// Host names with TLS; all host names of the Ingress, if there are none.
    pub hosts: Items<String>,
    /// Name of the secret; the certificate of the settings, if there is none.
    pub secret_name: Option<String>,
}

/// Rule of an Ingress.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    /// Host name; all, if there is none.
    pub host: Option<String>,
    /// Paths of the host.
    #[serde(deserialize_with = "or_default")]
    pub http: IngressPaths,
}

/// Paths of a rule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IngressPaths {
    /// Paths with their targets.
    pub paths: Items<IngressPath>,
}

/// Path of a rule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressPath {
    /// Path; `/`, if there is none.
    pub path: Option<String>,
    /// `Exact`, `Prefix` or `ImplementationSpecific`.
    pub path_type: Option<String>,
    /// Target of the requests.
    pub backend: Target,
}

/// Target of requests: a service, or another object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Target {
    /// Service that gets the requests.
    pub service: Option<TargetService>,
    /// Reference to another object, which is not supported.
    pub resource: Option<serde_json::Value>,
}

/// Service that is a target.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TargetService {
    /// Name of the service.
    pub name: String,
    /// Port of the service.
    #[serde(deserialize_with = "or_default")]
    pub port: TargetPort,
}

/// Port of a service that is a target: a name, or a number.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TargetPort {
    /// Name of the port.
    pub name: Option<String>,
    /// Number of the port.
    pub number: Option<u16>,
}

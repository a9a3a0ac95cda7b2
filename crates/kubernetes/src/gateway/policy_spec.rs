//! Specification of BackendTLSPolicies: the fields that the controller uses.

use serde::Deserialize;

use super::values::{Items, Reference};

/// Specification of a policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicySpec {
    /// Services whose members speak TLS.
    pub target_refs: Items<PolicyTarget>,
    /// Conditions on certificates of members.
    pub validation: Validation,
}

/// Target of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyTarget {
    /// Group of the API.
    pub group: String,
    /// Kind of the target.
    pub kind: String,
    /// Name of the target, in the namespace of the policy.
    pub name: String,
    /// Name of a port; all ports, if there is none.
    pub section_name: Option<String>,
}

/// Conditions on certificates of members.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Validation {
    /// ConfigMaps with certificates of authorities.
    pub ca_certificate_refs: Items<Reference>,
    /// `System` for the authorities that the system trusts.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known: Option<String>,
    /// Name to ask members for, and of their certificates.
    pub hostname: String,
    /// Names of which a certificate must have one, instead of `hostname`.
    pub subject_alt_names: Items<AlternativeName>,
}

/// Name in a certificate.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AlternativeName {
    /// `Hostname`, or `URI`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Host name, for the type `Hostname`.
    pub hostname: String,
    /// URI, for the type `URI`.
    pub uri: String,
}

impl AlternativeName {
    /// Returns the name, of whichever type.
    pub fn text(&self) -> &str {
        match self.kind.as_str() {
            "URI" => &self.uri,
            _ => &self.hostname,
        }
    }
}

//! BackendTLSPolicies: TLS to members, with the name and the authorities of the members' certificates.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_config::is_uri;
use serde_json::{Value, json};

use super::certificates::{Files, add_authorities, check_authorities, read_authorities};
use super::conditions::{Condition, Refusal, list_by_gateway, list_conditions};
use super::grants::is_granted;
use super::group_policies::GroupPolicies;
use super::objects::{
    AlternativeName, GROUP, Kind, Metadata, ObjectName, Objects, PolicyTarget, Reference,
    ServicePort, TlsPolicy, Validation,
};
use super::text::{Owner, is_exact_host, quote, quote_list};

/// Most ancestors in the status of a policy; the API has the same bound.
const MAX_ANCESTORS: usize = 16;

/// TLS to the members at ports of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MemberTls {
    /// Name of the policy.
    policy: ObjectName,
    /// Keys of `member_tls`; `None` if requests fail, because no certificate can be verified.
    keys: Option<String>,
}

/// Reasons why a policy is not used, or is used in part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Findings {
    refusal: Option<Refusal>,
    references: Option<Refusal>,
    /// Services of the targets.
    services: BTreeSet<ObjectName>,
}

/// Gateways through which clients reach each service that a policy is about.
pub(crate) type PolicyAncestors = BTreeMap<ObjectName, BTreeSet<ObjectName>>;

/// Policies of all services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policies {
    /// TLS by the service and the name of the port; without a name for all ports that have no policy of their own.
    targets: BTreeMap<(ObjectName, Option<String>), MemberTls>,
    findings: BTreeMap<ObjectName, Findings>,
    /// Settings of groups.
    pub(crate) groups: GroupPolicies,
}

/// Reads the certificates of authorities to which a policy in `namespace` refers.
///
/// # Errors
///
/// The reason why the certificates cannot be used.
fn find_authorities<'o>(
    reference: &Reference,
    namespace: &str,
    objects: &'o Objects,
) -> Result<&'o str, Refusal> {
    let group = reference.group.as_deref().unwrap_or_default();
    let kind = reference.kind.as_deref().unwrap_or_default();
    if (group, kind) != ("", "ConfigMap") {
        let message =
            format!("certificates of authorities cannot be a {group}/{kind}; name a ConfigMap");
        return Err(("InvalidKind", message));
    }
    let name = ObjectName::new(namespace, &reference.name);
    read_authorities(&name, objects).map_err(|message| ("InvalidCACertificateRef", message))
}

/// Returns the reason why the names of a policy cannot be used.
fn refuse_names(validation: &Validation) -> Option<String> {
    if !is_exact_host(&validation.hostname) {
        let wrong = &validation.hostname;
        return Some(format!("hostname {wrong:?} is no host name; change it"));
    }
    validation.subject_alt_names.iter().find_map(|name| {
        let (wrong, is_good, what) = match name.kind.as_str() {
            "Hostname" => (&name.hostname, is_exact_host(&name.hostname), "host name"),
            "URI" => (&name.uri, is_uri(&name.uri), "URI with a scheme"),
            kind => {
                return Some(format!(
                    "subjectAltNames of type {kind} are not supported; use Hostname or URI"
                ));
            }
        };
        (!is_good).then(|| format!("subjectAltName {wrong:?} is no {what}; change it"))
    })
}

/// Returns the keys of `member_tls` of a group whose members speak TLS as a policy demands. `references` gets the reason why some
/// certificates of authorities cannot be used.
///
/// # Errors
///
/// The reason why no certificate of a member can be verified.
fn write_member_tls(
    policy: &TlsPolicy,
    objects: &Objects,
    files: &mut Files,
    references: &mut Option<Refusal>,
) -> Result<String, Refusal> {
    let validation = &policy.spec.validation;
    let refs = &validation.ca_certificate_refs;
    if let Some(message) = refuse_names(validation) {
        return Err(("Invalid", message));
    }
    let mut keys = Vec::new();
    match (validation.well_known.as_deref(), refs.is_empty()) {
        (Some("System"), true) => {
            let checked = check_authorities(None);
            checked.map_err(|error| ("NoValidCACertificate", error))?;
        }
        (None, false) => {
            let mut all = String::new();
            for reference in refs.iter() {
                match find_authorities(reference, &policy.metadata.namespace, objects) {
                    Ok(text) => {
                        all.push_str(text);
                        all.push('\n');
                    }
                    Err(refusal) => *references = Some(refusal),
                }
            }
            if all.is_empty() {
                let message = "no certificate of an authority can be used: see ResolvedRefs";
                return Err(("NoValidCACertificate", message.into()));
            }
            let name = policy.metadata.object_name();
            let path = add_authorities("backendtlspolicies", &name, all.into_bytes().into(), files);
            keys.push(format!("ca_file = {}", quote(&path.display().to_string())));
        }
        (Some("System"), false) | (None, true) => {
            let message =
                "set one of caCertificateRefs and wellKnownCACertificates in spec.validation";
            return Err(("Invalid", message.into()));
        }
        (Some(other), _) => {
            let message =
                format!("wellKnownCACertificates {other:?} is not supported; use \"System\"");
            return Err(("Invalid", message));
        }
    }
    keys.push(format!("server_name = {}", quote(&validation.hostname)));
    let names = validation.subject_alt_names.iter();
    let names: Vec<&str> = names.map(AlternativeName::text).collect();
    if !names.is_empty() {
        keys.push(format!("certificate_names = {}", quote_list(names)));
    }
    Ok(keys.join(", "))
}

/// Age of a policy, the oldest first.
fn rank_age(metadata: &Metadata) -> (&str, &str, &str) {
    let of = metadata;
    (&of.creation_timestamp, &of.namespace, &of.name)
}

/// Returns the service of a target; `None` if the target is no service.
fn find_service(target: &PolicyTarget, namespace: &str) -> Option<ObjectName> {
    let is_service = target.group.is_empty() && target.kind == Kind::Service.name();
    is_service.then(|| ObjectName::new(namespace, &target.name))
}

impl Policies {
    /// Reads all policies. `files` gets the certificates of authorities, and `refused` has policies that are left out.
    pub(crate) fn new(
        objects: &Objects,
        refused: &BTreeMap<Owner, String>,
        files: &mut Files,
    ) -> Self {
        let mut policies = Policies {
            groups: GroupPolicies::new(objects, refused),
            ..Policies::default()
        };
        let mut sorted: Vec<&TlsPolicy> =
            objects.tls_policies.values().map(AsRef::as_ref).collect();
        sorted.sort_by_key(|of| rank_age(&of.metadata));
        for policy in sorted {
            policies.add_policy(policy, objects, files);
        }
        policies
    }

    fn add_policy(&mut self, policy: &TlsPolicy, objects: &Objects, files: &mut Files) {
        let name = policy.metadata.object_name();
        let mut findings = Findings::default();
        let (mut free, mut missing) = (Vec::new(), None);
        for target in policy.spec.target_refs.iter() {
            let Some(service) = find_service(target, &name.namespace) else {
                let message = format!(
                    "a target cannot be a {}/{}; name a Service",
                    target.group, target.kind
                );
                missing = Some(message);
                continue;
            };
            findings.services.insert(service.clone());
            let section = { target.section_name.clone() }.filter(|name| !name.is_empty());
            let known = objects.services.get(&service);
            let has_section = |of: &String| {
                known.is_some_and(|service| {
                    let mut ports = service.spec.ports.iter();
                    ports.any(|port| port.name.as_ref() == Some(of))
                })
            };
            if known.is_none() {
                missing = Some(format!("there is no Service {service}; create it"));
            } else if let Some(section) = section.as_ref().filter(|of| !has_section(of)) {
                missing = Some(format!(
                    "Service {service} has no port with the name {section:?}; change sectionName"
                ));
            } else {
                free.push((service, section));
            }
        }
        let found = free.len();
        free.retain(|target| !self.targets.contains_key(target));
        if free.is_empty() {
            findings.refusal = Some(match (found, missing) {
                (0, Some(message)) => ("TargetNotFound", message),
                _ => {
                    let message = "an older BackendTLSPolicy has the same targets; remove a policy";
                    ("Conflicted", message.into())
                }
            });
            self.findings.insert(name, findings);
            return;
        }
        let keys = write_member_tls(policy, objects, files, &mut findings.references);
        let keys = match keys {
            Ok(keys) => Some(keys),
            Err(refusal) => {
                findings.refusal = Some(refusal);
                None
            }
        };
        for target in free {
            let tls = MemberTls {
                policy: name.clone(),
                keys: keys.clone(),
            };
            self.targets.insert(target, tls);
        }
        self.findings.insert(name, findings);
    }

    /// Returns the keys of `member_tls` for the group of a service's port; `None` if no policy is about the port.
    ///
    /// # Errors
    ///
    /// Certificates of members cannot be verified, so nobody may be sent to them.
    pub(crate) fn find_keys(
        &self,
        service: &ObjectName,
        port: &ServicePort,
    ) -> Option<Result<&str, String>> {
        if self.targets.is_empty() {
            return None;
        }
        let of_port = self.targets.get(&(service.clone(), port.name.clone()));
        let tls = of_port.or_else(|| self.targets.get(&(service.clone(), None)))?;
        Some(tls.keys.as_deref().ok_or_else(|| {
            format!(
                "BackendTLSPolicy {} of Service {service} cannot be used: see its conditions",
                tls.policy
            )
        }))
    }

    /// Returns the services with a policy to which a rule of a route in `namespace` may send requests.
    pub(crate) fn list_services<'t>(
        &self,
        targets: impl Iterator<Item = &'t Reference>,
        kind: Kind,
        namespace: &str,
        objects: &Objects,
    ) -> Vec<ObjectName> {
        if self.findings.is_empty() {
            return Vec::new();
        }
        let to = ("", Kind::Service.name());
        let from = (GROUP, kind.name(), namespace);
        let services = targets
            .filter(|of| {
                let group = of.group.as_deref().unwrap_or_default();
                (group, of.kind.as_deref().unwrap_or("Service")) == to
            })
            .map(|of| of.target(namespace));
        let is_target = |name: &ObjectName| {
            let mut all = self.findings.values();
            all.any(|of| of.services.contains(name))
        };
        services
            .filter(|name| is_target(name) && is_granted(objects, from, to, name))
            .collect()
    }

    /// Makes the status of a policy: an entry for each gateway through which clients reach its services.
    pub(crate) fn show_policy(
        &self,
        policy: &TlsPolicy,
        ancestors: &PolicyAncestors,
        controller: &str,
    ) -> Value {
        let findings = self.findings.get(&policy.metadata.object_name());
        let none = Findings::default();
        let findings = findings.unwrap_or(&none);
        let accepted = match &findings.refusal {
            Some((reason, message)) => Condition::fails("Accepted", reason, message),
            None => Condition::holds("Accepted", "Accepted"),
        };
        let references = match &findings.references {
            Some((reason, message)) => Condition::fails("ResolvedRefs", reason, message),
            None => Condition::holds("ResolvedRefs", "ResolvedRefs"),
        };
        let conditions = list_conditions(&[accepted, references], policy.metadata.generation);
        let gateways = { findings.services.iter() }.filter_map(|service| ancestors.get(service));
        let gateways: BTreeSet<&ObjectName> = gateways.flatten().collect();
        let gateways = gateways.into_iter().take(MAX_ANCESTORS);
        json!({ "ancestors": list_by_gateway("ancestorRef", gateways, controller, &conditions) })
    }
}

//! TLS of gateways as a whole: verification of clients' certificates, and the certificate that members see.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

use super::certificates::{Files, add_authorities, load_certificate, read_authorities};
use super::conditions::{Condition, Refusal};
use super::grants::is_granted;
use super::objects::{GROUP, Gateway, Items, Kind, ObjectName, Objects, Reference};
use super::text::{hash_of, quote};
use crate::read_value::ReadValue;

/// Settings of TLS of a gateway. A field that is not known could demand something, so none may be skipped.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct TlsSpec {
    backend: BackendSpec,
    frontend: FrontendSpec,
}

/// Settings of TLS with members.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct BackendSpec {
    client_certificate_ref: Option<Reference>,
}

/// Settings of TLS with clients.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct FrontendSpec {
    default: PortTls,
    per_port: Items<PortSpec>,
}

/// Settings of TLS with clients at a port.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct PortSpec {
    port: u16,
    tls: PortTls,
}

/// Settings of TLS with clients.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct PortTls {
    validation: Option<ValidationSpec>,
}

/// Verification of clients' certificates.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct ValidationSpec {
    ca_certificate_refs: Items<Reference>,
    mode: Option<String>,
}

/// Mode in which clients without a good certificate are served, too.
const INSECURE: &str = "AllowInsecureFallback";

/// Demand for certificates of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Clients need a good certificate.
    Required,
    /// Clients without a certificate are served, too.
    Optional,
    /// Clients with a bad certificate, or without one, are served, too.
    Insecure,
}

/// Verification of clients' certificates at a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientValidation {
    /// File with the certificates of authorities.
    ca_file: PathBuf,
    /// Contents of the file.
    authorities: Arc<[u8]>,
    demand: Demand,
}

impl ClientValidation {
    /// Makes the verification by authorities that `user`, an object of the kind `kind`, trusts. `files` gets their
    /// certificates.
    pub(crate) fn new(
        (kind, user): (&str, &ObjectName),
        authorities: Arc<[u8]>,
        demand: Demand,
        files: &mut Files,
    ) -> Self {
        ClientValidation {
            ca_file: add_authorities(kind, user, Arc::clone(&authorities), files),
            authorities,
            demand,
        }
    }

    /// Writes the line of the configuration.
    pub(crate) fn write(&self) -> String {
        let ca_file = quote(&self.ca_file.display().to_string());
        let more = match self.demand {
            Demand::Required => "",
            Demand::Optional => ", required = false",
            Demand::Insecure => ", required = false, accept_invalid = true",
        };
        format!("client_certificates = {{ ca_file = {ca_file}{more} }}")
    }

    /// Returns a word for names of rules, which stays the same if the authorities get other certificates.
    pub(crate) fn find_word(&self) -> String {
        // The folder is named after the contents.
        let user = self.ca_file.parent().and_then(|folder| folder.parent());
        let user = user.unwrap_or(&self.ca_file).display().to_string();
        let hash = hash_of(&(user, self.demand as u8));
        format!("client-{hash:016x}")
    }
}

/// True if clients are verified in the same way.
pub(crate) fn are_alike(one: Option<&ClientValidation>, other: Option<&ClientValidation>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            one.demand == other.demand && one.authorities == other.authorities
        }
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// Verification of clients' certificates, and findings about it.
#[derive(Debug)]
pub(crate) struct FoundValidation {
    /// The verification, or the reason why it cannot be done.
    pub(crate) validation: Result<ClientValidation, Refusal>,
    /// Reason why some of the references cannot be used.
    pub(crate) references: Option<Refusal>,
}

/// Certificate that the balancer shows to members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MemberIdentity {
    /// Name of the secret.
    pub(crate) secret: ObjectName,
    /// Keys of `member_tls`.
    pub(crate) keys: String,
}

/// Settings of TLS of a gateway, and findings about them.
#[derive(Debug, Default)]
pub(crate) struct GatewayTls {
    default: Option<FoundValidation>,
    /// Verification at ports with settings of their own; `None` at those that verify nobody.
    per_port: BTreeMap<u16, Option<FoundValidation>>,
    identity: Option<Result<MemberIdentity, Refusal>>,
    is_insecure: bool,
}

fn read_spec(gateway: &Gateway) -> Result<TlsSpec, String> {
    match &gateway.spec.tls {
        Some(spec) => {
            TlsSpec::deserialize(ReadValue(spec.clone())).map_err(|error| error.to_string())
        }
        None => Ok(TlsSpec::default()),
    }
}

/// Returns the reason why settings of TLS of a gateway are not understood.
pub(crate) fn refuse_tls(gateway: &Gateway) -> Option<Refusal> {
    // A gateway that did not verify clients although it is told to would let everybody in.
    let error = read_spec(gateway).err()?;
    let message = format!("spec.tls is not supported as it is: {error}; remove the field");
    Some(("Invalid", message))
}

impl ValidationSpec {
    /// Finds the verification for a gateway. `files` gets the certificates of authorities.
    fn find(&self, gateway: &ObjectName, objects: &Objects, files: &mut Files) -> FoundValidation {
        let demand = match self.mode.as_deref().unwrap_or("AllowValidOnly") {
            "AllowValidOnly" => Demand::Required,
            INSECURE => Demand::Insecure,
            other => {
                let message =
                    format!("mode {other:?} is not supported; use AllowValidOnly or {INSECURE}");
                return FoundValidation {
                    validation: Err(("UnsupportedValue", message)),
                    references: None,
                };
            }
        };
        let (mut all, mut references) = (String::new(), None);
        for reference in self.ca_certificate_refs.iter() {
            match find_authorities(reference, &gateway.namespace, objects) {
                Ok(text) => {
                    all.push_str(text);
                    all.push('\n');
                }
                Err(refusal) => references = Some(refusal),
            }
        }
        if all.is_empty() {
            let message = "caCertificateRefs is empty; name a ConfigMap";
            references.get_or_insert_with(|| ("InvalidCACertificateRef", message.into()));
            let message = "no certificate of an authority of clients can be used: see ResolvedRefs";
            return FoundValidation {
                validation: Err(("NoValidCACertificate", message.into())),
                references,
            };
        }
        let authorities = all.into_bytes().into();
        let user = ("gateways", gateway);
        FoundValidation {
            validation: Ok(ClientValidation::new(user, authorities, demand, files)),
            references,
        }
    }
}

/// Returns the reason why a gateway in `namespace` may not refer to an object of a kind.
fn refuse_reference(
    kind: &str,
    name: &ObjectName,
    namespace: &str,
    objects: &Objects,
) -> Option<Refusal> {
    let from = (GROUP, Kind::Gateway.name(), namespace);
    let is_permitted = is_granted(objects, from, ("", kind), name);
    let message = || {
        format!(
            "no ReferenceGrant in namespace {} lets a Gateway of {namespace} refer to {kind} {}; create one",
            name.namespace, name.name
        )
    };
    (!is_permitted).then(|| ("RefNotPermitted", message()))
}

/// Reads the certificates of authorities to which a gateway in `namespace` refers.
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
    let own = Kind::ConfigMap.name();
    if (group, kind) != ("", own) {
        let message =
            format!("certificates of authorities cannot be a {group}/{kind}; name a ConfigMap");
        return Err(("InvalidCACertificateKind", message));
    }
    let name = reference.target(namespace);
    if let Some(refusal) = refuse_reference(own, &name, namespace, objects) {
        return Err(refusal);
    }
    read_authorities(&name, objects).map_err(|message| ("InvalidCACertificateRef", message))
}

/// Finds the certificate for members to which a gateway in `namespace` refers. `files` gets its contents.
///
/// # Errors
///
/// The reason why the certificate cannot be used.
fn find_identity(
    reference: &Reference,
    namespace: &str,
    objects: &Objects,
    files: &mut Files,
) -> Result<MemberIdentity, Refusal> {
    let group = reference.group.as_deref().unwrap_or_default();
    let own = Kind::Secret.name();
    let kind = reference.kind.as_deref().unwrap_or(own);
    let invalid = |message| ("InvalidClientCertificateRef", message);
    if (group, kind) != ("", own) {
        let message = format!("a certificate cannot be a {group}/{kind}; name a Secret");
        return Err(invalid(message));
    }
    let secret = reference.target(namespace);
    if let Some(refusal) = refuse_reference(own, &secret, namespace, objects) {
        return Err(refusal);
    }
    let pair = load_certificate(&secret, objects, files);
    let (certificate, key) = pair.map_err(|(_, message)| invalid(message))?;
    let [certificate, key] = [certificate, key].map(|path| quote(&path.display().to_string()));
    Ok(MemberIdentity {
        secret,
        keys: format!("certificate = {certificate}, key = {key}"),
    })
}

impl GatewayTls {
    /// Reads the settings of a gateway. `files` gets the contents of certificates.
    pub(crate) fn read(gateway: &Gateway, objects: &Objects, files: &mut Files) -> Self {
        let name = gateway.metadata.object_name();
        // The gateway is refused if its settings are not understood.
        let spec = read_spec(gateway).unwrap_or_default();
        let mut is_insecure = false;
        let mut find = |of: &PortTls| {
            let validation = of.validation.as_ref()?;
            is_insecure |= validation.mode.as_deref() == Some(INSECURE);
            Some(validation.find(&name, objects, files))
        };
        let default = find(&spec.frontend.default);
        let per_port = spec.frontend.per_port.iter();
        let per_port = per_port.map(|of| (of.port, find(&of.tls))).collect();
        let reference = spec.backend.client_certificate_ref.as_ref();
        let identity = reference.map(|of| find_identity(of, &name.namespace, objects, files));
        GatewayTls {
            default,
            per_port,
            identity,
            is_insecure,
        }
    }

    /// Returns the verification of clients' certificates at a port; `None` if nobody is verified there.
    pub(crate) fn find_validation(&self, port: u16) -> Option<&FoundValidation> {
        match self.per_port.get(&port) {
            Some(own) => own.as_ref(),
            None => self.default.as_ref(),
        }
    }

    /// Returns the certificate that the balancer shows to members, if there is one.
    pub(crate) fn identity(&self) -> Option<&MemberIdentity> {
        self.identity.as_ref()?.as_ref().ok()
    }

    /// Makes the conditions of the gateway. `are_listeners_resolved` is true if no listener has a reference that cannot be
    /// used.
    pub(crate) fn list_conditions(&self, are_listeners_resolved: bool) -> Vec<Condition> {
        let kind = "ResolvedRefs";
        let references = match &self.identity {
            Some(Err((reason, message))) => Condition::fails(kind, reason, message),
            _ if !are_listeners_resolved => {
                let message = "references of some listeners cannot be used: see their conditions";
                Condition::fails(kind, "ListenersNotResolved", message)
            }
            _ => Condition::holds(kind, kind),
        };
        let insecure = self.is_insecure.then(|| Condition {
            message: format!("with mode {INSECURE}, clients without a good certificate are served"),
            ..Condition::holds("InsecureFrontendValidationMode", "ConfigurationChanged")
        });
        [Some(references), insecure].into_iter().flatten().collect()
    }
}

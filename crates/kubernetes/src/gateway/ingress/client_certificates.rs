//! Certificates that clients of the hosts of Ingresses have to show.
//!
//! The handshake comes before the request, so the demand is one of a host, not of a path: the oldest Ingress of the host with
//! the demand counts, if it is of the namespace of the host's oldest Ingress. No other namespace shuts clients out.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::super::certificates::{Files, check_authorities};
use super::super::gateway_tls::{ClientValidation, Demand};
use super::super::grants::is_granted;
use super::super::ingress_spec::{ALIASES, AUTH_TLS_SECRET};
use super::super::objects::{INGRESS_GROUP, Ingress, Kind, ObjectName, Objects};
use super::super::secret_contents::{AUTHORITIES, REVOCATIONS};
use super::super::text::is_host;
use super::annotations::{ClientCertificates, read_annotations};
use super::values::{find_secret, read_aliases};

/// Most hosts whose clients have to show certificates: each has a listener.
const MAX_HOSTS: usize = 1_024;

/// Verification of clients' certificates of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostVerification {
    /// Secret with the authorities.
    secret: ObjectName,
    /// Demand for certificates.
    pub(crate) demand: Demand,
    /// Verification, or the reason why it cannot be done.
    pub(crate) validation: Result<ClientValidation, String>,
}

/// Hosts with a listener of their own: those whose clients are verified, and those that a wildcard of such a host covers.
pub(crate) type VerifiedHosts = BTreeMap<String, Option<HostVerification>>;

/// Returns the host names of an Ingress, in lower case.
fn list_hosts(ingress: &Ingress) -> Vec<Cow<'_, str>> {
    let lower = |host: &str| {
        let has_upper = host.bytes().any(|byte| byte.is_ascii_uppercase());
        has_upper.then(|| host.to_ascii_lowercase())
    };
    let rules = ingress.spec.rules.iter();
    let hosts = rules.filter_map(|rule| rule.host.as_deref());
    let mut hosts: Vec<Cow<'_, str>> = { hosts.filter(|host| is_host(host)) }
        .map(|host| lower(host).map_or(Cow::Borrowed(host), Cow::Owned))
        .collect();
    let aliases = ingress.metadata.annotations.get(ALIASES);
    if let Some(aliases) = aliases.filter(|_| !hosts.is_empty()) {
        let aliases = read_aliases(aliases).0.into_iter();
        hosts.extend(aliases.map(|alias| Cow::Owned(alias.to_ascii_lowercase())));
    }
    hosts
}

/// Returns the wildcards that stand for a host, but for the host itself.
fn list_wildcards(host: &str) -> impl Iterator<Item = String> {
    let dots = host.match_indices('.');
    let wildcards = dots.filter_map(|(at, _)| Some(format!("*{}", host.get(at..)?)));
    wildcards.filter(move |wildcard| wildcard != host)
}

/// Reads the authorities of clients in a secret, to which an Ingress of a namespace refers. `files` gets their certificates.
///
/// # Errors
///
/// The reason why the authorities cannot be used.
fn load_authorities(
    secret: &ObjectName,
    namespace: &str,
    demand: Demand,
    objects: &Objects,
    files: &mut Files,
) -> Result<ClientValidation, String> {
    let from = (INGRESS_GROUP, Kind::Ingress.name(), namespace);
    if !is_granted(objects, from, ("", Kind::Secret.name()), secret) {
        return Err(format!(
            "no ReferenceGrant in namespace {} lets Ingresses of {namespace} use Secret {}; create one",
            secret.namespace, secret.name
        ));
    }
    let found = { objects.secrets.get(secret) }.or_else(|| objects.opaque_secrets.get(secret));
    let found = found.ok_or_else(|| {
        format!("there is no Secret {secret} of type Opaque or kubernetes.io/tls; create it")
    })?;
    let wrong = |problem: String| format!("Secret {secret} cannot be used: {problem}");
    if found.data.contains_key(REVOCATIONS) {
        let problem = "lists of revoked certificates (ca.crl) are not supported; remove the list if nobody needs it";
        return Err(wrong(problem.into()));
    }
    let encoded = found.data.get(AUTHORITIES);
    let encoded = encoded.ok_or_else(|| {
        wrong(format!(
            "there is no {AUTHORITIES}; write the certificates of authorities there (PEM)"
        ))
    })?;
    let decoded = STANDARD.decode(encoded.trim());
    let decoded =
        decoded.map_err(|error| wrong(format!("{AUTHORITIES} is not base64: {error}")))?;
    check_authorities(Some(&decoded)).map_err(|error| wrong(format!("{AUTHORITIES}: {error}")))?;
    let user = ("ingresses", secret);
    Ok(ClientValidation::new(user, decoded.into(), demand, files))
}

impl HostVerification {
    /// True if the verification is the one that an Ingress of a namespace wants.
    fn is_wanted(&self, wanted: &ClientCertificates, namespace: &str) -> bool {
        self.demand == wanted.demand && self.secret == find_secret(&wanted.secret, namespace)
    }
}

/// Returns the reason why the clients of a host are not verified as an Ingress of a namespace wants.
pub(crate) fn refuse_demand(
    wanted: &ClientCertificates,
    namespace: &str,
    host: Option<&str>,
    hosts: &VerifiedHosts,
) -> Option<String> {
    let Some(host) = host else {
        return Some(
            "auth-tls-secret needs a host name, as clients are verified before the request; name one in the rule".into(),
        );
    };
    let Some(Some(known)) = hosts.get(host) else {
        return Some(format!(
            "auth-tls-secret: clients of {host} are not verified, because an older Ingress of another namespace has the \
             host, or {MAX_HOSTS} other hosts verify clients; choose another host"
        ));
    };
    if !known.is_wanted(wanted, namespace) {
        return Some(format!(
            "auth-tls-secret: an older Ingress has another auth-tls-secret or auth-tls-verify-client for {host}; set the same"
        ));
    }
    let error = known.validation.as_ref().err()?;
    Some(format!("auth-tls-secret: {error}"))
}

/// Finds the hosts of Ingresses, the oldest of which comes first, that need a listener of their own. `files` gets the
/// certificates of authorities.
pub(super) fn find_verified_hosts(
    own: &[&Arc<Ingress>],
    objects: &Objects,
    files: &mut Files,
) -> VerifiedHosts {
    let demanding = own.iter().filter_map(|of| {
        let annotations = &of.metadata.annotations;
        annotations.contains_key(AUTH_TLS_SECRET).then_some(())?;
        let treatment = read_annotations(annotations);
        // The annotations that count are those of the Ingress whose canary this is.
        let wanted = treatment
            .client_certificates
            .filter(|_| treatment.canary.is_none())?;
        Some((of.as_ref(), wanted))
    });
    let demanding: Vec<(&Ingress, ClientCertificates)> = demanding.collect();
    if demanding.is_empty() {
        return VerifiedHosts::new();
    }
    let of_demanding = demanding.iter().flat_map(|(of, _)| list_hosts(of));
    let demanded: HashSet<Cow<'_, str>> = of_demanding.collect();
    let is_below = |host: &str| list_wildcards(host).any(|of| demanded.contains(&*of));
    let has_wildcards = demanded.iter().any(|host| host.starts_with("*."));
    // Namespaces of the oldest Ingresses of these hosts, and of those below a wildcard.
    let mut namespaces: BTreeMap<Cow<'_, str>, &str> = BTreeMap::new();
    for ingress in own {
        for host in list_hosts(ingress) {
            if demanded.contains(&host) || has_wildcards && is_below(&host) {
                namespaces
                    .entry(host)
                    .or_insert(&ingress.metadata.namespace);
            }
        }
    }
    let mut hosts = VerifiedHosts::new();
    let mut known: HashMap<(ObjectName, u8, &str), Result<ClientValidation, String>> =
        HashMap::new();
    for (ingress, wanted) in &demanding {
        let namespace = ingress.metadata.namespace.as_str();
        let (secret, demand) = (find_secret(&wanted.secret, namespace), wanted.demand);
        for host in list_hosts(ingress) {
            let is_own = namespaces.get(&host) == Some(&namespace);
            if !is_own || hosts.contains_key(&*host) || hosts.len() >= MAX_HOSTS {
                continue;
            }
            let validation = known
                .entry((secret.clone(), demand as u8, namespace))
                .or_insert_with(|| load_authorities(&secret, namespace, demand, objects, files));
            let verification = HostVerification {
                secret: secret.clone(),
                demand,
                validation: validation.clone(),
            };
            hosts.insert(host.into_owned(), Some(verification));
        }
    }
    // Clients of hosts below a wildcard are verified as these hosts say, and not as the wildcard does.
    let mut below: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for host in namespaces
        .keys()
        .filter(|host| !hosts.contains_key(&***host))
    {
        for wildcard in list_wildcards(host).filter(|of| hosts.contains_key(of)) {
            below.entry(wildcard).or_default().push(host);
        }
    }
    for (wildcard, own) in below {
        match hosts.len() + own.len() > MAX_HOSTS {
            true => drop(hosts.remove(&wildcard)),
            false => hosts.extend(own.into_iter().map(|host| (host.to_owned(), None))),
        }
    }
    hosts
}

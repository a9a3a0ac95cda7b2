//! Listeners of all Ingresses, with the certificates of their secrets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use super::super::addresses::GatewayAddresses;
use super::super::certificates::{Files, load_certificate};
use super::super::listeners::{Class, ListenerState};
use super::super::objects::{Ingress, ObjectName, Objects};
use super::super::route_key::age_of;
use super::super::settings::{IngressSettings, Settings};
use super::super::text::Owner;
use super::client_certificates::{VerifiedHosts, find_verified_hosts};
use super::passwords::{PasswordFiles, load_passwords};
use super::{Notice, is_own};

/// Listeners of Ingresses, and findings about certificates.
#[derive(Debug, Default)]
pub(crate) struct IngressState {
    /// Numbers of the listeners of all other hosts.
    pub(crate) listeners: Vec<usize>,
    /// Secrets that cannot be used, with the reasons.
    pub(crate) faults: BTreeMap<ObjectName, String>,
    /// Files of users, by their secrets.
    pub(crate) passwords: PasswordFiles,
    /// Reports about Ingresses.
    pub(crate) notices: Vec<Notice>,
    /// Hosts with a listener of their own for TLS.
    pub(crate) hosts: VerifiedHosts,
    /// Numbers of the listeners of these hosts.
    pub(crate) host_listeners: BTreeMap<String, usize>,
    /// Services by host and by the name of a cookie that binds clients of the host to members of the service.
    pub(crate) cookies: HashMap<(Option<String>, String), (ObjectName, u16)>,
}

/// Returns the Ingresses that the balancer serves, the oldest first.
pub(crate) fn list_own<'o>(
    objects: &'o Objects,
    settings: &IngressSettings,
) -> Vec<&'o Arc<Ingress>> {
    let all = objects.ingresses.values();
    let mut own: Vec<&Arc<Ingress>> = all.filter(|of| is_own(of, objects, settings)).collect();
    own.sort_by(|one, other| age_of(&one.metadata).cmp(&age_of(&other.metadata)));
    own
}

/// Certificates of Ingresses, as numbers in a list.
#[derive(Default)]
struct Certificates {
    all: Vec<(PathBuf, PathBuf)>,
    /// Number of the certificate for other names.
    usual: Option<usize>,
    /// Numbers by the secrets.
    known: HashMap<ObjectName, usize>,
    /// Numbers by hosts in lower case that an Ingress has TLS for.
    hosts: HashMap<String, BTreeSet<usize>>,
}

impl Certificates {
    /// Reads the certificates of Ingresses, and of `usual`. `faults` gets the secrets that cannot be used.
    fn load(
        own: &[&Arc<Ingress>],
        usual: Option<&ObjectName>,
        objects: &Objects,
        files: &mut Files,
        faults: &mut BTreeMap<ObjectName, String>,
    ) -> Self {
        let mut found = Certificates::default();
        let mut load = |found: &mut Self, secret: &ObjectName| {
            if let Some(number) = found.known.get(secret) {
                return Some(*number);
            }
            if faults.contains_key(secret) {
                return None;
            }
            match load_certificate(secret, objects, files) {
                Ok(pair) => found.all.push(pair),
                Err((_, message)) => {
                    faults.insert(secret.clone(), message);
                    return None;
                }
            }
            let number = found.all.len() - 1;
            found.known.insert(secret.clone(), number);
            Some(number)
        };
        found.usual = usual.and_then(|secret| load(&mut found, secret));
        for ingress in own {
            for tls in ingress.spec.tls.iter() {
                let name = tls.secret_name.as_deref().unwrap_or_default();
                let secret = ObjectName::new(&ingress.metadata.namespace, name);
                let number = { Some(secret) }.filter(|_| !name.is_empty());
                let Some(number) = number.and_then(|secret| load(&mut found, &secret)) else {
                    continue;
                };
                let rules = ingress.spec.rules.iter();
                let rules = rules.filter_map(|rule| rule.host.as_ref());
                let rules = rules.filter(|_| tls.hosts.is_empty());
                for host in tls.hosts.iter().chain(rules) {
                    let of_host = found.hosts.entry(host.to_ascii_lowercase());
                    of_host.or_default().insert(number);
                }
            }
        }
        // Clients that ask for another name get the first certificate.
        if found.usual.is_none() && !found.all.is_empty() {
            found.usual = Some(0);
        }
        found
    }

    /// Returns the certificates for a host.
    fn find(&self, host: &str) -> Vec<(PathBuf, PathBuf)> {
        let wide = host
            .split_once('.')
            .map(|(_, domain)| format!("*.{domain}"));
        let names = [Some(host), wide.as_deref()].into_iter().flatten();
        let own = names.filter_map(|name| self.hosts.get(name)).flatten();
        let mut numbers: Vec<usize> = self.usual.iter().chain(own).copied().collect();
        numbers.dedup();
        let pairs = numbers.into_iter().filter_map(|of| self.all.get(of));
        pairs.cloned().collect()
    }
}

/// Adds the listeners of Ingresses, with their certificates and addresses.
pub(crate) fn add_listeners<'o>(
    objects: &Objects,
    settings: &'o Settings,
    refused: &BTreeMap<Owner, String>,
    listeners: &mut Vec<ListenerState<'o>>,
    addresses: &mut BTreeMap<ObjectName, GatewayAddresses>,
    files: &mut Files,
) -> IngressState {
    let mut state = IngressState::default();
    let Some(ingress) = &settings.ingress else {
        return state;
    };
    let own = list_own(objects, ingress);
    let ingresses = own.iter().map(|of| of.as_ref());
    state.passwords = load_passwords(ingresses, objects, files);
    state.hosts = find_verified_hosts(&own, objects, files);
    let usual = ingress.certificate.as_ref();
    let certificates = Certificates::load(&own, usual, objects, files, &mut state.faults);
    let gateway = ingress.gateway.as_ref();
    let name = gateway.metadata.object_name();
    let shared = GatewayAddresses {
        listen: settings.listen.clone(),
        publish: settings.publish.clone(),
        refusal: None,
    };
    addresses.insert(name, shared);
    let mut add = |mut of: ListenerState<'o>, certificates: Vec<(PathBuf, PathBuf)>| {
        if of.class == Some(Class::Https) {
            of.set_certificates(certificates);
        }
        if let Some(message) = refused.get(&of.owner()) {
            of.refusal = Some(("PortUnavailable", message.clone()));
        }
        listeners.push(of);
        listeners.len() - 1
    };
    for listener in gateway.spec.listeners.iter() {
        let of = ListenerState::new(gateway, listener, objects, files);
        let is_tls = of.class == Some(Class::Https);
        let number = add(of, certificates.all.clone());
        state.listeners.push(number);
        for (host, verification) in { state.hosts.iter() }.filter(|_| is_tls) {
            let mut of = ListenerState::new(gateway, listener, objects, files);
            let validation = verification.as_ref().map(|of| &of.validation);
            of.limit_to_host(host, validation);
            let number = add(of, certificates.find(host));
            state.host_listeners.insert(host.clone(), number);
        }
    }
    state
}

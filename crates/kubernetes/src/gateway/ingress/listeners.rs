//! Listeners of all Ingresses, with the certificates of their secrets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::super::addresses::GatewayAddresses;
use super::super::certificates::{Files, load_certificate};
use super::super::listeners::{Class, ListenerState};
use super::super::objects::{Ingress, ObjectName, Objects};
use super::super::route_key::age_of;
use super::super::settings::{IngressSettings, Settings};
use super::super::text::Owner;
use super::passwords::{PasswordFiles, load_passwords};
use super::{Notice, is_own};

/// Listeners of Ingresses, and findings about certificates.
#[derive(Debug, Default)]
pub(crate) struct IngressState {
    /// Numbers of the listeners.
    pub(crate) listeners: Vec<usize>,
    /// Secrets that cannot be used, with the reasons.
    pub(crate) faults: BTreeMap<ObjectName, String>,
    /// Files of users, by their secrets.
    pub(crate) passwords: PasswordFiles,
    /// Reports about Ingresses.
    pub(crate) notices: Vec<Notice>,
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
    let secrets = own.into_iter().flat_map(|of| {
        let names = of
            .spec
            .tls
            .iter()
            .filter_map(|tls| tls.secret_name.as_deref());
        let names = names.filter(|name| !name.is_empty());
        names.map(|name| ObjectName::new(&of.metadata.namespace, name))
    });
    // Clients that ask for another name get the first certificate.
    let secrets: Vec<ObjectName> = ingress
        .certificate
        .clone()
        .into_iter()
        .chain(secrets)
        .collect();
    let (mut certificates, mut known) = (Vec::new(), HashSet::new());
    for secret in &secrets {
        if !known.insert(secret) {
            continue;
        }
        match load_certificate(secret, objects, files) {
            Ok(pair) => certificates.push(pair),
            Err((_, message)) => drop(state.faults.insert(secret.clone(), message)),
        }
    }
    let gateway = ingress.gateway.as_ref();
    let name = gateway.metadata.object_name();
    let shared = GatewayAddresses {
        listen: settings.listen.clone(),
        publish: settings.publish.clone(),
        refusal: None,
    };
    addresses.insert(name.clone(), shared);
    for listener in gateway.spec.listeners.iter() {
        let mut of = ListenerState::new(gateway, listener, objects, files);
        if of.class == Some(Class::Https) {
            of.set_certificates(certificates.clone());
        }
        let owner = Owner::Listener(name.clone(), listener.name.clone());
        if let Some(message) = refused.get(&owner) {
            of.refusal = Some(("PortUnavailable", message.clone()));
        }
        state.listeners.push(listeners.len());
        listeners.push(of);
    }
    state
}

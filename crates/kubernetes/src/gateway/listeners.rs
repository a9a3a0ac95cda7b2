//! Listeners of gateways: protocols, conflicts, certificates, and the routes that they allow.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::certificates::{Files, load_certificate};
use super::conditions::{Condition, Refusal, list_conditions};
use super::gateway_tls::{ClientValidation, FoundValidation, GatewayTls, are_alike};
use super::grants::is_granted;
use super::objects::{GROUP, Gateway, Kind, Listener, ListenerSet, Metadata, Objects, Reference};
use super::text::{Owner, covers_host, is_host};

/// Protocol of clients at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// HTTP without TLS.
    Http,
    /// HTTP with TLS that ends here.
    Https,
    /// TLS that ends at the members.
    Passthrough,
    /// Connections of any protocol in TLS that ends here.
    Terminate,
    /// TCP of any protocol.
    Tcp,
    /// UDP of any protocol.
    Udp,
}

impl Class {
    /// Returns the kinds of routes for the protocol.
    fn kinds(self) -> &'static [Kind] {
        match self {
            Class::Http | Class::Https => &[Kind::HttpRoute, Kind::GrpcRoute],
            Class::Passthrough | Class::Terminate => &[Kind::TlsRoute],
            Class::Tcp => &[Kind::TcpRoute],
            Class::Udp => &[Kind::UdpRoute],
        }
    }

    /// True if a port has a single listener of the class: nothing tells clients of several apart.
    fn is_alone(self) -> bool {
        matches!(self, Class::Tcp | Class::Udp)
    }

    /// True if TLS of clients ends at the balancer.
    pub(crate) fn ends_tls(self) -> bool {
        matches!(self, Class::Https | Class::Terminate)
    }

    /// True if connections, or sessions, are balanced, and not requests.
    pub(crate) fn is_stream(self) -> bool {
        matches!(
            self,
            Class::Passthrough | Class::Terminate | Class::Tcp | Class::Udp
        )
    }

    /// True if a port can have listeners of both classes: names that clients ask for tell HTTPS and both modes of TLS apart.
    fn shares_port_with(self, other: Class) -> bool {
        let is_tls = |class| matches!(class, Class::Https | Class::Passthrough | Class::Terminate);
        self == other || is_tls(self) && is_tls(other)
    }
}

/// Address and port of listeners, and what they have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frontend {
    /// Addresses to listen on.
    pub(crate) addresses: Vec<IpAddr>,
    /// Port to listen on.
    pub(crate) port: u16,
    /// Protocol of clients, as the first listener has it: others may have HTTPS, or another mode of TLS.
    pub(crate) class: Class,
    /// Host names of the listeners, in lower case; `None` stands for all names.
    pub(crate) hosts: Vec<Option<String>>,
    /// Numbers of the listeners that are not in conflict with others. Those that do not serve clients are among them:
    /// their names belong to them all the same.
    pub(crate) listeners: Vec<usize>,
}

/// Listener, and findings about it.
#[derive(Debug)]
pub(crate) struct ListenerState<'o> {
    pub(crate) gateway: &'o Gateway,
    /// Set of the listener; `None` for a listener of the gateway itself.
    set: Option<(Kind, &'o ListenerSet)>,
    pub(crate) listener: &'o Listener,
    /// Host of Ingresses, in lower case, which is the only one of the listener.
    ingress_host: Option<String>,
    /// Protocol; `None` if it is not supported.
    pub(crate) class: Option<Class>,
    /// Kinds of routes that may attach.
    kinds: Vec<Kind>,
    /// Reason why the listener is not accepted.
    pub(crate) refusal: Option<Refusal>,
    /// Reason why the listener is in conflict with an earlier one.
    pub(crate) conflict: Option<Refusal>,
    /// Reason why references, or kinds, cannot be used.
    references: Option<Refusal>,
    /// True if the listener lacks the certificates that it needs.
    lacks_certificates: bool,
    /// Certificates and keys.
    pub(crate) certificates: Vec<(PathBuf, PathBuf)>,
    /// Verification of clients' certificates.
    pub(crate) validation: Option<ClientValidation>,
    /// Number of routes that are attached.
    pub(crate) attached: usize,
    /// Reason why the listener is not in effect although nothing is wrong with it.
    pub(crate) not_in_effect: Option<String>,
}

impl<'o> ListenerState<'o> {
    /// Looks at a listener of a gateway by itself.
    pub(crate) fn new(
        gateway: &'o Gateway,
        listener: &'o Listener,
        objects: &Objects,
        files: &mut Files,
    ) -> Self {
        Self::with_set(gateway, None, None, listener, objects, files)
    }

    /// Looks at a listener by itself. `tls` has the settings of its gateway, and `set` is the set that the listener is part
    /// of.
    pub(crate) fn with_set(
        gateway: &'o Gateway,
        tls: Option<&GatewayTls>,
        set: Option<(Kind, &'o ListenerSet)>,
        listener: &'o Listener,
        objects: &Objects,
        files: &mut Files,
    ) -> Self {
        let mut state = ListenerState {
            gateway,
            set,
            listener,
            ingress_host: None,
            class: None,
            kinds: Vec::new(),
            refusal: None,
            conflict: None,
            references: None,
            lacks_certificates: false,
            certificates: Vec::new(),
            validation: None,
            attached: 0,
            not_in_effect: None,
        };
        state.find_class();
        state.find_kinds();
        if state.class.is_some_and(Class::ends_tls) {
            state.find_certificates(objects, files);
            if let Some(found) = tls.and_then(|tls| tls.find_validation(listener.port)) {
                state.verify_clients(found);
            }
        }
        state
    }

    /// Has the listener verify certificates of clients. A listener that cannot do that serves nobody.
    fn verify_clients(&mut self, found: &FoundValidation) {
        if let Some(refusal) = &found.references {
            self.references = Some(refusal.clone());
        }
        match &found.validation {
            Ok(validation) => self.validation = Some(validation.clone()),
            Err(refusal) => {
                self.refusal.get_or_insert_with(|| refusal.clone());
            }
        }
    }

    /// Returns the metadata of the object that the listener is written in: the set, or else the gateway.
    pub(crate) fn home(&self) -> &'o Metadata {
        match self.set {
            Some((_, set)) => &set.metadata,
            None => &self.gateway.metadata,
        }
    }

    /// Returns the owner of the listener's lines.
    pub(crate) fn owner(&self) -> Owner {
        let (home, mut name) = (self.home().object_name(), self.listener.name.clone());
        if let Some(host) = &self.ingress_host {
            // No listener of an object has such a name.
            name = format!("{name}/{host}");
        }
        match self.set {
            Some((kind, _)) => Owner::SetListener(kind, home, name),
            None => Owner::Listener(home, name),
        }
    }

    /// Gives the listener these certificates, of whichever objects.
    pub(crate) fn set_certificates(&mut self, certificates: Vec<(PathBuf, PathBuf)>) {
        self.lacks_certificates = certificates.is_empty();
        self.references = None;
        self.certificates = certificates;
    }

    /// Has the listener serve a single host of Ingresses, and verify its clients if there is a verification. A listener that
    /// cannot do that serves nobody.
    pub(crate) fn limit_to_host(
        &mut self,
        host: &str,
        validation: Option<&Result<ClientValidation, String>>,
    ) {
        self.ingress_host = Some(host.to_owned());
        match validation {
            Some(Ok(validation)) => self.validation = Some(validation.clone()),
            Some(Err(message)) => {
                self.refusal = Some(("NoValidCACertificate", message.clone()));
            }
            None => {}
        }
    }

    /// True if the listener stands for Ingresses, which share a port with gateways.
    fn is_of_ingress(&self) -> bool {
        self.gateway.metadata.namespace.is_empty()
    }

    /// Returns the host name of the listener; `None` stands for all names.
    pub(crate) fn hostname(&self) -> Option<&str> {
        let own = self.ingress_host.as_deref();
        let hostname = own.or(self.listener.hostname.as_deref());
        hostname.filter(|hostname| !hostname.is_empty())
    }

    fn find_class(&mut self) {
        let tls = self.listener.tls.as_ref();
        let mode = tls.and_then(|tls| tls.mode.as_deref());
        let mode = mode.unwrap_or("Terminate");
        let protocol = &self.listener.protocol;
        self.class = match (protocol.as_str(), mode) {
            ("HTTP", _) => Some(Class::Http),
            ("HTTPS", _) => Some(Class::Https),
            ("TLS", "Passthrough") => Some(Class::Passthrough),
            ("TLS", _) => Some(Class::Terminate),
            ("TCP", _) => Some(Class::Tcp),
            ("UDP", _) => Some(Class::Udp),
            _ => None,
        };
        if self.class.is_none() {
            let message =
                format!("protocol {protocol} is not supported; use HTTP, HTTPS, TLS, TCP or UDP");
            self.refusal = Some(("UnsupportedProtocol", message));
        } else if self.class.is_some_and(Class::ends_tls) && mode != "Terminate" {
            let message = format!(
                "mode {mode} is not supported for protocol {protocol}; use Terminate, or TLS with Passthrough"
            );
            self.refusal = Some(("UnsupportedValue", message));
        }
        if self.listener.port == 0 {
            let message = "a listener needs a port; set one";
            self.refusal = Some(("UnsupportedValue", message.into()));
        }
        if let Some(hostname) = self.hostname().filter(|hostname| !is_host(hostname)) {
            let message = format!("hostname {hostname:?} is no host name; change it");
            self.refusal = Some(("UnsupportedValue", message));
        }
        // A listener that did not verify clients although it is told to would let everybody in.
        if tls.is_some_and(|tls| tls.frontend_validation.is_some()) {
            let message = "frontendValidation of a listener is not supported; use spec.tls.frontend of the gateway";
            self.refusal = Some(("UnsupportedValue", message.into()));
        }
    }

    fn find_kinds(&mut self) {
        let of_protocol = self.class.map_or(&[][..], Class::kinds);
        let wanted = &self.listener.allowed_routes.kinds;
        if wanted.is_empty() {
            self.kinds = of_protocol.to_vec();
            return;
        }
        for kind in wanted.iter() {
            let group = kind.group.as_deref().unwrap_or(GROUP);
            let known = of_protocol.iter().find(|of| of.name() == kind.kind);
            match known.filter(|_| group == GROUP) {
                Some(known) if !self.kinds.contains(known) => self.kinds.push(*known),
                Some(_) => {}
                None => {
                    let message = format!(
                        "a listener of protocol {} takes no {group}/{}; remove the kind from allowedRoutes",
                        self.listener.protocol, kind.kind
                    );
                    self.references = Some(("InvalidRouteKinds", message));
                }
            }
        }
    }

    fn find_certificates(&mut self, objects: &Objects, files: &mut Files) {
        let tls = self.listener.tls.as_ref();
        for reference in tls.iter().flat_map(|tls| tls.certificate_refs.iter()) {
            match self.read_certificate(reference, objects, files) {
                Ok(pair) => self.certificates.push(pair),
                Err(refusal) => self.references = Some(refusal),
            }
        }
        if self.certificates.is_empty() {
            self.lacks_certificates = true;
            let message = "certificateRefs is empty; name a Secret of type kubernetes.io/tls";
            let empty = || ("InvalidCertificateRef", message.to_owned());
            self.references.get_or_insert_with(empty);
        }
    }

    fn read_certificate(
        &self,
        reference: &Reference,
        objects: &Objects,
        files: &mut Files,
    ) -> Result<(PathBuf, PathBuf), Refusal> {
        let group = reference.group.as_deref().unwrap_or_default();
        let kind = reference.kind.as_deref().unwrap_or("Secret");
        let invalid = |message| ("InvalidCertificateRef", message);
        if (group, kind) != ("", "Secret") {
            let message = format!("a certificate cannot be a {group}/{kind}; name a Secret");
            return Err(invalid(message));
        }
        let namespace = &self.home().namespace;
        let name = reference.target(namespace);
        let kind = self.set.map_or(Kind::Gateway, |(kind, _)| kind);
        let from = (kind.api_group(), kind.name(), namespace.as_str());
        if !is_granted(objects, from, ("", "Secret"), &name) {
            let message = format!(
                "no ReferenceGrant in namespace {} lets a {} of {namespace} refer to Secret {}; create one",
                name.namespace,
                kind.name(),
                name.name
            );
            return Err(("RefNotPermitted", message));
        }
        load_certificate(&name, objects, files)
    }

    /// True if a route of a kind and a namespace may attach.
    pub(crate) fn allows_route(
        &self,
        kind: Kind,
        gateway: &str,
        namespace: &str,
        objects: &Objects,
    ) -> bool {
        if !self.takes_routes() || !self.kinds.contains(&kind) {
            return false;
        }
        let allowed = &self.listener.allowed_routes.namespaces;
        allowed.choose("Same", gateway, namespace, objects)
    }

    /// True if routes may attach: a listener without certificates takes routes, too.
    pub(crate) fn takes_routes(&self) -> bool {
        self.refusal.is_none() && self.conflict.is_none()
    }

    /// True if the listener is to serve clients.
    pub(crate) fn serves(&self) -> bool {
        self.takes_routes() && self.class.is_some() && !self.lacks_certificates
    }

    /// True if the listener is valid.
    pub(crate) fn is_valid(&self) -> bool {
        self.serves() && self.not_in_effect.is_none()
    }

    /// True if all references of the listener can be used.
    pub(crate) fn is_resolved(&self) -> bool {
        self.references.is_none()
    }

    /// Writes the status of the listener.
    pub(crate) fn show(&self) -> Value {
        let accepted = match self.conflict.as_ref().or(self.refusal.as_ref()) {
            Some((reason, message)) => Condition::fails("Accepted", reason, message),
            None => Condition::holds("Accepted", "Accepted"),
        };
        let conflicted = match &self.conflict {
            Some((reason, message)) => Condition {
                message: message.clone(),
                ..Condition::holds("Conflicted", reason)
            },
            None => Condition::fails("Conflicted", "NoConflicts", ""),
        };
        let references = match &self.references {
            Some((reason, message)) => Condition::fails("ResolvedRefs", reason, message),
            None => Condition::holds("ResolvedRefs", "ResolvedRefs"),
        };
        let programmed = match &self.not_in_effect {
            Some(message) => Condition::fails("Programmed", "Invalid", message),
            None if self.serves() => Condition::holds("Programmed", "Programmed"),
            None => {
                // The API demands the reason of `Accepted` of listeners of sets alone.
                let has_reason = self.set.is_some() && !accepted.status;
                let reason = if has_reason {
                    accepted.reason
                } else {
                    "Invalid"
                };
                let message = "the listener does not serve clients: see the other conditions";
                Condition::fails("Programmed", reason, message)
            }
        };
        let kinds = self.kinds.iter();
        let kinds: Vec<_> = kinds
            .map(|kind| json!({ "group": GROUP, "kind": kind.name() }))
            .collect();
        let conditions = [accepted, conflicted, references, programmed];
        let mut shown = json!({
            "name": self.listener.name,
            "supportedKinds": kinds,
            "attachedRoutes": self.attached,
            "conditions": list_conditions(&conditions, self.home().generation),
        });
        if let Some((Kind::XListenerSet, _)) = self.set
            && let Some(fields) = shown.as_object_mut()
        {
            fields.insert("port".into(), self.listener.port.into());
        }
        shown
    }
}

/// Hosts of gateways at ports of Ingresses for HTTPS.
struct IngressPorts(BTreeMap<(Vec<IpAddr>, u16), Vec<Option<String>>>);

impl IngressPorts {
    fn find(
        listeners: &[ListenerState<'_>],
        address_of: impl Fn(&Gateway) -> Option<Vec<IpAddr>>,
    ) -> Self {
        let mut found = BTreeMap::new();
        // Ingresses come last.
        for listener in listeners.iter().rev() {
            let is_tls = listener
                .class
                .is_some_and(|class| class.shares_port_with(Class::Https));
            let Some(addresses) = address_of(listener.gateway).filter(|_| is_tls) else {
                continue;
            };
            let at = (addresses, listener.listener.port);
            if listener.is_of_ingress() {
                if listener.refusal.is_none() {
                    found.entry(at).or_insert_with(Vec::new);
                }
            } else if let Some(hosts) = found.get_mut(&at) {
                hosts.push(listener.hostname().map(str::to_ascii_lowercase));
            }
        }
        IngressPorts(found)
    }

    /// Returns the reason why a listener of Ingresses cannot have its host: an Ingress takes no host from a gateway.
    fn find_conflict(&self, listener: &ListenerState<'_>, addresses: &[IpAddr]) -> Option<String> {
        let (host, port) = (listener.ingress_host.as_ref()?, listener.listener.port);
        let hosts = self.0.get(&(addresses.to_vec(), port))?;
        let covers = |of: &Option<String>| of.as_ref().is_none_or(|of| covers_host(of, host));
        hosts.iter().any(covers).then(|| {
            format!("a gateway has a listener for {host} at port {port}; choose another host")
        })
    }

    /// Returns the reason why a listener of a gateway cannot verify clients at its port: clients of Ingresses are served
    /// there where no name says otherwise.
    fn refuse(&self, listener: &ListenerState<'_>, addresses: &[IpAddr]) -> Option<String> {
        let port = listener.listener.port;
        let is_shutting = !listener.is_of_ingress()
            && listener.hostname().is_none()
            && listener.validation.is_some()
            && self.0.contains_key(&(addresses.to_vec(), port));
        is_shutting.then(|| {
            format!(
                "port {port} has Ingresses, whose clients are not verified; choose another port, set a hostname, or set pool in \
                 [kubernetes.gateway]"
            )
        })
    }
}

/// Puts listeners at their addresses and ports, and finds conflicts: the first of several listeners that exclude each
/// other is used. `address_of` has the addresses of a gateway.
pub(crate) fn place_listeners(
    listeners: &mut [ListenerState<'_>],
    address_of: impl Fn(&Gateway) -> Option<Vec<IpAddr>>,
) -> Vec<Frontend> {
    let mut frontends: Vec<Frontend> = Vec::new();
    let mut by_port: BTreeMap<(Vec<IpAddr>, u16, bool), usize> = BTreeMap::new();
    let mut frontend_hosts = HashSet::new();
    // Verification of clients whose TLS ends here for connections, by the numbers of the frontends.
    let mut validations: BTreeMap<usize, Option<ClientValidation>> = BTreeMap::new();
    // Ports that have a listener for all connections.
    let mut without_names = BTreeSet::new();
    let ports = IngressPorts::find(listeners, &address_of);
    for (number, listener) in listeners.iter_mut().enumerate() {
        let (Some(class), Some(addresses)) = (listener.class, address_of(listener.gateway)) else {
            continue;
        };
        if let Some(message) = ports.find_conflict(listener, &addresses) {
            (listener.conflict, listener.refusal) = (Some(("HostnameConflict", message)), None);
        }
        if listener.refusal.is_some() || listener.conflict.is_some() {
            continue;
        }
        let port = listener.listener.port;
        // UDP and TCP have ports of their own.
        let at = (addresses.clone(), port, class == Class::Udp);
        let next = frontends.len();
        let index = *by_port.entry(at).or_insert(next);
        if index == next {
            frontends.push(Frontend {
                addresses,
                port,
                class,
                hosts: Vec::new(),
                listeners: Vec::new(),
            });
        }
        let Some(frontend) = frontends.get_mut(index) else {
            continue;
        };
        let host = listener.hostname().map(str::to_ascii_lowercase);
        // Ingresses have the names that no listener for TLS has, so another listener cannot have them.
        let is_taken = listener.is_of_ingress() && without_names.contains(&index);
        let is_known = |host: &Option<String>| frontend_hosts.contains(&(index, host.clone()));
        if is_taken || !frontend.class.shares_port_with(class) {
            let message =
                format!("port {port} has a listener of another protocol; choose another port");
            listener.conflict = Some(("ProtocolConflict", message));
        } else if !listener.is_of_ingress()
            && (class.is_alone() && !frontend.listeners.is_empty() || is_known(&host))
        {
            let message = format!(
                "port {port} has a listener of the same hostname; choose another hostname or port"
            );
            listener.conflict = Some(("HostnameConflict", message));
        } else if let Some(message) = ports.refuse(listener, &frontend.addresses) {
            listener.refusal = Some(("PortUnavailable", message));
        } else if class == Class::Terminate
            && !are_alike(
                { validations.entry(index) }
                    .or_insert_with(|| listener.validation.clone())
                    .as_ref(),
                listener.validation.as_ref(),
            )
        {
            // One rule ends TLS of all of them.
            let message = format!(
                "port {port} has a listener for TLS of another gateway that verifies certificates of clients in another way; \
                 choose another port, or set pool in [kubernetes.gateway]"
            );
            listener.refusal = Some(("PortUnavailable", message));
        } else {
            if class.is_stream() && host.is_none() {
                without_names.insert(index);
            }
            frontend_hosts.insert((index, host.clone()));
            frontend.hosts.push(host);
            frontend.listeners.push(number);
        }
    }
    add_refused(listeners, address_of, &by_port, &mut frontends);
    frontends
}

/// Adds listeners that are refused to the ports of others. A name belongs to the most specific listener, also if that one
/// is refused: routes of a wider listener never answer requests for the name. `by_port` has the numbers of the frontends.
fn add_refused(
    listeners: &[ListenerState<'_>],
    address_of: impl Fn(&Gateway) -> Option<Vec<IpAddr>>,
    by_port: &BTreeMap<(Vec<IpAddr>, u16, bool), usize>,
    frontends: &mut [Frontend],
) {
    let refused = listeners.iter().enumerate();
    for (number, listener) in refused.filter(|(_, of)| of.refusal.is_some()) {
        let has_names = listener.hostname().is_none_or(is_host);
        let class = { listener.class }.filter(|class| has_names && !class.is_alone());
        let (Some(class), Some(addresses)) = (class, address_of(listener.gateway)) else {
            continue;
        };
        let index = by_port.get(&(addresses, listener.listener.port, false));
        let Some(frontend) = index.and_then(|index| frontends.get_mut(*index)) else {
            continue;
        };
        let host = listener.hostname().map(str::to_ascii_lowercase);
        if frontend.class.shares_port_with(class) && !frontend.hosts.contains(&host) {
            frontend.hosts.push(host);
            frontend.listeners.push(number);
        }
    }
}

//! Targets of routes: services and pools, which become groups.

use std::sync::Arc;

use evenkeel_config::ServicePort;

pub(crate) use super::binding::Binding;
use super::conditions::Refusal;
use super::gateway_tls::MemberIdentity;
use super::grants::is_granted;
use super::group_policies::{GroupTuning, Layer};
pub(crate) use super::groups::{
    Group, Groups, Members, NOBODY, NamedGroup, Names, Protocol, RouteGroups, RuleGroups,
};
use super::objects::{self, GROUP, INFERENCE_GROUP, Kind, ObjectName, Objects, Reference};
use super::policies::Policies;
use super::pools;
pub(crate) use super::values::read_duration;

/// Route whose targets are looked at.
#[derive(Clone, Copy)]
pub(crate) struct Referrer<'o> {
    pub(crate) objects: &'o Objects,
    pub(crate) policies: &'o Policies,
    /// Policies of the route and its gateways.
    pub(crate) inherited: &'o [Arc<Layer>],
    pub(crate) kind: Kind,
    pub(crate) namespace: &'o str,
    /// True if TLS of clients ends at the balancer.
    pub(crate) ends_tls: bool,
    /// Certificate that members see.
    pub(crate) identity: Option<&'o MemberIdentity>,
}

impl Referrer<'_> {
    /// Returns the group of a target.
    ///
    /// # Errors
    ///
    /// The reason why the target cannot be used.
    pub(crate) fn find_group(
        self,
        target: &Reference,
        binding: Option<&Binding>,
        groups: &mut Groups,
    ) -> Result<String, Refusal> {
        let group = target.group.as_deref().unwrap_or_default();
        let kind = target.kind.as_deref().unwrap_or("Service");
        let is_pool = (group, kind) == (INFERENCE_GROUP, Kind::InferencePool.name())
            && self.kind == Kind::HttpRoute;
        if (group, kind) != ("", "Service") && !is_pool {
            let message = match self.kind {
                Kind::HttpRoute => {
                    format!(
                        "a target cannot be a {group}/{kind}; name a Service or an InferencePool"
                    )
                }
                _ => format!("a target cannot be a {group}/{kind}; name a Service"),
            };
            return Err(("InvalidKind", message));
        }
        let name = target.target(self.namespace);
        let from = (GROUP, self.kind.name(), self.namespace);
        if !is_granted(self.objects, from, (group, kind), &name) {
            let message = format!(
                "no ReferenceGrant in namespace {} lets a {} of {} refer to {kind} {}; create one",
                name.namespace,
                self.kind.name(),
                self.namespace,
                name.name
            );
            return Err(("RefNotPermitted", message));
        }
        let members = match is_pool {
            true => Members::Pool(pools::list_engines(self.objects, &name)?),
            false => match self.find_port(target, &name)? {
                Some(members) => members,
                None => return Ok(groups.use_nobody()),
            },
        };
        let tuning = match is_pool {
            true => self.find_tuning(Kind::InferencePool, &name, None),
            false => {
                let ports = { self.objects.services.get(&name) }
                    .into_iter()
                    .flat_map(|of| of.spec.ports.iter());
                let mut ports = ports.filter(|of| Some(of.port) == target.port);
                let port = ports.find(|of| self.has_transport(of));
                let port = port.and_then(|of| of.name.as_deref());
                self.find_tuning(Kind::Service, &name, port)
            }
        };
        Ok(groups.add(Group {
            target: name,
            members,
            binding: binding.cloned(),
            tuning,
            actions: None,
        }))
    }

    /// Returns the settings of a group by policies.
    fn find_tuning(
        self,
        kind: Kind,
        name: &ObjectName,
        port: Option<&str>,
    ) -> Option<Arc<GroupTuning>> {
        let of_groups = &self.policies.groups;
        of_groups.find_tuning(kind, name, port, self.inherited, self.objects)
    }

    /// Returns the protocol of the transport to members.
    fn transport(self) -> &'static str {
        match self.kind {
            Kind::UdpRoute => "UDP",
            _ => "TCP",
        }
    }

    /// True if a port of a service is one for the transport to members.
    fn has_transport(self, port: &objects::ServicePort) -> bool {
        port.protocol.as_deref().unwrap_or("TCP") == self.transport()
    }

    /// Returns the members of a service to which a target refers: those of a port. `None` if requests fail, because
    /// certificates of members cannot be verified.
    ///
    /// # Errors
    ///
    /// The reason why the service or the port cannot be used.
    fn find_port(self, target: &Reference, name: &ObjectName) -> Result<Option<Members>, Refusal> {
        let not_found = |message| ("BackendNotFound", message);
        let service = self.objects.services.get(name);
        let service =
            service.ok_or_else(|| not_found(format!("there is no Service {name}; create it")))?;
        let Some(number) = target.port else {
            return Err(not_found(format!(
                "the reference to Service {name} has no port; add one"
            )));
        };
        let (is_udp, transport) = (self.kind == Kind::UdpRoute, self.transport());
        let mut ports = service.spec.ports.iter();
        let port = ports.find(|port| port.port == number && self.has_transport(port));
        let Some(port) = port else {
            return Err(not_found(format!(
                "Service {name} has no port {number} of {transport}; choose one of its ports"
            )));
        };
        let port_name = port.name.as_deref().filter(|name| !name.is_empty());
        let number_text = number.to_string();
        let wanted = port_name.filter(|_| is_udp).unwrap_or(&number_text);
        if service.spec.kind.as_deref() == Some("ExternalName")
            || ServicePort::from_text(&format!("{name}:{wanted}")).is_none()
        {
            let message =
                format!("Service {name} has no endpoints of its own; name another Service");
            return Err(("UnsupportedProtocol", message));
        }
        if is_udp {
            let port_name = port_name.map(str::to_owned);
            return Ok(Some(Members::Datagrams(number, port_name)));
        }
        let tls = match self.kind {
            // TLS of the client ends at the members.
            Kind::TlsRoute if !self.ends_tls => None,
            _ => self.policies.find_keys(name, port),
        };
        let protocol = self.find_protocol(name, port, tls.is_some())?;
        Ok(match tls {
            None => Some(Members::Service(number, protocol)),
            Some(Ok(keys)) => {
                let own = self.identity.map(|of| format!(", {}", of.keys));
                let line = format!("member_tls = {{ {keys}{} }}", own.unwrap_or_default());
                let secret = self.identity.map(|of| of.secret.clone());
                Some(Members::Tls(number, protocol, line, secret))
            }
            Some(Err(_)) if self.kind.is_of_requests() => None,
            Some(Err(message)) => return Err(("InvalidBackendTLSPolicy", message)),
        })
    }

    /// Returns the protocol of the members at a port of a service.
    ///
    /// # Errors
    ///
    /// The balancer does not speak the protocol.
    fn find_protocol(
        self,
        name: &ObjectName,
        port: &objects::ServicePort,
        has_tls: bool,
    ) -> Result<Protocol, Refusal> {
        Ok(match port.app_protocol.as_deref() {
            _ if !self.kind.is_of_requests() => Protocol::Plain,
            Some(protocol @ ("kubernetes.io/wss" | "https")) if !has_tls => {
                let message = format!(
                    "port {} of Service {name} has appProtocol {protocol}, which needs a BackendTLSPolicy; create one, or name a port without TLS",
                    port.port
                );
                return Err(("UnsupportedProtocol", message));
            }
            Some("kubernetes.io/h2c") => Protocol::Http2,
            _ if self.kind == Kind::GrpcRoute => Protocol::Http2,
            _ => Protocol::Plain,
        })
    }
}

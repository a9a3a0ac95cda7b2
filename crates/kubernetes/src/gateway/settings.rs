//! Settings of the controller.

use std::net::IpAddr;
use std::sync::Arc;

use super::objects::{Gateway, GatewayClass, Items, Kind, Listener, ObjectName, Objects};
use super::text::is_host;

/// Most addresses in the status of a gateway; the API has the same bound.
const MAX_ADDRESSES: usize = 16;

/// Settings of the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Name of the controller, as classes have it.
    pub controller: String,
    /// Name of the only class; `None` stands for all classes of the controller.
    pub class: Option<String>,
    /// Addresses to listen on, of all gateways together.
    pub listen: Vec<IpAddr>,
    /// Addresses that gateways have in their statuses.
    pub publish: Vec<String>,
    /// Service whose load balancer has further addresses of gateways.
    pub publish_service: Option<ObjectName>,
    /// Addresses of which each gateway gets one to listen on, and for its status; if there are none, gateways share
    /// `listen` and `publish`.
    pub pool: Vec<IpAddr>,
    /// Settings of Ingresses; `None` if none are served.
    pub ingress: Option<IngressSettings>,
}

/// Settings of Ingresses.
#[derive(Clone, Debug, PartialEq)]
pub struct IngressSettings {
    /// Name of the controller, as classes have it.
    pub controller: String,
    /// Name of the only class; `None` stands for all classes of the controller.
    pub class: Option<String>,
    /// True if Ingresses without a class are served.
    pub without_class: bool,
    /// Secret of the certificate for names that no other certificate has.
    pub certificate: Option<ObjectName>,
    /// Fields that Ingresses may copy from answers of login services.
    pub copy_fields: Vec<String>,
    /// Gateway that stands for all Ingresses: its first listener has no TLS, its second has.
    pub gateway: Arc<Gateway>,
}

impl IngressSettings {
    /// Returns a gateway that stands for all Ingresses, with these ports. No object of the cluster has the gateway's name.
    pub fn make_gateway(http_port: u16, https_port: u16) -> Arc<Gateway> {
        let listener = |name: &str, port, protocol: &str| Listener {
            name: name.into(),
            port,
            protocol: protocol.into(),
            ..Listener::default()
        };
        let mut gateway = Gateway::default();
        gateway.metadata.name = "ingress".into();
        let listeners = vec![
            listener("http", http_port, "HTTP"),
            listener("https", https_port, "HTTPS"),
        ];
        gateway.spec.listeners = Items::from_vec(listeners);
        Arc::new(gateway)
    }
}

impl Settings {
    /// True if objects of a kind are followed.
    pub(crate) fn follows(&self, kind: Kind) -> bool {
        self.ingress.is_some() || !kind.is_of_ingress()
    }

    /// True if a class is one of this controller.
    pub(crate) fn has_class(&self, class: &GatewayClass) -> bool {
        let name = &class.metadata.name;
        class.spec.controller_name == self.controller
            && self.class.as_ref().is_none_or(|own| own == name)
    }

    /// Returns the settings with all addresses that are known for gateways: those of the load balancer, too.
    pub fn with_service_addresses(&self, objects: &Objects) -> Settings {
        let mut settings = self.clone();
        let service = self.publish_service.as_ref();
        let service = service.and_then(|name| objects.services.get(name));
        let entries = service.and_then(|of| of.status.pointer("/loadBalancer/ingress")?.as_array());
        for entry in entries.into_iter().flatten() {
            let is_used = |text: &&str| text.parse::<IpAddr>().is_ok() || is_host(text);
            let texts = ["ip", "hostname"].iter();
            let mut texts = texts.filter_map(|key| entry.get(key)?.as_str());
            let Some(address) = texts.find(is_used) else {
                continue;
            };
            if settings.publish.len() < MAX_ADDRESSES
                && !settings.publish.iter().any(|known| known == address)
            {
                settings.publish.push(address.to_owned());
            }
        }
        settings
    }
}

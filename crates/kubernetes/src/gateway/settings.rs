//! Settings of the controller.

use std::net::IpAddr;

use super::objects::{GatewayClass, ObjectName, Objects};
use super::text::is_host;

/// Most addresses in the status of a gateway; the API has the same bound.
const MAX_ADDRESSES: usize = 16;

/// Settings of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

impl Settings {
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

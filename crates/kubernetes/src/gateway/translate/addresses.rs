//! Addresses that gateways have in their statuses.

use std::net::IpAddr;

use super::super::objects::Objects;
use super::super::text::is_host;
use super::Settings;

/// Most addresses in the status of a gateway; the API has the same bound.
const MAX_ADDRESSES: usize = 16;

impl Settings {
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

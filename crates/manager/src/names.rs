//! Follows the names of members: looks them up again and again, and changes members with them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_net::Tasks;
use tracing::{info, warn};

use crate::dns::RETRY_UNKNOWN;
use crate::manager::Manager;

impl Manager {
    /// Looks all names up again and again, each at its interval.
    pub(crate) async fn follow_names(self: &Arc<Self>) {
        let mut tasks = Tasks::default();
        let mut changes = self.changes();
        loop {
            let mut wanted: HashMap<String, Duration> = HashMap::new();
            for (host, interval) in self.config().dns_hosts() {
                let shortest = wanted.entry(host.to_owned()).or_insert(interval);
                *shortest = interval.min(*shortest);
            }
            tasks.reconcile(wanted, |host, interval| {
                follow(Arc::clone(self), host, interval)
            });
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// `host` has these addresses now.
    fn resolved(&self, host: &str, addresses: Vec<IpAddr>) {
        let mut owned = self.lock();
        let inputs = &owned.state.inputs;
        let wanted = inputs.config.dns_hosts().any(|(name, _)| name == host);
        if !wanted || inputs.addresses.get(host) == Some(&addresses) {
            return;
        }
        let mut inputs = inputs.clone();
        info!(host, ?addresses, "a member's name has new addresses");
        inputs.addresses.insert(host.to_owned(), addresses);
        if let Err(error) = self.change(&mut owned.state, inputs) {
            warn!(host, "its new addresses are not used: {error}");
        }
    }
}

async fn follow(manager: Arc<Manager>, host: String, interval: Duration) {
    let mut failing = false;
    loop {
        // Up to a tenth earlier or later, so that names which were configured together
        // are not looked up together for ever.
        let known = manager.lock().state.inputs.addresses.contains_key(&host);
        let wait = match known {
            true => interval.mul_f32(0.9 + 0.2 * fastrand::f32()),
            false => interval.min(RETRY_UNKNOWN),
        };
        tokio::time::sleep(wait).await;
        match manager.resolver.addresses(&host).await {
            Ok(addresses) => {
                manager.resolved(&host, addresses);
                failing = false;
            }
            Err(error) if !failing => {
                warn!(
                    host,
                    "a member's name does not resolve: {error}; it keeps the addresses it had"
                );
                failing = true;
            }
            Err(_) => {}
        }
    }
}

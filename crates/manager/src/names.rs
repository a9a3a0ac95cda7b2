//! Follows the names of members: looks them up again and again, and changes members with them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_net::Tasks;
use tracing::{info, warn};

use crate::dns::{FAILED, RETRY_UNKNOWN};
use crate::manager::Manager;

impl Manager {
    /// Looks all names up again and again, each at its interval.
    pub(crate) async fn follow_names(self: &Arc<Self>) {
        let mut tasks = Tasks::default();
        let mut changes = self.subscribe_changes();
        loop {
            let wanted = self.lock().state.inputs.host_names();
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
        if !inputs.host_names().contains_key(host) || inputs.addresses.get(host) == Some(&addresses)
        {
            return;
        }
        let mut inputs = inputs.clone();
        info!(host, ?addresses, "a member's name has new addresses");
        inputs.addresses.insert(host.to_owned(), addresses);
        if let Err(error) = self.apply_change(&mut owned.state, inputs) {
            warn!(
                host,
                "the new addresses of the member's name are not used: {error}"
            );
        }
    }
}

/// Looks a name up again at `interval`, or else as its TTL has it.
async fn follow(manager: Arc<Manager>, host: String, interval: Option<Duration>) {
    let mut failing = false;
    let mut due = interval;
    loop {
        let (known, dns) = {
            let owned = manager.lock();
            let inputs = &owned.state.inputs;
            (
                inputs.addresses.contains_key(&host),
                inputs.config.dns.clone(),
            )
        };
        let wait = match (known, due) {
            // Up to a tenth earlier or later, so that names which were configured together
            // are not looked up together for ever.
            (true, Some(due)) => due.mul_f32(0.9 + 0.2 * fastrand::f32()),
            // How long counts what is known is not known.
            (true, None) => dns.min_ttl,
            (false, due) => due.unwrap_or(FAILED).min(RETRY_UNKNOWN),
        };
        tokio::time::sleep(wait).await;
        due = match manager.resolver.addresses(&dns, &host).await {
            Ok(found) => {
                manager.resolved(&host, found.ips);
                failing = false;
                let ttl = || Some(found.ttl.map_or(FAILED, |ttl| dns.bounded(ttl)));
                interval.or_else(ttl)
            }
            Err(error) => {
                if !failing {
                    warn!(
                        host,
                        "a member's name does not resolve: {error}; the member keeps the addresses that it has"
                    );
                }
                failing = true;
                interval.or(Some(FAILED))
            }
        };
    }
}

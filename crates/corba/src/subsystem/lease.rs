//! The lease by which a balancer serves, and its renewal.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_net::Clock;
use evenkeel_store::etcd::{Etcd, EtcdError, Keys};
use tokio::time::{sleep, timeout};

use super::standby::{View, lock};
use crate::tenure::{ServingRight, due_after, end_after};

/// Pause between two tries to renew the lease.
pub(super) const AGAIN: Duration = Duration::from_millis(200);

/// A lease that is renewed.
pub(super) struct Lease {
    pub(super) etcd: Etcd,
    pub(super) key: String,
    pub(super) id: i64,
    pub(super) revision: i64,
    pub(super) tenure: Arc<ServingRight>,
    pub(super) clock: Clock,
    pub(super) view: Arc<Mutex<View>>,
}

impl Lease {
    /// Renews the lease until that fails; the right has ended then.
    pub(super) async fn renew(mut self, mut at: evenkeel_core::time::Instant) {
        let mut problem = String::from("the store does not answer");
        loop {
            sleep(at.since(self.clock.now())).await;
            let sent = self.clock.now();
            let left = self.tenure.valid_until().since(sent);
            if left.is_zero() {
                let why =
                    format!("the store has not renewed this balancer's lease in time: {problem}");
                return self.tenure.end_now(&why);
            }
            let renewed = match timeout(left, self.renew_once()).await {
                Ok(renewed) => renewed,
                Err(_) => continue,
            };
            match renewed {
                Ok(true) => {
                    self.tenure.renew(end_after(sent), self.clock.now());
                    at = due_after(sent);
                    lock(&self.view).problem = None;
                }
                Ok(false) => {
                    return self.tenure.end_now(
                        "the lease of this balancer in the store has ended, or the key of the \
                            owner was removed",
                    );
                }
                Err(error) => {
                    problem = error.to_string();
                    lock(&self.view).problem = Some(format!(
                        "the store does not renew the lease, so this balancer will stand by: \
                         {problem}"
                    ));
                    at = self.clock.now().after(AGAIN);
                }
            }
        }
    }

    /// Renews the lease; answers whether it and the key are still there.
    async fn renew_once(&mut self) -> Result<bool, EtcdError> {
        if !self.etcd.keep_alive(self.id).await? {
            return Ok(false);
        }
        // Somebody may have removed it, or restored the store from a backup.
        let read = self.etcd.read(Keys::One(&self.key)).await?;
        let own = read.entries.first().map(|entry| entry.changed);
        Ok(own == Some(self.revision))
    }
}

//! TLS to members: what groups need for it, and what came of it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_core::member::{Member, MemberId};
use evenkeel_core::tally::Tally;
use evenkeel_core::time::Instant;
use evenkeel_limits::Throttle;
use evenkeel_tls::client::Client;
use evenkeel_tls::connect::{Cause, Failure};

use crate::config::{Problem, SharedGroup};

/// TLS clients for groups whose members speak TLS, by the groups' names.
pub type Clients = HashMap<String, Arc<Client>>;

/// Most members of which it is kept why there was no TLS.
const MAX_FAILED: usize = 1024;

/// Reads the files that `member_tls` of `groups` names. If the section says the same as before, with the same
/// files, the client that is `known` stays, with its sessions and connections.
///
/// # Errors
///
/// All that is wrong, with the places in the configuration.
pub fn load(groups: &[SharedGroup], known: &Clients) -> Result<Clients, Vec<Problem>> {
    let (mut clients, mut errors) = (Clients::new(), Vec::new());
    for group in groups {
        let Some(tls) = &group.member_tls else {
            continue;
        };
        match Client::from_config(tls) {
            Ok(client) => {
                let known = known
                    .get(&group.name)
                    .filter(|known| known.is_like(&client));
                let client = known.cloned().unwrap_or_else(|| Arc::new(client));
                clients.insert(group.name.clone(), client);
            }
            Err(problems) => errors.extend(problems),
        }
    }
    match errors.is_empty() {
        true => Ok(clients),
        false => Err(errors),
    }
}

/// Results of handshakes with the members of a group.
#[derive(Default)]
pub struct Handshakes {
    full: AtomicU64,
    resumed: AtomicU64,
    failures: Tally<{ Cause::ALL.len() }>,
    /// The last failure of each member with which there was no handshake since.
    failed: Mutex<HashMap<MemberId, (Instant, Arc<str>)>>,
    throttle: Throttle,
}

impl fmt::Debug for Handshakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes").finish_non_exhaustive()
    }
}

impl Handshakes {
    fn failed(&self) -> MutexGuard<'_, HashMap<MemberId, (Instant, Arc<str>)>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handshake went well.
    pub fn count_success(&self, member: MemberId, resumed: bool) {
        let count = if resumed { &self.resumed } else { &self.full };
        count.fetch_add(1, Ordering::Relaxed);
        self.failed().remove(&member);
    }

    /// A handshake has failed. The log says why, now and then.
    pub fn failed_with(&self, group: &str, member: &Member, failure: &Failure, now: Instant) {
        self.failures.count_at(failure.cause as usize);
        {
            let mut failed = self.failed();
            if failed.len() >= MAX_FAILED {
                failed.clear();
            }
            failed.insert(member.id, (now, failure.to_string().into()));
        }
        if let Some(left_out) = self.throttle.allow_line() {
            let (name, address) = (&member.name, &member.address);
            let member_name = member.given_name.as_deref();
            let cause = failure.cause.name();
            tracing::warn!(group, member = %name, member_name, %address, cause, left_out, "{failure}");
        }
    }

    /// Returns when and why the last handshake with a member failed, if it did.
    pub fn last_failure(&self, member: MemberId) -> Option<(Instant, Arc<str>)> {
        self.failed().get(&member).cloned()
    }

    /// Handshakes that went well: full ones, and resumed ones.
    pub fn success_counts(&self) -> [u64; 2] {
        [&self.full, &self.resumed].map(|count| count.load(Ordering::Relaxed))
    }

    /// Handshakes that failed, by cause.
    pub fn failures(&self) -> impl Iterator<Item = (Cause, u64)> {
        self.failures.totals_by_kind(&Cause::ALL)
    }
}

//! Events about Ingresses, which have no conditions: written once for each change, at a bounded rate.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_tls::certificate::unix_now;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::warn;

use super::conditions::format_time;
use super::ingress::Notice;
use super::leader::{Term, is_leading};
use super::objects::INGRESS_GROUP;
use super::text::hash_of;
use crate::api::{Api, status_of};
use crate::watcher::{Pace, refusal_of};

/// Pause between two events.
const PAUSE: Duration = Duration::from_millis(200);

/// Longest message of an event; the API server has the same bound.
const MAX_MESSAGE: usize = 1_024;

/// Reports that people are to know.
pub(crate) type Notices = watch::Receiver<Arc<Vec<Notice>>>;

/// Writer of events.
pub(crate) struct EventWriter {
    pub(crate) api: Arc<Api>,
    /// Name of the controller.
    pub(crate) controller: String,
    /// Name of the balancer.
    pub(crate) node: String,
    /// Term of this balancer as the leader; `None` if each balancer writes.
    pub(crate) term: Option<Term>,
}

/// Returns a number that stands for a report: the same report has the same one in each process.
fn key_of(notice: &Notice) -> u64 {
    hash_of(&(&notice.uid, &notice.object, notice.reason, &notice.message))
}

/// Returns the beginning of a message.
fn shorten(message: &str) -> &str {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let mut end = MAX_MESSAGE;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.get(..end).unwrap_or_default()
}

/// Writes an event as the API server takes one. Its name is that of the report, so that a report of several balancers,
/// or of a process and the next one, is one event.
fn write_event(notice: &Notice, controller: &str, node: &str, now: &str) -> Value {
    let name: String = notice.object.name.chars().take(200).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{}.{:016x}", name.trim_end_matches(['.', '-']), key_of(notice)),
            "namespace": notice.object.namespace,
        },
        "involvedObject": {
            "apiVersion": format!("{INGRESS_GROUP}/v1"),
            "kind": "Ingress",
            "namespace": notice.object.namespace,
            "name": notice.object.name,
            "uid": notice.uid,
        },
        "type": "Warning",
        "reason": notice.reason,
        "message": shorten(&notice.message),
        "source": { "component": controller },
        "reportingComponent": controller,
        "reportingInstance": node,
        "action": "Serve",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
    })
}

impl EventWriter {
    /// Writes events for as long as somebody has any.
    pub(crate) async fn run(mut self, mut notices: Notices) {
        // Reports that are logged, and those of which there are events.
        let (mut logged, mut written) = (HashSet::new(), HashSet::new());
        let (mut pace, mut told) = (Pace::default(), false);
        while notices.changed().await.is_ok() {
            loop {
                if let Some(term) = &mut self.term {
                    // A candidate that is gone ends with this task.
                    let _ = term.wait_for(is_leading).await;
                }
                let all = Arc::clone(&notices.borrow_and_update());
                let keys: HashSet<u64> = all.iter().map(key_of).collect();
                logged.retain(|key| keys.contains(key));
                written.retain(|key| keys.contains(key));
                for notice in all.iter().filter(|of| logged.insert(key_of(of))) {
                    let (object, reason) = (&notice.object, notice.reason);
                    warn!(
                        "gateways: Ingress {object}: {reason}: {}",
                        shorten(&notice.message)
                    );
                }
                let Some(notice) = all.iter().find(|of| !written.contains(&key_of(of))) else {
                    break;
                };
                match self.write(notice).await {
                    Ok(()) => {
                        written.insert(key_of(notice));
                        pace = Pace::default();
                        sleep(PAUSE).await;
                    }
                    Err(message) => {
                        if !std::mem::replace(&mut told, true) {
                            warn!("gateways: events about Ingresses cannot be written: {message}");
                        }
                        sleep(pace.pause_after_failure(None, fastrand::f32())).await;
                    }
                }
            }
        }
    }

    /// Writes an event.
    ///
    /// # Errors
    ///
    /// The API server takes no events now. What it refuses for good counts as written.
    async fn write(&self, notice: &Notice) -> Result<(), String> {
        let now = format_time(unix_now());
        let event = write_event(notice, &self.controller, &self.node, &now);
        let target = format!("/api/v1/namespaces/{}/events", notice.object.namespace);
        let answer = self.api.create(&target, &event.to_string()).await;
        let answer = answer.map_err(|fault| fault.message)?;
        match answer.code {
            401 | 403 | 429 | 500.. => Err(refusal_of(&status_of(&answer)).message),
            // The event is there, or the Ingress is gone.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::ObjectName;
    use super::*;

    fn notice(message: &str) -> Notice {
        Notice {
            object: ObjectName::new("shop", "web"),
            uid: "u".into(),
            reason: "Closed",
            message: message.into(),
        }
    }

    #[test]
    fn a_report_has_one_event() {
        let write = |notice: &Notice| write_event(notice, "c", "n", "T");
        let first = write(&notice("a"));
        let name = first["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("web.") && name.len() == 20, "{name}");
        assert_eq!(write(&notice("a"))["metadata"], first["metadata"]);
        assert_ne!(write(&notice("b"))["metadata"], first["metadata"]);
        let long = write(&notice(&"é".repeat(1_000)));
        assert_eq!(long["message"].as_str().unwrap().len(), MAX_MESSAGE);
    }
}

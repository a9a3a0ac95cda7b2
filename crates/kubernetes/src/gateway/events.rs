//! Events about objects that cannot be served as they are written: written once for each change, at a bounded rate.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_tls::certificate::unix_now;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::conditions::format_time;
use super::ingress::Notice;
use super::leader::{Term, is_leading};
use super::notices::StatusNotices;
use super::objects::Kind;
use super::status_list::StatusList;
use super::text::hash_of;
use super::world::World;
use crate::api::{Api, status_of};
use crate::list::Fault;
use crate::watcher::{Pace, refusal_of};

/// Pause between two events.
const PAUSE: Duration = Duration::from_millis(200);

/// Longest message of an event; the API server has the same bound.
const MAX_MESSAGE: usize = 1_024;

/// Facts that people are to know.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Reports about Ingresses and Services, which have no conditions.
    pub(crate) notices: Vec<Notice>,
    /// Statuses of all objects.
    pub(crate) statuses: StatusList,
}

/// Writer of events.
pub(crate) struct EventWriter {
    pub(crate) api: Arc<Api>,
    pub(crate) world: Arc<World>,
    /// Name of the controller of gateways.
    pub(crate) controller: String,
    /// Name of the controller of Ingresses.
    pub(crate) ingress_controller: String,
    /// Name of the balancer.
    pub(crate) node: String,
    /// Term of this balancer as the leader; `None` if each balancer writes.
    pub(crate) term: Option<Term>,
}

/// Returns a number that stands for a report: the same report has the same one in each process.
fn key_of(notice: &Notice) -> u64 {
    let of = notice;
    hash_of(&(&of.uid, of.kind, &of.object, of.reason, &of.message))
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
fn write_event(
    notice: &Notice,
    api_version: &str,
    controller: &str,
    node: &str,
    now: &str,
) -> Value {
    let name: String = notice.object.name.chars().take(200).collect();
    let api_version = match notice.kind.api_group() {
        "" => api_version.to_owned(),
        group => format!("{group}/{api_version}"),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{}.{:016x}", name.trim_end_matches(['.', '-']), key_of(notice)),
            "namespace": notice.object.namespace,
        },
        "involvedObject": {
            "apiVersion": api_version,
            "kind": notice.kind.name(),
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

/// Logs reports that are new. People read those about gateways and routes in conditions, so the log has them for those
/// who look closely.
fn log_new(notices: &[(u64, Notice)], logged: &mut HashSet<u64>) {
    for (_, notice) in notices.iter().filter(|(key, _)| logged.insert(*key)) {
        let (kind, object, reason) = (notice.kind.name(), &notice.object, notice.reason);
        // A line of the log stays a line, whatever the object has in it.
        let message = shorten(&notice.message).replace(char::is_control, " ");
        match notice.kind {
            Kind::Ingress | Kind::Service => {
                warn!("gateways: {kind} {object}: {reason}: {message}")
            }
            _ => debug!("gateways: {kind} {object}: {reason}: {message}"),
        }
    }
}

/// Returns the next report that is to be written: one of a namespace with the fewest events so far, so that many reports of
/// one namespace do not keep those of others waiting. `counts` has the numbers of events.
fn find_next<'n>(
    all: &'n [(u64, Notice)],
    written: &HashSet<u64>,
    counts: &HashMap<String, usize>,
) -> Option<&'n (u64, Notice)> {
    let open = all.iter().filter(|(key, _)| !written.contains(key));
    open.min_by_key(|(_, of)| {
        let count = counts.get(&of.object.namespace);
        count.copied().unwrap_or_default()
    })
}

impl EventWriter {
    /// Writes events for as long as somebody has facts.
    pub(crate) async fn run(mut self, mut facts: watch::Receiver<Arc<Facts>>) {
        // Reports that are logged, and those of which there are events.
        let (mut logged, mut written) = (HashSet::new(), HashSet::new());
        let mut of_statuses = StatusNotices::default();
        let (mut pace, mut told) = (Pace::default(), false);
        while facts.changed().await.is_ok() {
            let mut all: Vec<(u64, Notice)> = Vec::new();
            let mut counts = HashMap::new();
            let mut is_read = false;
            loop {
                if let Some(term) = &mut self.term {
                    // A candidate that is gone ends with this task.
                    let _ = term.wait_for(is_leading).await;
                }
                if !is_read || facts.has_changed().unwrap_or(false) {
                    let known = Arc::clone(&facts.borrow_and_update());
                    let notices = self.list_notices(&known, &mut of_statuses);
                    all = { notices.into_iter() }
                        .map(|notice| (key_of(&notice), notice))
                        .collect();
                    is_read = true;
                    let keys: HashSet<u64> = all.iter().map(|(key, _)| *key).collect();
                    logged.retain(|key| keys.contains(key));
                    written.retain(|key| keys.contains(key));
                    log_new(&all, &mut logged);
                }
                let Some((key, notice)) = find_next(&all, &written, &counts) else {
                    break;
                };
                match self.write(notice).await {
                    Ok(()) => {
                        written.insert(*key);
                        let namespace = notice.object.namespace.clone();
                        *counts.entry(namespace).or_default() += 1;
                        pace.note_success();
                        sleep(PAUSE).await;
                    }
                    Err(fault) => {
                        if !std::mem::replace(&mut told, true) {
                            warn!("gateways: events cannot be written: {}", fault.message);
                        }
                        sleep(pace.pause_after_failure(fault.retry_after, fastrand::f32())).await;
                    }
                }
            }
        }
    }

    /// Returns all reports: those about Ingresses and Services, and those that statuses have.
    fn list_notices(&self, facts: &Facts, of_statuses: &mut StatusNotices) -> Vec<Notice> {
        let mut all = facts.notices.clone();
        all.extend(of_statuses.list(&facts.statuses, |kind, name| {
            let reported = self.world.find_status(kind, name)?;
            Some(reported.uid.into())
        }));
        all
    }

    /// Writes an event.
    ///
    /// # Errors
    ///
    /// The API server takes no events now. What it refuses for good counts as written.
    async fn write(&self, notice: &Notice) -> Result<(), Fault> {
        let now = format_time(unix_now());
        let version = self.world.version_of(notice.kind);
        let version = version.as_deref().unwrap_or("v1");
        let controller = match notice.kind {
            Kind::Ingress => &self.ingress_controller,
            _ => &self.controller,
        };
        let event = write_event(notice, version, controller, &self.node, &now);
        let target = format!("/api/v1/namespaces/{}/events", notice.object.namespace);
        let answer = self.api.create(&target, &event.to_string()).await?;
        match answer.code {
            401 | 403 | 429 | 500.. => Err(refusal_of(&status_of(&answer))),
            // The event is there, or the object is gone.
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
            kind: Kind::HttpRoute,
            object: ObjectName::new("shop", "web"),
            uid: "u".into(),
            reason: "Closed",
            message: message.into(),
        }
    }

    #[test]
    fn many_reports_of_a_namespace_do_not_keep_others_waiting() {
        let of = |namespace: &str, number: u64| {
            let object = ObjectName::new(namespace, "web");
            let notice = Notice {
                object,
                ..notice(&number.to_string())
            };
            (number, notice)
        };
        let mut all: Vec<_> = (0..100).map(|number| of("flood", number)).collect();
        all.extend([of("shop", 100), of("shop", 101)]);
        let (mut written, mut counts) = (HashSet::new(), HashMap::new());
        let mut order = Vec::new();
        while let Some((key, notice)) = find_next(&all, &written, &counts) {
            written.insert(*key);
            let namespace = notice.object.namespace.clone();
            *counts.entry(namespace).or_default() += 1;
            order.push(*key);
        }
        assert_eq!(order[..6], [0, 100, 1, 101, 2, 3]);
        assert_eq!(order.len(), all.len());
    }

    #[test]
    fn a_report_has_one_event() {
        let write = |notice: &Notice| write_event(notice, "v1", "c", "n", "T");
        let first = write(&notice("a"));
        let involved = &first["involvedObject"];
        assert_eq!(involved["apiVersion"], "gateway.networking.k8s.io/v1");
        assert_eq!(involved["kind"], "HTTPRoute");
        let of_service = Notice {
            kind: Kind::Service,
            ..notice("a")
        };
        let version = write(&of_service)["involvedObject"]["apiVersion"].clone();
        assert_eq!(version, "v1");
        let name = first["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("web.") && name.len() == 20, "{name}");
        assert_eq!(write(&notice("a"))["metadata"], first["metadata"]);
        assert_ne!(write(&notice("b"))["metadata"], first["metadata"]);
        let long = write(&notice(&"é".repeat(1_000)));
        assert_eq!(long["message"].as_str().unwrap().len(), MAX_MESSAGE);
    }
}

//! Zone of the node on which the balancer's pod runs: the zone of the balancer, if `[node]` sets none.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_config::{Kubernetes, Node, is_name};
use evenkeel_manager::Manager;
use evenkeel_manager::service::{Service, StartError, Work};
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, PrepareErrors, Subsystem};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::api::{Api, status_of};
use crate::environment::Environment;
use crate::last_copy::LastCopy;
use crate::list::Fault;
use crate::pod::ZONE;
use crate::subsystem::{find_api, is_used};
use crate::watcher::{Pace, refusal_of};

/// Finder of the zone. A node stays in its zone, so the API server is asked until it has answered once. Clones are the same.
#[derive(Clone, Debug)]
pub struct NodeZone {
    inner: Arc<Inner>,
    copy: LastCopy,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Question that the configuration in effect wants answered.
    question: Option<NodeQuestion>,
    /// True if the API server has answered.
    is_answered: bool,
}

/// Question about a node.
#[derive(Clone, Debug)]
struct NodeQuestion {
    api: Arc<Api>,
    node: String,
}

impl NodeQuestion {
    /// Asks for the zone of the node; `None` if the node has none.
    async fn ask(&self) -> Result<Option<String>, Fault> {
        let answer = self
            .api
            .get(&format!("/api/v1/nodes/{}", self.node))
            .await?;
        match answer.code {
            200 => read_zone(&answer.body).map_err(|error| {
                Fault::new(format!("the API server's answer is no node: {error}"))
            }),
            _ => Err(refusal_of(&status_of(&answer))),
        }
    }
}

/// Part of a node that names the zone.
#[derive(Deserialize)]
struct NodeObject {
    metadata: NodeMetadata,
}

#[derive(Deserialize)]
struct NodeMetadata {
    #[serde(default)]
    labels: HashMap<String, String>,
}

/// Reads the zone of a node; `None` if the node has none, or a name that no zone may have.
fn read_zone(body: &[u8]) -> Result<Option<String>, serde_json::Error> {
    let mut node: NodeObject = serde_json::from_slice(body)?;
    let zone = node.metadata.labels.remove(ZONE);
    Ok(zone.filter(|zone| is_name(zone)))
}

/// True if a text may be the name of a node, which stands in the path of a question.
fn is_node_name(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

impl NodeZone {
    /// Makes a finder that begins with the zone of the last good copy while the API server is away.
    pub(crate) fn new(copy: LastCopy) -> Self {
        NodeZone {
            inner: Arc::default(),
            copy,
        }
    }

    /// Tells the manager of the zone of the last good copy.
    async fn use_copy(&self, manager: &Manager) {
        let Some(copy) = self.copy.load_for_effect().await else {
            return;
        };
        let zone = copy.zone.as_ref().filter(|zone| is_name(zone));
        if let Some(zone) = zone
            && manager.set_found_zone(zone.to_string()).await.is_ok()
        {
            self.copy.log_use(
                &format!("the balancer is in zone {zone}, the zone"),
                copy.at,
            );
        }
    }

    /// Asks once, and tells the manager of the zone.
    async fn find_zone(&self, question: &NodeQuestion, manager: &Manager) -> Result<(), Fault> {
        let node = &question.node;
        match question.ask().await? {
            Some(zone) => {
                let set = manager.set_found_zone(zone.clone()).await;
                set.map_err(|error| {
                    Fault::new(format!("zone {zone} cannot be put into effect: {error}"))
                })?;
                info!("the balancer is in zone {zone}, as its node {node} is");
            }
            None => info!("node {node} has no label {ZONE}: the balancer is in no zone"),
        }
        self.inner.state.lock().is_answered = true;
        Ok(())
    }

    /// Asks until there is an answer.
    async fn ask_until_answered(self, manager: Arc<Manager>) {
        let mut pace = Pace::default();
        let mut told = String::new();
        loop {
            let question = {
                let state = self.inner.state.lock();
                if state.is_answered {
                    return;
                }
                state.question.clone()
            };
            let Some(question) = question else {
                self.inner.changed.notified().await;
                continue;
            };
            let Err(fault) = self.find_zone(&question, &manager).await else {
                continue;
            };
            if told != fault.message {
                warn!(
                    "the zone of node {} is not known, so that no zone comes first: {}; give the balancer the right to get \
                     nodes, or set zone in [node]",
                    question.node, fault.message
                );
                told.clone_from(&fault.message);
            }
            sleep(pace.pause_after_failure(fault.retry_after, fastrand::f32())).await;
        }
    }
}

impl Service for NodeZone {
    fn start(&self, manager: &Arc<Manager>) -> Work<Result<(), StartError>> {
        let question = self.inner.state.lock().question.clone();
        let (this, manager) = (self.clone(), Arc::clone(manager));
        Box::pin(async move {
            if let Some(question) = question {
                // If there is no answer, `run` asks again, and tells why.
                let asked = this.find_zone(&question, &manager);
                let found = this.copy.wait_for_answer(asked).await;
                if !matches!(found, Some(Ok(()))) && manager.found_zone().is_none() {
                    this.use_copy(&manager).await;
                }
            }
            Ok(())
        })
    }

    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        Box::pin(self.clone().ask_until_answered(manager))
    }
}

impl Subsystem for NodeZone {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        if !next.reload || self.inner.state.lock().is_answered {
            return Ok(Box::new(|| ()));
        }
        let section = next.section::<Kubernetes>();
        let has_zone = next.section::<Node>().is_some_and(|of| of.zone.is_some());
        let node = Environment::of_process().node;
        let node = node.filter(|node| !has_zone && is_node_name(node));
        let before = self.inner.state.lock().question.clone();
        let question = section.filter(|of| is_used(of)).zip(node);
        let question = question.and_then(|(section, node)| {
            // An error is one of members, too, and is told there.
            let api = find_api(section, before.as_ref().map(|of| &of.api)).ok()?;
            Some(NodeQuestion { api, node })
        });
        let this = self.clone();
        Ok(Box::new(move || {
            this.inner.state.lock().question = question;
            this.inner.changed.notify_one();
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zone_is_a_label_of_the_node() {
        let read = |labels: &str| {
            let text = format!("{{\"kind\":\"Node\",\"metadata\":{{\"name\":\"a\"{labels}}}}}");
            read_zone(text.as_bytes()).unwrap()
        };
        let label = |zone: &str| format!(",\"labels\":{{\"a\":\"b\",\"{ZONE}\":\"{zone}\"}}");
        assert_eq!(read(&label("eu-1a")).as_deref(), Some("eu-1a"));
        for labels in [
            "",
            ",\"labels\":{}",
            &label(""),
            &label("a b"),
            &label(&"a".repeat(65)),
        ] {
            assert_eq!(read(labels), None, "{labels}");
        }
        for text in ["", "[]", "{}", "{\"metadata\":{\"labels\":[1]}}"] {
            assert!(read_zone(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_nodes_are_those_of_domains() {
        assert!(is_node_name("ip-10-0-0-1.eu.internal"));
        for name in ["", "a/b", "a?b", "a b", "a%2fb", &"a".repeat(254)] {
            assert!(!is_node_name(name), "{name}");
        }
    }
}

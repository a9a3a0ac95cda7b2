//! Supervisor of one cluster: answers the cluster's clients, and keeps a server at hand for them.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_config::Origin;
use evenkeel_config::engine::EngineCluster;
use evenkeel_core::time::Instant;
use evenkeel_net::Clock;
use evenkeel_net::http::answer::{self, Freshness};
use evenkeel_net::http::{Answer, Handler, Head, Target};
use hyper::header::RETRY_AFTER;
use hyper::{Method, StatusCode};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tracing::{debug, info, warn};

use crate::broker::{Brokers, Question, Refusal, Reply};
use crate::state::{ClusterState, EngineServer, Now};

/// Supervisor of one cluster. Its negotiations happen one at a time, in [`Supervisor::run`]; clients that
/// need a negotiation wait for it together.
#[derive(Debug)]
pub(crate) struct Supervisor {
    cluster: EngineCluster,
    brokers: Rc<Brokers>,
    clock: Clock,
    state: RefCell<ClusterState>,
    rng: RefCell<fastrand::Rng>,
    /// Told when a client waits, or the cluster comes into use.
    wanted: Notify,
    /// Counts the negotiations that are over.
    turns: watch::Sender<u64>,
    /// Reason why the last negotiation has bound nobody, if a broker gives one.
    refusal: RefCell<Option<Refusal>>,
}

/// Action that is due next.
enum Due {
    Negotiation,
    Probe,
}

impl Supervisor {
    pub(crate) fn new(cluster: EngineCluster, brokers: Rc<Brokers>, clock: Clock) -> Self {
        Supervisor {
            state: RefCell::new(ClusterState::new(&cluster.name, cluster.stale_for)),
            cluster,
            brokers,
            clock,
            rng: RefCell::new(fastrand::Rng::new()),
            wanted: Notify::new(),
            turns: watch::Sender::new(0),
            refusal: RefCell::default(),
        }
    }

    /// Negotiates and probes when it is time to, for ever.
    pub(crate) async fn run(self: Rc<Self>) {
        let mut last_probe = self.clock.now();
        loop {
            match self.next(last_probe).await {
                Due::Negotiation => self.negotiate().await,
                Due::Probe => {
                    self.probe().await;
                    last_probe = self.clock.now();
                }
            }
        }
    }

    async fn next(&self, last_probe: Instant) -> Due {
        loop {
            let now = self.clock.now();
            let (negotiation, probe) = {
                let state = self.state.borrow();
                let in_use = state.is_in_use(now) && state.server_in_use().is_some();
                let probe = last_probe.after(self.cluster.probe_interval);
                (state.next_negotiation(now), in_use.then_some(probe))
            };
            let next = match (negotiation, probe) {
                (Some(negotiation), Some(probe)) if probe < negotiation => (probe, Due::Probe),
                (Some(negotiation), _) => (negotiation, Due::Negotiation),
                (None, Some(probe)) => (probe, Due::Probe),
                (None, None) => {
                    self.wanted.notified().await;
                    if self.is_waited_for() {
                        return Due::Negotiation;
                    }
                    continue;
                }
            };
            let (at, due) = next;
            tokio::select! {
                () = tokio::time::sleep(at.since(now)) => return due,
                () = self.wanted.notified() => {
                    if self.is_waited_for() {
                        return Due::Negotiation;
                    }
                }
            }
        }
    }

    /// True if a client needs a negotiation, and the negotiation may begin.
    fn is_waited_for(&self) -> bool {
        // Whoever waits watches the turns.
        self.turns.receiver_count() > 0 && self.state.borrow().may_negotiate(self.clock.now())
    }

    async fn negotiate(&self) {
        let question = {
            let state = self.state.borrow();
            let avoid = state.avoid(self.clock.now());
            Question {
                cluster: self.cluster.name.clone(),
                class: self.cluster.class.clone(),
                response_time: self.cluster.response_time,
                session: state.session().map(str::to_owned),
                avoid: avoid.into_iter().map(str::to_owned).collect(),
                current: state.server_in_use().map(|place| place.name.clone()),
            }
        };
        let name = &self.cluster.name;
        let asked = self
            .brokers
            .ask_brokers(&question, || self.clock.now())
            .await;
        let now = self.clock.now();
        let mut why_not = None;
        let answered = match asked {
            Ok(Reply::Bound(binding)) => {
                let before = self.state.borrow().server_in_use().cloned();
                match self.state.borrow_mut().apply_binding(&binding, now) {
                    Ok(()) => {
                        let (server, seconds) = (&binding.server.url, binding.quantum_seconds);
                        if before.is_some_and(|before| before.name == binding.server.name) {
                            debug!(
                                cluster = name,
                                server, seconds, "the broker renews the binding to the server"
                            )
                        } else {
                            info!(
                                cluster = name,
                                server, seconds, "the broker binds the cluster to the server"
                            )
                        }
                        true
                    }
                    Err(error) => {
                        warn!(cluster = name, %error, "a broker's answer is not valid");
                        false
                    }
                }
            }
            Ok(Reply::Refused(after, refusal)) => {
                info!(
                    cluster = name,
                    ?after,
                    why = refusal.detail,
                    "the broker refuses to name a server"
                );
                why_not = Some(refusal);
                self.state.borrow_mut().note_refusal(after, now);
                true
            }
            Err(failures) => {
                for (broker, error) in failures {
                    warn!(cluster = name, broker, %error, "the broker gives no answer that can be used");
                }
                false
            }
        };
        *self.refusal.borrow_mut() = why_not;
        if !answered {
            let rng = &mut self.rng.borrow_mut();
            self.state.borrow_mut().note_silence(now, rng);
        }
        let left = self.state.borrow().needs_another(now);
        if left {
            self.fall_back().await;
        }
        self.turns
            .send_modify(|turns| *turns = turns.wrapping_add(1));
    }

    /// Takes another server that was known, if it accepts connections, when the server in use is dead and no
    /// broker gives another one.
    async fn fall_back(&self) {
        let candidates = self.state.borrow().candidates(self.clock.now());
        for place in candidates {
            let accepts = accepts(&place.origin, self.cluster.probe_timeout).await;
            let now = self.clock.now();
            if accepts {
                let (name, server) = (&self.cluster.name, place.origin.as_str());
                info!(
                    cluster = name,
                    server, "no broker names a server: another known server is used meanwhile"
                );
                return self.state.borrow_mut().fall_back(place, now);
            }
            self.state.borrow_mut().server_failed(&place.name, now);
        }
    }

    /// Looks whether the server in use accepts connections. A single refusal may be bad luck.
    async fn probe(&self) {
        let Some(place) = self.state.borrow().server_in_use().cloned() else {
            return;
        };
        for _ in 0..2 {
            if accepts(&place.origin, self.cluster.probe_timeout).await {
                return;
            }
        }
        let (name, server) = (&self.cluster.name, place.origin.as_str());
        let now = self.clock.now();
        if !self.state.borrow().needs_another(now) {
            warn!(
                cluster = name,
                server, "the server in use does not accept connections"
            );
        }
        self.state.borrow_mut().server_failed(&place.name, now);
        // Otherwise a negotiation is due.
        let is_paused = !self.state.borrow().may_negotiate(now);
        if is_paused {
            self.fall_back().await;
        }
    }

    /// Returns what a client gets, after a negotiation if need be.
    async fn decide(&self) -> Now {
        let now = self.clock.now();
        let was_in_use = self.state.borrow().is_in_use(now);
        // Before the question, so that no turn is missed.
        let mut turns = self.turns.subscribe();
        let decided = self.state.borrow_mut().answer_client(now);
        if decided != Now::Wait {
            drop(turns);
            if !was_in_use {
                self.wanted.notify_one();
            }
            return decided;
        }
        self.wanted.notify_one();
        // A turn that is under way may have begun with another question; its answer is as
        // good.
        let patience = self.brokers.patience() + self.cluster.probe_timeout * 8;
        let _ = tokio::time::timeout(patience, turns.changed()).await;
        self.state.borrow_mut().after_waiting(self.clock.now())
    }

    fn redirect(&self, place: &EngineServer, target: &Target, rest: Duration) -> Answer {
        let seconds = rest.min(self.cluster.redirect_max_age).as_secs();
        let origin = place.origin.as_str();
        answer::redirect(origin, &target.path_and_query, Freshness::Seconds(seconds))
    }
}

impl Handler for Supervisor {
    async fn answer(&self, head: Head, client: SocketAddr) -> Answer {
        let target = match Target::from_head(&head) {
            Ok(target) => target,
            Err(error) => {
                debug!(%client, %error, "a request of a client cannot be read");
                let detail = error.to_string();
                return answer::error(error.status(), "malformed", &detail, Vec::new());
            }
        };
        if target.path_and_query == "*" {
            return answer::empty(StatusCode::NO_CONTENT);
        }
        if matches!(head.method, Method::CONNECT | Method::TRACE) {
            let detail = format!("the engine does not support {}", head.method);
            return answer::error(StatusCode::NOT_IMPLEMENTED, "method", &detail, Vec::new());
        }
        match self.decide().await {
            Now::Use(place, rest) => self.redirect(&place, &target, rest),
            Now::Refused(after) => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let answer = match &*self.refusal.borrow() {
                    Some(Refusal { error, detail }) => {
                        answer::error(status, error, detail, Vec::new())
                    }
                    None => {
                        let name = &self.cluster.name;
                        let detail = format!("no server of cluster {name:?} is available now");
                        answer::error(status, "no_server", &detail, Vec::new())
                    }
                };
                let seconds = answer::retry_after_seconds(after).to_string();
                answer::with_field(answer, RETRY_AFTER, &seconds)
            }
            // It was waited for.
            Now::Wait => answer::empty(StatusCode::SERVICE_UNAVAILABLE),
        }
    }
}

/// True if a server accepts a connection.
async fn accepts(server: &Origin, timeout: Duration) -> bool {
    let connect = TcpStream::connect((server.host(), server.port()));
    matches!(tokio::time::timeout(timeout, connect).await, Ok(Ok(_)))
}

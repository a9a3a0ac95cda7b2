//! Task that keeps the lease of the balancer which writes statuses.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::election::{Election, LONGEST_PAUSE, Lease, PAUSE, Step};
use super::objects::ObjectName;
use crate::api::{Api, status_of};
use crate::list::Fault;
use crate::watcher::{Pace, refusal_of};

/// Leader as this balancer knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leader {
    /// Time until which this balancer is the leader; `None` if another one is.
    end: Option<Instant>,
    /// Name of the process that holds the lease.
    pub(crate) holder: Option<String>,
}

/// Leader, which may change.
pub(crate) type Term = watch::Receiver<Leader>;

/// Candidate for the lease.
pub(crate) struct Candidate {
    api: Arc<Api>,
    lease: ObjectName,
    election: Election,
    term: watch::Sender<Leader>,
    /// Failure that was told last.
    told: Option<String>,
}

/// Returns true if this balancer is the leader.
pub(crate) fn is_leading(leader: &Leader) -> bool {
    leader.end.is_some_and(|end| Instant::now() < end)
}

impl Candidate {
    /// Makes a candidate for a lease. `node` is the name of the balancer.
    pub(crate) fn new(api: Arc<Api>, lease: ObjectName, node: &str) -> (Self, Term) {
        // The process before, and balancers with the same name, are others.
        let identity = format!("{node}_{:016x}", fastrand::u64(..));
        let (term, receiver) = watch::channel(Leader::default());
        let candidate = Candidate {
            api,
            election: Election::new(lease.clone(), identity),
            lease,
            term,
            told: None,
        };
        (candidate, receiver)
    }

    /// Takes and renews the lease for as long as somebody wants to know who leads.
    pub(crate) async fn run(mut self) {
        let mut pace = Pace::between(2 * PAUSE, LONGEST_PAUSE);
        while !self.term.is_closed() {
            let was_leading = is_leading(&self.term.borrow());
            let pause = match self.ask().await {
                Ok(end) => {
                    self.told = None;
                    pace.note_success();
                    let is_leading = end.is_some();
                    if is_leading != was_leading {
                        let lease = &self.lease;
                        match is_leading {
                            true => info!(
                                "gateways: this balancer holds the lease {lease}, and writes statuses"
                            ),
                            false => info!(
                                "gateways: another balancer holds the lease {lease}, and writes statuses"
                            ),
                        }
                    }
                    let holder = match is_leading {
                        true => Some(self.election.identity()),
                        false => self.election.find_holder(),
                    };
                    let holder = holder.map(str::to_owned);
                    self.term.send_replace(Leader { end, holder });
                    PAUSE + Duration::from_millis(fastrand::u64(..500))
                }
                // The term goes on until its end: the next question may be answered.
                Err(fault) => {
                    if self.told.as_ref() != Some(&fault.message) {
                        warn!(
                            "gateways: the lease {} cannot be kept: {}",
                            self.lease, fault.message
                        );
                        self.told = Some(fault.message);
                    }
                    pace.pause_after_failure(fault.retry_after, fastrand::f32())
                }
            };
            sleep(pause).await;
        }
    }

    /// Looks at the lease, and takes or renews it. Returns the end of the term; `None` if another balancer holds the lease.
    async fn ask(&mut self) -> Result<Option<Instant>, Fault> {
        let leases = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            self.lease.namespace
        );
        let path = format!("{leases}/{}", self.lease.name);
        let answer = self.api.get(&path).await?;
        let lease =
            match answer.code {
                200 => {
                    let lease: Result<Lease, _> = serde_json::from_slice(&answer.body);
                    Some(lease.map_err(|error| {
                        Fault::new(format!("the lease cannot be read: {error}"))
                    })?)
                }
                404 => None,
                _ => return Err(refusal_of(&status_of(&answer))),
            };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let unix = since.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(0));
        let asked = Instant::now();
        let answer = match self.election.note_lease(lease, asked, unix) {
            Step::Create(object) => self.api.create(&leases, &object.to_string()).await?,
            Step::Change(patch) => self.api.patch(&path, &patch.to_string()).await?,
            Step::Wait => return Ok(None),
        };
        match answer.code {
            200..300 => Ok(Some(Election::end_of_term(asked))),
            // Another balancer was faster.
            409 => Ok(None),
            _ => Err(refusal_of(&status_of(&answer))),
        }
    }
}

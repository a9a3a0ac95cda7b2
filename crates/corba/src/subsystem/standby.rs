//! A balancer that stands by while another one serves, as the service sees it.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_net::Clock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tracing::error;

use crate::service::replica::Replica;
use crate::service::state::State;
use crate::tenure::ServingRight;

/// Longest time that a process waits for its service to end before it hands the lease over.
const HAND_OVER: Duration = Duration::from_secs(20);

/// Data that a process needs to go on as the owner in place of another one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ticket {
    pub(super) instance: String,
    pub(super) lease: i64,
    pub(super) revision: i64,
    /// End of the right to serve, in nanoseconds of the clock that both processes have.
    pub(super) until: u64,
    /// True if the state that is handed over is the one in the store.
    pub(super) has_state: bool,
}

impl Ticket {
    /// The right to serve, if it has not ended yet.
    pub(super) fn tenure(&self, clock: Clock) -> Option<Arc<ServingRight>> {
        let tenure = ServingRight::new(evenkeel_core::time::Instant::from_nanos(self.until));
        tenure.holds_at(clock.now()).then_some(tenure)
    }

    /// Revision of the store in which the owner's key was written.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }
}

/// A state with the right to serve it.
pub(super) struct Taken {
    pub(super) state: Arc<State>,
    pub(super) replica: Box<Replica>,
}

/// Order to the standby's thread.
pub(super) enum Order {
    /// The service is wanted: serve if nobody else does.
    Follow,
    /// The service is switched off: let others serve.
    Rest,
    /// Another process takes the place of this one; the answer is for that one.
    HandOver(SyncSender<Option<Ticket>>),
    /// End, and let others serve.
    End,
}

/// Standby status: the state of a balancer that shares a state with others.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct StandbyStatus {
    /// True if this balancer serves, false if it stands by.
    pub is_owner: bool,
    /// Name of the balancer that serves; `null` if it is not known, or none does.
    pub owner: Option<String>,
    /// Seconds for which this balancer has been serving or standing by.
    pub for_seconds: f64,
    /// Number of times that this process has taken over.
    pub takeovers: u64,
    /// Reason why this balancer cannot serve or stand by; `null` if it can.
    pub problem: Option<String>,
}

pub(super) struct View {
    pub(super) is_owner: bool,
    pub(super) owner: Option<String>,
    pub(super) since: Instant,
    pub(super) takeovers: u64,
    pub(super) problem: Option<String>,
}

/// The thread from outside.
pub(super) struct Standby {
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) view: Arc<Mutex<View>>,
    pub(super) handle: JoinHandle<()>,
}

pub(super) fn lock(view: &Mutex<View>) -> MutexGuard<'_, View> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Standby {
    /// Has it serve if nobody else does.
    pub(super) fn serve_if_free(&self) {
        let _ = self.orders.send(Order::Follow);
    }

    /// Has it serve no more.
    pub(super) fn stop_serving(&self) {
        let _ = self.orders.send(Order::Rest);
    }

    /// Returns how another process is to hand the lease over to the next one; blocks until it
    /// does not serve any more.
    pub(super) fn hand_over(&self) -> impl FnOnce() -> Option<Ticket> + use<> {
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        let _ = self.orders.send(Order::HandOver(answer));
        move || answered.recv_timeout(HAND_OVER).ok().flatten()
    }

    /// Ends it: then another balancer may serve.
    pub(super) fn end_and_join(self) {
        let _ = self.orders.send(Order::End);
        if self.handle.join().is_err() {
            error!("the thread that follows the owner of CORBA's load manager has panicked");
        }
    }

    pub(super) fn status(&self) -> StandbyStatus {
        let view = lock(&self.view);
        StandbyStatus {
            is_owner: view.is_owner,
            owner: view.owner.clone(),
            for_seconds: view.since.elapsed().as_secs_f64(),
            takeovers: view.takeovers,
            problem: view.problem.clone(),
        }
    }
}

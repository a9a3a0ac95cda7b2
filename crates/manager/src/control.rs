//! The control loop, and the tasks beside it: what happens without anybody asking.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::health;
use evenkeel_core::outlier::Event;
use evenkeel_core::time::Instant;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use crate::alerts;
use crate::manager::Manager;
use crate::state::GroupEntry;
use crate::status::History;

/// Time between two rounds of the control loop. Short against what people notice, and
/// long against what a round costs: about a quarter of a millisecond for 1,000 members.
const ROUND: Duration = Duration::from_millis(100);

/// Every so often the next decision of each group is traced, for whoever asks for the
/// last one. Tracing allocates, so not every decision is.
const TRACE_INTERVAL: Duration = Duration::from_secs(1);

impl Manager {
    /// Follows names, checks members and runs the control loop, as long as it is polled.
    ///
    /// Needs a tokio runtime with I/O and time; a single-threaded one is enough.
    pub async fn run(self: Arc<Self>) {
        tokio::join!(self.control(), self.follow_names(), self.check_members());
    }

    async fn control(&self) {
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due = Due::default();
        loop {
            rounds.tick().await;
            self.round(&mut due, self.clock().now());
        }
    }

    /// A round in which everything is due.
    #[cfg(test)]
    pub(crate) fn round_now(&self) {
        self.round_after(Duration::ZERO);
    }

    /// The same, as if so much later.
    #[cfg(test)]
    pub(crate) fn round_after(&self, time: Duration) {
        self.round(&mut Due::default(), self.clock().now().after(time));
    }

    /// One round: ejections, alerts, panic, slow start, and what is due.
    fn round(&self, due: &mut Due, now: Instant) {
        let trace = due.trace.is_due(now, TRACE_INTERVAL);
        let note = due.history.is_due(now, History::INTERVAL);
        let mut owned = self.lock();
        for entry in &mut owned.state.groups {
            eject(entry, now);
            alerts::raise(entry, now);
            let settings = entry.group.settings();
            let state = entry.group.state();
            let members = entry.group.members();
            let reasons = members.iter().map(|member| member.slot.reasons());
            let panic = health::panics(reasons, settings.panic_threshold);
            if state.set_panicking(panic) {
                let group = entry.group.name();
                match panic {
                    true => {
                        warn!(
                            %group,
                            "panic: too many members are down or ejected; all are routed to"
                        );
                        entry.handle.room.notify_waiters();
                    }
                    false => info!(%group, "panic is over"),
                }
            }
            if trace {
                state.want_trace();
            }
            for endpoint in &mut entry.endpoints {
                let slot = &endpoint.member.slot;
                if health::end_slow_start(slot, settings.slow_start, now) {
                    let (group, member) = (entry.group.name(), &endpoint.member.name);
                    debug!(%group, %member, "slow start is over");
                }
                if note || endpoint.history.is_empty() {
                    endpoint.history.note(slot, now);
                }
            }
        }
        if note {
            for location in owned.state.locations.values() {
                location.keep_age(now);
            }
        }
        // Groups share locations: one that must shed for any of them must shed.
        let alerted = alerts::alerted(&owned.state);
        for entry in &mut owned.state.groups {
            alerts::shed(entry, &alerted, now);
        }
        alerts::tell(&owned.state, &alerted);
    }
}

/// Ejects members that fail, and brings them back.
fn eject(entry: &mut GroupEntry, now: Instant) {
    let limit = entry.config.connection_failure_limit;
    for change in entry.outliers.tick(&entry.group, limit, now) {
        let (group, member) = (
            entry.group.name(),
            &entry.group.members()[change.index].name,
        );
        match change.event {
            Event::Ejected { cause, time } => {
                warn!(%group, %member, "member is ejected for {time:?}: {cause}");
            }
            Event::Returned => {
                info!(%group, %member, "member is no longer ejected");
                entry.handle.room.notify_waiters();
            }
        }
    }
}

/// What is not done in every round.
#[derive(Default)]
struct Due {
    trace: Timer,
    history: Timer,
}

#[derive(Default)]
struct Timer(Option<Instant>);

impl Timer {
    fn is_due(&mut self, now: Instant, interval: Duration) -> bool {
        let due = self.0.is_none_or(|last| now.since(last) >= interval);
        if due {
            self.0 = Some(now);
        }
        due
    }
}

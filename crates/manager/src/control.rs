//! The control loop, and the tasks beside it: what happens without anybody asking.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::health;
use evenkeel_control::outlier::Event;
use evenkeel_core::time::Instant;
use parking_lot::MutexGuard;
use tracing::{debug, info, warn};

use crate::alerts::{self, Alerted, AllThere};
use crate::manager::{Manager, Owned};
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
        let mut due = Due::default();
        loop {
            let begun = self.clock().now();
            let mut round = Round::new(&mut due, begun);
            while self.step(&mut round) {
                // Whoever waits for the lock gets it between two steps.
                tokio::task::yield_now().await;
            }
            // With so many groups that a round takes long, rounds are fewer.
            let took = self.clock().now().since(begun);
            tokio::time::sleep(ROUND.saturating_sub(took).max(took * REST)).await;
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
        let mut due = Due::default();
        let mut round = Round::new(&mut due, self.clock().now().after(time));
        while self.step(&mut round) {}
    }

    /// A part of a round: ejections, alerts, panic, slow start, and what is due, for some of
    /// the groups; then, when it is known who is under alert, who sheds. Answers whether there
    /// is more to do. The lock is held for a short time only, however many groups there are.
    fn step(&self, round: &mut Round) -> bool {
        let mut owned = self.lock();
        let more = self.step_of(&mut owned, round);
        // Otherwise the next step has it before whoever has waited for it is awake.
        MutexGuard::unlock_fair(owned);
        more
    }

    fn step_of(&self, owned: &mut Owned, round: &mut Round) -> bool {
        let state = &mut owned.state;
        let now = round.now;
        let all = state.groups.len();
        let some = round.next..all.min(round.next + GROUPS_PER_STEP);
        round.next = some.end;
        match round.alerted.take() {
            None => {
                for entry in &mut state.groups[some] {
                    look(entry, round, now);
                    round.raised.extend(entry.alerts.keys().cloned());
                }
                if round.next >= all {
                    round.next = 0;
                    round.alerted = Some(alerts::alerted(state, round.raised.drain()));
                    if round.note {
                        for location in state.locations.values() {
                            location.keep_age(now);
                        }
                    }
                }
                true
            }
            // Groups share locations: one that must shed for any of them must shed.
            Some(alerted) => {
                for entry in &mut state.groups[some] {
                    alerts::shed(entry, &alerted, now);
                    round.there.look(entry, &alerted);
                }
                let more = round.next < all;
                if !more {
                    alerts::tell(state, &round.there, &alerted);
                    let wait = ROUND * (all / GROUPS_PER_ROUND) as u32;
                    if owned.untold && round.told.is_none_or(|at| now.since(at) >= wait) {
                        owned.untold = false;
                        *round.told = Some(now);
                        self.tell_changes();
                    }
                }
                round.alerted = Some(alerted);
                more
            }
        }
    }
}

/// How many groups are looked at while the lock is held.
const GROUPS_PER_STEP: usize = 256;

/// For how many groups those who follow changes hear of those of groups that do not stand in
/// the file a round later: each of them looks at all groups.
const GROUPS_PER_ROUND: usize = 2048;

/// How many times as long as it took there is a rest behind each round.
const REST: u32 = 3;

/// Where a round is.
struct Round<'a> {
    now: Instant,
    trace: bool,
    note: bool,
    /// The first group that has not been looked at.
    next: usize,
    /// Locations that groups have put under alert.
    raised: HashSet<Arc<str>>,
    /// Who is under alert, once all groups have been looked at.
    alerted: Option<Alerted>,
    /// The members there.
    there: AllThere,
    /// When those who follow changes were last told of one of groups that do not stand in the
    /// file.
    told: &'a mut Option<Instant>,
}

impl<'a> Round<'a> {
    fn new(due: &'a mut Due, now: Instant) -> Self {
        Round {
            now,
            trace: due.trace.is_due(now, TRACE_INTERVAL),
            note: due.history.is_due(now, History::INTERVAL),
            next: 0,
            raised: HashSet::new(),
            alerted: None,
            there: AllThere::default(),
            told: &mut due.told,
        }
    }
}

/// Looks at a group by itself.
fn look(entry: &mut GroupEntry, round: &Round<'_>, now: Instant) {
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
    if round.trace {
        state.want_trace();
    }
    for endpoint in &mut entry.endpoints {
        let slot = &endpoint.member.slot;
        if health::end_slow_start(slot, settings.slow_start, now) {
            let (group, member) = (entry.group.name(), &endpoint.member.name);
            debug!(%group, %member, "slow start is over");
        }
        if round.note {
            slot.keep_age(now);
        }
        if round.note || endpoint.history.is_empty() {
            endpoint.history.note(slot, now);
        }
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
    told: Option<Instant>,
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

//! A round of control over all groups of a load manager, some ten times a second.
//!
//! First each group is looked at by itself. Then it is known which locations are under alert,
//! and each group hears of it: groups share locations, and one that must shed for any of them
//! must shed. At last the locations know what their servers are to be told.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::spares::refill_records;
use evenkeel_core::time::Instant;

use crate::alerts::{self, AlertedLocations, AllAlertedMembers, FleetExchange, Forced, Locations};
use crate::event::Event;
use crate::group::GroupControl;
use crate::outlier::{Cause, FailureCause};

/// Interval at which a decision of each group is traced and kept as the last one. Tracing
/// allocates, so not every decision is traced.
const TRACE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which times that wrap are kept from seeming new again ([`keep_age`]), and figures
/// for the history of members are stored.
///
/// [`keep_age`]: evenkeel_core::member::Slot::keep_age
pub const KEEP_INTERVAL: Duration = Duration::from_millis(2_500);

/// A group as rounds see it.
pub trait Controlled {
    /// The group as it is now, and what is kept of it.
    fn controlled(&mut self) -> (&Group, &mut GroupControl);
}

/// Data that a round needs beside the groups.
pub struct RoundContext<'a> {
    /// All locations.
    pub locations: &'a Locations,
    /// Alerts that an administrator has forced or suppressed.
    pub forced: &'a Forced,
    /// Locations whose servers are told of an alert, or of its end, whatever pulses say.
    pub notified_locations: &'a mut HashSet<Arc<str>>,
    /// Council that decides upon alerts beside this balancer.
    pub council: Option<&'a dyn FleetExchange>,
}

impl std::fmt::Debug for RoundContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings")
            .field("locations", &self.locations.len())
            .finish_non_exhaustive()
    }
}

/// Times at which the work that is not done in every round was last done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Due {
    trace: Option<Instant>,
    keep: Option<Instant>,
}

/// State of a round in progress.
#[derive(Debug)]
pub struct Round {
    now: Instant,
    trace: bool,
    keep: bool,
    /// The first group that has not been looked at.
    next: usize,
    /// Locations that groups have put under alert.
    raised: HashSet<Arc<str>>,
    /// Locations under alert, once all groups have been looked at.
    alerted: Option<AlertedLocations>,
    /// The members there.
    there: AllAlertedMembers,
}

/// Result of a step of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The groups that were looked at by themselves.
    pub looked: Range<usize>,
    /// True if there is more to do.
    pub more: bool,
}

impl Round {
    /// The round that begins `now`.
    pub fn new(due: &mut Due, now: Instant) -> Self {
        refill_records();
        let is_due = |last: &mut Option<Instant>, interval| {
            let due = last.is_none_or(|last| now.since(last) >= interval);
            if due {
                *last = Some(now);
            }
            due
        };
        Round {
            now,
            trace: is_due(&mut due.trace, TRACE_INTERVAL),
            keep: is_due(&mut due.keep, KEEP_INTERVAL),
            next: 0,
            raised: HashSet::new(),
            alerted: None,
            there: AllAlertedMembers::default(),
        }
    }

    /// Returns the time at which the round began.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns true if figures for the history are to be kept at this moment.
    pub fn keeps_history(&self) -> bool {
        self.keep
    }

    /// A part of the round, with at most `most` of the groups, so that a lock on them need not
    /// be held for long. `act` is told what has happened, and to which group. The groups must
    /// be the same ones in all steps, or some miss a round.
    pub fn run_step<G: Controlled>(
        &mut self,
        groups: &mut [G],
        around: RoundContext<'_>,
        most: usize,
        mut act: impl FnMut(&mut G, &Event),
    ) -> Step {
        let now = self.now;
        let end = groups.len().min(self.next.saturating_add(most));
        let some = self.next.min(end)..end;
        self.next = end;
        let all = end >= groups.len();
        let Some(alerted) = &self.alerted else {
            let mut events = Vec::new();
            for entry in &mut groups[some.clone()] {
                let (group, control) = entry.controlled();
                group.heed_weights();
                control.run_round(group, around.council, now, &mut |event| events.push(event));
                self.raised.extend(control.alerts.raised().keys().cloned());
                if self.trace {
                    group.keep_up_engines(now);
                    group.state().want_trace();
                }
                if self.keep {
                    let members = group.members().iter();
                    members.for_each(|member| member.slot.keep_age(now));
                }
                for event in &events {
                    if let Event::Ejected { member, cause, .. } = event
                        && let Cause::Failures(FailureCause::InARow(_)) = cause
                    {
                        group.forget_engine_memory(*member);
                    }
                }
                events.drain(..).for_each(|event| act(entry, &event));
            }
            if all {
                self.next = 0;
                let raised = self.raised.drain();
                self.alerted = Some(alerts::collect_alerted(
                    raised,
                    around.locations,
                    around.forced,
                ));
                if self.keep {
                    let locations = around.locations.values();
                    locations.for_each(|location| location.keep_age(now));
                }
            }
            return Step {
                looked: some,
                more: true,
            };
        };
        for entry in &mut groups[some] {
            let (group, control) = entry.controlled();
            let (rules, alerts) = (&control.rules, &mut control.alerts);
            alerts.mark_shedding(group, &rules.shaping, alerted, now);
            self.there.look(group, alerts, rules.is_owned, alerted);
        }
        if all {
            let RoundContext {
                locations,
                forced,
                notified_locations: told,
                council: _,
            } = around;
            alerts::tell_locations(&self.there, alerted, locations, forced, told);
        }
        Step {
            looked: 0..0,
            more: !all,
        }
    }
}

//! The control loop, and the tasks beside it: what happens without anybody asking.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::alerts::FleetExchange;
use evenkeel_control::event::{Event, ZoneStay};
use evenkeel_control::round::{Due, Round, Step};
use evenkeel_core::time::Instant;
use parking_lot::MutexGuard;
use tracing::{debug, info, warn};

use crate::manager::{LockedState, Manager};
use crate::news::AlertNews;
use crate::state::{GroupEntry, State};

/// Time between two rounds of the control loop. Short against what people notice, and
/// long against what a round costs: about a quarter of a millisecond for 1,000 members.
const ROUND: Duration = Duration::from_millis(100);

impl Manager {
    /// Follows names, checks members, watches certificates and runs the control loop, as long as it is polled.
    ///
    /// Needs a tokio runtime with I/O and time; a single-threaded one is enough.
    pub async fn run(self: Arc<Self>) {
        tokio::join!(
            self.control(),
            self.follow_names(),
            self.follow_services(),
            self.follow_files(),
            self.check_members(),
            self.watch_certificates()
        );
    }

    async fn control(&self) {
        let (mut due, mut told) = (Due::default(), None);
        loop {
            let begun = self.clock().now();
            let mut round = Round::new(&mut due, begun);
            while self.step(&mut round, &mut told) {
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

    /// Does a round in which everything is due, as if `time` later.
    #[cfg(test)]
    pub(crate) fn round_after(&self, time: Duration) {
        let mut round = Round::new(&mut Due::default(), self.clock().now().after(time));
        while self.step(&mut round, &mut None) {}
    }

    /// A part of a round, for some of the groups. Answers whether there is more to do. The
    /// lock is held for a short time only, however many groups there are. `told` is when those
    /// who follow changes were last told of one of groups that do not stand in the file.
    fn step(&self, round: &mut Round, told: &mut Option<Instant>) -> bool {
        let mut owned = self.lock();
        let council = self.subsystems().council();
        let more = owned
            .state
            .run_step(round, GROUPS_PER_STEP, council, &mut |news| {
                // Mostly nobody listens.
                let _ = self.alert_news.send(news);
            });
        if !more {
            self.tell_late(&mut owned, round.now(), told);
        }
        // Otherwise the next step has it before whoever has waited for it is awake.
        MutexGuard::unlock_fair(owned);
        more
    }

    fn tell_late(&self, owned: &mut LockedState, now: Instant, told: &mut Option<Instant>) {
        let wait = ROUND * (owned.state.groups.len() / GROUPS_PER_ROUND) as u32;
        if owned.untold && told.is_none_or(|at| now.since(at) >= wait) {
            owned.untold = false;
            *told = Some(now);
            self.tell_changes();
        }
    }
}

impl State {
    /// A part of a round, with so many of the groups. Answers whether there is more to do.
    /// `noted` is told of load alerts.
    pub(crate) fn run_step(
        &mut self,
        round: &mut Round,
        most: usize,
        council: Option<&dyn FleetExchange>,
        noted: &mut dyn FnMut(AlertNews),
    ) -> bool {
        let (groups, around) = self.control_parts(council);
        let Step { looked, more } = round.run_step(groups, around, most, |entry, event| {
            tell(entry, event);
            if let Some(news) = alert_news(entry, event) {
                noted(news);
            }
        });
        for entry in &mut self.groups[looked] {
            for (index, endpoint) in entry.endpoints.iter_mut().enumerate() {
                if round.keeps_history() || endpoint.history.is_empty() {
                    let (slot, engine) = (&endpoint.member.slot, entry.group.engine_traffic(index));
                    endpoint.history.note_moment(slot, engine, round.now());
                }
            }
        }
        more
    }
}

/// The load alert that begins or ends, if it is one.
fn alert_news(entry: &GroupEntry, event: &Event) -> Option<AlertNews> {
    let (location, on) = match event {
        Event::AlertRaised { location, .. } => (location, true),
        Event::AlertLifted { location, .. } => (location, false),
        _ => return None,
    };
    Some(AlertNews {
        location: Arc::clone(location),
        group: Arc::clone(entry.group.name()),
        on,
    })
}

/// Number of groups that are looked at while the lock is held.
const GROUPS_PER_STEP: usize = 256;

/// Number of groups for which those who follow changes hear one round later of groups that do not stand in
/// the file: each follower looks at all groups.
const GROUPS_PER_ROUND: usize = 2048;

/// Length of the pause after each round, as a multiple of the time that the round took.
const REST: u32 = 3;

/// Says in the log what has happened to a group, and wakes those who wait if it helps them.
fn tell(entry: &mut GroupEntry, event: &Event) {
    let group = entry.group.name();
    let names = |index: usize| {
        let member = entry.group.members().get(index);
        (
            member.map(|m| &*m.name),
            member.and_then(|m| m.given_name.as_deref()),
        )
    };
    match event {
        Event::Ejected {
            member,
            cause,
            time,
        } => {
            let (member, member_name) = names(*member);
            warn!(%group, member, member_name, "member is ejected for {time:?}: {cause}");
        }
        Event::Returned(member) => {
            let (member, member_name) = names(*member);
            info!(%group, member, member_name, "member is no longer ejected");
        }
        Event::Recovered(member) => {
            let (member, member_name) = names(*member);
            info!(%group, member, member_name,
                "member is no longer ejected: the requests that have tried it have succeeded");
        }
        Event::SlowStartOver(member) => {
            let (member, member_name) = names(*member);
            debug!(%group, member, member_name, "the member's slow start has ended");
        }
        Event::Panic => warn!(
            %group,
            "panic: too many members are down or ejected; health is ignored, all members are used"
        ),
        Event::PanicOver => {
            info!(%group, "panic is over: only members that are up and not ejected are used")
        }
        Event::Zone { stay, kept } => {
            let zone = entry.group.ranks().map_or("", |ranks| ranks.label(0));
            match stay {
                ZoneStay::All => info!(%group, "no request leaves {zone} for others any more"),
                ZoneStay::Part => info!(
                    %group,
                    "requests leave {zone} for others: {:.0} % stay",
                    kept * 100.0
                ),
                ZoneStay::Nothing => warn!(
                    %group,
                    "no member of {zone} can serve: all requests go to other zones"
                ),
            }
        }
        Event::AlertRaised {
            location,
            load,
            level,
            is_pulse: true,
        } => debug!(%group, %location, load, threshold = level, "pulse"),
        Event::AlertRaised {
            location,
            load,
            level,
            is_pulse: false,
        } => info!(%group, %location, load, threshold = level, "load alert raised"),
        Event::AlertLifted {
            location,
            load,
            level,
            after,
        } => info!(%group, %location, load, threshold = level, ?after, "load alert lifted"),
    }
    if event.makes_room() {
        entry.handle.queue.call_all();
    }
}

//! Location in the schedule: what is known of it, and when it is its turn.

use std::collections::VecDeque;
use std::time::Duration;

use evenkeel_config::Monitor;
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::time::Instant;
use evenkeel_kernel::host::Host;
use evenkeel_kernel::loads::{Before, Loads};
use evenkeel_kernel::record::{Record, Source};

use super::target::{PollTarget, RecordSource};
use super::verdict::Verdict;

/// Largest deviation of a question from its interval, earlier or later, as a part of the interval.
pub(super) const JITTER: f64 = 0.05;

/// Shortest time between two looks whether another balancer still says the loads.
const REST: Duration = Duration::from_millis(100);

/// Of so many questions one is for listen backlogs, although the answers tell of no ports: short answers of older
/// responders never do.
const PORTS_EVERY: u64 = 64;

/// State of a location's loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum State {
    /// There was no answer yet.
    Waiting,
    /// The loads are known.
    Fresh,
    /// The loads were known, but there is no news.
    Stale,
    /// The loads are read by another balancer, which says them.
    Elsewhere,
}

impl State {
    /// The name in the status.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// True if somebody has read the loads, or says that they are unknown.
    pub fn has_news(self) -> bool {
        matches!(self, State::Fresh | State::Elsewhere)
    }
}

pub(super) struct Entry {
    pub(super) wanted: PollTarget,
    /// Host whose answer counts.
    pub(super) host: Host,
    pub(super) state: State,
    pub(super) before: Option<(Before, u64, u64)>,
    /// Numbers of questions and when they were sent, in that order.
    pub(super) open: VecDeque<(u64, Instant)>,
    /// The first question without news since the last.
    pub(super) silent_since: Option<Instant>,
    /// Time when the next question is due.
    pub(super) next: Instant,
    /// Time when the last question was due.
    pub(super) due: Instant,
    /// Distinguishes the entry's event in the queue from those that do not count any more.
    pub(super) stamp: u32,
    /// The present pause between questions while there is no news.
    pub(super) pause: Duration,
    pub(super) at: Option<Instant>,
    pub(super) round_trip: Option<Duration>,
    pub(super) source: Option<Source>,
    pub(super) asked: u64,
    pub(super) taken: u64,
    pub(super) missed: u64,
    pub(super) refused: u64,
    pub(super) unsent: u64,
    pub(super) expired: u64,
    pub(super) trouble: Option<String>,
    /// The loads of the last record, a bit each.
    pub(super) had: u16,
    /// True if the back-end tells listen backlogs, or has not answered yet.
    has_ports: bool,
}

impl Entry {
    pub(super) fn new(wanted: PollTarget, next: Instant) -> Self {
        Entry {
            pause: wanted.config.interval,
            host: wanted.host(),
            wanted,
            state: State::Waiting,
            before: None,
            open: VecDeque::new(),
            silent_since: None,
            next,
            due: next,
            stamp: 0,
            at: None,
            round_trip: None,
            source: None,
            asked: 0,
            taken: 0,
            missed: 0,
            refused: 0,
            unsent: 0,
            expired: 0,
            trouble: None,
            had: 0,
            has_ports: true,
        }
    }

    /// Returns the length of the question that was counted last. Listen backlogs are asked for where there are any.
    pub(super) fn question_length(&self) -> usize {
        let asks_for_ports = self.has_ports || self.asked % PORTS_EVERY == 1;
        self.wanted.question_length(asks_for_ports)
    }

    /// Returns the time when the location's loads become unknown, if there is no news until then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let since = self.silent_since.filter(|_| self.state.has_news())?;
        Some(since.after(self.wanted.config.timeout()))
    }

    pub(super) fn next_event(&self) -> Instant {
        match self.deadline() {
            Some(deadline) => deadline.min(self.next),
            None => self.next,
        }
    }

    /// True if another balancer reads the location's loads at present. A record on this machine is read here.
    pub(super) fn is_read_elsewhere(&self, now: Instant) -> bool {
        let may_be =
            self.wanted.config.shared && !matches!(self.wanted.place, RecordSource::Shared(_));
        may_be && self.wanted.location.is_read_elsewhere(now)
    }

    /// Asks nothing this time: another balancer says the loads. A record that was read before is too old to
    /// be compared with what is read next.
    pub(super) fn skip_question(&mut self, now: Instant, chance: f64) {
        self.state = State::Elsewhere;
        self.before = None;
        self.open.clear();
        self.silent_since = None;
        self.trouble = None;
        (self.had, self.at, self.round_trip, self.source) = (0, None, None, None);
        self.pause = self.wanted.config.interval.max(REST);
        self.due = now;
        self.go_on(now, chance);
    }

    /// Takes what a record says to the location.
    pub(super) fn take(
        &mut self,
        record: &Record<'_>,
        round_trip: Option<Duration>,
        at: Instant,
    ) -> Verdict {
        let base = &record.base;
        let stamp = (base.epoch, base.time_ns);
        // A clock that went back is that of a machine which was put back to an earlier state,
        // if there has been no news since: it would be old for as long as it was put back.
        let is_back = self.state == State::Stale;
        if let Some((_, epoch, time)) = self.before
            && epoch == stamp.0
            && (time == stamp.1 || time > stamp.1 && !is_back)
        {
            return Verdict::Old;
        }
        let before = self.before.as_ref().map(|(before, ..)| before);
        let loads = Loads::since_last(before, record);
        self.before = Some((Before::new(base), stamp.0, stamp.1));
        self.has_ports = base.ports > 0;
        let mut has = 0;
        let round = round_trip.map(|time| (LoadId::ROUND_TRIP, time.as_secs_f64()));
        let values = loads.iter().chain(round).filter_map(|(id, value)| {
            has |= bit(id);
            // The system may have said of itself what cannot be.
            Some((id, LoadValue::new(value).ok()?))
        });
        // There is room: all of them have a name.
        let _ = self.wanted.location.observe_loads(values, at);
        let gone = std::mem::replace(&mut self.had, has) & !has;
        if gone != 0 {
            let ids = Monitor::reported_loads().into_iter();
            let gone = ids.filter(|id| gone & bit(*id) != 0);
            self.wanted.location.expire(gone);
        }
        self.state = State::Fresh;
        self.silent_since = None;
        self.at = Some(at);
        self.round_trip = round_trip;
        self.source = Some(base.source);
        self.taken += 1;
        self.trouble = None;
        Verdict::Taken
    }

    /// Plans the next question, a little earlier or later than in `pause` after the last by
    /// `chance`. On time on average; but what is missed altogether is not made up for.
    pub(super) fn go_on(&mut self, now: Instant, chance: f64) {
        let pause = self.pause.mul_f64(1.0 + JITTER * (2.0 * chance - 1.0));
        let next = self.due.after(pause);
        self.next = if next > now { next } else { now.after(pause) };
    }

    pub(super) fn expire_loads(&mut self) {
        self.wanted.location.expire(Monitor::reported_loads());
        self.had = 0;
    }

    pub(super) fn note_refusal(&mut self, error: &dyn std::fmt::Display) {
        self.refused += 1;
        if self.trouble.is_none() {
            self.trouble = Some(error.to_string());
        }
    }
}

/// A bit for each load that a record can give.
fn bit(id: LoadId) -> u16 {
    let place = Monitor::reported_loads()
        .iter()
        .position(|known| *known == id);
    place.map_or(0, |place| 1 << place)
}

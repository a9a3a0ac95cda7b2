//! Opinions of back-ends, and of programs beside them, about a member.
//!
//! Health is the AND of its sources: a member is out as soon as one of them says so, and
//! is in again when none does. A source can never bring a member back that another one,
//! a health check or an administrator has taken out. It is the same with numbers: where
//! several sources limit the weight or the connections, the lowest limit counts.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use evenkeel_core::member::{Reason, Slot, Weight};
use evenkeel_core::time::Instant;

/// Source of opinions about members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// An agent, by the reporting protocol.
    Agent,
    /// The answer to an agent check.
    AgentCheck,
    /// The health check: whether the member is down for certain.
    HealthCheck,
    /// The liveness of a CORBA object, which says that it is there.
    Liveness,
    /// The CORBA load manager, of a member that it is about to take away.
    Membership,
}

impl Source {
    /// The name that admin API, metrics and logs use.
    pub fn name(self) -> &'static str {
        match self {
            Source::Agent => "agent",
            Source::AgentCheck => "agent_check",
            Source::HealthCheck => "health_check",
            Source::Liveness => "liveness",
            Source::Membership => "membership",
        }
    }
}

/// Opinion of one source about a member. The default says nothing against the member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceReport {
    /// The member does not work ([`Reason::ReportedDown`]).
    pub down: bool,
    /// The member certainly does not work, whatever other sources think ([`Reason::Dead`]).
    pub dead: bool,
    /// The member wants no new clients ([`Reason::ReportedDrain`]).
    pub drain: bool,
    /// The member is being worked on ([`Reason::ReportedMaintenance`]).
    pub maintenance: bool,
    /// The part of its weight that it wants: a factor, 1 is all of it. 0 is the same as
    /// `drain`.
    pub weight: Option<Weight>,
    /// The most requests or connections that it wants at once.
    pub max_connections: Option<NonZeroU32>,
    /// Note of the source for people.
    pub note: Option<Arc<str>>,
}

impl SourceReport {
    /// Returns true if the member should get no new clients.
    fn drains(&self) -> bool {
        self.drain || self.weight.is_some_and(|factor| factor.get() == 0.0)
    }
}

/// The words of an agent check: `down`, `drain`, `maint`, or `up`; `dead` before them; then
/// the numbers, then the note.
impl fmt::Display for SourceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.dead, "dead"),
            (self.down, "down"),
            (self.maintenance, "maint"),
            (self.drain, "drain"),
        ];
        let mut said = words.into_iter().filter(|(says, _)| *says);
        f.write_str(said.next().map_or("up", |(_, word)| word))?;
        for (_, word) in said {
            write!(f, " {word}")?;
        }
        if let Some(factor) = self.weight {
            write!(f, " {}%", factor.get() * 100.0)?;
        }
        if let Some(limit) = self.max_connections {
            write!(f, " maxconn:{limit}")?;
        }
        match &self.note {
            Some(note) => write!(f, " ({note})"),
            None => Ok(()),
        }
    }
}

/// An opinion that counts.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedReport {
    /// Source of the opinion.
    pub source: Source,
    /// Opinion of the source.
    pub report: SourceReport,
    /// Time at which the source last gave the opinion.
    pub at: Instant,
}

/// All that sources say about one member: at most one opinion each.
#[derive(Clone, Debug, Default)]
pub struct SourceReports(Vec<CountedReport>);

/// Changes that [`SourceReports::publish`] has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishedChanges {
    /// A reason holds now that did not, or the other way round.
    pub reasons: bool,
    /// The member may take more than before.
    pub room: bool,
}

impl SourceReports {
    /// Replaces what `source` says; `None` withdraws it.
    pub fn set_report(&mut self, source: Source, opinion: Option<SourceReport>, now: Instant) {
        self.retain(|held| held != source);
        self.0.extend(opinion.map(|opinion| CountedReport {
            source,
            report: opinion,
            at: now,
        }));
    }

    /// Withdraws what sources say for which `keep` does not hold.
    pub fn retain(&mut self, keep: impl Fn(Source) -> bool) {
        self.0.retain(|held| keep(held.source));
    }

    /// Goes on with an opinion that another process holds.
    pub fn go_on(&mut self, held: CountedReport) {
        self.set_report(held.source, Some(held.report), held.at);
    }

    /// The opinions that count, the latest last.
    pub fn iter(&self) -> impl Iterator<Item = &CountedReport> {
        self.0.iter()
    }

    /// Returns the opinion of `source`.
    pub fn find_report(&self, source: Source) -> Option<&SourceReport> {
        let held = self.0.iter().find(|held| held.source == source);
        held.map(|held| &held.report)
    }

    /// Makes `slot` say what these opinions come to. Its weight becomes `weight`, which is
    /// the administrator's or else the file's, times the lowest factor that is reported.
    ///
    /// A member that was dead, or down or in maintenance by report, starts slowly when it
    /// is no longer, from `now`. One that was drained does not: it went on working.
    pub fn publish(&self, slot: &Slot, weight: Weight, now: Instant) -> PublishedChanges {
        let any = |says: fn(&SourceReport) -> bool| self.0.iter().any(|held| says(&held.report));
        let (down, drain) = (any(|o| o.down), any(SourceReport::drains));
        let (maintenance, dead) = (any(|o| o.maintenance), any(|o| o.dead));
        let mut published = PublishedChanges::default();
        for (reason, holds, is_slow) in [
            (Reason::Dead, dead, true),
            (Reason::ReportedDown, down, true),
            (Reason::ReportedDrain, drain, false),
            (Reason::ReportedMaintenance, maintenance, true),
        ] {
            if slot.set(reason, holds) {
                published.reasons = true;
                published.room |= !holds;
                if is_slow && !holds {
                    slot.set_ramp_from(Some(now));
                }
            }
        }

        let factors = self.0.iter().filter_map(|held| held.report.weight);
        let factor = factors.map(Weight::get).reduce(f32::min).unwrap_or(1.0);
        // A product of two weights may be too much for a weight, but is never less than 0.
        let product = (f64::from(weight.get()) * f64::from(factor)).min(Weight::MAX);
        let weight = Weight::new(product).unwrap_or(weight);
        published.room |= slot.weight() == 0.0 && weight.get() > 0.0;
        slot.set_weight(weight);

        let limits = self.0.iter().filter_map(|held| held.report.max_connections);
        let limit = limits.map(NonZeroU32::get).min();
        published.room |= limit.unwrap_or(u32::MAX) > slot.reported_limit();
        slot.set_reported_limit(limit);
        published
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn slot() -> Slot {
        Slot::new(Weight::ONE)
    }

    const DOWN: u32 = Reason::ReportedDown as u32;
    const DRAIN: u32 = Reason::ReportedDrain as u32;

    fn down() -> SourceReport {
        SourceReport {
            down: true,
            ..SourceReport::default()
        }
    }

    #[test]
    fn nobody_brings_back_what_another_has_taken_out() {
        let (mut opinions, slot) = (SourceReports::default(), slot());
        slot.set(Reason::Down, true);
        opinions.set_report(Source::AgentCheck, Some(SourceReport::default()), at(1));
        opinions.publish(&slot, Weight::ONE, at(1));
        assert!(
            slot.has_reason(Reason::Down),
            "up is no reason to believe in"
        );

        slot.set(Reason::Down, false);
        opinions.set_report(Source::Agent, Some(down()), at(2));
        assert!(opinions.publish(&slot, Weight::ONE, at(2)).reasons);
        opinions.set_report(Source::AgentCheck, Some(SourceReport::default()), at(3));
        assert_eq!(
            opinions.publish(&slot, Weight::ONE, at(3)),
            PublishedChanges::default()
        );
        assert_eq!(slot.reason_bits(), DOWN);
        assert_eq!(slot.ramp_from(), None);

        opinions.set_report(Source::Agent, None, at(4));
        let published = opinions.publish(&slot, Weight::ONE, at(4));
        assert!(published.reasons && published.room);
        assert_eq!(slot.reason_bits(), 0);
        assert_eq!(slot.ramp_from(), Some(at(4)), "it starts slowly");
    }

    #[test]
    fn no_percent_is_drain() {
        let (mut opinions, slot) = (SourceReports::default(), slot());
        let nothing = SourceReport {
            weight: Some(Weight::new(0.0).unwrap()),
            ..SourceReport::default()
        };
        opinions.set_report(Source::AgentCheck, Some(nothing), at(1));
        opinions.publish(&slot, Weight::ONE, at(1));
        assert_eq!((slot.reason_bits(), slot.weight()), (DRAIN, 0.0));
        opinions.set_report(Source::AgentCheck, Some(SourceReport::default()), at(2));
        assert!(opinions.publish(&slot, Weight::ONE, at(2)).room);
        assert_eq!((slot.reason_bits(), slot.weight()), (0, 1.0));
        assert_eq!(slot.ramp_from(), None, "it has worked all the time");
    }

    #[test]
    fn says_what_it_says() {
        let opinion = SourceReport {
            down: true,
            drain: true,
            weight: Some(Weight::new(0.75).unwrap()),
            max_connections: NonZeroU32::new(30),
            note: Some("disk full".into()),
            ..SourceReport::default()
        };
        assert_eq!(opinion.to_string(), "down drain 75% maxconn:30 (disk full)");
        assert_eq!(SourceReport::default().to_string(), "up");
    }

    fn any_opinion() -> impl Strategy<Value = SourceReport> {
        let flags = any::<[bool; 4]>();
        let weight = proptest::option::of(0.0f64..=1000.0);
        (flags, weight, any::<u8>()).prop_map(|(flags, weight, limit)| SourceReport {
            down: flags[0],
            drain: flags[1],
            maintenance: flags[2],
            dead: flags[3],
            weight: weight.map(|weight| Weight::new(weight).unwrap()),
            max_connections: NonZeroU32::new(limit.into()),
            note: None,
        })
    }

    proptest! {
        /// Whatever was said before, in whatever order: the slot says what those who have
        /// an opinion say now, and reasons of others stay as they are.
        #[test]
        fn the_slot_says_what_all_say(
            steps in proptest::collection::vec((any::<bool>(), proptest::option::of(any_opinion())), 1..20),
            weight in 0.0f64..=1000.0,
            others in 0u32..32,
        ) {
            let (mut opinions, slot) = (SourceReports::default(), slot());
            let others: Vec<Reason> = [Reason::Down, Reason::Ejected, Reason::Draining, Reason::Maintenance, Reason::Unresolved]
                .into_iter().filter(|&reason| others & reason as u32 != 0).collect();
            others.iter().for_each(|&reason| { slot.set(reason, true); });
            let weight = Weight::new(weight).unwrap();
            let mut said: [Option<SourceReport>; 2] = [None, None];
            for (second, (agent, opinion)) in steps.into_iter().enumerate() {
                let source = if agent { Source::Agent } else { Source::AgentCheck };
                let before = slot.reason_bits();
                said[usize::from(agent)] = opinion.clone();
                opinions.set_report(source, opinion, at(second as u64 + 1));
                let published = opinions.publish(&slot, weight, at(second as u64 + 1));
                prop_assert_eq!(published.reasons, before != slot.reason_bits());

                let says = |what: fn(&SourceReport) -> bool| said.iter().flatten().any(what);
                prop_assert_eq!(slot.has_reason(Reason::ReportedDown), says(|o| o.down));
                prop_assert_eq!(slot.has_reason(Reason::Dead), says(|o| o.dead));
                prop_assert_eq!(slot.has_reason(Reason::ReportedMaintenance), says(|o| o.maintenance));
                prop_assert_eq!(slot.has_reason(Reason::ReportedDrain), says(|o| {
                    o.drain || o.weight == Weight::new(0.0).ok()
                }));
                prop_assert!(others.iter().all(|&reason| slot.has_reason(reason)));
                let limits = said.iter().flatten().filter_map(|o| o.max_connections);
                let limit = limits.min().map_or(u32::MAX, NonZeroU32::get);
                prop_assert_eq!(slot.reported_limit(), limit);
                prop_assert!((0.0..=1000.0).contains(&slot.weight()));
                if said.iter().flatten().all(|o| o.weight.is_none()) {
                    prop_assert_eq!(slot.weight(), weight.get());
                }
            }
        }
    }
}

//! Control of one group: the state that is kept, and the work of a round.

use evenkeel_core::effective::Shaping;
use evenkeel_core::group::Group;
use evenkeel_core::time::Instant;

use crate::alerts::{Alerts, FleetExchange};
use crate::event::Event;
use crate::health;
use crate::outlier::{self, AnnouncedEjections, Ejection, Outliers};
use crate::zones::Zones;

/// Settings of a group that rounds need and that
/// [`GroupSettings`](evenkeel_core::group::GroupSettings) do not have.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Shaping by which the strategy turns a reported load into an effective load.
    pub shaping: Shaping,
    /// True if something other than the configuration made the group. Clients of such a group reach
    /// members directly and may be sent from one to another.
    pub is_owned: bool,
}

/// State of a group that is kept from round to round, and from one snapshot of it to the next.
#[derive(Clone, Debug)]
pub struct GroupControl {
    pub(crate) rules: Rules,
    /// Ejections of the group.
    pub outliers: Outliers,
    /// Load alerts of the group.
    pub alerts: Alerts,
    zones: Zones,
}

impl GroupControl {
    /// Returns the control of a new group.
    pub fn new(rules: Rules) -> Self {
        GroupControl {
            rules,
            outliers: Outliers::default(),
            alerts: Alerts::default(),
            zones: Zones::default(),
        }
    }

    /// Returns the state that is kept when the group has other members, or the configuration says
    /// something else.
    pub fn next(&self, rules: Rules) -> Self {
        GroupControl {
            rules,
            outliers: self.outliers.clone(),
            alerts: self.alerts.next(),
            zones: self.zones.clone(),
        }
    }

    /// Does the part of a round that concerns the group by itself: ejections, alerts, panic, zones,
    /// slow start.
    pub(crate) fn run_round(
        &mut self,
        group: &Group,
        council: Option<&dyn FleetExchange>,
        now: Instant,
        act: &mut impl FnMut(Event),
    ) {
        if let Some(council) = council {
            council.share_loads(group, now);
            council.learn(group, now);
        }
        let mut changes = self.outliers.update_ejections(group, now);
        let words = council.map_or(Vec::new(), |council| {
            let ejected = group.members().iter().enumerate();
            let ejected: Vec<(usize, Ejection)> = ejected
                .filter_map(|(index, member)| Some((index, self.outliers.ejection(member, now)?)))
                .collect();
            council.tell(&AnnouncedEjections {
                group: group.name(),
                members: group.members(),
                ejected: &ejected,
                now,
            })
        });
        changes.extend(self.outliers.heed_peers(group, &words, now));
        for change in changes {
            let member = change.index;
            act(match change.event {
                outlier::Event::Ejected { cause, time } => Event::Ejected {
                    member,
                    cause,
                    time,
                },
                outlier::Event::Returned => Event::Returned(member),
                outlier::Event::Recovered => Event::Recovered(member),
            });
        }
        let shaping = &self.rules.shaping;
        self.alerts.update_raised(group, shaping, council, now, act);
        let settings = group.settings();
        // A member without weight serves nobody new, whatever it is like: as one that is drained.
        let members = group.members().iter();
        let members = members.filter(|member| member.slot.weight() > 0.0);
        let reasons = members.map(|member| member.slot.decision_bits());
        let panics = health::panics(reasons, settings.panic_threshold);
        if group.state().set_panicking(panics) {
            act(if panics {
                Event::Panic
            } else {
                Event::PanicOver
            });
        }
        self.zones.run_round(group, now, act);
        for (index, member) in group.members().iter().enumerate() {
            if health::end_slow_start(&member.slot, settings.slow_start, now) {
                act(Event::SlowStartOver(index));
            }
        }
    }
}

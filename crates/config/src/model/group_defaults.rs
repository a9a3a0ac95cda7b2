//! Defaults of a group that depend on how clients reach its members.

use std::time::Duration;

use evenkeel_core::alert::Threshold;
use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{Values, least_loaded, round_robin};

use super::group::GroupConfig;
use super::reach::{Reach, carries_in_pulses, default_for, default_load};

/// Most clients that leave a location of a forwarded group in a pulse, by default: while the load
/// alert of a server is on, it sends all its clients away.
const PULSE_SHARE: f32 = 0.5;

impl GroupConfig {
    /// Chooses the defaults that depend on how clients reach members, for settings that the file
    /// does not have.
    pub fn choose_defaults(&mut self, reach: Reach) {
        self.reach = reach;
        if reach == Reach::Redirected && !self.said.granularity {
            // They stay until their quantum is over, or an alert sends them back.
            self.settings.granularity = Granularity::OnDemand;
        }
        // Nobody can count clients that only their cookies know: as those that go to members
        // themselves, they leave bit by bit.
        let by_cookie = self.sticky.is_some() && reach == Reach::Carried;
        if !self.said.strategy {
            let one_by_one = by_cookie && self.settings.granularity == Granularity::OnDemand;
            let reach = if one_by_one { Reach::Redirected } else { reach };
            self.strategy = default_for(&self.settings, reach);
        }
        // Object groups have none, whatever their strategy.
        if reach != Reach::Forwarded && !self.said.slow_start {
            self.settings.slow_start = match *self.strategy.kind() == round_robin::KIND {
                // Who counts turns expects the same number of each member.
                true => Duration::ZERO,
                false => GroupSettings::default().slow_start,
            };
        }
        if reach == Reach::Forwarded && !self.said.move_share {
            // Whoever names a load wants clients to leave until it is lower. A pulse moves the load
            // that clients bring, and this one may have another cause.
            let is_absolute = self.has_absolute_threshold();
            self.settings.alert.move_share = if is_absolute { 1.0 } else { PULSE_SHARE };
        }
        self.settings.alert.pulses = match reach {
            Reach::Carried if by_cookie => false,
            Reach::Carried => carries_in_pulses(&self.settings, self.strategy.kind()),
            // A load alert is all or nothing there: a share of the clients leaves in a pulse,
            // and clients are rebound at a fixed interval in one.
            Reach::Forwarded => self.settings.alert.move_share < 1.0 || !self.settings.adaptive,
            Reach::Redirected => false,
        };
        if !self.said.load {
            self.settings.load_id = match self.monitor {
                // All that kernels know.
                Some(_) => LoadId::COMPOSITE,
                // What the application's monitors say first.
                None if reach == Reach::Forwarded => LoadId::FIRST,
                None => default_load(self.strategy.kind()),
            };
        }
    }

    /// True if alerts go by a load, and not by how far it is above those of other locations.
    fn has_absolute_threshold(&self) -> bool {
        match self.settings.alert.threshold {
            Some(threshold) => matches!(threshold, Threshold::Critical(_)),
            None => {
                let level = self.strategy.try_get(least_loaded::CRITICAL_THRESHOLD.name);
                level.is_some_and(|level| level > 0.0)
            }
        }
    }

    /// Sets the strategy of the group.
    pub fn set_strategy(&mut self, strategy: Values) {
        self.strategy = strategy;
        self.said.strategy = true;
        self.choose_defaults(self.reach);
    }
}

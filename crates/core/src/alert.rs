//! Settings of a group's load alerts: the conditions for an alert, and its effect on clients.
//!
//! Source: the load alerts of the OMG's `CosLoadBalancing` and its strategies
//! `LeastLoaded`, `LoadMinimum` and `LoadAverage`; Othman, O'Ryan and Schmidt, "The
//! Design and Performance of an Adaptive CORBA Load Balancing Service" (2001).

use std::time::Duration;

/// Effective load above which a location gets an alert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// The critical threshold, in the load's unit, greater than 0.
    Critical(f32),
    /// Share above the smallest load that is not 0 (0.4 is 40 %).
    AboveMinimum(f32),
    /// Share above the average load (0.8 is 80 %).
    AboveAverage(f32),
}

/// Settings of a group's load alerts.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertSettings {
    /// For any strategy; stronger than the strategy's own ([`Strategy::alert_threshold`]).
    ///
    /// [`Strategy::alert_threshold`]: crate::strategy::Strategy::alert_threshold
    pub threshold: Option<Threshold>,
    /// Hysteresis: an alert is lifted when the load is not above this share (greater
    /// than 0, at most 1) of a critical threshold, or of the excess that a relative one
    /// allows.
    pub release: f32,
    /// Most locations that the group has under alert, or sheds from, at the same time,
    /// as a share (0 to 1) of those that take traffic, rounded down. Even with 1 there
    /// is always one that does not shed.
    pub max_share: f32,
    /// Time of one step of shedding: in each, a share of the clients that an alerted
    /// location still has leave it, each after a random part of the step. So they do not
    /// all arrive elsewhere at once, and the alert can be lifted when enough have left.
    pub shed_time: Duration,
    /// Share of the clients that leave in each step, greater than 0; with 1 all have left after one step.
    pub move_share: f32,
    /// True if clients that are bound per session leave, too. A binding per session may have its reasons, such as a
    /// session at the member.
    pub move_sessions: bool,
    /// Connections of which the proxy understands nothing (TCP, upgraded HTTP) are
    /// closed by an alert when they were silent for this long after the member's last
    /// word; `None` is never.
    pub close_idle: Option<Duration>,
    /// For clients that go to members themselves: the alert of a location is on until those
    /// have left who are to, and no longer. Otherwise it is on until the
    /// load has fallen.
    pub pulses: bool,
}

impl Default for AlertSettings {
    fn default() -> Self {
        AlertSettings {
            threshold: None,
            release: 0.9,
            max_share: 0.5,
            shed_time: Duration::from_secs(5),
            move_share: 1.0,
            move_sessions: false,
            close_idle: None,
            pulses: false,
        }
    }
}

/// Steps after which everybody leaves, however small the share: a bound for arithmetic.
const MAX_STEPS: f32 = 1e5;

impl AlertSettings {
    /// Time from the start of an alert until a client leaves that drew the number `jitter`, from 0 to 1, when it was
    /// bound. No counter of clients is needed: of clients with evenly spread numbers, a share
    /// [`AlertSettings::move_share`] of the remaining ones leaves in each [`AlertSettings::shed_time`].
    pub fn patience(&self, jitter: f32) -> Duration {
        let stay = 1.0 - self.move_share.clamp(0.0, 1.0);
        let jitter = jitter.clamp(0.0, 1.0 - f32::EPSILON);
        if stay <= 0.0 {
            return self.shed_time.mul_f32(jitter);
        }
        // After n steps a share stay^n is left.
        let left = 1.0 - jitter;
        let whole = (libm::logf(left) / libm::logf(stay))
            .clamp(0.0, MAX_STEPS)
            .floor();
        let into_next = (1.0 - left / libm::powf(stay, whole)) / (1.0 - stay);
        self.shed_time.mul_f32(whole + into_next.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_each_step_a_share_of_the_clients_leaves() {
        for share in [0.01f32, 0.1, 0.25, 0.5, 0.9, 1.0] {
            let settings = AlertSettings {
                move_share: share,
                shed_time: Duration::from_secs(10),
                ..AlertSettings::default()
            };
            let clients = 10_000u16;
            let mut times: Vec<f32> = (0..clients)
                .map(|client| f32::from(client) / f32::from(clients))
                .map(|jitter| settings.patience(jitter).as_secs_f32())
                .collect();
            assert!(times.is_sorted(), "{share}");
            let mut left = times.len() as f32;
            for step in 1..=5u8 {
                times.retain(|&time| time >= f32::from(step) * 10.0);
                left *= 1.0 - share;
                let difference = (times.len() as f32 - left).abs();
                assert!(difference < 10.0, "{share}: {left}, {}", times.len());
            }
        }
        // Within a step they leave evenly.
        let settings = AlertSettings {
            move_share: 0.2,
            ..AlertSettings::default()
        };
        let half = settings.patience(0.1).as_secs_f32();
        assert!((half - 2.5).abs() < 0.01, "{half}");
    }
}

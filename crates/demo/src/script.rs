//! Script of the demo: when the chosen back-end is slow.

use std::time::Duration;

/// The script of a run: which parts of it are slow. Times count from the load's start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Script {
    /// A run that ends: as usual, slow in the middle, as usual again.
    Timed {
        /// The whole length.
        length: Duration,
    },
    /// A run without an end: as usual and slow in turns.
    Endless,
}

/// Endless runs: length of a turn, and the part of it that is as usual.
const TURN: Duration = Duration::from_secs(45);
const USUAL: Duration = Duration::from_secs(15);

/// A stretch of a run in which the chosen back-end is either slow or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    /// Begin of the phase.
    pub from: Duration,
    /// End of the phase.
    pub to: Duration,
    /// True if the chosen back-end is slow.
    pub slow: bool,
}

impl Script {
    /// Returns the script of a run of `seconds`; 0 is without an end.
    pub(crate) fn new(seconds: u64) -> Script {
        match seconds {
            0 => Script::Endless,
            seconds => Script::Timed {
                length: Duration::from_secs(seconds),
            },
        }
    }

    /// Returns the phase at `time`; `None` when the run is over.
    pub(crate) fn phase_at(&self, time: Duration) -> Option<Phase> {
        let phase = |from, to, slow| Some(Phase { from, to, slow });
        match *self {
            Script::Timed { length } if time >= length => None,
            Script::Timed { length } => {
                let (slow_from, slow_to) = (length / 3, length * 3 / 4);
                if time < slow_from {
                    phase(Duration::ZERO, slow_from, false)
                } else if time < slow_to {
                    phase(slow_from, slow_to, true)
                } else {
                    phase(slow_to, length, false)
                }
            }
            Script::Endless => {
                let turns = u32::try_from(time.as_secs() / TURN.as_secs()).unwrap_or(u32::MAX);
                let start = TURN * turns;
                if time < start + USUAL {
                    phase(start, start + USUAL, false)
                } else {
                    phase(start + USUAL, start + TURN, true)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other_without_a_gap() {
        for (seconds, until) in [(30, 30), (1, 1), (0, 200)] {
            let script = Script::new(seconds);
            let end = Duration::from_secs(until);
            let mut time = Duration::ZERO;
            let mut slow = Vec::new();
            while time < end {
                let phase = script.phase_at(time).unwrap();
                assert!(phase.from <= time && time < phase.to, "{phase:?}");
                slow.push(phase.slow);
                time = phase.to;
            }
            assert!(slow.chunks(2).all(|pair| !pair[0]));
            assert!(slow.contains(&true));
        }
        assert_eq!(Script::new(30).phase_at(Duration::from_secs(30)), None);
    }
}

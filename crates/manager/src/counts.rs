//! How many reports there were, by source and by what became of them.

use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_wire::orca;

/// Sources of reports that a group asks itself, or reads in passing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Agent checks.
    AgentCheck,
    /// ORCA in the heads of responses.
    OrcaHeader,
    /// ORCA over gRPC.
    OrcaOutOfBand,
    /// Metrics of Prometheus.
    Prometheus,
}

impl Origin {
    /// All of them.
    pub const ALL: [Origin; 4] = [
        Origin::AgentCheck,
        Origin::OrcaHeader,
        Origin::OrcaOutOfBand,
        Origin::Prometheus,
    ];

    /// The name that metrics and logs use.
    pub fn name(self) -> &'static str {
        match self {
            Origin::AgentCheck => "agent_check",
            Origin::OrcaHeader => "orca_header",
            Origin::OrcaOutOfBand => "orca_out_of_band",
            Origin::Prometheus => "prometheus",
        }
    }
}

/// What became of a report. All but the first changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It counts.
    Taken,
    /// There was nobody to ask.
    Unreachable,
    /// Whoever was asked took too long.
    TimedOut,
    /// Whoever was asked answered that there is an error.
    Failed,
    /// It does not say what it means, or not in a way that all understand alike.
    Malformed,
    /// It is longer than allowed.
    TooLong,
    /// A load is no number from 0 to 1e12.
    BadValue,
    /// The location keeps enough other loads.
    TooManyLoads,
    /// What is looked for is not in it.
    Missing,
}

impl Fate {
    /// All of them.
    pub const ALL: [Fate; 9] = [
        Fate::Taken,
        Fate::Unreachable,
        Fate::TimedOut,
        Fate::Failed,
        Fate::Malformed,
        Fate::TooLong,
        Fate::BadValue,
        Fate::TooManyLoads,
        Fate::Missing,
    ];

    /// The name that metrics and logs use.
    pub fn name(self) -> &'static str {
        match self {
            Fate::Taken => "taken",
            Fate::Unreachable => "unreachable",
            Fate::TimedOut => "timeout",
            Fate::Failed => "failed",
            Fate::Malformed => "malformed",
            Fate::TooLong => "too_long",
            Fate::BadValue => "bad_value",
            Fate::TooManyLoads => "too_many_loads",
            Fate::Missing => "missing",
        }
    }
}

impl From<orca::Invalid> for Fate {
    fn from(invalid: orca::Invalid) -> Self {
        match invalid {
            orca::Invalid::Malformed => Fate::Malformed,
            orca::Invalid::TooLong => Fate::TooLong,
            orca::Invalid::BadValue => Fate::BadValue,
            orca::Invalid::TooManyLoads => Fate::TooManyLoads,
            orca::Invalid::Missing => Fate::Missing,
        }
    }
}

/// Counts of one group. Any thread counts.
#[derive(Debug, Default)]
pub struct ReportCounts([[AtomicU64; Fate::ALL.len()]; Origin::ALL.len()]);

impl ReportCounts {
    /// Counts a report.
    pub fn count(&self, origin: Origin, fate: Fate) {
        self.0[origin as usize][fate as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Reports of that origin with that fate.
    pub fn get(&self, origin: Origin, fate: Fate) -> u64 {
        self.0[origin as usize][fate as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_place_of_its_own() {
        let counts = ReportCounts::default();
        for origin in Origin::ALL {
            for fate in Fate::ALL {
                assert_eq!(counts.get(origin, fate), 0);
                counts.count(origin, fate);
                assert_eq!(counts.get(origin, fate), 1);
            }
        }
    }
}

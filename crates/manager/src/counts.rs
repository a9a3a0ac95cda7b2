//! Counts of reports, by source and by fate.

use std::sync::OnceLock;

use evenkeel_core::tally::Tally;
use evenkeel_wire::orca;

/// A source of reports, by the name that metrics and logs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin(pub &'static str);

impl Origin {
    /// ORCA in the heads of responses, which the data plane reads in passing.
    pub const ORCA_HEADER: Origin = Origin("orca_header");

    /// Returns the name of the source.
    pub fn name(self) -> &'static str {
        self.0
    }
}

/// Fate of a report. A report with any fate but the first changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportOutcome {
    /// The report counts.
    Taken,
    /// There was nobody to ask.
    Unreachable,
    /// Whoever was asked took too long.
    TimedOut,
    /// Whoever was asked answered that there is an error.
    Failed,
    /// The report does not say what it means, or not in a way that all understand alike.
    Malformed,
    /// The report is longer than allowed.
    TooLong,
    /// A load is no number from 0 to 1e12.
    BadValue,
    /// The location keeps enough other loads.
    TooManyLoads,
    /// The value that is looked for is not in the report.
    Missing,
}

impl ReportOutcome {
    /// All fates.
    pub const ALL: [ReportOutcome; 9] = [
        ReportOutcome::Taken,
        ReportOutcome::Unreachable,
        ReportOutcome::TimedOut,
        ReportOutcome::Failed,
        ReportOutcome::Malformed,
        ReportOutcome::TooLong,
        ReportOutcome::BadValue,
        ReportOutcome::TooManyLoads,
        ReportOutcome::Missing,
    ];

    /// The name that metrics and logs use.
    pub fn name(self) -> &'static str {
        match self {
            ReportOutcome::Taken => "taken",
            ReportOutcome::Unreachable => "unreachable",
            ReportOutcome::TimedOut => "timeout",
            ReportOutcome::Failed => "failed",
            ReportOutcome::Malformed => "malformed",
            ReportOutcome::TooLong => "too_long",
            ReportOutcome::BadValue => "bad_value",
            ReportOutcome::TooManyLoads => "too_many_loads",
            ReportOutcome::Missing => "missing",
        }
    }
}

impl From<orca::Invalid> for ReportOutcome {
    fn from(invalid: orca::Invalid) -> Self {
        match invalid {
            orca::Invalid::Malformed => ReportOutcome::Malformed,
            orca::Invalid::TooLong => ReportOutcome::TooLong,
            orca::Invalid::BadValue => ReportOutcome::BadValue,
            orca::Invalid::TooManyLoads => ReportOutcome::TooManyLoads,
            orca::Invalid::Missing => ReportOutcome::Missing,
        }
    }
}

/// Counts of one group, for each source that ever had a report. Any thread counts, without a
/// lock. The first report of a source takes memory, but for [`Origin::ORCA_HEADER`], which is
/// counted on the data path.
#[derive(Debug)]
pub struct ReportCounts(SourceCounts);

/// Counts of one source, and those of the next one.
#[derive(Debug)]
struct SourceCounts {
    origin: Origin,
    fates: Tally<{ ReportOutcome::ALL.len() }>,
    next: OnceLock<Box<SourceCounts>>,
}

impl SourceCounts {
    fn new(origin: Origin) -> Self {
        SourceCounts {
            origin,
            fates: Tally::default(),
            next: OnceLock::new(),
        }
    }
}

impl Default for ReportCounts {
    fn default() -> Self {
        ReportCounts(SourceCounts::new(Origin::ORCA_HEADER))
    }
}

impl ReportCounts {
    /// Counts a report.
    pub fn count(&self, origin: Origin, fate: ReportOutcome) {
        let mut counts = &self.0;
        while counts.origin != origin {
            let new = || Box::new(SourceCounts::new(origin));
            counts = counts.next.get_or_init(new);
        }
        counts.fates.count_at(fate as usize);
    }

    /// Reports of that origin with that fate.
    pub fn count_of(&self, origin: Origin, fate: ReportOutcome) -> u64 {
        let found = self.iter().find(|counts| counts.origin == origin);
        found.map_or(0, |counts| counts.fates.totals()[fate as usize])
    }

    /// The sources that have had reports, by name.
    pub fn origins(&self) -> Vec<Origin> {
        let counted = |counts: &&SourceCounts| counts.fates.totals().iter().any(|count| *count > 0);
        let mut origins: Vec<_> = { self.iter().filter(counted) }
            .map(|counts| counts.origin)
            .collect();
        origins.sort_unstable();
        origins
    }

    fn iter(&self) -> impl Iterator<Item = &SourceCounts> {
        std::iter::successors(Some(&self.0), |counts| counts.next.get().map(Box::as_ref))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_place_of_its_own() {
        let counts = ReportCounts::default();
        assert_eq!(counts.origins(), [], "nobody has reported");
        let all = [Origin("b"), Origin::ORCA_HEADER, Origin("a")];
        for origin in all {
            for fate in ReportOutcome::ALL {
                assert_eq!(counts.count_of(origin, fate), 0);
                counts.count(origin, fate);
                assert_eq!(counts.count_of(origin, fate), 1);
            }
        }
        let names: Vec<_> = counts
            .origins()
            .iter()
            .map(|origin| origin.name())
            .collect();
        assert_eq!(names, ["a", "b", "orca_header"]);
    }
}

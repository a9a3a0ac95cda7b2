//! Claims of a paper, the rules by which they are judged, and verdicts.

use evenkeel_sim::experiment::Mean;
use serde::{Deserialize, Serialize};

/// Something that a paper says, and what must be measured for it to hold here.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Its name, unique within the experiment: small letters and dashes.
    pub id: String,
    /// What is claimed, in a sentence.
    pub says: String,
    /// The figure that was published, and where: `59 % (section 5.1)`.
    pub published: String,
    /// What the measured value is: `share of the requests that S1 got`.
    pub measured: String,
    /// Its unit: `ms`, `%`, `times`; or nothing.
    pub unit: String,
    /// When it holds.
    pub rule: Rule,
}

/// Where a measured value has to be for a claim to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// So much at most.
    AtMost(f64),
    /// So much at least.
    AtLeast(f64),
    /// From here to there.
    Within(f64, f64),
}

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole confidence interval is where the rule wants it.
    Holds,
    /// None of it is.
    DoesNot,
    /// A part of it is, or there is nothing to judge.
    CannotBeTold,
}

impl Verdict {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::DoesNot => "does not",
            Verdict::CannotBeTold => "cannot be told",
        }
    }
}

impl Rule {
    /// The verdict on values of several runs: by the 95 % confidence interval of their mean
    /// (Student's t). A single value has no interval and is judged alone, which only fits what does not
    /// differ between runs.
    pub fn judge(&self, values: &[f64]) -> Verdict {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return Verdict::CannotBeTold;
        }
        let mean = Mean::of(values);
        let within = mean.within.unwrap_or(0.0);
        let (low, high) = (mean.mean - within, mean.mean + within);
        let (from, to) = match *self {
            Rule::AtMost(most) => (f64::NEG_INFINITY, most),
            Rule::AtLeast(least) => (least, f64::INFINITY),
            Rule::Within(from, to) => (from, to),
        };
        if from <= low && high <= to {
            Verdict::Holds
        } else if high < from || to < low {
            Verdict::DoesNot
        } else {
            Verdict::CannotBeTold
        }
    }

    /// In words.
    pub fn text(&self, unit: &str) -> String {
        let unit = if unit.is_empty() {
            String::new()
        } else {
            format!(" {unit}")
        };
        // A third is not told to its last digit.
        let told = |value: f64| {
            let text = format!("{value:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        match *self {
            Rule::AtMost(most) => format!("at most {}{unit}", told(most)),
            Rule::AtLeast(least) => format!("at least {}{unit}", told(least)),
            Rule::Within(from, to) => format!("{} to {}{unit}", told(from), told(to)),
        }
    }

    /// Values that hold and values that do not: what a test shows of each rule.
    #[cfg(test)]
    pub(crate) fn examples(&self) -> (f64, f64) {
        match *self {
            Rule::AtMost(most) => (
                most - most.abs() * 0.1 - 1e-9,
                most + most.abs() * 0.1 + 1e-9,
            ),
            Rule::AtLeast(least) => (
                least + least.abs() * 0.1 + 1e-9,
                least - least.abs() * 0.1 - 1e-9,
            ),
            Rule::Within(from, to) => ((from + to) / 2.0, to + (to - from) + 1e-9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_interval_decides() {
        // Their mean is 2, and the interval 4.48 wide.
        let wide = [1.0, 2.0, 3.0];
        assert_eq!(Rule::AtMost(5.0).judge(&wide), Verdict::Holds);
        assert_eq!(Rule::AtMost(2.5).judge(&wide), Verdict::CannotBeTold);
        assert_eq!(Rule::AtMost(-1.0).judge(&wide), Verdict::DoesNot);
        assert_eq!(Rule::AtLeast(-1.0).judge(&wide), Verdict::Holds);
        assert_eq!(Rule::AtLeast(5.0).judge(&wide), Verdict::DoesNot);
        assert_eq!(Rule::Within(-1.0, 5.0).judge(&wide), Verdict::Holds);
        assert_eq!(Rule::Within(1.0, 5.0).judge(&wide), Verdict::CannotBeTold);
        assert_eq!(Rule::Within(5.0, 6.0).judge(&wide), Verdict::DoesNot);
    }

    #[test]
    fn a_rule_is_told_in_words() {
        assert_eq!(Rule::AtMost(1.0 / 3.0).text("times"), "at most 0.333 times");
        assert_eq!(Rule::AtLeast(0.0).text(""), "at least 0");
        assert_eq!(Rule::Within(650.0, 1080.5).text("ms"), "650 to 1080.5 ms");
    }

    #[test]
    fn what_was_not_measured_cannot_be_told() {
        assert_eq!(Rule::AtMost(1.0).judge(&[]), Verdict::CannotBeTold);
        assert_eq!(Rule::AtMost(1.0).judge(&[f64::NAN]), Verdict::CannotBeTold);
        assert_eq!(
            Rule::AtMost(1.0).judge(&[0.0, f64::INFINITY]),
            Verdict::CannotBeTold
        );
    }
}

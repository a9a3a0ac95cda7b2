//! Claims of a paper, the rules by which they are judged, and verdicts.

use evenkeel_sim::experiment::Mean;
use serde::{Deserialize, Serialize};

/// Share by which a measured number may differ from the published one.
pub const TOLERANCE: f64 = 0.2;

/// Share of a published difference between two cases that has to be measured for their order to hold.
pub const ORDER: f64 = 0.5;

/// Shares of single draws: a claim about one draw holds if more than the first share of all draws agree with the
/// published result, and does not hold if fewer than the second share do.
pub const DRAWS: (f64, f64) = (0.5, 0.2);

/// Kind of a run of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Run in virtual time.
    Simulated,
    /// Run with real programs.
    Real,
}

/// Statement of a paper, and the rule by which a measurement is judged.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Name, unique within the experiment: small letters and dashes.
    pub id: String,
    /// Claim, in a sentence.
    pub says: String,
    /// Figure that was published, and its place: `59 % (section 5.1)`.
    pub published: String,
    /// Measured value: `share of the requests that S1 got`.
    pub measured: String,
    /// Unit: `ms`, `%`, `times`; or empty.
    pub unit: String,
    /// Condition under which the claim holds.
    pub rule: Rule,
    /// Side on which a value outside the rule is better than the published one.
    pub better: Option<Side>,
    /// True if the paper shows one draw of chance, so that each value is judged alone.
    pub is_draw: bool,
    /// True if the paper does not claim this: it is a claim of this project, or a set-up that the paper
    /// does not have.
    pub is_own: bool,
    /// Kinds of run in which the set-up decides the value.
    pub by_set_up: Vec<Mode>,
    /// Other statement of the paper that this claim contradicts.
    pub contradiction: Option<Contradiction>,
    /// Reason for a verdict other than *holds* and *better*; or empty.
    pub why: String,
}

/// Condition on a measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Largest value, inclusive.
    AtMost(f64),
    /// Least value, inclusive.
    AtLeast(f64),
    /// Least and largest value, inclusive.
    Within(f64, f64),
    /// Published number: the value is within [`TOLERANCE`] of it.
    About(f64),
    /// Published ratio of two cases: the value has [`ORDER`] of its distance from 1 at least.
    Order(f64),
    /// Published difference of two cases: the value has [`ORDER`] of it at least.
    Excess(f64),
}

/// Side of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Below the range.
    Lower,
    /// Above the range.
    Higher,
}

/// Contradiction of a claim with the rest of its paper.
#[derive(Clone, Debug, PartialEq)]
pub enum Contradiction {
    /// A figure of the claim, and the range that other figures of the paper allow.
    Arithmetic {
        /// Figure that the claim needs.
        number: f64,
        /// Least and largest possible figure.
        possible: (f64, f64),
        /// Calculation, in a sentence.
        text: String,
    },
    /// Name of another claim of the paper. Both cannot hold.
    Excludes(String),
}

/// Judgement of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole confidence interval is where the rule wants it, or on the better side.
    Holds,
    /// The whole interval is on the better side of the rule.
    Better,
    /// No part of the interval is where the rule wants it.
    DoesNot,
    /// A part of the interval is where the rule wants it, or nothing was measured.
    CannotBeTold,
    /// The claim does not hold, and other statements of the paper say that it cannot.
    Contradicts,
}

impl Verdict {
    /// All verdicts, in the order of a summary.
    pub const ALL: [Verdict; 5] = [
        Verdict::Holds,
        Verdict::Better,
        Verdict::DoesNot,
        Verdict::CannotBeTold,
        Verdict::Contradicts,
    ];

    /// Words of the verdict.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Better => "better than published",
            Verdict::DoesNot => "does not hold",
            Verdict::CannotBeTold => "cannot be told",
            Verdict::Contradicts => "the paper contradicts itself",
        }
    }

    /// True if the measurement has what the paper has, or more.
    pub fn is_good(self) -> bool {
        matches!(self, Verdict::Holds | Verdict::Better)
    }
}

impl Contradiction {
    /// True if the paper's own statements exclude the claim.
    pub fn is_proven(&self) -> bool {
        match self {
            Contradiction::Arithmetic {
                number,
                possible: (least, most),
                ..
            } => number < least || number > most,
            Contradiction::Excludes(_) => true,
        }
    }
}

impl Claim {
    /// Judges the values of several runs. See [`Rule`] and [`Verdict`].
    pub fn judge_values(&self, values: &[f64]) -> Verdict {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return Verdict::CannotBeTold;
        }
        let verdict = match self.is_draw {
            true => self.judge_draws(values),
            false => self.judge_mean(values),
        };
        let is_excluded = (self.contradiction.as_ref()).is_some_and(Contradiction::is_proven);
        match verdict.is_good() || !is_excluded {
            true => verdict,
            false => Verdict::Contradicts,
        }
    }

    /// Judges by the 95 % confidence interval of the mean (Student's t). A single value has no interval and is
    /// judged alone, which only fits what does not differ between runs.
    fn judge_mean(&self, values: &[f64]) -> Verdict {
        let mean = Mean::of_values(values);
        let within = mean.within.unwrap_or(0.0);
        let (low, high) = (mean.mean - within, mean.mean + within);
        let (from, to) = self.rule.range();
        let (good_from, good_to) = self.good_range();
        let is_better = match self.better_side() {
            Some(Side::Lower) => high < from,
            Some(Side::Higher) => low > to,
            None => false,
        };
        if is_better {
            Verdict::Better
        } else if good_from <= low && high <= good_to {
            Verdict::Holds
        } else if high < good_from || good_to < low {
            Verdict::DoesNot
        } else {
            Verdict::CannotBeTold
        }
    }

    /// Judges by the share of draws that agree with the published result, and its 95 % confidence interval (Wilson's).
    fn judge_draws(&self, values: &[f64]) -> Verdict {
        let (low, high) = share_interval(self.count_draws(values), values.len());
        if low > DRAWS.0 {
            Verdict::Holds
        } else if high < DRAWS.1 {
            Verdict::DoesNot
        } else {
            Verdict::CannotBeTold
        }
    }

    /// Counts the draws that agree with the published result.
    pub fn count_draws(&self, values: &[f64]) -> usize {
        let (from, to) = self.good_range();
        let is_good = |value: &&f64| (from..=to).contains(*value);
        values.iter().filter(is_good).count()
    }

    /// Side on which a value is better than published: the named one, or the far side of a published difference.
    fn better_side(&self) -> Option<Side> {
        self.better.or(match self.rule {
            Rule::Order(ratio) if ratio < 1.0 => Some(Side::Lower),
            Rule::Order(_) | Rule::Excess(_) => Some(Side::Higher),
            _ => None,
        })
    }

    /// The range of the rule, open on the better side.
    fn good_range(&self) -> (f64, f64) {
        let (from, to) = self.rule.range();
        match self.better_side() {
            Some(Side::Lower) => (f64::NEG_INFINITY, to),
            Some(Side::Higher) => (from, f64::INFINITY),
            None => (from, to),
        }
    }

    /// Words of the rule, with what each value is judged by.
    pub fn rule_text(&self) -> String {
        let rule = self.rule.text(&self.unit);
        let draws = if self.is_draw {
            " in more than half of all draws"
        } else {
            ""
        };
        let better = match self.better {
            Some(Side::Lower) => "; less is better",
            Some(Side::Higher) => "; more is better",
            None => "",
        };
        rule + draws + better
    }
}

/// Wilson's 95 % confidence interval of a share.
fn share_interval(count: usize, of: usize) -> (f64, f64) {
    const Z: f64 = 1.959_964;
    let (count, of) = (count as f64, of.max(1) as f64);
    let share = count / of;
    let scale = 1.0 + Z * Z / of;
    let middle = (share + Z * Z / (2.0 * of)) / scale;
    let half = Z * (share * (1.0 - share) / of + Z * Z / (4.0 * of * of)).sqrt() / scale;
    (middle - half, middle + half)
}

impl Rule {
    /// Least and largest value with which a claim holds.
    pub fn range(&self) -> (f64, f64) {
        // A published difference that is exceeded by more than the tolerance is better than published.
        let difference = |all: f64| (ORDER * all, (1.0 + TOLERANCE) * all);
        match *self {
            Rule::AtMost(most) => (f64::NEG_INFINITY, most),
            Rule::AtLeast(least) => (least, f64::INFINITY),
            Rule::Within(from, to) => (from, to),
            Rule::About(number) => {
                let off = number.abs() * TOLERANCE;
                (number - off, number + off)
            }
            Rule::Order(ratio) => {
                let (least, most) = difference(ratio - 1.0);
                (1.0 + least.min(most), 1.0 + least.max(most))
            }
            Rule::Excess(excess) => difference(excess),
        }
    }

    /// Words of the rule.
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
        let (from, to) = self.range();
        match *self {
            Rule::AtMost(most) => format!("at most {}{unit}", told(most)),
            Rule::AtLeast(least) => format!("at least {}{unit}", told(least)),
            Rule::Within(..) => format!("{} to {}{unit}", told(from), told(to)),
            Rule::About(_) => format!("{} to {}{unit} (20 %)", told(from), told(to)),
            Rule::Order(ratio) if ratio < 1.0 => {
                format!("at most {}{unit} (half of the difference)", told(to))
            }
            Rule::Order(_) | Rule::Excess(_) => {
                format!("at least {}{unit} (half of the difference)", told(from))
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A claim of a paper with this rule, and nothing else that counts.
    pub(crate) fn claim(rule: Rule) -> Claim {
        Claim {
            id: "c".into(),
            says: "S".into(),
            published: "P".into(),
            measured: "M".into(),
            unit: "times".into(),
            rule,
            better: None,
            is_draw: false,
            is_own: false,
            by_set_up: Vec::new(),
            contradiction: None,
            why: String::new(),
        }
    }

    /// Values with this mean, and an interval of half a per mille of it.
    fn near(mean: f64) -> [f64; 3] {
        let off = 2e-4 * mean.abs();
        [mean - off, mean, mean + off]
    }

    /// Values with this mean, and an interval of 2.5 times `off` around it.
    fn wide(mean: f64, off: f64) -> [f64; 3] {
        [mean - off, mean, mean + off]
    }

    /// Each rule with values for each of its verdicts.
    #[test]
    fn each_rule_has_values_for_each_verdict() {
        use Verdict::{Better, CannotBeTold, DoesNot, Holds};
        let cases = [
            (Rule::AtMost(1.0), None, 0.9, Holds),
            (Rule::AtMost(1.0), None, 0.1, Holds),
            (Rule::AtMost(1.0), None, 1.1, DoesNot),
            (Rule::AtMost(1.0), Some(Side::Lower), 0.9, Holds),
            (Rule::AtLeast(1.0), None, 1.1, Holds),
            (Rule::AtLeast(1.0), None, 0.9, DoesNot),
            (Rule::AtLeast(1.0), Some(Side::Higher), 1.1, Holds),
            (Rule::Within(2.0, 3.0), None, 2.5, Holds),
            (Rule::Within(2.0, 3.0), None, 1.9, DoesNot),
            (Rule::Within(2.0, 3.0), None, 3.1, DoesNot),
            (Rule::Within(2.0, 3.0), Some(Side::Lower), 1.9, Better),
            (Rule::Within(2.0, 3.0), Some(Side::Lower), 3.1, DoesNot),
            (Rule::Within(2.0, 3.0), Some(Side::Higher), 3.1, Better),
            // A number is judged on both sides: twice the published gain is not the published gain.
            (Rule::About(12.0), None, 9.7, Holds),
            (Rule::About(12.0), None, 14.3, Holds),
            (Rule::About(12.0), None, 9.5, DoesNot),
            (Rule::About(12.0), None, 24.0, DoesNot),
            (Rule::About(12.0), Some(Side::Higher), 24.0, Better),
            (Rule::About(12.0), Some(Side::Higher), 9.5, DoesNot),
            (Rule::About(-12.0), None, -14.0, Holds),
            // An order needs half of what was published.
            (Rule::Order(1.09), None, 1.01, DoesNot),
            (Rule::Order(1.09), None, 1.044, DoesNot),
            (Rule::Order(1.09), None, 1.046, Holds),
            (Rule::Order(1.09), None, 1.107, Holds),
            (Rule::Order(1.09), None, 1.12, Better),
            (Rule::Order(1.09), None, 0.9, DoesNot),
            (Rule::Order(0.5), None, 0.74, Holds),
            (Rule::Order(0.5), None, 0.76, DoesNot),
            (Rule::Order(0.5), None, 0.39, Better),
            (Rule::Order(0.5), None, 2.0, DoesNot),
            (Rule::Excess(10.0), None, 4.9, DoesNot),
            (Rule::Excess(10.0), None, 5.1, Holds),
            (Rule::Excess(10.0), None, 12.1, Better),
            (Rule::Excess(10.0), None, -10.0, DoesNot),
        ];
        for (rule, better, value, wanted) in cases {
            let claim = Claim {
                better,
                ..claim(rule)
            };
            let judged = claim.judge_values(&near(value));
            assert_eq!(judged, wanted, "{rule:?} {better:?} {value}");
        }
        // A part of the interval is on either side of a limit.
        for (rule, value) in [
            (Rule::AtMost(1.0), 1.0),
            (Rule::AtLeast(1.0), 1.0),
            (Rule::Within(2.0, 3.0), 2.0),
            (Rule::Within(2.0, 3.0), 3.0),
            (Rule::About(10.0), 8.0),
            (Rule::About(10.0), 12.0),
            (Rule::Order(1.2), 1.1),
            (Rule::Order(0.8), 0.9),
            (Rule::Excess(10.0), 5.0),
        ] {
            let judged = claim(rule).judge_values(&wide(value, 0.05));
            assert_eq!(judged, CannotBeTold, "{rule:?} {value}");
        }
    }

    #[test]
    fn the_whole_interval_decides() {
        // Their mean is 2, and the interval 4.48 wide.
        let wide = [1.0, 2.0, 3.0];
        let judge = |rule: Rule| claim(rule).judge_values(&wide);
        assert_eq!(judge(Rule::AtMost(5.0)), Verdict::Holds);
        assert_eq!(judge(Rule::AtMost(2.5)), Verdict::CannotBeTold);
        assert_eq!(judge(Rule::AtMost(-1.0)), Verdict::DoesNot);
        assert_eq!(judge(Rule::AtLeast(-1.0)), Verdict::Holds);
        assert_eq!(judge(Rule::AtLeast(5.0)), Verdict::DoesNot);
        assert_eq!(judge(Rule::Within(-1.0, 5.0)), Verdict::Holds);
        assert_eq!(judge(Rule::Within(1.0, 5.0)), Verdict::CannotBeTold);
        assert_eq!(judge(Rule::Within(5.0, 6.0)), Verdict::DoesNot);
    }

    /// An interval that is in part as published and in part better is at least as published.
    #[test]
    fn as_published_or_better_holds() {
        let about = Claim {
            better: Some(Side::Higher),
            ..claim(Rule::About(10.0))
        };
        assert_eq!(about.judge_values(&wide(12.0, 0.5)), Verdict::Holds);
        assert_eq!(about.judge_values(&wide(14.0, 0.5)), Verdict::Better);
        assert_eq!(about.judge_values(&wide(8.0, 0.5)), Verdict::CannotBeTold);
        let order = claim(Rule::Order(2.0));
        assert_eq!(order.judge_values(&wide(2.2, 0.1)), Verdict::Holds);
    }

    #[test]
    fn a_single_draw_is_judged_as_one() {
        let draw = Claim {
            is_draw: true,
            ..claim(Rule::AtLeast(1.1))
        };
        let draws = |good: usize, bad: usize| {
            let good = std::iter::repeat_n(1.5, good);
            good.chain(std::iter::repeat_n(0.9, bad))
                .collect::<Vec<f64>>()
        };
        for (good, bad, wanted) in [
            (36, 4, Verdict::Holds),
            (28, 12, Verdict::Holds),
            (24, 16, Verdict::CannotBeTold),
            (12, 28, Verdict::CannotBeTold),
            (1, 39, Verdict::DoesNot),
            (0, 40, Verdict::DoesNot),
            // Three draws say nothing.
            (3, 0, Verdict::CannotBeTold),
            (0, 3, Verdict::CannotBeTold),
        ] {
            let values = draws(good, bad);
            assert_eq!(draw.count_draws(&values), good);
            assert_eq!(
                draw.judge_values(&values),
                wanted,
                "{good} of {}",
                good + bad
            );
        }
        // By its mean the claim would hold: few draws that are far off do not make it so.
        let mut values = draws(0, 30);
        values.extend([9.0; 10]);
        assert!(values.iter().sum::<f64>() / 40.0 > 2.0);
        assert_eq!(draw.judge_values(&values), Verdict::CannotBeTold);
        let (low, high) = share_interval(20, 40);
        assert!(
            (low - 0.352).abs() < 1e-3 && (high - 0.648).abs() < 1e-3,
            "{low} {high}"
        );
    }

    #[test]
    fn a_contradiction_counts_only_if_it_is_one_and_the_claim_does_not_hold() {
        let arithmetic = |number: f64| Contradiction::Arithmetic {
            number,
            possible: (f64::NEG_INFINITY, 567.0),
            text: "T".into(),
        };
        let served = |contradiction: Contradiction| Claim {
            contradiction: Some(contradiction),
            ..claim(Rule::About(660.0))
        };
        let impossible = served(arithmetic(660.0));
        assert_eq!(impossible.judge_values(&near(500.0)), Verdict::Contradicts);
        assert_eq!(
            impossible.judge_values(&wide(528.0, 20.0)),
            Verdict::Contradicts
        );
        // Measured is measured.
        assert_eq!(impossible.judge_values(&near(660.0)), Verdict::Holds);
        // Arithmetic that excludes nothing excuses nothing.
        let possible = served(arithmetic(560.0));
        assert_eq!(possible.judge_values(&near(500.0)), Verdict::DoesNot);
        let excluded = served(Contradiction::Excludes("other".into()));
        assert_eq!(excluded.judge_values(&near(500.0)), Verdict::Contradicts);
        assert_eq!(excluded.judge_values(&[]), Verdict::CannotBeTold);
    }

    #[test]
    fn a_rule_is_told_in_words() {
        assert_eq!(Rule::AtMost(1.0 / 3.0).text("times"), "at most 0.333 times");
        assert_eq!(Rule::AtLeast(0.0).text(""), "at least 0");
        assert_eq!(Rule::Within(650.0, 1080.5).text("ms"), "650 to 1080.5 ms");
        assert_eq!(Rule::About(22.0).text("%"), "17.6 to 26.4 % (20 %)");
        assert_eq!(
            Rule::Order(1.09).text("times"),
            "at least 1.045 times (half of the difference)"
        );
        assert_eq!(
            Rule::Order(0.5).text("times"),
            "at most 0.75 times (half of the difference)"
        );
        let claim = Claim {
            is_draw: true,
            better: Some(Side::Lower),
            ..claim(Rule::About(0.5))
        };
        assert_eq!(
            claim.rule_text(),
            "0.4 to 0.6 times (20 %) in more than half of all draws; less is better"
        );
    }

    #[test]
    fn what_was_not_measured_cannot_be_told() {
        for values in [&[][..], &[f64::NAN], &[0.0, f64::INFINITY]] {
            assert_eq!(
                claim(Rule::AtMost(1.0)).judge_values(values),
                Verdict::CannotBeTold
            );
        }
    }
}

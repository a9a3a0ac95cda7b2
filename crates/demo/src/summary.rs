//! The page that is left when the demo has ended.

use std::fmt::Write;
use std::time::{Duration, Instant};

use evenkeel_manager::text::format_duration;

use crate::load::{self, Quantiles};
use crate::show::Show;
use crate::stage::{Arm, SLOWDOWN, TURNS_SLOW};
use crate::view;

/// Longest list of phases; a run without an end has many.
const PHASES: usize = 8;

/// Returns what each arm's clients have seen, phase by phase.
pub(crate) fn format_summary(show: &Show) -> String {
    let mut text = String::new();
    let ran = show.started.elapsed().as_secs();
    let _ = writeln!(
        text,
        "\nThe same {:.0} requests per second for {ran} s, as their clients saw them;\n\
         a request that was never answered counts with the time that it waited.\n\
         In the slow phases back-end {} of each arm took {SLOWDOWN} times as long.\n",
        show.stage.rate,
        TURNS_SLOW + 1,
    );
    let _ = write!(text, "{:<22}", "");
    for arm in &show.stage.arms {
        let _ = write!(text, "  {:^22}", view::title_of(arm));
    }
    let _ = write!(text, "\n{:<22}", "phase");
    for _ in &show.stage.arms {
        let _ = write!(text, "  {:>10} {:>11}", "p50", "p99");
    }
    text.push('\n');
    let skipped = show.phases.len().saturating_sub(PHASES);
    for phase in &show.phases[skipped..] {
        let end = phase.to.min(show.started.elapsed());
        let what = if phase.slow { "slow" } else { "as usual" };
        let label = format!("{:>4}-{:<4}s {what}", phase.from.as_secs(), end.as_secs());
        let _ = write!(text, "{label:<22}");
        for arm in &show.stage.arms {
            let seen = between(arm, show.started, phase.from, end);
            let _ = write!(
                text,
                "  {:>10} {:>11}",
                format_duration(seen.p50),
                format_duration(seen.p99)
            );
        }
        text.push('\n');
    }
    text.push('\n');
    for (arm, shares) in show.stage.arms.iter().zip(&show.shares) {
        let shares: Vec<_> = shares
            .iter()
            .map(|share| format!("{:>3.0}%", share * 100.0))
            .collect();
        let _ = writeln!(
            text,
            "{:<20} shares at the end of the slow phase: {}",
            view::title_of(arm),
            shares.join(" ")
        );
    }
    for arm in &show.stage.arms {
        let seen = load::lock_seen(&arm.seen);
        let _ = writeln!(
            text,
            "{:<20} answered {}, failed {}, still waiting {}",
            view::title_of(arm),
            seen.answered,
            seen.failed,
            seen.under_way()
        );
    }
    text
}

fn between(arm: &Arm, started: Instant, from: Duration, to: Duration) -> Quantiles {
    load::lock_seen(&arm.seen).quantiles(started + from, started + to, Instant::now())
}

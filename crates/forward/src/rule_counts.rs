//! Counts of rules in the kernel.

use evenkeel_kernel::forward::Forwarder;

use crate::plan::PlannedRule;
use crate::status::ForwardedRule;

/// Returns the sums over the listening addresses of a rule.
pub(crate) fn count_rule(forwarder: &Forwarder, rule: &PlannedRule) -> ForwardedRule {
    let mut sums = ForwardedRule {
        rule: rule.name.to_string(),
        ..ForwardedRule::default()
    };
    for listener in &rule.listeners {
        let counts = forwarder
            .read_listener_counts(*listener)
            .unwrap_or_default();
        sums.begun += counts.begun;
        // Two CPUs may count an end before the beginning.
        sums.open += u64::try_from(counts.open).unwrap_or(0);
        sums.bytes_in += counts.bytes.0;
        sums.bytes_out += counts.bytes.1;
    }
    sums
}

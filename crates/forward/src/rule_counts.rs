//! Counts of rules and members in the kernel.

use std::time::Duration;

use evenkeel_kernel::forward::{Counts, Forwarder, Terms};

use crate::plan::PlannedRule;
use crate::status::{ForwardedMember, ForwardedRule, LearnsFrom};

/// Returns the sums over the listening addresses of a rule.
pub(crate) fn count_rule(forwarder: &Forwarder, rule: &PlannedRule) -> ForwardedRule {
    let mut sums = ForwardedRule {
        rule: rule.name.to_string(),
        ..ForwardedRule::default()
    };
    for listener in &rule.listeners {
        if rule.udp.is_some() {
            let counts = forwarder.read_udp_counts(*listener).unwrap_or_default();
            sums.begun += counts.begun;
            sums.open += u64::try_from(counts.open).unwrap_or(0);
            sums.bytes_in += counts.bytes.0;
            sums.bytes_out += counts.bytes.1;
            sums.datagrams_in += counts.datagrams.0;
            sums.datagrams_out += counts.datagrams.1;
            continue;
        }
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

/// Returns a member of a group with its terms and counts, for administrators.
pub(crate) fn describe_member(
    group: &str,
    terms: &Terms,
    counts: &Counts,
    is_long: bool,
) -> ForwardedMember {
    let (requests, time) = (&counts.requests, counts.requests.sum_latencies());
    let mean = |(count, ns): (u64, u64)| (count > 0).then(|| ns as f64 / count as f64 / 1e6);
    let seconds = |(_, ns): (u64, u64)| Duration::from_nanos(ns).as_secs_f64();
    ForwardedMember {
        group: group.to_owned(),
        member: terms.address.to_string(),
        eligible: terms.room > 0,
        in_flight: counts.in_flight,
        picks: counts.picks,
        connects: counts.handshakes.0,
        connect_seconds: seconds(counts.handshakes),
        connect_ms: mean(counts.handshakes),
        first_bytes: counts.answers.0,
        first_byte_seconds: seconds(counts.answers),
        first_byte_ms: mean(counts.answers),
        refused: counts.refused,
        resets: counts.resets,
        bytes_in: counts.bytes.0,
        bytes_out: counts.bytes.1,
        requests_under_way: requests.awaited.count(),
        requests: requests.answered,
        request_seconds: time.as_secs_f64(),
        request_ms: mean((
            requests.answered,
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        )),
        learns_from: if is_long {
            LearnsFrom::Requests
        } else {
            LearnsFrom::FirstAnswers
        },
    }
}

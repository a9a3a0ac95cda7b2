//! Requests that members would usually get, and members that get hardly any of them.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::member::{Member, Reason, rank_of};
use evenkeel_core::time::Instant;

/// Time over which the rate of requests is measured, in whole seconds.
const RATE_SPAN: Duration = Duration::from_secs(3);

/// Share of its usual requests below which a member gets hardly any.
const STARVED: f64 = 0.25;

/// Share of its usual requests from which a member gets enough of them.
const FED: f64 = 0.9;

/// Whole seconds, the running one included, in which requests of a member are compared with its usual ones.
const SPANS: [u64; 4] = [1, 2, 4, 8];

/// Least number of usual requests by which a member is compared: with fewer, hardly any are often chance.
const LEAST_USUAL: f64 = 8.0;

/// Requests within some time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Number of requests.
    pub(crate) total: u64,
    /// Number of requests that failed.
    pub(crate) failures: u64,
}

impl Counts {
    pub(crate) fn sum(self, other: &Counts) -> Counts {
        Counts {
            total: self.total + other.total,
            failures: self.failures + other.failures,
        }
    }

    pub(crate) fn without(&self, own: &Counts) -> Counts {
        Counts {
            total: self.total - own.total,
            failures: self.failures - own.failures,
        }
    }

    pub(crate) fn share(&self) -> f64 {
        self.failures as f64 / self.total.max(1) as f64
    }
}

/// Requests of the members of the zones of one rank.
#[derive(Clone, Copy, Debug, Default)]
struct RankTraffic {
    /// Number of requests within [`RATE_SPAN`].
    requests: f64,
    /// Sum of the weights of the members that serve, and of those that are ejected.
    weights: f64,
}

/// Rates of requests by the rank of zones.
pub(crate) struct UsualRates {
    ranks: BTreeMap<Option<usize>, RankTraffic>,
    seconds: f64,
    now: Instant,
}

impl UsualRates {
    /// Measures the rates of the group. `ejected` are the members that have a share although they do not serve.
    pub(crate) fn measure<'a>(
        group: &Group,
        ejected: impl Iterator<Item = &'a Member>,
        now: Instant,
    ) -> Self {
        let mut ranks = BTreeMap::<_, RankTraffic>::new();
        for member in group.members() {
            // Members under alert serve less, and are there.
            if member.slot.reason_bits() & !(Reason::Shedding as u32) == 0 {
                let recent = member.slot.record().recent(now, RATE_SPAN);
                let traffic = ranks.entry(rank(member)).or_default();
                traffic.requests += f64::from(recent.total);
                traffic.weights += weight(member);
            }
        }
        for member in ejected {
            ranks.entry(rank(member)).or_default().weights += weight(member);
        }
        UsualRates {
            ranks,
            seconds: elapsed(RATE_SPAN.as_secs(), now),
            now,
        }
    }

    /// Requests in a second that a member would get if it was not ejected: its share, by weight, of those of the
    /// members of its zone's rank.
    pub(crate) fn rate(&self, member: &Member) -> f64 {
        let traffic = self.ranks.get(&rank(member)).copied().unwrap_or_default();
        match traffic.weights > 0.0 {
            true => traffic.requests / self.seconds * weight(member) / traffic.weights,
            false => 0.0,
        }
    }

    /// True if a member that usually gets `usual` requests in a second has got hardly any with `requests` in `seconds`.
    pub(crate) fn are_hardly_any(usual: f64, requests: u64, seconds: f64) -> bool {
        (requests as f64) < STARVED * usual * seconds
    }

    /// True if a member that serves has got hardly any requests lately.
    pub(crate) fn is_starved(&self, member: &Member) -> bool {
        let share = self.measure_share(member);
        share.is_some_and(|share| share < STARVED)
    }

    /// True if a member that serves has got nearly all of its usual requests lately.
    pub(crate) fn is_fed(&self, member: &Member) -> bool {
        let share = self.measure_share(member);
        share.is_some_and(|share| share >= FED)
    }

    /// Requests that a member has got lately, as a share of its usual ones; `None` if these are too few to tell.
    fn measure_share(&self, member: &Member) -> Option<f64> {
        let usual = self.rate(member);
        let spans = SPANS.map(|seconds| (seconds, elapsed(seconds, self.now)));
        let span = spans
            .into_iter()
            .find(|(_, elapsed)| usual * elapsed >= LEAST_USUAL);
        span.map(|(seconds, elapsed)| {
            let span = Duration::from_secs(seconds);
            let got = member.slot.record().recent(self.now, span).total;
            f64::from(got) / (usual * elapsed)
        })
    }
}

/// Seconds that have passed of some whole seconds, the last of which is the running one.
fn elapsed(seconds: u64, now: Instant) -> f64 {
    let running = (now.as_nanos() % 1_000_000_000) as f64 / 1e9;
    seconds.saturating_sub(1) as f64 + running
}

fn rank(member: &Member) -> Option<usize> {
    rank_of(member.slot.decision_bits())
}

fn weight(member: &Member) -> f64 {
    f64::from(member.slot.weight())
}

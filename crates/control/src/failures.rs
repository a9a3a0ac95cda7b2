//! Failures of members, compared with those of other members.

use std::cell::OnceCell;
use std::fmt;
use std::time::Duration;

use evenkeel_core::ejection::EjectionSettings;
use evenkeel_core::group::Group;
use evenkeel_core::member::Member;
use evenkeel_core::time::Instant;

use crate::trial;
use crate::usual_rates::{Counts, UsualRates};

/// Last seconds, the running one included, in which failures are counted beside the whole window.
const LAST_SECONDS: [u64; 3] = [2, 4, 8];

/// Least number of failures in the last seconds that eject a member.
const LEAST_FAILURES: u64 = 5;

/// Least number of failures in the last seconds that eject a member to which the strategy sends hardly any requests.
const LEAST_STARVED: u64 = 2;

/// Failures of this balancer's own requests for which a member is ejected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FailureCause {
    /// Number of failures in a row.
    InARow(u32),
    /// Share of the member's recent requests that failed, and the share of those of all other
    /// members.
    Share(f64, f64),
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureCause::InARow(failures) => write!(f, "{failures} failures in a row"),
            FailureCause::Share(own, others) => write!(
                f,
                "{:.0} % of its requests failed, {:.0} % of those of the other members",
                own * 100.0,
                others * 100.0
            ),
        }
    }
}

/// Returns the cause of an ejection if a member fails much more than the others do.
pub(crate) fn exceeds(
    own: &Counts,
    all: &Counts,
    settings: &EjectionSettings,
) -> Option<FailureCause> {
    if own.total < u64::from(settings.min_requests) {
        return None;
    }
    let others = all.without(own);
    let (own_share, others) = (own.share(), others.share());
    let error = (others * (1.0 - others) / own.total as f64).sqrt();
    let exceeds = own_share - others > f64::from(settings.excess).max(3.0 * error);
    exceeds.then_some(FailureCause::Share(own_share, others))
}

/// Returns true if failures are too many for so few requests to be chance, even if the share of failures that ejects
/// nobody was usual.
fn fails_clearly(own: &Counts, settings: &EjectionSettings) -> bool {
    let excess = f64::from(settings.excess);
    let error = (excess * (1.0 - excess) / own.total.max(1) as f64).sqrt();
    own.failures >= LEAST_STARVED && own.share() > excess + error / 2.0
}

/// Returns true if the clients of the member at `index` have seen it fail, and not just a client
/// that sees failures wherever it goes. `others` are the requests at the other members.
pub(crate) fn clients_agree(group: &Group, index: usize, others: &Counts, now: Instant) -> bool {
    let (members, settings) = (group.members(), &group.settings().ejection);
    let bits = |member: &Member| member.slot.record().recent_clients(now);
    let share = |(all, failing): (u64, u64)| {
        f64::from((failing & all).count_ones()) / f64::from(all.count_ones().max(1))
    };
    let own = bits(&members[index]);
    let rest = members.iter().enumerate();
    let rest = rest.filter(|&(other, _)| other != index);
    let rest = rest.fold((0, 0), |sum, (_, member)| {
        let (all, failing) = bits(member);
        (sum.0 | all, sum.1 | failing)
    });
    match (own.0 | rest.0).count_ones() {
        // Nobody has said who they are.
        0 => true,
        1 => others.total - others.failures >= u64::from(settings.min_requests),
        _ => own.1.count_ones() >= 2 && share(own) - share(rest) > f64::from(settings.excess),
    }
}

/// Requests of a group's members in the last seconds, which are counted when they are asked for.
pub(crate) struct Lately<'a, F> {
    group: &'a Group,
    now: Instant,
    count: F,
    /// Counts of all members, and their sum, for each of [`LAST_SECONDS`].
    spans: [OnceCell<(Vec<Counts>, Counts)>; LAST_SECONDS.len()],
    rates: OnceCell<UsualRates>,
}

impl<'a, F: Fn(&Member, Duration) -> Counts> Lately<'a, F> {
    /// Returns the requests in the last seconds before `now`. `count` counts those of a member in some time.
    pub(crate) fn new(group: &'a Group, now: Instant, count: F) -> Self {
        Lately {
            group,
            now,
            count,
            spans: Default::default(),
            rates: OnceCell::new(),
        }
    }

    /// Returns the cause of an ejection if a member fails much more than the others do in the last seconds. A member that
    /// fails from some moment on has had successes within the window before. `recent` are its requests within the window.
    pub(crate) fn find_cause(&self, index: usize, recent: &Counts) -> Option<FailureCause> {
        let settings = &self.group.settings().ejection;
        if recent.failures < LEAST_STARVED || recent.total < u64::from(settings.min_requests) {
            return None;
        }
        let spans = LAST_SECONDS.iter().zip(&self.spans);
        let mut spans = spans.filter(|(seconds, _)| **seconds < settings.window.as_secs());
        spans.find_map(|(seconds, counts)| {
            let (recents, all) = counts.get_or_init(|| self.count_all(*seconds));
            let own = recents.get(index)?;
            let (share, others) = (own.share(), all.without(own).share());
            // Of so few requests, more failures than usual are often chance.
            let error = (others * (1.0 - others) / own.total.max(1) as f64).sqrt();
            let exceeds = share - others > f64::from(settings.excess).max(5.0 * error);
            let least = u64::from(settings.failure_limit).max(LEAST_FAILURES);
            // Where others fail, too, two failures are often chance.
            let others_are_well = all.failures == own.failures;
            let is_starved = || others_are_well && self.is_starved(index, own, *seconds);
            let is_enough = || own.failures >= least || is_starved();
            (exceeds && is_enough()).then_some(FailureCause::Share(share, others))
        })
    }

    fn count_all(&self, seconds: u64) -> (Vec<Counts>, Counts) {
        let span = Duration::from_secs(seconds);
        let members = self.group.members().iter();
        let counts: Vec<Counts> = members.map(|member| (self.count)(member, span)).collect();
        let all = counts.iter().fold(Counts::default(), Counts::sum);
        (counts, all)
    }

    /// True if the strategy sends a member hardly any requests any more, as some have failed. An ejection takes nothing
    /// from such a member, and trials show sooner than the strategy that the member is well again.
    fn is_starved(&self, index: usize, own: &Counts, seconds: u64) -> bool {
        let Some(member) = self.group.members().get(index) else {
            return false;
        };
        let settings = &self.group.settings().ejection;
        if !fails_clearly(own, settings) || !trial::are_possible(self.group) {
            return false;
        }
        let usual = self.usual_rate(member);
        usual >= trial::LEAST_RATE && UsualRates::are_hardly_any(usual, own.total, seconds as f64)
    }

    fn usual_rate(&self, member: &Member) -> f64 {
        let rates = || UsualRates::measure(self.group, std::iter::empty(), self.now);
        self.rates.get_or_init(rates).rate(member)
    }

    /// Returns the cause of an ejection for a member that has trials while it serves. `own` are its requests since then. A
    /// member that fails on never gets the least number of requests: the requests that it would usually have had are compared
    /// with this number. The failures must be of the last seconds, as those of the other members are.
    pub(crate) fn find_cause_of_starved(&self, index: usize, own: &Counts) -> Option<FailureCause> {
        let settings = &self.group.settings().ejection;
        let usual = self.usual_rate(self.group.members().get(index)?);
        let within = usual * settings.window.as_secs_f64();
        let (seconds, counts) = (LAST_SECONDS.last()?, self.spans.last()?);
        let (recents, all) = counts.get_or_init(|| self.count_all(*seconds));
        let recent = recents.get(index)?;
        let others = all.without(recent);
        let is_cause = fails_clearly(own, settings)
            && recent.failures >= LEAST_STARVED
            && others.failures == 0
            && usual >= trial::LEAST_RATE
            && within >= f64::from(settings.min_requests);
        is_cause.then(|| FailureCause::Share(own.share(), 0.0))
    }
}

/// Returns true if a request of this balancer has succeeded at a member within the window.
pub(crate) fn succeeds(member: &Member, group: &Group, now: Instant) -> bool {
    let window = group.settings().ejection.window;
    let recent = member.slot.record().recent(now, window);
    recent.total > recent.failures
}

//! Choosers: programs outside of the balancer that decide which member a binding is for, as custom
//! strategies of CORBA groups do. The proxy and the negotiator ask them here.
//!
//! A chooser that does not answer must not hold up a client for longer than the deadline, and not one
//! client after the other: after [`MOST_FAILURES`] failures in a row it is asked once in [`PAUSE`], and
//! the group's strategy decides all else. A late answer is ignored, as its connection is closed. No
//! lock is held while a chooser is asked.

mod question;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use evenkeel_core::group::{Advice, Group, Request};
use evenkeel_core::member::MemberId;
use evenkeel_core::tally::Tally;
use evenkeel_core::time::Instant;
use evenkeel_limits::{LimitSlot, warn_throttled};
use evenkeel_net::http::IdleConnections;
use evenkeel_net::http::client::{AskError, Limits, Question};
use tracing::{debug, info, warn};

pub use self::question::About;
use crate::config;
use crate::exposition::{Exposition, Type, flag_value};
use crate::status::{ChooserFailure, ChooserFailures, ChooserStatus};

/// Failures in a row after which a chooser is hardly asked.
const MOST_FAILURES: u32 = 3;

/// Time between two questions to a chooser that fails.
const PAUSE: Duration = Duration::from_secs(1);

/// Questions to a chooser at once, over all threads. The strategy decides about others.
const MOST_ASKED: usize = 256;

/// Members that a question may list. The strategy decides where there are more.
const MOST_CANDIDATES: usize = 1000;

/// Most bytes of an answer.
const LIMITS: Limits = Limits {
    head: 16 * 1024,
    body: 64 * 1024,
};

/// Cause for which a chooser has not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection to the chooser: it refused, or the balancer has none left.
    Unreachable,
    /// No answer within the time limit.
    Timeout,
    /// The connection broke before the answer was complete.
    Broken,
    /// A status other than 200.
    Status,
    /// An answer that is not HTTP/1.x, or not JSON with a member.
    Garbage,
    /// An answer longer than 64 KiB.
    TooLong,
    /// A member that the group does not have.
    UnknownMember,
    /// A member that gets no new requests: down, full, draining, or tried already.
    UnusableMember,
    /// Too many questions at once: the chooser was not asked.
    Busy,
    /// The chooser has failed several times in a row: it was not asked.
    Suspended,
    /// More candidates than a question may have: the chooser was not asked.
    TooManyCandidates,
}

impl Failure {
    /// All failures.
    pub const ALL: [Failure; 11] = [
        Failure::Unreachable,
        Failure::Timeout,
        Failure::Broken,
        Failure::Status,
        Failure::Garbage,
        Failure::TooLong,
        Failure::UnknownMember,
        Failure::UnusableMember,
        Failure::Busy,
        Failure::Suspended,
        Failure::TooManyCandidates,
    ];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Unreachable => "unreachable",
            Failure::Timeout => "timeout",
            Failure::Broken => "broken",
            Failure::Status => "status",
            Failure::Garbage => "garbage",
            Failure::TooLong => "too_long",
            Failure::UnknownMember => "unknown_member",
            Failure::UnusableMember => "unusable_member",
            Failure::Busy => "busy",
            Failure::Suspended => "suspended",
            Failure::TooManyCandidates => "too_many_candidates",
        }
    }

    /// Explanation, for people.
    pub fn explain(self) -> &'static str {
        match self {
            Failure::Unreachable => "the chooser cannot be reached",
            Failure::Timeout => "the chooser gave no answer within `timeout`",
            Failure::Broken => "the connection to the chooser broke",
            Failure::Status => "the status of the chooser's answer was not 200",
            Failure::Garbage => "the chooser's answer is no JSON with a \"member\"",
            Failure::TooLong => "the chooser's answer is too long",
            Failure::UnknownMember => "the chooser named a member that the group does not have",
            Failure::UnusableMember => "the chooser named a member that gets no new requests",
            Failure::Busy => "the chooser was not asked, as it has too many questions at once",
            Failure::Suspended => "the chooser was not asked, as it failed several times in a row",
            Failure::TooManyCandidates => {
                "the chooser was not asked, as the group has too many members"
            }
        }
    }

    /// True if the chooser was asked.
    fn is_of_question(self) -> bool {
        !matches!(
            self,
            Failure::Busy | Failure::Suspended | Failure::TooManyCandidates
        )
    }
}

impl From<&AskError> for Failure {
    fn from(error: &AskError) -> Self {
        match error {
            AskError::Connect(_) | AskError::Tls(_) => Failure::Unreachable,
            AskError::Io(_) | AskError::Closed => Failure::Broken,
            AskError::Garbage => Failure::Garbage,
            AskError::TooLong(_) => Failure::TooLong,
        }
    }
}

/// Thread that asks choosers.
pub trait Asker {
    /// Right to open a connection.
    type Permit;

    /// Connections to choosers that the thread keeps.
    fn idle(&self) -> &IdleConnections<Self::Permit>;

    /// Returns the right to another connection, if one is left.
    fn permit(&self) -> Option<Self::Permit>;

    /// Reads the clock.
    fn now(&self) -> Instant;

    /// Waits until a moment.
    fn wait_until(&self, at: Instant) -> impl Future<Output = ()>;
}

/// Chooser of a group.
pub struct Chooser {
    group: Box<str>,
    config: config::Chooser,
    /// Value of `Host` in questions.
    authority: Box<str>,
    /// Number by which threads know its connections.
    id: u64,
    health: Health,
    /// Questions under way.
    asked: AtomicUsize,
    /// Counts of the group, which outlive a change of the chooser.
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    by_chooser: AtomicU64,
    by_strategy: AtomicU64,
    failures: Tally<{ Failure::ALL.len() }>,
    last: Mutex<Option<(Instant, Failure)>>,
}

/// Failures of a chooser in a row.
#[derive(Debug, Default)]
struct Health {
    in_a_row: AtomicU32,
    /// Moment in nanoseconds from which on a chooser that fails is asked again.
    ask_at: AtomicU64,
}

impl Health {
    fn fails(&self) -> bool {
        self.in_a_row.load(Ordering::Relaxed) >= MOST_FAILURES
    }

    /// True if a question may be sent. Of a chooser that fails, that is so for one question in [`PAUSE`].
    fn may_ask(&self, now: Instant) -> bool {
        if !self.fails() {
            return true;
        }
        let at = self.ask_at.load(Ordering::Relaxed);
        let next = now.after(PAUSE).as_nanos();
        let order = Ordering::Relaxed;
        now.as_nanos() >= at && self.ask_at.compare_exchange(at, next, order, order).is_ok()
    }

    /// Takes in a good answer. True if the chooser had failed before.
    fn succeed(&self) -> bool {
        self.in_a_row.load(Ordering::Relaxed) > 0
            && self.in_a_row.swap(0, Ordering::Relaxed) >= MOST_FAILURES
    }

    /// Takes in a failure. True if the chooser is hardly asked from now on.
    fn fail(&self, now: Instant) -> bool {
        let next = now.after(PAUSE).as_nanos();
        self.ask_at.store(next, Ordering::Relaxed);
        let more = |count: u32| Some(count.saturating_add(1));
        let order = Ordering::Relaxed;
        let before = self.in_a_row.fetch_update(order, order, more);
        before.unwrap_or_else(|count| count) == MOST_FAILURES - 1
    }
}

impl fmt::Debug for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        f.debug_struct("Chooser").field("config", config).finish()
    }
}

impl Chooser {
    /// The chooser of the group called `group`: `old`, if nothing has changed.
    pub fn next(old: Option<&Arc<Chooser>>, group: &str, config: &config::Chooser) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if let Some(same) = old.filter(|old| old.config == *config && *old.group == *group) {
            return Arc::clone(same);
        }
        let counts = old.map(|old| Arc::clone(&old.counts));
        Arc::new(Chooser {
            group: group.into(),
            config: config.clone(),
            authority: config.url.0.authority().into(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            health: Health::default(),
            asked: AtomicUsize::new(0),
            counts: counts.unwrap_or_default(),
        })
    }

    /// Time limit for an answer.
    pub fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Asks about a request that is to be bound to a member of `group`. `None` if there is nothing to
    /// choose: fewer than two members may be picked at the moment.
    pub async fn ask_advice(
        &self,
        group: &ArcSwap<Group>,
        request: &Request<'_>,
        about: &About<'_>,
        asker: &impl Asker,
    ) -> Option<Advice> {
        let candidates = {
            let group = group.load();
            let view = group.view_for(request).widened();
            view.eligible_indices().take(MOST_CANDIDATES + 1).count()
        };
        if candidates < 2 {
            return None;
        }
        let answered = match candidates {
            0..=MOST_CANDIDATES => self.find_member(group, request, about, asker).await,
            _ => Err(Failure::TooManyCandidates),
        };
        self.note(&answered, asker.now());
        Some(match answered {
            Ok(member) => Advice::Member(member),
            Err(failure) => Advice::Nobody(failure.explain()),
        })
    }

    async fn find_member(
        &self,
        group: &ArcSwap<Group>,
        request: &Request<'_>,
        about: &About<'_>,
        asker: &impl Asker,
    ) -> Result<MemberId, Failure> {
        let now = asker.now();
        // Before it takes the turn of a chooser that fails.
        let _place = LimitSlot::take(&self.asked, MOST_ASKED).ok_or(Failure::Busy)?;
        if !self.health.may_ask(now) {
            return Err(Failure::Suspended);
        }
        let question = question::write(&group.load(), request, about);
        let url = &self.config.url.0;
        let question = Question {
            method: "POST",
            target: &url.path,
            authority: &self.authority,
            fields: &[("Content-Type", "application/json")],
            body: Some(&question),
        };
        let program = (self.id, &*url.host, url.port);
        let (clock, permit) = (|| asker.now(), || asker.permit());
        let answered = asker
            .idle()
            .ask_program(program, question, LIMITS, clock, permit);
        let answered = tokio::select! {
            biased;
            answered = answered => answered,
            () = asker.wait_until(now.after(self.config.timeout)) => return Err(Failure::Timeout),
        };
        let answer = answered.map_err(|error| {
            debug!(group = &*self.group, url = %url, %error, "chooser: no answer");
            Failure::from(&error)
        })?;
        if answer.code != 200 {
            return Err(Failure::Status);
        }
        let named = question::named_member(&answer.body).ok_or(Failure::Garbage)?;
        let now = asker.now();
        check(&group.load(), &Request { now, ..*request }, &named)
    }

    /// Takes in what came of a question.
    fn note(&self, answered: &Result<MemberId, Failure>, now: Instant) {
        let (group, url) = (&*self.group, &self.config.url.0);
        let failure = match answered {
            Ok(_) => {
                if self.health.succeed() {
                    info!(group, %url, "chooser answers: it decides for the group");
                }
                return;
            }
            Err(failure) => *failure,
        };
        let place = Failure::ALL.iter().position(|other| *other == failure);
        self.counts.failures.count_at(place.unwrap_or_default());
        if !failure.is_of_question() {
            return;
        }
        let last = self.counts.last.lock();
        *last.unwrap_or_else(PoisonError::into_inner) = Some((now, failure));
        let why = failure.explain();
        if self.health.fail(now) {
            warn!(group, %url, why, "chooser fails: the group's strategy decides, and the chooser is asked once a second until it answers");
        } else if !self.health.fails() {
            warn_throttled!(group, %url, why, "chooser has not decided about a request: the group's strategy decided");
        }
    }

    /// Counts a binding to `member`, for which the chooser was asked.
    pub fn count(&self, advice: Advice, member: MemberId) {
        let count = match advice == Advice::Member(member) {
            true => &self.counts.by_chooser,
            false => &self.counts.by_strategy,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Bindings about which the chooser has decided, and those about which the strategy has.
    fn decisions(&self) -> [(&'static str, u64); 2] {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        [
            ("chooser", count(&self.counts.by_chooser)),
            ("fallback", count(&self.counts.by_strategy)),
        ]
    }

    /// State of the chooser.
    pub(crate) fn status(&self, now: Instant) -> ChooserStatus {
        let [(_, decisions), (_, fallbacks)] = self.decisions();
        let counts = self.counts.failures.totals_by_kind(&Failure::ALL);
        let failures = counts
            .filter(|(_, count)| *count > 0)
            .map(|(failure, count)| ChooserFailures {
                reason: failure.name().into(),
                count,
            });
        let last = self.counts.last.lock();
        let last = *last.unwrap_or_else(PoisonError::into_inner);
        ChooserStatus {
            url: self.config.url.0.to_string(),
            answers: !self.health.fails(),
            decisions,
            fallbacks,
            failures: failures.collect(),
            last_failure: last.map(|(at, failure)| ChooserFailure {
                age_seconds: now.since(at).as_secs_f64(),
                error: failure.explain().into(),
            }),
        }
    }

    /// A line about it for an explanation of the strategy.
    pub(crate) fn status_line(&self) -> String {
        let (url, timeout) = (&self.config.url.0, self.config.timeout);
        let state = match self.health.fails() {
            true => "; the chooser fails at present, and is asked once a second",
            false => "",
        };
        format!(
            "the chooser at {url} is asked first, and has {timeout:?} to answer; this is the strategy's decision, without the chooser{state}"
        )
    }
}

/// Returns the member that `named` is the name or address of, if it may be picked.
fn check(group: &Group, request: &Request<'_>, named: &str) -> Result<MemberId, Failure> {
    let index = question::find(group, named).ok_or(Failure::UnknownMember)?;
    let view = group.view_for(request).widened();
    let member = group.members().get(index).map(|member| member.id);
    let member = member.filter(|_| view.is_eligible(index));
    member.ok_or(Failure::UnusableMember)
}

/// Writes the metrics of these choosers.
pub(crate) fn write_families(out: &mut Exposition, choosers: &[Arc<Chooser>]) {
    out.begin_family(
        "evenkeel_chooser_up",
        Type::Gauge,
        "1 while the group's chooser answers, 0 while it fails and is asked once a second.",
    );
    for chooser in choosers {
        let up = flag_value(!chooser.health.fails());
        out.add_sample(&[("group", &chooser.group)], up);
    }
    out.begin_family(
        "evenkeel_chooser_decisions_total",
        Type::Counter,
        "Bindings for which the group's chooser was asked, by who has decided: the chooser, or the strategy as its fallback.",
    );
    for chooser in choosers {
        for (result, count) in chooser.decisions() {
            let labels = [("group", &*chooser.group), ("result", result)];
            out.add_sample(&labels, count as f64);
        }
    }
    out.begin_family(
        "evenkeel_chooser_failures_total",
        Type::Counter,
        "Questions that the group's chooser has not answered with a member that can be used, and those that were not sent.",
    );
    for chooser in choosers {
        for (failure, count) in chooser.counts.failures.totals_by_kind(&Failure::ALL) {
            let labels = [("group", &*chooser.group), ("reason", failure.name())];
            out.add_sample(&labels, count as f64);
        }
    }
}

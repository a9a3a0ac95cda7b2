//! Liveness of members: each is asked by `_non_existent`.
//!
//! A member that sheds its load answers TRANSIENT or sends the question on: it is there.
//! One is gone when it says so, when its server does not know it (OBJECT_NOT_EXIST), or
//! when its address refuses connections: that is certain, and no panic overrides it. It is
//! silent when nobody answers several times in a row: down, but perhaps alive, so that nothing
//! is deleted for it. What runs out here, files or local ports, says nothing: then a member
//! stays what it was.
//!
//! A server with one thread answers a question when its calls before are done. So a member has
//! one question at a time, and whoever has been silent gets more time for the answer: a late
//! answer is an answer.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use evenkeel_control::opinion::{Source, SourceReport};
use evenkeel_giop::client::{Call, CallError, Client};
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::ior::Ior;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::gone::{Finding, MemberKey};
use super::load_manager::LoadManager;
use super::state::GroupMember;
use crate::directory::Reference;
use crate::membership::Health;

/// Failures in a row after which a member is silent.
const FAILURES: u32 = 3;

/// Time for the answer of a member that has been silent, in multiples of the usual time.
const PATIENCE: u32 = 5;

/// Members that are asked at the same time.
const AT_ONCE: usize = 256;

/// Interval at which the service checks if members are to be asked at all.
const IDLE: Duration = Duration::from_secs(1);

/// Time between questions to members that are gone, if the interval is not shorter.
const GONE_INTERVAL: Duration = Duration::from_secs(1);

/// Most members that are asked in a second, on average: with more of them the interval is
/// longer than the settings say.
const MOST_ASKED: u32 = 2000;

/// Evidence that an answer, or a missing answer, gives about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// The member is there.
    Alive,
    /// The member is gone for certain: it says so, its server does not know it, or there is no
    /// server.
    Gone,
    /// Nobody answers.
    Silent,
    /// The member could not be asked, because this process ran out of something.
    NotAsked,
}

/// Record of a member's answers.
#[derive(Clone, Debug, Default)]
struct AnswerRecord {
    /// Questions in a row to which nobody answered.
    failures: u32,
    /// True if the member was silent, and has not answered within the usual time since.
    is_slow: bool,
    /// The reference that was asked, while the answer is out.
    asked: Option<Arc<Reference>>,
    /// The finding that was reported, with the reference that was asked.
    said: Option<(Finding, Arc<Reference>)>,
}

impl AnswerRecord {
    fn is_dead(&self) -> bool {
        matches!(self.said, Some((Finding::Dead, _)))
    }

    /// Time for the next answer, where `usual` is that of others.
    fn time_limit(&self, usual: Duration) -> Duration {
        match self.is_slow {
            true => usual * PATIENCE,
            false => usual,
        }
    }

    /// Takes another answer, or none, and returns what is to be said of the member; `is_late` if
    /// the answer took longer than usual.
    fn update(&mut self, evidence: Evidence, is_late: bool) -> Option<Finding> {
        self.failures = match evidence {
            Evidence::Alive => 0,
            Evidence::Gone => FAILURES,
            // It had the time of several questions.
            Evidence::Silent if self.is_slow => FAILURES,
            Evidence::Silent => self.failures.saturating_add(1),
            Evidence::NotAsked => self.failures,
        };
        self.is_slow = match evidence {
            Evidence::Alive => self.is_slow && is_late,
            Evidence::Gone => false,
            Evidence::Silent => self.failures >= FAILURES,
            Evidence::NotAsked => self.is_slow,
        };
        match evidence {
            Evidence::Gone => Some(Finding::Dead),
            Evidence::NotAsked => self.said.as_ref().map(|(said, _)| *said),
            _ => (self.failures >= FAILURES).then_some(Finding::Silent),
        }
    }
}

/// The answer of a member, or none.
struct Answer {
    who: MemberKey,
    reference: Arc<Reference>,
    evidence: Evidence,
    /// True if the answer took longer than usual.
    is_late: bool,
}

/// Questions to members, and what came of those before.
struct Questions {
    known: HashMap<MemberKey, AnswerRecord>,
    /// Questions that are out.
    asking: JoinSet<Answer>,
    permits: Arc<Semaphore>,
    /// Permits of questions to slow members, which are out for long and hold up nobody else.
    slow_permits: Arc<Semaphore>,
}

impl Questions {
    fn new() -> Self {
        Questions {
            known: HashMap::new(),
            asking: JoinSet::new(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            slow_permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Takes answers until `next`; answers false if the load manager is no more.
    async fn take_answers(&mut self, load_manager: &Weak<LoadManager>, next: Instant) -> bool {
        loop {
            tokio::select! {
                biased;
                Some(answer) = self.asking.join_next(), if !self.asking.is_empty() => {
                    let Some(this) = load_manager.upgrade() else {
                        return false;
                    };
                    match answer {
                        Ok(answer) => this.note_answer(answer, &mut self.known),
                        // Whose it was is not known: whoever is asked is asked again.
                        Err(_) => self.known.values_mut().for_each(|of| of.asked = None),
                    }
                }
                () = sleep_until(next) => return true,
            }
        }
    }
}

/// Asks members at the interval of the settings, as long as the load manager is there.
pub(super) async fn watch_members(load_manager: Weak<LoadManager>) {
    let mut questions = Questions::new();
    // When everybody was asked last.
    let mut asked: Option<Instant> = None;
    loop {
        let next = {
            let Some(this) = load_manager.upgrade() else {
                return;
            };
            let started = Instant::now();
            match this.settings().liveness {
                Some(wanted) => {
                    let interval = stretched(wanted, questions.known.len());
                    let all = asked.is_none_or(|last| last + interval <= started);
                    if all {
                        asked = Some(started);
                    }
                    this.ask_members(wanted, all, &mut questions);
                    let gone = questions.known.values().any(AnswerRecord::is_dead);
                    let soon = started + GONE_INTERVAL.min(interval);
                    let next = asked.map_or(soon, |last| last + interval);
                    if gone { next.min(soon) } else { next }
                }
                None => {
                    // Nobody would find out that they are back.
                    questions.asking.abort_all();
                    for (who, of) in questions.known.drain() {
                        if let Some((_, reference)) = of.said {
                            this.tell(&who, &reference, None);
                        }
                    }
                    asked = None;
                    started + IDLE
                }
            }
        };
        if !questions.take_answers(&load_manager, next).await {
            return;
        }
    }
}

/// The interval for so many members.
fn stretched(interval: Duration, members: usize) -> Duration {
    let members = u32::try_from(members).unwrap_or(u32::MAX);
    interval.max(Duration::from_secs(1) * (members / MOST_ASKED))
}

impl LoadManager {
    /// Asks each member once: `all` of them, or those that are dead. Who has not answered is
    /// not asked again.
    fn ask_members(self: &Arc<Self>, interval: Duration, all: bool, questions: &mut Questions) {
        let state = self.state();
        let usual = interval.min(self.settings().call_timeout);
        let mut before = std::mem::take(&mut questions.known);
        for (&id, group) in &state.groups {
            for member in &group.members {
                let who = (id, member.location.clone());
                let mut of = before.remove(&who).unwrap_or_default();
                let reference = Arc::clone(&member.reference);
                let is_another = |old: &Arc<Reference>| !Arc::ptr_eq(old, &reference);
                // Another object has come in its place.
                if let Some((_, old)) = of.said.take_if(|(_, old)| is_another(old)) {
                    self.tell(&who, &old, None);
                    of = AnswerRecord::default();
                }
                if of.asked.as_ref().is_some_and(is_another) {
                    of = AnswerRecord::default();
                }
                if of.asked.is_none() && (all || of.is_dead()) {
                    of.asked = Some(Arc::clone(&reference));
                    let permits = match of.is_slow {
                        true => &questions.slow_permits,
                        false => &questions.permits,
                    };
                    let (permits, client) = (Arc::clone(permits), self.client().clone());
                    let (who, time_limit) = (who.clone(), of.time_limit(usual));
                    questions.asking.spawn(async move {
                        let _permit = permits.acquire_owned().await;
                        let begun = Instant::now();
                        let evidence = ask(&client, &reference, time_limit).await;
                        Answer {
                            who,
                            reference,
                            evidence,
                            is_late: begun.elapsed() > usual,
                        }
                    });
                }
                questions.known.insert(who, of);
            }
        }
        // They are members no more.
        for (who, of) in before {
            if let Some((_, reference)) = of.said {
                self.tell(&who, &reference, None);
            }
        }
    }

    /// Says what an answer, or none, means for a member. One to a question that does not count
    /// any more is passed over.
    fn note_answer(&self, answer: Answer, known: &mut HashMap<MemberKey, AnswerRecord>) {
        let Some(of) = known.get_mut(&answer.who) else {
            return;
        };
        let is_asked = |asked: &mut Arc<Reference>| Arc::ptr_eq(asked, &answer.reference);
        let Some(reference) = of.asked.take_if(is_asked) else {
            return;
        };
        let finding = of.update(answer.evidence, answer.is_late);
        if finding != of.said.as_ref().map(|(said, _)| *said) {
            self.tell(&answer.who, &reference, finding);
            of.said = finding.map(|finding| (finding, reference));
        }
    }

    /// Forgets what pings have found out: nobody will tell when it is otherwise.
    pub(super) fn forget_who_is_gone(&self) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.clear();
    }

    /// Forgets what pings have found out about a member that was at this location before:
    /// Evenkeel's manager remembers it.
    pub(super) fn forget_predecessor(&self, id: u64, at: &str) {
        self.set_opinion(id, at, Source::Liveness, None);
    }

    /// Returns true if nobody is there who could serve an object: connections are refused, or its
    /// server does not know it. A slow server may be busy, so it counts as there.
    pub(super) async fn is_nowhere(&self, object: &Ior) -> bool {
        let deadline = Instant::now() + self.settings().call_timeout;
        let call = Call::new(object, "_non_existent", deadline);
        match self.client().call(&call.do_not_follow()).await {
            Ok(body) => matches!(body.reader().read_bool(), Ok(true)),
            Err(CallError::Timeout) => false,
            Err(error) => !matches!(evidence_of(&error), Evidence::Alive | Evidence::NotAsked),
        }
    }

    /// Returns the state of a member, as far as its answers tell.
    pub(super) fn health_of(&self, id: u64, member: &GroupMember) -> Health {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        match gone.get(&(id, member.location.clone())) {
            Some((finding, reference)) if Arc::ptr_eq(reference, &member.reference) => {
                match finding {
                    Finding::Silent => Health::Silent,
                    Finding::Dead => Health::Dead,
                }
            }
            _ => Health::Alive,
        }
    }

    /// Says whether a member is down: to Evenkeel's manager, and to who looks after groups
    /// whose members the load manager makes.
    fn tell(&self, who: &MemberKey, reference: &Arc<Reference>, finding: Option<Finding>) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        match finding {
            Some(finding) => gone.insert(who.clone(), (finding, Arc::clone(reference))),
            None => gone.remove(who),
        };
        drop(gone);
        let opinion = finding.map(|finding| SourceReport {
            down: true,
            dead: finding == Finding::Dead,
            ..SourceReport::default()
        });
        self.set_opinion(who.0, &who.1, Source::Liveness, opinion.as_ref());
    }
}

/// Asks a member whether it is there.
async fn ask(client: &Client, reference: &Reference, timeout: Duration) -> Evidence {
    let call = Call::new(reference.ior(), "_non_existent", Instant::now() + timeout);
    match client.call(&call.do_not_follow()).await {
        Ok(body) => match body.reader().read_bool() {
            Ok(true) => Evidence::Gone,
            _ => Evidence::Alive,
        },
        Err(error) => evidence_of(&error),
    }
}

fn evidence_of(error: &CallError) -> Evidence {
    match error {
        CallError::System(SystemException { kind, .. }) => match kind {
            Kind::ObjectNotExist | Kind::InvObjref => Evidence::Gone,
            // Whatever it is, somebody has answered.
            _ => Evidence::Alive,
        },
        CallError::User { .. } | CallError::Forward(_) | CallError::TooManyForwards(_) => {
            Evidence::Alive
        }
        CallError::Unreachable { refused: true, .. } => Evidence::Gone,
        CallError::Exhausted { .. } => Evidence::NotAsked,
        CallError::NoAddress
        | CallError::Unreachable { .. }
        | CallError::Lost { .. }
        | CallError::Timeout
        | CallError::NotValid(_)
        | CallError::MessageError(_) => Evidence::Silent,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_limits::Shortage;

    use super::*;

    #[test]
    fn who_sheds_is_alive_and_who_is_unknown_is_gone() {
        let system = |kind| evidence_of(&CallError::System(SystemException::new(kind)));
        assert_eq!(system(Kind::Transient), Evidence::Alive);
        assert_eq!(system(Kind::NoImplement), Evidence::Alive);
        assert_eq!(system(Kind::ObjectNotExist), Evidence::Gone);
        assert_eq!(
            evidence_of(&CallError::Forward(Box::default())),
            Evidence::Alive
        );
        assert_eq!(evidence_of(&CallError::Timeout), Evidence::Silent);
        assert_eq!(evidence_of(&CallError::NoAddress), Evidence::Silent);
    }

    #[test]
    fn one_refused_connection_is_enough_t10() {
        let unreachable = |refused| {
            evidence_of(&CallError::Unreachable {
                address: "h:1".into(),
                error: "no".into(),
                refused,
            })
        };
        let mut of = AnswerRecord::default();
        assert_eq!(of.update(unreachable(true), false), Some(Finding::Dead));
        assert_eq!(of.update(Evidence::Alive, false), None);
        // Silence may be a lost packet, or a server that is busy.
        assert_eq!(of.update(unreachable(false), false), None);
        assert_eq!(of.update(Evidence::Silent, false), None);
        assert_eq!(of.update(Evidence::Silent, false), Some(Finding::Silent));
        assert_eq!(of.update(unreachable(true), false), Some(Finding::Dead));
        assert_eq!(of.update(Evidence::Silent, false), Some(Finding::Silent));
    }

    /// Files or ports that have run out here say nothing about a member, however often.
    #[test]
    fn s5_a_member_that_could_not_be_asked_stays_what_it_was() {
        let not_asked = || {
            evidence_of(&CallError::Exhausted {
                address: "h:1".into(),
                shortage: Shortage::Files,
                sent: false,
            })
        };
        let mut of = AnswerRecord::default();
        for _ in 0..2 * FAILURES {
            assert_eq!(of.update(not_asked(), false), None);
        }
        // What was counted before goes on to count.
        for _ in 1..FAILURES {
            assert_eq!(of.update(Evidence::Silent, false), None);
        }
        assert_eq!(of.update(not_asked(), false), None);
        let finding = of.update(Evidence::Silent, false);
        assert_eq!(finding, Some(Finding::Silent));
        // And one that is gone is not back.
        let reference = Arc::new(Reference::new(Ior::default()));
        of.said = finding.map(|finding| (finding, reference));
        assert_eq!(of.update(not_asked(), false), Some(Finding::Silent));
    }

    /// A server with one thread that is in a long call has one question to answer, not one for
    /// each interval, and its late answer counts.
    #[test]
    fn tao_4_a_silent_member_gets_more_time_and_its_late_answer_counts() {
        let usual = Duration::from_secs(2);
        let mut of = AnswerRecord::default();
        for finding in [None, None, Some(Finding::Silent)] {
            assert_eq!(of.time_limit(usual), usual);
            assert_eq!(of.update(Evidence::Silent, true), finding);
        }
        assert_eq!(of.time_limit(usual), 5 * usual);
        // Alive, and slow: no more down for each three answers that take long.
        for _ in 0..10 {
            assert_eq!(of.update(Evidence::Alive, true), None);
            assert_eq!(of.time_limit(usual), 5 * usual);
        }
        // If it is gone that is found out no later than of others, by one long silence.
        assert_eq!(of.update(Evidence::Silent, true), Some(Finding::Silent));
        assert_eq!(of.update(Evidence::Alive, false), None);
        assert_eq!(of.time_limit(usual), usual);
        assert_eq!(of.update(Evidence::Silent, true), None);
    }

    #[test]
    fn very_many_members_are_asked_less_often() {
        let two = Duration::from_secs(2);
        assert_eq!(stretched(two, 100), two);
        assert_eq!(stretched(two, 100_000), Duration::from_secs(50));
        assert_eq!(stretched(two, usize::MAX).as_secs(), 2_147_483);
    }
}

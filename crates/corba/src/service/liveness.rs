//! Whether members are there: asked of them by `_non_existent`.
//!
//! A member that sheds its load answers TRANSIENT or sends the question on: it is there.
//! One is gone when it says so, when its server does not know it (OBJECT_NOT_EXIST), or
//! when nobody answers several times in a row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use evenkeel_core::opinion::{Opinion, Source};
use evenkeel_giop::client::{Call, CallError, Client};
use evenkeel_giop::exception::{Kind, SystemException};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::LoadManager;
use super::state::GroupMember;
use crate::directory::Reference;

/// Failures in a row after which a member is taken for gone.
const FAILURES: u32 = 3;

/// Members that are asked at the same time.
const AT_ONCE: usize = 256;

/// How often it is looked whether members are to be asked at all.
const IDLE: Duration = Duration::from_secs(1);

/// What an answer, or none, says about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// It is there.
    Alive,
    /// It is not, for sure.
    Gone,
    /// Nobody answers.
    Silent,
}

/// What is known of a member: its failures in a row, and its reference if it was said to
/// be down.
#[derive(Clone, Debug, Default)]
struct Known {
    failures: u32,
    down: Option<Arc<Reference>>,
}

/// A member: the group's id and the location.
type Who = (u64, String);

/// Members that are gone, with the reference by which they were asked.
pub(super) type Gone = Mutex<HashMap<Who, Arc<Reference>>>;

/// Asks members at the interval of the settings, as long as the load manager is there.
pub(super) async fn watch(load_manager: Weak<LoadManager>) {
    let mut known: HashMap<Who, Known> = HashMap::new();
    loop {
        let next = {
            let Some(this) = load_manager.upgrade() else {
                return;
            };
            let started = Instant::now();
            match this.settings().liveness {
                Some(interval) => {
                    this.ask_all(interval, &mut known).await;
                    started + interval
                }
                None => {
                    // Nobody would find out that they are back.
                    for (who, of) in known.drain() {
                        if let Some(reference) = of.down {
                            this.tell(&who, &reference, false);
                        }
                    }
                    started + IDLE
                }
            }
        };
        sleep_until(next).await;
    }
}

impl LoadManager {
    /// Asks each member once.
    async fn ask_all(self: &Arc<Self>, interval: Duration, known: &mut HashMap<Who, Known>) {
        let state = self.state();
        let timeout = interval.min(self.settings().call_timeout);
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        let mut asking = JoinSet::new();
        for (&id, group) in &state.groups {
            for member in &group.members {
                let (permits, client) = (Arc::clone(&permits), self.client().clone());
                let (at, reference) = (member.location.clone(), Arc::clone(&member.reference));
                asking.spawn(async move {
                    let _permit = permits.acquire_owned().await;
                    let sign = ask(&client, &reference, timeout).await;
                    ((id, at), reference, sign)
                });
            }
        }
        let mut before = std::mem::take(known);
        while let Some(asked) = asking.join_next().await {
            let Ok((who, reference, sign)) = asked else {
                continue;
            };
            let mut of = before.remove(&who).unwrap_or_default();
            // Another object has come in its place.
            if of
                .down
                .as_ref()
                .is_some_and(|down| !Arc::ptr_eq(down, &reference))
            {
                self.tell(&who, &reference, false);
                of = Known::default();
            }
            of.failures = match sign {
                Sign::Alive => 0,
                Sign::Gone => FAILURES,
                Sign::Silent => of.failures.saturating_add(1),
            };
            let gone = of.failures >= FAILURES;
            if gone != of.down.is_some() {
                self.tell(&who, &reference, gone);
                of.down = gone.then_some(reference);
            }
            known.insert(who, of);
        }
        // They are members no more.
        for (who, of) in before {
            if let Some(reference) = of.down {
                self.tell(&who, &reference, false);
            }
        }
    }

    /// Whether a member is known to be gone.
    pub(super) fn is_gone(&self, id: u64, member: &GroupMember) -> bool {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let reference = gone.get(&(id, member.location.clone()));
        reference.is_some_and(|of| Arc::ptr_eq(of, &member.reference))
    }

    /// Says whether a member is down: to Evenkeel's manager, and to who looks after groups
    /// whose members the load manager makes.
    fn tell(&self, who: &Who, reference: &Arc<Reference>, down: bool) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        match down {
            true => gone.insert(who.clone(), Arc::clone(reference)),
            false => gone.remove(who),
        };
        drop(gone);
        let opinion = down.then(|| Opinion {
            down: true,
            ..Opinion::default()
        });
        self.say(who.0, &who.1, Source::Liveness, opinion.as_ref());
    }
}

/// Asks a member whether it is there.
async fn ask(client: &Client, reference: &Reference, timeout: Duration) -> Sign {
    let call = Call::new(reference.ior(), "_non_existent", Instant::now() + timeout);
    match client.call(&call.do_not_follow()).await {
        Ok(body) => match body.reader().read_bool() {
            Ok(true) => Sign::Gone,
            _ => Sign::Alive,
        },
        Err(error) => sign_of(&error),
    }
}

fn sign_of(error: &CallError) -> Sign {
    match error {
        CallError::System(SystemException { kind, .. }) => match kind {
            Kind::ObjectNotExist | Kind::InvObjref => Sign::Gone,
            // Whatever it is, somebody has answered.
            _ => Sign::Alive,
        },
        CallError::User { .. } | CallError::Forward(_) | CallError::TooManyForwards(_) => {
            Sign::Alive
        }
        CallError::NoAddress
        | CallError::Unreachable { .. }
        | CallError::Lost { .. }
        | CallError::Timeout
        | CallError::NotValid(_)
        | CallError::MessageError(_) => Sign::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sheds_is_alive_and_who_is_unknown_is_gone() {
        let system = |kind| sign_of(&CallError::System(SystemException::new(kind)));
        assert_eq!(system(Kind::Transient), Sign::Alive);
        assert_eq!(system(Kind::NoImplement), Sign::Alive);
        assert_eq!(system(Kind::ObjectNotExist), Sign::Gone);
        assert_eq!(sign_of(&CallError::Forward(Box::default())), Sign::Alive);
        assert_eq!(sign_of(&CallError::Timeout), Sign::Silent);
        assert_eq!(sign_of(&CallError::NoAddress), Sign::Silent);
    }
}

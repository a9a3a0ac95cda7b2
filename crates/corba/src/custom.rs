//! Custom strategies: objects of the application, in other processes, that choose members.
//!
//! A strategy that does not answer must not hold up a client for longer than the deadline,
//! and not one client after the other: once it has missed a deadline nobody waits for it
//! until it has answered a probe. Until then, and whenever it names nobody who can take the
//! client, the group's strategy decides.
//!
//! It may call the load manager while it decides: no lock is held, and the thread that
//! waits for it serves others.

mod strategy;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_core::group::{Advice, Group, PickError, Request};
use evenkeel_core::load;
use evenkeel_core::member::Member;
use evenkeel_core::time::Instant;
use evenkeel_giop::ior::Ior;
use evenkeel_net::Clock;
use tracing::{debug, warn};

use crate::directory::{Answer, Directory, Entry, Reference, Snapshot};
use crate::locator::{self, ChosenMember, Client};
use crate::name::Name;
use crate::types::Load;
use strategy::Failure;
pub use strategy::{Custom, Customs};

/// Time between two complaints about answers that cannot be used.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which new loads are passed on to strategies.
const ROUND: Duration = Duration::from_millis(200);
/// The time of a report is known to so much.
const REPORT_GRAIN: Duration = Duration::from_millis(4);

/// The member chosen for a client, and the strategy that chose it.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The group as it was then.
    pub group: Arc<Group>,
    /// The place of the member in it.
    pub index: usize,
    /// Reference of the member.
    pub reference: Arc<Reference>,
    /// Strategy that has decided: [`Answer::Custom`] or [`Answer::Fallback`].
    pub by: Answer,
}

impl Decision {
    /// Has an explanation that is due say who has decided.
    fn explain(&self, client: &mut Client, now: Instant) {
        let Some(member) = self.group.members().get(self.index) else {
            return;
        };
        let request = Request {
            client: Some(client.address),
            ..Request::at_time(now)
        };
        let advice = Advice::Member(member.id);
        // The decision has been taken.
        let _ = self.group.choose_advised(&request, advice, &mut client.rng);
    }

    /// The member.
    pub fn chosen(&self) -> ChosenMember<'_> {
        let (index, reference) = (self.index, &self.reference);
        ChosenMember { index, reference }
    }
}

/// Has `custom` choose a member of its group for a client, without counting the client
/// there; if it does not, the group's strategy does.
///
/// # Errors
///
/// Nobody may be used.
pub async fn decide_by_custom(
    entry: &Entry,
    custom: &Arc<Custom>,
    client: &mut Client,
) -> Result<Decision, PickError> {
    let asked = match custom.ask(&entry.reference).await {
        Ok(named) => custom.check(entry, &named),
        Err(failure) => Err(failure),
    };
    match asked {
        Ok(decision) => {
            decision.explain(client, custom.now());
            Ok(decision)
        }
        Err(failure) => {
            custom.complain(entry, &failure);
            let group = entry.handle.current.load_full();
            let advice = Some(Advice::Nobody(failure.name()));
            let chosen = locator::choose_member(entry, &group, client, advice, custom.now())?;
            let (index, reference) = (chosen.index, Arc::clone(chosen.reference));
            let by = Answer::Fallback;
            Ok(Decision {
                group,
                index,
                reference,
                by,
            })
        }
    }
}

impl Custom {
    /// The member that was named, if it may be used.
    fn check(&self, entry: &Entry, named: &Ior) -> Result<Decision, Failure> {
        let unusable = |why: &str| Failure::Unusable(why.into());
        let group = entry.handle.current.load_full();
        let mut members = (0..group.members().len())
            .filter_map(|index| Some((index, entry.member(&group, index)?)));
        let found = members.find(|(_, reference)| reference.is_same_object(named));
        let (index, reference) = found.ok_or_else(|| match named.is_nil() {
            true => unusable("the answer is nil"),
            false => unusable("the answer is an object that is not a member of the group"),
        })?;
        let request = Request::at_time(self.now());
        let view = group.view_for(&request);
        match view.explain_obstacle(index) {
            Some(obstacle) => Err(Failure::Unusable(format!(
                "the answer is a member that gets no new clients ({obstacle})"
            ))),
            None => Ok(Decision {
                index,
                reference: Arc::clone(reference),
                by: Answer::Custom,
                group: Arc::clone(&group),
            }),
        }
    }

    /// Counts an answer that cannot be used, and says so, but not each time.
    fn complain(&self, entry: &Entry, failure: &Failure) {
        let Failure::Unusable(why) = failure else {
            return;
        };
        self.counts.unusable.fetch_add(1, Ordering::Relaxed);
        let mut health = self.health();
        let now = self.now();
        let last = health.complained;
        if last.is_none_or(|last| now.since(last) >= COMPLAINT_INTERVAL) {
            health.complained = Some(now);
            let (group, strategy) = (entry.name(), self.place());
            warn!(%group, strategy, why, "the answer of a custom strategy cannot be used: the group's \
                own strategy decides");
        }
    }
}

/// Tells custom strategies of loads, for ever: after each round of reports, wherever they
/// come from, those of each location are pushed to the strategies of the groups there, which
/// are then told to analyze them.
pub async fn follow_loads(directory: Arc<Directory>, clock: Clock) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reported: HashMap<Ior, Arc<tokio::sync::Mutex<Reported>>> = HashMap::new();
    loop {
        rounds.tick().await;
        let work = by_strategy(&directory.load_snapshot());
        reported.retain(|ior, _| work.contains_key(ior));
        for (ior, (custom, groups)) in work {
            let reported = Arc::clone(reported.entry(ior).or_default());
            // One that takes longer than a round gets the next one when it is done.
            let Ok(mut reported) = reported.try_lock_owned() else {
                continue;
            };
            if groups
                .first()
                .is_some_and(|any| custom.may_ask(&any.reference))
            {
                let now = clock.now();
                tokio::spawn(async move { reported.tell(&custom, &groups, now).await });
            }
        }
    }
}

/// The custom strategies of all groups, with the groups.
fn by_strategy(snapshot: &Snapshot) -> HashMap<Ior, (Arc<Custom>, Vec<Arc<Entry>>)> {
    let mut work: HashMap<Ior, (Arc<Custom>, Vec<Arc<Entry>>)> = HashMap::new();
    for entry in snapshot.with_custom() {
        if let Some(custom) = &entry.custom {
            let work = work.entry(custom.ior().clone());
            let (_, groups) = work.or_insert_with(|| (Arc::clone(custom), Vec::new()));
            groups.push(Arc::clone(entry));
        }
    }
    work
}

/// Loads that were reported to a strategy.
#[derive(Debug, Default)]
struct Reported {
    /// Of each location.
    loads: HashMap<Arc<str>, Vec<load::Load>>,
}

impl Reported {
    /// Tells it what is new.
    async fn tell(&mut self, custom: &Custom, groups: &[Arc<Entry>], now: Instant) {
        let mut fresh: HashMap<Arc<str>, Vec<Load>> = HashMap::new();
        let mut there = HashMap::new();
        let mut concerned = Vec::new();
        for entry in groups {
            let group = entry.handle.current.load_full();
            let max_age = group.settings().load_max_age;
            let mut news = false;
            for Member { location, .. } in group.members() {
                let name = location.name();
                let before = self.loads.get(name).map_or(&[][..], Vec::as_slice);
                let loads: Vec<_> = location.list_loads(now).collect();
                let is_new = |load: &&load::Load| {
                    !load.expired
                        && now.since(load.at) <= max_age
                        && !before.iter().any(|b| is_same(b, load))
                };
                let new: Vec<_> = loads.iter().filter(is_new).map(as_reported).collect();
                if !new.is_empty() {
                    news = true;
                    fresh.insert(Arc::clone(name), new);
                }
                there.insert(Arc::clone(name), loads);
            }
            if news {
                concerned.push(entry);
            }
        }
        self.loads = there;
        for (location, loads) in fresh {
            if custom.health().not_adaptive {
                break;
            }
            let Ok(name) = location.parse::<Name>() else {
                debug!(
                    %location,
                    "the location is not a CORBA name: a custom strategy does not get its loads"
                );
                continue;
            };
            let reported = custom.push(&name, &loads).await;
            custom.note(&reported);
            if matches!(reported, Err(Failure::Silent(_))) {
                return;
            }
        }
        for entry in concerned {
            if let Err(error) = custom.analyze(&entry.reference).await {
                custom.note::<()>(&Err(error));
                return;
            }
        }
    }
}

fn as_reported(load: &load::Load) -> Load {
    Load {
        id: load.id.0,
        value: load.value.get(),
    }
}

/// Returns true if both are the same report. The time of a report is known to a few milliseconds
/// only.
fn is_same(before: &load::Load, now: &load::Load) -> bool {
    let same = before.id == now.id && before.value == now.value;
    same && now.at <= before.at.after(REPORT_GRAIN)
}

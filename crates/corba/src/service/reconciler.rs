//! Keeps infrastructure-controlled groups at their numbers: carries out what
//! [`Membership`] decides.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_control::opinion::{Source, SourceReport};
use evenkeel_core::alert::Threshold;
use evenkeel_core::strategy::shaping::shaping;
use evenkeel_giop::exception::Kind;
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::factory::call_factory;
use super::groups::location_text;
use super::load_manager::LoadManager;
use super::raise::Raise;
use super::state::{GroupMember, ObjectGroup, State};
use crate::exceptions::UserException;
use crate::membership::{Action, Desired, Membership, Observed};
use crate::properties::{self, EffectiveSettings};

/// Least interval at which groups are looked at.
const ROUND: Duration = Duration::from_secs(1);

/// Least time from the beginning of a round to the next, as a multiple of the time that the round
/// took.
const REST: u32 = 8;

/// Groups that are looked at before others get their turn.
const AT_ONCE: usize = 64;

type Groups = OrdMap<u64, Arc<ObjectGroup>>;

/// State of the groups whose members the load manager makes.
#[derive(Default)]
struct Reconciler {
    groups: HashMap<u64, Membership>,
    /// Factories that have been called: for which group, where, and what came of it.
    making: JoinSet<(u64, String, Result<GroupMember, Raise>)>,
    rng: fastrand::Rng,
}

/// Looks after groups for as long as the load manager is there.
pub(super) async fn run(load_manager: Weak<LoadManager>) {
    let Some(mut states) = load_manager.upgrade().map(|this| this.watch_states()) else {
        return;
    };
    let mut reconciler = Reconciler::default();
    let mut known = OrdMap::new();
    let mut next = Instant::now();
    loop {
        let Some(this) = load_manager.upgrade() else {
            return;
        };
        let state = Arc::clone(&states.borrow_and_update());
        let begun = Instant::now();
        if begun >= next {
            reconciler.round(&this, &state).await;
            // With so many groups that a round takes long, rounds are fewer.
            next = begun + ROUND.max(begun.elapsed() * REST);
        } else {
            reconciler.follow(&this, &known, &state).await;
        }
        known = state.groups.clone();
        // It goes on when the state file is written again.
        let _ = this.keep_forced_alerts().await;
        drop((this, state));
        tokio::select! {
            changed = states.changed() => if changed.is_err() { return },
            () = sleep_until(next) => {}
            Some(made) = reconciler.making.join_next(), if !reconciler.making.is_empty() => {
                let Some(this) = load_manager.upgrade() else {
                    return;
                };
                match made {
                    Ok((id, at, made)) => reconciler.made(&this, id, &at, made).await,
                    Err(error) => warn!("a factory could not be called: {error}"),
                }
            }
        }
    }
}

impl Reconciler {
    /// Has done for all groups what is to be done now.
    async fn round(&mut self, this: &Arc<LoadManager>, state: &State) {
        self.groups.retain(|id, _| state.groups.contains_key(id));
        for (number, (&id, group)) in state.groups.iter().enumerate() {
            self.look(this, state, id, group).await;
            if number % AT_ONCE == 0 {
                // Others want their turn.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Does what is to be done for the groups that have changed.
    async fn follow(&mut self, this: &Arc<LoadManager>, known: &Groups, state: &State) {
        for item in known.diff(&state.groups) {
            match item {
                DiffItem::Add(&id, group)
                | DiffItem::Update {
                    new: (&id, group), ..
                } => self.look(this, state, id, group).await,
                DiffItem::Remove(id, _) => {
                    self.groups.remove(id);
                }
            }
        }
    }

    /// Does what is to be done for one group.
    async fn look(&mut self, this: &Arc<LoadManager>, state: &State, id: u64, group: &ObjectGroup) {
        if state.membership(group) == properties::Membership::Application {
            // From now on the application says who goes.
            let before = self.groups.remove(&id);
            if let Some(at) = before.as_ref().and_then(Membership::departing_location) {
                this.drain(id, at, false);
            }
            return;
        }
        let counts = state.effective_settings(group);
        let actions = self.decide(this, id, group, &counts);
        for action in actions {
            match action {
                Action::Make(at) => self.make(this, id, group, &counts, at),
                Action::Drain(at) => this.drain(id, &at, true),
                Action::Resume(at) => this.drain(id, &at, false),
                Action::Remove(at) => {
                    let membership = self.groups.get(&id);
                    let drained = membership.and_then(Membership::departing_location);
                    let is_unneeded = drained == Some(at.as_str());
                    this.drop_member(id, &at, is_unneeded).await;
                }
            }
        }
    }

    fn decide(
        &mut self,
        this: &LoadManager,
        id: u64,
        group: &ObjectGroup,
        counts: &EffectiveSettings,
    ) -> Vec<Action> {
        let now = this.manager().clock().now();
        let factories = counts.factories.iter();
        let factories: Vec<String> = factories
            .filter_map(|info| location_text(&info.the_location).ok())
            .collect();
        let (critical, loads) = this.loads_of(id, counts);
        let desired = Desired {
            minimum: usize::from(counts.minimum_members),
            initial: usize::from(counts.initial_members),
            maximum: counts.maximum_members.map(usize::from),
            factories: &factories,
            critical,
        };
        let observed: Vec<Observed<'_>> = group
            .members
            .iter()
            .map(|member| Observed {
                location: &member.location,
                made_by_factory: member.origin.is_some(),
                health: this.health_of(id, member),
                load: loads.get(&member.location).copied(),
            })
            .collect();
        let membership = self.groups.entry(id).or_default();
        membership.next_actions(now, &desired, &observed, &mut self.rng)
    }

    fn make(
        &mut self,
        this: &LoadManager,
        id: u64,
        group: &ObjectGroup,
        counts: &EffectiveSettings,
        at: String,
    ) {
        let is_it = |place: &crate::name::Name| place.to_string() == at;
        let mut factories = counts.factories.iter();
        let Some(info) = factories.find(|info| is_it(&info.the_location)).cloned() else {
            return;
        };
        let (client, type_id) = (this.client().clone(), group.type_id.clone());
        let timeout = this.settings().call_timeout;
        self.making.spawn(async move {
            let made = call_factory(&client, &info, &type_id, &type_id, timeout).await;
            (id, at, made)
        });
    }

    /// A factory has answered, or not.
    async fn made(
        &mut self,
        this: &LoadManager,
        id: u64,
        at: &str,
        made: Result<GroupMember, Raise>,
    ) {
        let joined = match this.not_ours(made) {
            Ok(member) => this.join_members(id, vec![member]).await.map(|_| ()),
            Err(raise) => Err(raise),
        };
        let now = this.manager().clock().now();
        let membership = self.groups.get_mut(&id);
        match joined {
            Ok(()) => {
                info!(id, location = at, "a factory has created a member");
                if let Some(membership) = membership {
                    membership.record_new_member(at);
                }
            }
            Err(raise) => {
                warn!(
                    id,
                    location = at,
                    "a factory has created no member: {raise}"
                );
                match membership {
                    Some(membership) if is_our_shortage(&raise) => {
                        membership.record_uncalled_factory(at)
                    }
                    Some(membership) => membership.record_creation_failure(now, at, &mut self.rng),
                    None => {}
                }
            }
        }
    }
}

/// Returns true if a factory was not called because this process ran out of something: nothing else
/// of [`call_factory`] is this exception.
fn is_our_shortage(raise: &Raise) -> bool {
    matches!(raise, Raise::System(exception) if exception.kind == Kind::NoResources)
}

impl LoadManager {
    /// The critical load of a group, if it has one, and the effective loads of its
    /// locations that are known: what the threshold is compared with elsewhere, too.
    fn loads_of(&self, id: u64, counts: &EffectiveSettings) -> (Option<f32>, HashMap<String, f32>) {
        let snapshot = self.directory().load_snapshot();
        let Some(entry) = snapshot.group(id) else {
            return (None, HashMap::new());
        };
        let group = entry.handle.current.load();
        let settings = group.settings();
        let own = group.alert_threshold();
        let critical = match settings.alert.threshold.or(own) {
            Some(Threshold::Critical(level)) => Some(level),
            _ => None,
        };
        let configured = self.settings();
        let strategy = counts.strategy.as_ref();
        let shaping = shaping(strategy.unwrap_or(&configured.groups.strategy));
        let now = self.manager().clock().now();
        let members = group.members().iter();
        let loads = members.filter_map(|member| {
            let load = member.effective_load(&shaping, settings, now)?.load;
            Some((member.location.name().to_string(), load))
        });
        (critical, loads.collect())
    }

    /// Gives a member no new clients, or gives it some again.
    fn drain(&self, id: u64, at: &str, drain: bool) {
        if drain {
            info!(
                id,
                location = at,
                "an unneeded member is drained: it gets no new clients"
            );
        } else {
            info!(
                id,
                location = at,
                "the drain of a member has ended: it gets new clients"
            );
        }
        let opinion = drain.then(|| SourceReport {
            drain,
            ..SourceReport::default()
        });
        self.set_opinion(id, at, Source::Membership, opinion.as_ref());
    }

    /// Tells Evenkeel's manager something about a member.
    pub(super) fn set_opinion(
        &self,
        id: u64,
        at: &str,
        source: Source,
        opinion: Option<&SourceReport>,
    ) {
        let snapshot = self.directory().load_snapshot();
        let Some(entry) = snapshot.group(id) else {
            return;
        };
        let group = entry.handle.current.load();
        let member = group.members().iter().find(|member| *member.name == *at);
        if let Some(member) = member {
            self.manager().set_opinion_of(member.id, source, opinion);
        }
    }

    /// Takes a member away, and has its factory delete it. `is_unneeded` is true for a drained member that
    /// serves; otherwise the member is gone.
    async fn drop_member(&self, id: u64, at: &str, is_unneeded: bool) {
        let removed = self
            .change(|state| {
                let group = state.group_mut(id)?;
                let place = group.members.iter().position(|m| m.location == at);
                let place = place.ok_or(UserException::MemberNotFound)?;
                Ok(group.members.remove(place))
            })
            .await;
        match removed {
            Ok(member) => {
                if is_unneeded {
                    info!(id, location = at, "an unneeded member is removed");
                } else {
                    warn!(
                        id,
                        location = at,
                        "a member that is dead or does not answer is removed"
                    );
                }
                self.delete_member(member);
            }
            Err(raise) => warn!(id, location = at, "a member could not be removed: {raise}"),
        }
    }
}

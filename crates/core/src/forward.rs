//! Binding clients that go to members themselves, and come back when a member sends them:
//! by `LOCATION_FORWARD`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::group::{Group, GroupState, PickError, Request};
use crate::member::MemberId;
use crate::time::Instant;

/// A client as [pulses](crate::pulse) know it: where it is, and what load it seems to
/// bring.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// The member's id plus one; 0 is none yet.
    member: AtomicU64,
    /// f32 bits; 0 is not known yet.
    load: AtomicU32,
}

impl Client {
    pub(crate) fn member(&self) -> Option<MemberId> {
        let id = self.member.load(Ordering::Relaxed);
        id.checked_sub(1).map(MemberId)
    }

    fn set_member(&self, member: MemberId) {
        self.member
            .store(member.0.wrapping_add(1), Ordering::Relaxed);
    }

    /// The load that it seems to bring; `None` is not known yet.
    pub(crate) fn load(&self) -> Option<f32> {
        match self.load.load(Ordering::Relaxed) {
            0 => None,
            bits => Some(f32::from_bits(bits)),
        }
    }

    pub(crate) fn set_load(&self, load: f32) {
        let load = load.max(f32::MIN_POSITIVE);
        self.load.store(load.to_bits(), Ordering::Relaxed);
    }
}

/// What the manager remembers of a client of one group, as long as it can tell that it is
/// the same one: by its connection to the manager. The client counts as there until the
/// trail is dropped.
#[derive(Debug, Default)]
pub struct Trail {
    client: Option<Arc<Client>>,
    /// Where its member was when last looked for.
    index: usize,
    waits: Option<Waits>,
}

#[derive(Clone, Copy, Debug)]
struct Waits {
    since: Instant,
    /// Where it goes when it may.
    to: MemberId,
    /// Whether it waits for others to leave in its place.
    undecided: bool,
}

/// What becomes of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// It goes to the member at this index.
    To(usize),
    /// It asks again after about [`Forward::PAUSE`], with the same trail: others are to leave
    /// rather than this one, or the member that it is meant for does not take anybody yet.
    Wait,
}

impl Forward {
    /// How long a client waits until it is looked at again.
    pub const PAUSE: Duration = Duration::from_millis(2);

    /// How long it waits for others to leave in its place.
    pub const PATIENCE: Duration = Duration::from_millis(50);

    /// How long it waits in all: then it goes wherever it can.
    pub const LONGEST: Duration = Duration::from_millis(250);
}

/// For how long a client is taken to stay: until it is told to leave.
const STAY: Duration = Duration::from_secs(3600);

impl Group {
    /// Chooses a member for a client that goes there itself, and counts it there, as
    /// [`Group::choose`] and [`Group::assign`] do. In a group that
    /// [pulses](crate::analyzer::AlertSettings::pulses), and while one is on, the pulse has a say: who leaves, for
    /// where, and who stays.
    pub fn forward(
        &self,
        request: &Request<'_>,
        trail: &mut Trail,
        rng: &mut fastrand::Rng,
    ) -> Result<Forward, PickError> {
        let now = request.now;
        let mut to = None;
        if self.settings().alert.pulses {
            let client = trail.client(self.state());
            let mut waits = trail.waits;
            if waits.is_none() && self.state().is_pulsing() {
                waits = self.depart(&client, &mut trail.index, now);
            }
            if let Some(waits) = &mut waits {
                if waits.undecided && now.since(waits.since) >= Forward::PATIENCE {
                    self.give_up(waits.to);
                }
                let waited = now.since(waits.since);
                to = self.find(waits.to, trail.index);
                let open = |index: usize| {
                    let location = &self.members()[index].location;
                    !location.is_shut() && (!waits.undecided || !location.has_pulse())
                };
                if let Some(index) = to
                    && !open(index)
                    && waited < Forward::LONGEST
                {
                    trail.waits = Some(*waits);
                    return Ok(Forward::Wait);
                }
                to = to.filter(|&index| open(index));
                trail.waits = None;
            }
            let back = to.filter(|&to| client.member() == Some(self.members()[to].id));
            if let Some(index) = back {
                trail.index = index;
                return Ok(Forward::To(index));
            }
        }
        let usable = |index: &usize| {
            let all = self.view(request).despite_alerts();
            all.is_eligible_unless_full(*index)
        };
        let index = match to.filter(usable) {
            Some(index) => index,
            None => self.choose(request, rng)?,
        };
        self.assign(index, STAY);
        if let Some(client) = &trail.client {
            client.set_member(self.members()[index].id);
            trail.index = index;
        }
        Ok(Forward::To(index))
    }

    /// What the pulse that is on says of a client that has come.
    fn depart(&self, client: &Client, hint: &mut usize, now: Instant) -> Option<Waits> {
        let plan = self.state().plan()?;
        let Some(id) = client.member() else {
            // It was not known before.
            let (to, undecided) = match plan.roll_call() {
                Some(member) => {
                    client.set_member(member);
                    (member, true)
                }
                // It counts for whoever is to give somebody away.
                None => (plan.stranger(now)?, false),
            };
            return Some(Waits {
                since: now,
                to,
                undecided,
            });
        };
        let from = self.find(id, *hint)?;
        *hint = from;
        let location = &self.members()[from].location;
        let departures = plan.at(location)?;
        if location.has_pulse()
            && let Some(to) = departures.leave(client.load(), now)
        {
            return Some(Waits {
                since: now,
                to,
                undecided: false,
            });
        }
        Some(Waits {
            since: now,
            to: id,
            undecided: location.has_pulse(),
        })
    }

    /// Nobody else comes in time to leave the place of member `id`.
    fn give_up(&self, id: MemberId) {
        if let Some(plan) = self.state().plan()
            && let Some(index) = self.find(id, 0)
            && let Some(departures) = plan.at(&self.members()[index].location)
        {
            departures.end();
        }
    }

    fn find(&self, id: MemberId, hint: usize) -> Option<usize> {
        let members = self.members();
        match members.get(hint).is_some_and(|member| member.id == id) {
            true => Some(hint),
            false => members.iter().position(|member| member.id == id),
        }
    }
}

impl Trail {
    /// The trail of a client that is at the member at `index` of `group`.
    pub fn at(group: &Group, index: usize) -> Self {
        let mut trail = Trail::default();
        if let Some(member) = group.members().get(index) {
            trail.client(group.state()).set_member(member.id);
            trail.index = index;
        }
        trail
    }

    fn client(&mut self, state: &GroupState) -> Arc<Client> {
        let client = self.client.get_or_insert_with(|| {
            let client = Arc::new(Client::default());
            state.add_client(Arc::clone(&client));
            client
        });
        Arc::clone(client)
    }
}

//! Binding clients that go to members themselves, and come back when a member sends them:
//! by `LOCATION_FORWARD`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::group::{Group, GroupState, PickError, Request};
use crate::load::Location;
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
/// trail is dropped. A trail is for one group.
#[derive(Debug, Default)]
pub struct Trail {
    client: Option<Arc<Client>>,
    /// Where its member was when last looked for.
    index: usize,
    waits: Option<Waits>,
    knocks_since: Option<Instant>,
    /// When it last knocked in vain, and how often it did so in a row.
    in_vain: Option<(Instant, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Waits {
    since: Instant,
    /// Where it goes when it may.
    to: MemberId,
    /// Whether it waits for others to leave in its place.
    undecided: bool,
}

/// What a [pulse](crate::pulse) says of a client that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing: the strategy chooses.
    Free,
    /// It goes to the member at this index, and is new there.
    To(usize),
    /// It goes back to the member at this index, where it was.
    Back(usize),
    /// It asks again after about [`Advice::PAUSE`], with the same trail: others are to leave
    /// rather than this one, or the member that it is meant for does not take anybody yet.
    Wait,
}

impl Advice {
    /// How long a client waits until it is looked at again.
    pub const PAUSE: Duration = Duration::from_millis(2);

    /// How long it waits for others to leave in its place.
    pub const PATIENCE: Duration = Duration::from_millis(50);

    /// How long it waits in all: then it goes wherever it can.
    pub const LONGEST: Duration = Duration::from_millis(250);

    /// How long one waits, at the most, that was sent back each time it had waited: twice as long
    /// each time.
    pub const LONGEST_IN_VAIN: Duration = Duration::from_secs(4);

    /// How long such a client is remembered to have waited in vain.
    const MEMORY: Duration = Duration::from_secs(10);
}

/// For how long a client is taken to stay: until it is told to leave.
const STAY: Duration = Duration::from_secs(3600);

/// What becomes of a client ([`Group::forward`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// It goes to the member at this index.
    To(usize),
    /// It asks again, as with [`Advice::Wait`].
    Wait,
}

impl Group {
    /// Chooses a member for a client that goes there itself, and counts it there, as
    /// [`Group::advise`], [`Group::choose`], [`Group::assign`] and [`Trail::leads_to`] do
    /// one after the other.
    pub fn forward(
        &self,
        request: &Request<'_>,
        trail: &mut Trail,
        rng: &mut fastrand::Rng,
    ) -> Result<Forward, PickError> {
        let index = match self.advise(trail, request.now) {
            Advice::Wait => return Ok(Forward::Wait),
            Advice::Back(index) => return Ok(Forward::To(index)),
            Advice::To(index) => index,
            Advice::Free => {
                let index = self.choose(request, rng)?;
                if trail.knocks(&self.members()[index].location, request.now) {
                    return Ok(Forward::Wait);
                }
                index
            }
        };
        self.assign(index, STAY);
        trail.leads_to(self, index);
        Ok(Forward::To(index))
    }

    /// What a pulse says of a client that has come, in a group that
    /// [pulses](crate::analyzer::AlertSettings::pulses) and while one is on: who leaves, for
    /// where, and who stays. Otherwise it costs next to nothing.
    #[inline]
    pub fn advise(&self, trail: &mut Trail, now: Instant) -> Advice {
        match trail.waits.is_some() || self.state().is_pulsing() {
            true => self.advise_in_pulse(trail, now),
            false => Advice::Free,
        }
    }

    /// For where a client leaves its member in the pulse that is on, if it does: one whose
    /// requests we carry, so that it need not wait for anybody.
    #[inline]
    pub(crate) fn departs(&self, trail: &mut Trail, now: Instant) -> Option<usize> {
        if !self.state().is_pulsing() {
            return None;
        }
        let advice = self.advise_in_pulse(trail, now);
        trail.waits = None;
        match advice {
            Advice::To(index) => Some(index),
            _ => None,
        }
    }

    #[cold]
    fn advise_in_pulse(&self, trail: &mut Trail, now: Instant) -> Advice {
        let client = trail.client(self.state());
        let waits = match trail.waits.take() {
            Some(waits) => waits,
            None => match self.depart(&client, &mut trail.index, now) {
                Some(waits) => waits,
                None => return Advice::Free,
            },
        };
        let waited = now.since(waits.since);
        if waits.undecided && waited >= Advice::PATIENCE {
            self.give_up(waits.to, now);
        }
        let Some(index) = self.find(waits.to, trail.index) else {
            return Advice::Free;
        };
        let location = &self.members()[index].location;
        if location.is_shut() || waits.undecided && location.has_pulse() {
            if waited >= Advice::LONGEST {
                return Advice::Free;
            }
            trail.waits = Some(waits);
            return Advice::Wait;
        }
        let request = Request::at(now);
        if !self
            .view(&request)
            .despite_alerts()
            .is_eligible_unless_full(index)
        {
            return Advice::Free;
        }
        match client.member() == Some(waits.to) {
            true => Advice::Back(index),
            false => Advice::To(index),
        }
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
            if departures.rebinds() {
                // Nowhere until the strategy has chosen.
                client.member.store(0, Ordering::Relaxed);
                return None;
            }
            return Some(Waits {
                since: now,
                to,
                undecided: false,
            });
        }
        let on = location.has_pulse();
        (on || departures.echoes(now)).then_some(Waits {
            since: now,
            to: id,
            undecided: on,
        })
    }

    /// Nobody else comes in time to leave the place of member `id`.
    fn give_up(&self, id: MemberId, now: Instant) {
        if let Some(plan) = self.state().plan()
            && let Some(index) = self.find(id, 0)
            && let Some(departures) = plan.at(&self.members()[index].location)
        {
            departures.end(now);
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
    /// Whether the client that was to go to a member at `location` asks again later
    /// ([`Advice::Wait`]), because whoever comes there is sent back. It does so for
    /// [`Advice::LONGEST`], and for longer if it comes back from there: where nobody else can
    /// take it, it would go to and fro otherwise as fast as it can.
    #[inline]
    pub fn knocks(&mut self, location: &Location, now: Instant) -> bool {
        if !location.is_shut() {
            (self.knocks_since, self.in_vain) = (None, None);
            return false;
        }
        let since = *self.knocks_since.get_or_insert(now);
        let knocks = now.since(since) < self.patience(since);
        if !knocks {
            let before = self.in_vain_at(since);
            (self.knocks_since, self.in_vain) = (None, Some((now, before + 1)));
        }
        knocks
    }

    /// How often it had knocked in vain of late when it began to at `since`.
    fn in_vain_at(&self, since: Instant) -> u32 {
        let lately = |(at, _): &(Instant, u32)| since.since(*at) < Advice::MEMORY;
        self.in_vain.filter(lately).map_or(0, |(_, times)| times)
    }

    fn patience(&self, since: Instant) -> Duration {
        let times = self.in_vain_at(since).min(16);
        (Advice::LONGEST * (1 << times)).min(Advice::LONGEST_IN_VAIN)
    }

    /// How long the client that is to [wait](Advice::Wait) waits at the most before it asks
    /// again, if nothing changes.
    pub fn longest_wait(&self, now: Instant) -> Duration {
        let of_pulse = self.waits.map(|waits| {
            let patience = waits.since.after(Advice::PATIENCE);
            match waits.undecided && now < patience {
                true => patience,
                false => waits.since.after(Advice::LONGEST),
            }
        });
        let knocks = self.knocks_since;
        let of_knocks = knocks.map(|since| since.after(self.patience(since)));
        let until = of_pulse.into_iter().chain(of_knocks).min();
        until.map_or(Advice::PAUSE, |until| until.since(now))
    }

    /// The client is sent to the member at `index` of `group`. Noted only where it can be
    /// of use: where alerts are pulses.
    #[inline]
    pub fn leads_to(&mut self, group: &Group, index: usize) {
        if group.settings().alert.pulses
            && let Some(member) = group.members().get(index)
        {
            self.client(group.state()).set_member(member.id);
            self.index = index;
            member.location.count_client();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// When a client that comes at `from` goes to a member that sends it back.
    fn goes(trail: &mut Trail, location: &Location, from: u64) -> u64 {
        let mut now = from;
        while trail.knocks(location, at(now)) {
            let wait = trail.longest_wait(at(now));
            assert!(wait > Duration::ZERO);
            now += wait.as_millis() as u64;
        }
        now
    }

    #[test]
    fn c8_a_client_that_comes_back_in_vain_waits_longer_each_time() {
        let (mut trail, location) = (Trail::default(), Location::new("host"));
        assert!(!trail.knocks(&location, at(1)));
        location.set_shut(true);
        let mut now = 1;
        for wait in [250, 500, 1000, 2000, 4000, 4000] {
            assert_eq!(goes(&mut trail, &location, now) - now, wait);
            now += wait + 3;
        }
        // After a long time it is another story.
        now += 20_000;
        assert_eq!(goes(&mut trail, &location, now) - now, 250);
        // Nobody waits for what is open, and what was in vain before is forgotten.
        location.set_shut(false);
        assert!(!trail.knocks(&location, at(now + 300)));
        location.set_shut(true);
        assert_eq!(goes(&mut trail, &location, now + 400) - now - 400, 250);
    }
}

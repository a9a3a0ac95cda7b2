//! Binding clients that go to members themselves, and come back when a member sends them:
//! by `LOCATION_FORWARD`.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::{Group, Request};
use evenkeel_core::load::Location;
use evenkeel_core::relocation::{Client, RelocationTarget};
use evenkeel_core::time::Instant;

/// State that the manager keeps of a client of one group, as long as it can tell by the connection
/// to the manager that the client is the same. The client counts as present until the trail is
/// dropped. A trail is for one group.
#[derive(Debug, Default)]
pub struct Trail {
    client: Option<Arc<Client>>,
    /// Index of the client's member when it was last looked up.
    index: usize,
    waits: Option<Waits>,
    knocks_since: Option<Instant>,
    /// Time at which the client was last sent to a member and came back, and how often that
    /// happened in a row.
    in_vain: Option<(Instant, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Waits {
    since: Instant,
    /// Move that the client makes when it may.
    goes: RelocationTarget,
}

/// Advice of a [pulse](crate::pulse) for a client that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing: the strategy chooses.
    Free,
    /// The client goes to the member at this index, and is new there.
    To(usize),
    /// The client goes back to the member at this index, where it was.
    Back(usize),
    /// The client asks again after about [`Advice::PAUSE`], with the same trail. Other clients are
    /// to leave rather than this one, or the member that it is meant for takes nobody yet.
    Wait,
}

impl Advice {
    /// Time that a client waits until it is looked at again.
    pub const PAUSE: Duration = Duration::from_millis(2);

    /// Time that a client waits for others to leave in its place.
    pub const PATIENCE: Duration = Duration::from_millis(50);

    /// Longest time that a client waits in all; after it the client goes wherever it can.
    pub const LONGEST: Duration = Duration::from_millis(250);

    /// Longest wait of a client that was sent back each time it had waited. The wait doubles each
    /// time up to this limit.
    pub const LONGEST_IN_VAIN: Duration = Duration::from_secs(4);

    /// Time for which a client is remembered to have waited in vain.
    const MEMORY: Duration = Duration::from_secs(10);
}

impl Trail {
    /// Returns the advice of a pulse for a client that has come: who leaves, for where, and who stays.
    /// There is advice in a group that [pulses](evenkeel_core::alert::AlertSettings::pulses), while a
    /// pulse is on. Otherwise the call costs next to nothing.
    #[inline]
    pub fn advise_client(&mut self, group: &Group, now: Instant) -> Advice {
        if self.waits.is_some() || group.state().is_relocating() {
            self.advise_in_pulse(group, now)
        } else {
            Advice::Free
        }
    }

    #[cold]
    fn advise_in_pulse(&mut self, group: &Group, now: Instant) -> Advice {
        let client = group.state().ensure_client(&mut self.client);
        let relocation = group.state().relocation();
        let waits = self.waits.take().or_else(|| {
            let relocation = relocation.as_ref()?;
            let goes = relocation.ask(group.members(), client, &mut self.index, now)?;
            Some(Waits { since: now, goes })
        });
        let Some(waits) = waits else {
            return Advice::Free;
        };
        let RelocationTarget { to, undecided } = waits.goes;
        let waited = now.since(waits.since);
        let Some(index) = group.find(to, self.index) else {
            return Advice::Free;
        };
        let location = &group.members()[index].location;
        if undecided
            && waited >= Advice::PATIENCE
            && let Some(relocation) = &relocation
        {
            relocation.give_up(location, now);
        }
        if location.is_shut() || undecided && location.has_pulse() {
            if waited >= Advice::LONGEST {
                return Advice::Free;
            }
            self.waits = Some(waits);
            return Advice::Wait;
        }
        let request = Request::at_time(now);
        let view = group.view_for(&request).despite_alerts();
        if !view.is_eligible_unless_full(index) {
            Advice::Free
        } else if client.member() == Some(to) {
            Advice::Back(index)
        } else {
            Advice::To(index)
        }
    }

    /// Returns true if the client that was to go to a member at `location` asks again later
    /// ([`Advice::Wait`]), because whoever comes to the location is sent back. The client does so
    /// for [`Advice::LONGEST`], and for longer if it comes back from there: if nobody else could
    /// take it, it would otherwise go to and fro as fast as it can.
    #[inline]
    pub fn must_ask_later(&mut self, location: &Location, now: Instant) -> bool {
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

    /// Returns how often the client had recently come back when this wait began, at `since`.
    fn in_vain_at(&self, since: Instant) -> u32 {
        let lately = |(at, _): &(Instant, u32)| since.since(*at) < Advice::MEMORY;
        self.in_vain.filter(lately).map_or(0, |(_, times)| times)
    }

    fn patience(&self, since: Instant) -> Duration {
        let times = self.in_vain_at(since).min(16);
        (Advice::LONGEST * (1 << times)).min(Advice::LONGEST_IN_VAIN)
    }

    /// Returns the longest time until a client that is to [wait](Advice::Wait) asks again, if
    /// nothing changes.
    pub fn longest_wait(&self, now: Instant) -> Duration {
        let of_pulse = self.waits.map(|waits| {
            let patience = waits.since.after(Advice::PATIENCE);
            if waits.goes.undecided && now < patience {
                patience
            } else {
                waits.since.after(Advice::LONGEST)
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
        group.bind_client(&mut self.client, index);
        self.index = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// Returns the time at which a client that comes at `from` goes to a member that sends it back.
    fn goes(trail: &mut Trail, location: &Location, from: u64) -> u64 {
        let mut now = from;
        while trail.must_ask_later(location, at(now)) {
            let wait = trail.longest_wait(at(now));
            assert!(wait > Duration::ZERO);
            now += wait.as_millis() as u64;
        }
        now
    }

    #[test]
    fn c8_a_client_that_comes_back_in_vain_waits_longer_each_time() {
        let (mut trail, location) = (Trail::default(), Location::new("host"));
        assert!(!trail.must_ask_later(&location, at(1)));
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
        assert!(!trail.must_ask_later(&location, at(now + 300)));
        location.set_shut(true);
        assert_eq!(goes(&mut trail, &location, now + 400) - now - 400, 250);
    }
}

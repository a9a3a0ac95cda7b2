//! Membership of the fleet, by the membership library (SWIM: Das, Gupta and Motivala, "SWIM:
//! Scalable Weakly-consistent Infection-style Process Group Membership Protocol", 2002), with time
//! and randomness from outside.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use evenkeel_core::time::Instant;
use foca::{Config, Foca, Member, NoCustomBroadcast, Notification, PeriodicParams, Runtime, Timer};

use crate::id::{Codec, Id};
use crate::seal::MAX_BODY;

/// Members of the fleet, as the library knows them.
pub(crate) struct Swim {
    foca: Foca<Id, Codec, Dice, NoCustomBroadcast>,
    effects: Effects,
    timers: BinaryHeap<Reverse<Due>>,
    /// Number of timers so far.
    timed: u64,
}

/// Effects that the library wants.
#[derive(Default)]
struct Effects {
    sent: Vec<(Id, Vec<u8>)>,
    timers: Vec<(Timer<Id>, Duration)>,
    changed: bool,
}

impl Runtime<Id> for Effects {
    fn notify(&mut self, _: Notification<'_, Id>) {
        self.changed = true;
    }

    fn send_to(&mut self, to: Id, data: &[u8]) {
        self.sent.push((to, data.to_vec()));
    }

    fn submit_after(&mut self, event: Timer<Id>, after: Duration) {
        self.timers.push((event, after));
    }
}

/// Randomness as the library wants it.
struct Dice(fastrand::Rng);

impl rand::TryRng for Dice {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.0.u32(..))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.u64(..))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill(bytes);
        Ok(())
    }
}

/// A timer, and when it is due.
struct Due {
    at: Instant,
    number: u64,
    timer: Timer<Id>,
}

impl Due {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.number)
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Due {}

const ONE: NonZeroUsize = NonZeroUsize::MIN;
const THREE: NonZeroUsize = ONE.saturating_add(2);

/// The library finds out who is gone more slowly than [`crate::fleet`] does by its own sheets, and
/// then for those that these do not reach.
fn config() -> Config {
    let each = |millis, num_members| {
        Some(PeriodicParams {
            frequency: Duration::from_millis(millis),
            num_members,
        })
    };
    Config {
        probe_period: Duration::from_secs(1),
        probe_rtt: Duration::from_millis(300),
        num_indirect_probes: THREE,
        max_transmissions: NonZeroU8::MIN.saturating_add(9),
        suspect_to_down_after: Duration::from_secs(3),
        remove_down_after: Some(Duration::from_secs(24 * 3600)),
        max_packet_size: ONE.saturating_add(MAX_BODY - 1),
        notify_down_members: true,
        periodic_announce: each(10_000, ONE),
        periodic_announce_to_down_members: each(1000, THREE),
        periodic_gossip: each(200, THREE),
    }
}

impl Swim {
    pub(crate) fn new(id: Id, rng: fastrand::Rng) -> Self {
        Swim {
            foca: Foca::new(id, config(), Dice(rng), Codec),
            effects: Effects::default(),
            timers: BinaryHeap::new(),
            timed: 0,
        }
    }

    /// Returns the identity of this balancer.
    pub(crate) fn id(&self) -> &Id {
        self.foca.identity()
    }

    /// All others that are in the fleet.
    pub(crate) fn list_active(&self) -> impl Iterator<Item = &Id> {
        self.foca.iter_members().map(Member::id)
    }

    /// The highest life of a process at an address of which is known, whether it is there or not; 0 is
    /// none.
    pub(crate) fn life_at(&self, address: SocketAddr) -> u64 {
        let known = self.foca.iter_membership_state().map(Member::id);
        let there = known.filter(|id| id.address == address);
        there.map(|id| id.life).max().unwrap_or(0)
    }

    /// Takes in a message of the library; answers whether it was one.
    pub(crate) fn receive_message(&mut self, data: &[u8], now: Instant) -> bool {
        let taken = self.foca.handle_data(data, &mut self.effects);
        self.schedule(now);
        taken.is_ok()
    }

    /// Somebody has answered, who is certainly there.
    pub(crate) fn note_alive(&mut self, id: &Id, now: Instant) {
        let member = Member::alive(id.clone());
        // These only fail if there is no room for two identities in a datagram.
        let _ = self
            .foca
            .apply_many(std::iter::once(member), true, &mut self.effects);
        if !self.list_active().any(|active| active == id) {
            // It counts as gone, and comes back under another number when it hears of that.
            let _ = self.foca.announce(id.clone(), &mut self.effects);
        }
        self.schedule(now);
    }

    /// Nobody hears of somebody any more.
    pub(crate) fn note_down(&mut self, id: &Id, now: Instant) {
        let member = Member::down(id.clone());
        let _ = self
            .foca
            .apply_many(std::iter::once(member), true, &mut self.effects);
        self.schedule(now);
    }

    /// There was a process at this address with this number: this one gets a higher one, unless it
    /// has one.
    pub(crate) fn outlive_process(&mut self, life: u64, now: Instant) {
        let id = self.id().clone();
        if life > id.life {
            let life = life.saturating_add(1);
            let _ = self
                .foca
                .change_identity(Id { life, ..id }, &mut self.effects);
            self.schedule(now);
        }
    }

    /// Says good-bye.
    pub(crate) fn leave(&mut self, now: Instant) {
        let _ = self.foca.leave_cluster(&mut self.effects);
        self.schedule(now);
    }

    /// Does what is due.
    pub(crate) fn run(&mut self, now: Instant) {
        while let Some(Reverse(due)) = self.timers.peek()
            && due.at <= now
        {
            let Some(Reverse(due)) = self.timers.pop() else {
                return;
            };
            // After a long pause a round of questions has not been finished, from which the library
            // goes on by itself.
            let _ = self.foca.handle_timer(due.timer, &mut self.effects);
            self.schedule(now);
        }
    }

    /// Returns the time at which there is something to do.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse(due)| due.at)
    }

    /// Takes the messages that are to be sent.
    pub(crate) fn take_sent(&mut self) -> Vec<(Id, Vec<u8>)> {
        std::mem::take(&mut self.effects.sent)
    }

    /// Returns true if somebody has come or gone since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.effects.changed)
    }

    fn schedule(&mut self, now: Instant) {
        for (timer, after) in self.effects.timers.drain(..) {
            self.timed += 1;
            self.timers.push(Reverse(Due {
                at: now.after(after),
                number: self.timed,
                timer,
            }));
        }
    }
}

//! Times that requests take at members, for balancers that know nothing of them yet.
//!
//! For each group only the balancer that decides upon its alerts tells the times, so that what a
//! fleet is told does not grow with its square. The time is a first guess, and not more: a balancer
//! that has had answers of its own goes by these.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::key;
use evenkeel_core::time::Instant;

use crate::fleet::Fleet;
use crate::note::{Key, LONGEST_SERVICE, Note};
use crate::owners::Role;

/// Time after which a known time is told again, if it has changed.
const AGAIN: Duration = Duration::from_secs(30);

/// A time has changed if it is by this factor longer or shorter.
const CHANGED: f64 = 1.25;

impl Fleet {
    /// Tells all others how long requests take at the members of a group, if this balancer decides upon its
    /// alerts: for each member its number ([`key`] of its address), and the time if that is
    /// known. What was told of other members is taken off.
    pub fn announce_services(
        &mut self,
        group: &str,
        members: impl IntoIterator<Item = (u64, Option<Duration>)>,
        now: Instant,
    ) {
        let is_ours = matches!(self.role_in(group, now), Role::Holder | Role::Settling);
        if !is_ours {
            return;
        }
        let group = key::hash(group.as_bytes());
        let before = self.board.last_change();
        let mut told = self.taught.remove(&group).unwrap_or_default();
        let mut still = BTreeMap::new();
        for (member, time) in members {
            let last = told.remove(&member);
            let micros = time.map(|time| u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
            let micros = micros.map(|micros| micros.clamp(1, LONGEST_SERVICE));
            let kept = match (last, micros) {
                (Some((was, at)), Some(micros)) if is_to_tell(was, at, micros, now) => {
                    Some((micros, now))
                }
                (None, Some(micros)) => Some((micros, now)),
                (last, _) => last,
            };
            let Some((micros, at)) = kept else {
                continue;
            };
            still.insert(member, (micros, at));
            self.board.put_note(Note::Service {
                group,
                member,
                micros,
            });
        }
        for member in told.into_keys() {
            self.board.remove(Key::Service { group, member });
        }
        self.taught.insert(group, still);
        if self.board.last_change() != before {
            self.flush(now);
        }
    }

    /// Returns the times that requests take at members of a group, by their numbers, as the
    /// balancer says that decides upon the group's alerts.
    pub fn announced_services(&self, group: &str) -> impl Iterator<Item = (u64, Duration)> + '_ {
        let number = key::hash(group.as_bytes());
        let holder = self.groups.get(&number).and_then(|group| group.holder);
        let holder = holder.and_then(|holder| self.peers.get(&holder.address));
        let services = holder.into_iter();
        let services = services.flat_map(move |peer| peer.copy.services(number));
        services.map(|(member, micros)| (member, Duration::from_micros(micros.into())))
    }
}

fn is_to_tell(was: u32, at: Instant, micros: u32, now: Instant) -> bool {
    let ratio = f64::from(micros) / f64::from(was.max(1));
    let has_changed = !(1.0 / CHANGED..=CHANGED).contains(&ratio);
    has_changed && now.since(at) >= AGAIN
}

//! Members that balancers have ejected, and what each of them has seen.
//!
//! Nobody decides for others here: each balancer says what it has done and why, and what the others
//! make of it is their own business. An ejection that a balancer has announced counts until it
//! ends, even if the balancer is gone meanwhile; another process in its place says anew what holds.

use std::collections::BTreeMap;

use evenkeel_core::key;
use evenkeel_core::time::Instant;

use crate::ejection::Ejection;
use crate::fleet::Fleet;
use crate::id::Id;
use crate::note::{Key, LONGEST_EJECTION, Note};

impl Fleet {
    /// Tells all others which members of a group this balancer has ejected, in place of what it has
    /// told of that group before.
    pub fn announce_ejections(&mut self, group: &str, ejections: &[Ejection], now: Instant) {
        let number = key::hash(group.as_bytes());
        let told = self.ejections.told.get(&number);
        if told.map_or(&[][..], Vec::as_slice) == ejections {
            return;
        }
        self.take_off_ejections(number, ejections);
        for ejection in ejections {
            let Ejection {
                member,
                until,
                requests,
                failures,
            } = *ejection;
            self.board.put_note(Note::Ejection {
                group: number,
                member,
                until: until.min(now.after(LONGEST_EJECTION)),
                requests,
                failures: failures.min(requests),
            });
        }
        if !ejections.is_empty() {
            self.ejections.told.insert(number, ejections.to_vec());
        }
        self.flush(now);
    }

    /// Takes off what this balancer has told of a group, but for what it is to tell of it still.
    fn take_off_ejections(&mut self, group: u64, still: &[Ejection]) {
        for Ejection { member, .. } in self.ejections.told.remove(&group).unwrap_or_default() {
            if !still.iter().any(|ejection| ejection.member == member) {
                self.board.remove(Key::Ejection { group, member });
            }
        }
    }

    /// Takes off what this balancer has told of groups that it no longer has.
    pub(crate) fn forget_ejections(&mut self) {
        let told = self.ejections.told.keys();
        let gone = told.filter(|group| !self.groups.contains_key(group));
        for group in gone.copied().collect::<Vec<u64>>() {
            self.take_off_ejections(group, &[]);
        }
    }

    /// The members of a group that others have ejected until later than `now`, with who has. What they
    /// say is not judged here.
    pub fn ejections(
        &mut self,
        group: &str,
        now: Instant,
    ) -> impl Iterator<Item = (&Id, &Ejection)> {
        if std::mem::take(&mut self.ejections.is_stale) {
            self.gather();
        }
        let heard = self.ejections.heard.get(&key::hash(group.as_bytes()));
        let heard = heard.into_iter().flatten();
        let counts = heard.filter(move |(_, ejection)| ejection.until > now);
        counts.map(|(id, ejection)| (id, ejection))
    }

    fn gather(&mut self) {
        let mut heard: BTreeMap<u64, Vec<(Id, Ejection)>> = BTreeMap::new();
        for peer in self.peers.values() {
            for (group, ejection) in peer.copy.ejections() {
                let all = heard.entry(group).or_default();
                all.push((peer.id.clone(), ejection));
            }
        }
        self.ejections.heard = heard;
    }
}

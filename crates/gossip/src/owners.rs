//! Owners of groups: the balancer that decides upon the load alerts of a group, and what is
//! decided.
//!
//! # One balancer decides for a group
//!
//! An alert belongs to a group and a location, and how many locations a group may have under alert
//! (`max_share`) depends on all of them. The unit of decision is therefore a group: one balancer
//! *holds* it, reads the loads of its locations by itself, and decides. Of all balancers that have
//! the group, the balancer with the highest number holds it. The number is a hash of the balancer's
//! name and the group's (rendezvous hashing: Thaler and Ravishankar, "Using Name-Based Mappings to
//! Increase Hit Rates", 1998): if a balancer goes, only its groups get others.
//!
//! A balancer that takes a group over notes a *claim* with an *epoch*, which is one more than that
//! of the holder before, and the alerts that it goes on with. Of two claims the claim with the
//! higher epoch counts (of two with the same epoch, the claim of the higher name's number). A
//! balancer that sees that its own claim does not count takes it off at once. A balancer that is
//! first for a group and sees it held by another one takes it over, too.
//!
//! A balancer that has just come may not have heard of the last holder, if that holder is gone, and
//! may claim the group with a lower epoch. Others do not heed such a claim. A balancer that still
//! has alerts of the last holder claims the group itself, and the balancer that is first takes it
//! over from there.
//!
//! # No more than its share, without agreement
//!
//! All balancers together must never have more locations of a group under alert than the group may
//! have, and they hear of each change at different times. Two rules see to it:
//!
//! - A location whose alert was lifted counts as under alert until all others have confirmed that
//!   they know.
//! - A balancer that takes a group over raises no alert before all others have confirmed the claim, which they
//!   do not as long as they heed another one.
//!
//! What any balancer has under alert is therefore always a part of what the holder counts. When
//! another balancer takes over, what it knows and what the others know are both parts of what the
//! old holder counted.
//!
//! # Apart
//!
//! A balancer that is not heard for [`GATE`] holds up nothing. Two parts of a fleet that do not
//! reach each other therefore both go on, each with holders of its own. There caution takes the
//! place of confirmations: alerts by the word of a holder that is gone count for [`CAUTION`], as
//! the locations may be under alert on the other side. When both parts meet again, epochs say which
//! claim is right, and the balancer that is first for a group takes it over.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::key;
use evenkeel_core::time::Instant;

use crate::fleet::{Fleet, GATE, JOIN, STALL};
use crate::group::{Group, Holder};
use crate::id::Id;
use crate::note::{Item, Key, Note};
use crate::peer::Peer;

/// Time for which an alert counts whose holder is gone, wherever it may still be heeded.
pub const CAUTION: Duration = Duration::from_secs(60);

/// Worth of a claim.
enum ClaimRank {
    /// The claim counts.
    Counts,
    /// The claim of another balancer counts, or that of this one.
    Less,
    /// The claim of another balancer would count, but that balancer is gone.
    LessThanGone,
}

/// Role in the decisions upon the alerts of a group: the balancer that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nobody decides yet: this balancer is new, or the group is.
    Nobody,
    /// Another balancer decides, which may have gone a moment ago.
    Another,
    /// The decision is this balancer's, as far as alerts are to be lifted; others have not confirmed it yet.
    Settling,
    /// The decision is this balancer's.
    Holder,
}

/// A group, for those who look.
#[derive(Clone, Debug)]
pub struct GroupView<'a> {
    /// Name of the group.
    pub name: &'a str,
    /// Number of times that the group has been taken over.
    pub epoch: u64,
    /// Holder of the group; `None` is nobody, or a balancer that is gone.
    pub holder: Option<&'a Id>,
    /// Number of the group's locations that are under alert.
    pub raised: usize,
    /// Number of further locations that may be under alert elsewhere.
    pub elsewhere: usize,
}

/// The rank of a balancer for a group: the highest one holds it.
fn rank(node: u64, group: u64) -> (u64, u64) {
    let mut bytes = [0; 16];
    let (first, second) = bytes.split_at_mut(8);
    first.copy_from_slice(&node.to_be_bytes());
    second.copy_from_slice(&group.to_be_bytes());
    (key::hash(&bytes), node)
}

impl Fleet {
    /// Says which groups this balancer has.
    pub fn set_groups<'n>(&mut self, names: impl IntoIterator<Item = &'n str>, now: Instant) {
        let mut old = std::mem::take(&mut self.groups);
        for name in names {
            let number = key::hash(name.as_bytes());
            let group = old.remove(&number);
            let group = group.unwrap_or_else(|| Group::new(name.into()));
            self.groups.insert(number, group);
        }
        for (number, group) in old {
            if group.claim.is_some() {
                self.take_off(number);
            }
        }
        self.forget_ejections();
        self.forget_flights();
        self.forget_work();
        let numbers: Vec<u8> = self.groups.keys().flat_map(|n| n.to_be_bytes()).collect();
        self.digest = key::hash(&numbers) as u32;
        self.version += 1;
        // Others may have claimed what is new here.
        let claims: Vec<(SocketAddr, u64, u64)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.active)
            .flat_map(|(address, peer)| {
                let claims = peer.copy.claims();
                claims.map(|(group, epoch)| (*address, group, epoch))
            })
            .filter(|(_, group, _)| self.groups.contains_key(group))
            .collect();
        for (address, group, epoch) in claims {
            self.heed_claim(address, group, epoch);
        }
        self.dirty = true;
        self.take_ownership(now);
        self.flush(now);
    }

    /// Returns which balancer decides upon the alerts of a group.
    pub fn role_in(&self, group: &str, now: Instant) -> Role {
        let Some(group) = self.groups.get(&key::hash(group.as_bytes())) else {
            return Role::Nobody;
        };
        match (group.holder, group.claim) {
            (None, _) => Role::Nobody,
            (Some(holder), Some(claim)) if holder == self.me() => {
                let is_awake = now.since(self.polled) <= STALL;
                let knows_all = self.ready && self.is_current(now);
                match is_awake && knows_all && claim <= self.confirmed(now) {
                    true => Role::Holder,
                    false => Role::Settling,
                }
            }
            _ => Role::Another,
        }
    }

    /// All groups, in no order.
    pub fn groups(&self) -> impl Iterator<Item = GroupView<'_>> {
        self.groups.values().map(|group| {
            let holder = group.holder.and_then(|holder| {
                if holder == self.me() {
                    return Some(self.id());
                }
                let peer = self.peers.get(&holder.address);
                peer.filter(|peer| peer.is_process(holder.node, holder.session))
                    .map(|peer| &peer.id)
            });
            GroupView {
                name: &group.name,
                epoch: group.epoch,
                holder,
                raised: group.raised.len(),
                elsewhere: group.counted() - group.raised.len(),
            }
        })
    }

    /// The locations of a group that are under alert, and since when. A balancer that has just come
    /// has none: what it hears first may be what another one has said long ago, and those who
    /// decide do not know of it yet.
    pub fn raised_alerts(&self, group: &str) -> impl Iterator<Item = (u64, Instant)> + '_ {
        let group = self.groups.get(&key::hash(group.as_bytes()));
        let group = group.filter(|_| self.joined);
        let raised = group.into_iter().flat_map(|group| &group.raised);
        raised.map(|(location, since)| (*location, *since))
    }

    /// Decides, if this balancer does: `wanted` are the locations that should be under alert, the
    /// most loaded first, and `allowed` how many there may be. Alerts of others are lifted, and as
    /// many are raised as there is certainly room for; [`Fleet::raised_alerts`] says what has come of it.
    pub fn decide_alerts(&mut self, group: &str, wanted: &[u64], allowed: usize, now: Instant) {
        let is_holder = match self.role_in(group, now) {
            Role::Nobody | Role::Another => return,
            Role::Settling => false,
            Role::Holder => true,
        };
        let number = key::hash(group.as_bytes());
        let confirmed = self.confirmed(now);
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        group.lifting.retain(|(_, note)| *note > confirmed);
        group.held.retain(|(_, until)| now < *until);
        let lifted: Vec<u64> = {
            let wanted: HashSet<&u64> = wanted.iter().collect();
            let raised = group.raised.keys();
            let lifted = raised.filter(|location| !wanted.contains(location));
            lifted.copied().collect()
        };
        let before = self.board.last_change();
        for location in lifted {
            group.raised.remove(&location);
            let key = Key::Alert {
                group: number,
                location,
            };
            if let Some(note) = self.board.remove(key) {
                group.lifting.push((location, note));
            }
        }
        for &location in wanted.iter().filter(|_| is_holder) {
            if group.raised.contains_key(&location) || !group.has_room_for(location, allowed) {
                continue;
            }
            group.raised.insert(location, now);
            self.board.put_note(Note::Alert {
                group: number,
                epoch: group.epoch,
                location,
                since: now,
            });
        }
        if self.board.last_change() != before {
            self.version += 1;
            self.flush(now);
        }
    }

    fn me(&self) -> Holder {
        Holder {
            address: self.id().address,
            node: self.id().node(),
            session: self.session,
        }
    }

    /// The others that count.
    fn there(&self, now: Instant) -> impl Iterator<Item = &Peer> {
        let active = self.peers.values().filter(|peer| peer.active);
        active.filter(move |peer| peer.time_silent(now) <= GATE)
    }

    /// The number of the last note that all others know who count.
    fn confirmed(&self, now: Instant) -> u64 {
        let acked = self.there(now).map(|peer| peer.acked);
        acked.min().unwrap_or(u64::MAX)
    }

    /// Returns true if nothing is missing of what others are known to have noted. A balancer that
    /// has confirmed a claim may have made one before, which is on its way.
    fn is_current(&self, now: Instant) -> bool {
        self.there(now).all(|peer| peer.copy.is_current())
    }

    /// Returns true if this balancer knows what all others say.
    fn is_ready(&self, now: Instant) -> bool {
        now.since(self.started) >= JOIN && self.there(now).all(|peer| peer.copy.is_whole())
    }

    /// All others have to confirm anew that this balancer holds what it holds.
    pub(crate) fn confirm_claims(&mut self) {
        for (&group, kept) in &mut self.groups {
            if kept.claim.is_some() {
                kept.claim = self.board.repeat_note(Key::Claim { group });
            }
        }
    }

    /// Hears what is new among the notes of another balancer, which are copied already.
    pub(crate) fn heed_notes(&mut self, from: SocketAddr, items: &[Item]) {
        let Some(peer) = self.peers.get(&from) else {
            return;
        };
        let speaker = Holder {
            address: from,
            node: peer.node,
            session: peer.speaker(),
        };
        for item in items {
            match *item {
                Item::Put(Note::Claim { group, epoch }) => {
                    self.heed_claim(from, group, epoch);
                }
                Item::Put(Note::Alert {
                    group,
                    epoch,
                    location,
                    since,
                }) => {
                    if let Some(group) = self.groups.get_mut(&group)
                        && (group.holder, group.epoch) == (Some(speaker), epoch)
                    {
                        group.raised.insert(location, since);
                        self.version += 1;
                    }
                }
                Item::Gone(Key::Alert { group, location }) => {
                    if let Some(group) = self.groups.get_mut(&group)
                        && group.holder == Some(speaker)
                    {
                        group.raised.remove(&location);
                        self.version += 1;
                    }
                }
                Item::Gone(Key::Claim { group }) => {
                    if let Some(group) = self.groups.get_mut(&group)
                        && group.holder == Some(speaker)
                    {
                        // It no longer has the group, or has taken off what is not so any more.
                        group.holder = None;
                        self.dirty = true;
                    }
                }
                // They need no one who decides.
                Item::Put(Note::Ejection { .. } | Note::Service { .. } | Note::Flight { .. })
                | Item::Gone(Key::Ejection { .. } | Key::Service { .. } | Key::Flight { .. }) => {}
            }
        }
    }

    /// Returns true if all claims of a balancer that are new in a sheet count. The sheet is not
    /// confirmed as long as one of its claims does not count, so that nobody has this balancer's
    /// word for a claim that it does not heed. The other balancer takes the claim off as soon as it
    /// hears of the better one.
    pub(crate) fn agrees_with(&mut self, from: SocketAddr, items: &[Item], now: Instant) -> bool {
        let mut agrees = true;
        for item in items {
            let Item::Put(Note::Claim { group, epoch }) = *item else {
                continue;
            };
            match self.standing(from, group, epoch) {
                ClaimRank::Counts => {}
                ClaimRank::Less => agrees = false,
                // It has not heard of what this balancer still has under alert.
                ClaimRank::LessThanGone => {
                    agrees = false;
                    self.claim(group, true, now);
                }
            }
        }
        agrees
    }

    fn standing(&self, from: SocketAddr, group: u64, epoch: u64) -> ClaimRank {
        let (Some(peer), Some(group)) = (self.peers.get(&from), self.groups.get(&group)) else {
            return ClaimRank::Counts;
        };
        let Some(holder) = group.holder else {
            return match self.joined && epoch <= group.epoch {
                true => ClaimRank::LessThanGone,
                false => ClaimRank::Counts,
            };
        };
        let (speaker, node) = (peer.speaker(), peer.node);
        let is_it = (from, node, speaker) == (holder.address, holder.node, holder.session);
        let is_above = (epoch, node, from) > (group.epoch, holder.node, holder.address);
        match (is_it || is_above, self.is_there(&holder)) {
            (true, _) => ClaimRank::Counts,
            (false, true) => ClaimRank::Less,
            (false, false) if self.joined => ClaimRank::LessThanGone,
            // What it has under alert is only hearsay.
            (false, false) => ClaimRank::Counts,
        }
    }

    fn heed_claim(&mut self, from: SocketAddr, group: u64, epoch: u64) {
        if matches!(self.standing(from, group, epoch), ClaimRank::Counts) {
            self.follow(from, group, epoch);
        }
    }

    /// Returns true if this process is in the fleet.
    fn is_there(&self, holder: &Holder) -> bool {
        let peer = self.peers.get(&holder.address);
        *holder == self.me()
            || peer.is_some_and(|peer| peer.is_process(holder.node, holder.session))
    }

    /// Lets another balancer's claim count from now on, with its alerts.
    fn follow(&mut self, address: SocketAddr, number: u64, epoch: u64) {
        let (Some(peer), Some(group)) = (self.peers.get(&address), self.groups.get_mut(&number))
        else {
            return;
        };
        group.epoch = epoch;
        group.holder = Some(Holder {
            address,
            node: peer.node,
            session: peer.speaker(),
        });
        group.raised = peer.copy.alerts(epoch, number).collect();
        self.version += 1;
        self.dirty = true;
        if group.claim.take().is_some() {
            group.lifting.clear();
            self.take_off(number);
        }
    }

    /// Takes over what is to be taken over.
    pub(crate) fn take_ownership(&mut self, now: Instant) {
        let ready = self.is_ready(now);
        if std::mem::replace(&mut self.ready, ready) != ready {
            self.dirty = true;
        }
        if ready && !self.joined {
            self.joined = true;
            self.version += 1;
        }
        if !std::mem::take(&mut self.dirty) || !ready {
            return;
        }
        let me = self.me();
        let (own, digest) = (self.id().address, self.digest);
        let active = || self.peers.iter().filter(|(_, peer)| peer.active);
        // Of those who have the same name only one counts, for all the same one.
        let mut nodes: BTreeMap<u64, SocketAddr> = BTreeMap::from([(me.node, own)]);
        for (&address, peer) in active() {
            if peer.groups.is_none_or(|groups| groups == digest) {
                let known = nodes.entry(peer.node).or_insert(address);
                *known = address.min(*known);
            }
        }
        if nodes.get(&me.node) != Some(&own) {
            return;
        }
        let is_first = |group: u64, without: Option<u64>| {
            let others = nodes.keys().filter(|node| Some(**node) != without);
            let first = others.max_by_key(|node| rank(**node, group));
            first.is_none_or(|first| *first == me.node)
        };
        let mut claimed = Vec::new();
        for (&number, group) in &self.groups {
            let takes = match group.holder {
                Some(holder) if holder == me => false,
                Some(holder) if self.is_there(&holder) => {
                    let is_above = rank(me.node, number) > rank(holder.node, number);
                    is_above && is_first(number, None)
                }
                // A process that is gone knew what it had decided; one of its name that has come
                // since does not.
                Some(holder) => is_first(number, Some(holder.node)),
                None => is_first(number, None),
            };
            if takes {
                let is_gone = group.holder.is_some_and(|holder| !self.is_there(&holder));
                claimed.push((number, is_gone));
            }
        }
        for (number, is_gone) in claimed {
            self.claim(number, is_gone, now);
        }
    }

    fn claim(&mut self, number: u64, is_gone: bool, now: Instant) {
        let me = self.me();
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        group.epoch = group.epoch.saturating_add(1);
        group.holder = Some(me);
        group.lifting.clear();
        group.held.retain(|(_, until)| now < *until);
        if is_gone {
            let until = now.after(CAUTION);
            let held = group.raised.keys().map(|&location| (location, until));
            group.held.extend(held);
        }
        let (epoch, raised) = (group.epoch, group.raised.clone());
        for (&location, &since) in &raised {
            self.board.put_note(Note::Alert {
                group: number,
                epoch,
                location,
                since,
            });
        }
        // Last, so that whoever hears it has all alerts.
        let claim = self.board.put_note(Note::Claim {
            group: number,
            epoch,
        });
        if let Some(group) = self.groups.get_mut(&number) {
            group.claim = Some(claim);
        }
        self.counters.claims += 1;
    }

    /// Takes off this balancer's notes of a group: the claim first, so that nobody takes the end of
    /// the others for the end of an alert.
    fn take_off(&mut self, number: u64) {
        let is_of = |key: &Key| match key {
            Key::Claim { group } | Key::Alert { group, .. } | Key::Service { group, .. } => {
                *group == number
            }
            Key::Ejection { .. } | Key::Flight { .. } => false,
        };
        let mut keys: Vec<Key> = self
            .board
            .list_notes()
            .map(Note::key)
            .filter(is_of)
            .collect();
        keys.sort_unstable();
        for key in keys {
            self.board.remove(key);
        }
        self.taught.remove(&number);
    }
}

//! Fleets on a network of which a test says what it loses, repeats and delays.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::engine_work::EngineWork;
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::time::Instant;
use evenkeel_wire::reporting::keys::{Key, Keys, TAG_LEN};
use evenkeel_wire::reporting::message::Invalid;

use crate::ejection::Ejection;
use crate::fleet::SILENT;
use crate::note::{self, Note};
use crate::outcome::Outcome;
use crate::prompt_report::PromptBodies;
use crate::reading::Reading;
use crate::readings::Reader;
use crate::{Fleet, Id, Role, Settings};

const GROUPS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Most locations of a group that may be under alert.
const ALLOWED: usize = 3;

const LOCATIONS: u64 = 8;

fn keys(secret: u8) -> Keys {
    Keys::new(vec![Key::new(1, &[secret; 32]).unwrap()]).unwrap()
}

fn address(number: usize) -> SocketAddr {
    SocketAddr::from((
        [10, 0, (number / 250) as u8, (number % 250) as u8 + 1],
        7000,
    ))
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A balancer on its machine.
struct Node {
    fleet: Option<Fleet>,
    /// Time by which the node's clock is ahead.
    ahead: Duration,
    next: Instant,
    /// Time until which the node does nothing.
    asleep: Instant,
    keys: Keys,
    groups: Vec<&'static str>,
}

struct Net {
    now: Instant,
    rng: fastrand::Rng,
    nodes: Vec<Node>,
    queue: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sent: u64,
    loss: f64,
    twice: f64,
    delay: Duration,
    /// Pairs that do not hear each other.
    cut: HashSet<(usize, usize)>,
    /// All that ever reached anybody.
    recorded: Vec<(usize, Vec<u8>)>,
    records: bool,
    /// The load of each location of each group.
    loads: BTreeMap<&'static str, Vec<f64>>,
    /// True if too many alerts are an error.
    strict: bool,
}

impl Net {
    fn new(count: usize, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let nodes = (0..count).map(|_| Node {
            fleet: None,
            ahead: ms(rng.u64(0..100_000)),
            next: Instant::ZERO,
            asleep: Instant::ZERO,
            keys: keys(7),
            groups: GROUPS.to_vec(),
        });
        let mut net = Net {
            now: Instant::from_nanos(1_000_000_000),
            nodes: nodes.collect(),
            rng,
            queue: BTreeMap::new(),
            sent: 0,
            loss: 0.0,
            twice: 0.0,
            delay: ms(2),
            cut: HashSet::new(),
            recorded: Vec::new(),
            records: false,
            loads: GROUPS
                .iter()
                .map(|&group| (group, vec![0.1; LOCATIONS as usize]))
                .collect(),
            strict: true,
        };
        for node in 0..count {
            net.start(node, 1000);
        }
        net
    }

    /// Starts a balancer whose clock shows this time of day.
    fn start(&mut self, number: usize, life: u64) {
        let now = self.now;
        let id = Id {
            address: address(number),
            name: format!("lb-{number}").into(),
            life,
        };
        let settings = Settings {
            id,
            session: self.rng.u64(1..),
            keys: self.nodes[number].keys.clone(),
            seeds: vec![address(0), address(1)],
        };
        let rng = self.rng.fork();
        let node = &mut self.nodes[number];
        let there = now.after(node.ahead);
        let mut fleet = Fleet::new(settings, rng, there);
        fleet.set_groups(node.groups.iter().copied(), there);
        node.fleet = Some(fleet);
        node.next = now;
    }

    fn fleet(&mut self, number: usize) -> &mut Fleet {
        self.nodes[number].fleet.as_mut().unwrap()
    }

    fn clock(&self, number: usize) -> Instant {
        self.now.after(self.nodes[number].ahead)
    }

    fn up(&self) -> Vec<usize> {
        let all = 0..self.nodes.len();
        all.filter(|&number| self.nodes[number].fleet.is_some())
            .collect()
    }

    /// Cuts the network in two.
    fn part(&mut self, side: impl Fn(usize) -> bool) {
        let all = 0..self.nodes.len();
        for (a, b) in all.clone().flat_map(|a| all.clone().map(move |b| (a, b))) {
            if side(a) != side(b) {
                self.cut.insert((a, b));
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.step(end) {}
        self.now = end;
    }

    /// Runs until something holds; answers how long that took.
    fn until(&mut self, at_most: Duration, mut holds: impl FnMut(&mut Net) -> bool) -> Duration {
        let (start, end) = (self.now, self.now.after(at_most));
        while !holds(self) {
            assert!(self.step(end), "not within {at_most:?}");
        }
        self.now.since(start)
    }

    fn step(&mut self, end: Instant) -> bool {
        let due = |number: &usize| self.nodes[*number].next.max(self.nodes[*number].asleep);
        let node = self.up().into_iter().min_by_key(due);
        let turn = node.as_ref().map(due);
        let first = self.queue.first_key_value().map(|((at, _), _)| *at);
        let at = turn.into_iter().chain(first).min();
        let Some(at) = at.filter(|&at| at <= end) else {
            return false;
        };
        self.now = self.now.max(at);
        if first == Some(at) {
            let (_, (to, datagram)) = self.queue.pop_first().unwrap();
            if self.nodes[to].asleep > self.now {
                // It waits in the socket, and is read now or a little later.
                self.sent += 1;
                let at = self.nodes[to].asleep.after(ms(self.rng.u64(0..10)));
                self.queue.insert((at, self.sent), (to, datagram));
                return true;
            }
            self.deliver(to, &datagram);
        } else if let Some(number) = node {
            self.turn(number);
        }
        if self.strict {
            for group in GROUPS {
                let all = self.raised_anywhere(group);
                assert!(all.len() <= ALLOWED, "{group}: {all:?} at {:?}", self.now);
            }
        }
        true
    }

    fn deliver(&mut self, to: usize, datagram: &[u8]) -> Option<Outcome> {
        let now = self.clock(to);
        let fleet = self.nodes[to].fleet.as_mut()?;
        let outcome = fleet.receive_datagram(datagram, now);
        if self.records {
            self.recorded.push((to, datagram.to_vec()));
        }
        self.send(to);
        Some(outcome)
    }

    /// A balancer does what it does ten times a second, and what is due.
    fn turn(&mut self, number: usize) {
        let now = self.clock(number);
        let (loads, node) = (&self.loads, &mut self.nodes[number]);
        let Some(fleet) = &mut node.fleet else {
            return;
        };
        let next = fleet.poll(now);
        node.next = self.now.after(next.since(now)).max(self.now.after(ms(1)));
        for group in &node.groups {
            let mut wanted: Vec<(f64, u64)> = (0..)
                .zip(&loads[group])
                .map(|(l, &load)| (load, l))
                .collect();
            wanted.retain(|(load, _)| *load > 0.5);
            wanted.sort_by(|a, b| b.0.total_cmp(&a.0));
            let wanted: Vec<u64> = wanted.iter().take(ALLOWED).map(|(_, l)| *l).collect();
            fleet.decide_alerts(group, &wanted, ALLOWED, now);
        }
        self.send(number);
    }

    fn send(&mut self, from: usize) {
        let Some(fleet) = &mut self.nodes[from].fleet else {
            return;
        };
        for (to, datagram) in fleet.take_out() {
            // An address in `join` may be nobody's.
            let Some(to) = (0..self.nodes.len()).find(|&number| address(number) == to) else {
                continue;
            };
            assert_ne!(to, from, "nobody speaks to itself");
            assert!(datagram.len() <= crate::seal::MAX_DATAGRAM);
            if self.cut.contains(&(from, to)) || self.rng.f64() < self.loss {
                continue;
            }
            let times = 1 + usize::from(self.rng.f64() < self.twice);
            for _ in 0..times {
                let delay = self.delay.mul_f64(0.1 + self.rng.f64());
                self.sent += 1;
                let key = (self.now.after(delay), self.sent);
                self.queue.insert(key, (to, datagram.clone()));
            }
        }
    }

    /// The locations of a group that any balancer has under alert.
    fn raised_anywhere(&self, group: &str) -> BTreeSet<u64> {
        let fleets = self.nodes.iter().filter_map(|node| node.fleet.as_ref());
        fleets
            .flat_map(|fleet| fleet.raised_alerts(group).map(|(location, _)| location))
            .collect()
    }

    fn raised(&self, number: usize, group: &str) -> BTreeSet<u64> {
        let fleet = self.nodes[number].fleet.as_ref().unwrap();
        fleet
            .raised_alerts(group)
            .map(|(location, _)| location)
            .collect()
    }

    /// Returns the nodes that decide upon a group.
    fn holders(&self, group: &str) -> Vec<usize> {
        let is_it = |&number: &usize| {
            let fleet = self.nodes[number].fleet.as_ref();
            fleet.is_some_and(|fleet| fleet.role_in(group, self.clock(number)) == Role::Holder)
        };
        (0..self.nodes.len()).filter(is_it).collect()
    }

    /// Returns true if all nodes know all, and each group has one holder, the same for everybody.
    fn agrees(&self) -> bool {
        let up = self.up();
        let whole = up.iter().all(|&number| {
            let fleet = self.nodes[number].fleet.as_ref().unwrap();
            let active = fleet.peers(self.clock(number)).filter(|peer| peer.active);
            active.count() == up.len() - 1
        });
        whole
            && GROUPS.iter().all(|group| {
                let named: BTreeSet<Option<String>> = up
                    .iter()
                    .map(|&number| {
                        let fleet = self.nodes[number].fleet.as_ref().unwrap();
                        let view = fleet.groups().find(|view| view.name == *group)?;
                        Some(view.holder?.name.to_string())
                    })
                    .collect();
                let raised: BTreeSet<BTreeSet<u64>> = up
                    .iter()
                    .map(|&number| self.raised(number, group))
                    .collect();
                self.holders(group).len() == 1 && named.len() == 1 && raised.len() == 1
            })
    }

    /// Loads change at random.
    fn stir(&mut self) {
        for loads in self.loads.values_mut() {
            for load in loads {
                if self.rng.f64() < 0.3 {
                    *load = self.rng.f64();
                }
            }
        }
    }
}

#[test]
fn balancers_find_each_other_and_each_group_has_one_holder() {
    for count in [1, 2, 10, 40] {
        let mut net = Net::new(count, count as u64);
        let took = net.until(ms(5000), |net| net.agrees());
        assert!(took < ms(4500), "{count}: {took:?}");
        // And nobody holds all.
        let holders: BTreeSet<usize> = GROUPS.iter().flat_map(|group| net.holders(group)).collect();
        assert!(holders.len() >= count.min(3), "{holders:?}");
    }
}

#[test]
fn an_alert_is_everywhere_within_half_a_second_and_so_is_its_end() {
    for seed in 0..20 {
        let mut net = Net::new(10, seed);
        (net.loss, net.twice) = (0.02, 0.02);
        net.until(ms(10_000), |net| net.agrees());
        net.loads.get_mut("a").unwrap()[5] = 0.9;
        let everywhere =
            |net: &mut Net, is: bool| (0..10).all(|node| net.raised(node, "a").contains(&5) == is);
        let took = net.until(ms(2000), |net| everywhere(net, true));
        assert!(took <= ms(500), "{seed}: {took:?}");
        net.loads.get_mut("a").unwrap()[5] = 0.1;
        let took = net.until(ms(2000), |net| everywhere(net, false));
        assert!(took <= ms(500), "{seed}: {took:?}");
    }
}

#[test]
fn who_is_killed_is_replaced_within_two_seconds_and_alerts_go_on() {
    for seed in 0..20 {
        let mut net = Net::new(10, seed);
        net.until(ms(5000), |net| net.agrees());
        net.loads.get_mut("a").unwrap()[5] = 0.9;
        net.run(ms(1000));
        let holder = net.holders("a")[0];
        net.nodes[holder].fleet = None;
        let took = net.until(ms(2000), |net| {
            assert!(
                net.up()
                    .iter()
                    .all(|&node| net.raised(node, "a").contains(&5))
            );
            net.holders("a").len() == 1
        });
        assert!(took > SILENT, "{seed}: {took:?}");
        net.until(ms(2000), |net| net.agrees());
        // It comes back, and has its groups again, with the alerts.
        net.start(holder, 2000);
        net.run(ms(1));
        net.until(ms(8000), |net| {
            net.holders("a") == [holder] && net.raised(holder, "a").contains(&5)
        });
        net.until(ms(8000), |net| net.agrees());
    }
}

#[test]
fn who_says_goodbye_is_replaced_at_once() {
    let mut net = Net::new(10, 3);
    net.until(ms(5000), |net| net.agrees());
    let holder = net.holders("a")[0];
    let now = net.clock(holder);
    net.fleet(holder).leave_fleet(now);
    net.send(holder);
    net.nodes[holder].fleet = None;
    let took = net.until(ms(2000), |net| net.holders("a").len() == 1);
    assert!(took < SILENT, "{took:?}");
}

#[test]
fn there_are_never_too_many_alerts_whatever_gets_lost_and_whoever_restarts() {
    let mut claims = 0;
    for seed in 0..100 {
        let mut net = Net::new(6, seed);
        (net.loss, net.twice, net.delay) = (0.03, 0.05, ms(30));
        net.until(ms(20_000), |net| net.agrees());
        for _ in 0..60 {
            net.stir();
            net.run(ms(300));
            match net.rng.u8(..) {
                0..20 if net.up().len() > 3 => {
                    let up = net.up();
                    let which = up[net.rng.usize(..up.len())];
                    net.nodes[which].fleet = None;
                }
                20..60 => {
                    let down = (0..6).find(|&number| net.nodes[number].fleet.is_none());
                    if let Some(down) = down {
                        // Its clock shows anything.
                        let life = net.rng.u64(1..5000);
                        net.start(down, life);
                    }
                }
                _ => {}
            }
        }
        net.loss = 0.0;
        net.until(ms(10_000), |net| net.agrees());
        claims += net.fleet(net.up()[0]).counters().claims;
    }
    assert!(claims > 30, "something has happened: {claims}");
}

#[test]
fn parts_of_a_fleet_go_on_by_themselves_and_heal() {
    for seed in 0..20 {
        let mut net = Net::new(10, seed);
        net.until(ms(5000), |net| net.agrees());
        for load in &mut net.loads.get_mut("a").unwrap()[..2] {
            *load = 0.9;
        }
        net.run(ms(1000));
        net.strict = false;
        net.part(|node| node < 4);
        net.run(ms(3000));
        // Both have a holder, and what was under alert still is.
        for side in [0..4, 4..10] {
            let holders = net.holders("a");
            let there: Vec<_> = holders.iter().filter(|node| side.contains(*node)).collect();
            assert_eq!(there.len(), 1, "{seed}: {holders:?}");
        }
        assert_eq!(net.raised_anywhere("a").len(), 2);
        // Caution: the side that has lost its holder counts what was under alert there.
        net.loads.get_mut("a").unwrap()[..4].copy_from_slice(&[0.1, 0.1, 0.9, 0.95]);
        net.run(ms(1000));
        let mut most: Vec<usize> = [0, 9].map(|node| net.raised(node, "a").len()).to_vec();
        most.sort_unstable();
        assert_eq!(
            most,
            [1, 2],
            "{seed}: one more for one side, all for the other"
        );
        net.cut.clear();
        let took = net.until(ms(10_000), |net| net.agrees());
        assert!(took < ms(5000), "{seed}: {took:?}");
        net.strict = true;
        net.stir();
        net.run(ms(2000));
    }
}

#[test]
fn one_link_that_is_broken_is_no_reason_to_be_gone() {
    for seed in 0..10 {
        let mut net = Net::new(5, seed);
        net.until(ms(5000), |net| net.agrees());
        net.cut.extend([(0, 1), (1, 0)]);
        let missed =
            |net: &mut Net| -> u64 { (0..5).map(|node| net.fleet(node).counters().missed).sum() };
        let before = missed(&mut net);
        for _ in 0..20 {
            net.stir();
            net.run(ms(500));
        }
        assert_eq!(missed(&mut net), before);
        net.loads.values_mut().for_each(|loads| loads[3] = 0.99);
        net.run(ms(1000));
        assert!(net.agrees(), "both hear of all");
        let now = net.clock(0);
        let via = net
            .fleet(0)
            .peers(now)
            .find(|peer| peer.id.address == address(1));
        assert!(via.unwrap().via.is_some());
        net.cut.clear();
        net.until(ms(2000), |net| {
            let now = net.clock(0);
            net.fleet(0).peers(now).all(|peer| peer.via.is_none())
        });
    }
}

#[test]
fn nothing_that_is_sent_again_is_taken() {
    for seed in 0..5 {
        let mut net = Net::new(4, seed);
        net.records = true;
        net.until(ms(5000), |net| net.agrees());
        net.stir();
        net.run(ms(2000));
        let first = std::mem::take(&mut net.recorded);
        assert!(first.len() > 100);
        let again = |net: &mut Net, recorded: &[(usize, Vec<u8>)]| {
            for (to, datagram) in recorded {
                let outcome = net.deliver(*to, datagram);
                assert!(!matches!(outcome, Some(Outcome::Taken)), "{outcome:?}");
            }
        };
        again(&mut net, &first);
        // Nor after restarts, of the one or of the other side.
        for node in [1, 2] {
            net.nodes[node].fleet = None;
            net.run(ms(500));
            net.start(node, 1000);
            again(&mut net, &first);
        }
        net.until(ms(10_000), |net| net.agrees());
        let second = std::mem::take(&mut net.recorded);
        again(&mut net, &first);
        again(&mut net, &second);
        net.run(ms(1000));
        assert!(net.agrees());
        let counters = net.fleet(0).counters().clone();
        let counted = |outcome| {
            counters
                .received_datagrams()
                .find(|(of, _)| *of == outcome)
                .unwrap()
                .1
        };
        assert!(counted(Outcome::Foreign) > 0 && counted(Outcome::Unasked) > 0);
    }
}

#[test]
fn who_has_another_key_is_not_heard_and_keys_are_changed_one_by_one() {
    let mut net = Net::new(4, 1);
    net.until(ms(5000), |net| net.agrees());
    // A stranger.
    net.nodes[3].keys = keys(8);
    net.start(3, 5000);
    net.run(ms(3000));
    let now = net.clock(0);
    assert_eq!(
        net.fleet(0).peers(now).filter(|peer| peer.active).count(),
        2
    );
    assert_eq!(
        net.fleet(3).peers(now).filter(|peer| peer.active).count(),
        0
    );
    // First each takes both, then each signs with the new one, then the old one goes.
    let [old, new] = [(1, 7), (2, 8)].map(|(id, secret)| Key::new(id, &[secret; 32]).unwrap());
    net.nodes[3].fleet = None;
    let missed = net.fleet(0).counters().missed;
    for keys in [
        vec![old.clone(), new.clone()],
        vec![new.clone(), old],
        vec![new],
    ] {
        for node in 0..3 {
            let keys = Keys::new(keys.clone()).unwrap();
            net.fleet(node).set_keys(keys);
            net.run(ms(1500));
            let now = net.clock(0);
            assert_eq!(
                net.fleet(0).peers(now).filter(|peer| peer.active).count(),
                2
            );
        }
    }
    assert_eq!(net.fleet(0).counters().missed, missed);
}

#[test]
fn a_group_that_only_some_have_is_held_by_one_of_them() {
    let mut net = Net::new(6, 9);
    for node in 0..4 {
        net.nodes[node].groups = vec!["a", "b"];
        net.start(node, 2000);
    }
    net.run(ms(6000));
    for group in GROUPS {
        let holders = net.holders(group);
        assert_eq!(holders.len(), 1, "{group}: {holders:?}");
        assert!(holders[0] >= 4 || ["a", "b"].contains(&group));
    }
    // It is taken from one more, and given to others.
    for node in 0..6 {
        let now = net.clock(node);
        net.nodes[node].groups = vec!["e"];
        net.fleet(node).set_groups(["e"], now);
        net.send(node);
        net.run(ms(300));
    }
    net.run(ms(1000));
    assert_eq!(net.holders("e").len(), 1);
}

#[test]
fn a_holder_that_slept_does_not_go_on_where_it_was() {
    let mut replaced = 0;
    for seed in 0..40 {
        let mut net = Net::new(5, seed);
        net.until(ms(5000), |net| net.agrees());
        net.loads.get_mut("a").unwrap()[0] = 0.9;
        net.run(ms(500));
        let holder = net.holders("a")[0];
        // Too short to be missed, long enough, and all that is in between.
        let sleep = ms(400 + seed * 40);
        net.strict = false;
        net.nodes[holder].asleep = net.now.after(sleep);
        net.loads.get_mut("a").unwrap()[..5].copy_from_slice(&[0.1, 0.1, 0.9, 0.9, 0.9]);
        net.run(sleep - ms(1));
        let others: Vec<usize> = (0..5).filter(|node| *node != holder).collect();
        let next = net.holders("a");
        replaced += u64::from(next.iter().any(|&node| node != holder));
        let before = net.raised(holder, "a");
        let now = [0.1, 0.1, 0.1, 0.1, 0.1, 0.9, 0.9, 0.9];
        net.loads.get_mut("a").unwrap().copy_from_slice(&now);
        // It wakes up: what it has under alert is what it had, or what others have decided, unless it
        // is certain that it still is the one that decides.
        let end = net.now.after(ms(1000));
        while net.step(end) {
            let theirs = |net: &Net| -> BTreeSet<u64> {
                let raised = others.iter().flat_map(|&node| net.raised(node, "a"));
                raised.collect()
            };
            let all = &net.raised(holder, "a") | &theirs(&net);
            assert!(
                (&all - &before).len() <= ALLOWED,
                "{seed}: {all:?} after {before:?}"
            );
        }
        assert!(net.raised_anywhere("a").len() <= ALLOWED, "{seed}");
        net.until(ms(6000), |net| net.agrees());
        net.strict = true;
        net.run(ms(1000));
    }
    assert!((10..40).contains(&replaced), "{replaced}");
}

#[test]
fn namesakes_do_not_both_decide() {
    let mut net = Net::new(3, 4);
    let id = Id {
        address: address(2),
        name: "lb-0".into(),
        life: 9000,
    };
    let now = net.clock(2);
    let settings = Settings {
        id,
        session: 77,
        keys: keys(7),
        seeds: vec![address(0)],
    };
    let mut fleet = Fleet::new(settings, fastrand::Rng::with_seed(5), now);
    fleet.set_groups(GROUPS, now);
    net.nodes[2].fleet = Some(fleet);
    net.run(ms(4000));
    for group in GROUPS {
        assert_eq!(net.holders(group).len(), 1, "{group}");
        assert!(net.holders(group) != [2]);
    }
}

#[test]
fn notes_reach_all_and_go_with_who_made_them() {
    let mut net = Net::new(5, 2);
    net.loss = 0.05;
    net.until(ms(10_000), |net| net.agrees());
    let note = |net: &Net, member| Note::Ejection {
        group: 1,
        member,
        until: net.clock(3).after(ms(10_000)),
        requests: 100,
        failures: 60,
    };
    // More than fit into one datagram.
    for member in 0..500 {
        let (now, note) = (net.clock(3), note(&net, member));
        net.fleet(3).put_note(note, now);
    }
    net.send(3);
    let known = |net: &Net, of: usize| -> usize {
        let fleet = net.nodes[of].fleet.as_ref().unwrap();
        let notes = fleet.list_notes().filter(|(id, _)| &*id.name == "lb-3");
        notes
            .filter(|(_, note)| matches!(note, Note::Ejection { .. }))
            .count()
    };
    net.until(ms(5000), |net| {
        (0..5).all(|of| of == 3 || known(net, of) == 500)
    });
    for member in 100..500 {
        let now = net.clock(3);
        net.fleet(3)
            .remove(note::Key::Ejection { group: 1, member }, now);
    }
    net.send(3);
    net.until(ms(5000), |net| {
        (0..5).all(|of| of == 3 || known(net, of) == 100)
    });
    net.nodes[3].fleet = None;
    net.until(ms(3000), |net| {
        (0..5).all(|of| of == 3 || known(net, of) == 0)
    });
}

/// The members of a group that others have ejected, as one balancer has heard, with who has.
fn ejected(net: &mut Net, at: usize, group: &str) -> Vec<(String, u64)> {
    let now = net.clock(at);
    let all = net.fleet(at).ejections(group, now);
    let mut all: Vec<(String, u64)> = all
        .map(|(id, ejection)| (id.name.to_string(), ejection.member))
        .collect();
    all.sort();
    all
}

fn ejection(net: &Net, at: usize, member: u64, time: Duration) -> Ejection {
    Ejection {
        member,
        until: net.clock(at).after(time),
        requests: 20,
        failures: 15,
    }
}

fn eject(net: &mut Net, at: usize, group: &str, ejections: &[Ejection]) {
    let now = net.clock(at);
    net.fleet(at).announce_ejections(group, ejections, now);
    net.send(at);
}

#[test]
fn ejections_are_heard_with_their_evidence_until_they_end() {
    let mut net = Net::new(3, 8);
    net.loss = 0.05;
    net.until(ms(10_000), |net| net.agrees());
    let first = ejection(&net, 0, 1, ms(20_000));
    let (second, other) = (
        ejection(&net, 0, 2, ms(20_000)),
        ejection(&net, 1, 1, ms(4000)),
    );
    eject(&mut net, 0, "a", &[first, second]);
    eject(&mut net, 1, "a", &[other]);
    eject(&mut net, 1, "b", &[other]);
    let both = |of: &[(&str, u64)]| -> Vec<(String, u64)> {
        let owned = of.iter().map(|&(name, member)| (name.to_owned(), member));
        owned.collect()
    };
    let all = both(&[("lb-0", 1), ("lb-0", 2), ("lb-1", 1)]);
    net.until(ms(2000), |net| ejected(net, 2, "a") == all);
    // Each of the others, and not its own.
    net.until(ms(2000), |net| ejected(net, 0, "a") == both(&[("lb-1", 1)]));
    assert_eq!(ejected(&mut net, 2, "c"), []);
    let now = net.clock(2);
    let heard = *net.fleet(2).ejections("a", now).next().unwrap().1;
    assert_eq!((heard.requests, heard.failures), (20, 15));
    // The clocks of the two differ by minutes, what they mean by the time that it took.
    let left = heard.until.since(now);
    assert!(left > ms(17_000) && left <= ms(20_000), "{left:?}");

    // One of them is in again, and the other one's time is over, whoever says nothing of it.
    eject(&mut net, 0, "a", &[second]);
    net.until(ms(2000), |net| {
        ejected(net, 2, "a") == both(&[("lb-0", 2), ("lb-1", 1)])
    });
    net.until(ms(5000), |net| ejected(net, 2, "a") == both(&[("lb-0", 2)]));
    let seen = net.nodes[2].fleet.as_ref().unwrap();
    let count = |name| {
        let mut peers = seen.peers(net.clock(2));
        peers.find(|peer| &*peer.id.name == name).unwrap().ejections
    };
    assert_eq!((count("lb-0"), count("lb-1")), (1, 0));
    // A group that it no longer has.
    let now = net.clock(0);
    net.fleet(0).set_groups(["b", "c"], now);
    net.send(0);
    net.until(ms(2000), |net| ejected(net, 2, "a").is_empty());
}

#[test]
fn an_ejection_outlives_its_balancer_but_not_its_time_nor_the_next_process() {
    let mut net = Net::new(3, 9);
    net.until(ms(10_000), |net| net.agrees());
    let long = ejection(&net, 0, 1, ms(30_000));
    let short = ejection(&net, 0, 2, ms(8000));
    eject(&mut net, 0, "a", &[long, short]);
    net.until(ms(2000), |net| ejected(net, 2, "a").len() == 2);
    net.nodes[0].fleet = None;
    net.run(ms(5000));
    let seen = net.nodes[2].fleet.as_ref().unwrap();
    let gone = seen
        .peers(net.clock(2))
        .find(|peer| &*peer.id.name == "lb-0");
    assert!(!gone.unwrap().active);
    assert_eq!(ejected(&mut net, 2, "a").len(), 2, "it is gone, they hold");
    net.run(ms(4000));
    assert_eq!(ejected(&mut net, 2, "a"), [("lb-0".to_owned(), 1)]);
    // The next process has other things to say.
    net.start(0, 2000);
    let other = ejection(&net, 0, 3, ms(30_000));
    eject(&mut net, 0, "a", &[other]);
    net.until(ms(10_000), |net| {
        ejected(net, 2, "a") == [("lb-0".to_owned(), 3)]
    });
}

#[test]
fn how_long_requests_take_is_said_by_the_one_that_decides() {
    let mut net = Net::new(5, 6);
    (net.loss, net.twice) = (0.02, 0.02);
    net.until(ms(10_000), |net| net.agrees());
    let holder = net.holders("a")[0];
    let other = (holder + 1) % 5;
    let teach = |net: &mut Net, of: usize, members: &[(u64, Option<u64>)]| {
        let members = members.iter();
        let members = members.map(|(member, micros)| (*member, micros.map(Duration::from_micros)));
        let now = net.clock(of);
        net.fleet(of).announce_services("a", members, now);
        net.send(of);
    };
    let know = |net: &mut Net, wanted: &[(u64, u64)]| {
        let wanted: Vec<(u64, Duration)> = wanted
            .iter()
            .map(|(member, micros)| (*member, Duration::from_micros(*micros)))
            .collect();
        net.until(ms(2000), |net| {
            net.up().into_iter().all(|number| {
                let is_it = net.holders("a") == [number];
                is_it
                    || net
                        .fleet(number)
                        .announced_services("a")
                        .eq(wanted.iter().copied())
            })
        });
    };
    teach(&mut net, other, &[(1, Some(5))]);
    teach(
        &mut net,
        holder,
        &[(1, Some(1000)), (2, None), (3, Some(0))],
    );
    know(&mut net, &[(1, 1000), (3, 1)]);
    // A little more is not worth it, nor is more so soon; what is new is.
    let head = |net: &mut Net| net.fleet(holder).board.last_change();
    let before = head(&mut net);
    net.run(ms(31_000));
    teach(&mut net, holder, &[(1, Some(1200)), (3, None)]);
    assert_eq!(head(&mut net), before);
    teach(&mut net, holder, &[(1, Some(2000)), (3, None)]);
    know(&mut net, &[(1, 2000), (3, 1)]);
    let before = head(&mut net);
    teach(&mut net, holder, &[(1, Some(9000)), (3, None)]);
    assert_eq!(head(&mut net), before);
    teach(
        &mut net,
        holder,
        &[(1, Some(9000)), (2, Some(u64::MAX / 2000))],
    );
    know(&mut net, &[(1, 2000), (2, note::LONGEST_SERVICE.into())]);
    // With the claim it goes.
    net.nodes[holder].fleet = None;
    net.until(ms(5000), |net| net.agrees());
    know(&mut net, &[]);
    let next = net.holders("a")[0];
    teach(&mut net, next, &[(1, Some(7))]);
    know(&mut net, &[(1, 7)]);
}

#[test]
fn requests_in_flight_are_added_up() {
    let mut net = Net::new(4, 11);
    (net.loss, net.twice) = (0.02, 0.02);
    net.until(ms(10_000), |net| net.agrees());
    let fly = |net: &mut Net, of: usize, group: &str, locations: &[(u64, u32)]| {
        let now = net.clock(of);
        net.fleet(of).announce_flights(group, locations, now);
        net.send(of);
    };
    let others = |net: &mut Net, at: usize, wanted: [u32; 3]| {
        net.until(ms(2000), |net| {
            [1, 2, 3].map(|location| net.fleet(at).flights_of_others(location)) == wanted
        });
    };
    fly(&mut net, 0, "a", &[(1, 100), (2, 0)]);
    fly(&mut net, 1, "a", &[(1, 1), (2, 3)]);
    fly(&mut net, 1, "b", &[(2, 3), (3, u32::MAX)]);
    others(&mut net, 0, [1, 3, 1_000_000]);
    others(&mut net, 2, [101, 3, 1_000_000]);
    // A little more is not told.
    let head = |net: &mut Net| net.fleet(0).board.last_change();
    let before = head(&mut net);
    fly(&mut net, 0, "a", &[(1, 120), (2, 0)]);
    assert_eq!(head(&mut net), before);
    fly(&mut net, 0, "a", &[(1, 130), (2, 1)]);
    others(&mut net, 3, [131, 4, 1_000_000]);
    // What one group no longer has another one may have.
    fly(&mut net, 1, "a", &[]);
    others(&mut net, 3, [130, 4, 1_000_000]);
    let now = net.clock(1);
    net.fleet(1).set_groups(["a"], now);
    net.send(1);
    others(&mut net, 3, [130, 1, 0]);
    // Who is gone has none.
    net.nodes[0].fleet = None;
    others(&mut net, 3, [0, 0, 0]);
}

/// Work with as many of all three as `number` says.
fn work(number: u32) -> EngineWork {
    EngineWork {
        queued_tokens: 1000 * number,
        waiting: 10 * number,
        streams: number,
    }
}

/// Lets a balancer tell its work at members of a group.
fn tell_work(net: &mut Net, of: usize, group: &str, members: &[(u64, u32)]) {
    let members = members.iter();
    let members = members.map(|(member, number)| (*member, work(*number)));
    net.fleet(of).announce_work(group, members);
    net.send(of);
}

/// Returns the work of others at the first three members of a group, by the number of their streams.
fn hear_work(net: &mut Net, at: usize, group: &str) -> [u32; 3] {
    let now = net.clock(at);
    let heard = net.fleet(at).work_of_others(group, now);
    [1, 2, 3].map(|member| {
        let found = heard.get(&member).copied().unwrap_or_default();
        assert_eq!(found, work(found.streams));
        found.streams
    })
}

#[test]
fn work_at_engines_is_added_up() {
    let mut net = Net::new(3, 12);
    net.until(ms(10_000), |net| net.agrees());
    tell_work(&mut net, 0, "a", &[(1, 5), (2, 0)]);
    tell_work(&mut net, 1, "a", &[(1, 1), (2, 3)]);
    tell_work(&mut net, 1, "b", &[(1, 7)]);
    net.run(ms(100));
    let heard = [0, 1, 2].map(|at| hear_work(&mut net, at, "a"));
    assert_eq!(heard, [[1, 3, 0], [5, 0, 0], [6, 3, 0]]);
    assert_eq!(hear_work(&mut net, 2, "b"), [7, 0, 0]);
    // Work that has ended is told once.
    tell_work(&mut net, 1, "a", &[(3, 2)]);
    net.run(ms(100));
    assert_eq!(hear_work(&mut net, 2, "a"), [5, 0, 2]);
    let sent = net.fleet(1).counters().sent;
    tell_work(&mut net, 1, "a", &[]);
    tell_work(&mut net, 1, "a", &[]);
    assert_eq!(net.fleet(1).counters().sent, sent + 2, "one to each of two");
    // Work that is not told again expires.
    tell_work(&mut net, 0, "a", &[(1, 5)]);
    net.run(ms(2900));
    assert_eq!(hear_work(&mut net, 2, "a"), [5, 0, 0]);
    net.run(ms(200));
    assert_eq!(hear_work(&mut net, 2, "a"), [0, 0, 0]);
    // A balancer that leaves has none, at once.
    tell_work(&mut net, 0, "a", &[(1, 5)]);
    tell_work(&mut net, 1, "a", &[(1, 2)]);
    net.run(ms(100));
    assert_eq!(hear_work(&mut net, 2, "a"), [7, 0, 0]);
    let now = net.clock(0);
    net.fleet(0).leave_fleet(now);
    net.send(0);
    net.nodes[0].fleet = None;
    net.run(ms(100));
    assert_eq!(hear_work(&mut net, 2, "a"), [2, 0, 0]);
    // A balancer keeps nothing of groups that it does not have.
    let now = net.clock(2);
    net.fleet(2).set_groups(["b"], now);
    tell_work(&mut net, 1, "a", &[(1, 9)]);
    net.run(ms(100));
    assert_eq!(hear_work(&mut net, 2, "a"), [2, 0, 0], "told before");
}

/// A balancer of an earlier version refuses datagrams of a kind that it does not know, and stays in the fleet.
#[test]
fn a_datagram_of_an_unknown_kind_changes_nothing() {
    let mut net = Net::new(2, 13);
    net.until(ms(10_000), |net| net.agrees());
    net.records = true;
    tell_work(&mut net, 0, "a", &[(1, 5)]);
    net.run(ms(50));
    let kind = |datagram: &[u8]| datagram.get(5).copied();
    let recorded = net.recorded.iter();
    let mut of_work = recorded.filter(|(_, datagram)| kind(datagram) == Some(9));
    let (to, mut datagram) = of_work.next().cloned().unwrap();
    assert_eq!(to, 1);
    datagram[5] = 200;
    datagram.truncate(datagram.len() - TAG_LEN);
    keys(7).signing_key().sign_message(&mut datagram);
    let now = net.clock(1);
    let outcome = net.fleet(1).receive_datagram(&datagram, now);
    assert_eq!(outcome, Outcome::Invalid(Invalid::Kind));
    net.run(ms(1000));
    assert!(net.agrees());
    tell_work(&mut net, 0, "a", &[(1, 6)]);
    net.run(ms(50));
    assert_eq!(hear_work(&mut net, 1, "a"), [6, 0, 0]);
}

/// Lets time pass; every 100 ms all look who reads the loads of two locations, which are known as the number of the
/// balancer that has read them, or not. Answers what each of those that are up has found.
fn share(net: &mut Net, time: Duration, group: &str, known: bool) -> BTreeMap<usize, Vec<Reader>> {
    let mut found = BTreeMap::new();
    let end = net.now.after(time);
    while net.now < end {
        net.run(ms(100));
        found.clear();
        for number in net.up() {
            let now = net.clock(number);
            let own = |_| {
                Reading::new(|id| {
                    let is_known = known && id == LoadId::CPU;
                    LoadValue::new(number as f64).ok().filter(|_| is_known)
                })
            };
            let fleet = net.fleet(number);
            found.insert(number, fleet.share_loads(group, &[1, 2], own, now));
            net.send(number);
        }
        let here = found
            .values()
            .filter(|readers| readers.contains(&Reader::Here));
        assert!(
            here.count() <= 1,
            "two read for all at {:?}: {found:?}",
            net.now
        );
    }
    found
}

fn read_by(number: usize) -> Vec<Reader> {
    let cpu = |id| {
        LoadValue::new(number as f64)
            .ok()
            .filter(|_| id == LoadId::CPU)
    };
    vec![Reader::Another(Reading::new(cpu)); 2]
}

fn reader(found: &BTreeMap<usize, Vec<Reader>>) -> usize {
    let here = found
        .iter()
        .find(|(_, readers)| **readers == [Reader::Here; 2]);
    *here.expect("nobody reads").0
}

/// The loads of a group's locations are read by one balancer, and the others know them; another
/// balancer reads them when it goes.
#[test]
fn one_balancer_reads_the_loads_for_all_and_another_one_when_it_goes() {
    let mut net = Net::new(5, 11);
    net.loss = 0.1;
    net.until(secs(20), |net| net.agrees());
    let mut found = share(&mut net, secs(3), "a", true);
    for _ in 0..2 {
        let reads = reader(&found);
        for (number, readers) in &found {
            if *number != reads {
                assert_eq!(*readers, read_by(reads), "{number}");
            }
        }
        // What it knows no more, the others do not know either, and do not ask for.
        let unknown = share(&mut net, secs(2), "a", false);
        for (number, readers) in &unknown {
            if *number != reads {
                assert_eq!(*readers, [Reader::Another(Reading::default()); 2]);
            }
        }
        share(&mut net, secs(1), "a", true);
        net.nodes[reads].fleet = None;
        found = share(&mut net, secs(2), "a", true);
        assert_ne!(reader(&found), reads);
    }
    // A location that is in two groups is read for one of them.
    let also = share(&mut net, secs(1), "b", true);
    let again = share(&mut net, secs(1), "a", true);
    for (one, other) in also.values().zip(again.values()) {
        let reads = |readers: &[Reader]| readers.iter().any(|r| *r != Reader::Nobody);
        assert_ne!(reads(one), reads(other), "{one:?} {other:?}");
    }
}

/// Each side of a network that is cut reads by itself.
#[test]
fn where_the_network_is_cut_each_side_has_a_reader() {
    let mut net = Net::new(4, 12);
    net.strict = false;
    net.until(secs(20), |net| net.agrees());
    let found = share(&mut net, secs(2), "a", true);
    let reads = reader(&found);
    net.part(|number| number == reads);
    net.run(secs(4));
    let mut here = 0;
    for number in net.up() {
        let now = net.clock(number);
        let readers = net
            .fleet(number)
            .share_loads("a", &[1, 2], |_| Reading::default(), now);
        here += usize::from(readers == [Reader::Here; 2]);
    }
    assert_eq!(here, 2, "one on each side");
}

#[test]
fn prompts_at_engines_reach_balancers_with_the_group_once() {
    let mut net = Net::new(3, 41);
    net.until(ms(10_000), |net| net.agrees());
    let links: Vec<u64> = (0..500).collect();
    let mut bodies = PromptBodies::new("a", 3);
    bodies.add_prompt(7, 4000, &links);
    bodies.add_prompt(8, 1, &[9]);
    let mut strange = PromptBodies::new("not here", 3);
    strange.add_prompt(7, 1, &[9]);
    assert!(net.fleet(0).has_listener());
    for bodies in [&bodies, &strange] {
        net.fleet(0).send_prompts(bodies);
    }
    net.send(0);
    net.run(ms(100));
    for at in [1, 2] {
        let mut prompts = net.fleet(at).take_prompts("a", 3);
        // The network may turn datagrams round.
        prompts.sort_by_key(|prompt| (prompt.member, prompt.links.first().copied()));
        let tokens = prompts.iter().map(|prompt| prompt.unread_tokens);
        assert_eq!(tokens.sum::<u32>(), 4001);
        let last = prompts.pop().unwrap();
        assert_eq!((last.member, last.links), (8, vec![9]));
        let all = prompts.into_iter().flat_map(|prompt| prompt.links);
        assert_eq!(all.collect::<Vec<_>>(), links);
        assert_eq!(net.fleet(at).take_prompts("a", 3), []);
        assert_eq!(net.fleet(at).take_prompts("not here", 3), []);
    }
    assert_eq!(net.fleet(0).counters().prompts_told, 3);
    // Hashes that are made in another way say nothing.
    net.fleet(0).send_prompts(&bodies);
    net.run(ms(100));
    assert_eq!(net.fleet(1).take_prompts("a", 4), []);
    assert_eq!(net.fleet(1).take_prompts("a", 3), []);
    assert_eq!(net.fleet(0).take_prompts("a", 3), []);
    // What nobody takes is bounded.
    net.delay = Duration::ZERO;
    for _ in 0..100 {
        let mut bodies = PromptBodies::new("a", 3);
        (0..90).for_each(|link| bodies.add_prompt(7, 1, &[link]));
        net.fleet(0).send_prompts(&bodies);
        net.run(ms(5));
    }
    net.run(ms(500));
    assert_eq!(net.fleet(1).take_prompts("a", 3).len(), 4096);
}

#[test]
fn copies_of_connections_reach_balancers_once_and_only_from_balancers() {
    let mut net = Net::new(3, 31);
    net.run(secs(3));
    // The network may turn datagrams round.
    let bodies = |net: &mut Net, number: usize| {
        let mut all = net.fleet(number).take_copies().0;
        all.sort();
        all
    };
    net.records = true;
    net.fleet(0).send_copies(None, b"all");
    net.fleet(0).send_copies(Some(address(1)), b"one");
    net.fleet(0).send_copies(Some(address(7)), b"nobody");
    net.fleet(0).send_copies(None, &[0; Fleet::MAX_COPIES + 1]);
    net.run(secs(1));
    let from = address(0);
    let all = (from, b"all".to_vec());
    assert_eq!(bodies(&mut net, 1), [all.clone(), (from, b"one".to_vec())]);
    assert_eq!(bodies(&mut net, 2), [all]);
    // Somebody sends again what was seen, or has another key.
    let recorded = std::mem::take(&mut net.recorded);
    for (to, datagram) in &recorded {
        net.deliver(*to, datagram);
        let mut forged = datagram.clone();
        let last = forged.len() - 20;
        forged[last] ^= 1;
        net.deliver(*to, &forged);
    }
    for number in 0..3 {
        assert_eq!(bodies(&mut net, number), []);
    }
    // The longest body fits into a datagram.
    net.fleet(0)
        .send_copies(Some(address(1)), &[7; Fleet::MAX_COPIES]);
    net.run(secs(1));
    assert_eq!(bodies(&mut net, 1).len(), 1);
    // What nobody takes is bounded. Datagrams keep their order: one that is late by 64 others counts as sent again.
    net.delay = Duration::ZERO;
    for _ in 0..100 {
        (0..50).for_each(|_| net.fleet(0).send_copies(Some(address(1)), b"x"));
        net.run(ms(5));
    }
    net.run(ms(500));
    let (kept, lost) = net.fleet(1).take_copies();
    assert_eq!((kept.len(), lost), (4096, 5000 - 4096));
}

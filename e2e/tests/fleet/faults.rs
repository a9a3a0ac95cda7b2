//! A fleet in which everything fails in turn: ten balancers with one configuration, which they have from a
//! cluster of three etcds, before twelve servers. No request and no change is lost, and none is applied twice; and they
//! agree upon load alerts, of which there are never too many.
//!
//! `EVENKEEL_FAULT_SECONDS` is how long it goes on (ten minutes with `make soak-fleet`), `EVENKEEL_FAULT_SEED` repeats
//! a run.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::{Duration, Instant};

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::etcd::Etcd;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::load::Clients;
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::server::Server;
use evenkeel_e2e::wait_until;

const BALANCERS: usize = 10;
const SERVERS: usize = 12;
/// Servers that may be away at the same time.
const AWAY: usize = 3;
/// Locations that may be under alert: a quarter of those of the eleven members.
const ALERTS: usize = 2;

fn number(variable: &str, otherwise: u64) -> u64 {
    let said = env::var(variable).ok();
    said.map_or(otherwise, |said| said.parse().expect("a number"))
}

/// Result of a push, as far as the person knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pushed {
    /// The push has this number.
    As(u32),
    /// The store did not answer: the push is there, or it is not.
    Perhaps,
}

struct Fleet {
    rng: fastrand::Rng,
    etcds: [Etcd; 3],
    /// Flags of the etcds that were killed, or are stopped.
    down: [bool; 3],
    stopped: [bool; 3],
    servers: Vec<Server>,
    away: Vec<usize>,
    balancers: Vec<Balancer>,
    person: Folder,
    /// Each text that was pushed, by its mark.
    pushes: BTreeMap<u32, Pushed>,
    tally: BTreeMap<&'static str, u32>,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let etcds = Etcd::start_three();
        let urls: Vec<String> = etcds.iter().map(Etcd::url).collect();
        let servers: Vec<Server> = (0..SERVERS).map(|_| Server::start_nginx(None)).collect();
        let own = |name: &str, timeout: &str, more: &str| {
            format!(
                "[admin]\nlisten = \"127.0.0.1:0\"\n[node]\nname = \"{name}\"\n\
                 [store]\nendpoints = {urls:?}\ncopy_file = \"copy\"\ntimeout = \"{timeout}\"\n{more}"
            )
        };
        let person = Folder::new();
        // A store that is there may take its time on a busy machine; one that is not has it in vain.
        person.write("patient.toml", own("person", "30s", ""));
        person.write("hasty.toml", own("person", "1s", ""));
        let keys = person.write_private("keys", "1:000102030405060708090a0b0c0d0e0f");
        let mut fleet = Fleet {
            rng: fastrand::Rng::with_seed(seed),
            etcds,
            down: [false; 3],
            stopped: [false; 3],
            servers,
            away: Vec::new(),
            balancers: Vec::new(),
            person,
            pushes: BTreeMap::new(),
            tally: BTreeMap::new(),
        };
        fleet.push();
        assert_eq!(fleet.pushes[&0], Pushed::As(1));
        let mut join = String::new();
        for number in 0..BALANCERS {
            let others = format!("[fleet]\nlisten = \"127.0.0.1:0\"\nkey_file = {keys:?}\n{join}");
            let own = own(&format!("edge-{number}"), "1s", &others);
            let balancer = Balancer::start(&own);
            if number == 0 {
                let address = balancer.admin_json("/v1/fleet")["address"].clone();
                join = format!("join = {address}\n");
            }
            fleet.balancers.push(balancer);
        }
        fleet
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Returns true if all of the store is there.
    fn is_whole(&self) -> bool {
        !self.down.contains(&true) && !self.stopped.contains(&true)
    }

    /// `evenkeel store` of the person.
    fn store(&self, words: &[&str]) -> Result<String, String> {
        let own = match self.is_whole() {
            true => "patient.toml",
            false => "hasty.toml",
        };
        let own = self.person.join(own).display().to_string();
        let mut arguments = vec!["store", "--config", &own];
        arguments.extend(words);
        run_evenkeel(&arguments)
    }

    /// Pushes a text with most of the servers.
    fn push(&mut self) {
        let mark = self.pushes.len() as u32;
        let servers = self.servers.iter().enumerate();
        let mut members: Vec<String> = servers
            .map(|(number, server)| {
                let address = server.address();
                format!("{{ address = \"{address}\", location = \"s{number}\" }}")
            })
            .collect();
        // One that is left out is one of many, so that those that are away are no majority.
        members.swap_remove(self.rng.usize(..members.len()));
        let members = members.join(", ");
        let text = format!(
            "# {mark}\nworkers = 1\n[rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\ngroup = \"web\"\n\
             [group.web]\nmembers = [{members}]\nhealth_check = {{ path = \"/name\", interval = \"500ms\" }}\n\
             load_max_age = \"1h\"\ngranularity = \"on_demand\"\n\
             alert = {{ threshold = 0.8, max_share = 0.25, shed_time = \"0s\" }}\n"
        );
        let file = self.person.write("shared.toml", text).display().to_string();
        let said = self.store(&["push", &file, "--of", "latest"]);
        let pushed = match said {
            Ok(said) => {
                let number = said.split(' ').nth(1).map(str::parse);
                Pushed::As(number.unwrap().unwrap())
            }
            Err(complaint) => {
                assert!(!self.is_whole(), "the store is there: {complaint}");
                Pushed::Perhaps
            }
        };
        self.pushes.insert(mark, pushed);
        self.count(match pushed {
            Pushed::As(_) => "changes",
            Pushed::Perhaps => "changes without an answer",
        });
    }

    /// Something happens.
    fn step(&mut self) {
        let etcd = self.rng.usize(..3);
        match self.rng.u32(..13) {
            0 => self.kill_etcd(etcd),
            1 => {
                (0..3).for_each(|etcd| self.kill_etcd(etcd));
                self.count("times without any etcd");
            }
            2 if !self.down[etcd] && !self.stopped[etcd] => {
                self.etcds[etcd].stop();
                self.stopped[etcd] = true;
                self.count("etcds stopped");
            }
            2 | 3 => self.mend_store(),
            4 => {
                let balancer = self.rng.usize(..BALANCERS);
                // What it learns from the store meanwhile must not be lost, either.
                self.balancers[balancer].upgrade().unwrap();
                self.count("upgrades");
            }
            5 if self.away.len() < AWAY => {
                let server = self.rng.usize(..SERVERS);
                if !self.away.contains(&server) {
                    self.servers[server].kill();
                    self.away.push(server);
                    self.count("servers killed");
                }
            }
            5 | 6 => {
                if !self.away.is_empty() {
                    let server = self.away.swap_remove(self.rng.usize(..self.away.len()));
                    self.servers[server].restart();
                }
            }
            7..10 => self.push(),
            _ => {
                let (server, load) = (self.rng.usize(..SERVERS), self.rng.f64());
                self.report(server, load);
                self.count("loads");
                let alerts = self.balancers.iter().map(alerts);
                assert!(alerts.max() <= Some(ALERTS), "too many alerts");
            }
        }
    }

    /// All balancers see this load, where the server is a member.
    fn report(&self, server: usize, load: f64) {
        for balancer in &self.balancers {
            let location = format!("s{server}");
            let known = balancer.admin_json("/v1/locations");
            let mut known = known.as_array().unwrap().iter();
            if known.any(|one| one["name"] == *location) {
                // A change may take it away in between.
                let _ = balancer.run_ctl(&format!("loads push {location} cpu={load}"));
            }
        }
    }

    fn kill_etcd(&mut self, etcd: usize) {
        if !self.down[etcd] {
            self.etcds[etcd].kill();
            self.count("etcds killed");
        }
        self.down[etcd] = true;
        self.stopped[etcd] = false;
    }

    /// All three etcds run and agree again.
    fn mend_store(&mut self) {
        for (etcd, stopped) in self.etcds.iter().zip(&mut self.stopped) {
            if std::mem::take(stopped) {
                etcd.go_on();
            }
        }
        for (etcd, down) in self.etcds.iter_mut().zip(&mut self.down) {
            if std::mem::take(down) {
                etcd.spawn();
            }
        }
        self.etcds.iter().for_each(Etcd::wait_until_ready);
    }
}

/// Returns the number of locations that a balancer has under alert.
fn alerts(balancer: &Balancer) -> usize {
    let locations = balancer.admin_json("/v1/locations");
    let locations = locations.as_array().unwrap().iter();
    locations.filter(|one| one["alert"] == true).count()
}

#[test]
fn no_request_and_no_change_is_lost_whatever_fails() {
    if !are_installed(&["etcd", "etcdctl", "nginx"]) {
        return;
    }
    let seed = number("EVENKEEL_FAULT_SEED", fastrand::u64(..1_000_000));
    let time = Duration::from_secs(number("EVENKEEL_FAULT_SECONDS", 20));
    eprintln!("EVENKEEL_FAULT_SEED={seed}");
    let mut fleet = Fleet::new(seed);
    let clients: Vec<Clients> = fleet
        .balancers
        .iter()
        .map(|balancer| Clients::start(balancer.address("web"), 1))
        .collect();
    let start = Instant::now();
    while start.elapsed() < time {
        fleet.step();
        clients.iter().for_each(|clients| clients.wait_for(3));
    }
    fleet.mend_store();
    fleet.push();
    let last = fleet.pushes.len() as u32 - 1;
    let Pushed::As(revision) = fleet.pushes[&last] else {
        panic!("the store is there: {:?}", fleet.pushes);
    };
    for balancer in &fleet.balancers {
        wait_until("the last change is in force", || {
            balancer.read_metric("evenkeel_store_revision") == Some(f64::from(revision))
        });
    }
    (0..SERVERS).for_each(|server| fleet.report(server, 0.95));
    let holders = || -> BTreeSet<String> {
        let all = fleet.balancers.iter();
        all.map(|balancer| {
            let said = balancer.admin_json("/v1/fleet");
            said["groups"][0]["decides"].to_string()
        })
        .collect()
    };
    wait_until("all name the same one that decides upon alerts", || {
        let holders = holders();
        holders.len() == 1 && !holders.contains("null")
    });
    for balancer in &fleet.balancers {
        wait_until("as much is under alert as may be", || {
            alerts(balancer) == ALERTS
        });
    }
    let answered: u64 = clients.into_iter().map(Clients::stop_and_count).sum();

    // The revisions are those that were pushed, in their order, each of them once.
    let mut seen = Vec::new();
    for number in 1..=revision {
        let text = fleet.store(&["pull", &number.to_string()]).unwrap();
        let mark = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let mark: u32 = mark.unwrap().parse().unwrap();
        match fleet.pushes[&mark] {
            Pushed::As(said) => assert_eq!(said, number, "of text {mark}"),
            Pushed::Perhaps => {}
        }
        seen.push(mark);
    }
    assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
    for (mark, pushed) in &fleet.pushes {
        let is_there = seen.contains(mark);
        assert!(is_there || *pushed == Pushed::Perhaps, "{mark} is lost");
    }
    eprintln!(
        "{answered} requests, {revision} revisions: {:?}",
        fleet.tally
    );
}

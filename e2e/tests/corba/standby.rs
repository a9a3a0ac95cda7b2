//! Balancers that are one load manager: one serves, another one stands by.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use evenkeel_corba::name::Name;
use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::corba::{LoadManager, Orb};
use evenkeel_e2e::etcd::{Between, Etcd};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::jacorb::JacOrb;
use evenkeel_e2e::omniorb::OmniOrb;
use evenkeel_e2e::orb::{Client, Orb as Adapter, Server};
use evenkeel_e2e::process::{Signal, are_installed};
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use evenkeel_giop::any::Idl;
use evenkeel_giop::ior::Ior;

const TYPE: &str = "IDL:Stock/Factory:1.0";
const PEER: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";

fn has_etcd() -> bool {
    are_installed(&["etcd", "etcdctl"])
}

/// Two balancers, each with a way of its own to the store.
struct Scene {
    etcd: Etcd,
    ways: [Between; 2],
    listen: [SocketAddr; 2],
}

impl Scene {
    fn new() -> Self {
        let etcd = Etcd::start();
        let scene = Scene {
            ways: [(); 2].map(|()| Between::start(etcd.address())),
            listen: [address(), address()],
            etcd,
        };
        let folder = Folder::new();
        folder.write("shared.toml", "workers = 1\n");
        folder.write("own.toml", scene.config(0));
        let file = |name: &str| folder.join(name).display().to_string();
        let (own, shared) = (file("own.toml"), file("shared.toml"));
        run_evenkeel(&["store", "--config", &own, "push", &shared]).unwrap();
        scene
    }

    /// The file of the balancer with this number.
    fn config(&self, number: usize) -> String {
        let advertise = self.listen.map(|address| address.to_string());
        format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[node]\nname = \"lb-{number}\"\n\
             [store]\nendpoints = \"{}\"\ncopy_file = \"copy\"\n\
             [corba]\nlisten = \"{}\"\nadvertise = {advertise:?}\nstandby = true\n\
             liveness = false\nalert_retry = \"100ms\"\n\
             [corba.groups]\nstrategy = \"round_robin\"\n",
            self.ways[number].url(),
            self.listen[number],
        )
    }

    fn start(&self, number: usize) -> Balancer {
        Balancer::start(&self.config(number))
    }

    /// The first one serves, and the second one stands by.
    fn start_both(&self) -> [Balancer; 2] {
        let first = self.start(0);
        serves(&first);
        let second = self.start(1);
        stands_by(&second, "lb-0");
        [first, second]
    }

    fn manager(&self, number: usize) -> LoadManager {
        LoadManager::at_address(self.listen[number])
    }

    fn is_open(&self, number: usize) -> bool {
        TcpStream::connect(self.listen[number]).is_ok()
    }

    /// A reference to the same object at one of the balancers only.
    fn only_at(&self, number: usize, object: &Ior) -> Ior {
        let profile = object.iiop_profiles().next().unwrap();
        let at = self.listen[number];
        let host = at.ip().to_string();
        Ior::new_iiop(&object.type_id, &host, at.port(), &profile.object_key)
    }

    fn owner(&self) -> String {
        self.etcd.run_etcdctl(&["get", "/evenkeel/corba/owner"])
    }
}

fn is_owner(balancer: &Balancer) -> bool {
    balancer.read_metric("evenkeel_corba_owner") == Some(1.0)
}

fn serves(balancer: &Balancer) {
    wait_until("it serves", || is_owner(balancer));
}

fn stands_by(balancer: &Balancer, owner: &str) {
    wait_until(&format!("it stands by for {owner}"), || {
        let standby = &balancer.admin_json("/v1/corba")["standby"];
        standby["is_owner"] == false && standby["owner"] == owner
    });
}

fn object(host: &str) -> Ior {
    Ior::new_iiop(TYPE, host, 4711, b"\0\x01key")
}

/// A group with this member.
fn group(lm: &LoadManager, host: &str) -> Ior {
    let (group, _) = lm.create_group(TYPE, vec![]).unwrap();
    lm.add_member(&group, host, &object(host)).unwrap();
    group
}

#[test]
fn a_standby_goes_on_with_all_that_the_owner_knew() {
    if !has_etcd() {
        return;
    }
    let scene = Scene::new();
    let [first, second] = scene.start_both();
    assert!(!scene.is_open(1), "who stands by takes no client");
    let shown = second.run_ctl("corba").unwrap();
    assert!(
        shown.contains("stands by") && shown.contains("lb-0"),
        "{shown}"
    );
    let lm = scene.manager(0);
    let groups = ["a", "b", "c"].map(|host| group(&lm, host));
    lm.remove_member(&groups[1], "b").unwrap();
    lm.add_member(&groups[1], "d", &object("d")).unwrap();
    let alert = Ior::new_iiop("IDL:x:1.0", "alert", 1, b"a");
    let monitor = Ior::new_iiop("IDL:x:1.0", "monitor", 1, b"m");
    for (operation, what) in [
        ("register_load_alert", &alert),
        ("register_load_monitor", &monitor),
    ] {
        lm.call_operation(operation, |w| {
            Name::from_id("a").write(w);
            what.write(w);
        })
        .unwrap();
    }
    let older = first.folder().text("corba-state.json");

    let folder_of_first = first.folder().path().to_owned();
    first.signal(Signal::KILL);
    serves(&second);
    let lm = scene.manager(1);
    // References of before are good as they are: both balancers are in them.
    for (group, host) in groups.iter().zip(["a", "d", "c"]) {
        assert_eq!(lm.orb.resolve_forward(group).unwrap(), object(host));
        assert_eq!(lm.locations(group).unwrap(), [host]);
    }
    let status = second.admin_json("/v1/corba");
    assert_eq!(status["alerts"][0]["reference"], alert.to_string());
    assert_eq!(status["monitors"][0]["reference"], monitor.to_string());
    assert_eq!(status["state_problem"], serde_json::Value::Null);
    // No id is used again.
    let fourth = group(&lm, "e");
    assert!(!groups.contains(&fourth));

    // The first one comes back with what it knew; what the store has counts.
    std::fs::write(folder_of_first.join("corba-state.json"), older).unwrap();
    let first = first.replace(&scene.config(0));
    stands_by(&first, "lb-1");
    let mut second = second;
    second.signal(Signal::TERM);
    assert!(second.wait_for_end().success());
    assert!(!scene.owner().contains("lb-1"), "its lease ends with it");
    serves(&first);
    let lm = scene.manager(0);
    for (group, host) in groups.iter().chain([&fourth]).zip(["a", "d", "c", "e"]) {
        assert_eq!(lm.orb.resolve_forward(group).unwrap(), object(host));
    }
    first.wait_for_log("the groups of the store are used, and the file is rewritten");
    wait_until("the file is a copy", || {
        let copy = first.folder().text("corba-state.json");
        copy.contains("\"location\": \"e\"")
    });
}

/// Clients of `O` hold the reference of a group, in which both balancers are.
fn clients_go_on<O: Adapter>() {
    if !has_etcd() || !O::can_run() {
        return;
    }
    let scene = Scene::new();
    let [first, second] = scene.start_both();
    let corbaloc = {
        let places = scene.listen.map(|at| format!("iiop:{at}"));
        format!("corbaloc:{}/LoadManager", places.join(","))
    };
    let initial = format!("LoadManager={corbaloc}");
    let initial = ["-ORBInitRef", initial.as_str()];
    let (group, _) = scene.manager(0).create_group(PEER, vec![]).unwrap();
    let reference = group.to_string();
    let [mut a, mut b] = ["a", "b"].map(|name| Server::<O>::start(name, &initial));
    a.join_group("a", &reference);
    let mut client = Client::<O>::start(&reference, &[]);
    assert_eq!(client.ask_line("who"), "a");
    first.signal(Signal::KILL);
    // Who is bound goes on without a load manager.
    assert_eq!(client.ask_line("who"), "a");
    serves(&second);
    // Servers find the one that serves now, and so does a client whose server goes.
    b.join_group("b", &reference);
    let lm = scene.manager(1);
    // Whoever is removed while it lives joins again.
    a.kill();
    lm.remove_member(&group, "a").unwrap();
    wait_until("it is bound anew", || client.ask_line("who") == "b");
    let mut other = Client::<O>::start(&reference, &[]);
    assert_eq!(other.ask_line("who"), "b");
    let mut manager = O::manager(&initial);
    assert_eq!(
        manager.ask_line(&format!("locations_of_members {reference}")),
        "b"
    );
}

#[test]
fn clients_of_omniorb_follow_the_owner() {
    clients_go_on::<OmniOrb>();
}

#[test]
fn clients_of_jacorb_follow_the_owner() {
    clients_go_on::<JacOrb>();
}

/// Asks a balancer again and again where a group is forwarded to, and keeps when it answered.
struct Asking {
    stop: Arc<AtomicBool>,
    /// Times of each answered question: when the balancer was asked, and when the answer came.
    answered: Arc<Mutex<Vec<(Instant, Instant)>>>,
    thread: thread::JoinHandle<()>,
}

impl Asking {
    fn start(group: Ior) -> Self {
        let (stop, answered) = (
            Arc::<AtomicBool>::default(),
            Arc::<Mutex<Vec<_>>>::default(),
        );
        let (ends, answers) = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = thread::spawn(move || {
            let orb = Orb::default();
            while !ends.load(Ordering::Relaxed) {
                let asked = Instant::now();
                if orb.resolve_forward(&group).is_ok() {
                    answers.lock().unwrap().push((asked, Instant::now()));
                }
            }
        });
        Asking {
            stop,
            answered,
            thread,
        }
    }

    fn has_answers(&self) -> bool {
        !self.answered.lock().unwrap().is_empty()
    }

    fn end(self) -> Vec<(Instant, Instant)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        std::mem::take(&mut *self.answered.lock().unwrap())
    }
}

#[test]
fn an_owner_without_the_store_ends_before_another_one_begins() {
    if !has_etcd() {
        return;
    }
    let scene = Scene::new();
    let [first, second] = scene.start_both();
    let group = group(&scene.manager(0), "a");
    let asking = [0, 1].map(|number| Asking::start(scene.only_at(number, &group)));
    wait_until("the owner answers", || asking[0].has_answers());
    scene.ways[0].cut_connections();
    serves(&second);
    wait_until("the next one answers", || asking[1].has_answers());
    let [before, after] = asking.map(Asking::end);
    let last_asked = before.iter().map(|(asked, _)| *asked).max().unwrap();
    let first_answer = after.iter().map(|(_, came)| *came).min().unwrap();
    assert!(last_asked < first_answer, "both have served");
    assert!(!scene.is_open(0));
    first.wait_for_log("is not the load manager any more, and stands by");
    let problem = &first.admin_json("/v1/corba")["standby"]["problem"];
    let problem = problem.as_str().unwrap_or_default();
    assert!(problem.contains("the store cannot be asked"), "{problem}");
    // Its groups are not there as long as it stands by.
    assert_eq!(first.status()["groups"].as_array().unwrap().len(), 0);
    scene.ways[0].accept_connections();
    stands_by(&first, "lb-1");
    assert!(is_owner(&second));
}

#[test]
fn an_owner_that_stood_still_answers_nobody_when_it_goes_on() {
    if !has_etcd() {
        return;
    }
    let scene = Scene::new();
    let [first, second] = scene.start_both();
    let group = group(&scene.manager(0), "a");
    let there = scene.only_at(0, &group);
    let orb = Orb::default();
    orb.resolve_forward(&there).unwrap();
    first.signal(Signal::STOP);
    serves(&second);
    // It has the connection, and finds the question when it goes on.
    let asked = thread::spawn(move || orb.resolve_forward(&there));
    let profile_of_second = scene.only_at(1, &group);
    assert_eq!(
        Orb::default().resolve_forward(&profile_of_second).unwrap(),
        object("a")
    );
    first.signal(Signal::CONT);
    let answer = asked.join().unwrap();
    assert!(answer.is_err(), "{answer:?}");
    stands_by(&first, "lb-1");
}

#[test]
fn an_owner_goes_on_by_itself_when_the_store_is_back() {
    if !has_etcd() {
        return;
    }
    let mut scene = Scene::new();
    let balancer = scene.start(0);
    serves(&balancer);
    let group = group(&scene.manager(0), "a");
    scene.etcd.kill();
    // It serves until nobody could know any more whether another one does.
    let forward = || Orb::default().resolve_forward(&group);
    assert_eq!(forward().unwrap(), object("a"));
    wait_until("it stands by", || !scene.is_open(0));
    wait_until("it says why", || {
        balancer.run_ctl("corba").unwrap().contains("the store ")
    });
    scene.etcd.run();
    serves(&balancer);
    assert_eq!(forward().unwrap(), object("a"));

    // Without the store at the start, everything else works.
    scene.etcd.kill();
    let balancer = balancer.replace(&scene.config(0));
    balancer.wait_for_log("stands by: the store cannot be asked who serves");
    assert!(!scene.is_open(0));
    scene.etcd.run();
    serves(&balancer);
    assert_eq!(forward().unwrap(), object("a"));
}

#[test]
fn an_upgrade_of_the_owner_is_no_change_of_owners() {
    if !has_etcd() {
        return;
    }
    let scene = Scene::new();
    let [mut first, second] = scene.start_both();
    let lm = scene.manager(0);
    let one = group(&lm, "a");
    first.upgrade().unwrap();
    serves(&first);
    let lm = scene.manager(0);
    assert_eq!(lm.orb.resolve_forward(&one).unwrap(), object("a"));
    let two = group(&lm, "b");
    // The process before has ended, or does so: the lease stays.
    assert!(scene.owner().contains("lb-0"), "{}", scene.owner());
    assert_eq!(
        second.read_metric("evenkeel_corba_takeovers_total"),
        Some(0.0)
    );
    stands_by(&second, "lb-0");
    first.signal(Signal::KILL);
    serves(&second);
    let lm = scene.manager(1);
    for (group, host) in [(&one, "a"), (&two, "b")] {
        assert_eq!(lm.orb.resolve_forward(group).unwrap(), object(host));
    }
}

#[test]
fn a_service_that_is_switched_off_leaves_its_place_to_others() {
    if !has_etcd() {
        return;
    }
    let scene = Scene::new();
    let [first, second] = scene.start_both();
    let group = group(&scene.manager(0), "a");
    let config = scene.config(0);
    let (without, _) = config.split_once("[corba]").unwrap();
    first.reconfigure(without);
    serves(&second);
    assert!(!scene.is_open(0));
    assert_eq!(
        scene.manager(1).orb.resolve_forward(&group).unwrap(),
        object("a")
    );
    first.reconfigure(&config);
    stands_by(&first, "lb-1");
    drop(second);
    serves(&first);
    assert_eq!(
        scene.manager(0).orb.resolve_forward(&group).unwrap(),
        object("a")
    );
}

#[test]
fn the_first_owner_brings_its_file_and_damaged_keys_harm_themselves_only() {
    if !has_etcd() {
        return;
    }
    let scene = Scene::new();
    // It was the only one until now.
    let config = scene.config(0);
    let alone = config.replace("standby = true\n", "");
    let balancer = Balancer::start(&alone);
    let lm = scene.manager(0);
    let groups = ["a", "b"].map(|host| group(&lm, host));
    let balancer = balancer.replace(&config);
    serves(&balancer);
    let lm = scene.manager(0);
    for (group, host) in groups.iter().zip(["a", "b"]) {
        assert_eq!(lm.orb.resolve_forward(group).unwrap(), object(host));
    }
    balancer.wait_for_log("the store has no object groups yet: those in");
    balancer.signal(Signal::KILL);

    let keys = "/evenkeel/corba/state/groups/";
    let keys = scene
        .etcd
        .run_etcdctl(&["get", "--prefix", "--keys-only", keys]);
    let keys: Vec<&str> = keys.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
    scene.etcd.run_etcdctl(&["put", keys[0], "{"]);
    let second = scene.start(1);
    serves(&second);
    let lm = scene.manager(1);
    assert_eq!(lm.orb.resolve_forward(&groups[1]).unwrap(), object("b"));
    assert!(lm.orb.resolve_forward(&groups[0]).is_err());
    second.wait_for_log(&format!("is damaged, and is left out: {}", keys[0]));
    assert_eq!(
        scene
            .etcd
            .run_etcdctl(&["get", "--print-value-only", keys[0]]),
        "{\n"
    );
    // Nobody serves by a key of the owner that nobody can read, and it is said.
    second.signal(Signal::KILL);
    wait_until("its lease has ended", || scene.owner().is_empty());
    scene
        .etcd
        .run_etcdctl(&["put", "/evenkeel/corba/owner", "x"]);
    let first = balancer.replace(&config);
    first.wait_for_log("remove it with etcdctl del /evenkeel/corba/owner");
    assert!(!scene.is_open(0));
    scene.etcd.run_etcdctl(&["del", "/evenkeel/corba/owner"]);
    serves(&first);
    // Whoever removes the key of an owner ends its time.
    scene.etcd.run_etcdctl(&["del", "/evenkeel/corba/owner"]);
    first.wait_for_log("is not the load manager any more");
    serves(&first);
    assert_eq!(
        first.read_metric("evenkeel_corba_takeovers_total"),
        Some(2.0)
    );
}

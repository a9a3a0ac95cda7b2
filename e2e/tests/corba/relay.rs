//! Per request: CORBA requests are relayed, each to a member of its own. Clients and members
//! are those of omniORB and JacORB.

#![allow(clippy::expect_used)] // helpers of tests

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::corba::LoadManager;
use evenkeel_e2e::script::Script;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::{jacorb, omniorb};
use evenkeel_giop::ior::Ior;

const TYPE: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";

const CONFIG: &str = "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
    [corba]\nlisten = \"127.0.0.1:0\"\n\
    [corba.groups]\nstrategy = \"round_robin\"\ngranularity = \"per_request\"\n";

/// A balancer with one group.
struct House {
    _balancer: Balancer,
    lm: LoadManager,
    group: Ior,
}

impl House {
    fn new() -> Self {
        let balancer = Balancer::start(CONFIG);
        let lm = LoadManager::at_address(balancer.corba_address());
        let (group, _) = lm.create_group(TYPE, vec![]).expect("a group");
        House {
            _balancer: balancer,
            lm,
            group,
        }
    }

    fn add(&self, at: &str, member: &str) {
        let member = member.parse().expect("a reference");
        let added = self.lm.add_member(&self.group, at, &member);
        added.expect("a member");
    }

    fn reference(&self) -> String {
        self.group.to_string()
    }
}

/// Checks that clients see the same of a group of these members as of a member.
fn behaves_like_one(client: &mut Script, members: &[&str]) {
    let mut answered = Vec::new();
    for _ in 0..2 * members.len() {
        answered.push(client.ask_line("who"));
    }
    answered.sort_unstable();
    answered.dedup();
    assert_eq!(answered, members, "each request is for another one");
    for _ in members {
        assert_eq!(client.ask_line("add 1 2"), "3");
        assert_eq!(client.ask_line("is_prime 7919"), "prime");
        assert_eq!(client.ask_line("reflect recursive"), "reflect recursive");
        assert_eq!(client.ask_line("non_existent"), "no");
        assert_eq!(client.ask_line(&format!("is_a {TYPE}")), "yes");
        assert_eq!(client.ask_line("is_a IDL:Other:1.0"), "no");
        // Of no fragment, and of many.
        assert_eq!(client.ask_line("blob 100"), "blob 100");
        assert_eq!(client.ask_line("blob 1500000"), "blob 1500000");
        assert_eq!(
            client.ask_line("fail 3"),
            "error NO_IMPLEMENT 0x9 COMPLETED_YES"
        );
        // Nobody wants it, so the client hears of it.
        assert_eq!(
            client.ask_line("fail 1"),
            "error TRANSIENT 0x7 COMPLETED_NO"
        );
        let refused = client.ask_line("fail 0");
        assert!(refused.contains("Refused"), "{refused}");
    }
}

fn posted(client: &mut Script, members: usize) -> i64 {
    let sums = (0..members).map(|_| client.ask_line("posted").parse::<i64>().expect("a number"));
    sums.sum()
}

#[test]
fn clients_of_omniorb_see_one_object() {
    if !omniorb::can_run() {
        return;
    }
    let house = House::new();
    let a = omniorb::Server::start("a", &[]);
    let b = omniorb::Server::start("b", &[]);
    house.add("host1", a.peer());
    house.add("host2", b.peer());
    for version in ["1.2", "1.1", "1.0"] {
        let reference = house.reference();
        let mut client = omniorb::Client::start(&reference, &["-ORBmaxGIOPVersion", version]);
        behaves_like_one(&mut client, &["a", "b"]);
        if version == "1.2" {
            assert_eq!(client.ask_line("wide grüße"), "grüße");
        }
        assert_eq!(
            client.ask_line("reference"),
            reference,
            "it stays with the balancer"
        );
    }
    let mut client = omniorb::Client::start(&house.reference(), &[]);
    for _ in 0..4 {
        assert_eq!(client.ask_line("post 5"), "post 5");
    }
    wait_until("both got their oneways", || posted(&mut client, 2) == 20);
}

/// For omniORB a connection that was begun in GIOP 1.1 has no wide characters.
#[test]
fn fronts_d1_a_client_of_giop_1_1_leaves_others_their_wide_characters() {
    if !omniorb::can_run() {
        return;
    }
    let house = House::new();
    let member = omniorb::Server::start("a", &[]);
    house.add("host1", member.peer());
    let mut old = omniorb::Client::start(&house.reference(), &["-ORBmaxGIOPVersion", "1.1"]);
    assert_eq!(old.ask_line("who"), "a");
    for _ in 0..2 {
        let mut client = omniorb::Client::start(&house.reference(), &[]);
        assert_eq!(client.ask_line("wide grüße"), "grüße");
    }
    assert_eq!(old.ask_line("who"), "a");
}

#[test]
fn members_that_speak_an_older_version_serve_newer_clients() {
    if !omniorb::can_run() {
        return;
    }
    for version in ["1.0", "1.1"] {
        let house = House::new();
        let old = omniorb::Server::start("old", &["-ORBmaxGIOPVersion", version]);
        house.add("host1", old.peer());
        let mut client = omniorb::Client::start(&house.reference(), &[]);
        behaves_like_one(&mut client, &["old"]);
    }
}

#[test]
fn clients_and_members_of_both_orbs_are_mixed() {
    if !omniorb::can_run() || !jacorb::can_run() {
        return;
    }
    let house = House::new();
    let little = omniorb::Server::start("little", &[]);
    let big = jacorb::Server::start("big", &[]);
    house.add("host1", little.peer());
    house.add("host2", big.peer());
    let mut client = omniorb::Client::start(&house.reference(), &[]);
    behaves_like_one(&mut client, &["big", "little"]);
    for _ in 0..2 {
        assert_eq!(client.ask_line("wide grüße"), "grüße");
    }
    let mut client = jacorb::Client::start(&house.reference(), &[]);
    behaves_like_one(&mut client, &["big", "little"]);
    for _ in 0..2 {
        assert_eq!(client.ask_line("wide grüße"), "grüße");
    }
}

#[test]
fn a_member_that_dies_costs_what_it_was_doing_and_nothing_else() {
    if !omniorb::can_run() {
        return;
    }
    let house = House::new();
    let mut dies = omniorb::Server::start("dies", &[]);
    let stays = omniorb::Server::start("stays", &[]);
    house.add("host1", dies.peer());
    let mut client = omniorb::Client::start(&house.reference(), &[]);
    assert_eq!(client.ask_line("who"), "dies");
    client.send_line("sleep 600000");
    wait_until("the request is there", || dies.served_count() == 2);
    house.add("host2", stays.peer());
    dies.kill();
    let lost = client.read_line();
    assert!(lost.starts_with("error COMM_FAILURE"), "{lost}");
    assert!(lost.ends_with("COMPLETED_MAYBE"), "{lost}");
    // The dead one refuses connections: whoever is sent there is sent on.
    for _ in 0..10 {
        assert_eq!(client.ask_line("who"), "stays");
    }
}

#[test]
fn a_member_that_hangs_holds_up_only_what_it_has() {
    if !omniorb::can_run() {
        return;
    }
    let house = House::new();
    let slow = omniorb::Server::start("slow", &[]);
    house.add("host1", slow.peer());
    let mut waits = omniorb::Client::start(&house.reference(), &[]);
    assert_eq!(waits.ask_line("who"), "slow");
    // Over the same connections to the member, later calls overtake.
    waits.send_line("sleep 1500");
    let mut others = omniorb::Client::start(&house.reference(), &[]);
    for _ in 0..20 {
        assert_eq!(others.ask_line("who"), "slow");
    }
    assert_eq!(waits.read_line(), "sleep 1500");
}

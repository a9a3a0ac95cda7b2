use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use evenkeel_config::{Limits, ReturnPath};
use evenkeel_core::cost::Cost;
use evenkeel_core::group::{Group, GroupSettings};
use evenkeel_core::load::Location;
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::{self, Values};
use evenkeel_core::time::Instant as CoreInstant;
use evenkeel_kernel::forward::{GROUPS, GroupTerms, LISTENERS, SEATS};
use evenkeel_manager::snapshot::GroupHandle;
use evenkeel_net::Clock;
use evenkeel_proxy::udp::client_sessions::ClientSessions;

use super::*;
use crate::engine::Engine;
use crate::home::Home;
use crate::plan::PlannedRule;
use crate::terms::hash_name;

fn refuse() -> BpfError {
    BpfError::Refused("write a BPF map", "Argument list too long".into())
}

#[test]
fn errors_of_entries_are_counted_and_errors_of_everything_are_returned() {
    let mut errors = EntryErrors::default();
    assert_eq!(errors.describe().last, None);
    assert_eq!(errors.take(EntryKind::Member, Ok(7)).unwrap(), Some(7));
    for kind in [EntryKind::Member, EntryKind::Layout, EntryKind::Member] {
        assert_eq!(errors.take::<()>(kind, Err(refuse())).unwrap(), None);
    }
    let file = BpfError::File("cannot remove /sys/fs/bpf/x".into());
    let taken = errors.take::<()>(EntryKind::Connection, Err(file));
    assert_eq!(taken.unwrap(), None);
    for error in [BpfError::Rights("write a BPF map"), BpfError::Lost("a map")] {
        errors.take::<()>(EntryKind::Group, Err(error)).unwrap_err();
    }
    let described = errors.describe();
    assert_eq!(described.counts.len(), NAMES.len());
    for (name, count) in &described.counts {
        let expected = match name.as_str() {
            "member" => 2,
            "layout" | "connection" => 1,
            _ => 0,
        };
        assert_eq!(*count, expected, "{name}");
    }
    let last = described.last.unwrap();
    assert!(last.starts_with("connection: cannot remove"), "{last}");
}

#[test]
fn warnings_come_at_most_once_in_ten_seconds() {
    let mut errors = EntryErrors::default();
    let begin = Instant::now();
    let mut count = |seconds| {
        let now = begin + Duration::from_secs(seconds);
        errors.count(EntryKind::Copy, &refuse(), now)
    };
    let warned = [0, 0, 9, 10, 11, 19, 20].map(&mut count);
    assert_eq!(warned, [true, false, false, true, false, false, true]);
    assert_eq!(errors.describe().counts["copy"], 7);
}

/// Program in the kernel of a test; gone when dropped.
struct Trial(Option<Engine>);

impl Trial {
    fn engine(&mut self) -> &mut Engine {
        self.0.as_mut().expect("not dropped yet")
    }

    fn count(&mut self, kind: &str) -> u64 {
        self.engine().errors.describe().counts[kind]
    }

    /// Seats of the members of a group in the kernel.
    fn seats(&mut self, group: &str) -> Vec<u32> {
        self.engine().groups[group].1.seats.clone()
    }

    /// Addresses of TCP rules that the kernel forwards for.
    fn listeners(&mut self) -> Vec<SocketAddr> {
        let listeners = self.engine().listeners.iter().flatten();
        listeners.map(|listener| listener.address).collect()
    }

    /// Reason why the proxy serves a rule; empty if the kernel forwards.
    fn reason(&mut self, rule: &str) -> String {
        let reasons = self.engine().obstacles.list_reasons();
        reasons.get(rule).cloned().unwrap_or_default()
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Some(engine) = self.0.take() {
            engine.stop();
        }
    }
}

fn skip(why: &str) {
    let name = thread::current().name().unwrap_or("?").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: {why}");
}

/// Runs a test with the program in a network namespace that forwards packets.
fn run_with_program(rules: &[PlannedRule], test: impl FnOnce(&mut Trial) + Send) {
    if Command::new("ip").arg("-V").output().is_err() {
        return skip("the program ip is missing");
    }
    let name = thread::current().name().unwrap_or("?").to_owned();
    let run = move || {
        // SAFETY: the call takes no memory.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return skip("no right to make a network namespace; run it as root");
        }
        for words in [
            "link add evk0 type veth peer name evk1",
            "link set evk0 up",
            "link set evk1 up",
        ] {
            let status = Command::new("ip").args(words.split(' ')).status();
            assert!(status.unwrap().success(), "ip {words}");
        }
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        match Engine::open(Clock::start(), rules, &ClientSessions::default()) {
            Ok(engine) => test(&mut Trial(Some(engine))),
            Err(error) if error.contains("no right") || error.contains("no BTF") => skip(&error),
            Err(error) => panic!("{error}"),
        }
    };
    thread::scope(|scope| {
        let builder = thread::Builder::new().name(name);
        builder.spawn_scoped(scope, run).unwrap();
    });
}

fn member_address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 77, 0, last], 8080))
}

/// A rule with a group of the same name, at this many ports from 7000 on.
fn rule(name: &str, ports: u16, members: &[u8]) -> PlannedRule {
    let listener = |port| SocketAddr::from(([10, 78, 0, name.len() as u8], port));
    let member = |last: &u8| Member {
        id: MemberId(u64::from(*last)),
        name: format!("m{last}").into(),
        given_name: None,
        address: member_address(*last).into(),
        host: "10.77.0.1".into(),
        max_connections: None,
        location: Arc::new(Location::new(format!("l{last}"))),
        zone: None,
        slot: Arc::new(Slot::new(Weight::ONE)),
    };
    let values = Values::defaults(strategy::find("adaptive").unwrap());
    let members = members.iter().map(member).collect();
    let settings = GroupSettings::default();
    let group = Group::new(name, settings, &values, members, Arc::default());
    PlannedRule {
        name: name.into(),
        listeners: (7000..7000 + ports).map(listener).collect(),
        group: Arc::new(GroupHandle::new(Arc::new(group), 0)),
        cost: Cost::ONE,
        return_path: ReturnPath::Route,
        anycast: false,
        retries: 0,
        idle: Duration::from_secs(600),
        connect: Duration::from_secs(5),
        udp: None,
        max_connections: None,
        limits: Limits::default(),
        is_limited: false,
    }
}

#[test]
fn s41_a_member_that_the_kernel_refuses_leaves_the_others_alone() {
    let rules = [rule("db", 1, &[2, 3]), rule("web", 1, &[4])];
    run_with_program(&rules, |trial| {
        let engine = trial.engine();
        let owner = hash_name("db");
        // A seat that the kernel does not have.
        let home = Home::new(Arc::clone(&rules[0].group), "db".into(), Cost::ONE);
        engine.seats.insert((owner, member_address(2)), SEATS + 5);
        engine.homes.insert(SEATS + 5, home);
        engine.run_round(&rules).unwrap();
        engine.run_round(&rules).unwrap();
        assert_eq!(trial.count("member"), 2);
        let [db, web] = ["db", "web"].map(|group| trial.seats(group));
        assert_eq!((db.len(), web.len()), (1, 1), "{db:?}, {web:?}");
        let terms = trial.engine().forwarder.read_terms().unwrap();
        for (seat, last) in [(db[0], 3), (web[0], 4)] {
            assert_eq!(terms[seat as usize].address, member_address(last));
        }
        assert_eq!(trial.listeners().len(), 2);
        assert_eq!(trial.reason("db"), "");
        // The member gets another seat.
        let engine = trial.engine();
        engine.homes.remove(&(SEATS + 5)).unwrap();
        engine.run_round(&rules).unwrap();
        engine.run_round(&rules).unwrap();
        assert_eq!(trial.count("member"), 3);
        assert_eq!(trial.seats("db").len(), 2);
    });
}

#[test]
fn s41_the_proxy_serves_the_rules_of_a_group_that_the_kernel_refuses() {
    let rules = [rule("db", 1, &[2]), rule("web", 1, &[4])];
    run_with_program(&rules, |trial| {
        let engine = trial.engine();
        let beyond = (GROUPS + 7, GroupTerms::default());
        engine.groups.insert("db".into(), beyond);
        engine.run_round(&rules).unwrap();
        assert_eq!(trial.count("group"), 1);
        let reason = trial.reason("db");
        assert!(reason.contains("terms of the group db"), "{reason}");
        assert_eq!(trial.reason("web"), "");
        assert_eq!(trial.listeners(), rules[1].listeners);
        // With a number that the kernel has.
        let engine = trial.engine();
        engine.groups.remove("db").unwrap();
        engine.run_round(&rules).unwrap();
        assert_eq!(trial.count("group"), 1);
        assert_eq!(trial.reason("db"), "");
        assert_eq!(trial.listeners().len(), 2);
    });
}

#[test]
fn s41_the_proxy_serves_rules_for_whose_addresses_or_groups_there_is_no_room() {
    let many = LISTENERS as u16;
    let mut rules = vec![
        rule("many", many - 1, &[2]),
        rule("db", 2, &[2]),
        rule("web", 1, &[4]),
    ];
    // With the first three, one group more than there is room for.
    rules.extend((3..=GROUPS).map(|number| rule(&format!("group{number}"), 0, &[])));
    let last = format!("group{GROUPS}");
    run_with_program(&rules, |trial| {
        trial.engine().run_round(&rules).unwrap();
        let reason = trial.reason("db");
        assert!(reason.contains("1024 listening addresses"), "{reason}");
        let reason = trial.reason(&last);
        assert!(reason.contains("256 groups"), "{reason}");
        assert_eq!(trial.reason("many"), "");
        assert_eq!(trial.reason("web"), "");
        assert_eq!(trial.listeners().len(), LISTENERS);
        assert_eq!(trial.engine().errors.describe().last, None);
    });
}

#[test]
fn s41_a_listener_that_the_kernel_refuses_is_tried_again_with_the_next_look() {
    let rules = [rule("db", 1, &[2]), rule("web", 1, &[4])];
    run_with_program(&rules, |trial| {
        let engine = trial.engine();
        engine.run_round(&rules).unwrap();
        assert!(!engine.lacks_listeners);
        let written = engine.listeners.clone();
        engine.lacks_listeners = true;
        // The next look is not due yet, however slow the machine is.
        engine.swept = Some(CoreInstant::from_nanos(u64::MAX));
        engine.run_round(&rules).unwrap();
        assert!(engine.lacks_listeners, "not with each round");
        engine.swept = None;
        engine.run_round(&rules).unwrap();
        assert!(!engine.lacks_listeners);
        assert_eq!(engine.listeners, written);
    });
}

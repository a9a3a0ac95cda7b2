//! Programs and connections of other versions.

use std::process::Command;

use super::packets::*;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Preference of a filter of somebody else, which sees packets before the program.
const OTHER: u32 = 7;

/// Preferences of the filters with the program on the interface of the test.
fn priorities() -> Vec<u32> {
    let words = ["filter", "show", "dev", "evk0", "ingress"];
    let output = Command::new("tc").args(words).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let filters = text.lines().filter(|line| line.contains("evk_forward"));
    let priority = |line: &str| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == "pref").unwrap();
        words.next().unwrap().parse().unwrap()
    };
    let all = filters.map(priority);
    all.filter(|priority| *priority != OTHER).collect()
}

/// Layouts with a program on an interface, in the order in which the programs see packets.
fn layouts(here: &Place, interface: u32) -> Vec<u32> {
    let at_tcx = tcx::list_own(interface).into_iter();
    let find = |program: tcx::Attached| {
        (1..=64)
            .find(|layout| program.is_of_place(&here.with_layout(*layout)))
            .unwrap_or(0)
    };
    let filters = priorities().into_iter().map(|one| 3818 - one);
    at_tcx.map(find).chain(filters).collect()
}

/// Puts a filter on an interface that sees packets before the program.
fn add_other_filter(forwarder: &Forwarder, interface: u32) {
    create_clsact(interface).unwrap();
    let mut hook = forwarder.hook(interface).unwrap();
    hook.priority(OTHER).attach().unwrap();
}

/// Puts the program on interfaces, of which the kernel refuses none. Returns the states.
fn attach(forwarder: &mut Forwarder, interfaces: &BTreeSet<u32>) -> InterfaceStates {
    let (states, attached) = forwarder.attach(interfaces);
    attached.unwrap();
    states.clone()
}

fn run_tc(words: &str, more: &[&str]) {
    let status = Command::new("tc")
        .args(words.split(' '))
        .args(more)
        .status();
    assert!(status.unwrap().success(), "tc {words}");
}

#[test]
fn s41_the_program_is_at_tcx_in_the_place_of_a_process_before() {
    run_beside_routes(|forwarder, interface| {
        let here = &forwarder.place;
        let place = Place::new(here.root.clone(), LAYOUT + 3, here.namespace);
        let interfaces = BTreeSet::from([interface]);
        let open = || Forwarder::open(place.clone(), MEMORY).unwrap();
        // As a version without tcx has left it.
        let before = open();
        before.attach_filter(interface).unwrap();
        assert_eq!(priorities(), [place.priority()]);
        drop(before);
        let mut first = open();
        let states = attach(&mut first, &interfaces);
        assert_eq!(states, BTreeMap::from([(interface, InterfaceState::Tcx)]));
        assert!(priorities().is_empty());
        let old = tcx::list_own(interface);
        assert_eq!(layouts(here, interface), [LAYOUT + 3]);
        drop(first);
        assert_eq!(tcx::list_own(interface), old, "without a process");
        let mut second = open();
        attach(&mut second, &interfaces);
        let new = tcx::list_own(interface);
        assert_eq!(layouts(here, interface), [LAYOUT + 3]);
        assert_ne!(new, old);
        second.detach().unwrap();
        assert!(tcx::list_own(interface).is_empty());
        assert!(!place.folder().exists());
    });
}

#[test]
fn s41_filters_of_others_keep_their_place_before_the_program() {
    run_beside_routes(|forwarder, interface| {
        let here = &forwarder.place;
        let place = Place::new(here.root.clone(), LAYOUT + 3, here.namespace);
        add_other_filter(forwarder, interface);
        let mut with_filter = Forwarder::open(place.clone(), MEMORY).unwrap();
        let states = attach(&mut with_filter, &BTreeSet::from([interface]));
        let state = InterfaceState::Tc(TcReason::OtherFilter(OTHER));
        assert_eq!(states, BTreeMap::from([(interface, state)]));
        assert!(tcx::list_own(interface).is_empty());
        assert_eq!(priorities(), [place.priority()]);
        with_filter.detach().unwrap();
        assert!(priorities().is_empty());
    });
}

#[test]
fn s41_an_interface_that_is_gone_leaves_the_others_alone() {
    run_beside_routes(|forwarder, interface| {
        let here = &forwarder.place;
        let place = Place::new(here.root.clone(), LAYOUT + 3, here.namespace);
        let mut opened = Forwarder::open(place, MEMORY).unwrap();
        // Gone since the interfaces were listed: one before, and one behind.
        let listed = BTreeSet::from([interface - 1, interface, 90_000]);
        let listed: BTreeSet<_> = listed
            .into_iter()
            .filter(|one| *one == interface || find_interface_name(*one).is_none())
            .collect();
        assert!(listed.len() > 1);
        let states = attach(&mut opened, &listed);
        assert_eq!(states, BTreeMap::from([(interface, InterfaceState::Tcx)]));
        let (states, attached) = opened.attach_xdp(&["evk0".to_owned()]);
        attached.unwrap();
        assert!(states.contains_key("evk0"));
        opened.detach().unwrap();
    });
}

#[test]
fn s41_an_interface_that_takes_no_program_leaves_the_others_alone() {
    run_beside_routes(|forwarder, interface| {
        let here = &forwarder.place;
        let place = Place::new(here.root.clone(), LAYOUT + 3, here.namespace);
        // A filter that is to see packets first, and one of another protocol in the place of the program.
        run_tc("qdisc add dev evk1 clsact", &[]);
        for priority in [OTHER, place.priority()] {
            let words = format!("filter add dev evk1 ingress pref {priority} protocol ip");
            run_tc(&words, &["bpf", "bytecode", "1,6 0 0 0"]);
        }
        let other = nix::net::if_::if_nametoindex("evk1").unwrap();
        let both = BTreeSet::from([interface, other]);
        let mut opened = Forwarder::open(place, MEMORY).unwrap();
        for _ in 0..2 {
            let (states, attached) = opened.attach(&both);
            let states = states.clone();
            let error = attached.unwrap_err();
            assert!(error.is_of_entry(), "{error}");
            assert!(error.to_string().contains("evk1"), "{error}");
            assert_eq!(states[&interface], InterfaceState::Tcx);
            assert!(matches!(states[&other], InterfaceState::Refused(_)));
        }
        let (states, attached) = opened.attach_xdp(&["evk1".to_owned()]);
        attached.unwrap();
        assert!(states["evk1"].is_some(), "{states:?}");
        run_tc("qdisc del dev evk1 clsact", &[]);
        let states = attach(&mut opened, &both);
        let tcx = both.iter().map(|one| (*one, InterfaceState::Tcx));
        assert_eq!(states, tcx.collect());
        opened.detach().unwrap();
    });
}

/// Ends programs of other layouts. Returns the number of their connections.
fn end_others(forwarder: &Forwarder, now_ns: u64) -> usize {
    let (left, ended) = forwarder.end_other_layouts(now_ns, HOUR, HOUR);
    ended.unwrap();
    left
}

#[test]
fn s41_a_layout_that_cannot_be_removed_leaves_the_others_alone() {
    run_beside_routes(|forwarder, _| {
        let here = &forwarder.place;
        let [stuck, empty] = [LAYOUT + 1, LAYOUT + 2].map(|layout| here.with_layout(layout));
        // No pin, and so nothing that the program may remove.
        let folder = stuck.folder().join("evk_folder");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(empty.folder()).unwrap();
        let (left, ended) = forwarder.end_other_layouts(0, HOUR, HOUR);
        let refused = ended.unwrap_err();
        assert_eq!(left, 0);
        assert!(refused.is_of_entry(), "{refused}");
        assert!(refused.to_string().contains("evk_folder"), "{refused}");
        assert!(!empty.folder().exists());
        fs::remove_dir(&folder).unwrap();
        assert_eq!(end_others(forwarder, 0), 0);
        assert!(!stuck.folder().exists());
    });
}

#[test]
fn s41_connections_of_another_layout_continue_until_they_are_over() {
    check_other_layouts(false);
}

#[test]
fn s41_connections_of_another_layout_continue_in_filters_of_tc() {
    check_other_layouts(true);
}

fn check_other_layouts(has_other_filter: bool) {
    run_beside_routes(|forwarder, interface| {
        if has_other_filter {
            add_other_filter(forwarder, interface);
        }
        let place = &forwarder.place;
        let layouts = || layouts(place, interface);
        let before = Place::new(place.root.clone(), LAYOUT - 1, place.namespace);
        let elsewhere = Place::new(place.root.clone(), LAYOUT - 1, place.namespace + 1);
        let other = Forwarder::open(elsewhere.clone(), MEMORY).unwrap();
        let interfaces = BTreeSet::from([interface]);
        let mut old = Forwarder::open(before.clone(), MEMORY).unwrap();
        attach(&mut old, &interfaces);
        let mut new = Forwarder::open(
            Place::new(place.root.clone(), LAYOUT + 1, place.namespace),
            MEMORY,
        );
        let new = new.as_mut().unwrap();
        attach(new, &interfaces);
        // Newer programs see packets first.
        assert_eq!(layouts(), [LAYOUT + 1, LAYOUT - 1]);
        assert_eq!(priorities().is_empty(), !has_other_filter);
        assert!(new.place.priority() < place.priority());

        let member = Family::V6.member(2);
        serve_members(&old, &[member], 0);
        let syn = Segment::new(Family::V6.client(5000), Family::V6.listener(), SYN);
        send(&old, interface, &syn);
        let answer = Segment {
            from: member,
            to: syn.from,
            answered: 2,
            flags: SYN | ACK,
            ..syn.clone()
        };
        send(&old, interface, &answer);
        serve_members(new, &[member], 0);
        let data = Segment {
            answered: 2,
            sequence: 2,
            flags: ACK,
            ..syn.clone()
        };
        // The new program leaves the packets of both sides to the old one, which takes them.
        for packet in [&data, &answer] {
            assert_eq!(try_send(new, interface, packet), None);
            send(&old, interface, packet);
        }
        let now = list_connections(&old)[0].began_ns;

        // While the old process serves, nothing is taken from the old program.
        assert_eq!(end_others(new, now), 0);
        assert_eq!(layouts().len(), 2);
        drop(old);
        assert_eq!(end_others(new, now), 1);
        assert_eq!(layouts().len(), 2);
        let folder = before.folder();
        let listeners = MapHandle::from_pinned_path(folder.join("evk_listeners")).unwrap();
        assert_eq!(listeners.keys().count(), 0, "no new connections");

        let later = now + 2 * HOUR.as_nanos() as u64;
        assert_eq!(end_others(new, later), 0);
        assert_eq!(layouts(), [LAYOUT + 1]);
        assert!(!folder.exists());
        assert!(elsewhere.folder().exists(), "another network namespace");
        other.detach().unwrap();
        new.place.clear().unwrap();
    });
}

#[test]
fn maps_with_connections_are_not_removed_if_a_start_fails() {
    let Some(trial) = Trial::new() else { return };
    let place = Place::new(trial.forwarder().place.root.clone(), LAYOUT + 2, 1);
    let forwarder = Forwarder::open(place.clone(), MEMORY).unwrap();
    drop(forwarder);
    let folder = place.folder();
    // A map of another kind, as a fault of this version would make it.
    let wrong = MapHandle::from_pinned_path(folder.join("evk_groups")).unwrap();
    fs::remove_file(folder.join("evk_terms")).unwrap();
    let mut wrong = wrong;
    wrong.pin(folder.join("evk_terms")).unwrap();
    Forwarder::open(place.clone(), MEMORY).unwrap_err();
    assert!(folder.join("evk_connections").exists());
    // Without all maps, the start before did not succeed.
    fs::remove_file(folder.join("evk_terms")).unwrap();
    fs::remove_file(folder.join("evk_groups")).unwrap();
    wrong.pin(folder.join("evk_groups")).unwrap();
    drop(Forwarder::open(place.clone(), MEMORY).unwrap());
    place.clear().unwrap();
}

#[test]
fn s41_programs_of_all_layouts_are_removed_without_a_balancer() {
    check_removal(false);
}

#[test]
fn s41_filters_of_all_layouts_are_removed_without_a_balancer() {
    check_removal(true);
}

fn check_removal(has_other_filter: bool) {
    run_beside_routes(|forwarder, interface| {
        if has_other_filter {
            add_other_filter(forwarder, interface);
        }
        let here = &forwarder.place;
        let place = |layout| Place::new(here.root.clone(), layout, here.namespace + 1);
        let interfaces = BTreeSet::from([interface]);
        let open = |layout| {
            let mut opened = Forwarder::open(place(layout), MEMORY).unwrap();
            attach(&mut opened, &interfaces);
            opened
        };
        let (old, new) = (open(LAYOUT - 1), open(LAYOUT + 1));
        let member = Family::V6.member(2);
        serve_members(&old, &[member], 0);
        let syn = Segment::new(Family::V6.client(5000), Family::V6.listener(), SYN);
        send(&old, interface, &syn);
        let began = list_connections(&old)[0].began_ns;
        drop(new);
        let held = Detachment::find_at(&place(LAYOUT)).unwrap_err().to_string();
        let own = format!("process {} forwards", std::process::id());
        assert!(held.contains(&own), "{held}");
        drop(old);

        let found = Detachment::find_at(&place(LAYOUT)).unwrap();
        assert!(!found.is_empty());
        assert_eq!(found.other_namespaces(), [here.folder()]);
        assert_eq!(found.list_uncounted(), BTreeSet::new());
        let refused = Forwarder::open(place(LAYOUT - 1), MEMORY).unwrap_err();
        assert!(refused.to_string().contains("another process"), "{refused}");
        assert_eq!(found.drain(began, HOUR).unwrap(), (1, 0));
        let listeners = place(LAYOUT - 1).folder().join("evk_listeners");
        let listeners = MapHandle::from_pinned_path(listeners).unwrap();
        assert_eq!(listeners.keys().count(), 0, "no new connections");
        assert_eq!(found.close().unwrap(), 1);
        // The member has not accepted.
        let later = began + Duration::from_secs(11).as_nanos() as u64;
        assert_eq!(found.drain(later, HOUR).unwrap(), (0, 0));
        let removed = found.remove().unwrap();
        assert_eq!(removed.interfaces, BTreeSet::from(["evk0".to_owned()]));
        let mut folders = removed.folders;
        folders.sort();
        let mut all = [LAYOUT - 1, LAYOUT + 1].map(|layout| place(layout).folder());
        all.sort();
        assert_eq!(folders, all);
        assert!(layouts(here, interface).is_empty());
        assert!(Detachment::find_at(&place(LAYOUT)).unwrap().is_empty());

        // A filter without its maps.
        drop(open(LAYOUT));
        place(LAYOUT).clear().unwrap();
        let found = Detachment::find_at(&place(LAYOUT)).unwrap();
        assert_eq!(found.list_uncounted(), BTreeSet::from(["evk0"]));
        found.remove().unwrap();
        assert!(layouts(here, interface).is_empty());
    });
}

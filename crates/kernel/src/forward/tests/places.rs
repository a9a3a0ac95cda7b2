//! Programs and connections of other versions.

use std::process::Command;

use super::packets::*;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// The priorities of our filters on the interface of the test.
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
    filters.map(priority).collect()
}

#[test]
fn s41_connections_of_another_layout_continue_until_they_are_over() {
    run_beside_routes(|forwarder, interface| {
        let place = &forwarder.place;
        let before = Place::new(place.root.clone(), LAYOUT - 1, place.namespace);
        let elsewhere = Place::new(place.root.clone(), LAYOUT - 1, place.namespace + 1);
        let other = Forwarder::open(elsewhere.clone(), MEMORY).unwrap();
        let interfaces = BTreeSet::from([interface]);
        let mut old = Forwarder::open(before.clone(), MEMORY).unwrap();
        old.attach(&interfaces).unwrap();
        let mut new = Forwarder::open(
            Place::new(place.root.clone(), LAYOUT + 1, place.namespace),
            MEMORY,
        );
        let new = new.as_mut().unwrap();
        new.attach(&interfaces).unwrap();
        // Newer programs see packets first.
        assert_eq!(priorities(), [new.place.priority(), old.place.priority()]);
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
        assert_eq!(new.end_other_layouts(now, HOUR, HOUR).unwrap(), 0);
        assert_eq!(priorities().len(), 2);
        drop(old);
        assert_eq!(new.end_other_layouts(now, HOUR, HOUR).unwrap(), 1);
        assert_eq!(priorities().len(), 2);
        let folder = before.folder();
        let listeners = MapHandle::from_pinned_path(folder.join("evk_listeners")).unwrap();
        assert_eq!(listeners.keys().count(), 0, "no new connections");

        let later = now + 2 * HOUR.as_nanos() as u64;
        assert_eq!(new.end_other_layouts(later, HOUR, HOUR).unwrap(), 0);
        assert_eq!(priorities(), [new.place.priority()]);
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
    run_beside_routes(|forwarder, interface| {
        let here = &forwarder.place;
        let place = |layout| Place::new(here.root.clone(), layout, here.namespace + 1);
        let interfaces = BTreeSet::from([interface]);
        let open = |layout| {
            let mut opened = Forwarder::open(place(layout), MEMORY).unwrap();
            opened.attach(&interfaces).unwrap();
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
        assert!(priorities().is_empty());
        assert!(Detachment::find_at(&place(LAYOUT)).unwrap().is_empty());

        // A filter without its maps.
        drop(open(LAYOUT));
        place(LAYOUT).clear().unwrap();
        let found = Detachment::find_at(&place(LAYOUT)).unwrap();
        assert_eq!(found.list_uncounted(), BTreeSet::from(["evk0"]));
        found.remove().unwrap();
        assert!(priorities().is_empty());
    });
}

//! Members that are asked, and members that factories make.

use std::time::Duration;

use super::peer::Peer;
use super::*;
use crate::types::FactoryInfo;

/// Waits for what other tasks do.
async fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if happened() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never happens that {what}");
}

fn factories(peer: &Peer, places: &[&str]) -> Property {
    let info = |place: &&str| FactoryInfo {
        the_factory: peer.object("IDL:omg.org/PortableGroup/GenericFactory:1.0", place),
        the_location: at(place),
        the_criteria: vec![Property::new("example.size", &7u32)],
    };
    let infos: Vec<FactoryInfo> = places.iter().map(info).collect();
    Property::new("org.omg.PortableGroup.Factories", &infos)
}

fn places(lm: &LoadManager) -> Vec<String> {
    let state = lm.state();
    let group = state.groups.values().next().unwrap();
    let mut places: Vec<_> = group.members.iter().map(|m| m.location.clone()).collect();
    places.sort();
    places
}

/// The object key of the member at a location of the only group.
fn key_of(lm: &LoadManager, place: &str) -> String {
    let state = lm.state();
    let group = state.groups.values().next().unwrap();
    let member = group.member(place).unwrap();
    let mut profiles = member.reference.ior().iiop_profiles();
    String::from_utf8(profiles.next().unwrap().object_key).unwrap()
}

/// A group whose members these factories make, with its creation id.
async fn made_by(lm: &Arc<LoadManager>, criteria: Properties) -> (Ior, Any) {
    match call(lm, "create_object", args!(TYPE.to_owned(), criteria)).await {
        Outcome::Reply(body) => {
            let mut reader = Reader::new(&body, Endian::Big);
            let group = Ior::read(&mut reader).unwrap();
            (group, Any::read(&mut reader).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_member_has_the_type_of_its_group_as_far_as_it_says() {
    let (lm, peer) = (start(settings()).await, Peer::start());
    let (group, _) = group(&lm).await;
    let other = |key: &str| peer.object("IDL:Derived:1.0", key);
    let add = async |place: &str, member: Ior| {
        call(&lm, "add_member", args!(group, at(place), member)).await
    };
    assert_eq!(result::<Ior>(add("a", other("a")).await), group);
    peer.lock_doings().has_type = false;
    assert_eq!(
        raised(add("b", other("b")).await),
        UserException::ObjectNotAdded
    );
    // With the type of the group it is not asked.
    assert_eq!(result::<Ior>(add("c", peer.object(TYPE, "c")).await), group);
    // One that sheds is alive, and is believed; one that is gone is not.
    peer.lock_doings()
        .raises
        .insert("d".into(), Kind::Transient);
    assert_eq!(result::<Ior>(add("d", other("d")).await), group);
    peer.lock_doings()
        .raises
        .insert("e".into(), Kind::ObjectNotExist);
    assert_eq!(
        raised(add("e", other("e")).await),
        UserException::ObjectNotAdded
    );
    assert_eq!(places(&lm), ["a", "c", "d"]);
}

#[tokio::test]
async fn factories_make_the_first_members_or_there_is_no_group_t11() {
    let (lm, peer) = (start(settings()).await, Peer::start());
    let one = vec![factories(&peer, &["host1"])];
    for criteria in [vec![], one] {
        let outcome = call(&lm, "create_object", args!(TYPE.to_owned(), criteria)).await;
        // T11: also what was not said, and counts by default.
        let UserException::CannotMeetCriteria(unmet) = raised(outcome) else {
            panic!("it has been created");
        };
        let initial = Property::new("org.omg.PortableGroup.InitialNumberMembers", &2u16);
        assert_eq!(unmet.len(), 2, "{unmet:?}");
        assert!(unmet.contains(&initial), "{unmet:?}");
        assert!(criteria.iter().all(|one| unmet.contains(one)), "{unmet:?}");
    }
    peer.lock_doings().refuses.insert("host2".into());
    let two = vec![factories(&peer, &["host1", "host2"])];
    let outcome = call(&lm, "create_object", args!(TYPE.to_owned(), two)).await;
    assert_eq!(raised(outcome), UserException::ObjectNotCreated);
    assert!(lm.state().groups.is_empty());
    eventually("what was made is deleted", || {
        peer.lock_doings().there.is_empty()
    })
    .await;

    // Another one takes the place of the one that fails.
    let criteria = vec![factories(&peer, &["host1", "host2", "host3"])];
    let (_, creation) = made_by(&lm, criteria).await;
    assert_eq!(places(&lm), ["host1", "host3"]);
    let sent = peer.lock_doings().criteria["host1"].clone();
    assert_eq!(sent, [Property::new("example.size", &7u32)], "unchanged");
    let deleted = call(&lm, "delete_object", args!(creation)).await;
    assert_eq!(deleted, Outcome::Reply(vec![]));
    eventually("its members are deleted", || {
        peer.lock_doings().there.is_empty()
    })
    .await;
}

#[tokio::test]
async fn members_are_not_deleted_when_only_the_state_file_fails() {
    let nowhere = Settings {
        state_file: Some("/nonexistent/evenkeel/state.json".into()),
        ..settings()
    };
    let (lm, peer) = (start(nowhere).await, Peer::start());
    let said = SystemException::new(Kind::PersistStore).with_completion(Completion::Yes);
    let criteria = vec![factories(&peer, &["a", "b", "c"])];
    let outcome = call(&lm, "create_object", args!(TYPE.to_owned(), criteria)).await;
    assert_eq!(outcome, Outcome::System(said));
    assert_eq!(places(&lm), ["a", "b"]);
    let id = *lm.state().groups.keys().next().unwrap();
    let group = lm.reference_of(TYPE, &Key::Group(id).to_bytes());
    // What the factory were asked to delete, it would be asked before this.
    let made = args!(group, at("c"), TYPE.to_owned(), Properties::new());
    let outcome = call(&lm, "create_member", made).await;
    assert_eq!(outcome, Outcome::System(said));
    assert_eq!(places(&lm), ["a", "b", "c"]);
    let removed = call(&lm, "remove_member", args!(group, at("x"))).await;
    assert_eq!(raised(removed), UserException::MemberNotFound);
    assert_eq!(peer.lock_doings().there.len(), 3);
}

#[tokio::test]
async fn a_member_that_is_removed_or_gone_is_replaced() {
    let lm = start(Settings {
        liveness: Some(Duration::from_millis(10)),
        ..settings()
    })
    .await;
    let peer = Peer::start();
    let (group, _) = made_by(&lm, vec![factories(&peer, &["a", "b", "c"])]).await;
    assert_eq!(places(&lm), ["a", "b"]);
    let removed = call(&lm, "remove_member", args!(group, at("b"))).await;
    assert_eq!(result::<Ior>(removed), group);
    eventually("there are two again", || places(&lm) == ["a", "b"]).await;

    // It sheds: that is not gone. Then its server has forgotten it.
    let key = key_of(&lm, "a");
    peer.lock_doings()
        .raises
        .insert(key.clone(), Kind::Transient);
    let asked = peer.lock_doings().asked;
    eventually("it was asked often", || {
        peer.lock_doings().asked > asked + 20
    })
    .await;
    assert_eq!(places(&lm), ["a", "b"]);
    peer.lock_doings().raises.insert(key, Kind::ObjectNotExist);
    eventually("another one is there", || places(&lm) == ["b", "c"]).await;
    eventually("the others are deleted", || {
        peer.lock_doings().there.len() == 2
    })
    .await;
}

/// A server that is busy for longer than its answers may take is out of service meanwhile; the
/// group gets another member, and the object of the slow one is not deleted.
#[tokio::test]
async fn tao_1_a_silent_member_is_replaced_and_not_deleted() {
    let lm = start(Settings {
        liveness: Some(Duration::from_millis(10)),
        ..settings()
    })
    .await;
    let peer = Peer::start();
    made_by(&lm, vec![factories(&peer, &["a", "b", "c"])]).await;
    assert_eq!(places(&lm), ["a", "b"]);
    peer.lock_doings().silent.insert(key_of(&lm, "a"));
    let reasons = |place: &str| {
        let members = only_group(&lm).members;
        let member = members.into_iter().find(|m| m.name == place).unwrap();
        member.reasons
    };
    eventually("a is down", || reasons("a") == ["reported_down"]).await;
    eventually("another one is made", || places(&lm) == ["a", "b", "c"]).await;
    assert_eq!(peer.lock_doings().there.len(), 3, "a is not deleted");
    peer.lock_doings().silent.clear();
    eventually("a is back", || reasons("a").is_empty()).await;
    assert_eq!(places(&lm), ["a", "b", "c"]);
    assert_eq!(peer.lock_doings().there.len(), 3);
}

#[tokio::test]
async fn a_member_of_the_application_that_is_gone_is_down_until_it_is_back() {
    let lm = start(Settings {
        liveness: Some(Duration::from_millis(10)),
        ..settings()
    })
    .await;
    let peer = Peer::start();
    let (group, _) = group(&lm).await;
    for place in ["a", "b"] {
        let member = peer.object(TYPE, place);
        result::<Ior>(call(&lm, "add_member", args!(group, at(place), member)).await);
    }
    let down = |place: &str| {
        let members = only_group(&lm).members;
        let member = members.into_iter().find(|m| m.name == place).unwrap();
        member.reasons == ["reported_down", "dead"] && member.opinions[0].source == "liveness"
    };
    peer.lock_doings()
        .raises
        .insert("a".into(), Kind::ObjectNotExist);
    eventually("a is down", || down("a")).await;
    assert!(!down("b"));
    peer.lock_doings().raises.clear();
    eventually("a is back", || !down("a")).await;
    // The server is gone, and nobody says anything.
    drop(peer);
    eventually("both are down", || down("a") && down("b")).await;
    assert_eq!(places(&lm), ["a", "b"]);
    lm.configure(Arc::new(settings()), address()).unwrap();
    eventually("nobody is said to be down without pings", || {
        !down("a") && !down("b")
    })
    .await;
}

/// Of three members two refuse connections: nobody is sent there, although more are down
/// than the panic threshold allows.
#[tokio::test]
async fn nobody_is_sent_to_who_refuses_connections_t1() {
    let lm = start(Settings {
        liveness: Some(Duration::from_millis(10)),
        ..settings()
    })
    .await;
    let (group, _) = group(&lm).await;
    let peers = [Peer::start(), Peer::start(), Peer::start()];
    for (peer, place) in peers.iter().zip(["a", "b", "c"]) {
        let member = peer.object(TYPE, place);
        result::<Ior>(call(&lm, "add_member", args!(group, at(place), member)).await);
    }
    let control = tokio::spawn(Arc::clone(lm.manager()).run());
    let [a, b, c] = peers;
    drop((b, c));
    let down = || {
        let members = only_group(&lm).members.into_iter();
        members
            .filter(|m| m.reasons.iter().any(|r| r == "reported_down"))
            .count()
    };
    eventually("two are down", || down() == 2).await;
    // The control loop, which decides on panic, has its turns meanwhile.
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!only_group(&lm).panic);
    }
    let snapshot = lm.directory().load_snapshot();
    let entry = snapshot.groups().next().unwrap();
    let chosen = |seed| {
        let group = entry.handle.current.load();
        let request = evenkeel_core::group::Request::at_time(lm.manager().clock().now());
        let index = group
            .choose_member(&request, &mut fastrand::Rng::with_seed(seed))
            .unwrap();
        group.members()[index].name.to_string()
    };
    for client in 0..12 {
        assert_eq!(chosen(client), "a");
    }
    drop(a);
    control.abort();
}

/// A factory's member is checked in the same way as a member that an application adds.
#[tokio::test]
async fn a_factory_that_gives_something_else_has_made_no_member_s15() {
    let (lm, peer) = (start(settings()).await, Peer::start());
    let (group, _) = group(&lm).await;
    let set = vec![factories(&peer, &["a", "b"])];
    call(&lm, "set_properties_dynamically", args!(group, set)).await;
    let other = peer.object("IDL:Other:1.0", "other");
    peer.lock_doings().has_type = false;
    for gives in [group.clone(), other] {
        peer.lock_doings().gives = Some(gives.clone());
        let criteria = vec![factories(&peer, &["a", "b"])];
        let outcome = call(&lm, "create_object", args!(TYPE.to_owned(), criteria)).await;
        assert_eq!(raised(outcome), UserException::ObjectNotCreated, "{gives}");
        let create = args!(group, at("a"), TYPE.to_owned(), Properties::new());
        let outcome = call(&lm, "create_member", create).await;
        assert_eq!(raised(outcome), UserException::ObjectNotCreated, "{gives}");
        eventually("what was made is deleted", || {
            peer.lock_doings().there.is_empty()
        })
        .await;
    }
    assert!(places(&lm).is_empty());
    // One that is looked after by the load manager does not get such members, either.
    let asked = peer.lock_doings().asked;
    let infrastructure = Property::new("org.omg.PortableGroup.MembershipStyle", &1i32);
    call(
        &lm,
        "set_properties_dynamically",
        args!(group, vec![infrastructure.clone()]),
    )
    .await;
    eventually("the factories are called", || {
        peer.lock_doings().asked > asked + 3
    })
    .await;
    assert!(places(&lm).is_empty());
    peer.lock_doings().gives = None;
    eventually("they make members in the end", || places(&lm) == ["a", "b"]).await;
}

/// A process that died removes nothing that it has registered.
#[tokio::test]
async fn who_is_not_reachable_is_replaced_t3() {
    let (lm, dead, live) = (start(settings()).await, Peer::start(), Peer::start());
    let another = Peer::start();
    let (group, _) = group(&lm).await;
    let (place, none) = (at("host1"), Outcome::Reply(vec![]));
    let all = [
        (
            "register_load_monitor",
            "get_load_monitor",
            UserException::MonitorAlreadyPresent,
        ),
        (
            "register_load_alert",
            "get_load_alert",
            UserException::LoadAlertAlreadyPresent,
        ),
    ];
    let register = async |operation: &str, peer: &Peer| {
        let object = peer.object("IDL:Registered:1.0", "x");
        call(&lm, operation, args!(place, object)).await
    };
    let add = async |peer: &Peer| {
        let member = peer.object(TYPE, "m");
        call(&lm, "add_member", args!(group, place, member)).await
    };
    assert_eq!(result::<Ior>(add(&dead).await), group);
    assert_eq!(
        raised(add(&live).await),
        UserException::MemberAlreadyPresent
    );
    for (operation, _, present) in &all {
        assert_eq!(register(operation, &dead).await, none);
        assert_eq!(raised(register(operation, &live).await), *present);
        // One that sheds, as a server under an alert does, is there.
        dead.lock_doings()
            .raises
            .insert("x".into(), Kind::Transient);
        assert_eq!(raised(register(operation, &live).await), *present);
        dead.lock_doings().raises.clear();
    }
    drop(dead);
    for (operation, get, present) in &all {
        // The server takes a moment to close its port.
        let replaced = async || register(operation, &live).await == none;
        while !replaced().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let there: Ior = result(call(&lm, get, args!(place)).await);
        assert_eq!(there, live.object("IDL:Registered:1.0", "x"));
        assert_eq!(raised(register(operation, &another).await), *present);
    }
    assert_eq!(result::<Ior>(add(&live).await), group);
    let there: Ior = result(call(&lm, "get_member_ref", args!(group, place)).await);
    assert_eq!(there, live.object(TYPE, "m"));
    assert_eq!(places(&lm), ["host1"]);
}

/// Removal by an administrator, as `ctl corba remove` does it.
#[tokio::test]
async fn an_administrator_removes_what_was_left_t3() {
    use crate::service::registered::{RegisteredItem, RemoveError};

    let (lm, peer) = (start(settings()).await, Peer::start());
    let (group, _) = group(&lm).await;
    let host1 = at("host1");
    let object = peer.object("IDL:Registered:1.0", "x");
    call(&lm, "register_load_monitor", args!(host1, object)).await;
    call(&lm, "register_load_alert", args!(host1, object)).await;
    call(&lm, "enable_alert", args!(host1)).await;
    call(
        &lm,
        "add_member",
        args!(group, host1, peer.object(TYPE, "m")),
    )
    .await;
    assert_eq!(lm.state().forced.len(), 1);
    let name = only_group(&lm).name;
    let member = RegisteredItem::Member {
        group: name.clone(),
        location: "host1".into(),
    };
    for what in [
        RegisteredItem::Monitor("host1".into()),
        RegisteredItem::Alert("host1".into()),
        member,
        RegisteredItem::Group(name),
    ] {
        assert_eq!(lm.remove(what.clone()).await, Ok(()));
        let again = lm.remove(what).await.unwrap_err();
        assert!(matches!(again, RemoveError::NotThere(_)), "{again}");
    }
    let state = lm.state();
    assert!(state.groups.is_empty() && state.monitors.is_empty());
    assert!(state.alerts.is_empty() && state.forced.is_empty());
}

#[tokio::test]
async fn off_is_off_c2() {
    let live = Settings {
        liveness: Some(Duration::from_millis(10)),
        ..settings()
    };
    let (lm, peer) = (start(live.clone()).await, Peer::start());
    let (_, _) = made_by(&lm, vec![factories(&peer, &["a", "b", "c"])]).await;
    let asked = peer.lock_doings().asked;
    eventually("members are asked", || peer.lock_doings().asked > asked + 3).await;
    lm.close().unwrap();
    assert!(lm.manager().status().groups.is_empty());
    // What is under way still changes what is kept, and nothing else.
    let id = *lm.state().groups.keys().next().unwrap();
    let group = lm.reference_of(TYPE, &Key::Group(id).to_bytes());
    let removed = call(&lm, "remove_member", args!(group, at("b"))).await;
    assert_eq!(result::<Ior>(removed), group);
    eventually("its factory deletes it", || {
        peer.lock_doings().there.len() == 1
    })
    .await;
    let asked = peer.lock_doings().asked;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(
        peer.lock_doings().asked,
        asked,
        "nobody is asked, or told to make members"
    );
    assert!(lm.manager().status().groups.is_empty());
    assert_eq!(places(&lm), ["a"]);
    // On again, it goes on where it was.
    lm.configure(Arc::new(live), address()).unwrap();
    assert_eq!(only_group(&lm).members.len(), 1);
    eventually("there are two again", || places(&lm).len() == 2).await;
}

#[tokio::test]
async fn a_member_is_made_where_it_is_wanted() {
    let (lm, peer) = (start(settings()).await, Peer::start());
    let (group, _) = group(&lm).await;
    let own: Properties = vec![Property::new("example.size", &9u32)];
    let create = async |place: &str| {
        call(
            &lm,
            "create_member",
            args!(group, at(place), TYPE.to_owned(), own),
        )
        .await
    };
    let no_factory = UserException::NoFactory {
        the_location: at("a"),
        type_id: TYPE.into(),
    };
    assert_eq!(raised(create("a").await), no_factory);
    let set = vec![factories(&peer, &["a", "b"])];
    let set = call(&lm, "set_properties_dynamically", args!(group, set)).await;
    assert_eq!(set, Outcome::Reply(vec![]));
    assert_eq!(result::<Ior>(create("a").await), group);
    assert_eq!(peer.lock_doings().criteria["a"], own);
    assert_eq!(
        raised(create("a").await),
        UserException::MemberAlreadyPresent
    );
    peer.lock_doings().refuses.insert("b".into());
    assert_eq!(raised(create("b").await), UserException::ObjectNotCreated);
    assert_eq!(places(&lm), ["a"]);
    // It goes as it has come.
    call(&lm, "remove_member", args!(group, at("a"))).await;
    eventually("the factory deletes it", || {
        peer.lock_doings().there.is_empty()
    })
    .await;
}

//! The load manager, called as by a client, on a manager without traffic.

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_config::{Config, Corba as Settings};
use evenkeel_control::opinion::{Source, SourceReport};
use evenkeel_giop::any::{Any, Idl};
use evenkeel_giop::cdr::{Endian, Reader, Writer};
use evenkeel_giop::client::{self, Client};
use evenkeel_giop::exception::{Completion, Kind, SystemException};
use evenkeel_giop::ior::{IiopProfile, Ior};
use evenkeel_giop::message::Version;
use evenkeel_giop::typecode::TypeCode;
use evenkeel_manager::{AlertSetting, Manager};
use evenkeel_net::Clock;

use super::{Address, LoadManager, MOST_CALLED, Parts, raise, store};
use crate::call::{Call, Outcome};
use crate::directory::Directory;
use crate::exceptions::UserException;
use crate::keys::{Key, Level};
use crate::name::Name;
use crate::types::{Load, Properties, Property, StrategyInfo};

const TYPE: &str = "IDL:Stock/Factory:1.0";

pub(crate) fn address() -> Address {
    Address {
        host: "balancer.example".into(),
        port: 2809,
        alternates: Vec::new(),
    }
}

/// A load manager with these settings that goes on with what its state file says.
pub(crate) async fn start(settings: Settings) -> Arc<LoadManager> {
    let manager = Manager::new(Clock::start(), Arc::new(()));
    manager.apply_config(Config::default()).await.unwrap();
    let state = match &settings.state_file {
        Some(path) => store::load_state(path).unwrap(),
        None => store::fresh_state(),
    };
    let parts = Parts {
        manager,
        directory: Arc::new(Directory::default()),
        client: Client::new(client::Settings::default()),
        runtime: tokio::runtime::Handle::current(),
    };
    LoadManager::open(parts, Arc::new(settings), address(), state).unwrap()
}

pub(crate) fn settings() -> Settings {
    Settings {
        state_file: None,
        liveness: None,
        ..Settings::default()
    }
}

/// Arguments, one after the other.
macro_rules! args {
    ($($value:expr),*) => {
        |writer: &mut Writer| { $( $value.write(writer); )* let _ = writer; }
    };
}

/// Calls an operation in both byte orders' worth of ways: as one client would.
async fn call(
    lm: &Arc<LoadManager>,
    operation: &str,
    arguments: impl FnOnce(&mut Writer),
) -> Outcome {
    // Behind the head of a request, in the order that is not the machine's.
    let mut writer = Writer::at_offset(40, Endian::Big);
    arguments(&mut writer);
    lm.invoke(Call {
        operation: operation.into(),
        body: writer.into_bytes(),
        before: 40,
        joints: Vec::new(),
        endian: Endian::Big,
        version: Version::V1_2,
    })
    .await
}

/// The only result of a call.
fn result<T: Idl>(outcome: Outcome) -> T {
    match outcome {
        Outcome::Reply(body) => {
            let mut reader = Reader::new(&body, Endian::Big);
            let value = T::read(&mut reader).unwrap();
            assert_eq!(reader.remaining_bytes(), 0);
            value
        }
        other => panic!("{other:?}"),
    }
}

fn raised(outcome: Outcome) -> UserException {
    match outcome {
        Outcome::User(body) => {
            let exception = UserException::read(&mut Reader::new(&body, Endian::Big));
            exception.unwrap().unwrap()
        }
        other => panic!("{other:?}"),
    }
}

fn system(kind: Kind) -> Outcome {
    Outcome::System(SystemException::new(kind))
}

/// Application-controlled membership.
fn by_hand() -> Properties {
    vec![Property::new(
        "org.omg.PortableGroup.MembershipStyle",
        &0i32,
    )]
}

/// A group, and what its creator deletes it by.
async fn group(lm: &Arc<LoadManager>) -> (Ior, Any) {
    match call(lm, "create_object", args!(TYPE.to_owned(), by_hand())).await {
        Outcome::Reply(body) => {
            let mut reader = Reader::new(&body, Endian::Big);
            (
                Ior::read(&mut reader).unwrap(),
                Any::read(&mut reader).unwrap(),
            )
        }
        other => panic!("{other:?}"),
    }
}

/// An object with the type of the group, so that nobody asks it.
fn object(host: &str) -> Ior {
    Ior::new_iiop(TYPE, host, 4711, b"\0key")
}

fn at(id: &str) -> Name {
    Name::from_id(id)
}

#[tokio::test]
async fn members_come_and_go() {
    let lm = start(settings()).await;
    let (group, creation) = group(&lm).await;
    assert_eq!(group.type_id, TYPE);
    let profile = group.iiop_profiles().next().unwrap();
    assert_eq!((&*profile.host, profile.port), ("balancer.example", 2809));
    // The first one is asked whether it is there when another one comes to its place.
    let peer = peer::Peer::start();
    let first = peer.object(TYPE, "host1");
    for (host, member) in [("host1", &first), ("host2", &object("host2"))] {
        let same = call(&lm, "add_member", args!(group, at(host), member)).await;
        assert_eq!(result::<Ior>(same), group);
    }
    let again = call(
        &lm,
        "add_member",
        args!(group, at("host1"), object("other")),
    )
    .await;
    assert_eq!(raised(again), UserException::MemberAlreadyPresent);

    let places = call(&lm, "locations_of_members", args!(group)).await;
    assert_eq!(result::<Vec<Name>>(places), [at("host1"), at("host2")]);
    let there = call(&lm, "groups_at_location", args!(at("host2"))).await;
    assert_eq!(result::<Vec<Ior>>(there), std::slice::from_ref(&group));
    let nobody = call(&lm, "groups_at_location", args!(at("host3"))).await;
    assert_eq!(result::<Vec<Ior>>(nobody), []);
    let member = call(&lm, "get_member_ref", args!(group, at("host1"))).await;
    assert_eq!(result::<Ior>(member), first);
    let none = call(&lm, "get_member_ref", args!(group, at("host3"))).await;
    assert_eq!(raised(none), UserException::MemberNotFound);

    let id: u64 = result(call(&lm, "get_object_group_id", args!(group)).await);
    let by_id = call(&lm, "get_object_group_ref_from_id", args!(id)).await;
    assert_eq!(result::<Ior>(by_id), group);
    let other = call(&lm, "get_object_group_ref_from_id", args!(id + 1)).await;
    assert_eq!(raised(other), UserException::ObjectGroupNotFound);

    // Evenkeel's manager has it, and so has the directory.
    let status = lm.manager().status().groups.remove(0);
    assert_eq!(
        (&*status.name, status.owner.as_deref()),
        (&*format!("corba-{id}"), Some("corba"))
    );
    let names: Vec<_> = status.members.iter().map(|m| &*m.location).collect();
    assert_eq!(names, ["host1", "host2"]);
    let entry = lm
        .directory()
        .load_snapshot()
        .find(Key::Group(id))
        .unwrap()
        .clone();
    let current = entry.handle.current.load();
    assert_eq!(entry.member(&current, 1).unwrap().ior(), &object("host2"));

    let removed = call(&lm, "remove_member", args!(group, at("host1"))).await;
    assert_eq!(result::<Ior>(removed), group);
    let again = call(&lm, "remove_member", args!(group, at("host1"))).await;
    assert_eq!(raised(again), UserException::MemberNotFound);
    assert_eq!(lm.manager().status().groups[0].members.len(), 1);

    assert_eq!(
        call(&lm, "delete_object", args!(creation)).await,
        Outcome::Reply(vec![])
    );
    let again = call(&lm, "delete_object", args!(creation)).await;
    assert_eq!(raised(again), UserException::ObjectNotFound);
    let odd = call(&lm, "delete_object", args!(Any::new(&"x".to_owned()))).await;
    assert_eq!(raised(odd), UserException::ObjectNotFound);
    let gone = call(&lm, "locations_of_members", args!(group)).await;
    assert_eq!(raised(gone), UserException::ObjectGroupNotFound);
    assert!(lm.manager().status().groups.is_empty());
    assert!(
        lm.directory()
            .load_snapshot()
            .find(Key::Group(id))
            .is_none()
    );
}

#[tokio::test]
async fn a_group_is_meant_by_any_reference_with_its_key() {
    let lm = start(settings()).await;
    let (group, _) = group(&lm).await;
    let id: u64 = result(call(&lm, "get_object_group_id", args!(group)).await);
    let read_back: Ior = group.to_string().parse().unwrap();
    // Made when the load manager was somewhere else, and narrowed to another type.
    let old = Ior::new_iiop("", "192.0.2.9", 1, &Key::Group(id).to_bytes());
    let mut second = object("other");
    second.profiles.extend(group.profiles.clone());
    let name = format!("corba-{id}");
    let by_name = Ior::new_iiop("", "192.0.2.9", 1, &Key::GroupName(&name).to_bytes());
    for reference in [read_back, old, second, by_name] {
        let same = call(&lm, "get_object_group_ref", args!(reference)).await;
        assert_eq!(result::<Ior>(same), group);
    }
    for other in [
        object("x"),
        lm.reference(),
        Ior::new_iiop("", "h", 1, &Key::Group(id + 1).to_bytes()),
    ] {
        let refused = call(&lm, "get_object_group_ref", args!(other)).await;
        assert_eq!(raised(refused), UserException::ObjectGroupNotFound);
    }
    let nil = call(&lm, "get_object_group_ref", args!(Ior::default())).await;
    assert_eq!(nil, system(Kind::BadParam));
}

#[tokio::test]
async fn what_cannot_be_a_member_is_refused() {
    let lm = start(settings()).await;
    let (group, _) = group(&lm).await;
    let add = |place: Name, member: Ior| {
        call(&lm, "add_member", {
            let group = group.clone();
            move |w: &mut Writer| {
                group.write(w);
                place.write(w);
                member.write(w);
            }
        })
    };
    assert_eq!(add(at("a"), Ior::default()).await, system(Kind::BadParam));
    assert_eq!(add(Name(vec![]), object("a")).await, system(Kind::BadParam));
    assert_eq!(
        add(at("a\u{1b}[0m"), object("a")).await,
        system(Kind::BadParam)
    );
    let itself = add(at("a"), group.clone()).await;
    assert_eq!(raised(itself), UserException::ObjectNotAdded);
    // The next group could be one in which this one is: clients would go in circles.
    let next = Key::Group(lm.state().next_group).to_bytes();
    let later = add(at("a"), lm.reference_of(TYPE, &next)).await;
    assert_eq!(raised(later), UserException::ObjectNotAdded);

    // Nobody listens there: it can be asked nothing.
    let free = tokio::net::TcpSocket::new_v4().unwrap();
    free.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = free.local_addr().unwrap().port();
    let dead = Ior::new_iiop("IDL:Other:1.0", "127.0.0.1", port, b"k");
    assert_eq!(
        raised(add(at("a"), dead).await),
        UserException::ObjectNotAdded
    );
    assert!(
        lm.state()
            .groups
            .values()
            .all(|group| group.members.is_empty())
    );
}

#[tokio::test]
async fn loads_alerts_and_monitors_belong_to_locations() {
    let lm = start(settings()).await;
    let place = at("host1");
    let none = call(&lm, "get_loads", args!(place)).await;
    assert_eq!(raised(none), UserException::LocationNotFound);
    let loads = vec![
        Load { id: 0, value: 0.5 },
        Load {
            id: 900,
            value: 12.0,
        },
    ];
    let pushed = call(&lm, "push_loads", args!(place, loads)).await;
    assert_eq!(
        pushed,
        Outcome::Reply(vec![]),
        "though there is no member yet"
    );
    let known = call(&lm, "get_loads", args!(place)).await;
    assert_eq!(result::<Vec<Load>>(known), loads);
    for bad in [
        vec![],
        vec![Load { id: 0, value: -1.0 }],
        vec![Load {
            id: 0,
            value: f32::NAN,
        }],
    ] {
        let refused = call(&lm, "push_loads", args!(place, bad)).await;
        assert_eq!(refused, system(Kind::BadParam));
    }

    let peer = peer::Peer::start();
    let (other, alert) = (at("host2"), peer.object(TYPE, "alert"));
    for operation in [
        "enable_alert",
        "disable_alert",
        "get_load_alert",
        "remove_load_alert",
    ] {
        let none = call(&lm, operation, args!(other)).await;
        assert_eq!(
            raised(none),
            UserException::LoadAlertNotFound,
            "{operation}"
        );
    }
    let register = async |alert: &Ior| call(&lm, "register_load_alert", args!(other, alert)).await;
    assert_eq!(register(&Ior::default()).await, system(Kind::BadParam));
    assert_eq!(register(&alert).await, Outcome::Reply(vec![]));
    assert_eq!(
        raised(register(&peer.object(TYPE, "second")).await),
        UserException::LoadAlertAlreadyPresent
    );
    // tao_6: a process that has started again does not know that its object is registered.
    assert_eq!(register(&alert).await, Outcome::Reply(vec![]));
    let known = call(&lm, "get_load_alert", args!(other)).await;
    assert_eq!(result::<Ior>(known), alert);
    let setting = || {
        let locations = lm.manager().status().locations;
        locations
            .iter()
            .find(|l| l.name == "host2")
            .unwrap()
            .alert_setting
    };
    assert_eq!(
        call(&lm, "enable_alert", args!(other)).await,
        Outcome::Reply(vec![])
    );
    assert_eq!(setting(), AlertSetting::On);
    assert_eq!(
        call(&lm, "disable_alert", args!(other)).await,
        Outcome::Reply(vec![])
    );
    assert_eq!(setting(), AlertSetting::Auto);
    assert_eq!(
        call(&lm, "remove_load_alert", args!(other)).await,
        Outcome::Reply(vec![])
    );

    let monitor = peer.object(TYPE, "monitor");
    for operation in ["get_load_monitor", "remove_load_monitor"] {
        let none = call(&lm, operation, args!(other)).await;
        assert_eq!(raised(none), UserException::LocationNotFound, "{operation}");
    }
    let register = async |at: &Ior| call(&lm, "register_load_monitor", args!(other, at)).await;
    assert_eq!(register(&Ior::default()).await, system(Kind::BadParam));
    assert_eq!(register(&monitor).await, Outcome::Reply(vec![]));
    assert_eq!(
        raised(register(&peer.object(TYPE, "second")).await),
        UserException::MonitorAlreadyPresent
    );
    // tao_6.
    assert_eq!(register(&monitor).await, Outcome::Reply(vec![]));
    let known = call(&lm, "get_load_monitor", args!(other)).await;
    assert_eq!(result::<Ior>(known), monitor);
    assert_eq!(
        call(&lm, "remove_load_monitor", args!(other)).await,
        Outcome::Reply(vec![])
    );
}

/// The operations of an interface in the IDL, without inherited ones, and whether they take
/// arguments.
fn operations_of(interface: &str) -> Vec<(String, bool)> {
    let idl = [
        include_str!("../../idl/PortableGroup.idl"),
        include_str!("../../idl/CosLoadBalancing.idl"),
    ]
    .concat();
    let declaration = format!("interface {interface}");
    let mut declared = idl.split(&declaration).skip(1);
    let defined = declared.find_map(|after| {
        let (head, rest) = after.split_once('{')?;
        (!head.contains(';')).then(|| rest.split_once("\n  };").unwrap().0)
    });
    let statements = defined.unwrap().split(';');
    let operations = statements.filter_map(|statement| {
        let (head, arguments) = statement.split_once('(')?;
        let name = head.split_whitespace().last()?;
        Some((name.to_owned(), !arguments.starts_with(')')))
    });
    operations.collect()
}

#[tokio::test]
async fn s2_arguments_that_take_too_much_work_are_refused() {
    let lm = start(settings()).await;
    let mut of = TypeCode::basic(evenkeel_giop::typecode::Kind::Octet);
    for _ in 0..30 {
        of = TypeCode::structure("", "", &[("", of)]);
        of = TypeCode::alias("IDL:S:1.0", "S", &of);
    }
    let bomb = |writer: &mut Writer| {
        TypeCode::sequence(&of).write(writer);
        writer.write_len(100_000);
        writer.write_raw(&[1; 100_000]);
    };
    let refused = call(&lm, "delete_object", bomb).await;
    assert_eq!(refused, Outcome::System(raise::too_costly()));
}

#[tokio::test]
async fn every_operation_of_the_interface_is_there_and_reads_its_arguments() {
    let lm = start(settings()).await;
    let operations: Vec<_> = [
        "PropertyManager",
        "ObjectGroupManager",
        "GenericFactory",
        "LoadManager",
    ]
    .iter()
    .flat_map(|interface| operations_of(interface))
    .collect();
    assert_eq!(operations.len(), 29);
    for (name, takes_arguments) in &operations {
        if !takes_arguments {
            continue;
        }
        let expected = system(Kind::Marshal);
        let nothing = |_: &mut Writer| {};
        assert_eq!(call(&lm, name, nothing).await, expected, "{name}");
    }
    assert_eq!(
        call(&lm, "shutdown", args!()).await,
        system(Kind::BadOperation)
    );
}

#[tokio::test]
async fn it_is_an_object() {
    let lm = start(settings()).await;
    for id in [
        "IDL:tao.lb/CosLoadBalancing/LoadManager:1.0",
        "IDL:omg.org/CosLoadBalancing/LoadManager:1.0",
        "IDL:omg.org/PortableGroup/GenericFactory:1.0",
        "IDL:omg.org/CORBA/Object:1.0",
    ] {
        let is = call(&lm, "_is_a", args!(id.to_owned())).await;
        assert!(result::<bool>(is), "{id}");
    }
    let other = call(&lm, "_is_a", args!("IDL:Other:1.0".to_owned())).await;
    assert!(!result::<bool>(other));
    assert!(!result::<bool>(call(&lm, "_non_existent", args!()).await));
    let id: String = result(call(&lm, "_repository_id", args!()).await);
    assert_eq!(id, lm.reference().type_id);
    assert!(result::<Ior>(call(&lm, "_component", args!()).await).is_nil());
    assert_eq!(
        call(&lm, "_interface", args!()).await,
        system(Kind::IntfRepos)
    );
}

#[tokio::test]
async fn what_was_told_outlives_the_process() {
    let name = format!("evenkeel-service-{}.json", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(name);
    let with_file = || Settings {
        state_file: Some(path.clone()),
        ..Settings::default()
    };
    let lm = start(with_file()).await;
    let (first, _) = group(&lm).await;
    let (second, creation) = group(&lm).await;
    for (group, place) in [(&first, "host1"), (&second, "host2")] {
        result::<Ior>(call(&lm, "add_member", args!(group, at(place), object(place))).await);
    }
    call(
        &lm,
        "register_load_monitor",
        args!(at("host9"), object("m")),
    )
    .await;
    call(&lm, "delete_object", args!(creation)).await;
    drop(lm);

    let lm = start(with_file()).await;
    let places = call(&lm, "locations_of_members", args!(first)).await;
    assert_eq!(result::<Vec<Name>>(places), [at("host1")]);
    let gone = call(&lm, "locations_of_members", args!(second)).await;
    assert_eq!(raised(gone), UserException::ObjectGroupNotFound);
    let monitor = call(&lm, "get_load_monitor", args!(at("host9"))).await;
    assert_eq!(result::<Ior>(monitor), object("m"));
    assert!(lm.manager().find_location("host9").is_some());
    // The id of the one that was deleted is not used again.
    let (third, _) = group(&lm).await;
    let keys = |ior: &Ior| {
        ior.iiop_profiles()
            .map(|p: IiopProfile| p.object_key)
            .collect::<Vec<_>>()
    };
    assert_ne!(keys(&third), keys(&second));
    drop(lm);
    std::fs::remove_file(&path).unwrap();
}

/// Returns the manager's status of the only group.
fn only_group(lm: &LoadManager) -> evenkeel_manager::status::GroupStatus {
    let mut groups = lm.manager().status().groups;
    assert_eq!(groups.len(), 1);
    groups.remove(0)
}

fn strategy(name: &str) -> Property {
    let info = StrategyInfo {
        name: name.into(),
        props: vec![],
    };
    Property::new("org.omg.CosLoadBalancing.StrategyInfo", &info)
}

#[tokio::test]
async fn properties_count_at_once_and_the_strongest_level_wins() {
    let lm = start(settings()).await;
    let (group, _) = group(&lm).await;
    let used = || only_group(&lm).strategy.into_owned();
    let ok = Outcome::Reply(vec![]);
    let id = TYPE.to_owned();
    let set = call(
        &lm,
        "set_default_properties",
        args!(vec![strategy("Random")]),
    )
    .await;
    assert_eq!((set, &*used()), (ok.clone(), "random"));
    let set = call(
        &lm,
        "set_type_properties",
        args!(id, vec![strategy("LeastLoaded")]),
    )
    .await;
    assert_eq!((set, &*used()), (ok.clone(), "least_loaded"));
    let set = call(
        &lm,
        "set_properties_dynamically",
        args!(group, vec![strategy("RoundRobin")]),
    )
    .await;
    assert_eq!((set, &*used()), (ok.clone(), "round_robin"));
    let set = call(
        &lm,
        "set_default_properties",
        args!(vec![strategy("LoadMinimum")]),
    )
    .await;
    assert_eq!((set, &*used()), (ok.clone(), "round_robin"));

    let names = |all: Properties| all.iter().map(|p| p.nam.to_string()).collect::<Vec<_>>();
    let all: Properties = result(call(&lm, "get_properties", args!(group)).await);
    let text = names(all.clone()).join(" ");
    assert!(
        text.contains("MembershipStyle") && text.contains("StrategyInfo"),
        "{text}"
    );
    let own = all
        .iter()
        .find(|p| p.nam.as_simple() == Some("org.omg.CosLoadBalancing.Strategy"));
    let own = own.unwrap().val.as_reference().unwrap();
    let key = own.iiop_profiles().next().unwrap().object_key;
    assert!(matches!(
        Key::parse(&key),
        Some(Key::Strategy(crate::keys::Level::Group(_)))
    ));
    let of_type: Properties = result(call(&lm, "get_type_properties", args!(id)).await);
    assert_eq!(of_type.len(), 2);
    let default: Properties = result(call(&lm, "get_default_properties", args!()).await);
    assert_eq!(default.len(), 2);

    let removed = call(
        &lm,
        "remove_type_properties",
        args!(id, of_type[..1].to_vec()),
    )
    .await;
    assert_eq!(removed, ok);
    assert!(lm.state().types.is_empty());
    let removed = call(
        &lm,
        "remove_default_properties",
        args!(default[..1].to_vec()),
    )
    .await;
    assert_eq!(removed, ok);

    // Refused as a whole.
    let bad = vec![
        Property::new("org.evenkeel.MoveShare", &0.5f32),
        strategy("Unheard"),
    ];
    for outcome in [
        call(&lm, "set_default_properties", args!(bad)).await,
        call(&lm, "set_type_properties", args!(id, bad)).await,
        call(&lm, "set_properties_dynamically", args!(group, bad)).await,
    ] {
        assert_eq!(
            raised(outcome),
            UserException::InvalidProperty(bad[1].clone())
        );
    }
    assert!(lm.state().defaults.is_empty());
    let other = object("x");
    let unknown = call(
        &lm,
        "set_properties_dynamically",
        args!(other, vec![strategy("Random")]),
    )
    .await;
    assert_eq!(raised(unknown), UserException::ObjectGroupNotFound);
}

#[tokio::test]
async fn a_group_may_have_a_name_that_no_other_has() {
    let lm = start(settings()).await;
    let mut criteria = by_hand();
    criteria.push(Property::new(
        "org.evenkeel.GroupName",
        &"stocks".to_owned(),
    ));
    call(&lm, "create_object", args!(TYPE.to_owned(), criteria)).await;
    assert_eq!(only_group(&lm).name, "stocks");
    let again = call(&lm, "create_object", args!(TYPE.to_owned(), criteria)).await;
    assert_eq!(
        raised(again),
        UserException::InvalidProperty(criteria[1].clone())
    );
    assert_eq!(only_group(&lm).name, "stocks");
}

/// Calls a strategy of ours.
async fn ask(
    lm: &Arc<LoadManager>,
    level: Level<'_>,
    operation: &str,
    arguments: impl FnOnce(&mut Writer),
) -> Outcome {
    let mut writer = Writer::new(Endian::Big);
    arguments(&mut writer);
    let call = Call {
        operation: operation.into(),
        body: writer.into_bytes(),
        before: 0,
        joints: Vec::new(),
        endian: Endian::Big,
        version: Version::V1_2,
    };
    lm.invoke_strategy(level, call).await
}

fn configured(strategy: &str) -> Settings {
    let mut settings = settings();
    let kind = evenkeel_core::strategy::find(strategy).unwrap();
    let values = evenkeel_core::strategy::Values::defaults(kind);
    settings.groups.set_strategy(values);
    settings
}

#[tokio::test]
async fn strategies_of_ours_can_be_called() {
    let lm = start(configured("least_loaded")).await;
    let (group, _) = group(&lm).await;
    let id = result::<u64>(call(&lm, "get_object_group_id", args!(group)).await);
    let of_group = Level::Group(id);
    let own = lm.reference();
    for level in [of_group, Level::Type(TYPE), Level::Default] {
        let name = ask(&lm, level, "_get_name", args!()).await;
        assert_eq!(result::<String>(name), "LeastLoaded");
        let properties = ask(&lm, level, "get_properties", args!()).await;
        let properties = result::<Properties>(properties);
        let names: Vec<_> = properties.iter().map(|p| p.nam.to_string()).collect();
        let tolerance = r"org\.omg\.CosLoadBalancing\.Strategy\.LeastLoaded\.Tolerance";
        assert!(names.contains(&tolerance.to_owned()), "{names:?}");
        assert_eq!(lm.strategy_reference(level).iiop_profiles().count(), 1);
    }
    let is_a = "IDL:omg.org/CosLoadBalancing/Strategy:1.0".to_owned();
    assert!(result::<bool>(
        ask(&lm, of_group, "_is_a", args!(is_a)).await
    ));

    // Nobody is there, and then the one with the smaller load is next.
    let next = ask(&lm, of_group, "next_member", args!(group, own)).await;
    assert_eq!(raised(next), UserException::MemberNotFound);
    for (host, load) in [("host1", 0.9f32), ("host2", 0.1)] {
        result::<Ior>(call(&lm, "add_member", args!(group, at(host), object(host))).await);
        let loads = vec![Load { id: 0, value: load }];
        let pushed = ask(&lm, of_group, "push_loads", args!(at(host), loads)).await;
        assert_eq!(pushed, Outcome::Reply(Vec::new()));
        let known = ask(&lm, of_group, "get_loads", args!(own, at(host))).await;
        assert_eq!(result::<Vec<Load>>(known), loads);
    }
    for level in [of_group, Level::Default] {
        let next = ask(&lm, level, "next_member", args!(group, own)).await;
        assert_eq!(result::<Ior>(next), object("host2"));
    }
    let directory = lm.directory().load_snapshot();
    let current = directory.group(id).unwrap().handle.current.load_full();
    let assigned = [0, 1].map(|i| current.members()[i].slot.record().assigned());
    assert_eq!(assigned, [0, 2], "clients of a strategy are counted, too");
    let analyzed = ask(&lm, of_group, "analyze_loads", args!(group, own)).await;
    assert_eq!(analyzed, Outcome::Reply(Vec::new()));
}

#[tokio::test]
async fn strategies_refuse_what_makes_no_sense() {
    let lm = start(configured("round_robin")).await;
    let (group, _) = group(&lm).await;
    let loads = vec![Load {
        id: 0,
        value: 0.5f32,
    }];
    let pushed = ask(&lm, Level::Default, "push_loads", args!(at("host1"), loads)).await;
    assert_eq!(raised(pushed), UserException::StrategyNotAdaptive);
    let own = lm.reference();
    let unknown = ask(&lm, Level::Default, "get_loads", args!(own, at("host1"))).await;
    assert_eq!(raised(unknown), UserException::LocationNotFound);
    // Another load manager's groups and loads are not known here.
    for stranger in [Ior::default(), object("elsewhere")] {
        let next = ask(&lm, Level::Default, "next_member", args!(group, stranger)).await;
        assert_eq!(next, system(Kind::BadParam));
    }
    let next = ask(&lm, Level::Default, "next_member", args!(object("x"), own)).await;
    assert_eq!(raised(next), UserException::ObjectGroupNotFound);
    let gone = ask(&lm, Level::Group(77), "_get_name", args!()).await;
    assert_eq!(gone, system(Kind::ObjectNotExist));
    let nonsense = ask(&lm, Level::Default, "next", args!()).await;
    assert_eq!(nonsense, system(Kind::BadOperation));
}

#[tokio::test]
async fn while_too_much_is_carried_out_clients_are_told_to_try_again() {
    let lm = start(settings()).await;
    let all = Arc::clone(&lm.room)
        .try_acquire_many_owned(MOST_CALLED as u32)
        .unwrap();
    let refused = call(&lm, "_non_existent", args!()).await;
    assert_eq!(refused, system(Kind::Transient));
    let refused = ask(&lm, Level::Default, "_get_name", args!()).await;
    assert_eq!(refused, system(Kind::Transient));
    drop(all);
    assert!(!result::<bool>(call(&lm, "_non_existent", args!()).await));
    assert_eq!(lm.room.available_permits(), MOST_CALLED);
}

#[tokio::test]
async fn no_more_is_kept_than_can_be_read_back() {
    let lm = start(settings()).await;
    let large = |host: &str| Ior::new_iiop(TYPE, host, 4711, &[7; 400 << 10]);
    let (group, _) = group(&lm).await;
    let add = async |host: &str| {
        let member = args!(group, at(host), large(host));
        call(&lm, "add_member", member).await
    };
    result::<Ior>(add("a").await);
    let alert = args!(at("a"), large("b"));
    let registered = call(&lm, "register_load_alert", alert).await;
    assert_eq!(registered, Outcome::Reply(Vec::new()));
    assert_eq!(add("c").await, system(Kind::NoResources));
    assert_eq!(
        lm.state().size(),
        lm.group_of(&group).unwrap().1.size() + 1 + large("b").encoded_size()
    );
    result::<Ior>(call(&lm, "remove_member", args!(group, at("a"))).await);
    result::<Ior>(add("c").await);
    // Properties count, too.
    let custom = Property::new(
        "org.omg.CosLoadBalancing.CustomStrategy",
        &Ior {
            type_id: "IDL:tao.lb/CosLoadBalancing/Strategy:1.0".into(),
            ..large("d")
        },
    );
    let set = call(&lm, "set_default_properties", args!(vec![custom])).await;
    assert_eq!(set, system(Kind::NoResources));
}

#[tokio::test]
async fn ids_of_types_are_for_people_to_read() {
    let lm = start(settings()).await;
    for wrong in ["", "IDL:\u{1b}[2J:1.0", "IDL:a\n:1.0", &"x".repeat(2000)] {
        let wrong = wrong.to_owned();
        let created = call(&lm, "create_object", args!(wrong, by_hand())).await;
        assert_eq!(created, system(Kind::BadParam), "{wrong:?}");
        let set = call(&lm, "set_type_properties", args!(wrong, by_hand())).await;
        assert_eq!(set, system(Kind::BadParam), "{wrong:?}");
    }
}

mod members;
mod peer;

/// The time counts from the last push, and not from the first.
#[tokio::test]
async fn a_location_that_is_pushed_stays_c5() {
    let lm = start(settings()).await;
    let push = async || {
        let loads = vec![Load { id: 0, value: 0.5 }];
        call(&lm, "push_loads", args!(at("host1"), loads)).await;
        lm.lock().pushed.last_push("host1").unwrap()
    };
    let first = push().await;
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    assert!(push().await > first);
}

#[tokio::test]
async fn forced_alerts_outlive_a_restart_c7() {
    let folder = std::env::temp_dir().join(format!("evenkeel-forced-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let kept = Settings {
        state_file: Some(folder.join("state.json")),
        ..settings()
    };
    let lm = start(kept.clone()).await;
    let alert = Ior::new_iiop("IDL:Alert:1.0", "127.0.0.1", 1, b"a");
    for place in ["host1", "host2"] {
        call(&lm, "register_load_alert", args!(at(place), alert)).await;
    }
    let enabled = call(&lm, "enable_alert", args!(at("host1"))).await;
    assert_eq!(enabled, Outcome::Reply(vec![]));
    // By an administrator, too: noticed within a second.
    lm.manager().set_alert("host2", AlertSetting::Off).unwrap();
    lm.keep_forced_alerts().await.unwrap();
    let forced = lm.manager().forced_alerts();
    assert_eq!(forced.len(), 2);
    let next = start(kept.clone()).await;
    assert_eq!(next.manager().forced_alerts(), forced);
    call(&next, "disable_alert", args!(at("host1"))).await;
    next.manager()
        .set_alert("host2", AlertSetting::Auto)
        .unwrap();
    next.keep_forced_alerts().await.unwrap();
    let last = start(kept).await;
    assert!(last.manager().forced_alerts().is_empty());
    let _ = std::fs::remove_dir_all(folder);
}

/// Members that `next_member` of a group's own strategy, or of another level's, names.
async fn next_members(
    lm: &Arc<LoadManager>,
    level: Level<'_>,
    group: &Ior,
    count: usize,
) -> String {
    let own = lm.reference();
    let mut hosts = Vec::new();
    for _ in 0..count {
        let next = ask(lm, level, "next_member", args!(group, own)).await;
        let host = result::<Ior>(next).iiop_profiles().next().unwrap().host;
        hosts.push(host.trim_start_matches("host").to_owned());
    }
    hosts.join(" ")
}

async fn joined(lm: &Arc<LoadManager>, group: &Ior, hosts: &[&str]) -> u64 {
    for host in hosts {
        result::<Ior>(call(lm, "add_member", args!(group, at(host), object(host))).await);
    }
    result(call(lm, "get_object_group_id", args!(group)).await)
}

/// Three loads, of which only the first counts, whatever it measures.
#[tokio::test]
async fn the_first_load_of_each_report_counts_t2() {
    let mut settings = configured("least_loaded");
    let critical = evenkeel_core::alert::Threshold::Critical(50.0);
    settings.groups.settings.alert.threshold = Some(critical);
    // No pulse, which plans with clients that are known by their connections.
    settings.groups.settings.alert.move_share = 1.0;
    let lm = start(settings).await;
    let (group, _) = group(&lm).await;
    let id = joined(&lm, &group, &["host1", "host2"]).await;
    for (host, load) in [("host1", 100.0), ("host2", 1.0)] {
        let loads = vec![Load { id: 4, value: load }, Load { id: 0, value: 0.5 }];
        call(&lm, "push_loads", args!(at(host), loads)).await;
    }
    let next = next_members(&lm, Level::Group(id), &group, 8).await;
    assert_eq!(next, "2 2 2 2 2 2 2 2");
    let alerted = || {
        let locations = lm.manager().status().locations.into_iter();
        let alerted = locations.filter(|place| place.alert);
        alerted.map(|place| place.name).collect::<Vec<_>>()
    };
    let control = tokio::spawn(Arc::clone(lm.manager()).run());
    while alerted() != ["host1"] {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    control.abort();
}

/// An application that names a critical load has clients leave as long as the load is above it,
/// whatever causes it: nobody is known to be a client here.
#[tokio::test]
async fn tao_2_a_critical_threshold_alerts_until_the_load_is_lower() {
    let lm = start(settings()).await;
    let (group, _) = group(&lm).await;
    joined(&lm, &group, &["host1", "host2", "host3"]).await;
    let critical = Property::new(
        "org.omg.CosLoadBalancing.Strategy.LeastLoaded.CriticalThreshold",
        &80.0f32,
    );
    let info = StrategyInfo {
        name: "LeastLoaded".into(),
        props: vec![critical],
    };
    let own = vec![Property::new(
        "org.omg.CosLoadBalancing.StrategyInfo",
        &info,
    )];
    call(&lm, "set_properties_dynamically", args!(group, own)).await;
    let alerted = || {
        let locations = lm.manager().status().locations.into_iter();
        let alerted = locations.filter(|place| place.alert);
        alerted.map(|place| place.name).collect::<Vec<_>>()
    };
    let control = tokio::spawn(Arc::clone(lm.manager()).run());
    // 75 is below the threshold, and not below the part of it at which an alert ends.
    for (load, wanted) in [(90.0, &["host1"][..]), (75.0, &["host1"]), (60.0, &[])] {
        for (host, load) in [("host1", load), ("host2", 10.0), ("host3", 20.0)] {
            let loads = vec![Load { id: 0, value: load }];
            call(&lm, "push_loads", args!(at(host), loads)).await;
        }
        while alerted() != wanted {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    control.abort();
}

/// A new member at the location of a dead one is not taken for dead.
#[tokio::test]
async fn a_member_that_takes_the_place_of_a_dead_one_gets_clients() {
    let lm = start(configured("round_robin")).await;
    let (group, _) = group(&lm).await;
    let id = joined(&lm, &group, &["host1", "host2"]).await;
    let dead = SourceReport {
        down: true,
        dead: true,
        ..SourceReport::default()
    };
    lm.set_opinion(id, "host1", Source::Liveness, Some(&dead));
    let next = next_members(&lm, Level::Group(id), &group, 2).await;
    assert_eq!(next, "2 2");
    call(&lm, "remove_member", args!(group, at("host1"))).await;
    joined(&lm, &group, &["host1"]).await;
    let next = next_members(&lm, Level::Group(id), &group, 4).await;
    assert_eq!(next, "2 1 2 1");
}

/// Applications that use round robin count on an order that can be told.
#[tokio::test]
async fn members_take_turns_in_the_order_of_joining_t7() {
    let lm = start(configured("round_robin")).await;
    let (group, _) = group(&lm).await;
    let id = joined(&lm, &group, &["host3", "host1", "host2"]).await;
    let next = next_members(&lm, Level::Group(id), &group, 6).await;
    assert_eq!(next, "3 1 2 3 1 2");
}

#[tokio::test]
async fn a_strategy_of_another_level_remembers_whose_turn_it_is_c6() {
    let lm = start(configured("round_robin")).await;
    let (group, _) = group(&lm).await;
    let id = joined(&lm, &group, &["host1", "host2", "host3"]).await;
    let info = StrategyInfo {
        name: "Random".into(),
        props: Vec::new(),
    };
    let own = vec![Property::new(
        "org.omg.CosLoadBalancing.StrategyInfo",
        &info,
    )];
    call(&lm, "set_properties_dynamically", args!(group, own)).await;
    let random = ask(&lm, Level::Group(id), "_get_name", args!()).await;
    assert_eq!(result::<String>(random), "Random");
    let next = next_members(&lm, Level::Default, &group, 6).await;
    assert_eq!(next, "1 2 3 1 2 3");
    // With other members it begins anew.
    joined(&lm, &group, &["host4"]).await;
    let next = next_members(&lm, Level::Type(TYPE), &group, 5).await;
    assert_eq!(next, "1 2 3 4 1");
}

#[tokio::test]
async fn the_strategy_is_always_listed_as_what_it_is_t4_t5() {
    let lm = start(configured("round_robin")).await;
    let (group, _) = group(&lm).await;
    let (id, name) = (TYPE.to_owned(), "org.omg.CosLoadBalancing.Strategy");
    let all = [
        call(&lm, "get_default_properties", args!()).await,
        call(&lm, "get_type_properties", args!(id)).await,
        call(&lm, "get_properties", args!(group)).await,
    ];
    for outcome in all {
        let listed = result::<Properties>(outcome);
        let own = listed.iter().find(|p| p.nam.as_simple() == Some(name));
        let any = &own.unwrap().val;
        let expected = evenkeel_giop::typecode::TypeCode::interface(
            "IDL:tao.lb/CosLoadBalancing/Strategy:1.0",
            "Strategy",
        );
        assert_eq!(*any.type_code(), expected);
        let key = any
            .as_reference()
            .unwrap()
            .iiop_profiles()
            .next()
            .unwrap()
            .object_key;
        let Some(Key::Strategy(level)) = Key::parse(&key) else {
            panic!("{key:?}");
        };
        let name = ask(&lm, level, "_get_name", args!()).await;
        assert_eq!(result::<String>(name), "RoundRobin");
    }
}

/// The application's own properties, and those of other load managers.
#[tokio::test]
async fn properties_that_mean_nothing_here_come_back_t8() {
    let lm = start(settings()).await;
    let own = Property::new("my.own.Property", &"x".to_owned());
    let style = Property::new("org.omg.PortableGroup.ConsistencyStyle", &1i32);
    let criteria = [by_hand(), vec![own.clone(), style.clone()]].concat();
    let created = call(&lm, "create_object", args!(TYPE.to_owned(), criteria)).await;
    let Outcome::Reply(body) = created else {
        panic!("{created:?}");
    };
    let group = Ior::read(&mut Reader::new(&body, Endian::Big)).unwrap();
    let all = result::<Properties>(call(&lm, "get_properties", args!(group)).await);
    assert!(all.contains(&own) && all.contains(&style), "{all:?}");
}

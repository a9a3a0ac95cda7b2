//! The CORBA service as a process, with a client made of Evenkeel's own GIOP. Peers of real
//! ORBs are in `jacorb.rs` and `omniorb.rs`.

use std::net::{SocketAddr, TcpListener};

use evenkeel_corba::exceptions::UserException;
use evenkeel_corba::types::Load;
use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::corba::LoadManager;
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use evenkeel_giop::client::CallError;
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::ior::Ior;

const TYPE: &str = "IDL:Stock/Factory:1.0";

fn config(listen: SocketAddr) -> String {
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [corba]\nlisten = \"{listen}\"\nior_file = \"lm.ior\"\nliveness = false\n\
         [corba.groups]\nstrategy = \"round_robin\"\n"
    )
}

/// An object that nobody needs to reach.
fn object(host: &str) -> Ior {
    Ior::new_iiop(TYPE, host, 4711, b"\0\x01key")
}

fn transient() -> CallError {
    CallError::System(SystemException::new(Kind::Transient))
}

#[test]
fn clients_of_a_group_are_sent_to_its_members_in_turn() {
    let balancer = Balancer::start(&config("127.0.0.1:0".parse().unwrap()));
    let lm = LoadManager::at_address(balancer.corba_address());
    // The file says the same as `corbaloc:iiop:HOST:PORT/LoadManager`.
    let from_file: Ior = balancer.folder().text("lm.ior").parse().unwrap();
    assert_eq!(from_file, lm.reference);

    let (group, _) = lm.create_group(TYPE, vec![]).unwrap();
    assert_eq!(
        lm.orb.resolve_forward(&group).unwrap_err(),
        transient(),
        "nobody is there"
    );
    // One that does not answer may be busy; one that nobody reaches makes room for another.
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = busy.local_addr().unwrap().port();
    let mut members = ["host1", "host2", "host3"].map(|host| (host, object(host)));
    members[0].1 = Ior::new_iiop(TYPE, "127.0.0.1", port, b"\0\x01key");
    for (at, member) in &members {
        assert_eq!(lm.add_member(&group, at, member).unwrap(), group);
    }
    let again = lm.add_member(&group, "host1", &object("x")).unwrap_err();
    assert_eq!(again, UserException::MemberAlreadyPresent);
    // More than once around.
    let sent: Vec<Ior> = (0..9)
        .map(|_| lm.orb.resolve_forward(&group).unwrap())
        .collect();
    let wanted: Vec<Ior> = (0..3)
        .flat_map(|_| members.clone().map(|(_, m)| m))
        .collect();
    assert_eq!(sent, wanted, "each exactly as it was registered, in turn");

    // It is a group like others, for administrators too.
    let status = balancer.status();
    let name = status["groups"][0]["name"].as_str().unwrap().to_owned();
    let metrics = balancer.admin_get("/metrics");
    let counted =
        format!("evenkeel_corba_bindings_total{{group=\"{name}\",result=\"forwarded\"}} 9\n");
    assert!(metrics.text().contains(&counted), "{}", metrics.text());
    assert_eq!(status["groups"][0]["owner"], "corba");
    for host in ["host1", "host2"] {
        balancer.run_ctl(&format!("drain {name} {host}")).unwrap();
    }
    assert_eq!(lm.orb.resolve_forward(&group).unwrap(), object("host3"));
    let seen = balancer.run_ctl("corba").unwrap();
    for shown in [&*name, TYPE, "application", "host2", &group.to_string()] {
        assert!(seen.contains(shown), "{shown} is missing in\n{seen}");
    }
    lm.push_loads("host3", &[Load { id: 0, value: 0.5 }])
        .unwrap();
    let status = balancer.status();
    assert_eq!(status["groups"][0]["members"][2]["load"], 0.5);

    lm.remove_member(&group, "host3").unwrap();
    assert_eq!(lm.orb.resolve_forward(&group).unwrap_err(), transient());
    assert_eq!(lm.locations(&group).unwrap(), ["host1", "host2"]);
}

#[test]
fn references_and_members_outlive_the_manager() {
    let listen = address();
    let balancer = Balancer::start(&config(listen));
    let lm = LoadManager::at_address(listen);
    let (group, creation) = lm.create_group(TYPE, vec![]).unwrap();
    lm.add_member(&group, "host1", &object("host1")).unwrap();

    let balancer = balancer.replace(&config(listen));
    let lm = LoadManager::at_address(listen);
    assert_eq!(lm.orb.resolve_forward(&group).unwrap(), object("host1"));
    lm.add_member(&group, "host2", &object("host2")).unwrap();
    assert_eq!(lm.locations(&group).unwrap(), ["host1", "host2"]);

    let mut balancer = balancer.replace(&config(listen));
    let lm = LoadManager::at_address(listen);
    lm.call_operation("delete_object", |w| creation.write(w))
        .unwrap();
    balancer.signal(Signal::TERM);
    assert!(balancer.wait_for_end().success());
    let balancer = balancer.replace(&config(listen));
    let lm = LoadManager::at_address(listen);
    let gone = lm.orb.resolve_forward(&group).unwrap_err();
    assert!(
        matches!(
            gone,
            CallError::System(SystemException {
                kind: Kind::ObjectNotExist,
                ..
            })
        ),
        "{gone}"
    );
    assert_eq!(balancer.status()["groups"].as_array().unwrap().len(), 0);
}

#[test]
fn the_service_follows_the_configuration() {
    let (first, second) = (address(), address());
    let balancer = Balancer::start(&config(first));
    let lm = LoadManager::at_address(first);
    let (group, _) = lm.create_group(TYPE, vec![]).unwrap();
    lm.add_member(&group, "host1", &object("host1")).unwrap();
    balancer.reconfigure(&config(second));
    let moved = LoadManager::at_address(second);
    assert_eq!(
        moved.locations(&group).unwrap(),
        ["host1"],
        "its key is the same"
    );
    let group_there = moved.add_member(&group, "host2", &object("host2")).unwrap();
    moved.orb.resolve_forward(&group_there).unwrap();
    let old = lm.orb.resolve_forward(&group).unwrap_err();
    assert!(matches!(old, CallError::Unreachable { .. }), "{old}");

    let off = "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    balancer.reconfigure(off);
    wait_until("the groups are withdrawn", || {
        balancer.status()["groups"].as_array().unwrap().is_empty()
    });
    balancer.reconfigure(&config(second));
    wait_until("they are back", || {
        moved.orb.resolve_forward(&group_there).is_ok()
    });
}

//! Both sides of the reporting protocol against bad input, and against each other over a
//! network that loses, delays, doubles, damages and replays.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::Monitor;
use evenkeel_core::group::{Group, GroupSettings};
use evenkeel_core::load::{LoadId, LoadValue, Location, UNNAMED_LOADS};
use evenkeel_core::member::{Member, MemberId, Reason, Slot, Weight};
use evenkeel_core::strategy::{Values, default_kind};
use evenkeel_core::time::Instant;
use evenkeel_wire::reporting::client::{Poll, Session, State};
use evenkeel_wire::reporting::directory::Directory;
use evenkeel_wire::reporting::keys::{Key, Keys};
use evenkeel_wire::reporting::message::{
    self, Body, Cookie, Header, Invalid, MAX_DATAGRAM, Registration, Server, ServerState, Update,
};
use evenkeel_wire::reporting::server::{Broker, Datagram, Outcome, Peer, Settings};
use proptest::prelude::*;

const SECRET: [u8; 32] = [9; 32];

fn keys(ids: &[u16]) -> Keys {
    let key = |id: &u16| Key::new(*id, &[*id as u8; 32]).unwrap();
    Keys::new(ids.iter().map(key).collect()).unwrap()
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn settings() -> Settings {
    Settings {
        interval: Duration::from_secs(1),
        lease: 3,
        keepalive: Duration::from_secs(10),
        forget: Duration::from_secs(60),
        max_agents: 100,
    }
}

fn broker(seed: u64) -> Broker {
    let mut secret = SECRET;
    secret[..8].copy_from_slice(&seed.to_be_bytes());
    let rng = fastrand::Rng::with_seed(seed);
    Broker::new(settings(), keys(&[1]), &secret, rng).unwrap()
}

fn peer(last: u8) -> Peer {
    Peer {
        socket: 0,
        address: SocketAddr::from(([10, 0, 0, last], 5000)),
    }
}

/// A group "web" with a member `10.0.0.N:80` at a location "rack-N" for each N below
/// `count`.
struct Site {
    locations: Vec<Arc<Location>>,
    slots: Vec<Arc<Slot>>,
    directory: Arc<Directory>,
}

impl Site {
    fn alert(&self, n: usize, alert: bool) {
        self.slots[n].set(Reason::Shedding, alert);
    }
}

fn site(count: u8) -> Site {
    let names = (0..count).map(|n| format!("rack-{n}"));
    let locations: Vec<_> = names.map(|name| Arc::new(Location::new(name))).collect();
    let member = |(n, location): (u8, &Arc<Location>)| Member {
        id: MemberId(n.into()),
        name: format!("10.0.0.{n}:80").into(),
        given_name: None,
        address: SocketAddr::from(([10, 0, 0, n], 80)).into(),
        host: "192.0.2.1".into(),
        max_connections: None,
        location: Arc::clone(location),
        zone: None,
        slot: Arc::new(Slot::new(Weight::ONE)),
    };
    let members: Vec<_> = (0..).zip(&locations).map(member).collect();
    let values = Values::defaults(default_kind());
    let group = Group::new(
        "web",
        GroupSettings::default(),
        &values,
        members,
        Arc::default(),
    );
    Site {
        slots: group
            .members()
            .iter()
            .map(|m| Arc::clone(&m.slot))
            .collect(),
        directory: Arc::new(Directory::new([&group])),
        locations,
    }
}

fn registration(n: u8) -> Registration {
    let server = |group: &str, host: String| Server {
        group: group.into(),
        host,
        port: 80,
        weight: None,
    };
    let servers = vec![
        server("web", format!("10.0.0.{n}")),
        server("mail", String::new()),
    ];
    Registration::new(format!("rack-{n}"), "agent", servers).unwrap()
}

fn session(n: u8, seed: u64, now: Instant) -> Session {
    Session::new(
        registration(n),
        keys(&[1]),
        now,
        fastrand::Rng::with_seed(seed),
    )
}

/// All datagrams that the session wants to send now.
fn sent(session: &mut Session, now: Instant) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Poll::Send(datagram) = session.poll(now) {
        all.push(datagram);
    }
    all
}

/// Lets both speak, over a network that does nothing to them, until nobody has anything
/// to say. Answers all that was said, with its way.
fn speak(session: &mut Session, from: Peer, broker: &mut Broker, now: Instant) -> Vec<Vec<u8>> {
    let mut said = Vec::new();
    let mut queries = Vec::new();
    broker.poll(now, &mut queries);
    for (_, query) in queries {
        session.receive_datagram(&query, now).unwrap();
        said.push(query);
    }
    loop {
        let requests = sent(session, now);
        if requests.is_empty() {
            return said;
        }
        for request in requests {
            let (_, answer) = broker.receive_datagram(from, &request, now);
            said.push(request);
            if let Some(answer) = answer {
                let _ = session.receive_datagram(&answer, now);
                said.push(answer);
            }
        }
    }
}

fn load(value: f64) -> [(LoadId, LoadValue); 1] {
    [(LoadId::CPU, LoadValue::new(value).unwrap())]
}

/// All that a datagram might change, as text.
fn state(broker: &Broker, site: &Site, now: Instant) -> String {
    let agents: BTreeMap<_, _> = broker
        .list_agents()
        .map(|agent| (agent.registration.location(), format!("{agent:?}")))
        .collect();
    let loads = site.locations.iter().map(|location| {
        let loads: Vec<_> = location.list_loads(now).collect();
        (location.name(), loads)
    });
    format!("{agents:?} {:?}", loads.collect::<Vec<_>>())
}

/// A broker with a site of three, and an agent at the first that has registered at
/// `at(0)` and reported a load of 0.5.
fn registered() -> (Broker, Site, Session) {
    let site = site(3);
    let mut broker = broker(1);
    broker.set_directory(Arc::clone(&site.directory));
    let mut session = session(0, 7, at(0));
    session.update_loads(&load(0.5), &[], at(0));
    speak(&mut session, peer(0), &mut broker, at(0));
    assert_eq!(session.state(), State::Registered);
    (broker, site, session)
}

/// The header of the next message of `session`, which is not sent.
fn next_header(session: &mut Session, now: Instant) -> Header {
    session.update_loads(&load(0.1), &[], now);
    message::peek_header(&sent(session, now)[0]).unwrap()
}

fn seal(header: Header, body: &Body) -> Vec<u8> {
    let keys = keys(&[1]);
    message::seal_message(
        header.nonce,
        header.identifier,
        header.sequence,
        body,
        keys.signing_key(),
    )
}

fn update(loads: Vec<(LoadId, f32)>) -> Update {
    Update {
        token: 0,
        last_control: 1,
        measurement: 2,
        age: Duration::ZERO,
        servers: vec![ServerState::Up; 2],
        loads,
    }
}

#[test]
fn a_report_reaches_its_location_and_says_who_is_known() {
    let (mut broker, site, mut session) = registered();
    let cpu = |now| {
        site.locations[0]
            .last_load(LoadId::CPU, now)
            .map(|load| load.value.get())
    };
    assert_eq!(cpu(at(0)), Some(0.5));
    assert_eq!(session.unknown_servers().collect::<Vec<_>>(), [false, true]);
    assert!(!session.is_location_unknown());

    session.update_loads(&load(0.75), &[ServerState::Drain], at(1000));
    let version = broker.version();
    speak(&mut session, peer(0), &mut broker, at(1000));
    assert_eq!(cpu(at(1000)), Some(0.75));
    assert_ne!(broker.version(), version);
    let agent = broker.list_agents().next().unwrap();
    let states: Vec<_> = agent.list_servers().map(|server| server.state).collect();
    assert_eq!(states, [ServerState::Drain, ServerState::Up]);
    assert_eq!((agent.lost, agent.confirmed), (0, true));
}

#[test]
fn an_alert_reaches_the_agent_within_a_sweep_and_is_renewed() {
    let (mut broker, site, mut session) = registered();
    speak(&mut session, peer(0), &mut broker, at(1000));
    site.alert(0, true);
    speak(&mut session, peer(0), &mut broker, at(1050));
    let alerts: Vec<_> = session.server_alerts(at(1050)).collect();
    assert_eq!(alerts, [Some(at(4050)), None]);
    assert!(broker.list_agents().all(|agent| agent.confirmed));
    // For as long as it is on, the lease is renewed at each interval.
    for now in (2050..20_000).step_by(1000).map(at) {
        speak(&mut session, peer(0), &mut broker, now);
        let until = now.after(Duration::from_secs(3));
        assert_eq!(session.server_alerts(now).next(), Some(Some(until)));
    }
    site.alert(0, false);
    speak(&mut session, peer(0), &mut broker, at(20_100));
    assert_eq!(session.server_alerts(at(20_100)).flatten().count(), 0);
}

#[test]
fn an_alert_that_is_not_confirmed_is_repeated() {
    let (mut broker, site, mut session) = registered();
    speak(&mut session, peer(0), &mut broker, at(1000));
    site.alert(0, true);
    let mut times = Vec::new();
    let mut queries: Vec<Datagram> = Vec::new();
    for now in (1050..8000).step_by(50) {
        broker.poll(at(now), &mut queries);
        times.extend(queries.drain(..).map(|_| now));
    }
    assert_eq!(times, [1050, 1250, 1650, 2450, 4050, 6050]);
}

#[test]
fn a_lost_broker_lifts_its_alerts() {
    let (mut broker, site, mut session) = registered();
    site.alert(0, true);
    speak(&mut session, peer(0), &mut broker, at(1050));
    assert_eq!(session.server_alerts(at(4049)).flatten().count(), 1);
    assert_eq!(session.server_alerts(at(4050)).flatten().count(), 0);
}

#[test]
fn a_silent_agent_is_forgotten_and_one_that_signs_off_is_remembered() {
    let (mut broker, site, mut session) = registered();
    let mut other = self::session(1, 8, at(0));
    speak(&mut other, peer(1), &mut broker, at(0));
    session.stop(at(1000));
    speak(&mut session, peer(0), &mut broker, at(1000));
    assert_eq!(session.state(), State::Stopped);
    let mut queries = Vec::new();
    broker.poll(at(59_000), &mut queries);
    assert_eq!(broker.list_agents().count(), 2);
    // It is only asked who has not signed off.
    assert!(queries.iter().all(|(to, _)| *to == peer(1)), "{queries:?}");
    broker.poll(at(61_000), &mut queries);
    let left: Vec<_> = broker.list_agents().map(|agent| agent.stopped).collect();
    assert_eq!(left, [true]);
    assert_eq!(broker.counters().forgotten, 1);
    // There is nobody any more whom it concerns.
    broker.set_directory(Arc::default());
    broker.poll(at(62_000), &mut queries);
    assert_eq!(broker.list_agents().count(), 0);
    drop(site);
}

#[test]
fn a_restarted_broker_gets_its_agents_back_at_their_next_update() {
    let (_, site, mut session) = registered();
    let mut broker = broker(2);
    broker.set_directory(Arc::clone(&site.directory));
    session.update_loads(&load(0.25), &[], at(1000));
    speak(&mut session, peer(0), &mut broker, at(1000));
    assert_eq!(session.state(), State::Registered);
    let cpu = site.locations[0].last_load(LoadId::CPU, at(1000)).unwrap();
    assert_eq!(cpu.value.get(), 0.25);
    let count: HashMap<_, _> = broker.counters().received_by_outcome().collect();
    assert_eq!(count[&Outcome::UnknownIdentifier], 1);
}

#[test]
fn an_agent_that_moves_is_believed_once_it_has_proved_it() {
    let (mut broker, _site, mut session) = registered();
    session.update_loads(&load(0.6), &[], at(1000));
    let request = sent(&mut session, at(1000)).remove(0);
    let (outcome, answer) = broker.receive_datagram(peer(9), &request, at(1000));
    let answer = answer.unwrap();
    assert_eq!(outcome, Outcome::Updated);
    assert!(answer.len() <= request.len());
    let address = |broker: &Broker| broker.list_agents().next().unwrap().address;
    assert_eq!(address(&broker), peer(0).address);
    session.receive_datagram(&answer, at(1010)).unwrap();
    session.update_loads(&load(0.7), &[], at(2000));
    let request = sent(&mut session, at(2000)).remove(0);
    assert_eq!(broker.receive_datagram(peer(9), &request, at(2000)).1, None);
    assert_eq!(address(&broker), peer(9).address);
}

#[test]
fn the_same_measurement_counts_once_and_with_its_age() {
    let (mut broker, site, mut session) = registered();
    assert!(broker.query_agent("rack-0", "agent") && !broker.query_agent("rack-1", "agent"));
    speak(&mut session, peer(0), &mut broker, at(700));
    let agent = broker.list_agents().next().unwrap();
    assert_eq!((agent.heard_at, agent.measured_at), (at(700), Some(at(0))));
    session.update_loads(&load(0.9), &[], at(1000));
    speak(&mut session, peer(0), &mut broker, at(1300));
    assert_eq!(
        broker.list_agents().next().unwrap().measured_at,
        Some(at(1000))
    );
    let held = site.locations[0].last_load(LoadId::CPU, at(1300)).unwrap();
    assert!(
        at(1300).since(held.at) >= Duration::from_millis(298),
        "{held:?}"
    );
}

#[test]
fn a_location_that_comes_later_gets_the_loads_that_were_reported_before() {
    let site = site(1);
    let mut broker = broker(1);
    let mut session = session(0, 7, at(0));
    session.update_loads(&load(0.5), &[], at(0));
    speak(&mut session, peer(0), &mut broker, at(0));
    assert!(session.is_location_unknown());
    broker.set_directory(Arc::clone(&site.directory));
    speak(&mut session, peer(0), &mut broker, at(100));
    assert!(!session.is_location_unknown());
    assert!(site.locations[0].last_load(LoadId::CPU, at(100)).is_some());
}

#[test]
fn keys_are_rotated_without_a_gap() {
    let (mut broker, _site, mut session) = registered();
    broker.set_settings(settings(), keys(&[1, 2]));
    session.set_keys(keys(&[2, 1]));
    session.update_loads(&load(0.6), &[], at(1000));
    speak(&mut session, peer(0), &mut broker, at(1000));
    assert_eq!(broker.list_agents().next().unwrap().key, 2);
    broker.set_settings(settings(), keys(&[2]));
    session.set_keys(keys(&[2]));
    broker.query_agent("rack-0", "agent");
    let said = speak(&mut session, peer(0), &mut broker, at(2000));
    assert_eq!(said.len(), 2);
    assert!(
        said.iter()
            .all(|datagram| message::peek_header(datagram).unwrap().key == 2)
    );
}

#[test]
fn new_settings_reach_the_agents() {
    let (mut broker, _site, mut session) = registered();
    let interval = Duration::from_millis(250);
    let settings = Settings {
        interval,
        ..settings()
    };
    broker.set_settings(settings, keys(&[1]));
    speak(&mut session, peer(0), &mut broker, at(100));
    assert_eq!(session.measuring_interval(), interval);
    assert!(broker.list_agents().all(|agent| agent.confirmed));
}

#[test]
fn there_are_only_so_many_agents() {
    let mut broker = broker(1);
    broker.set_settings(
        Settings {
            max_agents: 2,
            ..settings()
        },
        keys(&[1]),
    );
    let mut sessions: Vec<_> = (0..3).map(|n| session(n, n.into(), at(0))).collect();
    for (n, session) in (0..).zip(&mut sessions) {
        speak(session, peer(n), &mut broker, at(0));
    }
    let states: Vec<_> = sessions.iter().map(Session::state).collect();
    assert_eq!(
        states,
        [State::Registered, State::Registered, State::Registering]
    );
    let count: HashMap<_, _> = broker.counters().received_by_outcome().collect();
    assert!(count[&Outcome::Full] > 0);
    // Who has signed off makes room.
    sessions[0].stop(at(100));
    speak(&mut sessions[0], peer(0), &mut broker, at(100));
    speak(&mut sessions[2], peer(2), &mut broker, at(5000));
    assert_eq!(sessions[2].state(), State::Registered);
}

#[test]
fn an_agent_that_counts_wildly_breaks_no_counter() {
    let (mut broker, _, mut session) = registered();
    for turn in 0..2 {
        let header = Header {
            sequence: u64::MAX,
            ..next_header(&mut session, at(100))
        };
        let datagram = seal(header, &Body::Update(update(Vec::new())));
        let (outcome, _) = broker.receive_datagram(peer(0), &datagram, at(100));
        assert_eq!(outcome, Outcome::Updated);
        assert!(broker.counters().lost >= u64::MAX - 10, "turn {turn}");
        assert!(broker.forget_agent("rack-0", "agent"));
        assert!(broker.counters().lost >= u64::MAX - 10, "turn {turn}");
        speak(&mut session, peer(0), &mut broker, at(200));
        session.update_loads(&load(0.5), &[], at(300));
        speak(&mut session, peer(0), &mut broker, at(300));
        assert_eq!(session.state(), State::Registered);
    }
}

#[test]
fn no_server_is_at_an_address_of_nobody_or_of_many() {
    let at = |host: &str| {
        let server = Server {
            group: "web".into(),
            host: host.into(),
            port: 80,
            weight: None,
        };
        Registration::new("here", "agent", vec![server])
    };
    for host in ["0.0.0.0", "::", "255.255.255.255", "224.0.0.1", "ff02::1"] {
        assert!(at(host).is_err(), "{host}");
    }
    for host in ["10.0.0.1", "::1", "web-1.example", ""] {
        assert!(at(host).is_ok(), "{host}");
    }
}

/// Every kind of bad datagram, each of which is counted by its cause, gets the answer
/// that the protocol gives it, and changes nothing.
#[test]
fn what_is_wrong_is_counted_by_its_cause_and_changes_nothing() {
    let (mut broker, site, mut session) = registered();
    let header = next_header(&mut session, at(500));
    let good = seal(header, &Body::Update(update(vec![(LoadId::CPU, 0.1)])));
    let mut bad: Vec<(Vec<u8>, Outcome, Option<message::Kind>)> = Vec::new();
    let mut add = |datagram, outcome, answer| bad.push((datagram, outcome, answer));
    let invalid = Outcome::Invalid;
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut datagram = good.clone();
        change(&mut datagram);
        datagram
    };
    add(vec![], invalid(Invalid::Truncated), None);
    add(good[..47].to_vec(), invalid(Invalid::Truncated), None);
    add(
        changed(|d| d.resize(MAX_DATAGRAM + 1, 0)),
        invalid(Invalid::Oversized),
        None,
    );
    add(
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        invalid(Invalid::Magic),
        None,
    );
    add(changed(|d| d[4] = 2), invalid(Invalid::Version), None);
    add(changed(|d| d[5] = 4), invalid(Invalid::Kind), None);
    add(changed(|d| d[7] = 3), invalid(Invalid::Key), None);
    add(changed(|d| d[40] ^= 1), invalid(Invalid::Tag), None);
    add(
        changed(|d| *d.last_mut().unwrap() ^= 1),
        invalid(Invalid::Tag),
        None,
    );
    add(changed(|d| d.push(0)), invalid(Invalid::Tag), None);
    // What the broker says itself.
    for body in [
        Body::StopAcknowledgement,
        Body::RegisterAgain,
        Body::Challenge(Cookie::NONE),
    ] {
        add(seal(header, &body), invalid(Invalid::Kind), None);
    }
    // Authentic, but wrong.
    let one_server = Update {
        servers: vec![ServerState::Up],
        ..update(vec![])
    };
    add(
        seal(header, &Body::Update(one_server)),
        invalid(Invalid::Malformed),
        None,
    );
    let heard_too_much = Update {
        last_control: 1000,
        ..update(vec![])
    };
    add(
        seal(header, &Body::Update(heard_too_much)),
        invalid(Invalid::Malformed),
        None,
    );
    let twice = vec![(LoadId::CPU, 0.1), (LoadId::CPU, 0.2)];
    add(
        seal(header, &Body::Update(update(twice))),
        invalid(Invalid::Malformed),
        None,
    );
    let many = (100..100 + message::MAX_LOADS as u32 + 1).map(|id| (LoadId(id), 0.1));
    add(
        seal(header, &Body::Update(update(many.collect()))),
        invalid(Invalid::Malformed),
        None,
    );
    let unknown = Header {
        identifier: header.identifier ^ 1,
        ..header
    };
    let again = Some(message::Kind::RegisterAgain);
    add(
        seal(unknown, &Body::Update(update(vec![]))),
        Outcome::UnknownIdentifier,
        again,
    );
    let of_another = Header {
        nonce: header.nonce ^ 1,
        ..header
    };
    add(
        seal(of_another, &Body::Update(update(vec![]))),
        Outcome::UnknownIdentifier,
        again,
    );
    let stopped = Some(message::Kind::StopAcknowledgement);
    add(
        seal(unknown, &Body::Stop),
        Outcome::UnknownIdentifier,
        stopped,
    );

    let before = state(&broker, &site, at(500));
    for (datagram, outcome, answer) in &bad {
        let count = |broker: &Broker| {
            let counters = broker.counters();
            let count = counters
                .received_by_outcome()
                .find(|(known, _)| known == outcome);
            count.unwrap().1
        };
        let counted = count(&broker);
        let (is, answered) = broker.receive_datagram(peer(0), datagram, at(500));
        assert_eq!(is, *outcome, "{datagram:02x?}");
        let kind = answered.map(|answer| {
            assert!(answer.len() <= datagram.len());
            message::peek_header(&answer).unwrap().kind
        });
        assert_eq!(kind, *answer, "{outcome:?}");
        assert_eq!(count(&broker), counted + 1);
        assert_eq!(state(&broker, &site, at(500)), before, "{outcome:?}");
    }
    // The good one still is one.
    assert_eq!(
        broker.receive_datagram(peer(0), &good, at(500)).0,
        Outcome::Updated
    );
}

#[test]
fn s4_a_load_that_is_not_taken_costs_a_report_nothing_else() {
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.1, 1.1e12];
    let bad = bad.map(|value| (LoadId::DISK, value, Outcome::Load));
    let full = (LoadId(99), 0.1, Outcome::TooManyLoads);
    for (id, value, outcome) in bad.into_iter().chain([full]) {
        let (mut broker, site, mut session) = registered();
        let one = LoadValue::new(1.0).unwrap();
        for id in 100..100 + UNNAMED_LOADS as u32 {
            site.locations[0]
                .report_load(LoadId(id), one, at(400))
                .unwrap();
        }
        let header = next_header(&mut session, at(500));
        let loads = vec![(LoadId::CPU, 0.25), (id, value), (LoadId::MEMORY, 0.75)];
        let down = Update {
            servers: vec![ServerState::Down, ServerState::Up],
            ..update(loads)
        };
        let datagram = seal(header, &Body::Update(down));
        assert_eq!(
            broker.receive_datagram(peer(0), &datagram, at(500)).0,
            outcome
        );
        let load = |id| {
            let load = site.locations[0].last_load(id, at(500));
            load.map(|load| load.value.get())
        };
        assert_eq!(load(LoadId::CPU), Some(0.25));
        assert_eq!(load(LoadId::MEMORY), Some(0.75));
        assert_eq!(load(id), None);
        let agent = broker.list_agents().next().unwrap();
        let states: Vec<_> = agent.list_servers().map(|server| server.state).collect();
        assert_eq!(states, [ServerState::Down, ServerState::Up]);
        assert_eq!(agent.sequence, header.sequence, "it was heard");
        let counters = broker.counters();
        let count = counters
            .received_by_outcome()
            .find(|(known, _)| *known == outcome);
        assert_eq!(count, Some((outcome, 1)));
        let untaken = counters.untaken.unwrap();
        assert_eq!(
            (&*untaken.location, untaken.load),
            (&**site.locations[0].name(), id)
        );
    }
}

/// An agent with instrumented servers, pressures and ports beside a kernel monitor: all that
/// there is to report at one location.
#[test]
fn s4_agent_and_monitor_report_all_they_know_of_one_location() {
    let (mut broker, site, mut session) = registered();
    let one = LoadValue::new(1.0).unwrap();
    let location = &site.locations[0];
    let kernel = Monitor::reported_loads().map(|id| (id, one));
    location.observe_loads(kernel, at(400)).unwrap();
    let host = [0, 1, 2, 3, 21, 22, 23, 24];
    let servers = [4, 16, 17, 18, 19, 20];
    let agent: Vec<_> = host
        .into_iter()
        .chain(servers)
        .map(|id| (LoadId(id), one))
        .collect();
    assert_eq!(agent.len(), 14);
    session.update_loads(&agent, &[ServerState::Down], at(500));
    speak(&mut session, peer(0), &mut broker, at(500));
    assert_eq!(session.state(), State::Registered);
    let counters = broker.counters();
    assert!(
        counters
            .received_by_outcome()
            .all(|(outcome, count)| count == 0 || !matches!(outcome, Outcome::TooManyLoads))
    );
    for (id, _) in agent.into_iter().chain(kernel) {
        assert!(location.last_load(id, at(500)).is_some(), "{id}");
    }
    let agent = broker.list_agents().next().unwrap();
    assert_eq!(
        agent.list_servers().next().unwrap().state,
        ServerState::Down
    );
}

/// A whole conversation: registration, reports, an alert, the end, a new beginning.
fn conversation() -> (Broker, Site, Session, Vec<Vec<u8>>) {
    let site = site(3);
    let mut broker = broker(1);
    broker.set_directory(Arc::clone(&site.directory));
    let mut said = Vec::new();
    let mut first = session(0, 7, at(0));
    for now in [0, 1000, 2000].map(at) {
        first.update_loads(&load(0.5), &[], now);
        site.alert(0, now == at(1000));
        said.extend(speak(&mut first, peer(0), &mut broker, now));
    }
    first.stop(at(3000));
    said.extend(speak(&mut first, peer(0), &mut broker, at(3000)));
    let mut session = session(0, 8, at(4000));
    session.update_loads(&load(0.6), &[], at(4000));
    said.extend(speak(&mut session, peer(0), &mut broker, at(4000)));
    let kinds: std::collections::HashSet<_> = said
        .iter()
        .map(|datagram| message::peek_header(datagram).unwrap().kind)
        .collect();
    assert_eq!(kinds.len(), 7, "{kinds:?}");
    (broker, site, session, said)
}

#[test]
fn no_message_works_truncated_or_with_a_byte_changed() {
    let (mut broker, site, mut session, said) = conversation();
    let before = state(&broker, &site, at(4000));
    for datagram in &said {
        for len in 0..datagram.len() {
            let (outcome, answer) = broker.receive_datagram(peer(0), &datagram[..len], at(4000));
            assert!(matches!(outcome, Outcome::Invalid(_)) && answer.is_none());
            assert!(
                session
                    .receive_datagram(&datagram[..len], at(4000))
                    .is_err()
            );
            let mut changed = datagram.clone();
            changed[len] ^= 0x10;
            let (outcome, answer) = broker.receive_datagram(peer(0), &changed, at(4000));
            assert!(matches!(outcome, Outcome::Invalid(_)) && answer.is_none());
            assert!(session.receive_datagram(&changed, at(4000)).is_err());
        }
    }
    assert_eq!(state(&broker, &site, at(4000)), before);
    assert_eq!(session.state(), State::Registered);
    assert!(sent(&mut session, at(4000)).is_empty());
}

#[test]
fn no_message_works_again_not_even_after_a_restart_of_the_broker() {
    let (mut broker, site, mut session, said) = conversation();
    // From where the agent is, and from elsewhere; soon, and when cookies are no good.
    for (from, now) in [(0, 4100), (9, 4200), (0, 24_500)] {
        for datagram in &said {
            let before = state(&broker, &site, at(now));
            let (outcome, answer) = broker.receive_datagram(peer(from), datagram, at(now));
            assert_eq!(state(&broker, &site, at(now)), before, "{outcome:?}");
            assert!(answer.is_none_or(|answer| answer.len() <= datagram.len()));
            let _ = session.receive_datagram(datagram, at(now));
            assert_eq!(session.state(), State::Registered);
        }
        // Neither of them is confused: what comes next is as good as ever.
        session.update_loads(&load(0.7), &[], at(now));
        for datagram in sent(&mut session, at(now)) {
            assert_eq!(
                broker.receive_datagram(peer(0), &datagram, at(now)).0,
                Outcome::Updated
            );
        }
    }
    let count: HashMap<_, _> = broker.counters().received_by_outcome().collect();
    assert!(count[&Outcome::Duplicate] > 0 && count[&Outcome::Replayed] > 0);

    let mut restarted = self::broker(2);
    restarted.set_directory(Arc::clone(&site.directory));
    for from in [0, 9] {
        for datagram in &said {
            let before = state(&restarted, &site, at(4300));
            let (_, answer) = restarted.receive_datagram(peer(from), datagram, at(4300));
            assert_eq!(state(&restarted, &site, at(4300)), before);
            assert!(answer.is_none_or(|answer| answer.len() <= datagram.len()));
        }
    }
    assert_eq!(restarted.list_agents().count(), 0);
}

#[test]
fn a_recorded_registration_does_not_displace_a_live_agent() {
    let mut broker = broker(1);
    let mut first = session(0, 7, at(0));
    let said = speak(&mut first, peer(0), &mut broker, at(0));
    // The agent restarts, and somebody sends what its first run has sent, in time.
    let mut second = session(0, 8, at(1000));
    speak(&mut second, peer(0), &mut broker, at(1000));
    let identifier = broker.list_agents().next().unwrap().identifier;
    for datagram in said {
        broker.receive_datagram(peer(0), &datagram, at(2000));
    }
    assert_eq!(broker.list_agents().next().unwrap().identifier, identifier);
    assert_eq!(second.identifier(), Some(identifier));
}

#[test]
fn a_recorded_registration_does_not_bring_a_forgotten_agent_back() {
    let mut broker = broker(1);
    let mut session = session(0, 7, at(0));
    let said = speak(&mut session, peer(0), &mut broker, at(0));
    broker.poll(at(61_000), &mut Vec::new());
    assert_eq!(broker.list_agents().count(), 0);
    for datagram in said {
        broker.receive_datagram(peer(0), &datagram, at(61_000));
    }
    assert_eq!(broker.list_agents().count(), 0);
}

/// A network between agents and a broker that does everything that networks do.
struct Net {
    now: u64,
    rng: fastrand::Rng,
    /// Datagrams under way: when each arrives, from whom, to whom.
    under_way: Vec<(u64, Peer, Option<Peer>, Vec<u8>)>,
    /// Datagrams that somebody on the way has recorded.
    recorded: Vec<(bool, Vec<u8>)>,
    /// Bytes that the broker got from, and sent to, each address.
    balance: HashMap<SocketAddr, (usize, usize)>,
    is_calm: bool,
}

impl Net {
    fn send(&mut self, from: Peer, to: Option<Peer>, datagram: Vec<u8>) {
        self.recorded.push((to.is_none(), datagram.clone()));
        if self.is_calm {
            self.under_way.push((self.now + 1, from, to, datagram));
            return;
        }
        let copies = [0, 0, 1, 1, 1, 1, 1, 2][self.rng.usize(..8)];
        for _ in 0..copies {
            let mut copy = datagram.clone();
            if self.rng.u8(..20) == 0 {
                let at = self.rng.usize(..copy.len());
                if self.rng.bool() {
                    copy.truncate(at)
                } else {
                    copy[at] ^= self.rng.u8(1..)
                }
            }
            let delay = match self.rng.u8(..10) {
                0 => self.rng.u64(..3000),
                _ => self.rng.u64(..100),
            };
            self.under_way.push((self.now + delay, from, to, copy));
        }
    }

    /// Somebody sends what was recorded, from an address of their choice.
    fn replay(&mut self, agents: u8) {
        if self.recorded.is_empty() {
            return;
        }
        let which = self.rng.usize(..self.recorded.len());
        let (to_broker, datagram) = self.recorded[which].clone();
        let somebody = peer(self.rng.u8(..agents));
        if to_broker {
            // 200 and above is where nobody is: those who are to be flooded.
            let from = if self.rng.bool() {
                somebody
            } else {
                peer(self.rng.u8(200..))
            };
            self.under_way.push((self.now, from, None, datagram));
        } else {
            self.under_way
                .push((self.now, peer(255), Some(somebody), datagram))
        }
    }

    fn arrived(&mut self) -> Vec<(u64, Peer, Option<Peer>, Vec<u8>)> {
        let now = self.now;
        let (mut arrived, rest) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition::<Vec<_>, _>(|(when, ..)| *when <= now);
        self.under_way = rest;
        self.rng.shuffle(&mut arrived);
        arrived
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However bad the network was, and whoever restarted: once it is calm, every agent
    /// is registered, the last report of each counts, and each knows its alerts. Until
    /// then nobody was sent more bytes than came from there without having asked.
    #[test]
    fn both_sides_come_to_terms_over_any_network(seed: u64) {
        const AGENTS: u8 = 4;
        let mut rng = fastrand::Rng::with_seed(seed);
        let site = site(AGENTS);
        let mut broker = broker(rng.u64(..));
        broker.set_directory(Arc::clone(&site.directory));
        let mut net = Net {
            now: 0,
            rng: rng.fork(),
            under_way: Vec::new(),
            recorded: Vec::new(),
            balance: HashMap::new(),
            is_calm: false,
        };
        // Each has an address that may change, and a time at which it measures.
        let mut sessions: Vec<(Session, Peer, u64)> = (0..AGENTS)
            .map(|n| (session(n, rng.u64(..), at(0)), peer(n), rng.u64(..1000)))
            .collect();
        let storm = rng.u64(5_000..90_000);
        let mut queries = Vec::new();
        while net.now < storm + 60_000 {
            net.now += 10;
            net.is_calm = net.now > storm;
            let now = at(net.now);
            if !net.is_calm {
                if rng.u16(..2000) == 0 {
                    // A broker that has restarted has another clock, too: it only shows
                    // in its cookies.
                    broker = self::broker(rng.u64(..));
                    broker.set_directory(Arc::clone(&site.directory));
                }
                if rng.u16(..1000) == 0 {
                    let n = rng.u8(..AGENTS);
                    sessions[usize::from(n)].0 = session(n, rng.u64(..), now);
                }
                if rng.u16(..1000) == 0 {
                    let n = rng.u8(..AGENTS);
                    sessions[usize::from(n)].1 = peer(n + AGENTS * rng.u8(..5));
                }
                if rng.u16(..200) == 0 {
                    let alerted = rng.bool();
                    site.alert(rng.usize(..site.slots.len()), alerted);
                }
                if rng.u16(..50) == 0 {
                    net.replay(AGENTS);
                }
            }
            for (_, from, to, datagram) in net.arrived() {
                match to {
                    None => {
                        let (outcome, answer) = broker.receive_datagram(from, &datagram, now);
                        let balance = net.balance.entry(from.address).or_default();
                        balance.0 += datagram.len();
                        if let Some(answer) = answer {
                            prop_assert!(answer.len() <= datagram.len(), "{:?}", outcome);
                            balance.1 += answer.len();
                            net.send(from, Some(from), answer);
                        }
                    }
                    Some(to) => {
                        for (session, address, _) in &mut sessions {
                            if *address == to {
                                let _ = session.receive_datagram(&datagram, now);
                            }
                        }
                    }
                }
            }
            broker.poll(now, &mut queries);
            for (to, query) in queries.drain(..) {
                net.balance.entry(to.address).or_default().1 += query.len();
                net.send(to, Some(to), query);
            }
            for (session, address, next) in &mut sessions {
                if net.now >= *next {
                    *next = net.now + session.measuring_interval().as_millis() as u64;
                    session.update_loads(&load((net.now % 1000) as f64), &[], now);
                }
                while let Poll::Send(datagram) = session.poll(now) {
                    prop_assert!(datagram.len() <= MAX_DATAGRAM);
                    net.send(*address, None, datagram);
                }
            }
        }

        let now = at(net.now);
        prop_assert_eq!(broker.list_agents().count(), usize::from(AGENTS));
        for (n, (session, address, _)) in sessions.iter().enumerate() {
            prop_assert_eq!(session.state(), State::Registered);
            let location = &site.locations[n];
            let mut agents = broker.list_agents();
            let agent = agents.find(|agent| Some(agent.identifier) == session.identifier());
            let agent = agent.unwrap();
            prop_assert_eq!(agent.registration, session.registration());
            prop_assert_eq!(agent.address, address.address);
            prop_assert!(agent.confirmed && agent.location_known);
            prop_assert!(now.since(agent.heard_at) <= Duration::from_millis(1100));
            let held = location.last_load(LoadId::CPU, now).unwrap();
            prop_assert!(now.since(held.at) <= Duration::from_millis(1100), "{:?}", held);
            let alerted = session.server_alerts(now).next().unwrap().is_some();
            prop_assert_eq!(alerted, site.slots[n].has_reason(Reason::Shedding));
        }
        for (address, (got, sent)) in &net.balance {
            // Nobody is there: whatever the broker sent, it was asked for it.
            if address.ip() >= peer(200).address.ip() {
                prop_assert!(sent <= got, "{address}: {sent} bytes for {got}");
            }
        }
    }

    /// Whatever the bytes are, neither side panics or believes them.
    #[test]
    fn random_bytes_are_no_message(mut bytes: Vec<u8>, is_likely: bool) {
        if is_likely {
            bytes.splice(0..0, *b"EvKl\x01");
        }
        let (mut broker, site, mut session) = registered();
        let before = state(&broker, &site, at(0));
        let (outcome, answer) = broker.receive_datagram(peer(0), &bytes, at(0));
        prop_assert!(matches!(outcome, Outcome::Invalid(_)));
        prop_assert!(answer.is_none() && session.receive_datagram(&bytes, at(0)).is_err());
        prop_assert_eq!(state(&broker, &site, at(0)), before);
    }

    /// An encoded message is decoded to the same.
    #[test]
    fn what_is_sealed_opens_to_the_same(
        nonce: u64,
        sequence: u64,
        weights in proptest::collection::vec(proptest::option::of(0.0f64..=1000.0), 0..20),
        loads in proptest::collection::btree_map(any::<u32>(), 0.0f32..1e12, 0..=16),
    ) {
        let server = |(n, weight): (u16, &Option<f64>)| Server {
            group: format!("group-{n}"),
            host: ["", "10.0.0.1", "fe80::1", "www.example"][usize::from(n % 4)].into(),
            port: 80 + n,
            weight: weight.map(|weight| Weight::new(weight).unwrap()),
        };
        let servers: Vec<_> = (0..).zip(&weights).map(server).collect();
        let states = [ServerState::Up, ServerState::Drain, ServerState::Down];
        let update = Update {
            servers: (0..servers.len()).map(|n| states[n % 3]).collect(),
            ..update(loads.into_iter().map(|(id, value)| (LoadId(id), value)).collect())
        };
        let registration = Registration::new("Räck 1", "a", servers).unwrap();
        let cookie = Cookie { issued: at(5), proof: [3; 16] };
        for body in [Body::Registration(cookie, registration), Body::Update(update), Body::Stop] {
            let header = Header { kind: body.kind(), key: 1, nonce, identifier: 7, sequence };
            let opened = message::open_message(&seal(header, &body), &keys(&[1]), true);
            prop_assert_eq!(opened, Ok((header, body)));
        }
    }
}

#[test]
fn an_agent_does_not_notice_that_another_process_takes_over() {
    let (mut before, site, mut session) = registered();
    speak(&mut session, peer(0), &mut before, at(1000));
    site.alert(0, true);
    speak(&mut session, peer(0), &mut before, at(1050));
    session.update_loads(&load(0.5), &[ServerState::Drain], at(1900));
    speak(&mut session, peer(0), &mut before, at(1900));
    let known = serde_json::to_string(&before.export_state(Some)).unwrap();
    // Its own secret is another one, and it knows the members only later.
    let mut after = broker(77);
    after.go_on(serde_json::from_str(&known).unwrap(), Some);
    after.set_directory(Arc::clone(&site.directory));
    {
        let (old, new) = (
            before.list_agents().next().unwrap(),
            after.list_agents().next().unwrap(),
        );
        assert_eq!(old.identifier, new.identifier);
        assert_eq!(old.registered_at, new.registered_at);
        let states: Vec<_> = new
            .list_servers()
            .map(|server| (server.state, server.alert))
            .collect();
        assert_eq!(
            states,
            [(ServerState::Drain, true), (ServerState::Up, false)]
        );
    }
    // It is told nothing that it knows, and what it says is understood.
    let mut queries = Vec::new();
    after.poll(at(2000), &mut queries);
    assert!(queries.is_empty(), "{queries:?}");
    session.update_loads(&load(0.25), &[ServerState::Up], at(2900));
    for datagram in sent(&mut session, at(2900)) {
        let (outcome, _) = after.receive_datagram(peer(0), &datagram, at(2900));
        assert_eq!(outcome, Outcome::Updated);
    }
    let value = site.locations[0]
        .last_load(LoadId::CPU, at(2900))
        .unwrap()
        .value;
    assert_eq!(value.get(), 0.25);
    // The lease of its alert is renewed, and its end arrives.
    speak(&mut session, peer(0), &mut after, at(3000));
    assert_eq!(session.server_alerts(at(4500)).flatten().count(), 1);
    site.alert(0, false);
    speak(&mut session, peer(0), &mut after, at(3100));
    assert_eq!(session.server_alerts(at(3100)).flatten().count(), 0);
    assert_eq!(session.state(), State::Registered);

    // Who was at a socket that is there no more registers again.
    let mut elsewhere = broker(78);
    elsewhere.go_on(serde_json::from_str(&known).unwrap(), |_| None);
    assert_eq!(elsewhere.list_agents().count(), 0);
}

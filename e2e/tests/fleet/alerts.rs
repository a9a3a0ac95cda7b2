//! Several balancers as processes: one decides upon the alerts of a group, all heed it, another
//! one takes over, and what nobody of them has sent is dropped and counted.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use evenkeel_e2e::agent::key_file;
use evenkeel_e2e::balancer::{Balancer, among_others, evenkeel_binary};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::netns::{BACK, FRONT, Pair};
use evenkeel_e2e::process::Signal;
use evenkeel_e2e::script::Script;
use evenkeel_e2e::wait_until;
use serde_json::Value;

const LOCATIONS: usize = 4;

fn configuration(name: &str, join: Option<SocketAddr>, keys: &Path) -> String {
    configuration_at("127.0.0.1", name, join, keys)
}

fn configuration_at(host: &str, name: &str, join: Option<SocketAddr>, keys: &Path) -> String {
    let member = |n: usize| {
        format!(
            "{{ address = \"127.0.0.1:{}\", location = \"l{n}\" }}",
            81 + n
        )
    };
    let members: Vec<String> = (0..LOCATIONS).map(member).collect();
    format!(
        "{}[rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\nstrategy = \"round_robin\"\n\
         load_max_age = \"1h\"\ngranularity = \"on_demand\"\n\
         alert = {{ threshold = 0.8, max_share = 0.5, shed_time = \"0s\" }}\n\
         members = [{}]\n",
        among_others(host, name, join, keys),
        members.join(", ")
    )
}

fn fleet(balancer: &Balancer) -> Value {
    balancer.admin_json("/v1/fleet")
}

fn address(balancer: &Balancer) -> SocketAddr {
    fleet(balancer)["address"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

fn start(count: usize, keys: &Path) -> Vec<Balancer> {
    let mut all = vec![Balancer::start(&configuration("lb-0", None, keys))];
    let first = address(&all[0]);
    for number in 1..count {
        let name = format!("lb-{number}");
        all.push(Balancer::start(&configuration(&name, Some(first), keys)));
    }
    all
}

/// Returns the owner that decides upon the alerts of the group, as each of the balancers names it.
fn decide(balancers: &[Balancer]) -> Vec<Option<String>> {
    let one = |balancer: &Balancer| {
        let fleet = fleet(balancer);
        Some(fleet["groups"][0]["decides"].as_str()?.to_owned())
    };
    balancers.iter().map(one).collect()
}

/// Waits until all name the same one of them, and answers which. The names are asked for before the states, so they may
/// still be of a balancer that has left since.
fn settled(balancers: &[Balancer]) -> usize {
    let mut owner = None;
    wait_until("all say who decides", || {
        let decide = decide(balancers);
        let mut fleets = balancers.iter().map(fleet);
        let whole = fleets.all(|fleet| {
            let others = fleet["balancers"].as_array().unwrap().iter();
            let up = others.filter(|other| other["state"] == "up").count();
            fleet["ready"] == true && up == balancers.len() - 1
        });
        let same = decide.iter().all(|one| one.is_some() && *one == decide[0]);
        let is_owner =
            |balancer: &Balancer| fleet(balancer)["name"].as_str() == decide[0].as_deref();
        owner = balancers.iter().position(is_owner);
        whole && same && owner.is_some()
    });
    owner.unwrap()
}

fn report(balancer: &Balancer, location: usize, cpu: f64) {
    balancer.report_load(&format!("l{location}"), cpu);
}

fn alerted(balancer: &Balancer) -> Vec<usize> {
    let locations = balancer.admin_json("/v1/locations");
    let locations = locations.as_array().unwrap().iter();
    let alerted = locations.filter(|location| location["alert"] == true);
    let names = alerted.map(|location| location["name"].as_str().unwrap()[1..].parse().unwrap());
    let mut numbers: Vec<usize> = names.collect();
    numbers.sort_unstable();
    numbers
}

fn wait_for_alerts(balancers: &[Balancer], wanted: &[usize]) {
    for balancer in balancers {
        wait_until(&format!("alerts are {wanted:?}"), || {
            alerted(balancer) == wanted
        });
    }
}

#[test]
fn one_decides_all_heed_it_and_another_one_takes_over() {
    let folder = Folder::new();
    let keys = folder.write_private("keys", "1:000102030405060708090a0b0c0d0e0f");
    let mut all = start(10, &keys);
    let holder = settled(&all);
    for balancer in &all {
        (0..LOCATIONS).for_each(|location| report(balancer, location, 0.3));
    }
    // What another one reads is not what counts.
    let other = (holder + 1) % all.len();
    report(&all[other], 2, 0.95);
    report(&all[holder], 1, 0.95);
    let reported = Instant::now();
    wait_for_alerts(&all, &[1]);
    println!("all knew of an alert after {:?}", reported.elapsed());

    // All of them are too much for the group.
    for balancer in &all {
        (0..LOCATIONS).for_each(|location| report(balancer, location, 0.9));
        report(balancer, 1, 0.95);
    }
    let mut now = Vec::new();
    wait_until("two of them are under alert", || {
        now = alerted(&all[holder]);
        now.len() == 2 && now.contains(&1)
    });
    wait_for_alerts(&all, &now);

    // One of them recovers, and there is room for another one.
    let well = now.iter().copied().find(|location| *location != 1).unwrap();
    all.iter().for_each(|balancer| report(balancer, well, 0.1));
    wait_until("another one of them is under alert", || {
        now = alerted(&all[holder]);
        now.len() == 2 && now.contains(&1) && !now.contains(&well)
    });
    wait_for_alerts(&all, &now);

    all[holder].signal(Signal::KILL);
    let killed = Instant::now();
    drop(all.remove(holder));
    let next = settled(&all);
    println!("all knew who decides now after {:?}", killed.elapsed());
    wait_for_alerts(&all, &now);
    all.iter().for_each(|balancer| report(balancer, 1, 0.1));
    let left: Vec<usize> = now.into_iter().filter(|location| *location != 1).collect();
    // For a minute it counts, as the one that is killed might still heed it.
    wait_for_alerts(&all, &left);

    // One that is told to end says so.
    all[next].signal(Signal::TERM);
    all.remove(next);
    settled(&all);
}

#[test]
fn what_no_balancer_has_sent_is_dropped_and_counted() {
    let folder = Folder::new();
    let keys = folder.write_private("keys", "1:000102030405060708090a0b0c0d0e0f");
    let all = start(2, &keys);
    settled(&all);
    let others = Folder::new();
    let other = others.write_private("keys", "1:ff0102030405060708090a0b0c0d0e0f");
    let stranger = Balancer::start(&configuration("stranger", Some(address(&all[0])), &other));
    let counted = |result: &str| -> u64 {
        let fleet = fleet(&all[0]);
        let mut counts = fleet["datagrams"].as_array().unwrap().iter();
        let count = counts.find(|count| count["result"] == result).unwrap();
        count["count"].as_u64().unwrap()
    };
    wait_until("the stranger's datagrams are counted", || {
        counted("mac") > 0
    });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(b"EvFl", address(&all[0])).unwrap();
    socket.send_to(&[0; 100], address(&all[0])).unwrap();
    socket.send_to(&[0; 2000], address(&all[0])).unwrap();
    wait_until("they are counted", || {
        counted("truncated") > 0 && counted("magic") > 0 && counted("oversized") > 0
    });
    assert_eq!(fleet(&stranger)["balancers"], serde_json::json!([]));
    assert_eq!(fleet(&all[0])["balancers"].as_array().unwrap().len(), 1);
    // One that has not run for a second counts as gone until it is heard again.
    wait_until("the other one is up", || {
        all[0].read_metric("evenkeel_fleet_balancers{state=\"up\"}") == Some(1.0)
    });
}

#[test]
fn a_fleet_comes_and_goes_with_the_configuration_and_survives_an_upgrade() {
    let folder = Folder::new();
    let keys = folder.write_private("keys", "1:000102030405060708090a0b0c0d0e0f");
    let mut all = start(2, &keys);
    let holder = settled(&all);
    for balancer in &all {
        (0..LOCATIONS).for_each(|location| report(balancer, location, 0.3));
        report(balancer, 0, 0.95);
    }
    wait_for_alerts(&all, &[0]);
    all[holder].upgrade().unwrap();
    settled(&all);
    wait_for_alerts(&all, &[0]);

    // Without the table it is alone, and decides by itself.
    let name = fleet(&all[1])["name"].as_str().unwrap().to_owned();
    let alone = configuration(&name, None, &keys);
    let (before, after) = alone.split_once("[fleet]").unwrap();
    let (_, after) = after.split_once("[rule.web]").unwrap();
    all[1].reconfigure(&format!("{before}[rule.web]{after}"));
    assert_eq!(fleet(&all[1]), Value::Null);
    report(&all[1], 3, 0.99);
    wait_until("it decides by itself", || alerted(&all[1]) == [0, 3]);
    wait_until("the other one has noticed", || {
        fleet(&all[0])["balancers"][0]["state"] == "gone"
    });
    all[1].reconfigure(&configuration(&name, Some(address(&all[0])), &keys));
    settled(&all);
    wait_until("both heed the same", || {
        alerted(&all[0]) == alerted(&all[1])
    });
}

/// Nothing that one machine sends reaches the other one, and nobody is told; or all does again.
fn cut(pair: &Pair, is_cut: bool) {
    for (machine, interface, other) in [
        (&pair.front, FRONT, "10.77.0.2"),
        (&pair.back, BACK, "10.77.0.1"),
    ] {
        let mut command = machine.command("ip");
        command.args(["neigh", if is_cut { "replace" } else { "del" }, other]);
        if is_cut {
            // The address of no network card.
            command.args(["lladdr", "02:00:00:00:00:99", "nud", "permanent"]);
        }
        assert!(command.args(["dev", interface]).status().unwrap().success());
    }
}

#[test]
fn two_parts_that_do_not_reach_each_other_go_on_alone_and_meet_again() {
    let Some(pair) = Pair::new() else {
        return;
    };
    let folder = Folder::new();
    let keys = folder.write_private("keys", "1:000102030405060708090a0b0c0d0e0f");
    let machines = [&pair.front, &pair.front, &pair.back, &pair.back];
    let mut all: Vec<Balancer> = Vec::new();
    for (number, machine) in machines.iter().enumerate() {
        let host = if number < 2 { "10.77.0.1" } else { "10.77.0.2" };
        let join = all
            .first()
            .map(|first| machines[0].run_inside(|| address(first)));
        let text = configuration_at(host, &format!("lb-{number}"), join, &keys);
        all.push(Balancer::start_by(&text, |_| {
            machine.command(evenkeel_binary())
        }));
    }
    // Whoever decides, if all of these say the same, and that nobody else is there.
    let decides = |some: Range<usize>| -> Option<String> {
        let said: BTreeSet<Option<String>> = some
            .clone()
            .map(|number| {
                let fleet = machines[number].run_inside(|| fleet(&all[number]));
                let others = fleet["balancers"].as_array().unwrap().iter();
                let up = others.filter(|other| other["state"] == "up").count();
                let decides = fleet["groups"][0]["decides"].as_str()?;
                (up + 1 == some.len()).then(|| decides.to_owned())
            })
            .collect();
        let mut said = said.into_iter();
        said.next().filter(|_| said.next().is_none()).flatten()
    };
    let report = |load: f64, locations: &[usize]| {
        for (balancer, machine) in all.iter().zip(machines) {
            let report = |location: &usize| balancer.report_load(&format!("l{location}"), load);
            machine.run_inside(|| locations.iter().for_each(report));
        }
    };
    let have = |some: Range<usize>, wanted: &[usize]| {
        wait_until(&format!("{some:?} have alerts {wanted:?}"), || {
            let alerts = |number: usize| machines[number].run_inside(|| alerted(&all[number]));
            some.clone().all(|number| alerts(number) == wanted)
        });
    };
    wait_until("all say who decides", || decides(0..4).is_some());
    report(0.3, &[0, 1, 2, 3]);
    report(0.95, &[1]);
    have(0..4, &[1]);

    cut(&pair, true);
    let mut both = [None, None];
    wait_until("each part has one that decides", || {
        both = [decides(0..2), decides(2..4)];
        both.iter().all(Option::is_some)
    });
    assert_ne!(both[0], both[1]);
    // What is under alert stays so, and there is room for one more.
    have(0..4, &[1]);
    report(0.9, &[2]);
    have(0..4, &[1, 2]);

    cut(&pair, false);
    wait_until("one decides for all", || decides(0..4).is_some());
    have(0..4, &[1, 2]);
    report(0.1, &[1, 2]);
    have(0..4, &[]);
}

#[test]
fn a_balancer_without_requests_knows_how_long_they_take() {
    let folder = Folder::new();
    let keys = folder.write_private("keys", "1:000102030405060708090a0b0c0d0e0f");
    let fast = Member::answering_with(|_| ok_response("fast"));
    let slow = Member::answering_with(|_| {
        // Its work.
        std::thread::sleep(Duration::from_millis(300));
        ok_response("slow")
    });
    let text = |name: &str, join: Option<SocketAddr>| {
        format!(
            "{}[rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\nstrategy = \"peak_ewma\"\n\
             latency_decay = \"1h\"\nejection = {{ window = \"60s\" }}\nmembers = [\"{}\", \"{}\"]\n",
            among_others("127.0.0.1", name, join, &keys),
            fast.address(),
            slow.address()
        )
    };
    let ask = |balancer: &Balancer| -> String {
        let mut wire = balancer.connect();
        wire.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        wire.read_response().text().to_owned()
    };
    let latency = |balancer: &Balancer, of: &Member| {
        let member = balancer.member_status("web", of.address());
        member["latency_ms"].as_f64()
    };
    let first = Balancer::start(&text("lb-0", None));
    let second = Balancer::start(&text("lb-1", Some(address(&first))));
    let both = [first, second];
    let holder = settled(&both);
    let (knows, learns) = (&both[holder], &both[1 - holder]);
    // Chance may send the first request to either of them.
    wait_until(
        "the slow one is known to be slow, and the other one, too",
        || {
            ask(knows);
            let is_slow = latency(knows, &slow).is_some_and(|ms| ms >= 300.0);
            is_slow && latency(knows, &fast).is_some()
        },
    );
    wait_until("the other balancer knows, too", || {
        let is_slow = latency(learns, &slow).is_some_and(|ms| ms >= 200.0);
        is_slow && latency(learns, &fast).is_some()
    });
    assert_eq!(ask(learns), "fast");
}

#[test]
fn requests_of_all_balancers_count_where_it_is_asked_for() {
    let folder = Folder::new();
    let keys = folder.write_private("keys", "1:000102030405060708090a0b0c0d0e0f");
    // Requests to `busy` stay until the test lets them go.
    let gate = Arc::new(Barrier::new(4));
    let held = Arc::clone(&gate);
    let busy = Member::answering_with(move |request| {
        if request.second_word() == "/stay" {
            held.wait();
        }
        ok_response("busy")
    });
    let idle = Member::answering_with(|_| ok_response("idle"));
    let text = |name: &str, join: Option<SocketAddr>, members: &str| {
        format!(
            "{}in_flight = true\n\
             [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\nstrategy = \"least_connection\"\nload = \"in_flight\"\n\
             members = [{members}]\n",
            among_others("127.0.0.1", name, join, &keys)
        )
    };
    let member = |of: &Member, name: &str| {
        format!(
            "{{ address = \"{}\", location = \"{name}\" }}",
            of.address()
        )
    };
    let (of_busy, of_idle) = (member(&busy, "busy"), member(&idle, "idle"));
    let first = Balancer::start(&text("lb-0", None, &of_busy));
    let join = Some(address(&first));
    let second = Balancer::start(&text("lb-1", join, &format!("{of_busy}, {of_idle}")));
    let both = [first, second];
    wait_until("they have found each other", || {
        both.iter()
            .all(|one| fleet(one)["balancers"][0]["state"] == "up")
    });
    let mut clients: Vec<_> = (0..3).map(|_| both[0].connect()).collect();
    for client in &mut clients {
        client.send("GET /stay HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    }
    let in_flight = |balancer: &Balancer| -> Option<f64> {
        let locations = balancer.admin_json("/v1/locations");
        let mut locations = locations.as_array().unwrap().iter();
        let busy = locations.find(|location| location["name"] == "busy")?;
        let mut loads = busy["loads"].as_array()?.iter();
        loads.find(|load| load["id"] == "in_flight")?["value"].as_f64()
    };
    wait_until("both know of the first one's requests", || {
        both.iter().all(|balancer| in_flight(balancer) == Some(3.0))
    });
    for _ in 0..8 {
        let mut wire = both[1].connect();
        wire.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(wire.read_response().text(), "idle");
    }
    gate.wait();
    for client in &mut clients {
        assert_eq!(client.read_response().text(), "busy");
    }
    wait_until("they are over for both", || {
        both.iter().all(|balancer| in_flight(balancer) == Some(0.0))
    });
}

/// A back-end whose kernel load monitor can be asked, and who has asked it.
struct Asked {
    address: SocketAddr,
    askers: Arc<Mutex<Vec<SocketAddr>>>,
    is_silent: Arc<AtomicBool>,
    _responder: Script,
}

impl Asked {
    fn start(key: &Path) -> Self {
        let key = key.to_str().unwrap();
        let mut command = Command::new(evenkeel_binary());
        command.args(["kernel", "serve", "--respond", "127.0.0.1:0"]);
        command.args(["--allow", "127.0.0.0/8", "--host", "web", "--rate", "0"]);
        command.args(["--key-file", key]);
        let responder = Script::start(&mut command);
        let said = responder.read_until("ready");
        let mut said = said.iter();
        let at = said.find_map(|line| line.strip_prefix("listening: respond on "));
        let inside = UdpSocket::bind("127.0.0.1:0").unwrap();
        inside.connect(at.unwrap()).unwrap();
        inside
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
        let asked = Asked {
            address: outside.local_addr().unwrap(),
            askers: Arc::default(),
            is_silent: Arc::default(),
            _responder: responder,
        };
        let (askers, is_silent) = (Arc::clone(&asked.askers), Arc::clone(&asked.is_silent));
        std::thread::spawn(move || {
            let mut datagram = [0; 2048];
            while let Ok((len, from)) = outside.recv_from(&mut datagram) {
                askers.lock().unwrap().push(from);
                if is_silent.load(Ordering::Relaxed) {
                    continue;
                }
                inside.send(&datagram[..len]).unwrap();
                if let Ok(len) = inside.recv(&mut datagram) {
                    outside.send_to(&datagram[..len], from).unwrap();
                }
            }
        });
        asked
    }

    /// Returns the addresses that send the next `count` queries.
    fn next(&self, count: usize) -> BTreeSet<SocketAddr> {
        self.askers.lock().unwrap().clear();
        wait_until("it is asked", || self.askers.lock().unwrap().len() >= count);
        self.askers.lock().unwrap().iter().copied().collect()
    }

    /// Waits until so many balancers ask it, and no others.
    fn wait_for(&self, askers: usize) -> BTreeSet<SocketAddr> {
        let mut found = BTreeSet::new();
        wait_until(&format!("{askers} ask"), || {
            found = self.next(20 * askers);
            found.len() == askers
        });
        found
    }
}

/// Returns the state of the location of a balancer's monitor, and whether its load is known.
fn monitored(balancer: &Balancer) -> (String, bool) {
    let monitor = balancer.admin_json("/v1/monitor/locations");
    let locations = balancer.admin_json("/v1/locations");
    let mut locations = locations.as_array().unwrap().iter();
    let web = locations.find(|location| location["name"] == "web");
    let mut loads = web.unwrap()["loads"].as_array().unwrap().iter();
    let composite = loads.find(|load| load["id"] == "composite");
    let is_known = composite.is_some_and(|load| load["expired"] == false);
    (monitor[0]["state"].as_str().unwrap().to_owned(), is_known)
}

#[test]
fn one_balancer_asks_a_back_end_for_its_load_and_all_know_it() {
    let folder = Folder::new();
    let keys = folder.write_private("keys", "1:000102030405060708090a0b0c0d0e0f");
    let key = key_file(&folder);
    let asked = Asked::start(&key);
    let text = |name: &str, join: Option<SocketAddr>, shared: bool| {
        format!(
            "{}[rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\nstrategy = \"weighted_by_load\"\n\
             load = \"composite\"\nmembers = [{{ address = \"127.0.0.1:81\", location = \"web\" }}]\n\
             monitor = {{ address = \"{}\", key_file = {key:?}, host = \"web\", shared = {shared} }}\n",
            among_others("127.0.0.1", name, join, &keys),
            asked.address,
        )
    };
    let mut balancers = vec![Balancer::start(&text("lb-0", None, true))];
    let first = address(&balancers[0]);
    for name in ["lb-1", "lb-2"] {
        balancers.push(Balancer::start(&text(name, Some(first), true)));
    }
    for _ in 0..2 {
        let reads = settled(&balancers);
        let reader = asked.wait_for(1);
        for (number, balancer) in balancers.iter().enumerate() {
            let state = if number == reads {
                "fresh"
            } else {
                "elsewhere"
            };
            wait_until(&format!("{number} knows the load: {state}"), || {
                monitored(balancer) == (state.to_owned(), true)
            });
        }
        let read = |balancer: &Balancer, by: &str| {
            let series = format!("evenkeel_fleet_locations_read{{by=\"{by}\"}}");
            balancer.read_metric(&series)
        };
        for (number, balancer) in balancers.iter().enumerate() {
            let (this, others) = if number == reads {
                (1.0, 0.0)
            } else {
                (0.0, 1.0)
            };
            wait_until("who reads is counted", || {
                (read(balancer, "this"), read(balancer, "others")) == (Some(this), Some(others))
            });
        }
        // One that does not answer any more is unknown to all, and asked by one.
        asked.is_silent.store(true, Ordering::Relaxed);
        for balancer in &balancers {
            wait_until("the load is unknown", || !monitored(balancer).1);
        }
        assert_eq!(asked.next(5), reader);
        asked.is_silent.store(false, Ordering::Relaxed);
        for balancer in &balancers {
            wait_until("the load is known again", || monitored(balancer).1);
        }
        // Another one takes its place.
        drop(balancers.remove(reads));
        let other = asked.wait_for(1);
        assert_ne!(other, reader);
        if balancers.len() == 1 {
            break;
        }
    }
    assert_eq!(monitored(&balancers[0]), ("fresh".to_owned(), true));
    // Where it is not wanted, each asks.
    let name = fleet(&balancers[0])["name"].as_str().unwrap().to_owned();
    let join = Some(address(&balancers[0]));
    balancers[0].reconfigure(&text(&name, join, false));
    balancers.push(Balancer::start(&text("lb-9", join, false)));
    asked.wait_for(2);
}

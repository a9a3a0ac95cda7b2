//! Balancing by loads that are read from back-ends many times a second: traffic leaves whoever
//! is loaded by something that the balancer does not see, and comes back; whatever else a
//! responder says moves nothing.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary};
use evenkeel_e2e::cgroup::CpuQuota;
use evenkeel_e2e::folder::{Folder, unused_pin};
use evenkeel_e2e::member::{Member, Signal, ok_response};
use evenkeel_e2e::netns::Namespace;
use evenkeel_e2e::process::report_skipped;
use evenkeel_e2e::wire::Wire;
use evenkeel_e2e::{HANG, wait_until};
use evenkeel_kernel::query::{ENVELOPE, Key, LONGEST, Query};
use evenkeel_kernel::record::{Available, Base, Scope, Source, Whole};
use serde_json::Value;

const KEY: &str = "7:00112233445566778899aabbccddeeff";
const OTHER_KEY: &str = "7:ffeeddccbbaa99887766554433221100";

// What a back-end says.

/// Answer of a station.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    /// A load of so many tasks per CPU.
    Load(f64),
    Nothing,
    /// Bytes of chance, many times.
    Garbage,
    /// A load of 0 that another key vouches for.
    OtherKey,
    /// A load of 0, from another port.
    Elsewhere,
    /// The answer to the first query of all, when the load was 0.
    Old,
    /// A load of 0 in a record that was being written.
    Torn,
    /// A load of 0 of no CPU.
    NoCpu,
    /// A load of 0 for another query.
    OtherQuery,
    /// A load of 0 in an answer that is cut off.
    Short,
}

/// A responder that says what it is told to.
struct Station {
    address: SocketAddr,
    says: Arc<Mutex<Says>>,
    asked: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Station {
    fn start(load: f64) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let limit = Some(Duration::from_millis(20));
        socket.set_read_timeout(limit).expect("it takes a limit");
        let mut station = Station {
            address: socket.local_addr().expect("an address"),
            says: Arc::new(Mutex::new(Says::Load(load))),
            asked: Arc::default(),
            ends: Arc::default(),
            thread: None,
        };
        let (says, asked) = (Arc::clone(&station.says), Arc::clone(&station.asked));
        let ends = Arc::clone(&station.ends);
        station.thread = Some(thread::spawn(move || {
            let mut first = None;
            let mut datagram = [0; LONGEST + 1];
            while !ends.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut datagram) else {
                    continue;
                };
                let now = *says.lock().expect("no panic");
                answer(&socket, &datagram[..length], from, now, &mut first);
                asked.fetch_add(1, Ordering::Relaxed);
            }
        }));
        station
    }

    /// Says this from now on; waits until it has been asked twice, so that it was heard.
    fn say(&self, what: Says) {
        *self.says.lock().expect("no panic") = what;
        let before = self.asked.load(Ordering::Relaxed);
        wait_until("the station is asked", || {
            self.asked.load(Ordering::Relaxed) > before + 1
        });
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

fn answer(
    socket: &UdpSocket,
    asked: &[u8],
    from: SocketAddr,
    says: Says,
    first: &mut Option<Vec<u8>>,
) {
    let keys = [Key::parse(KEY).expect("a key")];
    let other = Key::parse(OTHER_KEY).expect("a key");
    let (query, key) = Query::parse(asked, &keys).expect("a query of ours");
    let load = match says {
        Says::Load(load) => load,
        _ => 0.0,
    };
    let mut record = record(load);
    match says {
        Says::Torn => record.base.begin += 1,
        Says::NoCpu => record.base.capacity = 0,
        _ => {}
    }
    let made = |query: &Query, key: &Key| {
        let mut datagram = asked.to_vec();
        record.copy(query.first_cpu, &mut datagram[ENVELOPE..]);
        query.answer(key, &mut datagram);
        datagram
    };
    first.get_or_insert_with(|| made(&query, key));
    let send = |datagram: &[u8]| {
        // The one that asked may be gone.
        let _ = socket.send_to(datagram, from);
    };
    match says {
        Says::Nothing => {}
        Says::Load(_) | Says::Torn | Says::NoCpu => send(&made(&query, key)),
        Says::Garbage => {
            for _ in 0..200 {
                let length = fastrand::usize(..LONGEST);
                let mut bytes: Vec<u8> = (0..length).map(|_| fastrand::u8(..)).collect();
                // Some get further than others.
                let same = fastrand::usize(..=length.min(ENVELOPE));
                bytes[..same].copy_from_slice(&asked[..same]);
                send(&bytes);
            }
        }
        Says::OtherKey => send(&made(&query, &other)),
        Says::Elsewhere => {
            let elsewhere = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let _ = elsewhere.send_to(&made(&query, key), from);
        }
        Says::Old => send(first.as_ref().expect("it was asked")),
        Says::OtherQuery => {
            let number = query.number + 1_000_000;
            send(&made(&Query { number, ..query }, key));
        }
        Says::Short => {
            let datagram = made(&query, key);
            send(&datagram[..datagram.len() - 1]);
        }
    }
}

/// A record of one CPU with so many tasks.
fn record(load: f64) -> Whole {
    static TIME: AtomicU64 = AtomicU64::new(1_000_000_000);
    let mut base = Base::new(Source::Responder, Scope::Machine);
    (base.epoch, base.cpus, base.capacity) = (1, 1, 1000);
    base.time_ns = TIME.fetch_add(1_000_000, Ordering::Relaxed);
    base.available = Available::RUNNING_AVERAGE;
    base.running_average = (load * 2048.0) as u32;
    Whole {
        base,
        ports: Vec::new(),
        cpus: Vec::new(),
    }
}

// The balancer and who asks it.

/// A member that answers with its name.
fn named(name: &'static str) -> Member {
    Member::answering_with(move |_| ok_response(name))
}

/// Settings with which the load of a location is read.
struct Monitored<'a> {
    location: &'a str,
    address: SocketAddr,
    target: u16,
}

/// Rules with their members, and their locations.
fn config(rules: &[(&str, &[(SocketAddr, &str)])], monitored: &[Monitored<'_>]) -> String {
    let mut text = String::from("workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n");
    for (rule, members) in rules {
        let members: Vec<String> = members
            .iter()
            .map(|(address, location)| {
                format!("{{ address = \"{address}\", location = \"{location}\" }}")
            })
            .collect();
        text += &format!(
            "[rule.{rule}]\n\
             listen = \"127.0.0.1:0\"\n\
             protocol = \"http\"\n\
             strategy = {{ name = \"k_least_loaded\", k = 1 }}\n\
             load = \"composite\"\n\
             slow_start = \"0s\"\n\
             members = [{}]\n",
            members.join(", ")
        );
    }
    for Monitored {
        location,
        address,
        target,
    } in monitored
    {
        text += &format!(
            "[location.{location}.monitor]\n\
             type = \"kernel\"\n\
             address = \"{address}\"\n\
             target = {target}\n\
             interval = \"20ms\"\n\
             key_file = \"monitor.key\"\n"
        );
    }
    text
}

/// Two members with a station each.
struct Two {
    balancer: Balancer,
    members: [Member; 2],
    stations: [Station; 2],
}

impl Two {
    fn config(members: &[Member; 2], stations: [SocketAddr; 2]) -> String {
        let [one, two] = [&members[0], &members[1]].map(Member::address);
        let monitored = [("one", stations[0]), ("two", stations[1])];
        let monitored = monitored.map(|(location, address)| Monitored {
            location,
            address,
            target: 0,
        });
        config(&[("web", &[(one, "one"), (two, "two")])], &monitored)
    }

    fn start() -> Self {
        let members = [named("one"), named("two")];
        let stations = [Station::start(0.0), Station::start(0.0)];
        let addresses = [stations[0].address, stations[1].address];
        let balancer = balancer(&Self::config(&members, addresses));
        Two {
            balancer,
            members,
            stations,
        }
    }
}

/// A balancer with the key in its folder.
fn balancer(config: &str) -> Balancer {
    Balancer::start_with(config, |folder| write_key(folder, "monitor.key", KEY))
}

fn write_key(folder: &Folder, name: &str, key: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.write(name, key);
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, private).expect("its permissions are set");
}

/// A client that asks one thing after the other.
struct Client(Wire);

impl Client {
    fn of(balancer: &Balancer, rule: &str) -> Self {
        Client(Wire::connect(balancer.address(rule)))
    }

    /// The name of the member that answers.
    fn ask(&mut self) -> String {
        self.0.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.0.read_response().text().to_owned()
    }

    /// Shares of the next requests.
    fn shares(&mut self, requests: usize) -> HashMap<String, f64> {
        let mut shares = HashMap::new();
        for _ in 0..requests {
            *shares.entry(self.ask()).or_default() += 1.0 / requests as f64;
            thread::sleep(Duration::from_millis(1));
        }
        shares
    }

    /// Waits until a share of the requests is within limits.
    fn wait_for_share(&mut self, member: &str, least: f64, most: f64) {
        let mut seen = 0.0;
        let limit = Instant::now() + HANG;
        while Instant::now() < limit {
            seen = self.shares(50).get(member).copied().unwrap_or(0.0);
            if (least..=most).contains(&seen) {
                return;
            }
        }
        panic!("{member} gets {seen} of the requests, not {least} to {most}");
    }

    /// Asks until a member gets nothing for half a second; how long after `began` it still
    /// got something.
    fn until_left(&mut self, member: &str, began: Instant) -> Duration {
        let mut last = began;
        while last.elapsed() < Duration::from_millis(500) {
            if self.ask() == member {
                last = Instant::now();
            }
            assert!(began.elapsed() < HANG, "traffic never leaves {member}");
            thread::sleep(Duration::from_millis(1));
        }
        last - began
    }

    /// Asks until a member answers; how long it took.
    fn until_back(&mut self, member: &str) -> Duration {
        let began = Instant::now();
        while self.ask() != member {
            assert!(
                began.elapsed() < HANG,
                "traffic never comes back to {member}"
            );
            thread::sleep(Duration::from_millis(1));
        }
        began.elapsed()
    }
}

/// The load of a location that decisions go by, unless it is unknown.
fn composite(balancer: &Balancer, location: &str) -> Option<f64> {
    let loads = balancer
        .run_ctl("loads --json")
        .expect("the admin API answers");
    let loads: Value = serde_json::from_str(&loads).expect("JSON");
    let locations = loads["locations"].as_array().or(loads.as_array());
    let mut locations = locations.expect("locations").iter();
    let found = locations.find(|known| known["name"] == location)?;
    let mut loads = found["loads"].as_array()?.iter();
    let load = loads.find(|load| load["id"] == "composite" || load["name"] == "composite")?;
    load["value"].as_f64()
}

// Loads that a station makes up.

#[test]
fn traffic_leaves_a_loaded_location_and_comes_back() {
    let two = Two::start();
    let mut client = Client::of(&two.balancer, "web");
    client.wait_for_share("one", 0.2, 0.8);
    *two.stations[0].says.lock().expect("no panic") = Says::Load(20.0);
    let left = client.until_left("one", Instant::now());
    *two.stations[0].says.lock().expect("no panic") = Says::Load(0.0);
    let back = client.until_back("one");
    println!("left {left:?} after the load rose, back {back:?} after it fell");
    client.wait_for_share("one", 0.2, 0.8);
    assert!(!two.members[0].seen_events().is_empty());
}

/// Quick start of the manual: two members, whose load a kernel tells.
#[test]
fn b1_b2_the_quick_start_follows_the_load() {
    follows_the_load("strategy = \"k_least_loaded\"\n");
}

#[test]
fn b2_a_monitored_group_without_a_strategy_follows_the_load() {
    follows_the_load("");
}

fn follows_the_load(strategy: &str) {
    let members = [named("one"), named("two")];
    let stations = [Station::start(0.0), Station::start(0.0)];
    let listed = members.each_ref().map(Member::address);
    let balancer = balancer(&format!(
        "workers = 1\n\
             [admin]\n\
             listen = \"127.0.0.1:0\"\n\
             [rule.web]\n\
             listen = \"127.0.0.1:0\"\n\
             protocol = \"http\"\n\
             members = [{{ address = \"{}\", location = \"one\" }}, \
                        {{ address = \"{}\", location = \"two\" }}]\n\
             {strategy}\
             [rule.web.monitor]\n\
             key_file = \"monitor.key\"\n\
             [location.one.monitor]\n\
             key_file = \"monitor.key\"\n\
             address = \"{}\"\n\
             [location.two.monitor]\n\
             key_file = \"monitor.key\"\n\
             address = \"{}\"\n",
        listed[0], listed[1], stations[0].address, stations[1].address,
    ));
    let mut client = Client::of(&balancer, "web");
    client.wait_for_share("one", 0.3, 0.7);
    stations[0].say(Says::Load(8.0));
    client.wait_for_share("one", 0.0, 0.1);
    stations[0].say(Says::Load(0.0));
    stations[1].say(Says::Load(8.0));
    client.wait_for_share("two", 0.0, 0.1);
    stations[1].say(Says::Load(0.0));
    client.wait_for_share("one", 0.3, 0.7);
}

#[test]
fn a_location_that_does_not_answer_is_neither_idle_nor_full() {
    let two = Two::start();
    let mut client = Client::of(&two.balancer, "web");
    two.stations[0].say(Says::Load(20.0));
    client.until_left("one", Instant::now());
    // What was known does not count any more.
    two.stations[0].say(Says::Nothing);
    client.wait_for_share("one", 0.25, 0.75);
    // Nobody answers: it goes on by requests in flight.
    two.stations[1].say(Says::Nothing);
    client.wait_for_share("one", 0.25, 0.75);
    two.stations[0].say(Says::Load(20.0));
    two.stations[1].say(Says::Load(0.0));
    client.until_left("one", Instant::now());
}

#[test]
fn other_sources_count_while_the_monitor_has_no_news() {
    let two = Two::start();
    let mut client = Client::of(&two.balancer, "web");
    client.wait_for_share("one", 0.2, 0.8);
    let push = |load: &str| {
        let words = format!("loads push one composite={load}");
        two.balancer.run_ctl(&words).expect("it is taken");
    };
    // The monitor knows better.
    push("50");
    client.wait_for_share("one", 0.2, 0.8);
    two.stations[0].say(Says::Nothing);
    let limit = Instant::now() + HANG;
    loop {
        push("50");
        if !client.shares(50).contains_key("one") {
            break;
        }
        assert!(Instant::now() < limit, "what is pushed never counts");
    }
    two.stations[0].say(Says::Load(0.0));
    client.wait_for_share("one", 0.2, 0.8);
}

#[test]
fn what_is_no_answer_moves_nothing() {
    let two = Two::start();
    let mut client = Client::of(&two.balancer, "web");
    // The first answer, which is kept to be repeated, said 0.
    client.wait_for_share("one", 0.2, 0.8);
    let lies = [
        Says::Garbage,
        Says::OtherKey,
        Says::Elsewhere,
        Says::Old,
        Says::Torn,
        Says::NoCpu,
        Says::OtherQuery,
        Says::Short,
    ];
    for lie in lies {
        two.stations[0].say(Says::Load(20.0));
        client.until_left("one", Instant::now());
        two.stations[0].say(lie);
        // Believed, it would draw all requests: an idle one against a busy one. Unknown, it
        // gets its average share.
        two.stations[1].say(Says::Load(5.0));
        client.wait_for_share("one", 0.2, 0.8);
        let shares = client.shares(100);
        let share = shares.get("one").copied().unwrap_or(0.0);
        assert!(share < 0.85, "{lie:?} draws {share}");
        two.stations[1].say(Says::Load(0.0));
    }
}

#[test]
fn a_flood_takes_no_memory() {
    let two = Two::start();
    let mut client = Client::of(&two.balancer, "web");
    client.wait_for_share("one", 0.2, 0.8);
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", two.balancer.id()));
        let status = status.expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        kib.expect("a number of KiB")
    };
    two.stations[0].say(Says::Garbage);
    let before: u64 = resident();
    let asked = two.stations[0].asked.load(Ordering::Relaxed);
    wait_until("twenty thousand datagrams are sent", || {
        client.ask();
        two.stations[0].asked.load(Ordering::Relaxed) > asked + 100
    });
    let after = resident();
    assert!(after < before + 8 * 1024, "{before} KiB became {after}");
    two.stations[1].say(Says::Load(20.0));
    two.stations[0].say(Says::Load(0.0));
    client.until_left("two", Instant::now());
}

#[test]
fn a_monitor_is_changed_while_it_runs() {
    let two = Two::start();
    let mut client = Client::of(&two.balancer, "web");
    two.stations[0].say(Says::Load(20.0));
    client.until_left("one", Instant::now());
    // Somebody else is asked for the load of "one" now, who says that it is idle.
    let other = Station::start(0.0);
    let changed = Two::config(&two.members, [other.address, two.stations[1].address]);
    two.balancer.reconfigure(&changed);
    client.until_back("one");
    let before = two.stations[0].asked.load(Ordering::Relaxed);
    other.say(Says::Load(20.0));
    client.until_left("one", Instant::now());
    let after = two.stations[0].asked.load(Ordering::Relaxed);
    assert!(after <= before + 1, "the old station is still asked");
    // Without monitors it goes on by requests in flight.
    let without = changed.split("[location").next().expect("the rules");
    two.balancer.reconfigure(without);
    client.wait_for_share("one", 0.2, 0.8);
    // With a key file that is not there nothing changes.
    two.balancer
        .write_config(&changed.replace("monitor.key", "lost.key"));
    wait_until("the error is said", || {
        two.balancer.log().contains("lost.key")
    });
    client.wait_for_share("one", 0.2, 0.8);
}

#[test]
fn sites_that_share_locations_make_way_for_each_other() {
    // The load of a location is what is going on there, for whichever site.
    let busy = Arc::new(AtomicU32::new(0));
    let gate = Arc::new(Signal::default());
    let held = {
        let (busy, gate) = (Arc::clone(&busy), Arc::clone(&gate));
        Member::answering_with(move |_| {
            busy.fetch_add(1, Ordering::Relaxed);
            gate.wait_for_release();
            busy.fetch_sub(1, Ordering::Relaxed);
            ok_response("done")
        })
    };
    let stations = [Station::start(0.0), Station::start(0.0)];
    let members = [named("one"), named("two")];
    let monitored = [("one", &stations[0]), ("two", &stations[1])];
    let monitored = monitored.map(|(location, station)| Monitored {
        location,
        address: station.address,
        target: 0,
    });
    let both = [(members[0].address(), "one"), (members[1].address(), "two")];
    let rules: [(&str, &[_]); 2] = [("shop", &[(held.address(), "one")]), ("blog", &both)];
    let balancer = balancer(&config(&rules, &monitored));
    let mut blog = Client::of(&balancer, "blog");
    blog.wait_for_share("one", 0.2, 0.8);
    // The shop has a rush, all of it at one of the two.
    let mut rush: Vec<Wire> = (0..8)
        .map(|_| {
            let mut client = Wire::connect(balancer.address("shop"));
            client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
            client
        })
        .collect();
    wait_until("the rush is there", || busy.load(Ordering::Relaxed) == 8);
    stations[0].say(Says::Load(8.0));
    let left = blog.until_left("one", Instant::now());
    rush.iter().for_each(|_| gate.release_one());
    rush.iter_mut().for_each(|client| {
        client.read_response();
    });
    stations[0].say(Says::Load(0.0));
    let back = blog.until_back("one");
    println!("the other site left {left:?} after the rush, and was back {back:?} after it");
    blog.wait_for_share("one", 0.2, 0.8);
}

// A load that nobody makes up.

/// A program that answers load queries for an interface; gone when dropped.
struct Attached {
    pin: String,
}

impl Attached {
    /// On the loopback interface of this namespace; the error says why not.
    fn start(folder: &Folder, cgroups: &[&CpuQuota]) -> Result<Self, String> {
        let pin = unused_pin().display().to_string();
        let mut attach = Command::new(evenkeel_binary());
        attach.args(["kernel", "attach", "lo", "--pin", &pin]);
        attach.args(["--allow", "127.0.0.1", "--key-file"]);
        attach.arg(folder.join("monitor.key"));
        for (target, cgroup) in (1..).zip(cgroups) {
            attach.arg("--cgroup");
            attach.arg(format!("{target}={}", cgroup.path().display()));
        }
        let output = attach.output().expect("evenkeel runs");
        if output.status.success() {
            Ok(Self { pin })
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut detach = Command::new(evenkeel_binary());
        detach.args(["kernel", "detach", "lo", "--pin", &self.pin]);
        let _ = detach.stdout(Stdio::null()).status();
    }
}

/// Processes that want a CPU all the time; gone when dropped.
struct Busy(Vec<Child>);

impl Busy {
    fn start(count: usize, cgroup: &CpuQuota) -> Self {
        let start = |_| {
            let mut spin = Command::new("sh");
            spin.args(["-c", "while :; do :; done"])
                .stdin(Stdio::null());
            let child = spin.spawn().expect("sh runs");
            cgroup.add_process(child.id());
            child
        };
        Busy((0..count).map(start).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Three back-ends are cgroups; processes that the balancer does not know of load one of
/// them. Nothing else changes: its member answers as fast as before. Only its kernel knows.
#[test]
fn traffic_leaves_a_back_end_that_others_load_and_comes_back() {
    let Some(namespace) = Namespace::with_loopback() else {
        return;
    };
    let millis = Duration::from_millis;
    let quotas: Option<Vec<CpuQuota>> = (0..3)
        .map(|_| CpuQuota::new(millis(50), millis(100)))
        .collect();
    let Some(quotas) = quotas else {
        return report_skipped("this machine lets nobody make cgroups");
    };
    let name = thread::current().name().unwrap_or("?").to_owned();
    let inside = || {
        let folder = Folder::new();
        write_key(&folder, "monitor.key", KEY);
        let quotas: Vec<&CpuQuota> = quotas.iter().collect();
        let attached = match Attached::start(&folder, &quotas) {
            Ok(attached) => attached,
            Err(why) => return report_skipped(&format!("{name}: {why}")),
        };
        let names = ["one", "two", "three"];
        let members = names.map(named);
        let responder = SocketAddr::from((Ipv4Addr::LOCALHOST, 9970));
        let addresses: Vec<_> = members.iter().map(Member::address).zip(names).collect();
        let monitored = [1, 2, 3].map(|target: u16| Monitored {
            location: names[usize::from(target) - 1],
            address: responder,
            target,
        });
        let balancer = balancer(&config(&[("web", &addresses)], &monitored));
        let mut client = Client::of(&balancer, "web");
        client.wait_for_share("two", 0.1, 0.6);
        wait_until("its load is known", || {
            composite(&balancer, "two").is_some()
        });
        for round in 0..3 {
            let busy = Busy::start(4, quotas[1]);
            let left = client.until_left("two", Instant::now());
            let load = composite(&balancer, "two");
            drop(busy);
            let back = client.until_back("two");
            println!(
                "round {round}: left after {} ms (load {load:?}), back after {} ms",
                left.as_millis(),
                back.as_millis()
            );
            client.wait_for_share("two", 0.1, 0.6);
        }
        drop(attached);
    };
    namespace.run_inside(inside);
}

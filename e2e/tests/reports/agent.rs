//! `evenkeel agent` beside instrumented servers, with a broker and with HAProxy.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_e2e::agent::{Agent, key_file};
use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::haproxy::Haproxy;
use evenkeel_e2e::libarm::Instrumented;
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use serde_json::Value;

/// Returns the output of `evenkeel agent --once` with this configuration.
fn once(folder: &Folder, config: &str) -> Result<String, String> {
    let file = folder.write("once.toml", config);
    run_evenkeel(&["agent", "--once", file.to_str().unwrap()])
}

#[test]
fn people_see_what_would_be_reported_and_what_is_wrong() {
    if !are_installed(&["cc"]) {
        return;
    }
    let folder = Folder::new();
    let pages = folder.make_folder("pages");
    let mut shop = Instrumented::start(&pages, "shop");
    let request = shop.begin_request(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "interval = \"100ms\"\n\
         arm_dir = \"pages\"\n\
         [host]\n\
         location = \"here\"\n\
         [server.shop]\n\
         address = \"{}\"\n\
         application = \"shop\"\n\
         service_time = \"3ms\"\n\
         capacity = 1\n\
         [server.mail]\n\
         address = \"{}\"\n\
         application = \"mail\"\n\
         [agent_check]\n\
         listen = \"127.0.0.1:0\"\n",
        listener.local_addr().unwrap(),
        address(),
    );
    let text = once(&folder, &config).unwrap();
    let has = |wanted: &str| assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
    has("location here\n");
    has("\n  cpu ");
    has("in flight            1\n");
    has("service time         0.003000 s (given)\n");
    // Something was in flight all the time, and it can do one thing at once.
    has("utilisation          100.0 %\n");
    has("in group shop): up\n");
    has("agent-check: up ready 10%\n");
    has("in group mail): down: its port accepts no connections\n");
    has("no page of application mail in ");
    has("the folder has pages of shop. Check that the server runs, has loaded the ARM library");
    has("would report to no broker");
    shop.end_request(request);

    // Its page stays when it dies.
    drop(shop);
    let text = once(&folder, &config).unwrap();
    let gone = "in group shop): down: no process has the application open\n";
    assert!(text.contains(gone), "{text}");

    let refused = once(
        &folder,
        "[broker.a]\naddress = \"localhost:1\"\nkey_file = \"none\"\n",
    );
    let refused = refused.unwrap_err();
    assert!(refused.contains("key_file of broker a: "), "{refused}");
    let refused = once(&folder, "[server.a]\n").unwrap_err();
    assert!(
        refused.contains("once.toml:1:9: server.a: `address` is missing"),
        "{refused}"
    );
}

#[test]
fn haproxy_follows_load_and_state() {
    if !are_installed(&["haproxy", "cc"]) {
        return;
    }
    // The listener is the server that HAProxy and the agent know.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = |state: &str| {
        format!(
            "interval = \"100ms\"\n\
             [host]\n\
             scope = \"off\"\n\
             [agent_check]\n\
             listen = \"127.0.0.1:0\"\n\
             load = [\"utilization\"]\n\
             smoothing = \"0s\"\n\
             [server.shop]\n\
             address = \"{address}\"\n\
             application = \"shop\"\n\
             service_time = \"1ms\"\n\
             capacity = 1\n\
             state = \"{state}\"\n\
             agent_check = \"127.0.0.1:0\"\n"
        )
    };
    let agent = Agent::start(&config("ready"));
    let mut shop = Instrumented::start(&agent.pages_folder(), "shop");
    let own = agent.agent_check("shop").port();
    let named = agent.agent_check("").port();
    // HAProxy 2.6 does not listen to the agent of a server without agent-send if it has
    // another server with it.
    let check = "weight 100 agent-inter 100ms agent-addr 127.0.0.1";
    let haproxy = Haproxy::start(&format!(
        "backend web\n  server a {address} {check} agent-check agent-port {own} agent-send \"\\n\"\n  \
           server b {address} {check} agent-check agent-port {named} agent-send \"shop\\n\"\n  \
           server c {address} {check} agent-check agent-port {named} agent-send \"nobody\\n\"\n"
    ));
    let both = |wanted| {
        for server in ["a", "b"] {
            haproxy.wait_for(server, wanted);
        }
    };
    both((2, 100, 0));
    // Busy all the time: the smallest weight. Idle: all of it.
    let request = shop.begin_request(1);
    both((2, 10, 0));
    shop.end_request(request);
    both((2, 100, 0));

    // Its operator's will. Addresses that stay are not bound anew.
    agent.reconfigure(&config("drain"));
    both((2, 100, 8));
    agent.reconfigure(&config("maint"));
    both((0, 100, 1));
    agent.reconfigure(&config("ready"));
    both((2, 100, 0));

    // It says goodbye, and is started again; then it is killed.
    shop.close();
    both((0, 100, 0));
    let shop = Instrumented::start(&agent.pages_folder(), "shop");
    both((2, 100, 0));
    shop.kill();
    both((0, 100, 0));
    // What nobody knows is left alone.
    assert_eq!(haproxy.server_state("c"), (2, 100, 0));
    let log = agent.log();
    assert_eq!(
        log.matches("asks for an unknown server").count(),
        1,
        "{log}"
    );
}

#[test]
fn an_agent_check_that_never_ends_holds_nobody_up() {
    let agent = Agent::start(
        "interval = \"100ms\"\n\
         [agent_check]\n\
         listen = \"127.0.0.1:0\"\n\
         [server.a]\n\
         address = \":1\"\n\
         check_port = false\n",
    );
    let at = agent.agent_check("");
    let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(at).unwrap()).collect();
    let ask = |name: &[u8]| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(name).unwrap();
        let mut answer = String::new();
        // Too much of it may be cut off.
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    wait_until("there is a measurement", || ask(b"a\n").contains('%'));
    let answer = ask(b"a\r\n");
    assert!(
        answer.starts_with("up ready ") && answer.ends_with("%\n"),
        "{answer:?}"
    );
    assert_eq!(ask(b"b\n"), "");
    assert_eq!(ask(&[b'x'; 100_000]), "");
    // The silent ones are left in their turn.
    for mut stream in silent {
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert_eq!(answer, "");
    }
}

/// A place where a broker can listen for agents again after a restart: an address on
/// loopback that nobody else uses.
fn udp_address() -> SocketAddr {
    let ip = evenkeel_e2e::server::address().ip();
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.local_addr().unwrap()
}

/// A balancer with a broker, an agent, and an instrumented server beside the agent.
struct Site {
    config: String,
    balancer: Option<Balancer>,
    agent: Agent,
    shop: Option<Instrumented>,
    /// The member that the server is, and where a second one is that nobody reports on.
    member: SocketAddr,
    _folder: Folder,
}

/// Location of the agent.
const LOCATION: &str = "machine-1/shop";

impl Site {
    /// The server can do `capacity` requests at once, of 5 ms each.
    fn new(capacity: u32) -> Self {
        let folder = Folder::new();
        let key = key_file(&folder);
        let (key, udp) = (key.display(), udp_address());
        let (member, other) = (address(), address());
        let config = format!(
            "workers = 1\n\
             [admin]\n\
             listen = \"127.0.0.1:0\"\n\
             [broker]\n\
             listen = \"{udp}\"\n\
             key_file = \"{key}\"\n\
             interval = \"200ms\"\n\
             [rule.shop]\n\
             listen = \"127.0.0.1:0\"\n\
             granularity = \"on_demand\"\n\
             load = \"utilization\"\n\
             load_max_age = \"2s\"\n\
             slow_start = \"0s\"\n\
             alert = {{ threshold = 0.8, shed_time = \"0s\" }}\n\
             members = [\n\
               {{ address = \"{member}\", location = \"{LOCATION}\" }},\n\
               {{ address = \"{other}\", location = \"elsewhere\" }},\n\
             ]\n"
        );
        let balancer = Balancer::start(&config);
        let agent = Agent::start(&format!(
            "interval = \"200ms\"\n\
             [host]\n\
             location = \"{LOCATION}\"\n\
             [broker.main]\n\
             address = \"{udp}\"\n\
             key_file = \"{key}\"\n\
             [server.shop]\n\
             address = \"{member}\"\n\
             application = \"shop\"\n\
             service_time = \"5ms\"\n\
             capacity = {capacity}\n"
        ));
        let shop = Instrumented::start(&agent.pages_folder(), "shop");
        let mut site = Self {
            config,
            balancer: Some(balancer),
            agent,
            shop: Some(shop),
            member,
            _folder: folder,
        };
        site.wait_for_load("in_flight", |load| load == 0.0);
        // Before the server has a page, its host's load counts, which may be one for an alert.
        wait_until("no alert is left", || !site.shop().is_shedding());
        site
    }

    fn balancer(&self) -> &Balancer {
        self.balancer.as_ref().unwrap()
    }

    fn shop(&mut self) -> &mut Instrumented {
        self.shop.as_mut().unwrap()
    }

    /// A load as `evenkeel ctl loads` shows it, if it is not old.
    fn load(&self, id: &str) -> Option<f64> {
        let loads = self.balancer().run_ctl("loads --json").unwrap();
        let loads: Value = serde_json::from_str(&loads).unwrap();
        let mut locations = loads.as_array().unwrap().iter();
        let location = locations.find(|location| location["name"] == LOCATION)?;
        let mut loads = location["loads"].as_array().unwrap().iter();
        let load = loads.find(|load| load["id"] == id)?;
        let is_old = load["age_seconds"].as_f64().unwrap() > 2.0;
        (!is_old).then(|| load["value"].as_f64().unwrap())
    }

    fn wait_for_load(&self, id: &str, wanted: impl Fn(f64) -> bool) -> f64 {
        let mut found = None;
        wait_until(&format!("{id} is reported as it is"), || {
            found = self.load(id);
            found.is_some_and(&wanted)
        });
        found.unwrap()
    }

    fn wait_until_unknown(&self, id: &str) {
        wait_until(&format!("{id} is unknown"), || self.load(id).is_none());
    }
}

#[test]
fn what_is_reported_is_what_the_server_did() {
    if !are_installed(&["cc"]) {
        return;
    }
    let mut site = Site::new(4);
    // Of the machine.
    for id in ["cpu", "memory", "run_queue"] {
        site.wait_for_load(id, |load| load >= 0.0);
    }
    // Three of the four that it can do, for as long as it takes.
    let requests: Vec<_> = (1..=3)
        .map(|client| site.shop().begin_request(client))
        .collect();
    site.wait_for_load("in_flight", |load| load == 3.0);
    site.wait_for_load("utilization", |load| load == 0.75);
    assert_eq!(site.load("service_time"), Some(0.005));
    for request in requests {
        site.shop().end_request(request);
    }
    site.wait_for_load("utilization", |load| load == 0.0);
    site.wait_for_load("requests_per_second", |load| load == 0.0);

    // A client that asks and thinks. Each time is between two that are measured here: one
    // within it, and one around it.
    let (mut response, mut think) = (Bounds::default(), Bounds::default());
    let mut end_of_last: Option<(Instant, Instant)> = None;
    wait_until("reported times are those that were", || {
        for _ in 0..5 {
            let before = Instant::now();
            let request = site.shop().begin_request(9);
            let begun = Instant::now();
            if let Some((before_end, ended)) = end_of_last {
                think.hold(before - ended, begun - before_end);
            }
            thread::sleep(Duration::from_millis(3));
            let before_end = Instant::now();
            site.shop().end_request(request);
            let ended = Instant::now();
            response.hold(before_end - begun, ended - before);
            end_of_last = Some((before_end, ended));
            thread::sleep(Duration::from_millis(9));
        }
        let loads = ["requests_per_second", "response_time", "think_time"];
        let [rate, responded, thought] = loads.map(|id| site.load(id));
        // Not a value of before.
        let reported = rate.is_some_and(|rate| rate > 0.0)
            && responded.is_some_and(|time| time > 0.0 && time != 0.005);
        let thought = thought.filter(|_| reported);
        if let (Some(responded), Some(thought)) = (responded, thought) {
            // The first reports may still have the three of before in them.
            return response.has(responded) && think.has(thought);
        }
        false
    });
}

/// Times, each of which lay between two.
#[derive(Default)]
struct Bounds {
    least: Option<Duration>,
    most: Duration,
}

impl Bounds {
    fn hold(&mut self, least: Duration, most: Duration) {
        self.least = Some(self.least.map_or(least, |known| known.min(least)));
        self.most = self.most.max(most);
    }

    /// Returns true if a mean of such times can be `mean`; loads have 24 bits.
    fn has(&self, mean: f64) -> bool {
        let least = self.least.unwrap().as_secs_f64();
        (least * 0.999..=self.most.as_secs_f64() * 1.001).contains(&mean)
    }
}

#[test]
fn each_of_the_three_may_be_killed_and_is_back_when_it_is_started() {
    if !are_installed(&["cc"]) {
        return;
    }
    let mut site = Site::new(4);
    let request = site.shop().begin_request(1);
    site.wait_for_load("in_flight", |load| load == 1.0);

    // The agent: what it reported grows old, and is not taken for what is. The server goes
    // on, and is known again as it is.
    site.agent.kill();
    site.wait_until_unknown("in_flight");
    site.shop().end_request(request);
    site.shop().begin_request(1);
    site.shop().begin_request(2);
    site.agent.restart();
    site.wait_for_load("in_flight", |load| load == 2.0);

    // The balancer: it gets its agent back, which is not started again.
    site.balancer = None;
    let id = site.agent.id();
    site.balancer = Some(Balancer::start(&site.config));
    site.wait_for_load("in_flight", |load| load == 2.0);
    assert_eq!(site.agent.id(), id);

    // The server: it is down, which nobody has tried out, and what it had in flight is gone.
    site.balancer().wait_for_state("shop", site.member, &["up"]);
    site.shop.take().unwrap().kill();
    site.balancer()
        .wait_for_state("shop", site.member, &["reported_down"]);
    let mut shop = Instrumented::start(&site.agent.pages_folder(), "shop");
    site.balancer().wait_for_state("shop", site.member, &["up"]);
    site.wait_for_load("in_flight", |load| load == 0.0);

    // It says goodbye.
    shop.close();
    site.balancer()
        .wait_for_state("shop", site.member, &["reported_down"]);
}

/// Two agents at one location are told apart by the names that they are given.
#[test]
fn c11_an_agent_goes_by_its_name() {
    let folder = Folder::new();
    let key = key_file(&folder);
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [broker]\nlisten = \"127.0.0.1:0\"\nkey_file = {key:?}\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [{{ address = \"127.0.0.1:1\", location = \"rack-1\" }}]\n"
    ));
    let config = |name: &str| {
        format!(
            "{name}interval = \"200ms\"\n[host]\nlocation = \"rack-1\"\n\
             [broker.main]\naddress = \"{}\"\nkey_file = {key:?}\n",
            balancer.broker_address()
        )
    };
    let wait_for = |mut wanted: Vec<&str>| {
        wanted.sort_unstable();
        wait_until(&format!("agents {wanted:?} are registered"), || {
            let agents = balancer.run_ctl("agents --json").unwrap();
            let agents: Value = serde_json::from_str(&agents).unwrap();
            let agents = agents.as_array().unwrap().iter();
            let agents = agents.filter(|agent| agent["state"] == "registered");
            let mut names: Vec<_> = agents
                .map(|agent| agent["name"].as_str().unwrap())
                .collect();
            names.sort_unstable();
            names == wanted
        });
    };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let mut first = Agent::start(&config("name = \"web-1-a\"\n"));
    let mut second = Agent::start(&config("name = \"web-1-b\"\n"));
    let mut third = Agent::start(&config(""));
    wait_for(vec!["web-1-a", "web-1-b", host.trim()]);
    // As its table shows it, and as commands take it.
    let table = balancer.run_ctl("agents").unwrap();
    let row = table.lines().find(|line| line.contains("web-1-b")).unwrap();
    assert!(row.starts_with("rack-1 "), "{table}");
    balancer.run_ctl("agents query rack-1 web-1-b").unwrap();

    second.terminate();
    third.terminate();
    wait_for(vec!["web-1-a"]);
    first.terminate();
}

#[test]
fn an_alert_reaches_the_server_and_is_lifted_there() {
    if !are_installed(&["cc"]) {
        return;
    }
    let mut site = Site::new(1);
    let request = site.shop().begin_request(1);
    wait_until("the server sheds", || site.shop().is_shedding());
    site.shop().end_request(request);
    wait_until("the server sheds no more", || !site.shop().is_shedding());

    // Its agent dies, and nobody can lift it: it ends by itself.
    let _request = site.shop().begin_request(1);
    wait_until("the server sheds", || site.shop().is_shedding());
    site.agent.kill();
    wait_until("the alert has ended", || !site.shop().is_shedding());
    // One who is told to end lifts it before.
    site.agent.restart();
    wait_until("the server sheds", || site.shop().is_shedding());
    assert!(site.agent.terminate().success());
    assert!(!site.shop().is_shedding());
    // And has signed off.
    let agents = site.balancer().run_ctl("agents --json").unwrap();
    let agents: Value = serde_json::from_str(&agents).unwrap();
    assert_eq!(agents[0]["state"], "stopped", "{agents}");
    wait_until("its log says so", || {
        site.agent.log().contains("signed off")
    });
    let member = site.balancer().member_status("shop", site.member);
    assert_ne!(member["state"], "up", "{member}");
}

#[test]
fn a_reload_is_taken_as_a_whole_or_not_at_all() {
    if !are_installed(&["cc"]) {
        return;
    }
    let site = Site::new(4);
    let states = || {
        let agents = site.balancer().run_ctl("agents --json").unwrap();
        let agents: Value = serde_json::from_str(&agents).unwrap();
        let agents = agents.as_array().unwrap().iter();
        let text = |agent: &Value, key: &str| agent[key].as_str().unwrap().to_owned();
        let states = agents.map(|agent| (text(agent, "location"), text(agent, "state")));
        states.collect::<BTreeMap<_, _>>()
    };
    let registered = BTreeMap::from([(LOCATION.to_owned(), "registered".to_owned())]);
    // On a busy machine it may have been late, and counts as silent for a moment.
    wait_until("the agent is registered", || states() == registered);

    // Half of it would be good.
    let config = site.agent.folder().text("agent.toml");
    let (_, config) = config.split_once('\n').unwrap();
    let moved = config.replace(LOCATION, "machine-2");
    site.agent.write_config(&format!("{moved}nonsense = 1\n"));
    wait_until("the configuration is refused", || {
        site.agent.log().contains("the old one stays")
    });
    site.wait_for_load("in_flight", |load| load == 0.0);
    wait_until("nothing has changed", || states() == registered);

    // What moves signs off where it was.
    site.agent.reconfigure(&moved);
    let both = BTreeMap::from([
        (LOCATION.to_owned(), "stopped".to_owned()),
        ("machine-2".to_owned(), "registered".to_owned()),
    ]);
    wait_until("the server has moved", || states() == both);
    // And comes back.
    site.agent.reconfigure(config);
    wait_until("the server is back", || {
        states()
            .get(LOCATION)
            .is_some_and(|state| state == "registered")
    });
    site.wait_for_load("in_flight", |load| load == 0.0);
}

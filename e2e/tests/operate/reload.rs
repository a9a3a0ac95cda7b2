//! The configuration changes under load, and nobody who should not notice does.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::net::{SocketAddr, TcpStream, UdpSocket};

use evenkeel_e2e::agent::key_file;
use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::corba::LoadManager;
use evenkeel_e2e::load::{Clients, Wrk};
use evenkeel_e2e::member::Member;
use evenkeel_e2e::process::{Signal, are_installed};
use evenkeel_e2e::server::{Server, address};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

fn config(members: &[SocketAddr], more: &str) -> String {
    let members: Vec<_> = members.iter().map(ToString::to_string).collect();
    format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = {members:?}\nslow_start = \"0s\"\n{more}\n"
    )
}

fn requests(balancer: &Balancer, member: SocketAddr) -> u64 {
    let member = balancer.member_status("web", member);
    member["totals"]["requests"].as_u64().unwrap()
}

#[test]
fn changes_under_load_cost_no_answer() {
    if !are_installed(&["nginx", "wrk"]) {
        return;
    }
    let content = "0123456789abcdef".repeat(64);
    let servers: [Server; 3] = Server::nginx_alike("document", &content);
    let members = servers.each_ref().map(Server::address);
    let balancer = Balancer::start(&config(&members[..2], ""));
    let web = balancer.address("web");
    let mut kept = Wire::connect(web);
    let mut ask = || {
        kept.send("GET /echo/kept HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(kept.read_response().text(), "/echo/kept");
    };
    ask();
    let wrk = Wrk::start(web, "/files/document", content.as_bytes());
    let clients = Clients::start(web, 4);
    clients.wait_for(50);

    // A member comes.
    balancer.reconfigure(&config(&members, ""));
    wait_until("the new member gets requests", || {
        requests(&balancer, members[2]) > 0
    });
    // One goes. What is known about the others stays.
    let before = requests(&balancer, members[1]);
    balancer.reconfigure(&config(&members[1..], ""));
    assert!(requests(&balancer, members[1]) >= before);
    clients.wait_for(50);
    ask();

    // Another strategy.
    balancer.reconfigure(&config(&members[1..], "strategy = \"round_robin\""));
    assert_eq!(balancer.status()["groups"][0]["strategy"], "round_robin");
    clients.wait_for(50);

    // Another rule comes and goes.
    let other = address();
    let more = format!(
        "[rule.other]\nlisten = \"{other}\"\nmembers = [\"{}\"]",
        members[0]
    );
    balancer.reconfigure(&config(&members[1..], &more));
    let mut through = Wire::connect(other);
    through.send("GET /name HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(through.read_response().text(), members[0].to_string());
    balancer.reconfigure(&config(&members[1..], ""));
    wait_until("the other rule listens no more", || {
        TcpStream::connect(other).is_err()
    });
    ask();

    // Again and again.
    for round in 0..10 {
        let some = if round % 2 == 0 {
            &members[..2]
        } else {
            &members[1..]
        };
        balancer.reconfigure(&config(some, ""));
        clients.wait_for(10);
    }
    ask();

    clients.stop_and_count();
    let tally = wrk.stop_and_tally();
    assert_eq!((tally.wrong, tally.errors), (0, 0), "{tally:?}");
    assert!(tally.requests > 100, "{tally:?}");
}

/// Files without rules come of a template that rendered nothing, or of a disk that is full.
#[test]
fn f2_a_file_without_rules_takes_none_away_unless_it_is_forced() {
    let member = Member::echoing_targets();
    let text = config(&[member.address()], "");
    let balancer = Balancer::start(&text);
    let ask = || {
        let mut wire = balancer.connect();
        wire.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
        wire.read_response().text().to_owned()
    };
    let why = "has no rules any more";
    let refusals = || balancer.log().matches(why).count();
    for empty in ["", "# nothing\n", "[admin]\nlisten = \"127.0.0.1:0\"\n"] {
        let before = refusals();
        balancer.write_config(empty);
        wait_until("it is refused", || refusals() > before);
        assert_eq!(ask(), "/x");
        // And when somebody asks for it, unless it is meant.
        let refused = balancer.run_ctl("reload").unwrap_err();
        assert!(refused.contains("ctl reload --force"), "{refused}");
        balancer.write_config(&text);
        balancer.run_ctl("reload").unwrap();
    }
    let file = balancer.folder().write("empty.toml", "\n# nothing\n");
    let file = file.display().to_string();
    let said = run_evenkeel(&["check", &file]).unwrap_err();
    assert!(said.contains("neither a key nor a table"), "{said}");
    let refused = balancer
        .run_ctl(&format!("config apply {file}"))
        .unwrap_err();
    assert!(refused.contains("has no rules"), "{refused}");
    assert_eq!(ask(), "/x");
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    balancer.write_config(admin);
    balancer.run_ctl("reload --force").unwrap();
    wait_until("nobody listens", || {
        TcpStream::connect(balancer.address("web")).is_err()
    });
}

#[test]
fn a_broken_file_changes_nothing_and_is_complained_about() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let servers = [Server::start_nginx(None), Server::start_nginx(None)];
    let members = servers.each_ref().map(Server::address);
    let balancer = Balancer::start(&config(&members[..1], ""));
    let clients = Clients::start(balancer.address("web"), 2);
    let complaint = |balancer: &Balancer| {
        let status = balancer.status();
        status["last_reload"]["error"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let broken = config(&members, "strategy = \"fastest\"\nidle_timeout = 5");
    for by_signal in [false, true] {
        // By the file alone, and by SIGHUP in addition.
        balancer.write_config(&broken);
        if by_signal {
            balancer.signal(Signal::HUP);
        }
        wait_until("the file is refused", || {
            let error = complaint(&balancer);
            [
                "evenkeel.toml:8",
                "fastest",
                "evenkeel.toml:9",
                "idle_timeout",
            ]
            .iter()
            .all(|part| error.contains(part))
        });
        // Traffic and members are as before, in the log stands why, and monitors see it.
        clients.wait_for(50);
        let status = balancer.status();
        let left = status["groups"][0]["members"].as_array().unwrap();
        assert_eq!(left.len(), 1, "{status:#}");
        wait_until("the log tells", || balancer.log().contains("fastest"));
        let metrics = balancer.admin_get("/metrics");
        let success = "evenkeel_config_last_reload_success 0\n";
        assert!(metrics.text().contains(success), "{}", metrics.text());
        let refused = balancer.run_ctl("reload").unwrap_err();
        assert!(refused.contains("fastest"), "{refused}");

        balancer.reconfigure(&config(&members, ""));
        wait_until("the new member gets requests", || {
            requests(&balancer, members[1]) > 0
        });
        assert_eq!(complaint(&balancer), "");
        balancer.reconfigure(&config(&members[..1], ""));
    }
    // A port that is taken is no reason to do half of it.
    let taken = std::net::TcpListener::bind(address()).unwrap();
    let address = taken.local_addr().unwrap();
    let more = format!("[rule.other]\nlisten = \"{address}\"\nmembers = [\"{address}\"]");
    balancer.write_config(&config(&members, &more));
    wait_until("the file is refused", || {
        complaint(&balancer).contains(&address.to_string())
    });
    let status = balancer.status();
    assert_eq!(status["rules"].as_array().unwrap().len(), 1);
    assert_eq!(status["groups"][0]["members"].as_array().unwrap().len(), 1);
    clients.wait_for(50);
    clients.stop_and_count();
}

#[test]
fn hangup_reads_a_file_that_looks_the_same() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start(&config(&[member.address()], ""));
    let generation = || balancer.status()["generation"].as_u64().unwrap();
    let before = generation();
    balancer.signal(Signal::HUP);
    wait_until("it is applied again", || generation() > before);
}

#[test]
fn what_becomes_of_open_connections_is_up_to_the_rule() {
    let member = Member::start(|_, mut wire| {
        while let Some(bytes) = wire.try_read_exact(4) {
            wire.try_send(bytes);
        }
    });
    let member = member.address();
    let open = |address: SocketAddr| {
        let mut wire = Wire::connect(address);
        ping(&mut wire);
        wire
    };
    for by_file in [false, true] {
        let (cut, kept) = (address(), address());
        let rules = |enabled: bool| {
            let rule = |name: &str, listen: SocketAddr, terminate: bool| {
                format!(
                    "[rule.{name}]\nlisten = \"{listen}\"\nprotocol = \"tcp\"\n\
                     members = [\"{member}\"]\nterminate_on_disable = {terminate}\n"
                )
            };
            if enabled {
                rule("cut", cut, true) + &rule("kept", kept, false)
            } else {
                String::new()
            }
        };
        let balancer = Balancer::start(&config(&[member], &rules(true)));
        let (mut short, mut long) = (open(cut), open(kept));
        if by_file {
            balancer.reconfigure(&config(&[member], &rules(false)));
        } else {
            balancer.run_ctl("disable cut").unwrap();
            balancer.run_ctl("disable kept").unwrap();
        }
        assert!(short.is_at_end());
        for listen in [cut, kept] {
            wait_until("nobody is accepted", || TcpStream::connect(listen).is_err());
        }
        ping(&mut long);
        if by_file {
            balancer.reconfigure(&config(&[member], &rules(true)));
        } else {
            balancer.run_ctl("enable cut").unwrap();
            balancer.run_ctl("enable kept").unwrap();
        }
        for listen in [cut, kept] {
            wait_until("clients are accepted", || {
                TcpStream::connect(listen).is_ok()
            });
            open(listen);
        }
        ping(&mut long);
    }
}

fn ping(wire: &mut Wire) {
    wire.send("ping");
    assert_eq!(wire.try_read_exact(4).unwrap(), b"ping");
}

/// Sets a flag when it goes.
struct End<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A log in the same folder delays no reload, and a key file counts as the file itself does.
#[test]
fn u4_what_is_written_beside_the_file_delays_no_reload() {
    use evenkeel_e2e::agent::key_file;
    let member = Member::echoing_targets();
    let with = |weight: usize| {
        format!(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [broker]\nlisten = \"127.0.0.1:0\"\nkey_file = \"broker.key\"\n\
             [rule.web]\nlisten = \"127.0.0.1:0\"\n\
             members = [{{ address = \"{}\", weight = {weight} }}]\n",
            member.address()
        )
    };
    let balancer = Balancer::start_with(&with(1), |folder| {
        key_file(folder);
    });
    let ended = std::sync::atomic::AtomicBool::new(false);
    let log = balancer.folder().join("access.log");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::io::Write;
            let mut log = std::fs::File::create(log).unwrap();
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                log.write_all(b"a line\n").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        // However this ends, so does the writer.
        let _end = End(&ended);
        for weight in 2..12 {
            balancer.reconfigure(&with(weight));
            let shown = balancer.member_status("web", member.address())["weight"].as_f64();
            assert_eq!(shown, Some(weight as f64));
        }
    });
    let before = balancer.status()["generation"].as_u64();
    let other = "2:0f0e0d0c0b0a09080706050403020100\n";
    std::fs::write(balancer.folder().join("broker.key"), other).unwrap();
    wait_until("the keys are read again", || {
        balancer.status()["generation"].as_u64() > before
    });
}

/// Names of those threads of the balancer that only some configurations need, in order.
fn threads_on_demand(balancer: &Balancer) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", balancer.id())).unwrap();
    // A thread may end meanwhile.
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let wanted = ["negotiator", "broker", "corba", "monitor"];
    let mut names: Vec<String> = names
        .map(|name| name.trim().to_owned())
        .filter(|name| wanted.iter().any(|wanted| name.contains(wanted)))
        .collect();
    names.sort();
    names
}

/// Features that are not configured have no thread; a reload that configures a feature starts a
/// thread, which works, and a reload that takes the feature away leaves nothing behind that works.
#[test]
fn c13_threads_run_only_for_what_is_configured() {
    let member = Member::echoing_targets();
    let plain = config(&[member.address()], "");
    let balancer = Balancer::start(&plain);
    let json =
        |path: &str| -> Value { serde_json::from_str(balancer.admin_get(path).text()).unwrap() };
    let address = |listen: &Value| -> SocketAddr { listen[0].as_str().unwrap().parse().unwrap() };
    assert_eq!(threads_on_demand(&balancer), [""; 0]);

    let keys = key_file(balancer.folder());
    let all = format!(
        "{plain}\n[negotiator]\nlisten = \"127.0.0.1:0\"\n[corba]\nlisten = \"127.0.0.1:0\"\n\
         [broker]\nlisten = \"127.0.0.1:0\"\nkey_file = {keys:?}\n\
         [group.watched]\nmembers = [\"127.0.0.1:1\"]\n\
         [group.watched.monitor]\ntype = \"kernel\"\nkey_file = {keys:?}\ninterval = \"50ms\"\n"
    );
    let mut addresses = Vec::new();
    // Off and on again, too.
    for _ in 0..2 {
        balancer.reconfigure(&all);
        wait_until("there is a thread for each", || {
            let names = threads_on_demand(&balancer);
            names == ["broker", "corba", "corba-0", "monitor", "negotiator"]
        });
        let negotiator = address(&json("/v1/status")["negotiator"]);
        let mut client = Wire::connect(negotiator);
        client.send("GET / HTTP/1.1\r\nHost: nobody.example\r\n\r\n");
        // Nobody serves that host, which is an answer.
        assert!(client.read_response().second_word().starts_with('4'));

        let corba = address(&json("/v1/corba")["listen"]);
        let manager = LoadManager::at_address(corba);
        manager.create_group("IDL:First:1.0", Vec::new()).unwrap();

        let broker = address(&json("/v1/broker")["listen"]);
        let refused = || -> u64 {
            let counts = json("/v1/broker")["datagrams"].clone();
            let counts = counts.as_array().unwrap().iter();
            counts.map(|count| count["count"].as_u64().unwrap()).sum()
        };
        let before = refused();
        let agent = UdpSocket::bind("127.0.0.1:0").unwrap();
        agent.send_to(b"nonsense", broker).unwrap();
        wait_until("the datagram is counted", || refused() > before);

        let asked = || json("/v1/monitor")["asked"].as_u64().unwrap_or(0);
        let before = asked();
        wait_until("locations are asked", || asked() > before);

        balancer.reconfigure(&plain);
        assert!(
            json("/v1/status")["negotiator"]
                .as_array()
                .unwrap()
                .is_empty()
        );
        assert!(
            json("/v1/corba")["listen"]
                .as_array()
                .is_none_or(Vec::is_empty)
        );
        assert_eq!(json("/v1/broker"), Value::Null);
        wait_until("nobody is asked", || json("/v1/monitor") == Value::Null);
        addresses.extend([negotiator, corba]);
    }
    for address in addresses {
        wait_until("nobody listens there", || {
            TcpStream::connect(address).is_err()
        });
    }
}

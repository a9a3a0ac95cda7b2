//! HAProxy and nginx that get their weights from a group.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use evenkeel_e2e::balancer::{Balancer, report_load, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::haproxy::Haproxy;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{Signal, are_installed, parent_program, signal};
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

/// Reports loads of locations again and again, until it is dropped.
struct Reports {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reports {
    fn start(admin: SocketAddr, loads: &[(&'static str, f64)]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (loads, is_over) = (loads.to_vec(), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for (location, load) in &loads {
                    report_load(admin, location, *load);
                }
                // A report every so often, as agents do.
                thread::sleep(Duration::from_millis(200));
            }
        });
        Reports {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

/// Two members, `a` and `b`, each at a location of its name, that answer with their names.
fn members() -> [Member; 2] {
    ["a", "b"].map(|name| Member::answering_with(move |_| ok_response(name)))
}

/// A balancer with the rule `web`, whose group has these members, and `more`.
fn balancer(members: &[Member; 2], more: &str) -> Balancer {
    let [a, b] = members.each_ref().map(Member::address);
    Balancer::start(&format!(
        "workers = 1\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"web\"\n\
         [group.web]\nstrategy = \"weighted_by_load\"\nslow_start = \"0s\"\nmembers = [\n\
         {{ address = \"{a}\", location = \"a\" }},\n\
         {{ address = \"{b}\", location = \"b\" }},\n]\n{more}"
    ))
}

/// The `[steer.edge]` of a backend `web` of HAProxy.
fn edge(haproxy: &Haproxy) -> String {
    format!(
        "[steer.edge]\ngroup = \"web\"\n[steer.edge.haproxy]\nsocket = \"unix:{}\"\ncheck_interval = \"200ms\"\n",
        haproxy.socket().display()
    )
}

/// The status of the first `[steer.NAME]`.
fn status(balancer: &Balancer) -> Value {
    let all: Value = serde_json::from_str(balancer.admin_get("/v1/steer").text()).unwrap();
    all[0].clone()
}

/// Returns the weight that each member should have, and the weight that it has.
fn weights(status: &Value) -> Vec<(u64, Option<u64>)> {
    let members = status["members"].as_array().cloned().unwrap_or_default();
    let weight = |member: &Value| (member["weight"].as_u64().unwrap(), member["has"].as_u64());
    members.iter().map(weight).collect()
}

/// Share of so many requests that `a` answers. Each has a connection of its own: nginx closes the others
/// when it is reloaded.
fn part_of_a(at: SocketAddr, requests: usize) -> f64 {
    let answers = (0..requests).filter(|_| {
        let mut wire = Wire::connect(at);
        wire.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = wire.read_response();
        assert_eq!(answer.second_word(), "200", "{}", answer.text());
        answer.text() == "a"
    });
    answers.count() as f64 / requests as f64
}

#[test]
fn haproxy_gives_the_shares_that_our_own_proxy_gives() {
    if !are_installed(&["haproxy"]) {
        return;
    }
    let members = members();
    let [a, b] = members.each_ref().map(Member::address);
    let front = address();
    let mut haproxy = Haproxy::start(&format!(
        "frontend in\n  bind {front}\n  default_backend web\n\
         backend web\n  server first {a} weight 10\n  server second {b} weight 10\n  server stranger 127.0.0.1:9 disabled\n"
    ));
    let mut balancer = balancer(&members, &edge(&haproxy));
    let reports = Reports::start(balancer.admin_address(), &[("a", 0.9), ("b", 0.1)]);
    let settled = |balancer: &Balancer| {
        wait_until("weights follow loads, and HAProxy has them", || {
            let weights = weights(&status(balancer));
            matches!(weights[..], [(few, Some(has)), (256, Some(256))] if few < 16 && few == has)
        });
    };
    settled(&balancer);
    let theirs = part_of_a(front, 500);
    let ours = part_of_a(balancer.address("web"), 500);
    assert!((theirs - ours).abs() < 0.05, "{theirs} {ours}");
    assert!(theirs < 0.1, "{theirs}");
    let shown = run_evenkeel(&["steer", "--admin", &balancer.admin_address().to_string()]).unwrap();
    assert!(shown.contains("edge: group web, HAProxy unix:"), "{shown}");
    assert!(
        shown.contains("no members, left alone: stranger"),
        "{shown}"
    );
    assert_eq!(haproxy.server_state("stranger").2 & 1, 1);

    // HAProxy forgets, and is told again.
    haproxy.restart();
    wait_until("the restart is noticed", || {
        status(&balancer)["restarts"] == 1
    });
    settled(&balancer);
    assert_eq!(haproxy.server_state("second").1, 256);
    let up = balancer.read_metric("evenkeel_steer_up{steer=\"edge\"}");
    assert_eq!(up, Some(1.0));

    // Somebody else changes a weight.
    haproxy.run_command("set server web/second weight 3");
    wait_until("it is changed back", || {
        haproxy.server_state("second").1 == 256 && status(&balancer)["overridden"] == 1
    });

    // Loads that nobody reports any more are unknown, and weights alike: here at the end of the process.
    drop(reports);
    balancer.signal(Signal::TERM);
    assert!(balancer.wait_for_end().success());
    assert_eq!(haproxy.server_state("first").1, 10);
    assert_eq!(haproxy.server_state("second").1, 10);
}

#[test]
fn drain_and_maintenance_reach_haproxy_and_its_own_are_left_alone() {
    if !are_installed(&["haproxy"]) {
        return;
    }
    let members = members();
    let [a, b] = members.each_ref().map(Member::address);
    let mut haproxy = Haproxy::start(&format!(
        "backend web\n  server first {a} weight 10\n  server second {b} weight 10\n"
    ));
    let balancer = balancer(&members, &edge(&haproxy));
    let state = |server: &str| {
        let (_, weight, admin) = haproxy.server_state(server);
        (weight, admin)
    };
    let becomes = |server: &str, wanted: (u32, u32)| {
        wait_until(&format!("{server} becomes {wanted:?}"), || {
            state(server) == wanted
        });
    };
    becomes("first", (256, 0));
    becomes("second", (256, 0));
    let own = |words: &str| balancer.run_ctl(words).unwrap();
    own(&format!("drain web {a}"));
    becomes("first", (0, 0));
    own(&format!("ready web {a}"));
    becomes("first", (256, 0));
    own(&format!("maintenance web {a}"));
    becomes("first", (256, 1));
    own(&format!("ready web {a}"));
    becomes("first", (256, 0));
    own(&format!("weight web {b} 0.5"));
    // Within the smallest change that is sent, 3 %.
    wait_until("half of the weight", || {
        (124..=132).contains(&state("second").0)
    });

    // What HAProxy's own administrator does.
    haproxy.run_command("set server web/second state maint");
    let half = state("second").0;
    wait_until("it is noticed", || {
        let note = &status(&balancer)["members"][1]["note"];
        note.as_str()
            .is_some_and(|note| note.contains("left alone"))
    });
    own(&format!("drain web {b}"));
    own(&format!("drain web {a}"));
    becomes("first", (0, 0));
    assert_eq!(state("second"), (half, 1), "whatever we say");
    haproxy.run_command("set server web/second state ready");
    becomes("second", (0, 0));

    // Without HAProxy the status says so, and what has changed meanwhile is told later.
    haproxy.kill();
    wait_until("the failure is shown", || {
        let error = &status(&balancer)["error"];
        error
            .as_str()
            .is_some_and(|error| error.contains("HAProxy run"))
    });
    balancer.run_ctl(&format!("ready web {a}")).unwrap();
    haproxy.restart();
    wait_until("it is told", || haproxy.server_state("first").1 == 256);
    wait_until("of both", || haproxy.server_state("second").1 == 0);
    wait_until("and all is well", || status(&balancer)["error"].is_null());
}

#[test]
fn an_upgrade_is_no_end() {
    if !are_installed(&["haproxy"]) {
        return;
    }
    let members = members();
    let [a, b] = members.each_ref().map(Member::address);
    let haproxy = Haproxy::start(&format!(
        "backend web\n  server first {a} weight 10\n  server second {b} weight 10\n"
    ));
    let mut balancer = balancer(&members, &edge(&haproxy));
    wait_until("weights are set", || haproxy.server_state("first").1 == 256);
    balancer.run_ctl(&format!("maintenance web {a}")).unwrap();
    haproxy.wait_for("first", (0, 256, 1));
    let old = balancer.id();
    balancer.upgrade().unwrap();
    wait_until("the process before has ended", || {
        let stat = fs::read_to_string(format!("/proc/{old}/stat"));
        // Its parent, this test, has not asked yet how it has ended.
        stat.map_or(true, |stat| stat.contains(") Z "))
    });
    let state = |server: &str| {
        (
            haproxy.server_state(server).1,
            haproxy.server_state(server).2,
        )
    };
    assert_eq!((state("first"), state("second")), ((256, 1), (256, 0)));
    // Maintenance that the process before has begun is ended by the next.
    balancer.run_ctl(&format!("ready web {a}")).unwrap();
    wait_until("it is ready", || state("first") == (256, 0));
}

#[test]
fn a_socket_without_rights_and_a_backend_that_is_not_there_are_told() {
    if !are_installed(&["haproxy"]) {
        return;
    }
    let members = members();
    let [a, b] = members.each_ref().map(Member::address);
    let backend = format!("backend web\n  server first {a}\n  server second {b}\n");
    let error_of = |haproxy: &Haproxy, more: &str, wanted: &str| {
        let balancer = balancer(&members, &format!("{}{more}", edge(haproxy)));
        wait_until(&format!("it is told that {wanted}"), || {
            let error = &status(&balancer)["error"];
            error.as_str().is_some_and(|error| error.contains(wanted))
        });
    };
    let operator = Haproxy::start_at("operator", &backend);
    error_of(&operator, "", "needs `level admin`");
    assert_eq!(operator.server_state("first").1, 1);
    let admin = Haproxy::start(&backend);
    error_of(&admin, "backend = \"shop\"\n", "HAProxy says: ");

    // A backend with a static algorithm takes drain, but no weights.
    let fixed = Haproxy::start(&format!(
        "backend web\n  balance static-rr\n  server first {a} weight 10\n  server second {b} weight 20\n"
    ));
    let balancer = balancer(&members, &edge(&fixed));
    let _reports = Reports::start(balancer.admin_address(), &[("a", 0.9), ("b", 0.1)]);
    wait_until("that is told", || {
        let note = &status(&balancer)["members"][0]["note"];
        note.as_str()
            .is_some_and(|note| note.contains("roundrobin"))
    });
    assert_eq!(
        (
            fixed.server_state("first").1,
            fixed.server_state("second").1
        ),
        (10, 20)
    );
    balancer.run_ctl(&format!("drain web {a}")).unwrap();
    wait_until("it is drained", || fixed.server_state("first").1 == 0);
    assert_eq!(fixed.server_state("second").1, 20);
}

#[test]
fn members_that_haproxy_does_not_have_are_added_and_removed() {
    if !are_installed(&["haproxy"]) {
        return;
    }
    let members = members();
    let [a, b] = members.each_ref().map(Member::address);
    let front = address();
    let mut haproxy = Haproxy::start(&format!(
        "frontend in\n  bind {front}\n  default_backend web\n\
         backend web\n  balance roundrobin\n  server first {a} weight 10\n"
    ));
    let steered = format!("{}add_servers = \"check inter 200ms\"\n", edge(&haproxy));
    let balancer = balancer(&members, &steered);
    let added = format!("evenkeel-{b}");
    let has = |haproxy: &Haproxy| {
        haproxy
            .run_command("show servers state web")
            .contains(&added)
    };
    wait_until("the second one is added", || has(&haproxy));
    wait_until("and gets half of the requests", || {
        (part_of_a(front, 20) - 0.5).abs() < 0.01
    });
    haproxy.restart();
    wait_until("it is added again", || {
        has(&haproxy) && haproxy.server_state(&added) == (2, 256, 0)
    });
    let text = fs::read_to_string(balancer.folder().join("evenkeel.toml")).unwrap();
    let member = format!("{{ address = \"{b}\", location = \"b\" }},\n");
    assert!(text.contains(&member), "{text}");
    balancer.reconfigure(&text.replace(&member, ""));
    wait_until("it is removed", || !has(&haproxy));
    assert_eq!(part_of_a(front, 20), 1.0);
    let rest = status(&balancer);
    assert_eq!(rest["members"].as_array().map(Vec::len), Some(1), "{rest}");
}

#[test]
fn a_dry_run_says_what_would_be_sent() {
    if !are_installed(&["haproxy"]) {
        return;
    }
    let members = members();
    let [a, b] = members.each_ref().map(Member::address);
    let haproxy = Haproxy::start(&format!(
        "backend web\n  server first {a} weight 10\n  server second {b} weight 10\n"
    ));
    let folder = Folder::new();
    let group = format!(
        "[group.web]\nmembers = [\"{a}\", {{ address = \"{b}\", weight = 3 }}, \"127.0.0.1:9\"]\n"
    );
    let file = folder.write("evenkeel.toml", format!("{group}{}", edge(&haproxy)));
    let shown = run_evenkeel(&["steer", "--dry-run", file.to_str().unwrap()]).unwrap();
    for wanted in [
        "would send: set server web/first weight 85\n",
        "would send: set server web/second weight 256\n",
        "HAProxy has no server at this address in the backend\n",
    ] {
        assert!(shown.contains(wanted), "{shown}");
    }
    let steered = edge(&haproxy).replace("group = \"web\"", "group = \"web\"\ndry_run = true");
    let balancer = balancer(&members, &steered);
    wait_until("the balancer says the same", || {
        let pending = &status(&balancer)["pending"];
        pending.as_array().is_some_and(|pending| pending.len() == 2)
    });
    assert_eq!(
        (
            haproxy.server_state("first").1,
            haproxy.server_state("second").1
        ),
        (10, 10)
    );
    let gone = file.display().to_string();
    fs::write(&file, format!("{group}{}", edge(&haproxy))).unwrap();
    drop(haproxy);
    let failed = run_evenkeel(&["steer", "--dry-run", &gone]).unwrap_err();
    assert!(failed.contains("could not be checked"), "{failed}");
}

/// nginx with an upstream that includes a file, killed when dropped.
struct Nginx {
    folder: Folder,
    process: Child,
    at: SocketAddr,
}

impl Nginx {
    fn start(first: SocketAddr) -> Self {
        let folder = Folder::new();
        let at = address();
        let root = folder.path().display().to_string();
        folder.write("up.conf", format!("server {first};\n"));
        let config = folder.write(
            "nginx.conf",
            format!(
                "daemon off;\npid {root}/nginx.pid;\nerror_log {root}/error.log notice;\nevents {{ }}\n\
                 http {{\n access_log off;\n client_body_temp_path {root}/body;\n proxy_temp_path {root}/proxy;\n\
                 fastcgi_temp_path {root}/fastcgi;\n uwsgi_temp_path {root}/uwsgi;\n scgi_temp_path {root}/scgi;\n\
                 upstream up {{ include {root}/up.conf; }}\n\
                 server {{ listen {at}; location / {{ proxy_pass http://up; }} }}\n}}\n"
            ),
        );
        let process = parent_program("nginx")
            .arg("-c")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut nginx = Nginx {
            folder,
            process,
            at,
        };
        wait_until("nginx listens", || {
            assert!(
                nginx.process.try_wait().unwrap().is_none(),
                "{}",
                nginx.folder.text("error.log")
            );
            std::net::TcpStream::connect(at).is_ok() && nginx.folder.join("nginx.pid").exists()
        });
        nginx
    }

    /// The `[steer.front]` for it.
    fn front(&self, more: &str) -> String {
        let root = self.folder.path().display();
        format!(
            "[steer.front]\ngroup = \"web\"\n[steer.front.nginx]\nfile = \"{root}/up.conf\"\n\
             check = [\"{}\", \"-t\", \"-q\", \"-c\", \"{root}/nginx.conf\"]\npid_file = \"{root}/nginx.pid\"\n\
             interval = \"500ms\"\nurgent_interval = \"100ms\"\n{more}",
            evenkeel_e2e::process::find("nginx").unwrap().display()
        )
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        signal(self.process.id(), Signal::TERM);
        let _ = self.process.wait();
    }
}

#[test]
fn nginx_gives_the_shares_of_the_file_and_reloads_for_nothing_less() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let members = members();
    let [a, b] = members.each_ref().map(Member::address);
    let nginx = Nginx::start(a);
    let mut balancer = balancer(&members, &nginx.front(""));
    let reports = Reports::start(balancer.admin_address(), &[("a", 0.9), ("b", 0.1)]);
    wait_until("weights follow loads", || {
        let few = weights(&status(&balancer));
        matches!(few[..], [(few, Some(_)), (256, Some(256))] if few < 16)
    });
    // Old workers of nginx answer a while yet.
    let mut theirs = 1.0;
    wait_until("nginx does as the file says", || {
        theirs = part_of_a(nginx.at, 300);
        theirs < 0.1
    });
    let ours = part_of_a(balancer.address("web"), 300);
    assert!((theirs - ours).abs() < 0.05, "{theirs} {ours}");
    balancer.run_ctl(&format!("drain web {b}")).unwrap();
    wait_until("b is down in nginx", || {
        let text = nginx.folder.text("up.conf");
        text.contains(&format!("server {b} down; # draining")) && part_of_a(nginx.at, 20) == 1.0
    });
    balancer.run_ctl(&format!("ready web {b}")).unwrap();
    wait_until("b is back", || part_of_a(nginx.at, 100) < 0.2);
    drop(reports);
    balancer.signal(Signal::TERM);
    assert!(balancer.wait_for_end().success());
    let text = nginx.folder.text("up.conf");
    for member in [a, b] {
        assert!(
            text.contains(&format!("server {member} weight=256;\n")),
            "{text}"
        );
    }
}

#[test]
fn what_nginx_does_not_take_is_put_back() {
    if !are_installed(&["nginx"]) {
        return;
    }
    let members = members();
    let nginx = Nginx::start(members[0].address());
    let before = nginx.folder.text("up.conf");
    let front = nginx.front("parameters = \"nonsense=1\"\n");
    let steered = balancer(&members, &front);
    wait_until("it is told", || {
        let error = &status(&steered)["error"];
        error
            .as_str()
            .is_some_and(|error| error.contains("nonsense=1") && error.contains("put back"))
    });
    assert_eq!(nginx.folder.text("up.conf"), before);
    assert!(Path::new(&nginx.folder.join("nginx.pid")).exists());
    assert_eq!(part_of_a(nginx.at, 5), 1.0);
    // With what is right, by reload as it were.
    steered.reconfigure(
        &fs::read_to_string(steered.folder().join("evenkeel.toml"))
            .unwrap()
            .replace("nonsense=1", "max_fails=7"),
    );
    wait_until("the right file is there", || {
        nginx.folder.text("up.conf").contains(" max_fails=7;")
    });
    wait_until("and no error", || status(&steered)["error"].is_null());
}

//! A process takes the place of another one, and no client notices; or it cannot, and the one
//! before goes on.
//!
//! A process must live for five seconds before it is trusted, so each upgrade here takes that
//! long. `EVENKEEL_UPGRADES`, `EVENKEEL_SESSIONS` and `EVENKEEL_IDLE` have more of them than usual.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use evenkeel_e2e::agent::key_file;
use evenkeel_e2e::balancer::{Balancer, evenkeel_binary, run_evenkeel, run_lab};
use evenkeel_e2e::corba::LoadManager;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::load::{Clients, Wrk};
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::process::{Signal, are_installed};
use evenkeel_e2e::server::Server;
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

fn times(variable: &str, usually: usize) -> usize {
    let given = std::env::var(variable).ok();
    given.map_or(usually, |given| given.parse().unwrap())
}

/// A balancer whose program is `evenkeel` in its folder, where a test may put another one.
fn start(config: &str, more: &str, prepare: impl FnOnce(&Folder)) -> Balancer {
    Balancer::start_by(config, |folder| {
        prepare(folder);
        symlink(evenkeel_binary(), folder.join("evenkeel")).unwrap();
        let mut command = Command::new("sh");
        let script = format!("exec \"$0\" \"$@\" {more}");
        command.args(["-c", &script]).arg(folder.join("evenkeel"));
        command
    })
}

/// Puts this script in the place of the program.
fn replace_program(balancer: &Balancer, script: &str) {
    let fresh = balancer.folder().write("program", script);
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(fresh, balancer.folder().join("evenkeel")).unwrap();
}

fn config(members: &[SocketAddr], more: &str) -> String {
    let members: Vec<_> = members.iter().map(ToString::to_string).collect();
    format!(
        "workers = 2\nshutdown_grace = \"20s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = {members:?}\n{more}\n"
    )
}

fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// Has `evenkeel-lab load` ask again and again, until it is told to stop: no request may fail.
fn keep_asking(url: String, more: &'static str, stop: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        let folder = Folder::new();
        let json = folder.join("out.json").display().to_string();
        let words = "--requests 500 --connections 4 --insecure --timeout 60s";
        let mut arguments = vec!["load", &url, "--quiet", "--json", &json];
        arguments.extend(words.split(' ').chain(more.split_whitespace()));
        while !stop.load(Ordering::Relaxed) {
            run_lab(&arguments).unwrap();
            let run: Value = serde_json::from_str(&folder.text("out.json")).unwrap();
            assert_eq!(run["errors"], serde_json::json!({}), "{run}");
            assert_eq!(run["statuses"]["200"], 500, "{run}");
        }
    })
}

#[test]
fn upgrades_and_reloads_under_load_cost_no_answer() {
    if !are_installed(&["nginx", "wrk", "openssl"]) {
        return;
    }
    let content = "0123456789abcdef".repeat(64);
    let servers: [Server; 3] = Server::nginx_alike("document", &content);
    let members = servers.each_ref().map(Server::address);
    let tls = format!(
        "[rule.tls]\nlisten = \"127.0.0.1:0\"\nmembers = {:?}\n\
         [rule.tls.tls]\ncertificates = [{{ certificate = \"own.pem\", key = \"own.pem\" }}]\n",
        members.each_ref().map(ToString::to_string)
    );
    let text = |more: &str| config(&members, &format!("{more}{tls}"));
    let mut balancer = start(&text(""), "", |folder| {
        make_certificate(folder, "own", Key::Ecdsa, "IP:127.0.0.1", None);
    });
    let (web, secure) = (balancer.address("web"), balancer.address("tls"));
    let wrk = Wrk::start(web, "/files/document", content.as_bytes());
    let clients = Clients::start(web, 4);
    let upgrades = times("EVENKEEL_UPGRADES", 2);
    let stop = Arc::new(AtomicBool::new(false));
    let runs = [
        (format!("https://{secure}/files/document"), ""),
        (format!("https://{secure}/files/document"), "--http2"),
    ];
    let runs = runs.map(|(url, more)| keep_asking(url, more, &stop));
    clients.wait_for(50);
    let mut processes = vec![balancer.id()];
    for number in 0..upgrades {
        balancer.upgrade().unwrap();
        processes.push(balancer.id());
        clients.wait_for(50);
        let retries = format!("max_queue = {}\n", 100 + number);
        balancer.reconfigure(&text(&retries));
        clients.wait_for(50);
    }
    clients.stop_and_count();
    let tally = wrk.stop_and_tally();
    assert!(tally.requests > 100, "{tally:?}");
    assert_eq!((tally.wrong, tally.errors), (0, 0), "{tally:?}");
    stop.store(true, Ordering::Relaxed);
    for run in runs {
        run.join().unwrap();
    }
    // Those before have nobody left, and end.
    processes.pop();
    wait_until("the processes before end", || {
        !processes.iter().any(|process| is_alive(*process))
    });
    assert!(balancer.status()["generation"].as_u64() > Some(upgrades as u64));
}

#[test]
fn who_is_connected_stays_until_the_grace_ends() {
    let member = Member::start(|script, mut wire| {
        let Some(request) = script.read_request(&mut wire) else {
            return;
        };
        if request.values("upgrade").is_empty() {
            wire.send(ok_response(request.second_word()));
            while let Some(request) = script.read_request(&mut wire) {
                if !wire.try_send(ok_response(request.second_word())) {
                    return;
                }
            }
            return;
        }
        wire.send("HTTP/1.1 101 Yes\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
        while let Some(line) = wire.try_read_until(b"\n") {
            if !wire.try_send(line) {
                return;
            }
        }
    });
    let tcp = format!(
        "[rule.tcp]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tcp\"\nmembers = [\"{}\"]\n",
        member.address()
    );
    let more = format!("header_timeout = \"5m\"\nkeep_alive_timeout = \"5m\"\n{tcp}");
    let mut balancer = start(&config(&[member.address()], &more), "", |_| ());
    let web = balancer.address("web");
    let sessions = times("EVENKEEL_SESSIONS", 40);
    let mut sockets: Vec<Wire> = (0..sessions)
        .map(|_| {
            let mut wire = Wire::connect(web);
            wire.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
            assert_eq!(wire.read_head().second_word(), "101");
            wire
        })
        .collect();
    let mut plain = Wire::connect(balancer.address("tcp"));
    let ask = |wire: &mut Wire, target: &str| {
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = wire.read_response();
        assert_eq!((answer.second_word(), answer.text()), ("200", target));
        answer
    };
    ask(&mut plain, "/first");
    let mut idle: Vec<TcpStream> = (0..times("EVENKEEL_IDLE", 200))
        .map(|_| TcpStream::connect(web).unwrap())
        .collect();
    let mut kept: Vec<Wire> = (0..20).map(|_| Wire::connect(web)).collect();
    for wire in &mut kept {
        ask(wire, "/kept");
    }
    let before = balancer.id();
    balancer.upgrade().unwrap();
    let speak = |sockets: &mut Vec<Wire>| {
        for (number, wire) in sockets.iter_mut().enumerate() {
            let line = format!("{number}\n");
            wire.send(&line);
            assert_eq!(wire.try_read_exact(line.len()).unwrap(), line.as_bytes());
        }
    };
    speak(&mut sockets);
    ask(&mut plain, "/second");
    // An idle connection is not closed, as it would be a second after SIGTERM; its next answer says
    // that it is the last.
    thread::sleep(Duration::from_secs(2));
    for wire in &mut kept {
        let answer = ask(wire, "/again");
        assert_eq!(answer.values("connection"), ["close"]);
    }
    for stream in &mut idle {
        stream.set_nonblocking(true).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
    for stream in idle.iter_mut().step_by(50) {
        stream.set_nonblocking(false).unwrap();
        let target = "/late";
        write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
    speak(&mut sockets);
    assert!(is_alive(before));
    // When the grace ends, everything does.
    wait_until("the process before ends", || !is_alive(before));
    assert!(sockets.iter_mut().all(Wire::is_at_end));
    assert!(plain.is_at_end());
    ask(&mut Wire::connect(web), "/new");
}

#[test]
fn the_one_before_goes_on_if_the_new_one_cannot() {
    let member = Member::echoing_targets();
    let more = "[corba]\nlisten = \"127.0.0.1:0\"\nstate_file = \"state\"\n";
    let text = config(&[member.address()], more);
    let mut balancer = start(&text, "--upgrade-timeout 20", |_| ());
    let (web, before) = (balancer.address("web"), balancer.id());
    let service = LoadManager::at_address(balancer.corba_address());
    let group = service.create_group("IDL:Test:1.0", Vec::new()).unwrap().0;
    let mut kept = Wire::connect(web);
    let mut works = || {
        for wire in [&mut kept, &mut Wire::connect(web)] {
            wire.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
            let answer = wire.read_response();
            assert_eq!(answer.text(), "/x");
            assert!(answer.values("connection").is_empty(), "{}", answer.head);
        }
        assert!(service.locations(&group).unwrap().is_empty());
        assert!(is_alive(before));
    };
    let mut refused = |balancer: &mut Balancer, why: &str| {
        let error = balancer.upgrade().unwrap_err();
        assert!(error.contains(why), "{error}");
        balancer.wait_for_log(why);
        works();
    };
    let program = balancer.folder().join("evenkeel");

    fs::remove_file(&program).unwrap();
    refused(&mut balancer, "cannot start ");
    replace_program(&balancer, "#!/bin/sh\nexit 7\n");
    refused(&mut balancer, "ended before it was ready");
    replace_program(&balancer, "#!/bin/sh\nexec sleep 1000\n");
    refused(&mut balancer, "was not ready within 20s");
    let real = evenkeel_binary().display();
    replace_program(&balancer, &format!("#!/bin/sh\nexec {real} \"$@\"\n"));
    balancer.write_config("[rule.web]\nlisten = 7\n");
    let refusals = |balancer: &Balancer| {
        let log = balancer.log();
        log.matches("the configuration stays as it was").count()
    };
    wait_until("the running one has refused it", || refusals(&balancer) > 0);
    refused(&mut balancer, "the configuration has errors");
    // One that can do nothing for its address.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let other = text.replace(
        "[rule.web]\nlisten = \"127.0.0.1:0\"",
        &format!("[rule.web]\nlisten = \"{at}\""),
    );
    let known = refusals(&balancer);
    balancer.write_config(&other);
    wait_until("the running one has refused that, too", || {
        refusals(&balancer) > known
    });
    refused(&mut balancer, "cannot start: ");
    balancer.write_config(&text);
    wait_until("the old text is in force", || {
        balancer.log().matches("configuration applied").count() >= 1
    });
    // It comes up, and dies before it is trusted.
    let known = balancer
        .log()
        .matches("takes over from the old one")
        .count();
    thread::scope(|scope| {
        let admin = balancer.admin_address().to_string();
        let upgrade = scope.spawn(move || run_evenkeel(&["upgrade", "--admin", &admin]));
        let log = || balancer.log();
        wait_until("another process serves", || {
            let log = log();
            let after = log.split("takes over from the old one").nth(known + 1);
            after.is_some_and(|after| after.contains("configuration applied"))
        });
        let log = log();
        let pid = log.rsplit("is to take over pid=").next().unwrap();
        let pid = pid.split_whitespace().next().unwrap().parse().unwrap();
        evenkeel_e2e::process::signal(pid, Signal::KILL);
        let error = upgrade.join().unwrap().unwrap_err();
        assert!(error.contains("the new process ended"), "{error}");
    });
    works();
}

#[test]
fn what_was_learnt_goes_on() {
    let slow = Duration::from_millis(40);
    let serve = |time: Duration| {
        Member::answering_with(move |request| {
            thread::sleep(time);
            ok_response(request.second_word())
        })
    };
    let members = [
        serve(Duration::ZERO),
        serve(Duration::ZERO),
        serve(slow),
        serve(Duration::ZERO),
    ];
    let at = members.each_ref().map(Member::address);
    let dead = evenkeel_e2e::server::address();
    let all = [at[0], at[1], at[2], at[3], dead];
    let more = "[rule.web.health_check]\ninterval = \"1s\"\n";
    let mut balancer = start(&config(&all, more), "", |_| ());
    let web = balancer.address("web");
    let mut ask = {
        let mut wire = Wire::connect(web);
        move |times: usize| {
            for _ in 0..times {
                wire.send("GET /asked HTTP/1.1\r\nHost: a\r\n\r\n");
                let answer = wire.read_response();
                assert_eq!(answer.second_word(), "200");
                if answer.values("connection").contains(&"close") {
                    wire = Wire::connect(web);
                }
            }
        }
    };
    balancer.wait_for_state("web", dead, &["down"]);
    ask(400);
    balancer.run_ctl(&format!("drain web {}", at[3])).unwrap();
    balancer
        .run_ctl(&format!("weight web {} 3", at[1]))
        .unwrap();
    balancer.upgrade().unwrap();
    let member = |at| balancer.member_status("web", at);
    assert_eq!(member(dead)["state"], "down");
    assert_eq!(member(at[3])["state"], "draining");
    assert_eq!(member(at[1])["weight"], 3.0);
    // That the figures are the same, a test of the manager shows.
    balancer.wait_for_log("upgrade: members have the state that the old process has learnt");
    for member in &members {
        member.seen_events();
    }
    ask(100);
    // Not those of health checks.
    let asked = |seen: &Seen| matches!(seen, Seen::Request(_, of) if of.second_word() == "/asked");
    let seen = members.each_ref().map(|member| {
        member
            .seen_events()
            .iter()
            .filter(|seen| asked(seen))
            .count()
    });
    assert_eq!(seen.iter().sum::<usize>(), 100, "{seen:?}");
    assert!(seen[2] < 34, "{seen:?}");
    assert_eq!(seen[3], 0, "{seen:?}");
}

#[test]
fn sessions_of_tls_are_resumed_by_the_next_process() {
    if !are_installed(&["openssl"]) {
        return;
    }
    let member = Member::echoing_targets();
    let tls = "[rule.web.tls]\ncertificates = [{ certificate = \"own.pem\", key = \"own.pem\" }]\n";
    let mut balancer = start(&config(&[member.address()], tls), "", |folder| {
        make_certificate(folder, "own", Key::Ecdsa, "IP:127.0.0.1", None);
    });
    let web = balancer.address("web").to_string();
    let session = balancer.folder().join("session").display().to_string();
    let connect = |option: &str| {
        let mut command = evenkeel_e2e::process::program("openssl");
        command.args(["s_client", "-connect", &web, option, &session, "-ign_eof"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.stderr(Stdio::null()).spawn().unwrap();
        let mut stdin = process.stdin.take().unwrap();
        stdin
            .write_all(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .unwrap();
        let output = process.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let first = connect("-sess_out");
    assert!(first.contains("New, TLSv1.3"), "{first}");
    balancer.upgrade().unwrap();
    let second = connect("-sess_in");
    assert!(second.contains("Reused, TLSv1.3"), "{second}");
}

#[test]
fn what_only_one_can_have_is_passed_on() {
    let member = Member::echoing_targets();
    let more = "[broker]\nlisten = \"127.0.0.1:0\"\nkey_file = \"broker.key\"\n\
                [negotiator]\nlisten = \"127.0.0.1:0\"\n\
                [corba]\nlisten = \"127.0.0.1:0\"\n";
    let prepare = |folder: &Folder| drop(key_file(folder));
    let mut balancer = start(&config(&[member.address()], more), "", prepare);
    let service = LoadManager::at_address(balancer.corba_address());
    let group = service.create_group("IDL:Test:1.0", Vec::new()).unwrap().0;
    let (broker, negotiator) = (balancer.broker_address(), balancer.negotiator_address());
    balancer.upgrade().unwrap();
    // Without a state file, too.
    assert!(service.locations(&group).unwrap().is_empty());
    assert_eq!(
        (balancer.broker_address(), balancer.negotiator_address()),
        (broker, negotiator)
    );
    TcpStream::connect(negotiator).unwrap();
    balancer.upgrade().unwrap();
    assert!(service.locations(&group).unwrap().is_empty());
}

/// A socket at which a service manager is told of things.
fn told(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn a_service_manager_is_told_who_is_who() {
    let member = Member::echoing_targets();
    let folder = Folder::new();
    let path = folder.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(evenkeel_e2e::HANG)).unwrap();
    let text = config(&[member.address()], "");
    let mut balancer = Balancer::start_by(&text, |_| {
        let mut command = Command::new(evenkeel_binary());
        command.env("NOTIFY_SOCKET", &path);
        command
    });
    assert_eq!(told(&socket), "READY=1");
    balancer.signal(Signal::HUP);
    let reloading = told(&socket);
    let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
    assert!(micros.unwrap().parse::<u64>().unwrap() > 0, "{reloading}");
    assert_eq!(told(&socket), "READY=1");
    balancer.signal(Signal::USR2);
    let main = told(&socket);
    let main = main.strip_prefix("MAINPID=").unwrap().parse().unwrap();
    assert_ne!(main, balancer.id());
    assert_eq!(told(&socket), "READY=1");
    balancer.succeeded_by(main);
    balancer.signal(Signal::TERM);
    assert_eq!(told(&socket), "STOPPING=1");
}

/// A balancer with this listener as a service manager passes one.
fn activated(config: &str, listener: &TcpListener) -> Balancer {
    let passed: OwnedFd = listener.try_clone().unwrap().into();
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg("exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"")
        .arg(evenkeel_binary());
    Balancer::start_by_with_input(config, command, Stdio::from(passed))
}

#[test]
fn restarts_with_sockets_of_a_service_manager_cost_no_answer() {
    if !are_installed(&["nginx", "wrk"]) {
        return;
    }
    let server = Server::start_nginx(None);
    let content = "0123456789abcdef".repeat(64);
    server.put_document("document", &content);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let web = listener.local_addr().unwrap();
    let text = config(&[server.address()], "").replace(
        "[rule.web]\nlisten = \"127.0.0.1:0\"",
        &format!("[rule.web]\nlisten = \"{web}\""),
    );
    let mut balancer = activated(&text, &listener);
    let wrk = Wrk::start(web, "/files/document", content.as_bytes());
    let clients = Clients::start(web, 4);
    clients.wait_for(50);
    for _ in 0..times("EVENKEEL_UPGRADES", 3) {
        balancer.signal(Signal::TERM);
        balancer.wait_for_end();
        balancer = activated(&text, &listener);
        clients.wait_for(50);
    }
    clients.stop_and_count();
    let tally = wrk.stop_and_tally();
    assert!(tally.requests > 100, "{tally:?}");
    assert_eq!((tally.wrong, tally.errors), (0, 0), "{tally:?}");
}

/// A secret that the old process has read is handed to the new process, which cannot read the
/// secret's file.
#[test]
fn a_secret_that_is_broken_holds_up_no_upgrade() {
    let member = Member::echoing_targets();
    let more = format!(
        "[rule.files]\nlisten = \"127.0.0.1:0\"\nprotocol = \"ftp\"\nmembers = [\"{}\"]\n\
         [rule.files.health_check]\nuser = \"anna\"\npassword_file = \"password\"\ninterval = \"1h\"\n",
        member.address()
    );
    let text = config(&[member.address()], &more);
    let mut balancer = start(&text, "", |folder| {
        folder.write_private("password", "secret\n");
    });
    // Readable for everybody, and so refused.
    balancer.folder().write("password", "secret\n");
    balancer.wait_for_log("stays in use until the file is right");
    balancer.upgrade().unwrap();
    let mut wire = Wire::connect(balancer.address("web"));
    wire.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(wire.read_response().text(), "/x");
    assert_eq!(balancer.status()["last_reload"]["error"], Value::Null);
}

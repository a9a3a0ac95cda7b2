//! Exhaustion of resources of the balancer, or its machine: files, memory, ports, threads, a disk,
//! a reader of its log. The tests demand: nothing is held against a member, what administrators
//! need goes on, and when there is enough again, everything works.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary};
use evenkeel_e2e::cgroup::{MemoryLimit, ThreadLimit};
use evenkeel_e2e::corba::LoadManager;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::netns::Namespace;
use evenkeel_e2e::process::{are_installed, report_skipped, succeeds};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

/// A member that answers checks, and echoes lines on other connections until they end.
fn echoing() -> Member {
    Member::start(|script, mut wire| {
        while let Some(line) = wire.try_read_until(b"\n") {
            if line.starts_with(b"GET ") {
                if wire.try_read_until(b"\r\n\r\n").is_some() {
                    script.record_event(evenkeel_e2e::member::Seen::End(
                        script.connection,
                        evenkeel_e2e::wire::Ended::Between,
                    ));
                    wire.try_send(ok_response("well"));
                }
                return;
            }
            if !wire.try_send(&line) {
                return;
            }
        }
    })
}

/// Often, and long enough for an answer on a machine that has much else to do.
fn check(fall: u32) -> String {
    format!(
        "health_check = {{ type = \"http\", path = \"/\", interval = \"100ms\", \
         timeout = \"10s\", fall = {fall} }}\n"
    )
}

/// A configuration with a TCP rule for each name, all with one member.
fn tcp_rules(names: &[&str], member: SocketAddr) -> String {
    let rules = names.iter().map(|name| {
        format!("[rule.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tcp\"\ngroup = \"app\"\n")
    });
    let rules: String = rules.collect();
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n{rules}\
         [group.app]\nmembers = [\"{member}\"]\n{}",
        check(1)
    )
}

/// A sample of a metric; 0 if it is not there.
fn metric(balancer: &Balancer, name: &str) -> f64 {
    balancer.read_metric(name).unwrap_or_default()
}

fn status(balancer: &Balancer) -> Value {
    serde_json::from_str(balancer.admin_get("/v1/status").text()).unwrap()
}

fn state(balancer: &Balancer) -> String {
    let status = status(balancer);
    status["groups"][0]["members"][0]["state"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Returns true if a line comes back through this connection.
fn echoes(client: &mut Wire) -> bool {
    client.try_send("hello\n") && client.try_read_until(b"\n").is_some()
}

/// More clients than files, all of them idle: checks, the admin API and a reload go on, the
/// member stays up, and afterwards everybody is served.
#[test]
fn s5_files_run_out() {
    if !are_installed(&["prlimit"]) {
        return;
    }
    let member = echoing();
    let config = tcp_rules(&["web"], member.address());
    let balancer = Balancer::start_by(&config, |_| {
        let mut command = Command::new("prlimit");
        command
            .args(["--nofile=256:256", "--"])
            .arg(evenkeel_binary());
        command
    });
    let limits = status(&balancer)["limits"].clone();
    let most = limits["clients"].as_u64().unwrap();
    assert!((30..120).contains(&most), "{limits}");
    balancer.wait_for_log("reserve");

    let mut first = balancer.connect();
    assert!(echoes(&mut first));
    let mut idle: Vec<Wire> = (0..240).map(|_| balancer.connect()).collect();
    wait_until("there are as many clients as there may be", || {
        status(&balancer)["limits"]["clients_open"] == most
    });
    // Checks that began after that are passed.
    member.seen_events();
    for _ in 0..5 {
        member.next();
    }
    assert_eq!(state(&balancer), "up");
    let more = "[rule.more]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tcp\"\ngroup = \"app\"\n";
    let (start, end) = config.split_once("[group.app]").unwrap();
    balancer.reconfigure(&format!("{start}{more}[group.app]{end}"));
    assert_eq!(status(&balancer)["rules"].as_array().unwrap().len(), 2);
    assert!(echoes(&mut first), "who is served goes on");

    // Each that leaves makes room for one that waits.
    let waiting = idle.split_off(most as usize);
    drop(idle);
    for mut client in waiting {
        assert!(echoes(&mut client));
    }
    let mut last = balancer.connect();
    assert!(echoes(&mut last));
    assert!(!balancer.log().contains("is down"), "{}", balancer.log());
    assert!(!balancer.log().contains("ejected"), "{}", balancer.log());
}

/// Idle connections to members hold nothing that a client needs.
#[test]
fn s5_idle_connections_to_members_make_way() {
    if !are_installed(&["prlimit"]) {
        return;
    }
    let members: Vec<_> = (0..4).map(|_| Member::echoing_targets()).collect();
    let addresses: Vec<_> = members
        .iter()
        .map(|member| format!("\"{}\"", member.address()))
        .collect();
    let config = format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         protocol = \"http\"\nmembers = [{}]\nhealth_check = false\n",
        addresses.join(", ")
    );
    let balancer = Balancer::start_by(&config, |_| {
        let mut command = Command::new("prlimit");
        command
            .args(["--nofile=256:256", "--"])
            .arg(evenkeel_binary());
        command
    });
    let most = status(&balancer)["limits"]["clients"].as_u64().unwrap() as usize;
    for _ in 0..3 {
        // As many at a time as there may be: each leaves an idle connection behind.
        let mut clients: Vec<Wire> = (0..most).map(|_| balancer.connect()).collect();
        for client in &mut clients {
            client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        for client in &mut clients {
            assert_eq!(client.read_response().second_word(), "200");
        }
        drop(clients);
    }
    assert_eq!(
        metric(
            &balancer,
            "evenkeel_rule_refused_total{rule=\"web\",reason=\"exhausted\"}"
        ),
        0.0
    );
}

/// A member that answers checks, and lets everybody else wait: it reads no bodies, and its
/// responses are larger than anybody here takes.
fn obstinate() -> Member {
    Member::start(|script, mut wire| {
        while let Some(head) = wire.try_read_head() {
            let answered = match head.start_line() {
                "GET /check HTTP/1.1" => {
                    let end = evenkeel_e2e::wire::Ended::Between;
                    script.record_event(evenkeel_e2e::member::Seen::End(script.connection, end));
                    wire.try_send(ok_response("well"))
                }
                line if line.starts_with("GET /large ") => {
                    wire.try_send(ok_response(&"x".repeat(1 << 20)))
                }
                line if line.starts_with("POST ") => loop {
                    std::thread::park();
                },
                _ => wire.try_send(ok_response("served")),
            };
            if !answered {
                return;
            }
        }
    })
}

/// A client that sends as much as is taken of it, and reads nothing.
struct Glutton {
    stream: TcpStream,
    rest: &'static [u8],
}

impl Glutton {
    fn start(address: SocketAddr, sends: &'static [u8]) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut glutton = Glutton {
            stream,
            rest: sends,
        };
        glutton.send();
        glutton
    }

    fn send(&mut self) {
        while !self.rest.is_empty() {
            match self.stream.write(self.rest) {
                Ok(sent) => self.rest = &self.rest[sent..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // It was refused.
                Err(_) => self.rest = &[],
            }
        }
    }
}

/// Requests over HTTP/2, each of which is `method` for `path` and has so many bytes of body, from a
/// client whose windows are as wide as they can be.
fn over_http2(method: u8, path: &str, requests: u8, body: usize) -> &'static [u8] {
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let header = [&length[1..], &[kind, flags, 0, 0, 0, stream]].concat();
        [&header[..], payload].concat()
    };
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]));
    bytes.extend(frame(8, 0, 0, &[0x7f, 0, 0, 0]));
    for number in 0..requests {
        let length = u8::try_from(path.len()).unwrap();
        // From the table of HPACK: the method, the scheme, the path and the authority `a`.
        let head = [&[method, 0x86, 4, length], path.as_bytes(), &[1, 1, b'a']].concat();
        let end_of_stream = u8::from(body == 0);
        bytes.extend(frame(1, 4 | end_of_stream, 2 * number + 1, &head));
        if body > 0 {
            bytes.extend(frame(0, 0, 2 * number + 1, &vec![b'x'; body]));
        }
    }
    bytes.leak()
}

/// Far more clients than there is memory for, and each takes what it can get: a large part of
/// a head, a body that nobody reads, a response that it does not read. The process would be
/// aborted if it allocated more than it may. Checks, the admin API and a reload go on, the
/// member stays up, and afterwards everybody is served.
#[test]
fn s5_memory_runs_out() {
    if !are_installed(&["prlimit"]) {
        return;
    }
    let Some(namespace) = Namespace::with_loopback() else {
        return;
    };
    // So that bytes wait in the balancer and not in the kernel.
    namespace.run_inside(|| {
        fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 16384 16384").unwrap();
        fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 16384").unwrap();
    });
    let member = namespace.run_inside(obstinate);
    let rule = |name: &str| {
        format!("[rule.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\ngroup = \"app\"\n")
    };
    let start = format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n{}",
        rule("web")
    );
    let end = format!(
        "[group.app]\nmembers = [\"{}\"]\nhealth_check = {{ type = \"http\", \
         path = \"/check\", interval = \"100ms\", timeout = \"10s\", fall = 1 }}\n",
        member.address()
    );
    let balancer = Balancer::start_by(&format!("{start}{end}"), |_| {
        let mut command = namespace.command("prlimit");
        command
            .args(["--as=184549376:184549376", "--"])
            .arg(evenkeel_binary());
        command
    });
    let balancer = &balancer;
    let head: &[u8] = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(30_000))
        .leak()
        .as_bytes();
    let body: &[u8] = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n{}",
        "x".repeat(300_000)
    )
    .leak()
    .as_bytes();
    let large: &[u8] = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n";
    // 0x82 is GET, 0x83 is POST.
    let many_large = over_http2(0x82, "/large", 4, 0);
    let many_bodies = over_http2(0x83, "/", 4, 16_000);
    namespace.run_inside(move || {
        let limits = status(balancer)["limits"].clone();
        let most = limits["clients"].as_u64().unwrap() as usize;
        assert!((50..3000).contains(&most), "{limits}");
        assert_eq!(limits["memory"], 176 << 20);
        wait_until("that is said", || {
            balancer
                .log()
                .contains("the memory limits the number of clients")
        });

        let kinds = [head, body, large, many_large, many_bodies];
        let mut clients: Vec<Glutton> = (0..2 * most)
            .map(|number| Glutton::start(balancer.address("web"), kinds[number % kinds.len()]))
            .collect();
        let short = || metric(balancer, "evenkeel_shortages_total{resource=\"memory\"}");
        wait_until(
            "there are as many clients as there may be, or more large heads",
            || {
                clients.iter_mut().for_each(Glutton::send);
                let open = status(balancer)["limits"]["clients_open"].as_u64().unwrap();
                open as usize == most && short() > 0.0
            },
        );
        // Checks that begin after that are passed.
        member.seen_events();
        for _ in 0..5 {
            member.next();
        }
        assert_eq!(state(balancer), "up");
        balancer.reconfigure(&format!("{start}{}{end}", rule("more")));
        assert_eq!(status(balancer)["rules"].as_array().unwrap().len(), 2);

        drop(clients);
        wait_until("there is room again", || {
            let mut client = Wire::connect(balancer.address("web"));
            client.try_send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                && client
                    .try_read_head()
                    .is_some_and(|head| head.second_word() == "200")
        });
        assert_eq!(state(balancer), "up");
        assert!(!balancer.log().contains("is down"), "{}", balancer.log());
        assert!(!balancer.log().contains("ejected"), "{}", balancer.log());
    });
}

/// The limit of a cgroup, as containers and services have it: the kernel kills who exceeds it.
#[test]
fn s5_memory_of_a_cgroup_runs_out() {
    let Some(limit) = MemoryLimit::new(160 << 20) else {
        report_skipped("no right to limit memory by a cgroup; run it as root");
        return;
    };
    let member = obstinate();
    let config = format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\ngroup = \"app\"\n\
         [group.app]\nmembers = [\"{}\"]\nhealth_check = {{ type = \"http\", \
         path = \"/check\", interval = \"100ms\", timeout = \"10s\", fall = 1 }}\n",
        member.address()
    );
    let balancer = Balancer::start_by(&config, |_| limit.command(evenkeel_binary()));
    let limits = status(&balancer)["limits"].clone();
    assert_eq!(limits["memory"], 160 << 20);
    let most = limits["clients"].as_u64().unwrap() as usize;
    assert!((50..3000).contains(&most), "{limits}");
    let head: &[u8] = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(30_000))
        .leak()
        .as_bytes();
    let web = balancer.address("web");
    let mut clients: Vec<Glutton> = (0..2 * most).map(|_| Glutton::start(web, head)).collect();
    let short = || metric(&balancer, "evenkeel_shortages_total{resource=\"memory\"}");
    wait_until("large heads find no memory", || {
        clients.iter_mut().for_each(Glutton::send);
        short() > 0.0
    });
    member.seen_events();
    for _ in 0..5 {
        member.next();
    }
    assert_eq!(state(&balancer), "up");
    drop(clients);
    wait_until("there is room again", || {
        let mut client = balancer.connect();
        client.try_send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            && client
                .try_read_head()
                .is_some_and(|head| head.second_word() == "200")
    });
    assert!(!balancer.log().contains("is down"), "{}", balancer.log());
}

/// More connections to a member than there are local ports.
#[test]
fn s5_ports_run_out() {
    let Some(namespace) = Namespace::with_loopback() else {
        return;
    };
    namespace.run_inside(|| {
        // The file shows the settings of whoever opens it.
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40049").unwrap();
    });
    let member = namespace.run_inside(echoing);
    let config = tcp_rules(&["web", "more", "most"], member.address());
    let balancer = Balancer::start_by(&config, |_| namespace.command(evenkeel_binary()));
    let balancer = &balancer;
    let failures = format!(
        "evenkeel_member_requests_total{{group=\"app\",member=\"{}\",outcome=\"failure\"}}",
        member.address()
    );
    namespace.run_inside(|| {
        let connect = |rule| Wire::connect(balancer.address(rule));
        let mut served = Vec::new();
        let mut refused = 0;
        for rule in ["web", "more", "most"] {
            for _ in 0..30 {
                let mut client = connect(rule);
                if echoes(&mut client) {
                    served.push(client)
                } else {
                    refused += 1
                }
            }
        }
        assert!(served.len() >= 40 && refused >= 40, "{refused} refused");
        let ports = || metric(balancer, "evenkeel_shortages_total{resource=\"ports\"}");
        assert!(ports() > 0.0);
        // Checks meet the same shortage, and are no opinion about the member.
        let before = ports();
        wait_until("a check has met it, too", || ports() > before);
        assert_eq!(state(balancer), "up");
        assert_eq!(metric(balancer, &failures), 0.0);
        drop(served);
        wait_until("there are ports again", || echoes(&mut connect("web")));
        assert_eq!(state(balancer), "up");
        assert!(!balancer.log().contains("is down"), "{}", balancer.log());
    });
}

/// Nobody reads the log, and every request writes to it.
#[test]
fn s5_nobody_reads_the_log() {
    let member = Member::echoing_targets();
    let config = format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         protocol = \"http\"\nmembers = [\"127.0.0.1:1\", \"{}\"]\nhealth_check = false\n",
        member.address()
    );
    let mut balancer = Balancer::start_unheard_by(&config, |_| {
        let mut command = Command::new(evenkeel_binary());
        // Each connection that fails is a line.
        command.env("RUST_LOG", "trace");
        command
    });
    let mut client = balancer.connect();
    // A pipe holds 64 KiB, and each of these writes hundreds of bytes.
    for number in 0..3000 {
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.read_response().text(), format!("/{number}"));
    }
    assert_eq!(balancer.admin_get("/readyz").second_word(), "200");
    balancer.keep_log();
    wait_until("what was kept is read", || {
        balancer.log().contains("cannot connect to a member")
    });
}

/// A folder that is a file system of its own, which only the balancer sees.
struct Disk {
    path: PathBuf,
}

impl Disk {
    const SIZE: &str = "256k";

    fn may_be() -> bool {
        let may = are_installed(&["unshare", "mount", "sh"])
            && succeeds(Command::new("unshare").args(["--mount", "true"]));
        if !may {
            report_skipped("no right to mount a file system; run it as root");
        }
        may
    }

    /// The command that starts a balancer which has it at `path`.
    fn command(path: &Path) -> Command {
        let script = format!(
            "mount -t tmpfs -o size={} tmpfs \"$0\" && exec \"$@\"",
            Self::SIZE
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]);
        command.arg(path).arg(evenkeel_binary());
        command
    }

    fn of(balancer: &Balancer, path: &Path) -> Self {
        let root = PathBuf::from(format!("/proc/{}/root", balancer.id()));
        let path = root.join(path.strip_prefix("/").unwrap());
        Disk { path }
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.path.join("filler")).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
        drop(file);
        // The last bytes, too, whatever the size of a block is.
        let mut number = 0;
        while fs::write(self.path.join(format!("filler{number}")), [0; 4096]).is_ok() {
            number += 1;
        }
    }

    fn empty(&self) {
        for entry in fs::read_dir(&self.path).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_string_lossy().starts_with("filler") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

/// The access log's disk is full for a while: lines are lost and counted, and those that
/// are there are whole.
#[test]
fn s5_the_disk_of_the_access_log_is_full() {
    if !Disk::may_be() {
        return;
    }
    let member = Member::echoing_targets();
    let config = format!(
        "workers = 1\n[access_log]\noutput = \"disk/access.log\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\nmembers = [\"{}\"]\n",
        member.address()
    );
    let mut folder = PathBuf::new();
    let balancer = Balancer::start_by(&config, |of| {
        folder = of.make_folder("disk");
        let mut command = Disk::command(&folder);
        command.current_dir(of.path());
        command
    });
    let disk = Disk::of(&balancer, &folder);
    let mut client = balancer.connect();
    let mut ask = |number: usize| {
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.read_response().second_word(), "200");
    };
    let lost = || {
        metric(
            &balancer,
            "evenkeel_access_log_records_total{result=\"lost\"}",
        )
    };
    let mut number = 0;
    ask(number);
    disk.fill();
    wait_until("lines are lost", || {
        number += 1;
        ask(number);
        lost() >= 10.0
    });
    wait_until("that is said", || {
        balancer.log().contains("cannot write the access log")
    });
    let lines = balancer
        .log()
        .matches("cannot write the access log")
        .count();
    assert!(lines <= 4, "{lines} lines about one cause");
    disk.empty();
    wait_until("it goes on", || {
        number += 1;
        ask(number);
        let text = fs::read_to_string(disk.path.join("access.log")).unwrap();
        text.contains(&format!("\"target\":\"/{number}\""))
            || text.contains(&format!("\"target\":\"/{}\"", number - 1)) && number > 1
    });
    let last = number;
    wait_until("the last one is there", || {
        let text = fs::read_to_string(disk.path.join("access.log")).unwrap();
        text.contains(&format!("\"target\":\"/{last}\""))
    });
    let text = fs::read_to_string(disk.path.join("access.log")).unwrap();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["rule"], "web");
    }
    wait_until("that is said, too", || {
        balancer
            .log()
            .contains("the access log can be written, after failures")
    });
    assert_eq!(text.lines().count() as f64 + lost(), last as f64 + 1.0);
}

/// The state file's disk is full for a while: the old one stays, and the new one comes
/// without anybody asking for it.
#[test]
fn s5_the_disk_of_the_state_file_is_full() {
    if !Disk::may_be() {
        return;
    }
    let config = "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
                  [corba]\nlisten = \"127.0.0.1:0\"\nstate_file = \"disk/state.json\"\n";
    let mut folder = PathBuf::new();
    let balancer = Balancer::start_by(config, |of| {
        folder = of.make_folder("disk");
        Disk::command(&folder)
    });
    let disk = Disk::of(&balancer, &folder);
    let manager = LoadManager::at_address(balancer.corba_address());
    let read = |name| fs::read_to_string(disk.path.join(name)).unwrap_or_default();
    let kept = || read("state.json") + &read("state.json.journal");
    manager.create_group("IDL:First:1.0", Vec::new()).unwrap();
    let before = read("state.json");
    assert!(kept().contains("IDL:First:1.0"));
    disk.fill();
    // Whoever makes a group is told that it could not be kept: PERSIST_STORE. The last page of
    // the journal may have room for some.
    let address = balancer.corba_address();
    let is_refused = |name: String| {
        let made = std::thread::spawn(move || {
            let manager = LoadManager::at_address(address);
            manager.create_group(&name, Vec::new()).is_ok()
        });
        made.join().is_err()
    };
    let accepted = (0..1000).find(|number| is_refused(format!("IDL:Second{number}:1.0")));
    let accepted = accepted.expect("one of them finds no room");
    wait_until("that is said", || balancer.log().contains("state file"));
    assert_eq!(read("state.json"), before);
    for number in 0..accepted {
        assert!(kept().contains(&format!("IDL:Second{number}:1.0")));
    }
    disk.empty();
    wait_until("it is tried again", || {
        balancer
            .log()
            .contains("in the state file: writing has recovered")
    });
    manager.create_group("IDL:Third:1.0", Vec::new()).unwrap();
    let after = kept();
    assert!(after.contains("IDL:First:1.0") && after.contains("IDL:Third:1.0"));
}

/// No thread can be started: names are not looked up, what needs a thread is refused, and
/// everything else goes on.
#[test]
fn s5_threads_run_out() {
    let Some(limit) = ThreadLimit::new() else {
        report_skipped("no right to limit threads by a cgroup; run it as root");
        return;
    };
    let member = echoing();
    let config = tcp_rules(&["web"], member.address());
    let balancer = Balancer::start(&config);
    limit.add_process(balancer.id());
    limit.close();
    let negotiator = "[negotiator]\nlisten = \"127.0.0.1:0\"\n";
    let named = config.replace("\"]\n", "\", \"localhost:1\"]\n");
    let before = status(&balancer)["generation"].as_u64();
    balancer.write_config(&format!("{named}\n{negotiator}"));
    wait_until("the reload is over", || {
        let status = status(&balancer);
        status["generation"].as_u64() > before || !status["last_reload"]["error"].is_null()
    });
    let mut client = balancer.connect();
    assert!(echoes(&mut client));
    member.seen_events();
    for _ in 0..3 {
        member.next();
    }
    assert_eq!(state(&balancer), "up");
    limit.remove_limit();
    balancer.write_config(&format!("{named}\n{negotiator}\n"));
    wait_until("it is in effect", || {
        let status = status(&balancer);
        !status["negotiator"].as_array().unwrap().is_empty()
    });
    TcpStream::connect(balancer.address("web")).unwrap();
    assert!(!balancer.log().contains("panicked"), "{}", balancer.log());
    drop(balancer);
}

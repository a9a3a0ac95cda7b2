//! The responder on an interface: a kernel that answers for a machine on which no process does.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use evenkeel_e2e::balancer::evenkeel_binary;
use evenkeel_e2e::cgroup::CpuQuota;
use evenkeel_e2e::folder::{Folder, unused_pin};
use evenkeel_e2e::netns::{BACK, BACK4, BACK6, FRONT, Pair};
use evenkeel_e2e::process::report_skipped;
use evenkeel_e2e::{HANG, wait_until};
use evenkeel_kernel::host::Host;
use evenkeel_kernel::loads::{Before, Loads};
use evenkeel_kernel::query::{Answer, ENVELOPE, Key, LONGEST, Query, SHORT, WITH_PORTS};
use evenkeel_kernel::record::{Available, Base, Scope, Source};
use serde_json::Value;

const SECRET: &str = "1:000102030405060708090a0b0c0d0e0f";
const PORT: u16 = 9970;

/// A back-end whose interface answers, and a front-end.
struct Machines {
    pair: Pair,
    folder: Folder,
    pins: Vec<PathBuf>,
}

impl Drop for Machines {
    fn drop(&mut self) {
        for pin in &self.pins {
            // It may have been detached.
            // An interface goes with its namespace, pins do not.
            let _ = self.evenkeel("detach", BACK, pin, &[]);
        }
    }
}

impl Machines {
    /// None if this machine cannot have such, which is said.
    fn new() -> Option<Self> {
        let pair = Pair::new()?;
        let folder = Folder::new();
        write_key(&folder, SECRET);
        let machines = Machines {
            pair,
            folder,
            pins: Vec::new(),
        };
        let built = machines.evenkeel("status", BACK, &unused_pin(), &[]);
        if let Err(why) = built
            && why.contains("built without BPF")
        {
            report_skipped(why.trim());
            return None;
        }
        Some(machines)
    }

    /// `evenkeel kernel` in the back.
    fn evenkeel(
        &self,
        what: &str,
        interface: &str,
        pin: &PathBuf,
        more: &[&str],
    ) -> Result<String, String> {
        let mut command = self.pair.back.command(evenkeel_binary());
        command
            .args(["kernel", what, interface, "--pin"])
            .arg(pin)
            .args(more);
        let output = command.output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    fn attach(&mut self, more: &str) -> Result<PathBuf, String> {
        let pin = unused_pin();
        self.pins.push(pin.clone());
        self.attach_again(&pin, more).map(|_| pin)
    }

    fn attach_again(&self, pin: &PathBuf, more: &str) -> Result<String, String> {
        let key = self.folder.join("key").display().to_string();
        let mut words = vec!["--key-file", &key];
        words.extend(more.split_whitespace());
        self.evenkeel("attach", BACK, pin, &words)
    }

    fn status(&self, pin: &PathBuf) -> Value {
        let status = self
            .evenkeel("status", BACK, pin, &["--json"])
            .expect("a status");
        serde_json::from_str(&status).expect("JSON")
    }

    fn counter(&self, pin: &PathBuf, name: &str) -> u64 {
        self.status(pin)["counters"][name]
            .as_u64()
            .expect("a counter")
    }

    /// Attaches a responder whom nobody asks to the other end: the answers that a veth sends back
    /// itself get through only if there is an XDP program there.
    fn native(&mut self) {
        let pin = unused_pin();
        let key = self.folder.join("key");
        let mut command = self.pair.front.command(evenkeel_binary());
        command.args([
            "kernel",
            "attach",
            FRONT,
            "--mode",
            "native",
            "--allow",
            "192.0.2.1",
        ]);
        command.arg("--key-file").arg(key).arg("--pin").arg(&pin);
        assert!(command.status().expect("it runs").success());
        self.pins.push(pin);
    }

    /// `evenkeel kernel query` in the front.
    fn evenkeel_query(&self, host: &str) -> Result<String, String> {
        let mut command = self.pair.front.command(evenkeel_binary());
        command.args(["kernel", "query", &BACK4.to_string(), "--host", host]);
        command.args(["--timeout", "1000", "--key-file"]);
        command.arg(self.folder.join("key"));
        let output = command.output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    fn reader(&self, address: IpAddr) -> Reader {
        Reader::new(&self.pair, address, PORT)
    }
}

fn write_key(folder: &Folder, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    let key = folder.write("key", format!("{text}\n"));
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).expect("its rights");
}

/// A front-end that asks.
struct Reader {
    socket: UdpSocket,
    key: Key,
    host: Host,
    reader: u64,
    number: u64,
}

impl Reader {
    fn new(pair: &Pair, address: IpAddr, port: u16) -> Self {
        let socket = pair.front.run_inside(|| {
            let any: IpAddr = match address {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((any, 0)).expect("a socket");
            socket.connect((address, port)).expect("an address");
            socket
        });
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .expect("now");
        Reader {
            socket,
            key: Key::parse(SECRET).expect("a key"),
            host: Host::from_address(address),
            reader: fastrand::u64(..),
            number: now.as_nanos() as u64,
        }
    }

    fn query(&mut self, length: usize, target: u16) -> Query {
        self.number += 1;
        Query {
            length: length as u16,
            target,
            first_cpu: 0,
            reader: self.reader,
            number: self.number,
            host: self.host,
        }
    }

    fn bytes(&mut self, length: usize, target: u16) -> Vec<u8> {
        let mut out = Vec::new();
        self.query(length, target).write(&self.key, &mut out);
        out
    }

    /// Returns the datagram that comes within that time.
    fn receive(&self, limit: Duration) -> Option<Vec<u8>> {
        self.socket.set_read_timeout(Some(limit)).expect("a limit");
        let mut out = vec![0; 4096];
        match self.socket.recv(&mut out) {
            Ok(length) => {
                out.truncate(length);
                Some(out)
            }
            // Nothing there, or the machine says that nobody listens.
            Err(error) => {
                let kind = error.kind();
                let known = [
                    ErrorKind::WouldBlock,
                    ErrorKind::TimedOut,
                    ErrorKind::ConnectionRefused,
                ];
                assert!(known.contains(&kind), "{error}");
                None
            }
        }
    }

    /// Asks until there is an answer, which must be true.
    fn ask(&mut self, length: usize, target: u16) -> Vec<u8> {
        let limit = Instant::now() + HANG;
        loop {
            assert!(Instant::now() < limit, "no answer");
            let query = self.query(length, target);
            let mut bytes = Vec::new();
            query.write(&self.key, &mut bytes);
            // Nobody listens while there is no responder.
            let _ = self.socket.send(&bytes);
            while let Some(answer) = self.receive(Duration::from_secs(1)) {
                assert_eq!(answer.len(), length, "an answer is as long as its query");
                let parsed = Answer::parse(&answer, &self.key).expect("a true answer");
                if parsed.query == query {
                    return answer;
                }
            }
        }
    }

    fn base(&mut self, target: u16) -> Base {
        let answer = self.ask(SHORT, target);
        Answer::parse(&answer, &self.key)
            .expect("a true answer")
            .record
            .base
    }

    /// Loads over a time that is long enough to tell.
    fn loads(&mut self, target: u16, time: Duration) -> (Loads, Base) {
        let before = Before::new(&self.base(target));
        std::thread::sleep(time);
        let answer = self.ask(SHORT, target);
        let record = Answer::parse(&answer, &self.key)
            .expect("a true answer")
            .record;
        (Loads::since_last(Some(&before), &record), record.base)
    }

    /// Sends something that nobody answers: the next answer is that to the next query.
    fn unanswered(&mut self, datagram: &[u8]) {
        self.socket.send(datagram).expect("it is sent");
        let query = self.query(SHORT, 0);
        let mut bytes = Vec::new();
        query.write(&self.key, &mut bytes);
        // If it was passed on, the machine has said that nobody listens there.
        if self.socket.send(&bytes).is_err() {
            self.socket.send(&bytes).expect("it is sent");
        }
        let limit = Instant::now() + HANG;
        loop {
            assert!(Instant::now() < limit, "what came after it is not answered");
            if let Some(answer) = self.receive(HANG) {
                let parsed = Answer::parse(&answer, &self.key).expect("a true answer");
                assert_eq!(parsed.query, query, "it was answered");
                return;
            }
        }
    }
}

/// Processes that do nothing but that.
struct Spinners(Vec<Child>);

impl Spinners {
    fn start(count: usize) -> Self {
        let spin = || {
            let mut shell = evenkeel_e2e::process::program("sh");
            shell
                .args(["-c", "while :; do :; done"])
                .spawn()
                .expect("a shell")
        };
        Spinners((0..count).map(|_| spin()).collect())
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // They may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

const ALLOW: &str = "--allow 10.77.0.1 --allow fd77::/64 --rate 0";

fn answers(mode: &str) {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    if mode == "native" {
        machines.native();
    }
    let pin = machines
        .attach(&format!("{ALLOW} --mode {mode}"))
        .expect("it is attached");
    let status = machines.status(&pin);
    assert_eq!(status["mode"], mode);
    assert_eq!(status["attached"], true);
    assert_eq!(status["keys"], serde_json::json!([1]));
    assert!(!status.to_string().contains("0a0b0c"), "the secret is told");
    // The loader is gone, and so is everybody else.
    assert_eq!(machines.pair.back.processes(), "");

    for address in [BACK4, BACK6] {
        let mut reader = machines.reader(address);
        let before = reader.base(0);
        // One entry less, where the header is longer.
        let longest = if address == BACK4 {
            LONGEST
        } else {
            LONGEST - 176
        };
        for length in [SHORT, WITH_PORTS, WITH_PORTS + 176, longest] {
            let answer = reader.ask(length, 0);
            let record = Answer::parse(&answer, &reader.key)
                .expect("a record")
                .record;
            let base = record.base;
            assert_eq!(
                (base.source, base.scope),
                (Source::Responder, Scope::Machine)
            );
            assert_eq!(base.epoch, before.epoch);
            assert!(base.time_ns > before.time_ns);
            let room = length.saturating_sub(WITH_PORTS) / 176;
            let entries: Vec<_> = record
                .cpus()
                .map(|cpu| cpu.expect("a whole entry"))
                .collect();
            assert_eq!(entries.len(), room.min(base.cpus as usize));
            if entries.len() == base.cpus as usize {
                let sum = |part: fn(&evenkeel_kernel::record::Cpu) -> u64| {
                    entries.iter().map(part).sum::<u64>()
                };
                assert_eq!(sum(|cpu| cpu.busy_ns), base.totals.busy_ns);
                assert_eq!(sum(|cpu| cpu.switches), base.totals.switches);
                assert_eq!(
                    sum(|cpu| cpu.running.into()),
                    u64::from(base.totals.running)
                );
            }
        }
    }
    // Everything else is as if nothing were there.
    tcp_works(&machines);
    udp_works(&machines, 5353);

    assert!(machines.evenkeel("detach", BACK, &pin, &[]).is_ok());
    assert!(!pin.exists(), "pins are left");
    let links = machines
        .pair
        .back
        .command("ip")
        .args(["-d", "link", "show", BACK])
        .output()
        .expect("ip runs");
    let links = String::from_utf8_lossy(&links.stdout).into_owned();
    assert!(!links.contains("xdp"), "{links}");
    let qdiscs = machines
        .pair
        .back
        .command("tc")
        .args(["qdisc", "show", "dev", BACK])
        .output()
        .expect("tc runs");
    let qdiscs = String::from_utf8_lossy(&qdiscs.stdout).into_owned();
    assert!(!qdiscs.contains("clsact"), "{qdiscs}");
    let mut reader = machines.reader(BACK4);
    let bytes = reader.bytes(SHORT, 0);
    reader.socket.send(&bytes).expect("it is sent");
    // The machine says that nobody listens there.
    reader.socket.set_read_timeout(Some(HANG)).expect("a limit");
    let error = reader
        .socket
        .recv(&mut [0; 2048])
        .expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn native_xdp_answers() {
    answers("native");
}

#[test]
fn generic_xdp_answers() {
    answers("generic");
}

#[test]
fn traffic_control_answers() {
    answers("tc");
}

fn tcp_works(machines: &Machines) {
    let listener = machines
        .pair
        .back
        .run_inside(|| std::net::TcpListener::bind((BACK4, 0)))
        .expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut client = machines
        .pair
        .front
        .run_inside(|| TcpStream::connect(address))
        .expect("a connection");
    let (mut server, _) = listener.accept().expect("a connection");
    let sent: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
    let receiver = std::thread::spawn(move || {
        let mut got = Vec::new();
        std::io::Read::read_to_end(&mut server, &mut got).expect("all of it");
        got
    });
    client.write_all(&sent).expect("it is sent");
    drop(client);
    assert_eq!(receiver.join().expect("it ends"), sent);
}

/// Datagrams to another port arrive as they were.
fn udp_works(machines: &Machines, port: u16) {
    let back = machines
        .pair
        .back
        .run_inside(|| UdpSocket::bind((BACK4, port)))
        .expect("a port");
    back.set_read_timeout(Some(HANG)).expect("a limit");
    let mut reader = Reader::new(&machines.pair, BACK4, port);
    let bytes = reader.bytes(WITH_PORTS, 0);
    reader.socket.send(&bytes).expect("it is sent");
    let mut got = [0; 2048];
    let (length, from) = back.recv_from(&mut got).expect("it arrives");
    assert_eq!(&got[..length], bytes);
    back.send_to(b"yes", from).expect("it is sent");
    assert_eq!(reader.receive(HANG).as_deref(), Some(&b"yes"[..]));
}

/// A responder whose pins would end with the command is none.
#[test]
fn mission_d12_attach_in_a_mount_namespace_that_ends_is_refused() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let namespace = machines.pair.back.path();
    let mut command = Command::new("ip");
    let command = command
        .args(["netns", "exec"])
        .arg(namespace.file_name().expect("a name"))
        .arg(evenkeel_binary())
        .args([
            "kernel",
            "attach",
            BACK,
            "--allow",
            "192.0.2.1",
            "--key-file",
        ])
        .arg(machines.folder.join("key"));
    let output = command.output().expect("it runs");
    let why = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success());
    assert!(why.contains("nsenter --net=/run/netns/NAME"), "{why}");
    let status = machines.evenkeel("status", BACK, &PathBuf::from("/sys/fs/bpf/evenkeel"), &[]);
    assert!(status.is_err(), "{status:?}");
}

#[test]
fn what_is_no_good_query_is_counted_and_never_answered() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let pin = machines.attach(ALLOW).expect("it is attached");
    let mut reader = machines.reader(BACK4);
    reader.base(0);
    let check = |reader: &mut Reader, name: &str, datagram: &[u8]| {
        let before = machines.status(&pin)["counters"].clone();
        reader.unanswered(datagram);
        let now = machines.status(&pin)["counters"].clone();
        for (counter, value) in now.as_object().expect("counters") {
            let number = |value: &Value| value.as_u64().expect("a number");
            let expected = u64::from(counter == name) + u64::from(counter == "answered");
            let more = number(value) - number(&before[counter]);
            assert_eq!(more, expected, "{counter} after what should be {name}");
        }
    };
    let good = |reader: &mut Reader| reader.bytes(SHORT, 0);
    // Written with the right code, so that only what is meant is wrong.
    let forged = |reader: &mut Reader, change: &dyn Fn(&mut Query)| {
        let mut query = reader.query(SHORT, 0);
        change(&mut query);
        let mut out = Vec::new();
        query.write(&reader.key, &mut out);
        out
    };

    for length in [
        4,
        8,
        ENVELOPE - 1,
        ENVELOPE,
        SHORT - 1,
        SHORT + 1,
        WITH_PORTS + 8,
        LONGEST - 1,
    ] {
        let mut bytes = reader.bytes(LONGEST, 0);
        bytes.truncate(length);
        if length >= ENVELOPE {
            // It says itself how long it is.
            bytes[6..8].copy_from_slice(&(length as u16).to_le_bytes());
        }
        check(&mut reader, "wrong_length", &bytes);
    }
    // Of another length than it says.
    let mut bytes = good(&mut reader);
    bytes.resize(WITH_PORTS, 0);
    check(&mut reader, "wrong_length", &bytes);
    let mut bytes = good(&mut reader);
    bytes[4] = 1;
    check(&mut reader, "wrong_version", &bytes);
    let mut bytes = good(&mut reader);
    bytes[14] = 1;
    check(&mut reader, "wrong_field", &bytes);
    // An answer is no query, so two responders never talk to each other.
    let answer = reader.ask(SHORT, 0);
    check(&mut reader, "wrong_field", &answer);
    let mut bytes = good(&mut reader);
    bytes[8] = 7;
    check(&mut reader, "unknown_key", &bytes);
    for at in [10, 12, 16, 23, 24, 31, 32, 39, 40, 47] {
        let mut bytes = good(&mut reader);
        bytes[at] ^= 0x40;
        check(&mut reader, "wrong_code", &bytes);
    }
    let old = good(&mut reader);
    reader.base(0);
    check(&mut reader, "replayed", &old);
    let bytes = forged(&mut reader, &|query| query.number -= 1);
    check(&mut reader, "replayed", &bytes);
    for host in ["10.77.0.1", "192.0.2.1", "web-1"] {
        let bytes = forged(&mut reader, &|query| query.host = Host::from_name(host));
        check(&mut reader, "other_host", &bytes);
    }
    for target in [1, 63, 64, u16::MAX] {
        let bytes = forged(&mut reader, &|query| query.target = target);
        check(&mut reader, "unknown_target", &bytes);
    }
    check(&mut reader, "no_query", b"EVK");
    check(&mut reader, "no_query", b"");
    check(&mut reader, "no_query", &[b'x'; 600]);
}

#[test]
fn who_is_not_allowed_or_asks_too_often_gets_nothing() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    // The other half of the network.
    let pin = machines
        .attach("--allow 10.77.0.128/25 --rate 0")
        .expect("it is attached");
    let mut reader = machines.reader(BACK4);
    let bytes = reader.bytes(SHORT, 0);
    reader.socket.send(&bytes).expect("it is sent");
    reader.socket.set_read_timeout(Some(HANG)).expect("a limit");
    // As if nothing were there: the machine says that nobody listens.
    let error = reader
        .socket
        .recv(&mut [0; 2048])
        .expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(machines.counter(&pin, "source_not_allowed"), 1);
    // As soon as it may, it gets an answer; IPv6 has a list of its own.
    machines.attach_again(&pin, ALLOW).expect("it is changed");
    reader.base(0);
    machines
        .attach_again(&pin, "--allow 10.77.0.1 --rate 0")
        .expect("it is changed");
    assert_eq!(
        machines.status(&pin)["allow"],
        serde_json::json!(["10.77.0.1/32"])
    );
    reader.base(0);
    let mut six = machines.reader(BACK6);
    let refused = machines.counter(&pin, "source_not_allowed");
    let bytes = six.bytes(SHORT, 0);
    six.socket.send(&bytes).expect("it is sent");
    wait_until("it is counted", || {
        machines.counter(&pin, "source_not_allowed") > refused
    });

    // One a second, and 16 at once.
    machines
        .attach_again(&pin, &ALLOW.replace("--rate 0", "--rate 1"))
        .expect("it is changed");
    let answered = machines.counter(&pin, "answered");
    for _ in 0..100 {
        let bytes = reader.bytes(SHORT, 0);
        reader.socket.send(&bytes).expect("it is sent");
    }
    let counted = || machines.counter(&pin, "answered") - answered + machines.counter(&pin, "rate");
    wait_until("all are counted", || counted() == 100);
    assert!(machines.counter(&pin, "rate") > 0);
    assert!(machines.counter(&pin, "answered") - answered >= 16);
}

/// Queries to one back-end are not answered by another with the same key, even if they come to its
/// very address; a name works through address translation.
#[test]
fn s21_only_who_is_meant_answers() {
    for mode in ["generic", "tc"] {
        let Some(mut machines) = Machines::new() else {
            return;
        };
        let pin = machines
            .attach(&format!("{ALLOW} --mode {mode}"))
            .expect("it is attached");
        for address in [BACK4, BACK6] {
            let mut reader = machines.reader(address);
            reader.base(0);
            let refused = machines.counter(&pin, "other_host");
            let mut query = reader.query(SHORT, 0);
            query.host = Host::from_name("10.77.0.99");
            let mut bytes = Vec::new();
            query.write(&reader.key, &mut bytes);
            reader.unanswered(&bytes);
            assert_eq!(machines.counter(&pin, "other_host"), refused + 1);
            // Who says that he does not mind gets an answer.
            reader.host = Host::ANY;
            reader.base(0);
        }
        // As a balancer knows it from the other side of a translation.
        machines
            .attach_again(&pin, &format!("{ALLOW} --host 192.0.2.7 --host web-1"))
            .expect("it is changed");
        assert_eq!(machines.status(&pin)["hosts"], 2);
        let mut reader = machines.reader(BACK4);
        for name in ["192.0.2.7", "web-1"] {
            reader.host = Host::from_name(name);
            reader.base(0);
        }
        let mut own = machines.reader(BACK4);
        let bytes = own.bytes(SHORT, 0);
        reader.unanswered(&bytes);
        let said = |name: &str| machines.evenkeel_query(name);
        assert!(said("web-1").is_ok());
        assert!(said("web-2").unwrap_err().contains("--host"));
    }
}

#[test]
fn keys_are_changed_without_a_gap() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let pin = machines.attach(ALLOW).expect("it is attached");
    let mut old = machines.reader(BACK4);
    let before = old.base(0);
    let second = "2:ffeeddccbbaa99887766554433221100";
    write_key(&machines.folder, &format!("{SECRET}\n{second}"));
    machines.attach_again(&pin, ALLOW).expect("it is changed");
    assert_eq!(machines.status(&pin)["keys"], serde_json::json!([1, 2]));
    let mut new = machines.reader(BACK4);
    new.key = Key::parse(second).expect("a key");
    assert_eq!(new.base(0).epoch, before.epoch);
    assert_eq!(old.base(0).epoch, before.epoch, "rates go on");
    // What was asked before is still known.
    let replayed = machines.counter(&pin, "replayed");
    old.number -= 1;
    let bytes = old.bytes(SHORT, 0);
    old.socket.send(&bytes).expect("it is sent");
    wait_until("it is counted", || {
        machines.counter(&pin, "replayed") > replayed
    });
    write_key(&machines.folder, second);
    machines.attach_again(&pin, ALLOW).expect("it is changed");
    let unknown = machines.counter(&pin, "unknown_key");
    let bytes = old.bytes(SHORT, 0);
    old.socket.send(&bytes).expect("it is sent");
    wait_until("it is counted", || {
        machines.counter(&pin, "unknown_key") > unknown
    });
    new.base(0);
}

#[test]
fn another_xdp_program_is_left_alone() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let first = machines.attach(ALLOW).expect("it is attached");
    assert_eq!(machines.status(&first)["mode"], "generic");
    // To the second one, the first is a program like any other.
    let why = machines
        .attach(&format!("{ALLOW} --port 9971 --mode generic"))
        .expect_err("no room");
    assert!(why.contains("--mode tc"), "{why}");
    let second = machines
        .attach(&format!("{ALLOW} --port 9971"))
        .expect("it is attached");
    assert_eq!(machines.status(&second)["mode"], "tc");
    for port in [9970, 9971] {
        for address in [BACK4, BACK6] {
            Reader::new(&machines.pair, address, port).base(0);
        }
    }
    machines
        .evenkeel("detach", BACK, &first, &[])
        .expect("it is detached");
    Reader::new(&machines.pair, BACK4, 9971).base(0);
    machines
        .evenkeel("detach", BACK, &second, &[])
        .expect("it is detached");
    let why = machines
        .evenkeel("detach", BACK, &second, &[])
        .expect_err("it is gone");
    assert!(why.contains("no responder"), "{why}");
}

/// Frames as they are on the wire, past the stack.
struct Wire(OwnedFd);

impl Wire {
    fn new(pair: &Pair) -> Self {
        pair.front.run_inside(|| {
            let protocol = (libc::ETH_P_ALL as u16).to_be();
            // SAFETY: no memory is involved.
            let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, protocol.into()) };
            assert!(socket >= 0, "a packet socket");
            // SAFETY: it is new, and nobody else's.
            let socket = unsafe { OwnedFd::from_raw_fd(socket) };
            let name = std::ffi::CString::new(FRONT).expect("a name");
            // SAFETY: all zero is a valid value of it.
            let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            // SAFETY: the name ends with a zero.
            address.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
            // SAFETY: the address is as long as it says.
            let bound = unsafe {
                libc::bind(
                    socket.as_raw_fd(),
                    (&raw const address).cast(),
                    size_of_val(&address) as u32,
                )
            };
            assert_eq!(bound, 0, "it is bound");
            Wire(socket)
        })
    }

    fn send(&self, frame: &[u8]) {
        let sent = rustix::io::write(&self.0, frame).expect("it is sent");
        assert_eq!(sent, frame.len());
    }

    /// The next frame that passes the test.
    fn receive(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let limit = Instant::now() + HANG;
        loop {
            assert!(Instant::now() < limit, "no such frame");
            let mut out = vec![0; 4096];
            let length = rustix::io::read(&self.0, &mut out[..]).expect("a frame");
            out.truncate(length);
            if wanted(&out) {
                return out;
            }
        }
    }
}

fn mac(namespace: &evenkeel_e2e::netns::Namespace, interface: &str) -> [u8; 6] {
    let path = format!("/sys/class/net/{interface}/address");
    let show = namespace
        .command("ip")
        .args(["-o", "link", "show", interface])
        .output()
        .expect("ip runs");
    let show = String::from_utf8(show.stdout).expect("text");
    let text = show
        .split("link/ether ")
        .nth(1)
        .expect(&path)
        .split(' ')
        .next()
        .expect(&path);
    let bytes: Vec<u8> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).expect("hex"))
        .collect();
    bytes.try_into().expect("six bytes")
}

fn sum(bytes: &[u8], mut sum: u32) -> u32 {
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// A frame with these VLAN tags, in IPv4 or IPv6.
fn frame(to: [u8; 6], from: [u8; 6], tags: &[u16], six: bool, datagram: &[u8]) -> Vec<u8> {
    let udp = (8 + datagram.len()) as u16;
    let mut out = [to, from].concat();
    for (at, tag) in tags.iter().enumerate() {
        // The outer of two is a service tag.
        out.extend(if at + 1 < tags.len() {
            [0x88, 0xa8]
        } else {
            [0x81, 0x00]
        });
        out.extend(tag.to_be_bytes());
    }
    let mut pseudo = Vec::new();
    if six {
        out.extend([0x86, 0xdd, 0x6a, 0xbc, 0xde, 0xf0]);
        out.extend(udp.to_be_bytes());
        out.extend([17, 3]);
        for last in [1, 2] {
            pseudo.extend(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last).octets());
        }
        out.extend(&pseudo);
    } else {
        let mut ip = vec![0x45, 0x10];
        ip.extend((20 + udp).to_be_bytes());
        ip.extend([0x12, 0x34, 0x40, 0, 3, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
        let check = !sum(&ip, 0) as u16;
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        pseudo.extend(&ip[12..20]);
        out.extend([0x08, 0x00]);
        out.extend(&ip);
    }
    let mut header = Vec::new();
    header.extend(4321u16.to_be_bytes());
    header.extend(PORT.to_be_bytes());
    header.extend(udp.to_be_bytes());
    header.extend([0, 0]);
    let start = sum(&pseudo, u32::from(udp) + 17);
    let check = !sum(datagram, sum(&header, start)) as u16;
    header[6..8].copy_from_slice(&check.to_be_bytes());
    out.extend(header);
    out.extend(datagram);
    out
}

/// On the wire each answer is what a stack would have sent, to the bit.
#[test]
fn frames_with_tags_come_back_with_them_and_right_checksums() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let pin = machines.attach(ALLOW).expect("it is attached");
    let (front, back) = (
        mac(&machines.pair.front, FRONT),
        mac(&machines.pair.back, BACK),
    );
    let wire = Wire::new(&machines.pair);
    let mut reader = machines.reader(BACK4);
    machines.native();
    for mode in ["native", "generic", "tc"] {
        machines
            .attach_again(&pin, &format!("{ALLOW} --mode {mode}"))
            .expect("it is changed");
        for six in [false, true] {
            for tags in [&[][..], &[5], &[0x2007, 9]] {
                for length in [SHORT, WITH_PORTS + 4 * 176] {
                    let datagram = reader.bytes(length, 0);
                    wire.send(&frame(back, front, tags, six, &datagram));
                    let from_back = |frame: &[u8]| {
                        frame[..6] == front && frame[6..12] == back && frame.len() > length
                    };
                    let got = wire.receive(from_back);
                    let answer = got.split_at(got.len() - length).1;
                    Answer::parse(answer, &reader.key).expect("a true answer");
                    let mut expected = frame(front, back, tags, six, answer);
                    // The stack takes the outer tag off before anybody sees the frame.
                    if !tags.is_empty() {
                        expected.drain(12..16);
                    }
                    let tags = tags.get(1..).unwrap_or_default();
                    // Turned round, which changes no sum; with a fresh number of hops, which
                    // changes that of IPv4; and to the port that it came from.
                    let ip = 14 + 4 * tags.len();
                    let (udp, half) = if six { (ip + 40, 16) } else { (ip + 20, 4) };
                    let (one, other) = expected[udp - 2 * half..udp].split_at_mut(half);
                    one.swap_with_slice(other);
                    let (one, other) = expected[udp..udp + 4].split_at_mut(2);
                    one.swap_with_slice(other);
                    if six {
                        expected[ip + 7] = 64;
                    } else {
                        expected[ip + 8] = 64;
                        expected[ip + 10..ip + 12].fill(0);
                        let check = !sum(&expected[ip..ip + 20], 0) as u16;
                        expected[ip + 10..ip + 12].copy_from_slice(&check.to_be_bytes());
                    }
                    assert_eq!(got, expected, "{mode} {six} {tags:?} {length}");
                }
            }
        }
    }
    // More tags, fragments, options and other people's frames are not for us.
    let answered = machines.counter(&pin, "answered");
    let datagram = reader.bytes(SHORT, 0);
    wire.send(&frame(back, front, &[1, 2, 3, 4], false, &datagram));
    let mut fragment = frame(back, front, &[], false, &datagram);
    fragment[20] |= 0x20;
    wire.send(&fragment);
    let mut options = frame(back, front, &[], false, &datagram);
    options[14] = 0x46;
    wire.send(&options);
    let mut all = frame([0xff; 6], front, &[], false, &datagram);
    wire.send(&all);
    all[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 1]);
    wire.send(&all);
    // Cut off, while its headers promise more.
    for length in [13, 14, 15, 33, 34, 41, 42, 45, 60, 100, 300] {
        wire.send(&frame(back, front, &[], false, &datagram)[..length.max(14)]);
    }
    reader.base(0);
    assert_eq!(machines.counter(&pin, "answered"), answered + 1);
}

#[test]
fn a_full_backlog_shows_while_its_server_does_nothing() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let listener = machines
        .pair
        .back
        .run_inside(|| std::net::TcpListener::bind((BACK4, 0)))
        .expect("a port");
    rustix::net::listen(&listener, 3).expect("a short backlog");
    let address = listener.local_addr().expect("an address");
    let ports = format!("{ALLOW} --listen-port {} --listen-port 1", address.port());
    machines.attach(&ports).expect("it is attached");
    let mut reader = machines.reader(BACK4);
    let backlog = |reader: &mut Reader| {
        let answer = reader.ask(WITH_PORTS, 0);
        let record = Answer::parse(&answer, &reader.key)
            .expect("a record")
            .record;
        assert!(record.base.available.has_all(Available::PORTS));
        let ports: Vec<_> = record.ports().collect();
        assert_eq!(ports.len(), 2);
        assert_eq!((ports[1].port, ports[1].listening), (1, false));
        assert!(ports[0].listening);
        assert_eq!((ports[0].port, ports[0].limit), (address.port(), 3));
        let loads = Loads::since_last(None, &record);
        (ports[0].backlog, loads.accept_queue.expect("a load"))
    };
    assert_eq!(backlog(&mut reader), (0, 0.0));
    let mut clients = Vec::new();
    for count in 1..=3 {
        clients.push(
            machines
                .pair
                .front
                .run_inside(|| TcpStream::connect(address))
                .expect("a connection"),
        );
        wait_until("the connection waits", || backlog(&mut reader).0 == count);
    }
    assert_eq!(backlog(&mut reader).1, 1.0);
    // IPv6 does not reach it.
    let answer = machines.reader(BACK6).ask(WITH_PORTS, 0);
    let record = Answer::parse(&answer, &reader.key)
        .expect("a record")
        .record;
    assert!(record.ports().all(|port| !port.listening));
    listener.accept().expect("a connection");
    wait_until("one waits no more", || backlog(&mut reader).0 == 2);
}

/// The loads that the kernel tells are the loads that `/proc` tells.
#[test]
fn the_loads_are_true() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    machines.attach(ALLOW).expect("it is attached");
    let mut reader = machines.reader(BACK4);
    let tick = rustix::param::clock_ticks_per_second() as f64;
    // Idle time since boot, all CPUs together, in s.
    let idle = || {
        let stat = fs::read_to_string("/proc/stat").expect("it is there");
        let mut fields = stat
            .split_whitespace()
            .skip(4)
            .map(|field| field.parse::<f64>().expect("a number"));
        (fields.next().expect("idle") + fields.next().expect("iowait")) / tick
    };
    let spinners = Spinners::start(3);
    let base = eventually_base(&mut reader, "three are running", |base| {
        base.totals.running >= 3
    });
    assert!(
        base.available.has_all(
            Available::RUNNING
                .with_parts(Available::BUSY)
                .with_parts(Available::TIMES)
        )
    );
    eventually_base(&mut reader, "so does the average", |base| {
        base.available.has_all(Available::RUNNING_AVERAGE)
            && f64::from(base.running_average) / 2048.0 > 2.0
    });
    eventually_base(&mut reader, "all CPUs are busy at the moment", |base| {
        let all = u64::from(base.recent_ns) * u64::from(base.cpus);
        base.available.has_all(Available::RECENT) && base.recent_busy_ns > all / 10 * 9
    });
    let (idle_before, before) = (idle(), reader.base(0));
    let (loads, after) = reader.loads(0, Duration::from_secs(1));
    let idle_after = idle();
    let elapsed = (after.time_ns - before.time_ns) as f64 / 1e9;
    let busy = (after.totals.busy_ns - before.totals.busy_ns) as f64 / 1e9;
    let expected = elapsed * f64::from(after.cpus) - (idle_after - idle_before);
    eprintln!("busy {busy:.3} s, by /proc/stat {expected:.3} s, of {elapsed:.3} s; {loads:?}");
    assert!(
        (busy - expected).abs() < 0.2 * elapsed + 0.1,
        "{busy} for {expected} s"
    );
    assert!(after.totals.switches > before.totals.switches);
    drop(spinners);

    let meminfo = fs::read_to_string("/proc/meminfo").expect("it is there");
    let memory = |name: &str| {
        let line = meminfo
            .lines()
            .find(|line| line.starts_with(name))
            .expect("a line");
        let number = line.split_whitespace().nth(1).expect("a number");
        number.parse::<f64>().expect("a number") * 1024.0
    };
    let base = reader.base(0);
    assert!(base.available.has_all(Available::MEMORY));
    let (total, available) = (base.memory.total as f64, base.memory.available as f64);
    // What a hypervisor has borrowed back counts in the one file and not in the other.
    let zones = fs::read_to_string("/proc/zoneinfo").expect("it is there");
    let managed = zones
        .lines()
        .filter_map(|line| line.trim().strip_prefix("managed"));
    let pages: f64 = managed
        .map(|pages| pages.trim().parse::<f64>().expect("a number"))
        .sum();
    let there = pages * rustix::param::page_size() as f64;
    let expected = memory("MemAvailable:") - (memory("MemTotal:") - there);
    eprintln!("memory {total} of {there}, available {available} of {expected}");
    assert!((total / there - 1.0).abs() < 0.02, "{total} of {there}");
    assert!(
        (available - expected).abs() < 0.1 * total,
        "{available} of {expected}"
    );

    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(base.cpus as usize >= cpus);
    let pressure = fs::read_to_string("/proc/pressure/cpu");
    let told = pressure.is_ok_and(|text| text.contains("total="));
    eventually_base(
        &mut reader,
        "pressure is told where there is some",
        |base| base.available.has_all(Available::PRESSURE) || !told,
    );
}

fn eventually_base(reader: &mut Reader, what: &str, is: impl Fn(&Base) -> bool) -> Base {
    let mut last = None;
    wait_until(what, || {
        let base = reader.base(0);
        last = Some(base);
        is(&base)
    });
    last.expect("one")
}

#[test]
fn a_cgroup_is_told_of_as_long_as_it_is_there() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let share = Duration::from_millis(20);
    let Some(quota) = CpuQuota::new(share, 5 * share) else {
        return report_skipped("no CPU controller for this process");
    };
    let group = format!("{ALLOW} --cgroup 5={}", quota.path().display());
    let pin = machines.attach(&group).expect("it is attached");
    let id = std::os::unix::fs::MetadataExt::ino(&fs::metadata(quota.path()).expect("a folder"));
    let cgroups = serde_json::json!([{ "target": 5, "id": id }]);
    assert_eq!(machines.status(&pin)["cgroups"], cgroups);
    let mut reader = machines.reader(BACK4);
    let base = reader.base(5);
    assert_eq!(
        (base.scope, base.target, base.capacity),
        (Scope::Cgroup, 5, 200)
    );
    assert_eq!((base.totals.running, base.totals.busy_ns), (0, 0));

    let spinners = Spinners::start(3);
    for child in &spinners.0 {
        quota.add_process(child.id());
    }
    // Also while its quota holds them back.
    wait_until("its tasks wait", || {
        f64::from(reader.base(5).running_average) / 2048.0 > 2.5
    });
    wait_until("it uses its share", || {
        let (loads, _) = reader.loads(5, Duration::from_millis(500));
        assert!(loads.run_queue.is_some_and(|queue| queue > 2.0));
        loads.cpu.is_some_and(|cpu| cpu > 0.8)
    });
    // It goes on, and with the same numbers, when the responder is renewed.
    let before = reader.base(5);
    machines.attach_again(&pin, &group).expect("it is changed");
    let after = reader.base(5);
    assert_eq!(after.epoch, before.epoch);
    assert!(after.totals.busy_ns >= before.totals.busy_ns);
    drop(spinners);
    wait_until("nothing waits", || reader.base(5).totals.running == 0);

    // It is gone, and so are its answers; the machine's are not.
    let path = quota.path().to_owned();
    drop(quota);
    assert!(!path.exists());
    // The kernel takes it off line a little later.
    wait_until("it is gone", || {
        let bytes = reader.bytes(SHORT, 5);
        reader.socket.send(&bytes).expect("it is sent");
        machines.counter(&pin, "gone") > 0
    });
    reader.base(0);
    let gone = machines.counter(&pin, "gone");
    let bytes = reader.bytes(SHORT, 5);
    reader.unanswered(&bytes);
    assert_eq!(machines.counter(&pin, "gone"), gone + 1);
    let why = machines
        .attach_again(&pin, &group)
        .expect_err("there is no such cgroup");
    assert!(why.contains("No such file"), "{why}");
    let why = machines
        .attach_again(&pin, &format!("{ALLOW} --cgroup 5=/tmp"))
        .expect_err("no cgroup");
    assert!(why.contains("not the folder of a cgroup"), "{why}");
    reader.base(0);
    machines.attach_again(&pin, ALLOW).expect("it is changed");
    assert_eq!(machines.status(&pin)["cgroups"], serde_json::json!([]));
}

#[test]
fn what_is_wrong_is_said() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let pin = unused_pin();
    let why = |machines: &Machines, interface: &str, pin: &PathBuf, more: &str| {
        let key = machines.folder.join("key").display().to_string();
        let mut words = vec!["--key-file", &key];
        words.extend(more.split_whitespace());
        machines
            .evenkeel("attach", interface, pin, &words)
            .expect_err("it is wrong")
    };
    let none = why(&machines, "none0", &pin, ALLOW);
    assert!(none.contains("no interface none0"), "{none}");
    let network = why(&machines, BACK, &pin, "--allow 10.77.0.1/33");
    assert!(network.contains("10.77.0.1/33"), "{network}");
    let target = why(
        &machines,
        BACK,
        &pin,
        &format!("{ALLOW} --cgroup 64=/sys/fs/cgroup"),
    );
    assert!(target.contains("1 to 63"), "{target}");
    let elsewhere = why(&machines, BACK, &machines.folder.join("pins"), ALLOW);
    assert!(elsewhere.contains("BPF file system"), "{elsewhere}");
    // Anybody could read the key.
    use std::os::unix::fs::PermissionsExt;
    let key = machines.folder.join("key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("its rights");
    let open = why(&machines, BACK, &pin, ALLOW);
    assert!(open.contains("everybody"), "{open}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its rights");
    assert!(!pin.exists(), "something is left");

    // Without rights it is said which, and what to do instead.
    machines.attach(ALLOW).expect("with rights it works");
    let pins = unused_pin();
    let key = key.display().to_string();
    let mut plain = machines.pair.back.command("setpriv");
    plain.args(["--bounding-set=-bpf,-net_admin,-perfmon,-sys_admin", "--"]);
    plain
        .arg(evenkeel_binary())
        .args(["kernel", "attach", BACK, "--key-file", &key, "--pin"])
        .arg(&pins);
    plain.args(ALLOW.split(' ')).stdout(Stdio::null());
    let output = plain.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("CAP_BPF") && said.contains("evenkeel agent"),
        "{said}"
    );
    assert!(!pins.exists(), "something is left");
}

#[test]
fn the_named_capabilities_are_enough() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let (pin, key) = (unused_pin(), machines.folder.join("key"));
    machines.pins.push(pin.clone());
    let mut few = machines.pair.back.command("setpriv");
    few.args(["--bounding-set=-all,+bpf,+net_admin,+perfmon", "--"]);
    few.arg(evenkeel_binary())
        .args(["kernel", "attach", BACK, "--key-file"])
        .arg(key);
    few.arg("--pin").arg(&pin).args(ALLOW.split(' '));
    let output = few.output().expect("it runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    machines.reader(BACK4).base(0);
}

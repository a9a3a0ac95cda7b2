//! `evenkeel kernel serve`: load records made by a process, in shared memory and over UDP.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use evenkeel_e2e::agent::key_file;
use evenkeel_e2e::balancer::evenkeel_binary;
use evenkeel_e2e::cgroup::{Busy, CpuQuota};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::{Signal, clean_environment, report_skipped};
use evenkeel_e2e::script::Script;
use evenkeel_e2e::{HANG, wait_until};
use evenkeel_kernel::host::Host;
use evenkeel_kernel::keys;
use evenkeel_kernel::loads::{Before, Loads};
use evenkeel_kernel::query::{Answer, Key, LONGEST, Query, SHORT, WITH_PORTS};
use evenkeel_kernel::record::{Available, Scope, Source};
use evenkeel_kernel::shared::{ReadError, Reader};

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(evenkeel_binary());
    command.args(["kernel", "serve"]).args(words);
    clean_environment(&mut command);
    command
}

/// Starts it; answers what it listens at, too.
fn serve(words: &[&str]) -> (Script, Option<SocketAddr>) {
    let script = Script::start(&mut command(words));
    let before = script.read_until("ready");
    let mut addresses = before.iter();
    let address = addresses.find_map(|line| line.strip_prefix("listening: respond on "));
    (
        script,
        address.map(|address| address.parse().expect("an address")),
    )
}

fn refused(words: &[&str]) -> Output {
    let output = command(words).output().expect("it runs");
    assert!(!output.status.success());
    output
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn a_page_in_shared_memory_lives_and_dies_with_its_writer() {
    let folder = Folder::new();
    let path = folder.join("load");
    let mut reader = Reader::new(&path);
    assert!(matches!(reader.read(), Err(ReadError::Missing(_))));
    let (mut helper, _) = serve(&["--shared", text(&path), "--interval", "5ms"]);
    let reading = reader.read().expect("a record");
    let base = reading.record.base;
    assert_eq!((base.source, base.scope), (Source::User, Scope::Machine));
    let always = Available::TIMES.with_parts(Available::BUSY);
    assert!(base.available.has_all(always), "{:?}", base.available);
    assert!(base.memory.available > 0 && base.memory.available <= base.memory.total);
    assert_eq!(reading.record.cpus().count() as u32, base.cpus);
    let before = Before::new(&base);
    wait_until("it is renewed", || {
        reader
            .read()
            .is_ok_and(|now| now.record.base.updates > base.updates + 20)
    });
    let now = reader.read().expect("a record");
    let loads = Loads::since_last(Some(&before), &now.record);
    assert!(
        loads.cpu.is_some() && loads.composite.is_some(),
        "{loads:?}"
    );
    // A second one would tear what the first one writes.
    let second = refused(&["--shared", text(&path)]);
    assert!(complaint(&second).contains("another process writes to the page"));
    // One that hangs is noticed, and one that goes on.
    helper.pause_process();
    let stopped = reader.read().expect("its last record").record.base.updates;
    wait_until("its record is old", || {
        let reading = reader.read().expect("its last record");
        assert_eq!(reading.record.base.updates, stopped);
        reading.age >= Duration::from_millis(200)
    });
    helper.signal(Signal::CONT);
    wait_until("it goes on", || {
        reader
            .read()
            .is_ok_and(|now| now.record.base.updates > stopped)
    });
    // One that was killed leaves an old record, and its place to the next.
    helper.kill();
    assert!(reader.read().is_ok());
    let (helper, _) = serve(&["--shared", text(&path), "--interval", "5ms"]);
    wait_until("the reader finds the next one's record", || {
        reader
            .read()
            .is_ok_and(|now| now.record.base.epoch != base.epoch)
    });
    // One that ends takes it away.
    helper.signal(Signal::TERM);
    assert_eq!(helper.finish_by_itself(), [""; 0]);
    assert!(matches!(reader.read(), Err(ReadError::Missing(_))));
}

/// Asks, and awaits an answer.
struct Asker {
    socket: UdpSocket,
    key: Key,
    number: u64,
}

impl Asker {
    fn new(at: SocketAddr, key: Key) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(at).expect("an address");
        socket.set_read_timeout(Some(HANG)).expect("a limit");
        Asker {
            socket,
            key,
            number: 0,
        }
    }

    fn query(&mut self, length: usize, target: u16) -> (Query, Vec<u8>) {
        self.number += 1;
        let query = Query {
            length: length as u16,
            target,
            first_cpu: 0,
            reader: 1,
            number: self.number,
            host: Host::from_name("127.0.0.1"),
        };
        let mut bytes = Vec::new();
        query.write(&self.key, &mut bytes);
        (query, bytes)
    }

    fn send(&self, bytes: &[u8]) {
        self.socket.send(bytes).expect("it is sent");
    }

    /// Asks with a good query: what is answered then, is answered to it.
    fn ask(&mut self, length: usize, target: u16) -> Vec<u8> {
        let (query, bytes) = self.query(length, target);
        self.send(&bytes);
        let mut answer = vec![0; 2000];
        let length = self.socket.recv(&mut answer).expect("an answer");
        answer.truncate(length);
        assert_eq!(length, bytes.len(), "as long as the query");
        let parsed = Answer::parse(&answer, &self.key).expect("an answer");
        assert_eq!(parsed.query, query, "nothing before it was answered");
        answer
    }

    fn cpu(&mut self, target: u16) -> f64 {
        let mut before: Option<Before> = None;
        let mut cpu = 0.0;
        for _ in 0..2 {
            let bytes = self.ask(SHORT, target);
            let answer = Answer::parse(&bytes, &self.key).expect("an answer");
            if let Some(before) = &before {
                let loads = Loads::since_last(Some(before), &answer.record);
                cpu = loads.cpu.expect("a load");
            }
            before = Some(Before::new(&answer.record.base));
            std::thread::sleep(Duration::from_millis(500));
        }
        cpu
    }
}

fn first_key(file: &Path) -> Key {
    let text = std::fs::read_to_string(file).expect("a key file");
    keys::parse(&text).expect("a key").remove(0)
}

#[test]
fn queries_are_answered_and_nothing_else_is() {
    let folder = Folder::new();
    let file = key_file(&folder);
    let key = first_key(&file);
    for mode in [None, Some("--cached")] {
        let mut words = vec!["--respond", "127.0.0.1:0", "--key-file", text(&file)];
        words.extend([
            "--allow",
            "127.0.0.0/8",
            "--interval",
            "10ms",
            "--rate",
            "0",
        ]);
        words.extend(mode);
        let (helper, address) = serve(&words);
        let mut asker = Asker::new(address.expect("it listens"), key.clone());
        for length in [SHORT, WITH_PORTS, LONGEST] {
            let bytes = asker.ask(length, 0);
            let answer = Answer::parse(&bytes, &asker.key).expect("an answer");
            assert_eq!(answer.record.base.source, Source::User);
        }
        // None of these gets an answer: the next good query's is the first.
        let (_, good) = asker.query(SHORT, 0);
        let changed = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 0x55;
            bytes
        };
        let mut long = good.clone();
        long.resize(LONGEST + 1, 0);
        for bad in [&[][..], b"EVKQ", &good[..good.len() - 1], &long] {
            asker.send(bad);
        }
        // Magic, version, kind, length, key, reserved, reader, code.
        for at in [0, 4, 5, 6, 8, 14, 16, 32] {
            asker.send(&changed(at));
        }
        let (_, unknown) = asker.query(SHORT, 9);
        asker.send(&unknown);
        asker.send(&unknown);
        asker.send(&good);
        let bytes = asker.ask(SHORT, 0);
        // An answer is no query.
        asker.send(&bytes);
        let first = Answer::parse(&bytes, &asker.key).expect("an answer");
        let updates = first.record.base.updates;
        wait_until("the record is renewed", || {
            let bytes = asker.ask(SHORT, 0);
            let now = Answer::parse(&bytes, &asker.key).expect("an answer");
            now.record.base.updates > updates
        });
        helper.signal(Signal::TERM);
        assert_eq!(helper.finish_by_itself(), [""; 0]);
        // What was refused was counted.
        wait_until("it says what it counted", || {
            let log = helper.log();
            let (_, counts) = log.rsplit_once("until now: ").unwrap_or_default();
            let count = |name: &str| counts.contains(name);
            count("no_query 2")
                && count("wrong_version 1")
                && count("wrong_length 4")
                && count("wrong_field 3")
                && count("unknown_key 1")
                && count("wrong_code 2")
                && count("replayed 2")
                && count("unknown_target 1")
        });
    }
}

#[test]
fn addresses_that_are_not_allowed_get_no_answer() {
    let folder = Folder::new();
    let file = key_file(&folder);
    let key = first_key(&file);
    let words = ["--respond", "127.0.0.1:0", "--key-file", text(&file)];
    let allow = ["--allow", "127.0.0.9", "--allow", "fd00::/8"];
    let (_helper, address) = serve(&[&words[..], &allow].concat());
    let address = address.expect("it listens");
    let mut stranger = Asker::new(address, key.clone());
    let (_, query) = stranger.query(SHORT, 0);
    stranger.send(&query);
    // Whom it does answer has its answer later than the stranger would.
    let mut friend = Asker::new(address, key);
    friend.socket = UdpSocket::bind("127.0.0.9:0").expect("a socket");
    friend.socket.set_read_timeout(Some(HANG)).expect("a limit");
    friend.socket.connect(address).expect("an address");
    friend.ask(SHORT, 0);
    stranger.socket.set_nonblocking(true).expect("a flag");
    let none = stranger.socket.recv(&mut [0; 2000]).expect_err("nothing");
    assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_cgroups_load_is_its_own() {
    let (time, period) = (Duration::from_millis(20), Duration::from_millis(100));
    let quotas = (CpuQuota::new(time, period), CpuQuota::new(time, period));
    let (Some(busy), Some(idle)) = quotas else {
        report_skipped("no right to make cgroups with a CPU quota; run it as root");
        return;
    };
    let _process = Busy::start_within(&busy);
    let folder = Folder::new();
    let file = key_file(&folder);
    let key = first_key(&file);
    let targets = [
        format!("{}", busy.path().display()),
        format!("2={}", idle.path().display()),
    ];
    let mut words = vec!["--respond", "127.0.0.1:0", "--key-file", text(&file)];
    words.extend([
        "--allow",
        "127.0.0.1",
        "--cgroup",
        &targets[0],
        "--cgroup",
        &targets[1],
    ]);
    let (helper, address) = serve(&words);
    let mut asker = Asker::new(address.expect("it listens"), key);
    // A loop without an end has all that it may have, and the other cgroup nothing.
    wait_until("the busy cgroup is seen to be busy", || asker.cpu(0) > 0.7);
    assert!(asker.cpu(2) < 0.1);
    let bytes = asker.ask(SHORT, 0);
    let answer = Answer::parse(&bytes, &asker.key).expect("an answer");
    let base = &answer.record.base;
    assert_eq!((base.scope, base.capacity), (Scope::Cgroup, 200));
    assert!(!base.available.has_all(Available::RUNNING));
    // One that is gone is not answered for, and said to be.
    drop(idle);
    let (_, query) = asker.query(SHORT, 2);
    asker.send(&query);
    asker.ask(SHORT, 0);
    wait_until("it says so", || {
        helper
            .log()
            .contains("the load of the target cannot be read")
    });
}

#[test]
fn a_helper_has_a_cgroup_of_its_own_and_a_real_time_class() {
    if CpuQuota::new(Duration::from_millis(50), Duration::from_millis(100)).is_none() {
        report_skipped("no right to make cgroups; run it as root");
        return;
    }
    let folder = Folder::new();
    let path = folder.join("load");
    let shared = ["--shared", text(&path)];
    let (helper, _) = serve(&[&shared[..], &["--own-cgroup", "--fifo", "7"]].concat());
    let own = format!("/evenkeel-load-{}", helper.id());
    let process = format!("/proc/{}", helper.id());
    let cgroups = fs::read_to_string(format!("{process}/cgroup")).expect("its cgroups");
    assert!(
        cgroups.lines().any(|line| line.ends_with(&own)),
        "{cgroups}"
    );
    let stat = fs::read_to_string(format!("{process}/stat")).expect("its state");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let fields: Vec<_> = fields.split(' ').collect();
    // Of proc(5): real-time priority is the 40th field, the policy the 41st; FIFO is 1.
    assert_eq!(fields[37..39], ["7", "1"]);
    let folders = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"];
    let folders = folders.map(|top| format!("{top}{own}"));
    let there = || folders.iter().any(|folder| Path::new(folder).is_dir());
    assert!(there());
    helper.signal(Signal::TERM);
    assert_eq!(helper.finish_by_itself(), [""; 0]);
    assert!(!there(), "it takes its cgroup along");
    // One that is killed cannot; the next one does.
    let (mut killed, _) = serve(&[&shared[..], &["--own-cgroup"]].concat());
    let left = format!("/evenkeel-load-{}", killed.id());
    killed.kill();
    let (next, _) = serve(&[&shared[..], &["--own-cgroup"]].concat());
    let left = folders.map(|folder| folder.replace(&own, &left));
    assert!(!left.iter().any(|folder| Path::new(folder).exists()));
    next.signal(Signal::TERM);
    assert_eq!(next.finish_by_itself(), [""; 0]);
}

#[test]
fn a_nice_value_and_a_word_to_the_service_manager() {
    let folder = Folder::new();
    let (path, socket) = (folder.join("load"), folder.join("notify"));
    let manager = UnixDatagram::bind(&socket).expect("a socket");
    manager.set_read_timeout(Some(HANG)).expect("a limit");
    let mut command = command(&["--shared", text(&path), "--nice", "5"]);
    let helper = Script::start(command.env("NOTIFY_SOCKET", &socket));
    let mut word = [0; 100];
    let length = manager.recv(&mut word).expect("a word");
    assert_eq!(&word[..length], b"READY=1");
    let stat = fs::read_to_string(format!("/proc/{}/stat", helper.id())).expect("its state");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    assert_eq!(fields.split(' ').nth(16), Some("5"));
    helper.signal(Signal::TERM);
    let length = manager.recv(&mut word).expect("a word");
    assert_eq!(&word[..length], b"STOPPING=1");
}

#[test]
fn what_cannot_be_is_said_with_a_way_out() {
    let folder = Folder::new();
    let file = key_file(&folder);
    let path = folder.join("load");
    let nothing = refused(&[]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(complaint(&nothing).contains("--shared, --rdma or --respond"));
    for words in [
        &["--respond", "127.0.0.1:0"][..],
        &["--respond", "127.0.0.1:0", "--key-file", text(&file)],
        &["--shared", "x", "--interval", "0ms"],
        &["--shared", "x", "--fifo", "0"],
        &["--shared", "x", "--source", "kernel", "--cgroup", "/web"],
        &["--shared", "x", "--cgroup", "64=/web"],
        &["--shared", "x", "--allow", "10.0.0.0/33"],
    ] {
        assert_eq!(refused(words).status.code(), Some(2), "{words:?}");
    }
    let nowhere = refused(&["--shared", text(&folder.join("no/folder"))]);
    assert!(complaint(&nowhere).contains("no/folder"), "{nowhere:?}");
    let cgroup = refused(&["--shared", text(&path), "--cgroup", "/no-such-cgroup"]);
    assert!(complaint(&cgroup).contains("no cgroup /no-such-cgroup"));
    // Built without BPF or on a machine without RDMA, it says how to get them, and what
    // works everywhere.
    for lacking in [
        refused(&["--rdma", "192.0.2.1:0", "--allow", "127.0.0.1"]),
        refused(&[
            "--shared",
            text(&path),
            "--respond",
            "192.0.2.1:1",
            "--allow",
            "::1",
            "--key-file",
            "/none",
        ]),
    ] {
        let said = complaint(&lacking);
        assert!(
            said.contains("evenkeel agent") || said.contains("/none"),
            "{said}"
        );
    }
}

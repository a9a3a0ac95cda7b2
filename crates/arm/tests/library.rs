//! The C library as a server has it: a C program, compiled against the header and linked
//! with the library, and the agent's side of the same page.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use arm::page::{self, Lease, Reader, Sample};

/// A directory of its own, gone when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let name = format!("evenkeel-libarm-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn pages(&self) -> Vec<PathBuf> {
        page::find_pages(&self.0).unwrap()
    }

    /// The only page in it.
    fn reader(&self) -> Reader {
        let pages = self.pages();
        assert_eq!(pages.len(), 1, "{pages:?}");
        Reader::open(&pages[0]).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program of `client.c`.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // Cargo builds the library beside the tests.
        let built = std::env::current_exe().unwrap();
        let built = built.parent().unwrap();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = built.join("arm-client");
        let fresh = built.join(format!("arm-client-{}", std::process::id()));
        let status = Command::new("cc")
            .args([
                "-std=c99",
                "-D_GNU_SOURCE",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pthread",
            ])
            .arg(here.join("tests/client.c"))
            .arg("-I")
            .arg(here.join("include"))
            .arg("-o")
            .arg(&fresh)
            .arg("-L")
            .arg(built)
            .arg("-larm")
            .status()
            .unwrap();
        assert!(status.success(), "cc: {status}");
        std::fs::rename(fresh, &program).unwrap();
        program
    })
}

/// The program, running.
struct Server {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn new(dir: &Path) -> Self {
        let mut process = Command::new(program())
            .env(page::DIR_VARIABLE, dir)
            // Cargo has set it to where an older build may be.
            .env("LD_LIBRARY_PATH", program().parent().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self {
            process,
            input,
            output,
        }
    }

    /// A server of "shop" and its class of transactions.
    fn shop(dir: &Dir) -> (Self, i64) {
        let mut server = Self::new(&dir.0);
        let shop = server.call("init shop");
        assert!(shop > 0);
        let class = server.call(&format!("getid {shop} request"));
        assert!(class > 0);
        (server, class)
    }

    fn call(&mut self, call: &str) -> i64 {
        writeln!(self.input, "{call}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> i64 {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }

    /// Starts a transaction of nobody.
    fn start(&mut self, class: i64) -> i64 {
        let handle = self.call(&format!("start {class} -1 -1"));
        assert!(handle > 0);
        handle
    }

    fn stop(&mut self, handle: i64) {
        assert_eq!(self.call(&format!("stop {handle} 0")), 0);
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn kill(process: i64) {
    let process = rustix::process::Pid::from_raw(process.try_into().unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

fn sample(reader: &mut Reader) -> Sample {
    reader.sample(page::monotonic_nanos()).unwrap()
}

#[test]
fn transactions_are_counted_by_how_they_end() {
    let dir = Dir::new("ends");
    let (mut server, class) = Server::shop(&dir);
    let mut reader = dir.reader();
    assert_eq!(reader.application(), "shop");
    let before = sample(&mut reader);
    assert_eq!((before.processes, before.inits), (1, 1));
    for status in [0, 1, 2, 0] {
        let handle = server.start(class);
        assert_eq!(sample(&mut reader).in_flight, 1);
        assert_eq!(server.call(&format!("update {handle} -1 -1")), 0);
        assert_eq!(server.call(&format!("stop {handle} {status}")), 0);
        assert_eq!(server.call(&format!("stop {handle} {status}")), -1);
        assert_eq!(server.call(&format!("update {handle} -1 -1")), -1);
    }
    let interval = sample(&mut reader).interval_since(&before);
    assert_eq!(
        (interval.starts, interval.completions, interval.in_flight),
        (4, 4, 0)
    );
    assert_eq!(
        (interval.aborted, interval.failed, interval.lost),
        (1, 1, 0)
    );
    assert_eq!((interval.alone, interval.waits, interval.thinks), (2, 0, 0));
    assert_eq!(interval.histogram.count(), 4);
    // One after the other: the time with something in flight is the sum of their times.
    assert_eq!(interval.busy, interval.response_time_sum);
    assert!(interval.busy > Duration::ZERO && interval.busy < interval.length);
    assert!(interval.alone_time_sum < interval.response_time_sum);
}

#[test]
fn what_overlaps_is_not_alone_and_is_busy_once() {
    let dir = Dir::new("overlap");
    let (mut server, class) = Server::shop(&dir);
    let mut reader = dir.reader();
    let (first, second) = (server.start(class), server.start(class));
    let during = sample(&mut reader);
    assert_eq!(during.in_flight, 2);
    assert!(during.busy > Duration::ZERO);
    server.stop(first);
    server.stop(second);
    let after = sample(&mut reader);
    assert_eq!((after.in_flight, after.alone), (0, 0));
    assert!(during.busy < after.busy && after.busy < after.response_time);
    // Idle time is not busy.
    assert_eq!(sample(&mut reader).busy, after.busy);
}

#[test]
fn clients_think_between_a_stop_and_their_next_start() {
    let dir = Dir::new("think");
    let (mut server, class) = Server::shop(&dir);
    let mut reader = dir.reader();
    let start = page::monotonic_nanos();
    let mut serve = |client: i64| {
        let handle = server.call(&format!("start {class} {client} 250"));
        server.stop(handle);
    };
    serve(1);
    serve(2);
    assert_eq!(sample(&mut reader).thinks, 0);
    let before = sample(&mut reader);
    serve(1);
    let interval = sample(&mut reader).interval_since(&before);
    assert_eq!((interval.thinks, interval.waits), (1, 1));
    assert_eq!(interval.waiting_time_sum, Duration::from_micros(250));
    let all = Duration::from_nanos(page::monotonic_nanos() - start);
    assert!(interval.think_time_sum > Duration::ZERO && interval.think_time_sum < all);
    // Two requests at once are one thought.
    let requests = [3, 3].map(|client| server.call(&format!("start {class} {client} -1")));
    requests.into_iter().for_each(|handle| server.stop(handle));
    let before = sample(&mut reader).thinks;
    let requests = [3, 3].map(|client| server.call(&format!("start {class} {client} -1")));
    requests.into_iter().for_each(|handle| server.stop(handle));
    assert_eq!(sample(&mut reader).thinks, before + 1);
    // What is known late counts from then on.
    let handle = server.start(class);
    assert_eq!(server.call(&format!("update {handle} 4 9")), 0);
    server.stop(handle);
    let handle = server.call(&format!("start {class} 4 -1"));
    server.stop(handle);
    let after = sample(&mut reader);
    assert_eq!((after.thinks, after.waits), (before + 2, 4));
}

#[test]
fn nothing_is_lost_or_doubled_by_threads() {
    let dir = Dir::new("threads");
    let (mut server, _) = Server::shop(&dir);
    let mut reader = dir.reader();
    // More threads than lanes of a process.
    assert_eq!(server.call("threads 24 3000"), 0);
    let sample = sample(&mut reader);
    assert_eq!((sample.starts, sample.in_flight), (72_000, 0));
    assert_eq!(
        (sample.good, sample.aborted, sample.failed),
        (24_000, 24_000, 24_000)
    );
    assert_eq!(sample.histogram.count(), 72_000);
    assert_eq!(sample.processes, 1);
    assert!(sample.alone <= sample.good);
}

#[test]
fn a_transaction_makes_no_system_call_and_allocates_nothing() {
    let dir = Dir::new("quietly");
    let (mut server, _) = Server::shop(&dir);
    assert_eq!(server.call("quietly 1000"), 0);
    assert_eq!(sample(&mut dir.reader()).starts, 2000);
    // Nor where it is not measured.
    let mut server = Server::new(&dir.0.join("nowhere"));
    assert_eq!(server.call("init shop"), 1);
    assert!(server.call("getid 1 request") > 0);
    assert_eq!(server.call("quietly 1000"), 0);
}

#[test]
fn a_killed_process_leaves_nothing_in_flight() {
    let dir = Dir::new("killed");
    let (mut first, class) = Server::shop(&dir);
    let mut reader = dir.reader();
    let (mut second, _) = Server::shop(&dir);
    first.start(class);
    second.start(class);
    second.start(class);
    assert_eq!(sample(&mut reader).in_flight, 3);
    first.kill();
    // The reader sees it at once, whoever else does.
    let after = sample(&mut reader);
    assert_eq!((after.in_flight, after.processes, after.ends), (2, 1, 0));
    // The next process writes it off.
    let (mut third, class) = Server::shop(&dir);
    let after = sample(&mut reader);
    assert_eq!((after.in_flight, after.processes, after.lost), (2, 2, 1));
    second.kill();
    let after = sample(&mut reader);
    assert_eq!((after.in_flight, after.processes), (0, 1));
    // Nobody is in flight beside this one, and the application is at rest afterwards.
    let (mut fourth, _) = Server::shop(&dir);
    let handle = third.start(class);
    third.stop(handle);
    let after = sample(&mut reader);
    assert_eq!((after.lost, after.alone), (3, 1));
    assert_eq!(sample(&mut reader).busy, after.busy);
    let handle = fourth.start(class);
    fourth.stop(handle);
    assert_eq!(sample(&mut reader).alone, 2);
}

#[test]
fn a_process_that_becomes_another_program_leaves_nothing_in_flight() {
    let dir = Dir::new("reborn");
    let (mut server, class) = Server::shop(&dir);
    let mut reader = dir.reader();
    server.start(class);
    writeln!(server.input, "exec").unwrap();
    assert!(server.call("init shop") > 0);
    let after = sample(&mut reader);
    assert_eq!((after.in_flight, after.lost, after.processes), (0, 1, 1));
    let class = server.call("getid 1 request");
    let handle = server.start(class);
    server.stop(handle);
    assert_eq!(sample(&mut reader).alone, 1);
}

#[test]
fn a_forked_process_is_another_one() {
    let dir = Dir::new("forked");
    let (mut server, class) = Server::shop(&dir);
    let mut reader = dir.reader();
    let parents = server.start(class);
    let child = server.call("fork");
    // The parent's transaction is the parent's.
    assert_eq!(server.call(&format!("stop {parents} 0")), -1);
    let childs = server.start(class);
    let during = sample(&mut reader);
    assert_eq!((during.in_flight, during.processes), (2, 2));
    // Opened before or after the fork.
    assert!(server.call("init other") > 0);
    kill(child);
    assert_eq!(server.answer(), child);
    assert_eq!(sample(&mut reader).in_flight, 1);
    assert_eq!(server.call(&format!("stop {childs} 0")), -1);
    server.stop(parents);
    let after = sample(&mut reader);
    assert_eq!((after.good, after.in_flight, after.processes), (1, 0, 1));
}

#[test]
fn the_end_of_the_last_process_is_seen_and_its_next_start_goes_on_counting() {
    let dir = Dir::new("end");
    let (mut server, class) = Server::shop(&dir);
    let mut reader = dir.reader();
    // Opened twice, by two parts of it.
    assert_eq!(server.call("init shop"), 1);
    let handle = server.start(class);
    assert_eq!(server.call("end 1"), 0);
    assert_eq!(sample(&mut reader).processes, 1);
    assert_eq!(server.call("end 1"), 0);
    let ended = sample(&mut reader);
    assert_eq!(
        (ended.processes, ended.ends, ended.lost, ended.in_flight),
        (0, 2, 1, 0)
    );
    assert_eq!(server.call("end 1"), -1);
    assert_eq!(server.call(&format!("stop {handle} 0")), -1);
    assert_eq!(server.call(&format!("start {class} -1 -1")), -1);
    // The same process, and another one.
    assert_eq!(server.call("init shop"), 1);
    let handle = server.start(class);
    server.stop(handle);
    let (mut other, class) = Server::shop(&dir);
    let handle = other.start(class);
    other.stop(handle);
    let interval = sample(&mut reader).interval_since(&ended);
    assert_eq!(
        (interval.completions, interval.alone, interval.processes),
        (2, 2, 2)
    );
    assert!(!interval.restarted);
}

#[test]
fn bogus_calls_are_answered_and_change_nothing() {
    let dir = Dir::new("bogus");
    let (mut server, _) = Server::shop(&dir);
    let mut reader = dir.reader();
    let before = sample(&mut reader);
    let first = server.call("bogus");
    let answers: Vec<_> = (0..12).map(|_| server.answer()).collect();
    assert_eq!((first, answers), (-1, vec![-1; 12]));
    let interval = sample(&mut reader).interval_since(&before);
    assert_eq!(
        (interval.starts, interval.lost, interval.ended),
        (0, 0, false)
    );
    assert_eq!(server.call("shed 0"), 0);
    assert_eq!(server.call("shed 9"), 0);
    for (limit, call) in [(63, "init app"), (1023, "getid 1 class")] {
        let identifiers: Vec<_> = (0..limit + 3)
            .map(|n| server.call(&format!("{call}{n}")))
            .collect();
        let good = identifiers.iter().filter(|id| **id > 0).count();
        assert_eq!(good, limit, "{call}");
    }
}

#[test]
fn transactions_that_nobody_stops_make_place() {
    let dir = Dir::new("leak");
    let (mut server, class) = Server::shop(&dir);
    let mut reader = dir.reader();
    let last = server.call(&format!("leak {class} 20000"));
    assert!(last > 0);
    let leaked = sample(&mut reader);
    assert_eq!(
        (leaked.starts, leaked.in_flight, leaked.lost),
        (20_000, 16_384, 3616)
    );
    server.stop(last);
    assert_eq!(sample(&mut reader).good, 1);
}

#[test]
fn an_alert_is_seen_while_it_holds() {
    let dir = Dir::new("alert");
    let (mut server, _) = Server::shop(&dir);
    let reader = dir.reader();
    assert_eq!(server.call("shed 1"), 0);
    let long = Lease::new(page::monotonic_nanos(), Duration::from_secs(500));
    reader.set_alert(Some(long)).unwrap();
    assert_eq!(server.call("shed 1"), 1);
    // Over.
    reader
        .set_alert(Some(Lease {
            until: page::monotonic_nanos(),
        }))
        .unwrap();
    assert_eq!(server.call("shed 1"), 0);
    reader.set_alert(Some(long)).unwrap();
    assert_eq!(server.call("shed 1"), 1);
    // The agent is gone, and another one came.
    drop(reader);
    dir.reader().set_alert(None).unwrap();
    assert_eq!(server.call("shed 1"), 0);
}

#[test]
fn without_a_place_for_a_page_everything_works_and_is_not_measured() {
    let dir = Dir::new("nowhere");
    let mut server = Server::new(&dir.0.join("not/there"));
    assert_eq!(server.call("init shop"), 1);
    let class = server.call("getid 1 request");
    let handle = server.start(class);
    server.stop(handle);
    assert_eq!(server.call("threads 2 100"), 0);
    assert_eq!(server.call("shed 1"), 0);
    assert_eq!(server.call("measured 1"), 0);
    assert_eq!(server.call("end 1"), 0);
    assert!(dir.pages().is_empty());
    // There is one when the application is opened again.
    std::fs::create_dir_all(dir.0.join("not/there")).unwrap();
    assert_eq!(server.call("init shop"), 1);
    assert_eq!(server.call("measured 1"), 1);
    assert_eq!(server.call("measured 2"), 0);
}

#[test]
fn a_page_that_is_damaged_or_removed_is_made_anew() {
    let dir = Dir::new("damaged");
    let (mut server, class) = Server::shop(&dir);
    let mut reader = dir.reader();
    let handle = server.start(class);
    server.stop(handle);
    let before = sample(&mut reader);
    let path = &dir.pages()[0];
    for damage in [&b""[..], b"garbage", &[0xff; 8192]] {
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, damage).unwrap();
        assert!(reader.sample(page::monotonic_nanos()).is_err());
        let (mut next, class) = Server::shop(&dir);
        let handle = next.start(class);
        next.stop(handle);
        let interval = sample(&mut reader).interval_since(&before);
        assert!(interval.restarted);
        assert_eq!((interval.completions, interval.processes), (1, 1));
    }
    // The server of the first page goes on with it, and nobody minds.
    let handle = server.start(class);
    server.stop(handle);
}

#[test]
fn a_page_is_its_owners() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let dir = Dir::new("owner");
    let (server, _) = Server::shop(&dir);
    let path = &dir.pages()[0];
    let about = std::fs::metadata(path).unwrap();
    assert_eq!(about.mode() & 0o777, 0o600);
    assert_eq!(dir.reader().owner(), (about.uid(), about.gid()));
    drop(server);
    // One that everybody may write to, and a link, are not taken.
    let mut reader = dir.reader();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let before = sample(&mut reader);
    let _ = Server::shop(&dir);
    assert_eq!(sample(&mut reader).inits, before.inits);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let moved = dir.0.join("moved");
    std::fs::rename(path, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, path).unwrap();
    let _ = Server::shop(&dir);
    assert_eq!(
        sample(&mut Reader::open(&moved).unwrap()).inits,
        before.inits
    );
    // In a directory that is set up for it, the group has it too.
    let shared = Dir::new("group");
    std::fs::set_permissions(&shared.0, std::fs::Permissions::from_mode(0o2775)).unwrap();
    let _ = Server::shop(&shared);
    let about = std::fs::metadata(&shared.pages()[0]).unwrap();
    assert_eq!(about.mode() & 0o777, 0o660);
}

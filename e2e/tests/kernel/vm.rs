//! The kernel load monitor and forwarding on Debian's own kernel, and the monitor over RDMA, in an emulated machine.
//!
//! The tests in [`guest`] and [`forwarding`] are run there, and some of forwarding's own, by this very program.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test helper fails by panicking.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::report_skipped;
use evenkeel_e2e::{balancer, vm};

/// Runs the tests of this program that arguments name in a machine. Returns the console's text; `None` if there can be no such
/// machine here, or if a test was skipped there, which is said. The text is kept in a file of this name, too.
fn run_in_machine(arguments: &[&str], log: &str) -> Option<String> {
    if vm::runs_in_vm() {
        return None;
    }
    let folder = Folder::new();
    let tests = folder.join("tests");
    symlink(std::env::current_exe().expect("this program"), &tests).expect("a link");
    let command = [&["tests", "--test-threads=1", "--nocapture"], arguments].concat();
    let outcome = match vm::run(&[&tests, balancer::evenkeel_binary()], &command) {
        Ok(outcome) => outcome,
        Err(lacking) => {
            report_skipped(&lacking);
            return None;
        }
    };
    // Kept for who wants to see the figures.
    let log = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/vm")
        .join(log);
    fs::write(log, &outcome.console).expect("the log is written");
    println!(
        "{}\nthe machine ran for {:?}",
        outcome.console, outcome.took
    );
    assert_eq!(
        outcome.code,
        Some(0),
        "what failed stands on the console above"
    );
    assert!(outcome.console.contains("test result: ok"));
    let skipped = |line: &&str| line.contains("SKIPPED: ");
    if let Some(line) = outcome.console.lines().find(skipped) {
        report_skipped(line);
        return None;
    }
    Some(outcome.console)
}

#[test]
fn the_monitor_works_on_debians_kernel_and_over_rdma() {
    run_in_machine(&["--ignored", "guest::"], "console.log");
}

#[test]
fn s41_debians_kernel_forwards() {
    let tests = [
        "vm::forwarding::s41_the_kernel_forwards_and_the_status_names_what_it_lacks",
        "forward::nat::s41_members_need_no_route_to_clients_with_full_nat",
    ];
    let arguments = [&["--include-ignored", "--exact"], &tests[..]].concat();
    let Some(console) = run_in_machine(&arguments, "forwarding.log") else {
        return;
    };
    assert!(console.contains(&format!("test result: ok. {} passed", tests.len())));
}

/// A test of forwarding that runs in the machine, beside those of other machines.
mod forwarding {
    use std::time::Duration;

    use evenkeel_e2e::netns::FRONT;
    use evenkeel_e2e::{vm, wait_until};

    use crate::forward::udp::ask;
    use crate::forward::{BOTH, Machines, echo};

    /// Settings for native XDP at both interfaces of the balancer, whose drivers do not tell that kernel what they can.
    const XDP: &str = "[kernel_forwarding]\nxdp_interfaces = [\"client1\", \"front0\"]";

    #[test]
    #[ignore = "runs in the emulated machine"]
    fn s41_the_kernel_forwards_and_the_status_names_what_it_lacks() {
        assert!(vm::runs_in_vm(), "this is for the emulated machine");
        for family in BOTH {
            let machines = Machines::new(family).expect("this is root");
            machines.start_member(2, Duration::ZERO);
            let Some(balancer) = machines.start_balancer(&[2], XDP) else {
                return;
            };
            assert_eq!(machines.state(&balancer), "kernel");
            let (mut stream, seen) = machines.connect().unwrap();
            assert_eq!(
                seen,
                family.client(),
                "the proxy would have its own address"
            );
            echo(&mut stream, 1 << 20);
            drop(stream);
            machines.wait_for_ends(&balancer);
            let now = machines.forwarded(&balancer);
            for way in ["to_member", "to_client"] {
                assert!(now["packets"][way].as_u64() >= Some(8), "{now}");
            }
            // Neither tcx nor what drivers say of XDP is there before Linux 6.6 and 6.3.
            for (list, reason) in [
                ("tc_interfaces", "the kernel has no tcx (Linux 6.6)"),
                ("xdp_interfaces", "(Linux 6.3)"),
            ] {
                for name in ["client1", FRONT] {
                    wait_until("the interface is named with the reason", || {
                        let now = machines.forwarded(&balancer);
                        let all = now[list].as_array().cloned().unwrap_or_default();
                        all.iter().any(|one| {
                            let said = one["reason"].as_str().unwrap_or_default();
                            one["name"] == name && one["program"] == "tc" && said.contains(reason)
                        })
                    });
                }
            }
            drop(balancer);
            machines.start_udp_member(2);
            let balancer = machines.start_udp_balancer("kernel", &[2], "");
            let balancer = balancer.expect("it is built with the programs");
            assert_eq!(machines.state(&balancer), "kernel");
            let socket = machines.open_client();
            let answer = ask(&socket, 1000).unwrap();
            assert_eq!(answer.last, 2);
            assert_eq!(
                answer.seen,
                socket.local_addr().unwrap(),
                "the client itself"
            );
        }
    }
}

/// Tests that run in the machine.
mod guest {
    use std::fs;
    use std::io::{BufRead, BufReader, Write as _};
    use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Barrier};
    use std::thread::{self, JoinHandle};
    use std::time::{Duration, Instant};

    use evenkeel_e2e::process::{self, Signal};
    use evenkeel_e2e::{vm, wait_until};
    use evenkeel_kernel::host::Host;
    use evenkeel_kernel::page::Mapping;
    use evenkeel_kernel::priority;
    use evenkeel_kernel::proc::monotonic_ns;
    use evenkeel_kernel::query::{Answer, DEFAULT_PORT, Key, Query, WITH_PORTS};
    use evenkeel_kernel::rdma::{ConnectionId, Counters, Error, Limits, Memory, Reader, Server};
    use evenkeel_kernel::record::{
        Available, BadRecord, Base, Cpu, FIXED, Port, Scope, Source, Whole,
    };
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    /// Of the machine's Soft-RoCE device: see `vm/init`.
    const ADDRESS: [&str; 2] = ["10.77.0.1", "fd77::1"];

    /// Memory with a page, writable here.
    fn page(cpus: usize) -> Arc<Mapping> {
        let file = memfd_create("page", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 17).unwrap();
        let page = Arc::new(Mapping::new(file.as_fd(), 1 << 17).unwrap());
        write(&page, &whole(cpus, 1));
        page
    }

    fn whole(cpus: usize, number: u64) -> Whole {
        let mut base = Base::new(Source::User, Scope::Machine);
        base.begin = number * 2;
        base.end = number * 2;
        base.time_ns = number;
        base.epoch = 7;
        base.cpus = cpus as u32;
        base.capacity = base.cpus * 1000;
        base.totals.busy_ns = number;
        Whole {
            base,
            ports: Vec::new(),
            cpus: vec![Cpu::default(); cpus],
        }
    }

    fn write(page: &Mapping, whole: &Whole) {
        let mut bytes = vec![0; whole.copy_length()];
        whole.copy(0, &mut bytes);
        // SAFETY: the mapping is larger than that, and everybody who reads expects changes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.address(), bytes.len());
        }
    }

    /// A server in a thread of its own.
    struct Serving {
        address: SocketAddr,
        end: Arc<AtomicBool>,
        thread: Option<JoinHandle<Counters>>,
    }

    impl Serving {
        fn new(
            ip: &str,
            page: Arc<Mapping>,
            limits: Limits,
            allowed: impl Fn(IpAddr) -> bool + Send + 'static,
        ) -> Self {
            let ip: IpAddr = ip.parse().unwrap();
            let mut server = Server::bind((ip, 0).into(), page, limits, allowed).unwrap();
            let address = SocketAddr::new(ip, server.port());
            let end = Arc::new(AtomicBool::new(false));
            let until = end.clone();
            let thread = thread::spawn(move || {
                while !until.load(Ordering::Relaxed) {
                    server.poll(Duration::from_millis(20)).unwrap();
                }
                server.counters()
            });
            Serving {
                address,
                end,
                thread: Some(thread),
            }
        }

        /// Ends it, and with it the connections.
        fn end(mut self) -> Counters {
            self.end.store(true, Ordering::Relaxed);
            self.thread.take().unwrap().join().unwrap()
        }
    }

    /// Time that only a hang takes in a machine that is emulated, beside other work.
    const LONG: Duration = Duration::from_secs(600);

    /// Pause before a torn page is read again: who writes it may want the CPU of the reader.
    const TORN: Duration = Duration::from_millis(1);

    /// Result of a read, of one connection.
    type Got = Result<(Base, Duration, u32), Error>;

    fn wait(reader: &Reader) {
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        let mut fds = [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)];
        let _ = poll(&mut fds, Some(&limit));
    }

    /// Polls until there is something of the connection; asks as long as nothing is asked.
    fn poll_answer(reader: &mut Reader, id: ConnectionId) -> Got {
        let limit = Instant::now() + LONG;
        loop {
            assert!(Instant::now() < limit, "nothing is ever read");
            reader.begin_read(id, Instant::now());
            let mut got = None;
            reader
                .poll(Instant::now(), |of, answer| {
                    if of == id && got.is_none() {
                        got =
                            Some(answer.map(|answer| {
                                (answer.record.base, answer.round_trip, answer.reads)
                            }));
                    }
                })
                .unwrap();
            match got {
                Some(got) => return got,
                None => wait(reader),
            }
        }
    }

    /// The next answer of a connection to a peer that is there. On a busy machine a connection or a read may take
    /// longer than the reader and the device wait: the reader connects again by itself.
    fn next(reader: &mut Reader, id: ConnectionId) -> Got {
        let limit = Instant::now() + LONG;
        loop {
            match poll_answer(reader, id) {
                Err(error @ (Error::TimedOut | Error::Read(_))) if Instant::now() < limit => {
                    say(&format!("{error}; the reader tries again"));
                }
                got => return got,
            }
        }
    }

    /// The next record of a page that is being written. A writer that has lost its CPU within a record, in the machine
    /// or with one of the machine's processors, leaves the page torn until it gets a CPU again.
    fn next_whole(reader: &mut Reader, id: ConnectionId) -> Result<Base, Error> {
        let limit = Instant::now() + LONG;
        loop {
            match next(reader, id) {
                Err(Error::Record(BadRecord::Torn)) => {
                    assert!(Instant::now() < limit, "the page stays torn");
                    thread::sleep(TORN);
                }
                other => return other.map(|(base, ..)| base),
            }
        }
    }

    fn say(line: &str) {
        let _ = writeln!(std::io::stderr(), "VM: {line}");
    }

    #[test]
    #[ignore = "runs in the emulated machine"]
    fn a_users_page_is_read() {
        assert!(vm::runs_in_vm(), "this is for the emulated machine");
        for ip in ADDRESS {
            let page = page(2);
            let serving = Serving::new(ip, page.clone(), Limits::default(), |_| true);
            let mut reader = Reader::new().unwrap();
            let id = reader.connect(serving.address, Instant::now());
            for number in 1..50 {
                write(&page, &whole(2, number));
                let (base, ..) = next(&mut reader, id).unwrap();
                assert_eq!((base.totals.busy_ns, base.epoch), (number, 7));
            }
            // Torn, it is read again, and then said to be so.
            let mut torn = whole(2, 9);
            torn.base.end = 20;
            write(&page, &torn);
            let error = next(&mut reader, id).unwrap_err();
            assert!(matches!(error, Error::Record(BadRecord::Torn)), "{error}");
            write(&page, &whole(2, 77));
            let (base, ..) = next(&mut reader, id).unwrap();
            assert_eq!(base.totals.busy_ns, 77);
            // A page that is no record costs the connection, which is made again.
            write(&page, &whole(0, 77));
            let error = next(&mut reader, id).unwrap_err();
            assert!(
                matches!(error, Error::Record(BadRecord::Field(_))),
                "{error}"
            );
            write(&page, &whole(2, 78));
            let (base, ..) = next(&mut reader, id).unwrap();
            assert_eq!(base.totals.busy_ns, 78);
            let counters = serving.end();
            assert!(counters.accepted >= 2, "{ip}");
            assert_eq!(counters.bad, 0, "{ip}");
            let error = next(&mut reader, id).unwrap_err();
            say(&format!("{ip}: after the end of the server: {error}"));
        }
    }

    #[test]
    #[ignore = "runs in the emulated machine"]
    fn who_may_not_read_is_refused() {
        let limits = Limits {
            connections: 2,
            per_source: 2,
        };
        let allowed = Arc::new(AtomicBool::new(false));
        let may = allowed.clone();
        let serving = Serving::new(ADDRESS[0], page(2), limits, move |_| {
            may.load(Ordering::Relaxed)
        });
        let mut reader = Reader::new().unwrap();
        let id = reader.connect(serving.address, Instant::now());
        let error = next(&mut reader, id).unwrap_err().to_string();
        assert!(
            error.contains("does not allow this address to read"),
            "{error}"
        );
        allowed.store(true, Ordering::Relaxed);
        // It tries again by itself.
        let (base, ..) = next(&mut reader, id).unwrap();
        assert_eq!(base.totals.busy_ns, 1);
        let second = reader.connect(serving.address, Instant::now());
        next(&mut reader, second).unwrap();
        let third = reader.connect(serving.address, Instant::now());
        let error = next(&mut reader, third).unwrap_err().to_string();
        assert!(error.contains("too many"), "{error}");
        // One goes, another comes.
        reader.close(second);
        while next(&mut reader, third).is_err() {}
        let counters = serving.end();
        assert!(counters.not_allowed >= 1 && counters.full >= 1 && counters.accepted >= 3);
    }

    #[test]
    #[ignore = "runs in the emulated machine"]
    fn where_nothing_is_offered_others_are_not_held_up() {
        let serving = Serving::new(ADDRESS[0], page(2), Limits::default(), |_| true);
        let mut reader = Reader::new().unwrap();
        // Nobody listens there; nobody is there; no way leads there.
        let nobody: [SocketAddr; 3] =
            ["10.77.0.1:1", "10.77.0.9:9971", "192.0.2.1:9971"].map(|at| at.parse().unwrap());
        let lost = nobody.map(|at| reader.connect(at, Instant::now()));
        let started = Instant::now();
        let id = reader.connect(serving.address, Instant::now());
        next(&mut reader, id).unwrap();
        let first = started.elapsed();
        for (id, at) in lost.into_iter().zip(nobody) {
            let error = poll_answer(&mut reader, id).unwrap_err();
            say(&format!("{at}: {error}"));
            assert!(!reader.is_connected(id));
        }
        for _ in 0..20 {
            next(&mut reader, id).unwrap();
        }
        say(&format!("the first read beside them came after {first:?}"));
        serving.end();
    }

    /// `evenkeel`, running; ended when dropped.
    struct Helper {
        child: Child,
        address: SocketAddr,
    }

    impl Helper {
        /// `evenkeel kernel serve`, once it says that it is ready.
        fn serve(arguments: &[&str]) -> Self {
            let mut child = Command::new("evenkeel")
                .args(["kernel", "serve", "--rdma", "10.77.0.1:0"])
                .args(["--allow", "10.77.0.0/24"])
                .args(arguments)
                .stdout(Stdio::piped())
                .spawn()
                .expect("evenkeel runs");
            let mut address = None;
            for line in BufReader::new(child.stdout.take().unwrap()).lines() {
                let line = line.unwrap();
                if let Some(at) = line.strip_prefix("listening: rdma on ") {
                    address = Some(at.parse().unwrap());
                }
                if line == "ready" {
                    break;
                }
            }
            Helper {
                child,
                address: address.expect("it says where it listens"),
            }
        }

        fn signal(&self, signal: Signal) {
            process::signal(self.child.id(), signal);
        }

        /// Stops it. All its threads have stopped when this returns.
        fn stop(&self) {
            self.signal(Signal::STOP);
            let has_stopped = |status: &str| status.contains("\nState:\tT");
            let threads = format!("/proc/{}/task", self.child.id());
            wait_until("the helper has stopped", || {
                fs::read_dir(&threads).unwrap().all(|thread| {
                    let status = thread.unwrap().path().join("status");
                    // A thread that ends is none that writes.
                    let text = fs::read_to_string(status).ok();
                    text.is_none_or(|text| has_stopped(&text))
                })
            });
        }
    }

    impl Drop for Helper {
        fn drop(&mut self) {
            // SIGKILL ends what is stopped, too.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Returns true if `evenkeel` was built with what these tests need; says so if not.
    fn built() -> bool {
        let said = |arguments: &[&str]| {
            let output = Command::new("evenkeel")
                .arg("kernel")
                .args(arguments)
                .output();
            String::from_utf8(output.expect("evenkeel runs").stderr).unwrap()
        };
        let lacks = said(&["status", "lo"]).contains("built without");
        if lacks {
            say("SKIPPED: this evenkeel was built without BPF: scripts/setup kernel");
        }
        !lacks
    }

    /// Threads that do nothing but compute.
    struct Busy {
        end: Arc<AtomicBool>,
        threads: Vec<JoinHandle<()>>,
    }

    impl Busy {
        /// Starts them. All of them run when this returns.
        fn new(number: usize) -> Self {
            let end = Arc::new(AtomicBool::new(false));
            let begun = Arc::new(Barrier::new(number + 1));
            let thread = |_| {
                let (end, begun) = (end.clone(), begun.clone());
                thread::spawn(move || {
                    begun.wait();
                    while !end.load(Ordering::Relaxed) {}
                })
            };
            let threads = (0..number).map(thread).collect();
            begun.wait();
            Busy { end, threads }
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            self.end.store(true, Ordering::Relaxed);
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }

    /// The value at a share of the way through.
    fn quantile(sorted: &[u64], share: f64) -> f64 {
        sorted[((sorted.len() - 1) as f64 * share) as usize] as f64 / 1e6
    }

    /// Reports the age of records when they have been read, in ms: half of them, and 99 of 100.
    fn ages(what: &str, mut ages: Vec<u64>) {
        ages.sort_unstable();
        let (half, most) = (quantile(&ages, 0.5), quantile(&ages, 0.99));
        say(&format!(
            "age of {what}: p50 {half:.2} ms, p99 {most:.2} ms, {} reads",
            ages.len()
        ));
    }

    /// Lines like `name: number kB` and `name number`.
    fn number(file: &str, name: &str) -> f64 {
        let text = fs::read_to_string(file).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let number = line[name.len()..].split_whitespace().next().unwrap();
        number.parse().unwrap()
    }

    /// The `avg10` and the total of pressure, in per cent and us.
    fn pressure(kind: &str) -> (f64, f64) {
        let text = fs::read_to_string(format!("/proc/pressure/{kind}")).unwrap();
        let field = |name: &str| {
            let (_, rest) = text.split_once(name).unwrap();
            rest.split_whitespace().next().unwrap().parse().unwrap()
        };
        (field("avg10="), field("total="))
    }

    /// Busy time of all CPUs in ns: what is not idle, as the kernel counts it exactly.
    fn busy_ns() -> f64 {
        let text = fs::read_to_string("/proc/stat").unwrap();
        let all = text.lines().next().unwrap().split_whitespace().skip(1);
        let ticks: Vec<f64> = all.map(|ticks| ticks.parse().unwrap()).collect();
        // Without idle and iowait; guests are in user.
        (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]) * 1e7
    }

    #[test]
    #[ignore = "runs in the emulated machine"]
    fn the_kernels_page_is_read_while_its_helper_is_stopped() {
        if !built() {
            return;
        }
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listening.local_addr().unwrap().port();
        let helper = Helper::serve(&["--source", "kernel", "--listen-port", &port.to_string()]);
        let mut reader = Reader::new().unwrap();
        let id = reader.connect(helper.address, Instant::now());
        let first = next_whole(&mut reader, id).unwrap();
        assert_eq!(first.source, Source::KernelPage);
        helper.stop();
        let has = [
            ("times", Available::TIMES),
            ("busy", Available::BUSY),
            ("running", Available::RUNNING),
            ("switches", Available::SWITCHES),
            ("soft interrupts", Available::SOFTIRQS),
            ("backlog", Available::BACKLOG),
            ("pressure", Available::PRESSURE),
            ("memory", Available::MEMORY),
            ("load averages", Available::LOAD_AVERAGES),
            ("ports", Available::PORTS),
            ("running average", Available::RUNNING_AVERAGE),
        ];
        let second = next_whole(&mut reader, id).unwrap();
        for (name, part) in has {
            assert!(second.available.has_all(part), "this kernel has {name}");
        }

        // Under load, with the helper stopped: what is read is fresh, and right.
        let busy = Busy::new(16);
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut newest, mut oldest, mut again) = (Vec::new(), Vec::new(), 0);
        let start = next_whole(&mut reader, id).unwrap();
        let (counted, stalled) = (busy_ns(), pressure("cpu").1);
        let (mut last, mut backlog) = (start, 0);
        at_once(|| {
            let until = Instant::now() + Duration::from_secs(4);
            while Instant::now() < until {
                let (at, (base, reads, entries, ports)) = read(&mut reader, id);
                assert!(base.time_ns >= last.time_ns && base.updates >= last.updates);
                newest.push(at.saturating_sub(base.time_ns));
                let entry = entries.iter().map(|cpu| cpu.time_ns).min().unwrap();
                oldest.push(at.saturating_sub(entry));
                again += u32::from(reads > 1);
                backlog = backlog.max(ports[0].backlog);
                last = base;
                thread::sleep(Duration::from_millis(5));
            }
        });
        let (counted, stalled) = (busy_ns() - counted, pressure("cpu").1 - stalled);
        let updates = last.updates - start.updates;
        say(&format!(
            "helper stopped: {updates} updates of the base, {} reads, {again} read again",
            newest.len()
        ));
        assert!(updates > 20, "the kernel goes on without its helper");
        ages("the kernel's page, its newest entry", newest);
        ages("the kernel's page, its oldest entry (timer alone)", oldest);
        assert_eq!((backlog, client.peer_addr().unwrap().port()), (1, port));

        let elapsed = (last.time_ns - start.time_ns) as f64;
        let spent = (last.totals.busy_ns - start.totals.busy_ns) as f64;
        let share = spent / elapsed / f64::from(last.cpus);
        say(&format!(
            "busy: {share:.3} of the CPUs; /proc/stat {:.3}",
            counted / elapsed / f64::from(last.cpus)
        ));
        // Ticks are lost where the host is busy, so /proc/stat is only said.
        assert!(
            (0.9..1.05).contains(&share),
            "16 threads keep the CPUs busy"
        );
        let ns = (last.pressure.cpu_some.total_ns - start.pressure.cpu_some.total_ns) as f64;
        say(&format!(
            "CPU pressure: {:.3} of the time; /proc/pressure {:.3}",
            ns / elapsed,
            stalled * 1e3 / elapsed
        ));
        assert!(ns > 0.5 * elapsed, "tasks wait for CPUs all the time");
        let average = f64::from(last.running_average) / FIXED;
        say(&format!(
            "running average: {average:.1}, load average {:.2}; /proc/loadavg {:.2}",
            f64::from(last.load_averages[0]) / FIXED,
            number("/proc/loadavg", "")
        ));
        assert!((8.0..40.0).contains(&average));
        let load = f64::from(last.load_averages[0]) / FIXED - number("/proc/loadavg", "");
        assert!(load.abs() < 2.0, "{load}");
        let available = number("/proc/meminfo", "MemAvailable:") * 1024.0;
        say(&format!(
            "memory: {} of {} available; /proc/meminfo {available}",
            last.memory.available, last.memory.total
        ));
        let memory = (last.memory.available as f64 - available).abs();
        assert!(memory < 0.1 * last.memory.total as f64);
        assert!(
            (last.memory.total as f64 / 1024.0 - number("/proc/meminfo", "MemTotal:")).abs()
                < 4096.0
        );
        drop(busy);

        // A reader may even go while it is stopped; the next one needs it again.
        reader.close(id);
        helper.signal(Signal::CONT);
        let id = reader.connect(helper.address, Instant::now());
        next_whole(&mut reader, id).unwrap();
    }

    /// Does something in a thread that gets a CPU as soon as it wants one: what it finds out
    /// about time is not about itself.
    fn at_once(what: impl FnOnce() + Send) {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                priority::set_fifo_class(50).expect("this is root");
                what();
            });
            thread.join().unwrap();
        });
    }

    /// Reads once: the monotonic time when it was there, the record, and how often it was
    /// copied.
    fn read(reader: &mut Reader, id: ConnectionId) -> (u64, (Base, u32, Vec<Cpu>, Vec<Port>)) {
        let limit = Instant::now() + LONG;
        loop {
            assert!(Instant::now() < limit, "nothing is ever read");
            reader.begin_read(id, Instant::now());
            let (mut got, mut torn) = (None, false);
            let taken = reader.poll(Instant::now(), |_, answer| {
                let answer = match answer {
                    Ok(answer) => answer,
                    // A process that has lost its CPU while it wrote: it goes on some time.
                    Err(Error::Record(BadRecord::Torn)) => {
                        torn = true;
                        return;
                    }
                    // As in `next`.
                    Err(error @ (Error::TimedOut | Error::Read(_))) => {
                        return say(&format!("{error}; the reader tries again"));
                    }
                    Err(error) => panic!("{error}"),
                };
                let cpus = answer.record.cpus().filter_map(Result::ok).collect();
                let ports = answer.record.ports().collect();
                got = Some((
                    monotonic_ns(),
                    (answer.record.base, answer.reads, cpus, ports),
                ));
            });
            taken.unwrap();
            match got {
                Some(got) => return got,
                // This thread goes before all others: the one that writes gets no CPU while it asks.
                None if torn => thread::sleep(TORN),
                None => wait(reader),
            }
        }
    }

    /// Stops a helper between two records, and reads the last one. A helper that is stopped within a record leaves
    /// its page torn for as long: it goes on then, and is stopped once more.
    fn stop_between_records(helper: &Helper, reader: &mut Reader, id: ConnectionId) -> Base {
        let limit = Instant::now() + LONG;
        let mut stops = 0;
        loop {
            assert!(Instant::now() < limit, "each stop is within a record");
            stops += 1;
            helper.stop();
            match next(reader, id) {
                Ok((base, ..)) => {
                    say(&format!("stopped between two records, at attempt {stops}"));
                    return base;
                }
                Err(Error::Record(BadRecord::Torn)) => {
                    helper.signal(Signal::CONT);
                    // Stopped before that, it would be where it was.
                    next_whole(reader, id).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    #[ignore = "runs in the emulated machine"]
    fn a_process_offers_its_page_and_is_late_when_stopped() {
        if !built() {
            return;
        }
        let helper = Helper::serve(&["--source", "proc", "--interval", "50ms"]);
        let mut reader = Reader::new().unwrap();
        let id = reader.connect(helper.address, Instant::now());
        let first = next_whole(&mut reader, id).unwrap();
        assert_eq!(first.source, Source::User);
        let busy = Busy::new(16);
        let mut old = Vec::new();
        at_once(|| {
            let until = Instant::now() + Duration::from_secs(4);
            while Instant::now() < until {
                let (at, (base, ..)) = read(&mut reader, id);
                old.push(at.saturating_sub(base.time_ns));
                thread::sleep(Duration::from_millis(5));
            }
        });
        drop(busy);
        ages("a process's page, every 50 ms", old);
        // Stopped, it can still be read, but nothing in it is new: that is the difference.
        let before = stop_between_records(&helper, &mut reader, id);
        // Many of its intervals.
        thread::sleep(Duration::from_millis(300));
        let (after, ..) = next(&mut reader, id).unwrap();
        assert_eq!(before.updates, after.updates);
        // Its end is noticed at the next read, or before.
        drop(helper);
        while next(&mut reader, id).is_ok() {}
    }

    #[test]
    #[ignore = "runs in the emulated machine"]
    fn the_responder_answers_on_this_kernel() {
        if !built() {
            return;
        }
        let key = Key::parse("00112233445566778899aabbccddeeff").unwrap();
        fs::write("/tmp/key", "00112233445566778899aabbccddeeff\n").unwrap();
        fs::set_permissions("/tmp/key", fs::Permissions::from_mode(0o600)).unwrap();
        let evenkeel = |arguments: &[&str]| {
            let output = Command::new("evenkeel")
                .arg("kernel")
                .args(arguments)
                .output();
            let output = output.expect("evenkeel runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{arguments:?}: {said}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let attach = [
            "attach",
            "lo",
            "--key-file",
            "/tmp/key",
            "--allow",
            "127.0.0.0/8",
        ];
        let started = Instant::now();
        say(evenkeel(&[&attach[..], &["--mode", "generic"]].concat()).trim());
        say(&format!("attached within {:?}", started.elapsed()));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket.connect(("127.0.0.1", DEFAULT_PORT)).unwrap();
        let ask = |number| {
            let query = Query {
                length: (WITH_PORTS + 2 * 176) as u16,
                target: 0,
                first_cpu: 0,
                reader: 7,
                number,
                host: Host::from_name("127.0.0.1"),
            };
            let (mut datagram, mut answer) = (Vec::new(), [0; 2048]);
            query.write(&key, &mut datagram);
            socket.send(&datagram).unwrap();
            let length = socket.recv(&mut answer).expect("an answer");
            let answer = Answer::parse(&answer[..length], &key).unwrap();
            assert_eq!(answer.query, query);
            assert_eq!(answer.record.cpus().filter_map(Result::ok).count(), 2);
            answer.record.base
        };
        let first = ask(1);
        assert_eq!(first.source, Source::Responder);
        assert_eq!((first.cpus, first.capacity), (2, 2000));
        let busy = Busy::new(4);
        let counted = busy_ns();
        let start = ask(2);
        thread::sleep(Duration::from_secs(2));
        let last = ask(3);
        let counted = busy_ns() - counted;
        drop(busy);
        let elapsed = (last.time_ns - start.time_ns) as f64;
        let spent = (last.totals.busy_ns - start.totals.busy_ns) as f64;
        say(&format!(
            "responder: busy {:.3}; /proc/stat {:.3}",
            spent / elapsed / 2.0,
            counted / elapsed / 2.0
        ));
        assert!(
            (0.9..1.05).contains(&(spent / elapsed / 2.0)),
            "four threads keep both busy"
        );
        assert!(last.totals.running >= 2, "four threads want two CPUs");
        for part in [
            Available::PRESSURE,
            Available::MEMORY,
            Available::LOAD_AVERAGES,
        ] {
            assert!(last.available.has_all(part), "{part:?} on this kernel");
        }
        evenkeel(&["detach", "lo"]);
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let mut datagram = Vec::new();
        let query = Query {
            length: WITH_PORTS as u16,
            target: 0,
            first_cpu: 0,
            reader: 7,
            number: 4,
            host: Host::from_name("127.0.0.1"),
        };
        query.write(&key, &mut datagram);
        // Nobody listens there now: the system may say so at once.
        let _ = socket.send(&datagram);
        assert!(
            socket.recv(&mut [0; 2048]).is_err(),
            "nobody answers any more"
        );
    }
}

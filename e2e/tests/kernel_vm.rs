//! The kernel load monitor on Debian's own kernel, and over RDMA, in an emulated machine.
//!
//! The tests in [`guest`] are run there, by this very program.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test helper fails by panicking.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::{balancer, vm};

#[test]
fn the_monitor_works_on_debians_kernel_and_over_rdma() {
    if vm::inside() {
        return;
    }
    let folder = Folder::new();
    let tests = folder.join("tests");
    symlink(std::env::current_exe().expect("this program"), &tests).expect("a link");
    let command = [
        "tests",
        "--ignored",
        "--test-threads=1",
        "--nocapture",
        "guest::",
    ];
    let outcome = match vm::run(&[&tests, balancer::binary()], &command) {
        Ok(outcome) => outcome,
        Err(lacking) => {
            let line = format!("SKIPPED: kernel_vm: {lacking}");
            assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "{line}");
            let _ = writeln!(std::io::stderr(), "{line}");
            return;
        }
    };
    // Kept for who wants to see the figures.
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/vm/console.log");
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
}

/// What runs in the machine.
mod guest {
    use std::io::Write as _;
    use std::net::{IpAddr, SocketAddr};
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, JoinHandle};
    use std::time::{Duration, Instant};

    use evenkeel_e2e::{HANG, vm};
    use evenkeel_kernel::page::Mapping;
    use evenkeel_kernel::rdma::{ConnectionId, Counters, Error, Limits, Memory, Reader, Server};
    use evenkeel_kernel::record::{BadRecord, Base, Cpu, Scope, Source, Whole};
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
        let mut bytes = vec![0; whole.length()];
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

    /// What was read or went wrong, of one connection.
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
    fn next(reader: &mut Reader, id: ConnectionId) -> Got {
        let limit = Instant::now() + HANG;
        loop {
            assert!(Instant::now() < limit, "nothing is ever read");
            reader.ask(id, Instant::now());
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

    fn say(line: &str) {
        let _ = writeln!(std::io::stderr(), "VM: {line}");
    }

    #[test]
    #[ignore = "runs in the emulated machine"]
    fn a_users_page_is_read() {
        assert!(vm::inside(), "this is for the emulated machine");
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
            assert_eq!((counters.accepted, counters.bad), (2, 0), "{ip}");
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
        assert!(error.contains("not among those"), "{error}");
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
        assert!(counters.not_allowed >= 1 && counters.full >= 1 && counters.accepted == 3);
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
            let error = next(&mut reader, id).unwrap_err();
            say(&format!("{at}: {error}"));
            assert!(!reader.is_connected(id));
        }
        for _ in 0..20 {
            next(&mut reader, id).unwrap();
        }
        say(&format!("the first read beside them came after {first:?}"));
        serving.end();
    }
}

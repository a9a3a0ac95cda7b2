//! The monitor with a manager and real sockets; back-ends are threads of the test.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::io::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use evenkeel_config::{self as config, Config};
use evenkeel_core::load::of_queue;
use evenkeel_kernel::query::{ENVELOPE, Key, LONGEST, Query};
use evenkeel_kernel::record::{Available, BASE, Base, Cpu, Scope, Source, Whole};
use evenkeel_kernel::shared::Writer;
use evenkeel_manager::Manager;
use evenkeel_monitor::Monitor;
use evenkeel_net::Clock;

const SECRET: &str = "000102030405060708090a0b0c0d0e0f";

/// A back-end that says how many tasks it has.
struct Backend {
    address: SocketAddr,
    running: Arc<AtomicU32>,
    answers: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
}

impl Backend {
    fn start(host: &str, keys: Vec<Key>) -> Backend {
        let socket = UdpSocket::bind((host, 0)).unwrap();
        let backend = Backend {
            address: socket.local_addr().unwrap(),
            running: Arc::new(AtomicU32::new(1)),
            answers: Arc::new(AtomicBool::new(true)),
            ends: Arc::default(),
        };
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let (running, answers) = (Arc::clone(&backend.running), Arc::clone(&backend.answers));
        let ends = Arc::clone(&backend.ends);
        std::thread::spawn(move || {
            let mut bytes = [0; LONGEST];
            let mut time_ns = 0;
            while !ends.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut bytes) else {
                    continue;
                };
                let datagram = &mut bytes[..length];
                let Ok((query, key)) = Query::parse(datagram, &keys) else {
                    continue;
                };
                time_ns += 1_000_000;
                let mut base = Base::new(Source::Responder, Scope::Machine);
                base.available = Available::RUNNING;
                (base.time_ns, base.cpus, base.capacity) = (time_ns, 1, 1000);
                base.target = query.target;
                base.totals.running = running.load(Ordering::Relaxed);
                base.write(datagram[ENVELOPE..].first_chunk_mut::<BASE>().unwrap());
                query.answer(key, datagram);
                if answers.load(Ordering::Relaxed) {
                    socket.send_to(datagram, from).unwrap();
                }
            }
        });
        backend
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// A key file that goes with the test.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("evenkeel-monitor-{name}-{}", std::process::id());
        let file = KeyFile(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).unwrap();
        let owner = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&self.0, owner).unwrap();
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn config(file: &KeyFile, backend: &Backend, more: &str) -> Config {
    let (ip, port) = (backend.address.ip(), backend.address.port());
    let member = SocketAddr::new(ip, 80);
    let text = format!(
        "[rule.r]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{member}\"]\n\
         [rule.r.monitor]\nkey_file = {:?}\nport = {port}\ninterval = \"5ms\"\n{more}",
        file.0
    );
    config::parse("t", &text).unwrap()
}

/// The load of the only location, if it is known.
fn load(manager: &Manager) -> Option<f32> {
    let status = manager.status();
    status.groups[0].members[0].load
}

/// Returns the load that so many tasks for one CPU count as.
fn of_tasks(tasks: f64) -> Option<f32> {
    Some(of_queue(tasks) as f32)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < Duration::from_secs(100),
            "never: {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_back_end_is_asked_until_it_is_silent_and_again_when_it_is_back() {
    for host in ["127.0.0.1", "::1"] {
        if UdpSocket::bind((host, 0)).is_err() {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: a_back_end_is_asked_until_it_is_silent_and_again_when_it_is_back: no {host} here"
            );
            continue;
        }
        let key = Key::parse(SECRET).unwrap();
        let backend = Backend::start(host, vec![key]);
        let file = KeyFile::new(&format!("silent{}", host.len()), SECRET);
        let clock = Clock::start();
        let monitor = Monitor::new(clock).unwrap();
        monitor.start_thread().unwrap();
        let manager = Manager::new(clock, Arc::new(monitor.clone()));
        manager
            .apply_config(config(&file, &backend, ""))
            .await
            .unwrap();
        let running = tokio::spawn(monitor.clone().run(Arc::clone(&manager)));
        until("a load", || load(&manager) == of_tasks(1.0)).await;
        backend.running.store(7, Ordering::Relaxed);
        until("another load", || load(&manager) == of_tasks(7.0)).await;
        backend.answers.store(false, Ordering::Relaxed);
        // It may have been late before, on a machine that has much else to do.
        until("unknown", || {
            let view = monitor.locations().remove(0);
            load(&manager).is_none() && view.state == "stale" && view.expired >= 1
        })
        .await;
        let view = monitor.locations().remove(0);
        assert_eq!(view.address, backend.address.to_string());
        backend.answers.store(true, Ordering::Relaxed);
        until("it is back", || {
            let (view, status) = (monitor.locations().remove(0), monitor.status().unwrap());
            load(&manager) == of_tasks(7.0)
                && view.round_trip_ms.is_some()
                && view.trouble.is_none()
                && (status.locations, status.fresh) == (1, 1)
        })
        .await;
        // Nobody is asked that no file names.
        let text = "[rule.r]\nlisten = \"127.0.0.1:0\"\nmembers = [\"127.0.0.1:80\"]\n";
        manager
            .apply_config(config::parse("t", text).unwrap())
            .await
            .unwrap();
        until("nobody is asked", || monitor.status().is_none()).await;
        running.abort();
    }
}

#[tokio::test]
async fn a_reload_brings_new_keys_and_a_bad_file_changes_nothing() {
    let (old, new) = (
        format!("1:{SECRET}"),
        format!("2:{}", SECRET.replace('0', "f")),
    );
    let keys = vec![Key::parse(&new).unwrap()];
    let backend = Backend::start("127.0.0.1", keys);
    let file = KeyFile::new("reload", &old);
    let clock = Clock::start();
    let monitor = Monitor::new(clock).unwrap();
    monitor.start_thread().unwrap();
    let manager = Manager::new(clock, Arc::new(monitor.clone()));
    manager
        .apply_config(config(&file, &backend, ""))
        .await
        .unwrap();
    let running = tokio::spawn(monitor.clone().run(Arc::clone(&manager)));
    let view = || monitor.locations().into_iter().next();
    until("it is asked", || view().is_some_and(|view| view.missed > 2)).await;
    assert_eq!(load(&manager), None, "it does not know the key");
    file.write("no key");
    // The keys of before stay, which is said.
    let applied = manager
        .apply_config(config(&file, &backend, ""))
        .await
        .unwrap();
    let notes = applied.notes.concat();
    assert!(notes.contains("line 1 is wrong"), "{notes}");
    file.write(&new);
    manager
        .apply_config(config(&file, &backend, ""))
        .await
        .unwrap();
    until("the new key counts", || load(&manager) == of_tasks(1.0)).await;
    running.abort();
}

#[tokio::test]
async fn a_location_of_two_groups_is_asked_once_and_its_own_table_counts() {
    let key = Key::parse(SECRET).unwrap();
    let backend = Backend::start("127.0.0.1", vec![key]);
    let file = KeyFile::new("shared", SECRET);
    let clock = Clock::start();
    let monitor = Monitor::new(clock).unwrap();
    monitor.start_thread().unwrap();
    let manager = Manager::new(clock, Arc::new(monitor.clone()));
    let second = format!(
        "[rule.s]\nlisten = \"127.0.0.1:0\"\nmembers = [\"127.0.0.1:81\", {{ address = \"192.0.2.1:1\", location = \"elsewhere\" }}]\n\
         [location.elsewhere.monitor]\nkey_file = {:?}\naddress = \"{}\"\ntarget = 3\n",
        file.0, backend.address
    );
    manager
        .apply_config(config(&file, &backend, &second))
        .await
        .unwrap();
    let running = tokio::spawn(monitor.clone().run(Arc::clone(&manager)));
    let known = || {
        manager
            .status()
            .locations
            .iter()
            .filter(|l| !l.loads.is_empty())
            .count()
    };
    until("both are known", || known() == 2).await;
    let views = monitor.locations();
    let names: Vec<&str> = views.iter().map(|view| &*view.location).collect();
    assert_eq!(names, ["127.0.0.1", "elsewhere"]);
    assert_eq!((views[0].target, views[1].target), (0, 3));
    running.abort();
}

#[tokio::test]
async fn a_page_in_shared_memory_counts_as_long_as_somebody_writes_it() {
    let path = std::env::temp_dir().join(format!("evenkeel-monitor-page-{}", std::process::id()));
    let clock = Clock::start();
    let monitor = Monitor::new(clock).unwrap();
    monitor.start_thread().unwrap();
    let manager = Manager::new(clock, Arc::new(monitor.clone()));
    let text = format!(
        "[rule.r]\nlisten = \"127.0.0.1:0\"\nmembers = [\"127.0.0.1:80\"]\n\
         [rule.r.monitor]\ntype = \"ulm\"\npath = {path:?}\ninterval = \"5ms\"\n"
    );
    manager
        .apply_config(config::parse("t", &text).unwrap())
        .await
        .unwrap();
    let running = tokio::spawn(monitor.clone().run(Arc::clone(&manager)));
    let trouble = || {
        monitor
            .locations()
            .first()
            .and_then(|view| view.trouble.clone())
    };
    until("there is no page", || trouble().is_some()).await;
    assert!(
        trouble().unwrap().contains("serve --shared"),
        "{:?}",
        trouble()
    );
    let mut writer = Writer::create(&path, 1).unwrap();
    let mut time_ns = 0;
    let mut write = |running| {
        time_ns += 1_000_000;
        let mut base = Base::new(Source::User, Scope::Machine);
        base.available = Available::RUNNING;
        (base.time_ns, base.cpus, base.capacity) = (time_ns, 1, 1000);
        base.totals.running = running;
        writer.write(&Whole {
            base,
            ports: Vec::new(),
            cpus: vec![Cpu::default()],
        });
    };
    until("a load", || {
        write(4);
        load(&manager) == of_tasks(4.0)
    })
    .await;
    until("nobody writes", || load(&manager).is_none()).await;
    until("it is back", || {
        write(2);
        load(&manager) == of_tasks(2.0)
    })
    .await;
    running.abort();
}

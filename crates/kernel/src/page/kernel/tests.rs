#![allow(clippy::unwrap_used)]

use std::net::{TcpListener, TcpStream};

use super::*;
use crate::page::Follower;
use crate::record::{Available, Port, Source};
use crate::testing::report_skipped;

/// The kernel's page, or why there can be none here, which is said.
fn page(ports: &[u16]) -> Option<KernelPage> {
    match KernelPage::load(ports) {
        Ok(page) => Some(page),
        // Who is root is only refused what is wrong with the programs.
        Err(error @ BpfError::Rights(_)) if !rustix::process::geteuid().is_root() => {
            report_skipped(error);
            None
        }
        Err(error @ BpfError::NoBtf(_)) => {
            report_skipped(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn eventually(mut happened: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < limit, "it never happens");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn the_kernel_keeps_its_page_current() {
    let Some(page) = page(&[]) else { return };
    let (mut follower, mut buffer) = (Follower::default(), Vec::new());
    let first = follower
        .read_record(page.mapping(), &mut buffer)
        .unwrap()
        .base;
    assert_eq!(first.source, Source::KernelPage);
    let needed = Available::BUSY
        .with_parts(Available::RUNNING)
        .with_parts(Available::SWITCHES);
    assert!(first.available.has_all(needed));
    assert_eq!(first.capacity, first.cpus * 1000);
    // By the timer, and by changes of tasks: the time advances more often than the base.
    let (mut last, mut seen) = (first, 0);
    eventually(|| {
        let now = follower.read_record(page.mapping(), &mut buffer).unwrap();
        assert!(now.base.time_ns >= last.time_ns);
        assert!(now.base.totals.busy_ns >= last.totals.busy_ns);
        for (place, cpu) in now.cpus().enumerate() {
            assert!(cpu.unwrap().number as usize >= place);
        }
        seen += u64::from(now.base.time_ns > last.time_ns);
        last = now.base;
        last.updates >= first.updates + 20
    });
    println!("{seen} times the record was newer in 20 updates of its base");
    assert!(seen > 20);
    let elapsed = last.time_ns - first.time_ns;
    let busy = last.totals.busy_ns - first.totals.busy_ns;
    println!("busy for {busy} ns in {elapsed} ns");
    // Clocks are read a moment apart.
    assert!(busy <= (elapsed + 1_000_000) * u64::from(first.cpus));
}

#[test]
fn listen_backlogs_are_told_as_they_come_and_go() {
    let here = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = here.local_addr().unwrap().port();
    let Some(page) = page(&[port, 1]) else { return };
    let (mut follower, mut buffer) = (Follower::default(), Vec::new());
    let mut ports = || {
        let record = follower.read_record(page.mapping(), &mut buffer).unwrap();
        assert!(record.base.available.has_all(Available::PORTS));
        record.ports().collect::<Vec<Port>>()
    };
    // It listened before.
    eventually(|| ports()[0].listening);
    assert!(ports()[0].limit > 0);
    assert_eq!((ports()[1].port, ports()[1].listening), (1, false));
    let waiting = [(); 3].map(|()| TcpStream::connect(("127.0.0.1", port)).unwrap());
    eventually(|| ports()[0].backlog == 3);
    drop(here);
    eventually(|| !ports()[0].listening);
    drop(waiting);
    // And again: it is told by the change of its state.
    if let Ok(again) = TcpListener::bind(("127.0.0.1", port)) {
        eventually(|| ports()[0].listening);
        drop(again);
        eventually(|| !ports()[0].listening);
    }
}

#[test]
fn a_pinned_page_goes_on_alone() {
    let Some(mut page) = page(&[]) else { return };
    let folder = format!("/sys/fs/bpf/evenkeel-page-test-{}", std::process::id());
    let folder = Path::new(&folder);
    struct Remove<'a>(&'a Path);
    impl Drop for Remove<'_> {
        fn drop(&mut self) {
            let _ = KernelPage::remove_pins(self.0);
        }
    }
    // A process that was killed may have left it.
    let _ = KernelPage::remove_pins(folder);
    let remove = Remove(folder);
    if let Err(error) = page.pin_to(folder) {
        report_skipped(error);
        return;
    }
    assert!(page.pin_to(folder).is_err(), "it is there already");
    drop(page);
    let page = KernelPage::open_pinned(folder).unwrap();
    let (mut follower, mut buffer) = (Follower::default(), Vec::new());
    let first = follower
        .read_record(page.mapping(), &mut buffer)
        .unwrap()
        .base;
    eventually(|| {
        let now = follower
            .read_record(page.mapping(), &mut buffer)
            .unwrap()
            .base;
        assert_eq!(now.epoch, first.epoch);
        now.updates > first.updates + 3
    });
    drop(remove);
    assert!(!folder.exists());
    assert!(KernelPage::open_pinned(folder).is_err());
    KernelPage::remove_pins(folder).unwrap();
}

#[test]
fn lists_of_cpus_are_read() {
    assert_eq!(online("0-3,5\n"), Some(vec![0, 1, 2, 3, 5]));
    assert_eq!(online("0\n"), Some(vec![0]));
    assert_eq!(online(""), None);
    assert_eq!(online("3-1"), None);
    assert_eq!(online("0-99999999"), None);
    assert_eq!(plan(&[80]).unwrap().len(), 8 + 8 + 32 + 2 * 4 * MAX_CPUS);
}

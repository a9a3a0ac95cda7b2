#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::record::{Base, CPUS, Scope, Whole};

const MS: u64 = 1_000_000;

fn entry(number: u32, time_ns: u64, busy_ns: u64, running: u32) -> Cpu {
    Cpu {
        number,
        time_ns,
        busy_ns,
        running,
        begin: 2,
        end: 2,
        ..Cpu::default()
    }
}

fn page(time_ns: u64, cpus: &[Cpu]) -> Vec<u8> {
    let mut base = Base::new(Source::KernelPage, Scope::Machine);
    base.time_ns = time_ns;
    base.epoch = 7;
    base.cpus = cpus.len() as u32;
    base.capacity = base.cpus * 1000;
    base.totals.busy_ns = 1;
    let whole = Whole {
        base,
        ports: Vec::new(),
        cpus: cpus.to_vec(),
    };
    let mut bytes = vec![0; whole.copy_length()];
    whole.copy(0, &mut bytes);
    bytes
}

#[test]
fn totals_are_those_of_the_newest_entry() {
    let mut follower = Follower::default();
    // The first has been busy since 4 ms, the second idle since 5 ms.
    let bytes = page(
        3 * MS,
        &[entry(0, 4 * MS, 2 * MS, 3), entry(1, 5 * MS, MS, 0)],
    );
    let record = follower.read(&bytes, false).unwrap();
    assert_eq!(record.base.time_ns, 5 * MS);
    assert_eq!(record.base.totals.busy_ns, 4 * MS);
    assert_eq!(record.base.totals.running, 3);
}

#[test]
fn records_of_others_stay_as_they_are() {
    let mut bytes = page(3 * MS, &[entry(0, 4 * MS, 2 * MS, 3)]);
    bytes[6] = Source::User as u8;
    let record = Follower::default().read(&bytes, false).unwrap();
    assert_eq!(
        (record.base.time_ns, record.base.totals.busy_ns),
        (3 * MS, 1)
    );
}

#[test]
fn time_and_counters_do_not_go_back() {
    let mut follower = Follower::default();
    let now = page(9 * MS, &[entry(0, 9 * MS, 5 * MS, 1)]);
    let record = follower.read(&now, false).unwrap();
    assert_eq!(record.base.totals.busy_ns, 5 * MS);
    // It had gone idle a moment before.
    let next = page(10 * MS, &[entry(0, 10 * MS, 5 * MS - 100, 0)]);
    let record = follower.read(&next, false).unwrap();
    assert_eq!(record.base.totals.busy_ns, 5 * MS);
    assert_eq!(follower.read(&now, false), Err(BadRecord::Torn));
    assert_eq!(follower.read(&now, true), Err(BadRecord::Torn));
    // A machine that was started again counts from the beginning.
    let mut restarted = page(MS, &[entry(0, MS, 0, 0)]);
    restarted[24] = 8;
    let record = follower.read(&restarted, false).unwrap();
    assert_eq!((record.base.time_ns, record.base.totals.busy_ns), (MS, 0));
}

#[test]
fn torn_entries_are_read_again_and_then_left_out() {
    let torn = Cpu {
        end: 4,
        ..entry(0, 4 * MS, 2 * MS, 3)
    };
    let bytes = page(3 * MS, &[torn]);
    let mut follower = Follower::default();
    assert_eq!(follower.read(&bytes, false), Err(BadRecord::Torn));
    let record = follower.read(&bytes, true).unwrap();
    assert_eq!(
        (record.base.time_ns, record.base.totals.busy_ns),
        (3 * MS, 1)
    );
}

#[test]
fn what_is_mapped_is_seen() {
    let file = rustix::fs::memfd_create("page", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let bytes = page(MS, &[entry(0, MS, 0, 0), entry(1, MS, 0, 0)]);
    rustix::io::write(&file, &bytes).unwrap();
    let mapping = Mapping::new(std::os::fd::AsFd::as_fd(&file), bytes.len()).unwrap();
    let mut copied = vec![0; bytes.len()];
    mapping.copy(&mut copied);
    assert_eq!(copied, bytes);
    // More than there is stays as it was.
    let mut longer = vec![9; bytes.len() + 3];
    mapping.copy(&mut longer);
    assert_eq!(longer[bytes.len()..], [9; 3]);
    let mut part = vec![0; CPUS - 3];
    mapping.copy(&mut part);
    assert_eq!(part, bytes[..CPUS - 3]);
}

proptest! {
    #[test]
    fn no_page_breaks_the_follower(
        numbers in prop::collection::vec(any::<u64>(), 22 * 3),
        time: u64,
    ) {
        let cpus: Vec<_> = numbers.chunks(22).map(|numbers| Cpu {
            busy_ns: numbers[0],
            time_ns: numbers[1],
            switches: numbers[2],
            running: numbers[3] as u32,
            backlog: numbers[4] as u32,
            softirqs: [numbers[5] as u32; SOFTIRQS],
            ..Cpu::default()
        }).collect();
        let bytes = page(time, &cpus);
        let mut follower = Follower::default();
        let first = follower.read(&bytes, true).map(|record| record.base);
        let again = follower.read(&bytes, true).map(|record| record.base);
        prop_assert_eq!(first, again);
    }
}

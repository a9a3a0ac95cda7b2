#![allow(clippy::unwrap_used)]

use super::*;
use crate::record::{BASE, CPUS, PORT, Scope, Source};

const MS: u64 = 1_000_000;

fn base(at: u64, busy: u64) -> Base {
    let mut base = Base::new(Source::Responder, Scope::Machine);
    (base.epoch, base.cpus, base.capacity) = (1, 2, 2000);
    base.available = Available::BUSY.with_parts(Available::RUNNING);
    base.time_ns = at;
    base.totals.busy_ns = busy;
    base.totals.running = 3;
    base
}

fn loads(before: Option<&Base>, now: &Base, ports: &[Port]) -> Loads {
    let mut bytes = vec![0; CPUS];
    now.write(bytes.first_chunk_mut().unwrap());
    for (port, out) in ports.iter().zip(bytes[BASE..].chunks_exact_mut(PORT)) {
        port.write(out.try_into().unwrap());
    }
    let before = before.map(Before::new);
    Loads::since_last(before.as_ref(), &Record::parse(&bytes).unwrap())
}

#[test]
fn utilization_is_busy_time_over_time_and_capacity() {
    let found = loads(Some(&base(0, 0)), &base(50 * MS, 25 * MS), &[]);
    assert_eq!((found.cpu, found.run_queue), (Some(0.25), Some(1.5)));
    assert_eq!(found.composite, Some(load::of_queue(1.5)));
}

/// The CPU load of readings that are so far apart, where 0.25 of the capacity was busy in between and all of it in the
/// last 15 ms.
fn load_after(apart: u64) -> Option<f64> {
    let mut now = base(1000 * MS + apart, apart / 2);
    now.available = now.available.with_parts(Available::RECENT);
    (now.recent_busy_ns, now.recent_ns) = (30 * MS, 15 * MS as u32);
    loads(Some(&base(1000 * MS, 0)), &now, &[]).cpu
}

#[test]
fn at_any_short_interval_the_load_is_that_of_the_moment() {
    for (apart, cpu) in [
        (10, 0.25),
        (15, 0.25),
        (16, 1.0),
        (50, 1.0),
        (250, 1.0),
        (251, 0.25),
        (10_000, 0.25),
    ] {
        assert_eq!(load_after(apart * MS), Some(cpu), "{apart} ms");
    }
    // The first reading has the load of the moment, too, also where only a part of a CPU may be used.
    let mut now = base(50 * MS, 0);
    now.available = Available::RECENT;
    (now.recent_busy_ns, now.recent_ns, now.capacity) = (3 * MS, 12 * MS as u32, 500);
    assert_eq!(loads(None, &now, &[]).cpu, Some(0.5));
    now.recent_ns = 0;
    assert_eq!(loads(None, &now, &[]).cpu, None);
    now.recent_ns = 1;
    assert_eq!(loads(None, &now, &[]).cpu, Some(1.0));
}

#[test]
fn the_composite_goes_by_the_tasks_of_the_moment_and_their_logarithm() {
    let mut now = base(50 * MS, 100 * MS);
    now.available = now.available.with_parts(Available::RUNNING_AVERAGE);
    now.running_average = 2 * 2048;
    let mut composite = |running| {
        now.totals.running = running;
        loads(Some(&base(0, 0)), &now, &[]).composite.unwrap()
    };
    assert_eq!([composite(0), composite(2)], [1.0, 1.0]);
    // Each doubling adds the same.
    let [four, eight, sixteen] = [composite(4), composite(8), composite(16)];
    assert!((eight - four - (sixteen - eight)).abs() < 1e-9 && four > 1.3);
    // Below 1 it is the share of the CPUs in use.
    now.totals.running = 1;
    assert_eq!(loads(None, &now, &[]).composite, Some(0.5));
}

#[test]
fn a_first_record_and_a_restart_have_no_differences() {
    let now = base(50 * MS, 25 * MS);
    let other = Base {
        epoch: 2,
        ..base(0, 0)
    };
    for before in [
        None,
        Some(&other),
        Some(&base(60 * MS, 0)),
        Some(&base(50 * MS, 0)),
        Some(&base(0, 26 * MS)),
    ] {
        let found = loads(before, &now, &[]);
        assert_eq!(
            (found.cpu, found.composite),
            (None, Some(load::of_queue(1.5)))
        );
    }
}

#[test]
fn what_is_not_available_is_left_out() {
    let mut now = base(50 * MS, 0);
    now.available = Available(0);
    assert_eq!(loads(Some(&base(0, 0)), &now, &[]), Loads::default());
}

#[test]
fn work_that_waits_is_added() {
    let mut now = base(50 * MS, 100 * MS);
    now.available = [
        Available::BACKLOG,
        Available::SOFTIRQ_THREADS,
        Available::PORTS,
        Available::PRESSURE,
        Available::RUNNING_AVERAGE,
        Available::MEMORY,
    ]
    .into_iter()
    .fold(now.available, Available::with_parts);
    now.totals.backlog = 64;
    now.totals.softirq_threads = 1;
    now.running_average = 8 * 2048;
    now.memory.total = 4;
    now.memory.available = 1;
    now.pressure.io_some.total_ns = 5 * MS;
    now.ports = 3;
    let port = |listening, backlog| Port {
        port: 80,
        listening,
        backlog,
        limit: 4,
    };
    let found = loads(
        Some(&base(0, 0)),
        &now,
        &[port(true, 1), port(true, 2), port(false, 4)],
    );
    let expected = Loads {
        cpu: Some(1.0),
        run_queue: Some(4.0),
        pending_work: Some(1.0),
        memory: Some(0.75),
        cpu_pressure: Some(0.0),
        memory_pressure: Some(0.0),
        io_pressure: Some(0.1),
        accept_queue: Some(0.5),
        composite: Some(load::of_queue(1.5) + (1.0 + 0.5 + 0.1)),
    };
    assert_eq!(found, expected);
    assert_eq!(found.iter().count(), 9);
}

#[test]
fn a_part_of_a_cpu_is_in_full_use_by_one_task() {
    let mut now = base(50 * MS, 0);
    now.available = now.available.with_parts(Available::RUNNING_AVERAGE);
    now.capacity = 150;
    now.running_average = 3 * 2048;
    assert_eq!(loads(None, &now, &[]).run_queue, Some(3.0));
}

#[test]
fn numbers_that_cannot_be_stay_within_bounds() {
    let mut now = base(1, u64::MAX);
    now.available = Available(u64::MAX);
    now.memory.total = 1;
    now.memory.available = u64::MAX;
    now.pressure.cpu_some.total_ns = u64::MAX;
    now.capacity = 1;
    let found = loads(Some(&base(0, 0)), &now, &[]);
    assert!(
        found
            .iter()
            .all(|(_, value)| value.is_finite() && value >= 0.0)
    );
    assert_eq!(
        (found.cpu, found.cpu_pressure, found.memory),
        (Some(1.0), Some(1.0), Some(0.0))
    );
}

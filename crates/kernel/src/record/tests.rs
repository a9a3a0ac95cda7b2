#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn sample() -> Base {
    let mut base = Base::new(Source::Responder, Scope::Machine);
    base.begin = 4;
    base.end = 4;
    base.cpus = 3;
    base.capacity = 3000;
    base.ports = 2;
    base.entries = 2;
    base.first_cpu = 1;
    base.totals.running = 7;
    base.pressure.io_full.avg10 = 5;
    base.memory.swap_used = 9;
    base.running_average = 11;
    (base.recent_busy_ns, base.recent_ns) = (12, 13);
    base
}

fn written(base: &Base, ports: &[Port], cpus: &[Cpu]) -> Vec<u8> {
    let mut bytes = vec![0; CPUS + cpus.len() * CPU];
    base.write(bytes.first_chunk_mut().unwrap());
    for (port, out) in ports.iter().zip(bytes[BASE..].chunks_exact_mut(PORT)) {
        port.write(out.try_into().unwrap());
    }
    for (cpu, out) in cpus.iter().zip(bytes[CPUS..].chunks_exact_mut(CPU)) {
        cpu.write(out.try_into().unwrap());
    }
    bytes
}

#[test]
fn what_was_written_is_read() {
    let port = |port| Port {
        port,
        listening: true,
        backlog: 3,
        limit: 128,
    };
    let cpu = |number| Cpu {
        number,
        busy_ns: 5,
        softirqs: [6; SOFTIRQS],
        ..Cpu::default()
    };
    let bytes = written(&sample(), &[port(80), port(443)], &[cpu(1), cpu(2)]);
    let record = Record::parse(&bytes).unwrap();
    assert_eq!(record.base, sample());
    assert!(record.ports().eq([port(80), port(443)]));
    assert!(record.cpus().eq([Ok(cpu(1)), Ok(cpu(2))]));
}

#[test]
fn copies_of_a_whole_have_the_parts_that_there_is_room_for() {
    let cpu = |number| Cpu {
        number,
        ..Cpu::default()
    };
    let whole = Whole {
        base: Base {
            cpus: 3,
            ..sample()
        },
        ports: vec![Port::default(); 2],
        cpus: [0, 1, 2].map(cpu).to_vec(),
    };
    let mut all = vec![1; whole.copy_length()];
    whole.copy(0, &mut all);
    let record = Record::parse(&all).unwrap();
    assert!(record.cpus().eq([0, 1, 2].map(cpu).map(Ok)));
    assert_eq!(record.ports().count(), 2);
    // From the second CPU on, with room for more than there are.
    let mut more = vec![1; CPUS + 5 * CPU];
    whole.copy(1, &mut more);
    let record = Record::parse(&more).unwrap();
    assert!(record.cpus().eq([1, 2].map(cpu).map(Ok)));
    assert_eq!((record.base.first_cpu, record.base.entries), (1, 2));
    // After the last one, and with room for the base alone.
    whole.copy(9, &mut more);
    let record = Record::parse(&more).unwrap();
    assert_eq!((record.base.first_cpu, record.base.entries), (3, 0));
    let mut base = [1; BASE];
    whole.copy(0, &mut base);
    let record = Record::parse(&base).unwrap();
    assert_eq!(record.base.totals, whole.base.totals);
    whole.copy(0, &mut []);
}

#[test]
fn a_copy_may_end_after_the_base() {
    let base = Base {
        entries: 0,
        ..sample()
    };
    let bytes = written(&base, &[], &[]);
    let record = Record::parse(&bytes[..BASE]).unwrap();
    assert_eq!(record.ports().count() + record.cpus().count(), 0);
    assert_eq!(
        Record::parse(&bytes[..BASE + 1]),
        Err(BadRecord::Length(BASE + 1))
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let cases = [
        (
            Base {
                begin: 5,
                end: 5,
                ..sample()
            },
            BadRecord::Torn,
        ),
        (Base { end: 6, ..sample() }, BadRecord::Torn),
        (
            Base {
                cpus: 0,
                ..sample()
            },
            BadRecord::Field("number of CPUs"),
        ),
        (
            Base {
                cpus: 513,
                ..sample()
            },
            BadRecord::Field("number of CPUs"),
        ),
        (
            Base {
                first_cpu: 2,
                ..sample()
            },
            BadRecord::Field("first CPU"),
        ),
        (
            Base {
                ports: 17,
                ..sample()
            },
            BadRecord::Field("number of ports"),
        ),
        (
            Base {
                capacity: 0,
                ..sample()
            },
            BadRecord::Field("capacity"),
        ),
        (
            Base {
                entries: 3,
                first_cpu: 0,
                ..sample()
            },
            BadRecord::Field("number of CPU entries"),
        ),
    ];
    for (base, error) in cases {
        let bytes = written(&base, &[], &[Cpu::default(); 2]);
        assert_eq!(Record::parse(&bytes), Err(error));
    }
}

proptest! {
    #[test]
    fn no_bytes_do_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..1500), is_record: bool) {
        if is_record && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(b"EVKR\x01\x00\x01\x01");
        }
        if let Ok(record) = Record::parse(&bytes) {
            prop_assert!(record.ports().count() <= PORTS);
            prop_assert!(record.cpus().count() <= MAX_CPUS);
        }
    }
}

/// The programs in the kernel write what this one reads: `bpf/record.h` is compiled, and every
/// field of a record that it wrote is found.
#[test]
fn the_layout_in_c_is_this_one() {
    use std::process::Command;

    use crate::query::{Answer, ENVELOPE};

    let here = env!("CARGO_MANIFEST_DIR");
    let program = std::env::temp_dir().join(format!("evenkeel-layout-{}", std::process::id()));
    let built = Command::new("cc")
        .args(["-Wall", "-Werror", "-I"])
        .arg(format!("{here}/bpf"))
        .arg(format!("{here}/src/record/layout.c"))
        .arg("-o")
        .arg(&program)
        .status();
    assert!(built.unwrap().success());
    let out = Command::new(&program).output().unwrap().stdout;
    std::fs::remove_file(&program).unwrap();

    let mut next = 1;
    let mut number = || {
        next += 1;
        next
    };
    let mut base = Base::new(Source::KernelPage, Scope::Cgroup);
    (base.begin, base.end) = (6, 6);
    base.time_ns = number();
    base.epoch = number();
    base.available = Available::BACKLOG.with_parts(Available::BLOCKED);
    base.cpus = MAX_CPUS as u32;
    base.capacity = number() as u32;
    base.first_cpu = number() as u16;
    base.entries = 1;
    base.ports = PORTS as u16;
    base.target = number() as u16;
    base.updates = number();
    base.recent_busy_ns = number();
    let cpu = |number: &mut dyn FnMut() -> u64| Cpu {
        begin: 4,
        time_ns: number(),
        times: Times {
            user: number(),
            nice: number(),
            system: number(),
            irq: number(),
            softirq: number(),
            steal: number(),
            idle: number(),
            iowait: number(),
        },
        busy_ns: number(),
        switches: number(),
        running: number() as u32,
        blocked: number() as u32,
        backlog: number() as u32,
        pending: number() as u32,
        softirqs: std::array::from_fn(|_| number() as u32),
        dropped: number() as u32,
        squeezed: number() as u32,
        number: number() as u32,
        softirq_threads: number() as u32,
        end: 4,
    };
    base.totals = cpu(&mut number);
    let totals: [u64; 5] = std::array::from_fn(|_| number());
    let mut stalls = totals.iter().map(|total_ns| Stall {
        total_ns: *total_ns,
        avg10: number() as u32,
    });
    base.pressure = Pressure {
        cpu_some: stalls.next().unwrap(),
        memory_some: stalls.next().unwrap(),
        memory_full: stalls.next().unwrap(),
        io_some: stalls.next().unwrap(),
        io_full: stalls.next().unwrap(),
    };
    drop(stalls);
    base.recent_ns = number() as u32;
    base.memory = Memory {
        total: number(),
        available: number(),
        swap_used: number(),
    };
    base.load_averages = std::array::from_fn(|_| number() as u32);
    base.running_average = number() as u32;
    let ports: [Port; PORTS] = std::array::from_fn(|_| Port {
        port: number() as u16,
        listening: true,
        backlog: number() as u32,
        limit: number() as u32,
    });
    let one = cpu(&mut number);

    let (bytes, envelope) = out.split_at(CPUS + CPU);
    let record = Record::parse(bytes).unwrap();
    assert_eq!(record.base, base);
    assert!(record.ports().eq(ports));
    assert!(record.cpus().eq([Ok(one)]));

    assert_eq!(envelope.len(), ENVELOPE);
    let (_target, _first_cpu) = (number(), number());
    let datagram = [envelope, bytes].concat();
    assert_eq!(Answer::claimed_ids(&datagram), Some((number(), number())));
    assert_eq!(
        envelope[ENVELOPE - 16..ENVELOPE - 8],
        number().to_le_bytes()
    );
}

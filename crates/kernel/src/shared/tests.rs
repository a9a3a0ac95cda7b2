#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread;

use super::*;
use crate::record::{Base, Cpu, PORTS, Port, Scope, Source};

/// A path for a page, gone when dropped.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-shared-{}-{number}", std::process::id());
        Place(std::env::temp_dir().join(name))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A record in which every number is the same.
fn record(number: u32, cpus: u32) -> Whole {
    let long = u64::from(number);
    let cpu = |cpu| Cpu {
        busy_ns: long,
        switches: long,
        running: number,
        squeezed: number,
        number: cpu,
        ..Cpu::default()
    };
    let mut base = Base::new(Source::User, Scope::Machine);
    base.cpus = cpus;
    base.capacity = 1000 * cpus;
    base.time_ns = long;
    base.totals = cpu(0);
    base.memory.total = long;
    base.running_average = number;
    let port = Port {
        backlog: number,
        limit: number,
        ..Port::default()
    };
    Whole {
        base,
        ports: vec![port; PORTS],
        cpus: (0..cpus).map(cpu).collect(),
    }
}

/// The number of which the record is, in which there must be no other.
fn number(record: &Record<'_>) -> u64 {
    let base = &record.base;
    let number = base.time_ns;
    let mut all: Vec<u64> = vec![base.memory.total, base.running_average.into()];
    for port in record.ports() {
        all.extend([port.backlog, port.limit].map(u64::from));
    }
    let cpus = record.cpus().map(|cpu| cpu.expect("a whole entry"));
    for cpu in std::iter::once(base.totals).chain(cpus) {
        all.extend([cpu.busy_ns, cpu.switches]);
        all.extend([cpu.running, cpu.squeezed].map(u64::from));
    }
    assert!(
        all.iter().all(|found| *found == number),
        "{number}: {all:?}"
    );
    number
}

#[test]
fn what_was_written_is_read() {
    let place = Place::new();
    let mut reader = Reader::new(&place.0);
    assert!(matches!(reader.read(), Err(ReadError::Missing(_))));
    let mut writer = Writer::create(&place.0, 3).unwrap();
    let error = reader.read().unwrap_err();
    assert!(matches!(error, ReadError::Record(_, BadRecord::Magic)));
    let mut sequence = 0;
    for round in [1, 5] {
        writer.write(&record(round, 3));
        let reading = reader.read().unwrap();
        assert_eq!(number(&reading.record), u64::from(round));
        assert_eq!(reading.record.cpus().count(), 3);
        assert!(reading.record.base.begin > sequence);
        sequence = reading.record.base.begin;
        assert!(reading.age > Duration::ZERO);
    }
    // Fewer CPUs than there is room for, and more.
    for (cpus, found) in [(2, 2), (4, 3)] {
        writer.write(&record(6, cpus));
        assert_eq!(reader.read().unwrap().record.cpus().count(), found);
    }
    drop(writer);
    assert!(matches!(reader.read(), Err(ReadError::Missing(_))));
    assert!(!place.0.exists());
}

#[test]
fn no_record_is_torn_while_it_is_being_written() {
    let place = Place::new();
    let mut writer = Writer::create(&place.0, 64).unwrap();
    writer.write(&record(0, 64));
    let (ended, mut reader) = (AtomicBool::new(false), Reader::new(&place.0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !ended.load(Ordering::Relaxed) {
                round += 1;
                writer.write(&record(round, 64));
                thread::sleep(Duration::from_micros(100));
            }
        });
        let _end = End(&ended);
        let (mut read, mut changes, mut last) = (0, 0, 0);
        while read < 2000 || changes < 10 {
            match reader.read() {
                Ok(reading) => {
                    let now = number(&reading.record);
                    assert!(now >= last);
                    changes += u32::from(now != last);
                    last = now;
                    read += 1;
                }
                Err(ReadError::Record(_, BadRecord::Torn)) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    });
}

/// Ends the writer, also if the reader panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_age_grows_when_nobody_writes() {
    let place = Place::new();
    let mut writer = Writer::create(&place.0, 1).unwrap();
    let mut now = record(1, 1);
    now.base.time_ns = monotonic_ns();
    writer.write(&now);
    let mut reader = Reader::new(&place.0);
    let first = reader.read().unwrap().age;
    thread::sleep(Duration::from_millis(20));
    assert!(reader.read().unwrap().age >= first + Duration::from_millis(20));
    // A clock that is ahead.
    now.base.time_ns = u64::MAX;
    writer.write(&now);
    assert_eq!(reader.read().unwrap().age, Duration::ZERO);
    thread::sleep(Duration::from_millis(20));
    assert!(reader.read().unwrap().age >= Duration::from_millis(20));
}

#[test]
fn one_writes_and_the_next_takes_the_file_over() {
    let place = Place::new();
    let mut first = Writer::create(&place.0, 1).unwrap();
    first.write(&record(1, 1));
    let second = Writer::create(&place.0, 1).unwrap_err();
    assert!(matches!(second, CreateError::InUse(_)), "{second}");
    let mut reader = Reader::new(&place.0);
    reader.read().unwrap();
    // One that was killed leaves its file, and no lock.
    first.file.take();
    drop(first);
    let mut second = Writer::create(&place.0, 5).unwrap();
    assert!(reader.read().is_err());
    second.write(&record(2, 5));
    assert_eq!(reader.read().unwrap().record.cpus().count(), 5);
}

#[test]
fn files_that_are_not_believed() {
    let place = Place::new();
    let other = Place::new();
    fs::write(&other.0, "mine").unwrap();
    symlink(&other.0, &place.0).unwrap();
    let error = Writer::create(&place.0, 1).unwrap_err();
    assert!(matches!(error, CreateError::Strange(_)), "{error}");
    let error = Reader::new(&place.0).read().unwrap_err();
    assert!(matches!(error, ReadError::Strange(_)), "{error}");
    assert_eq!(fs::read(&other.0).unwrap(), b"mine");
    fs::remove_file(&place.0).unwrap();
    // A second name of a file.
    fs::hard_link(&other.0, &place.0).unwrap();
    let error = Writer::create(&place.0, 1).unwrap_err();
    assert!(matches!(error, CreateError::Strange(_)), "{error}");
    assert_eq!(fs::read(&other.0).unwrap(), b"mine");
    fs::remove_file(&place.0).unwrap();
    // A folder.
    let folder = std::env::temp_dir();
    assert!(Writer::create(&folder, 1).is_err());
    let error = Reader::new(&folder).read().unwrap_err();
    assert!(matches!(error, ReadError::Strange(_)), "{error}");
    // One that others may write.
    let mut writer = Writer::create(&place.0, 1).unwrap();
    writer.write(&record(1, 1));
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o666)).unwrap();
    let error = Reader::new(&place.0).read().unwrap_err();
    assert!(matches!(error, ReadError::Strange(_)), "{error}");
    if rustix::process::geteuid().is_root() {
        // One of somebody else.
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::chown(&place.0, Some(12_345), None).unwrap();
        let error = Reader::new(&place.0).read().unwrap_err();
        assert!(matches!(error, ReadError::Strange(_)), "{error}");
    }
}

#[test]
fn files_that_hold_something_else() {
    let place = Place::new();
    let mut reader = Reader::new(&place.0);
    let mut good = vec![0; 552 + 176];
    record(1, 1).copy(0, &mut good);
    fs::write(&place.0, &good).unwrap();
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(reader.read().is_ok());
    // It becomes shorter and longer under the reader's hands.
    let file = OpenOptions::new().write(true).open(&place.0).unwrap();
    for length in [0, 1, 359, 361, 600, good.len() - 1, good.len() + 1, 1 << 20] {
        file.set_len(length as u64).unwrap();
        let error = reader.read().unwrap_err();
        assert!(matches!(error, ReadError::Record(..)), "{length}: {error}");
        fs::write(&place.0, &good).unwrap();
    }
    assert!(reader.read().is_ok());
    // A writer that ended in the middle.
    good[8] = 1;
    fs::write(&place.0, &good).unwrap();
    let error = reader.read().unwrap_err();
    assert!(
        matches!(error, ReadError::Record(_, BadRecord::Torn)),
        "{error}"
    );
}

#[test]
fn memory_without_a_name() {
    let mut writer = Writer::nameless(2).unwrap();
    writer.write(&record(7, 2));
    let region = Arc::clone(writer.region());
    drop(writer);
    let words = region.words().iter();
    let bytes: Vec<u8> = words
        .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
        .collect();
    assert_eq!(number(&Record::parse(&bytes).unwrap()), 7);
}

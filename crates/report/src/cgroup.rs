//! Loads of containers and services on this machine, read from their cgroups.
//!
//! What a cgroup uses, what it may use and how long it waits (pressure, Linux 4.20 and cgroups
//! of version 2) are files that the kernel keeps. [`Meter`] reads them; the loads are those
//! that a back-end's own kernel would tell of itself.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::load::{LoadId, LoadValue, Location, TooManyLoads};
use evenkeel_kernel::loads::{Before, Loads};
use evenkeel_kernel::proc::files::Files;
use evenkeel_kernel::proc::{Meter, Settings, cgroup};
use evenkeel_kernel::record::{BASE, Record};
use evenkeel_manager::counts::{Origin, ReportOutcome};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::poll::{self, PolledGroup, ReportLog, ReportedLocation};
use crate::source::{Context, Source, SourceTargets};

/// Cgroups in which members run.
pub(crate) struct Cgroups;

/// The name of a location, and its cgroup.
type Key = (Arc<str>, String);

/// Location and interval that a task works with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    location: ReportedLocation,
    interval: Duration,
}

impl Source for Cgroups {
    const ORIGIN: Origin = Origin("cgroup");
    type Key = Key;
    type Target = Target;

    fn want(group: &PolledGroup, wanted: &mut SourceTargets<Key, Target>) {
        let Some(config) = &group.config.sources.cgroup else {
            return;
        };
        for member in group.members() {
            let name = member.location.name();
            let Some(path) = config.of_location(name) else {
                continue;
            };
            let target = Target {
                location: ReportedLocation(Arc::clone(&member.location)),
                interval: config.interval,
            };
            let key = (Arc::clone(name), path.clone());
            // Another group with members there wants the same.
            if wanted.get(&key).is_none() {
                wanted.add_target(group, key, target, path);
            }
        }
    }

    async fn ask(context: Context, (_, path): Key, target: Target, mut journal: ReportLog) {
        poll::wait_to_begin(target.interval).await;
        let mut held = Held {
            location: target.location.0,
            loads: Vec::new(),
        };
        let mut reader = Reader::new(Files::new("/"), path);
        loop {
            let started = Instant::now();
            // The kernel may have to sum up for it.
            let reading = spawn_blocking(move || {
                let loads = reader.read();
                (reader, loads)
            });
            let Ok((back, loads)) = reading.await else {
                return;
            };
            reader = back;
            match loads {
                Ok(loads) => match held.observe(&loads, context.manager.clock().now()) {
                    Ok(()) => journal.note_fate(ReportOutcome::Taken, None),
                    Err(error) => journal.note_fate(ReportOutcome::TooManyLoads, Some(&error)),
                },
                Err(error) => {
                    held.expire();
                    journal.note_fate(ReportOutcome::Unreachable, Some(&error));
                }
            }
            poll::pause(target.interval, started).await;
        }
    }
}

/// Loads that are known by these readings alone, and unknown when there are none any more.
struct Held {
    location: Arc<Location>,
    loads: Vec<LoadId>,
}

impl Held {
    fn observe(
        &mut self,
        loads: &Loads,
        now: evenkeel_core::time::Instant,
    ) -> Result<(), TooManyLoads> {
        let valid = |(id, value)| Some((id, LoadValue::new(value).ok()?));
        let loads: Vec<_> = loads.iter().filter_map(valid).collect();
        self.loads = loads.iter().map(|(id, _)| *id).collect();
        self.location.observe_loads(loads, now)
    }

    fn expire(&mut self) {
        self.location.expire(self.loads.drain(..));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.expire();
    }
}

/// Reads a cgroup, and keeps what the next reading is compared with.
struct Reader {
    files: Files,
    path: String,
    meter: Option<Meter>,
    before: Option<Before>,
}

impl Reader {
    fn new(files: Files, path: String) -> Self {
        Reader {
            files,
            path,
            meter: None,
            before: None,
        }
    }

    /// Returns the loads since the last reading.
    ///
    /// # Errors
    ///
    /// There is no such cgroup, and what is missing.
    fn read(&mut self) -> Result<Loads, String> {
        let meter = match &mut self.meter {
            Some(meter) => meter,
            none => none.insert(Meter::new(
                self.files.clone(),
                Settings {
                    cgroup: Some(cgroup::name(&self.files, &self.path)?),
                    ports: Vec::new(),
                },
            )),
        };
        let (whole, _) = meter.take_sample()?;
        let mut copy = [0; BASE];
        whole.copy(0, &mut copy);
        let record = Record::parse(&copy).map_err(|error| error.to_string())?;
        let loads = Loads::since_last(self.before.as_ref(), &record);
        self.before = Some(Before::new(&record.base));
        Ok(loads)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A file system with a cgroup of version 2.
    struct Root(PathBuf);

    impl Root {
        fn new() -> Self {
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("evenkeel-cgroup-{}-{number}", std::process::id());
            let root = Root(std::env::temp_dir().join(name));
            let mount = "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
            root.write("proc/self/mountinfo", mount);
            root.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n");
            root.write("sys/devices/system/cpu/online", "0-3\n");
            root
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn write_cgroup(&self, cpu_micros: u64) {
            let file = |name: &str| format!("sys/fs/cgroup/app/{name}");
            self.write(&file("cpu.stat"), &format!("usage_usec {cpu_micros}\n"));
            self.write(&file("cpu.max"), "50000 100000\n");
            self.write(&file("memory.current"), "204800\n");
            self.write(&file("memory.max"), "409600\n");
            self.write(&file("memory.stat"), "inactive_file 102400\n");
            for kind in ["cpu", "memory", "io"] {
                let line = "avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
                self.write(
                    &file(&format!("{kind}.pressure")),
                    &format!("some {line}full {line}"),
                );
            }
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_a_cgroup_uses_of_what_it_may_use_is_its_load() {
        let root = Root::new();
        let mut reader = Reader::new(Files::new(&root.0), "/sys/fs/cgroup/app".into());
        let missing = reader.read().unwrap_err();
        assert!(missing.contains("/app"), "{missing}");
        root.write_cgroup(0);
        let first = reader.read().unwrap();
        assert_eq!((first.cpu, first.memory), (None, Some(0.25)));
        assert_eq!(
            first.cpu_pressure, None,
            "a share of the time since the last one"
        );
        // More than all of the time since.
        root.write_cgroup(1_000_000_000);
        let second = reader.read().unwrap();
        assert_eq!(second.cpu, Some(1.0));
        assert_eq!(second.cpu_pressure, Some(0.0));
        fs::remove_dir_all(root.0.join("sys/fs/cgroup/app")).unwrap();
        reader.read().unwrap_err();
    }

    #[test]
    fn what_is_read_no_more_is_unknown() {
        let location = Arc::new(Location::new("a"));
        let mut held = Held {
            location: Arc::clone(&location),
            loads: Vec::new(),
        };
        let now = evenkeel_core::time::Instant::from_nanos(1_000_000_000);
        let loads = Loads {
            cpu: Some(0.5),
            ..Loads::default()
        };
        held.observe(&loads, now).unwrap();
        let known = || location.fresh_load(LoadId::CPU, now, Duration::from_secs(1));
        assert_eq!(known(), Some(0.5));
        drop(held);
        assert_eq!(known(), None);
    }
}

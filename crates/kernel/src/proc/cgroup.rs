//! Files in which the kernel tells what a cgroup uses and may use: of version 2, of version 1, and
//! of both at once, as hybrid systems have them.

use std::path::{Path, PathBuf};

use super::files::{FileResult, Files};
use super::text::{self, Transfers};

/// The files of one cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    v2: Option<Dir>,
    // Version 1 has a hierarchy per controller.
    cpu: Option<Dir>,
    cpuacct: Option<Dir>,
    cpuset: Option<Dir>,
    memory: Option<Dir>,
    blkio: Option<Dir>,
}

/// The hierarchy in which CPU time is given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    /// Top folder of the hierarchy, as far as this process can see.
    pub folder: PathBuf,
    /// The cgroup of this process in it.
    pub process_cgroup: PathBuf,
    /// True if this is a hierarchy of version 1.
    pub version_1: bool,
}

impl Top {
    /// The hierarchy of version 1 with the CPU controller, else that of version 2.
    pub fn of_cpu(files: &Files) -> FileResult<Self> {
        let own = Cgroup::find_cgroup(files, None)?;
        let (dir, version_1) = match (own.cpu, own.v2) {
            (Some(dir), _) => (dir, true),
            (None, Some(dir)) => (dir, false),
            (None, None) => return Err("no hierarchy of cgroups has CPU time".into()),
        };
        Ok(Top {
            folder: dir.top,
            process_cgroup: dir.path,
            version_1,
        })
    }
}

/// Returns the name by which `/proc/PID/cgroup` calls the cgroup of a folder in a mounted
/// hierarchy. Any other text is taken to be such a name already.
pub fn name(files: &Files, folder: &str) -> FileResult<String> {
    let mounts = files.read_file("/proc/self/mountinfo")?;
    let mounts = CONTROLLERS.iter().filter_map(|controller| {
        let mount = text::find_mount(&mounts, *controller)?;
        let inside = Path::new(folder).strip_prefix(&mount.point).ok()?;
        let name = Path::new(&mount.root).join(inside);
        Some((mount.point.len(), name.to_str()?.to_owned()))
    });
    // A hierarchy of version 1 is mounted below another one.
    let inmost = mounts.max_by_key(|(length, _)| *length);
    Ok(inmost.map_or_else(|| folder.to_owned(), |(_, name)| name))
}

/// The hierarchies of which something is read.
const CONTROLLERS: [Option<&str>; 6] = [
    None,
    Some("cpu"),
    Some("cpuacct"),
    Some("cpuset"),
    Some("memory"),
    Some("blkio"),
];

/// The folder of a cgroup in a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dir {
    path: PathBuf,
    /// Top folder of the hierarchy, as far as this process can see.
    top: PathBuf,
}

impl Dir {
    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The file `name` of the cgroup and of those that it is in.
    fn upwards(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        let inside = self.path.ancestors();
        let inside = inside.take_while(|path| path.starts_with(&self.top));
        inside.map(move |path| path.join(name))
    }
}

impl Cgroup {
    /// The cgroup called `path` as `/proc/PID/cgroup` would say it, or without one that
    /// of this process.
    pub fn find_cgroup(files: &Files, path: Option<&str>) -> FileResult<Self> {
        let mounts = files.read_file("/proc/self/mountinfo")?;
        let own = match path {
            None => files.read_file("/proc/self/cgroup")?,
            Some(_) => String::new(),
        };
        let dir = |controller: Option<&str>| {
            let mount = text::find_mount(&mounts, controller)?;
            let name = path.or_else(|| text::find_cgroup(&own, controller))?;
            let inside = Path::new(name).strip_prefix(&mount.root).ok();
            // Of a namespace that does not show where its cgroups are, this one is the top.
            let inside = inside.filter(|path| !path.starts_with(".."));
            let top = PathBuf::from(mount.point);
            let path = top.join(inside.unwrap_or(Path::new("")));
            files.is_dir(&path).then_some(Dir { path, top })
        };
        let cgroup = Cgroup {
            v2: dir(None),
            cpu: dir(Some("cpu")),
            cpuacct: dir(Some("cpuacct")),
            cpuset: dir(Some("cpuset")),
            memory: dir(Some("memory")),
            blkio: dir(Some("blkio")),
        };
        if cgroup == Cgroup::default() {
            let name = path.unwrap_or("of this process");
            return Err(format!(
                "there is no cgroup {name} below the mounts of cgroups in /proc/self/mountinfo"
            ));
        }
        Ok(cgroup)
    }

    /// CPU time used, in nanoseconds.
    pub fn cpu_time(&self, files: &Files) -> FileResult<u64> {
        if let Some(dir) = &self.cpuacct {
            return files.parse(dir.file("cpuacct.usage"), text::parse_number);
        }
        let dir = self.v2.as_ref().ok_or("no controller of CPU time")?;
        let usage = |text: &str| text::find_number(text, "usage_usec");
        let micros = files.parse(dir.file("cpu.stat"), usage)?;
        Ok(micros.saturating_mul(1000))
    }

    /// Returns the number of CPUs that the cgroup may use, of `online` ones: by its quota, the
    /// quotas of the cgroups it is in, and its set of CPUs.
    pub fn cpus(&self, files: &Files, online: u32) -> f64 {
        let quotas: Vec<f64> = match (&self.cpu, &self.v2) {
            (Some(dir), _) => {
                let quotas = dir.upwards("cpu.cfs_quota_us");
                let periods = dir.upwards("cpu.cfs_period_us");
                let of = |(quota, period)| {
                    let quota = files.parse(quota, text::parse_number).ok()?;
                    text::quota_share(quota, files.parse(period, text::parse_number).ok()?)
                };
                quotas.zip(periods).filter_map(of).collect()
            }
            (None, Some(dir)) => {
                let limits = dir.upwards("cpu.max");
                let of = |path| files.parse(path, text::cpu_max).ok();
                limits.filter_map(of).collect()
            }
            (None, None) => Vec::new(),
        };
        let cpus = f64::from(self.set(files, online));
        quotas.into_iter().fold(cpus, f64::min)
    }

    /// Returns the number of the machine's `online` CPUs that are in the cgroup's set of CPUs.
    pub fn set(&self, files: &Files, online: u32) -> u32 {
        let sets = [
            (&self.cpuset, "cpuset.effective_cpus"),
            (&self.v2, "cpuset.cpus.effective"),
        ];
        let set = sets.into_iter().find_map(|(dir, name)| {
            let path = dir.as_ref()?.file(name);
            files.parse(path, text::cpu_list).ok()
        });
        set.unwrap_or(online).clamp(1, online.max(1))
    }

    /// Bytes of memory in use, and how many it may have: its limit, or the machine's `total`.
    /// Files in memory that have not been used lately do not count: they are dropped when
    /// there is need. `None` where the cgroup is all there is.
    pub fn memory(&self, files: &Files, total: u64) -> FileResult<Option<(u64, u64)>> {
        let (used, stat, inactive, limit) = if let Some(dir) = &self.memory {
            let used = files.parse(dir.file("memory.usage_in_bytes"), text::parse_number)?;
            let stat = files.read_file(dir.file("memory.stat"))?;
            let limit = text::find_number(&stat, "hierarchical_memory_limit");
            (used, stat, "total_inactive_file", limit)
        } else if let Some(dir) = &self.v2 {
            let used = match files.parse(dir.file("memory.current"), text::parse_number) {
                Err(_) if dir.path == dir.top => return Ok(None),
                used => used?,
            };
            let limits = dir.upwards("memory.max");
            let limit = limits.filter_map(|path| files.parse(path, text::parse_number).ok());
            let stat = files.read_file(dir.file("memory.stat"))?;
            (used, stat, "inactive_file", limit.min())
        } else {
            return Err("no controller of memory".into());
        };
        let inactive = text::find_number(&stat, inactive).unwrap_or(0);
        // Without a limit it says a number larger than any memory.
        let most = limit.unwrap_or(total).min(total).max(1);
        Ok(Some((used.saturating_sub(inactive), most)))
    }

    /// Returns the cgroup's transfers at each device where its transfers are limited, and its
    /// limits there per second (0: no limit).
    pub fn transfers(&self, files: &Files) -> Vec<(String, Transfers, Transfers)> {
        let (done, limits) = match (&self.blkio, &self.v2) {
            (Some(dir), _) => v1_transfers(files, dir),
            (None, Some(dir)) => {
                let list = |name: &str, parse: fn(&str) -> Vec<(String, Transfers)>| {
                    let text = files.read_file(dir.file(name)).unwrap_or_default();
                    parse(&text)
                };
                let done = list("io.stat", |text| owned(text::io_stat(text)));
                let limits = list("io.max", |text| owned(text::io_max(text)));
                (done, limits)
            }
            (None, None) => return Vec::new(),
        };
        let with_limit = done.into_iter().filter_map(|(device, done)| {
            let (_, limit) = limits.iter().find(|(limited, _)| *limited == device)?;
            Some((device, done, *limit))
        });
        with_limit.collect()
    }

    /// The file of pressure of a kind, which only version 2 has.
    pub fn pressure_file(&self, kind: &str) -> Option<PathBuf> {
        let dir = self.v2.as_ref()?;
        Some(dir.file(&format!("{kind}.pressure")))
    }
}

fn owned<'t>(list: impl Iterator<Item = (&'t str, Transfers)>) -> Vec<(String, Transfers)> {
    list.map(|(device, transfers)| (device.to_owned(), transfers))
        .collect()
}

type ByDevice = Vec<(String, Transfers)>;

fn v1_transfers(files: &Files, dir: &Dir) -> (ByDevice, ByDevice) {
    let read = |name: &str| files.read_file(dir.file(name)).unwrap_or_default();
    let mut done = ByDevice::new();
    let mut limits = ByDevice::new();
    let counts = ["io_service_bytes", "io_serviced"];
    for (index, name) in counts.into_iter().enumerate() {
        for (device, writes, amount) in text::parse_blkio(&read(&format!("blkio.throttle.{name}")))
        {
            *place(&mut done, device, 2 * index + usize::from(writes)) = amount;
        }
    }
    let names = ["read_bps", "write_bps", "read_iops", "write_iops"];
    for (index, name) in names.into_iter().enumerate() {
        for (device, limit) in text::blkio_limit(&read(&format!("blkio.throttle.{name}_device"))) {
            *place(&mut limits, device, index) = limit;
        }
    }
    (done, limits)
}

/// The number at `index` of a device, which is added if it is not there; `index` is
/// below 4.
fn place<'l>(list: &'l mut ByDevice, device: &str, index: usize) -> &'l mut u64 {
    let at = list.iter().position(|(known, _)| known == device);
    let at = at.unwrap_or_else(|| {
        list.push((device.to_owned(), Transfers::default()));
        list.len() - 1
    });
    &mut list[at].1[index]
}

//! Memory: how much this process may have, and who gets how much of it.
//!
//! A process that allocates what it cannot have is aborted, or killed by the kernel. So clients get no more
//! memory than there is room for, and a part is kept back for health checks, load reports, the admin API and
//! reloads.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};

/// Source of the memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// `RLIMIT_AS` (`ulimit -v`, `LimitAS=`).
    AddressSpace,
    /// `RLIMIT_DATA` (`ulimit -d`, `LimitDATA=`).
    Data,
    /// A cgroup (`MemoryMax=`, or what a container may have).
    Cgroup,
    /// Memory of the machine.
    Machine,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            By::AddressSpace => "RLIMIT_AS",
            By::Data => "RLIMIT_DATA",
            By::Cgroup => "cgroup",
            By::Machine => "machine",
        })
    }
}

/// Memory that there is for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBound {
    /// Memory that the process may have in all, in bytes.
    pub all: u64,
    /// Memory that the process had already when the limit was read, in bytes.
    pub used: u64,
    /// Source of the limit.
    pub by: By,
}

/// Path where version 2 of cgroups is mounted, and path of the memory controller of version 1.
const CGROUPS: &str = "/sys/fs/cgroup";
const MEMORY_CGROUPS: &str = "/sys/fs/cgroup/memory";

impl MemoryBound {
    /// Returns the bound of this process: of all limits the one that leaves the least. The limits are read
    /// once, at the first call: threads that are to run should run by then.
    pub fn of_process() -> Self {
        static BOUND: OnceLock<MemoryBound> = OnceLock::new();
        *BOUND.get_or_init(|| {
            let limits = [Resource::As, Resource::Data].map(|which| getrlimit(which).current);
            let read = |path: &Path| std::fs::read_to_string(path).ok();
            Self::find(limits, rustix::param::page_size() as u64, read)
        })
    }

    /// Finds the bound by the limits on address space and data, and by the contents of files.
    fn find(
        [space, data]: [Option<u64>; 2],
        page: u64,
        read: impl Fn(&Path) -> Option<String>,
    ) -> Self {
        // proc_pid_statm(5): size, resident, shared, text, lib, data, dirty, in pages.
        let statm = read(Path::new("/proc/self/statm")).unwrap_or_default();
        let pages: Vec<u64> = statm
            .split_ascii_whitespace()
            .map_while(|number| number.parse().ok())
            .collect();
        let used = |index: usize| {
            pages
                .get(index)
                .map_or(0, |pages| pages.saturating_mul(page))
        };
        let cgroup = cgroup_limit(&read);
        let machine = read(Path::new("/proc/meminfo")).and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("MemTotal:"))?;
            let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
            Some(kib.saturating_mul(1024))
        });
        let bounds = [
            (space, used(0), By::AddressSpace),
            (data, used(5), By::Data),
            (cgroup, used(1), By::Cgroup),
            (machine, used(1), By::Machine),
        ];
        bounds
            .into_iter()
            .filter_map(|(all, used, by)| {
                Some(MemoryBound {
                    all: all?,
                    used,
                    by,
                })
            })
            .min_by_key(MemoryBound::bytes_left)
            .unwrap_or(MemoryBound {
                all: u64::MAX,
                used: 0,
                by: By::Machine,
            })
    }

    /// Returns the memory that the process may have beyond what it had, in bytes.
    pub fn bytes_left(&self) -> u64 {
        self.all.saturating_sub(self.used)
    }
}

/// The smallest limit of the cgroups that this process is in, from its own one up.
fn cgroup_limit(read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let own = read(Path::new("/proc/self/cgroup"))?;
    // cgroups(7): the number of the hierarchy, its controllers, the path.
    let hierarchies = own.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        match controllers {
            "" => Some((CGROUPS, &["memory.max", "memory.high"][..], path)),
            of if of.split(',').any(|name| name == "memory") => {
                Some((MEMORY_CGROUPS, &["memory.limit_in_bytes"][..], path))
            }
            _ => None,
        }
    });
    let limits = hierarchies.flat_map(|(mount, files, path)| {
        // In a container the path may be that of the host, and only its root be there.
        let places = Path::new(path.trim_start_matches('/')).ancestors();
        places.flat_map(move |place| {
            let folder = Path::new(mount).join(place);
            files.iter().map(move |file| folder.join(file))
        })
    });
    limits
        .filter_map(|file| read(&file)?.trim().parse().ok())
        .min()
}

/// Memory that a client takes that has no large buffer, with its connection to a member, in bytes: two tasks'
/// worth of state (5 KiB as measured), two heads of up to 16 KiB with a small body, two small buffers (4
/// KiB), and what the kernel keeps of two sockets without data.
pub const CLIENT_BYTES: u64 = 48 << 10;

/// Most that is kept in a pipe, in bytes.
pub const PIPE_BYTES: u64 = 512 << 10;

/// Other users of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// True if there is a negotiator.
    pub negotiator: bool,
    /// True if there is a CORBA service.
    pub corba: bool,
}

/// Shares of the memory of a process. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Memory that is shared out, and why it is not more.
    pub memory_bound: MemoryBound,
    /// Kept back for health checks, load reports, the admin API and reloads.
    pub reserve: u64,
    /// Memory for clients that negotiate.
    pub negotiator: u64,
    /// Memory for CORBA clients, their messages, and connections to members.
    pub corba: u64,
    /// Clients of rules at a time.
    pub clients: usize,
    /// Buffers of rules that are larger than what each client has anyway. Without them small
    /// ones do.
    pub buffers: usize,
    /// Pipes that move bulk data. Without them it is copied.
    pub pipes: usize,
}

impl Shares {
    /// Shares out what `bound` leaves. Rules get what is left after the others, and at least a
    /// few clients: with less than about 64 MiB there is no reserve.
    pub fn new(bound: MemoryBound, users: Users) -> Self {
        let left = bound.bytes_left();
        let reserve = (left / 4).clamp(48 << 20, 2 << 30);
        let rest = left.saturating_sub(reserve);
        let negotiator = if users.negotiator { rest / 8 } else { 0 };
        let corba = if users.corba { rest / 4 } else { 0 };
        let rules = rest - negotiator - corba;
        let number = |many: u64| usize::try_from(many).unwrap_or(usize::MAX);
        let clients = (rules / 3 * 2 / CLIENT_BYTES).max(8);
        let bulk = rules / 3;
        let pipes = bulk / 4 / PIPE_BYTES;
        Shares {
            memory_bound: bound,
            reserve,
            negotiator,
            corba,
            clients: number(clients),
            buffers: number(bulk - pipes * PIPE_BYTES),
            pipes: number(pipes),
        }
    }

    /// Returns the shares for the process as it is, with whatever there may be beside rules: each part takes
    /// its own share from this.
    pub fn of_process() -> Self {
        let users = Users {
            negotiator: true,
            corba: true,
        };
        Self::new(MemoryBound::of_process(), users)
    }
}

/// Bounds what the allocator keeps. To be called before there is a second thread.
///
/// With glibc each thread allocates from an arena, of which there are up to eight for each core. An arena
/// keeps what it has had at its fullest. Threads that come and go, as those of lookups and health checks do,
/// fill one arena after the other. Two arenas for each core are enough that workers do not wait for each
/// other. If the address space is limited there is one arena, as each arena reserves 64 MiB of it, whatever
/// it needs. An administrator who has set a number by the environment (mallopt(3)) knows better.
pub fn prepare_allocator() {
    #[cfg(target_env = "gnu")]
    {
        let says = |name: &str, text: &str| {
            let value = std::env::var_os(name);
            value.is_some_and(|value| value.to_string_lossy().contains(text))
        };
        let is_set = says("MALLOC_ARENA_MAX", "") || says("GLIBC_TUNABLES", "malloc.arena_max");
        let arenas = match getrlimit(Resource::As).current {
            Some(_) => 1,
            None if is_set => return,
            None => most_arenas(std::thread::available_parallelism().map_or(1, usize::from)),
        };
        // SAFETY: it takes two numbers, and there is one thread.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}

/// Returns the number of arenas for so many cores: those of workers, and some for all other threads.
#[cfg(target_env = "gnu")]
fn most_arenas(cores: usize) -> i32 {
    i32::try_from(cores.saturating_mul(2).saturating_add(2)).unwrap_or(i32::MAX)
}

/// Time between two moments at which the allocator gives back what is free.
#[cfg(target_env = "gnu")]
const GIVE_BACK_EVERY: std::time::Duration = std::time::Duration::from_secs(60);

/// Has a thread give memory back that is free, once a minute.
///
/// glibc by itself gives back what is free at the end of an arena only. One block there, such as the state of a
/// connection that lives for hours, keeps all that was free before it. `malloc_trim` gives back each free page, in a
/// few milliseconds; an arena is locked meanwhile, and what workers allocate and free mostly comes from caches
/// of their own.
///
/// # Errors
///
/// The system gives no thread.
pub fn start_giving_back() -> std::io::Result<()> {
    #[cfg(target_env = "gnu")]
    std::thread::Builder::new()
        .name("memory".into())
        .stack_size(64 << 10)
        .spawn(|| {
            loop {
                std::thread::sleep(GIVE_BACK_EVERY);
                give_back();
            }
        })?;
    Ok(())
}

/// Gives memory back that is free in the allocator.
#[cfg(target_env = "gnu")]
fn give_back() {
    // SAFETY: it takes a number, and may be called by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[cfg(target_env = "gnu")]
    #[test]
    fn memory_that_is_free_between_blocks_in_use_is_given_back() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
            pages * rustix::param::page_size() as u64
        };
        // As connections leave their state behind: one of 64 blocks lives on, at the end of an arena, too.
        let mut blocks: Vec<Option<Box<[u8]>>> =
            (0..64 << 10).map(|_| Some(vec![1; 1024].into())).collect();
        let full = resident();
        for (number, block) in blocks.iter_mut().enumerate() {
            if number % 64 != 63 {
                *block = None;
            }
        }
        give_back();
        let left = resident();
        assert!(left + 40 * MIB < full, "{left} of {full}");
        assert_eq!(blocks.iter().flatten().count(), 1024);
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn there_are_arenas_for_workers_and_for_others() {
        assert_eq!([1, 2, 64].map(most_arenas), [4, 6, 130]);
        assert_eq!(most_arenas(usize::MAX), i32::MAX);
    }

    fn bound(left: u64) -> MemoryBound {
        MemoryBound {
            all: left + 30 * MIB,
            used: 30 * MIB,
            by: By::Cgroup,
        }
    }

    /// Returns the bound that `find` makes of limits and files.
    fn found(limits: [Option<u64>; 2], files: &[(&str, &str)]) -> MemoryBound {
        MemoryBound::find(limits, 4096, |path| {
            let known = files.iter().find(|(name, _)| Path::new(name) == path);
            known.map(|(_, text)| (*text).to_owned())
        })
    }

    const STATM: (&str, &str) = ("/proc/self/statm", "51200 5120 2560 256 0 12800 0\n");
    const MEMINFO: (&str, &str) = (
        "/proc/meminfo",
        "MemTotal:        2097152 kB\nMemFree:          102400 kB\n",
    );

    #[test]
    fn s5_the_limit_that_leaves_least_counts() {
        let machine = found([None, None], &[STATM, MEMINFO]);
        assert_eq!((machine.all, machine.by), (2048 * MIB, By::Machine));
        assert_eq!(machine.bytes_left(), 2028 * MIB);

        let space = found([Some(1024 * MIB), None], &[STATM, MEMINFO]);
        assert_eq!(
            (space.bytes_left(), space.by),
            (824 * MIB, By::AddressSpace)
        );
        let data = found([Some(1024 * MIB), Some(512 * MIB)], &[STATM, MEMINFO]);
        assert_eq!((data.bytes_left(), data.by), (462 * MIB, By::Data));
        // Nothing is known of this machine.
        assert!(found([None, None], &[]).bytes_left() > 1 << 40);
        assert_eq!(found([Some(1), None], &[STATM]).bytes_left(), 0);
    }

    #[test]
    fn s5_each_cgroup_from_the_own_one_up_limits() {
        let own = ("/proc/self/cgroup", "0::/system.slice/evenkeel.service\n");
        let inner = "/sys/fs/cgroup/system.slice/evenkeel.service/memory.max";
        let high = "/sys/fs/cgroup/system.slice/evenkeel.service/memory.high";
        let slice = "/sys/fs/cgroup/system.slice/memory.max";
        let two = found([None, None], &[STATM, MEMINFO, own, (inner, "536870912\n")]);
        assert_eq!((two.all, two.by), (512 * MIB, By::Cgroup));
        assert_eq!(two.bytes_left(), 492 * MIB);
        let more = [
            STATM,
            MEMINFO,
            own,
            (inner, "max\n"),
            (slice, "268435456\n"),
        ];
        assert_eq!(found([None, None], &more).all, 256 * MIB);
        let more = [STATM, MEMINFO, own, (inner, "max"), (high, "134217728\n")];
        assert_eq!(found([None, None], &more).all, 128 * MIB);
        let none = found([None, None], &[STATM, MEMINFO, own, (inner, "max\n")]);
        assert_eq!(none.by, By::Machine);

        // Version 1, in a container that sees its own limit at the root only.
        let own = (
            "/proc/self/cgroup",
            "5:cpu:/\n4:memory:/docker/0123\n0::/docker/0123\n",
        );
        let root = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        let one = found([None, None], &[STATM, MEMINFO, own, (root, "268435456\n")]);
        assert_eq!((one.all, one.by), (256 * MIB, By::Cgroup));
        let none = found(
            [None, None],
            &[STATM, MEMINFO, own, (root, "9223372036854771712\n")],
        );
        assert_eq!(none.by, By::Machine);
    }

    #[test]
    fn s5_clients_leave_a_reserve_of_memory() {
        let both = Users {
            negotiator: true,
            corba: true,
        };
        for left in [100, 256, 1024, 24 << 10, 4 << 20] {
            for users in [Users::default(), both] {
                let shares = Shares::new(bound(left * MIB), users);
                let clients = shares.clients as u64 * CLIENT_BYTES;
                let bulk = shares.buffers as u64 + shares.pipes as u64 * PIPE_BYTES;
                let taken = clients + bulk + shares.negotiator + shares.corba;
                assert!(taken + shares.reserve <= left * MIB, "{shares:?}");
                assert!(shares.reserve >= 48 * MIB, "{shares:?}");
                assert!(shares.clients > 100, "{shares:?}");
            }
        }
        let gib = Shares::new(bound(1024 * MIB), Users::default());
        assert!(gib.clients > 10_000, "{gib:?}");
    }

    #[test]
    fn s5_even_hardly_any_memory_serves_somebody() {
        for left in [0, MIB, 40 * MIB] {
            let shares = Shares::new(bound(left), Users::default());
            assert!(shares.clients >= 8, "{shares:?}");
        }
    }

    #[test]
    fn s5_this_process_has_a_bound() {
        let bound = MemoryBound::of_process();
        assert!(bound.used > MIB && bound.bytes_left() > MIB, "{bound:?}");
        assert!(Shares::of_process().corba > 0);
    }
}

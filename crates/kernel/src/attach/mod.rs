//! The responder's life: how it gets onto an interface, is changed, and leaves.
//!
//! `bpf/respond.bpf.c` is what answers. Programs and maps are held by files in a folder of a
//! BPF file system (they are *pinned*), so no process has to stay. To attach once more loads
//! the programs anew, with the maps that are there, and puts them in the place of the old ones
//! at once: keys, sources and targets change without a gap, and so does the version of
//! Evenkeel. Where the maps of an old version have another form, new ones take their place,
//! and only the counters and the numbers of readers begin anew.

mod config;
mod options;
mod pins;
mod place;
mod show;
mod trial;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, Object, OpenObject};
use rustix::fs::{FlockOperation, flock};

use crate::bpf::{self, BpfError, Programs, find_map};
use crate::host::{Host, MAX_HOSTS};
use crate::query::Key;
use crate::record::PORTS;

pub use crate::network::{BadNetwork, Network};
use config::{Config, write};
pub use options::{Mode, Options};
use pins::{LINK, PINNED, clear, pinned, remove_old_pins, unpin_maps};

/// Targets have numbers below this; 0 is the machine.
pub const TARGETS: u16 = 64;
/// The maps that forget what was not used for long, and how many entries each must hold.
const RECENT: [(&str, u32); 2] = [("evk_readers", 16_384), (KNOWN, 4096)];
/// The map with the sources that have asked before.
const KNOWN: &str = "evk_known";
/// Entries of such a map that a CPU takes at once and keeps for itself until it needs them
/// (`LOCAL_FREE_TARGET` in kernel/bpf/bpf_lru_list.c; fewer since Linux 6.16). While it has
/// them, others find the map full and forget what is in use.
const KEPT_PER_CPU: u32 = 128;
/// The map with what a timer has seen of each CPU of each target.
const GLANCES: &str = "evk_glances";

/// Counters, in the order of `enum evk_counter`: a name for scripts, and the meaning of each.
pub const COUNTERS: [(&str, &str); 13] = [
    ("answered", "queries that were answered"),
    (
        "source_not_allowed",
        "passed on: datagrams to the port from sources that are not allowed",
    ),
    (
        "no_query",
        "passed on: datagrams to the port that are no queries",
    ),
    (
        "wrong_version",
        "dropped: queries of another protocol version; update Evenkeel where it is older (balancer or \
         this machine), and run `evenkeel kernel attach` again",
    ),
    (
        "wrong_length",
        "dropped: datagrams that are too short, too long, or of another length than their header says",
    ),
    (
        "wrong_field",
        "dropped: answers instead of queries, or queries with a reserved field in use",
    ),
    ("unknown_key", "dropped: queries with an unknown key"),
    (
        "wrong_code",
        "dropped: queries with a wrong authentication code",
    ),
    (
        "replayed",
        "dropped: queries with a number that is not larger than the reader's last number",
    ),
    ("rate", "dropped: queries over the rate limit of the source"),
    (
        "unknown_target",
        "dropped: queries for a target that does not exist",
    ),
    ("gone", "dropped: queries for a cgroup that was removed"),
    (
        "other_host",
        "dropped: queries for another host; see --host of `evenkeel kernel attach`, and `host` of the monitor",
    ),
];

/// Status of the responder on an interface.
#[derive(Clone, Debug)]
pub struct Status {
    /// Way in which the responder receives packets.
    pub mode: Mode,
    /// The kernel's number of the program; none if it is no longer on the interface.
    pub program: Option<u32>,
    /// The UDP port.
    pub port: u16,
    /// Most answers per second and source; 0 is any number.
    pub rate: u64,
    /// TCP ports whose backlogs the responder tells.
    pub ports: Vec<u16>,
    /// Numbers of the keys. Secrets are never told.
    pub keys: Vec<u16>,
    /// Networks whose queries the responder answers.
    pub allow: Vec<Network>,
    /// Number of names of the responder.
    pub hosts: usize,
    /// Targets beside the machine: their numbers, and those of their cgroups (of the folder in
    /// the file system: its inode).
    pub cgroups: Vec<(u16, u64)>,
    /// Values of the counters, in the order of [`COUNTERS`].
    pub counters: [u64; COUNTERS.len()],
}

/// Returns the default folder for the pins of an interface's responder.
pub fn default_pin_folder(interface: &str) -> PathBuf {
    Path::new("/sys/fs/bpf/evenkeel").join(interface)
}

fn folder_of(interface: &str, folder: Option<&Path>) -> PathBuf {
    folder.map_or_else(|| self::default_pin_folder(interface), Path::to_owned)
}

fn index(interface: &str) -> Result<u32, BpfError> {
    nix::net::if_::if_nametoindex(interface).map_err(|error| {
        BpfError::File(format!(
            "no interface {interface}: {}",
            io::Error::from(error)
        ))
    })
}

/// The network namespace that this process is in.
fn namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/net").map_or(0, |stat| stat.st_ino)
}

/// Puts a responder on an interface, or changes the one that is there. Answers how it gets at
/// packets.
///
/// # Errors
///
/// What is missing, and how to get it; then what was there before is there still, unless
/// another [`Mode`] was wanted.
pub fn attach(options: &Options) -> Result<Mode, BpfError> {
    check(options)?;
    let interface = index(&options.interface)?;
    let folder = folder_of(&options.interface, options.folder.as_deref());
    bpf::pin_folder(&folder)?;
    let _lock = lock(&folder)?;
    let before = Config::of(&folder)?;
    if let Some(before) = &before
        && (before.interface, before.namespace) != (interface, namespace())
        && before.namespace != 0
    {
        if place::is_there(before, &folder) {
            return Err(BpfError::File(format!(
                "{} is used by the responder of another interface; detach that, or choose another \
                     folder with --pin",
                folder.display()
            )));
        } else {
            // Its interface is gone.
            clear(&folder)?
        }
    }
    let result = load(options, interface, &folder);
    if result.is_err() && before.is_none() {
        // Nothing of it stays. There is an error already.
        let _ = clear(&folder);
    }
    result
}

fn check(options: &Options) -> Result<(), BpfError> {
    let wrong = |what: String| Err(BpfError::File(what));
    if options.port == 0 {
        return wrong("port 0 is not valid".into());
    }
    if options.keys.is_empty() {
        return wrong("at least one key is needed".into());
    }
    if options.allow.is_empty() || options.allow.len() > 1024 {
        return wrong("1 to 1024 allowed sources are needed".into());
    }
    if options.hosts.is_empty() || options.hosts.len() > MAX_HOSTS {
        return wrong(format!("1 to {MAX_HOSTS} names of this machine are needed"));
    }
    if options.ports.len() > PORTS {
        return wrong(format!(
            "at most {PORTS} ports with listen backlogs are possible"
        ));
    }
    for (at, (number, path)) in options.cgroups.iter().enumerate() {
        if *number == 0 || *number >= TARGETS {
            return wrong(format!(
                "target {number} of {}: a number from 1 to {} is needed; 0 is the machine",
                path.display(),
                TARGETS - 1
            ));
        }
        if options
            .cgroups
            .iter()
            .take(at)
            .any(|(other, _)| other == number)
        {
            return wrong(format!("two cgroups are target {number}"));
        }
    }
    Ok(())
}

/// Two at a time would mix up what they hold.
fn lock(folder: &Path) -> Result<File, BpfError> {
    let cannot =
        |error: io::Error| BpfError::File(format!("cannot lock {}: {error}", folder.display()));
    let file = File::open(folder).map_err(cannot)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| cannot(error.into()))?;
    Ok(file)
}

fn open(folder: &Path) -> Result<OpenObject, BpfError> {
    let mut object = bpf::open_programs(crate::bpf_object!("respond.bpf.o"))?;
    let cpus = libbpf_rs::num_possible_cpus().map_err(bpf::failed_to("count CPUs"))?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some((_, held)) = RECENT.iter().find(|(known, _)| *known == name) {
            map.set_max_entries(entries(*held, cpus))
                .map_err(bpf::failed_to("size a BPF map"))?;
        }
        if name == GLANCES {
            // Two for each target and CPU.
            map.set_max_entries(2 * u32::from(TARGETS) * cpus as u32)
                .map_err(bpf::failed_to("size a BPF map"))?;
        }
        if PINNED.contains(&name.as_str()) {
            map.set_pin_path(folder.join(name))
                .map_err(bpf::failed_to("hold a BPF map"))?;
        }
    }
    Ok(object)
}

/// Returns the size that a map that forgets needs to hold that many entries, whatever its CPUs
/// keep.
fn entries(held: u32, cpus: usize) -> u32 {
    let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
    held.saturating_add(cpus.saturating_mul(KEPT_PER_CPU))
}

fn load(options: &Options, interface: u32, folder: &Path) -> Result<Mode, BpfError> {
    let before = Config::of(folder)?;
    if before.is_none() {
        // Those of another version, or of a start that did not succeed.
        unpin_maps(folder)?;
    }
    let load = || bpf::load_programs(|| open(folder), options.cgroups.len());
    let object = match load()? {
        Ok(object) => object,
        Err(error) if before.is_some() => {
            tracing::warn!("the existing maps cannot be reused ({error:#}): creating new ones");
            unpin_maps(folder)?;
            load()?.map_err(bpf::failed_to_load(Programs::Monitor))?
        }
        Err(error) => return Err(bpf::failed_to_load(Programs::Monitor)(error)),
    };
    let object = &object;
    bpf::discover(object, epoch(object)?)?;
    let mut config = Config {
        mode: before.as_ref().map_or(0, |before| before.mode),
        interface,
        made_qdisc: before.as_ref().is_some_and(|before| before.made_qdisc),
        priority: before.as_ref().map_or(0, |before| before.priority),
        handle: before.as_ref().map_or(0, |before| before.handle),
        port: options.port,
        ports: options.ports.clone(),
        interval_ns: match options.rate {
            0 => 0,
            rate => 1_000_000_000 / u64::from(rate),
        },
        // A tenth of a second's queries may come at once, and always some.
        burst_ns: match options.rate {
            0 => 0,
            rate => (1_000_000_000 / u64::from(rate) * 16).max(100_000_000),
        },
        namespace: namespace(),
        updates: before.as_ref().map_or(0, |before| before.updates),
    };
    secrets(object, &options.keys)?;
    hosts(object, &options.hosts)?;
    sources(object, &options.allow)?;
    targets(object, &options.cgroups)?;
    write(object, &config)?;
    trial::run(object, options)?;
    // The trial was no balancer's query: what a balancer calls this machine is not known yet.
    replace(object, KNOWN, &[])?;
    place::put(object, options, folder, &mut config, before.as_ref())?;
    remove_old_pins(folder)?;
    Mode::from_repr(config.mode).ok_or(BpfError::Lost(
        "the configuration of the responder names no mode",
    ))
}

/// Returns the epoch of the existing record, whose counters go on, or else a random epoch.
fn epoch(object: &Object) -> Result<u64, BpfError> {
    let facts = find_map(object, "evk_facts")?
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(bpf::failed_to("read a BPF map"))?;
    let before = facts.as_deref().and_then(<[u8]>::first_chunk);
    match before.map_or(0, |bytes| u64::from_ne_bytes(*bytes)) {
        0 => {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(
                |error| BpfError::File(format!("the system gives no random numbers: {error}")),
            )?;
            Ok(u64::from_ne_bytes(random).max(1))
        }
        epoch => Ok(epoch),
    }
}

/// Makes a map have these entries: what is new first, so that nothing that stays is ever away.
fn replace(object: &Object, name: &str, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), BpfError> {
    let map = find_map(object, name)?;
    for (key, value) in entries {
        map.update(key, value, MapFlags::ANY)
            .map_err(bpf::failed_to("write a BPF map"))?;
    }
    let old: Vec<Vec<u8>> = map
        .keys()
        .filter(|key| !entries.iter().any(|(kept, _)| kept == key))
        .collect();
    for key in old {
        map.delete(&key)
            .map_err(bpf::failed_to("write a BPF map"))?;
    }
    Ok(())
}

fn secrets(object: &Object, keys: &[Key]) -> Result<(), BpfError> {
    let entries: Vec<_> = keys
        .iter()
        .map(|key| {
            let number = u32::from(key.number).to_ne_bytes().to_vec();
            // Two words, little-endian: as the program reads them on such machines.
            (number, key.secret().to_vec())
        })
        .collect();
    replace(object, "evk_keys", &entries)
}

fn hosts(object: &Object, hosts: &[Host]) -> Result<(), BpfError> {
    let entries: Vec<_> = hosts
        .iter()
        .map(|host| {
            (
                host.id().to_ne_bytes().to_vec(),
                1u32.to_ne_bytes().to_vec(),
            )
        })
        .collect();
    replace(object, "evk_hosts", &entries)
}

fn sources(object: &Object, allow: &[Network]) -> Result<(), BpfError> {
    for (map, six) in [("evk_allow4", false), ("evk_allow6", true)] {
        let entries: Vec<_> = allow
            .iter()
            .filter(|network| network.is_ipv6() == six)
            .map(|network| (network.prefix(), 1u32.to_ne_bytes().to_vec()))
            .collect();
        replace(object, map, &entries)?;
    }
    Ok(())
}

fn request(target: u16, file: u32) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&u32::from(target).to_ne_bytes());
    out[4..].copy_from_slice(&file.to_ne_bytes());
    out
}

/// Numbers of attempts to start a timer for which there was no memory, and of checks that it has
/// run, and the pause between two of them.
const TIMER_TRIES: u32 = 200;
const TICK_TRIES: u32 = 2000;
const TIMER_PAUSE: Duration = Duration::from_millis(5);

/// Has `run` start the timer of a target. The kernel takes the timer's memory where it may not
/// wait, so on a machine that is busy there may be none for a moment.
fn start(
    context: &mut [u8; 8],
    mut run: impl FnMut(&mut [u8]) -> Result<i32, BpfError>,
) -> Result<(), BpfError> {
    for _ in 0..TIMER_TRIES {
        if run(context)? == 0 {
            return Ok(());
        }
        std::thread::sleep(TIMER_PAUSE);
    }
    Err(BpfError::Lost(
        "the BPF timer of the programs cannot be started",
    ))
}

/// Waits until the timer has made the first record of a target. Answers whether it did.
fn made(object: &Object, target: u16) -> Result<bool, BpfError> {
    let map = find_map(object, "evk_made")?;
    for _ in 0..TICK_TRIES {
        let value = map
            .lookup(&u32::from(target).to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf::failed_to("read a BPF map"))?;
        let generation = value.as_deref().and_then(<[u8]>::first_chunk);
        if generation.is_some_and(|bytes| u64::from_ne_bytes(*bytes) > 0) {
            return Ok(true);
        }
        std::thread::sleep(TIMER_PAUSE);
    }
    Ok(false)
}

fn targets(object: &Object, cgroups: &[(u16, PathBuf)]) -> Result<(), BpfError> {
    let there = cgroups_of(&find_map(object, "evk_targets")?)?;
    start(&mut request(0, 0), |context| {
        bpf::run(object, "evk_start", Some(context))
    })?;
    if !made(object, 0)? {
        return Err(BpfError::Lost("the BPF timer of the programs does not run"));
    }
    for (number, path) in cgroups {
        let cannot = |why: String| BpfError::File(format!("the cgroup {}: {why}", path.display()));
        let folder = File::open(path).map_err(|error| cannot(error.to_string()))?;
        let stat = rustix::fs::fstat(&folder).map_err(|error| cannot(error.to_string()))?;
        let same = there.contains(&(*number, stat.st_ino));
        let mut context = request(*number, folder.as_raw_fd().cast_unsigned());
        if !same {
            let found = bpf::check_found(bpf::run(object, "evk_group", Some(&mut context))?);
            found.map_err(|error| cannot(error.to_string()))?;
        }
        start(&mut context, |context| {
            bpf::run(object, "evk_start", Some(context))
        })?;
        if !made(object, *number)? {
            return Err(cannot("removed meanwhile".into()));
        }
    }
    for (number, _) in there {
        if !cgroups.iter().any(|(kept, _)| *kept == number) {
            bpf::check_found(bpf::run(object, "evk_stop", Some(&mut request(number, 0)))?)?;
        }
    }
    Ok(())
}

/// The targets that are cgroups, with their numbers in the file system.
fn cgroups_of(map: &impl MapCore) -> Result<Vec<(u16, u64)>, BpfError> {
    let mut found = Vec::new();
    for number in 1..TARGETS {
        let value = map
            .lookup(&u32::from(number).to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf::failed_to("read a BPF map"))?
            .unwrap_or_default();
        let scope = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let id = value.get(16..24).and_then(<[u8]>::first_chunk);
        if let (Some(2), Some(id)) = (scope, id) {
            found.push((number, u64::from_ne_bytes(*id)));
        }
    }
    Ok(found)
}

/// Takes the responder off an interface. Answers whether there was one.
///
/// # Errors
///
/// It cannot be taken off.
pub fn detach(interface: &str, folder: Option<&Path>) -> Result<bool, BpfError> {
    let folder = folder_of(interface, folder);
    if !folder.try_exists().unwrap_or(false) {
        return Ok(false);
    }
    let _lock = lock(&folder)?;
    let config = Config::of(&folder)?;
    if let Some(config) = &config {
        place::take(config, &folder)?;
    }
    let was = config.is_some() || folder.join(LINK).exists();
    clear(&folder)?;
    Ok(was)
}

/// Returns the status of the responder on an interface; none if there is no responder.
///
/// # Errors
///
/// It cannot be asked.
pub fn status(interface: &str, folder: Option<&Path>) -> Result<Option<Status>, BpfError> {
    let folder = folder_of(interface, folder);
    let Some(config) = Config::of(&folder)? else {
        return Ok(None);
    };
    let mut allow = Vec::new();
    for name in ["evk_allow4", "evk_allow6"] {
        allow.extend(
            pinned(&folder, name)?
                .keys()
                .filter_map(|key| Network::from_prefix(&key)),
        );
    }
    allow.sort();
    let mut keys: Vec<u16> = pinned(&folder, "evk_keys")?
        .keys()
        .filter_map(|key| Some(u32::from_ne_bytes(*key.first_chunk()?) as u16))
        .collect();
    keys.sort_unstable();
    let counters = pinned(&folder, "evk_counters")?;
    let mut counted = [0; COUNTERS.len()];
    for (number, counter) in counted.iter_mut().enumerate() {
        let cpus = counters
            .lookup_percpu(&(number as u32).to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf::failed_to("read a BPF map"))?;
        *counter = cpus
            .unwrap_or_default()
            .iter()
            .filter_map(|value| Some(u64::from_ne_bytes(*value.first_chunk()?)))
            .sum();
    }
    Ok(Some(Status {
        mode: Mode::from_repr(config.mode).ok_or(BpfError::Lost(
            "the configuration of the responder \
            names no mode",
        ))?,
        program: place::program_of(&config, &folder),
        port: config.port,
        rate: match config.interval_ns {
            0 => 0,
            interval => 1_000_000_000 / interval,
        },
        ports: config.ports,
        keys,
        allow,
        hosts: pinned(&folder, "evk_hosts")?.keys().count(),
        cgroups: cgroups_of(&pinned(&folder, "evk_targets")?)?,
        counters: counted,
    }))
}

#[cfg(test)]
mod tests;

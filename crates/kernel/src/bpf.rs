//! Common parts of all programs in the kernel: loading them, finding the kernel's data, and the
//! errors if that cannot be done.
//!
//! `bpf/fill.bpf.h` says how data is found; [`facts`] tells it what BTF knows: the offsets of
//! per-CPU variables.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use libbpf_rs::btf::types::{DataSec, Func, Var};
use libbpf_rs::btf::{Btf, BtfType};
use libbpf_rs::{
    ErrorKind, Map, MapCore, MapFlags, Object, ObjectBuilder, OpenObject, PrintLevel, Program,
    ProgramInput, ProgramMut,
};

use crate::record::MAX_CPUS;

/// The programs of a file in `bpf/`, as its compiled object is called.
#[macro_export]
#[doc(hidden)]
macro_rules! bpf_object {
    ($name:literal) => {{
        #[repr(align(8))]
        struct Aligned<T: ?Sized>(T);
        const OBJECT: &Aligned<[u8]> =
            &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name)));
        &OBJECT.0
    }};
}

/// Programs that are loaded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// Programs that forward connections and sessions.
    Forwarding,
    /// Programs of members that take packets out of tunnels.
    Tunnels,
    /// Programs that read the kernel's load.
    Monitor,
    /// Programs that make packets for measurements.
    Traffic,
}

impl Programs {
    /// Returns the name of the programs in a sentence.
    pub fn in_words(self) -> &'static str {
        match self {
            Programs::Forwarding => "the forwarding programs",
            Programs::Tunnels => "the programs for tunnels",
            Programs::Monitor => "the programs of the load monitor",
            Programs::Traffic => "the programs that make packets",
        }
    }

    /// Returns the oldest version of Linux for the programs. Those of 6.1 were not tried with an older one.
    pub fn oldest_linux(self) -> &'static str {
        match self {
            Programs::Forwarding | Programs::Tunnels | Programs::Traffic => "6.1",
            Programs::Monitor => "5.15",
        }
    }
}

/// Reason why programs in the kernel cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel has no description of its types.
    #[error(
        "this kernel has no BTF ({BTF}: {0}), which BPF programs need: the kernel needs \
         CONFIG_DEBUG_INFO_BTF=y, which the kernels of distributions have"
    )]
    NoBtf(io::Error),
    /// BTF without what is needed.
    #[error(
        "the BTF of this kernel has no {0}: the load monitor needs Linux 5.15 or newer, built with \
         pahole 1.16 or newer"
    )]
    Btf(String),
    /// No right to do it.
    #[error(
        "no right to {0}: this needs root, or the capabilities CAP_BPF, CAP_NET_ADMIN and \
         CAP_PERFMON (and no seccomp filter or lockdown that forbids bpf(2))"
    )]
    Rights(&'static str),
    /// The kernel refused to load programs.
    #[error(
        "this kernel refuses to load {}: {error}; these need Linux {} or newer with CONFIG_BPF_SYSCALL and \
         CONFIG_BPF_JIT",
        .programs.in_words(),
        .programs.oldest_linux()
    )]
    Load {
        /// Programs that the kernel refused.
        programs: Programs,
        /// Error of the kernel.
        error: String,
    },
    /// The kernel refused.
    #[error("this kernel refuses to {0}: {1}")]
    Refused(&'static str, String),
    /// Data of the kernel or of a program that is not as expected.
    #[error("the BPF programs fail: {0}")]
    Lost(&'static str),
    /// More CPUs than a record has room for.
    #[error("{0} CPUs, and a load record has room for {MAX_CPUS}")]
    Cpus(usize),
    /// A file or folder that is not as it should be.
    #[error("{0}")]
    File(String),
}

impl BpfError {
    /// True if the error is of a single entry or file, so that everything else can go on. Missing rights and lost maps are
    /// errors of everything.
    pub fn is_of_entry(&self) -> bool {
        matches!(self, BpfError::Refused(..) | BpfError::File(_))
    }

    /// Says which entry the kernel has refused.
    pub(crate) fn name_entry(self, entry: &impl fmt::Display) -> Self {
        match self {
            BpfError::Refused(what, text) => BpfError::Refused(what, format!("{entry}: {text}")),
            other => other,
        }
    }
}

/// Error of a call that handles many entries, and goes on after the error of one: the first error, or the first that is not
/// of an entry.
#[derive(Debug, Default)]
pub(crate) struct FirstError(Option<BpfError>);

impl FirstError {
    /// Keeps the error of a result. Returns the value, and `None` after an error.
    pub(crate) fn keep<T>(&mut self, result: Result<T, BpfError>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let is_worse = |first: &BpfError| first.is_of_entry() && !error.is_of_entry();
        if self.0.as_ref().is_none_or(is_worse) {
            self.0 = Some(error);
        }
        None
    }

    /// Returns the error, if there was one.
    pub(crate) fn finish(self) -> Result<(), BpfError> {
        self.0.map_or(Ok(()), Err)
    }
}

const BTF: &str = "/sys/kernel/btf/vmlinux";

/// A variable that a kernel has not.
const NOWHERE: u32 = u32::MAX;

/// Says why something about BPF failed.
pub fn failed_to(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> BpfError {
    move |error| {
        // The whole chain, in one line.
        let text = format!("{error:#}");
        match error.kind() {
            // EACCES is what the verifier says of a program: a fault, and not one of rights.
            ErrorKind::PermissionDenied if !text.contains("Permission denied") => {
                BpfError::Rights(what)
            }
            _ => BpfError::Refused(what, text),
        }
    }
}

/// Leads messages of libbpf to the log: libbpf writes to standard error otherwise, and its errors say the same.
pub(crate) fn lead_messages() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |level, text| {
        let text = text.trim_end();
        match level {
            PrintLevel::Debug => tracing::trace!("{text}"),
            _ => tracing::debug!("{text}"),
        }
    })));
}

/// Says why programs could not be loaded.
pub fn failed_to_load(programs: Programs) -> impl FnOnce(libbpf_rs::Error) -> BpfError {
    move |error| match failed_to("load BPF programs")(error) {
        BpfError::Refused(_, error) => BpfError::Load { programs, error },
        other => other,
    }
}

/// Opens an object of programs.
pub fn open_programs(object: &[u8]) -> Result<OpenObject, BpfError> {
    lead_messages();
    fs::metadata(BTF).map_err(BpfError::NoBtf)?;
    ObjectBuilder::default()
        .open_memory(object)
        .map_err(failed_to("open BPF programs"))
}

/// Loads programs that read the kernel's data. `open` opens them; they look at `cgroups` targets
/// beside the machine.
///
/// Reading is several times faster where a program may tell the verifier what lies at an address
/// (`bpf_rdonly_cast`, since Linux 6.2). Where the kernel has that but refuses to use it so, they
/// are loaded without.
pub fn load_programs(
    open: impl Fn() -> Result<OpenObject, BpfError>,
    cgroups: usize,
) -> Result<Result<Object, libbpf_rs::Error>, BpfError> {
    if has_rdonly_cast() {
        let mut object = open()?;
        configure_programs(&mut object, true, cgroups)?;
        match object.load() {
            Ok(object) => return Ok(Ok(object)),
            Err(error) => tracing::debug!("without direct reads of kernel data: {error:#}"),
        }
    }
    let mut object = open()?;
    configure_programs(&mut object, false, cgroups)?;
    Ok(object.load())
}

/// Returns true if this kernel has `bpf_rdonly_cast`.
pub fn has_rdonly_cast() -> bool {
    Btf::from_vmlinux().is_ok_and(|btf| btf.type_by_name::<Func<'_>>("bpf_rdonly_cast").is_some())
}

/// `struct evk_told`: what programs are told before they are loaded.
pub fn configure_programs(
    object: &mut OpenObject,
    direct: bool,
    cgroups: usize,
) -> Result<(), BpfError> {
    let mut maps = object.maps_mut();
    let told = maps.find(|map| map.name().to_string_lossy().ends_with(".rodata"));
    let mut told = told.ok_or(BpfError::Lost("a BPF map is missing"))?;
    let told = told.initial_value_mut().and_then(<[u8]>::first_chunk_mut);
    let told: &mut [u8; 8] = told.ok_or(BpfError::Lost("a map is too small"))?;
    let words = [u32::from(direct), cgroups as u32];
    for (place, word) in told.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(())
}

/// Makes a loaded object know where the kernel has its data: writes the facts and runs
/// `evk_discover`.
pub fn discover(object: &Object, epoch: u64) -> Result<(), BpfError> {
    let facts = facts(epoch)?;
    update_map(object, "evk_facts", &0u32.to_ne_bytes(), &facts)?;
    check_found(run(object, "evk_discover", None)?)
}

/// Translates the result of a program that looks for something: `enum evk_found`.
pub fn check_found(result: i32) -> Result<(), BpfError> {
    Err(BpfError::Lost(match result {
        0 => return Ok(()),
        2 => "the kernel has no task groups (CONFIG_FAIR_GROUP_SCHED)",
        3 => "the kernel's per-CPU variables are not where BTF says",
        4 => "this is not the folder of a cgroup",
        5 => {
            "this cgroup has no CPU controller: enable it by `+cpu` in its parent's \
              cgroup.subtree_control, or use its folder of the cpu hierarchy"
        }
        _ => "the BPF programs got no addresses of the kernel's data",
    }))
}

/// Finds a map by its name.
pub(crate) fn find_map<'a>(object: &'a Object, name: &str) -> Result<Map<'a>, BpfError> {
    let map = object.maps().find(|map| map.name() == name);
    map.ok_or(BpfError::Lost("a BPF map is missing"))
}

/// Finds a program by its name, to attach the program.
pub(crate) fn find_program<'a>(object: &'a Object, name: &str) -> Result<Program<'a>, BpfError> {
    let program = object.progs().find(|program| program.name() == name);
    program.ok_or(BpfError::Lost("a BPF program is missing"))
}

/// Finds a program by its name, to run the program.
pub(crate) fn find_program_mut<'a>(
    object: &'a Object,
    name: &str,
) -> Result<ProgramMut<'a>, BpfError> {
    let program = object.progs_mut().find(|program| program.name() == name);
    program.ok_or(BpfError::Lost("a BPF program is missing"))
}

/// Makes the place for filters of tc on an interface. Returns false if it was there.
pub(crate) fn create_clsact(interface: u32) -> Result<bool, BpfError> {
    let mut place = libbpf_sys::bpf_tc_hook {
        sz: size_of::<libbpf_sys::bpf_tc_hook>() as _,
        ifindex: interface.cast_signed(),
        attach_point: libbpf_sys::BPF_TC_INGRESS,
        ..Default::default()
    };
    // SAFETY: `place` is there until it returns.
    match unsafe { libbpf_sys::bpf_tc_hook_create(&mut place) } {
        0 => Ok(true),
        error if error == -libc::EEXIST => Ok(false),
        error => Err(refuse_with("make a clsact qdisc", error)),
    }
}

/// Makes an error of a number that libbpf returned.
pub(crate) fn refuse_with(what: &'static str, error: i32) -> BpfError {
    failed_to(what)(libbpf_rs::Error::from_raw_os_error(-error))
}

/// Runs a program that is not attached anywhere.
pub fn run(object: &Object, name: &str, context: Option<&mut [u8]>) -> Result<i32, BpfError> {
    let input = ProgramInput {
        context_in: context,
        ..ProgramInput::default()
    };
    let output = find_program_mut(object, name)?
        .test_run(input)
        .map_err(failed_to("run a BPF program"))?;
    Ok(output.return_value.cast_signed())
}

/// Writes an element of a map.
pub fn update_map(object: &Object, map: &str, key: &[u8], value: &[u8]) -> Result<(), BpfError> {
    find_map(object, map)?
        .update(key, value, MapFlags::ANY)
        .map_err(failed_to("write a BPF map"))
}

/// `struct evk_facts`, as far as the loader knows them.
fn facts(epoch: u64) -> Result<[u8; 184], BpfError> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(failed_to("count CPUs"))?;
    if cpus == 0 || cpus > MAX_CPUS {
        return Err(BpfError::Cpus(cpus));
    }
    let btf = Btf::from_vmlinux().map_err(failed_to("read the BTF of the kernel"))?;
    let section: DataSec<'_> = btf
        .type_by_name(".data..percpu")
        .ok_or_else(|| BpfError::Btf("per-CPU variables".into()))?;
    let offset = |name: &str| {
        section.iter().find_map(|entry| {
            let variable: Var<'_> = btf.type_by_id::<BtfType<'_>>(entry.ty)?.try_into().ok()?;
            (variable.name() == Some(OsStr::new(name))).then_some(entry.offset)
        })
    };
    let needed =
        |name: &str| offset(name).ok_or_else(|| BpfError::Btf(format!("the variable {name}")));
    let or_nowhere = |name: &str| offset(name).unwrap_or(NOWHERE);
    let pending = offset("__softirq_pending").or_else(|| offset("irq_stat"));

    let page_size = rustix::param::page_size() as u32;
    let words = [
        cpus as u32,
        page_size,
        needed("runqueues")?,
        or_nowhere("cpu_number"),
        or_nowhere("kernel_cpustat"),
        or_nowhere("kstat"),
        or_nowhere("softnet_data"),
        or_nowhere("tick_cpu_sched"),
        or_nowhere("ksoftirqd"),
        pending.unwrap_or(NOWHERE),
        or_nowhere("system_group_pcpu"),
    ];
    let mut out = [0; 184];
    let (head, rest) = out.split_at_mut(8);
    head.copy_from_slice(&epoch.to_ne_bytes());
    for (place, word) in rest.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(out)
}

/// True if this process is in a mount namespace that was made for it: what it mounts is gone when it ends.
fn mounts_end_with_process() -> bool {
    let parent = rustix::process::getppid().map(rustix::process::Pid::as_raw_nonzero);
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let parent = parent.and_then(|parent| of(&parent.to_string()));
    is_made_for(of("self"), of("1"), parent)
}

/// True if a mount namespace is not the parent's, and not known to be the first process's. A parent's that may not be
/// read counts as the same.
fn is_made_for<T: PartialEq>(own: Option<T>, first: Option<T>, parent: Option<T>) -> bool {
    own.is_some() && own != first && parent.is_some() && parent != own
}

/// Makes sure that a folder for pins is there, in a BPF file system.
pub fn pin_folder(folder: &Path) -> Result<(), BpfError> {
    let root = Path::new("/sys/fs/bpf");
    let is_bpf =
        |path: &Path| rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type as u64 == 0xcafe_4a11);
    if folder.starts_with(root) && !is_bpf(root) {
        use rustix::mount::{MountFlags, mount};
        if mounts_end_with_process() {
            return Err(BpfError::File(format!(
                "there is no BPF file system at {}, and a mount by this command would end with the \
                 command, as `ip netns exec` runs it in a mount namespace of its own: use `nsenter \
                 --net=/run/netns/NAME` instead, or mount the file system for all with `mount -t bpf \
                 bpf {0}`",
                root.display()
            )));
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("bpf", root, "bpf", flags, Some(c"mode=700")).map_err(|error| {
            BpfError::File(format!(
                "there is no BPF file system at {}, and it cannot be mounted: {error}; run \
                 `mount -t bpf bpf {0}`",
                root.display()
            ))
        })?;
    }
    fs::create_dir_all(folder)
        .map_err(|error| BpfError::File(format!("cannot make {}: {error}", folder.display())))?;
    if is_bpf(folder) {
        Ok(())
    } else {
        Err(BpfError::File(format!(
            "{} is not in a BPF file system, where programs are held without a process: choose \
             a folder below {}",
            folder.display(),
            root.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mission_d12_a_mount_namespace_that_ends_with_the_command_is_told_from_others() {
        for (own, first, parent, ends) in [
            (Some(1), Some(1), Some(1), false),
            // `ip netns exec`, or a service of systemd with files of its own.
            (Some(2), Some(1), Some(1), true),
            // A container, or a shell in such a namespace.
            (Some(2), Some(1), Some(2), false),
            (Some(2), Some(2), Some(1), false),
            // Nobody may say.
            (None, Some(1), Some(1), false),
            (Some(2), None, Some(1), true),
            (Some(2), Some(1), None, false),
        ] {
            assert_eq!(
                is_made_for(own, first, parent),
                ends,
                "{own:?} {first:?} {parent:?}"
            );
        }
        assert!(!is_made_for(Some(1), Some(1), None));
    }

    #[test]
    fn s41_the_error_of_refused_programs_names_the_version_that_these_need() {
        let refuse = |programs| {
            let error = libbpf_rs::Error::from_raw_os_error(libc::E2BIG);
            failed_to_load(programs)(error).to_string()
        };
        for (programs, name, version) in [
            (Programs::Forwarding, "forwarding", "6.1"),
            (Programs::Tunnels, "tunnels", "6.1"),
            (Programs::Monitor, "load monitor", "5.15"),
        ] {
            let error = refuse(programs);
            assert!(error.contains(name), "{error}");
            assert!(
                error.contains(&format!("need Linux {version} or newer")),
                "{error}"
            );
            assert!(error.contains("too long"), "{error}");
        }
        let rights = libbpf_rs::Error::from_raw_os_error(libc::EPERM);
        let error = failed_to_load(Programs::Forwarding)(rights);
        assert!(matches!(error, BpfError::Rights(_)), "{error}");
        // An error of a map says nothing of versions.
        let other = refuse_with("write a BPF map", -libc::E2BIG).to_string();
        assert!(!other.contains("Linux"), "{other}");
    }

    #[test]
    fn errors_of_everything_come_before_errors_of_entries() {
        let refused = |text: &str| BpfError::Refused("write a BPF map", text.into());
        let mut failure = FirstError::default();
        assert_eq!(failure.keep(Ok(7)), Some(7));
        failure.finish().unwrap();
        let mut failure = FirstError::default();
        for error in [refused("first"), refused("second")] {
            assert_eq!(failure.keep(Err::<(), _>(error)), None);
        }
        let kept = FirstError(failure.0.take()).finish().unwrap_err();
        assert!(kept.is_of_entry() && kept.to_string().contains("first"));
        let others = [
            refused("first"),
            BpfError::Rights("write a BPF map"),
            BpfError::Lost("a BPF map is missing"),
            BpfError::File("cannot remove it".into()),
        ];
        for error in others {
            failure.keep(Err::<(), _>(error));
        }
        let kept = failure.finish().unwrap_err();
        assert!(matches!(kept, BpfError::Rights(_)), "{kept}");
    }
}

//! Limits of the files that the process may use, by Landlock.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf, absolute};
use std::sync::OnceLock;

use evenkeel_config::Config;
use landlock::{
    ABI, Access, AccessFs, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, make_bitflags, path_beneath_rules,
};
use tracing::warn;

use super::kept::Kept;

/// The folders of the system that programs read: libraries, names, devices, what the kernel tells.
const SYSTEM: [&str; 9] = [
    "/etc", "/usr", "/lib", "/lib32", "/lib64", "/proc", "/sys", "/dev", "/run",
];

/// Folders in which the loader that starts this program is looked up.
const LOADERS: [&str; 4] = ["/lib", "/lib32", "/lib64", "/usr/lib"];

/// Folders of its own that a service manager names to a process, with colons between them.
const OF_SERVICE: [&str; 4] = [
    "STATE_DIRECTORY",
    "LOGS_DIRECTORY",
    "CACHE_DIRECTORY",
    "RUNTIME_DIRECTORY",
];

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
const RUN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{Execute | ReadFile});
const DEVICES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile});
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | MakeReg | RemoveFile | MakeDir | RemoveDir | MakeSock
});

/// Text for messages: the files that may be read since the start, or the user as whom the process
/// reads them.
pub(super) static LIMITS: OnceLock<String> = OnceLock::new();

/// Has the kernel limit the files that this thread, and all that it starts, may use. If the kernel
/// cannot, the log says so.
pub(super) fn limit_files(config: &Config, file: &Path, kept: &mut Kept) {
    let (reads, writes) = (read_folders(config, file), write_folders(config, file));
    match restrict(&reads, &writes) {
        Ok(RulesetStatus::NotEnforced) => kept.lacking.push(
            "the kernel does not limit the files of this process: it has no Landlock (Linux 5.13, CONFIG_SECURITY_LANDLOCK, \
             and landlock among lsm=)"
                .into(),
        ),
        Ok(_) => {
            let [reads, writes] = [&reads, &writes].map(|folders| {
                let shown: Vec<_> = folders.iter().map(|path| path.display().to_string()).collect();
                shown.join(" ")
            });
            let line = format!("by Landlock the process writes below {writes} only, and reads also below {} {reads}", SYSTEM.join(" "));
            let _ = LIMITS.set(format!("the process was started with these limits: {line}"));
            kept.told.push(line);
        }
        // After 16 upgrades nothing can be added; what was set before them holds.
        Err(error) => kept.lacking.push(format!("cannot limit the files of this process: {error}")),
    }
}

fn restrict(
    reads: &BTreeSet<PathBuf>,
    writes: &BTreeSet<PathBuf>,
) -> Result<RulesetStatus, RulesetError> {
    // Its successor, whatever file that is by then.
    let program = std::env::current_exe().ok();
    let programs = program.iter().filter_map(|program| program.parent());
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V3))?
        .create()?
        .add_rules(path_beneath_rules(SYSTEM, READ))?
        .add_rules(path_beneath_rules(["/dev"], DEVICES))?
        .add_rules(path_beneath_rules(LOADERS, RUN))?
        .add_rules(path_beneath_rules(programs, RUN))?
        .add_rules(path_beneath_rules(reads, READ))?
        .add_rules(path_beneath_rules(writes, WRITE))?
        .restrict_self()?;
    Ok(status.ruleset)
}

/// The folders of all files that are read, and of where links lead to.
fn read_folders(config: &Config, file: &Path) -> BTreeSet<PathBuf> {
    let mut files: Vec<PathBuf> = config.files().map(Path::to_owned).collect();
    files.push(file.to_owned());
    if let Some(acme) = &config.acme {
        let own = acme.ca_file.iter().chain(&acme.eab_key_file);
        files.extend(own.map(|file| file.path.clone()));
    }
    #[cfg(feature = "kubernetes")]
    files.extend(evenkeel_kubernetes::subsystem::credential_files(config));
    let lists = config.groups.iter().flat_map(|group| &group.members_files);
    files.extend(lists.map(PathBuf::from));
    folders_of(files)
}

fn write_folders(config: &Config, file: &Path) -> BTreeSet<PathBuf> {
    let mut files: Vec<PathBuf> = config
        .written_files()
        .map(|(_, path)| path.to_owned())
        .collect();
    // Changes by the admin API.
    files.extend(config.admin.is_some().then(|| file.to_owned()));
    let mut folders = folders_of(files);
    if let Some(acme) = &config.acme {
        // It is made if it is not there.
        let there = acme.folder.ancestors().find(|folder| folder.is_dir());
        folders.extend(there.map(Path::to_owned));
    }
    for name in OF_SERVICE {
        let named = std::env::var_os(name).unwrap_or_default();
        folders.extend(std::env::split_paths(&named).filter(|path| path.is_absolute()));
    }
    folders
}

fn folders_of(files: Vec<PathBuf>) -> BTreeSet<PathBuf> {
    let real: Vec<_> = files
        .iter()
        .filter_map(|file| file.canonicalize().ok())
        .collect();
    let named = files.iter().filter_map(|file| absolute(file).ok());
    let folders = named
        .chain(real)
        .filter_map(|file| Some(file.parent()?.to_owned()));
    folders.collect()
}

/// Returns the message of the system for a right that is missing.
pub(super) fn denied() -> String {
    io::Error::from(rustix::io::Errno::ACCESS).to_string()
}

/// Explains why a reload may have failed that says `error`: a file elsewhere than at the start.
pub(crate) fn explain_failure(error: &impl std::fmt::Display) {
    if let Some(limits) = LIMITS.get()
        && error.to_string().contains(&denied())
    {
        warn!("{limits}. To use a file elsewhere, restart the process");
    }
}

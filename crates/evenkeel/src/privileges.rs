//! Gives up rights that the process does not need: root's rights for the rights of a user with a few capabilities, and
//! access to files that it has no use for (Landlock).
//!
//! Capabilities and what Landlock forbids belong to each thread, and new threads inherit them. So this
//! happens while there is one thread, before anything listens, and the right to listen on low ports is
//! kept: a reload may want more of them. A program that this one starts, its successor, inherits all of it.

mod file_limits;
mod kept;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf, absolute};

use evenkeel_config::{Config, Protocol, Source};
use evenkeel_net::writable::{self, Unwritable};
use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid};
use rustix::fs::{Access as FileAccess, CWD, Mode, OFlags, ResolveFlags, access, openat2};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs,
};

pub(crate) use file_limits::explain_failure;
use file_limits::{LIMITS, denied, limit_files};
use kept::Kept;

use crate::failure::Failure;

/// Becomes the user that `config`, which was read from `file`, names, and gives up all rights that are not needed.
/// Without a user nothing changes.
pub(crate) fn give_up(config: &Config, file: &Path) -> Result<Kept, Failure> {
    if config.process.user.is_none() {
        return Ok(Kept::default());
    }
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(Failure::new(format!(
            "cannot give up rights: {threads} threads run already, and would keep theirs; please report this"
        )));
    }
    of_this_thread(config, file)
}

/// People who may write a configuration that is read as root.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// True if the user of `[process]` is among them.
    user: bool,
    /// Files and folders that others may write, each with who may.
    others: Vec<String>,
    /// Files and folders that a group may write: the group may be one of administrators.
    groups: Vec<String>,
}

impl Writers {
    /// Looks at the configuration in `file`, the files that it includes, and the folders above them. `user` is whom
    /// the process is to become.
    fn of(config: &Config, file: &Path, user: Option<(Uid, Gid)>) -> Self {
        let files = std::iter::once(file).chain(config.included.iter().map(|path| &**path));
        let mut places = BTreeSet::new();
        for file in files {
            let named = absolute(file).into_iter();
            let real = file.canonicalize().into_iter();
            for path in named.chain(real) {
                places.extend(path.ancestors().map(Path::to_owned));
            }
        }
        let mut writers = Writers::default();
        for place in places {
            if let Ok(about) = fs::metadata(&place) {
                writers.look(&place, &about, user);
            }
        }
        writers
    }

    fn look(&mut self, place: &Path, about: &fs::Metadata, user: Option<(Uid, Gid)>) {
        let is_user = |id: u32| user.is_some_and(|(uid, _)| uid.as_raw() == id);
        let is_group = |id: u32| user.is_some_and(|(_, gid)| gid.as_raw() == id);
        let shown = place.display();
        match about.uid() {
            0 => {}
            owner if is_user(owner) => self.user = true,
            owner => {
                let name = User::from_uid(Uid::from_raw(owner)).ok().flatten();
                let name = name.map_or_else(|| format!("user {owner}"), |user| user.name);
                self.others.push(format!("{shown} belongs to {name}"));
            }
        }
        // In such a folder nobody replaces the files of others.
        let is_sticky = about.is_dir() && about.mode() & 0o1000 != 0;
        if is_sticky {
            return;
        }
        if about.mode() & 0o002 != 0 {
            self.others.push(format!("everybody may write {shown}"));
        }
        match about.gid() {
            _ if about.mode() & 0o020 == 0 => {}
            0 => {}
            group if is_group(group) => self.user = true,
            group => {
                let name = Group::from_gid(Gid::from_raw(group)).ok().flatten();
                let name = name.map_or_else(|| group.to_string(), |group| group.name);
                self.groups
                    .push(format!("the group {name} may write {shown}"));
            }
        }
    }

    /// Complaint about reading the configuration as root; nothing if only root may write it, or the user that the
    /// process becomes.
    fn refusal(&self) -> Option<String> {
        let (first, more) = self.others.split_first()?;
        let more = match more.len() {
            0 => String::new(),
            count => format!(" (and {count} more)"),
        };
        Some(format!(
            "{first}{more}: the balancer was started as root, and whoever may write there would decide what it does as root. Give the file or folder to root (chown root:, chmod go-w), name its owner as `user` in [process], or start the balancer as that user; if that is meant, run it with --allow-root"
        ))
    }
}

/// Refuses to run as root by a configuration that another user may write: an attacker who breaks into the process, as
/// the user that it has become, must not be root after the next start. `allowed` is `--allow-root`.
pub(crate) fn check_writers(config: &Config, file: &Path, allowed: bool) -> Result<(), Failure> {
    match warnings_of_writers(config, file) {
        Some(refusal) if !allowed && is_real_root() => Err(Failure::new(refusal)),
        _ => Ok(()),
    }
}

/// Complaint about who may write the configuration, if this process is root.
pub(crate) fn warnings_of_writers(config: &Config, file: &Path) -> Option<String> {
    if !geteuid().is_root() {
        return None;
    }
    let user = config.process.user.as_ref();
    let user = user.and_then(|_| Identity::find(config).ok());
    let writers = Writers::of(config, file, user.as_ref().map(|user| (user.uid, user.gid)));
    let of_group = || {
        let user = user.filter(|user| writers.user && !user.is_in_group())?;
        Some(format!(
            "process.group: {} may write the configuration, but is not in the group {}, whose rights it would have after \
             the next start: give the configuration to root, or remove `group`",
            user.name,
            user.group_name()
        ))
    };
    writers.refusal().or_else(of_group)
}

/// True if root is that of the machine, and not of a user's own namespace, where files of others belong to `nobody`.
fn is_real_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn of_this_thread(config: &Config, file: &Path) -> Result<Kept, Failure> {
    let mut kept = Kept::default();
    let wanted = Identity::find(config)?;
    let cannot = |what: &str, error: io::Error| {
        let user = &wanted.name;
        Failure::new(format!("process.user: cannot {what} for {user}: {error}"))
    };
    let keep = capabilities_to_keep(config)
        .map_err(|error| cannot("read the capabilities of this process", error))?;
    if geteuid().is_root() {
        let writers = Writers::of(config, file, Some((wanted.uid, wanted.gid)));
        kept.lacking.extend(writers.groups.iter().map(|line| {
            format!("{line}: its members decide what this program does when root starts it")
        }));
        // Whoever may write the configuration could name any file of root's there.
        if writers.user || !writers.others.is_empty() {
            kept.told.push(format!(
                "files of root are not given to {}, who may write the configuration",
                wanted.name
            ));
        } else {
            own(config, &wanted, &mut kept);
        }
        // Without CAP_SETPCAP, in some containers, there it stays as it is; no_new_privs has the same effect.
        for one in CapabilitySet::all().difference(keep).iter() {
            let _ = remove_capability_from_bounding_set(one);
        }
        wanted.become_it()?;
    } else if geteuid() != wanted.uid || config.process.group.is_some() && getegid() != wanted.gid {
        return Err(Failure::new(format!(
            "process.user: this process runs as the user {} with the group {} and has no right to become {}: start it as \
             root, or as that user (systemd: User= and Group=), or remove `user` from [process]",
            geteuid(),
            getegid(),
            wanted.name
        )));
    }
    // In its place are exactly these, for programs that it starts as well: its successor at an upgrade.
    let sets = CapabilitySets {
        effective: keep,
        permitted: keep,
        inheritable: keep,
    };
    set_capabilities(None, sets)
        .and_then(|()| set_no_new_privs(true))
        .map_err(|error| cannot("give up capabilities", error.into()))?;
    let _ = clear_ambient_capability_set();
    for one in keep.iter() {
        if let Err(error) = configure_capability_in_ambient_set(one, true) {
            let name = names(one);
            let line =
                format!("{name} will be lost at an upgrade, as it cannot be made ambient: {error}");
            kept.lacking.push(line);
        }
    }
    // Otherwise what /proc/self has of open files is root's, as the user has changed.
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    if !wanted.uid.is_root() && nix::unistd::setuid(Uid::from_raw(0)).is_ok() {
        return Err(Failure::new(
            "process.user: the process could still become root, so it does not start",
        ));
    }
    kept.told.push(format!(
        "the process runs as {} (user {}, group {}) with {}",
        wanted.name,
        geteuid(),
        getegid(),
        names(keep)
    ));
    accessible(config, file, &wanted)?;
    if config.process.landlock {
        limit_files(config, file, &mut kept);
    } else {
        let _ = LIMITS.set(format!("the process runs as {}", wanted.name));
    }
    Ok(kept)
}

/// Identity that the process is to have.
struct Identity {
    name: String,
    uid: Uid,
    gid: Gid,
    /// True if the system knows the user, and so the user's groups.
    is_known: bool,
}

impl Identity {
    fn find(config: &Config) -> Result<Self, Failure> {
        let name = config.process.user.clone().unwrap_or_default();
        let number = name.parse::<u32>().ok();
        let user = match number {
            Some(number) => User::from_uid(Uid::from_raw(number)),
            None => User::from_name(&name),
        };
        let failed = |key: &str, name: &str, error: nix::Error| {
            Failure::new(format!("process.{key}: cannot look up {name:?}: {error}"))
        };
        let user = user.map_err(|error| failed("user", &name, error))?;
        let Some(uid) = user
            .as_ref()
            .map(|user| user.uid)
            .or(number.map(Uid::from_raw))
        else {
            return Err(Failure::new(format!(
                "process.user: there is no user {name:?} on this machine: make one, as with \
                 useradd --system --no-create-home --shell /usr/sbin/nologin {name}"
            )));
        };
        let gid = match &config.process.group {
            None => user.as_ref().map(|user| user.gid),
            Some(group) => match group.parse::<u32>() {
                Ok(number) => Some(Gid::from_raw(number)),
                Err(_) => {
                    let known = Group::from_name(group);
                    let known = known.map_err(|error| failed("group", group, error))?;
                    let gid = known.map(|group| group.gid);
                    let missing = || {
                        Failure::new(format!(
                            "process.group: there is no group {group:?} on this machine: make one, as with \
                             groupadd --system {group}"
                        ))
                    };
                    Some(gid.ok_or_else(missing)?)
                }
            },
        };
        let Some(gid) = gid else {
            return Err(Failure::new(format!(
                "process.user: the system does not know the user {name}, and so not its group: name one with `group` \
                 in [process]"
            )));
        };
        Ok(Identity {
            is_known: user.is_some(),
            name: user.map_or(name, |user| user.name),
            uid,
            gid,
        })
    }

    /// Name of the group, or its number if it has none.
    fn group_name(&self) -> String {
        let group = Group::from_gid(self.gid).ok().flatten();
        group.map_or_else(|| self.gid.to_string(), |group| group.name)
    }

    /// True if the user is in the group anyway.
    fn is_in_group(&self) -> bool {
        let user = User::from_uid(self.uid).ok().flatten();
        user.is_some_and(|user| {
            let name = std::ffi::CString::new(user.name).unwrap_or_default();
            let groups = nix::unistd::getgrouplist(&name, user.gid);
            groups.is_ok_and(|groups| groups.contains(&self.gid))
        })
    }

    /// Changes user and groups, and keeps what capabilities are permitted.
    fn become_it(&self) -> Result<(), Failure> {
        let groups = || {
            if !self.is_known {
                return nix::unistd::setgroups(&[self.gid]);
            }
            let name =
                std::ffi::CString::new(self.name.as_str()).map_err(|_| nix::Error::EINVAL)?;
            nix::unistd::initgroups(&name, self.gid)
        };
        let (uid, gid) = (self.uid, self.gid);
        let changed = set_keep_capabilities(true)
            .map_err(io::Error::from)
            .and_then(|()| groups().map_err(io::Error::from))
            .and_then(|()| nix::unistd::setresgid(gid, gid, gid).map_err(io::Error::from))
            .and_then(|()| nix::unistd::setresuid(uid, uid, uid).map_err(io::Error::from))
            .and_then(|()| set_keep_capabilities(false).map_err(io::Error::from));
        changed.map_err(|error| {
            Failure::new(format!(
                "process.user: cannot become {}: {error}; root needs CAP_SETUID and CAP_SETGID for that, which a container \
                 or CapabilityBoundingSet= of the service may lack",
                self.name
            ))
        })
    }
}

/// Returns the capabilities that the process has and needs later.
fn capabilities_to_keep(config: &Config) -> io::Result<CapabilitySet> {
    let has = capabilities(None)?.permitted;
    let mut needs = CapabilitySet::NET_BIND_SERVICE;
    if config
        .groups
        .iter()
        .any(|group| group.source == Source::Client)
    {
        // Either does; this one allows less.
        needs |= match has.contains(CapabilitySet::NET_RAW) {
            true => CapabilitySet::NET_RAW,
            false => CapabilitySet::NET_ADMIN,
        };
    }
    // Errors of ICMP to clients.
    if config
        .rules
        .iter()
        .any(|rule| rule.protocol == Protocol::Udp)
    {
        needs |= CapabilitySet::NET_RAW;
    }
    Ok(has & needs)
}

fn names(capabilities: CapabilitySet) -> String {
    let names: Vec<String> = capabilities
        .iter_names()
        .map(|(name, _)| format!("CAP_{name}"))
        .collect();
    match names.is_empty() {
        true => "no capabilities".into(),
        false => names.join(" and "),
    }
}

/// Files that root may have written before, and that the user is to have: logs, state, certificates.
fn owned_files(config: &Config) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = config
        .written_files()
        .map(|(_, path)| path.to_owned())
        .collect();
    if let Some(state) = config
        .corba
        .iter()
        .find_map(|corba| corba.state_file.as_ref())
    {
        let beside = state.parent().unwrap_or(Path::new("."));
        let name = state.file_name().unwrap_or_default().to_string_lossy();
        // Its journal and its lock.
        let all = entries(beside).filter(|path| {
            let own = path.file_name().unwrap_or_default().to_string_lossy();
            own.strip_prefix(&*name)
                .is_some_and(|rest| rest.starts_with('.'))
        });
        files.extend(all);
    }
    if let Some(acme) = &config.acme {
        files.extend(entries(&acme.folder));
        files.push(acme.folder.clone());
    }
    files
}

/// Gives the user what root has written before.
fn own(config: &Config, to: &Identity, kept: &mut Kept) {
    for file in owned_files(config) {
        match give(&file, to) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => kept.lacking.push(format!(
                "cannot give {} to {}: {error}",
                file.display(),
                to.name
            )),
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

/// Makes a user the owner of a file or folder that is root's.
fn give(path: &Path, to: &Identity) -> io::Result<()> {
    match open_to_give(path, to)? {
        Some(file) => fchown(&file, Some(to.uid.as_raw()), Some(to.gid.as_raw())),
        None => Ok(()),
    }
}

/// Opens a file or folder of root's that a user is to own; `None` if it is to stay as it is. The folder may belong to
/// that user, who must not be able to have something else changed in its place: so no symbolic link on the way is
/// followed, and no file is given away that has another name.
fn open_to_give(path: &Path, to: &Identity) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat2(
        CWD,
        absolute(path)?,
        flags,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    );
    let file = match file {
        // A socket that is listened on.
        Err(rustix::io::Errno::NXIO) => return Ok(None),
        file => File::from(file?),
    };
    let about = file.metadata()?;
    if about.uid() != 0 || to.uid.is_root() || !(about.is_dir() || about.is_file()) {
        return Ok(None);
    }
    if about.is_file() && about.nlink() != 1 {
        return Err(io::Error::other("the file has several names (hard links)"));
    }
    Ok(Some(file))
}

/// Looks at what the user of `[process]` may not do, as a start would. If this process is root's, it becomes that user for
/// good. Without a user there is nothing to look at.
///
/// # Errors
///
/// A reason why that cannot be found out on this machine.
pub(crate) fn check_user(config: &Config, file: &Path) -> Result<Vec<String>, String> {
    if config.process.user.is_none() {
        return Ok(Vec::new());
    }
    let who = Identity::find(config).map_err(|failure| failure.message)?;
    let mut given = BTreeSet::new();
    if geteuid().is_root() {
        let writers = Writers::of(config, file, Some((who.uid, who.gid)));
        if !writers.user && writers.others.is_empty() {
            let is_given = |path: &PathBuf| matches!(open_to_give(path, &who), Ok(Some(_)));
            given.extend(owned_files(config).into_iter().filter(is_given));
        }
        who.become_it().map_err(|failure| failure.message)?;
    } else if geteuid() != who.uid {
        return Ok(Vec::new());
    }
    let refused = refused_files(config, file, &who, &given);
    Ok(refused
        .into_iter()
        .map(|line| format!("process.user: {line}"))
        .collect())
}

/// Finds out whether the user may use the files that the configuration names: at once, and not at the next
/// reload.
fn accessible(config: &Config, file: &Path, who: &Identity) -> Result<(), Failure> {
    let refused = refused_files(config, file, who, &BTreeSet::new());
    match refused.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "process.user: rights are missing\n  {}",
            refused.join("\n  ")
        ))),
    }
}

/// Returns complaints about files that this process, which has the rights of `who`, may not use;
/// but for the files that a start gives to that user. Each complaint has the command that mends the
/// file.
fn refused_files(
    config: &Config,
    file: &Path,
    who: &Identity,
    given: &BTreeSet<PathBuf>,
) -> Vec<String> {
    let name = &who.name;
    let mut refused = Vec::new();
    for path in std::iter::once(file).chain(config.files()) {
        if let Err(error) = File::open(path)
            && error.kind() == io::ErrorKind::PermissionDenied
            && !given.contains(path)
        {
            let command = command_to_read(path, &who.group_name());
            refused.push(format!(
                "{}: {name} may not read it: run `{command}`",
                path.display()
            ));
        }
    }
    for (key, path) in config.written_files() {
        if let Err(error) = writable::check_path(path, key)
            && error.to_string().contains(&denied())
            && !given.contains(path)
        {
            let place = match &error {
                Unwritable::File { path, .. } => path,
                Unwritable::Folder { folder, .. } => folder,
            };
            refused.push(format!(
                "{error}: {name} must be allowed to write there: run `chown {name} {}`",
                quoted(place)
            ));
        }
    }
    refused.sort();
    refused.dedup();
    refused
}

/// The command that lets a group read a file, and enter the folders above it that this process cannot enter.
fn command_to_read(path: &Path, group: &str) -> String {
    let real = path.canonicalize().ok();
    let real = real
        .or_else(|| absolute(path).ok())
        .unwrap_or_else(|| path.to_owned());
    let mut steps = Vec::new();
    let folders = real.ancestors().skip(1).collect::<Vec<_>>();
    for folder in folders.into_iter().rev() {
        if access(folder, FileAccess::EXEC_OK).is_err() {
            let folder = quoted(folder);
            steps.push(format!("chgrp {group} {folder} && chmod g+x {folder}"));
        }
    }
    let file = quoted(path);
    steps.push(format!("chgrp {group} {file} && chmod g+r {file}"));
    steps.join(" && ")
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let shown = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    match shown.chars().all(is_plain) {
        true => shown,
        false => format!("'{}'", shown.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use super::*;

    /// A test that runs as a process of its own: with `nobody`'s rights the other tests could not run.
    const INNER: &str = "privileges::tests::inner";
    const FOLDER: &str = "EVENKEEL_TEST_PRIVILEGES";

    fn run(program: &Path, test: &str, folder: &Path) -> (bool, String) {
        let mut command = Command::new(program);
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        let output = command.env(FOLDER, folder).output();
        match output {
            Ok(output) => {
                let said = [&output.stdout[..], &output.stderr].concat();
                (output.status.success(), String::from_utf8(said).unwrap())
            }
            Err(error) => (false, error.to_string()),
        }
    }

    /// A program that the process starts has the same rights: its successor at an upgrade needs
    /// them. Other programs are not started.
    #[test]
    fn rights_last_over_the_start_of_a_program() {
        if !geteuid().is_root() {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: rights_last_over_the_start_of_a_program: only root gives up rights"
            );
            return;
        }
        let folder = std::env::temp_dir().join(format!("evenkeel-rights-{}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::create_dir_all(folder.join("other")).unwrap();
        fs::create_dir_all(folder.join("secret")).unwrap();
        let all =
            |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["", "bin", "other", "secret"] {
            all(&folder.join(name));
        }
        // A place where every user may start the program.
        let program = folder.join("bin/program");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        fs::copy("/bin/true", folder.join("other/true")).unwrap();
        fs::write(folder.join("secret/file"), "x").unwrap();
        fs::write(folder.join("evenkeel.toml"), "").unwrap();
        let (passed, said) = run(&program, INNER, &folder);
        fs::remove_dir_all(&folder).unwrap();
        assert!(passed && said.contains("1 passed"), "{said}");
        if said.contains("no Landlock") {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: rights_last_over_the_start_of_a_program, in part: this kernel has no Landlock"
            );
        }
    }

    #[test]
    #[ignore = "is started by the test above"]
    fn inner() {
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        let text = "[process]\nuser = \"nobody\"\n";
        let file = folder.join("evenkeel.toml");
        let config = evenkeel_config::parse(&file.display().to_string(), text).unwrap();
        let kept = of_this_thread(&config, &file).unwrap();
        println!("{kept:?}");
        let program = std::env::current_exe().unwrap();
        let (passed, said) = run(&program, "privileges::tests::successor", &folder);
        assert!(passed && said.contains("1 passed"), "{said}");
        if kept.lacking.iter().any(|line| line.contains("no Landlock")) {
            return;
        }
        let refused = Command::new(folder.join("other/true"))
            .status()
            .unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        // The folder of the configuration is read with all that is in it; its neighbours are not.
        assert!(File::open(folder.join("secret/file")).is_ok());
        let neighbour = folder.parent().unwrap();
        let refused = fs::read_dir(neighbour).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let refused = File::create("/dev/shm/evenkeel-rights").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        fs::write("/dev/null", "x").unwrap();
    }

    #[test]
    #[ignore = "is started by the test above"]
    fn successor() {
        assert_eq!(geteuid(), User::from_name("nobody").unwrap().unwrap().uid);
        let sets = capabilities(None).unwrap();
        assert_eq!(sets.effective, CapabilitySet::NET_BIND_SERVICE);
        assert_eq!(sets.permitted, CapabilitySet::NET_BIND_SERVICE);
        // It gives up what there is once more, as it reads the same configuration.
        let text = "[process]\nuser = \"nobody\"\n";
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        let file = folder.join("evenkeel.toml");
        let config = evenkeel_config::parse(&file.display().to_string(), text).unwrap();
        of_this_thread(&config, &file).unwrap();
        assert_eq!(capabilities(None).unwrap(), sets);
    }

    #[test]
    fn n9_root_reads_no_configuration_that_somebody_else_may_write() {
        if !geteuid().is_root() {
            eprintln!("SKIPPED: only root gives files away");
            return;
        }
        let folder = std::env::temp_dir().join(format!("evenkeel-writers-{}", std::process::id()));
        let parts = folder.join("conf.d");
        fs::create_dir_all(&parts).unwrap();
        let (file, part) = (folder.join("evenkeel.toml"), parts.join("a.toml"));
        fs::write(&file, "").unwrap();
        fs::write(&part, "").unwrap();
        let config = |text: &str| {
            let text = format!("include = [\"conf.d/*.toml\"]\n{text}");
            evenkeel_config::parse(&file.display().to_string(), &text).unwrap()
        };
        let refusal = |text: &str| warnings_of_writers(&config(text), &file);
        let own =
            |path: &Path, uid: u32| std::os::unix::fs::chown(path, Some(uid), Some(0)).unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
        };
        for path in [&folder, &parts] {
            mode(path, 0o755);
        }
        let (none, nobody, daemon) = (
            "",
            "[process]\nuser = \"nobody\"\n",
            "[process]\nuser = \"daemon\"\n",
        );
        assert_eq!(refusal(none), None);
        for place in [&folder, &file, &parts, &part] {
            own(place, 65534);
            assert!(refusal(none).unwrap().contains("belongs to nobody"));
            assert!(refusal(daemon).is_some());
            assert_eq!(refusal(nobody), None);
            own(place, 0);
            let before = fs::metadata(place).unwrap().permissions().mode();
            mode(place, before | 0o002);
            assert!(refusal(nobody).unwrap().contains("everybody may write"));
            mode(place, before);
        }
        let user = Some((Uid::from_raw(65534), Gid::from_raw(65534)));
        own(&file, 65534);
        let group = "[process]\nuser = \"nobody\"\ngroup = \"root\"\n";
        assert!(refusal(group).unwrap().contains("process.group"));
        assert!(Writers::of(&config(nobody), &file, user).user);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn d5_a_path_is_quoted_for_a_shell() {
        for (path, quoted_path) in [
            ("/etc/evenkeel/www.key", "/etc/evenkeel/www.key"),
            ("/a b", "'/a b'"),
            ("/it's; rm", r"'/it'\''s; rm'"),
        ] {
            assert_eq!(quoted(Path::new(path)), quoted_path);
        }
    }

    #[test]
    fn what_root_has_written_is_given_away_but_nothing_behind_a_link() {
        if !geteuid().is_root() {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: what_root_has_written_is_given_away_but_nothing_behind_a_link: only root gives files away"
            );
            return;
        }
        let folder = std::env::temp_dir().join(format!("evenkeel-give-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let to = Identity {
            name: "nobody".into(),
            uid: Uid::from_raw(65534),
            gid: Gid::from_raw(65534),
            is_known: true,
        };
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        let file = folder.join("file");
        fs::write(&file, "").unwrap();
        give(&file, &to).unwrap();
        assert_eq!(owner(&file), 65534);
        let (target, link, twin) = (
            folder.join("target"),
            folder.join("link"),
            folder.join("twin"),
        );
        fs::write(&target, "").unwrap();
        symlink(&target, &link).unwrap();
        assert!(give(&link, &to).is_err());
        fs::hard_link(&target, &twin).unwrap();
        assert!(
            give(&twin, &to)
                .unwrap_err()
                .to_string()
                .contains("several names")
        );
        assert_eq!(owner(&target), 0);
        // A folder on the way that is a link.
        fs::create_dir(folder.join("real")).unwrap();
        fs::write(folder.join("real/file"), "").unwrap();
        symlink(folder.join("real"), folder.join("way")).unwrap();
        assert!(give(&folder.join("way/file"), &to).is_err());
        assert_eq!(owner(&folder.join("real/file")), 0);
        let missing = give(&folder.join("missing"), &to).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&folder).unwrap();
    }
}

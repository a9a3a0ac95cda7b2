//! Addresses of rules that a member receives packets for (`return_path = "direct"`), beside the balancer, which has them.
//!
//! An address is on the loopback interface, with the scope of the machine, so the machine answers nobody who looks for
//! the address in its networks: for IPv6 never, and for IPv4 with `arp_ignore`, which leaves other addresses as they are.
//! With `arp_announce` the machine looks for others under its own addresses only. Both settings are as before when the
//! last address is gone; a file in `/run` remembers them, which is gone with the addresses when the machine starts anew.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::ifaddrs::getifaddrs;
use rustix::fs::{FlockOperation, flock};

use crate::netlink;

/// Folder of the files that remember what was changed.
const FOLDER: &str = "/run/evenkeel-receive";

/// Folder of the settings of interfaces.
const SETTINGS: &str = "/proc/sys/net/ipv4/conf";

/// Interface with the addresses.
const LOOPBACK: &str = "lo";

/// Reason why this machine does not receive packets for an address.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The address is none that a rule can have.
    #[error("{0} is no address of one machine: name the address in `listen` of the rule")]
    Unusable(IpAddr),
    /// Another interface has the address.
    #[error(
        "{0} is an address of {1}, so this machine answers others who look for it: only the balancer may have the address \
         there. Remove it from {1}"
    )]
    OnInterface(IpAddr, String),
    /// Address for which this machine receives no packets.
    #[error("{0} was not added by `evenkeel kernel attach --receive`, so it stays")]
    Unknown(IpAddr),
    /// The kernel does not change an address.
    #[error("cannot change the address {0} of {LOOPBACK}: {1}{advice}", advice = advise(.1))]
    Address(IpAddr, io::Error),
    /// A file cannot be read or written.
    #[error("{path}: {1}{advice}", path = .0.display(), advice = advise(.1))]
    File(PathBuf, io::Error),
    /// The interfaces are not known.
    #[error("cannot list interfaces: {0}")]
    Interfaces(io::Error),
}

/// Says what to do if a right is missing.
fn advise(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; this needs root",
        _ => "",
    }
}

/// Setting of all interfaces that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    name: String,
    before: String,
    now: String,
}

impl Setting {
    fn path(&self) -> PathBuf {
        find_setting("all", &self.name)
    }
}

/// Changes of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Changes {
    settings: Vec<Setting>,
    addresses: BTreeSet<IpAddr>,
}

impl Changes {
    /// Reads changes; lines that are not known are left out.
    fn read(text: &str) -> Self {
        let mut changes = Changes::default();
        for line in text.lines() {
            match *line.split(' ').collect::<Vec<_>>() {
                ["address", ip] => changes.addresses.extend(ip.parse::<IpAddr>().ok()),
                [
                    "setting",
                    name @ ("arp_ignore" | "arp_announce"),
                    before,
                    now,
                ] => {
                    let [name, before, now] = [name, before, now].map(str::to_owned);
                    changes.settings.push(Setting { name, before, now });
                }
                _ => {}
            }
        }
        changes
    }

    fn write(&self) -> String {
        let settings = self.settings.iter().map(|setting| {
            let Setting { name, before, now } = setting;
            format!("setting {name} {before} {now}\n")
        });
        let addresses = self.addresses.iter().map(|ip| format!("address {ip}\n"));
        settings.chain(addresses).collect()
    }
}

/// File with the changes in the network namespace of this thread, held while it is here.
#[derive(Debug)]
struct Memory {
    path: PathBuf,
    /// Keeps other commands away.
    _lock: File,
}

impl Memory {
    fn open() -> Result<Self, ReceiveError> {
        let folder = Path::new(FOLDER);
        let failed = |error: io::Error| ReceiveError::File(folder.into(), error);
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = File::open(folder).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let namespace = rustix::fs::stat("/proc/thread-self/ns/net").map_or(0, |stat| stat.st_ino);
        Ok(Memory {
            path: folder.join(namespace.to_string()),
            _lock: lock,
        })
    }

    /// Returns the changes that still hold: a namespace before may have had the number of this one.
    fn read(&self, loopback: &BTreeSet<IpAddr>) -> Result<Changes, ReceiveError> {
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|error| ReceiveError::File(self.path.clone(), error))?,
        };
        let mut changes = Changes::read(&text);
        changes.addresses.retain(|ip| loopback.contains(ip));
        if changes.addresses.is_empty() {
            changes.settings.retain(|setting| {
                fs::read_to_string(setting.path()).is_ok_and(|now| now.trim() == setting.now)
            });
        }
        Ok(changes)
    }

    fn write(&self, changes: &Changes) -> Result<(), ReceiveError> {
        let written = if *changes == Changes::default() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        } else {
            fs::write(&self.path, changes.write())
        };
        written.map_err(|error| ReceiveError::File(self.path.clone(), error))
    }
}

/// Lets this machine receive packets for these addresses, beside those of calls before, and answer nobody who looks for
/// them. Returns all addresses.
///
/// # Errors
///
/// An address cannot be received for, a right is missing, or another interface has an address. Then nothing is changed,
/// or [`release`] puts back what was.
pub fn receive(addresses: &[IpAddr]) -> Result<BTreeSet<IpAddr>, ReceiveError> {
    let wanted: BTreeSet<_> = addresses.iter().map(IpAddr::to_canonical).collect();
    let is_unusable =
        |ip: &IpAddr| ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link(*ip);
    if let Some(ip) = wanted.iter().copied().find(|ip| is_unusable(ip)) {
        return Err(ReceiveError::Unusable(ip));
    }
    let memory = Memory::open()?;
    let found = list_addresses()?;
    let loopback = found.iter().filter(|(_, name)| name == LOOPBACK);
    let mut changes = memory.read(&loopback.map(|(ip, _)| *ip).collect())?;
    let known = changes.addresses.clone();
    let is_strange = |(ip, name): &&(IpAddr, String)| {
        wanted.contains(ip) && (name != LOOPBACK || !known.contains(ip))
    };
    if let Some((ip, name)) = found.iter().find(is_strange) {
        return Err(ReceiveError::OnInterface(*ip, name.clone()));
    }
    if wanted.iter().any(IpAddr::is_ipv4) {
        let missing = list_missing_settings()?.into_iter();
        let is_new = |new: &Setting| !changes.settings.iter().any(|old| old.name == new.name);
        let missing: Vec<_> = missing.filter(is_new).collect();
        changes.settings.extend(missing);
    }
    changes.addresses.extend(&wanted);
    // First what was, then the settings, then the addresses: nobody ever gets an answer about them.
    memory.write(&changes)?;
    for setting in &changes.settings {
        write_setting(&setting.path(), &setting.now)?;
    }
    for ip in wanted.difference(&known) {
        netlink::add_to_loopback(*ip).map_err(|error| ReceiveError::Address(*ip, error))?;
    }
    Ok(changes.addresses)
}

/// Lets this machine receive no packets for these addresses, or for no address at all if the list is empty, and puts the
/// settings back with the last one. Returns the addresses that were removed.
///
/// # Errors
///
/// An address was not added by [`receive`], or a right is missing.
pub fn release(addresses: &[IpAddr]) -> Result<BTreeSet<IpAddr>, ReceiveError> {
    let memory = Memory::open()?;
    let found = list_addresses()?;
    let loopback = found.iter().filter(|(_, name)| name == LOOPBACK);
    let mut changes = memory.read(&loopback.map(|(ip, _)| *ip).collect())?;
    let wanted: BTreeSet<_> = match addresses {
        [] => changes.addresses.clone(),
        _ => addresses.iter().map(IpAddr::to_canonical).collect(),
    };
    if let Some(ip) = wanted.difference(&changes.addresses).next() {
        return Err(ReceiveError::Unknown(*ip));
    }
    for ip in &wanted {
        netlink::remove_from_loopback(*ip).map_err(|error| ReceiveError::Address(*ip, error))?;
        changes.addresses.remove(ip);
    }
    if !changes.addresses.iter().any(IpAddr::is_ipv4) {
        for setting in &changes.settings {
            let path = setting.path();
            // Somebody may have changed the setting since.
            if read_setting(&path)? == setting.now {
                write_setting(&path, &setting.before)?;
            }
        }
        changes.settings.clear();
    }
    memory.write(&changes)?;
    Ok(wanted)
}

/// Returns the addresses for which this machine receives packets.
///
/// # Errors
///
/// A file or the interfaces cannot be read.
pub fn list_received() -> Result<BTreeSet<IpAddr>, ReceiveError> {
    let memory = Memory::open()?;
    let found = list_addresses()?;
    let loopback = found.iter().filter(|(_, name)| name == LOOPBACK);
    let changes = memory.read(&loopback.map(|(ip, _)| *ip).collect())?;
    Ok(changes.addresses)
}

/// True if an address is for one link only.
fn is_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Returns the addresses of all interfaces, with the interfaces' names.
fn list_addresses() -> Result<Vec<(IpAddr, String)>, ReceiveError> {
    let all = getifaddrs().map_err(|error| ReceiveError::Interfaces(error.into()))?;
    let addresses = all.filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|at| at.ip().into());
        let ip = v4.or_else(|| address.as_sockaddr_in6().map(|at| at.ip().into()))?;
        Some((ip, one.interface_name))
    });
    Ok(addresses.collect())
}

fn find_setting(interface: &str, name: &str) -> PathBuf {
    Path::new(SETTINGS).join(interface).join(name)
}

fn read_setting(path: &Path) -> Result<String, ReceiveError> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| ReceiveError::File(path.into(), error))?;
    Ok(text.trim().to_owned())
}

fn write_setting(path: &Path, value: &str) -> Result<(), ReceiveError> {
    fs::write(path, value).map_err(|error| ReceiveError::File(path.into(), error))
}

/// Returns the settings that are needed and not there.
fn list_missing_settings() -> Result<Vec<Setting>, ReceiveError> {
    let folder = Path::new(SETTINGS);
    let entries = fs::read_dir(folder).map_err(|error| ReceiveError::File(folder.into(), error))?;
    let mut ignored = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !["all", "default", LOOPBACK].map(Into::into).contains(&name) {
            // The interface may be gone.
            ignored.extend(fs::read_to_string(entry.path().join("arp_ignore")));
        }
    }
    let has_others = ignored.iter().any(|value| value.trim() != "0");
    let read = |name: &str| read_setting(&find_setting("all", name));
    let (ignore, announce) = (read("arp_ignore")?, read("arp_announce")?);
    let settings = choose_settings(ignore, announce, has_others);
    Ok(settings)
}

/// Chooses settings for all interfaces by those that are there. The larger number of an interface's setting and the one
/// of all interfaces holds. `has_others` is true if an interface has a setting about ARP already.
fn choose_settings(ignore: String, announce: String, has_others: bool) -> Vec<Setting> {
    let mut settings = Vec::new();
    if ignore == "0" {
        settings.push(Setting {
            name: "arp_ignore".into(),
            before: ignore,
            // 3 is about addresses with the scope of the machine only, and would replace 1 and 2 of an interface; with 1
            // an interface answers for its own addresses.
            now: if has_others { "1" } else { "3" }.into(),
        });
    }
    if announce != "2" {
        settings.push(Setting {
            name: "arp_announce".into(),
            before: announce,
            now: "2".into(),
        });
    }
    settings
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn s41_settings_about_arp_of_others_are_kept() {
        let choose = |ignore: &str, announce: &str, has_others| {
            let chosen = choose_settings(ignore.into(), announce.into(), has_others);
            let texts = chosen
                .into_iter()
                .map(|one| format!("{} {}", one.name, one.now));
            texts.collect::<Vec<_>>()
        };
        assert_eq!(choose("0", "0", false), ["arp_ignore 3", "arp_announce 2"]);
        assert_eq!(choose("0", "1", true), ["arp_ignore 1", "arp_announce 2"]);
        assert_eq!(choose("1", "2", true), [""; 0]);
        assert_eq!(choose("2", "0", false), ["arp_announce 2"]);
    }

    #[test]
    fn s41_addresses_of_many_machines_are_refused() {
        for text in [
            "0.0.0.0",
            "127.0.0.1",
            "::1",
            "224.0.0.1",
            "fe80::1",
            "169.254.0.1",
        ] {
            let error = receive(&[text.parse().unwrap()]).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }

    proptest! {
        #[test]
        fn changes_are_read_as_they_are_written(
            addresses in prop::collection::btree_set(any::<IpAddr>(), 0..4), before in 0..3u8, now in 0..9u8,
        ) {
            let settings = ["arp_ignore", "arp_announce"].map(|name| Setting {
                name: name.into(),
                before: before.to_string(),
                now: now.to_string(),
            });
            let changes = Changes { settings: settings.to_vec(), addresses };
            prop_assert_eq!(Changes::read(&changes.write()), changes);
        }

        #[test]
        fn any_text_is_read(text: String) {
            Changes::read(&text);
        }
    }
}

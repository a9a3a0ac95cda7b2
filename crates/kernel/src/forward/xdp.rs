//! Native XDP beside the filters of tc: on the interfaces that the configuration names, packets in the middle of
//! connections are forwarded at the driver.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::AsFd;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{MapCore, MapFlags, Object, Xdp, XdpFlags};
use nix::net::if_::{if_indextoname, if_nametoindex};

use super::tcx::open_program;
use crate::bpf::{BpfError, FirstError, failed_to, find_map, find_program, refuse_with};

/// Name of the program as the kernel has it.
pub(super) const PROGRAM: &str = "evk_forward_xdp";

/// Bits of the kernel's `enum netdev_xdp_act`: an interface can send packets on, and can be the one that they are sent to.
const CAN_REDIRECT: u64 = 2;
const CAN_RECEIVE_REDIRECTED: u64 = 4;

/// State of native XDP on the interfaces that were asked for: by name, the reason why an interface has tc alone, or `None`.
pub type XdpStates = BTreeMap<String, Option<String>>;

/// Native XDP of a [`Forwarder`](super::Forwarder).
#[derive(Debug, Default)]
pub(super) struct XdpPlaces {
    /// True if programs of a process before were looked for.
    has_looked: bool,
    /// Interfaces with the program.
    attached: BTreeSet<u32>,
    /// Interfaces that packets may be sent to.
    targets: BTreeSet<u32>,
}

/// XDP on an interface, as the kernel tells it.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Number of the program on the interface; 0 if there is none.
    program: u32,
    /// Abilities of the driver. Linux before 6.3 tells none.
    abilities: u64,
}

impl XdpPlaces {
    /// Puts the program on the interfaces with these names, and takes it from others of `interfaces`, which are those
    /// with the filter of tc. Returns the state of each name, and the first error.
    pub(super) fn attach(
        &mut self,
        object: &Object,
        names: &[String],
        interfaces: &BTreeSet<u32>,
    ) -> (XdpStates, Result<(), BpfError>) {
        let mut states: XdpStates = BTreeMap::new();
        if names.is_empty() && self.attached.is_empty() && self.has_looked {
            return (states, Ok(()));
        }
        let program = match find_program(object, PROGRAM) {
            Ok(program) => program,
            Err(error) => return (states, Err(error)),
        };
        let xdp = Xdp::new(program.as_fd());
        let own = find_own_programs();
        let found = interfaces
            .iter()
            .filter_map(|&index| Some((index, query(index)?)));
        let found: BTreeMap<u32, Found> = found.collect();
        self.attached.retain(|index| found.contains_key(index));
        let mut failure = FirstError::default();
        failure.keep(self.write_targets(object, &found));
        let mut wanted = BTreeSet::new();
        for name in names {
            let index = if_nametoindex(name.as_str()).unwrap_or(0);
            let attached = match found.get(&index) {
                None => Err("there is no Ethernet interface of this name that is up".to_owned()),
                Some(found) => {
                    wanted.insert(index);
                    let is_own = own.contains(&found.program);
                    attach_to(&xdp, index, *found, is_own, self.attached.contains(&index))
                }
            };
            match attached {
                Ok(()) => self.attached.insert(index),
                Err(_) => self.attached.remove(&index),
            };
            states.insert(name.clone(), attached.err());
        }
        for (index, found) in &found {
            if !wanted.contains(index) && own.contains(&found.program) {
                let detached = detach(*index).or_else(|error| forgive_gone(*index, error));
                if failure.keep(detached).is_some() {
                    self.attached.remove(index);
                }
            }
        }
        let done = failure.finish();
        // What the kernel has refused is tried again.
        self.has_looked = done.is_ok();
        (states, done)
    }

    /// Lets packets be sent to the interfaces that can take them from XDP, and to no others.
    fn write_targets(
        &mut self,
        object: &Object,
        found: &BTreeMap<u32, Found>,
    ) -> Result<(), BpfError> {
        let can = |found: &Found| found.abilities & CAN_RECEIVE_REDIRECTED != 0;
        let able = found.iter().filter(|(_, found)| can(found));
        let able: BTreeSet<u32> = able.map(|(index, _)| *index).collect();
        let map = find_map(object, "evk_targets")?;
        for index in self.targets.difference(&able) {
            // The kernel has removed an interface that is gone.
            let _ = map.delete(&index.to_ne_bytes());
        }
        self.targets.retain(|index| able.contains(index));
        let mut failure = FirstError::default();
        for index in able {
            if !self.targets.contains(&index) {
                let key = index.to_ne_bytes();
                let written = map.update(&key, &key, MapFlags::ANY);
                let written = written.map_err(failed_to("write a BPF map"));
                // Packets to an interface that is refused are left to the program of tc.
                let written = written.or_else(|error| forgive_gone(index, error));
                if failure.keep(written).is_some() {
                    self.targets.insert(index);
                }
            }
        }
        failure.finish()
    }

    /// Takes the program from all interfaces.
    pub(super) fn detach(&mut self) {
        for index in std::mem::take(&mut self.attached) {
            // The interface may be gone.
            let _ = detach(index);
        }
    }
}

/// Returns the interfaces with a program of any process, by number, of those that are named.
pub(super) fn list_attached() -> Vec<u32> {
    let own = find_own_programs();
    let all = nix::net::if_::if_nameindex();
    let indices = all.iter().flatten().map(nix::net::if_::Interface::index);
    indices
        .filter(|index| query(*index).is_some_and(|found| own.contains(&found.program)))
        .collect()
}

/// Takes a program from an interface.
pub(super) fn detach(index: u32) -> Result<(), BpfError> {
    // SAFETY: the options may be missing.
    let answer = unsafe {
        libbpf_sys::bpf_xdp_detach(
            index.cast_signed(),
            XdpFlags::DRV_MODE.bits(),
            std::ptr::null(),
        )
    };
    match answer {
        0 => Ok(()),
        error => Err(refuse_with("detach XDP", error)),
    }
}

/// Returns an error about an interface, unless the interface has gone meanwhile.
fn forgive_gone(index: u32, error: BpfError) -> Result<(), BpfError> {
    find_interface_name(index).map_or(Ok(()), |_| Err(error))
}

/// Returns the name of an interface; `None` if it is gone.
pub fn find_interface_name(interface: u32) -> Option<String> {
    let name = if_indextoname(interface).ok()?;
    // nix has no error for an interface that is gone, and an empty name.
    let name = name.to_string_lossy().into_owned();
    (!name.is_empty()).then_some(name)
}

/// Returns the numbers of programs of this and of former processes.
fn find_own_programs() -> BTreeSet<u32> {
    let all = ProgInfoIter::default();
    let own = all.filter(|info| info.name == *PROGRAM);
    own.map(|info| info.id).collect()
}

/// Returns what is on an interface; `None` if the kernel does not say.
fn query(index: u32) -> Option<Found> {
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: `options` is there until it returns.
    let answer = unsafe { libbpf_sys::bpf_xdp_query(index.cast_signed(), 0, &mut options) };
    (answer == 0).then_some(Found {
        program: options.prog_id,
        abilities: options.feature_flags,
    })
}

/// Puts the program on an interface, in the place of one of ours. Says why if it cannot be there.
fn attach_to(
    xdp: &Xdp<'_>,
    index: u32,
    found: Found,
    is_own: bool,
    is_attached: bool,
) -> Result<(), String> {
    if is_own && is_attached {
        return Ok(());
    }
    if found.program != 0 && !is_own {
        return Err(format!(
            "the XDP program {} of somebody else is there",
            found.program
        ));
    }
    if found.abilities & CAN_REDIRECT == 0 {
        return Err(
            "the driver cannot send packets on by native XDP, or the kernel does not say it (Linux 6.3)".into(),
        );
    }
    if let Some(vlan) = find_vlan(index) {
        return Err(format!(
            "{vlan} is a VLAN on it, and drivers may take the tag off before XDP sees a packet"
        ));
    }
    let put = if is_own {
        let old = open_program(found.program).map_err(|error| error.to_string())?;
        xdp.replace(index.cast_signed(), old.as_fd())
    } else {
        xdp.attach(
            index.cast_signed(),
            XdpFlags::DRV_MODE | XdpFlags::UPDATE_IF_NOEXIST,
        )
    };
    put.map_err(|error| format!("the kernel refuses: {error}"))
}

/// Returns the name of a VLAN on an interface, if there is one.
fn find_vlan(index: u32) -> Option<String> {
    let name = find_interface_name(index)?;
    let table = fs::read_to_string("/proc/thread-self/net/vlan/config").ok()?;
    find_vlan_in(&table, &name).map(str::to_owned)
}

/// Finds the VLAN of an interface in the kernel's table.
fn find_vlan_in<'a>(table: &'a str, parent: &str) -> Option<&'a str> {
    // Two lines of titles, then `NAME | NUMBER | PARENT`.
    table.lines().skip(2).find_map(|line| {
        let mut fields = line.split('|').map(str::trim);
        let name = fields.next()?;
        (fields.nth(1)? == parent).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlans_are_found_by_their_parent() {
        let table = "VLAN Dev name    | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
                     eth0.5         | 5  | eth0\nlan            | 7  | eth1\n";
        assert_eq!(find_vlan_in(table, "eth0"), Some("eth0.5"));
        assert_eq!(find_vlan_in(table, "eth1"), Some("lan"));
        assert_eq!(find_vlan_in(table, "eth2"), None);
        assert_eq!(find_vlan_in("", "eth0"), None);
    }
}

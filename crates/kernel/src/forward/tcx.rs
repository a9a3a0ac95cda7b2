//! The program at tcx of an interface (Linux 6.6), which costs less for a packet than a filter of tc. Like a filter, the
//! program stays there without a process.
//!
//! tcx comes before all filters of tc. If a filter of somebody else is to see packets before the program, the program is a
//! filter, too.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapHandle, Object};
use libbpf_sys::{BPF_F_BEFORE, BPF_F_ID, BPF_F_REPLACE, BPF_TCX_INGRESS};
use tracing::warn;

use super::place::Place;
use crate::bpf::{BpfError, find_program, refuse_with};
use crate::netlink::list_ingress_filters;

/// Name of the program as the kernel has it.
pub(super) const PROGRAM: &str = "evk_forward";

/// Most programs at tcx of an interface: the kernel has room for as many.
const PROGRAMS: usize = 64;

/// Reason why the program is a filter of tc at an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcReason {
    /// The kernel has no tcx.
    OldKernel,
    /// A filter of somebody else with this preference sees packets first.
    OtherFilter(u32),
    /// The kernel refuses.
    Refused(String),
}

impl fmt::Display for TcReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TcReason::OldKernel => f.write_str("the kernel has no tcx (Linux 6.6)"),
            TcReason::OtherFilter(priority) => write!(
                f,
                "a filter of somebody else with pref {priority} sees packets first"
            ),
            TcReason::Refused(error) => write!(f, "the kernel refuses tcx: {error}"),
        }
    }
}

/// Program at tcx of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    /// Number of the program.
    pub(super) id: u32,
    /// Numbers of the maps of the program.
    maps: Vec<u32>,
}

impl Attached {
    /// True if the program has the maps of a place.
    pub(super) fn is_of_place(&self, place: &Place) -> bool {
        let pinned = MapHandle::from_pinned_path(place.folder().join("evk_connections"));
        let id = pinned.and_then(|map| map.info()).map(|info| info.info.id);
        id.is_ok_and(|id| self.maps.contains(&id))
    }
}

/// Puts the program of `object` at tcx of an interface, in the place of the program of a process before with the maps of
/// `place`, or before programs of other versions. Returns the reason if the program is to be a filter of tc instead.
pub(super) fn attach(object: &Object, interface: u32, place: &Place) -> Result<(), TcReason> {
    let refused = |error: BpfError| TcReason::Refused(error.to_string());
    let all = list_programs(interface).ok_or(TcReason::OldKernel)?;
    let program = find_program(object, PROGRAM).map_err(refused)?;
    let own = find_own(&all);
    let mut options = libbpf_sys::bpf_prog_attach_opts {
        sz: size_of::<libbpf_sys::bpf_prog_attach_opts>() as _,
        ..Default::default()
    };
    let before = own.iter().find(|program| program.is_of_place(place));
    let replaced = before.map(|program| open_program(program.id)).transpose();
    let replaced = replaced.map_err(|error| TcReason::Refused(error.to_string()))?;
    if let Some(replaced) = &replaced {
        options.flags = BPF_F_REPLACE;
        options.__bindgen_anon_1.replace_prog_fd = replaced.as_raw_fd();
    } else {
        if let Some(priority) = find_other_filter(interface, place) {
            return Err(TcReason::OtherFilter(priority));
        }
        if let Some(other) = own.first() {
            options.flags = BPF_F_BEFORE | BPF_F_ID;
            options.relative_id = other.id;
        }
    }
    // SAFETY: both descriptors are open, and `options` is there until the call returns.
    let answer = unsafe {
        libbpf_sys::bpf_prog_attach_opts(
            program.as_fd().as_raw_fd(),
            interface.cast_signed(),
            BPF_TCX_INGRESS,
            &options,
        )
    };
    // The program is there already.
    if answer == 0 || answer == -libc::EEXIST {
        detach_orphans(interface, place, &own);
        return Ok(());
    }
    Err(refused(refuse_with("attach to tcx", answer)))
}

/// Takes programs from tcx whose pinned maps are gone: nobody writes their terms any more, and they would forward what the
/// program before them leaves to the proxy. A program that cannot be taken is tried again by the next process.
fn detach_orphans(interface: u32, place: &Place, own: &[Attached]) {
    let others = place.find_others();
    let has_pins = |program: &Attached| {
        program.is_of_place(place) || others.iter().any(|other| program.is_of_place(other))
    };
    for orphan in own.iter().filter(|program| !has_pins(program)) {
        if let Err(error) = detach(interface, orphan.id) {
            warn!("a program of an earlier process stays: {error}");
        }
    }
}

/// Takes a program from tcx of an interface.
pub(super) fn detach(interface: u32, id: u32) -> Result<(), BpfError> {
    let failed = |error: io::Error| {
        BpfError::File(format!(
            "cannot open the program {id} of the kernel: {error}"
        ))
    };
    let program = open_program(id).map_err(failed)?;
    // SAFETY: the descriptor is open, and the options may be missing.
    let answer = unsafe {
        libbpf_sys::bpf_prog_detach_opts(
            program.as_raw_fd(),
            interface.cast_signed(),
            BPF_TCX_INGRESS,
            std::ptr::null(),
        )
    };
    match answer {
        0 => Ok(()),
        error => Err(refuse_with("detach from tcx", error)),
    }
}

/// Takes the programs with the maps of a place from tcx of an interface.
pub(super) fn detach_place(interface: u32, place: &Place) -> Result<(), BpfError> {
    let own = list_own(interface).into_iter();
    own.filter(|program| program.is_of_place(place))
        .try_for_each(|program| detach(interface, program.id))
}

/// Returns the programs of any version at tcx of an interface, in the order in which they see packets.
pub(super) fn list_own(interface: u32) -> Vec<Attached> {
    find_own(&list_programs(interface).unwrap_or_default())
}

/// Returns the preference of the first filter of somebody else that would see packets before the filter of a place.
fn find_other_filter(interface: u32, place: &Place) -> Option<u32> {
    // Filters of later versions are ours, too.
    let others = place.find_others();
    let own: BTreeSet<_> = others.iter().map(Place::priority).collect();
    let mut before = list_ingress_filters(interface).unwrap_or_default();
    before.retain(|priority| *priority < place.priority() && !own.contains(priority));
    before.into_iter().min()
}

/// Returns those of these programs that are of any version.
fn find_own(ids: &[u32]) -> Vec<Attached> {
    if ids.is_empty() {
        return Vec::new();
    }
    let wanted: BTreeSet<_> = ids.iter().collect();
    let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
    let all = ProgInfoIter::with_query_opts(with_maps);
    let ours: Vec<_> = all
        .filter(|info| wanted.contains(&info.id) && info.name == *PROGRAM)
        .map(|info| Attached {
            id: info.id,
            maps: info.map_ids,
        })
        .collect();
    let find = |id: &u32| ours.iter().find(|program| program.id == *id).cloned();
    ids.iter().filter_map(find).collect()
}

/// Returns the numbers of the programs at tcx of an interface; `None` if the kernel has no tcx.
fn list_programs(interface: u32) -> Option<Vec<u32>> {
    let mut ids = [0; PROGRAMS];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = PROGRAMS as u32;
    // SAFETY: `ids` has room for as many numbers as the options say, and both are there until the call returns.
    let answer = unsafe {
        libbpf_sys::bpf_prog_query_opts(interface.cast_signed(), BPF_TCX_INGRESS, &mut options)
    };
    // SAFETY: both fields of the union are the same number.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    (answer == 0).then(|| ids.iter().take(count).copied().collect())
}

/// Opens a program of the kernel by the number.
pub(super) fn open_program(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a number.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

//! Pins: files by which the kernel holds the programs and maps of a responder.

use std::fs;
use std::io;
use std::path::Path;

use libbpf_rs::MapHandle;

use crate::bpf::{self, BpfError};

/// Name of the pin that holds the link of an XDP program.
pub(super) const LINK: &str = "link";

/// The maps that outlive the loader by files of their own.
pub(super) const PINNED: [&str; 11] = [
    "evk_config",
    "evk_facts",
    "evk_bases",
    "evk_targets",
    "evk_keys",
    "evk_hosts",
    "evk_allow4",
    "evk_allow6",
    "evk_readers",
    "evk_counters",
    "evk_timers",
];

/// Maps that files of older versions hold.
const OLD: [&str; 1] = ["evk_sources"];

pub(super) fn pinned(folder: &Path, name: &str) -> Result<MapHandle, BpfError> {
    MapHandle::from_pinned_path(folder.join(name)).map_err(bpf::failed_to("open a pinned BPF map"))
}

pub(super) fn unpin_maps(folder: &Path) -> Result<(), BpfError> {
    PINNED
        .iter()
        .try_for_each(|name| remove(&folder.join(name)))?;
    remove_old_pins(folder)
}

/// Lets go of maps that only older versions have.
pub(super) fn remove_old_pins(folder: &Path) -> Result<(), BpfError> {
    OLD.iter().try_for_each(|name| remove(&folder.join(name)))
}

pub(super) fn remove(path: &Path) -> Result<(), BpfError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(BpfError::File(format!(
            "cannot remove {}: {error}",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Lets go of everything, and of the folder, with which the kernel forgets it.
pub(super) fn clear(folder: &Path) -> Result<(), BpfError> {
    remove(&folder.join(LINK))?;
    unpin_maps(folder)?;
    // Somebody else's things may be there.
    let _ = fs::remove_dir(folder);
    Ok(())
}

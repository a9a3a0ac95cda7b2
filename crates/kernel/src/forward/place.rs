//! Place of the program's maps and filters in a network namespace, and what versions before have left.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::layout::Age;
use crate::bpf::{BpfError, failed_to};

/// Version of the maps and of the answers of the program, part of a [`Place`]: maps of another version are only ended.
pub(super) const LAYOUT: u32 = 8;

/// Folder of pins and priority of filters in a network namespace. Each version of the maps has a separate place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) root: PathBuf,
    layout: u32,
    pub(super) namespace: u64,
}

impl Place {
    /// Returns the place for this version in the network namespace of this thread.
    pub fn of_this_namespace() -> Self {
        let namespace = rustix::fs::stat("/proc/thread-self/ns/net").map_or(0, |stat| stat.st_ino);
        Self::new("/sys/fs/bpf/evenkeel".into(), LAYOUT, namespace)
    }

    pub(super) fn new(root: PathBuf, layout: u32, namespace: u64) -> Self {
        Place {
            root,
            layout,
            namespace,
        }
    }

    /// Returns the folder of the pins.
    pub(super) fn folder(&self) -> PathBuf {
        let Place {
            root,
            layout,
            namespace,
        } = self;
        root.join(format!("forward-{layout}-{namespace}"))
    }

    /// Returns the place of the filter among those of an interface: newer versions see packets first, and leave the
    /// packets of older versions' connections to these.
    pub(super) fn priority(&self) -> u32 {
        3818u32.saturating_sub(self.layout).max(1)
    }

    /// Returns the places of other versions with pins in the same namespace.
    pub(super) fn find_others(&self) -> Vec<Place> {
        let Ok(entries) = fs::read_dir(&self.root) else {
            return Vec::new();
        };
        let place_of = |name: &str| {
            let (layout, namespace) = name.strip_prefix("forward-")?.split_once('-')?;
            let (layout, namespace) = (layout.parse().ok()?, namespace.parse().ok()?);
            Some(Place::new(self.root.clone(), layout, namespace))
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .filter_map(|name| place_of(name.to_str()?))
            .filter(|place| place.namespace == self.namespace && place.layout != self.layout)
            .collect()
    }

    /// Lets the program of this place begin no connections, and removes connections that are over: `is_over` gets the
    /// time since the last packet, and if the connection is open. Returns the number of the others.
    pub(super) fn end_connections(
        &self,
        is_over: impl Fn(Duration, bool) -> bool,
        now_ns: u64,
    ) -> Result<usize, BpfError> {
        let folder = self.folder();
        if let Ok(listeners) = MapHandle::from_pinned_path(folder.join("evk_listeners")) {
            let keys: Vec<_> = listeners.keys().collect();
            for key in keys {
                listeners
                    .delete(&key)
                    .map_err(failed_to("write a BPF map"))?;
            }
        }
        let Ok(connections) = MapHandle::from_pinned_path(folder.join("evk_connections")) else {
            return Ok(0);
        };
        let keys: Vec<_> = connections.keys().collect();
        let mut left = 0;
        for key in keys {
            let Ok(Some(value)) = connections.lookup(&key, MapFlags::ANY) else {
                continue;
            };
            let age = Age::read(&value);
            if is_over(age.find_silence(now_ns), age.is_open()) {
                // The program may have removed the connection.
                let _ = connections.delete(&key);
            } else {
                left += 1;
            }
        }
        Ok(left)
    }

    /// Removes the pins.
    pub(super) fn clear(&self) -> Result<(), BpfError> {
        let folder = self.folder();
        unpin(&folder)?;
        // Somebody else's files may be there.
        let _ = fs::remove_dir(&folder);
        Ok(())
    }
}

/// Removes all pins of maps in a folder.
pub(super) fn unpin(folder: &Path) -> Result<(), BpfError> {
    let failed = |path: &Path, error: io::Error| {
        BpfError::File(format!("cannot remove {}: {error}", path.display()))
    };
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, error))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("evk_")) {
            let path = entry.path();
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed(&path, error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

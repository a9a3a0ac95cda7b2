//! Place of the program's maps and filters in a network namespace, and what versions before have left.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use rustix::fs::{FlockOperation, flock};

use super::layout::Age;
use crate::bpf::{BpfError, failed_to};

/// Version of the maps and of the answers of the program, part of a [`Place`]: maps of another version are only ended.
pub(super) const LAYOUT: u32 = 16;

/// Number of the filter at its place on an interface. A fixed one: the next process replaces the filter there.
pub(super) const HANDLE: u32 = 1;

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

    /// Returns the place of another version in the same namespace.
    pub(super) fn with_layout(&self, layout: u32) -> Place {
        Place::new(self.root.clone(), layout, self.namespace)
    }

    /// Returns the places of other versions with pins in the same namespace.
    pub(super) fn find_others(&self) -> Vec<Place> {
        let all = self.list_all().unwrap_or_default().into_iter();
        all.filter(|place| place.namespace == self.namespace && place.layout != self.layout)
            .collect()
    }

    /// Returns the places of all versions with pins in all namespaces.
    pub(super) fn list_all(&self) -> Result<Vec<Place>, BpfError> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| {
                BpfError::File(format!("cannot read {}: {error}", self.root.display()))
            })?,
        };
        let place_of = |name: &str| {
            let (layout, namespace) = name.strip_prefix("forward-")?.split_once('-')?;
            let (layout, namespace) = (layout.parse().ok()?, namespace.parse().ok()?);
            Some(Place::new(self.root.clone(), layout, namespace))
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        Ok(names.filter_map(|name| place_of(name.to_str()?)).collect())
    }

    /// Lets the program of this place begin no connections, and removes connections for which `is_over` returns true.
    /// Returns the number of the others.
    pub(super) fn end_connections(
        &self,
        mut is_over: impl FnMut(Age) -> bool,
    ) -> Result<usize, BpfError> {
        let folder = self.folder();
        // Sessions of UDP get no more datagrams of clients, who begin new sessions elsewhere.
        for name in ["evk_listeners", "evk_udp_listeners"] {
            let Ok(listeners) = MapHandle::from_pinned_path(folder.join(name)) else {
                continue;
            };
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
            if is_over(Age::read(&value)) {
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

/// Holds the maps in a folder as long as the file is open.
pub(super) fn lock(folder: &Path) -> Result<File, BpfError> {
    let shown = folder.display();
    let file = File::open(folder)
        .map_err(|error| BpfError::File(format!("cannot open {shown}: {error}")))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
        BpfError::File(format!(
            "another process forwards in the kernel of this network namespace ({shown}: {error})"
        ))
    })?;
    Ok(file)
}

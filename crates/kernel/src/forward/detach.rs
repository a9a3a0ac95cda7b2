//! Removal of the programs and maps in a network namespace without a balancer.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{TC_INGRESS, TcHook, TcHookBuilder};
use nix::net::if_::if_nameindex;

use super::place::{HANDLE, Place, lock};
use super::tcx::{self, PROGRAM};
use super::xdp::{self, find_interface_name};
use crate::bpf::{self, BpfError, failed_to};

/// Most layouts whose filters are looked for: newer versions than this one may have left a filter, too.
const LAYOUTS: u32 = 64;

/// Time for which a connection that is over stays, for late packets.
const LINGER: Duration = Duration::from_secs(3);

/// Time without a packet after which a connection is removed that its member has not accepted.
const CONNECT: Duration = Duration::from_secs(10);

/// Filter with the program on an interface.
#[derive(Clone, Debug)]
struct Filter {
    interface: i32,
    name: String,
    /// `None` for a program at tcx whose maps are in no folder.
    place: Option<Place>,
    /// Number of the program, if it is at tcx.
    tcx: Option<u32>,
}

/// Programs of all layouts in this network namespace with their maps and filters. No balancer takes them over while
/// they are held here.
#[derive(Debug)]
pub struct Detachment {
    /// Places with their locks.
    held: Vec<(Place, File)>,
    filters: Vec<Filter>,
    /// Numbers of interfaces with the program for native XDP.
    with_xdp: Vec<u32>,
    /// Descriptor for hooks, which need one of a program only to attach the program.
    namespace: File,
    others: Vec<PathBuf>,
}

/// Results of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Names of interfaces from which a program was taken.
    pub interfaces: BTreeSet<String>,
    /// Folders of maps that were removed.
    pub folders: Vec<PathBuf>,
}

impl Detachment {
    /// Finds and holds the programs of this thread's network namespace.
    ///
    /// # Errors
    ///
    /// A running balancer holds the programs, or a file cannot be read.
    pub fn find() -> Result<Self, BpfError> {
        Self::find_at(&Place::of_this_namespace())
    }

    pub(super) fn find_at(here: &Place) -> Result<Self, BpfError> {
        let (own, others): (Vec<_>, Vec<_>) = here
            .list_all()?
            .into_iter()
            .partition(|place| place.namespace == here.namespace);
        let held = own.into_iter().map(|place| {
            let lock = lock(&place.folder()).map_err(|error| explain_lock(&place, error))?;
            Ok((place, lock))
        });
        let held: Vec<_> = held.collect::<Result<_, BpfError>>()?;
        let path = "/proc/thread-self/ns/net";
        let namespace = File::open(path)
            .map_err(|error| BpfError::File(format!("cannot open {path}: {error}")))?;
        let mut found = Detachment {
            held,
            filters: Vec::new(),
            with_xdp: xdp::list_attached(),
            namespace,
            others: others.iter().map(Place::folder).collect(),
        };
        found.filters = found.list_filters(here)?;
        Ok(found)
    }

    /// True if there is no program and no map.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.filters.is_empty() && self.with_xdp.is_empty()
    }

    /// Returns the folders of other network namespaces, which stay.
    pub fn other_namespaces(&self) -> &[PathBuf] {
        &self.others
    }

    /// Returns the interfaces with a program whose maps are no longer in their folder: nobody can count its connections.
    pub fn list_uncounted(&self) -> BTreeSet<&str> {
        let is_held = |filter: &&Filter| {
            self.held
                .iter()
                .any(|(place, _)| Some(place) == filter.place.as_ref())
        };
        let lost = self.filters.iter().filter(|filter| !is_held(filter));
        lost.map(|filter| filter.name.as_str()).collect()
    }

    /// Lets the programs begin no connections, and returns the number of open ones.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn close(&self) -> Result<usize, BpfError> {
        let mut open = 0;
        for (place, _) in &self.held {
            place.end_connections(|age| {
                open += usize::from(age.is_open());
                false
            })?;
        }
        Ok(open)
    }

    /// Lets the programs begin no connections, and removes those that are over, or that were silent for longer than
    /// `idle` at `now_ns`. Returns the number of open connections, and of closed ones that late packets may belong to.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn drain(&self, now_ns: u64, idle: Duration) -> Result<(usize, usize), BpfError> {
        let (mut open, mut closed) = (0, 0);
        for (place, _) in &self.held {
            place.end_connections(|age| {
                let limit = match (age.is_open(), age.is_established()) {
                    (false, _) => LINGER,
                    (true, true) => idle,
                    (true, false) => idle.min(CONNECT),
                };
                let is_over = age.find_silence(now_ns) > limit;
                let count = if age.is_open() {
                    &mut open
                } else {
                    &mut closed
                };
                *count += usize::from(!is_over);
                is_over
            })?;
        }
        Ok((open, closed))
    }

    /// Takes the programs from all interfaces, and removes the maps.
    ///
    /// # Errors
    ///
    /// The kernel refuses, or a file cannot be removed. The rest is removed nevertheless.
    pub fn remove(self) -> Result<Removed, BpfError> {
        let mut removed = Removed {
            interfaces: BTreeSet::new(),
            folders: Vec::new(),
        };
        let mut failure = None;
        for filter in &self.filters {
            match self.remove_filter(filter) {
                Ok(()) => {
                    removed.interfaces.insert(filter.name.clone());
                }
                Err(error) => failure = Some(error),
            }
        }
        for &interface in &self.with_xdp {
            match xdp::detach(interface) {
                Ok(()) => removed.interfaces.extend(find_interface_name(interface)),
                Err(error) => failure = Some(error),
            }
        }
        for (place, _) in &self.held {
            match place.clear() {
                Ok(()) => removed.folders.push(place.folder()),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(removed), Err)
    }

    /// Takes a program from an interface.
    fn remove_filter(&self, filter: &Filter) -> Result<(), BpfError> {
        match (filter.tcx, &filter.place) {
            (Some(id), _) => tcx::detach(filter.interface.cast_unsigned(), id),
            (None, Some(place)) => self
                .hook(filter.interface, place)
                .detach()
                .map_err(failed_to("remove the tc filter")),
            (None, None) => Ok(()),
        }
    }

    fn hook(&self, interface: i32, place: &Place) -> TcHook {
        TcHookBuilder::new(self.namespace.as_fd())
            .ifindex(interface)
            .handle(HANDLE)
            .priority(place.priority())
            .hook(TC_INGRESS)
    }

    /// Finds the program at the places of all layouts on all interfaces, also on those that are down.
    fn list_filters(&self, here: &Place) -> Result<Vec<Filter>, BpfError> {
        let interfaces = if_nameindex()
            .map_err(|error| BpfError::File(format!("cannot list interfaces: {error}")))?;
        let is_ours = |id: u32| {
            let mut programs = ProgInfoIter::default();
            programs.any(|program| program.id == id && program.name == *PROGRAM)
        };
        bpf::lead_messages();
        let mut found = Vec::new();
        for interface in &interfaces {
            let Ok(index) = i32::try_from(interface.index()) else {
                continue;
            };
            let name = interface.name().to_string_lossy().into_owned();
            for program in tcx::list_own(interface.index()) {
                let mut places = self.held.iter().map(|(place, _)| place);
                let place = places.find(|place| program.is_of_place(place));
                found.push(Filter {
                    interface: index,
                    name: name.clone(),
                    place: place.cloned(),
                    tcx: Some(program.id),
                });
            }
            for layout in 1..=LAYOUTS {
                let place = here.with_layout(layout);
                // Without a filter there, the kernel has no answer.
                let id = self.hook(index, &place).query();
                if id.is_ok_and(is_ours) {
                    found.push(Filter {
                        interface: index,
                        name: name.clone(),
                        place: Some(place),
                        tcx: None,
                    });
                }
            }
        }
        Ok(found)
    }
}

/// Says who holds the maps of a place.
fn explain_lock(place: &Place, error: BpfError) -> BpfError {
    let folder = place.folder();
    let Some(owner) = find_lock_owner(&folder) else {
        return error;
    };
    BpfError::File(format!(
        "process {owner} forwards in the kernel of this network namespace ({}), and would attach the program again. If \
         the process is a balancer, remove forward = \"kernel\" from its rules and reload: the balancer drains and \
         removes the program. Or stop the balancer, and run this command then",
        folder.display()
    ))
}

/// Returns the number of the process that has locked a folder; `None` if the system does not say.
fn find_lock_owner(folder: &Path) -> Option<u32> {
    let stat = rustix::fs::stat(folder).ok()?;
    let device = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    let file = format!("{:02x}:{:02x}:{}", device.0, device.1, stat.st_ino);
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_lock = fields.next() == Some("FLOCK");
        let owner = fields.nth(2)?.parse().ok()?;
        (is_lock && fields.next() == Some(&file)).then_some(owner)
    })
}

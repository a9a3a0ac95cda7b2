//! Clients that wait until a member takes them: they are woken when something has changed that
//! may be what they wait for, and not by looking again and again.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::load::Location;
use evenkeel_manager::snapshot::GroupHandle;
use tokio::sync::Notify;

use crate::directory::Entry;

/// The waiting rooms of a worker: one for each group of which clients wait.
#[derive(Debug, Default)]
pub struct Rooms {
    rooms: RefCell<HashMap<u64, Weak<Room>>>,
    /// How often clients that wait were looked at again.
    looks: Cell<u64>,
}

impl Rooms {
    /// The room of a group, where one waits as long as the answer is kept.
    pub fn enter(&self, entry: &Entry) -> Rc<Room> {
        let mut rooms = self.rooms.borrow_mut();
        let known = rooms.get(&entry.id).and_then(Weak::upgrade);
        // A group that was made anew has another handle.
        if let Some(room) = known.filter(|room| Arc::ptr_eq(&room.handle, &entry.handle)) {
            return room;
        }
        rooms.retain(|_, room| room.strong_count() > 0);
        let room = Rc::new(Room::new(Arc::clone(&entry.handle)));
        rooms.insert(entry.id, Rc::downgrade(&room));
        room
    }

    /// A client that waits is looked at again.
    pub fn look(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    /// How often clients that wait were looked at again.
    pub fn looks(&self) -> u64 {
        self.looks.get()
    }
}

/// Where the clients of a group wait for news of its members and their locations.
#[derive(Debug)]
pub struct Room {
    handle: Arc<GroupHandle>,
    bell: Arc<Bell>,
    of_handle: u64,
    hears: RefCell<Option<Hears>>,
}

/// The locations of a group that are listened to.
#[derive(Debug)]
struct Hears {
    group: Arc<Group>,
    locations: Vec<(Arc<Location>, u64)>,
}

/// Rings when something has changed.
#[derive(Debug, Default)]
struct Bell {
    notify: Notify,
    rung: AtomicU64,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_waiters();
    }
}

impl Room {
    fn new(handle: Arc<GroupHandle>) -> Self {
        let bell = Arc::<Bell>::default();
        Room {
            of_handle: handle.changed.listen(Waker::from(Arc::clone(&bell))),
            handle,
            bell,
            hears: RefCell::default(),
        }
    }

    /// How much has happened so far. To be asked before one looks whether to wait.
    pub fn news(&self) -> u64 {
        self.follow();
        self.bell.rung.load(Ordering::Acquire)
    }

    /// Waits until more has happened than `seen`, or for as long as `most`.
    pub async fn wait(&self, seen: u64, most: Duration) {
        let rung = self.bell.notify.notified();
        tokio::pin!(rung);
        rung.as_mut().enable();
        if self.bell.rung.load(Ordering::Acquire) == seen {
            tokio::select! {
                () = rung => {}
                () = tokio::time::sleep(most) => {}
            }
        }
    }

    /// Listens to the locations of the group as it is.
    fn follow(&self) {
        let mut hears = self.hears.borrow_mut();
        let group = self.handle.current.load_full();
        if hears
            .as_ref()
            .is_some_and(|h| Arc::ptr_eq(&h.group, &group))
        {
            return;
        }
        let members = group.members().iter();
        let listen = |location: &Arc<Location>| {
            let waker = Waker::from(Arc::clone(&self.bell));
            (Arc::clone(location), location.changed().listen(waker))
        };
        let locations = members.map(|member| listen(&member.location)).collect();
        *hears = Some(Hears { group, locations });
    }
}

impl Drop for Hears {
    fn drop(&mut self) {
        for (location, id) in &self.locations {
            location.changed().forget(*id);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.handle.changed.forget(self.of_handle);
    }
}

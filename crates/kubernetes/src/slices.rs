//! Store of a watch that services share: slices of the wanted services, or pods that labels choose.
//!
//! Slices of other services are read no further than their labels, and are not kept. A service that is wanted later is
//! awaited: a list of its own brings its slices, while the watch goes on. What the watch says of slices meanwhile is kept,
//! and put upon the list.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::list::{self, Event, Fault, ListError, Page, Store};
use crate::pod::RawPod;
use crate::slice::{RawSlice, Slice, UnreadSlice};
use crate::watcher::Pace;

/// Most slices of a service.
pub(crate) const MAX_SLICES: usize = 2_000;

/// Most pods that a selector chooses.
const MAX_PODS: usize = 20_000;

/// Most endpoints in all slices of a service, of both families and all ports together.
const MAX_SERVICE_ENDPOINTS: usize = 50_000;

/// Most slices of which events are kept while services are awaited.
const MAX_EARLY: usize = 20_000;

/// Namespace and name of a service, or namespace and labels of pods.
pub type ServiceName = (String, String);

/// Names and numbers of a service's ports.
pub(crate) type Ports = Vec<(Box<str>, u16)>;

/// Slices by namespace and name.
type ByKey = BTreeMap<Box<str>, Slice>;

/// Slice of a wanted service.
#[derive(Clone, Debug)]
pub struct ServiceSlice {
    service: Arc<ServiceName>,
    slice: Slice,
}

/// Store that a watch and others share. Clones are the same.
#[derive(Clone, Debug)]
pub struct SharedSlices(Arc<Mutex<Slices>>);

/// Slices of the wanted services.
#[derive(Debug, Default)]
pub struct Slices {
    /// True if the objects are pods, all of the only service.
    are_pods: bool,
    services: HashMap<Arc<ServiceName>, WantedService>,
    /// Service of each known slice.
    owners: HashMap<Box<str>, Arc<ServiceName>>,
    /// Services that await a list.
    awaited: BTreeSet<Arc<ServiceName>>,
    /// Services whose members may have changed.
    changed: BTreeSet<Arc<ServiceName>>,
    /// Version of the last list or event.
    version: Option<String>,
    /// True if a list of all services was complete at some time.
    is_listed: bool,
    /// Version of the last list of all services, after which the watch tells of all changes.
    listed_at: Option<u64>,
    early: EarlyEvents,
}

/// Last event of each slice since services are awaited.
#[derive(Debug, Default)]
struct EarlyEvents {
    /// Version of the event, and the slice, if it is of an awaited service.
    events: HashMap<Box<str>, (Option<u64>, Option<ServiceSlice>)>,
    /// Version up to which events were dropped, because there were too many.
    dropped: Option<u64>,
}

/// Service of which somebody wants the endpoints.
#[derive(Debug, Default)]
pub(crate) struct WantedService {
    slices: ByKey,
    /// Version of the list that brought the slices: older events are in the list.
    listed_at: Option<u64>,
    /// True if the list that has begun has the service.
    is_in_list: bool,
    /// Numbers of slices and endpoints in the list that has begun.
    counted: (usize, usize),
    /// True if a group names a port by its number, which only the service explains.
    needs_ports: bool,
    /// Ports of the service; `None` until they have been asked for.
    ports: Option<Ports>,
    pace: Pace,
    /// Time of the next list, after one that failed.
    retry_at: Option<Instant>,
    /// Reason why the service's own list failed.
    pub(crate) error: Option<String>,
    /// Number of own lists that failed.
    pub(crate) failures: u64,
    /// Number of complete lists.
    pub(crate) lists: u64,
    /// Number of events about slices.
    pub(crate) events: u64,
}

/// Returns the number of a version. Versions that are no numbers cannot be compared.
fn version_number(version: &str) -> Option<u64> {
    version.parse().ok()
}

/// True unless the version `at` is known to be in what was listed at the version `listed`.
fn is_newer(at: Option<u64>, listed: Option<u64>) -> bool {
    at.zip(listed).is_none_or(|(at, listed)| at > listed)
}

impl WantedService {
    /// Returns the number of slices.
    pub(crate) fn slice_count(&self) -> usize {
        self.slices.len()
    }
}

impl Slices {
    /// A store of a service's slices, or of pods, of which nothing is known yet.
    fn new(names: impl IntoIterator<Item = ServiceName>, are_pods: bool) -> Self {
        let mut slices = Slices {
            are_pods,
            ..Slices::default()
        };
        for name in names {
            slices.want_service(&name, false);
        }
        slices
    }

    /// Notes that a list of the services that are wanted now begins.
    pub fn begin_list(&mut self) {
        for service in self.services.values_mut() {
            service.is_in_list = true;
            service.counted = (0, 0);
        }
    }

    /// Wants a service from now on. `needs_ports` is true if a group names a port by its number.
    pub(crate) fn want_service(&mut self, name: &ServiceName, needs_ports: bool) {
        match self.services.get_mut(name) {
            Some(service) => service.needs_ports |= needs_ports && !self.are_pods,
            None => {
                let service = WantedService {
                    needs_ports: needs_ports && !self.are_pods,
                    ..WantedService::default()
                };
                let name = Arc::new(name.clone());
                self.awaited.insert(Arc::clone(&name));
                self.services.insert(name, service);
            }
        }
    }

    /// Forgets the services that nobody wants any more.
    pub(crate) fn retain_services(&mut self, is_wanted: impl Fn(&ServiceName) -> bool) {
        self.services.retain(|name, _| is_wanted(name));
        let services = &self.services;
        self.owners.retain(|_, owner| services.contains_key(owner));
        self.awaited.retain(|name| services.contains_key(name));
        self.changed.retain(|name| services.contains_key(name));
        self.forget_early();
    }

    /// Has a service listed again, with its ports.
    pub(crate) fn await_list(&mut self, name: &ServiceName) {
        if let Some((name, _)) = self.services.get_key_value(name) {
            self.awaited.insert(Arc::clone(name));
        }
    }

    /// True if a service awaits a list.
    pub(crate) fn has_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Returns services that await a list and need not wait for a time after `now`, at most `most`.
    pub(crate) fn due_names(&self, now: Instant, most: usize) -> Vec<ServiceName> {
        let is_due = |name: &&Arc<ServiceName>| {
            let service = self.services.get(*name);
            service.is_some_and(|of| of.retry_at.is_none_or(|at| at <= now))
        };
        let due = self.awaited.iter().filter(is_due).take(most);
        due.map(|name| ServiceName::clone(name)).collect()
    }

    /// Returns the first time at which a service is to be listed that failed before.
    pub(crate) fn next_retry(&self) -> Option<Instant> {
        let services = self.awaited.iter().filter_map(|of| self.services.get(of));
        services.filter_map(|service| service.retry_at).min()
    }

    /// Returns the names of all services.
    pub(crate) fn names(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys().map(|name| &**name)
    }

    /// Returns a service.
    pub(crate) fn service(&self, name: &ServiceName) -> Option<&WantedService> {
        self.services.get(name)
    }

    /// Returns the version of a service's slices; `None` before the first list.
    pub(crate) fn version_of(&self, name: &ServiceName) -> Option<&str> {
        self.version.as_deref().filter(|_| self.knows(name))
    }

    /// Returns the number of the last version.
    pub(crate) fn last_version(&self) -> Option<u64> {
        self.version.as_deref().and_then(version_number)
    }

    /// True if a list was complete at some time.
    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed
    }

    fn knows(&self, name: &ServiceName) -> bool {
        self.services.contains_key(name) && !self.awaited.contains(name)
    }

    /// Returns the slices of a service; `None` while the service awaits a list.
    pub fn slices_of<'a>(
        &'a self,
        name: &ServiceName,
    ) -> Option<impl Iterator<Item = &'a Slice> + use<'a>> {
        let service = self.services.get(name).filter(|_| self.knows(name))?;
        Some(service.slices.values())
    }

    /// Returns the ports of a service, none if nobody needs them; `None` until all of the service is known that is needed.
    pub(crate) fn ports_of(&self, name: &ServiceName) -> Option<&[(Box<str>, u16)]> {
        let service = self.services.get(name).filter(|_| self.knows(name))?;
        match &service.ports {
            Some(ports) => Some(ports),
            None => (!service.needs_ports).then_some(&[]),
        }
    }

    /// Returns the services whose ports have not been asked for, though groups need the ports.
    pub(crate) fn names_without_ports(&self) -> Vec<ServiceName> {
        let lacks = |of: &WantedService| of.needs_ports && of.ports.is_none();
        let services = self.services.iter();
        let lacking = services.filter(|(name, of)| lacks(of) && self.knows(name));
        lacking.map(|(name, _)| ServiceName::clone(name)).collect()
    }

    /// Sets the ports of a service.
    pub(crate) fn set_ports(&mut self, name: &ServiceName, ports: Ports) {
        if let Some(service) = self.services.get_mut(name) {
            service.ports = Some(ports);
        }
        self.note_changed(name);
    }

    /// Has the members of a service told again.
    pub(crate) fn note_changed(&mut self, name: &ServiceName) {
        if let Some((name, _)) = self.services.get_key_value(name) {
            self.changed.insert(Arc::clone(name));
        }
    }

    /// Has the members of all services told again.
    pub(crate) fn note_all_changed(&mut self) {
        self.changed.extend(self.services.keys().cloned());
    }

    /// Takes the services whose members may have changed and of which all is known.
    pub(crate) fn take_changed(&mut self) -> Vec<ServiceName> {
        let is_known = |name: &&Arc<ServiceName>| self.ports_of(name).is_some();
        let known: Vec<_> = self.changed.iter().filter(is_known).cloned().collect();
        for name in &known {
            self.changed.remove(name);
        }
        { known.iter() }
            .map(|name| ServiceName::clone(name))
            .collect()
    }

    /// Notes that the own list of a service failed. The next one comes after a pause, which grows with failures in a row.
    pub(crate) fn note_failure(&mut self, name: &ServiceName, fault: &Fault, now: Instant) {
        if let Some(service) = self.services.get_mut(name) {
            let pace = &mut service.pace;
            let pause = pace.pause_after_failure(fault.retry_after, fastrand::f32());
            service.retry_at = Some(now + pause);
            service.error = Some(fault.message.clone());
            service.failures += 1;
        }
    }

    /// Takes the slices of awaited services from the store of their own list, which began when the last version was
    /// `since`. Returns the failures of single services.
    ///
    /// # Errors
    ///
    /// The list does not go together with the events of the watch.
    pub(crate) fn take_listed(
        &mut self,
        listed: &SharedSlices,
        since: Option<u64>,
    ) -> Result<Vec<(ServiceName, Fault)>, Fault> {
        let mut listed = listed.lock();
        let at = listed.last_version();
        let is_before = |version: Option<u64>| at.zip(version).is_some_and(|(at, of)| at < of);
        if is_before(since) || is_before(self.listed_at) {
            let message = "the API server lists an older version than before";
            return Err(Fault::new(message));
        }
        if is_before(self.early.dropped) {
            return Err(Fault::new("slices change faster than they can be listed"));
        }
        let mut faults = Vec::new();
        for (name, service) in std::mem::take(&mut listed.services) {
            let Some(name) = self.awaited.get(&name).cloned() else {
                continue;
            };
            if let Some(error) = service.error {
                faults.push((ServiceName::clone(&name), Fault::new(error)));
                continue;
            }
            let mut slices = service.slices;
            for (key, (version, event)) in &self.early.events {
                match event {
                    _ if !is_newer(*version, at) => {}
                    Some(of) if of.service == name => {
                        slices.insert(key.clone(), of.slice.clone());
                    }
                    _ => drop(slices.remove(key)),
                }
            }
            self.set_listed(&name, slices, at);
        }
        self.forget_early();
        Ok(faults)
    }

    /// Sets the slices of a service, from a list of a version.
    fn set_listed(&mut self, name: &Arc<ServiceName>, mut slices: ByKey, at: Option<u64>) {
        // A slice may have come from another service, before the watch has told so.
        slices.retain(|key, _| self.leave_owner(key, name, at).is_some());
        let Some(service) = self.services.get_mut(name) else {
            return;
        };
        if self.awaited.remove(name) || service.slices != slices {
            self.changed.insert(Arc::clone(name));
        }
        for key in service.slices.keys() {
            if self.owners.get(key).is_some_and(|owner| owner == name) {
                self.owners.remove(key);
            }
        }
        let keys = slices.keys().map(|key| (key.clone(), Arc::clone(name)));
        self.owners.extend(keys);
        service.slices = slices;
        service.listed_at = at;
        // The ports of the service may have changed, too.
        service.ports = None;
        service.lists += 1;
        (service.error, service.retry_at) = (None, None);
        service.pace = Pace::default();
    }

    /// Forgets the events that were kept for awaited services, if there are none.
    fn forget_early(&mut self) {
        if self.awaited.is_empty() {
            self.early = EarlyEvents::default();
        }
    }

    /// Keeps an event for awaited services.
    fn note_early(&mut self, key: &str, object: Option<&ServiceSlice>) {
        if self.awaited.is_empty() {
            return;
        }
        let version = self.last_version();
        let object = object.filter(|of| self.awaited.contains(&of.service));
        let event = (version, object.cloned());
        self.early.events.insert(key.into(), event);
        if self.early.events.len() > MAX_EARLY {
            self.early.events = HashMap::new();
            self.early.dropped = version;
        }
    }

    /// Reads a slice; `None` if nobody wants the service.
    fn read_slice(&self, key: &str, mut slice: UnreadSlice<'_>) -> Option<ServiceSlice> {
        let (namespace, _) = key.split_once('/').unwrap_or_default();
        let name = (namespace.to_owned(), std::mem::take(&mut slice.service));
        let (service, _) = self.services.get_key_value(&name)?;
        // A slice that cannot be read has no endpoints, and harms its own service alone: others share the watch.
        let slice = slice.read().unwrap_or_else(|error| {
            tracing::warn!("kubernetes: the EndpointSlice {key} is left out: {error}");
            Slice::default()
        });
        Some(ServiceSlice {
            service: Arc::clone(service),
            slice,
        })
    }

    /// Returns the only service, which all pods are of.
    fn service_of_pods(&self) -> Option<Arc<ServiceName>> {
        let mut names = self.services.keys();
        names.next().filter(|_| self.are_pods).cloned()
    }

    /// Returns the error of too many slices or endpoints.
    fn find_excess(&self, (slices, endpoints): (usize, usize)) -> Option<&'static str> {
        let (most, error) = match self.are_pods {
            true => (MAX_PODS, "the labels choose more than 20000 pods"),
            false => (
                MAX_SLICES,
                "the service has more than 2000 slices or 50000 endpoints",
            ),
        };
        (slices > most || endpoints > MAX_SERVICE_ENDPOINTS).then_some(error)
    }

    /// Counts a slice of the list that has begun. Returns the slice, unless the service has too many.
    fn count_listed(&mut self, object: ServiceSlice) -> Option<ServiceSlice> {
        let service = self.services.get_mut(&object.service)?;
        service.counted.0 += 1;
        service.counted.1 += object.slice.endpoints.len();
        let counted = service.counted;
        self.find_excess(counted).is_none().then_some(object)
    }

    /// Puts a complete list in place of all that is known.
    fn replace_slices(&mut self, objects: BTreeMap<String, ServiceSlice>) {
        let mut by_service: HashMap<Arc<ServiceName>, ByKey> = HashMap::new();
        for (key, ServiceSlice { service, slice }) in objects {
            by_service
                .entry(service)
                .or_default()
                .insert(key.into(), slice);
        }
        let at = self.last_version();
        let mut in_list = Vec::new();
        for (name, service) in &mut self.services {
            if std::mem::take(&mut service.is_in_list) {
                in_list.push((Arc::clone(name), service.counted));
            } else if is_newer(at, service.listed_at) {
                // The watch does not tell of changes before this list.
                self.awaited.insert(Arc::clone(name));
            }
        }
        // The list alone says whose each slice is, also if the server has gone back to an older version.
        let listed: BTreeSet<&Arc<ServiceName>> = in_list.iter().map(|(name, _)| name).collect();
        self.owners.retain(|_, owner| !listed.contains(owner));
        for (name, counted) in in_list {
            match self.find_excess(counted) {
                Some(error) => self.note_excess(&name, error),
                None => {
                    let slices = by_service.remove(&name).unwrap_or_default();
                    self.set_listed(&name, slices, at);
                }
            }
        }
        (self.is_listed, self.listed_at) = (true, at);
        // The watch begins at this version, and tells of all later events again.
        self.early = EarlyEvents::default();
    }

    /// Notes that a service has too many slices or endpoints: its members stay, until a list of its own is within the bounds.
    fn note_excess(&mut self, name: &Arc<ServiceName>, error: &str) {
        if let Some(service) = self.services.get_mut(name) {
            service.error = Some(error.to_owned());
            service.failures += 1;
            self.awaited.insert(Arc::clone(name));
        }
    }

    /// Puts a slice in place of the one with its name. Returns true if members may have changed.
    fn put_slice(&mut self, key: &str, object: ServiceSlice) -> bool {
        self.note_early(key, Some(&object));
        let ServiceSlice {
            service: name,
            slice,
        } = object;
        let (version, is_awaited) = (self.last_version(), self.awaited.contains(&name));
        let Some(has_left) = self.leave_owner(key, &name, version) else {
            return false;
        };
        let Some(service) = self.services.get_mut(&name) else {
            return has_left;
        };
        service.events += 1;
        let is_known = service.slices.get(key) == Some(&slice);
        if is_known || is_awaited || !is_newer(version, service.listed_at) {
            return has_left;
        }
        service.slices.insert(key.into(), slice);
        let slices = service.slices.values();
        let endpoints = slices.map(|slice| slice.endpoints.len()).sum();
        let counts = (service.slices.len(), endpoints);
        self.owners.insert(key.into(), Arc::clone(&name));
        if let Some(error) = self.find_excess(counts) {
            self.note_excess(&name, error);
        }
        self.changed.insert(name);
        true
    }

    /// Takes a slice that is another service's at a version from the service that has the slice. Returns true if there was
    /// such a service; `None` if the list of this service is newer, so that the slice stays.
    fn leave_owner(
        &mut self,
        key: &str,
        other: &Arc<ServiceName>,
        version: Option<u64>,
    ) -> Option<bool> {
        let owner = self.owners.get(key).filter(|owner| *owner != other);
        let Some(owner) = owner.cloned() else {
            return Some(false);
        };
        // The list of an awaited service brings its slices.
        let is_awaited = self.awaited.contains(&owner);
        if let Some(service) = self.services.get_mut(&owner) {
            if !is_awaited && !is_newer(version, service.listed_at) {
                return None;
            }
            service.events += 1;
            service.slices.remove(key);
        }
        self.owners.remove(key);
        self.changed.insert(owner);
        Some(true)
    }

    /// Removes a slice. Returns true if members may have changed.
    fn remove_slice(&mut self, key: &str) -> bool {
        self.note_early(key, None);
        match self.owners.get(key).cloned() {
            Some(owner) => self.take_slice(&owner, key),
            None => false,
        }
    }

    /// Removes a slice from a service. Returns true if members may have changed.
    fn take_slice(&mut self, owner: &Arc<ServiceName>, key: &str) -> bool {
        let (version, is_awaited) = (self.last_version(), self.awaited.contains(owner));
        let Some(service) = self.services.get_mut(owner) else {
            return false;
        };
        service.events += 1;
        if is_awaited || !is_newer(version, service.listed_at) {
            return false;
        }
        service.slices.remove(key);
        self.owners.remove(key);
        self.changed.insert(Arc::clone(owner));
        true
    }
}

impl SharedSlices {
    /// A store of the slices of services, of which nothing is known yet.
    pub fn of_services(names: impl IntoIterator<Item = ServiceName>) -> Self {
        SharedSlices(Arc::new(Mutex::new(Slices::new(names, false))))
    }

    /// A store of the pods that labels choose, each of which is a slice.
    pub fn of_pods(name: ServiceName) -> Self {
        SharedSlices(Arc::new(Mutex::new(Slices::new([name], true))))
    }

    /// Returns the slices, which nobody else can use meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, Slices> {
        self.0.lock()
    }
}

impl Store for SharedSlices {
    type Object = ServiceSlice;

    fn parse_page(&self, body: &[u8]) -> Result<Page<ServiceSlice>, ListError> {
        let mut slices = self.lock();
        Ok(match slices.service_of_pods() {
            Some(service) => list::parse_page::<RawPod>(body)?.keep_objects(|_, slice| {
                let service = Arc::clone(&service);
                slices.count_listed(ServiceSlice { service, slice })
            }),
            None => list::parse_page::<RawSlice<'_>>(body)?.keep_objects(|key, slice| {
                let object = slices.read_slice(key, slice)?;
                slices.count_listed(object)
            }),
        })
    }

    fn parse_event(&self, line: &[u8]) -> Result<Event<ServiceSlice>, ListError> {
        let slices = self.lock();
        Ok(match slices.service_of_pods() {
            Some(service) => list::parse_event::<RawPod>(line)?
                .keep_object(|_, slice| Some(ServiceSlice { service, slice })),
            None => list::parse_event::<RawSlice<'_>>(line)?
                .keep_object(|key, slice| slices.read_slice(key, slice)),
        })
    }

    /// Bounds are those of each service: a service beyond them harms no other.
    fn check(&self, _: &BTreeMap<String, ServiceSlice>) -> Result<(), Fault> {
        Ok(())
    }

    fn replace(&mut self, objects: BTreeMap<String, ServiceSlice>) {
        self.lock().replace_slices(objects);
    }

    fn put(&mut self, key: String, object: ServiceSlice) -> Result<bool, Fault> {
        Ok(self.lock().put_slice(&key, object))
    }

    fn remove(&mut self, key: &str) -> bool {
        self.lock().remove_slice(key)
    }

    fn note_version(&mut self, version: &str) {
        self.lock().version = Some(version.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::watcher::Watcher;

    fn name(service: &str) -> ServiceName {
        ("shop".into(), service.into())
    }

    fn object(slice: &str, service: &str, version: u64, addresses: &[&str]) -> String {
        let endpoints = { addresses.iter() }
            .map(|address| format!(r#"{{"addresses":["{address}"]}}"#))
            .collect::<Vec<_>>();
        format!(
            r#"{{"metadata":{{"name":"{slice}","namespace":"shop","resourceVersion":"{version}",
                "labels":{{"kubernetes.io/service-name":"{service}"}}}},
                "ports":[{{"name":"http","port":80}}],"endpoints":[{}]}}"#,
            endpoints.join(",")
        )
        .replace('\n', "")
    }

    fn page(version: u64, next: &str, objects: &[String]) -> Vec<u8> {
        let items = objects.join(",");
        let metadata = format!(r#"{{"resourceVersion":"{version}","continue":"{next}"}}"#);
        format!(r#"{{"metadata":{metadata},"items":[{items}]}}"#).into_bytes()
    }

    /// Slices with a watcher that puts lists and events into them.
    struct World {
        slices: SharedSlices,
        watcher: Watcher<SharedSlices>,
    }

    impl World {
        fn new(services: &[&str]) -> Self {
            let slices = SharedSlices::of_services(services.iter().map(|of| name(of)));
            let watcher = Watcher::with_store(slices.clone());
            World { slices, watcher }
        }

        /// Takes a whole list, as a first one or instead of the one before.
        fn list(&mut self, version: u64, objects: &[String]) {
            self.watcher.list_again();
            self.slices.lock().begin_list();
            let page = page(version, "", objects);
            assert!(self.watcher.take_page(&page).unwrap());
        }

        /// Takes an event of a watch.
        fn tell(&mut self, kind: &str, object: &str) {
            let text = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
            let mut fault = None;
            self.watcher.take_bytes(text.as_bytes(), &mut fault);
            assert!(fault.is_none(), "{fault:?}");
        }

        /// Takes the own list of awaited services, which began at the version `since`.
        fn list_awaited(
            &mut self,
            services: &[&str],
            (since, version): (u64, u64),
            objects: &[String],
        ) -> Result<Vec<(ServiceName, Fault)>, Fault> {
            let mut own = World::new(services);
            own.list(version, objects);
            self.slices.lock().take_listed(&own.slices, Some(since))
        }

        fn addresses(&self, service: &str) -> Option<Vec<String>> {
            let slices = self.slices.lock();
            let endpoints = slices
                .slices_of(&name(service))?
                .flat_map(|slice| &slice.endpoints);
            Some(endpoints.map(|of| of.address.to_string()).collect())
        }

        fn changed(&self) -> Vec<String> {
            let changed = self.slices.lock().take_changed();
            changed.into_iter().map(|(_, service)| service).collect()
        }
    }

    #[test]
    fn slices_of_wanted_services_alone_are_kept() {
        let mut world = World::new(&["a", "b"]);
        assert!(world.addresses("a").is_none());
        world.list(
            5,
            &[
                object("a-1", "a", 1, &["10.0.0.1"]),
                object("c-1", "c", 2, &["10.0.0.9"]),
                object("", "", 3, &[]).replace(r#""name":"""#, r#""name":"loose""#),
            ],
        );
        assert_eq!(world.addresses("a").unwrap(), ["10.0.0.1"]);
        assert!(world.addresses("b").unwrap().is_empty());
        assert!(world.addresses("c").is_none());
        assert_eq!(world.changed(), ["a", "b"]);
        world.tell("ADDED", &object("c-2", "c", 6, &["10.0.0.8"]));
        world.tell("DELETED", &object("c-1", "c", 7, &[]));
        assert!(world.changed().is_empty());
        // What nobody wants is not even read.
        let broken = object("c-3", "c", 8, &[]).replace("\"endpoints\":[]", "\"endpoints\":7");
        world.tell("ADDED", &broken);
        world.tell("ADDED", &object("b-1", "b", 9, &["10.0.0.2"]));
        assert_eq!(world.changed(), ["b"]);
        let slices = world.slices.lock();
        assert_eq!(slices.owners.len(), 2);
        assert_eq!(slices.version_of(&name("a")), Some("9"));
    }

    #[test]
    fn a_slice_may_go_to_another_service() {
        let mut world = World::new(&["a", "b"]);
        world.list(5, &[object("x", "a", 1, &["10.0.0.1"])]);
        world.changed();
        world.tell("MODIFIED", &object("x", "b", 6, &["10.0.0.1"]));
        assert!(world.addresses("a").unwrap().is_empty());
        assert_eq!(world.addresses("b").unwrap(), ["10.0.0.1"]);
        assert_eq!(world.changed(), ["a", "b"]);
        world.tell("MODIFIED", &object("x", "nobody", 7, &["10.0.0.1"]));
        assert!(world.addresses("b").unwrap().is_empty());
        world.tell("DELETED", &object("x", "nobody", 8, &["10.0.0.1"]));
        assert_eq!(world.changed(), ["b"]);
        // A list says the same.
        world.list(9, &[object("x", "a", 9, &["10.0.0.1"])]);
        world.list(12, &[object("x", "b", 10, &["10.0.0.1"])]);
        world.tell("DELETED", &object("x", "b", 13, &[]));
        assert!(
            world.addresses("a").unwrap().is_empty() && world.addresses("b").unwrap().is_empty()
        );
    }

    #[test]
    fn a_list_of_a_service_takes_slices_from_others_before_the_watch_tells_so() {
        let mut world = World::new(&["a"]);
        world.list(
            10,
            &[
                object("x", "a", 1, &["10.0.0.1"]),
                object("y", "a", 1, &["10.0.0.2"]),
            ],
        );
        world.changed();
        world.slices.lock().want_service(&name("b"), false);
        let listed = [object("x", "b", 15, &["10.0.0.1"])];
        world.list_awaited(&["b"], (10, 20), &listed).unwrap();
        assert_eq!(world.addresses("a").unwrap(), ["10.0.0.2"]);
        assert_eq!(world.addresses("b").unwrap(), ["10.0.0.1"]);
        assert_eq!(world.changed(), ["a", "b"]);
        // The watch is behind the list: the slice was changed before it moved.
        world.tell("MODIFIED", &object("x", "a", 12, &["10.0.0.9"]));
        world.tell("MODIFIED", &object("x", "b", 15, &["10.0.0.1"]));
        assert_eq!(world.addresses("a").unwrap(), ["10.0.0.2"]);
        assert!(world.changed().is_empty());
        world.tell("DELETED", &object("x", "b", 21, &[]));
        assert!(world.addresses("b").unwrap().is_empty());
    }

    /// Step of a cluster, or of those who look at it.
    #[derive(Clone, Debug)]
    enum ClusterStep {
        /// A slice gets to a service, and another address.
        Put(usize, usize),
        /// A slice is deleted.
        Delete(usize),
        /// The watch tells of the next change.
        Tell,
        /// Services that await a list are listed.
        ListAwaited,
        /// A service is to be listed again.
        Await(usize),
        /// Everything is listed, and the watch begins anew.
        ListAll,
    }

    const SERVICES: [&str; 3] = ["a", "b", "c"];

    /// Cluster with slices of three services, whose changes a watch tells later.
    #[derive(Default)]
    struct Cluster {
        version: u64,
        /// Slices, each with its service and the object.
        slices: BTreeMap<usize, (usize, String)>,
        /// Changes that the watch has not told of.
        untold: std::collections::VecDeque<(&'static str, String)>,
    }

    impl Cluster {
        fn change(&mut self, kind: &'static str, slice: usize, service: usize) {
            self.version += 1;
            let version = self.version;
            let address = format!("10.0.{}.{}", version / 256, version % 256);
            let object = object(
                &format!("s{slice}"),
                SERVICES[service],
                version,
                &[&address],
            );
            self.slices.insert(slice, (service, object.clone()));
            if kind == "DELETED" {
                self.slices.remove(&slice);
            }
            self.untold.push_back((kind, object));
        }

        fn objects(&self, services: &[&str]) -> Vec<String> {
            let slices = self.slices.values();
            let listed = slices.filter(|(service, _)| services.contains(&SERVICES[*service]));
            listed.map(|(_, object)| object.clone()).collect()
        }

        fn take(&mut self, step: &ClusterStep, world: &mut World) {
            match *step {
                ClusterStep::Put(slice, service) => {
                    let is_there = self.slices.contains_key(&slice);
                    let kind = if is_there { "MODIFIED" } else { "ADDED" };
                    self.change(kind, slice, service);
                }
                ClusterStep::Delete(slice) => {
                    if let Some((service, _)) = self.slices.get(&slice) {
                        self.change("DELETED", slice, *service);
                    }
                }
                ClusterStep::Tell => {
                    if let Some((kind, object)) = self.untold.pop_front() {
                        world.tell(kind, &object);
                    }
                }
                ClusterStep::ListAwaited => {
                    let (due, since) = {
                        let slices = world.slices.lock();
                        (slices.due_names(Instant::now(), 9), slices.last_version())
                    };
                    let names: Vec<&str> = due.iter().map(|(_, name)| &**name).collect();
                    let objects = self.objects(&names);
                    let between = (since.unwrap(), self.version);
                    let faults = world.list_awaited(&names, between, &objects);
                    assert!(faults.unwrap().is_empty());
                }
                ClusterStep::Await(service) => {
                    world.slices.lock().await_list(&name(SERVICES[service]));
                }
                ClusterStep::ListAll => {
                    world.list(self.version, &self.objects(&SERVICES));
                    self.untold.clear();
                }
            }
        }
    }

    proptest! {
        #[test]
        fn services_have_their_slices_however_lists_and_events_mix(steps in prop::collection::vec(
            prop_oneof![
                4 => (0..4_usize, 0..3_usize).prop_map(|(slice, service)| ClusterStep::Put(slice, service)),
                1 => (0..4_usize).prop_map(ClusterStep::Delete),
                4 => Just(ClusterStep::Tell),
                2 => Just(ClusterStep::ListAwaited),
                2 => (0..3_usize).prop_map(ClusterStep::Await),
                1 => Just(ClusterStep::ListAll),
            ],
            0..60,
        )) {
            let mut world = World::new(&SERVICES);
            let mut cluster = Cluster { version: 10, ..Cluster::default() };
            world.list(10, &[]);
            for step in &steps {
                cluster.take(step, &mut world);
            }
            while !cluster.untold.is_empty() {
                cluster.take(&ClusterStep::Tell, &mut world);
            }
            cluster.take(&ClusterStep::ListAwaited, &mut world);
            let mut count = 0;
            for service in SERVICES {
                let wanted = cluster.objects(&[service]);
                let found = world.addresses(service).unwrap();
                prop_assert_eq!(found.len(), wanted.len(), "{}", service);
                for address in &found {
                    let is_there = wanted.iter().any(|of| of.contains(&format!("\"{address}\"")));
                    prop_assert!(is_there, "{} of {}", address, service);
                }
                count += found.len();
            }
            prop_assert_eq!(world.slices.lock().owners.len(), count);
        }
    }

    #[test]
    fn an_awaited_service_is_what_its_list_and_later_events_say() {
        let mut world = World::new(&["a"]);
        world.list(10, &[]);
        world.slices.lock().want_service(&name("b"), false);
        assert_eq!(
            world.slices.lock().due_names(Instant::now(), 9),
            [name("b")]
        );
        // The list is of the version 14: it has the first two events, and lacks the others.
        world.tell("ADDED", &object("b-1", "b", 11, &["10.0.0.1"]));
        world.tell("DELETED", &object("b-2", "b", 12, &[]));
        world.tell("ADDED", &object("b-3", "b", 15, &["10.0.0.3"]));
        world.tell("DELETED", &object("b-4", "b", 16, &[]));
        world.tell("MODIFIED", &object("b-5", "a", 17, &["10.0.0.5"]));
        assert!(world.addresses("b").is_none());
        let listed = [
            object("b-1", "b", 13, &["10.0.0.11"]),
            object("b-4", "b", 9, &["10.0.0.4"]),
            object("b-5", "b", 9, &["10.0.0.5"]),
            object("b-6", "b", 9, &["10.0.0.6"]),
        ];
        assert!(
            world
                .list_awaited(&["b"], (10, 14), &listed)
                .unwrap()
                .is_empty()
        );
        let wanted = ["10.0.0.11", "10.0.0.3", "10.0.0.6"];
        assert_eq!(world.addresses("b").unwrap(), wanted);
        assert_eq!(world.addresses("a").unwrap(), ["10.0.0.5"]);
        assert!(world.slices.lock().early.events.is_empty());
        world.tell("DELETED", &object("b-3", "b", 18, &[]));
        assert_eq!(world.addresses("b").unwrap(), ["10.0.0.11", "10.0.0.6"]);
    }

    #[test]
    fn events_that_a_list_has_already_change_nothing() {
        let mut world = World::new(&["a"]);
        world.list(10, &[]);
        world.slices.lock().want_service(&name("b"), false);
        let listed = [object("b-1", "b", 20, &["10.0.0.2"])];
        world.list_awaited(&["b"], (10, 20), &listed).unwrap();
        world.changed();
        // The watch is behind the list.
        world.tell("ADDED", &object("b-1", "b", 11, &["10.0.0.1"]));
        world.tell("ADDED", &object("b-2", "b", 12, &["10.0.0.9"]));
        world.tell("DELETED", &object("b-1", "b", 13, &[]));
        assert_eq!(world.addresses("b").unwrap(), ["10.0.0.2"]);
        assert!(world.changed().is_empty());
        world.tell("MODIFIED", &object("b-1", "b", 21, &["10.0.0.3"]));
        assert_eq!(world.addresses("b").unwrap(), ["10.0.0.3"]);
    }

    #[test]
    fn lists_that_do_not_go_together_are_not_taken() {
        let mut world = World::new(&["a"]);
        world.list(10, &[]);
        world.slices.lock().want_service(&name("b"), false);
        assert!(world.list_awaited(&["b"], (10, 9), &[]).is_err());
        // A list of all services begins before the service is wanted, and ends with a newer version than the service's own
        // list has: changes in between are in neither.
        world.slices.lock().begin_list();
        world.slices.lock().want_service(&name("c"), false);
        world.list_awaited(&["c"], (10, 11), &[]).unwrap();
        assert!(world.addresses("c").unwrap().is_empty());
        world.watcher.list_again();
        let all = page(20, "", &[object("b-1", "b", 5, &["10.0.0.1"])]);
        assert!(world.watcher.take_page(&all).unwrap());
        assert_eq!(world.addresses("b").unwrap(), ["10.0.0.1"]);
        assert_eq!(
            world.slices.lock().due_names(Instant::now(), 9),
            [name("c")]
        );
        assert!(world.list_awaited(&["c"], (10, 15), &[]).is_err());
        world.list_awaited(&["c"], (20, 20), &[]).unwrap();
        assert!(world.addresses("c").unwrap().is_empty());
    }

    #[test]
    fn a_service_beyond_the_bounds_harms_no_other() {
        let mut world = World::new(&["a", "b"]);
        let many: Vec<String> = (0..=MAX_SLICES)
            .map(|number| object(&format!("a-{number}"), "a", 1, &[]))
            .collect();
        world.list(3, &[object("b-1", "b", 2, &["10.0.0.1"])]);
        world.changed();
        for (number, object) in many.iter().enumerate() {
            let version = format!(r#""resourceVersion":"{}""#, 4 + number);
            world.tell(
                "ADDED",
                &object.replace(r#""resourceVersion":"1""#, &version),
            );
        }
        let error = |world: &World, service: &str| {
            let slices = world.slices.lock();
            slices.service(&name(service)).unwrap().error.clone()
        };
        assert!(
            error(&world, "a")
                .unwrap()
                .contains("more than 2000 slices")
        );
        assert!(world.addresses("a").is_none() && error(&world, "b").is_none());
        // It is listed on its own until it is within the bounds.
        let at = (3 + many.len()) as u64;
        let faults = world.list_awaited(&["a"], (at, at), &[]).unwrap();
        assert!(faults.is_empty() && error(&world, "a").is_none());
        // The same in a list of all: objects beyond the bounds are not even kept until its end.
        world.watcher.list_again();
        world.slices.lock().begin_list();
        for (number, part) in many.chunks(1000).enumerate() {
            let next = if number < 2 { "more" } else { "" };
            let whole = world.watcher.take_page(&page(at, next, part)).unwrap();
            assert_eq!(whole, next.is_empty());
        }
        assert!(world.addresses("a").is_none() && error(&world, "a").is_some());
        assert!(world.addresses("b").unwrap().is_empty());
        let mut own = World::new(&["a"]);
        own.slices.lock().begin_list();
        for (number, part) in many.chunks(1000).enumerate() {
            let next = if number < 2 { "more" } else { "" };
            own.watcher.take_page(&page(at, next, part)).unwrap();
        }
        let faults = world.slices.lock().take_listed(&own.slices, Some(at));
        assert_eq!(faults.unwrap().len(), 1);
    }

    #[test]
    fn a_service_that_nobody_wants_is_forgotten() {
        let mut world = World::new(&["a", "b"]);
        world.list(
            5,
            &[
                object("a-1", "a", 1, &["10.0.0.1"]),
                object("b-1", "b", 1, &["10.0.0.2"]),
            ],
        );
        world.slices.lock().retain_services(|of| *of == name("b"));
        assert!(world.addresses("a").is_none());
        assert_eq!(world.slices.lock().owners.len(), 1);
        assert_eq!(world.changed(), ["b"]);
        world.tell("MODIFIED", &object("a-1", "a", 6, &["10.0.0.3"]));
        assert!(world.changed().is_empty());
    }

    #[test]
    fn ports_are_asked_for_once_and_again_after_a_list() {
        let mut world = World::new(&[]);
        world.slices.lock().want_service(&name("a"), true);
        world.list(5, &[object("a-1", "a", 1, &["10.0.0.1"])]);
        assert!(world.changed().is_empty(), "the ports are not known");
        assert_eq!(world.slices.lock().names_without_ports(), [name("a")]);
        let ports = vec![("http".into(), 80)];
        world.slices.lock().set_ports(&name("a"), ports.clone());
        assert_eq!(world.changed(), ["a"]);
        assert_eq!(world.slices.lock().ports_of(&name("a")), Some(&ports[..]));
        world.list(6, &[]);
        assert_eq!(world.slices.lock().names_without_ports(), [name("a")]);
    }

    #[test]
    fn too_many_early_events_are_dropped_and_a_newer_list_is_needed() {
        let mut world = World::new(&["a"]);
        world.list(1, &[]);
        world.slices.lock().want_service(&name("b"), false);
        for number in 0..=MAX_EARLY as u64 {
            let slice = object(&format!("b-{number}"), "b", number + 2, &[]);
            world.tell("ADDED", &slice);
        }
        assert!(world.slices.lock().early.events.is_empty());
        let last = MAX_EARLY as u64 + 2;
        assert!(world.list_awaited(&["b"], (1, last - 1), &[]).is_err());
        world.list_awaited(&["b"], (1, last), &[]).unwrap();
    }
}

//! Objects of the cluster as far as they are known, and the store into which watchers put objects of a kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_tls::certificate::unix_now;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tracing::warn;

use super::ingress::is_own;
use super::ingress_spec::{AUTH_SECRET, AUTH_TLS_SECRET};
use super::objects::{Ingress, Kind, ObjectName, Objects};
use super::raw_object::RawAny;
use super::reported::{ReportedStatus, ReportedStatuses};
use super::settings::{IngressSettings, Settings};
use crate::list::{self, Event, Fault, ListError, Page, Store};
use crate::status::KindStatus;

/// Most objects of a kind.
const MAX_OBJECTS: usize = 50_000;

/// Objects of the cluster.
#[derive(Debug, Default)]
pub struct World {
    state: Mutex<State>,
    changed: Notify,
    /// True if objects have changed since somebody has waited for a change.
    has_changes: AtomicBool,
    /// Notified if objects have other versions, and perhaps other statuses.
    reported: Notify,
    /// Kinds that are followed on demand, once an object refers to objects of the kind.
    demand: watch::Sender<BTreeSet<Kind>>,
}

#[derive(Debug, Default)]
struct State {
    objects: Objects,
    /// Objects that have changed since [`World::update_objects`].
    changed: BTreeSet<(Kind, ObjectName)>,
    reported: ReportedStatuses,
    /// Kinds that have been listed, or that the cluster does not have.
    known: BTreeSet<Kind>,
    kinds: BTreeMap<Kind, KindStatus>,
    /// Settings of Ingresses. If there are some, a cluster need not have the Gateway API.
    ingress: Option<IngressSettings>,
    /// True once an Ingress that is served refers to a secret that may be of the type `Opaque`.
    needs_opaque_secrets: bool,
}

impl State {
    fn knows_all(&self) -> bool {
        let is_needed = |kind: Kind| match kind {
            Kind::ConfigMap => self.objects.need_config_maps(),
            Kind::OpaqueSecret => self.needs_opaque_secrets,
            _ => true,
        };
        Kind::ALL
            .into_iter()
            .all(|kind| self.known.contains(&kind) || !is_needed(kind))
    }

    /// True if an Ingress is served, and refers to a secret that may be of the type `Opaque`.
    fn refers_to_secret(&self, ingress: &Ingress) -> bool {
        let annotations = &ingress.metadata.annotations;
        let mut names = [AUTH_SECRET, AUTH_TLS_SECRET].into_iter();
        let settings = self.ingress.as_ref();
        names.any(|name| annotations.contains_key(name))
            && settings.is_some_and(|of| is_own(ingress, &self.objects, of))
    }

    /// Returns the kind of objects that are to be followed since an object was put.
    fn find_demand(&mut self, kind: Kind, name: &ObjectName) -> Option<Kind> {
        let objects = &self.objects;
        let demanded = match kind {
            Kind::BackendTlsPolicy => Kind::ConfigMap,
            Kind::Gateway => {
                let gateway = objects.gateways.get(name)?;
                gateway
                    .spec
                    .names_authorities()
                    .then_some(Kind::ConfigMap)?
            }
            Kind::Ingress => {
                let is_referring = self.refers_to_secret(objects.ingresses.get(name)?);
                is_referring.then_some(Kind::OpaqueSecret)?
            }
            // Ingresses may have been there before their class.
            Kind::IngressClass => {
                let mut ingresses = objects.ingresses.values();
                let is_referring = ingresses.any(|of| self.refers_to_secret(of));
                is_referring.then_some(Kind::OpaqueSecret)?
            }
            _ => return None,
        };
        self.needs_opaque_secrets |= demanded == Kind::OpaqueSecret;
        Some(demanded)
    }

    /// Removes an object. Returns true if it was there.
    fn remove(&mut self, kind: Kind, name: &ObjectName) -> bool {
        let is_removed = self.objects.remove(kind, name);
        if is_removed {
            self.changed.insert((kind, name.clone()));
        }
        self.reported.remove(kind, name);
        is_removed
    }
}

impl World {
    /// Makes a world of the kinds that a controller with these settings follows.
    pub fn new(settings: &Settings) -> Self {
        let world = World::default();
        {
            let mut state = world.state.lock();
            state.ingress.clone_from(&settings.ingress);
            let others = Kind::ALL
                .into_iter()
                .filter(|kind| !settings.follows(*kind));
            state.known.extend(others);
        }
        world
    }

    fn update(&self, kind: Kind, change: impl FnOnce(&mut KindStatus)) {
        let mut state = self.state.lock();
        let status = state.kinds.entry(kind).or_insert_with(|| KindStatus {
            kind: kind.name().into(),
            ..KindStatus::default()
        });
        change(status);
    }

    /// Notes that all objects of a kind have been listed.
    pub fn note_listed(&self, kind: Kind, version: &str) {
        self.update(kind, |status| {
            status.version = Some(version.to_owned());
            status.lists += 1;
        });
        self.note_answer(kind);
        self.state.lock().known.insert(kind);
        self.note_change();
    }

    /// Notes an answer, or events.
    pub(crate) fn note_answer(&self, kind: Kind) {
        self.update(kind, |status| {
            status.last_success = Some(unix_now());
            status.error = None;
        });
    }

    /// Notes that a question about a kind has failed. An optional kind without the right to list it counts as one without
    /// objects: rights from before the kind was followed keep no gateway from serving.
    pub(crate) fn note_fault(&self, kind: Kind, fault: &Fault) {
        // Only Ingresses that refer to secrets wait for Opaque ones.
        let may_be_missed =
            fault.code == 403 && (kind == Kind::OpaqueSecret || self.is_optional(kind));
        if may_be_missed && self.state.lock().known.insert(kind) {
            self.note_change();
        }
        let mut is_new = false;
        self.update(kind, |status| {
            is_new = status.error.as_ref() != Some(&fault.message);
            status.error = Some(fault.message.clone());
            status.failures += 1;
        });
        if is_new {
            warn!(
                kind = kind.name(),
                "gateways: objects are not followed: {}", fault.message
            );
        }
    }

    /// True for kinds without which the controller works.
    fn is_optional(&self, kind: Kind) -> bool {
        kind.is_optional() || kind.is_of_gateways() && self.state.lock().ingress.is_some()
    }

    /// Notes that the cluster does not have a kind. Kinds that the controller needs are missed; without the others it
    /// goes on.
    pub(crate) fn note_absent(&self, kind: Kind) {
        if self.is_optional(kind) {
            self.note_answer(kind);
            if self.state.lock().known.insert(kind) {
                self.note_change();
            }
            return;
        }
        let message = format!(
            "the cluster has no {}: install the CRDs of the Gateway API",
            kind.name()
        );
        self.note_fault(kind, &Fault::new(message));
    }

    /// True if objects of a kind are to be followed by now.
    pub(crate) fn needs(&self, kind: Kind) -> bool {
        !kind.is_on_demand() || self.demand.borrow().contains(&kind)
    }

    /// Waits until objects of a kind are to be followed. Few clusters have passwords, or objects that refer to ConfigMaps, and
    /// all have many ConfigMaps and secrets.
    pub(crate) async fn wait_for_demand(&self, kind: Kind) {
        if kind.is_on_demand() {
            // The sender is a part of the world.
            let wanted = |kinds: &BTreeSet<Kind>| kinds.contains(&kind);
            let _ = self.demand.subscribe().wait_for(wanted).await;
        }
    }

    /// Returns the version of a kind's API that the cluster has.
    pub(crate) fn version_of(&self, kind: Kind) -> Option<String> {
        let state = self.state.lock();
        state.kinds.get(&kind)?.version.clone()
    }

    /// Notes that objects have changed.
    pub(crate) fn note_change(&self) {
        self.has_changes.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Waits until objects have changed. A change is told at once; all changes that come before somebody waits again are one
    /// change.
    pub(crate) async fn wait_for_change(&self) {
        self.changed.notified().await;
        self.has_changes.store(false, Ordering::Relaxed);
    }

    /// True if objects have changed since somebody has waited for a change.
    pub(crate) fn has_changes(&self) -> bool {
        self.has_changes.load(Ordering::Relaxed)
    }

    /// Returns all objects; `None` until all kinds are known.
    pub fn objects(&self) -> Option<Objects> {
        let state = self.state.lock();
        state.knows_all().then(|| state.objects.clone())
    }

    /// Brings a copy of all objects up to date, which this function alone changes. Returns false until all kinds are known.
    pub(crate) fn update_objects(&self, copy: &mut Objects) -> bool {
        let mut state = self.state.lock();
        if !state.knows_all() {
            return false;
        }
        for (kind, name) in std::mem::take(&mut state.changed) {
            copy.copy(kind, &name, &state.objects);
        }
        true
    }

    /// Returns the status of an object at the API server.
    pub(crate) fn find_status(&self, kind: Kind, name: &ObjectName) -> Option<ReportedStatus> {
        self.state.lock().reported.find(kind, name).cloned()
    }

    /// Waits until objects have other versions.
    pub(crate) async fn wait_for_statuses(&self) {
        self.reported.notified().await;
    }

    /// Returns the objects whose version has changed since the call before.
    pub(crate) fn take_changed_statuses(&self) -> BTreeSet<(Kind, ObjectName)> {
        self.state.lock().reported.take_changed()
    }

    /// Returns the status of each kind.
    pub(crate) fn kinds(&self) -> Vec<KindStatus> {
        let state = self.state.lock();
        let kinds = state.kinds.iter();
        kinds
            .map(|(kind, status)| KindStatus {
                objects: state.objects.count(*kind),
                ..status.clone()
            })
            .collect()
    }
}

/// Store of the objects of a kind, which are part of the world.
#[derive(Clone, Debug)]
pub struct KindStore {
    /// Kind of the objects.
    pub kind: Kind,
    /// World whose part the objects are.
    pub world: Arc<World>,
}

impl KindStore {
    /// Puts an object into the world. An object that cannot be read harms nobody else: the one that was known stays.
    fn put_object(&self, name: &str, object: Value) -> bool {
        let kind = self.kind;
        let reported = kind
            .has_status()
            .then(|| ReportedStatus::read_from(&object));
        let mut state = self.world.state.lock();
        let is_changed = match state.objects.put(kind, object) {
            Ok(is_changed) => is_changed,
            Err(error) => {
                drop(state);
                let kind = kind.name();
                warn!("gateways: {kind} {name} cannot be read, and is left as it was: {error}");
                return false;
            }
        };
        let name = name_of(name);
        if let Some(reported) = reported
            && state.reported.put(kind, &name, reported)
        {
            self.world.reported.notify_one();
        }
        let demanded = state.find_demand(kind, &name);
        if is_changed {
            state.changed.insert((kind, name));
        }
        if let Some(demanded) = demanded {
            let insert = |kinds: &mut BTreeSet<Kind>| kinds.insert(demanded);
            self.world.demand.send_if_modified(insert);
        }
        is_changed
    }
}

/// Returns the name of an object by its key.
fn name_of(key: &str) -> ObjectName {
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    ObjectName::new(namespace, name)
}

impl Store for KindStore {
    type Object = Value;

    fn parse_page(&self, body: &[u8]) -> Result<Page<Value>, ListError> {
        list::parse_page::<RawAny>(body)
    }

    fn parse_event(&self, line: &[u8]) -> Result<Event<Value>, ListError> {
        list::parse_event::<RawAny>(line)
    }

    fn check(&self, objects: &BTreeMap<String, Value>) -> Result<(), Fault> {
        check_count(objects.len())
    }

    fn replace(&mut self, objects: BTreeMap<String, Value>) {
        {
            let state = &mut self.world.state.lock();
            for name in state.objects.names(self.kind) {
                if !objects.contains_key(&name.to_string()) {
                    state.remove(self.kind, &name);
                }
            }
        }
        for (key, object) in objects {
            self.put_object(&key, object);
        }
    }

    fn put(&mut self, key: String, object: Value) -> Result<bool, Fault> {
        let changed = self.put_object(&key, object);
        check_count(self.world.state.lock().objects.count(self.kind))?;
        Ok(changed)
    }

    fn remove(&mut self, key: &str) -> bool {
        let mut state = self.world.state.lock();
        state.remove(self.kind, &name_of(key))
    }
}

fn check_count(count: usize) -> Result<(), Fault> {
    match count > MAX_OBJECTS {
        true => Err(Fault::new(
            "the cluster has more than 50000 objects of the kind",
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::watcher::{Question, Watcher};

    fn route(name: &str, version: &str) -> Value {
        json!({ "metadata": { "name": name, "namespace": "shop", "resourceVersion": version, "managedFields": [{}] },
                "spec": { "hostnames": ["a.example"] } })
    }

    fn page(items: &[Value]) -> Vec<u8> {
        json!({ "metadata": { "resourceVersion": "9" }, "items": items })
            .to_string()
            .into_bytes()
    }

    fn event(kind: &str, object: &Value) -> Vec<u8> {
        let event = json!({ "type": kind, "object": object });
        format!("{event}\n").into_bytes()
    }

    fn watcher(world: &Arc<World>) -> Watcher<KindStore> {
        Watcher::with_store(KindStore {
            kind: Kind::HttpRoute,
            world: Arc::clone(world),
        })
    }

    fn names(world: &World) -> Vec<String> {
        let names = world.state.lock().objects.names(Kind::HttpRoute);
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lists_and_events_change_the_world() {
        let world = Arc::new(World::default());
        let mut watcher = watcher(&world);
        let list = page(&[route("a", "1"), route("b", "2")]);
        assert!(watcher.take_page(&list).unwrap());
        assert_eq!(names(&world), ["shop/a", "shop/b"]);
        let mut fault = None;
        assert!(watcher.take_bytes(&event("DELETED", &route("a", "10")), &mut fault));
        assert!(watcher.take_bytes(&event("ADDED", &route("c", "11")), &mut fault));
        assert!(!watcher.take_bytes(&event("MODIFIED", &route("c", "11")), &mut fault));
        let bookmark = json!({ "metadata": { "resourceVersion": "20" } });
        assert!(!watcher.take_bytes(&event("BOOKMARK", &bookmark), &mut fault));
        assert!(fault.is_none());
        assert_eq!(watcher.next_question(), Question::Watch("20".into()));
        assert_eq!(names(&world), ["shop/b", "shop/c"]);
        let status = json!({ "code": 410, "message": "too old" });
        watcher.take_bytes(&event("ERROR", &status), &mut fault);
        assert_eq!(fault.unwrap().code, 410);
        // What a later list lacks is gone.
        assert!(watcher.take_page(&page(&[route("b", "2")])).unwrap());
        assert_eq!(names(&world), ["shop/b"]);
    }

    #[test]
    fn an_event_of_a_status_alone_changes_no_object() {
        let world = Arc::new(World::default());
        let mut watcher = watcher(&world);
        assert!(
            watcher
                .take_page(&page(&[route("a", "1"), route("b", "2")]))
                .unwrap()
        );
        let name = ObjectName::new("shop", "a");
        let mut copy = Objects::default();
        assert!(!world.update_objects(&mut copy));
        for kind in Kind::ALL {
            world.note_listed(kind, "v1");
        }
        assert!(world.update_objects(&mut copy));
        let before = Arc::clone(&copy.http_routes[&name]);
        assert_eq!(world.take_changed_statuses().len(), 2);
        let mut written = route("a", "10");
        written["status"] = json!({ "parents": [] });
        written["metadata"]["annotations"] = json!({ "a": "b" });
        let mut fault = None;
        assert!(!watcher.take_bytes(&event("MODIFIED", &written), &mut fault));
        assert!(world.update_objects(&mut copy));
        assert!(Arc::ptr_eq(&before, &copy.http_routes[&name]));
        // The writer of statuses sees the event.
        let changed = world.take_changed_statuses();
        assert_eq!(
            changed.into_iter().collect::<Vec<_>>(),
            [(Kind::HttpRoute, name.clone())]
        );
        let found = world.find_status(Kind::HttpRoute, &name).unwrap();
        assert_eq!(
            (&*found.version, found.status()),
            ("10", written["status"].clone())
        );
        written["spec"]["hostnames"] = json!(["b.example"]);
        written["metadata"]["resourceVersion"] = json!("11");
        assert!(watcher.take_bytes(&event("MODIFIED", &written), &mut fault));
        assert!(watcher.take_bytes(&event("DELETED", &route("b", "12")), &mut fault));
        assert!(world.update_objects(&mut copy));
        assert_eq!(
            *copy.http_routes[&name].spec.hostnames,
            ["b.example".to_owned()]
        );
        assert_eq!(copy.http_routes.len(), 1);
        assert!(
            world
                .find_status(Kind::HttpRoute, &ObjectName::new("shop", "b"))
                .is_none()
        );
        assert!(fault.is_none());
    }

    #[test]
    fn an_object_that_cannot_be_read_harms_only_itself() {
        let world = Arc::new(World::default());
        let mut watcher = watcher(&world);
        let mut bad = route("bad", "3");
        bad["spec"]["hostnames"] = json!(7);
        let list = page(&[route("a", "1"), bad.clone(), route("b", "2")]);
        assert!(watcher.take_page(&list).unwrap());
        assert_eq!(names(&world), ["shop/a", "shop/b"]);
        // One that was good stays as it was.
        bad["metadata"]["name"] = json!("a");
        bad["metadata"]["resourceVersion"] = json!("12");
        let mut fault = None;
        assert!(!watcher.take_bytes(&event("MODIFIED", &bad), &mut fault));
        assert!(fault.is_none());
        assert_eq!(names(&world), ["shop/a", "shop/b"]);
        for name in ["../x", "a b", "a\r\nb", "é"] {
            assert!(
                watcher.take_page(&page(&[route(name, "1")])).is_err(),
                "{name}"
            );
        }
    }

    #[test]
    fn nothing_is_translated_until_all_kinds_are_known() {
        let world = World::default();
        for kind in Kind::ALL {
            assert!(world.objects().is_none());
            match kind.is_optional() {
                true => world.note_absent(kind),
                false => world.note_listed(kind, "v1"),
            }
        }
        assert!(world.objects().is_some());
        // An optional kind that the balancer may not list counts as one without objects.
        let refused = Fault {
            code: 403,
            ..Fault::new("no")
        };
        let world = World::default();
        for kind in Kind::ALL {
            assert!(world.objects().is_none());
            match kind.is_optional() {
                true => world.note_fault(kind, &refused),
                false => world.note_listed(kind, "v1"),
            }
        }
        assert!(world.objects().is_some());
        let told = world.kinds().into_iter().filter(|of| of.error.is_some());
        let optional = Kind::ALL.into_iter().filter(|kind| kind.is_optional());
        assert_eq!(told.count(), optional.count());
        let world = World::default();
        world.note_fault(Kind::Gateway, &refused);
        assert!(world.state.lock().known.is_empty());
        world.note_absent(Kind::Gateway);
        let error = world.kinds()[0].error.clone().unwrap();
        assert!(error.contains("install the CRDs"), "{error}");
    }

    #[tokio::test]
    async fn config_maps_are_followed_once_there_is_a_policy() {
        let world = Arc::new(World::default());
        for kind in { Kind::ALL.into_iter() }.filter(|kind| !kind.is_on_demand()) {
            world.note_listed(kind, "v1");
        }
        assert!(world.objects().is_some() && !world.needs(Kind::ConfigMap));
        world.wait_for_demand(Kind::HttpRoute).await;
        let waits = {
            let world = Arc::clone(&world);
            tokio::spawn(async move { world.wait_for_demand(Kind::ConfigMap).await })
        };
        let mut watcher = Watcher::with_store(KindStore {
            kind: Kind::BackendTlsPolicy,
            world: Arc::clone(&world),
        });
        let policy =
            json!({ "metadata": { "name": "a", "namespace": "shop", "resourceVersion": "1" } });
        assert!(watcher.take_page(&page(&[policy])).unwrap());
        waits.await.unwrap();
        assert!(world.needs(Kind::ConfigMap) && world.objects().is_none());
        world.note_listed(Kind::ConfigMap, "v1");
        assert!(world.objects().is_some() && !world.needs(Kind::OpaqueSecret));
    }

    #[tokio::test]
    async fn opaque_secrets_are_followed_once_a_served_ingress_refers_to_some() {
        for annotation in [AUTH_SECRET, AUTH_TLS_SECRET] {
            let world = Arc::new(World::default());
            world.state.lock().ingress = Some(IngressSettings {
                controller: "evenkeel.org/ingress".into(),
                class: None,
                without_class: false,
                certificate: None,
                copy_fields: Vec::new(),
                gateway: IngressSettings::make_gateway(80, 443),
            });
            for kind in { Kind::ALL.into_iter() }.filter(|kind| !kind.is_on_demand()) {
                world.note_listed(kind, "v1");
            }
            let put = |kind, key: &str, mut object: Value| {
                object["metadata"]["name"] = key.rsplit('/').next().into();
                let world = Arc::clone(&world);
                let mut store = KindStore { kind, world };
                assert!(store.put(key.into(), object).unwrap());
            };
            let ingress = |annotation: &str, class: &str| {
                let metadata =
                    json!({ "namespace": "shop", "annotations": { annotation: "users" } });
                json!({ "metadata": metadata, "spec": { "ingressClassName": class } })
            };
            let other = "nginx.ingress.kubernetes.io/auth-realm";
            put(Kind::Ingress, "shop/a", ingress(other, "edge"));
            put(Kind::Ingress, "shop/b", ingress(annotation, "nginx"));
            put(Kind::Ingress, "shop/c", ingress(annotation, "edge"));
            let class =
                |controller: &str| json!({ "metadata": {}, "spec": { "controller": controller } });
            put(Kind::IngressClass, "nginx", class("k8s.io/ingress-nginx"));
            assert!(!world.needs(Kind::OpaqueSecret) && world.objects().is_some());
            put(Kind::IngressClass, "edge", class("evenkeel.org/ingress"));
            world.wait_for_demand(Kind::OpaqueSecret).await;
            // Nobody is let in before the secrets are known.
            assert!(world.objects().is_none() && !world.needs(Kind::ConfigMap));
            world.note_listed(Kind::OpaqueSecret, "v1");
            assert!(world.objects().is_some());
        }
    }

    #[tokio::test]
    async fn changes_that_come_while_nobody_waits_are_one_change() {
        let world = World::default();
        assert!(!world.has_changes());
        for _ in 0..5 {
            world.note_change();
        }
        assert!(world.has_changes());
        world.wait_for_change().await;
        assert!(!world.has_changes());
        let waits = world.wait_for_change();
        tokio::pin!(waits);
        // Nothing has changed since then; the next change is told at once.
        tokio::select! {
            biased;
            () = &mut waits => panic!("a change"),
            () = tokio::task::yield_now() => {}
        }
        world.note_change();
        waits.await;
        assert!(!world.has_changes());
    }
}

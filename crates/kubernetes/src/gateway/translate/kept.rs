//! Translations of single routes of requests, which are kept for as long as everything is the same that they were made
//! of.
//!
//! A route is made of the object itself, of the refusals of its rules, of the services to which it refers, and of its
//! surroundings: gateways, grants, pools, policies, listeners, and the labels of namespaces if a listener selects any. A change of a
//! service makes the routes anew that refer to the service, and one of the surroundings makes all of them anew.
//!
//! A route is translated with groups of its own. What is about all routes together follows the routes that come and go:
//! groups with the rules that use them, counts of listeners, and the routes that claim something which another one may have.
//! In the rare case that two groups would have the same name, all routes are translated in order, with the same groups, and
//! none is kept.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use super::super::backends::{Groups, RouteGroups};
use super::super::conditions::Status;
use super::super::gateway_tls::MemberIdentity;
use super::super::listener_sets::SetName;
use super::super::listeners::{Frontend, ListenerState};
use super::super::objects::{
    ByName, Gateway, HttpRoute, InferencePool, Kind, ListenerSet, Metadata, Namespace, ObjectName,
    Objects, ReferenceGrant, Service,
};
use super::super::policies::Policies;
use super::super::route_key::RouteKey;
use super::super::text::Owner;
use super::entry::{Entry, RouteTranslation, SessionClaim};
use super::route::translate_route;
use super::{Refused, Work};

/// Most routes that are put at their places one by one.
const FEW: usize = 16;

/// Order of entries in a rule of the configuration.
pub(super) fn compare_entries(a: &Arc<Entry>, b: &Arc<Entry>) -> Ordering {
    let ranks = a.ranks.cmp(&b.ranks);
    ranks
        .then_with(|| a.source.age().cmp(&b.source.age()))
        .then_with(|| (a.kind, a.numbers).cmp(&(b.kind, b.numbers)))
}

/// Returns the entries of two lists in order, each of which is in order.
pub(super) fn merge_entries<'e>(
    some: &'e [Arc<Entry>],
    others: &'e [Arc<Entry>],
) -> Cow<'e, [Arc<Entry>]> {
    if others.is_empty() {
        return Cow::Borrowed(some);
    }
    if some.is_empty() {
        return Cow::Borrowed(others);
    }
    let mut all = [some, others].concat();
    all.sort_by(compare_entries);
    Cow::Owned(all)
}

/// Translation of a route that is kept, and what it was made of.
#[derive(Debug)]
struct KeptRoute {
    /// Object of the route: its address in memory is the key.
    route: Arc<HttpRoute>,
    refusals: Vec<(usize, String)>,
    /// Hashes of the names of services to which the route refers.
    services: Box<[u64]>,
    translation: RouteTranslation,
    /// Number of this translation.
    serial: u64,
    /// Number of the last round that needed the route.
    round: u64,
}

/// Place of a route in the order of age.
#[derive(Debug)]
struct Place {
    key: RouteKey,
    serial: u64,
    status: Arc<Status>,
}

fn compare_places(a: &Place, b: &Place) -> Ordering {
    a.key.cmp(&b.key)
}

/// Puts new elements into a list that is in order.
fn insert_sorted<T>(list: &mut Vec<T>, new: Vec<T>, compare: fn(&T, &T) -> Ordering) {
    if new.len() > FEW {
        list.extend(new);
        list.sort_by(compare);
        return;
    }
    for element in new {
        let place = list.partition_point(|of| compare(of, &element) != Ordering::Greater);
        list.insert(place, element);
    }
}

/// Facts beside single routes and services that translations of routes read.
#[derive(Debug)]
struct Surroundings {
    controller: String,
    gateways: ByName<Gateway>,
    grants: ByName<ReferenceGrant>,
    pools: ByName<InferencePool>,
    policies: Policies,
    sets: [ByName<ListenerSet>; 2],
    /// Namespaces; `None` if no listener selects any.
    namespaces: Option<ByName<Namespace>>,
    /// Numbers of the listeners of each gateway of this controller.
    by_gateway: BTreeMap<ObjectName, Vec<usize>>,
    /// Numbers of the listeners of each set of these gateways.
    by_set: BTreeMap<SetName, Vec<usize>>,
    /// True for listeners that take routes, and for those that serve clients.
    listeners: Vec<(bool, bool)>,
    frontends: Vec<Frontend>,
    /// Certificates that members see, by the gateways.
    identities: BTreeMap<ObjectName, MemberIdentity>,
}

/// Returns the certificates that members see, by the gateways.
fn list_identities<'w>(
    work: &'w Work<'_>,
) -> impl Iterator<Item = (&'w ObjectName, &'w MemberIdentity)> {
    { work.tls.iter() }.filter_map(|(gateway, tls)| Some((gateway, tls.identity()?)))
}

/// True if both have the same objects, at the same addresses in memory.
pub(super) fn are_same<T>(some: &ByName<T>, others: &ByName<T>) -> bool {
    let mut pairs = some.iter().zip(others);
    some.len() == others.len()
        && pairs.all(|((name, of), (other, with))| Arc::ptr_eq(of, with) && name == other)
}

fn list_facts(listeners: &[ListenerState<'_>]) -> impl Iterator<Item = (bool, bool)> {
    listeners.iter().map(|of| (of.takes_routes(), of.serves()))
}

/// Returns the namespaces, if a listener selects routes by labels of theirs.
fn find_namespaces<'o>(work: &Work<'o>) -> Option<&'o ByName<Namespace>> {
    let selects = |of: &ListenerState<'_>| {
        of.listener.allowed_routes.namespaces.from.as_deref() == Some("Selector")
    };
    { work.listeners.iter() }
        .any(selects)
        .then_some(&work.objects.namespaces)
}

impl Surroundings {
    fn new(work: &Work<'_>) -> Self {
        let objects = work.objects;
        Surroundings {
            controller: work.settings.controller.clone(),
            gateways: objects.gateways.clone(),
            grants: objects.grants.clone(),
            pools: objects.pools.clone(),
            policies: work.policies.clone(),
            sets: [
                objects.listener_sets.clone(),
                objects.x_listener_sets.clone(),
            ],
            by_set: work.by_set.clone(),
            namespaces: find_namespaces(work).cloned(),
            by_gateway: work.by_gateway.clone(),
            listeners: list_facts(&work.listeners).collect(),
            frontends: work.frontends.clone(),
            identities: list_identities(work)
                .map(|(gateway, identity)| (gateway.clone(), identity.clone()))
                .collect(),
        }
    }

    /// True if the sets of listeners are those of `objects`.
    fn has_sets(&self, objects: &Objects) -> bool {
        let [sets, experimental] = &self.sets;
        are_same(sets, &objects.listener_sets) && are_same(experimental, &objects.x_listener_sets)
    }

    /// True if the surroundings are those of `work`.
    fn are_of(&self, work: &Work<'_>) -> bool {
        let objects = work.objects;
        let have_same_namespaces = match (&self.namespaces, find_namespaces(work)) {
            (None, None) => true,
            (Some(known), Some(now)) => are_same(known, now),
            _ => false,
        };
        have_same_namespaces
            && self.controller == work.settings.controller
            && are_same(&self.gateways, &objects.gateways)
            && are_same(&self.grants, &objects.grants)
            && are_same(&self.pools, &objects.pools)
            && self.policies == work.policies
            && self.has_sets(objects)
            && self.by_set == work.by_set
            && self.by_gateway == work.by_gateway
            && { self.listeners.iter().copied() }.eq(list_facts(&work.listeners))
            && self.frontends == work.frontends
            && { self.identities.iter() }.eq(list_identities(work))
    }
}

/// Translations of routes that are kept, and their entries in order.
#[derive(Debug, Default)]
pub(super) struct KeptRoutes {
    /// Routes by the addresses of their objects in memory.
    routes: HashMap<usize, KeptRoute>,
    /// All routes by their age.
    order: Vec<Place>,
    /// Entries by the numbers of the frontends, in the order of the configuration.
    entries: HashMap<usize, Vec<Arc<Entry>>>,
    /// Groups of all routes, which a translation shares while it is made.
    groups: Arc<RouteGroups>,
    /// Number of routes at each listener, by the numbers of the listeners.
    attached: HashMap<usize, u32>,
    /// Routes with session names, pools, or services with a policy.
    claiming: BTreeSet<RouteKey>,
    surroundings: Option<Surroundings>,
    services: ByName<Service>,
    hasher: RandomState,
    serial: u64,
    round: u64,
    /// Number of times that the surroundings or services have changed.
    pub(super) changes: u64,
    /// True if routes were translated with the same groups, so that they are of no use any more.
    are_in_order: bool,
    /// Number of routes that were translated.
    #[cfg(test)]
    pub(super) translated: u64,
}

fn address_of(route: &Arc<HttpRoute>) -> usize {
    Arc::as_ptr(route).addr()
}

/// Returns the refusals of the rules of a route.
fn find_refusals(refused: &Refused, kind: Kind, metadata: &Metadata) -> Vec<(usize, String)> {
    if refused.is_empty() {
        return Vec::new();
    }
    let owner = |number| Owner::Rule(kind, metadata.object_name(), number);
    let of_route = refused.range(owner(0)..=owner(usize::MAX));
    let numbers = of_route.filter_map(|(owner, message)| match owner {
        Owner::Rule(_, _, number) => Some((*number, message.clone())),
        _ => None,
    });
    numbers.collect()
}

impl KeptRoutes {
    /// Returns the entries of a frontend.
    pub(super) fn entries_of(&self, frontend: usize) -> &[Arc<Entry>] {
        self.entries.get(&frontend).map_or(&[], Vec::as_slice)
    }

    fn hash_name(&self, namespace: &str, name: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(namespace.as_bytes());
        hasher.write_u8(b'/');
        hasher.write(name.as_bytes());
        hasher.finish()
    }

    /// Returns the hashes of the names of the services to which a route refers.
    fn list_services(&self, route: &HttpRoute) -> Box<[u64]> {
        let rules = route.spec.rules.iter();
        let targets = rules.flat_map(|rule| rule.list_targets());
        let own = &route.metadata.namespace;
        let hashes = targets.map(|of| {
            let namespace = of.namespace.as_deref().unwrap_or(own);
            self.hash_name(namespace, &of.name)
        });
        hashes.collect()
    }

    /// Returns the hashes of the names of services that have changed.
    fn find_changed_services(&mut self, now: &ByName<Service>) -> HashSet<u64> {
        if are_same(&self.services, now) {
            return HashSet::new();
        }
        let differs = |name: &ObjectName, of: &Arc<Service>, with: &ByName<Service>| {
            !{ with.get(name) }.is_some_and(|other| Arc::ptr_eq(of, other))
        };
        let before = { self.services.iter() }.filter(|(name, of)| differs(name, of, now));
        let after = { now.iter() }.filter(|(name, of)| differs(name, of, &self.services));
        let names = before.chain(after).map(|(name, _)| name);
        let changed = { names.map(|name| self.hash_name(&name.namespace, &name.name)) }.collect();
        self.services.clone_from(now);
        changed
    }

    /// Forgets all routes.
    fn clear(&mut self) {
        self.routes.clear();
        self.order.clear();
        self.entries.clear();
        self.groups = Arc::default();
        self.attached.clear();
        self.claiming.clear();
    }

    /// Forgets routes that the last round did not need.
    fn forget_gone(&mut self) {
        let (round, mut gone) = (self.round, HashMap::new());
        let leaving = self.routes.extract_if(|_, kept| kept.round != round);
        gone.extend(leaving.map(|(_, kept)| (kept.serial, kept.translation)));
        if gone.is_empty() {
            return;
        }
        let groups = Arc::make_mut(&mut self.groups);
        for place in self
            .order
            .extract_if(.., |place| gone.contains_key(&place.serial))
        {
            let Some(translation) = gone.get(&place.serial) else {
                continue;
            };
            groups.remove_route(&place.key, &translation.rules, translation.needs_nobody);
            for number in &translation.listeners {
                if let Some(count) = self.attached.get_mut(number) {
                    *count = count.saturating_sub(1);
                }
            }
            self.claiming.remove(&place.key);
        }
        for entries in self.entries.values_mut() {
            entries.retain(|entry| !gone.contains_key(&entry.serial));
        }
    }

    /// Notes what is about all routes together. Returns false if another route has another group of the same name.
    fn note_route(&mut self, key: &RouteKey, translation: &mut RouteTranslation) -> bool {
        for number in &translation.listeners {
            *self.attached.entry(*number).or_default() += 1;
        }
        if translation.has_claims() {
            self.claiming.insert(key.clone());
        }
        let groups = Arc::make_mut(&mut self.groups);
        groups.add_route(key, &mut translation.rules, translation.needs_nobody)
    }

    /// Translates the routes that are new, or are no longer what they were made of. In order all routes are translated,
    /// with the same groups. Returns false if two groups would have the same name.
    pub(super) fn refresh(&mut self, work: &Work<'_>, is_in_order: bool) -> bool {
        let is_known = { self.surroundings.as_ref() }.is_some_and(|of| of.are_of(work));
        if is_in_order || self.are_in_order || !is_known {
            self.clear();
            self.surroundings = Some(Surroundings::new(work));
        }
        self.are_in_order = is_in_order;
        let services = self.find_changed_services(&work.objects.services);
        self.changes += u64::from(!is_known || !services.is_empty());
        self.round += 1;
        let (round, mut new, mut kept) = (self.round, Vec::new(), 0);
        for (kind, route) in work.list_routes() {
            let refusals = find_refusals(work.refused, kind, &route.metadata);
            let known = self.routes.get_mut(&address_of(route)).filter(|known| {
                Arc::ptr_eq(&known.route, route)
                    && known.refusals == refusals
                    && (services.is_empty()
                        || known.services.iter().all(|of| !services.contains(of)))
            });
            match known {
                Some(known) => {
                    known.round = round;
                    kept += 1;
                }
                None => {
                    let route = Arc::clone(route);
                    new.push((RouteKey { kind, route }, refusals));
                }
            }
        }
        if kept < self.routes.len() {
            self.forget_gone();
        }
        new.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut places = Vec::with_capacity(new.len());
        let mut entries: HashMap<usize, Vec<Arc<Entry>>> = HashMap::new();
        let (mut groups, mut has_names) = (Groups::default(), true);
        for (key, refusals) in new {
            if !is_in_order {
                groups = Groups::default();
            }
            self.serial += 1;
            #[cfg(test)]
            {
                self.translated += 1;
            }
            let serial = self.serial;
            let add = |frontend, entry: Entry| {
                let entry = Arc::new(Entry { serial, ..entry });
                entries.entry(frontend).or_default().push(entry);
            };
            let RouteKey { kind, route } = &key;
            let mut translation = translate_route(work, *kind, route, &refusals, &mut groups, add);
            has_names &= self.note_route(&key, &mut translation);
            let status = Arc::clone(&translation.status);
            let kept = KeptRoute {
                route: Arc::clone(route),
                refusals,
                services: self.list_services(route),
                translation,
                serial,
                round,
            };
            self.routes.insert(address_of(route), kept);
            places.push(Place {
                key,
                serial,
                status,
            });
        }
        insert_sorted(&mut self.order, places, compare_places);
        for (frontend, new) in entries {
            insert_sorted(
                self.entries.entry(frontend).or_default(),
                new,
                compare_entries,
            );
        }
        has_names
    }

    /// Returns the translations of the routes that claim something which another one may have, the oldest first.
    fn list_claiming(&self) -> impl Iterator<Item = &RouteTranslation> {
        let known =
            { self.claiming.iter() }.filter_map(|of| self.routes.get(&address_of(&of.route)));
        known.map(|kept| &kept.translation)
    }
}

impl Work<'_> {
    /// Translates the routes of requests, as far as `kept` does not have their translations.
    pub(super) fn translate_http(&mut self, kept: &mut KeptRoutes) {
        if !kept.refresh(self, false) {
            kept.refresh(self, true);
        }
        self.use_http(kept);
    }

    /// Takes over what is about all routes of requests together.
    pub(super) fn use_http(&mut self, kept: &KeptRoutes) {
        self.groups = Groups::of_requests(&kept.groups);
        for (number, count) in &kept.attached {
            if let Some(listener) = self.listeners.get_mut(*number) {
                listener.attached += *count as usize;
            }
        }
        for route in kept.list_claiming() {
            for claim in &route.claims {
                self.note_session(claim);
            }
            for (pool, gateway) in &route.pools {
                let parents = self.pool_parents.entry(pool.clone()).or_default();
                parents.insert(gateway.clone());
            }
            for (service, gateway) in &route.secured {
                let ancestors = self.policy_ancestors.entry(service.clone()).or_default();
                ancestors.insert(gateway.clone());
            }
        }
        self.statuses.reserve(kept.order.len());
        let statuses = kept.order.iter().map(|place| Arc::clone(&place.status));
        self.statuses.extend(statuses);
    }

    /// Notes the session name of a group. Of routes that contradict each other, the oldest counts.
    fn note_session(&mut self, claim: &SessionClaim) {
        let (cookie, group) = (&claim.cookie, &claim.group);
        let key = (claim.host.clone(), cookie.to_ascii_lowercase());
        let other = self.cookies.entry(key).or_insert_with(|| group.clone());
        if *other != *group {
            let message = format!(
                "sessionPersistence: an older route binds clients of the same host to another Service by the \
                 session name {cookie:?}; choose another sessionName"
            );
            let owner = Owner::clone(&claim.owner);
            self.contradictions.push((owner, message));
        }
    }
}

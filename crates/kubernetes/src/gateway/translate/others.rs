//! Translation of all routes but those of requests: Ingresses, and routes of connections and datagrams. It is kept for as
//! long as everything is the same that it was made of.
//!
//! An Ingress depends on others, as with canaries, and so does a route of connections, whose server name the oldest one
//! has. So all of them are translated together, with groups of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::backends::Groups;
use super::super::conditions::{Refusal, Status};
use super::super::ingress::Notice;
use super::super::ingress::client_certificates::VerifiedHosts;
use super::super::ingress::passwords::PasswordFiles;
use super::super::objects::{
    ByName, Ingress, IngressClass, Kind, ObjectName, Objects, StreamRoute,
};
use super::super::policies::PolicyAncestors;
use super::super::settings::Settings;
use super::super::text::Owner;
use super::entry::Entry;
use super::kept::{are_same, compare_entries};
use super::{Refused, StreamTarget, StreamTargets, Work, rank_age};

/// Translation of all routes but those of requests.
#[derive(Debug, Default)]
pub(super) struct OtherRoutes {
    groups: Groups,
    statuses: Vec<Arc<Status>>,
    notices: Vec<Notice>,
    /// Gateways through which clients reach services with a policy.
    ancestors: PolicyAncestors,
    /// Numbers of routes at all listeners.
    attached: Vec<usize>,
    /// Entries by the numbers of the frontends, in the order of the configuration.
    entries: BTreeMap<usize, Vec<Arc<Entry>>>,
    targets: StreamTargets,
}

impl OtherRoutes {
    /// Returns the entries of a frontend.
    pub(super) fn entries_of(&self, frontend: usize) -> &[Arc<Entry>] {
        self.entries.get(&frontend).map_or(&[], Vec::as_slice)
    }

    /// Returns the targets of a frontend.
    pub(super) fn targets_of(&self, frontend: usize) -> &[Arc<StreamTarget>] {
        self.targets.get(&frontend).map_or(&[], Vec::as_slice)
    }
}

/// Facts that a translation of other routes was made of.
#[derive(Debug)]
struct Origin {
    /// Number of changes of facts that routes of requests read, too.
    changes: u64,
    settings: Settings,
    refusals: Refused,
    /// Secrets of Ingresses that cannot be used, with the reasons.
    faults: BTreeMap<ObjectName, String>,
    /// Files of users of Ingresses.
    passwords: PasswordFiles,
    /// Hosts of Ingresses with listeners of their own.
    hosts: VerifiedHosts,
    /// Conflicts and refusals of the listeners of Ingresses.
    listeners: Vec<[Option<Refusal>; 2]>,
    ingresses: ByName<Ingress>,
    classes: ByName<IngressClass>,
    streams: [ByName<StreamRoute>; 3],
}

/// Returns the refusals of other routes.
fn list_refusals(refused: &Refused) -> impl Iterator<Item = (&Owner, &String)> {
    let is_of_others =
        |owner: &Owner| matches!(owner, Owner::Rule(kind, ..) if !kind.is_of_requests());
    refused.iter().filter(move |(owner, _)| is_of_others(owner))
}

/// Returns the conflicts and refusals of the listeners of Ingresses.
fn list_listeners<'w>(work: &'w Work<'_>) -> impl Iterator<Item = [&'w Option<Refusal>; 2]> {
    let own = work.ingress.listeners.iter();
    let own = own.chain(work.ingress.host_listeners.values());
    let own = own.filter_map(move |number| work.listeners.get(*number));
    own.map(|of| [&of.conflict, &of.refusal])
}

/// Returns the routes of connections and datagrams, with their kinds.
fn list_streams(objects: &Objects) -> [(Kind, &ByName<StreamRoute>); 3] {
    [
        (Kind::TlsRoute, &objects.tls_routes),
        (Kind::TcpRoute, &objects.tcp_routes),
        (Kind::UdpRoute, &objects.udp_routes),
    ]
}

impl Origin {
    fn new(work: &Work<'_>, changes: u64) -> Self {
        let refusals = list_refusals(work.refused);
        Origin {
            changes,
            settings: work.settings.clone(),
            refusals: refusals
                .map(|(owner, message)| (owner.clone(), message.clone()))
                .collect(),
            faults: work.ingress.faults.clone(),
            passwords: work.ingress.passwords.clone(),
            hosts: work.ingress.hosts.clone(),
            listeners: list_listeners(work)
                .map(|of| of.map(Clone::clone))
                .collect(),
            ingresses: work.objects.ingresses.clone(),
            classes: work.objects.ingress_classes.clone(),
            streams: list_streams(work.objects).map(|(_, routes)| routes.clone()),
        }
    }

    /// True if the facts are those of `work`.
    fn is_of(&self, work: &Work<'_>, changes: u64) -> bool {
        let objects = work.objects;
        let mut streams = { self.streams.iter() }.zip(list_streams(objects));
        self.changes == changes
            && self.settings == *work.settings
            && self.refusals.iter().eq(list_refusals(work.refused))
            && self.faults == work.ingress.faults
            && self.passwords == work.ingress.passwords
            && self.hosts == work.ingress.hosts
            && self
                .listeners
                .iter()
                .map(|of| of.each_ref())
                .eq(list_listeners(work))
            && are_same(&self.ingresses, &objects.ingresses)
            && are_same(&self.classes, &objects.ingress_classes)
            && streams.all(|(known, (_, now))| are_same(known, now))
    }
}

/// Translation of other routes that is kept.
#[derive(Debug, Default)]
pub(super) struct KeptOthers {
    /// Facts that the translation was made of; `None` before the first one.
    origin: Option<Origin>,
    routes: Arc<OtherRoutes>,
    /// Number of translations.
    #[cfg(test)]
    pub(super) translated: u64,
}

impl Work<'_> {
    /// Translates all routes but those of requests, unless `kept` has their translation. `changes` is the number of changes
    /// of facts that routes of requests read, too.
    pub(super) fn translate_others(
        &mut self,
        kept: &mut KeptOthers,
        changes: u64,
    ) -> Arc<OtherRoutes> {
        let is_known = { kept.origin.as_ref() }.is_some_and(|origin| origin.is_of(self, changes));
        if !is_known {
            kept.routes = Arc::new(self.make_others(Groups::default()));
            kept.origin = Some(Origin::new(self, changes));
            #[cfg(test)]
            {
                kept.translated += 1;
            }
        }
        let mut routes = Arc::clone(&kept.routes);
        if !self.groups.add_all(&routes.groups) {
            // A route of requests has another group of the same name.
            let groups = std::mem::take(&mut self.groups);
            let mut others = self.make_others(groups);
            self.groups = std::mem::take(&mut others.groups);
            routes = Arc::new(others);
        }
        self.statuses.extend(routes.statuses.iter().cloned());
        self.ingress.notices.clone_from(&routes.notices);
        for (service, gateways) in &routes.ancestors {
            let ancestors = self.policy_ancestors.entry(service.clone()).or_default();
            ancestors.extend(gateways.iter().cloned());
        }
        for (listener, count) in self.listeners.iter_mut().zip(&routes.attached) {
            listener.attached += count;
        }
        routes
    }

    /// Translates all routes but those of requests, whose groups are added to `groups`.
    fn make_others(&mut self, groups: Groups) -> OtherRoutes {
        let groups = std::mem::replace(&mut self.groups, groups);
        let statuses = std::mem::take(&mut self.statuses);
        let ancestors = std::mem::take(&mut self.policy_ancestors);
        let listeners = self.listeners.iter_mut();
        let attached: Vec<usize> = listeners
            .map(|of| std::mem::take(&mut of.attached))
            .collect();
        self.server_names.clear();
        self.ingress.cookies.clear();
        let mut entries: BTreeMap<usize, Vec<Entry>> = BTreeMap::new();
        self.translate_ingresses(&mut entries);
        let mut targets = StreamTargets::new();
        for (kind, routes) in list_streams(self.objects) {
            let mut sorted: Vec<&StreamRoute> = routes.values().map(Arc::as_ref).collect();
            sorted.sort_by_cached_key(|of| rank_age(&of.metadata));
            for route in sorted {
                self.translate_stream(kind, route, &mut targets);
            }
        }
        let entries = entries.into_iter().map(|(frontend, entries)| {
            let mut entries: Vec<Arc<Entry>> = entries.into_iter().map(Arc::new).collect();
            entries.sort_by(compare_entries);
            (frontend, entries)
        });
        let entries = entries.collect();
        let before = self.listeners.iter_mut().zip(attached);
        let attached = before.map(|(of, before)| std::mem::replace(&mut of.attached, before));
        OtherRoutes {
            attached: attached.collect(),
            groups: std::mem::replace(&mut self.groups, groups),
            statuses: std::mem::replace(&mut self.statuses, statuses),
            notices: std::mem::take(&mut self.ingress.notices),
            ancestors: std::mem::replace(&mut self.policy_ancestors, ancestors),
            entries,
            targets,
        }
    }
}

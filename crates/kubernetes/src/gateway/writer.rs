//! Writer of statuses: writes the statuses of objects that differ from those at the API server.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_tls::certificate::unix_now;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::conditions::{Status, format_time, merge_status};
use super::ingress::show_status;
use super::leader::{Term, is_leading};
use super::objects::{Kind, ObjectName};
use super::status_list::{StatusList, address_of, compare_lists};
use super::world::World;
use crate::api::{Api, status_of};
use crate::list::Fault;
use crate::watcher::{Pace, refusal_of};

/// Statuses that are to be written.
pub(crate) type Wanted = watch::Receiver<StatusList>;

/// Writer of statuses.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) api: Arc<Api>,
    pub(crate) world: Arc<World>,
    /// Name of the controller.
    pub(crate) controller: String,
    /// Number of statuses that were written.
    pub(crate) written: Arc<AtomicU64>,
    /// Term of this balancer as the leader; `None` if each balancer writes.
    term: Option<Term>,
    /// Statuses that were written, or refused, with the versions of their objects: the next event has another version.
    tried: HashMap<(Kind, ObjectName), (String, Arc<Status>)>,
    settled: Settled,
    /// Addresses of the statuses that the API server refused last.
    refused: HashSet<usize>,
    pace: Pace,
}

/// Statuses that need no look: objects have them, or have been asked to take them, and have not changed since.
#[derive(Debug, Default)]
struct Settled {
    /// Statuses that were wanted last.
    wanted: StatusList,
    /// Wanted statuses that are not settled.
    open: Vec<Arc<Status>>,
    /// Last statuses of Ingresses that the balancer no longer serves.
    released: Vec<Arc<Status>>,
}

impl Settled {
    /// Takes the statuses that are wanted now, and the objects that have changed.
    fn update(&mut self, wanted: &StatusList, changed: &BTreeSet<(Kind, ObjectName)>) {
        if !Arc::ptr_eq(&self.wanted, wanted) {
            let (gone, new) = compare_lists(&self.wanted, wanted);
            self.open.retain(|of| !gone.contains(&address_of(of)));
            self.open.extend(new);
            self.release(wanted, &gone);
            self.wanted = Arc::clone(wanted);
        }
        if changed.is_empty() {
            return;
        }
        let mut kinds: BTreeMap<Kind, HashSet<&ObjectName>> = BTreeMap::new();
        for (kind, name) in changed {
            kinds.entry(*kind).or_default().insert(name);
        }
        let has_changed = |of: &&Arc<Status>| {
            let names = kinds.get(&of.kind);
            names.is_some_and(|names| names.contains(&of.object))
        };
        let open: HashSet<usize> = self.open.iter().map(address_of).collect();
        let changed = wanted.iter().filter(has_changed);
        let changed = changed.filter(|of| !open.contains(&address_of(of)));
        self.open.extend(changed.map(Arc::clone));
    }

    /// Notes Ingresses that the balancer no longer serves: their statuses are gone, and none have come instead.
    fn release(&mut self, wanted: &StatusList, gone: &HashSet<usize>) {
        let is_ingress = |of: &&Arc<Status>| of.kind == Kind::Ingress;
        let before = self.wanted.iter().filter(is_ingress);
        self.released
            .extend(before.filter(|of| gone.contains(&address_of(of))).cloned());
        if self.released.is_empty() {
            return;
        }
        let now = wanted.iter().filter(is_ingress);
        let served: HashSet<&ObjectName> = now.map(|of| &of.object).collect();
        self.released.retain(|of| !served.contains(&of.object));
    }
}

/// End of a round of writing.
#[derive(Debug)]
enum Round {
    /// Everything is written.
    Done,
    /// Other statuses are wanted, or another balancer writes.
    Newer,
    /// The API server refuses statuses of some objects; all others are written.
    Refused(Fault),
    /// Statuses that were refused wait for their next try; all others are written.
    Waiting,
    /// The API server does not take statuses.
    Failed(Fault),
}

/// Number of refused statuses, one after the other, after which the API server counts as one that takes none.
const MOST_REFUSED: usize = 8;

/// Statuses that a round of writing leaves unwritten.
#[derive(Debug, Default)]
struct Unwritten {
    /// Statuses whose objects are not here, or have changed.
    open: Vec<Arc<Status>>,
    /// Statuses that the API server has refused. The next round tries all others first.
    refused: Vec<Arc<Status>>,
    /// First fault of the round.
    fault: Option<Fault>,
    /// Number of refused statuses since the last one that was not refused.
    in_a_row: usize,
}

impl Unwritten {
    /// Notes what has come of a status. Returns true if the round ends, because the API server takes no statuses.
    fn note(&mut self, status: Arc<Status>, written: Result<bool, Fault>) -> bool {
        match written {
            Ok(is_settled) => {
                self.in_a_row = 0;
                if !is_settled {
                    self.open.push(status);
                }
                false
            }
            Err(fault) => {
                self.refused.push(status);
                self.in_a_row += 1;
                let is_of_object = matches!(fault.code, 403 | 500..600);
                self.fault.get_or_insert(fault);
                !is_of_object || self.in_a_row >= MOST_REFUSED
            }
        }
    }

    /// Returns the statuses for the next round, before and after those that this round has not come to.
    fn into_open(self, left: Vec<Arc<Status>>) -> Vec<Arc<Status>> {
        { self.open.into_iter() }
            .chain(left)
            .chain(self.refused)
            .collect()
    }
}

impl Writer {
    /// A writer that has written nothing yet.
    pub(crate) fn new(
        api: Arc<Api>,
        world: Arc<World>,
        controller: String,
        written: Arc<AtomicU64>,
        term: Option<Term>,
    ) -> Self {
        Writer {
            api,
            world,
            controller,
            written,
            term,
            tried: HashMap::new(),
            settled: Settled::default(),
            refused: HashSet::new(),
            pace: Pace::default(),
        }
    }

    /// Writes statuses for as long as somebody wants any.
    pub(crate) async fn run(mut self, mut wanted: Wanted) {
        let world = Arc::clone(&self.world);
        loop {
            tokio::select! {
                changed = wanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = world.wait_for_statuses() => {}
            }
            let mut told = String::new();
            // Time of the next try of statuses that were refused.
            let mut retry_at: Option<Instant> = None;
            loop {
                self.wait_for_term().await;
                let round = self.write_all(&mut wanted, retry_at.is_some()).await;
                let (fault, takes_none) = match round {
                    Round::Done => break,
                    Round::Newer => continue,
                    Round::Waiting => (None, false),
                    Round::Refused(fault) => (Some(fault), false),
                    Round::Failed(fault) => (Some(fault), true),
                };
                if let Some(fault) = fault {
                    if takes_none || retry_at.is_none() {
                        let random = fastrand::f32();
                        let pause = self.pace.pause_after_failure(fault.retry_after, random);
                        retry_at = Some(Instant::now() + pause);
                    }
                    if told != fault.message {
                        warn!("gateways: statuses cannot be written: {}", fault.message);
                        told = fault.message;
                    }
                }
                let next = retry_at.unwrap_or_else(Instant::now);
                // Statuses of other objects do not wait for those that are refused.
                tokio::select! {
                    () = sleep_until(next) => retry_at = None,
                    changed = wanted.changed(), if !takes_none => {
                        if changed.is_err() {
                            return;
                        }
                    }
                    () = world.wait_for_statuses(), if !takes_none => {}
                }
            }
            self.pace = Pace::default();
        }
    }

    /// Waits until this balancer is the leader.
    async fn wait_for_term(&mut self) {
        if let Some(term) = &mut self.term {
            // A candidate that is gone ends with this task.
            let _ = term.wait_for(is_leading).await;
        }
    }

    /// True if this balancer writes statuses now.
    fn is_leading(&self) -> bool {
        self.term
            .as_ref()
            .is_none_or(|term| is_leading(&term.borrow()))
    }

    /// Writes statuses that differ. Those of objects that have not changed are not looked at again. With `holds`, statuses
    /// that were refused before wait for a later round.
    async fn write_all(&mut self, wanted: &mut Wanted, holds: bool) -> Round {
        let changed = self.world.take_changed_statuses();
        let all = Arc::clone(&wanted.borrow_and_update());
        self.settled.update(&all, &changed);
        // Their events have come.
        for object in &changed {
            self.tried.remove(object);
        }
        if self.tried.len() > 2 * all.len() {
            let names: HashSet<_> = all.iter().map(|of| (of.kind, &of.object)).collect();
            self.tried
                .retain(|(kind, name), _| names.contains(&(*kind, name)));
        }
        let mut left = std::mem::take(&mut self.settled.open).into_iter();
        let mut unwritten = Unwritten::default();
        let mut is_newer = false;
        let mut takes_none = false;
        while !is_newer && !takes_none {
            let Some(status) = left.next() else {
                break;
            };
            if holds && self.refused.contains(&address_of(&status)) {
                unwritten.refused.push(status);
                continue;
            }
            // A sender that is gone wants nothing else.
            is_newer = wanted.has_changed().unwrap_or(false) || !self.is_leading();
            let written = match is_newer {
                true => Ok(false),
                false => self.write(&status).await,
            };
            takes_none = unwritten.note(status, written);
        }
        let round = match unwritten.fault.take() {
            Some(fault) if takes_none => Round::Failed(fault),
            _ if is_newer => Round::Newer,
            Some(fault) => Round::Refused(fault),
            None if !unwritten.refused.is_empty() => Round::Waiting,
            None => Round::Done,
        };
        let left: Vec<_> = left.collect();
        let others = left.iter().map(address_of);
        let others = others.filter(|of| self.refused.contains(of));
        let refused = unwritten.refused.iter().map(address_of);
        self.refused = refused.chain(others).collect();
        self.settled.open = unwritten.into_open(left);
        if matches!(round, Round::Newer | Round::Failed(_)) {
            return round;
        }
        if holds && !self.settled.released.is_empty() {
            return match round {
                Round::Done => Round::Waiting,
                round => round,
            };
        }
        match (round, self.take_addresses_back().await) {
            (Round::Done | Round::Waiting, Err(fault)) => Round::Refused(fault),
            (round, _) => round,
        }
    }

    /// Takes the balancer's addresses out of the statuses of Ingresses that the balancer no longer serves, once. An address
    /// that another controller has written stays.
    async fn take_addresses_back(&mut self) -> Result<(), Fault> {
        let (mut waiting, mut fault) = (Vec::new(), None);
        for last in std::mem::take(&mut self.settled.released) {
            let found = self.world.find_status(last.kind, &last.object);
            let api_version = self.world.version_of(last.kind);
            let Some((reported, api_version)) = found.zip(api_version) else {
                continue;
            };
            if !has_addresses_of(&reported.status(), &last.read_status()) {
                continue;
            }
            let target = last.kind.status_path(&api_version, &last.object);
            let patch = json!({ "metadata": { "resourceVersion": reported.version }, "status": show_status(&[]) });
            match self.api.patch(&target, &patch.to_string()).await {
                Ok(answer) => match answer.code {
                    200..300 => drop(self.written.fetch_add(1, Ordering::Relaxed)),
                    // The object has changed: an event is on its way.
                    409 => waiting.push(last),
                    401 | 403 | 429 | 500.. => {
                        fault.get_or_insert(refusal_of(&status_of(&answer)));
                        waiting.push(last);
                    }
                    _ => {}
                },
                Err(failure) => {
                    fault.get_or_insert(failure);
                    waiting.push(last);
                }
            }
        }
        self.settled.released = waiting;
        fault.map_or(Ok(()), Err)
    }

    /// Writes a status, if it differs. A status of an object that has changed meanwhile is left out: another one comes.
    /// Returns false for such a status.
    async fn write(&mut self, wanted: &Arc<Status>) -> Result<bool, Fault> {
        let found = self.world.find_status(wanted.kind, &wanted.object);
        let Some(reported) = found.filter(|of| of.generation == wanted.generation) else {
            return Ok(false);
        };
        let Some(api_version) = self.world.version_of(wanted.kind) else {
            return Ok(false);
        };
        let key = (wanted.kind, wanted.object.clone());
        let tried = self.tried.get(&key);
        // An event is on its way, or the API server has taken nothing of this status.
        if tried.is_some_and(|(version, of)| {
            *version == reported.version && (Arc::ptr_eq(of, wanted) || **of == **wanted)
        }) {
            return Ok(true);
        }
        let now = format_time(unix_now());
        let current = reported.status();
        let Some(status) = merge_status(&wanted.read_status(), &current, &self.controller, &now)
        else {
            return Ok(true);
        };
        let version = reported.version;
        let target = wanted.kind.status_path(&api_version, &wanted.object);
        // The version lets the API server refuse a status for an object that somebody has changed.
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
        let answer = self.api.patch(&target, &patch.to_string()).await?;
        match answer.code {
            200..300 => drop(self.written.fetch_add(1, Ordering::Relaxed)),
            // The object is gone, or has changed: an event is on its way.
            404 | 409 => {}
            401 | 403 | 429 | 500.. => return Err(refusal_of(&status_of(&answer))),
            _ => {
                let fault = refusal_of(&status_of(&answer));
                let (kind, name) = (wanted.kind.name(), &wanted.object);
                warn!(
                    "gateways: the status of {kind} {name} is refused: {}",
                    fault.message
                );
            }
        }
        self.tried.insert(key, (version, Arc::clone(wanted)));
        Ok(true)
    }
}

/// True if a status of an Ingress has the addresses of another one, and at least one address.
fn has_addresses_of(status: &Value, other: &Value) -> bool {
    let list = |of: &Value| {
        let entries = of.pointer("/loadBalancer/ingress")?.as_array()?;
        let key = |entry: &Value, key: &str| entry.get(key).cloned();
        let pairs = entries
            .iter()
            .map(|of| (key(of, "ip"), key(of, "hostname")));
        Some(pairs.collect::<Vec<_>>())
    };
    list(status).is_some_and(|found| !found.is_empty() && Some(found) == list(other))
}

#[cfg(test)]
mod tests {

    use super::*;

    fn status(name: &str) -> Arc<Status> {
        let object = ObjectName::new("shop", name);
        Arc::new(Status::new(Kind::HttpRoute, object, 1, &Value::Null))
    }

    #[test]
    fn a_refused_status_holds_up_no_other_one() {
        let fault = |code| Fault {
            message: format!("the API server answers {code}"),
            code,
            retry_after: None,
        };
        let names = |open: &[Arc<Status>]| -> Vec<String> {
            open.iter().map(|of| of.object.name.clone()).collect()
        };
        let mut unwritten = Unwritten::default();
        assert!(!unwritten.note(status("refused"), Err(fault(403))));
        assert!(!unwritten.note(status("written"), Ok(true)));
        assert!(!unwritten.note(status("changed"), Ok(false)));
        assert!(!unwritten.note(status("broken"), Err(fault(500))));
        assert_eq!(unwritten.fault.as_ref().unwrap().code, 403);
        let open = unwritten.into_open(vec![status("new")]);
        assert_eq!(names(&open), ["changed", "new", "refused", "broken"]);
        // Who is asked to wait, or is unknown, or reaches nobody, asks for nothing else.
        for code in [0, 401, 429] {
            assert!(Unwritten::default().note(status("a"), Err(fault(code))));
        }
        // A server that fails for everything gets a few questions only.
        let mut unwritten = Unwritten::default();
        let mut ends = (0..MOST_REFUSED).map(|_| unwritten.note(status("a"), Err(fault(503))));
        assert_eq!(ends.position(|ends| ends), Some(MOST_REFUSED - 1));
    }

    #[test]
    fn statuses_are_settled_until_they_or_their_objects_change() {
        let (a, b) = (status("a"), status("b"));
        let wanted: StatusList = Arc::new(vec![Arc::clone(&a), Arc::clone(&b)]);
        let mut settled = Settled::default();
        // Returns the statuses that are not settled, and settles them.
        let mut settle = |wanted: &StatusList, changed: &[(Kind, &str)]| {
            let name = |name: &str| ObjectName::new("shop", name);
            let changed = changed.iter().map(|(kind, of)| (*kind, name(of)));
            settled.update(wanted, &changed.collect());
            let open = std::mem::take(&mut settled.open);
            let names = open.iter().map(|of| of.object.name.clone());
            names.collect::<Vec<_>>()
        };
        assert_eq!(settle(&wanted, &[]), ["a", "b"]);
        assert!(settle(&wanted, &[]).is_empty());
        // Another kind has an object of the same name.
        assert!(settle(&wanted, &[(Kind::Gateway, "a")]).is_empty());
        assert_eq!(settle(&wanted, &[(Kind::HttpRoute, "a")]), ["a"]);
        let other: StatusList = Arc::new(vec![status("b")]);
        assert_eq!(settle(&other, &[]), ["b"]);
        assert!(settle(&other, &[(Kind::HttpRoute, "a")]).is_empty());
        let again: StatusList = Arc::new(vec![a, Arc::clone(&other[0])]);
        assert_eq!(settle(&again, &[(Kind::HttpRoute, "a")]), ["a"]);
        // A status that was not written stays open, unless it is no longer wanted.
        settled.update(
            &again,
            &BTreeSet::from([(Kind::HttpRoute, ObjectName::new("shop", "b"))]),
        );
        settled.update(&again, &BTreeSet::new());
        assert_eq!(settled.open.len(), 1);
        settled.update(&StatusList::default(), &BTreeSet::new());
        assert!(settled.open.is_empty() && settled.released.is_empty());
    }

    #[test]
    fn ingresses_that_are_no_longer_served_are_noted_until_they_are_served_again() {
        let ingress = |name: &str| {
            let object = ObjectName::new("shop", name);
            Arc::new(Status::new(Kind::Ingress, object, 1, &Value::Null))
        };
        let names = |settled: &Settled| -> Vec<String> {
            let released = settled.released.iter();
            released.map(|of| of.object.name.clone()).collect()
        };
        let mut settled = Settled::default();
        let update = |settled: &mut Settled, all: &[&Arc<Status>]| {
            let wanted: Vec<_> = all.iter().map(|of| Arc::clone(of)).collect();
            settled.update(&Arc::new(wanted), &BTreeSet::new());
        };
        let (a, b, c, route) = (ingress("a"), ingress("b"), ingress("c"), status("r"));
        update(&mut settled, &[&a, &b, &c, &route]);
        assert!(names(&settled).is_empty());
        // Another status of an Ingress that is still served.
        let newer = ingress("b");
        update(&mut settled, &[&newer, &c]);
        assert_eq!(names(&settled), ["a"]);
        update(&mut settled, &[&newer]);
        assert_eq!(names(&settled), ["a", "c"]);
        update(&mut settled, &[&newer, &a]);
        assert_eq!(names(&settled), ["c"]);
    }

    #[test]
    fn only_own_addresses_are_taken_back() {
        let own = show_status(&["192.0.2.1".into(), "lb.example".into()]);
        assert!(has_addresses_of(&own, &own));
        // The API server may add ports.
        let mut with_ports = own.clone();
        with_ports["loadBalancer"]["ingress"][0]["ports"] = json!([{ "port": 80 }]);
        assert!(has_addresses_of(&with_ports, &own));
        let none = show_status(&[]);
        assert!(!has_addresses_of(&none, &none));
        for other in [
            none,
            show_status(&["192.0.2.1".into()]),
            json!({}),
            Value::Null,
        ] {
            assert!(!has_addresses_of(&other, &own), "{other}");
        }
    }
}

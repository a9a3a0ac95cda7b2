//! All names, one after the other, for ever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config as config;
use evenkeel_manager::Manager;
use evenkeel_manager::endpoint::Endpoint;
use evenkeel_manager::exposition::{Exposition, Type};
use evenkeel_manager::handover::Handover;
use evenkeel_manager::service::{Service, Work};
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, PrepareError, PrepareErrors, Subsystem};
use evenkeel_tls::certificate::unix_now;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::order;
use crate::plan::Plan;
use crate::store::Store;

/// Longest time without a look at the clock, which may have been set.
const LOOK: Duration = Duration::from_secs(600);

/// Certificates by themselves. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Acme {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    current: Option<(config::Acme, Store)>,
    names: BTreeMap<String, Name>,
    /// True while another process uses the folder.
    rests: bool,
    issued: u64,
    failed: u64,
}

#[derive(Debug)]
struct Name {
    plan: Plan,
    issued: bool,
    error: Option<String>,
}

/// A name, as the admin API shows it.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct NameStatus {
    /// The name.
    pub name: String,
    /// True if there is a certificate for the name, perhaps an expired one.
    pub issued: bool,
    /// Time at which the certificate will be asked for next, in seconds since 1970.
    pub next: i64,
    /// Number of tries in a row that have failed.
    pub failures: u32,
    /// Reason why the last try has failed; `null` if it has not.
    pub error: Option<String>,
}

/// Returns a text about names that wait for a certificate, or for another one in vain; empty if there are
/// none.
pub fn describe_waiting(names: &[NameStatus]) -> String {
    waiting_at(names, unix_now())
}

fn waiting_at(names: &[NameStatus], now: i64) -> String {
    let mut lines = String::new();
    for one in names.iter().filter(|one| !one.issued || one.failures > 0) {
        let what = match one.issued {
            true => "could not be renewed",
            false => "has no certificate yet",
        };
        lines += &format!("{} {what}", one.name);
        if one.failures > 0 {
            let seconds = one.next.saturating_sub(now).max(0);
            let why = one.error.as_deref().unwrap_or("?").escape_debug();
            let failures = one.failures;
            lines += &format!(" ({failures} failures, next try in {seconds} s): {why}");
        }
        lines.push('\n');
    }
    lines
}

/// The folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "acme.folder: cannot write in {folder}: {error}; choose another folder, or let this user write there"
)]
struct Unusable {
    folder: String,
    error: std::io::Error,
}

fn open(settings: &config::Acme) -> Result<Store, PrepareErrors> {
    order::binding(settings)
        .map_err(|error| vec![PrepareError::other(order::Error::from(error))])?;
    Store::open(&settings.folder).map_err(|error| {
        let folder = settings.folder.display().to_string();
        vec![PrepareError::other(Unusable { folder, error })]
    })
}

impl Acme {
    /// Follows another configuration. What is known of names that stay is kept.
    fn follow(&self, next: Option<(config::Acme, Store)>) {
        let mut state = self.inner.state.lock();
        if state.current == next {
            return;
        }
        let now = unix_now();
        // Other names are no reason to think that what was wrong has been mended.
        let same_but_names = |a: &config::Acme, b: &config::Acme| {
            let names = a.names.clone();
            *a == config::Acme { names, ..b.clone() }
        };
        let is_mended = match (&state.current, &next) {
            (Some((before, _)), Some((after, _))) => !same_but_names(before, after),
            _ => false,
        };
        let folder = |current: &Option<(config::Acme, Store)>| {
            current
                .as_ref()
                .map(|(settings, _)| settings.folder.clone())
        };
        if folder(&state.current) != folder(&next) {
            state.names.clear();
        }
        let mut before = std::mem::take(&mut state.names);
        if let Some((settings, store)) = &next {
            let failures = store.failures();
            for name in &settings.names {
                let kept = before.remove(name).map(|mut kept| {
                    if is_mended && kept.plan.failures > 0 {
                        kept.plan.next = now;
                    }
                    kept
                });
                let fresh = || {
                    let validity = store.validity(name);
                    let failed = failures.get(name).filter(|plan| plan.failures > 0);
                    let failed = failed.map(|plan| plan.limit_kept(now));
                    let fresh = || Plan::new(validity, now, fastrand::f64());
                    Name {
                        plan: failed.unwrap_or_else(fresh),
                        issued: validity.is_some(),
                        error: None,
                    }
                };
                let one = kept.unwrap_or_else(fresh);
                state.names.insert(name.clone(), one);
            }
        }
        state.current = next;
        self.inner.changed.notify_one();
    }

    /// Returns the name whose turn it is, or the time for which it is no name's turn.
    fn next(&self, now: i64) -> Result<(String, config::Acme, Store), Duration> {
        let state = self.inner.state.lock();
        let Some((settings, store)) = state.current.as_ref().filter(|_| !state.rests) else {
            return Err(LOOK);
        };
        let first = state.names.iter().min_by_key(|(_, name)| name.plan.next);
        match first {
            Some((name, one)) if one.plan.next <= now => {
                Ok((name.clone(), settings.clone(), store.clone()))
            }
            Some((_, one)) => Err(Duration::from_secs((one.plan.next - now) as u64).min(LOOK)),
            None => Err(LOOK),
        }
    }

    async fn live(self) {
        loop {
            let (name, settings, store) = match self.next(unix_now()) {
                Ok(turn) => turn,
                Err(pause) => {
                    let _ = tokio::time::timeout(pause, self.inner.changed.notified()).await;
                    continue;
                }
            };
            let result = order::obtain_certificate(&settings, &store, &name).await;
            self.note(&name, &settings, &store, result);
        }
    }

    fn note(
        &self,
        name: &str,
        settings: &config::Acme,
        store: &Store,
        result: Result<(), order::Failure>,
    ) {
        let (now, random) = (unix_now(), fastrand::f64());
        let state = &mut *self.inner.state.lock();
        let Some(one) = state.names.get_mut(name) else {
            return;
        };
        match result {
            Ok(()) => {
                state.issued += 1;
                one.error = None;
                one.issued = true;
                one.plan = Plan::new(store.validity(name), now, random);
                tracing::info!(name, "a certificate was issued");
            }
            Err(order::Failure { error, not_before }) => {
                state.failed += 1;
                let first = settings.retry_interval;
                one.plan.plan_retry(now, first, not_before, random);
                let (failures, seconds) = (one.plan.failures, one.plan.next - now);
                tracing::warn!(
                    name,
                    failures,
                    "no certificate by ACME: {error}; the next try is in {seconds} s"
                );
                one.error = Some(error.to_string());
            }
        }
        let failed = state.names.iter();
        let failed = failed.filter(|(_, one)| one.plan.failures > 0);
        let failed = failed.map(|(name, one)| (name.as_str(), one.plan));
        if let Err(error) = store.keep_failures(&failed.collect()) {
            tracing::warn!("acme.folder: cannot save the times of the next tries: {error}");
        }
    }

    fn names(&self) -> Vec<NameStatus> {
        let state = self.inner.state.lock();
        let names = state.names.iter().map(|(name, one)| NameStatus {
            name: name.clone(),
            issued: one.issued,
            next: one.plan.next,
            failures: one.plan.failures,
            error: one.error.clone(),
        });
        names.collect()
    }
}

impl Service for Acme {
    fn run(&self, _: Arc<Manager>) -> Work<()> {
        Box::pin(self.clone().live())
    }
}

impl Subsystem for Acme {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        if !next.reload {
            return Ok(Box::new(|| ()));
        }
        let settings = next.section::<config::Acme>().cloned();
        let store = settings.as_ref().map(open).transpose()?;
        let this = self.clone();
        Ok(Box::new(move || this.follow(settings.zip(store))))
    }

    fn hand_over(&self, _: &mut Handover) {
        self.inner.state.lock().rests = true;
    }

    fn resume(&self) {
        self.inner.state.lock().rests = false;
        self.inner.changed.notify_one();
    }

    fn metrics(&self, out: &mut Exposition) {
        let (issued, failed) = {
            let state = self.inner.state.lock();
            (state.issued, state.failed)
        };
        out.begin_family(
            "evenkeel_acme_orders_total",
            Type::Counter,
            "Certificates ordered by ACME: issued, or not.",
        );
        out.add_sample(&[("result", "issued")], issued as f64);
        out.add_sample(&[("result", "failed")], failed as f64);
        let names = self.names();
        let mut gauge = |name, help, read: fn(&NameStatus) -> f64| {
            out.begin_family(name, Type::Gauge, help);
            for one in &names {
                out.add_sample(&[("name", &one.name)], read(one));
            }
        };
        gauge(
            "evenkeel_acme_failures",
            "Tries in a row that have failed to get a certificate.",
            |one| f64::from(one.failures),
        );
        gauge(
            "evenkeel_acme_next_timestamp_seconds",
            "Time of the next try to get the certificate, in seconds since 1970.",
            |one| one.next as f64,
        );
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let this = self.clone();
        vec![Endpoint::with_value(
            "/v1/acme",
            "Names whose certificates come from an authority by ACME",
            move || this.names(),
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f8_pauses_outlive_other_names_and_a_restart() {
        let folder = std::env::temp_dir().join(format!("evenkeel-pauses-{}", std::process::id()));
        let settings = |names: &[&str], seconds| config::Acme {
            names: names.iter().map(|name| name.to_string()).collect(),
            retry_interval: Duration::from_secs(seconds),
            folder: folder.clone(),
            ..config::Acme::default()
        };
        let follow = |acme: &Acme, settings: config::Acme| {
            let store = Store::open(&settings.folder).unwrap();
            acme.follow(Some((settings, store)));
        };
        let first = |acme: &Acme| {
            let turn = acme.next(unix_now());
            turn.map(|(name, ..)| name).ok()
        };
        let fail = |acme: &Acme, not_before| {
            let (name, settings, store) = acme.next(unix_now()).unwrap();
            let error = order::Error::Timeout;
            let failure = order::Failure { error, not_before };
            acme.note(&name, &settings, &store, Err(failure));
        };
        let acme = Acme::default();
        follow(&acme, settings(&["bad.test"], 600));
        fail(&acme, None);
        assert_eq!(first(&acme), None, "it waits");
        follow(&acme, settings(&["bad.test", "new.test"], 600));
        assert_eq!(first(&acme).as_deref(), Some("new.test"));
        fail(&acme, Some(unix_now() + 3600));
        assert_eq!(first(&acme), None);
        let names = acme.names();
        let again = Acme::default();
        follow(&again, settings(&["bad.test", "new.test"], 600));
        assert_eq!(first(&again), None, "a restart tries no sooner");
        let plans = |names: &[NameStatus]| -> Vec<_> {
            names.iter().map(|one| (one.next, one.failures)).collect()
        };
        assert_eq!(plans(&again.names()), plans(&names));
        assert!(
            names[1].next > unix_now() + 3500,
            "the authority asked for it"
        );
        // Perhaps what was wrong has been mended.
        follow(&again, settings(&["bad.test", "new.test"], 500));
        assert!(first(&again).is_some());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn it_is_told_which_names_wait() {
        let name = |name: &str, issued, failures| NameStatus {
            name: name.into(),
            issued,
            next: 160,
            failures,
            error: (failures > 0).then(|| "no route".into()),
        };
        let names = [
            name("a.example", true, 0),
            name("b.example", false, 0),
            name("c.example", false, 2),
            name("d.example", true, 1),
        ];
        assert_eq!(
            waiting_at(&names, 100),
            "b.example has no certificate yet\n\
             c.example has no certificate yet (2 failures, next try in 60 s): no route\n\
             d.example could not be renewed (1 failures, next try in 60 s): no route\n"
        );
    }
}

//! A task for each `[steer.NAME]`, which tells its balancer what has changed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_config::{OnStop, Steer, SteerHaproxy, SteerNginx};
use evenkeel_control::shares::{self, Settings, Shares, TargetShare};
use evenkeel_core::group::Group;
use evenkeel_core::time::Instant;
use evenkeel_manager::Manager;
use evenkeel_manager::endpoint::Endpoint;
use evenkeel_manager::exposition::{Exposition, Type};
use evenkeel_manager::handover::Handover;
use evenkeel_manager::service::{Service, Work};
use evenkeel_manager::snapshot::{GroupHandle, Snapshot};
use evenkeel_manager::subsystem::{Commit, PrepareErrors, Subsystem};
use evenkeel_net::Clock;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::haproxy::Haproxy;
use crate::nginx::{self, FileWriteResult};
use crate::status::SteerStatus;
use crate::wanted::{self, MemberShare};

/// Interval at which shares are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Longest time for which the end of the process waits for weights to be brought back.
const PATIENCE: Duration = Duration::from_secs(20);

/// The part of what is handed over to the next process, and its version.
const PART: (&str, u32) = ("steer", 1);

/// Other balancers that get weights. Clones are the same.
#[derive(Clone, Debug)]
pub struct Steering {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    clock: Clock,
    /// Targets in the order of the configuration, without targets before them that are not done yet.
    targets: Mutex<Vec<Arc<Target>>>,
    /// Signal that there are other targets.
    changed: Notify,
    /// True if another process tells the targets.
    rests: AtomicBool,
    /// Number of tasks.
    tasks: Mutex<usize>,
    /// Signal that there is one task less.
    ended: Condvar,
    /// Servers in maintenance by the process before, by target.
    inherited: Mutex<HashMap<String, BTreeSet<String>>>,
}

/// Target that is told.
#[derive(Debug)]
struct Target {
    /// Name of the target: [`Steer::target`].
    who: String,
    order: Mutex<Order>,
    /// True if the target is told no longer: what is to be done at the end is to be done.
    is_over: AtomicBool,
    /// A task has begun.
    is_begun: AtomicBool,
    status: Mutex<SteerStatus>,
    /// Servers that we have put into maintenance.
    maintained: Mutex<BTreeSet<String>>,
}

/// Section and group of a target, which say what the target is told.
#[derive(Clone, Debug)]
struct Order {
    steer: Arc<Steer>,
    group: Arc<GroupHandle>,
}

impl Steering {
    /// Returns a subsystem that tells nobody anything yet. `clock` is that of the groups.
    pub fn new(clock: Clock) -> Self {
        let inner = Inner {
            clock,
            targets: Mutex::default(),
            changed: Notify::new(),
            rests: AtomicBool::new(false),
            tasks: Mutex::new(0),
            ended: Condvar::new(),
            inherited: Mutex::default(),
        };
        Steering {
            inner: Arc::new(inner),
        }
    }

    /// Follows another configuration. A target that stays is told on, as the new configuration says.
    fn apply_orders(&self, orders: Vec<Order>) {
        let mut targets = self.inner.targets.lock();
        let mut before = std::mem::take(&mut *targets);
        for order in orders {
            let who = order.steer.target();
            let known = before.iter().position(|target| target.who == who);
            let target = match known {
                Some(at) => {
                    let target = before.swap_remove(at);
                    *target.order.lock() = order;
                    target
                }
                None => {
                    let maintained = self.inner.inherited.lock().remove(&who);
                    Arc::new(Target::new(who, order, maintained.unwrap_or_default()))
                }
            };
            targets.push(target);
        }
        for gone in before {
            gone.is_over.store(true, Ordering::Relaxed);
        }
        self.inner.changed.notify_one();
    }

    async fn run_targets(self) {
        let mut tasks = JoinSet::new();
        loop {
            let targets = self.inner.targets.lock().clone();
            for target in targets {
                if !target.is_begun.swap(true, Ordering::Relaxed) {
                    let task = Task::new(&self.inner, target);
                    tasks.spawn(task.run_rounds());
                }
            }
            while tasks.try_join_next().is_some() {}
            self.inner.changed.notified().await;
        }
    }

    fn statuses(&self) -> Vec<SteerStatus> {
        let targets = self.inner.targets.lock();
        targets.iter().map(|target| target.status()).collect()
    }
}

impl Target {
    fn new(who: String, order: Order, maintained: BTreeSet<String>) -> Self {
        Target {
            who,
            order: Mutex::new(order),
            is_over: AtomicBool::new(false),
            is_begun: AtomicBool::new(false),
            status: Mutex::default(),
            maintained: Mutex::new(maintained),
        }
    }

    fn status(&self) -> SteerStatus {
        let steer = Arc::clone(&self.order.lock().steer);
        SteerStatus {
            name: steer.name.clone(),
            group: steer.group.clone(),
            target: self.who.clone(),
            dry_run: steer.dry_run,
            ..self.status.lock().clone()
        }
    }
}

/// Returns the settings by which shares become messages for the target of `steer`.
pub(crate) fn share_settings(steer: &Steer) -> Settings {
    let (interval, urgent_interval, smallest_change) = match (&steer.haproxy, &steer.nginx) {
        (None, Some(nginx)) => (nginx.interval, nginx.urgent_interval, nginx.smallest_change),
        (Some(haproxy), _) => (haproxy.interval, TICK, haproxy.smallest_change),
        (None, None) => (Duration::MAX, Duration::MAX, 1.0),
    };
    Settings {
        // What HAProxy takes at most.
        highest: 256,
        damping: steer.damping,
        smallest_change,
        smallest_step: 1,
        interval,
        urgent_interval,
    }
}

/// A task of one target.
struct Task {
    inner: Arc<Inner>,
    target: Arc<Target>,
    shares: Shares,
    haproxy: Haproxy,
    /// nginx has the file, but was not reloaded.
    needs_reload: bool,
    /// Time when the target was asked or told last.
    tried: Option<Instant>,
    /// True if the last message could not be told.
    is_behind: bool,
}

impl Drop for Task {
    fn drop(&mut self) {
        *self.inner.tasks.lock() -= 1;
        self.inner.ended.notify_all();
    }
}

impl Task {
    fn new(inner: &Arc<Inner>, target: Arc<Target>) -> Self {
        *inner.tasks.lock() += 1;
        let settings = share_settings(&target.order.lock().steer);
        let maintained = target.maintained.lock().clone();
        Task {
            inner: Arc::clone(inner),
            shares: Shares::new(settings),
            haproxy: Haproxy::new(maintained),
            needs_reload: false,
            tried: None,
            is_behind: false,
            target,
        }
    }

    async fn run_rounds(mut self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = Vec::new();
        loop {
            ticks.tick().await;
            if self.inner.rests.load(Ordering::Relaxed) {
                continue;
            }
            let Order { steer, group } = self.target.order.lock().clone();
            let group = group.current.load_full();
            if self.target.is_over.load(Ordering::Relaxed) {
                self.restore_weights(&steer, &group, &mut seen).await;
                return;
            }
            let now = self.inner.clock.now();
            shares::observe_members(&group, now, &mut seen);
            self.shares.set_settings(share_settings(&steer));
            self.is_behind |= self.shares.update(now, &seen).is_some();
            let wait = match (&steer.haproxy, &steer.nginx) {
                // After a failure nothing is said sooner than it would be asked.
                (Some(haproxy), _) => haproxy.check_interval,
                (None, Some(nginx)) => nginx.interval.min(Duration::from_secs(10)),
                (None, None) => continue,
            };
            let has_failed = self.target.status.lock().error.is_some();
            let waited = self.tried.is_none_or(|tried| now.since(tried) >= wait);
            let is_due = match (self.is_behind, has_failed) {
                (true, false) => true,
                (true, true) => waited,
                // A file is as it was written.
                (false, _) => waited && steer.haproxy.is_some(),
            };
            if is_due && !self.shares.last_shares().is_empty() {
                self.tried = Some(now);
                let wanted = wanted::from_shares(&group, self.shares.last_shares());
                self.send_weights(&steer, &wanted).await;
            }
        }
    }

    async fn send_weights(&mut self, steer: &Steer, wanted: &[MemberShare]) {
        let told = match (&steer.haproxy, &steer.nginx) {
            (Some(haproxy), _) => self.tell_haproxy(steer, haproxy, wanted).await,
            (None, Some(nginx)) => self.tell_nginx(steer, nginx, wanted).await,
            (None, None) => Ok(()),
        };
        self.is_behind = told.is_err();
        let (name, who) = (&steer.name, &self.target.who);
        let status = &mut *self.target.status.lock();
        match told {
            Ok(()) => {
                if status.error.take().is_some() {
                    info!(
                        steer = name,
                        "{who} has recovered: it takes weights and states"
                    );
                }
            }
            Err(error) => {
                status.failures += 1;
                if status.error.as_ref() != Some(&error) {
                    warn!(steer = name, "{error}; retrying");
                }
                status.error = Some(error);
            }
        }
    }

    async fn tell_haproxy(
        &mut self,
        steer: &Steer,
        haproxy: &SteerHaproxy,
        wanted: &[MemberShare],
    ) -> Result<(), String> {
        let round = self.haproxy.run_round(haproxy, wanted, steer.dry_run).await;
        self.target
            .maintained
            .lock()
            .clone_from(self.haproxy.servers_in_maintenance());
        let round = round.map_err(|error| error.to_string())?;
        let name = &steer.name;
        if round.restarted {
            info!(
                steer = name,
                pid = round.about.pid,
                "HAProxy has restarted: all weights and states are sent to the new process"
            );
        }
        let orders: Vec<String> = round.orders.iter().map(ToString::to_string).collect();
        for order in &orders {
            tracing::debug!(steer = name, dry_run = steer.dry_run, "{order}");
        }
        let status = &mut *self.target.status.lock();
        // Each is told of once: an address may be written wrong.
        for member in &round.members {
            let known = status
                .members
                .iter()
                .find(|known| known.member == member.member && known.server == member.server);
            if let Some(note) = &member.note
                && known.and_then(|known| known.note.as_ref()) != Some(note)
            {
                warn!(steer = name, member = member.member, "{note}");
            }
        }
        if !steer.dry_run {
            status.changes += orders.len() as u64;
        }
        status.restarts += u64::from(round.restarted);
        status.overridden += round.overridden as u64;
        status.peer = Some(format!(
            "HAProxy {}, process {}",
            round.about.version, round.about.pid
        ));
        status.members = round.members;
        status.others = round.others;
        status.pending = if steer.dry_run { orders } else { Vec::new() };
        Ok(())
    }

    async fn tell_nginx(
        &mut self,
        steer: &Steer,
        nginx: &SteerNginx,
        wanted: &[MemberShare],
    ) -> Result<(), String> {
        let text = nginx::text(&steer.name, &steer.group, nginx, wanted);
        if steer.dry_run {
            let status = &mut *self.target.status.lock();
            status.members = nginx::list_members(wanted);
            status.pending = text.lines().map(str::to_owned).collect();
            return Ok(());
        }
        let told = match nginx::apply_file(nginx, &text).await {
            Ok(FileWriteResult::Same) if self.needs_reload => nginx::run_reload(nginx)
                .await
                .map(|()| FileWriteResult::Changed),
            told => told,
        };
        match &told {
            Ok(_) => self.needs_reload = false,
            Err(nginx::NginxError::Reload(_)) => self.needs_reload = true,
            Err(_) => {}
        }
        let done = told.map_err(|error| error.to_string())?;
        let status = &mut *self.target.status.lock();
        if done == FileWriteResult::Changed {
            status.changes += 1;
            tracing::debug!(steer = steer.name, "{} is rewritten", nginx.file.display());
        }
        status.members = nginx::list_members(wanted);
        status.pending = Vec::new();
        Ok(())
    }

    /// Brings the weights of the configuration back, as nobody looks any more: weights that were right for
    /// loads at some time must not stay for ever.
    async fn restore_weights(&mut self, steer: &Steer, group: &Group, seen: &mut Vec<TargetShare>) {
        if steer.on_stop == OnStop::Keep || steer.dry_run || self.tried.is_none() {
            return;
        }
        shares::use_configured(group, seen);
        let mut plain = Shares::new(share_settings(steer));
        let said = plain.update(self.inner.clock.now(), seen);
        let wanted = wanted::from_shares(group, said.unwrap_or_default());
        let restored = match (&steer.haproxy, &steer.nginx) {
            (Some(haproxy), _) => {
                let restored = self.haproxy.restore_servers(haproxy, &wanted).await;
                restored.map(|_| ()).map_err(|error| error.to_string())
            }
            (None, Some(_)) if wanted.is_empty() => Ok(()),
            (None, Some(nginx)) => {
                let text = nginx::text(&steer.name, &steer.group, nginx, &wanted);
                let told = nginx::apply_file(nginx, &text).await;
                told.map(|_| ()).map_err(|error| error.to_string())
            }
            (None, None) => Ok(()),
        };
        let (name, who) = (&steer.name, &self.target.who);
        match restored {
            Ok(()) => info!(steer = name, "{who} has its configured weights"),
            Err(error) => {
                warn!(steer = name, "{who} keeps the weights that it has: {error}");
            }
        }
    }
}

impl Service for Steering {
    fn run(&self, _: Arc<Manager>) -> Work<()> {
        Box::pin(self.clone().run_targets())
    }
}

impl Subsystem for Steering {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let all = next.section::<Vec<Steer>>().map_or(&[][..], Vec::as_slice);
        let orders = all.iter().filter_map(|steer| {
            let group = next.find_group(&steer.group)?;
            Some(Order {
                steer: Arc::new(steer.clone()),
                group: Arc::clone(&group.group),
            })
        });
        let (orders, this) = (orders.collect(), self.clone());
        Ok(Box::new(move || this.apply_orders(orders)))
    }

    /// Waits until weights are back where they were.
    fn stop(&self) {
        if self.inner.rests.load(Ordering::Relaxed) {
            return;
        }
        self.apply_orders(Vec::new());
        let end = std::time::Instant::now() + PATIENCE;
        let mut tasks = self.inner.tasks.lock();
        while *tasks > 0 {
            if self.inner.ended.wait_until(&mut tasks, end).timed_out() {
                warn!(
                    "other balancers do not answer before the end of this process, and keep the \
                    weights that they have"
                );
                return;
            }
        }
    }

    fn hand_over(&self, to: &mut Handover) {
        self.inner.rests.store(true, Ordering::Relaxed);
        let targets = self.inner.targets.lock();
        let maintained = targets.iter().map(|target| {
            let maintained = target.maintained.lock().clone();
            (target.who.clone(), maintained)
        });
        let maintained: HashMap<String, BTreeSet<String>> = maintained.collect();
        to.give(PART.0, PART.1, &maintained);
    }

    fn resume(&self) {
        self.inner.rests.store(false, Ordering::Relaxed);
    }

    fn take_over(&self, from: &Handover) {
        if let Some(maintained) = from.take(PART.0, PART.1) {
            *self.inner.inherited.lock() = maintained;
        }
    }

    fn metrics(&self, out: &mut Exposition) {
        let all = self.statuses();
        let mut family = |name, kind, help, read: fn(&SteerStatus) -> f64| {
            out.begin_family(name, kind, help);
            for status in &all {
                out.add_sample(&[("steer", &status.name)], read(status));
            }
        };
        family(
            "evenkeel_steer_up",
            Type::Gauge,
            "1 if the last update of the other balancer succeeded, 0 if not.",
            |status| f64::from(u8::from(status.error.is_none())),
        );
        family(
            "evenkeel_steer_changes_total",
            Type::Counter,
            "Weights and states that were changed at the other balancer; with nginx, files written.",
            |status| status.changes as f64,
        );
        family(
            "evenkeel_steer_failures_total",
            Type::Counter,
            "Failed updates of the other balancer.",
            |status| status.failures as f64,
        );
        family(
            "evenkeel_steer_restarts_total",
            Type::Counter,
            "How often the other balancer was found to have restarted.",
            |status| status.restarts as f64,
        );
        family(
            "evenkeel_steer_overridden_total",
            Type::Counter,
            "Weights that somebody else had changed.",
            |status| status.overridden as f64,
        );
        family(
            "evenkeel_steer_unmatched_members",
            Type::Gauge,
            "Members that the other balancer does not have.",
            |status| {
                let missing = status
                    .members
                    .iter()
                    .filter(|member| member.server.is_none());
                missing.count() as f64
            },
        );
        out.begin_family(
            "evenkeel_steer_weight",
            Type::Gauge,
            "The weight that a member should have at the other balancer, 0 to 256.",
        );
        for status in &all {
            let mut told = BTreeSet::new();
            for member in &status.members {
                if told.insert(&member.member) {
                    let labels = [("steer", &*status.name), ("member", &*member.member)];
                    out.add_sample(&labels, f64::from(member.weight));
                }
            }
        }
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let this = self.clone();
        vec![Endpoint::with_value(
            "/v1/steer",
            "Other balancers that get the weights of groups",
            move || this.statuses(),
        )]
    }
}

//! The manager as a whole, with a fake data plane and a fake resolver.

mod change;
mod learnt;
mod zones;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_control::opinion::{Source, SourceReport};
use evenkeel_core::address::Address;
use evenkeel_core::group::{Granularity, Group, Outcome, PickError, Request, Ticket};
use evenkeel_core::load::{LOADS_PER_LOCATION, LoadId};
use evenkeel_core::member::{MemberId, Reason, Weight};
use evenkeel_core::strategy::{self, Values};
use evenkeel_core::time::Instant;
use evenkeel_net::Clock;

use crate::config::sources::AgentCheck;
use crate::config::{Config, GroupConfig, MemberConfig, Rule};
use crate::dns::Lookup;
use crate::revisions::{Author, How};
use crate::snapshot::{GroupHandle, Snapshot, WaitFailure};
use crate::status::{GroupStatus, MemberStatus};
use crate::subsystem::{Commit, PrepareError, PrepareErrors, Subsystem};
use crate::{AdminState, AlertSetting, ManageError, Manager, Readiness};
use evenkeel_control::alerts::HANDOVER;

/// A data plane that refuses rules called "refused", and counts what it is asked.
#[derive(Default)]
struct Plane {
    prepared: AtomicUsize,
    /// Number of times that files were to be read.
    reloads: AtomicUsize,
    committed: Arc<AtomicUsize>,
    /// Happens once, when it is next asked.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Subsystem for Plane {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
            meanwhile();
        }
        let reloads = usize::from(next.reload);
        self.reloads.fetch_add(reloads, Ordering::Relaxed);
        if next.rules.iter().any(|rule| rule.rule.name == "refused") {
            return Err(vec![PrepareError::Other("cannot listen on it".into())]);
        }
        let committed = Arc::clone(&self.committed);
        Ok(Box::new(move || {
            committed.fetch_add(1, Ordering::Relaxed);
        }))
    }
}

/// Names that can be changed while a test runs.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<HashMap<String, Vec<IpAddr>>>>);

impl Names {
    fn set(&self, host: &str, ips: &[&str]) {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        self.0.lock().unwrap().insert(host.into(), ips);
    }

    fn lookup(&self) -> Lookup {
        let names = self.clone();
        Arc::new(move |host| {
            let found = names.0.lock().unwrap().get(&host).cloned();
            if host == "hangs" {
                return Box::pin(std::future::pending());
            }
            Box::pin(async move { found.ok_or_else(|| io::Error::other("no such host")) })
        })
    }
}

fn manager() -> (Arc<Manager>, Arc<Plane>, Names) {
    let (plane, names) = (Arc::new(Plane::default()), Names::default());
    let data_plane: Arc<dyn Subsystem> = Arc::clone(&plane) as _;
    let manager = Manager::with_lookup(Clock::start(), data_plane, names.lookup());
    (manager, plane, names)
}

fn config(members: &[&str]) -> Config {
    let member = |address: &&str| {
        let (host, port) = address.rsplit_once(':').unwrap();
        MemberConfig::new(host, port.parse().unwrap())
    };
    let listen = vec![Address::Ip("127.0.0.1:0".parse().unwrap())];
    let mut group = GroupConfig::new("app", members.iter().map(member).collect());
    // Nothing passes while a test runs, however slow the machine is.
    group.settings.slow_start = Duration::from_secs(3600);
    group.settings.load_max_age = Duration::from_secs(3600);
    Config {
        rules: vec![Rule::new("web", listen, "app")],
        groups: vec![group.into()],
        ..Config::default()
    }
}

fn app(manager: &Manager) -> GroupStatus {
    manager.status().groups.remove(0)
}

fn member(manager: &Manager, name: &str) -> MemberStatus {
    let mut members = app(manager).members.into_iter();
    members.find(|member| member.name == name).unwrap()
}

fn names(manager: &Manager) -> Vec<String> {
    app(manager).members.into_iter().map(|m| m.name).collect()
}

fn ids(manager: &Manager) -> HashMap<String, MemberId> {
    let group = manager.list_groups().remove(0);
    let members = group.members().iter();
    members.map(|m| (m.name.to_string(), m.id)).collect()
}

#[tokio::test]
async fn s10_readiness_takes_no_lock_of_the_manager() {
    let (manager, _, _) = manager();
    assert_eq!(manager.readiness(None), Readiness::NoConfig);
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    {
        // Found anew, since the configuration has changed; then kept.
        let _busy = manager.lock();
        assert_eq!(manager.readiness(None), Readiness::Ready);
        assert_eq!(manager.readiness(None), Readiness::Ready);
    }
    let down = AdminState::Maintenance;
    manager.set_admin_state("app", "10.0.0.1:80", down).unwrap();
    assert_eq!(manager.readiness(None), Readiness::NoMember);
    manager.set_rule_enabled("web", false).unwrap();
    assert_eq!(manager.readiness(None), Readiness::Ready);
}

#[tokio::test]
async fn a_group_is_in_maintenance_until_the_file_says_something_new() {
    let (manager, _, _) = manager();
    let mut first = config(&["10.0.0.1:80"]);
    let of_rule = first.rules[0].responses.maintenance.get_or_insert_default();
    of_rule.status = 500;
    of_rule.said = vec!["status"];
    manager.apply_config(first.clone()).await.unwrap();
    let is_on = |manager: &Manager| {
        let policy = manager.lock().state.snapshot.rules[0]
            .default_target
            .policy
            .clone();
        assert_eq!(
            policy.maintenance().status,
            500,
            "what the group does not say, the rule does"
        );
        assert_eq!(policy.is_in_maintenance(None), app(manager).maintenance);
        app(manager).maintenance
    };
    assert!(!is_on(&manager));
    manager.set_group_maintenance("app", true).unwrap();
    assert!(is_on(&manager));
    assert!(!manager.status().rules[0].maintenance, "it is the group's");
    let unknown = manager.set_group_maintenance("nobody", true).unwrap_err();
    assert!(matches!(unknown, ManageError::NoGroup(_)), "{unknown}");
    // A reload of the same file changes nothing live.
    manager.apply_config(first.clone()).await.unwrap();
    assert!(is_on(&manager));
    let mut on = first.clone();
    on.groups[0].responses.set_maintenance(Some(&true));
    manager.apply_config(on).await.unwrap();
    assert!(is_on(&manager));
    manager.apply_config(first).await.unwrap();
    assert!(!is_on(&manager), "the file has the last word");
}

#[tokio::test]
async fn f7_one_rule_without_members_does_not_take_the_others_away() {
    let (manager, _, _) = manager();
    let mut config = config(&["10.0.0.1:80"]);
    let mut other = config.groups[0].clone();
    other.name = "other".into();
    other.members = vec![MemberConfig::new("10.0.0.9", 80)];
    config.groups.push(other);
    let mut rule = config.rules[0].clone();
    rule.name = "second".into();
    rule.listen = vec![Address::Ip("127.0.0.1:0".parse().unwrap())];
    rule.group = "other".into();
    config.rules.push(rule);
    manager.apply_config(config).await.unwrap();
    let ready = |rule: &str| manager.readiness(Some(rule));
    assert_eq!(ready("web"), Readiness::Ready);
    assert_eq!(ready("none"), Readiness::NoRule);
    let down = AdminState::Maintenance;
    manager
        .set_admin_state("other", "10.0.0.9:80", down)
        .unwrap();
    assert_eq!(manager.readiness(None), Readiness::Ready);
    assert_eq!(ready("web"), Readiness::Ready);
    assert_eq!(ready("second"), Readiness::NoMember);
    manager.set_admin_state("app", "10.0.0.1:80", down).unwrap();
    assert_eq!(manager.readiness(None), Readiness::NoMember);
}

#[tokio::test]
async fn a_reload_keeps_slots_and_what_is_in_flight() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80", "10.0.0.2:80"]))
        .await
        .unwrap();
    let handle = Arc::clone(&manager.snapshots().borrow().rules[0].default_target.group);
    let before = ids(&manager);
    let now = manager.clock().now();
    let ticket = handle.current.load().bind(1, now).unwrap();

    let mut next = config(&["10.0.0.3:80", "10.0.0.2:80"]);
    next.groups[0].members[1].weight = Weight::new(3.0).unwrap();
    next.groups[0].max_queue = 7;
    let applied = manager.apply_config(next).await.unwrap();
    assert_eq!(applied.generation, 2);

    let snapshot = Arc::clone(&manager.snapshots().borrow());
    assert!(
        Arc::ptr_eq(&snapshot.rules[0].default_target.group, &handle),
        "same group"
    );
    assert_eq!(handle.queue.policy().limit, 7);
    let after = ids(&manager);
    assert_eq!(after["10.0.0.2:80"], before["10.0.0.2:80"]);
    assert!(!before.values().any(|id| *id == after["10.0.0.3:80"]));
    let kept = member(&manager, "10.0.0.2:80");
    assert_eq!((kept.in_flight, kept.weight), (1, 3.0));
    assert_eq!(kept.state, "up");
    let new = member(&manager, "10.0.0.3:80");
    assert_eq!(new.state, "warming", "a new member of a running group");
    assert!(new.effective_weight < new.weight);

    // The request ends after its member's snapshot is gone, and is counted.
    ticket.finish(Outcome::Success, manager.clock().now());
    let kept = member(&manager, "10.0.0.2:80");
    assert_eq!((kept.in_flight, kept.totals.requests), (0, 1));
}

/// A request that waits for the member at `index` and no other.
fn wait_for_member(
    handle: &Arc<GroupHandle>,
    index: usize,
) -> tokio::task::JoinHandle<Result<Ticket, WaitFailure>> {
    let handle = Arc::clone(handle);
    tokio::spawn(async move {
        let now = Clock::start().now();
        let bind = |_| {
            let ticket = handle.current.load().bind(index, now);
            ticket.ok_or(PickError::AllFull)
        };
        handle
            .wait_for((4, None), || now, |_| std::future::pending(), bind)
            .await
            .map(|(ticket, _)| ticket)
    })
}

#[tokio::test]
async fn a_vacancy_reaches_the_one_in_the_queue_who_can_use_it() {
    let (manager, _, _) = manager();
    let mut config = config(&["10.0.0.1:80", "10.0.0.2:80"]);
    config.groups[0].max_queue = 3;
    for member in &mut config.groups[0].members {
        member.max_connections = Some(1);
    }
    manager.apply_config(config).await.unwrap();
    let handle = Arc::clone(&manager.snapshots().borrow().rules[0].default_target.group);
    let now = manager.clock().now();
    let group = handle.current.load_full();
    let held: Vec<_> = (0..2).map(|index| group.bind(index, now)).collect();
    assert!(held.iter().all(Option::is_some));
    assert!(group.bind(0, now).is_none(), "at its limit");

    let others = [0, 0].map(|index| wait_for_member(&handle, index));
    let last = wait_for_member(&handle, 1);
    let everybody = || async {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    };
    everybody().await;
    assert_eq!(handle.queue.waiting(), 3);
    let full = wait_for_member(&handle, 1).await.unwrap();
    assert_eq!(
        full.unwrap_err(),
        WaitFailure::QueueFull,
        "and so is the queue"
    );

    let mut held = held.into_iter();
    let first = held.next();
    handle.queue.vacate(|| drop(held.next()));
    everybody().await;
    assert!(last.is_finished());
    assert!(others.iter().all(|other| !other.is_finished()));

    handle.queue.vacate(|| drop(first));
    everybody().await;
    let served = others.iter().filter(|other| other.is_finished()).count();
    assert_eq!(served, 1);
    others.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_reload_that_the_data_plane_refuses_changes_nothing() {
    let (manager, plane, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    let before = (manager.status().rules, app(&manager), ids(&manager));
    let group = manager.list_groups().remove(0);

    let mut next = config(&["10.0.0.2:80"]);
    next.groups[0].members[0].drain = true;
    next.rules[0].name = "refused".into();
    let error = manager.apply_config(next).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot listen on it");

    let after = (manager.status().rules, app(&manager), ids(&manager));
    assert_eq!(after, before);
    assert!(Arc::ptr_eq(&manager.list_groups()[0], &group));
    assert_eq!(manager.status().generation, 1);
    let last = manager.status().last_reload.unwrap();
    assert_eq!(last.error.as_deref(), Some("cannot listen on it"));
    assert_eq!(plane.committed.load(Ordering::Relaxed), 1);
    // And the next good one goes.
    manager
        .apply_config(config(&["10.0.0.2:80"]))
        .await
        .unwrap();
    assert_eq!(names(&manager), ["10.0.0.2:80"]);
    assert_eq!(manager.status().last_reload.unwrap().error, None);
}

#[tokio::test]
async fn a_broken_file_changes_nothing() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    let missing = std::path::Path::new("/nonexistent/evenkeel.toml");
    let error = manager
        .reload(missing, How::File, Author::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("/nonexistent/evenkeel.toml"));
    assert_eq!(names(&manager), ["10.0.0.1:80"]);
    let last = manager.status().last_reload.unwrap();
    assert_eq!(last.error, Some(error.to_string()));
}

#[tokio::test]
async fn a_reload_that_was_asked_for_and_failed_is_told_to_whoever_follows_the_file() {
    let (manager, _, _) = manager();
    let text = "[rule.web]\nlisten = \"127.0.0.1:80\"\nmembers = [\"10.0.0.1:80\"]\n";
    let path = std::env::temp_dir().join(format!("evenkeel-asked-{}.toml", std::process::id()));
    let mut failed = manager.failed_reloads();
    let ask = |text: &'static str| {
        std::fs::write(&path, text).unwrap();
        manager.reload_asked(&path, Author::default(), false)
    };
    ask(text).await.unwrap();
    assert!(!failed.has_changed().unwrap());
    ask("x = 1").await.unwrap_err();
    assert!(failed.has_changed().unwrap());
    failed.borrow_and_update();
    // What follows the file finds it as it was, and reports it: then the failure is over.
    std::fs::write(&path, text).unwrap();
    assert!(manager.status().last_reload.unwrap().error.is_some());
    manager.reload_changed(&path).await.unwrap().unwrap();
    assert_eq!(manager.status().last_reload.unwrap().error, None);
    assert!(!failed.has_changed().unwrap());
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn files_are_read_at_reloads_only() {
    let (manager, plane, _) = manager();
    let reloads = || plane.reloads.load(Ordering::Relaxed);
    let prepared = || plane.prepared.load(Ordering::Relaxed);
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    assert_eq!((prepared(), reloads()), (1, 1));
    manager.set_rule_enabled("web", false).unwrap();
    assert_eq!((prepared(), reloads()), (2, 1));
    // The same configuration again: its files may be others.
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    assert_eq!((prepared(), reloads()), (3, 2));
    // One that was refused has changed nothing.
    let mut refused = config(&["10.0.0.1:80"]);
    refused.rules[0].name = "refused".into();
    manager.apply_config(refused).await.unwrap_err();
    assert_eq!((prepared(), reloads()), (4, 3));
    manager.set_rule_enabled("web", true).unwrap();
    assert_eq!((prepared(), reloads()), (5, 3));
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    assert_eq!((prepared(), reloads()), (6, 4));
}

#[tokio::test]
async fn an_unchanged_group_keeps_its_snapshot() {
    let (manager, plane, _) = manager();
    let config = config(&["10.0.0.1:80", "10.0.0.2:80"]);
    manager.apply_config(config.clone()).await.unwrap();
    let group = manager.list_groups().remove(0);
    manager.apply_config(config).await.unwrap();
    assert!(Arc::ptr_eq(&manager.list_groups()[0], &group));
    // A weight is a slot, not a rebuild, and no business of the listeners.
    let prepared = plane.prepared.load(Ordering::Relaxed);
    manager.set_weight("app", "10.0.0.1:80", 5.0).unwrap();
    assert!(Arc::ptr_eq(&manager.list_groups()[0], &group));
    assert_eq!(plane.prepared.load(Ordering::Relaxed), prepared);
    assert_eq!(member(&manager, "10.0.0.1:80").weight, 5.0);
}

/// Estimates change slowly where weights differ, as these are then kept to better.
#[tokio::test]
async fn weights_that_change_live_count_for_estimates() {
    let (manager, _, _) = manager();
    let addresses = ["10.0.0.1:80", "10.0.0.2:80"];
    manager.apply_config(config(&addresses)).await.unwrap();
    let group = manager.list_groups().remove(0);
    let mut millis = 1000;
    let mut after_a_change = |weight: f64| {
        manager.set_weight("app", addresses[1], weight).unwrap();
        manager.round_now();
        let mut answer = |took: u64| {
            let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
            let mut ticket = group.bind(0, at(millis)).unwrap();
            millis += took;
            ticket.record_response(Outcome::Success, at(millis));
            ticket.finish(Outcome::Success, at(millis));
            group.members()[0].slot.service_time(at(millis)).unwrap()
        };
        let answers = [10; 200].into_iter().chain([100; 12]);
        answers.map(&mut answer).last().unwrap()
    };
    let equal = after_a_change(1.0);
    let weighted = after_a_change(19.0);
    assert!(weighted < 0.8 * equal, "{weighted} {equal}");
    let again = after_a_change(1.0);
    assert!(weighted < 0.8 * again, "{weighted} {again}");
}

#[tokio::test]
async fn a_reload_keeps_live_changes_of_what_it_does_not_change() {
    let (manager, _, _) = manager();
    let first = config(&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
    manager.apply_config(first.clone()).await.unwrap();
    let drain = AdminState::Drain;
    manager
        .set_admin_state("app", "10.0.0.1:80", drain)
        .unwrap();
    manager
        .set_admin_state("app", "10.0.0.2:80", AdminState::Maintenance)
        .unwrap();
    manager.set_weight("app", "10.0.0.2:80", 9.0).unwrap();
    manager
        .set_admin_state("app", "10.0.0.3:80", drain)
        .unwrap();
    manager.set_rule_enabled("web", false).unwrap();
    manager.set_strategy("app", "random", &[]).unwrap();
    assert_eq!(member(&manager, "10.0.0.1:80").reasons, ["draining"]);
    assert_eq!(member(&manager, "10.0.0.2:80").reasons, ["maintenance"]);

    // The file says something new about the weight of the second member only, and no
    // longer knows the third.
    let mut second = first.clone();
    second.groups[0].members.pop();
    second.groups[0].members[1].weight = Weight::new(2.0).unwrap();
    manager.apply_config(second.clone()).await.unwrap();
    assert_eq!(member(&manager, "10.0.0.1:80").admin, drain);
    let other = member(&manager, "10.0.0.2:80");
    assert_eq!((other.admin, other.weight), (AdminState::Maintenance, 2.0));
    assert!(!manager.status().rules[0].enabled);
    assert_eq!(app(&manager).strategy, "random");

    // Now it says something new about the drain of the first, and the rule.
    let mut third = second.clone();
    third.groups[0].members[0].drain = true;
    manager.apply_config(third.clone()).await.unwrap();
    third.groups[0].members[0].drain = false;
    third.rules[0].enabled = false;
    manager.apply_config(third.clone()).await.unwrap();
    assert_eq!(
        member(&manager, "10.0.0.1:80").admin,
        AdminState::Ready,
        "the file has the last word about what it changes"
    );
    third.rules[0].enabled = true;
    manager.apply_config(third).await.unwrap();
    assert!(manager.status().rules[0].enabled);

    // A member that went and came is new: no live change waits for it.
    manager.apply_config(first).await.unwrap();
    assert_eq!(member(&manager, "10.0.0.3:80").admin, AdminState::Ready);
}

#[tokio::test]
async fn a_rule_is_disabled_through_the_data_plane() {
    let (manager, plane, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    let mut snapshots = manager.snapshots();
    snapshots.mark_unchanged();
    manager.set_rule_enabled("web", false).unwrap();
    assert!(snapshots.has_changed().unwrap());
    assert!(!snapshots.borrow().rules[0].rule.enabled);
    assert_eq!(plane.committed.load(Ordering::Relaxed), 2);
}

/// A load that no group takes any more is not shown as one that counts.
#[tokio::test]
async fn fronts_d10_a_load_is_expired_where_it_is_too_old_for_each_group() {
    let (manager, _, _) = manager();
    let mut config = config(&["10.0.0.1:80"]);
    let mut other = GroupConfig::new("other", config.groups[0].members.clone());
    config.groups[0].settings.load_max_age = Duration::from_millis(1);
    other.settings.load_max_age = Duration::from_secs(3600);
    let mut alone = config.clone();
    config.groups.push(other.into());
    manager.apply_config(config).await.unwrap();
    let location = manager.status().locations.remove(0).name;
    manager
        .report_loads(&location, &[(LoadId::CPU, 0.5)])
        .unwrap();
    let load = || manager.status().locations.remove(0).loads.remove(0);
    while load().age_seconds < 0.002 {
        tokio::task::yield_now().await;
    }
    assert!(!load().expired, "the other group takes it");
    alone.groups[0].settings.slow_start = Duration::ZERO;
    manager.apply_config(alone).await.unwrap();
    assert!(load().expired);
    assert_eq!(app(&manager).members[0].load, None);
}

#[tokio::test]
async fn commands_about_what_is_not_there_are_refused() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    let ready = AdminState::Ready;
    let not_found = [
        manager.set_rule_enabled("x", true),
        manager.set_strategy("x", "random", &[]),
        manager.set_admin_state("x", "10.0.0.1:80", ready),
        manager.set_admin_state("app", "x", ready),
        manager.set_weight("app", "x", 1.0),
        manager.report_loads("x", &[(LoadId::CPU, 0.5)]),
        manager.explain_next("x", None).map(drop),
    ];
    for result in not_found {
        assert!(result.as_ref().unwrap_err().is_not_found(), "{result:?}");
    }
    let wrong = [
        manager.set_strategy("app", "x", &[]),
        manager.set_strategy("app", "random", &[("x".into(), 1.0)]),
        manager.set_weight("app", "10.0.0.1:80", -1.0),
        manager.report_loads("10.0.0.1", &[(LoadId::CPU, f64::NAN)]),
    ];
    for result in wrong {
        assert!(!result.as_ref().unwrap_err().is_not_found(), "{result:?}");
    }
}

#[tokio::test]
async fn a_report_counts_as_a_whole_or_not_at_all() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    let bad = [(LoadId::CPU, 0.5), (LoadId::MEMORY, -1.0)];
    assert!(matches!(
        manager.report_loads("10.0.0.1", &bad),
        Err(ManageError::Load(_))
    ));
    let many = 0..=LOADS_PER_LOCATION as u32;
    let too_many: Vec<_> = many.map(|id| (LoadId(id), 1.0)).collect();
    assert!(matches!(
        manager.report_loads("10.0.0.1", &too_many),
        Err(ManageError::TooManyLoads(_))
    ));
    assert!(manager.status().locations[0].loads.is_empty());
    manager
        .report_loads("10.0.0.1", &[(LoadId::CPU, 0.5)])
        .unwrap();
    assert_eq!(member(&manager, "10.0.0.1:80").load, Some(0.5));
    // The location survives a reload, with its loads.
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    assert_eq!(member(&manager, "10.0.0.1:80").load, Some(0.5));
}

#[tokio::test]
async fn a_name_becomes_one_member_per_address() {
    let (manager, _, names_of) = manager();
    names_of.set("many", &["10.0.0.2", "10.0.0.1", "fd00::1"]);
    names_of.set("one", &["fd00::2"]);
    let config = config(&["many:80", "one:80", "none:80"]);
    manager.apply_config(config.clone()).await.unwrap();
    assert_eq!(
        names(&manager),
        ["many:80/10.0.0.1", "many:80/10.0.0.2", "one:80", "none:80"],
    );
    assert_eq!(member(&manager, "many:80/10.0.0.2").location, "10.0.0.2");
    let one = member(&manager, "one:80");
    assert_eq!(one.location, "one");
    assert_eq!(one.address, Some("[fd00::2]:80".into()));
    let none = member(&manager, "none:80");
    assert_eq!(
        (none.state.as_ref(), none.address.as_ref()),
        ("unresolved", None)
    );

    // A command for the name is one for all its addresses, and a later one for an
    // address is one for that.
    let set = |name, to| manager.set_admin_state("app", name, to).unwrap();
    let admin = |name| member(&manager, name).admin;
    set("many:80/10.0.0.1", AdminState::Maintenance);
    set("many:80", AdminState::Drain);
    assert_eq!(admin("many:80/10.0.0.1"), AdminState::Drain);
    assert_eq!(admin("many:80/10.0.0.2"), AdminState::Drain);
    set("many:80/10.0.0.2", AdminState::Ready);
    assert_eq!(admin("many:80/10.0.0.1"), AdminState::Drain);
    assert_eq!(admin("many:80/10.0.0.2"), AdminState::Ready);
    manager.apply_config(config).await.unwrap();
    assert_eq!(admin("many:80/10.0.0.2"), AdminState::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_hangs_does_not_stop_the_start() {
    let (manager, _, names_of) = manager();
    names_of.set("good", &["10.0.0.1"]);
    let started = tokio::time::Instant::now();
    manager
        .apply_config(config(&["hangs:80", "good:80"]))
        .await
        .unwrap();
    assert!(started.elapsed() < Duration::from_secs(4));
    assert_eq!(member(&manager, "hangs:80").state, "unresolved");
    assert_eq!(member(&manager, "good:80").state, "up");
}

#[tokio::test(start_paused = true)]
async fn names_are_followed() {
    let (manager, plane, names_of) = manager();
    names_of.set("many", &["10.0.0.1", "10.0.0.2"]);
    manager
        .apply_config(config(&["many:80", "late:80"]))
        .await
        .unwrap();
    let before = ids(&manager);
    let running = tokio::spawn(Arc::clone(&manager).run());
    let mut changes = manager.subscribe_changes();

    names_of.set("late", &["10.0.0.9"]);
    changes.changed().await.unwrap();
    assert_eq!(member(&manager, "late:80").state, "warming");

    names_of.set("many", &["10.0.0.2"]);
    changes.changed().await.unwrap();
    assert_eq!(names(&manager), ["many:80", "late:80"]);
    let kept = ids(&manager)["many:80"];
    assert_eq!(kept, before["many:80/10.0.0.2"], "the same member");

    // A name that no longer resolves keeps the addresses it had.
    names_of.0.lock().unwrap().remove("many");
    names_of.set("late", &["10.0.0.8"]);
    changes.changed().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(ids(&manager)["many:80"], kept);

    // An address that was missing for a while is the member that it was.
    names_of.set("many", &["10.0.0.1", "10.0.0.2"]);
    changes.changed().await.unwrap();
    let after = ids(&manager);
    for name in ["many:80/10.0.0.1", "many:80/10.0.0.2"] {
        assert_eq!(after[name], before[name]);
    }
    assert_eq!(member(&manager, "many:80/10.0.0.1").state, "up");
    assert_eq!(plane.prepared.load(Ordering::Relaxed), 1);
    running.abort();
}

#[tokio::test]
async fn a_decision_is_explained() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80", "10.0.0.2:80"]))
        .await
        .unwrap();
    manager
        .set_admin_state("app", "10.0.0.1:80", AdminState::Drain)
        .unwrap();
    let next = manager.explain_next("app", None).unwrap();
    assert_eq!(next.chosen.as_deref(), Some("10.0.0.2:80"));
    let drained = next.candidates.iter().find(|c| c.member == "10.0.0.1:80");
    assert!(drained.unwrap().verdict.contains("draining"), "{next:?}");

    assert_eq!(manager.explain_last("app").unwrap(), None);
    manager.round_now();
    let group = manager.list_groups().remove(0);
    let request = Request::at_time(manager.clock().now());
    let picked = group.pick(&request, &mut fastrand::Rng::with_seed(1));
    assert_eq!(picked.unwrap().member_index(), 1);
    let last = manager.explain_last("app").unwrap().unwrap();
    assert_eq!(last.chosen.as_deref(), Some("10.0.0.2:80"));
}

#[tokio::test]
async fn panic_and_alerts_follow_members_and_loads() {
    let (manager, _, _) = manager();
    let mut config = config(&["10.0.0.1:80", "10.0.0.2:80"]);
    let alert = &mut config.groups[0].settings.alert;
    alert.threshold = Some(evenkeel_core::alert::Threshold::Critical(0.8));
    manager.apply_config(config.clone()).await.unwrap();
    manager
        .report_loads("10.0.0.1", &[(LoadId::CPU, 0.9)])
        .unwrap();
    manager
        .report_loads("10.0.0.2", &[(LoadId::CPU, 0.2)])
        .unwrap();
    manager.round_now();
    assert!(member(&manager, "10.0.0.1:80").alert);
    assert!(!member(&manager, "10.0.0.2:80").alert);
    // Over a reload, too.
    manager.apply_config(config).await.unwrap();
    manager
        .report_loads("10.0.0.1", &[(LoadId::CPU, 0.75)])
        .unwrap();
    manager.round_now();
    assert!(member(&manager, "10.0.0.1:80").alert, "hysteresis");
    manager
        .report_loads("10.0.0.1", &[(LoadId::CPU, 0.5)])
        .unwrap();
    manager.round_now();
    assert!(!member(&manager, "10.0.0.1:80").alert);

    let group = manager.list_groups().remove(0);
    let down = |holds| {
        for member in group.members() {
            let reason = evenkeel_core::member::Reason::Down;
            member.slot.set(reason, holds);
        }
        manager.round_now();
        app(&manager).panic
    };
    assert!(down(true));
    assert!(!down(false));
}

#[tokio::test]
async fn a_strategy_says_when_its_locations_must_shed() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]))
        .await
        .unwrap();
    let alerts = |strategy: &str, params: &[(&str, f64)], loads: [f64; 3]| {
        let params: Vec<_> = params.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        manager.set_strategy("app", strategy, &params).unwrap();
        for (index, load) in loads.into_iter().enumerate() {
            let location = format!("10.0.0.{}", index + 1);
            manager
                .report_loads(&location, &[(LoadId::CPU, load)])
                .unwrap();
        }
        manager.round_now();
        let members = app(&manager).members.into_iter();
        members.map(|member| member.alert).collect::<Vec<_>>()
    };
    let none = [false; 3];
    assert_eq!(alerts("round_robin", &[], [0.1, 5.0, 0.1]), none);
    assert_eq!(alerts("least_loaded", &[], [0.1, 5.0, 0.1]), none);
    let critical = [("critical_threshold", 0.8)];
    let second = [false, true, false];
    assert_eq!(alerts("least_loaded", &critical, [0.1, 0.9, 0.7]), second);
    assert_eq!(alerts("load_minimum", &[], [0.5, 0.5, 0.5]), none);
    assert_eq!(alerts("load_minimum", &[], [0.5, 0.71, 0.5]), second);
    assert_eq!(alerts("load_minimum", &[], [0.5, 5.0, 0.5]), second);
    assert_eq!(alerts("load_average", &[], [0.5, 0.5, 0.5]), none);
    assert_eq!(alerts("load_average", &[], [0.1, 1.0, 0.1]), second);
    // The load is the effective one: half of what was reported, here.
    let tolerant = [("critical_threshold", 0.8), ("tolerance", 2.0)];
    assert_eq!(alerts("least_loaded", &tolerant, [0.1, 1.4, 0.1]), none);
    assert_eq!(alerts("least_loaded", &tolerant, [0.1, 1.7, 0.1]), second);
}

#[tokio::test]
async fn an_alert_reaches_all_groups_there_and_leaves_each_a_way_out() {
    let (manager, _, _) = manager();
    let mut config = config(&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
    let raising = &mut config.groups[0].settings;
    raising.alert.threshold = Some(evenkeel_core::alert::Threshold::Critical(0.8));
    raising.granularity = Granularity::OnDemand;
    let mut add = |name: &str, granularity, adaptive, members: &[&str]| {
        let mut group = self::config(members).groups.remove(0);
        group.name = name.into();
        group.settings.granularity = granularity;
        group.settings.adaptive = adaptive;
        config.groups.push(group);
    };
    let two = ["10.0.0.1:81", "10.0.0.2:81"];
    add("other", Granularity::PerSession, true, &two);
    add("alone", Granularity::OnDemand, true, &two[..1]);
    add("requests", Granularity::PerRequest, true, &two);
    add("blind", Granularity::OnDemand, false, &two);
    manager.apply_config(config.clone()).await.unwrap();
    let mut rounds = 0;
    let mut shedding = || {
        rounds += 1;
        manager.round_after(HANDOVER * rounds);
        let groups = manager.status().groups.into_iter();
        let sheds = |m: MemberStatus| m.reasons.iter().any(|reason| reason == "shedding");
        groups
            .map(|group| group.members.into_iter().map(sheds).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let calm = vec![
        vec![false; 3],
        vec![false; 2],
        vec![false],
        vec![false; 2],
        vec![false; 2],
    ];
    for (index, load) in [0.9, 0.5, 0.2].into_iter().enumerate() {
        let location = format!("10.0.0.{}", index + 1);
        manager
            .report_loads(&location, &[(LoadId::CPU, load)])
            .unwrap();
    }
    let mut first = calm.clone();
    (first[0][0], first[1][0]) = (true, true);
    assert_eq!(shedding(), first);
    let group = manager.list_groups().remove(0);
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..100 {
        let request = Request::at_time(manager.clock().now());
        assert_ne!(group.choose_member(&request, &mut rng), Ok(0));
    }
    // With the others out it serves as if there was no alert, and still has one.
    for name in ["10.0.0.2:80", "10.0.0.3:80"] {
        manager
            .set_admin_state("app", name, AdminState::Maintenance)
            .unwrap();
    }
    let request = Request::at_time(manager.clock().now());
    assert_eq!(group.choose_member(&request, &mut rng), Ok(0));
    assert_eq!(shedding(), calm);
    for name in ["10.0.0.2:80", "10.0.0.3:80"] {
        manager
            .set_admin_state("app", name, AdminState::Ready)
            .unwrap();
    }
    assert_eq!(shedding(), first);
    // A reload that makes the group ask with every request ends it there.
    config.groups[0].settings.granularity = Granularity::PerRequest;
    manager.apply_config(config).await.unwrap();
    first[0][0] = false;
    assert_eq!(shedding(), first);
    manager
        .report_loads("10.0.0.1", &[(LoadId::CPU, 0.1)])
        .unwrap();
    assert_eq!(shedding(), calm);
}

#[tokio::test]
async fn an_alert_says_why_and_an_administrator_has_the_last_word() {
    let (manager, _, _) = manager();
    let mut config = config(&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
    let settings = &mut config.groups[0].settings;
    settings.alert.threshold = Some(evenkeel_core::alert::Threshold::Critical(0.8));
    settings.granularity = Granularity::OnDemand;
    manager.apply_config(config.clone()).await.unwrap();
    // The locations under alert, and the members that shed, by their last number.
    let mut rounds = 0;
    let mut seen = || {
        rounds += 1;
        manager.round_after(HANDOVER * rounds);
        let status = manager.status();
        let last = |name: &str| name.split(':').next().unwrap().bytes().last().unwrap() - b'0';
        let alerted = status.locations.iter().filter(|location| location.alert);
        let alerts: Vec<u8> = alerted.map(|location| last(&location.name)).collect();
        (
            alerts,
            sheds(&manager)
                .iter()
                .map(|name| last(name))
                .collect::<Vec<u8>>(),
        )
    };
    manager
        .report_loads("10.0.0.1", &[(LoadId::CPU, 0.9)])
        .unwrap();
    manager
        .report_loads("10.0.0.2", &[(LoadId::CPU, 0.1)])
        .unwrap();
    manager
        .report_loads("10.0.0.3", &[(LoadId::CPU, 0.2)])
        .unwrap();
    assert_eq!(seen(), (vec![1], vec![1]));
    let status = manager.status();
    let alert = &status.locations[0].alerts[0];
    let facts = (alert.group.as_str(), alert.load, alert.threshold);
    assert_eq!(facts, ("app", 0.9, 0.8));
    assert_eq!(
        (status.groups[0].alerts, status.groups[0].alerts_raised),
        (1, 1)
    );

    manager.set_alert("10.0.0.1", AlertSetting::Off).unwrap();
    assert_eq!(seen(), (vec![], vec![]));
    assert_eq!(
        manager.status().locations[0].alerts.len(),
        1,
        "it is still there"
    );
    manager.set_alert("10.0.0.2", AlertSetting::On).unwrap();
    manager.set_alert("10.0.0.3", AlertSetting::On).unwrap();
    assert_eq!(seen(), (vec![2, 3], vec![2, 3]), "more than max_share");
    // A reload knows nothing of it.
    manager.apply_config(config).await.unwrap();
    assert_eq!(seen(), (vec![2, 3], vec![2, 3]));
    manager.set_alert("10.0.0.1", AlertSetting::On).unwrap();
    // First it takes clients again, then the other one sends them away.
    seen();
    assert_eq!(
        seen(),
        (vec![1, 2, 3], vec![1, 3]),
        "the least loaded serves"
    );
    for location in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        manager.set_alert(location, AlertSetting::Auto).unwrap();
    }
    assert_eq!(seen(), (vec![1], vec![1]));
    let nowhere = manager.set_alert("10.0.0.9", AlertSetting::On);
    assert!(matches!(nowhere, Err(ManageError::NoLocation(_))));

    // The alert passes to another one: for a while nobody sends clients away.
    let later = HANDOVER * 20;
    manager.round_after(later);
    assert_eq!(sheds(&manager), ["10.0.0.1:80"]);
    manager
        .report_loads("10.0.0.1", &[(LoadId::CPU, 0.1)])
        .unwrap();
    manager
        .report_loads("10.0.0.3", &[(LoadId::CPU, 0.9)])
        .unwrap();
    manager.round_after(later);
    assert!(sheds(&manager).is_empty());
    manager.round_after(later + HANDOVER / 2);
    assert!(sheds(&manager).is_empty());
    manager.round_after(later + HANDOVER);
    assert_eq!(sheds(&manager), ["10.0.0.3:80"]);
}

/// Locations are called one after the other, whatever the load, and each only as long as somebody there sends
/// clients away.
#[tokio::test]
async fn clients_that_reach_members_directly_are_called_at_a_fixed_interval() {
    let (manager, _, _) = manager();
    let mut config = config(&["10.0.0.1:80", "10.0.0.2:80"]);
    let settings = &mut config.groups[0].settings;
    settings.granularity = Granularity::OnDemand;
    settings.adaptive = false;
    settings.rebind_interval = Duration::from_secs(10);
    settings.alert.pulses = true;
    manager.apply_config(config.clone()).await.unwrap();
    let locations = ["10.0.0.1", "10.0.0.2"].map(|name| manager.find_location(name).unwrap());
    // Which servers are to send clients away, and which members are avoided.
    let seen = |manager: &Manager, ms| {
        manager.round_after(Duration::from_millis(ms));
        let alerted = locations.each_ref().map(|location| location.is_alerted());
        (alerted, sheds(manager))
    };
    let calm = ([false, false], vec![]);
    assert_eq!(seen(&manager, 0), calm);
    assert_eq!(seen(&manager, 4_000), calm);
    let first = ([true, false], vec!["10.0.0.1:80".to_owned()]);
    assert_eq!(seen(&manager, 5_500), first);
    // The server is told, and so it goes on, until the longest time.
    locations[0].set_shut(true);
    assert_eq!(seen(&manager, 6_000), first);
    assert_eq!(seen(&manager, 9_000), first);
    // It has not acknowledged the end. The other one is needed, and its turn passes.
    assert_eq!(seen(&manager, 11_000), ([false, false], first.1.clone()));
    locations[0].set_shut(false);
    assert_eq!(seen(&manager, 11_500), calm);
    let second = ([false, true], vec!["10.0.0.2:80".to_owned()]);
    assert_eq!(seen(&manager, 16_000), second);
    // Nobody is there to be told.
    assert_eq!(seen(&manager, 16_500), calm);
    assert_eq!(seen(&manager, 21_000), first);
    // Sessions stay where they are.
    config.groups[0].settings.granularity = Granularity::PerSession;
    manager.apply_config(config).await.unwrap();
    assert_eq!(seen(&manager, 21_050), calm);
    assert_eq!(seen(&manager, 60_000), calm);
}

/// The members of the first group that send their clients away.
fn sheds(manager: &Manager) -> Vec<String> {
    let members = manager.status().groups.swap_remove(0).members.into_iter();
    let is_shedding = |m: &MemberStatus| m.reasons.iter().any(|reason| reason == "shedding");
    members
        .filter(is_shedding)
        .map(|member| member.name)
        .collect()
}

#[tokio::test]
async fn a_member_that_fails_is_ejected() {
    let (manager, _, _) = manager();
    let mut config = config(&["10.0.0.1:80", "10.0.0.2:80"]);
    config.groups[0].settings.ejection.failure_limit = 2;
    manager.apply_config(config.clone()).await.unwrap();
    let group = manager.list_groups().remove(0);
    let now = manager.clock().now();
    for _ in 0..2 {
        group.bind(1, now).unwrap().finish(Outcome::Failure, now);
    }
    manager.round_now();
    assert_eq!(member(&manager, "10.0.0.2:80").state, "ejected");
    assert!(!app(&manager).panic);
    // A reload does not bring it back, nor does it forget to.
    manager.apply_config(config).await.unwrap();
    manager.round_now();
    assert_eq!(member(&manager, "10.0.0.2:80").state, "ejected");
    manager.round_after(Duration::from_secs(10));
    assert_ne!(member(&manager, "10.0.0.2:80").state, "ejected");
}

#[tokio::test]
async fn an_ejection_is_shown_with_its_cause_and_ended_by_an_administrator() {
    let (manager, _, names) = manager();
    names.set("many", &["10.0.1.1", "10.0.1.2"]);
    let mut config = config(&["10.0.0.1:80", "many:80"]);
    let settings = &mut config.groups[0].settings;
    (settings.ejection.failure_limit, settings.panic_threshold) = (2, 1.0);
    config.groups[0].members[1].given_name = Some("s2".into());
    manager.apply_config(config).await.unwrap();
    let group = manager.list_groups().remove(0);
    let eject = || {
        let now = manager.clock().now();
        for index in [1, 2, 1, 2] {
            group
                .bind(index, now)
                .unwrap()
                .finish(Outcome::Failure, now);
        }
        manager.round_now();
    };
    let is_ejected = || {
        let members = app(&manager).members;
        members
            .iter()
            .map(|of| of.state == "ejected")
            .collect::<Vec<_>>()
    };
    let (a, b) = ("s2/10.0.1.1", "s2/10.0.1.2");
    eject();
    assert_eq!(is_ejected(), [false, true, true]);
    let shown = member(&manager, a).ejection.unwrap();
    assert_eq!(
        (&*shown.cause, &*shown.why, shown.by),
        ("failures_in_a_row", "2 failures in a row", None)
    );
    assert!(shown.seconds_left > 0.0 && shown.seconds_left <= 10.0);
    let explained = manager.explain_next("app", None).unwrap().candidates;
    let verdict = |name: &str| {
        let mut candidates = explained.iter();
        let of = candidates.find(|of| of.member == name).unwrap();
        of.verdict.clone()
    };
    let said = verdict(a);
    assert!(
        said.contains("ejected for ") && said.contains(" s more: 2 failures in a row"),
        "{said}"
    );
    assert!(!verdict("10.0.0.1:80").contains("ejected"));

    // One of the addresses, by its name, and then all of them.
    manager.end_ejection("app", "many:80/10.0.1.2").unwrap();
    assert_eq!(is_ejected(), [false, true, false]);
    eject();
    assert_eq!(is_ejected(), [false, true, true]);
    for _ in 0..2 {
        manager.end_ejection("app", "s2").unwrap();
        assert_eq!(is_ejected(), [false; 3]);
    }
    manager.round_now();
    assert_eq!(is_ejected(), [false; 3], "its failures are forgotten");
    assert!(member(&manager, b).ejection.is_none());
    for (group, name) in [("app", "s3"), ("none", "s2")] {
        assert!(manager.end_ejection(group, name).is_err());
    }
}

#[tokio::test]
async fn health_is_an_and_of_its_sources() {
    let (manager, _, names) = manager();
    names.set("app.example", &["10.1.0.1", "10.1.0.2"]);
    let (a, b) = ("app.example:80/10.1.0.1", "app.example:80/10.1.0.2");
    let mut file = config(&["app.example:80"]);
    file.groups[0].sources.agent_check = Some(AgentCheck::new(9999).into());
    manager.apply_config(file.clone()).await.unwrap();
    let say = |member: &str, source, opinion: Option<SourceReport>| {
        manager.set_source_report("app", member, source, opinion.as_ref())
    };
    let (up, down) = (
        SourceReport::default(),
        SourceReport {
            down: true,
            note: Some("disk full".into()),
            ..SourceReport::default()
        },
    );
    say(a, Source::Agent, Some(down.clone())).unwrap();
    say(a, Source::AgentCheck, Some(up.clone())).unwrap();
    assert_eq!(member(&manager, a).state, "reported_down");
    assert_eq!(member(&manager, b).state, "up");
    // Over a reload, and the admin's word does not bring it back either.
    let mut changed = file.clone();
    changed.groups[0].max_queue = 7;
    manager.apply_config(changed).await.unwrap();
    manager
        .set_admin_state("app", a, AdminState::Ready)
        .unwrap();
    let held = member(&manager, a);
    assert_eq!(held.reasons, ["reported_down"]);
    let told: Vec<_> = held
        .opinions
        .iter()
        .map(|o| (&*o.source, &*o.says))
        .collect();
    assert_eq!(told, [("agent", "down (disk full)"), ("agent_check", "up")]);
    let next = manager.explain_next("app", None).unwrap();
    assert_eq!(next.chosen.as_deref(), Some(b));
    let out = next.candidates.iter().find(|c| c.member == a).unwrap();
    assert!(
        out.verdict
            .contains("reported_down; agent says down (disk full)"),
        "{out:?}"
    );
    say(a, Source::Agent, None).unwrap();
    assert_eq!(member(&manager, a).state, "warming");

    // The name in the file means all of its addresses.
    say("app.example:80", Source::Agent, Some(down)).unwrap();
    assert_eq!(member(&manager, a).state, "reported_down");
    assert_eq!(member(&manager, b).state, "reported_down");
    manager.round_now();
    assert!(app(&manager).panic, "an opinion, which panic overrides");
    let nobody = say("app.example:81", Source::Agent, Some(up.clone()));
    assert!(matches!(nobody, Err(ManageError::NoMember { .. })));
    // Who is no longer asked has nothing to say.
    say(a, Source::AgentCheck, Some(up.clone())).unwrap();
    assert_eq!(member(&manager, a).opinions.len(), 2);
    file.groups[0].sources.agent_check = None;
    manager.apply_config(file).await.unwrap();
    assert_eq!(member(&manager, a).opinions.len(), 1);
    // An answer that was on its way comes too late.
    say(a, Source::AgentCheck, Some(up.clone())).unwrap();
    assert_eq!(member(&manager, a).opinions.len(), 1);
    let nowhere = manager.set_source_report("web", a, Source::Agent, Some(&up));
    assert!(matches!(nowhere, Err(ManageError::NoGroup(_))));
}

#[tokio::test]
async fn a_reported_weight_is_a_part_of_the_one_that_an_admin_gives() {
    let (manager, _, _) = manager();
    let mut file = config(&["10.0.0.1:80"]);
    file.groups[0].members[0].weight = Weight::new(4.0).unwrap();
    file.groups[0].members[0].max_connections = Some(20);
    manager.apply_config(file).await.unwrap();
    let id = ids(&manager)["10.0.0.1:80"];
    let say = |percent: f64, most: u32| {
        let opinion = SourceReport {
            weight: Some(Weight::new(percent / 100.0).unwrap()),
            max_connections: std::num::NonZeroU32::new(most),
            ..SourceReport::default()
        };
        manager.set_opinion_of(id, Source::Agent, Some(&opinion));
        let member = member(&manager, "10.0.0.1:80");
        (
            member.weight,
            member.effective_weight,
            member.max_connections,
        )
    };
    assert_eq!(say(50.0, 30), (4.0, 2.0, Some(20)));
    assert_eq!(say(50.0, 10), (4.0, 2.0, Some(10)));
    manager.set_weight("app", "10.0.0.1:80", 10.0).unwrap();
    assert_eq!(say(50.0, 10), (10.0, 5.0, Some(10)));
    assert_eq!(say(25.0, 0), (10.0, 2.5, Some(20)));
    assert_eq!(say(0.0, 0), (10.0, 0.0, Some(20)));
    assert_eq!(member(&manager, "10.0.0.1:80").state, "reported_drain");

    // What is reported as the most counts at the next request.
    assert_eq!(say(100.0, 1), (10.0, 10.0, Some(1)));
    let group = manager.list_groups().remove(0);
    let request = Request::at_time(manager.clock().now());
    let rng = &mut fastrand::Rng::with_seed(1);
    let held = group.pick(&request, rng).unwrap();
    assert_eq!(group.pick(&request, rng).unwrap_err(), PickError::AllFull);
    say(100.0, 2);
    group.pick(&request, rng).unwrap();
    drop(held);
}

#[tokio::test]
async fn members_join_and_leave_and_outlast_reloads() {
    let (manager, plane, _) = manager();
    let mut open = config(&["10.0.0.1:80"]);
    open.groups[0].agents_may_join = true;
    manager.apply_config(open.clone()).await.unwrap();
    let names = || -> Vec<(String, bool)> {
        let status = manager.status();
        let members = status.groups[0].members.iter();
        members.map(|m| (m.name.clone(), m.joined)).collect()
    };
    let ours = ("10.0.0.1:80".to_owned(), false);
    let theirs = ("10.0.0.2:80".to_owned(), true);
    let joined = |hosts: &[&str]| {
        let mut members: Vec<_> = hosts.iter().map(|h| MemberConfig::new(h, 80)).collect();
        members
            .iter_mut()
            .for_each(|m| m.location = Some("rack-7".into()));
        HashMap::from([
            ("app".to_owned(), members.clone()),
            ("other".into(), members),
        ])
    };

    // The file's own member is not doubled, nor is one that several agents have.
    let hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.2"];
    manager.set_joined(joined(&hosts)).unwrap();
    assert_eq!(names(), [ours.clone(), theirs.clone()]);
    assert!(manager.find_location("rack-7").is_some());
    let group = || Arc::clone(&manager.list_groups()[0]);
    let id = group().members()[1].id;

    // What an administrator says about it outlasts a reload as it does itself.
    manager
        .set_admin_state("app", "10.0.0.2:80", AdminState::Drain)
        .unwrap();
    manager.apply_config(open.clone()).await.unwrap();
    assert_eq!(names(), [ours.clone(), theirs.clone()]);
    let drained = manager.status().groups[0].members[1].clone();
    assert_eq!(drained.admin, AdminState::Drain);
    assert_eq!(group().members()[1].id, id);

    // Where agents may not join they do not, but they are there when they may.
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    assert_eq!(names(), std::slice::from_ref(&ours));
    manager.apply_config(open).await.unwrap();
    assert_eq!(names(), [ours.clone(), theirs]);
    assert_eq!(group().members()[1].id, id);

    manager.set_joined(HashMap::new()).unwrap();
    assert_eq!(names(), [ours]);
    // Nobody listens elsewhere because of it.
    assert_eq!(plane.prepared.load(Ordering::Relaxed), 4);
}

/// A group of an owner, with members at these locations.
fn owned(name: &str, locations: &[&str]) -> GroupConfig {
    let members = locations.iter().copied().map(MemberConfig::from_reference);
    GroupConfig::new(name, members.collect())
}

fn group(manager: &Manager, name: &str) -> GroupStatus {
    let groups = manager.status().groups;
    groups.into_iter().find(|g| g.name == name).unwrap()
}

#[tokio::test]
async fn groups_that_do_not_stand_in_the_file_are_groups_like_others() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    manager
        .set_groups("corba", vec![owned("stocks", &["host1", "host1/10.0.0.1"])])
        .unwrap();
    let stocks = group(&manager, "stocks");
    assert_eq!(stocks.owner.as_deref(), Some("corba"));
    assert_eq!(app(&manager).owner, None);
    let places: Vec<_> = stocks
        .members
        .iter()
        .map(|m| (&*m.name, &*m.location))
        .collect();
    assert_eq!(
        places,
        [("host1", "host1"), ("host1/10.0.0.1", "host1/10.0.0.1")]
    );
    for member in &stocks.members {
        // Nobody has looked its name up, and nobody needs to.
        assert_eq!((&member.address, &*member.reasons), (&None, &[][..]));
    }

    // A name that looks like an endpoint of another member is no such thing.
    let drain = AdminState::Drain;
    manager
        .set_admin_state("stocks", "host1/10.0.0.1", drain)
        .unwrap();
    manager.set_weight("stocks", "host1", 3.0).unwrap();
    let down = SourceReport {
        down: true,
        ..SourceReport::default()
    };
    manager
        .set_source_report("stocks", "host1", Source::Agent, Some(&down))
        .unwrap();
    manager.set_strategy("stocks", "random", &[]).unwrap();
    let check = |manager: &Manager| {
        let stocks = group(manager, "stocks");
        assert_eq!(stocks.strategy, "random");
        assert_eq!(
            (stocks.members[0].weight, stocks.members[0].admin),
            (3.0, AdminState::Ready)
        );
        assert_eq!(stocks.members[0].reasons, ["reported_down"]);
        assert_eq!(
            (stocks.members[1].weight, stocks.members[1].admin),
            (1.0, drain)
        );
        assert_eq!(stocks.members[1].reasons, ["draining"]);
    };
    check(&manager);
    let before = manager.list_groups()[1].members()[0].id;

    // It lives through reloads, and through changes of what is beside it.
    manager
        .apply_config(config(&["10.0.0.2:80"]))
        .await
        .unwrap();
    check(&manager);
    let members = ["host1", "host1/10.0.0.1", "host2"];
    manager
        .set_groups(
            "corba",
            vec![owned("other", &[]), owned("stocks", &members)],
        )
        .unwrap();
    check(&manager);
    assert_eq!(group(&manager, "stocks").members.len(), 3);
    assert_eq!(manager.list_groups()[2].members()[0].id, before);

    // Its owner has the last word about what it changes.
    let mut stocks = owned("stocks", &members);
    stocks.strategy = Values::defaults(strategy::find("round_robin").unwrap());
    manager.set_groups("corba", vec![stocks]).unwrap();
    assert_eq!(group(&manager, "stocks").strategy, "round_robin");
    assert_eq!(group(&manager, "stocks").members[1].admin, drain);
    manager.set_groups("corba", Vec::new()).unwrap();
    assert_eq!(manager.status().groups.len(), 1);
}

#[tokio::test]
async fn a_name_belongs_to_one_group() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    let error = manager.set_groups("corba", vec![owned("app", &["a"])]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("two groups are called \"app\""), "{error}");
    assert_eq!(manager.status().groups.len(), 1);

    manager
        .set_groups("corba", vec![owned("new", &["a"])])
        .unwrap();
    let mut file = config(&["10.0.0.1:80"]);
    let new = GroupConfig::new("new", vec![MemberConfig::new("10.0.0.9", 80)]);
    file.groups.push(new.into());
    let error = manager.apply_config(file).await.unwrap_err().to_string();
    assert!(
        error.contains("one of the configuration and one of corba"),
        "{error}"
    );
    assert_eq!(group(&manager, "new").owner.as_deref(), Some("corba"));
    assert_eq!(manager.status().generation, 1);
}

#[tokio::test]
async fn a_location_that_is_held_keeps_its_loads_without_a_member() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    assert!(manager.find_location("host1").is_none());
    manager.hold_location("host1", true);
    manager
        .report_loads("host1", &[(LoadId::CPU, 0.5)])
        .unwrap();
    manager.set_alert("host1", AlertSetting::On).unwrap();
    let held = manager.find_location("host1").unwrap();
    manager
        .apply_config(config(&["10.0.0.2:80"]))
        .await
        .unwrap();
    assert!(Arc::ptr_eq(&held, &manager.find_location("host1").unwrap()));

    // The member that comes finds what is known.
    manager
        .set_groups("corba", vec![owned("stocks", &["host1"])])
        .unwrap();
    let member = &group(&manager, "stocks").members[0];
    assert_eq!((member.load, member.alert), (Some(0.5), true));
    manager.hold_location("host1", false);
    assert!(Arc::ptr_eq(&held, &manager.find_location("host1").unwrap()));
    manager.set_groups("corba", Vec::new()).unwrap();
    assert!(manager.find_location("host1").is_none());
}

/// Returns the status of the groups that do not stand in the file, and of all locations.
fn of_owned(manager: &Manager) -> (Vec<String>, Vec<String>) {
    let status = manager.status();
    let group = |group: &GroupStatus| {
        let members = group.members.iter();
        let members: Vec<_> = members
            .map(|m| (&m.name, &m.location, m.weight, m.admin, &m.reasons))
            .collect();
        format!(
            "{} {:?} {} {members:?}",
            group.name, group.owner, group.strategy
        )
    };
    let mut groups: Vec<_> = status.groups.iter().map(group).collect();
    groups.sort();
    let locations = status.locations.into_iter().map(|l| l.name).collect();
    (groups, locations)
}

#[tokio::test]
async fn c9_a_change_of_one_group_makes_no_other_anew() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    let name = |id: usize| format!("g{id}");
    let all = (0..1000).map(|id| owned(&name(id), &["host1", "host2"]));
    manager.set_groups("corba", all.collect()).unwrap();
    let built = || manager.lock().state.built;
    let (before, groups) = (built(), manager.list_groups());
    let handle = manager
        .change_groups("corba", &[], vec![owned("g7", &["host1", "host3"])])
        .unwrap();
    assert_eq!(built() - before, 1);
    assert_eq!(handle[0].current.load().members().len(), 2);
    manager
        .change_groups("corba", &["g8".into()], vec![])
        .unwrap();
    manager.hold_location("host9", true);
    assert_eq!(built() - before, 1);
    let gone = |group: &&Arc<Group>| manager.list_groups().iter().all(|g| !Arc::ptr_eq(g, group));
    let gone: Vec<_> = groups.iter().filter(gone).map(|g| g.name()).collect();
    assert_eq!(gone.len(), 2, "{gone:?}");

    // Whoever follows changes hears of them with the next round, and once.
    let mut changes = manager.subscribe_changes();
    assert!(!changes.has_changed().unwrap());
    manager.round_now();
    assert!(changes.has_changed().unwrap());
    changes.borrow_and_update();
    manager.round_now();
    assert!(!changes.has_changed().unwrap());
}

#[tokio::test]
async fn c9_changes_one_by_one_come_to_what_all_at_once_come_to() {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    const HOSTS: [&str; 5] = ["h1", "h2", "h3", "h4", "10.0.0.1"];
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let managers = [(); 2].map(|()| super::tests::manager().0);
        for manager in &managers {
            manager
                .apply_config(config(&["10.0.0.1:80"]))
                .await
                .unwrap();
        }
        let [one_by_one, at_once] = &managers;
        let mut wanted: HashMap<&str, GroupConfig> = HashMap::new();
        for _ in 0..60 {
            let name = NAMES[rng.usize(..NAMES.len())];
            match rng.u8(..8) {
                0 | 1 => {
                    wanted.remove(name);
                    let gone = [name.to_owned(), "nobody".to_owned(), "app".to_owned()];
                    one_by_one.change_groups("corba", &gone, vec![]).unwrap();
                }
                2 => {
                    let member = HOSTS[rng.usize(..HOSTS.len())];
                    for manager in &managers {
                        let _ = manager.set_weight(name, member, 7.0);
                        let _ = manager.set_admin_state(name, member, AdminState::Drain);
                    }
                }
                3 => {
                    for manager in &managers {
                        let _ = manager.set_strategy(name, "random", &[]);
                        manager.hold_location("h1", seed % 2 == 0);
                    }
                }
                _ => {
                    let count = rng.usize(..HOSTS.len());
                    let mut hosts = HOSTS;
                    rng.shuffle(&mut hosts);
                    let mut group = owned(name, &hosts[..count]);
                    group.max_queue = rng.usize(..3);
                    wanted.insert(name, group.clone());
                    one_by_one.change_groups("corba", &[], vec![group]).unwrap();
                }
            }
            let all = wanted.values().cloned().collect();
            at_once.set_groups("corba", all).unwrap();
            assert_eq!(of_owned(one_by_one), of_owned(at_once), "seed {seed}");
            if rng.u8(..10) == 0 {
                for manager in &managers {
                    manager.round_now();
                    manager
                        .apply_config(config(&["10.0.0.2:80"]))
                        .await
                        .unwrap();
                }
                assert_eq!(of_owned(one_by_one), of_owned(at_once), "seed {seed}");
            }
        }
        for group in one_by_one.list_groups() {
            for member in group.members() {
                let down = SourceReport {
                    down: true,
                    ..SourceReport::default()
                };
                // Each is found where it is.
                one_by_one.set_opinion_of(member.id, Source::Agent, Some(&down));
                assert!(member.slot.has_reason(Reason::ReportedDown), "seed {seed}");
            }
        }
    }
}

#[tokio::test]
async fn c9_names_of_others_are_refused_one_by_one_too() {
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    let change = |owner, groups| manager.change_groups(owner, &[], groups);
    change("corba", vec![owned("a", &["h"])]).unwrap();
    for (owner, groups) in [
        ("corba", vec![owned("b", &[]), owned("app", &[])]),
        ("other", vec![owned("b", &[]), owned("a", &[])]),
        ("corba", vec![owned("b", &[]), owned("b", &[])]),
    ] {
        let error = change(owner, groups).unwrap_err().to_string();
        assert!(error.contains("two groups are called"), "{error}");
        assert!(!manager.has_group("b"));
    }
    manager
        .change_groups("other", &["a".into()], vec![])
        .unwrap();
    assert!(manager.has_group("a"), "it is not theirs");
}

#[tokio::test]
async fn u7_a_restart_is_asked_for_by_what_runs() {
    let (manager, _, _) = manager();
    let with = |workers| Config {
        workers,
        ..self::config(&["10.0.0.1:80"])
    };
    manager.apply_config(with(Some(2))).await.unwrap();
    let notes = manager.apply_config(with(Some(3))).await.unwrap().notes;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(manager.status().needs_restart, notes);
    // It is still so after a reload in which the file has not changed.
    assert_eq!(
        manager.apply_config(with(Some(3))).await.unwrap().notes,
        notes
    );
    assert_eq!(manager.status().needs_restart, notes);
    assert_eq!(
        manager.apply_config(with(Some(2))).await.unwrap().notes,
        [""; 0]
    );
    assert_eq!(manager.status().needs_restart, [""; 0]);
}

#[tokio::test]
async fn a_zone_needs_no_restart_and_a_name_only_with_a_store() {
    let with = |name: &str, zone: &str, has_store: bool| {
        let mut config = config(&["10.0.0.1:80"]);
        config.node.name = Some(name.into());
        config.node.zone = Some(zone.into());
        config.store = has_store.then(Default::default);
        config
    };
    for has_store in [false, true] {
        let (manager, _, _) = manager();
        let notes = async |name, zone| {
            let config = with(name, zone, has_store);
            manager.apply_config(config).await.unwrap().notes
        };
        assert_eq!(notes("a", "north").await, [""; 0]);
        assert_eq!(notes("a", "south").await, [""; 0], "{has_store}");
        let renamed = notes("b", "south").await;
        assert_eq!(renamed.len(), usize::from(has_store), "{renamed:?}");
        assert!(renamed.iter().all(|note| note.contains("[node]")));
        let would = manager.would_need_restart(&with("b", "west", has_store));
        assert_eq!(would, renamed);
    }
}

#[tokio::test]
async fn g6_a_member_answers_to_its_name_and_to_its_address() {
    let (manager, _, names) = manager();
    names.set("many", &["10.0.1.1", "10.0.1.2"]);
    let plain = config(&["10.0.0.1:80", "many:80"]);
    let mut named = plain.clone();
    named.groups[0].members[0].given_name = Some("s1".into());
    named.groups[0].members[1].given_name = Some("s2".into());
    manager.apply_config(named.clone()).await.unwrap();
    let shown = ["s1", "s2/10.0.1.1", "s2/10.0.1.2"];
    assert_eq!(self::names(&manager), shown);
    let identities = ["10.0.0.1:80", "many:80/10.0.1.1", "many:80/10.0.1.2"];
    let members = app(&manager).members;
    assert!(members.iter().map(|of| &*of.member).eq(identities));
    assert!(
        manager.list_groups()[0]
            .members()
            .iter()
            .map(|of| &*of.name)
            .eq(identities)
    );

    let admin = |manager: &Manager| -> Vec<AdminState> {
        let members = app(manager).members.into_iter();
        members.map(|of| of.admin).collect()
    };
    let (ready, drain) = (AdminState::Ready, AdminState::Drain);
    for name in ["s1", "10.0.0.1:80"] {
        manager.set_admin_state("app", name, drain).unwrap();
        assert_eq!(admin(&manager), [drain, ready, ready], "{name}");
        manager.set_admin_state("app", name, ready).unwrap();
    }
    // A name stands for all addresses, or for one.
    manager
        .set_admin_state("app", "s2/10.0.1.2", drain)
        .unwrap();
    assert_eq!(admin(&manager), [ready, ready, drain]);
    manager.set_admin_state("app", "s2", drain).unwrap();
    assert_eq!(admin(&manager), [ready, drain, drain]);
    manager.set_weight("app", "s1", 3.0).unwrap();
    manager.set_backup("app", "s1", true).unwrap();
    let first = app(&manager).members.remove(0);
    assert_eq!((first.weight, first.backup), (3.0, true));
    for unknown in ["s3", "s2/10.0.1.3", ""] {
        let refused = manager.set_weight("app", unknown, 1.0).unwrap_err();
        assert!(refused.is_not_found(), "{unknown}: {refused}");
    }
    let explained = manager.explain_next("app", None).unwrap();
    let candidates = explained.candidates.iter().map(|of| &*of.member);
    assert!(
        candidates.clone().all(|of| shown.contains(&of)),
        "{explained:?}"
    );
    assert!(explained.chosen.is_some_and(|of| shown.contains(&&*of)));

    // A name comes and goes: the member, and what was changed of it live, stay.
    let before = ids(&manager);
    manager.apply_config(plain).await.unwrap();
    assert_eq!(ids(&manager), before);
    assert_eq!(admin(&manager), [ready, drain, drain]);
    assert_eq!(self::names(&manager), identities);
    assert!(
        manager
            .set_weight("app", "s1", 1.0)
            .unwrap_err()
            .is_not_found()
    );
    manager.apply_config(named).await.unwrap();
    assert_eq!(app(&manager).members[0].weight, 3.0);
}

#[tokio::test]
async fn g6_names_are_a_family_of_metrics_and_no_label_of_others() {
    let (manager, _, _) = manager();
    let mut config = config(&["10.0.0.1:80", "10.0.0.2:80"]);
    config.groups[0].members[0].given_name = Some("s1".into());
    manager.apply_config(config).await.unwrap();
    let mut out = crate::exposition::Exposition::default();
    manager.metrics(&manager.status(), &mut out);
    let text = out.finish();
    let info = "evenkeel_member_name_info{group=\"app\",member=\"10.0.0.1:80\",name=\"s1\"} 1\n";
    assert!(text.contains(info), "{text}");
    assert_eq!(text.matches("evenkeel_member_name_info{").count(), 1);
    assert_eq!(text.matches("name=\"s1\"").count(), 1);
    assert!(
        text.contains("evenkeel_member_up{group=\"app\",member=\"10.0.0.1:80\"}"),
        "{text}"
    );
    assert!(!text.contains("member=\"s1\""), "{text}");
}

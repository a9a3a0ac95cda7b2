//! Zones of members, and what becomes of them.

use evenkeel_core::group::Request;
use evenkeel_core::zone::{Reading, WHOLE};

use super::*;
use crate::config::LocationConfig;
use crate::handover::Handover;
use crate::status::ZoneStatus;

fn location(name: &str, zone: &str) -> LocationConfig {
    LocationConfig {
        name: name.into(),
        zone: Some(zone.into()),
        ..LocationConfig::default()
    }
}

/// Name, rank and whether it is the own one, of each zone.
fn ranks(zones: &[ZoneStatus]) -> Vec<(Option<&str>, usize, bool)> {
    let each = zones.iter();
    each.map(|of| (of.name.as_deref(), of.rank, of.own))
        .collect()
}

fn in_zones() -> Config {
    let mut config = config(&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
    config.node.zone = Some("a".into());
    config.groups[0].members[0].zone = Some("b".into());
    config.locations = vec![location("10.0.0.1", "a"), location("10.0.0.2", "a")];
    config
}

/// Returns the member that a request would go to.
fn next(manager: &Manager, group: &str) -> String {
    let groups = manager.list_groups();
    let group = groups.iter().find(|of| &**of.name() == group).unwrap();
    let request = Request::at_time(manager.clock().now());
    let index = group
        .choose_member(&request, &mut fastrand::Rng::with_seed(1))
        .unwrap();
    group.members()[index].name.to_string()
}

#[tokio::test]
async fn members_are_in_their_own_zone_or_in_that_of_their_location() {
    let (manager, _, _) = manager();
    manager.apply_config(in_zones()).await.unwrap();
    let all = app(&manager);
    let zones: Vec<_> = all.members.iter().map(|of| of.zone.as_deref()).collect();
    assert_eq!(zones, [Some("b"), Some("a"), None]);
    let expected = [
        (Some("a"), 0, true),
        (None, 1, false),
        (Some("b"), 1, false),
    ];
    assert_eq!(ranks(&all.zones), expected);
    assert_eq!(next(&manager, "app"), "10.0.0.2:80");
    // Groups of others, too, whose members only have locations.
    let stocks = owned("stocks", &["10.0.0.2", "elsewhere"]);
    manager.set_groups("corba", vec![stocks]).unwrap();
    assert_eq!(ranks(&group(&manager, "stocks").zones).len(), 2);
    assert_eq!(next(&manager, "stocks"), "10.0.0.2");

    // The same members and slots, with other zones: it counts at once.
    let before = ids(&manager);
    let mut moved = in_zones();
    moved.locations[1].zone = Some("b".into());
    moved.groups[0].members[0].zone = None;
    manager.apply_config(moved).await.unwrap();
    assert_eq!(ids(&manager), before);
    assert_eq!(next(&manager, "app"), "10.0.0.1:80");
    let mut alike = in_zones();
    alike.groups[0].settings.zones = None;
    manager.apply_config(alike).await.unwrap();
    assert!(app(&manager).zones.is_empty());
    assert!(app(&manager).members.iter().all(|of| of.state == "up"));
}

#[tokio::test]
async fn another_zone_of_the_balancer_takes_effect_at_a_reload() {
    let (manager, _, _) = manager();
    manager.apply_config(in_zones()).await.unwrap();
    assert_eq!(next(&manager, "app"), "10.0.0.2:80");
    let mut moved = in_zones();
    moved.node.zone = Some("b".into());
    let applied = manager.apply_config(moved).await.unwrap();
    assert_eq!(applied.notes, [""; 0]);
    assert_eq!(next(&manager, "app"), "10.0.0.1:80");
}

#[tokio::test]
async fn a_found_zone_counts_while_the_file_sets_none() {
    let (manager, _, _) = manager();
    let mut without = in_zones();
    without.node.zone = None;
    manager.apply_config(without.clone()).await.unwrap();
    let own = |manager: &Manager| {
        let zones = app(manager).zones;
        zones.into_iter().find(|of| of.own).and_then(|of| of.name)
    };
    assert_eq!(own(&manager), None);
    let before = ids(&manager);
    manager.set_found_zone("b".into()).await.unwrap();
    assert_eq!(own(&manager).as_deref(), Some("b"));
    assert_eq!(next(&manager, "app"), "10.0.0.1:80");
    assert_eq!(ids(&manager), before);
    // A reload keeps the zone, and the file goes first.
    manager.apply_config(without.clone()).await.unwrap();
    assert_eq!(own(&manager).as_deref(), Some("b"));
    manager.apply_config(in_zones()).await.unwrap();
    assert_eq!(own(&manager).as_deref(), Some("a"));
    manager.set_found_zone("b".into()).await.unwrap();
    assert_eq!(own(&manager).as_deref(), Some("a"));

    let mut told = Handover::default();
    manager.hand_over(&mut told);
    let (after, _, _) = super::manager();
    after.take_over(&told, std::path::Path::new("x"));
    after.apply_config(without).await.unwrap();
    assert_eq!(own(&after).as_deref(), Some("b"));
}

#[tokio::test]
async fn what_leaves_a_zone_goes_on_in_another_process() {
    let text = "[node]\nzone = \"a\"\n[rule.app]\nlisten = \"127.0.0.1:0\"\nmembers = [\
        {address = \"10.0.0.1:80\", zone = \"a\"}, {address = \"10.0.0.2:80\", zone = \"b\"}]\n";
    let start = async |manager: &Manager| {
        let config = crate::config::parse("test", text).unwrap();
        manager.start(config, text.into()).await.unwrap();
    };
    let share = |manager: &Manager| app(manager).zones[0].share;
    let (before, _, _) = manager();
    start(&before).await;
    let group = before.list_groups().remove(0);
    let reading = group.state().zones().get(0);
    let passed = WHOLE / 4;
    group.state().zones().set(
        0,
        Reading {
            passed_share: passed,
            ..reading
        },
    );
    assert_eq!(share(&before), 0.75);
    let mut handover = Handover::default();
    before.hand_over(&mut handover);
    let text = handover.into_document().to_string();
    let handover = Handover::read(serde_json::from_str(&text).unwrap());
    let plane: Arc<dyn Subsystem> = Arc::new(Plane::default());
    let after = Manager::with_lookup(before.clock(), plane, Names::default().lookup());
    after.take_over(&handover, "test.toml".as_ref());
    start(&after).await;
    assert_eq!(share(&after), 0.75);
    // Nothing is known of the load, so that they come back, and not all at once.
    after.round_now();
    assert_eq!(share(&after), 0.75);
}

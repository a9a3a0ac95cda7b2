//! Another process takes over.

use evenkeel_control::health::Limits;

use super::*;
use crate::handover::Handover;

const TEXT: &str = "[rule.web]\nlisten = \"127.0.0.1:0\"\n\
    members = [\"10.0.0.1:80\", \"10.0.0.2:80\", \"10.0.0.3:80\"]\n\
    [rule.web.health_check]\ninterval = \"5s\"\n";

async fn start(manager: &Manager, text: &str) {
    let config = crate::config::parse("test", text).unwrap();
    manager.start(config, text.into()).await.unwrap();
}

/// Returns the knowledge of a process, as another one with the same clock reads it.
fn told(manager: &Manager) -> Handover {
    let mut handover = Handover::default();
    manager.hand_over(&mut handover);
    let text = handover.into_document().to_string();
    Handover::read(serde_json::from_str(&text).unwrap())
}

fn status(manager: &Manager, name: &str) -> MemberStatus {
    member(manager, name)
}

#[tokio::test]
async fn what_was_learnt_and_changed_goes_on() {
    let (before, _, _) = manager();
    start(&before, TEXT).await;
    let group = before.list_groups().remove(0);
    let now = before.clock().now();
    for (index, millis) in [(0, 5), (1, 50), (0, 5), (1, 50)] {
        let ticket = group.bind(index, now).unwrap();
        let end = now.after(Duration::from_millis(millis));
        ticket.finish(Outcome::Success, end);
    }
    for _ in 0..20 {
        group.bind(2, now).unwrap().finish(Outcome::Failure, now);
    }
    // Two members answer still.
    before.round_now();
    assert!(group.members()[2].slot.has_reason(Reason::Ejected));
    before.set_weight("web", "10.0.0.1:80", 3.0).unwrap();
    let drain = AdminState::Drain;
    before.set_admin_state("web", "10.0.0.2:80", drain).unwrap();
    before.set_strategy("web", "random", &[]).unwrap();
    before.set_alert("10.0.0.1", AlertSetting::Off).unwrap();
    before
        .report_loads("10.0.0.1", &[(LoadId::CPU, 0.5)])
        .unwrap();
    {
        // What checks have found.
        let mut owned = before.lock();
        let limits = Limits { fall: 1, rise: 1 };
        let endpoint = &mut owned.state.groups[0].endpoints[1];
        let slot = Arc::clone(&endpoint.member.slot);
        endpoint.health.observe(false, limits, &slot, now);
    }
    let handover = told(&before);

    // A process that started later, with the same origin of its clock.
    let plane: Arc<dyn Subsystem> = Arc::new(Plane::default());
    let lookup = Names::default().lookup();
    let after = Manager::with_lookup(before.clock(), plane, lookup);
    after.take_over(&handover, "test.toml".as_ref());
    start(&after, TEXT).await;
    let slots = |manager: &Manager| {
        let group = manager.list_groups().remove(0);
        let slots = group.members().iter().map(|m| Arc::clone(&m.slot));
        slots.collect::<Vec<_>>()
    };
    let at = now.after(Duration::from_millis(100));
    for (old, new) in slots(&before).iter().zip(slots(&after)) {
        assert_eq!(old.reason_bits(), new.reason_bits());
        assert_eq!(old.service_time(at), new.service_time(at));
        assert_eq!(old.weight(), new.weight());
        let decay = Duration::from_secs(10);
        assert_eq!(old.latency(at, decay), new.latency(at, decay));
        assert_eq!(old.penalty(at, decay), new.penalty(at, decay));
        assert_eq!(old.consecutive_failures(), new.consecutive_failures());
        assert_eq!(new.in_flight(), 0);
    }
    let of = |manager: &Manager| {
        let status = app(manager);
        (status.strategy, status.members.len())
    };
    assert_eq!(of(&after), of(&before));
    assert_eq!(status(&after, "10.0.0.2:80").admin, AdminState::Drain);
    let location = &after.status().locations[0];
    assert_eq!(location.name, "10.0.0.1");
    assert_eq!(location.loads[0].value, 0.5);
    // What the ejection was judged by, for others that ask.
    let ejection = status(&after, "10.0.0.3:80").ejection.unwrap();
    let seen = (ejection.requests, ejection.failures);
    assert_eq!((seen, ejection.by), ((20, 20), None));
    let cause = (&*ejection.cause, &*ejection.why);
    assert_eq!(cause, ("failures_in_a_row", "20 failures in a row"));
    // A round changes nothing of it, and ends the ejection when it would have ended.
    after.round_now();
    assert!(slots(&after)[2].has_reason(Reason::Ejected));
    after.round_after(Duration::from_secs(3600));
    assert!(!slots(&after)[2].has_reason(Reason::Ejected));
    // The next configuration is the second one.
    assert!(after.status().generation > before.status().generation);
}

#[tokio::test]
async fn where_the_file_says_something_new_it_counts() {
    let (before, _, _) = manager();
    start(&before, TEXT).await;
    before.set_weight("web", "10.0.0.1:80", 3.0).unwrap();
    before.set_weight("web", "10.0.0.2:80", 4.0).unwrap();
    let handover = told(&before);
    let (after, _, _) = manager();
    after.take_over(&handover, "test.toml".as_ref());
    let other = TEXT.replace(
        "\"10.0.0.1:80\", ",
        "{ address = \"10.0.0.1:80\", weight = 2 }, ",
    );
    start(&after, &other.replace(", \"10.0.0.3:80\"", "")).await;
    assert_eq!(member(&after, "10.0.0.1:80").weight, 2.0);
    assert_eq!(member(&after, "10.0.0.2:80").weight, 4.0);
    assert_eq!(names(&after).len(), 2);
}

#[tokio::test]
async fn names_are_not_looked_up_again() {
    let (before, _, names) = manager();
    names.set("a.example", &["10.0.0.7"]);
    let text = "[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"a.example:80\"]\n";
    start(&before, text).await;
    let handover = told(&before);
    // Here nobody answers.
    let (after, _, _) = manager();
    after.take_over(&handover, "test.toml".as_ref());
    start(&after, text).await;
    assert_eq!(
        status(&after, "a.example:80").address.as_deref(),
        Some("10.0.0.7:80")
    );
}

#[tokio::test]
async fn what_cannot_be_read_is_no_obstacle() {
    let (before, _, _) = manager();
    start(&before, TEXT).await;
    let mut document = serde_json::to_value(told(&before)).unwrap();
    document["learnt"]["version"] = 77.into();
    document["changes"]["data"]["text"] = "[rule.web]\nnonsense = 1\n".into();
    let (after, _, _) = manager();
    after.take_over(&Handover::read(document), "test.toml".as_ref());
    start(&after, TEXT).await;
    assert_eq!(names(&after).len(), 3);
}

const ENGINES: &str = "[rule.web]\nlisten = \"127.0.0.1:0\"\nstrategy = \"inference\"\n\
    members = [\"10.0.0.1:80\", \"10.0.0.2:80\", \"10.0.0.3:80\"]\n\
    [rule.web.inference]\nindex_memory = \"256KiB\"\n";

/// Remembers of each member a span, as if its engine had shown it.
fn spans(manager: &Manager) -> Vec<(String, u64)> {
    let group = manager.list_groups().remove(0);
    let engines = group.engines().unwrap();
    let named = engines.list_numbers().into_iter().enumerate();
    let named = named.filter_map(|(number, id)| {
        let member = group
            .members()
            .iter()
            .find(|member| Some(member.id) == id)?;
        let memory = &engines.group().member_memories()[number];
        Some((member.name.to_string(), memory.span_tokens()))
    });
    let mut named: Vec<_> = named.collect();
    named.sort();
    named
}

#[tokio::test]
async fn prompts_of_engines_go_on_by_member_and_over_reloads() {
    let (before, _, _) = manager();
    start(&before, ENGINES).await;
    {
        let group = before.list_groups().remove(0);
        let memories = group.engines().unwrap().group().member_memories();
        for (memory, tokens) in memories.iter().zip([1111, 2222, 3333]) {
            memory.set_span(tokens);
        }
    }
    let known = spans(&before);
    let other = ENGINES.replace("index_memory", "max_prompt = \"64KiB\"\nindex_memory");
    let config = crate::config::parse("test", &other).unwrap();
    before.apply_config(config).await.unwrap();
    assert_eq!(spans(&before), known);

    assert!(before.has_prompts());
    let file = evenkeel_net::inherited::create_memory_file("test").unwrap();
    let mut handover = told(&before);
    before.copy_prompts(&file, &mut handover, Duration::from_secs(60));
    let handover = Handover::read(handover.into_document());
    // In another order, with one that is new.
    let fewer = ENGINES.replace(
        "\"10.0.0.1:80\", \"10.0.0.2:80\", \"10.0.0.3:80\"",
        "\"10.0.0.9:80\", \"10.0.0.3:80\", \"10.0.0.1:80\"",
    );
    let (after, _, _) = manager();
    after.take_over(&handover, "test.toml".as_ref());
    after.take_over_prompts(&handover, Some(file));
    start(&after, &fewer).await;
    let expected = [("10.0.0.1:80", 1111), ("10.0.0.3:80", 3333)];
    let all = spans(&after);
    let expected = expected.map(|(name, span)| (name.to_owned(), span));
    assert_eq!(all[..2], expected);
    assert!(![1111, 2222, 3333].contains(&all[2].1));
}

#[tokio::test]
async fn prompts_that_cannot_be_read_are_no_obstacle() {
    let (before, _, _) = manager();
    start(&before, ENGINES).await;
    let file = evenkeel_net::inherited::create_memory_file("test").unwrap();
    let mut handover = told(&before);
    before.copy_prompts(&file, &mut handover, Duration::from_secs(60));
    let good = handover.into_document();
    let mut version = good.clone();
    version["prompts"]["version"] = 77.into();
    let mut secret = good.clone();
    secret["prompts"]["data"]["secret"] = serde_json::json!([1, 2, 3]);
    let mut odd = good.clone();
    odd["prompts"]["data"]["groups"]["web"]["offset"] = u64::MAX.into();
    odd["prompts"]["data"]["groups"]["web"]["members"][0]["words"] = serde_json::json!([1]);
    odd["prompts"]["data"]["groups"]["web"]["shared"] = vec![u64::MAX; 3].into();
    for document in [version, secret, odd] {
        let (after, _, _) = manager();
        let handover = Handover::read(document);
        after.take_over_prompts(&handover, Some(file.try_clone().unwrap()));
        start(&after, ENGINES).await;
        assert_eq!(spans(&after).len(), 3);
    }
}

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_inference::chain::{ChainBuilder, HashKey};
use evenkeel_inference::group::{AnswerEnd, RequestFacts, RequestPlan};
use evenkeel_inference::scanner::Scanner;
use evenkeel_inference::usage::Usage;

use super::*;
use crate::engine_counts::{PromptPart, TokenKind};
use crate::engines::MAX_ENGINES;
use crate::estimate::Moment;
use crate::latency::{LatencyEnd, Remainder};
use crate::load::{LoadId, LoadValue};
use crate::member::{Reason, Weight};
use crate::observe::{Recent, StreamTotals};
use crate::strategy;
use crate::testing::make_member;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn group(members: usize, max_connections: Option<u32>) -> Group {
    let members: Vec<_> = (0..members as u64)
        .map(|id| Member {
            max_connections,
            ..make_member(id)
        })
        .collect();
    going_by("random", GroupSettings::default(), members)
}

fn going_by(strategy: &str, settings: GroupSettings, members: Vec<Member>) -> Group {
    let values = Values::defaults(strategy::find(strategy).unwrap());
    Group::new("g", settings, &values, members, Arc::default())
}

const DECAY: Duration = Duration::from_secs(10);

/// Decisions do not ask for loads before there is one: it may be one without a name.
#[test]
fn a_load_without_a_name_is_seen_whether_it_comes_before_the_group_or_after() {
    let id = LoadId(1000);
    let settings = GroupSettings {
        load_id: id,
        ..GroupSettings::default()
    };
    let report = |group: &Group| {
        for (index, load) in [1.0, 0.0].into_iter().enumerate() {
            let location = &group.members()[index].location;
            let load = LoadValue::new(load).unwrap();
            location.report_load(id, load, at(1000)).unwrap();
        }
    };
    let before = going_by(
        "least_loaded",
        settings.clone(),
        group(2, None).members().to_vec(),
    );
    report(&before);
    let after = going_by("least_loaded", settings, before.members().to_vec());
    let mut rng = fastrand::Rng::with_seed(3);
    for group in [before, after] {
        let chosen = (0..32).map(|_| group.choose_member(&Request::at_time(at(1001)), &mut rng));
        assert!(chosen.into_iter().all(|index| index == Ok(1)));
    }
}

/// Three clients a second, each for half a minute, and a report a second: if the whole load were taken for the load of
/// the last second's clients, each member would get one client in each second, however small it is.
#[test]
fn clients_that_stay_are_sent_by_load_and_not_one_to_each_in_turn() {
    const CAPACITIES: [f64; 3] = [100.0, 50.0, 25.0];
    const STAY: usize = 30;
    let members = group(3, None).members().to_vec();
    let group = going_by("least_utilization", GroupSettings::default(), members);
    let mut rng = fastrand::Rng::with_seed(8);
    let mut sent = vec![[0u32; 3]];
    let load = |sent: &[[u32; 3]], index: usize| {
        let there: u32 = sent.iter().rev().take(STAY).map(|sent| sent[index]).sum();
        f64::from(there) / CAPACITIES[index]
    };
    for second in 1..=200u64 {
        for (index, member) in group.members().iter().enumerate() {
            let load = LoadValue::new(load(&sent, index)).unwrap();
            let now = at(second * 1000);
            member.location.report_load(LoadId::CPU, load, now).unwrap();
        }
        let mut counts = [0; 3];
        for client in 0..3 {
            let request = Request::at_time(at(second * 1000 + client * 300));
            let index = group.choose_member(&request, &mut rng).unwrap();
            group.assign_client(index, Duration::from_secs(STAY as u64), request.now);
            counts[index] += 1;
        }
        sent.push(counts);
    }
    let loads = [0, 1, 2].map(|index| load(&sent, index));
    let (low, high) = (
        loads.iter().copied().fold(1.0, f64::min),
        loads.iter().copied().fold(0.0, f64::max),
    );
    assert!(high < 1.25 * low, "{loads:?}");
}

/// A hundred clients a second go to the members themselves, each for five seconds, and reports come once a second: in
/// between only we, who sent the clients, know of them.
#[test]
fn assigned_clients_count_until_a_report_shows_them() {
    for (strategy, id, capacity) in [
        ("least_utilization", LoadId::CPU, 500.0),
        ("least_request", LoadId::IN_FLIGHT, 1.0),
        ("load_minimum", LoadId::REQUESTS_PER_SECOND, 1.0),
    ] {
        let settings = GroupSettings {
            load_id: id,
            ..GroupSettings::default()
        };
        let group = going_by(strategy, settings, group(3, None).members().to_vec());
        let mut rng = fastrand::Rng::with_seed(7);
        let mut sent = vec![[0u32; 3]];
        for second in 1..=60u64 {
            for (index, member) in group.members().iter().enumerate() {
                let there: u32 = sent.iter().rev().take(5).map(|sent| sent[index]).sum();
                let load = LoadValue::new(f64::from(there) / capacity).unwrap();
                let now = at(second * 1000);
                member.location.report_load(id, load, now).unwrap();
            }
            let mut counts = [0; 3];
            for client in 0..100 {
                let request = Request::at_time(at(second * 1000 + client * 10));
                let index = group.choose_member(&request, &mut rng).unwrap();
                group.assign_client(index, Duration::from_secs(5), request.now);
                counts[index] += 1;
            }
            sent.push(counts);
        }
        // At first nothing is known about what a client costs.
        for counts in &sent[10..] {
            let most = counts.iter().max().copied();
            assert!(most <= Some(70), "{strategy} {counts:?}");
        }
        let record = |i: usize| group.members()[i].slot.record().assigned();
        assert_eq!((0..3).map(record).sum::<u64>(), 6000);
        assert!(group.members().iter().all(|m| m.slot.in_flight() == 0));
    }
}

#[test]
fn a_ticket_counts_as_in_flight_until_it_is_gone() {
    let group = group(1, None);
    let slot = &group.members()[0].slot;
    let finished = group.bind(0, at(0)).unwrap();
    let dropped = group.bind(0, at(0)).unwrap();
    assert_eq!(slot.in_flight(), 2);
    finished.finish(Outcome::Success, at(10));
    assert_eq!(slot.in_flight(), 1);
    drop(dropped);
    assert_eq!(slot.in_flight(), 0);
    assert_eq!(group.members()[0].location.in_flight(), 0);
    let totals = slot.record().request_totals();
    assert_eq!((totals.successes, totals.cancelled), (1, 1));
    assert_eq!(totals.total(), 2);
}

#[test]
fn latency_is_the_time_to_the_response_head() {
    let group = group(1, None);
    let slot = &group.members()[0].slot;
    let mut ticket = group.bind(0, at(1000)).unwrap();
    ticket.record_response(Outcome::Success, at(1020));
    ticket.finish(Outcome::Success, at(9000));
    assert_eq!(slot.latency(at(1020), DECAY), Some(0.020));
    assert_eq!(slot.record().latencies().count(), 1);
}

/// A group of one member, with latencies that end then.
fn ending(latency: LatencyEnd) -> Group {
    let settings = GroupSettings {
        latency,
        ..GroupSettings::default()
    };
    going_by("adaptive", settings, group(1, None).members().to_vec())
}

/// Latency of a response in milliseconds that a group with this setting learns: the head after 4 ms, the first byte after 160 ms,
/// the last one after 900 ms, of which the member waits 500 ms for the client.
fn learnt_of(latency: LatencyEnd, remainder: Remainder) -> f32 {
    let group = ending(latency);
    let slot = &group.members()[0].slot;
    let mut ticket = group.bind(0, at(1000)).unwrap();
    ticket.head_arrived(Outcome::Success, remainder, at(1004));
    if ticket.is_followed() {
        ticket.first_byte_arrived(at(1160));
        ticket.stop_clock(at(1200));
        ticket.stop_clock(at(1300));
        ticket.start_clock(at(1700));
        ticket.start_clock(at(1800));
    }
    ticket.finish(Outcome::Success, at(1900));
    assert_eq!(slot.unanswered(), 0);
    assert_eq!(slot.record().latencies().count(), 1);
    let learnt = slot.service_time(at(1900)).unwrap();
    let seen = slot
        .latency(at(1900), Duration::from_secs(100_000))
        .unwrap();
    assert!((learnt / seen - 1.0).abs() < 0.01, "{learnt} {seen}");
    learnt * 1e3
}

#[test]
fn a_latency_ends_where_the_group_says() {
    use LatencyEnd::{Auto, FirstByte, Head, LastByte};
    use Remainder::{Nothing, Rest, Sized, Stream, Subscription};
    for (latency, remainder, millis) in [
        (Head, Stream, 4.0),
        (Auto, Stream, 160.0),
        (Auto, Subscription, 4.0),
        (Auto, Sized, 4.0),
        (Auto, Rest, 4.0),
        (FirstByte, Subscription, 160.0),
        (FirstByte, Sized, 160.0),
        (FirstByte, Rest, 4.0),
        (LastByte, Stream, 400.0),
        (LastByte, Rest, 400.0),
        (LastByte, Nothing, 4.0),
    ] {
        let learnt = learnt_of(latency, remainder);
        let off = (learnt - millis).abs();
        assert!(off < 0.1, "{latency:?} {remainder:?}: {learnt} ms");
    }
}

#[test]
fn a_stream_without_its_first_byte_makes_a_member_slow_while_it_waits_for_it() {
    let group = ending(LatencyEnd::Auto);
    let slot = &group.members()[0].slot;
    let first = group.bind(0, at(0)).unwrap();
    first.finish(Outcome::Success, at(10));
    let mut ticket = group.bind(0, at(1000)).unwrap();
    ticket.head_arrived(Outcome::Success, Remainder::Stream, at(1004));
    let age = |now| slot.mean_age(&Moment::new(at(now), DECAY)) * 1e3;
    assert!((age(1100) - 100.0).abs() < 0.1, "{}", age(1100));
    // Not while the member waits for the client.
    ticket.stop_clock(at(1200));
    assert_eq!((slot.unanswered(), age(1500)), (0, 0.0));
    ticket.start_clock(at(1600));
    assert!((age(1700) - 300.0).abs() < 0.1, "{}", age(1700));
    ticket.first_byte_arrived(at(1800));
    assert_eq!((slot.unanswered(), age(1900)), (0, 0.0));
    assert_eq!(slot.in_flight(), 1);
    assert_eq!(ticket.first_byte(), Some(Duration::from_millis(400)));
}

#[test]
fn sums_over_streams_leave_out_what_clients_take() {
    let group = ending(LatencyEnd::Head);
    let record = || group.members()[0].slot.record();
    let outcomes = [Outcome::Success, Outcome::Cancelled, Outcome::Failure];
    for outcome in outcomes {
        let mut ticket = group.bind(0, at(1000)).unwrap();
        ticket.head_arrived(Outcome::Success, Remainder::Stream, at(1004));
        ticket.first_byte_arrived(at(1100));
        ticket.first_byte_arrived(at(1200));
        ticket.stop_clock(at(1300));
        ticket.start_clock(at(5300));
        ticket.note_bytes(700);
        ticket.finish(outcome, at(5400));
    }
    // An ordinary response is none, nor one of which no byte has come.
    for (remainder, outcome) in [
        (Remainder::Sized, Outcome::Success),
        (Remainder::Rest, Outcome::Success),
        (Remainder::Stream, Outcome::Cancelled),
    ] {
        let mut ticket = group.bind(0, at(6000)).unwrap();
        ticket.head_arrived(Outcome::Success, remainder, at(6001));
        ticket.note_bytes(700);
        ticket.finish(outcome, at(6002));
    }
    let streams = record().streams();
    assert_eq!((streams.ended_streams, streams.bytes), (3, 2100));
    assert_eq!(streams.mean_first_byte(), Some(Duration::from_millis(100)));
    assert_eq!(streams.remaining_time, Duration::from_millis(900));
    assert!((streams.pace().unwrap() - 2333.3).abs() < 0.1);
    assert_eq!(streams.since(&streams), StreamTotals::default());
}

#[test]
fn no_order_of_events_leaves_an_age_behind() {
    let mut rng = fastrand::Rng::with_seed(7);
    let ends = [
        LatencyEnd::Auto,
        LatencyEnd::Head,
        LatencyEnd::FirstByte,
        LatencyEnd::LastByte,
    ];
    let remainders = [
        Remainder::Nothing,
        Remainder::Rest,
        Remainder::Sized,
        Remainder::Stream,
        Remainder::Subscription,
    ];
    let outcomes = [
        Outcome::Success,
        Outcome::Failure,
        Outcome::Error,
        Outcome::Cancelled,
        Outcome::Overloaded { retry_after: None },
    ];
    for round in 0..2000 {
        let group = ending(ends[round % ends.len()]);
        let slot = &group.members()[0].slot;
        let mut ticket = group.bind(0, at(100)).unwrap();
        let mut now = 100;
        for _ in 0..rng.usize(..8) {
            now += rng.u64(..50);
            match rng.usize(..5) {
                0 => ticket.stop_clock(at(now)),
                1 => ticket.start_clock(at(now)),
                2 => ticket.first_byte_arrived(at(now)),
                _ => {
                    let remainder = remainders[rng.usize(..remainders.len())];
                    ticket.head_arrived(outcomes[rng.usize(..3)], remainder, at(now));
                }
            }
        }
        match rng.bool() {
            true => ticket.finish(outcomes[rng.usize(..outcomes.len())], at(now + 1)),
            false => drop(ticket),
        }
        assert_eq!((slot.unanswered(), slot.in_flight()), (0, 0), "{round}");
        let later = Moment::new(at(now + 10_000), DECAY);
        assert_eq!(slot.mean_age(&later), 0.0, "{round}");
        let counts = slot.record().latencies().count();
        assert!(counts <= 1, "{round}: {counts}");
    }
}

#[test]
fn a_cancelled_request_tells_nothing_about_the_member() {
    let group = group(1, None);
    let slot = &group.members()[0].slot;
    group
        .bind(0, at(0))
        .unwrap()
        .finish(Outcome::Cancelled, at(5000));
    assert_eq!(slot.latency(at(5000), DECAY), None);
    assert_eq!(slot.penalty(at(5000), DECAY), 0.0);
    assert_eq!(slot.consecutive_failures(), 0);
    let recent = slot.record().recent(at(5000), DECAY);
    assert_eq!(recent, Recent::default());
}

#[test]
fn failures_cost_at_least_the_penalty_and_retry_after_is_capped() {
    let group = group(3, None);
    let cost = |index: usize, outcome, took| {
        group.bind(index, at(0)).unwrap().finish(outcome, at(took));
        group.members()[index].slot.penalty(at(took), DECAY)
    };
    assert_eq!(cost(0, Outcome::Failure, 1), 5.0);
    let hour = Some(Duration::from_secs(3600));
    let busy = Outcome::Overloaded { retry_after: hour };
    assert_eq!(cost(1, busy, 1), 300.0);
    // A timeout costs what it took.
    assert_eq!(cost(2, Outcome::Failure, 30_000), 30.0);
    assert_eq!(group.members()[0].slot.latency(at(1), DECAY), None);
}

#[test]
fn a_member_that_breaks_off_every_answer_has_failures_in_a_row() {
    let group = group(1, None);
    let slot = &group.members()[0].slot;
    for round in 1..=5 {
        let mut ticket = group.bind(0, at(0)).unwrap();
        ticket.record_response(Outcome::Success, at(1));
        ticket.finish(Outcome::Failure, at(2));
        assert_eq!(slot.consecutive_failures(), round);
    }
    let recent = slot.record().recent(at(2), DECAY);
    assert_eq!((recent.total, recent.failures), (5, 5));
    assert_eq!(slot.record().request_totals().failures, 5);
}

#[test]
fn an_error_at_the_end_of_an_answer_counts_as_one_and_is_no_failure_in_a_row() {
    let group = group(1, None);
    let slot = &group.members()[0].slot;
    for _ in 0..5 {
        let mut ticket = group.bind(0, at(0)).unwrap();
        ticket.record_response(Outcome::Success, at(1));
        ticket.finish(Outcome::Error, at(2));
        assert_eq!(slot.consecutive_failures(), 0, "the member did answer");
    }
    let recent = slot.record().recent(at(2), DECAY);
    assert_eq!((recent.total, recent.failures), (5, 5));
    assert!(slot.penalty(at(2), DECAY) > 0.0);
}

#[test]
fn answers_with_an_error_cost_but_are_no_failures_in_a_row() {
    let group = group(1, None);
    let slot = &group.members()[0].slot;
    let end = |outcome| group.bind(0, at(0)).unwrap().finish(outcome, at(1));
    let busy = Outcome::Overloaded { retry_after: None };
    for answer in [Outcome::Error, busy] {
        end(Outcome::Failure);
        assert_eq!(slot.consecutive_failures(), 1);
        end(answer);
        assert_eq!(slot.consecutive_failures(), 0, "{answer:?} is an answer");
    }
    assert_eq!(slot.penalty(at(1), DECAY), 5.0);
    assert!(
        slot.failure_share(at(1), DECAY) > 0.2,
        "four of about sixteen"
    );
    let totals = slot.record().request_totals();
    assert_eq!((totals.failures, totals.overloads), (3, 1));
}

#[test]
fn what_stands_in_the_way_is_told_apart() {
    let mut rng = fastrand::Rng::with_seed(1);
    let full = group(2, Some(1));
    let tickets: Vec<_> = (0..2).map(|i| full.bind(i, at(0)).unwrap()).collect();
    let error = full.pick(&Request::at_time(at(0)), &mut rng).unwrap_err();
    assert_eq!(error, PickError::AllFull);
    let tried = [MemberId(0), MemberId(1)];
    let request = Request {
        excluded_members: &tried,
        ..Request::at_time(at(0))
    };
    let error = full.pick(&request, &mut rng).unwrap_err();
    assert_eq!(error, PickError::NoneEligible);
    drop(tickets);
    assert!(full.pick(&Request::at_time(at(0)), &mut rng).is_ok());
    let empty = group(0, None);
    let error = empty.pick(&Request::at_time(at(0)), &mut rng).unwrap_err();
    assert_eq!(error, PickError::NoneEligible);
}

#[test]
fn panic_overrides_opinions_but_no_facts() {
    let mut rng = fastrand::Rng::with_seed(1);
    let group = group(2, None);
    group.members()[0].slot.set(Reason::Down, true);
    group.members()[1].slot.set(Reason::Maintenance, true);
    let request = Request::at_time(at(0));
    assert!(group.pick(&request, &mut rng).is_err());
    group.state().set_panicking(true);
    for _ in 0..20 {
        assert_eq!(group.pick(&request, &mut rng).unwrap().member_index(), 0);
    }
}

#[test]
fn slow_start_ramps_the_weight() {
    let group = group(1, None);
    let slot = &group.members()[0].slot;
    slot.set_ramp_from(Some(at(1000)));
    let weight = |ms| group.view_for(&Request::at_time(at(ms))).member_weight(0);
    assert!((weight(1000) - 0.1).abs() < 1e-6);
    assert!((weight(6000) - 0.55).abs() < 1e-6);
    assert_eq!(weight(11_000), 1.0);
    slot.set_ramp_from(None);
    assert_eq!(weight(1000), 1.0);
}

#[test]
fn the_next_decision_is_traced_on_demand_only() {
    let mut rng = fastrand::Rng::with_seed(1);
    let group = group(3, None);
    group.members()[1].slot.set(Reason::Down, true);
    let request = Request::at_time(at(7));
    drop(group.pick(&request, &mut rng));
    assert!(group.state().last_decision().is_none());
    group.state().want_trace();
    let ticket = group.pick(&request, &mut rng).unwrap();
    let decision = group.state().last_decision().unwrap();
    assert_eq!(
        decision.chosen,
        Ok(group.members()[ticket.member_index()].name.clone())
    );
    let down = |c: &&crate::trace::Candidate| c.verdict == "not eligible: down";
    assert_eq!(
        decision.explanation.candidates.iter().filter(down).count(),
        1
    );
    let next = group.explain_next(&request, &mut rng);
    assert!(next.chosen.is_ok());
    assert_eq!(
        group.members()[0].slot.in_flight() + group.members()[2].slot.in_flight(),
        1
    );
}

/// Two members of one worker, of which the second takes five times as long and is idle; the first has
/// a request.
fn fast_and_slow(settings: GroupSettings, limit: Option<u32>) -> (Group, Ticket) {
    let members = group(2, limit).members().to_vec();
    let group = going_by("adaptive", settings, members);
    for (index, millis) in [(0, 10), (1, 45)] {
        for answer in 0..40 {
            let mut ticket = group.bind(index, at(1000 + answer)).unwrap();
            ticket.record_response(Outcome::Success, at(1000 + answer + millis));
            ticket.finish(Outcome::Success, at(1000 + answer + millis));
        }
    }
    let ticket = group.bind(0, at(1100)).unwrap();
    (group, ticket)
}

/// A request that waits behind `ahead` others, or may not wait.
fn request_behind(ahead: Option<u32>) -> Request<'static> {
    Request {
        ahead,
        ..Request::at_time(at(1100))
    }
}

#[test]
fn a_request_waits_where_it_will_be_done_first_and_each_one_before_it_counts() {
    let (group, _ticket) = fast_and_slow(GroupSettings::default(), Some(1));
    let choose = |ahead| {
        let request = request_behind(ahead);
        // Some are bound at once, and some decisions are trials.
        let mut rng = fastrand::Rng::with_seed(7);
        let mut counts = [0; 3];
        for _ in 0..1000 {
            match group.choose_member(&request, &mut rng) {
                Err(PickError::Held) => counts[2] += 1,
                index => counts[index.unwrap()] += 1,
            }
        }
        counts
    };
    assert_eq!(choose(None), [0, 1000, 0], "it may not wait");
    let held = |ahead| choose(Some(ahead))[2];
    assert!(held(0) > 950, "20 ms rather than 45");
    assert!(held(2) > 950, "40 ms");
    assert_eq!(held(3), 0, "50 ms");
    assert!(held(4) > 950, "the idle one is of who waits before it");
}

#[test]
fn what_is_held_is_explained_and_late_binding_can_be_switched_off() {
    let request = request_behind(Some(0));
    let mut rng = fastrand::Rng::with_seed(1);
    let (group, _ticket) = fast_and_slow(GroupSettings::default(), Some(1));
    let decision = group.explain_next(&request, &mut rng);
    assert_eq!(decision.chosen, Err(PickError::Held));
    let notes = decision.explanation.notes.concat();
    assert!(notes.contains("the request waits for m0"), "{notes}");
    let off = GroupSettings {
        late_binding: Some(false),
        ..GroupSettings::default()
    };
    let (group, _ticket) = fast_and_slow(off, Some(1));
    let decision = group.explain_next(&request, &mut rng);
    assert_eq!(decision.chosen.as_deref(), Ok("m1"));
}

#[test]
fn nothing_waits_for_a_member_that_fails_or_for_one_with_many_places() {
    let request = request_behind(Some(0));
    let mut rng = fastrand::Rng::with_seed(1);
    let (group, _ticket) = fast_and_slow(GroupSettings::default(), Some(1));
    for failure in 0..8 {
        let slot = &group.members()[0].slot;
        let digest = member::Digest {
            decay: DECAY,
            penalty: 1.0,
            growth: 1.0,
            is_weighted: false,
            learns_cap: true,
            typical: 0.0,
            latency: LatencyEnd::Auto,
        };
        let (took, now) = (Duration::from_millis(1), at(1100 + failure));
        slot.observe(Outcome::Failure, took, now, digest);
    }
    let decision = group.explain_next(&request, &mut rng);
    assert_eq!(decision.chosen.as_deref(), Ok("m1"));
    let (group, _ticket) = fast_and_slow(GroupSettings::default(), Some(100));
    assert!(group.choose_member(&request, &mut rng).is_ok());
}

#[test]
fn a_chooser_goes_before_the_strategy_while_its_member_may_be_picked() {
    let group = group(3, Some(2));
    let rng = &mut fastrand::Rng::with_seed(1);
    let named = Advice::Member(MemberId(1));
    let request = Request::at_time(at(1));
    for _ in 0..32 {
        assert_eq!(group.choose_advised(&request, named, rng), Ok(1));
    }
    let is_others = |advice: Advice, request: &Request<'_>, rng: &mut fastrand::Rng| {
        let chosen: Vec<_> = (0..32)
            .map(|_| group.choose_advised(request, advice, rng).unwrap())
            .collect();
        assert!(!chosen.contains(&1), "{chosen:?}");
        assert!(chosen.contains(&0) && chosen.contains(&2), "{chosen:?}");
    };
    let tried = Request {
        excluded_members: &[MemberId(1)],
        ..request
    };
    is_others(named, &tried, rng);
    for reason in [Reason::Maintenance, Reason::Draining, Reason::Shedding] {
        group.members()[1].slot.set(reason, true);
        is_others(named, &request, rng);
        group.members()[1].slot.set(reason, false);
    }
    // At its limit.
    let tickets: Vec<_> = (0..2)
        .map(|_| group.pick_advised(&request, named, rng).unwrap())
        .collect();
    assert!(tickets.iter().all(|ticket| ticket.member_index() == 1));
    is_others(named, &request, rng);
    drop(tickets);
    assert_eq!(group.choose_advised(&request, named, rng), Ok(1));
    // A member that does not exist, and no member.
    for advice in [Advice::Member(MemberId(9)), Advice::Nobody("timeout")] {
        let chosen: Vec<_> = (0..64)
            .map(|_| group.choose_advised(&request, advice, rng).unwrap())
            .collect();
        assert!((0..3).all(|index| chosen.contains(&index)), "{chosen:?}");
    }
    for member in group.members() {
        member.slot.set(Reason::Maintenance, true);
    }
    let nobody = group.choose_advised(&request, named, rng);
    assert_eq!(nobody, Err(PickError::NoneEligible));
}

#[test]
fn a_chooser_may_name_backups_and_members_that_shed_where_nobody_else_serves() {
    let group = group(2, None);
    let rng = &mut fastrand::Rng::with_seed(1);
    let (request, named) = (Request::at_time(at(1)), Advice::Member(MemberId(1)));
    for reason in [Reason::Standby, Reason::Shedding] {
        group.members()[1].slot.set(reason, true);
        assert_eq!(group.choose_advised(&request, named, rng), Ok(0));
        group.members()[0].slot.set(Reason::Maintenance, true);
        assert_eq!(group.choose_advised(&request, named, rng), Ok(1));
        group.members()[0].slot.set(Reason::Maintenance, false);
        group.members()[1].slot.set(reason, false);
    }
}

#[test]
fn explanations_say_whether_the_chooser_or_the_strategy_has_decided() {
    let group = group(3, None);
    let rng = &mut fastrand::Rng::with_seed(1);
    let mut explained = |advice: Advice| {
        group.state().want_trace();
        let chosen = group.choose_advised(&Request::at_time(at(1)), advice, rng);
        let decision = group.state().last_decision().unwrap();
        let chosen = Arc::clone(&group.members()[chosen.unwrap()].name);
        assert_eq!(decision.chosen, Ok(chosen));
        let verdicts = decision.explanation.candidates.iter();
        let verdicts = verdicts.map(|candidate| (candidate.index, candidate.verdict.clone()));
        let mut verdicts: Vec<_> = verdicts.collect();
        verdicts.sort();
        (decision.explanation.notes.join("; "), verdicts)
    };
    let (notes, verdicts) = explained(Advice::Member(MemberId(2)));
    assert_eq!(
        notes,
        "the custom strategy has decided, not the group's own strategy"
    );
    let other = || "not named by the custom strategy".to_owned();
    let named = "named by the custom strategy".to_owned();
    assert_eq!(verdicts, [(0, other()), (1, other()), (2, named)]);
    let (notes, _) = explained(Advice::Nobody("timeout"));
    assert!(
        notes.contains("has not decided (timeout): the group's own strategy decides"),
        "{notes}"
    );
    let (notes, _) = explained(Advice::Member(MemberId(7)));
    assert!(notes.contains("cannot be used any more"), "{notes}");
}

#[test]
fn a_group_works_while_a_member_has_no_reason_against_it_but_soft_ones() {
    let group = group(2, None);
    assert!(group.has_working_member());
    let [first, second] = [0, 1].map(|index| Arc::clone(&group.members()[index].slot));
    for reason in Reason::ALL {
        first.set(reason, true);
        second.set(Reason::Down, true);
        let is_soft = matches!(reason, Reason::Shedding | Reason::Standby);
        assert_eq!(group.has_working_member(), is_soft, "{reason:?}");
        first.set(reason, false);
        assert!(group.has_working_member());
    }
    first.set_weight(Weight::new(0.0).unwrap());
    assert!(!group.has_working_member());
}

#[test]
fn times_of_tokens_are_those_of_complete_streams() {
    let members = group(1, None).members().to_vec();
    let group = going_by("inference", GroupSettings::default(), members);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut ask = |events, is_complete, output_tokens: Option<u32>| {
        with_plan(&group, "abc", |plan| {
            let request = Request {
                plan: Some(plan),
                ..Request::at_time(at(100))
            };
            let mut ticket = group.pick(&request, &mut rng).unwrap();
            let engine = ticket.engine_mut().unwrap();
            assert_eq!(engine.first_token(), None);
            engine.take_events(events, at(300));
            assert_eq!(engine.first_token(), (events > 0).then(|| at(300)));
            let usage = output_tokens.map(|output_tokens| Usage {
                prompt_tokens: 2,
                cached_tokens: None,
                output_tokens,
            });
            let end = AnswerEnd {
                usage,
                events,
                is_complete,
            };
            engine.count_times(&end, at(50), at(1300));
            engine.finish(&end, at(1300));
        });
    };
    let times = || {
        let counts = group.engines().unwrap().counts();
        let other = counts.list_models().last().unwrap();
        let (_, times) = other.list_times().next()?;
        let both = [times.first_token_times(), times.later_token_times()];
        Some(both.map(|times| (times.count(), times.sum().as_millis())))
    };
    ask(5, false, Some(11));
    ask(0, true, Some(11));
    assert_eq!(times(), Some([(0, 0), (0, 0)]));
    // One token has no pace.
    ask(1, true, None);
    ask(1, true, Some(1));
    assert_eq!(times(), Some([(2, 500), (0, 0)]));
    ask(5, true, Some(11));
    assert_eq!(times(), Some([(3, 750), (1, 100)]));
    for said in [None, Some(0)] {
        ask(5, true, said);
    }
    assert_eq!(times(), Some([(5, 1250), (3, 600)]));
    let counts = group.engines().unwrap().counts();
    let other = counts.list_models().last().unwrap();
    let (_, of_operation) = other.list_times().next().unwrap();
    let requests = of_operation.request_times();
    assert_eq!((requests.count(), requests.sum().as_millis()), (6, 7500));
    let totals = group.engine_traffic(0).unwrap().copy_totals();
    let [first, later] = [totals.first_token_times(), totals.later_token_times()];
    assert_eq!((first.count(), later.count()), (5, 3));
    // Tokens of prompts are told in five answers, and those that were cached in none.
    assert_eq!((totals.prompt_tokens(), totals.hit_rate()), (10, None));
    assert_eq!(group.engine_queue(0, at(1300)).unwrap().waiting, 0.0);
}

#[test]
fn queues_told_by_engines_correct_what_the_balancer_counts() {
    let members = group(2, None).members().to_vec();
    let group = going_by("inference", GroupSettings::default(), members);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut pick = |now| {
        with_plan(&group, "a", |plan| {
            let request = Request {
                plan: Some(plan),
                ..Request::at_time(now)
            };
            group.pick(&request, &mut rng).unwrap().member_index()
        })
    };
    let home = pick(at(0));
    let report = |loads: &[(LoadId, f64)], now| {
        for &(id, value) in loads {
            let value = LoadValue::new(value).unwrap();
            let location = &group.members()[home].location;
            location.report_load(id, value, now).unwrap();
        }
    };
    // A number of requests alone may be the balancer's own.
    report(&[(LoadId::IN_FLIGHT, 9000.0)], at(1));
    assert_eq!(pick(at(2)), home);
    // Requests of others wait, or run.
    report(&[(LoadId::WAITING_REQUESTS, 9000.0)], at(3));
    assert_ne!(pick(at(4)), home);
    report(&[(LoadId::WAITING_REQUESTS, 0.0)], at(5));
    assert_ne!(pick(at(6)), home);
    report(&[(LoadId::IN_FLIGHT, 0.0)], at(7));
    assert_eq!(pick(at(8)), home);
    // An old number is unknown.
    report(&[(LoadId::WAITING_REQUESTS, 9000.0)], at(9));
    assert_ne!(pick(at(10)), home);
    let max_age = group.settings().load_max_age.as_millis() as u64;
    assert_eq!(pick(at(10 + max_age)), home);
}

/// Makes the plan of a request with this prompt, and gives it to `take`.
fn with_plan<T>(group: &Group, prompt: &str, take: impl FnOnce(&RequestPlan<'_>) -> T) -> T {
    let body = format!(r#"{{"model":"m","prompt":"{prompt}","stream":true}}"#);
    let mut builder = ChainBuilder::new(HashKey::new([1, 2, 3]));
    let mut scanner = Scanner::new();
    scanner.feed_bytes(body.as_bytes(), &mut builder);
    let model = builder.model_hash();
    let engines = group.state().engines().unwrap();
    take(&engines.group().plan_request(RequestFacts {
        chain: builder.link_blocks(),
        model,
        max_tokens: scanner.max_tokens(),
        is_stream: scanner.wants_stream(),
        random: 5,
    }))
}

#[test]
fn requests_wait_while_the_first_token_would_be_late() {
    let members = group(2, None).members().to_vec();
    let mut settings = GroupSettings::default();
    settings.inference.ttft_target = Some(Duration::from_millis(1));
    let group = going_by("inference", settings, members);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut pick = |letter: &str, ahead, now| {
        let prompt = letter.repeat(400_000);
        with_plan(&group, &prompt, |plan| {
            let request = Request {
                plan: Some(plan),
                ahead,
                ..Request::at_time(at(now))
            };
            let decision = group.explain_next(&request, &mut rng);
            (group.pick(&request, &mut rng), decision.explanation.notes)
        })
    };
    // However long its prompt is, a request does not wait for a member that reads nothing else.
    let mut first = pick("a", Some(0), 1000).0.unwrap();
    let second = pick("b", Some(0), 1000).0.unwrap();
    assert_ne!(first.member_index(), second.member_index());
    let (late, notes) = pick("c", Some(0), 1001);
    assert_eq!(late.unwrap_err(), PickError::Late);
    assert!(
        notes.iter().any(|note| note.contains("ttft_target")),
        "{notes:?}"
    );
    let now_or_never = pick("e", None, 1001).0;
    assert!(now_or_never.is_ok());
    drop(now_or_never);
    // A first token empties the queue of its member.
    first.engine_mut().unwrap().take_events(1, at(1400));
    let third = pick("c", Some(0), 1401).0.unwrap();
    assert_eq!(third.member_index(), first.member_index());
    assert_eq!(pick("d", Some(0), 1402).0.unwrap_err(), PickError::Late);
    // Members that should have read all by now, and are silent, are no better.
    assert_eq!(pick("d", Some(0), 600_000).0.unwrap_err(), PickError::Late);
    drop(second);
    assert!(pick("d", Some(0), 1403).0.is_ok(), "a client has given up");
}

#[test]
fn a_prompt_goes_to_the_engine_that_has_read_its_beginning_also_in_the_next_snapshot() {
    let members = group(4, None).members().to_vec();
    let group = going_by("inference", GroupSettings::default(), members.clone());
    let mut rng = fastrand::Rng::with_seed(3);
    let mut homes = Vec::new();
    let beginnings = ["a", "b", "c", "d"].map(|letter| letter.repeat(40_000));
    let mut pick = |group: &Group, prompt: &str, now: u64| {
        with_plan(group, prompt, |plan| {
            let request = Request {
                plan: Some(plan),
                ..Request::at_time(at(now))
            };
            let mut ticket = group.pick(&request, &mut rng).unwrap();
            let index = ticket.member_index();
            let engine = ticket.engine_mut().unwrap();
            engine.take_events(1, at(now + 400));
            let end = AnswerEnd {
                events: 1,
                is_complete: true,
                usage: None,
            };
            engine.finish(&end, at(now + 500));
            ticket.finish(Outcome::Success, at(now + 500));
            index
        })
    };
    for (index, prompt) in beginnings.iter().enumerate() {
        homes.push(pick(&group, prompt, 1000 * index as u64));
    }
    let values = Values::defaults(strategy::find("inference").unwrap());
    // Members in another order keep what is known of them.
    let turned: Vec<_> = members.iter().rev().cloned().collect();
    let state = Arc::clone(group.state());
    let next = Group::new("g", GroupSettings::default(), &values, turned, state);
    for (index, prompt) in beginnings.iter().enumerate() {
        let longer = format!("{prompt} and more");
        let now = 10_000 + 1000 * index as u64;
        assert_eq!(3 - pick(&next, &longer, now), homes[index], "{homes:?}");
        assert_eq!(pick(&group, &longer, now + 500), homes[index], "{homes:?}");
    }
}

/// Returns the member that gets a prompt, and the number of members that were compared.
fn explain_prompt(group: &Group, prompt: &str, rng: &mut fastrand::Rng) -> (usize, usize) {
    with_plan(group, prompt, |plan| {
        let request = Request {
            plan: Some(plan),
            ..Request::at_time(at(0))
        };
        let decision = group.explain_next(&request, rng);
        let chosen = group.choose_member(&request, rng).unwrap();
        (chosen, decision.explanation.candidates.len())
    })
}

#[test]
fn balancers_send_a_new_prompt_to_the_engine_of_the_same_name() {
    let members = group(6, None).members().to_vec();
    let one = going_by("inference", GroupSettings::default(), members.clone());
    // Another process has given other ids, and the file there another order.
    let mut turned = members.clone();
    turned.rotate_left(2);
    for (member, id) in turned.iter_mut().zip(1000..) {
        member.id = MemberId(id);
    }
    let other = going_by("inference", GroupSettings::default(), turned);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut home = |group: &Group, prompt: &str| {
        let index = explain_prompt(group, prompt, &mut rng).0;
        group.members()[index].name.to_string()
    };
    let prompts = (0..40).map(|number| format!("{number} ").repeat(900));
    let homes = prompts.map(|prompt| {
        let chosen = home(&one, &prompt);
        assert_eq!(home(&other, &prompt), chosen);
        chosen
    });
    let homes: HashSet<_> = homes.collect();
    assert!(homes.len() > 3, "{homes:?}");
}

#[test]
fn a_large_group_compares_the_engines_that_hold_a_prompt_with_a_few_others() {
    let members = group(400, None).members().to_vec();
    let create = || going_by("inference", GroupSettings::default(), members.clone());
    let (group, other) = (create(), create());
    let (one, two) = (
        &mut fastrand::Rng::with_seed(3),
        &mut fastrand::Rng::with_seed(4),
    );
    let mut homes = Vec::new();
    for letter in ["a", "b", "c", "d"] {
        let prompt = letter.repeat(40_000);
        let (home, compared) = explain_prompt(&group, &prompt, one);
        assert!((2..=64).contains(&compared), "{compared}");
        // Several balancers begin at the same engine.
        assert_eq!(explain_prompt(&other, &prompt, two).0, home);
        with_plan(&group, &prompt, |plan| {
            let request = Request {
                plan: Some(plan),
                ..Request::at_time(at(0))
            };
            drop(group.pick(&request, one).unwrap());
        });
        for _ in 0..8 {
            let (chosen, compared) = explain_prompt(&group, &prompt, two);
            assert_eq!(chosen, home);
            assert!((2..=64).contains(&compared), "{compared}");
        }
        homes.push(home);
    }
    homes.sort_unstable();
    homes.dedup();
    assert!(homes.len() > 1, "{homes:?}");
    // Requests without a plan are compared by requests in flight.
    let decision = group.explain_next(&Request::at_time(at(0)), one);
    assert!(decision.explanation.candidates.len() <= 16);
    // A single member that may be picked is found.
    for (index, member) in group.members().iter().enumerate() {
        member.slot.set(Reason::Maintenance, index != 399);
    }
    assert_eq!(explain_prompt(&group, &"e".repeat(9000), one).0, 399);
    assert_eq!(group.choose_member(&Request::at_time(at(0)), one), Ok(399));
}

#[test]
fn members_beyond_the_engines_that_are_learnt_get_prompts_if_no_other_may_be_picked() {
    let members = group(MAX_ENGINES + 1, None).members().to_vec();
    let group = going_by("inference", GroupSettings::default(), members);
    let rng = &mut fastrand::Rng::with_seed(3);
    for member in group.members().iter().take(MAX_ENGINES) {
        member.slot.set(Reason::Maintenance, true);
    }
    let (chosen, _) = explain_prompt(&group, &"a".repeat(9000), rng);
    assert_eq!(chosen, MAX_ENGINES);
}

#[test]
fn an_engine_has_no_queue_left_when_tickets_are_dropped() {
    let members = group(2, None).members().to_vec();
    let group = going_by("inference", GroupSettings::default(), members);
    let mut rng = fastrand::Rng::with_seed(3);
    with_plan(&group, &"x".repeat(9000), |plan| {
        let request = Request {
            plan: Some(plan),
            ..Request::at_time(at(0))
        };
        let decision = group.explain_next(&request, &mut rng);
        let candidates = &decision.explanation.candidates;
        assert_eq!(candidates.len(), 2);
        assert!(candidates[0].verdict.contains("first token in"));
        let tickets: Vec<_> = (0..5).map(|_| group.pick(&request, &mut rng)).collect();
        drop(tickets);
        let engines = group.state().engines().unwrap();
        for queue in engines.group().member_queues().iter().take(2) {
            assert_eq!(queue.read_moment(0.1, 0.001, at(1).as_nanos()).waiting, 0.0);
        }
    });
}

#[test]
fn an_engine_that_does_not_work_has_forgotten_what_it_has_read() {
    let members = group(2, None).members().to_vec();
    let group = going_by("inference", GroupSettings::default(), members);
    let mut rng = fastrand::Rng::with_seed(3);
    let prompt = "x".repeat(9000);
    let is_known = || {
        with_plan(&group, &prompt, |plan| {
            !plan.request_work().matches.is_empty()
        })
    };
    let mut read_prompt = || {
        with_plan(&group, &prompt, |plan| {
            let request = Request {
                plan: Some(plan),
                ..Request::at_time(at(0))
            };
            group.pick(&request, &mut rng).unwrap().member_index()
        })
    };
    assert!(!is_known());
    let home = read_prompt();
    assert!(is_known());
    group.keep_up_engines(at(1));
    assert!(is_known());
    // An ejection for a share of failures says nothing of a restart.
    group.members()[home].slot.set(Reason::Ejected, true);
    group.keep_up_engines(at(2));
    assert!(is_known());
    group.members()[home].slot.set(Reason::Ejected, false);
    group.members()[home].slot.set(Reason::Dead, true);
    group.keep_up_engines(at(3));
    assert!(!is_known());
    group.members()[home].slot.set(Reason::Dead, false);
    let home = read_prompt();
    assert!(is_known());
    group.forget_engine_memory(1 - home);
    assert!(is_known());
    group.forget_engine_memory(home);
    assert!(!is_known());
    group.forget_engine_memory(9);
}

#[test]
fn tokens_that_an_engine_reports_are_counted_beside_those_that_were_expected() {
    let members = group(1, None).members().to_vec();
    let group = going_by("inference", GroupSettings::default(), members);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut ask = |cached_tokens| {
        with_plan(&group, &"x".repeat(8192), |plan| {
            let request = Request {
                plan: Some(plan),
                ..Request::at_time(at(0))
            };
            let mut ticket = group.pick(&request, &mut rng).unwrap();
            let end = AnswerEnd {
                events: 0,
                is_complete: true,
                usage: Some(Usage {
                    prompt_tokens: 2000,
                    cached_tokens,
                    output_tokens: 30,
                }),
            };
            let engine = ticket.engine_mut().unwrap();
            engine.finish(&end, at(1));
            // Only the first end counts.
            engine.finish(&end, at(2));
        });
    };
    [None, Some(1900), Some(1950)]
        .into_iter()
        .for_each(&mut ask);
    let counts = group.engines().unwrap().counts();
    let other = counts.list_models().last().unwrap();
    let count = |kind| other.token_count(kind);
    assert_eq!(count(TokenKind::Prompt), 6000);
    assert_eq!(count(TokenKind::Output), 90);
    assert_eq!(count(TokenKind::Cached), 3850);
    // Both times the member has read the whole prompt before.
    let expected = count(TokenKind::ExpectedCached);
    assert!((3900..=4000).contains(&expected), "{expected}");
    assert_eq!(counts.prompt_count(PromptPart::Whole), 0);
    counts.count_prompt(PromptPart::NoPrompt);
    assert_eq!(counts.prompt_count(PromptPart::NoPrompt), 1);
}

//! Storage and ageing of loads, and estimates of the load added since.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::id::{NAMED_LOADS, NAMES};
use super::*;
use crate::cost::Cost;
use crate::time::Instant;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

#[test]
fn the_first_load_of_a_report_is_whatever_it_measures_t2() {
    let location = Location::new("a");
    let (age, at) = (Duration::from_secs(10), |s: u64| {
        Instant::from_nanos(s * 1_000_000_000)
    });
    let value = |value| LoadValue::new(value).unwrap();
    let first = |seconds| location.projected_load(LoadId::FIRST, at(seconds), age);
    assert_eq!(first(1), None);
    // Others than monitors of CORBA have no order that says anything.
    location
        .report_load(LoadId::CPU, value(0.5), at(1))
        .unwrap();
    assert_eq!(first(1), Some(0.5));
    location
        .report_load(LoadId(4), value(100.0), at(2))
        .unwrap();
    location.lead_with(LoadId(4));
    assert_eq!(first(2), Some(100.0));
    assert_eq!(location.fresh_load(LoadId::FIRST, at(2), age), Some(100.0));
    assert_eq!(
        location.last_load(LoadId::FIRST, at(2)).unwrap().id,
        LoadId(4)
    );
    location
        .report_load(LoadId::CPU, value(0.75), at(20))
        .unwrap();
    assert_eq!(first(20), Some(0.75), "nothing is heard of the other");
    assert_eq!(location.fresh_load(LoadId::FIRST, at(20), age), Some(0.75));
    assert_eq!("first".parse(), Ok(LoadId::FIRST));
    assert_eq!(LoadId::FIRST.to_string(), "first");
}

#[test]
fn a_stale_load_is_unknown() {
    let location = Location::new("a");
    let half = LoadValue::new(0.5).unwrap();
    location.report_load(LoadId::CPU, half, at(10_000)).unwrap();
    let max_age = Duration::from_secs(3);
    assert_eq!(
        location.fresh_load(LoadId::CPU, at(12_000), max_age),
        Some(0.5)
    );
    assert_eq!(location.fresh_load(LoadId::CPU, at(14_000), max_age), None);
    assert_eq!(location.fresh_load(LoadId::DISK, at(12_000), max_age), None);
}

#[test]
fn a_report_does_not_become_new_by_getting_old() {
    let location = Location::new("a");
    let half = LoadValue::new(0.5).unwrap();
    location.report_load(LoadId::CPU, half, at(10_000)).unwrap();
    let max_age = Duration::from_secs(3);
    const DAY: u64 = 24 * 3600 * 1000;
    for day in 1..100 {
        let now = at(day * DAY);
        location.keep_age(now);
        assert_eq!(location.projected_load(LoadId::CPU, now, max_age), None);
        let load = location.last_load(LoadId::CPU, now).unwrap();
        assert_eq!(load.value, half);
    }
    location
        .report_load(LoadId::CPU, half, at(100 * DAY))
        .unwrap();
    location.keep_age(at(100 * DAY));
    let projected = location.projected_load(LoadId::CPU, at(100 * DAY), max_age);
    assert_eq!(projected, Some(0.5));
}

#[test]
fn a_zero_load_is_known() {
    let location = Location::new("a");
    let idle = LoadValue::new(0.0).unwrap();
    location.report_load(LoadId::CPU, idle, at(0)).unwrap();
    assert_eq!(
        location.fresh_load(LoadId::CPU, at(1), Duration::from_secs(1)),
        Some(0.0)
    );
}

#[test]
fn absurd_loads_are_refused() {
    for bad in [f64::NAN, f64::INFINITY, -1.0, 1e13] {
        assert!(LoadValue::new(bad).is_err(), "{bad}");
    }
}

/// A location that is reported once a second; of each report `requests` are in flight for the whole second before, and
/// the load is what `load` makes of their number.
fn reported_each_second(requests: impl Fn(u64) -> u32, load: impl Fn(f64) -> f64) -> Location {
    let location = Location::new("a");
    for second in 0..60 {
        let (count, start) = (requests(second), at(second * 1000));
        (0..count).for_each(|_| location.begin_request(Cost::ONE, start));
        let end = at(second * 1000 + 1000);
        (0..count).for_each(|_| location.end_request(Cost::ONE, Some(end)));
        let value = LoadValue::new(load(count.into())).unwrap();
        location.report_load(LoadId::CPU, value, end).unwrap();
    }
    location
}

fn load_at(location: &Location, ms: u64) -> f32 {
    let load = location.projected_load(LoadId::CPU, at(ms), Duration::from_secs(15));
    load.unwrap()
}

#[test]
fn d1_the_load_of_our_requests_is_that_of_those_in_flight_now() {
    let location = reported_each_second(|_| 10, |requests| 0.05 * requests);
    assert_eq!(load_at(&location, 60_100), 0.0, "none is in flight");
    (0..15).for_each(|_| location.begin_request(Cost::ONE, at(60_100)));
    let load = load_at(&location, 60_100);
    assert!((load - 0.75).abs() < 0.01, "{load}");
    (0..15).for_each(|_| location.end_request(Cost::ONE, Some(at(60_200))));
    assert_eq!(load_at(&location, 60_200), 0.0, "they are over");
}

#[test]
fn d1_the_load_of_others_stays_while_our_requests_come_and_go() {
    let location = reported_each_second(
        |second| 5 + (second * 7 % 10) as u32,
        |requests| 0.4 + 0.02 * requests,
    );
    let idle = load_at(&location, 60_100);
    assert!((idle - 0.4).abs() < 0.03, "{idle}");
    (0..10).for_each(|_| location.begin_request(Cost::ONE, at(60_100)));
    let busy = load_at(&location, 60_100);
    assert!((busy - 0.6).abs() < 0.03, "{busy}");
    // Where none of our requests is, all of the load is that of others.
    let location = reported_each_second(|_| 0, |_| 0.7);
    assert_eq!(load_at(&location, 60_100), 0.7);
}

#[test]
fn d1_reports_that_do_not_follow_our_requests_do_not_draw_all_of_them() {
    let location = reported_each_second(|second| 5 + (second * 7 % 10) as u32, |_| 0.3);
    let idle = load_at(&location, 60_100);
    (0..40).for_each(|_| location.begin_request(Cost::ONE, at(60_100)));
    let busy = load_at(&location, 60_100);
    assert!(idle > 0.2 && busy > 1.5 * idle, "{idle} {busy}");
}

#[test]
fn d1_a_fit_that_was_handed_over_outlives_the_first_report_to_the_new_process() {
    let old = reported_each_second(
        |second| 5 + (second * 7 % 10) as u32,
        |requests| 0.4 + 0.02 * requests,
    );
    let new = Location::new("a");
    let (own, loads) = old.export_learnt();
    new.import_learnt(&own, &loads, at(60_000));
    // Requests of the old process make the load of the first report, and the new process has none of them.
    let value = LoadValue::new(0.6).unwrap();
    new.report_load(LoadId::CPU, value, at(61_000)).unwrap();
    (0..10).for_each(|_| new.begin_request(Cost::ONE, at(61_000)));
    let load = load_at(&new, 61_100);
    assert!((load - 0.6).abs() < 0.03, "{load}");
    // The next report is one of many.
    let value = LoadValue::new(0.61).unwrap();
    new.report_load(LoadId::CPU, value, at(62_000)).unwrap();
    (0..10).for_each(|_| new.end_request(Cost::ONE, Some(at(62_000))));
    let load = load_at(&new, 62_000);
    assert!((load - 0.4).abs() < 0.05, "{load}");
}

#[test]
fn d1_the_mean_number_of_requests_is_right_for_any_time_between_reports() {
    // Ticks of 32 bits wrap after 1.2 hours; ages are kept for 12 days.
    for seconds in [1, 10, 60, 3_599, 3_601, 4_500, 9_000, 86_400, 864_000] {
        let location = Location::new("a");
        for report in 0..4 {
            let (start, end) = (
                at(report * seconds * 1000),
                at((report + 1) * seconds * 1000),
            );
            (0..8).for_each(|_| location.begin_request(Cost::ONE, start));
            (0..8).for_each(|_| location.end_request(Cost::ONE, Some(end)));
            let value = LoadValue::new(0.4).unwrap();
            location.report_load(LoadId::CPU, value, end).unwrap();
        }
        let now = 4 * seconds * 1000 + 1;
        (0..8).for_each(|_| location.begin_request(Cost::ONE, at(now)));
        let load = load_at(&location, now);
        assert!((load - 0.4).abs() < 0.01, "{seconds}: {load}");
    }
}

#[test]
fn the_rate_of_binds_does_not_depend_on_how_often_loads_are_reported() {
    for every_us in [100, 400, 1000, 1300, 50_000, 1_000_000] {
        let location = Location::new("a");
        let load = LoadValue::new(7.0).unwrap();
        // Five seconds with a bind each 10 ms, and reports in between.
        let (mut bind, mut report) = (0, 0);
        while bind <= 5_000_000 {
            if bind < report {
                location.begin_request(Cost::ONE, at(0));
                bind += 10_000;
            } else {
                let now = Instant::from_nanos(report * 1000 + 1_000_000);
                let id = LoadId::REQUESTS_PER_SECOND;
                location.report_load(id, load, now).unwrap();
                report += every_us;
            }
        }
        let rate = location.with_cell(LoadId::REQUESTS_PER_SECOND, |cell| {
            f32::from_bits(cell.rate.load(Ordering::Relaxed))
        });
        let rate = rate.unwrap();
        assert!((rate / 100.0 - 1.0).abs() < 0.1, "{every_us} us: {rate}");
    }
}

#[test]
fn an_idle_location_does_not_stay_idle_in_our_eyes() {
    let location = Location::new("a");
    let idle = LoadValue::new(0.0).unwrap();
    location.report_load(LoadId::CPU, idle, at(0)).unwrap();
    (0..10).for_each(|_| location.begin_request(Cost::ONE, at(0)));
    let load = location.projected_load(LoadId::CPU, at(1), Duration::from_secs(1));
    assert!(load.unwrap() >= 0.5, "{load:?}");
}

#[test]
fn in_flight_is_corrected_exactly() {
    let location = Location::new("a");
    let max_age = Duration::from_secs(15);
    (0..3).for_each(|_| location.begin_request(Cost::ONE, at(0)));
    let seven = LoadValue::new(7.0).unwrap();
    location
        .report_load(LoadId::IN_FLIGHT, seven, at(0))
        .unwrap();
    location.begin_request(Cost::ONE, at(0));
    location.begin_request(Cost::ONE, at(0));
    location.end_request(Cost::ONE, None);
    let load = location.projected_load(LoadId::IN_FLIGHT, at(9), max_age);
    assert_eq!(load, Some(8.0));
}

#[test]
fn what_a_monitor_has_news_of_is_not_for_others_to_report() {
    let location = Location::new("a");
    let max_age = Duration::from_secs(15);
    let value = |value| LoadValue::new(value).unwrap();
    let cpu = |ms| location.fresh_load(LoadId::CPU, at(ms), max_age);
    location
        .report_load(LoadId::CPU, value(0.9), at(0))
        .unwrap();
    location
        .report_load(LoadId::DISK, value(0.1), at(0))
        .unwrap();
    let seen = [(LoadId::CPU, value(0.2)), (LoadId::COMPOSITE, value(0.0))];
    location.observe_loads(seen, at(10)).unwrap();
    location
        .report_load(LoadId::CPU, value(0.9), at(20))
        .unwrap();
    assert_eq!(cpu(20), Some(0.2));
    // Unknown at once, and not idle; still there to be shown.
    let all = [LoadId::CPU, LoadId::DISK, LoadId::COMPOSITE];
    location.expire(all);
    assert_eq!(cpu(20), None);
    assert_eq!(location.projected_load(LoadId::CPU, at(20), max_age), None);
    assert_eq!(
        location.fresh_load(LoadId::COMPOSITE, at(20), max_age),
        None
    );
    let shown = location.last_load(LoadId::COMPOSITE, at(20)).unwrap();
    assert!(shown.expired && shown.value == LoadValue::ZERO);
    let disk = location.projected_load(LoadId::DISK, at(20), max_age);
    assert_eq!(disk, Some(0.1), "nobody held it");
    const DAY: u64 = 24 * 3600 * 1000;
    for day in 1..100 {
        location.keep_age(at(day * DAY));
        assert_eq!(cpu(day * DAY), None);
    }
    // Now others count; and what they said is no news of the monitor's to expire.
    location
        .report_load(LoadId::CPU, value(0.7), at(100 * DAY))
        .unwrap();
    location.expire(all);
    assert_eq!(cpu(100 * DAY), Some(0.7));
    location.observe_loads(seen, at(100 * DAY)).unwrap();
    assert_eq!(cpu(100 * DAY), Some(0.2));
}

#[test]
fn every_named_load_is_known_as_such() {
    let named = (0..1000).map(LoadId).filter(|id| id.is_named());
    assert_eq!(named.count(), NAMED_LOADS);
    for (place, (id, name)) in NAMES.iter().enumerate() {
        assert_eq!(id.place(), Some(place), "{name}");
    }
}

#[test]
fn a_name_without_a_cell_is_known_both_ways() {
    let id = LoadId::WAITING_REQUESTS;
    assert_eq!(id.to_string(), "waiting_requests");
    assert_eq!("waiting_requests".parse(), Ok(id));
    assert!(!id.is_named() && "waiting".parse::<LoadId>().is_err());
}

#[test]
fn s4_unknown_ids_leave_room_for_all_named_loads() {
    let location = Location::new("a");
    let one = LoadValue::new(1.0).unwrap();
    // Somebody pushes ids that nobody knows, without end.
    for id in 1000..1100 {
        let _ = location.report_load(LoadId(id), one, at(1));
    }
    let named: Vec<_> = NAMES.iter().map(|&(id, _)| (id, one)).collect();
    location.report_all(&named, at(2)).unwrap();
    location
        .observe_loads(named.iter().copied(), at(3))
        .unwrap();
    for &(id, _) in &named {
        let fresh = location.fresh_load(id, at(4), Duration::from_secs(1));
        assert_eq!(fresh, Some(1.0), "{id}");
    }
    assert_eq!(location.list_loads(at(4)).count(), LOADS_PER_LOCATION);
}

#[test]
fn s4_a_load_without_a_name_expires_when_its_place_is_needed() {
    let location = Location::new("a");
    let one = LoadValue::new(1.0).unwrap();
    let ids = 100..100 + UNNAMED_LOADS as u32;
    for id in ids.clone() {
        location.report_load(LoadId(id), one, at(1)).unwrap();
    }
    location.report_load(LoadId(100), one, at(50_000)).unwrap();
    let new = [(LoadId(99), one), (LoadId(98), one)];
    assert_eq!(location.report_all(&new, at(50_000)), Err(TooManyLoads));
    assert_eq!(location.report_each(&new, at(50_000)), 2);
    // A minute later all but the one that goes on have expired. Who reports one of them
    // again keeps it.
    let mixed = [new[0], new[1], (LoadId(101), one)];
    location.report_all(&mixed, at(61_000)).unwrap();
    let kept: Vec<u32> = location
        .list_loads(at(61_000))
        .map(|load| load.id.0)
        .collect();
    assert_eq!(kept.len(), UNNAMED_LOADS);
    assert!(
        [98, 99, 100, 101].iter().all(|id| kept.contains(id)),
        "{kept:?}"
    );
    // Loads that are not reported any more are not kept forever.
    location
        .report_load(LoadId(98), one, at(3_600_000))
        .unwrap();
    location.keep_age(at(3_662_000));
    let kept: Vec<u32> = location
        .list_loads(at(3_662_000))
        .map(|load| load.id.0)
        .collect();
    assert_eq!(kept, [98]);
}

#[test]
fn s4_what_has_room_counts_beside_what_has_none() {
    let location = Location::new("a");
    let one = LoadValue::new(1.0).unwrap();
    for id in 100..100 + UNNAMED_LOADS as u32 {
        location.report_load(LoadId(id), one, at(1)).unwrap();
    }
    let report = [(LoadId(99), one), (LoadId::CPU, one), (LoadId(100), one)];
    assert_eq!(location.report_all(&report, at(2)), Err(TooManyLoads));
    assert!(
        location.last_load(LoadId::CPU, at(2)).is_none(),
        "all or none"
    );
    assert_eq!(location.report_each(&report, at(2)), 1);
    let max_age = Duration::from_secs(1);
    assert_eq!(location.fresh_load(LoadId::CPU, at(3), max_age), Some(1.0));
    assert_eq!(location.fresh_load(LoadId(100), at(3), max_age), Some(1.0));
    assert_eq!(location.fresh_load(LoadId(99), at(3), max_age), None);
}

/// Load that one more client is expected to add, after a second in which two clusters have each sent ten clients there.
fn cost_of_a_client(stays: [u64; 2]) -> f32 {
    let location = Location::new("a");
    let half = LoadValue::new(0.5).unwrap();
    for second in 0..30 {
        location
            .report_load(LoadId::CPU, half, at(second * 1000))
            .unwrap();
        for stay in stays {
            (0..10).for_each(|_| location.assign_client(Duration::from_secs(stay)));
        }
    }
    location.report_load(LoadId::CPU, half, at(30_000)).unwrap();
    location.assign_client(Duration::from_secs(1));
    let load = location.projected_load(LoadId::CPU, at(30_000), Duration::from_secs(15));
    load.unwrap() - 0.5
}

#[test]
fn b13_each_cluster_counts_with_its_own_quantum() {
    // A cluster that sends clients for a minute, and one that sends them for three seconds: half a minute on average,
    // in either order.
    let (mixed, turned) = (cost_of_a_client([60, 3]), cost_of_a_client([3, 60]));
    let mean = cost_of_a_client([31, 32]);
    assert!((mixed / mean - 1.0).abs() < 0.05, "{mixed} {mean}");
    assert!((turned / mixed - 1.0).abs() < 0.01, "{turned} {mixed}");
}

#[test]
fn s23_what_was_assigned_counts_for_less_as_time_passes() {
    let location = Location::new("a");
    let half = LoadValue::new(0.5).unwrap();
    for second in 0..10 {
        location
            .report_load(LoadId::CPU, half, at(second * 1000))
            .unwrap();
        (0..10).for_each(|_| location.assign_client(Duration::from_secs(3)));
    }
    let added = |ms| {
        let load = location.projected_load(LoadId::CPU, at(ms), Duration::from_secs(60));
        load.unwrap() - 0.5
    };
    let first = added(9_000);
    assert!(first > 0.1, "{first}");
    assert!(
        (added(12_000) / first - 0.5).abs() < 0.01,
        "half after their stay"
    );
    assert!(added(40_000) < 0.1 * first);
    // The load of our own requests does not go away by itself.
    let location = Location::new("a");
    location.report_load(LoadId::CPU, half, at(0)).unwrap();
    location.begin_request(Cost::ONE, at(0));
    let load = |ms| location.projected_load(LoadId::CPU, at(ms), Duration::from_secs(60));
    assert_eq!(load(1), load(30_000));
}

#[test]
fn b10_what_an_application_does_not_say_its_machine_does() {
    let location = Location::new("a");
    let max_age = Duration::from_secs(3);
    let value = |value| LoadValue::new(value).unwrap();
    let load = |ms| location.projected_load(LoadId::UTILIZATION, at(ms), max_age);
    assert_eq!(load(0), None);
    location
        .report_load(LoadId::CPU, value(0.3), at(0))
        .unwrap();
    assert_eq!(load(0), Some(0.3));
    location
        .report_load(LoadId::UTILIZATION, value(0.8), at(0))
        .unwrap();
    assert_eq!(load(0), Some(0.8));
    assert_eq!(
        location.projected_load(LoadId::CPU, at(0), max_age),
        Some(0.3)
    );
    location
        .report_load(LoadId::CPU, value(0.4), at(4_000))
        .unwrap();
    assert_eq!(load(4_000), Some(0.4), "the other one is old");
}

#[test]
fn a_location_stays_small() {
    assert!(size_of::<Location>() <= 2624, "{}", size_of::<Location>());
}

#[test]
fn reports_of_new_ids_by_many_threads_are_bounded_and_not_lost() {
    let location = Location::new("a");
    let one = LoadValue::new(1.0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let location = &location;
            scope.spawn(move || {
                for id in 0..4 {
                    location
                        .report_load(LoadId(100 + 4 * thread + id), one, at(1))
                        .unwrap();
                    assert!(
                        location
                            .last_load(LoadId(100 + 4 * thread + id), at(1))
                            .is_some()
                    );
                }
            });
        }
    });
    assert_eq!(location.list_loads(at(1)).count(), UNNAMED_LOADS);
}

#[test]
fn a_queue_counts_by_its_logarithm_above_a_task_per_cpu() {
    assert_eq!([0.0, 0.5, 1.0].map(of_queue), [0.0, 0.5, 1.0]);
    let doubling = of_queue(8.0) - of_queue(4.0);
    assert!((doubling - (of_queue(64.0) - of_queue(32.0))).abs() < 1e-9);
    assert!(of_queue(1.001) > 1.0 && of_queue(f64::MAX).is_finite());
}

#[test]
fn what_another_balancer_has_read_is_held_until_it_is_read_here_or_said_no_more() {
    let location = Location::new("a");
    let value = |value: f64| LoadValue::new(value).unwrap();
    let told = [(LoadId::CPU, value(0.5)), (LoadId::MEMORY, value(0.25))];
    location
        .observe_elsewhere(told, at(2000), at(1000))
        .unwrap();
    assert!(location.is_read_elsewhere(at(1999)) && !location.is_read_elsewhere(at(2000)));
    location
        .report_load(LoadId::CPU, value(0.9), at(1500))
        .unwrap();
    let observed = |id| location.observed(id, at(3000)).map(LoadValue::get);
    assert_eq!(observed(LoadId::CPU), Some(0.5), "agents do not count");
    // One of the loads is read here since.
    location
        .observe_loads([(LoadId::CPU, value(0.75))], at(2500))
        .unwrap();
    location.expire_elsewhere();
    assert_eq!(observed(LoadId::CPU), Some(0.75));
    assert_eq!(observed(LoadId::MEMORY), None);
    location
        .report_load(LoadId::MEMORY, value(0.125), at(3000))
        .unwrap();
    let known = location.fresh_load(LoadId::MEMORY, at(3000), Duration::from_secs(15));
    assert_eq!(known, Some(0.125), "agents count again");
    assert_eq!(observed(LoadId::MEMORY), None, "no monitor has read that");
    location
        .observe_elsewhere(told, at(5000), at(4000))
        .unwrap();
    location.end_remote_reading();
    assert!(!location.is_read_elsewhere(at(4000)));
}

#[test]
fn each_load_has_one_cell_whichever_comes_first() {
    let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
    let value = |value: f64| LoadValue::new(value).unwrap();
    for ids in [[LoadId::MEMORY, LoadId::CPU], [LoadId::CPU, LoadId::MEMORY]] {
        let location = Location::new("a");
        for id in ids {
            assert_eq!(location.last_load(id, at(1)), None);
        }
        for step in 1..=3_u32 {
            for (number, id) in ids.into_iter().enumerate() {
                let load = value(f64::from(step) + 0.25 * number as f64);
                location.report_load(id, load, at(u64::from(step))).unwrap();
            }
        }
        let loads: Vec<_> = location.list_loads(at(4)).collect();
        let found: Vec<_> = loads.iter().map(|load| (load.id, load.value)).collect();
        assert_eq!(found, [(ids[0], value(3.0)), (ids[1], value(3.25))]);
        let max_age = Duration::from_secs(1);
        for (id, value) in found {
            let projected = location.projected_load(id, at(4), max_age).unwrap();
            assert!((projected - value.get()).abs() < 0.2, "{id:?}: {projected}");
        }
        let none = location.projected_load(LoadId::DISK, at(4), max_age);
        assert_eq!(none, None);
    }
}

#[test]
fn reporters_of_different_loads_that_come_first_at_once_keep_their_cells() {
    for _ in 0..50 {
        let location = Location::new("a");
        let report = |id: LoadId| {
            let load = LoadValue::new(f64::from(id.0)).unwrap();
            location
                .report_load(id, load, Instant::from_nanos(1_000_000))
                .unwrap();
        };
        std::thread::scope(|scope| {
            for id in [LoadId::CPU, LoadId::DISK, LoadId::MEMORY, LoadId::DISK] {
                scope.spawn(move || report(id));
            }
        });
        let mut loads: Vec<_> = { location.list_loads(Instant::from_nanos(2_000_000)) }
            .map(|load| (load.id, load.value.get()))
            .collect();
        loads.sort_by_key(|load| load.0);
        let expected = [LoadId::CPU, LoadId::DISK, LoadId::MEMORY].map(|id| (id, id.0 as f32));
        assert_eq!(loads, expected);
    }
}

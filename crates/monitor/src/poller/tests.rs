use evenkeel_config::MonitorAddress;
use evenkeel_core::load::{LoadId, LoadValue, Location, of_queue};
use evenkeel_kernel::query::{ENVELOPE, SHORT, WITH_PORTS};
use evenkeel_kernel::record::{Available, BASE, Base, Scope};
use proptest::prelude::*;

use super::entry::JITTER;
use super::*;

const MS: Duration = Duration::from_millis(1);
const AGE: Duration = Duration::from_secs(15);

fn at(us: u64) -> Instant {
    Instant::from_nanos(1_000_000_000 + us * 1000)
}

fn key(number: u16) -> Key {
    Key::new(number, [number as u8; 16])
}

fn address(index: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (index >> 8) as u8, index as u8], 9970))
}

fn wanted(index: usize, interval: Duration) -> PollTarget {
    PollTarget {
        location: Arc::new(Location::new(format!("l{index}"))),
        config: Monitor {
            interval,
            listen_backlogs: false,
            ..Monitor::default()
        },
        place: RecordSource::Udp(address(index)),
        key: Some(key(1)),
    }
}

fn poller() -> Poller {
    Poller::new(0x1234_5678_9abc_def0, 1000, fastrand::Rng::with_seed(7))
}

/// Returns the answer of a back-end with one CPU to `question` at `time`, if `running` tasks want the CPU and
/// it was busy for `busy` in all.
fn answer(question: &[u8], time: Instant, busy: Duration, running: u32) -> Vec<u8> {
    answer_with(question, |base| {
        base.time_ns = time.as_nanos();
        base.totals.busy_ns = busy.as_nanos() as u64;
        base.totals.running = running;
    })
}

/// Returns the answer of a back-end with one CPU, whose record `fill` fills.
fn answer_with(question: &[u8], fill: impl FnOnce(&mut Base)) -> Vec<u8> {
    let keys = [key(1), key(2)];
    let (query, key) = Query::parse(question, &keys).unwrap();
    let mut base = Base::new(Source::Responder, Scope::Machine);
    base.available = Available::BUSY.with_parts(Available::RUNNING);
    base.epoch = 5;
    (base.cpus, base.capacity, base.target) = (1, 1000, query.target);
    fill(&mut base);
    let mut out = question.to_vec();
    base.write(out[ENVELOPE..].first_chunk_mut::<BASE>().unwrap());
    query.answer(key, &mut out);
    out
}

/// Returns all questions that are due, with their addresses.
fn due(poller: &mut Poller, now: Instant) -> Vec<(SocketAddr, Vec<u8>)> {
    let (mut all, mut bytes) = (Vec::new(), Vec::new());
    while let Some(ask) = poller.next(now, &mut bytes) {
        let DueTask::Datagram { to, .. } = ask else {
            panic!("{ask:?}");
        };
        all.push((to, bytes.clone()));
    }
    all
}

/// The next question of a schedule of one location, with its time.
fn next(poller: &mut Poller) -> (Instant, Vec<u8>) {
    loop {
        let now = poller.next_event().unwrap();
        if let Some((_, question)) = due(poller, now).pop() {
            return (now, question);
        }
    }
}

fn load(location: &Location, id: LoadId, now: Instant) -> Option<f32> {
    location.fresh_load(id, now, AGE)
}

/// Returns the load that so many tasks for one CPU count as.
fn of_tasks(tasks: f64) -> Option<f32> {
    Some(of_queue(tasks) as f32)
}

fn view(poller: &Poller) -> View<'_> {
    poller.views().next().unwrap()
}

#[test]
fn an_answer_becomes_loads() {
    let mut poller = poller();
    let wanted = wanted(1, 50 * MS);
    let location = Arc::clone(&wanted.location);
    poller.set_targets(vec![wanted], at(0));
    let (now, question) = next(&mut poller);
    let came = now.after(2 * MS);
    let datagram = answer(&question, now, Duration::ZERO, 3);
    assert_eq!(
        poller.receive_datagram(&datagram, address(1), came),
        Verdict::Taken
    );
    assert_eq!(load(&location, LoadId::COMPOSITE, came), of_tasks(3.0));
    assert_eq!(load(&location, LoadId::ROUND_TRIP, came), Some(0.002));
    assert_eq!(load(&location, LoadId::CPU, came), None, "that takes two");
    let first = now;
    let (now, question) = next(&mut poller);
    let apart = now.since(first);
    assert!(apart > 47 * MS && apart < 53 * MS, "{apart:?}");
    let datagram = answer(&question, now, apart / 4, 0);
    assert_eq!(
        poller.receive_datagram(&datagram, address(1), now),
        Verdict::Taken
    );
    let cpu = load(&location, LoadId::CPU, now).unwrap();
    assert!((cpu - 0.25).abs() < 1e-6, "{cpu}");
    assert_eq!(load(&location, LoadId::COMPOSITE, now), Some(cpu));
    let view = view(&poller);
    assert_eq!(
        (view.question_count, view.news_count, view.missed),
        (2, 2, 0)
    );
    assert_eq!(
        (view.state, view.source),
        (State::Fresh, Some(Source::Responder))
    );
}

#[test]
fn listen_backlogs_are_asked_for_where_there_are_any() {
    let mut poller = poller();
    let mut wanted = wanted(1, 50 * MS);
    wanted.config.listen_backlogs = true;
    poller.set_targets(vec![wanted], at(0));
    let mut lengths = Vec::new();
    for question_number in 0..140 {
        let (now, question) = next(&mut poller);
        lengths.push(question.len());
        // Somebody gives the responder a port, which its short answers tell.
        let ports = u16::from((70..75).contains(&question_number));
        let datagram = answer_with(&question, |base| {
            base.time_ns = now.as_nanos();
            base.ports = ports;
        });
        let verdict = poller.receive_datagram(&datagram, address(1), now);
        assert_eq!(verdict, Verdict::Taken);
    }
    let long: Vec<usize> = (0..lengths.len())
        .filter(|at| lengths[*at] == WITH_PORTS)
        .collect();
    assert_eq!(long, [0, 64, 71, 72, 73, 74, 75, 128]);
    assert!(
        lengths
            .iter()
            .all(|length| [SHORT, WITH_PORTS].contains(length))
    );
}

#[test]
fn what_is_fetched_ahead_is_guessed_from_any_bytes_and_changes_nothing() {
    let all = || (0..40).map(|index| wanted(index, 50 * MS)).collect();
    let (mut one, mut other) = (poller(), poller());
    one.set_targets(all(), at(0));
    other.set_targets(all(), at(0));
    let now = at(60_000);
    let questions = due(&mut one, now);
    assert_eq!(questions, due(&mut other, now));
    assert_eq!(questions.len(), 40);
    for (index, (from, question)) in questions.iter().enumerate() {
        let mut datagram = answer(question, now, Duration::ZERO, 3);
        assert_eq!(
            Answer::claimed_reader(&datagram),
            Answer::claimed_ids(&datagram).map(|(reader, _)| reader)
        );
        match index % 4 {
            // Cut off, of a place that there is not, and not authentic.
            0 => datagram.truncate(3 * index),
            1 => datagram[16..24].fill(index as u8),
            2 => datagram[70] ^= 1,
            _ => {}
        }
        one.prefetch_entry(&datagram);
        one.expect_soon(&datagram);
        let verdict = one.receive_datagram(&datagram, *from, now);
        assert_eq!(verdict, other.receive_datagram(&datagram, *from, now));
        assert_eq!(verdict == Verdict::Taken, index % 4 == 3, "{verdict:?}");
    }
    let counts = |poller: &Poller| poller.counts().collect::<Vec<_>>();
    assert_eq!(counts(&one), counts(&other));
    one.prefetch_entry(&[]);
    one.expect_soon(&[0; 23]);
    assert_eq!(Answer::claimed_reader(&[0; 23]), None);
}

#[test]
fn without_news_the_loads_are_unknown_and_never_idle() {
    let mut poller = poller();
    let wanted = wanted(1, 50 * MS);
    let location = Arc::clone(&wanted.location);
    poller.set_targets(vec![wanted], at(0));
    let (now, question) = next(&mut poller);
    poller.receive_datagram(&answer(&question, now, MS, 3), address(1), now);
    let (silent, _) = next(&mut poller);
    let mut last = silent;
    while load(&location, LoadId::COMPOSITE, last).is_some() {
        last = poller.next_event().unwrap();
        due(&mut poller, last);
    }
    let after = last.since(silent);
    assert_eq!(
        after,
        150 * MS,
        "three intervals after the first without an answer"
    );
    for id in Monitor::reported_loads() {
        assert_eq!(load(&location, id, last), None, "{id}");
    }
    assert_eq!(view(&poller).expired, 1);
    assert!(view(&poller).missed >= 2);
    // It is asked on, less and less often.
    let mut times = Vec::new();
    while times.len() < 10 {
        times.push(next(&mut poller).0);
    }
    let gap = times[9].since(times[8]);
    assert!(gap > 450 * MS && gap < 550 * MS, "{gap:?}");
    let (now, question) = next(&mut poller);
    let datagram = answer(&question, now, MS, 2);
    assert_eq!(
        poller.receive_datagram(&datagram, address(1), now),
        Verdict::Taken
    );
    assert_eq!(load(&location, LoadId::COMPOSITE, now), of_tasks(2.0));
    let (then, _) = next(&mut poller);
    assert!(then.since(now) < 53 * MS, "as often as ever");
    assert_eq!(view(&poller).state, State::Fresh);
}

#[test]
fn others_may_report_what_the_monitor_does_not_know() {
    let mut poller = poller();
    let wanted = wanted(1, 50 * MS);
    let location = Arc::clone(&wanted.location);
    poller.set_targets(vec![wanted], at(0));
    let (now, question) = next(&mut poller);
    poller.receive_datagram(&answer(&question, now, MS, 3), address(1), now);
    let agent = LoadValue::new(0.9).unwrap();
    location.report_load(LoadId::COMPOSITE, agent, now).unwrap();
    assert_eq!(load(&location, LoadId::COMPOSITE, now), of_tasks(3.0));
    let mut last = now;
    while view(&poller).state == State::Fresh {
        last = poller.next_event().unwrap();
        due(&mut poller, last);
    }
    location
        .report_load(LoadId::COMPOSITE, agent, last)
        .unwrap();
    assert_eq!(load(&location, LoadId::COMPOSITE, last), Some(0.9));
    // Nobody asks here any more: what the agent says stays.
    poller.set_targets(Vec::new(), last);
    assert_eq!(load(&location, LoadId::COMPOSITE, last), Some(0.9));
    assert_eq!(poller.next_event().filter(|_| !poller.is_empty()), None);
}

#[test]
fn what_the_process_before_has_read_is_not_known_for_ever() {
    let mut poller = poller();
    let wanted = wanted(1, 50 * MS);
    let location = Arc::clone(&wanted.location);
    let cpu = LoadValue::new(0.5).unwrap();
    location.observe_loads([(LoadId::CPU, cpu)], at(0)).unwrap();
    poller.set_targets(vec![wanted], at(0));
    let (began, _) = next(&mut poller);
    let mut now = began;
    while load(&location, LoadId::CPU, now).is_some() {
        assert!(now.since(began) < Duration::from_secs(1));
        (now, _) = next(&mut poller);
    }
    assert!(now.since(began) >= 150 * MS, "{:?}", now.since(began));
}

#[test]
fn what_another_balancer_reads_is_not_asked_until_it_says_nothing_more() {
    let mut poller = poller();
    let mut wanted = wanted(1, 50 * MS);
    wanted.config.shared = true;
    let location = Arc::clone(&wanted.location);
    poller.set_targets(vec![wanted.clone()], at(0));
    let (now, question) = next(&mut poller);
    poller.receive_datagram(&answer(&question, now, MS, 3), address(1), now);
    let end = now.after(Duration::from_secs(5));
    location.observe_elsewhere([], end, now).unwrap();
    while poller.next_event().unwrap() < end {
        let now = poller.next_event().unwrap();
        assert_eq!(due(&mut poller, now), [], "nobody is asked");
        assert_eq!(view(&poller).state, State::Elsewhere);
    }
    let told = LoadValue::new(0.5).unwrap();
    location
        .observe_elsewhere([(LoadId::CPU, told)], end, end)
        .unwrap();
    let (began, _) = next(&mut poller);
    assert!(began >= end && began.since(end) < 110 * MS, "{began:?}");
    assert_eq!(load(&location, LoadId::CPU, began), Some(0.5));
    // What was said counts no longer than what was read here, if nobody answers.
    while view(&poller).state.has_news() {
        let now = poller.next_event().unwrap();
        due(&mut poller, now);
    }
    let now = poller.next_event().unwrap();
    assert!(now.since(began) < 250 * MS, "{:?}", now.since(began));
    assert_eq!(load(&location, LoadId::CPU, now), None);
    // Where it is not asked for, what others say changes nothing.
    wanted.config.shared = false;
    poller.set_targets(vec![wanted], now);
    let end = now.after(Duration::from_secs(5));
    location.observe_elsewhere([], end, now).unwrap();
    let (asked, _) = next(&mut poller);
    assert!(asked.since(now) < Duration::from_secs(1));
}

#[test]
fn s21_nothing_counts_that_was_not_asked_for() {
    let mut poller = poller();
    let wanted = wanted(1, 50 * MS);
    let location = Arc::clone(&wanted.location);
    poller.set_targets(vec![wanted], at(0));
    let (now, question) = next(&mut poller);
    let good = answer(&question, now, MS, 1);
    let mut receive = |bytes: &[u8], from| poller.receive_datagram(bytes, from, now);
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    assert_eq!(receive(&[], address(1)), Verdict::Malformed);
    assert_eq!(receive(&good[..100], address(1)), Verdict::Malformed);
    assert_eq!(receive(&question, address(1)), Verdict::Malformed);
    assert_eq!(receive(&changed(0), address(1)), Verdict::Malformed);
    assert_eq!(receive(&changed(4), address(1)), Verdict::Version);
    assert_eq!(
        receive(&changed(16), address(1)),
        Verdict::Unasked,
        "no such place"
    );
    assert_eq!(
        receive(&changed(23), address(1)),
        Verdict::Unasked,
        "another reader"
    );
    assert_eq!(
        receive(&changed(24), address(1)),
        Verdict::Unasked,
        "another number"
    );
    assert_eq!(
        receive(&changed(8), address(1)),
        Verdict::Mac,
        "another key"
    );
    assert_eq!(receive(&changed(32), address(1)), Verdict::Mac, "a host");
    assert_eq!(receive(&changed(47), address(1)), Verdict::Mac);
    assert_eq!(receive(&changed(300), address(1)), Verdict::Mac);
    assert_eq!(receive(&good, address(2)), Verdict::Foreign);
    let other_port = SocketAddr::new(address(1).ip(), 9971);
    assert_eq!(receive(&good, other_port), Verdict::Foreign);
    // Who has the key may still write nonsense.
    let signed = |change: fn(&mut Base), target| {
        let mut base = Base::new(Source::Responder, Scope::Machine);
        (base.cpus, base.capacity) = (1, 1000);
        change(&mut base);
        let (query, key) = (Query::parse(&question, &[key(1)]).unwrap().0, key(1));
        let mut out = question.clone();
        base.write(out[ENVELOPE..].first_chunk_mut::<BASE>().unwrap());
        Query { target, ..query }.answer(&key, &mut out);
        out
    };
    assert_eq!(
        receive(&signed(|base| base.begin = 2, 0), address(1)),
        Verdict::Torn
    );
    assert_eq!(
        receive(&signed(|base| base.cpus = 0, 0), address(1)),
        Verdict::Record
    );
    // What B answers to what it was asked, in the place of A's answer: both have the key.
    let host = evenkeel_kernel::host::Host::from_address(address(2).ip());
    let of_other = {
        let query = Query::parse(&question, &[key(1)]).unwrap().0;
        assert_eq!(
            query.host,
            evenkeel_kernel::host::Host::from_address(address(1).ip())
        );
        let mut out = good.clone();
        Query { host, ..query }.answer(&key(1), &mut out);
        out
    };
    assert_eq!(receive(&of_other, address(1)), Verdict::Record, "s21");
    assert_eq!(
        receive(&signed(|base| base.target = 1, 0), address(1)),
        Verdict::Record
    );
    assert_eq!(receive(&signed(|_| (), 3), address(1)), Verdict::Record);
    assert_eq!(location.list_loads(now).count(), 0);
    // After all that the right answer still counts, once.
    assert_eq!(receive(&good, address(1)), Verdict::Taken);
    assert_eq!(receive(&good, address(1)), Verdict::Unasked);
    let view = view(&poller);
    assert_eq!((view.news_count, view.refused), (1, 9));
    assert_eq!(view.trouble, None);
    assert_eq!(poller.counts().map(|(_, count)| count).sum::<u64>(), 21);
}

#[test]
fn a_late_answer_counts_unless_something_newer_is_known() {
    let mut poller = poller();
    let wanted = wanted(1, 10 * MS);
    let location = Arc::clone(&wanted.location);
    poller.set_targets(vec![wanted], at(0));
    let (first, early) = next(&mut poller);
    let (second, late) = next(&mut poller);
    let (third, last) = next(&mut poller);
    let slow = answer(&early, first, Duration::ZERO, 9);
    assert_eq!(
        poller.receive_datagram(&slow, address(1), third),
        Verdict::Taken
    );
    let round_trip = load(&location, LoadId::ROUND_TRIP, third).unwrap();
    assert_eq!(round_trip, third.since(first).as_secs_f32());
    let fast = answer(&last, third, MS, 2);
    assert_eq!(
        poller.receive_datagram(&fast, address(1), third),
        Verdict::Taken
    );
    let overtaken = answer(&late, second, MS, 5);
    assert_eq!(
        poller.receive_datagram(&overtaken, address(1), third),
        Verdict::Old
    );
    assert_eq!(load(&location, LoadId::RUN_QUEUE, third), Some(2.0));
}

#[test]
fn a_machine_that_is_put_back_to_an_earlier_state_is_believed_again() {
    let mut poller = poller();
    poller.set_targets(vec![wanted(1, 50 * MS)], at(0));
    let day = Duration::from_secs(24 * 3600);
    let (now, question) = next(&mut poller);
    let datagram = answer(&question, now.after(day), Duration::ZERO, 3);
    assert_eq!(
        poller.receive_datagram(&datagram, address(1), now),
        Verdict::Taken
    );
    // A late one may be that old, so what is known stays ...
    let (now, question) = next(&mut poller);
    let datagram = answer(&question, now, Duration::ZERO, 1);
    assert_eq!(
        poller.receive_datagram(&datagram, address(1), now),
        Verdict::Old
    );
    let mut now = now;
    while view(&poller).state == State::Fresh {
        let question;
        (now, question) = next(&mut poller);
        if view(&poller).state == State::Fresh {
            let datagram = answer(&question, now, Duration::ZERO, 1);
            assert_eq!(
                poller.receive_datagram(&datagram, address(1), now),
                Verdict::Old
            );
        }
    }
    // ... until it counts no more.
    let (later, question) = next(&mut poller);
    assert!(later > now);
    let datagram = answer(&question, later, Duration::ZERO, 1);
    assert_eq!(
        poller.receive_datagram(&datagram, address(1), later),
        Verdict::Taken
    );
    assert_eq!(view(&poller).state, State::Fresh);
}

#[test]
fn a_load_that_a_record_has_no_more_is_unknown() {
    let mut poller = poller();
    let wanted = wanted(1, 10 * MS);
    let location = Arc::clone(&wanted.location);
    poller.set_targets(vec![wanted], at(0));
    for round in 0..2u32 {
        let (now, question) = next(&mut poller);
        poller.receive_datagram(&answer(&question, now, MS, 1), address(1), now);
        let cpu = load(&location, LoadId::CPU, now);
        assert_eq!(cpu.is_some(), round == 1);
    }
    // Another epoch: the back-end was restarted, and there is nothing to compare with.
    let (now, question) = next(&mut poller);
    let (query, _) = Query::parse(&question, &[key(1)]).unwrap();
    let mut base = Base::new(Source::Responder, Scope::Machine);
    base.available = Available::BUSY.with_parts(Available::RUNNING);
    (base.epoch, base.time_ns, base.cpus, base.capacity) = (6, 1, 1, 1000);
    let mut out = question.clone();
    base.write(out[ENVELOPE..].first_chunk_mut::<BASE>().unwrap());
    query.answer(&key(1), &mut out);
    assert_eq!(
        poller.receive_datagram(&out, address(1), now),
        Verdict::Taken
    );
    assert_eq!(load(&location, LoadId::CPU, now), None);
    assert_eq!(load(&location, LoadId::RUN_QUEUE, now), Some(0.0));
}

#[test]
fn questions_are_spread_and_who_is_dead_costs_others_nothing() {
    let mut poller = poller();
    let all: Vec<PollTarget> = (0..2000).map(|index| wanted(index, 50 * MS)).collect();
    let locations: Vec<_> = all.iter().map(|w| Arc::clone(&w.location)).collect();
    poller.set_targets(all, at(0));
    let mut asked = vec![Vec::new(); 2000];
    let mut most = 0;
    for ms in 0..2000 {
        let now = at(ms * 1000);
        let questions = due(&mut poller, now);
        if ms > 200 {
            most = most.max(questions.len());
        }
        for (to, question) in questions {
            let index = (0..2000).find(|index| address(*index) == to).unwrap();
            asked[index].push(ms);
            // Every other one is dead.
            if index % 2 == 0 {
                let datagram = answer(&question, now, ms as u32 * MS / 2, 1);
                assert_eq!(poller.receive_datagram(&datagram, to, now), Verdict::Taken);
            }
        }
    }
    // On average 20 + a few in each millisecond.
    assert!(most < 70, "{most} at once");
    for (index, times) in asked.iter().enumerate() {
        let known = load(&locations[index], LoadId::COMPOSITE, at(2_000_000));
        if index % 2 == 0 {
            assert!((39..=42).contains(&times.len()), "{index}: {times:?}");
            let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
            assert!({ gaps }.all(|gap| (47..=54).contains(&gap)), "{times:?}");
            assert!(known.is_some());
        } else {
            assert!(times.len() < 10, "{index}: {times:?}");
            assert_eq!(known, None);
        }
    }
    let (delays, sum) = poller.question_delays();
    assert_eq!(delays.iter().sum::<u64>(), poller.count_asked());
    assert!(sum < MS * poller.count_asked() as u32);
}

#[test]
fn a_long_interval_does_not_mean_a_long_wait_after_a_loss() {
    let mut poller = poller();
    let wanted = wanted(1, Duration::from_secs(60));
    let location = Arc::clone(&wanted.location);
    poller.set_targets(vec![wanted], at(0));
    let (now, _) = next(&mut poller);
    assert!(
        now.since(at(0)) <= Duration::from_secs(1),
        "the first one is soon"
    );
    let (again, question) = next(&mut poller);
    assert!(again.since(now) < 1100 * MS, "{:?}", again.since(now));
    poller.receive_datagram(&answer(&question, again, MS, 1), address(1), again);
    let (later, question) = next(&mut poller);
    let gap = later.since(again);
    assert!(gap > 56_000 * MS && gap < 64_000 * MS, "{gap:?}");
    assert_eq!(load(&location, LoadId::RUN_QUEUE, again), Some(1.0));
    poller.receive_datagram(&answer(&question, later, MS, 1), address(1), later);
    let (first, _) = next(&mut poller);
    let (second, _) = next(&mut poller);
    assert!(second.since(first) < 1100 * MS);
}

#[test]
fn what_changes_takes_effect_and_loses_nothing() {
    let mut poller = poller();
    let before = wanted(1, 50 * MS);
    let location = Arc::clone(&before.location);
    poller.set_targets(vec![before.clone(), wanted(2, 50 * MS)], at(0));
    poller.set_targets(vec![before.clone()], at(0));
    let (now, question) = next(&mut poller);
    let datagram = answer(&question, now, Duration::ZERO, 1);
    assert_eq!(
        poller.receive_datagram(&datagram, address(1), now),
        Verdict::Taken
    );
    // Another key and interval: at once, with the history of the last record.
    let mut other = before.clone();
    other.key = Some(key(2));
    other.config.interval = 10 * MS;
    poller.set_targets(vec![other.clone()], now);
    let (then, question) = next(&mut poller);
    assert!(then.since(now) <= 10 * MS);
    assert!(Query::parse(&question, &[key(1)]).is_err());
    poller.receive_datagram(&answer(&question, then, MS, 1), address(1), then);
    assert!(load(&location, LoadId::CPU, then).is_some());
    assert_eq!(view(&poller).news_count, 2);
    // The same again is nothing: a question that is on its way keeps its answer.
    let (now, question) = next(&mut poller);
    poller.set_targets(vec![other.clone()], now);
    let datagram = answer(&question, now, MS, 1);
    assert_eq!(
        poller.receive_datagram(&datagram, address(1), now),
        Verdict::Taken
    );
    // Elsewhere: what the old one says counts no more, and its load until there is news.
    other.config.target = 3;
    other.config.address = Some(MonitorAddress {
        ip: address(9).ip(),
        port: None,
    });
    other.place = RecordSource::Udp(address(9));
    let (now, question) = next(&mut poller);
    poller.set_targets(vec![other], now);
    let datagram = answer(&question, now, MS, 1);
    assert_eq!(
        poller.receive_datagram(&datagram, address(1), now),
        Verdict::Foreign
    );
    assert_eq!(load(&location, LoadId::RUN_QUEUE, now), Some(1.0));
    let (now, question) = next(&mut poller);
    let datagram = answer(&question, now, MS, 4);
    assert_eq!(
        poller.receive_datagram(&datagram, address(9), now),
        Verdict::Taken
    );
    assert_eq!(load(&location, LoadId::RUN_QUEUE, now), Some(4.0));
    assert_eq!(load(&location, LoadId::CPU, now), None);
    poller.set_targets(Vec::new(), now);
    assert_eq!(
        load(&location, LoadId::RUN_QUEUE, now),
        None,
        "nobody knows"
    );
    assert_eq!(poller.views().count(), 0);
}

#[test]
fn a_page_that_does_not_change_is_no_news() {
    let mut poller = poller();
    let mut wanted = wanted(1, 50 * MS);
    wanted.place = RecordSource::Shared("/nowhere".into());
    wanted.key = None;
    let location = Arc::clone(&wanted.location);
    poller.set_targets(vec![wanted], at(0));
    let mut base = Base::new(Source::User, Scope::Machine);
    base.available = Available::RUNNING;
    (base.time_ns, base.cpus, base.capacity) = (1000, 1, 1000);
    let mut page = [0; BASE];
    base.write(&mut page);
    let mut verdicts = Vec::new();
    let mut bytes = Vec::new();
    let mut now = at(0);
    while verdicts.len() < 6 {
        now = poller.next_event().unwrap();
        while let Some(ask) = poller.next(now, &mut bytes) {
            assert_eq!(ask, DueTask::Page { index: 0 });
            let record = Record::parse(&page).unwrap();
            verdicts.push(poller.read(0, Ok(&record), None, now));
        }
    }
    assert_eq!(verdicts[0], Verdict::Taken);
    assert!(verdicts[1..].iter().all(|verdict| *verdict == Verdict::Old));
    assert_eq!(load(&location, LoadId::RUN_QUEUE, now), None);
    assert_eq!(view(&poller).state, State::Stale);
    let verdict = poller.read(0, Err((Verdict::Unreadable, &"no such file")), None, now);
    assert_eq!(verdict, Verdict::Unreadable);
    assert_eq!(view(&poller).trouble, Some("no such file"));
}

/// Way of an answer through the network.
#[derive(Clone, Debug)]
enum Way {
    Lost,
    /// The answer arrives as often as there are numbers, each time so many milliseconds late.
    Late(Vec<u8>),
    /// A byte is changed; another one comes after it.
    Forged(usize, u8),
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![
        2 => Just(Way::Lost),
        5 => prop::collection::vec(0u8..120, 1..3).prop_map(Way::Late),
        1 => (0usize..SHORT, 1u8..).prop_map(|(at, bits)| Way::Forged(at, bits)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever a network does, what is believed was true at a moment not long ago; and
    /// who has not said anything for long is unknown.
    #[test]
    fn only_what_was_true_lately_is_believed(ways in prop::collection::vec(way(), 1..120), interval in 1u32..80) {
        let mut poller = poller();
        let interval = interval * MS;
        let wanted = wanted(1, interval);
        let timeout = wanted.config.timeout();
        let location = Arc::clone(&wanted.location);
        poller.set_targets(vec![wanted], at(0));
        // Answers on their way, by when they come.
        let mut flying: Vec<(Instant, Vec<u8>)> = Vec::new();
        let mut ways = ways.into_iter();
        // When each load was true: the number of tasks is the number of the answer.
        let mut truths: Vec<Instant> = Vec::new();
        let mut newest = None;
        let mut last_news: Option<Instant> = None;
        let mut now;
        loop {
            now = poller.next_event().unwrap();
            flying.sort_by_key(|(at, _)| *at);
            if flying.first().is_some_and(|(at, _)| *at <= now) {
                let (came, datagram) = flying.remove(0);
                let verdict = poller.receive_datagram(&datagram, address(1), came);
                if verdict == Verdict::Taken {
                    let claims = Record::parse(&datagram[ENVELOPE..]).unwrap().base;
                    let which = claims.totals.running as usize;
                    prop_assert!(newest < Some(which), "{which} after {newest:?}");
                    newest = Some(which);
                    last_news = Some(came);
                    let value = load(&location, LoadId::RUN_QUEUE, came);
                    prop_assert_eq!(value, Some(which as f32));
                    prop_assert!(came.since(truths[which]) <= timeout);
                }
                continue;
            }
            for (_, question) in due(&mut poller, now) {
                let which = truths.len();
                truths.push(now);
                let datagram = answer(&question, now, MS, which as u32);
                match ways.next().unwrap_or(Way::Lost) {
                    Way::Lost => {}
                    Way::Late(times) => {
                        for late in times {
                            flying.push((now.after(u32::from(late) * MS), datagram.clone()));
                        }
                    }
                    Way::Forged(at, bits) => {
                        let mut forged = datagram.clone();
                        forged[at] ^= bits;
                        flying.push((now, forged));
                        flying.push((now.after(MS), datagram));
                    }
                }
            }
            let known = load(&location, LoadId::RUN_QUEUE, now).is_some();
            let fresh = view(&poller).state == State::Fresh;
            prop_assert_eq!(known, fresh);
            if let Some(news) = last_news {
                // The question after the news, and the timeout from there on.
                let longest = interval.mul_f64(1.0 + JITTER) + timeout + MS;
                prop_assert!(!known || now.since(news) <= longest);
            }
            if ways.len() == 0 && flying.is_empty() && !fresh {
                break;
            }
        }
        prop_assert!(load(&location, LoadId::COMPOSITE, now).is_none());
    }

    /// Nobody can stop the schedule or the program with what he sends.
    #[test]
    fn any_datagram_is_answered_by_a_verdict(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        let mut poller = poller();
        poller.set_targets(vec![wanted(1, 50 * MS)], at(0));
        let (now, _) = next(&mut poller);
        prop_assert_ne!(poller.receive_datagram(&bytes, address(1), now), Verdict::Taken);
    }
}

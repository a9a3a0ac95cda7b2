//! Any datagram at a responder and at a balancer: no panic, nothing longer than what was
//! asked, nothing believed that is not authentic. A part of the input is a valid datagram
//! with changes, so that what lies behind the authentication is reached, too.
#![no_main]

use std::sync::Arc;

use evenkeel_config::Monitor;
use evenkeel_core::load::Location;
use evenkeel_core::time::Instant;
use evenkeel_kernel::query::{Answer, ENVELOPE, Key, LONGEST, Query, SHORT};
use evenkeel_monitor::poller::{DueTask, PollTarget, Poller, RecordSource, Verdict};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let key = Key::new(1, *b"only for fuzzing");
    let keys = [Key::new(2, [2; 16]), key.clone()];

    // As they are: nobody has the key.
    assert!(Query::parse(bytes, &keys).is_err());
    assert!(Answer::parse(bytes, &key).is_err());
    let _ = (Answer::claimed_ids(bytes), Answer::claimed_reader(bytes));

    // As the record in an authentic answer to a question of the balancer.
    let mut poller = Poller::new(7 << 32, 1, fastrand::Rng::with_seed(1));
    let location = Arc::new(Location::new("a"));
    let address = ([10, 0, 0, 1], 9970).into();
    let config = Monitor {
        listen_backlogs: bytes.first().is_some_and(|byte| byte & 1 == 1),
        ..Monitor::default()
    };
    let wanted = PollTarget {
        location: Arc::clone(&location),
        config,
        place: RecordSource::Udp(address),
        key: Some(key.clone()),
    };
    poller.set_targets(vec![wanted], Instant::from_nanos(1));
    let now = Instant::from_nanos(10_000_000_000);
    let mut question = Vec::new();
    let asked = poller.next(now, &mut question);
    assert!(matches!(asked, Some(DueTask::Datagram { .. })));
    assert_ne!(poller.receive_datagram(bytes, address, now), Verdict::Taken);
    let (query, found) = Query::parse(&question, &keys).expect("our own question");
    assert_eq!(found.number, key.number);
    let mut answer = question.clone();
    for (place, byte) in answer[ENVELOPE..].iter_mut().zip(bytes) {
        *place = *byte;
    }
    query.answer(&key, &mut answer);
    assert!(answer.len() == question.len() && (SHORT..=LONGEST).contains(&answer.len()));
    let parsed = Answer::parse(&answer, &key);
    let verdict = poller.receive_datagram(&answer, address, now);
    match &parsed {
        Ok(parsed) => {
            assert_eq!(parsed.query, query);
            let is_asked = parsed.record.base.target == query.target;
            assert_eq!(verdict == Verdict::Taken, is_asked);
        }
        Err(_) => assert_ne!(verdict, Verdict::Taken),
    }
    // A bit that is changed on the way ends it.
    if let Some(place) = bytes.last().map(|byte| usize::from(*byte) % answer.len()) {
        answer[place] ^= 1;
        assert!(Answer::parse(&answer, &key).is_err());
    }
});

use evenkeel_kernel::forward::End as KernelEnd;
use evenkeel_manager::config::LogFormat;
use evenkeel_proxy::access::Queue;
use evenkeel_proxy::access::line::LineFormatter;
use serde_json::{Value, json};

use super::*;

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;

fn open_log() -> (Records, Queue) {
    let (log, queue) =
        AccessLog::new_channel(Box::new(LineFormatter::with_format(LogFormat::Json)));
    let mut records = Records::default();
    records.set_log(Some(log));
    let listener = "192.0.2.1:80".parse().unwrap();
    records.rules.insert((false, listener), "db".into());
    records.rules.insert((true, listener), "dns".into());
    (records, queue)
}

/// Returns an event of a connection to the member at `last`.
fn event(last: u8, began_ms: u64, step: Step, ms: u64) -> Event {
    Event {
        pair: Pair {
            member: format!("10.77.0.{last}:8080").parse().unwrap(),
            client: "198.51.100.7:5000".parse().unwrap(),
        },
        listener: "192.0.2.1:80".parse().unwrap(),
        seat: 0,
        is_udp: false,
        is_direct: false,
        step,
        began_ns: began_ms * MS,
        ns: ms * MS,
        bytes: (40, 68),
    }
}

fn take(records: &mut Records, event: &Event) {
    let target = Target {
        group: Some("db".into()),
        ..Target::of_address(event.pair.member)
    };
    records.take_event(event, || Some(target));
}

/// Returns the lines that were written, without their times of day.
fn read_lines(queue: &Queue) -> Vec<Value> {
    let lines = std::iter::from_fn(|| queue.try_take().ok()).flatten();
    let text = String::from_utf8(lines.collect()).unwrap();
    let values = text.lines().map(|line| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        value.as_object_mut().unwrap().remove("time").unwrap();
        value
    });
    values.collect()
}

#[test]
fn s41_a_record_has_the_fields_of_the_proxy() {
    let (mut records, queue) = open_log();
    for (step, ms) in [
        (Step::Begin, 5),
        (Step::Accept, 7),
        (Step::Answer, 10),
        (Step::End(KernelEnd::Closed), 25),
    ] {
        take(&mut records, &event(2, 5, step, ms));
    }
    records.finish_round();
    let expected = json!({
        "rule": "db", "client": "198.51.100.7:5000", "group": "db", "member": "10.77.0.2:8080",
        "bytes_received": 40, "bytes_sent": 68, "queue_ms": 0.0, "connect_ms": 2.0,
        "response_ms": 5.0, "total_ms": 20.0, "retries": 0, "end": "complete",
    });
    assert_eq!(read_lines(&queue), [expected]);
    assert!(records.open.is_empty() && records.refused.is_empty());
}

#[test]
fn s41_a_record_has_the_members_that_have_not_accepted() {
    let (mut records, queue) = open_log();
    let refused = Step::End(KernelEnd::Refused);
    take(&mut records, &event(2, 5, Step::Begin, 5));
    take(&mut records, &event(2, 5, refused, 6));
    // The next event may come in another round.
    records.finish_round();
    take(&mut records, &event(3, 6, Step::Begin, 6));
    take(&mut records, &event(3, 6, refused, 8));
    take(&mut records, &event(4, 8, Step::Begin, 8));
    take(&mut records, &event(4, 8, Step::Accept, 9));
    take(&mut records, &event(4, 8, Step::End(KernelEnd::Reset), 15));
    records.finish_round();
    let lines = read_lines(&queue);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let expected = [
        ("member", json!("10.77.0.4:8080")),
        ("tried", json!(["10.77.0.2:8080", "10.77.0.3:8080"])),
        ("retries", json!(2)),
        ("connect_ms", json!(1.0)),
        ("response_ms", Value::Null),
        ("total_ms", json!(10.0)),
        ("end", json!("member")),
    ];
    for (name, value) in expected {
        assert_eq!(lines[0][name], value, "{name}: {lines:?}");
    }

    // A refusal that nobody retries.
    take(&mut records, &event(2, 20, Step::Begin, 20));
    take(&mut records, &event(2, 20, refused, 21));
    records.finish_round();
    assert_eq!(read_lines(&queue), [] as [Value; 0]);
    records.finish_round();
    let lines = read_lines(&queue);
    assert_eq!(
        (&lines[0]["end"], &lines[0]["retries"]),
        (&json!("member"), &json!(0))
    );
    take(&mut records, &event(2, 30, refused, 31));
    records.finish();
    records.finish_round();
    assert_eq!(
        read_lines(&queue).len(),
        1,
        "at the end of the process nothing waits"
    );
}

#[test]
fn s41_records_say_how_connections_have_ended() {
    let (mut records, queue) = open_log();
    let ends = [
        (KernelEnd::Closed, false, "complete"),
        (KernelEnd::ClientReset, false, "client"),
        (KernelEnd::Reset, false, "member"),
        (KernelEnd::Closed, true, "client_timeout"),
        (KernelEnd::Refused, true, "member_timeout"),
    ];
    for (number, (end, is_silent, _)) in (1..).zip(ends) {
        let begin = event(2, number, Step::Begin, number);
        take(&mut records, &begin);
        if is_silent {
            records.note_silence(begin.pair, begin.began_ns);
        }
        take(&mut records, &event(2, number, Step::End(end), number + 1));
    }
    records.finish_round();
    let lines = read_lines(&queue);
    let seen: Vec<_> = lines
        .iter()
        .map(|line| line["end"].as_str().unwrap())
        .collect();
    assert_eq!(seen, ends.map(|(_, _, name)| name));
}

#[test]
fn s41_lost_records_are_counted() {
    let (mut records, queue) = open_log();
    let begin = event(2, 5, Step::Begin, 5);
    take(&mut records, &begin);
    for (is_seen, lost) in [(true, 0), (false, 1), (false, 1)] {
        records.begin_look();
        if is_seen {
            records.note(&(begin.pair, begin.began_ns));
        }
        records.end_look();
        assert_eq!(records.count_lost(), lost);
    }
    // A connection that has begun since the look is not lost.
    records.begin_look();
    take(&mut records, &begin);
    records.end_look();
    assert_eq!((records.count_lost(), records.open.len()), (1, 1));
    records.open.clear();

    // The beginning was not seen, the group is gone.
    records.rules.clear();
    let end = event(2, 7, Step::End(KernelEnd::Closed), 9);
    records.take_event(&end, || None);
    records.finish_round();
    let lines = read_lines(&queue);
    assert_eq!(lines[0]["rule"], "192.0.2.1:80");
    assert_eq!(lines[0]["member"], "10.77.0.2:8080");
    assert_eq!(lines[0]["total_ms"], 2.0);

    // Without a log nothing is kept.
    records.set_log(None);
    take(&mut records, &begin);
    assert!(records.open.is_empty());
}

#[test]
fn s41_sessions_of_udp_have_records_with_their_rule_and_end() {
    for (end, name) in [
        (KernelEnd::Closed, "complete"),
        (KernelEnd::Silent, "member_timeout"),
        (KernelEnd::Unreachable, "member"),
    ] {
        let (mut records, queue) = open_log();
        let of_udp = |step, ms| Event {
            is_udp: true,
            ..event(2, 10, step, ms)
        };
        take(&mut records, &of_udp(Step::Begin, 10));
        take(&mut records, &of_udp(Step::Answer, 13));
        take(&mut records, &of_udp(Step::End(end), 20));
        records.finish_round();
        let [line] = &read_lines(&queue)[..] else {
            panic!("one line");
        };
        assert_eq!((&line["rule"], &line["end"]), (&json!("dns"), &json!(name)));
        assert_eq!(
            (&line["response_ms"], &line["bytes_sent"]),
            (&json!(3.0), &json!(68))
        );
    }
}

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};

use evenkeel_core::group::GroupSettings;
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, Reason, Slot, Weight};
use evenkeel_core::strategy::{Values, find};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::*;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// A thread whose clock and time limits are those of the test.
struct Thread {
    idle: IdleConnections<()>,
    now: Cell<Instant>,
    is_late: Notify,
}

impl Thread {
    fn new() -> Self {
        Thread {
            idle: IdleConnections::default(),
            now: Cell::new(at(1000)),
            is_late: Notify::new(),
        }
    }
}

impl Asker for Thread {
    type Permit = ();

    fn idle(&self) -> &IdleConnections<()> {
        &self.idle
    }

    fn permit(&self) -> Option<()> {
        Some(())
    }

    fn now(&self) -> Instant {
        self.now.get()
    }

    fn wait_until(&self, _: Instant) -> impl Future<Output = ()> {
        self.is_late.notified()
    }
}

/// Three members, of which the second has a name.
fn group() -> ArcSwap<Group> {
    let member = |index: u8| Member {
        id: MemberId(u64::from(index)),
        name: format!("m{index}.example:80").into(),
        given_name: (index == 2).then(|| "second".into()),
        address: SocketAddr::from(([192, 0, 2, index], 80)).into(),
        host: format!("m{index}.example").into(),
        max_connections: Some(2),
        location: Arc::new(Location::new(format!("l{index}"))),
        zone: (index == 3).then(|| "north".into()),
        slot: Arc::new(Slot::new(Weight::ONE)),
    };
    let members = (1..=3).map(member).collect();
    let strategy = Values::defaults(find("random").unwrap());
    let settings = GroupSettings::default();
    let group = Group::new("g", settings, &strategy, members, Arc::default());
    ArcSwap::from_pointee(group)
}

fn settings(port: u16) -> config::Chooser {
    let mut settings = config::Chooser::default();
    let url = &mut settings.url.0;
    (url.host, url.port, url.path) = ("127.0.0.1".into(), port, "/choose".into());
    settings
}

/// A chooser of the test's, and a listener for its questions.
async fn chooser() -> (Arc<Chooser>, TcpListener) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (Chooser::next(None, "g", &settings(port)), listener)
}

/// Reads a question: its head, and its body.
async fn read(stream: &mut TcpStream) -> (String, Value) {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let mut lines = head
                .lines()
                .filter_map(|line| line.strip_prefix("Content-Length: "));
            if lines.next() == Some(&body.len().to_string()) {
                return (head.to_owned(), serde_json::from_str(body).unwrap());
            }
        }
        assert!(stream.read_buf(&mut read).await.unwrap() > 0);
    }
}

fn response(status: u16, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

async fn ask(chooser: &Chooser, group: &ArcSwap<Group>, thread: &Thread) -> Option<Advice> {
    let request = Request::at_time(thread.now());
    chooser
        .ask_advice(group, &request, &About::default(), thread)
        .await
}

fn failures(chooser: &Chooser) -> Vec<(&'static str, u64)> {
    let all = chooser.counts.failures.totals_by_kind(&Failure::ALL);
    let all = all.filter(|(_, count)| *count > 0);
    all.map(|(failure, count)| (failure.name(), count))
        .collect()
}

#[tokio::test]
async fn an_answer_names_a_member_or_says_why_the_strategy_decides() {
    let (chooser, listener) = chooser().await;
    let group = group();
    let slots = |index: usize| Arc::clone(&group.load().members()[index].slot);
    slots(2).set(Reason::Maintenance, true);
    let thread = Thread::new();
    let member = |id| Advice::Member(MemberId(id));
    let nobody = |failure: Failure| Advice::Nobody(failure.explain());
    let long = format!("{{\"member\": \"second\"}}{}", " ".repeat(64 * 1024));
    let nested = "[".repeat(60_000);
    let named = |name: &str| response(200, &json!({ "member": name }).to_string());
    for (answer, advice) in [
        (named("m1.example:80"), member(1)),
        (named("second"), member(2)),
        (named("192.0.2.2:80"), member(2)),
        (response(200, "{\"because\": 1, \"member\": \"second\"}"), member(2)),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n13\r\n{\"member\":\"second\"}\r\n0\r\n\r\n".to_vec(),
            member(2),
        ),
        (named("m3.example:80"), nobody(Failure::UnusableMember)),
        (named("second"), member(2)),
        (named("m4.example:80"), nobody(Failure::UnknownMember)),
        (named(""), nobody(Failure::UnknownMember)),
        (named("second"), member(2)),
        (response(500, "{\"member\": \"second\"}"), nobody(Failure::Status)),
        (response(204, ""), nobody(Failure::Status)),
        (named("second"), member(2)),
        (response(200, ""), nobody(Failure::Garbage)),
        (response(200, "second"), nobody(Failure::Garbage)),
        (named("second"), member(2)),
        (response(200, "{\"member\": 1}"), nobody(Failure::Garbage)),
        (response(200, "{\"member\": \"a\", \"member\": \"second\"}"), nobody(Failure::Garbage)),
        (named("second"), member(2)),
        (response(200, &nested), nobody(Failure::Garbage)),
        (b"SSH-2.0-x\r\n\r\n".to_vec(), nobody(Failure::Garbage)),
        (named("second"), member(2)),
        (response(200, &long), nobody(Failure::TooLong)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{\"member\"".to_vec(), nobody(Failure::Broken)),
        (named("second"), member(2)),
        (Vec::new(), nobody(Failure::Broken)),
    ] {
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read(&mut stream).await;
            // Whoever asks may have seen enough and be gone.
            let _ = stream.write_all(&answer).await;
        };
        let (advised, ()) = tokio::join!(ask(&chooser, &group, &thread), serve);
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(100)]).into_owned();
        assert_eq!(advised, Some(advice), "{shown:?}");
        thread.idle.clear();
    }
    let counted = failures(&chooser);
    let expected = [
        ("broken", 2),
        ("status", 2),
        ("garbage", 6),
        ("too_long", 1),
        ("unknown_member", 2),
        ("unusable_member", 1),
    ];
    assert_eq!(counted, expected);
    assert!(!chooser.health.fails());
    let status = chooser.status(thread.now().after(PAUSE));
    let last = status.last_failure.unwrap();
    assert_eq!(
        (&*last.error, last.age_seconds),
        (Failure::Broken.explain(), 1.0)
    );
}

#[tokio::test]
async fn a_question_has_the_request_and_the_members_that_may_be_picked() {
    let (chooser, listener) = chooser().await;
    let (group, thread) = (group(), Thread::new());
    {
        let group = group.load();
        let [first, second, third] = group.members() else {
            panic!("three members");
        };
        first.slot.set(Reason::Draining, true);
        let report = |member: &Member, id, load, ms| {
            let load = LoadValue::new(load).unwrap();
            member.location.report_load(id, load, at(ms)).unwrap();
        };
        report(second, LoadId::CPU, 0.5, 900);
        report(second, LoadId::MEMORY, 0.25, 950);
        report(third, LoadId::CPU, 0.75, 1000);
    }
    let ticket = group.load().bind(1, at(900)).unwrap();
    let about = About {
        rule: Some("www"),
        method: Some("GET"),
        host: Some("shop.example"),
        path: Some("/a?b=\"c\""),
        key: Some("gold"),
        ..About::default()
    };
    let request = Request {
        client: Some(Ipv4Addr::new(192, 0, 2, 9).into()),
        ..Request::at_time(at(1000))
    };
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let asked = read(&mut stream).await;
        stream
            .write_all(&response(200, "{\"member\": \"m3.example:80\"}"))
            .await
            .unwrap();
        asked
    };
    let asks = chooser.ask_advice(&group, &request, &about, &thread);
    let (advice, (head, question)) = tokio::join!(asks, serve);
    assert_eq!(advice, Some(Advice::Member(MemberId(3))));
    assert!(
        head.starts_with("POST /choose HTTP/1.1\r\nHost: 127.0.0.1:"),
        "{head}"
    );
    assert!(
        head.contains("\r\nContent-Type: application/json\r\n"),
        "{head}"
    );
    let expected = json!({
        "group": "g", "rule": "www", "client": "192.0.2.9", "method": "GET", "host": "shop.example",
        "path": "/a?b=\"c\"", "key": "gold",
        "candidates": [
            {
                "member": "m2.example:80", "name": "second", "address": "192.0.2.2:80", "location": "l2",
                "weight": 1.0, "in_flight": 1, "loads": { "cpu": 0.5, "memory": 0.25 },
            },
            {
                "member": "m3.example:80", "name": "m3.example:80", "address": "192.0.2.3:80",
                "location": "l3", "zone": "north", "weight": 1.0, "in_flight": 0, "loads": { "cpu": 0.75 },
            },
        ],
    });
    assert_eq!(question, expected);
    // Where there is nothing to choose nobody is asked, and nothing is counted.
    let tried = Request {
        excluded_members: &[MemberId(2)],
        ..request
    };
    assert_eq!(
        chooser.ask_advice(&group, &tried, &about, &thread).await,
        None
    );
    drop(ticket);
    // An old load is unknown.
    let question = question::write(&group.load(), &Request::at_time(at(60_000)), &about);
    let question: Value = serde_json::from_slice(&question).unwrap();
    assert_eq!(question["candidates"][0]["loads"], json!({}));
    assert_eq!(failures(&chooser), []);
}

#[tokio::test]
async fn a_chooser_that_fails_is_asked_once_a_second_until_it_answers() {
    let (chooser, listener) = chooser().await;
    let (group, thread) = (group(), Thread::new());
    let nobody = |failure: Failure| Some(Advice::Nobody(failure.explain()));
    let serve_late = async |stream: &mut TcpStream| {
        read(stream).await;
        thread.is_late.notify_one();
        // The answer would be late: the connection is closed.
        assert_eq!(
            stream.read_u8().await.unwrap_err().kind(),
            std::io::ErrorKind::UnexpectedEof
        );
    };
    for _ in 0..MOST_FAILURES {
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            serve_late(&mut stream).await;
        };
        let (advice, ()) = tokio::join!(ask(&chooser, &group, &thread), serve);
        assert_eq!(advice, nobody(Failure::Timeout));
    }
    assert!(!chooser.status(thread.now()).answers);
    assert!(
        chooser
            .status_line()
            .contains("the chooser fails at present")
    );
    for second in 1..=2 {
        for _ in 0..10 {
            let advice = ask(&chooser, &group, &thread).await;
            assert_eq!(advice, nobody(Failure::Suspended));
        }
        thread.now.set(at(1000).after(PAUSE * second));
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Others are not asked meanwhile.
            let other = ask(&chooser, &group, &thread).await;
            assert_eq!(other, nobody(Failure::Suspended));
            match second {
                1 => serve_late(&mut stream).await,
                _ => {
                    read(&mut stream).await;
                    let answer = response(200, "{\"member\": \"second\"}");
                    stream.write_all(&answer).await.unwrap();
                }
            }
            stream
        };
        let (advice, mut stream) = tokio::join!(ask(&chooser, &group, &thread), serve);
        if second == 1 {
            assert_eq!(advice, nobody(Failure::Timeout));
            continue;
        }
        assert_eq!(advice, Some(Advice::Member(MemberId(2))));
        assert!(chooser.status(thread.now()).answers);
        // On the same connection.
        let serve = async {
            read(&mut stream).await;
            stream
                .write_all(&response(200, "{\"member\": \"m1.example:80\"}"))
                .await
                .unwrap();
        };
        let (advice, ()) = tokio::join!(ask(&chooser, &group, &thread), serve);
        assert_eq!(advice, Some(Advice::Member(MemberId(1))));
    }
    assert_eq!(failures(&chooser), [("timeout", 4), ("suspended", 22)]);
}

#[tokio::test]
async fn a_chooser_that_is_gone_or_has_too_much_to_do_is_not_waited_for() {
    let (group, thread) = (group(), Thread::new());
    // A port at which nobody listens, and nobody else can.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let chooser = Chooser::next(None, "g", &settings(socket.local_addr().unwrap().port()));
    let nobody = |failure: Failure| Some(Advice::Nobody(failure.explain()));
    assert_eq!(
        ask(&chooser, &group, &thread).await,
        nobody(Failure::Unreachable)
    );
    let places: Vec<_> =
        std::iter::from_fn(|| LimitSlot::take(&chooser.asked, MOST_ASKED)).collect();
    assert_eq!(places.len(), MOST_ASKED);
    assert_eq!(ask(&chooser, &group, &thread).await, nobody(Failure::Busy));
    drop(places);
    assert_eq!(chooser.asked.load(Ordering::Relaxed), 0);
    assert_eq!(failures(&chooser), [("unreachable", 1), ("busy", 1)]);
}

#[test]
fn counts_outlive_a_change_of_the_chooser() {
    let first = Chooser::next(None, "g", &settings(1));
    first.count(Advice::Member(MemberId(1)), MemberId(1));
    first.count(Advice::Member(MemberId(1)), MemberId(2));
    first.count(Advice::Nobody("x"), MemberId(2));
    let same = Chooser::next(Some(&first), "g", &settings(1));
    assert!(Arc::ptr_eq(&first, &same));
    let other = Chooser::next(Some(&first), "g", &settings(2));
    assert_ne!(other.id, first.id);
    assert_eq!(other.decisions(), [("chooser", 1), ("fallback", 2)]);
    let mut out = Exposition::default();
    write_families(&mut out, &[other]);
    let text = out.finish();
    for line in [
        "evenkeel_chooser_up{group=\"g\"} 1\n",
        "evenkeel_chooser_decisions_total{group=\"g\",result=\"chooser\"} 1\n",
        "evenkeel_chooser_decisions_total{group=\"g\",result=\"fallback\"} 2\n",
        "evenkeel_chooser_failures_total{group=\"g\",reason=\"timeout\"} 0\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

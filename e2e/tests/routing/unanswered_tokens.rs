//! Tokens that a request takes from a limit, by the way in which the request ends.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};
use serde_json::json;

/// Tokens that a client has for a day, tokens of a short request, and tokens of an answered long one.
const LIMIT: u64 = 1000;
const SHORT_TOKENS: u64 = 100;
const ANSWER_TOKENS: u64 = 400;

/// Tokens that a request has taken.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Paid {
    Nothing,
    /// Tokens that the engine says.
    Answer,
    /// Estimated tokens, which are more than the limit.
    Estimate,
}

/// Behaviour of a client that has sent its request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    /// Waits for an answer with this status.
    Wait(&'static str),
    /// Leaves as soon as the engine has the request.
    Leave,
    /// Sends a part of the body, and leaves as soon as the engine has the part.
    LeaveWithin,
}

/// An answer whose tokens the engine tells.
fn counted(tokens: u64) -> String {
    let usage = json!({"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens});
    ok_response(&json!({"usage": usage}).to_string())
}

/// Answers a request as its prompt orders, to this engine or to all of them. Returns false if the connection ends. `fails`
/// is true until one of the engines has failed with an order `once`.
fn obey(wire: &mut Wire, name: &str, request: &Message, fails: &AtomicBool) -> bool {
    let body = String::from_utf8_lossy(&request.body);
    let is_told = |order: &str| {
        body.contains(&format!("<{order}>")) || body.contains(&format!("<{name}:{order}>"))
    };
    if is_told("short") {
        return wire.try_send(counted(SHORT_TOKENS));
    }
    if is_told("close") || is_told("once") && fails.swap(false, Ordering::SeqCst) {
        return false;
    }
    if is_told("garbage") {
        wire.try_send("nonsense\r\n\r\n");
        return false;
    }
    for status in ["400", "429", "500", "503"] {
        if is_told(status) {
            return wire.try_send(format!(
                "HTTP/1.1 {status} Status\r\nContent-Length: 2\r\n\r\nno"
            ));
        }
    }
    if is_told("once") || is_told("answer") {
        return wire.try_send(counted(ANSWER_TOKENS));
    }
    if is_told("head") {
        wire.try_send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
    }
    // Works on the request until the balancer gives it up.
    let _ = wire.read_request();
    false
}

fn engine(name: &'static str, fails: &Arc<AtomicBool>) -> Member {
    let fails = Arc::clone(fails);
    Member::start(move |script, mut wire| {
        while let Some(request) = script.read_request(&mut wire) {
            if !obey(&mut wire, name, &request, &fails) {
                break;
            }
        }
    })
}

/// A balancer whose rule has these lines, and a limit of tokens for each key.
fn balance(rule: &str, more: &str) -> Balancer {
    Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n{rule}\n\
         [[rule.web.request_limits]]\nname = \"tokens\"\ntokens = \"{LIMIT}/d\"\nkey = \"header:X-Key\"\n\
         [[rule.web.routes]]\npath = \"/attempt\"\nattempt_timeout = \"200ms\"\n\
         [[rule.web.routes]]\npath = \"/request\"\nrequest_timeout = \"200ms\"\n\
         [[rule.web.routes]]\npath = \"/response\"\nresponse_timeout = \"200ms\"\n\
         [[rule.web.routes]]\npath = \"/long\"\nattempt_timeout = \"1500ms\"\n{more}\n"
    ))
}

/// A group without ejections, with members as written in a file.
fn group(table: &str, members: &str) -> String {
    format!(
        "{table}members = [{members}]\nstrategy = \"inference\"\nhealth_check = false\n\
         ejection = {{ min_requests = 1000 }}\nconnection_failure_limit = 1000\n"
    )
}

fn quoted(engine: SocketAddr) -> String {
    format!("\"{engine}\"")
}

/// Sends a request with this order for the engine, whose body has 6,000 bytes more if it is long.
fn send(wire: &mut Wire, path: &str, key: &str, order: &str, is_whole: bool) {
    let filling = "x".repeat(if order == "short" { 0 } else { 6000 });
    let model = order.split(' ').next().unwrap();
    let prompt: Vec<_> = order.split(' ').map(|word| format!("<{word}>")).collect();
    let body = json!({"model": model, "prompt": prompt.concat() + &filling, "max_tokens": 1});
    let body = body.to_string();
    let sent = if is_whole { body.len() } else { body.len() - 1 };
    wire.send(format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\nContent-Length: {}\r\n\r\n{}",
        body.len(),
        &body[..sent]
    ));
}

/// True if a short request of a key has enough tokens left.
fn has_tokens(balancer: &Balancer, key: &str) -> bool {
    let mut wire = balancer.connect();
    send(&mut wire, "/", key, "short", true);
    wire.read_response().second_word() != "429"
}

/// Checks how many tokens a key has left after a long request.
fn check_paid(balancer: &Balancer, key: &str, paid: Paid) {
    if paid != Paid::Estimate {
        wait_until("the estimate is given back", || has_tokens(balancer, key));
    }
    let passed = (0..12).take_while(|_| has_tokens(balancer, key)).count();
    let expected = match paid {
        Paid::Nothing => 7..=12,
        Paid::Answer => 3..=6,
        Paid::Estimate => 0..=0,
    };
    assert!(expected.contains(&passed), "{key}: {passed} after {paid:?}");
}

/// Plays requests with the first path, order and act of each row against a balancer, and checks what they have paid.
fn check_rows(balancer: &Balancer, engine: &Member, rows: &[(&str, &str, Act, Paid)]) {
    for (number, &(path, order, act, paid)) in rows.iter().enumerate() {
        let key = format!("{number}{path}-{}", order.replace(' ', "-"));
        let mut wire = balancer.connect();
        engine.seen_events();
        send(&mut wire, path, &key, order, act != Act::LeaveWithin);
        match act {
            Act::Wait(status) => {
                assert_eq!(wire.read_response().second_word(), status, "{key}");
            }
            Act::Leave | Act::LeaveWithin => {
                if act == Act::Leave {
                    engine.next_request();
                }
                let address = engine.address();
                let in_flight = || balancer.member_status("web", address)["in_flight"].as_u64();
                wait_until("the engine has the request", || in_flight() == Some(1));
                drop(wire);
                wait_until("the request is over", || in_flight() == Some(0));
            }
        }
        check_paid(balancer, &key, paid);
    }
}

#[test]
fn engines_that_refuse_or_fail_cost_nothing_and_engines_that_are_given_up_cost_the_estimate() {
    use Act::{Leave, LeaveWithin, Wait};
    use Paid::{Answer, Estimate, Nothing};
    let engine = engine("one", &Arc::default());
    // The balancer reads a part of a body before it chooses an engine.
    let rule = group("", &quoted(engine.address()));
    let balancer = balance(&rule, "[rule.web.inference]\nmax_prompt = \"4KiB\"");
    check_rows(
        &balancer,
        &engine,
        &[
            ("/", "400", Wait("400"), Nothing),
            ("/", "429", Wait("429"), Nothing),
            ("/", "500", Wait("500"), Nothing),
            ("/", "503", Wait("503"), Nothing),
            ("/", "close", Wait("502"), Nothing),
            ("/", "garbage", Wait("502"), Nothing),
            ("/", "work", Leave, Estimate),
            ("/", "head", Leave, Estimate),
            ("/", "work", LeaveWithin, Nothing),
            ("/attempt", "work", Wait("504"), Estimate),
            ("/attempt", "head", Wait("504"), Estimate),
            ("/request", "work", Wait("504"), Estimate),
            ("/request", "head", Wait("504"), Estimate),
            ("/response", "work", Wait("504"), Estimate),
            ("/response", "head", Wait("504"), Estimate),
            // The last one, as the balancer learns from it how many tokens such a prompt has.
            ("/", "answer", Wait("200"), Answer),
        ],
    );
}

#[test]
fn a_request_that_no_engine_has_got_costs_nothing() {
    let engine = engine("one", &Arc::default());
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let balancer = balance(&group("", &quoted(address)), "");
    let refused = ("/", "answer", Act::Wait("502"), Paid::Nothing);
    check_rows(&balancer, &engine, &[refused]);
    // An engine that has another request.
    let address = engine.address();
    let member = format!("{{ address = \"{address}\", max_connections = 1 }}");
    for (path, queue_timeout, status) in [
        ("/", "200ms", Some("503")),
        ("/request", "60s", Some("504")),
        ("/", "60s", None),
    ] {
        let rule = group("", &member) + &format!("queue_timeout = \"{queue_timeout}\"\n");
        let balancer = balance(&rule, "");
        engine.seen_events();
        let mut busy = balancer.connect();
        send(&mut busy, "/", "busy", "work", true);
        engine.next_request();
        let mut wire = balancer.connect();
        send(&mut wire, path, "queued", "answer", true);
        let queue = || balancer.read_metric("evenkeel_group_queue{group=\"web\"}");
        match status {
            Some(status) => assert_eq!(wire.read_response().second_word(), status),
            None => {
                wait_until("the request waits", || queue() == Some(1.0));
                drop(wire);
                wait_until("the request is over", || queue() == Some(0.0));
            }
        }
        drop(busy);
        wait_until("the engine is free", || {
            balancer.member_status("web", address)["in_flight"] == 0
        });
        check_paid(&balancer, "queued", Paid::Nothing);
        check_paid(&balancer, "busy", Paid::Estimate);
    }
}

#[test]
fn a_request_that_several_engines_get_pays_once() {
    use Act::Wait;
    use Paid::{Answer, Estimate, Nothing};
    let fails = Arc::new(AtomicBool::new(true));
    let [one, two] = ["one", "two"].map(|name| engine(name, &fails));
    let members = [&one, &two].map(|engine| quoted(engine.address()));
    let balancer = balance(&group("", &members.join(", ")), "");
    check_rows(&balancer, &one, &[("/", "once", Wait("200"), Answer)]);
    assert!(!fails.load(Ordering::SeqCst));
    // Another group gets the request.
    let [first, second] = members;
    let groups = group("[group.one]\n", &first) + &group("[group.two]\n", &second);
    let models = "[rule.web.http]\nmodels = { m = [\"one\", \"two\"] }\n";
    let balancer = balance("group = \"one\"\n", &format!("{models}{groups}"));
    check_rows(
        &balancer,
        &one,
        &[
            ("/", "m one:503 two:close", Wait("502"), Nothing),
            ("/", "m one:close two:503", Wait("503"), Nothing),
            ("/long", "m one:work two:503", Wait("503"), Estimate),
            ("/long", "m one:head two:close", Wait("502"), Estimate),
            ("/long", "m one:work two:answer", Wait("200"), Answer),
            ("/", "m one:503 two:answer", Wait("200"), Answer),
        ],
    );
}

//! Engines that are restarted, stand still, or become slow while clients ask: simulated engines in processes.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::simulated_engine::SimulatedEngine;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};
use serde_json::{Value, json};

/// Tokens of a simulated engine's block, and bytes of a token.
const BLOCK_TOKENS: f64 = 512.0;
const TOKEN_BYTES: usize = 4;

/// Bytes of a short prompt, and of a long one, which has 12 blocks.
const SHORT: usize = 3000;
const LONG: usize = 24 * 1024;

fn balance(engines: &[SimulatedEngine], more: &str) -> Balancer {
    let members: Vec<_> = engines
        .iter()
        .map(|engine| format!("\"{}\"", engine.address()))
        .collect();
    Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [{}]\nstrategy = \"inference\"\nslow_start = \"0s\"\n{more}\n\
         [rule.web.http]\nretry_budget = 1.0\n",
        members.join(", ")
    ))
}

/// A prompt of this many bytes, whose first block no other prompt has.
fn new_prompt(bytes: usize) -> String {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    let number = format!("{} ", GIVEN.fetch_add(1, Ordering::Relaxed));
    number.repeat(bytes / number.len())
}

fn send(wire: &mut Wire, prompt: &str) {
    let body = json!({
        "model": "mock", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4,
        "stream": true, "stream_options": {"include_usage": true},
    });
    let body = body.to_string();
    let length = body.len();
    wire.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
}

/// Checks that an answer is whole. Returns the number of cached tokens that it tells.
fn check_answer(answer: &Message) -> u64 {
    let text = answer.text();
    assert_eq!(answer.second_word(), "200", "{}{text}", answer.head);
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let (_, cached) = text.split_once("\"cached_tokens\": ").unwrap();
    let digits = cached.split(|char: char| !char.is_ascii_digit()).next();
    digits.unwrap().parse().unwrap()
}

/// Sends all prompts at the same time, each over a connection of its own.
fn send_all(balancer: &Balancer, prompts: &[String]) -> Vec<Wire> {
    let send_one = |prompt: &String| {
        let mut wire = balancer.connect();
        send(&mut wire, prompt);
        wire
    };
    prompts.iter().map(send_one).collect()
}

/// Asks for an answer to each prompt, one after the other. Returns the sum of the cached tokens.
fn ask_all(balancer: &Balancer, prompts: &[String]) -> u64 {
    let mut wire = balancer.connect();
    let ask = |prompt: &String| {
        send(&mut wire, prompt);
        check_answer(&wire.read_response())
    };
    prompts.iter().map(ask).sum()
}

/// Requests that each member has got so far, and those that it has still.
fn list_requests(balancer: &Balancer) -> Vec<(u64, u64)> {
    let status = balancer.status();
    let members = status["groups"][0]["members"].as_array().unwrap();
    let count = |member: &Value| {
        let in_flight = member["in_flight"].as_u64().unwrap();
        let ended = member["totals"]["requests"].as_u64().unwrap();
        (ended + in_flight, in_flight)
    };
    members.iter().map(count).collect()
}

/// Clients that ask one request after the other, each with a new prompt, and check all answers.
struct Clients {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Starts three clients for each of three engines.
    fn start(balancer: &Balancer) -> Self {
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let web: SocketAddr = balancer.address("web");
        let start = |_| {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            thread::spawn(move || {
                let mut wire = Wire::connect(web);
                while !stop.load(Ordering::Relaxed) {
                    send(&mut wire, &new_prompt(SHORT));
                    check_answer(&wire.read_response());
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let threads = (0..9).map(start).collect();
        Clients {
            stop,
            answered,
            threads,
        }
    }

    /// Returns the numbers of requests that the members have got while the clients had 60 answers.
    fn watch(&self, balancer: &Balancer) -> Vec<u64> {
        let before = list_requests(balancer);
        let wanted = self.answered.load(Ordering::Relaxed) + 60;
        wait_until("clients are answered", || {
            let has_failed = self.threads.iter().any(JoinHandle::is_finished);
            assert!(!has_failed, "a client failed; see above");
            self.answered.load(Ordering::Relaxed) >= wanted
        });
        let after = list_requests(balancer);
        let pairs = after.iter().zip(before);
        pairs
            .map(|((after, _), (before, _))| after - before)
            .collect()
    }

    /// Waits until the first engine has this share of the requests, as a range of the least share of the others.
    fn wait_for_share(&self, balancer: &Balancer, least: f64, most: f64) {
        wait_until(&format!("its share is {least} to {most}"), || {
            let requests = self.watch(balancer);
            let others = *requests[1..].iter().min().unwrap() as f64;
            let own = requests[0] as f64;
            own >= least * others && own <= most * others
        });
    }

    /// Ends the clients between two requests.
    fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_engine_that_is_restarted_loses_no_request_and_is_believed_to_hold_nothing() {
    let Some(mut engines) = SimulatedEngine::start_alike::<3>() else {
        return;
    };
    let balancer = balance(
        &engines,
        "[rule.web.health_check]\ntype = \"http\"\npath = \"/health\"\ninterval = \"100ms\"\n\
         timeout = \"60s\"\nfall = 2\nrise = 2",
    );
    // Each engine reads some prompts, and remembers them.
    let kept: Vec<_> = (0..6).map(|_| new_prompt(LONG)).collect();
    for mut wire in send_all(&balancer, &kept) {
        check_answer(&wire.read_response());
    }
    let first: Vec<_> = list_requests(&balancer);
    assert!(first.iter().all(|(requests, _)| *requests > 0), "{first:?}");
    let most_cached = ask_all(&balancer, &kept);
    let tokens = 6 * LONG / TOKEN_BYTES;
    assert!(
        most_cached > tokens as u64 * 3 / 4,
        "{most_cached} of {tokens}"
    );
    // No engine gets to a first token before one of them is killed.
    engines.iter().for_each(SimulatedEngine::stop);
    let asked: Vec<_> = (0..6).map(|_| new_prompt(LONG)).collect();
    let waiting = send_all(&balancer, &asked);
    wait_until("each engine has requests", || {
        let requests = list_requests(&balancer);
        let sum: u64 = requests.iter().map(|(_, now)| now).sum();
        sum == 6 && requests.iter().all(|(_, now)| *now > 0)
    });
    engines[0].kill();
    engines[1..].iter().for_each(SimulatedEngine::go_on);
    for mut wire in waiting {
        check_answer(&wire.read_response());
    }
    // The connections of others are refused.
    let more: Vec<_> = (0..6).map(|_| new_prompt(SHORT)).collect();
    ask_all(&balancer, &more);
    let address = engines[0].address();
    balancer.wait_for_state("web", address, &["down", "dead"]);
    ask_all(&balancer, &more);
    engines[0].restart();
    balancer.wait_for_state("web", address, &["up"]);
    // The prompts that the engine has lost are read anew, as expected.
    let count = |kind: &str| {
        let labels = format!("group=\"web\",model=\"mock\",kind=\"{kind}\"");
        let count = balancer.read_metric(&format!("evenkeel_inference_tokens_total{{{labels}}}"));
        count.unwrap()
    };
    let before = ["expected_cached", "cached"].map(count);
    let cached = ask_all(&balancer, &kept);
    assert!(cached < most_cached, "some were lost: {cached}");
    let after = ["expected_cached", "cached"].map(count);
    let [expected, found] = [after[0] - before[0], after[1] - before[1]];
    // The balancer's blocks are smaller than those of the engine.
    let slack = 6.0 * (BLOCK_TOKENS + 128.0);
    assert!(expected < found + slack, "{expected} of {found}");
    let clients = Clients::start(&balancer);
    clients.wait_for_share(&balancer, 0.5, f64::INFINITY);
    clients.stop();
}

#[test]
fn an_engine_that_stands_still_gets_nothing_until_it_goes_on() {
    let Some(engines) = SimulatedEngine::start_alike::<3>() else {
        return;
    };
    // Nothing but the requests tells that the engine stands still.
    let balancer = balance(&engines, "health_check = false");
    let clients = Clients::start(&balancer);
    clients.wait_for_share(&balancer, 0.5, f64::INFINITY);
    engines[0].stop();
    clients.wait_for_share(&balancer, 0.0, 0.0);
    // Its requests wait for it: `response_timeout` is a minute.
    let [(_, waiting), ..] = list_requests(&balancer)[..] else {
        panic!("there is a member")
    };
    assert!(waiting > 0);
    engines[0].go_on();
    clients.wait_for_share(&balancer, 0.5, f64::INFINITY);
    // All clients had whole answers.
    clients.stop();
}

#[test]
fn requests_at_an_engine_that_stands_still_end_by_their_time_limit() {
    let Some(engines) = SimulatedEngine::start_alike::<3>() else {
        return;
    };
    let balancer = balance(
        &engines,
        "health_check = false\nresponse_timeout = \"3s\"\nconnection_failure_limit = 2\n\
         ejection = { time = \"1h\", max_time = \"1h\" }",
    );
    let address = engines[0].address();
    engines[0].stop();
    // Each engine gets a part of them.
    let asked: Vec<_> = (0..12).map(|_| new_prompt(SHORT)).collect();
    let mut late = 0;
    for mut wire in send_all(&balancer, &asked) {
        let answer = wire.read_response();
        if answer.second_word() == "200" {
            check_answer(&answer);
            continue;
        }
        late += 1;
        assert_eq!(answer.second_word(), "504");
        let error: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(error["error"]["type"], "timeout_error");
    }
    assert!((2..12).contains(&late), "{late}");
    balancer.wait_for_state("web", address, &["ejected"]);
    let got = || list_requests(&balancer)[0].0;
    let before = got();
    let more: Vec<_> = (0..12).map(|_| new_prompt(SHORT)).collect();
    ask_all(&balancer, &more);
    assert_eq!(got(), before);
    engines[0].go_on();
    balancer.run_ctl(&format!("uneject web {address}")).unwrap();
    let clients = Clients::start(&balancer);
    clients.wait_for_share(&balancer, 0.5, f64::INFINITY);
    clients.stop();
}

#[test]
fn an_engine_that_becomes_slow_gets_as_much_as_fits() {
    let Some(engines) = SimulatedEngine::start_alike::<3>() else {
        return;
    };
    let balancer = balance(&engines, "health_check = false");
    let clients = Clients::start(&balancer);
    clients.wait_for_share(&balancer, 0.5, f64::INFINITY);
    engines[0].set_speed(0.25);
    clients.wait_for_share(&balancer, 0.0, 0.5);
    engines[0].set_speed(1.0);
    clients.wait_for_share(&balancer, 0.6, f64::INFINITY);
    clients.stop();
}

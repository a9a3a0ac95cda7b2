//! Balancers of a fleet tell each other their work at engines for language models: a balancer sends prompts to an engine
//! that is free, and not to an engine where another balancer's requests wait. They tell each other which prompts they have sent,
//! too: a balancer sends a prompt to the engine where another balancer has sent it.
//!
//! Engines leave some requests without an answer, and answer all others at once. Answers have no usage and are no
//! streams, so no speed is learnt and no time decides.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_e2e::agent::key_file;
use evenkeel_e2e::balancer::{Balancer, among_others};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::json;

/// Prompts, of which each engine is the first choice for about half if both are free.
const PROMPTS: usize = 24;

/// Word in prompts that engines leave without an answer.
const HELD: &str = "tarry";

/// Engine with the number of requests that it has answered.
struct Engine {
    member: Member,
    answered: Arc<AtomicUsize>,
}

impl Engine {
    fn start() -> Self {
        let answered = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&answered);
        let member = Member::start(move |script, mut wire| {
            while let Some(request) = script.read_request(&mut wire) {
                if !request.text().contains(HELD) {
                    count.fetch_add(1, Ordering::SeqCst);
                    wire.try_send(ok_response(&json!({"choices": []}).to_string()));
                }
            }
        });
        Engine { member, answered }
    }

    fn address(&self) -> SocketAddr {
        self.member.address()
    }
}

/// Starts a balancer, in a fleet if there is a file with its keys.
fn start(
    name: &str,
    keys: Option<&Path>,
    join: Option<&Balancer>,
    engines: &[&Engine],
) -> Balancer {
    let join = join.map(|other| {
        let address = other.admin_json("/v1/fleet")["address"].clone();
        address.as_str().unwrap().parse().unwrap()
    });
    let beginning = match keys {
        Some(keys) => among_others("127.0.0.1", name, join, keys),
        None => "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned(),
    };
    let members = engines.iter().map(|engine| engine.address().to_string());
    let members: Vec<_> = members.collect();
    Balancer::start(&format!(
        "{beginning}[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = {members:?}\nstrategy = \"inference\"\n\
         health_check = false\n"
    ))
}

/// Sends a request with a prompt of some thousand tokens. Returns the connection.
fn ask(balancer: &Balancer, prompt: &str, is_stream: bool) -> Wire {
    let body = json!({"model": "small", "prompt": prompt.repeat(600), "stream": is_stream});
    let body = body.to_string();
    let mut wire = balancer.connect();
    wire.send(format!(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    wire
}

/// Queued tokens and waiting requests of other balancers at an engine, as a balancer knows them.
fn read_elsewhere(balancer: &Balancer, engine: &Engine) -> (f64, u64) {
    let member = balancer.member_status("web", engine.address());
    let engine = &member["engine"];
    let tokens = engine["queued_tokens_elsewhere"].as_f64().unwrap();
    (tokens, engine["requests_elsewhere"].as_u64().unwrap())
}

/// Asks for new prompts, one after the other. Returns how many of them the first engine has answered.
fn count_at_first(balancer: &Balancer, engines: [&Engine; 2], round: usize) -> usize {
    let before = engines.map(|engine| engine.answered.load(Ordering::SeqCst));
    for number in 0..PROMPTS {
        let mut wire = ask(balancer, &format!("Ship {round}.{number} sails. "), false);
        assert_eq!(wire.read_response().second_word(), "200");
    }
    let after = engines.map(|engine| engine.answered.load(Ordering::SeqCst));
    let counts = [after[0] - before[0], after[1] - before[1]];
    assert_eq!(counts[0] + counts[1], PROMPTS);
    counts[0]
}

#[test]
fn a_balancer_sees_the_queue_of_another_one_at_an_engine() {
    let folder = Folder::new();
    let keys = key_file(&folder);
    let (busy, free) = (Engine::start(), Engine::start());
    let first = start("lb-0", Some(&keys), None, &[&busy]);
    let second = start("lb-1", Some(&keys), Some(&first), &[&busy, &free]);
    let stranger = start("lb-2", None, None, &[&busy, &free]);
    let engines = [&busy, &free];
    let elsewhere = |balancer: &Balancer| read_elsewhere(balancer, &busy);

    let held = |number: usize| ask(&first, &format!("{HELD} {number}, ship. "), true);
    let held: Vec<Wire> = (0..4).map(held).collect();
    wait_until("the other balancer knows the requests", || {
        elsewhere(&second).1 == held.len() as u64
    });
    assert!(elsewhere(&second).0 > 4000.0, "{:?}", elsewhere(&second));
    assert_eq!(elsewhere(&first), (0.0, 0));
    assert_eq!(elsewhere(&stranger), (0.0, 0));

    assert_eq!(count_at_first(&second, engines, 0), 0);
    assert!(count_at_first(&stranger, engines, 0) > 0, "nobody told it");

    // The requests of a balancer that is gone are gone.
    drop(first);
    wait_until("the other balancer knows no requests", || {
        elsewhere(&second) == (0.0, 0)
    });
    assert!(count_at_first(&second, engines, 1) > 0);
}

#[test]
fn a_balancer_knows_the_prompts_that_another_one_has_sent() {
    let folder = Folder::new();
    let keys = key_file(&folder);
    let (known, other) = (Engine::start(), Engine::start());
    let first = start("lb-0", Some(&keys), None, &[&known]);
    let second = start("lb-1", Some(&keys), Some(&first), &[&known, &other]);
    let stranger = start("lb-2", None, None, &[&known, &other]);
    // Once the second balancer knows of a request, the first one tells all that comes.
    let held = ask(&first, &format!("{HELD}. "), true);
    wait_until("the second balancer knows the request", || {
        read_elsewhere(&second, &known).1 == 1
    });
    drop(held);
    wait_until("the second balancer knows that the request is over", || {
        read_elsewhere(&second, &known) == (0.0, 0)
    });
    let heard = || {
        let fleet = second.admin_json("/v1/fleet");
        fleet["prompts_heard"].as_u64().unwrap()
    };
    let before = heard();
    for number in 0..PROMPTS {
        let mut wire = ask(&first, &format!("Ship 0.{number} sails. "), false);
        assert_eq!(wire.read_response().second_word(), "200");
    }
    wait_until("the second balancer knows the prompts", || {
        heard() == before + PROMPTS as u64
    });
    let engines = [&known, &other];
    assert_eq!(count_at_first(&second, engines, 0), PROMPTS);
    // A balancer that was told nothing, and prompts that nobody has sent.
    assert!(count_at_first(&stranger, engines, 0) < PROMPTS);
    assert!(count_at_first(&second, engines, 1) < PROMPTS);
}

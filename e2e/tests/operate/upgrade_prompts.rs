//! A new process knows which engines have read which prompts.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::language_model::LanguageModel;
use evenkeel_e2e::wire::Wire;
use serde_json::{Value, json};

const PROMPTS: usize = 24;

/// Number of crews, whose prompts begin alike. All of them begin at the same engine once in 6^11 times.
const CREWS: usize = 12;

/// Asks for a completion of each prompt by one connection; some prompts begin alike. Returns the share of tokens that
/// engines have known.
fn ask_all(wire: &mut Wire, round: usize) -> f64 {
    let (mut cached, mut all) = (0, 0);
    for number in 0..PROMPTS {
        let prompt = format!(
            "{}{}{}",
            format!("You help crew {}. ", number % CREWS).repeat(60),
            format!("Ship {number} sails. ").repeat(300),
            format!("Question {round}? ").repeat(40),
        );
        let body = json!({"model": "small", "prompt": prompt}).to_string();
        wire.send(format!(
            "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let answer = wire.read_response();
        assert_eq!(answer.second_word(), "200");
        let answer: Value = serde_json::from_str(answer.text()).unwrap();
        let usage = &answer["usage"];
        cached += usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap();
        all += usage["prompt_tokens"].as_u64().unwrap();
    }
    cached as f64 / all as f64
}

#[test]
fn a_new_process_sends_prompts_where_their_beginnings_were_read() {
    let engines: [_; 6] = std::array::from_fn(|_| LanguageModel::start());
    let members = engines
        .each_ref()
        .map(|engine| engine.address().to_string());
    let mut balancer = Balancer::start(&format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = {members:?}\nstrategy = \"inference\"\nhealth_check = false\n"
    ));
    // The same worker ends a request and takes the next one. With a connection for each round, the first request of a
    // round may come to a worker while the other one has answered and not ended the last request of the round before: the
    // engine still counts as busy, and the prompt goes elsewhere with good reason.
    let mut wire = balancer.connect();
    let first = ask_all(&mut wire, 0);
    let before = ask_all(&mut wire, 1);
    assert!(before > 0.8 && before > first + 0.3, "{first} {before}");
    drop(wire);
    balancer.upgrade().unwrap();
    let after = ask_all(&mut balancer.connect(), 2);
    // A prompt that goes elsewhere costs nearly four points.
    assert!(after > before - 0.01, "{before} before, {after} after");
    let used = engines
        .iter()
        .filter(|engine| engine.answered() > 0)
        .count();
    assert!(used > 1, "all prompts at one engine say nothing");
}

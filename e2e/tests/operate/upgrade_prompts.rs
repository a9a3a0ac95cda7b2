//! A new process knows which engines have read which prompts.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::language_model::LanguageModel;
use serde_json::{Value, json};

const PROMPTS: usize = 24;

/// Asks for a completion of each prompt; some begin alike. Returns the share of tokens that engines have known.
fn ask_all(balancer: &Balancer, round: usize) -> f64 {
    let (mut cached, mut all) = (0, 0);
    let mut wire = balancer.connect();
    for number in 0..PROMPTS {
        let prompt = format!(
            "{}{}{}",
            format!("You help crew {}. ", number % 6).repeat(60),
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
    let first = ask_all(&balancer, 0);
    let before = ask_all(&balancer, 1);
    assert!(before > 0.8 && before > first, "{first} {before}");
    balancer.upgrade().unwrap();
    let after = ask_all(&balancer, 2);
    assert!(
        (after - before).abs() < 0.01,
        "{before} before, {after} after"
    );
    let used = engines
        .iter()
        .filter(|engine| engine.answered() > 0)
        .count();
    assert!(used > 1, "all prompts at one engine say nothing");
}

//! Two balancers of a fleet before engines for language models: each learns alone, and both send a new prompt to the same
//! engine. So the engines remember as much of the prompts as with one balancer, also after an upgrade.
//!
//! Requests come one after the other and are no streams, so no speed is learnt and no time decides.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::path::Path;

use evenkeel_e2e::agent::key_file;
use evenkeel_e2e::balancer::{Balancer, among_others};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::language_model::LanguageModel;
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

const ENGINES: usize = 6;
const PROMPTS: usize = 30;

/// Number of beginnings, each of which two prompts share. An odd number: two balancers in turns get one prompt each.
const CREWS: usize = 15;

/// Engines with the balancers in front of them.
struct Rig {
    engines: [LanguageModel; ENGINES],
    balancers: Vec<Balancer>,
}

/// Tokens of prompts.
#[derive(Clone, Copy, Debug, Default)]
struct Tokens {
    cached: u64,
    all: u64,
}

impl Tokens {
    fn share(self) -> f64 {
        self.cached as f64 / self.all as f64
    }
}

impl Rig {
    /// Starts engines with `count` balancers, which are a fleet if there is a file with its keys.
    fn start(count: usize, keys: Option<&Path>) -> Self {
        let engines: [_; ENGINES] = std::array::from_fn(|_| LanguageModel::start());
        let members = engines
            .each_ref()
            .map(|engine| engine.address().to_string());
        let rule = format!(
            "[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = {members:?}\nstrategy = \"inference\"\n\
             health_check = false\n"
        );
        let mut balancers: Vec<Balancer> = Vec::new();
        for number in 0..count {
            let name = format!("lb-{number}");
            let first = balancers.first().filter(|_| keys.is_some());
            let first = first.map(|first| {
                let address = first.admin_json("/v1/fleet")["address"].clone();
                address.as_str().unwrap().parse::<SocketAddr>().unwrap()
            });
            let beginning = match keys {
                Some(keys) => among_others("127.0.0.1", &name, first, keys),
                None => "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned(),
            };
            balancers.push(Balancer::start(&format!("{beginning}{rule}")));
        }
        let rig = Rig { engines, balancers };
        if keys.is_some() {
            rig.wait_for_fleet();
        }
        rig
    }

    /// Waits until each balancer knows that all others are there.
    fn wait_for_fleet(&self) {
        wait_until("the balancers know each other", || {
            self.balancers.iter().all(|balancer| {
                let fleet = balancer.admin_json("/v1/fleet");
                let others = fleet["balancers"].as_array().unwrap();
                let up = others.iter().filter(|other| other["state"] == "up");
                up.count() == self.balancers.len() - 1
            })
        });
    }

    /// Asks a balancer for a completion of a prompt. Returns the number of the engine that has answered, and the tokens
    /// of the prompt.
    fn ask(&self, balancer: usize, number: usize, round: usize) -> (usize, Tokens) {
        let prompt = format!(
            "{}{}{}",
            format!("You help crew {}. ", number % CREWS).repeat(60),
            format!("Ship {number} sails. ").repeat(300),
            format!("Question {round}? ").repeat(40),
        );
        let body = json!({"model": "small", "prompt": prompt}).to_string();
        let answered = || self.engines.each_ref().map(LanguageModel::answered);
        let before = answered();
        let mut wire = self.balancers[balancer].connect();
        wire.send(format!(
            "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let answer = wire.read_response();
        assert_eq!(answer.second_word(), "200");
        let changed = before.iter().zip(answered());
        let engine = changed.into_iter().position(|(one, other)| *one != other);
        let answer: Value = serde_json::from_str(answer.text()).unwrap();
        let usage = &answer["usage"];
        let tokens = Tokens {
            cached: usage["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .unwrap(),
            all: usage["prompt_tokens"].as_u64().unwrap(),
        };
        (engine.unwrap(), tokens)
    }

    /// Asks for all prompts, and changes the balancer with each prompt and each round.
    fn ask_all(&self, round: usize) -> Tokens {
        let mut sum = Tokens::default();
        for number in 0..PROMPTS {
            let balancer = (number + round) % self.balancers.len();
            let (_, tokens) = self.ask(balancer, number, round);
            sum.cached += tokens.cached;
            sum.all += tokens.all;
        }
        sum
    }

    /// Share of the tokens that engines have known in three rounds.
    fn play_rounds(&self) -> f64 {
        let mut sum = Tokens::default();
        for round in 0..3 {
            let tokens = self.ask_all(round);
            sum.cached += tokens.cached;
            sum.all += tokens.all;
        }
        sum.share()
    }
}

#[test]
fn two_balancers_send_a_new_prompt_to_the_same_engine() {
    let folder = Folder::new();
    let rig = Rig::start(2, Some(&key_file(&folder)));
    let mut used = [false; ENGINES];
    for number in 0..PROMPTS {
        let (first, second) = (number % 2, 1 - number % 2);
        let (engine, _) = rig.ask(first, number, 0);
        let (other, tokens) = rig.ask(second, number, 0);
        assert_eq!(engine, other, "prompt {number}");
        assert!(tokens.share() > 0.98, "prompt {number}: {tokens:?}");
        used[engine] = true;
    }
    let used = used.iter().filter(|is_used| **is_used).count();
    assert!(used > 2, "prompts that are all at one engine say nothing");
}

#[test]
fn engines_remember_as_much_with_two_balancers_as_with_one() {
    let folder = Folder::new();
    let keys = key_file(&folder);
    let one = Rig::start(1, Some(&keys)).play_rounds();
    let two = Rig::start(2, Some(&keys)).play_rounds();
    let strangers = Rig::start(2, None).play_rounds();
    assert!(one > 0.5, "{one}");
    assert!((two - one).abs() < 0.03, "{two} with two, {one} with one");
    // Without a common key they begin at different engines.
    assert!(strangers < two - 0.1, "{strangers} apart, {two} together");
}

#[test]
fn an_upgrade_of_one_balancer_loses_no_prompt_of_the_fleet() {
    let folder = Folder::new();
    let mut rig = Rig::start(2, Some(&key_file(&folder)));
    let first = rig.ask_all(0).share();
    rig.ask_all(1);
    let before = rig.ask_all(2).share();
    assert!(before > 0.8 && before > first, "{first} {before}");
    rig.balancers[0].upgrade().unwrap();
    rig.wait_for_fleet();
    for round in 3..5 {
        let after = rig.ask_all(round).share();
        assert!((after - before).abs() < 0.01, "{after} after, {before}");
    }
    // The new process still begins where the other balancer does.
    for number in PROMPTS..2 * PROMPTS {
        let (engine, _) = rig.ask(number % 2, number, 0);
        let (other, _) = rig.ask(1 - number % 2, number, 0);
        assert_eq!(engine, other, "prompt {number}");
    }
}

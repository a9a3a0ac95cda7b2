//! Engines for language models: requests of a conversation stay where its beginning was read, and what a full engine
//! refuses is sent to another one.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::language_model::{ANSWER_WORDS, LanguageModel};
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::python::python;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};
use serde_json::{Value, json};

fn config(members: &[SocketAddr], more: &str) -> String {
    let members: Vec<_> = members.iter().map(|m| format!("\"{m}\"")).collect();
    let members = members.join(", ");
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [{members}]\nstrategy = \"inference\"\nhealth_check = false\n\
         ejection = {{ min_requests = 1000 }}\nconnection_failure_limit = 1000\n\
         [rule.web.http]\nretry_budget = 1.0\n{more}\n"
    )
}

fn balance(engines: &[&LanguageModel]) -> Balancer {
    let members: Vec<_> = engines.iter().map(|engine| engine.address()).collect();
    Balancer::start(&config(&members, ""))
}

/// Asks for a completion, with a body in chunks of `chunk` bytes unless that is 0.
fn ask(wire: &mut Wire, body: &[u8], chunk: usize) -> Message {
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n";
    if chunk == 0 {
        wire.send(format!("{head}Content-Length: {}\r\n\r\n", body.len()));
        wire.send(body);
    } else {
        wire.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n"));
        for part in body.chunks(chunk) {
            wire.send([format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat());
        }
        wire.send("0\r\n\r\n");
    }
    wire.read_response()
}

fn message(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

#[test]
fn the_requests_of_a_conversation_stay_where_its_beginning_was_read() {
    let engines: [_; 3] = std::array::from_fn(|_| LanguageModel::start());
    let balancer = balance(&engines.each_ref());
    let mut wire = balancer.connect();
    const CONVERSATIONS: usize = 12;
    const TURNS: usize = 5;
    let mut histories: Vec<Vec<Value>> = (0..CONVERSATIONS)
        .map(|number| {
            vec![message(
                "system",
                &format!("You are {number}. ").repeat(400),
            )]
        })
        .collect();
    for turn in 0..TURNS {
        for (number, history) in histories.iter_mut().enumerate() {
            history.push(message("user", &format!("Question {turn}? ").repeat(20)));
            let is_stream = (turn + number) % 2 == 0;
            let body = json!({
                "model": "small", "messages": history, "stream": is_stream,
                "stream_options": {"include_usage": true},
            });
            let chunk = [0, 1000, 77][(turn + number) % 3];
            let answer = ask(&mut wire, body.to_string().as_bytes(), chunk);
            assert_eq!(answer.second_word(), "200");
            let words = answer.text().matches("word ").count();
            assert_eq!(words, ANSWER_WORDS, "{}", answer.text());
            assert_eq!(answer.text().matches("cached_tokens").count(), 1);
            history.push(message("assistant", "word word word word word "));
        }
    }
    let sum = |of: fn(&LanguageModel) -> u64| engines.iter().map(of).sum::<u64>();
    assert_eq!(sum(LanguageModel::answered), (CONVERSATIONS * TURNS) as u64);
    // By chance it would be a third.
    let continued = sum(LanguageModel::continued);
    let most = CONVERSATIONS * (TURNS - 1);
    assert!(continued >= most as u64 * 3 / 4, "{continued} of {most}");
    let used = engines.iter().filter(|engine| engine.answered() > 0);
    assert!(used.count() > 1, "conversations are spread");
    let count = |family: &str, label: &str| {
        let series = format!("evenkeel_inference_{family}{{group=\"web\",{label}}}");
        let count = balancer.read_metric(&series);
        count.unwrap_or_else(|| panic!("there is no {series}"))
    };
    let all = (CONVERSATIONS * TURNS) as f64;
    assert_eq!(count("prompts_total", "read=\"whole\""), all);
    let tokens = |kind: &str| {
        let labels = format!("model=\"small\",kind=\"{kind}\"");
        count("tokens_total", &labels)
    };
    assert_eq!(tokens("output"), all * ANSWER_WORDS as f64);
    let (read, cached) = (tokens("prompt"), tokens("cached"));
    let expected = tokens("expected_cached");
    assert!(cached >= read / 2.0, "{cached} of {read}");
    assert!(
        expected >= cached / 2.0 && expected <= cached * 2.0,
        "{expected}, {cached}"
    );
    for engine in &engines {
        for seen in engine.member().seen_events() {
            if let Seen::Request(_, request) = seen {
                assert!(
                    request.values("accept-encoding").is_empty(),
                    "{}",
                    request.head
                );
            }
        }
    }
}

#[test]
fn what_a_full_engine_refuses_is_sent_to_another_one() {
    let engines: [_; 3] = std::array::from_fn(|_| LanguageModel::start());
    let balancer = balance(&engines.each_ref());
    let mut wire = balancer.connect();
    let mut ask_all = |size: usize| {
        for number in 0..12 {
            let text = format!("{number} ").repeat(size);
            let body = json!({"model": "small", "messages": [message("user", &text)]});
            let answer = ask(&mut wire, body.to_string().as_bytes(), number % 2 * 5000);
            assert_eq!(answer.second_word(), "200", "{}", answer.text());
        }
    };
    for status in [429, 503] {
        engines[0].refuse_with(status);
        for size in [10, 3000, 100_000] {
            ask_all(size);
        }
    }
    assert!(engines[0].refused() > 0);
    let counted = balancer.rule_count("retries_total", "result=\"tried\"");
    assert_eq!(counted, engines[0].refused());
    // If all refuse, the client gets the status.
    engines[1].refuse_with(429);
    engines[2].refuse_with(429);
    let body = json!({"model": "small", "messages": [message("user", "hello")]});
    let answer = ask(&mut wire, body.to_string().as_bytes(), 0);
    assert!(
        ["429", "503"].contains(&answer.second_word()),
        "{}",
        answer.head
    );
}

#[test]
fn a_request_whose_connection_is_lost_before_an_answer_is_sent_again() {
    let engine = LanguageModel::start();
    let lost = Member::closing_after("");
    let members = [engine.address(), lost.address()];
    let balancer = Balancer::start(&config(&members, ""));
    let mut wire = balancer.connect();
    for number in 0..20 {
        let text = format!("{number} ").repeat(2000);
        let body = json!({"model": "small", "prompt": text});
        let answer = ask(&mut wire, body.to_string().as_bytes(), 0);
        assert_eq!(answer.second_word(), "200", "{number}");
    }
    assert_eq!(engine.answered(), 20);
}

/// Head of a stream of events, whose body's framing is said by a field.
fn stream_head(framing: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n\r\n")
}

const FRAMINGS: [&str; 3] = [
    "Transfer-Encoding: chunked",
    "Content-Length: 1000",
    "Connection: close",
];

#[test]
fn a_stream_that_breaks_off_before_its_first_event_is_sent_again() {
    for (number, framing) in FRAMINGS.into_iter().enumerate() {
        for resets in [false, true] {
            let engine = LanguageModel::start();
            let lost = Member::start(move |script, mut wire| {
                if script.read_request(&mut wire).is_some() {
                    wire.send(stream_head(framing));
                    if resets {
                        wire.reset();
                    }
                }
            });
            let members = [engine.address(), lost.address()];
            let balancer = Balancer::start(&config(&members, ""));
            let mut wire = balancer.connect();
            for number in 0..20 {
                let text = format!("{number} ").repeat(2000);
                let body = json!({"model": "small", "stream": true, "prompt": text});
                let answer = ask(&mut wire, body.to_string().as_bytes(), 0);
                assert_eq!(answer.second_word(), "200", "{framing}");
                assert_eq!(answer.text().matches("word ").count(), ANSWER_WORDS);
            }
            assert_eq!(engine.answered(), 20);
            lost.next_request();
            if number == 0 && are_installed(&["curl"]) {
                let url = format!("http://{}/v1/completions", balancer.address("web"));
                for number in 0..8 {
                    let text = format!("{number} ").repeat(50);
                    let body = json!({"model": "small", "stream": true, "prompt": text});
                    let answer = run_curl(&[
                        "--http2-prior-knowledge",
                        "--data-binary",
                        &body.to_string(),
                        &url,
                    ]);
                    assert_eq!(answer.matches("word ").count(), ANSWER_WORDS, "{answer}");
                }
            }
        }
    }
}

#[test]
fn a_stream_that_no_engine_begins_is_an_error_and_not_half_an_answer() {
    for framing in FRAMINGS {
        let lost = Member::closing_after(stream_head(framing));
        let balancer = Balancer::start(&config(&[lost.address()], ""));
        let mut wire = balancer.connect();
        let body = json!({"model": "small", "stream": true, "prompt": "Hello."}).to_string();
        let answer = ask(&mut wire, body.as_bytes(), 0);
        assert_eq!(answer.second_word(), "502", "{framing}");
    }
    // An empty stream is one, too.
    let empty = Member::closing_after(stream_head(FRAMINGS[0]) + "0\r\n\r\n");
    let balancer = Balancer::start(&config(&[empty.address()], ""));
    let body = json!({"model": "small", "stream": true, "prompt": "Hello."}).to_string();
    let answer = ask(&mut balancer.connect(), body.as_bytes(), 0);
    assert_eq!((answer.second_word(), answer.text()), ("200", ""));
}

#[test]
fn a_sign_of_life_of_an_engine_reaches_its_client_before_the_first_event() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let engine = Member::start(move |script, mut wire| {
        if script.read_request(&mut wire).is_some() {
            wire.send(stream_head(FRAMINGS[0]) + "8\r\n: ping\n\n\r\n");
            let _ = gone.lock().unwrap().recv();
        }
    });
    let balancer = Balancer::start(&config(&[engine.address()], ""));
    let mut wire = balancer.connect();
    let body = json!({"model": "small", "stream": true, "prompt": "Hello."}).to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\n";
    wire.send(format!(
        "{head}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(wire.read_head().second_word(), "200");
    wire.try_read_until(b": ping\n\n\r\n").unwrap();
    // Its client has got something, so that the end is passed on.
    drop(go);
    assert!(wire.is_at_end());
}

#[test]
fn a_client_that_gives_up_ends_its_request_at_the_engine() {
    for begins_to_answer in [false, true] {
        let engine = Member::start(move |script, mut wire| {
            if script.read_request(&mut wire).is_none() {
                return;
            }
            if begins_to_answer {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
                wire.send(format!(
                    "{head}Transfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n"
                ));
            }
            script.read_request(&mut wire);
        });
        let balancer = Balancer::start(&config(&[engine.address()], ""));
        let mut wire = balancer.connect();
        let body =
            json!({"model": "small", "stream": true, "prompt": "a".repeat(2000)}).to_string();
        wire.send(format!(
            "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        engine.next_request();
        if begins_to_answer {
            wire.try_read_until(b"data: a").unwrap();
        }
        wire.end_sending();
        assert!(matches!(engine.next(), Seen::End(..)));
    }
}

#[test]
fn responses_and_embeddings_are_understood() {
    let engines: [_; 2] = std::array::from_fn(|_| LanguageModel::start());
    let balancer = balance(&engines.each_ref());
    let mut wire = balancer.connect();
    let mut post = |path: &str, body: &Value| {
        let body = body.to_string();
        let length = body.len();
        wire.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        let answer = wire.read_response();
        assert_eq!(answer.second_word(), "200", "{}", answer.text());
        answer
    };
    // Conversations stay where their beginnings were read, which are in `instructions` and `input`.
    const CONVERSATIONS: usize = 6;
    const TURNS: usize = 4;
    let mut histories: [Vec<Value>; CONVERSATIONS] = std::array::from_fn(|_| Vec::new());
    for turn in 0..TURNS {
        for (number, history) in histories.iter_mut().enumerate() {
            history.push(message("user", &format!("Question {turn}? ").repeat(40)));
            let instructions = format!("You are {number}. ").repeat(400);
            let is_stream = turn % 2 == 0;
            let body = json!({
                "model": "small", "instructions": instructions, "input": history, "stream": is_stream,
                "max_output_tokens": 50,
            });
            let answer = post("/v1/responses", &body);
            assert_eq!(
                answer.text().matches("response.output_text.delta").count() > 0,
                is_stream
            );
        }
    }
    let continued = engines.iter().map(LanguageModel::continued).sum::<u64>() as usize;
    let most = CONVERSATIONS * (TURNS - 1);
    assert!(continued >= most * 3 / 4, "{continued} of {most}");
    let count = |family: &str, label: &str| {
        let series = format!("evenkeel_inference_{family}{{group=\"web\",{label}}}");
        balancer.read_metric(&series).unwrap()
    };
    let responses = (CONVERSATIONS * TURNS) as f64;
    assert_eq!(count("prompts_total", "read=\"whole\""), responses);
    let tokens = |kind: &str| {
        let labels = format!("model=\"small\",kind=\"{kind}\"");
        count("tokens_total", &labels)
    };
    let (read, output) = (tokens("prompt"), tokens("output"));
    assert_eq!(output, responses * ANSWER_WORDS as f64);
    assert!(tokens("cached") >= read / 2.0);
    let first = "gen_ai_server_time_to_first_token_seconds_count{group=\"web\",model=\"small\",operation=\"chat\"}";
    assert_eq!(balancer.read_metric(first), Some(responses / 2.0));
    // Embeddings have a prompt, and no answer that counts.
    let texts = ["one ".repeat(300), "two ".repeat(300)];
    let body = json!({"model": "small", "input": texts});
    assert!(post("/v1/embeddings", &body).text().contains("embedding"));
    assert_eq!(count("prompts_total", "read=\"whole\""), responses + 1.0);
    let of_texts = (json!(texts).to_string().len() / 4) as f64;
    assert_eq!(tokens("prompt"), read + of_texts);
    assert_eq!(tokens("output"), output);
    let embedded = "gen_ai_server_request_duration_seconds_count{group=\"web\",model=\"small\",operation=\"embeddings\"}";
    assert_eq!(balancer.read_metric(embedded), Some(1.0));
}

#[test]
fn whatever_the_engine_would_take_passes() {
    let engine = LanguageModel::start();
    let balancer = balance(&[&engine]);
    let nested = format!("{{\"messages\":{}", "[".repeat(100_000));
    let huge = format!("{{\"input\":\"{}\"}}", "x".repeat(3 << 20));
    let twice = "{\"model\":\"a\",\"model\":\"b\",\"stream\":1e999,\"max_tokens\":-1}";
    for body in [
        "{",
        "no JSON",
        "\u{0}\u{1}",
        "[]",
        "\"",
        twice,
        &nested,
        &huge,
    ] {
        for chunk in [0, 60_000] {
            let mut wire = balancer.connect();
            let answer = ask(&mut wire, body.as_bytes(), chunk);
            assert_eq!(answer.text(), format!("{} bytes", body.len()));
            // The connection goes on.
            wire.send("GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(wire.read_response().text().contains("small"));
        }
    }
    // None of them is a prompt that is known as a whole.
    for (part, requests) in [
        ("whole", 0.0),
        ("unread", 2.0),
        ("no_prompt", 8.0),
        ("ambiguous", 2.0),
        ("broken", 2.0),
        ("beginning", 2.0),
    ] {
        let series = format!("evenkeel_inference_prompts_total{{group=\"web\",read=\"{part}\"}}");
        assert_eq!(balancer.read_metric(&series), Some(requests), "{part}");
    }
    let mut wire = balancer.connect();
    wire.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\n\x1f\x0babc");
    assert_eq!(wire.read_response().text(), "5 bytes");
    wire.send(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"mod\r\nzz\r\n",
    );
    assert_eq!(wire.read_response().second_word(), "400");
}

#[test]
fn copies_for_engines_go_where_their_beginnings_were_read_and_all_requests_are_counted() {
    let engine = LanguageModel::start();
    let copies: [_; 3] = std::array::from_fn(|_| LanguageModel::start());
    let members: Vec<_> = copies.iter().map(LanguageModel::address).collect();
    let [a, b, c] = members[..] else { panic!() };
    let mirror = format!(
        "mirror = {{ group = \"copies\" }}\n[group.copies]\nmembers = [\"{a}\", \"{b}\", \"{c}\"]\nstrategy = \"inference\"\nhealth_check = false",
    );
    let balancer = Balancer::start(&config(&[engine.address()], &mirror));
    let mut wire = balancer.connect();
    const PROMPTS: u64 = 6;
    const REQUESTS: u64 = 3 * PROMPTS;
    let sum = |of: fn(&LanguageModel) -> u64| copies.iter().map(of).sum::<u64>();
    for number in 0..REQUESTS {
        let text = format!("{} ", number % PROMPTS).repeat(2000);
        let body = json!({"model": "small", "stream": number % 2 == 0, "prompt": text});
        let answer = ask(&mut wire, body.to_string().as_bytes(), 0);
        assert_eq!(answer.second_word(), "200", "{number}");
        wait_until("the copy is answered", || {
            sum(LanguageModel::answered) == number + 1
        });
    }
    assert_eq!(engine.answered(), REQUESTS);
    // By chance it would be a third.
    let (continued, most) = (sum(LanguageModel::continued), REQUESTS - PROMPTS);
    assert!(continued >= most * 3 / 4, "{continued} of {most}");
    wire.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\n\x1f\x0babc");
    assert_eq!(wire.read_response().text(), "5 bytes");
    assert_eq!(ask(&mut wire, b"[1]", 0).text(), "3 bytes");
    let count = |group: &str, part: &str| {
        let labels = format!("group=\"{group}\",read=\"{part}\"");
        balancer.read_metric(&format!("evenkeel_inference_prompts_total{{{labels}}}"))
    };
    assert_eq!(count("web", "whole"), Some(REQUESTS as f64));
    assert_eq!(count("web", "compressed"), Some(1.0));
    assert_eq!(count("web", "no_prompt"), Some(1.0));
    assert_eq!(count("copies", "whole"), Some(REQUESTS as f64));
    let cached =
        "evenkeel_inference_tokens_total{group=\"copies\",model=\"small\",kind=\"cached\"}";
    wait_until("answers to copies are read", || {
        balancer
            .read_metric(cached)
            .is_some_and(|tokens| tokens > 0.0)
    });
}

#[test]
fn only_the_beginning_of_a_prompt_decides_that_is_longer_than_the_limit() {
    let engines: [_; 2] = std::array::from_fn(|_| LanguageModel::start());
    let members: Vec<_> = engines.iter().map(LanguageModel::address).collect();
    let more = "[rule.web.inference]\nmax_prompt = \"8KiB\"\nindex_memory = \"64KiB\"";
    let balancer = Balancer::start(&config(&members, more));
    let mut wire = balancer.connect();
    for number in 0..4 {
        let text = format!("{number} ").repeat(100_000);
        let body = json!({"model": "small", "messages": [message("user", &text)]});
        let answer = ask(&mut wire, body.to_string().as_bytes(), number * 700);
        assert_eq!(answer.second_word(), "200", "{number}");
    }
    let read = "evenkeel_inference_prompts_total{group=\"web\",read=\"beginning\"}";
    assert_eq!(balancer.read_metric(read), Some(4.0));
    // A refused request is sent again only if all of its body is still there.
    engines[0].refuse_with(503);
    engines[1].refuse_with(503);
    let short = json!({"model": "small", "prompt": "x".repeat(5000)}).to_string();
    let long = json!({"model": "small", "prompt": "x".repeat(2 << 20)}).to_string();
    let refused = || engines.iter().map(LanguageModel::refused).sum::<u64>();
    assert_eq!(ask(&mut wire, short.as_bytes(), 0).second_word(), "503");
    assert_eq!(refused(), 2);
    let mut wire = balancer.connect();
    assert_eq!(ask(&mut wire, long.as_bytes(), 0).second_word(), "503");
    assert_eq!(refused(), 3);
}

#[test]
fn a_client_that_waits_for_a_100_gets_it_from_the_engine() {
    let engine = Member::start(|_, mut wire| {
        while let Some(head) = wire.try_read_head() {
            wire.send("HTTP/1.1 100 Continue\r\n\r\n");
            let length = head.values("content-length")[0].parse().unwrap();
            let body = wire.try_read_exact(length).unwrap();
            wire.send(ok_response(&format!("{} bytes", body.len())));
        }
    });
    let balancer = Balancer::start(&config(&[engine.address()], ""));
    let mut wire = balancer.connect();
    let body = json!({"model": "small", "prompt": "a".repeat(2000)}).to_string();
    wire.send(format!(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(wire.read_head().second_word(), "100");
    wire.send(&body);
    assert_eq!(wire.read_response().text(), format!("{} bytes", body.len()));
}

#[test]
fn clients_of_http2_are_served_alike() {
    if !are_installed(&["curl"]) {
        return;
    }
    let engines: [_; 2] = std::array::from_fn(|_| LanguageModel::start());
    let balancer = balance(&engines.each_ref());
    engines[0].refuse_with(503);
    let url = format!("http://{}/v1/chat/completions", balancer.address("web"));
    for number in 0..8 {
        let text = format!("{number} ").repeat(20_000);
        let body = json!({"model": "small", "stream": number % 2 == 0, "messages": [message("user", &text)]});
        let file = balancer.folder().path().join("body");
        std::fs::write(&file, body.to_string()).unwrap();
        let data = format!("@{}", file.display());
        let answer = run_curl(&[
            "--http2-prior-knowledge",
            "-H",
            "Expect:",
            "--data-binary",
            &data,
            &url,
        ]);
        assert_eq!(answer.matches("word ").count(), ANSWER_WORDS, "{answer}");
    }
    assert_eq!(engines[1].answered(), 8);
}

#[test]
fn the_log_and_the_metrics_tell_the_model_tokens_and_times() {
    let engine = LanguageModel::start();
    let logs = Folder::new();
    let path = logs.join("access.log");
    let log = format!(
        "[access_log]\noutput = {:?}\nformat = \"json\"\n",
        path.display().to_string()
    );
    let balancer = Balancer::start(&config(&[engine.address()], &log));
    let mut wire = balancer.connect();
    let text = "word ".repeat(200);
    let messages = [message("user", &text)];
    let hostile = "m\"\n\u{1b}";
    for body in [
        json!({"model": "small", "messages": messages, "stream": true, "stream_options": {"include_usage": true}}),
        json!({"model": hostile, "messages": messages, "stream": true}),
        json!({"model": "m".repeat(129), "messages": messages}),
        json!([1]),
    ] {
        let answer = ask(&mut wire, body.to_string().as_bytes(), 0);
        assert_eq!(answer.second_word(), "200");
    }
    wire.send("GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n");
    wire.read_response();
    let mut lines: Vec<Value> = Vec::new();
    wait_until("the log is written", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        lines = whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines.len() == 5
    });
    let [stream, untold, whole, none, models] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(stream["model"], "small");
    assert_eq!(stream["output_tokens"], ANSWER_WORDS);
    assert_eq!(stream["cached_tokens"], 0);
    assert!(stream["prompt_tokens"].as_u64().unwrap() > 200);
    let first = stream["first_token_ms"].as_f64().unwrap();
    assert!(first > 0.0 && first <= stream["total_ms"].as_f64().unwrap());
    // The engine tells no tokens of this stream.
    assert_eq!(untold["model"], hostile);
    assert!(untold["first_token_ms"].is_f64() && untold["output_tokens"].is_null());
    // The name is too long; the answer comes as a whole.
    assert!(whole["model"].is_null() && whole["first_token_ms"].is_null());
    assert_eq!(whole["output_tokens"], ANSWER_WORDS);
    assert!(whole["cached_tokens"].as_u64().unwrap() > 0);
    for line in [none, models] {
        for key in ["model", "prompt_tokens", "first_token_ms"] {
            assert!(line[key].is_null(), "{line}");
        }
    }
    // All four requests with a body have an answer, and two of them a stream. Models without a name, or with a name that
    // is too long, are others.
    for (family, [small, odd, other]) in [
        ("request_duration", [Some(1.0), Some(1.0), Some(2.0)]),
        ("time_to_first_token", [Some(1.0), Some(1.0), None]),
        ("time_per_output_token", [Some(1.0), Some(1.0), None]),
    ] {
        for (model, requests) in [("small", small), ("m\\\"\\n\u{1b}", odd), ("other", other)] {
            let labels = format!("group=\"web\",model=\"{model}\",operation=\"chat\"");
            let count = |suffix: &str| {
                let series = format!("gen_ai_server_{family}_seconds{suffix}");
                balancer.read_metric(&series)
            };
            let counted = count(&format!("_count{{{labels}}}"));
            assert_eq!(counted, requests, "{family} {model}");
            let all = count(&format!("_bucket{{{labels},le=\"+Inf\"}}"));
            assert_eq!(all, requests);
        }
    }
}

#[test]
fn a_stream_that_was_not_announced_has_a_first_token() {
    const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"}}]}\n\n";
    let answer = end_stream(&EVENT.repeat(3));
    let engine = Member::start(move |_, mut wire| {
        while let Some(head) = wire.try_read_head() {
            if !head.values("expect").is_empty() {
                wire.send("HTTP/1.1 100 Continue\r\n\r\n");
            }
            let length = head.values("content-length")[0].parse().unwrap();
            wire.try_read_exact(length).unwrap();
            wire.send(&answer);
        }
    });
    let logs = Folder::new();
    let path = logs.join("access.log");
    let log = format!(
        "[rule.web.inference]\nmax_prompt = \"4KiB\"\n[access_log]\noutput = {:?}\nformat = \"json\"\n",
        path.display().to_string()
    );
    let balancer = Balancer::start(&config(&[engine.address()], &log));
    let mut wire = balancer.connect();
    // The setting is behind a long prompt, in a compressed body, and in a body that comes once a member is chosen.
    let text = "word ".repeat(2000);
    let body = json!({"model": "small", "prompt": text})
        .to_string()
        .replace('}', ",\"stream\":true}");
    let mut post = |field: &str, body: &[u8]| {
        let length = body.len();
        wire.send(format!(
            "POST /v1/completions HTTP/1.1\r\nHost: a\r\n{field}Content-Length: {length}\r\n\r\n"
        ));
        if field.contains("Expect") {
            assert_eq!(wire.read_head().second_word(), "100");
        }
        wire.send(body);
        let answer = wire.read_response();
        assert_eq!(answer.text(), EVENT.repeat(3));
    };
    post("", body.as_bytes());
    post("Content-Encoding: gzip\r\n", b"\x1f\x8babc");
    post("Expect: 100-continue\r\n", body.as_bytes());
    for (model, requests) in [("small", 1.0), ("other", 2.0)] {
        for family in [
            "time_to_first_token",
            "time_per_output_token",
            "request_duration",
        ] {
            let labels = format!("group=\"web\",model=\"{model}\",operation=\"text_completion\"");
            let series = format!("gen_ai_server_{family}_seconds_count{{{labels}}}");
            assert_eq!(balancer.read_metric(&series), Some(requests), "{family}");
        }
    }
    let mut lines: Vec<Value> = Vec::new();
    wait_until("the log is written", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let all = whole.lines();
        lines = all
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines.len() == 3
    });
    for line in &lines {
        assert!(line["first_token_ms"].is_f64(), "{line}");
    }
}

#[test]
fn the_status_tells_tokens_and_times_of_engines() {
    let engine = LanguageModel::start();
    let balancer = Balancer::start(&config(&[engine.address()], ""));
    let mut wire = balancer.connect();
    let messages = [message("user", &"word ".repeat(200))];
    let body = json!({
        "model": "small", "messages": messages, "stream": true, "stream_options": {"include_usage": true},
    });
    let is_told = |figures: &Value| {
        let hits = figures["cache_hit_rate"].as_f64().unwrap_or(0.0);
        let keys = [
            "prompt_tokens_per_second",
            "output_tokens_per_second",
            "first_token_p50_ms",
            "first_token_p90_ms",
        ];
        // This engine writes all tokens at once.
        let gaps = ["between_tokens_p50_ms", "between_tokens_p90_ms"];
        let have_gaps = gaps.iter().all(|key| figures[*key].is_f64());
        let mut told = keys.iter().map(|key| figures[*key].as_f64());
        // The first request of a prompt has no hits, and those after it have all but the last block.
        let are_told = told.all(|figure| figure.is_some_and(|figure| figure > 0.0));
        hits > 0.0 && hits <= 1.0 && are_told && have_gaps
    };
    // Requests before the first look at the group's traffic are not among those of the last seconds.
    wait_until("the figures are there", || {
        let answer = ask(&mut wire, body.to_string().as_bytes(), 0);
        assert_eq!(answer.second_word(), "200");
        let group = balancer.status()["groups"][0].clone();
        is_told(&group["engines"]) && is_told(&group["members"][0]["engine"])
    });
    wait_until("no request is left", || {
        let group = balancer.status()["groups"][0].clone();
        let engines = &group["engines"];
        ["queued_tokens", "queued_requests", "streams"]
            .iter()
            .all(|key| engines[*key].as_f64() == Some(0.0))
    });
}

/// A limit of 1,000 tokens for each key.
const LIMIT: &str =
    "[[rule.web.request_limits]]\nname = \"tokens\"\ntokens = \"1000/d\"\nkey = \"header:X-Key\"\n";

#[test]
fn metrics_of_engines_show_the_requests_of_others() {
    let engines: [_; 2] = std::array::from_fn(|_| LanguageModel::start());
    let members = engines.iter().enumerate().map(|(number, engine)| {
        let address = engine.address();
        format!("{{ address = \"{address}\", location = \"{number}\" }}")
    });
    let members = members.collect::<Vec<_>>().join(", ");
    let more = "[rule.web.prometheus]\npreset = \"vllm\"\ninterval = \"100ms\"";
    let text = config(&[], more).replace("members = []", &format!("members = [{members}]"));
    engines[0].report_waiting(50);
    let balancer = Balancer::start(&text);
    let waits_for = |requests: f64| {
        wait_until("the queue is known", || {
            let status = balancer.status();
            let locations = status["locations"].as_array().unwrap();
            let loads = |at: &Value| at["loads"].as_array().cloned().unwrap_or_default();
            let mut loads = locations
                .iter()
                .filter(|at| at["name"] == "0")
                .flat_map(loads);
            loads.any(|load| load["id"] == "waiting_requests" && load["value"] == requests)
        });
    };
    let mut wire = balancer.connect();
    let mut number = 0;
    let mut ask_new = || {
        number += 1;
        let messages = [message("user", &format!("{number} ").repeat(400))];
        let body = json!({"model": "small", "messages": messages}).to_string();
        assert_eq!(ask(&mut wire, body.as_bytes(), 0).second_word(), "200");
    };
    waits_for(50.0);
    for _ in 0..20 {
        ask_new();
    }
    let answered = || [0, 1].map(|one: usize| engines[one].answered());
    assert_eq!(answered(), [0, 20]);
    // Those of others are over.
    engines[0].report_waiting(0);
    waits_for(0.0);
    wait_until("the first engine gets requests again", || {
        ask_new();
        answered()[0] > 0
    });
}

/// Sends a request with a key, a prompt of this many bytes and a limit of the answer.
fn ask_as(wire: &mut Wire, key: &str, bytes: usize, max_tokens: u32, is_stream: bool) -> Message {
    let body = json!({
        "model": "small", "prompt": "x".repeat(bytes), "max_tokens": max_tokens, "stream": is_stream,
    });
    let body = body.to_string();
    wire.send(format!(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    wire.read_response()
}

#[test]
fn a_client_with_too_few_tokens_left_waits_and_gets_an_error_of_its_interface() {
    let engine = LanguageModel::start();
    let balancer = Balancer::start(&config(&[engine.address()], LIMIT));
    let mut wire = balancer.connect();
    for is_stream in [false, true] {
        let answer = ask_as(&mut wire, "a", 1600, 5, is_stream);
        assert_eq!(answer.second_word(), "200", "{}", answer.head);
    }
    let refused = ask_as(&mut wire, "a", 1600, 5, false);
    assert_eq!(refused.second_word(), "429");
    let wait: u32 = refused.values("retry-after")[0].parse().unwrap();
    assert!((1..86_400).contains(&wait), "{wait}");
    assert_eq!(refused.values("content-type"), ["application/json"]);
    let body: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(body["type"], "error");
    assert_eq!(body["error"]["type"], "rate_limit_error");
    assert_eq!(body["error"]["code"], "rate_limit_exceeded");
    // The connection goes on, small requests pass, and other keys have tokens of their own.
    let mut wire = balancer.connect();
    assert_eq!(ask_as(&mut wire, "a", 40, 5, false).second_word(), "200");
    assert_eq!(ask_as(&mut wire, "b", 1600, 5, false).second_word(), "200");
    assert_eq!(balancer.rule_count("limited_total", "limit=\"tokens\""), 1);
    assert_eq!(engine.answered(), 4);
    // What is no request to a model does not count.
    wire.send("GET /v1/models HTTP/1.1\r\nHost: a\r\nX-Key: a\r\n\r\n");
    assert_eq!(wire.read_response().second_word(), "200");
}

#[test]
fn tokens_that_were_not_used_are_given_back() {
    let engine = LanguageModel::start();
    let balancer = Balancer::start(&config(&[engine.address()], LIMIT));
    let mut wire = balancer.connect();
    // No answer uses no tokens.
    engine.refuse_with(503);
    for _ in 0..5 {
        let answer = ask_as(&mut wire, "a", 1600, 5, false);
        assert_eq!(answer.second_word(), "503");
        wire = balancer.connect();
    }
    engine.refuse_with(0);
    // The answers are shorter than the client allows.
    for _ in 0..4 {
        let answer = ask_as(&mut wire, "a", 800, 100_000, false);
        assert_eq!(answer.second_word(), "200", "{}", answer.head);
    }
    // A prompt above the whole limit passes at first, and is waited for.
    let answer = ask_as(&mut wire, "b", 40_000, 5, false);
    assert_eq!(answer.second_word(), "200");
    let refused = ask_as(&mut wire, "b", 40, 5, false);
    assert_eq!(refused.second_word(), "429");
    let wait: u32 = refused.values("retry-after")[0].parse().unwrap();
    assert!(wait > 8 * 86_400, "{wait}");
}

#[test]
fn the_clients_of_openai_and_anthropic_know_the_error_of_the_limit() {
    if python("limited_clients.py", "anthropic").is_none() {
        return;
    }
    let Some((said, _)) = run_client("limited_clients.py", "openai", "", LIMIT) else {
        return;
    };
    let expected = "openai True rate_limit_error True\nanthropic True rate_limit_error True";
    assert_eq!(said, expected);
}

/// Output of a client's program that asks two engines through a balancer.
fn run_client(file: &str, package: &str, path: &str, more: &str) -> Option<(String, Balancer)> {
    let mut client = python(file, package)?;
    let engines: [_; 2] = std::array::from_fn(|_| LanguageModel::start());
    let members = engines.each_ref().map(LanguageModel::address);
    let balancer = Balancer::start(&config(&members, more));
    let output = client
        .arg(format!("http://{}{path}", balancer.address("web")))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    Some((said.trim_end().to_owned(), balancer))
}

#[test]
fn the_openai_client_is_served() {
    if let Some((said, _)) = run_client("openai_client.py", "openai", "/v1", "") {
        let expected =
            "models small\nwhole 5\nstream 5\nusage True\nresponse 5 5\nevents 5 True\nembedding 2";
        assert_eq!(said, expected);
    }
}

#[test]
fn the_anthropic_client_is_served() {
    let Some((said, balancer)) = run_client("anthropic_client.py", "anthropic", "", "") else {
        return;
    };
    let expected = "whole 5 5\nstream 5 5\ncached True\nrefused 400 invalid_request_error";
    assert_eq!(said, expected);
    // The tokens of both kinds of answers are counted: the cached ones, too.
    let count = |kind: &str| {
        let labels = format!("group=\"web\",model=\"small\",kind=\"{kind}\"");
        let series = format!("evenkeel_inference_tokens_total{{{labels}}}");
        balancer.read_metric(&series).unwrap()
    };
    assert_eq!(count("output"), 2.0 * ANSWER_WORDS as f64);
    assert!(count("cached") > count("prompt") / 4.0);
}

/// Balances one engine that is a socket, for the first token of which requests wait.
fn balance_late(engine: &TcpListener, queue_timeout: &str, more: &str) -> Balancer {
    let target = format!("[rule.web.inference]\nttft_target = \"1ms\"\n{more}");
    let config = config(&[engine.local_addr().unwrap()], &target);
    let timeout = format!("health_check = false\nqueue_timeout = \"{queue_timeout}\"");
    Balancer::start(&config.replacen("health_check = false", &timeout, 1))
}

/// Sends a request for a stream with a prompt of its own.
fn send_late(balancer: &Balancer, key: &str, text: &str) -> Wire {
    let mut wire = balancer.connect();
    let messages = [message("user", &text.repeat(4000))];
    let body = json!({"model": "small", "messages": messages, "stream": true}).to_string();
    wire.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    wire.send(body);
    wire
}

/// Takes the next request at an engine, and returns its key with the connection.
fn take_at_engine(engine: &TcpListener) -> (String, TcpStream) {
    let (mut stream, _) = engine.accept().unwrap();
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while !bytes.ends_with(b"}") {
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "the request is whole");
        bytes.extend_from_slice(&part[..count]);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let key = text.split("Bearer ").nth(1).unwrap();
    (key.lines().next().unwrap().to_owned(), stream)
}

fn wait_for_queue(balancer: &Balancer, requests: f64) {
    wait_until("requests wait", || {
        balancer.read_metric("evenkeel_group_queue{group=\"web\"}") == Some(requests)
    });
}

#[test]
fn requests_whose_first_token_would_be_late_wait_and_get_an_error_that_clients_know() {
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let logs = Folder::new();
    let path = logs.join("access.log").display().to_string();
    let log = format!("[access_log]\noutput = {path:?}\nformat = \"json\"\n");
    let balancer = balance_late(&engine, "200ms", &log);
    let _busy = send_late(&balancer, "a", "busy ");
    let _taken = take_at_engine(&engine);
    let refused = send_late(&balancer, "b", "late ").read_response();
    assert_eq!(refused.second_word(), "429", "{}", refused.head);
    let wait: u32 = refused.values("retry-after")[0].parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(refused.values("content-type"), ["application/json"]);
    let body: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(body["type"], "error");
    assert_eq!(body["error"]["type"], "rate_limit_error");
    assert_eq!(body["error"]["code"], "rate_limit_exceeded");
    let refusals =
        |reason: &str| balancer.rule_count("refused_total", &format!("reason=\"{reason}\""));
    assert_eq!(refusals("late_first_token"), 1);
    assert_eq!(refusals("queue_timeout"), 0);
    let mut line = Value::Null;
    wait_until("the log is written", || {
        let text = std::fs::read_to_string(logs.join("access.log")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let refused = lines.find(|line| line["status"] == 429);
        line = refused.unwrap_or_default();
        line["status"] == 429
    });
    assert_eq!(line["end"], "late_first_token", "{line}");
    let Some(mut client) = python("late_clients.py", "openai") else {
        return;
    };
    if python("late_clients.py", "anthropic").is_none() {
        return;
    }
    let address = format!("http://{}", balancer.address("web"));
    let output = client.arg(address).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let expected = "openai rate_limit_error True\nanthropic rate_limit_error True";
    assert_eq!(said.trim_end(), expected, "{errors}");
}

/// Event with a token of a stream.
const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"}}]}\n\n";

#[test]
fn a_first_token_lets_the_next_request_go_and_keys_have_fair_shares() {
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let balancer = balance_late(&engine, "60s", "");
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = format!("{head}{:x}\r\n{TOKEN}\r\n", TOKEN.len());
    check_fair_shares(&balancer, &engine, &answer);
}

#[test]
fn requests_that_wait_for_a_place_at_an_engine_have_fair_shares_by_key() {
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let balancer = balance_limited(&engine);
    check_fair_shares(&balancer, &engine, &end_stream(TOKEN));
}

/// Balances an engine that takes a single request at a time.
fn balance_limited(engine: &TcpListener) -> Balancer {
    let address = engine.local_addr().unwrap();
    let limited = format!("{{ address = \"{address}\", max_connections = 1 }}");
    let config = config(&[address], "").replacen(&format!("\"{address}\""), &limited, 1);
    let timeout = "health_check = false\nqueue_timeout = \"60s\"";
    Balancer::start(&config.replacen("health_check = false", timeout, 1))
}

/// Writes a whole answer: the place at the engine is free when the answer has ended.
fn end_stream(events: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{events}",
        events.len()
    )
}

#[test]
fn an_answer_corrects_the_share_of_its_key() {
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let balancer = balance_limited(&engine);
    let _busy = send_late(&balancer, "busy", "x");
    let (_, mut last) = take_at_engine(&engine);
    let mut clients = Vec::new();
    let mut send = |key, text, waiting| {
        clients.push(send_late(&balancer, key, text));
        wait_for_queue(&balancer, waiting);
    };
    // Nobody has read the long prompt, so both requests with it count in full.
    send("long", "abc", 1.0);
    send("long", "abc", 2.0);
    for (number, text) in ["d", "e", "f", "g", "h", "i"].iter().enumerate() {
        send("short", text, (number + 3) as f64);
    }
    let cached = json!({
        "prompt_tokens": 3000, "completion_tokens": 1, "total_tokens": 3001,
        "prompt_tokens_details": {"cached_tokens": 2990},
    });
    let usage = json!({"choices": [], "usage": cached});
    let with_usage = end_stream(&format!("{TOKEN}data: {usage}\n\n"));
    let mut keys = Vec::new();
    for number in 0..9 {
        // The second request with the long prompt finds the prompt at the engine.
        let answer = match number {
            5 => with_usage.clone(),
            _ => end_stream(TOKEN),
        };
        last.write_all(answer.as_bytes()).unwrap();
        let (key, stream) = take_at_engine(&engine);
        keys.push(key);
        last = stream;
        if number == 5 {
            send("long", "j", 3.0);
        }
    }
    // Each short request has a third of the long prompt's tokens.
    let first = ["long", "short", "short", "short", "long", "short"];
    assert_eq!(keys[..6], first);
    assert_eq!(keys[6..], ["long", "short", "short"], "the answer counts");
}

/// Sends five requests of a key that floods a busy engine, of which one gives up, and one of another key. Each `answer`
/// of the engine lets the next request go: that of the other key comes after the first one of the flood.
fn check_fair_shares(balancer: &Balancer, engine: &TcpListener, answer: &str) {
    let _busy = send_late(balancer, "flood", "busy ");
    let mut taken = vec![take_at_engine(engine)];
    let mut clients = Vec::new();
    for (number, text) in ["one ", "two ", "three ", "four "].iter().enumerate() {
        clients.push(send_late(balancer, "flood", text));
        wait_for_queue(balancer, (number + 1) as f64);
    }
    // A client that leaves gives up its place.
    clients.pop();
    wait_for_queue(balancer, 3.0);
    let _polite = send_late(balancer, "polite", "short ");
    wait_for_queue(balancer, 4.0);
    for left in (0..4).rev() {
        let (_, stream) = taken.last_mut().unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        taken.push(take_at_engine(engine));
        wait_for_queue(balancer, f64::from(left));
    }
    let keys: Vec<_> = taken.iter().map(|(key, _)| key.as_str()).collect();
    // The polite request has overtaken all but the first one of the flood.
    assert_eq!(keys, ["flood", "flood", "polite", "flood", "flood"]);
}

//! Limits of tokens that cannot be passed by.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::language_model::LanguageModel;
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::wire::{Message, Wire};

/// A balancer with one engine, and a limit of 1,000 tokens for each key.
fn balance(engine: SocketAddr) -> Balancer {
    Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [\"{engine}\"]\nstrategy = \"inference\"\nhealth_check = false\n\
         ejection = {{ min_requests = 1000 }}\nconnection_failure_limit = 1000\n\
         [[rule.web.request_limits]]\nname = \"tokens\"\ntokens = \"1000/d\"\nkey = \"header:X-Key\"\n"
    ))
}

/// Sends a request with a key, in chunks of `chunk` bytes unless that is 0.
fn send_as(wire: &mut Wire, key: &str, body: &str, chunk: usize) {
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\n");
    if chunk == 0 {
        wire.send(format!(
            "{head}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        return;
    }
    wire.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n"));
    for part in body.as_bytes().chunks(chunk) {
        wire.send([format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat());
    }
    wire.send("0\r\n\r\n");
}

fn ask_as(wire: &mut Wire, key: &str, body: &str, chunk: usize) -> Message {
    send_as(wire, key, body, chunk);
    wire.read_response()
}

#[test]
fn no_spelling_of_a_request_hides_its_prompt() {
    let engine = LanguageModel::start();
    let balancer = balance(engine.address());
    let text = "x".repeat(6000);
    let messages = format!(r#"[{{"role":"user","content":"{text}"}}]"#);
    let nested = format!("{}1{}", "[".repeat(65), "]".repeat(65));
    // The engine does not tell the tokens of these streams.
    let bodies = [
        format!(r#"{{"stream":true,"messages":{messages}}}"#),
        format!(r#"{{"stream":true,"prompt":"a","messages":{messages}}}"#),
        format!(r#"{{"stream":true,"prompt":"a","prompt":"{text}"}}"#),
        format!(r#"{{"stream":true,"prompt":"a","mess\u0061ges":{messages}}}"#),
        format!(r#"{{"stream":true,"prompt":"a","x":{nested},"messages":{messages}}}"#),
        format!(r#"{{"x":{nested},"stream":true,"messages":{messages}}}"#),
        format!("\u{feff}{{\"stream\":true,\"messages\":{messages}}}"),
        format!(r#"{{"stream":true,"inputs":"{text}"}}"#),
    ];
    for (number, body) in bodies.iter().enumerate() {
        for chunk in [0, 700] {
            let key = format!("{number} {chunk}");
            let mut wire = balancer.connect();
            let first = ask_as(&mut wire, &key, body, chunk);
            assert_eq!(first.second_word(), "200", "{body}");
            let second = ask_as(&mut wire, &key, r#"{"prompt":"a"}"#, 0);
            assert_eq!(second.second_word(), "429", "{body}");
        }
    }
    // An honest client with a short prompt has tokens left.
    let mut wire = balancer.connect();
    for _ in 0..3 {
        let answer = ask_as(&mut wire, "honest", r#"{"stream":true,"prompt":"a"}"#, 0);
        assert_eq!(answer.second_word(), "200");
    }
}

#[test]
fn a_stream_that_does_not_end_pays_as_it_goes() {
    const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"}}]}\n\n";
    const EVENTS: usize = 1000;
    let engine = Member::start(|script, mut wire| {
        while let Some(request) = script.read_request(&mut wire) {
            if !request.text().contains("stream") {
                wire.send(ok_response("short"));
                continue;
            }
            wire.send(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
            );
            let chunk = format!("{:x}\r\n{EVENT}\r\n", EVENT.len());
            wire.send(chunk.repeat(EVENTS - 1));
            wire.send(format!(
                "{:x}\r\n{}\r\n",
                EVENT.len(),
                EVENT.replace("word", "last")
            ));
        }
    });
    let balancer = balance(engine.address());
    let mut stream = balancer.connect();
    send_as(&mut stream, "a", r#"{"stream":true,"prompt":"b"}"#, 0);
    assert_eq!(stream.read_head().second_word(), "200");
    let mut wire = balancer.connect();
    assert!(stream.try_read_until(b"last").is_some());
    // The stream goes on, and the key has used its tokens.
    let refused = ask_as(&mut wire, "a", r#"{"prompt":"b"}"#, 0);
    assert_eq!(refused.second_word(), "429");
    let mut wire = balancer.connect();
    assert_eq!(
        ask_as(&mut wire, "b", r#"{"prompt":"b"}"#, 0).second_word(),
        "200"
    );
}

#[test]
fn several_answers_of_a_request_count_before_they_are_there() {
    let engine = Member::start(|script, mut wire| {
        let request = script.read_request(&mut wire);
        if request.is_some_and(|request| request.text().contains("short")) {
            wire.send(ok_response("short"));
        }
        // All others wait for an answer.
        script.read_request(&mut wire);
    });
    let balancer = balance(engine.address());
    for (key, more, status) in [
        ("one", "", "200"),
        ("n", r#","n":50"#, "429"),
        ("best of", r#","n":1,"best_of":50"#, "429"),
        ("odd", r#","n":"2""#, "429"),
    ] {
        let mut waiting = balancer.connect();
        send_as(&mut waiting, key, &format!(r#"{{"prompt":"a"{more}}}"#), 0);
        engine.next_request();
        let mut wire = balancer.connect();
        let answer = ask_as(&mut wire, key, r#"{"prompt":"short"}"#, 0);
        assert_eq!(answer.second_word(), status, "{key}");
        engine.seen_events();
    }
}

#[test]
fn a_client_that_leaves_an_engine_before_the_answer_has_used_its_tokens() {
    let engine = Member::start(|script, mut wire| {
        let request = script.read_request(&mut wire);
        if request.is_some_and(|request| request.text().contains("short")) {
            wire.send(ok_response("short"));
        }
        // All others wait for an answer.
        script.read_request(&mut wire);
    });
    let balancer = balance(engine.address());
    let mut wire = balancer.connect();
    let long = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(6000));
    send_as(&mut wire, "a", &long, 0);
    engine.next_request();
    drop(wire);
    assert!(matches!(engine.next(), Seen::End(..)));
    let mut wire = balancer.connect();
    let refused = ask_as(&mut wire, "a", r#"{"prompt":"short"}"#, 0);
    assert_eq!(refused.second_word(), "429");
    let mut wire = balancer.connect();
    let answer = ask_as(&mut wire, "b", r#"{"prompt":"short"}"#, 0);
    assert_eq!(answer.second_word(), "200");
}

#[test]
fn pictures_count_little_in_all_interfaces() {
    // An engine that does not tell its tokens: the estimates count.
    let engine = Member::answering_with(|_| ok_response("seen"));
    let address = engine.address();
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [\"{address}\"]\nstrategy = \"inference\"\nhealth_check = false\n\
         [[rule.web.request_limits]]\nname = \"tokens\"\ntokens = \"20000/d\"\nkey = \"header:X-Key\"\n"
    ));
    let picture = "iVBOR/w0KGgo".repeat(20_000);
    let chat = |part: &str| format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#);
    let pictures = [
        chat(&format!(
            r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{picture}"}}}}"#
        )),
        chat(&format!(
            r#"{{"type":"input_audio","input_audio":{{"data":"{picture}","format":"wav"}}}}"#
        )),
        chat(&format!(
            r#"{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{picture}"}}}}"#
        )),
        format!(
            r#"{{"input":[{{"role":"user","content":[{{"type":"input_image","image_url":"data:image/png;base64,{picture}"}}]}}]}}"#
        ),
    ];
    let texts = [
        chat(&format!(
            r#"{{"type":"text","text":"data:image/png;base64,{picture}"}}"#
        )),
        chat(&format!(
            r#"{{"type":"document","source":{{"type":"text","data":"{picture}"}}}}"#
        )),
        format!(r#"{{"prompt":"data:image/png;base64,{picture}"}}"#),
    ];
    for chunk in [0, 50_000] {
        for (number, body) in pictures.iter().enumerate() {
            let key = format!("picture {number} {chunk}");
            let mut wire = balancer.connect();
            // Ten pictures have some 12,000 tokens with the answers.
            for _ in 0..10 {
                let answer = ask_as(&mut wire, &key, body, chunk);
                assert_eq!(answer.second_word(), "200", "{key}");
            }
            // But they have some.
            let mut refused = false;
            for _ in 0..20 {
                refused |= ask_as(&mut wire, &key, body, chunk).second_word() == "429";
            }
            assert!(refused, "{key}");
        }
        for (number, body) in texts.iter().enumerate() {
            let key = format!("text {number} {chunk}");
            let mut wire = balancer.connect();
            assert_eq!(ask_as(&mut wire, &key, body, chunk).second_word(), "200");
            assert_eq!(ask_as(&mut wire, &key, body, chunk).second_word(), "429");
        }
    }
}

#[test]
fn the_framing_of_chunks_takes_no_tokens() {
    let engine = Member::answering_with(|_| ok_response("seen"));
    let address = engine.address();
    // Bodies are longer than what is read of them, so that their size is not known before.
    let balancer = Balancer::start(&format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         members = [\"{address}\"]\nstrategy = \"inference\"\nhealth_check = false\n\
         [rule.web.inference]\nmax_prompt = \"4KiB\"\n\
         [[rule.web.request_limits]]\nname = \"tokens\"\ntokens = \"10000/d\"\nkey = \"header:X-Key\"\n"
    ));
    let body = format!(r#"{{"x":[{}1],"prompt":"a"}}"#, "1,".repeat(3000));
    for (key, chunk) in [("large", 3000), ("small", 2)] {
        // A refusal may end the connection.
        let answers: Vec<_> = (0..8)
            .map(|_| {
                let answer = ask_as(&mut balancer.connect(), key, &body, chunk);
                answer.second_word().to_owned()
            })
            .collect();
        let count = answers.iter().filter(|status| *status == "200").count();
        // Each has 1,500 tokens, and 200 of the answer; with their framing, small chunks would have 5,500.
        assert!(count >= 5, "{key} {answers:?}");
    }
}

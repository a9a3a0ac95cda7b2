//! Aliases of models, and questions for single models.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::python::python;
use evenkeel_e2e::wire::{Message, Wire};
use serde_json::{Value, json};

const ENGINE_NAME: &str = "Qwen/Qwen2.5-72B-Instruct";

/// A rule for the group `own`, with aliases, and more settings of `http`.
fn config(own: &[&Member], http: &str, more: &str) -> String {
    let addresses = own.iter().map(|member| format!("\"{}\"", member.address()));
    let addresses: Vec<_> = addresses.collect();
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         group = \"own\"\n[rule.web.http]\nretry_budget = 1.0\n{http}\n\
         [rule.web.http.model_aliases]\ngpt = \"{ENGINE_NAME}\"\n\"team/a\" = \"m\"\n\
         \"team/b-*\" = \"team/b-7\"\n\"team/b-9*\" = \"m\"\n\
         [group.own]\nmembers = [{}]\nhealth_check = false\nstrategy = \"inference\"\n{more}\n",
        addresses.join(", ")
    )
}

/// A member that answers with the content of the body.
fn echo() -> Member {
    Member::answering_with(|request| ok_response(&content_of(request)))
}

/// Content of a request's body, without its framing.
fn content_of(request: &Message) -> String {
    String::from_utf8(request.body.clone()).unwrap()
}

fn post(wire: &mut Wire, fields: &str, body: &str) -> Message {
    let length = body.len();
    wire.send(format!(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
    ));
    wire.read_response()
}

/// Sends a body in chunks of a size.
fn post_chunks(wire: &mut Wire, body: &str, size: usize) -> Message {
    wire.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for part in body.as_bytes().chunks(size) {
        wire.send([format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat());
    }
    wire.send("0\r\n\r\n");
    wire.read_response()
}

/// Bodies with an alias, and the same bodies for engines.
fn bodies() -> Vec<(String, String)> {
    let large = "x".repeat(200_000);
    let shapes = [
        "{\"model\":\"NAME\"}".to_owned(),
        " { \"stream\":false , \"model\" :\n\"NAME\", \"a\":1.50}".to_owned(),
        format!("{{\"model\":\"NAME\",\"prompt\":\"{large}\"}}"),
        format!("{{\"prompt\":\"{large}\",\"metadata\":{{\"model\":\"gpt\"}},\"model\":\"NAME\"}}"),
        // So short that the length gets a digit more.
        format!("{{\"p\":\"{}\",\"model\":\"NAME\"}}", "y".repeat(70)),
        format!("{{\"p\":\"{}\",\"model\":\"NAME\"}}", "y".repeat(972)),
    ];
    let named = ["gpt", "g\\u0070t"].map(|alias| {
        let shapes = shapes.iter();
        let both = shapes.map(move |shape| {
            (
                shape.replace("NAME", alias),
                shape.replace("NAME", ENGINE_NAME),
            )
        });
        both.collect::<Vec<_>>()
    });
    named.concat()
}

#[test]
fn the_engines_get_their_name_and_all_else_byte_for_byte() {
    let member = echo();
    let balancer = Balancer::start(&config(&[&member], "", ""));
    let mut wire = balancer.connect();
    let all = bodies();
    for (sent, expected) in &all {
        let shown = sent.get(..60).unwrap_or(sent);
        assert_eq!(post(&mut wire, "", sent).text(), expected, "{shown}");
        let (_, request) = member.next_request();
        assert_eq!(
            request.values("content-length"),
            [expected.len().to_string()]
        );
        for size in [1, 3, 7, 5_000] {
            if size == 1 && sent.len() > 5_000 {
                continue;
            }
            assert_eq!(
                post_chunks(&mut wire, sent, size).text(),
                expected,
                "{shown}"
            );
            let (_, request) = member.next_request();
            assert!(request.values("content-length").is_empty());
        }
    }
    // What is no alias passes as it is, on the same connection, and so do requests behind others in the same segment.
    for body in [
        "{\"model\":\"gpt-4\"}",
        "{\"model\":\"gp\"}",
        "{\"prompt\":\"gpt\"}",
        "gpt",
        "{\"stream\":true,\"stream\":true,\"model\":\"x\"}",
        "{\"model\":\"gpt",
    ] {
        assert_eq!(post(&mut wire, "", body).text(), body);
    }
    let one = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 15\r\n\r\n{\"model\":\"gpt\"}";
    wire.send([one, one].concat());
    let expected = format!("{{\"model\":\"{ENGINE_NAME}\"}}");
    assert_eq!(wire.read_response().text(), expected);
    assert_eq!(wire.read_response().text(), expected);
    let count =
        |result| balancer.rule_count("model_aliases_total", &format!("result=\"{result}\""));
    assert!(count("rewritten") > all.len() as u64);
    assert_eq!(count("refused"), 0);
}

#[test]
fn the_longest_beginning_of_a_name_is_an_alias_too() {
    let member = echo();
    let balancer = Balancer::start(&config(&[&member], "", ""));
    let mut wire = balancer.connect();
    for (asked, sent) in [
        ("team/b-8", "team/b-7"),
        ("team/b-", "team/b-7"),
        ("team/b-7", "team/b-7"),
        ("team/b-9", "m"),
        ("team/b-9-long", "m"),
        ("team/b", "team/b"),
    ] {
        let body = |name: &str| format!("{{\"model\":\"{name}\",\"prompt\":\"a\"}}");
        let answer = post(&mut wire, "", &body(asked));
        assert_eq!(content_of(&answer), body(sent), "{asked}");
    }
    let rewritten = "evenkeel_rule_model_aliases_total{rule=\"web\",result=\"rewritten\"}";
    assert_eq!(balancer.read_metric(rewritten), Some(4.0));
}

#[test]
fn http2_on_both_sides_and_retries_have_the_other_body() {
    let member = echo();
    let inner = Balancer::start_http(&[member.address()], "");
    let refused = AtomicUsize::new(0);
    let full = Member::answering_with(move |_| {
        refused.fetch_add(1, Ordering::Relaxed);
        "HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno".into()
    });
    let more = format!(
        "[group.h2]\nmembers = [\"{}\"]\nhealth_check = false\nmember_protocol = \"h2\"\n\
         [[rule.web.routes]]\npath = \"/h2/*\"\ngroup = \"h2\"\nmodels = {{}}\n",
        inner.address("web")
    );
    let balancer = Balancer::start(&config(&[&full, &member], "", &more));
    let mut wire = balancer.connect();
    let all = bodies();
    for (sent, expected) in &all {
        assert_eq!(post(&mut wire, "", sent).text(), expected);
    }
    let tried = full.seen_events().len();
    assert!(tried > 0, "the full engine was not asked");
    for (sent, expected) in &all {
        let length = sent.len();
        wire.send(format!(
            "POST /h2/a HTTP/1.1\r\nHost: a\r\nX-A: b\r\nContent-Length: {length}\r\n\r\n{sent}"
        ));
        assert_eq!(wire.read_response().text(), expected);
        wire.send("POST /h2/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        for part in sent.as_bytes().chunks(997) {
            wire.send([format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat());
        }
        wire.send("0\r\n\r\n");
        assert_eq!(wire.read_response().text(), expected);
    }
    if !are_installed(&["curl"]) {
        return;
    }
    for path in ["", "h2/a"] {
        let url = format!("http://{}/{path}", balancer.address("web"));
        for (sent, expected) in all.iter().filter(|(sent, _)| sent.len() < 100_000) {
            for field in ["A: b", "Content-Length:"] {
                let said = run_curl(&[
                    "--http2-prior-knowledge",
                    "-H",
                    field,
                    "--data-binary",
                    sent,
                    &url,
                ]);
                assert_eq!(said, *expected, "{path} {field}");
            }
        }
    }
}

#[test]
fn what_cannot_be_read_or_replaced_is_refused_with_what_to_do() {
    let member = echo();
    let copies = echo();
    let more = format!(
        "[group.own.inference]\nmax_prompt = \"64KiB\"\n[group.copies]\nmembers = [\"{}\"]\nhealth_check = false\n\
         [[rule.web.routes]]\npath = \"/none/*\"\nmodel_aliases = {{}}\n\
         [[rule.web.routes]]\npath = \"/no-digest\"\nrequest_fields = {{ remove = [\"Content-Digest\"] }}\n\
         [[rule.web.routes]]\npath = \"/copied\"\nmirror = {{ group = \"copies\" }}\n",
        copies.address()
    );
    let balancer = Balancer::start(&config(&[&member], "", &more));
    let alias = "{\"model\":\"gpt\"}".to_owned();
    let far = format!("{{\"p\":\"{}\",\"model\":\"gpt\"}}", "x".repeat(100_000));
    let cases = [
        (
            "",
            "{\"model\":\"x\",\"model\":\"gpt\"}",
            400,
            "ambiguous_model",
        ),
        ("", "{\"mod\\u0065l\":\"gpt\"}", 400, "ambiguous_model"),
        ("", "{\"model\":[\"gpt\"]}", 400, "ambiguous_model"),
        (
            "Content-Digest: sha-256=:YQ==:\r\n",
            &alias,
            400,
            "signed_body",
        ),
        ("content-md5: YQ==\r\n", &alias, 400, "signed_body"),
        ("Content-Encoding: gzip\r\n", &alias, 415, "compressed_body"),
        (
            "Expect: 100-continue\r\n",
            &alias,
            417,
            "expectation_failed",
        ),
        ("", &far, 413, "model_too_far"),
    ];
    for (fields, body, status, code) in cases {
        let mut wire = balancer.connect();
        let length = body.len();
        let head =
            format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {length}\r\n\r\n");
        wire.send(head);
        if status != 417 {
            wire.try_send(body);
        }
        let answer = wire.read_response();
        assert_eq!(answer.second_word(), status.to_string(), "{code}");
        let error: Value = serde_json::from_str(answer.text()).unwrap();
        assert_eq!(error["error"]["code"], code);
        assert_eq!(error["error"]["param"], "model");
        assert!(error["error"]["message"].as_str().unwrap().len() > 20);
    }
    let refused = balancer.rule_count("model_aliases_total", "result=\"refused\"");
    assert_eq!(refused, 8);
    assert!(member.seen_events().is_empty(), "a member got a request");
    let mut wire = balancer.connect();
    let mut ask = |path: &str, fields: &str, body: &str| {
        let length = body.len();
        wire.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
        ));
        wire.read_response().text().to_owned()
    };
    let expected = format!("{{\"model\":\"{ENGINE_NAME}\"}}");
    assert_eq!(ask("/none/a", "", &alias), alias);
    let digest = "Content-Digest: sha-256=:YQ==:\r\n";
    assert_eq!(ask("/none/a", digest, &alias), alias);
    assert_eq!(ask("/", digest, "{\"model\":\"x\"}"), "{\"model\":\"x\"}");
    assert_eq!(ask("/no-digest", digest, &alias), expected);
    // The name comes first, and the body is longer than what is read before.
    let long = format!("{{\"model\":\"gpt\",\"p\":\"{}\"}}", "x".repeat(100_000));
    assert_eq!(
        ask("/", "", &long),
        long.replacen("\"gpt\"", &format!("\"{ENGINE_NAME}\""), 1)
    );
    assert_eq!(ask("/copied", "", &alias), expected);
    let (_, copy) = copies.next_request();
    assert_eq!(content_of(&copy), expected);
    assert_eq!(copy.values("content-length"), [expected.len().to_string()]);
}

/// A member that lists models.
fn lister(data: &'static str) -> Member {
    Member::answering_with(move |_| {
        ok_response(&format!("{{\"object\":\"list\",\"data\":[{data}]}}"))
    })
}

#[test]
fn lists_have_aliases_and_single_models_come_from_their_groups() {
    let own = lister(
        "{\"id\":\"Qwen/Qwen2.5-72B-Instruct\",\"object\":\"model\",\"max_model_len\":1.50},{\"id\":\"gpt\"}",
    );
    let big = lister("{\"id\":\"m\",\"owned_by\":\"big\"},{\"id\":\"llama\"}");
    let more = format!(
        "[group.big]\nmembers = [\"{}\"]\nhealth_check = false\n\
         [[rule.web.routes]]\npath = \"/team/*\"\nrewrite_prefix = \"/\"\n",
        big.address()
    );
    let http = "models = { m = \"big\", \"llama*\" = \"big\" }\nambiguous_paths = true";
    let balancer = Balancer::start(&config(&[&own], http, &more));
    let mut wire = balancer.connect();
    let mut get = |path: &str| {
        wire.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = wire.read_response();
        let body: Value = serde_json::from_str(answer.text()).unwrap();
        (answer.second_word().to_owned(), body)
    };
    let (status, list) = get("/v1/models");
    assert_eq!(status, "200");
    let entries = list["data"].as_array().unwrap().iter();
    let ids: Vec<_> = entries.map(|entry| entry["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [ENGINE_NAME, "m", "llama", "gpt", "team/a"]);
    for path in ["Qwen/Qwen2.5-72B-Instruct", "Qwen%2fQwen2.5-72B-Instruct"] {
        let (status, model) = get(&format!("/v1/models/{path}"));
        assert_eq!(status, "200", "{path}");
        assert_eq!(model["id"], ENGINE_NAME);
        assert_eq!(model["max_model_len"], 1.5);
    }
    let (status, model) = get("/v1/models/gpt");
    assert_eq!(status, "200");
    assert_eq!(
        model,
        json!({"id": "gpt", "object": "model", "max_model_len": 1.5})
    );
    let (_, model) = get("/team/v1/models/team%2Fa?x=y");
    assert_eq!(model, json!({"id": "team/a", "owned_by": "big"}));
    for name in ["none", "llama-3", "m%20", "%3Cb%3E%22"] {
        let (status, error) = get(&format!("/v1/models/{name}"));
        assert_eq!(status, "404", "{name}");
        assert_eq!(error["error"]["code"], "model_not_found");
    }
    // Members are asked for their lists.
    let asked = own.seen_events().len();
    assert!(asked >= 6, "{asked}");
    let (_, request) = big.next_request();
    assert_eq!(request.second_word(), "/v1/models");
    if let Some(mut client) = python("models_client.py", "openai") {
        let url = format!("http://{}/v1", balancer.address("web"));
        let output = client
            .args([&url, "none", ENGINE_NAME, "gpt", "none"])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let said = String::from_utf8_lossy(&output.stdout);
        let expected = format!(
            "models {ENGINE_NAME} m llama gpt team/a\nmodel {ENGINE_NAME}\nmodel gpt\nNotFoundError 404 model_not_found\n"
        );
        assert_eq!(said, expected);
    }
}

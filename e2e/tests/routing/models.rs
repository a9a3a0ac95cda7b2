//! Groups by the name of the model in the body of requests.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::language_model::LanguageModel;
use evenkeel_e2e::member::{Member, Seen, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::python::python;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};
use serde_json::json;

/// Groups of one member each, with these settings.
fn groups<'a>(members: impl IntoIterator<Item = (&'a str, &'a Member, &'a str)>) -> String {
    let groups = members.into_iter().map(|(name, member, settings)| {
        format!(
            "[group.{name}]\nmembers = [\"{}\"]\nhealth_check = false\n{settings}\n",
            member.address()
        )
    });
    groups.collect()
}

/// A rule for the group `own`.
fn config(models: &str, more: &str) -> String {
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[rule.web]\nlisten = \"127.0.0.1:0\"\n\
         group = \"own\"\n[rule.web.http]\nretry_budget = 1.0\nmodels = {models}\n{more}\n"
    )
}

/// A member that answers with its name.
fn named(name: &'static str) -> Member {
    Member::answering_with(move |_| ok_response(name))
}

fn send(wire: &mut Wire, path: &str, fields: &str, body: &str) -> Message {
    let length = body.len();
    wire.send(format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
    ));
    wire.read_response()
}

/// Name of the member that answers a request with this body.
fn ask(wire: &mut Wire, body: &str) -> String {
    let answer = send(wire, "/v1/completions", "", body);
    assert_eq!(answer.second_word(), "200", "{body}");
    answer.text().to_string()
}

#[test]
fn the_name_of_the_model_leads_to_the_group_and_what_is_not_certain_to_the_own_one() {
    let members = ["own", "big", "small", "rest"].map(|name| (name, named(name)));
    let settings = [
        "strategy = \"inference\"",
        "strategy = \"inference\"",
        "strategy = \"round_robin\"",
        "strategy = \"inference\"\n[group.rest.inference]\nmax_prompt = \"64KiB\"",
    ];
    let each = members.iter().zip(settings);
    let each = each.map(|((name, member), settings)| (*name, member, settings));
    let models = "{ \"llama-*\" = \"big\", \"llama-1b\" = \"small\", \"org/x\" = \"small\", \"llama-3*\" = \"rest\" }";
    let logs = Folder::new();
    let log = logs.join("access.log").display().to_string();
    let log = format!("[access_log]\noutput = {log:?}\nformat = \"json\"\n");
    let balancer = Balancer::start(&config(models, &(groups(each) + &log)));
    let mut wire = balancer.connect();
    let long = "m".repeat(129);
    let large = "x".repeat(300_000);
    let too_large = "x".repeat(2 << 20);
    let cases = [
        (json!({"model": "llama-70b"}).to_string(), "big"),
        (
            json!({"messages": [{"role": "user", "content": large}], "model": "llama-1b"})
                .to_string(),
            "small",
        ),
        (
            json!({"model": "llama-3", "stream": false}).to_string(),
            "rest",
        ),
        (r#"{"model":"org\/x","prompt":"a"}"#.to_string(), "small"),
        (
            r#"{"prompt":"a","model":"\u006clama-7b"}"#.to_string(),
            "big",
        ),
        (json!({"model": "gpt"}).to_string(), "own"),
        (json!({"prompt": "llama-3"}).to_string(), "own"),
        ("model=llama-3".to_string(), "own"),
        (r#"{"model":"llama-3","model":"gpt"}"#.to_string(), "own"),
        (
            r#"{"mod\u0065l":"gpt","model":"llama-3"}"#.to_string(),
            "own",
        ),
        (json!({"model": long}).to_string(), "own"),
        (r#"{"model":"llama-\x"}"#.to_string(), "own"),
        (
            json!({"messages": too_large, "model": "llama-3"}).to_string(),
            "own",
        ),
        (
            json!({"messages": "a", "model": "llama-3", "user": too_large}).to_string(),
            "rest",
        ),
    ];
    for (body, expected) in &cases {
        let shown = body.get(..80).unwrap_or(body);
        assert_eq!(ask(&mut wire, body), *expected, "{shown}");
        // In chunks, and in another connection.
        let mut wire = balancer.connect();
        wire.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        for part in body.as_bytes().chunks(10_007) {
            wire.send([format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat());
        }
        wire.send("0\r\n\r\n");
        assert_eq!(wire.read_response().text(), *expected, "{shown}");
    }
    let fields = "Content-Encoding: gzip\r\n";
    let compressed = send(&mut wire, "/", fields, &cases[0].0);
    assert_eq!(compressed.text(), "own");
    wire.send("GET /v1/files HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(wire.read_response().text(), "own");
    let count = |result| balancer.rule_count("models_total", &format!("result=\"{result}\""));
    let results = [
        "matched",
        "fallback",
        "other",
        "missing",
        "ambiguous",
        "unknown",
        "compressed",
        "unread",
    ];
    assert_eq!(results.map(count), [12, 0, 2, 4, 4, 4, 1, 2]);
    // Members get the bodies as clients have sent them.
    let (name, member) = &members[3];
    assert_eq!(*name, "rest");
    let (_, request) = member.next_request();
    assert_eq!(String::from_utf8_lossy(&request.body), cases[2].0);
    // The log has the group, and the explanation the models.
    let served = |group: &str| {
        let text = std::fs::read_to_string(logs.join("access.log")).unwrap_or_default();
        text.matches(&format!("\"group\":\"{group}\"")).count()
    };
    wait_until("the log is written", || served("own") == 18);
    assert_eq!(["big", "small", "rest"].map(served), [4, 4, 4]);
    let explained = balancer.run_ctl("explain small").unwrap();
    let note = "requests of rule \"web\" for the models llama-1b, org/x";
    assert!(explained.contains(note), "{explained}");
}

#[test]
fn another_group_gets_the_request_if_no_member_of_the_first_works() {
    let members = ["own", "big", "small"].map(|name| (name, named(name)));
    let each = members.iter().map(|(name, member)| (*name, member, ""));
    let models = "{ a = [\"big\", \"small\", \"own\"], b = \"big\" }";
    let balancer = Balancer::start(&config(models, &groups(each)));
    let mut wire = balancer.connect();
    let (a, b) = (r#"{"model":"a"}"#, r#"{"model":"b"}"#);
    assert_eq!(ask(&mut wire, a), "big");
    let at = members[1].1.address();
    balancer.run_ctl(&format!("maintenance big {at}")).unwrap();
    assert_eq!(ask(&mut wire, a), "small");
    // A model of one group has no other one.
    let refused = send(&mut wire, "/", "", b);
    assert_eq!(refused.second_word(), "503");
    balancer.run_ctl("maintain small on").unwrap();
    let mut wire = balancer.connect();
    wait_until("the worker knows", || ask(&mut wire, a) == "own");
    balancer.run_ctl(&format!("ready big {at}")).unwrap();
    assert_eq!(ask(&mut wire, a), "big");
    assert_eq!(ask(&mut wire, b), "big");
    assert!(balancer.rule_count("models_total", "result=\"fallback\"") >= 2);
    // The maintenance of the own group is for the requests that stay there.
    balancer.run_ctl("maintain own on").unwrap();
    wait_until("the worker knows", || {
        let mut wire = balancer.connect();
        send(&mut wire, "/", "", "{}").second_word() == "503"
    });
    let mut wire = balancer.connect();
    assert_eq!(ask(&mut wire, a), "big");
    balancer.run_ctl("maintain big on").unwrap();
    wait_until("the worker knows", || {
        let mut wire = balancer.connect();
        let answer = send(&mut wire, "/", "", b);
        answer.text().contains("maintenance")
    });
}

#[test]
fn routes_have_models_of_their_own_and_groups_their_clients_and_keys() {
    let members = ["own", "other"].map(|name| (name, named(name)));
    let each = members.iter().map(|(name, member)| (*name, member, ""));
    let several: [_; 4] = std::array::from_fn(|number| {
        Member::answering_with(move |_| ok_response(&number.to_string()))
    });
    let several = several
        .each_ref()
        .map(|member| format!("\"{}\"", member.address()));
    let several = several.join(", ");
    let more = format!(
        "[[rule.web.routes]]\npath = \"/other\"\nmodels = {{ a = \"other\" }}\n\
         [[rule.web.routes]]\npath = \"/none\"\nmodels = {{}}\n\
         [[rule.web.routes]]\npath = \"/same\"\n\
         [group.keys]\nmembers = [{several}]\nstrategy = \"hash\"\nhash_key = \"header:X-User\"\nhealth_check = false\n\
         [group.sticky]\nmembers = [{several}]\nsticky = true\nhealth_check = false\n{}",
        groups(each)
    );
    let balancer = Balancer::start(&config("{ a = \"keys\", b = \"sticky\" }", &more));
    let mut wire = balancer.connect();
    let (a, b) = (r#"{"model":"a"}"#, r#"{"model":"b"}"#);
    for (path, expected) in [("/other", "other"), ("/none", "own")] {
        assert_eq!(send(&mut wire, path, "", a).text(), expected);
        assert_eq!(send(&mut wire, path, "", b).text(), "own");
    }
    // The same user goes to the same member, over all connections.
    let mut used = std::collections::HashSet::new();
    for user in 0..16 {
        let field = format!("X-User: {user}\r\n");
        let home = send(&mut wire, "/same", &field, a).text().to_owned();
        for path in ["/same", "/"] {
            let mut wire = balancer.connect();
            assert_eq!(send(&mut wire, path, &field, a).text(), home);
        }
        used.insert(home);
    }
    assert!(used.len() > 1, "{used:?}");
    let first = send(&mut wire, "/", "", b);
    let cookie = first.values("set-cookie")[0].split(';').next().unwrap();
    let field = format!("Cookie: {cookie}\r\n");
    for _ in 0..8 {
        let mut wire = balancer.connect();
        let again = send(&mut wire, "/", &field, b);
        assert_eq!(again.text(), first.text());
        assert!(again.values("set-cookie").is_empty(), "{}", again.head);
        let other = send(&mut wire, "/", &field, a);
        assert!(other.values("set-cookie").is_empty(), "{}", other.head);
    }
}

#[test]
fn engines_are_asked_again_and_other_members_are_not() {
    let engines: [_; 2] = std::array::from_fn(|_| LanguageModel::start());
    let refusing: [_; 2] = std::array::from_fn(|_| {
        Member::answering_with(|_| "HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno".into())
    });
    let own = Member::start(|_, mut wire| {
        while let Some(head) = wire.try_read_head() {
            if !head.values("expect").is_empty() {
                wire.send("HTTP/1.1 100 Continue\r\n\r\n");
            }
            let length = head.values("content-length")[0].parse().unwrap();
            wire.try_read_exact(length).unwrap();
            wire.send(ok_response("own"));
        }
    });
    let more = format!(
        "[group.own]\nmembers = [\"{}\"]\nhealth_check = false\n\
         [group.engines]\nmembers = [\"{}\", \"{}\"]\nstrategy = \"inference\"\nhealth_check = false\n\
         [group.others]\nmembers = [\"{}\", \"{}\"]\nhealth_check = false\nejection = {{ min_requests = 1000 }}\n",
        own.address(),
        engines[0].address(),
        engines[1].address(),
        refusing[0].address(),
        refusing[1].address(),
    );
    let models = "{ small = \"engines\", \"o*\" = \"others\" }";
    let balancer = Balancer::start(&config(models, &more));
    engines[0].refuse_with(503);
    let mut wire = balancer.connect();
    for number in 0..8 {
        let prompt = format!("{number} ").repeat(2000);
        let body = json!({"prompt": prompt, "model": "small"}).to_string();
        let answer = send(&mut wire, "/v1/completions", "", &body);
        assert_eq!(answer.second_word(), "200", "{}", answer.head);
    }
    assert_eq!(engines[1].answered(), 8);
    let read = "evenkeel_inference_prompts_total{group=\"engines\",read=\"whole\"}";
    assert_eq!(balancer.read_metric(read), Some(8.0));
    for _ in 0..4 {
        let answer = send(&mut wire, "/", "", r#"{"prompt":"a","model":"other"}"#);
        assert_eq!(answer.second_word(), "503");
    }
    let seen = refusing.iter().flat_map(Member::seen_events);
    let asked = seen.filter(|seen| matches!(seen, Seen::Request(..)));
    assert_eq!(asked.count(), 4);
    // Over HTTP/2, and with a client that waits for a 100 (Continue), which chooses by no model.
    if !are_installed(&["curl"]) {
        return;
    }
    let url = format!("http://{}/", balancer.address("web"));
    let post = |fields: &str, body: &str| {
        run_curl(&["--http2-prior-knowledge", "-H", fields, "-d", body, &url])
    };
    assert_eq!(post("A: b", r#"{"model":"other"}"#), "no");
    assert_eq!(post("A: b", r#"{"model":"unknown"}"#), "own");
    assert!(post("A: b", r#"{"model":"small","prompt":"a"}"#).contains("word"));
    let expects = "Expect: 100-continue\r\n";
    wire.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\n{expects}Content-Length: 17\r\n\r\n"
    ));
    assert_eq!(wire.read_head().second_word(), "100");
    wire.send(r#"{"model":"other"}"#);
    assert_eq!(wire.read_response().text(), "own");
}

/// A member that lists these models to clients with the key `right`, in one piece or in chunks.
fn lister(data: &'static str, in_chunks: bool) -> Member {
    Member::answering_with(move |request| {
        if request.values("authorization") != ["Bearer right"] {
            return "HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno".into();
        }
        let body = format!("{{\"object\": \"list\", \"data\": [{data}]}}");
        if !in_chunks {
            return ok_response(&body);
        }
        let chunks = body.as_bytes().chunks(7);
        let chunks = chunks.map(|part| {
            let text = String::from_utf8_lossy(part);
            format!("{:x}\r\n{text}\r\n", part.len())
        });
        let chunks: String = chunks.collect();
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
    })
}

#[test]
fn the_models_of_all_groups_are_listed_though_some_groups_do_not_answer() {
    let own = lister(
        r#"{"id":"gpt","owned_by":"own"}, {"id":"llama-70b"}, {"id":"embed"}"#,
        false,
    );
    // The first entry of a model stays, as the engine has written it.
    let big = lister(
        r#"{"max_model_len":1.50,"id":"llama-70b"},{"id":"gpt","owned_by":"big"}"#,
        true,
    );
    let small = lister(r#"{"id":"llama-70b"},{"id":"llama-1b"}"#, true);
    let silent = Member::start(|_, _| {});
    let huge = Member::answering_with(|_| {
        let text = "x".repeat(2 << 20);
        ok_response(&format!(
            "{{\"data\":[{{\"id\":\"huge\",\"x\":\"{text}\"}}]}}"
        ))
    });
    let odd = named("{\"data\":7}");
    let out = lister(r#"{"id":"out"}"#, false);
    let members = [
        ("own", &own, "strategy = \"inference\""),
        ("big", &big, ""),
        ("small", &small, ""),
        ("silent", &silent, ""),
        ("huge", &huge, ""),
        ("odd", &odd, ""),
        ("out", &out, ""),
    ];
    let models = "{ \"llama-*\" = [\"big\", \"small\"], embed = \"silent\", huge = \"huge\", odd = \"odd\", out = \"out\" }";
    let routes = "[[rule.web.routes]]\npath = \"/plain/*\"\nrewrite_prefix = \"/\"\nmodels = {}\n\
                  [[rule.web.routes]]\npath = \"/team/*\"\nrewrite_prefix = \"/\"\n";
    let balancer = Balancer::start(&config(models, &(routes.to_owned() + &groups(members))));
    balancer
        .run_ctl(&format!("maintenance out {}", out.address()))
        .unwrap();
    let expected = r#"{"object":"list","data":[{"id":"gpt","owned_by":"own"},{"max_model_len":1.50,"id":"llama-70b"},{"id":"llama-1b"}]}"#;
    let mut wire = balancer.connect();
    for path in ["/v1/models", "/v1/models?a=b", "/team/v1/models"] {
        wire.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer right\r\nAccept-Encoding: gzip\r\n\r\n"
        ));
        let answer = wire.read_response();
        assert_eq!(answer.second_word(), "200", "{path}");
        assert_eq!(answer.values("content-type"), ["application/json"]);
        assert_eq!(answer.text().trim_end(), expected, "{path}");
        for member in [&own, &big, &small] {
            let (_, request) = member.next_request();
            assert!(
                request.second_word().starts_with("/v1/models"),
                "{}",
                request.head
            );
            assert_eq!(request.values("authorization"), ["Bearer right"]);
            assert!(request.values("accept-encoding").is_empty());
        }
    }
    let count = |result| balancer.rule_count("model_lists_total", &format!("result=\"{result}\""));
    assert_eq!(["joined", "no_member", "failed"].map(count), [9, 3, 9]);
    // Without the table, and for other questions, one group is asked.
    let fields = "Authorization: Bearer right";
    for request in [
        "GET /plain/v1/models",
        "GET /plain/v1/models/gpt",
        "DELETE /v1/models",
    ] {
        wire.send(format!("{request} HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n"));
        let answer = wire.read_response();
        assert!(answer.text().contains("embed"), "{request}");
    }
    if are_installed(&["curl"]) {
        let url = format!("http://{}/v1/models", balancer.address("web"));
        let listed = run_curl(&["--http2-prior-knowledge", "-H", fields, &url]);
        assert_eq!(listed.trim_end(), expected);
    }
    for (key, expected) in [
        ("right", "models gpt llama-70b llama-1b"),
        ("wrong", "AuthenticationError 401 invalid_api_key"),
    ] {
        assert_eq!(
            list_with_client(&balancer, key)
                .as_deref()
                .unwrap_or(expected),
            expected
        );
    }
}

/// Output of OpenAI's client that lists the models; `None` if the client is not installed.
fn list_with_client(balancer: &Balancer, key: &str) -> Option<String> {
    let mut client = python("models_client.py", "openai")?;
    let url = format!("http://{}/v1", balancer.address("web"));
    let output = client.args([&url, key]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said = String::from_utf8_lossy(&output.stdout);
    Some(said.trim_end().to_owned())
}

#[test]
fn a_client_gets_an_error_if_no_group_lists_models() {
    let members = ["own", "big"].map(|name| (name, named(name)));
    let each = members.iter().map(|(name, member)| (*name, member, ""));
    let balancer = Balancer::start(&config("{ a = \"big\" }", &groups(each)));
    let mut wire = balancer.connect();
    let question = "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n";
    wire.send(question);
    let answer = wire.read_response();
    assert_eq!(answer.second_word(), "503");
    assert_eq!(answer.values("retry-after"), ["1"]);
    let error: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(error["error"]["type"], "server_error");
    let expected = "InternalServerError 503 service_unavailable";
    let said = list_with_client(&balancer, "none");
    assert_eq!(said.as_deref().unwrap_or(expected), expected);
    // The maintenance of one group is not that of all.
    balancer.run_ctl("maintain own on").unwrap();
    balancer.run_ctl("maintain big on").unwrap();
    wait_until("the worker knows", || {
        let mut wire = balancer.connect();
        wire.send(question);
        wire.read_response().text().contains("maintenance")
    });
    balancer.run_ctl("maintain big off").unwrap();
    wait_until("the worker knows", || {
        let mut wire = balancer.connect();
        wire.send(question);
        wire.read_response().text().contains("server_error")
    });
}

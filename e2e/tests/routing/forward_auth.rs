//! Rules and routes that ask a group whether requests may pass.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, Seen, Signal, ok_response};
use evenkeel_e2e::process::{are_installed, run_curl};
use evenkeel_e2e::server::{self, Server};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Message;

/// The protocols of clients, as options of curl.
const CLIENTS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

const AUTH: &str = "{ group = \"login\", path = \"/check?who\", user_field = \"X-User\", \
                    copy_fields = [\"X-Groups\"], timeout = \"60s\" }";

/// A rule that asks the group `login`. `lines` follow in its table.
fn config(member: SocketAddr, login: &[SocketAddr], auth: &str, lines: &str) -> String {
    let login: Vec<_> = login.iter().map(|at| format!("\"{at}\"")).collect();
    let login = login.join(", ");
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[group.login]\nmembers = [{login}]\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"{member}\"]\nauth = {auth}\n{lines}\n"
    )
}

/// A member that answers with the fields that the other one may have said, and how long the body is.
fn echo() -> Member {
    Member::answering_with(|request| {
        let of = |name| request.values(name).join(",");
        let (user, groups) = (of("x-user"), of("x-groups"));
        ok_response(&format!("{user}|{groups}|{}", request.body.len()))
    })
}

/// A member that lets the requests of a session pass, sends others to where they log in, and refuses
/// those that say that they want no page.
fn login() -> Member {
    Member::answering_with(answer)
}

fn answer(question: &Message) -> String {
    let session = question.values("cookie").join("; ");
    match session.strip_prefix("session=") {
        Some("anna") => "HTTP/1.1 103 Early Hints\r\nX-User: nobody\r\n\r\n\
             HTTP/1.1 200 OK\r\nX-User: anna\r\nx-groups: a\r\nX-Groups: b, c\r\nX-Other: 1\r\n\
             Content-Length: 2\r\n\r\nok"
            .into(),
        // Nobody is named, and there is no body.
        Some("guest") => "HTTP/1.1 204 No Content\r\n\r\n".into(),
        Some("broken") => "HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\noops".into(),
        _ if question.values("accept") == ["text/plain"] => {
            "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"x\"\r\n\
             Transfer-Encoding: chunked\r\n\r\n4\r\nwho?\r\n0\r\n\r\n"
                .into()
        }
        _ => "HTTP/1.1 302 Found\r\nLocation: https://login.example.org/?a\r\n\
             Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 0\r\n\r\n"
            .into(),
    }
}

/// Status, fields and body of what curl gets.
fn ask(balancer: &Balancer, client: &str, path: &str, more: &[&str]) -> (String, String, String) {
    let url = format!("http://{}{path}", balancer.address("web"));
    let arguments = [&[client, "-D", "-"], more, &[&url]].concat();
    let text = run_curl(&arguments);
    let (fields, body) = text.split_once("\r\n\r\n").unwrap();
    let status = fields.split(' ').nth(1).unwrap().to_owned();
    (status, fields.to_lowercase(), body.to_owned())
}

fn count(balancer: &Balancer, result: &str) -> u64 {
    balancer.rule_count("auth_total", &format!("result=\"{result}\""))
}

/// The requests that a member has seen.
fn requests(member: &Member) -> Vec<Message> {
    let seen = member.seen_events().into_iter();
    let requests = seen.filter_map(|seen| match seen {
        Seen::Request(_, request) => Some(request),
        Seen::End(..) => None,
    });
    requests.collect()
}

#[test]
fn a_group_says_which_requests_pass_and_what_the_others_get() {
    if !are_installed(&["curl"]) {
        return;
    }
    let (member, login) = (echo(), login());
    let logs = Folder::new();
    let log = logs.join("access.log").display().to_string();
    let routes = "[[rule.web.routes]]\npath = \"/open/*\"\nauth = false\n\
        [[rule.web.routes]]\npath = \"/old/*\"\nredirect = \"/new{path}\"\n";
    let lines = format!("{routes}[access_log]\noutput = {log:?}");
    let text = config(member.address(), &[login.address()], AUTH, &lines);
    let balancer = Balancer::start(&text);
    for client in CLIENTS {
        // What a client says of itself counts neither for the question nor for the member.
        let forged = [
            "-H",
            "X-User: root",
            "-H",
            "x_user: root",
            "-H",
            "X-User-Id: 0",
            "-H",
            "X-Groups: wheel",
            "-H",
            "X-Forwarded-Uri: /open/x",
            "-H",
            "X_Forwarded_Method: GET",
            "-H",
            "X-Forwarded-For: 192.0.2.1",
            "-H",
            "X-Forwarded-Host: other",
        ];
        let plain = [
            "-H",
            "Cookie: session=anna",
            "-H",
            "Range: bytes=0-1",
            "-H",
            "If-None-Match: \"a\"",
            "-H",
            "X-Mine: 1",
            "-u",
            "a:b",
            "-X",
            "DELETE",
            "-d",
            "some",
        ];
        let more = [&forged[..], &plain].concat();
        let (status, _, body) = ask(&balancer, client, "/a%20b?c=d", &more);
        assert_eq!((&*status, &*body), ("200", "anna|a,b, c|4"), "{client}");
        let (_, question) = login.next_request();
        assert_eq!(question.start_line(), "GET /check?who HTTP/1.1");
        let host = balancer.address("web").to_string();
        for (name, values) in [
            ("host", &[&*host][..]),
            ("x-forwarded-method", &["DELETE"]),
            ("x-forwarded-uri", &["/a%20b?c=d"]),
            ("x-forwarded-host", &[&*host]),
            ("x-forwarded-proto", &["http"]),
            ("x-forwarded-for", &["127.0.0.1"]),
            ("x_forwarded_method", &[]),
            ("x-user", &[]),
            ("x_user", &[]),
            ("x-user-id", &[]),
            ("x-groups", &[]),
            ("content-length", &[]),
            ("transfer-encoding", &[]),
            ("connection", &[]),
            ("range", &[]),
            ("if-none-match", &[]),
            ("cookie", &["session=anna"]),
            ("x-mine", &["1"]),
            ("authorization", &["Basic YTpi"]),
        ] {
            assert_eq!(question.values(name), values, "{client} {name}");
        }
        let (_, got) = member.next_request();
        assert_eq!(got.start_line(), "DELETE /a%20b?c=d HTTP/1.1");
        assert_eq!(got.values("x-user"), ["anna"]);
        assert_eq!(got.values("x-groups"), ["a", "b, c"]);
        for name in [
            "x_user",
            "x-user-id",
            "x-other",
            "x-forwarded-uri",
            "x-forwarded-method",
        ] {
            assert_eq!(got.values(name), [""; 0], "{name}");
        }
        assert_eq!(got.values("range"), ["bytes=0-1"]);

        let guest = ["-H", "Cookie: session=guest", "-H", "X-User: root"];
        assert_eq!(ask(&balancer, client, "/", &guest).2, "||0");
        assert_eq!(requests(&member).len(), 1);

        // All others get what the group has said, whatever they send.
        let (status, fields, body) = ask(&balancer, client, "/x", &["-H", "Accept: text/plain"]);
        assert_eq!((&*status, &*body), ("401", "who?"));
        assert!(
            fields.contains("www-authenticate: bearer realm=\"x\""),
            "{fields}"
        );
        let (status, fields, _) = ask(&balancer, client, "/x", &["-d", "some"]);
        assert_eq!(status, "302");
        for field in [
            "location: https://login.example.org/?a",
            "set-cookie: a=1",
            "set-cookie: b=2",
        ] {
            assert!(fields.contains(field), "{fields}");
        }
        let more = ["-H", "Cookie: session=broken"];
        let (status, _, body) = ask(&balancer, client, "/x", &more);
        assert_eq!((&*status, &*body), ("500", "oops"));
        // What is answered here is not for everybody, either.
        assert_eq!(
            ask(&balancer, client, "/old/x", &["-H", "Cookie: x"]).0,
            "302"
        );
        let more = ["-H", "Cookie: session=anna"];
        let (status, fields, _) = ask(&balancer, client, "/old/x", &more);
        assert!(
            status == "302" && fields.contains("location: /new/old/x"),
            "{fields}"
        );
        assert_eq!(requests(&member), []);
        // The route beside asks nobody, and the fields cannot be forged there, either.
        let before = requests(&login).len();
        assert!(before > 0);
        assert_eq!(ask(&balancer, client, "/open/x", &forged).2, "||0");
        assert_eq!(requests(&login).len(), 0);
        requests(&member);
    }
    assert_eq!(
        (count(&balancer, "passed"), count(&balancer, "refused")),
        (6, 8)
    );
    assert_eq!(count(&balancer, "failed"), 0);
    // The group is measured as any other one, and says why it is asked.
    let at = login.address();
    let series = "evenkeel_member_requests_total{group=\"login\",";
    let series = format!("{series}member=\"{at}\",outcome=\"success\"}}");
    assert_eq!(balancer.read_metric(&series), Some(12.0));
    let explained = balancer.run_ctl("explain login").unwrap();
    assert!(
        explained.contains("whether requests of rule \"web\" may pass"),
        "{explained}"
    );
    wait_until("the log has all", || {
        let log = logs.text("access.log");
        let refused = log.matches("\"end\":\"unauthorized\"").count();
        let asked = format!("\"group\":\"login\",\"member\":\"{}\"", login.address());
        assert!(!log.contains("root") && !log.contains("nobody"), "{log}");
        let users = log.matches("\"user\":\"anna\"").count();
        refused == 8 && log.matches(&asked).count() == 8 && users == 4
    });
}

#[test]
fn clients_without_a_login_are_led_to_the_page() {
    if !are_installed(&["curl"]) {
        return;
    }
    let (member, login) = (echo(), login());
    let page = "https://login.example.org/start?rd={scheme}://{host}{port}{escaped_uri}";
    let auth = AUTH.replace(" }", &format!(", login_page = \"{page}\" }}"));
    let balancer = Balancer::start(&config(member.address(), &[login.address()], &auth, ""));
    for client in CLIENTS {
        let plain = ["-H", "Accept: text/plain"];
        let with_body = [plain[0], plain[1], "-d", "some"];
        for more in [&plain[..], &with_body] {
            let (status, fields, body) = ask(&balancer, client, "/x?a=b%20c&d=/~", more);
            assert_eq!(status, "302", "{fields}");
            let from = format!("http://{}", balancer.address("web"));
            let rd = format!("{from}%2fx%3fa%3db%2520c%26d%3d%2f~\r\n");
            let location = format!("location: https://login.example.org/start?rd={rd}");
            assert!(format!("{fields}\r\n").contains(&location), "{fields}");
            assert!(!fields.contains("www-authenticate") && !body.contains("who?"));
        }
        // What the group says otherwise is for the client.
        let (status, fields, _) = ask(&balancer, client, "/x", &[]);
        assert_eq!(status, "302");
        assert!(fields.contains("location: https://login.example.org/?a"));
        let broken = ["-H", "Cookie: session=broken"];
        assert_eq!(ask(&balancer, client, "/x", &broken).0, "500");
        let anna = ["-H", "Cookie: session=anna"];
        assert_eq!(ask(&balancer, client, "/x", &anna).0, "200");
    }
    assert_eq!(requests(&member).len(), 2);
    assert_eq!(
        (count(&balancer, "passed"), count(&balancer, "refused")),
        (2, 8)
    );
}

#[test]
fn connections_go_on_after_answers_of_both_kinds() {
    let (member, login) = (echo(), login());
    let text = config(member.address(), &[login.address()], AUTH, "");
    let balancer = Balancer::start(&text);
    let mut wire = balancer.connect();
    let anna = "Cookie: session=anna\r\n";
    let text_only = "Accept: text/plain\r\n";
    // The body of a request that has come is no part of the next one.
    let body = "Content-Length: 30\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a";
    for _ in 0..3 {
        for (request, status, length) in [
            (
                format!("GET / HTTP/1.1\r\nHost: a\r\n{anna}\r\n"),
                "200",
                13,
            ),
            (
                format!("GET / HTTP/1.1\r\nHost: a\r\n{text_only}\r\n"),
                "401",
                4,
            ),
            (
                format!("POST / HTTP/1.1\r\nHost: a\r\n{text_only}{body}"),
                "401",
                4,
            ),
            (format!("POST / HTTP/1.1\r\nHost: a\r\n{body}"), "302", 0),
            (
                format!("POST / HTTP/1.1\r\nHost: a\r\n{anna}{body}"),
                "200",
                14,
            ),
        ] {
            wire.send(request);
            let response = wire.read_response();
            assert_eq!(response.second_word(), status);
            assert_eq!(response.body.len(), length, "{response:?}");
        }
    }
    // Two at once.
    let get = format!("GET / HTTP/1.1\r\nHost: a\r\n{text_only}\r\n");
    wire.send(format!("{get}{get}"));
    for _ in 0..2 {
        assert_eq!(wire.read_response().text(), "who?");
    }
    // All questions came over one connection.
    for seen in login.seen_events() {
        assert!(matches!(seen, Seen::Request(0, _)), "{seen:?}");
    }
    // The response to a HEAD has no body, though that to the question has: nobody gets it later.
    for _ in 0..3 {
        wire.send(format!("HEAD / HTTP/1.1\r\nHost: a\r\n{text_only}\r\n"));
        let head = wire.read_head();
        assert_eq!(head.second_word(), "401");
        wire.send(&get);
        let response = wire.read_response();
        assert_eq!((response.second_word(), response.text()), ("401", "who?"));
    }
    for old in ["", "Connection: keep-alive\r\n"] {
        let mut wire = balancer.connect();
        wire.send(format!("GET / HTTP/1.0\r\n{old}{text_only}\r\n"));
        let response = wire.read_response();
        assert_eq!((response.second_word(), response.text()), ("401", "who?"));
        assert!(wire.is_at_end());
    }
    let mut closing = balancer.connect();
    closing.send(get.replace("Host", "Connection: close\r\nHost"));
    assert_eq!(closing.read_response().text(), "who?");
    assert!(closing.is_at_end());
}

#[test]
fn a_member_that_ends_its_idle_connections_is_asked_again() {
    let member = echo();
    let login =
        Member::closing_after("HTTP/1.1 200 OK\r\nX-User: anna\r\nContent-Length: 0\r\n\r\n");
    let text = config(member.address(), &[login.address()], AUTH, "");
    let balancer = Balancer::start(&text);
    let mut wire = balancer.connect();
    for _ in 0..50 {
        wire.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
        assert_eq!(wire.read_response().text(), "anna||2");
    }
}

#[test]
fn a_body_is_not_sent_before_the_request_may_pass() {
    if !are_installed(&["curl"]) {
        return;
    }
    let go = Arc::new(Signal::default());
    let may = Arc::clone(&go);
    let login = Member::answering_with(move |question| {
        if !question.values("x-wait").is_empty() {
            may.wait_for_release();
        }
        answer(question)
    });
    let member = Member::start(|script, mut wire| {
        while let Some(head) = wire.try_read_head() {
            let length: usize = head.values("content-length")[0].parse().unwrap();
            if !head.values("expect").is_empty() {
                wire.send("HTTP/1.1 100 Continue\r\n\r\n");
            }
            let body = wire.try_read_exact(length).unwrap();
            script.record_event(Seen::Request(script.connection, head.clone()));
            let sum: u64 = body.iter().map(|&byte| u64::from(byte)).sum();
            wire.send(ok_response(&format!(
                "{}:{}:{sum}",
                head.values("x-user").join(","),
                body.len()
            )));
        }
    });
    let text = config(member.address(), &[login.address()], AUTH, "");
    let balancer = Balancer::start(&text);
    let body: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    let sum: u64 = body.iter().map(|&byte| u64::from(byte)).sum();
    let told = format!("anna:{}:{sum}", body.len());
    let head = |fields: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\nExpect: 100-continue\r\n{fields}\r\n",
            body.len()
        )
    };
    let mut wire = balancer.connect();
    for _ in 0..2 {
        wire.send(head("Cookie: session=anna\r\nX-Wait: 1\r\n"));
        let (_, question) = login.next_request();
        assert_eq!(question.values("expect"), [""; 0]);
        assert!(!wire.has_input() && member.seen_events().is_empty());
        go.release_one();
        assert_eq!(wire.read_head().second_word(), "100");
        wire.send(&body);
        assert_eq!(wire.read_response().text(), told);
        member.next_request();
    }
    // A client that is refused is not asked for its body; it may send it all the same.
    for sends in [false, true] {
        let mut wire = balancer.connect();
        wire.send(head("Accept: text/plain\r\n"));
        let response = wire.read_response();
        assert_eq!((response.second_word(), response.text()), ("401", "who?"));
        assert_eq!(response.values("connection"), ["close"]);
        if sends {
            wire.try_send(&body);
        }
        assert!(wire.is_at_end());
    }
    // One that sends its body without being asked.
    let mut eager = balancer.connect();
    let plain = head("Accept: text/plain\r\n").replace("Expect: 100-continue\r\n", "");
    eager.send(plain.as_bytes());
    eager.try_send(&body);
    assert_eq!(eager.read_response().text(), "who?");
    let folder = Folder::new();
    let file = format!("@{}", folder.write("body", &body).display());
    for client in CLIENTS {
        for expect in ["Expect: 100-continue", "Expect:"] {
            let more = [
                "-H",
                expect,
                "--data-binary",
                &file,
                "-H",
                "Cookie: session=anna",
            ];
            assert!(
                ask(&balancer, client, "/", &more).2.ends_with(&told),
                "{client} {expect}"
            );
            let more = [
                "-H",
                expect,
                "--data-binary",
                &file,
                "-H",
                "Accept: text/plain",
            ];
            assert_eq!(
                ask(&balancer, client, "/", &more).0,
                "401",
                "{client} {expect}"
            );
        }
    }
    assert_eq!(requests(&member).len(), 4);
    // A client that goes away while the group thinks is not waited for.
    let mut gone = balancer.connect();
    let cookie = "Cookie: session=anna\r\nX-Wait: 1\r\n";
    gone.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{cookie}\r\n"));
    login.next_request();
    drop(gone);
    go.release_one();
    assert_eq!(count(&balancer, "failed"), 0);
}

#[test]
fn a_question_ends_with_the_time_of_its_request() {
    if !are_installed(&["curl"]) {
        return;
    }
    let member = echo();
    let silent = Member::answering_with(|_| String::new());
    let limit = "request_timeout = \"300ms\"";
    let text = config(member.address(), &[silent.address()], AUTH, limit);
    let balancer = Balancer::start(&text);
    for client in CLIENTS {
        let (status, _, body) = ask(&balancer, client, "/", &[]);
        assert_eq!(status, "504", "{client}");
        assert_eq!(body, "The time limit of the request is over.\n");
    }
    assert_eq!(requests(&member), []);
    assert_eq!(count(&balancer, "failed"), 0);
}

#[test]
fn without_an_answer_no_request_passes() {
    if !are_installed(&["curl"]) {
        return;
    }
    let member = echo();
    let silent = Member::answering_with(|_| String::new());
    let late_head = Member::answering_with(|_| "HTTP/1.1 200 OK\r\nX-Us".into());
    let dead = server::address();
    let long = format!("X-Groups: {}\r\n", "g".repeat(17 * 1024));
    let says = |fields: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{fields}\r\n");
    let bad = [
        String::new(),
        "HTTP/1.1 200".into(),
        "hello\r\n\r\n".into(),
        says("X-User: a\x01b\r\n"),
        says("X-User: a\rX-Admin: 1\r\n"),
        says("X-User: a\nX-Admin: 1\r\n"),
        says("X-User: a\x7f\r\n"),
        says(&long),
        says("Content-Length: 1\r\n"),
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
            .into(),
        "HTTP/1.1 102 Processing\r\n\r\n".repeat(100),
    ];
    let bad: Vec<_> = bad.into_iter().map(Member::closing_after).collect();
    let short = AUTH.replace("60s", "300ms");
    let mut cases = vec![
        (silent.address(), &*short),
        (late_head.address(), &short),
        (dead, AUTH),
    ];
    cases.extend(bad.iter().map(|bad| (bad.address(), AUTH)));
    let balancer = Balancer::start(&config(member.address(), &[cases[0].0], &short, ""));
    for (number, (login, auth)) in cases.into_iter().enumerate() {
        if number > 0 {
            balancer.reconfigure(&config(member.address(), &[login], auth, ""));
        }
        for client in CLIENTS {
            let upgrade = ["-H", "Connection: Upgrade", "-H", "Upgrade: websocket"];
            let more = if client == CLIENTS[0] {
                &upgrade[..]
            } else {
                &[]
            };
            let (status, fields, _) = ask(&balancer, client, "/", more);
            assert_eq!(status, "503", "{number} {client}");
            assert!(fields.contains("retry-after: 1"), "{fields}");
        }
    }
    assert_eq!(requests(&member), []);
    assert_eq!(count(&balancer, "failed"), 28);
    assert_eq!(count(&balancer, "passed") + count(&balancer, "refused"), 0);
    // Another member is asked in place of one that is dead or says nothing.
    let good = login();
    let fields = ["-H", "Cookie: session=anna"];
    for other in [dead, bad[0].address(), bad[2].address()] {
        let both = [other, good.address()];
        let text = config(member.address(), &both, AUTH, "");
        balancer.reconfigure(&text);
        for client in CLIENTS {
            for _ in 0..5 {
                assert_eq!(ask(&balancer, client, "/", &fields).0, "200", "{other}");
            }
        }
    }
    // One that is not to be used is not asked: there is nobody.
    balancer.reconfigure(&config(member.address(), &[good.address()], AUTH, ""));
    assert_eq!(ask(&balancer, CLIENTS[0], "/", &fields).0, "200");
    requests(&good);
    requests(&member);
    let at = good.address();
    balancer
        .run_ctl(&format!("maintenance login {at}"))
        .unwrap();
    for client in CLIENTS {
        assert_eq!(ask(&balancer, client, "/", &fields).0, "503");
    }
    assert_eq!((requests(&good), requests(&member)), (vec![], vec![]));
    // The rule is ready all the same: its members are there.
    assert!(balancer.admin_get("/readyz").start_line().contains("200"));
    balancer.run_ctl(&format!("ready login {at}")).unwrap();
    assert_eq!(ask(&balancer, CLIENTS[1], "/", &fields).0, "200");
}

#[test]
fn another_group_path_or_field_holds_after_a_reload() {
    if !are_installed(&["curl"]) {
        return;
    }
    let member = Member::answering_with(|request| {
        let of = |name| request.values(name).join(",");
        ok_response(&format!("{}|{}", of("x-user"), of("authorization")))
    });
    let other = Member::answering_with(|question| {
        let token = question.values("authorization").join(",");
        format!(
            "HTTP/1.1 200 OK\r\nAuthorization: Bearer {}-{token}\r\nConnection: close\r\n\r\nlong body",
            question.second_word()
        )
    });
    let first = login();
    let groups = |auth: &str| {
        let lines = format!("[group.other]\nmembers = [\"{}\"]", other.address());
        config(member.address(), &[first.address()], auth, &lines)
    };
    let balancer = Balancer::start(&groups(AUTH));
    let anna = ["-H", "Cookie: session=anna", "-H", "Authorization: mine"];
    for client in CLIENTS {
        assert_eq!(ask(&balancer, client, "/", &anna).2, "anna|mine");
    }
    balancer.reconfigure(&groups(
        &AUTH.replace("}", ", remove_authorization = true }"),
    ));
    for client in CLIENTS {
        assert_eq!(ask(&balancer, client, "/", &anna).2, "anna|");
    }
    // A token of the group's replaces the client's, which the question has.
    balancer.reconfigure(&groups(
        "{ group = \"other\", path = \"/token\", copy_fields = [\"Authorization\"] }",
    ));
    for client in CLIENTS {
        assert_eq!(ask(&balancer, client, "/", &anna).2, "|Bearer /token-mine");
    }
    balancer.reconfigure(&groups("false"));
    for client in CLIENTS {
        assert_eq!(ask(&balancer, client, "/", &anna).2, "|mine");
    }
    let folder = Folder::new();
    let text = groups("{ group = \"othr\" }");
    let file = folder.write("evenkeel.toml", text).display().to_string();
    let complaint = run_evenkeel(&["check", &file]).unwrap_err();
    assert!(complaint.contains("other"), "{complaint}");
}

#[test]
fn members_that_speak_http2_are_asked_and_copies_have_what_the_answer_says() {
    if !are_installed(&["curl", "nginx"]) {
        return;
    }
    // It lets requests for what is there pass, and no others.
    let login = Server::nginx_http2();
    login.put_document("yes", "may pass");
    let member = Server::nginx_http2();
    member.put_document("page", "the page");
    let http = "http = { member_protocol = \"h2\" }\n\
        [[rule.web.routes]]\npath = \"/files/no\"\n\
        auth = { group = \"login\", path = \"/files/no\" }\n";
    let auth = "{ group = \"login\", path = \"/files/yes\" }";
    let balancer = Balancer::start(&config(member.address(), &[login.address()], auth, http));
    for client in CLIENTS {
        for _ in 0..3 {
            let (status, _, body) = ask(&balancer, client, "/files/page", &[]);
            assert_eq!((&*status, &*body), ("200", "the page"));
            let (status, _, body) = ask(&balancer, client, "/files/no", &[]);
            assert_eq!(status, "404");
            assert!(body.contains("nginx"), "{body}");
            let (status, ..) = ask(&balancer, client, "/files/no", &["-d", "x"]);
            assert_eq!(status, "404");
        }
    }
    // With HTTP/1.1, a copy has what the answer says.
    let (first, second, login) = (echo(), echo(), self::login());
    let lines = format!(
        "http = {{ mirror = {{ group = \"copies\" }} }}\n[group.copies]\nmembers = [\"{}\"]",
        second.address()
    );
    let text = config(first.address(), &[login.address()], AUTH, &lines);
    balancer.reconfigure(&text);
    for client in CLIENTS {
        ask(&balancer, client, "/", &["-H", "Accept: text/plain"]);
        let more = ["-H", "Cookie: session=anna", "-d", "some"];
        assert_eq!(ask(&balancer, client, "/", &more).2, "anna|a,b, c|4");
        let (_, copy) = second.next_request();
        assert_eq!((copy.values("x-user"), copy.text()), (vec!["anna"], "some"));
        assert_eq!(requests(&second), []);
    }
}

#[test]
fn nginx_says_who_is_who_by_passwords() {
    if !are_installed(&["curl", "nginx"]) {
        return;
    }
    let folder = Folder::new();
    let users = folder.write("users", "anna:{PLAIN}secret\n");
    let login = Server::nginx_also(&format!(
        "location = /auth {{ auth_basic \"The shop\"; auth_basic_user_file {}; \
         add_header X-User $remote_user; try_files /nothing =204; }}",
        users.display()
    ));
    let member = echo();
    let auth = "{ group = \"login\", path = \"/auth\", user_field = \"X-User\", \
                remove_authorization = true }";
    let balancer = Balancer::start(&config(member.address(), &[login.address()], auth, ""));
    for client in CLIENTS {
        for _ in 0..3 {
            let (status, _, body) = ask(&balancer, client, "/", &["-u", "anna:secret"]);
            assert_eq!((&*status, &*body), ("200", "anna||0"));
            let (_, got) = member.next_request();
            assert_eq!(got.values("authorization"), [""; 0]);
            for more in [
                &["-u", "anna:wrong"][..],
                &[],
                &["-H", "X-User: anna", "-d", "x"],
            ] {
                let (status, fields, body) = ask(&balancer, client, "/", more);
                assert_eq!(status, "401", "{more:?}");
                assert!(
                    fields.contains("www-authenticate: basic realm=\"the shop\""),
                    "{fields}"
                );
                assert!(body.contains("401 Authorization Required"), "{body}");
            }
        }
    }
    assert_eq!(requests(&member), []);
    assert_eq!(
        (count(&balancer, "passed"), count(&balancer, "refused")),
        (6, 18)
    );
    // It goes away: nobody passes.
    drop(login);
    let (status, ..) = ask(&balancer, CLIENTS[0], "/", &["-u", "anna:secret"]);
    assert_eq!(status, "503");
}

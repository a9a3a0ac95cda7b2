//! Request smuggling: ambiguous requests never reach a member, and no request hides in another.
//!
//! The member is a recorder with a reader of its own. A hidden request would show as a
//! request for `/hidden`, or as bytes that are no request.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::{Member, Seen, Signal, ok_response};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Ended, Wire};

/// Request that a smuggler wants to be taken for a request of its own.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

/// Heads that are refused: name, status, head. `HIDDEN` is sent right behind each.
const REFUSED: &[(&str, u16, &str)] = &[
    (
        "CL.TE",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "TE.CL",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    ),
    (
        "CL.CL",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 34\r\n\r\n",
    ),
    (
        "CL twice",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    ),
    (
        "CL list",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 34\r\n\r\n",
    ),
    (
        "CL with plus",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +34\r\n\r\n",
    ),
    (
        "CL with minus",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    ),
    (
        "CL hexadecimal",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x22\r\n\r\n",
    ),
    (
        "CL empty",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
    ),
    (
        "CL overflow",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551650\r\n\r\n",
    ),
    (
        "CL space before colon",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 34\r\n\r\n",
    ),
    (
        "CL folded",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n 34\r\n\r\n",
    ),
    (
        "CL after bare CR",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nX: y\rContent-Length: 34\r\n\r\n",
    ),
    (
        "CL after bare LF",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nX: y\nContent-Length: 34\r\n\r\n",
    ),
    (
        "CL after NUL",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nX: y\0\r\nContent-Length: 34\r\n\r\n",
    ),
    (
        "CL with underscore",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent_Length: 34\r\n\r\n",
    ),
    (
        "TE twice",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    ),
    (
        "TE misspelt",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "TE vertical tab",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "TE space before colon",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "TE folded",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "TE before space",
        400,
        "POST / HTTP/1.1\r\n Transfer-Encoding: chunked\r\nHost: a\r\n\r\n0\r\n\r\n",
    ),
    (
        "TE identity",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
    ),
    (
        "TE not last",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ),
    (
        "TE unknown",
        501,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "TE in 1.0",
        400,
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "TE with underscore",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer_Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("bare LF everywhere", 400, "GET / HTTP/1.1\nHost: a\n\n"),
    ("bare LF at the end", 400, "GET / HTTP/1.1\r\nHost: a\r\n\n"),
    ("no name", 400, "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n"),
    ("no Host", 400, "GET / HTTP/1.1\r\n\r\n"),
    (
        "two Hosts",
        400,
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ),
    ("Host with path", 400, "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    (
        "Host dropped",
        400,
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: host\r\n\r\n",
    ),
    (
        "CL dropped",
        400,
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: content-length\r\nContent-Length: 34\r\n\r\n",
    ),
    (
        "space in target",
        400,
        "GET / HTTP/1.1 x HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    ("fragment", 400, "GET /#x HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("HTTP/0.9", 400, "GET /\r\n\r\n"),
    ("HTTP/2 preface", 505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("HTTP/3.7", 505, "GET / HTTP/3.7\r\nHost: a\r\n\r\n"),
    (
        "CONNECT",
        501,
        "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
    ),
    (
        "other expectation",
        417,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 34\r\nExpect: more\r\n\r\n",
    ),
    (
        "two empty lines",
        400,
        "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
];

/// Chunked bodies that are refused, `HIDDEN` right behind each. Their heads are valid.
const REFUSED_BODIES: &[(&str, &str)] = &[
    ("size with plus", "+5\r\nhello\r\n0\r\n\r\n"),
    ("size with 0x", "0x5\r\nhello\r\n0\r\n\r\n"),
    ("size with space", "5 \r\nhello\r\n0\r\n\r\n"),
    ("size overflow", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
    ("size of 2^63", "8000000000000000\r\n"),
    ("size empty", "\r\n0\r\n\r\n"),
    ("LF after size", "5\nhello\r\n0\r\n\r\n"),
    ("CR after size", "5\rXhello\r\n0\r\n\r\n"),
    ("LF in extension", "5;x\nhello\r\n0\r\n\r\n"),
    ("CR in extension", "5;x\ry\r\nhello\r\n0\r\n\r\n"),
    ("LF after data", "5\r\nhello\n0\r\n\r\n"),
    ("data too long", "5\r\nhello, 0\r\n\r\n"),
    ("LF at the end", "0\r\n\n"),
    ("LF after last size", "0\n\r\n"),
    ("trailer frames", "0\r\nContent-Length: 34\r\n\r\n"),
    ("trailer routes", "0\r\nHost: b\r\n\r\n"),
    ("trailer claims a port", "0\r\nX-Forwarded-Port: 1\r\n\r\n"),
    (
        "trailer claims a prefix",
        "0\r\nx_forwarded_prefix: /\r\n\r\n",
    ),
    (
        "trailer of this hop",
        "0\r\nproxy-authentication-info: x\r\n\r\n",
    ),
    ("trailer folded", "0\r\nX: y\r\n z\r\n\r\n"),
    ("trailer with LF", "0\r\nX: y\n\r\n"),
    ("trailer without colon", "0\r\nGET /hidden HTTP/1.1\r\n\r\n"),
];

#[test]
fn ambiguous_heads_are_refused_and_reach_no_member() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "");
    for &(name, status, head) in REFUSED {
        let mut client = balancer.connect();
        // The first request is good: it must be answered all the same.
        client.send(format!(
            "GET /good HTTP/1.1\r\nHost: a\r\n\r\n{head}{HIDDEN}"
        ));
        let good = client.read_response();
        assert_eq!(
            (good.second_word(), good.text()),
            ("200", "/good"),
            "{name}"
        );
        let refusal = client.read_response();
        assert_eq!(refusal.second_word(), status.to_string(), "{name}");
        assert_eq!(refusal.values("connection"), ["close"], "{name}");
        assert!(client.is_at_end(), "{name}: the connection goes on");
        let (_, request) = member.next_request();
        assert_eq!(request.second_word(), "/good", "{name}");
    }
    let mut client = balancer.connect();
    client.send("GET /last HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), "/last");
    let (_, request) = member.next_request();
    assert_eq!(request.second_word(), "/last");
    let rest = member.seen_events();
    assert!(
        !rest.iter().any(|seen| matches!(seen, Seen::Request(..))),
        "{rest:?}"
    );
}

#[test]
fn ambiguous_bodies_never_become_whole_requests() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "[rule.web.http]\nretries = 0");
    for &(name, body) in REFUSED_BODIES {
        let mut client = balancer.connect();
        client.send(format!(
            "POST /bad HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}{HIDDEN}"
        ));
        let answer = client.read_to_end();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{name}: {answer:?}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{name}: {answer:?}");

        // The connection with the unfinished request serves nobody else.
        let mut client = balancer.connect();
        client.send("GET /good HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().text(), "/good", "{name}");
        loop {
            match member.next() {
                Seen::Request(_, request) => {
                    assert_eq!(request.second_word(), "/good", "{name}");
                    break;
                }
                Seen::End(_, Ended::Within | Ended::Between) => {}
            }
        }
    }
}

#[test]
fn each_spelling_of_framing_arrives_in_the_plain_one() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    for framing in [
        "Transfer-Encoding:\tchunked",
        "Transfer-Encoding: CHUNKED ",
        "transfer-encoding:chunked",
    ] {
        client.send(format!(
            "POST /a HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
        ));
        assert_eq!(client.read_response().text(), "/a");
        let (_, request) = member.next_request();
        assert!(
            request.head.contains("\r\nTransfer-Encoding: chunked\r\n"),
            "{}",
            request.head
        );
        assert_eq!(request.text(), "hi");
    }
    client.send("POST /b HTTP/1.1\r\nHost: a\r\nContent-Length:  002 \r\n\r\nhi");
    assert_eq!(client.read_response().text(), "/b");
    let (_, request) = member.next_request();
    assert!(
        request.head.contains("\r\nContent-Length: 2\r\n"),
        "{}",
        request.head
    );
    assert_eq!(request.text(), "hi");
}

#[test]
fn clients_cannot_say_who_they_are() {
    let member = Member::echoing_targets();
    let more = "[rule.web.http]\nforwarded = true\nvia = \"edge\"";
    let balancer = Balancer::start_http(&[member.address()], more);
    let mut client = balancer.connect();
    client.send(
        "GET / HTTP/1.1\r\nHost: a:80\r\nX-Forwarded-For: 1.1.1.1\r\nX_Forwarded_For: 1.1.1.1\r\n\
         X-Forwarded-Proto: https\r\nForwarded: for=1.1.1.1\r\nX-Forwarded-Port: 1\r\n\
         Connection: X-Secret\r\nX-Secret: 1\r\n\r\n",
    );
    client.read_response();
    let (_, request) = member.next_request();
    assert_eq!(request.values("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(request.values("x-forwarded-proto"), ["http"]);
    assert_eq!(request.values("x-forwarded-host"), ["a:80"]);
    assert_eq!(
        request.values("forwarded"),
        ["for=127.0.0.1;host=\"a:80\";proto=http"]
    );
    assert_eq!(request.values("via"), ["1.1 edge"]);
    for gone in [
        "x_forwarded_for",
        "x-forwarded-port",
        "x-secret",
        "connection",
    ] {
        assert!(request.values(gone).is_empty(), "{gone}");
    }
}

/// Responses that a member may not give, each behind a good one on the same connection.
const REFUSED_RESPONSES: &[(&str, &str)] = &[
    ("garbage", "SSH-2.0-OpenSSH\r\n\r\n"),
    (
        "both framings",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "lengths differ",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
    ),
    ("bare LF", "HTTP/1.1 200 OK\nContent-Length: 0\n\n"),
    (
        "space before colon",
        "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
    ),
    (
        "folded",
        "HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 0\r\n\r\n",
    ),
    (
        "other coding",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    ),
    (
        "101 not asked for",
        "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ),
    ("HTTP/2", "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"),
];

#[test]
fn ambiguous_responses_become_502() {
    for &(name, answer) in REFUSED_RESPONSES {
        let member = Member::answering_with(move |request| match request.second_word() {
            "/bad" => answer.to_owned(),
            target => ok_response(target),
        });
        let balancer = Balancer::start_http(&[member.address()], "[rule.web.http]\nretries = 0");
        let mut client = balancer.connect();
        client.send("POST /bad HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client.read_response().second_word(), "502", "{name}");
        // Whatever else that connection would say, nobody hears it.
        let mut client = balancer.connect();
        client.send("GET /good HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = client.read_response();
        assert_eq!(
            (response.second_word(), response.text()),
            ("200", "/good"),
            "{name}"
        );
        let (bad, good) = (member.next_request(), member.next_request());
        assert_ne!(bad.0, good.0, "{name}: the connection is used again");
    }
}

#[test]
fn what_a_member_says_unasked_reaches_nobody() {
    let (asked, said) = (Arc::new(Signal::default()), Arc::new(Signal::default()));
    let member = Member::start({
        let (asked, said) = (Arc::clone(&asked), Arc::clone(&said));
        move |script, mut wire| {
            while let Some(request) = script.read_request(&mut wire) {
                wire.send(ok_response(request.second_word()));
                if request.second_word() == "/first" {
                    asked.wait_for_release();
                    wire.send(ok_response("poison"));
                    said.release_one();
                }
            }
        }
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    for _ in 0..20 {
        client.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().text(), "/first");
        // The connection to the member is idle now, and this is no answer to anything.
        asked.release_one();
        said.wait_for_release();
        client.send("GET /second HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().text(), "/second");
    }
}

/// A member answers each request twice. The second answer belongs to nobody: whoever comes
/// next must not get it, if it was there before the next request was sent.
///
/// Looking and sending are two system calls: an answer that comes between them gets through.
/// That is a microsecond, unless another process takes the processor just then.
#[test]
fn s9_an_answer_that_nobody_asked_for_is_given_to_nobody() {
    /// Enough to meet all orders in which the two answers and the next request can come.
    const REQUESTS: usize = 1000;
    /// Without looking it is some hundred.
    const BETWEEN_LOOK_AND_SEND: usize = 5;
    let early: Arc<Mutex<HashSet<String>>> = Arc::default();
    let known = Arc::clone(&early);
    let member = Member::start(move |script, mut wire| {
        let mut number = 0;
        while let Some(request) = script.read_request(&mut wire) {
            let text = format!("unasked {}.{number}", script.connection);
            number += 1;
            if !wire.try_send(ok_response(request.second_word()))
                || !wire.try_send(ok_response(&text))
            {
                return;
            }
            // On loopback it is in the balancer's socket by now. If there is no request
            // yet, the next one is sent later than that.
            if !wire.has_input() {
                known.lock().unwrap().insert(text);
            }
        }
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    let requests: String = (0..REQUESTS)
        .map(|number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"))
        .collect();
    let mut writer = client.writer();
    let sending = std::thread::spawn(move || writer.send(requests));
    let answers: Vec<_> = (0..REQUESTS).map(|_| client.read_response()).collect();
    sending.join().unwrap();
    let early = early.lock().unwrap();
    let wrong: Vec<_> = answers
        .iter()
        .map(|answer| answer.text())
        .filter(|text| early.contains(*text))
        .collect();
    println!(
        "{} of {REQUESTS} were early, {} got through",
        early.len(),
        wrong.len()
    );
    assert!(wrong.len() <= BETWEEN_LOOK_AND_SEND, "{wrong:?}");
    assert!(early.len() > REQUESTS / 10, "the test shows nothing");
}

/// Requests over HTTP/2 that are refused: name, fields, content. A field that starts with `:` stands
/// in place of the good one of that name; two of a name are both sent.
type OverHttp2 = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
);

const REFUSED_OVER_HTTP2: &[OverHttp2] = &[
    ("TE", &[("transfer-encoding", "chunked")], "0\r\n\r\n"),
    (
        "TE in upper case",
        &[("Transfer-Encoding", "chunked")],
        "0\r\n\r\n",
    ),
    (
        "TE with underscore",
        &[("transfer_encoding", "chunked")],
        "0\r\n\r\n",
    ),
    ("CL too short", &[("content-length", "1")], ""),
    ("CL too long", &[("content-length", "1000")], ""),
    ("CL of nothing", &[("content-length", "0")], ""),
    (
        "CL twice",
        &[("content-length", "33"), ("content-length", "33")],
        "",
    ),
    ("CL list", &[("content-length", "34, 34")], ""),
    ("CL with plus", &[("content-length", "+34")], ""),
    ("CL empty", &[("content-length", "")], ""),
    ("CL with underscore", &[("content_length", "0")], ""),
    ("connection", &[("connection", "close")], ""),
    (
        "connection names CL",
        &[("connection", "content-length")],
        "",
    ),
    ("keep-alive", &[("keep-alive", "1")], ""),
    ("proxy-connection", &[("proxy-connection", "close")], ""),
    ("upgrade", &[("upgrade", "h2c")], ""),
    ("te", &[("te", "gzip")], ""),
    ("te and more", &[("te", "trailers, deflate")], ""),
    (
        "LF in a value",
        &[("x", "a\nTransfer-Encoding: chunked")],
        "",
    ),
    (
        "CR in a value",
        &[("x", "a\rTransfer-Encoding: chunked")],
        "",
    ),
    (
        "CR LF in a value",
        &[("x", "a\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a\r\n\r\n")],
        "",
    ),
    ("NUL in a value", &[("x", "a\0b")], ""),
    (
        "CR LF in a name",
        &[("x: y\r\ntransfer-encoding", "chunked")],
        "",
    ),
    ("colon in a name", &[("transfer-encoding:", "chunked")], ""),
    ("space in a name", &[("transfer-encoding ", "chunked")], ""),
    ("no name", &[("", "x")], ""),
    ("upper case", &[("X-Upper", "x")], ""),
    (
        "CR LF in the path",
        &[(":path", "/ HTTP/1.1\r\nHost: a\r\n\r\nGET /hidden")],
        "",
    ),
    ("space in the path", &[(":path", "/ HTTP/1.1 x")], ""),
    ("empty path", &[(":path", "")], ""),
    ("path of a URI", &[(":path", "http://b/hidden")], ""),
    ("path without a slash", &[(":path", "hidden")], ""),
    ("path twice", &[(":path", "/bad"), (":path", "/hidden")], ""),
    (
        "CR LF in the method",
        &[(":method", "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\nGET")],
        "",
    ),
    ("space in the method", &[(":method", "GET /hidden")], ""),
    (
        "method twice",
        &[(":method", "POST"), (":method", "GET")],
        "",
    ),
    (
        "scheme twice",
        &[(":scheme", "http"), (":scheme", "https")],
        "",
    ),
    ("CR LF in the authority", &[(":authority", "a\r\nX: y")], ""),
    ("authority with a path", &[(":authority", "a/hidden")], ""),
    ("authority with a user", &[(":authority", "u@a")], ""),
    ("another Host", &[("host", "b")], ""),
    ("two Hosts", &[("host", "a"), ("host", "a")], ""),
    ("pseudo-field of a response", &[(":status", "200")], ""),
    ("unknown pseudo-field", &[(":x", "y")], ""),
    (
        "pseudo-field after a field",
        &[("x", "y"), (":path", "/hidden")],
        "",
    ),
    (
        "protocol without CONNECT",
        &[(":protocol", "websocket")],
        "",
    ),
    ("other expectation", &[("expect", "more")], ""),
];

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let header = [
        length[1], length[2], length[3], kind, flags, 0, 0, 0, stream,
    ];
    [&header[..], payload].concat()
}

/// A POST whose content is followed by what would be another request, as a connection's all bytes.
fn over_http2(fields: &[(&str, &str)], content: &str) -> Vec<u8> {
    let good = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/bad"),
        (":authority", "a"),
    ];
    let named = |name: &str| fields.iter().any(|(other, _)| *other == name);
    let moved = fields
        .first()
        .is_some_and(|(name, _)| !name.starts_with(':'));
    // Literals that are in no table.
    let mut block = Vec::new();
    let kept = good.iter().filter(|(name, _)| moved || !named(name));
    for (name, value) in kept.chain(fields) {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &block),
        frame(0, 1, 1, format!("{content}{HIDDEN}").as_bytes()),
    ]
    .concat()
}

/// Returns the outcome of the request: `200`, another status, a reset or the end of the connection.
fn outcome_over_http2(client: &mut Wire) -> &'static str {
    while let Some(header) = client.try_read_exact(9) {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let Some(payload) = client.try_read_exact(length as usize) else {
            break;
        };
        match (header[3], payload.first()) {
            // The index of `:status: 200` in the static table.
            (1, Some(0x88)) => return "200",
            (1, _) => return "another status",
            (3, _) => return "reset",
            (7, _) => return "goaway",
            _ => {}
        }
    }
    "closed"
}

#[test]
fn what_is_ambiguous_over_http2_is_refused_counted_and_reaches_no_member_as_a_whole() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "[rule.web.http]\nretries = 0");
    let refused = || {
        let metrics = balancer.admin_get("/metrics");
        let line = "evenkeel_rule_refused_total{rule=\"web\",reason=\"malformed\"} ";
        let mut lines = metrics.text().lines();
        let count = lines.find_map(|text| text.strip_prefix(line)).unwrap();
        count.parse::<u64>().unwrap()
    };
    for &(name, fields, content) in REFUSED_OVER_HTTP2 {
        let before = refused();
        let mut client = balancer.connect();
        client.send(over_http2(fields, content));
        let outcome = outcome_over_http2(&mut client);
        let expected = ["another status", "reset", "goaway"];
        assert!(expected.contains(&outcome), "{name}: {outcome}");
        // It is counted right after it was sent; a head and its content can both be wrong.
        wait_until(name, || refused() > before);
    }
    // The same without what is wrong.
    let mut client = balancer.connect();
    client.send(over_http2(&[], ""));
    assert_eq!(outcome_over_http2(&mut client), "200");
    let mut good = 0;
    for seen in member.seen_events() {
        if let Seen::Request(_, request) = seen {
            assert_eq!(request.second_word(), "/bad");
            assert_eq!(request.text(), HIDDEN);
            good += 1;
        }
    }
    assert_eq!(good, 1);
}

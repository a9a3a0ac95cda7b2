//! Tests that messages are passed on, and that they mean the same.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_manager::config::HttpOptions;
use evenkeel_manager::config::fields::RequestTrailers;
use proptest::prelude::*;

use super::*;
use crate::http1::chunked::{Decoder, Trailers};
use crate::http1::{Fields, FramingFacts, HeadError, Limits, ParseOutcome, RequestHead};

const LIMITS: Limits = Limits {
    max_bytes: 16 * 1024,
    max_fields: 100,
};

fn options() -> HttpOptions {
    HttpOptions {
        x_forwarded: false,
        forwarded: false,
        via: None,
        trust_forwarded: false,
        ..HttpOptions::default()
    }
}

fn hop(options: &HttpOptions, client: &str) -> Hop {
    let client: IpAddr = client.parse().unwrap();
    Hop::new(options, client, "http", "192.0.2.1:8080")
}

fn try_request(read: &[u8], hop: &Hop) -> Result<Option<Vec<u8>>, HeadError> {
    let mut fields = Fields::new();
    let ParseOutcome::Head(head) = RequestHead::parse(read, LIMITS, &mut fields)? else {
        return Ok(None);
    };
    let mut out = Vec::new();
    write_request(&head.request, hop, &mut out);
    Ok(Some(out))
}

fn request(read: &str, hop: &Hop) -> String {
    let out = try_request(read.as_bytes(), hop).unwrap().unwrap();
    String::from_utf8(out).unwrap()
}

/// A plain request is passed on byte for byte.
fn passes(read: &str) {
    assert_eq!(request(read, &hop(&options(), "192.0.2.7")), read);
}

fn becomes(read: &str, expected: &str) {
    assert_eq!(request(read, &hop(&options(), "192.0.2.7")), expected);
}

#[test]
fn what_needs_no_change_is_not_changed() {
    passes("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    passes("GET /?a=%20|b HTTP/1.1\r\nhOsT:a\r\nX:  y \r\nX: \t\r\nEmpty:\r\n\r\n");
    passes("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    passes("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\nHost: a\r\n\r\n");
    passes("OPTIONS * HTTP/1.1\r\nHost: a\r\nVia: 1.0 x\r\n\r\n");
    passes(
        "X-Y * HTTP/1.1\r\nHost: a\r\n\r\n"
            .replace('*', "/")
            .as_str(),
    );
}

#[test]
fn what_a_request_is_known_by_stands_in_place_of_what_came() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let head = "GET / HTTP/1.1\r\nHost: a\r\nTraceParent: x\r\nX-Request-Id: theirs\r\n\
                tracestate: a=b\r\nX-REQUEST-ID: more\r\nX: y\r\n\r\n";
    let written = |marks: Option<RequestMarks<'_>>| {
        let mut fields = Fields::new();
        let parsed = RequestHead::parse(head.as_bytes(), LIMITS, &mut fields);
        let Ok(ParseOutcome::Head(head)) = parsed else {
            panic!("{parsed:?}");
        };
        let mut out = Vec::new();
        let changes = Changes {
            marks,
            ..Changes::default()
        };
        let hop = hop(&options(), "192.0.2.7");
        write_changed(&head.request, &hop, changes, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(written(None), head);
    let id = Some(("X-Request-ID", "ours"));
    let mut fields = trace::Fields::default();
    assert_eq!(
        written(Some(RequestMarks { id, trace: fields })),
        "GET / HTTP/1.1\r\nHost: a\r\nTraceParent: x\r\ntracestate: a=b\r\nX: y\r\nX-Request-ID: ours\r\n\r\n"
    );
    fields.drops_parent = true;
    fields.parent = parent.as_bytes().try_into().ok();
    let traced = written(Some(RequestMarks { id, trace: fields }));
    assert_eq!(
        traced,
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\ntracestate: a=b\r\nX: y\r\nX-Request-ID: ours\r\ntraceparent: {parent}\r\n\r\n"
        )
    );
    let place = parent_place(traced.as_bytes());
    assert_eq!(traced.get(place..place + 16), Some("00f067aa0ba902b7"));
    fields.drops_state = true;
    fields.parent = None;
    assert_eq!(
        written(Some(RequestMarks {
            id: None,
            trace: fields
        })),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: theirs\r\nX-REQUEST-ID: more\r\nX: y\r\n\r\n"
    );
}

#[test]
fn fields_of_this_hop_end_here() {
    becomes(
        "GET / HTTP/1.1\r\nConnection: Keep-Alive, x-one\r\nHost: a\r\nKeep-Alive: 5\r\n\
         X-One: 1\r\nX-Two: 2\r\nProxy-Connection: close\r\nconnection: X-Three,\r\n\
         Proxy-Authorization: secret\r\nTE: trailers\r\nX-THREE: 3\r\nX-ONE: 1\r\n\
         Upgrade: websocket\r\nCookie: c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX-Two: 2\r\nCookie: c\r\n\r\n",
    );
}

#[test]
fn an_upgrade_is_offered_again() {
    becomes(
        "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
        "GET /chat HTTP/1.1\r\nHost: a\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nConnection: upgrade\r\n\r\n",
    );
    becomes(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n\
         Upgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    );
}

#[test]
fn a_client_that_takes_trailers_may_say_so() {
    becomes(
        "GET / HTTP/1.1\r\nHost: a\r\nTE: gzip;q=0.5, trailers\r\nConnection: te\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n",
    );
    becomes(
        "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    );
}

#[test]
fn framing_leaves_in_its_plain_spelling() {
    let plain = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for spelling in [
        "Transfer-Encoding: Chunked",
        "Transfer-Encoding:chunked",
        "Transfer-Encoding:\tchunked",
        "Transfer-Encoding:  chunked",
        "Transfer-Encoding: chunked ",
        "Transfer-Encoding: chunked\t",
    ] {
        becomes(
            &format!("POST / HTTP/1.1\r\nHost: a\r\n{spelling}\r\n\r\n"),
            plain,
        );
    }
    let plain = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n";
    for spelling in [
        "Content-Length: 0012",
        "content-length:12",
        "Content-Length: 12 ",
    ] {
        becomes(
            &format!("POST / HTTP/1.1\r\nHost: a\r\n{spelling}\r\n\r\n"),
            plain,
        );
    }
}

#[test]
fn the_absolute_form_becomes_a_path_and_a_host() {
    becomes(
        "GET http://real:81/a?b HTTP/1.1\r\nHost: other\r\nX: y\r\n\r\n",
        "GET /a?b HTTP/1.1\r\nX: y\r\nHost: real:81\r\n\r\n",
    );
    becomes(
        "GET http://real HTTP/1.1\r\nHost: real\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: real\r\n\r\n",
    );
    becomes(
        "GET http://real?q HTTP/1.0\r\n\r\n",
        "GET /?q HTTP/1.1\r\nHost: real\r\n\r\n",
    );
    becomes(
        "OPTIONS http://real HTTP/1.1\r\nHost: real\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: real\r\n\r\n",
    );
}

#[test]
fn http_1_0_requests_leave_as_1_1() {
    becomes(
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\nX: y\r\n\r\n",
        "GET / HTTP/1.1\r\nX: y\r\nHost: 192.0.2.1:8080\r\n\r\n",
    );
    becomes(
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 192.0.2.1:8080\r\n\r\n",
    );
    becomes(
        "POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 1\r\nExpect: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n",
    );
}

const CLAIMS: &str = "GET / HTTP/1.1\r\nHost: a:80\r\nX-Forwarded-For: 1.1.1.1\r\n\
    X-FORWARDED-PROTO: https\r\nx_forwarded_for: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\n\
    X-Forwarded-Prefix: /x\r\nX-Forwarded-For: 2.2.2.2\r\n\r\n";

#[test]
fn what_clients_claim_is_taken_out() {
    becomes(CLAIMS, "GET / HTTP/1.1\r\nHost: a:80\r\n\r\n");
    let options = HttpOptions {
        x_forwarded: true,
        forwarded: true,
        via: Some("edge".to_owned()),
        ..options()
    };
    assert_eq!(
        request(CLAIMS, &hop(&options, "192.0.2.7")),
        "GET / HTTP/1.1\r\nHost: a:80\r\n\
         X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a:80\r\n\
         Forwarded: for=192.0.2.7;host=\"a:80\";proto=http\r\nVia: 1.1 edge\r\n\r\n"
    );
}

#[test]
fn what_trusted_proxies_say_is_kept_and_continued() {
    let options = HttpOptions {
        x_forwarded: true,
        forwarded: true,
        trust_forwarded: true,
        ..options()
    };
    assert_eq!(
        request(CLAIMS, &hop(&options, "192.0.2.7")),
        "GET / HTTP/1.1\r\nHost: a:80\r\nX-FORWARDED-PROTO: https\r\n\
         X-Forwarded-Prefix: /x\r\n\
         X-Forwarded-For: 1.1.1.1, 2.2.2.2, 192.0.2.7\r\nX-Forwarded-Host: a:80\r\n\
         Forwarded: for=1.1.1.1, for=192.0.2.7;host=\"a:80\";proto=http\r\n\r\n"
    );
}

#[test]
fn ipv6_addresses_are_quoted_where_they_must_be() {
    let options = HttpOptions {
        x_forwarded: true,
        forwarded: true,
        ..options()
    };
    let read = "GET / HTTP/1.0\r\n\r\n";
    assert_eq!(
        request(read, &hop(&options, "2001:db8::1")),
        "GET / HTTP/1.1\r\nHost: 192.0.2.1:8080\r\n\
         X-Forwarded-For: 2001:db8::1\r\nX-Forwarded-Proto: http\r\n\
         Forwarded: for=\"[2001:db8::1]\";proto=http\r\n\r\n"
    );
    // A dual-stack listener sees IPv4 clients as mapped addresses.
    assert!(request(read, &hop(&options, "::ffff:192.0.2.7")).contains("for=192.0.2.7;"));
}

const NOTHING: FramingFacts = FramingFacts {
    head: false,
    upgrade: false,
};
const NEW: Client = Client {
    version: Version::Http11,
    keep_alive: true,
};
const OLD: Client = Client {
    version: Version::Http10,
    keep_alive: true,
};

fn response(read: &str, asked: FramingFacts, client: Client) -> (String, bool, bool) {
    let mut fields = Fields::new();
    let parsed = ResponseHead::parse(read.as_bytes(), LIMITS, asked, &mut fields);
    let Ok(ParseOutcome::Head(head)) = parsed else {
        panic!("{read:?}: {parsed:?}");
    };
    let mut out = Vec::new();
    let delivery = write_response(&head, client, &mut out);
    (
        String::from_utf8(out).unwrap(),
        delivery.keep_alive,
        delivery.strip_chunks,
    )
}

#[test]
fn responses_to_new_clients() {
    for (read, expected, keep_alive) in [
        (
            "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 3\r\n\r\n",
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nKeep-Alive: 5\r\nTrailer: X\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\n\r\n",
            true,
        ),
        (
            "HTTP/1.0 404 Gone away\r\nContent-Length: 003\r\nConnection: x\r\nX: y\r\n\r\n",
            "HTTP/1.1 404 Gone away\r\nContent-Length: 3\r\n\r\n",
            true,
        ),
        (
            "HTTP/1.1 200\r\nX: y\r\nUpgrade: h2c\r\n\r\n",
            "HTTP/1.1 200 \r\nX: y\r\nConnection: close\r\n\r\n",
            false,
        ),
        (
            "HTTP/1.0 200 \r\n\r\n",
            "HTTP/1.1 200 \r\nConnection: close\r\n\r\n",
            false,
        ),
        (
            "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
            true,
        ),
        // D6: such a response ends with its head, whatever it says.
        (
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: Chunked\r\nX: y\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nX: y\r\n\r\n",
            true,
        ),
        (
            "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\ncontent-length: 03\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 3\r\n\r\n",
            true,
        ),
        (
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
            true,
        ),
    ] {
        let passed_on = response(read, NOTHING, NEW);
        assert_eq!(
            passed_on,
            (expected.to_owned(), keep_alive, false),
            "{read}"
        );
    }
}

#[test]
fn interim_responses_say_nothing_about_the_connection() {
    let closing = Client {
        keep_alive: false,
        ..NEW
    };
    for read in [
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
    ] {
        assert_eq!(response(read, NOTHING, closing).0, read);
    }
}

#[test]
fn a_switch_of_protocols_is_passed_on() {
    let asked = FramingFacts {
        head: false,
        upgrade: true,
    };
    let read = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
        Upgrade: websocket\r\n\r\n";
    let expected = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
        Connection: upgrade\r\n\r\n";
    assert_eq!(
        response(read, asked, NEW),
        (expected.to_owned(), false, false)
    );
}

#[test]
fn responses_to_old_clients() {
    let head = FramingFacts {
        head: true,
        upgrade: false,
    };
    for (read, asked, expected, keep_alive, strip_chunks) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
            NOTHING,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n",
            true,
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n",
            NOTHING,
            "HTTP/1.1 200 OK\r\nX: y\r\nConnection: close\r\n\r\n",
            false,
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\nX: y\r\n\r\n",
            head,
            "HTTP/1.1 200 OK\r\nX: y\r\nConnection: keep-alive\r\n\r\n",
            true,
            false,
        ),
    ] {
        let passed_on = response(read, asked, OLD);
        assert_eq!(
            passed_on,
            (expected.to_owned(), keep_alive, strip_chunks),
            "{read}"
        );
    }
}

/// Start line and fields of a head, names in lower case; read by splitting.
fn split(head: &[u8]) -> (String, Vec<(String, String)>) {
    let text: String = head.iter().map(|&byte| char::from(byte)).collect();
    let head = text.split("\r\n\r\n").next().unwrap();
    let mut lines = head.split("\r\n");
    let start = lines.next().unwrap().to_owned();
    let fields = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        let value = value.trim_matches([' ', '\t']).to_owned();
        (name.to_ascii_lowercase(), value)
    });
    (start, fields.collect())
}

/// True if a field is about this hop, by its name alone.
fn is_hop_by_hop(name: &str, connection: &[String]) -> bool {
    let known = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "proxy-authenticate",
        "proxy-authentication-info",
        "te",
        "upgrade",
        "expect",
    ];
    known.contains(&name) || connection.iter().any(|option| option == name)
}

/// Fields that must arrive: all that are not about this hop and not about the client.
fn end_to_end(fields: &[(String, String)]) -> Vec<(String, String)> {
    let options = fields.iter().filter(|(name, _)| name == "connection");
    let options = options.flat_map(|(_, value)| value.split(','));
    let options: Vec<_> = options.map(|o| o.trim().to_ascii_lowercase()).collect();
    let mut kept: Vec<_> = fields
        .iter()
        .filter(|(name, _)| !is_hop_by_hop(name, &options))
        .filter(|(name, _)| {
            name != "forwarded" && !name.replace('_', "-").starts_with("x-forwarded-")
        })
        .map(|(name, value)| match name.as_str() {
            "transfer-encoding" => (name.clone(), value.to_ascii_lowercase()),
            "content-length" => (name.clone(), value.parse::<u64>().unwrap().to_string()),
            _ => (name.clone(), value.clone()),
        })
        .collect();
    // A field that is written anew goes to the end.
    kept.sort();
    kept
}

fn field() -> impl Strategy<Value = String> {
    let names = prop::sample::select(vec![
        "Host",
        "Content-Length",
        "Transfer-Encoding",
        "Connection",
        "Upgrade",
        "TE",
        "Expect",
        "Keep-Alive",
        "X-Forwarded-For",
        "x_forwarded_host",
        "Forwarded",
        "Via",
        "X",
        "Cookie",
        "proxy-connection",
        "Trailer",
        "Proxy-Authorization",
        "content_length",
    ]);
    let values = prop::sample::select(vec![
        "a",
        "a:80",
        "5",
        "007",
        "chunked",
        "Chunked",
        "close",
        "keep-alive, X",
        "cookie",
        "websocket",
        "upgrade",
        "trailers",
        "te, upgrade",
        "100-continue",
        "",
        "x, y",
        "host",
        "5, 5",
        "\u{7f}",
        "\r",
        "gzip, chunked",
        "[::1]",
    ]);
    let spaces = prop::sample::select(vec![" ", "", "  ", "\t"]);
    let ends = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", " \r\n", "\n", "\r\n "]);
    let likely = prop::sample::select(vec![
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Accept: */*\r\n",
        "Connection: keep-alive, X\r\n",
        "X: 1\r\n",
        "Transfer-Encoding:\tchunked \r\n",
        "Connection: upgrade\r\nUpgrade: websocket\r\n",
        "X-Forwarded-For: 1.1.1.1\r\n",
    ]);
    prop_oneof![
        1 => (names, spaces, values, ends)
            .prop_map(|(name, space, value, end)| format!("{name}:{space}{value}{end}")),
        3 => likely.prop_map(str::to_owned),
    ]
}

fn request_text() -> impl Strategy<Value = String> {
    let lines = prop::sample::select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /a?b HTTP/1.1\r\n",
        "GET /a HTTP/1.0\r\n",
        "GET http://b/c HTTP/1.1\r\n",
        "HEAD http://b?c HTTP/1.0\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "\r\nGET / HTTP/1.1\r\n",
        "GET  / HTTP/1.1\r\n",
    ]);
    let hosts = prop::sample::select(vec!["Host: a\r\n", "Host: a\r\n", "host:b:1\r\n", ""]);
    let fields = prop::collection::vec(field(), 0..6);
    (lines, fields, hosts).prop_map(|(line, fields, host)| {
        let half = fields.len() / 2;
        let (before, after) = fields.split_at(half);
        format!("{line}{}{host}{}\r\n", before.concat(), after.concat())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_forwarded_request_means_the_same(
        text in request_text(),
        x_forwarded in any::<bool>(),
        forwarded in any::<bool>(),
        trust in any::<bool>(),
    ) {
        let options = HttpOptions {
            x_forwarded,
            forwarded,
            trust_forwarded: trust,
            via: None,
            ..options()
        };
        let hop = hop(&options, "192.0.2.7");
        let mut fields = Fields::new();
        let Ok(ParseOutcome::Head(head)) = RequestHead::parse(text.as_bytes(), LIMITS, &mut fields)
        else {
            return Ok(());
        };
        let mut out = Vec::new();
        write_request(&head.request, &hop, &mut out);

        let mut fields = Fields::new();
        let again = RequestHead::parse(&out, LIMITS, &mut fields);
        let Ok(ParseOutcome::Head(again)) = again else {
            panic!("{:?} gave {again:?}", out.escape_ascii().to_string());
        };
        prop_assert_eq!(again.len, out.len());
        prop_assert_eq!(again.version, Version::Http11);
        let (left, came) = (&again.request, &head.request);
        prop_assert_eq!(left.method, came.method);
        prop_assert_eq!(left.path(), came.path());
        prop_assert_eq!(left.body, came.body);
        prop_assert_eq!(left.authority, Some(came.authority.unwrap_or("192.0.2.1:8080")));
        prop_assert_eq!(again.framing_facts, head.framing_facts);
        prop_assert_eq!(again.expect_continue, head.expect_continue);
        prop_assert!(again.keep_alive);

        // What a front says that has no lines of HTTP/1 to copy makes the same head.
        let modelled = Request { raw: None, ..head.request };
        let mut from_model = Vec::new();
        write_request(&modelled, &hop, &mut from_model);
        prop_assert_eq!(split(&from_model), split(&out));

        let came = split(text.trim_start().as_bytes());
        let left = split(&out);
        let not_host = |fields: &[(String, String)]| {
            let mut fields = end_to_end(fields);
            fields.retain(|(name, _)| name != "host");
            fields
        };
        prop_assert_eq!(not_host(&came.1), not_host(&left.1));

        // Forwarding what was forwarded changes nothing but what is said of the client.
        let twice = try_request(&out, &hop).unwrap().unwrap();
        let twice = split(&twice);
        prop_assert_eq!(&twice.0, &left.0);
        prop_assert_eq!(end_to_end(&twice.1), end_to_end(&left.1));
    }

    #[test]
    fn no_part_of_a_request_is_a_request(text in request_text()) {
        let hop = hop(&options(), "192.0.2.7");
        let whole = try_request(text.as_bytes(), &hop);
        let end = match &whole {
            Ok(Some(_)) => {
                let mut fields = Fields::new();
                let parsed = RequestHead::parse(text.as_bytes(), LIMITS, &mut fields);
                match parsed {
                    Ok(ParseOutcome::Head(head)) => head.len,
                    _ => unreachable!("it was a head just now"),
                }
            }
            _ => text.len(),
        };
        for cut in 0..text.len() {
            let part = try_request(&text.as_bytes()[..cut], &hop);
            match (&whole, part) {
                // Valid: nothing is known too early, and nothing changes afterwards.
                (Ok(_), part) if cut < end => prop_assert_eq!(part, Ok(None)),
                (Ok(_), part) => prop_assert_eq!(&part, &whole),
                // Refused: no part of it is taken for a head.
                (Err(_), part) => prop_assert!(!matches!(part, Ok(Some(_)))),
            }
        }
    }

    #[test]
    fn a_forwarded_response_means_the_same(
        status in prop::sample::select(vec![100u16, 101, 103, 200, 204, 304, 404, 500, 999]),
        fields in prop::collection::vec(field(), 0..6),
        old_member in any::<bool>(),
        old_client in any::<bool>(),
        head_request in any::<bool>(),
        upgrade in any::<bool>(),
        keep_alive in any::<bool>(),
    ) {
        let minor = u8::from(!old_member);
        let text = format!("HTTP/1.{minor} {status} Reason\r\n{}\r\n", fields.concat());
        let asked = FramingFacts { head: head_request, upgrade };
        let mut fields = Fields::new();
        let parsed = ResponseHead::parse(text.as_bytes(), LIMITS, asked, &mut fields);
        let Ok(ParseOutcome::Head(head)) = parsed else { return Ok(()) };
        if head.is_interim() && old_client {
            return Ok(());
        }
        let version = if old_client { Version::Http10 } else { Version::Http11 };
        let mut out = Vec::new();
        let delivery = write_response(&head, Client { version, keep_alive }, &mut out);

        let mut fields = Fields::new();
        let again = ResponseHead::parse(&out, LIMITS, asked, &mut fields);
        let Ok(ParseOutcome::Head(again)) = again else {
            panic!("{:?} gave {again:?}", out.escape_ascii().to_string());
        };
        prop_assert_eq!((again.len, again.status), (out.len(), head.status));
        let body = if delivery.strip_chunks { Body::UntilClose } else { head.body };
        prop_assert_eq!(again.body, body);
        if !head.is_interim() {
            prop_assert_eq!(again.keep_alive, delivery.keep_alive);
            prop_assert!(keep_alive || !delivery.keep_alive);
        }
        let came: Vec<_> = end_to_end_of_response(&split(text.as_bytes()).1, status, old_client);
        let left: Vec<_> = end_to_end_of_response(&split(&out).1, status, old_client);
        prop_assert_eq!(came, left);
    }
}

/// Returns the fields that `end_to_end` returns, but fields about the client mean nothing in a
/// response, and some statuses and clients have no use for framing.
fn end_to_end_of_response(
    fields: &[(String, String)],
    status: u16,
    old_client: bool,
) -> Vec<(String, String)> {
    let mut kept = end_to_end(fields);
    let mut has_length = false;
    kept.retain(|(name, _)| match name.as_str() {
        // The same once more is left out.
        "content-length" if std::mem::replace(&mut has_length, true) => false,
        "content-length" => !matches!(status, 100..=199 | 204),
        "transfer-encoding" => !old_client && status != 204,
        _ => true,
    });
    kept
}

#[test]
fn a_question_has_the_fields_of_the_request_and_says_what_it_is() {
    let question = |read: &str, options: &HttpOptions| {
        let mut fields = Fields::new();
        let parsed = RequestHead::parse(read.as_bytes(), LIMITS, &mut fields);
        let Ok(ParseOutcome::Head(head)) = parsed else {
            panic!("{read}: {parsed:?}");
        };
        let sticky = [&b"at"[..]].map(Box::from).into();
        let cookies = BalancerCookies {
            sticky: Some(&sticky),
            sessions: true,
        };
        let mut out = Vec::new();
        let hop = hop(options, "192.0.2.7");
        write_question(&head.request, &hop, "/ask?a", cookies, &mut out);
        // What comes of it is one request without a body.
        let mut fields = Fields::new();
        let parsed = RequestHead::parse(&out, LIMITS, &mut fields);
        assert!(
            matches!(&parsed, Ok(ParseOutcome::Head(head)) if head.len == out.len()
                && head.request.body == Body::None && !head.framing_facts.upgrade && !head.expect_continue),
            "{parsed:?}"
        );
        String::from_utf8(out).unwrap()
    };
    // Nothing else is said of the client to members of this rule.
    let told = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a\r\n";
    let original =
        |proto: &str, client: &str, fields: &str, told: &str, method: &str, uri: &str| {
            let path = if uri == "*" { "/" } else { uri };
            format!(
                "GET /ask?a HTTP/1.1\r\n{fields}{told}X-Forwarded-Method: {method}\r\n\
             X-Forwarded-Uri: {uri}\r\nX-Original-Method: {method}\r\n\
             X-Original-URL: {proto}://a{path}\r\nX-Real-IP: {client}\r\n\r\n"
            )
        };
    let asked = |fields: &str, told: &str, method: &str, uri: &str| {
        original("http", "192.0.2.7", fields, told, method, uri)
    };
    for (head, fields, method, uri) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n", "Host: a\r\n", "GET", "/"),
        (
            "POST /a?b HTTP/1.1\r\nhost: a\r\nContent-Length: 3\r\nContent-Type: t\r\n\
             Expect: 100-continue\r\nX: y\r\n",
            "host: a\r\nContent-Type: t\r\nX: y\r\n",
            "POST",
            "/a?b",
        ),
        (
            "PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\nTE: trailers\r\n\
             Connection: TE, X-Hop\r\nX-Hop: 1\r\nContent-Encoding: gzip\r\nKeep-Alive: 1\r\n",
            "Host: a\r\n",
            "PUT",
            "/a",
        ),
        (
            "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Range: bytes=0-1\r\nIF-match: *\r\nif_none_match: *\r\nIf-Range: x\r\n\
             If-Modified-Since: x\r\nIf-Unmodified-Since: x\r\n",
            "Host: a\r\n",
            "GET",
            "/ws",
        ),
        (
            "GET http://a?x HTTP/1.1\r\nHost: a\r\nX-Forwarded-Method: PUT\r\nx_forwarded_uri: /other\r\n\
             X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Host: b\r\nForwarded: for=x\r\n",
            "Host: a\r\n",
            "GET",
            "/?x",
        ),
        (
            "OPTIONS * HTTP/1.1\r\nHost: a\r\nAuthorization: Basic x\r\n",
            "Host: a\r\nAuthorization: Basic x\r\n",
            "OPTIONS",
            "*",
        ),
    ] {
        let read = format!("{head}\r\n");
        let wanted = asked(fields, told, method, uri);
        assert_eq!(question(&read, &options()), wanted, "{head}");
    }
    // The balancer's own cookies are for nobody.
    let read = "GET / HTTP/1.1\r\nHost: a\r\nCookie: at=1; b=2; evenkeel_session=3\r\n\r\n";
    let wanted = asked("Host: a\r\nCookie: b=2\r\n", told, "GET", "/");
    assert_eq!(question(read, &options()), wanted);
    // What a trusted proxy says of the client is passed on, but not what it says of a question.
    let trusting = HttpOptions {
        trust_forwarded: true,
        ..options()
    };
    let read = "GET /x HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\n\
                X-Forwarded-Proto: https\r\nX-Forwarded-Uri: /y\r\nx_Forwarded_Method: PUT\r\n\
                X-Real-IP: 6.6.6.6\r\nX-Original-URL: http://a/free\r\n\r\n";
    let told = "X-Forwarded-For: 192.0.2.1, 192.0.2.7\r\nX-Forwarded-Host: a\r\n";
    let fields = "Host: a\r\nX-Forwarded-Proto: https\r\n";
    let wanted = original("https", "192.0.2.1", fields, told, "GET", "/x");
    assert_eq!(question(read, &trusting), wanted);
}

/// Names of fields in spellings that some server takes for the same.
fn spelt(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    let spell = |name: &'static str| {
        let byte = |byte: u8| match byte {
            b'-' => prop::sample::select(b"-_.~!|".to_vec()).boxed(),
            byte => {
                prop::sample::select(vec![byte.to_ascii_lowercase(), byte.to_ascii_uppercase()])
                    .boxed()
            }
        };
        let bytes: Vec<_> = name.bytes().map(byte).collect();
        bytes.prop_map(|bytes| String::from_utf8(bytes).unwrap())
    };
    prop::sample::select(names).prop_flat_map(spell)
}

/// Fields that the balancer vouches for in the heads of this test.
const VOUCHED: &[&str] = &[
    "X-Remote-User",
    "X-Client-Cert",
    "X-Client-Cert-Subject",
    "X-Evenkeel-Mirror",
    "X-Real-IP",
    "X-Secret",
    "X-Request-ID",
    "X-Forwarded-For",
    "X-Forwarded-Port",
];

/// Fields that login services decide by.
const DECIDES: &[&str] = &[
    "X-Remote-User",
    "X-Client-Cert-Verified",
    "X-Real-IP",
    "X-Original-URL",
    "X-Original-URI",
    "X-Original-Method",
    "X-Rewrite-URL",
    "X-Forwarded-Uri",
    "X-Forwarded-Method",
];

/// A head with a field in it, as it leaves: copied from lines, from a model, and as a question.
fn leaves(name: &str, more: &str) -> Option<[String; 3]> {
    let options = HttpOptions {
        reserved: ["X-Client-Cert", "X-Evenkeel-Mirror", "X-Remote-User"]
            .map(str::to_owned)
            .to_vec(),
        ..options()
    };
    let hop = hop(&options, "192.0.2.7");
    let sets = FieldChanges {
        set: [("X-Real-IP".to_owned(), "{client}".to_owned())].into(),
        remove: vec!["X-Secret".to_owned()],
        ..FieldChanges::default()
    };
    let changes = Changes {
        fields: Some(&sets),
        marks: Some(RequestMarks {
            id: Some(("X-Request-ID", "ours")),
            ..RequestMarks::default()
        }),
        ..Changes::default()
    };
    let read = format!("GET / HTTP/1.1\r\nHost: a\r\n{name}: forged\r\n{more}X-Own: x\r\n\r\n");
    let mut fields = Fields::new();
    let parsed = RequestHead::parse(read.as_bytes(), LIMITS, &mut fields);
    let Ok(ParseOutcome::Head(head)) = parsed else {
        return None;
    };
    let mut written = [Vec::new(), Vec::new(), Vec::new()];
    let [raw, model, question] = &mut written;
    write_changed(&head.request, &hop, changes, raw);
    write_question(
        &head.request,
        &hop,
        "/",
        BalancerCookies::default(),
        question,
    );
    let modelled = Request {
        raw: None,
        ..head.request
    };
    write_changed(&modelled, &hop, changes, model);
    Some(written.map(|out| String::from_utf8(out).unwrap()))
}

proptest! {
    /// A field that the balancer vouches for comes from no client, in no spelling, and by no way
    /// in.
    #[test]
    fn n1_n3_n4_what_the_balancer_vouches_for_comes_from_no_client(
        vouched in spelt(VOUCHED),
        decides in spelt(DECIDES),
        upgrades in any::<bool>(),
    ) {
        let more = match upgrades {
            true => "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n",
            false => "",
        };
        let [raw, model, _] = leaves(&vouched, more).unwrap();
        for out in [raw, model] {
            prop_assert!(!out.contains("forged") && out.contains("X-Own: x"), "{}", out);
        }
        let [.., question] = leaves(&decides, more).unwrap();
        prop_assert!(!question.contains("forged") && question.contains("X-Own: x"), "{}", question);
        // What is named may be a trailer, but not in another spelling, nor where a head would not bring it.
        let is_vouched = |name: &str| VOUCHED.iter().any(|known| is_same_name(known, name));
        let named = VOUCHED.iter().chain(DECIDES).map(|name| (*name).to_owned());
        let passing = RequestTrailers::new(&named.collect::<Vec<_>>(), |name| {
            is_vouched(name) || DECIDING.iter().any(|family| is_in_family(name, family))
                || is_in_family(name, "X-Client-Cert")
        });
        for name in [&vouched, &decides] {
            let mut body = format!("1\r\nx\r\n0\r\n{name}: forged\r\n\r\n").into_bytes();
            let mut decoder = Decoder::with_bounds(u64::MAX, Trailers::Listed(Arc::new(passing.clone())));
            if let Ok((kept, scanned)) = decoder.pass_input(&mut body) {
                prop_assert!(scanned.end);
                prop_assert_eq!(&body[..kept], b"1\r\nx\r\n0\r\n\r\n");
            }
        }
    }
}

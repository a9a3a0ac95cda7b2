//! Requests that are refused, and what is understood of the others.

use super::HeadError as E;
use super::*;
use crate::message::Body;

const LIMITS: Limits = Limits {
    max_bytes: 1024,
    max_fields: 16,
};
const NOTHING: FramingFacts = FramingFacts {
    head: false,
    upgrade: false,
};

fn request(read: &[u8]) -> Result<bool, HeadError> {
    let mut fields = Fields::new();
    let parsed = RequestHead::parse(read, LIMITS, &mut fields)?;
    Ok(matches!(parsed, ParseOutcome::Head(_)))
}

fn with_request<T>(read: &[u8], see: impl FnOnce(RequestHead<'_>) -> T) -> T {
    let mut fields = Fields::new();
    match RequestHead::parse(read, LIMITS, &mut fields) {
        Ok(ParseOutcome::Head(head)) => see(head),
        other => panic!("{:?}: {other:?}", read.escape_ascii().to_string()),
    }
}

/// Name of the ambiguity, the head, the refusal.
const REFUSED_REQUESTS: &[(&str, &str, E)] = &[
    // Lines.
    (
        "bare LF after request line",
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        E::LineEnd,
    ),
    (
        "bare LF after field",
        "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
        E::LineEnd,
    ),
    (
        "bare LF after last field",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        E::LineEnd,
    ),
    (
        "bare LF as empty line",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        E::LineEnd,
    ),
    ("bare LF only", "GET / HTTP/1.1\nHost: a\n\n", E::LineEnd),
    (
        "bare CR after request line",
        "GET / HTTP/1.1\rHost: a\r\n\r\n",
        E::LineEnd,
    ),
    (
        "bare CR in field",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: w\r\n\r\n",
        E::FieldValue,
    ),
    (
        "bare CR before field",
        "GET / HTTP/1.1\r\nHost: a\r\n\rX: y\r\n\r\n",
        E::LineEnd,
    ),
    (
        "CR CR LF",
        "GET / HTTP/1.1\r\nHost: a\r\r\n\r\n",
        E::FieldValue,
    ),
    (
        "NUL in value",
        "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
        E::FieldValue,
    ),
    (
        "control in value",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\x0bb\r\n\r\n",
        E::FieldValue,
    ),
    (
        "DEL in value",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\x7f\r\n\r\n",
        E::FieldValue,
    ),
    (
        "folded line",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
        E::FieldName,
    ),
    (
        "folded with tab",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n",
        E::FieldName,
    ),
    (
        "folded empty value",
        "GET / HTTP/1.1\r\nHost: a\r\nX:\r\n z\r\n\r\n",
        E::FieldName,
    ),
    (
        "space before first field",
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        E::FieldName,
    ),
    (
        "space before colon",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        E::FieldName,
    ),
    (
        "tab before colon",
        "GET / HTTP/1.1\r\nHost\t: a\r\n\r\n",
        E::FieldName,
    ),
    (
        "empty name",
        "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n",
        E::FieldName,
    ),
    (
        "no colon",
        "GET / HTTP/1.1\r\nHost: a\r\nnothing\r\n\r\n",
        E::FieldName,
    ),
    (
        "NUL in name",
        "GET / HTTP/1.1\r\nHost: a\r\nX\0: y\r\n\r\n",
        E::FieldName,
    ),
    (
        "not a name",
        "GET / HTTP/1.1\r\nHost: a\r\nX(y): z\r\n\r\n",
        E::FieldName,
    ),
    (
        "two empty lines first",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        E::LeadingLine,
    ),
    (
        "LF first",
        "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        E::LeadingLine,
    ),
    (
        "CR first",
        "\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        E::LeadingLine,
    ),
    // Request line.
    (
        "space first",
        " GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        E::StartLine,
    ),
    (
        "no method token",
        "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
        E::StartLine,
    ),
    (
        "two spaces",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        E::StartLine,
    ),
    (
        "two spaces, 2",
        "GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
        E::StartLine,
    ),
    (
        "tab for space",
        "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
        E::StartLine,
    ),
    (
        "space in target",
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        E::StartLine,
    ),
    (
        "space after version",
        "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        E::LineEnd,
    ),
    ("HTTP/0.9", "GET /\r\n\r\n", E::StartLine),
    (
        "lower case version",
        "GET / http/1.1\r\nHost: a\r\n\r\n",
        E::StartLine,
    ),
    ("HTTP/1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", E::Version),
    (
        "HTTP/2 preface",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        E::Version,
    ),
    (
        "HTTP/1.10",
        "GET / HTTP/1.10\r\nHost: a\r\n\r\n",
        E::LineEnd,
    ),
    ("TLS", "\x16\x03\x01\x02\x00\x01\x00", E::StartLine),
    (
        "fragment",
        "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
        E::Target,
    ),
    (
        "target not ASCII",
        "GET /ä HTTP/1.1\r\nHost: a\r\n\r\n",
        E::Target,
    ),
    (
        "NUL in target",
        "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        E::StartLine,
    ),
    (
        "authority form",
        "GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        E::Target,
    ),
    (
        "relative path",
        "GET a/b HTTP/1.1\r\nHost: a\r\n\r\n",
        E::Target,
    ),
    (
        "other scheme",
        "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        E::Target,
    ),
    (
        "no authority",
        "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n",
        E::Target,
    ),
    (
        "user information",
        "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        E::Target,
    ),
    (
        "asterisk of GET",
        "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
        E::Target,
    ),
    (
        "CONNECT",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        E::Connect,
    ),
    // Host.
    ("no Host", "GET / HTTP/1.1\r\n\r\n", E::MissingHost),
    (
        "two Hosts",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        E::RepeatedHost,
    ),
    (
        "two Hosts in 1.0",
        "GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
        E::RepeatedHost,
    ),
    (
        "empty Host",
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        E::InvalidHost,
    ),
    (
        "list of Hosts",
        "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
        E::InvalidHost,
    ),
    (
        "path in Host",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        E::InvalidHost,
    ),
    (
        "user in Host",
        "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
        E::InvalidHost,
    ),
    (
        "port no number",
        "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
        E::InvalidHost,
    ),
    (
        "two ports",
        "GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n",
        E::InvalidHost,
    ),
    (
        "port without host",
        "GET / HTTP/1.1\r\nHost: :80\r\n\r\n",
        E::InvalidHost,
    ),
    (
        "open bracket",
        "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
        E::InvalidHost,
    ),
    (
        "absolute form, no Host",
        "GET http://a/ HTTP/1.1\r\n\r\n",
        E::MissingHost,
    ),
    // Framing. Each is completed by a Host below.
    (
        "both",
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        E::LengthAndTransferEncoding,
    ),
    (
        "both, 2",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        E::LengthAndTransferEncoding,
    ),
    (
        "lengths differ",
        "Content-Length: 3\r\nContent-Length: 4",
        E::RepeatedContentLength,
    ),
    (
        "length twice",
        "Content-Length: 3\r\nContent-Length: 3",
        E::RepeatedContentLength,
    ),
    (
        "length list",
        "Content-Length: 5, 5",
        E::InvalidContentLength,
    ),
    ("length empty", "Content-Length:", E::InvalidContentLength),
    ("length +", "Content-Length: +5", E::InvalidContentLength),
    ("length -", "Content-Length: -5", E::InvalidContentLength),
    (
        "length hexadecimal",
        "Content-Length: 0x5",
        E::InvalidContentLength,
    ),
    (
        "length fraction",
        "Content-Length: 5.0",
        E::InvalidContentLength,
    ),
    (
        "length with space",
        "Content-Length: 5 5",
        E::InvalidContentLength,
    ),
    (
        "length 2^63",
        "Content-Length: 9223372036854775808",
        E::InvalidContentLength,
    ),
    (
        "length 2^64 + 5",
        "Content-Length: 18446744073709551621",
        E::InvalidContentLength,
    ),
    ("length with _", "Content_Length: 5", E::AliasedFraming),
    (
        "coding with _",
        "Transfer_Encoding: chunked",
        E::AliasedFraming,
    ),
    (
        "coding empty",
        "Transfer-Encoding:",
        E::InvalidTransferEncoding,
    ),
    (
        "coding twice",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        E::InvalidTransferEncoding,
    ),
    (
        "chunked twice",
        "Transfer-Encoding: chunked, chunked",
        E::InvalidTransferEncoding,
    ),
    (
        "chunked not last",
        "Transfer-Encoding: chunked, gzip",
        E::InvalidTransferEncoding,
    ),
    (
        "identity",
        "Transfer-Encoding: identity",
        E::InvalidTransferEncoding,
    ),
    (
        "coding misspelt",
        "Transfer-Encoding: xchunked",
        E::InvalidTransferEncoding,
    ),
    (
        "coding quoted",
        "Transfer-Encoding: \"chunked\"",
        E::InvalidTransferEncoding,
    ),
    (
        "coding with comma",
        "Transfer-Encoding: chunked,",
        E::InvalidTransferEncoding,
    ),
    (
        "coding with parameter",
        "Transfer-Encoding: chunked;a=b",
        E::InvalidTransferEncoding,
    ),
    (
        "another coding",
        "Transfer-Encoding: gzip, chunked",
        E::UnknownTransferCoding,
    ),
    // The connection.
    (
        "Connection no token",
        "Connection: close; x",
        E::InvalidConnection,
    ),
    (
        "Connection names Host",
        "Connection: close, host",
        E::ProtectedByConnection,
    ),
    (
        "Connection names length",
        "Connection: Content-Length",
        E::ProtectedByConnection,
    ),
    (
        "Connection names coding",
        "Connection: transfer-encoding",
        E::ProtectedByConnection,
    ),
    (
        "Connection names client",
        "Connection: X-Forwarded-For",
        E::ProtectedByConnection,
    ),
    ("other expectation", "Expect: 200-ok", E::Expectation),
];

#[test]
fn ambiguous_requests_are_refused() {
    for &(name, head, error) in REFUSED_REQUESTS {
        let whole = match head.contains("\r\n\r\n") || head.starts_with('\x16') {
            true => head.to_owned(),
            false if head.contains("/1.") => head.to_owned(),
            false => format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n"),
        };
        assert_eq!(request(whole.as_bytes()), Err(error), "{name}");
    }
}

#[test]
fn chunked_in_http_1_0_is_refused() {
    let head = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(request(head), Err(E::TransferEncodingInHttp10));
}

#[test]
fn too_many_names_in_connection_are_refused() {
    let names = vec!["x"; 17].join(",");
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {names}\r\n\r\n");
    assert_eq!(request(head.as_bytes()), Err(E::InvalidConnection));
}

#[test]
fn large_heads_are_refused_as_soon_as_that_is_known() {
    let long_target = [b"GET /".as_slice(), &[b'a'; 1019]].concat();
    assert_eq!(request(&long_target[..1023]), Ok(false));
    assert_eq!(request(&long_target), Err(E::TargetTooLong));
    let whole = [&long_target, b" HTTP/1.1\r\nHost: a\r\n\r\n".as_slice()].concat();
    assert_eq!(request(&whole), Err(E::TargetTooLong));

    let head = [b"GET / HTTP/1.1\r\nHost: a\r\nX: ".as_slice(), &[b'a'; 992]].concat();
    let whole = [head.as_slice(), b"\r\n\r\n"].concat();
    assert_eq!(whole.len(), 1024);
    assert_eq!(request(&whole), Ok(true));
    let longer = [head.as_slice(), b"a\r\n\r\n"].concat();
    assert_eq!(request(&longer), Err(E::TooLarge));
    assert_eq!(request(&longer[..1024]), Err(E::TooLarge));

    let fields = "X: y\r\n".repeat(15);
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}");
    assert_eq!(request(format!("{head}\r\n").as_bytes()), Ok(true));
    assert_eq!(
        request(format!("{head}Z: y\r\n\r\n").as_bytes()),
        Err(E::TooManyFields)
    );
}

#[test]
fn a_limit_above_the_room_is_cut_to_it() {
    let limits = Limits {
        max_bytes: 1 << 20,
        max_fields: usize::MAX,
    };
    let fields = "X: y\r\n".repeat(MAX_FIELDS);
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let mut room = Fields::new();
    let parsed = RequestHead::parse(head.as_bytes(), limits, &mut room);
    assert!(matches!(parsed, Err(E::TooManyFields)));
}

#[test]
fn one_empty_line_before_a_request_is_skipped() {
    let read = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nrest";
    with_request(read, |head| assert_eq!(&read[head.len..], b"rest"));
}

#[test]
fn the_parts_of_a_request() {
    let read = b"POST /a?b=c|d HTTP/1.1\r\nhOST: example.org:8080\r\n\
        X: 1\r\nExpect: 100-Continue\r\nContent-Length: 5\r\nx: \xff2 \r\n\r\nhello";
    with_request(read, |head| {
        assert_eq!((head.request.method, head.target), ("POST", "/a?b=c|d"));
        assert_eq!(head.version, Version::Http11);
        assert_eq!(head.request.authority, Some("example.org:8080"));
        assert_eq!(head.request.body, Body::Length(5));
        assert!(head.keep_alive && head.expect_continue);
        assert_eq!(head.framing_facts, NOTHING);
        let values: Vec<_> = head.request.values("x").collect();
        assert_eq!(values, [b"1".as_slice(), b"\xff2"]);
        assert_eq!(&read[head.len..], b"hello");
    });
}

#[test]
fn hosts_that_are_valid() {
    for host in [
        "a",
        "a:",
        "A.b-c_d:80",
        "127.0.0.1:65535",
        "[::1]",
        "[2001:db8::1]:443",
    ] {
        let read = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        with_request(read.as_bytes(), |head| {
            assert_eq!(head.request.authority, Some(host));
        });
    }
}

#[test]
fn the_target_in_absolute_form_names_the_host() {
    let read = b"GET HTTP://real:81?q HTTP/1.1\r\nHost: other\r\n\r\n";
    with_request(read, |head| {
        assert_eq!(head.request.authority, Some("real:81"));
    });
}

#[test]
fn the_connection_goes_on_or_not() {
    for (version, connection, goes_on) in [
        ("1.1", "", true),
        ("1.1", "Connection: keep-alive\r\n", true),
        ("1.1", "Connection: Close\r\n", false),
        ("1.1", "Connection: x, ,CLOSE\r\n", false),
        (
            "1.1",
            "Connection: keep-alive\r\nConnection: close\r\n",
            false,
        ),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
        ("1.0", "Proxy-Connection: keep-alive\r\n", false),
    ] {
        let read = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
        with_request(read.as_bytes(), |head| {
            assert_eq!(head.keep_alive, goes_on, "{version} {connection}");
        });
    }
}

#[test]
fn an_expectation_needs_a_body_and_http_1_1() {
    for (head, waits) in [
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-continue",
            true,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nExpect: 100-continue",
            false,
        ),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue", false),
        (
            "POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue",
            false,
        ),
        (
            "POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: whatever",
            false,
        ),
    ] {
        with_request(format!("{head}\r\n\r\n").as_bytes(), |parsed| {
            assert_eq!(parsed.expect_continue, waits, "{head}");
        });
    }
}

#[test]
fn an_upgrade_needs_all_of_its_parts() {
    for (head, upgrade) in [
        (
            "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket",
            true,
        ),
        (
            "GET / HTTP/1.1\r\nConnection: keep-alive, upgrade\r\nUpgrade: a/1, b",
            true,
        ),
        ("GET / HTTP/1.1\r\nUpgrade: websocket", false),
        ("GET / HTTP/1.1\r\nConnection: upgrade", false),
        ("GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade:", false),
        (
            "GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket",
            false,
        ),
        (
            "POST / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket",
            false,
        ),
        (
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nConnection: upgrade\r\nUpgrade: w",
            false,
        ),
        (
            "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c",
            false,
        ),
        (
            "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket, H2C",
            false,
        ),
        (
            "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: a\r\nUpgrade: TLS/1.0",
            false,
        ),
    ] {
        with_request(format!("{head}\r\nHost: a\r\n\r\n").as_bytes(), |parsed| {
            assert_eq!(parsed.framing_facts.upgrade, upgrade, "{head}");
        });
    }
}

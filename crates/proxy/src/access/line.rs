//! Records as lines: JSON objects, the combined format of web servers, or texts with fields.
//!
//! JSON is written by hand, as `serde_json` would write it: a line is made for each request, in the worker
//! that has served it.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use evenkeel_core::cost::Cost;
use evenkeel_manager::config::LogFormat;
use jiff::Timestamp;

use super::{Limit, Lines, LoggedHeaders, Peer, Record, text};
use crate::http2::grpc::CallStatus;
use crate::trace::trace_text;

/// Lines of one of the formats.
#[derive(Debug)]
pub struct LineFormatter {
    format: LogFormat,
    /// Header fields of records that the format needs, and their places.
    wants: LoggedHeaders,
    times: Times,
}

impl LineFormatter {
    /// Lines of this format.
    pub fn with_format(format: LogFormat) -> Self {
        let wants = LoggedHeaders {
            request: format.request_fields(),
            response: format.response_fields(),
        };
        LineFormatter {
            format,
            wants,
            times: Times::default(),
        }
    }
}

impl Lines for LineFormatter {
    fn push(&mut self, record: &Record<'_>, lines: &mut Vec<u8>) {
        let time = self.times.time_text(record.at);
        match &self.format {
            LogFormat::Json => append_json(record, time, lines),
            LogFormat::Combined => text::append_combined(record, time, &self.wants, lines),
            LogFormat::Custom(template) => {
                text::append_custom(template, record, time, &self.wants, lines);
            }
        }
    }

    fn wants(&self) -> LoggedHeaders {
        self.wants.clone()
    }

    fn another(&self) -> Box<dyn Lines> {
        Box::new(LineFormatter::with_format(self.format.clone()))
    }
}

/// The last second as text: most records are of the same one as those before them.
#[derive(Debug, Default)]
struct Times {
    /// `None` before the first one.
    second: Option<i64>,
    rfc3339: String,
    local: String,
}

/// A time as lines have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time<'t> {
    /// Date and time in UTC, as RFC 3339 has them, to the second.
    second: &'t str,
    millis: u16,
    /// Date and time in UTC as in `29/Feb/2024:12:34:56 +0000`.
    pub(super) local: &'t str,
}

impl Times {
    fn time_text(&mut self, at: SystemTime) -> Time<'_> {
        let millis = Timestamp::try_from(at).unwrap_or_default();
        let millis = millis.as_millisecond();
        let second = millis.div_euclid(1000);
        if self.second != Some(second) {
            self.second = Some(second);
            let at = Timestamp::from_second(second).unwrap_or_default();
            self.rfc3339.clear();
            self.local.clear();
            // Writing to a string cannot fail.
            let _ = write!(self.rfc3339, "{}", at.strftime("%Y-%m-%dT%H:%M:%S"));
            let _ = write!(self.local, "{}", at.strftime("%d/%b/%Y:%H:%M:%S +0000"));
        }
        Time {
            second: &self.rfc3339,
            millis: u16::try_from(millis.rem_euclid(1000)).unwrap_or_default(),
            local: &self.local,
        }
    }
}

/// The last digit of a number.
fn last_digit(number: u64) -> u8 {
    b'0' + u8::try_from(number % 10).unwrap_or_default()
}

impl Time<'_> {
    /// Appends the time in UTC with milliseconds, as RFC 3339 has it.
    pub(super) fn append_to(self, line: &mut Vec<u8>) {
        let millis = u64::from(self.millis);
        line.extend_from_slice(self.second.as_bytes());
        let [a, b, c] = [millis / 100, millis / 10, millis].map(last_digit);
        line.extend_from_slice(&[b'.', a, b, c, b'Z']);
    }
}

/// Room that most lines have enough of.
const USUAL: usize = 512;

/// Appends a record as a JSON object. The names are part of the documented format.
fn append_json(record: &Record<'_>, time: Time<'_>, line: &mut Vec<u8>) {
    line.reserve(USUAL);
    line.extend_from_slice(b"{\"time\":\"");
    time.append_to(line);
    put_text(b"\",\"rule\":\"", Some(&record.rule), line);
    line.extend_from_slice(b",\"client\":\"");
    put_peer(record.client, line);
    line.push(b'"');
    put_text(b",\"user\":\"", record.user.as_deref(), line);
    put_text(b",\"route\":\"", record.route.as_deref(), line);
    put_text(b",\"group\":\"", record.group.as_deref(), line);
    let tries = record.attempts.as_deref();
    match tries {
        Some(tries) => {
            put_text(b",\"member\":\"", Some(&tries.member), line);
            put_text(b",\"member_name\":\"", tries.member_name.as_deref(), line);
            if let [first, others @ ..] = &tries.before[..] {
                put_text(b",\"tried\":[\"", Some(first), line);
                for other in others {
                    put_text(b",\"", Some(other), line);
                }
                line.push(b']');
            }
        }
        None => line.extend_from_slice(b",\"member\":null"),
    }
    let tls = record.tls.as_ref().map(|tls| tls.version);
    put_text(b",\"tls\":\"", tls, line);
    put_text(b",\"server_name\":\"", record.asked_name(), line);
    if let Some((method, target)) = &record.request {
        put_text(b",\"method\":\"", Some(method), line);
        put_text(b",\"target\":\"", Some(target), line);
    }
    if let Some(status) = record.status {
        line.extend_from_slice(b",\"status\":");
        put_whole(u64::from(status), line);
    }
    let call = record.grpc_status.map(CallStatus::name);
    put_text(b",\"grpc_status\":\"", call, line);
    line.extend_from_slice(b",\"bytes_received\":");
    put_whole(record.bytes_received, line);
    line.extend_from_slice(b",\"bytes_sent\":");
    put_whole(record.bytes_sent, line);
    if let Some(tries) = tries {
        line.extend_from_slice(b",\"queue_ms\":");
        put_millis(tries.queued, line);
        if let Some(time) = tries.connect_time {
            line.extend_from_slice(b",\"connect_ms\":");
            put_millis(time, line);
        }
    }
    line.extend_from_slice(b",\"response_ms\":");
    match record.response_time {
        Some(time) => put_millis(time, line),
        None => line.extend_from_slice(b"null"),
    }
    if let Some(time) = tries.and_then(|tries| tries.first_byte) {
        line.extend_from_slice(b",\"first_byte_ms\":");
        put_millis(time, line);
    }
    line.extend_from_slice(b",\"total_ms\":");
    put_millis(record.total_time, line);
    if record.cost != Cost::ONE {
        line.extend_from_slice(b",\"cost\":");
        // A number, which a vector takes.
        let _ = serde_json::to_writer(&mut *line, &record.cost.get());
    }
    line.extend_from_slice(b",\"retries\":");
    put_whole(u64::from(record.retries), line);
    put_text(b",\"end\":\"", Some(record.end.name()), line);
    put_text(b",\"member_error\":\"", member_error(record), line);
    put_text(b",\"limit\":\"", limit_name(record), line);
    put_text(b",\"hedge\":\"", record.hedged.map(Into::into), line);
    put_text(b",\"request_id\":\"", request_id(record), line);
    put_text(b",\"trace_id\":\"", trace_id(record).as_deref(), line);
    line.extend_from_slice(b"}\n");
}

/// Appends a text, if it is there, what stands before it, and the quote behind it.
fn put_text<const N: usize>(before: &[u8; N], text: Option<&str>, line: &mut Vec<u8>) {
    if let Some(text) = text {
        line.extend_from_slice(before);
        escape_json(text, line);
        line.push(b'"');
    }
}

/// Escapes of bytes in a text of JSON: 0 is a byte that stays as it is, `u` one that is written by
/// its number.
const ESCAPES: [u8; 256] = {
    let mut all = [0; 256];
    let mut byte = 0;
    while byte < 0x20 {
        all[byte] = b'u';
        byte += 1;
    }
    all[0x08] = b'b';
    all[0x09] = b't';
    all[0x0a] = b'n';
    all[0x0c] = b'f';
    all[0x0d] = b'r';
    all[b'"' as usize] = b'"';
    all[b'\\' as usize] = b'\\';
    all
};

/// Appends a text as it stands between the quotes of JSON.
fn escape_json(text: &str, line: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let escape_of = |byte: u8| ESCAPES.get(usize::from(byte)).copied().unwrap_or(0);
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|&byte| escape_of(byte) != 0) {
        let (plain, from) = rest.split_at_checked(at).unwrap_or((rest, &[]));
        line.extend_from_slice(plain);
        let Some((&byte, after)) = from.split_first() else {
            return;
        };
        match escape_of(byte) {
            b'u' => {
                let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0');
                let number = [digit(byte >> 4), digit(byte & 15)];
                line.extend_from_slice(b"\\u00");
                line.extend_from_slice(&number);
            }
            letter => line.extend_from_slice(&[b'\\', letter]),
        }
        rest = after;
    }
    line.extend_from_slice(rest);
}

/// Appends a whole number.
pub(super) fn put_whole(number: u64, line: &mut Vec<u8>) {
    // As many digits as the largest has.
    let mut digits = [b'0'; 20];
    let (mut rest, mut first) = (number, digits.len());
    for place in digits.iter_mut().rev() {
        *place = last_digit(rest);
        rest /= 10;
        first -= 1;
        if rest == 0 {
            break;
        }
    }
    line.extend_from_slice(digits.get(first..).unwrap_or_default());
}

/// Number of microseconds from which on a `f64` does not have all digits: decades.
const EXACT: u64 = 1_000_000_000_000_000;

/// Appends a time in milliseconds with microseconds: a number with a point, and without zeros that say nothing.
fn put_millis(time: Duration, line: &mut Vec<u8>) {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    if micros >= EXACT {
        // A number, which a vector takes.
        let _ = serde_json::to_writer(line, &to_millis(time));
        return;
    }
    put_whole(micros / 1000, line);
    match [micros / 100, micros / 10, micros].map(last_digit) {
        [a, b'0', b'0'] => line.extend_from_slice(&[b'.', a]),
        [a, b, b'0'] => line.extend_from_slice(&[b'.', a, b]),
        [a, b, c] => line.extend_from_slice(&[b'.', a, b, c]),
    }
}

/// Appends a client's address, in which nothing is to be escaped.
fn put_peer(client: Peer, line: &mut Vec<u8>) {
    match client.0 {
        Some(std::net::SocketAddr::V4(address)) => {
            let [a, b, c, d] = address.ip().octets().map(u64::from);
            let parts = [(a, b'.'), (b, b'.'), (c, b'.'), (d, b':')];
            for (part, after) in parts {
                put_whole(part, line);
                line.push(after);
            }
            put_whole(u64::from(address.port()), line);
        }
        // Writing to a vector cannot fail.
        _ => {
            let _ = std::io::Write::write_fmt(line, format_args!("{client}"));
        }
    }
}

pub(super) fn limit_name<'r>(record: &'r Record<'_>) -> Option<&'r str> {
    let named = record.request_limit.as_deref();
    named.or(record.limit.map(Limit::name))
}

pub(super) fn member_error<'r>(record: &'r Record<'_>) -> Option<&'r str> {
    record.attempts.as_deref()?.member_error.as_deref()
}

pub(super) fn request_id<'r>(record: &'r Record<'_>) -> Option<&'r str> {
    record.details.as_ref()?.id.as_deref()
}

pub(super) fn trace_id(record: &Record<'_>) -> Option<String> {
    let trace = record.details.as_ref()?.trace.as_ref()?;
    Some(trace_text(trace.id))
}

pub(super) fn to_millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::UNIX_EPOCH;

    use evenkeel_tls::handshake::HandshakeParameters;
    use proptest::prelude::*;
    use serde::Serialize;

    use super::super::{Details, End, Hedged, MemberAttempts};
    use super::*;
    use crate::trace::Trace;

    pub(crate) fn sample_record(target: &str) -> Record<'static> {
        Record {
            at: UNIX_EPOCH + Duration::from_millis(1_709_210_096_789),
            client: Peer(Some("[::1]:4711".parse().unwrap())),
            rule: "web".into(),
            tls: None,
            user: None,
            route: None,
            group: Some("app".into()),
            server_name: None,
            attempts: Some(Box::new(MemberAttempts {
                member: "a:80".into(),
                member_name: None,
                before: vec!["b:80".into(), "c:80".into()],
                queued: Duration::from_millis(3),
                connect_time: Some(Duration::from_micros(150)),
                first_byte: None,
                head_bytes: 34,
                fields: Box::default(),
                member_error: None,
            })),
            request: Some(("GET".into(), target.to_owned().into())),
            protocol: Some("HTTP/1.1"),
            details: None,
            head_bytes_sent: 34,
            status: Some(200),
            grpc_status: None,
            bytes_received: 0,
            bytes_sent: 1234,
            response_time: Some(Duration::from_micros(1_250)),
            total_time: Duration::from_micros(2_500),
            cost: Cost::ONE,
            retries: 1,
            end: End::Complete,
            limit: None,
            request_limit: None,
            hedged: None,
        }
    }

    fn push(record: &Record<'_>) -> Vec<u8> {
        let mut line = Vec::new();
        LineFormatter::with_format(LogFormat::Json).push(record, &mut line);
        line
    }

    #[test]
    fn a_request_is_a_line() {
        let wanted = "{\"time\":\"2024-02-29T12:34:56.789Z\",\"rule\":\"web\",\
            \"client\":\"[::1]:4711\",\"group\":\"app\",\"member\":\"a:80\",\
            \"tried\":[\"b:80\",\"c:80\"],\"method\":\"GET\",\
            \"target\":\"/a?b=c\",\"status\":200,\"bytes_received\":0,\"bytes_sent\":1234,\
            \"queue_ms\":3.0,\"connect_ms\":0.15,\"response_ms\":1.25,\"total_ms\":2.5,\"retries\":1,\"end\":\"complete\"}\n";
        assert_eq!(
            String::from_utf8(push(&sample_record("/a?b=c"))).unwrap(),
            wanted
        );
    }

    #[test]
    fn g6_a_member_with_a_name_has_it_beside_its_address() {
        let mut record = sample_record("/");
        record.attempts.as_mut().unwrap().member_name = Some("s1".into());
        let line = String::from_utf8(push(&record)).unwrap();
        let wanted = ",\"member\":\"a:80\",\"member_name\":\"s1\",\"tried\":";
        assert!(line.contains(wanted), "{line}");
    }

    #[test]
    fn hostile_targets_stay_within_their_string() {
        let all: String = (0..=0x2100u32).filter_map(char::from_u32).collect();
        let line = push(&sample_record(&all));
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["target"], all.as_str());
        assert_eq!(line["end"], "complete");
    }

    #[test]
    fn a_tcp_connection_has_no_request() {
        let limited = Record {
            end: End::Limited,
            limit: Some(Limit::NewConnections),
            ..sample_record("/")
        };
        let line: serde_json::Value = serde_json::from_slice(&push(&limited)).unwrap();
        assert_eq!(line["end"], "limited");
        assert_eq!(line["limit"], "new_connections");
        let record = Record {
            request: None,
            status: None,
            attempts: None,
            cost: Cost::new(2.5).unwrap(),
            ..sample_record("")
        };
        let line: serde_json::Value = serde_json::from_slice(&push(&record)).unwrap();
        assert!(line.get("target").is_none() && line.get("status").is_none());
        assert_eq!(line["cost"], 2.5);
        assert!(line["member"].is_null());
        let tried = ["tried", "queue_ms", "connect_ms"].map(|key| line.get(key));
        assert_eq!(tried, [None; 3]);
    }

    fn time(times: &mut Times, at: SystemTime) -> String {
        let mut line = Vec::new();
        times.time_text(at).append_to(&mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn times_have_dates() {
        let mut times = Times::default();
        for (days, date) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (19_782, "2024-02-29"),
            (20_453, "2025-12-31"),
            (47_541, "2100-03-01"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(days * 86_400);
            assert_eq!(time(&mut times, at), format!("{date}T00:00:00.000Z"));
        }
        assert_eq!(
            time(&mut times, UNIX_EPOCH - Duration::from_millis(1)),
            "1969-12-31T23:59:59.999Z"
        );
    }

    /// A line as `serde_json` writes it.
    #[derive(Serialize)]
    struct Wanted<'a> {
        time: String,
        rule: &'a str,
        client: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        user: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        route: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<&'a str>,
        member: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        member_name: Option<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tried: Vec<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tls: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        server_name: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        method: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        target: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        #[serde(skip_serializing_if = "Option::is_none")]
        grpc_status: Option<&'static str>,
        bytes_received: u64,
        bytes_sent: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        queue_ms: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        connect_ms: Option<f64>,
        response_ms: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        first_byte_ms: Option<f64>,
        total_ms: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        cost: Option<f32>,
        retries: u32,
        end: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        member_error: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        hedge: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        trace_id: Option<String>,
    }

    fn wanted(record: &Record<'_>) -> String {
        let tries = record.attempts.as_deref();
        let at = Timestamp::try_from(record.at).unwrap();
        let request = record.request.as_ref();
        let before = tries.into_iter().flat_map(|tries| &tries.before);
        let wanted = Wanted {
            time: format!("{at:.3}"),
            rule: &record.rule,
            client: record.client.to_string(),
            user: record.user.as_deref(),
            route: record.route.as_deref(),
            group: record.group.as_deref(),
            member: tries.map(|tries| &*tries.member),
            member_name: tries.and_then(|tries| tries.member_name.as_deref()),
            tried: before.map(|name| &**name).collect(),
            tls: record.tls.as_ref().map(|tls| tls.version),
            server_name: record.asked_name(),
            method: request.map(|(method, _)| &**method),
            target: request.map(|(_, target)| &**target),
            status: record.status,
            grpc_status: record.grpc_status.map(CallStatus::name),
            bytes_received: record.bytes_received,
            bytes_sent: record.bytes_sent,
            queue_ms: tries.map(|tries| to_millis(tries.queued)),
            connect_ms: tries.and_then(|tries| tries.connect_time).map(to_millis),
            response_ms: record.response_time.map(to_millis),
            first_byte_ms: tries.and_then(|tries| tries.first_byte).map(to_millis),
            total_ms: to_millis(record.total_time),
            cost: (record.cost != Cost::ONE).then(|| record.cost.get()),
            retries: record.retries,
            end: record.end.name(),
            member_error: member_error(record),
            limit: limit_name(record),
            hedge: record.hedged.map(Into::into),
            request_id: request_id(record),
            trace_id: trace_id(record),
        };
        serde_json::to_string(&wanted).unwrap() + "\n"
    }

    fn a_time() -> impl Strategy<Value = Duration> {
        prop_oneof![
            (0..5_000_000u64).prop_map(Duration::from_micros),
            (0..5_000u64).prop_map(Duration::from_millis),
            any::<u64>().prop_map(Duration::from_nanos),
            (0..u64::MAX / 1_000_000).prop_map(Duration::from_secs),
        ]
    }

    fn a_text() -> impl Strategy<Value = String> {
        prop_oneof![any::<String>(), "[ -~\\x00-\\x1f]{0,40}", "[a-z]{0,9}"]
    }

    fn maybe_text() -> impl Strategy<Value = Option<String>> {
        proptest::option::of(a_text())
    }

    fn a_client() -> impl Strategy<Value = Peer> {
        let address = any::<Option<([u8; 16], bool, u16)>>();
        address.prop_map(|address| {
            Peer(address.map(|(bytes, is_v4, port)| match (is_v4, bytes) {
                (true, [a, b, c, d, ..]) => SocketAddr::from(([a, b, c, d], port)),
                (false, bytes) => SocketAddr::from((bytes, port)),
            }))
        })
    }

    prop_compose! {
        fn some_tries()(
            member in a_text(),
            name in maybe_text(),
            before in proptest::collection::vec(a_text(), 0..3),
            queued in a_time(),
            [connect_time, first_byte] in proptest::array::uniform2(proptest::option::of(a_time())),
            member_error in maybe_text(),
        ) -> Box<MemberAttempts> {
            let before = before.into_iter().map(Arc::from).collect();
            let member_error = member_error.map(Into::into);
            Box::new(MemberAttempts { before, queued, connect_time, first_byte, member_error, ..*MemberAttempts::new(member.into(), name.map(Into::into)) })
        }
    }

    prop_compose! {
        fn some_record()(
            millis in 0..4_102_444_800_000u64,
            client in a_client(),
            texts in proptest::array::uniform9(maybe_text()),
            tries in proptest::option::of(some_tries()),
            (received, sent, retries) in any::<(u64, u64, u32)>(),
            (response, total) in (proptest::option::of(a_time()), a_time()),
            (status, cost) in any::<(Option<u16>, Option<f64>)>(),
            (knows_tls, knows_request, id) in any::<(bool, bool, Option<[u8; 16]>)>(),
            ends in proptest::sample::select(vec![
                (End::Complete, None, None),
                (End::ClientTimeout, Some(Limit::MinBodyRate), Some(Hedged::Lost)),
                (End::Limited, Some(Limit::Requests), Some(Hedged::Won)),
            ]),
        ) -> Record<'static> {
            let [rule, user, route, group, name, method, target, label, request_id] = texts;
            let trace = Trace { id: id.unwrap_or_default(), ..Trace::default() };
            let details = Details {
                id: request_id.map(Into::into),
                trace: id.map(|_| trace),
                ..Details::default()
            };
            let tls = HandshakeParameters {
                name: name.as_deref().map(Box::from),
                version: "TLSv1.3",
                resumed: false,
                protocol: None,
                identity: None,
            };
            let request = (method.unwrap_or_default(), target.unwrap_or_default());
            let (end, limit, hedged) = ends;
            Record {
                at: UNIX_EPOCH + Duration::from_millis(millis),
                client,
                rule: rule.unwrap_or_default().into(),
                user: user.map(Into::into),
                route: route.map(Into::into),
                group: group.map(Into::into),
                attempts: tries,
                tls: knows_tls.then(|| Arc::new(tls)),
                server_name: name.map(Into::into),
                request: knows_request.then(|| (request.0.into(), request.1.into())),
                details: Some(Box::new(details)),
                status,
                grpc_status: status.map(|code| CallStatus::parse(code.to_string().as_bytes())),
                bytes_received: received,
                bytes_sent: sent,
                response_time: response,
                total_time: total,
                cost: cost.and_then(Cost::clamped).unwrap_or_default(),
                retries,
                end,
                limit,
                request_limit: label.map(Into::into),
                hedged,
                ..sample_record("")
            }
        }
    }

    proptest! {
        /// Each one twice, so that its second is a known one.
        #[test]
        fn json_is_as_serde_json_writes_it(records in proptest::collection::vec(some_record(), 1..4)) {
            let mut lines = LineFormatter::with_format(LogFormat::Json);
            for record in records.iter().flat_map(|record| [record, record]) {
                let mut line = Vec::new();
                lines.push(record, &mut line);
                prop_assert_eq!(String::from_utf8(line).unwrap(), wanted(record));
            }
        }

        #[test]
        fn whole_numbers_are_as_they_are_shown(number: u64, shift in 0..64u32) {
            let mut line = Vec::new();
            put_whole(number >> shift, &mut line);
            prop_assert_eq!(String::from_utf8(line).unwrap(), (number >> shift).to_string());
        }
    }
}

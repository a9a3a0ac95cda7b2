use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_inference::usage::Usage;
use evenkeel_tls::handshake::HandshakeParameters;
use jiff::Timestamp;
use proptest::prelude::*;
use serde::Serialize;

use super::super::{Details, End, EngineFacts, Hedged, Limit, MemberAttempts};
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
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback_from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_token_ms: Option<f64>,
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
    let (facts, usage) = engine_facts(record);
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
        model: facts.and_then(|facts| facts.model.as_deref()),
        fallback_from: facts.and_then(|facts| facts.fallback_from.as_deref()),
        prompt_tokens: usage.map(|usage| usage.prompt_tokens),
        cached_tokens: usage.and_then(|usage| usage.cached_tokens),
        output_tokens: usage.map(|usage| usage.output_tokens),
        first_token_ms: facts.and_then(|facts| facts.first_token).map(to_millis),
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
    fn some_engine()(
        [model, fallback_from] in proptest::array::uniform2(maybe_text()),
        usage in any::<Option<(u32, Option<u32>, u32)>>(),
        first_token in proptest::option::of(a_time()),
    ) -> Box<EngineFacts> {
        let usage = usage.map(|(prompt_tokens, cached_tokens, output_tokens)| Usage {
            prompt_tokens,
            cached_tokens,
            output_tokens,
        });
        let fallback_from = fallback_from.map(Arc::from);
        Box::new(EngineFacts { model: model.map(Into::into), fallback_from, usage, first_token })
    }
}

prop_compose! {
    fn some_record()(
        millis in 0..4_102_444_800_000u64,
        client in a_client(),
        texts in proptest::array::uniform9(maybe_text()),
        tries in proptest::option::of(some_tries()),
        engine in proptest::option::of(some_engine()),
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
            engine,
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

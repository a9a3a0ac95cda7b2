//! Spans of a request: its own, and one for each try at a member, with the names that the semantic
//! conventions of OpenTelemetry give to what is known of HTTP.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_core::engine_counts::Operation;
use evenkeel_proxy::access::{End, Record};
use evenkeel_proxy::trace::{Attempt, Trace};

use super::messages::{AnyValue, Code, KeyValue, Kind, Span, Status, Value};

/// Methods that are names of their own; others are one to whoever counts them.
const METHODS: [&str; 9] = [
    "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
];

/// Flags that say whether a span's parent is elsewhere.
const KNOWS_PARENT: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;

/// Attributes of a span.
#[derive(Default)]
pub(super) struct Attributes(pub(super) Vec<KeyValue>);

impl Attributes {
    fn put_value(&mut self, key: &str, value: Value) {
        self.0.push(KeyValue {
            key: key.into(),
            value: Some(AnyValue { value: Some(value) }),
        });
    }

    pub(super) fn text(&mut self, key: &str, text: impl Into<String>) {
        self.put_value(key, Value::Text(text.into()));
    }

    fn put_whole(&mut self, key: &str, number: impl Into<i64>) {
        self.put_value(key, Value::Whole(number.into()));
    }

    fn put_time(&mut self, key: &str, time: Duration) {
        self.put_value(key, Value::Number(time.as_micros() as f64 / 1e3));
    }

    /// Puts the model and the tokens of a request for engines of language models.
    fn put_engine(&mut self, record: &Record<'_>) {
        let details = record.details.as_ref();
        let Some(facts) = details.and_then(|details| details.engine.as_deref()) else {
            return;
        };
        let target = record.request.as_ref().map_or("", |(_, target)| target);
        // Without both, programs that show traces do not take the span for one of a language model.
        if let Some((operation, provider)) = Operation::find(target) {
            self.text("gen_ai.operation.name", operation.name());
            self.text("gen_ai.provider.name", provider);
        }
        if let Some(model) = &facts.model {
            self.text("gen_ai.request.model", &**model);
        }
        if let Some(usage) = &facts.usage {
            self.put_whole("gen_ai.usage.input_tokens", usage.prompt_tokens);
            self.put_whole("gen_ai.usage.output_tokens", usage.output_tokens);
            if let Some(cached) = usage.cached_tokens {
                self.put_whole("gen_ai.usage.cache_read.input_tokens", cached);
            }
        }
        if let Some(time) = facts.first_token {
            self.put_time("evenkeel.first_token_ms", time);
        }
    }

    fn put_method(&mut self, method: &str) {
        match METHODS.contains(&method) {
            true => self.text("http.request.method", method),
            false => {
                self.text("http.request.method", "_OTHER");
                self.text("http.request.method_original", method);
            }
        }
    }

    /// Adds `host[:port]` of a server.
    fn put_server(&mut self, authority: &str) {
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
            _ => (authority, None),
        };
        self.text("server.address", host.trim_matches(['[', ']']));
        if let Some(port) = port.and_then(|port| port.parse::<u16>().ok()) {
            self.put_whole("server.port", port);
        }
    }
}

fn unix_nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn nanos_after(at: SystemTime, time: Duration) -> u64 {
    unix_nanos(at).saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn status_of(error: Option<String>) -> Status {
    let code = match error {
        Some(_) => Code::Error,
        None => Code::Unset,
    };
    Status {
        message: String::new(),
        code: code as i32,
    }
}

/// Returns the spans of a request that is traced.
pub(super) fn spans_of_record(record: &Record<'_>) -> Vec<Span> {
    let details = record.details.as_ref();
    let Some(trace) = details.and_then(|details| details.trace.as_ref()) else {
        return Vec::new();
    };
    let attempts = trace.attempts.iter().enumerate();
    let attempts = attempts.map(|(index, attempt)| of_attempt(record, trace, attempt, index));
    std::iter::once(of_request(record, trace))
        .chain(attempts)
        .collect()
}

fn new_span(record: &Record<'_>, trace: &Trace, kind: Kind) -> Span {
    let method = record.request.as_ref().map_or("", |(method, _)| method);
    Span {
        trace_id: trace.id.to_vec(),
        trace_state: trace.state.as_deref().unwrap_or_default().into(),
        name: match METHODS.contains(&method) {
            true => method.into(),
            false => "HTTP".into(),
        },
        kind: kind as i32,
        flags: u32::from(trace.flags) | KNOWS_PARENT,
        ..Span::default()
    }
}

fn of_request(record: &Record<'_>, trace: &Trace) -> Span {
    let mut all = Attributes::default();
    if let Some((method, target)) = &record.request {
        all.put_method(method);
        // A target may be a whole URL.
        let target = match target.split_once("://") {
            Some((scheme, rest)) if !scheme.contains('/') => {
                rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/")
            }
            _ => target,
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        all.text("url.path", path);
        if !query.is_empty() {
            all.text("url.query", query);
        }
    }
    all.text("url.scheme", trace.scheme);
    if let Some(authority) = trace.authority.as_deref().filter(|text| !text.is_empty()) {
        all.put_server(authority);
    }
    if let Some(address) = record.client.0 {
        all.text("client.address", address.ip().to_canonical().to_string());
        all.put_whole("client.port", address.port());
    }
    put_protocol(record, &mut all);
    if let Some(agent) = &trace.user_agent {
        all.text("user_agent.original", &**agent);
    }
    if let Some(status) = record.status {
        all.put_whole("http.response.status_code", status);
    }
    all.text("evenkeel.rule", &*record.rule);
    if let Some(group) = &record.group {
        all.text("evenkeel.group", &**group);
    }
    all.text("evenkeel.end", record.end.name());
    all.put_whole("evenkeel.retries", record.retries);
    if let Some(id) = record
        .details
        .as_ref()
        .and_then(|details| details.id.as_deref())
    {
        all.text("evenkeel.request_id", id);
    }
    all.put_engine(record);
    let mut span = new_span(record, trace, Kind::Server);
    if let Some(route) = &record.route {
        all.text("http.route", &**route);
        span.name = format!("{} {route}", span.name);
    }
    let is_ours = !matches!(
        record.end,
        End::Complete | End::Client | End::ClientTimeout | End::Alert
    );
    let error = match record.status {
        Some(status @ 500..) => Some(status.to_string()),
        // What clients do wrong is no error of the server.
        Some(400..) => None,
        _ => is_ours.then(|| record.end.name().to_owned()),
    };
    if let Some(error) = &error {
        all.text("error.type", error);
    }
    Span {
        span_id: trace.span.to_vec(),
        parent_span_id: trace.parent.map(Vec::from).unwrap_or_default(),
        start_time_unix_nano: unix_nanos(record.at),
        end_time_unix_nano: nanos_after(record.at, record.total_time),
        attributes: all.0,
        status: Some(status_of(error)),
        flags: match trace.parent {
            Some(_) => span.flags | PARENT_IS_REMOTE,
            None => span.flags,
        },
        ..span
    }
}

fn of_attempt(record: &Record<'_>, trace: &Trace, attempt: &Attempt, index: usize) -> Span {
    let mut all = Attributes::default();
    if let Some((method, _)) = &record.request {
        all.put_method(method);
    }
    all.put_server(&attempt.member);
    if index > 0 {
        all.put_whole(
            "http.request.resend_count",
            i64::try_from(index).unwrap_or(i64::MAX),
        );
    }
    if let Some(status) = attempt.status {
        all.put_whole("http.response.status_code", status);
    }
    all.text("evenkeel.member", &*attempt.member);
    if let Some(name) = attempt.member_name.as_deref() {
        all.text("evenkeel.member_name", name);
    }
    all.text("evenkeel.group", &*attempt.group);
    all.text("evenkeel.strategy", attempt.strategy);
    all.put_time("evenkeel.queue_ms", attempt.queued);
    if let Some(time) = attempt.connect_time {
        all.put_time("evenkeel.connect_ms", time);
    }
    if attempt.hedge {
        all.put_value("evenkeel.hedge", Value::Flag(true));
    }
    let failed = attempt.failure.map(str::to_owned);
    let error = match attempt.status {
        Some(status @ 400..) => Some(status.to_string()),
        _ => failed,
    };
    if let Some(error) = &error {
        all.text("error.type", error);
    }
    let ended = attempt.end_time.unwrap_or(record.total_time);
    Span {
        span_id: attempt.span.to_vec(),
        parent_span_id: trace.span.to_vec(),
        start_time_unix_nano: nanos_after(record.at, attempt.began),
        end_time_unix_nano: nanos_after(record.at, ended.max(attempt.began)),
        attributes: all.0,
        status: Some(status_of(error)),
        ..new_span(record, trace, Kind::Client)
    }
}

fn put_protocol(record: &Record<'_>, all: &mut Attributes) {
    let version = match record.protocol {
        Some("HTTP/2.0") => "2",
        Some("HTTP/1.0") => "1.0",
        Some(_) => "1.1",
        None => return,
    };
    all.text("network.protocol.name", "http");
    all.text("network.protocol.version", version);
}

#[cfg(test)]
mod tests {
    use evenkeel_inference::usage::Usage;
    use evenkeel_proxy::access::{Details, EngineFacts};

    use super::*;
    use crate::access_log::tests::sample_record;

    fn traced(target: &str) -> Record<'static> {
        let attempt = Attempt {
            span: [3; 8],
            member: "[::1]:8080".into(),
            member_name: None,
            group: "app".into(),
            strategy: "adaptive",
            began: Duration::from_millis(1),
            end_time: Some(Duration::from_millis(2)),
            queued: Duration::from_micros(1500),
            connect_time: None,
            status: None,
            failure: Some("closed"),
            hedge: false,
        };
        let second = Attempt {
            span: [4; 8],
            member: "web-1:80".into(),
            member_name: Some("s1".into()),
            end_time: None,
            status: Some(200),
            failure: None,
            ..attempt.clone()
        };
        let mut trace = Trace::default();
        trace.id = [1; 16];
        trace.parent = Some([9; 8]);
        trace.span = [2; 8];
        trace.flags = 1;
        trace.state = Some("a=b".into());
        trace.authority = Some("shop.example:8443".into());
        trace.scheme = "https";
        trace.user_agent = Some("curl".into());
        trace.attempts = vec![attempt, second];
        let details = Details {
            id: Some("id-1".into()),
            trace: Some(trace),
            engine: Some(Box::new(EngineFacts {
                fallback_from: None,
                model: Some("small".into()),
                usage: None,
                first_token: Some(Duration::from_micros(1500)),
            })),
            ..Details::default()
        };
        Record {
            details: Some(Box::new(details)),
            route: Some("r".into()),
            ..sample_record(target)
        }
    }

    fn value(span: &Span, key: &str) -> Option<Value> {
        let found = span.attributes.iter().find(|found| found.key == key);
        found?.value.clone()?.value
    }

    fn text(span: &Span, key: &str) -> String {
        match value(span, key) {
            Some(Value::Text(text)) => text,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_request_has_a_span_and_each_try_one_below_it() {
        let spans = spans_of_record(&traced("/a?b=c"));
        let [server, first, second] = &spans[..] else {
            panic!("{spans:?}");
        };
        assert_eq!(
            (server.kind, first.kind),
            (Kind::Server as i32, Kind::Client as i32)
        );
        assert_eq!(server.name, "GET r");
        assert_eq!(server.parent_span_id, [9; 8]);
        assert_eq!(server.trace_state, "a=b");
        assert_eq!(server.flags, 0x301);
        for (key, wanted) in [
            ("http.request.method", "GET"),
            ("url.path", "/a"),
            ("url.query", "b=c"),
            ("url.scheme", "https"),
            ("server.address", "shop.example"),
            ("client.address", "::1"),
            ("network.protocol.version", "1.1"),
            ("user_agent.original", "curl"),
            ("http.route", "r"),
            ("evenkeel.rule", "web"),
            ("evenkeel.request_id", "id-1"),
            ("gen_ai.request.model", "small"),
        ] {
            assert_eq!(text(server, key), wanted, "{key}");
        }
        assert_eq!(value(server, "server.port"), Some(Value::Whole(8443)));
        assert_eq!(
            value(server, "http.response.status_code"),
            Some(Value::Whole(200))
        );
        assert_eq!(
            value(server, "evenkeel.first_token_ms"),
            Some(Value::Number(1.5))
        );
        assert!(value(server, "gen_ai.usage.input_tokens").is_none());
        assert!(value(server, "gen_ai.operation.name").is_none());
        let took = server.end_time_unix_nano - server.start_time_unix_nano;
        assert_eq!(took, 2_500_000);
        assert_eq!(server.status.as_ref().unwrap().code, Code::Unset as i32);

        assert_eq!(first.parent_span_id, server.span_id);
        assert_eq!(text(first, "server.address"), "::1");
        assert_eq!(text(first, "error.type"), "closed");
        assert_eq!(first.status.as_ref().unwrap().code, Code::Error as i32);
        assert_eq!(value(first, "evenkeel.queue_ms"), Some(Value::Number(1.5)));
        assert_eq!(
            first.end_time_unix_nano - first.start_time_unix_nano,
            1_000_000
        );
        assert_eq!(second.end_time_unix_nano, server.end_time_unix_nano);
        assert_eq!(
            value(second, "http.request.resend_count"),
            Some(Value::Whole(1))
        );
        assert!(value(second, "error.type").is_none());
        assert_eq!(text(second, "evenkeel.member"), "web-1:80");
        assert_eq!(text(second, "evenkeel.member_name"), "s1");
        assert!(value(first, "evenkeel.member_name").is_none());
    }

    #[test]
    fn a_request_for_engines_tells_its_operation_and_its_tokens() {
        let mut record = traced("/v1/chat/completions");
        let details = record.details.as_mut().unwrap();
        details.engine.as_mut().unwrap().usage = Some(Usage {
            prompt_tokens: 90,
            cached_tokens: Some(64),
            output_tokens: 7,
        });
        let spans = spans_of_record(&record);
        let server = &spans[0];
        assert_eq!(text(server, "gen_ai.operation.name"), "chat");
        assert_eq!(text(server, "gen_ai.provider.name"), "openai");
        assert_eq!(text(server, "gen_ai.request.model"), "small");
        for (key, tokens) in [
            ("gen_ai.usage.input_tokens", 90),
            ("gen_ai.usage.output_tokens", 7),
            ("gen_ai.usage.cache_read.input_tokens", 64),
        ] {
            assert_eq!(value(server, key), Some(Value::Whole(tokens)), "{key}");
        }
        // Tries have none of it.
        assert!(
            spans[1..]
                .iter()
                .all(|span| value(span, "gen_ai.request.model").is_none())
        );
    }

    #[test]
    fn errors_of_the_server_are_errors_and_those_of_clients_are_not() {
        let code = |status, end| {
            let record = Record {
                status,
                end,
                ..traced("/")
            };
            spans_of_record(&record)[0].status.as_ref().unwrap().code == Code::Error as i32
        };
        assert!(code(Some(502), End::Member));
        assert!(code(None, End::Terminated));
        assert!(code(Some(200), End::Member), "cut off");
        assert!(!code(Some(404), End::Complete));
        assert!(!code(Some(429), End::Limited));
        assert!(!code(None, End::Client));
    }

    #[test]
    fn odd_requests_have_a_name_as_well() {
        let mut record = traced("http://a/b/c?d");
        record.request = Some(("BREW".into(), "http://a/b/c?d".into()));
        let spans = spans_of_record(&record);
        assert_eq!(spans[0].name, "HTTP r");
        assert_eq!(text(&spans[0], "http.request.method"), "_OTHER");
        assert_eq!(text(&spans[0], "http.request.method_original"), "BREW");
        assert_eq!(text(&spans[0], "url.path"), "/b/c");
        record.details = None;
        assert!(spans_of_record(&record).is_empty());
    }
}

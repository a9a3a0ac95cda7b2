//! Lines of the access log that are no JSON.
//!
//! What clients say is escaped as nginx does it, so that whoever reads lines reads the same: a quote, a
//! backslash, and all bytes but those of visible ASCII and the space become `\xHH`. What is not there is `-`.

use std::fmt::{Display, Write};
use std::time::Duration;

use evenkeel_manager::config::{LogField, LogTemplate};

use super::parts::{
    Time, engine_facts, limit_name, member_error, put_whole, request_id, to_millis, trace_id,
};
use super::{LoggedHeaders, Record};
use crate::http2::grpc::CallStatus;

/// Sign for a value that is missing.
const NONE: &str = "-";

/// Text that is escaped while it is written.
struct Escaped<'b>(&'b mut Vec<u8>);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0');
        let is_plain = |byte: &u8| !matches!(byte, b'"' | b'\\' | 0..0x20 | 0x7f..);
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let plain = rest.iter().take_while(|byte| is_plain(byte)).count();
            let (plain, from) = rest.split_at_checked(plain).unwrap_or((rest, &[]));
            self.0.extend_from_slice(plain);
            let Some((&byte, after)) = from.split_first() else {
                break;
            };
            let escape = [b'\\', b'x', digit(byte >> 4), digit(byte & 15)];
            self.0.extend_from_slice(&escape);
            rest = after;
        }
        Ok(())
    }
}

fn append_value(value: Option<impl Display>, line: &mut Vec<u8>) {
    match value {
        // Writing to a vector cannot fail.
        Some(value) => {
            let _ = write!(Escaped(line), "{value}");
        }
        None => line.extend_from_slice(NONE.as_bytes()),
    }
}

/// Appends a text, escaped; an empty text counts as missing.
fn put_text(text: Option<&str>, line: &mut Vec<u8>) {
    match text.filter(|text| !text.is_empty()) {
        // Writing to a vector cannot fail.
        Some(text) => {
            let _ = Escaped(line).write_str(text);
        }
        None => line.extend_from_slice(NONE.as_bytes()),
    }
}

/// Appends a line in the combined format:
/// `ADDRESS - USER [TIME] "METHOD TARGET PROTOCOL" STATUS BYTES "REFERER" "USER AGENT"`.
pub(super) fn append_combined(
    record: &Record<'_>,
    time: Time<'_>,
    wants: &LoggedHeaders,
    line: &mut Vec<u8>,
) {
    let put_field = |name: &'static str, line: &mut Vec<u8>| {
        put_field(&LogField::Named(name), record, time, wants, line);
    };
    put_field("client_ip", line);
    line.extend_from_slice(b" - ");
    // The columns are found by spaces.
    let user = record
        .user
        .as_deref()
        .map(|user| user.replace(' ', "\\x20"));
    match user.filter(|user| !user.is_empty()) {
        Some(user) => user.split("\\x20").enumerate().for_each(|(index, part)| {
            if index > 0 {
                line.extend_from_slice(b"\\x20");
            }
            let _ = Escaped(line).write_str(part);
        }),
        None => line.extend_from_slice(NONE.as_bytes()),
    }
    line.extend_from_slice(b" [");
    line.extend_from_slice(time.local.as_bytes());
    line.extend_from_slice(b"] \"");
    match &record.request {
        Some((method, target)) => {
            put_text(Some(method), line);
            line.push(b' ');
            put_text(Some(target), line);
            if let Some(protocol) = record.protocol {
                line.push(b' ');
                line.extend_from_slice(protocol.as_bytes());
            }
        }
        None => line.extend_from_slice(NONE.as_bytes()),
    }
    line.extend_from_slice(b"\" ");
    // A column of three digits, as other balancers have it for a client that got none.
    put_whole(u64::from(record.status.unwrap_or(499)), line);
    line.push(b' ');
    put_field("body_bytes_sent", line);
    for name in ["referer", "user_agent"] {
        line.extend_from_slice(b" \"");
        put_field(name, line);
        line.push(b'"');
    }
    line.push(b'\n');
}

/// Appends a line as the template has it.
pub(super) fn append_custom(
    template: &LogTemplate,
    record: &Record<'_>,
    time: Time<'_>,
    wants: &LoggedHeaders,
    line: &mut Vec<u8>,
) {
    for (text, field) in template.pieces() {
        line.extend_from_slice(text.as_bytes());
        if let Some(field) = field {
            put_field(field, record, time, wants, line);
        }
    }
    line.push(b'\n');
}

/// A header field that was kept, by the place of its name in what was wanted.
fn find_kept<'r>(names: &[Box<str>], name: &str, kept: &'r [Option<Box<str>>]) -> Option<&'r str> {
    let place = names.iter().position(|known| **known == *name)?;
    kept.get(place)?.as_deref()
}

fn put_field(
    field: &LogField,
    record: &Record<'_>,
    time: Time<'_>,
    wants: &LoggedHeaders,
    line: &mut Vec<u8>,
) {
    let tries = record.attempts.as_deref();
    let ms = |time: Option<Duration>| time.map(to_millis);
    let header = |name: &str| {
        let details = record.details.as_ref()?;
        find_kept(&wants.request, name, &details.fields)
    };
    let name = match field {
        LogField::Named(name) => *name,
        LogField::Request(name) => return put_text(header(name), line),
        LogField::Response(name) => {
            let value = tries.and_then(|tries| find_kept(&wants.response, name, &tries.fields));
            return put_text(value, line);
        }
    };
    let request = record.request.as_ref();
    match name {
        "time" => time.append_to(line),
        "time_local" => line.extend_from_slice(time.local.as_bytes()),
        "rule" => put_text(Some(&record.rule), line),
        "client" => append_value(Some(record.client), line),
        "client_ip" => match record.client.ip() {
            Some(ip) => append_value(Some(ip.to_canonical()), line),
            None => append_value(Some("unix"), line),
        },
        "client_port" => append_value(record.client.0.map(|address| address.port()), line),
        "user" => put_text(record.user.as_deref(), line),
        "route" => put_text(record.route.as_deref(), line),
        "group" => put_text(record.group.as_deref(), line),
        "member" => put_text(tries.map(|tries| &*tries.member), line),
        "member_name" => put_text(tries.and_then(|tries| tries.member_name.as_deref()), line),
        "tried" => {
            let before = tries.map(|tries| tries.before.join(","));
            put_text(before.as_deref(), line);
        }
        "tls" => append_value(record.tls.as_ref().map(|tls| tls.version), line),
        "server_name" => put_text(record.asked_name(), line),
        "method" => put_text(request.map(|(method, _)| &**method), line),
        "target" => put_text(request.map(|(_, target)| &**target), line),
        "protocol" => append_value(record.protocol, line),
        "status" => append_value(record.status, line),
        "grpc_status" => put_text(record.grpc_status.map(CallStatus::name), line),
        "bytes_received" => put_whole(record.bytes_received, line),
        "bytes_sent" => put_whole(record.bytes_sent, line),
        "body_bytes_sent" => {
            let body = record.bytes_sent.saturating_sub(record.head_bytes_sent);
            put_whole(body, line);
        }
        "queue_ms" => append_value(ms(tries.map(|tries| tries.queued)), line),
        "first_byte_ms" => append_value(ms(tries.and_then(|tries| tries.first_byte)), line),
        "connect_ms" => append_value(ms(tries.and_then(|tries| tries.connect_time)), line),
        "response_ms" => append_value(ms(record.response_time), line),
        "total_ms" => append_value(Some(to_millis(record.total_time)), line),
        "model" => put_text(
            engine_facts(record)
                .0
                .and_then(|facts| facts.model.as_deref()),
            line,
        ),
        "fallback_from" => {
            let facts = engine_facts(record).0;
            put_text(facts.and_then(|facts| facts.fallback_from.as_deref()), line);
        }
        "prompt_tokens" => append_value(
            engine_facts(record).1.map(|usage| usage.prompt_tokens),
            line,
        ),
        "cached_tokens" => {
            let usage = engine_facts(record).1;
            append_value(usage.and_then(|usage| usage.cached_tokens), line);
        }
        "output_tokens" => append_value(
            engine_facts(record).1.map(|usage| usage.output_tokens),
            line,
        ),
        "first_token_ms" => {
            let facts = engine_facts(record).0;
            append_value(ms(facts.and_then(|facts| facts.first_token)), line);
        }
        "cost" => append_value(Some(record.cost.get()), line),
        "retries" => put_whole(u64::from(record.retries), line),
        "end" => put_text(Some(record.end.name()), line),
        "member_error" => put_text(member_error(record), line),
        "limit" => put_text(limit_name(record), line),
        "hedge" => append_value(record.hedged.map(<&str>::from), line),
        "request_id" => put_text(request_id(record), line),
        "trace_id" => append_value(trace_id(record), line),
        "referer" => put_text(header("referer"), line),
        "user_agent" => put_text(header("user-agent"), line),
        _ => put_text(None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::LineFormatter;
    use super::super::line::tests::sample_record;
    use super::super::{Details, EngineFacts, Lines, Peer};
    use super::*;
    use evenkeel_inference::usage::Usage;
    use evenkeel_manager::config::LogFormat;

    fn details(fields: &[Option<&str>]) -> Option<Box<Details>> {
        let fields = fields.iter().map(|field| field.map(Box::from)).collect();
        Some(Box::new(Details {
            fields,
            id: Some("id-1".into()),
            engine: Some(Box::new(EngineFacts {
                model: Some("org/\u{1b}m \"x\"".into()),
                fallback_from: Some("large".into()),
                usage: Some(Usage {
                    prompt_tokens: 12,
                    cached_tokens: None,
                    output_tokens: 5,
                }),
                first_token: Some(Duration::from_micros(1500)),
            })),
            trace: None,
        }))
    }

    fn line(format: LogFormat, record: &Record<'_>) -> String {
        let mut line = Vec::new();
        LineFormatter::with_format(format).push(record, &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn the_combined_format_is_that_of_other_servers() {
        let record = Record {
            client: Peer(Some("[::ffff:192.0.2.7]:4711".parse().unwrap())),
            user: Some("an na\"".into()),
            details: details(&[Some("http://a/\"x\"\\"), Some("curl/8 (ä\n)")]),
            ..sample_record("/a?b=c")
        };
        assert_eq!(
            line(LogFormat::Combined, &record),
            "192.0.2.7 - an\\x20na\\x22 [29/Feb/2024:12:34:56 +0000] \"GET /a?b=c HTTP/1.1\" 200 1200 \
             \"http://a/\\x22x\\x22\\x5C\" \"curl/8 (\\xC3\\xA4\\x0A)\"\n"
        );
        let record = Record {
            request: None,
            protocol: None,
            status: None,
            client: Peer(None),
            details: None,
            attempts: None,
            ..record
        };
        assert_eq!(
            line(
                LogFormat::Combined,
                &Record {
                    user: None,
                    ..record
                }
            ),
            "unix - - [29/Feb/2024:12:34:56 +0000] \"-\" 499 1200 \"-\" \"-\"\n"
        );
    }

    #[test]
    fn f11_bytes_that_are_no_text_count_as_the_replacement_character() {
        let value = crate::access::kept_value(b"a\xffb");
        let record = Record {
            details: details(&[None, Some(&value)]),
            ..sample_record("/")
        };
        let line = line(LogFormat::Combined, &record);
        assert!(line.ends_with("\"a\\xEF\\xBF\\xBDb\"\n"), "{line}");
    }

    #[test]
    fn no_value_makes_a_second_line_or_ends_a_text() {
        let all: String = (0..=0x2100u32).filter_map(char::from_u32).collect();
        let every: String = LogField::NAMES
            .iter()
            .map(|name| format!("\"{{{name}}}\" "))
            .collect();
        let template = LogTemplate::parse(&format!("{every}{{request.header.a}}")).unwrap();
        let format = LogFormat::Custom(template);
        let wanted = LineFormatter::with_format(format.clone()).wants();
        assert_eq!(wanted.request.len(), 3);
        let mut record = Record {
            user: Some(all.clone().into()),
            details: details(&[Some(all.as_str()); 3]),
            server_name: Some(all.as_str().into()),
            ..sample_record(&all)
        };
        if let Some((method, _)) = &mut record.request {
            *method = all.clone().into();
        }
        for format in [format, LogFormat::Combined] {
            let line = line(format, &record);
            assert_eq!(line.matches('\n').count(), 1);
            assert!(
                line.trim_end()
                    .bytes()
                    .all(|byte| (b' '..0x7f).contains(&byte))
            );
        }
    }

    #[test]
    fn g6_a_format_has_the_name_of_the_member_if_it_has_one() {
        let template = LogTemplate::parse("{group}/{member_name} {member}").unwrap();
        let format = LogFormat::Custom(template);
        let mut record = sample_record("/");
        assert_eq!(line(format.clone(), &record), "app/- a:80\n");
        record.attempts.as_mut().unwrap().member_name = Some("s1".into());
        assert_eq!(line(format, &record), "app/s1 a:80\n");
    }

    #[test]
    fn each_field_says_what_the_record_says() {
        let record = Record {
            details: details(&[Some("x")]),
            ..sample_record("/")
        };
        for (text, wanted) in [
            ("{{{time}}}", "{2024-02-29T12:34:56.789Z}}"),
            ("{client} {client_ip} {client_port}", "[::1]:4711 ::1 4711"),
            (
                "{rule} {group} {member} {tried} {route}",
                "web app a:80 b:80,c:80 -",
            ),
            (
                "{queue_ms} {connect_ms} {response_ms} {first_byte_ms} {total_ms}",
                "3 0.15 1.25 - 2.5",
            ),
            (
                "{status} {end} {member_error} {limit} {hedge} {cost} {retries}",
                "200 complete - - - 1 1",
            ),
            (
                "{bytes_sent} {body_bytes_sent} {bytes_received}",
                "1234 1200 0",
            ),
            (
                "{model}|{fallback_from} {prompt_tokens} {cached_tokens} {output_tokens} {first_token_ms}",
                "org/\\x1Bm \\x22x\\x22|large 12 - 5 1.5",
            ),
            ("{request_id} {trace_id} {tls} {server_name}", "id-1 - - -"),
            ("{request.header.X-A}|{response.header.b}", "x|-"),
        ] {
            let format = LogFormat::Custom(LogTemplate::parse(text).unwrap());
            assert_eq!(line(format, &record), format!("{wanted}\n"), "{text}");
        }
    }
}

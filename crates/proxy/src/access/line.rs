//! Records as lines: JSON objects, the combined format of web servers, or texts with fields.
//!
//! JSON is written by hand, as `serde_json` would write it: a line is made for each request, in the worker
//! that has served it.

use std::time::Duration;

use evenkeel_core::cost::Cost;
use evenkeel_manager::config::LogFormat;

use super::parts::{
    Time, Times, engine_facts, last_digit, limit_name, member_error, put_whole, request_id,
    to_millis, trace_id,
};
use super::{Lines, LoggedHeaders, Peer, Record, text};
use crate::http2::grpc::CallStatus;

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
    put_engine(record, line);
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

/// Appends the model and the tokens of a request for engines of language models.
fn put_engine(record: &Record<'_>, line: &mut Vec<u8>) {
    let (Some(facts), usage) = engine_facts(record) else {
        return;
    };
    put_text(b",\"model\":\"", facts.model.as_deref(), line);
    let fallback_from = facts.fallback_from.as_deref();
    put_text(b",\"fallback_from\":\"", fallback_from, line);
    let mut put_tokens = |before: &[u8], tokens: Option<u32>| {
        if let Some(tokens) = tokens {
            line.extend_from_slice(before);
            put_whole(u64::from(tokens), line);
        }
    };
    let cached = usage.and_then(|usage| usage.cached_tokens);
    put_tokens(
        b",\"prompt_tokens\":",
        usage.map(|usage| usage.prompt_tokens),
    );
    put_tokens(b",\"cached_tokens\":", cached);
    put_tokens(
        b",\"output_tokens\":",
        usage.map(|usage| usage.output_tokens),
    );
    if let Some(time) = facts.first_token {
        line.extend_from_slice(b",\"first_token_ms\":");
        put_millis(time, line);
    }
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

#[cfg(test)]
pub(super) mod tests;

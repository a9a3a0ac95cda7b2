//! `format` of `[access_log]`: JSON, the combined format of web servers, or a text with fields.

use evenkeel_core::key::is_field_name;
use toml::de::DeValue;

use crate::schema::document::{Item, quote};
use crate::schema::field::{Field, Limits, WRONG_TYPE};
use crate::schema::report::Report;
use crate::schema::similar::{similar, unknown_message};

/// Format of a line of the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// JSON object.
    #[default]
    Json,
    /// The combined format of Apache httpd and nginx.
    Combined,
    /// A text with fields.
    Custom(LogTemplate),
}

/// A field of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogField {
    /// Field named in [`LogField::NAMES`].
    Named(&'static str),
    /// A header field of the request, by its name in lower case.
    Request(Box<str>),
    /// A header field of the response, by its name in lower case.
    Response(Box<str>),
}

impl LogField {
    /// Names of fields, but for header fields.
    pub const NAMES: [&'static str; 43] = [
        "time",
        "time_local",
        "rule",
        "client",
        "client_ip",
        "client_port",
        "user",
        "route",
        "group",
        "member",
        "member_name",
        "tried",
        "tls",
        "server_name",
        "method",
        "target",
        "protocol",
        "status",
        "grpc_status",
        "bytes_received",
        "bytes_sent",
        "body_bytes_sent",
        "queue_ms",
        "connect_ms",
        "response_ms",
        "first_byte_ms",
        "first_token_ms",
        "model",
        "fallback_from",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens",
        "total_ms",
        "cost",
        "retries",
        "end",
        "member_error",
        "limit",
        "hedge",
        "request_id",
        "trace_id",
        "referer",
        "user_agent",
    ];
}

/// Longest text of a format, in bytes.
const MAX_TEXT: usize = 4096;

/// Most header fields that a format may name, of requests and of responses.
const MAX_LOGGED_FIELDS: usize = 32;

const REQUEST: &str = "request.header.";
const RESPONSE: &str = "response.header.";

/// A text with fields of the access log in it: `{status}` and so on. `{{` is one brace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTemplate {
    text: String,
    pieces: Vec<(Box<str>, Option<LogField>)>,
}

/// Error in a text, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("character {at}: {message}")]
pub struct LogFormatError {
    /// Number of the character, from 1.
    pub at: usize,
    /// Description of the error.
    pub message: String,
}

impl LogTemplate {
    /// Reads a text.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn parse(text: &str) -> Result<Self, LogFormatError> {
        let wrong = |rest: &str, message: String| {
            let read = text.len().saturating_sub(rest.len());
            let before = text.get(..read).unwrap_or_default();
            LogFormatError {
                at: before.chars().count() + 1,
                message,
            }
        };
        if text.len() > MAX_TEXT {
            return Err(wrong(text, format!("is longer than {MAX_TEXT} bytes")));
        }
        if let Some(at) = text.find(char::is_control) {
            let rest = text.get(at..).unwrap_or_default();
            let message = "control characters are not allowed in a line";
            return Err(wrong(rest, message.into()));
        }
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), text);
        let mut headers = 0;
        while let Some(at) = rest.find('{') {
            let (before, here) = rest.split_at_checked(at).unwrap_or((rest, ""));
            literal.push_str(before);
            let inside = here.get(1..).unwrap_or_default();
            if let Some(after) = inside.strip_prefix('{') {
                literal.push('{');
                rest = after;
                continue;
            }
            let Some((name, after)) = inside.split_once('}') else {
                let message = "the brace is not closed; `{{` stands for a brace";
                return Err(wrong(here, message.into()));
            };
            let field = field(name).map_err(|message| wrong(inside, message))?;
            headers += usize::from(!matches!(field, LogField::Named(_)));
            if headers > MAX_LOGGED_FIELDS {
                let message = format!("more than {MAX_LOGGED_FIELDS} header fields");
                return Err(wrong(here, message));
            }
            pieces.push((std::mem::take(&mut literal).into(), Some(field)));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push((literal.into(), None));
        }
        let text = text.to_owned();
        Ok(LogTemplate { text, pieces })
    }

    /// Pieces of the text, in order: a text, and a field behind it.
    pub fn pieces(&self) -> impl Iterator<Item = (&str, Option<&LogField>)> {
        self.pieces
            .iter()
            .map(|(text, field)| (&**text, field.as_ref()))
    }
}

/// The field of this name.
fn field(name: &str) -> Result<LogField, String> {
    for (prefix, of) in [
        (REQUEST, LogField::Request as fn(Box<str>) -> LogField),
        (RESPONSE, LogField::Response),
    ] {
        if let Some(header) = name.strip_prefix(prefix) {
            return match is_field_name(header) {
                true => Ok(of(header.to_ascii_lowercase().into())),
                false => Err(format!("{header:?} is no name of a header field")),
            };
        }
    }
    if let Some(known) = LogField::NAMES.iter().find(|known| **known == name) {
        return Ok(LogField::Named(known));
    }
    let others = ["request.header.NAME", "response.header.NAME"];
    let near = similar(name, LogField::NAMES.into_iter().chain(others));
    Err(match near {
        Some(near) => unknown_message("field", Some(near)),
        None => format!(
            "unknown field {name:?}; there are {}, {}",
            LogField::NAMES.join(", "),
            others.join(", ")
        ),
    })
}

impl LogFormat {
    /// Names of header fields of requests that lines have, in lower case: each once.
    pub fn request_fields(&self) -> Vec<Box<str>> {
        self.headers(|field| match field {
            LogField::Request(name) => Some(name),
            LogField::Named("referer") => Some("referer"),
            LogField::Named("user_agent") => Some("user-agent"),
            _ => None,
        })
    }

    /// Names of header fields of responses that lines have, in lower case: each once.
    pub fn response_fields(&self) -> Vec<Box<str>> {
        self.headers(|field| match field {
            LogField::Response(name) => Some(name),
            _ => None,
        })
    }

    fn headers(&self, name: fn(&LogField) -> Option<&str>) -> Vec<Box<str>> {
        let combined = ["referer", "user_agent"].map(LogField::Named);
        let fields: Vec<&LogField> = match self {
            LogFormat::Json => Vec::new(),
            LogFormat::Combined => combined.iter().collect(),
            LogFormat::Custom(template) => template.pieces().filter_map(|(_, f)| f).collect(),
        };
        let mut names: Vec<Box<str>> = fields
            .into_iter()
            .filter_map(|field| name(field).map(Box::from))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Field for LogFormat {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::String(text) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        match &**text {
            "json" => *self = LogFormat::Json,
            "combined" => *self = LogFormat::Combined,
            text if !text.contains('{') => {
                let message =
                    unknown_message("format", similar(text, ["json", "combined"].into_iter()));
                report.wrong(item, &message, self.allowed(limits));
            }
            text => match LogTemplate::parse(text) {
                Ok(template) => *self = LogFormat::Custom(template),
                Err(error) => report.wrong(item, &error.to_string(), self.allowed(limits)),
            },
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(quote(match self {
            LogFormat::Json => "json",
            LogFormat::Combined => "combined",
            LogFormat::Custom(template) => &template.text,
        }))
    }

    fn allowed(&self, _: &Limits) -> String {
        "\"json\", \"combined\", or a text with {fields}".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_texts_and_fields() {
        let text = "{client} {{x} \"{method} {target}\" {request.header.X-Forwarded-For}|{response.header.server}";
        let template = LogTemplate::parse(text).unwrap();
        let pieces: Vec<_> = template.pieces().collect();
        let named = LogField::Named;
        let wanted = [
            ("", named("client")),
            (" {x} \"", named("method")),
            (" ", named("target")),
            ("\" ", LogField::Request("x-forwarded-for".into())),
            ("|", LogField::Response("server".into())),
        ];
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(text, field)| (*text, Some(field)))
            .collect();
        assert_eq!(pieces, wanted);
        let format = LogFormat::Custom(template);
        assert_eq!(format.request_fields(), ["x-forwarded-for".into()]);
        assert_eq!(format.response_fields(), ["server".into()]);
        assert_eq!(
            LogFormat::Combined.request_fields(),
            ["referer".into(), "user-agent".into()]
        );
        assert!(LogFormat::Json.request_fields().is_empty());
    }

    #[test]
    fn what_is_wrong_says_where() {
        for (text, at, words) in [
            ("{status} {statsu}", 11, "did you mean \"status\""),
            ("ä{nonsense_that_nothing_is_like}", 3, "there are time, "),
            ("{status", 1, "not closed"),
            ("a\tb{status}", 2, "control characters"),
            ("{request.header.a b}", 2, "no name of a header field"),
            ("{request.header.}", 2, "no name of a header field"),
            ("{request.heder.a}", 2, "field"),
        ] {
            let error = LogTemplate::parse(text).unwrap_err();
            assert_eq!(error.at, at, "{text}: {error}");
            assert!(error.message.contains(words), "{text}: {error}");
        }
        let many = "{request.header.a}".repeat(MAX_LOGGED_FIELDS + 1);
        assert!(LogTemplate::parse(&many).is_err());
        assert!(LogTemplate::parse(&"x".repeat(MAX_TEXT + 1)).is_err());
    }
}

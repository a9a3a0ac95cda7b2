//! Parts of gRPC that HTTP has to know: deadlines, and statuses that stand in trailers.

use std::time::Duration;

use evenkeel_core::group::Outcome;
use evenkeel_http2::Fields;

/// Name of the field with the status of a call.
pub(crate) const STATUS: &str = "grpc-status";

/// Status with which a call ended: one of the codes of the protocol, or something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallStatus(u8);

impl CallStatus {
    /// Names of the codes by their numbers, and of everything else.
    pub const NAMES: [&'static str; 18] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
        "other",
    ];

    /// A value that is none of the codes.
    pub(crate) const OTHER: CallStatus = CallStatus(17);

    /// Reads the value of the field.
    pub(crate) fn parse(value: &[u8]) -> Self {
        let code = parse_code(value).filter(|code| *code < Self::OTHER.0);
        code.map_or(Self::OTHER, CallStatus)
    }

    /// Place in [`CallStatus::NAMES`].
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Name of the status.
    pub fn name(self) -> &'static str {
        Self::NAMES.get(self.index()).copied().unwrap_or("other")
    }
}

/// Statuses of the protocol (its codes).
const DEADLINE_EXCEEDED: u8 = 4;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;
const DATA_LOSS: u8 = 15;
const UNKNOWN: u8 = 2;

/// True if a request is a call of gRPC.
pub(crate) fn is_call(fields: &Fields) -> bool {
    let media_type = fields.get("content-type");
    let rest = media_type.and_then(|value| value.strip_prefix(b"application/grpc"));
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

/// Returns the time that a call may take, if the call says so.
pub(crate) fn parse_timeout(fields: &Fields) -> Option<Duration> {
    let value = std::str::from_utf8(fields.get("grpc-timeout")?).ok()?;
    let (number, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let digits = (1..=8).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| number.parse::<u64>().ok())??;
    Some(match unit {
        // Eight digits of hours are fewer than 2^64 seconds.
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The status of gRPC for an answer of the balancer's own.
pub(crate) fn status_of(answer: u16) -> u8 {
    match answer {
        403 => PERMISSION_DENIED,
        413 | 414 | 429 | 431 => RESOURCE_EXHAUSTED,
        408 | 504 => DEADLINE_EXCEEDED,
        404 | 501 => UNIMPLEMENTED,
        502 | 503 => UNAVAILABLE,
        _ => INTERNAL,
    }
}

/// Returns the outcome that the status in a response's head means for the member; `None` if the
/// status says nothing bad.
pub(crate) fn outcome_of_status(status: &[u8]) -> Option<Outcome> {
    match parse_code(status)? {
        UNAVAILABLE | RESOURCE_EXHAUSTED => Some(Outcome::Overloaded { retry_after: None }),
        UNKNOWN | INTERNAL | DATA_LOSS => Some(Outcome::Error),
        _ => None,
    }
}

/// True if a status in trailers, after a response that began well, says that the member failed.
/// Other statuses can be due to what one client asks for.
pub(crate) fn is_failure(status: &[u8]) -> bool {
    parse_code(status) == Some(UNAVAILABLE)
}

fn parse_code(status: &[u8]) -> Option<u8> {
    std::str::from_utf8(status).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(name: &str, value: &str) -> Fields {
        let mut fields = Fields::new();
        assert!(fields.push(name.as_bytes(), value.as_bytes()));
        fields
    }

    #[test]
    fn a_call_is_known_by_its_media_type() {
        for (media_type, is) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            assert_eq!(is_call(&fields("content-type", media_type)), is);
        }
    }

    #[test]
    fn a_status_has_the_name_of_its_code() {
        for (value, name) in [
            ("0", "OK"),
            ("4", "DEADLINE_EXCEEDED"),
            ("12", "UNIMPLEMENTED"),
            ("16", "UNAUTHENTICATED"),
            ("17", "other"),
            ("255", "other"),
            ("256", "other"),
            ("-1", "other"),
            ("OK", "other"),
            ("", "other"),
        ] {
            assert_eq!(CallStatus::parse(value.as_bytes()).name(), name, "{value}");
        }
        assert_eq!(CallStatus::parse(b"\xff"), CallStatus::OTHER);
    }

    #[test]
    fn a_deadline_is_a_number_and_a_unit() {
        for (value, time) in [
            ("1S", Some(Duration::from_secs(1))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3m", Some(Duration::from_millis(3))),
            ("4u", Some(Duration::from_micros(4))),
            ("5n", Some(Duration::from_nanos(5))),
            ("100000000S", None),
            ("S", None),
            ("", None),
            ("-1S", None),
            ("1s", None),
            ("1", None),
        ] {
            assert_eq!(
                parse_timeout(&fields("grpc-timeout", value)),
                time,
                "{value}"
            );
        }
    }
}

//! Parts of lines that formats have in common.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use evenkeel_inference::usage::Usage;
use jiff::Timestamp;

use super::{EngineFacts, Limit, Record};
use crate::trace::trace_text;

/// The last second as text: most records are of the same one as those before them.
#[derive(Debug, Default)]
pub(super) struct Times {
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
    pub(super) fn time_text(&mut self, at: SystemTime) -> Time<'_> {
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
pub(super) fn last_digit(number: u64) -> u8 {
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

/// Facts about a request for engines of language models, and the tokens that the engine has counted.
pub(super) fn engine_facts<'r>(
    record: &'r Record<'_>,
) -> (Option<&'r EngineFacts>, Option<&'r Usage>) {
    let details = record.details.as_ref();
    let facts = details.and_then(|details| details.engine.as_deref());
    (facts, facts.and_then(|facts| facts.usage.as_ref()))
}

pub(super) fn to_millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

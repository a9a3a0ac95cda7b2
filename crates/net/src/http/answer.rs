//! Answers: redirects, JSON, and errors in one form.

use std::num::NonZeroU32;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};

/// A whole response.
pub type Answer = Response<Full<Bytes>>;

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Kind of error: a stable word for programs (`unknown_group`).
    pub error: String,
    /// Description of what was found, where, and what to do: a sentence for people.
    pub detail: String,
    /// Values that would have been accepted, where that is a short list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
    /// Further fields about this kind of error, for programs.
    #[serde(flatten)]
    pub more: Box<serde_json::Map<String, serde_json::Value>>,
}

/// Time for which an answer may be used again, only by the client that asked: the answer is for that client
/// alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Number of whole seconds; 0 means that the answer must be asked for again.
    Seconds(u64),
    /// The answer must not even be kept.
    None,
}

impl Freshness {
    fn value(self) -> HeaderValue {
        let text = match self {
            Freshness::Seconds(seconds) => format!("private, max-age={seconds}"),
            Freshness::None => return HeaderValue::from_static("no-store"),
        };
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("no-store"))
    }
}

/// 307 to `path_and_query` at `origin`. The method, and the body, go with it.
///
/// Both are checked before: an [`Origin`](evenkeel_config::Origin), and what a
/// [`Target`](crate::http::Target) gives. Should they hold what no field may hold, there is no
/// redirect but a 500.
pub fn redirect(origin: &str, path_and_query: &str, freshness: Freshness) -> Answer {
    let mut location = String::with_capacity(origin.len() + path_and_query.len());
    location.push_str(origin);
    location.push_str(path_and_query);
    let Ok(location) = HeaderValue::try_from(location) else {
        return error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "bad_location",
            "the URL of the redirect cannot be written in the field Location",
            Vec::new(),
        );
    };
    let mut answer = empty(StatusCode::TEMPORARY_REDIRECT);
    let fields = answer.headers_mut();
    fields.insert(LOCATION, location);
    fields.insert(CACHE_CONTROL, freshness.value());
    answer
}

/// Returns an answer with `body` as JSON.
pub fn json(status: StatusCode, body: &impl Serialize, freshness: Freshness) -> Answer {
    let Ok(body) = serde_json::to_vec(body) else {
        return empty(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    let fields = answer.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    fields.insert(CACHE_CONTROL, freshness.value());
    answer
}

/// An error, and what would have been accepted.
pub fn error(status: StatusCode, error: &str, detail: &str, allowed: Vec<String>) -> Answer {
    let body = ErrorBody {
        error: error.into(),
        detail: detail.into(),
        allowed,
        more: Default::default(),
    };
    json(status, &body, Freshness::None)
}

/// An answer without a body.
pub fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

/// Adds a field, unless `value` cannot be one.
pub fn with_field(mut answer: Answer, name: HeaderName, value: &str) -> Answer {
    if let Ok(value) = HeaderValue::try_from(value) {
        answer.headers_mut().insert(name, value);
    }
    answer
}

/// Returns a time in whole seconds, as `Retry-After` has it: rounded up, so that nobody comes too early, and at
/// least one.
pub fn retry_after_seconds(time: Duration) -> NonZeroU32 {
    let part = u64::from(time.subsec_nanos() > 0);
    let seconds = u32::try_from(time.as_secs().saturating_add(part)).unwrap_or(u32::MAX);
    NonZeroU32::new(seconds).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_cannot_be_made_to_say_more() {
        let answer = redirect("http://a", "/x\r\nSet-Cookie: y", Freshness::None);
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(answer.headers().get(LOCATION).is_none());
        let answer = redirect("http://a", "/x?y=http://b/", Freshness::Seconds(7));
        assert_eq!(answer.headers()[LOCATION], "http://a/x?y=http://b/");
        assert_eq!(answer.headers()[CACHE_CONTROL], "private, max-age=7");
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (wait, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (60_000, 60)] {
            let wait = Duration::from_millis(wait);
            assert_eq!(retry_after_seconds(wait).get(), seconds);
        }
        assert_eq!(retry_after_seconds(Duration::MAX).get(), u32::MAX);
    }
}

//! Errors in the body format that clients of engines know: those of OpenAI's interface and those of Anthropic's.

use bytes::Bytes;

/// Error of the balancer's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineError<'a> {
    /// Kind of the error, by Anthropic's names.
    pub(super) kind: &'a str,
    /// Code of the error, as OpenAI's interface has codes.
    pub(super) code: &'a str,
    /// Key of the body that the error is about.
    pub(super) param: Option<&'a str>,
    /// Line for a person to read.
    pub(super) message: &'a str,
}

impl<'a> EngineError<'a> {
    /// Error that an answer with this status and text tells.
    pub(super) fn of_status(status: u16, message: &'a str) -> Self {
        let (kind, code) = match status {
            401 => ("authentication_error", "invalid_api_key"),
            403 => ("permission_error", "permission_denied"),
            404 => ("not_found_error", "not_found"),
            408 | 504 => ("timeout_error", "timeout"),
            413 => ("request_too_large", "request_too_large"),
            429 => ("rate_limit_error", "rate_limit_exceeded"),
            503 => ("overloaded_error", "server_overloaded"),
            500.. => ("api_error", "server_error"),
            _ => ("invalid_request_error", "invalid_request"),
        };
        EngineError {
            kind,
            code,
            param: None,
            message,
        }
    }

    /// Body of the answer: an object that is an error of both interfaces.
    pub(super) fn to_body(self) -> Bytes {
        let error = serde_json::json!({
            "type": "error",
            "error": {
                "type": self.kind, "code": self.code, "param": self.param, "message": self.message,
            },
        });
        Bytes::from(format!("{error}\n"))
    }
}

//! Reasons why a head is refused, and the status for each.

/// Reason why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The start line is not one.
    #[error("malformed start line: expected one line with single spaces, ended by CR LF")]
    StartLine,
    /// More than one empty line, or anything but CR LF, before the start line.
    #[error("unexpected empty line before the start line")]
    LeadingLine,
    /// A line that does not end in CR LF, or a CR or LF elsewhere.
    #[error("bare CR or LF in the head: each line must end in CR LF")]
    LineEnd,
    /// A field name that is empty, has invalid bytes or whitespace before the colon; or a
    /// line that begins with whitespace (obsolete folding).
    #[error("malformed field name, whitespace before the colon, or a folded line")]
    FieldName,
    /// A control byte in a field value.
    #[error("control byte in a field value")]
    FieldValue,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    #[error("HTTP version not supported: use HTTP/1.1")]
    Version,
    /// The request target is not in a form that its method allows, or has invalid bytes.
    #[error("invalid request target")]
    Target,
    /// The request line alone exceeds the limit on heads.
    #[error("request target too long")]
    TargetTooLong,
    /// The head exceeds the limit in bytes.
    #[error("head too large")]
    TooLarge,
    /// The head exceeds the limit in fields.
    #[error("too many fields in the head")]
    TooManyFields,
    /// No `Host` in an HTTP/1.1 request.
    #[error("missing Host field")]
    MissingHost,
    /// More than one `Host`.
    #[error("more than one Host field")]
    RepeatedHost,
    /// `Host` and `:authority` of HTTP/2 are not the same.
    #[error("the Host field differs from :authority")]
    HostDiffers,
    /// `Host` is not `host[:port]`.
    #[error("invalid Host field: expected host or host:port")]
    InvalidHost,
    /// `Content-Length` is not a number of at most 63 bits.
    #[error("invalid Content-Length: expected decimal digits")]
    InvalidContentLength,
    /// More than one `Content-Length`: in a request also if they are equal.
    #[error("more than one Content-Length")]
    RepeatedContentLength,
    /// Both framings at once.
    #[error("both Content-Length and Transfer-Encoding: send only one")]
    LengthAndTransferEncoding,
    /// `Transfer-Encoding` is malformed, repeated, or does not end in `chunked`.
    #[error("invalid Transfer-Encoding: expected chunked, once")]
    InvalidTransferEncoding,
    /// A transfer coding other than `chunked`.
    #[error("transfer coding not supported: use chunked alone")]
    UnknownTransferCoding,
    /// `Transfer-Encoding` in HTTP/1.0, which does not know it.
    #[error("Transfer-Encoding in an HTTP/1.0 message")]
    TransferEncodingInHttp10,
    /// A name that differs from a framing field by `_` for `-` only.
    #[error("a framing field spelt with '_' instead of '-'")]
    AliasedFraming,
    /// `Connection` is not a list of tokens, or too long a one.
    #[error("invalid Connection field: expected a short list of names")]
    InvalidConnection,
    /// `Connection` names a field that is not for this hop alone.
    #[error("Connection names a field that must reach the server")]
    ProtectedByConnection,
    /// An expectation other than `100-continue`.
    #[error("expectation not supported: only 100-continue is")]
    Expectation,
    /// `CONNECT`: this is no tunnel.
    #[error("CONNECT is not supported: this is a reverse proxy")]
    Connect,
    /// Status code below 100.
    #[error("invalid status code")]
    StatusCode,
    /// An interim response, with framing for a body.
    #[error("a response with status 1xx announces a body")]
    BodyNotAllowed,
    /// A switch of protocols that nobody asked for, or that names no protocol.
    #[error("unexpected 101 (switching protocols)")]
    UnexpectedUpgrade,
}

impl HeadError {
    /// Status to refuse a request with. A response that cannot be read is always 502.
    pub fn request_status(self) -> u16 {
        match self {
            Self::Version => 505,
            Self::TargetTooLong => 414,
            Self::TooLarge | Self::TooManyFields => 431,
            Self::UnknownTransferCoding | Self::Connect => 501,
            Self::Expectation => 417,
            _ => 400,
        }
    }

    pub(super) fn from_httparse(error: httparse::Error) -> Self {
        match error {
            httparse::Error::HeaderName => Self::FieldName,
            httparse::Error::HeaderValue => Self::FieldValue,
            httparse::Error::NewLine => Self::LineEnd,
            httparse::Error::TooManyHeaders => Self::TooManyFields,
            httparse::Error::Version => Self::Version,
            httparse::Error::Token | httparse::Error::Status => Self::StartLine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::HeadError as E;

    #[test]
    fn each_refusal_has_its_status() {
        for (error, status) in [
            (E::LineEnd, 400),
            (E::LengthAndTransferEncoding, 400),
            (E::TargetTooLong, 414),
            (E::Expectation, 417),
            (E::TooLarge, 431),
            (E::TooManyFields, 431),
            (E::UnknownTransferCoding, 501),
            (E::Connect, 501),
            (E::Version, 505),
        ] {
            assert_eq!(error.request_status(), status);
        }
    }
}

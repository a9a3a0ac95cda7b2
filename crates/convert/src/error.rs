//! Reasons why a text is not translated.

/// Longest configuration that is translated, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;

/// Reason for which a text is not translated at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// The file is too long.
    #[error("is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// The file is in another language.
    #[error("is neither a configuration of HAProxy nor one of nginx")]
    Unknown,
    /// The file is not well-formed.
    #[error("line {line}: {why}")]
    Syntax {
        /// Number of the line, from 1.
        line: usize,
        /// Reason why the file is refused.
        why: &'static str,
    },
    /// There is nothing in it that has a counterpart.
    #[error("has nothing that clients connect to and no servers")]
    Empty,
}

//! Reasons why a message is refused.

use super::version::Version;
use crate::cdr::CdrError;

/// A message that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GiopError {
    /// The message does not start with `GIOP`.
    #[error("this is not GIOP: a message starts with {0:02x?}")]
    NotGiop([u8; 4]),
    /// A version that is not spoken here.
    #[error("GIOP {major}.{minor} is not supported, only 1.0 to 1.2")]
    Version {
        /// Before the point.
        major: u8,
        /// Behind it.
        minor: u8,
    },
    /// No such type of message.
    #[error("there is no message of type {0} in this version of GIOP")]
    Type(u8),
    /// A message above the limit.
    #[error("a message of {size} bytes is too large: the limit is {limit}")]
    TooLarge {
        /// Size of the message, without the header.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// The buffer does not hold one whole message.
    #[error("a buffer of {0} bytes does not hold one whole message")]
    NotWhole(usize),
    /// A part of it cannot be read.
    #[error(transparent)]
    Cdr(#[from] CdrError),
    /// A fragment that does not fit.
    #[error("a fragmented message is not valid: {0}")]
    Fragment(&'static str),
    /// Something that this version cannot express.
    #[error("GIOP {} has no {what}", match .version {
        Version::V1_0 => "1.0", Version::V1_1 => "1.1", Version::V1_2 => "1.2" })]
    NotInVersion {
        /// Name of the part that the version does not have.
        what: &'static str,
        /// The version.
        version: Version,
    },
}

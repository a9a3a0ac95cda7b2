//! The body of a reply.

use std::fmt;

use crate::cdr::{Endian, Reader};
use crate::message::Version;

/// The body of a reply.
#[derive(Clone, PartialEq, Eq)]
pub struct Body {
    pub(super) message: Vec<u8>,
    pub(super) at: usize,
    pub(super) endian: Endian,
    pub(super) version: Version,
}

impl Body {
    /// Reads it from its start.
    pub fn reader(&self) -> Reader<'_> {
        let body = self.message.get(self.at..).unwrap_or_default();
        Reader::at_offset(self.at, body, self.endian)
    }

    /// The version of the message that it came in.
    pub fn version(&self) -> Version {
        self.version
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Body({} bytes)",
            self.message.len().saturating_sub(self.at)
        )
    }
}

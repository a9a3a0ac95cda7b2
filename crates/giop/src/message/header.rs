//! The first bytes of a message.

use super::error::GiopError;
use super::version::Version;
use crate::cdr::{Endian, HEADER_LENGTH};

/// Types of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 0, from the client.
    Request,
    /// 1, from the server.
    Reply,
    /// 2, from the client.
    CancelRequest,
    /// 3, from the client.
    LocateRequest,
    /// 4, from the server.
    LocateReply,
    /// 5, from the server; in 1.2 from both.
    CloseConnection,
    /// 6, from both.
    MessageError,
    /// 7, from both; not in 1.0.
    Fragment,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Request,
        Kind::Reply,
        Kind::CancelRequest,
        Kind::LocateRequest,
        Kind::LocateReply,
        Kind::CloseConnection,
        Kind::MessageError,
        Kind::Fragment,
    ];
}

/// The first 12 bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version.
    pub version: Version,
    /// The byte order.
    pub endian: Endian,
    /// True if fragments follow (never in 1.0).
    pub more: bool,
    /// Type of the message.
    pub kind: Kind,
    /// Bytes that follow the header.
    pub size: u32,
}

impl Header {
    /// Length of a header in bytes.
    pub const LEN: usize = HEADER_LENGTH;

    /// Reads the header at the start of `buffer`; none if it has not come yet. Errors that show in
    /// fewer bytes are told at once. `limit` is for the size.
    pub fn peek(buffer: &[u8], limit: usize) -> Result<Option<Self>, GiopError> {
        let magic = buffer.get(..4).unwrap_or(buffer);
        if !b"GIOP".starts_with(magic) {
            let mut found = [0; 4];
            found
                .iter_mut()
                .zip(magic)
                .for_each(|(to, from)| *to = *from);
            return Err(GiopError::NotGiop(found));
        }
        let Some(&[_, _, _, _, major, minor, flags, kind, a, b, c, d]) = buffer.first_chunk()
        else {
            return Ok(None);
        };
        let version = match (major, minor) {
            (1, 0) => Version::V1_0,
            (1, 1) => Version::V1_1,
            (1, 2) => Version::V1_2,
            (major, minor) => return Err(GiopError::Version { major, minor }),
        };
        let kind = match Kind::ALL.get(usize::from(kind)) {
            Some(&known) if version > Version::V1_0 || known != Kind::Fragment => known,
            _ => return Err(GiopError::Type(kind)),
        };
        let (endian, size) = match flags & 1 {
            0 => (Endian::Big, u32::from_be_bytes([a, b, c, d])),
            _ => (Endian::Little, u32::from_le_bytes([a, b, c, d])),
        };
        if size as usize > limit {
            let size = size as usize;
            return Err(GiopError::TooLarge { size, limit });
        }
        Ok(Some(Header {
            version,
            endian,
            more: version > Version::V1_0 && flags & 2 != 0,
            kind,
            size,
        }))
    }

    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; Header::LEN] {
        let [a, b, c, d] = match self.endian {
            Endian::Big => self.size.to_be_bytes(),
            Endian::Little => self.size.to_le_bytes(),
        };
        let flags = self.endian.byte_order_flag() | u8::from(self.more) << 1;
        let minor = self.version.minor();
        let kind = self.kind as u8;
        [b'G', b'I', b'O', b'P', 1, minor, flags, kind, a, b, c, d]
    }

    /// Bytes of the whole message with its header.
    pub fn total(&self) -> usize {
        Header::LEN.saturating_add(self.size as usize)
    }
}

//! The messages of GIOP 1.0, 1.1 and 1.2 (CORBA 3.3, part 2, 9.4).
//!
//! A [`Message`] is a view of a buffer: what is in it is borrowed, and where the request
//! id and the body stand is told, so that a message can be answered, or passed on with
//! another request id or object key, without its body being read. [`Content`] and its
//! parts are also what is encoded:
//!
//! ```
//! use evenkeel_giop::{cdr::Endian, message::*};
//!
//! let mut out = Vec::new();
//! let request = Request::new(7, Target::Key(b"key"), "ping");
//! request.encode(Version::V1_2, Endian::Big, &mut out).unwrap();
//! let message = Message::from_whole(&out).unwrap();
//! let Content::Request(got) = message.read_content().unwrap() else { panic!() };
//! // The same for another object, under another id.
//! let onward = Request { request_id: 8, target: Target::Key(b"other"), ..got };
//! let mut passed_on = Vec::new();
//! onward.encode(Version::V1_0, Endian::Big, &mut passed_on).unwrap();
//! ```

mod reply;
mod request;

use std::mem;

use crate::cdr::{CdrError, Endian, Reader, Writer};

pub use reply::{LocateReply, LocateStatus, Reply, ReplyStatus};
pub use request::{LocateRequest, Request, Target};

/// A version of GIOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// GIOP 1.0.
    V1_0,
    /// GIOP 1.1.
    V1_1,
    /// GIOP 1.2.
    V1_2,
}

impl Version {
    /// The version to speak with a server whose profile says IIOP 1.`minor`.
    pub fn for_minor(minor: u8) -> Self {
        match minor {
            0 => Version::V1_0,
            1 => Version::V1_1,
            _ => Version::V1_2,
        }
    }

    /// The number behind the point.
    pub fn minor(self) -> u8 {
        match self {
            Version::V1_0 => 0,
            Version::V1_1 => 1,
            Version::V1_2 => 2,
        }
    }
}

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
    pub const LEN: usize = 12;

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

/// Puts another request id into a message, where a view of it said that the id stands
/// (`request_id_at`). Nothing happens if it does not reach so far.
pub fn set_request_id(message: &mut [u8], at: usize, endian: Endian, id: u32) {
    if let Some(place) = message.get_mut(at..).and_then(|m| m.first_chunk_mut()) {
        *place = match endian {
            Endian::Big => id.to_be_bytes(),
            Endian::Little => id.to_le_bytes(),
        };
    }
}

/// A whole message in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Header of the message.
    pub header: Header,
    /// All of its bytes, with the header.
    pub bytes: &'a [u8],
    /// Positions at which fragments of 1.1 were joined ([`crate::fragment`]); empty otherwise.
    pub joints: &'a [usize],
}

impl<'a> Message<'a> {
    /// Makes the message with that header, which has been read from the start of `bytes`, and as
    /// many bytes as the header says.
    pub fn new(header: Header, bytes: &'a [u8]) -> Self {
        let joints = &[];
        Message {
            header,
            bytes,
            joints,
        }
    }

    /// The message that `bytes` is, from its first byte to its last.
    pub fn from_whole(bytes: &'a [u8]) -> Result<Self, GiopError> {
        match Header::peek(bytes, usize::MAX)? {
            Some(header) if header.total() == bytes.len() => Ok(Message::new(header, bytes)),
            _ => Err(GiopError::NotWhole(bytes.len())),
        }
    }

    /// Reads all of it but its body. If more fragments follow, they have to be joined
    /// first.
    pub fn read_content(&self) -> Result<Content<'a>, GiopError> {
        let Header {
            version,
            endian,
            kind,
            ..
        } = self.header;
        let rest = self.bytes.get(Header::LEN..).unwrap_or_default();
        let mut reader = Reader::at_offset(Header::LEN, rest, endian).of_fragments(self.joints);
        let reader = &mut reader;
        Ok(match kind {
            Kind::Request => Content::Request(Request::read(version, reader)?),
            Kind::Reply => Content::Reply(Reply::read(version, reader)?),
            Kind::CancelRequest => Content::CancelRequest {
                request_id: reader.read_u32()?,
            },
            Kind::LocateRequest => Content::LocateRequest(LocateRequest::read(version, reader)?),
            Kind::LocateReply => Content::LocateReply(LocateReply::read(version, reader)?),
            Kind::CloseConnection => Content::CloseConnection,
            Kind::MessageError => Content::MessageError,
            Kind::Fragment => Content::Fragment(Fragment {
                request_id: match version {
                    Version::V1_2 => Some(reader.read_u32()?),
                    _ => None,
                },
                data: reader.rest(),
            }),
        })
    }
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A call.
    Request(Request<'a>),
    /// Answer to a call.
    Reply(Reply<'a>),
    /// The client does not wait for an answer any more.
    CancelRequest {
        /// Id of the request or locate request.
        request_id: u32,
    },
    /// A question where an object is.
    LocateRequest(LocateRequest<'a>),
    /// Answer to such a question.
    LocateReply(LocateReply<'a>),
    /// The sender closes the connection. It has not begun the requests that it has not answered.
    CloseConnection,
    /// The sender could not read a message.
    MessageError,
    /// The continuation of a message.
    Fragment(Fragment<'a>),
}

impl Content<'_> {
    /// Appends it as a message to `out`.
    pub fn encode(
        &self,
        version: Version,
        endian: Endian,
        out: &mut Vec<u8>,
    ) -> Result<(), GiopError> {
        let simple = |kind, out| frame(version, endian, kind, out, |_| Ok(()));
        match self {
            Content::Request(request) => request.encode(version, endian, out),
            Content::Reply(reply) => reply.encode(version, endian, out),
            Content::CancelRequest { request_id } => {
                frame(version, endian, Kind::CancelRequest, out, |writer| {
                    writer.write_u32(*request_id);
                    Ok(())
                })
            }
            Content::LocateRequest(request) => request.encode(version, endian, out),
            Content::LocateReply(reply) => reply.encode(version, endian, out),
            Content::CloseConnection => simple(Kind::CloseConnection, out),
            Content::MessageError => simple(Kind::MessageError, out),
            Content::Fragment(fragment) => fragment.encode(version, endian, false, out),
        }
    }
}

/// Appends a header and what `write` writes behind it. If it fails, nothing is appended.
fn frame(
    version: Version,
    endian: Endian,
    kind: Kind,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Writer) -> Result<(), GiopError>,
) -> Result<(), GiopError> {
    let start = out.len();
    let mut header = Header {
        version,
        endian,
        more: false,
        kind,
        size: 0,
    };
    let mut writer = Writer::append_to(mem::take(out), endian);
    writer.write_raw(&header.encode());
    let result = write(&mut writer);
    *out = writer.into_bytes();
    if result.is_err() {
        out.truncate(start);
        return result;
    }
    let size = out.len() - start - Header::LEN;
    header.size = u32::try_from(size).map_err(|_| {
        let limit = u32::MAX as usize;
        GiopError::TooLarge { size, limit }
    })?;
    if let Some(place) = out.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
        *place = header.encode();
    }
    Ok(())
}

/// The continuation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Id of the request or reply that is continued; in 1.1 the id of the last one before the
    /// fragment.
    pub request_id: Option<u32>,
    /// More of the message.
    pub data: &'a [u8],
}

impl Fragment<'_> {
    /// Appends it as a message to `out`; `more` fragments may follow. There are none in
    /// 1.0, and a request id is needed from 1.2 on: otherwise nothing is appended.
    pub fn encode(
        &self,
        version: Version,
        endian: Endian,
        more: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), GiopError> {
        let start = out.len();
        frame(version, endian, Kind::Fragment, out, |writer| {
            match (version, self.request_id) {
                (Version::V1_0, _) => {
                    let what = "fragments";
                    return Err(GiopError::NotInVersion { what, version });
                }
                (Version::V1_1, _) => {}
                (Version::V1_2, Some(id)) => writer.write_u32(id),
                (Version::V1_2, None) => {
                    let what = "fragments without a request id";
                    return Err(GiopError::NotInVersion { what, version });
                }
            }
            writer.write_raw(self.data);
            Ok(())
        })?;
        if more && let Some(flags) = out.get_mut(start + 6) {
            *flags |= 2;
        }
        Ok(())
    }
}

/// Reads the body of a request or reply, and where it stands. In 1.2 it is aligned to 8;
/// padding without a body behind it is none.
fn read_body<'a>(version: Version, reader: &mut Reader<'a>) -> (&'a [u8], usize) {
    if version == Version::V1_2 && reader.align(8, "body").is_err() {
        return (&[], reader.position());
    }
    (reader.rest(), reader.position())
}

/// A body can be put behind another header without being read only where it is aligned as
/// it was: see [`Request::body_at`].
fn misaligned(version: Version) -> GiopError {
    let what = "place for a body that is not aligned to 8";
    GiopError::NotInVersion { what, version }
}

/// Writes the body of a request or reply of 1.2.
fn write_aligned_body(body: &[u8], body_at: usize, writer: &mut Writer) -> Result<(), GiopError> {
    if !body.is_empty() {
        if !body_at.is_multiple_of(8) {
            return Err(misaligned(Version::V1_2));
        }
        writer.align(8);
        writer.write_raw(body);
    }
    Ok(())
}

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

mod error;
mod frame;
mod header;
mod reply;
mod request;
mod version;

use crate::cdr::{Endian, Reader};

pub use error::GiopError;
use frame::frame;
pub use header::{Header, Kind};
pub use reply::{LocateReply, LocateStatus, Reply, ReplyStatus};
pub use request::{LocateRequest, Request, Target};
pub use version::Version;

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

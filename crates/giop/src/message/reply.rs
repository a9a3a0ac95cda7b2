//! Messages that a server sends: replies, and answers to the question where an object is.

use super::error::GiopError;
use super::frame::{frame, misaligned, read_body, write_aligned_body};
use super::header::{Header, Kind};
use super::version::Version;
use crate::cdr::{CdrError, Endian, Reader, Writer};
use crate::context::{Contexts, ServiceContext};

macro_rules! status {
    ($(#[$doc:meta])* $name:ident, $what:literal; $($(#[$one:meta])* $variant:ident $since:ident;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$one])* $variant,)*
        }

        impl $name {
            fn read(version: Version, reader: &mut Reader<'_>) -> Result<Self, CdrError> {
                let at = reader.position();
                let number = reader.read_u32()?;
                $(
                    if number == $name::$variant as u32 && version >= Version::$since {
                        return Ok($name::$variant);
                    }
                )*
                Err(CdrError::Invalid {
                    what: $what,
                    at,
                    found: number.to_string(),
                })
            }

            fn write(self, version: Version, writer: &mut Writer) -> Result<(), GiopError> {
                let since = match self {
                    $($name::$variant => Version::$since,)*
                };
                if version < since {
                    let what = concat!($what, " of that kind");
                    return Err(GiopError::NotInVersion { what, version });
                }
                writer.write_u32(self as u32);
                Ok(())
            }
        }
    };
}

status! {
    /// Status of a reply: how the request ended, and what the reply's body is.
    ReplyStatus, "reply status";
    /// The results.
    NoException V1_0;
    /// The exception: its repository id as a string, then its members.
    UserException V1_0;
    /// A [`SystemException`](crate::exception::SystemException).
    SystemException V1_0;
    /// An [`Ior`](crate::ior::Ior): the request is to be sent there.
    LocationForward V1_0;
    /// An [`Ior`](crate::ior::Ior): this request and all others are to be sent there, for good.
    LocationForwardPerm V1_2;
    /// An unsigned short, the discriminator of the [`Target`](super::Target) that is wanted.
    NeedsAddressingMode V1_2;
}

status! {
    /// Status of a locate reply: where the object is, and what the locate reply's body is.
    LocateStatus, "locate status";
    /// Nobody knows the object. No body.
    UnknownObject V1_0;
    /// The object is here. No body.
    ObjectHere V1_0;
    /// The object is elsewhere. The body is an [`Ior`](crate::ior::Ior).
    ObjectForward V1_0;
    /// An [`Ior`](crate::ior::Ior): there, for good.
    ObjectForwardPerm V1_2;
    /// A [`SystemException`](crate::exception::SystemException).
    SystemException V1_2;
    /// An unsigned short, the discriminator of the [`Target`](super::Target) that is wanted.
    NeedsAddressingMode V1_2;
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The client's number of the request.
    pub request_id: u32,
    /// Position of the id in the message that was read (see [`set_request_id`](super::set_request_id));
    /// encoding ignores this field.
    pub request_id_at: usize,
    /// Status with which the request ended.
    pub status: ReplyStatus,
    /// Service contexts.
    pub contexts: Contexts<'a>,
    /// Results, exception or reference.
    pub body: &'a [u8],
    /// Position of the body in the message. In encoding, the remainder of the position by 8 counts,
    /// as with [`Request::body_at`](super::Request::body_at).
    pub body_at: usize,
}

/// Id of a service context without meaning, which fills a header of 1.0 or 1.1 up: receivers pass
/// over contexts that they do not know. The letters `EvK`, of no range that the OMG has assigned.
const FILLER: u32 = 0x4576_4b00;

impl<'a> Reply<'a> {
    /// A reply. Its `body` has been written from the start of an alignment.
    pub fn new(request_id: u32, status: ReplyStatus, body: &'a [u8]) -> Self {
        Reply {
            request_id,
            request_id_at: 0,
            status,
            contexts: Contexts::NONE,
            body,
            body_at: 0,
        }
    }

    pub(super) fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self, CdrError> {
        let mut contexts = Contexts::NONE;
        if version < Version::V1_2 {
            contexts = Contexts::read(reader)?;
            reader.align(4, "request id")?;
        }
        let request_id_at = reader.position();
        let request_id = reader.read_u32()?;
        let status = ReplyStatus::read(version, reader)?;
        if version == Version::V1_2 {
            contexts = Contexts::read(reader)?;
        }
        let (body, body_at) = read_body(version, reader);
        Ok(Reply {
            request_id,
            request_id_at,
            status,
            contexts,
            body,
            body_at,
        })
    }

    /// Appends it as a message to `out`. It fails if this version has no way to say it:
    /// then nothing is appended.
    pub fn encode(
        &self,
        version: Version,
        endian: Endian,
        out: &mut Vec<u8>,
    ) -> Result<(), GiopError> {
        frame(version, endian, Kind::Reply, out, |writer| {
            if version == Version::V1_2 {
                writer.write_u32(self.request_id);
                self.status.write(version, writer)?;
                self.contexts.write(writer);
                return write_aligned_body(self.body, self.body_at, writer);
            }
            // Contexts of any length, the id and the status.
            let head: usize = self
                .contexts
                .iter()
                .map(|context| 8 + context.data.len().next_multiple_of(4))
                .sum();
            let end = Header::LEN + 4 + head + 8;
            match self.body_at.wrapping_sub(end) % 8 {
                _ if self.body.is_empty() => self.contexts.write(writer),
                0 => self.contexts.write(writer),
                4 => {
                    let filler = ServiceContext {
                        id: FILLER,
                        data: &[0; 4],
                    };
                    self.contexts.write_with(filler, writer);
                }
                _ => return Err(misaligned(version)),
            }
            writer.write_u32(self.request_id);
            self.status.write(version, writer)?;
            writer.write_raw(self.body);
            Ok(())
        })
    }
}

/// Answer to the question where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateReply<'a> {
    /// The client's number of the question.
    pub request_id: u32,
    /// Status of the answer: where the object is.
    pub status: LocateStatus,
    /// A reference, an exception, or nothing. None of these is aligned to more than 4, so
    /// the same bytes are good in any reply.
    pub body: &'a [u8],
}

impl<'a> LocateReply<'a> {
    /// Position of the request id in each such message.
    pub const REQUEST_ID_AT: usize = Header::LEN;
    /// Position of the body in each such message: the body is not aligned to 8, unlike the body of
    /// a reply.
    pub const BODY_AT: usize = Header::LEN + 8;

    pub(super) fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self, CdrError> {
        Ok(LocateReply {
            request_id: reader.read_u32()?,
            status: LocateStatus::read(version, reader)?,
            body: reader.rest(),
        })
    }

    /// Appends it as a message to `out`. It fails if this version has no such status: then
    /// nothing is appended.
    pub fn encode(
        &self,
        version: Version,
        endian: Endian,
        out: &mut Vec<u8>,
    ) -> Result<(), GiopError> {
        frame(version, endian, Kind::LocateReply, out, |writer| {
            writer.write_u32(self.request_id);
            self.status.write(version, writer)?;
            writer.write_raw(self.body);
            Ok(())
        })
    }
}

//! Messages that a client sends: requests, and questions where an object is.

use super::error::GiopError;
use super::frame::{frame, read_body, write_aligned_body};
use super::header::{Header, Kind};
use super::version::Version;
use crate::cdr::{CdrError, Endian, Reader, Writer};
use crate::context::Contexts;
use crate::ior::{self, Ior};

/// The object that a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// Object key: the usual way, and the only one before 1.2.
    Key(&'a [u8]),
    /// Profile of the object's reference.
    Profile {
        /// Kind of the profile.
        tag: u32,
        /// Data of the profile.
        data: &'a [u8],
    },
    /// Whole reference of the object.
    Reference {
        /// The profile that the client has chosen.
        selected: u32,
        /// The reference.
        ior: Ior,
    },
}

impl<'a> Target<'a> {
    /// The object key; none if it is not in there. Then the answer is
    /// [`ReplyStatus::NeedsAddressingMode`](super::ReplyStatus::NeedsAddressingMode).
    pub fn object_key(&self) -> Option<&[u8]> {
        match self {
            Target::Key(key) => Some(key),
            Target::Profile { tag, data } => ior::key_of_profile(*tag, data),
            Target::Reference { selected, ior } => {
                let profile = ior.profiles.get(usize::try_from(*selected).ok()?)?;
                ior::key_of_profile(profile.tag, &profile.data)
            }
        }
    }

    fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self, CdrError> {
        if version < Version::V1_2 {
            return Ok(Target::Key(reader.read_octets("object key")?));
        }
        let at = reader.position();
        Ok(match reader.read_u16()? {
            0 => Target::Key(reader.read_octets("object key")?),
            1 => Target::Profile {
                tag: reader.read_u32()?,
                data: reader.read_octets("profile of the target")?,
            },
            2 => Target::Reference {
                selected: reader.read_u32()?,
                ior: Ior::read(reader)?,
            },
            other => {
                return Err(CdrError::Invalid {
                    what: "addressing mode",
                    at,
                    found: other.to_string(),
                });
            }
        })
    }

    fn write(&self, version: Version, writer: &mut Writer) -> Result<(), GiopError> {
        if version < Version::V1_2 {
            let what = "target without an object key";
            let key = self.object_key();
            writer.write_octets(key.ok_or(GiopError::NotInVersion { what, version })?);
            return Ok(());
        }
        match self {
            Target::Key(key) => {
                writer.write_u16(0);
                writer.write_octets(key);
            }
            Target::Profile { tag, data } => {
                writer.write_u16(1);
                writer.write_u32(*tag);
                writer.write_octets(data);
            }
            Target::Reference { selected, ior } => {
                writer.write_u16(2);
                writer.write_u32(*selected);
                ior.write(writer);
            }
        }
        Ok(())
    }
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The client's number of the request.
    pub request_id: u32,
    /// Position of the id in the message that was read (see [`set_request_id`](super::set_request_id));
    /// encoding ignores this field.
    pub request_id_at: usize,
    /// Flags that tell whether the client expects a reply, as they stand in the message; see
    /// [`Request::response_expected`]. In 1.2: 0 for none, 1 for a reply as soon as the server has
    /// got the request, 3 for a reply from the object; before: 0 for none, 1 for a reply.
    pub response_flags: u8,
    /// Object that the request is for.
    pub target: Target<'a>,
    /// Operation that is called.
    pub operation: &'a str,
    /// Service contexts.
    pub contexts: Contexts<'a>,
    /// Caller, in 1.0 and 1.1; nobody uses this field.
    pub principal: &'a [u8],
    /// The arguments, with the byte order of the message.
    pub body: &'a [u8],
    /// Position of the body in the message. In encoding, the remainder of the position by 8 counts,
    /// and is kept: the principal is filled up for that in 1.0 and 1.1. In 1.2 the remainder has to
    /// be 0, and is, unless the body comes from a message of an older version.
    pub body_at: usize,
}

impl<'a> Request<'a> {
    /// A request without arguments to which an object replies. A `body` to be added has
    /// been written from the start of an alignment.
    pub fn new(request_id: u32, target: Target<'a>, operation: &'a str) -> Self {
        Request {
            request_id,
            request_id_at: 0,
            response_flags: 3,
            target,
            operation,
            contexts: Contexts::NONE,
            principal: &[],
            body: &[],
            body_at: 0,
        }
    }

    /// Returns true if the client waits for a reply.
    pub fn response_expected(&self) -> bool {
        self.response_flags & 1 != 0
    }

    pub(super) fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self, CdrError> {
        let mut contexts = Contexts::NONE;
        if version < Version::V1_2 {
            contexts = Contexts::read(reader)?;
            reader.align(4, "request id")?;
        }
        let request_id_at = reader.position();
        let request_id = reader.read_u32()?;
        let response_flags = match version {
            Version::V1_2 => reader.read_u8()?,
            _ => u8::from(reader.read_bool()?),
        };
        if version > Version::V1_0 {
            reader.take(3, "reserved octets")?;
        }
        let target = Target::read(version, reader)?;
        let at = reader.position();
        let operation = reader.read_string_bytes("operation")?;
        let operation = std::str::from_utf8(operation).map_err(|_| CdrError::Invalid {
            what: "operation",
            at,
            found: "characters that no name has".into(),
        })?;
        let mut principal = &[][..];
        match version {
            Version::V1_2 => contexts = Contexts::read(reader)?,
            _ => principal = reader.read_octets("principal")?,
        }
        let (body, body_at) = read_body(version, reader);
        Ok(Request {
            request_id,
            request_id_at,
            response_flags,
            target,
            operation,
            contexts,
            principal,
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
        frame(version, endian, Kind::Request, out, |writer| {
            if version < Version::V1_2 {
                self.contexts.write(writer);
            }
            writer.write_u32(self.request_id);
            writer.write_u8(match version {
                Version::V1_2 => self.response_flags,
                _ => self.response_flags & 1,
            });
            writer.write_raw(&[0; 3]);
            self.target.write(version, writer)?;
            writer.write_string(self.operation);
            if version == Version::V1_2 {
                self.contexts.write(writer);
                return write_aligned_body(self.body, self.body_at, writer);
            }
            let filler = match self.body {
                [] => 0,
                _ => {
                    writer.align(4);
                    let end = writer.position() + 4 + self.principal.len();
                    self.body_at.wrapping_sub(end) % 8
                }
            };
            writer.write_len(self.principal.len() + filler);
            writer.write_raw(self.principal);
            writer.write_raw([0; 8].get(..filler).unwrap_or_default());
            writer.write_raw(self.body);
            Ok(())
        })
    }
}

/// A question where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateRequest<'a> {
    /// The client's number for it.
    pub request_id: u32,
    /// Object that the question is about.
    pub target: Target<'a>,
}

impl<'a> LocateRequest<'a> {
    /// Position of the request id in each such message.
    pub const REQUEST_ID_AT: usize = Header::LEN;

    pub(super) fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self, CdrError> {
        Ok(LocateRequest {
            request_id: reader.read_u32()?,
            target: Target::read(version, reader)?,
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
        frame(version, endian, Kind::LocateRequest, out, |writer| {
            writer.write_u32(self.request_id);
            self.target.write(version, writer)
        })
    }
}

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
//! let message = Message::whole(&out).unwrap();
//! let Content::Request(got) = message.content().unwrap() else { panic!() };
//! // The same for another object, under another id.
//! let onward = Request { request_id: 8, target: Target::Key(b"other"), ..got };
//! let mut passed_on = Vec::new();
//! onward.encode(Version::V1_0, Endian::Big, &mut passed_on).unwrap();
//! ```

use std::mem;

use crate::cdr::{CdrError, Endian, Reader, Writer};
use crate::context::{Contexts, ServiceContext};
use crate::ior::{self, Ior};

/// A version of GIOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 1.0.
    V1_0,
    /// 1.1.
    V1_1,
    /// 1.2.
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
    /// It does not start with `GIOP`.
    #[error("this is not GIOP: a message starts with {0:02x?}")]
    NotGiop([u8; 4]),
    /// A version that is not spoken here.
    #[error("GIOP {major}.{minor} is not spoken here, only 1.0 to 1.2")]
    Version {
        /// Before the point.
        major: u8,
        /// Behind it.
        minor: u8,
    },
    /// No such type of message.
    #[error("there is no message of type {0} in this version of GIOP")]
    Type(u8),
    /// More than is taken.
    #[error("a message of {size} bytes is too large: the limit is {limit}")]
    TooLarge {
        /// Its size, without the header.
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
    #[error("a message in fragments is not as it should be: {0}")]
    Fragment(&'static str),
    /// Something that this version cannot express.
    #[error("GIOP {} has no {what}", match .version {
        Version::V1_0 => "1.0", Version::V1_1 => "1.1", Version::V1_2 => "1.2" })]
    NotInVersion {
        /// What.
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
    /// Whether fragments follow (never in 1.0).
    pub more: bool,
    /// What it is.
    pub kind: Kind,
    /// Bytes that follow the header.
    pub size: u32,
}

impl Header {
    /// Its length.
    pub const LEN: usize = 12;

    /// Reads the header at the start of `buffer`; none if it has not come yet. What can be
    /// told wrong from fewer bytes is. `limit` is for the size.
    pub fn peek(buffer: &[u8], limit: usize) -> Result<Option<Self>, GiopError> {
        let magic = &buffer[..buffer.len().min(4)];
        if !b"GIOP".starts_with(magic) {
            let mut found = [0; 4];
            found[..magic.len()].copy_from_slice(magic);
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

    /// Its bytes.
    pub fn encode(&self) -> [u8; Header::LEN] {
        let [a, b, c, d] = match self.endian {
            Endian::Big => self.size.to_be_bytes(),
            Endian::Little => self.size.to_le_bytes(),
        };
        let flags = self.endian.flag() | u8::from(self.more) << 1;
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
    /// Its header.
    pub header: Header,
    /// All of its bytes, with the header.
    pub bytes: &'a [u8],
    /// Where fragments of 1.1 were joined ([`crate::fragment`]); empty otherwise.
    pub joints: &'a [usize],
}

impl<'a> Message<'a> {
    /// The message with that header, which has been read from the start of `bytes`, and as
    /// many bytes as it says.
    pub fn new(header: Header, bytes: &'a [u8]) -> Self {
        let joints = &[];
        Message {
            header,
            bytes,
            joints,
        }
    }

    /// The message that `bytes` is, from its first byte to its last.
    pub fn whole(bytes: &'a [u8]) -> Result<Self, GiopError> {
        match Header::peek(bytes, usize::MAX)? {
            Some(header) if header.total() == bytes.len() => Ok(Message::new(header, bytes)),
            _ => Err(GiopError::NotWhole(bytes.len())),
        }
    }

    /// Reads all of it but its body. If more fragments follow, they have to be joined
    /// first.
    pub fn content(&self) -> Result<Content<'a>, GiopError> {
        let Header {
            version,
            endian,
            kind,
            ..
        } = self.header;
        let rest = self.bytes.get(Header::LEN..).unwrap_or_default();
        let mut reader = Reader::after(Header::LEN, rest, endian);
        let reader = &mut reader;
        Ok(match kind {
            Kind::Request => Content::Request(Request::read(version, reader)?),
            Kind::Reply => Content::Reply(Reply::read(version, reader)?),
            Kind::CancelRequest => Content::CancelRequest {
                request_id: reader.read_u32()?,
            },
            Kind::LocateRequest => Content::LocateRequest(LocateRequest {
                request_id: reader.read_u32()?,
                target: Target::read(version, reader)?,
            }),
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

/// What is in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A call.
    Request(Request<'a>),
    /// Its answer.
    Reply(Reply<'a>),
    /// The client does not wait for an answer any more.
    CancelRequest {
        /// Of the request or locate request.
        request_id: u32,
    },
    /// A question where an object is.
    LocateRequest(LocateRequest<'a>),
    /// Its answer.
    LocateReply(LocateReply<'a>),
    /// The sender closes; what it has not answered, it has not begun.
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
    let mut writer = Writer::append(mem::take(out), endian);
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
    out[start..start + Header::LEN].copy_from_slice(&header.encode());
    Ok(())
}

/// Which object a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// By its key: the usual way, and the only one before 1.2.
    Key(&'a [u8]),
    /// By a profile of its reference.
    Profile {
        /// Which kind of profile.
        tag: u32,
        /// Its data.
        data: &'a [u8],
    },
    /// By its whole reference.
    Reference {
        /// The profile that the client has chosen.
        selected: u32,
        /// The reference.
        ior: Ior,
    },
}

impl<'a> Target<'a> {
    /// The object key; none if it is not in there. Then the answer is
    /// [`ReplyStatus::NeedsAddressingMode`].
    pub fn key(&self) -> Option<&[u8]> {
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
            let key = self.key();
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

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The client's number for it.
    pub request_id: u32,
    /// Where the id stands in the message that was read (see [`set_request_id`]); not
    /// looked at in encoding.
    pub request_id_at: usize,
    /// Whether there is to be a reply, as it stands in the message; see
    /// [`Request::response_expected`]. In 1.2: 0 for none, 1 for one as soon as the server
    /// has got it, 3 for one from the object; before: 0 for none, 1 for one.
    pub response_flags: u8,
    /// For whom.
    pub target: Target<'a>,
    /// What is called.
    pub operation: &'a str,
    /// Service contexts.
    pub contexts: Contexts<'a>,
    /// Who calls, in 1.0 and 1.1; nobody uses it.
    pub principal: &'a [u8],
    /// The arguments, with the byte order of the message.
    pub body: &'a [u8],
    /// Where the body stands in the message. In encoding what counts is its remainder by
    /// 8, which is kept: the principal is filled up for that in 1.0 and 1.1. In 1.2 it has
    /// to be 0, and is, unless the body comes from a message of an older version.
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

    /// Whether the client waits for a reply.
    pub fn response_expected(&self) -> bool {
        self.response_flags & 1 != 0
    }

    fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self, CdrError> {
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
            writer.write_raw(&[0; 8][..filler]);
            writer.write_raw(self.body);
            Ok(())
        })
    }
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
    /// How a request ended, and what the reply's body is.
    ReplyStatus, "reply status";
    /// The results.
    NoException V1_0;
    /// The exception: its repository id as a string, then its members.
    UserException V1_0;
    /// A [`SystemException`](crate::exception::SystemException).
    SystemException V1_0;
    /// An [`Ior`]: the request is to be sent there.
    LocationForward V1_0;
    /// An [`Ior`]: this request and all others are to be sent there, for good.
    LocationForwardPerm V1_2;
    /// An unsigned short, the discriminator of the [`Target`] that is wanted.
    NeedsAddressingMode V1_2;
}

status! {
    /// Where an object is, and what the locate reply's body is.
    LocateStatus, "locate status";
    /// Nobody knows it. No body.
    UnknownObject V1_0;
    /// Here. No body.
    ObjectHere V1_0;
    /// An [`Ior`]: there.
    ObjectForward V1_0;
    /// An [`Ior`]: there, for good.
    ObjectForwardPerm V1_2;
    /// A [`SystemException`](crate::exception::SystemException).
    SystemException V1_2;
    /// An unsigned short, the discriminator of the [`Target`] that is wanted.
    NeedsAddressingMode V1_2;
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The client's number of the request.
    pub request_id: u32,
    /// Where the id stands in the message that was read (see [`set_request_id`]); not
    /// looked at in encoding.
    pub request_id_at: usize,
    /// How it ended.
    pub status: ReplyStatus,
    /// Service contexts.
    pub contexts: Contexts<'a>,
    /// Results, exception or reference.
    pub body: &'a [u8],
    /// Where the body stands in the message. In encoding what counts is its remainder by
    /// 8, as with [`Request::body_at`].
    pub body_at: usize,
}

/// Id of a service context without meaning, which fills a header of 1.0 or 1.1 up: what
/// is not known is passed over. The letters `EvK`, of no range that the OMG has assigned.
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

    fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self, CdrError> {
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
                    let (id, data) = (FILLER, &[0; 4][..]);
                    let filler = ServiceContext { id, data };
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

/// A question where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateRequest<'a> {
    /// The client's number for it.
    pub request_id: u32,
    /// Which object.
    pub target: Target<'a>,
}

impl LocateRequest<'_> {
    /// Where the request id stands in each such message.
    pub const REQUEST_ID_AT: usize = Header::LEN;

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

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateReply<'a> {
    /// The client's number of the question.
    pub request_id: u32,
    /// Where.
    pub status: LocateStatus,
    /// A reference, an exception, or nothing. None of these is aligned to more than 4, so
    /// the same bytes are good in any reply.
    pub body: &'a [u8],
}

impl<'a> LocateReply<'a> {
    /// Where the request id stands in each such message.
    pub const REQUEST_ID_AT: usize = Header::LEN;
    /// Where the body stands in each such message: it is not aligned to 8, unlike that of
    /// a reply.
    pub const BODY_AT: usize = Header::LEN + 8;

    fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self, CdrError> {
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

/// The continuation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Of which request or reply; in 1.1 of the last one before it.
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

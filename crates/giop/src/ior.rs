//! Object references, and the strings that stand for them.

use std::fmt;
use std::str::FromStr;

use crate::cdr::{CdrError, Endian, Reader, Writer};
use crate::context::CodeSetInfo;
use crate::hex;

/// Tag of the profile for IIOP.
pub const TAG_INTERNET_IOP: u32 = 0;
/// Tag of a component: the kind of ORB that made the reference.
pub const TAG_ORB_TYPE: u32 = 0;
/// Tag of a component: the server's code sets ([`CodeSetInfo`]).
pub const TAG_CODE_SETS: u32 = 1;
/// Tag of a component: one more address of the server.
pub const TAG_ALTERNATE_IIOP_ADDRESS: u32 = 3;

/// An interoperable object reference (IOR).
///
/// It reads and writes `IOR:` strings by [`FromStr`] and [`fmt::Display`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ior {
    /// Repository id of the object's interface; empty with no profiles is nil.
    pub type_id: String,
    /// Ways to reach it, best first; kept as they are, so that a reference is passed on
    /// byte for byte as it came. For those of IIOP see [`Ior::iiop_profiles`].
    pub profiles: Vec<TaggedPart>,
}

/// An object behind IIOP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IiopProfile {
    /// Minor version of IIOP 1.x.
    pub minor: u8,
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Key that names the object at the server; opaque.
    pub object_key: Vec<u8>,
    /// Tagged components (none in version 1.0).
    pub components: Vec<TaggedPart>,
}

/// A tagged profile or component: an encapsulation that is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaggedPart {
    /// The tag.
    pub tag: u32,
    /// The data.
    pub data: Vec<u8>,
}

/// A string that is no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IorError {
    /// The string starts with something else than `IOR:`.
    #[error("a reference starts with \"IOR:\"")]
    NoIor,
    /// The text after `IOR:` is no hexadecimal number of whole bytes.
    #[error("character {at} of the reference is no hexadecimal digit of a whole byte")]
    NoHex {
        /// Position of the character, from 0.
        at: usize,
    },
    /// The bytes are no reference.
    #[error("the reference is damaged: {0}")]
    Cdr(#[from] CdrError),
}

impl Ior {
    /// The reference of an object behind IIOP 1.2 at one address. It says the code sets that
    /// are understood here and by the ORBs in use: without any, clients send no wide strings
    /// and no others than ISO 8859-1, also where a request is only passed on.
    pub fn new_iiop(type_id: &str, host: &str, port: u16, object_key: &[u8]) -> Self {
        Self::iiop_at(type_id, (host, port), &[], object_key)
    }

    /// Builds an IIOP reference with further addresses, as alternates in its only profile: ORBs try
    /// them in order when they cannot connect to the first one.
    pub fn iiop_at(
        type_id: &str,
        (host, port): (&str, u16),
        alternates: &[(String, u16)],
        object_key: &[u8],
    ) -> Self {
        let mut components = vec![TaggedPart::code_sets(&CodeSetInfo::default())];
        let alternates = alternates.iter();
        components
            .extend(alternates.map(|(host, port)| TaggedPart::alternate_address(host, *port)));
        let profile = IiopProfile {
            minor: 2,
            host: host.into(),
            port,
            object_key: object_key.into(),
            components,
        };
        Ior {
            type_id: type_id.into(),
            profiles: vec![profile.to_tagged()],
        }
    }

    /// About how many bytes it has in CDR.
    pub fn encoded_size(&self) -> usize {
        let profiles = self.profiles.iter().map(|profile| profile.data.len() + 8);
        self.type_id.len() + profiles.sum::<usize>()
    }

    /// Returns true if the reference is nil: it refers to nothing.
    pub fn is_nil(&self) -> bool {
        self.profiles.is_empty()
    }

    /// Returns the profiles for IIOP 1.x, best first.
    pub fn iiop_profiles(&self) -> impl Iterator<Item = IiopProfile> {
        let iiop = self.profiles.iter().filter(|p| p.tag == TAG_INTERNET_IOP);
        iiop.filter_map(|profile| IiopProfile::decode(&profile.data).ok().flatten())
    }

    /// Reads a reference as it stands in messages. A profile for IIOP that cannot be read is an
    /// error.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        let type_id = reader.read_string("type id of a reference")?.into_owned();
        let count = reader.read_len(8, "profiles of a reference")?;
        let profiles = (0..count).map(|_| {
            let (tag, data) = read_tagged(reader)?;
            if tag == TAG_INTERNET_IOP {
                IiopProfile::decode(data)?;
            }
            let data = data.into();
            Ok(TaggedPart { tag, data })
        });
        Ok(Ior {
            type_id,
            profiles: profiles.collect::<Result<_, CdrError>>()?,
        })
    }

    /// Writes it as it stands in messages. Nothing in it is aligned to more than 4, so the
    /// same bytes are good wherever a multiple of 4 is the start.
    pub fn write(&self, writer: &mut Writer) {
        writer.write_string(&self.type_id);
        writer.write_len(self.profiles.len());
        for profile in &self.profiles {
            profile.write(writer);
        }
    }
}

impl TaggedPart {
    fn write(&self, writer: &mut Writer) {
        writer.write_u32(self.tag);
        writer.write_octets(&self.data);
    }
}

fn read_tagged<'a>(reader: &mut Reader<'a>) -> Result<(u32, &'a [u8]), CdrError> {
    let tag = reader.read_u32()?;
    Ok((tag, reader.read_octets("tagged data")?))
}

/// Version, host, port and key of an IIOP profile, which all versions have, unless the
/// version is not 1.x.
struct Front<'a> {
    minor: u8,
    host: std::borrow::Cow<'a, str>,
    port: u16,
    object_key: &'a [u8],
}

impl<'a> Front<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Option<Self>, CdrError> {
        let major = reader.read_u8()?;
        let minor = reader.read_u8()?;
        if major != 1 {
            return Ok(None);
        }
        Ok(Some(Front {
            minor,
            host: reader.read_string("host of a profile")?,
            port: reader.read_u16()?,
            object_key: reader.read_octets("object key of a profile")?,
        }))
    }
}

/// The object key in the data of a profile with that tag, if it is of IIOP 1.x.
pub(crate) fn key_of_profile(tag: u32, data: &[u8]) -> Option<&[u8]> {
    if tag != TAG_INTERNET_IOP {
        return None;
    }
    let mut reader = Reader::of_encapsulation(data).ok()?;
    Front::read(&mut reader)
        .ok()
        .flatten()
        .map(|front| front.object_key)
}

impl IiopProfile {
    /// Reads a profile's data; none if the version is not 1.x. What stands behind its end
    /// in later minor versions is left out.
    pub fn decode(data: &[u8]) -> Result<Option<Self>, CdrError> {
        let mut reader = Reader::of_encapsulation(data)?;
        let Some(front) = Front::read(&mut reader)? else {
            return Ok(None);
        };
        let mut components = Vec::new();
        if front.minor > 0 {
            let count = reader.read_len(8, "components of a profile")?;
            for _ in 0..count {
                let (tag, data) = read_tagged(&mut reader)?;
                let data = data.into();
                components.push(TaggedPart { tag, data });
            }
        }
        Ok(Some(IiopProfile {
            minor: front.minor,
            host: front.host.into_owned(),
            port: front.port,
            object_key: front.object_key.into(),
            components,
        }))
    }

    /// The profile's data.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut writer = Writer::new_encapsulation(endian);
        writer.write_u8(1);
        writer.write_u8(self.minor);
        writer.write_string(&self.host);
        writer.write_u16(self.port);
        writer.write_octets(&self.object_key);
        if self.minor > 0 {
            writer.write_len(self.components.len());
            for component in &self.components {
                component.write(&mut writer);
            }
        }
        writer.into_bytes()
    }

    /// The profile as a reference has it, in this machine's byte order.
    pub fn to_tagged(&self) -> TaggedPart {
        TaggedPart {
            tag: TAG_INTERNET_IOP,
            data: self.encode(Endian::NATIVE),
        }
    }

    /// The data of the first component with that tag.
    pub fn find_component(&self, tag: u32) -> Option<&[u8]> {
        let found = self.components.iter().find(|c| c.tag == tag);
        found.map(|component| component.data.as_slice())
    }

    /// The kind of ORB that made the reference, if it says so. The OMG keeps the list.
    pub fn orb_type(&self) -> Option<u32> {
        let data = self.find_component(TAG_ORB_TYPE)?;
        Reader::of_encapsulation(data).ok()?.read_u32().ok()
    }

    /// The server's code sets, if it says them.
    pub fn code_sets(&self) -> Option<CodeSetInfo> {
        CodeSetInfo::decode(self.find_component(TAG_CODE_SETS)?).ok()
    }

    /// Returns the addresses at which the server listens: host and port, and then the readable ones
    /// of its alternate addresses.
    pub fn list_addresses(&self) -> impl Iterator<Item = (String, u16)> {
        let more = self.components.iter().filter_map(|component| {
            if component.tag != TAG_ALTERNATE_IIOP_ADDRESS {
                return None;
            }
            let mut reader = Reader::of_encapsulation(&component.data).ok()?;
            let host = reader.read_string("alternate host").ok()?.into_owned();
            Some((host, reader.read_u16().ok()?))
        });
        std::iter::once((self.host.clone(), self.port)).chain(more)
    }
}

impl TaggedPart {
    /// A component that says one more address of the server.
    pub fn alternate_address(host: &str, port: u16) -> Self {
        let mut writer = Writer::new_encapsulation(Endian::NATIVE);
        writer.write_string(host);
        writer.write_u16(port);
        TaggedPart {
            tag: TAG_ALTERNATE_IIOP_ADDRESS,
            data: writer.into_bytes(),
        }
    }

    /// A component that says the server's code sets.
    pub fn code_sets(info: &CodeSetInfo) -> Self {
        TaggedPart {
            tag: TAG_CODE_SETS,
            data: info.encode(Endian::NATIVE),
        }
    }
}

impl fmt::Display for Ior {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = Writer::new_encapsulation(Endian::NATIVE);
        self.write(&mut writer);
        f.write_str("IOR:")?;
        hex::write(writer.bytes(), f)
    }
}

impl FromStr for Ior {
    type Err = IorError;

    /// Reads an `IOR:` string, with digits of either case. White space around it, as in
    /// files, is left out.
    fn from_str(text: &str) -> Result<Self, IorError> {
        let text = text.trim();
        let hex = match text.split_at_checked(4) {
            Some((start, hex)) if start.eq_ignore_ascii_case("IOR:") => hex,
            _ => return Err(IorError::NoIor),
        };
        let bytes = hex::read(hex).map_err(|at| IorError::NoHex { at: at + 4 })?;
        Ok(Ior::read(&mut Reader::of_encapsulation(&bytes)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reference of an ORB that writes its profiles with the most significant byte first,
    /// has garbage as padding, and something behind the components.
    #[test]
    fn a_reference_is_passed_on_as_it_came() {
        let profile = b"\0\x01\x02\xaa\0\0\0\x02h\0\x12\x34\0\0\0\x03key\xbb\0\0\0\0more";
        for endian in [Endian::Big, Endian::Little] {
            let mut writer = Writer::new(endian);
            writer.write_string("IDL:Test:1.0");
            writer.write_len(1);
            writer.write_u32(TAG_INTERNET_IOP);
            writer.write_octets(profile);
            let ior = Ior::read(&mut Reader::new(writer.bytes(), endian)).unwrap();
            let iiop = ior.iiop_profiles().next().unwrap();
            assert_eq!((&*iiop.host, iiop.port), ("h", 0x1234));
            assert_eq!(iiop.object_key, b"key");
            let mut again = Writer::new(endian);
            ior.write(&mut again);
            assert_eq!(again.bytes(), writer.bytes());
            assert_eq!(ior.to_string().parse(), Ok(ior));
        }
    }
}

//! CDR, the common data representation: primitive types, aligned to their size, in either
//! byte order.
//!
//! Alignment counts from the start of a message or of an encapsulation. A [`Reader`] or
//! [`Writer`] of a part of one is told how many bytes stand before it.

use std::borrow::Cow;

/// Length of the header of a GIOP message, in bytes: in each fragment of GIOP 1.1, alignment counts from
/// the start of the header.
pub(crate) const HEADER_LENGTH: usize = 12;

/// The byte order of a message or encapsulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Most significant byte first; flag 0.
    Big,
    /// Least significant byte first; flag 1.
    Little,
}

impl Endian {
    /// The byte order of this machine: what it writes fastest.
    pub const NATIVE: Endian = if cfg!(target_endian = "big") {
        Endian::Big
    } else {
        Endian::Little
    };

    /// The octet that stands for it at the start of an encapsulation.
    pub fn byte_order_flag(self) -> u8 {
        u8::from(self == Endian::Little)
    }
}

/// Bytes that are no valid CDR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CdrError {
    /// The bytes end in the middle of a value, or a length says that there are more.
    #[error("{wanted} more bytes are needed at offset {at} for {what}")]
    Short {
        /// Name of the value that was being read.
        what: &'static str,
        /// Offset of the value, from the start of the alignment.
        at: usize,
        /// Number of missing bytes.
        wanted: usize,
    },
    /// A value that its type does not have.
    #[error("{what} at offset {at} is not valid: {found}")]
    Invalid {
        /// Name of the value that was being read.
        what: &'static str,
        /// Offset of the value, from the start of the alignment.
        at: usize,
        /// Description of the value found there.
        found: String,
    },
    /// A length or number above its limit.
    #[error("{what} at offset {at} is too large: more than {most}")]
    TooLarge {
        /// Name of the value that was being read.
        what: &'static str,
        /// Offset of the value, from the start of the alignment.
        at: usize,
        /// The limit.
        most: usize,
    },
    /// The bytes ask for work that is out of proportion to their number.
    #[error("{what} at offset {at} takes more work than its message may")]
    TooCostly {
        /// Name of the value that was being read.
        what: &'static str,
        /// Offset of the value, from the start of the alignment.
        at: usize,
    },
}

/// Steps of work that reading values by their TypeCodes may take for each byte of the whole
/// message. One of a value or of a TypeCode takes one step, and one more for each alias of
/// its type. Types in use take up to four; those that nest to the limit take thousands.
pub const STEPS_PER_BYTE: usize = 8;

/// Steps that even the shortest message may take.
pub const STEPS_FREE: usize = 4096;

/// Reads CDR. Padding is skipped unread: some ORBs leave garbage there.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Bytes that stand before the first one of `bytes`, for alignment.
    before: usize,
    endian: Endian,
    minor: u8,
    /// Positions at which the fragments begin that are still to come ([`Reader::of_fragments`]).
    joints: &'a [usize],
    /// Number that is added to a position for its alignment, in the fragment that is being read.
    shift: usize,
    /// Steps of work that may still be taken.
    work: usize,
}

macro_rules! numbers {
    ($($read:ident $write:ident $type:ty: $size:literal, $name:literal;)*) => {
        impl<'a> Reader<'a> {
            $(
                #[doc = concat!("Reads one `", $name, "`.")]
                #[inline]
                pub fn $read(&mut self) -> Result<$type, CdrError> {
                    self.align($size, $name)?;
                    let bytes = self.array::<$size>($name)?;
                    Ok(match self.endian {
                        Endian::Big => <$type>::from_be_bytes(bytes),
                        Endian::Little => <$type>::from_le_bytes(bytes),
                    })
                }
            )*
        }
        impl Writer {
            $(
                #[doc = concat!("Writes one `", $name, "`.")]
                #[inline]
                pub fn $write(&mut self, value: $type) {
                    self.align($size);
                    match self.endian {
                        Endian::Big => self.bytes.extend_from_slice(&value.to_be_bytes()),
                        Endian::Little => self.bytes.extend_from_slice(&value.to_le_bytes()),
                    }
                }
            )*
        }
    };
}

numbers! {
    read_u16 write_u16 u16: 2, "unsigned short";
    read_i16 write_i16 i16: 2, "short";
    read_u32 write_u32 u32: 4, "unsigned long";
    read_i32 write_i32 i32: 4, "long";
    read_u64 write_u64 u64: 8, "unsigned long long";
    read_i64 write_i64 i64: 8, "long long";
    read_f32 write_f32 f32: 4, "float";
    read_f64 write_f64 f64: 8, "double";
}

impl<'a> Reader<'a> {
    /// Reads `bytes`, which are aligned as they stand.
    pub fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Reader::at_offset(0, bytes, endian)
    }

    /// Reads `bytes`, which stand `before` bytes after the start of the alignment.
    pub fn at_offset(before: usize, bytes: &'a [u8], endian: Endian) -> Self {
        Reader {
            bytes,
            position: 0,
            before,
            endian,
            minor: 2,
            joints: &[],
            shift: 0,
            work: STEPS_PER_BYTE
                .saturating_mul(bytes.len())
                .saturating_add(STEPS_FREE),
        }
    }

    /// Returns the [steps](STEPS_PER_BYTE) of work that the rest of the message may take.
    pub fn work_left(&self) -> usize {
        self.work
    }

    /// Takes `steps` steps of work.
    #[inline]
    pub(crate) fn spend_work(&mut self, steps: usize, what: &'static str) -> Result<(), CdrError> {
        match self.work.checked_sub(steps) {
            Some(left) => {
                self.work = left;
                Ok(())
            }
            None => Err(CdrError::TooCostly {
                what,
                at: self.position(),
            }),
        }
    }

    /// Has so much work left.
    pub(crate) fn set_work(&mut self, left: usize) {
        self.work = left;
    }

    /// Reads what stands in a message of GIOP 1.`minor`. Without this it is 1.2, of which
    /// encapsulations are, too. Only wide characters differ ([`crate::wide`]).
    #[must_use]
    pub fn of_minor(mut self, minor: u8) -> Self {
        self.minor = minor;
        self
    }

    /// Reads what was joined from fragments of GIOP 1.1, in which alignment counts from the
    /// start of each fragment with its header: `joints` are the [positions](Self::position)
    /// where the second one and further ones begin.
    #[must_use]
    pub fn of_fragments(mut self, joints: &'a [usize]) -> Self {
        self.joints = joints;
        self
    }

    /// The minor version of GIOP 1.x.
    pub fn minor_version(&self) -> u8 {
        self.minor
    }

    /// Reads an encapsulation: its first octet says its byte order.
    pub fn of_encapsulation(bytes: &'a [u8]) -> Result<Self, CdrError> {
        let mut reader = Reader::new(bytes, Endian::Big);
        if reader.read_bool()? {
            reader.endian = Endian::Little;
        }
        Ok(reader)
    }

    /// The byte order.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Returns the position of the next byte, from the start of the alignment.
    pub fn position(&self) -> usize {
        self.before + self.position
    }

    /// Returns the number of bytes that are left.
    pub fn remaining_bytes(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The bytes that are left. They stand at [`Reader::position`].
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.position..).unwrap_or_default()
    }

    /// Skips padding up to a multiple of `size`, a power of two.
    #[inline]
    pub fn align(&mut self, size: usize, what: &'static str) -> Result<(), CdrError> {
        loop {
            let at = self.position();
            let padding = at.wrapping_add(self.shift).wrapping_neg() & (size - 1);
            match self.joints.split_first() {
                Some((&joint, rest)) if joint <= at + padding => {
                    // The value stands in the next fragment.
                    self.take(joint.saturating_sub(at), what)?;
                    self.shift = HEADER_LENGTH.wrapping_sub(joint);
                    self.joints = rest;
                    // omniORB pads up to the end of a fragment, and then not again.
                    if at < joint && joint == at + padding {
                        return Ok(());
                    }
                }
                _ => return self.take(padding, what).map(|_| ()),
            }
        }
    }

    /// Takes the next `len` bytes as they are.
    #[inline]
    pub fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], CdrError> {
        match self.bytes.get(self.position..).and_then(|b| b.get(..len)) {
            Some(taken) => {
                self.position += len;
                Ok(taken)
            }
            None => Err(CdrError::Short {
                what,
                at: self.position(),
                wanted: len - self.remaining_bytes(),
            }),
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CdrError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    /// Reads one `octet`.
    #[inline]
    pub fn read_u8(&mut self) -> Result<u8, CdrError> {
        let [octet] = self.array("octet")?;
        Ok(octet)
    }

    /// Reads one `boolean`: 0 or 1.
    pub fn read_bool(&mut self) -> Result<bool, CdrError> {
        let at = self.position();
        match self.read_u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(CdrError::Invalid {
                what: "boolean",
                at,
                found: other.to_string(),
            }),
        }
    }

    /// Reads the length of a sequence whose elements take at least `least` bytes each: it
    /// is refused if they cannot be there.
    pub fn read_len(&mut self, least: usize, what: &'static str) -> Result<usize, CdrError> {
        let len = self.read_u32()? as usize;
        let bytes = len.saturating_mul(least.max(1));
        match bytes > self.remaining_bytes() {
            false => Ok(len),
            true => Err(CdrError::Short {
                what,
                at: self.position(),
                wanted: bytes - self.remaining_bytes(),
            }),
        }
    }

    /// Reads a `sequence<octet>`.
    pub fn read_octets(&mut self, what: &'static str) -> Result<&'a [u8], CdrError> {
        let len = self.read_len(1, what)?;
        self.take(len, what)
    }

    /// Reads the bytes of a `string`, without the terminating zero. A length of 0, which
    /// some old ORBs send for the empty string, is taken for that.
    pub fn read_string_bytes(&mut self, what: &'static str) -> Result<&'a [u8], CdrError> {
        let at = self.position();
        let bytes = self.read_octets(what)?;
        let Some((&last, text)) = bytes.split_last() else {
            return Ok(bytes);
        };
        match last == 0 && !text.contains(&0) {
            true => Ok(text),
            false => Err(CdrError::Invalid {
                what,
                at,
                found: "a zero in the middle, or none at the end".into(),
            }),
        }
    }

    /// Reads a `string`: UTF-8, or else ISO 8859-1, which is what clients send that have
    /// negotiated nothing.
    pub fn read_string(&mut self, what: &'static str) -> Result<Cow<'a, str>, CdrError> {
        let bytes = self.read_string_bytes(what)?;
        Ok(match std::str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(bytes.iter().map(|&byte| char::from(byte)).collect()),
        })
    }
}

/// Writes CDR.
#[derive(Clone, Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    before: usize,
    endian: Endian,
    minor: u8,
}

impl Writer {
    /// Writes from the start of an alignment.
    pub fn new(endian: Endian) -> Self {
        Writer::at_offset(0, endian)
    }

    /// Writes what is to stand `before` bytes after the start of the alignment.
    pub fn at_offset(before: usize, endian: Endian) -> Self {
        Writer {
            bytes: Vec::new(),
            before,
            endian,
            minor: 2,
        }
    }

    /// Appends to `bytes`, at whose end the alignment starts.
    pub fn append_to(bytes: Vec<u8>, endian: Endian) -> Self {
        Writer {
            before: bytes.len().wrapping_neg(),
            bytes,
            endian,
            minor: 2,
        }
    }

    /// Writes for a message of GIOP 1.`minor`, as [`Reader::of_minor`] reads.
    #[must_use]
    pub fn of_minor(mut self, minor: u8) -> Self {
        self.minor = minor;
        self
    }

    /// The minor version of GIOP 1.x.
    pub fn minor_version(&self) -> u8 {
        self.minor
    }

    /// Writes an encapsulation: starts with the octet that says the byte order.
    pub fn new_encapsulation(endian: Endian) -> Self {
        let mut writer = Writer::new(endian);
        writer.write_u8(endian.byte_order_flag());
        writer
    }

    /// The byte order.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Returns the position of the next byte to be written, from the start of the alignment.
    pub fn position(&self) -> usize {
        // `before` is negative, in two's complement, after `append`.
        self.before.wrapping_add(self.bytes.len())
    }

    /// Returns the bytes that have been written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes that have been written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes zeros up to a multiple of `size`, a power of two.
    #[inline]
    pub fn align(&mut self, size: usize) {
        let padding = self.position().wrapping_neg() & (size - 1);
        self.bytes.resize(self.bytes.len() + padding, 0);
    }

    /// Writes bytes as they are.
    #[inline]
    pub fn write_raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes one `octet`.
    #[inline]
    pub fn write_u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Writes one `boolean`.
    pub fn write_bool(&mut self, value: bool) {
        self.write_u8(u8::from(value));
    }

    /// Writes the length of a sequence. Nothing here is longer than a message may be.
    pub fn write_len(&mut self, len: usize) {
        debug_assert!(u32::try_from(len).is_ok());
        self.write_u32(len as u32);
    }

    /// Writes a `sequence<octet>`, which is also how encapsulations stand in others.
    pub fn write_octets(&mut self, bytes: &[u8]) {
        self.write_len(bytes.len());
        self.write_raw(bytes);
    }

    /// Writes a `string`, with its terminating zero. A zero within, which no string may
    /// have, ends it.
    pub fn write_string(&mut self, text: &str) {
        let text = text.split('\0').next().unwrap_or_default();
        self.write_string_bytes(text.as_bytes());
    }

    /// Writes a `string` of bytes of which none is zero, with its terminating zero.
    pub fn write_string_bytes(&mut self, text: &[u8]) {
        self.write_len(text.len() + 1);
        self.write_raw(text);
        self.write_u8(0);
    }
}

/// Makes the error for a value that the reader has just read and that cannot be.
pub(crate) fn invalid_value(reader: &Reader<'_>, what: &'static str, found: &str) -> CdrError {
    CdrError::Invalid {
        what,
        at: reader.position(),
        found: found.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_aligned_from_the_start_of_the_message() {
        for endian in [Endian::Big, Endian::Little] {
            for before in 0..9 {
                let mut writer = Writer::at_offset(before, endian);
                writer.write_u8(7);
                writer.write_u16(0x1234);
                writer.write_u8(8);
                writer.write_u32(0x1234_5678);
                writer.write_string("grüß");
                writer.write_u64(u64::MAX - 1);
                writer.write_f32(-1.5);
                let bytes = writer.into_bytes();
                let mut reader = Reader::at_offset(before, &bytes, endian);
                assert_eq!(reader.read_u8(), Ok(7));
                assert_eq!(reader.read_u16(), Ok(0x1234));
                assert_eq!(reader.read_u8(), Ok(8));
                assert_eq!(reader.read_u32(), Ok(0x1234_5678));
                assert_eq!(reader.position() % 4, 0);
                assert_eq!(reader.read_string("text").unwrap(), "grüß");
                assert_eq!(reader.read_u64(), Ok(u64::MAX - 1));
                assert_eq!(reader.read_f32(), Ok(-1.5));
                assert_eq!(reader.remaining_bytes(), 0);
            }
        }
    }

    #[test]
    fn a_length_is_believed_only_as_far_as_there_are_bytes() {
        let bytes = [0xff, 0xff, 0xff, 0xff, 0];
        let mut reader = Reader::new(&bytes, Endian::Big);
        let error = reader.read_octets("object key").unwrap_err();
        assert_eq!(
            error.to_string(),
            "4294967294 more bytes are needed at offset 4 for object key"
        );
    }

    #[test]
    fn strings_end_with_their_only_zero() {
        let read = |bytes: &[u8]| {
            Reader::new(bytes, Endian::Big)
                .read_string("text")
                .map(Cow::into_owned)
        };
        assert_eq!(read(b"\0\0\0\x03ab\0").unwrap(), "ab");
        assert_eq!(read(b"\0\0\0\x01\0").unwrap(), "");
        assert_eq!(read(b"\0\0\0\0").unwrap(), "");
        assert_eq!(read(b"\0\0\0\x02\xfc\0").unwrap(), "ü");
        assert!(read(b"\0\0\0\x02ab").is_err());
        assert!(read(b"\0\0\0\x03\0b\0").is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            before in 0usize..16,
            calls in proptest::collection::vec(0u8..10, 0..32),
            joints in proptest::collection::vec(0usize..80, 0..4),
        ) {
            let mut reader = Reader::at_offset(before, &bytes, Endian::Little).of_fragments(&joints);
            for call in calls {
                let _ = match call {
                    0 => reader.read_u8().is_ok(),
                    1 => reader.read_u16().is_ok(),
                    2 => reader.read_u32().is_ok(),
                    3 => reader.read_u64().is_ok(),
                    4 => reader.read_string("s").is_ok(),
                    5 => reader.read_octets("o").is_ok(),
                    6 => reader.read_len(8, "l").is_ok(),
                    7 => reader.align(8, "a").is_ok(),
                    8 => reader.read_bool().is_ok(),
                    _ => Reader::of_encapsulation(reader.rest()).is_ok(),
                };
                prop_assert!(reader.position() <= before + bytes.len());
            }
        }
    }
}

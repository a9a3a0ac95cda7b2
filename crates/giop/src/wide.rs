//! `wchar` and `wstring`, whose code set is UTF-16 here.
//!
//! GIOP 1.2 sends them as bytes, big-endian unless a byte order mark says otherwise and
//! without a terminator; 1.1 sends units of two bytes in the byte order of the message,
//! strings with a zero at the end (*Common Object Request Broker Architecture*, version
//! 3.3, part 2, 9.3.1.6 and 9.3.2.7). GIOP 1.0 has no wide characters; ORBs that send them
//! all the same do as in 1.1.

use crate::cdr::{CdrError, Reader, Writer};

/// A byte order mark as it reads in the right order, and in the wrong one.
const MARK: u16 = 0xfeff;
const SWAPPED: u16 = 0xfffe;

impl Reader<'_> {
    /// Reads a `wchar`: one unit of UTF-16.
    pub fn read_wchar(&mut self) -> Result<u16, CdrError> {
        if self.minor_version() < 2 {
            return self.read_u16();
        }
        let at = self.position();
        let len = usize::from(self.read_u8()?);
        match *self.take(len, "wchar")? {
            [high, low] | [0xfe, 0xff, high, low] => Ok(u16::from_be_bytes([high, low])),
            [0xff, 0xfe, low, high] => Ok(u16::from_be_bytes([high, low])),
            _ => Err(CdrError::Invalid {
                what: "wchar",
                at,
                found: format!("{len} bytes"),
            }),
        }
    }

    /// Reads a `wstring` as units of UTF-16, of which none is zero. Whether they are
    /// paired well is not looked at.
    pub fn read_wstring(&mut self, what: &'static str) -> Result<Vec<u16>, CdrError> {
        let at = self.position();
        let invalid = |found: &str| CdrError::Invalid {
            what,
            at,
            found: found.into(),
        };
        let units = if self.minor_version() < 2 {
            let len = self.read_len(2, what)?;
            let mut units = Vec::with_capacity(len);
            for _ in 0..len {
                units.push(self.read_u16()?);
            }
            // As with strings, nothing at all is taken for the empty string.
            if units.pop().unwrap_or(0) != 0 {
                return Err(invalid("no zero at the end"));
            }
            units
        } else {
            let (pairs, odd) = self.read_octets(what)?.as_chunks::<2>();
            if !odd.is_empty() {
                return Err(invalid("half a unit of UTF-16"));
            }
            let mut units: Vec<u16> = pairs.iter().map(|&pair| u16::from_be_bytes(pair)).collect();
            let mark = units.first().copied();
            if mark == Some(SWAPPED) {
                units.iter_mut().for_each(|unit| *unit = unit.swap_bytes());
            }
            if mark == Some(MARK) || mark == Some(SWAPPED) {
                units.remove(0);
            }
            units
        };
        match units.contains(&0) {
            true => Err(invalid("a zero in the middle")),
            false => Ok(units),
        }
    }
}

impl Writer {
    /// Writes a `wchar`.
    pub fn write_wchar(&mut self, unit: u16) {
        if self.minor_version() < 2 {
            return self.write_u16(unit);
        }
        self.write_u8(2);
        self.write_raw(&unit.to_be_bytes());
    }

    /// Writes a `wstring` of units of UTF-16, which are not zero.
    pub fn write_wstring(&mut self, units: &[u16]) {
        if self.minor_version() < 2 {
            self.write_len(units.len() + 1);
            units.iter().for_each(|&unit| self.write_u16(unit));
            return self.write_u16(0);
        }
        // What looks like a mark would be taken for one.
        let mark = units
            .first()
            .filter(|&&unit| unit == MARK || unit == SWAPPED);
        let mark = mark.map(|_| MARK);
        self.write_len(2 * (units.len() + usize::from(mark.is_some())));
        for unit in mark.iter().chain(units) {
            self.write_raw(&unit.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cdr::Endian;

    #[test]
    fn giop_1_2_has_bytes_and_a_mark_counts() {
        let read = |bytes: &[u8]| Reader::new(bytes, Endian::Little).read_wstring("text");
        assert_eq!(read(b"\x04\0\0\0\0a\0b").unwrap(), [0x61, 0x62]);
        assert_eq!(read(b"\x06\0\0\0\xfe\xff\0a\0b").unwrap(), [0x61, 0x62]);
        assert_eq!(read(b"\x06\0\0\0\xff\xfea\0b\0").unwrap(), [0x61, 0x62]);
        assert_eq!(read(b"\0\0\0\0").unwrap(), []);
        assert!(read(b"\x03\0\0\0\0ab").is_err());
        assert!(read(b"\x04\0\0\0\0a\0\0").is_err());
        let read = |bytes: &[u8]| Reader::new(bytes, Endian::Little).read_wchar();
        assert_eq!(read(b"\x02\x20\xac").unwrap(), 0x20ac);
        assert_eq!(read(b"\x04\xff\xfe\xac\x20").unwrap(), 0x20ac);
        assert!(read(b"\x03\x20\xac\0").is_err());
        assert!(read(b"\0").is_err());
    }

    #[test]
    fn giop_1_1_has_units_in_the_byte_order_of_the_message() {
        let mut writer = Writer::new(Endian::Little).of_minor(1);
        writer.write_wchar(0x20ac);
        writer.write_wstring(&[0x61]);
        let bytes = writer.into_bytes();
        assert_eq!(bytes, b"\xac\x20\0\0\x02\0\0\0a\0\0\0");
        let mut reader = Reader::new(b"\0\0\0\x02\0a\0b", Endian::Big).of_minor(1);
        assert!(reader.read_wstring("text").is_err());
        let mut reader = Reader::new(b"\0\0\0\0", Endian::Big).of_minor(1);
        assert_eq!(reader.read_wstring("text").unwrap(), []);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            units in proptest::collection::vec(
                prop_oneof![1u16.., Just(MARK), Just(SWAPPED)],
                0..8,
            ),
            unit in any::<u16>(),
            minor in 0u8..3,
            little in any::<bool>(),
        ) {
            let endian = if little { Endian::Little } else { Endian::Big };
            let mut writer = Writer::new(endian).of_minor(minor);
            writer.write_wstring(&units);
            writer.write_wchar(unit);
            let bytes = writer.into_bytes();
            let mut reader = Reader::new(&bytes, endian).of_minor(minor);
            prop_assert_eq!(reader.read_wstring("text").unwrap(), units);
            prop_assert_eq!(reader.read_wchar().unwrap(), unit);
            prop_assert_eq!(reader.remaining_bytes(), 0);
        }
    }
}

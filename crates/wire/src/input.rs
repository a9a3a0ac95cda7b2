//! Bytes of a message that are still to be read, and the other way round: numbers and texts as
//! messages have them. All numbers of fixed size are big-endian.

/// Bytes that are still to be read. Every method gives `None` at their end.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next `N` bytes.
    pub fn read_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// A byte.
    pub fn read_u8(&mut self) -> Option<u8> {
        self.read_array().map(u8::from_be_bytes)
    }

    /// A number of two bytes.
    pub fn read_u16(&mut self) -> Option<u16> {
        self.read_array().map(u16::from_be_bytes)
    }

    /// A number of four bytes.
    pub fn read_u32(&mut self) -> Option<u32> {
        self.read_array().map(u32::from_be_bytes)
    }

    /// A number of eight bytes.
    pub fn read_u64(&mut self) -> Option<u64> {
        self.read_array().map(u64::from_be_bytes)
    }

    /// A number as [`put_varint`] writes it: in as few bytes as it needs, or it is none.
    pub fn read_varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.read_u8()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit, and none but the first may say nothing.
            if shift == 63 && bits > 1 || shift > 0 && byte == 0 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Takes `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// A byte that counts, and so many bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.read_u8()?;
        self.take(len.into())
    }

    /// Takes a byte that counts, and so many bytes of UTF-8.
    pub fn text(&mut self) -> Option<String> {
        Some(str::from_utf8(self.bytes()?).ok()?.to_owned())
    }
}

/// Appends a text of at most 255 bytes.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() <= 255);
    out.push(text.len() as u8);
    out.extend(text.as_bytes());
}

/// Appends a number in groups of seven bits, the lowest first, as Protocol Buffers do.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_short_as_they_can_be() {
        for (value, len) in [(0, 1), (127, 1), (128, 2), (1 << 32, 5), (u64::MAX, 10)] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(bytes.len(), len);
            let mut input = Input(&bytes);
            assert_eq!(input.read_varint(), Some(value));
            assert!(input.0.is_empty());
        }
        let longer: [&[u8]; 4] = [&[0x80, 0], &[0x80], &[], &[0xff; 10]];
        for bytes in longer {
            assert_eq!(Input(bytes).read_varint(), None, "{bytes:?}");
        }
    }
}

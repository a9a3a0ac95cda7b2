//! Fields of Protocol Buffers messages: as much as ORCA needs, read in place.

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'m> {
    /// A whole number.
    Varint(u64),
    /// Eight bytes, such as a double.
    Fixed64(u64),
    /// Bytes, such as a text or a message.
    Bytes(&'m [u8]),
    /// Four bytes.
    Fixed32(u32),
}

/// The bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMessage;

/// The fields of a message, in order, each with its number.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'m>(pub &'m [u8]);

impl<'m> Fields<'m> {
    fn varint(&mut self) -> Result<u64, NoMessage> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(NoMessage)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                return Err(NoMessage);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(NoMessage)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], NoMessage> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(NoMessage)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn field(&mut self) -> Result<(u64, Value<'m>), NoMessage> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.take()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| NoMessage)?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or(NoMessage)?;
                self.0 = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take()?)),
            // Groups are history, and nothing else is known.
            _ => return Err(NoMessage),
        };
        match tag >> 3 {
            0 => Err(NoMessage),
            number => Ok((number, value)),
        }
    }
}

impl<'m> Iterator for Fields<'m> {
    type Item = Result<(u64, Value<'m>), NoMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Appends a field that is a whole number.
pub fn put_varint(number: u8, value: u64, out: &mut Vec<u8>) {
    out.push(number << 3);
    crate::input::put_varint(out, value);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_the_standard_shows() {
        // The examples of the encoding guide of Protocol Buffers: 150, "testing".
        let message = b"\x08\x96\x01\x12\x07testing\x1d\x01\x00\x00\x00";
        let fields: Result<Vec<_>, _> = Fields(message).collect();
        assert_eq!(
            fields.unwrap(),
            [
                (1, Value::Varint(150)),
                (2, Value::Bytes(b"testing")),
                (3, Value::Fixed32(1))
            ]
        );
    }

    #[test]
    fn what_is_cut_or_unknown_is_refused() {
        for message in [
            &b"\x08"[..],
            b"\x08\x96",
            b"\x12\x07testin",
            b"\x09\0\0\0\0\0\0\0",
            b"\x0b",
            b"\x0e",
            b"\x00\x01",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ] {
            let fields: Result<Vec<_>, _> = Fields(message).collect();
            assert_eq!(fields, Err(NoMessage), "{message:?}");
        }
    }

    proptest! {
        #[test]
        fn whole_numbers_come_back(value: u64, number in 1u8..16) {
            let mut message = Vec::new();
            put_varint(number, value, &mut message);
            let fields: Result<Vec<_>, _> = Fields(&message).collect();
            prop_assert_eq!(fields, Ok(vec![(u64::from(number), Value::Varint(value))]));
        }
    }
}

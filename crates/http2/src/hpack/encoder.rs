//! Encoding of field blocks.
//!
//! A field is added to the table when it is seen for the second time within a short while: values that never come again
//! would only drive out values that do. Fields with secrets are in no table, neither here nor at the peer nor at those
//! to which the peer passes them on (RFC 7541, section 7.1).

use super::decoder::NEVER_INDEXED;
use super::huffman;
use super::table::{MOST_BYTES, STATIC, Table, find_static, find_static_name};

/// Hashes of fields that were sent lately and are in no table.
const SEEN: usize = 64;

/// A field of which at most so large a part of the table is taken.
const LARGEST_PART: usize = 4;

/// State of the encoder of a connection.
#[derive(Debug)]
pub(crate) struct Encoder {
    table: Table,
    seen: Vec<u32>,
    /// Sizes of the table that the next block begins with: the smallest one in between, and the last one.
    resize: Option<(usize, usize)>,
}

/// Names in the static table of fields whose values are secret: `authorization`, `cookie`, `proxy-authorization`
/// and `set-cookie`.
const SECRETS: [usize; 4] = [23, 32, 49, 55];

/// Parts of names of fields that are secret by their names.
const SECRET_PARTS: [&[u8]; 7] = [
    b"token",
    b"secret",
    b"password",
    b"api-key",
    b"apikey",
    b"session",
    b"credential",
];

/// True if a field of this name, which is not in the static table, is never to be in a table.
fn is_secret(name: &[u8]) -> bool {
    let has = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
    SECRET_PARTS.iter().any(|part| has(part))
}

/// Hash of `bytes`, after `seed`. The peer may find fields with the same hash: they are compared as a whole.
fn hash(seed: u32, bytes: &[u8]) -> u32 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = u64::from(seed) ^ (bytes.len() as u64) << 32;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = word
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word));
        state = (state ^ word).wrapping_mul(PRIME).rotate_left(29);
    }
    let mut last = 0;
    for &byte in words.remainder() {
        last = last << 8 | u64::from(byte);
    }
    state = (state ^ last).wrapping_mul(PRIME);
    (state >> 32) as u32 | 1
}

/// Appends an integer (RFC 7541, section 5.1) behind the bits of `first`.
fn put_integer(value: usize, prefix: u32, first: u8, out: &mut Vec<u8>) {
    let most = (1_usize << prefix) - 1;
    if value < most {
        return out.push(first | value as u8);
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Appends a string, in whichever form is shorter.
fn put_string(text: &[u8], out: &mut Vec<u8>) {
    let encoded = huffman::encoded_len(text);
    if encoded < text.len() {
        put_integer(encoded, 7, 0x80, out);
        huffman::encode_text(text, out);
    } else {
        put_integer(text.len(), 7, 0, out);
        out.extend_from_slice(text);
    }
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Encoder {
            table: Table::new(MOST_BYTES),
            seen: Vec::new(),
            resize: None,
        }
    }

    /// Takes note of the largest table that the peer keeps.
    pub(crate) fn set_most(&mut self, most: usize) {
        let most = most.min(MOST_BYTES);
        let (smallest, last) = self
            .resize
            .unwrap_or((self.table.max_size(), self.table.max_size()));
        if most != last {
            self.resize = Some((smallest.min(most), most));
        }
    }

    /// Begins a block.
    pub(crate) fn begin_block(&mut self, out: &mut Vec<u8>) {
        let Some((smallest, last)) = self.resize.take() else {
            return;
        };
        for most in [smallest, last] {
            if most != self.table.max_size() {
                self.table.set_most(most);
                put_integer(most, 5, 0x20, out);
            }
        }
    }

    /// Appends a field, whose name is in lower case. A sensitive one is a literal in any case, which is in no table.
    pub(crate) fn encode_field(
        &mut self,
        name: &[u8],
        value: &[u8],
        is_sensitive: bool,
        out: &mut Vec<u8>,
    ) {
        let known = find_static_name(name);
        if is_sensitive {
            return put_literal(known, 4, NEVER_INDEXED, name, value, out);
        }
        if let Some(first) = known {
            if let Some(index) = find_static(first, value) {
                return put_integer(index, 7, 0x80, out);
            }
            if SECRETS.contains(&first) {
                return put_literal(known, 4, NEVER_INDEXED, name, value, out);
            }
        }
        let name_hash = hash(0, name);
        let both = hash(name_hash, value);
        if let Some(index) = self.table.find(both, name, value) {
            return put_integer(index + STATIC.len() + 1, 7, 0x80, out);
        }
        let index = known.or_else(|| {
            let index = self.table.find_name(name_hash, name)?;
            Some(index + STATIC.len() + 1)
        });
        // A name that is in a table was looked at.
        if index.is_none() && is_secret(name) {
            return put_literal(None, 4, NEVER_INDEXED, name, value, out);
        }
        if self.is_seen(both) && name.len() + value.len() <= self.table.max_size() / LARGEST_PART {
            self.table.insert(name, value, (name_hash, both));
            put_literal(index, 6, 0x40, name, value, out);
        } else {
            put_literal(index, 4, 0, name, value, out);
        }
    }

    /// Takes note of a field; true if it was noted before.
    fn is_seen(&mut self, hash: u32) -> bool {
        if self.seen.is_empty() {
            self.seen.resize(SEEN, 0);
        }
        let place = self.seen.get_mut(hash as usize / 2 % SEEN);
        place.is_some_and(|place| std::mem::replace(place, hash) == hash)
    }
}

/// Appends a literal field whose first byte begins with the bits of `first`.
fn put_literal(
    index: Option<usize>,
    prefix: u32,
    first: u8,
    name: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
) {
    put_integer(index.unwrap_or(0), prefix, first, out);
    if index.is_none() {
        put_string(name, out);
    }
    put_string(value, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::decoder::Decoder;
    use crate::hpack::decoder::tests::Found;
    use proptest::prelude::*;

    fn block(encoder: &mut Encoder, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        encoder.begin_block(&mut out);
        for (name, value) in fields {
            encoder.encode_field(name.as_bytes(), value.as_bytes(), false, &mut out);
        }
        out
    }

    fn decoded(decoder: &mut Decoder, block: &[u8]) -> Vec<(String, String)> {
        let mut found = Found::default();
        decoder.begin_block();
        assert_eq!(decoder.decode_fields(block, &mut found), Ok(block.len()));
        found.0
    }

    #[test]
    fn a_field_that_comes_again_costs_a_byte() {
        let mut encoder = Encoder::new();
        let fields = [
            (":status", "200"),
            ("server", "own"),
            ("x-served", "by this"),
        ];
        let sizes = [0; 4].map(|_| block(&mut encoder, &fields).len());
        assert_eq!(sizes[2..], [3, 3], "{sizes:?}");
        assert!(sizes[0] > 10 && sizes[1] > 10);
    }

    #[test]
    fn secrets_are_in_no_table() {
        let mut encoder = Encoder::new();
        for name in [
            "authorization",
            "cookie",
            "set-cookie",
            "proxy-authorization",
            "x-auth-token",
            "x-api-key",
            "x-session-id",
        ] {
            for _ in 0..3 {
                let block = block(&mut encoder, &[(name, "hidden")]);
                // Literal, never indexed (RFC 7541, section 6.2.3).
                assert_eq!(block[0] & 0xf0, 0x10, "{name}");
            }
        }
        assert_eq!(encoder.table.len(), 0);
    }

    /// A value that a table has already is a literal all the same: the mark is for those to whom the peer passes it on.
    #[test]
    fn sensitive_fields_are_literals_whatever_the_tables_have() {
        let mut encoder = Encoder::new();
        for (name, value) in [(":path", "/"), ("x-note", "n"), ("x-note", "n")] {
            let _ = block(&mut encoder, &[(name, value), (name, value)]);
            let mut out = Vec::new();
            encoder.encode_field(name.as_bytes(), value.as_bytes(), true, &mut out);
            assert_eq!(out[0] & 0xf0, NEVER_INDEXED, "{name}");
        }
    }

    #[test]
    fn a_smaller_table_is_said_in_the_next_block() {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let fields = [("a", "b"), ("c", "d")];
        for (before, first) in [
            (&[][..], 0),
            (&[], 0),
            (&[64], 1),
            (&[0, 4096], 2),
            (&[1 << 20], 0),
            (&[4096, 40, 30], 1),
        ] {
            for most in before {
                encoder.set_most(*most);
            }
            let block = block(&mut encoder, &fields);
            let sizes = block.iter().filter(|byte| **byte & 0xe0 == 0x20).count();
            assert!(sizes >= first, "{before:?}");
            let found = decoded(&mut decoder, &block);
            assert_eq!(found.len(), 2);
        }
        assert_eq!(encoder.table.max_size(), 30);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            blocks in proptest::collection::vec(
                proptest::collection::vec(("[a-c]{1,3}|cookie|:path|vary", "[a-z0-9/]{0,60}|/|x"), 0..12),
                0..20,
            ),
            sizes in proptest::collection::vec(0_usize..5000, 20),
        ) {
            let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
            for (fields, size) in blocks.iter().zip(sizes) {
                if size % 3 == 0 {
                    encoder.set_most(size);
                }
                let given: Vec<_> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                let block = block(&mut encoder, &given);
                prop_assert_eq!(&decoded(&mut decoder, &block), fields);
            }
        }
    }
}

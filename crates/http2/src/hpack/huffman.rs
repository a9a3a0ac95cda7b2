//! The Huffman code of HPACK (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: codes of one length follow each other in the order of their symbols. So
//! the lengths say everything, and all tables are made of them when this is compiled.

/// Length of the code of each byte, in bits.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11,
    10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8,
    15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5,
    6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23,
    23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21,
    23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25,
    26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26,
    28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,];

/// Number of a code's bits that are looked up at once: enough for all usual characters of fields.
const FAST_BITS: u32 = 10;

/// Bits of the longest code.
const MOST_BITS: u32 = 30;

/// Tables made of [`LENGTHS`].
struct Tables {
    /// Code of each byte, in its lowest bits.
    codes: [u32; 256],
    /// Length of the code and its byte, by the first [`FAST_BITS`] bits; 0 for longer codes.
    fast: [u16; 1 << FAST_BITS],
    /// First code of each length, with [`MOST_BITS`] bits.
    first: [u32; MOST_BITS as usize + 1],
    /// Place of that code in `order`.
    offset: [u16; MOST_BITS as usize + 1],
    /// Number of codes of each length.
    count: [u16; MOST_BITS as usize + 1],
    /// All bytes in the order of their codes.
    order: [u8; 256],
}

static TABLES: Tables = make_tables();

#[allow(clippy::indexing_slicing)] // It runs when this is compiled.
const fn make_tables() -> Tables {
    let mut tables = Tables {
        codes: [0; 256],
        fast: [0; 1 << FAST_BITS],
        first: [0; MOST_BITS as usize + 1],
        offset: [0; MOST_BITS as usize + 1],
        count: [0; MOST_BITS as usize + 1],
        order: [0; 256],
    };
    let (mut code, mut place, mut length) = (0_u32, 0, 1_u32);
    while length <= MOST_BITS {
        code <<= 1;
        tables.first[length as usize] = code << (MOST_BITS - length);
        tables.offset[length as usize] = place as u16;
        let mut symbol = 0;
        while symbol < 256 {
            if LENGTHS[symbol] as u32 == length {
                tables.codes[symbol] = code;
                tables.order[place] = symbol as u8;
                tables.count[length as usize] += 1;
                if length <= FAST_BITS {
                    let free = FAST_BITS - length;
                    let mut entry = (code << free) as usize;
                    let end = entry + (1 << free);
                    while entry < end {
                        tables.fast[entry] = (length as u16) << 8 | symbol as u16;
                        entry += 1;
                    }
                }
                code += 1;
                place += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    tables
}

/// Number of bytes that `text` has when it is encoded.
pub(crate) fn encoded_len(text: &[u8]) -> usize {
    let bits = |byte: &u8| usize::from(LENGTHS.get(usize::from(*byte)).copied().unwrap_or(0));
    text.iter().map(bits).sum::<usize>().div_ceil(8)
}

/// Appends `text`, encoded.
pub(crate) fn encode_text(text: &[u8], out: &mut Vec<u8>) {
    let (mut held, mut bits) = (0_u64, 0_u32);
    for &byte in text {
        let at = usize::from(byte);
        let length = u32::from(LENGTHS.get(at).copied().unwrap_or(0));
        let code = TABLES.codes.get(at).copied().unwrap_or(0);
        held = held << length | u64::from(code);
        bits += length;
        if bits >= 32 {
            bits -= 32;
            out.extend_from_slice(&((held >> bits) as u32).to_be_bytes());
        }
    }
    while bits >= 8 {
        bits -= 8;
        out.push((held >> bits) as u8);
    }
    if bits > 0 {
        // The rest of the last byte is the beginning of a code of ones.
        let free = 8 - bits;
        out.push((held << free) as u8 | ((1 << free) - 1));
    }
}

/// Appends the decoded text of `encoded`; false if it is no valid code. Text appended up to the error stays.
pub(crate) fn decode_text(encoded: &[u8], out: &mut Vec<u8>) -> bool {
    // Codes have at least five bits.
    out.reserve(encoded.len() * 8 / 5);
    let mut rest = encoded.iter();
    let (mut held, mut bits) = (0_u64, 0_u32);
    loop {
        while bits <= 56
            && let Some(&byte) = rest.next()
        {
            held = held << 8 | u64::from(byte);
            bits += 8;
        }
        // Beyond the end are ones.
        let window = match bits.checked_sub(MOST_BITS) {
            Some(more) => (held >> more) as u32 & ((1 << MOST_BITS) - 1),
            None => {
                let free = MOST_BITS - bits;
                let known = held & ((1 << bits) - 1);
                (known << free) as u32 | ((1 << free) - 1)
            }
        };
        let at = (window >> (MOST_BITS - FAST_BITS)) as usize;
        let entry = TABLES.fast.get(at).copied().unwrap_or(0);
        let (mut length, mut symbol) = (u32::from(entry >> 8), entry as u8);
        if length == 0 {
            (length, symbol) = match find_long(window) {
                Some(found) => found,
                // The end of the string as a code is an error (RFC 7541, section 5.2).
                None => return bits < 8 && is_padding(held, bits),
            };
        }
        if length > bits {
            return bits < 8 && is_padding(held, bits);
        }
        out.push(symbol);
        bits -= length;
    }
}

/// True if the lowest `bits` are all ones.
fn is_padding(held: u64, bits: u32) -> bool {
    let ones = (1 << bits) - 1;
    held & ones == ones
}

/// Length and byte of a long code, which `window` begins with; `None` if there is no such code.
#[cold]
fn find_long(window: u32) -> Option<(u32, u8)> {
    (FAST_BITS + 1..=MOST_BITS).find_map(|length| {
        let at = length as usize;
        let first = TABLES.first.get(at)?;
        let number = window.checked_sub(*first)? >> (MOST_BITS - length);
        let count = u32::from(*TABLES.count.get(at)?);
        let place =
            (number < count).then(|| u32::from(*TABLES.offset.get(at).unwrap_or(&0)) + number)?;
        Some((length, *TABLES.order.get(place as usize)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 7541, appendix C.
    const VECTORS: [(&str, &[u8]); 8] = [
        (
            "www.example.com",
            &[
                0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
            ],
        ),
        ("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
        (
            "custom-key",
            &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f],
        ),
        (
            "custom-value",
            &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf],
        ),
        ("302", &[0x64, 0x02]),
        ("private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
        ("gzip", &[0x9b, 0xd9, 0xab]),
        ("307", &[0x64, 0x0e, 0xff]),
    ];

    fn decoded(encoded: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode_text(encoded, &mut out).then_some(out)
    }

    #[test]
    fn the_examples_of_the_standard_are_coded_both_ways() {
        for (text, encoded) in VECTORS {
            let mut out = Vec::new();
            encode_text(text.as_bytes(), &mut out);
            assert_eq!(out, encoded, "{text}");
            assert_eq!(encoded_len(text.as_bytes()), encoded.len());
            assert_eq!(decoded(encoded).as_deref(), Some(text.as_bytes()));
        }
    }

    #[test]
    fn every_byte_has_a_code() {
        for byte in 0..=255 {
            let mut out = Vec::new();
            encode_text(&[byte], &mut out);
            assert_eq!(decoded(&out), Some(vec![byte]));
        }
    }

    #[test]
    fn wrong_ends_are_refused() {
        for (why, encoded) in [
            ("padding of zeros", &[0x00][..]),
            ("padding of a byte", &[0x1f, 0xff]),
            ("only padding", &[0xff]),
            ("the code for the end", &[0xff, 0xff, 0xff, 0xff]),
            ("half a code", &[0xff, 0xff, 0xfe]),
        ] {
            let wrong = decoded(encoded);
            assert!(wrong.is_none(), "{why}: {wrong:?}");
        }
        assert_eq!(decoded(&[]), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut out = Vec::new();
            encode_text(&text, &mut out);
            prop_assert_eq!(out.len(), encoded_len(&text));
            prop_assert_eq!(decoded(&out), Some(text));
        }

        #[test]
        fn what_is_decoded_is_encoded_the_same(encoded in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(text) = decoded(&encoded) {
                let mut out = Vec::new();
                encode_text(&text, &mut out);
                prop_assert_eq!(out, encoded);
            }
        }
    }
}

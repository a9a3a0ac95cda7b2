//! Decoding of field blocks, in as many parts as they come in.

use super::huffman;
use super::table::{MOST_BYTES, STATIC, Table};

/// An error of compression: the connection cannot go on, as the tables of both sides differ from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompressionError;

/// First four bits of a literal field that is never in a table (RFC 7541, section 6.2.3).
pub(super) const NEVER_INDEXED: u8 = 0x10;

/// Longest run of bytes of an integer after its first byte.
const MOST_INTEGER_BYTES: usize = 5;

/// State of the decoder of a connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
    /// True until a field was read in the current block: sizes of the table may come.
    at_start: bool,
    /// Name of the field that is being read, and its value after it.
    text: Vec<u8>,
}

/// Progress in a block.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// A representation of this many bytes is done.
    Done(usize),
    /// There are more bytes to come.
    Partial,
}

/// Receiver of the fields of a block.
pub(crate) trait Sink {
    /// Takes a field. `is_sensitive` says that nobody may put it in a table (RFC 7541, section 7.1.3).
    fn take_field(&mut self, name: &[u8], value: &[u8], is_sensitive: bool);

    /// True if there were so many fields that decoding stops.
    fn is_full(&self) -> bool;

    /// Says how long a name or a value may be at most, in bytes. Anything longer is an error of the connection.
    fn most_bytes(&self) -> usize;
}

/// Reads an integer (RFC 7541, section 5.1) whose first byte has `prefix` bits of it. Returns the value and the number
/// of bytes; `None` if more bytes are to come.
fn read_integer(bytes: &[u8], prefix: u32) -> Result<Option<(usize, usize)>, CompressionError> {
    let Some((&first, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let most = (1 << prefix) - 1;
    let mut value = u64::from(first) & most;
    if value < most {
        return Ok(Some((value as usize, 1)));
    }
    for (at, &byte) in rest.iter().enumerate().take(MOST_INTEGER_BYTES) {
        value += u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            // No more than 2^36.
            let value = u32::try_from(value).map_err(|_| CompressionError)?;
            return Ok(Some((value as usize, at + 2)));
        }
    }
    match rest.len() < MOST_INTEGER_BYTES {
        true => Ok(None),
        false => Err(CompressionError),
    }
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Decoder {
            table: Table::new(MOST_BYTES),
            at_start: true,
            text: Vec::new(),
        }
    }

    /// Begins a block.
    pub(crate) fn begin_block(&mut self) {
        self.at_start = true;
    }

    /// Decodes as much of `block` as is whole. Returns the number of bytes; the rest must be given again, with more behind it.
    ///
    /// # Errors
    ///
    /// The block is no valid one.
    pub(crate) fn decode_fields(
        &mut self,
        block: &[u8],
        sink: &mut impl Sink,
    ) -> Result<usize, CompressionError> {
        let mut used = 0;
        loop {
            let rest = block.get(used..).unwrap_or_default();
            match self.read_representation(rest, sink)? {
                Step::Done(n) if !sink.is_full() => used += n,
                Step::Done(n) => return Ok(used + n),
                Step::Partial => return Ok(used),
            }
        }
    }

    fn read_representation(
        &mut self,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<Step, CompressionError> {
        let Some(&first) = bytes.first() else {
            return Ok(Step::Partial);
        };
        if first & 0x80 != 0 {
            let Some((index, n)) = read_integer(bytes, 7)? else {
                return Ok(Step::Partial);
            };
            let (name, value) = self.find(index)?;
            sink.take_field(name, value, false);
            self.at_start = false;
            return Ok(Step::Done(n));
        }
        if first & 0xe0 == 0x20 {
            let Some((size, n)) = read_integer(bytes, 5)? else {
                return Ok(Step::Partial);
            };
            if !self.at_start || size > MOST_BYTES {
                return Err(CompressionError);
            }
            self.table.set_most(size);
            return Ok(Step::Done(n));
        }
        let is_indexed = first & 0x40 != 0;
        let is_sensitive = first & 0xf0 == NEVER_INDEXED;
        let prefix = if is_indexed { 6 } else { 4 };
        let Some((index, mut used)) = read_integer(bytes, prefix)? else {
            return Ok(Step::Partial);
        };
        let most = sink.most_bytes();
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let read = self.read_literal(bytes, index, &mut used, most, &mut text);
        if let Ok(Some(name)) = read {
            let (name, value) = text.split_at(name);
            sink.take_field(name, value, is_sensitive);
            if is_indexed {
                self.table.insert(name, value, (0, 0));
            }
            self.at_start = false;
        }
        self.text = text;
        Ok(match read? {
            Some(_) => Step::Done(used),
            None => Step::Partial,
        })
    }

    /// Reads name and value of a literal field into `text`. Returns the length of the name; `None` if there is more to come.
    fn read_literal(
        &self,
        bytes: &[u8],
        index: usize,
        used: &mut usize,
        most: usize,
        text: &mut Vec<u8>,
    ) -> Result<Option<usize>, CompressionError> {
        if index > 0 {
            text.extend_from_slice(self.find(index)?.0);
        } else if !read_string(bytes, used, most, text)? {
            return Ok(None);
        }
        let name = text.len();
        let is_whole = read_string(bytes, used, most, text)?;
        Ok(is_whole.then_some(name))
    }

    fn find(&self, index: usize) -> Result<(&[u8], &[u8]), CompressionError> {
        let place = index.checked_sub(1).ok_or(CompressionError)?;
        match STATIC.get(place) {
            Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
            None => self.table.get(place - STATIC.len()).ok_or(CompressionError),
        }
    }
}

/// Appends a string (RFC 7541, section 5.2) to `text`; false if there is more of it to come.
fn read_string(
    bytes: &[u8],
    used: &mut usize,
    most: usize,
    text: &mut Vec<u8>,
) -> Result<bool, CompressionError> {
    let rest = bytes.get(*used..).unwrap_or_default();
    let Some((length, n)) = read_integer(rest, 7)? else {
        return Ok(false);
    };
    if length > most {
        return Err(CompressionError);
    }
    let Some(string) = rest.get(n..n + length) else {
        return Ok(false);
    };
    *used += n + length;
    match rest.first() {
        Some(first) if first & 0x80 != 0 => match huffman::decode_text(string, text) {
            true => Ok(true),
            false => Err(CompressionError),
        },
        _ => {
            text.extend_from_slice(string);
            Ok(true)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[derive(Debug, Default)]
    pub(crate) struct Found(pub(crate) Vec<(String, String)>);

    impl Sink for Found {
        fn take_field(&mut self, name: &[u8], value: &[u8], _is_sensitive: bool) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            self.0.push((text(name), text(value)));
        }

        fn is_full(&self) -> bool {
            false
        }

        fn most_bytes(&self) -> usize {
            10_000
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        digits
            .chunks(2)
            .map(|pair| (pair[0] * 16 + pair[1]) as u8)
            .collect()
    }

    fn decode_all(decoder: &mut Decoder, block: &[u8]) -> Result<Found, CompressionError> {
        let mut found = Found::default();
        decoder.begin_block();
        match decoder.decode_fields(block, &mut found)? == block.len() {
            true => Ok(found),
            false => Err(CompressionError),
        }
    }

    /// Blocks, what they say, and the size of the table after each.
    type Example = (&'static str, &'static [(&'static str, &'static str)], usize);

    /// RFC 7541, sections C.3 to C.6.
    const EXAMPLES: [(usize, [Example; 3]); 4] = [
        (
            4096,
            [
                (
                    "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                    &FIRST,
                    57,
                ),
                ("8286 84be 5808 6e6f 2d63 6163 6865", &SECOND, 110),
                (
                    "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
                    &THIRD,
                    164,
                ),
            ],
        ),
        (
            4096,
            [
                ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", &FIRST, 57),
                ("8286 84be 5886 a8eb 1064 9cbf", &SECOND, 110),
                (
                    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
                    &THIRD,
                    164,
                ),
            ],
        ),
        (
            256,
            [
                (
                    "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 \
                     2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 \
                     6c65 2e63 6f6d",
                    &FOURTH,
                    222,
                ),
                ("4803 3330 37c1 c0bf", &FIFTH, 222),
                (
                    "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d \
                     54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 \
                     5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e \
                     3d31",
                    &SIXTH,
                    215,
                ),
            ],
        ),
        (
            256,
            [
                (
                    "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 \
                     2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                    &FOURTH,
                    222,
                ),
                ("4883 640e ffc1 c0bf", &FIFTH, 222),
                (
                    "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab \
                     77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f \
                     9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                    &SIXTH,
                    215,
                ),
            ],
        ),
    ];

    const FIRST: [(&str, &str); 4] = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
    ];
    const SECOND: [(&str, &str); 5] = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ];
    const THIRD: [(&str, &str); 5] = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ];
    const FOURTH: [(&str, &str); 4] = [
        (":status", "302"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ];
    const FIFTH: [(&str, &str); 4] = [
        (":status", "307"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ];
    const SIXTH: [(&str, &str); 6] = [
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        (
            "set-cookie",
            "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        ),
    ];

    #[test]
    fn the_examples_of_the_standard_are_decoded() {
        for (most, blocks) in EXAMPLES {
            let mut decoder = Decoder::new();
            decoder.table.set_most(most);
            for (block, fields, size) in blocks {
                let found = decode_all(&mut decoder, &hex(block)).unwrap();
                let expected: Vec<_> = fields
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect();
                assert_eq!(found.0, expected);
                assert_eq!(decoder.table.size(), size);
            }
        }
    }

    #[test]
    fn a_block_is_the_same_however_it_is_cut() {
        for (most, blocks) in EXAMPLES {
            for size in 1..20 {
                let mut decoder = Decoder::new();
                decoder.table.set_most(most);
                for (block, fields, _) in &blocks {
                    let (mut found, mut kept) = (Found::default(), Vec::new());
                    decoder.begin_block();
                    for part in hex(block).chunks(size) {
                        kept.extend_from_slice(part);
                        let used = decoder.decode_fields(&kept, &mut found).unwrap();
                        kept.drain(..used);
                    }
                    assert!(kept.is_empty());
                    assert_eq!(found.0.len(), fields.len());
                }
            }
        }
    }

    #[test]
    fn integers_have_bounds() {
        assert_eq!(read_integer(&[0x0a], 5), Ok(Some((10, 1))));
        assert_eq!(read_integer(&[0x1f, 0x9a, 0x0a], 5), Ok(Some((1337, 3))));
        assert_eq!(read_integer(&[0x2a], 8), Ok(Some((42, 1))));
        assert_eq!(read_integer(&[], 5), Ok(None));
        assert_eq!(read_integer(&[0x1f, 0x9a], 5), Ok(None));
        assert_eq!(read_integer(&[0x1f, 0xff, 0xff, 0xff, 0xff], 5), Ok(None));
        for long in [
            &[0x1f, 0xff, 0xff, 0xff, 0xff, 0xff][..],
            &[0x1f, 0xff, 0xff, 0xff, 0xff, 0x7f],
            &[0x1f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00],
        ] {
            assert_eq!(read_integer(long, 5), Err(CompressionError));
        }
    }

    #[test]
    fn what_is_no_block_is_an_error() {
        for (why, block) in [
            ("index 0", "80"),
            ("index beyond the tables", "be"),
            ("name beyond the tables", "7e 01 61"),
            ("a table that is too large", "3f e2 1f"),
            ("a size of the table after a field", "82 20"),
            ("a string beyond the limit", "00 7f ff ff 7f"),
            ("a wrong code", "00 81 00 00"),
            ("an integer that does not end", "ff ff ff ff ff ff"),
        ] {
            assert!(
                decode_all(&mut Decoder::new(), &hex(block)).is_err(),
                "{why}"
            );
        }
        // At the start there may be sizes.
        assert!(decode_all(&mut Decoder::new(), &hex("20 3f e1 1f 82")).is_ok());
    }

    #[test]
    fn a_name_in_the_table_outlives_its_entry() {
        let mut decoder = Decoder::new();
        decoder.table.set_most(100);
        let name = "x".repeat(40);
        let mut block = vec![0x40, 40];
        block.extend_from_slice(name.as_bytes());
        block.extend([1, b'a']);
        // The same name, with a value for which the first entry has to go.
        block.extend([0x7e, 20]);
        block.extend([b'b'; 20]);
        block.push(0xbe);
        let found = decode_all(&mut decoder, &block).unwrap();
        let wanted = (name, "b".repeat(20));
        assert_eq!(found.0[1..], [wanted.clone(), wanted]);
    }
}

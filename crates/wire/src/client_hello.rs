//! The first message of a client that speaks TLS, as far as it says which server is meant.
//!
//! A ClientHello (RFC 8446, section 4.1.2; RFC 5246, section 7.4.1.2) may come in any number of
//! records, and these in any number of segments. [`Scanner`] finds out when it is complete: it
//! looks at each record once, whatever the pieces are. Then it is walked through once, without being
//! copied. What is in it apart from the name (RFC 6066, section 3) is for the server.

/// Most bytes until the end of the message, records' headers included. A browser with post-quantum
/// keys sends 2 KiB.
pub const MAX_BYTES: usize = 16 * 1024;

/// Longest name of a host, in bytes (RFC 1035, section 2.3.4, as text).
const MAX_NAME: usize = 253;

const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
const MAX_RECORD: usize = 1 << 14;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: usize = 0;
const HOST_NAME: u8 = 0;

/// A name that a client asks for: visible ASCII, in lower case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ServerName {
    bytes: [u8; MAX_NAME],
    length: usize,
}

impl ServerName {
    /// The name.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.length).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl std::fmt::Debug for ServerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// Content of a complete message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The server that is meant; `None` if the client does not say.
    pub name: Option<ServerName>,
}

/// Reason why bytes cannot be the beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Bytes that are not TLS, or break its rules.
    #[error("the first bytes are not a TLS ClientHello")]
    Garbage,
    /// The message does not end within [`MAX_BYTES`].
    #[error("the ClientHello has more than {MAX_BYTES} bytes")]
    Oversized,
}

/// Finds the end of the message while bytes arrive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scanner {
    /// Offset of the first record that was not looked at.
    next: usize,
    /// Bytes of the message in the records before.
    carried: usize,
}

impl Scanner {
    /// Returns the content of the message, once it is complete. `bytes` are all since the
    /// connection's first one: those of the call before, and further ones.
    pub fn scan_hello(&mut self, bytes: &[u8]) -> Result<Option<Hello>, Problem> {
        let bytes = bytes.get(..MAX_BYTES).unwrap_or(bytes);
        loop {
            let rest = bytes.get(self.next..).unwrap_or_default();
            let Some((header, content)) = rest.split_first_chunk::<RECORD_HEADER>() else {
                break;
            };
            let length = record_length(header)?;
            let here = content.get(..length).unwrap_or(content);
            // Its beginning says how long it is; that is in the first record, or in the first few.
            let known = self.carried + here.len();
            if let Some(end) = Message::new(bytes).read_length(known)?
                && known >= end
            {
                let hello = Message::new(bytes).read_hello(end);
                return hello.ok_or(Problem::Garbage).map(Some);
            }
            if content.len() < length {
                break;
            }
            self.next += RECORD_HEADER + length;
            self.carried += length;
        }
        match bytes.len() >= MAX_BYTES {
            true => Err(Problem::Oversized),
            false => Ok(None),
        }
    }
}

/// The length of a record, by its header.
fn record_length(&[kind, major, _, high, low]: &[u8; RECORD_HEADER]) -> Result<usize, Problem> {
    let length = usize::from(u16::from_be_bytes([high, low]));
    // One of no length is not allowed (RFC 8446, section 5.1).
    match (kind, major, length) {
        (HANDSHAKE, 3, 1..=MAX_RECORD) => Ok(length),
        _ => Err(Problem::Garbage),
    }
}

/// A walk over the message, across the records that carry it.
struct Message<'a> {
    /// Bytes from here on.
    bytes: &'a [u8],
    /// Bytes of the present record that are ahead.
    in_record: usize,
    /// Bytes of the message that are behind.
    at: usize,
}

impl<'a> Message<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Message {
            bytes,
            in_record: 0,
            at: 0,
        }
    }

    /// At most the next `most` bytes (at least one), as many as there are in one record; `None` at the end of
    /// what has arrived.
    fn take_piece(&mut self, most: usize) -> Option<&'a [u8]> {
        if self.in_record == 0 {
            let (header, rest) = self.bytes.split_first_chunk::<RECORD_HEADER>()?;
            self.in_record = record_length(header).ok()?;
            self.bytes = rest;
        }
        let length = most.min(self.in_record).min(self.bytes.len());
        let (piece, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        self.in_record -= length;
        self.at += length;
        (length > 0).then_some(piece)
    }

    fn skip_bytes(&mut self, mut count: usize) -> Option<()> {
        while count > 0 {
            count -= self.take_piece(count)?.len();
        }
        Some(())
    }

    fn read_byte(&mut self) -> Option<u8> {
        self.take_piece(1)?.first().copied()
    }

    /// A number of `count` bytes, of which there are at most three.
    fn read_number(&mut self, count: usize) -> Option<usize> {
        (0..count).try_fold(0, |sum, _| Some(sum << 8 | usize::from(self.read_byte()?)))
    }

    /// Reads a length of `count` bytes and returns where the field behind it ends. The end may not
    /// go beyond `limit`.
    fn read_end(&mut self, count: usize, limit: usize) -> Option<usize> {
        let end = self.read_number(count)? + self.at;
        (end <= limit).then_some(end)
    }

    fn skip_to(&mut self, end: usize) -> Option<()> {
        self.skip_bytes(end.checked_sub(self.at)?)
    }

    /// The length of the whole message, if that is among the `known` first bytes of it.
    fn read_length(mut self, known: usize) -> Result<Option<usize>, Problem> {
        match self.read_byte() {
            Some(CLIENT_HELLO) => {}
            Some(_) => return Err(Problem::Garbage),
            None => return Ok(None),
        }
        if known < MESSAGE_HEADER {
            return Ok(None);
        }
        let length = self.read_number(3).ok_or(Problem::Garbage)?;
        match length + MESSAGE_HEADER {
            length if length > MAX_BYTES => Err(Problem::Oversized),
            length => Ok(Some(length)),
        }
    }

    /// Returns the content of a message of `length` bytes, all of which are there.
    fn read_hello(mut self, length: usize) -> Option<Hello> {
        self.skip_bytes(MESSAGE_HEADER)?;
        // The version, and the client's random bytes.
        (self.read_byte()? == 3).then_some(())?;
        self.skip_bytes(1 + 32)?;
        let session = self.read_end(1, length)?;
        (session - self.at <= 32).then_some(())?;
        self.skip_to(session)?;
        let suites = self.read_end(2, length)?;
        ((suites - self.at).is_multiple_of(2) && suites > self.at).then_some(())?;
        self.skip_to(suites)?;
        let compression = self.read_end(1, length)?;
        (compression > self.at).then_some(())?;
        self.skip_to(compression)?;
        let mut name = None;
        if self.at < length {
            (self.read_end(2, length)? == length).then_some(())?;
        }
        while self.at < length {
            let kind = self.read_number(2)?;
            let end = self.read_end(2, length)?;
            if kind == SERVER_NAME {
                // Two are not allowed: this and the server could take different ones.
                name.is_none().then_some(())?;
                name = Some(self.read_host_name(end)?);
            }
            self.skip_to(end)?;
        }
        Some(Hello { name })
    }

    /// The name of a host in the list that goes to `end`.
    fn read_host_name(&mut self, end: usize) -> Option<ServerName> {
        (self.read_end(2, end)? == end).then_some(())?;
        let mut host = None;
        while self.at < end {
            let kind = self.read_byte()?;
            let name = self.read_end(2, end)?;
            if kind == HOST_NAME {
                host.is_none().then_some(())?;
                host = Some(self.name(name)?);
            }
            self.skip_to(name)?;
        }
        host
    }

    fn name(&mut self, end: usize) -> Option<ServerName> {
        let length = end.checked_sub(self.at)?;
        let mut bytes = [0; MAX_NAME];
        for place in bytes.get_mut(..length).filter(|name| !name.is_empty())? {
            *place = self.read_byte()?.to_ascii_lowercase();
            place.is_ascii_graphic().then_some(())?;
        }
        Some(ServerName { bytes, length })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(length: usize, content: &[u8]) -> Vec<u8> {
        let count = content.len().to_be_bytes();
        [&count[8 - length..], content].concat()
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &list(2, content)].concat()
    }

    fn host(name: &str) -> Vec<u8> {
        let entry = [&[HOST_NAME][..], &list(2, name.as_bytes())].concat();
        extension(0, &list(2, &entry))
    }

    /// A message with these extensions.
    fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[7; 32],
            &list(1, &[9; 32]),
            &list(2, &[0x13, 1, 0x13, 2]),
            &list(1, &[0]),
            &list(2, &extensions.concat()),
        ];
        [&[CLIENT_HELLO][..], &list(3, &body.concat())].concat()
    }

    /// Cuts a message into records of at most `size` bytes.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |content: &[u8]| [&[HANDSHAKE, 3, 1][..], &list(2, content)].concat();
        message.chunks(size).flat_map(record).collect()
    }

    fn scan(bytes: &[u8]) -> Result<Option<Hello>, Problem> {
        Scanner::default().scan_hello(bytes)
    }

    fn asked(bytes: &[u8]) -> Option<String> {
        let hello = scan(bytes).unwrap().unwrap();
        hello.name.map(|name| name.as_str().to_owned())
    }

    #[test]
    fn the_name_is_found_beside_what_is_not_known() {
        let grease = extension(0x1a1a, &[1]);
        let ech = extension(0xfe0d, &[5; 300]);
        let all = [
            grease,
            ech,
            host("WWW.example.org"),
            extension(43, &[2, 3, 4]),
        ];
        let hello = records(&message(&all), 1 << 14);
        assert_eq!(asked(&hello).unwrap(), "www.example.org");
        // What follows at once, as early data would, is for the server.
        let early = [&hello[..], &[23, 3, 3, 0, 1, 0]].concat();
        assert_eq!(asked(&early).unwrap(), "www.example.org");
        assert_eq!(asked(&records(&message(&[]), 100)), None);
        // TLS 1.2 knows messages without extensions.
        let mut bare = message(&[]);
        bare.truncate(bare.len() - 2);
        bare[3] -= 2;
        assert_eq!(asked(&records(&bare, 100)), None);
    }

    #[test]
    fn what_breaks_the_rules_is_refused() {
        let twice = [host("a.example"), host("b.example")];
        let two = [&[HOST_NAME, 0, 1, b'a'][..], &[HOST_NAME, 0, 1, b'b']].concat();
        let mut long = message(&[host("a.example")]);
        // An extension that goes beyond the message.
        let last = long.len() - "a.example".len() - 6;
        long[last] += 1;
        let bad = [
            message(&twice),
            message(&[extension(0, &list(2, &two))]),
            message(&[extension(0, &[])]),
            message(&[extension(0, &list(2, &[]))]),
            message(&[host("")]),
            message(&[host("a b")]),
            message(&[host(&"a".repeat(254))]),
            long,
            vec![2, 0, 0, 0],
            vec![CLIENT_HELLO, 0, 0, 0],
        ];
        for bad in bad {
            assert_eq!(
                scan(&records(&bad, 1 << 14)),
                Err(Problem::Garbage),
                "{bad:?}"
            );
        }
        for bad in [
            &b"GET / HTTP/1.1"[..],
            &[HANDSHAKE, 3, 1, 0, 0],
            &[HANDSHAKE, 3, 1, 0x40, 1],
            &[HANDSHAKE, 2, 1, 0, 1],
            &[21, 3, 1, 0, 2],
            // SSL 2.
            &[0x80, 0x2e, 1, 0, 2, 0],
        ] {
            assert_eq!(scan(bad), Err(Problem::Garbage), "{bad:?}");
        }
    }

    #[test]
    fn there_is_a_limit() {
        // Said at the beginning.
        let said = [HANDSHAKE, 3, 1, 0, 4, CLIENT_HELLO, 0, 0x40, 0];
        assert_eq!(scan(&said), Err(Problem::Oversized));
        // Reached by headers of records.
        let padded = message(&[host("a.example"), extension(21, &[0; 4000])]);
        let bytes = records(&padded, 1);
        assert!(bytes.len() > MAX_BYTES);
        assert_eq!(scan(&bytes), Err(Problem::Oversized));
        assert_eq!(scan(&bytes[..MAX_BYTES]), Err(Problem::Oversized));
        assert_eq!(scan(&bytes[..MAX_BYTES - 1]), Ok(None));
        assert_eq!(asked(&records(&padded, 1 << 14)).unwrap(), "a.example");
    }

    proptest! {
        /// However it is cut into records and segments, it is complete with its last byte.
        #[test]
        fn pieces_do_not_matter(
            name in "[a-z0-9.-]{1,253}",
            before in proptest::collection::vec((1u16.., 0usize..400), 0..4),
            after in 0usize..400,
            size in 1usize..600,
            cuts in proptest::collection::vec(1usize..700, 1..50),
        ) {
            let before = before.iter().map(|(kind, length)| extension(*kind, &vec![1; *length]));
            let mut all: Vec<_> = before.collect();
            all.extend([host(&name), extension(1, &vec![2; after])]);
            let bytes = records(&message(&all), size);
            let wanted = bytes.len() <= MAX_BYTES;
            let (mut scanner, mut end) = (Scanner::default(), 0);
            for cut in cuts.iter().cycle() {
                end = (end + cut).min(bytes.len());
                match scanner.scan_hello(&bytes[..end]) {
                    Ok(None) => prop_assert!(end < bytes.len()),
                    Ok(Some(hello)) => {
                        prop_assert_eq!(end, bytes.len());
                        let asked = hello.name.unwrap();
                        prop_assert_eq!(asked.as_str(), &name);
                        break;
                    }
                    Err(problem) => {
                        prop_assert!(!wanted);
                        prop_assert_eq!(problem, Problem::Oversized);
                        break;
                    }
                }
            }
        }

        /// Damaged ones are understood the same, or refused, at once and byte by byte.
        #[test]
        fn damage_does_no_harm(
            size in 1usize..200,
            damage in proptest::collection::vec((0usize..300, any::<u8>()), 0..6),
            rest in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = records(&message(&[host("a.example"), extension(9, &[1])]), size);
            bytes.extend(rest);
            for (at, byte) in damage {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            let mut scanner = Scanner::default();
            let mut steps = (0..=bytes.len()).map(|end| scanner.scan_hello(&bytes[..end]));
            let found = steps.find(|step| *step != Ok(None)).unwrap_or(Ok(None));
            prop_assert_eq!(found, scan(&bytes));
        }
    }
}

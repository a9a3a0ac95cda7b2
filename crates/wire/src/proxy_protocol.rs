//! The PROXY protocol: what a proxy in front says of a client before the client's first byte.
//!
//! HAProxy's `doc/proxy-protocol.txt`, versions 1 (a line of text) and 2 (binary). [`Reader`] takes
//! bytes as they come and says how many belong to the header, so that none of those behind it is
//! taken. What is not exactly a header is refused at its first byte that cannot be one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

/// Longest header of version 1, its end of line included (section 2.1).
const MAX_LINE: usize = 107;

/// Longest header of version 2: what proxies say beside addresses (section 2.2) has hundreds of
/// bytes.
pub const MAX_BYTES: usize = 4096;

const LINE: &[u8] = b"PROXY ";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const FIXED: usize = 16;

/// Kinds of what stands behind the addresses.
const CHECKSUM: u8 = 3;
const PADDING: u8 = 4;

/// Addresses of a client's connection to the proxy in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The client's.
    pub source: SocketAddr,
    /// The one that it has connected to.
    pub destination: SocketAddr,
}

/// Reason why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Bytes that do not begin like a header.
    #[error("no PROXY header")]
    Missing,
    /// Bytes that begin like a header, and go on otherwise.
    #[error("the PROXY header breaks the protocol's rules")]
    Malformed,
    /// The header's checksum is not that of its bytes.
    #[error("the PROXY header has a wrong checksum")]
    Checksum,
    /// The header does not end within [`MAX_BYTES`], or the line of version 1 within its limit.
    #[error("the PROXY header is too long")]
    Oversized,
}

/// Result of [`Reader::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All bytes belong to the header, which has not ended.
    More,
    /// The header has ended.
    End {
        /// Number of the bytes that belonged to the header.
        used: usize,
        /// Addresses in the header; `None` if the connection is the proxy's own (such as its health
        /// checks), or the client's addresses are no IP addresses.
        addresses: Option<Addresses>,
    },
}

/// Reads a header.
#[derive(Debug, Default)]
pub struct Reader {
    read: Vec<u8>,
}

impl Reader {
    /// Takes the bytes that come next.
    ///
    /// # Errors
    ///
    /// The connection does not begin with a header. That is final.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Step, Problem> {
        let mut used = 0;
        while let Some(wanted) = self.bytes_needed(bytes.get(used..).unwrap_or_default())? {
            let next = bytes.get(used..).unwrap_or_default();
            let part = next.get(..wanted).unwrap_or(next);
            self.read.extend_from_slice(part);
            used += part.len();
            if part.len() < wanted {
                self.bytes_needed(&[])?;
                return Ok(Step::More);
            }
        }
        let addresses = match self.read.strip_prefix(LINE) {
            Some(line) => of_line(line)?,
            None => of_binary(&self.read)?,
        };
        Ok(Step::End { used, addresses })
    }

    /// Returns the extensions of a header that has ended (its fields beside addresses), for the
    /// next header: each a type, a length and a value. A checksum is not among them, since it
    /// belongs to the old header, and neither is padding.
    pub fn extensions(&self) -> Vec<u8> {
        let mut all = match self.read.get(FIXED - 3) {
            Some(0x11) => self.read.get(FIXED + 12..),
            Some(0x21) => self.read.get(FIXED + 36..),
            _ => None,
        }
        .unwrap_or_default();
        let is_binary = self.read.starts_with(SIGNATURE) && self.read.get(FIXED - 4) == Some(&0x21);
        let mut kept = Vec::new();
        while let [kind, high, low, rest @ ..] = all {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let Some((value, rest)) = rest.split_at_checked(length) else {
                break;
            };
            if is_binary && ![CHECKSUM, PADDING].contains(kind) {
                kept.extend([*kind, *high, *low]);
                kept.extend(value);
            }
            all = rest;
        }
        kept
    }

    /// Returns how many more bytes are needed next, when `next` are there; `None` at the header's
    /// end.
    fn bytes_needed(&self, next: &[u8]) -> Result<Option<usize>, Problem> {
        let read = self.read.as_slice();
        let begins = |with: &[u8]| read.iter().zip(with).all(|(a, b)| a == b);
        if begins(LINE) && !read.is_empty() {
            if read.len() < LINE.len() {
                return Ok(Some(LINE.len() - read.len()));
            }
            if read.last() == Some(&b'\n') {
                return Ok(None);
            }
            let end = next.iter().position(|byte| *byte == b'\n');
            let here = end.map_or(next.len() + 1, |end| end + 1);
            let room = MAX_LINE - read.len();
            return match here {
                _ if room == 0 => Err(Problem::Oversized),
                here => Ok(Some(here.min(room))),
            };
        }
        if !begins(SIGNATURE) {
            return Err(Problem::Missing);
        }
        let Some(fixed) = read.get(..FIXED) else {
            // One byte tells the versions apart.
            let until = if read.is_empty() { 1 } else { FIXED };
            return Ok(Some(until - read.len()));
        };
        let length = match fixed {
            [.., high, low] => usize::from(u16::from_be_bytes([*high, *low])),
            _ => return Err(Problem::Malformed),
        };
        if FIXED + length > MAX_BYTES {
            return Err(Problem::Oversized);
        }
        let left = (FIXED + length).saturating_sub(read.len());
        Ok((left > 0).then_some(left))
    }
}

/// Writes a header of version 1. Without addresses the connection is the sender's own.
pub fn write_line(addresses: Option<Addresses>, out: &mut Vec<u8>) {
    let line = match addresses {
        Some(of) if of.source.is_ipv4() == of.destination.is_ipv4() => {
            let family = if of.source.is_ipv4() { 4 } else { 6 };
            let [source, destination] = [of.source, of.destination];
            let [from, to] = [source.port(), destination.port()];
            let [source, destination] = [source.ip(), destination.ip()];
            format!("PROXY TCP{family} {source} {destination} {from} {to}\r\n")
        }
        // No line can say that.
        _ => "PROXY UNKNOWN\r\n".into(),
    };
    out.extend_from_slice(line.as_bytes());
}

/// Writes a header of version 2, with `extensions` as [`Reader::extensions`] has them. Without
/// addresses the connection is the sender's own.
pub fn write_binary(addresses: Option<Addresses>, extensions: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    let Some(Addresses {
        source,
        destination,
    }) = addresses
    else {
        return out.extend_from_slice(&[0x20, 0, 0, 0]);
    };
    let mut content = Vec::with_capacity(36 + extensions.len());
    let family = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            content.extend(source.octets().into_iter().chain(destination.octets()));
            0x11
        }
        (source, destination) => {
            for ip in [source, destination] {
                content.extend(match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                });
            }
            0x21
        }
    };
    for address in [source, destination] {
        content.extend(address.port().to_be_bytes());
    }
    // A reader has taken no more than fits.
    let length = u16::try_from(content.len() + extensions.len());
    let (length, extensions) = match length {
        Ok(length) => (length, extensions),
        Err(_) => (content.len() as u16, &[][..]),
    };
    out.extend([0x21, family]);
    out.extend(length.to_be_bytes());
    out.extend(content);
    out.extend(extensions);
}

/// A line of version 1 behind its first word (section 2.1).
fn of_line(line: &[u8]) -> Result<Option<Addresses>, Problem> {
    let line = line.strip_suffix(b"\r\n").ok_or(Problem::Malformed)?;
    let line = std::str::from_utf8(line).map_err(|_| Problem::Malformed)?;
    let mut words = line.split(' ');
    let family = words.next();
    // What follows is to be ignored.
    if family == Some("UNKNOWN") {
        return Ok(None);
    }
    let mut next = || words.next().ok_or(Problem::Malformed);
    let [source, destination, from, to] = [next()?, next()?, next()?, next()?];
    if words.next().is_some() {
        return Err(Problem::Malformed);
    }
    let ip = |text: &str| -> Result<IpAddr, Problem> {
        let ip = match family {
            Some("TCP4") => text.parse().map(IpAddr::V4),
            Some("TCP6") => text.parse().map(IpAddr::V6),
            _ => return Err(Problem::Malformed),
        };
        ip.map_err(|_| Problem::Malformed)
    };
    let port = |text: &str| -> Result<u16, Problem> {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        let leading = text.len() > 1 && text.starts_with('0');
        let port = (plain && !leading).then(|| text.parse().ok());
        port.flatten().ok_or(Problem::Malformed)
    };
    Ok(Some(Addresses {
        source: SocketAddr::new(ip(source)?, port(from)?),
        destination: SocketAddr::new(ip(destination)?, port(to)?),
    }))
}

/// A whole header of version 2 (section 2.2).
fn of_binary(header: &[u8]) -> Result<Option<Addresses>, Problem> {
    let rest = header.strip_prefix(SIGNATURE).ok_or(Problem::Malformed)?;
    let [command, family, _, _, rest @ ..] = rest else {
        return Err(Problem::Malformed);
    };
    let has_addresses = match command {
        // LOCAL: the proxy itself has connected, and nothing else counts.
        0x20 => return Ok(None),
        0x21 => true,
        _ => false,
    };
    let (addresses, more) = match family {
        _ if !has_addresses => return Err(Problem::Malformed),
        0x00 => (None, rest),
        0x11 => {
            let (fixed, more) = rest.split_first_chunk::<12>().ok_or(Problem::Malformed)?;
            let [a, b, c, d, e, f, g, h, ports @ ..] = *fixed;
            let [source, destination] = [[a, b, c, d], [e, f, g, h]].map(Ipv4Addr::from);
            (Some(addresses(source, destination, ports)), more)
        }
        0x21 => {
            let (source, more) = rest.split_first_chunk::<16>().ok_or(Problem::Malformed)?;
            let (destination, more) = more.split_first_chunk::<16>().ok_or(Problem::Malformed)?;
            let (ports, more) = more.split_first_chunk::<4>().ok_or(Problem::Malformed)?;
            let [source, destination] = [*source, *destination].map(Ipv6Addr::from);
            (Some(addresses(source, destination, *ports)), more)
        }
        // Sockets of Unix: two paths.
        0x31 => (None, rest.get(216..).ok_or(Problem::Malformed)?),
        _ => return Err(Problem::Malformed),
    };
    check_extensions(header, more)?;
    Ok(addresses)
}

fn addresses(
    source: impl Into<IpAddr>,
    destination: impl Into<IpAddr>,
    ports: [u8; 4],
) -> Addresses {
    let [a, b, c, d] = ports;
    Addresses {
        source: SocketAddr::new(source.into(), u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(destination.into(), u16::from_be_bytes([c, d])),
    }
}

/// Checks `bytes`, the end of a header: each a type, a length and a value. A checksum is to be that of the whole header.
fn check_extensions(header: &[u8], mut bytes: &[u8]) -> Result<(), Problem> {
    let mut is_checked = false;
    while let [kind, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (value, after) = rest.split_at_checked(length).ok_or(Problem::Malformed)?;
        // One is enough: each costs a look at the whole header.
        if *kind == CHECKSUM && !std::mem::replace(&mut is_checked, true) {
            let at = header.len().saturating_sub(rest.len());
            if value != checksum(header, at..at.saturating_add(4)).to_be_bytes() {
                return Err(Problem::Checksum);
            }
        }
        bytes = after;
    }
    match bytes {
        [] => Ok(()),
        _ => Err(Problem::Malformed),
    }
}

/// CRC32C of a header, in which the bytes at `place` count as 0 (section 2.2.3; RFC 3720, appendix B.4).
fn checksum(header: &[u8], place: Range<usize>) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut rest = u32::MAX;
    for (index, &byte) in header.iter().enumerate() {
        let byte = if place.contains(&index) { 0 } else { byte };
        rest ^= u32::from(byte);
        for _ in 0..8 {
            rest = (rest >> 1) ^ (POLYNOMIAL & (rest & 1).wrapping_neg());
        }
    }
    !rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a header however it comes, and returns its length and its addresses.
    #[track_caller]
    fn read(bytes: &[u8]) -> Result<(usize, Option<Addresses>), Problem> {
        let by = |size: usize| {
            let mut reader = Reader::default();
            let mut at = 0;
            for part in bytes.chunks(size) {
                match reader.take(part) {
                    Ok(Step::More) => at += part.len(),
                    Ok(Step::End { used, addresses }) => return Ok((at + used, addresses)),
                    Err(problem) => return Err(problem),
                }
            }
            panic!("no end within {} bytes", bytes.len());
        };
        let whole = by(bytes.len());
        for size in 1..bytes.len() {
            assert_eq!(by(size), whole, "in parts of {size}");
        }
        whole
    }

    fn said(source: &str, destination: &str) -> Option<Addresses> {
        Some(Addresses {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        })
    }

    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &length, rest].concat()
    }

    #[test]
    fn a_line_ends_where_it_says() {
        for (line, expected) in [
            (
                "PROXY TCP4 192.0.2.7 198.51.100.1 40000 443\r\n",
                said("192.0.2.7:40000", "198.51.100.1:443"),
            ),
            (
                "PROXY TCP6 2001:db8::7 ::1 0 65535\r\n",
                said("[2001:db8::7]:0", "[::1]:65535"),
            ),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN whatever it is\r\n", None),
        ] {
            for behind in ["", "x", "\n", "PROXY ", "GET / HTTP/1.1\r\n"] {
                let bytes = [line, behind].concat();
                let found = read(bytes.as_bytes());
                assert_eq!(found, Ok((line.len(), expected)), "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_binary_header_ends_where_it_says() {
        let four = [192, 0, 2, 7, 198, 51, 100, 1, 0x9c, 0x40, 1, 187];
        let mut six = [0; 36];
        six[15] = 1;
        six[31] = 2;
        six[33] = 80;
        six[35] = 81;
        let extension = [0x04, 0, 2, 7, 7];
        let unix = [0; 216];
        for (command, family, rest, expected) in [
            (
                0x21,
                0x11,
                &four[..],
                said("192.0.2.7:40000", "198.51.100.1:443"),
            ),
            (0x21, 0x21, &six, said("[::1]:80", "[::2]:81")),
            (0x21, 0x00, &[], None),
            (0x21, 0x31, &unix, None),
            (0x20, 0x00, &[], None),
            (0x20, 0x11, &four, None),
            (0x20, 0x99, b"ignored", None),
        ] {
            let header = binary(command, family, rest);
            let behind = [&header, &b"GET"[..]].concat();
            assert_eq!(read(&behind), Ok((header.len(), expected)), "{header:?}");
            let extended = binary(command, family, &[rest, &extension].concat());
            assert_eq!(read(&extended), Ok((extended.len(), expected)));
        }
    }

    #[test]
    fn http_d7_a_wrong_checksum_is_refused() {
        // RFC 3720, appendix B.4, and the usual check value.
        assert_eq!(checksum(&[0; 32], 0..0), 0x8a91_36aa);
        assert_eq!(checksum(b"123456789", 0..0), 0xe306_9283);
        assert_eq!(
            checksum(b"123456789", 0..4),
            checksum(b"\0\0\0\x0056789", 0..0)
        );
        let four = [192, 0, 2, 7, 198, 51, 100, 1, 0x9c, 0x40, 1, 187];
        let with = |length: u8, sum: &[u8]| {
            let extension = [&[4, 0, 1, 9, CHECKSUM, 0, length][..], sum, &[5, 0, 0]].concat();
            binary(0x21, 0x11, &[&four[..], &extension].concat())
        };
        let sum = checksum(&with(4, &[0; 4]), 0..0).to_be_bytes();
        let good = with(4, &sum);
        let found = said("192.0.2.7:40000", "198.51.100.1:443");
        assert_eq!(read(&good), Ok((good.len(), found)));
        for at in [FIXED, FIXED + 12, good.len() - 8, good.len() - 4] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(read(&bad).is_err(), "{at}");
        }
        assert_eq!(read(&with(4, &[0; 4])), Err(Problem::Checksum));
        assert_eq!(read(&with(3, &[0; 3])), Err(Problem::Checksum));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let extensions = [2, 0, 3, b'a', b'.', b'b', 0xe0, 0, 0];
        for (source, destination) in [
            ("192.0.2.7:40000", "198.51.100.1:443"),
            ("[2001:db8::7]:1", "[::1]:65535"),
        ] {
            let addresses = said(source, destination);
            let mut line = Vec::new();
            write_line(addresses, &mut line);
            assert_eq!(read(&line), Ok((line.len(), addresses)));
            let mut header = Vec::new();
            write_binary(addresses, &extensions, &mut header);
            assert_eq!(read(&header), Ok((header.len(), addresses)));
            let mut reader = Reader::default();
            assert!(matches!(reader.take(&header), Ok(Step::End { .. })));
            assert_eq!(reader.extensions(), extensions);
            let mut reader = Reader::default();
            assert!(matches!(reader.take(&line), Ok(Step::End { .. })));
            assert!(reader.extensions().is_empty());
        }
        // A checksum and padding are of one header.
        let four = [192, 0, 2, 7, 198, 51, 100, 1, 0x9c, 0x40, 1, 187];
        let more = [3, 0, 4, 0, 0, 0, 0, 4, 0, 1, 9, 5, 0, 1, 7];
        let mut reader = Reader::default();
        let mut header = binary(0x21, 0x11, &[&four[..], &more].concat());
        let place = FIXED + four.len() + 3..FIXED + four.len() + 7;
        let sum = checksum(&header, 0..0);
        header[place].copy_from_slice(&sum.to_be_bytes());
        assert!(matches!(reader.take(&header), Ok(Step::End { .. })));
        assert_eq!(reader.extensions(), [5, 0, 1, 7]);
        // The sender's own connections, and what only version 2 can say.
        let mixed = said("192.0.2.7:1", "[::1]:2");
        for (addresses, line, binary) in [
            (None, None, None),
            (mixed, None, said("[::ffff:192.0.2.7]:1", "[::1]:2")),
        ] {
            let mut out = Vec::new();
            write_line(addresses, &mut out);
            assert_eq!(read(&out), Ok((out.len(), line)));
            out.clear();
            write_binary(addresses, &extensions, &mut out);
            assert_eq!(read(&out), Ok((out.len(), binary)));
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        for (bytes, problem) in [
            (&b"GET / HTTP/1.1\r\n"[..], Problem::Missing),
            (b"PROXX", Problem::Missing),
            (b"\r\n\r\nQ", Problem::Missing),
            (b"\x16\x03\x01", Problem::Missing),
            (b"PROXY \r\n", Problem::Malformed),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n", Problem::Malformed),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", Problem::Malformed),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n", Problem::Malformed),
            (b"PROXY TCP4 1.2.3.4  1.2.3.4 1 2\r\n", Problem::Malformed),
            (b"PROXY TCP4 ::1 ::1 1 2\r\n", Problem::Malformed),
            (b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", Problem::Malformed),
            (b"PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n", Problem::Malformed),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n", Problem::Malformed),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n", Problem::Malformed),
            (
                b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
                Problem::Malformed,
            ),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 \r\n", Problem::Malformed),
            (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n", Problem::Malformed),
            (b"PROXY \xff\r\n", Problem::Malformed),
        ] {
            assert_eq!(read(bytes), Err(problem), "{}", bytes.escape_ascii());
        }
        let long = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 92]].concat();
        assert_eq!(long.len(), MAX_LINE - 1);
        assert_eq!(
            read(&[&long, &b"\r\n"[..]].concat()),
            Err(Problem::Oversized)
        );
        for (command, family, rest) in [
            (0x11, 0x11, &[0; 12][..]),
            (0x22, 0x11, &[0; 12]),
            (0x21, 0x11, &[0; 11]),
            (0x21, 0x21, &[0; 35]),
            (0x21, 0x31, &[0; 215]),
            // UDP, and nothing that is known.
            (0x21, 0x12, &[0; 12]),
            (0x21, 0x44, &[]),
            // An extension that is cut.
            (0x21, 0x00, &[4, 0]),
            (0x21, 0x00, &[4, 0, 2, 7]),
        ] {
            let header = binary(command, family, rest);
            assert_eq!(read(&header), Err(Problem::Malformed), "{header:?}");
        }
        let mut oversized = binary(0x21, 0x00, &[]);
        oversized[14..].copy_from_slice(&(MAX_BYTES as u16 - 15).to_be_bytes());
        assert_eq!(read(&oversized), Err(Problem::Oversized));
    }
}

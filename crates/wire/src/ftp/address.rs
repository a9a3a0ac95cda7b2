//! Addresses of data connections, as commands and replies write them.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str;

/// Reads the argument of PORT: `h1,h2,h3,h4,p1,p2` (RFC 959, section 5.3.2).
pub fn read_port(argument: &[u8]) -> Option<(Ipv4Addr, u16)> {
    let mut parts = argument.split(|byte| *byte == b',').map(parse_number::<u8>);
    let mut next = || parts.next().flatten();
    let (ip, port) = ([next()?, next()?, next()?, next()?], [next()?, next()?]);
    let is_all = parts.next().is_none();
    is_all.then(|| (Ipv4Addr::from(ip), u16::from_be_bytes(port)))
}

/// Reads the argument of EPRT: `|1|192.0.2.1|6275|` with any delimiter (RFC 2428, section 2). The
/// inner `None` is a family that is not known.
pub fn read_eprt(argument: &[u8]) -> Option<Option<(IpAddr, u16)>> {
    let (delimiter, rest) = split_delimited(argument)?;
    let mut parts = rest.split(|byte| *byte == delimiter);
    let family: u32 = parse_number(parts.next()?)?;
    let ip = str::from_utf8(parts.next()?).ok()?;
    let port = parse_number(parts.next()?)?;
    // Behind the last delimiter is nothing.
    if parts.next()? != b"" || parts.next().is_some() {
        return None;
    }
    Some(match family {
        1 => Some((IpAddr::V4(ip.parse().ok()?), port)),
        2 => Some((IpAddr::V6(ip.parse().ok()?), port)),
        _ => None,
    })
}

/// Reads the port in the text of a 227 reply. Where the six numbers stand is not said (RFC 1123,
/// section 4.1.2.6): they are the first list of exactly six, with spaces or without.
pub fn read_pasv_reply(text: &[u8]) -> Option<u16> {
    let mut rest = text;
    while let Some(begin) = rest.iter().position(u8::is_ascii_digit) {
        let list;
        (list, rest) = split_list(rest.get(begin..)?);
        let numbers: Vec<u8> = list.iter().copied().filter(|byte| *byte != b' ').collect();
        if let Some((_, port)) = read_port(&numbers) {
            return Some(port);
        }
    }
    None
}

/// Splits `text`, which begins with a digit, behind its numbers with commas between them.
fn split_list(text: &[u8]) -> (&[u8], &[u8]) {
    let mut end = 0;
    // What follows a number is a comma and another number, or else not of the list.
    let mut has_comma = true;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'0'..=b'9' if has_comma || end == at => (end, has_comma) = (at + 1, false),
            b',' if !has_comma => has_comma = true,
            b' ' => {}
            _ => break,
        }
    }
    text.split_at(end)
}

/// Reads the port in the text of a 229 reply: `(|||6446|)` (RFC 2428, section 3).
pub fn read_epsv_reply(text: &[u8]) -> Option<u16> {
    let begin = text.iter().position(|byte| *byte == b'(')?;
    let rest = text.get(begin + 1..)?;
    let end = rest.iter().position(|byte| *byte == b')')?;
    let (delimiter, rest) = split_delimited(rest.get(..end)?)?;
    let mut parts = rest.split(|byte| *byte == delimiter);
    let [family, ip, port, behind] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let is_empty = family.is_empty() && ip.is_empty() && behind.is_empty();
    if !is_empty || parts.next().is_some() {
        return None;
    }
    parse_number(port)
}

/// Writes `h1,h2,h3,h4,p1,p2`.
pub(super) fn write_port(ip: Ipv4Addr, port: u16, out: &mut String) {
    let ([a, b, c, d], [high, low]) = (ip.octets(), port.to_be_bytes());
    let _ = write!(out, "{a},{b},{c},{d},{high},{low}");
}

/// Writes `|2|2001:db8::1|6275|`.
pub(super) fn write_eprt(address: SocketAddr, out: &mut String) {
    let family = if address.is_ipv4() { 1 } else { 2 };
    let _ = write!(out, "|{family}|{}|{}|", address.ip(), address.port());
}

fn split_delimited(text: &[u8]) -> Option<(u8, &[u8])> {
    let (delimiter, rest) = text.split_first()?;
    let may_be = delimiter.is_ascii_graphic() && !delimiter.is_ascii_digit();
    may_be.then_some((*delimiter, rest))
}

/// A number of digits only: no sign, and not more than there can be.
fn parse_number<T: str::FromStr>(digits: &[u8]) -> Option<T> {
    let is_number = (1..=5).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let digits = is_number.then(|| str::from_utf8(digits).ok())??;
    digits.parse().ok()
}

//! Paths of requests as routes compare them.
//!
//! Two spellings that servers take for the same path are the same here (RFC 3986, section 6.2.2.2):
//! `/%61dmin` is `/admin`. What servers read differently is refused before a route is looked for
//! ([`check_path`]), so that no spelling gets around a route. Members get every path as it was sent.

use std::borrow::Cow;

/// Longest segment that a route may name; a longer one of a request equals none.
pub const MAX_SEGMENT: usize = 255;

/// Reason why servers may read a path differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguous {
    /// No slash at the beginning.
    #[error("a path that does not begin with /")]
    NotAbsolute,
    /// A segment `.` or `..`, plain, encoded, with parameters, or with dots and spaces behind it, which some servers drop.
    #[error("a path with . or .. as a segment")]
    Dots,
    /// Two slashes in a row.
    #[error("a path with // in it")]
    EmptySegment,
    /// A backslash, which some servers take for a slash.
    #[error("a path with a backslash")]
    Backslash,
    /// A slash, a backslash, a semicolon or a control character in encoded form.
    #[error("a path with an encoded slash, backslash, semicolon or control character")]
    Encoded,
    /// A percent sign without two hexadecimal digits behind it.
    #[error("a path with % and no two hexadecimal digits")]
    Percent,
}

/// Checks that servers read `path`, which has no query, alike.
pub fn check_path(path: &str) -> Result<(), Ambiguous> {
    let Some(rest) = path.strip_prefix('/') else {
        return Err(Ambiguous::NotAbsolute);
    };
    let mut segments = rest.split('/').peekable();
    while let Some(segment) = segments.next() {
        if segment.is_empty() && segments.peek().is_some() {
            return Err(Ambiguous::EmptySegment);
        }
        // What is neither begins with a dot nor needs to be decoded is most of what there is.
        if !segment
            .bytes()
            .any(|byte| matches!(byte, b'%' | b'.' | b'\\'))
        {
            continue;
        }
        check_segment(segment)?;
    }
    Ok(())
}

fn check_segment(segment: &str) -> Result<(), Ambiguous> {
    for decoded in bytes(segment) {
        match decoded {
            Decoded::Bad => return Err(Ambiguous::Percent),
            Decoded::Plain(b'\\') => return Err(Ambiguous::Backslash),
            Decoded::Encoded(b'/' | b'\\' | b';' | 0..0x20 | 0x7f) => {
                return Err(Ambiguous::Encoded);
            }
            _ => {}
        }
    }
    let mut name = bytes(without_parameters(segment)).map(Decoded::byte);
    let is_dots = name.next() == Some(b'.') && name.all(|byte| matches!(byte, b'.' | b' '));
    match is_dots {
        true => Err(Ambiguous::Dots),
        false => Ok(()),
    }
}

/// A byte of a segment.
enum Decoded {
    Plain(u8),
    Encoded(u8),
    /// A percent sign that encodes nothing.
    Bad,
}

impl Decoded {
    fn byte(self) -> u8 {
        match self {
            Decoded::Plain(byte) | Decoded::Encoded(byte) => byte,
            Decoded::Bad => b'%',
        }
    }
}

/// The bytes of a segment, decoded.
fn bytes(segment: &str) -> impl Iterator<Item = Decoded> + '_ {
    let mut rest = segment.as_bytes();
    std::iter::from_fn(move || match rest {
        [b'%', high, low, after @ ..] => {
            if let (Some(high), Some(low)) = (digit(*high), digit(*low)) {
                rest = after;
                return Some(Decoded::Encoded(high << 4 | low));
            }
            rest = rest.get(1..)?;
            Some(Decoded::Bad)
        }
        [b'%', after @ ..] => {
            rest = after;
            Some(Decoded::Bad)
        }
        [byte, after @ ..] => {
            rest = after;
            Some(Decoded::Plain(*byte))
        }
        [] => None,
    })
}

pub(super) fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// A segment without what follows a semicolon, which some servers take for parameters and leave out
/// when they look for the resource.
fn without_parameters(segment: &str) -> &str {
    segment.split(';').next().unwrap_or_default()
}

/// A segment as routes compare it, in `space` if it has to be changed; `None` if it is too long to
/// equal that of a route.
pub(super) fn normalize_segment<'a>(
    segment: &'a str,
    space: &'a mut [u8; MAX_SEGMENT],
) -> Option<&'a [u8]> {
    let segment = without_parameters(segment);
    if !segment.contains('%') {
        return Some(segment.as_bytes()).filter(|segment| segment.len() <= MAX_SEGMENT);
    }
    let mut len = 0;
    for decoded in bytes(segment) {
        *space.get_mut(len)? = decoded.byte();
        len += 1;
    }
    space.get(..len)
}

/// A path as regular expressions see it: decoded, and without what follows semicolons.
pub(super) fn normalize_path(path: &str) -> Cow<'_, [u8]> {
    if !path.contains(['%', ';']) {
        return Cow::Borrowed(path.as_bytes());
    }
    let mut out = Vec::with_capacity(path.len());
    for (index, segment) in path.split('/').enumerate() {
        if index > 0 {
            out.push(b'/');
        }
        out.extend(bytes(without_parameters(segment)).map(Decoded::byte));
    }
    Cow::Owned(out)
}

/// Number of segments of a path that is replaced as a whole: more than a path has.
pub const WHOLE_PATH: usize = usize::MAX;

/// Rest of `path` after the first `segments` segments: empty, or with a slash at the beginning.
pub fn rest_after(path: &str, segments: usize) -> &str {
    let mut rest = path;
    for _ in 0..segments {
        if rest.is_empty() {
            break;
        }
        let segment = rest.strip_prefix('/').unwrap_or(rest);
        let end = segment.find('/').unwrap_or(segment.len());
        rest = segment.get(end..).unwrap_or_default();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_read_differently_is_told() {
        for path in [
            "/",
            "/a",
            "/a/",
            "/a/b",
            "/.well-known/x",
            "/a.b",
            "/%61",
            "/a%20b",
            "/a;x=1/b",
            "/%7Euser",
            "/..a",
            "/a..",
            "/a;..",
            "/%252e%252e/",
        ] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        for (path, why) in [
            ("", Ambiguous::NotAbsolute),
            ("*", Ambiguous::NotAbsolute),
            ("/./admin", Ambiguous::Dots),
            ("/a/..", Ambiguous::Dots),
            ("/a/../admin", Ambiguous::Dots),
            ("/%2e%2E/admin", Ambiguous::Dots),
            ("/.%2e/admin", Ambiguous::Dots),
            ("/a/..;x=1/admin", Ambiguous::Dots),
            ("/.;/admin", Ambiguous::Dots),
            // N13: there are servers that drop dots and spaces at the end, and that decode before they cut.
            ("/public/...;/x", Ambiguous::Dots),
            ("/public/..%20/x", Ambiguous::Dots),
            ("/public/.. ./x", Ambiguous::Dots),
            ("/public/..%3b/x", Ambiguous::Encoded),
            ("/admin%3Bx", Ambiguous::Encoded),
            ("//admin", Ambiguous::EmptySegment),
            ("/a//", Ambiguous::EmptySegment),
            ("/a\\..\\admin", Ambiguous::Backslash),
            ("/a%2fb", Ambiguous::Encoded),
            ("/a%5Cb", Ambiguous::Encoded),
            ("/a%00", Ambiguous::Encoded),
            ("/a%0d%0aX:", Ambiguous::Encoded),
            ("/%", Ambiguous::Percent),
            ("/%4", Ambiguous::Percent),
            ("/%zz", Ambiguous::Percent),
        ] {
            assert_eq!(check_path(path), Err(why), "{path}");
        }
    }

    #[test]
    fn spellings_of_a_segment_are_one() {
        let is = |segment: &str, wanted: Option<&[u8]>| {
            let space = &mut [0; MAX_SEGMENT];
            assert_eq!(normalize_segment(segment, space), wanted, "{segment}");
        };
        is("admin", Some(b"admin"));
        is("%61dm%69n", Some(b"admin"));
        is("admin;x=1", Some(b"admin"));
        is("caf%c3%A9", Some("café".as_bytes()));
        is(&"x".repeat(255), Some("x".repeat(255).as_bytes()));
        is(&"x".repeat(256), None);
        is(&"%78".repeat(256), None);
    }

    #[test]
    fn spellings_of_a_path_are_one() {
        for (path, normal) in [
            ("/admin/x", "/admin/x"),
            ("/%61dmin;a=1/%78;b", "/admin/x"),
            ("/a;b", "/a"),
            ("/a;b/", "/a/"),
            ("/%2561", "/%61"),
            ("*", "*"),
        ] {
            assert_eq!(&*normalize_path(path), normal.as_bytes(), "{path}");
        }
    }

    #[test]
    fn what_follows_a_prefix_is_as_it_was_sent() {
        for (path, segments, rest) in [
            ("/api/x", 1, "/x"),
            ("/%61pi/%78?", 1, "/%78?"),
            ("/api", 1, ""),
            ("/api/", 1, "/"),
            ("/a/b/c", 2, "/c"),
            ("/a", 0, "/a"),
            ("/a", 5, ""),
            ("/a/b/", WHOLE_PATH, ""),
            ("*", WHOLE_PATH, ""),
        ] {
            assert_eq!(rest_after(path, segments), rest, "{path}");
        }
    }
}

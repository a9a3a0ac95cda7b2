//! The head of a request that came over HTTP/2: what it says, by the rules of HTTP/1.1 and those of
//! RFC 9113 on top.

use evenkeel_http2::Head;

use crate::http1::{HeadError, Limits, RequestHead};
use crate::message::{Field, FieldSet};

/// Returns what `see` finds in the head.
///
/// `ended` says that there is no body. `key` is that of a handshake for WebSocket if the stream
/// asks for that protocol (RFC 8441).
///
/// # Errors
///
/// The head is refused: answer with [`HeadError::request_status`].
pub(crate) fn with_head<T>(
    head: &Head,
    ended: bool,
    key: Option<&str>,
    limits: Limits,
    see: impl FnOnce(&RequestHead<'_>) -> T,
) -> Result<T, HeadError> {
    if head.method() == "CONNECT" && key.is_none() {
        return Err(HeadError::Connect);
    }
    let target = head.path().ok_or(HeadError::Target)?;
    let authority = head.authority();
    check_size(head, target, limits)?;
    let cookies = join_cookies(head);
    let mut fields: Vec<Field<'_>> = Vec::with_capacity(head.fields.len() + 4);
    if let Some(authority) = authority {
        fields.push(new_field("host", authority.as_bytes()));
    }
    // Cookies are sensitive in any case.
    let mut sensitive = FieldSet::default();
    if head.sensitive().authority {
        sensitive.insert(0);
    }
    let mut cookie_seen = false;
    let hosts = head
        .fields
        .iter()
        .filter(|(name, _)| *name == "host")
        .count();
    for (name, value, is_sensitive) in head.fields.marked() {
        let before = fields.len();
        match name {
            "host" => match authority {
                Some(authority) if !authority.as_bytes().eq_ignore_ascii_case(value) => {
                    return Err(HeadError::HostDiffers);
                }
                // One after the other is found to be one too many.
                Some(_) if hosts == 1 => {}
                _ => fields.push(new_field(name, value)),
            },
            // RFC 9113, section 8.2.3: pairs may come in fields of their own.
            "cookie" => {
                if !std::mem::replace(&mut cookie_seen, true) {
                    fields.push(new_field(name, cookies.as_deref().unwrap_or(value)));
                }
            }
            _ => fields.push(new_field(member_spelling(name, key.is_some()), value)),
        }
        if is_sensitive && fields.len() > before {
            sensitive.insert(before);
        }
    }
    let mut method = head.method();
    if let Some(key) = key {
        method = "GET";
        fields.push(new_field("Upgrade", b"websocket"));
        fields.push(new_field("Sec-WebSocket-Key", key.as_bytes()));
    }
    let mut request = RequestHead::of_stream(method, target, &fields, ended || key.is_some())?;
    request.request.sensitive = sensitive;
    request.request.has_sensitive_path = head.sensitive().path;
    Ok(see(&request))
}

/// Fields of the handshake as RFC 6455 spells them: there are servers that know no other spelling.
const HANDSHAKE: [&str; 3] = [
    "Sec-WebSocket-Extensions",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Version",
];

/// Returns a name as a member gets it: in lower case, but names of the handshake of WebSocket as
/// RFC 6455 spells them.
fn member_spelling(name: &str, is_handshake: bool) -> &str {
    if !is_handshake {
        return name;
    }
    let known = HANDSHAKE
        .iter()
        .find(|known| known.eq_ignore_ascii_case(name));
    known.copied().unwrap_or(name)
}

fn new_field<'a>(name: &'a str, value: &'a [u8]) -> Field<'a> {
    Field { name, value }
}

/// The limits of HTTP/1, for the head as it would be there.
fn check_size(head: &Head, target: &str, limits: Limits) -> Result<(), HeadError> {
    if head.fields.len() > limits.max_fields {
        return Err(HeadError::TooManyFields);
    }
    let fields = head.fields.text().len();
    if target.len() > limits.max_bytes {
        return Err(HeadError::TargetTooLong);
    }
    if target.len() + fields > limits.max_bytes {
        Err(HeadError::TooLarge)
    } else {
        Ok(())
    }
}

/// Returns all cookies in one field, if they are in several.
fn join_cookies(head: &Head) -> Option<Vec<u8>> {
    let fields = head.fields.iter();
    let mut cookies = fields.filter(|(name, _)| *name == "cookie");
    let ((_, first), (_, second)) = (cookies.next()?, cookies.next()?);
    let mut joined = first.to_vec();
    for cookie in std::iter::once(second).chain(cookies.map(|(_, value)| value)) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie);
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_d7_the_handshake_of_websocket_is_spelt_as_in_http1() {
        for (name, spelt) in [
            ("sec-websocket-version", "Sec-WebSocket-Version"),
            ("sec-websocket-protocol", "Sec-WebSocket-Protocol"),
            ("sec-websocket-extensions", "Sec-WebSocket-Extensions"),
            ("origin", "origin"),
        ] {
            assert_eq!(member_spelling(name, true), spelt);
            assert_eq!(member_spelling(name, false), name);
        }
    }
}

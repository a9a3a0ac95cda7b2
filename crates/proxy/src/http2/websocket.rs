//! The handshake of WebSocket in both forms: that of HTTP/1.1 (RFC 6455), which has a key and an
//! answer to it, and that of HTTP/2 (RFC 8441), which has neither.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::message::Request;

/// Suffix of a key, from both of which the answer to the key is made (RFC 6455, section 1.3).
const SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const KEY_BYTES: usize = 16;

/// A key for a handshake.
pub(crate) fn new_key(rng: &mut fastrand::Rng) -> String {
    STANDARD.encode(std::array::from_fn::<_, KEY_BYTES, _>(|_| rng.u8(..)))
}

/// Returns the `Sec-WebSocket-Accept` for a client that offers WebSocket, and nothing else, in case
/// it gets that protocol. `None` for other requests.
pub(super) fn accept_value(request: &Request<'_>) -> Option<String> {
    if !request.upgrade
        || !request
            .only_value("upgrade")?
            .eq_ignore_ascii_case(b"websocket")
    {
        return None;
    }
    let key = request.only_value("sec-websocket-key")?;
    // 16 bytes: 22 digits, and two signs that stand for none.
    let digits = key
        .strip_suffix(b"==")
        .filter(|digits| digits.len() == 22)?;
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    digits.iter().all(is_digit).then(|| {
        let signed = [key, SUFFIX.as_bytes()].concat();
        STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &signed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests::with_request;

    #[test]
    fn a_proper_offer_gets_the_answer_of_the_standard() {
        let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let answer = Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let connection = "Connection: upgrade\r\n";
        for (fields, answer) in [
            (format!("{connection}Upgrade: WebSocket\r\n{key}"), answer),
            (format!("Upgrade: websocket\r\n{key}"), None),
            (format!("{connection}Upgrade: other\r\n{key}"), None),
            (format!("{connection}Upgrade: websocket, x\r\n{key}"), None),
            (
                format!("{connection}Upgrade: websocket\r\n{key}{key}"),
                None,
            ),
            (format!("{connection}Upgrade: websocket\r\n"), None),
            (
                format!(
                    "{connection}Upgrade: websocket\r\n{}",
                    key.replace("dGhl", "dGh*")
                ),
                None,
            ),
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let found = with_request(&head, accept_value);
            assert_eq!(found.as_deref(), answer, "{head}");
        }
    }

    #[test]
    fn keys_are_proper_and_differ() {
        let mut rng = fastrand::Rng::with_seed(1);
        let [one, other] = [new_key(&mut rng), new_key(&mut rng)];
        assert!(one.len() == 24 && one.ends_with("==") && one != other);
    }
}

//! Identity of a client by its certificate, as members are told.

use std::fmt::Write;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::certificate::{fingerprint, format_name};

/// Longest value of a field.
const MAX_VALUE: usize = 2048;

/// The lines for members about a client: `prefix` is the beginning of the fields' names. A client
/// without a certificate has no more than the first line.
pub fn format_lines(prefix: &str, certificate: Option<&CertificateDer<'_>>) -> String {
    let parsed = certificate.and_then(|der| {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        Some((der, parsed))
    });
    let Some((der, parsed)) = parsed else {
        return format!("{prefix}-Verified: no\r\n");
    };
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let names: Vec<String> = names.filter_map(format_general_name).collect();
    let mut lines = format!("{prefix}-Verified: yes\r\n");
    let fields = [
        ("Subject", format_name(parsed.subject())),
        ("SAN", names.join(",")),
        ("Fingerprint", fingerprint(der)),
    ];
    for (name, value) in fields {
        // Writing to a string cannot fail.
        let _ = write!(lines, "{prefix}-{name}: {}\r\n", field_value(&value, ""));
    }
    lines
}

/// A name of a certificate: its kind and its value, in which no comma stands.
fn format_general_name(name: &GeneralName<'_>) -> Option<String> {
    let (kind, value) = match name {
        GeneralName::DNSName(name) => ("DNS", (*name).to_owned()),
        GeneralName::RFC822Name(name) => ("email", (*name).to_owned()),
        GeneralName::URI(name) => ("URI", (*name).to_owned()),
        GeneralName::IPAddress(bytes) => ("IP", address(bytes)?),
        _ => return None,
    };
    Some(format!("{kind}:{}", field_value(&value, ",")))
}

fn address(bytes: &[u8]) -> Option<String> {
    let four: Result<[u8; 4], _> = bytes.try_into();
    let sixteen: Result<[u8; 16], _> = bytes.try_into();
    match (four, sixteen) {
        (Ok(bytes), _) => Some(std::net::Ipv4Addr::from(bytes).to_string()),
        (_, Ok(bytes)) => Some(std::net::Ipv6Addr::from(bytes).to_string()),
        _ => None,
    }
}

/// `text` as the value of a field: what is not visible ASCII or a space, and what is in `also`, in
/// percent-encoding, which `%` itself is in, too, unless there is nothing in `also`: then it is encoded
/// already.
fn field_value(text: &str, also: &str) -> String {
    let mut value = String::with_capacity(text.len());
    for byte in text.bytes() {
        if value.len() >= MAX_VALUE {
            value.push_str("...");
            break;
        }
        let is_plain = byte == b' ' || byte.is_ascii_graphic();
        let is_marked = !also.is_empty() && (byte == b'%' || also.as_bytes().contains(&byte));
        if is_plain && !is_marked {
            value.push(char::from(byte));
        } else {
            let _ = write!(value, "%{byte:02X}");
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use rcgen::string::Ia5String;
    use rcgen::{DnType, KeyPair, SanType};

    use super::*;
    use crate::testing::new_params;

    #[test]
    fn a_certificate_cannot_say_more_than_it_may() {
        let mut params = new_params(&["a.example", "10.0.0.1"]);
        let uri: Ia5String = "spiffe://a/b,DNS:evil%2C".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
        params
            .distinguished_name
            .push(DnType::CommonName, "j\u{f6}rg\r\nX-Admin: yes,O=root");
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let lines = format_lines("X-Peer", Some(certificate.der()));
        let lines: Vec<_> = lines.split_terminator("\r\n").collect();
        let [verified, subject, san, fingerprint] = lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(verified, "X-Peer-Verified: yes");
        assert_eq!(
            subject,
            r"X-Peer-Subject: CN=j%C3%B6rg%0D%0AX-Admin: yes\,O\=root,O=Evenkeel\, tests"
        );
        let names = "DNS:a.example,IP:10.0.0.1,URI:spiffe://a/b%2CDNS:evil%252C";
        assert_eq!(san, format!("X-Peer-SAN: {names}"));
        assert_eq!(fingerprint.len(), "X-Peer-Fingerprint: ".len() + 64);
    }

    #[test]
    fn a_client_without_a_certificate_is_said_to_be_one() {
        assert_eq!(format_lines("X-Peer", None), "X-Peer-Verified: no\r\n");
        let garbage = CertificateDer::from(vec![0x30, 0x80]);
        assert_eq!(
            format_lines("X-Peer", Some(&garbage)),
            "X-Peer-Verified: no\r\n"
        );
    }

    #[test]
    fn values_are_bounded() {
        assert!(field_value(&"x".repeat(100_000), "").len() < MAX_VALUE + 8);
    }
}

//! Answers and certificates for an authority that looks whether a name is ours, for as long as it
//! may look.
//!
//! There is one list for the process: an authority connects to whatever listens at the name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::crypto_provider;

/// Path at which an authority asks for a token (RFC 8555, section 8.3).
pub const PATH: &str = "/.well-known/acme-challenge/";

/// The protocol of an authority's handshake (RFC 8737), by ALPN.
pub const ALPN: &[u8] = b"acme-tls/1";

#[derive(Clone, Debug, Default)]
struct Pending {
    /// Answers by token.
    tokens: HashMap<Box<str>, Arc<str>>,
    /// Certificates by name.
    certificates: HashMap<Box<str>, Arc<CertifiedKey>>,
}

static PENDING: LazyLock<ArcSwap<Pending>> = LazyLock::new(ArcSwap::default);

/// Number of answers and certificates that are shown: nearly always 0, and then nobody looks
/// further.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Answer or certificate that is shown until this value is dropped.
#[derive(Debug)]
#[must_use]
pub struct Shown {
    token: Option<Box<str>>,
    name: Option<Box<str>>,
}

/// Has `answer` shown to whoever asks for `token`.
pub fn show_token(token: &str, answer: &str) -> Shown {
    COUNT.fetch_add(1, Ordering::Relaxed);
    PENDING.rcu(|pending| {
        let mut pending = Pending::clone(pending);
        pending.tokens.insert(token.into(), answer.into());
        pending
    });
    Shown {
        token: Some(token.into()),
        name: None,
    }
}

/// Has a certificate (DER, with a key in PKCS #8) shown to an authority that asks for `name`.
///
/// # Errors
///
/// It cannot be used.
pub fn show_certificate(name: &str, der: &[u8], key: &[u8]) -> Result<Shown, rustls::Error> {
    let chain = vec![CertificateDer::from(der.to_vec())];
    let key = PrivatePkcs8KeyDer::from(key.to_vec()).into();
    let key = crypto_provider().key_provider.load_private_key(key)?;
    // Not looked at: what makes it an answer is an extension that only an authority understands.
    let certificate = Arc::new(CertifiedKey::new(chain, key));
    COUNT.fetch_add(1, Ordering::Relaxed);
    PENDING.rcu(|pending| {
        let mut pending = Pending::clone(pending);
        let name = name.to_ascii_lowercase().into();
        pending.certificates.insert(name, Arc::clone(&certificate));
        pending
    });
    Ok(Shown {
        token: None,
        name: Some(name.to_ascii_lowercase().into()),
    })
}

impl Drop for Shown {
    fn drop(&mut self) {
        PENDING.rcu(|pending| {
            let mut pending = Pending::clone(pending);
            self.token
                .as_ref()
                .map(|token| pending.tokens.remove(token));
            self.name
                .as_ref()
                .map(|name| pending.certificates.remove(name));
            pending
        });
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer to a request with this target, if that is one for a token that is shown.
#[inline]
pub fn find_answer(target: &str) -> Option<Arc<str>> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let token = target.strip_prefix(PATH)?;
    PENDING.load().tokens.get(token).cloned()
}

/// The certificate for an authority that asks for `name`, in lower case.
pub(crate) fn find_certificate(name: &str) -> Option<Arc<CertifiedKey>> {
    PENDING.load().certificates.get(name).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_certificates_are_shown_for_a_while() {
        let target = format!("{PATH}token-of-a-test");
        assert_eq!(find_answer(&target), None);
        let shown = show_token("token-of-a-test", "answer");
        assert_eq!(find_answer(&target).as_deref(), Some("answer"));
        assert_eq!(find_answer("/token-of-a-test"), None);
        assert_eq!(find_answer(PATH), None);
        drop(shown);
        assert_eq!(find_answer(&target), None);
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["x.example".to_owned()]).unwrap();
        let answer = rcgen::CustomExtension::new_acme_identifier(&[7; 32]);
        params.custom_extensions = vec![answer];
        let der = params.self_signed(&key).unwrap();
        let shown = show_certificate("X.example", der.der(), &key.serialize_der()).unwrap();
        assert!(find_certificate("x.example").is_some());
        assert!(find_certificate("y.example").is_none());
        drop(shown);
        assert!(find_certificate("x.example").is_none());
        assert!(show_certificate("x.example", b"no", b"key").is_err());
    }
}

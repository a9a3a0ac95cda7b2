//! Order: one try to get a certificate.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use evenkeel_config::{Acme, AcmeChallenge};
use evenkeel_net::key_file::{self, KeyFileError};
use evenkeel_tls::challenge::{self, Shown};
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, ExternalAccountKey, Identifier, NewAccount,
    NewOrder, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, KeyPair};

use crate::client::{self, RetryAfter};
use crate::store::Store;

/// Longest time for the authority to look, and to sign.
const PATIENCE: Duration = Duration::from_secs(120);

/// Longest time for all of it.
const LIMIT: Duration = Duration::from_secs(300);

/// Reason why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The conversation has failed.
    #[error("{}", causes(.0))]
    Acme(#[from] instant_acme::Error),
    /// The folder cannot be used.
    #[error("acme.folder: cannot be used: {0}")]
    Store(#[from] io::Error),
    /// The certificate for a challenge cannot be made.
    #[error("cannot make the certificate for the challenge: {0}")]
    Challenge(#[from] rcgen::Error),
    /// The certificate for a challenge cannot be shown to the authority.
    #[error("cannot show the certificate for the challenge: {0}")]
    Shown(String),
    /// The authority does not offer the challenge.
    #[error("the authority does not offer {0} for this name")]
    NotOffered(&'static str),
    /// The authority has looked, and not found what it expects.
    #[error("the authority could not verify the name: {0}")]
    Refused(String),
    /// The key that binds the account to another one cannot be read.
    #[error("acme.eab_key_file: {0}")]
    Binding(#[from] KeyFileError),
    /// The order takes too long.
    #[error("the authority issued no certificate within {LIMIT:?}")]
    Timeout,
}

/// A try that has failed.
#[derive(Debug)]
pub struct Failure {
    /// Reason of the failure.
    pub error: Error,
    /// Moment at which the authority wants to be asked again, if it has said so, in seconds since 1970.
    pub not_before: Option<i64>,
}

/// Returns the text of an error with what is behind it: "cannot connect" alone helps nobody.
fn causes(error: &instant_acme::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Gets a certificate for `name` and keeps it in `store`.
///
/// # Errors
///
/// The order has failed. The certificate that was there before is still there.
pub async fn obtain_certificate(settings: &Acme, store: &Store, name: &str) -> Result<(), Failure> {
    let asked = Arc::default();
    let result = tokio::time::timeout(LIMIT, attempt(settings, store, name, &asked)).await;
    let result = result.unwrap_or(Err(Error::Timeout));
    if let Err(Error::Acme(instant_acme::Error::Api(problem))) = &result
        && problem.r#type.as_deref() == Some("urn:ietf:params:acme:error:accountDoesNotExist")
    {
        store.forget_account();
    }
    result.map_err(|error| Failure {
        error,
        not_before: asked.get(),
    })
}

async fn attempt(
    settings: &Acme,
    store: &Store,
    name: &str,
    asked: &Arc<RetryAfter>,
) -> Result<(), Error> {
    let account = account(settings, store, asked).await?;
    let identifiers = [Identifier::Dns(name.to_owned())];
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
    // What is shown for challenges is taken back at the end.
    let mut shown = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let (kind, word) = match settings.challenge {
            AcmeChallenge::Http01 => (ChallengeType::Http01, "http-01"),
            AcmeChallenge::TlsAlpn01 => (ChallengeType::TlsAlpn01, "tls-alpn-01"),
        };
        let mut challenge = authorization
            .challenge(kind)
            .ok_or(Error::NotOffered(word))?;
        let answer = challenge.key_authorization();
        shown.push(match settings.challenge {
            AcmeChallenge::Http01 => challenge::show_token(&challenge.token, answer.as_str()),
            AcmeChallenge::TlsAlpn01 => certificate(name, answer.digest().as_ref())?,
        });
        challenge.set_ready().await?;
    }
    let patience = RetryPolicy::new().timeout(PATIENCE);
    if order.poll_ready(&patience).await? != OrderStatus::Ready {
        return Err(Error::Refused(reason(&mut order).await));
    }
    let key = order.finalize().await?;
    let chain = order.poll_certificate(&patience).await?;
    drop(shown);
    Ok(store.keep_certificate(name, &chain, &key)?)
}

/// Returns the account, which is made when there is none yet.
async fn account(
    settings: &Acme,
    store: &Store,
    asked: &Arc<RetryAfter>,
) -> Result<Account, Error> {
    let root = settings.ca_file.as_ref().map(|file| file.path.as_path());
    let client = client::new(root, Arc::clone(asked))?;
    let builder = Account::builder_with_http(client);
    if let Some(known) = store.account(&settings.directory)? {
        return Ok(builder.from_credentials(known).await?);
    }
    let contact = settings.contact.iter();
    let contact: Vec<String> = contact.map(|address| format!("mailto:{address}")).collect();
    let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
    let wanted = NewAccount {
        contact: &contact,
        terms_of_service_agreed: settings.agree_to_terms,
        only_return_existing: false,
    };
    let binding = binding(settings)?;
    let made = builder.create(&wanted, settings.directory.clone(), binding.as_ref());
    let (account, credentials) = made.await?;
    store.keep_account(&credentials)?;
    Ok(account)
}

/// Returns the account elsewhere that a new one is to be bound to (RFC 8555, section 7.3.4).
pub(crate) fn binding(settings: &Acme) -> Result<Option<ExternalAccountKey>, KeyFileError> {
    let (Some(id), Some(file)) = (&settings.eab_key_id, &settings.eab_key_file) else {
        return Ok(None);
    };
    let key = key_file::load_parsed(&file.path, |text| decode(text.trim()).ok_or(NoKey))?;
    Ok(Some(ExternalAccountKey::new(id.clone(), &key)))
}

#[derive(Debug, thiserror::Error)]
#[error("is not a key of at least 16 bytes in base64")]
struct NoKey;

/// Decodes base64 in either alphabet, with `=` at the end or without.
fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').replace('-', "+");
    let bytes = STANDARD_NO_PAD.decode(text.replace('_', "/")).ok()?;
    (bytes.len() >= 16).then_some(bytes)
}

/// Shows a certificate with the answer to a TLS-ALPN-01 challenge (RFC 8737).
fn certificate(name: &str, digest: &[u8]) -> Result<Shown, Error> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let shown = challenge::show_certificate(name, certificate.der(), &key.serialize_der());
    shown.map_err(|error| Error::Shown(error.to_string()))
}

/// Returns what the authority says of challenges that it has not found good.
async fn reason(order: &mut instant_acme::Order) -> String {
    let mut authorizations = order.authorizations();
    while let Some(Ok(authorization)) = authorizations.next().await {
        let mut errors = authorization.challenges.iter();
        if let Some(problem) = errors.find_map(|challenge| challenge.error.as_ref()) {
            return problem.to_string();
        }
    }
    "the authority gives no reason".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_both_alphabets() {
        let key: Vec<u8> = (0..18).map(|n| 0xf8 + n % 8).collect();
        for text in ["+Pn6+/z9/v/4+fr7/P3+//j5", "-Pn6-_z9_v_4-fr7_P3-__j5"] {
            assert_eq!(decode(text).as_deref(), Some(&key[..]), "{text}");
        }
        assert_eq!(
            decode("AAAAAAAAAAAAAAAAAAAAAA==").map(|key| key.len()),
            Some(16)
        );
        for text in [
            "",
            "AAAA",
            "AAAAAAAAAAAAAAAAAAAAAA*",
            "AAAAAAAA AAAAAAAAAAAAAAAA",
        ] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}

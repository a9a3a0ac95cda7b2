//! The client of HTTPS for conversations with an authority: heeds when that wants to be asked again.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use evenkeel_tls::certificate::unix_now;
use http::{HeaderMap, Request, header};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The time that an authority has named with `Retry-After` in an answer that is an error (RFC 8555, section 6.6).
#[derive(Debug, Default)]
pub struct RetryAfter(AtomicI64);

impl RetryAfter {
    /// Returns the latest time that was named, in seconds since 1970.
    pub fn get(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    fn heed(&self, headers: &HeaderMap, now: i64) {
        let value = headers.get(header::RETRY_AFTER);
        let value = value.and_then(|value| value.to_str().ok()).map(str::trim);
        if let Some(at) = value.and_then(|value| time_of(value, now)) {
            self.0.fetch_max(at, Ordering::Relaxed);
        }
    }
}

/// Returns the time that a value of `Retry-After` means (RFC 9110, section 10.2.3), in seconds since 1970.
fn time_of(value: &str, now: i64) -> Option<i64> {
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(now.saturating_add(value.parse().unwrap_or(i64::MAX)));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?;
    Some(date.timestamp().as_second())
}

type Answer = Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>>;

struct Heeding<C> {
    inner: C,
    asked: Arc<RetryAfter>,
}

impl<C: HttpClient> HttpClient for Heeding<C> {
    fn request(&self, request: Request<BodyWrapper<Bytes>>) -> Answer {
        let (answer, asked) = (self.inner.request(request), Arc::clone(&self.asked));
        Box::pin(async move {
            let answer = answer.await?;
            let status = answer.parts.status;
            if status.is_client_error() || status.is_server_error() {
                asked.heed(&answer.parts.headers, unix_now());
            }
            Ok(answer)
        })
    }
}

/// Makes a client that trusts the authority in the file at `root`, or those that the system trusts, and notes in
/// `asked` when the server wants to be asked again.
///
/// # Errors
///
/// The file cannot be used, or the system has no authorities.
pub fn new(root: Option<&Path>, asked: Arc<RetryAfter>) -> Result<Box<dyn HttpClient>, Error> {
    let connector = HttpsConnectorBuilder::new();
    let connector = match root {
        Some(path) => {
            let root = CertificateDer::from_pem_file(path);
            let root = root.map_err(|error| Error::Other(error.into()))?;
            let mut roots = RootCertStore::empty();
            roots
                .add(root)
                .map_err(|error| Error::Other(error.into()))?;
            let config = rustls::ClientConfig::builder().with_root_certificates(roots);
            connector.with_tls_config(config.with_no_client_auth())
        }
        None => connector
            .try_with_platform_verifier()
            .map_err(|error| Error::Other(error.into()))?,
    };
    let connector = connector.https_only().enable_http1().enable_http2().build();
    let inner = Client::builder(TokioExecutor::new()).build::<_, BodyWrapper<Bytes>>(connector);
    Ok(Box::new(Heeding { inner, asked }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f8_retry_after_is_understood_in_both_forms() {
        for (value, expected) in [
            ("3600", Some(4600)),
            ("0", Some(1000)),
            ("99999999999999999999", Some(i64::MAX)),
            ("Thu, 01 Jan 1970 01:00:00 GMT", Some(3600)),
            ("soon", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(time_of(value, 1000), expected, "{value}");
        }
        let asked = RetryAfter::default();
        assert_eq!(asked.get(), None);
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, "60".parse().unwrap());
        asked.heed(&headers, 1000);
        headers.insert(header::RETRY_AFTER, "30".parse().unwrap());
        asked.heed(&headers, 1000);
        assert_eq!(asked.get(), Some(1060));
    }
}

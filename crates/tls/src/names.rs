//! Verification of a server's certificate for one of several names.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// Verifier of certificates that are for one of several names, whatever the name that the server is asked for.
#[derive(Debug)]
struct NamesVerifier {
    inner: Arc<dyn ServerCertVerifier>,
    names: Box<[ServerName<'static>]>,
}

/// Returns a verifier that demands one of `names`; `inner` itself if there are none.
///
/// # Errors
///
/// A text is no name.
pub(crate) fn verify_names(
    inner: Arc<dyn ServerCertVerifier>,
    names: &[String],
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    if names.is_empty() {
        return Ok(inner);
    }
    let names = names.iter().map(|name| {
        let read = ServerName::try_from(name.clone());
        read.map_err(|error| format!("certificate_names: {name}: {error}"))
    });
    let names = names.collect::<Result<_, _>>()?;
    Ok(Arc::new(NamesVerifier { inner, names }))
}

/// True if a certificate is good, but for another name.
fn is_of_name(error: &Error) -> bool {
    let Error::InvalidCertificate(error) = error else {
        return false;
    };
    matches!(
        error,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
    )
}

impl ServerCertVerifier for NamesVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut refusal = Error::InvalidCertificate(CertificateError::NotValidForName);
        for name in &self.names {
            let verified =
                self.inner
                    .verify_server_cert(end_entity, intermediates, name, ocsp_response, now);
            match verified {
                Err(error) if is_of_name(&error) => refusal = error,
                other => return other,
            }
        }
        Err(refusal)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

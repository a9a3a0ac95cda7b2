//! Verification of a server's certificate for one of several names.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_config::is_uri;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Name in a certificate.
#[derive(Debug)]
enum CertificateName {
    /// Host name, or IP address.
    Host(ServerName<'static>),
    /// URI, which is compared byte by byte.
    Uri(Box<str>),
}

/// Verifier of certificates that are for one of several names, whatever the name that the server is asked for.
#[derive(Debug)]
struct NamesVerifier {
    inner: Arc<dyn ServerCertVerifier>,
    names: Box<[CertificateName]>,
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
        let is_uri = is_uri(name) && name.parse::<IpAddr>().is_err();
        if is_uri {
            return Ok(CertificateName::Uri(name.as_str().into()));
        }
        let read = ServerName::try_from(name.clone()).map(CertificateName::Host);
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

/// True if a certificate has a URI among its names.
fn has_uri(certificate: &CertificateDer<'_>, uri: &str) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return false;
    };
    let names = parsed.subject_alternative_name().ok().flatten();
    let mut names = { names.iter() }.flat_map(|names| &names.value.general_names);
    names.any(|name| matches!(name, GeneralName::URI(of) if *of == uri))
}

impl ServerCertVerifier for NamesVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        asked_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify = |name: &ServerName<'_>| {
            (self.inner).verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
        };
        let mut refusal = Error::InvalidCertificate(CertificateError::NotValidForName);
        for name in &self.names {
            // The name is the last thing that is looked at: a certificate that is good but for its name may have a URI.
            let verified = match name {
                CertificateName::Host(name) => verify(name),
                CertificateName::Uri(uri) => match verify(asked_name) {
                    Err(error) if !is_of_name(&error) => Err(error),
                    _ if has_uri(end_entity, uri) => Ok(ServerCertVerified::assertion()),
                    _ => continue,
                },
            };
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

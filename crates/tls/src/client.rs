//! Client side of TLS: the authorities that the client trusts, the certificate that it shows, and
//! sessions.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use evenkeel_config::{CertificateFiles, ClientTls, Problem, TlsVersion};
use evenkeel_core::address::Address;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::authorities::{read_revocations, read_roots};
use crate::certificate::{
    Certificate, CertificateError, Details, bytes, file_problem, parse_items, private_key, unix_now,
};
use crate::crypto_provider;
use crate::names::verify_names;
use crate::sessions::{AtAddress, Sessions};

/// Time for which the authorities that the system trusts are not read again: what one reload needs
/// for many groups is read once.
const SYSTEM_AGE: Duration = Duration::from_secs(5);

/// Settings for handshakes as a client.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    /// The name that the other side must have, unless that is its host.
    pub(crate) name: Option<ServerName<'static>>,
    pub(crate) alpn: Vec<Vec<u8>>,
    sessions: Option<Arc<Sessions>>,
    /// Authorities that the client trusts, in words.
    pub(crate) trusts: String,
    /// Certificate of the client.
    pub client_certificate: Option<Details>,
    /// Number that no other client has, from 1.
    pub id: u64,
    /// Digest of all that the client is made of.
    made_of: [u8; 32],
}

/// Parts of a client.
struct Parts {
    verifier: Arc<dyn ServerCertVerifier>,
    trusts: String,
    key: Option<Arc<CertifiedKey>>,
    details: Option<Details>,
    name: Option<ServerName<'static>>,
}

/// Texts of PEM files, and settings, of which a client is made.
#[derive(Clone, Copy, Debug)]
pub struct ClientPem<'a> {
    /// Certificates of the trusted authorities; `None` trusts those that the system trusts.
    pub authorities: Option<&'a [u8]>,
    /// Certificate to show, with its chain, and its private key.
    pub certificate: Option<(&'a [u8], &'a [u8])>,
    /// Name in the server's certificate, unless that is its host.
    pub server_name: Option<&'a str>,
    /// Verification of the server's certificate.
    pub verify: bool,
}

/// Compares clients: each is only equal to itself. See [`Client::is_like`] for the settings.
impl PartialEq for Client {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Client {
    /// Reads what `tls` names.
    ///
    /// # Errors
    ///
    /// All that is wrong, with the places in the configuration.
    pub fn from_config(tls: &ClientTls) -> Result<Self, Vec<Problem>> {
        let mut made_of = digest::Context::new(&digest::SHA256);
        let mut errors = Vec::new();
        let mut verifier: Option<Arc<dyn ServerCertVerifier>> = None;
        let mut trusts = String::new();
        let revoked = read_revocations(tls.crl_file.as_ref(), |text| made_of.update(text));
        match (authorities(tls, &mut made_of), revoked) {
            (Ok(None), _) => verifier = Some(Arc::new(TrustAllVerifier)),
            (Ok(Some((roots, of))), Ok(revoked)) => {
                let builder = WebPkiServerVerifier::builder_with_provider(
                    roots,
                    Arc::clone(crypto_provider()),
                );
                match builder.with_crls(revoked).build() {
                    Ok(built) => match verify_names(built, &tls.certificate_names) {
                        Ok(built) => verifier = Some(built),
                        Err(error) => errors.push(tls.place.problem(error)),
                    },
                    Err(error) => errors.push(match &tls.crl_file {
                        Some(file) => {
                            file_problem(file, &CertificateError::Content(error.to_string()))
                        }
                        None => tls.place.problem(error.to_string()),
                    }),
                }
                trusts = of;
            }
            (authorities, revoked) => {
                let problems = [authorities.err(), revoked.err()];
                errors.extend(problems.into_iter().flatten().flatten());
            }
        }
        let mut own = None;
        if let Some(certificate) = &tls.certificate {
            let files = CertificateFiles {
                certificate: certificate.clone(),
                key: tls.key.clone(),
                names: Vec::new(),
            };
            match Certificate::from_files(&files, Some(unix_now()), true) {
                Ok(loaded) => {
                    made_of.update(loaded.details.fingerprint.as_bytes());
                    own = Some(loaded);
                }
                Err(problems) => errors.extend(problems),
            }
        }
        let name = tls
            .server_name
            .clone()
            .map(ServerName::try_from)
            .transpose();
        if let Err(error) = &name {
            errors.push(tls.place.problem(format!("server_name: {error}")));
        }
        let (Some(verifier), Ok(name), []) = (verifier, name, &errors[..]) else {
            return Err(errors);
        };
        made_of.update(format!("{:?}", (&tls.server_name, tls.verify)).as_bytes());
        made_of.update(format!("{:?}", tls.certificate_names).as_bytes());
        made_of.update(format!("{:?}", (tls.min_version, &tls.alpn, tls.resume)).as_bytes());
        let parts = Parts {
            verifier,
            trusts,
            key: own.as_ref().map(|own| Arc::clone(&own.key)),
            details: own.map(|own| own.details),
            name,
        };
        let client = Self::assemble(tls, parts, made_of);
        client.map_err(|error| vec![tls.place.problem(error.to_string())])
    }

    /// Makes a client of the texts of PEM files.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn from_pem(pem: &ClientPem<'_>) -> Result<Self, String> {
        let mut made_of = digest::Context::new(&digest::SHA256);
        let tls = ClientTls {
            verify: pem.verify,
            ..ClientTls::default()
        };
        let (verifier, trusts): (Arc<dyn ServerCertVerifier>, String) = match pem.authorities {
            _ if !pem.verify => (Arc::new(TrustAllVerifier), String::new()),
            authorities => {
                let (roots, trusts) = match authorities {
                    Some(text) => (roots_of(text)?, "an authority of the configuration"),
                    None => (system_authorities()?, "an authority that the system trusts"),
                };
                for root in &roots.roots {
                    made_of.update(&root.subject_public_key_info);
                }
                let provider = Arc::clone(crypto_provider());
                let builder = WebPkiServerVerifier::builder_with_provider(roots, provider);
                let verifier = builder.build().map_err(|error| error.to_string())?;
                (verifier, trusts.into())
            }
        };
        let mut key = None;
        if let Some((chain, text)) = pem.certificate {
            made_of.update(chain);
            let own =
                key_of(chain, text).map_err(|error| format!("client certificate: {error}"))?;
            key = Some(Arc::new(own));
        }
        let name = pem
            .server_name
            .map(|name| ServerName::try_from(name.to_owned()));
        let parts = Parts {
            verifier,
            trusts,
            key,
            details: None,
            name: name
                .transpose()
                .map_err(|error| format!("server name: {error}"))?,
        };
        made_of.update(format!("{:?}", (pem.server_name, pem.verify)).as_bytes());
        Self::assemble(&tls, parts, made_of).map_err(|error| error.to_string())
    }

    fn assemble(tls: &ClientTls, parts: Parts, made_of: digest::Context) -> Result<Self, Error> {
        let Parts {
            verifier,
            trusts,
            key,
            details,
            name,
        } = parts;
        let versions: &[_] = match tls.min_version {
            TlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            TlsVersion::Tls13 => &[&rustls::version::TLS13],
        };
        let config = ClientConfig::builder_with_provider(Arc::clone(crypto_provider()))
            .with_protocol_versions(versions)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match key {
            Some(key) => config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key))),
            None => config.with_no_client_auth(),
        };
        // Records are sealed by `Stream`.
        config.enable_secret_extraction = true;
        config.resumption = Resumption::disabled();
        let digest = made_of.finish();
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(Client {
            config,
            name,
            alpn: tls
                .alpn
                .iter()
                .map(|name| name.as_bytes().to_vec())
                .collect(),
            sessions: tls.resume.then(Arc::default),
            trusts,
            client_certificate: details,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            made_of: digest.as_ref().try_into().unwrap_or_default(),
        })
    }

    /// Returns the configuration of rustls for connections that are not
    /// [`Stream`](crate::stream::Stream)s: those connections resume sessions.
    pub fn into_config(self) -> ClientConfig {
        let mut config = self.config;
        config.enable_secret_extraction = false;
        config.resumption = Resumption::in_memory_sessions(256);
        config
    }

    /// True if connections of `other` are as good as those of this client: both have the same files
    /// and settings.
    pub fn is_like(&self, other: &Client) -> bool {
        self.made_of == other.made_of
    }

    /// Returns the configuration of rustls for a handshake with the peer at `address`.
    pub(crate) fn config_for_peer(&self, address: Address) -> Arc<ClientConfig> {
        let mut config = self.config.clone();
        if let Some(sessions) = &self.sessions {
            let sessions = Arc::clone(sessions);
            let store = Resumption::store(Arc::new(AtAddress { sessions, address }));
            config.resumption = store.tls12_resumption(Tls12Resumption::SessionIdOrTickets);
        }
        Arc::new(config)
    }
}

/// Returns the authorities whose certificates are trusted, and their name in words; `None` trusts
/// everybody.
fn authorities(
    tls: &ClientTls,
    made_of: &mut digest::Context,
) -> Result<Option<(Arc<RootCertStore>, String)>, Vec<Problem>> {
    if !tls.verify {
        return Ok(None);
    }
    let Some(file) = &tls.ca_file else {
        let roots = system_authorities().map_err(|why| {
            let message = format!(
                "this system has no certificates of trusted authorities ({why}): install them \
                 (the package is mostly called ca-certificates), or name a `ca_file`"
            );
            vec![tls.place.problem(message)]
        })?;
        for root in &roots.roots {
            made_of.update(&root.subject_public_key_info);
        }
        return Ok(Some((roots, "an authority that the system trusts".into())));
    };
    let roots = read_roots(file, |text| made_of.update(text))?;
    let of = format!("an authority in {}", file.path.display());
    Ok(Some((Arc::new(roots), of)))
}

/// Returns the authorities in the text of a PEM file.
fn roots_of(text: &[u8]) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    let all = parse_items::<CertificateDer<'static>>(text, "certificate");
    for der in all.map_err(|error| format!("certificate authority: {error}"))? {
        let added = roots.add(der);
        added.map_err(|error| format!("certificate authority: {error}"))?;
    }
    Ok(Arc::new(roots))
}

/// Returns a certificate with its key, both from texts of PEM files.
fn key_of(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain = parse_items::<CertificateDer<'static>>(chain, "certificate");
    let chain = chain.map_err(|error| error.to_string())?;
    let key = private_key(key).map_err(|error| error.to_string())?;
    let key = CertifiedKey::from_der(chain, key, crypto_provider());
    key.map_err(|error| error.to_string())
}

/// Files in which systems keep the certificates of authorities that they trust.
const SYSTEM_FILES: [&str; 6] = [
    // Debian, Ubuntu, Alpine, Arch.
    "/etc/ssl/certs/ca-certificates.crt",
    // Fedora, RHEL.
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    // SUSE.
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    // The BSDs.
    "/etc/ssl/cert.pem",
];

/// The authorities that the system trusts: those in the file that `SSL_CERT_FILE` names, as with
/// OpenSSL, or in the first of [`SYSTEM_FILES`] that is there.
fn system_authorities() -> Result<Arc<RootCertStore>, String> {
    static KNOWN: Mutex<Option<(Instant, Arc<RootCertStore>)>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, roots)) = &*known
        && at.elapsed() < SYSTEM_AGE
    {
        return Ok(Arc::clone(roots));
    }
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let there = || {
        SYSTEM_FILES
            .iter()
            .map(PathBuf::from)
            .find(|file| file.exists())
    };
    let file = named.or_else(there);
    let file = file.ok_or_else(|| format!("there is no file such as {}", SYSTEM_FILES[0]))?;
    let roots = roots_in(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let roots = Arc::new(roots);
    *known = Some((Instant::now(), Arc::clone(&roots)));
    Ok(roots)
}

/// Returns the certificates in a file of the system that can be used.
fn roots_in(file: &Path) -> Result<RootCertStore, CertificateError> {
    let all = parse_items::<CertificateDer<'static>>(&bytes(file)?, "certificate")?;
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(all) {
        (0, _) => Err(CertificateError::Lacks("certificate of an authority")),
        _ => Ok(roots),
    }
}

/// Trusts everybody. Whoever it is must have the key of the certificate that is shown.
#[derive(Debug)]
struct TrustAllVerifier;

impl ServerCertVerifier for TrustAllVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &crypto_provider().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &crypto_provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        crypto_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_config::FileName;

    use super::*;
    use crate::testing::{Folder, new_authority, new_params, sign_certificate};

    #[test]
    fn all_errors_are_told_at_once_with_their_files() {
        let folder = Folder::new();
        let missing = |name: &str| Some(FileName::from(folder.0.join(name)));
        let tls = ClientTls {
            ca_file: missing("ca.pem"),
            crl_file: missing("ca.crl"),
            certificate: missing("own.pem"),
            key: missing("own.key"),
            ..ClientTls::default()
        };
        let errors = Client::from_config(&tls).unwrap_err();
        let errors: Vec<_> = errors.iter().map(|error| error.message.clone()).collect();
        let files = ["ca.pem", "ca.crl", "own.pem", "own.key"];
        assert_eq!(errors.len(), files.len(), "{errors:?}");
        for (error, file) in errors.iter().zip(files) {
            assert!(
                error.contains(&format!("{file}: cannot be read")),
                "{error}"
            );
        }
        let empty = ClientTls {
            ca_file: Some(folder.write("empty.pem", "")),
            ..ClientTls::default()
        };
        let error = Client::from_config(&empty).unwrap_err().remove(0);
        assert!(
            error.message.contains("empty.pem: holds no certificate"),
            "{error}"
        );
    }

    #[test]
    fn texts_of_pem_files_make_a_client() {
        let (folder, root) = (Folder::new(), new_authority());
        let made = sign_certificate(new_params(&["a.example"]), &root);
        let files = folder.write_certificate("own.pem", &made);
        let text = std::fs::read(&files.certificate.path).unwrap();
        let authorities = root.pem();
        let pem = ClientPem {
            authorities: Some(authorities.as_bytes()),
            certificate: Some((&text, &text)),
            server_name: Some("a.example"),
            verify: true,
        };
        let load = |pem: &ClientPem<'_>| Client::from_pem(pem).map_err(|error| error.to_string());
        assert!(load(&pem).unwrap().is_like(&load(&pem).unwrap()));
        let other = ClientPem {
            certificate: None,
            ..pem
        };
        assert!(!load(&pem).unwrap().is_like(&load(&other).unwrap()));
        let broken = ClientPem {
            authorities: Some(b"x"),
            ..pem
        };
        let error = load(&broken).unwrap_err();
        assert!(
            error.contains("certificate authority: holds no certificate"),
            "{error}"
        );
        let broken = ClientPem {
            certificate: Some((&text, b"x")),
            ..pem
        };
        let error = load(&broken).unwrap_err();
        assert!(
            error.contains("client certificate: holds no private key"),
            "{error}"
        );
    }

    #[test]
    fn the_systems_authorities_are_read_as_far_as_they_can_be_used() {
        let folder = Folder::new();
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let file = folder.write("all.crt", format!("{broken}{}", new_authority().pem()));
        assert_eq!(roots_in(&file.path).unwrap().len(), 1);
        let file = folder.write("none.crt", broken);
        let error = roots_in(&file.path).unwrap_err().to_string();
        assert_eq!(error, "holds no certificate of an authority");
        assert!(roots_in(&folder.0.join("missing")).is_err());
    }

    #[test]
    fn a_client_is_like_one_of_the_same_files() {
        let folder = Folder::new();
        let root = new_authority();
        let certificate = folder.write_certificate(
            "own.pem",
            &sign_certificate(new_params(&["a.example"]), &root),
        );
        let tls = ClientTls {
            ca_file: Some(folder.write("ca.pem", root.pem())),
            certificate: Some(certificate.certificate),
            ..ClientTls::default()
        };
        let load = |tls: &ClientTls| Client::from_config(tls).unwrap();
        let first = load(&tls);
        assert!(first.is_like(&load(&tls)) && first.id != load(&tls).id);
        for other in [
            ClientTls {
                verify: false,
                ca_file: None,
                ..tls.clone()
            },
            ClientTls {
                resume: false,
                ..tls.clone()
            },
            ClientTls {
                min_version: TlsVersion::Tls13,
                ..tls.clone()
            },
            ClientTls {
                server_name: Some("b.example".into()),
                ..tls.clone()
            },
            ClientTls {
                certificate_names: vec!["b.example".into()],
                ..tls.clone()
            },
            ClientTls {
                certificate: None,
                ..tls.clone()
            },
        ] {
            assert!(!first.is_like(&load(&other)), "{other:?}");
        }
        folder.write("ca.pem", new_authority().pem());
        assert!(
            !first.is_like(&load(&tls)),
            "another authority in the same file"
        );
    }
}

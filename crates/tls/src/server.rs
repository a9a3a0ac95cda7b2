//! TLS towards the clients of a rule: which certificate they get, and what is asked of them.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::{ClientCertificates, Problem, Protocol, Rule, Tls, TlsVersion};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::certificate::{
    Certificate, CertificateError, Details, bytes, file_problem, read_by, unix_now,
};
use crate::ticket::{self, Keys, Span, Tickets};
use crate::{authorities, challenge, crypto_provider};

/// Tickets that a client of TLS 1.3 gets, so that it can open two connections at once.
const TICKETS: usize = 2;

/// Server side of TLS for a rule: settings for the handshakes of its clients.
#[derive(Clone, Debug)]
pub struct Server {
    /// Configuration of rustls.
    pub(crate) config: Arc<ServerConfig>,
    /// Certificates of the server, in the order of the configuration.
    pub certificates: Vec<Details>,
    /// Time limit of a handshake.
    pub handshake_timeout: Duration,
    /// Beginning of the names of the fields that tell members of a client's certificate.
    pub header: Option<Box<str>>,
    /// Verifier of the certificates of clients, if clients with a bad one are served, too.
    pub(crate) optional_verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Most bytes that a client may send after its first message, before it is known.
    pub(crate) most_input: usize,
}

/// Returns the server of a rule, if the rule has TLS. `own` is as in [`Server::from_config`].
///
/// # Errors
///
/// The errors of [`Server::from_config`].
pub fn of_rule(rule: &Rule, own: &Arc<Keys>) -> Result<Option<Server>, Vec<Problem>> {
    let protocols: &[&str] = match rule.protocol {
        Protocol::Http => &["h2", "http/1.1"],
        Protocol::Tcp | Protocol::Ftp | Protocol::Udp => &[],
    };
    let tls = rule.tls.as_ref();
    tls.map(|tls| Server::from_config(tls, &rule.name, protocols, own))
        .transpose()
}

/// Longest certificates of a client.
const MAX_CLIENT_CHAIN: usize = 64 * 1024;

impl Server {
    /// Reads what `tls` names, for the rule called `rule`. `protocols` are offered if it names
    /// none. `own` are the keys of tickets if it names no file.
    ///
    /// # Errors
    ///
    /// All that is wrong, with the places in the configuration.
    pub fn from_config(
        tls: &Tls,
        rule: &str,
        protocols: &[&str],
        own: &Arc<Keys>,
    ) -> Result<Self, Vec<Problem>> {
        let mut errors = Vec::new();
        let now = (!tls.allow_expired).then(unix_now);
        let mut certificates: Vec<Certificate> = Vec::new();
        for (index, files) in tls.certificates.iter().enumerate() {
            match Certificate::from_files(files, now, index == 0) {
                Ok(certificate) => certificates.push(certificate),
                Err(problems) => errors.extend(problems),
            }
        }
        for files in &tls.issued {
            // Until there is one, clients that ask for its name are refused. One whose time is over
            // is used until there is another one.
            if !files.certificate.path.exists() {
                continue;
            }
            match Certificate::from_files(files, None, true) {
                Ok(certificate) => certificates.push(certificate),
                Err(problems) => errors.extend(problems),
            }
        }
        let keys = match &tls.ticket_key_file {
            Some(file) => read_secret(file).map(Arc::new),
            None => Ok(Arc::clone(own)),
        };
        let keys = keys.map_err(|problems| errors.extend(problems)).ok();
        let mut clients = Clients::default();
        if let Some(wanted) = &tls.client_certificates {
            match Clients::load(wanted) {
                Ok(loaded) => clients = loaded,
                Err(problems) => errors.extend(problems),
            }
        }
        let Some(keys) = keys.filter(|_| errors.is_empty()) else {
            return Err(errors);
        };
        let details = certificates.iter().map(|one| one.details.clone());
        let details = details.collect();
        let resolver = ByName::new(&certificates, tls.strict_sni);
        let bound_to = [rule.as_bytes(), &clients.read];
        let tickets = Tickets::new(keys, &bound_to);
        let internal = |error: rustls::Error| {
            let files = tls.certificates.first();
            let content = CertificateError::Content(error.to_string());
            let problem = files.map(|files| file_problem(&files.certificate, &content));
            problem.into_iter().collect::<Vec<_>>()
        };
        let versions: &[_] = match tls.min_version {
            TlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            TlsVersion::Tls13 => &[&rustls::version::TLS13],
        };
        let config = ServerConfig::builder_with_provider(Arc::clone(crypto_provider()))
            .with_protocol_versions(versions)
            .map_err(internal)?;
        let asked = tls.client_certificates.as_ref();
        let accepts_invalid = asked.is_some_and(|clients| clients.accept_invalid);
        let optional_verifier = { clients.verifier.clone() }.filter(|_| accepts_invalid);
        let config = match clients.verifier {
            Some(inner) => config.with_client_cert_verifier(Arc::new(DatedVerifier {
                inner,
                accepts_invalid,
            })),
            None => config.with_no_client_auth(),
        };
        let mut config = config.with_cert_resolver(Arc::new(resolver));
        // Records are sealed here.
        config.enable_secret_extraction = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        if tls.tickets {
            config.ticketer = Arc::new(tickets);
            config.send_tls13_tickets = TICKETS;
        }
        let offered: Vec<&str> = tls.alpn.iter().map(String::as_str).collect();
        let offered = if offered.is_empty() {
            protocols
        } else {
            &offered
        };
        config.alpn_protocols = offered
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        // With nothing else to offer it would keep those away who know something else.
        if !tls.issued.is_empty() && !config.alpn_protocols.is_empty() {
            config.alpn_protocols.push(challenge::ALPN.to_vec());
        }
        Ok(Server {
            config: Arc::new(config),
            certificates: details,
            handshake_timeout: tls.handshake_timeout,
            header: asked
                .and_then(|clients| clients.header.as_deref())
                .map(Into::into),
            optional_verifier,
            most_input: asked.map_or(0, |_| MAX_CLIENT_CHAIN),
        })
    }
}

fn read_secret(file: &evenkeel_config::FileName) -> Result<Keys, Vec<Problem>> {
    use std::os::unix::fs::PermissionsExt;
    let secret = |path: &Path| {
        let mode = std::fs::metadata(path).map(|file| file.permissions().mode());
        if mode.is_ok_and(|mode| mode & 0o007 != 0) {
            let what = "everybody may access it: run chmod o= on it";
            return Err(CertificateError::Content(what.into()));
        }
        bytes(path)
    };
    read_by(file, secret, Keys::parse)
}

/// Demand for certificates of clients.
#[derive(Default)]
struct Clients {
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Bytes of all files that were read for the verifier: a session from before a change is not
    /// resumed.
    read: Vec<u8>,
}

impl Clients {
    fn load(wanted: &ClientCertificates) -> Result<Self, Vec<Problem>> {
        let mut all = Vec::new();
        let roots = authorities::read_roots(&wanted.ca_file, |text| all.extend_from_slice(text));
        let crl_file = wanted.crl_file.as_ref();
        let revoked = authorities::read_revocations(crl_file, |text| all.extend_from_slice(text));
        let (roots, revoked) = match (roots, revoked) {
            (Ok(roots), Ok(revoked)) => (roots, revoked),
            (roots, revoked) => {
                let errors = [roots.err(), revoked.err()];
                return Err(errors.into_iter().flatten().flatten().collect());
            }
        };
        let provider = Arc::clone(crypto_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.with_crls(revoked);
        let verifier = match wanted.required {
            true => verifier,
            false => verifier.allow_unauthenticated(),
        };
        let verifier = verifier.build().map_err(|error| {
            let file = crl_file.unwrap_or(&wanted.ca_file);
            vec![file_problem(
                file,
                &CertificateError::Content(error.to_string()),
            )]
        })?;
        all.extend([wanted.required, wanted.accept_invalid].map(u8::from));
        Ok(Clients {
            verifier: Some(verifier),
            read: all,
        })
    }
}

/// Verifier that has the session end with the certificates that were found good.
#[derive(Debug)]
struct DatedVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    /// True if clients with a bad certificate are served, too.
    accepts_invalid: bool,
}

impl ClientCertVerifier for DatedVerifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = match { &self.inner }.verify_client_cert(end_entity, intermediates, now) {
            Ok(verified) => verified,
            // Whoever asks for the certificate verifies it again.
            Err(_) if self.accepts_invalid => return Ok(ClientCertVerified::assertion()),
            Err(error) => return Err(error),
        };
        let chain = std::iter::once(end_entity).chain(intermediates);
        let until = chain.map(end_of).min().unwrap_or(i64::MIN);
        ticket::set_span(Span::new(until));
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Returns the moment at which a certificate expires, in seconds since 1970. A certificate that
/// cannot be read has expired.
fn end_of(certificate: &CertificateDer<'_>) -> i64 {
    let parsed = X509Certificate::from_der(certificate);
    parsed.map_or(i64::MIN, |(_, parsed)| {
        parsed.validity().not_after.timestamp()
    })
}

thread_local! {
    /// The name that the client asks for whose message is understood now: rustls tells the resolver
    /// only.
    static ASKED: Cell<Option<Box<str>>> = const { Cell::new(None) };
}

/// The name that a client has asked for in the message that was understood last.
pub(crate) fn take_asked() -> Option<Box<str>> {
    ASKED.take()
}

/// Certificates of one name: the one that comes first is the best.
type OfName = Vec<Arc<CertifiedKey>>;

/// Certificates by the names that clients ask for.
#[derive(Debug)]
struct ByName {
    exact: HashMap<Box<str>, OfName>,
    /// Certificates by the part of their names after `*.`.
    wild: HashMap<Box<str>, OfName>,
    /// Certificates for clients that ask for no name, or an unknown one.
    default: OfName,
}

impl ByName {
    fn new(certificates: &[Certificate], strict: bool) -> Self {
        let mut of = ByName {
            exact: HashMap::new(),
            wild: HashMap::new(),
            default: Vec::new(),
        };
        for Certificate { key, details } in certificates {
            for name in &details.names {
                let list = match name.strip_prefix("*.") {
                    Some(below) => of.wild.entry(below.into()),
                    None => of.exact.entry(name.as_str().into()),
                };
                list.or_default().push(Arc::clone(key));
            }
        }
        if !strict && let Some(first) = certificates.first() {
            // With another kind of key for the same name, if there is one.
            let name = first.details.names.first();
            let same = certificates.iter().filter(|other| {
                Arc::ptr_eq(&other.key, &first.key)
                    || name.is_some_and(|name| other.details.names.contains(name))
            });
            of.default = same
                .map(|certificate| Arc::clone(&certificate.key))
                .collect();
        }
        of
    }

    /// The certificates for a name in lower case.
    fn find(&self, name: &str) -> Option<&OfName> {
        let below = || {
            let (_, below) = name.split_once('.')?;
            self.wild.get(below)
        };
        self.exact.get(name).or_else(below)
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        // An authority offers nothing else (RFC 8737, section 3).
        let mut alpn = hello.alpn().into_iter().flatten();
        if alpn.next() == Some(challenge::ALPN) && alpn.next().is_none() {
            return challenge::find_certificate(name.as_deref()?);
        }
        let found = name.as_deref().and_then(|name| self.find(name));
        ASKED.set(name.map(Into::into));
        let list = found.unwrap_or(&self.default);
        let schemes = hello.signature_schemes();
        let known = list
            .iter()
            .find(|key| key.key.choose_scheme(schemes).is_some());
        // With one whose kind the client does not know the handshake fails, and says why.
        known.or(list.first()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_config::FileName;

    use super::*;
    use crate::testing::{Folder, new_authority, self_signed};

    fn tls(folder: &Folder, names: &[&[&str]]) -> Tls {
        let files = names.iter().enumerate().map(|(index, names)| {
            folder.write_certificate(&format!("{index}.pem"), &self_signed(names))
        });
        Tls {
            certificates: files.collect(),
            ..Tls::default()
        }
    }

    fn load(tls: &Tls) -> Result<Server, Vec<Problem>> {
        Server::from_config(tls, "web", &["http/1.1"], &Arc::new(Keys::new_rotating()))
    }

    #[test]
    fn the_name_decides_which_certificate() {
        let folder = Folder::new();
        let names: [&[&str]; 4] = [
            &["a.example"],
            &["*.example", "b.example"],
            &["*.a.example"],
            &["a.example"],
        ];
        let tls = tls(&folder, &names);
        let certificates: Vec<_> = tls
            .certificates
            .iter()
            .map(|files| Certificate::from_files(files, None, false).unwrap())
            .collect();
        let found = |of: &ByName, name: &str| -> Vec<usize> {
            let list = of.find(name).unwrap_or(&of.default);
            let index = |key| certificates.iter().position(|c| Arc::ptr_eq(&c.key, key));
            list.iter().filter_map(index).collect()
        };
        for strict in [false, true] {
            let of = ByName::new(&certificates, strict);
            assert_eq!(found(&of, "a.example"), [0, 3]);
            assert_eq!(found(&of, "b.example"), [1]);
            assert_eq!(found(&of, "c.example"), [1]);
            assert_eq!(found(&of, "x.a.example"), [2]);
            let default: &[usize] = if strict { &[] } else { &[0, 3] };
            assert_eq!(found(&of, "x.y.a.example"), default);
            assert_eq!(found(&of, "example"), default);
            assert_eq!(found(&of, ""), default);
        }
    }

    #[test]
    fn all_errors_are_told_at_once() {
        let folder = Folder::new();
        let mut tls = tls(&folder, &[&["a.example"]]);
        let missing = |name: &str| FileName::from(folder.0.join(name));
        tls.certificates[0].key = Some(missing("a.key"));
        tls.ticket_key_file = Some(missing("tickets.key"));
        tls.client_certificates = Some(ClientCertificates {
            ca_file: missing("ca.pem"),
            crl_file: Some(missing("ca.crl")),
            ..ClientCertificates::default()
        });
        let errors = load(&tls).unwrap_err();
        let errors: Vec<_> = errors.iter().map(|error| error.message.clone()).collect();
        let files = ["a.key", "tickets.key", "ca.pem", "ca.crl"];
        assert_eq!(errors.len(), files.len(), "{errors:?}");
        for (error, file) in errors.iter().zip(files) {
            assert!(
                error.contains(&format!("{file}: cannot be read")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_rule_has_what_its_table_says() {
        let folder = Folder::new();
        let mut tls = tls(&folder, &[&["a.example"]]);
        let server = load(&tls).unwrap();
        assert_eq!(server.config.alpn_protocols, [b"http/1.1"]);
        assert!(server.config.ticketer.enabled() && server.header.is_none());
        tls.alpn = vec!["h3".into()];
        tls.tickets = false;
        tls.client_certificates = Some(ClientCertificates {
            ca_file: folder.write("ca.pem", new_authority().pem()),
            ..ClientCertificates::default()
        });
        let server = load(&tls).unwrap();
        assert_eq!(server.config.alpn_protocols, [b"h3"]);
        assert!(!server.config.ticketer.enabled());
        assert_eq!(server.header.as_deref(), Some("X-Client-Cert"));
        tls.client_certificates.as_mut().unwrap().ca_file = folder.write("empty.pem", "");
        assert!(
            load(&tls).unwrap_err()[0]
                .message
                .contains("holds no certificate")
        );
        tls.ticket_key_file = Some(folder.write("tickets.key", "12"));
        assert_eq!(load(&tls).unwrap_err().len(), 2);
    }
}

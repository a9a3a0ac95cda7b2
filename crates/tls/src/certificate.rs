//! Certificates and private keys from files, and what is wrong with them.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use evenkeel_config::{CertificateFiles, FileName, Problem, kept, one_line};
use rustls::SignatureAlgorithm;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::Serialize;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::x509::X509Name;

use crate::crypto_provider;

/// Longest file, in bytes: an authority's list of revoked certificates may be long.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// Reason why a file cannot be used. Each message names the file, and the key of the configuration
/// that names the file.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// The file is a folder, or the like.
    #[error("is not a regular file")]
    NoFile,
    /// The file is too long.
    #[error("is longer than {MAX_FILE} bytes")]
    TooLong,
    /// The file holds a private key, but everybody may access it.
    #[error("holds a private key, and everybody may access it: run chmod o= on it")]
    Open,
    /// The file is damaged.
    #[error("is not a PEM file: {0}")]
    Pem(String),
    /// The file holds nothing of what is needed.
    #[error("holds no {0}")]
    Lacks(&'static str),
    /// The certificate's file has no key, and the configuration names no file for the key.
    #[error(
        "holds no private key: name the key's file, too, as in {{ certificate = {0:?}, key = {1:?} }}, or put the key \
         into the same file"
    )]
    NoKey(PathBuf, PathBuf),
    /// The key has a password.
    #[error("holds a private key with a password: remove it with `openssl pkey`")]
    Password,
    /// A certificate is damaged.
    #[error("certificate {number} in the file is damaged: {why}")]
    Damaged {
        /// Number of the certificate, from 1.
        number: usize,
        /// Message of the parser.
        why: String,
    },
    /// The key cannot be used.
    #[error("the private key cannot be used: {0}")]
    Key(rustls::Error),
    /// The key is the key of another certificate.
    #[error("the private key does not belong to the first certificate of the file")]
    Mismatch,
    /// The chain is not one.
    #[error(
        "certificate {number} in the file is not the certificate of the authority that signed the preceding \
         one"
    )]
    Chain {
        /// Number of the certificate, from 1.
        number: usize,
    },
    /// The certificate has expired.
    #[error("the certificate has expired, on {0}")]
    Expired(String),
    /// The time of an authority's certificate is over.
    #[error("certificate {number} in the file, of the authority {subject}, has expired, on {on}")]
    IntermediateExpired {
        /// Number of the certificate, from 1.
        number: usize,
        /// The authority.
        subject: String,
        /// Date on which that certificate expired.
        on: String,
    },
    /// The certificate is not valid yet.
    #[error("the certificate is not valid before {0}")]
    NotYet(String),
    /// The certificate is for another name.
    #[error("the certificate is not for {name}, but for {}", join_names(.has))]
    Name {
        /// The name.
        name: String,
        /// Names that the certificate has.
        has: Vec<String>,
    },
    /// The certificate has no name, so that no client would ever get it.
    #[error(
        "the certificate has no DNS name (subjectAltName), so that the balancer would show it to no client"
    )]
    NoName,
    /// The content of the file is of no use.
    #[error("{0}")]
    Content(String),
}

fn join_names(names: &[String]) -> String {
    match names {
        [] => "no name at all".into(),
        names => names.join(", "),
    }
}

/// Reads a file that a configuration names, and what `parse` makes of it. If it is broken, its last good content
/// is used ([`kept`]).
///
/// # Errors
///
/// One that names the key in the configuration, the file and the reason.
pub(crate) fn read<T>(
    file: &FileName,
    parse: impl Fn(&[u8]) -> Result<T, CertificateError>,
) -> Result<T, Vec<Problem>> {
    read_by(file, bytes, parse)
}

/// Reads a file as [`read`] does, with `bytes` to read its content.
pub(crate) fn read_by<T>(
    file: &FileName,
    bytes: impl Fn(&Path) -> Result<Vec<u8>, CertificateError>,
    parse: impl Fn(&[u8]) -> Result<T, CertificateError>,
) -> Result<T, Vec<Problem>> {
    kept::load_or_keep(
        |source| read_from(source, file, &bytes, &parse),
        |problems| one_line(problems),
    )
}

fn read_from<T>(
    source: &kept::Source,
    file: &FileName,
    bytes: impl FnOnce(&Path) -> Result<Vec<u8>, CertificateError>,
    parse: impl FnOnce(&[u8]) -> Result<T, CertificateError>,
) -> Result<T, Vec<Problem>> {
    let text = source.read(&file.path, bytes);
    text.and_then(|text| parse(&text))
        .map_err(|error| vec![file_problem(file, &error)])
}

/// `error` as one of the configuration.
pub(crate) fn file_problem(file: &FileName, error: &CertificateError) -> Problem {
    let path = file.path.display();
    file.place.problem(format!("{path}: {error}"))
}

/// Returns the content of a file that is not too long, and no open secret.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>, CertificateError> {
    // A FIFO would block for ever.
    if !std::fs::metadata(path)?.is_file() {
        return Err(CertificateError::NoFile);
    }
    let file = File::open(path)?;
    let is_open = file.metadata()?.permissions().mode() & 0o007 != 0;
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(CertificateError::TooLong);
    }
    let marker = b"PRIVATE KEY-----";
    let has_key = bytes.windows(marker.len()).any(|at| at == marker);
    match is_open && has_key {
        true => Err(CertificateError::Open),
        false => Ok(bytes),
    }
}

/// Checks that a certificate and a private key (PEM) can be read, and belong together.
///
/// # Errors
///
/// The reason why clients cannot be served with them.
pub fn check_pair(certificate: &[u8], key: &[u8]) -> Result<(), CertificateError> {
    let chain = parse_items::<CertificateDer<'static>>(certificate, "certificate")?;
    let key = private_key(key)?;
    Details::from_chain(&chain)?;
    match CertifiedKey::from_der(chain, key, crypto_provider()) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => Err(CertificateError::Mismatch),
        Err(error) => Err(CertificateError::Key(error)),
    }
}

/// Returns all items of a kind in the text of a PEM file.
pub(crate) fn parse_items<T: PemObject>(
    text: &[u8],
    what: &'static str,
) -> Result<Vec<T>, CertificateError> {
    let items: Result<Vec<T>, pem::Error> = T::pem_slice_iter(text).collect();
    let items = items.map_err(|error| CertificateError::Pem(error.to_string()))?;
    match items.is_empty() {
        true => Err(CertificateError::Lacks(what)),
        false => Ok(items),
    }
}

pub(crate) fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let has_password = {
        let marker = b"ENCRYPTED";
        text.windows(marker.len()).any(|at| at == marker)
    };
    match PrivateKeyDer::from_pem_slice(text) {
        Ok(key) => Ok(key),
        Err(_) if has_password => Err(CertificateError::Password),
        Err(pem::Error::NoItemsFound) => Err(CertificateError::Lacks("private key")),
        Err(error) => Err(CertificateError::Pem(error.to_string())),
    }
}

/// File in which the key of the certificate at `path` probably is, by the names that certbot and others give.
fn key_beside(path: &Path) -> PathBuf {
    let plain = path.with_extension("key");
    let certbot = path.with_file_name("privkey.pem");
    match path.file_name().and_then(|name| name.to_str()) {
        _ if plain.is_file() => plain,
        Some("fullchain.pem" | "cert.pem") => certbot,
        _ if certbot.is_file() => certbot,
        _ => plain,
    }
}

/// Facts about a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Details {
    /// The file that it is in.
    pub file: String,
    /// Names that clients get it for.
    pub names: Vec<String>,
    /// Owner of the certificate.
    pub subject: String,
    /// Authority that has signed the certificate.
    pub issuer: String,
    /// Kind of its key: `ECDSA`, `RSA` or `Ed25519`.
    pub key: &'static str,
    /// First second in which the certificate is valid, in seconds since 1970.
    pub not_before: i64,
    /// Last second in which the certificate is valid, in seconds since 1970.
    pub not_after: i64,
    /// Certificate of an authority in the file, if one is valid for a shorter time.
    pub intermediate: Option<Intermediate>,
    /// SHA-256 of it, in hexadecimal digits.
    pub fingerprint: String,
}

/// Certificate of an authority that is valid for a shorter time than the one that it leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Intermediate {
    /// Place in the file, from 1.
    pub number: usize,
    /// Name of the authority.
    pub subject: String,
    /// Last second in which it is valid, in seconds since 1970.
    pub not_after: i64,
}

/// A certificate with its chain and its key.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Certificate and key for handshakes.
    pub key: Arc<CertifiedKey>,
    /// Details that people want to know.
    pub details: Details,
}

/// Seconds since 1970.
pub fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

impl Certificate {
    /// Reads a certificate and its key. If they are broken, or do not fit, the last good ones are used
    /// ([`kept`]). `is_first` is one that clients get that ask for no name.
    ///
    /// `now` is in seconds since 1970. A certificate that is not valid then is used if no good one is known, with
    /// a complaint. `None` uses it without.
    ///
    /// # Errors
    ///
    /// All that is wrong, with the file and the key of the configuration that names it.
    pub fn from_files(
        files: &CertificateFiles,
        now: Option<i64>,
        is_first: bool,
    ) -> Result<Self, Vec<Problem>> {
        let load = |now| {
            kept::load_or_keep(
                |source| Self::read(source, files, now, is_first),
                |problems| one_line(problems),
            )
        };
        let loaded = load(now);
        let Some(now) = now else {
            return loaded;
        };
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(problems) => load(None).map_err(|_| problems)?,
        };
        let complain = |error: &CertificateError, consequence: &str| {
            let what = file_problem(&files.certificate, error);
            kept::complain(&files.certificate.path, format!("{what}: {consequence}"));
        };
        if let Some(error) = loaded.details.invalidity(now) {
            complain(
                &error,
                "the balancer uses the certificate all the same, but peers refuse it; renew the certificate",
            );
        }
        if let Some(error) = loaded.details.intermediate_invalidity(now) {
            let consequence = "peers refuse the whole file, unless they know another way to an authority that they \
                               trust; renew the file, or take that certificate out of it";
            complain(&error, consequence);
        }
        Ok(loaded)
    }

    fn read(
        source: &kept::Source,
        files: &CertificateFiles,
        now: Option<i64>,
        is_first: bool,
    ) -> Result<Self, Vec<Problem>> {
        let key_file = files.key.as_ref().unwrap_or(&files.certificate);
        let chain = read_from(source, &files.certificate, bytes, |text| {
            parse_items::<CertificateDer<'static>>(text, "certificate")
        });
        let key = read_from(source, key_file, bytes, |text| match private_key(text) {
            Err(CertificateError::Lacks(_)) if files.key.is_none() => {
                let path = key_file.path.clone();
                let beside = key_beside(&path);
                Err(CertificateError::NoKey(path, beside))
            }
            found => found,
        });
        let (chain, key) = match (chain, key) {
            (Ok(chain), Ok(key)) => (chain, key),
            (chain, key) => {
                // What is wrong with one file is told once.
                let key = key.err().filter(|_| chain.is_ok() || files.key.is_some());
                return Err(chain.err().into_iter().chain(key).flatten().collect());
            }
        };
        let here = |error: CertificateError| file_problem(&files.certificate, &error);
        let mut errors = Vec::new();
        let details = Details::from_chain(&chain).map_err(|error| vec![here(error)])?;
        let mut details = Details {
            file: files.certificate.path.display().to_string(),
            ..details
        };
        errors.extend(now.and_then(|now| details.invalidity(now)).map(here));
        for name in &files.names {
            let name = name.to_ascii_lowercase();
            if !details.names.iter().any(|has| covers_name(has, &name)) {
                let has = details.names.clone();
                errors.push(here(CertificateError::Name { name, has }));
            }
        }
        if !files.names.is_empty() {
            let names = files.names.iter().map(|name| name.to_ascii_lowercase());
            details.names = names.collect();
        } else if details.names.is_empty() && !is_first {
            errors.push(here(CertificateError::NoName));
        }
        match CertifiedKey::from_der(chain, key, crypto_provider()) {
            Ok(key) if errors.is_empty() => {
                details.key = match key.key.algorithm() {
                    SignatureAlgorithm::ECDSA => "ECDSA",
                    SignatureAlgorithm::RSA => "RSA",
                    SignatureAlgorithm::ED25519 => "Ed25519",
                    _ => "other",
                };
                let key = Arc::new(key);
                return Ok(Certificate { key, details });
            }
            Ok(_) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                errors.push(file_problem(key_file, &CertificateError::Mismatch));
            }
            Err(error) => errors.push(file_problem(key_file, &CertificateError::Key(error))),
        }
        Err(errors)
    }
}

impl Details {
    /// Returns the reason why the certificate is not valid at `now`, in seconds since 1970; `None`
    /// if it is valid.
    fn invalidity(&self, now: i64) -> Option<CertificateError> {
        let text = text_of_time;
        if now > self.not_after {
            Some(CertificateError::Expired(text(self.not_after)))
        } else if now < self.not_before {
            Some(CertificateError::NotYet(text(self.not_before)))
        } else {
            None
        }
    }

    /// Returns the reason why an authority's certificate in the file is not valid at `now`; `None`
    /// if all are valid.
    fn intermediate_invalidity(&self, now: i64) -> Option<CertificateError> {
        let expired = self.intermediate.as_ref().filter(|one| now > one.not_after);
        expired.map(|one| CertificateError::IntermediateExpired {
            number: one.number,
            subject: one.subject.clone(),
            on: text_of_time(one.not_after),
        })
    }

    /// Last second in which peers take it, in seconds since 1970: its own, or an authority's in its file.
    pub fn valid_until(&self) -> i64 {
        let earlier = self.intermediate.as_ref().map(|one| one.not_after);
        earlier.unwrap_or(self.not_after)
    }

    /// Returns the details of the first certificate of a chain; the other certificates are looked
    /// at, too.
    fn from_chain(chain: &[CertificateDer<'_>]) -> Result<Self, CertificateError> {
        let mut parsed = Vec::with_capacity(chain.len());
        for (index, der) in chain.iter().enumerate() {
            let certificate = X509Certificate::from_der(der);
            let (_, certificate) = certificate.map_err(|error| CertificateError::Damaged {
                number: index + 1,
                why: error.to_string(),
            })?;
            parsed.push(certificate);
        }
        for (index, pair) in parsed.windows(2).enumerate() {
            if let [one, next] = pair
                && one.issuer().as_raw() != next.subject().as_raw()
            {
                return Err(CertificateError::Chain { number: index + 2 });
            }
        }
        let (Some(first), Some(der)) = (parsed.first(), chain.first()) else {
            return Err(CertificateError::Lacks("certificate"));
        };
        let is_dns = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        };
        let names = first.subject_alternative_name().ok().flatten();
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let not_after = first.validity().not_after.timestamp();
        let authorities = (1..).zip(&parsed).skip(1);
        // Nobody looks at the times of a root, which is in no need to be there.
        let authorities =
            authorities.filter(|(_, one)| one.issuer().as_raw() != one.subject().as_raw());
        let shortest = authorities.min_by_key(|(_, one)| one.validity().not_after.timestamp());
        let intermediate = shortest.map(|(number, one)| Intermediate {
            number,
            subject: format_name(one.subject()),
            not_after: one.validity().not_after.timestamp(),
        });
        Ok(Details {
            file: String::new(),
            names: names.filter_map(is_dns).collect(),
            subject: format_name(first.subject()),
            issuer: format_name(first.issuer()),
            key: "",
            not_before: first.validity().not_before.timestamp(),
            not_after,
            intermediate: intermediate.filter(|one| one.not_after < not_after),
            fingerprint: fingerprint(der),
        })
    }
}

/// A time in seconds since 1970, as people read it.
fn text_of_time(time: i64) -> String {
    let time = x509_parser::time::ASN1Time::from_timestamp(time);
    time.map_or_else(|_| "?".into(), |time| time.to_string())
}

/// True if a certificate for `has` is one for `name`, both in lower case (RFC 6125, section 6.4).
fn covers_name(has: &str, name: &str) -> bool {
    let wild = has.strip_prefix("*.");
    let below = name.split_once('.').map(|(_, rest)| rest);
    has == name || wild.is_some() && wild == below && !name.starts_with("*.")
}

/// SHA-256 of a certificate in hexadecimal digits.
pub(crate) fn fingerprint(der: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, der);
    let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// A name as RFC 4514 writes it: the most specific part first, and nothing in it that could be
/// taken for another part.
pub(crate) fn format_name(name: &X509Name<'_>) -> String {
    let registry = x509_parser::objects::oid_registry();
    let mut parts: Vec<String> = Vec::new();
    for set in name.iter_rdn() {
        let attributes = set.iter().map(|attribute| {
            let kind = attribute.attr_type();
            let short = x509_parser::objects::oid2abbrev(kind, registry);
            let kind = short.map_or_else(|_| kind.to_id_string(), str::to_owned);
            let value = attribute.as_str().unwrap_or("?");
            format!("{kind}={}", escape(value))
        });
        parts.push(attributes.collect::<Vec<_>>().join("+"));
    }
    parts.reverse();
    parts.join(",")
}

/// The value of an attribute with what has a meaning between values escaped (RFC 4514, section
/// 2.4).
fn escape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for (index, char) in value.chars().enumerate() {
        let is_special = matches!(char, '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=');
        if is_special || index == 0 && matches!(char, ' ' | '#') {
            text.push('\\');
        }
        text.push(char);
    }
    text
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

    use super::*;
    use crate::testing::{Folder, new_authority, new_params, self_signed, sign_certificate};

    fn load(files: &CertificateFiles) -> Result<Certificate, String> {
        let loaded = Certificate::from_files(files, Some(unix_now()), true);
        loaded.map_err(|problems| {
            let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
            texts.join("\n")
        })
    }

    fn error(files: &CertificateFiles) -> String {
        load(files).expect_err("an error")
    }

    #[test]
    fn a_certificate_is_read_with_what_it_says() {
        let folder = Folder::new();
        let made = self_signed(&["www.example.org", "*.Example.com"]);
        let mut files = folder.write_certificate("a.pem", &made);
        let details = load(&files).unwrap().details;
        assert_eq!(details.names, ["www.example.org", "*.example.com"]);
        assert_eq!(details.subject, r"CN=leaf,O=Evenkeel\, tests");
        assert_eq!((details.key, details.fingerprint.len()), ("ECDSA", 64));
        assert!(details.not_before < unix_now() && unix_now() < details.not_after);
        // The key in a file of its own, and names of one's own.
        files.certificate = folder.write("b.pem", &made.pem);
        files.key = Some(folder.write("b.key", &made.key));
        files.names = vec!["A.example.com".into()];
        assert_eq!(load(&files).unwrap().details.names, ["a.example.com"]);
    }

    #[test]
    fn what_is_wrong_with_files_is_told() {
        let folder = Folder::new();
        let made = self_signed(&["a.example"]);
        let good = folder.write_certificate("good.pem", &made);
        let with = |name: &str, text: &str| CertificateFiles {
            certificate: folder.write(name, text),
            ..good.clone()
        };
        let missing = CertificateFiles {
            certificate: folder.0.join("none.pem").into(),
            ..good.clone()
        };
        assert!(error(&missing).contains("none.pem: cannot be read"));
        let lines = error(&with("no-key.pem", &made.pem));
        let remedy = format!(
            "no-key.pem: holds no private key: name the key's file, too, as in {{ certificate = {:?}, key = {:?} }}, or \
             put the key into the same file",
            folder.0.join("no-key.pem"),
            folder.0.join("no-key.key"),
        );
        assert!(lines.ends_with(&remedy), "{lines}");
        let lines = error(&with("fullchain.pem", &made.pem));
        assert!(lines.contains("privkey.pem\" }"), "{lines}");
        let keyless = CertificateFiles {
            key: Some(folder.write("keyless.pem", &made.pem)),
            ..good.clone()
        };
        let lines = error(&keyless);
        assert!(
            lines.ends_with("keyless.pem: holds no private key"),
            "{lines}"
        );
        assert!(error(&with("empty.pem", "")).contains("holds no certificate"));
        assert!(error(&with("cut.pem", &made.pem[..200])).contains("is not a PEM file"));
        let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let damaged = error(&with("damaged.pem", &format!("{text}{}", made.key)));
        assert!(
            damaged.contains("certificate 1 in the file is damaged"),
            "{damaged}"
        );
        let other = self_signed(&["a.example"]);
        let mixed = error(&with("mixed.pem", &format!("{}{}", made.pem, other.key)));
        assert!(mixed.contains("does not belong to the first"), "{mixed}");
        let two = format!("{}{}{}", made.pem, new_authority().pem(), made.key);
        assert!(
            error(&with("chain.pem", &two))
                .contains("certificate 2 in the file is not the certificate of")
        );
        let password = made.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        let password = error(&with("password.pem", &format!("{}{password}", made.pem)));
        assert!(password.contains("with a password"), "{password}");
        let path = &good.certificate.path;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(error(&good).contains("everybody may access it: run chmod o="));
        let folder_itself = CertificateFiles {
            certificate: folder.0.clone().into(),
            ..good
        };
        assert!(error(&folder_itself).contains("is not a regular file"));
    }

    #[test]
    fn times_and_names_that_do_not_fit_are_errors_all_at_once() {
        let folder = Folder::new();
        let root = new_authority();
        let mut old = new_params(&["old.example"]);
        old.not_after = date_time_ymd(2020, 1, 1);
        let mut files = folder.write_certificate("old.pem", &sign_certificate(old, &root));
        files.names = vec!["new.example".into()];
        let text = error(&files);
        assert!(
            text.contains("has expired, on Jan  1 00:00:00 2020"),
            "{text}"
        );
        assert!(
            text.contains("is not for new.example, but for old.example"),
            "{text}"
        );
        files.names.clear();
        assert!(Certificate::from_files(&files, None, true).is_ok());
        let path = files.certificate.path.as_path();
        assert!(kept::complaints([path]).is_empty());
        // It is better than none, and than no start.
        assert!(load(&files).is_ok());
        let [complaint] = &kept::complaints([path])[..] else {
            panic!("no complaint");
        };
        assert!(complaint.contains("has expired, on Jan  1"), "{complaint}");
        let mut young = new_params(&["a.example"]);
        young.not_before = date_time_ymd(2120, 1, 1);
        young.not_after = date_time_ymd(2121, 1, 1);
        let young = folder.write_certificate("young.pem", &sign_certificate(young, &root));
        assert!(load(&young).is_ok());
        let path = young.certificate.path.as_path();
        assert!(kept::complaints([path])[0].contains("is not valid before"));
        let nameless =
            folder.write_certificate("nameless.pem", &sign_certificate(new_params(&[]), &root));
        assert!(load(&nameless).is_ok(), "the first one needs no name");
        let second = Certificate::from_files(&nameless, None, false);
        assert!(second.unwrap_err()[0].to_string().contains("no DNS name"));
    }

    #[test]
    fn f11_an_intermediate_certificate_that_has_expired_is_told() {
        let folder = Folder::new();
        let root = new_authority();
        let mut of_authority = new_params(&[]);
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        of_authority
            .distinguished_name
            .push(DnType::CommonName, "between");
        of_authority.not_after = date_time_ymd(2020, 1, 1);
        let key = KeyPair::generate().unwrap();
        let between = CertifiedIssuer::signed_by(of_authority, key, &root).unwrap();
        let leaf = sign_certificate(new_params(&["a.example"]), &between);
        let whole = |root: &str| format!("{}{}{root}{}", leaf.pem, between.pem(), leaf.key);
        for (name, root) in [("a.pem", String::new()), ("with-root.pem", root.pem())] {
            let files = CertificateFiles {
                certificate: folder.write(name, whole(&root)),
                ..CertificateFiles::default()
            };
            let details = load(&files).unwrap().details;
            assert!(details.not_after > unix_now());
            assert_eq!(
                details.valid_until(),
                date_time_ymd(2020, 1, 1).unix_timestamp()
            );
            let [complaint] = &kept::complaints([files.certificate.path.as_path()])[..] else {
                panic!("no complaint");
            };
            assert!(
                complaint.contains("certificate 2 in the file, of the authority CN=between")
                    && complaint.contains("has expired, on Jan  1 00:00:00 2020"),
                "{complaint}"
            );
        }
        // One that is valid for longer than what it leads to says nothing.
        let good = folder.write("good.pem", {
            let leaf = sign_certificate(new_params(&["a.example"]), &root);
            format!("{}{}{}", leaf.pem, root.pem(), leaf.key)
        });
        let files = CertificateFiles {
            certificate: good,
            ..CertificateFiles::default()
        };
        assert_eq!(load(&files).unwrap().details.intermediate, None);
        assert!(kept::complaints([files.certificate.path.as_path()]).is_empty());
    }

    #[test]
    fn f1_a_good_pair_is_kept_until_there_is_another_one() {
        let folder = Folder::new();
        let (root, good, next) = (
            new_authority(),
            self_signed(&["a.example"]),
            self_signed(&["a.example"]),
        );
        let files = CertificateFiles {
            certificate: folder.write("a.pem", &good.pem),
            key: Some(folder.write("a.key", &good.key)),
            ..CertificateFiles::default()
        };
        let print = || load(&files).unwrap().details.fingerprint;
        let first = print();
        let mut old = new_params(&["a.example"]);
        old.not_after = date_time_ymd(2020, 1, 1);
        let old = sign_certificate(old, &root);
        // A renewal that is stuck half-way, garbage, and one that has expired.
        folder.write("a.pem", &next.pem);
        assert_eq!(print(), first);
        folder.write("a.pem", "garbage");
        assert_eq!(print(), first);
        folder.write("a.pem", &old.pem);
        folder.write("a.key", &old.key);
        assert_eq!(print(), first, "one that is good is known");
        let path = files.certificate.path.as_path();
        let complaint = kept::complaints([path]).remove(0);
        assert!(
            complaint.contains("has expired") && complaint.contains("stays in use"),
            "{complaint}"
        );
        folder.write("a.pem", &next.pem);
        folder.write("a.key", &next.key);
        assert_ne!(print(), first);
        assert!(kept::complaints([path]).is_empty());
    }

    #[test]
    fn a_wildcard_is_for_names_right_below() {
        assert!(
            covers_name("*.a.b", "x.a.b")
                && covers_name("a.b", "a.b")
                && covers_name("*.a.b", "*.a.b")
        );
        for name in ["a.b", "x.y.a.b", "*.x.b", "xa.b"] {
            assert!(!covers_name("*.a.b", name), "{name}");
        }
        assert!(!covers_name("x.a.b", "*.a.b"));
    }
}

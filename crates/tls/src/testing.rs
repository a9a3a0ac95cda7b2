//! Certificates for tests, and folders for their files.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_config::{CertificateFiles, FileName};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SigningKey,
};

/// A folder of one test, gone with it.
pub(crate) struct Folder(pub PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-tls-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    /// Writes a secret.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> FileName {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.into()
    }

    /// A certificate and its key in one file.
    pub(crate) fn write_certificate(&self, name: &str, made: &Made) -> CertificateFiles {
        let certificate = self.write(name, format!("{}{}", made.pem, made.key));
        CertificateFiles {
            certificate,
            ..CertificateFiles::default()
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A certificate that was made for a test.
pub(crate) struct Made {
    pub pem: String,
    pub key: String,
}

pub(crate) fn new_params(names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "Evenkeel, tests");
    params.distinguished_name.push(DnType::CommonName, "leaf");
    params
}

pub(crate) fn new_authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = new_params(&[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        rcgen::KeyUsagePurpose::KeyCertSign,
        rcgen::KeyUsagePurpose::CrlSign,
    ];
    params.distinguished_name.push(DnType::CommonName, "root");
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

pub(crate) fn sign_certificate(
    params: CertificateParams,
    by: &CertifiedIssuer<'_, impl SigningKey>,
) -> Made {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, by).unwrap();
    Made {
        pem: certificate.pem(),
        key: key.serialize_pem(),
    }
}

pub(crate) fn self_signed(names: &[&str]) -> Made {
    let key = KeyPair::generate().unwrap();
    let certificate = new_params(names).self_signed(&key).unwrap();
    Made {
        pem: certificate.pem(),
        key: key.serialize_pem(),
    }
}

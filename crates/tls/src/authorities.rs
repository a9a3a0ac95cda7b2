//! Files with certificates of authorities, and with what these have revoked.

use evenkeel_config::{FileName, Problem};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};

use crate::certificate::{CertificateError, items, read};

/// The authorities whose certificates are in `file`. `seen` gets all that is in it.
pub(crate) fn roots(
    file: &FileName,
    mut seen: impl FnMut(&[u8]),
) -> Result<RootCertStore, Vec<Problem>> {
    read(file, |text| {
        seen(text);
        let mut roots = RootCertStore::empty();
        let all = items::<CertificateDer<'static>>(text, "certificate")?;
        for (index, der) in all.into_iter().enumerate() {
            roots.add(der).map_err(|error| CertificateError::Damaged {
                number: index + 1,
                why: error.to_string(),
            })?;
        }
        Ok(roots)
    })
}

/// The lists of revoked certificates in `file`, if there is one.
pub(crate) fn revoked(
    file: Option<&FileName>,
    mut seen: impl FnMut(&[u8]),
) -> Result<Vec<CertificateRevocationListDer<'static>>, Vec<Problem>> {
    let Some(file) = file else {
        return Ok(Vec::new());
    };
    read(file, |text| {
        seen(text);
        items(text, "list of revoked certificates")
    })
}

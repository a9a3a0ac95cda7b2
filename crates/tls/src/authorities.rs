//! Files with certificates of authorities, and with what these have revoked.

use evenkeel_config::{FileName, Problem};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use crate::certificate::{CertificateError, parse_items, read};

/// The authorities whose certificates are in `file`. `seen` gets all that is in it.
pub(crate) fn read_roots(
    file: &FileName,
    mut seen: impl FnMut(&[u8]),
) -> Result<RootCertStore, Vec<Problem>> {
    let (roots, text) = read(file, |text| {
        let mut roots = RootCertStore::empty();
        let all = parse_items::<CertificateDer<'static>>(text, "certificate")?;
        for (index, der) in all.into_iter().enumerate() {
            roots.add(der).map_err(|error| CertificateError::Damaged {
                number: index + 1,
                why: error.to_string(),
            })?;
        }
        Ok((roots, text.to_vec()))
    })?;
    seen(&text);
    Ok(roots)
}

/// The lists of revoked certificates in `file`, if there is one. `seen` gets all that is in it.
pub(crate) fn read_revocations(
    file: Option<&FileName>,
    mut seen: impl FnMut(&[u8]),
) -> Result<Vec<CertificateRevocationListDer<'static>>, Vec<Problem>> {
    let Some(file) = file else {
        return Ok(Vec::new());
    };
    let (lists, text) = read(file, |text| {
        let what = "list of revoked certificates";
        let lists: Vec<CertificateRevocationListDer<'static>> = parse_items(text, what)?;
        for (index, der) in lists.iter().enumerate() {
            CertificateRevocationList::from_der(der).map_err(|error| {
                CertificateError::Content(format!(
                    "{what} {} in the file is damaged: {error}",
                    index + 1
                ))
            })?;
        }
        Ok((lists, text.to_vec()))
    })?;
    seen(&text);
    Ok(lists)
}

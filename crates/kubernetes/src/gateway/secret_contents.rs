//! Contents of secrets and ConfigMaps: their names, and those of them that are kept in memory.

use serde_json::{Map, Value};

/// Name of the content with users and hashes of their passwords.
pub(crate) const USERS: &str = "auth";

/// Name of the content with certificates of authorities.
pub(crate) const AUTHORITIES: &str = "ca.crt";

/// Name of the content with lists of revoked certificates.
pub(crate) const REVOCATIONS: &str = "ca.crl";

/// Names of the contents of a secret with a certificate that the controller uses.
const CERTIFICATE_FILES: [&str; 4] = ["tls.crt", "tls.key", AUTHORITIES, REVOCATIONS];

/// Takes all contents out of a secret that nobody needs: only users, hashes, which begin with `$`, and authorities stay.
pub(crate) fn leave_passwords(data: &mut Map<String, Value>) {
    for (_, value) in data
        .iter_mut()
        .filter(|(name, _)| *name != USERS && *name != AUTHORITIES)
    {
        // Of a `$` all bits but two are in the first character of base64.
        if !value.as_str().is_some_and(|text| text.starts_with('J')) {
            *value = "".into();
        }
    }
}

/// Takes all contents out of a secret with a certificate that nobody needs.
pub(crate) fn leave_certificates(data: &mut Map<String, Value>) {
    data.retain(|name, _| CERTIFICATE_FILES.contains(&name.as_str()));
}

/// Takes all contents out of a ConfigMap but certificates of authorities. Others may be long.
pub(crate) fn leave_authorities(data: &mut Map<String, Value>) {
    data.retain(|name, _| name == AUTHORITIES);
}

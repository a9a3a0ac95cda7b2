//! Certificates in Secrets and ConfigMaps, and their contents for the configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_tls::client::{Client, ClientPem};

use super::conditions::Refusal;
use super::objects::{ObjectName, Objects};
use super::secret_contents::AUTHORITIES;
use super::text::hash_of;

/// Folder of the contents of secrets. There is no such folder on disk: the contents stay in memory.
pub(crate) const SECRETS: &str = "/proc/evenkeel/kubernetes";

/// Contents of secrets by the paths under which the configuration names them.
pub(crate) type Files = BTreeMap<PathBuf, Arc<[u8]>>;

/// Reads the certificate and the key of a secret. Returns the paths under which the configuration names them.
///
/// # Errors
///
/// The reason why the secret cannot be used.
pub(crate) fn load_certificate(
    name: &ObjectName,
    objects: &Objects,
    files: &mut Files,
) -> Result<(PathBuf, PathBuf), Refusal> {
    let invalid = |message| ("InvalidCertificateRef", message);
    let missing = || {
        invalid(format!(
            "there is no Secret {name} of type kubernetes.io/tls; create it"
        ))
    };
    let secret = objects.secrets.get(name).ok_or_else(missing)?;
    let content = |key: &str| {
        let encoded = secret.data.get(key).ok_or_else(|| {
            invalid(format!(
                "Secret {name} has no {key}; a Secret of type kubernetes.io/tls needs one"
            ))
        })?;
        let decoded = STANDARD.decode(encoded.trim());
        decoded.map_err(|error| invalid(format!("{key} of Secret {name} is not base64: {error}")))
    };
    let (certificate, key) = (content("tls.crt")?, content("tls.key")?);
    if let Err(error) = evenkeel_tls::certificate::check_pair(&certificate, &key) {
        let message = format!("Secret {name} cannot be used: {error}; renew the certificate");
        return Err(invalid(message));
    }
    let version = &secret.metadata.resource_version;
    let path = |what: &str| PathBuf::from(format!("{SECRETS}/{name}/{version}/{what}"));
    let pair = (path("tls.crt"), path("tls.key"));
    files.insert(pair.0.clone(), certificate.into());
    files.insert(pair.1.clone(), key.into());
    Ok(pair)
}

/// Reads the certificates of authorities in a ConfigMap.
///
/// # Errors
///
/// The reason why the certificates cannot be used.
pub(crate) fn read_authorities<'o>(
    name: &ObjectName,
    objects: &'o Objects,
) -> Result<&'o str, String> {
    let missing = || format!("there is no ConfigMap {name}; create it");
    let map = objects.config_maps.get(name).ok_or_else(missing)?;
    let Some(text) = map.data.get(AUTHORITIES) else {
        return Err(format!(
            "ConfigMap {name} has no ca.crt; write the certificates of authorities there (PEM)"
        ));
    };
    match check_authorities(Some(text.as_bytes())) {
        Ok(()) => Ok(text),
        Err(error) => Err(format!(
            "ca.crt of ConfigMap {name} cannot be used: {error}; write certificates of authorities there (PEM)"
        )),
    }
}

/// Checks that certificates of authorities can be used; without a text those that the system trusts.
pub(crate) fn check_authorities(text: Option<&[u8]>) -> Result<(), String> {
    let pem = ClientPem {
        authorities: text,
        certificate: None,
        server_name: None,
        verify: true,
    };
    Client::from_pem(&pem).map(drop)
}

/// Adds certificates of authorities that `user`, an object of the kind `kind`, trusts. Returns their path.
pub(crate) fn add_authorities(
    kind: &str,
    user: &ObjectName,
    text: Arc<[u8]>,
    files: &mut Files,
) -> PathBuf {
    // Other contents have another path, so that they are read.
    let hash = hash_of(&text);
    let path = PathBuf::from(format!("{SECRETS}/{kind}/{user}/{hash:016x}/ca.crt"));
    files.insert(path.clone(), text);
    path
}

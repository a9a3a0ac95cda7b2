//! Passwords of Ingresses: users and hashes in secrets, as files in memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_manager::auth::Users;

use super::super::certificates::{Files, SECRETS};
use super::super::ingress_spec::AUTH_SECRET;
use super::super::objects::{Ingress, Objects, Secret};
use super::super::secret_contents::USERS;
use super::annotations::read_annotations;
use super::values::PasswordSecret;

/// Most complaints about a secret.
const MAX_PROBLEMS: usize = 3;

/// Files of users by their secrets, or the reasons why secrets cannot be used.
pub(crate) type PasswordFiles = BTreeMap<PasswordSecret, Result<PathBuf, String>>;

/// Returns the text of a file of users.
///
/// # Errors
///
/// The reason why the secret has no such text.
fn read_users(secret: &Secret, is_map: bool) -> Result<String, String> {
    let decode = |key: &str, encoded: &str| {
        let decoded = STANDARD.decode(encoded.trim());
        let decoded = decoded.map_err(|error| format!("{key} is not base64: {error}"))?;
        String::from_utf8(decoded).map_err(|_| format!("{key} is not UTF-8"))
    };
    if !is_map {
        let encoded = secret.data.get(USERS).ok_or_else(|| {
            format!("there is no {USERS}; write lines USER:HASH there, as `htpasswd -B` does")
        })?;
        return decode(USERS, encoded);
    }
    let mut text = String::new();
    for (user, encoded) in &secret.data {
        let hash = decode(user, encoded)?;
        text.push_str(&format!("{user}:{}\n", hash.trim()));
    }
    Ok(text)
}

/// Reads the users of a secret. Returns the path under which the configuration names them.
///
/// # Errors
///
/// The reason why the secret cannot be used.
fn load_users(
    of: &PasswordSecret,
    objects: &Objects,
    files: &mut Files,
) -> Result<PathBuf, String> {
    let name = &of.name;
    let secret = objects.opaque_secrets.get(name);
    let secret =
        secret.ok_or_else(|| format!("there is no Secret {name} of type Opaque; create it"))?;
    let told = |problem: String| format!("Secret {name} cannot be used: {problem}");
    let text = read_users(secret, of.is_map).map_err(told)?;
    Users::parse(text.clone()).map_err(|problems| {
        let problems = problems.iter().take(MAX_PROBLEMS);
        let problems: Vec<String> = problems
            .map(|(line, error)| format!("line {line}: {error}"))
            .collect();
        told(problems.join("; "))
    })?;
    let version = &secret.metadata.resource_version;
    let kind = if of.is_map { "auth-map" } else { "auth-file" };
    let path = PathBuf::from(format!("{SECRETS}/{name}/{version}/{kind}"));
    files.insert(path.clone(), text.into_bytes().into());
    Ok(path)
}

/// Reads the users of all Ingresses.
pub(crate) fn load_passwords<'o>(
    ingresses: impl Iterator<Item = &'o Ingress>,
    objects: &Objects,
    files: &mut Files,
) -> PasswordFiles {
    let mut found = PasswordFiles::new();
    for ingress in ingresses {
        let metadata = &ingress.metadata;
        if !metadata.annotations.contains_key(AUTH_SECRET) {
            continue;
        }
        let Some(passwords) = read_annotations(&metadata.annotations).passwords else {
            continue;
        };
        let secret = passwords.find_secret(&metadata.namespace);
        if let Entry::Vacant(place) = found.entry(secret) {
            let loaded = load_users(place.key(), objects, files);
            place.insert(loaded);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::objects::{Kind, ObjectName};
    use super::*;

    /// The password `secret`, as `htpasswd -nbB -C 4` hashes it.
    const HASH: &str = "$2y$04$eOnKaXwwoXrWN2nnApD3l.ljv56/.n/6aNhVUC3NuZgmfJiewvCIy";

    fn load(data: &[(&str, &str)], is_map: bool) -> Result<String, String> {
        let data: serde_json::Map<_, _> = { data.iter() }
            .map(|(key, value)| ((*key).to_owned(), STANDARD.encode(value).into()))
            .collect();
        let mut objects = Objects::default();
        let metadata = json!({ "namespace": "shop", "name": "users", "resourceVersion": "7" });
        let secret = json!({ "metadata": metadata, "data": data });
        objects.put(Kind::OpaqueSecret, secret).unwrap();
        let name = ObjectName::new("shop", "users");
        let (of, mut files) = (PasswordSecret { name, is_map }, Files::new());
        let path = load_users(&of, &objects, &mut files)?;
        assert!(path.to_str().unwrap().contains("/shop/users/7/auth-"));
        Ok(String::from_utf8(files[&path].to_vec()).unwrap())
    }

    #[test]
    fn users_are_lines_of_a_content_or_contents_each() {
        let line = format!("anna:{HASH}\n");
        assert_eq!(load(&[("auth", &line)], false), Ok(line.clone()));
        assert_eq!(load(&[("anna", HASH)], true), Ok(line.clone()));
        for (data, is_map, told) in [
            (&[("other", &*line)][..], false, "there is no auth"),
            (
                &[("auth", "anna")],
                false,
                "line 1: the line is not USER:HASH",
            ),
            (&[("auth", "anna:$apr1$a$b")], false, "MD5"),
            // A user whose hash is of no known kind is never left out of the users.
            (&[("anna", HASH), ("bert", "{SHA}x")], true, "line 2"),
            (&[], true, "line 1"),
        ] {
            let message = load(data, is_map).unwrap_err();
            assert!(message.contains(told), "{message}");
            assert!(message.contains("Secret shop/users"), "{message}");
        }
    }
}

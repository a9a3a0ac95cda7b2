//! The folder: the account, and a file for each name with its certificate and key.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use evenkeel_config::{CertificateFiles, FileName};
use evenkeel_tls::certificate::Certificate;
use instant_acme::AccountCredentials;

use crate::plan::{Plan, Validity};

/// File of the account.
const ACCOUNT: &str = "account.json";

/// File with the names that have failed, and when they are tried next.
const FAILURES: &str = "failures.json";

/// A folder, used by one process at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// Opens a folder, or makes it, and finds out whether files can be written.
    ///
    /// # Errors
    ///
    /// They cannot.
    pub fn open(folder: &Path) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let probe = folder.join(format!(".probe.{}", std::process::id()));
        create_fresh(&probe)?;
        fs::remove_file(probe)?;
        let folder = folder.to_owned();
        Ok(Store { folder })
    }

    /// Returns the account at `directory`; `None` if there is none, or only one at another directory.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn account(&self, directory: &str) -> io::Result<Option<AccountCredentials>> {
        let text = match fs::read(self.folder.join(ACCOUNT)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let value: serde_json::Value = serde_json::from_slice(&text)?;
        if value.get("directory").and_then(|known| known.as_str()) != Some(directory) {
            return Ok(None);
        }
        Ok(Some(serde_json::from_value(value)?))
    }

    /// Keeps the account.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep_account(&self, account: &AccountCredentials) -> io::Result<()> {
        self.write(ACCOUNT, &serde_json::to_vec(account)?)
    }

    /// Forgets the account: the authority does not know it any more.
    pub fn forget_account(&self) {
        let _ = fs::remove_file(self.folder.join(ACCOUNT));
    }

    /// Returns the plans of names whose last try has failed. A file that cannot be read is as good as none.
    pub fn failures(&self) -> BTreeMap<String, Plan> {
        let text = fs::read(self.folder.join(FAILURES)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Keeps the plans of names whose last try has failed, so that a restart tries no sooner.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep_failures(&self, plans: &BTreeMap<&str, Plan>) -> io::Result<()> {
        if !plans.is_empty() {
            return self.write(FAILURES, &serde_json::to_vec(plans)?);
        }
        match fs::remove_file(self.folder.join(FAILURES)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns from when to when the certificate for `name` is valid; `None` if there is none that can be
    /// used.
    pub fn validity(&self, name: &str) -> Option<Validity> {
        let files = CertificateFiles {
            certificate: FileName::from(self.folder.join(format!("{name}.pem"))),
            ..CertificateFiles::default()
        };
        let details = Certificate::from_files(&files, None, false).ok()?.details;
        Some(Validity {
            from: details.not_before,
            until: details.not_after,
        })
    }

    /// Keeps the certificate for `name`, with its key.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep_certificate(&self, name: &str, chain: &str, key: &str) -> io::Result<()> {
        let text = format!("{}\n{key}", chain.trim_end());
        self.write(&format!("{name}.pem"), text.as_bytes())
    }

    /// Writes a file. A reader of the file finds the old text or the new one, and only the file's owner reads
    /// it.
    fn write(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let fresh = self.folder.join(format!(".{name}.fresh"));
        let mut file = create_fresh(&fresh)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(fresh, self.folder.join(name))
    }
}

/// Makes a file that only its owner reads. A file of a process that was killed, or somebody's link, that
/// stands there is removed, and not followed.
fn create_fresh(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn n20_a_link_in_the_folder_is_not_followed() {
        let folder = std::env::temp_dir().join(format!("evenkeel-links-{}", std::process::id()));
        let store = Store::open(&folder).unwrap();
        let other = folder.join("other");
        fs::write(&other, "of somebody").unwrap();
        let link = |name: String| std::os::unix::fs::symlink(&other, folder.join(name)).unwrap();
        link(".a.example.pem.fresh".into());
        link(format!(".probe.{}", std::process::id()));
        store.keep_certificate("a.example", "chain", "key").unwrap();
        Store::open(&folder).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "of somebody");
        // One that a killed process has left with other rights is not used.
        let left = folder.join(".a.example.pem.fresh");
        fs::write(&left, "half").unwrap();
        fs::set_permissions(&left, Permissions::from_mode(0o644)).unwrap();
        store.keep_certificate("a.example", "chain", "key").unwrap();
        let kept = fs::metadata(folder.join("a.example.pem")).unwrap();
        assert_eq!(kept.permissions().mode() & 0o777, 0o600);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn files_are_secret_and_whole() {
        let folder = std::env::temp_dir().join(format!("evenkeel-acme-{}", std::process::id()));
        let store = Store::open(&folder.join("a/b")).unwrap();
        let path = folder.join("a/b");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        store
            .keep_certificate("a.example", "chain\n\n", "key")
            .unwrap();
        let file = path.join("a.example.pem");
        assert_eq!(fs::read_to_string(&file).unwrap(), "chain\nkey");
        assert_eq!(mode(&file), 0o600);
        assert_eq!(store.validity("a.example"), None, "no certificate");
        assert_eq!(
            fs::read_dir(&path).unwrap().count(),
            1,
            "nothing is left over"
        );
        assert!(store.account("https://a.example/").unwrap().is_none());
        let other = r#"{"directory":"https://b.example/"}"#;
        fs::write(path.join(ACCOUNT), other).unwrap();
        assert!(store.account("https://a.example/").unwrap().is_none());
        fs::write(path.join(ACCOUNT), "{").unwrap();
        assert!(store.account("https://a.example/").is_err());
        store.forget_account();
        assert!(store.account("https://a.example/").unwrap().is_none());
        let plan = Plan {
            next: 17,
            failures: 3,
        };
        let plans = BTreeMap::from([("a.example", plan)]);
        store.keep_failures(&plans).unwrap();
        assert_eq!(store.failures()["a.example"], plan);
        fs::write(path.join(FAILURES), "{").unwrap();
        assert!(store.failures().is_empty());
        store.keep_failures(&BTreeMap::new()).unwrap();
        store.keep_failures(&BTreeMap::new()).unwrap();
        assert!(!path.join(FAILURES).exists());
        fs::write(folder.join("file"), "").unwrap();
        assert!(Store::open(&folder.join("file")).is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}

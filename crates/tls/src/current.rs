//! A client that follows its files.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use evenkeel_config::{ClientTls, Problem};

use crate::client::Client;

/// Settings for handshakes as a client, which are read again when their files change. The owner
/// asks for the client now and then.
#[derive(Debug)]
pub struct Current {
    tls: ClientTls,
    /// The files as they were, and what was read.
    known: Option<(Vec<Stamp>, Arc<Client>)>,
}

/// Stamp of a file, which changes with the file: device, inode, length, and the time of the last
/// write, in nanoseconds. `None` if the file is not there.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

impl Current {
    /// Nothing is read yet.
    pub fn new(tls: ClientTls) -> Self {
        Current { tls, known: None }
    }

    /// Returns the client that the files describe. If the files are broken, returns the client of
    /// before, with a warning.
    ///
    /// # Errors
    ///
    /// All that is wrong, if the files were never good.
    pub fn reload_client(&mut self) -> Result<Arc<Client>, Vec<Problem>> {
        let stamps: Vec<Stamp> = self.tls.files().map(|path| stamp(path)).collect();
        if let Some((known, client)) = &self.known
            && *known == stamps
        {
            return Ok(Arc::clone(client));
        }
        let loaded = Client::from_config(&self.tls).map(Arc::new);
        let client = match (loaded, &self.known) {
            // Sessions go on.
            (Ok(loaded), Some((_, old))) if old.is_like(&loaded) => Arc::clone(old),
            (Ok(loaded), _) => loaded,
            (Err(problems), Some((_, old))) => {
                for problem in &problems {
                    tracing::warn!("{problem}; the old content of the files stays in use");
                }
                Arc::clone(old)
            }
            (Err(problems), None) => return Err(problems),
        };
        self.known = Some((stamps, Arc::clone(&client)));
        Ok(client)
    }
}

fn stamp(path: &std::path::Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    let written = (file.mtime(), file.mtime_nsec());
    Some((file.dev(), file.ino(), file.len(), written.0, written.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Folder, new_authority};

    #[test]
    fn files_are_read_again_when_they_change() {
        let folder = Folder::new();
        let tls = ClientTls {
            ca_file: Some(folder.write("ca.pem", "broken")),
            ..ClientTls::default()
        };
        let mut current = Current::new(tls);
        let error = current.reload_client().unwrap_err().remove(0);
        assert!(error.message.contains("ca.pem"), "{error}");
        let authorities = [new_authority().pem(), new_authority().pem()];
        folder.write("ca.pem", &authorities[0]);
        let first = current.reload_client().unwrap();
        assert_eq!(current.reload_client().unwrap().id, first.id);
        folder.write("ca.pem", "not even nearly a certificate");
        assert_eq!(
            current.reload_client().unwrap().id,
            first.id,
            "the old one stays"
        );
        folder.write("ca.pem", authorities.concat());
        assert_ne!(current.reload_client().unwrap().id, first.id);
    }
}

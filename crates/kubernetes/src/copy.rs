//! Format of the last good copy: members, gateways and the zone of a balancer, in a file.
//!
//! The file has a line with the version of the format, a line of JSON, and a line with a checksum of both.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evenkeel_config::kept::MemoryFiles;
use evenkeel_config::read_secret;
use evenkeel_manager::lists::found::FoundMember;
use evenkeel_net::replacement::Replacement;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// First words of the file, before the version.
const HEAD: &str = "evenkeel kubernetes copy ";

/// Version of the format.
const FORMAT: u32 = 1;

/// First word of the last line, before the checksum.
const CHECKSUM: &str = "sha256 ";

/// Longest file, in bytes.
const MAX_COPY: usize = 64 << 20;

/// Name of the file of a private key.
const KEY: &str = "tls.key";

/// Content of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Copy<'a> {
    /// Time at which the copy was made, in seconds since 1970.
    pub at: i64,
    /// Address of the API server.
    pub server: Cow<'a, str>,
    /// Checksum of the authorities of the API server's certificate; `None` if the system's authorities were trusted.
    #[serde(default)]
    pub authorities: Option<Cow<'a, str>>,
    /// Zone of the balancer's node, if the zone was found.
    pub zone: Option<Cow<'a, str>>,
    /// Members by the names of their lists.
    pub members: BTreeMap<Cow<'a, str>, Cow<'a, [FoundMember]>>,
    /// Times of lists whose members came from an earlier copy.
    #[serde(default)]
    pub earlier: BTreeMap<Cow<'a, str>, i64>,
    /// Gateways, as the controller had them served; `None` without a controller.
    pub gateways: Option<GatewaysCopy<'a>>,
}

/// Rules and groups of the controller of the Gateway API.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewaysCopy<'a> {
    /// Time of the earlier copy from which the text came; `None` if the API server had told of it.
    #[serde(default)]
    pub earlier: Option<i64>,
    /// Settings of the controller on which the text depends.
    pub settings: Cow<'a, str>,
    /// Text of the configuration.
    pub text: String,
    /// Contents of the files that the text names, in base64.
    files: BTreeMap<String, String>,
}

/// Shows no secret.
impl fmt::Debug for GatewaysCopy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<_> = self.files.keys().collect();
        f.debug_struct("GatewaysCopy")
            .field("settings", &self.settings)
            .field("files", &files)
            .finish_non_exhaustive()
    }
}

/// Copy that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The file cannot be read.
    #[error("{0}")]
    Read(String),
    /// The file is something else.
    #[error("the file is no copy of a cluster")]
    NoCopy,
    /// The format is newer than this program.
    #[error("a later version of Evenkeel has written the copy (format {0})")]
    Later(u32),
    /// The file was cut, or changed by somebody else.
    #[error("the file is damaged: its checksum is wrong")]
    Damaged,
    /// The content is not what the format demands.
    #[error("the content cannot be read: {0}")]
    Content(String),
    /// The copy was made of another cluster.
    #[error("the copy is of the API server at {0}")]
    OtherServer(String),
}

/// Returns the checksum of a text.
pub(crate) fn checksum_of(text: &[u8]) -> String {
    let digest = Sha256::digest(text);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl<'a> GatewaysCopy<'a> {
    /// Makes a copy of a text and its files. Without `with_keys`, files with private keys are left out.
    pub fn new(settings: &'a str, text: String, files: &MemoryFiles, with_keys: bool) -> Self {
        let is_key = |path: &Path| path.ends_with(KEY);
        let files = files.iter().filter(|(path, _)| with_keys || !is_key(path));
        let files =
            files.map(|(path, content)| (path.display().to_string(), STANDARD.encode(content)));
        GatewaysCopy {
            earlier: None,
            settings: Cow::Borrowed(settings),
            text,
            files: files.collect(),
        }
    }

    /// Returns the contents of the files that the text names. A file that was left out is missing.
    pub fn read_files(&self) -> MemoryFiles {
        let files = self.files.iter();
        let files = files.filter_map(|(path, content)| {
            Some((
                PathBuf::from(path),
                Arc::from(STANDARD.decode(content).ok()?),
            ))
        });
        files.collect()
    }
}

impl Copy<'_> {
    /// Returns the time at which the API server told of the members of a list.
    pub(crate) fn time_of_list(&self, list: &str) -> i64 {
        self.earlier.get(list).copied().unwrap_or(self.at)
    }

    /// Returns the time at which the API server told of the gateways.
    pub(crate) fn time_of_gateways(&self) -> i64 {
        let earlier = self.gateways.as_ref().and_then(|of| of.earlier);
        earlier.unwrap_or(self.at)
    }

    /// Reads the copy in a file; `None` if there is no file.
    ///
    /// # Errors
    ///
    /// The file is no copy that can be used, or a copy of another API server.
    pub(crate) fn load(path: &Path, server: &str) -> Result<Option<Copy<'static>>, CopyError> {
        if !path
            .try_exists()
            .map_err(|error| CopyError::Read(error.to_string()))?
        {
            return Ok(None);
        }
        let limit = u64::try_from(MAX_COPY).unwrap_or(u64::MAX);
        let copy = Copy::parse(&read_secret(path, limit).map_err(CopyError::Read)?)?;
        match copy.server == server {
            true => Ok(Some(copy)),
            false => Err(CopyError::OtherServer(copy.server.into_owned())),
        }
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    ///
    /// The text is no copy, is damaged, or has a later format.
    pub fn parse(text: &str) -> Result<Copy<'static>, CopyError> {
        let rest = text.strip_prefix(HEAD).ok_or(CopyError::NoCopy)?;
        let (format, _) = rest.split_once('\n').ok_or(CopyError::Damaged)?;
        let format: u32 = format.parse().map_err(|_| CopyError::NoCopy)?;
        if format > FORMAT {
            return Err(CopyError::Later(format));
        }
        let lines = text.strip_suffix('\n').ok_or(CopyError::Damaged)?;
        let (content, last) = lines.rsplit_once('\n').ok_or(CopyError::Damaged)?;
        let checksum = last.strip_prefix(CHECKSUM).ok_or(CopyError::Damaged)?;
        if checksum != checksum_of(content.as_bytes()) {
            return Err(CopyError::Damaged);
        }
        let (_, json) = content.split_once('\n').ok_or(CopyError::Damaged)?;
        serde_json::from_str(json).map_err(|error| CopyError::Content(error.to_string()))
    }

    /// Writes the text of a file.
    ///
    /// # Errors
    ///
    /// The text would be longer than a copy may be.
    pub fn write_text(&self) -> io::Result<String> {
        let json = serde_json::to_string(self)?;
        let mut text = format!("{HEAD}{FORMAT}\n{json}");
        let checksum = checksum_of(text.as_bytes());
        text.extend(["\n", CHECKSUM, &checksum, "\n"]);
        match text.len() <= MAX_COPY {
            true => Ok(text),
            false => Err(io::Error::other(format!(
                "the copy would have {} bytes, and at most {MAX_COPY} are allowed",
                text.len()
            ))),
        }
    }

    /// Writes the file in one step. Only the owner may read the file.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        // The new file gets the mode of the old one.
        if fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0) {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        }
        Replacement::write_or_create(path, &self.write_text()?)?.commit()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn files() -> MemoryFiles {
        let key = b"-----BEGIN EC PRIVATE KEY-----\nsecret\n".as_slice();
        [
            ("/proc/evenkeel/a/tls.crt", b"certificate".as_slice()),
            ("/proc/evenkeel/a/tls.key", key),
        ]
        .map(|(path, content)| (PathBuf::from(path), Arc::from(content)))
        .into()
    }

    fn copy() -> Copy<'static> {
        let member = FoundMember {
            address: "10.0.0.1:80".parse().unwrap(),
            zone: Some("a".into()),
            drain: false,
        };
        Copy {
            at: 7,
            server: "10.96.0.1:443".into(),
            authorities: Some("c0ffee".into()),
            zone: Some("a".into()),
            members: BTreeMap::from([("shop/web:80".into(), vec![member].into())]),
            earlier: BTreeMap::from([("shop/web:80".into(), 5)]),
            gateways: Some(GatewaysCopy::new(
                "s",
                "# text\n".to_owned(),
                &files(),
                true,
            )),
        }
    }

    #[test]
    fn a_copy_is_read_as_it_was_written_and_by_its_owner_only() {
        let folder =
            std::env::temp_dir().join(format!("evenkeel-cluster-copy-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, server) = (folder.join("kubernetes.copy"), "10.96.0.1:443");
        assert_eq!(Copy::load(&path, server), Ok(None));
        let copy = copy();
        for _ in 0..2 {
            copy.save(&path).unwrap();
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert_eq!(Copy::load(&path, server), Ok(Some(copy.clone())));
        assert_eq!(copy.gateways.as_ref().unwrap().read_files(), files());
        assert_eq!(
            Copy::load(&path, "10.96.0.2:443"),
            Err(CopyError::OtherServer(server.into()))
        );
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Copy::load(&path, server).unwrap_err().to_string();
        assert!(error.contains("chmod"), "{error}");
        copy.save(&path).unwrap();
        assert!(Copy::load(&path, server).is_ok());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_copy_without_keys_has_certificates_only() {
        let copy = GatewaysCopy::new("s", String::new(), &files(), false);
        let files = copy.read_files();
        assert_eq!(
            files.keys().collect::<Vec<_>>(),
            [Path::new("/proc/evenkeel/a/tls.crt")]
        );
        let text = Copy {
            gateways: Some(copy),
            ..Copy::default()
        };
        let secret = STANDARD.encode("secret");
        assert!(!text.write_text().unwrap().contains(&secret[..4]));
    }

    #[test]
    fn a_text_that_is_cut_changed_foreign_or_newer_is_no_copy() {
        let text = copy().write_text().unwrap();
        assert_eq!(Copy::parse(&text), Ok(copy()));
        for cut in 0..text.len() {
            assert!(Copy::parse(&text[..cut]).is_err(), "{cut}");
        }
        let changed = text.replace("10.0.0.1:80", "10.0.0.2:80");
        assert_eq!(Copy::parse(&changed), Err(CopyError::Damaged));
        let newer = text.replacen("copy 1\n", "copy 2\n", 1);
        assert_eq!(Copy::parse(&newer), Err(CopyError::Later(2)));
        for foreign in ["", "{}", "evenkeel", "evenkeel kubernetes copy x\n"] {
            assert_eq!(Copy::parse(foreign), Err(CopyError::NoCopy), "{foreign}");
        }
        let other = format!("{HEAD}{FORMAT}\n{{\"at\":\"x\"}}");
        let other = format!("{other}\n{CHECKSUM}{}\n", checksum_of(other.as_bytes()));
        assert!(matches!(Copy::parse(&other), Err(CopyError::Content(_))));
    }

    #[test]
    fn the_seed_of_the_fuzz_target_is_a_copy() {
        let seed = include_str!("../../../fuzz/seeds/kubernetes_watch/copy");
        assert_eq!(Copy::parse(seed).unwrap().members.len(), 1);
    }

    proptest! {
        #[test]
        fn a_byte_that_was_changed_is_noticed(at in any::<prop::sample::Index>(), byte in 32..127_u8) {
            let mut bytes = copy().write_text().unwrap().into_bytes();
            let at = at.index(bytes.len());
            prop_assume!(bytes[at] != byte);
            bytes[at] = byte;
            prop_assert!(Copy::parse(&String::from_utf8(bytes).unwrap()).is_err());
        }
    }
}

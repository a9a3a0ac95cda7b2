//! `[acme]`: automatic certificates from a certificate authority.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::schema::field::{FileName, Texts, choice_field};
use crate::schema::key::{HOUR, describe_keys, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// Authority for automatic certificates by ACME (RFC 8555), and settings of the orders.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Acme {
        /// Names for which rules want certificates, each once, in order.
        names: Vec<String> = Vec::new(),
    }
    keys ACME {
        /// Your consent to the terms of service of the authority. Must be `true` if a rule wants certificates:
        /// without consent the authority issues nothing.
        agree_to_terms: bool = false; "true",
        /// Folder for the account and the certificates with their keys, one file each. The balancer makes the
        /// folder if needed; a relative path starts at the configuration's folder. Keep the folder over
        /// restarts: authorities limit how many certificates you can get. **Required.**
        folder: PathBuf = PathBuf::new(); r#""/var/lib/evenkeel/acme""#,
        /// URL of the authority's directory. Set another URL if you use another authority, or a test authority.
        directory: String [Text(DIRECTORY)] = "https://acme-v02.api.letsencrypt.org/directory".into(); r#""https://acme-staging-v02.api.letsencrypt.org/directory""#,
        /// E-mail addresses at which the authority may contact you.
        contact: Vec<String> [Text(CONTACT)] = Vec::new(); r#"["ops@example.org"]"#,
        /// Proof to the authority that your names are yours: a file at port 80 (`http-01`, answered by
        /// any HTTP rule), or a handshake at port 443 (`tls-alpn-01`, answered by HTTP rules with `tls`).
        /// Choose `tls-alpn-01` if your port 80 is closed.
        challenge: AcmeChallenge = AcmeChallenge::Http01; r#""tls-alpn-01""#,
        /// Certificate (PEM) of the authority which signed the certificate of the directory. Set this file if
        /// your system does not know the authority, for example with a private authority.
        ca_file: Option<FileName> = None; r#""/etc/evenkeel/pebble.pem""#,
        /// External account binding: key identifier given to you by the authority. Needed for a new account at
        /// some authorities.
        eab_key_id: Option<String> [Text(KEY_ID)] = None; r#""kid-1""#,
        /// File with the key for `eab_key_id`: base64, as the authority gave you the key. Let nobody but the
        /// file's owner and group have access.
        eab_key_file: Option<FileName> = None; r#""/etc/evenkeel/eab.key""#,
        /// Pause after a failure. The pause doubles with each further failure, up to six hours.
        retry_interval: Duration [Time(secs(1), HOUR)] = secs(60); r#""5m""#,
    }
}

/// Proof that a name is yours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// File over HTTP (RFC 8555, section 8.3).
    Http01,
    /// Handshake (RFC 8737).
    TlsAlpn01,
}

choice_field!(AcmeChallenge, "http-01" => AcmeChallenge::Http01, "tls-alpn-01" => AcmeChallenge::TlsAlpn01);

const DIRECTORY: Texts = ("a URL that begins with https://", |text| {
    let rest = text.strip_prefix("https://").unwrap_or_default();
    !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic())
});

const KEY_ID: Texts = ("1 to 256 visible ASCII characters", |text| {
    (1..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
});

const CONTACT: Texts = ("an e-mail address", |text| {
    let parts = text.split_once('@');
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic());
    parts.is_some_and(|(user, host)| is_part(user) && is_part(host) && !host.contains('@'))
});

/// Reads `[acme]` of the file, if it is there.
pub(crate) fn read(top: &mut Table<'_>, folder: &Path, report: &mut Report<'_>) -> Option<Acme> {
    let mut table = top.read_table("acme", report)?;
    let mut acme = Acme::default();
    table.read(ACME, &mut acme, report);
    table.require("folder", report);
    acme.folder = folder.join(&acme.folder);
    let files = acme.ca_file.iter_mut().chain(&mut acme.eab_key_file);
    files.for_each(|file| file.resolve(folder));
    match (&acme.eab_key_id, &acme.eab_key_file) {
        (Some(_), None) => table.require("eab_key_file", report),
        (None, Some(_)) => table.require("eab_key_id", report),
        _ => {}
    }
    table.report_unread(report);
    Some(acme)
}

impl Acme {
    /// The file of the certificate for `name`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder
            .join(format!("{}.pem", name.to_ascii_lowercase()))
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Automatic certificates for your rules: see \
               [tls.md](tls.md#certificates-by-themselves).";
    TableDoc::new("[acme]", doc, [describe_keys(ACME, Acme::default())])
}

#[cfg(test)]
mod tests {
    use crate::parse;

    const RULE: &str = "[rule.x]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n\
                        [rule.x.tls]\nacme = [\"www.example.org\", \"A.example\"]\n";

    #[test]
    fn names_of_rules_have_files() {
        let text = format!("[acme]\nfolder = \"acme\"\nagree_to_terms = true\n{RULE}");
        let config = parse("/etc/evenkeel/evenkeel.toml", &text).unwrap();
        let acme = config.acme.as_ref().unwrap();
        assert_eq!(acme.names, ["a.example", "www.example.org"]);
        let files: Vec<_> = config
            .files()
            .map(|path| path.display().to_string())
            .collect();
        assert_eq!(
            files,
            [
                "/etc/evenkeel/acme/www.example.org.pem",
                "/etc/evenkeel/acme/a.example.pem"
            ]
        );
    }

    #[test]
    fn what_is_wrong() {
        for (text, wanted) in [
            (
                RULE.to_owned(),
                "rule.x.tls: `acme` in `tls` needs a table [acme]",
            ),
            (
                "[admin]\ntls = { acme = \"a.example\" }".to_owned(),
                "admin: `acme` in `tls` needs",
            ),
            (
                format!("[acme]\nfolder = \"f\"\n{RULE}"),
                "and `agree_to_terms = true`",
            ),
            (
                format!("[acme]\nagree_to_terms = true\n{RULE}"),
                "`folder` is missing",
            ),
            (
                format!("[acme]\nfolder = \"f\"\nagree_to_terms = true\ncontact = \"x\"\n{RULE}"),
                "an e-mail address",
            ),
            (
                format!(
                    "[acme]\nfolder = \"f\"\nagree_to_terms = true\neab_key_id = \"k\"\n{RULE}"
                ),
                "`eab_key_file` is missing",
            ),
            (
                format!("[acme]\nfolder = \"f\"\nagree_to_terms = true\n{RULE}")
                    .replace("www", "*"),
                "a host name",
            ),
        ] {
            let errors = parse("f", &text).unwrap_err().to_string();
            assert!(errors.contains(wanted), "{errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
    }

    #[test]
    fn who_cannot_answer_at_port_80_is_warned() {
        let acme = "[acme]\nfolder = \"f\"\nagree_to_terms = true\n";
        let rule = |name: &str, port: u16, more: &str| {
            format!("[rule.{name}]\nlisten = \"127.0.0.1:{port}\"\nmembers = [\"a:1\"]\n{more}")
        };
        let tcp = "protocol = \"tcp\"\n";
        for (text, wanted) in [
            (
                format!("{acme}{RULE}"),
                Some("acme: no rule answers the authority"),
            ),
            (
                format!("{acme}{RULE}{}", rule("y", 80, tcp)),
                Some("acme: no rule answers the authority"),
            ),
            (
                format!("{acme}{RULE}{}", rule("y", 8080, "")),
                Some("acme: the authority asks at port 80, where no rule"),
            ),
            (format!("{acme}{RULE}{}", rule("y", 80, "")), None),
            (format!("{acme}challenge = \"tls-alpn-01\"\n{RULE}"), None),
            (acme.to_owned() + &rule("y", 8080, ""), None),
        ] {
            let warnings = parse("f", &text).unwrap().warnings;
            let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
            match wanted {
                Some(wanted) => assert!(
                    matches!(&warnings[..], [one] if one.contains(wanted)),
                    "{warnings:?}"
                ),
                None => assert!(warnings.is_empty(), "{warnings:?}"),
            }
        }
    }
}

//! `[rule.NAME.tls]` and the like: certificates, and what clients may say of themselves; and
//! `[group.NAME.member_tls]`: TLS where the balancer is the client.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use super::acme::Acme;
use crate::schema::address::is_host_name;
use crate::schema::document::Item;
use crate::schema::errors::Place;
use crate::schema::field::{
    Element, Field, FileName, Limits, Texts, WRONG_TYPE, blank, choice_field, read_one,
};
use crate::schema::key::{docs, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// TLS between a rule and its clients.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Tls {
        /// Files with certificates that are had by ACME; one may not be there yet.
        issued: Vec<CertificateFiles> = Vec::new(),
    }
    keys TLS {
        /// Certificates: one, or a list. **Required.** Each is the path of a PEM file with the
        /// certificate, those of the authorities between it and the root, and the private key; or a
        /// table (see below), if the key has a file of its own. A client gets one for the name that
        /// it asks for: one with that very name, then one with a wildcard for it. Of several for a
        /// name it gets one whose kind of key it knows; the one that comes first, if it knows all.
        certificates: Vec<CertificateFiles> = Vec::new(); r#"["/etc/evenkeel/www.pem"]"#,
        /// Names that certificates are had for by themselves, from the authority of
        /// [`[acme]`](#acme), one for each. They come after `certificates`, which may then be left
        /// out.
        acme: Vec<String> [Text(HOST_NAMES)] = Vec::new(); r#"["www.example.org", "example.org"]"#,
        /// Whether clients that ask for a name without a certificate, or for none, are refused.
        /// Otherwise they get the first certificate.
        strict_sni: bool = false; "true",
        /// Whether certificates that are no longer valid, or not yet, are used without a warning.
        allow_expired: bool = false; "true",
        /// Oldest version of TLS that clients may use.
        min_version: TlsVersion = TlsVersion::Tls12; r#""1.3""#,
        /// Protocols that clients are offered (ALPN), the best first; a client that knows none of
        /// them is refused. By default a rule with `protocol = "http"` offers `h2` and `http/1.1`, one
        /// with `tcp` nothing, the negotiator and the admin API `http/1.1`, and `[xds]` `h2`.
        alpn: Vec<String> [Text(ALPN)] = Vec::new(); r#"["postgresql"]"#,
        /// Time limit for the handshake, from the connection on.
        handshake_timeout: Duration [Time(millis(1), secs(600))] = secs(10); r#""5s""#,
        /// Whether clients may resume a session, which saves most of the handshake: they keep its
        /// state in a ticket that only the balancer can read.
        tickets: bool = true; "false",
        /// A file with the keys of tickets, so that several balancers can resume each other's
        /// sessions: a line each, of 64 hexadecimal digits. The first one encrypts, all decrypt.
        /// Without it the balancer makes keys of its own, and a new one every hour.
        ticket_key_file: Option<FileName> = None; r#""/etc/evenkeel/tickets.key""#,
        /// Whether clients are asked for a certificate: a table (see below), `false` for no.
        client_certificates: Option<ClientCertificates> = None; r#"{ ca_file = "/etc/evenkeel/clients.pem" }"#,
    }
}

section! {
    /// A certificate with its key.
    #[derive(Clone, Debug, PartialEq)]
    pub struct CertificateFiles {}
    keys CERTIFICATE {
        /// The certificate and those of the authorities between it and the root (PEM).
        /// **Required.**
        certificate: FileName = FileName::default(); r#""/etc/evenkeel/www.pem""#,
        /// The private key (PEM; PKCS #8, PKCS #1 or SEC 1, without a password), if it is not in
        /// the file of the certificate. Others than its owner and group must have no access.
        key: Option<FileName> = None; r#""/etc/evenkeel/www.key""#,
        /// Names that it is for. By default those in the certificate. A name that the certificate
        /// does not have is an error.
        names: Vec<String> [Text(SERVER_NAMES)] = Vec::new(); r#"["www.example.org", "*.example.org"]"#,
    }
}

section! {
    /// What clients have to show.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ClientCertificates {}
    keys CLIENT_CERTIFICATES {
        /// Certificates of the authorities that clients' certificates come from (PEM).
        /// **Required.**
        ca_file: FileName = FileName::default(); r#""/etc/evenkeel/clients.pem""#,
        /// Lists of revoked certificates (PEM). There must be one of each authority, or its
        /// certificates are refused.
        crl_file: Option<FileName> = None; r#""/etc/evenkeel/clients.crl""#,
        /// Whether a client without a certificate is refused. A bad one is refused in any case.
        required: bool = true; "false",
        /// Rules with HTTP: beginning of the names of the fields that tell members about the client's
        /// certificate: `-Verified` (`yes` or `no`), `-Subject`, `-SAN` and `-Fingerprint` (SHA-256) are
        /// added to it. Fields of clients that begin so are removed from requests of all rules.
        /// `false` adds none.
        header: Option<String> [Text(HEADER)] = Some("X-Client-Cert".into()); r#""X-Peer""#,
    }
}

section! {
    /// TLS where the balancer is the client: to members, for checks, polls and the like.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ClientTls {
        /// Where it is asked for.
        place: Place = Place::default(),
    }
    keys CLIENT_TLS {
        /// Certificates of the authorities that the other side's certificate has to come from (PEM).
        /// By default those that the system trusts.
        ca_file: Option<FileName> = None; r#""/etc/evenkeel/members.pem""#,
        /// Lists of revoked certificates (PEM). There must be one of each authority, or its
        /// certificates are refused.
        crl_file: Option<FileName> = None; r#""/etc/evenkeel/members.crl""#,
        /// Whether the other side's certificate is verified. If not, whoever is on the way can pretend
        /// to be it, and read and change everything.
        verify: bool = true; "false",
        /// Name that is asked for (SNI), and that the certificate has to be for. By default the host
        /// in the address, be it a name or an IP address.
        server_name: Option<String> [Text(HOST_NAME)] = None; r#""backend.example.org""#,
        /// Certificate to show to the other side, if that asks for one, with those of the
        /// authorities between it and the root (PEM).
        certificate: Option<FileName> = None; r#""/etc/evenkeel/balancer.pem""#,
        /// The private key of `certificate` (PEM), if it is not in the same file. Others than its
        /// owner and group must have no access.
        key: Option<FileName> = None; r#""/etc/evenkeel/balancer.key""#,
        /// Oldest version of TLS to speak.
        min_version: TlsVersion = TlsVersion::Tls12; r#""1.3""#,
        /// Protocols to offer (ALPN), the best first. Where it is HTTP that is spoken, the protocol
        /// decides, and this key has no effect.
        alpn: Vec<String> [Text(ALPN)] = Vec::new(); r#"["postgresql"]"#,
        /// Whether sessions are resumed, which saves most of a handshake.
        resume: bool = true; "false",
    }
}

blank!(Tls, CertificateFiles, ClientCertificates, ClientTls);

/// Versions of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2, with forward secrecy and authenticated encryption only.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

choice_field!(TlsVersion, "1.2" => TlsVersion::Tls12, "1.3" => TlsVersion::Tls13);

const ALPN: Texts = ("1 to 64 visible ASCII characters", |text| {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
});

/// Names that clients may ask for.
pub(crate) const SERVER_NAMES: Texts = (
    r#"a host name, or "*." and a host name for all names right below it"#,
    |text| {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let is_label = |label: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            (1..=63).contains(&label.len()) && label.bytes().all(is_part)
        };
        text.len() <= 253 && name.split('.').all(is_label)
    },
);

const HOST_NAME: Texts = ("a host name, or an IP address", |text| {
    text.parse::<IpAddr>().is_ok() || is_host_name(text)
});

/// Names that an authority can verify: without a wildcard.
const HOST_NAMES: Texts = ("a host name", |text| {
    let (_, is_name) = SERVER_NAMES;
    !text.starts_with("*.") && is_name(text)
});

const HEADER: Texts = ("1 to 64 letters, digits or \"-\"", |text| {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=64).contains(&text.len()) && text.bytes().all(is_part)
});

impl AsTable for Tls {
    const ALLOWED: &'static str =
        r#"a table, as in { certificates = [{ certificate = "www.pem", key = "www.key" }] }"#;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(TLS, self, report);
        if !table.given("acme") && !table.given("certificates") {
            let message = "`certificates` is missing";
            let allowed = r#"certificates = [{ certificate = "www.pem", key = "www.key" }]"#;
            table.lacks(message, Some(allowed.into()), report);
        }
    }
}

impl AsTable for ClientCertificates {
    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(CLIENT_CERTIFICATES, self, report);
        table.require("ca_file", report);
    }
}

/// A table, or `true`.
impl Field for ClientTls {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        self.place = report.place(item);
        if matches!(item.value, DeValue::Boolean(true)) {
            return;
        }
        let Some(mut table) = Table::open(item) else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        table.read(CLIENT_TLS, self, report);
        if self.key.is_some() && self.certificate.is_none() {
            table.problem("key", "needs the `certificate` that it belongs to", report);
        }
        for key in ["ca_file", "crl_file"] {
            if !self.verify && table.given(key) {
                table.problem(key, "has no effect with `verify = false`", report);
            }
        }
        if !self.verify && table.given("verify") {
            let message = "certificates are not verified: whoever is on the way can pretend to be \
                           the other side, and read and change everything; better name a `ca_file`";
            report.warning(&table.span_of("verify"), &table.path_of("verify"), message);
        }
        table.finish(report);
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of keys of TLS, or true".into()
    }
}

impl ClientTls {
    fn all(&mut self) -> impl Iterator<Item = &mut FileName> {
        let authorities = self.ca_file.iter_mut().chain(&mut self.crl_file);
        authorities
            .chain(&mut self.certificate)
            .chain(&mut self.key)
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let authorities = self.ca_file.iter().chain(&self.crl_file);
        let all = authorities.chain(&self.certificate);
        all.chain(&self.key).map(|file| &file.path)
    }

    /// Relative paths start at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        self.all().for_each(|file| file.resolve(folder));
    }
}

/// A path, or a table.
impl Field for CertificateFiles {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        if let Some(mut table) = Table::open(item) {
            table.read(CERTIFICATE, self, report);
            table.require("certificate", report);
            table.finish(report);
        } else if let Some(certificate) = read_one(item, limits, report) {
            self.certificate = certificate;
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"the path of a file, or a table as in { certificate = "www.pem", key = "www.key" }"#
            .into()
    }
}

impl Element for CertificateFiles {
    const NONE: Option<&'static str> = Some("no certificate");
}

impl CertificateFiles {
    fn files(&mut self) -> impl Iterator<Item = &mut FileName> {
        std::iter::once(&mut self.certificate).chain(&mut self.key)
    }
}

impl Tls {
    /// Has certificates issued for its names; false if there is no authority.
    pub(crate) fn have_issued(&mut self, by: &mut Option<Acme>) -> bool {
        if self.acme.is_empty() {
            return true;
        }
        let Some(by) = by.as_mut().filter(|by| by.agree_to_terms) else {
            return false;
        };
        for name in &self.acme {
            let certificate = FileName::from(by.file(name));
            let issued = CertificateFiles {
                certificate,
                ..CertificateFiles::default()
            };
            self.issued.push(issued);
            by.names.push(name.to_ascii_lowercase());
        }
        by.names.sort_unstable();
        by.names.dedup();
        true
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let certificates = self.certificates.iter().chain(&self.issued);
        let certificates = certificates.flat_map(|c| std::iter::once(&c.certificate).chain(&c.key));
        let clients = self.client_certificates.iter();
        let clients = clients.flat_map(|c| std::iter::once(&c.ca_file).chain(&c.crl_file));
        let all = certificates.chain(clients).chain(&self.ticket_key_file);
        all.map(|file| &file.path)
    }

    /// Relative paths start at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        let certificates = self.certificates.iter_mut();
        let certificates = certificates.flat_map(CertificateFiles::files);
        let clients = self.client_certificates.iter_mut();
        let clients = clients.flat_map(|c| std::iter::once(&mut c.ca_file).chain(&mut c.crl_file));
        let all = certificates.chain(clients).chain(&mut self.ticket_key_file);
        all.for_each(|file| file.resolve(folder));
    }
}

/// What the reference says of TLS where the balancer is the client.
pub(crate) fn client_table(header: &'static str, doc: &'static str) -> TableDoc {
    TableDoc::new(header, doc, [docs(CLIENT_TLS, ClientTls::default())])
}

/// What the reference says of the tables.
pub(crate) fn tables() -> [TableDoc; 4] {
    let tls = "TLS between a rule and its clients: [tls.md](tls.md). `[negotiator.tls]`, `[admin.tls]` and \
               `[xds.tls]` have the same keys.";
    let certificate = "A certificate with its key; may also be written in a list, as `certificates \
                       = [{ certificate = \"www.pem\", key = \"www.key\" }]`.";
    let clients = "Certificates of clients.";
    [
        TableDoc::new("[rule.NAME.tls]", tls, [docs(TLS, Tls::default())]),
        TableDoc::new(
            "[[rule.NAME.tls.certificates]]",
            certificate,
            [docs(CERTIFICATE, CertificateFiles::default())],
        ),
        TableDoc::new(
            "[rule.NAME.tls.client_certificates]",
            clients,
            [docs(CLIENT_CERTIFICATES, ClientCertificates::default())],
        ),
        client_table(
            "[group.NAME.member_tls]",
            "TLS between the balancer and the members of a group: [tls.md](tls.md#members).",
        ),
    ]
}

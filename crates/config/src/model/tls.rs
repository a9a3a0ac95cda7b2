//! `[rule.NAME.tls]` and the like: certificates, and certificates of clients; and `[group.NAME.member_tls]`:
//! TLS where the balancer is the client.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use super::acme::Acme;
use crate::schema::address::is_host_name;
use crate::schema::document::Item;
use crate::schema::errors::SourcePosition;
use crate::schema::field::{
    Element, Field, FileName, Limits, Texts, WRONG_TYPE, blank, choice_field, read_one,
};
use crate::schema::key::{describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// TLS between a rule and its clients.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Tls {
        /// Files with certificates issued by ACME; a file may not be there yet.
        issued: Vec<CertificateFiles> = Vec::new(),
    }
    keys TLS {
        /// Certificates: one, or a list. Give the path of a PEM file with the certificate, the intermediate
        /// certificates, and the private key. If your key is in another file, write a table (see below). A
        /// client gets a certificate for the requested name: an exact match first, then a wildcard. If several
        /// match, the client gets one with a known kind of key; the first of your list, if all are known.
        /// **Required.**
        certificates: Vec<CertificateFiles> = Vec::new(); r#"["/etc/evenkeel/www.pem"]"#,
        /// Names for which the balancer obtains certificates automatically from the authority of
        /// [`[acme]`](#acme), one for each name. If you set names, you may leave out `certificates`. With both,
        /// `certificates` come first.
        acme: Vec<String> [Text(HOST_NAMES)] = Vec::new(); r#"["www.example.org", "example.org"]"#,
        /// Refuses clients which ask for a name without a certificate, or for no name. With `false` such
        /// clients get the first certificate.
        strict_sni: bool = false; "true",
        /// Uses certificates which are no longer valid, or not yet, without a warning.
        allow_expired: bool = false; "true",
        /// Oldest version of TLS for clients. Set `"1.3"` if all your clients are modern.
        min_version: TlsVersion = TlsVersion::Tls12; r#""1.3""#,
        /// Protocols to offer to clients (ALPN), the best first; a client which knows none of the protocols is
        /// refused. By default a rule with `protocol = "http"` offers `h2` and `http/1.1`, a rule with `tcp`
        /// nothing, the negotiator and the admin API `http/1.1`, and `[xds]` `h2`. Set a list if your TCP
        /// clients use ALPN.
        alpn: Vec<String> [Text(ALPN)] = Vec::new(); r#"["postgresql"]"#,
        /// Time limit for the handshake, from the connection on.
        handshake_timeout: Duration [Time(millis(1), secs(600))] = secs(10); r#""5s""#,
        /// Lets clients resume a session, which saves most of the handshake: clients keep the state in a ticket
        /// readable only by the balancer.
        tickets: bool = true; "false",
        /// File with the keys of tickets: a line each, of 64 hexadecimal digits. The first key encrypts, all
        /// decrypt. Set the same keys on all your balancers, so that they can resume each other's sessions.
        /// Without a file the balancer makes its own keys, and a new key every hour.
        ticket_key_file: Option<FileName> = None; r#""/etc/evenkeel/tickets.key""#,
        /// Request for a certificate of the client: a table (see below), or `false` for none.
        client_certificates: Option<ClientCertificates> = None; r#"{ ca_file = "/etc/evenkeel/clients.pem" }"#,
    }
}

section! {
    /// Certificate with its key.
    #[derive(Clone, Debug, PartialEq)]
    pub struct CertificateFiles {}
    keys CERTIFICATE {
        /// Certificate and intermediate certificates (PEM). **Required.**
        certificate: FileName = FileName::default(); r#""/etc/evenkeel/www.pem""#,
        /// Private key (PEM; PKCS #8, PKCS #1 or SEC 1, without a password), if your key is not in the file of
        /// the certificate. Let nobody but the file's owner and group have access.
        key: Option<FileName> = None; r#""/etc/evenkeel/www.key""#,
        /// Names for which the certificate is used. By default the names in the certificate. A name missing
        /// from the certificate is an error.
        names: Vec<String> [Text(SERVER_NAMES)] = Vec::new(); r#"["www.example.org", "*.example.org"]"#,
    }
}

section! {
    /// Certificate that clients have to show.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ClientCertificates {}
    keys CLIENT_CERTIFICATES {
        /// Certificates of the authorities of your clients' certificates (PEM). **Required.**
        ca_file: FileName = FileName::default(); r#""/etc/evenkeel/clients.pem""#,
        /// Lists of revoked certificates (PEM). Include a list of each authority: otherwise its certificates
        /// are refused.
        crl_file: Option<FileName> = None; r#""/etc/evenkeel/clients.crl""#,
        /// Refuses clients without a certificate. A bad certificate is refused in any case, unless you set
        /// `accept_invalid`.
        required: bool = true; "false",
        /// Serves clients with a bad certificate, and clients without one, as if `required` were `false`: members see
        /// `-Verified: no`. Set `true` only for tests, or while your clients get new certificates: then your members
        /// decide who is served.
        accept_invalid: bool = false; "true",
        /// Rules with HTTP: beginning of the names of fields with information for members about the client's
        /// certificate: `-Verified` (`yes` or `no`), `-Subject`, `-SAN` and `-Fingerprint` (SHA-256) are added
        /// to the beginning. Client fields with this beginning are removed from requests of all rules. Set
        /// `false` if you need no such fields.
        header: Option<String> [Text(HEADER)] = Some("X-Client-Cert".into()); r#""X-Peer""#,
    }
}

section! {
    /// TLS where the balancer is the client: to members, for checks, polls and the like.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ClientTls {
        /// Place of the table in the file.
        place: SourcePosition = SourcePosition::default(),
    }
    keys CLIENT_TLS {
        /// Certificates of the authorities from which the server's certificate must come (PEM). By default the
        /// authorities trusted by your system.
        ca_file: Option<FileName> = None; r#""/etc/evenkeel/members.pem""#,
        /// Lists of revoked certificates (PEM). Include a list of each authority: otherwise its certificates
        /// are refused.
        crl_file: Option<FileName> = None; r#""/etc/evenkeel/members.crl""#,
        /// Verification of the server's certificate. Keep `true` in production: with `false` anybody on the way
        /// can pretend to be the server, and read and change everything.
        verify: bool = true; "false",
        /// Name to ask for (SNI), for which the certificate must be valid. By default the host in the address,
        /// either a name or an IP address. Set a name if you give addresses, but your certificates contain a
        /// name.
        server_name: Option<String> [Text(HOST_NAME)] = None; r#""backend.example.org""#,
        /// Names of which the certificate must have one, instead of `server_name` or the host in the address: host
        /// names, IP addresses, or URIs such as those of SPIFFE. The balancer still asks for `server_name`.
        certificate_names: Vec<String> [Text(CERTIFICATE_NAME)] = Vec::new(); r#"["a.example.org", "b.example.org"]"#,
        /// Certificate to show to the server on request, with the intermediate certificates (PEM). Needed if
        /// your servers require client certificates.
        certificate: Option<FileName> = None; r#""/etc/evenkeel/balancer.pem""#,
        /// Private key of `certificate` (PEM), if the key is not in the same file. Let nobody but the file's
        /// owner and group have access.
        key: Option<FileName> = None; r#""/etc/evenkeel/balancer.key""#,
        /// Oldest version of TLS for the connection.
        min_version: TlsVersion = TlsVersion::Tls12; r#""1.3""#,
        /// Protocols to offer (ALPN), the best first. With HTTP the protocol decides, and this key has no
        /// effect.
        alpn: Vec<String> [Text(ALPN)] = Vec::new(); r#"["postgresql"]"#,
        /// Resumption of sessions, which saves most of a handshake.
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

/// Name in lists of names for clients that ask for none of the others, or for no name.
pub const UNNAMED: &str = "*";

/// Names that clients may ask for, at any depth below a domain, too.
pub(crate) const DEEP_NAMES: Texts = (
    r#"a host name, "*." and a host name for all names right below it, or "**." and a host name for all names below it"#,
    |text| {
        let (_, is_server_name) = SERVER_NAMES;
        match text.strip_prefix("**.") {
            Some(name) => !name.starts_with('*') && is_server_name(name),
            None => is_server_name(text),
        }
    },
);

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

const CERTIFICATE_NAME: Texts = (
    "a host name, an IP address, or a URI with a scheme",
    |text| (HOST_NAME.1)(text) || is_uri(text),
);

/// True if a text is a URI with a scheme (RFC 3986), of at most 2,048 visible characters.
pub fn is_uri(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(is_part)
        && !rest.is_empty()
        && rest.bytes().all(|byte| byte.is_ascii_graphic())
        && text.len() <= 2_048
}

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
        if !table.has_key("acme") && !table.has_key("certificates") {
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
        if self.accept_invalid && self.required && table.has_key("required") {
            let message = "a client with a bad certificate cannot be served where one is required: remove \
                           `required`";
            table.report_problem("accept_invalid", message, report);
        }
        self.required &= !self.accept_invalid;
    }
}

/// Table, or `true`.
impl Field for ClientTls {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        self.place = report.place(item);
        if matches!(item.value, DeValue::Boolean(true)) {
            return;
        }
        let Some(mut table) = Table::from_item(item) else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        table.read(CLIENT_TLS, self, report);
        if self.key.is_some() && self.certificate.is_none() {
            table.report_problem("key", "needs the `certificate` that it belongs to", report);
        }
        for key in ["ca_file", "crl_file", "certificate_names"] {
            if !self.verify && table.has_key(key) {
                table.report_problem(key, "has no effect with `verify = false`", report);
            }
        }
        if !self.verify && table.has_key("verify") {
            let message = "certificates are not verified: whoever is on the way can pretend to be \
                           the other side, and read and change everything; better name a `ca_file`";
            report.add_warning(&table.span_of("verify"), &table.path_of("verify"), message);
        }
        table.report_unread(report);
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

    /// Files named in the settings.
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
        if let Some(mut table) = Table::from_item(item) {
            table.read(CERTIFICATE, self, report);
            table.require("certificate", report);
            table.report_unread(report);
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

    /// Files named in the settings.
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

/// Reference of a table for TLS where the balancer is the client.
pub(crate) fn client_table(header: &'static str, doc: &'static str) -> TableDoc {
    TableDoc::new(
        header,
        doc,
        [describe_keys(CLIENT_TLS, ClientTls::default())],
    )
}

/// Reference of the tables.
pub(crate) fn describe_tables() -> [TableDoc; 4] {
    let tls = "TLS between a rule and its clients: [tls.md](tls.md). `[negotiator.tls]`, `[admin.tls]` and \
               `[xds.tls]` have the same keys.";
    let certificate = "A certificate with its key. You may also write a list, as in `certificates = \
                       [{ certificate = \"www.pem\", key = \"www.key\" }]`.";
    let clients = "Certificates of clients.";
    [
        TableDoc::new("[rule.NAME.tls]", tls, [describe_keys(TLS, Tls::default())]),
        TableDoc::new(
            "[[rule.NAME.tls.certificates]]",
            certificate,
            [describe_keys(CERTIFICATE, CertificateFiles::default())],
        ),
        TableDoc::new(
            "[rule.NAME.tls.client_certificates]",
            clients,
            [describe_keys(
                CLIENT_CERTIFICATES,
                ClientCertificates::default(),
            )],
        ),
        client_table(
            "[group.NAME.member_tls]",
            "TLS between the balancer and the members of a group: [tls.md](tls.md#members).",
        ),
    ]
}

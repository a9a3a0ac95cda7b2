//! `[group.NAME.health_check]`: active health checks of members.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use super::protocol::MemberProtocol;
use crate::schema::address::is_host_name;
use crate::schema::document::Item;
use crate::schema::field::{Field, Limits, Texts, WRONG_TYPE, blank, choice_field};
use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::source::load_secret;
use crate::schema::table::{AsTable, Table};

section! {
    /// Active health check (keep-alive).
    #[derive(Clone, Debug, PartialEq)]
    pub struct HealthCheck {
        /// Password read from `password_file`.
        password: Option<Secret> = None,
    }
    keys HEALTH_CHECK {
        /// Type of the check. `tcp`: a connection can be established, with TLS if the group has `member_tls`.
        /// `http`: a GET is answered as expected. `grpc`: `grpc.health.v1.Health/Check` answers `SERVING`.
        /// `ftp`: the server greets, and accepts the login of `user`, if you set one. `udp`: a datagram is
        /// answered as expected. `dns`: a DNS query over UDP is answered without an error. If you set `path`,
        /// `host`, `response_code` or `doc_text`, the default is `http`, with `service` the default is `grpc`,
        /// with `user` the default is `ftp`, with `send` or `send_hex` the default is `udp`, with `query` the
        /// default is `dns`.
        kind "type": HealthCheckKind = HealthCheckKind::Tcp; r#""http""#,
        /// Time between two checks of a member. Shorten the time if failed members must be found sooner.
        interval | "frequency": Duration [Time(millis(10), DAY)] = secs(2); r#""500ms""#,
        /// Time limit of a check. A check without an answer within the limit has failed.
        timeout: Duration [Time(millis(1), HOUR)] = secs(1); r#""300ms""#,
        /// Number of failed checks in a row after which a member is down.
        fall: u32 [Number(1.0, 1000.0, "checks")] = 3; "2",
        /// Number of passed checks in a row after which a member is up again.
        rise: u32 [Number(1.0, 1000.0, "checks")] = 2; "3",
        /// Port to check. Set a port if your members answer checks at another port than traffic.
        port: Option<u16> [Number(1.0, 65_535.0, "")] = None; "8081",
        /// Check without TLS although the group has `member_tls`.
        plain: bool = false; "true",
        /// gRPC: service to check. By default the health of the server as a whole is checked.
        service: Option<String> [Text(SERVICE)] = None; r#""shop.Orders""#,
        /// HTTP: protocol of the check, with the values of `member_protocol` of rules. By default the protocol
        /// of the rules which use the group, if the rules agree, and HTTP/1.1 if the check has a `port` or is
        /// `plain`.
        protocol: Option<MemberProtocol> = None; r#""h2""#,
        /// HTTP: path of the document to request, optionally with a query. Choose a path which fails when your
        /// application cannot serve.
        path | "doc_path": String [Text(PATH)] = "/".into(); r#""/healthz""#,
        /// HTTP: the `Host` field; gRPC: the authority. By default the member's address.
        host: Option<String> [Text(HOST)] = None; r#""www.example.org""#,
        /// HTTP: response codes of a passed check.
        codes "response_code": Vec<u16> = (200..=399).collect(); r#"[200, 204, "300-399"]"#,
        /// HTTP: text which the document must contain. Only the beginning of the document is searched.
        text "doc_text": Option<String> [Text(TEXT)] = None; r#""all systems go""#,
        /// FTP: user name of a login. If you leave the key out, the server's greeting is enough.
        user: Option<String> [Text(USER)] = None; r#""anonymous""#,
        /// FTP: file with the password of `user`. Let nobody else read the file. By default the password is an
        /// e-mail address, as for anonymous users.
        password_file: Option<PathBuf> = None; r#""/run/secrets/ftp-check""#,
        /// UDP: text of the datagram to send.
        send: Option<String> [Text(TEXT)] = None; r#""ping""#,
        /// UDP: bytes of the datagram to send, in hexadecimal digits, instead of `send`.
        send_hex: Option<String> [Text(HEX)] = None; r#""00ff10""#,
        /// UDP: text which the answer must contain. By default each answer passes the check.
        expect: Option<String> [Text(TEXT)] = None; r#""pong""#,
        /// UDP: bytes which the answer must contain, in hexadecimal digits, instead of `expect`.
        expect_hex: Option<String> [Text(HEX)] = None; r#""00ff""#,
        /// DNS: name to ask for. Choose a name that your servers know: the answer must have the code NOERROR.
        /// **Required** with `type = "dns"`.
        query: Option<String> [Text(DOMAIN)] = None; r#""example.org""#,
        /// DNS: type of the record to ask for: `A`, `AAAA`, `MX`, `NS`, `SOA`, `SRV` or `TXT`.
        query_type: QueryType = QueryType::A; r#""SOA""#,
    }
}

/// Type of an active health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthCheckKind {
    /// Connection can be established.
    Tcp,
    /// GET is answered as expected.
    Http,
    /// Health service of gRPC says that all is well.
    Grpc,
    /// Server of FTP greets, and lets somebody log in.
    Ftp,
    /// Datagram is answered as expected.
    Udp,
    /// DNS query is answered without an error.
    Dns,
}

/// Type of the record that a DNS check asks for, with its number (RFC 1035, 3.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueryType {
    /// IPv4 address.
    #[default]
    A = 1,
    /// Name server.
    Ns = 2,
    /// Start of a zone.
    Soa = 6,
    /// Mail exchange.
    Mx = 15,
    /// Text record.
    Txt = 16,
    /// IPv6 address (RFC 3596).
    Aaaa = 28,
    /// Location of a service (RFC 2782).
    Srv = 33,
}

choice_field!(QueryType,
    "A" => QueryType::A,
    "AAAA" => QueryType::Aaaa,
    "MX" => QueryType::Mx,
    "NS" => QueryType::Ns,
    "SOA" => QueryType::Soa,
    "SRV" => QueryType::Srv,
    "TXT" => QueryType::Txt);

/// A text that is not to be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

choice_field!(HealthCheckKind,
    "tcp" => HealthCheckKind::Tcp,
    "http" => HealthCheckKind::Http,
    "grpc" => HealthCheckKind::Grpc,
    "ftp" => HealthCheckKind::Ftp,
    "udp" => HealthCheckKind::Udp,
    "dns" => HealthCheckKind::Dns);
blank!(HealthCheck);

const PATH: Texts = (
    "a path that begins with \"/\", of visible ASCII characters",
    |text| {
        let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        text.starts_with('/') && text.len() <= 2048 && is_visible
    },
);

const HOST: Texts = ("a host name, with or without a port", |text| {
    let (name, port) = text.split_once(':').unwrap_or((text, "80"));
    is_host_name(name) && port.parse::<u16>().is_ok()
});

const SERVICE: Texts = ("1 to 120 visible ASCII characters", |text| {
    (1..=120).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
});

const TEXT: Texts = ("1 to 1024 characters", |text| {
    (1..=1024).contains(&text.len())
});

const USER: Texts = ("1 to 120 visible ASCII characters", |text| {
    (1..=120).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
});

const HEX: Texts = ("2 to 2048 hexadecimal digits, two for each byte", |text| {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (2..=2048).contains(&text.len()) && text.len() % 2 == 0 && digits
});

const DOMAIN: Texts = (
    "a domain name of letters, digits, \"-\" and \"_\"",
    |text| {
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_label = |label: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=63).contains(&label.len()) && label.bytes().all(is_allowed)
        };
        text == "." || name.len() <= 253 && name.split('.').all(is_label)
    },
);

/// Keys that make it an HTTP check, or one of gRPC, FTP, UDP or DNS, and the types that may have them.
const KEYS: [(&str, &[HealthCheckKind]); 14] = [
    ("send", &[HealthCheckKind::Udp]),
    ("send_hex", &[HealthCheckKind::Udp]),
    ("expect", &[HealthCheckKind::Udp]),
    ("expect_hex", &[HealthCheckKind::Udp]),
    ("query", &[HealthCheckKind::Dns]),
    ("query_type", &[HealthCheckKind::Dns]),
    ("user", &[HealthCheckKind::Ftp]),
    ("password_file", &[HealthCheckKind::Ftp]),
    ("protocol", &[HealthCheckKind::Http]),
    ("service", &[HealthCheckKind::Grpc]),
    ("path", &[HealthCheckKind::Http]),
    ("response_code", &[HealthCheckKind::Http]),
    ("doc_text", &[HealthCheckKind::Http]),
    ("host", &[HealthCheckKind::Http, HealthCheckKind::Grpc]),
];

impl HealthCheck {
    /// A check of `kind` with all defaults.
    pub fn new(kind: HealthCheckKind) -> Self {
        HealthCheck {
            kind,
            ..HealthCheck::default()
        }
    }

    /// Bytes of the datagram that a UDP check sends.
    pub fn datagram(&self) -> Vec<u8> {
        decode_bytes(self.send.as_deref(), self.send_hex.as_deref())
    }

    /// Bytes that the answer to a UDP check must contain; empty if each answer passes.
    pub fn expected_bytes(&self) -> Vec<u8> {
        decode_bytes(self.expect.as_deref(), self.expect_hex.as_deref())
    }

    /// Reports what a check by datagrams lacks, and what it has twice.
    fn check_datagrams(&self, table: &Table<'_>, report: &mut Report<'_>) {
        for (text, hex) in [("send", "send_hex"), ("expect", "expect_hex")] {
            if table.has_key(text) && table.has_key(hex) {
                table.report_problem(hex, format!("set `{text}` or `{hex}`, not both"), report);
            }
        }
        let lacks_datagram = self.send.is_none() && self.send_hex.is_none();
        if self.kind == HealthCheckKind::Udp && lacks_datagram {
            table.lacks("`send` or `send_hex` is missing", None, report);
        }
        if self.kind == HealthCheckKind::Dns {
            table.require("query", report);
        }
        if matches!(self.kind, HealthCheckKind::Udp | HealthCheckKind::Dns) && self.plain {
            table.report_problem("plain", "a check by datagrams has no TLS", report);
        }
    }

    /// Reads the password. `folder` is where a relative path starts.
    pub(super) fn read_password(&mut self, folder: &Path) -> Result<(), String> {
        let Some(file) = &mut self.password_file else {
            return Ok(());
        };
        if self.user.is_none() {
            return Err("has a `password_file`, but no `user`".into());
        }
        *file = folder.join(&*file);
        let shown = file.display();
        let parse = |text: &str| {
            let password = text.trim_end_matches(['\r', '\n']);
            if password.is_empty() || password.chars().any(char::is_control) {
                return Err("does not hold a password: one line of text".to_owned());
            }
            Ok(Secret(password.into()))
        };
        let password = load_secret(file, 4096, parse);
        self.password = Some(password.map_err(|reason| format!("{shown} {reason}"))?);
        Ok(())
    }

    /// Takes over what rules with the group speak to its members, if nothing else is said.
    pub(super) fn adopt_protocol(&mut self, mut spoken: impl Iterator<Item = MemberProtocol>) {
        let is_of_members = self.port.is_none() && !self.plain;
        if self.kind == HealthCheckKind::Http && self.protocol.is_none() && is_of_members {
            self.protocol = spoken
                .next()
                .filter(|first| spoken.all(|other| other == *first));
        }
    }
}

/// Returns the bytes of a key that is set as text, or as hexadecimal digits, which were checked.
fn decode_bytes(text: Option<&str>, hex: Option<&str>) -> Vec<u8> {
    if let Some(text) = text {
        return text.as_bytes().to_vec();
    }
    let digits = hex.unwrap_or_default();
    let pairs = (0..digits.len()).step_by(2);
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    pairs.filter_map(byte).collect()
}

impl AsTable for HealthCheck {
    const ALLOWED: &'static str = "a table, or true";
    const TRUE: bool = true;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(HEALTH_CHECK, self, report);
        for (key, kinds) in KEYS.into_iter().filter(|(key, _)| table.has_key(key)) {
            if kinds.contains(&self.kind) {
                continue;
            }
            let is_said = table.has_key("type") || self.kind != HealthCheckKind::Tcp;
            let [kind, ..] = kinds else { continue };
            if is_said {
                let needed = match kind {
                    HealthCheckKind::Grpc => "grpc",
                    HealthCheckKind::Ftp => "ftp",
                    HealthCheckKind::Udp => "udp",
                    HealthCheckKind::Dns => "dns",
                    HealthCheckKind::Http | HealthCheckKind::Tcp => "http",
                };
                table.report_problem(key, format!("needs `type = {needed:?}`"), report);
            }
            self.kind = *kind;
        }
        self.check_datagrams(table, report);
    }
}

/// Response codes: a code, a range, or a list of both.
impl Field for Vec<u16> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let Some(items) = item.one_or_each() else {
            return report.wrong(item, "no response code", self.allowed(limits));
        };
        let mut codes = Vec::new();
        for item in items {
            let range = match item.value {
                DeValue::Integer(_) => item.integer().map(|code| (code, code)),
                DeValue::String(text) => {
                    let (from, to) = text.split_once('-').unwrap_or((text, text));
                    from.trim().parse().ok().zip(to.trim().parse().ok())
                }
                _ => {
                    report.wrong(&item, WRONG_TYPE, CODES.into());
                    continue;
                }
            };
            match range {
                Some((from, to)) if 100 <= from && from <= to && to <= 599 => {
                    codes.extend((from..=to).filter_map(|code| u16::try_from(code).ok()));
                }
                _ => report.wrong(&item, "not a response code", CODES.into()),
            }
        }
        codes.sort_unstable();
        codes.dedup();
        *self = codes;
    }

    fn show(&self, _: &Limits) -> Option<String> {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for &code in self {
            match ranges.last_mut() {
                Some((_, to)) if *to + 1 == code => *to = code,
                _ => ranges.push((code, code)),
            }
        }
        let text = |&(from, to): &(u16, u16)| match to {
            _ if from == to => from.to_string(),
            _ => format!("\"{from}-{to}\""),
        };
        let texts: Vec<_> = ranges.iter().map(text).collect();
        match &texts[..] {
            [] => None,
            [one] => Some(one.clone()),
            more => Some(format!("[{}]", more.join(", "))),
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        format!("{CODES}, or a list")
    }
}

const CODES: &str = r#"a response code from 100 to 599, or a range of them as in "200-399""#;

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Active health check of a group. Off unless you add the table.";
    let keys = [describe_keys(HEALTH_CHECK, HealthCheck::default())];
    TableDoc::new("[group.NAME.health_check]", doc, keys)
}

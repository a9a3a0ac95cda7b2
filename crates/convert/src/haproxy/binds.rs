//! Addresses to listen on.

use super::values::{Skipped, Words, next_value, skip_word, without_family};
use super::words::Line;
use crate::note::{Notes, Remark};
use crate::toml::{Table, Value};

/// Most addresses of a range of ports.
const MAX_PORTS: u16 = 100;

/// A line `bind`.
#[derive(Clone, Debug)]
pub(crate) struct Bind {
    pub(crate) addresses: Vec<String>,
    pub(crate) tls: Option<Table>,
    pub(crate) accept_proxy: bool,
    pub(crate) mode: Option<String>,
}

const BIND_SKIPPED: &Skipped = &[
    (
        true,
        &["crt-list"],
        Remark::Note("a list of certificates: name each file in `certificates`"),
    ),
    (
        false,
        &[
            "v4v6",
            "v6only",
            "tfo",
            "transparent",
            "no-tls-tickets",
            "allow-0rtt",
            "prefer-client-ciphers",
        ],
        Remark::Needless,
    ),
    (
        true,
        &[
            "alpn",
            "name",
            "thread",
            "process",
            "proto",
            "maxconn",
            "backlog",
            "interface",
            "user",
            "group",
            "uid",
            "gid",
            "level",
            "ciphers",
            "ciphersuites",
            "curves",
            "ecdhe",
            "ssl-max-ver",
            "tcp-ut",
            "id",
            "nice",
            "mss",
            "shards",
            "namespace",
            "defer-accept",
        ],
        Remark::Needless,
    ),
];

/// Reads a line `bind`; `None` if it names no address.
pub(crate) fn bind(line: &Line, notes: &mut Notes) -> Option<Bind> {
    let mut bind = Bind {
        addresses: Vec::new(),
        tls: None,
        accept_proxy: false,
        mode: None,
    };
    for text in line.word_at(1).split(',') {
        bind.addresses.extend(addresses(text)?);
    }
    let mut tls = Table::default();
    let mut is_tls = false;
    let mut words = line.from(2).iter();
    let number = line.number;
    while let Some(word) = words.next() {
        match word.as_str() {
            "ssl" => is_tls = true,
            "accept-proxy" => bind.accept_proxy = true,
            "mode" => bind.mode = Some(next_value(&mut words).to_owned()),
            word => {
                let is_known = set_client_tls(word, &mut words, &mut tls, number, notes)
                    || skip_word(word, &mut words, BIND_SKIPPED, number, notes);
                if !is_known {
                    let why = format!("`{word}` of an address has no counterpart");
                    notes.add_note(number, why);
                }
            }
        }
    }
    if is_tls {
        complete_client_tls(&mut tls, number, notes);
        bind.tls = Some(tls);
    }
    if bind.accept_proxy {
        let why = "every peer may name the address of a client, as in the original: name the networks \
            of the proxies in `accept_proxy`";
        notes.add_note(number, why);
    }
    Some(bind)
}

/// Takes a word of TLS with clients; false if the word is another one.
fn set_client_tls(
    word: &str,
    words: &mut Words<'_>,
    tls: &mut Table,
    line: usize,
    notes: &mut Notes,
) -> bool {
    match word {
        "crt" => {
            let path = next_value(words);
            if !path.ends_with(".pem") && !path.ends_with(".crt") && !path.contains('.') {
                let why = "a folder of certificates: name each file in `certificates`";
                notes.add_note(line, why);
            }
            tls.push("certificates", path);
        }
        "ssl-min-ver" => match next_value(words) {
            "TLSv1.3" => tls.set("min_version", "1.3"),
            "TLSv1.2" => {}
            _ => notes.add_note(line, "TLS 1.2 is the lowest version"),
        },
        "ca-file" => tls
            .ensure_table("client_certificates")
            .set("ca_file", next_value(words)),
        "crl-file" => tls
            .ensure_table("client_certificates")
            .set("crl_file", next_value(words)),
        "verify" => {
            if next_value(words) == "optional" {
                tls.ensure_table("client_certificates")
                    .set("required", false);
            }
        }
        "strict-sni" => tls.set("strict_sni", true),
        _ => return false,
    }
    true
}

/// Takes out what TLS with clients cannot have, and names a certificate where there is none.
fn complete_client_tls(tls: &mut Table, line: usize, notes: &mut Notes) {
    let clients = tls.get("client_certificates");
    let has_ca = matches!(clients, Some(Value::Table(table)) if table.get("ca_file").is_some());
    if clients.is_some() && !has_ca {
        tls.remove("client_certificates");
        notes.add_restriction(line, "clients' certificates need a `ca_file`");
    }
    if tls.get("certificates").is_none() {
        tls.set("certificates", vec!["certificate.pem".to_owned()]);
        let why = "the line names no certificate: put a file in place of certificate.pem";
        notes.add_note(line, why);
    }
}

/// Addresses to listen on.
fn addresses(text: &str) -> Option<Vec<String>> {
    let text = match without_family(text) {
        Ok(text) => text,
        Err(socket) => return Some(vec![socket]),
    };
    if let Some(name) = text.strip_prefix("abns@") {
        return Some(vec![format!("unix:@{name}")]);
    }
    let (host, ports) = text.rsplit_once(':')?;
    let host = match host.trim_matches(['[', ']']) {
        "" | "*" => "0.0.0.0".to_owned(),
        host => host.parse::<std::net::IpAddr>().ok().map(|ip| match ip {
            std::net::IpAddr::V4(ip) => ip.to_string(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        })?,
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    if first > last || last - first >= MAX_PORTS || first == 0 {
        return None;
    }
    Some(
        (first..=last)
            .map(|port| format!("{host}:{port}"))
            .collect(),
    )
}

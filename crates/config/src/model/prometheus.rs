//! `[group.NAME.prometheus]`: loads calculated from metrics.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use evenkeel_core::load::{LOADS_PER_LOCATION, LoadId};
use toml::de::DeValue;

use super::loads::check_load;
use super::metric_presets::{MetricLoad, Preset};
use super::tls::ClientTls;
use crate::schema::address::{Scheme, bracketed, split_authority};
use crate::schema::document::{Item, entries};
use crate::schema::expression::Expression;
use crate::schema::field::{Field, Limits, WRONG_TYPE, blank, read_text};
use crate::schema::key::{HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Metrics in Prometheus' text format, fetched over HTTP.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Prometheus {
        /// Loads to calculate, from the preset and from the named ones. No load is there twice.
        loads: Vec<MetricLoad> = Vec::new(),
    }
    keys PROMETHEUS {
        /// URL of a member's metrics: `{host}` is replaced by the member's address, `{port}` by its port,
        /// `{member}` by its name. If members of one location have the same URL, one query is sent for all.
        /// **Required** unless the `preset` is for engines of language models: these have a default, mostly
        /// `http://{host}:{port}/metrics`.
        url: UrlTemplate = UrlTemplate::default(); r#""http://{host}:9100/metrics""#,
        /// TLS with a `url` at `https`: a table with the keys of `member_tls`. By default certificates are
        /// verified with the authorities trusted by your system, and must be for the URL's host. The files are
        /// read again when you change them.
        tls: Option<ClientTls> = None; r#"{ ca_file = "/etc/evenkeel/exporters.pem" }"#,
        /// Time between two fetches. A rate is the mean over this time.
        interval: Duration [Time(millis(100), HOUR)] = secs(5); r#""1s""#,
        /// Time limit for a fetch.
        timeout: Duration [Time(millis(10), HOUR)] = secs(2); r#""500ms""#,
        /// Maximum size of an answer. A larger answer is refused as a whole. Raise the size if your exporters
        /// have more metrics.
        max_bytes: usize [Bytes(1024, 64 << 20)] = 4 << 20; r#""16MiB""#,
        /// Predefined loads, as listed in [load-reports.md](load-reports.md#prometheus) for machines
        /// (`node_exporter`), and in [inference.md](inference.md#metrics-of-your-engines) for engines of language
        /// models (all others). You can add loads, or replace single loads, with `loads`.
        preset: Option<Preset> = None; r#""node_exporter""#,
        /// Loads, each with an expression over the metrics, as in a Prometheus query. You can use numbers, `+ -
        /// * /`, brackets, metrics with labels (`=` and `!=`), `rate(…)` of counters, and `sum`, `avg`, `min`,
        /// `max` or `count` over all matching series.
        named "loads": MetricLoads = MetricLoads::default();
            r#"{ cpu = '1 - avg(rate(node_cpu_seconds_total{mode="idle"}))' }"#,
    }
}

blank!(Prometheus);

impl AsTable for Prometheus {
    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        let (preset, named) = (table.has_key("preset"), table.has_key("loads"));
        if preset || named {
            // Loads of `[defaults]` are replaced as a whole, not key by key.
            (self.preset, self.named) = (None, MetricLoads::default());
        }
        table.read(PROMETHEUS, self, report);
        match self.preset.and_then(Preset::default_url) {
            Some(url) if self.url.0.is_empty() => self.url = UrlTemplate(url.into()),
            None if self.url.0.is_empty() => table.require("url", report),
            _ => {}
        }
        if table.has_key("tls") && self.tls.is_some() && !self.url.is_secure() {
            let message = "has no effect: `url` is not `https`";
            report.add_warning(&table.span_of("tls"), &table.path_of("tls"), message);
        }
        self.loads = self.preset.map(Preset::loads).unwrap_or_default();
        for own in &self.named.0 {
            self.loads.retain(|known| known.load != own.load);
            self.loads.push(own.clone());
        }
        if self.loads.is_empty() {
            table.lacks("names neither a `preset` nor `loads`", None, report);
        } else if self.loads.len() > LOADS_PER_LOCATION {
            let message = format!("a location keeps at most {LOADS_PER_LOCATION} loads");
            table.report_problem("loads", message, report);
        }
    }
}

/// A URL with `{host}`, `{port}` and `{member}` in it. Whatever the member, what it
/// expands to is a URL.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UrlTemplate(String);

/// Destination of a request, and the path to ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Url {
    /// Host name, or IP address without brackets.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// True for `https`.
    pub is_secure: bool,
    /// Path and query.
    pub path: String,
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.scheme().name();
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

impl Url {
    /// Host and port, as in a `Host` field.
    pub fn authority(&self) -> String {
        let host = bracketed(&self.host);
        match self.port {
            port if port == self.scheme().default_port() => host.into(),
            port => format!("{host}:{port}"),
        }
    }

    fn scheme(&self) -> Scheme {
        match self.is_secure {
            true => Scheme::Https,
            false => Scheme::Http,
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Url, &'static str> {
        let (is_secure, rest) = match text.strip_prefix("https://") {
            Some(rest) => (true, Some(rest)),
            None => (false, text.strip_prefix("http://")),
        };
        let rest = rest.ok_or("does not begin with http:// or https://")?;
        let (place, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = split_authority(place, if is_secure { 443 } else { 80 })?;
        let visible = path.bytes().all(|byte| byte.is_ascii_graphic());
        if !visible || path.contains(['#', '{', '}']) || !path.starts_with('/') {
            return Err("not a path, or an unknown {name}");
        }
        let (host, path) = (host.into(), path.into());
        Ok(Url {
            host,
            port,
            is_secure,
            path,
        })
    }
}

impl Prometheus {
    /// TLS settings, if the URL is `https`.
    pub fn client_tls(&self) -> Option<ClientTls> {
        let tls = self.url.is_secure();
        tls.then(|| self.tls.clone().unwrap_or_default())
    }
}

impl UrlTemplate {
    fn is_secure(&self) -> bool {
        self.0.starts_with("https:")
    }

    /// Parses a template.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > 2048 {
            return Err("longer than 2048 bytes");
        }
        let template = UrlTemplate(text.into());
        template.fill(IpAddr::from([192, 0, 2, 1]), 8080, "a.example:80/10.0.0.1")?;
        template.fill(IpAddr::from([0; 16]), 8080, "[::]:80")?;
        Ok(template)
    }

    /// True if members of one host have URLs of their own.
    pub(crate) fn is_of_member(&self) -> bool {
        self.0.contains("{port}") || self.0.contains("{member}")
    }

    /// The URL for a member: `{host}` is its address, `{port}` its port, `{member}` its
    /// name.
    ///
    /// A Unix socket has neither host nor port: then `address` is none.
    pub fn expand(&self, address: Option<SocketAddr>, member: &str) -> Option<Url> {
        let of_unix = (Ipv4Addr::UNSPECIFIED, 0).into();
        if address.is_none() && self.needs_address() {
            return None;
        }
        let address = address.unwrap_or(of_unix);
        self.fill(address.ip(), address.port(), member).ok()
    }

    /// True if the template contains a member's host or port.
    pub(crate) fn needs_address(&self) -> bool {
        ["{host}", "{port}"]
            .iter()
            .any(|part| self.0.contains(part))
    }

    fn fill(&self, ip: IpAddr, port: u16, member: &str) -> Result<Url, &'static str> {
        let text = self.0.replace("{host}", &bracketed(&ip.to_string()));
        let text = text.replace("{port}", &port.to_string());
        Url::parse(&text.replace("{member}", &encoded(member)))
    }
}

/// `text` as a part of a path or query (RFC 3986, section 2.1).
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The loads that the file names itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricLoads(Vec<MetricLoad>);

impl Field for MetricLoads {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        self.0.clear();
        for entry in entries(&item.path, table) {
            let Ok(load) = entry.name.parse::<LoadId>() else {
                let allowed = LoadId::CPU.allowed(&Limits::Any);
                let message = "unknown load";
                report.add_problem(&entry.key_span, &entry.item.path, message, Some(allowed));
                continue;
            };
            let DeValue::String(text) = entry.item.value else {
                report.wrong(&entry.item, WRONG_TYPE, "an expression in quotes".into());
                continue;
            };
            let expression = match Expression::parse(text) {
                Ok(expression) => expression,
                Err(error) => {
                    report.wrong(&entry.item, &error.to_string(), EXPRESSION.into());
                    continue;
                }
            };
            let others = self.0.iter().map(|known| known.load);
            if check_load(load, others, &entry, report) {
                self.0.push(MetricLoad {
                    load,
                    expression,
                    optional: false,
                });
            }
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of loads, by name or by number, each with an expression in quotes".into()
    }
}

const EXPRESSION: &str =
    r#"an expression as in '1 - avg(rate(node_cpu_seconds_total{mode="idle"}))'"#;

impl Field for UrlTemplate {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, UrlTemplate::parse);
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a URL that begins with "http://", with or without {host}, {port} and {member} in it"#
            .into()
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Loads from the metrics of a group. Off unless you add the table.";
    let keys = [describe_keys(PROMETHEUS, Prometheus::default())];
    TableDoc::new("[group.NAME.prometheus]", doc, keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_made_for_members() {
        let url = |template: &str, ip: &str, port, member: &str| {
            let template = UrlTemplate::parse(template).unwrap();
            let url = template
                .expand(Some((ip.parse::<IpAddr>().unwrap(), port).into()), member)
                .unwrap();
            url.to_string()
        };
        assert_eq!(
            url("http://{host}:9100/metrics", "10.0.0.1", 80, "a:80"),
            "http://10.0.0.1:9100/metrics"
        );
        assert_eq!(
            url(
                "http://{host}:{port}/m?of={member}",
                "::1",
                81,
                "a b:80/::1"
            ),
            "http://[::1]:81/m?of=a%20b:80%2F::1"
        );
        assert_eq!(url("http://gate", "::1", 81, "a"), "http://gate/");
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "",
            "metrics",
            "ftp://{host}/metrics",
            "http://",
            "http://{hots}/",
            "http://{host}:99999/",
            "http://{host}:0/",
            "http://{host}/{name}",
            "http://{host}/a b",
            "http://{host}/\r\nX: y",
            "http://user@{host}/",
            "http://{host}?x",
            "http://[{host}]/",
        ] {
            assert!(UrlTemplate::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn default_urls_of_presets_are_urls() {
        for url in Preset::ALL.iter().filter_map(|preset| preset.default_url()) {
            assert!(UrlTemplate::parse(url).is_ok(), "{url}");
        }
    }
}

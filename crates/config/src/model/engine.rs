//! Configuration of `evenkeel engine`: contents of `engine.toml`.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::listeners::Listeners;
use super::tls::{self, ClientTls};
use crate::schema::address::Origin;
use crate::schema::errors::{Errors, Problem};
use crate::schema::field::Element;
use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::source;
use crate::schema::table::{NAMES, Table, read_document};

/// Reads and checks the client engine's configuration in the file at `path`.
///
/// # Errors
///
/// Everything that is wrong, with its place in the file. A file that is missing,
/// unreadable, too large or not UTF-8 is an error of the same type.
pub fn load_engine_config(path: &Path) -> Result<EngineConfig, Errors> {
    source::load_file(path, parse)
}

/// Checks the client engine's configuration in `text`. `file` names it in messages.
///
/// # Errors
///
/// Everything that is wrong, with its place in the text.
pub fn parse(file: &str, text: &str) -> Result<EngineConfig, Errors> {
    let (mut config, warnings) = read_document(file, text, describe_tables, read)?;
    config.warnings = warnings;
    Ok(config)
}

section! {
    /// A whole, valid configuration of a client engine.
    #[derive(Clone, Debug, PartialEq)]
    pub struct EngineConfig {
        /// Clusters to negotiate for, in the order of the file. Names are unique.
        clusters: Vec<EngineCluster> = Vec::new(),
        /// Settings that are allowed but probably not meant.
        warnings: Vec<Problem> = Vec::new(),
    }
    keys TOP {
        /// URLs of the brokers' negotiators, `http` or `https`: one, or a list. The engine asks brokers in the
        /// order of your list, and skips a broker without an answer for a while. **Required.**
        brokers: Vec<Origin> = Vec::new(); r#"["http://broker-1.example:8088", "http://broker-2.example:8088"]"#,
        /// Time limit for a broker's answer. After the limit the next broker is asked.
        broker_timeout: Duration [Time(millis(10), secs(60))] = secs(2); r#""500ms""#,
        /// TLS with brokers at `https`: a table. By default the brokers' certificates are verified with the
        /// authorities trusted by your system. Files named in the table are read again when you change them.
        broker_tls: Option<ClientTls> = None; r#"{ ca_file = "/etc/evenkeel/brokers.pem" }"#,
    }
}

section! {
    /// Cluster whose clients the engine serves.
    #[derive(Clone, Debug, PartialEq)]
    pub struct EngineCluster {
        /// Name of the cluster at the brokers.
        name: String = String::new(),
    }
    keys CLUSTER {
        /// Addresses to listen on for the cluster's clients: one, or a list. Give each cluster its own address;
        /// on one machine, 127.0.0.1, 127.0.0.2 and so on can all have port 80. **Required.**
        listen: Vec<SocketAddr> = Vec::new(); r#""127.0.0.2:80""#,
        /// Class of the clients. Set a class if your negotiator has classes.
        class: Option<String> [Text(NAMES)] = None; r#""gold""#,
        /// Mean response time required of a server for these clients.
        response_time: Option<Duration> [Time(Duration::from_micros(1), HOUR)] = None; r#""200ms""#,
        /// Maximum time for which a client may cache a redirect, in whole seconds, limited to the rest of the
        /// quantum. Keep the time short, so that your clients leave a dead server soon; asking the engine again
        /// is cheap.
        redirect_max_age: Duration [Time(secs(0), DAY)] = secs(5); r#""30s""#,
        /// Time beyond the quantum for which the last server and its known alternatives are used while no
        /// broker answers. After the time clients get 503.
        stale_for: Duration [Time(secs(0), secs(7 * 86_400))] = HOUR; r#""10m""#,
        /// Time between two test connections to the server, while there are clients. If the server does not
        /// accept test connections, another server is negotiated.
        probe_interval: Duration [Time(millis(50), DAY)] = secs(2); r#""500ms""#,
        /// Time limit for the server to accept a test connection.
        probe_timeout: Duration [Time(millis(10), secs(60))] = secs(1); r#""300ms""#,
    }
}

impl EngineCluster {
    /// A cluster with all defaults.
    pub fn new(name: &str, listen: Vec<SocketAddr>) -> Self {
        let name = name.into();
        EngineCluster {
            name,
            listen,
            ..EngineCluster::default()
        }
    }
}

impl Element for Origin {
    const NONE: Option<&'static str> = Some("no URL");
}

fn read(mut top: Table<'_>, folder: &Path, report: &mut Report<'_>) -> EngineConfig {
    let mut config = EngineConfig::default();
    top.read(TOP, &mut config, report);
    top.require("brokers", report);
    for (index, origin) in config.brokers.iter().enumerate() {
        let before = config.brokers.iter().take(index);
        if before.into_iter().any(|other| other == origin) {
            top.report_problem("brokers", format!("{origin} comes twice"), report);
        }
    }
    let secure = config.brokers.iter().any(Origin::is_secure);
    if let Some(tls) = &mut config.broker_tls {
        tls.resolve(folder);
        if !secure {
            let message = "has no effect: no broker is at `https`";
            report.add_warning(
                &top.span_of("broker_tls"),
                &top.path_of("broker_tls"),
                message,
            );
        }
    } else if secure {
        config.broker_tls = Some(ClientTls::default());
    }
    let mut listeners = Listeners::default();
    for mut table in top.named_tables("cluster", NAMES, report) {
        let mut cluster = EngineCluster::new(&table.name(), Vec::new());
        table.read(CLUSTER, &mut cluster, report);
        table.require("listen", report);
        let who = format!("cluster {:?}", cluster.name);
        listeners.add_addresses(&cluster.listen, &who, (&table, "listen"), report);
        config.clusters.push(cluster);
        table.report_unread(report);
    }
    if config.clusters.is_empty() {
        top.report_warning("there is no [cluster.NAME], so no client is served", report);
    }
    top.report_unread(report);
    config
}

/// The tables, for the reference and the hints.
pub(crate) fn describe_tables() -> Vec<TableDoc> {
    let top = "Keys before the first table.";
    let keys = [describe_keys(CLUSTER, EngineCluster::default())];
    vec![
        TableDoc::new("", top, [describe_keys(TOP, EngineConfig::default())]),
        tls::client_table("[broker_tls]", "TLS with brokers."),
        TableDoc::new("[cluster.NAME]", "A cluster of the brokers.", keys),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> String {
        parse("engine.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn everything_is_where_it_belongs() {
        let text = "brokers = [\"http://b-1:8088\", \"http://[::1]:8088\"]\n\
                    broker_timeout = \"1s\"\n\
                    [cluster.shop]\nlisten = \"127.0.0.2:80\"\nclass = \"gold\"\n\
                    response_time = \"200ms\"\nstale_for = \"10m\"\n";
        let config = parse("engine.toml", text).unwrap();
        assert_eq!(config.warnings, []);
        assert_eq!(config.brokers[1].as_str(), "http://[::1]:8088");
        let expected = EngineCluster {
            class: Some("gold".into()),
            response_time: Some(Duration::from_millis(200)),
            stale_for: secs(600),
            ..EngineCluster::new("shop", vec!["127.0.0.2:80".parse().unwrap()])
        };
        assert_eq!(config.clusters, [expected]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert!(errors("").contains("`brokers` is missing"));
        let plain = "brokers = \"http://b\"\nbroker_tls = true\n";
        let warned = parse("engine.toml", plain).unwrap().warnings;
        assert!(warned[0].message.contains("no broker is at `https`"));
        let secure = parse("engine.toml", "brokers = \"https://b\"").unwrap();
        assert_eq!(secure.broker_tls, Some(ClientTls::default()));
        assert!(errors("brokers = \"b:80\"").contains("not an origin"));
        assert!(errors("brokers = [\"http://b\", \"http://B:80\"]").contains("twice"));
        let twice = "brokers = \"http://b\"\n[cluster.a]\nlisten = \"127.0.0.1:80\"\n\
                     [cluster.b]\nlisten = \"127.0.0.1:80\"\n";
        assert!(errors(twice).contains("cluster \"a\" listens on 127.0.0.1:80 already"));
        let warned = parse("engine.toml", "brokers = \"http://b\"").unwrap();
        assert!(warned.warnings[0].message.contains("no client is served"));
    }
}

//! What `engine.toml` means: the configuration of `evenkeel engine`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use toml::de::DeValue;

use super::document::{Item, Report};
use super::errors::{Errors, Problem};
use super::fields::{Field, Limits, WRONG_TYPE, is_empty_list, one_or_each};
use super::keys::{DAY, Key, TableDoc, docs, secs};
use super::negotiator::Origin;
use super::parse::{NAMES, Table, document, listens};
use super::{MAX_FILE_SIZE, read_bounded};

/// Reads and checks the client engine's configuration in the file at `path`.
///
/// # Errors
///
/// Everything that is wrong, with its place in the file. A file that is missing,
/// unreadable, too large or not UTF-8 is an error of the same type.
pub fn load(path: &Path) -> Result<EngineConfig, Errors> {
    let name = path.display().to_string();
    match read_bounded(path, MAX_FILE_SIZE) {
        Ok(text) => parse(&name, &text),
        Err(reason) => Err(Errors::of_file(name, reason)),
    }
}

/// Checks the client engine's configuration in `text`. `file` names it in messages.
///
/// # Errors
///
/// Everything that is wrong, with its place in the text.
pub fn parse(file: &str, text: &str) -> Result<EngineConfig, Errors> {
    let (mut config, warnings) = document(file, text, tables, read)?;
    config.warnings = warnings;
    Ok(config)
}

/// A whole, valid configuration of a client engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Where brokers negotiate, in the order in which they are asked. At least one.
    pub brokers: Vec<Origin>,
    /// How long a broker may take to answer.
    pub broker_timeout: Duration,
    /// What is negotiated for, in the order of the file. Names are unique.
    pub clusters: Vec<EngineCluster>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<Problem>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            brokers: Vec::new(),
            broker_timeout: secs(2),
            clusters: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// A cluster whose clients the engine serves.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineCluster {
    /// Its name at the brokers.
    pub name: String,
    /// Where its clients come to.
    pub listen: Vec<SocketAddr>,
    /// The class that they are of.
    pub class: Option<String>,
    /// The mean response time that they ask for.
    pub response_time: Option<Duration>,
    /// Longest time for which a client may keep a redirect.
    pub redirect_max_age: Duration,
    /// How long a server is used beyond its quantum while no broker answers.
    pub stale_for: Duration,
    /// Time between two looks whether the server accepts connections.
    pub probe_interval: Duration,
    /// How long that may take.
    pub probe_timeout: Duration,
}

impl EngineCluster {
    /// A cluster with all defaults.
    pub fn new(name: &str, listen: Vec<SocketAddr>) -> Self {
        EngineCluster {
            name: name.into(),
            listen,
            class: None,
            response_time: None,
            redirect_max_age: secs(5),
            stale_for: secs(3600),
            probe_interval: secs(2),
            probe_timeout: secs(1),
        }
    }
}

static TOP: &[Key<EngineConfig>] = &[
    Key {
        name: "brokers",
        field: |config| &mut config.brokers,
        limits: Limits::None,
        doc: "Where brokers negotiate: one, or a list. **Required.** They are asked in this \
              order; one that does not answer is left out for a while.",
        example: r#"["http://broker-1.example:8088", "http://broker-2.example:8088"]"#,
    },
    Key {
        name: "broker_timeout",
        field: |config| &mut config.broker_timeout,
        limits: Limits::Time(Duration::from_millis(10), secs(60)),
        doc: "How long a broker may take to answer; then the next one is asked.",
        example: r#""500ms""#,
    },
];

static CLUSTER: &[Key<EngineCluster>] = &[
    Key {
        name: "listen",
        field: |cluster| &mut cluster.listen,
        limits: Limits::None,
        doc: "Where the cluster's clients come to: one address, or a list. **Required.** Each \
              cluster has its own; on one machine, 127.0.0.1, 127.0.0.2 and so on can all \
              have port 80.",
        example: r#""127.0.0.2:80""#,
    },
    Key {
        name: "class",
        field: |cluster| &mut cluster.class,
        limits: Limits::Text(NAMES.0, NAMES.1),
        doc: "The client class, if they are of one.",
        example: r#""gold""#,
    },
    Key {
        name: "response_time",
        field: |cluster| &mut cluster.response_time,
        limits: Limits::Time(Duration::from_micros(1), secs(3600)),
        doc: "The mean response time that a server must have for them.",
        example: r#""200ms""#,
    },
    Key {
        name: "redirect_max_age",
        field: |cluster| &mut cluster.redirect_max_age,
        limits: Limits::Time(Duration::ZERO, DAY),
        doc: "How long a client may keep a redirect, at most, and at most as long as is left \
              of the quantum; whole seconds. The engine is near, so asking it again is cheap, \
              and only who asks is led around a server that has died.",
        example: r#""30s""#,
    },
    Key {
        name: "stale_for",
        field: |cluster| &mut cluster.stale_for,
        limits: Limits::Time(Duration::ZERO, secs(7 * 86_400)),
        doc: "How long the last server, and those that were known beside it, are used beyond \
              the quantum while no broker answers. Then clients get 503.",
        example: r#""10m""#,
    },
    Key {
        name: "probe_interval",
        field: |cluster| &mut cluster.probe_interval,
        limits: Limits::Time(Duration::from_millis(50), DAY),
        doc: "While there are clients: time between two connections to the server that only \
              show whether it accepts them. When it does not, another one is negotiated.",
        example: r#""500ms""#,
    },
    Key {
        name: "probe_timeout",
        field: |cluster| &mut cluster.probe_timeout,
        limits: Limits::Time(Duration::from_millis(10), secs(60)),
        doc: "How long the server may take to accept one.",
        example: r#""300ms""#,
    },
];

fn read(mut top: Table<'_>, _: &Path, report: &mut Report<'_>) -> EngineConfig {
    let mut config = EngineConfig::default();
    top.read(TOP, &mut config, report);
    top.require("brokers", report);
    let mut listening = HashMap::new();
    for mut table in top.named_tables("cluster", NAMES, report) {
        let mut cluster = EngineCluster::new(&table.name(), Vec::new());
        table.read(CLUSTER, &mut cluster, report);
        table.require("listen", report);
        for address in &cluster.listen {
            let who = format!("cluster {:?}", cluster.name);
            let (span, path) = (table.span_of("listen"), table.path_of("listen"));
            listens(&mut listening, *address, &who, &span, &path, report);
        }
        config.clusters.push(cluster);
        table.finish(report);
    }
    if config.clusters.is_empty() {
        let message = "there is no [cluster.NAME], so nobody is served".into();
        report.warning(&(0..0), "", message);
    }
    top.finish(report);
    config
}

/// The tables, for the reference and the hints.
pub(super) fn tables() -> Vec<TableDoc> {
    vec![
        TableDoc {
            header: "",
            doc: "Keys that stand before the first table.",
            keys: docs(TOP, EngineConfig::default()),
        },
        TableDoc {
            header: "[cluster.NAME]",
            doc: "A cluster of the brokers.",
            keys: docs(CLUSTER, EngineCluster::new("", Vec::new())),
        },
    ]
}

const BROKER: &str = r#"a broker's URL, as in "http://broker.example:8088""#;

/// Brokers: one, or a list.
impl Field for Vec<Origin> {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut brokers: Vec<Origin> = Vec::new();
        let one = |item: &Item<'_>, report: &mut Report<'_>| {
            let DeValue::String(text) = item.value else {
                return report.wrong(item, WRONG_TYPE, BROKER.into());
            };
            match text.trim().parse::<Origin>() {
                Ok(origin) if origin.as_str().starts_with("https:") => {
                    report.wrong(item, "https is not spoken with brokers", BROKER.into());
                }
                Ok(origin) if brokers.contains(&origin) => {
                    report.wrong(item, "it comes twice", BROKER.into());
                }
                Ok(origin) => brokers.push(origin),
                Err(_) => report.wrong(item, "not a URL of a broker", BROKER.into()),
            }
        };
        if is_empty_list(item) {
            return report.wrong(item, "no broker", self.allowed(limits));
        }
        one_or_each(item, report, one);
        *self = brokers;
    }

    fn show(&self, _: &Limits) -> Option<String> {
        None
    }

    fn allowed(&self, _: &Limits) -> String {
        format!("{BROKER}, or a list of such")
    }
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
        assert!(errors("brokers = \"https://b\"").contains("https is not spoken"));
        assert!(errors("brokers = \"b:80\"").contains("not a URL of a broker"));
        assert!(errors("brokers = [\"http://b\", \"http://B:80\"]").contains("twice"));
        let twice = "brokers = \"http://b\"\n[cluster.a]\nlisten = \"127.0.0.1:80\"\n\
                     [cluster.b]\nlisten = \"127.0.0.1:80\"\n";
        assert!(errors(twice).contains("cluster \"a\" listens on 127.0.0.1:80 already"));
        let warned = parse("engine.toml", "brokers = \"http://b\"").unwrap();
        assert!(warned.warnings[0].message.contains("nobody is served"));
    }
}

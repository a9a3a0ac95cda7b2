//! `[broker]`: where agents report, and how.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::document::Report;
use super::fields::Limits;
use super::keys::{DAY, Key, TableDoc, docs, secs};
use super::parse::Table;

/// Where agents report by the reporting protocol, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Broker {
    /// UDP addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// File with the keys that broker and agents share.
    pub key_file: PathBuf,
    /// Time between two reports of an agent.
    pub interval: Duration,
    /// Intervals after which an alert ends that an agent no longer hears of.
    pub alert_lease: u16,
    /// At least how often each agent hears of the broker.
    pub keepalive: Duration,
    /// Time after which an agent is forgotten that is silent.
    pub forget_after: Duration,
    /// Most agents at once.
    pub max_agents: usize,
}

impl Default for Broker {
    fn default() -> Self {
        Broker {
            listen: Vec::new(),
            key_file: PathBuf::new(),
            interval: secs(1),
            alert_lease: 3,
            keepalive: secs(10),
            forget_after: secs(60),
            max_agents: 20_000,
        }
    }
}

static BROKER: &[Key<Broker>] = &[
    Key {
        name: "listen",
        field: |broker| &mut broker.listen,
        limits: Limits::None,
        doc: "UDP addresses on which agents report: one, or a list. **Required.** On a host \
              with several addresses name the one that the agents use: an answer from \
              another one does not reach them.",
        example: r#""0.0.0.0:9909""#,
    },
    Key {
        name: "key_file",
        field: |broker| &mut broker.key_file,
        limits: Limits::None,
        doc: "File with the keys that broker and agents share: one line `ID:HEX`, or two \
              while keys are changed. Nobody but owner and group may read it. It is read \
              again with the configuration; a relative path starts at the folder of that. \
              **Required.**",
        example: r#""/etc/evenkeel/broker.key""#,
    },
    Key {
        name: "interval",
        field: |broker| &mut broker.interval,
        limits: Limits::Time(Duration::from_millis(100), secs(3600)),
        doc: "Time between two reports of an agent. Best well below `load_max_age` of the \
              groups, so that a lost report does not make a load unknown.",
        example: r#""500ms""#,
    },
    Key {
        name: "alert_lease",
        field: |broker| &mut broker.alert_lease,
        limits: Limits::Number(2.0, 100.0, "intervals"),
        doc: "After how many intervals a server lifts a load alert of which it hears no \
              more, because the broker is lost. Alerts are renewed at each interval.",
        example: "5",
    },
    Key {
        name: "keepalive",
        field: |broker| &mut broker.keepalive,
        limits: Limits::Time(secs(1), secs(600)),
        doc: "At least how often each agent hears of the broker. After three times as long \
              without any message it takes the broker for gone, and registers anew until \
              it gets an answer.",
        example: r#""5s""#,
    },
    Key {
        name: "forget_after",
        field: |broker| &mut broker.forget_after,
        limits: Limits::Time(secs(30), DAY),
        doc: "Time after which an agent is forgotten of which nothing is heard. Its loads \
              have been unknown since `load_max_age`; now its opinion of its servers is \
              withdrawn, too, and members that it has added leave the group.",
        example: r#""5m""#,
    },
    Key {
        name: "max_agents",
        field: |broker| &mut broker.max_agents,
        limits: Limits::Number(1.0, 1_000_000.0, "agents"),
        doc: "Most agents at once. Further ones get no answer and try again.",
        example: "1000",
    },
];

/// Reads `[broker]` of the file, if it is there.
pub(super) fn read(top: &mut Table<'_>, folder: &Path, report: &mut Report<'_>) -> Option<Broker> {
    let mut table = top.table("broker", report)?;
    let mut broker = Broker::default();
    table.read(BROKER, &mut broker, report);
    table.require("listen", report);
    table.require("key_file", report);
    broker.key_file = folder.join(&broker.key_file);
    let mut listening = HashSet::new();
    for address in &broker.listen {
        // Port 0 is a different port each time.
        if address.port() != 0 && !listening.insert(address) {
            let (span, path) = (table.span_of("listen"), table.path_of("listen"));
            report.problem(&span, &path, format!("{address} comes twice"), None);
        }
    }
    table.finish(report);
    Some(broker)
}

/// What the reference says of the table.
pub(super) fn tables() -> [TableDoc; 1] {
    [TableDoc {
        header: "[broker]",
        doc: "Where agents (`evenkeel agent`) report the load of their servers, over UDP: \
              see [reporting-protocol.md](reporting-protocol.md). Off unless the table is \
              there.",
        keys: docs(BROKER, Broker::default()),
    }]
}

#[cfg(test)]
mod tests {
    use super::super::{Config, parse};
    use super::*;

    fn config(text: &str) -> Config {
        parse("/etc/evenkeel/evenkeel.toml", text).unwrap()
    }

    #[test]
    fn a_broker_has_addresses_and_keys() {
        let text = "[broker]\nlisten = [\"127.0.0.1:9909\", \"[::1]:9909\"]\nkey_file = \"keys\"";
        let broker = config(text).broker.unwrap();
        assert_eq!(broker.listen.len(), 2);
        assert_eq!(broker.key_file, Path::new("/etc/evenkeel/keys"));
        assert_eq!(config("").broker, None);
    }

    #[test]
    fn what_is_missing_or_doubled_is_said() {
        let errors = parse("f", "[broker]\nlisten = [\"127.0.0.1:1\", \"127.0.0.1:1\"]");
        let errors = errors.unwrap_err().to_string();
        assert!(errors.contains("`key_file` is missing"), "{errors}");
        assert!(errors.contains("127.0.0.1:1 comes twice"), "{errors}");
    }

    #[test]
    fn a_group_that_agents_join_needs_no_members() {
        let text = "[broker]\nlisten = \"127.0.0.1:1\"\nkey_file = \"k\"\n\
                    [group.g]\nagents_may_join = true\n\
                    [rule.r]\nlisten = \"127.0.0.1:2\"\nagents_may_join = true\n\
                    [rule.s]\nlisten = \"127.0.0.1:3\"\ngroup = \"g\"\n";
        let config = config(text);
        assert_eq!(config.groups.len(), 2);
        for group in &config.groups {
            assert!(group.agents_may_join && group.members.is_empty());
        }
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        let alone = self::config("[rule.r]\nlisten = \"127.0.0.1:2\"\nagents_may_join = true");
        let warning = alone.warnings[0].to_string();
        assert!(warning.contains("there is no [broker]"), "{warning}");
        let refused = parse("f", "[group.g]\nagents_may_join = false");
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("`members` is missing"), "{refused}");
    }
}

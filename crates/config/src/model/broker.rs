//! `[broker]`: where agents report, and how.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// Addresses, keys and timing of the reporting protocol.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Broker {}
    keys BROKER {
        /// UDP addresses to listen on: one, or a list. If your host has several addresses, use the address to
        /// which your agents send: agents do not accept answers from another address. **Required.**
        listen: Vec<SocketAddr> = Vec::new(); r#""0.0.0.0:9909""#,
        /// File with the keys shared by broker and agents: one line `ID:HEX`, or two lines while you change
        /// keys. Let nobody but the file's owner and group read the file. The file is read again with the
        /// configuration; a relative path starts at the configuration's folder. **Required.**
        key_file: PathBuf = PathBuf::new(); r#""/etc/evenkeel/broker.key""#,
        /// Time between two reports of an agent. Set a time well below `load_max_age` of your groups, so that a
        /// lost report does not make a load unknown.
        interval: Duration [Time(millis(100), HOUR)] = secs(1); r#""500ms""#,
        /// Number of intervals after which an agent ends a load alert not renewed by the broker, because the
        /// broker is lost. The broker renews alerts at each interval.
        alert_lease: u16 [Number(2.0, 100.0, "intervals")] = 3; "5",
        /// Maximum time between two messages of the broker to an agent. After three times as long without a
        /// message the agent considers the broker lost, and registers again until an answer arrives.
        keepalive: Duration [Time(secs(1), secs(600))] = secs(10); r#""5s""#,
        /// Time without a message after which an agent is removed: reports about the states of its servers are
        /// dropped, and members added by the agent leave the group. Its loads have been unknown since
        /// `load_max_age`.
        forget_after: Duration [Time(secs(30), DAY)] = secs(60); r#""5m""#,
        /// Maximum number of agents. Further agents get no answer and try again. Raise the number if you have
        /// more agents.
        max_agents: usize [Number(1.0, 1_000_000.0, "agents")] = 20_000; "1000",
    }
}

/// Reads `[broker]` of the file, if it is there.
pub(crate) fn read(top: &mut Table<'_>, folder: &Path, report: &mut Report<'_>) -> Option<Broker> {
    let mut table = top.read_table("broker", report)?;
    let mut broker = Broker::default();
    table.read(BROKER, &mut broker, report);
    table.require("listen", report);
    table.require("key_file", report);
    broker.key_file = folder.join(&broker.key_file);
    let mut listening = HashSet::new();
    // Port 0 is a different port each time.
    for address in broker.listen.iter().filter(|address| address.port() != 0) {
        if !listening.insert(address) {
            table.report_problem("listen", format!("{address} comes twice"), report);
        }
    }
    table.report_unread(report);
    Some(broker)
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Receiver of load reports, sent by agents (`evenkeel agent`) over UDP: see \
               [reporting-protocol.md](reporting-protocol.md). Off unless you add the table.";
    TableDoc::new("[broker]", doc, [describe_keys(BROKER, Broker::default())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, parse};

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

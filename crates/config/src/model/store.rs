//! `[store]`: store with the shared configuration of several balancers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::tls::ClientTls;
use crate::schema::address::Origin;
use crate::schema::field::{FileName, Texts, blank};
use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Store (etcd) with the shared configuration of several balancers.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Store {}
    keys STORE {
        /// URLs of the servers of one etcd cluster, `http` or `https`: one, or a list. The balancer asks one
        /// server at a time, and the next server if there is no answer. **Required.** A change needs a restart,
        /// as do changes of all keys of this table.
        endpoints: Vec<Origin> = Vec::new(); r#"["https://etcd-1.example.org:2379", "https://etcd-2.example.org:2379"]"#,
        /// Prefix of all keys in the store. Balancers with the same prefix have the same configuration. Use
        /// several prefixes if one etcd serves several of your installations.
        prefix: String [Text(PREFIX)] = "/evenkeel/".into(); r#""/evenkeel/edge/""#,
        /// File for the last good copy of the configuration in effect. If the store does not answer, the
        /// balancer starts with the copy. The balancer makes the file if needed; a relative path starts at the
        /// configuration's folder. Only the owner may read the file, because it may contain secrets.
        /// **Required.**
        copy_file: PathBuf = PathBuf::new(); r#""/var/lib/evenkeel/store.copy""#,
        /// User of the store, if your store has users.
        user: Option<String> [Text(USER)] = None; r#""evenkeel""#,
        /// File with the password of `user`. White space around the password is ignored. Let nobody but the
        /// file's owner and group have access. The file is read again with each login.
        password_file: Option<FileName> = None; r#""/etc/evenkeel/etcd.password""#,
        /// TLS to servers at `https`: a table with the keys of `[group.NAME.member_tls]`.
        tls: Option<ClientTls> = None; r#"{ ca_file = "/etc/evenkeel/etcd-ca.pem" }"#,
        /// Time limit for the answer of a server, before the next server is asked.
        timeout: Duration [Time(millis(100), secs(60))] = secs(2); r#""5s""#,
        /// Staged roll-out of changes to [one balancer, then to a share, then to
        /// all](store.md#staged-roll-out): a table, or `true` for all defaults. By default all balancers get a
        /// change at once. Set the same on all your balancers with the same prefix.
        rollout: Option<Rollout> = None; "true",
    }
}

section! {
    /// Staged roll-out: a change gets to some balancers before others.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Rollout {}
    keys ROLLOUT {
        /// Share of the balancers which get a change in the second step, in percent; at least two balancers.
        percent: f32 [Number(1.0, 100.0, "")] = 25.0; "50",
        /// Minimum time for which each step is watched.
        watch: Duration [Time(secs(1), HOUR)] = secs(30); r#""2m""#,
        /// Maximum time of a step if there are too few requests for a sooner decision. After the time the step
        /// counts as good, unless the requests seen so far say otherwise. Raise the time if you have few
        /// requests.
        limit: Duration [Time(secs(1), DAY)] = secs(600); r#""30m""#,
        /// Number of requests which the balancers with the change, and also the others, must have had before a
        /// step is good.
        min_requests: u32 [Number(10.0, 1_000_000.0, "requests")] = 1000; "200",
        /// Maximum number of additional failures compared with the other balancers, in percent of all requests.
        /// Differences explained by chance do not count.
        more_failures: f32 [Number(0.0, 100.0, "")] = 0.5; "0.1",
        /// Maximum ratio of the 99th percentile of the latency to the percentile at the other balancers.
        slower: f32 [Number(1.0, 100.0, "")] = 1.5; "2.0",
    }
}

impl Store {
    /// Returns the settings of TLS with the server at `endpoint`, if TLS is used.
    pub fn client_tls(&self, endpoint: &Origin) -> Option<ClientTls> {
        let is_https = endpoint.is_secure();
        is_https.then(|| self.tls.clone().unwrap_or_default())
    }
}

impl AsTable for Rollout {
    const ALLOWED: &'static str = "a table, or true";
    const TRUE: bool = true;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(ROLLOUT, self, report);
        if self.limit < self.watch {
            table.report_problem("limit", "is shorter than `watch`", report);
        }
    }
}
blank!(Rollout);

const PREFIX: Texts = (
    "a text that begins and ends with /, of at most 200 visible ASCII characters",
    |text| {
        let is_part = |byte: u8| byte.is_ascii_graphic();
        text.len() <= 200
            && text.starts_with('/')
            && text.ends_with('/')
            && text.bytes().all(is_part)
    },
);

const USER: Texts = ("1 to 128 visible ASCII characters", |text| {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
});

/// Most servers.
const MAX_ENDPOINTS: usize = 16;

/// Reads `[store]` of the file, if it is there.
pub(crate) fn read(top: &mut Table<'_>, folder: &Path, report: &mut Report<'_>) -> Option<Store> {
    let mut table = top.read_table("store", report)?;
    let mut store = Store::default();
    table.read(STORE, &mut store, report);
    table.require("endpoints", report);
    table.require("copy_file", report);
    store.copy_file = folder.join(&store.copy_file);
    if let Some(file) = &mut store.password_file {
        file.resolve(folder);
    }
    match (&store.user, &store.password_file) {
        (Some(_), None) => table.require("password_file", report),
        (None, Some(_)) => table.require("user", report),
        _ => {}
    }
    if store.endpoints.len() > MAX_ENDPOINTS {
        let message = format!("has more than {MAX_ENDPOINTS} servers");
        table.report_problem("endpoints", message, report);
    }
    let secure = store.endpoints.iter().any(Origin::is_secure);
    if store.tls.is_some() && !secure && !store.endpoints.is_empty() {
        let message = "no server is at https, so there is no TLS: write https in `endpoints`";
        table.report_problem("tls", message, report);
    }
    let plain = store.endpoints.iter().find(|one| !one.is_secure());
    if let (Some(plain), Some(_)) = (plain, &store.user) {
        let message = format!(
            "the password goes to {plain} in the clear: whoever is on the way can read it; write https"
        );
        report.add_warning(&table.span_of("user"), &table.path_of("user"), message);
    }
    if let Some(tls) = &mut store.tls {
        tls.resolve(folder);
    }
    table.report_unread(report);
    (!store.endpoints.is_empty()).then_some(store)
}

/// Reference of the tables.
pub(crate) fn describe_tables() -> [TableDoc; 2] {
    let store = "A store (etcd) with the configuration shared by several balancers: see \
                 [store.md](store.md). With the table, keep in the file only the tables of this \
                 balancer alone: `[store]`, `[node]`, `[process]`, `[admin]`.";
    let rollout = "[Staged roll-out](store.md#staged-roll-out) of changes: each step is compared \
                   with the balancers still without the change, and a worse change is taken back \
                   automatically.";
    [
        TableDoc::new("[store]", store, [describe_keys(STORE, Store::default())]),
        TableDoc::new(
            "[store.rollout]",
            rollout,
            [describe_keys(ROLLOUT, Rollout::default())],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{parse, parse_config_source, parse_shared};

    const STORE_TEXT: &str =
        "[store]\nendpoints = \"http://127.0.0.1:2379\"\ncopy_file = \"copy\"\n";

    #[test]
    fn a_store_has_servers_and_a_copy() {
        let config = parse("/etc/evenkeel/evenkeel.toml", STORE_TEXT).unwrap();
        let store = config.store.unwrap();
        assert_eq!(store.prefix, "/evenkeel/");
        assert_eq!(store.copy_file, Path::new("/etc/evenkeel/copy"));
        assert_eq!(store.rollout, None);
        assert_eq!(store.client_tls(&store.endpoints[0]), None);
        assert!(parse("f", "").unwrap().store.is_none());
        let staged = format!("{STORE_TEXT}rollout = true\n");
        let rollout = parse("f", &staged).unwrap().store.unwrap().rollout;
        assert_eq!(rollout, Some(Rollout::default()));
    }

    #[test]
    fn what_is_wrong_with_a_store() {
        for (text, wanted) in [
            ("[store]\ncopy_file = \"c\"", "`endpoints` is missing"),
            (
                "[store]\nendpoints = \"http://a:1\"",
                "`copy_file` is missing",
            ),
            (
                "[store]\nendpoints = \"http://a:1\"\ncopy_file = \"c\"\nuser = \"u\"",
                "`password_file` is missing",
            ),
            (
                "[store]\nendpoints = \"http://a:1\"\ncopy_file = \"c\"\nprefix = \"edge\"",
                "begins and ends with /",
            ),
            (
                "[store]\nendpoints = \"http://a:1\"\ncopy_file = \"c\"\ntls = true",
                "no server is at https",
            ),
            (
                "[store]\nendpoints = \"http://a:1\"\ncopy_file = \"c\"\nrollout = { watch = \"2m\", limit = \"1m\" }",
                "is shorter than `watch`",
            ),
        ] {
            let errors = parse("f", text).unwrap_err().to_string();
            assert!(errors.contains(wanted), "{errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
    }

    #[test]
    fn where_the_rest_comes_from_is_known_without_the_rest() {
        let own = format!(
            "{STORE_TEXT}[node]\nname = \"a\"\n[rule.web]\nlisten = \"127.0.0.1:1\"\ngroup = \"all\"\n"
        );
        assert!(parse("f", &own).is_err(), "there is no such group");
        let known = parse_config_source("f", &own).unwrap().unwrap();
        assert_eq!(known.node.name.as_deref(), Some("a"));
        assert_eq!(known.store.prefix, "/evenkeel/");
        let shared = "[group.all]\nmembers = [\"a:1\"]\n";
        let config = parse_shared("f", &own, ("shared", shared)).unwrap();
        assert_eq!(
            (&config.store, &config.node),
            (&Some(known.store), &known.node)
        );
        assert_eq!(parse_config_source("f", "workers = 3\n"), Ok(None));
        // All of it is told by who reads all.
        assert_eq!(
            parse_config_source("f", "[store]\nprefix = \"/\"\n[rule.x]\n"),
            Ok(None)
        );
        let wrong = own.replace("copy_file", "copy_files");
        let errors = parse_config_source("f", &wrong).unwrap_err().to_string();
        assert!(errors.contains("f:3:1: store.copy_files"), "{errors}");
    }

    #[test]
    fn what_is_shared_and_what_is_local_are_one_configuration() {
        let shared = "workers = 3\n[rule.web]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n";
        let config = parse_shared("/c/own.toml", STORE_TEXT, ("revision 7", shared)).unwrap();
        assert_eq!(config.workers, Some(3));
        assert_eq!(config.rules.len(), 1);
        assert!(config.store.is_some());
        assert!(config.included.is_empty());
        // Places are told by the name that it was given.
        let shared = "[rule.web]\nlisten = 1\nmembers = [\"a:1\"]\n";
        let errors = parse_shared("own", STORE_TEXT, ("revision 7", shared)).unwrap_err();
        assert!(errors.to_string().starts_with("revision 7:2:"), "{errors}");
    }

    #[test]
    fn what_is_local_cannot_be_shared() {
        for text in [
            "[store]\nendpoints = \"http://a:1\"\ncopy_file = \"c\"",
            "[process]\nuser = \"x\"",
            "[admin]\nlisten = \"127.0.0.1:1\"",
            "[node]\nname = \"x\"",
            "include = \"*.toml\"",
        ] {
            let errors = parse_shared("own", "", ("revision 7", text)).unwrap_err();
            let errors = errors.to_string();
            assert!(errors.contains("own file"), "{errors}");
            assert!(errors.starts_with("revision 7:1:"), "{errors}");
        }
        // What both say, neither can.
        let errors = parse_shared("own", "workers = 1\n", ("revision 7", "workers = 2\n"));
        assert!(errors.is_err());
    }
}

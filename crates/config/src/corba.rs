//! `[corba]`: the CORBA load balancing and monitoring service.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::group::Granularity;
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::Reach;
use toml::de::DeValue;

use super::agent::Address;
use super::document::{Item, Report};
use super::fields::{Limits, choice_field};
use super::keys::{DAY, Key, MILLISECOND, TableDoc, docs, secs};
use super::parse::{Table, check_alert, listens};
use super::{GroupConfig, keys};

/// Where CORBA clients and servers find the load manager, and how it treats them.
#[derive(Clone, Debug, PartialEq)]
pub struct Corba {
    /// TCP addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// What references name, where that is not what `listen` says. An empty host is that
    /// of `listen`.
    pub advertise: Option<Address>,
    /// Where the load manager's reference is written to.
    pub ior_file: Option<PathBuf>,
    /// Where object groups are kept over restarts; `None` is nowhere.
    pub state_file: Option<PathBuf>,
    /// Threads that serve clients.
    pub workers: usize,
    /// Prefix of the repository ids of module `CosLoadBalancing`.
    pub repository_prefix: String,
    /// Time between two questions to a load monitor.
    pub pull_interval: Duration,
    /// How long it may take to answer.
    pub pull_timeout: Duration,
    /// Time after which a load alert is told again what it has not acknowledged.
    pub alert_retry: Duration,
    /// Time between two pings of a member; `None` is never.
    pub liveness: Option<Duration>,
    /// How long a custom strategy may take.
    pub custom_strategy_timeout: Duration,
    /// How long other objects of the application may take: a member to say its type, a
    /// factory to make one.
    pub call_timeout: Duration,
    /// How long a member may take for a request that is relayed.
    pub relay_timeout: Duration,
    /// Largest message in bytes, all fragments together.
    pub max_message: usize,
    /// Most connections of clients at once; further ones wait in the listen queue.
    pub max_connections: usize,
    /// How long a connection without a request is kept.
    pub idle_timeout: Duration,
    /// What a group says in which nobody is left.
    pub when_empty: WhenEmpty,
    /// What object groups have that say nothing else; without a name.
    pub groups: GroupConfig,
}

/// What a client is told by a group without members, or whose members are all dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenEmpty {
    /// That it may try again.
    Transient,
    /// That the group is not there.
    ObjectNotExist,
}

choice_field!(WhenEmpty,
    "transient" => WhenEmpty::Transient = WhenEmpty::Transient,
    "object_not_exist" => WhenEmpty::ObjectNotExist = WhenEmpty::ObjectNotExist);

impl Default for Corba {
    fn default() -> Self {
        let mut groups = GroupConfig::new("", Vec::new());
        groups.settings.granularity = Granularity::OnDemand;
        groups.settings.load_id = LoadId::FIRST;
        groups.settings.in_order = true;
        // Who counts clients round robin expects each member in its turn.
        groups.settings.slow_start = Duration::ZERO;
        // While the load alert of a server is on, it sends all its clients away.
        groups.settings.alert.move_share = 0.5;
        groups.choose(Reach::Forwarded);
        Corba {
            listen: Vec::new(),
            advertise: None,
            ior_file: None,
            state_file: Some(PathBuf::from("corba-state.json")),
            workers: 1,
            repository_prefix: "tao.lb".into(),
            pull_interval: secs(5),
            pull_timeout: secs(1),
            alert_retry: secs(1),
            liveness: Some(secs(2)),
            custom_strategy_timeout: Duration::from_millis(200),
            call_timeout: secs(2),
            relay_timeout: secs(60),
            max_message: 2 * 1024 * 1024,
            max_connections: 10_000,
            idle_timeout: secs(600),
            when_empty: WhenEmpty::Transient,
            groups,
        }
    }
}

static CORBA: &[Key<Corba>] = &[
    Key {
        name: "listen",
        field: |corba| &mut corba.listen,
        limits: Limits::None,
        doc: "TCP addresses on which CORBA clients and servers reach the load manager: one, \
              or a list. **Required.** References hold the port, and are valid over a \
              restart only if it stays the same.",
        example: r#""0.0.0.0:2809""#,
    },
    Key {
        name: "advertise",
        field: |corba| &mut corba.advertise,
        limits: Limits::None,
        doc: "Host and port that references name, for clients that reach the load manager \
              by another address than it listens on; `\":2809\"` is another port only. By \
              default the first address of `listen`, with the host's name if that one is \
              unspecified (`0.0.0.0`, `[::]`).",
        example: r#""balancer.example:2809""#,
    },
    Key {
        name: "ior_file",
        field: |corba| &mut corba.ior_file,
        limits: Limits::None,
        doc: "A file that the load manager's reference (`IOR:…`) is written to at the start, \
              for `-ORBInitRef LoadManager=file://…`. It is left there at the end, because \
              the reference stays valid. A relative path starts at the folder of the \
              configuration file.",
        example: r#""/run/evenkeel/lm.ior""#,
    },
    Key {
        name: "state_file",
        field: |corba| &mut corba.state_file,
        limits: Limits::None,
        doc: "Where object groups, their members, properties, monitors and alerts are kept \
              over restarts. `false` keeps them in memory only. A relative path starts at \
              the folder of the configuration file. A second process with the same file does \
              not start. A change needs a restart.",
        example: r#""/var/lib/evenkeel/corba-state.json""#,
    },
    Key {
        name: "workers",
        field: |corba| &mut corba.workers,
        limits: Limits::Number(1.0, 64.0, "threads"),
        doc: "Threads that serve CORBA clients. One forwards tens of thousands of clients \
              per second. A change needs a restart.",
        example: "2",
    },
    Key {
        name: "repository_prefix",
        field: |corba| &mut corba.repository_prefix,
        limits: Limits::Text("1 to 64 letters, digits, \"-\", \"_\" or \".\"", |text| {
            super::parse::NAMES.1(text)
        }),
        doc: "Prefix of the repository ids of module `CosLoadBalancing` in what is sent: \
              applications that were built for TAO's service know `tao.lb`, later drafts of \
              the OMG have `omg.org`. Both are understood. A change needs a restart.",
        example: r#""omg.org""#,
    },
    Key {
        name: "pull_interval",
        field: |corba| &mut corba.pull_interval,
        limits: Limits::Time(Duration::from_millis(10), secs(3600)),
        doc: "How often each registered load monitor is asked. Best below `load_max_age` of \
              the groups.",
        example: r#""1s""#,
    },
    Key {
        name: "pull_timeout",
        field: |corba| &mut corba.pull_timeout,
        limits: Limits::Time(MILLISECOND, secs(600)),
        doc: "How long a load monitor may take to answer. Monitors do not wait for each \
              other.",
        example: r#""300ms""#,
    },
    Key {
        name: "alert_retry",
        field: |corba| &mut corba.alert_retry,
        limits: Limits::Time(Duration::from_millis(10), secs(3600)),
        doc: "How long a load alert object may take to acknowledge that it is on or off; \
              then it is told again.",
        example: r#""500ms""#,
    },
    Key {
        name: "liveness",
        field: |corba| &mut corba.liveness,
        limits: Limits::Time(Duration::from_millis(10), DAY),
        doc: "How often each member is asked whether it is there (`_non_existent`). One that \
              is not is dropped from its group if the group's membership is \
              infrastructure-controlled, and takes no clients until it is back if it is \
              application-controlled. One that only sheds load is there. With more than \
              2,000 members for each second of it the interval is longer. `false` asks \
              nobody.",
        example: r#""10s""#,
    },
    Key {
        name: "custom_strategy_timeout",
        field: |corba| &mut corba.custom_strategy_timeout,
        limits: Limits::Time(MILLISECOND, secs(60)),
        doc: "How long a custom strategy may take to name the next member. After it the \
              group's fallback decides.",
        example: r#""50ms""#,
    },
    Key {
        name: "call_timeout",
        field: |corba| &mut corba.call_timeout,
        limits: Limits::Time(MILLISECOND, secs(600)),
        doc: "How long other objects of the application may take: a member to say whether it \
              has the type of its group, or whether it is there; a factory to make or delete \
              a member.",
        example: r#""5s""#,
    },
    Key {
        name: "relay_timeout",
        field: |corba| &mut corba.relay_timeout,
        limits: Limits::Time(MILLISECOND, DAY),
        doc: "How long a member may take for a request that is relayed (granularity \
              `per_request`). Then the client gets TIMEOUT, and the member a CancelRequest.",
        example: r#""5m""#,
    },
    Key {
        name: "max_message",
        field: |corba| &mut corba.max_message,
        limits: Limits::Bytes(1024, 1024 * 1024 * 1024),
        doc: "Largest GIOP message, all its fragments together. Larger ones are refused; \
              those that are only relayed (granularity `per_request`) count, too.",
        example: r#""16MiB""#,
    },
    Key {
        name: "max_connections",
        field: |corba| &mut corba.max_connections,
        limits: Limits::Number(1.0, 1_000_000.0, "connections"),
        doc: "Most connections at once. Further ones wait in the listen queue.",
        example: "1000",
    },
    Key {
        name: "idle_timeout",
        field: |corba| &mut corba.idle_timeout,
        limits: Limits::Time(MILLISECOND, DAY),
        doc: "How long a connection without a request is kept. It is then closed in the way \
              that tells the client's ORB to connect again when it needs to.",
        example: r#""3m""#,
    },
    Key {
        name: "when_empty",
        field: |corba| &mut corba.when_empty,
        limits: Limits::None,
        doc: "What a client is told by a group that has no member, or whose members are all \
              dead: `\"transient\"`, so that it may try again, or `\"object_not_exist\"`, as \
              TAO's load manager has it, for clients that wait for it to do something else. \
              While members are only down, drained or overloaded it is always TRANSIENT.",
        example: r#""object_not_exist""#,
    },
    Key {
        name: "groups",
        field: |corba| &mut corba.groups,
        limits: Limits::None,
        doc: "What counts in object groups that say nothing else by their properties: keys \
              of [`[group.NAME]`](#groupname) up to `connection_failure_limit`, with their \
              defaults, except that `granularity` is `\"on_demand\"`, `strategy` the default of clients \
              that are [forwarded](strategies.md#which-default-holds), `slow_start` is `\"0s\"`, \
              `load` is `\"first\"` (the first load of what a location reports by CORBA, \
              whatever it measures, or else `cpu`), and `move_share` of `alert` is 0.5: below \
              1, load alerts last until so many clients \
              have left as the difference is worth, and at most this share. With 1 they last \
              until loads have fallen. `[defaults]` does not count here.",
        example: r#"{ strategy = "least_loaded", load_max_age = "12s" }"#,
    },
];

/// Reads `[corba]` of the file, if it is there.
pub(super) fn read(
    top: &mut Table<'_>,
    folder: &Path,
    listening: &mut HashMap<SocketAddr, String>,
    report: &mut Report<'_>,
) -> Option<Corba> {
    let mut table = top.table("corba", report)?;
    let mut corba = Corba::default();
    table.read(CORBA, &mut corba, report);
    table.require("listen", report);
    let (span, path) = (table.span_of("listen"), table.path_of("listen"));
    for address in &corba.listen {
        listens(listening, *address, "[corba]", &span, &path, report);
    }
    if let Some(groups) = table.table("groups", report) {
        check_alert(&groups, &corba.groups, report);
        corba.groups.said.note(&groups);
    }
    corba.groups.choose(Reach::Forwarded);
    for file in [&mut corba.ior_file, &mut corba.state_file] {
        *file = file.take().map(|file| folder.join(file));
    }
    if corba.ior_file.is_some() && corba.ior_file == corba.state_file {
        let (span, path) = (table.span_of("ior_file"), table.path_of("ior_file"));
        let message = "is the `state_file`, too: name another file".into();
        report.problem(&span, &path, message, None);
    }
    table.finish(report);
    Some(corba)
}

/// What the reference says of the table.
pub(super) fn tables() -> [TableDoc; 1] {
    [TableDoc {
        header: "[corba]",
        doc: "The CORBA load balancing and monitoring service: see [corba.md](corba.md). Off \
              unless the table is there. Whoever reaches it can change its groups, as with \
              any CORBA service: keep it in a network that you trust.",
        keys: docs(CORBA, Corba::default()),
    }]
}

keys::table_field!(GroupConfig, keys::GROUP, "a table of keys of a group");

#[cfg(test)]
mod tests {
    use super::super::{Config, parse};
    use super::*;

    fn config(text: &str) -> Config {
        parse("/etc/evenkeel/evenkeel.toml", text).unwrap()
    }

    #[test]
    fn the_service_needs_an_address_only() {
        let config = config("[corba]\nlisten = \"127.0.0.1:2809\"");
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        let corba = config.corba.unwrap();
        assert_eq!(corba.listen, ["127.0.0.1:2809".parse().unwrap()]);
        let state = Path::new("/etc/evenkeel/corba-state.json");
        assert_eq!(corba.state_file.as_deref(), Some(state));
        assert_eq!((corba.ior_file, corba.liveness), (None, Some(secs(2))));
        assert_eq!(corba.groups.settings.granularity, Granularity::OnDemand);
        assert_eq!(super::super::Config::default().corba, None);
    }

    #[test]
    fn members_are_asked_unless_told_otherwise_u5() {
        let off = config("[corba]\nlisten = \"127.0.0.1:2809\"\nliveness = false");
        assert_eq!(off.corba.unwrap().liveness, None);
        assert_eq!(Corba::default().liveness, Some(secs(2)));
    }

    #[test]
    fn groups_start_from_their_own_table() {
        let text = "[defaults]\nload = \"memory\"\n\
                    [corba]\nlisten = \"127.0.0.1:1\"\nstate_file = false\nior_file = \"lm\"\n\
                    advertise = \":99\"\nliveness = \"3s\"\n\
                    [corba.groups]\nstrategy = \"random\"\nalert = { release = 0.5 }\n";
        let corba = config(text).corba.unwrap();
        assert_eq!(corba.groups.strategy.kind().name, "random");
        assert_eq!(corba.groups.settings.alert.release, 0.5);
        assert_eq!(corba.groups.settings.load_id, LoadId::FIRST);
        assert_eq!(corba.state_file, None);
        let lm = Path::new("/etc/evenkeel/lm");
        assert_eq!(corba.ior_file.as_deref(), Some(lm));
        let advertise = corba.advertise.unwrap();
        assert_eq!((&*advertise.host, advertise.port), ("", 99));
        assert_eq!(corba.liveness, Some(secs(3)));
    }

    #[test]
    fn what_cannot_be_is_said() {
        let error = |text: &str| parse("f", text).unwrap_err().to_string();
        let missing = error("[corba]\nadvertise = \"x:1\"");
        assert!(missing.contains("`listen` is missing"), "{missing}");
        let twice = error("[corba]\nlisten = [\"127.0.0.1:1\", \"127.0.0.1:1\"]");
        assert!(
            twice.contains("[corba] listens on 127.0.0.1:1 already"),
            "{twice}"
        );
        let taken = error("[admin]\nlisten = \"127.0.0.1:1\"\n[corba]\nlisten = \"127.0.0.1:1\"");
        assert!(taken.contains("the admin API listens on"), "{taken}");
        let one = error("[corba]\nlisten = \"127.0.0.1:1\"\nior_file = \"corba-state.json\"");
        assert!(one.contains("is the `state_file`, too"), "{one}");
        let check = "[corba]\nlisten = \"127.0.0.1:1\"\ngroups = { health_check = true }";
        assert!(
            error(check).contains("corba.groups.health_check"),
            "{}",
            error(check)
        );
    }

    #[test]
    fn alerts_without_effect_are_warned_of() {
        let text = "[corba]\nlisten = \"127.0.0.1:1\"\n[corba.groups]\n\
                    granularity = \"per_request\"\nalert = { close_idle = \"1s\" }";
        let warning = config(text).warnings[0].to_string();
        assert!(warning.contains("have no effect"), "{warning}");
    }
}

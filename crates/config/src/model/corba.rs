//! `[corba]`: the CORBA load balancing and monitoring service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::group::Granularity;
use evenkeel_core::load::LoadId;

use super::group::GroupConfig;
use super::listeners::Listeners;
use super::reach::Reach;
use crate::schema::address::Address;
use crate::schema::field::choice_field;
use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{NAMES, Table};

section! {
    /// Addresses, state and limits of the load manager.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Corba {}
    keys CORBA {
        /// TCP addresses of the load manager: one, or a list. References contain the port. Keep the port the
        /// same, so that references stay valid over a restart. **Required.**
        listen: Vec<SocketAddr> = Vec::new(); r#""0.0.0.0:2809""#,
        /// Host and port in references. Set this address if your clients reach the load manager at another
        /// address than `listen`; `":2809"` changes the port only. By default the first address of `listen`,
        /// with the host's name if the address is unspecified (`0.0.0.0`, `[::]`). With a
        /// [standby](corba.md#standby), list the addresses of all balancers, in the same order on each
        /// balancer: clients try the addresses one after the other.
        advertise: Vec<Address> [HostOptional] = Vec::new(); r#""balancer.example:2809""#,
        /// File for the load manager's reference (`IOR:…`), written at the start. Use the file with
        /// `-ORBInitRef LoadManager=file://…`. The balancer does not remove the file at the end, because the
        /// reference stays valid. A relative path starts at the folder of the configuration file.
        ior_file: Option<PathBuf> = None; r#""/run/evenkeel/lm.ior""#,
        /// File which keeps object groups, members, properties, monitors and alerts over restarts. Set `false`
        /// to keep the state in memory only. A relative path starts at the folder of the configuration file. A
        /// second process with the same file does not start. A change needs a restart.
        state_file: Option<PathBuf> = Some(PathBuf::from("corba-state.json")); r#""/var/lib/evenkeel/corba-state.json""#,
        /// Joins several balancers with the same `[store]` into one load manager: one balancer serves, the
        /// others [stand by](corba.md#standby). Set `true` on each of your balancers. The store then keeps
        /// object groups and all other state of `state_file`, and `state_file` is a copy. A change needs a
        /// restart.
        standby: bool = false; "true",
        /// Number of threads for CORBA clients. One thread forwards tens of thousands of clients per second. A
        /// change needs a restart.
        workers: usize [Number(1.0, 64.0, "threads")] = 1; "2",
        /// Prefix of the repository ids of module `CosLoadBalancing` in messages to applications. Applications
        /// built for TAO's service use `tao.lb`, later drafts of the OMG `omg.org`. Set the prefix of your
        /// applications; the balancer accepts both. A change needs a restart.
        repository_prefix: String [Text(NAMES)] = "tao.lb".into(); r#""omg.org""#,
        /// Time between two questions to a registered load monitor. Keep the time below `load_max_age` of your
        /// groups.
        pull_interval: Duration [Time(millis(10), HOUR)] = secs(5); r#""1s""#,
        /// Time limit for the answer of a load monitor. Monitors do not wait for each other.
        pull_timeout: Duration [Time(millis(1), secs(600))] = secs(1); r#""300ms""#,
        /// Time limit for a load alert object to acknowledge a change (on or off); after the limit the call is
        /// repeated.
        alert_retry: Duration [Time(millis(10), HOUR)] = secs(1); r#""500ms""#,
        /// Time between two checks of a member (`_non_existent`). A member found not to exist is removed from
        /// its group if the membership is infrastructure-controlled; if the membership is
        /// application-controlled, the member gets no clients until it is back. A member which only sheds load
        /// is alive. With more than 2,000 members for each second of the interval, the interval is longer. Set
        /// `false` to turn the checks off.
        liveness: Option<Duration> [Time(millis(10), DAY)] = Some(secs(2)); r#""10s""#,
        /// Time limit for a custom strategy to name the next member. After the limit the group's fallback
        /// decides.
        custom_strategy_timeout: Duration [Time(millis(1), secs(60))] = millis(200); r#""50ms""#,
        /// Time limit for calls to other objects of the application: type and liveness checks of members, and
        /// the creation or deletion of members by factories.
        call_timeout: Duration [Time(millis(1), secs(600))] = secs(2); r#""5s""#,
        /// Time limit for a member to answer a relayed request (granularity `per_request`). After the limit the
        /// client gets TIMEOUT, and the member a CancelRequest.
        relay_timeout: Duration [Time(millis(1), DAY)] = secs(60); r#""5m""#,
        /// Maximum size of a GIOP message, all fragments together. Larger messages are refused, even if they
        /// are only relayed (granularity `per_request`). Raise the size if your applications send larger
        /// messages.
        max_message: usize [Bytes(1024, 1024 * 1024 * 1024)] = 2 * 1024 * 1024; r#""16MiB""#,
        /// Maximum number of connections at once. Further connections wait in the listen queue.
        max_connections: usize [Number(1.0, 1_000_000.0, "connections")] = 10_000; "1000",
        /// Time without a request after which a connection is closed with CloseConnection. The client's ORB
        /// connects again when needed.
        idle_timeout: Duration [Time(millis(1), DAY)] = secs(600); r#""3m""#,
        /// Exception for clients of a group without members, or with dead members only: `"transient"`, so that
        /// clients may try again, or `"object_not_exist"`, as with TAO's load manager. Set `"object_not_exist"`
        /// if your clients rely on this exception. While members are only down, drained or overloaded, the
        /// exception is always TRANSIENT.
        when_empty: WhenEmpty = WhenEmpty::Transient; r#""object_not_exist""#,
        /// Defaults of object groups, overridden by the properties of a group. You can set all keys of
        /// [`[group.NAME]`](#groupname) up to `connection_failure_limit`. The defaults are the same, with these
        /// exceptions: `granularity` is `"on_demand"`, `strategy` is the default of clients that are
        /// [forwarded](strategies.md#which-default-holds), `slow_start` is `"0s"`, `load` is `"first"` (the
        /// first load which a location reports by CORBA, whatever the measure, or else `cpu`), and `move_share`
        /// of `alert` is 0.5. With a `move_share` below 1, a load alert lasts until the excess load has left,
        /// and at most this share of the clients leaves. With 1 the alert lasts until loads have fallen, which
        /// is the default if the threshold is a load (`critical_threshold`, or a number as `threshold`).
        /// `[defaults]` does not apply here.
        groups: GroupConfig = object_groups(); r#"{ strategy = "least_loaded", load_max_age = "12s" }"#,
    }
}

/// Exception for clients of a group without members, or with dead members only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenEmpty {
    /// TRANSIENT: the client may try again.
    Transient,
    /// OBJECT_NOT_EXIST: the group is not there.
    ObjectNotExist,
}

choice_field!(WhenEmpty,
    "transient" => WhenEmpty::Transient,
    "object_not_exist" => WhenEmpty::ObjectNotExist);

/// Default settings of object groups.
fn object_groups() -> GroupConfig {
    let mut groups = GroupConfig::default();
    groups.settings.granularity = Granularity::OnDemand;
    groups.settings.load_id = LoadId::FIRST;
    groups.settings.in_order = true;
    // Who counts clients round robin expects each member in its turn.
    groups.settings.slow_start = Duration::ZERO;
    groups.choose_defaults(Reach::Forwarded);
    groups
}

/// Most addresses in a reference.
const MAX_ADVERTISED: usize = 16;

/// True if this build can serve the section.
const IS_SERVED: bool = cfg!(feature = "corba");

/// Reads `[corba]` of the file, if it is there.
pub(crate) fn read(
    top: &mut Table<'_>,
    folder: &Path,
    listeners: &mut Listeners,
    has_store: bool,
    report: &mut Report<'_>,
) -> Option<Corba> {
    let mut table = top.read_table("corba", report)?;
    if !IS_SERVED {
        return not_served(&table, report);
    }
    let mut corba = Corba::default();
    table.read(CORBA, &mut corba, report);
    table.require("listen", report);
    listeners.add_addresses(&corba.listen, "[corba]", (&table, "listen"), report);
    if let Some(groups) = table.read_table("groups", report) {
        corba.groups.warn_of_alerts(&groups, report);
    }
    corba.groups.choose_defaults(Reach::Forwarded);
    for file in [&mut corba.ior_file, &mut corba.state_file]
        .into_iter()
        .flatten()
    {
        *file = folder.join(&*file);
    }
    let no_host = |other: &Address| other.host.is_empty();
    if corba.advertise.iter().skip(1).any(no_host) {
        let message = "has an address without a host behind the first one: name each balancer";
        table.report_problem("advertise", message, report);
    }
    if corba.advertise.len() > MAX_ADVERTISED {
        let message = format!("has more than {MAX_ADVERTISED} addresses");
        table.report_problem("advertise", message, report);
    }
    if corba.standby && !has_store {
        let message =
            "needs a store that the balancers share: add [store] to the balancer's own file";
        table.report_problem("standby", message, report);
    }
    if corba.ior_file.is_some() && corba.ior_file == corba.state_file {
        table.report_problem(
            "ior_file",
            "is the `state_file`, too: name another file",
            report,
        );
    }
    table.report_unread(report);
    Some(corba)
}

/// Refuses the section.
fn not_served(table: &Table<'_>, report: &mut Report<'_>) -> Option<Corba> {
    let message = "this build has no CORBA: remove the table, or use a build with the feature \
                   `corba`";
    report.add_problem(table.name_span(), "corba", message, None);
    None
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "The CORBA load balancing and monitoring service: see [corba.md](corba.md). Off \
               unless you add the table. Use the service in a trusted network only: every client \
               which can connect can change your groups, as with any CORBA service.";
    TableDoc::new("[corba]", doc, [describe_keys(CORBA, Corba::default())])
}

#[cfg(test)]
mod tests {
    use evenkeel_core::strategy::{Values, default_kind};

    use super::*;
    use crate::schema::table::read_document;
    use crate::{Config, parse};

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
        assert_eq!(Config::default().corba, None);
    }

    #[test]
    fn balancers_that_share_a_store_can_stand_by() {
        let text = "[store]\nendpoints = \"http://a:1\"\ncopy_file = \"c\"\n\
                    [corba]\nlisten = \"127.0.0.1:1\"\nstandby = true\n\
                    advertise = [\"lb-1:2809\", \"lb-2:2809\"]\n";
        let corba = config(text).corba.unwrap();
        assert!(corba.standby);
        let hosts: Vec<_> = corba.advertise.iter().map(|at| &*at.host).collect();
        assert_eq!(hosts, ["lb-1", "lb-2"]);
        // The store may stand in a balancer's own file, and the table in what all share.
        let (own, shared) = text.split_at(text.find("[corba]").unwrap());
        assert!(crate::parse_shared("f", own, ("revision 1", shared)).is_ok());
        assert!(crate::parse("f", shared).is_err());
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
        let advertise = &corba.advertise[..];
        assert!(matches!(advertise, [one] if one.host.is_empty() && one.port == 99));
        assert_eq!(corba.liveness, Some(secs(3)));
    }

    #[test]
    fn tao_2_with_a_load_as_threshold_alerts_last_until_loads_are_lower() {
        let critical = "strategy = { name = \"least_loaded\", critical_threshold = 80 }";
        let reject = "strategy = { name = \"least_loaded\", reject_threshold = 80 }";
        let with = |more: &str| format!("{critical}\n{more}");
        for (groups, move_share, pulses) in [
            (String::new(), 0.5, true),
            (reject.into(), 0.5, true),
            (critical.into(), 1.0, false),
            ("alert = { threshold = 80 }".into(), 1.0, false),
            (
                with("alert = { threshold = { above_average = 0.5 } }"),
                0.5,
                true,
            ),
            (with("alert = { release = 0.5 }"), 1.0, false),
            // Whoever wants pulses says so, and bindings for a fixed time are ended in them.
            (with("alert = { move_share = 0.25 }"), 0.25, true),
            (with("adaptive = false"), 1.0, true),
        ] {
            let text = format!("[corba]\nlisten = \"127.0.0.1:1\"\n[corba.groups]\n{groups}");
            let alert = config(&text).corba.unwrap().groups.settings.alert;
            assert_eq!(
                (alert.move_share, alert.pulses),
                (move_share, pulses),
                "{groups}"
            );
        }
        // Another strategy, as an administrator sets one, has its own default.
        let text = format!("[corba]\nlisten = \"127.0.0.1:1\"\n[corba.groups]\n{critical}");
        let mut groups = config(&text).corba.unwrap().groups;
        groups.set_strategy(Values::defaults(default_kind()));
        assert_eq!(groups.settings.alert.move_share, 0.5);
        assert!(groups.settings.alert.pulses);
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
        let nobody = error("[corba]\nlisten = \"127.0.0.1:1\"\nadvertise = [\":1\", \":2\"]");
        assert!(nobody.contains("name each balancer"), "{nobody}");
        let alone = error("[corba]\nlisten = \"127.0.0.1:1\"\nstandby = true");
        assert!(alone.contains("f:3:11: corba.standby"), "{alone}");
        assert!(alone.contains("add [store]"), "{alone}");
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
    fn a_build_without_the_service_refuses_the_table() {
        let text = "workers = 1\n[corba]\nlisten = \"127.0.0.1:2809\"\n";
        let read = |mut top: Table<'_>, _: &Path, report: &mut Report<'_>| {
            let table = top.read_table("corba", report).unwrap();
            not_served(&table, report)
        };
        let refused = read_document(
            "evenkeel.toml",
            text,
            crate::model::config::describe_tables,
            read,
        );
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.starts_with("evenkeel.toml:2:1: corba: this build has no CORBA"),
            "{refused}"
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

//! `[xds]`: groups for other people's proxies and clients.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::group_name::unknown_group;
use super::listeners::Listeners;
use super::protocol::MemberProtocol;
use super::rule::{Protocol, Rule};
use super::shared_group::SharedGroup;
use super::tls::Tls;
use crate::schema::document::Span;
use crate::schema::field::choice_field;
use crate::schema::key::{DAY, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// Addresses of the server of xDS, and the groups for its clients.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Xds {
        /// Groups for clients.
        served: Vec<XdsGroup> = Vec::new(),
    }
    keys XDS {
        /// Addresses to listen on: one, or a list. **Required.**
        listen: Vec<SocketAddr> = Vec::new(); r#""0.0.0.0:18000""#,
        /// TLS between clients and the server: a table with the keys of `[rule.NAME.tls]`. Ask for
        /// `client_certificates`: everybody who may connect sees all your members and may report their loads.
        tls: Option<Tls> = None; r#"{ certificates = "/etc/evenkeel/xds.pem", client_certificates = { ca_file = "/etc/evenkeel/clients.pem" } }"#,
        /// Groups for clients. By default all groups of the file. Set a list if your clients must not see all
        /// groups.
        groups: Vec<String> = Vec::new(); r#"["pool"]"#,
        /// Place of the decision how much traffic a member gets. With `"weights"` this process decides, by the
        /// group's strategy and all knowledge of the members. With `"client_side_weighted_round_robin"` each
        /// client decides, by the utilisation which members report with their responses (ORCA). Choose the
        /// latter if your members report ORCA and your clients support the policy. Health, drain and alerts
        /// come from this process in any case.
        policy: XdsPolicy = XdsPolicy::Weights; r#""client_side_weighted_round_robin""#,
        /// Groups whose members speak HTTP/2 without TLS, such as servers of gRPC: Envoy then speaks HTTP/2
        /// with these members. You need not list groups of rules with `member_protocol = "h2"`.
        http2: Vec<String> = Vec::new(); r#"["grpc"]"#,
        /// Maximum number of updates per second to a client, for each type of resource. Weights alone are sent
        /// at most five times a second for each group.
        max_pushes_per_second: f64 [Number(0.1, 100.0, "")] = 10.0; "2.0",
        /// Time constant with which weights approach their targets; `"0s"` is at once.
        damping: Duration [Time(secs(0), secs(60))] = millis(300); r#""1s""#,
        /// Smallest share by which a weight must change before the change is sent.
        smallest_change: f32 [Number(0.0, 0.5, "")] = 0.03; "0.1",
        /// Time between two reports of clients about their requests at members (LRS), which become loads of the
        /// members' locations. Set `false` for no reports.
        load_report_interval: Option<Duration> [Time(millis(100), secs(600))] = Some(secs(2)); r#""5s""#,
        /// Time limit for clients to connect to members.
        connect_timeout: Duration [Time(millis(1), secs(600))] = secs(5); r#""1s""#,
        /// Maximum number of clients (connections) at once. Further connections are closed at once. Raise the
        /// number if you have more clients.
        max_clients: usize [Number(1.0, 100_000.0, "connections")] = 1000; "100",
        /// Maximum number of names which a client may subscribe to, for each type of resource. A client which
        /// wants more is refused.
        max_subscriptions: usize [Number(1.0, 1_000_000.0, "names")] = 10_000; "2000",
        /// Maximum size of a message of a client. A client which sends a larger message is refused.
        max_message: usize [Bytes(4096, 64 * 1024 * 1024)] = 1024 * 1024; r#""4MiB""#,
        /// Time without progress of a message after which a client is disconnected.
        send_timeout: Duration [Time(millis(100), DAY)] = secs(30); r#""10s""#,
    }
}

/// Group that clients may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsGroup {
    /// Name of the group.
    pub name: String,
    /// True if the members speak HTTP/2.
    pub http2: bool,
    /// True if the members speak TLS.
    pub tls: bool,
}

/// Place of the decision how much traffic a member gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XdsPolicy {
    /// The balancer decides.
    Weights,
    /// Each client decides, by the reports of members.
    ClientSide,
}

choice_field!(XdsPolicy,
    "weights" => XdsPolicy::Weights,
    "client_side_weighted_round_robin" => XdsPolicy::ClientSide);

impl Xds {
    /// Least time between two pushes to a client.
    pub fn between_pushes(&self) -> Duration {
        // The range of the key makes it a time.
        Duration::try_from_secs_f64(1.0 / self.max_pushes_per_second).unwrap_or(secs(1))
    }

    /// True if clients need a certificate.
    fn knows_clients(&self) -> bool {
        let clients = self.tls.iter().flat_map(|tls| &tls.client_certificates);
        clients.into_iter().any(|clients| clients.required)
    }
}

/// True if this build can serve the section.
const IS_SERVED: bool = cfg!(feature = "fleet");

/// Groups and rules of the file that the section depends on.
pub(crate) struct XdsDependencies<'a> {
    /// The groups, with where each stands.
    pub groups: &'a [SharedGroup],
    /// Places of groups that rules may share.
    pub shared: &'a HashMap<String, Span>,
    /// The rules.
    pub rules: &'a [Rule],
}

/// Reads `[xds]` of the file, if it is there. `used` gets the groups that clients may have.
pub(crate) fn read(
    top: &mut Table<'_>,
    folder: &Path,
    around: &XdsDependencies<'_>,
    used: &mut HashSet<String>,
    listeners: &mut Listeners,
    report: &mut Report<'_>,
) -> Option<Xds> {
    let mut table = top.read_table("xds", report)?;
    if !IS_SERVED {
        let message = "this build has no xDS: remove the table, or use a build with the feature \
                       `fleet`";
        report.add_problem(table.name_span(), "xds", message, None);
        return None;
    }
    let mut xds = Xds::default();
    table.read(XDS, &mut xds, report);
    table.require("listen", report);
    if let Some(tls) = &mut xds.tls {
        tls.resolve(folder);
    }
    listeners.add_addresses(&xds.listen, "[xds]", (&table, "listen"), report);
    let is_local = xds.listen.iter().all(|address| address.ip().is_loopback());
    if !xds.knows_clients() && !is_local {
        let message = "whoever can connect sees all members and may report loads of them: ask for \
                       client_certificates in tls";
        table.report_warning(message, report);
    }
    for (key, names) in [("groups", &xds.groups), ("http2", &xds.http2)] {
        for name in names {
            if !around.groups.iter().any(|group| group.name == *name) {
                unknown_group(&table, key, name, around.shared, report);
            }
        }
    }
    let own = |name: &str| {
        let group = around.groups.iter().find(|group| group.name == name);
        group.and_then(|group| group.member_protocol)
    };
    let of_http = { around.rules.iter() }.filter(|rule| rule.protocol == Protocol::Http);
    let http2: HashSet<&str> = of_http
        .flat_map(|rule| {
            let of_rule = rule.http.member_protocol;
            let names = rule.group_names();
            names
                .into_iter()
                .filter(move |name| own(name).unwrap_or(of_rule) == MemberProtocol::Http2)
        })
        .chain(xds.http2.iter().map(String::as_str))
        .collect();
    let wanted: HashSet<&str> = xds.groups.iter().map(String::as_str).collect();
    let served = around.groups.iter();
    let served = served.filter(|group| wanted.is_empty() || wanted.contains(&*group.name));
    let served = served.map(|group| XdsGroup {
        name: group.name.clone(),
        http2: http2.contains(&*group.name),
        tls: group.member_tls.is_some(),
    });
    xds.served = served.collect();
    used.extend(xds.served.iter().map(|group| group.name.clone()));
    table.report_unread(report);
    Some(xds)
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Groups for Envoy and for clients of gRPC, by xDS: see [xds.md](xds.md). Off unless \
               you add the table.";
    TableDoc::new("[xds]", doc, [describe_keys(XDS, Xds::default())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const GROUPS: &str = "[group.a]\nmembers = [\"192.0.2.1:80\"]\n[group.b]\n\
                          members = [\"192.0.2.2:80\"]\nmember_tls = true\n";

    fn good(text: &str) -> crate::Config {
        let text = format!("{GROUPS}{text}");
        parse("test.toml", &text).unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn all_groups_are_served_unless_some_are_named() {
        let config = good("[xds]\nlisten = \"127.0.0.1:18000\"\nhttp2 = [\"a\"]\n");
        assert_eq!(config.warnings, [], "the groups are in use");
        let xds = config.xds.unwrap();
        let served = xds
            .served
            .iter()
            .map(|of| (of.name.as_str(), of.http2, of.tls));
        let served: Vec<_> = served.collect();
        assert_eq!(served, [("a", true, false), ("b", false, true)]);
        assert_eq!(xds.between_pushes(), millis(100));
        assert_eq!(xds.load_report_interval, Some(secs(2)));
        let rule = "[rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"a\"\n[rule.web.http]\nmember_protocol = \"h2\"\n";
        let xds = good(&format!(
            "{rule}[rule.c]\nlisten = \"127.0.0.1:0\"\ngroup = \"b\"\n[xds]\nlisten = \"127.0.0.1:0\"\n\
             groups = [\"a\"]\nload_report_interval = false\n\
             policy = \"client_side_weighted_round_robin\"\n"
        ));
        let xds = xds.xds.unwrap();
        assert_eq!(xds.served.len(), 1);
        assert!(xds.served[0].http2, "as its rule says");
        assert_eq!(
            (xds.load_report_interval, xds.policy),
            (None, XdsPolicy::ClientSide)
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let text = "[rule.web]\nlisten = \"127.0.0.1:18000\"\ngroup = \"a\"\n\
                    [xds]\nlisten = \"127.0.0.1:18000\"\ngroups = [\"aa\"]\nhttp2 = [\"x\"]\n\
                    max_pushes_per_second = 0\n";
        let errors = parse("test.toml", &format!("{GROUPS}{text}"));
        let errors = errors.unwrap_err().to_string();
        for part in [
            "rule \"web\" listens on 127.0.0.1:18000 already",
            "xds.groups: unknown group, did you mean \"a\"?",
            "xds.http2: unknown group",
            "max_pushes_per_second: out of range",
        ] {
            assert!(errors.contains(part), "{part}: {errors}");
        }
        let errors = parse("test.toml", "[xds]\n").unwrap_err().to_string();
        assert!(errors.contains("`listen` is missing"), "{errors}");
    }

    #[test]
    fn a_server_that_knows_no_clients_is_warned_of_where_others_reach_it() {
        let config = good("[xds]\nlisten = \"0.0.0.0:18000\"\n");
        let warning = config.warnings[0].to_string();
        assert!(warning.contains("client_certificates"), "{warning}");
        let tls = "[xds.tls]\ncertificates = \"x.pem\"\n[xds.tls.client_certificates]\nca_file = \"ca.pem\"\n";
        let config = good(&format!("[xds]\nlisten = \"0.0.0.0:18000\"\n{tls}"));
        assert_eq!(config.warnings, []);
        let files: Vec<_> = config
            .files()
            .map(|file| file.display().to_string())
            .collect();
        assert!(
            files.iter().any(|file| file.ends_with("ca.pem")),
            "{files:?}"
        );
    }
}

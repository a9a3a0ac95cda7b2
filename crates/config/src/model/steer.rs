//! `[steer.NAME]`: other balancers that get their weights from a group.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::process::Process;
use super::shared_group::SharedGroup;
use crate::schema::address::Address;
use crate::schema::document::Span;
use crate::schema::field::{Texts, blank, choice_field};
use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::similar::{similar, unknown_message};
use crate::schema::table::{AsTable, NAMES, Table};

section! {
    /// Another balancer that gets the weights of a group.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Steer {
        /// Unique name.
        name: String = String::new(),
    }
    keys STEER {
        /// Group whose weights and states the other balancer gets. The group needs no rule; you may use a group
        /// in rules, clusters and several `[steer.NAME]`. **Required.**
        group: String = String::new(); r#""web""#,
        /// Backend of HAProxy, changed over its stats socket: a table, see below. Set either this table or
        /// `nginx`.
        haproxy: Option<SteerHaproxy> = None; r#"{ socket = "unix:/run/haproxy/admin.sock" }"#,
        /// Upstream of nginx, changed by a file: a table, see below.
        nginx: Option<SteerNginx> = None; r#"{ file = "/etc/nginx/evenkeel/web.conf" }"#,
        /// Time constant with which weights follow: after this time two thirds of a change have been made.
        /// Taking a member out, or bringing a member back, is not damped. Raise the time if your weights are
        /// restless.
        damping: Duration [Time(secs(0), HOUR)] = millis(300); r#""2s""#,
        /// Action at the end: when the process stops, or when you remove the table from the configuration. With
        /// `restore` weights return to the weights in the other balancer's configuration (HAProxy) or in the
        /// group's (nginx); with `keep` nothing changes. An upgrade is no end.
        on_stop: OnStop = OnStop::Restore; r#""keep""#,
        /// Changes nothing in the other balancer. The status and `evenkeel steer` show what would change. Set
        /// `true` to try the table first.
        dry_run: bool = false; "true",
    }
}

section! {
    /// Settings of a backend of HAProxy.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SteerHaproxy {}
    keys HAPROXY {
        /// HAProxy's stats socket (`stats socket` in its section `global`), with `level admin`. Prefer a Unix
        /// socket: a socket at a TCP address is open to everybody who can reach the address. **Required.**
        socket: Address [UnixToo] = Address::default(); r#""unix:/run/haproxy/admin.sock""#,
        /// Name of the backend (or of the section `listen`). By default the name of the group.
        backend: String [Text(BACKENDS)] = String::new(); r#""web""#,
        /// Adds members unknown to HAProxy: parameters of a line `server`, possibly empty, or `false` to add
        /// none. Names of added servers are `evenkeel-` and the address. The balancer removes added servers
        /// when they are no longer members. You need HAProxy 2.4 or newer.
        add_servers: Option<String> [Text(SERVER)] = None; r#""check inter 2s""#,
        /// Minimum time between two changes of weights, as long as nothing else changes.
        interval: Duration [Time(millis(50), HOUR)] = millis(200); r#""1s""#,
        /// Time between two queries of HAProxy's state. A restart, or a change by somebody else, is noticed
        /// within this time.
        check_interval: Duration [Time(millis(100), HOUR)] = secs(1); r#""5s""#,
        /// Smallest share by which a weight must change before the change is sent.
        smallest_change: f32 [Number(0.0, 1.0, "")] = 0.03; "0.1",
        /// Time limit of each conversation.
        timeout: Duration [Time(millis(10), secs(60))] = secs(2); r#""500ms""#,
    }
}

section! {
    /// Settings of an upstream of nginx.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SteerNginx {}
    keys NGINX {
        /// File to write: a line `server ADDRESS weight=N;` for each member. Include the file within
        /// `upstream`, and put nothing else into the file. A relative path starts at the configuration's
        /// folder. **Required.**
        file: PathBuf = PathBuf::new(); r#""/etc/nginx/evenkeel/web.conf""#,
        /// Program and arguments which check the new file. If the exit code is not 0, the balancer puts the old
        /// file back and does not reload nginx. Set an empty list for no check.
        check: Vec<String> [Text(WORDS)] = vec!["nginx".into(), "-t".into()]; r#"["nginx", "-t", "-q"]"#,
        /// Program and arguments which reload nginx. Set either this key or `pid_file`; if you set neither,
        /// somebody else must notice that the file has changed.
        reload: Vec<String> [Text(WORDS)] = Vec::new(); r#"["systemctl", "reload", "nginx"]"#,
        /// File with nginx's process id. The process gets SIGHUP.
        pid_file: Option<PathBuf> = None; r#""/run/nginx.pid""#,
        /// Text to add to each line `server`.
        parameters: String [Text(PARAMETERS)] = String::new(); r#""max_fails=3 fail_timeout=10s""#,
        /// Minimum time between two reloads, as long as only weights change. Keep the time long: each reload
        /// starts new worker processes.
        interval: Duration [Time(millis(100), DAY)] = secs(30); r#""5m""#,
        /// Minimum time between two reloads when a member must be taken out or comes back.
        urgent_interval: Duration [Time(millis(100), DAY)] = secs(1); r#""10s""#,
        /// Smallest share by which a weight must change to be a reason for a reload.
        smallest_change: f32 [Number(0.0, 1.0, "")] = 0.1; "0.25",
        /// Time limit of each program.
        timeout: Duration [Time(millis(10), HOUR)] = secs(10); r#""30s""#,
    }
}

/// Action on weights at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// Restore the weights of the configuration.
    Restore,
    /// Keep the current weights.
    Keep,
}

choice_field!(OnStop, "restore" => OnStop::Restore, "keep" => OnStop::Keep);

const BACKENDS: Texts = (
    "1 to 128 letters, digits, \"-\", \"_\", \".\" or \":\"",
    |text| {
        (1..=128).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    },
);

const SERVER: Texts = (
    "parameters of HAProxy, as in \"check inter 2s\", without `weight`, `disabled`, \";\", \"#\", quotes, backslashes and control characters",
    |text| {
        let forbidden = |c: char| c.is_control() || ";#\"'\\<".contains(c);
        let mut words = text.split_whitespace();
        text.len() <= 1000
            && !text.contains(forbidden)
            && words.all(|word| word != "weight" && word != "disabled")
    },
);

const WORDS: Texts = ("a text", |text| !text.is_empty() && !text.contains('\0'));

const PARAMETERS: Texts = (
    "parameters of nginx, as in \"max_fails=3 fail_timeout=10s\", without `weight`, `down`, \";\", \"{\", \"}\", \"#\", quotes and control characters",
    |text| {
        let forbidden = |c: char| c.is_control() || ";{}#\"'\\$".contains(c);
        let mut words = text.split_whitespace();
        text.len() <= 1000
            && !text.contains(forbidden)
            && words.all(|word| word != "down" && !word.starts_with("weight="))
    },
);

impl AsTable for SteerHaproxy {
    const ALLOWED: &'static str = "a table with `socket`";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(HAPROXY, self, report);
        table.require("socket", report);
    }
}
blank!(SteerHaproxy);

impl AsTable for SteerNginx {
    const ALLOWED: &'static str = "a table with `file`";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(NGINX, self, report);
        table.require("file", report);
        if !self.reload.is_empty() && self.pid_file.is_some() {
            let message = "`reload` is set, too: set only one of them";
            table.report_problem("pid_file", message, report);
        }
    }
}
blank!(SteerNginx);

impl Steer {
    /// The file that it has written, if it has one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.nginx.as_ref().map(|nginx| nginx.file.as_path())
    }

    /// The other balancer, in words: two that are the same are one.
    pub fn target(&self) -> String {
        match (&self.haproxy, &self.nginx) {
            (Some(haproxy), _) => format!(
                "HAProxy {} backend {}",
                haproxy.socket_address(),
                haproxy.backend
            ),
            (None, Some(nginx)) => format!("nginx {}", nginx.file.display()),
            (None, None) => String::new(),
        }
    }
}

impl SteerHaproxy {
    /// Address of the socket as written.
    pub fn socket_address(&self) -> String {
        match self.unix() {
            Some(path) => format!("unix:{path}"),
            None => self.socket.to_string(),
        }
    }

    /// The path of the socket if it is a Unix socket.
    pub fn unix(&self) -> Option<&str> {
        self.socket.host.strip_prefix("unix:")
    }
}

/// Reads all tables `[steer.NAME]`. `used` gets the groups that they name.
pub(crate) fn read(
    top: &mut Table<'_>,
    folder: &Path,
    groups: &[(Span, SharedGroup)],
    process: &Process,
    used: &mut HashSet<String>,
    report: &mut Report<'_>,
) -> Vec<Steer> {
    let mut all = Vec::new();
    let mut targets: HashMap<String, String> = HashMap::new();
    for mut table in top.named_tables("steer", NAMES, report) {
        let mut steer = Steer {
            name: table.name(),
            ..Steer::default()
        };
        table.read(STEER, &mut steer, report);
        table.require("group", report);
        let is_known = groups.iter().any(|(_, group)| group.name == steer.group);
        if !is_known && table.has_key("group") {
            let names = groups.iter().map(|(_, group)| group.name.as_str());
            let message = unknown_message("group", similar(&steer.group, names));
            table.report_misplaced("group", message, report);
        }
        match (table.has_key("haproxy"), table.has_key("nginx")) {
            (false, false) => {
                let message =
                    "`haproxy` or `nginx` is missing: one of them says which balancer is steered";
                table.lacks(message, None, report);
            }
            (true, true) => {
                let message = "one table steers one balancer: write another [steer.NAME] for nginx";
                table.report_problem("nginx", message, report);
            }
            _ => {}
        }
        if let Some(haproxy) = &mut steer.haproxy
            && haproxy.backend.is_empty()
        {
            haproxy.backend.clone_from(&steer.group);
        }
        if let Some(nginx) = &mut steer.nginx {
            nginx.file = folder.join(&nginx.file);
            if let Some(file) = &mut nginx.pid_file {
                *file = folder.join(&*file);
            }
            let runs = !nginx.check.is_empty() || !nginx.reload.is_empty();
            if process.user.is_some() && runs && !steer.dry_run {
                let message = "`check` and `reload` run with the few rights that `user` in [process] leaves, with which nginx \
                               can hardly be tested or reloaded: write check = [] and let systemd do both when the file \
                               has changed (docs/steer.md)";
                report.add_warning(&table.span_of("nginx"), &table.path_of("nginx"), message);
            }
        }
        let target = steer.target();
        if !target.is_empty()
            && let Some(other) = targets.insert(target, steer.name.clone())
        {
            let message = format!("[steer.{other}] steers the same balancer already");
            table.lacks(message, None, report);
        }
        used.insert(steer.group.clone());
        all.push(steer);
        table.report_unread(report);
    }
    all
}

/// The tables, for the reference.
pub(crate) fn describe_tables() -> [TableDoc; 3] {
    let steer = "Another balancer, HAProxy or nginx, which gets the weights and states of a group's \
                 members: see [steer.md](steer.md).";
    let haproxy = "A backend of HAProxy, whose servers get weights over its stats socket.";
    let nginx = "An upstream of nginx, whose servers are written into a file, with a reload.";
    [
        TableDoc::new(
            "[steer.NAME]",
            steer,
            [describe_keys(STEER, Steer::default())],
        ),
        TableDoc::new(
            "[steer.NAME.haproxy]",
            haproxy,
            [describe_keys(HAPROXY, SteerHaproxy::default())],
        ),
        TableDoc::new(
            "[steer.NAME.nginx]",
            nginx,
            [describe_keys(NGINX, SteerNginx::default())],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const GROUP: &str = "[group.pool]\nmembers = [\"192.0.2.1:80\"]\n";

    #[test]
    fn targets_are_read_and_the_group_is_in_use() {
        let text = format!(
            "{GROUP}[steer.edge]\ngroup = \"pool\"\nhaproxy = {{ socket = \"unix:/run/h.sock\" }}\n\
             [steer.other]\ngroup = \"pool\"\n[steer.other.haproxy]\nsocket = \"127.0.0.1:9999\"\nbackend = \"b\"\n\
             [steer.front]\ngroup = \"pool\"\non_stop = \"keep\"\n\
             [steer.front.nginx]\nfile = \"up.conf\"\nreload = [\"x\", \"-s\"]\ncheck = []\n"
        );
        let config = parse("/etc/evenkeel/e.toml", &text).unwrap();
        assert_eq!(config.warnings, []);
        let targets: Vec<_> = config.steer.iter().map(Steer::target).collect();
        assert_eq!(
            targets,
            [
                "HAProxy unix:/run/h.sock backend pool",
                "HAProxy 127.0.0.1:9999 backend b",
                "nginx /etc/evenkeel/up.conf"
            ]
        );
        let [edge, _, front] = &config.steer[..] else {
            panic!("{:?}", config.steer);
        };
        assert_eq!(edge.haproxy.as_ref().unwrap().unix(), Some("/run/h.sock"));
        assert_eq!(front.on_stop, OnStop::Keep);
        assert!(front.nginx.as_ref().unwrap().check.is_empty());
        let written: Vec<_> = config.written_files().map(|(_, path)| path).collect();
        assert_eq!(written, [Path::new("/etc/evenkeel/up.conf")]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let haproxy = "haproxy = { socket = \"unix:/h\" }\n";
        for (text, wanted) in [
            (format!("[steer.a]\n{haproxy}"), "`group` is missing"),
            (
                format!("[steer.a]\ngroup = \"pol\"\n{haproxy}"),
                "did you mean \"pool\"",
            ),
            (
                "[steer.a]\ngroup = \"pool\"\n".into(),
                "`haproxy` or `nginx` is missing",
            ),
            (
                "[steer.a]\ngroup = \"pool\"\nhaproxy = {}\n".into(),
                "`socket` is missing",
            ),
            (
                "[steer.a]\ngroup = \"pool\"\nnginx = {}\n".into(),
                "`file` is missing",
            ),
            (
                format!("[steer.a]\ngroup = \"pool\"\n{haproxy}nginx = {{ file = \"f\" }}\n"),
                "steers one balancer",
            ),
            (
                "[steer.a]\ngroup = \"pool\"\nhaproxy = { socket = \"/h\" }\n".into(),
                "needs `unix:`",
            ),
            (
                "[steer.a]\ngroup = \"pool\"\nhaproxy = { socket = \"unix:/h\", backend = \"a b\" }\n"
                    .into(),
                "not valid here",
            ),
            (
                "[steer.a]\ngroup = \"pool\"\nhaproxy = { socket = \"unix:/h\", add_servers = \"check; quit\" }\n"
                    .into(),
                "not valid here",
            ),
            (
                "[steer.a]\ngroup = \"pool\"\nnginx = { file = \"f\", parameters = \"x; }\" }\n".into(),
                "not valid here",
            ),
            (
                "[steer.a]\ngroup = \"pool\"\nnginx = { file = \"f\", parameters = \"weight=3\" }\n".into(),
                "not valid here",
            ),
            (
                "[steer.a]\ngroup = \"pool\"\nnginx = { file = \"f\", reload = \"x\", pid_file = \"p\" }\n".into(),
                "set only one of them",
            ),
            (
                format!("[steer.a]\ngroup = \"pool\"\n{haproxy}[steer.b]\ngroup = \"pool\"\n{haproxy}"),
                "[steer.a] steers the same balancer",
            ),
        ] {
            let text = format!("{GROUP}{text}");
            let errors = parse("test.toml", &text).unwrap_err().to_string();
            assert!(errors.contains(wanted), "{errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
    }

    #[test]
    fn programs_without_rights_are_warned_of() {
        let text = format!(
            "{GROUP}[process]\nuser = \"nobody\"\n[steer.a]\ngroup = \"pool\"\nnginx = {{ file = \"f\" }}\n"
        );
        let warnings = parse("test.toml", &text).unwrap().warnings;
        assert!(
            warnings[0].to_string().contains("check = []"),
            "{warnings:?}"
        );
    }
}

//! The whole configuration: its parts, the files beside it, and the reference of all tables.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::address::Address;

use super::acme::{self, Acme};
use super::admin::{self, AccessLog, Admin};
use super::broker::{self, Broker};
use super::corba::{self, Corba};
use super::dns::{self, Dns};
use super::fleet::{self, Fleet};
use super::group;
use super::kernel_forwarding::{self, KernelForwarding};
use super::kubernetes::{self, Kubernetes, ServicePort};
use super::location::{self, LocationConfig};
use super::log_format::LogFormat;
use super::member;
use super::mirror;
use super::negotiator::{self, Cluster, Negotiator};
use super::node::{self, Node};
use super::process::{self, Process};
use super::rule::{self, Rule};
use super::shared_group::SharedGroup;
use super::steer::{self, Steer};
use super::store::{self, Store};
use super::tls::{self, ClientTls, Tls};
use super::tracing::{self, Tracing};
use super::xds::{self, Xds};
use super::{
    alert, auth, chooser, compression, ejection, ftp, health, hedge, inference, limits, monitor,
    priority, request_id, responses, route, sources, sticky, udp, zones,
};
use crate::kept::MEMORY_FOLDER;
use crate::schema::errors::Problem;
use crate::schema::key::{DAY, describe_keys, secs, section};
use crate::schema::reference::TableDoc;

section! {
    /// A whole, valid configuration.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Config {
        /// User, group and file rights of the process.
        process: Process = Process::default(),
        /// Name and zone of this balancer.
        node: Node = Node::default(),
        /// Store of the shared configuration; `None` without a store.
        store: Option<Store> = None,
        /// The admin API.
        admin: Option<Admin> = Some(Admin::default()),
        /// Source of certificates obtained by ACME; `None` without one.
        acme: Option<Acme> = None,
        /// Collector of traces; `None` if nobody collects traces.
        tracing: Option<Tracing> = None,
        /// Resolution of members' names.
        dns: Dns = Dns::default(),
        /// Access to the API server of Kubernetes; `None` if nobody needs the server.
        kubernetes: Option<Kubernetes> = None,
        /// Settings of forwarding in the kernel.
        kernel_forwarding: KernelForwarding = KernelForwarding::default(),
        /// The other balancers; `None` is none.
        fleet: Option<Fleet> = None,
        /// Rules, in the order of the file. Names are unique.
        rules: Vec<Rule> = Vec::new(),
        /// Groups, in the order of the file. Names are unique.
        groups: Vec<SharedGroup> = Vec::new(),
        /// Locations that the file says something of, in its order. Names are unique.
        locations: Vec<LocationConfig> = Vec::new(),
        /// Receiver of agents' reports; `None` if agents cannot report.
        broker: Option<Broker> = None,
        /// Negotiator for clients; `None` without a negotiator.
        negotiator: Option<Negotiator> = None,
        /// Clusters of the negotiator, in the order of the file. Names are unique.
        clusters: Vec<Cluster> = Vec::new(),
        /// The CORBA service; `None` is none.
        corba: Option<Corba> = None,
        /// Server of xDS; `None` without the server.
        xds: Option<Xds> = None,
        /// Other balancers that get weights, in the order of the file. Names are unique.
        steer: Vec<Steer> = Vec::new(),
        /// Included files, in order.
        included: Vec<PathBuf> = Vec::new(),
        /// Settings that are allowed but probably not meant (a group that nobody uses).
        warnings: Vec<Problem> = Vec::new(),
    }
    keys TOP {
        /// Further files of the configuration. Write paths relative to the folder of the main file; the last
        /// part of a path may contain `*` (which does not match a leading dot). Each file may add rules,
        /// groups, locations and clusters, and tables found in no other file; a key set in two files is an
        /// error. Other paths in included files are relative to the folder of the main file, too. Included
        /// files cannot include others. The balancer watches included files like the main file: changed, added
        /// and removed files take effect.
        include: Vec<String> = Vec::new(); r#"["conf.d/*.toml"]"#,
        /// Number of threads for forwarding traffic. The default is one thread per core. Lower the number if
        /// you share the machine with other programs. Changes need a restart.
        workers: Option<usize> [Number(1.0, 1024.0, "threads")] = None; "4",
        /// Time limit for open connections after SIGTERM. New connections are refused at once; an idle client
        /// has one second to send a request already on the way. Raise the limit if your clients need longer to
        /// finish.
        shutdown_grace: Duration [Time(secs(0), DAY)] = secs(30); r#""1m""#,
    }
    keys ACCESS_LOG {
        /// Destination of the [access log](cli.md#the-access-log): one line per request (HTTP) or connection
        /// (TCP). Give the path of a file, or `stdout`. The balancer appends to the file, and opens the file
        /// again on SIGHUP. If the disk is too slow, lines are dropped and counted; traffic never waits for the
        /// log.
        access_log "output": Option<AccessLog> = None; r#""/var/log/evenkeel/access.log""#,
        /// Format of a line: `json`, one object per line; `combined`, the format of Apache httpd and nginx,
        /// which common log tools read; or your own text with [fields](cli.md#formats) in braces.
        access_log_format "format": LogFormat = LogFormat::Json; r#""combined""#,
    }
}

impl Config {
    /// Adds the rules and groups that a controller has generated, and the services of their members, if the
    /// configuration has a controller.
    pub fn add_generated(&mut self, generated: &Config) {
        let Some(kubernetes) = { self.kubernetes.as_mut() }.filter(|own| own.gateway.is_some())
        else {
            return;
        };
        self.rules.extend(generated.rules.iter().cloned());
        self.groups.extend(generated.groups.iter().cloned());
        let Some(generated) = &generated.kubernetes else {
            return;
        };
        kubernetes.services = match kubernetes.services.is_empty() {
            true => Arc::clone(&generated.services),
            false => {
                let own = kubernetes.services.iter();
                let all: BTreeSet<&ServicePort> = own.chain(generated.services.iter()).collect();
                all.into_iter().cloned().collect()
            }
        };
    }

    /// True if both have the same groups in memory, in the same order.
    pub fn has_same_groups(&self, other: &Config) -> bool {
        let mut pairs = self.groups.iter().zip(&other.groups);
        self.groups.len() == other.groups.len() && pairs.all(|(one, other)| one.is_same(other))
    }

    /// The files beside the configuration that are read with it, but for files that are on no disk.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let admin = self.admin.iter();
        let token = admin.filter_map(|admin| admin.token_file.as_ref());
        let broker = self.broker.iter().map(|broker| &broker.key_file);
        let broker = broker.chain(self.fleet.iter().map(|fleet| &fleet.key_file));
        let groups = self.groups.iter().map(|group| &group.monitor);
        let locations = self.locations.iter().map(|location| &location.monitor);
        let monitors = groups.chain(locations).flatten();
        let monitors = monitors.filter_map(|monitor| monitor.key_file.as_ref());
        let rules = self.rules.iter().flat_map(|rule| &rule.tls);
        let negotiator = self.negotiator.iter().flat_map(|own| &own.tls);
        let tls = self.admin.iter().flat_map(|admin| &admin.tls);
        let tls = rules.chain(negotiator).chain(tls);
        let tls = tls.chain(self.xds.iter().flat_map(|own| &own.tls));
        let members = self.groups.iter().flat_map(|group| &group.member_tls);
        let members = members.chain(self.tracing.iter().flat_map(|tracing| &tracing.tls));
        let members = members.chain(self.store.iter().flat_map(|store| &store.tls));
        let checks = self.groups.iter().flat_map(|group| &group.health_check);
        let passwords = checks.filter_map(|check| check.password_file.as_ref());
        let rules = self.rules.iter();
        let users = self.rules.iter().flat_map(Rule::auths);
        let users = users.filter_map(|auth| auth.users_file.as_ref());
        let cookies = self.groups.iter().flat_map(|group| &group.sticky);
        let cookies = cookies.filter_map(|sticky| sticky.key_file.as_ref());
        let pages = self.groups.iter().flat_map(|group| group.responses.files());
        let answers = rules.flat_map(Rule::answer_files).chain(pages);
        let administrators = self.admin.iter().flat_map(|admin| &admin.users_file);
        let users = users.chain(administrators);
        let answers = answers.chain(cookies).chain(users).map(|file| &file.path);
        let all = token
            .chain(broker)
            .chain(monitors)
            .chain(passwords)
            .chain(answers);
        let passwords = self.store.iter().flat_map(|store| &store.password_file);
        let all = all.chain(passwords.map(|file| &file.path));
        let clusters = { self.kubernetes.iter() }.flat_map(|kubernetes| &kubernetes.kubeconfig);
        let all = all.chain(clusters.map(|file| &file.path));
        let all = all.chain(tls.flat_map(Tls::files));
        all.chain(members.flat_map(ClientTls::files))
            .map(PathBuf::as_path)
            .filter(|path| !path.starts_with(MEMORY_FOLDER))
    }

    /// The files that the running balancer makes or writes, with the keys that name them; but for those in
    /// the folder of `[acme]` and the configuration itself.
    pub fn written_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let log = self.access_log.iter().filter_map(|log| match log {
            AccessLog::File(path) => Some(("access_log.output", path.as_path())),
            AccessLog::Stdout => None,
        });
        let audit = self
            .admin
            .iter()
            .filter_map(|admin| admin.audit_log.as_deref());
        let state = self
            .corba
            .iter()
            .filter_map(|own| own.state_file.as_deref());
        let reference = self.corba.iter().filter_map(|own| own.ior_file.as_deref());
        let listens = self.rules.iter().flat_map(|rule| &rule.listen);
        let sockets = listens.filter_map(|address| match address {
            Address::Unix(path) if !path.starts_with('@') => {
                Some(("rule.listen", Path::new(&**path)))
            }
            _ => None,
        });
        let steered = self.steer.iter().filter_map(Steer::file);
        let copy = self.store.iter().map(|store| store.copy_file.as_path());
        let cluster = { self.kubernetes.iter() }.filter_map(|of| of.copy_file.as_deref());
        log.chain(audit.map(|path| ("admin.audit_log", path)))
            .chain(copy.map(|path| ("store.copy_file", path)))
            .chain(cluster.map(|path| ("kubernetes.copy_file", path)))
            .chain(steered.map(|path| ("steer.nginx.file", path)))
            .chain(state.map(|path| ("corba.state_file", path)))
            .chain(reference.map(|path| ("corba.ior_file", path)))
            .chain(sockets)
    }
}

/// All tables of the file.
pub(crate) fn describe_tables() -> Vec<TableDoc> {
    let top = "Keys before the first table.";
    let access_log = [describe_keys(ACCESS_LOG, Config::default())];
    let mut tables = vec![
        TableDoc::new("", top, [describe_keys(TOP, Config::default())]),
        process::describe_table(),
        node::describe_table(),
        admin::describe_table(),
        acme::describe_table(),
        dns::describe_table(),
    ];
    tables.extend(kubernetes::describe_tables());
    tables.extend([
        kernel_forwarding::describe_table(),
        fleet::describe_table(),
        TableDoc::new("[access_log]", "The access log.", access_log),
        tracing::describe_table(),
    ]);
    tables.extend(rule::describe_tables());
    tables.extend([
        mirror::describe_table(),
        hedge::describe_table(),
        request_id::describe_table(),
    ]);
    tables.extend(limits::describe_tables());
    tables.push(priority::describe_table());
    tables.extend(responses::describe_tables());
    tables.push(ftp::describe_table());
    tables.push(udp::describe_table());
    tables.extend(tls::describe_tables());
    tables.extend([
        group::describe_table(),
        sticky::describe_table(),
        chooser::describe_table(),
    ]);
    tables.push(health::describe_table());
    tables.extend(route::describe_tables());
    tables.extend(sources::describe_tables());
    tables.extend([compression::describe_table(), auth::describe_table()]);
    tables.push(monitor::describe_table());
    tables.extend([
        alert::describe_table(),
        ejection::describe_table(),
        inference::describe_table(),
        zones::describe_table(),
    ]);
    tables.extend([
        member::describe_table(),
        location::describe_table(),
        broker::describe_table(),
    ]);
    tables.extend(negotiator::describe_tables());
    tables.push(corba::describe_table());
    tables.push(xds::describe_table());
    tables.extend(steer::describe_tables());
    tables.extend(store::describe_tables());
    tables
}

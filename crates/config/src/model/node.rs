//! `[node]`: name and zone of this balancer.

use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{NAMES, Table};

section! {
    /// Name and zone of this balancer among the balancers with a shared configuration.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Node {}
    keys NODE {
        /// Name of this balancer. Give each balancer a different name. The default is the name of the machine.
        /// A change needs a restart if you have a [`[store]`](#store). The [fleet](fleet.md) uses the new name as
        /// soon as the configuration is reloaded.
        name: Option<String> [Text(NAMES)] = None; r#""edge-1""#,
        /// [Zone](zones.md) of the balancer, for example a data centre or a rack. Groups send requests to
        /// members in the same zone first. If you leave the key out, no zone is preferred. In a pod of
        /// [Kubernetes](kubernetes.md#zones) the default is the zone of the pod's node.
        /// A change takes effect as soon as the configuration is reloaded.
        zone: Option<String> [Text(NAMES)] = None; r#""north""#,
    }
}

impl Node {
    /// Returns the name of this balancer among others: `name` of the table, or else the machine's host name.
    pub fn find_name(&self) -> String {
        let machine = || {
            let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            match name.trim() {
                "" => "localhost".into(),
                name => name.to_owned(),
            }
        };
        self.name.clone().unwrap_or_else(machine)
    }
}

/// Reads `[node]` of the file, if it is there.
pub(crate) fn read(top: &mut Table<'_>, report: &mut Report<'_>) -> Node {
    let mut node = Node::default();
    if let Some(mut table) = top.read_table("node", report) {
        table.read(NODE, &mut node, report);
        table.report_unread(report);
    }
    node
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Name and zone of this balancer: see [store.md](store.md), [fleet.md](fleet.md) and \
               [zones.md](zones.md).";
    TableDoc::new("[node]", doc, [describe_keys(NODE, Node::default())])
}

//! `[node]`: who this balancer is among others.

use crate::schema::key::{docs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{NAMES, Table};

section! {
    /// Who this balancer is among those that share a configuration.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Node {}
    keys NODE {
        /// What this balancer is called among others: no two may have the same name. Without it, the name of the machine. A change needs a restart.
        name: Option<String> [Text(NAMES)] = None; r#""edge-1""#,
        /// The [zone](zones.md) that it is in, as a data centre or a rack: groups send requests to members in
        /// that zone first. Without it there is no zone that comes first.
        zone: Option<String> [Text(NAMES)] = None; r#""north""#,
    }
}

/// Reads `[node]` of the file, if it is there.
pub(crate) fn read(top: &mut Table<'_>, report: &mut Report<'_>) -> Node {
    let mut node = Node::default();
    if let Some(mut table) = top.table("node", report) {
        table.read(NODE, &mut node, report);
        table.finish(report);
    }
    node
}

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "Who this balancer is among others: see [store.md](store.md), [fleet.md](fleet.md) and \
               [zones.md](zones.md).";
    TableDoc::new("[node]", doc, [docs(NODE, Node::default())])
}

//! `client_priorities` of a rule: which clients go first when they wait for a member.

use std::net::IpAddr;

use crate::schema::field::{Element, blank};
use crate::schema::key::{describe_keys, section};
use crate::schema::networks::Networks;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

/// Priority of requests without another setting.
pub const PRIORITY: u16 = 4;

section! {
    /// The priority of some clients.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ClientPriority {}
    keys CLIENT_PRIORITY {
        /// Networks of the clients. **Required.**
        networks: Option<Networks> = None; r#"["10.0.0.0/8", "192.0.2.7"]"#,
        /// Priority of these clients. Give your most important clients the highest number. **Required.**
        priority: Option<u16> [Number(0.0, 7.0, "")] = None; "7",
    }
}

blank!(ClientPriority);

impl AsTable for ClientPriority {
    const ALLOWED: &'static str = "a table of networks and their priority";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(CLIENT_PRIORITY, self, report);
        table.require("networks", report);
        table.require("priority", report);
    }
}

impl Element for ClientPriority {
    const NONE: Option<&'static str> = None;
}

impl ClientPriority {
    /// Returns the priority that a list gives a client.
    pub fn find(list: &[ClientPriority], client: Option<IpAddr>) -> Option<u16> {
        let client = client?;
        let names =
            |of: &&ClientPriority| of.networks.as_ref().is_some_and(|of| of.contains(client));
        list.iter().find(names)?.priority
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "The [priority](overload.md#priorities) of some clients.";
    let keys = describe_keys(CLIENT_PRIORITY, ClientPriority::default());
    TableDoc::new("[[rule.NAME.client_priorities]]", doc, [keys])
}

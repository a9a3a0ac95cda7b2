//! `[group.NAME.agent_check]`: an agent beside each member says its weight and state.

use std::time::Duration;

use crate::schema::field::{Texts, blank};
use crate::schema::key::{DAY, HOUR, docs, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Agent check: an agent beside each member is asked for a line of words.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AgentCheck {}
    keys AGENT_CHECK {
        /// Port of the agent, at the member's address. **Required.**
        port: u16 [Number(1.0, 65_535.0, "")] = 0; "8765",
        /// Time between two checks of an agent.
        interval: Duration [Time(millis(10), HOUR)] = secs(2); r#""500ms""#,
        /// Time limit for connecting and for the answer. A missing answer is not an error: the
        /// previous answer stays in force.
        timeout: Duration [Time(millis(10), HOUR)] = secs(1); r#""300ms""#,
        /// How long the agent's numbers (`75%`, `maxconn:30`) are used after its last answer. Its
        /// words (`down`, `drain`, `maint`) stay in force until it answers otherwise.
        max_age: Duration [Time(millis(10), DAY)] = secs(30); r#""10s""#,
        /// Text to send to the agent before it answers. Most agents need none; write `\n` for the
        /// end of a line.
        send: Option<String> [Text(SEND)] = None; r#""state app-1\n""#,
    }
}

const SEND: Texts = ("1 to 255 characters", |text| {
    (1..=255).contains(&text.len())
});

blank!(AgentCheck);

impl AgentCheck {
    /// A check of agents at `port`, with all defaults.
    pub fn new(port: u16) -> Self {
        AgentCheck {
            port,
            ..AgentCheck::default()
        }
    }
}

impl AsTable for AgentCheck {
    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(AGENT_CHECK, self, report);
        if self.port == 0 {
            table.require("port", report);
        }
    }
}

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "Agent check of a group, as in HAProxy; off unless the table is there. \
               [load-reports.md](load-reports.md) describes how this and the next tables are used.";
    let keys = [docs(AGENT_CHECK, AgentCheck::default())];
    TableDoc::new("[group.NAME.agent_check]", doc, keys)
}

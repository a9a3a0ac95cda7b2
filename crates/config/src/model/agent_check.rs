//! `[group.NAME.agent_check]`: an agent beside each member reports weight and state.

use std::time::Duration;

use crate::schema::field::{Texts, blank};
use crate::schema::key::{DAY, HOUR, describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Agent check: the balancer asks an agent beside each member for a line of words.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AgentCheck {}
    keys AGENT_CHECK {
        /// Port of the agent, at the member's address. **Required.**
        port: u16 [Number(1.0, 65_535.0, "")] = 0; "8765",
        /// Time between two checks of an agent.
        interval: Duration [Time(millis(10), HOUR)] = secs(2); r#""500ms""#,
        /// Time limit for connecting and for the answer. A missing answer is not an error: the previous answer
        /// stays in force.
        timeout: Duration [Time(millis(10), HOUR)] = secs(1); r#""300ms""#,
        /// Time after an agent's last answer during which its numbers (`75%`, `maxconn:30`) are used. Words
        /// (`down`, `drain`, `maint`) stay in force until the agent answers otherwise.
        max_age: Duration [Time(millis(10), DAY)] = secs(30); r#""10s""#,
        /// Text sent to the agent before the answer. Most agents need none; write `\n` for the end of a line.
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

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Agent check of a group, as in HAProxy. Off unless you add the table. For the use of \
               this and the next tables see [load-reports.md](load-reports.md).";
    let keys = [describe_keys(AGENT_CHECK, AgentCheck::default())];
    TableDoc::new("[group.NAME.agent_check]", doc, keys)
}

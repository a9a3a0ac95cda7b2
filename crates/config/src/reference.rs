//! The manual's references, written from the declarations of what they describe.

use crate::model::{agent, config, engine, scenario, strategy};

pub use crate::schema::reference::{KeyDoc, TableDoc};

/// All tables of the configuration with their keys.
pub fn tables() -> Vec<TableDoc> {
    config::tables()
}

/// All keys, in Markdown: the end of `docs/configuration.md`.
pub fn keys() -> String {
    markdown(&tables())
}

/// All keys of the agent's file, in Markdown: the end of `docs/agent.md`.
pub fn agent_keys() -> String {
    markdown(&agent::tables())
}

/// All keys of the client engine's file, in Markdown: the end of `docs/engine.md`.
pub fn engine_keys() -> String {
    markdown(&engine::tables())
}

/// All keys of a simulator's scenario, in Markdown: the end of `docs/simulator.md`.
pub fn scenario_keys() -> String {
    markdown(&scenario::tables())
}

/// All strategies, in Markdown: the end of `docs/strategies.md`.
pub fn strategies() -> String {
    strategy::reference()
}

fn markdown(tables: &[TableDoc]) -> String {
    tables.iter().map(TableDoc::markdown).collect()
}

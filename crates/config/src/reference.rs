//! The manual's references, written from the declarations of what they describe.

use evenkeel_core::strategy::{Kind, REGISTRY};

use super::fields::param_allowed;
use super::keys::{KeyDoc, TableDoc, tables};
use super::{agent, engine};

/// All keys, in Markdown: the end of `docs/configuration.md`.
pub fn keys() -> String {
    tables().iter().map(table).collect()
}

/// All keys of the agent's file, in Markdown: the end of `docs/agent.md`.
pub fn agent_keys() -> String {
    agent::tables().iter().map(table).collect()
}

/// All keys of the client engine's file, in Markdown: the end of `docs/engine.md`.
pub fn engine_keys() -> String {
    engine::tables().iter().map(table).collect()
}

/// All strategies, in Markdown: the end of `docs/strategies.md`.
pub fn strategies() -> String {
    REGISTRY.iter().map(strategy).collect()
}

fn table(table: &TableDoc) -> String {
    let title = match table.header {
        "" => "Top".into(),
        header => format!("`{header}`"),
    };
    let keys = table.keys.iter().map(key).collect::<String>();
    format!("### {title}\n\n{}\n\n{keys}", table.doc)
}

fn key(key: &KeyDoc) -> String {
    let default = match &key.default {
        Some(default) => format!("- default: `{default}`\n"),
        None => String::new(),
    };
    format!(
        "#### `{name}`\n\n{doc}\n\n- allowed: {allowed}\n{default}- example: `{name} = {example}`\n\n",
        name = key.name,
        doc = key.doc,
        allowed = key.allowed,
        example = key.example,
    )
}

fn strategy(kind: &Kind) -> String {
    let mut text = format!("### `{}`\n\n{}\n\n", kind.name, kind.doc);
    for param in kind.params {
        text += &format!(
            "- `{}`: {} Allowed: {}; default {}.\n",
            param.name,
            sentence(param.doc),
            param_allowed(param),
            param.default
        );
    }
    if !kind.params.is_empty() {
        text.push('\n');
    }
    text
}

fn sentence(text: &str) -> String {
    if text.ends_with('.') {
        text.into()
    } else {
        format!("{text}.")
    }
}

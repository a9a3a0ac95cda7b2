//! Schema of the configuration, for programs: made from the declarations that the parser and the manual's
//! references come from.

use evenkeel_core::strategy::{Kind, Param, REGISTRY};
use evenkeel_manager::config::reference::{self, KeyDoc, TableDoc};
use schemars::JsonSchema;
use serde::Serialize;

/// The answer of `GET /v1/config/schema`.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Schema {
    tables: Vec<Table>,
    strategies: Vec<Strategy>,
}

#[derive(JsonSchema, Serialize)]
struct Table {
    header: &'static str,
    meaning: &'static str,
    keys: Vec<Key>,
}

#[derive(JsonSchema, Serialize)]
struct Key {
    name: &'static str,
    alias: Option<&'static str>,
    allowed: String,
    default: Option<String>,
    example: &'static str,
    meaning: String,
    /// True if only administrators see the key's value.
    secret: bool,
    /// True if a change has no effect until the process is restarted.
    restart: bool,
}

#[derive(JsonSchema, Serialize)]
struct Strategy {
    name: &'static str,
    meaning: &'static str,
    default: bool,
    params: Vec<Parameter>,
}

#[derive(JsonSchema, Serialize)]
struct Parameter {
    name: &'static str,
    meaning: &'static str,
    unit: &'static str,
    integer: bool,
    default: f64,
    min: f64,
    max: f64,
}

impl Schema {
    pub(crate) fn new() -> Self {
        let strategies = REGISTRY.iter().enumerate();
        Schema {
            tables: reference::list_tables()
                .into_iter()
                .map(Table::from_doc)
                .collect(),
            strategies: strategies
                .map(|(index, kind)| Strategy::from_kind(kind, index == 0))
                .collect(),
        }
    }
}

impl Table {
    fn from_doc(table: TableDoc) -> Self {
        let marks = |key: &KeyDoc| (table.is_secret(key.name), table.needs_restart(key.name));
        let marks: Vec<_> = table.keys.iter().map(marks).collect();
        let keys = table.keys.into_iter().zip(marks);
        Table {
            header: table.header,
            meaning: table.doc,
            keys: keys.map(|(key, marks)| Key::from_doc(key, marks)).collect(),
        }
    }
}

impl Key {
    fn from_doc(key: KeyDoc, (secret, restart): (bool, bool)) -> Self {
        Key {
            name: key.name,
            alias: key.alias,
            allowed: key.allowed,
            default: key.default,
            example: key.example,
            meaning: key.doc,
            secret,
            restart,
        }
    }
}

impl Strategy {
    fn from_kind(kind: &Kind, default: bool) -> Self {
        Strategy {
            name: kind.name,
            meaning: kind.doc,
            default,
            params: kind.params.iter().map(Parameter::from_param).collect(),
        }
    }
}

impl Parameter {
    fn from_param(param: &Param) -> Self {
        Parameter {
            name: param.name,
            meaning: param.doc,
            unit: param.unit,
            integer: param.integer,
            default: param.default,
            min: param.min,
            max: param.max,
        }
    }
}

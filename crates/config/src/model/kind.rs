//! Program of a configuration file, found by the contents of the file.

use std::collections::HashSet;
use std::path::Path;

use toml::de::DeTable;

use super::{agent, config, engine, scenario};
use crate::schema::reference::TableDoc;
use crate::schema::source::{MAX_FILE_SIZE, read_bounded};

/// Program that a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// File of `evenkeel run`.
    Balancer,
    /// File of `evenkeel agent`.
    Agent,
    /// File of `evenkeel engine`.
    Engine,
    /// File of `evenkeel sim`.
    Scenario,
}

impl Kind {
    /// Returns the program that the file at `path` is for: the one that knows most of the keys at the file's
    /// top. A file that cannot be read, or has no known key, is the balancer's.
    pub fn of_file(path: &Path) -> Kind {
        let text = read_bounded(path, MAX_FILE_SIZE);
        text.map_or(Kind::Balancer, |text| Kind::from_text(&text))
    }

    /// Returns the program that a file with this text is for.
    pub fn from_text(text: &str) -> Kind {
        // What cannot be parsed is left out; the rest tells enough.
        let (document, _) = DeTable::parse_recoverable(text);
        let known = |tables: Vec<TableDoc>| {
            let names = names(&tables);
            let keys = document.get_ref().keys();
            keys.filter(|key| names.contains(&**key.get_ref())).count()
        };
        let (agent, engine) = (
            known(agent::describe_tables()),
            known(engine::describe_tables()),
        );
        let (balancer, scenario) = (
            known(config::describe_tables()),
            known(scenario::describe_tables()),
        );
        match balancer {
            _ if scenario > balancer.max(engine).max(agent) => Kind::Scenario,
            _ if agent > balancer.max(engine) => Kind::Agent,
            _ if engine > balancer => Kind::Engine,
            _ => Kind::Balancer,
        }
    }
}

/// Names allowed at the top of a file with these tables.
fn names(tables: &[TableDoc]) -> HashSet<&str> {
    let name = |table: &TableDoc| -> Vec<&'static str> {
        match table.header {
            "" => table.keys.iter().map(|key| key.name).collect(),
            header => {
                let names = header.trim_matches(['[', ']']).split('.');
                names.take(1).collect()
            }
        }
    };
    tables.iter().flat_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u6_files_are_known_by_what_stands_in_them() {
        for (text, kind) in [
            ("", Kind::Balancer),
            ("garbage", Kind::Balancer),
            (
                "[rule.web]\nlisten = 80\n[broker]\nlisten = 1",
                Kind::Balancer,
            ),
            ("[cluster.a]\n[negotiator]\n", Kind::Balancer),
            (
                "[host]\nlocation = \"x\"\n[broker.a]\n[server.b]",
                Kind::Agent,
            ),
            ("interval = \"1s\"\n[broker.a]\n", Kind::Agent),
            ("brokers = [\"http://a\"]\n[cluster.shop]\n", Kind::Engine),
            (
                "config = \"evenkeel.toml\"\n[load]\nrate = 1\n",
                Kind::Scenario,
            ),
        ] {
            assert_eq!(Kind::from_text(text), kind, "{text}");
        }
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let mut seen = 0;
        for entry in std::fs::read_dir(examples).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let kind = match path.file_name().and_then(|name| name.to_str()) {
                Some("agent.toml") => Kind::Agent,
                Some("engine.toml") => Kind::Engine,
                _ => Kind::Balancer,
            };
            assert_eq!(Kind::of_file(&path), kind, "{}", path.display());
            seen += 1;
        }
        assert!(seen > 5);
    }
}

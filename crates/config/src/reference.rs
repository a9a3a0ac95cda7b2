//! The manual's references, written from the declarations of what they describe.

use crate::model::{agent, config, engine, scenario, strategy};

pub use crate::schema::reference::{KeyDoc, TableDoc};

/// All tables of the configuration with their keys.
pub fn list_tables() -> Vec<TableDoc> {
    config::describe_tables()
}

/// Keys whose values are secret: those who may look at the configuration, but not change it, do not
/// see them. Each with the header of its table.
const SECRET: &[(&str, &str)] = &[
    ("[admin]", "token"),
    // Logins to the collector.
    ("[tracing]", "headers"),
    // What members are told, perhaps a password of theirs.
    ("[rule.NAME.routes.request_fields]", "set"),
    ("[rule.NAME.routes.request_fields]", "add"),
    ("[rule.NAME.routes.groups.GROUP]", "request_fields"),
    ("[rule.NAME.routes.groups.GROUP]", "response_fields"),
    // Keys of clients, or what only those know who shall get there.
    ("[[rule.NAME.routes]]", "headers"),
    ("[[rule.NAME.routes]]", "query"),
    ("[[rule.NAME.routes]]", "cookies"),
    ("[[rule.NAME.routes]]", "response_fields"),
    ("[rule.NAME]", "response_fields"),
    ("[group.NAME]", "response_fields"),
];

/// Secret keys that are tokens or logins, so that not everybody may read a file with such a key.
const LOGINS: &[(&str, &str)] = &[("[admin]", "token"), ("[tracing]", "headers")];

/// Keys whose changes have no effect on the running process.
const RESTART: &[(&str, &str)] = &[
    ("", "workers"),
    ("[process]", "user"),
    ("[process]", "group"),
    ("[process]", "landlock"),
    ("[node]", "name"),
    ("[store]", "endpoints"),
    ("[store]", "prefix"),
    ("[store]", "copy_file"),
    ("[store]", "user"),
    ("[store]", "password_file"),
    ("[store]", "tls"),
    ("[store]", "timeout"),
    ("[store]", "rollout"),
    ("[admin]", "enabled"),
    ("[admin]", "listen"),
    ("[admin]", "behind_proxy"),
    ("[admin]", "local_access"),
    ("[admin]", "console"),
    ("[admin]", "audit_log"),
    ("[group.NAME.inference]", "index_memory"),
    #[cfg(feature = "corba")]
    ("[corba]", "state_file"),
    #[cfg(feature = "corba")]
    ("[corba]", "standby"),
    #[cfg(feature = "corba")]
    ("[corba]", "workers"),
    #[cfg(feature = "corba")]
    ("[corba]", "repository_prefix"),
];

impl TableDoc {
    /// True if the value of the key `key` is secret.
    pub fn is_secret(&self, key: &str) -> bool {
        SECRET.contains(&(self.header, key))
    }

    /// True if a change of the key `key` has no effect before the next start.
    pub fn needs_restart(&self, key: &str) -> bool {
        RESTART.contains(&(self.header, key))
    }
}

/// True if the value at `path` of a configuration is secret. The path has no places in lists.
pub(crate) fn is_secret(path: &[String]) -> bool {
    is_among(SECRET, path)
}

/// True if the value at `path` is a token or a login.
pub(crate) fn is_login(path: &[String]) -> bool {
    is_among(LOGINS, path)
}

fn is_among(keys: &[(&str, &str)], path: &[String]) -> bool {
    keys.iter().any(|(header, key)| {
        let header = header.trim_matches(['[', ']']).split('.');
        let pattern = header.filter(|part| !part.is_empty()).chain([*key]);
        let is_name = |part: &str| part.bytes().all(|byte| byte.is_ascii_uppercase());
        let fits = |(part, key): (&str, &String)| is_name(part) || part == key;
        pattern.clone().count() == path.len() && pattern.zip(path).all(fits)
    })
}

/// All tables, a line each, and all keys, in Markdown: the end of `docs/configuration.md`.
pub fn keys() -> String {
    let tables = list_tables();
    let lines: String = tables.iter().map(TableDoc::line).collect();
    format!("All tables:\n\n{lines}\n{}", markdown(&tables))
}

/// All keys of the agent's file, in Markdown: the end of `docs/agent.md`.
pub fn agent_keys() -> String {
    markdown(&agent::describe_tables())
}

/// All keys of the client engine's file, in Markdown: the end of `docs/engine.md`.
pub fn engine_keys() -> String {
    markdown(&engine::describe_tables())
}

/// All keys of a simulator's scenario, in Markdown: the end of `docs/simulator.md`.
pub fn scenario_keys() -> String {
    markdown(&scenario::describe_tables())
}

/// All strategies, in Markdown: the end of `docs/strategies.md`.
pub fn describe_strategies() -> String {
    strategy::describe_strategies()
}

fn markdown(tables: &[TableDoc]) -> String {
    tables.iter().map(TableDoc::markdown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marks_are_of_keys_that_there_are() {
        let tables = list_tables();
        for (header, key) in SECRET.iter().chain(RESTART) {
            let mut homes = tables.iter().filter(|table| table.header == *header);
            let is_there = homes.any(|table| table.keys.iter().any(|known| known.name == *key));
            assert!(is_there, "{header} {key}");
        }
        // What says that it needs a restart, is marked.
        for table in &tables {
            for key in &table.keys {
                let says = ["Changes need a restart", "A change needs a restart"];
                if says.iter().any(|says| key.doc.contains(says)) {
                    assert!(
                        table.needs_restart(key.name),
                        "{} {}",
                        table.header,
                        key.name
                    );
                }
            }
        }
    }

    #[test]
    fn a_new_key_with_the_name_of_a_secret_is_marked_or_named_here() {
        // Files with secrets, and what only sounds like one.
        let known = [
            "token_file",
            "key_file",
            "ticket_key_file",
            "password_file",
            "eab_key_file",
            "key",
            "hash_key",
            "eab_key_id",
            "strict_sni",
        ];
        for table in list_tables() {
            for key in &table.keys {
                let words = ["token", "password", "secret", "key"];
                let sounds = key.name.split('_').any(|part| words.contains(&part));
                let is_known = known.contains(&key.name) || table.is_secret(key.name);
                assert!(!sounds || is_known, "{} {}", table.header, key.name);
            }
        }
    }

    #[test]
    fn a_secret_is_known_by_its_path() {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        for secret in [
            "admin.token",
            "rule.web.routes.request_fields.set",
            "rule.web.routes.headers",
            "rule.web.routes.response_fields",
            "rule.web.routes.groups.new.request_fields",
        ] {
            assert!(is_secret(&path(secret)), "{secret}");
        }
        for other in [
            "admin.listen",
            "token",
            "rule.web.token",
            "rule.web.routes.set",
        ] {
            assert!(!is_secret(&path(other)), "{other}");
        }
    }
}

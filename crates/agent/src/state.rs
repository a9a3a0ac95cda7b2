//! State that the agent has learned, kept in a small file so that a restart does not forget it.
//!
//! Losing the file costs some minutes of learning. So nothing here is worth refusing to
//! start, and whatever the file holds, what cannot be is left out.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::learn::Learner;

/// Larger than the file of thousands of servers.
const MAX_FILE: u64 = 1 << 20;

/// The file of state.
#[derive(Debug)]
pub struct State {
    path: Option<PathBuf>,
    /// Contents of the file.
    saved: BTreeMap<String, Learner>,
    complained: bool,
}

impl State {
    /// The state at `path`; without one, at `agent.json` in the folder that the service
    /// manager names; without that, none.
    pub fn open(path: Option<PathBuf>) -> Self {
        let path = path.or_else(|| {
            // systemd.exec(5): a list with colons, of which the first is as good as any.
            let folders = std::env::var("STATE_DIRECTORY").ok()?;
            let folder = folders
                .split(':')
                .next()
                .filter(|folder| !folder.is_empty())?;
            Some(Path::new(folder).join("agent.json"))
        });
        let mut state = State {
            path,
            saved: BTreeMap::new(),
            complained: false,
        };
        match state.path.as_deref().map(read) {
            None => {}
            Some(Ok(text)) => state.saved = parse(&text),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Some(Err(error)) => state.complain("read", &error),
        }
        state
    }

    /// Returns the learned service time of a server.
    pub fn learned(&self, server: &str) -> Option<Learner> {
        self.saved.get(server).copied()
    }

    /// Keeps what was learned about `servers`. State of other servers stays: they may come
    /// back.
    pub fn keep_learned<'s>(&mut self, servers: impl Iterator<Item = (&'s str, &'s Learner)>) {
        let mut changed = false;
        for (name, learner) in servers {
            let (_, evidence) = learner.parts();
            if evidence > 0.0 && self.saved.get(name) != Some(learner) {
                self.saved.insert(name.to_owned(), *learner);
                changed = true;
            }
        }
        let Some(path) = self.path.as_deref().filter(|_| changed) else {
            return;
        };
        match write(path, &text(&self.saved)) {
            Ok(()) => self.complained = false,
            Err(error) => self.complain("written", &error),
        }
    }

    fn complain(&mut self, action: &str, error: &io::Error) {
        if let Some(path) = self.path.as_deref()
            && !self.complained
        {
            let path = path.display();
            tracing::warn!(
                "{path} cannot be {action}: {error}; learned service times are lost when the \
                 process ends (state_file in the configuration)"
            );
        }
        self.complained = true;
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a file so that whoever reads it finds the old one or the new one.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("fresh");
    let mut file = File::create(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(fresh, path)
}

fn text(learned: &BTreeMap<String, Learner>) -> String {
    let servers: serde_json::Map<_, _> = learned
        .iter()
        .map(|(name, learner)| {
            let (mean, evidence) = learner.parts();
            let value = json!({ "service_time_seconds": mean, "evidence": evidence });
            (name.clone(), value)
        })
        .collect();
    format!("{:#}\n", json!({ "version": 1, "servers": servers }))
}

fn parse(text: &str) -> BTreeMap<String, Learner> {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    if value.get("version") != Some(&Value::from(1)) {
        return BTreeMap::new();
    }
    let servers = value.get("servers").and_then(Value::as_object);
    let servers = servers.into_iter().flatten();
    let learned = servers.filter_map(|(name, value)| {
        let number = |key| value.get(key)?.as_f64();
        let learner = Learner::from_parts(number("service_time_seconds")?, number("evidence")?)?;
        Some((name.clone(), learner))
    });
    learned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_there_after_a_restart_for_servers_that_are_gone_too() {
        let name = format!("evenkeel-agent-state-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        let (a, b) = (
            Learner::from_parts(0.003, 17.0).unwrap(),
            Learner::from_parts(0.25, 1000.0).unwrap(),
        );
        let mut state = State::open(Some(path.clone()));
        assert_eq!(state.learned("a"), None);
        state.keep_learned([("a", &a), ("b", &b), ("c", &Learner::default())].into_iter());
        let mut state = State::open(Some(path.clone()));
        assert_eq!((state.learned("a"), state.learned("b")), (Some(a), Some(b)));
        state.keep_learned([("b", &a)].into_iter());
        let state = State::open(Some(path.clone()));
        assert_eq!((state.learned("a"), state.learned("b")), (Some(a), Some(a)));
        assert_eq!(state.learned("c"), None);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_cannot_be_is_left_out() {
        let text = r#"{"version": 1, "servers": {
            "good": {"service_time_seconds": 0.01, "evidence": 50, "more": 1},
            "negative": {"service_time_seconds": -1, "evidence": 50},
            "text": {"service_time_seconds": "1", "evidence": 50},
            "half": {"service_time_seconds": 1}, "none": 5}}"#;
        let learned = parse(text);
        assert_eq!(learned.keys().collect::<Vec<_>>(), ["good"]);
        for bad in [
            "",
            "[]",
            "{}",
            "null",
            r#"{"version": 2, "servers": {}}"#,
            "{\"version\":1,",
        ] {
            assert!(parse(bad).is_empty(), "{bad:?}");
        }
        // A folder that is not there is no reason not to run.
        let mut state = State::open(Some("/nowhere/agent.json".into()));
        state.keep_learned([("a", &Learner::from_parts(1.0, 1.0).unwrap())].into_iter());
        assert!(state.learned("a").is_some());
    }
}

//! The configuration of a running balancer, in words.

use evenkeel_manager::config::Problem;
use evenkeel_manager::config::image::ImportOutcome;
use evenkeel_manager::revisions::Revision;
use evenkeel_manager::text;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::Ctl;
use crate::client::ClientError;
use crate::wire::{Changed, Configuration, RuleImage, Told};

const PATH: &[&str] = &["v1", "config"];

impl Ctl {
    /// Returns the configuration in force.
    pub fn in_force(&self) -> Result<Configuration, ClientError> {
        self.client.get(PATH, &[])
    }

    /// Returns the configuration in force, and whether its file says the same.
    pub fn show_configuration(&self) -> Result<String, ClientError> {
        self.show_path(PATH, format_configuration)
    }

    /// Returns the image of a rule, as text.
    pub fn show_image(&self, rule: &str) -> Result<String, ClientError> {
        let path = ["v1", "config", "export", rule];
        self.show_path(&path, |image: &RuleImage| image.text.clone())
    }

    /// Returns all keys that a configuration may have.
    pub fn keys(&self) -> Result<String, ClientError> {
        self.show_path(&["v1", "config", "schema"], keys)
    }

    /// Returns the configurations that are and were in force.
    pub fn list_revisions(&self) -> Result<String, ClientError> {
        self.show_path(&["v1", "config", "history"], |all: &Vec<_>| {
            format_revisions(all)
        })
    }

    /// Changes the configuration, by `method` at `act` below its path. The revision in force must
    /// be `base`; if none is given, it is the one that is. Answers what to print, or else what is wrong
    /// with the new configuration.
    pub fn change_configuration(
        &self,
        method: &str,
        act: Option<&str>,
        base: Option<&str>,
        body: &impl Serialize,
    ) -> Result<Result<String, Vec<Problem>>, ClientError> {
        let base = match base {
            Some(base) => base.to_owned(),
            None => self.in_force()?.revision,
        };
        let path: Vec<&str> = PATH.iter().copied().chain(act).collect();
        let changed = match self.client.change_config(method, &path, &base, body) {
            Err(ClientError::Refused { status, mut body }) => {
                let problems = body.more.remove("problems");
                let problems = problems.map(serde_json::from_value::<Vec<Told>>);
                if let Some(Ok(problems)) = problems {
                    return Ok(Err(problems.into_iter().map(Problem::from).collect()));
                }
                if let Some(Value::String(diff)) = body.more.get("diff") {
                    body.detail = format!("{}\n{diff}", body.detail);
                }
                return Err(ClientError::Refused { status, body });
            }
            changed => changed?,
        };
        self.print_answer(&changed, format_changed).map(Ok)
    }
}

fn format_changed(changed: &Changed) -> String {
    let Changed {
        revision,
        generation,
        notes,
        in_effect,
        import,
    } = changed;
    let notes = import.iter().map(format_outcome).collect::<String>() + &self::format_notes(notes);
    match in_effect {
        true => format!("configuration {generation} is in effect, revision {revision}\n{notes}"),
        false => {
            format!(
                "the store has the configuration, revision {revision}; balancers take it over from the store\n{notes}"
            )
        }
    }
}

/// Returns the effect of an import on each table of the image, a line each.
pub fn format_outcome(import: &ImportOutcome) -> String {
    let ImportOutcome {
        added,
        replaced,
        unchanged,
        clashes,
    } = import;
    let all = [
        ("added", added),
        ("replaced", replaced),
        ("unchanged", unchanged),
        ("differs", clashes),
    ];
    let lines = all.into_iter().flat_map(|(effect, tables)| {
        tables
            .iter()
            .map(move |table| format!("{effect}: {table}\n"))
    });
    lines.collect()
}

/// Returns the notes for the user, a line each.
pub fn format_notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {note}\n")).collect()
}

fn format_configuration(configuration: &Configuration) -> String {
    let Configuration {
        file,
        revision,
        generation,
        text,
        on_disk,
        ..
    } = configuration;
    let disk = match (&on_disk.error, on_disk.differs) {
        (Some(error), _) => format!("\nthe file cannot be read: {error}"),
        (None, true) => "\nthe file differs from the configuration in force: reload it (`evenkeel ctl reload` shows its errors), or write it back".into(),
        (None, false) => String::new(),
    };
    format!("{file}: revision {revision}, configuration {generation}{disk}\n\n{text}")
}

fn format_revisions(revisions: &[Revision]) -> String {
    let row = |revision: &Revision| {
        let at = i64::try_from(revision.at).map(Timestamp::from_second);
        let at = at.ok().and_then(Result::ok).map(|at| at.to_string());
        let from = revision.from.map(|from| from.to_string());
        vec![
            revision.revision.clone(),
            revision.generation.to_string(),
            at.unwrap_or_default(),
            revision.how.name().into(),
            revision.who.clone(),
            from.unwrap_or_default(),
            revision.comment.replace('\n', " "),
        ]
    };
    let names = [
        "REVISION", ">NUMBER", "TIME", "HOW", "WHO", "FROM", "COMMENT",
    ];
    text::format_table(&names, revisions.iter().map(row))
}

/// Returns all keys, a line each.
fn keys(schema: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of = |value: &Value, name: &str| {
        let text = value.get(name).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let tables = schema.get("tables").map(list).unwrap_or_default();
    let rows = tables.iter().flat_map(|table| {
        let keys = table.get("keys").map(list).unwrap_or_default();
        let row = move |key: Value| {
            let header = of(table, "header");
            let (name, default) = (of(&key, "name"), of(&key, "default"));
            vec![header, name, default, of(&key, "allowed")]
        };
        keys.into_iter().map(row)
    });
    text::format_table(&["TABLE", "KEY", "DEFAULT", "ALLOWED"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d8_a_change_that_is_not_this_balancers_turn_yet_is_not_in_effect() {
        let changed = |in_effect| Changed {
            revision: "abc".into(),
            generation: 7,
            notes: vec!["look".into()],
            in_effect,
            import: None,
        };
        let now = "configuration 7 is in effect, revision abc\nnote: look\n";
        assert_eq!(format_changed(&changed(true)), now);
        let later = "the store has the configuration, revision abc; balancers take it over from the store\nnote: look\n";
        assert_eq!(format_changed(&changed(false)), later);
    }

    #[test]
    fn an_import_says_what_became_of_each_table() {
        let changed = Changed {
            revision: "abc".into(),
            generation: 7,
            notes: Vec::new(),
            in_effect: true,
            import: Some(ImportOutcome {
                added: vec!["rule.web".into(), "group.pool".into()],
                unchanged: vec!["location.a".into()],
                ..ImportOutcome::default()
            }),
        };
        let expected = "configuration 7 is in effect, revision abc\nadded: rule.web\nadded: group.pool\n\
                        unchanged: location.a\n";
        assert_eq!(format_changed(&changed), expected);
    }
}

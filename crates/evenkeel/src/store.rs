//! `evenkeel store`: the configuration that several balancers share, as a person reads and changes it.

use std::path::Path;

use evenkeel_config::{self as config, Store as Settings, edit};
use evenkeel_manager::SHARED;
use evenkeel_store::change::Push;
use evenkeel_store::desk::{Base, Other, StoreAdmin, StoreAdminError, WrittenChange, unix_seconds};
use evenkeel_store::etcd::{Etcd, EtcdError};

use crate::check::has_nothing;
use crate::cli::{Store, StoreBase, StoreCommand};
use crate::failure::{Failure, refuse_config};
use crate::process;

pub(crate) fn run(args: &Store) -> Result<String, Failure> {
    let own = config::text_of(&args.config).map_err(refuse_config)?;
    let name = args.config.display().to_string();
    let Some(balancer) = config::parse_config_source(&name, &own).map_err(refuse_config)? else {
        // Or all that is wrong with it.
        config::parse(&name, &own).map_err(refuse_config)?;
        return Err(Failure::new(format!(
            "{name} has no [store]: name with --config the file of a balancer that has one"
        )));
    };
    let settings = &balancer.store;
    // A text that balancers would refuse is not sent.
    let pushed = match &args.command {
        StoreCommand::Push { file, .. } => Some(checked((&name, &own), file)?),
        _ => None,
    };
    let runtime = process::build_runtime()?;
    let result = runtime.block_on(async {
        let mut etcd = Etcd::new(settings);
        let mut desk = StoreAdmin::new(&mut etcd, &settings.prefix);
        act(&mut desk, args, settings, pushed).await
    });
    runtime.shutdown_background();
    result
}

async fn act(
    desk: &mut StoreAdmin<'_>,
    args: &Store,
    settings: &Settings,
    pushed: Option<String>,
) -> Result<String, Failure> {
    match &args.command {
        StoreCommand::Push {
            of,
            message,
            at_once,
            force,
            file,
        } => {
            if let Some(text) = pushed.as_ref().filter(|_| !force) {
                let before = desk.pull_text(None).await.ok();
                let before = before.map(|revision| revision.text).unwrap_or_default();
                if takes_all_away(&before, text) {
                    return Err(Failure::new(format!(
                        "{}: the file has no rules, so all balancers would close all their listeners: not pushed. If that is meant, use --force",
                        file.display()
                    )));
                }
            }
            let push = Push {
                text: pushed.unwrap_or_default(),
                author_name: who(),
                message: message.clone(),
                staged: settings.rollout.is_some() && !at_once,
                at: unix_seconds(),
            };
            let base = match of {
                None => Base::Empty,
                Some(StoreBase::Latest) => Base::Any,
                Some(StoreBase::Number(number)) => Base::Number(*number),
            };
            let written = desk.push(base, push, *at_once).await.map_err(failed)?;
            Ok(told(&written))
        }
        StoreCommand::Pull { revision, output } => {
            let revision = desk.pull_text(*revision).await.map_err(failed)?;
            let number = revision.number;
            match output {
                // Its number is not part of the text, and the text goes into a file, perhaps.
                None => eprintln!("revision {number}; push a change of it with --of {number}"),
                Some(file) => {
                    std::fs::write(file, &revision.text).map_err(|error| {
                        Failure::new(format!("{} cannot be written: {error}", file.display()))
                    })?;
                    let file = file.display();
                    return Ok(format!(
                        "{file} has revision {number}; push a change of it with --of {number}\n"
                    ));
                }
            }
            Ok(revision.text)
        }
        StoreCommand::Diff { other, from } => {
            let text;
            let to = match other.parse() {
                Ok(number) => Other::Revision(number),
                Err(_) => {
                    text = config::text_of(Path::new(other)).map_err(refuse_config)?;
                    Other::Text(other, &text)
                }
            };
            desk.diff(*from, to).await.map_err(failed)
        }
        StoreCommand::History { limit } => desk.history(*limit).await.map_err(failed),
        StoreCommand::Rollback { revision, message } => {
            let written = desk.roll_back(*revision, &who(), message).await;
            Ok(told(&written.map_err(failed)?))
        }
        StoreCommand::Confirm => Ok(told(&desk.confirm().await.map_err(failed)?)),
    }
}

/// The text of a file, if it is good beside what the balancer has of its own.
fn checked((name, own): (&str, &str), file: &Path) -> Result<String, Failure> {
    let text = config::text_of(file).map_err(refuse_config)?;
    if edit::has_masked_secret(&text) {
        return Err(Failure::new(format!(
            "{}: the file has {} in place of a secret, as shown to users who may not see secrets: write the secret itself",
            file.display(),
            edit::MASK
        )));
    }
    let shared = file.display().to_string();
    let shared = if shared == name { SHARED } else { &shared };
    let parsed = config::parse_shared(name, own, (shared, &text)).map_err(refuse_config)?;
    for warning in &parsed.warnings {
        eprintln!("warning: {warning}");
    }
    Ok(text)
}

/// True if balancers that have `before` would do nothing any more with `text`.
fn takes_all_away(before: &str, text: &str) -> bool {
    let has_rules = |text: &str| {
        let values = edit::values(text).unwrap_or_default();
        let rules = values.get("rule").and_then(|rules| rules.as_object());
        rules.is_some_and(|rules| !rules.is_empty())
    };
    has_nothing(text) || has_rules(before) && !has_rules(text)
}

/// Returns the name of the user of this machine who runs the command.
fn who() -> String {
    let names = ["SUDO_USER", "USER", "LOGNAME"].into_iter();
    let mut names = names.filter_map(|name| std::env::var(name).ok());
    names.find(|name| !name.is_empty()).unwrap_or_default()
}

fn told(written: &WrittenChange) -> String {
    let how = match written.staged {
        true => "is rolled out step by step",
        false => "goes to all balancers",
    };
    let waited = match written.waited.is_empty() {
        true => String::new(),
        false => format!(
            "; {} had waited, because the store had gone back in time",
            written.waited.join(", ")
        ),
    };
    format!("{} {how}{waited}\n", written.to)
}

fn failed(error: StoreAdminError) -> Failure {
    let code = match &error {
        StoreAdminError::Etcd(EtcdError::Unreachable(_)) => 3,
        _ => 1,
    };
    let message = match code {
        3 => format!("the store does not answer: {error}"),
        _ => error.to_string(),
    };
    Failure { code, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_takes_all_rules_away_is_asked_about() {
        const RULE: &str = "[rule.a]\nlisten = \"127.0.0.1:80\"\nmembers = [\"10.0.0.1:80\"]\n";
        const CORBA: &str = "[corba]\nlisten = \"127.0.0.1:2000\"\n";
        for (before, text, asks) in [
            ("", RULE, false),
            (RULE, RULE, false),
            (RULE, "", true),
            ("", "", true),
            (RULE, "# later\n", true),
            (RULE, "[rule]\n", true),
            (RULE, CORBA, true),
            (CORBA, CORBA, false),
            ("", CORBA, false),
        ] {
            assert_eq!(takes_all_away(before, text), asks, "{before:?} {text:?}");
        }
    }
}

//! `evenkeel check`: what a start would say, without starting.
//!
//! Whether addresses are free is not looked at: they are not where the balancer runs.

use std::fs::OpenOptions;
use std::path::Path;

use evenkeel_manager::config::agent::{self, AgentConfig};
use evenkeel_manager::config::engine::{self, EngineConfig};
use evenkeel_manager::config::kind::Kind;
use evenkeel_manager::config::{self, AccessLog, Config, Errors, Problem};
use evenkeel_net::key_file;
use evenkeel_wire::reporting::keys::Keys;
use rustix::fs::{Access, access};

use crate::Failure;

/// Checks the configuration in `file`, whomever it is for: a summary, or all errors.
pub(crate) fn check(file: &Path) -> Result<String, Failure> {
    match Kind::of_file(file) {
        Kind::Balancer => {
            let config = config::load(file).map_err(refused)?;
            passed(file, &config.warnings, problems(&config), &summary(&config))
        }
        Kind::Agent => {
            let config = agent::load(file).map_err(refused)?;
            let summary = summary_of_agent(&config);
            passed(file, &config.warnings, problems_of_agent(&config), &summary)
        }
        Kind::Engine => {
            let config = engine::load(file).map_err(refused)?;
            passed(
                file,
                &config.warnings,
                Vec::new(),
                &summary_of_engine(&config),
            )
        }
    }
}

fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

fn refused(errors: Errors) -> Failure {
    let count = errors.problems.len() + errors.omitted;
    Failure::new(format!(
        "{} in the configuration\n{errors}",
        counted(count, "error")
    ))
}

/// The answer for a file whose text is good.
fn passed(
    file: &Path,
    warnings: &[Problem],
    problems: Vec<String>,
    summary: &str,
) -> Result<String, Failure> {
    let name = file.display();
    if !problems.is_empty() {
        let lines = problems
            .iter()
            .map(|problem| format!("\n{name}: {problem}"));
        let lines: String = lines.collect();
        let count = counted(problems.len(), "error");
        return Err(Failure::new(format!(
            "{count} in files that the configuration names{lines}"
        )));
    }
    let warnings = warnings
        .iter()
        .map(|warning| format!("warning: {warning}\n"));
    let warnings: String = warnings.collect();
    Ok(format!("{warnings}{name}: good: {summary}\n"))
}

/// Why a balancer with this configuration would not start.
fn problems(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(AccessLog::File(path)) = &config.access_log {
        problems.extend(unwritable(path, "access_log.output"));
    }
    if let Some(broker) = &config.broker {
        problems.extend(
            key_file::load(&broker.key_file, Keys::parse)
                .err()
                .map(|error| error.to_string()),
        );
    }
    problems.extend(evenkeel_monitor::check(config));
    if let Some(corba) = &config.corba {
        if let Some(path) = &corba.state_file {
            #[cfg(feature = "corba")]
            problems.extend(
                evenkeel_corba::service::store::load(path)
                    .err()
                    .map(|error| error.to_string()),
            );
            problems.extend(unwritable(path, "corba.state_file"));
        }
        let file = corba.ior_file.iter();
        problems.extend(file.filter_map(|path| unwritable(path, "corba.ior_file")));
    }
    problems
}

/// Why an agent with this configuration would not start.
fn problems_of_agent(config: &AgentConfig) -> Vec<String> {
    let keys = config.brokers.iter().filter_map(|broker| {
        let error = key_file::load(&broker.key_file, Keys::parse).err()?;
        Some(format!("broker.{}.key_file: {error}", broker.name))
    });
    let state = config.state_file.iter();
    let state = state.filter_map(|path| unwritable(path, "state_file"));
    keys.chain(state).collect()
}

/// Why the file that `key` names could not be written; nothing is made to find out.
fn unwritable(path: &Path, key: &str) -> Option<String> {
    let name = path.display();
    if path.exists() {
        let opened = match path.is_file() {
            true => OpenOptions::new().append(true).open(path).map(|_| ()),
            // A device or a pipe may have a reader that waits for it.
            false if path.is_dir() => Err(std::io::Error::other("it is a folder")),
            false => Ok(()),
        };
        return opened
            .err()
            .map(|error| format!("{key}: cannot write {name}: {error}"));
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let reached = match folder.is_dir() {
        true => access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| e.to_string()),
        false => Err("there is no such folder".into()),
    };
    let error = reached.err()?;
    Some(format!(
        "{key}: cannot make {name}: {}: {error}",
        folder.display()
    ))
}

fn summary(config: &Config) -> String {
    let members = config.groups.iter().map(|group| group.members.len()).sum();
    let admin = match &config.admin {
        Some(admin) => format!("admin API on {}", admin.listen),
        None => "no admin API".into(),
    };
    format!(
        "for `evenkeel run`: {}, {}, {}, {admin}",
        counted(config.rules.len(), "rule"),
        counted(config.groups.len(), "group"),
        counted(members, "member"),
    )
}

fn summary_of_agent(config: &AgentConfig) -> String {
    format!(
        "for `evenkeel agent`: {}, {}",
        counted(config.servers.len(), "server"),
        counted(config.brokers.len(), "broker"),
    )
}

fn summary_of_engine(config: &EngineConfig) -> String {
    format!(
        "for `evenkeel engine`: {}, {}",
        counted(config.clusters.len(), "cluster"),
        counted(config.brokers.len(), "broker"),
    )
}

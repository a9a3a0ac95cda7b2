//! `evenkeel check`: what a start would say, without starting.
//!
//! Whether addresses are free is not looked at: they are not where the balancer runs.

use std::path::Path;
use std::sync::Arc;

use evenkeel_admin::address::Address;
use evenkeel_forward::Forwarding;
use evenkeel_manager::config::agent::{self, AgentConfig};
use evenkeel_manager::config::engine::{self, EngineConfig};
use evenkeel_manager::config::kind::Kind;
use evenkeel_manager::config::{self, AccessLog, Config, Problem, kept};
use evenkeel_net::{Clock, key_file, writable};
use evenkeel_wire::reporting::keys::Keys;

use crate::failure::{Failure, refuse_config};
use crate::plural::format_count;
use crate::privileges;
use crate::run::list_subsystems;
use crate::shared;

/// Checks the configuration in `file`, whomever it is for: a summary, or all errors.
pub(crate) fn check_file(file: &Path) -> Result<String, Failure> {
    match Kind::of_file(file) {
        Kind::Balancer => {
            let (config, note) = shared::load(file, refuse_config)?;
            let files: Vec<&Path> = config.included.iter().map(|path| &**path).collect();
            if config::text_of(file).is_ok_and(|text| has_nothing(&text)) {
                return Err(Failure::new(format!("{}: {NOTHING}", file.display())));
            }
            let mut problems = problems(&config)?;
            let of_files = kept::complaints(config.files()).into_iter();
            let of_files = of_files
                .chain(config::check_rights(file, &config.included))
                .chain(privileges::warnings_of_writers(&config, file));
            let warnings = config.warnings.iter().map(ToString::to_string);
            let mut warnings: Vec<String> = warnings.chain(of_files).collect();
            // The last step: after it this process has the rights of that user.
            match privileges::check_user(&config, file) {
                Ok(refused) => problems.extend(refused),
                Err(why) => warnings.push(why),
            }
            passed(
                &[&[file], &*files].concat(),
                &warnings,
                problems,
                &format!("{}{note}", summary(&config)),
            )
        }
        Kind::Agent => {
            let config = agent::load_agent_config(file).map_err(refuse_config)?;
            let summary = summary_of_agent(&config);
            passed(
                &[file],
                &texts(&config.warnings),
                problems_of_agent(&config),
                &summary,
            )
        }
        Kind::Scenario => {
            let plan = evenkeel_sim::experiment::plan::load_plan(file, None, None)
                .map_err(refuse_config)?;
            let summary = format!(
                "{}, {}",
                format_count(plan.points.len(), "world"),
                format_count(plan.seeds, "seed")
            );
            passed(&[file], &texts(&plan.warnings), Vec::new(), &summary)
        }
        Kind::Engine => {
            let config = engine::load_engine_config(file).map_err(refuse_config)?;
            passed(
                &[file],
                &texts(&config.warnings),
                evenkeel_engine::check_files(&config)
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
                &summary_of_engine(&config),
            )
        }
    }
}

/// Complaint about a file that says nothing.
const NOTHING: &str =
    "the file has neither a key nor a table. A running balancer refuses it at a reload";

/// True if a configuration has nothing but blanks and comments: probably what wrote it has failed.
pub(crate) fn has_nothing(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    lines.all(|line| line.is_empty() || line.starts_with('#'))
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

/// Returns the answer for a file whose text is good, and for the files that it includes.
fn passed(
    files: &[&Path],
    warnings: &[String],
    problems: Vec<String>,
    summary: &str,
) -> Result<String, Failure> {
    let name = files.first().map(|file| file.display().to_string());
    let name = name.unwrap_or_default();
    let in_one = |problem: &str| {
        let mut names = files.iter().map(|file| format!("{}:", file.display()));
        names.any(|name| problem.starts_with(&name))
    };
    if !problems.is_empty() {
        let lines = problems
            .iter()
            // Some know their place in it.
            .map(|problem| match in_one(problem) {
                true => format!("\n{problem}"),
                false => format!("\n{name}: {problem}"),
            });
        let lines: String = lines.collect();
        let count = format_count(problems.len(), "error");
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

/// Returns the reasons why a balancer with this configuration would not start.
fn problems(config: &Config) -> Result<Vec<String>, Failure> {
    let mut problems = Vec::new();
    if let Some(AccessLog::File(path)) = &config.access_log {
        problems.extend(unwritable(path, "access_log.output"));
    }
    if let Some(tracing) = &config.tracing {
        let wrong = evenkeel_admin::otlp::check_files(tracing);
        problems.extend(wrong.iter().map(ToString::to_string));
    }
    problems.extend(evenkeel_manager::lists::check_files(config));
    problems.extend(
        evenkeel_proxy::check_files(config)
            .iter()
            .map(ToString::to_string),
    );
    let clock = Clock::start();
    let mut subsystems = list_subsystems(clock, Forwarding::new(clock, Default::default()))?;
    subsystems.push(Arc::new(Address::default()));
    for subsystem in subsystems {
        problems.extend(subsystem.check(config).iter().map(ToString::to_string));
    }
    Ok(problems)
}

/// Returns the reasons why an agent with this configuration would not start.
fn problems_of_agent(config: &AgentConfig) -> Vec<String> {
    let keys = config.brokers.iter().filter_map(|broker| {
        let error = key_file::load_parsed(&broker.key_file, Keys::parse).err()?;
        Some(format!("broker.{}.key_file: {error}", broker.name))
    });
    let state = config.state_file.iter();
    let state = state.filter_map(|path| unwritable(path, "state_file"));
    keys.chain(state).collect()
}

/// Returns the reason why the file that `key` names could not be written.
fn unwritable(path: &Path, key: &'static str) -> Option<String> {
    let error = writable::check_path(path, key).err()?;
    Some(error.to_string())
}

fn summary(config: &Config) -> String {
    let members = config.groups.iter().map(|group| group.members.len()).sum();
    let admin = match &config.admin {
        Some(admin) => format!("admin API on {}", admin.listen),
        None => "no admin API".into(),
    };
    let included = match config.included.len() {
        0 => String::new(),
        1 => ", 1 included file".into(),
        count => format!(", {count} included files"),
    };
    format!(
        "for `evenkeel run`: {}, {}, {}, {admin}{included}",
        format_count(config.rules.len(), "rule"),
        format_count(config.groups.len(), "group"),
        format_count(members, "member"),
    )
}

fn summary_of_agent(config: &AgentConfig) -> String {
    format!(
        "for `evenkeel agent`: {}, {}",
        format_count(config.servers.len(), "server"),
        format_count(config.brokers.len(), "broker"),
    )
}

fn summary_of_engine(config: &EngineConfig) -> String {
    format!(
        "for `evenkeel engine`: {}, {}",
        format_count(config.clusters.len(), "cluster"),
        format_count(config.brokers.len(), "broker"),
    )
}

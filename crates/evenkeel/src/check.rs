//! `evenkeel check`.

use std::path::Path;

use evenkeel_manager::config::{self, Config};

use crate::Failure;

/// Checks the configuration in `file`: a summary, or all errors.
pub fn check(file: &Path) -> Result<String, Failure> {
    let config = config::load(file).map_err(|errors| {
        let count = errors.problems.len() + errors.omitted;
        let noun = if count == 1 { "error" } else { "errors" };
        Failure::new(format!("{count} {noun} in the configuration\n{errors}"))
    })?;
    let mut text = String::new();
    for warning in &config.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text.push_str(&summary(file, &config));
    Ok(text)
}

fn summary(file: &Path, config: &Config) -> String {
    let count = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    };
    let members = config.groups.iter().map(|group| group.members.len()).sum();
    let admin = match &config.admin {
        Some(admin) => format!("admin API on {}", admin.listen),
        None => "no admin API".into(),
    };
    format!(
        "{}: good: {}, {}, {}, {admin}\n",
        file.display(),
        count(config.rules.len(), "rule"),
        count(config.groups.len(), "group"),
        count(members, "member"),
    )
}

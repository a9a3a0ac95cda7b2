//! Completions and manual pages of `evenkeel`, which packages install beside it.

use std::path::Path;

use clap::CommandFactory;
use evenkeel_command::pages::{self, Shell};

use crate::cli::Cli;
use crate::failure::Failure;

/// `evenkeel completions`: a script for `shell`.
pub(crate) fn shell_completions(shell: Shell) -> String {
    pages::completions(Cli::command(), shell)
}

/// `evenkeel man`: a page for the program and one for each command.
pub(crate) fn write_manual(folder: &Path) -> Result<(), Failure> {
    pages::write_manual(Cli::command(), env!("CARGO_PKG_VERSION"), folder).map_err(Failure::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_gets_every_command() {
        let names: Vec<String> = Cli::command()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(|command| command.get_name().to_owned())
            .collect();
        assert!(names.len() > 10, "{names:?}");
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = shell_completions(shell);
            for name in &names {
                assert!(script.contains(name.as_str()), "{shell} has no {name}");
            }
        }
    }

    #[test]
    fn each_command_has_a_page() {
        let folder = std::env::temp_dir().join(format!("evenkeel-man-{}", std::process::id()));
        write_manual(&folder).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let first = page("evenkeel.1");
        assert!(first.contains(".SH NAME"));
        let title = first.lines().find(|line| line.starts_with(".TH")).unwrap();
        assert!(title.contains(env!("CARGO_PKG_VERSION")), "{title}");
        assert!(page("evenkeel-run.1").contains("shutdown_grace"));
        assert!(page("evenkeel-ctl-drain.1").contains("MEMBER"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

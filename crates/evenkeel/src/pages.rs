//! What packages install beside the binary, made of the command line's own definitions: completions
//! for shells, and manual pages.

use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};

use crate::Failure;
use crate::cli::Cli;

/// The name of the program, in both.
const NAME: &str = "evenkeel";

/// `evenkeel completions`: a script for `shell`.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), NAME, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// `evenkeel man`: a page for the program and one for each command, as in `evenkeel-ctl-drain.1`.
pub(crate) fn manual(folder: &Path) -> Result<(), Failure> {
    let cannot = |error| {
        let folder = folder.display();
        Failure::new(format!("cannot write manual pages into {folder}: {error}"))
    };
    std::fs::create_dir_all(folder).map_err(cannot)?;
    clap_mangen::generate_to(described(), folder).map_err(cannot)
}

/// The command line, without what changes from build to build: `--version` names features on a second
/// line, which is no part of a title.
fn described() -> Command {
    Cli::command().long_version(env!("CARGO_PKG_VERSION"))
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
            let script = completions(shell);
            for name in &names {
                assert!(script.contains(name.as_str()), "{shell} has no {name}");
            }
        }
    }

    #[test]
    fn each_command_has_a_page() {
        let folder = std::env::temp_dir().join(format!("evenkeel-man-{}", std::process::id()));
        manual(&folder).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(page("evenkeel.1").contains(".SH NAME"));
        assert!(page("evenkeel-run.1").contains("shutdown_grace"));
        assert!(page("evenkeel-ctl-drain.1").contains("MEMBER"));
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::write(&folder, "").unwrap();
        let refused = manual(&folder).unwrap_err().message;
        assert!(refused.contains("evenkeel-man-"), "{refused}");
        std::fs::remove_file(&folder).unwrap();
    }
}

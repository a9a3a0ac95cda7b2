//! Files that packages install beside a program, made from the definitions of its command line: completions for
//! shells, and manual pages.

use std::path::Path;

use clap::Command;
pub use clap_complete::Shell;
use clap_complete::generate;

/// Returns a script that completes the commands and options of `program` in `shell`.
pub fn completions(mut program: Command, shell: Shell) -> String {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    generate(shell, &mut program, &name, &mut script);
    let script = String::from_utf8_lossy(&script);
    // clap_complete (4.6) writes a hyphen of a program's name in two ways into a script for bash, which then
    // finds no command.
    let [used, defined] =
        ["__", "__subcmd__"].map(|hyphen| name.replace('-', hyphen) + "__subcmd__");
    script.replace(&defined, &used)
}

/// Writes a page for `program` and one for each command, as in `evenkeel-ctl-drain.1`, into `folder`, which is made
/// if it is not there. `version` is the one in the titles: a `--version` of several lines is no part of a title.
pub fn write_manual(program: Command, version: &'static str, folder: &Path) -> Result<(), String> {
    let cannot = |error| {
        let folder = folder.display();
        format!("cannot write manual pages into {folder}: {error}")
    };
    std::fs::create_dir_all(folder).map_err(cannot)?;
    clap_mangen::generate_to(program.long_version(version), folder).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        let commands = ["run", "check"].map(|name| Command::new(name).about("x"));
        Command::new("evenkeel-test")
            .version("1\nmore")
            .subcommands(commands)
    }

    #[test]
    fn each_shell_gets_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completions(program(), shell);
            for name in ["evenkeel-test", "run", "check"] {
                assert!(script.contains(name), "{shell} has no {name}");
            }
        }
    }

    /// Each command that the script can be in has its case.
    #[test]
    fn a_hyphen_in_the_name_of_the_program_is_written_in_one_way() {
        let script = completions(program(), Shell::Bash);
        let states = script.lines().filter_map(|line| {
            let state = line.trim().strip_prefix("cmd=\"")?;
            state.strip_suffix('"').filter(|state| !state.is_empty())
        });
        let states: Vec<_> = states.collect();
        assert!(states.len() > 2, "{script}");
        for state in states {
            let case = format!("{state})");
            assert!(
                script.lines().any(|line| line.trim() == case),
                "{case}: {script}"
            );
        }
    }

    #[test]
    fn each_command_has_a_page_and_a_folder_that_cannot_be_made_is_named() {
        let folder = std::env::temp_dir().join(format!("evenkeel-pages-{}", std::process::id()));
        write_manual(program(), "1", &folder).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(page("evenkeel-test.1").contains(".SH NAME"));
        assert!(page("evenkeel-test-check.1").contains("check"));
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::write(&folder, "").unwrap();
        let refused = write_manual(program(), "1", &folder).unwrap_err();
        assert!(refused.contains("evenkeel-pages-"), "{refused}");
        std::fs::remove_file(&folder).unwrap();
    }
}

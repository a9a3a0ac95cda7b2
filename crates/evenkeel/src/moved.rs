//! Commands that users may look for in the wrong place: some were part of `evenkeel` once, and belong to `evenkeel-lab`
//! now; others are commands of `evenkeel ctl`.

use std::ffi::OsString;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::failure::Failure;

/// Old commands, each with the command line that replaces it.
const MOVED: [(&str, &str); 3] = [
    ("demo", "evenkeel-lab demo"),
    ("lab", "evenkeel-lab list|run"),
    ("load", "evenkeel-lab load"),
];

/// Refuses a command line whose command, or whose help, is asked of the wrong program.
pub(crate) fn refuse_moved(words: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let Some(word) = words.skip(1).find(|word| word != "help") else {
        return Ok(());
    };
    let message = match MOVED.iter().find(|(old, _)| word == *old) {
        Some((old, new)) => {
            format!("`evenkeel {old}` is now `{new}`, of the program and package evenkeel-lab")
        }
        None => match find_in_ctl(&word) {
            Some(name) => {
                format!("`{name}` is a command of a running balancer: `evenkeel ctl {name}`")
            }
            None => return Ok(()),
        },
    };
    Err(Failure { code: 2, message })
}

/// Returns the command of `evenkeel ctl` with this name, if `evenkeel` has none.
fn find_in_ctl(word: &OsString) -> Option<String> {
    let all = Cli::command();
    if all.find_subcommand(word).is_some() {
        return None;
    }
    let found = all.find_subcommand("ctl")?.find_subcommand(word)?;
    Some(found.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> Option<Failure> {
        refuse_moved(line.split(' ').map(OsString::from)).err()
    }

    #[test]
    fn a_moved_command_names_the_program_that_has_it() {
        for (line, new) in [
            ("evenkeel load http://h/ --rate 5", "`evenkeel-lab load`"),
            ("evenkeel load --help", "`evenkeel-lab load`"),
            ("evenkeel help lab", "`evenkeel-lab list|run`"),
            ("evenkeel demo --no-such-option", "`evenkeel-lab demo`"),
            ("evenkeel reload", "`evenkeel ctl reload`"),
            ("evenkeel drain web 10.0.0.1:80", "`evenkeel ctl drain`"),
        ] {
            let failure = refused(line).unwrap();
            assert_eq!(failure.code, 2, "{line}");
            assert!(failure.message.contains(new), "{line}: {}", failure.message);
            assert_eq!(failure.message.lines().count(), 1, "{line}");
        }
        for line in [
            "evenkeel",
            "evenkeel help",
            "evenkeel check demo",
            "evenkeel --version lab",
        ] {
            assert!(refused(line).is_none(), "{line}");
        }
    }
}

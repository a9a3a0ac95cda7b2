//! Passwords: typed and not shown, or a line of standard input.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::failure::Failure;

/// Most bytes of a password that are read, with the end of its line.
const MAX_LINE: u64 = 1024;

/// Reads the password of a user.
pub(crate) fn read(name: &str) -> Result<String, Failure> {
    match io::stdin().is_terminal() {
        true => ask(&format!("Password of {name}: ")),
        false => read_line(),
    }
}

/// Reads a new password of a user, which is typed twice.
pub(crate) fn read_new(name: &str) -> Result<String, Failure> {
    let first = read(name)?;
    if io::stdin().is_terminal() && ask("Once more: ")? != first {
        return Err(Failure::new(
            "the passwords are not the same; nothing has changed",
        ));
    }
    Ok(first)
}

fn read_line() -> Result<String, Failure> {
    let mut line = String::new();
    let mut input = io::stdin().lock().take(MAX_LINE);
    let read = input.read_line(&mut line);
    read.map_err(|error| Failure::new(format!("cannot read the password: {error}")))?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

fn ask(prompt: &str) -> Result<String, Failure> {
    let cannot = |error| Failure::new(format!("cannot ask for the password: {error}"));
    let shown = tcgetattr(io::stdin()).map_err(|error| cannot(error.into()))?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    // Before the question: what is typed at once is not shown either.
    tcsetattr(io::stdin(), OptionalActions::Flush, &hidden)
        .map_err(|error| cannot(error.into()))?;
    let mut terminal = io::stderr().lock();
    let asked = terminal.write_all(prompt.as_bytes()).map_err(cannot);
    let line = asked.and_then(|()| read_line());
    // Whatever was read, the terminal is as it was.
    let restored = tcsetattr(io::stdin(), OptionalActions::Flush, &shown);
    let _ = terminal.write_all(b"\n");
    restored.map_err(|error| cannot(error.into()))?;
    line
}

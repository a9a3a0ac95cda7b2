//! `evenkeel users`: the file with the users of the admin API.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use evenkeel_admin::actor::Role;
use evenkeel_admin::users::UsersFile;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::Failure;
use crate::cli::{RoleName, Users, UsersCommand};

/// Most bytes of a password that are read, with the end of its line.
const MAX_LINE: u64 = 1024;

pub(crate) fn run(args: &Users) -> Result<String, Failure> {
    let file = UsersFile(&args.file);
    match &args.command {
        UsersCommand::List => {
            let users = file.list().map_err(Failure::of)?;
            let lines = users.into_iter().map(|(name, role, is_token)| {
                let how = if is_token { "token" } else { "password" };
                format!("{name}  {}  {how}\n", role.name())
            });
            Ok(lines.collect())
        }
        UsersCommand::Add { name, role } => {
            let password = password(name)?;
            let role = role_of(*role);
            file.set_password(name, role, &password)
                .map_err(Failure::of)?;
            Ok(format!("{name} has the role {}\n", role.name()))
        }
        UsersCommand::Token { name, role } => {
            let token = file.set_token(name, role_of(*role)).map_err(Failure::of)?;
            Ok(format!("{token}\n"))
        }
        UsersCommand::Remove { name } => {
            file.remove(name).map_err(Failure::of)?;
            Ok(format!("{name} is no user any more\n"))
        }
    }
}

fn role_of(role: RoleName) -> Role {
    match role {
        RoleName::View => Role::View,
        RoleName::Operate => Role::Operate,
        RoleName::Administer => Role::Administer,
    }
}

/// A password: typed twice and not shown, or a line of standard input.
fn password(name: &str) -> Result<String, Failure> {
    if !io::stdin().is_terminal() {
        return line();
    }
    let first = typed(&format!("Password of {name}: "))?;
    let second = typed("Once more: ")?;
    match first == second {
        true => Ok(first),
        false => Err(Failure::new(
            "the passwords are not the same; nothing has changed",
        )),
    }
}

fn line() -> Result<String, Failure> {
    let mut line = String::new();
    let mut input = io::stdin().lock().take(MAX_LINE);
    let read = input.read_line(&mut line);
    read.map_err(|error| Failure::new(format!("cannot read the password: {error}")))?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

fn typed(prompt: &str) -> Result<String, Failure> {
    let cannot = |error| Failure::new(format!("cannot ask for the password: {error}"));
    let shown = tcgetattr(io::stdin()).map_err(|error| cannot(error.into()))?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    let mut terminal = io::stderr().lock();
    terminal.write_all(prompt.as_bytes()).map_err(cannot)?;
    tcsetattr(io::stdin(), OptionalActions::Flush, &hidden)
        .map_err(|error| cannot(error.into()))?;
    let line = line();
    // Whatever was read, the terminal is as it was.
    let restored = tcsetattr(io::stdin(), OptionalActions::Flush, &shown);
    let _ = terminal.write_all(b"\n");
    restored.map_err(|error| cannot(error.into()))?;
    line
}

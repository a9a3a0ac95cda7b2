//! `evenkeel users`: the file with the users of the admin API.

use evenkeel_admin::actor::Role;
use evenkeel_admin::users::UsersFile;

use crate::cli::{RoleName, Users, UsersCommand};
use crate::failure::Failure;
use crate::password;

pub(crate) fn run(args: &Users) -> Result<String, Failure> {
    let file = UsersFile(&args.file);
    match &args.command {
        UsersCommand::List => {
            let users = file.list_users().map_err(Failure::of)?;
            let lines = users.into_iter().map(|(name, role, is_token)| {
                let how = if is_token { "token" } else { "password" };
                format!("{name}  {}  {how}\n", role.name())
            });
            Ok(lines.collect())
        }
        UsersCommand::Add { name, role } => {
            let password = password::read_new(name)?;
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
            Ok(format!("the user {name} is removed\n"))
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

//! Owners whose pages are believed.

use evenkeel_config::agent::{AgentConfig, ServerConfig};
use nix::unistd::{Group, Uid, User};

/// Users and groups whose pages count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    users: Vec<u32>,
    groups: Vec<u32>,
    /// True if the group of the folder counts, too, if the folder was made for pages: it has
    /// the set-group-id bit, and nobody beside its owner and group may write to it.
    folder: bool,
}

impl Default for Owners {
    /// Root, the agent's own user, and the group of a folder that was made for pages.
    fn default() -> Self {
        Owners {
            users: vec![0, rustix::process::geteuid().as_raw()],
            groups: Vec::new(),
            folder: true,
        }
    }
}

impl Owners {
    /// Makes the owners that are named: a user by name or number, a group with an `@` before
    /// it. `None` if nobody is named.
    ///
    /// # Errors
    ///
    /// Name that this machine does not know.
    pub fn from_names(names: &[String]) -> Result<Option<Self>, String> {
        let mut owners = Owners {
            users: Vec::new(),
            groups: Vec::new(),
            folder: false,
        };
        for name in names {
            let (kind, known, ids) = match name.strip_prefix('@') {
                Some(group) => ("group", group_id(group), &mut owners.groups),
                None => ("user", user_id(name), &mut owners.users),
            };
            ids.push(known.ok_or_else(|| format!("there is no {kind} {name} on this machine"))?);
        }
        Ok((!names.is_empty()).then_some(owners))
    }

    /// Returns the owners of an agent, for a server that names none of its own.
    pub fn of_agent(config: &AgentConfig) -> Result<Self, String> {
        let named = Self::from_names(&config.page_owners);
        Ok(named
            .map_err(|reason| format!("page_owners: {reason}"))?
            .unwrap_or_default())
    }

    /// Returns the owners of a server, where other servers have `default`.
    pub fn of_server(server: &ServerConfig, default: &Self) -> Result<Self, String> {
        let named = Self::from_names(&server.page_owners);
        let named = named.map_err(|reason| format!("server.{}.page_owners: {reason}", server.name));
        Ok(named?.unwrap_or_else(|| default.clone()))
    }

    /// Returns these owners together with `others`.
    pub fn merged_with(mut self, others: &Self) -> Self {
        self.users.extend(&others.users);
        self.groups.extend(&others.groups);
        self.folder |= others.folder;
        self
    }

    /// Returns true if a file of this user and group counts. `folder` is the group of its
    /// folder, if that was made for pages.
    pub fn owns_file(&self, user: u32, group: u32, folder: Option<u32>) -> bool {
        self.users.contains(&user)
            || self.groups.contains(&group)
            || self.folder && folder == Some(group)
    }
}

/// A user's name and number, for people.
pub fn user_name(id: u32) -> String {
    let user = User::from_uid(Uid::from_raw(id)).ok().flatten();
    match user.filter(|user| !user.name.contains(char::is_control)) {
        Some(user) => format!("{} ({id})", user.name),
        None => id.to_string(),
    }
}

fn user_id(name: &str) -> Option<u32> {
    let known = || Some(User::from_name(name).ok()??.uid.as_raw());
    name.parse().ok().or_else(known)
}

fn group_id(name: &str) -> Option<u32> {
    let known = || Some(Group::from_name(name).ok()??.gid.as_raw());
    name.parse().ok().or_else(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Result<Option<Owners>, String> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Owners::from_names(&names)
    }

    #[test]
    fn users_and_groups_are_known_by_name_and_number() {
        let owners = named(&["root", "4711", "@root", "@17"]).unwrap().unwrap();
        assert_eq!(
            (owners.users.as_slice(), owners.groups.as_slice()),
            (&[0, 4711][..], &[0, 17][..])
        );
        assert_eq!(named(&[]), Ok(None));
        for (name, wanted) in [
            ("no such user", "no user no such user"),
            ("@no such group", "no group @no such group"),
            ("", "no user"),
        ] {
            let error = named(&[name]).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        assert_eq!(user_name(0), "root (0)");
        assert_eq!(user_name(4_000_000_000), "4000000000");
    }

    #[test]
    fn whoever_is_not_listed_does_not_count() {
        let default = Owners::default();
        let own = rustix::process::geteuid().as_raw();
        assert!(default.owns_file(0, 9, None) && default.owns_file(own, 9, None));
        assert!(!default.owns_file(4711, 9, None) && !default.owns_file(4711, 9, Some(8)));
        assert!(
            default.owns_file(4711, 9, Some(9)),
            "a folder made for pages"
        );
        let listed = named(&["4711", "@17"]).unwrap().unwrap();
        assert!(listed.owns_file(4711, 9, None) && listed.owns_file(5, 17, None));
        assert!(!listed.owns_file(0, 9, Some(9)));
        assert!(listed.clone().merged_with(&default).owns_file(0, 9, None));
    }
}

//! `[rule.NAME.auth]`: who may send requests.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use evenkeel_core::key;

use super::group::unknown_group;
use crate::fields::is_of_application;
use crate::schema::document::Item;
use crate::schema::document::Span;
use crate::schema::field::{Field, FileName, Limits, Texts, blank};
use crate::schema::key::{HOUR, docs, millis, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Whose requests are taken: users with passwords (RFC 7617), or those that a group lets pass.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Auth {}
    keys AUTH {
        /// File with users and hashes of their passwords, a line `USER:HASH` each, as `htpasswd -B` writes
        /// it: bcrypt (`$2y$`, `$2b$`), Argon2 (`$argon2id$`), or SHA-crypt (`$5$`, `$6$`, as `openssl passwd -6`).
        /// **Required**, unless there is a `group`. It is read again when it changes.
        users_file: Option<FileName> = None; r#""/etc/evenkeel/users""#,
        /// What browsers call it when they ask for a password. Only with `users_file`.
        realm: String [Text(REALM)] = "Restricted".into(); r#""Shop administration""#,
        /// Name of the field that tells members the user. Clients cannot forge it: fields of theirs that are
        /// called so, or begin so with a `-` behind it, are removed from requests of all rules. Without
        /// it members are not told. With a `group` it is copied from the response that lets a request pass.
        user_field: Option<String> [Text(FIELD)] = None; r#""X-Remote-User""#,
        /// Whether members do not get `Authorization`, which has the password.
        remove_authorization: bool = false; "true",
        /// A group that is asked whether a request may pass ([forward
        /// authentication](routing.md#forward-authentication)), in place of a file of users. A response
        /// with a status from 200 to 299 lets it pass; any other one is what the client gets.
        group: String [Text(GROUP)] = String::new(); r#""login""#,
        /// Path of the question, which is a `GET`, perhaps with a query. Only with `group`.
        path: String [Text(PATH)] = "/".into(); r#""/oauth2/auth""#,
        /// Fields of the response that lets a request pass which members get, too. Clients cannot
        /// forge them, as with `user_field`; `Authorization` replaces theirs. Only with `group`.
        copy_fields: Vec<String> [Text(COPIED)] = Vec::new(); r#"["X-Email", "X-Groups"]"#,
        /// How long an answer may take, with a connection and other members that are asked after
        /// one that fails. After it the request is refused. Only with `group`.
        timeout: Duration [Time(millis(1), HOUR)] = Duration::from_secs(5); r#""2s""#,
    }
}

blank!(Auth);

const REALM: Texts = (
    "1 to 128 printable ASCII characters without quotes and backslashes",
    |text| {
        let fits = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
        (1..=128).contains(&text.len()) && text.bytes().all(fits)
    },
);

/// The name of a group, which must be there.
const GROUP: Texts = ("the name of a group", |text| !text.is_empty());

const PATH: Texts = (
    "an absolute path in printable ASCII, perhaps with a query",
    |text| {
        let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        text.starts_with('/')
            && !text.starts_with("//")
            && text.len() <= 1024
            && text.bytes().all(fits)
    },
);

/// A field that nothing else goes by.
const FIELD: Texts = (
    "the name of a field of its own, as in \"X-Remote-User\"",
    is_own,
);

/// The same, or the one that a member may be told in place of the client's.
const COPIED: Texts = (
    "the name of a field of its own, as in \"X-Remote-User\", or \"Authorization\"",
    |text| is_own(text) || is_authorization(text),
);

fn is_authorization(name: &str) -> bool {
    name.eq_ignore_ascii_case("authorization")
}

/// True if nothing else goes by a field of this name.
fn is_own(name: &str) -> bool {
    key::is_field_name(name) && is_of_application(name)
}

impl AsTable for Auth {
    const ALLOWED: &'static str = "a table about users";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(AUTH, self, report);
        match (table.given("users_file"), table.given("group")) {
            (true, true) => {
                let message =
                    "there is `users_file`, too: either a file says who may pass, or a group";
                table.problem("group", message, report);
            }
            (false, false) => {
                let message = "`users_file` is missing, or `group`: what says whose requests pass";
                report.problem(&table.span_of(""), table.path(), message, None);
            }
            (true, false) => {
                let of_group = ["path", "copy_fields", "timeout"];
                for key in of_group.into_iter().filter(|key| table.given(key)) {
                    table.problem(key, "has no effect without `group`", report);
                }
            }
            (false, true) => {
                if table.given("realm") {
                    let message = "has no effect: what clients are told is what the group says";
                    table.problem("realm", message, report);
                }
                self.check_copied(table, report);
            }
        }
    }
}

impl Auth {
    /// Looks for fields that would be copied twice.
    fn check_copied(&self, table: &Table<'_>, report: &mut Report<'_>) {
        let mut names: Vec<_> = self.copied().map(str::to_ascii_lowercase).collect();
        names.sort_unstable();
        for pair in names.windows(2) {
            if let [first, second] = pair
                && first == second
            {
                let message = format!("{first:?} is copied twice");
                table.problem("copy_fields", message, report);
            }
        }
    }

    /// Looks at whether its group exists. `table` has the key `auth`, and `rule` is the rule's name.
    pub(super) fn check(
        &self,
        rule: &str,
        table: &Table<'_>,
        shared: &HashMap<String, Span>,
        report: &mut Report<'_>,
    ) {
        // The group of a rule is one of its own name, too.
        if let Some(group) = self.asked()
            && !shared.contains_key(group)
            && group != rule
        {
            unknown_group(table, "auth", group, shared, report);
        }
    }

    /// The group that is asked, if one is.
    pub fn asked(&self) -> Option<&str> {
        Some(self.group.as_str()).filter(|group| !group.is_empty())
    }

    /// The fields that members get of a group's response.
    pub fn copied(&self) -> impl Iterator<Item = &str> {
        let fields = self.user_field.iter().chain(&self.copy_fields);
        fields.map(String::as_str)
    }

    /// Those that only the balancer may say.
    pub fn reserved(&self) -> impl Iterator<Item = &str> {
        self.copied().filter(|name| !is_authorization(name))
    }

    /// Whether members do not get the client's `Authorization`.
    pub fn removes_authorization(&self) -> bool {
        self.remove_authorization || self.copied().any(is_authorization)
    }

    /// A relative path starts at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        if let Some(file) = &mut self.users_file {
            file.resolve(folder);
        }
    }
}

/// What a route says of users.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RouteAuth {
    /// Nothing: what the rule says holds.
    #[default]
    OfRule,
    /// Something else; `None` is that everybody may send.
    Own(Option<Box<Auth>>),
}

impl Field for RouteAuth {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut own: Option<Auth> = None;
        Field::read(&mut own, item, limits, report);
        *self = RouteAuth::Own(own.map(Box::new));
    }

    fn allowed(&self, limits: &Limits) -> String {
        None::<Auth>.allowed(limits)
    }
}

impl RouteAuth {
    pub(crate) fn own_mut(&mut self) -> Option<&mut Auth> {
        match self {
            RouteAuth::OfRule => None,
            RouteAuth::Own(own) => own.as_deref_mut(),
        }
    }

    /// Whose requests it takes, if those of its rule say `of_rule`.
    pub fn or<'a>(&'a self, of_rule: Option<&'a Auth>) -> Option<&'a Auth> {
        match self {
            RouteAuth::OfRule => of_rule,
            RouteAuth::Own(own) => own.as_deref(),
        }
    }
}

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "Whose requests a rule with `protocol = \"http\"` takes: those of \
               [users](routing.md#passwords), where all others get 401, or those that [a \
               group](routing.md#forward-authentication) lets pass. A route may have such a table, too.";
    TableDoc::new("[rule.NAME.auth]", doc, [docs(AUTH, Auth::default())])
}

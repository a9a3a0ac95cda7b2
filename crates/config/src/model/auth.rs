//! `[rule.NAME.auth]`: authentication of requests.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use evenkeel_core::key;

use super::group_name::unknown_group;
use crate::fields::is_of_application;
use crate::routing::template::Template;
use crate::schema::document::Item;
use crate::schema::document::Span;
use crate::schema::field::{Field, FileName, Limits, Texts, blank};
use crate::schema::key::{HOUR, describe_keys, millis, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Accepted requests: from users with passwords (RFC 7617), or as a group decides.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Auth {}
    keys AUTH {
        /// File with users and hashes of their passwords, a line `USER:HASH` each, as `htpasswd -B` writes:
        /// bcrypt (`$2y$`, `$2b$`), Argon2 (`$argon2id$`), or SHA-crypt (`$5$`, `$6$`, as `openssl passwd -6`).
        /// The balancer reads the file again when you change the file. **Required**, unless you set `group`.
        users_file: Option<FileName> = None; r#""/etc/evenkeel/users""#,
        /// Name shown by browsers when they ask for a password. Only with `users_file`.
        realm: String [Text(REALM)] = "Restricted".into(); r#""Shop administration""#,
        /// Name of a field with the user's name for members. Set this field if your members need to know the
        /// user. Clients cannot forge the field: the balancer removes client fields with this name, or with
        /// this name and a `-` behind, from requests of all rules. With `group`, the value is copied from the
        /// response which lets the request pass.
        user_field: Option<String> [Text(FIELD)] = None; r#""X-Remote-User""#,
        /// Removes `Authorization`, which contains the password, from requests to members.
        remove_authorization: bool = false; "true",
        /// Group to ask whether a request may pass ([forward
        /// authentication](routing.md#forward-authentication)), instead of a file of users. A response with a
        /// status from 200 to 299 lets the request pass; the client gets any other response as the answer.
        group: String [Text(GROUP)] = String::new(); r#""login""#,
        /// Path of the question to `group`, which is a `GET`. You may add a query. Only with `group`.
        path: String [Text(PATH)] = "/".into(); r#""/oauth2/auth""#,
        /// Fields which members also get, copied from the response which lets a request pass. Clients cannot
        /// forge these fields, as with `user_field`; a copied `Authorization` replaces the client's. Only with
        /// `group`.
        copy_fields: Vec<String> [Text(COPIED)] = Vec::new(); r#"["X-Email", "X-Groups"]"#,
        /// Address to which clients are redirected (302) instead of the answer of `group`, if the answer has status
        /// 401. You can use the parts of a route's [`redirect`](#rulenameroutes), as `{escaped_uri}` for a parameter that
        /// tells the page where to lead users after the login. Only with `group`.
        login_page: Option<String> [Text(PAGE)] = None; r#""https://login.example.org/start?rd={scheme}://{host}{escaped_uri}""#,
        /// Time limit for an answer of `group`, including connecting and asking other members after a failure.
        /// After the limit the request is refused. Only with `group`.
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

const PAGE: Texts = (
    "an address that begins with \"https://\", \"http://\", \"{scheme}://\" or \"/\", without spaces, with the parts of a redirect",
    |text| {
        let begins = ["https://", "http://", "{scheme}://", "/"];
        begins.iter().any(|begin| text.starts_with(begin))
            && !text.starts_with("//")
            && !text.starts_with("/{")
            && text.len() <= 2048
            && text.bytes().all(|byte| byte.is_ascii_graphic())
            && Template::parse(text).is_ok()
    },
);

/// Name of a field without a meaning elsewhere.
const FIELD: Texts = (
    "the name of a field of its own, as in \"X-Remote-User\"",
    is_own,
);

/// Name of a field without a meaning elsewhere, or the one that a member may be told in place of the client's.
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
        match (table.has_key("users_file"), table.has_key("group")) {
            (true, true) => {
                let message = "`users_file` is set, too: set either `users_file` or `group`";
                table.report_problem("group", message, report);
            }
            (false, false) => {
                let message =
                    "`users_file` or `group` is missing: one of them decides whose requests pass";
                report.add_problem(&table.span_of(""), table.path(), message, None);
            }
            (true, false) => {
                let of_group = ["path", "copy_fields", "login_page", "timeout"];
                for key in of_group.into_iter().filter(|key| table.has_key(key)) {
                    table.report_problem(key, "has no effect without `group`", report);
                }
            }
            (false, true) => {
                if table.has_key("realm") {
                    let message =
                        "has no effect: with `group`, clients get the answer of the group";
                    table.report_problem("realm", message, report);
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
                table.report_problem("copy_fields", message, report);
            }
        }
    }

    /// Looks at whether its group exists. `table` has the key `auth`, and `rule` is the rule's name.
    pub(super) fn check_group(
        &self,
        rule: &str,
        table: &Table<'_>,
        shared: &HashMap<String, Span>,
        report: &mut Report<'_>,
    ) {
        // The group of a rule is one of its own name, too.
        if let Some(group) = self.asked_group()
            && !shared.contains_key(group)
            && group != rule
        {
            unknown_group(table, "auth", group, shared, report);
        }
    }

    /// The group that is asked, if one is.
    pub fn asked_group(&self) -> Option<&str> {
        Some(self.group.as_str()).filter(|group| !group.is_empty())
    }

    /// The fields that members get of a group's response.
    pub fn copied(&self) -> impl Iterator<Item = &str> {
        let fields = self.user_field.iter().chain(&self.copy_fields);
        fields.map(String::as_str)
    }

    /// Names of fields that only the balancer may set.
    pub fn reserved(&self) -> impl Iterator<Item = &str> {
        self.copied().filter(|name| !is_authorization(name))
    }

    /// True if members do not get the client's `Authorization`.
    pub fn removes_authorization(&self) -> bool {
        self.remove_authorization || self.copied().any(is_authorization)
    }

    /// Makes a relative path start at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        if let Some(file) = &mut self.users_file {
            file.resolve(folder);
        }
    }
}

/// Setting of a route for users.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RouteAuth {
    /// The rule's setting holds.
    #[default]
    OfRule,
    /// The route's own setting; `None` lets everybody send.
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

    /// Users of the route, in a rule with the users `of_rule`.
    pub fn or_rule<'a>(&'a self, of_rule: Option<&'a Auth>) -> Option<&'a Auth> {
        match self {
            RouteAuth::OfRule => of_rule,
            RouteAuth::Own(own) => own.as_deref(),
        }
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Authentication of requests of a rule with `protocol = \"http\"`: by \
               [users](routing.md#passwords) with passwords, where requests of others get 401, or \
               by [a group](routing.md#forward-authentication) which decides. You can set `auth` of \
               a route, too.";
    TableDoc::new(
        "[rule.NAME.auth]",
        doc,
        [describe_keys(AUTH, Auth::default())],
    )
}

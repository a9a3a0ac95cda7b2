//! `[rule.NAME.auth]`: who may send requests.

use std::path::Path;

use evenkeel_core::key;

use crate::schema::document::Item;
use crate::schema::field::{Field, FileName, Limits, Texts, blank};
use crate::schema::key::{docs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Users with passwords (RFC 7617).
    #[derive(Clone, Debug, PartialEq)]
    pub struct Auth {}
    keys AUTH {
        /// File with users and hashes of their passwords, a line `USER:HASH` each, as `htpasswd -B` writes
        /// it: bcrypt (`$2y$`, `$2b$`), or SHA-crypt (`$5$`, `$6$`, as `openssl passwd -6`). **Required.**
        /// It is read again when it changes.
        users_file: FileName = FileName::default(); r#""/etc/evenkeel/users""#,
        /// What browsers call it when they ask for a password.
        realm: String [Text(REALM)] = "Restricted".into(); r#""Shop administration""#,
        /// Name of the field that tells members the user. Clients cannot forge it: fields of theirs that are
        /// called so, or begin so with a `-` behind it, are removed from requests of all rules. Without
        /// it members are not told.
        user_field: Option<String> [Text(FIELD)] = None; r#""X-Remote-User""#,
        /// Whether members do not get `Authorization`, which has the password.
        remove_authorization: bool = false; "true",
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

/// A field that nothing else goes by.
const FIELD: Texts = (
    "the name of a field of its own, as in \"X-Remote-User\"",
    |text| {
        let others = [
            "host",
            "connection",
            "content-length",
            "transfer-encoding",
            "authorization",
        ];
        let more = [
            "cookie",
            "te",
            "upgrade",
            "via",
            "forwarded",
            "expect",
            "trailer",
            "content",
        ];
        let mut taken = others.into_iter().chain(more);
        let lower = text.to_ascii_lowercase();
        key::is_field_name(text)
            && !lower.starts_with("x-forwarded")
            && taken.all(|other| other != lower)
    },
);

impl AsTable for Auth {
    const ALLOWED: &'static str = "a table about users";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(AUTH, self, report);
        table.require("users_file", report);
    }
}

impl Auth {
    /// A relative path starts at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        self.users_file.resolve(folder);
    }
}

/// What a route says of users.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RouteAuth {
    /// Nothing: what the rule says holds.
    #[default]
    OfRule,
    /// Something else; `None` is that everybody may send.
    Own(Option<Auth>),
}

impl Field for RouteAuth {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let mut own = None;
        Field::read(&mut own, item, limits, report);
        *self = RouteAuth::Own(own);
    }

    fn allowed(&self, limits: &Limits) -> String {
        None::<Auth>.allowed(limits)
    }
}

impl RouteAuth {
    pub(crate) fn own_mut(&mut self) -> Option<&mut Auth> {
        match self {
            RouteAuth::OfRule => None,
            RouteAuth::Own(own) => own.as_mut(),
        }
    }

    /// Whose requests it takes, if those of its rule say `of_rule`.
    pub fn or<'a>(&'a self, of_rule: Option<&'a Auth>) -> Option<&'a Auth> {
        match self {
            RouteAuth::OfRule => of_rule,
            RouteAuth::Own(own) => own.as_ref(),
        }
    }
}

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "[Users](routing.md#passwords) whose requests a rule with `protocol = \"http\"` takes: all \
               others get 401. A route may have such a table, too.";
    TableDoc::new("[rule.NAME.auth]", doc, [docs(AUTH, Auth::default())])
}

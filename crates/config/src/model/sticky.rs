//! `[group.NAME.sticky]`: binding of clients to a member by a cookie of the balancer's, or by a header field.

use std::path::Path;
use std::time::Duration;

use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::key;

use super::request_id::FIELD;
use crate::schema::field::{FileName, Texts, blank, choice_field};
use crate::schema::key::{DAY, describe_keys, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// The cookie, or the header field, of a group.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Sticky {}
    keys STICKY {
        /// Name of the cookie. By default the name is made of the group's name. Do not use a name for two
        /// groups, because each group would replace the other's cookie.
        cookie: Option<String> [Text(COOKIE)] = None; r#""shop_server""#,
        /// Name of a header field which binds clients instead of a cookie, for clients without cookies. The
        /// first response to a client has the field; have your client send the field, with the value, with
        /// each later request.
        header: Option<String> [Text(FIELD)] = None; r#""X-Session""#,
        /// Longest time of a binding, from its beginning on; then the client is bound anew. The time is in the value
        /// of the cookie or field, and browsers keep the cookie as `max_age` says.
        max_life: Option<Duration> [Time(secs(1), FOUR_HUNDRED_DAYS)] = None; r#""8h""#,
        /// Longest time between two requests of a client; then the client is bound anew. The balancer writes the time
        /// of the last request, to the second, into the cookie or field, so responses have a new value.
        max_idle: Option<Duration> [Time(secs(1), FOUR_HUNDRED_DAYS)] = None; r#""30m""#,
        /// File with a secret of at least 32 bytes of text, from which the cookie's values are made. Write the
        /// file with `openssl rand -base64 48`. Balancers with the same secret know each other's cookies, and a
        /// restarted balancer its own. Without a file each process makes a key of its own, and clients are
        /// bound anew after a restart. Let nobody but the file's owner and group have access.
        key_file: Option<FileName> = None; r#""/etc/evenkeel/sticky.key""#,
        /// Time for which browsers keep the cookie (`Max-Age`), from the client's binding on; then the client
        /// is bound anew. By default browsers keep the cookie until you close them.
        max_age: Option<Duration> [Time(secs(1), FOUR_HUNDRED_DAYS)] = None; r#""12h""#,
        /// Beginning of the paths of requests which carry the cookie (`Path`). Set a path if other applications of the
        /// host must not see the cookie; requests for other paths are then not bound.
        cookie_path: String [Text(PATH)] = "/".into(); r#""/shop""#,
        /// Requests from other sites which carry the cookie (`SameSite`).
        same_site: SameSite = SameSite::Lax; r#""strict""#,
        /// Lets browsers send the cookie over TLS only (`Secure`), even if the client's connection to the
        /// balancer is not TLS. Set `true` if your balancer is behind a proxy which ends TLS. If the connection
        /// is TLS, the cookie is always secure.
        secure: bool = false; "true",
    }
}

/// Longest time for which browsers keep a cookie.
const FOUR_HUNDRED_DAYS: Duration = Duration::from_secs(400 * DAY.as_secs());

const COOKIE: Texts = ("the name of a cookie", key::is_field_name);

const PATH: Texts = (
    "a path of at most 256 visible ASCII characters without \";\"",
    |text| {
        let fits = |byte: u8| byte.is_ascii_graphic() && byte != b';';
        text.starts_with('/') && text.len() <= 256 && text.bytes().all(fits)
    },
);

blank!(Sticky);

/// Requests from other sites that have a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    /// No requests from other sites.
    Strict,
    /// Requests by which users come to the site.
    Lax,
    /// All requests.
    None,
}

choice_field!(SameSite,
    "strict" => SameSite::Strict,
    "lax" => SameSite::Lax,
    "none" => SameSite::None);

impl AsTable for Sticky {
    const ALLOWED: &'static str = "a table, or true";
    const TRUE: bool = true;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(STICKY, self, report);
        let of_cookies = ["cookie", "max_age", "cookie_path", "same_site", "secure"];
        if self.header.is_some()
            && let Some(key) = of_cookies.into_iter().find(|key| table.has_key(key))
        {
            let message = "`header` is set, so there is no cookie: remove one of the two keys";
            table.report_problem(key, message, report);
        }
    }
}

impl Sticky {
    /// The name of the cookie, or of the field, of the group called `group`.
    pub fn name_of(&self, group: &str) -> String {
        if let Some(header) = &self.header {
            return header.clone();
        }
        let named = || format!("evenkeel-{:08x}", key::hash(group.as_bytes()) as u32);
        self.cookie.clone().unwrap_or_else(named)
    }

    /// Looks at when clients of the group are bound. They are per session if the file does not say
    /// (`is_said`).
    pub(super) fn set_binding(
        settings: &mut GroupSettings,
        is_said: bool,
        table: &Table<'_>,
        report: &mut Report<'_>,
    ) {
        if !is_said {
            settings.granularity = Granularity::PerSession;
        }
        let message = match settings.granularity {
            Granularity::PerRequest => {
                "clients are not bound with granularity `per_request`: write granularity = \
                 \"per_session\" or \"on_demand\""
            }
            Granularity::OnDemand if !settings.adaptive => {
                "a cookie does not say since when its client is bound, so that `rebind_interval` \
                 cannot be kept: write adaptive = true, or granularity = \"per_session\" and \
                 `max_age` in `sticky`"
            }
            _ => return,
        };
        report.add_problem(
            &table.span_of("sticky"),
            &table.path_of("sticky"),
            message,
            None,
        );
    }

    /// A relative path starts at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        if let Some(file) = &mut self.key_file {
            file.resolve(folder);
        }
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "The [cookie](routing.md#sticky-clients), or the header field, which binds clients to members, in groups of \
               rules with `protocol = \"http\"`.";
    TableDoc::new(
        "[group.NAME.sticky]",
        doc,
        [describe_keys(STICKY, Sticky::default())],
    )
}

//! `[group.NAME.sticky]`: clients that are bound to a member by a cookie of the balancer's.

use std::path::Path;
use std::time::Duration;

use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::key;

use crate::schema::field::{FileName, Texts, blank, choice_field};
use crate::schema::key::{DAY, docs, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// The cookie of a group.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Sticky {}
    keys STICKY {
        /// Name of the cookie. By default it is made of the group's name: two groups must not share a
        /// cookie, since each would replace the other's.
        cookie: Option<String> [Text(COOKIE)] = None; r#""shop_server""#,
        /// File with a secret of at least 32 bytes of text, from which the cookie's values are made, as
        /// `openssl rand -base64 48` writes one. Balancers with the same one know each other's
        /// cookies, and a restarted balancer its own. Without it each process makes a key of its
        /// own, and clients are bound anew after a restart. Others than its owner and group must have
        /// no access.
        key_file: Option<FileName> = None; r#""/etc/evenkeel/sticky.key""#,
        /// How long browsers keep the cookie (`Max-Age`), from when the client was bound; then it is
        /// bound anew. Without it they keep it until they are closed.
        max_age: Option<Duration> [Time(secs(1), FOUR_HUNDRED_DAYS)] = None; r#""12h""#,
        /// Which requests from other sites have the cookie (`SameSite`).
        same_site: SameSite = SameSite::Lax; r#""strict""#,
        /// Whether browsers send the cookie over TLS only (`Secure`), though the client's connection to
        /// the balancer is not TLS: behind a proxy that ends it. Where it is TLS, they always do.
        secure: bool = false; "true",
    }
}

/// What browsers keep a cookie for at most.
const FOUR_HUNDRED_DAYS: Duration = Duration::from_secs(400 * DAY.as_secs());

const COOKIE: Texts = ("the name of a cookie", key::is_field_name);

blank!(Sticky);

/// Which requests from other sites have a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    /// None.
    Strict,
    /// Those by which users come to the site.
    Lax,
    /// All.
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
    }
}

impl Sticky {
    /// The name of the cookie of the group called `group`.
    pub fn cookie_of(&self, group: &str) -> String {
        let named = || format!("evenkeel-{:08x}", key::hash(group.as_bytes()) as u32);
        self.cookie.clone().unwrap_or_else(named)
    }

    /// Looks at when clients of the group are bound. They are per session if the file does not say
    /// (`is_said`).
    pub(super) fn bind(
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
        report.problem(
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

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "The [cookie](routing.md#sticky-clients) that binds clients to members, in groups of rules \
               with `protocol = \"http\"`.";
    TableDoc::new(
        "[group.NAME.sticky]",
        doc,
        [docs(STICKY, Sticky::default())],
    )
}

//! `[rule.NAME.maintenance]`: what clients of a rule get while it is not to be used.

use std::path::Path;
use std::time::Duration;

use crate::schema::field::{FileName, Texts};
use crate::schema::key::{DAY, docs, secs, section};
use crate::schema::networks::Networks;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// The maintenance of a rule.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Maintenance {}
    keys MAINTENANCE {
        /// Whether the rule is in maintenance: HTTP clients get `status` and the page, new connections
        /// of TCP are reset. `evenkeel ctl maintain RULE on` and `off` change this at run time.
        on: bool = false; "true",
        /// File with the page, of at most 64 KiB. It is read at the start and at reloads. Without it
        /// clients get a line of text.
        page: Option<FileName> = None; r#""/etc/evenkeel/maintenance.html""#,
        /// `Content-Type` of the page.
        content_type: String [Text(CONTENT_TYPE)] = "text/html; charset=utf-8".into(); r#""application/json""#,
        /// Status of the answer.
        status: u16 [Number(400.0, 599.0, "")] = 503; "500",
        /// When clients may come again: `Retry-After`, in whole seconds.
        retry_after: Option<Duration> [Time(secs(1), DAY)] = Some(secs(300)); r#""1h""#,
        /// Networks of clients that are served nevertheless.
        except: Option<Networks> = None; r#"["10.0.0.0/8"]"#,
    }
}

/// A value of a field: no line ends in it.
const CONTENT_TYPE: Texts = ("a media type as in \"text/html\"", |text| {
    let fits = |byte: u8| (b' '..=b'~').contains(&byte);
    (1..=128).contains(&text.len()) && text.contains('/') && text.bytes().all(fits)
});

impl AsTable for Maintenance {
    const ALLOWED: &'static str = "a table about the maintenance of the rule";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(MAINTENANCE, self, report);
        if table.given("content_type") && self.page.is_none() {
            table.problem("content_type", "has no effect without `page`", report);
        }
    }
}

impl Maintenance {
    /// A relative path starts at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        if let Some(page) = &mut self.page {
            page.resolve(folder);
        }
    }
}

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "[Maintenance](limits.md#maintenance) of a rule: what clients get while it is not to be \
               used.";
    let keys = [docs(MAINTENANCE, Maintenance::default())];
    TableDoc::new("[rule.NAME.maintenance]", doc, keys)
}

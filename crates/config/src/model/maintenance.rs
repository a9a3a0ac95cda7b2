//! `maintenance` of rules, groups and routes: answers to clients while the service must not be used.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crate::schema::field::{FileName, Texts, blank};
use crate::schema::key::{DAY, describe_keys, secs, section};
use crate::schema::networks::Networks;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// The maintenance of a rule, a group or a route.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Maintenance {
        /// Keys that the file has. Others come from what is less specific.
        said: Vec<&'static str> = Vec::new(),
    }
    keys MAINTENANCE {
        /// Maintenance is in force: HTTP clients get `status` and the page, new connections of TCP are reset.
        /// You can change the state at run time for a rule or a group with `evenkeel ctl maintain NAME on` and
        /// `off`.
        on: bool = false; "true",
        /// File with the page, of at most 64 KiB. The balancer reads the file at the start and at reloads. If
        /// you set no page, clients get a line of text.
        page: Option<FileName> = None; r#""/etc/evenkeel/maintenance.html""#,
        /// `Content-Type` of the page.
        content_type: String [Text(CONTENT_TYPE)] = "text/html; charset=utf-8".into(); r#""application/json""#,
        /// Status of the answer.
        status: u16 [Number(400.0, 599.0, "")] = 503; "500",
        /// Time after which clients may come again: `Retry-After`, in whole seconds.
        retry_after: Option<Duration> [Time(secs(1), DAY)] = Some(secs(300)); r#""1h""#,
        /// Networks of clients which are served nevertheless. List your own network to test a service before
        /// you end its maintenance.
        except: Option<Networks> = None; r#"["10.0.0.0/8"]"#,
    }
}

/// A value of a field: no line ends in it.
const CONTENT_TYPE: Texts = ("a media type as in \"text/html\"", |text| {
    let fits = |byte: u8| (b' '..=b'~').contains(&byte);
    (1..=128).contains(&text.len()) && text.contains('/') && text.bytes().all(fits)
});

impl AsTable for Maintenance {
    const ALLOWED: &'static str = "a table about maintenance";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(MAINTENANCE, self, report);
        let keys = MAINTENANCE.iter().map(|key| key.name);
        self.said.extend(keys.filter(|key| table.has_key(key)));
        if table.has_key("content_type") && self.page.is_none() {
            table.report_problem("content_type", "has no effect without `page`", report);
        }
    }
}
blank!(Maintenance);

impl Maintenance {
    /// Returns `base` with what `self` says in its place. Either of them may be on.
    #[must_use]
    pub fn layer_over(&self, base: &Maintenance) -> Maintenance {
        let mut merged = Maintenance {
            on: self.on || base.on,
            ..base.clone()
        };
        for key in &self.said {
            match *key {
                "page" => {
                    merged.page.clone_from(&self.page);
                    merged.content_type.clone_from(&self.content_type);
                }
                "status" => merged.status = self.status,
                "retry_after" => merged.retry_after = self.retry_after,
                "except" => merged.except.clone_from(&self.except),
                _ => {}
            }
        }
        merged
    }

    /// True if a client with this address is not served now.
    #[inline]
    pub fn is_for(&self, client: Option<IpAddr>) -> bool {
        let except = self.except.as_ref();
        self.on
            && !except
                .is_some_and(|networks| client.is_some_and(|client| networks.contains(client)))
    }

    /// A relative path starts at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        if let Some(page) = &mut self.page {
            page.resolve(folder);
        }
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "[Maintenance](limits.md#maintenance) of a rule: answer to clients while you do not \
               want the service to be used. You can set `maintenance` of a group and of a route \
               with the same keys.";
    let keys = [describe_keys(MAINTENANCE, Maintenance::default())];
    TableDoc::new("[rule.NAME.maintenance]", doc, keys)
}

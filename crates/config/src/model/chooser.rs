//! `[group.NAME.chooser]`: a program outside of the balancer that chooses members.

use std::time::Duration;

use super::prometheus::Url;
use crate::schema::document::Item;
use crate::schema::field::{Field, Limits, blank, read_text};
use crate::schema::key::{describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Program asked for the member of each binding.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Chooser {}
    keys CHOOSER {
        /// URL of your chooser, with `http`: each question is a `POST` to the URL. A host name is looked up for
        /// each new connection. **Required.**
        url: ChooserUrl = ChooserUrl::default(); r#""http://127.0.0.1:9000/choose""#,
        /// Time limit for an answer, including a connection if none is open. After the limit the group's
        /// `strategy` decides, and a late answer is ignored. Keep the limit short: the chooser can delay
        /// requests by as much.
        timeout: Duration [Time(millis(1), secs(10))] = millis(20); r#""5ms""#,
    }
}

blank!(Chooser);

impl AsTable for Chooser {
    const ALLOWED: &'static str = "a table about a chooser";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(CHOOSER, self, report);
        if self.url.0.host.is_empty() {
            table.require("url", report);
        }
    }
}

/// URL of a chooser.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChooserUrl(pub Url);

impl ChooserUrl {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > 2048 {
            return Err("longer than 2048 bytes");
        }
        let url = Url::parse(text)?;
        match url.is_secure {
            true => Err("a chooser is asked without TLS"),
            false => Ok(ChooserUrl(url)),
        }
    }
}

impl Field for ChooserUrl {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        read_text(self, item, limits, report, ChooserUrl::parse);
    }

    fn allowed(&self, _: &Limits) -> String {
        r#"a URL that begins with "http://""#.into()
    }
}

/// Text of the reference about the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "A [custom strategy](strategies.md#custom-strategies): a program of yours, asked over \
               HTTP for the member of a request, connection or negotiation. Off unless you add the \
               table. The group's `strategy` decides when your program does not.";
    let keys = [describe_keys(CHOOSER, Chooser::default())];
    TableDoc::new("[group.NAME.chooser]", doc, keys)
}

//! `request_id` in `[rule.NAME.http]`: a name for each request.

use evenkeel_core::key::is_field_name;

use crate::schema::field::{Texts, blank};
use crate::schema::key::{docs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// A name for each request, by which it is known to the client, in the log and at the member.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RequestId {}
    keys REQUEST_ID {
        /// Name of the header field that it stands in.
        field: String [Text(FIELD)] = "X-Request-ID".into(); r#""X-Correlation-ID""#,
        /// Whether clients get it with the response, too: in place of the member's field of that name.
        answer: bool = false; "true",
    }
}

/// Fields that mean something for the message.
const NOT: [&str; 14] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "date",
    "expect",
    "host",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

const FIELD: Texts = (
    "the name of a header field that has no meaning of its own",
    |name| is_field_name(name) && !NOT.iter().any(|not| name.eq_ignore_ascii_case(not)),
);

impl AsTable for RequestId {
    const ALLOWED: &'static str = "true, or a table of request ids";
    const TRUE: bool = true;

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(REQUEST_ID, self, report);
    }
}
blank!(RequestId);

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let doc = "[Request ids](telemetry.md#request-ids): `request_id = true` is a table with all defaults.";
    let keys = [docs(REQUEST_ID, RequestId::default())];
    TableDoc::new("[rule.NAME.http.request_id]", doc, keys)
}

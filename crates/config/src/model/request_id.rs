//! `request_id` in `[rule.NAME.http]`: a name for each request.

use evenkeel_core::key::is_field_name;

use crate::schema::field::{Texts, blank};
use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Name of a request, by which the request is known to the client, in the log and at the member.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RequestId {}
    keys REQUEST_ID {
        /// Name of the header field with the id.
        field: String [Text(FIELD)] = "X-Request-ID".into(); r#""X-Correlation-ID""#,
        /// Adds the id to responses to clients, too, replacing the member's field of the same name. Set `true`
        /// if your clients should quote the id to your support.
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

/// Name of a header field that has no meaning of its own.
pub(super) const FIELD: Texts = (
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

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "[Request ids](telemetry.md#request-ids): `request_id = true` is a table with all defaults.";
    let keys = [describe_keys(REQUEST_ID, RequestId::default())];
    TableDoc::new("[rule.NAME.http.request_id]", doc, keys)
}

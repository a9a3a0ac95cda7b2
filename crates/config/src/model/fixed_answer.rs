//! `[rule.NAME.routes.answer]`: answers of the balancer's own.

use std::sync::Arc;

use super::field_changes::VALUE;
use crate::kept;
use crate::schema::errors::Problem;
use crate::schema::field::{FileName, Texts, blank};
use crate::schema::key::section;
use crate::schema::report::Report;
use crate::schema::source::read_bytes;
use crate::schema::table::{AsTable, Table};

section! {
    /// Answer of the balancer's own.
    #[derive(Clone, Debug, PartialEq)]
    pub struct FixedAnswer {}
    keys ANSWER {
        /// Status of the answer.
        status: u16 [Number(200.0, 599.0, "")] = 200; "503",
        /// Body of the answer, of at most 64 KiB.
        body: String [Text(BODY_TEXT)] = String::new(); r#""Back at noon.""#,
        /// File with the body, of at most 64 KiB, which the balancer reads at the start and at each reload. Use
        /// a file if you change the text often.
        file: Option<FileName> = None; r#""/etc/evenkeel/maintenance.html""#,
        /// Media type of the body.
        content_type: String [Text(VALUE)] = "text/plain; charset=utf-8".into(); r#""text/html; charset=utf-8""#,
    }
}

const BODY_TEXT: Texts = ("a text of at most 64 KiB", |text| {
    text.len() as u64 <= MAX_ANSWER
});

impl AsTable for FixedAnswer {
    const ALLOWED: &'static str = "a table of an answer";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(ANSWER, self, report);
        if table.has_key("file") && table.has_key("body") {
            table.report_problem("body", "`file` is set, too: set only one of them", report);
        }
        let has_body = table.has_key("file") || !self.body.is_empty();
        if matches!(self.status, 204 | 205 | 304) && has_body {
            table.report_problem("status", "an answer with this status has no body", report);
        }
    }
}

blank!(FixedAnswer);

/// Most bytes of a file with an answer.
const MAX_ANSWER: u64 = 64 * 1024;

/// Returns the contents of a file with an answer.
///
/// # Errors
///
/// The file cannot be read.
pub fn content_of(file: &FileName) -> Result<Arc<[u8]>, Box<Problem>> {
    let problem = |error: &String| {
        let message = format!("{}: {error}", file.path.display());
        Box::new(file.place.problem(message))
    };
    let read = |source: &kept::Source| source.read(&file.path, |path| read_bytes(path, MAX_ANSWER));
    let content = kept::load_or_keep(read, |error| problem(error).to_string());
    content.map_err(|error| problem(&error))
}

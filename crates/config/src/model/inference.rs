//! `[group.NAME.inference]`: memory of what engines have read, and the part of a prompt that is read.

use evenkeel_core::group::InferenceSettings;

use crate::schema::field::blank;
use crate::schema::key::{HOUR, describe_keys, keys, millis};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

keys! {
    INFERENCE: InferenceSettings {
        /// Memory for the prompts which the members have read, 32 bytes for each 512 bytes of a prompt. The size
        /// is rounded down to a power of two. The memory is taken page by page as prompts come, and not given back.
        /// If the memory is full, the oldest prompts are forgotten. The default is enough for about 130 million tokens; set more
        /// if your members remember more than that together. A change needs a restart.
        index_memory [Bytes(64 * 1024, 4 * 1024 * 1024 * 1024)]; r#""64MiB""#,
        /// Maximum number of bytes of a request which are read before a member is chosen. Of a longer prompt the
        /// beginning decides. So many bytes of each request are also kept until the member answers, so that the
        /// request can be retried; they count in `memory` of [`[process]`](#process).
        max_prompt [Bytes(4 * 1024, 1024 * 1024)]; r#""256KiB""#,
        /// Expected time to the first token beyond which requests [wait](inference.md#overload) in the balancer's
        /// queue, by priority and in fair shares for each API key: while the time is longer at all members. Requests
        /// that have waited for `queue_timeout`, or find the queue full, get 429 with `Retry-After`. Not set:
        /// requests never wait for that.
        ttft_target [Time(millis(1), HOUR)]; r#""5s""#,
    }
}

blank!(InferenceSettings);

impl AsTable for InferenceSettings {
    const ALLOWED: &'static str = "a table of settings of the strategy `inference`";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(INFERENCE, self, report);
    }
}

/// Warns of the table if the group's strategy is another one.
pub(super) fn warn_of_strategy(is_used: bool, table: &Table<'_>, report: &mut Report<'_>) {
    if table.has_key("inference") && !is_used {
        let message = "has no effect: only strategy `inference` uses these settings. Write strategy = \"inference\"";
        let (span, path) = (table.span_of("inference"), table.path_of("inference"));
        report.add_warning(&span, &path, message);
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Settings of the strategy `inference`, for [engines that serve language models](inference.md).";
    let keys = [describe_keys(INFERENCE, InferenceSettings::default())];
    TableDoc::new("[group.NAME.inference]", doc, keys)
}

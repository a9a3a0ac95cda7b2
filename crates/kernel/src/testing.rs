//! Helpers for the tests of several modules.

use std::io::Write as _;

/// Says that the calling test, or a part of it, cannot run on this machine, and why: on standard error itself, as what
/// a test prints by macros is not shown unless it fails.
pub(crate) fn report_skipped(why: impl std::fmt::Display) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    // Nothing to be done if nobody listens.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
}

//! Options of the log.

use clap::{Args, ValueEnum};

/// Options of the log: what is logged, and how.
#[derive(Debug, Args)]
pub(crate) struct Log {
    /// Level of the log on stderr: error, warn, info, debug, trace, or directives such as info,evenkeel_proxy=debug
    /// [default: $RUST_LOG, or info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines of text
    Text,
    /// Lines with one JSON object each
    Json,
}

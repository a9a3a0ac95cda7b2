use clap::ValueEnum;
use evenkeel_sim::log::Format;

/// Format of the lines of an access log, as an option names it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum AccessFormat {
    /// Evenkeel's own.
    Json,
    /// Format of nginx and Apache httpd.
    Combined,
    /// HAProxy's, for HTTP and TCP.
    Haproxy,
}

impl From<AccessFormat> for Format {
    fn from(format: AccessFormat) -> Self {
        match format {
            AccessFormat::Json => Format::Json,
            AccessFormat::Combined => Format::Combined,
            AccessFormat::Haproxy => Format::Haproxy,
        }
    }
}

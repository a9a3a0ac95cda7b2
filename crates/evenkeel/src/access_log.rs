//! The access log: who writes it, and who gets it.

use std::io;

use evenkeel_admin::access_log::{Counts, Writer};
use evenkeel_forward::Forwarding;
use evenkeel_manager::config::{AccessLog as Target, LogFormat};
use evenkeel_proxy::Proxy;
use evenkeel_proxy::access::AccessLog;
use evenkeel_proxy::access::line::LineFormatter;

/// The access log as the configuration wants it at the moment.
pub(crate) struct Logging {
    proxy: Proxy,
    forwarding: Forwarding,
    /// Place of the log.
    pub(crate) target: Option<Target>,
    format: LogFormat,
    /// Writer of the log; if the last target could not be opened, the writer to the target before.
    writer: Option<Writer>,
    /// The last target could not be opened.
    failed: bool,
    /// Counts of records, of all logs since the start.
    pub(crate) counts: Counts,
}

impl Logging {
    pub(crate) fn new(proxy: Proxy, forwarding: Forwarding) -> Self {
        Logging {
            proxy,
            forwarding,
            target: None,
            format: LogFormat::default(),
            writer: None,
            failed: false,
            counts: Counts::default(),
        }
    }

    /// Starts, moves or ends the log.
    pub(crate) fn follow(&mut self, target: Option<&Target>, format: &LogFormat) -> io::Result<()> {
        if self.target.as_ref() == target && self.format == *format {
            return Ok(());
        }
        match target {
            Some(target) => self.begin(target, format)?,
            // The writer ends by itself when the last worker has let go of the log.
            None => {
                self.writer = None;
                self.set_log(None);
            }
        }
        self.target = target.cloned();
        self.format = format.clone();
        Ok(())
    }

    /// Begins a log, after the existing log, if there is one. If that fails, the old log continues.
    fn begin(&mut self, target: &Target, format: &LogFormat) -> io::Result<()> {
        let (log, lines) =
            AccessLog::new_channel(Box::new(LineFormatter::with_format(format.clone())));
        let begun = Writer::start(target, lines, self.counts.clone());
        self.failed = begun.is_err();
        match (begun, self.writer.take()) {
            (Ok(writer), before) => {
                if let Some(before) = before {
                    writer.write_after(before);
                }
                self.writer = Some(writer);
                self.set_log(Some(&log));
            }
            (Err(error), Some(before)) => {
                tracing::error!("{error}; the access log stays as it is");
                self.writer = Some(before);
            }
            (Err(error), None) => return Err(error),
        }
        Ok(())
    }

    /// Gives the log to all that serve connections.
    fn set_log(&self, log: Option<&AccessLog>) {
        self.proxy.set_access_log(log);
        self.forwarding.set_access_log(log);
    }

    /// Opens the file again: a program that rotates logs may have moved it away.
    pub(crate) fn reopen(&mut self) {
        let Some(target) = self.target.clone() else {
            return;
        };
        match &self.writer {
            Some(writer) if !self.failed => writer.reopen_target(&target),
            Some(_) => {
                let format = self.format.clone();
                // That it fails again is logged.
                let _ = self.begin(&target, &format);
            }
            None => {}
        }
    }

    /// Writes the remaining lines. The workers must have ended.
    pub(crate) fn finish(self) {
        if let Some(writer) = self.writer {
            writer.finish_writing();
        }
    }
}

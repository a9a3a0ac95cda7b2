//! Traces as the configuration wants them at the moment.

use std::io;

use evenkeel_admin::otlp::{Counts, Exporter};
use evenkeel_manager::config::Tracing;
use evenkeel_proxy::Proxy;
use evenkeel_proxy::trace::Tracer;

/// Traces of requests: the proxy that makes them, and the exporter that gets them.
pub(crate) struct Traces {
    proxy: Proxy,
    settings: Option<Tracing>,
    running: Option<(Tracer, Exporter)>,
    counts: Counts,
}

impl Traces {
    pub(crate) fn new(proxy: Proxy) -> Self {
        Traces {
            proxy,
            settings: None,
            running: None,
            counts: Counts::default(),
        }
    }

    /// Returns the counts of traces.
    pub(crate) fn counts(&self) -> Counts {
        self.counts.clone()
    }

    /// Starts, changes or ends the traces.
    pub(crate) fn follow_settings(&mut self, settings: Option<&Tracing>) -> io::Result<()> {
        if self.settings.as_ref() == settings {
            return Ok(());
        }
        self.running = match (settings, self.running.take()) {
            (Some(settings), Some((tracer, exporter))) => {
                exporter.change_settings(settings.clone());
                Some((tracer.with_share(settings.sample), exporter))
            }
            (Some(settings), None) => {
                let lost = self.counts.of_queue();
                let (tracer, records) = Tracer::new_channel(settings.sample, lost);
                let exporter = Exporter::start(settings.clone(), records, self.counts.clone())?;
                Some((tracer, exporter))
            }
            // The exporter ends by itself when the last worker has let go of the tracer.
            (None, _) => None,
        };
        let tracer = self.running.as_ref().map(|(tracer, _)| tracer);
        self.proxy.set_tracer(tracer);
        self.settings = settings.cloned();
        Ok(())
    }

    /// Sends the remaining spans. The workers must have ended.
    pub(crate) fn send_rest(self) {
        if let Some((tracer, exporter)) = self.running {
            drop(tracer);
            exporter.finish_sending();
        }
    }
}

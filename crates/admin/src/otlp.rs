//! Traces for a collector of OpenTelemetry: by OTLP over HTTP, in protobuf.
//!
//! The data plane hands traced requests to a bounded channel and never waits. A thread of its own makes
//! spans of them and sends them in batches; what a collector does not take in time is lost and counted.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_limits::Throttle;
use evenkeel_manager::config::{Problem, Tracing, one_line};
use evenkeel_net::http::client::{self, Limits, Question, ServerTarget};
use evenkeel_proxy::access::Record;
use evenkeel_tls::client::Client;
use evenkeel_tls::current::Current;
use prost::Message;
use tokio::runtime::Runtime;

mod messages;
mod spans;

use messages::{ExportRequest, ExportResponse, Resource, ResourceSpans, Scope, ScopeSpans, Span};
use spans::Attributes;

/// Spans that are sent together at most.
const BATCH: usize = 512;

/// Longest time that the thread sleeps before it looks whether there is something new.
const LOOK: Duration = Duration::from_millis(200);

/// Most times that a batch is sent.
const TRIES: u32 = 4;

/// Longest time that the last batch of a process may take.
const LAST: Duration = Duration::from_secs(2);

/// Limits of an answer, in bytes.
const LIMITS: Limits = Limits {
    head: 16 * 1024,
    body: 64 * 1024,
};

/// Counters of exported, lost and dropped traces. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    exported: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
}

impl Counts {
    /// Returns the number of spans that the collector has taken.
    pub fn exported_spans(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Returns the number of spans that the collector has refused, or that could not be sent.
    pub fn lost_spans(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of traced requests for which there was no room in the queue.
    pub fn dropped_requests(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns the counter of these dropped requests.
    pub fn of_queue(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.dropped)
    }
}

/// Returns the problems of the files that `[tracing]` names.
pub fn check_files(settings: &Tracing) -> Vec<Problem> {
    let tls = settings.client_tls().map(|tls| Client::from_config(&tls));
    tls.and_then(Result::err).unwrap_or_default()
}

/// Exporter that sends traces.
#[derive(Debug)]
pub struct Exporter {
    next: Arc<Mutex<Option<Tracing>>>,
    ending: Arc<AtomicBool>,
    /// Wakes the thread.
    wake: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Exporter {
    /// Sends what comes through `records` as `settings` say, until all its senders are gone.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn start(
        settings: Tracing,
        records: Receiver<Record<'static>>,
        counts: Counts,
    ) -> io::Result<Exporter> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (wake, woken) = sync_channel(1);
        let (next, ending) = (Arc::default(), Arc::default());
        let mut task = Task {
            to: Destination::from_settings(settings),
            next: Arc::clone(&next),
            ending: Arc::clone(&ending),
            woken,
            counts,
            runtime,
            throttle: Throttle::default(),
        };
        let thread = std::thread::Builder::new()
            .name("traces".into())
            .spawn(move || task.run(&records))?;
        Ok(Exporter {
            next,
            ending,
            wake,
            thread,
        })
    }

    /// Goes on with other settings.
    pub fn change_settings(&self, settings: Tracing) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = Some(settings);
    }

    /// Sends what is left, or gives it up after two seconds. All senders must be gone.
    pub fn finish_sending(self) {
        self.ending.store(true, Ordering::Relaxed);
        let _ = self.wake.try_send(());
        if self.thread.join().is_err() {
            tracing::error!("the thread that sends traces has panicked; the last ones are lost");
        }
    }
}

/// Collector that gets the spans, and what is sent with them.
struct Destination {
    settings: Tracing,
    tls: Option<Current>,
    resource: Resource,
}

impl Destination {
    fn from_settings(settings: Tracing) -> Self {
        let mut attributes = Attributes::default();
        attributes.text("service.name", settings.service_name.clone());
        attributes.text("service.version", env!("CARGO_PKG_VERSION"));
        let said = settings.attributes.iter();
        // What is said has the last word.
        for (key, value) in said {
            attributes.0.retain(|known| known.key != *key);
            attributes.text(key, value.clone());
        }
        Destination {
            tls: settings.client_tls().map(Current::new),
            resource: Resource {
                attributes: attributes.0,
            },
            settings,
        }
    }

    /// Encodes a batch of spans as the message that is sent.
    fn encode_message(&self, spans: Vec<Span>) -> Vec<u8> {
        let scope = Scope {
            name: "evenkeel".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        };
        let scope_spans = ScopeSpans {
            scope: Some(scope),
            spans,
        };
        let resource_spans = ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans: vec![scope_spans],
        };
        ExportRequest {
            resource_spans: vec![resource_spans],
        }
        .encode_to_vec()
    }

    /// Sends a batch: how many spans were refused.
    async fn send_batch(&mut self, message: &[u8], limit: Duration) -> Result<u64, Refusal> {
        let Some(endpoint) = &self.settings.endpoint else {
            return Err(Refusal::for_good("there is no endpoint".into()));
        };
        let tls = self.tls.as_mut().map(Current::reload_client).transpose();
        let tls = tls.map_err(|problems| Refusal::for_good(one_line(&problems)))?;
        let own = [
            ("Content-Type", "application/x-protobuf"),
            (
                "User-Agent",
                concat!("evenkeel/", env!("CARGO_PKG_VERSION")),
            ),
        ];
        let said = self.settings.headers.iter();
        let said = said.map(|(name, value)| (name.as_str(), value.as_str()));
        let fields: Vec<(&str, &str)> = own.into_iter().chain(said).collect();
        let question = Question {
            method: "POST",
            target: &self.settings.traces_path,
            authority: endpoint.authority(),
            fields: &fields,
            body: Some(message),
        };
        let whom = ServerTarget {
            host: endpoint.host(),
            port: endpoint.port(),
            tls: tls.as_ref(),
        };
        let asked = client::ask_server(whom, question, LIMITS, |_| true);
        let answer = match tokio::time::timeout(limit, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(Refusal::for_now(error.to_string())),
            Err(_) => return Err(Refusal::for_now(format!("no answer within {limit:?}"))),
        };
        match answer.code {
            200..=299 => {}
            // The ones after which the protocol says that it is worth another try.
            code @ (429 | 502 | 503 | 504) => {
                return Err(Refusal::for_now(format!("the collector answers {code}")));
            }
            code => return Err(Refusal::for_good(format!("the collector answers {code}"))),
        }
        let response = ExportResponse::decode(answer.body.as_slice()).unwrap_or_default();
        let refused = response.partial_success.unwrap_or_default();
        if refused.rejected_spans > 0 {
            // The collector's words, bounded as its answer is.
            let why: String = refused.error_message.chars().take(200).collect();
            tracing::warn!(
                spans = refused.rejected_spans,
                ?why,
                "the collector refuses spans"
            );
        }
        Ok(u64::try_from(refused.rejected_spans).unwrap_or_default())
    }
}

/// Refusal of a batch.
struct Refusal {
    why: String,
    /// True if the collector may take the batch another time.
    again: bool,
}

impl Refusal {
    fn for_now(why: String) -> Self {
        Refusal { why, again: true }
    }

    fn for_good(why: String) -> Self {
        Refusal { why, again: false }
    }
}

/// Comes to an end when the process has been ending for a while.
async fn wait_for_end(ending: &AtomicBool) {
    while !ending.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK).await;
    }
    tokio::time::sleep(LAST).await;
}

/// The thread's work.
struct Task {
    to: Destination,
    next: Arc<Mutex<Option<Tracing>>>,
    ending: Arc<AtomicBool>,
    woken: Receiver<()>,
    counts: Counts,
    runtime: Runtime,
    throttle: Throttle,
}

impl Task {
    fn run(&mut self, records: &Receiver<Record<'static>>) {
        let mut batch: Vec<Span> = Vec::new();
        let mut since = Instant::now();
        loop {
            let ended = match records.recv_timeout(LOOK.min(self.to.settings.interval)) {
                Ok(record) => {
                    if batch.is_empty() {
                        since = Instant::now();
                    }
                    batch.extend(spans::spans_of_record(&record));
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            let is_due = batch.len() >= BATCH || since.elapsed() >= self.to.settings.interval;
            if !batch.is_empty() && (is_due || ended || self.is_ending()) {
                self.export_batch(std::mem::take(&mut batch));
            }
            let next = self
                .next
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(settings) = next {
                self.to = Destination::from_settings(settings);
            }
            if ended {
                return;
            }
        }
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Sends a batch, again if that may help.
    fn export_batch(&mut self, batch: Vec<Span>) {
        let count = batch.len() as u64;
        let message = self.to.encode_message(batch);
        let mut pause = Duration::from_secs(1);
        for attempt in 1..=TRIES {
            let limit = self.to.settings.timeout;
            let sent = self.to.send_batch(&message, limit);
            let sent = async {
                tokio::select! {
                    sent = sent => sent,
                    () = wait_for_end(&self.ending) => Err(Refusal::for_good("the process ends".into())),
                }
            };
            let refusal = match self.runtime.block_on(sent) {
                Ok(refused) => {
                    let refused = refused.min(count);
                    let exported = count.saturating_sub(refused);
                    self.counts.exported.fetch_add(exported, Ordering::Relaxed);
                    self.counts.lost.fetch_add(refused, Ordering::Relaxed);
                    return;
                }
                Err(refusal) => refusal,
            };
            let again = refusal.again && attempt < TRIES && !self.is_ending();
            if !again {
                self.counts.lost.fetch_add(count, Ordering::Relaxed);
                if let Some(left_out) = self.throttle.allow_line() {
                    let endpoint = self.to.settings.endpoint.as_ref().map(ToString::to_string);
                    tracing::warn!(
                        endpoint = endpoint.unwrap_or_default(),
                        why = refusal.why,
                        spans = count,
                        left_out,
                        "the collector does not take traces; they are lost"
                    );
                }
                return;
            }
            // Whoever ends the process does not wait for it.
            let _ = self.woken.recv_timeout(pause);
            pause = pause.saturating_mul(2);
        }
    }
}

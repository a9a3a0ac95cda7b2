//! The access log: a line for each request or TCP connection.
//!
//! The data plane hands records to a bounded channel and never waits. A thread of its
//! own writes them, in batches; a slow disk costs records (which are counted), never a
//! request.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use evenkeel_core::cost::Cost;
use evenkeel_limits::{Shortage, Throttle};
use evenkeel_manager::config::{AccessLog as Target, LogFormat};
use evenkeel_proxy::access::{Limit, Peer, Record, Wants};
use evenkeel_proxy::trace::trace_text;
use jiff::Timestamp;
use serde::{Serialize, Serializer};

mod text;

/// Bytes after which a batch is written even if more records wait.
const BATCH: usize = 64 * 1024;

/// How long records gather before they are written. A thread that waited for each of them would have to be
/// woken for each, which costs the data plane more than the record does. Nothing waits for this time to pass but
/// lines of the log; the channel has room for more than a million records a second.
const GATHER: Duration = Duration::from_millis(5);

/// How long the thread sleeps at most before it looks whether to reopen the file.
const LOOK: Duration = Duration::from_millis(500);

/// The writing end of the access log.
#[derive(Debug)]
pub struct Writer {
    /// Where the log goes from now on, if that has changed or must be opened again.
    next: Arc<Mutex<Option<(Target, LogFormat)>>>,
    thread: JoinHandle<()>,
}

/// What became of records, over all writers of the process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    written: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl Counts {
    /// Records written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Records lost because they could not be written. Those that the data plane
    /// dropped because the queue was full are counted there.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Writer {
    /// Opens `target`, and writes there what comes through `records` until all its
    /// senders are gone.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, or no thread be started.
    pub fn start(
        target: &Target,
        format: &LogFormat,
        records: Receiver<Record>,
        counts: Counts,
    ) -> io::Result<Writer> {
        let mut sink = Sink::open(target)?;
        let mut lines = Lines::of(format.clone());
        let next = Arc::new(Mutex::new(None));
        let of_thread = Arc::clone(&next);
        let thread = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_all(&records, &mut sink, &mut lines, &of_thread, &counts))?;
        Ok(Writer { next, thread })
    }

    /// Opens `target` anew: after the file was moved away, or when the configuration
    /// names another one, or another format. If that fails, the log stays where and as it is.
    pub fn reopen(&self, target: &Target, format: &LogFormat) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = Some((target.clone(), format.clone()));
    }

    /// Waits until everything is written. All senders must be gone.
    pub fn finish(self) {
        if self.thread.join().is_err() {
            tracing::error!("the access log's thread has panicked; its last records are lost");
        }
    }
}

/// Where bytes go.
#[derive(Debug)]
enum Sink {
    Stdout,
    File(File),
}

impl Sink {
    fn open(target: &Target) -> io::Result<Sink> {
        match target {
            Target::Stdout => Ok(Sink::Stdout),
            Target::File(path) => {
                let file = OpenOptions::new().append(true).create(true).open(path);
                file.map(Sink::File).map_err(|error| {
                    let path = path.display();
                    let what = format!(
                        "cannot open the access log {path} for appending: {error}; check that its directory exists and may be written to"
                    );
                    io::Error::new(error.kind(), what)
                })
            }
        }
    }

    /// Writes a part of `bytes`: how much.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes)?;
                stdout.flush()?;
                Ok(bytes.len())
            }
            Sink::File(file) => file.write(bytes),
        }
    }
}

/// Lines on their way to the sink. A full disk takes the beginning of a line at last; its
/// rest is kept, so that the line is whole when there is room again.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// How much of them the sink has. If that ends within a line, the line comes first.
    written: usize,
}

impl Batch {
    /// Writes everything, or what can be written: how many lines are in the sink now, and
    /// how many were given up.
    fn write(&mut self, sink: &mut Sink) -> (u64, u64, io::Result<()>) {
        let lines = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        let before = self.written;
        let mut result = Ok(());
        while result.is_ok() && self.written < self.bytes.len() {
            match sink.write(self.bytes.get(self.written..).unwrap_or_default()) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.written += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        let (done, rest) = self.bytes.split_at(self.written.min(self.bytes.len()));
        let written = lines(done.get(before..).unwrap_or_default());
        // What was begun is kept to its end.
        let begun = done.last().is_some_and(|&last| last != b'\n');
        let kept = match rest.iter().position(|&byte| byte == b'\n') {
            Some(end) if begun => end + 1,
            _ => 0,
        };
        let lost = lines(rest.get(kept..).unwrap_or_default());
        self.bytes.truncate(done.len() + kept);
        if kept == 0 {
            self.bytes.clear();
        } else {
            self.bytes.drain(..self.written - 1);
        }
        self.written = usize::from(kept > 0);
        (written, lost, result)
    }

    /// The sink is another one: what was begun in the old one ends there.
    fn forget(&mut self) -> u64 {
        let lost = u64::from(!self.bytes.is_empty());
        *self = Batch::default();
        lost
    }
}

/// What lines of this format want to know of requests.
pub fn wants(format: &LogFormat) -> Wants {
    Wants {
        request: format.request_fields(),
        response: format.response_fields(),
    }
}

/// How records become lines.
#[derive(Debug)]
struct Lines {
    format: LogFormat,
    /// What is in records, and where.
    wants: Wants,
}

impl Lines {
    fn of(format: LogFormat) -> Self {
        let wants = wants(&format);
        Lines { format, wants }
    }

    /// Appends a record as a line.
    fn push(&self, record: &Record, batch: &mut Vec<u8>) {
        match &self.format {
            LogFormat::Json => {
                push(record, batch);
            }
            LogFormat::Combined => text::combined(record, &self.wants, batch),
            LogFormat::Custom(template) => text::custom(template, record, &self.wants, batch),
        }
    }
}

fn write_all(
    records: &Receiver<Record>,
    sink: &mut Sink,
    lines: &mut Lines,
    next: &Mutex<Option<(Target, LogFormat)>>,
    counts: &Counts,
) {
    let mut batch = Batch::default();
    let mut complaints = Complaints::default();
    loop {
        let first = records.recv_timeout(LOOK);
        if first.is_ok() {
            std::thread::sleep(GATHER);
        }
        let reopened = next.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((target, format)) = reopened {
            match Sink::open(&target) {
                Ok(opened) => {
                    *sink = opened;
                    *lines = Lines::of(format);
                    counts.lost.fetch_add(batch.forget(), Ordering::Relaxed);
                }
                Err(error) => tracing::error!("{error}; the access log stays where it is"),
            }
        }
        let mut ended = match first {
            Ok(record) => {
                lines.push(&record, &mut batch.bytes);
                false
            }
            Err(RecvTimeoutError::Timeout) if batch.bytes.is_empty() => continue,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        while !ended && batch.bytes.len() < BATCH {
            match records.try_recv() {
                Ok(record) => lines.push(&record, &mut batch.bytes),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => ended = true,
            }
        }
        let (written, lost, result) = batch.write(sink);
        counts.written.fetch_add(written, Ordering::Relaxed);
        counts.lost.fetch_add(lost, Ordering::Relaxed);
        complaints.note(result, lost);
        if ended {
            counts.lost.fetch_add(batch.forget(), Ordering::Relaxed);
            return;
        }
    }
}

/// A full disk must not fill the log of the process, too.
#[derive(Debug, Default)]
struct Complaints {
    throttle: Throttle,
    /// Whether the last batch could not be written whole.
    failing: bool,
    /// Records lost since it began.
    lost: u64,
}

impl Complaints {
    fn note(&mut self, result: io::Result<()>, lost: u64) {
        let Err(error) = result else {
            if std::mem::take(&mut self.failing) {
                let lost = std::mem::take(&mut self.lost);
                tracing::info!(lost, "the access log is written again");
            }
            return;
        };
        self.failing = true;
        self.lost += lost;
        if let Some(shortage) = Shortage::of(&error) {
            shortage.met("write the access log");
        }
        if let Some(left_out) = self.throttle.turn() {
            let lost = self.lost;
            tracing::error!(%error, lost, left_out, "cannot write the access log; records are lost");
        }
    }
}

fn as_text<S: Serializer>(peer: &Peer, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(peer)
}

/// A record as it is written. The names are part of the documented format.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    rule: &'a str,
    #[serde(serialize_with = "as_text")]
    client: Peer,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    member: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tried: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    bytes_received: u64,
    bytes_sent: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_ms: Option<f64>,
    response_ms: Option<f64>,
    total_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f32>,
    retries: u32,
    end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hedge: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

/// Appends a record as a line; answers whether it did.
fn push(record: &Record, batch: &mut Vec<u8>) -> bool {
    let start = batch.len();
    let tries = record.tries.as_deref();
    let line = Line {
        time: rfc3339(record.at),
        rule: &record.rule,
        client: record.client,
        user: record.user.as_deref(),
        route: record.route.as_deref(),
        group: record.group.as_deref(),
        member: tries.map(|tries| &*tries.member),
        tried: tries
            .into_iter()
            .flat_map(|tries| &tries.before)
            .map(|name| &**name)
            .collect(),
        tls: record.tls.as_ref().map(|tls| tls.version),
        server_name: record.asked_name(),
        method: record.request.as_ref().map(|(method, _)| &**method),
        target: record.request.as_ref().map(|(_, target)| &**target),
        status: record.status,
        bytes_received: record.bytes_received,
        bytes_sent: record.bytes_sent,
        queue_ms: tries.map(|tries| millis(tries.queued)),
        connect_ms: tries.and_then(|tries| tries.connect_time).map(millis),
        response_ms: record.response_time.map(millis),
        total_ms: millis(record.total_time),
        cost: (record.cost != Cost::ONE).then(|| record.cost.get()),
        retries: record.retries,
        end: record.end.name(),
        limit: record
            .request_limit
            .as_deref()
            .or(record.limit.map(Limit::name)),
        hedge: record.hedged.map(Into::into),
        request_id: request_id(record),
        trace_id: trace_id(record),
    };
    match serde_json::to_writer(&mut *batch, &line) {
        Ok(()) => batch.push(b'\n'),
        // Cannot happen: the keys are strings, and a vector takes every byte.
        Err(_) => batch.truncate(start),
    }
    batch.len() > start
}

fn request_id(record: &Record) -> Option<&str> {
    record.details.as_ref()?.id.as_deref()
}

fn trace_id(record: &Record) -> Option<String> {
    let trace = record.details.as_ref()?.trace.as_ref()?;
    Some(trace_text(trace.id))
}

fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

/// A time in UTC with milliseconds, as RFC 3339 has it.
fn rfc3339(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or_default();
    format!("{at:.3}")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc::sync_channel;
    use std::time::UNIX_EPOCH;

    use evenkeel_proxy::access::{End, Tries};

    use super::*;

    pub(crate) fn record(target: &str) -> Record {
        Record {
            at: UNIX_EPOCH + Duration::from_millis(1_709_210_096_789),
            client: Peer(Some("[::1]:4711".parse().unwrap())),
            rule: "web".into(),
            tls: None,
            user: None,
            route: None,
            group: Some("app".into()),
            server_name: None,
            tries: Some(Box::new(Tries {
                member: "a:80".into(),
                before: vec!["b:80".into(), "c:80".into()],
                queued: Duration::from_millis(3),
                connect_time: Some(Duration::from_micros(150)),
                head_bytes: 34,
                fields: Box::default(),
            })),
            request: Some(("GET".into(), target.into())),
            protocol: Some("HTTP/1.1"),
            details: None,
            head_bytes_sent: 34,
            status: Some(200),
            bytes_received: 0,
            bytes_sent: 1234,
            response_time: Some(Duration::from_micros(1_250)),
            total_time: Duration::from_micros(2_500),
            cost: Cost::ONE,
            retries: 1,
            end: End::Complete,
            limit: None,
            request_limit: None,
            hedged: None,
        }
    }

    #[test]
    fn a_request_is_a_line() {
        let mut batch = Vec::new();
        assert!(push(&record("/a?b=c"), &mut batch));
        let wanted = "{\"time\":\"2024-02-29T12:34:56.789Z\",\"rule\":\"web\",\
            \"client\":\"[::1]:4711\",\"group\":\"app\",\"member\":\"a:80\",\
            \"tried\":[\"b:80\",\"c:80\"],\"method\":\"GET\",\
            \"target\":\"/a?b=c\",\"status\":200,\"bytes_received\":0,\"bytes_sent\":1234,\
            \"queue_ms\":3.0,\"connect_ms\":0.15,\"response_ms\":1.25,\"total_ms\":2.5,\"retries\":1,\"end\":\"complete\"}\n";
        assert_eq!(String::from_utf8(batch).unwrap(), wanted);
    }

    #[test]
    fn hostile_targets_stay_within_their_string() {
        let all: String = (0..=0x2100u32).filter_map(char::from_u32).collect();
        let mut batch = Vec::new();
        push(&record(&all), &mut batch);
        assert_eq!(batch.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let line: serde_json::Value = serde_json::from_slice(&batch).unwrap();
        assert_eq!(line["target"], all.as_str());
        assert_eq!(line["end"], "complete");
    }

    #[test]
    fn a_tcp_connection_has_no_request() {
        let limited = Record {
            end: End::Limited,
            limit: Some(Limit::NewConnections),
            ..record("/")
        };
        let mut batch = Vec::new();
        push(&limited, &mut batch);
        let line: serde_json::Value = serde_json::from_slice(&batch).unwrap();
        assert_eq!(line["end"], "limited");
        assert_eq!(line["limit"], "new_connections");
        let record = Record {
            request: None,
            status: None,
            tries: None,
            cost: Cost::new(2.5).unwrap(),
            ..record("")
        };
        let mut batch = Vec::new();
        push(&record, &mut batch);
        let line: serde_json::Value = serde_json::from_slice(&batch).unwrap();
        assert!(line.get("target").is_none() && line.get("status").is_none());
        assert_eq!(line["cost"], 2.5);
        assert!(line["member"].is_null());
        let tried = ["tried", "queue_ms", "connect_ms"].map(|key| line.get(key));
        assert_eq!(tried, [None; 3]);
    }

    #[test]
    fn times_have_dates() {
        let text = |days: u64| rfc3339(UNIX_EPOCH + Duration::from_secs(days * 86_400));
        for (days, date) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (19_782, "2024-02-29"),
            (20_453, "2025-12-31"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(text(days), format!("{date}T00:00:00.000Z"));
        }
        assert_eq!(
            rfc3339(UNIX_EPOCH - Duration::from_millis(1)),
            "1969-12-31T23:59:59.999Z"
        );
    }

    /// A directory of its own, gone at the end.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        fn targets(&self, file: &str) -> Vec<String> {
            let text = std::fs::read_to_string(self.0.join(file)).unwrap();
            let line = |line| serde_json::from_str::<serde_json::Value>(line).unwrap();
            let lines = text.lines().map(line);
            lines
                .map(|line| line["target"].as_str().unwrap().to_owned())
                .collect()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_rotated_file_is_opened_again_and_nothing_is_lost() {
        let directory = Directory::new("rotated");
        let target = Target::File(directory.0.join("log"));
        std::fs::write(directory.0.join("log"), "{\"target\":\"/old\"}\n").unwrap();
        let (sender, records) = sync_channel(16);
        let counts = Counts::default();
        let writer = Writer::start(&target, &LogFormat::Json, records, counts.clone()).unwrap();
        sender.send(record("/first")).unwrap();
        while counts.written() == 0 {
            std::thread::yield_now();
        }
        std::fs::rename(directory.0.join("log"), directory.0.join("log.1")).unwrap();
        writer.reopen(&target, &LogFormat::Json);
        sender.send(record("/second")).unwrap();
        drop(sender);
        writer.finish();
        assert_eq!(directory.targets("log.1"), ["/old", "/first"]);
        assert_eq!(directory.targets("log"), ["/second"]);
        assert_eq!((counts.written(), counts.lost()), (2, 0));
    }

    #[test]
    fn s5_a_line_that_a_full_disk_has_cut_is_whole_in_the_end() {
        let directory = Directory::new("full");
        let path = directory.0.join("log");
        let mut sink = Sink::open(&Target::File(path.clone())).unwrap();
        let mut full = Sink::open(&Target::File("/dev/full".into())).unwrap();
        let mut batch = Batch::default();
        for target in ["/1", "/2", "/3"] {
            push(&record(target), &mut batch.bytes);
        }
        let all = batch.bytes.clone();
        // The disk took one line and a half, as a partial write tells it.
        let line = all.len() / 3;
        let Sink::File(file) = &mut sink else {
            unreachable!()
        };
        file.write_all(&all[..line + 10]).unwrap();
        batch.written = line + 10;
        let (written, lost, result) = batch.write(&mut full);
        assert_eq!((written, lost, result.is_err()), (0, 1, true));
        // The disk is still full: what is new is lost, what was begun is kept.
        push(&record("/4"), &mut batch.bytes);
        let (written, lost, result) = batch.write(&mut full);
        assert_eq!((written, lost, result.is_err()), (0, 1, true));
        push(&record("/5"), &mut batch.bytes);
        let (written, lost, result) = batch.write(&mut sink);
        assert_eq!((written, lost, result.is_ok()), (2, 0, true));
        assert_eq!(directory.targets("log"), ["/1", "/2", "/5"]);
        assert!(batch.bytes.is_empty() && batch.written == 0);
        // Another file does not get the end of a line of this one.
        push(&record("/6"), &mut batch.bytes);
        batch.written = 5;
        assert_eq!(batch.forget(), 1);
        assert_eq!(batch.forget(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let (sender, records) = sync_channel(16);
        let counts = Counts::default();
        // The device that is always full.
        let target = Target::File("/dev/full".into());
        let writer = Writer::start(&target, &LogFormat::Json, records, counts.clone()).unwrap();
        for _ in 0..3 {
            sender.send(record("/")).unwrap();
        }
        drop(sender);
        writer.finish();
        assert_eq!((counts.written(), counts.lost()), (0, 3));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let (_sender, records) = sync_channel(1);
        let target = Target::File("/proc/no/such/log".into());
        let error =
            Writer::start(&target, &LogFormat::Json, records, Counts::default()).unwrap_err();
        assert!(error.to_string().contains("/proc/no/such/log"), "{error}");
    }
}

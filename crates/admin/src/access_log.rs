//! The access log: a line for each request or TCP connection.
//!
//! The data plane makes lines and hands them over, many at once; it never waits. A thread of its
//! own writes them; a slow disk costs lines (which are counted), never a request.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_limits::{Shortage, Throttle};
use evenkeel_manager::config::AccessLog as Target;
use evenkeel_proxy::access::Queue;

/// Bytes after which a batch is written even if more lines wait.
const BATCH: usize = 32 * 1024;

/// Longest time that the thread sleeps before it looks whether to reopen the file.
const LOOK: Duration = Duration::from_millis(500);

/// The writing end of the access log.
#[derive(Debug)]
pub struct Writer {
    next: Arc<Mutex<Next>>,
    thread: JoinHandle<()>,
}

/// Things that the thread does before it writes more.
#[derive(Debug, Default)]
struct Next {
    /// Open this.
    open: Option<Target>,
    /// Wait until this one has written everything.
    before: Option<Writer>,
}

/// Counters of written and lost records, over all writers of the process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    written: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl Counts {
    /// Records written.
    pub fn written_records(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Records lost because they could not be written. Records that the data plane dropped because the queue
    /// was full are counted there.
    pub fn lost_records(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Writer {
    /// Opens `target`, and writes there what comes through `lines` until all workers have let go of it.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, or no thread be started.
    pub fn start(target: &Target, lines: Queue, counts: Counts) -> io::Result<Writer> {
        let mut sink = Sink::open_target(target)?;
        let next = Arc::default();
        let of_thread = Arc::clone(&next);
        let thread = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_all(&lines, &mut sink, &of_thread, &counts))?;
        Ok(Writer { next, thread })
    }

    /// Opens `target` anew, after the file was moved away. If that fails, the log stays where it is.
    pub fn reopen_target(&self, target: &Target) {
        self.next().open = Some(target.clone());
    }

    /// Writes nothing before `other` has written everything, as the configuration names another file or
    /// format from now on. Say it before workers get the log that this one writes.
    pub fn write_after(&self, other: Writer) {
        self.next().before = Some(other);
    }

    fn next(&self) -> MutexGuard<'_, Next> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything is written. All workers must have let go of the log.
    pub fn finish_writing(self) {
        if self.thread.join().is_err() {
            tracing::error!("the access log's thread has panicked; its last records are lost");
        }
    }
}

/// Sink that the bytes are written to.
#[derive(Debug)]
enum Sink {
    Stdout,
    File(File),
}

impl Sink {
    fn open_target(target: &Target) -> io::Result<Sink> {
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
    /// Number of these bytes that the sink has. If that number ends within a line, the line comes first.
    written: usize,
}

impl Batch {
    fn add_lines(&mut self, mut lines: Vec<u8>) {
        match self.bytes.is_empty() {
            true => self.bytes = lines,
            false => self.bytes.append(&mut lines),
        }
    }

    /// Writes everything, or what can be written: how many lines are in the sink now, and
    /// how many were given up.
    fn write(&mut self, sink: &mut Sink) -> (u64, u64, io::Result<()>) {
        let lines =
            |bytes: &[u8]| -> u64 { bytes.chunks(255).map(count_line_ends).map(u64::from).sum() };
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

    /// Forgets the line that was begun in the old sink, as the sink is another one now; returns the number of
    /// lost lines.
    fn forget_begun_line(&mut self) -> u64 {
        let lost = u64::from(!self.bytes.is_empty());
        *self = Batch::default();
        lost
    }
}

fn write_all(lines: &Queue, sink: &mut Sink, next: &Mutex<Next>, counts: &Counts) {
    let mut batch = Batch::default();
    let mut complaints = Complaints::default();
    loop {
        let first = lines.take(LOOK);
        let next = std::mem::take(&mut *next.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(before) = next.before {
            before.finish_writing();
        }
        if let Some(target) = next.open {
            match Sink::open_target(&target) {
                Ok(opened) => {
                    *sink = opened;
                    counts
                        .lost
                        .fetch_add(batch.forget_begun_line(), Ordering::Relaxed);
                }
                Err(error) => tracing::error!("{error}; the access log stays as it is"),
            }
        }
        let mut ended = match first {
            Ok(more) => {
                batch.add_lines(more);
                false
            }
            Err(RecvTimeoutError::Timeout) if batch.bytes.is_empty() => continue,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        while !ended && batch.bytes.len() < BATCH {
            match lines.try_take() {
                Ok(more) => batch.add_lines(more),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => ended = true,
            }
        }
        let (written, lost, result) = batch.write(sink);
        counts.written.fetch_add(written, Ordering::Relaxed);
        counts.lost.fetch_add(lost, Ordering::Relaxed);
        complaints.report_result(result, lost);
        if ended {
            counts
                .lost
                .fetch_add(batch.forget_begun_line(), Ordering::Relaxed);
            return;
        }
    }
}

/// Counts the lines that end in at most 255 bytes, so that a byte holds the number: many bytes are compared
/// at once.
fn count_line_ends(bytes: &[u8]) -> u8 {
    bytes.iter().map(|&byte| u8::from(byte == b'\n')).sum()
}

/// A full disk must not fill the log of the process, too.
#[derive(Debug, Default)]
struct Complaints {
    throttle: Throttle,
    /// True if the last batch could not be written whole.
    failing: bool,
    /// Records lost since it began.
    lost: u64,
}

impl Complaints {
    fn report_result(&mut self, result: io::Result<()>, lost: u64) {
        let Err(error) = result else {
            if std::mem::take(&mut self.failing) {
                let lost = std::mem::take(&mut self.lost);
                tracing::info!(lost, "the access log can be written, after failures");
            }
            return;
        };
        self.failing = true;
        self.lost += lost;
        if let Some(shortage) = Shortage::of_error(&error) {
            shortage.report_failure("write the access log");
        }
        if let Some(left_out) = self.throttle.allow_line() {
            let lost = self.lost;
            tracing::error!(%error, lost, left_out, "cannot write the access log; records are lost");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;
    use std::time::UNIX_EPOCH;

    use evenkeel_core::cost::Cost;
    use evenkeel_manager::config::LogFormat;
    use evenkeel_proxy::access::line::LineFormatter;
    use evenkeel_proxy::access::{AccessLog, End, Lines, MemberAttempts, Peer, Record};

    use super::*;

    pub(crate) fn sample_record(target: &str) -> Record<'static> {
        Record {
            at: UNIX_EPOCH + Duration::from_millis(1_709_210_096_789),
            client: Peer(Some("[::1]:4711".parse().unwrap())),
            rule: "web".into(),
            tls: None,
            user: None,
            route: None,
            group: Some("app".into()),
            server_name: None,
            attempts: Some(Box::new(MemberAttempts {
                member: "a:80".into(),
                member_name: None,
                before: Vec::new(),
                queued: Duration::from_millis(3),
                connect_time: Some(Duration::from_micros(150)),
                first_byte: None,
                head_bytes: 34,
                fields: Box::default(),
                member_error: None,
            })),
            request: Some(("GET".into(), target.to_owned().into())),
            protocol: Some("HTTP/1.1"),
            details: None,
            head_bytes_sent: 34,
            status: Some(200),
            grpc_status: None,
            bytes_received: 0,
            bytes_sent: 1234,
            response_time: Some(Duration::from_micros(1_250)),
            total_time: Duration::from_micros(2_500),
            cost: Cost::ONE,
            retries: 0,
            end: End::Complete,
            limit: None,
            request_limit: None,
            hedged: None,
        }
    }

    fn push(record: &Record<'_>, lines: &mut Vec<u8>) {
        LineFormatter::with_format(LogFormat::Json).push(record, lines);
    }

    fn channel() -> (AccessLog, Queue) {
        AccessLog::new_channel(Box::new(LineFormatter::with_format(LogFormat::Json)))
    }

    fn send(log: &mut AccessLog, target: &str) {
        assert!(log.push_record(&sample_record(target)));
        log.hand_over();
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
        let (mut log, lines) = channel();
        let counts = Counts::default();
        let writer = Writer::start(&target, lines, counts.clone()).unwrap();
        send(&mut log, "/first");
        while counts.written_records() == 0 {
            std::thread::yield_now();
        }
        std::fs::rename(directory.0.join("log"), directory.0.join("log.1")).unwrap();
        writer.reopen_target(&target);
        send(&mut log, "/second");
        drop(log);
        writer.finish_writing();
        assert_eq!(directory.targets("log.1"), ["/old", "/first"]);
        assert_eq!(directory.targets("log"), ["/second"]);
        assert_eq!((counts.written_records(), counts.lost_records()), (2, 0));
    }

    #[test]
    fn another_log_begins_when_the_one_before_it_has_ended() {
        let directory = Directory::new("another");
        let target = Target::File(directory.0.join("log"));
        let counts = Counts::default();
        let (mut old, lines) = channel();
        let before = Writer::start(&target, lines, counts.clone()).unwrap();
        let (mut new, lines) = channel();
        let writer = Writer::start(&target, lines, counts.clone()).unwrap();
        writer.write_after(before);
        send(&mut new, "/new");
        // A worker that has not heard of it yet.
        send(&mut old, "/old");
        assert!(old.push_record(&sample_record("/last")));
        drop(old);
        drop(new);
        writer.finish_writing();
        assert_eq!(directory.targets("log"), ["/old", "/last", "/new"]);
        assert_eq!((counts.written_records(), counts.lost_records()), (3, 0));
    }

    #[test]
    fn s5_a_line_that_a_full_disk_has_cut_is_whole_in_the_end() {
        let directory = Directory::new("full");
        let path = directory.0.join("log");
        let mut sink = Sink::open_target(&Target::File(path.clone())).unwrap();
        let mut full = Sink::open_target(&Target::File("/dev/full".into())).unwrap();
        let mut batch = Batch::default();
        for target in ["/1", "/2", "/3"] {
            push(&sample_record(target), &mut batch.bytes);
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
        push(&sample_record("/4"), &mut batch.bytes);
        let (written, lost, result) = batch.write(&mut full);
        assert_eq!((written, lost, result.is_err()), (0, 1, true));
        push(&sample_record("/5"), &mut batch.bytes);
        let (written, lost, result) = batch.write(&mut sink);
        assert_eq!((written, lost, result.is_ok()), (2, 0, true));
        assert_eq!(directory.targets("log"), ["/1", "/2", "/5"]);
        assert!(batch.bytes.is_empty() && batch.written == 0);
        // Another file does not get the end of a line of this one.
        push(&sample_record("/6"), &mut batch.bytes);
        batch.written = 5;
        assert_eq!(batch.forget_begun_line(), 1);
        assert_eq!(batch.forget_begun_line(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let (mut log, lines) = channel();
        let counts = Counts::default();
        // The device that is always full.
        let target = Target::File("/dev/full".into());
        let writer = Writer::start(&target, lines, counts.clone()).unwrap();
        for _ in 0..3 {
            send(&mut log, "/");
        }
        drop(log);
        writer.finish_writing();
        assert_eq!((counts.written_records(), counts.lost_records()), (0, 3));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let (_log, lines) = channel();
        let target = Target::File("/proc/no/such/log".into());
        let error = Writer::start(&target, lines, Counts::default()).unwrap_err();
        assert!(error.to_string().contains("/proc/no/such/log"), "{error}");
    }
}

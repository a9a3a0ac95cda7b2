//! Log that never blocks: lines go through a bounded queue to a thread that writes them.
//!
//! Whoever reads standard error may stop reading: a full pipe then stops the thread and nobody else. Lines
//! that find no room in the queue are lost, counted, and the number is logged as soon as lines get through
//! again.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Lines that may wait.
const LINES: usize = 8192;

/// Bytes that may wait.
const BYTES: usize = 4 << 20;

/// A longer line is cut.
const MAX_LINE: usize = 64 * 1024;

/// The queue's end for those who log. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Log {
    lines: SyncSender<Vec<u8>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes that wait, or are just being written.
    waiting: AtomicUsize,
    lost: AtomicU64,
}

/// Lines that all logs of the process have lost.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Lines of the process's logs that were lost: no room in the queue, or they could not be
/// written.
pub fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

impl Shared {
    fn lose_one(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

impl Log {
    /// Starts the thread that writes to `sink`, for ever.
    ///
    /// # Errors
    ///
    /// No thread can be started.
    pub fn start(sink: impl Write + Send + 'static) -> io::Result<Log> {
        let (lines, queue) = sync_channel(LINES);
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || write_all(&queue, sink, &of_thread))?;
        Ok(Log { lines, shared })
    }

    /// Lines of this log that were lost.
    pub fn lost_lines(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, but no longer than `patience`.
    pub fn flush(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while self.shared.waiting.load(Ordering::Acquire) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Takes a whole line at a time, as `tracing_subscriber` gives them.
impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let shared = &self.shared;
        let kept = match line.get(..MAX_LINE) {
            Some(start) => [start, b"\n"].concat(),
            None => line.to_vec(),
        };
        let len = kept.len();
        let before = shared.waiting.fetch_add(len, Ordering::AcqRel);
        if before + len > BYTES || self.lines.try_send(kept).is_err() {
            shared.waiting.fetch_sub(len, Ordering::AcqRel);
            shared.lose_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(queue: &Receiver<Vec<u8>>, mut sink: impl Write, shared: &Shared) {
    let mut told = 0;
    while let Ok(line) = queue.recv() {
        let result = sink.write_all(&line);
        shared.waiting.fetch_sub(line.len(), Ordering::AcqRel);
        let lost = shared.lost.load(Ordering::Relaxed);
        match result {
            Ok(()) if lost > told => {
                let lines = lost - told;
                told = lost;
                // A line like all others: it comes through the same queue.
                tracing::warn!(
                    lines,
                    "lines of this log were lost because they were not read in time"
                );
            }
            Ok(()) => {}
            Err(_) => shared.lose_one(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A sink that waits for a word before each write, and hands on what was written.
    struct Slow(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn s5_a_reader_that_stopped_stops_nobody() {
        let ((go, wait), (sink, written)) = (channel(), channel());
        let mut log = Log::start(Slow(wait, sink)).unwrap();
        // More than there is room for: this would never end if anything waited.
        let line = [b'x'; 1000];
        for _ in 0..3 * LINES {
            log.write_all(&line).unwrap();
        }
        let kept = 3 * LINES as u64 - log.lost_lines();
        assert!((4000..=LINES as u64 + 1).contains(&kept), "{kept}");
        // It goes on where it was.
        for _ in 0..kept {
            go.send(()).unwrap();
            assert_eq!(written.recv().unwrap(), line);
        }
        log.flush(Duration::from_secs(60));
        log.write_all(b"last").unwrap();
        go.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"last");
    }

    #[test]
    fn s5_lines_have_a_bound() {
        let ((go, wait), (sink, written)) = (channel(), channel());
        let mut log = Log::start(Slow(wait, sink)).unwrap();
        log.write_all(&vec![b'x'; 10 * MAX_LINE]).unwrap();
        go.send(()).unwrap();
        assert_eq!(written.recv().unwrap().len(), MAX_LINE + 1);
    }

    #[test]
    fn s5_what_cannot_be_written_is_counted() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let mut log = Log::start(full.unwrap()).unwrap();
        log.write_all(b"x").unwrap();
        log.flush(Duration::from_secs(60));
        while log.lost_lines() == 0 {
            std::thread::yield_now();
        }
    }
}

//! A small HTTP server whose speed is known, and that can be slow, stall and fail while it runs.
//!
//! It behaves like a server with a few worker threads: requests wait in one queue for
//! a free worker and then take a time: `GET /work/MICROSECONDS` that many, any other request an
//! exponentially distributed one. The time is slept,
//! not computed, so that queueing shows and little of the machine is needed. When
//! a worker is free again is reckoned, not awaited: timers are late, on a busy machine
//! by much, and would make the back-end slower than it is said to be.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::timer::Timer;

/// Longest request head that is read; clients here send about 100 bytes.
const MAX_HEAD: usize = 8 * 1024;
/// Window of the loads that a back-end reports.
const REPORTED: Duration = Duration::from_millis(500);
/// Slowdown of a back-end that has just been restarted.
const COLD: f64 = 3.0;

/// Properties of a back-end that do not change.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Requests that it serves at once.
    pub workers: usize,
    /// Mean time of a request that does not say its own, at normal speed.
    pub mean: Duration,
    /// True if answers tell the load (ORCA, as text).
    pub reports_load: bool,
    /// Seed of what happens by chance.
    pub seed: u64,
}

/// A running back-end; dropping all its handles ends it.
#[derive(Clone, Debug)]
pub struct Backend {
    address: SocketAddr,
    settings: Settings,
    shared: Shared,
    _serving: Arc<Serving>,
}

/// The task that accepts, which ends with the last handle.
#[derive(Debug)]
struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// State of a back-end, for its connections and whoever changes it.
#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    mean: Duration,
    /// Moment at which each worker has done all that is assigned to it.
    free_at: Vec<Instant>,
    slowdown: f64,
    /// Share of the requests that fail at once.
    failing: f64,
    /// Requests until it is warm.
    cold: u32,
    /// Length of all stalls.
    stalled: Duration,
    /// Worker time of all requests so far.
    assigned: Duration,
    served: u64,
    rng: fastrand::Rng,
    report: Option<LoadReport>,
}

/// Load in the answers: of the last whole window.
#[derive(Debug)]
struct LoadReport {
    since: Instant,
    assigned: Duration,
    served: u64,
    header: String,
}

impl Backend {
    /// Starts a back-end on a free loopback port, served by the thread's `LocalSet`.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no port.
    pub async fn start(settings: Settings) -> io::Result<Backend> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Shared(Arc::new(Mutex::new(State::new(&settings))));
        let serving = tokio::task::spawn_local(accept(listener, shared.clone()));
        Ok(Backend {
            address,
            settings,
            shared,
            _serving: Arc::new(Serving(serving.abort_handle())),
        })
    }

    /// Returns the address that the back-end listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the requests per second that the back-end can serve at normal speed.
    pub fn capacity(&self) -> f64 {
        self.settings.workers as f64 / self.settings.mean.as_secs_f64()
    }

    /// Returns the mean time of a request at normal speed.
    pub fn mean(&self) -> Duration {
        self.settings.mean
    }

    /// Returns the number of requests that the back-end serves at once.
    pub fn workers(&self) -> usize {
        self.settings.workers
    }

    /// Makes it `factor` times slower than normal from the next request on.
    pub fn set_slowdown(&self, factor: f64) {
        self.shared.lock().slowdown = factor;
    }

    /// Returns the slowdown in force; 1 is the normal speed.
    pub fn slowdown(&self) -> f64 {
        self.shared.lock().slowdown
    }

    /// Makes it fail this share of its requests, by 503 or a reset.
    pub fn set_failing(&self, share: f64) {
        self.shared.lock().failing = share;
    }

    /// Makes its next `requests` three times as long, as after a restart.
    pub fn set_cold(&self, requests: u32) {
        self.shared.lock().cold = requests;
    }

    /// Stops it for `length`, what it is working on included.
    pub fn stall(&self, length: Duration) {
        self.shared.lock().stall(Instant::now(), length);
    }

    /// Returns the worker time of all requests so far, waiting requests included.
    pub fn assigned_time(&self) -> Duration {
        self.shared.lock().assigned
    }

    /// Returns the worker time used so far; its growth per wall time and worker is the utilisation.
    pub fn busy_time(&self) -> Duration {
        self.shared.lock().busy(Instant::now())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Numbers cannot be left half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(settings: &Settings) -> Self {
        let now = Instant::now();
        State {
            mean: settings.mean,
            free_at: vec![now; settings.workers],
            slowdown: 1.0,
            failing: 0.0,
            cold: 0,
            stalled: Duration::ZERO,
            assigned: Duration::ZERO,
            served: 0,
            rng: fastrand::Rng::with_seed(settings.seed),
            report: settings.reports_load.then(|| LoadReport {
                since: now,
                assigned: Duration::ZERO,
                served: 0,
                header: String::new(),
            }),
        }
    }

    /// Draws the work of a request that does not say its own: most are short, some long, as real ones are.
    fn draw_work(&mut self) -> Duration {
        let factor = -(1.0 - self.rng.f64()).ln();
        self.mean.mul_f64(factor.min(100.0))
    }

    /// True if the next request is to fail.
    fn draw_failure(&mut self) -> bool {
        self.failing > 0.0 && self.rng.f64() < self.failing
    }

    /// Gives work that comes at `now` to the worker that is free first; returns when it is done.
    fn assign(&mut self, now: Instant, work: Duration) -> Instant {
        let mut slowdown = self.slowdown;
        if self.cold > 0 {
            self.cold -= 1;
            slowdown *= COLD;
        }
        let work = work.mul_f64(slowdown);
        self.assigned += work;
        self.served += 1;
        let Some(first) = self.free_at.iter_mut().min() else {
            return now + work;
        };
        *first = now.max(*first) + work;
        *first
    }

    fn stall(&mut self, now: Instant, length: Duration) {
        self.stalled += length;
        for free_at in &mut self.free_at {
            *free_at = now.max(*free_at) + length;
        }
    }

    /// Returns the worker time assigned, without what is still ahead at `now`.
    fn busy(&self, now: Instant) -> Duration {
        let workers = self.free_at.iter();
        let ahead = workers.map(|free_at| free_at.saturating_duration_since(now));
        self.assigned.saturating_sub(ahead.sum())
    }

    /// Returns the line of an answer's head that tells the load; empty if there is no load to tell.
    fn load_header(&mut self, now: Instant) -> &str {
        let Some(report) = &mut self.report else {
            return "";
        };
        let passed = now.duration_since(report.since);
        if passed >= REPORTED {
            let seconds = passed.as_secs_f64();
            let busy = (self.assigned - report.assigned).as_secs_f64() / seconds;
            report.header = format!(
                "endpoint-load-metrics: TEXT cpu_utilization={:.4},rps_fractional={:.2}\r\n",
                (busy / self.free_at.len() as f64).clamp(0.01, 1.0),
                ((self.served - report.served) as f64 / seconds).max(0.01),
            );
            (report.since, report.assigned, report.served) = (now, self.assigned, self.served);
        }
        &report.header
    }
}

async fn accept(listener: TcpListener, shared: Shared) {
    // Connections end with the back-end.
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn_local(serve(stream, shared.clone()));
                while connections.try_join_next().is_some() {}
            }
            // Out of descriptors: give others the time to close some.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Answers requests until the peer closes. Any error just ends the connection: the
/// peer is a balancer that is shown or measured.
async fn serve(mut stream: TcpStream, shared: Shared) {
    let _ = stream.set_nodelay(true);
    let Ok(mut timer) = Timer::new() else {
        return;
    };
    let mut head = Vec::with_capacity(1024);
    loop {
        let end = loop {
            if let Some(at) = head.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if head.len() > MAX_HEAD {
                return;
            }
            match stream.read_buf(&mut head).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        let work = read_cost(&head);
        head.drain(..end);
        let failure = {
            let mut state = shared.lock();
            state.draw_failure().then(|| state.rng.bool())
        };
        match failure {
            Some(true) => {
                // Nothing is sent any more, and the peer is told so at once.
                let _ = stream.set_zero_linger();
                return;
            }
            Some(false) => {
                let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
                if stream.write_all(answer).await.is_err() {
                    return;
                }
                continue;
            }
            None => {}
        }
        let (mut done, mut stalled) = {
            let mut state = shared.lock();
            let work = work.unwrap_or_else(|| state.draw_work());
            (state.assign(Instant::now(), work), state.stalled)
        };
        loop {
            if timer.wait_until(done).await.is_err() {
                return;
            }
            let now_stalled = shared.lock().stalled;
            if now_stalled == stalled {
                break;
            }
            done += now_stalled - stalled;
            stalled = now_stalled;
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{}Content-Length: 6\r\n\r\nhello\n",
            shared.lock().load_header(Instant::now())
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads the work that `GET /work/MICROSECONDS` asks for.
fn read_cost(head: &[u8]) -> Option<Duration> {
    let digits = head.strip_prefix(b"GET /work/")?;
    let digits = digits.split(|byte| *byte == b' ').next()?;
    let micros = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(workers: usize) -> State {
        State::new(&Settings {
            workers,
            mean: Duration::from_secs(1),
            reports_load: false,
            seed: 1,
        })
    }

    #[test]
    fn work_waits_for_a_worker_and_late_timers_cost_nothing() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut state = state(2);
        let mut done = |after: u32, work: u32| {
            let done = state.assign(start + second * after, second * work) - start;
            done.as_secs_f64().round() as u32
        };
        assert_eq!([4, 1, 1, 1].map(|work| done(0, work)), [4, 1, 2, 3]);
        // Whoever comes late finds the same.
        assert_eq!(done(2, 1), 4);
        assert_eq!(done(10, 1), 11);
    }

    #[test]
    fn what_waits_is_assigned_and_not_yet_busy() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut state = state(1);
        state.free_at[0] = start;
        state.assign(start, 3 * second);
        assert_eq!(state.assigned, 3 * second);
        let busy = [0, 1, 3, 9].map(|after| state.busy(start + second * after).as_secs());
        assert_eq!(busy, [0, 1, 3, 3]);
    }

    #[test]
    fn requests_say_what_they_cost() {
        let of = |head: &str| read_cost(head.as_bytes()).map(|cost| cost.as_micros());
        assert_eq!(of("GET /work/1234 HTTP/1.1\r\n\r\n"), Some(1234));
        assert_eq!(of("GET /work/x HTTP/1.1\r\n\r\n"), None);
        assert_eq!(of("GET / HTTP/1.1\r\n\r\n"), None);
    }

    #[test]
    fn a_stall_delays_all_that_is_assigned_and_costs_no_work() {
        let second = Duration::from_secs(1);
        let mut state = state(2);
        let now = Instant::now();
        let mut done = |work: u32| {
            let done = state.assign(now, second * work) - now;
            done.as_secs_f64().round() as u32
        };
        assert_eq!([4, 1, 1].map(&mut done), [4, 1, 2]);
        state.stall(now, 3 * second);
        let done = state.assign(now, second) - now;
        assert_eq!(done.as_secs_f64().round() as u32, 6);
        assert_eq!((state.assigned.as_secs(), state.stalled.as_secs()), (7, 3));
    }

    #[tokio::test]
    async fn a_back_end_ends_with_its_last_handle() {
        let settings = Settings {
            workers: 1,
            mean: Duration::ZERO,
            reports_load: false,
            seed: 1,
        };
        tokio::task::LocalSet::new()
            .run_until(async {
                let backend = Backend::start(settings).await.unwrap();
                let other = backend.clone();
                drop(backend);
                let kept = crate::load::send_request(other.address(), None, "/")
                    .await
                    .unwrap();
                drop(other);
                // Its connections end, too.
                let read = kept.unwrap().read(&mut [0]).await;
                assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
            })
            .await;
    }
}

//! A small HTTP server whose speed is known, and can be changed while it runs.
//!
//! It behaves like a server with a few worker threads: requests wait in one queue for
//! a free worker and then take an exponentially distributed time. The time is slept,
//! not computed, so that the demo shows queueing and needs little of the machine. When
//! a worker is free again is reckoned, not awaited: timers are late, on a busy machine
//! by much, and would make the back-end slower than it is said to be.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// Longest request head that is read; the demo's own load sends about 100 bytes.
const MAX_HEAD: usize = 8 * 1024;

/// A running back-end.
#[derive(Clone, Debug)]
pub struct Backend {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    mean: Duration,
    /// When each worker has done all that is assigned to it.
    free_at: Mutex<Vec<Instant>>,
    workers: usize,
    /// How many times slower than normal (f32 bits).
    slowdown: AtomicU32,
    /// Nanoseconds that workers have been busy, all together.
    busy: AtomicU64,
}

impl Backend {
    /// Starts one on a free loopback port: `workers` requests at once, each taking
    /// `mean` on average.
    pub async fn start(workers: usize, mean: Duration) -> std::io::Result<Backend> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let backend = Backend {
            address: listener.local_addr()?,
            shared: Arc::new(Shared::new(workers, mean)),
        };
        tokio::task::spawn_local(accept(listener, Arc::clone(&backend.shared)));
        Ok(backend)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests per second that it can serve at normal speed.
    pub fn capacity(&self) -> f64 {
        self.shared.workers as f64 / self.shared.mean.as_secs_f64()
    }

    /// Mean time of a request at normal speed.
    pub fn mean(&self) -> Duration {
        self.shared.mean
    }

    /// Makes it `factor` times slower than normal from the next request on.
    pub fn set_slowdown(&self, factor: f32) {
        self.shared
            .slowdown
            .store(factor.to_bits(), Ordering::Relaxed);
    }

    /// How many times slower than normal it is.
    pub fn slowdown(&self) -> f32 {
        f32::from_bits(self.shared.slowdown.load(Ordering::Relaxed))
    }

    /// Worker time used so far; its growth per wall time and worker is the utilisation.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.shared.busy.load(Ordering::Relaxed))
    }

    /// Requests that it serves at once.
    pub fn workers(&self) -> usize {
        self.shared.workers
    }
}

impl Shared {
    fn new(workers: usize, mean: Duration) -> Self {
        Shared {
            mean,
            free_at: Mutex::new(vec![Instant::now(); workers]),
            workers,
            slowdown: AtomicU32::new(1f32.to_bits()),
            busy: AtomicU64::new(0),
        }
    }

    /// Gives work that comes at `now` to the worker that is free first; answers when it
    /// is done.
    fn assign(&self, now: Instant, work: Duration) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = free_at.iter_mut().min() else {
            return now + work;
        };
        *first = now.max(*first) + work;
        *first
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::task::spawn_local(serve(stream, Arc::clone(&shared)));
            }
            // Out of descriptors: give others the time to close some.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Answers requests until the peer closes. Any error just ends the connection: the
/// peer is the balancer of the same process.
async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let mut rng = fastrand::Rng::new();
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
        head.drain(..end);
        let slowdown = f32::from_bits(shared.slowdown.load(Ordering::Relaxed));
        // Exponential: most requests are short, some are long, as real ones are.
        let factor = -(1.0 - rng.f64()).ln() * f64::from(slowdown);
        let work = shared.mean.mul_f64(factor.min(100.0));
        tokio::time::sleep_until(shared.assign(Instant::now(), work)).await;
        shared.busy.fetch_add(
            u64::try_from(work.as_nanos()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        let answer =
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nhello\n";
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_a_worker_and_late_timers_cost_nothing() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let shared = Shared::new(2, second);
        let done = |after: u32, work: u32| {
            let done = shared.assign(start + second * after, second * work) - start;
            done.as_secs_f64().round() as u32
        };
        assert_eq!([4, 1, 1, 1].map(|work| done(0, work)), [4, 1, 2, 3]);
        // Whoever comes late finds the same.
        assert_eq!(done(2, 1), 4);
        assert_eq!(done(10, 1), 11);
    }
}

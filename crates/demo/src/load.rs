//! A steady load: requests leave at random moments at a set rate, whether or not the
//! answers keep up (open loop). Latency counts from the moment a request was due, so a
//! stalled balancer or back-end cannot hide behind a waiting client.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::timer::Timer;

/// Requests that may be under way at once. Beyond it a request counts as failed: a real
/// client would have given up.
const MAX_UNDER_WAY: usize = 4000;

/// Samples and counts that the clients of one arm have seen.
#[derive(Debug, Default)]
pub struct Seen {
    samples: VecDeque<Sample>,
    /// Times at which the requests that wait for their answer were due; the number tells apart the requests
    /// of one instant.
    waiting: BTreeSet<(Instant, u64)>,
    /// Requests begun so far.
    begun: u64,
    /// Answered so far.
    pub answered: u64,
    /// Failed so far: refused, cut, not 200, or given up.
    pub failed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Time at which the request was due.
    due: Instant,
    latency: Duration,
}

/// Median and 99th percentile of some requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// Number of requests.
    pub count: usize,
    /// Median latency.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

impl Seen {
    /// Returns the number of requests that are waiting for their answer.
    pub fn under_way(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the quantiles of the requests that were due from `from` to before `to`. A request that still
    /// waits at `now` counts with the time that it has waited: left out, the requests that wait longest would
    /// make the others look good.
    pub fn quantiles(&self, from: Instant, to: Instant, now: Instant) -> Quantiles {
        let answered = self
            .samples
            .iter()
            .filter(|sample| (from..to).contains(&sample.due))
            .map(|sample| sample.latency);
        let waiting = self
            .waiting
            .range((from, 0)..(to, 0))
            .map(|(due, _)| now.saturating_duration_since(*due));
        quantiles(answered.chain(waiting).collect())
    }

    fn begin(&mut self, due: Instant) -> (Instant, u64) {
        self.begun += 1;
        self.waiting.insert((due, self.begun));
        (due, self.begun)
    }

    fn end(&mut self, request: (Instant, u64), is_answered: bool) {
        self.waiting.remove(&request);
        if is_answered {
            self.answered += 1;
            self.samples.push_back(Sample {
                due: request.0,
                latency: request.0.elapsed(),
            });
        } else {
            self.failed += 1;
        }
    }

    /// Forgets requests that were due before `time`.
    pub fn forget_before(&mut self, time: Instant) {
        // Answers arrive out of order, but nearly so: stop at the first to be kept.
        while self.samples.front().is_some_and(|first| first.due < time) {
            self.samples.pop_front();
        }
    }
}

/// Locks what the clients of an arm have seen, to read or to add to.
pub fn lock_seen(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    // Counters cannot be left half written.
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn quantiles(mut latencies: Vec<Duration>) -> Quantiles {
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = (latencies.len() as f64 * share).ceil() as usize;
        latencies
            .get(index.saturating_sub(1))
            .copied()
            .unwrap_or_default()
    };
    Quantiles {
        count: latencies.len(),
        p50: at(0.5),
        p99: at(0.99),
    }
}

/// Sends `rate` requests per second to `target` until the task is dropped, or there is no timer. `seed` gives
/// the moments: two arms with one seed get the same ones.
pub async fn run(target: SocketAddr, rate: f64, seed: u64, seen: Arc<Mutex<Seen>>) {
    let Ok(mut timer) = Timer::new() else {
        return;
    };
    let mut rng = fastrand::Rng::with_seed(seed);
    let idle: Rc<RefCell<Vec<TcpStream>>> = Rc::default();
    let mut due = Instant::now();
    loop {
        due += Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / rate);
        if timer.wait_until(due.into()).await.is_err() {
            return;
        }
        let this = {
            let mut seen = lock_seen(&seen);
            if seen.under_way() >= MAX_UNDER_WAY {
                seen.failed += 1;
                continue;
            }
            seen.begin(due)
        };
        let (idle, seen) = (Rc::clone(&idle), Arc::clone(&seen));
        tokio::task::spawn_local(async move {
            let reused = idle.borrow_mut().pop();
            let result = send_request(target, reused, "/hello").await;
            lock_seen(&seen).end(this, result.is_ok());
            idle.borrow_mut().extend(result.ok().flatten());
        });
    }
}

/// Sends a request to a balancer of [back-ends](crate::backend) and reads the answer; gives the connection back if it
/// stays open.
///
/// # Errors
///
/// Returns an error if there is no complete answer of 200.
pub async fn send_request(
    target: SocketAddr,
    reused: Option<TcpStream>,
    path: &str,
) -> io::Result<Option<TcpStream>> {
    let mut stream = match reused {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect(target).await?;
            stream.set_nodelay(true)?;
            stream
        }
    };
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: demo.example\r\nUser-Agent: evenkeel-demo\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::with_capacity(512);
    // The back-ends' answer is known: it ends with its only body line.
    while !answer.ends_with(b"\r\n\r\nhello\n") {
        if answer.len() > 16 * 1024 || stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if answer.get(9..12).is_some_and(|status| status != b"200") {
            return Err(io::Error::other("not answered with 200"));
        }
    }
    answer.make_ascii_lowercase();
    let last = b"\r\nconnection: close\r\n";
    let stays = !answer.windows(last.len()).any(|window| window == last);
    Ok(stays.then_some(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_count() {
        let mut seen = Seen::default();
        let due = Instant::now();
        let (first, _second) = (seen.begin(due), seen.begin(due));
        let to = due + Duration::from_millis(1);
        let now = due + Duration::from_secs(9);
        assert_eq!(seen.quantiles(due, to, now).p50, Duration::from_secs(9));
        seen.end(first, true);
        let found = seen.quantiles(due, to, now);
        assert_eq!((found.count, found.p99), (2, Duration::from_secs(9)));
        assert_eq!((seen.under_way(), seen.answered), (1, 1));
        assert_eq!(seen.quantiles(to, now, now).count, 0);
    }

    #[test]
    fn quantiles_of_few_and_many() {
        assert_eq!(quantiles(vec![]), Quantiles::default());
        let millis = |n| Duration::from_millis(n);
        let hundred: Vec<_> = (1..=100).rev().map(millis).collect();
        let found = quantiles(hundred);
        assert_eq!(
            (found.count, found.p50, found.p99),
            (100, millis(50), millis(99))
        );
        assert_eq!(quantiles(vec![millis(7)]).p99, millis(7));
    }
}

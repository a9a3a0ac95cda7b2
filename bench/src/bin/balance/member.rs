//! A member whose work is time, not computing, and that can be slow, stall and fail.
//!
//! As `evenkeel_demo::backend`: requests wait in one queue for a free worker, and when one is free
//! is reckoned, not awaited. What a request costs stands in its path, so that the same requests
//! cost the same behind every balancer.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::timer::Timer;

/// Longest request head that is read.
const MAX_HEAD: usize = 8 * 1024;
/// How long a member looks back when it reports its load.
const REPORTED: Duration = Duration::from_millis(500);
/// A member that has just been restarted is so many times slower.
const COLD: f64 = 3.0;

/// A member that serves until it is dropped.
pub(crate) struct Member {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    state: Rc<RefCell<State>>,
    serving: JoinHandle<()>,
}

struct State {
    /// When each worker has done all that is assigned to it.
    free_at: Vec<Instant>,
    slowness: f64,
    /// Share of its requests that fail at once.
    failing: f64,
    /// Requests until it is warm.
    cold: u32,
    /// How long it has stalled, all together.
    stalled: Duration,
    /// Worker time used so far.
    busy: Duration,
    served: u64,
    rng: fastrand::Rng,
    report: Option<Report>,
}

/// The load in a member's answers (ORCA, as text): of the last whole window.
struct Report {
    since: Instant,
    busy: Duration,
    served: u64,
    header: String,
}

impl Member {
    /// Starts one with so many workers. `reports` says whether its answers tell its load.
    pub(crate) async fn start(workers: usize, reports: bool, seed: u64) -> io::Result<Member> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let now = Instant::now();
        let state = Rc::new(RefCell::new(State {
            free_at: vec![now; workers],
            slowness: 1.0,
            failing: 0.0,
            cold: 0,
            stalled: Duration::ZERO,
            busy: Duration::ZERO,
            served: 0,
            rng: fastrand::Rng::with_seed(seed),
            report: reports.then(|| Report {
                since: now,
                busy: Duration::ZERO,
                served: 0,
                header: String::new(),
            }),
        }));
        Ok(Member {
            address: listener.local_addr()?,
            serving: tokio::task::spawn_local(accept(listener, Rc::clone(&state))),
            state,
        })
    }

    /// Makes it so many times slower than normal from the next request on.
    pub(crate) fn set_slowness(&self, slowness: f64) {
        self.state.borrow_mut().slowness = slowness;
    }

    /// Makes it fail this share of its requests.
    pub(crate) fn set_failing(&self, share: f64) {
        self.state.borrow_mut().failing = share;
    }

    /// As after a restart: its next so many requests take three times as long.
    pub(crate) fn set_cold(&self, requests: u32) {
        self.state.borrow_mut().cold = requests;
    }

    /// Nothing goes on in it for so long, what it is working on included.
    pub(crate) fn stall(&self, length: Duration) {
        self.state.borrow_mut().stall(Instant::now(), length);
    }

    /// Worker time used so far.
    pub(crate) fn busy(&self) -> Duration {
        self.state.borrow().busy
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl State {
    /// Gives work to the worker that is free first; answers when it is done.
    fn assign(&mut self, now: Instant, work: Duration) -> Instant {
        let mut slowness = self.slowness;
        if self.cold > 0 {
            self.cold -= 1;
            slowness *= COLD;
        }
        let work = work.mul_f64(slowness);
        self.busy += work;
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

    /// The line of an answer's head that tells the load, if there is one to tell.
    fn report(&mut self, now: Instant) -> &str {
        let Some(report) = &mut self.report else {
            return "";
        };
        let passed = now.duration_since(report.since);
        if passed >= REPORTED {
            let seconds = passed.as_secs_f64();
            let busy = (self.busy - report.busy).as_secs_f64() / seconds;
            report.header = format!(
                "endpoint-load-metrics: TEXT cpu_utilization={:.4},rps_fractional={:.2}\r\n",
                (busy / self.free_at.len() as f64).clamp(0.01, 1.0),
                ((self.served - report.served) as f64 / seconds).max(0.01),
            );
            (report.since, report.busy, report.served) = (now, self.busy, self.served);
        }
        &report.header
    }
}

async fn accept(listener: TcpListener, state: Rc<RefCell<State>>) {
    // Connections end with the member.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn_local(serve(stream, Rc::clone(&state)));
        while connections.try_join_next().is_some() {}
    }
}

/// Answers requests until the peer closes. Any error just ends the connection: the peer is a
/// balancer that is measured.
async fn serve(mut stream: TcpStream, state: Rc<RefCell<State>>) {
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
        let work = cost(&head);
        head.drain(..end);
        let fails = {
            let mut state = state.borrow_mut();
            let share = state.failing;
            state.rng.f64() < share
        };
        if fails {
            if state.borrow_mut().rng.bool() {
                // Nothing is sent any more, and the peer is told so at once.
                let _ = stream.set_zero_linger();
                return;
            }
            let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
            if stream.write_all(answer).await.is_err() {
                return;
            }
            continue;
        }
        let (mut done, mut stalled) = {
            let mut state = state.borrow_mut();
            (state.assign(Instant::now(), work), state.stalled)
        };
        loop {
            if timer.until(done).await.is_err() {
                return;
            }
            let now_stalled = state.borrow().stalled;
            if now_stalled == stalled {
                break;
            }
            done += now_stalled - stalled;
            stalled = now_stalled;
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{}Content-Length: 6\r\n\r\nhello\n",
            state.borrow_mut().report(Instant::now())
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The work that `GET /work/MICROSECONDS` asks for.
fn cost(head: &[u8]) -> Duration {
    let digits = head.strip_prefix(b"GET /work/").unwrap_or_default();
    let digits = digits.split(|byte| *byte == b' ').next();
    let micros = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    Duration::from_micros(micros.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_say_what_they_cost() {
        let of = |head: &str| cost(head.as_bytes()).as_micros();
        assert_eq!(of("GET /work/1234 HTTP/1.1\r\n\r\n"), 1234);
        assert_eq!(of("GET /work/x HTTP/1.1\r\n\r\n"), 0);
        assert_eq!(of("GET / HTTP/1.1\r\n\r\n"), 0);
    }

    #[tokio::test]
    async fn a_stall_delays_all_that_is_assigned_and_costs_no_work() {
        tokio::task::LocalSet::new()
            .run_until(async {
                let member = Member::start(2, false, 1).await.unwrap();
                let second = Duration::from_secs(1);
                let now = Instant::now();
                let mut state = member.state.borrow_mut();
                let mut done = |work: u32| {
                    let done = state.assign(now, second * work) - now;
                    done.as_secs_f64().round() as u32
                };
                assert_eq!([4, 1, 1].map(&mut done), [4, 1, 2]);
                state.stall(now, 3 * second);
                let done = state.assign(now, second) - now;
                assert_eq!(done.as_secs_f64().round() as u32, 6);
                assert_eq!((state.busy.as_secs(), state.stalled.as_secs()), (7, 3));
            })
            .await;
    }
}

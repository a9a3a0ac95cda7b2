//! Requests that are due at moments known before, whatever the answers do (open loop). Latency
//! counts from the moment a request was due, so that what waits behind a stalled balancer counts.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_demo::load::send_request;
use evenkeel_demo::timer::Timer;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// Time after which a request without an answer has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    /// Due time, from the start.
    pub(crate) due: Duration,
    /// Cost of the request at a member with normal speed.
    pub(crate) work: Duration,
}

/// Result of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Due time, from the start.
    pub(crate) due: Duration,
    /// Delay between the due time and the time of sending.
    pub(crate) late: Duration,
    /// Time from the due time to the end of the answer, or to the failure.
    pub(crate) latency: Duration,
    /// True if the answer was 200, and complete.
    pub(crate) is_answered: bool,
}

/// Draws the requests of a run: `rate` per second on average, at random, for `length`, with costs around `mean`:
/// exponential ones, or `mixed`, where one in ten costs 20 times the others.
pub(crate) fn draw_requests(
    rate: f64,
    length: Duration,
    mean: Duration,
    mixed: bool,
    seed: u64,
) -> Vec<Request> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut requests = Vec::new();
    let mut due = 0.0;
    loop {
        due += -(1.0 - rng.f64()).ln() / rate;
        if due >= length.as_secs_f64() {
            return requests;
        }
        let draw = rng.f64();
        let factor = match mixed {
            false => -(1.0 - draw).ln(),
            // 0.9 * 1 + 0.1 * 20 = 2.9
            true if draw < 0.1 => 20.0 / 2.9,
            true => 1.0 / 2.9,
        };
        requests.push(Request {
            due: Duration::from_secs_f64(due),
            work: mean.mul_f64(factor),
        });
    }
}

/// Connections without a request on them, of one target.
type Idle = Rc<RefCell<Vec<TcpStream>>>;

/// Sends the requests to the targets in rotation; answers in the order in which they are due.
pub(crate) async fn send_requests(
    begin: Instant,
    requests: &[Request],
    targets: &[SocketAddr],
) -> io::Result<Vec<Answer>> {
    let mut timer = Timer::new()?;
    let idle: Vec<Idle> = targets.iter().map(|_| Idle::default()).collect();
    let mut under_way = Vec::with_capacity(requests.len());
    let rotation = targets.iter().zip(&idle).cycle();
    for (&request, (&target, idle)) in requests.iter().zip(rotation) {
        let due = begin + request.due;
        timer.wait_until(due).await?;
        let late = due.elapsed();
        let idle = Rc::clone(idle);
        under_way.push(tokio::task::spawn_local(async move {
            let reused = idle.borrow_mut().pop();
            let path = format!("/work/{}", request.work.as_micros());
            let result = timeout(PATIENCE, send_request(target, reused, &path)).await;
            let latency = due.elapsed();
            let kept = matches!(result, Ok(Ok(_)));
            if let Ok(Ok(Some(stream))) = result {
                idle.borrow_mut().push(stream);
            }
            Answer {
                due: request.due,
                late,
                latency,
                is_answered: kept,
            }
        }));
    }
    let mut answers = Vec::with_capacity(under_way.len());
    for request in under_way {
        answers.extend(request.await);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_the_same_requests_and_costs_have_their_mean() {
        let (mean, length) = (Duration::from_millis(10), Duration::from_secs(100));
        for mixed in [false, true] {
            let first = draw_requests(200.0, length, mean, mixed, 7);
            assert_eq!(first, draw_requests(200.0, length, mean, mixed, 7));
            assert_ne!(first, draw_requests(200.0, length, mean, mixed, 8));
            let rate = first.len() as f64 / length.as_secs_f64();
            assert!((190.0..210.0).contains(&rate), "{rate}");
            let work: Duration = first.iter().map(|request| request.work).sum();
            let ratio = work.as_secs_f64() / first.len() as f64 / mean.as_secs_f64();
            assert!((0.95..1.05).contains(&ratio), "{mixed}: {ratio}");
        }
    }
}

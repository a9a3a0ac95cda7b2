//! HAProxy's agent-check, served: a line that says how a server is.
//!
//! HAProxy (configuration manual, 5.2, `agent-check`) connects, sends its `agent-send`
//! string if there is one, and reads a line of words: a weight in percent of the
//! configured one, an operational state (`up`, `down`), an administrative state (`ready`,
//! `drain`, `maint`). It keeps what a line does not mention, so each line here says
//! everything, and an agent or HAProxy that missed some is right again with the next.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_config::agent::AgentCheck;
use evenkeel_wire::agent_check::{Answer, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::server::Condition;

/// Connections at once. HAProxy's are short, and one is made per server and interval.
const MAX_CONNECTIONS: usize = 256;

/// Time for a connection as a whole.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Longest string that HAProxy may send.
const MAX_REQUEST: usize = 256;

/// Misspelt names that are remembered, so that each is said once.
const MAX_COMPLAINTS: usize = 100;

/// A weight in percent that follows a load.
///
/// Two equal servers with the weights `100 % (1 - u)` share load `L` such that each has
/// the same *u*. A difference `d` between them changes the next one by `- d u / (1 - u)`: from
/// half load on, weights that follow at once swing further with each step. So the weight
/// follows with a time constant, slow against the seconds in which HAProxy asks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weight {
    percent: Option<f64>,
}

impl Weight {
    /// Follows a utilisation for an interval. One that is not known changes nothing.
    pub fn follow_load(&mut self, load: Option<f64>, length: Duration, settings: &AgentCheck) {
        let Some(load) = load else {
            return;
        };
        let wanted = (100.0 * (1.0 - load)).clamp(f64::from(settings.min_weight), 100.0);
        let share = if settings.smoothing.is_zero() {
            1.0
        } else {
            1.0 - (-length.as_secs_f64() / settings.smoothing.as_secs_f64()).exp()
        };
        let now = self.percent.unwrap_or(wanted);
        self.percent = Some(now + (wanted - now) * share);
    }

    /// Returns the weight in whole percent; `None` if no load was ever known.
    pub fn percent(self) -> Option<u32> {
        // At most 100.
        self.percent.map(|percent| percent.round() as u32)
    }
}

/// The answer for a server.
pub fn make_answer(condition: Condition, weight: Weight, settings: &AgentCheck) -> Answer {
    let state = match condition {
        Condition::Drain => State::Drain,
        Condition::Maint => State::Maintenance,
        Condition::Up | Condition::NoProcess | Condition::PortClosed => State::Ready,
    };
    let down = matches!(condition, Condition::NoProcess | Condition::PortClosed);
    Answer {
        up: Some(!down),
        state: settings.admin_state.then_some(state),
        // What nobody has measured is not 100 %. HAProxy keeps what it has.
        percent: weight.percent(),
        max_connections: None,
        note: down.then(|| condition.to_string()),
    }
}

/// The present answer for each server, by name.
pub type Lines = Arc<HashMap<String, String>>;

/// Subject of the answers at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The server that HAProxy names.
    Named,
    /// The server with this name.
    Server(String),
}

/// Listens at the addresses of a configuration.
#[derive(Debug)]
pub struct Responder {
    lines: watch::Receiver<Lines>,
    permits: Arc<Semaphore>,
    complaints: Arc<Mutex<HashSet<String>>>,
    listening: Vec<Listening>,
}

#[derive(Debug)]
struct Listening {
    wanted: SocketAddr,
    subject: watch::Sender<Subject>,
    real: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Listening {
    /// Returns true if this listens at a wanted address. With port 0 each subject has a free
    /// port of its own.
    fn is_at(&self, address: SocketAddr, subject: &Subject) -> bool {
        self.wanted == address && (address.port() != 0 || *self.subject.borrow() == *subject)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Listeners that are bound and not used yet: nothing has changed if they are dropped.
#[derive(Debug)]
pub struct Bound(Vec<(SocketAddr, Subject, Option<TcpListener>)>);

impl Responder {
    /// A responder that listens nowhere yet.
    pub fn new(lines: watch::Receiver<Lines>) -> Self {
        Responder {
            lines,
            permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            complaints: Arc::default(),
            listening: Vec::new(),
        }
    }

    /// Binds those addresses that are new.
    ///
    /// # Errors
    ///
    /// An address that cannot be listened on, and why.
    pub async fn bind(&self, wanted: Vec<(SocketAddr, Subject)>) -> Result<Bound, String> {
        let mut bound = Vec::new();
        for (address, subject) in wanted {
            let is_open = self.listening.iter().any(|l| l.is_at(address, &subject));
            let listener = if is_open {
                None
            } else {
                let listener = TcpListener::bind(address).await;
                Some(listener.map_err(|error| {
                    format!("cannot listen on {address} for agent-check: {error}")
                })?)
            };
            bound.push((address, subject, listener));
        }
        Ok(Bound(bound))
    }

    /// Answers at these addresses from now on, and at no others.
    pub fn serve_bound(&mut self, bound: Bound) {
        let mut before = std::mem::take(&mut self.listening);
        for (wanted, subject, listener) in bound.0 {
            let listening = match listener {
                Some(listener) => self.start(wanted, subject, listener),
                None => {
                    let known = before.iter().position(|l| l.is_at(wanted, &subject));
                    known.map(|index| {
                        let known = before.swap_remove(index);
                        known.subject.send_replace(subject);
                        known
                    })
                }
            };
            self.listening.extend(listening);
        }
    }

    /// Returns the addresses at which the responder listens, and the subject of each.
    pub fn addresses(&self) -> impl Iterator<Item = (Subject, SocketAddr)> + '_ {
        let listening = self.listening.iter();
        listening.map(|listening| (listening.subject.borrow().clone(), listening.real))
    }

    fn start(
        &self,
        wanted: SocketAddr,
        subject: Subject,
        listener: TcpListener,
    ) -> Option<Listening> {
        let real = listener.local_addr().ok()?;
        let (subject, receiver) = watch::channel(subject);
        let answers = Answers {
            lines: self.lines.clone(),
            subject: receiver,
            complaints: Arc::clone(&self.complaints),
        };
        let task = tokio::spawn(accept(listener, answers, Arc::clone(&self.permits)));
        Some(Listening {
            wanted,
            subject,
            real,
            task,
        })
    }
}

async fn accept(listener: TcpListener, answers: Answers, permits: Arc<Semaphore>) {
    loop {
        // Whoever comes when there are too many waits in the listen queue.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let answers = answers.clone();
                tokio::spawn(async move {
                    // Whether or not HAProxy was there to the end, the next check comes.
                    let _ = tokio::time::timeout(TIMEOUT, answers.answer(stream)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an agent-check");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Answers {
    lines: watch::Receiver<Lines>,
    subject: watch::Receiver<Subject>,
    complaints: Arc<Mutex<HashSet<String>>>,
}

impl Answers {
    async fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let subject = self.subject.borrow().clone();
        let name = match subject {
            Subject::Server(name) => name,
            Subject::Named => read_name(&mut stream).await?,
        };
        let line = self.lines.borrow().get(&name).cloned();
        match line {
            Some(line) => stream.write_all(format!("{line}\n").as_bytes()).await?,
            // To HAProxy no answer is no news, and a server must not go down because its
            // name is misspelt.
            None => self.complain(&name),
        }
        stream.shutdown().await?;
        // Closing with something unread could take the answer back.
        let mut rest = [0; MAX_REQUEST];
        let mut budget = 16;
        while budget > 0 && stream.read(&mut rest).await? > 0 {
            budget -= 1;
        }
        Ok(())
    }

    fn complain(&self, name: &str) {
        let mut complaints = self
            .complaints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if complaints.len() < MAX_COMPLAINTS && complaints.insert(name.to_owned()) {
            tracing::warn!(
                server = ?name,
                "an agent-check asks for an unknown server: set agent-send \"NAME\\n\" in HAProxy's \
                 configuration to the NAME of a [server.NAME]"
            );
        }
    }
}

/// The first line that HAProxy sends.
async fn read_name(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MAX_REQUEST && stream.read(&mut byte).await? > 0 {
        match byte {
            [b'\n' | b'\r'] => break,
            [other] => line.push(other),
        }
    }
    Ok(String::from_utf8_lossy(&line).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(smoothing: u64) -> AgentCheck {
        AgentCheck {
            smoothing: Duration::from_secs(smoothing),
            ..AgentCheck::default()
        }
    }

    fn weight(load: f64) -> Weight {
        let mut weight = Weight::default();
        weight.follow_load(Some(load), Duration::from_secs(1), &settings(30));
        weight
    }

    #[test]
    fn each_line_says_everything_that_is_known() {
        let mut settings = settings(30);
        let text =
            |condition, load: f64| make_answer(condition, weight(load), &settings).to_string();
        assert_eq!(text(Condition::Up, 0.25), "up ready 75%");
        assert_eq!(text(Condition::Up, 1.0), "up ready 10%");
        assert_eq!(text(Condition::Drain, 0.0), "up drain 100%");
        assert_eq!(text(Condition::Maint, 0.5), "up maint 50%");
        assert!(text(Condition::NoProcess, 0.0).starts_with("down ready 100% #"));
        assert!(text(Condition::PortClosed, 0.0).starts_with("down ready 100% #"));
        let unknown = make_answer(Condition::Up, Weight::default(), &settings);
        assert_eq!(unknown.to_string(), "up ready");
        settings.admin_state = false;
        let text = make_answer(Condition::Drain, weight(0.5), &settings).to_string();
        assert_eq!(text, "up 50%");
    }

    #[test]
    fn a_weight_follows_its_load_and_stays_when_that_is_not_known() {
        let mut weight = weight(0.2);
        let second = Duration::from_secs(1);
        for _ in 0..30 {
            weight.follow_load(Some(0.8), second, &settings(30));
        }
        // 80 % before, 20 % wanted, one time constant: 20 + 60 / e.
        assert_eq!(weight.percent(), Some(42));
        weight.follow_load(None, second, &settings(30));
        assert_eq!(weight.percent(), Some(42));
    }

    /// Two equal servers that share a load by their weights, of which HAProxy knows those
    /// of two seconds ago: the difference of their utilisations after a while.
    fn difference_after(smoothing: u64, load: f64) -> f64 {
        let settings = settings(smoothing);
        let mut weights = [weight(0.5), weight(0.6)];
        let mut known = vec![weights; 2];
        let mut shares = [0.5, 0.5];
        for _ in 0..600 {
            let percents = known[0].map(|weight| weight.percent.unwrap());
            let sum: f64 = percents.iter().sum();
            shares = percents.map(|percent| (2.0 * load * percent / sum).min(1.0));
            for (weight, share) in weights.iter_mut().zip(shares) {
                weight.follow_load(Some(share), Duration::from_secs(1), &settings);
            }
            known = vec![known[1], weights];
        }
        (shares[0] - shares[1]).abs()
    }

    #[test]
    fn weights_settle_with_smoothing_and_swing_without() {
        for load in [0.2, 0.5, 0.7, 0.85, 0.9] {
            let settled = difference_after(30, load);
            assert!(settled < 0.02, "{settled} at {load}");
        }
        assert!(difference_after(0, 0.85) > 0.2);
    }
}

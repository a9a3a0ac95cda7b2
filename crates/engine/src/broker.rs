//! Questions to brokers, and what is believed of their answers.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use evenkeel_config::engine::EngineConfig;
use evenkeel_config::{Origin, one_line};
use evenkeel_core::time::Instant;
use evenkeel_net::http::client::{self, AskError, Limits, ServerTarget};
use evenkeel_tls::current::Current;
use evenkeel_wire::negotiation::{self, Binding, Refused};
use hyper::StatusCode;

/// Longest answer that is read: nine servers need a tenth of it.
const MAX_ANSWER: Limits = Limits {
    head: 32 * 1024,
    body: 32 * 1024,
};

/// Servers beside the chosen one that are asked for.
const ALTERNATIVES: usize = 3;

/// Time for which a broker that did not answer is not asked, if there are other brokers.
const LEFT_OUT: Duration = Duration::from_secs(10);

/// The brokers, in the order in which they are asked.
#[derive(Debug)]
pub struct Brokers {
    timeout: Duration,
    origins: Vec<Origin>,
    tls: Option<RefCell<Current>>,
    /// Times since which each broker does not answer.
    silent: RefCell<Vec<Option<Instant>>>,
}

/// Question to a broker.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Name of the cluster.
    pub cluster: String,
    /// Class of the client.
    pub class: Option<String>,
    /// Mean response time that it wants.
    pub response_time: Option<Duration>,
    /// Session that goes on.
    pub session: Option<String>,
    /// Servers to stay away from.
    pub avoid: Vec<String>,
    /// The server that the client has now.
    pub current: Option<String>,
}

/// Answer of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The client is bound.
    Bound(Binding),
    /// The client is not bound, and may ask again after this time.
    Refused(Duration, Refusal),
}

/// Reason why a broker binds no client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Word with which the broker refuses.
    pub error: String,
    /// Reason of the refusal, for people.
    pub detail: String,
}

/// Reason why a broker gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerFailure {
    /// No connection, or it broke, or what came over it is no answer.
    #[error(transparent)]
    Unreachable(#[from] AskError),
    /// The answer did not come in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The broker's files for TLS cannot be used.
    #[error("{0}")]
    Files(String),
    /// The answer is not what was asked for.
    #[error("the answer is not from a negotiator: {0}")]
    Nonsense(String),
    /// The question is wrong.
    #[error("the broker does not accept the request ({status}): {detail}")]
    Rejected {
        /// HTTP status.
        status: StatusCode,
        /// Text that the broker sends.
        detail: String,
    },
}

impl Question {
    fn target(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("cluster", &self.cluster);
        if let Some(class) = &self.class {
            query.append_pair("class", class);
        }
        if let Some(time) = self.response_time {
            query.append_pair("response_time", &format!("{}us", time.as_micros()));
        }
        if let Some(session) = &self.session {
            query.append_pair("session", session);
        }
        if !self.avoid.is_empty() {
            query.append_pair("avoid", &self.avoid.join(","));
        }
        if let Some(current) = &self.current {
            query.append_pair("current", current);
        }
        query.append_pair("alternatives", &ALTERNATIVES.to_string());
        format!("{}?{}", negotiation::NEGOTIATE, query.finish())
    }
}

impl Brokers {
    /// Makes the brokers of a configuration.
    pub fn new(config: &EngineConfig) -> Self {
        Brokers {
            timeout: config.broker_timeout,
            origins: config.brokers.clone(),
            tls: config
                .broker_tls
                .clone()
                .map(Current::new)
                .map(RefCell::new),
            silent: RefCell::new(vec![None; config.brokers.len()]),
        }
    }

    /// Returns the longest time until it is clear that no broker answers.
    pub fn patience(&self) -> Duration {
        let count = u32::try_from(self.origins.len()).unwrap_or(u32::MAX);
        self.timeout.saturating_mul(count)
    }

    /// Asks one after the other. An error is that of each broker that was asked.
    pub async fn ask_brokers(
        &self,
        question: &Question,
        now: impl Fn() -> Instant,
    ) -> Result<Reply, Vec<(String, AnswerFailure)>> {
        let mut failures = Vec::new();
        for index in self.turn(now()) {
            let Some(broker) = self.origins.get(index) else {
                continue;
            };
            let asked = tokio::time::timeout(self.timeout, self.ask_one(broker, question)).await;
            let answer = asked.unwrap_or(Err(AnswerFailure::Timeout(self.timeout)));
            // One that does not understand is there.
            let is_silent =
                matches!(&answer, Err(error) if !matches!(error, AnswerFailure::Rejected { .. }));
            if let Some(silent) = self.silent.borrow_mut().get_mut(index) {
                *silent = is_silent.then(&now);
            }
            match answer {
                Ok(reply) => return Ok(reply),
                Err(error) => failures.push((broker.to_string(), error)),
            }
        }
        Err(failures)
    }

    async fn ask_one(&self, broker: &Origin, question: &Question) -> Result<Reply, AnswerFailure> {
        let question = client::Question {
            method: "GET",
            target: &question.target(),
            authority: broker.authority(),
            fields: &[("Accept", "application/json")],
            body: None,
        };
        let tls = self.tls.iter().filter(|_| broker.is_secure());
        let tls = tls
            .map(|tls| tls.borrow_mut().reload_client())
            .next()
            .transpose();
        let tls = tls.map_err(|problems| AnswerFailure::Files(one_line(&problems)))?;
        let whom = ServerTarget {
            host: broker.host(),
            port: broker.port(),
            tls: tls.as_ref(),
        };
        let answer = client::ask_server(whom, question, MAX_ANSWER, |_| true).await?;
        let status = StatusCode::from_u16(answer.code);
        let status = status.map_err(|error| AnswerFailure::Nonsense(error.to_string()))?;
        understand(status, &answer.body)
    }

    /// Returns the indices of the brokers in the order in which they are asked: brokers that lately did not
    /// answer come last.
    fn turn(&self, now: Instant) -> Vec<usize> {
        let silent = self.silent.borrow();
        let is_left_out = |index: &usize| {
            let since = silent.get(*index).copied().flatten();
            since.is_some_and(|since| now.since(since) < LEFT_OUT)
        };
        let (mut first, last): (Vec<_>, Vec<_>) =
            (0..self.origins.len()).partition(|index| !is_left_out(index));
        first.extend(last);
        first
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Bound(binding) => write!(f, "bound to {}", binding.server.name),
            Reply::Refused(after, Refusal { detail, .. }) => {
                write!(f, "refused for {after:?}: {detail}")
            }
        }
    }
}

fn understand(status: StatusCode, body: &[u8]) -> Result<Reply, AnswerFailure> {
    let nonsense = |error: serde_json::Error| AnswerFailure::Nonsense(error.to_string());
    match status {
        StatusCode::OK => Ok(Reply::Bound(
            serde_json::from_slice(body).map_err(nonsense)?,
        )),
        StatusCode::SERVICE_UNAVAILABLE => {
            let refused: Refused = serde_json::from_slice(body).map_err(nonsense)?;
            let after = Duration::from_secs(refused.retry_after_seconds);
            let refusal = Refusal {
                error: readable(&refused.error),
                detail: readable(&refused.detail),
            };
            Ok(Reply::Refused(after, refusal))
        }
        _ => {
            let error: Option<evenkeel_net::http::ErrorBody> = serde_json::from_slice(body).ok();
            let detail = error
                .map(|error| readable(&error.detail))
                .unwrap_or_default();
            Err(AnswerFailure::Rejected { status, detail })
        }
    }
}

/// Returns a text from elsewhere in a form that is fit for a log and an answer.
fn readable(text: &str) -> String {
    let shown = text.chars().take(300);
    shown
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn brokers(count: usize) -> Brokers {
        let origin = |n: usize| format!("http://b-{n}").parse().unwrap();
        Brokers::new(&EngineConfig {
            brokers: (0..count).map(origin).collect(),
            ..EngineConfig::default()
        })
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn who_did_not_answer_comes_last_for_a_while() {
        let brokers = brokers(3);
        assert_eq!(brokers.turn(at(1)), [0, 1, 2]);
        brokers.silent.borrow_mut()[0] = Some(at(1));
        assert_eq!(brokers.turn(at(2)), [1, 2, 0]);
        brokers.silent.borrow_mut()[2] = Some(at(1));
        assert_eq!(brokers.turn(at(2)), [1, 0, 2]);
        assert_eq!(brokers.turn(at(11)), [0, 1, 2]);
        assert_eq!(brokers.patience(), Duration::from_secs(6));
    }

    #[test]
    fn a_question_is_what_the_broker_understands() {
        let question = Question {
            cluster: "shop".into(),
            class: Some("gold".into()),
            response_time: Some(Duration::from_millis(200)),
            session: Some("s-1".into()),
            avoid: vec!["[::1]:80".into(), "a:80/192.0.2.1".into()],
            current: Some("b:80".into()),
        };
        let target = question.target();
        assert_eq!(
            target,
            "/.well-known/evenkeel/negotiate?cluster=shop&class=gold&response_time=200000us\
             &session=s-1&avoid=%5B%3A%3A1%5D%3A80%2Ca%3A80%2F192.0.2.1&current=b%3A80&alternatives=3"
        );
        assert_eq!(negotiation::parse_time("200000us"), question.response_time);
    }

    proptest! {
        #[test]
        fn whatever_a_broker_says_is_answered(
            status in 100u16..600,
            body in prop_oneof![
                any::<Vec<u8>>(),
                "\\{\"(cluster|error|detail)\":[0-9a-z\"{}:,]{0,40}\\}".prop_map(String::into_bytes),
            ],
        ) {
            let status = StatusCode::from_u16(status).unwrap();
            if let Err(AnswerFailure::Rejected { detail, .. }) = understand(status, &body) {
                prop_assert!(detail.chars().count() <= 300);
            }
        }
    }
}

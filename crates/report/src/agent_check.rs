//! Asks the agents of members, as HAProxy's `agent-check` does: the balancer connects, sends a
//! text if it is told to, and reads one line ([`evenkeel_wire::agent_check`]).

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use evenkeel_core::member::{MemberId, Weight};
use evenkeel_manager::config::sources::AgentCheck;
use evenkeel_manager::counts::{Origin, ReportOutcome};
use evenkeel_manager::opinion::{Source, SourceReport};
use evenkeel_wire::agent_check::{Answer, InvalidAnswer, MAX_LINE, MAX_PERCENT, State};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::poll::{self, PolledGroup, ReportLog};
use crate::source::{self, Context, SourceTargets};

/// Applies an answer to the opinion that the member's agent is taken to have.
fn apply(answer: &Answer, opinion: &mut SourceReport) {
    if let Some(up) = answer.up {
        opinion.down = !up;
    }
    if let Some(state) = answer.state {
        opinion.drain = state == State::Drain;
        opinion.maintenance = state == State::Maintenance;
    }
    if let Some(percent) = answer.percent {
        opinion.weight = Weight::new(f64::from(percent.min(MAX_PERCENT)) / 100.0).ok();
    }
    if let Some(most) = answer.max_connections {
        opinion.max_connections = NonZeroU32::new(most);
    }
    // A text explains the words that it came with.
    if answer.up.is_some() || answer.state.is_some() || answer.note.is_some() {
        opinion.note = answer.note.as_deref().map(Into::into);
    }
}

/// Reason why there is no answer of an agent that can be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentAnswerError {
    /// The agent cannot be reached.
    #[error("no connection: {0}")]
    Connect(io::Error),
    /// The connection failed.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The agent sent nothing for so long.
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    /// The answer ended too soon.
    #[error("the agent closed the connection before the end of the line")]
    Closed,
    /// The answer was too long.
    #[error("the agent's line is longer than {MAX_LINE} bytes")]
    TooLong,
    /// The answer was not in the format.
    #[error("{0}; the line is ignored")]
    Invalid(#[from] InvalidAnswer),
}

impl AgentAnswerError {
    fn fate(&self) -> ReportOutcome {
        match self {
            AgentAnswerError::Connect(_) => ReportOutcome::Unreachable,
            AgentAnswerError::Timeout(_) => ReportOutcome::TimedOut,
            AgentAnswerError::TooLong => ReportOutcome::TooLong,
            AgentAnswerError::Io(_) | AgentAnswerError::Closed | AgentAnswerError::Invalid(_) => {
                ReportOutcome::Malformed
            }
        }
    }
}

/// Address and settings that a member's task works with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    address: SocketAddr,
    check: Arc<AgentCheck>,
}

/// Agents beside members.
pub(crate) struct Agents;

impl source::Source for Agents {
    const ORIGIN: Origin = Origin("agent_check");
    type Key = MemberId;
    type Target = Target;

    fn want(group: &PolledGroup, wanted: &mut SourceTargets<MemberId, Target>) {
        let Some(check) = &group.config.sources.agent_check else {
            return;
        };
        for member in group.members() {
            let Some(address) = member.address.at_port(check.port) else {
                continue;
            };
            let target = Target {
                address,
                check: Arc::clone(check),
            };
            wanted.add_target(group, member.id, target, member.name.to_string());
        }
    }

    async fn ask(context: Context, member: MemberId, target: Target, journal: ReportLog) {
        ask_forever(context, member, target, journal).await;
    }
}

async fn ask_forever(context: Context, member: MemberId, target: Target, mut journal: ReportLog) {
    let Context { manager, permits } = context;
    let check = &target.check;
    poll::wait_to_begin(check.interval).await;
    let mut answered = Instant::now();
    loop {
        let started = Instant::now();
        let answer = {
            let _permit = permits.acquire().await;
            match timeout(check.timeout, ask(&target)).await {
                Ok(answer) => answer,
                Err(_) => Err(AgentAnswerError::Timeout(check.timeout)),
            }
        };
        let held = || manager.find_source_report(member, Source::AgentCheck);
        match answer {
            Ok(answer) => {
                answered = Instant::now();
                let mut opinion = held().unwrap_or_default();
                apply(&answer, &mut opinion);
                manager.set_opinion_of(member, Source::AgentCheck, Some(&opinion));
                journal.note_fate(ReportOutcome::Taken, None);
            }
            Err(silence) => {
                journal.note_fate(silence.fate(), Some(&silence));
                // Numbers are load, which is nothing without news. Words that take a
                // member out are not: the agent of a machine that is being worked on is
                // often the first to be stopped.
                let is_numbers =
                    |o: &SourceReport| o.weight.is_some() || o.max_connections.is_some();
                if answered.elapsed() > check.max_age
                    && let Some(mut opinion) = held().filter(is_numbers)
                {
                    opinion.weight = None;
                    opinion.max_connections = None;
                    manager.set_opinion_of(member, Source::AgentCheck, Some(&opinion));
                }
            }
        }
        poll::pause(check.interval, started).await;
    }
}

async fn ask(target: &Target) -> Result<Answer, AgentAnswerError> {
    let stream = TcpStream::connect(target.address).await;
    let mut stream = stream.map_err(AgentAnswerError::Connect)?;
    if let Some(text) = &target.check.send {
        stream.write_all(text.as_bytes()).await?;
    }
    let line = read_line(&mut stream).await?;
    Ok(Answer::parse(&line)?)
}

/// Reads the line that an agent says, without its end. Each byte is looked at once, however
/// many come at a time.
///
/// # Errors
///
/// The connection's, or there is no line of at most [`MAX_LINE`] bytes.
pub async fn read_line(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, AgentAnswerError> {
    let mut line = Vec::with_capacity(128);
    loop {
        let before = line.len();
        // One byte more than allowed, which is that of the end.
        let room = MAX_LINE + 1 - before;
        let read = (&mut *stream).take(room as u64).read_buf(&mut line).await?;
        let new = line.get(before..).unwrap_or_default();
        if let Some(end) = new.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
            line.truncate(before + end);
            return Ok(line);
        }
        if line.len() > MAX_LINE {
            return Err(AgentAnswerError::TooLong);
        }
        if read == 0 {
            return Err(AgentAnswerError::Closed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_manager::Manager;
    use evenkeel_manager::config::{Config, GroupConfig, MemberConfig};
    use evenkeel_manager::status::MemberStatus;
    use evenkeel_net::Clock;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn what_is_not_said_stays() {
        let mut opinion = SourceReport::default();
        let mut said = |line: &str| {
            let answer = Answer::parse(line.as_bytes()).unwrap();
            apply(&answer, &mut opinion);
            opinion.to_string()
        };
        assert_eq!(said("drain 50% #deploy"), "drain 50% (deploy)");
        assert_eq!(said("maxconn:7"), "drain 50% maxconn:7 (deploy)");
        assert_eq!(said("down"), "down drain 50% maxconn:7");
        assert_eq!(said("maint"), "down maint 50% maxconn:7");
        assert_eq!(said("up"), "maint 50% maxconn:7");
        assert_eq!(said("ready 100% maxconn:0"), "up 100%");
    }

    /// Returns a manager with one member, whose agent is asked at `port`.
    async fn manager(check: AgentCheck) -> Arc<Manager> {
        let manager = Manager::new(Clock::start(), Arc::new(()));
        let mut group = GroupConfig::new("g", vec![MemberConfig::new("127.0.0.1", 80)]);
        group.sources.agent_check = Some(check.into());
        let config = Config {
            groups: vec![group.into()],
            ..Config::default()
        };
        manager.apply_config(config).await.unwrap();
        manager
    }

    fn member(manager: &Manager) -> MemberStatus {
        manager.status().groups.remove(0).members.remove(0)
    }

    async fn until(manager: &Manager, what: impl Fn(&MemberStatus) -> bool) {
        let holds = async {
            while !what(&member(manager)) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let within = timeout(Duration::from_secs(30), holds).await;
        within.unwrap_or_else(|_| panic!("it does not come: {:?}", member(manager)));
    }

    #[tokio::test]
    async fn an_agent_is_asked_again_and_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let manager = manager(AgentCheck {
            interval: Duration::from_millis(10),
            // Numbers are looked at before they fade, even on a machine that has much else to
            // do.
            max_age: Duration::from_secs(3),
            timeout: Duration::from_secs(30),
            send: Some("state\n".into()),
            ..AgentCheck::new(listener.local_addr().unwrap().port())
        })
        .await;
        let following = tokio::spawn(crate::run(Arc::clone(&manager)));
        let answer = async |answer: &[u8]| {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 6];
            stream.read_exact(&mut asked).await.unwrap();
            assert_eq!(&asked, b"state\n");
            stream.write_all(answer).await.unwrap();
        };
        answer(b"drain 50% maxconn:7 #deploy\r\nup").await;
        until(&manager, |m| m.reasons == ["reported_drain"]).await;
        assert_eq!(member(&manager).max_connections, Some(7));
        assert_eq!(
            member(&manager).opinions[0].says,
            "drain 50% maxconn:7 (deploy)"
        );

        let handle = manager.handles().remove(0);
        let count = |fate| {
            handle
                .reports
                .count_of(<Agents as source::Source>::ORIGIN, fate)
        };
        for (garbage, fate) in [
            (&b"ready 200"[..], ReportOutcome::Malformed),
            (b"ready now\n", ReportOutcome::Malformed),
            (&[b'x'; 2000], ReportOutcome::TooLong),
        ] {
            let before = count(fate);
            answer(garbage).await;
            until(&manager, |_| count(fate) > before).await;
        }
        assert_eq!(member(&manager).reasons, ["reported_drain"]);
        // The numbers fade, the word stays.
        drop(listener);
        until(&manager, |m| {
            m.max_connections.is_none() && count(ReportOutcome::Unreachable) > 0
        })
        .await;
        assert_eq!(member(&manager).opinions[0].says, "drain (deploy)");

        // Who is not asked any more has nothing to say.
        let mut config = manager.file_config();
        config.groups[0].sources.agent_check = None;
        manager.apply_config(config).await.unwrap();
        assert!(member(&manager).opinions.is_empty());
        assert_eq!(member(&manager).state, "up");
        following.abort();
    }
}

//! Agent checks: an agent beside each member says, in a line of words, how much it wants.
//!
//! The protocol is that of HAProxy's `agent-check`: the balancer connects, sends a text
//! if it is told to, and reads one line, ended by CR or LF. Words are separated by
//! spaces, tabs or commas and come in any order; case does not matter. What is not said
//! stays as it was said last.
//!
//! | word | meaning |
//! |---|---|
//! | `75%` | the part of its weight that the member wants; `0%` is the same as `drain` |
//! | `maxconn:30` | the most connections that it wants at once; 0 is no limit |
//! | `ready`, `drain`, `maint` | it takes new clients; takes no new ones; takes none at all |
//! | `up` | it works, as far as the agent knows |
//! | `down`, `fail`, `stopped` | it does not |
//! | `#…` | a text for people, up to the end of the line |
//!
//! A line is taken as a whole or not at all: one with an unknown word, or with two that
//! contradict each other, changes nothing and is counted.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use evenkeel_core::member::{MemberId, Weight};
use evenkeel_core::opinion::{Opinion, Source};
use evenkeel_manager::config::AgentCheck;
use evenkeel_manager::counts::{Fate, Origin};
use evenkeel_manager::{Manager, Tasks};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::poll::{self, Followed, Journal};

/// Longest line, its end not counted, in bytes.
pub const MAX_LINE: usize = 1024;

/// Longest text for people that is kept, in characters.
const MAX_NOTE: usize = 200;

/// Largest percentage: 256 times the weight, as with HAProxy.
pub const MAX_PERCENT: u32 = 25_600;

/// What an agent says. What is `None` is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Whether the member works.
    pub up: Option<bool>,
    /// Whether it takes clients.
    pub state: Option<State>,
    /// The part of its weight that it wants, at most [`MAX_PERCENT`].
    pub percent: Option<u32>,
    /// The most connections that it wants at once; 0 is no limit.
    pub max_connections: Option<u32>,
    /// A text for people.
    pub note: Option<String>,
}

/// Which clients a member takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All.
    Ready,
    /// No new ones.
    Drain,
    /// None.
    Maintenance,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Drain => "drain",
            State::Maintenance => "maint",
        }
    }
}

/// A line that is not an answer. It changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAnswer {
    /// There is no word in it.
    #[error("the line is empty")]
    Empty,
    /// Something that is not ASCII text, or text for people that is not UTF-8.
    #[error("the line is not text")]
    NotText,
    /// A word that the protocol does not have.
    #[error("unknown word {0:?}")]
    Unknown(String),
    /// A number that is too large, or none.
    #[error("not a percentage or a number of connections: {0:?}")]
    Number(String),
    /// Two words of the same kind that do not say the same.
    #[error("{0:?} contradicts what is said before it")]
    Contradiction(String),
}

impl Answer {
    /// Parses a line, without what ends it.
    pub fn parse(line: &[u8]) -> Result<Answer, InvalidAnswer> {
        let (words, note) = match line.iter().position(|&byte| byte == b'#') {
            Some(at) => line.split_at(at),
            None => (line, &[][..]),
        };
        let text = std::str::from_utf8(words).map_err(|_| InvalidAnswer::NotText)?;
        let is_text = |byte: u8| byte == b'\t' || byte == b' ' || byte.is_ascii_graphic();
        if !text.bytes().all(is_text) {
            return Err(InvalidAnswer::NotText);
        }
        let mut answer = Answer::default();
        let words = text.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        for word in words {
            answer.take(word)?;
        }
        if answer == Answer::default() {
            return Err(InvalidAnswer::Empty);
        }
        let note = note.get(1..).unwrap_or_default();
        let note = std::str::from_utf8(note).map_err(|_| InvalidAnswer::NotText)?;
        let note = clean(note);
        answer.note = (!note.is_empty()).then_some(note);
        Ok(answer)
    }

    fn take(&mut self, word: &str) -> Result<(), InvalidAnswer> {
        let lower = word.to_ascii_lowercase();
        let agrees = match lower.as_str() {
            "up" => say(&mut self.up, true),
            "down" | "fail" | "stopped" => say(&mut self.up, false),
            "ready" => say(&mut self.state, State::Ready),
            "drain" => say(&mut self.state, State::Drain),
            "maint" => say(&mut self.state, State::Maintenance),
            other => {
                if let Some(percent) = other.strip_suffix('%') {
                    let percent = number(percent).filter(|&percent| percent <= MAX_PERCENT);
                    let percent = percent.ok_or_else(|| InvalidAnswer::Number(word.into()))?;
                    say(&mut self.percent, percent)
                } else if let Some(most) = other.strip_prefix("maxconn:") {
                    let most = number(most).ok_or_else(|| InvalidAnswer::Number(word.into()))?;
                    say(&mut self.max_connections, most)
                } else {
                    return Err(InvalidAnswer::Unknown(word.into()));
                }
            }
        };
        match agrees {
            true => Ok(()),
            false => Err(InvalidAnswer::Contradiction(word.into())),
        }
    }

    /// What the member's agent is taken to think after this answer.
    pub fn apply(&self, opinion: &mut Opinion) {
        if let Some(up) = self.up {
            opinion.down = !up;
        }
        if let Some(state) = self.state {
            opinion.drain = state == State::Drain;
            opinion.maintenance = state == State::Maintenance;
        }
        if let Some(percent) = self.percent {
            opinion.weight = Weight::new(f64::from(percent.min(MAX_PERCENT)) / 100.0).ok();
        }
        if let Some(most) = self.max_connections {
            opinion.max_connections = NonZeroU32::new(most);
        }
        // A text explains the words that it came with.
        if self.up.is_some() || self.state.is_some() || self.note.is_some() {
            opinion.note = self.note.as_deref().map(Into::into);
        }
    }
}

/// The line, without an end. What [`Answer::parse`] makes of it is the same again.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = self.up.map(|up| if up { "up" } else { "down" }.to_owned());
        let state = self.state.map(|state| state.word().to_owned());
        let percent = self.percent.map(|percent| format!("{percent}%"));
        let most = self.max_connections.map(|most| format!("maxconn:{most}"));
        let words: Vec<String> = [up, state, percent, most].into_iter().flatten().collect();
        f.write_str(&words.join(" "))?;
        match self.note.as_deref().map(clean) {
            Some(note) if !note.is_empty() => write!(f, " #{note}"),
            _ => Ok(()),
        }
    }
}

/// Keeps what is said; answers whether it agrees with what was said before.
fn say<T: PartialEq>(place: &mut Option<T>, value: T) -> bool {
    match place {
        Some(said) => *said == value,
        None => {
            *place = Some(value);
            true
        }
    }
}

/// A whole number of digits, which `parse` alone is not strict about.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// A text for people, on one line and not too long.
fn clean(note: &str) -> String {
    let shown = note.trim().chars().filter(|c| !c.is_control());
    let short: String = shown.take(MAX_NOTE).collect();
    short.trim().to_owned()
}

/// Why an agent said nothing that counts.
#[derive(Debug, thiserror::Error)]
pub enum Silence {
    /// It cannot be reached.
    #[error("no connection: {0}")]
    Connect(io::Error),
    /// The connection failed.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// Nothing came for so long.
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    /// It ended too soon.
    #[error("the connection was closed before the end of the line")]
    Closed,
    /// It said too much.
    #[error("the line is longer than {MAX_LINE} bytes")]
    TooLong,
    /// It said something else.
    #[error("{0}; the line is ignored")]
    Invalid(#[from] InvalidAnswer),
}

impl Silence {
    fn fate(&self) -> Fate {
        match self {
            Silence::Connect(_) => Fate::Unreachable,
            Silence::Timeout(_) => Fate::TimedOut,
            Silence::TooLong => Fate::TooLong,
            Silence::Io(_) | Silence::Closed | Silence::Invalid(_) => Fate::Malformed,
        }
    }
}

/// What a member's task has to do.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    address: SocketAddr,
    check: AgentCheck,
}

/// Asks the agents of all members, as long as it is polled.
pub(crate) async fn follow(manager: &Arc<Manager>) {
    let permits = poll::permits();
    let mut tasks = Tasks::default();
    let mut changes = manager.changes();
    loop {
        let mut wanted = std::collections::HashMap::new();
        let mut journals = std::collections::HashMap::new();
        for followed in Followed::all(manager) {
            let Some(check) = &followed.config.agent_check else {
                continue;
            };
            for member in followed.members() {
                let target = Target {
                    address: SocketAddr::new(member.address.ip(), check.port),
                    check: check.clone(),
                };
                wanted.insert(member.id, target);
                let whom = (Arc::clone(&followed.handle), member.name.to_string());
                journals.insert(member.id, whom);
            }
        }
        tasks.reconcile(wanted, |member, target| {
            let (manager, permits) = (Arc::clone(manager), Arc::clone(&permits));
            let journal = journals.remove(&member);
            async move {
                if let Some((handle, whom)) = journal {
                    let journal = Journal::new(handle, Origin::AgentCheck, whom);
                    ask_forever(manager, permits, member, target, journal).await;
                }
            }
        });
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn ask_forever(
    manager: Arc<Manager>,
    permits: Arc<Semaphore>,
    member: MemberId,
    target: Target,
    mut journal: Journal,
) {
    let check = &target.check;
    poll::begin(check.interval).await;
    let mut answered = Instant::now();
    loop {
        let started = Instant::now();
        let answer = {
            let _permit = permits.acquire().await;
            match timeout(check.timeout, ask(&target)).await {
                Ok(answer) => answer,
                Err(_) => Err(Silence::Timeout(check.timeout)),
            }
        };
        let held = || manager.opinion_of(member, Source::AgentCheck);
        match answer {
            Ok(answer) => {
                answered = Instant::now();
                let mut opinion = held().unwrap_or_default();
                answer.apply(&mut opinion);
                manager.set_opinion_of(member, Source::AgentCheck, Some(&opinion));
                journal.note(Fate::Taken, None);
            }
            Err(silence) => {
                journal.note(silence.fate(), Some(&silence));
                // Numbers are load, which is nothing without news. Words that take a
                // member out are not: the agent of a machine that is being worked on is
                // often the first to be stopped.
                let is_numbers = |o: &Opinion| o.weight.is_some() || o.max_connections.is_some();
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

async fn ask(target: &Target) -> Result<Answer, Silence> {
    let stream = TcpStream::connect(target.address).await;
    let mut stream = stream.map_err(Silence::Connect)?;
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
pub async fn read_line(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, Silence> {
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
            return Err(Silence::TooLong);
        }
        if read == 0 {
            return Err(Silence::Closed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_core::time::Clock;
    use evenkeel_manager::config::{Config, GroupConfig, MemberConfig};
    use evenkeel_manager::status::MemberStatus;
    use proptest::prelude::*;
    use tokio::net::TcpListener;

    use super::*;

    fn parse(line: &str) -> Result<Answer, InvalidAnswer> {
        Answer::parse(line.as_bytes())
    }

    #[test]
    fn words_in_any_order_and_case() {
        let expected = Answer {
            up: Some(false),
            state: Some(State::Drain),
            percent: Some(75),
            max_connections: Some(30),
            note: Some("disk full, 90% #2".into()),
        };
        for line in [
            "75% drain down maxconn:30 #disk full, 90% #2",
            "DOWN,maxconn:30\t,Drain, 75%# disk full, 90% #2",
            "  fail drain drain 75% 75% MAXCONN:30#disk full, 90% #2",
            "stopped\tmaxconn:030 drain 075%#disk full, 90% #2\u{7}",
        ] {
            assert_eq!(parse(line).as_ref(), Ok(&expected), "{line:?}");
        }
        assert_eq!(
            expected.to_string(),
            "down drain 75% maxconn:30 #disk full, 90% #2"
        );
    }

    #[test]
    fn what_is_ambiguous_or_garbage_is_refused_whole() {
        use InvalidAnswer::*;
        let text = |text: &str| text.to_owned();
        for (line, expected) in [
            ("", Empty),
            (" \t,", Empty),
            ("#only a note", Empty),
            ("up down", Contradiction(text("down"))),
            ("ready drain", Contradiction(text("drain"))),
            ("50% 60%", Contradiction(text("60%"))),
            ("maxconn:1 maxconn:2", Contradiction(text("maxconn:2"))),
            ("75% please", Unknown(text("please"))),
            ("75", Unknown(text("75"))),
            ("maxconn=3", Unknown(text("maxconn=3"))),
            ("%", Number(text("%"))),
            ("-1%", Number(text("-1%"))),
            ("+1%", Number(text("+1%"))),
            ("7.5%", Number(text("7.5%"))),
            ("NaN%", Number(text("NaN%"))),
            ("25601%", Number(text("25601%"))),
            (
                "99999999999999999999%",
                Number(text("99999999999999999999%")),
            ),
            ("maxconn:", Number(text("maxconn:"))),
            ("maxconn:4294967296", Number(text("maxconn:4294967296"))),
            ("up\0", NotText),
            ("üp", NotText),
        ] {
            assert_eq!(parse(line), Err(expected), "{line:?}");
        }
        assert_eq!(Answer::parse(b"up #\xff"), Err(NotText));
    }

    #[test]
    fn what_is_not_said_stays() {
        let mut opinion = Opinion::default();
        let mut said = |line: &str| {
            parse(line).unwrap().apply(&mut opinion);
            opinion.to_string()
        };
        assert_eq!(said("drain 50% #deploy"), "drain 50% (deploy)");
        assert_eq!(said("maxconn:7"), "drain 50% maxconn:7 (deploy)");
        assert_eq!(said("down"), "down drain 50% maxconn:7");
        assert_eq!(said("maint"), "down maint 50% maxconn:7");
        assert_eq!(said("up"), "maint 50% maxconn:7");
        assert_eq!(said("ready 100% maxconn:0"), "up 100%");
    }

    proptest! {
        #[test]
        fn no_line_breaks_it(line in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Answer::parse(&line);
        }

        #[test]
        fn what_is_written_is_read(
            up in any::<Option<bool>>(),
            state in proptest::option::of(prop_oneof![
                Just(State::Ready), Just(State::Drain), Just(State::Maintenance),
            ]),
            percent in proptest::option::of(0..=MAX_PERCENT),
            max_connections in any::<Option<u32>>(),
            note in proptest::option::of("[ -~]{1,20}"),
        ) {
            let note = note.map(|note| clean(&note)).filter(|note| !note.is_empty());
            let answer = Answer { up, state, percent, max_connections, note };
            prop_assume!(answer != Answer { note: answer.note.clone(), ..Answer::default() });
            prop_assert_eq!(Answer::parse(answer.to_string().as_bytes()), Ok(answer));
        }
    }

    /// A manager with one member, whose agent is asked at `port`.
    async fn manager(check: AgentCheck) -> Arc<Manager> {
        let manager = Manager::new(Clock::start(), Arc::new(()));
        let mut group = GroupConfig::new("g", vec![MemberConfig::new("127.0.0.1", 80)]);
        group.agent_check = Some(check);
        let config = Config {
            groups: vec![group],
            ..Config::default()
        };
        manager.apply(config).await.unwrap();
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
        let count = |fate| handle.reports.get(Origin::AgentCheck, fate);
        for (garbage, fate) in [
            (&b"ready 200"[..], Fate::Malformed),
            (b"ready now\n", Fate::Malformed),
            (&[b'x'; 2000], Fate::TooLong),
        ] {
            let before = count(fate);
            answer(garbage).await;
            until(&manager, |_| count(fate) > before).await;
        }
        assert_eq!(member(&manager).reasons, ["reported_drain"]);
        // The numbers fade, the word stays.
        drop(listener);
        until(&manager, |m| {
            m.max_connections.is_none() && count(Fate::Unreachable) > 0
        })
        .await;
        assert_eq!(member(&manager).opinions[0].says, "drain (deploy)");

        // Who is not asked any more has nothing to say.
        let mut config = manager.config();
        config.groups[0].agent_check = None;
        manager.apply(config).await.unwrap();
        assert!(member(&manager).opinions.is_empty());
        assert_eq!(member(&manager).state, "up");
        following.abort();
    }
}

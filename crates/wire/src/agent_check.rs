//! The line of an agent check: an agent beside each member says, in words, how much it wants.
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

/// Longest line, its end not counted, in bytes.
pub const MAX_LINE: usize = 1024;

/// Longest text for people that is kept, in characters.
const MAX_NOTE: usize = 200;

/// Largest percentage: 256 times the weight, as with HAProxy.
pub const MAX_PERCENT: u32 = 25_600;

/// Answer of an agent. A field that is `None` is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// True if the member works.
    pub up: Option<bool>,
    /// Clients that the member takes.
    pub state: Option<State>,
    /// The part of its weight that it wants, at most [`MAX_PERCENT`].
    pub percent: Option<u32>,
    /// The most connections that it wants at once; 0 is no limit.
    pub max_connections: Option<u32>,
    /// A text for people.
    pub note: Option<String>,
}

/// Clients that a member takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All clients.
    Ready,
    /// No new clients.
    Drain,
    /// No clients.
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
    #[error("the line has an unknown word: {0:?}")]
    Unknown(String),
    /// A number that is too large, or none.
    #[error("the line has {0:?}, which is neither a percentage nor a number of connections")]
    Number(String),
    /// Two words of the same kind that do not say the same.
    #[error("{0:?} contradicts an earlier word")]
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
        let note = clean_note(note);
        answer.note = (!note.is_empty()).then_some(note);
        Ok(answer)
    }

    fn take(&mut self, word: &str) -> Result<(), InvalidAnswer> {
        let lower = word.to_ascii_lowercase();
        let agrees = match lower.as_str() {
            "up" => set_once(&mut self.up, true),
            "down" | "fail" | "stopped" => set_once(&mut self.up, false),
            "ready" => set_once(&mut self.state, State::Ready),
            "drain" => set_once(&mut self.state, State::Drain),
            "maint" => set_once(&mut self.state, State::Maintenance),
            other => {
                if let Some(percent) = other.strip_suffix('%') {
                    let percent = parse_number(percent).filter(|&percent| percent <= MAX_PERCENT);
                    let percent = percent.ok_or_else(|| InvalidAnswer::Number(word.into()))?;
                    set_once(&mut self.percent, percent)
                } else if let Some(most) = other.strip_prefix("maxconn:") {
                    let most =
                        parse_number(most).ok_or_else(|| InvalidAnswer::Number(word.into()))?;
                    set_once(&mut self.max_connections, most)
                } else {
                    return Err(InvalidAnswer::Unknown(word.into()));
                }
            }
        };
        if agrees {
            Ok(())
        } else {
            Err(InvalidAnswer::Contradiction(word.into()))
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
        match self.note.as_deref().map(clean_note) {
            Some(note) if !note.is_empty() => write!(f, " #{note}"),
            _ => Ok(()),
        }
    }
}

/// Keeps what is said; answers whether it agrees with what was said before.
fn set_once<T: PartialEq>(place: &mut Option<T>, value: T) -> bool {
    match place {
        Some(said) => *said == value,
        None => {
            *place = Some(value);
            true
        }
    }
}

/// A whole number of digits, which `parse` alone is not strict about.
fn parse_number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// A text for people, on one line and not too long.
fn clean_note(note: &str) -> String {
    let shown = note.trim().chars().filter(|c| !c.is_control());
    let short: String = shown.take(MAX_NOTE).collect();
    short.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            let note = note.map(|note| clean_note(&note)).filter(|note| !note.is_empty());
            let answer = Answer { up, state, percent, max_connections, note };
            prop_assume!(answer != Answer { note: answer.note.clone(), ..Answer::default() });
            prop_assert_eq!(Answer::parse(answer.to_string().as_bytes()), Ok(answer));
        }
    }
}

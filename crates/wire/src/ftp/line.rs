//! Lines of a control connection.

use super::Refusal;

/// Longest line of a command or of a reply, its end included, in bytes.
pub const MAX_LINE: usize = 4096;

/// Room that is kept between lines, in bytes: most are shorter.
const KEPT: usize = 128;

/// Telnet (RFC 854): what begins a command of it, and its commands.
const IAC: u8 = 255;
const WILL: u8 = 251;
const DONT: u8 = 254;
const SUBNEGOTIATION: u8 = 250;
const SUBNEGOTIATION_END: u8 = 240;
const INTERRUPT: u8 = 244;

/// Result of [`Lines::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Number of bytes that were taken.
    pub used: usize,
    /// True if a line has ended.
    pub line_ended: bool,
}

/// Cuts bytes into lines.
#[derive(Debug)]
pub struct Lines {
    line: Vec<u8>,
    /// Bytes that the line has taken, with escapes: those count for its length, too.
    length: usize,
    state: State,
    /// True if commands of Telnet are taken out and control characters refused: in what clients
    /// send.
    strict: bool,
    /// True if the line has ended: its bytes are given up when the next one begins.
    ended: bool,
    interrupted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// Behind a CR, which only the end of a line may follow.
    Return,
    /// Behind IAC.
    Escape,
    /// The option of a negotiation follows.
    Option,
    Subnegotiation,
    /// Behind IAC in one.
    SubnegotiationEscape,
}

impl Lines {
    /// Returns a cutter for the lines of a client: without commands of Telnet, and only text.
    pub fn of_client() -> Self {
        Lines::new(true)
    }

    /// Returns a cutter for the lines of a server: as they are.
    pub fn of_server() -> Self {
        Lines::new(false)
    }

    fn new(strict: bool) -> Self {
        Lines {
            line: Vec::new(),
            length: 0,
            state: State::Text,
            strict,
            ended: false,
            interrupted: false,
        }
    }

    /// Bytes of memory that its line takes.
    pub fn capacity(&self) -> usize {
        self.line.capacity()
    }

    /// Takes bytes up to the end of a line.
    ///
    /// # Errors
    ///
    /// The line is too long, or has a control character. That is final.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Taken, Refusal> {
        if self.ended {
            self.ended = false;
            self.interrupted = false;
            self.length = 0;
            self.line.clear();
            self.line.shrink_to(KEPT);
        }
        for (at, &byte) in bytes.iter().enumerate() {
            self.length += 1;
            if self.strict {
                self.take_byte(byte)?;
            } else {
                match byte {
                    b'\n' => {
                        if self.line.last() == Some(&b'\r') {
                            self.line.pop();
                        }
                        self.ended = true;
                    }
                    _ => self.line.push(byte),
                }
            }
            if self.ended {
                let used = at + 1;
                return Ok(Taken {
                    used,
                    line_ended: true,
                });
            }
            if self.length >= MAX_LINE {
                return Err(Refusal::LongLine);
            }
        }
        Ok(Taken {
            used: bytes.len(),
            line_ended: false,
        })
    }

    fn take_byte(&mut self, byte: u8) -> Result<(), Refusal> {
        self.state = match (self.state, byte) {
            (State::Text, IAC) => State::Escape,
            (State::Text, b'\r') => State::Return,
            (State::Text | State::Return, b'\n') => {
                self.ended = true;
                State::Text
            }
            // What one side takes for the end of a line, and the other does not, is no command.
            (State::Return, _) | (State::Text, 0) => return Err(Refusal::Malformed),
            (State::Text, _) => {
                self.line.push(byte);
                State::Text
            }
            (State::Escape, IAC) => {
                self.line.push(IAC);
                State::Text
            }
            (State::Escape, WILL..=DONT) => State::Option,
            (State::Escape, SUBNEGOTIATION) => State::Subnegotiation,
            (State::Escape, INTERRUPT) => {
                self.interrupted = true;
                State::Text
            }
            (State::Escape | State::Option, _) => State::Text,
            (State::Subnegotiation, IAC) => State::SubnegotiationEscape,
            (State::SubnegotiationEscape, SUBNEGOTIATION_END) => State::Text,
            (State::Subnegotiation | State::SubnegotiationEscape, _) => State::Subnegotiation,
        };
        Ok(())
    }

    /// The line, without its end: whole if it has ended.
    pub fn current_line(&self) -> &[u8] {
        &self.line
    }

    /// Returns true if nothing was taken since the last line.
    pub fn is_between(&self) -> bool {
        self.ended || self.length == 0
    }

    /// Returns true if the client has sent Telnet's "interrupt process" before the line, as it does
    /// before ABOR.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted
    }
}

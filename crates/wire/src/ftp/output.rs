//! Lines that a conversation writes, to the server and to the client.

use super::step::{Refusal, Step};

/// Telnet's "interpret as command".
const IAC: u8 = 255;

/// Telnet's "interrupt process" and "data mark", the second of which is sent as urgent.
pub(super) const SYNCH: [u8; 4] = [IAC, 244, IAC, 242];

/// Output buffers for bytes that are to be sent.
#[derive(Debug, Default)]
pub struct Output {
    /// Bytes to the server.
    pub server: Vec<u8>,
    /// Bytes to the client.
    pub client: Vec<u8>,
    /// Place in `server` of a byte that is to be sent as urgent.
    pub urgent: Option<usize>,
}

/// Passes a line of the server on to the client.
pub(super) fn pass_line(line: &[u8], out: &mut Output) {
    out.client.extend_from_slice(line);
    out.client.extend_from_slice(b"\r\n");
}

/// Answers a command here.
pub(super) fn answer_command(out: &mut Output, text: &str) -> Result<Step, Refusal> {
    Ok(write_answer(out, text))
}

/// Writes an answer to the client.
pub(super) fn write_answer(out: &mut Output, text: &str) -> Step {
    out.client.extend_from_slice(text.as_bytes());
    out.client.extend_from_slice(b"\r\n");
    Step::Nothing
}

/// Writes a line to the server, as Telnet has it.
pub(super) fn write_line(line: &[u8], out: &mut Vec<u8>) {
    for &byte in line {
        out.push(byte);
        if byte == IAC {
            out.push(byte);
        }
    }
    out.extend_from_slice(b"\r\n");
}

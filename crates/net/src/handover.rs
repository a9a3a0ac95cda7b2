//! Hand-over from one process to the next: the conversation between the two, over a pair of Unix sockets.
//!
//! ```text
//! old                                   new
//!  | -- offer: clock, sockets ---------> |   it starts
//!  | <-------------------- wants state - |   its configuration is understood
//!  | -- state -------------------------> |   (the old one has let go of what only one can have)
//!  | <------------------------- ready -- |   it serves
//!  | -- over --------------------------> |   the old one does not come back
//! ```
//!
//! A message is JSON with its length in four bytes before it. Sockets follow their offer, some at a time,
//! each with a byte. The new process finds its end of the pair as its standard input, and the id of the old
//! process in the environment ([`VARIABLE`]). Instead of any other message the new process may say why it
//! cannot go on. Each process ignores what it does not know in a message of the other, which may be of
//! another version.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::inherited::{InheritedSocket, Name};

/// The variable of the environment in which the new process finds the id of the old one.
pub const VARIABLE: &str = "EVENKEEL_PREDECESSOR";

/// Sockets that are sent at a time; the system takes 253.
const AT_A_TIME: usize = 128;

/// Longest message, in bytes: that with what was learnt of a million members.
const LONGEST: usize = 1 << 30;

/// Time for which one of the two processes may not read while the other one sends.
const PATIENCE: Duration = Duration::from_secs(30);

/// Offer with which the old process begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The version of the program.
    pub program: String,
    /// The origin of its clock, in nanoseconds of the machine's: with the same origin in both,
    /// what one has noted of times is true in the other.
    pub clock: u64,
    /// Names of the sockets that follow, which say what they are for.
    pub sockets: Vec<Name>,
}

/// Message of the new process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The configuration of the new process is understood: it wants to know what the old process has learnt,
    /// and to have what only one of them can.
    WantsState,
    /// The new process serves clients.
    Ready {
        /// Version of the new process's program.
        program: String,
    },
    /// The new process cannot go on, for this reason.
    Failed(String),
}

/// Message of the old process after its offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    State(Value),
    Over,
}

/// The new process, as the old one sees it.
#[derive(Debug)]
pub struct Successor(UnixStream);

impl Successor {
    /// A pair: the other end is to be the standard input of the new process.
    ///
    /// # Errors
    ///
    /// The system gives no sockets.
    pub fn new_pair() -> io::Result<(Self, OwnedFd)> {
        let (mine, other) = UnixStream::pair()?;
        mine.set_write_timeout(Some(PATIENCE))?;
        Ok((Successor(mine), other.into()))
    }

    /// Offers sockets.
    ///
    /// # Errors
    ///
    /// The new process has ended, or does not read.
    pub fn offer_sockets(
        &self,
        program: &str,
        clock: u64,
        sockets: &[InheritedSocket],
    ) -> io::Result<()> {
        let offer = Offer {
            program: program.into(),
            clock,
            sockets: sockets.iter().map(|handed| handed.name.clone()).collect(),
        };
        send_message(&self.0, &offer)?;
        for some in sockets.chunks(AT_A_TIME) {
            let fds: Vec<BorrowedFd<'_>> = some.iter().map(|one| one.socket.as_fd()).collect();
            send_sockets(&self.0, &fds)?;
        }
        Ok(())
    }

    /// Returns the successor's next message, within `limit`.
    ///
    /// # Errors
    ///
    /// The successor has ended ([`ErrorKind::UnexpectedEof`]), or says nothing for so long
    /// ([`ErrorKind::TimedOut`]).
    pub fn next(&self, limit: Duration) -> io::Result<Word> {
        self.0
            .set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        receive_message(&self.0).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            ErrorKind::ConnectionReset => ErrorKind::UnexpectedEof.into(),
            _ => error,
        })
    }

    /// Tells the successor what this process knows.
    ///
    /// # Errors
    ///
    /// Those of [`Successor::offer_sockets`].
    pub fn send_state(&self, state: Value) -> io::Result<()> {
        send_message(&self.0, &Answer::State(state))
    }

    /// Tells the successor that this process does not come back.
    ///
    /// # Errors
    ///
    /// The successor has ended.
    pub fn announce_end(&self) -> io::Result<()> {
        send_message(&self.0, &Answer::Over)
    }
}

/// The old process, as the new one sees it.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
    /// Offer of the predecessor.
    pub offer: Offer,
}

impl Predecessor {
    /// Finds the process whose place this one takes, if there is one, with its sockets. Standard input is an
    /// empty file thereafter.
    ///
    /// # Errors
    ///
    /// The predecessor says nothing that can be understood.
    pub fn find() -> io::Result<Option<(Self, Vec<InheritedSocket>)>> {
        let Ok(wanted) = std::env::var(VARIABLE) else {
            return Ok(None);
        };
        let parent = rustix::process::getppid().map(rustix::process::Pid::as_raw_nonzero);
        // Whoever was started by that process for something else has the variable, too.
        if parent.map(|pid| pid.to_string()) != Some(wanted) {
            return Ok(None);
        }
        let end = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Self::from_socket(end).map(Some)
    }

    fn from_socket(end: OwnedFd) -> io::Result<(Self, Vec<InheritedSocket>)> {
        let stream = UnixStream::from(end);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let offer: Offer = receive_message(&stream)?;
        let mut sockets = Vec::with_capacity(offer.sockets.len());
        while sockets.len() < offer.sockets.len() {
            receive_sockets(&stream, &mut sockets)?;
        }
        let named = offer.sockets.iter().cloned().zip(sockets);
        let handed = named.map(|(name, socket)| InheritedSocket { name, socket });
        let handed = handed.collect();
        Ok((Predecessor { stream, offer }, handed))
    }

    /// Asks what the predecessor knows. The predecessor lets go of what only one of the two can have, and
    /// waits.
    ///
    /// # Errors
    ///
    /// The predecessor has ended, or says nothing that can be understood.
    pub fn request_state(&self) -> io::Result<Value> {
        self.send_handover_word(&Word::WantsState)?;
        match receive_message(&self.stream)? {
            Answer::State(state) => Ok(state),
            Answer::Over => Ok(Value::Null),
        }
    }

    /// Tells the predecessor how it goes.
    ///
    /// # Errors
    ///
    /// The predecessor has ended.
    pub fn send_handover_word(&self, word: &Word) -> io::Result<()> {
        send_message(&self.stream, word)
    }

    /// Waits until it has made up its mind not to come back, or has ended.
    pub fn wait_until_over(&self) {
        let waited = self.stream.set_read_timeout(None);
        let _ = waited.and_then(|()| receive_message::<Answer>(&self.stream));
    }
}

fn send_message(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(|_| ErrorKind::InvalidInput)?;
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(&text)
}

fn receive_message<T: DeserializeOwned>(mut stream: &UnixStream) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST {
        return Err(ErrorKind::InvalidData.into());
    }
    // Grows as it comes, whatever the length says.
    let mut text = Vec::new();
    stream.take(length as u64).read_to_end(&mut text)?;
    if text.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&text)?)
}

fn send_sockets(stream: &UnixStream, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_A_TIME))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(b"s")],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    match sent {
        1 => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}

fn receive_sockets(stream: &UnixStream, into: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_A_TIME))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let before = into.len();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            into.extend(fds);
        }
    }
    // Whoever may have no more files gets a part of them, or none.
    match received.bytes == 1 && into.len() > before {
        true => Ok(()),
        false => Err(io::Error::other(
            "this process did not receive all sockets (is LimitNOFILE= too low?)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    fn listeners(count: usize) -> (Vec<InheritedSocket>, Vec<SocketAddr>) {
        let one = |index: usize| {
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = socket.local_addr().unwrap();
            let name = format!("tcp {index}").into();
            let socket = socket.into();
            (InheritedSocket { name, socket }, at)
        };
        (0..count).map(one).unzip()
    }

    #[test]
    fn sockets_state_and_words_arrive() {
        let (old, end) = Successor::new_pair().unwrap();
        // More than fit into one message of the system.
        let (sockets, addresses) = listeners(300);
        let new = std::thread::spawn(move || {
            let (old, handed) = Predecessor::from_socket(end).unwrap();
            assert_eq!((&*old.offer.program, old.offer.clock), ("1.0", 77));
            let at = |handed: &InheritedSocket| {
                TcpListener::from(handed.socket.try_clone().unwrap())
                    .local_addr()
                    .unwrap()
            };
            assert_eq!(handed.iter().map(at).collect::<Vec<_>>(), addresses);
            assert_eq!(handed[299].name.text, "tcp 299");
            let state = old.request_state().unwrap();
            let program = "2.0".to_owned();
            old.send_handover_word(&Word::Ready { program }).unwrap();
            old.wait_until_over();
            state
        });
        old.offer_sockets("1.0", 77, &sockets).unwrap();
        let limit = Duration::from_secs(30);
        assert_eq!(old.next(limit).unwrap(), Word::WantsState);
        let state = serde_json::json!({"large": "x".repeat(1 << 20)});
        old.send_state(state.clone()).unwrap();
        let program = "2.0".to_owned();
        assert_eq!(old.next(limit).unwrap(), Word::Ready { program });
        old.announce_end().unwrap();
        assert_eq!(new.join().unwrap(), state);
        let end = old.next(limit).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn silence_and_an_early_end_are_told_apart() {
        let (old, end) = Successor::new_pair().unwrap();
        let silent = old.next(Duration::from_millis(1)).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
        let mut end = UnixStream::from(end);
        // What is not understood is an error, and nothing is read that is not there.
        end.write_all(&[0, 0, 0, 2, b'{', b'}']).unwrap();
        let odd = old.next(Duration::from_secs(30)).unwrap_err();
        assert_eq!(odd.kind(), ErrorKind::InvalidData);
        end.write_all(&[0xff; 8]).unwrap();
        assert!(old.next(Duration::from_secs(30)).is_err());
        drop(end);
    }
}

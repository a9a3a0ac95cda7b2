//! Calls of operations of our own objects, and how they end.

use evenkeel_giop::cdr::{Endian, Reader, Writer};
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::ior::Ior;
use evenkeel_giop::message::{Message, Request, Version};
use tokio::task::JoinHandle;

/// A call of an operation of one of our own objects.
#[derive(Clone, Debug)]
pub struct Call {
    /// Name of the operation.
    pub operation: String,
    /// The arguments.
    pub body: Vec<u8>,
    /// Position of the arguments in their message, in bytes, for alignment.
    pub before: usize,
    /// Positions in the message where fragments begin, as far as they matter ([`Message::joints`]).
    pub joints: Vec<usize>,
    /// The byte order of arguments and results.
    pub endian: Endian,
    /// The version of the message.
    pub version: Version,
}

impl Call {
    /// Takes the call of a request that has come in `message`.
    pub fn new(request: &Request<'_>, message: &Message<'_>) -> Self {
        Call {
            operation: request.operation.into(),
            body: request.body.into(),
            before: request.body_at,
            joints: message.joints.into(),
            endian: message.header.endian,
            version: message.header.version,
        }
    }

    /// A call from within this process, with the arguments that `write` writes.
    pub fn new_local(operation: &str, write: impl FnOnce(&mut Writer)) -> Self {
        let mut arguments = Writer::new(Endian::NATIVE);
        write(&mut arguments);
        Call {
            operation: operation.into(),
            body: arguments.into_bytes(),
            before: 0,
            joints: Vec::new(),
            endian: Endian::NATIVE,
            version: Version::V1_2,
        }
    }

    /// Reads the arguments.
    pub fn arguments(&self) -> Reader<'_> {
        Reader::at_offset(self.before, &self.body, self.endian)
            .of_minor(self.version.minor())
            .of_fragments(&self.joints)
    }

    /// Writes what [`Outcome::Reply`] and [`Outcome::User`] hold.
    pub fn results_writer(&self) -> Writer {
        Writer::new(self.endian).of_minor(self.version.minor())
    }
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With these results, written from the start of an alignment in the call's byte order.
    Reply(Vec<u8>),
    /// With an exception that the operation's interface declares, written likewise.
    User(Vec<u8>),
    /// With one that any operation can raise.
    System(SystemException),
    /// The client is to call this object instead.
    Forward(Ior),
}

/// The outcome of a call for which there is no room.
pub(crate) fn full() -> Outcome {
    Outcome::System(SystemException::new(Kind::Transient))
}

/// The outcome of a call that is being carried out.
pub(crate) async fn finished(running: JoinHandle<Outcome>) -> Outcome {
    // If there is none, it has panicked, or the process ends.
    let outcome = running.await;
    outcome.unwrap_or_else(|_| Outcome::System(SystemException::new(Kind::Internal)))
}

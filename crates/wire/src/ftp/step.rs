//! Steps of a conversation: what its caller does next, and reasons to refuse a line or to end the conversation.

/// Party that opens a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The client.
    Passive,
    /// The server.
    Active,
}

/// A data connection that is to be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Mode that says who will connect to us.
    pub mode: Mode,
    /// The port that we connect to then: the server's, or the client's.
    pub port: u16,
}

/// Progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// The command of the transfer, which is that of the last line, was passed on.
    Begun,
    /// The server has said how it ended.
    Ended(u16),
}

/// Next action of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is to be done but to send.
    Nothing,
    /// Somebody listens, and so have we to: then call [`Conversation::announce_listener`](super::Conversation::announce_listener).
    Open(Opening),
    /// The data connection that was prepared is not wanted any more.
    Close,
    /// Transfer to be noted.
    Transfer(Transfer),
    /// Refusal to be counted: what came was refused with a reply, and the session goes on.
    Refused(Refusal),
    /// TLS begins when all is sent: then call [`Conversation::mark_secured`](super::Conversation::mark_secured).
    Secure,
    /// Bytes are to be carried without being understood, when all is sent.
    Tunnel,
}

/// Reason why a conversation is ended, or a command or reply refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A line of the client does not end.
    #[error("the client's line is too long")]
    LongLine,
    /// A line of the client has control characters, or is no command.
    #[error("the client's line is not a command")]
    Malformed,
    /// The client names an address that is not its own, or a port of another service.
    #[error("data connections go to the client's own address and ports from 1024 on only")]
    Bounce,
    /// The server has sent what is no reply, or not one to what it was asked.
    #[error("the server's reply is not understood")]
    Reply,
}

//! FTP as a proxy between client and server understands it: RFC 959, 1123, 2228, 2428 and 4217.
//!
//! [`Lines`] cuts bytes into lines, without the escapes of Telnet. A [`Conversation`] takes commands
//! of the client and replies of the server line by line, writes what is to be passed on, and says
//! what is to be done with sockets ([`Step`]). It passes on no address of a data connection: each is
//! replaced by one that its caller listens at.

mod address;
mod command;
mod conversation;
mod line;
mod output;
mod pending;
mod reply;
mod step;
#[cfg(test)]
mod tests;

pub use address::{read_eprt, read_epsv_reply, read_pasv_reply, read_port};
pub use command::{Command, Verb};
pub use conversation::{Auth, Conversation, Settings};
pub use line::{Lines, MAX_LINE, Taken};
pub use output::Output;
pub use reply::{Part, Replies};
pub use step::{Mode, Opening, Refusal, Step, Transfer};

//! A small GIOP client: calls of the load balancer itself, to monitors, alerts, factories and
//! custom strategies.
//!
//! A [`Client`] is cheap to clone and works on any tokio runtime. It keeps one connection per
//! address and version, on which any number of calls are under way at a time; one that is not
//! used is closed.

mod body;
mod connection;
mod settings;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_limits::Shortage;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::cdr::{CdrError, Endian, Writer};
use crate::context::{CodeSetChoice, CodeSets, ISO_8859_1, UCS_2, UTF_8, UTF_16};
use crate::exception::{Completion, SystemException};
use crate::ior::{IiopProfile, Ior, TAG_INTERNET_IOP};
use crate::message::{GiopError, ReplyStatus, Target, Version};
pub use body::Body;
use connection::{Connection, Failure, Outgoing};
pub use settings::Settings;

/// A call to be made.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The object.
    pub target: &'a Ior,
    /// The operation.
    pub operation: &'a str,
    /// Arguments of the operation, in this machine's byte order, written from the start of an
    /// alignment.
    pub arguments: Vec<u8>,
    /// Time when the caller gives up; then the server gets a CancelRequest.
    pub deadline: Instant,
    /// True if the client follows forwards; if not, a forward is [`CallError::Forward`].
    pub follow: bool,
}

impl<'a> Call<'a> {
    /// A call without arguments that follows forwards.
    pub fn new(target: &'a Ior, operation: &'a str, deadline: Instant) -> Self {
        Call {
            target,
            operation,
            arguments: Vec::new(),
            deadline,
            follow: true,
        }
    }

    /// Adds the arguments that `write` writes.
    pub fn with_arguments(mut self, write: impl FnOnce(&mut Writer)) -> Self {
        let mut writer = Writer::new(Endian::NATIVE);
        write(&mut writer);
        self.arguments = writer.into_bytes();
        self
    }

    /// Makes the call not follow forwards.
    pub fn do_not_follow(mut self) -> Self {
        self.follow = false;
        self
    }
}

/// Reason why a call has no results.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The object raised a system exception.
    #[error("{0}")]
    System(SystemException),
    /// The object raised an exception of its interface.
    #[error("the object raised {}", id.escape_debug())]
    User {
        /// Repository id.
        id: String,
        /// The exception: its id, as a string, and its members.
        body: Body,
    },
    /// The object is elsewhere, and the call does not follow.
    #[error("the object is elsewhere")]
    Forward(Box<Ior>),
    /// More forwards than a call follows.
    #[error("the object was forwarded {0} times and is still elsewhere")]
    TooManyForwards(usize),
    /// The reference has no profile of IIOP.
    #[error("the reference has no address of IIOP 1.0 to 1.2")]
    NoAddress,
    /// No address of the reference can be connected to.
    #[error("cannot connect to {}: {error}", address.escape_debug())]
    Unreachable {
        /// The last address that was tried.
        address: String,
        /// Error at that address.
        error: String,
        /// True if all addresses refused the connection: nobody listens there.
        refused: bool,
    },
    /// A resource of this process, or machine, has run out. The error says nothing about the
    /// object.
    #[error("cannot call {}: {shortage}", address.escape_debug())]
    Exhausted {
        /// Address to which the call was to go.
        address: String,
        /// Resource that has run out.
        shortage: Shortage,
        /// True if the call may have been carried out: the resource ran out while the call was
        /// under way.
        sent: bool,
    },
    /// The connection broke; the call may have been carried out.
    #[error("lost the connection to {}: {error}", address.escape_debug())]
    Lost {
        /// Address of the connection.
        address: String,
        /// Error of the connection.
        error: String,
    },
    /// The deadline has passed; the call may have been carried out.
    #[error("no answer in time")]
    Timeout,
    /// The answer cannot be read.
    #[error("the answer is not valid: {0}")]
    NotValid(#[from] GiopError),
    /// The server says that the call cannot be read.
    #[error("{} answered MessageError", .0.escape_debug())]
    MessageError(String),
}

impl From<CdrError> for CallError {
    fn from(error: CdrError) -> Self {
        CallError::NotValid(error.into())
    }
}

impl CallError {
    /// Returns whether the operation was carried out: after `No` it may be called again.
    pub fn completion_status(&self) -> Completion {
        match self {
            CallError::System(exception) => exception.completed,
            CallError::User { .. } => Completion::Yes,
            CallError::Forward(_)
            | CallError::TooManyForwards(_)
            | CallError::NoAddress
            | CallError::Unreachable { .. }
            | CallError::Exhausted { sent: false, .. }
            | CallError::MessageError(_) => Completion::No,
            CallError::Exhausted { sent: true, .. }
            | CallError::Lost { .. }
            | CallError::Timeout
            | CallError::NotValid(_) => Completion::Maybe,
        }
    }
}

/// Address for calls: host, port, and the version of GIOP that is spoken there.
type Address = (String, u16, Version);

/// The connection to an address, or a place for it. Who connects holds the lock, so that the
/// others wait for that connection instead of making more.
type Place = Arc<tokio::sync::Mutex<Option<Arc<Connection>>>>;

/// Above so many addresses those without a connection are forgotten.
const MANY_ADDRESSES: usize = 256;

/// Calls objects.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    /// Limit of messages, as in `settings`, with its present value.
    max_message: AtomicUsize,
    places: Mutex<HashMap<Address, Place>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client")
            .field(&self.shared.settings)
            .finish()
    }
}

/// A way to the target of a call.
struct Way {
    address: Address,
    key: Vec<u8>,
    /// Code sets to send as CodeSets context in the first request of a connection.
    code_sets: Option<CodeSets>,
    /// Number of the profile in the reference.
    selected: usize,
}

/// Result of one attempt.
enum Attempt {
    Done(Body),
    Forward(Ior),
    /// The server wants the target to be said in another way.
    Readdress(u16),
}

impl Client {
    /// A client without connections.
    pub fn new(settings: Settings) -> Self {
        Client {
            shared: Arc::new(Shared {
                max_message: AtomicUsize::new(settings.max_message),
                settings,
                places: Mutex::default(),
            }),
        }
    }

    /// Sets the limit of replies in bytes from now on. Calls under way end as they have begun.
    pub fn set_max_message(&self, max_message: usize) {
        let before = self.shared.max_message.swap(max_message, Relaxed);
        if before != max_message {
            // What is connected has the old limit: it closes when its calls are over.
            let places = self.shared.places.lock();
            places.unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Calls and waits for the results.
    pub async fn call(&self, call: &Call<'_>) -> Result<Body, CallError> {
        let answer = timeout_at(call.deadline, self.follow(call, true)).await;
        answer.unwrap_or(Err(CallError::Timeout))?.ok_or_else(|| {
            let what = "reply to a call";
            CdrError::Short {
                what,
                at: 0,
                wanted: 1,
            }
            .into()
        })
    }

    /// Calls without waiting for a reply: the operation is a `oneway`. It is handed to the
    /// transport; whether it arrives nobody knows, and forwards are not seen.
    pub async fn call_oneway(&self, call: &Call<'_>) -> Result<(), CallError> {
        let sent = timeout_at(call.deadline, self.follow(call, false)).await;
        sent.unwrap_or(Err(CallError::Timeout)).map(|_| ())
    }

    /// Calls the target, and where it is forwarded to. None for a oneway.
    async fn follow(&self, call: &Call<'_>, reply: bool) -> Result<Option<Body>, CallError> {
        let mut forwarded = None;
        for _ in 0..=self.shared.settings.max_forwards {
            let target = forwarded.as_ref().unwrap_or(call.target);
            match self.try_ways(call, target, reply).await? {
                None => return Ok(None),
                Some(Attempt::Done(body)) => return Ok(Some(body)),
                Some(Attempt::Forward(to)) if !call.follow => {
                    return Err(CallError::Forward(Box::new(to)));
                }
                Some(Attempt::Forward(to)) => forwarded = Some(to),
                Some(Attempt::Readdress(_)) => return Err(not_understood()),
            }
        }
        Err(CallError::TooManyForwards(
            self.shared.settings.max_forwards,
        ))
    }

    /// Tries the addresses of `target` until one can be connected to.
    async fn try_ways(
        &self,
        call: &Call<'_>,
        target: &Ior,
        reply: bool,
    ) -> Result<Option<Attempt>, CallError> {
        let mut failed = CallError::NoAddress;
        let mut all_refused = true;
        let mut exhausted = None;
        for way in ways(target) {
            let mut outgoing = Outgoing {
                operation: call.operation,
                target: Target::Key(&way.key),
                arguments: &call.arguments,
                code_sets: way.code_sets,
                reply,
            };
            let mut result = self.try_way(&way, &outgoing).await;
            if let Ok(Some(Attempt::Readdress(mode))) = result {
                outgoing.target = match (mode, target.profiles.get(way.selected)) {
                    (1, Some(profile)) => Target::Profile {
                        tag: profile.tag,
                        data: &profile.data,
                    },
                    (2, _) => Target::Reference {
                        selected: way.selected as u32,
                        ior: target.clone(),
                    },
                    _ => return Err(not_understood()),
                };
                result = self.try_way(&way, &outgoing).await;
            }
            match result {
                Err(CallError::Unreachable {
                    address,
                    error,
                    refused,
                }) => {
                    all_refused &= refused;
                    failed = CallError::Unreachable {
                        address,
                        error,
                        refused: all_refused,
                    };
                }
                // The next address may be another machine's, and its ports not used up; but
                // with one that could not be tried nobody knows whether the object is there.
                Err(error @ CallError::Exhausted { sent: false, .. }) => {
                    exhausted.get_or_insert(error);
                }
                result => return result,
            }
        }
        Err(exhausted.unwrap_or(failed))
    }

    /// Tries one address. A connection that the server closes just then costs another
    /// attempt, on a new one.
    async fn try_way(
        &self,
        way: &Way,
        outgoing: &Outgoing<'_>,
    ) -> Result<Option<Attempt>, CallError> {
        let name = || format!("{}:{}", way.address.0, way.address.1);
        let mut failed = String::from("the server closes each new connection");
        for _ in 0..3 {
            let connection = self.connection(&way.address).await?;
            match connection.exchange_request(outgoing).await {
                Ok(None) => return Ok(None),
                Ok(Some(body)) => return judge(body).map(Some),
                Err(Failure::NotSent(error)) => failed = error,
                Err(Failure::Lost(error)) => {
                    let address = name();
                    return Err(CallError::Lost { address, error });
                }
                Err(Failure::Exhausted(shortage)) => {
                    return Err(CallError::Exhausted {
                        address: name(),
                        shortage,
                        sent: true,
                    });
                }
                Err(Failure::MessageError) => return Err(CallError::MessageError(name())),
                Err(Failure::NotValid(error)) => return Err(error.into()),
            }
        }
        Err(CallError::Unreachable {
            address: name(),
            error: failed,
            refused: false,
        })
    }

    /// The open connection to `address`, or a new one.
    async fn connection(&self, address: &Address) -> Result<Arc<Connection>, CallError> {
        let place = self.place(address);
        let mut place = place.lock().await;
        if let Some(connection) = &*place
            && !connection.is_closed()
        {
            return Ok(Arc::clone(connection));
        }
        let (host, port, version) = address;
        let deadline = Instant::now() + self.shared.settings.connect_timeout;
        let connecting = TcpStream::connect((host.as_str(), *port));
        let connected = match timeout_at(deadline, connecting).await {
            Ok(Ok(stream)) => stream.set_nodelay(true).map(|()| stream),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        };
        let stream = connected.map_err(|error| not_connected(format!("{host}:{port}"), &error))?;
        let settings = Settings {
            max_message: self.shared.max_message.load(Relaxed),
            ..self.shared.settings.clone()
        };
        let connection = Connection::start(stream, *version, &settings);
        *place = Some(Arc::clone(&connection));
        Ok(connection)
    }

    fn place(&self, address: &Address) -> Place {
        let places = self.shared.places.lock();
        let mut places = places.unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = places.get(address) {
            return Arc::clone(place);
        }
        if places.len() >= MANY_ADDRESSES {
            // A place that cannot be locked is one where somebody connects.
            places.retain(|_, place| {
                place.try_lock().map_or(true, |place| {
                    place.as_ref().is_some_and(|open| !open.is_closed())
                })
            });
        }
        Arc::clone(places.entry(address.clone()).or_default())
    }
}

/// Makes the error for an `address` to which no connection was made.
fn not_connected(address: String, error: &std::io::Error) -> CallError {
    match Shortage::of_error(error) {
        Some(shortage) => {
            shortage.report_failure("connect to an object (CORBA)");
            CallError::Exhausted {
                address,
                shortage,
                sent: false,
            }
        }
        None => CallError::Unreachable {
            address,
            error: error.to_string(),
            refused: error.kind() == std::io::ErrorKind::ConnectionRefused,
        },
    }
}

fn not_understood() -> CallError {
    CallError::NotValid(GiopError::NotInVersion {
        what: "addressing mode that the server asks for",
        version: Version::V1_2,
    })
}

/// All ways to `target`, best first. What cannot be read is passed over.
fn ways(target: &Ior) -> Vec<Way> {
    let mut ways = Vec::new();
    for (selected, profile) in target.profiles.iter().enumerate() {
        let profile = match profile.tag {
            TAG_INTERNET_IOP => IiopProfile::decode(&profile.data).ok().flatten(),
            _ => None,
        };
        let Some(profile) = profile else { continue };
        let version = Version::for_minor(profile.minor);
        ways.extend(profile.list_addresses().map(|(host, port)| Way {
            address: (host, port, version),
            key: profile.object_key.clone(),
            code_sets: code_sets(&profile, version),
            selected,
        }));
    }
    ways
}

/// The code sets to settle on with a server. Strings are sent in UTF-8; with a server that
/// says that it has only ISO 8859-1, all is well as long as they are ASCII.
fn code_sets(profile: &IiopProfile, version: Version) -> Option<CodeSets> {
    if version < Version::V1_1 {
        return None;
    }
    let info = profile.code_sets()?;
    let has =
        |choice: &CodeSetChoice, set| choice.native == set || choice.conversion.contains(&set);
    Some(CodeSets {
        chars: match has(&info.chars, ISO_8859_1) && !has(&info.chars, UTF_8) {
            true => ISO_8859_1,
            false => UTF_8,
        },
        wchars: match has(&info.wchars, UCS_2) && !has(&info.wchars, UTF_16) {
            true => UCS_2,
            false => UTF_16,
        },
    })
}

/// Turns a reply into the result of an attempt, or into an error.
fn judge((status, body): (ReplyStatus, Body)) -> Result<Attempt, CallError> {
    let mut reader = body.reader();
    match status {
        ReplyStatus::NoException => Ok(Attempt::Done(body)),
        ReplyStatus::UserException => {
            let id = reader.read_string("exception")?.into_owned();
            Err(CallError::User { id, body })
        }
        ReplyStatus::SystemException => Err(CallError::System(SystemException::read(&mut reader)?)),
        ReplyStatus::LocationForward | ReplyStatus::LocationForwardPerm => {
            Ok(Attempt::Forward(Ior::read(&mut reader)?))
        }
        ReplyStatus::NeedsAddressingMode => Ok(Attempt::Readdress(reader.read_u16()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address for which no connection can be made here is not one that refused.
    #[test]
    fn s5_what_runs_out_here_is_told_from_an_object_that_is_not_there() {
        let failed = |code| {
            let error = std::io::Error::from_raw_os_error(code);
            not_connected("h:1".into(), &error)
        };
        // EMFILE, EADDRNOTAVAIL and ENOBUFS on Linux; the last one is ECONNREFUSED.
        for code in [24, 99, 105] {
            let error = failed(code);
            assert!(
                matches!(error, CallError::Exhausted { sent: false, .. }),
                "{error}"
            );
            assert_eq!(error.completion_status(), Completion::No);
        }
        assert!(matches!(
            failed(111),
            CallError::Unreachable { refused: true, .. }
        ));
    }

    #[test]
    fn errors_break_no_line_s14() {
        let lines = || "evil\nline\u{1b}[31m".to_owned();
        let body = Body {
            message: Vec::new(),
            at: 0,
            endian: Endian::Big,
            version: Version::V1_2,
        };
        for error in [
            CallError::User { id: lines(), body },
            CallError::MessageError(lines()),
            CallError::Unreachable {
                address: lines(),
                error: "no".into(),
                refused: false,
            },
            CallError::Lost {
                address: lines(),
                error: "no".into(),
            },
        ] {
            let shown = error.to_string();
            assert!(!shown.contains(char::is_control), "{shown:?}");
        }
    }
}

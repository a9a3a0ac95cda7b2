//! A connection of the client, with the calls that are under way on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_limits::Shortage;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::body::Body;
use super::settings::Settings;
use crate::cdr::Endian;
use crate::context::{CODE_SETS, CodeSets, Contexts, ServiceContext};
use crate::fragment::Assembler;
use crate::message::{Content, GiopError, Header, Message, ReplyStatus, Request, Target, Version};

/// Most messages that wait to be written.
const QUEUE: usize = 64;
/// Most replies that lack fragments at a time.
const MOST_OPEN: usize = 64;
/// Most bytes that are read, or written, at once.
const CHUNK: usize = 64 << 10;

/// A request to be sent.
pub(super) struct Outgoing<'a> {
    pub(super) operation: &'a str,
    pub(super) target: Target<'a>,
    pub(super) arguments: &'a [u8],
    pub(super) code_sets: Option<CodeSets>,
    /// True if the client expects a reply.
    pub(super) reply: bool,
}

/// Reason why there is no reply.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The server has certainly not carried out the request, so it may be sent again.
    NotSent(String),
    /// The server may have carried out the request.
    Lost(String),
    /// The connection broke for want of a resource here. The server may have carried out the
    /// request.
    Exhausted(Shortage),
    /// The server could not read the request.
    MessageError,
    /// The request cannot be sent, or the reply cannot be read.
    NotValid(GiopError),
}

impl Failure {
    /// Makes the failure of a connection that broke with `error`.
    fn of(error: &std::io::Error) -> Self {
        match Shortage::of_error(error) {
            Some(shortage) => {
                shortage.report_failure("talk to an object (CORBA)");
                Failure::Exhausted(shortage)
            }
            None => Failure::Lost(error.to_string()),
        }
    }
}

type Answer = Result<(ReplyStatus, Body), Failure>;

/// A call that waits for its reply.
struct Waiting {
    answer: oneshot::Sender<Answer>,
    /// True if the request has been, or is being, written.
    written: bool,
}

#[derive(Default)]
struct Calls {
    waiting: HashMap<u32, Waiting>,
    next_id: u32,
    closed: bool,
}

/// A message to be written, and the request that it is, if somebody waits for the reply.
type Queued = (Option<u32>, Vec<u8>);

pub(super) struct Connection {
    version: Version,
    calls: Mutex<Calls>,
    /// Room for calls.
    room: Semaphore,
    queue: mpsc::Sender<Queued>,
    /// The code sets that were settled, once they are.
    settled: tokio::sync::Mutex<Option<CodeSets>>,
}

impl Connection {
    /// Starts the task that serves the connection.
    pub(super) fn start(stream: TcpStream, version: Version, settings: &Settings) -> Arc<Self> {
        let (queue, queued) = mpsc::channel(QUEUE);
        let connection = Arc::new(Connection {
            version,
            calls: Mutex::default(),
            room: Semaphore::new(settings.max_pending.min(Semaphore::MAX_PERMITS)),
            queue,
            settled: tokio::sync::Mutex::default(),
        });
        let task = Arc::clone(&connection);
        let (max_message, idle_timeout) = (settings.max_message, settings.idle_timeout);
        tokio::spawn(async move { task.run(stream, queued, max_message, idle_timeout).await });
        connection
    }

    pub(super) fn is_closed(&self) -> bool {
        self.calls().closed
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for the reply, if there is to be one.
    pub(super) async fn exchange_request(
        &self,
        outgoing: &Outgoing<'_>,
    ) -> Result<Option<(ReplyStatus, Body)>, Failure> {
        let Ok(_room) = self.room.acquire().await else {
            return Err(Failure::NotSent("the connection is closed".into()));
        };
        let (answer, answered) = oneshot::channel();
        let under_way = UnderWay {
            connection: self,
            id: self.register(answer)?,
            reply: outgoing.reply,
        };
        self.send(outgoing, under_way.id).await?;
        if !outgoing.reply {
            return Ok(None);
        }
        match answered.await {
            Ok(answer) => answer.map(Some),
            Err(_) => Err(Failure::Lost("the connection's task has ended".into())),
        }
    }

    fn register(&self, answer: oneshot::Sender<Answer>) -> Result<u32, Failure> {
        let mut calls = self.calls();
        if calls.closed {
            return Err(Failure::NotSent("the connection is closed".into()));
        }
        // The room is far smaller than the numbers, so this ends.
        while calls.waiting.contains_key(&calls.next_id) {
            calls.next_id = calls.next_id.wrapping_add(1);
        }
        let id = calls.next_id;
        calls.next_id = id.wrapping_add(1);
        let waiting = Waiting {
            answer,
            written: false,
        };
        calls.waiting.insert(id, waiting);
        Ok(id)
    }

    async fn send(&self, outgoing: &Outgoing<'_>, id: u32) -> Result<(), Failure> {
        // The first request that settles the code sets has to be sent before any other one
        // that counts on them.
        let mut settling = None;
        if outgoing.code_sets.is_some() {
            let settled = self.settled.lock().await;
            settling = settled.is_none().then_some(settled);
        }
        let data = match (&settling, outgoing.code_sets) {
            (Some(_), Some(sets)) => sets.encode(Endian::NATIVE),
            _ => Vec::new(),
        };
        let context = [ServiceContext {
            id: CODE_SETS,
            data: &data,
        }];
        let contexts = match data.is_empty() {
            true => Contexts::NONE,
            false => Contexts::from_list(&context),
        };
        let request = Request {
            response_flags: if outgoing.reply { 3 } else { 0 },
            contexts,
            body: outgoing.arguments,
            ..Request::new(id, outgoing.target.clone(), outgoing.operation)
        };
        let mut bytes = Vec::new();
        let encoded = request.encode(self.version, Endian::NATIVE, &mut bytes);
        encoded.map_err(Failure::NotValid)?;
        let queued = self.queue.send((outgoing.reply.then_some(id), bytes)).await;
        queued.map_err(|_| Failure::NotSent("the connection is closed".into()))?;
        if let Some(mut settling) = settling {
            *settling = outgoing.code_sets;
        }
        Ok(())
    }

    async fn run(
        &self,
        mut stream: TcpStream,
        mut queued: mpsc::Receiver<Queued>,
        max_message: usize,
        idle_timeout: Duration,
    ) {
        let (read, write) = stream.split();
        let end = tokio::select! {
            end = self.read(read, max_message, idle_timeout) => end,
            end = self.write(write, &mut queued) => end,
        };
        let mut calls = self.calls();
        calls.closed = true;
        for (_, waiting) in calls.waiting.drain() {
            let failure = match &end {
                Failure::Lost(error) if !waiting.written => Failure::NotSent(error.clone()),
                end => end.clone(),
            };
            let _ = waiting.answer.send(Err(failure));
        }
    }

    /// Writes what is queued; ends when the connection is broken.
    async fn write(&self, mut to: WriteHalf<'_>, queued: &mut mpsc::Receiver<Queued>) -> Failure {
        let mut buffer = Vec::new();
        loop {
            let mut next = queued.recv().await;
            while let Some((id, message)) = next.take() {
                if self.is_wanted(id) {
                    buffer.extend_from_slice(&message);
                }
                if buffer.len() < CHUNK {
                    next = queued.try_recv().ok();
                }
            }
            if let Err(error) = to.write_all(&buffer).await {
                return Failure::of(&error);
            }
            buffer.clear();
            buffer.shrink_to(CHUNK);
        }
    }

    /// Returns true if a message is still to be written. If so, the message counts as written from
    /// now on.
    fn is_wanted(&self, id: Option<u32>) -> bool {
        let Some(id) = id else {
            return true;
        };
        let mut calls = self.calls();
        let waiting = calls.waiting.get_mut(&id);
        waiting.map(|waiting| waiting.written = true).is_some()
    }

    /// Reads replies; ends when the connection does.
    async fn read(
        &self,
        mut from: ReadHalf<'_>,
        max_message: usize,
        idle_timeout: Duration,
    ) -> Failure {
        let mut buffer = Vec::new();
        let mut assembler = Assembler::new(max_message, MOST_OPEN);
        loop {
            buffer.reserve(4096);
            match timeout(idle_timeout, from.read_buf(&mut buffer)).await {
                Ok(Ok(0)) => return Failure::Lost("the server has closed the connection".into()),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Failure::of(&error),
                Err(_) => {
                    // From here on nobody begins a call on this connection.
                    let mut calls = self.calls();
                    if calls.waiting.is_empty() {
                        calls.closed = true;
                        return Failure::NotSent("the connection was idle for too long".into());
                    }
                }
            }
            let mut handled = 0;
            loop {
                let rest = buffer.get(handled..).unwrap_or_default();
                let header = match Header::peek(rest, max_message) {
                    Ok(Some(header)) if header.total() <= rest.len() => header,
                    Ok(_) => break,
                    Err(error) => return Failure::NotValid(error),
                };
                let bytes = rest.get(..header.total()).unwrap_or_default();
                handled += bytes.len();
                let joined = match assembler.add_message(Message::new(header, bytes)) {
                    Ok(joined) => joined,
                    Err(error) => return Failure::NotValid(error),
                };
                if let Some(message) = joined
                    && let Err(end) = self.message(message)
                {
                    return end;
                }
            }
            buffer.drain(..handled);
            if buffer.is_empty() {
                buffer.shrink_to(CHUNK);
            }
        }
    }

    fn message(&self, message: Message<'_>) -> Result<(), Failure> {
        match message.read_content().map_err(Failure::NotValid)? {
            Content::Reply(reply) => {
                // Nobody waits for the reply to a call that was given up.
                if let Some(waiting) = self.calls().waiting.remove(&reply.request_id) {
                    let body = Body {
                        message: message.bytes.to_vec(),
                        at: reply.body_at,
                        endian: message.header.endian,
                        version: message.header.version,
                    };
                    let _ = waiting.answer.send(Ok((reply.status, body)));
                }
                Ok(())
            }
            Content::CloseConnection => {
                Err(Failure::NotSent("the server closes the connection".into()))
            }
            Content::MessageError => Err(Failure::MessageError),
            _ => Err(Failure::NotValid(GiopError::Type(
                message.header.kind as u8,
            ))),
        }
    }
}

/// A call that is under way: if it ends without its reply, the server is told.
struct UnderWay<'a> {
    connection: &'a Connection,
    id: u32,
    reply: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let waiting = self.connection.calls().waiting.remove(&self.id);
        if !self.reply || !waiting.is_some_and(|waiting| waiting.written) {
            return;
        }
        let cancel = Content::CancelRequest {
            request_id: self.id,
        };
        let mut bytes = Vec::new();
        let encoded = cancel.encode(self.connection.version, Endian::NATIVE, &mut bytes);
        if encoded.is_ok() {
            // It is only advice: where there is no room for it, it is left out.
            let _ = self.connection.queue.try_send((None, bytes));
        }
    }
}

//! Sessions of FTP: login, files in passive mode, goodbye.

use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, ready};

use evenkeel_wire::ftp::{Lines, Replies, read_epsv_reply, read_pasv_reply};

use crate::context::{Context, Failure};
use crate::socket::{Socket, Stream};
use crate::stats::Kind;

/// Bytes of a reply at most, all its lines together.
const MAX_REPLY: usize = 16 * 1024;

/// A session that has logged in.
pub(crate) struct Session {
    control: Stream,
    /// Bytes that have come after the last line that was read.
    input: Vec<u8>,
    lines: Lines,
    replies: Replies,
    client: usize,
}

impl Session {
    /// Connects and logs in.
    pub(crate) async fn log_in(context: &Rc<Context>, client: usize) -> Result<Self, Failure> {
        let control = context.connect(&context.first, client).await?;
        let mut session = Session {
            control,
            input: Vec::new(),
            lines: Lines::of_server(),
            replies: Replies::default(),
            client,
        };
        let (user, password) = match &context.plan.url.login {
            Some((user, password)) => (user.as_str(), password.as_str()),
            None => ("anonymous", "evenkeel-load@"),
        };
        let no = |what: &str, line: &str| {
            let why = format!("{what}: the server says {:?}", line.trim());
            Failure::new(Kind::Rejected, &why)
        };
        let broken = |kind| Failure::new(kind, &"no reply of FTP");
        let (code, line) = session.read(context).await.map_err(broken)?;
        if code != 220 {
            return Err(no("no greeting", &line));
        }
        let user = format!("USER {user}");
        let (mut code, mut line) = session.command(context, &user).await.map_err(broken)?;
        if code == 331 {
            let password = format!("PASS {password}");
            (code, line) = session.command(context, &password).await.map_err(broken)?;
        }
        if code != 230 {
            return Err(no("no login", &line));
        }
        let (code, line) = session.command(context, "TYPE I").await.map_err(broken)?;
        if code != 200 {
            return Err(no("TYPE I", &line));
        }
        context.recorder.borrow_mut().count(|c| c.sessions += 1);
        Ok(session)
    }

    /// Reads a file.
    pub(crate) async fn retrieve(
        &mut self,
        context: &Rc<Context>,
        path: &str,
    ) -> Result<(u16, u64), Kind> {
        let (code, line) = self.command(context, "EPSV").await?;
        let port = match code {
            229 => port(&line, read_epsv_reply).ok_or(Kind::Malformed)?,
            500..=599 => match self.command(context, "PASV").await? {
                (227, line) => port(&line, read_pasv_reply).ok_or(Kind::Malformed)?,
                _ => return Err(Kind::Rejected),
            },
            _ => return Err(Kind::Rejected),
        };
        let to = SocketAddr::new(context.first.address.ip(), port);
        let from = context.from(self.client);
        let data = Socket::connect(&context.runtime, to, from).await;
        let mut data = Stream::Plain(data.map_err(|_| Kind::Connect)?);
        let path = path.strip_prefix('/').unwrap_or(path);
        let (code, _) = self.command(context, &format!("RETR {path}")).await?;
        match code {
            125 | 150 => {}
            // As a status of HTTP is: the server has answered, with a no.
            400..=599 => return Ok((code, 0)),
            _ => return Err(Kind::Malformed),
        }
        let mut bytes = 0u64;
        std::future::poll_fn(|_| {
            context.runtime.with_scratch(|buffer| {
                loop {
                    match ready!(data.poll_receive(buffer)) {
                        Ok(0) => return Poll::Ready(Ok(())),
                        Ok(count) => bytes = bytes.saturating_add(count as u64),
                        Err(_) => return Poll::Ready(Err(Kind::HalfBody)),
                    }
                }
            })
        })
        .await?;
        drop(data);
        match self.read(context).await? {
            (226 | 250, _) => Ok((226, bytes)),
            (400..=599, _) => Err(Kind::HalfBody),
            _ => Err(Kind::Malformed),
        }
    }

    /// Says goodbye.
    pub(crate) async fn quit(mut self, context: &Rc<Context>) {
        // What is answered does not matter any more.
        let _ = self.command(context, "QUIT").await;
    }

    async fn command(
        &mut self,
        context: &Rc<Context>,
        command: &str,
    ) -> Result<(u16, String), Kind> {
        let line = format!("{command}\r\n");
        let sent = self.control.send(line.as_bytes()).await;
        sent.map_err(|_| Kind::Closed)?;
        self.read(context).await
    }

    /// A whole reply: its code, and its last line.
    async fn read(&mut self, context: &Rc<Context>) -> Result<(u16, String), Kind> {
        let mut length = 0usize;
        std::future::poll_fn(|_| {
            context.runtime.with_scratch(|buffer| {
                loop {
                    while !self.input.is_empty() {
                        let taken = self.lines.take(&self.input).map_err(|_| Kind::Malformed)?;
                        self.input.drain(..taken.used.min(self.input.len()));
                        length = length.saturating_add(taken.used);
                        if taken.line_ended {
                            let line = self.lines.current_line();
                            if let Some(part) = self.replies.take(line)
                                && part.last
                            {
                                let line = String::from_utf8_lossy(line).into_owned();
                                return Poll::Ready(Ok((part.code, line)));
                            }
                        }
                        if length > MAX_REPLY {
                            return Poll::Ready(Err(Kind::HeadTooLong));
                        }
                    }
                    match ready!(self.control.poll_receive(buffer)) {
                        Ok(0) | Err(_) => return Poll::Ready(Err(Kind::Closed)),
                        Ok(count) => {
                            let bytes = buffer.get(..count).unwrap_or_default();
                            self.input.extend_from_slice(bytes);
                        }
                    }
                }
            })
        })
        .await
    }
}

/// The port in the last line of a reply. An address in it is not used: data comes from where the
/// control connection leads.
fn port(line: &str, read: impl Fn(&[u8]) -> Option<u16>) -> Option<u16> {
    let text = line.as_bytes().get(4..)?;
    read(text).filter(|&port| port > 0)
}

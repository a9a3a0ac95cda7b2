//! The client: one question on one connection, with a bound on its answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_tls::client::Client;
use evenkeel_tls::listener::Connection;
use evenkeel_wire::response::{BodyProgress, Reader};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// Bytes for which a client has room that waits for more of an endless answer: thousands of clients may wait.
const WAIT_BYTES: usize = 512;

/// Server to ask.
#[derive(Clone, Copy, Debug)]
pub struct ServerTarget<'a> {
    /// Name, or IP address without brackets.
    pub host: &'a str,
    /// Port of the server.
    pub port: u16,
    /// TLS client, which says whom to trust, if the server is to be asked with TLS.
    pub tls: Option<&'a Arc<Client>>,
}

/// A question. Nothing in it may hold line ends: whoever makes it has checked that.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The method.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// The `Host` field.
    pub authority: &'a str,
    /// Names and values of other fields, but for those that frame the message.
    pub fields: &'a [(&'a str, &'a str)],
    /// The body, if there is one.
    pub body: Option<&'a [u8]>,
}

/// Most bytes of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of the head.
    pub head: usize,
    /// Most bytes of the body.
    pub body: usize,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status code of the answer, 101 to 599.
    pub code: u16,
    /// Value of `Content-Type`; empty if there is none.
    pub media_type: Box<str>,
    /// Value of the first `Set-Cookie`; empty if there is none.
    pub cookie: Box<str>,
    /// Seconds in `Retry-After`, if the server names them.
    pub retry_after: Option<u32>,
    /// Body of the answer, without framing.
    pub body: Vec<u8>,
}

impl Answer {
    fn new(code: u16, response: &Reader, body: Vec<u8>) -> Self {
        Answer {
            code,
            media_type: response.media_type().into(),
            cookie: response.first_cookie().into(),
            retry_after: response.retry_after(),
            body,
        }
    }
}

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The server cannot be reached.
    #[error("no connection: {0}")]
    Connect(io::Error),
    /// TLS failed: there is no agreement on it.
    #[error("no connection with TLS: {0}")]
    Tls(String),
    /// The connection failed.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The connection ended too soon.
    #[error("the connection was closed before the answer was complete")]
    Closed,
    /// The answer is of another protocol, or no message.
    #[error("the answer is not HTTP/1.x")]
    Garbage,
    /// The answer is longer than the limit.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

impl Question<'_> {
    /// The question as it is sent. `closes` says that it is the last one on its connection.
    pub(super) fn to_bytes(self, closes: bool) -> Vec<u8> {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\n",
            self.method, self.target, self.authority
        );
        if closes {
            head.push_str("Connection: close\r\n");
        }
        for (name, value) in self.fields {
            head.extend([name, ": ", value, "\r\n"]);
        }
        if let Some(body) = self.body {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(self.body.unwrap_or_default());
        bytes
    }
}

impl ServerTarget<'_> {
    async fn connect(self) -> Result<Connection, AskError> {
        let stream = TcpStream::connect((self.host, self.port)).await;
        let stream = stream.map_err(AskError::Connect)?;
        // All is written at once; the option only spares its last segment a wait.
        let _ = stream.set_nodelay(true);
        let Some(client) = self.tls else {
            return Ok(Connection::Plain(stream));
        };
        let connected = client.connect(stream, self.host, &["http/1.1"]).await;
        let (stream, _) = connected.map_err(|failure| AskError::Tls(failure.to_string()))?;
        Ok(Connection::Tls(stream))
    }
}

/// Asks a server, and reads the answer. The body of an answer whose code `is_read` does not want is left out.
///
/// # Errors
///
/// There is no answer, or none within the limits.
pub async fn ask_server(
    whom: ServerTarget<'_>,
    question: Question<'_>,
    limits: Limits,
    is_read: impl Fn(u16) -> bool,
) -> Result<Answer, AskError> {
    let mut stream = whom.connect().await?;
    let bytes = question.to_bytes(true);
    let (answer, _) = ask_on_connection(&mut stream, &bytes, limits, is_read).await?;
    Ok(answer)
}

/// Sends a question on a connection, and reads the answer. Says whether the connection may carry another
/// question.
pub(super) async fn ask_on_connection(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    question: &[u8],
    limits: Limits,
    is_read: impl Fn(u16) -> bool,
) -> Result<(Answer, bool), AskError> {
    // Who answers without reading all of the question may have closed already.
    let mut unsent = stream.write_all(question).await.err();
    let mut bytes = Vec::with_capacity(READ_BYTES);
    let mut response = Reader::new();
    let most = limits.head.saturating_add(limits.body);
    let code = loop {
        bytes.clear();
        let read = stream.read_buf(&mut bytes).await;
        let read = read.map_err(|error| unsent.take().unwrap_or(error))?;
        let room = most.saturating_add(1).saturating_sub(response.len());
        let taken = bytes.get(..room).unwrap_or(&bytes);
        response.push(taken).map_err(|_| AskError::Garbage)?;
        if response.status_code().is_none() && response.len() > limits.head {
            return Err(AskError::TooLong(limits.head));
        }
        if response.len() > most {
            return Err(AskError::TooLong(limits.body));
        }
        match (response.status_code(), response.body_progress()) {
            (None, _) if read == 0 => return Err(AskError::Closed),
            (None, _) => {}
            (Some(code), _) if !is_read(code) => {
                let is_kept = unsent.is_none() && response.is_kept();
                return Ok((Answer::new(code, &response, Vec::new()), is_kept));
            }
            (Some(code), BodyProgress::Whole) => break code,
            (Some(_), BodyProgress::Garbage) => return Err(AskError::Garbage),
            (Some(_), BodyProgress::Part) if read > 0 => {}
            (Some(code), BodyProgress::Part) if response.is_until_close() => break code,
            (Some(_), BodyProgress::Part) => return Err(AskError::Closed),
        }
    };
    let body = response.take_body();
    if body.len() > limits.body {
        return Err(AskError::TooLong(limits.body));
    }
    let is_kept = unsent.is_none() && response.is_kept();
    Ok((Answer::new(code, &response, body), is_kept))
}

/// Asks for an answer that does not end, and hands its body over as it comes, for as long as `take` wants
/// more. An answer that is not good (200) is read whole instead. The answer has failed when nothing comes for
/// the time `silence`.
///
/// # Errors
///
/// There is no answer, or it breaks.
pub async fn follow_answer(
    whom: ServerTarget<'_>,
    question: Question<'_>,
    limits: Limits,
    silence: Duration,
    mut take: impl FnMut(&[u8]) -> bool,
) -> Result<Option<Answer>, AskError> {
    let silent = |_| AskError::Io(io::ErrorKind::TimedOut.into());
    // A handshake takes much room, and thousands of clients may wait afterwards.
    let connecting = Box::pin(whom.connect());
    let mut stream = timeout(silence, connecting).await.map_err(silent)??;
    let sent = timeout(silence, stream.write_all(&question.to_bytes(true))).await;
    sent.map_err(silent)??;
    let mut bytes = Vec::with_capacity(READ_BYTES);
    let mut response = Reader::new();
    loop {
        bytes.clear();
        let read = timeout(silence, stream.read_buf(&mut bytes)).await;
        let read = read.map_err(silent)??;
        response.push(&bytes).map_err(|_| AskError::Garbage)?;
        let has_more = read == bytes.capacity();
        if has_more != (bytes.capacity() >= READ_BYTES) {
            bytes = Vec::with_capacity(if has_more { READ_BYTES } else { WAIT_BYTES });
        }
        match (response.status_code(), response.body_progress()) {
            (_, BodyProgress::Garbage) => return Err(AskError::Garbage),
            (None, _) if response.len() > limits.head => {
                return Err(AskError::TooLong(limits.head));
            }
            (None, _) if read == 0 => return Err(AskError::Closed),
            (None, _) => {}
            (Some(200), seen) => {
                let is_over = read == 0 || seen == BodyProgress::Whole;
                if !take(&response.take_body()) || is_over {
                    return Ok(None);
                }
            }
            (Some(code), seen) => {
                if response.len() > limits.head.saturating_add(limits.body) {
                    return Err(AskError::TooLong(limits.body));
                }
                if read == 0 || seen == BodyProgress::Whole {
                    let body = response.take_body();
                    return Ok(Some(Answer::new(code, &response, body)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Whoever listens there.
    fn at(address: std::net::SocketAddr) -> ServerTarget<'static> {
        ServerTarget {
            host: "127.0.0.1",
            port: address.port(),
            tls: None,
        }
    }

    #[tokio::test]
    async fn an_endless_answer_is_handed_over_as_it_comes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let question = Question {
            method: "GET",
            target: "/",
            authority: "h:1",
            fields: &[],
            body: None,
        };
        let limits = Limits { head: 100, body: 5 };
        let ask = async |answer: &'static [u8], most: usize| {
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(answer).await.unwrap();
            };
            let mut seen = Vec::new();
            let followed = follow_answer(
                at(address),
                question,
                limits,
                Duration::from_secs(60),
                |bytes| {
                    seen.extend_from_slice(bytes);
                    seen.len() < most
                },
            );
            let (followed, ()) = tokio::join!(followed, serve);
            (followed, seen)
        };
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let endless = format!("{head}3\r\nabc\r\n4\r\ndefg\r\n").leak().as_bytes();
        let (followed, seen) = ask(endless, 7).await;
        assert_eq!(
            (followed.unwrap().is_none(), &*seen),
            (true, &b"abcdefg"[..])
        );
        let (followed, seen) = ask(endless, 100).await;
        assert_eq!(
            (followed.unwrap().is_none(), &*seen),
            (true, &b"abcdefg"[..])
        );
        let refused = b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno";
        let answer = ask(refused, 100).await.0.unwrap().unwrap();
        assert_eq!((answer.code, &*answer.body), (503, &b"no"[..]));
        let (followed, _) = ask(b"SSH-2.0\r\n\r\n", 100).await;
        assert!(matches!(followed, Err(AskError::Garbage)), "{followed:?}");
    }

    /// Asks a question with a body; returns the result that `answer` leads to, and the question itself.
    async fn exchange(answer: &[u8]) -> (Result<Answer, AskError>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let question = Question {
            method: "PUT",
            target: "/a?b=c",
            authority: "h:1",
            fields: &[("Accept", "*/*")],
            body: Some(b"{}"),
        };
        let limits = Limits { head: 100, body: 5 };
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"{}") {
                assert!(stream.read_buf(&mut asked).await.unwrap() > 0);
            }
            // Whoever asks may have seen enough and be gone.
            let _ = stream.write_all(answer).await;
            String::from_utf8(asked).unwrap()
        };
        tokio::join!(
            ask_server(at(address), question, limits, |code| code < 500),
            serve
        )
    }

    #[tokio::test]
    async fn a_question_has_one_answer() {
        let (answer, asked) =
            exchange(b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 404 No\r\n\r\nno").await;
        let answer = answer.unwrap();
        assert_eq!((answer.code, &answer.body[..]), (404, &b"no"[..]));
        assert_eq!(
            asked,
            "PUT /a?b=c HTTP/1.1\r\nHost: h:1\r\nConnection: close\r\nAccept: */*\r\n\
             Content-Length: 2\r\n\r\n{}"
        );
        let (answer, _) = exchange(b"HTTP/1.1 503 No\r\n\r\nsecret").await;
        assert!(answer.unwrap().body.is_empty());
    }

    #[tokio::test]
    async fn what_is_no_answer_is_told_apart() {
        let error = async |answer: &[u8]| exchange(answer).await.0.unwrap_err();
        assert!(matches!(error(b"SSH-2.0\r\n").await, AskError::Garbage));
        assert!(matches!(error(b"HTTP/1.1 200").await, AskError::Closed));
        let short = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nno";
        assert!(matches!(error(short).await, AskError::Closed));
        let long = b"HTTP/1.1 200 OK\r\n\r\n123456";
        assert!(matches!(error(long).await, AskError::TooLong(5)));
        let head = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(100));
        assert!(matches!(
            error(head.as_bytes()).await,
            AskError::TooLong(100)
        ));
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = closed.local_addr().unwrap();
        drop(closed);
        let question = Question {
            method: "GET",
            target: "/",
            authority: "h",
            fields: &[],
            body: None,
        };
        let limits = Limits { head: 1, body: 1 };
        let refused = ask_server(at(address), question, limits, |_| true).await;
        assert!(matches!(refused, Err(AskError::Connect(_))));
    }
}

//! The client where the same program is asked over and over: connections stay open between questions.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use evenkeel_core::time::Instant;
use socket2::SockRef;
use tokio::net::TcpStream;

use super::client::{Answer, AskError, Limits, Question, ask_on_connection};

/// Time for which an idle connection is kept. Most servers keep theirs for longer.
const KEPT_FOR: Duration = Duration::from_secs(4);

/// Most idle connections to one program.
const MOST_IDLE: usize = 16;

/// Open connections of one thread to programs that wait for the next question. Each connection has a permit `P`, such
/// as the right to an open file.
#[derive(Debug)]
pub struct IdleConnections<P>(RefCell<Vec<Idle<P>>>);

#[derive(Debug)]
struct Idle<P> {
    program: u64,
    stream: TcpStream,
    permit: P,
    expires: Instant,
}

impl<P> Default for IdleConnections<P> {
    fn default() -> Self {
        IdleConnections(RefCell::default())
    }
}

impl<P> IdleConnections<P> {
    /// Closes those that have been idle for too long, or that the program has closed.
    pub fn close_expired(&self, now: Instant) {
        let is_left = |idle: &Idle<P>| now < idle.expires && is_silent(&idle.stream);
        self.0.borrow_mut().retain(is_left);
    }

    /// Closes all.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Number of idle connections.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The connection to a program that was used last and is still open.
    fn take(&self, program: u64, now: Instant) -> Option<(TcpStream, P)> {
        let mut all = self.0.borrow_mut();
        while let Some(at) = all.iter().rposition(|idle| idle.program == program) {
            let idle = all.remove(at);
            if now < idle.expires && is_silent(&idle.stream) {
                return Some((idle.stream, idle.permit));
            }
        }
        None
    }

    fn give_back(&self, program: u64, (stream, permit): (TcpStream, P), now: Instant) {
        let mut all = self.0.borrow_mut();
        if all.iter().filter(|idle| idle.program == program).count() < MOST_IDLE {
            all.push(Idle {
                program,
                stream,
                permit,
                expires: now.after(KEPT_FOR),
            });
        }
    }

    /// Asks a program, which is known by a number, on an idle connection or on a new one to `host` and
    /// `port`. A new connection needs a permit. If an idle connection breaks before its answer is here, the
    /// program has closed it, and is asked once more on a new connection.
    ///
    /// # Errors
    ///
    /// There is no answer, or none within the limits; `permit` gives none.
    pub async fn ask_program(
        &self,
        (program, host, port): (u64, &str, u16),
        question: Question<'_>,
        limits: Limits,
        now: impl Fn() -> Instant,
        permit: impl FnOnce() -> Option<P>,
    ) -> Result<Answer, AskError> {
        let bytes = question.to_bytes(false);
        if let Some(mut idle) = self.take(program, now()) {
            match ask_on_connection(&mut idle.0, &bytes, limits, |_| true).await {
                Err(AskError::Io(_) | AskError::Closed) => {}
                answered => return self.keep_connection(program, idle, answered, now()),
            }
        }
        let permit = permit().ok_or_else(|| {
            let error = io::Error::other("the balancer may open no more connections");
            AskError::Connect(error)
        })?;
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(AskError::Connect)?;
        // All is written at once; the option only spares its last segment a wait.
        let _ = stream.set_nodelay(true);
        let mut opened = (stream, permit);
        let answered = ask_on_connection(&mut opened.0, &bytes, limits, |_| true).await;
        self.keep_connection(program, opened, answered, now())
    }

    fn keep_connection(
        &self,
        program: u64,
        connection: (TcpStream, P),
        answered: Result<(Answer, bool), AskError>,
        now: Instant,
    ) -> Result<Answer, AskError> {
        let (answer, is_kept) = answered?;
        if is_kept {
            self.give_back(program, connection, now);
        }
        Ok(answer)
    }
}

/// True if the peer has sent nothing and not closed the connection. The socket itself is asked, as the runtime may not
/// know yet.
fn is_silent(stream: &TcpStream) -> bool {
    let mut byte = [std::mem::MaybeUninit::uninit()];
    let peeked = SockRef::from(stream).peek(&mut byte);
    matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const LIMITS: Limits = Limits { head: 200, body: 8 };

    const QUESTION: Question<'_> = Question {
        method: "POST",
        target: "/",
        authority: "h",
        fields: &[],
        body: Some(b"{}"),
    };

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Asks whoever listens at `address` at a moment, with permits that are counted.
    async fn ask(
        idle: &IdleConnections<()>,
        address: SocketAddr,
        ms: u64,
        opened: &Cell<u32>,
    ) -> Result<Answer, AskError> {
        let permit = || {
            opened.set(opened.get() + 1);
            Some(())
        };
        let whom = (7, "127.0.0.1", address.port());
        idle.ask_program(whom, QUESTION, LIMITS, || at(ms), permit)
            .await
    }

    /// Reads a question.
    async fn read(stream: &mut TcpStream) -> Vec<u8> {
        let mut asked = Vec::new();
        while !asked.ends_with(b"{}") {
            assert!(stream.read_buf(&mut asked).await.unwrap() > 0);
        }
        asked
    }

    const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    #[tokio::test]
    async fn connections_are_used_again_while_they_are_good() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (idle, opened) = (IdleConnections::default(), Cell::new(0));
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let first = read(&mut stream).await;
            let first = String::from_utf8(first).unwrap();
            assert_eq!(
                first,
                "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
            );
            stream.write_all(GOOD).await.unwrap();
            read(&mut stream).await;
            // Nobody has asked for the rest.
            stream.write_all(GOOD).await.unwrap();
            stream.write_all(b"more").await.unwrap();
            let (mut other, _) = listener.accept().await.unwrap();
            read(&mut other).await;
            other.write_all(GOOD).await.unwrap();
            (stream, other)
        };
        let asks = async {
            for _ in 0..2 {
                let answer = ask(&idle, address, 1, &opened).await.unwrap();
                assert_eq!((answer.code, &*answer.body), (200, &b"ok"[..]));
            }
            // The rest may come a moment later than the answer.
            while idle.0.borrow().iter().any(|idle| is_silent(&idle.stream)) {
                tokio::task::yield_now().await;
            }
            assert_eq!(opened.get(), 1);
            ask(&idle, address, 1, &opened).await.unwrap();
            assert_eq!((opened.get(), idle.len()), (2, 1));
            idle.close_expired(at(1).after(KEPT_FOR));
            assert!(idle.is_empty());
        };
        let _open = tokio::join!(serve, asks).0;
    }

    #[tokio::test]
    async fn a_program_that_has_closed_its_connection_is_asked_on_a_new_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (idle, opened) = (IdleConnections::default(), Cell::new(0));
        let serve = async {
            // The second question comes before the program closes.
            let (mut stream, _) = listener.accept().await.unwrap();
            read(&mut stream).await;
            stream.write_all(GOOD).await.unwrap();
            read(&mut stream).await;
            drop(stream);
            let (mut stream, _) = listener.accept().await.unwrap();
            read(&mut stream).await;
            stream.write_all(GOOD).await.unwrap();
            // And here before the third.
            drop(stream);
            let (mut stream, _) = listener.accept().await.unwrap();
            read(&mut stream).await;
            stream.write_all(GOOD).await.unwrap();
            read(&mut stream).await;
            // On a new connection it has had its chance.
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789")
                .await
                .unwrap();
            stream
        };
        let asks = async {
            for opens in [1, 2, 3] {
                let answer = ask(&idle, address, 1, &opened).await.unwrap();
                assert_eq!((&*answer.body, opened.get()), (&b"ok"[..], opens));
                if opens == 2 {
                    while idle.0.borrow().iter().any(|idle| is_silent(&idle.stream)) {
                        tokio::task::yield_now().await;
                    }
                }
            }
            let error = ask(&idle, address, 1, &opened).await.unwrap_err();
            assert!(matches!(error, AskError::TooLong(8)), "{error}");
            assert!(idle.is_empty());
        };
        let _open = tokio::join!(serve, asks).0;
    }

    #[tokio::test]
    async fn without_a_permit_nobody_is_asked() {
        let idle = IdleConnections::<()>::default();
        let asked = idle.ask_program((1, "127.0.0.1", 1), QUESTION, LIMITS, || at(1), || None);
        assert!(matches!(asked.await, Err(AskError::Connect(_))));
    }
}

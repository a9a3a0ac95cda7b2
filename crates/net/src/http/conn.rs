//! Connections of the server, limited in number and in time.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_limits::{Shortage, warn_throttled};
use evenkeel_tls::listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Time for which bytes are taken of a peer that still sends when the connection has ended on
/// this side. Bytes have no limit: a client that has begun an upload reads the answer only
/// after some megabytes, as many as the system's buffers take.
const LINGER: Duration = Duration::from_secs(2);

/// Time from the first byte of a request to its last; on a new connection, from its start.
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// Time between two tries to accept when the system has nothing left for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that are taken from the queue of a listener that is closed: as many as the
/// queue of the runtime's listeners has.
const MOST_WAITING: usize = 1024;

/// A listener with limits on the number of its connections and on how long they may wait.
#[derive(Debug)]
pub struct BoundedListener {
    /// Listener; `None` when it is closed.
    listener: Option<TcpListener>,
    /// Name of the listener's owner, for the log.
    name: &'static str,
    tls: Arc<listener::Listener>,
    room: Arc<Semaphore>,
    patience: Duration,
    seats: Arc<Seats>,
    /// Accepted, but there is no room yet. More than one only after the listener is closed.
    waiting: VecDeque<(TcpStream, SocketAddr)>,
}

impl BoundedListener {
    /// A listener of whoever `name` is. At most `connections` live at once: when there is
    /// another one, that makes way which has been without a complete request for longest;
    /// if all have one, it waits.
    ///
    /// A connection ends when a request takes longer than ten seconds to arrive, and when
    /// `patience` has passed since the last byte of an answer without another answer.
    pub fn new(
        listener: TcpListener,
        name: &'static str,
        connections: usize,
        patience: Duration,
    ) -> Self {
        BoundedListener {
            listener: Some(listener),
            name,
            tls: Arc::default(),
            room: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            patience,
            seats: Arc::default(),
            waiting: VecDeque::new(),
        }
    }

    /// Has the listener's connections speak what `tls` says when they begin. A handshake is limited in time
    /// as `tls` says, and the time of the first request begins after the handshake.
    pub fn with_tls(self, tls: Arc<listener::Listener>) -> Self {
        BoundedListener { tls, ..self }
    }

    /// Returns the address of the listener; an error when it is closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let closed = || io::Error::from(io::ErrorKind::NotConnected);
        self.listener.as_ref().ok_or_else(closed)?.local_addr()
    }

    /// Gives the address up. Clients that have connected already are still accepted.
    pub fn close(&mut self) {
        let Some(Ok(listener)) = self.listener.take().map(TcpListener::into_std) else {
            return;
        };
        // Closing a listener resets what is in its queue, though the client believes to be
        // connected. The queue is read directly: the runtime may not know yet of those who
        // came a moment ago. Who keeps coming must not keep it open.
        for _ in 0..MOST_WAITING {
            let (stream, peer) = match listener.accept() {
                Ok(next) => next,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if Shortage::of_error(&error).is_some() => return,
                // One client less.
                Err(_) => continue,
            };
            let stream = stream
                .set_nonblocking(true)
                .and_then(|()| TcpStream::from_std(stream));
            self.waiting
                .extend(stream.ok().map(|stream| (stream, peer)));
        }
    }

    /// The next connection, when there is room for it; `None` when the listener is closed
    /// and all have been accepted. Nothing is lost if the future is dropped before it is
    /// ready.
    pub async fn accept_connection(&mut self) -> Option<(Connection, SocketAddr)> {
        loop {
            if self.waiting.is_empty() {
                let listener = self.listener.as_ref()?;
                let next = accept_any(listener, self.name, &self.seats).await;
                self.waiting.extend(next);
            }
            if !self.waiting.is_empty() && self.room.available_permits() == 0 {
                self.seats.evict_silent();
            }
            // The semaphore is never closed, so an error cannot happen; waiting for the
            // next turn would be right all the same.
            if let Ok(permit) = Arc::clone(&self.room).acquire_owned().await
                && let Some((stream, peer)) = self.waiting.pop_front()
            {
                // Answers are written in one piece; the option only spares the last
                // segment a wait, and without it all works, too.
                let _ = stream.set_nodelay(true);
                let seats = Arc::clone(&self.seats);
                let stream = self.tls.accept_socket(stream);
                let connection = Connection::new(stream, permit, self.patience, seats);
                return Some((connection, peer));
            }
        }
    }
}

/// The next connection; `None` after a pause, if there is none to be had.
async fn accept_any(
    listener: &TcpListener,
    name: &'static str,
    seats: &Seats,
) -> Option<(TcpStream, SocketAddr)> {
    let error = match listener.accept().await {
        Ok(accepted) => return Some(accepted),
        Err(error) => error,
    };
    match Shortage::of_error(&error) {
        Some(shortage) => {
            shortage.report_failure(&format!("accept a connection ({name})"));
            // A silent connection holds a file that a new one needs.
            seats.evict_silent();
        }
        None => {
            warn_throttled!(%error, "{name}: cannot accept a connection; next try in {PAUSE:?}")
        }
    }
    // Trying again at once would only cost CPU time.
    tokio::time::sleep(PAUSE).await;
    None
}

/// The connections of a listener that have no complete request, by age.
#[derive(Debug, Default)]
struct Seats(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    silent: BTreeMap<u64, Arc<Seat>>,
}

#[derive(Debug, Default)]
struct Seat(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Key of the connection among the silent ones; `None` while a request is being answered.
    place: Option<u64>,
    evicted: bool,
    /// True if a request has become complete that is not answered yet, if that is news.
    begun: bool,
    waker: Option<Waker>,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection that has been silent for longest, if there is one.
    fn evict_silent(&self) {
        let oldest = self.lock().silent.pop_first();
        if let Some((_, seat)) = oldest {
            let mut state = seat.lock();
            state.evicted = true;
            wake(&mut state);
        }
    }

    /// Makes the connection silent: nobody waits for an answer on it.
    fn be_silent(&self, seat: &Arc<Seat>) {
        let mut queue = self.lock();
        let mut state = seat.lock();
        if state.place.is_none() {
            let place = queue.next;
            queue.next += 1;
            queue.silent.insert(place, Arc::clone(seat));
            state.place = Some(place);
        }
    }

    /// A request is complete, or the connection is gone.
    fn leave_queue(&self, seat: &Seat) {
        let mut queue = self.lock();
        if let Some(place) = seat.lock().place.take() {
            queue.silent.remove(&place);
        }
    }
}

impl Seat {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(state: &mut State) {
    if let Some(waker) = state.waker.take() {
        waker.wake();
    }
}

/// Handle by which whoever answers a connection's requests tells the connection about them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Activity {
    seats: Arc<Seats>,
    seat: Arc<Seat>,
}

impl Activity {
    /// A request is complete, with its body: the connection is not silent until the answer
    /// has begun.
    pub fn mark_complete(&self) {
        self.seats.leave_queue(&self.seat);
        let mut state = self.seat.lock();
        state.begun = true;
        wake(&mut state);
    }
}

/// A connection that breaks when its peer takes too long to ask or to read.
#[derive(Debug)]
pub struct Connection {
    stream: listener::Connection,
    /// True if the handshake is not over.
    greeting: bool,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
    /// True if a part of a request has arrived, or must soon.
    asking: bool,
    /// True if the sending side has ended, and bytes are only taken.
    is_lingering: bool,
    activity: Activity,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(
        stream: listener::Connection,
        permit: OwnedSemaphorePermit,
        patience: Duration,
        seats: Arc<Seats>,
    ) -> Self {
        let seat = Arc::default();
        seats.be_silent(&seat);
        let limit = stream.handshake_limit();
        let first = limit.unwrap_or_else(|| patience.min(REQUEST_TIME));
        Connection {
            stream,
            greeting: limit.is_some(),
            patience,
            deadline: Box::pin(tokio::time::sleep(first)),
            asking: true,
            is_lingering: false,
            activity: Activity { seats, seat },
            _permit: permit,
        }
    }

    /// Returns the handle to be told when a request is complete. Whoever never tells has `patience` for
    /// nothing but answers that come at once.
    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// Returns the answer to give instead of `Pending`.
    fn out_of_patience<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let mut state = self.activity.seat.lock();
        if state.evicted {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if std::mem::take(&mut state.begun) {
            self.asking = false;
            let deadline = Instant::now() + self.patience;
            self.deadline.as_mut().reset(deadline);
        }
        state.waker = Some(context.waker().clone());
        drop(state);
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// The time of the first request begins with the end of the handshake.
    fn start_first_request(&mut self) {
        if self.greeting && self.stream.handshake_limit().is_none() {
            self.greeting = false;
            let deadline = Instant::now() + self.patience.min(REQUEST_TIME);
            self.deadline.as_mut().reset(deadline);
        }
    }

    /// Single bytes do not extend the time limit of a request.
    fn read(&mut self, bytes: usize) {
        if bytes > 0 && !std::mem::replace(&mut self.asking, true) {
            let deadline = self.deadline.deadline().min(Instant::now() + REQUEST_TIME);
            self.deadline.as_mut().reset(deadline);
        }
    }

    /// Only an answer sets a new time limit.
    fn note_write(&mut self, result: io::Result<usize>) -> Poll<io::Result<usize>> {
        if result.as_ref().is_ok_and(|&bytes| bytes > 0) {
            let deadline = Instant::now() + self.patience;
            self.deadline.as_mut().reset(deadline);
            self.asking = false;
            self.activity.seat.lock().begun = false;
            self.activity.seats.be_silent(&self.activity.seat);
        }
        Poll::Ready(result)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.activity.seats.leave_queue(&self.activity.seat);
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.start_first_request();
        match read {
            Poll::Ready(result) => {
                self.read(buffer.filled().len().saturating_sub(before));
                Poll::Ready(result)
            }
            Poll::Pending => self.out_of_patience(context),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Ready(result) => self.note_write(result),
            Poll::Pending => self.out_of_patience(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(context, slices) {
            Poll::Ready(result) => self.note_write(result),
            Poll::Pending => self.out_of_patience(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Ends the sending side, and takes what the peer still sends. Bytes that nobody takes
    /// would make the system reset the connection, and the peer could lose the answer
    /// (RFC 9112, section 9.6).
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_lingering {
            match Pin::new(&mut self.stream).poll_shutdown(context) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
            self.is_lingering = true;
            self.deadline.as_mut().reset(Instant::now() + LINGER);
        }
        let mut part = [0; 16 * 1024];
        // The clock is read each time: the timer alone never ends while bytes come at once.
        while Instant::now() < self.deadline.deadline() {
            let mut buffer = ReadBuf::new(&mut part);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => break,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => break,
                Poll::Pending => return self.deadline.as_mut().poll(context).map(Ok),
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn socket(connection: &Connection) -> &TcpStream {
        match &connection.stream {
            listener::Connection::Plain(socket) => socket,
            other => panic!("{other:?}"),
        }
    }

    /// The clock is paused: it jumps to the next timer whenever nothing else is to do,
    /// even between a packet's departure and its arrival. Hence `readable` and
    /// `writable`, which have no deadline, before anything that has one.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_trickles_is_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = BoundedListener::new(listener, "test", 10, Duration::from_secs(90));
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut server, _) = bounded.accept_connection().await.unwrap();

        client.write_all(b"G").await.unwrap();
        socket(&server).readable().await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'G');
        let error = server.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        // An answer wins time, so that a kept connection lives from answer to answer.
        socket(&server).writable().await.unwrap();
        server.write_all(b"ok").await.unwrap();
        client.write_all(b"G").await.unwrap();
        socket(&server).readable().await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'G');
    }

    #[tokio::test]
    async fn the_next_connection_waits_for_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = BoundedListener::new(listener, "test", 1, Duration::from_secs(90));
        let _first_client = TcpStream::connect(address).await.unwrap();
        let _second_client = TcpStream::connect(address).await.unwrap();
        let (first, _) = bounded.accept_connection().await.unwrap();
        assert_eq!(bounded.room.available_permits(), 0);
        first.activity().mark_complete();
        // Its request is being answered, so it does not make way.
        tokio::select! {
            biased;
            _ = bounded.accept_connection() => panic!("there is no room"),
            () = async {
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
        drop(first);
        bounded.accept_connection().await.unwrap();
    }

    /// A client that uploads megabytes before it reads gets the answer, and no reset.
    #[tokio::test]
    async fn an_early_answer_reaches_a_client_that_still_uploads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = BoundedListener::new(listener, "test", 2, Duration::from_secs(90));
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut server, _) = bounded.accept_connection().await.unwrap();
        server.write_all(b"answer").await.unwrap();
        let upload = vec![b'u'; 16 << 20];
        let client = async {
            client.write_all(&upload).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"answer");
        };
        let (closed, ()) = tokio::join!(server.shutdown(), client);
        closed.unwrap();
    }

    /// A client that never ends its upload, or is silent, is cut off after a while.
    #[tokio::test]
    async fn a_client_that_goes_on_sending_is_cut_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = BoundedListener::new(listener, "test", 2, Duration::from_secs(90));
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut server, _) = bounded.accept_connection().await.unwrap();
        let flood = tokio::spawn(async move {
            let part = vec![b'u'; 64 * 1024];
            while client.write_all(&part).await.is_ok() {}
        });
        server.shutdown().await.unwrap();
        drop(server);
        flood.await.unwrap();

        let _silent = TcpStream::connect(address).await.unwrap();
        let (mut server, _) = bounded.accept_connection().await.unwrap();
        server.shutdown().await.unwrap();
    }

    /// Whoever has connected when the listener is closed is answered, and not reset.
    #[tokio::test]
    async fn who_has_connected_before_the_end_is_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = BoundedListener::new(listener, "test", 2, Duration::from_secs(90));
        let mut clients = Vec::new();
        for number in 0..5 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(&[number]).await.unwrap();
            clients.push(client);
        }
        bounded.close();
        let refused = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(bounded.local_addr().is_err());
        for (number, mut client) in (0..).zip(clients) {
            let (mut server, peer) = bounded.accept_connection().await.unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
            assert_eq!(server.read_u8().await.unwrap(), number);
            server.write_all(b"k").await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'k');
        }
        assert!(bounded.accept_connection().await.is_none());
    }

    #[tokio::test]
    async fn s10_who_is_silent_for_longest_makes_way() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = BoundedListener::new(listener, "test", 2, Duration::from_secs(90));
        let mut clients = Vec::new();
        let mut accepted = Vec::new();
        for _ in 0..2 {
            clients.push(TcpStream::connect(address).await.unwrap());
            accepted.push(bounded.accept_connection().await.unwrap().0);
        }
        // The first has asked and got an answer: it is silent only since then.
        let mut second = accepted.pop().unwrap();
        let mut first = accepted.pop().unwrap();
        first.activity().mark_complete();
        first.write_all(b"answer").await.unwrap();
        clients.push(TcpStream::connect(address).await.unwrap());
        let evicted = async {
            let error = second.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
            drop(second);
        };
        let (_third, ()) = tokio::join!(bounded.accept_connection(), evicted);
        clients[0].write_all(b"G").await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'G');
        // Places of connections that are gone are nobody's.
        drop(first);
        assert_eq!(bounded.seats.lock().silent.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn s10_a_request_must_arrive_soon_but_an_answer_may_take_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = BoundedListener::new(listener, "test", 10, Duration::from_secs(90));
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut server, _) = bounded.accept_connection().await.unwrap();
        let start = Instant::now();
        let error = server.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), REQUEST_TIME.as_secs());

        let (mut other, mut server) = {
            let other = TcpStream::connect(address).await.unwrap();
            (other, bounded.accept_connection().await.unwrap().0)
        };
        server.activity().mark_complete();
        let start = Instant::now();
        server.read_u8().await.unwrap_err();
        assert_eq!(start.elapsed().as_secs(), 90, "while it is being answered");
        socket(&server).writable().await.unwrap();
        server.write_all(b"answer").await.unwrap();
        let start = Instant::now();
        other.write_all(b"G").await.unwrap();
        socket(&server).readable().await.unwrap();
        server.read_u8().await.unwrap();
        server.read_u8().await.unwrap_err();
        assert_eq!(start.elapsed().as_secs(), REQUEST_TIME.as_secs());
        client.write_all(b"late").await.unwrap();
    }
}

//! A thread that serves UDP sockets, with a state that others look at and change meanwhile.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tracing::error;

use crate::inherited::{self, InheritedSocket};

/// Pause after an error that would else come again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// A state that a thread works on. The thread ends when this is dropped.
#[derive(Debug)]
pub struct SocketTask<S> {
    // A fair lock: a flood from the network must not keep others from the state. A panic does not
    // poison it: at most what concerns one peer is left incomplete.
    state: Mutex<S>,
    wake: Arc<OwnedFd>,
}

/// Work that a thread does with a state.
pub trait Worker<S>: Send + 'static {
    /// Time within which datagrams that arrive are waited for together.
    const SLACK: Duration = Duration::ZERO;

    /// Does what there is to do: receives, answers, sends.
    fn turn(&mut self, state: &mut S) -> Next;

    /// Returns the sockets at which something may come after the last turn.
    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>>;
}

/// Time of the next turn, if nothing comes and nobody wakes the thread before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once, when others have had the state.
    Again,
    /// After this time.
    After(Duration),
    /// Not by itself.
    Never,
}

impl<S> Drop for SocketTask<S> {
    fn drop(&mut self) {
        self.wake_thread();
    }
}

impl<S: Send + 'static> SocketTask<S> {
    /// A state that nobody works on yet.
    ///
    /// # Errors
    ///
    /// The system gives no file to wake the thread with.
    pub fn new(state: S) -> io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(SocketTask {
            state: Mutex::new(state),
            wake: Arc::new(wake),
        }))
    }

    /// Starts the thread, which is called `name`.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn start(self: &Arc<Self>, name: &'static str, worker: impl Worker<S>) -> io::Result<()> {
        let (task, wake) = (Arc::downgrade(self), Arc::clone(&self.wake));
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || run_worker(name, &task, &wake, worker))?;
        Ok(())
    }
}

impl<S> SocketTask<S> {
    /// The state; the thread waits for it meanwhile.
    pub fn lock_state(&self) -> MutexGuard<'_, S> {
        self.state.lock()
    }

    /// Has the thread take a turn soon: the state is another one.
    pub fn wake_thread(&self) {
        // It only fails if it has been told more often than 64 bits can count.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

fn run_worker<S, W: Worker<S>>(
    name: &str,
    task: &Weak<SocketTask<S>>,
    wake: &OwnedFd,
    mut worker: W,
) {
    while let Some(owner) = task.upgrade() {
        let mut guard = owner.state.lock();
        let next = worker.turn(&mut guard);
        // Whoever waits has it now. Otherwise this thread would take it again before the
        // other one is awake, for as long as somebody floods it with datagrams.
        MutexGuard::unlock_fair(guard);
        drop(owner);
        let timeout = match next {
            Next::Again => continue,
            Next::After(time) if time < W::SLACK => {
                std::thread::sleep(W::SLACK);
                continue;
            }
            Next::After(time) => Some(time),
            Next::Never => None,
        };
        if let Err(error) = wait_for_input(worker.sockets(), wake, timeout) {
            error!(thread = name, %error, "cannot wait for datagrams");
            std::thread::sleep(PAUSE);
        }
    }
}

/// Waits for a datagram, the wake-up call, or so long.
fn wait_for_input<'s>(
    sockets: impl Iterator<Item = BorrowedFd<'s>>,
    wake: &'s OwnedFd,
    timeout: Option<Duration>,
) -> io::Result<()> {
    let all = std::iter::once(wake.as_fd()).chain(sockets);
    let to_fd = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds: Vec<PollFd<'_>> = all.map(to_fd).collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    if fds.first().is_some_and(|fd| !fd.revents().is_empty()) {
        let mut count = [0; 8];
        // It may have been taken back: nothing is lost by not having to read it.
        let _ = rustix::io::read(wake, &mut count);
    }
    Ok(())
}

/// Opens a socket of `whose` at `address` that does not block, with a receive buffer of `buffer` bytes or as
/// much of that as the system gives. The socket may be one that this process has [inherited](inherited).
///
/// # Errors
///
/// The system does not give the address, or no socket.
pub fn open_socket(address: SocketAddr, buffer: usize, whose: &str) -> io::Result<UdpSocket> {
    let mut inherited =
        inherited::process_table().take_sockets(&inherited::udp_name(address, whose));
    if let Some(handed) = inherited.pop() {
        return Ok(UdpSocket::from(handed.socket));
    }
    let socket = new_socket(address)?;
    // The first may exceed the system's limit, with the right privilege.
    if sockopt::set_socket_recv_buffer_size_force(&socket, buffer).is_err() {
        socket.set_recv_buffer_size(buffer)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Binds `count` sockets to one address, over which the kernel spreads datagrams by the addresses of their
/// senders. The sockets do not block. Sockets that this process has [inherited](inherited) for the address come
/// first; there may be more of them than `count`.
///
/// # Errors
///
/// The system does not give the address, or no socket.
pub fn bind_shared(address: SocketAddr, count: usize, whose: &str) -> io::Result<Vec<UdpSocket>> {
    let name = inherited::udp_name(address, whose);
    let inherited = inherited::process_table().take_sockets(&name);
    let mut sockets: Vec<UdpSocket> = Vec::with_capacity(count.max(inherited.len()));
    sockets.extend(
        inherited
            .into_iter()
            .map(|handed| UdpSocket::from(handed.socket)),
    );
    let known = sockets.len();
    for index in known..count {
        // A socket that shares its port with nobody is shared by all.
        if let Some(first) = sockets.get(index % known.max(1)).filter(|_| known > 0)
            && !SockRef::from(first).reuse_port()?
        {
            sockets.push(first.try_clone()?);
            continue;
        }
        // Port 0: the first socket finds the port, the others follow it.
        let address = match sockets.first() {
            Some(first) => first.local_addr()?,
            None => address,
        };
        let socket = new_socket(address)?;
        socket.set_reuse_port(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        sockets.push(socket.into());
    }
    Ok(sockets)
}

/// A socket that was [opened](open_socket) at `address`, for another process that opens the same.
///
/// # Errors
///
/// The system gives no further handle.
pub fn share_socket(
    socket: &UdpSocket,
    address: SocketAddr,
    whose: &str,
) -> io::Result<InheritedSocket> {
    Ok(InheritedSocket {
        name: inherited::udp_name(address, whose).into(),
        socket: socket.try_clone()?.into(),
    })
}

/// True if another socket has the address, so that datagrams would not reach this process.
pub fn is_taken(address: SocketAddr) -> bool {
    if inherited::process_table().has_name(&inherited::udp_name(address, "")) {
        return false;
    }
    let bound = new_socket(address).and_then(|socket| socket.bind(&address.into()));
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        // [::] and 0.0.0.0 may be two sockets, or only one of them.
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Sends each datagram back with the state at its end, and says when it is gone.
    struct Echo(UdpSocket, #[allow(dead_code)] mpsc::Sender<()>);

    impl Worker<u8> for Echo {
        fn turn(&mut self, state: &mut u8) -> Next {
            let mut buffer = [0; 10];
            while let Ok((len, from)) = self.0.recv_from(&mut buffer) {
                buffer[len] = *state;
                self.0.send_to(&buffer[..=len], from).unwrap();
            }
            Next::Never
        }

        fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
            std::iter::once(self.0.as_fd())
        }
    }

    #[test]
    fn a_thread_answers_with_the_state_and_ends_with_it() {
        let socket = open_socket("127.0.0.1:0".parse().unwrap(), 1 << 20, "test").unwrap();
        let address = socket.local_addr().unwrap();
        assert!(is_taken(address));
        let task = SocketTask::new(7).unwrap();
        let (sender, ended) = mpsc::channel();
        task.start("echo", Echo(socket, sender)).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let ask = || {
            client.send_to(b"ab", address).unwrap();
            let mut buffer = [0; 10];
            let len = client.recv(&mut buffer).unwrap();
            buffer[..len].to_vec()
        };
        assert_eq!(ask(), [b'a', b'b', 7]);
        *task.lock_state() = 8;
        task.wake_thread();
        assert_eq!(ask(), [b'a', b'b', 8]);
        drop(task);
        let end = ended.recv_timeout(Duration::from_secs(30));
        assert_eq!(end, Err(mpsc::RecvTimeoutError::Disconnected));
    }
}

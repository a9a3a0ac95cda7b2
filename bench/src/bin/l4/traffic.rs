//! Servers and clients of the rows of CPU time, as threads of this process.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use evenkeel_e2e::netns::Namespace;

use crate::Result;
use crate::ground::{MEMBERS, PORT, member_ip};

/// Number of bytes of a request and of a small answer.
pub(crate) const SMALL: usize = 64;
/// Number of clients at the same time.
const CLIENTS: usize = 16;
/// Number of threads that serve: clients, and connections of the balancer's own.
const SERVING: usize = 2 * CLIENTS;
/// Request for an answer of the same bytes.
const ECHO: u8 = b'e';
/// Request for a number of MiB.
const BULK: u8 = b'b';
const MIB: usize = 1 << 20;
/// Number of queries of DNS under way at the same time.
const QUERIES: usize = 16;
/// Longest wait for an answer; more is a failure.
const PATIENCE: Duration = Duration::from_secs(5);

/// Members that answer at once; dropping it ends them.
pub(crate) struct Servers {
    listener: Arc<TcpListener>,
    ends: Arc<AtomicBool>,
}

impl Servers {
    /// Starts servers for TCP and UDP at all addresses of the namespace.
    ///
    /// # Errors
    ///
    /// Returns an error if the port cannot be had.
    pub(crate) fn start(members: &Namespace) -> Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let (listener, sockets) = members.run_inside(|| {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
            let sockets: io::Result<Vec<UdpSocket>> = (0..MEMBERS)
                .map(|number| UdpSocket::bind((member_ip(number), PORT)))
                .collect();
            Ok::<_, io::Error>((listener, sockets?))
        })?;
        let listener = Arc::new(listener);
        widen_backlog(&listener);
        for _ in 0..SERVING {
            let listener = Arc::clone(&listener);
            thread::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    // A client that breaks off is no failure of the server.
                    let _ = serve(stream);
                }
            });
        }
        for socket in sockets {
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
            let ends = Arc::clone(&ends);
            thread::spawn(move || {
                let mut space = [0; 2048];
                while !ends.load(Ordering::Relaxed) {
                    if let Ok((length, from)) = socket.recv_from(&mut space) {
                        let _ = socket.send_to(&space[..length], from);
                    }
                }
            });
        }
        Ok(Servers { listener, ends })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        wake_accepting(&self.listener);
    }
}

/// Lets a listener keep thousands of connections that wait to be accepted.
pub(crate) fn widen_backlog(listener: &TcpListener) {
    // SAFETY: the descriptor is a listening socket's.
    unsafe { libc::listen(listener.as_raw_fd(), 4096) };
}

/// Ends the calls of `accept` that wait at a listener, and all later ones.
pub(crate) fn wake_accepting(listener: &TcpListener) {
    // SAFETY: the descriptor is a listening socket's.
    unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut request = [0; SMALL];
    let mut large = Vec::new();
    loop {
        match stream.read_exact(&mut request) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        if request[0] == BULK {
            large.resize(MIB, 0);
            for _ in 0..u32::from_le_bytes([request[1], request[2], request[3], request[4]]) {
                stream.write_all(&large)?;
            }
        } else {
            stream.write_all(&request)?;
        }
    }
}

fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut bytes = [ECHO; SMALL];
    stream.write_all(&bytes)?;
    stream.read_exact(&mut bytes)
}

/// Lets all clients work in the namespace at the same time.
fn in_parallel(
    clients: &Namespace,
    work: impl Fn(usize) -> io::Result<()> + Send + Sync,
) -> Result<()> {
    let work = &work;
    clients.run_inside(|| {
        thread::scope(|scope| {
            let started: Vec<_> = (0..CLIENTS)
                .map(|client| scope.spawn(move || work(client)))
                .collect();
            for client in started {
                let done = client.join().map_err(|_| "a client panicked".to_owned())?;
                done.map_err(|error| format!("a client: {error}"))?;
            }
            Ok::<_, String>(())
        })
    })?;
    Ok(())
}

/// Makes connections of one exchange each.
///
/// # Errors
///
/// Returns an error if a connection fails.
pub(crate) fn run_connections(
    clients: &Namespace,
    targets: &[SocketAddr],
    count: usize,
) -> Result<()> {
    in_parallel(clients, |client| {
        for turn in 0..count / CLIENTS {
            let mut stream = connect(targets[(client + turn) % targets.len()])?;
            echo(&mut stream)?;
        }
        Ok(())
    })
}

/// Makes exchanges on connections that are open.
///
/// # Errors
///
/// Returns an error if a connection fails.
pub(crate) fn run_exchanges(
    clients: &Namespace,
    targets: &[SocketAddr],
    count: usize,
) -> Result<()> {
    in_parallel(clients, |client| {
        let mut stream = connect(targets[client % targets.len()])?;
        for _ in 0..count / CLIENTS {
            echo(&mut stream)?;
        }
        Ok(())
    })
}

/// Fetches a number of MiB over one connection.
///
/// # Errors
///
/// Returns an error if the connection fails.
pub(crate) fn run_bulk(
    clients: &Namespace,
    targets: &[SocketAddr],
    mebibytes: usize,
) -> Result<()> {
    let target = targets[0];
    clients.run_inside(|| {
        let mut stream = connect(target)?;
        let mut request = [BULK; SMALL];
        request[1..5].copy_from_slice(&(mebibytes as u32).to_le_bytes());
        stream.write_all(&request)?;
        let mut space = vec![0; 256 << 10];
        let mut left = mebibytes * MIB;
        while left > 0 {
            match stream.read(&mut space)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => left = left.saturating_sub(length),
            }
        }
        Ok::<_, io::Error>(())
    })?;
    Ok(())
}

/// Sends queries, each from a socket of its own as resolvers do, and returns the number that nobody answered.
///
/// # Errors
///
/// Returns an error if no socket can be had.
pub(crate) fn run_queries(
    clients: &Namespace,
    targets: &[SocketAddr],
    count: usize,
) -> Result<usize> {
    let lost = clients.run_inside(|| {
        let mut lost = 0;
        for batch in 0..count / QUERIES {
            let mut open = Vec::with_capacity(QUERIES);
            for query in 0..QUERIES {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.connect(targets[(batch + query) % targets.len()])?;
                socket.send(&[0; SMALL])?;
                open.push(socket);
            }
            for socket in open {
                socket.set_read_timeout(Some(Duration::from_millis(500)))?;
                if socket.recv(&mut [0; SMALL]).is_err() {
                    lost += 1;
                }
            }
        }
        Ok::<_, io::Error>(lost)
    })?;
    Ok(lost)
}

/// Sends SYNs that nobody answers.
pub(crate) fn run_attempts(clients: &Namespace, target: SocketAddr, count: usize) {
    // Each attempt ends with an error.
    let _ = in_parallel(clients, |_| {
        for _ in 0..count / CLIENTS {
            let _ = TcpStream::connect_timeout(&target, Duration::from_millis(1));
        }
        Ok(())
    });
}

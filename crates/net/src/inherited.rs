//! Sockets that this process has not opened itself: they come from the process whose place it takes, or from
//! the service manager (socket activation).
//!
//! Whoever opens a socket looks here first, by the [name](tcp_name) of what it wants, so that no part of the
//! process needs code of its own for that. Sockets that nobody has taken when the first configuration is in
//! effect are [closed](close_rest).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, SocketType, getsockname, sockopt};
use serde::{Deserialize, Serialize};

/// A socket that was opened, and what for.
#[derive(Debug)]
pub struct InheritedSocket {
    /// Purpose of the socket.
    pub name: Name,
    /// The socket, under a handle of its own.
    pub socket: OwnedFd,
}

/// Name of a socket, which says what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// Text as [`tcp_name`], [`udp_name`] and [`unix_name`] make it.
    pub text: String,
    /// The service manager keeps it, too: the file of a Unix socket is not ours to remove.
    #[serde(default)]
    pub is_kept: bool,
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        let is_kept = false;
        Name { text, is_kept }
    }
}

/// The name of a listener at `address`. `whose` tells those apart for which the system chooses a
/// port.
pub fn tcp_name(address: SocketAddr, whose: &str) -> String {
    socket_name("tcp", address, whose)
}

/// The name of a socket for datagrams to `address`; `whose` as for [`tcp_name`].
pub fn udp_name(address: SocketAddr, whose: &str) -> String {
    socket_name("udp", address, whose)
}

/// The name of a listener at a path, or in the abstract namespace.
pub fn unix_name(path: &str) -> String {
    format!("unix {path}")
}

fn socket_name(transport: &str, address: SocketAddr, whose: &str) -> String {
    match address.port() {
        0 => format!("{transport} {address} {whose}"),
        _ => format!("{transport} {address}"),
    }
}

/// Table of the sockets that are there, by name.
#[derive(Debug, Default)]
pub(crate) struct Table(Mutex<HashMap<String, Vec<InheritedSocket>>>);

static TABLE: LazyLock<Table> = LazyLock::new(Table::default);

/// The table of this process.
pub(crate) fn process_table() -> &'static Table {
    &TABLE
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<InheritedSocket>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_handed(&self, handed: InheritedSocket) {
        let mut all = self.lock();
        all.entry(handed.name.text.clone())
            .or_default()
            .push(handed);
    }

    /// Takes what is there for `name`.
    pub(crate) fn take_sockets(&self, name: &str) -> Vec<InheritedSocket> {
        self.lock().remove(name).unwrap_or_default()
    }

    /// True if there is any socket of that name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }
}

/// Keeps a socket for whoever wants it.
pub fn put_socket(handed: InheritedSocket) {
    process_table().put_handed(handed);
}

/// Takes a file of this name, which is no socket, from the process whose place this one takes.
pub fn take_file(name: &str) -> Option<File> {
    let mut files = process_table().take_sockets(name);
    files.pop().map(|file| File::from(file.socket))
}

/// Creates a file in memory, to be handed to the next process with the sockets.
///
/// # Errors
///
/// The system gives no file.
pub fn create_memory_file(name: &str) -> io::Result<File> {
    let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(File::from(file))
}

/// Keeps a socket of the service manager, which does not say what the socket is for.
///
/// # Errors
///
/// The socket is none that can be listened on, or datagrams can be received from.
pub fn put_unnamed(socket: OwnedFd) -> io::Result<()> {
    let name = Name {
        text: name_of(&socket)?,
        is_kept: true,
    };
    rustix::io::ioctl_fionbio(&socket, true)?;
    put_socket(InheritedSocket { name, socket });
    Ok(())
}

fn name_of(socket: &OwnedFd) -> io::Result<String> {
    let unusable = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
    let kind = sockopt::socket_type(socket)?;
    let transport = match kind {
        SocketType::STREAM if sockopt::socket_acceptconn(socket)? => "tcp",
        SocketType::STREAM => {
            return Err(unusable(
                "the socket does not listen: set Accept=no in the .socket unit",
            ));
        }
        SocketType::DGRAM => "udp",
        _ => {
            return Err(unusable(
                "the socket is neither a stream nor a datagram socket",
            ));
        }
    };
    let address = getsockname(socket)?;
    match address.address_family() {
        AddressFamily::INET | AddressFamily::INET6 => {
            let address = SocketAddr::try_from(address)
                .map_err(|_| unusable("the address of the socket cannot be read"))?;
            Ok(socket_name(transport, address, ""))
        }
        AddressFamily::UNIX if kind == SocketType::STREAM => {
            let address = rustix::net::SocketAddrUnix::try_from(address)
                .map_err(|_| unusable("the path of the Unix socket cannot be read"))?;
            if let Some(name) = address.abstract_name() {
                return Ok(unix_name(&format!("@{}", String::from_utf8_lossy(name))));
            }
            let path = address
                .path()
                .ok_or_else(|| unusable("the Unix socket has no path"))?;
            Ok(unix_name(&path.to_string_lossy()))
        }
        _ => Err(unusable(
            "the socket is neither an IP socket nor a Unix stream socket",
        )),
    }
}

/// Closes what nobody has taken; answers the names, each once.
pub fn close_rest() -> Vec<String> {
    let mut names: Vec<_> = process_table()
        .lock()
        .drain()
        .map(|(name, _)| name)
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_is_handed_is_taken_by_name_and_once() {
        let table = Table::default();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        for whose in ["rule a", "rule b", "rule a"] {
            let socket = TcpListener::bind(any).unwrap().into();
            let name = tcp_name(any, whose).into();
            table.put_handed(InheritedSocket { name, socket });
        }
        assert!(table.has_name("tcp 127.0.0.1:0 rule a"));
        assert_eq!(table.take_sockets(&tcp_name(any, "rule a")).len(), 2);
        assert!(table.take_sockets(&tcp_name(any, "rule a")).is_empty());
        assert!(table.take_sockets(&udp_name(any, "rule b")).is_empty());
        let left = table.lock();
        assert_eq!(left.keys().collect::<Vec<_>>(), ["tcp 127.0.0.1:0 rule b"]);
    }

    #[test]
    fn sockets_of_the_service_manager_are_known_by_their_addresses() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = tcp.local_addr().unwrap();
        assert_eq!(name_of(&tcp.into()).unwrap(), format!("tcp {at}"));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = udp.local_addr().unwrap();
        assert_eq!(name_of(&udp.into()).unwrap(), format!("udp {at}"));
        let path = std::env::temp_dir().join(format!("inherited-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let wanted = unix_name(path.to_str().unwrap());
        assert_eq!(name_of(&listener.into()).unwrap(), wanted);
        std::fs::remove_file(path).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(name_of(&client.into()).is_err());
    }
}

//! Connections to members, over TCP or Unix sockets.

use std::io;

use evenkeel_core::address::Address;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::TcpStream;

/// Connects to what listens at `address`.
///
/// # Errors
///
/// Error of the system.
pub async fn connect_address(address: &Address) -> io::Result<TcpStream> {
    match address {
        Address::Ip(address) => TcpStream::connect(address).await,
        Address::Unix(path) => connect_unix(path),
    }
}

/// Connects to the Unix socket at `path`, or in the abstract namespace behind `@`. There is nothing to wait
/// for: the system makes the connection at once or not at all.
///
/// The connection comes in the type of a TCP stream, which is no more than a file that the runtime watches:
/// connections of both kinds are read, written, spliced and shut down by the same system calls. To ask the
/// connection for IP addresses, or to set options of TCP, is an error.
///
/// # Errors
///
/// Error of the system. A full queue off which nobody takes connections is no lack of anything here, so it is
/// an error without a number.
pub fn connect_unix(path: &str) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match socket.connect(&unix_address(path)?) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(io::Error::other(
                "the socket's queue of connections (backlog) is full",
            ));
        }
        connected => connected?,
    }
    TcpStream::from_std(socket.into())
}

/// A path, or `@` and a name in the abstract namespace, as the system has it.
pub(crate) fn unix_address(path: &str) -> io::Result<SockAddr> {
    match path.strip_prefix('@') {
        Some(name) => SockAddr::unix(format!("\0{name}")),
        None => SockAddr::unix(path),
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn at(path: &str) -> Address {
        Address::Unix(path.into())
    }

    /// A name that no other test and no other run has.
    fn unique(name: &str) -> String {
        format!("evenkeel-{name}-{}", std::process::id())
    }

    #[tokio::test]
    async fn paths_and_abstract_names_are_connected_to() {
        let path = std::env::temp_dir().join(unique("stream"));
        let path = path.to_str().unwrap();
        let name = unique("abstract");
        let listeners = [
            UnixListener::bind(path),
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()),
        ];
        for (listener, at) in listeners
            .into_iter()
            .zip([at(path), at(&format!("@{name}"))])
        {
            let listener = listener.unwrap();
            let mut stream = connect_address(&at).await.unwrap();
            let (mut other, _) = listener.accept().unwrap();
            stream.write_all(b"to").await.unwrap();
            let mut bytes = [0; 2];
            std::io::Read::read_exact(&mut other, &mut bytes).unwrap();
            std::io::Write::write_all(&mut other, &bytes).unwrap();
            assert_eq!(stream.read(&mut bytes).await.unwrap(), 2);
            assert_eq!(&bytes, b"to");
            drop(other);
            assert_eq!(stream.read(&mut bytes).await.unwrap(), 0);
        }
        // Nobody listens any more.
        let kind =
            |address: Address| async move { connect_address(&address).await.unwrap_err().kind() };
        assert_eq!(kind(at(path)).await, io::ErrorKind::ConnectionRefused);
        std::fs::remove_file(path).unwrap();
        assert_eq!(kind(at(path)).await, io::ErrorKind::NotFound);
        let name = format!("@{name}");
        assert_eq!(kind(at(&name)).await, io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_full_queue_is_no_shortage_of_ours() {
        let name = unique("full");
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket
            .bind(&unix_address(&format!("@{name}")).unwrap())
            .unwrap();
        socket.listen(1).unwrap();
        let mut open = Vec::new();
        let error = loop {
            match connect_unix(&format!("@{name}")) {
                Ok(stream) => open.push(stream),
                Err(error) => break error,
            }
            assert!(open.len() < 100);
        };
        assert_eq!(evenkeel_limits::Shortage::of_error(&error), None);
        assert!(error.to_string().contains("full"), "{error}");
    }
}

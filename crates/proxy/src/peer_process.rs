//! Processes at the other ends of Unix sockets.

use std::os::fd::{AsRawFd, BorrowedFd};

/// True if the process that connected to a Unix socket has this process's user, and is in this process's PID namespace
/// or in one below it. From within a container, processes of other containers are in neither, whatever the numbers of
/// their users are; on the host, and in a container with the host's PID namespace, all containers are in one below.
pub(crate) fn has_own_user(socket: BorrowedFd<'_>) -> bool {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: the credentials and their length outlive the call, which writes no more than `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    // The kernel has no number for a process that this one cannot see, nor for the other end of a TCP connection.
    result == 0 && peer.pid > 0 && peer.uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use super::*;

    /// Connects to a socket as another user; `None` if this process has no right to become one.
    fn connect_as(user: libc::uid_t, address: &SocketAddr) -> Option<UnixStream> {
        let connect = || {
            // SAFETY: the call reads no memory. Without the C library it changes the user of this thread alone, which
            // ends after the connection.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
            (result == 0).then(|| UnixStream::connect_addr(address).unwrap())
        };
        std::thread::scope(|scope| scope.spawn(connect).join().unwrap())
    }

    #[test]
    fn processes_of_other_users_are_told_from_those_of_the_own_user() {
        let name = format!("evenkeel-test-peer-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let accept = || listener.accept().unwrap().0;
        let _own = UnixStream::connect_addr(&address).unwrap();
        assert!(has_own_user(accept().as_fd()));
        match connect_as(65_534, &address) {
            Some(_other) => assert!(!has_own_user(accept().as_fd())),
            None => {
                let why = "only root may become another user";
                let test = "processes_of_other_users_are_told_from_those_of_the_own_user";
                let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
            }
        }
    }

    #[test]
    fn a_client_over_tcp_has_no_user() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!has_own_user(listener.accept().unwrap().0.as_fd()));
    }
}

//! TCP listeners: opened while a configuration is prepared, kept when the next one names
//! the same address.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait to be accepted, per socket. The kernel's `somaxconn` limits it
/// further.
pub(crate) const BACKLOG: i32 = 4096;

/// How sockets are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `[::]` is IPv6 alone, so that `0.0.0.0` may be another listener. Without it the system
    /// decides.
    pub only_v6: bool,
    /// Other sockets of the same user may have the address, too.
    pub shared: bool,
}

/// Binds `count` sockets to one address; of several, which must be shared, the kernel spreads
/// connections over all. They listen already, and do not block.
///
/// # Errors
///
/// The system does not give the address, or no socket.
pub fn bind(address: SocketAddr, count: usize, options: Options) -> io::Result<Vec<TcpListener>> {
    let mut sockets: Vec<TcpListener> = Vec::with_capacity(count);
    for _ in 0..count {
        // Port 0: the first socket finds the port, the others follow it.
        let address = match sockets.first() {
            Some(first) => first.local_addr()?,
            None => address,
        };
        let socket = socket(address, options.only_v6)?;
        if options.shared {
            socket.set_reuse_port(true)?;
        }
        // Accepted sockets inherit it: a system call less per connection.
        socket.set_tcp_nodelay(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        sockets.push(socket.into());
    }
    Ok(sockets)
}

/// Fails if somebody listens on the address already.
///
/// Sockets that share their port do not find out: another Evenkeel of the same user would
/// take a part of the clients, and nobody would know.
///
/// # Errors
///
/// The system does not give the address, or no socket.
pub fn check_free(address: SocketAddr) -> io::Result<()> {
    if address.port() == 0 {
        return Ok(());
    }
    socket(address, true)?.bind(&address.into())
}

/// Whether somebody listens on the address already.
pub fn is_taken(address: SocketAddr) -> bool {
    check_free(address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

fn socket(address: SocketAddr, only_v6: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() && only_v6 {
        socket.set_only_v6(true)?;
    }
    // After a restart the old connections must not be in the way.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose another address with listen")]
pub struct ListenError {
    /// Which.
    pub address: SocketAddr,
    /// What the system says.
    pub source: io::Error,
}

/// Listeners by the address that a configuration names, the same number for each.
#[derive(Debug, Default)]
pub struct Listeners(HashMap<SocketAddr, Vec<TcpListener>>);

impl Listeners {
    /// Listeners on `addresses`, `count` each: those of this set that are there already
    /// stay, under another handle, so that nobody who waits in their queue is lost.
    ///
    /// # Errors
    ///
    /// All addresses that cannot be had.
    pub fn prepare(
        &self,
        addresses: &[SocketAddr],
        count: usize,
    ) -> Result<Listeners, Vec<ListenError>> {
        let (mut listeners, mut errors) = (HashMap::new(), Vec::new());
        let options = Options {
            shared: count > 1,
            ..Options::default()
        };
        for &address in addresses {
            let sockets = match self.0.get(&address) {
                Some(known) => clones(known),
                None => bind(address, count, options),
            };
            match sockets {
                Ok(sockets) => drop(listeners.insert(address, sockets)),
                Err(source) => errors.push(ListenError { address, source }),
            }
        }
        if errors.is_empty() {
            Ok(Listeners(listeners))
        } else {
            Err(errors)
        }
    }

    /// The same listeners under other handles, with their configured addresses: of each
    /// address the one at `index`.
    ///
    /// # Errors
    ///
    /// The system gives no handle for one of them.
    pub fn handles(
        &self,
        index: usize,
    ) -> Result<Vec<(SocketAddr, TcpListener)>, Vec<ListenError>> {
        let own = self.0.iter().filter_map(|(&address, all)| {
            let clone = all.get(index)?.try_clone();
            let failed = |source| vec![ListenError { address, source }];
            Some(clone.map(|clone| (address, clone)).map_err(failed))
        });
        own.collect()
    }

    /// Where they really listen, in the order of their configured addresses.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(address, _)| **address);
        let real = |(_, own): (_, &Vec<TcpListener>)| own.first()?.local_addr().ok();
        all.into_iter().filter_map(real).collect()
    }

    /// Where the listener configured as `address` really listens.
    pub fn local_address(&self, address: SocketAddr) -> Option<SocketAddr> {
        self.0.get(&address)?.first()?.local_addr().ok()
    }

    /// Gives all addresses up, as far as these handles hold them.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

fn clones(sockets: &[TcpListener]) -> io::Result<Vec<TcpListener>> {
    sockets.iter().map(TcpListener::try_clone).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    const SHARED: Options = Options {
        only_v6: true,
        shared: true,
    };

    #[test]
    fn listeners_stay_over_a_change() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let first = Listeners::default().prepare(&[any], 2).unwrap();
        let real = first.local_address(any).unwrap();
        assert!(is_taken(real));
        assert_eq!(first.local_addresses(), [real]);
        let second = first.prepare(&[any], 2).unwrap();
        drop(first);
        assert_eq!(second.local_address(any), Some(real));
        assert_eq!(second.handles(1).unwrap().len(), 1);
        assert_eq!(second.handles(2).unwrap().len(), 0);
        TcpStream::connect(real).unwrap();
        // An address that is taken is an error that names it; others do not count then.
        let other = second.prepare(&[any, real], 1).unwrap_err();
        assert!(other[0].to_string().contains(&real.to_string()));
        let third = second.prepare(&[], 1).unwrap();
        drop(second);
        assert!(third.local_addresses().is_empty() && !is_taken(real));
    }

    #[test]
    fn a_port_that_others_share_is_taken() {
        let sockets = bind("127.0.0.1:0".parse().unwrap(), 2, SHARED).unwrap();
        let address = sockets[0].local_addr().unwrap();
        let error = check_free(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(sockets);
        check_free(address).unwrap();
        check_free("[::1]:0".parse().unwrap()).unwrap();
    }

    #[test]
    fn sockets_share_a_port_and_clients_get_no_delay() {
        let sockets = bind("127.0.0.1:0".parse().unwrap(), 3, SHARED).unwrap();
        let address = sockets[0].local_addr().unwrap();
        assert!(address.port() != 0);
        assert!(
            sockets
                .iter()
                .all(|socket| socket.local_addr().unwrap() == address)
        );

        let one = bind("127.0.0.1:0".parse().unwrap(), 1, SHARED).unwrap();
        let _client = TcpStream::connect(one[0].local_addr().unwrap()).unwrap();
        one[0].set_nonblocking(false).unwrap();
        let (accepted, _) = one[0].accept().unwrap();
        assert!(accepted.nodelay().unwrap());
    }
}

//! TCP listeners: opened while a configuration is prepared, kept when the next one names
//! the same address.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};

use crate::inherited::{self, InheritedSocket};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Connections that may wait to be accepted, per socket. The kernel's `somaxconn` limits it
/// further.
pub(crate) const BACKLOG: i32 = 4096;

/// Options by which sockets are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    /// Owner of the sockets: see [`inherited::tcp_name`].
    pub owner: &'a str,
    /// `[::]` is IPv6 alone, so that `0.0.0.0` may be another listener. Without it the system
    /// decides.
    pub only_v6: bool,
    /// Other sockets of the same user may have the address, too.
    pub shared: bool,
}

/// Binds `count` sockets to one address; of several, which must be shared, the kernel spreads connections
/// over all. The sockets listen already, and do not block.
///
/// Sockets that this process has [inherited](inherited) for the address come first. There may be more of them
/// than `count`: each has clients who wait, so that none may be left out.
///
/// # Errors
///
/// The system does not give the address, or no socket.
pub fn bind_sockets(
    address: SocketAddr,
    count: usize,
    options: Options<'_>,
) -> io::Result<Vec<TcpListener>> {
    let name = inherited::tcp_name(address, options.owner);
    let inherited = inherited::process_table().take_sockets(&name);
    complete_sockets(inherited, address, count, options)
}

/// The sockets that are there, and as many more as are missing.
fn complete_sockets(
    inherited: Vec<InheritedSocket>,
    address: SocketAddr,
    count: usize,
    options: Options<'_>,
) -> io::Result<Vec<TcpListener>> {
    let mut sockets: Vec<TcpListener> = Vec::with_capacity(count.max(inherited.len()));
    for handed in inherited {
        let socket = Socket::from(handed.socket);
        // What another program has opened may lack it.
        socket.set_tcp_nodelay(true)?;
        sockets.push(socket.into());
    }
    let known = sockets.len();
    for index in known..count {
        // Who shares its port with nobody is shared by all.
        if let Some(first) = sockets.get(index % known.max(1)).filter(|_| known > 0)
            && !(options.shared && SockRef::from(first).reuse_port()?)
        {
            sockets.push(first.try_clone()?);
            continue;
        }
        // Port 0: the first socket finds the port, the others follow it.
        let address = match sockets.first() {
            Some(first) => first.local_addr()?,
            None => address,
        };
        let socket = new_socket(address, options.only_v6)?;
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

/// Fails if somebody listens on the address already, unless this process has
/// [inherited](inherited) the socket.
///
/// Sockets that share their port do not find out: another Evenkeel of the same user would
/// take a part of the clients, and nobody would know.
///
/// # Errors
///
/// The system does not give the address, or no socket.
pub fn check_free(address: SocketAddr) -> io::Result<()> {
    if address.port() == 0 || inherited::process_table().has_name(&inherited::tcp_name(address, ""))
    {
        return Ok(());
    }
    new_socket(address, true)?.bind(&address.into())
}

/// True if somebody else listens on the address already.
pub fn is_taken(address: SocketAddr) -> bool {
    check_free(address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

fn new_socket(address: SocketAddr, only_v6: bool) -> io::Result<Socket> {
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

/// Returns why an IP address cannot be listened on; where a right is missing, which one and how to give it.
pub fn explain_error(error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error.to_string();
    }
    let program = std::env::current_exe().unwrap_or_else(|_| "evenkeel".into());
    format!(
        "{error}: low ports (below 1024, or net.ipv4.ip_unprivileged_port_start) need the right CAP_NET_BIND_SERVICE. \
         Give it with AmbientCapabilities=CAP_NET_BIND_SERVICE in the systemd unit, or with: \
         setcap cap_net_bind_service=+ep {}; or start as root with `user` in [process]",
        program.display()
    )
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address}: {}; choose another address with listen",
    explain_error(source)
)]
pub struct ListenError {
    /// Address that cannot be listened on.
    pub address: SocketAddr,
    /// Error of the system.
    pub source: io::Error,
}

/// Listeners by the address that a configuration names, as many for each as there are threads, or
/// more that were inherited.
#[derive(Debug, Default)]
pub struct Listeners(HashMap<SocketAddr, Vec<TcpListener>>);

impl Listeners {
    /// Listeners of `whose` on `addresses`, `count` each: those of this set that are there already
    /// stay, under another handle, so that nobody who waits in their queue is lost.
    ///
    /// # Errors
    ///
    /// All addresses that cannot be had.
    pub fn prepare_addresses(
        &self,
        addresses: &[SocketAddr],
        count: usize,
        whose: &str,
    ) -> Result<Listeners, Vec<ListenError>> {
        let (mut listeners, mut errors) = (HashMap::new(), Vec::new());
        let options = Options {
            owner: whose,
            shared: count > 1,
            ..Options::default()
        };
        for &address in addresses {
            let sockets = match self.0.get(&address) {
                Some(known) => clone_listeners(known),
                None => bind_sockets(address, count, options),
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

    /// Returns the same listeners under other handles, with their configured addresses: of each address the
    /// listeners that the thread number `index` of `count` serves.
    ///
    /// # Errors
    ///
    /// The system gives no handle for one of them.
    pub fn clone_for_thread(
        &self,
        index: usize,
        count: usize,
    ) -> Result<Vec<(SocketAddr, TcpListener)>, Vec<ListenError>> {
        let own = self.0.iter().flat_map(|(&address, all)| {
            let mine = all.iter().skip(index).step_by(count.max(1));
            mine.map(move |listener| {
                let failed = |source| vec![ListenError { address, source }];
                let clone = listener.try_clone().map_err(failed)?;
                Ok((address, clone))
            })
        });
        own.collect()
    }

    /// Returns all listeners under other handles, as those of `whose`, for the process that takes the place
    /// of this one.
    ///
    /// # Errors
    ///
    /// The system gives no handle for one of them.
    pub fn clone_for_handover(&self, whose: &str) -> io::Result<Vec<InheritedSocket>> {
        let all = self.0.iter().flat_map(|(&address, all)| {
            let name = inherited::tcp_name(address, whose);
            all.iter().map(move |listener| {
                let socket = listener.try_clone()?.into();
                let name = name.clone().into();
                Ok(InheritedSocket { name, socket })
            })
        });
        all.collect()
    }

    /// Returns the addresses where the listeners really listen, in the order of their configured addresses.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(address, _)| **address);
        let real = |(_, own): (_, &Vec<TcpListener>)| own.first()?.local_addr().ok();
        all.into_iter().filter_map(real).collect()
    }

    /// Returns the address where the listener configured as `address` really listens.
    pub fn local_address(&self, address: SocketAddr) -> Option<SocketAddr> {
        self.0.get(&address)?.first()?.local_addr().ok()
    }

    /// Gives all addresses up, as far as these handles hold them.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

fn clone_listeners(sockets: &[TcpListener]) -> io::Result<Vec<TcpListener>> {
    sockets.iter().map(TcpListener::try_clone).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    const SHARED: Options<'_> = Options {
        owner: "test",
        only_v6: true,
        shared: true,
    };

    #[test]
    fn what_is_inherited_is_used_whatever_the_number() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let two = || {
            let sockets = bind_sockets(any, 2, SHARED).unwrap();
            let address = sockets[0].local_addr().unwrap();
            let handed = sockets.into_iter().map(|socket| InheritedSocket {
                name: String::new().into(),
                socket: socket.into(),
            });
            (address, handed.collect::<Vec<_>>())
        };
        for count in [1, 2, 5] {
            let (address, handed) = two();
            let sockets = complete_sockets(handed, any, count, SHARED).unwrap();
            assert_eq!(sockets.len(), count.max(2));
            let at = |socket: &TcpListener| socket.local_addr().unwrap();
            assert!(sockets.iter().all(|socket| at(socket) == address));
            // Each that a client may wait at is there: none is refused.
            for _ in 0..20 {
                TcpStream::connect(address).unwrap();
            }
        }
        // One that shares its port with nobody has all workers.
        let alone = bind_sockets(any, 1, Options::default())
            .unwrap()
            .pop()
            .unwrap();
        let address = alone.local_addr().unwrap();
        let name = String::new().into();
        let socket = alone.into();
        let sockets =
            complete_sockets(vec![InheritedSocket { name, socket }], any, 3, SHARED).unwrap();
        assert_eq!(sockets.len(), 3);
        drop(sockets);
        check_free(address).unwrap();
    }

    #[test]
    fn threads_share_more_listeners_than_there_are_threads() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listeners = Listeners::default()
            .prepare_addresses(&[any], 5, "a")
            .unwrap();
        let of = |index| listeners.clone_for_thread(index, 2).unwrap().len();
        assert_eq!((of(0), of(1)), (3, 2));
        assert_eq!(listeners.clone_for_handover("a").unwrap().len(), 5);
    }

    #[test]
    fn listeners_stay_over_a_change() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let first = Listeners::default()
            .prepare_addresses(&[any], 2, "a")
            .unwrap();
        let real = first.local_address(any).unwrap();
        assert!(is_taken(real));
        assert_eq!(first.local_addresses(), [real]);
        let second = first.prepare_addresses(&[any], 2, "a").unwrap();
        drop(first);
        assert_eq!(second.local_address(any), Some(real));
        assert_eq!(second.clone_for_thread(1, 2).unwrap().len(), 1);
        assert_eq!(second.clone_for_thread(2, 2).unwrap().len(), 0);
        TcpStream::connect(real).unwrap();
        // An address that is taken is an error that names it; others do not count then.
        let other = second.prepare_addresses(&[any, real], 1, "a").unwrap_err();
        assert!(other[0].to_string().contains(&real.to_string()));
        let third = second.prepare_addresses(&[], 1, "a").unwrap();
        drop(second);
        assert!(third.local_addresses().is_empty() && !is_taken(real));
    }

    #[test]
    fn a_port_that_others_share_is_taken() {
        let sockets = bind_sockets("127.0.0.1:0".parse().unwrap(), 2, SHARED).unwrap();
        let address = sockets[0].local_addr().unwrap();
        let error = check_free(address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(sockets);
        check_free(address).unwrap();
        check_free("[::1]:0".parse().unwrap()).unwrap();
    }

    #[test]
    fn sockets_share_a_port_and_clients_get_no_delay() {
        let sockets = bind_sockets("127.0.0.1:0".parse().unwrap(), 3, SHARED).unwrap();
        let address = sockets[0].local_addr().unwrap();
        assert!(address.port() != 0);
        assert!(
            sockets
                .iter()
                .all(|socket| socket.local_addr().unwrap() == address)
        );

        let one = bind_sockets("127.0.0.1:0".parse().unwrap(), 1, SHARED).unwrap();
        let _client = TcpStream::connect(one[0].local_addr().unwrap()).unwrap();
        one[0].set_nonblocking(false).unwrap();
        let (accepted, _) = one[0].accept().unwrap();
        assert!(accepted.nodelay().unwrap());
    }
}

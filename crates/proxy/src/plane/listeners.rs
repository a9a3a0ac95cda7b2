//! Listeners of rules: their sockets, one for each worker, and their names for another process.

use std::io;

use evenkeel_core::address::Address;
use evenkeel_manager::snapshot::RuleSnapshot;
use evenkeel_manager::subsystem::PrepareError;
use evenkeel_net::datagram;
use evenkeel_net::inherited::{self, Name};
use evenkeel_net::listen::{self, Options};
use evenkeel_net::unix::{self, SocketFile};
use socket2::Socket;

use super::rule_error::cannot_listen;
use crate::listen::ListenKey;

/// Every worker has its own socket, also on an address that a listener which is about to close
/// still holds.
const SHARED: Options<'_> = Options {
    owner: "",
    only_v6: true,
    shared: true,
};

/// Listeners that were opened, one for each worker, and the file of a Unix socket.
pub(super) type Opened = (Vec<Socket>, Option<SocketFile>);

/// Listeners for all workers: a socket for each, or one for all at a path.
pub(super) fn open_listeners(
    key: &ListenKey,
    workers: usize,
    mode: Option<u32>,
) -> io::Result<Opened> {
    match &key.address {
        Address::Ip(address) => {
            let whose = listener_owner(key);
            if key.is_udp {
                let sockets = datagram::bind_shared(*address, workers, &whose)?;
                return Ok((sockets.into_iter().map(Socket::from).collect(), None));
            }
            let options = Options {
                owner: &whose,
                ..SHARED
            };
            let sockets = listen::bind_sockets(*address, workers, options)?;
            Ok((sockets.into_iter().map(Socket::from).collect(), None))
        }
        Address::Unix(path) => {
            let (sockets, file) = unix::bind_path(path, workers, mode)?;
            let sockets = sockets.into_iter().map(Socket::from).collect();
            Ok((sockets, Some(file)))
        }
    }
}

/// Returns a name for the rule that wants the listener, where the system chooses its port.
fn listener_owner(key: &ListenKey) -> String {
    let rule = key.rule.as_deref().unwrap_or_default();
    format!("rule {rule}")
}

/// Returns the name by which another process knows a listener. `is_ours` says of the file of a Unix
/// socket whether this process would remove the file.
pub(super) fn listener_name(key: &ListenKey, is_ours: bool) -> Name {
    match &key.address {
        Address::Ip(address) if key.is_udp => {
            inherited::udp_name(*address, &listener_owner(key)).into()
        }
        Address::Ip(address) => inherited::tcp_name(*address, &listener_owner(key)).into(),
        Address::Unix(path) => Name {
            text: inherited::unix_name(path),
            is_kept: !is_ours && !path.starts_with('@'),
        },
    }
}

/// Complaints about addresses on which somebody listens already.
pub(super) fn taken_addresses(snapshot: &RuleSnapshot) -> impl Iterator<Item = PrepareError> + '_ {
    listen_keys(snapshot).filter_map(move |key| {
        let error = match &key.address {
            Address::Ip(address) if key.is_udp => {
                match address.port() != 0 && datagram::is_taken(*address) {
                    true => Err(io::ErrorKind::AddrInUse.into()),
                    false => Ok(()),
                }
            }
            Address::Ip(address) => listen::check_free(*address),
            Address::Unix(path) => unix::check_free(path),
        };
        let error = error.err()?;
        Some(cannot_listen(snapshot, &key, error))
    })
}

/// Returns the keys of the addresses on which a rule listens: none, if the rule is disabled.
pub(super) fn listen_keys(snapshot: &RuleSnapshot) -> impl Iterator<Item = ListenKey> + '_ {
    let rule = &snapshot.rule;
    let addresses = if rule.enabled { &rule.listen[..] } else { &[] };
    addresses
        .iter()
        .map(|address| ListenKey::new(address.clone(), &rule.name, rule.protocol))
}

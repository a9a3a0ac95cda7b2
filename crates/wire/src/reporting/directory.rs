//! Directory of the locations and members that there are, for agents that name them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evenkeel_core::group::Group;
use evenkeel_core::load::Location;
use evenkeel_core::member::Member;

use super::message::Server;

/// All locations and members at one moment.
#[derive(Debug, Default)]
pub struct Directory {
    locations: HashMap<Arc<str>, Arc<Location>>,
    groups: HashMap<Arc<str>, Members>,
}

/// The members of one group.
#[derive(Debug, Default)]
struct Members {
    by_address: HashMap<SocketAddr, Member>,
    /// By `host:port` as in the configuration; a name may have several addresses.
    by_name: HashMap<String, Vec<Member>>,
}

impl Directory {
    /// The locations and members of `groups`.
    pub fn new<'a>(groups: impl IntoIterator<Item = &'a Group>) -> Self {
        let mut directory = Directory::default();
        for group in groups {
            let members = directory
                .groups
                .entry(Arc::clone(group.name()))
                .or_default();
            for member in group.members() {
                let location = &member.location;
                directory
                    .locations
                    .insert(Arc::clone(location.name()), Arc::clone(location));
                let name = member.in_file().to_owned();
                let named = members.by_name.entry(name).or_default();
                named.push(member.clone());
                // A member whose name has not been resolved yet has no address.
                if let Some(address) = member.address.socket()
                    && address.port() != 0
                {
                    members.by_address.insert(address, member.clone());
                }
            }
        }
        directory
    }

    pub(super) fn find_location(&self, name: &str) -> Option<&Arc<Location>> {
        self.locations.get(name)
    }

    /// The members that `server` is, of an agent whose datagrams come from `source`.
    pub(super) fn find_members(&self, server: &Server, source: IpAddr) -> Vec<Member> {
        let Some(members) = self.groups.get(&*server.group) else {
            return Vec::new();
        };
        match server.ip_for_source(source) {
            Some(ip) => {
                let address = SocketAddr::new(ip, server.port);
                members
                    .by_address
                    .get(&address)
                    .cloned()
                    .into_iter()
                    .collect()
            }
            None => {
                let name = format!("{}:{}", server.host, server.port);
                members.by_name.get(&name).cloned().unwrap_or_default()
            }
        }
    }
}

impl Server {
    /// Returns the server's IP address, if the address is given by number, for an agent whose
    /// datagrams come from `source`.
    pub fn ip_for_source(&self, source: IpAddr) -> Option<IpAddr> {
        if self.host.is_empty() {
            Some(source)
        } else {
            self.host.parse().ok()
        }
    }
}

//! Routes and addresses of this machine's network namespace, asked for and changed over rtnetlink(7).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE_NEW: u16 = 0x600;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_VIA: u16 = 18;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
/// Scope of addresses that no packet of this machine gets as its source by itself.
const RT_SCOPE_HOST: u8 = 254;
/// Parent of the filters that see what an interface receives.
const TC_INGRESS: u32 = 0xffff_fff2;
/// Bytes of `nlmsghdr`, of `rtmsg`, and of `tcmsg`.
const HEADER: usize = 16;
const ROUTE: usize = 12;
const FILTER: usize = 20;
/// Index of the loopback interface, in all network namespaces.
const LOOPBACK: u32 = 1;

/// Way from this machine to an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Router on the way; `None` if the address is in a network of this machine.
    pub router: Option<IpAddr>,
    /// Number of the interface by which packets leave this machine.
    pub interface: Option<u32>,
    /// Address of this machine that packets have.
    pub source: Option<IpAddr>,
}

/// Returns the way from this machine to an address.
///
/// # Errors
///
/// There is no way, or the kernel does not tell.
pub fn find_route(to: IpAddr) -> io::Result<Route> {
    let (family, bits) = describe_family(to);
    let mut question = vec![family, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    push_attribute(&mut question, RTA_DST, &write_ip(to));
    let answer = request(RTM_GETROUTE, 0, &question)?;
    Ok(read_route(answer.get(ROUTE..).unwrap_or_default()))
}

/// Adds an address to the loopback interface. The machine does not use the address as a source by itself.
pub(crate) fn add_to_loopback(ip: IpAddr) -> io::Result<()> {
    let mut address = write_address(ip);
    if ip.is_ipv6() {
        // Never preferred, and valid for ever.
        let lifetimes = [0, u32::MAX, 0, 0].map(u32::to_ne_bytes).concat();
        push_attribute(&mut address, IFA_CACHEINFO, &lifetimes);
    }
    request(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE_NEW, &address).map(drop)
}

/// Removes an address from the loopback interface.
pub(crate) fn remove_from_loopback(ip: IpAddr) -> io::Result<()> {
    request(RTM_DELADDR, NLM_F_ACK, &write_address(ip)).map(drop)
}

/// Returns the preferences of the filters of tc at the ingress of an interface: the least sees packets first.
///
/// # Errors
///
/// The kernel does not tell.
pub fn list_ingress_filters(interface: u32) -> io::Result<Vec<u32>> {
    // struct tcmsg: the handle of no filter, and all filters of the parent.
    let mut body = vec![0; 4];
    for word in [interface, 0, TC_INGRESS, 0] {
        body.extend(word.to_ne_bytes());
    }
    let socket = send_request(RTM_GETTFILTER, NLM_F_DUMP, &body)?;
    let mut priorities = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (length, _) = recv(&socket, buffer.as_mut_slice(), RecvFlags::empty())?;
        let is_last = read_filters(buffer.get(..length).unwrap_or_default(), &mut priorities);
        if is_last || length == 0 {
            return Ok(priorities);
        }
    }
}

/// Reads a part of the kernel's list of filters. Returns true if the part is the last one.
fn read_filters(mut messages: &[u8], priorities: &mut Vec<u32>) -> bool {
    while let Some((head, rest)) = messages.split_first_chunk::<HEADER>() {
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        match u16::from_ne_bytes([head[4], head[5]]) {
            RTM_NEWTFILTER => {
                // The last word of struct tcmsg: the preference, and the protocol.
                let info = rest.get(FILTER - 4..).and_then(<[u8]>::first_chunk);
                priorities.extend(info.map(|bytes| u32::from_ne_bytes(*bytes) >> 16));
            }
            // The end, or an error: there is no such qdisc.
            NLMSG_ERROR | NLMSG_DONE => return true,
            _ => {}
        }
        let next = length.next_multiple_of(4).max(HEADER);
        messages = messages.get(next..).unwrap_or_default();
    }
    false
}

/// Returns `struct ifaddrmsg` for an address of the loopback interface, with the address.
fn write_address(ip: IpAddr) -> Vec<u8> {
    let (family, bits) = describe_family(ip);
    let scope = if ip.is_ipv4() { RT_SCOPE_HOST } else { 0 };
    let mut address = vec![family, bits, 0, scope];
    address.extend(LOOPBACK.to_ne_bytes());
    push_attribute(&mut address, IFA_LOCAL, &write_ip(ip));
    push_attribute(&mut address, IFA_ADDRESS, &write_ip(ip));
    address
}

/// Returns the number of an address's family, and the length of the address in bits.
fn describe_family(ip: IpAddr) -> (u8, u8) {
    match ip {
        IpAddr::V4(_) => (2, 32),
        IpAddr::V6(_) => (10, 128),
    }
}

fn write_ip(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn push_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = 4 + value.len() as u16;
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

fn read_ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|octets| Ipv4Addr::from(octets).into());
    let v6 = <[u8; 16]>::try_from(bytes).map(|octets| Ipv6Addr::from(octets).into());
    v4.or(v6).ok()
}

/// Reads the attributes of a route; those behind an attribute with a wrong length are left out.
fn read_route(mut attributes: &[u8]) -> Route {
    let mut route = Route::default();
    while let Some((&[a, b, c, d], _)) = attributes.split_first_chunk() {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let Some(value) = attributes.get(4..length) else {
            break;
        };
        match u16::from_ne_bytes([c, d]) {
            RTA_OIF => route.interface = value.first_chunk().map(|word| u32::from_ne_bytes(*word)),
            RTA_GATEWAY => route.router = read_ip(value),
            // A router of the other family: the family comes first.
            RTA_VIA => route.router = value.get(2..).and_then(read_ip),
            RTA_PREFSRC => route.source = read_ip(value),
            _ => {}
        }
        let next = attributes.get(length.next_multiple_of(4)..);
        attributes = next.unwrap_or_default();
    }
    route
}

/// Sends a request to the kernel, and returns the body of its answer, which is empty if the kernel only says that it has
/// done what it was asked for.
fn request(kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let socket = send_request(kind, flags, body)?;
    let mut buffer = vec![0; 16 << 10];
    let (length, _) = recv(&socket, buffer.as_mut_slice(), RecvFlags::empty())?;
    read_answer(buffer.get(..length).unwrap_or_default())
}

/// Sends a request to the kernel. Returns the socket that gets the answer.
fn send_request(kind: u16, flags: u16, body: &[u8]) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // NETLINK_ROUTE
    )?;
    let length = (HEADER + body.len()) as u32;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    sendto(
        &socket,
        &message,
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    Ok(socket)
}

/// Reads the kernel's answer to a request.
fn read_answer(message: &[u8]) -> io::Result<Vec<u8>> {
    let cut = || io::Error::other("an answer of the kernel is cut short");
    let (head, rest) = message.split_first_chunk::<HEADER>().ok_or_else(cut)?;
    let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let body = length.checked_sub(HEADER).and_then(|long| rest.get(..long));
    let body = body.ok_or_else(cut)?;
    match u16::from_ne_bytes([head[4], head[5]]) {
        NLMSG_ERROR => {
            let code = body.first_chunk().ok_or_else(cut)?;
            match i32::from_ne_bytes(*code) {
                0 => Ok(Vec::new()),
                code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
            }
        }
        RTM_NEWROUTE => Ok(body.to_vec()),
        other => Err(io::Error::other(format!(
            "the kernel answers with a message of the kind {other}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_of_this_machine_are_behind_no_router() {
        let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
        let expected = Route {
            router: None,
            interface: Some(LOOPBACK),
            source: Some(localhost),
        };
        assert_eq!(find_route(localhost).unwrap(), expected);
    }

    #[test]
    fn routes_are_read_from_their_attributes() {
        let mut attributes = Vec::new();
        push_attribute(&mut attributes, RTA_DST, &[192, 0, 2, 1]);
        push_attribute(&mut attributes, RTA_OIF, &7u32.to_ne_bytes());
        push_attribute(&mut attributes, RTA_PREFSRC, &[192, 0, 2, 9]);
        let near = Route {
            router: None,
            interface: Some(7),
            source: Some(Ipv4Addr::new(192, 0, 2, 9).into()),
        };
        assert_eq!(read_route(&attributes), near);
        let mut by_v6 = attributes.clone();
        let router: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let value = [&[10, 0][..], &router.octets()].concat();
        push_attribute(&mut by_v6, RTA_VIA, &value);
        let router = Some(router.into());
        assert_eq!(read_route(&by_v6), Route { router, ..near });
        push_attribute(&mut attributes, RTA_GATEWAY, &[192, 0, 2, 254]);
        let router = Some(Ipv4Addr::new(192, 0, 2, 254).into());
        assert_eq!(read_route(&attributes), Route { router, ..near });
        // A length beyond the end.
        attributes.extend([9, 0, 1, 0]);
        assert_eq!(read_route(&attributes), Route { router, ..near });
    }

    proptest! {
        #[test]
        fn answers_of_any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = read_answer(&bytes);
            let _ = read_route(&bytes);
            let _ = read_filters(&bytes, &mut Vec::new());
        }
    }
}

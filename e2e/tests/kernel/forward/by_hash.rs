//! Clients whose member is chosen by a hash of their address.

use std::collections::BTreeMap;
use std::net::UdpSocket;

use socket2::{Domain, Socket, Type};

use super::udp::{PATIENCE, ask};
use super::*;

/// Protocol of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

impl Machines {
    /// Gives the clients' machine further addresses, and returns them.
    fn add_clients(&self) -> Vec<IpAddr> {
        let name = self.clients.path();
        let name = name.file_name().unwrap().to_str().unwrap();
        let all = (20..44).map(|last| {
            let (v4, v6) = (format!("10.78.0.{last}"), format!("fd78::{last}"));
            let client = self.family.choose(v4, v6);
            let end = self.family.choose("/24", "/64 nodad");
            run_ip(&format!("-n {name} addr add {client}{end} dev client0"));
            client.parse().unwrap()
        });
        all.collect()
    }

    /// A member that sends each client the member's number, and the client's address as it sees it.
    fn start_named_member(&self, last: u8) {
        let at = self.family.member(last);
        let listener = self.pair.back.run_inside(|| TcpListener::bind(at).unwrap());
        thread::spawn(move || {
            while let Ok((mut stream, from)) = listener.accept() {
                let _ = write!(stream, "{last} {}", from.ip());
            }
        });
    }

    /// Configuration of a rule whose clients stay at a member.
    fn write_hash_config(&self, protocol: Protocol, forward: &str, members: &[u8]) -> String {
        let more = "strategy = { name = \"source_ip_hash\", bound = 0 }";
        match protocol {
            Protocol::Tcp => self.write_config(forward, members, more),
            Protocol::Udp => self.write_udp_config(forward, members, more),
        }
    }

    /// Returns the number of the member that a new connection or session of a client gets, and the client's address as the
    /// member sees it.
    fn find_member(&self, protocol: Protocol, client: IpAddr) -> (u8, IpAddr) {
        let (at, to) = (SocketAddr::new(client, 0), self.family.rule());
        if protocol == Protocol::Udp {
            let socket = self.clients.run_inside(|| UdpSocket::bind(at).unwrap());
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let answer = ask(&socket, 100).unwrap();
            return (answer.last, answer.seen.ip());
        }
        let connect = || {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.bind(&at.into())?;
            socket.connect_timeout(&to.into(), HANG)?;
            Ok::<_, std::io::Error>(TcpStream::from(socket))
        };
        let mut stream = self.clients.run_inside(connect).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (last, seen) = text.split_once(' ').unwrap();
        (last.parse().unwrap(), seen.parse().unwrap())
    }

    /// Returns the member of each client. All are served by the kernel, or by the proxy.
    fn list_members(
        &self,
        protocol: Protocol,
        clients: &[IpAddr],
        is_in_kernel: bool,
    ) -> BTreeMap<IpAddr, u8> {
        let find = |client: &IpAddr| {
            let (last, seen) = self.find_member(protocol, *client);
            let expected = if is_in_kernel {
                *client
            } else {
                self.family.balancer()
            };
            assert_eq!(seen, expected, "{protocol:?}: half NAT, or the proxy");
            (*client, last)
        };
        clients.iter().map(find).collect()
    }
}

fn check_clients_of_an_address_stay(family: Family, protocol: Protocol) {
    let Some(machines) = Machines::new(family) else {
        return;
    };
    let clients = machines.add_clients();
    for last in [2, 3, 4] {
        match protocol {
            Protocol::Tcp => machines.start_named_member(last),
            Protocol::Udp => machines.start_udp_member(last),
        }
    }
    let config =
        |forward: &str, members: &[u8]| machines.write_hash_config(protocol, forward, members);
    let command = machines.pair.front.command(evenkeel_binary());
    let Some(balancer) = machines.start_balancer_by(command, &config("kernel", &[2, 3, 4])) else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let reload = |config: &str| {
        let front = &machines.pair.front;
        front.run_inside(|| balancer.reconfigure(config));
    };
    let list = |is_in_kernel| machines.list_members(protocol, &clients, is_in_kernel);
    let before = list(true);
    let find_client = |last: u8| {
        let mut found = before.iter().filter(|(_, member)| **member == last);
        *found
            .next()
            .unwrap_or_else(|| panic!("no client of {last}: {before:?}"))
            .0
    };
    let [_, _, moving] = [2, 3, 4].map(find_client);
    assert_eq!(list(true), before);

    // Only the clients of the member that goes away move.
    reload(&config("kernel", &[2, 3]));
    wait_until("clients of the member go to others", || {
        machines.find_member(protocol, moving).0 != 4
    });
    for (client, last) in list(true) {
        match before[&client] {
            4 => assert_ne!(last, 4, "{client}"),
            stays => assert_eq!(last, stays, "{client}"),
        }
    }

    // They come back with the member.
    reload(&config("kernel", &[2, 3, 4]));
    wait_until("the clients of the member come back", || {
        machines.find_member(protocol, moving).0 == 4
    });
    assert_eq!(list(true), before);

    // The proxy chooses the same members.
    reload(&config("proxy", &[2, 3, 4]));
    wait_until("the proxy serves", || {
        machines.find_member(protocol, moving).1 == family.balancer()
    });
    assert_eq!(list(false), before);
}

#[test]
fn s41_connections_of_an_address_stay_at_a_member() {
    for family in BOTH {
        check_clients_of_an_address_stay(family, Protocol::Tcp);
    }
}

#[test]
fn s41_sessions_of_an_address_stay_at_a_member() {
    for family in BOTH {
        check_clients_of_an_address_stay(family, Protocol::Udp);
    }
}

//! Sessions of UDP of one balancer that go on in the kernel of the other.

use std::net::UdpSocket;

use super::super::udp::{Answer, PATIENCE, answer_datagrams, ask};
use super::*;

/// Last bytes of the addresses of members.
const MEMBERS: [u8; 2] = [MEMBER, MEMBER + 1];

impl Twins {
    fn find_member(&self, last: u8) -> SocketAddr {
        SocketAddr::new(find_address(self.family, 1, last), PORT)
    }

    /// Starts two members, which have an address each.
    fn start_udp_members(&self) {
        let (name, end) = (
            find_name(&self.member),
            self.family.choose("/24", "/64 nodad"),
        );
        let second = self.find_member(MEMBERS[1]).ip();
        run_ip(&format!(
            "-n {name} addr add {second}{end} dev {}",
            LINKS[1]
        ));
        for last in MEMBERS {
            let at = self.find_member(last);
            let socket = self.member.run_inside(|| UdpSocket::bind(at).unwrap());
            answer_datagrams(socket, last);
        }
    }

    /// Starts a balancer with a UDP rule; `None` if it is built without the programs, which is said.
    fn start_udp_balancer(&self, balancer: usize) -> Option<Balancer> {
        let [first, second] = MEMBERS.map(|last| self.find_member(last));
        self.start_balancer_with(balancer, |config| {
            let config = config.replace("\"tcp\"", "\"udp\"");
            let both = format!("\"{first}\", \"{second}\"");
            config.replace(&format!("\"{first}\""), &both)
                + "strategy = \"round_robin\"\nidle_timeout = \"600s\"\n"
        })
    }

    fn open_udp_client(&self) -> UdpSocket {
        let at = SocketAddr::new(find_address(self.family, 0, 2), 0);
        let socket = self.clients.run_inside(|| UdpSocket::bind(at).unwrap());
        socket.connect(self.rule()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Lets clients ask until a balancer counts this many sessions at the members, and has this many copies. Each answer must
    /// come from the session's member, which sees the same sender.
    fn talk_until(
        &self,
        clients: &[(UdpSocket, Answer)],
        (balancer, process): (usize, &Balancer),
        (in_flight, copied): (u64, u64),
    ) {
        let mut last = Value::Null;
        let what = format!("balancer {balancer} has {in_flight} sessions and {copied} copies");
        wait_until(&what, || {
            for (socket, first) in clients {
                assert_eq!(ask(socket, 100).unwrap(), *first, "{last}");
            }
            last = self.read(balancer, process, "/v1/forward");
            let counts =
                MEMBERS.map(|last_byte| count(&last, self.find_member(last_byte), "in_flight"));

            counts.iter().sum::<u64>() == in_flight && last["copies"]["copied_sessions"] == copied
        });
    }
}

fn check_sessions_go_on_at_the_other_balancer(family: Family, path: Path) {
    let Some(twins) = Twins::new(family, path) else {
        return;
    };
    twins.start_udp_members();
    twins.set_addresses(0, true);
    let Some(mut first) = twins.start_udp_balancer(0) else {
        return;
    };
    let second = twins.start_udp_balancer(1).unwrap();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let socket = twins.open_udp_client();
            let answer = ask(&socket, 10).unwrap();
            (socket, answer)
        })
        .collect();
    let of_first = clients.iter().filter(|(_, answer)| answer.last == MEMBER);
    assert_eq!(of_first.count(), 2, "turns: {clients:?}");
    // One question with its answer is not copied.
    let short = twins.open_udp_client();
    ask(&short, 10).unwrap();
    twins.talk_until(&clients, (1, &second), (0, 4));
    twins.talk_until(&clients, (0, &first), (5, 0));

    first.signal(Signal::KILL);
    first.wait_for_end();
    twins.move_addresses(1);
    twins.talk_until(&clients, (1, &second), (4, 0));
    let now = twins.read(1, &second, "/v1/forward");
    assert_eq!(now["copies"]["taken_over"], 4, "{now}");
    assert_eq!(now["packets"]["dropped"], 0, "{now}");
    assert_eq!(now["packets"]["proxied_session"], 0, "{now}");
    let picks = MEMBERS.map(|last| count(&now, twins.find_member(last), "picks"));
    assert_eq!(
        picks,
        [0, 0],
        "the members are the first one's choices: {now}"
    );

    // Back again, the first one gives up what it had, but for the session that is nowhere else.
    let first = twins.start_udp_balancer(0).unwrap();
    twins.talk_until(&clients, (0, &first), (1, 4));
    twins.move_addresses(0);
    twins.talk_until(&clients, (0, &first), (5, 0));
    twins.talk_until(&clients, (1, &second), (0, 4));
}

#[test]
fn s41_sessions_of_udp_go_on_at_the_other_balancer_through_the_members_route() {
    for family in BOTH {
        check_sessions_go_on_at_the_other_balancer(family, Path::Route);
    }
}

#[test]
fn s41_sessions_of_udp_go_on_at_the_other_balancer_with_full_nat() {
    for family in BOTH {
        check_sessions_go_on_at_the_other_balancer(family, Path::Nat);
    }
}

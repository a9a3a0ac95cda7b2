//! Defaults of groups: clients that are bound are balanced, and moved when loads drift apart.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::corba::LoadManager;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::omniorb::{self, Crowd};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;

const MEMBERS: usize = 4;

/// Requests of each client in a round: four clients are twice as busy as the others.
const RATES: [usize; 8] = [2, 2, 2, 2, 1, 1, 1, 1];

/// Returns the number of the member that answers the client's next request.
fn ask(client: &mut Wire) -> usize {
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let response = client.read_response();
    assert_eq!(response.second_word(), "200");
    response.text().parse().unwrap()
}

/// Has each client ask once more, or twice, and tells the balancer what the members had to do;
/// answers that, too.
fn round(balancer: &Balancer, clients: &mut [Wire]) -> [usize; MEMBERS] {
    let mut served = [0; MEMBERS];
    for (client, rate) in clients.iter_mut().zip(RATES) {
        (0..rate).for_each(|_| served[ask(client)] += 1);
    }
    for (location, count) in served.iter().enumerate() {
        let cpu = *count as f64 / 12.0;
        balancer
            .run_ctl(&format!("loads push l{location} cpu={cpu}"))
            .unwrap();
    }
    served
}

#[test]
fn b2_clients_of_a_rule_that_are_bound_on_demand_settle() {
    let named = |number: usize| Member::answering_with(move |_| ok_response(&number.to_string()));
    let members: Vec<Member> = (0..MEMBERS).map(named).collect();
    let listed: Vec<String> = members
        .iter()
        .enumerate()
        .map(|(number, member)| {
            let address = member.address();
            format!("{{ address = \"{address}\", location = \"l{number}\" }}")
        })
        .collect();
    let balancer = Balancer::start(&format!(
        "workers = 1\n\
         [admin]\n\
         listen = \"127.0.0.1:0\"\n\
         [rule.web]\n\
         listen = \"127.0.0.1:0\"\n\
         protocol = \"http\"\n\
         granularity = \"on_demand\"\n\
         slow_start = \"0s\"\n\
         members = [{}]\n",
        listed.join(", ")
    ));
    let status = balancer.status();
    assert_eq!(status["groups"][0]["strategy"], "minimum_dispersion");

    // All find one member only.
    for member in &members[1..] {
        let drain = format!("drain web {}", member.address());
        balancer.run_ctl(&drain).unwrap();
    }
    let mut clients: Vec<Wire> = RATES.iter().map(|_| balancer.connect()).collect();
    assert_eq!(round(&balancer, &mut clients), [12, 0, 0, 0]);
    for member in &members[1..] {
        let ready = format!("ready web {}", member.address());
        balancer.run_ctl(&ready).unwrap();
    }
    wait_until("every member has as much", || {
        round(&balancer, &mut clients) == [3; MEMBERS]
    });
    // And stays so.
    for _ in 0..20 {
        assert_eq!(round(&balancer, &mut clients), [3; MEMBERS]);
    }
}

/// The manual's snippet. What the servers report is no CPU load.
#[test]
fn b2_corba_clients_settle_without_any_setting() {
    if !omniorb::can_run() {
        return;
    }
    let balancer = Balancer::start("[corba]\nlisten = \"127.0.0.1:0\"\nstate_file = false\n");
    let manager = LoadManager::at_address(balancer.corba_address());
    let kind = "IDL:evenkeel.org/PeerTest/Peer:1.0";
    let (group, _) = manager.create_group(kind, Vec::new()).unwrap();
    let rates = RATES.map(|rate| rate * 25);
    let mut crowd = Crowd::start(balancer.corba_address(), &group.to_string(), rates);
    // The next best way to share them is 33 % off.
    crowd.wait_until_even(0.1);
    crowd.end_clients();
}

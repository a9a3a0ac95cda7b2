//! Effectiveness of adaptive on-demand binding: the experiment of Othman, O'Ryan and Schmidt,
//! "Strategies for CORBA Middleware-Based Load Balancing" (2001), with clients and servers of
//! omniORB. Four members, eight clients, four of them twice as busy as the others. The load is even
//! when each member has one client of each kind.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::corba::LoadManager;
use evenkeel_e2e::omniorb::{self, Crowd};
use evenkeel_e2e::runs_whole_papers;

const TYPE: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";

/// Requests per second of the clients: half of those of the original, for small machines.
const RATES: [usize; 8] = [50, 50, 50, 50, 25, 25, 25, 25];

#[test]
fn every_member_gets_its_share_and_it_stays() {
    if !omniorb::can_run() {
        return;
    }
    let balancer = Balancer::start(
        "[corba]\nlisten = \"127.0.0.1:0\"\nstate_file = false\n\
         [corba.groups]\nstrategy = \"minimum_dispersion\"\n\
         load = \"requests_per_second\"\nload_max_age = \"3s\"\n",
    );
    let manager = LoadManager::at_address(balancer.corba_address());
    let (group, _) = manager.create_group(TYPE, Vec::new()).expect("a group");
    let mut crowd = Crowd::start(balancer.corba_address(), &group.to_string(), RATES);
    crowd.wait_until_even(0.05);
    // It stays: the next best way to share them is 33 % off, and a machine that is busy with
    // something else is less.
    let times = if runs_whole_papers() { 3 } else { 1 };
    for _ in 0..times {
        let dispersion = crowd.dispersion();
        assert!(dispersion <= 0.2, "{dispersion}");
    }
    crowd.end_clients();
}

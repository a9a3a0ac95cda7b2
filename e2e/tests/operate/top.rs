//! `evenkeel top` in a terminal.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::Member;
use evenkeel_e2e::terminal::Terminal;
use evenkeel_e2e::wait_until;

#[test]
fn a_member_is_found_and_drained_in_the_live_view() {
    let members = [Member::echoing_targets(), Member::echoing_targets()];
    let mut addresses = members.each_ref().map(Member::address);
    addresses.sort_by_key(ToString::to_string);
    let [first, last] = addresses;
    let balancer = Balancer::start_http(&[first, last], "");
    let admin = balancer.admin_address().to_string();
    let mut top = Terminal::start(&["top", "--admin", &admin], 100, 30);

    top.wait_for("1 group  0 req/s  2 of 2 members up");
    top.press("\r");
    top.wait_for("MEMBER ");
    // By name, the other way round: the last one is above the first one.
    top.press(">");
    top.wait_for("MEMBER▲");
    top.press("I");
    top.wait_for("MEMBER▼");
    wait_until("the members have changed places", || {
        let lines = top.lines();
        lines[3].starts_with(&last.to_string()) && lines[4].starts_with(&first.to_string())
    });

    // The cursor has stayed with the first one.
    top.press("d");
    top.wait_for(&format!("Drain {first} in web?"));
    assert_eq!(balancer.member_status("web", first)["state"], "up");
    top.press("y");
    top.wait_for(&format!("{first} in web drains"));
    top.wait_for("draining");
    assert_eq!(balancer.member_status("web", first)["state"], "draining");
    assert_eq!(balancer.member_status("web", last)["state"], "up");

    // Back among all groups, and then alone.
    top.press("\u{1b}");
    top.wait_for("1 of 2 members up");
    drop(balancer);
    top.wait_for(" OLD: ");
    top.wait_for("1 of 2 members up");
    top.press("q");
    assert!(top.wait_for_end().success());
}

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::Limits;
use evenkeel_core::cost::Cost;
use evenkeel_core::group::GroupSettings;
use evenkeel_core::member::Reason;
use evenkeel_core::time::Instant;
use evenkeel_kernel::forward::InterfaceState;
use evenkeel_manager::snapshot::GroupHandle;

use super::*;
use crate::terms::{Buffers, find_terms};
use crate::testing;

/// Interfaces of the tests: the first has the program.
const WITH: u32 = 90_000;
const WITHOUT: u32 = 90_001;

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 77, 0, last], 8080))
}

/// A rule with the members 1 and 2, and the routes to these members.
struct Scene {
    rule: PlannedRule,
    group: Arc<Group>,
    obstacles: Obstacles,
    nat: Nat,
    interfaces: Interfaces,
}

impl Scene {
    /// Member 1 is behind an interface with the program, and member 2 behind one without.
    fn new(return_path: ReturnPath, udp: Option<UdpTerms>) -> Self {
        let members = [1, 2].map(|last| testing::member(last.into(), address(last)));
        let group = testing::group("adaptive", GroupSettings::default(), members.into());
        let group = Arc::new(group);
        let rule = PlannedRule {
            name: "db".into(),
            listeners: vec![SocketAddr::from(([10, 78, 0, 1], 8080))],
            group: Arc::new(GroupHandle::new(Arc::clone(&group), 0)),
            cost: Cost::ONE,
            return_path,
            anycast: false,
            retries: 0,
            idle: Duration::from_secs(600),
            connect: Duration::from_secs(3),
            udp,
            max_connections: None,
            limits: Limits::default(),
            is_limited: false,
        };
        let mut scene = Scene {
            rule,
            group,
            obstacles: Obstacles::default(),
            nat: Nat::default(),
            interfaces: Interfaces::default(),
        };
        scene
            .interfaces
            .set_states(&BTreeMap::from([(WITH, InterfaceState::Tcx)]));
        scene.lead(1, Some(WITH));
        scene.lead(2, Some(WITHOUT));
        scene
    }

    /// Sets the interface on the way to a member; `None` without a route.
    fn lead(&mut self, last: u8, interface: Option<u32>) {
        let route = Route {
            interface,
            ..Route::default()
        };
        self.obstacles.routes.insert(address(last).ip(), route);
    }

    /// Returns the reason why the proxy serves the rule in a round.
    fn find_reason(&mut self) -> Option<String> {
        let now = Instant::from_nanos(1);
        let members = find_terms(&self.group, now, &mut Buffers::default()).members;
        self.obstacles.begin_round(false);
        let machine = (&self.nat, &self.interfaces);
        let is_allowed = self
            .obstacles
            .allow(&self.rule, (&self.group, &members), machine);
        self.obstacles.end_round();
        let reason = self.obstacles.list_reasons().get("db").cloned();
        assert_eq!(is_allowed, reason.is_none());
        reason
    }
}

#[test]
fn s41_the_proxy_serves_members_whose_answers_would_pass_the_program() {
    for return_path in [ReturnPath::Route, ReturnPath::Nat] {
        let mut scene = Scene::new(return_path, None);
        let reason = scene.find_reason().unwrap();
        assert!(
            reason.contains("m2") && reason.contains("90001"),
            "{reason}"
        );
        // The kernel refuses the program there.
        let refused = InterfaceState::Refused("no room".into());
        let states = BTreeMap::from([(WITH, InterfaceState::Tcx), (WITHOUT, refused)]);
        scene.interfaces.set_states(&states);
        assert!(
            scene
                .find_reason()
                .is_some_and(|reason| reason.contains("refuses the program"))
        );
        // The route changes, or the interface gets the program.
        scene.lead(2, Some(WITH));
        assert_eq!(scene.find_reason(), None);
        scene.lead(2, Some(WITHOUT));
        assert!(scene.find_reason().is_some());
        let states = BTreeMap::from([(WITH, InterfaceState::Tcx), (WITHOUT, InterfaceState::Tcx)]);
        scene.interfaces.set_states(&states);
        assert_eq!(scene.find_reason(), None);
        // The interface of the other member is gone.
        scene
            .interfaces
            .set_states(&BTreeMap::from([(WITHOUT, InterfaceState::Tcx)]));
        assert!(
            scene
                .find_reason()
                .is_some_and(|reason| reason.contains("m1"))
        );
    }
}

#[test]
fn s41_members_that_get_nothing_or_have_no_route_are_no_obstacle() {
    let mut scene = Scene::new(ReturnPath::Route, None);
    for interface in [None, Some(LOOPBACK)] {
        scene.lead(2, interface);
        assert_eq!(scene.find_reason(), None, "{interface:?}");
    }
    scene.lead(2, Some(WITHOUT));
    assert!(scene.find_reason().is_some());
    let group = Arc::clone(&scene.group);
    let slot = &group.members()[1].slot;
    slot.set(Reason::Maintenance, true);
    assert_eq!(scene.find_reason(), None);
    slot.set(Reason::Maintenance, false);
    assert!(scene.find_reason().is_some());
}

#[test]
fn s41_answers_that_need_no_program_are_no_obstacle() {
    for return_path in [ReturnPath::Direct, ReturnPath::Tunnel] {
        assert_eq!(Scene::new(return_path, None).find_reason(), None);
    }
    // Of UDP, too, whatever is expected. Tunnels are no way out of a router.
    let sessions = UdpTerms {
        answer_timeout: Duration::from_secs(2),
        expects_answer: false,
        is_quic: false,
        is_single: false,
    };
    let mut scene = Scene::new(ReturnPath::Direct, Some(sessions));
    assert_eq!(scene.find_reason(), None);
    let far = Route {
        router: Some(address(99).ip()),
        interface: Some(WITH),
        ..Route::default()
    };
    scene.obstacles.routes.insert(address(2).ip(), far);
    let reason = scene.find_reason().unwrap();
    assert!(
        reason.contains("10.77.0.99") && !reason.contains("tunnel"),
        "{reason}"
    );
    for (expects_answer, is_single, is_obstacle) in [
        (true, false, true),
        (true, true, true),
        // A member that need not answer may.
        (false, false, true),
        (false, true, false),
    ] {
        let udp = UdpTerms {
            answer_timeout: Duration::from_secs(2),
            expects_answer,
            is_quic: false,
            is_single,
        };
        let reason = Scene::new(ReturnPath::Route, Some(udp)).find_reason();
        assert_eq!(reason.is_some(), is_obstacle, "{udp:?}");
    }
}

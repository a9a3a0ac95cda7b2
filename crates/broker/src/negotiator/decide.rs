//! Decision about which client gets which member, for how long, and which client gets none.
//!
//! The member is chosen by the group's own strategy, of which Mohamed-Salem, Chen, Bochmann and Wong describe
//! four for this very purpose ("An Experimental Prototype for Scalable Server Selection", 2003, section 4).
//! This module decides which members are good enough for a client, and its quantum.

use std::net::IpAddr;
use std::time::Duration;

use evenkeel_config::{Quantum, Terms};
use evenkeel_core::group::{Advice, Granularity, Group, PickError, Request, View};
use evenkeel_core::load::LoadId;
use evenkeel_core::member::{MemberId, Reason};
use evenkeel_core::time::Instant;

/// Wish of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientRequest<'a> {
    /// Terms of the client's class.
    pub terms: &'a Terms,
    /// The mean response time that it wants, instead of that of its class.
    pub response_time: Option<Duration>,
    /// Members that it could not reach, by name.
    pub avoid: &'a [String],
    /// Members beside the chosen one that it wants to know.
    pub alternatives: usize,
    /// Address of the client.
    pub client: IpAddr,
    /// True if the client comes from a member under a load alert, which has sent it back.
    pub sent_back: bool,
    /// The member that it has now, by name.
    pub current: Option<&'a str>,
    /// True if the client asks no oftener than a client that uses its quanta.
    pub is_vouched: bool,
}

/// Grant to a client: its member and quantum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Index of its member.
    pub member: usize,
    /// Time for which the client may use the member, in seconds.
    pub quantum: u64,
    /// Other members that would do as well, in no particular order.
    pub alternatives: Vec<usize>,
}

/// Reason why a client gets no member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Refusal {
    /// No member takes traffic.
    NoMember,
    /// No member is known to have the response time.
    ResponseTime(Duration),
    /// No member has room left for the class.
    Class(f32),
}

/// Members that are out of the question for a client.
struct Exclusion {
    /// Reason why members are not good enough, if any is not.
    why: Option<Refusal>,
    /// Members that the client could not reach: chosen if there are no others.
    avoided: Vec<MemberId>,
}

/// Adds the members that are out of the question to those in `excluded`, which are in order then.
fn exclude_all(
    view: &View<'_>,
    wish: &ClientRequest<'_>,
    excluded: &mut Vec<MemberId>,
) -> Exclusion {
    let why = exclude(view, wish, excluded);
    if wish.sent_back {
        exclude_shedding(view, excluded);
    }
    // A wish only: one that cannot be met is better served by a member that perhaps came
    // back than not at all.
    excluded.sort_unstable();
    let avoided = avoided(view, wish, excluded);
    excluded.extend(&avoided);
    excluded.sort_unstable();
    Exclusion { why, avoided }
}

/// The request of a client for any member but those in `excluded`.
fn request_of<'a>(wish: &ClientRequest<'_>, now: Instant, excluded: &'a [MemberId]) -> Request<'a> {
    Request {
        client: Some(wish.client),
        excluded_members: excluded,
        ..Request::at_time(now)
    }
}

/// Returns the request about which a chooser is asked; `None` if the client keeps the member that it has.
/// Members in `excluded` are not chosen; the members that are not good enough are added.
pub(super) fn request_to_choose<'a>(
    group: &Group,
    wish: &ClientRequest<'_>,
    now: Instant,
    excluded: &'a mut Vec<MemberId>,
) -> Option<Request<'a>> {
    let request = Request::at_time(now);
    let view = group.view_for(&request).despite_alerts();
    exclude_all(&view, wish, excluded);
    match stays(&view, wish, excluded) {
        Some(_) => None,
        None => Some(request_of(wish, now, excluded)),
    }
}

/// Decides, and counts the client at its member. Members in `excluded` are not chosen; the vector is room for
/// the work, too. `advice` is what a chooser says, if one was asked.
pub(super) fn decide_grant(
    group: &Group,
    wish: &ClientRequest<'_>,
    advice: Option<Advice>,
    now: Instant,
    rng: &mut fastrand::Rng,
    excluded: &mut Vec<MemberId>,
) -> Result<Grant, Refusal> {
    let request = Request::at_time(now);
    // A member under a load alert serves those whom nobody else can: it must be good
    // enough for them, too.
    let view = group.view_for(&request).despite_alerts();
    let Exclusion { why, avoided } = exclude_all(&view, wish, excluded);
    let ask = |excluded: &[MemberId], rng: &mut fastrand::Rng| {
        let request = request_of(wish, now, excluded);
        match advice {
            Some(advice) => group.choose_advised(&request, advice, rng),
            None => group.choose_member(&request, rng),
        }
    };
    let mut chosen = match stays(&view, wish, excluded) {
        Some(member) => Ok(member),
        None => ask(excluded, rng),
    };
    if chosen == Err(PickError::NoneEligible) && !avoided.is_empty() {
        excluded.retain(|id| !avoided.contains(id));
        chosen = ask(excluded, rng);
    }
    let member = chosen.map_err(|_| why.unwrap_or(Refusal::NoMember))?;
    let quantum = quantum(&view, member, wish.terms.quantum);
    let alternatives = alternatives(&view, member, wish.alternatives, excluded, rng);
    group.assign_client(member, Duration::from_secs(quantum), now);
    if !wish.is_vouched {
        group.doubt_client(member);
    }
    Ok(Grant {
        member,
        quantum,
        alternatives,
    })
}

/// The member that a client has and keeps, in a group on demand that looks at loads: until it is
/// under a load alert, or not good enough any more. If each client went to the least loaded
/// member after each quantum, those would change places for ever.
fn stays(view: &View<'_>, wish: &ClientRequest<'_>, excluded: &[MemberId]) -> Option<usize> {
    let settings = view.settings();
    if settings.granularity != Granularity::OnDemand || !settings.adaptive || wish.sent_back {
        return None;
    }
    let current = wish.current?;
    let members = view.members();
    let index = members.iter().position(|member| *member.name == *current)?;
    let is_kept = view.is_eligible_unless_full(index)
        && !view.slot(index).has_reason(Reason::Shedding)
        && excluded.binary_search(&members.get(index)?.id).is_err();
    is_kept.then_some(index)
}

/// The members that a client could not reach, of those that are not excluded anyway.
fn avoided(view: &View<'_>, wish: &ClientRequest<'_>, excluded: &[MemberId]) -> Vec<MemberId> {
    if wish.avoid.is_empty() {
        return Vec::new();
    }
    let members = view.members().iter().filter(|member| {
        let in_file = member.in_file();
        let mut names = wish.avoid.iter();
        names.any(|name| **name == *member.name || name == in_file)
            && excluded.binary_search(&member.id).is_err()
    });
    members.map(|member| member.id).collect()
}

/// Excludes those that are not good enough; answers why, if there was any.
fn exclude(
    view: &View<'_>,
    wish: &ClientRequest<'_>,
    excluded: &mut Vec<MemberId>,
) -> Option<Refusal> {
    let response_time = wish.response_time.or(wish.terms.response_time);
    let utilization = wish.terms.max_utilization;
    if response_time.is_none() && utilization.is_none() {
        return None;
    }
    let mean = utilization.and_then(|_| mean_of(view, |index| view.vouched_load(index)));
    let mut why = None;
    for (index, member) in view.members().iter().enumerate() {
        if !view.is_eligible_unless_full(index) {
            // Backups stand in for members that cannot serve, not for those that are slow.
            if view.slot(index).has_reason(Reason::Standby) {
                excluded.push(member.id);
            }
            continue;
        }
        // Stronger than the other reason: a lower class is refused before anybody asks
        // how fast a member is.
        if let Some(max) = utilization
            && let Some(load) = view.vouched_load(index).or(mean)
            && load >= max
        {
            excluded.push(member.id);
            why = Some(Refusal::Class(max));
        } else if let Some(wanted) = response_time
            && response_time_of(view, index).is_none_or(|seconds| seconds > wanted.as_secs_f32())
        {
            excluded.push(member.id);
            why = why.or(Some(Refusal::ResponseTime(wanted)));
        }
    }
    why
}

/// Excludes members under a load alert, if others take clients: a client that was sent back by one of them
/// would only be sent back again, however good the member is otherwise. There always is another member,
/// unless it has just gone.
fn exclude_shedding(view: &View<'_>, excluded: &mut Vec<MemberId>) {
    let sheds = |index: &usize| view.slot(*index).has_reason(Reason::Shedding);
    let taking = || (0..view.len()).filter(|&index| view.is_eligible_unless_full(index));
    if taking().any(|index| !sheds(&index)) {
        let members = view.members();
        let shedding = taking()
            .filter(sheds)
            .filter_map(|index| members.get(index));
        excluded.extend(shedding.map(|member| member.id));
    }
}

/// The mean response time of a member in seconds: what its location reports, else what
/// this process has seen of it lately. `None` is unknown, and nothing to be promised.
fn response_time_of(view: &View<'_>, index: usize) -> Option<f32> {
    let settings = view.settings();
    let (now, max_age) = (view.decision_time(), settings.load_max_age);
    let location = view.location(index);
    let reported = location
        .fresh_load(LoadId::RESPONSE_TIME, now, max_age)
        .filter(|_| settings.adaptive);
    // The average of what was seen decays without requests, and would promise the more
    // the longer nobody has looked.
    let is_seen = || view.slot(index).record().recent(now, max_age).total > 0;
    reported.or_else(|| view.latency(index).filter(|_| is_seen()))
}

/// The mean of the known loads, with what was assigned since they were reported.
fn mean_load(view: &View<'_>) -> Option<f32> {
    mean_of(view, |index| view.member_load(index))
}

fn mean_of(view: &View<'_>, load: impl Fn(usize) -> Option<f32>) -> Option<f32> {
    let loads = (0..view.len())
        .filter(|&index| view.is_eligible_unless_full(index))
        .filter_map(load);
    let (sum, count) = loads.fold((0.0, 0u32), |(sum, count), load| (sum + load, count + 1));
    (count > 0).then(|| sum / count as f32)
}

/// Returns the time for which the member may be used, in seconds.
///
/// A hot member gives short quanta, so that its clients soon ask again and can be sent elsewhere:
/// `max - u (max - min)`, cut to whole seconds, where `u` is how full the member is, from 0 to 1. If the group's load
/// is a utilisation, `u` is the member's load. For any other load, `u` is the load over twice the mean of all
/// members, so that an average member is half full. An unknown load counts as the mean; if all are unknown,
/// members are half full. A member under a load alert is full.
fn quantum(view: &View<'_>, member: usize, quantum: Quantum) -> u64 {
    let (min, max) = match quantum {
        Quantum::Fixed(time) => return time.as_secs(),
        Quantum::ByLoad { min, max } => (min, max),
    };
    let fullness = || {
        if view.slot(member).has_reason(Reason::Shedding) {
            return Some(1.0);
        }
        let own = view.member_load(member);
        if view.settings().load_id.is_utilization() {
            return own.or_else(|| mean_load(view));
        }
        let mean = mean_load(view)?;
        (mean > 0.0).then(|| own.unwrap_or(mean) / (2.0 * mean))
    };
    let full = fullness().unwrap_or(0.5).clamp(0.0, 1.0);
    let time = max.saturating_sub(max.saturating_sub(min).mul_f32(full));
    time.as_secs().clamp(min.as_secs(), max.as_secs())
}

/// Returns up to `count` other members that would do as well.
fn alternatives(
    view: &View<'_>,
    chosen: usize,
    count: usize,
    excluded: &[MemberId],
    rng: &mut fastrand::Rng,
) -> Vec<usize> {
    let members = view.members();
    if count == 0 || members.len() < 2 {
        return Vec::new();
    }
    // Not always the same ones, or they all get the clients of a member that fails.
    let start = rng.usize(..members.len());
    let all = (start..members.len()).chain(0..start);
    all.filter(|&index| {
        let id = members.get(index).map(|member| member.id);
        index != chosen
            && view.is_eligible_unless_full(index)
            && !view.slot(index).has_reason(Reason::Shedding)
            && id.is_none_or(|id| excluded.binary_search(&id).is_err())
    })
    .take(count)
    .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_config::{Reach, default_for};
    use evenkeel_control::analyzer::{Site, choose_alerted};
    use evenkeel_core::group::{GroupSettings, Outcome};
    use evenkeel_core::load::{LoadValue, Location};
    use evenkeel_core::member::{Member, Slot, Weight};
    use evenkeel_core::strategy::{Values, find};
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn group(members: usize, load_id: LoadId) -> Group {
        let member = |index: usize| Member {
            id: MemberId(index as u64 + 1),
            name: format!("m{index}:80").into(),
            given_name: None,
            address: std::net::SocketAddr::from(([192, 0, 2, 1], 80)).into(),
            host: "192.0.2.1".into(),
            max_connections: None,
            location: Arc::new(Location::new(format!("l{index}"))),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        };
        let members: Vec<_> = (0..members).map(member).collect();
        let values = Values::defaults(find("least_utilization").unwrap());
        let settings = GroupSettings {
            load_id,
            ..GroupSettings::default()
        };
        Group::new("g", settings, &values, members, Arc::default())
    }

    fn report(group: &Group, index: usize, id: LoadId, value: f64, ms: u64) {
        let value = LoadValue::new(value).unwrap();
        group.members()[index]
            .location
            .report_load(id, value, at(ms))
            .unwrap();
    }

    fn wish(terms: &Terms) -> ClientRequest<'_> {
        ClientRequest {
            terms,
            response_time: None,
            avoid: &[],
            alternatives: 0,
            client: IpAddr::from([192, 0, 2, 9]),
            sent_back: false,
            current: None,
            is_vouched: true,
        }
    }

    fn ask(group: &Group, wish: &ClientRequest<'_>, ms: u64) -> Result<Grant, Refusal> {
        let mut rng = fastrand::Rng::with_seed(ms);
        decide_grant(group, wish, None, at(ms), &mut rng, &mut Vec::new())
    }

    #[test]
    fn only_members_that_keep_the_response_time_are_given() {
        let group = group(3, LoadId::CPU);
        let terms = Terms::default();
        let wish = ClientRequest {
            response_time: Some(Duration::from_millis(100)),
            ..wish(&terms)
        };
        let refused = Err(Refusal::ResponseTime(Duration::from_millis(100)));
        assert_eq!(ask(&group, &wish, 1000), refused, "nothing is known");
        // The idle one is slow, the busy one is fast.
        for (index, load, seconds) in [(0, 0.1, 0.3), (1, 0.9, 0.1), (2, 0.2, 0.101)] {
            report(&group, index, LoadId::CPU, load, 1000);
            report(&group, index, LoadId::RESPONSE_TIME, seconds, 1000);
        }
        for _ in 0..20 {
            assert_eq!(ask(&group, &wish, 1500).map(|grant| grant.member), Ok(1));
        }
        assert_eq!(ask(&group, &wish, 17_000), refused, "all reports are old");

        // What was seen counts where nothing is reported, as long as it is fresh.
        let ticket = group.bind(2, at(17_000)).unwrap();
        ticket.finish(Outcome::Success, at(17_050));
        assert_eq!(ask(&group, &wish, 18_000).map(|grant| grant.member), Ok(2));
        assert_eq!(
            ask(&group, &wish, 40_000),
            refused,
            "nobody has looked since"
        );
        let strict = Terms {
            response_time: Some(Duration::from_millis(10)),
            ..Terms::default()
        };
        let of_class = super::tests::wish(&strict);
        let refused = Err(Refusal::ResponseTime(Duration::from_millis(10)));
        assert_eq!(ask(&group, &of_class, 18_000), refused);
    }

    #[test]
    fn lower_classes_are_refused_first() {
        let group = group(2, LoadId::CPU);
        let guest = Terms {
            max_utilization: Some(0.5),
            ..Terms::default()
        };
        let gold = Terms::default();
        assert!(
            ask(&group, &wish(&guest), 500).is_ok(),
            "nothing speaks against it"
        );
        // What a client costs is known from those before.
        (0..100).for_each(|_| group.assign_client(1, Duration::from_secs(1), at(500)));
        report(&group, 0, LoadId::CPU, 0.7, 1000);
        report(&group, 1, LoadId::CPU, 0.4, 1000);
        assert_eq!(
            ask(&group, &wish(&guest), 1001).map(|grant| grant.member),
            Ok(1)
        );
        // Between two reports, what was assigned fills it up.
        let refused = (0..1000).position(|_| ask(&group, &wish(&guest), 1002).is_err());
        assert!(refused.is_some_and(|after| after > 0), "{refused:?}");
        assert_eq!(ask(&group, &wish(&guest), 1003), Err(Refusal::Class(0.5)));
        assert!(ask(&group, &wish(&gold), 1003).is_ok());
        // One whose load is unknown is as loaded as the other.
        let group = super::tests::group(2, LoadId::CPU);
        report(&group, 0, LoadId::CPU, 0.7, 1000);
        assert_eq!(ask(&group, &wish(&guest), 1003), Err(Refusal::Class(0.5)));
    }

    #[test]
    fn s23_who_asks_all_the_time_has_nobody_refused() {
        let group = group(2, LoadId::CPU);
        let guest = Terms {
            max_utilization: Some(0.5),
            ..Terms::default()
        };
        for second in 1..20 {
            for index in 0..2 {
                (0..5).for_each(|_| {
                    group.assign_client(index, Duration::from_secs(5), at(second * 1000))
                });
                report(&group, index, LoadId::CPU, 0.3, second * 1000);
            }
        }
        let gold = Terms::default();
        let flood = ClientRequest {
            is_vouched: false,
            ..wish(&gold)
        };
        let asks = (0..1000).map(|_| ask(&group, &flood, 19_001));
        assert!(asks.into_iter().all(|granted| granted.is_ok()));
        assert!(ask(&group, &wish(&guest), 19_002).is_ok());
        // Those who are believed do fill it up; and without news of them they are gone again.
        let refused = (0..1000).position(|_| ask(&group, &wish(&guest), 19_003).is_err());
        assert!(refused.is_some_and(|after| after > 5), "{refused:?}");
        assert!(ask(&group, &wish(&guest), 19_004).is_err());
        assert!(ask(&group, &wish(&guest), 33_000).is_ok());
    }

    /// Eight clients that ask again when their quanta are over, four of them with 100 requests
    /// per second and four with 50; four members that report each second. For each second what
    /// the members had.
    fn negotiate(starts: [usize; 8], seed: u64) -> Vec<[f64; 4]> {
        const RATES: [f64; 8] = [100.0, 100.0, 100.0, 100.0, 50.0, 50.0, 50.0, 50.0];
        let mut settings = GroupSettings {
            granularity: Granularity::OnDemand,
            ..GroupSettings::default()
        };
        settings.load_id = LoadId::UTILIZATION;
        let values = default_for(&settings, Reach::Redirected);
        let members = group(4, LoadId::CPU).members().to_vec();
        let group = Group::new("g", settings, &values, members, Arc::default());
        let mut rng = fastrand::Rng::with_seed(seed);
        let terms = Terms::default();
        let mut at_member = starts;
        let mut until: [u64; 8] = std::array::from_fn(|_| rng.u64(0..10_000));
        let mut history = Vec::new();
        for ms in (1000..1_800_000).step_by(100) {
            for client in 0..8 {
                if ms < until[client] {
                    continue;
                }
                let current = format!("m{}:80", at_member[client]);
                let wish = ClientRequest {
                    current: Some(&current),
                    ..wish(&terms)
                };
                let grant =
                    decide_grant(&group, &wish, None, at(ms), &mut rng, &mut Vec::new()).unwrap();
                at_member[client] = grant.member;
                // It asks when it has a request again.
                until[client] = ms + 10_000 + rng.u64(0..2_000);
            }
            if ms % 1000 == 0 {
                let mut loads = [0.0; 4];
                for (client, &member) in at_member.iter().enumerate() {
                    loads[member] += RATES[client];
                }
                for (index, load) in loads.iter().enumerate() {
                    report(&group, index, LoadId::UTILIZATION, load / 1000.0, ms);
                }
                history.push(loads);
            }
            let site = |member: &Member| Site {
                load: member.location.fresh_load(
                    LoadId::UTILIZATION,
                    at(ms),
                    Duration::from_secs(15),
                ),
                takes_traffic: true,
                alerted: member.slot.has_reason(Reason::Shedding),
            };
            let sites: Vec<Site> = group.members().iter().map(site).collect();
            let threshold = group.alert_threshold().unwrap();
            let alerts = choose_alerted(threshold, &group.settings().alert, &sites);
            for (member, alert) in group.members().iter().zip(alerts) {
                member.slot.set(Reason::Shedding, alert);
            }
        }
        history
    }

    #[test]
    fn b2_without_any_setting_clients_that_negotiate_settle() {
        let mut times = Vec::new();
        for seed in 0..20 {
            for starts in [[0, 0, 1, 1, 2, 2, 3, 3], [0; 8]] {
                let history = negotiate(starts, seed);
                let off = history.iter().rposition(|loads| *loads != [150.0; 4]);
                let settled = off.map_or(0, |at| at + 1);
                assert!(settled < history.len(), "seed {seed}, {starts:?}");
                times.push(settled);
            }
        }
        times.sort_unstable();
        // Which client leaves is chance, so a few take long.
        assert!(times[times.len() / 2] <= 20, "{times:?}");
        assert!(times[times.len() * 3 / 4] <= 60, "{times:?}");
    }

    #[test]
    fn b2_a_client_keeps_its_member_until_that_sheds() {
        let mut group = group(3, LoadId::CPU);
        let terms = Terms::default();
        let stays = ClientRequest {
            current: Some("m2:80"),
            ..wish(&terms)
        };
        let given = |group: &Group, wish: &ClientRequest<'_>| {
            let given = (1001..1030).map(|ms| ask(group, wish, ms).unwrap().member);
            given.collect::<std::collections::HashSet<_>>()
        };
        assert_eq!(given(&group, &stays).len(), 3, "per request it does not");
        let settings = GroupSettings {
            granularity: Granularity::OnDemand,
            ..GroupSettings::default()
        };
        let values = default_for(&settings, Reach::Redirected);
        let members = group.members().to_vec();
        group = Group::new("g", settings, &values, members, Arc::default());
        report(&group, 2, LoadId::CPU, 0.9, 1000);
        report(&group, 1, LoadId::CPU, 0.1, 1000);
        assert_eq!(given(&group, &stays), [2].into());
        let unknown = ClientRequest {
            current: Some("gone:80"),
            ..stays
        };
        assert!(!given(&group, &unknown).contains(&2));
        let avoid = ["m2:80".to_owned()];
        let away = ClientRequest {
            avoid: &avoid,
            ..stays
        };
        assert!(!given(&group, &away).contains(&2));
        group.members()[2].slot.set(Reason::Shedding, true);
        assert!(!given(&group, &stays).contains(&2));
    }

    #[test]
    fn what_a_client_could_not_reach_it_does_not_get_again() {
        let group = group(3, LoadId::CPU);
        let terms = Terms::default();
        let avoid = ["m0:80".to_owned(), "m1:80".to_owned()];
        let some = ClientRequest {
            avoid: &avoid,
            alternatives: 5,
            ..wish(&terms)
        };
        for ms in 0..20 {
            let grant = ask(&group, &some, ms + 1).unwrap();
            assert_eq!((grant.member, grant.alternatives), (2, vec![]));
        }
        let avoid = avoid.iter().cloned().chain(["m2:80".to_owned()]);
        let avoid: Vec<_> = avoid.collect();
        let all = ClientRequest {
            avoid: &avoid,
            ..some
        };
        assert!(ask(&group, &all, 5).is_ok(), "better than nothing");
        for member in group.members() {
            member.slot.set(Reason::Down, true);
        }
        assert_eq!(ask(&group, &all, 6), Err(Refusal::NoMember));
    }

    #[test]
    fn members_under_alert_serve_those_whom_nobody_else_can() {
        let group = group(3, LoadId::CPU);
        for (index, seconds) in [(0, 0.1), (1, 0.3), (2, 0.3)] {
            report(&group, index, LoadId::RESPONSE_TIME, seconds, 1000);
            group.members()[index]
                .slot
                .set(Reason::Shedding, index != 2);
        }
        let terms = Terms::default();
        let any = wish(&terms);
        let of = |milliseconds| ClientRequest {
            response_time: Some(Duration::from_millis(milliseconds)),
            alternatives: 3,
            ..any
        };
        for ms in 1001..1020 {
            assert_eq!(ask(&group, &any, ms).map(|grant| grant.member), Ok(2));
            let fast = ask(&group, &of(200), ms).unwrap();
            assert_eq!((fast.member, fast.alternatives), (0, vec![]));
        }
        assert!(ask(&group, &of(50), 1020).is_err());
        group.members()[2].slot.set(Reason::Shedding, true);
        let given = (1001..1050).map(|ms| ask(&group, &any, ms).unwrap().member);
        assert!(given.collect::<std::collections::HashSet<_>>().len() == 3);
    }

    #[test]
    fn who_was_sent_back_by_an_alert_is_not_sent_there_again() {
        let group = group(3, LoadId::CPU);
        for (index, seconds) in [(0, 0.1), (1, 0.3), (2, 0.3)] {
            report(&group, index, LoadId::RESPONSE_TIME, seconds, 1000);
        }
        let shed = |index: usize, on| group.members()[index].slot.set(Reason::Shedding, on);
        shed(0, true);
        let terms = Terms::default();
        let back = ClientRequest {
            response_time: Some(Duration::from_millis(200)),
            sent_back: true,
            ..wish(&terms)
        };
        // The only one that is fast enough sheds: it would send the client back for ever.
        let refused = Err(Refusal::ResponseTime(Duration::from_millis(200)));
        assert_eq!(ask(&group, &back, 1001), refused);
        // The same if it is the only one that others could be reached instead of.
        let avoid = ["m1:80".to_owned(), "m2:80".to_owned()];
        let elsewhere = ClientRequest {
            response_time: None,
            avoid: &avoid,
            ..back
        };
        let given = (1001..1020).map(|ms| ask(&group, &elsewhere, ms).unwrap().member);
        assert!(given.into_iter().all(|member| member != 0));
        // Where everybody sheds, somebody serves.
        shed(1, true);
        shed(2, true);
        assert_eq!(ask(&group, &back, 1002).map(|grant| grant.member), Ok(0));
    }

    #[test]
    fn a_hot_member_gives_short_quanta() {
        let group = group(2, LoadId::CPU);
        let by_load = Quantum::ByLoad {
            min: Duration::from_secs(10),
            max: Duration::from_secs(60),
        };
        let of = |group: &Group, member, ms| {
            let request = Request::at_time(at(ms));
            quantum(&group.view_for(&request), member, by_load)
        };
        assert_eq!(of(&group, 0, 1), 35, "half full, for all we know");
        report(&group, 0, LoadId::CPU, 0.5, 1000);
        report(&group, 1, LoadId::CPU, 1.7, 1000);
        assert_eq!((of(&group, 0, 1000), of(&group, 1, 1000)), (35, 10));
        report(&group, 0, LoadId::CPU, 0.0, 2000);
        assert_eq!(of(&group, 0, 2000), 60);
        group.members()[0].slot.set(Reason::Shedding, true);
        assert_eq!(of(&group, 0, 2000), 10);

        // Requests per second have no full: twice the average is.
        let group = super::tests::group(2, LoadId::REQUESTS_PER_SECOND);
        report(&group, 0, LoadId::REQUESTS_PER_SECOND, 300.0, 1000);
        report(&group, 1, LoadId::REQUESTS_PER_SECOND, 100.0, 1000);
        assert_eq!((of(&group, 0, 1000), of(&group, 1, 1000)), (22, 47));
    }

    proptest! {
        /// Whatever is known: who is given is good enough, and a quantum is in its range.
        #[test]
        fn a_grant_keeps_its_promise(
            loads in prop::collection::vec(prop::option::of((0.0f64..2.0, 0.0f64..0.4)), 1..8),
            down in any::<u8>(),
            max_utilization in prop::option::of(0.01f32..1.5),
            response_time in prop::option::of(1u64..400),
            alternatives in 0usize..5,
            seed in any::<u64>(),
        ) {
            let group = group(loads.len(), LoadId::CPU);
            for (index, load) in loads.iter().enumerate() {
                if let Some((cpu, seconds)) = load {
                    report(&group, index, LoadId::CPU, *cpu, 1000);
                    report(&group, index, LoadId::RESPONSE_TIME, *seconds, 1000);
                }
                group.members()[index].slot.set(Reason::Down, down & 1 << index != 0);
            }
            let by_load = Quantum::ByLoad {
                min: Duration::from_secs(3),
                max: Duration::from_secs(9),
            };
            let terms = Terms { quantum: by_load, max_utilization, ..Terms::default() };
            let wanted = response_time.map(Duration::from_millis);
            let wish = ClientRequest { response_time: wanted, alternatives, ..wish(&terms) };
            let mut rng = fastrand::Rng::with_seed(seed);
            let good = |index: usize| {
                let up = down & 1 << index == 0;
                let fast = wanted.is_none_or(|wanted| {
                    loads[index].is_some_and(|(_, s)| s as f32 <= wanted.as_secs_f32())
                });
                let room = max_utilization.zip(loads[index]).is_none_or(|(max, (u, _))| (u as f32) < max);
                up && fast && room
            };
            match decide_grant(&group, &wish, None, at(1001), &mut rng, &mut Vec::new()) {
                Ok(grant) => {
                    prop_assert!(good(grant.member));
                    prop_assert!((3..=9).contains(&grant.quantum));
                    prop_assert!(grant.alternatives.len() <= alternatives);
                    for &other in &grant.alternatives {
                        prop_assert!(other != grant.member && good(other));
                    }
                    let assigned = group.members()[grant.member].slot.record().assigned();
                    prop_assert_eq!(assigned, 1);
                }
                Err(_) => {
                    let known = |index: &usize| loads[*index].is_some();
                    prop_assert!(!(0..loads.len()).filter(known).any(good));
                    prop_assert!(group.members().iter().all(|m| m.slot.record().assigned() == 0));
                }
            }
        }
    }
}

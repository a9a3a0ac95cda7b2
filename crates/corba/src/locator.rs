//! The member locator: sends clients of a group to its members.
//!
//! Whatever is asked of a group, `_is_a` and `_non_existent` too, is answered with a
//! forward to the member that the group's strategy chooses (Balasubramanian, Schmidt,
//! Dowdy and Othman, "Evaluating the Performance of Middleware Load Balancing Strategies",
//! 2004, section 2). The member's reference was written down when it joined, so that an
//! answer is a decision and a copy: no lock, no allocation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_control::forward::{Advice, Trail};
use evenkeel_core::group::{self, Granularity, Group, GroupSettings, PickError, Request};
use evenkeel_core::member::{MemberId, Reason};
use evenkeel_core::time::Instant;
use evenkeel_giop::exception::{Kind, SystemException};

use crate::directory::{Answer, Entry, Reference};
use crate::reply_to::ReplyTo;

/// State that the locator keeps for a connection.
#[derive(Debug)]
pub struct Client {
    /// IP address of the client.
    pub address: IpAddr,
    /// Chance, for strategies.
    pub rng: fastrand::Rng,
    /// Members that the client was sent to, for alerts that last until enough clients have left.
    pub trails: Trails,
}

impl Client {
    /// The client on a connection from `address`.
    pub fn new(address: IpAddr, rng: fastrand::Rng) -> Self {
        Client {
            address,
            rng,
            trails: Trails::default(),
        }
    }

    /// Returns the same client for a task that answers later.
    pub fn fork(&mut self) -> Self {
        Client {
            address: self.address,
            rng: self.rng.fork(),
            trails: self.trails.clone(),
        }
    }
}

/// The trail of a connection in each group, by the group's id. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Trails(Rc<RefCell<HashMap<u64, Trail>>>);

/// Most groups in which a connection has a trail; in further ones it is unknown.
const MOST_TRAILS: usize = 256;

impl Trails {
    fn with<R>(&self, group: u64, does: impl FnOnce(&mut Trail) -> R) -> R {
        let mut trails = self.0.borrow_mut();
        if trails.len() >= MOST_TRAILS && !trails.contains_key(&group) {
            return does(&mut Trail::default());
        }
        does(trails.entry(group).or_default())
    }

    /// Returns the longest time that a client of this group waits if nothing changes.
    pub fn longest_wait(&self, group: u64, now: Instant) -> Duration {
        self.with(group, |trail| trail.longest_wait(now))
    }
}

/// Decision about a client.
#[derive(Clone, Copy, Debug)]
pub enum Decision<'a> {
    /// The client goes to this member.
    Go(ChosenMember<'a>),
    /// The client goes back to the member that it came from, and is not counted again.
    Back(ChosenMember<'a>),
    /// The client waits. It is looked at again when something has changed, or after
    /// [`Trails::longest_wait`].
    Wait,
}

/// Members that one decision may find that the directory does not know (yet).
const MOST_UNKNOWN: usize = 4;

/// A member that was chosen.
#[derive(Clone, Copy, Debug)]
pub struct ChosenMember<'a> {
    /// Index of the member in the group.
    pub index: usize,
    /// Reference of the member.
    pub reference: &'a Arc<Reference>,
}

/// Chooses a member of `group`, which is the current one of `entry`, without counting
/// anybody there. `advice` is what came of the question to a custom strategy, if the group has one.
///
/// # Errors
///
/// Nobody may be used: [`no_member_exception`] is what the client is told.
#[inline]
pub fn choose_member<'a>(
    entry: &'a Entry,
    group: &Group,
    client: &mut Client,
    advice: Option<group::Advice>,
    now: Instant,
) -> Result<ChosenMember<'a>, PickError> {
    let mut unknown = [MemberId(0); MOST_UNKNOWN];
    for known in 0..=MOST_UNKNOWN {
        let tried = unknown.get(..known).unwrap_or_default();
        let request = Request {
            client: Some(client.address),
            excluded_members: tried,
            ..Request::at_time(now)
        };
        let index = match advice {
            None => group.choose_member(&request, &mut client.rng)?,
            Some(advice) => group.choose_advised(&request, advice, &mut client.rng)?,
        };
        if let Some(reference) = entry.member(group, index) {
            return Ok(ChosenMember { index, reference });
        }
        if let Some(member) = group.members().get(index)
            && let Some(found) = unknown.get_mut(..=known)
            && let Some(place) = found.last_mut()
        {
            *place = member.id;
            found.sort_unstable();
        }
    }
    Err(PickError::NoneEligible)
}

/// Decides about a client of `group`, which is the current one of `entry`, without counting
/// it anywhere: by the load alerts that are on, or else by the strategy.
///
/// # Errors
///
/// As with [`choose_member`].
#[inline]
pub fn decide_for_client<'a>(
    entry: &'a Entry,
    group: &Group,
    client: &mut Client,
    now: Instant,
) -> Result<Decision<'a>, PickError> {
    if let Some(decision) = decide_by_alerts(entry, group, client, now) {
        return Ok(decision);
    }
    let chosen = choose_member(entry, group, client, None, now)?;
    match must_wait(entry, group, chosen, client, now) {
        true => Ok(Decision::Wait),
        false => Ok(Decision::Go(chosen)),
    }
}

/// Returns the decision that load alerts make about a client; `None` if they leave it to the
/// strategy.
#[inline]
pub fn decide_by_alerts<'a>(
    entry: &'a Entry,
    group: &Group,
    client: &Client,
    now: Instant,
) -> Option<Decision<'a>> {
    if !group.settings().alert.pulses {
        return None;
    }
    let advice = client
        .trails
        .with(entry.id, |trail| trail.advise_client(group, now));
    let chosen = |index| {
        let reference = entry.member(group, index)?;
        Some(ChosenMember { index, reference })
    };
    match advice {
        Advice::Free => None,
        Advice::Wait => Some(Decision::Wait),
        Advice::To(index) => chosen(index).map(Decision::Go),
        Advice::Back(index) => chosen(index).map(Decision::Back),
    }
}

/// Returns true if the client has to wait because the chosen member sends everybody back.
#[inline]
pub fn must_wait(
    entry: &Entry,
    group: &Group,
    chosen: ChosenMember<'_>,
    client: &Client,
    now: Instant,
) -> bool {
    let member = group.members().get(chosen.index);
    member.is_some_and(|member| {
        // The trail is looked up only where it is needed.
        member.location.is_shut()
            && client.trails.with(entry.id, |trail| {
                trail.must_ask_later(&member.location, now)
            })
    })
}

/// Answers a request to a group with a forward to a member, or with TRANSIENT; `false` if
/// the client has to wait, and is to be asked about again.
#[inline]
#[must_use]
pub fn answer_request(
    entry: &Entry,
    client: &mut Client,
    now: Instant,
    reply_to: ReplyTo,
    out: &mut Vec<u8>,
) -> bool {
    let group = entry.handle.current.load();
    match decide_for_client(entry, &group, client, now) {
        Ok(Decision::Wait) => return false,
        Ok(Decision::Go(chosen)) => {
            forward_client(entry, &group, chosen, client, now, reply_to, out);
            entry.counters.count(Answer::Forwarded);
        }
        Ok(Decision::Back(chosen)) => {
            send_back(entry, chosen, reply_to, out);
        }
        Err(_) => refuse_client(entry, reply_to, out),
    }
    true
}

/// Sends a client to the member that was chosen, and counts the client there. The caller counts the answer.
#[inline]
pub fn forward_client(
    entry: &Entry,
    group: &Group,
    chosen: ChosenMember<'_>,
    client: &Client,
    now: Instant,
    reply_to: ReplyTo,
    out: &mut Vec<u8>,
) {
    reply_to.write_forward(chosen.reference.bytes(reply_to.endian), out);
    group.assign_client(chosen.index, expected_stay(group.settings()), now);
    if group.settings().alert.pulses {
        let leads = |trail: &mut Trail| trail.leads_to(group, chosen.index);
        client.trails.with(entry.id, leads);
    }
}

/// Sends a client back to the member where it was.
pub fn send_back(entry: &Entry, chosen: ChosenMember<'_>, reply_to: ReplyTo, out: &mut Vec<u8>) {
    reply_to.write_forward(chosen.reference.bytes(reply_to.endian), out);
    entry.counters.count(Answer::Forwarded);
}

/// Tells a client that nobody can take it now.
pub fn refuse_client(entry: &Entry, reply_to: ReplyTo, out: &mut Vec<u8>) {
    reply_to.write_exception(no_member_exception(entry), out);
    entry.counters.count(Answer::Transient);
}

/// Returns the exception for a client that no member can take: the client may try again.
/// OBJECT_NOT_EXIST is for ever, and makes clients throw the group's reference away. A client gets
/// it only if the configuration asks for it ([`WhenEmpty`]), and only from a group in which nobody
/// is left.
///
/// [`WhenEmpty`]: evenkeel_config::WhenEmpty
#[cold]
pub fn no_member_exception(entry: &Entry) -> SystemException {
    let group = entry.handle.current.load();
    let mut members = group.members().iter();
    let is_empty = members.all(|member| member.slot.has_reason(Reason::Dead));
    match is_empty && entry.ends_when_empty.load(Ordering::Relaxed) {
        true => SystemException::new(Kind::ObjectNotExist),
        false => SystemException::new(Kind::Transient),
    }
}

/// Time that a forwarded client will probably stay at its member. The cost of one client is
/// estimated from it until the next report ([`Group::assign_client`]).
///
/// Per session, and on demand with feedback, a binding has no end that anybody could know
/// of: until the client's program ends, or the member sheds it. The interval after which a
/// binding without feedback ends is then taken as well: a client is there for about a
/// minute, unless the group says otherwise.
#[inline]
pub fn expected_stay(settings: &GroupSettings) -> Duration {
    match settings.granularity {
        // The next request comes here again.
        Granularity::PerRequest => Duration::ZERO,
        Granularity::PerSession | Granularity::OnDemand => settings.rebind_interval,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use evenkeel_core::member::Reason;
    use evenkeel_giop::cdr::{Endian, Reader};
    use evenkeel_giop::ior::Ior;
    use evenkeel_giop::message::{Content, LocateStatus, Message, ReplyStatus, Version};

    use super::*;
    use crate::directory::tests::{entry, group};

    fn client() -> Client {
        let rng = fastrand::Rng::with_seed(11);
        Client::new(IpAddr::V4(Ipv4Addr::LOCALHOST), rng)
    }

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn reply_to(version: Version, endian: Endian, locates: bool) -> ReplyTo {
        ReplyTo {
            request_id: 0x0a0b_0c0d,
            version,
            endian,
            locates,
        }
    }

    fn ask(entry: &Entry, client: &mut Client, reply_to: ReplyTo) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(answer_request(entry, client, NOW, reply_to, &mut out));
        out
    }

    /// The host of the member that an answer sends to.
    fn host(answer: &[u8]) -> Option<String> {
        let message = Message::from_whole(answer).unwrap();
        let body = match message.read_content().unwrap() {
            Content::Reply(reply) if reply.status == ReplyStatus::LocationForward => reply.body,
            Content::LocateReply(reply) if reply.status == LocateStatus::ObjectForward => {
                reply.body
            }
            _ => return None,
        };
        let ior = Ior::read(&mut Reader::new(body, message.header.endian)).unwrap();
        let first = ior.iiop_profiles().next().unwrap();
        Some(first.host)
    }

    /// The member's reference stands where the version has it, byte for byte.
    #[test]
    fn a_forward_is_a_copy_of_the_reference_in_every_version_and_byte_order() {
        let entry = entry(1, group("g", "random", &[1], GroupSettings::default()));
        let group = entry.handle.current.load();
        let reference = entry.member(&group, 0).unwrap();
        for version in [Version::V1_0, Version::V1_1, Version::V1_2] {
            for endian in [Endian::Big, Endian::Little] {
                let bytes = reference.bytes(endian);
                let reply = ask(&entry, &mut client(), reply_to(version, endian, false));
                let long = |value: u32| match endian {
                    Endian::Big => value.to_be_bytes(),
                    Endian::Little => value.to_le_bytes(),
                };
                let mut expected = vec![b'G', b'I', b'O', b'P', 1, version.minor()];
                expected.extend([endian.byte_order_flag(), 1]);
                expected.extend(long(12 + bytes.len() as u32));
                match version {
                    Version::V1_2 => [0x0a0b_0c0d, 3, 0].map(|v| expected.extend(long(v))),
                    _ => [0, 0x0a0b_0c0d, 3].map(|v| expected.extend(long(v))),
                };
                expected.extend(bytes);
                assert_eq!(reply, expected, "{version:?} {endian:?}");
                let reply = ask(&entry, &mut client(), reply_to(version, endian, true));
                assert_eq!(reply[7..8], [4]);
                assert_eq!(reply[16..20], long(2));
                assert_eq!(reply[20..], *bytes);
            }
        }
        assert_eq!(entry.counters.answer_totals()[0], (Answer::Forwarded, 12));
        assert_eq!(group.members()[0].slot.record().assigned(), 12);
    }

    #[test]
    fn who_may_not_be_used_gets_nobody_and_with_none_left_it_is_transient() {
        let entry = entry(
            1,
            group("g", "round_robin", &[1, 2, 3], GroupSettings::default()),
        );
        let mut client = client();
        let reply_to = reply_to(Version::V1_2, Endian::Little, false);
        let group = entry.handle.current.load_full();
        group.members()[0].slot.set(Reason::Down, true);
        group.members()[1].slot.set(Reason::Shedding, true);
        for _ in 0..5 {
            assert_eq!(host(&ask(&entry, &mut client, reply_to)).unwrap(), "host3");
        }
        group.members()[2].slot.set(Reason::Draining, true);
        // An alert is no reason to refuse anybody.
        assert_eq!(host(&ask(&entry, &mut client, reply_to)).unwrap(), "host2");
        group.members()[1].slot.set(Reason::Maintenance, true);
        let refused = ask(&entry, &mut client, reply_to);
        let message = Message::from_whole(&refused).unwrap();
        let Content::Reply(reply) = message.read_content().unwrap() else {
            panic!("{message:?}");
        };
        assert_eq!(reply.status, ReplyStatus::SystemException);
        let mut reader = Reader::new(reply.body, Endian::Little);
        let exception = SystemException::read(&mut reader).unwrap();
        assert_eq!(
            exception.to_string(),
            "CORBA::TRANSIENT (minor 0, completed NO)"
        );
        assert_eq!(entry.counters.answer_totals()[3], (Answer::Transient, 1));
    }

    #[test]
    fn a_group_in_which_nobody_is_left_says_what_is_configured_t6() {
        let entry = entry(1, group("g", "random", &[1, 2], GroupSettings::default()));
        let group = entry.handle.current.load_full();
        let kind = || no_member_exception(&entry).kind;
        entry.ends_when_empty.store(true, Ordering::Relaxed);
        // They may be back soon.
        for member in group.members() {
            member.slot.set(Reason::Down, true);
        }
        assert_eq!(kind(), Kind::Transient);
        group.members()[0].slot.set(Reason::Dead, true);
        assert_eq!(kind(), Kind::Transient);
        group.members()[1].slot.set(Reason::Dead, true);
        assert_eq!(kind(), Kind::ObjectNotExist);
        entry.ends_when_empty.store(false, Ordering::Relaxed);
        assert_eq!(kind(), Kind::Transient);
    }

    /// The manager's group may be ahead of the directory.
    #[test]
    fn a_member_that_the_directory_does_not_know_yet_gets_nobody() {
        let entry = entry(1, group("g", "random", &[1, 2], GroupSettings::default()));
        let settings = GroupSettings::default();
        let ahead = group("g", "random", &[2, 9, 8, 7], settings.clone());
        entry.handle.current.store(Arc::new(ahead));
        let mut client = client();
        let reply_to = reply_to(Version::V1_0, Endian::Big, false);
        for _ in 0..20 {
            assert_eq!(host(&ask(&entry, &mut client, reply_to)).unwrap(), "host2");
        }
        let ahead = group("g", "random", &[9, 8, 7, 6, 5, 4], settings);
        entry.handle.current.store(Arc::new(ahead));
        assert_eq!(host(&ask(&entry, &mut client, reply_to)), None);
    }

    #[test]
    fn strategies_know_where_a_client_comes_from() {
        let settings = GroupSettings::default();
        let ids: Vec<u64> = (1..9).collect();
        let entry = entry(1, group("g", "source_ip_hash", &ids, settings));
        let reply_to = reply_to(Version::V1_2, Endian::Big, false);
        let mut client = client();
        let first = host(&ask(&entry, &mut client, reply_to));
        for _ in 0..10 {
            assert_eq!(host(&ask(&entry, &mut client, reply_to)), first);
        }
    }
}

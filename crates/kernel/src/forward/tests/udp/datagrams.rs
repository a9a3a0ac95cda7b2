//! Sessions of a single datagram: each datagram gets a member and a port, and ends with the first answer.

use std::time::Instant;

use super::copies::read_clock;
use super::*;
use crate::forward::tests::sources::set_burst;

/// Time for the answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which a port rests after an answer.
pub(in crate::forward::tests) const REST: Duration = Duration::from_secs(1);

/// Answers of the program: the packet is sent, or dropped.
const SENT: u32 = 7;
const DROPPED: u32 = 2;

/// Lets the program give each datagram a member of these, and one of a few ports.
pub(super) fn serve_singly(forwarder: &Forwarder, members: &[SocketAddr]) {
    serve_singly_by(forwarder, members, PORTS);
}

/// Lets the program give each datagram a member of these, and one of these ports.
pub(in crate::forward::tests) fn serve_singly_by(
    forwarder: &Forwarder,
    members: &[SocketAddr],
    ports: NatPorts,
) {
    for (seat, member) in (0..).zip(members) {
        let source = source(Family::of_address(member));
        forwarder.set_nat_address(seat, source).unwrap();
    }
    serve_sessions(forwarder, members, |listener| UdpListener {
        nat: Some(ports),
        is_single: true,
        is_limited: false,
        answer: Some(TIMEOUT),
        ..listener
    });
}

/// Lets the program send datagrams that nobody answers to these members.
fn serve_messages(forwarder: &Forwarder, members: &[SocketAddr]) {
    serve_sessions(forwarder, members, |listener| UdpListener {
        is_single: true,
        is_limited: false,
        answer: None,
        ..listener
    });
}

/// Runs the program on a frame, which may be a packet of several segments.
pub(super) fn run_frame(
    forwarder: &Forwarder,
    interface: u32,
    frame: &[u8],
    segments: u32,
) -> (u32, Vec<u8>) {
    let mut context = [0; 184];
    context[36..40].copy_from_slice(&interface.to_ne_bytes());
    if segments > 0 {
        context[164..168].copy_from_slice(&segments.to_ne_bytes());
        context[176..180].copy_from_slice(&8u32.to_ne_bytes());
    }
    run_on_frame(forwarder, "evk_forward", &mut context, frame)
}

fn drops(forwarder: &Forwarder, interface: u32, datagram: &Datagram) -> bool {
    run_frame(forwarder, interface, &datagram.write(), 0).0 == DROPPED
}

/// Makes all sessions older.
pub(super) fn age(forwarder: &Forwarder, by: Duration) {
    let nanos = by.as_nanos() as u64;
    let map = find_map(&forwarder.object, "evk_udp_sessions").unwrap();
    for key in map.keys().collect::<Vec<_>>() {
        let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let began = u64::from_ne_bytes(*value.first_chunk().unwrap());
        let seen = u32::from_ne_bytes(*value[8..].first_chunk().unwrap());
        let units = (nanos >> layout::UNIT) as u32;
        value[..8].copy_from_slice(&began.saturating_sub(nanos).to_ne_bytes());
        value[8..12].copy_from_slice(&seen.wrapping_sub(units).to_ne_bytes());
        map.update(&key, &value, MapFlags::ANY).unwrap();
    }
}

/// Ends and removes all sessions.
fn clear(forwarder: &Forwarder) {
    for _ in 0..2 {
        for session in list_sessions(forwarder) {
            assert!(
                forwarder
                    .remove_udp_session(&session, UdpEnd::Idle)
                    .unwrap()
            );
        }
    }
    assert_eq!(list_sessions(forwarder), []);
}

/// Number of sessions in flight: of members, of the listener, and in the table.
pub(super) fn count_open(
    forwarder: &Forwarder,
    members: u32,
    listener: SocketAddr,
) -> (i64, i64, i64) {
    let seats = (0..members).map(|seat| forwarder.read_counts(seat).unwrap().in_flight);
    let open = list_sessions(forwarder).into_iter();
    (
        seats.sum(),
        forwarder.read_udp_counts(listener).unwrap().open,
        open.filter(UdpSession::is_open).count() as i64,
    )
}

const ENDED: Step = Step::End(End::Closed);

#[test]
fn s41_each_datagram_gets_a_member_and_a_port_and_has_one_answer() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| {
            let members = [family.member(9), family.member(10)];
            serve_singly(forwarder, &members);
            let ask = |data: &[u8]| {
                let mut question = Datagram::new(family.client(4000), family.listener());
                question.data = data.to_vec();
                let sent = pass(forwarder, interface, &question);
                assert_eq!(sent.data, data);
                assert_eq!(sent.from.ip(), source(family));
                (question, sent)
            };
            let [first, second, third] = [&b"one!"[..], b"second", b"third!"].map(ask);
            assert_ne!(first.1.to, second.1.to, "by the datagrams in flight");
            assert_ne!((first.1.from, first.1.to), (third.1.from, third.1.to));
            assert_eq!(count_open(forwarder, 2, family.listener()), (3, 3, 3));
            // In another order.
            for (question, sent) in [&third, &first, &second] {
                let answer = sent.reply(&question.data.repeat(2));
                let back = pass(forwarder, interface, &answer);
                assert_eq!(back, question.reply(&answer.data));
                // A copy, and another answer.
                assert!(drops(forwarder, interface, &answer));
                assert!(drops(forwarder, interface, &sent.reply(b"no")));
            }
            assert_eq!(read_outcome(forwarder, "late_answer"), 6);
            assert_eq!(count_open(forwarder, 2, family.listener()), (0, 0, 0));
            let all = list_sessions(forwarder);
            assert!(all.iter().all(|one| one.is_single() && one.is_answered()));
            assert!(all.iter().all(|one| !one.holds_port() && one.has_nat()));
            assert_eq!((all.len(), count_clients(forwarder)), (3, 0));
            assert_eq!(list_kept(forwarder), []);
            let mut steps = vec![Step::Begin; 3];
            steps.extend([[Step::Answer, ENDED]; 3].concat());
            assert_eq!(take_steps(forwarder), steps);
            let counts = [0, 1].map(|seat| forwarder.read_counts(seat).unwrap());
            let sum = |field: fn(&Counts) -> u64| counts.iter().map(field).sum::<u64>();
            assert_eq!((sum(|one| one.picks), sum(|one| one.answers.0)), (3, 3));
            assert_eq!((sum(|one| one.closed), sum(|one| one.refused)), (3, 0));
            assert_eq!((sum(|one| one.bytes.0), sum(|one| one.bytes.1)), (16, 32));
            let all = forwarder.read_udp_counts(family.listener()).unwrap();
            assert_eq!((all.begun, all.datagrams), (3, (3, 3)));
            clear(forwarder);
            assert_eq!(take_steps(forwarder), [], "each has ended once");
        });
    }
}

/// Sends a question from a port of the client. Returns what the member gets; `None` if the program does not take the
/// question.
fn try_ask(forwarder: &Forwarder, interface: u32, family: Family, port: u16) -> Option<Datagram> {
    let question = Datagram::new(family.client(port), family.listener());
    try_pass(forwarder, interface, &question)
}

#[test]
fn s41_answers_that_are_late_are_dropped_and_their_ports_rest_for_long() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        serve_singly(forwarder, &[family.member(9)]);
        let ask = |port| try_ask(forwarder, interface, family, port);
        // The program finds the first one late, and the balancer ends the second one.
        let [late, silent] = [1, 2].map(|port| ask(port).unwrap());
        age(forwarder, 2 * TIMEOUT);
        assert!(drops(forwarder, interface, &late.reply(b"late")));
        let all = list_sessions(forwarder).into_iter();
        let open: Vec<_> = all.filter(UdpSession::rests_at_end).collect();
        let [session] = open[..] else {
            panic!("one session: {open:?}");
        };
        let remove = |session: &UdpSession| forwarder.remove_udp_session(session, UdpEnd::Silent);
        assert!(remove(&session).unwrap());
        assert!(!remove(&session).unwrap(), "the port rests from now on");
        assert!(drops(forwarder, interface, &silent.reply(b"late")));
        let ended = Step::End(End::Silent);
        let steps = [Step::Begin, Step::Begin, ended, ended];
        assert_eq!(take_steps(forwarder), steps);
        let counts = forwarder.read_counts(0).unwrap();
        assert_eq!(
            (counts.refused, counts.answers.0, counts.in_flight),
            (2, 0, 0)
        );

        // Two ports are free, and come again soon after their answers.
        for round in 1..=3u64 {
            for port in [3, 4] {
                let sent = ask(port).unwrap();
                let taken = [late.from, silent.from];
                assert!(!taken.contains(&sent.from), "{sent:?}");
                pass(forwarder, interface, &sent.reply(b"in time!"));
            }
            assert_eq!(ask(5), None);
            assert_eq!(read_outcome(forwarder, "proxied_ports"), round);
            assert_eq!(
                list_kept(forwarder),
                [],
                "the next datagram is not concerned"
            );
            age(forwarder, 2 * REST);
        }
        age(forwarder, LONG_REST);
        let ports: BTreeSet<_> = (6..10).map(|port| ask(port).unwrap().from).collect();
        assert_eq!(ports.len(), 4);
        clear(forwarder);
    });
}

#[test]
fn s41_ports_without_an_answer_are_free_again_while_no_process_looks() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        serve_singly(forwarder, &[family.member(9)]);
        let ask = |port| try_ask(forwarder, interface, family, port);
        for port in 1..=4 {
            ask(port).unwrap();
        }
        age(forwarder, LONG_REST);
        assert_eq!(ask(5), None, "the time for an answer comes first");
        age(forwarder, 2 * TIMEOUT);
        let ports: BTreeSet<_> = (6..10).map(|port| ask(port).unwrap().from).collect();
        assert_eq!(ports.len(), 4);
        assert_eq!(count_open(forwarder, 1, family.listener()), (4, 4, 4));
        assert_eq!(forwarder.read_counts(0).unwrap().refused, 4);
        clear(forwarder);
    });
}

#[test]
fn s41_icmp_errors_about_a_datagram_reach_its_client_and_end_its_session() {
    run_beside_routes(|forwarder, interface| {
        for (family, refusal) in [(Family::V4, (3, 3)), (Family::V6, (1, 4))] {
            serve_singly(forwarder, &[family.member(9)]);
            let questions =
                [4000, 4001].map(|port| Datagram::new(family.client(port), family.listener()));
            let [first, second] = [0, 1].map(|at| pass(forwarder, interface, &questions[at]));
            let error = write_error(first.to.ip(), first.from.ip(), refusal, &first);
            let told = send_frame(forwarder, interface, &error).unwrap();
            check_error(&told, questions[0].from.ip(), &questions[0]);
            let ended = Step::End(End::Unreachable);
            assert_eq!(take_steps(forwarder), [Step::Begin, Step::Begin, ended]);
            assert!(drops(forwarder, interface, &first.reply(b"late")));
            // The other one, and the next one of the same client, are not concerned.
            let back = pass(forwarder, interface, &second.reply(b"here"));
            assert_eq!(back, questions[1].reply(b"here"));
            pass(forwarder, interface, &questions[0]);
            // The member of an answer is not known by the client's address: the system has the error.
            let error = write_error(back.to.ip(), back.from.ip(), refusal, &back);
            assert_eq!(send_frame(forwarder, interface, &error), None);
            clear(forwarder);
            take_steps(forwarder);
        }
    });
}

#[test]
fn s41_messages_go_to_members_and_are_in_no_table() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| {
            let members = [family.member(9), family.member(10)];
            serve_messages(forwarder, &members);
            // No limit of sources: there is no place that a flood could take.
            set_burst(forwarder, 1);
            let message = Datagram::new(family.client(4000), family.listener());
            let mut receivers = BTreeSet::new();
            for _ in 0..40 {
                let sent = pass(forwarder, interface, &message);
                assert_eq!((sent.from, &sent.data), (message.from, &message.data));
                receivers.insert(sent.to);
                // Nobody asked.
                assert_eq!(try_pass(forwarder, interface, &sent.reply(b"hi")), None);
            }
            assert_eq!(receivers, members.into_iter().collect());
            // Several that the system has put together go to one member.
            let (answer, _) = run_frame(forwarder, interface, &message.write(), 2);
            assert_eq!(answer, SENT);
            assert_eq!(
                (list_sessions(forwarder), list_kept(forwarder)),
                (vec![], vec![])
            );
            assert_eq!(
                (count_clients(forwarder), read_outcome(forwarder, "odd")),
                (0, 0)
            );
            assert_eq!(count_open(forwarder, 2, family.listener()), (0, 0, 0));
            let events = forwarder.take_events().unwrap();
            assert_eq!(events.len(), 41);
            assert!(events.iter().all(Event::is_message));
            let counts = [0, 1].map(|seat| forwarder.read_counts(seat).unwrap());
            let sum = |field: fn(&Counts) -> u64| counts.iter().map(field).sum::<u64>();
            assert_eq!((sum(|one| one.picks), sum(|one| one.closed)), (41, 41));
            assert_eq!(sum(|one| one.bytes.0), 41 * message.data.len() as u64);
            let all = forwarder.read_udp_counts(family.listener()).unwrap();
            assert_eq!((all.begun, all.datagrams), (41, (42, 0)));
        });
    }
}

#[test]
fn s41_what_the_program_does_not_take_of_single_datagrams_is_the_proxys_for_once() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        serve_singly(forwarder, &[family.member(9)]);
        let question = Datagram::new(family.client(4000), family.listener());
        // Each of several datagrams in a packet has an answer.
        let (answer, _) = run_frame(forwarder, interface, &question.write(), 2);
        assert_eq!((answer, read_outcome(forwarder, "odd")), (NOT_TAKEN, 1));
        // A source that has too many without an answer.
        set_burst(forwarder, 2);
        let sent = pass(forwarder, interface, &question);
        pass(forwarder, interface, &question);
        assert_eq!(try_pass(forwarder, interface, &question), None);
        assert_eq!(read_outcome(forwarder, "proxied_rate"), 1);
        pass(forwarder, interface, &sent.reply(b"ok"));
        pass(forwarder, interface, &question);
        assert_eq!(try_pass(forwarder, interface, &question), None);
        // No member has room, and the proxy has had the client in a rule of before.
        set_burst(forwarder, 100);
        let client = UdpClient {
            client: question.from,
            listener: question.to,
        };
        assert!(forwarder.keep_client(&client, 7).unwrap());
        serve_members(forwarder, &[], 0);
        assert_eq!(try_pass(forwarder, interface, &question), None);
        assert_eq!(read_outcome(forwarder, "proxied_full"), 1);
        serve_members(forwarder, &[family.member(9)], 0);
        pass(forwarder, interface, &question);
        forwarder.release_client(&client).unwrap();
        assert_eq!(
            (list_kept(forwarder), count_clients(forwarder)),
            (vec![], 0)
        );
        clear(forwarder);
    });
}

/// Step of clients and members.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A client asks.
    Ask(u16),
    /// A question is answered, perhaps once more.
    Answer(usize),
    Wait(Duration),
    /// The balancer looks at the table.
    Sweep,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let times = prop_oneof![
        Just(Duration::from_millis(400)),
        Just(Duration::from_millis(1400)),
        Just(Duration::from_secs(3)),
        Just(Duration::from_secs(31)),
    ];
    let act = prop_oneof![
        6 => (1..4u16).prop_map(Act::Ask),
        5 => any::<usize>().prop_map(Act::Answer),
        2 => times.prop_map(Act::Wait),
        1 => Just(Act::Sweep),
    ];
    proptest::collection::vec(act, 1..60)
}

/// Moment, by the clock and by what sessions were made older until then.
#[derive(Clone, Copy, Debug)]
struct Moment(Instant, Duration);

impl Moment {
    /// Least and most time since then. The program's time has a unit of a millisecond.
    fn find_age(self, waited: Duration) -> (Duration, Duration) {
        let (unit, age) = (Duration::from_millis(3), waited - self.1);
        (age.saturating_sub(unit), age + self.0.elapsed() + unit)
    }
}

/// Question that a member has got.
#[derive(Clone, Debug)]
struct Asked {
    question: Datagram,
    sent: Datagram,
    began: Moment,
    /// End, and true with an answer.
    ended: Option<(Moment, bool)>,
}

impl Asked {
    /// True if the port has rested for certain, and if the port may have. The next question takes the port of one that
    /// has had no answer for as long, too, as if the balancer had looked.
    fn has_rested(&self, waited: Duration) -> (bool, bool) {
        let (at, rest) = match self.ended {
            Some((at, true)) => (at, REST),
            Some((at, false)) => (at, LONG_REST),
            None => (self.began, TIMEOUT + LONG_REST),
        };
        let (least, most) = at.find_age(waited);
        (least > rest, most > rest)
    }
}

/// Questions to two members, as they should be.
struct Model<'a> {
    forwarder: &'a Forwarder,
    interface: u32,
    family: Family,
    asked: Vec<Asked>,
    waited: Duration,
    number: u64,
    begun: u64,
}

impl Model<'_> {
    fn now(&self) -> Moment {
        Moment(Instant::now(), self.waited)
    }

    fn ask(&mut self, port: u16) {
        let mut question = Datagram::new(self.family.client(port), self.family.listener());
        self.number += 1;
        question.data = self.number.to_be_bytes().to_vec();
        let began = self.now();
        let waited = self.waited;
        let Some(sent) = try_pass(self.forwarder, self.interface, &question) else {
            // All ports towards a member are in use, or rest.
            let is_stuck = |last| {
                let member = self.family.member(last);
                let there = self.asked.iter().filter(|one| one.sent.to == member);
                let taken = there.filter(|one| !one.has_rested(waited).0);
                taken.count() == usize::from(PORTS.count)
            };
            assert!(is_stuck(9) || is_stuck(10), "{:?}", self.asked);
            return;
        };
        let has_port = |one: &Asked| (one.sent.from, one.sent.to) == (sent.from, sent.to);
        for before in self.asked.extract_if(.., |one| has_port(one)) {
            assert!(before.has_rested(waited).1, "{before:?}");
        }
        self.begun += 1;
        self.asked.push(Asked {
            question,
            sent,
            began,
            ended: None,
        });
    }

    fn answer(&mut self, at: usize) {
        let (count, now, waited) = (self.asked.len(), self.now(), self.waited);
        if count == 0 {
            return;
        }
        let one = &mut self.asked[at % count];
        let answer = one.sent.reply(&one.question.data.repeat(2));
        let frame = answer.write();
        let (verdict, out) = run_frame(self.forwarder, self.interface, &frame, 0);
        let (least, most) = one.began.find_age(waited);
        match verdict {
            SENT => {
                assert_eq!(Datagram::read(&out), one.question.reply(&answer.data));
                assert!(one.ended.is_none() && least <= TIMEOUT, "{one:?}");
                one.ended = Some((now, true));
            }
            DROPPED if one.ended.is_none() => {
                assert!(most > TIMEOUT, "{one:?}");
                one.ended = Some((now, false));
            }
            DROPPED => {}
            // The balancer has removed the session.
            _ => assert!(verdict == NOT_TAKEN && one.ended.is_some(), "{one:?}"),
        }
    }

    /// Does as the engine of the balancer.
    fn sweep(&mut self) {
        let (now_ns, now) = (read_clock(), self.now());
        for session in list_sessions(self.forwarder) {
            let linger = match session.is_answered() {
                true => Duration::from_secs(3),
                false => LONG_REST,
            };
            let is_over = match session.is_open() {
                true => session.find_age(now_ns) > TIMEOUT,
                false => session.find_silence(now_ns) > linger,
            };
            if !is_over {
                continue;
            }
            let end = UdpEnd::Silent;
            assert!(self.forwarder.remove_udp_session(&session, end).unwrap());
            let is_it =
                |one: &&mut Asked| (one.sent.from, one.sent.to) == (session.source, session.member);
            if session.is_open() {
                let one = self.asked.iter_mut().find(is_it).unwrap();
                one.ended = Some((now, false));
            }
        }
    }
}

fn check_acts(forwarder: &Forwarder, interface: u32, family: Family, acts: Vec<Act>) {
    // A case that has failed may have left sessions.
    clear(forwarder);
    take_steps(forwarder);
    let listener = family.listener();
    let before = forwarder.read_udp_counts(listener).unwrap().begun;
    let mut model = Model {
        forwarder,
        interface,
        family,
        asked: Vec::new(),
        waited: Duration::ZERO,
        number: 0,
        begun: before,
    };
    for act in acts {
        match act {
            Act::Ask(port) => model.ask(port),
            Act::Answer(at) => model.answer(at),
            Act::Wait(time) => {
                age(forwarder, time);
                model.waited += time;
            }
            Act::Sweep => model.sweep(),
        }
        let open = model.asked.iter().filter(|one| one.ended.is_none());
        let open = open.count() as i64;
        assert_eq!(count_open(forwarder, 4, listener), (open, open, open));
    }
    let begun = forwarder.read_udp_counts(listener).unwrap().begun;
    assert_eq!(begun, model.begun);
    assert_eq!(
        (list_kept(forwarder), count_clients(forwarder)),
        (vec![], 0)
    );
    clear(forwarder);
    let steps = take_steps(forwarder);
    let count = |is_it: fn(&Step) -> bool| steps.iter().filter(|step| is_it(step)).count() as u64;
    let (begins, ends) = (
        count(|step| *step == Step::Begin),
        count(|step| matches!(step, Step::End(_))),
    );
    assert_eq!((begins, ends), (begun - before, begun - before));
}

#[test]
fn s41_no_answer_reaches_another_client_whatever_comes_when() {
    run_beside_routes(|forwarder, interface| {
        let members =
            [9, 10].map(|last| [Family::V4, Family::V6].map(|family| family.member(last)));
        serve_singly(forwarder, members.as_flattened());
        let mut runner = TestRunner::default();
        runner
            .run(&(families(), acts()), |(family, acts)| {
                check_acts(forwarder, interface, family, acts);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn s41_hostile_datagrams_leave_the_counts_of_single_datagrams_right() {
    run_beside_routes(|forwarder, interface| {
        let families_of = [Family::V4, Family::V6];
        let members = families_of.map(|family| family.member(9));
        let mut runner = TestRunner::default();
        let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
        let step = (families(), any::<bool>(), changes, 0..6u16);
        let cases = (any::<bool>(), proptest::collection::vec(step, 1..12));
        runner
            .run(&cases, |(has_answers, steps)| {
                match has_answers {
                    true => serve_singly(forwarder, &members),
                    false => serve_messages(forwarder, &members),
                }
                for (family, is_answer, changes, cut) in steps {
                    let mut datagram = Datagram::new(family.client(4000), family.listener());
                    if is_answer {
                        let port = PORTS.first + cut % PORTS.count;
                        let seen = SocketAddr::new(source(family), port);
                        datagram = Datagram::new(family.member(9), seen);
                    }
                    let mut frame = datagram.write();
                    for (at, byte) in changes {
                        let at = 14 + at.index(frame.len() - 14);
                        frame[at] = byte;
                    }
                    frame.truncate(frame.len() - usize::from(cut));
                    let (verdict, _) = run_frame(forwarder, interface, &frame, 0);
                    prop_assert!([SENT, DROPPED, NOT_TAKEN].contains(&verdict));
                }
                let open = families_of.map(|family| {
                    let all = forwarder.read_udp_counts(family.listener()).unwrap();
                    all.open
                });
                let (in_flight, _, there) = count_open(forwarder, 2, Family::V4.listener());
                prop_assert_eq!((in_flight, open.iter().sum::<i64>()), (there, there));
                prop_assert!(has_answers || there == 0);
                clear(forwarder);
                take_steps(forwarder);
                Ok(())
            })
            .unwrap();
        // Fragments may have been left to the proxy, but none as a client of sessions.
        assert_eq!(
            (list_kept(forwarder), count_clients(forwarder)),
            (vec![], 0)
        );
    });
}

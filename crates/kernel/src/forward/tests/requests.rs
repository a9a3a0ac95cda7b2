//! Requests within connections: data of the sides that begin and end a request.

use std::thread;
use std::time::Instant;

use proptest::strategy::ValueTree;

use super::nat::serve_with_nat;
use super::packets::*;
use super::xdp::Bench;
use super::*;
use crate::forward::requests::AWAITED;
use crate::proc::monotonic_ns;

const PSH: u8 = 8;

/// Connection whose sides send data.
struct Talk<'a> {
    forwarder: &'a Forwarder,
    interface: u32,
    /// XDP sees the packets first.
    xdp: Option<&'a Bench<'a>>,
    ours: Segment,
    theirs: Segment,
}

impl<'a> Talk<'a> {
    /// Opens a connection to the only member.
    fn open(forwarder: &'a Forwarder, interface: u32, family: Family, port: u16) -> Self {
        let syn = Segment::new(family.client(port), family.listener(), SYN);
        let sent = send(forwarder, interface, &syn);
        let accepted = Segment {
            sequence: 7_000,
            answered: 2,
            ..Segment::new(sent.to, sent.from, SYN | ACK)
        };
        send(forwarder, interface, &accepted);
        let talk = Talk {
            forwarder,
            interface,
            xdp: None,
            ours: Segment {
                sequence: 2,
                answered: 7_001,
                ..Segment::new(syn.from, syn.to, ACK)
            },
            theirs: Segment {
                sequence: 7_001,
                answered: 2,
                ..Segment::new(sent.to, sent.from, ACK)
            },
        };
        send(forwarder, interface, &talk.ours);
        talk
    }

    /// The client sends this, after all that it has got.
    fn ask(&mut self, data: &[u8], flags: u8) {
        self.ours.answered = self.theirs.sequence;
        self.ask_early(data, flags);
    }

    /// The client sends this, and has not got all of the answer.
    fn ask_early(&mut self, data: &[u8], flags: u8) {
        let packet = Segment {
            flags: ACK | flags,
            data: data.to_vec(),
            ..self.ours.clone()
        };
        self.send(&packet);
        self.ours.sequence += data.len() as u32 + u32::from(flags & FIN);
    }

    /// The member sends this, after all that it has got.
    fn answer(&mut self, data: &[u8]) {
        self.theirs.answered = self.ours.sequence;
        self.answer_early(data);
    }

    /// The member sends this, and has not got all of the client's data.
    fn answer_early(&mut self, data: &[u8]) {
        let packet = Segment {
            flags: ACK | PSH,
            data: data.to_vec(),
            ..self.theirs.clone()
        };
        self.send(&packet);
        self.theirs.sequence += data.len() as u32;
    }

    fn send(&self, packet: &Segment) {
        let by_xdp = self.xdp.and_then(|xdp| xdp.send_xdp(&packet.write()));
        if by_xdp.is_none() {
            send(self.forwarder, self.interface, packet);
        }
    }

    /// Requests without an answer, and those with one.
    fn count(&self) -> (u32, u64) {
        count(self.forwarder)
    }
}

fn count(forwarder: &Forwarder) -> (u32, u64) {
    let requests = forwarder.read_counts(0).unwrap().requests;
    // The table says the same.
    let mut awaited = Awaited::default();
    let now = monotonic_ns();
    for connection in list_connections(forwarder) {
        awaited.add(&connection, now);
    }
    assert_eq!(awaited, requests.awaited);
    (requests.awaited.count(), requests.answered)
}

/// Runs a test with a talk, for each family and with each kind of NAT.
fn run(test: impl Fn(&mut Talk<'_>) + Send + Sync) {
    run_beside_routes(|forwarder, interface| {
        let mut port = 3_000;
        for family in [Family::V4, Family::V6] {
            for has_nat in [false, true] {
                if has_nat {
                    serve_with_nat(forwarder, &[family.member(9)], 0);
                } else {
                    serve_members(forwarder, &[family.member(9)], 0);
                }
                port += 1;
                let zero = 0u32.to_ne_bytes();
                let none = Counts::default().write();
                bpf::update_map(&forwarder.object, "evk_counts", &zero, &none).unwrap();
                let mut talk = Talk::open(forwarder, interface, family, port);
                test(&mut talk);
                // A reset ends whatever is under way.
                talk.ours.answered = talk.theirs.sequence;
                talk.ask_early(b"", RST);
                assert_eq!(talk.count().0, 0);
            }
        }
    });
}

#[test]
fn s41_a_request_is_under_way_while_the_client_waits() {
    run(|talk| {
        assert_eq!(talk.count(), (0, 0));
        // A request of two packets, and an answer of three.
        talk.ask(b"get the ", 0);
        talk.ask(b"price.", PSH);
        assert_eq!(talk.count(), (1, 0));
        let before = Instant::now();
        thread::sleep(Duration::from_millis(3));
        talk.answer(b"12");
        let requests = talk.forwarder.read_counts(0).unwrap().requests;
        assert_eq!((requests.answered, requests.others), (1, 0));
        let took = requests.sum_latencies();
        assert!(took >= Duration::from_millis(3), "{took:?}");
        assert!(took < before.elapsed() + Duration::from_secs(9), "{took:?}");
        assert_eq!(requests.read_last(), (took, 0));
        talk.answer(b"34");
        // An acknowledgement, and an idle connection.
        talk.ask(b"", 0);
        assert_eq!(talk.count(), (0, 1));
        // A long download is one answer, and a half close ends no request.
        talk.ask(b"all.", FIN | PSH);
        assert_eq!(talk.count(), (1, 1));
        (0..100).for_each(|_| talk.answer(b"more"));
        assert_eq!(talk.count(), (0, 2));
    });
}

#[test]
fn s41_data_that_come_again_are_no_request() {
    run(|talk| {
        talk.ask(b"get.", PSH);
        talk.ours.sequence -= 4;
        talk.ask(b"get.", PSH);
        assert_eq!(talk.count(), (1, 0));
        talk.answer(b"12");
        talk.ours.sequence -= 4;
        talk.ask(b"get.", PSH);
        assert_eq!(talk.count(), (0, 1));
        // The answer again, while the next request waits.
        talk.ask(b"next", PSH);
        talk.theirs.sequence -= 2;
        talk.answer_early(b"12");
        assert_eq!(talk.count(), (1, 1));
        talk.answer(b"56");
        assert_eq!(talk.count(), (0, 2));
    });
}

#[test]
fn s41_sides_that_do_not_speak_in_turn_are_left_out() {
    let turn = |talk: &mut Talk<'_>| {
        talk.ask(b"get.", PSH);
        talk.answer(b"12");
    };
    let is_left_out = |talk: &mut Talk<'_>, name: &str| {
        assert_eq!(talk.count().0, 0, "{name}");
        let before = talk.count().1;
        (0..8).for_each(|_| turn(talk));
        assert_eq!(talk.count(), (0, before), "{name}");
        (0..8).for_each(|_| turn(talk));
        assert!(talk.count().1 > before, "{name}");
    };
    run(move |talk| {
        // A member that speaks first.
        talk.answer(b"hello");
        assert_eq!(talk.count(), (0, 0));
        turn(talk);
        assert_eq!(talk.count(), (0, 1));
        // Two requests before an answer.
        talk.ask(b"one.", PSH);
        talk.ask(b"two.", PSH);
        talk.answer(b"1");
        talk.answer(b"22");
        is_left_out(talk, "pipelining");
        // Messages without answers.
        (0..50).for_each(|_| talk.ask(b"data", PSH));
        is_left_out(talk, "upload");
        // The next request before the client has all of the answer.
        talk.ask(b"get.", PSH);
        talk.answer(b"12");
        talk.ask_early(b"get.", PSH);
        talk.answer(b"34");
        is_left_out(talk, "early");
        // A message that the member has sent before the request has come.
        talk.ask(b"get.", PSH);
        talk.answer_early(b"news");
        is_left_out(talk, "unasked");
    });
}

#[test]
fn s41_requests_find_the_others_and_counts_are_corrected() {
    run_beside_routes(|forwarder, interface| {
        serve_members(forwarder, &[Family::V4.member(9)], 0);
        let open = |port| Talk::open(forwarder, interface, Family::V4, port);
        let mut talks: Vec<_> = (1..5).map(|number| open(4_000 + number)).collect();
        talks.iter_mut().for_each(|talk| talk.ask(b"get.", PSH));
        assert_eq!(count(forwarder), (4, 0));
        talks.iter_mut().for_each(|talk| talk.answer(b"12"));
        let requests = forwarder.read_counts(0).unwrap().requests;
        assert_eq!((requests.answered, requests.others), (4, 1 + 2 + 3));
        assert_eq!(requests.read_last().1, 3);
        // A request that waits when the balancer removes the connection.
        talks[0].ask(b"get.", PSH);
        let waiting = |one: &Connection| one.age.has_flag(AWAITED);
        let all = list_connections(forwarder);
        let one = all.into_iter().find(waiting).unwrap();
        assert!(forwarder.remove_connection(&one).unwrap());
        assert_eq!(count(forwarder), (0, 4));
        talks[1].ask(b"get.", PSH);
        // A count that is wrong.
        let right = forwarder.read_counts(0).unwrap().requests.awaited;
        forwarder.correct_requests(0, 5 << 20 | 3).unwrap();
        let wrong = forwarder.read_counts(0).unwrap().requests.awaited;
        assert_eq!(wrong.count(), 4);
        forwarder.correct_requests(0, right.correct(wrong)).unwrap();
        assert_eq!(count(forwarder), (1, 4));
        let age = right.sum_ages(monotonic_ns());
        assert!(age < Duration::from_secs(600), "{age:?}");
    });
}

#[test]
fn s41_nothing_is_learnt_from_direct_answers() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        super::direct::serve_direct(forwarder, &[family.member(9)], 0);
        let syn = Segment::new(family.client(5_000), family.listener(), SYN);
        send(forwarder, interface, &syn);
        let mut ours = Segment {
            sequence: 2,
            answered: 7_001,
            data: b"get.".to_vec(),
            ..Segment::new(syn.from, syn.to, ACK | PSH)
        };
        for _ in 0..3 {
            send(forwarder, interface, &ours);
            ours.sequence += 4;
            ours.answered += 9;
        }
        assert_eq!(count(forwarder), (0, 0));
    });
}

/// Step of a talk: the side that sends, or has lost all that it sends until its next step.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Ask { is_early: bool, is_pushed: bool },
    AskAgain,
    Answer { is_early: bool },
    AnswerAgain,
}

#[test]
fn s41_xdp_counts_requests_as_tc_does() {
    let turns = prop_oneof![
        40 => Just(Turn::Ask { is_early: false, is_pushed: true }),
        1 => any::<(bool, bool)>().prop_map(|(is_early, is_pushed)| Turn::Ask { is_early, is_pushed }),
        1 => Just(Turn::AskAgain),
        40 => Just(Turn::Answer { is_early: false }),
        1 => Just(Turn::Answer { is_early: true }),
        1 => Just(Turn::AnswerAgain),
    ];
    let cases = (families(), proptest::collection::vec(turns, 0..80));
    run_beside_routes(|forwarder, interface| {
        let bench = Bench::new(forwarder, interface);
        let mut port = 10_000;
        // A connection of which XDP sees all packets first, and one of which it sees none.
        let mut talk_by = |xdp, family: Family, turns: &[Turn]| {
            port += 1;
            serve_members(forwarder, &[family.member(9)], 0);
            let zero = 0u32.to_ne_bytes();
            let none = Counts::default().write();
            bpf::update_map(&forwarder.object, "evk_counts", &zero, &none).unwrap();
            let mut talk = Talk::open(forwarder, interface, family, port);
            talk.xdp = xdp;
            for turn in turns {
                match *turn {
                    Turn::Ask {
                        is_early,
                        is_pushed,
                    } => {
                        let flags = if is_pushed { PSH } else { 0 };
                        if is_early {
                            talk.ask_early(b"data", flags);
                        } else {
                            talk.ask(b"data", flags);
                        }
                    }
                    Turn::AskAgain => {
                        talk.ours.sequence -= 4 * u32::from(talk.ours.sequence > 2);
                        talk.ask(b"data", PSH);
                    }
                    Turn::Answer { is_early: true } => talk.answer_early(b"data"),
                    Turn::Answer { is_early: false } => talk.answer(b"data"),
                    Turn::AnswerAgain => {
                        talk.theirs.sequence -= 4 * u32::from(talk.theirs.sequence > 7_001);
                        talk.answer(b"data");
                    }
                }
            }
            let all = list_connections(forwarder);
            let client = talk.ours.from;
            let own = all.iter().find(|one| one.pair.client == client);
            let flags = own.map(|one| one.age.flags);
            let requests = forwarder.read_counts(0).unwrap().requests;
            let ends = (requests.awaited.count(), requests.answered, requests.others);
            talk.ask_early(b"", RST);
            (flags, ends)
        };
        let mut runner = TestRunner::default();
        let mut answered = 0;
        for _ in 0..60 {
            let (family, turns): (Family, Vec<Turn>) =
                cases.new_tree(&mut runner).unwrap().current();
            let by_tc = talk_by(None, family, &turns);
            let by_xdp = talk_by(Some(&bench), family, &turns);
            assert_eq!(by_xdp, by_tc, "{family:?} {turns:?}");
            answered += by_tc.1.1;
        }
        assert!(answered > 15, "{answered} requests");
        assert!(read_outcome(forwarder, "by_xdp") > 500);
    });
}

#[test]
#[ignore = "prints the time of packets in the middle of a connection"]
fn packets_of_the_middle_cost() {
    run_beside_routes(|forwarder, interface| {
        serve_members(forwarder, &[Family::V4.member(9)], 0);
        let mut talk = Talk::open(forwarder, interface, Family::V4, 20_000);
        talk.ask(b"get.", PSH);
        talk.answer(b"12");
        let mut times = [const { Vec::new() }; 3];
        // One run each: a run changes the packet.
        let run = |packet: &Segment| {
            let frame = packet.write();
            let mut context = [0; 44];
            context[36..40].copy_from_slice(&interface.to_ne_bytes());
            let input = ProgramInput {
                context_in: Some(&mut context),
                data_in: Some(&frame),
                ..ProgramInput::default()
            };
            let program = bpf::find_program_mut(&forwarder.object, "evk_forward").unwrap();
            program.test_run(input).unwrap().duration.as_nanos()
        };
        for _ in 0..40_000 {
            talk.ours.answered = talk.theirs.sequence;
            times[0].push(run(&talk.ours));
            let with_data = |side: &Segment| Segment {
                flags: ACK | PSH,
                data: b"data".to_vec(),
                ..side.clone()
            };
            times[1].push(run(&with_data(&talk.ours)));
            talk.ours.sequence += 4;
            talk.theirs.answered = talk.ours.sequence;
            times[2].push(run(&with_data(&talk.theirs)));
            talk.theirs.sequence += 4;
        }
        for (name, times) in ["acknowledgement", "request", "answer"]
            .iter()
            .zip(&mut times)
        {
            times.sort_unstable();
            println!(
                "{name}: {} ns (median), {} (first tenth)",
                times[20_000], times[4_000]
            );
        }
    });
}

#[test]
fn ages_are_sums_of_what_waits() {
    let mut awaited = Awaited::default();
    let second = 1_000_000_000u64;
    // Clocks of 32 bits have wrapped in between.
    let now = (1u64 << 44) + second;
    for age in [0, 1, 5] {
        let mut connection = Connection::new(
            Pair {
                member: Family::V4.member(9),
                client: Family::V4.client(1),
            },
            Family::V4.listener(),
            // The request was a packet.
            now - age * second,
        );
        connection.age.set_flag(AWAITED);
        connection.asked = ((now - age * second) >> 12) as u32;
        awaited.add(&connection, now);
    }
    assert_eq!(awaited.count(), 3);
    let ages = awaited.sum_ages(now + 2 * second).as_secs_f64();
    assert!((ages - 12.0).abs() < 0.001, "{ages}");
    assert_eq!(awaited.sum_ages(now - 3 * second), Duration::ZERO);
}

/// Connections as the program keeps them, with its count of requests without an answer.
#[derive(Default)]
struct ProgramModel {
    word: u64,
    open: Vec<(u64, Connection)>,
}

impl ProgramModel {
    /// A request begins.
    fn begin(&mut self, now_ns: u64) {
        let pair = Pair {
            member: Family::V4.member(9),
            client: Family::V4.client(1),
        };
        let mut connection = Connection::new(pair, Family::V4.listener(), now_ns);
        connection.age.set_flag(AWAITED);
        connection.asked = (now_ns >> 12) as u32;
        // The clock of packets is late by a tick.
        connection.age.seen = (now_ns.saturating_sub(10_000_000) >> 20) as u32;
        self.word = self.word.wrapping_add((now_ns >> 12) << 20 | 1);
        self.open.push((now_ns, connection));
    }

    /// The request at `index` ends, as in `end_request` of the program.
    fn end(&mut self, index: usize, now_ns: u64) {
        let (_, connection) = self.open.swap_remove(index);
        let clock = now_ns >> 12;
        let age = u64::from((clock as u32).wrapping_sub(connection.asked));
        self.word = self.word.wrapping_sub(clock.wrapping_sub(age) << 20 | 1);
    }

    /// Compares the count with the table, and returns the table's.
    fn compare(&mut self, now_ns: u64) -> Awaited {
        let mut found = Awaited::default();
        for (_, connection) in &self.open {
            found.add(connection, now_ns);
        }
        if let Some(correction) = Awaited(self.word).correct_rounds(found) {
            self.word = self.word.wrapping_add(correction);
        }
        found
    }

    fn sum_true_ages(&self, now_ns: u64) -> f64 {
        let ages = self.open.iter().map(|(begun, _)| now_ns - begun);
        ages.sum::<u64>() as f64 / 1e9
    }
}

/// Action in a step of the property test, the index of a request, and the time until the next step in microseconds.
type Step = (u8, usize, u64);

fn step() -> impl Strategy<Value = Step> {
    // From a microsecond to a day.
    let wait = (1u64..10, 0u32..=10).prop_map(|(digit, zeros)| digit * 10u64.pow(zeros));
    (0u8..4, 0usize..12, wait)
}

proptest! {
    /// Over 25 days, in which the beginning of a request wraps 122 times, with requests of microseconds to
    /// weeks: the sum of ages is that of the requests that wait, and nothing is left of those that have ended.
    #[test]
    fn sums_of_ages_are_right_for_weeks(
        begin in 0u64..1 << 50,
        // Packets without data, as keep-alives are: their requests look younger by whole wraps.
        has_packets in any::<bool>(),
        steps in prop::collection::vec(step(), 100..300),
    ) {
        let (mut model, mut now) = (ProgramModel::default(), begin);
        let end = begin + 25 * 86_400_000_000_000;
        for (action, index, wait) in steps.iter().chain(&steps) {
            match (*action, model.open.len()) {
                (0 | 1, open) if open < 12 => model.begin(now),
                (2, open) if open > 0 => model.end(index % open, now),
                _ if has_packets => {
                    for (_, connection) in &mut model.open {
                        connection.age.seen = (now >> 20) as u32;
                    }
                }
                _ => {}
            }
            let ages = model.compare(now).sum_ages(now).as_secs_f64();
            let counted = Awaited(model.word).sum_ages(now).as_secs_f64();
            prop_assert!((counted - ages).abs() < 0.001, "{counted} {ages}");
            let right = model.sum_true_ages(now);
            let wraps = match has_packets {
                true => ((right - ages) / WRAP_SECONDS).round(),
                false => 0.0,
            };
            prop_assert!((right - ages - wraps * WRAP_SECONDS).abs() < 0.1, "{right} {ages}");
            now += wait * 1000;
            if now > end {
                break;
            }
        }
        while !model.open.is_empty() {
            model.end(0, now);
        }
        model.compare(now);
        prop_assert_eq!(model.word, 0);
    }
}

/// Seconds after which the beginning of a request in an entry of the table wraps.
const WRAP_SECONDS: f64 = 4096e-9 * (1u64 << 32) as f64;

//! Fragments of datagrams follow the first one.

use super::datagrams::serve_singly;
use super::*;

/// Bytes of data in the first fragment.
pub(super) const FIRST: usize = 16;

/// Fragments of a datagram with an identification, with this number of bytes behind the header of UDP in each but the
/// last; the first one has the header of UDP, too.
pub(super) fn split(datagram: &Datagram, id: u32, room: usize) -> Vec<Vec<u8>> {
    let whole = datagram.write_udp();
    let (from, to) = (datagram.from.ip(), datagram.to.ip());
    let mut at = 0;
    let mut fragments = Vec::new();
    while at < whole.len() {
        let end = (at + room + if at == 0 { 8 } else { 0 }).min(whole.len());
        let (part, has_more) = (&whole[at..end], end < whole.len());
        let units = (at / 8) as u16;
        let frame = if from.is_ipv4() {
            let mut ip = write_ip(from, to, 17, part.len());
            ip[4..6].copy_from_slice(&(id as u16).to_be_bytes());
            let flags = units | if has_more { 0x2000 } else { 0 };
            ip[6..8].copy_from_slice(&flags.to_be_bytes());
            ip[10..12].fill(0);
            let sum = sum_words([&ip[..]]).to_be_bytes();
            ip[10..12].copy_from_slice(&sum);
            write_frame(&ip, part)
        } else {
            let mut payload = vec![17, 0];
            payload.extend((units << 3 | u16::from(has_more)).to_be_bytes());
            payload.extend(id.to_be_bytes());
            payload.extend(part);
            let ip = write_ip(from, to, 44, payload.len());
            write_frame(&ip, &payload)
        };
        fragments.push(frame);
        at = end;
    }
    fragments
}

/// Puts a datagram together, and checks the lengths and checksums. Returns the identification, too, which all have.
fn join(fragments: &[Vec<u8>]) -> (Datagram, u32) {
    let mut whole = Vec::new();
    let (mut ends, mut id) = (None, None);
    for (number, frame) in fragments.iter().enumerate() {
        let (from, to, payload) = read_frame(frame);
        let word = |at: usize| u16::from_be_bytes(*frame[at..].first_chunk().unwrap());
        let (offset, has_more, of, part) = if from.is_ipv4() {
            let flags = word(20);
            (
                flags & 0x1fff,
                flags & 0x2000 != 0,
                u32::from(word(18)),
                payload,
            )
        } else {
            let of = u32::from_be_bytes(*payload[4..].first_chunk().unwrap());
            let flags = u16::from_be_bytes(*payload[2..].first_chunk().unwrap());
            (flags >> 3, flags & 1 != 0, of, &payload[8..])
        };
        let id = *id.get_or_insert(of);
        assert_eq!((usize::from(offset) * 8, of), (whole.len(), id));
        assert_eq!(has_more, number + 1 < fragments.len());
        whole.extend(part);
        let known = *ends.get_or_insert((from, to));
        assert_eq!(known, (from, to), "fragments go to one receiver");
    }
    let (from, to) = ends.unwrap();
    let datagram = Datagram::read(&write_frame(&write_ip(from, to, 17, whole.len()), &whole));
    (datagram, id.unwrap())
}

/// Gives the program fragments; `None` for those that it does not take.
fn try_parts(forwarder: &Forwarder, interface: u32, fragments: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    fragments
        .iter()
        .map(|frame| send_frame(forwarder, interface, frame))
        .collect()
}

fn pass_parts(forwarder: &Forwarder, interface: u32, datagram: &Datagram, id: u32) -> Datagram {
    let parts = split(datagram, id, FIRST);
    let sent = try_parts(forwarder, interface, &parts);
    let sent: Vec<_> = sent.into_iter().map(Option::unwrap).collect();
    let (sent, of) = join(&sent);
    // Senders behind one address of the balancer may use the same identification.
    if sent.from.ip() == datagram.from.ip() {
        assert_eq!(of, id);
    }
    sent
}

fn is_left(fragments: &[Option<Vec<u8>>]) -> bool {
    fragments.iter().all(Option::is_none)
}

pub(super) fn make_question(family: Family, length: usize) -> Datagram {
    let mut question = Datagram::new(family.client(4000), family.listener());
    question.data = (0..length).map(|byte| byte as u8).collect();
    question
}

#[test]
fn s41_fragments_follow_the_first_one_in_both_directions() {
    for (has_nat, family) in [
        (false, Family::V4),
        (true, Family::V4),
        (false, Family::V6),
        (true, Family::V6),
    ] {
        run_beside_routes(|forwarder, interface| {
            let members = [family.member(9), family.member(10)];
            if has_nat {
                serve_with_ports(forwarder, &members);
            } else {
                serve_sessions(forwarder, &members, |listener| listener);
            }
            // The last fragment has 16 bytes, or 2, or 8.
            for (id, length) in [(7, 64), (8, 34), (9, 40)] {
                let question = make_question(family, length);
                let sent = pass_parts(forwarder, interface, &question, id);
                assert!(members.contains(&sent.to));
                assert_eq!(sent.data, question.data);
                let answer = sent.reply(&question.data);
                // Members choose their numbers by themselves.
                let back = pass_parts(forwarder, interface, &answer, 100 - id);
                assert_eq!(back, question.reply(&question.data));
                // Whole datagrams have the same session.
                let mut small = question.clone();
                small.data = b"small!".to_vec();
                let whole = pass(forwarder, interface, &small);
                assert_eq!((whole.from, whole.to), (sent.from, sent.to));
            }
            let [session] = list_sessions(forwarder)[..] else {
                panic!("one session");
            };
            assert_eq!(session.datagrams, (6, 3));
            assert_eq!(session.bytes, (64 + 34 + 40 + 18, 64 + 34 + 40));
            assert_eq!(list_kept(forwarder), []);
            // A datagram without a checksum has none in its first fragment.
            if family == Family::V4 {
                let mut question = make_question(family, 64);
                question.has_sum = false;
                let sent = pass_parts(forwarder, interface, &question, 12);
                assert!(!sent.has_sum);
            }
            remove_all(forwarder);
        });
    }
}

#[test]
fn s41_fragments_of_a_single_datagram_and_of_its_answer_follow_the_first_one() {
    for family in [Family::V4, Family::V6] {
        run_beside_routes(|forwarder, interface| {
            serve_singly(forwarder, &[family.member(9)]);
            let question = make_question(family, 64);
            let sent = pass_parts(forwarder, interface, &question, 7);
            assert_eq!(sent.data, question.data);
            let answer = sent.reply(&question.data);
            let back = pass_parts(forwarder, interface, &answer, 8);
            assert_eq!(back, question.reply(&question.data));
            // No fragment of another answer is sent, or left to the system.
            let mut context = [0; 44];
            context[36..40].copy_from_slice(&interface.to_ne_bytes());
            for frame in split(&answer, 9, FIRST) {
                let (verdict, _) = run_on_frame(forwarder, "evk_forward", &mut context, &frame);
                assert_eq!(verdict, 2);
            }
            let late = split(&answer, 9, FIRST).len() as u64;
            assert_eq!(read_outcome(forwarder, "late_answer"), late);
            // The next answer may have the same number.
            let sent = pass_parts(forwarder, interface, &question, 12);
            let answer = sent.reply(&question.data);
            let back = pass_parts(forwarder, interface, &answer, 9);
            assert_eq!(back, question.reply(&question.data));
            // In another order the proxy serves this datagram, and not the next one.
            let mut parts = split(&question, 10, FIRST);
            parts.reverse();
            assert!(is_left(&try_parts(forwarder, interface, &parts)));
            assert_eq!(list_kept(forwarder), []);
            pass_parts(forwarder, interface, &question, 11);
        });
    }
}

#[test]
fn s41_fragments_of_several_datagrams_are_told_apart() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            let members = [family.member(9), family.member(10)];
            serve_sessions(forwarder, &members, |listener| listener);
            let first = split(&make_question(family, 64), 1, FIRST);
            let mut other = make_question(family, 64);
            other.from.set_port(4001);
            let second = split(&other, 2, FIRST);
            let mut sent = [Vec::new(), Vec::new()];
            for parts in first.iter().zip(&second) {
                let parts = [parts.0, parts.1];
                for (list, frame) in sent.iter_mut().zip(parts) {
                    list.push(send_frame(forwarder, interface, frame).unwrap());
                }
            }
            let (one, two) = (join(&sent[0]).0, join(&sent[1]).0);
            assert_eq!((one.from.port(), two.from.port()), (4000, 4001));
            assert_ne!(one.to, two.to, "turns");
            // A number that comes again belongs to the datagram that has come last.
            let again = pass_parts(forwarder, interface, &other, 1);
            assert_eq!((again.from, again.to), (two.from, two.to));
            remove_all(forwarder);
        }
    });
}

#[test]
fn s41_fragments_without_the_first_one_pass_to_the_system_with_the_first_one() {
    run_beside_routes(|forwarder, interface| {
        for family in [Family::V4, Family::V6] {
            serve_sessions(forwarder, &[family.member(9)], |listener| listener);
            let question = make_question(family, 64);
            let mut parts = split(&question, 7, FIRST);
            parts.reverse();
            assert!(is_left(&try_parts(forwarder, interface, &parts)));
            // The proxy has the client from then on.
            let client = UdpClient {
                client: question.from,
                listener: question.to,
            };
            assert_eq!(list_kept(forwarder), [client]);
            let parts = split(&question, 8, FIRST);
            assert!(is_left(&try_parts(forwarder, interface, &parts)));
            assert_eq!(list_sessions(forwarder), []);
            forwarder.release_client(&client).unwrap();
            // The same number again, in order: the system may still wait for that one.
            let parts = split(&question, 8, FIRST);
            assert!(is_left(&try_parts(forwarder, interface, &parts)));
            forwarder.release_client(&client).unwrap();
            pass_parts(forwarder, interface, &question, 9);
            // Fragments of strangers, and to ports of others.
            let mut strange = question.clone();
            strange.to.set_port(9);
            let parts = split(&strange, 10, FIRST);
            assert!(is_left(&try_parts(forwarder, interface, &parts)));
            assert_eq!(list_kept(forwarder), []);
            remove_all(forwarder);
        }
    });
}

#[test]
fn s41_hostile_fragments_pass_to_the_system() {
    run_beside_routes(|forwarder, interface| {
        let mut runner = TestRunner::default();
        serve_with_ports(forwarder, &[Family::V4.member(9), Family::V6.member(9)]);
        let cases = (families(), 0..4usize, any::<u32>(), 0..40usize, any::<u8>());
        runner
            .run(&cases, |(family, part, id, at, byte)| {
                let question = make_question(family, 64);
                let mut parts = split(&question, id, FIRST);
                // A wrong byte in a header, or a fragment that is cut off.
                let frame = &mut parts[part];
                let (ip, head) = if family == Family::V4 {
                    (34, 28)
                } else {
                    (54, 56)
                };
                frame[14 + at % head] = byte;
                for frame in &parts {
                    run_fragment(forwarder, interface, frame);
                    for length in ip..frame.len() {
                        run_fragment(forwarder, interface, &frame[..length]);
                    }
                }
                Ok(())
            })
            .unwrap();
        let question = make_question(Family::V6, 64);
        for client in list_kept(forwarder) {
            forwarder.release_client(&client).unwrap();
        }
        pass_parts(forwarder, interface, &question, 0x1_0000);
    });
}

/// Gives the program anything: it takes the packet, drops it or passes it.
fn run_fragment(forwarder: &Forwarder, interface: u32, frame: &[u8]) {
    let mut context = [0; 44];
    context[36..40].copy_from_slice(&interface.to_ne_bytes());
    let (answer, out) = run_on_frame(forwarder, "evk_forward", &mut context, frame);
    assert!([7, NOT_TAKEN, 2].contains(&answer), "{answer}");
    assert_eq!(out.len(), frame.len());
}

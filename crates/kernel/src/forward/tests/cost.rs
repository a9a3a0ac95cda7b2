//! Time of the programs for a packet in the middle of a connection, by way and family.

use super::direct::serve_direct;
use super::packets::*;
use super::udp::datagrams::serve_singly_by;
use super::udp::{Datagram, serve_sessions, serve_with_ports};
use super::xdp::{Bench, serve};
use super::*;
use crate::forward::xdp;

/// Runs of a packet; the time is of the fastest tenth.
const RUNS: usize = 4_000;

/// Returns the context of a program for a frame that has come by an interface.
fn write_context(program: &str, interface: u32, length: usize) -> Vec<u8> {
    if program == xdp::PROGRAM {
        let words = [0, length as u32, 0, interface, 0, 0];
        return words.into_iter().flat_map(u32::to_ne_bytes).collect();
    }
    let mut context = vec![0; 44];
    context[36..40].copy_from_slice(&interface.to_ne_bytes());
    context
}

/// Runs a program on each frame in turns, and prints the time for each.
fn measure(forwarder: &Forwarder, interface: u32, program: &str, name: &str, frames: &[Vec<u8>]) {
    let mut times: Vec<Vec<u128>> = vec![Vec::new(); frames.len()];
    for _ in 0..RUNS {
        for (frame, times) in frames.iter().zip(&mut times) {
            let mut context = write_context(program, interface, frame.len());
            // One run: a run changes the packet.
            let input = ProgramInput {
                context_in: Some(&mut context),
                data_in: Some(frame),
                ..ProgramInput::default()
            };
            let program = bpf::find_program_mut(&forwarder.object, program).unwrap();
            let output = program.test_run(input).unwrap();
            assert!(output.return_value == 7 || output.return_value == 4);
            times.push(output.duration.as_nanos());
        }
    }
    let shown = times.iter_mut().map(|times| {
        times.sort_unstable();
        format!("{:5} ({:5})", times[RUNS / 10], times[RUNS / 2])
    });
    let shown: Vec<_> = shown.collect();
    println!(
        "{name:20} to member, to client: {} ns (median)",
        shown.join(", ")
    );
}

/// Runs the program on a frame once. Returns the time, and the frame that the program sends.
fn measure_one(forwarder: &Forwarder, interface: u32, frame: &[u8]) -> (u128, Vec<u8>) {
    let mut context = write_context("evk_forward", interface, frame.len());
    let mut out = [0; 2048];
    let input = ProgramInput {
        context_in: Some(&mut context),
        data_in: Some(frame),
        data_out: Some(&mut out),
        ..ProgramInput::default()
    };
    let program = bpf::find_program_mut(&forwarder.object, "evk_forward").unwrap();
    let output = program.test_run(input).unwrap();
    assert_eq!(output.return_value, 7);
    (output.duration.as_nanos(), output.data.unwrap().to_vec())
}

/// Lets a client ask by single datagrams again and again, and prints the time for a question and for an answer.
fn measure_single_datagrams(forwarder: &Forwarder, interface: u32, family: Family) {
    let ports = NatPorts {
        first: 10_000,
        count: 50_000,
    };
    serve_singly_by(forwarder, &[family.member(9)], ports);
    let question = Datagram::new(family.client(9), family.listener());
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..RUNS {
        let (time, sent) = measure_one(forwarder, interface, &question.write());
        times[0].push(time);
        let answer = Datagram::read(&sent).reply(b"noon");
        times[1].push(measure_one(forwarder, interface, &answer.write()).0);
    }
    let [question, answer] = times.map(|mut times| {
        times.sort_unstable();
        format!("{:5} ({:5})", times[RUNS / 10], times[RUNS / 2])
    });
    println!(
        "{family:?} UDP single datagrams, to member, to client: {question}, {answer} ns (median)"
    );
}

#[test]
#[ignore = "prints the time of a packet by each way"]
fn packets_of_each_way_cost() {
    run_beside_routes(|forwarder, interface| {
        let bench = Bench::new(forwarder, interface);
        let mut port = 30_000;
        for family in [Family::V4, Family::V6] {
            // A member has room for a few connections only.
            let (zero, none) = (0u32.to_ne_bytes(), Counts::default().write());
            bpf::update_map(&forwarder.object, "evk_counts", &zero, &none).unwrap();
            for has_nat in [false, true] {
                serve(&bench, family, has_nat);
                port += 1;
                let packets = bench.open(family, port, true);
                let frames = packets.map(|packet| packet.write());
                let way = if has_nat { "full NAT" } else { "half NAT" };
                let name = format!("{family:?} {way}");
                measure(forwarder, interface, "evk_forward", &name, &frames);
                let name = format!("{name} XDP");
                measure(forwarder, interface, xdp::PROGRAM, &name, &frames);
            }
            serve_direct(forwarder, &[family.member(9)], 0);
            port += 1;
            let mut ask = Segment::new(family.client(port), family.listener(), SYN);
            send(forwarder, interface, &ask);
            (ask.sequence, ask.answered, ask.flags) = (2, 7_001, ACK);
            send(forwarder, interface, &ask);
            measure(
                forwarder,
                interface,
                "evk_forward",
                &format!("{family:?} direct"),
                &[ask.write()],
            );
            measure_single_datagrams(forwarder, interface, family);
            serve_sessions(forwarder, &[family.member(9)], |listener| UdpListener {
                is_direct: true,
                answer: None,
                ..listener
            });
            port += 1;
            let question = Datagram::new(family.client(port), family.listener());
            let frames = [question.write()];
            let name = format!("{family:?} UDP direct");
            measure(forwarder, interface, "evk_forward", &name, &frames);
            for has_nat in [false, true] {
                if has_nat {
                    serve_with_ports(forwarder, &[family.member(9)]);
                } else {
                    serve_sessions(forwarder, &[family.member(9)], |listener| listener);
                }
                port += 1;
                let question = Datagram::new(family.client(port), family.listener());
                let sent = send_frame(forwarder, interface, &question.write()).unwrap();
                let answer = Datagram::read(&sent).reply(b"noon");
                let frames = [question.write(), answer.write()];
                let way = if has_nat { "full NAT" } else { "half NAT" };
                measure(
                    forwarder,
                    interface,
                    "evk_forward",
                    &format!("{family:?} UDP {way}"),
                    &frames,
                );
            }
        }
    });
}

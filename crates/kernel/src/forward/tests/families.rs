//! Groups with members of both families, and headers of IP that the program leaves to the system.

use super::packets::*;
use super::*;

const BOTH: [Family; 2] = [Family::V4, Family::V6];

#[test]
fn s41_clients_go_to_members_of_their_family() {
    run_beside_routes(|forwarder, interface| {
        let all: Vec<_> = (2..5)
            .flat_map(|last| BOTH.map(|family| family.member(last)))
            .collect();
        serve_members(forwarder, &all, 0);
        for port in 1..10 {
            for family in BOTH {
                let syn = Segment::new(family.client(port), family.listener(), SYN);
                let sent = send(forwarder, interface, &syn);
                assert_eq!(Family::of_address(&sent.to), family);
                assert!(all.contains(&sent.to));
            }
        }
        // Each member of a family has as many as the others.
        for seat in 0..6 {
            assert_eq!(forwarder.read_counts(seat).unwrap().in_flight, 3);
        }
        // A family without a member: the proxy serves, which can connect to both.
        for (family, other) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
            serve_members(forwarder, &[other.member(2), other.member(3)], 2);
            let before = read_outcome(forwarder, "proxied_full");
            let syn = Segment::new(family.client(99), family.listener(), SYN);
            assert_eq!(try_send(forwarder, interface, &syn), None);
            assert_eq!(read_outcome(forwarder, "proxied_full"), before + 1);
        }
    });
}

/// Puts an extension header with these bytes before the payload.
fn extend(frame: &[u8], kind: u8, extension: &[u8]) -> Vec<u8> {
    let mut out = frame[..54].to_vec();
    out[20] = kind;
    let length = frame.len() - 54 + extension.len();
    out[18..20].copy_from_slice(&(length as u16).to_be_bytes());
    [&out, extension, &frame[54..]].concat()
}

#[test]
fn extension_headers_and_fragments_pass_to_the_system() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V6;
        serve_members(forwarder, &[family.member(2)], 2);
        let syn = Segment::new(family.client(5000), family.listener(), SYN);
        // Hop-by-hop options, routing, fragments (the only one, the first, a later one), destination options.
        let extensions: [(u8, &[u8]); 6] = [
            (0, &[6, 0, 1, 4, 0, 0, 0, 0]),
            (43, &[6, 0, 4, 0, 0, 0, 0, 0]),
            (44, &[6, 0, 0, 0, 0, 0, 0, 1]),
            (44, &[6, 0, 0, 1, 0, 0, 0, 1]),
            (44, &[6, 0, 0, 8, 0, 0, 0, 1]),
            (60, &[6, 0, 1, 4, 0, 0, 0, 0]),
        ];
        let (mut count, mut flags) = (0, syn);
        // Without a connection, and of one.
        for _ in 0..2 {
            for (kind, extension) in extensions {
                let frame = extend(&flags.write(), kind, extension);
                assert_eq!(send_frame(forwarder, interface, &frame), None);
                count += 1;
                assert_eq!(read_outcome(forwarder, "odd"), count);
            }
            send(forwarder, interface, &flags);
            flags.flags = ACK;
        }
        // UDP behind an extension counts, too; another protocol is no business of the program.
        for (protocol, is_counted) in [(17, 1), (132, 0)] {
            let frame = extend(&flags.write(), 0, &[protocol, 0, 1, 4, 0, 0, 0, 0]);
            assert_eq!(send_frame(forwarder, interface, &frame), None);
            count += is_counted;
            assert_eq!(read_outcome(forwarder, "odd"), count);
        }
        // Addresses of IPv4 in packets of IPv6 are none of the tables.
        serve_members(forwarder, &[Family::V4.member(2)], 0);
        let mut frame = Segment::new(family.client(7), family.listener(), SYN).write();
        for (at, address) in [(22, Family::V4.client(7)), (38, Family::V4.listener())] {
            frame[at..at + 16].copy_from_slice(&layout::write_address(address)[..16]);
        }
        assert_eq!(send_frame(forwarder, interface, &frame), None);
        assert_eq!(list_connections(forwarder).len(), 1);
    });
}

/// Gives the header of IPv4 these options, and the field of fragments this value.
fn change_header(frame: &[u8], options: &[u8], fragment: u16) -> Vec<u8> {
    let mut out = [&frame[..34], options, &frame[34..]].concat();
    out[14] = 0x45 + (options.len() / 4) as u8;
    let length = (out.len() - 14) as u16;
    out[16..18].copy_from_slice(&length.to_be_bytes());
    out[20..22].copy_from_slice(&fragment.to_be_bytes());
    out[24..26].fill(0);
    let sum = sum_words([&out[14..34 + options.len()]]).to_be_bytes();
    out[24..26].copy_from_slice(&sum);
    out
}

#[test]
fn s41_options_and_fragments_of_ipv4_pass_to_the_system() {
    run_beside_routes(|forwarder, interface| {
        let family = Family::V4;
        serve_members(forwarder, &[family.member(2)], 2);
        let mut packet = Segment::new(family.client(5000), family.listener(), SYN);
        // Nothing, the route as it is recorded, a route of the sender's, an alert to routers.
        let options: [&[u8]; 4] = [
            &[1, 1, 1, 0],
            &[7, 7, 4, 0, 0, 0, 0, 0],
            &[131, 7, 4, 10, 0, 0, 1, 0],
            &[148, 4, 0, 0],
        ];
        // The first fragment, a later one, the last one; the first one of a packet that must stay whole.
        let fragments = [0x2000, 0x2001, 0x0001, 0x6000];
        let mut count = 0;
        // Without a connection, and of one.
        for _ in 0..2 {
            let frame = packet.write();
            let with_options = options.map(|options| change_header(&frame, options, 0x4000));
            let in_fragments = fragments.map(|fragment| change_header(&frame, &[], fragment));
            for frame in with_options.into_iter().chain(in_fragments) {
                assert_eq!(send_frame(forwarder, interface, &frame), None);
                count += 1;
                assert_eq!(read_outcome(forwarder, "odd"), count);
            }
            let whole = change_header(&frame, &[], 0x4000);
            assert!(send_frame(forwarder, interface, &whole).is_some());
            packet.flags = ACK;
        }
        assert_eq!(list_connections(forwarder).len(), 1);
    });
}

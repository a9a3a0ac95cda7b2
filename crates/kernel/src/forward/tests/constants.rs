//! Constants of the programs in C that stand in Rust, too.

use super::udp::datagrams::REST;
use super::*;
use crate::forward::layout::{
    ACCEPT, ANSWERED, CLIENT_FIN, CLOSED, CONFIRMED, COPIED, DIRECT, ESTABLISHED, MEMBER_FIN,
    UDP_UNSEEN,
};
use crate::forward::learnt_ids::{MAX_ID, MIN_ID};
use crate::forward::removals::REMOVALS;
use crate::forward::requests::AWAITED;
use crate::forward::table_copy::{LOOSE_CLIENT, LOOSE_MEMBER};
use crate::forward::udp::{LEAVES, QUIC, SINGLE, UDP_DIRECT, count_units};

/// Sources with the constants.
const SOURCES: [&str; 7] = [
    include_str!("../../../bpf/forward.bpf.c"),
    include_str!("../../../bpf/copies.bpf.h"),
    include_str!("../../../bpf/datagrams.bpf.h"),
    include_str!("../../../bpf/limits.bpf.h"),
    include_str!("../../../bpf/quic.bpf.h"),
    include_str!("../../../bpf/rows.bpf.h"),
    include_str!("../../../bpf/udp.bpf.h"),
];

/// Returns a source without its comments.
fn strip_comments(source: &str) -> String {
    let parts = source.split("/*").enumerate();
    let code = parts.map(|(number, part)| match number {
        0 => part,
        _ => part.split_once("*/").unwrap().1,
    });
    code.collect()
}

/// Reads a number in C, or a shift of one; `None` for anything else.
fn read_value(text: &str) -> Option<u64> {
    let read = |text: &str| {
        let digits = text.trim().trim_end_matches(['U', 'L']);
        match digits.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        }
    };
    let text = text.trim().trim_matches(['(', ')']);
    match text.split_once("<<") {
        Some((number, bits)) => Some(read(number)? << read(bits)?),
        None => read(text),
    }
}

/// Lists the constants of a source: macros with a value, and the values of enumerations.
fn list_constants(source: &str) -> Vec<(String, u64)> {
    let code = strip_comments(source);
    let mut all = Vec::new();
    let macros = code
        .lines()
        .filter_map(|line| line.strip_prefix("#define "));
    for (name, value) in macros.filter_map(|line| line.split_once([' ', '\t'])) {
        all.extend(read_value(value).map(|value| (name.to_owned(), value)));
    }
    for part in code.split("enum ").skip(1) {
        let Some((name, body)) = part.split_once('{') else {
            continue;
        };
        // Elsewhere an enumeration is the type of something.
        if name.split_whitespace().count() != 1 {
            continue;
        }
        let mut next = Some(0);
        let body = body.split_once('}').unwrap().0;
        for one in body.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let (name, value) = match one.split_once('=') {
                Some((name, value)) => (name.trim(), read_value(value)),
                None => (one, next),
            };
            all.extend(value.map(|value| (name.to_owned(), value)));
            next = value.map(|value| value + 1);
        }
    }
    all
}

#[test]
fn s41_constants_are_those_of_the_programs() {
    let all: Vec<_> = SOURCES.iter().flat_map(|one| list_constants(one)).collect();
    let find = |name: &str| {
        let mut found = all.iter().filter(|(one, _)| one == name);
        let value = found.next().unwrap_or_else(|| panic!("no {name}")).1;
        assert!(found.next().is_none(), "{name} is not the name of one");
        value
    };
    for (name, value) in [
        ("MAX_SEATS", SEATS),
        ("MAX_GROUPS", GROUPS),
        ("GROUP_SEATS", GROUP_SEATS as u32),
        ("MAX_RETRIES", MAX_RETRIES),
        ("MAX_EXCEPTIONS", MAX_EXCEPTIONS as u32),
        ("NEVER_HOT", terms::NEVER_HOT),
        ("ROWS", ROWS as u32),
        ("ROW_SEATS", ROW_SEATS as u32),
        ("REMOVALS", REMOVALS as u32),
        ("OUTCOMES", OUTCOMES.len() as u32),
        ("ESTABLISHED", ESTABLISHED),
        ("ANSWERED", ANSWERED),
        ("CLIENT_FIN", CLIENT_FIN),
        ("MEMBER_FIN", MEMBER_FIN),
        ("CLOSED", CLOSED),
        ("CONFIRMED", CONFIRMED),
        ("DIRECT", DIRECT),
        ("AWAITED", AWAITED),
        ("COPIED", COPIED),
        ("LOOSE_CLIENT", LOOSE_CLIENT),
        ("LOOSE_MEMBER", LOOSE_MEMBER),
        ("LEAVES", LEAVES),
        ("SINGLE", SINGLE),
        ("UDP_DIRECT", UDP_DIRECT),
        ("UDP_UNSEEN", UDP_UNSEEN.into()),
        ("QUIC", QUIC),
        ("QUIC_MIN_ID", MIN_ID as u32),
        ("QUIC_MAX_ID", MAX_ID as u32),
        ("EVENT_ACCEPT", ACCEPT.into()),
        ("END_CLOSED", UdpEnd::Idle as u32),
        ("END_SILENT", UdpEnd::Silent as u32),
        ("COPY_FAILED", CopyResult::Failed as u32),
        ("COPY_WRITTEN", CopyResult::Written as u32),
        ("COPY_UPDATED", CopyResult::Updated as u32),
        ("COPY_YIELDED", CopyResult::Yielded as u32),
        ("COPY_OWN", CopyResult::Own as u32),
        ("COPY_FULL", CopyResult::Full as u32),
        ("COPY_PORT", CopyResult::Port as u32),
        // The first whole unit behind the time.
        ("REST", count_units(REST) + 1),
        ("LONG_REST", count_units(LONG_REST) + 1),
    ] {
        assert_eq!(find(name), u64::from(value), "{name}");
    }
    let read = |kind: u64, end: u64| {
        let mut bytes = [0; 128];
        bytes[76..78].copy_from_slice(&(kind as u16).to_ne_bytes());
        bytes[78] = end as u8;
        Event::read(&bytes).unwrap().step
    };
    for (kind, step) in [
        ("EVENT_BEGIN", Step::Begin),
        ("EVENT_ANSWER", Step::Answer),
        ("EVENT_ACCEPT", Step::Accept),
        ("EVENT_CONFIRM", Step::Confirm),
        ("EVENT_ADOPT", Step::Adopt),
    ] {
        assert_eq!(read(find(kind), 0), step);
    }
    for (end, expected) in [
        ("END_CLOSED", End::Closed),
        ("END_REFUSED", End::Refused),
        ("END_RESET", End::Reset),
        ("END_CLIENT_RESET", End::ClientReset),
        ("END_SILENT", End::Silent),
        ("END_UNREACHABLE", End::Unreachable),
    ] {
        let step = read(find("EVENT_END"), find(end));
        assert_eq!(step, Step::End(expected));
    }
}

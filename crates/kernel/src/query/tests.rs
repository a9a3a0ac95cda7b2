#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::record::{Base, Scope, Source};

fn key() -> Key {
    Key::parse("7:000102030405060708090a0b0c0d0e0f").unwrap()
}

fn query(length: usize) -> Query {
    Query {
        length: length as u16,
        target: 3,
        first_cpu: 0,
        reader: 0x1122_3344_5566_7788,
        number: 99,
        host: Host::from_name("web-1"),
    }
}

fn answer(length: usize) -> Vec<u8> {
    let mut datagram = vec![0; length];
    let mut base = Base::new(Source::Responder, Scope::Machine);
    (base.cpus, base.capacity) = (8, 8000);
    base.entries = (length.saturating_sub(WITH_PORTS) / CPU) as u16;
    base.write(datagram[ENVELOPE..].first_chunk_mut().unwrap());
    query(length).answer(&key(), &mut datagram);
    datagram
}

const LENGTHS: [usize; 6] = [408, 600, 776, 952, 1128, 1304];

#[test]
fn lengths_are_those_of_whole_parts() {
    let lengths = (0..2000).filter(|length| Query::is_length(*length));
    assert!(lengths.eq(LENGTHS));
}

#[test]
fn a_query_is_read_and_answered() {
    for length in LENGTHS {
        let mut datagram = Vec::new();
        query(length).write(&key(), &mut datagram);
        let keys = [Key::new(1, [0; 16]), key()];
        let (read, by) = Query::parse(&datagram, &keys).unwrap();
        assert_eq!(
            (read, by, datagram.len()),
            (query(length), &keys[1], length)
        );

        let datagram = answer(length);
        assert_eq!(
            Answer::claimed_ids(&datagram),
            Some((query(length).reader, 99))
        );
        let answer = Answer::parse(&datagram, &key()).unwrap();
        assert_eq!(answer.query, query(length));
    }
}

/// The code is the one of the paper on SipHash (Aumasson and Bernstein, 2012, appendix A).
#[test]
fn the_code_is_siphash_2_4() {
    let message: [u8; 15] = std::array::from_fn(|at| at as u8);
    let mac = u64::from_le_bytes(key().mac([&message[..4], &message[4..]]));
    assert_eq!(mac, 0xa129_ca61_49be_45e5);
}

#[test]
fn keys_are_parsed() {
    assert_eq!(
        Key::parse(" 000102030405060708090A0b0c0d0e0f\n")
            .unwrap()
            .number,
        0
    );
    for text in [
        "",
        "7:",
        "x:000102030405060708090a0b0c0d0e0f",
        "+0102030405060708090a0b0c0d0e0f0",
    ] {
        assert_eq!(Key::parse(text), Err(BadKey), "{text}");
    }
    assert!(!format!("{:?}", key()).contains("0, 1"));
}

proptest! {
    /// Whatever byte of whatever datagram is changed, nobody takes it for an answer, and
    /// in a query the padding alone may differ.
    #[test]
    fn no_change_passes(which in 0..LENGTHS.len(), at in 0..LONGEST, change in 1..=255u8) {
        let length = LENGTHS[which];
        let at = at % length;
        let mut datagram = answer(length);
        datagram[at] ^= change;
        prop_assert!(Answer::parse(&datagram, &key()).is_err());

        query(length).write(&key(), &mut datagram);
        datagram[at] ^= change;
        prop_assert_eq!(Query::parse(&datagram, &[key()]).is_ok(), at >= ENVELOPE);
    }

    #[test]
    fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
        prop_assert!(Answer::parse(&bytes, &key()).is_err());
        prop_assert!(Query::parse(&bytes, &[key()]).is_err());
    }
}

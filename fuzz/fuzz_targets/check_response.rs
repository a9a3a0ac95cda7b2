//! Any answer to a health check or a scrape: no panic, and it means the same however it is
//! cut into pieces.
#![no_main]

use evenkeel_manager::response::{Head, Seen};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = Head::parse(bytes);
    let mut before = Ok(None);
    for end in 0..=bytes.len() {
        let now = Head::parse(&bytes[..end]);
        match (&before, &now) {
            // What was a head, or none, stays that.
            (Ok(Some(head)), Ok(Some(again))) => {
                let (head, again): (&Head, &Head) = (head, again);
                assert_eq!((head.code, head.length), (again.code, again.length));
                assert_eq!(head.is_until_close(), again.is_until_close());
            }
            (Ok(Some(_)), _) => panic!("a head that is whole does not change"),
            (Err(_), now) => assert!(now.is_err(), "garbage stays garbage"),
            (Ok(None), _) => {}
        }
        before = now;
    }
    let Ok(Some(head)) = whole else {
        return;
    };
    assert!((100..=599).contains(&head.code));
    assert!(head.length <= bytes.len());
    let rest = &bytes[head.length..];
    let (all, seen) = head.body(rest);
    assert!(all.len() <= rest.len());
    for end in 0..rest.len() {
        let (part, seen_of_part) = head.body(&rest[..end]);
        assert!(all.starts_with(&part), "a body only grows");
        match seen_of_part {
            Seen::Whole => assert!(seen == Seen::Whole && part == all),
            Seen::Garbage => assert!(seen == Seen::Garbage && part == all),
            Seen::Part => {}
        }
    }
});

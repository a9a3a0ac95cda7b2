//! The hot path allocates nothing: choice, binding, observation, end.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use crate::common::*;
use evenkeel_core::group::{Outcome, Request};
use evenkeel_core::latency::Remainder;
use evenkeel_core::load::LoadId;

struct Counting;

thread_local! {
    /// Per thread: the test harness allocates on its own ones.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: hands every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_strategy_allocates_in_pick_or_finish() {
    for strategy in all_strategies() {
        for members in [3, 100, 300] {
            let group = group_with(strategy, &vec![1.0; members]);
            let mut rng = fastrand::Rng::with_seed(1);
            let mut places: Vec<_> = (0..32).map(|_| None).collect();
            for index in 0..members {
                report_load(&group, index, LoadId::CPU, 0.01 * index as f64, 90_000);
            }
            let before = ALLOCATIONS.get();
            for step in 0..2000 {
                let now = at_ms(100_000 + step);
                let request = Request {
                    client: Some([192, 0, 2, step as u8].into()),
                    ..Request::at_time(now)
                };
                let place = step as usize % places.len();
                let old = places[place].replace(group.pick(&request, &mut rng).unwrap());
                let Some(mut old) = old else { continue };
                let retry_after = Some(Duration::from_secs(1));
                match step % 6 {
                    0 => old.finish(Outcome::Failure, now),
                    1 => old.finish(Outcome::Overloaded { retry_after }, now),
                    2 => drop(old),
                    3 => {
                        old.head_arrived(Outcome::Success, Remainder::Stream, now);
                        old.stop_clock(now);
                        old.start_clock(now);
                        old.first_byte_arrived(now);
                        old.note_bytes(100);
                        old.finish(Outcome::Success, now);
                    }
                    _ => {
                        old.record_response(Outcome::Success, now);
                        old.finish(Outcome::Success, now);
                    }
                }
            }
            assert_eq!(
                ALLOCATIONS.get() - before,
                0,
                "{strategy}, {members} members"
            );
        }
    }
}

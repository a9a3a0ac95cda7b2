//! The path of a request allocates nothing once its builder has had a prompt of that length.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use evenkeel_inference::chain::{ChainBuilder, HashKey};
use evenkeel_inference::cost::Candidate;
use evenkeel_inference::group::{AnswerEnd, EngineGroup, GroupSettings, RequestFacts};
use evenkeel_inference::scanner::Scanner;
use evenkeel_inference::usage::UsageReader;

struct Counting;

thread_local! {
    /// Calls of the allocator by this thread: tests run in threads beside each other.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // The thread may be ending.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
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
fn a_request_allocates_nothing() {
    let group = EngineGroup::new(&GroupSettings {
        members: 20,
        index_bytes: 1 << 20,
        decay_seconds: 10.0,
    });
    let mut builder = ChainBuilder::new(HashKey::new([1, 2, 3]));
    let text = "a long prompt ".repeat(5000);
    let body = format!("{{\"model\":\"m\",\"stream\":true,\"messages\":[\"{text}\"]}}");
    let answer = b"data: {\"x\":1}\n\ndata: {\"usage\":{\"prompt_tokens\":9000,\"completion_tokens\":2,\"cached_tokens\":100}}\n\n";
    let mut before = 0;
    for turn in 0..1000u64 {
        // The first turn makes room.
        if turn == 1 {
            before = ALLOCATIONS.get();
        }
        let now = turn * 100_000_000;
        let mut scanner = Scanner::new();
        builder.reset();
        for part in body.as_bytes().chunks(16 * 1024) {
            scanner.feed_bytes(part, &mut builder);
        }
        let model = builder.model_hash();
        let plan = group.plan_request(RequestFacts {
            chain: builder.link_blocks(),
            model,
            max_tokens: scanner.max_tokens(),
            is_stream: scanner.wants_stream(),
            random: turn,
        });
        let candidates = (0..20).map(|member| Candidate {
            member,
            key: member as u64,
            weight: 1.0,
            ..Candidate::default()
        });
        let chosen = group.choose_member(&plan, candidates, now, |_, _| {});
        let member = chosen.unwrap().member;
        let mut sent = group.begin_request(&plan, member, now).unwrap();
        let mut reader = UsageReader::new(true);
        let events = reader.feed_bytes(answer);
        group.take_events(&mut sent, events, now + 50_000_000);
        let end = AnswerEnd {
            usage: reader.find_usage(),
            events: reader.event_count(),
            is_complete: true,
        };
        assert!(end.usage.is_some());
        group.finish_request(&mut sent, &end, now + 60_000_000);
        // Control calls it once per second: it is not on a request's path.
        let of_requests = ALLOCATIONS.get();
        group.keep_up(0, 10, now);
        before += ALLOCATIONS.get() - of_requests;
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

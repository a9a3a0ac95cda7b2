//! Cost of a decision: nanoseconds of CPU time and allocations per pick, for every strategy and for groups of 10 to
//! 10,000 members.
//!
//! A *pick* here is the whole of what a request costs in `core`: the choice, the binding,
//! and a finish with its observations for one request of 64 in flight, so that members
//! are neither all idle nor all in the cache. The choice alone is shown beside it.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_core::group::{Outcome, Request, Ticket};
use evenkeel_core::strategy::{self, Kind};
use evenkeel_core::time::Instant;
use evenkeel_counts::group;
use serde::Serialize;

/// Counts allocations: a pick must not make any.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A line of the table.
#[derive(Serialize)]
struct Row {
    strategy: &'static str,
    members: usize,
    /// The choice alone.
    choose_ns: f64,
    /// Choice, binding and finish.
    pick_ns: f64,
    allocations: u64,
}

fn main() {
    let json = std::env::args().any(|arg| arg == "--json");
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let mut rows = Vec::new();
    for kind in strategy::REGISTRY {
        if !only.is_empty() && !only.iter().any(|name| name == kind.name) {
            continue;
        }
        for members in [10, 100, 1_000, 10_000] {
            rows.push(measure(kind, members));
        }
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&rows).unwrap());
    } else {
        print(&rows);
    }
}

fn measure(kind: &'static Kind, members: usize) -> Row {
    let group = group(kind, members);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut now = Instant::from_nanos(60_000_000_000);
    let mut flying: Vec<Option<Ticket>> = (0..64).map(|_| None).collect();
    let mut place = 0;
    let mut pick = |rng: &mut fastrand::Rng| {
        now = now.after(std::time::Duration::from_micros(20));
        let request = Request {
            client: Some([192, 0, 2, place as u8].into()),
            excluded_members: &[],
            ..Request::at_time(now)
        };
        let ticket = group.pick(&request, rng).unwrap();
        place = (place + 1) % flying.len();
        if let Some(old) = flying[place].replace(ticket) {
            old.finish(Outcome::Success, now);
        }
    };
    // Warm-up, and how many picks make a millisecond.
    let probe = best_of(3, 20, || pick(&mut rng));
    let picks = (1_000_000.0 / probe.max(10.0)).ceil() as u64;
    best_of(1, picks.max(members as u64), || pick(&mut rng));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let pick_ns = best_of(100, picks, || pick(&mut rng));
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let mut time = now;
    let mut client = 0u8;
    let choose_ns = best_of(100, picks, || {
        time = time.after(std::time::Duration::from_micros(20));
        client = client.wrapping_add(1);
        let request = Request {
            client: Some([192, 0, 2, client].into()),
            excluded_members: &[],
            ..Request::at_time(time)
        };
        black_box(group.choose_member(&request, &mut rng)).unwrap();
    });
    Row {
        strategy: kind.name,
        members,
        choose_ns,
        pick_ns,
        allocations,
    }
}

/// CPU time per call in nanoseconds: the best of several rounds, because whatever else
/// runs on the machine only ever adds to it.
fn best_of(rounds: usize, calls: u64, mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let before = cpu_nanos();
        for _ in 0..calls {
            call();
        }
        best = best.min((cpu_nanos() - before) as f64 / calls as f64);
    }
    best
}

/// CPU time of this thread.
fn cpu_nanos() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a valid timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "no CPU clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn print(rows: &[Row]) {
    println!("CPU time in ns: choice alone / choice, binding and finish");
    println!("{:<24}{:>18}{:>18}{:>18}{:>18}", "", 10, 100, 1_000, 10_000);
    for rows in rows.chunks(4) {
        print!("{:<24}", rows[0].strategy);
        for row in rows {
            print!("{:>9.0} /{:>7.0}", row.choose_ns, row.pick_ns);
        }
        println!();
    }
    let allocations: u64 = rows.iter().map(|row| row.allocations).sum();
    println!("allocations: {allocations}");
}

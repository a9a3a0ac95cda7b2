use evenkeel_limits::memory::{By, MemoryBound, Users};

use super::*;

/// Returns memory with this number of bytes for large buffers and heads.
pub(crate) fn new_memory(buffers: usize) -> Arc<Memory> {
    let bound = MemoryBound {
        all: 1 << 30,
        used: 0,
        by: By::Machine,
    };
    let shares = Shares {
        buffers,
        ..Shares::new(bound, Users::default())
    };
    Memory::new(shares, 1)
}

#[test]
fn s5_no_more_memory_is_given_than_there_is() {
    let memory = new_memory(100_000);
    let first = memory.take(60_000).unwrap();
    assert_eq!(memory.take(60_000).unwrap_err(), OutOfMemory);
    let second = memory.take(40_000).unwrap();
    assert!(memory.take_above(10, 11).is_err());
    assert!(memory.take_above(10, 10).unwrap().is_none());
    drop(first);
    assert!(memory.take(60_000).is_ok());
    let mut third = memory.take(10_000).unwrap();
    assert_eq!(third.grow_to(60_001), Err(OutOfMemory));
    assert_eq!(third.grow_to(60_000), Ok(()));
    assert_eq!(memory.take(1).unwrap_err(), OutOfMemory);
    third.shrink_to(50_000);
    third.shrink_to(70_000);
    drop(memory.take(10_000).unwrap());
    assert_eq!(memory.take(10_001).unwrap_err(), OutOfMemory);
    assert_eq!(third.grow_to(60_000), Ok(()));
    drop(third);
    drop(second);
    assert!(memory.take(100_000).is_ok());
}

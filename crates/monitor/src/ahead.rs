//! Memory that is about to be read is asked for ahead of time.
//!
//! With thousands of locations each of them is in no cache of the processor when it is its turn, and
//! waiting for memory is most of what this program itself does for a question and its answer.

/// Bytes that the processor fetches at once.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Has the processor fetch all of `what` without waiting for it. Other processors than x86-64 find
/// out themselves, and wait.
#[inline]
pub(crate) fn prefetch_value<T: ?Sized>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let first = std::ptr::from_ref(what).cast::<i8>();
        for at in (0..size_of_val(what)).step_by(LINE) {
            // SAFETY: a hint, which reads nothing that the program sees, and is allowed for any
            // address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(at)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_can_be_fetched_and_stays_as_it_is() {
        let (long, none): (Vec<u8>, [u64; 0]) = ((0..=255).cycle().take(5000).collect(), []);
        prefetch_value(&*long);
        prefetch_value(&long[4999]);
        prefetch_value(&none);
        prefetch_value("");
        assert!(
            long.iter()
                .enumerate()
                .all(|(at, byte)| *byte == (at % 256) as u8)
        );
    }
}

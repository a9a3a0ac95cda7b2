use evenkeel_limits::files::Shares;

use super::*;
use crate::memory::tests::new_memory;

/// Runs `test` as a task of a worker.
pub(crate) fn on_worker(test: impl AsyncFnOnce(&Worker)) {
    let files = Files::new(Shares::of_process());
    let (runtime, worker, _timer) =
        build_worker(Clock::start(), files, new_memory(1 << 30)).unwrap();
    runtime.block_on(test(&worker));
}

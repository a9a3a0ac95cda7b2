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

#[test]
fn s18_a_worker_that_panics_is_told_of() {
    let failed = FailedWorker::new(None);
    let thread = supervise_worker(3, failed.clone(), || WorkerEnd::InOrder).unwrap();
    thread.join().unwrap();
    assert_eq!(*failed.borrow(), None);
    let thread = supervise_worker(4, failed.clone(), || WorkerEnd::Broken).unwrap();
    thread.join().unwrap();
    assert_eq!(*failed.borrow(), Some(4));
    let thread = supervise_worker(5, failed.clone(), || panic!("on purpose")).unwrap();
    thread.join().unwrap_err();
    assert_eq!(*failed.borrow(), Some(5));
}

#[test]
fn s18_a_worker_ends_if_a_task_panics_that_it_cannot_do_without() {
    let failed = FailedWorker::new(None);
    let (commands, inbox) = unbounded_channel();
    let thread = supervise_worker(0, failed.clone(), || {
        let (runtime, worker, timer) = build_worker(
            Clock::start(),
            Files::new(Shares::of_process()),
            new_memory(0),
        )
        .unwrap();
        let vital = Vital(Rc::clone(&worker));
        runtime.block_on(async {
            tokio::task::spawn_local(async move {
                let _vital = vital;
                panic!("on purpose");
            });
            run(worker, timer, inbox).await
        })
    });
    thread.unwrap().join().unwrap();
    assert_eq!(*failed.borrow(), Some(0));
    drop(commands);
}

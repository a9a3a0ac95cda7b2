//! Tasks that follow what is wanted of them.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinSet};

/// Returns a single-threaded runtime, with a thread for calls that block, which stays.
///
/// Such threads come and go otherwise, and where the system gives none, tokio panics. With a thread that
/// stays, calls wait for it instead.
///
/// # Errors
///
/// The system gives no event loop, or no thread.
pub fn new_runtime() -> io::Result<Runtime> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .thread_name("blocking")
        .thread_keep_alive(Duration::from_secs(u32::MAX.into()))
        .build()?;
    // An error, where the next call would panic.
    let probe = std::thread::Builder::new().spawn(|| ())?;
    drop(probe.join());
    runtime.spawn_blocking(|| ());
    Ok(runtime)
}

/// Starts a thread with a [`new_runtime`] of its own. The runtime is made in the thread: a runtime of a thread
/// which cannot be started would be dropped where the caller must not block.
///
/// # Errors
///
/// The system gives no thread, or no runtime.
pub fn start_thread(
    name: &str,
    work: impl FnOnce(Runtime) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (ready, started) = std::sync::mpsc::sync_channel(1);
    let handle =
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || match new_runtime() {
                Ok(runtime) => {
                    let _ = ready.send(Ok(()));
                    work(runtime);
                }
                Err(error) => drop(ready.send(Err(error))),
            })?;
    let ended = |_| Err(io::Error::other("the thread ended at its start"));
    started.recv().unwrap_or_else(ended)?;
    Ok(handle)
}

/// Tasks that go on for as long as something is wanted of them: one task per key, started again when what is
/// wanted of it changes. The tasks end when this is dropped.
#[derive(Debug)]
pub struct Tasks<K, S> {
    running: HashMap<K, (S, AbortHandle)>,
    set: JoinSet<()>,
}

impl<K: Clone + Eq + Hash, S: Clone + PartialEq> Default for Tasks<K, S> {
    fn default() -> Self {
        Tasks {
            running: HashMap::new(),
            set: JoinSet::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, S: Clone + PartialEq> Tasks<K, S> {
    /// Stops what is not in `wanted`, and starts what is new there.
    pub fn reconcile<F>(&mut self, wanted: HashMap<K, S>, mut start: impl FnMut(K, S) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.running.retain(|key, (spec, task)| {
            let keep = wanted.get(key) == Some(spec);
            if !keep {
                task.abort();
            }
            keep
        });
        for (key, spec) in wanted {
            if !self.running.contains_key(&key) {
                let task = self.set.spawn(start(key.clone(), spec.clone()));
                self.running.insert(key, (spec, task));
            }
        }
        while self.set.try_join_next().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts those who live.
    struct Alive(Arc<AtomicUsize>);

    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn tasks_follow_what_is_wanted() {
        let (alive, started) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
        let mut tasks = Tasks::default();
        let mut want = async |wanted: &[(u32, u32)]| {
            tasks.reconcile(wanted.iter().copied().collect(), |_, _| {
                started.fetch_add(1, Ordering::Relaxed);
                alive.fetch_add(1, Ordering::Relaxed);
                let alive = Alive(Arc::clone(&alive));
                async move {
                    let _alive = alive;
                    std::future::pending().await
                }
            });
            // Aborted tasks end when the runtime gets to them.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            let (alive, started) = (&alive, &started);
            (
                alive.load(Ordering::Relaxed),
                started.load(Ordering::Relaxed),
            )
        };
        assert_eq!(want(&[(1, 10), (2, 20)]).await, (2, 2));
        assert_eq!(want(&[(1, 10), (2, 20)]).await, (2, 2), "nothing new");
        assert_eq!(want(&[(1, 10), (2, 21)]).await, (2, 3), "one has changed");
        assert_eq!(want(&[(2, 21)]).await, (1, 3));
        assert_eq!(want(&[]).await, (0, 3));
    }
}

//! When to read the configuration again: on SIGHUP, and when its file changes.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use super::{MAX_FILE_SIZE, read_bounded};

/// Why the configuration is to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The process got SIGHUP.
    Signal,
    /// The text of the file has changed.
    File,
}

/// How long the folder must be quiet before the file is looked at, so that one that is
/// just being written is not read by halves.
const QUIET: Duration = Duration::from_millis(100);

/// How often the file is looked at without an event: for file systems that send none,
/// and for changes further up the path than the folders that are watched.
const POLL: Duration = Duration::from_secs(5);

/// Tells when to read the configuration again.
///
/// What counts is the text of the file, not how it got there: written in place, renamed
/// over (editors), or through a symbolic link that now points elsewhere (Kubernetes).
pub struct Reloads {
    path: PathBuf,
    /// Another file that the configuration is made of.
    also: Option<PathBuf>,
    hangup: Signal,
    /// Told by the watcher's thread that something happened near the file.
    touched: Arc<Notify>,
    poll: tokio::time::Interval,
    /// `None` where the system cannot watch; the poll remains.
    watcher: Option<RecommendedWatcher>,
    /// Hash of the text that was last reported.
    known: Option<u64>,
    /// Something happened and has not been looked at yet.
    pending: bool,
}

impl std::fmt::Debug for Reloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = &self.path;
        f.debug_struct("Reloads").field("path", path).finish()
    }
}

impl Reloads {
    /// Watches the file at `path`, and takes SIGHUP over for the whole process. Make it
    /// before the file is first loaded, so that no change is missed in between.
    ///
    /// # Errors
    ///
    /// The signal handler cannot be installed. That files cannot be watched is no error:
    /// the file is then looked at every few seconds, and the log says so.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn new(path: &Path) -> io::Result<Self> {
        Self::with_poll(path, POLL)
    }

    fn with_poll(path: &Path, poll: Duration) -> io::Result<Self> {
        let touched = Arc::new(Notify::new());
        let mut poll = interval_at(Instant::now() + poll, poll);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reloads = Reloads {
            path: path.to_owned(),
            also: None,
            hangup: signal(SignalKind::hangup())?,
            poll,
            watcher: None,
            touched: Arc::clone(&touched),
            known: None,
            pending: false,
        };
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if is_change(&event) {
                touched.notify_one();
            }
        });
        match watcher {
            Ok(watcher) => {
                reloads.watcher = Some(watcher);
                reloads.watch_folders();
            }
            Err(error) => reloads.warn(&error),
        }
        // Watched first, read second: a change in between is seen twice, not missed.
        reloads.known = reloads.fingerprint();
        Ok(reloads)
    }

    /// The text of this file counts, too, from now on: that of the token. It is looked at
    /// every few seconds.
    pub fn also(&mut self, file: Option<&Path>) {
        if self.also.as_deref() == file {
            return;
        }
        let is_known = self.fingerprint() == self.known;
        self.also = file.map(Path::to_owned);
        self.known = self.fingerprint().filter(|_| is_known);
    }

    /// A hash of the text of all files; `None` if one cannot be read.
    fn fingerprint(&self) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        for path in std::iter::once(&self.path).chain(&self.also) {
            read_bounded(path, MAX_FILE_SIZE).ok()?.hash(&mut hasher);
        }
        Some(hasher.finish())
    }

    /// Waits until the configuration is to be read again. Nothing is lost if the future
    /// is dropped before it is ready.
    pub async fn next(&mut self) -> Cause {
        loop {
            tokio::select! {
                biased;
                _ = self.hangup.recv() => {
                    // What is read now need not be read again.
                    self.known = self.fingerprint().or(self.known);
                    return Cause::Signal;
                }
                () = self.touched.notified() => self.pending = true,
                () = sleep(QUIET), if self.pending => {
                    self.pending = false;
                    if self.has_changed() {
                        return Cause::File;
                    }
                }
                _ = self.poll.tick() => {
                    if self.has_changed() {
                        return Cause::File;
                    }
                }
            }
        }
    }

    /// Whether the text is another than when this was last asked. A file that is gone or
    /// unreadable has not changed: it is probably being replaced.
    fn has_changed(&mut self) -> bool {
        // Links and folders may have been replaced.
        self.watch_folders();
        match self.fingerprint() {
            Some(now) if self.known != Some(now) => {
                self.known = Some(now);
                true
            }
            _ => false,
        }
    }

    /// Watches the folder of the path, and the one that the file is really in.
    ///
    /// A file itself cannot be watched for long: whoever renames another over it leaves
    /// the watch behind on the old one.
    fn watch_folders(&mut self) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let real = self.path.canonicalize().ok();
        let mut failed = None;
        for path in std::iter::once(&self.path).chain(&real) {
            let folder = match path.parent() {
                Some(folder) if folder != Path::new("") => folder,
                _ => Path::new("."),
            };
            if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
                failed = Some(error);
            }
        }
        if let Some(error) = failed
            && self.path.exists()
        {
            self.warn(&error);
            self.watcher = None;
        }
    }

    fn warn(&self, error: &notify::Error) {
        tracing::warn!(
            path = %self.path.display(),
            %error,
            "cannot watch the configuration's folder; the file is looked at every {POLL:?} instead"
        );
    }
}

/// Whether the file may have changed; reading a file is an event, too.
fn is_change(event: &notify::Result<notify::Event>) -> bool {
    match event {
        Ok(event) => match event.kind {
            EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
            _ => true,
        },
        // Events were lost.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::tests::scratch;
    use super::*;

    /// Long enough to be no part of the outcome.
    const NEVER: Duration = Duration::from_secs(3600);

    async fn next(reloads: &mut Reloads) -> Cause {
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, reloads.next())
            .await
            .expect("no event")
    }

    fn on_a_runtime(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn a_file_written_in_place_or_renamed_over_is_noticed() {
        on_a_runtime(async {
            let folder = scratch("watch-file");
            let path = folder.join("evenkeel.toml");
            fs::write(&path, "1").unwrap();
            let mut reloads = Reloads::with_poll(&path, NEVER).unwrap();
            for round in 0..3 {
                fs::write(&path, format!("in place {round}")).unwrap();
                assert_eq!(next(&mut reloads).await, Cause::File);
                fs::write(folder.join("new"), format!("renamed {round}")).unwrap();
                fs::rename(folder.join("new"), &path).unwrap();
                assert_eq!(next(&mut reloads).await, Cause::File);
            }
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn s24_another_text_of_the_token_is_noticed() {
        on_a_runtime(async {
            let folder = scratch("watch-token");
            let (path, token) = (folder.join("evenkeel.toml"), folder.join("token"));
            fs::write(&path, "1").unwrap();
            fs::write(&token, "first-token").unwrap();
            let mut reloads = Reloads::with_poll(&path, Duration::from_millis(10)).unwrap();
            reloads.also(Some(&token));
            fs::write(&token, "second-token").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::File);
            // What has changed before the other file counted is not forgotten.
            fs::write(&path, "2").unwrap();
            reloads.also(None);
            assert_eq!(next(&mut reloads).await, Cause::File);
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn a_link_that_points_elsewhere_is_noticed_and_what_is_behind_it_is_watched() {
        on_a_runtime(async {
            let folder = scratch("watch-link");
            for (version, text) in [("v1", "1"), ("v2", "2")] {
                fs::create_dir_all(folder.join(version)).unwrap();
                fs::write(folder.join(version).join("evenkeel.toml"), text).unwrap();
            }
            // As Kubernetes mounts a ConfigMap.
            symlink("v1", folder.join("..data")).unwrap();
            symlink("..data/evenkeel.toml", folder.join("evenkeel.toml")).unwrap();
            let path = folder.join("evenkeel.toml");
            let mut reloads = Reloads::with_poll(&path, NEVER).unwrap();

            symlink("v2", folder.join("..data_tmp")).unwrap();
            fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
            assert_eq!(next(&mut reloads).await, Cause::File);

            fs::write(folder.join("v2/evenkeel.toml"), "3").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::File);
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn where_the_system_cannot_watch_the_file_is_looked_at() {
        on_a_runtime(async {
            let folder = scratch("watch-poll");
            let path = folder.join("evenkeel.toml");
            fs::write(&path, "1").unwrap();
            let mut reloads = Reloads::with_poll(&path, Duration::from_millis(5)).unwrap();
            reloads.watcher = None;
            fs::write(&path, "2").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::File);
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn only_another_text_is_a_change() {
        on_a_runtime(async {
            let folder = scratch("watch-same");
            let path = folder.join("evenkeel.toml");
            fs::write(&path, "1").unwrap();
            let mut reloads = Reloads::with_poll(&path, NEVER).unwrap();
            fs::write(folder.join("neighbour"), "2").unwrap();
            assert!(!reloads.has_changed());
            fs::write(&path, "1").unwrap();
            assert!(!reloads.has_changed(), "the same text again");
            fs::remove_file(&path).unwrap();
            assert!(!reloads.has_changed(), "gone: about to be replaced");
            fs::write(&path, "1").unwrap();
            assert!(!reloads.has_changed());
            fs::write(&path, "2").unwrap();
            assert!(reloads.has_changed());
            assert!(!reloads.has_changed());
            fs::remove_dir_all(folder).unwrap();
        });
    }
}

//! Watching for changes of the configuration: on SIGHUP, and when its file changes.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::future::pending;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::schema::include;
use crate::schema::pattern::Pattern;
use crate::schema::source::{MAX_FILE_SIZE, read_bounded};

/// Reason for reading the configuration again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The process got SIGHUP.
    Signal,
    /// The text of the file has changed.
    File,
    /// Text or rights of a file that is read with it have changed, or which ones it includes, and
    /// perhaps its own text, too.
    Beside,
}

/// Time for which the file must be quiet before it is looked at, so that a file that is just being written is
/// not read by halves.
const QUIET: Duration = Duration::from_millis(100);

/// Time without a write after which a file that is open for writing, and not yet closed, is looked at all the
/// same: its writer may never close it.
const STALLED: Duration = Duration::from_secs(30);

/// Time after which the file is looked at without an event: for file systems that send none, and for changes
/// further up the path than the folders that are watched.
const POLL: Duration = Duration::from_secs(5);

/// Tells when to read the configuration again.
///
/// The text of the file counts, and text and rights of those that are read with it
/// ([`Self::follow_files`]) or that it includes, new ones among them, not how it got there: written in place, renamed over (editors), or through
/// a symbolic link that now points elsewhere (Kubernetes). Other changes in their folders
/// do not.
pub struct Reloads {
    /// The configuration file first.
    files: Vec<PathBuf>,
    /// Files that the configuration file includes.
    included: Includes,
    /// Names that lead to all these, and folders in which any name may become one of them: only
    /// what happens to these is looked at.
    names: Names,
    hangup: Signal,
    poll: tokio::time::Interval,
    /// `None` where the system cannot watch; the poll remains.
    watch: Option<Watch>,
    /// Hashes of the texts that were last reported.
    known: HashMap<PathBuf, u64>,
    /// Sizes and times of the files when they were last looked at.
    stamps: Vec<Stamp>,
    /// Something happened and has not been looked at yet: look after this time without an event.
    pending: Option<Duration>,
}

/// Device, inode, size, and when it was written, in nanoseconds, of a file; `None` if it is not there.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    let written = (file.mtime(), file.mtime_nsec());
    Some((file.dev(), file.ino(), file.len(), written.0, written.1))
}

/// Names whose events are looked at.
#[derive(Debug, Default)]
struct Names {
    files: HashSet<PathBuf>,
    folders: HashSet<PathBuf>,
}

impl Names {
    /// True if events of this name count.
    fn count(&self, path: &Path) -> bool {
        let folder = path.parent();
        self.files.contains(path) || folder.is_some_and(|folder| self.folders.contains(folder))
    }
}

/// Events of folders: a name is new, gone, another file, has other rights, or a file was closed after it was
/// written. Not among them is the writing: for a log beside the files that would be hundreds of events a
/// second.
const EVENTS: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVED_FROM)
    .union(WatchMask::MOVED_TO)
    .union(WatchMask::CLOSE_WRITE)
    .union(WatchMask::ATTRIB)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF);

/// Events of a file itself: that it is written to, and that whoever wrote to it has closed it.
const WRITES: WatchMask = WatchMask::MODIFY.union(WatchMask::CLOSE_WRITE);

/// Watches of the system on folders and files.
#[derive(Debug)]
struct Watch {
    inotify: AsyncFd<Inotify>,
    folders: HashMap<WatchDescriptor, PathBuf>,
    files: HashMap<WatchDescriptor, PathBuf>,
    /// Files that somebody is writing, and when that was last noticed.
    written: HashMap<PathBuf, Instant>,
}

impl Watch {
    fn new() -> io::Result<Self> {
        // Its successor is unsafe, which this crate is not: it relies on a descriptor that stays open and the same,
        // as that of `Inotify` does.
        #[expect(deprecated)]
        let inotify = AsyncFd::with_interest(Inotify::init()?, Interest::READABLE)?;
        Ok(Watch {
            inotify,
            folders: HashMap::new(),
            files: HashMap::new(),
            written: HashMap::new(),
        })
    }

    /// Watches files themselves, and no others any more. A file that cannot be watched is looked at as it is.
    fn follow_files<'a>(&mut self, wanted: impl Iterator<Item = &'a PathBuf>) {
        let mut watches = self.inotify.get_ref().watches();
        let mut files = HashMap::new();
        for path in wanted {
            if let Ok(descriptor) = watches.add(path, WRITES) {
                files.insert(descriptor, path.clone());
            }
        }
        for descriptor in self.files.keys() {
            if !files.contains_key(descriptor) {
                // It may not be there any more.
                let _ = watches.remove(descriptor.clone());
            }
        }
        self.files = files;
        let (files, folders) = (&self.files, &self.folders);
        self.written.retain(|path, _| {
            let folder = path.parent();
            files.values().any(|file| file == path)
                || folders
                    .values()
                    .any(|known| Some(known.as_path()) == folder)
        });
    }

    /// True if somebody is writing one of the files, and goes on with it.
    fn is_written(&self) -> bool {
        let mut written = self.written.values();
        written.any(|since| since.elapsed() < STALLED)
    }

    /// Watches a folder. Once more, if the one of that name is another one now.
    fn add(&mut self, folder: &Path) -> io::Result<()> {
        let descriptor = self.inotify.get_ref().watches().add(folder, EVENTS)?;
        self.folders.insert(descriptor, folder.to_owned());
        Ok(())
    }

    /// Watches no others any more.
    fn keep(&mut self, wanted: &HashSet<PathBuf>) {
        let mut watches = self.inotify.get_ref().watches();
        self.folders.retain(|descriptor, folder| {
            let is_wanted = wanted.contains(folder);
            if !is_wanted {
                // It may not be there any more.
                let _ = watches.remove(descriptor.clone());
            }
            is_wanted
        });
    }

    /// Waits until something happens to a name that counts, or it is not known to which one.
    async fn next(&mut self, counts: impl Fn(&Path) -> bool) {
        // Room for many events, and at least for one with the longest name.
        let mut buffer = [0; 4096];
        loop {
            let Ok(mut ready) = self.inotify.readable_mut().await else {
                // The runtime is ending.
                return pending().await;
            };
            let space = &mut buffer;
            let events = match ready.try_io(move |inotify| inotify.get_mut().read_events(space)) {
                Ok(Ok(events)) => events,
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Look, rather than miss something.
                Ok(Err(_)) => return,
                Err(_would_block) => continue,
            };
            let mut happened = false;
            for event in events {
                if let Some(file) = self.files.get(&event.wd) {
                    if event.mask.contains(EventMask::MODIFY) {
                        self.written.insert(file.clone(), Instant::now());
                    } else {
                        self.written.remove(file);
                        happened = true;
                    }
                    if event.mask.contains(EventMask::IGNORED) {
                        self.files.remove(&event.wd);
                    }
                    continue;
                }
                happened |= match (self.folders.get(&event.wd), event.name) {
                    (Some(folder), Some(name)) => {
                        let path = folder.join(name);
                        let does = counts(&path);
                        if does {
                            note_writer(&mut self.written, &path, event.mask);
                        }
                        does
                    }
                    // Of one that is not watched any more.
                    (None, Some(_)) => false,
                    // A folder itself, or events were lost.
                    (_, None) => true,
                };
                if event.mask.contains(EventMask::IGNORED) {
                    self.folders.remove(&event.wd);
                }
            }
            if happened {
                return;
            }
        }
    }
}

/// Takes in what an event of a folder says about who writes the file at `path`.
fn note_writer(written: &mut HashMap<PathBuf, Instant>, path: &Path, mask: EventMask) {
    if mask.contains(EventMask::CREATE) {
        // Whoever creates a file goes on to write it; a link is whole.
        let file = std::fs::symlink_metadata(path);
        if file.is_ok_and(|file| file.is_file() && file.nlink() == 1) {
            written.insert(path.to_owned(), Instant::now());
        }
    } else if !mask.contains(EventMask::ATTRIB) {
        written.remove(path);
    }
}

/// Waits until something happens to a name that counts; for ever where nothing is watched.
async fn happens(watch: &mut Option<Watch>, counts: impl Fn(&Path) -> bool) {
    match watch {
        Some(watch) => watch.next(counts).await,
        None => pending().await,
    }
}

/// Files that the configuration file includes.
#[derive(Debug, Default)]
struct Includes {
    /// A hash of the text that these are of.
    of: Option<u64>,
    patterns: Vec<String>,
    /// The files that were found last.
    files: Vec<PathBuf>,
}

impl std::fmt::Debug for Reloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files = &self.files;
        f.debug_struct("Reloads").field("files", files).finish()
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
        let mut poll = interval_at(Instant::now() + poll, poll);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reloads = Reloads {
            files: vec![absolute(path)],
            included: Includes::default(),
            names: Names::default(),
            hangup: signal(SignalKind::hangup())?,
            poll,
            watch: None,
            known: HashMap::new(),
            stamps: Vec::new(),
            pending: None,
        };
        match Watch::new() {
            Ok(watch) => {
                reloads.watch = Some(watch);
                reloads.watch_folders();
            }
            Err(error) => reloads.warn(&error),
        }
        // Watched first, read second: a change in between is seen twice, not missed.
        reloads.note();
        // What it includes is known only now.
        reloads.watch_folders();
        Ok(reloads)
    }

    /// Takes in which other files the configuration that is in effect was read with: their
    /// changes count from now on as its own do.
    pub fn follow_files(&mut self, others: impl IntoIterator<Item = PathBuf>) {
        let others = others.into_iter().map(|path| absolute(&path));
        self.files.truncate(1);
        for path in others {
            if !self.files.contains(&path) {
                self.files.push(path);
            }
        }
        let included = &self.included.files;
        self.known
            .retain(|path, _| self.files.contains(path) || included.contains(path));
        self.watch_folders();
        for path in &self.files {
            if !self.known.contains_key(path)
                && let Some(now) = self.fingerprint(path)
            {
                self.known.insert(path.clone(), now);
            }
        }
    }

    /// Takes in which text of the file is in effect, if it came there some other way than through
    /// an event of this: only another one is a change.
    pub fn know_text(&mut self, text: &str) {
        if let Some(file) = self.files.first() {
            self.known.insert(file.clone(), hash_of(text).finish());
            // What the file says now may be another one already.
            self.pending = Some(QUIET);
        }
    }

    /// Has the file looked at once more, and reported whatever it says: somebody has read it in between, and the text of
    /// that moment was perhaps never seen here.
    pub fn recheck_file(&mut self) {
        if let Some(file) = self.files.first() {
            // Not that of any text that is known.
            let known = self.known.get(file).copied().unwrap_or_default();
            self.known.insert(file.clone(), !known);
            self.pending = Some(QUIET);
        }
    }

    /// A hash of a file's text; `None` if it cannot be read. The rights of files that are read
    /// with the configuration count, too: a secret that others may read is refused, and taken
    /// once they may not.
    fn fingerprint(&self, path: &Path) -> Option<u64> {
        let text = read_bounded(path, MAX_FILE_SIZE).ok()?;
        let mut hasher = hash_of(&text);
        if self.files.first().is_none_or(|first| first != path) {
            std::fs::metadata(path).ok()?.mode().hash(&mut hasher);
        }
        Some(hasher.finish())
    }

    /// Finds the files that the configuration includes; answers whether they are others than before.
    fn find_included(&mut self) -> bool {
        let Some(file) = self.files.first() else {
            return false;
        };
        if let Ok(text) = read_bounded(file, MAX_FILE_SIZE) {
            let hash = hash_of(&text).finish();
            if self.included.of != Some(hash) {
                self.included.of = Some(hash);
                self.included.patterns = include::patterns_of(file, &text);
            }
        }
        let found = include::files_of(&self.included.patterns);
        let found: Vec<PathBuf> = found.iter().map(|path| absolute(path)).collect();
        let news = found != self.included.files;
        self.included.files = found;
        news
    }

    /// Takes the files as they are for what is known; answers whether one is another than
    /// before. A file that is gone or unreadable has not changed: it is probably being
    /// replaced.
    fn note(&mut self) -> Option<Cause> {
        let mut changed = self.find_included().then_some(Cause::Beside);
        let included = self.included.files.iter();
        let included = included.filter(|path| !self.files.contains(path));
        for (index, path) in self.files.iter().chain(included).enumerate() {
            if let Some(now) = self.fingerprint(path)
                && self.known.insert(path.clone(), now) != Some(now)
            {
                changed = Some(match index {
                    0 if changed.is_none() => Cause::File,
                    _ => Cause::Beside,
                });
            }
        }
        changed
    }

    /// Waits until the configuration is to be read again. Nothing is lost if the future
    /// is dropped before it is ready.
    pub async fn next(&mut self) -> Cause {
        loop {
            tokio::select! {
                biased;
                _ = self.hangup.recv() => {
                    // What is read now need not be read again.
                    self.note();
                    return Cause::Signal;
                }
                () = happens(&mut self.watch, |path| self.names.count(path)) => {
                    self.pending = Some(QUIET);
                }
                () = sleep(self.pending.unwrap_or(QUIET)), if self.pending.is_some() => {
                    self.pending = None;
                    if self.are_whole()
                        && let Some(cause) = self.has_changed()
                    {
                        return cause;
                    }
                }
                _ = self.poll.tick() => {
                    if self.are_whole()
                        && let Some(cause) = self.has_changed()
                    {
                        return cause;
                    }
                }
            }
        }
    }

    /// True if nobody seems to be writing one of the files: none is open for writing since it was changed, as far as
    /// the system tells, and none has another size or time than at the last look. Otherwise it is looked at later.
    fn are_whole(&mut self) -> bool {
        if self.watch.as_ref().is_some_and(Watch::is_written) {
            // The end of it is an event, or the next poll comes.
            return false;
        }
        let files = self.files.iter().chain(&self.included.files);
        let stamps: Vec<Stamp> = files.map(|path| stamp(path)).collect();
        if stamps == self.stamps {
            return true;
        }
        self.stamps = stamps;
        // Where the system tells nothing the next poll decides.
        self.pending = self.watch.is_some().then_some(QUIET);
        false
    }

    /// Returns the cause if a text has changed since the last call.
    fn has_changed(&mut self) -> Option<Cause> {
        // Links and folders may have been replaced.
        self.watch_folders();
        let changed = self.note();
        tracing::debug!(?changed, "looked at the configuration's files");
        changed
    }

    /// Watches the folders of the files, and of every link on the way to them.
    ///
    /// A file itself cannot be watched for long: whoever renames another over it leaves
    /// the watch behind on the old one.
    fn watch_folders(&mut self) {
        let files = self.files.iter().chain(&self.included.files);
        let found: HashSet<PathBuf> = files.flat_map(|path| names_of(path)).collect();
        let patterns = self
            .included
            .patterns
            .iter()
            .map(|text| Pattern::from_text(text));
        let open = patterns.filter(Pattern::is_open);
        let open: HashSet<PathBuf> = open.map(|pattern| absolute(pattern.folder())).collect();
        let folders = found.iter().filter_map(|name| name.parent());
        let folders: HashSet<&Path> = folders.chain(open.iter().map(PathBuf::as_path)).collect();
        let mut failed = None;
        if let Some(watch) = &mut self.watch {
            for folder in folders {
                if let Err(error) = watch.add(folder) {
                    failed = Some(error);
                }
            }
        }
        if let Some(watch) = &mut self.watch {
            watch.follow_files(self.files.iter().chain(&self.included.files));
        }
        self.names = Names {
            files: found,
            folders: open,
        };
        if let Some(error) = failed
            && self.files.iter().all(|path| path.exists())
        {
            self.warn(&error);
            self.watch = None;
        }
    }

    fn warn(&self, error: &io::Error) {
        tracing::warn!(
            path = ?self.files.first(),
            %error,
            "cannot watch the configuration's folder; the file is looked at every {POLL:?} instead"
        );
    }
}

/// A hash that has seen `text`.
fn hash_of(text: &str) -> DefaultHasher {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher
}

/// Tells when something happens in the folders of files, or further up the paths, where a link may
/// be replaced. What it is, is for the caller to find out.
#[derive(Debug, Default)]
pub struct Folders {
    /// `None` where nothing is to be watched, or the system cannot.
    watch: Option<Watch>,
}

impl Folders {
    /// Watches nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches where these files are, and nothing else. Where the system cannot, nothing is told
    /// of it: look at them now and then as well.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O enabled.
    pub fn follow_files(&mut self, files: impl IntoIterator<Item = PathBuf>) {
        let names = files
            .into_iter()
            .flat_map(|path| names_of(&absolute(&path)));
        let folders = names.filter_map(|name| Some(name.parent()?.to_owned()));
        let wanted: HashSet<PathBuf> = folders.collect();
        if wanted.is_empty() {
            self.watch = None;
            return;
        }
        self.watch = self.watch.take().or_else(|| Watch::new().ok());
        let Some(watch) = &mut self.watch else {
            return;
        };
        watch.keep(&wanted);
        // Each time: the folder of that name may be another one.
        for folder in &wanted {
            // One that is not there is not watched.
            let _ = watch.add(folder);
        }
    }

    /// Waits until something has happened since this was last waited for.
    pub async fn wait_for_change(&mut self) {
        happens(&mut self.watch, |_| true).await;
    }
}

/// Path as events name it: from the root, links not followed.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Maximum number of links on the way to a file, as in the system itself.
const MAX_LINKS: usize = 40;

/// The names on the way to what `path` really is: each symbolic link, and the file.
fn names_of(path: &Path) -> Vec<PathBuf> {
    let parts = |path: &Path| -> VecDeque<OsString> {
        let parts = path.components().map(|part| part.as_os_str().to_owned());
        parts.collect()
    };
    let (mut names, mut at, mut rest) = (Vec::new(), PathBuf::new(), parts(path));
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if Path::new(&part).components().next() == Some(Component::ParentDir) {
            at.pop();
            continue;
        }
        at.push(part);
        // What is not there is no link.
        let Ok(target) = at.read_link() else {
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            break;
        }
        names.push(at.clone());
        at.pop();
        // An absolute target begins with the root, which replaces what was there.
        let mut whole = parts(&target);
        whole.append(&mut rest);
        rest = whole;
    }
    names.push(at);
    names
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use super::super::tests::scratch_folder;
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
            let folder = scratch_folder("watch-file");
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
    fn a_file_that_somebody_else_has_read_is_reported_though_it_is_the_same_again() {
        on_a_runtime(async {
            let folder = scratch_folder("watch-doubt");
            let path = folder.join("evenkeel.toml");
            fs::write(&path, "good").unwrap();
            let mut reloads = Reloads::with_poll(&path, NEVER).unwrap();
            reloads.recheck_file();
            // As it is called before each wait.
            reloads.follow_files([]);
            assert_eq!(next(&mut reloads).await, Cause::File);
            assert_eq!(reloads.has_changed(), None, "once");
            fs::remove_dir_all(folder).unwrap();
        });
    }

    /// Whoever writes slowly, or into a new file, is waited for; whoever stops half-way is not waited for for ever.
    #[test]
    fn f2_a_file_that_is_being_written_is_not_looked_at() {
        use std::io::Write;
        on_a_runtime(async {
            let folder = scratch_folder("watch-half");
            let path = folder.join("evenkeel.toml");
            fs::write(&path, "first").unwrap();
            // A look each few milliseconds.
            let mut reloads = Reloads::with_poll(&path, Duration::from_millis(5)).unwrap();
            for round in 0..2 {
                if round == 1 {
                    fs::rename(&path, folder.join("old")).unwrap();
                }
                let mut file = fs::File::create(&path).unwrap();
                file.write_all(format!("half {round}").as_bytes()).unwrap();
                let look = tokio::time::timeout(Duration::from_millis(400), reloads.next());
                assert!(look.await.is_err(), "looked at half a file, round {round}");
                // Rights are no end of it.
                let rights = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                fs::set_permissions(&path, rights).unwrap();
                let look = tokio::time::timeout(Duration::from_millis(400), reloads.next());
                assert!(look.await.is_err(), "looked at half a file, round {round}");
                file.write_all(b" and whole").unwrap();
                drop(file);
                assert_eq!(next(&mut reloads).await, Cause::File);
            }
            fs::remove_dir_all(folder).unwrap();
        });
    }

    /// Without events from the system, a file counts that has stayed the same from one look to the next.
    #[test]
    fn f2_without_events_a_file_must_have_stayed_the_same() {
        on_a_runtime(async {
            let folder = scratch_folder("watch-stamps");
            let path = folder.join("evenkeel.toml");
            fs::write(&path, "1").unwrap();
            let mut reloads = Reloads::with_poll(&path, NEVER).unwrap();
            reloads.watch = None;
            assert!(!reloads.are_whole(), "nothing is known yet");
            assert!(reloads.are_whole());
            fs::write(&path, "2 and more").unwrap();
            assert!(!reloads.are_whole());
            fs::write(&path, "2 and more of it").unwrap();
            assert!(!reloads.are_whole());
            assert!(reloads.are_whole());
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn s24_another_text_of_the_token_is_noticed() {
        on_a_runtime(async {
            let folder = scratch_folder("watch-token");
            let (path, token) = (folder.join("evenkeel.toml"), folder.join("token"));
            fs::write(&path, "1").unwrap();
            fs::write(&token, "first-token").unwrap();
            let mut reloads = Reloads::with_poll(&path, Duration::from_millis(10)).unwrap();
            reloads.follow_files([token.clone()]);
            fs::write(&token, "second-token").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::Beside);
            // What it was refused for is mended.
            let rights = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(&token, rights).unwrap();
            assert_eq!(next(&mut reloads).await, Cause::Beside);
            // What has changed before the other file counted is not forgotten.
            fs::write(&path, "2").unwrap();
            reloads.follow_files([]);
            assert_eq!(next(&mut reloads).await, Cause::File);
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn a_link_that_points_elsewhere_is_noticed_and_what_is_behind_it_is_watched() {
        on_a_runtime(async {
            let folder = scratch_folder("watch-link");
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
            let folder = scratch_folder("watch-poll");
            let path = folder.join("evenkeel.toml");
            fs::write(&path, "1").unwrap();
            let mut reloads = Reloads::with_poll(&path, Duration::from_millis(5)).unwrap();
            reloads.watch = None;
            fs::write(&path, "2").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::File);
            fs::remove_dir_all(folder).unwrap();
        });
    }

    /// Whoever writes a log beside the file delays nothing.
    #[test]
    fn u4_only_what_happens_to_the_file_counts() {
        on_a_runtime(async {
            let folder = scratch_folder("watch-beside");
            let path = folder.join("evenkeel.toml");
            fs::write(&path, "0").unwrap();
            let mut reloads = Reloads::with_poll(&path, NEVER).unwrap();
            let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let (log, until) = (folder.join("access.log"), Arc::clone(&ended));
            let writer = std::thread::spawn(move || {
                use std::io::Write;
                let mut log = fs::File::create(log).unwrap();
                while !until.load(std::sync::atomic::Ordering::Relaxed) {
                    log.write_all(b"a line\n").unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            for round in 1..=10 {
                fs::write(&path, round.to_string()).unwrap();
                assert_eq!(next(&mut reloads).await, Cause::File, "{round}");
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            writer.join().unwrap();
            fs::remove_dir_all(folder).unwrap();
        });
    }

    /// A log would wake the watch for each of its lines.
    #[test]
    fn a_log_that_grows_beside_the_file_is_no_event() {
        use std::io::Write;
        on_a_runtime(async {
            let folder = scratch_folder("watch-log");
            let mut log = fs::File::create(folder.join("access.log")).unwrap();
            let mut watch = Watch::new().unwrap();
            watch.add(&folder).unwrap();
            log.write_all(b"a line\n").unwrap();
            let mut buffer = [0; 4096];
            let inotify = watch.inotify.get_mut();
            let none = inotify.read_events(&mut buffer).unwrap_err();
            assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
            drop(log);
            assert_eq!(inotify.read_events(&mut buffer).unwrap().count(), 1);
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn u4_files_that_are_read_with_it_count_too() {
        on_a_runtime(async {
            let folder = scratch_folder("watch-others");
            let (path, elsewhere) = (folder.join("evenkeel.toml"), folder.join("keys"));
            fs::create_dir(&elsewhere).unwrap();
            let key = elsewhere.join("broker.key");
            fs::write(&path, "1").unwrap();
            fs::write(&key, "1").unwrap();
            let mut reloads = Reloads::with_poll(&path, NEVER).unwrap();
            reloads.follow_files([key.clone()]);
            assert!(reloads.has_changed().is_none());
            fs::write(&key, "2").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::Beside);
            fs::write(&path, "2").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::File);
            reloads.follow_files([]);
            fs::write(&key, "3").unwrap();
            assert!(reloads.has_changed().is_none());
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn files_that_it_includes_count_and_so_do_new_and_removed_ones() {
        on_a_runtime(async {
            let folder = scratch_folder("watch-included");
            let (path, parts) = (folder.join("evenkeel.toml"), folder.join("conf.d"));
            fs::create_dir_all(&parts).unwrap();
            let text = "include = [\"conf.d/*.toml\"]\n";
            fs::write(&path, text).unwrap();
            fs::write(parts.join("a.toml"), "1").unwrap();
            let mut reloads = Reloads::with_poll(&path, NEVER).unwrap();
            reloads.follow_files([]);
            assert!(reloads.has_changed().is_none());
            fs::write(parts.join("a.toml"), "2").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::Beside);
            fs::write(parts.join("b.toml"), "1").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::Beside);
            fs::remove_file(parts.join("a.toml")).unwrap();
            assert_eq!(next(&mut reloads).await, Cause::Beside);
            fs::write(parts.join("no-part"), "1").unwrap();
            assert!(reloads.has_changed().is_none());
            // Whoever wrote the text into the file says so: its parts are followed all the same.
            let other = "# another\ninclude = \"conf.d/b.toml\"\n";
            fs::write(&path, other).unwrap();
            reloads.know_text(other);
            assert!(reloads.has_changed().is_none());
            fs::write(parts.join("b.toml"), "2").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::Beside);
            fs::write(&path, "").unwrap();
            assert!(reloads.has_changed().is_some());
            fs::write(parts.join("b.toml"), "3").unwrap();
            assert!(reloads.has_changed().is_none());
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn the_names_of_a_file_are_its_links_and_itself() {
        let folder = scratch_folder("watch-names").canonicalize().unwrap();
        let name = |name: &str| folder.join(name);
        fs::create_dir_all(name("v1")).unwrap();
        fs::write(name("v1/file"), "").unwrap();
        symlink("v1", name("data")).unwrap();
        symlink("data/../data/file", name("link")).unwrap();
        let expected = ["link", "data", "data", "v1/file"].map(name);
        assert_eq!(names_of(&name("link")), expected);
        symlink("round", name("round")).unwrap();
        assert_eq!(names_of(&name("round")).len(), MAX_LINKS + 1);
        assert_eq!(names_of(&name("nowhere")), [name("nowhere")]);
        fs::remove_dir_all(folder).unwrap();
    }

    /// Whoever has written the file and put it into effect says so.
    #[test]
    fn a_text_that_is_known_is_no_change_and_that_before_it_is_one() {
        on_a_runtime(async {
            let folder = scratch_folder("watch-known");
            let path = folder.join("evenkeel.toml");
            fs::write(&path, "1").unwrap();
            let mut reloads = Reloads::with_poll(&path, NEVER).unwrap();
            fs::write(&path, "2").unwrap();
            reloads.know_text("2");
            assert!(reloads.has_changed().is_none());
            fs::write(&path, "1").unwrap();
            assert_eq!(next(&mut reloads).await, Cause::File);
            // It was another one already when it became known.
            reloads.know_text("2");
            assert_eq!(next(&mut reloads).await, Cause::File);
            fs::remove_dir_all(folder).unwrap();
        });
    }

    #[test]
    fn only_another_text_is_a_change() {
        on_a_runtime(async {
            let folder = scratch_folder("watch-same");
            let path = folder.join("evenkeel.toml");
            fs::write(&path, "1").unwrap();
            let mut reloads = Reloads::with_poll(&path, NEVER).unwrap();
            fs::write(folder.join("neighbour"), "2").unwrap();
            assert!(reloads.has_changed().is_none());
            fs::write(&path, "1").unwrap();
            assert!(reloads.has_changed().is_none(), "the same text again");
            fs::remove_file(&path).unwrap();
            assert!(
                reloads.has_changed().is_none(),
                "gone: about to be replaced"
            );
            fs::write(&path, "1").unwrap();
            assert!(reloads.has_changed().is_none());
            fs::write(&path, "2").unwrap();
            assert!(reloads.has_changed().is_some());
            assert!(reloads.has_changed().is_none());
            fs::remove_dir_all(folder).unwrap();
        });
    }
}

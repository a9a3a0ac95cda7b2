//! The agent's side: what a server counted, by value.
//!
//! ```no_run
//! # fn main() -> Result<(), arm::page::Error> {
//! use arm::page::{self, Reader};
//!
//! let pages = page::find_pages(&page::default_dir())?;
//! let mut reader = Reader::open(&pages[0])?;
//! let earlier = reader.sample(page::monotonic_nanos())?;
//! // One measurement interval later:
//! let interval = reader.sample(page::monotonic_nanos())?.interval_since(&earlier);
//! println!("{} requests of {}", interval.starts, reader.application());
//! # Ok(())
//! # }
//! ```
//!
//! A page belongs to the server, which may be another user's: whoever reads it decides by its
//! [owner](Reader::owner) whether it counts. It is read with `pread`
//! and never mapped, so that nobody can take it away from under the agent, and no byte of
//! it is trusted: whatever a page holds, reading it ends, takes bounded memory, and
//! yields numbers. Whether they are plausible is for who uses them to say.

use std::fs::{self, File};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::layout::{
    self, HEADER_LEN, Header, LANE_SIZE, LANES, LANES_AT, MAGIC, NAME_MAX, SIZE, VERSION,
};
use crate::process::pid_namespace;

mod error;
mod file;
mod lease;
mod sample;

pub use error::Error;
use error::{io_error, not_a_page};
pub(crate) use file::boot_digest;
use file::{Open, Words};
use lease::nanos;
pub use lease::{LEASE_MAX, Lease};
pub use sample::{Histogram, Interval, Sample};
use sample::{Process, Pulse};

/// Extension of the name of a page's file.
pub const EXTENSION: &str = "arm";

/// Names the directory of the pages, to the library and to the agent.
pub const DIR_VARIABLE: &str = "EVENKEEL_ARM_DIR";

/// Nanoseconds of `CLOCK_MONOTONIC`: the clock of a page, the same for all processes of a
/// machine.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let nanos = now
        .tv_sec
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}

/// Returns the directory of the pages: `$EVENKEEL_ARM_DIR`, else `/run/evenkeel` if it is there
/// and this process may write to it, else `/dev/shm`.
pub fn default_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    let run = Path::new("/run/evenkeel");
    let may_write = rustix::fs::access(run, rustix::fs::Access::WRITE_OK).is_ok();
    if may_write && run.is_dir() {
        return run.to_owned();
    }
    PathBuf::from("/dev/shm")
}

/// The files in a directory that look like pages, sorted; none if there is no such
/// directory (yet).
///
/// Several may be of the same [application](Reader::application): each user who runs it
/// has a page of his own.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn find_pages(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    scan_if(dir, |_| true)
}

/// Returns the files of [`find_pages`] that `counts` wants. Anybody may have made any number of files
/// in a directory that is everybody's: memory is only taken for the files that count.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn scan_if(dir: &Path, mut counts: impl FnMut(&Path) -> bool) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::Io {
        action: "list the folder",
        path: dir.to_owned(),
        source,
    };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut pages = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|end| end == EXTENSION) && counts(&path) {
            pages.push(path);
        }
    }
    pages.sort();
    Ok(pages)
}

/// Writes a page of an application that nobody has open, as a server that ended long ago
/// would leave it: to try out who reads it.
///
/// # Errors
///
/// If it cannot be written, or [`Error::NotAPage`] if the application's name is not valid.
pub fn write_empty(path: &Path, application: &str) -> Result<(), Error> {
    if application.is_empty() || application.len() > NAME_MAX {
        return Err(not_a_page(path, "the application's name is not valid"));
    }
    let mut header = [0; HEADER_LEN];
    for (at, word) in [
        (offset_of!(Header, magic), MAGIC),
        (offset_of!(Header, version), VERSION),
        (offset_of!(Header, epoch), monotonic_nanos() | 1),
        (offset_of!(Header, boot), boot_digest()),
        (offset_of!(Header, name_len), application.len() as u64),
    ] {
        if let Some(place) = header.get_mut(at..at + 8) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
    }
    let at = offset_of!(Header, name);
    if let Some(place) = header.get_mut(at..at + application.len()) {
        place.copy_from_slice(application.as_bytes());
    }
    let file = File::create(path).map_err(io_error("make the page", path))?;
    let whole = |()| file.set_len(SIZE as u64);
    { file.write_all_at(&header, 0) }
        .and_then(whole)
        .map_err(io_error("write the page", path))
}

/// An open page.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    page: Open,
    namespace: u64,
    // Kept from sample to sample, so that one allocates nothing.
    processes: Vec<Process>,
}

impl Reader {
    /// Opens a page to read, and to write alerts if this process may.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, is no page (no regular file, a link, of another size,
    /// without the magic number, of another boot of the machine), or has another version.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self {
            path: path.to_owned(),
            page: Open::new(path)?,
            namespace: pid_namespace(),
            processes: Vec::new(),
        })
    }

    /// The name that the application gave to `arm_init`. It is the page's word: whoever
    /// may write to the directory can make a page of that name; see [`Self::owner`].
    pub fn application(&self) -> &str {
        &self.page.application
    }

    /// The user and the group whose file the page is.
    pub fn owner(&self) -> (u32, u32) {
        self.page.owner
    }

    /// All counters as of now; `now` is what [`monotonic_nanos`] says.
    ///
    /// If the page was replaced at its path (by a library of another version, or because
    /// somebody removed it), this goes on with the new one.
    ///
    /// # Errors
    ///
    /// If the page is gone, cannot be read, or is none any more.
    pub fn sample(&mut self, now: u64) -> Result<Sample, Error> {
        if self.page.is_removed() {
            self.page = Open::new(&self.path)?;
        }
        let mut header = [0; HEADER_LEN];
        self.page.read(&self.path, &mut header, 0)?;
        let header = self.page.check(&self.path, &header)?;
        let mut sample = Sample {
            at: now,
            epoch: header.word_at(offset_of!(Header, epoch)),
            inits: header.word_at(offset_of!(Header, rare.inits)),
            ends: header.word_at(offset_of!(Header, rare.ends)),
            alert: Lease::parse(header.word_at(offset_of!(Header, pulse.alert_until)), now),
            ..Sample::default()
        };
        let lanes = header.word_at(offset_of!(Header, rare.lanes_used));
        let pulse = self.pulse()?;

        let lanes = usize::try_from(lanes).unwrap_or(LANES).clamp(1, LANES);
        self.processes.clear();
        let mut room = [0; LANES_AT_ONCE * LANE_SIZE];
        for first in (0..lanes).step_by(LANES_AT_ONCE) {
            let some = LANES_AT_ONCE.min(lanes - first);
            let (bytes, _) = room.split_at_mut(some * LANE_SIZE);
            let at = LANES_AT + first * LANE_SIZE;
            self.page.read(&self.path, bytes, at as u64)?;
            for lane in bytes.chunks_exact(LANE_SIZE) {
                self.processes.push(sample.count(Words(lane)));
            }
        }
        sample.count_in_flight(&mut self.processes, self.namespace);
        // Who died with something in flight leaves the pulse busy.
        let busy = if sample.in_flight > 0 {
            pulse.busy_time(now)
        } else {
            pulse.busy
        };
        sample.busy = Duration::from_nanos(busy);
        Ok(sample)
    }

    /// Two numbers that belong together, and that change together at any time.
    fn pulse(&self) -> Result<Pulse, Error> {
        let read = || {
            let mut bytes = [0; size_of::<layout::Pulse>()];
            let at = offset_of!(Header, pulse) as u64;
            self.page.read(&self.path, &mut bytes, at)?;
            Ok(Pulse {
                since: Words(&bytes).word_at(offset_of!(layout::Pulse, busy_since)),
                busy: Words(&bytes).word_at(offset_of!(layout::Pulse, busy)),
            })
        };
        let mut pulse = read()?;
        // A server that changes them between any two reads is not slow at anything; the
        // error is one short transaction, and the next sample has it right.
        for _ in 0..4 {
            let again = read()?;
            if again == pulse {
                break;
            }
            pulse = again;
        }
        Ok(pulse)
    }

    /// Puts the server under a load alert, or takes it back with `None`.
    ///
    /// # Errors
    ///
    /// If the lease is longer than [`LEASE_MAX`], or this process may not write to the
    /// page.
    pub fn set_alert(&self, alert: Option<Lease>) -> Result<(), Error> {
        let until = alert.map_or(0, |lease| lease.until);
        if until > monotonic_nanos().saturating_add(nanos(LEASE_MAX)) {
            return Err(Error::LeaseTooLong);
        }
        let at = offset_of!(Header, pulse.alert_until) as u64;
        let file = &self.page.file;
        file.write_all_at(&until.to_ne_bytes(), at)
            .map_err(io_error("write an alert to the page", &self.path))
    }
}

/// Lanes that are read with one call, on the stack: an agent has many pages.
const LANES_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use crate::layout::IN_FLIGHT_MAX;

    use super::*;

    /// A directory of its own, gone when dropped.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("evenkeel-arm-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            // Nothing depends on it.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn put(bytes: &mut [u8], at: usize, word: u64) {
        bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }

    /// An empty page of "shop".
    fn empty() -> Vec<u8> {
        let mut bytes = vec![0; SIZE];
        put(&mut bytes, offset_of!(Header, magic), MAGIC);
        put(&mut bytes, offset_of!(Header, version), VERSION);
        put(&mut bytes, offset_of!(Header, epoch), 7);
        put(&mut bytes, offset_of!(Header, boot), boot_digest());
        put(&mut bytes, offset_of!(Header, name_len), 4);
        let name = offset_of!(Header, name);
        bytes[name..name + 4].copy_from_slice(b"shop");
        bytes
    }

    fn refused(dir: &Dir, bytes: &[u8]) -> Error {
        let path = dir.0.join("x.arm");
        fs::write(&path, bytes).unwrap();
        Reader::open(&path).unwrap_err()
    }

    #[test]
    fn an_empty_page_is_of_an_application_that_is_down() {
        let dir = Dir::new("empty");
        let path = dir.0.join("x.arm");
        fs::write(&path, empty()).unwrap();
        fs::write(dir.0.join("y.txt"), "").unwrap();
        assert_eq!(find_pages(&dir.0).unwrap(), [path.as_path()]);
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.application(), "shop");
        let sample = reader.sample(5).unwrap();
        let expected = Sample {
            at: 5,
            epoch: 7,
            ..Sample::default()
        };
        assert_eq!(sample, expected);
        assert!(find_pages(&dir.0.join("nowhere")).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_page_is_refused() {
        let dir = Dir::new("refused");
        let whole = empty();
        for len in [0, 1, 4096, SIZE - 1] {
            let error = refused(&dir, &whole[..len]);
            assert!(matches!(error, Error::NotAPage { .. }), "{error}");
        }
        for at in [
            offset_of!(Header, magic),
            offset_of!(Header, boot),
            offset_of!(Header, name_len),
        ] {
            for wrong in [0, 1 << 40, u64::MAX] {
                let mut bytes = empty();
                put(&mut bytes, at, wrong);
                let error = refused(&dir, &bytes);
                assert!(matches!(error, Error::NotAPage { .. }), "{error}");
            }
        }
        let mut bytes = empty();
        put(&mut bytes, offset_of!(Header, version), 99);
        assert!(matches!(
            refused(&dir, &bytes),
            Error::Version { found: 99, .. }
        ));
        for name in [*b"a\nbc", *b"\xff\xfe\xfd\xfc"] {
            let mut bytes = empty();
            put(
                &mut bytes,
                offset_of!(Header, name),
                u32::from_ne_bytes(name).into(),
            );
            assert!(matches!(refused(&dir, &bytes), Error::NotAPage { .. }));
        }
    }

    #[test]
    fn s20_a_page_that_everybody_may_write_is_nobodys_word() {
        use std::os::unix::fs::PermissionsExt;
        let dir = Dir::new("writable");
        let path = dir.0.join("x.arm");
        write_empty(&path, "shop").unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        for (bits, counts) in [(0o600, true), (0o660, true), (0o606, false), (0o622, false)] {
            mode(bits);
            assert_eq!(Reader::open(&path).is_ok(), counts, "{bits:o}");
        }
    }

    #[test]
    fn links_and_directories_are_no_pages() {
        let dir = Dir::new("links");
        let path = dir.0.join("x.arm");
        fs::write(&path, empty()).unwrap();
        let link = dir.0.join("l.arm");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Reader::open(&link), Err(Error::Io { .. })));
        assert!(Reader::open(&dir.0).is_err());
        fs::hard_link(&path, dir.0.join("h.arm")).unwrap();
        assert!(matches!(Reader::open(&path), Err(Error::NotAPage { .. })));
    }

    #[test]
    fn a_page_that_shrinks_or_is_replaced_under_the_reader_is_an_error_or_the_new_one() {
        let dir = Dir::new("shrinks");
        let path = dir.0.join("x.arm");
        fs::write(&path, empty()).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for len in [SIZE - 1, LANES_AT + 1, 100, 0] {
            file.set_len(len as u64).unwrap();
            let sampled = reader.sample(1);
            // Only lane 0 was ever in use: more is not read.
            assert_eq!(sampled.is_ok(), len >= LANES_AT + LANE_SIZE, "{len}");
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(reader.sample(1), Err(Error::Io { .. })));
        let mut bytes = empty();
        put(&mut bytes, offset_of!(Header, epoch), 8);
        fs::write(&path, bytes).unwrap();
        assert_eq!(reader.sample(1).unwrap().epoch, 8);
    }

    #[test]
    fn any_counters_make_an_interval() {
        let dir = Dir::new("any");
        let path = dir.0.join("x.arm");
        let mut bytes = empty();
        let mut state = 1u64;
        for at in (offset_of!(Header, rare)..SIZE).step_by(8) {
            state = layout::mix(state.wrapping_add(1));
            put(
                &mut bytes,
                at,
                if state & 7 == 0 { u64::MAX } else { state },
            );
        }
        fs::write(&path, bytes).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        let sample = reader.sample(monotonic_nanos()).unwrap();
        let interval = sample.interval_since(&Sample::default());
        assert!(interval.restarted && interval.busy <= interval.length);
        assert!(interval.histogram.quantile(0.5).is_some());
        assert!(sample.in_flight <= (LANES * IN_FLIGHT_MAX) as u64);
        assert_eq!(sample.alert, None);
    }

    #[test]
    fn an_alert_ends_by_itself() {
        let dir = Dir::new("alert");
        let path = dir.0.join("x.arm");
        fs::write(&path, empty()).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        let start = monotonic_nanos();
        let lease = Lease::new(start, Duration::from_secs(2));
        reader.set_alert(Some(lease)).unwrap();
        assert_eq!(reader.sample(start).unwrap().alert, Some(lease));
        assert_eq!(reader.sample(lease.until).unwrap().alert, None);
        reader.set_alert(None).unwrap();
        assert_eq!(reader.sample(start).unwrap().alert, None);
        let long = Lease::new(monotonic_nanos(), LEASE_MAX + Duration::from_secs(60));
        assert!(matches!(
            reader.set_alert(Some(long)),
            Err(Error::LeaseTooLong)
        ));
    }

    #[test]
    fn quantiles_lie_in_their_buckets() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for nanos in [2_000_000; 90].into_iter().chain([80_000_000; 10]) {
            histogram.0[layout::bucket_index(nanos)] += 1;
        }
        let near = |q, nanos: f64| {
            let found = histogram.quantile(q).unwrap().as_nanos() as f64;
            assert!((found / nanos - 1.0).abs() < 0.25, "{q}: {found}");
        };
        near(0.0, 2e6);
        near(0.5, 2e6);
        near(0.9, 2e6);
        near(0.95, 80e6);
        near(1.0, 80e6);
        assert_eq!(histogram.count(), 100);
    }
}

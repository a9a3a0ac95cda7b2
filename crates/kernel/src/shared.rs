//! A load page in a file in memory, for readers on the same machine: user-level load
//! monitoring without a network.
//!
//! The file holds one [record](crate::record), which a single writer renews in place. While
//! it does, the sequence numbers are odd, and they differ before and after: a reader that
//! sees that reads again. A reader needs no lock, and can do the writer no harm.
//!
//! A reader believes neither the file nor the writer: it takes a regular file of root or of
//! its own user that nobody else may write, reads no more than a record can be long, and
//! never maps it, so that a file that becomes shorter ends a reading and not the process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, fallocate, flock, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::proc::monotonic_ns;
use crate::rdma::Memory;
use crate::record::{BASE, BadRecord, CPU, CPUS, MAX_CPUS, Record, Whole};

/// A file is opened again so often if it is removed while that happens.
const OPENINGS: u32 = 8;
/// A record that is being written is read again so often: longer than any writer takes that
/// has a CPU.
const READINGS: u32 = 32;

/// Places of the sequence numbers in words of 8 bytes.
const BEGIN: usize = 1;
const END: usize = BASE / 8 - 1;
const TOTALS: usize = 72 / 8;

/// Reason why a page cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The system says why.
    #[error("the load page {0}: cannot {1}: {2}")]
    Io(PathBuf, &'static str, #[source] io::Error),
    /// A link, a folder, a file of somebody else.
    #[error(
        "the load page {0}: the existing file does not belong to this user alone; remove it, or choose another path"
    )]
    Strange(PathBuf),
    /// There is one that writes.
    #[error(
        "the load page {0}: another process writes to the page; end that process, or choose another path"
    )]
    InUse(PathBuf),
}

/// Memory that is shared.
#[derive(Debug)]
pub struct Region {
    address: *mut AtomicU64,
    words: usize,
}

// SAFETY: it is memory that is only accessed by atomic operations.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first `words` words of a file that is as long.
    fn new(file: impl std::os::fd::AsFd, words: usize) -> io::Result<Self> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses where.
        let address = unsafe {
            mmap(
                ptr::null_mut(),
                words * 8,
                rights,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        Ok(Region {
            address: address.cast(),
            words,
        })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: as many are mapped until this is dropped; all accesses are atomic.
        unsafe { std::slice::from_raw_parts(self.address, self.words) }
    }
}

// SAFETY: it is mapped for reading and writing until it is dropped.
unsafe impl Memory for Region {
    fn address(&self) -> *mut u8 {
        self.address.cast()
    }

    fn length(&self) -> usize {
        self.words * 8
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: whoever uses it holds it.
        let _ = unsafe { munmap(self.address.cast(), self.length()) };
    }
}

/// Writes a page.
#[derive(Debug)]
pub struct Writer {
    region: Arc<Region>,
    sequence: u64,
    buffer: Vec<u8>,
    /// The lock on it says that somebody writes.
    file: Option<(PathBuf, File)>,
}

impl Writer {
    /// A page with room for `cpus` CPUs in a file at `path`, which everybody may read. The
    /// file goes with the writer.
    pub fn create(path: &Path, cpus: usize) -> Result<Self, CreateError> {
        let length = length(cpus);
        let file = take_file(path)?;
        let error = |what| {
            move |error: rustix::io::Errno| CreateError::Io(path.to_owned(), what, error.into())
        };
        // What an earlier writer left goes. Room that is there cannot be missing later, when
        // it would kill the process.
        file.set_len(0)
            .map_err(|error| CreateError::Io(path.to_owned(), "empty the file", error))?;
        fallocate(&file, FallocateFlags::empty(), 0, length as u64)
            .map_err(error("reserve space (a path in /run or /dev/shm has it)"))?;
        let region = Region::new(&file, length / 8)
            .map_err(|error| CreateError::Io(path.to_owned(), "map the file", error))?;
        Ok(Writer::new(region, Some((path.to_owned(), file))))
    }

    /// A page with room for `cpus` CPUs in memory that has no name: to be offered over RDMA.
    pub fn nameless(cpus: usize) -> io::Result<Self> {
        let length = length(cpus);
        let file = memfd_create("evenkeel-load", MemfdFlags::CLOEXEC)?;
        fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
        Ok(Writer::new(Region::new(&file, length / 8)?, None))
    }

    fn new(region: Region, file: Option<(PathBuf, File)>) -> Self {
        Writer {
            buffer: vec![0; region.length()],
            region: Arc::new(region),
            sequence: 0,
            file,
        }
    }

    /// Returns the memory of the page.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Renews the record.
    pub fn write(&mut self, record: &Whole) {
        record.copy(0, &mut self.buffer);
        let words = self.region.words();
        let entries = record.cpus.len().min((words.len() * 8 - CPUS) / CPU);
        let entries = (0..entries).map(|entry| (CPUS + entry * CPU) / 8);
        let entries = std::iter::once(TOTALS).chain(entries);
        let places = entries.flat_map(|at| [at, at + CPU / 8 - 1]);
        let places = [BEGIN, END].into_iter().chain(places);
        let mark = |place: usize, sequence: u64| {
            words[place].store(sequence.to_le(), Ordering::Relaxed);
        };
        // All are odd before anything else changes, the base's first; and even after everything
        // has, the base's last. However the parts are read, in one order or the other, the
        // ends of what is torn differ.
        let (odd, even) = (self.sequence | 1, self.sequence.wrapping_add(2));
        places.clone().for_each(|place| mark(place, odd));
        fence(Ordering::Release);
        let (bytes, _) = self.buffer.as_chunks_mut::<8>();
        for place in places.clone() {
            bytes[place] = odd.to_le_bytes();
        }
        for (word, bytes) in words.iter().zip(bytes) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        for place in places.rev() {
            fence(Ordering::Release);
            mark(place, even);
        }
        self.sequence = even;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Some((path, file)) = &self.file else {
            return;
        };
        // Unless it is another one's by now. Readers see at once that nobody writes.
        let id = |about: fs::Metadata| (about.dev(), about.ino());
        if let (Ok(ours), Ok(there)) = (file.metadata(), fs::symlink_metadata(path))
            && id(ours) == id(there)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn length(cpus: usize) -> usize {
    CPUS + cpus.clamp(1, MAX_CPUS) * CPU
}

/// The file at `path`, made if it is not there, and locked.
fn take_file(path: &Path) -> Result<File, CreateError> {
    let io = |what| move |error| CreateError::Io(path.to_owned(), what, error);
    let strange = || CreateError::Strange(path.to_owned());
    for _ in 0..OPENINGS {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path);
        let file = match opened {
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(strange()),
            opened => opened.map_err(io("open the file"))?,
        };
        let about = file.metadata().map_err(io("look at the file"))?;
        if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() {
            return Err(strange());
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(CreateError::InUse(path.to_owned())),
            locked => locked.map_err(|error| io("lock the file")(error.into()))?,
        }
        // Whoever wrote there before may have removed it in between. A second name would be
        // somebody's trick.
        match file.metadata().map_err(io("look at the file"))?.nlink() {
            0 => continue,
            1 => {}
            _ => return Err(strange()),
        }
        file.set_permissions(fs::Permissions::from_mode(0o644))
            .map_err(io("let others read the file"))?;
        return Ok(file);
    }
    Err(CreateError::InUse(path.to_owned()))
}

/// Reason why a page has not been read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Nobody writes there.
    #[error(
        "there is no load page {0}: does `evenkeel kernel serve --shared` run on this machine, with that path?"
    )]
    Missing(PathBuf),
    /// The system says why.
    #[error("the load page {0} cannot be read: {1}")]
    Io(PathBuf, #[source] io::Error),
    /// A link, a folder, a file that others may write.
    #[error(
        "the load page {0} is not trusted: a load page must be a regular file to which only root and \
         this user may write"
    )]
    Strange(PathBuf),
    /// The page holds no record.
    #[error("the load page {0}: {1}")]
    Record(PathBuf, #[source] BadRecord),
}

/// Reads a page.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: Option<File>,
    bytes: Vec<u8>,
    /// Identification of the last reading, and the time when it was first read.
    last: Option<((u64, u64), Instant)>,
}

/// Result of reading a page.
#[derive(Debug, PartialEq, Eq)]
pub struct Reading<'a> {
    /// The record.
    pub record: Record<'a>,
    /// Age of the record. The age grows while the writer is stopped, or dead.
    pub age: Duration,
}

impl Reader {
    /// A reader of the page at `path`, which need not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Reader {
            path: path.into(),
            file: None,
            bytes: Vec::new(),
            last: None,
        }
    }

    /// Returns the path of the page.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the page as it is now. A file that was replaced is followed.
    pub fn read(&mut self) -> Result<Reading<'_>, ReadError> {
        let mut readings = 0;
        let error = loop {
            match self.attempt() {
                Ok(()) => break None,
                Err(ReadError::Record(_, BadRecord::Torn)) if readings < READINGS => {
                    readings += 1;
                    std::hint::spin_loop();
                }
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = error {
            // Next time it may be another file.
            self.file = None;
            return Err(error);
        }
        let record = Record::parse(&self.bytes)
            .map_err(|error| ReadError::Record(self.path.clone(), error))?;
        let age = age(&mut self.last, &record);
        Ok(Reading { record, age })
    }

    fn attempt(&mut self) -> Result<(), ReadError> {
        let io = |error| ReadError::Io(self.path.clone(), error);
        let file = match self.file.take() {
            Some(file) if file.metadata().map_err(io)?.nlink() > 0 => file,
            _ => open(&self.path)?,
        };
        let file = self.file.insert(file);
        // One byte more than there may be: what is too long is no record.
        self.bytes.resize(length(MAX_CPUS) + 1, 0);
        let read = read_all(file, &mut self.bytes).map_err(io)?;
        self.bytes.truncate(read);
        let bad = |error| ReadError::Record(self.path.clone(), error);
        let begin = Record::parse(&self.bytes).map_err(bad)?.base.begin;
        fence(Ordering::Acquire);
        let mut again = [0; 8];
        let read = file.read_at(&mut again, 8).map_err(io)?;
        if read == 8 && u64::from_le_bytes(again) == begin {
            Ok(())
        } else {
            Err(bad(BadRecord::Torn))
        }
    }
}

fn open(path: &Path) -> Result<File, ReadError> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(ReadError::Missing(path.to_owned()));
        }
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(ReadError::Strange(path.to_owned()));
        }
        Err(error) => return Err(ReadError::Io(path.to_owned(), error)),
    };
    let about = file
        .metadata()
        .map_err(|error| ReadError::Io(path.to_owned(), error))?;
    let owner = about.uid();
    let ours = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if about.is_file() && ours && about.mode() & 0o022 == 0 {
        Ok(file)
    } else {
        Err(ReadError::Strange(path.to_owned()))
    }
}

fn read_all(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Returns the age by the record's clock, which is the clock of this machine. Where a time
/// namespace puts the writer's clock ahead, the age is the time for which the record has not
/// changed.
fn age(last: &mut Option<((u64, u64), Instant)>, record: &Record<'_>) -> Duration {
    let base = &record.base;
    let which = (base.epoch, base.begin);
    let now = Instant::now();
    let since = match *last {
        Some((known, since)) if known == which => since,
        _ => now,
    };
    *last = Some((which, since));
    match monotonic_ns().checked_sub(base.time_ns) {
        Some(age) => Duration::from_nanos(age),
        None => now - since,
    }
}

#[cfg(test)]
mod tests;

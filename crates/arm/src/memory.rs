//! Memory of an application's page, as the library gets it.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, RenameFlags, fallocate, renameat_with};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::process::geteuid;

use crate::layout::{COUNT_BIAS, Header, MAGIC, NAME_MAX, Page, SIZE, VERSION, digest};
use crate::page::{self, EXTENSION};

/// A mapped page, for as long as this process runs, and its file's device and inode.
type Mapping = (&'static Page, (u64, u64));

/// Returns true if a file is the present file at the path of an application's page.
pub(crate) fn is_current(file: (u64, u64), application: &str) -> bool {
    let about = fs::symlink_metadata(path(&page::default_dir(), application));
    about.is_ok_and(|about| (about.dev(), about.ino()) == file)
}

/// Memory that nobody else sees: an application that has it is not measured, and runs as
/// if it was. `None` if the machine has none left.
pub(crate) fn private_page(application: &str) -> Option<&'static Page> {
    let page = anonymous()?;
    write_header(page, application);
    Some(page)
}

/// Maps the page of an application; makes it if there is none.
pub(crate) fn map_shared_page(application: &str) -> io::Result<Mapping> {
    let dir = page::default_dir();
    let path = path(&dir, application);
    // Three turns: one for a page of before, one for a process as far as this one.
    for _ in 0..3 {
        match open(&path, application) {
            Ok(file) => {
                let about = file.metadata()?;
                return Ok((map_file(&file)?, (about.dev(), about.ino())));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => create(&dir, &path, application)?,
            // Of another version or another boot, or damaged: counters nobody can use.
            Err(error) if error.kind() == ErrorKind::InvalidData => fs::remove_file(&path)?,
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::ResourceBusy.into())
}

/// The file of an application's page: a readable name, a digest that tells apart what
/// reads alike, and the user, because nobody may write to another user's page.
fn path(dir: &Path, application: &str) -> PathBuf {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let readable: String = application.chars().take(48).map(plain).collect();
    let digest = digest(application.as_bytes());
    let user = geteuid().as_raw();
    dir.join(format!("{readable}.{digest:016x}.{user}.{EXTENSION}"))
}

/// Opens the page of an application. Whoever can shrink a file that is mapped can kill
/// this process, so it is somebody's who could do that anyway.
fn open(path: &Path, application: &str) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let about = file.metadata()?;
    let user = geteuid().as_raw();
    if !about.is_file() || about.nlink() != 1 || (about.uid() != user && about.uid() != 0) {
        return Err(ErrorKind::PermissionDenied.into());
    }
    if about.mode() & Mode::WOTH.as_raw_mode() != 0 {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let mut word = [0; 8];
    let mut has = |at: usize, value: u64| {
        let read = file.read_exact_at(&mut word, at as u64);
        read.is_ok() && u64::from_ne_bytes(word) == value
    };
    let ours = about.len() == SIZE as u64
        && has(offset_of!(Header, magic), MAGIC)
        && has(offset_of!(Header, version), VERSION)
        && has(offset_of!(Header, boot), page::boot_digest())
        && has(offset_of!(Header, name_len), application.len() as u64);
    if !ours {
        return Err(ErrorKind::InvalidData.into());
    }
    Ok(file)
}

/// Makes a page, whole before anybody sees it. That another process was faster is fine.
fn create(dir: &Path, path: &Path, application: &str) -> io::Result<()> {
    let process = std::process::id();
    let draft = dir.join(format!(".evenkeel-{process}-{:x}", page::monotonic_nanos()));
    let options = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = Mode::RUSR | Mode::WUSR;
    let file = File::from(rustix::fs::open(&draft, options, own)?);
    let made = fill(&file, dir, application).and_then(|()| {
        Ok(renameat_with(
            CWD,
            &draft,
            CWD,
            path,
            RenameFlags::NOREPLACE,
        )?)
    });
    if made.is_err() {
        fs::remove_file(&draft)?;
    }
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Makes an empty file a page.
fn fill(file: &File, dir: &Path, application: &str) -> io::Result<()> {
    // A directory with the set-group-id bit is one that an administrator made for pages:
    // then its group, which is the agent's, may read them and give alerts.
    if fs::metadata(dir)?.mode() & Mode::SGID.as_raw_mode() != 0 {
        file.set_permissions(Permissions::from_mode(0o660))?;
    }
    // All of it now: memory that is missing at the first touch of a mapping would kill the
    // process.
    fallocate(file, FallocateFlags::empty(), 0, SIZE as u64)?;
    let page = map_file(file)?;
    write_header(page, application);
    // SAFETY: this mapping was made above, and the reference to it is not used again.
    unsafe { unmap(page) };
    Ok(())
}

fn map_file(file: &File) -> io::Result<&'static Page> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: nothing is mapped over, and the length is the file's, which whoever may
    // write to it does not change: see `open`.
    let memory = unsafe { mmap(ptr::null_mut(), SIZE, access, MapFlags::SHARED, file, 0) }?;
    // SAFETY: the mapping is as long as a page, aligned to one, never unmapped while the
    // reference is in use, and all of a `Page` is atomics, for which any bytes are valid.
    Ok(unsafe { &*memory.cast::<Page>() })
}

fn anonymous() -> Option<&'static Page> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: nothing is mapped over.
    let memory = unsafe { mmap_anonymous(ptr::null_mut(), SIZE, access, MapFlags::PRIVATE) };
    // SAFETY: as in `map_file`.
    Some(unsafe { &*memory.ok()?.cast::<Page>() })
}

/// # Safety
///
/// The page came from here, and nobody uses it any more.
unsafe fn unmap(page: &Page) {
    let memory = ptr::from_ref(page).cast_mut();
    // It was mapped, so it can be unmapped.
    // SAFETY: the caller's promise.
    let _ = unsafe { munmap(memory.cast(), SIZE) };
}

fn write_header(page: &Page, application: &str) {
    let header = &page.header;
    let epoch = page::monotonic_nanos() ^ u64::from(std::process::id()) << 32 | 1;
    header.epoch.store(epoch, Relaxed);
    header.pulse.key.store(epoch, Relaxed);
    header.boot.store(page::boot_digest(), Relaxed);
    debug_assert!(application.len() <= NAME_MAX);
    header.name_len.store(application.len() as u64, Relaxed);
    for (word, bytes) in header.name.iter().zip(application.as_bytes().chunks(8)) {
        let mut whole = [0; 8];
        for (to, from) in whole.iter_mut().zip(bytes) {
            *to = *from;
        }
        word.store(u64::from_ne_bytes(whole), Relaxed);
    }
    header.rare.lanes_used.store(1, Relaxed);
    header.pulse.word.store(COUNT_BIAS, Relaxed);
    header.version.store(VERSION, Relaxed);
    header.magic.store(MAGIC, Relaxed);
}

//! Any bytes in a page of libarm: reading it ends, does not panic, and keeps its promises.
#![no_main]

use std::ffi::{c_char, c_int};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use arm::page::{self, Reader};
use libfuzzer_sys::fuzz_target;

unsafe extern "C" {
    fn arm_init(
        name: *const c_char,
        user: *const c_char,
        flags: i32,
        data: *const c_char,
        size: i32,
    ) -> c_int;
}

/// A page as the library makes it, and a file to damage.
struct Page {
    whole: Vec<u8>,
    file: File,
    path: PathBuf,
}

fn page() -> &'static Page {
    static PAGE: OnceLock<Page> = OnceLock::new();
    PAGE.get_or_init(|| {
        // The library reads it from here, once.
        let dir = PathBuf::from(format!("/dev/shm/evenkeel-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        // SAFETY: nothing else runs yet.
        unsafe { std::env::set_var(page::DIR_VARIABLE, &dir) };
        // SAFETY: a string of C.
        let id = unsafe { arm_init(c"fuzz".as_ptr(), std::ptr::null(), 0, std::ptr::null(), 0) };
        assert!(id > 0);
        let whole = std::fs::read(&page::find_pages(&dir).unwrap()[0]).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let path = dir.with_extension("arm");
        std::fs::write(&path, &whole).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        Page { whole, file, path }
    })
}

/// Reads the page as an agent would.
fn read(path: &Path) -> Option<()> {
    let now = page::monotonic_nanos();
    let mut reader = Reader::open(path).ok()?;
    assert!(!reader.application().is_empty() && reader.application().len() <= 127);
    let earlier = reader.sample(now).ok()?;
    let later = reader.sample(now + 1_000_000_000).ok()?;
    for (from, to) in [(&earlier, &later), (&later, &earlier)] {
        let interval = to.interval_since(from);
        assert!(interval.busy <= interval.length);
        for q in [0.0, 0.5, 0.99, 1.0, f64::NAN] {
            let _ = interval.histogram.quantile(q);
        }
    }
    Some(())
}

fuzz_target!(|input: &[u8]| {
    let Page { whole, file, path } = page();
    let Some((&kind, changes)) = input.split_first() else {
        return;
    };
    // Words at places: two bytes of an offset in words, eight of a word. The header is
    // small and matters most, so half of the changes are there.
    let changes: Vec<_> = changes
        .chunks_exact(10)
        .take(64)
        .map(|change| {
            let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
            let words = if place & 1 == 0 { 128 } else { whole.len() / 8 };
            (place / 2 % words * 8, &change[2..10])
        })
        .collect();
    for (at, word) in &changes {
        file.write_all_at(word, *at as u64).unwrap();
    }
    if kind < 16 {
        file.set_len(whole.len() as u64 * u64::from(kind) / 16)
            .unwrap();
    }
    read(path);
    if kind < 16 {
        file.write_all_at(whole, 0).unwrap();
    }
    for (at, _) in &changes {
        file.write_all_at(&whole[*at..*at + 8], *at as u64).unwrap();
    }
});

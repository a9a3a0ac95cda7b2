//! Reading a large hash map in batches.

use std::os::fd::AsRawFd;

use libbpf_rs::{Error, MapCore};

use crate::bpf::{BpfError, failed_to};

/// Entries of a batch at first.
const BATCH: usize = 1024;

/// Most entries of a batch: the entries of one bucket must fit.
const LARGEST_BATCH: usize = 1 << 20;

/// Calls `take` with the key and the value of each entry. Entries that come or go meanwhile may be missing.
///
/// # Errors
///
/// The kernel refuses, or the map has keys or values of other lengths.
pub(super) fn read_table<const KEY: usize, const VALUE: usize>(
    map: &impl MapCore,
    mut take: impl FnMut(&[u8; KEY], &[u8; VALUE]),
) -> Result<(), BpfError> {
    if map.key_size() as usize != KEY || map.value_size() as usize != VALUE {
        return Err(BpfError::Lost("a BPF map has another layout"));
    }
    let mut keys = vec![[0u8; KEY]; BATCH];
    let mut values = vec![[0u8; VALUE]; BATCH];
    let options = libbpf_sys::bpf_map_batch_opts {
        sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _,
        ..Default::default()
    };
    // A place in a hash map is the number of a bucket, of four bytes.
    let (mut place, mut next) = (None::<u32>, 0u32);
    loop {
        let mut count = keys.len() as u32;
        let from = place.as_mut().map_or(std::ptr::null_mut(), |place| {
            std::ptr::from_mut(place).cast()
        });
        // SAFETY: both vectors have `count` elements of the sizes that the map has, and the places have the
        // four bytes of a hash map's place.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from,
                std::ptr::from_mut(&mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &mut count,
                &options,
            )
        };
        match -result {
            // The entries of a bucket do not fit.
            libc::ENOSPC if keys.len() < LARGEST_BATCH => {
                let larger = keys.len() * 4;
                keys.resize(larger, [0; KEY]);
                values.resize(larger, [0; VALUE]);
                continue;
            }
            libc::EINTR => continue,
            0 | libc::ENOENT => {}
            error => {
                let error = Error::from_raw_os_error(error);
                return Err(failed_to("read a BPF map")(error));
            }
        }
        let read = keys.iter().zip(&values).take(count as usize);
        read.for_each(|(key, value)| take(key, value));
        if result != 0 {
            return Ok(());
        }
        place = Some(next);
    }
}

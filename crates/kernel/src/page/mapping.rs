//! Memory of a page, mapped into this process.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::rdma::Memory;
use crate::record::{BASE, CPU, CPUS, MAX_CPUS};

/// Memory of the kernel or of a file that this process sees, too.
#[derive(Debug)]
pub struct Mapping {
    address: *mut u8,
    length: usize,
}

// SAFETY: it is memory, and written only by others.
unsafe impl Send for Mapping {}

// SAFETY: as above.
unsafe impl Sync for Mapping {}

// SAFETY: it is mapped for reading and writing until it is dropped.
unsafe impl Memory for Mapping {
    fn address(&self) -> *mut u8 {
        self.address
    }

    fn length(&self) -> usize {
        self.length
    }
}

impl Mapping {
    /// Maps the first `length` bytes. Nothing is written, but RDMA devices want memory that
    /// could be.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn new(fd: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses where.
        let address = unsafe { mmap(ptr::null_mut(), length, rights, MapFlags::SHARED, fd, 0) }?;
        Ok(Mapping {
            address: address.cast(),
            length,
        })
    }

    /// Copies the first bytes, eight at a time, as others may be writing them: what is copied
    /// may be torn.
    pub fn copy(&self, to: &mut [u8]) {
        let length = to.len().min(self.length);
        // A sequence number is read before what it is about...
        fence(Ordering::Acquire);
        for (at, word) in to[..length].chunks_mut(8).enumerate() {
            // SAFETY: within the memory, which begins at a page; its last word may be shorter
            // than eight bytes, but is followed by the rest of its page.
            let read = unsafe { &*self.address.cast::<AtomicU64>().add(at) };
            // ... and again after.
            let read = read.load(Ordering::Acquire);
            word.copy_from_slice(&read.to_ne_bytes()[..word.len()]);
        }
    }

    /// Bytes that the record in it needs: as many as it says that it has CPUs.
    pub fn used_length(&self) -> usize {
        let mut base = [0; BASE];
        self.copy(&mut base);
        let cpus = u32::from_le_bytes([base[40], base[41], base[42], base[43]]) as usize;
        let most = self.length.saturating_sub(CPUS) / CPU;
        CPUS + cpus.clamp(1, MAX_CPUS).min(most) * CPU
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: whoever uses it holds it.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), self.length) };
    }
}

//! `evenkeel kernel trace` in a build without BPF.

use crate::cli::kernel::Trace;
use crate::failure::Failure;

/// Says that the build cannot trace.
pub(super) fn trace(_args: &Trace) -> Result<(), Failure> {
    Err(Failure::new(
        "this evenkeel was built without BPF, and forwards nothing in the kernel; build it with \
         `cargo build --features kernel` (needs clang, libelf-dev, zlib1g-dev, pkg-config)",
    ))
}

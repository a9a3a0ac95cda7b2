//! The few calls of bpf(2) that measurements make themselves.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const PROG_LOAD: i64 = 5;
const LINK_CREATE: i64 = 28;
const GET_FD_BY_ID: i64 = 13;
const GET_INFO_BY_FD: i64 = 15;
/// Offsets in the kernel's `struct bpf_prog_info`.
const RUN_TIME: usize = 192;
const RUN_COUNT: usize = 200;
const INFO: usize = 208;

/// Nanoseconds that a program has run, and how often, since the kernel counts.
pub(crate) fn program_time(id: u32) -> io::Result<(u64, u64)> {
    let mut attributes = [0u8; 128];
    attributes[..4].copy_from_slice(&id.to_ne_bytes());
    let program = bpf(GET_FD_BY_ID, &mut attributes)?;
    // SAFETY: just opened, and nobody else's.
    let program = unsafe { OwnedFd::from_raw_fd(program as i32) };
    let mut info = [0u8; INFO];
    let mut attributes = [0u8; 128];
    let descriptor = program.as_raw_fd() as u32;
    attributes[..4].copy_from_slice(&descriptor.to_ne_bytes());
    attributes[4..8].copy_from_slice(&(INFO as u32).to_ne_bytes());
    attributes[8..16].copy_from_slice(&(info.as_mut_ptr() as u64).to_ne_bytes());
    bpf(GET_INFO_BY_FD, &mut attributes)?;
    // Written by the kernel behind the compiler's back.
    let info = std::hint::black_box(info);
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&info[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    Ok((long(RUN_TIME), long(RUN_COUNT)))
}

fn bpf(command: i64, attributes: &mut [u8; 128]) -> io::Result<i64> {
    // SAFETY: `attributes` is as long as is said, and what it points to outlives the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_mut_ptr(),
            attributes.len(),
        )
    };
    match done {
        0.. => Ok(done),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Attaches a program that lets every packet pass to an interface of the calling thread's
/// network namespace, as long as the link that is returned is kept. What a veth sends back
/// in its driver arrives only where there is a program at the other end, too.
pub(crate) fn let_pass(interface: u32) -> io::Result<OwnedFd> {
    /// BPF_PROG_TYPE_XDP and BPF_XDP.
    const TYPE: u32 = 6;
    const ATTACH: u32 = 37;
    // r0 = XDP_PASS; exit
    let code: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];
    let license = c"Dual MIT/GPL";
    let mut attributes = [0u8; 128];
    attributes[..4].copy_from_slice(&TYPE.to_ne_bytes());
    attributes[4..8].copy_from_slice(&(code.len() as u32).to_ne_bytes());
    attributes[8..16].copy_from_slice(&(code.as_ptr() as u64).to_ne_bytes());
    attributes[16..24].copy_from_slice(&(license.as_ptr() as u64).to_ne_bytes());
    let program = bpf(PROG_LOAD, &mut attributes)?;
    // SAFETY: just opened, and nobody else's.
    let program = unsafe { OwnedFd::from_raw_fd(program as i32) };
    let mut attributes = [0u8; 128];
    attributes[..4].copy_from_slice(&(program.as_raw_fd() as u32).to_ne_bytes());
    attributes[4..8].copy_from_slice(&interface.to_ne_bytes());
    attributes[8..12].copy_from_slice(&ATTACH.to_ne_bytes());
    let link = bpf(LINK_CREATE, &mut attributes)?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(link as i32) })
}

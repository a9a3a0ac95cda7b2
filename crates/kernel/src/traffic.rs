//! Packets that the kernel makes and drops, for measurements: the cost of forwarding one is what remains of the time.

use std::os::fd::AsFd;

use libbpf_rs::{MapCore, MapFlags, Object, ProgramInput, Xdp, XdpFlags};

use crate::bpf::{self, Programs, failed_to_load, find_map, find_program, find_program_mut};

/// Number of different frames.
pub const FRAMES: usize = 64;
/// Length of each frame.
pub const LENGTH: usize = 64;

/// The kernel runs a program on real frames, and obeys the answers (`BPF_F_TEST_XDP_LIVE_FRAMES`).
const LIVE_FRAMES: u32 = 2;

/// Programs that make and drop packets.
#[derive(Debug)]
pub struct Traffic(Object);

impl Traffic {
    /// Loads the programs.
    ///
    /// # Errors
    ///
    /// A right is missing, or the kernel refuses.
    pub fn open() -> Result<Self, String> {
        let open = bpf::open_programs(crate::bpf_object!("traffic.bpf.o"));
        let object = open.and_then(|open| open.load().map_err(failed_to_load(Programs::Traffic)));
        object.map(Traffic).map_err(|error| error.to_string())
    }

    /// Lets an interface of this thread's network namespace drop and count what arrives.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn drop_at(&self, interface: u32) -> Result<(), String> {
        let program = find_program(&self.0, "evk_sink").map_err(|error| error.to_string())?;
        let attached =
            Xdp::new(program.as_fd()).attach(interface.cast_signed(), XdpFlags::DRV_MODE);
        attached.map_err(|error| format!("cannot attach XDP: {error}"))
    }

    /// Sends `count` packets out of an interface of this thread's network namespace, one of these frames after the
    /// other. Returns the number of packets that have arrived where they are dropped.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn send(
        &self,
        frames: &[[u8; LENGTH]; FRAMES],
        interface: u32,
        count: u32,
    ) -> Result<u64, String> {
        let write = |map: &str, key: u32, value: &[u8]| {
            bpf::update_map(&self.0, map, &key.to_ne_bytes(), value)
                .map_err(|error| error.to_string())
        };
        for (number, frame) in (0..).zip(frames) {
            write("evk_frames", number, frame)?;
        }
        let mut traffic = [0; 24];
        traffic[16..20].copy_from_slice(&interface.to_ne_bytes());
        write("evk_traffic", 0, &traffic)?;
        let input = ProgramInput {
            data_in: Some(&frames[0]),
            flags: LIVE_FRAMES,
            repeat: count,
            ..ProgramInput::default()
        };
        find_program_mut(&self.0, "evk_make")
            .map_err(|error| error.to_string())?
            .test_run(input)
            .map_err(|error| format!("cannot send packets: {error}"))?;
        let value = find_map(&self.0, "evk_traffic")
            .map_err(|error| error.to_string())?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| error.to_string())?
            .unwrap_or_default();
        let arrived = value.get(8..16).and_then(|bytes| bytes.first_chunk());
        Ok(arrived.map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
    }
}

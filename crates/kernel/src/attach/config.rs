//! Configuration of a responder, as the programs have it.

use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, Object};

use super::options::Mode;
use super::pins::pinned;
use crate::bpf::{self, BpfError};
use crate::record::PORTS;

/// The form of the maps. Another one is not taken over.
const LAYOUT: u32 = 1;

/// `struct evk_config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) mode: u32,
    pub(super) interface: u32,
    pub(super) made_qdisc: bool,
    pub(super) priority: u32,
    pub(super) handle: u32,
    pub(super) port: u16,
    pub(super) ports: Vec<u16>,
    pub(super) interval_ns: u64,
    pub(super) burst_ns: u64,
    pub(super) namespace: u64,
    pub(super) updates: u64,
}

pub(super) const CONFIG: usize = 96;

impl Config {
    pub(super) fn write(&self) -> [u8; CONFIG] {
        let mut out = [0; CONFIG];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        // What was sent on this machine has no checksum yet, but for XDP in the driver.
        let skb = u32::from(self.mode != Mode::Native as u32);
        for word in [
            LAYOUT,
            self.mode,
            self.interface,
            skb,
            self.made_qdisc.into(),
            self.priority,
            self.handle,
        ] {
            put(&word.to_ne_bytes());
        }
        put(&self.port.to_be_bytes());
        put(&(self.ports.len() as u16).to_ne_bytes());
        for slot in 0..PORTS {
            put(&self.ports.get(slot).unwrap_or(&0).to_ne_bytes());
        }
        for long in [
            self.interval_ns,
            self.burst_ns,
            self.namespace,
            self.updates,
        ] {
            put(&long.to_ne_bytes());
        }
        out
    }

    /// None if it is of another version.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CONFIG] = bytes.try_into().ok()?;
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let short = |at: usize| [bytes[at], bytes[at + 1]];
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let ports = usize::from(u16::from_ne_bytes(short(30))).min(PORTS);
        (word(0) == LAYOUT).then(|| Config {
            mode: word(4),
            interface: word(8),
            made_qdisc: word(16) != 0,
            priority: word(20),
            handle: word(24),
            port: u16::from_be_bytes(short(28)),
            ports: (0..ports)
                .map(|slot| u16::from_ne_bytes(short(32 + 2 * slot)))
                .collect(),
            interval_ns: long(64),
            burst_ns: long(72),
            namespace: long(80),
            updates: long(88),
        })
    }

    /// Returns the configuration of the responder in this folder.
    pub(super) fn of(folder: &Path) -> Result<Option<Self>, BpfError> {
        let path = folder.join("evk_config");
        if !path.try_exists().unwrap_or(true) {
            return Ok(None);
        }
        let map = pinned(folder, "evk_config")?;
        let value = map
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf::failed_to("read a BPF map"))?;
        Ok(value.as_deref().and_then(Config::read))
    }
}

pub(super) fn write(object: &Object, config: &Config) -> Result<(), BpfError> {
    bpf::update_map(object, "evk_config", &0u32.to_ne_bytes(), &config.write())
}

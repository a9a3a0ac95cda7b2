//! Copies of sessions of UDP that another balancer forwards, in the tables of the program.

use super::Forwarder;
use super::layout::{ADDRESS, ANSWERED, CONFIRMED, COPIED, UNIT, write_address};
use super::table_copy::{CopyResult, UdpCopy};
use super::udp::{SESSION, UDP_DIRECT, UdpSession};
use crate::bpf::{self, BpfError};

impl UdpSession {
    /// Returns all that another balancer needs. `now_ns` is the time of the machine's clock.
    pub fn copy(&self, now_ns: u64) -> UdpCopy {
        let silence = self.find_silence(now_ns).as_nanos();
        UdpCopy {
            of: self.of,
            member: self.member,
            seat: self.seat,
            source: self.has_nat().then_some(self.source),
            is_direct: self.is_direct(),
            is_answered: self.is_answered(),
            began_ns: self.began_ns,
            seen_ns: now_ns.saturating_sub(u64::try_from(silence).unwrap_or(u64::MAX)),
        }
    }
}

impl UdpCopy {
    /// Returns `struct evk_udp_order`.
    fn write(&self) -> Vec<u8> {
        let answered = if self.is_answered { ANSWERED } else { 0 };
        let direct = if self.is_direct { UDP_DIRECT } else { 0 };
        // The limits of sources are those of the balancer where the session began.
        let flags = COPIED | CONFIRMED | answered | direct;
        let source = self.source.unwrap_or(self.of.client);
        let mut out = write_address(self.member).to_vec();
        out.extend(write_address(source));
        out.extend(self.began_ns.to_ne_bytes());
        out.extend(((self.seen_ns >> UNIT) as u32).to_ne_bytes());
        out.extend(flags.to_ne_bytes());
        out.extend(self.of.write());
        out.extend(self.seat.to_ne_bytes());
        out.extend([0; 4]);
        // Bytes and datagrams are counted where they pass, and connection ids are learnt there.
        out.resize(2 * ADDRESS + SESSION, 0);
        out
    }
}

impl Forwarder {
    /// Writes a copy of another balancer's session into the tables.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn write_udp_copy(&self, copy: &UdpCopy) -> Result<CopyResult, BpfError> {
        let mut context = copy.write();
        CopyResult::read(bpf::run(&self.object, "evk_udp_copy", Some(&mut context))?)
    }
}

//! Reasons against a member, and the rank of its zone: the bits that decisions read.

use crate::zone::RANKS;

/// Reason for which a member gets no new traffic. A member may have several reasons at once;
/// it is eligible when it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// Active health checks fail.
    Down = 1,
    /// Passive observation ejected the member (failures in a row, or success ratio).
    Ejected = 1 << 1,
    /// An administrator drains the member: its bindings may stay.
    Draining = 1 << 2,
    /// An administrator took the member out: its bindings are moved.
    Maintenance = 1 << 3,
    /// The member's address is not known (its DNS name does not resolve).
    Unresolved = 1 << 4,
    /// A source of reports says that it does not work.
    ReportedDown = 1 << 5,
    /// A source of reports wants no new clients for the member: bindings may stay.
    ReportedDrain = 1 << 6,
    /// A source of reports says that the member is being worked on: its bindings are moved.
    ReportedMaintenance = 1 << 7,
    /// The member's location is under a load alert: new traffic goes to other members as long as there are any, and
    /// bindings are moved bit by bit.
    Shedding = 1 << 8,
    /// The member certainly does not work now: its address refuses connections, or its server says that the service is
    /// not there. Bindings are moved.
    Dead = 1 << 9,
    /// The member is a backup: it serves while no other member may, and its bindings are moved when another one may
    /// again.
    Standby = 1 << 10,
}

impl Reason {
    /// All reasons, in the order in which they are shown.
    pub const ALL: [Reason; 11] = [
        Reason::Maintenance,
        Reason::ReportedMaintenance,
        Reason::Draining,
        Reason::ReportedDrain,
        Reason::Unresolved,
        Reason::Down,
        Reason::ReportedDown,
        Reason::Dead,
        Reason::Ejected,
        Reason::Shedding,
        Reason::Standby,
    ];

    /// The reasons that panic mode overrides: opinions about health. An
    /// administrator's word, or a member's own, a missing address, and one that refuses
    /// connections, are facts that it does not.
    pub const OVERRIDDEN_BY_PANIC: u32 =
        Reason::Down as u32 | Reason::Ejected as u32 | Reason::ReportedDown as u32;

    /// The reasons for which a member keeps the clients that are bound to it.
    pub const KEEPS_BOUND: u32 = Reason::Draining as u32 | Reason::ReportedDrain as u32;

    /// The reasons for which a session of UDP leaves its member, at the client's next datagram.
    pub const ENDS_SESSIONS: u32 = Reason::Down as u32
        | Reason::Ejected as u32
        | Reason::Maintenance as u32
        | Reason::Unresolved as u32
        | Reason::ReportedDown as u32
        | Reason::ReportedMaintenance as u32
        | Reason::Dead as u32;

    /// Reasons that are no fault of the member: a member without other reasons is well, and serves when no other one
    /// can.
    pub const SOFT: u32 = Reason::Shedding as u32 | Reason::Standby as u32;

    /// The name that admin API and logs use.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Down => "down",
            Reason::Ejected => "ejected",
            Reason::Draining => "draining",
            Reason::Maintenance => "maintenance",
            Reason::Unresolved => "unresolved",
            Reason::ReportedDown => "reported_down",
            Reason::ReportedDrain => "reported_drain",
            Reason::ReportedMaintenance => "reported_maintenance",
            Reason::Shedding => "shedding",
            Reason::Dead => "dead",
            Reason::Standby => "standby",
        }
    }
}

/// First bit of ranks, above the bits of reasons.
const FIRST_RANK: u32 = 24;

/// The bits of all ranks.
pub(crate) const RANK_BITS: u32 = ((1 << RANKS) - 1) << FIRST_RANK;

/// Returns the bit of a rank; ranks beyond the last one share the last bit.
pub(crate) const fn rank_bit(rank: usize) -> u32 {
    let rank = if rank < RANKS { rank } else { RANKS - 1 };
    1 << (FIRST_RANK + rank as u32)
}

/// The bits of the [`Reason`]s among the [bits](crate::member::Slot::decision_bits) of a member.
#[inline]
pub const fn reasons_of(bits: u32) -> u32 {
    bits & !RANK_BITS
}

/// The rank of the zone of a member with these [bits](crate::member::Slot::decision_bits), below [`RANKS`]; `None` if its
/// group goes by no zones.
pub fn rank_of(bits: u32) -> Option<usize> {
    let bits = bits & RANK_BITS;
    (bits != 0).then(|| (bits.trailing_zeros() - FIRST_RANK) as usize)
}

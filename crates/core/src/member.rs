//! Members: an endpoint of a group in a snapshot.

use std::sync::Arc;

use crate::address::Address;
use crate::effective::{Effective, Shaping};
use crate::group::settings::GroupSettings;
use crate::load::{Location, Query};
pub(crate) use crate::reason::{RANK_BITS, rank_bit};
pub use crate::reason::{Reason, rank_of, reasons_of};
pub(crate) use crate::slot::Digest;
pub use crate::slot::Slot;
use crate::time::{Horizon, Instant};
pub use crate::weight::{InvalidWeight, Weight};

/// Identifies a member for the life of the process: adapters key their connection
/// pools with it. The same (group, name, address) keeps its id over reloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// An endpoint of a group at a location, in one snapshot.
#[derive(Clone, Debug)]
pub struct Member {
    /// Identity over snapshots.
    pub id: MemberId,
    /// Identity for programs, unique in the group: the address in the configuration. Metrics, logs and other
    /// balancers know the member by it.
    pub name: Arc<str>,
    /// Name for people that the configuration gives it, unique in the group; no decision looks at it.
    pub given_name: Option<Arc<str>>,
    /// Address of the member.
    pub address: Address,
    /// The host as the configuration names it, which its certificate is for: a name or an IP
    /// address. Of a Unix socket its whole name, which no certificate is for.
    pub host: Arc<str>,
    /// Most requests (HTTP) or connections (TCP) of this process at the member at once; `None` is no limit. A lower
    /// limit that is reported counts instead.
    pub max_connections: Option<u32>,
    /// The location whose load it shares.
    pub location: Arc<Location>,
    /// Zone of the member, if it is configured.
    pub zone: Option<Arc<str>>,
    /// Data that changes with each request.
    pub slot: Arc<Slot>,
}

impl Member {
    /// Returns the name that people see and type: the given one, or else the address.
    pub fn shown_name(&self) -> &Arc<str> {
        self.given_name.as_ref().unwrap_or(&self.name)
    }

    /// The name of the member of the configuration whose endpoint it is: where a host name has
    /// several addresses, each endpoint adds its own to that name, behind a slash.
    pub fn in_file(&self) -> &str {
        let name = match self.address {
            Address::Ip(_) => self.name.split('/').next(),
            Address::Unix(_) => None,
        };
        name.unwrap_or(&self.name)
    }

    /// Effective load of the member now; `None` means unknown: never reported or too old.
    ///
    /// For each report it is `(dampening * (previous + per_balance_load * bound) + (1 - dampening) * reported) /
    /// tolerance`, where `previous` is the effective load of the report before, without the tolerance, and `bound`
    /// counts the clients bound to the location between the two reports. The first report, which has no predecessor,
    /// counts in full. Between reports each client that is bound adds the per-balance load.
    ///
    /// The first call after a report takes the step; it is taken once.
    #[inline]
    pub fn effective_load(
        &self,
        shaping: &Shaping,
        settings: &GroupSettings,
        now: Instant,
    ) -> Option<Effective> {
        let horizon = Horizon::new(now, settings.load_max_age);
        let query = Query::new(settings.load_id, horizon);
        let report = self.location.last_report(&query)?;
        Some(shaping.shape_report(report, self.slot.damped()))
    }
}

/// Returns the index of the member `id` among `members`, looked for at `hint` first.
pub fn find(members: &[Member], id: MemberId, hint: usize) -> Option<usize> {
    let is_it = |member: &Member| member.id == id;
    if members.get(hint).is_some_and(is_it) {
        return Some(hint);
    }
    members.iter().position(is_it)
}

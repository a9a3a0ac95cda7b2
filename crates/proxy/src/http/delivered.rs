//! Outcome of delivering a response to a client.

use super::failure::MemberError;
use crate::access::{End, Limit};

/// Outcome of delivering a response.
pub(super) struct Delivered {
    pub(super) end: End,
    /// Bytes to the client, and from it beyond the request.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) has_waited: bool,
    pub(super) limit: Option<Limit>,
    /// Fault in the rest of the response, if the exchange ended for that.
    pub(super) member_error: Option<MemberError>,
}

impl Delivered {
    /// Returns the outcome of a response that was for nobody.
    pub(super) fn of_discarded(end: End, sent: u64) -> Self {
        Delivered {
            end,
            sent,
            received: 0,
            has_waited: true,
            limit: None,
            member_error: None,
        }
    }
}

//! Members that are gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::directory::Reference;

/// Finding about a member that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Nobody answers.
    Silent,
    /// The member is gone for certain.
    Dead,
}

/// A member: the group's id and the location.
pub(super) type MemberKey = (u64, String);

/// Members that are gone, with the reference by which they were asked.
pub(super) type GoneMembers = Mutex<HashMap<MemberKey, (Finding, Arc<Reference>)>>;

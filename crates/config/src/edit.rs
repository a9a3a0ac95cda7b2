//! Edits of a configuration's text: values are set, removed and renamed, and what a person has
//! written around them, comments and order, stays.
//!
//! An edit knows nothing of what keys mean: whether the new text is a configuration, says
//! [`parse`](crate::parse).

mod apply;
mod compare;
mod parts;
mod secrets;
#[cfg(test)]
mod tests;
mod write;

pub use apply::{apply, apply_in};
pub use compare::{Change, changes, unified, value_of, values};
pub(crate) use compare::{equal, json_of};
pub use parts::{Edit, EditError, MAX_DEPTH, MAX_EDITS, MAX_PART, Part, path_of, revision, shown};
pub(crate) use secrets::masked_places;
pub use secrets::{MASK, holds_login, mask, masked};

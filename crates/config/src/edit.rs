//! Edits of a configuration's text: values are set, removed and renamed, and what a person has
//! written around them, comments and order, stays.
//!
//! An edit knows nothing of what keys mean: whether the new text is a configuration, says
//! [`parse`](crate::parse).

mod apply;
mod compare;
mod items;
mod lists;
mod names;
mod order;
mod parts;
mod secrets;
#[cfg(test)]
mod tests;
mod values;
mod write;

pub use apply::{apply_edits, apply_in};
pub use compare::{Change, list_changes, unified, value_of, values};
pub(crate) use compare::{is_equal, json_of};
pub use parts::{
    Edit, EditError, MAX_DEPTH, MAX_EDITS, MAX_PART, Part, path_of, shown, text_revision,
};
pub(crate) use secrets::masked_places;
pub use secrets::{MASK, has_masked_secret, holds_login, mask_secrets};

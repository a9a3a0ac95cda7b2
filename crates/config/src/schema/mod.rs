//! Reading of configuration files, whatever their sections are: the document with the places of its values,
//! errors, the types that keys can have, and tables of keys.
//!
//! In the order in which the files build on each other: [`errors`]; texts with a meaning ([`amount`],
//! [`address`], [`networks`], [`expression`], [`frequency`]); [`similar`] names and those of other products
//! ([`foreign`]) and [`dialect`]s; [`reference`]; [`document`], [`overrides`] of its values, and [`report`];
//! [`field`], the types; [`key`], how keys are declared; [`variables`] in texts and the files that are
//! [`include`]d ([`bounded`] ones), whose names are a [`pattern`]; and [`table`], which reads keys.

pub(crate) mod address;
pub(crate) mod amount;
pub(crate) mod bounded;
pub(crate) mod dialect;
pub(crate) mod document;
pub(crate) mod errors;
pub mod expression;
pub(crate) mod field;
pub(crate) mod foreign;
pub(crate) mod frequency;
pub(crate) mod include;
pub(crate) mod key;
pub mod networks;
pub(crate) mod overrides;
pub(crate) mod pattern;
pub(crate) mod reference;
pub(crate) mod report;
pub(crate) mod similar;
pub(crate) mod source;
pub(crate) mod table;
pub(crate) mod variables;

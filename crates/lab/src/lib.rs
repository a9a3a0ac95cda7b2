//! The lab: the experiments of five papers, repeated on the product, with the published figure
//! beside ours and a verdict on each claim.
//!
//! A paper ([`paper::Paper`]) is a list of its figures and tables, and of experiments that repeat them. Texts and
//! claims of a paper are in a file (`papers/NAME.toml`); [`papers`] has the functions of the experiments. An experiment
//! plays in virtual time (`simulate`) and, where it can, with real programs on this machine (`real`). It measures
//! values; the rules that judge them stand beside the claims ([`claim::Claim`]) before anything is run. [`record`]
//! keeps the results, and [`page`] shows them.

#![forbid(unsafe_code)]

pub mod claim;
mod csv;
pub mod findings;
pub mod machine;
pub mod page;
pub mod paper;
mod paper_file;
pub mod papers;
pub mod product;
mod programs;
pub mod record;
pub mod regret;
pub mod run;
mod search_path;
pub mod worlds;

pub use programs::end_on_signal;

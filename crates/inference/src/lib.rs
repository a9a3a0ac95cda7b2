//! Decisions of the strategy `inference`, which balances engines that serve language models.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod scanner;

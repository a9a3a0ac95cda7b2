//! What `make demo` shows: the same load through the default strategy and through round
//! robin, side by side, while one back-end turns slow.

pub mod backend;
pub mod load;

//! Loads that are read from kernels: in this one, and in an emulated machine.

mod balance;
mod detach;
mod explain;
mod flood;
mod forward;
mod trace;
mod user;
mod vm;
mod xdp;

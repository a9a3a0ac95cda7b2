//! Evenkeel demo.

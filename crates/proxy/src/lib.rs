//! Evenkeel proxy.

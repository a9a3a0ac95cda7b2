//! Evenkeel admin.

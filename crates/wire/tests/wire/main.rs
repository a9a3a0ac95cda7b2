//! The reporting protocol, against loss, replay and vectors.

mod reporting;
mod vectors;

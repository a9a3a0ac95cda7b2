//! Reads the load of back-ends from their kernels, at an interval.

//! Othman, O'Ryan and Schmidt, Strategies for CORBA Middleware-Based Load Balancing (IEEE Distributed Systems Online 2(3), 2001).

use crate::paper::Paper;

/// The paper.
pub static PAPER: Paper = Paper {
    name: "strategies",
    title: "Strategies for CORBA load balancing",
    cite: "Othman, O'Ryan and Schmidt, *Strategies for CORBA Middleware-Based Load Balancing* (IEEE Distributed Systems Online 2(3), 2001)",
    differs: "",
    rows: &[],
    experiments: &[],
};

//! Balasubramanian, Schmidt, Dowdy and Othman, Evaluating the Performance of Middleware Load Balancing Strategies (EDOC 2004).

use crate::paper::Paper;

/// The paper.
pub static PAPER: Paper = Paper {
    name: "cygnus",
    title: "An adaptive load balancing service for CORBA",
    cite: "Balasubramanian, Schmidt, Dowdy and Othman, *Evaluating the Performance of Middleware Load Balancing Strategies* (EDOC 2004)",
    differs: "",
    rows: &[],
    experiments: &[],
};

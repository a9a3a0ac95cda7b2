//! Al-qdah and Bin Abu Yan, A Java TCP Server Load Balancer: Analysis and Comparison of its Load Balancing Algorithms.

use crate::paper::Paper;

/// The paper.
pub static PAPER: Paper = Paper {
    name: "java-slb",
    title: "A TCP server load balancer and its algorithms",
    cite: "Al-qdah and Bin Abu Yan, *A Java TCP Server Load Balancer: Analysis and Comparison of its Load Balancing Algorithms*",
    differs: "",
    rows: &[],
    experiments: &[],
};

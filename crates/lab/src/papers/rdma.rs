//! Vaidyanathan, Jin, Narravula and Panda, Accurate Load Monitoring for Cluster-based Web Data-Centers over RDMA-enabled Networks (Ohio State University, OSU-CISRC-7/05-TR49, 2005).

use crate::paper::Paper;

/// The paper.
pub static PAPER: Paper = Paper {
    name: "rdma",
    title: "Load monitoring by one-sided reads",
    cite: "Vaidyanathan, Jin, Narravula and Panda, *Accurate Load Monitoring for Cluster-based Web Data-Centers over RDMA-enabled Networks* (Ohio State University, OSU-CISRC-7/05-TR49, 2005)",
    differs: "",
    rows: &[],
    experiments: &[],
};

//! Mohamed-Salem, Chen, Bochmann and Wong, An Experimental Prototype for Scalable Server Selection (IPCCC 2003).

use crate::paper::Paper;

/// The paper.
pub static PAPER: Paper = Paper {
    name: "qos-broker",
    title: "A broker that selects web servers",
    cite: "Mohamed-Salem, Chen, Bochmann and Wong, *An Experimental Prototype for Scalable Server Selection* (IPCCC 2003)",
    differs: "",
    rows: &[],
    experiments: &[],
};

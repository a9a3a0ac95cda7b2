//! Al-qdah and Bin Abu Yan, A Java TCP Server Load Balancer: Analysis and Comparison of its Load Balancing Algorithms.

mod clients;
mod measured;
mod real;
mod simulated;
mod site;

use crate::paper::{Play, Real};

/// Functions of the experiments; texts and claims are in `papers/java-slb.toml`.
pub(super) const PLAYS: &[Play] = &[
    Play {
        experiment: "slb-http",
        simulate: Some(simulated::simulate_http),
        real: None,
    },
    Play {
        experiment: "slb-ftp",
        simulate: Some(simulated::simulate_ftp),
        real: None,
    },
    Play {
        experiment: "slb-machines",
        simulate: None,
        real: Some(Real {
            needs: real::NEEDS,
            run: real::run,
        }),
    },
];

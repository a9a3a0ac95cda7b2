//! Vaidyanathan, Jin, Narravula and Panda, Accurate Load Monitoring for Cluster-based Web Data-Centers over RDMA-enabled Networks (Ohio State University, OSU-CISRC-7/05-TR49, 2005).

mod accuracy;
mod balance;
mod machines;
mod order;
mod real;
mod world;

use crate::paper::{By, Paper, Row};

/// The paper.
pub static PAPER: Paper = Paper {
    name: "rdma",
    title: "Load monitoring by one-sided reads",
    cite: "Vaidyanathan, Jin, Narravula and Panda, *Accurate Load Monitoring for Cluster-based Web Data-Centers over RDMA-enabled Networks* (Ohio State University, OSU-CISRC-7/05-TR49, 2005)",
    differs: DIFFERS,
    rows: &[
        Row {
            what: "figure 4",
            shows: "accuracy of the CPU load that ULM and KLM report",
            by: By::Experiment("rdma-accuracy"),
        },
        Row {
            what: "figure 5 (a)",
            shows: "throughput of five schemes against the Zipf exponent",
            by: By::Experiment("rdma-zipf"),
        },
        Row {
            what: "figure 5 (b)",
            shows: "improvement over random of ULM, pKLM and KLM",
            by: By::Experiment("rdma-zipf"),
        },
        Row {
            what: "figure 6",
            shows: "throughput against the number of loaded back-ends",
            by: By::Experiment("rdma-loaded"),
        },
        Row {
            what: "figure 6, with more or fewer clients",
            shows: "when the order of KLM and pKLM turns",
            by: By::Experiment("rdma-order"),
        },
        Row {
            what: "figures 4 and 6, on whole machines",
            shows: "accuracy and throughput with pending interrupts and over RDMA",
            by: By::Experiment("rdma-machines"),
        },
        Row {
            what: "figure 7",
            shows: "improvement per web site of a shared data centre",
            by: By::Experiment("rdma-shared"),
        },
        Row {
            what: "figure 8",
            shows: "variance of load between back-ends over time",
            by: By::Experiment("rdma-variance"),
        },
        Row {
            what: "figure 9",
            shows: "throughput against the polling interval",
            by: By::Experiment("rdma-interval"),
        },
    ],
    experiments: &[
        accuracy::EXPERIMENT,
        balance::ZIPF,
        balance::LOADED,
        order::EXPERIMENT,
        machines::EXPERIMENT,
        balance::SHARED,
        balance::VARIANCE,
        balance::INTERVAL_OF_POLLING,
    ],
};

const DIFFERS: &str = "\
As in the paper: 8 back-ends with two CPUs each; 16 front-ends, each of which reads the loads for itself and knows nothing of \
the others (and one front-end, for comparison); requests of Zipf popularity in a closed loop; loads read every 50 ms, and ULM's \
page written every 50 ms; the k least loaded back-ends share the requests (k = 2).

Not as in the paper:

- **Requests are CPU time**, not Apache, PHP and MySQL, of which the paper does not tell the load. A document is one of 2,000; it \
costs 1 ms of a CPU if it is among the 200 that the back-end was asked for last, of all sites, and else 8 ms on average, always the same for the \
same document. There are 32 clients, two for each front-end, which is two requests for each CPU; the paper does not say how many it has.
- **Front-ends add what they have sent themselves** to a reading until the next one, as the product does. Without that, \
all would go to the same k back-ends between two readings.
- **The scheduler shares CPUs fairly**, as today's does: a process that mostly sleeps gets a CPU almost at once (0.5 ms later for each task per CPU \
above the number of CPUs). *ULM, scheduler of 2003* waits 15 ms for each, as on Linux 2.4, which the paper has.
- **KLM is the product's composite load**: CPU utilisation or what the tasks of the moment count (1 and half the logarithm of their number per CPU), whichever is more, and pending interrupts. *KLM of the paper* is CPU \
utilisation and pending interrupts. pKLM is CPU utilisation, as in the paper.
- **Pending interrupts** come from the other work of figure 6: its network work takes a share of each CPU before all processes, and CPU \
utilisation does not show it. As many interrupts are pending at the moment of reading as in a queue with arrivals at random (M/M/1). \
Requests themselves have no network work.
- **Reading costs CPU time**: 5 us for each query that a back-end's kernel answers, and 300 us for each turn of ULM's process, as \
measured on this product. RDMA by hardware would cost nothing.
";

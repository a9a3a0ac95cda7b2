//! Experiments and tools: the load generator, advice from logs, the paper's experiment.

mod advice;
mod broker_experiment;
mod load;

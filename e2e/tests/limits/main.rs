//! Tests of limits, queues, refusals, and resources that run out.

mod costs;
mod exhaustion;
mod limits;
mod overload;

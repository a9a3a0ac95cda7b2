//! More than one balancer, a store of configurations, and other people's proxies.

mod alerts;
mod ejections;
mod faults;
mod steer;
mod store;
mod xds;

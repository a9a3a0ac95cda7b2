//! More than one balancer, a store of configurations, and other people's proxies; members from Kubernetes.

mod alerts;
mod conformance;
mod deployment;
mod ejections;
mod engine_work;
mod engines;
mod faults;
mod gateway;
mod gateway_deployments;
mod gateway_filters;
mod gateway_kernel;
mod gateway_members;
mod gateway_policies;
mod gateway_rolling;
mod gateway_tls;
mod gateway_zones;
mod inference_pools;
mod ingress;
mod kubernetes;
mod leases;
mod shared_watches;
mod steer;
mod store;
mod xds;

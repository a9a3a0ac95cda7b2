//! The CORBA service with clients and servers of Evenkeel's own, omniORB and JacORB.

mod conformance;
mod effectiveness;
mod faults;
mod jacorb;
mod omniorb;
mod relay;
mod service;
mod standby;

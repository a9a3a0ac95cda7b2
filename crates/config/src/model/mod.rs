//! What the files of the balancer, the agent and the client engine may say: one file a section,
//! each with its type, its keys and what it checks.

pub(crate) mod acme;
pub(crate) mod admin;
pub mod agent;
pub(crate) mod agent_check;
pub(crate) mod alert;
pub(crate) mod broker;
pub(crate) mod config;
pub(crate) mod corba;
pub(crate) mod dns;
pub(crate) mod ejection;
pub mod engine;
pub(crate) mod ftp;
pub(crate) mod group;
pub(crate) mod health;
pub mod kind;
pub(crate) mod limits;
pub(crate) mod listeners;
pub(crate) mod loads;
pub(crate) mod location;
pub(crate) mod maintenance;
pub(crate) mod member;
pub(crate) mod monitor;
pub mod negotiator;
pub(crate) mod orca;
pub(crate) mod prometheus;
pub(crate) mod protocol;
pub(crate) mod reach;
pub(crate) mod route;
pub(crate) mod rule;
pub(crate) mod sections;
pub mod sources;
pub(crate) mod sticky;
pub(crate) mod strategy;
pub(crate) mod timeouts;
pub(crate) mod tls;

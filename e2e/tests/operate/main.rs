//! Tests of an operator's tasks: what an operator does, sees and installs.

mod access_log;
mod config_api;
mod console;
mod ejections;
mod images;
mod live_api;
mod logins;
mod monitoring;
mod operate;
mod packages;
mod parts;
mod reload;
mod service;
mod telemetry;
mod top;
mod trials;
mod upgrade;
mod upgrade_prompts;

//! Reasons why rules cannot be served.

use std::io;

use evenkeel_core::address::Address;
use evenkeel_manager::snapshot::RuleSnapshot;
use evenkeel_manager::subsystem::PrepareError;
use evenkeel_net::listen;

use crate::listen::ListenKey;

/// Reason why a rule cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuleError {
    #[error("rule {rule:?}: {address} is the address of another rule, too")]
    Twice { rule: String, address: Address },
    #[error(
        "group {group:?}: source = \"client\" needs the right to use addresses of others (IP_TRANSPARENT): \
         {error}. Give the balancer CAP_NET_RAW (or CAP_NET_ADMIN) with AmbientCapabilities= in the systemd \
         unit or with setcap, beside the capabilities that are there, and restart the balancer; or start the \
         balancer as root"
    )]
    Source { group: String, error: io::Error },
    #[error(
        "rule {rule:?}: cannot listen on {address}: {}",
        listen::explain_error(error)
    )]
    Listen {
        rule: String,
        address: Address,
        error: io::Error,
    },
    #[error("rule {rule:?}: cannot listen on {address}: {error}")]
    Path {
        rule: String,
        address: Address,
        error: io::Error,
    },
}

pub(super) fn cannot_listen(
    snapshot: &RuleSnapshot,
    key: &ListenKey,
    error: io::Error,
) -> PrepareError {
    let rule = snapshot.rule.name.clone();
    let address = key.address.clone();
    let error = match address {
        Address::Ip(_) => RuleError::Listen {
            rule,
            address,
            error,
        },
        Address::Unix(_) => RuleError::Path {
            rule,
            address,
            error,
        },
    };
    PrepareError::rule(&snapshot.rule.name, error)
}

//! Limits of the service: connections, memory and times.

use evenkeel_config::Corba as Settings;
use evenkeel_giop::{client, server};
use evenkeel_limits::files::Shares;
use evenkeel_limits::memory;

use crate::relay;

/// Memory of a connection in bytes, without incomplete messages and output that is not sent.
const CONNECTION_BYTES: usize = 16 << 10;

/// The share of memory, in eighths: two are for connections, two for their output, one for
/// messages of clients that are not complete, and two for requests and replies that are relayed.
fn eighth_of_memory() -> usize {
    let share = memory::Shares::of_process().corba / 8;
    usize::try_from(share).unwrap_or(usize::MAX)
}

pub(super) fn server_settings(settings: &Settings) -> server::Settings {
    let usual = server::Settings::default();
    let memory = eighth_of_memory();
    let connections = settings
        .max_connections
        // Half of the share: the relay may need a connection to a member for each.
        .min(Shares::of_process().corba / 2)
        .min(memory.saturating_mul(2) / CONNECTION_BYTES)
        .max(1);
    server::Settings {
        max_message: settings.max_message,
        max_connections: connections,
        max_output: usual
            .max_output
            .min((memory.saturating_mul(2) / connections).max(CONNECTION_BYTES)),
        max_held: usual.max_held.min(memory / settings.workers.max(1)),
        idle_timeout: settings.idle_timeout,
        ..usual
    }
}

pub(super) fn client_settings(settings: &Settings) -> client::Settings {
    client::Settings {
        max_message: settings.max_message,
        ..client::Settings::default()
    }
}

pub(super) fn relay_settings(settings: &Settings) -> relay::Settings {
    let usual = relay::Settings::default();
    relay::Settings {
        max_message: settings.max_message,
        max_held: usual
            .max_held
            .min(eighth_of_memory() / settings.workers.max(1)),
        request_timeout: settings.relay_timeout,
        ..usual
    }
}

/// Returns true if clients may stay connected when one configuration replaces the other.
pub(super) fn is_served_alike(one: &Settings, other: &Settings) -> bool {
    one.listen == other.listen
        && server_settings(one) == server_settings(other)
        && relay_settings(one) == relay_settings(other)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Workers begin anew, with clients that connect again, where anything differs that they
    /// have been given.
    #[test]
    fn a_reload_reaches_the_workers_c4() {
        let before = Settings::default();
        assert!(is_served_alike(&before, &before.clone()));
        let relay = Settings {
            relay_timeout: Duration::from_millis(100),
            ..before.clone()
        };
        assert!(!is_served_alike(&before, &relay));
        let large = Settings {
            max_message: 1 << 24,
            ..before.clone()
        };
        assert!(!is_served_alike(&before, &large));
        let liveness = Settings {
            liveness: None,
            ..before.clone()
        };
        assert!(is_served_alike(&before, &liveness));
    }
}

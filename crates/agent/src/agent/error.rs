//! Reasons why an agent cannot start, or cannot take a configuration.

/// Reason why an agent cannot start, or cannot take a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration has errors.
    #[error("the configuration has errors\n{0}")]
    Config(#[from] evenkeel_config::Errors),
    /// The keys of a broker cannot be had.
    #[error("key_file of broker {broker}: {reason}")]
    Keys {
        /// Name of the broker.
        broker: String,
        /// Error in the keys.
        reason: String,
    },
    /// A location with its servers does not fit the protocol.
    #[error("location {location}: {reason}")]
    Registration {
        /// The location.
        location: String,
        /// Reason why the location does not fit.
        reason: String,
    },
    /// The owners of pages are unknown on this machine.
    #[error("{0}; correct the name, or create the user or group first")]
    Owners(String),
    /// An address cannot be listened on.
    #[error("{0}")]
    Listen(String),
}

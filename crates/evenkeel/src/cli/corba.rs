//! Arguments of `evenkeel ctl corba`.

use clap::Subcommand;

/// `evenkeel ctl corba`.
#[derive(Debug, Subcommand)]
pub(crate) enum CorbaCommand {
    /// Show everything (the default)
    List,
    /// Remove a registration of a dead process
    #[command(subcommand)]
    Remove(Registration),
}

/// Registrations that `evenkeel ctl corba remove` takes away.
#[derive(Debug, Subcommand)]
pub(crate) enum Registration {
    /// The load monitor of a location
    Monitor {
        /// Name of the location
        location: String,
    },
    /// The load alert of a location
    Alert {
        /// Name of the location
        location: String,
    },
    /// An object group with all its members
    Group {
        /// Name of the group
        group: String,
    },
    /// The member of an object group at a location
    Member {
        /// Name of the group
        group: String,
        /// Name of the location
        location: String,
    },
}

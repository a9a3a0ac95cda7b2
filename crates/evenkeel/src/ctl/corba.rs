//! `evenkeel ctl corba`: the CORBA service's knowledge, and commands that remove parts of it.

use clap::Subcommand;
use evenkeel_admin::client::ClientError;
use evenkeel_admin::ctl::Ctl;
use evenkeel_corba::status::{CorbaStatus, format_tables};

/// `evenkeel ctl corba`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
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

/// Runs a command; answers what to print.
pub(super) fn run(ctl: &Ctl, command: Option<&Command>) -> Result<String, ClientError> {
    let Some(Command::Remove(registration)) = command else {
        return ctl.show_path(&["v1", "corba"], |corba: &Option<CorbaStatus>| {
            corba.as_ref().map_or_else(
                || "there is no [corba] in the configuration\n".into(),
                format_tables,
            )
        });
    };
    let (path, what) = match registration {
        Registration::Monitor { location } => (
            vec!["monitors", location],
            format!("the load monitor at {location}"),
        ),
        Registration::Alert { location } => (
            vec!["alerts", location],
            format!("the load alert at {location}"),
        ),
        Registration::Group { group } => (vec!["groups", group], group.clone()),
        Registration::Member { group, location } => (
            vec!["groups", group, "members", location],
            format!("the member of {group} at {location}"),
        ),
    };
    let path = [&["v1", "corba"], &path[..], &["remove"]].concat();
    ctl.post_path(&path, || format!("{what} is removed"))
}

//! `evenkeel ctl corba`: the CORBA service's knowledge, and commands that remove parts of it.

use evenkeel_admin::client::ClientError;
use evenkeel_admin::ctl::Ctl;
use evenkeel_corba::status::{CorbaStatus, format_tables};

use crate::cli::corba::{CorbaCommand, Registration};

/// Runs a command; answers what to print.
pub(super) fn run(ctl: &Ctl, command: Option<&CorbaCommand>) -> Result<String, ClientError> {
    let Some(CorbaCommand::Remove(registration)) = command else {
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

//! Removals by an administrator: members and objects that nobody else removes any more, because the
//! process that would have done it has died.

use std::sync::Arc;

use evenkeel_giop::any::Any;

use super::load_manager::LoadManager;
use super::raise::Raise;
use super::state::State;
use crate::exceptions::UserException;
use crate::properties::GROUP_PREFIX;

/// Something that can be taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisteredItem {
    /// The load monitor of a location.
    Monitor(String),
    /// The load alert of a location. It is forced and suppressed no longer.
    Alert(String),
    /// A group, by its name in the admin API.
    Group(String),
    /// The member of a group at a location.
    Member {
        /// Name of the group in the admin API.
        group: String,
        /// Location of the member.
        location: String,
    },
}

/// Reason why something was not taken away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    /// There is no such thing.
    #[error("there is no {0}")]
    NotThere(String),
    /// The object is gone, and will be there again after a restart.
    #[error(
        "the item is removed, but the state file could not be written, so a restart brings the item \
        back: see the log"
    )]
    NotKept,
    /// Another reason, in words.
    #[error("{0}")]
    Failed(String),
}

impl LoadManager {
    /// Takes something away, as the application could. A factory that has made a member is
    /// told to delete it.
    ///
    /// # Errors
    ///
    /// It is not there; or it is gone, but that is not in the state file.
    pub async fn remove(self: &Arc<Self>, what: RegisteredItem) -> Result<(), RemoveError> {
        let this = Arc::clone(self);
        // In the service's own runtime, as all operations.
        let removed = self.runtime.spawn(async move {
            let removed = this.take_away(&what).await;
            removed.map_err(|raise| match raise {
                Raise::User(_) => RemoveError::NotThere(match &what {
                    RegisteredItem::Monitor(at) => format!("load monitor at {at:?}"),
                    RegisteredItem::Alert(at) => format!("load alert at {at:?}"),
                    RegisteredItem::Group(name) => format!("object group {name:?}"),
                    RegisteredItem::Member { group, location } => {
                        format!("member at {location:?} in an object group {group:?}")
                    }
                }),
                raise if raise.has_changed() => RemoveError::NotKept,
                raise => RemoveError::Failed(raise.to_string()),
            })
        });
        let ended = |_| RemoveError::Failed("the CORBA service has ended".into());
        removed.await.map_err(ended)?
    }

    async fn take_away(&self, what: &RegisteredItem) -> Result<(), Raise> {
        match what {
            RegisteredItem::Monitor(at) => self.remove_monitor_at(at).await,
            RegisteredItem::Alert(at) => self.remove_alert_at(at).await,
            RegisteredItem::Group(name) => {
                let state = self.state();
                let group = state.group(id_of(&state, name)?)?;
                self.delete_object(&Any::new(&group.creation)).await
            }
            RegisteredItem::Member { group, location } => {
                let id = id_of(&self.state(), group)?;
                self.remove_member_at(id, location).await.map(|_| ())
            }
        }
    }
}

/// The id of the group that the admin API calls so.
fn id_of(state: &State, name: &str) -> Result<u64, Raise> {
    let unnamed = name
        .strip_prefix(GROUP_PREFIX)
        .and_then(|id| id.parse().ok());
    let mut groups = state.groups.iter();
    let found = groups.find(
        |(id, group)| match state.effective_settings(group).group_name {
            Some(given) => given == name,
            None => unnamed == Some(**id),
        },
    );
    let found = found.ok_or(UserException::ObjectGroupNotFound)?;
    Ok(*found.0)
}

//! Reports of sources about members and locations.

use std::sync::Arc;

use evenkeel_control::opinion::{PublishedChanges, Source, SourceReport};
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::MemberId;
use tracing::{debug, info, warn};

use super::live::find_member;
use super::{ManageError, Manager, find_entry};
use crate::state::State;

impl Manager {
    /// Takes in the report of `source` about a member, or withdraws it (`None`). `member` is as in
    /// [`Manager::set_admin_state`].
    ///
    /// The report counts until the source says something else, and is kept over reloads: a source that hears
    /// nothing of the member any more must withdraw it. Health is the AND of its sources, see
    /// [`evenkeel_control::opinion`].
    pub fn set_source_report(
        &self,
        group: &str,
        member: &str,
        source: Source,
        opinion: Option<&SourceReport>,
    ) -> Result<(), ManageError> {
        let mut owned = self.lock();
        let (member, _) = find_member(&owned.state, group, member)?;
        let endpoints = find_entry(&owned.state, group)?.endpoints.iter();
        let meant = endpoints.filter(|e| *e.member.name == *member || *e.in_file == *member);
        let meant: Vec<MemberId> = meant.map(|endpoint| endpoint.member.id).collect();
        for member in meant {
            self.take_in(&mut owned.state, member, source, opinion);
        }
        Ok(())
    }

    /// [`Manager::set_source_report`] of a member whose id is known: without looking for its
    /// name, so cheap enough for every report. A member that is gone is no error.
    pub fn set_opinion_of(&self, member: MemberId, source: Source, opinion: Option<&SourceReport>) {
        self.take_in(&mut self.lock().state, member, source, opinion);
    }

    /// Returns the report of `source` about a member.
    pub fn find_source_report(&self, member: MemberId, source: Source) -> Option<SourceReport> {
        let mut owned = self.lock();
        let (_, endpoint) = owned.state.endpoint_mut(member)?;
        endpoint.source_reports.find_report(source).cloned()
    }

    fn take_in(
        &self,
        state: &mut State,
        member: MemberId,
        source: Source,
        opinion: Option<&SourceReport>,
    ) {
        if !state.may_say(member, source) {
            return;
        }
        let now = self.clock.now();
        let Some((handle, endpoint)) = state.endpoint_mut(member) else {
            return;
        };
        let is_news = endpoint.source_reports.find_report(source) != opinion;
        endpoint
            .source_reports
            .set_report(source, opinion.cloned(), now);
        if !is_news {
            return;
        }
        let slot = &endpoint.member.slot;
        let published = endpoint.source_reports.publish(slot, endpoint.weight, now);
        if published.room {
            handle.queue.call_all();
        }
        let (group, member) = (handle.current.load(), &endpoint.member.name);
        let member_name = endpoint.member.given_name.as_deref();
        let (group, source) = (group.name(), source.name());
        let says = opinion.map(tracing::field::display);
        match published {
            PublishedChanges { reasons: false, .. } => {
                debug!(%group, %member, member_name, source, says, "a report source said something new about the member");
            }
            PublishedChanges { room: true, .. } => {
                info!(%group, %member, member_name, source, says, "member is no longer taken out by a report");
            }
            _ => {
                warn!(%group, %member, member_name, source, says, "member is taken out by a report")
            }
        }
    }

    /// Takes in a load report of a location: all of it, or nothing if a part is wrong.
    pub fn report_loads(&self, location: &str, loads: &[(LoadId, f64)]) -> Result<(), ManageError> {
        let mut values = Vec::with_capacity(loads.len());
        for &(id, value) in loads {
            values.push((id, LoadValue::new(value)?));
        }
        let at = self.find_location(location);
        let at = at.ok_or_else(|| ManageError::NoLocation(location.into()))?;
        Ok(at.report_all(&values, self.clock.now())?)
    }

    /// The location called `name`, if a member is there. A source that reports often keeps
    /// it, and asks again after [`Manager::subscribe_changes`]: it then reports to the location
    /// itself, without the manager's lock.
    pub fn find_location(&self, name: &str) -> Option<Arc<Location>> {
        self.lock().state.locations.get(name).cloned()
    }
}

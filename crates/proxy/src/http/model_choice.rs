//! Choice of a group by the name of the model in the body of a request.

use super::client::Client;
use super::prompt::{NamedModel, Prompt};
use super::request::Request;

impl Client {
    /// Notes the model of the request, and gives the request the group of its model: the first one with a member that works and without maintenance, or else
    /// the first one. The request keeps its group if the body does not tell the model for certain, or if no group is for
    /// the model.
    pub(super) fn choose_by_model(&self, request: &mut Request, prompt: &Prompt) {
        request.note_model(prompt);
        let routed = request.routed.clone();
        let Some(models) = &routed.route().models else {
            return;
        };
        request.is_for_engines = routed.is_for_engines();
        let counts = &self.session.service.metrics;
        let name = match prompt.named_model() {
            NamedModel::Name(name) => name,
            NamedModel::Missing => return counts.models_missing.add(1),
            NamedModel::Ambiguous => return counts.models_ambiguous.add(1),
            NamedModel::Unknown => return counts.models_unknown.add(1),
            NamedModel::Compressed => return counts.models_compressed.add(1),
            NamedModel::Unread => return counts.models_unread.add(1),
        };
        let places = models.find_places(name.as_bytes()).unwrap_or_default();
        let Some((first, _)) = places.split_first() else {
            return counts.models_other.add(1);
        };
        let client = self.session.peer.ip();
        let works = |place: &&u32| {
            let routed = routed.with_target(**place);
            routed.target().group.current.load().has_working_member()
                && !routed.response_policy().is_in_maintenance(client)
        };
        let chosen = places.iter().find(works).unwrap_or(first);
        match chosen == first {
            true => counts.models_matched.add(1),
            false => counts.models_fallback.add(1),
        }
        request.move_to_target(*chosen);
    }
}

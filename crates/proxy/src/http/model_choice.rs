//! Choice of a group by the name of the model in the body of a request, and aliases of models.

use evenkeel_limits::Shortage;
use evenkeel_manager::models::Models;

use super::alias_refusal::AliasRefusal;
use super::client::Client;
use super::failure::Failure;
use super::fallbacks::Fallbacks;
use super::prompt::{NamedModel, Prompt};
use super::request::Request;
use super::route::RequestRoute;
use crate::http1::content_edit::NotRewritten;

impl RequestRoute {
    /// Returns the place of the group for requests for the model `name`: the first group with a member that works and without
    /// maintenance, or else the first one. `None` if no group is for the model. True with the place if it is the first.
    pub(super) fn find_model_place(
        &self,
        models: &Models,
        name: &[u8],
        client: Option<std::net::IpAddr>,
    ) -> Option<(u32, bool)> {
        let places = models.find_places(name).unwrap_or_default();
        let first = places.first()?;
        let is_open = |place: &&u32| self.with_target(**place).is_open(client);
        let chosen = places.iter().find(is_open).unwrap_or(first);
        Some((*chosen, chosen == first))
    }
}

impl Client {
    /// Notes the model of the request, replaces an alias in the body, and gives the request the group of its model. The
    /// request keeps its group if the body does not tell the model for certain, or if no group is for the model. `is_late`
    /// says that the time for bodies was over before the name had come.
    pub(super) fn choose_by_model(
        &self,
        request: &mut Request,
        prompt: &mut Prompt,
        is_late: bool,
    ) -> Result<(), Failure> {
        request.note_model(prompt);
        let routed = request.routed.clone();
        let Some(models) = &routed.route().models else {
            return Ok(());
        };
        request.is_for_engines = routed.is_for_engines();
        let counts = &self.session.service.metrics;
        let named = prompt.named_model();
        if models.has_aliases()
            && let Some(failure) = find_refusal(request, prompt, &named, is_late)
        {
            return Err(failure);
        }
        let name = match named {
            NamedModel::Name(name) => name,
            NamedModel::Missing => {
                counts.models_missing.add(1);
                return Ok(());
            }
            NamedModel::Ambiguous => {
                counts.models_ambiguous.add(1);
                return Ok(());
            }
            NamedModel::Unknown => {
                counts.models_unknown.add(1);
                return Ok(());
            }
            NamedModel::Compressed => {
                counts.models_compressed.add(1);
                return Ok(());
            }
            NamedModel::Unread => {
                counts.models_unread.add(1);
                return Ok(());
            }
        };
        let mut name = name.as_bytes();
        if let Some(model) = models.find_alias(name) {
            let memory = &self.session.worker.memory;
            let written = request.write_model(prompt, model, memory);
            written.map_err(|error| match error {
                NotRewritten::Digest => Failure::Alias(AliasRefusal::Digest),
                NotRewritten::NotHere => Failure::Alias(AliasRefusal::Framing),
                NotRewritten::Exhausted => Failure::Exhausted(Shortage::Memory),
            })?;
            counts.aliases_rewritten.add(1);
            name = model.name.as_bytes();
        }
        let client = self.session.peer.ip();
        match routed.find_model_place(models, name, client) {
            None => counts.models_other.add(1),
            Some((place, is_first)) => {
                let places = models.find_places(name).unwrap_or_default();
                match places {
                    [first, ..] if !is_first => {
                        counts.models_fallback.add(1);
                        request.note_fallback(&routed.with_target(*first));
                    }
                    _ => counts.models_matched.add(1),
                }
                request.move_to_target(place);
                request.fallbacks = Fallbacks::after(places, place);
            }
        }
        Ok(())
    }
}

/// Finds out why the model of a request, which may be an alias, is not known for certain.
fn find_refusal(
    request: &Request,
    prompt: &Prompt,
    named: &NamedModel,
    is_late: bool,
) -> Option<Failure> {
    let refusal = match named {
        NamedModel::Ambiguous => AliasRefusal::Ambiguous,
        NamedModel::Compressed => AliasRefusal::Compressed,
        // A cut object, which no engine takes.
        NamedModel::Unread if request.up.is_read() => return None,
        NamedModel::Unread if request.awaits_continue => AliasRefusal::Expects,
        NamedModel::Unread if is_late => return Some(Failure::ClientTimedOut),
        NamedModel::Unread if request.up.body_here() < prompt.max_bytes() => {
            return Some(Failure::Exhausted(Shortage::Memory));
        }
        NamedModel::Unread => AliasRefusal::TooFar,
        NamedModel::Name(_) | NamedModel::Missing | NamedModel::Unknown => return None,
    };
    Some(Failure::Alias(refusal))
}

//! Questions for models: which models a request asks for.

use std::borrow::Cow;

use evenkeel_inference::scanner::MAX_MODEL;
use evenkeel_manager::config::routing::path::rest_after;

use super::route::{RequestRoute, join_prefix};
use crate::message::{self, Body};

/// Path at which engines list their models.
pub(super) const MODELS_PATH: &str = "/v1/models";

/// Models that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AskedModels {
    /// All models of all groups.
    All,
    /// The model of this name.
    One(Box<str>),
}

impl RequestRoute {
    /// Returns the models that `request` asks for, if it asks for models of several groups.
    #[inline]
    pub(super) fn asked_models(&self, request: &message::Request<'_>) -> Option<AskedModels> {
        let asks = self.chooses_by_model()
            && request.method == "GET"
            && matches!(request.body, Body::None | Body::Length(0))
            && !request.upgrade;
        match asks {
            true => self.find_asked_models(request.path()),
            false => None,
        }
    }

    /// Finds the models for which members are asked at `path`, as the route rewrites it.
    #[cold]
    fn find_asked_models(&self, path: &str) -> Option<AskedModels> {
        let (prefix, rest) = match &self.route().common_actions().rewrite {
            None => ("", path),
            Some((segments, prefix)) => {
                let rest = rest_after(path, *segments);
                (join_prefix(prefix, rest), rest)
            }
        };
        let name = match prefix.strip_prefix(MODELS_PATH) {
            Some(name) => Cow::from([name, rest].concat()),
            None => rest.strip_prefix(MODELS_PATH.strip_prefix(prefix)?)?.into(),
        };
        match name.strip_prefix('/') {
            None if name.is_empty() => Some(AskedModels::All),
            None | Some("") => None,
            Some(name) => decode_name(name).map(AskedModels::One),
        }
    }
}

/// Decodes the name of a model in a path; `None` if no model can have the name.
fn decode_name(text: &str) -> Option<Box<str>> {
    let (mut name, mut bytes) = (Vec::new(), text.bytes());
    while let Some(byte) = bytes.next() {
        name.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    let name = String::from_utf8(name).ok()?;
    let is_name = name.len() <= MAX_MODEL && !name.contains(char::is_control);
    is_name.then(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths_are_decoded() {
        let decode = |text: &str| decode_name(text).map(String::from);
        assert_eq!(decode("gpt-4o").as_deref(), Some("gpt-4o"));
        assert_eq!(decode("Qwen/Qwen2.5").as_deref(), Some("Qwen/Qwen2.5"));
        assert_eq!(
            decode("Qwen%2FQwen2.5%3a1").as_deref(),
            Some("Qwen/Qwen2.5:1")
        );
        assert_eq!(decode("%C3%A4").as_deref(), Some("ä"));
        let long = "m".repeat(MAX_MODEL + 1);
        for text in ["%", "%4", "%zz", "%+1", "%ff", "a%00", "a%0d%0a", &long] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}

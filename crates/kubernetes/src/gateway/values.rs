//! Parts that objects of several kinds have: names, references, and lists with a bound.

use std::fmt;

use serde::{Deserialize, Deserializer};

use crate::list::Bounded;

/// Group of the Gateway API.
pub(crate) const GROUP: &str = "gateway.networking.k8s.io";

/// Group of kinds that are in the experimental channel of the Gateway API alone.
pub(crate) const EXPERIMENTAL_GROUP: &str = "gateway.networking.x-k8s.io";

/// Group of the Gateway API's extension for inference.
pub(crate) const INFERENCE_GROUP: &str = "inference.networking.k8s.io";

/// Group of kinds of the balancer itself.
pub(crate) const OWN_GROUP: &str = "evenkeel.org";

/// Group of Ingresses.
pub(crate) const INGRESS_GROUP: &str = "networking.k8s.io";

/// Annotation of a Service whose members report their loads by ORCA.
pub(crate) const ORCA_ANNOTATION: &str = "evenkeel.org/orca";

/// Most elements of a list in an object, unless the API has fewer.
const MANY: usize = 1_024;

/// List of an object.
pub type Items<T> = Bounded<T, MANY>;

/// Namespace and name of an object. Objects without a namespace have an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl ObjectName {
    /// Makes a name of its two parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        ObjectName {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// Reads a value that may be `null`, which counts as absent.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// Reference to another object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Reference {
    /// Group of the API.
    pub group: Option<String>,
    /// Kind of the object.
    pub kind: Option<String>,
    /// Namespace of the object; that of the reference, if there is none.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
    /// Port of a service.
    pub port: Option<u16>,
}

impl Reference {
    /// Returns the name of the object for a reference in `namespace`.
    pub fn target(&self, namespace: &str) -> ObjectName {
        ObjectName::new(self.namespace.as_deref().unwrap_or(namespace), &self.name)
    }
}

/// Reference of a route to its parent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ParentRef {
    /// Group of the API; that of the Gateway API, if there is none.
    pub group: Option<String>,
    /// Kind of the parent; `Gateway`, if there is none.
    pub kind: Option<String>,
    /// Namespace of the parent; that of the route, if there is none.
    pub namespace: Option<String>,
    /// Name of the parent.
    pub name: String,
    /// Name of a listener; all listeners, if there is none.
    pub section_name: Option<String>,
    /// Port of listeners; all ports, if there is none.
    pub port: Option<u16>,
}

/// Reads a duration of the Gateway API (GEP-2257) in milliseconds.
///
/// # Errors
///
/// The text is no duration.
pub(crate) fn read_duration(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no duration; write one as \"1m30s\"");
    let (mut sum, mut rest) = (0_u64, text);
    if rest.is_empty() || rest.len() > 32 {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let end = rest
            .find(|byte: char| !byte.is_ascii_digit())
            .ok_or_else(wrong)?;
        let (digits, after) = rest.split_at(end);
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
        let unit = units
            .iter()
            .find_map(|(unit, millis)| Some((after.strip_prefix(unit)?, millis)));
        let (after, millis) = unit.ok_or_else(wrong)?;
        sum = sum.saturating_add(number.saturating_mul(*millis));
        rest = after;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(read_duration("1h30m5s10ms"), Ok(5_405_010));
        assert_eq!(read_duration("0s"), Ok(0));
        for wrong in ["", "1", "s", "1d", "-1s", "1.5s", "é", &"9".repeat(40)] {
            assert!(read_duration(wrong).is_err(), "{wrong}");
        }
    }
}

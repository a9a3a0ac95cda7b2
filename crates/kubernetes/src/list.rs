//! Lists of objects of Kubernetes and events of a watch, read from JSON with bounds.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Longest name of an object, of a port or a zone, and longest version, in bytes.
pub(crate) const MAX_NAME: usize = 253;

/// Most objects in a page.
const MAX_ITEMS: usize = 1_000;

/// List with at most `MOST` elements; more are an error before they take memory. `null` is an empty list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounded<T, const MOST: usize>(Vec<T>);

impl<T, const MOST: usize> Bounded<T, MOST> {
    /// Makes a list of the first elements, as many as there may be.
    pub fn from_vec(mut list: Vec<T>) -> Self {
        list.truncate(MOST);
        Bounded(list)
    }

    /// Returns the elements.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MOST: usize> std::ops::Deref for Bounded<T, MOST> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, const MOST: usize> Default for Bounded<T, MOST> {
    fn default() -> Self {
        Bounded(Vec::new())
    }
}

/// Visitor of a list with at most `most` elements, which keeps what `keep` makes of each.
pub(crate) struct BoundedVisitor<T, U> {
    pub(crate) most: usize,
    pub(crate) keep: fn(T) -> Option<U>,
}

impl<'de, T: Deserialize<'de>, U> Visitor<'de> for BoundedVisitor<T, U> {
    type Value = Vec<U>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} elements", self.most)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut kept = Vec::new();
        let mut count = 0;
        while let Some(element) = list.next_element()? {
            count += 1;
            if count > self.most {
                return Err(A::Error::invalid_length(count, &self));
            }
            kept.extend((self.keep)(element));
        }
        // Most lists have one element, and the first one takes room for four.
        kept.shrink_to_fit();
        Ok(kept)
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Bounded<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let visitor = BoundedVisitor {
            most: MOST,
            keep: Some,
        };
        from.deserialize_any(visitor).map(Bounded)
    }
}

/// An answer, an object or an event that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The text is not the expected JSON.
    #[error("the API server's answer cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A part of the text is longer than allowed.
    #[error("the API server's answer has {0}")]
    Bounds(&'static str),
}

/// Page of a list of objects.
#[derive(Debug)]
pub struct Page<T> {
    /// Objects with their names.
    pub objects: Vec<(String, T)>,
    /// Version of the list, from which a watch may start.
    pub version: String,
    /// Token of the next page; empty if this is the last page.
    pub next: String,
}

impl<T> Page<T> {
    /// Keeps what `keep` makes of the objects and their names.
    pub(crate) fn keep_objects<U>(self, mut keep: impl FnMut(&str, T) -> Option<U>) -> Page<U> {
        let objects = self.objects.into_iter();
        let objects = objects.filter_map(|(name, object)| {
            let object = keep(&name, object)?;
            Some((name, object))
        });
        Page {
            objects: objects.collect(),
            version: self.version,
            next: self.next,
        }
    }
}

/// Event of a watch.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// An object is new, or has changed: its name, the object and its version.
    Changed(String, T, String),
    /// An object is gone: its name and version.
    Deleted(String, String),
    /// Nothing has changed up to this version.
    Bookmark(String),
    /// The watch has failed.
    Failed(Status),
    /// An event of a kind that is not known.
    Other,
}

impl<T> Event<T> {
    /// Keeps what `keep` makes of a changed object and its name. Without an object to keep, the object counts as deleted:
    /// it may have been one to keep before.
    pub(crate) fn keep_object<U>(self, keep: impl FnOnce(&str, T) -> Option<U>) -> Event<U> {
        match self {
            Event::Changed(name, object, version) => match keep(&name, object) {
                Some(object) => Event::Changed(name, object, version),
                None => Event::Deleted(name, version),
            },
            Event::Deleted(name, version) => Event::Deleted(name, version),
            Event::Bookmark(version) => Event::Bookmark(version),
            Event::Failed(status) => Event::Failed(status),
            Event::Other => Event::Other,
        }
    }
}

/// Answer of the API server about a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Status code, as in HTTP.
    pub code: u16,
    /// Message for people.
    pub message: String,
    /// Reason, in one word.
    pub reason: String,
    /// Seconds after which the client may ask again.
    pub retry_after: Option<u32>,
}

/// Failure of a list or a watch.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Cause of the failure.
    pub message: String,
    /// Status code of the API server's answer; 0 without an answer.
    pub code: u16,
    /// Time for which the API server wants no question.
    pub retry_after: Option<Duration>,
}

impl From<ListError> for Fault {
    fn from(error: ListError) -> Self {
        Fault::new(error.to_string())
    }
}

impl Fault {
    /// A failure of which the API server says nothing more.
    pub fn new(message: impl Into<String>) -> Self {
        Fault {
            message: message.into(),
            code: 0,
            retry_after: None,
        }
    }
}

/// Store of the objects that a watcher reads.
pub trait Store {
    /// Object of the store.
    type Object: fmt::Debug;

    /// Reads a page of a list.
    ///
    /// # Errors
    ///
    /// The text is no such page, or beyond the bounds.
    fn parse_page(&self, body: &[u8]) -> Result<Page<Self::Object>, ListError>;

    /// Reads an event of a watch.
    ///
    /// # Errors
    ///
    /// The text is no event, or beyond the bounds.
    fn parse_event(&self, line: &[u8]) -> Result<Event<Self::Object>, ListError>;

    /// Checks the bounds of a list that may not be complete.
    ///
    /// # Errors
    ///
    /// There are too many objects.
    fn check(&self, objects: &BTreeMap<String, Self::Object>) -> Result<(), Fault>;

    /// Puts a complete list in place of everything that is known.
    fn replace(&mut self, objects: BTreeMap<String, Self::Object>);

    /// Puts an object in place of the object with its name. Returns true if that changes anything.
    ///
    /// # Errors
    ///
    /// There are too many objects.
    fn put(&mut self, name: String, object: Self::Object) -> Result<bool, Fault>;

    /// Removes an object. Returns true if the store had the object.
    fn remove(&mut self, name: &str) -> bool;

    /// Notes the version of the list or of the event that comes next.
    fn note_version(&mut self, version: &str) {
        let _ = version;
    }
}

/// Object as an event or a list has it: an object of the kind, the object of a bookmark, or a status.
pub(crate) trait Raw<'de>: Deserialize<'de> {
    /// Object that is kept.
    type Object;

    /// Returns the name, the object and its version.
    fn into_object(self) -> Result<(String, Self::Object, String), ListError>;

    /// Returns the version.
    fn into_version(self) -> Result<String, ListError>;

    /// Returns the status.
    fn into_status(self) -> Status;
}

#[derive(Deserialize)]
#[serde(bound = "R: Deserialize<'de>")]
struct RawList<R> {
    #[serde(default)]
    metadata: RawMetadata,
    #[serde(default = "Option::default")]
    items: Option<Bounded<R, MAX_ITEMS>>,
}

#[derive(Deserialize)]
struct RawEvent<R> {
    #[serde(rename = "type")]
    kind: String,
    object: R,
}

/// Metadata of an object or a list.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawMetadata {
    name: Option<String>,
    /// Namespace of an object; `None` where the path of the question has it.
    pub(crate) namespace: Option<String>,
    resource_version: Option<String>,
    r#continue: Option<String>,
}

/// Details of a status.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawDetails {
    retry_after_seconds: Option<u32>,
}

impl RawMetadata {
    /// Metadata of an object.
    pub(crate) fn new(name: Option<String>, resource_version: Option<String>) -> Self {
        RawMetadata {
            name,
            namespace: None,
            resource_version,
            r#continue: None,
        }
    }

    /// Returns the name and the version of an object.
    pub(crate) fn into_name(self) -> Result<(String, String), ListError> {
        let name = self.name.unwrap_or_default();
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(ListError::Bounds(
                "an object without a name of 1 to 253 bytes",
            ));
        }
        Ok((name, version_of(self.resource_version)?))
    }

    /// Returns the version.
    pub(crate) fn into_version(self) -> Result<String, ListError> {
        version_of(self.resource_version)
    }
}

impl Status {
    /// Makes a status of the fields of an answer. Texts are cut to 300 characters, without control characters.
    pub(crate) fn new(
        code: Option<u16>,
        message: Option<String>,
        reason: Option<String>,
        details: Option<RawDetails>,
    ) -> Self {
        let cut = |text: Option<String>| {
            let text = text.unwrap_or_default();
            let cut: String = text.chars().filter(|c| !c.is_control()).take(300).collect();
            cut
        };
        Status {
            code: code.unwrap_or(0),
            message: cut(message),
            reason: cut(reason),
            retry_after: details.and_then(|details| details.retry_after_seconds),
        }
    }
}

/// Returns a version that may be kept and put into a query.
fn version_of(version: Option<String>) -> Result<String, ListError> {
    let version = version.unwrap_or_default();
    let is_good = (1..=MAX_NAME).contains(&version.len())
        && version.bytes().all(|byte| byte.is_ascii_graphic());
    match is_good {
        true => Ok(version),
        false => Err(ListError::Bounds("no usable resourceVersion")),
    }
}

/// Reads a page of a list.
///
/// # Errors
///
/// The text is no such page, or beyond the bounds.
pub(crate) fn parse_page<'a, R: Raw<'a>>(text: &'a [u8]) -> Result<Page<R::Object>, ListError> {
    let list: RawList<R> = serde_json::from_slice(text)?;
    let next = list.metadata.r#continue.clone().unwrap_or_default();
    if next.len() > 8192 {
        return Err(ListError::Bounds(
            "a token of more than 8192 bytes for the next page",
        ));
    }
    let items = list.items.unwrap_or_default().into_vec().into_iter();
    let objects = items.map(|object| {
        let (name, object, _) = object.into_object()?;
        Ok((name, object))
    });
    Ok(Page {
        objects: objects.collect::<Result<_, ListError>>()?,
        version: list.metadata.into_version()?,
        next,
    })
}

/// Reads an event of a watch.
///
/// # Errors
///
/// The text is no event, or beyond the bounds.
pub(crate) fn parse_event<'a, R: Raw<'a>>(text: &'a [u8]) -> Result<Event<R::Object>, ListError> {
    let RawEvent { kind, object } = serde_json::from_slice::<RawEvent<R>>(text)?;
    Ok(match &*kind {
        "ADDED" | "MODIFIED" => {
            let (name, object, version) = object.into_object()?;
            Event::Changed(name, object, version)
        }
        "DELETED" => {
            let (name, _, version) = object.into_object()?;
            Event::Deleted(name, version)
        }
        "BOOKMARK" => Event::Bookmark(object.into_version()?),
        "ERROR" => Event::Failed(object.into_status()),
        _ => Event::Other,
    })
}

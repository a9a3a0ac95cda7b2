//! Stream of a client: what the client wants, what it has, and what it is to get. No I/O.
//!
//! There are two variants of the protocol. In the *state of the world* a request says all that is wanted of a
//! type. An answer about clusters or listeners has all of them; an answer about endpoints or routes has the
//! ones that have changed. In the *incremental* variant requests say what is wanted more or no more, and
//! answers what has changed or is gone. In both, a client accepts an answer by naming its nonce, and refuses
//! it by naming its nonce with a reason; what was refused is not sent again until it has changed.
//!
//! Of each type one answer at a time is under way: there is no other answer before the client has said a word
//! about it. So a slow client gets fewer and newer answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use crate::kind::{Audience, Kind};
use crate::proto::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Node,
    Resource, Status,
};
use crate::world::{EncodedResource, ResourceSet};

/// Stands for all resources of a type.
const ALL: &str = "*";

/// Longest text of a client that is kept, in characters.
const LONGEST_TEXT: usize = 1000;

/// Longest name of a client, in characters.
const LONGEST_NAME: usize = 200;

/// Longest name of a resource that a client may want, in bytes.
const LONGEST_RESOURCE: usize = 1024;

/// Memory for a name that is wanted, beside its bytes.
const NAME_BYTES: usize = 128;

/// A variant of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Variant {
    /// State of the world.
    StateOfTheWorld,
    /// Incremental variant.
    Incremental,
}

impl Variant {
    /// Returns the variant's name in the status.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Limits of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most names that a client may want of a type.
    pub subscriptions: usize,
    /// An answer with more bytes than this of resources is sent in parts, where the protocol allows it.
    pub response: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            subscriptions: 10_000,
            // Clients of gRPC take messages of 4 MiB at most.
            response: 1024 * 1024,
        }
    }
}

/// Reason why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamRefusal {
    /// A request cannot be read.
    #[error("the request is not a message of xDS")]
    Malformed,
    /// A resource is wanted that there cannot be.
    #[error("the name of a resource has more than {LONGEST_RESOURCE} bytes")]
    LongName,
    /// There is no memory for the names of all that is wanted.
    #[error("this client and others want more resources by name than there is memory for")]
    TooMuch,
    /// More is wanted than a client may want.
    #[error("the client wants more than {0} resources of a type: raise max_subscriptions in [xds]")]
    TooMany(usize),
}

/// Meaning of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestMeaning {
    /// The request wants something, or is about an answer before the last one.
    Nothing,
    /// The last answer of that type is accepted.
    Accepted(Kind),
    /// The last answer of that type is refused.
    Refused(Kind),
    /// The request is about a type that does not exist.
    Unknown,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The type that it is about.
    pub kind: Kind,
    /// Answer, encoded.
    pub bytes: Bytes,
}

/// An answer that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nack {
    /// Version of the answer.
    pub version: String,
    /// Reason of the refusal, as the client says.
    pub reason: String,
}

/// An answer of which the client has said nothing yet.
#[derive(Clone, Debug)]
struct Pending {
    nonce: String,
    version: String,
}

/// State of a client's subscription to a type of resources.
#[derive(Debug, Default)]
pub struct Subscription {
    /// True if all resources are wanted.
    wildcard: bool,
    /// True if a name was ever wanted: without names nothing is wanted then, and not all resources.
    has_named: bool,
    /// Names of the resources that are wanted by name.
    names: BTreeSet<Arc<str>>,
    /// Resources that the client has, with their versions.
    has: HashMap<Arc<str>, u64>,
    /// Names of the resources that the client is to get whether it has them or not.
    owed: BTreeSet<Arc<str>>,
    /// True if all wanted resources have to be looked at, and not only the changed resources.
    look_at_all: bool,
    /// True if there is to be an answer, even an empty one.
    answer: bool,
    /// Changes up to this one have been looked at.
    seen: u64,
    pending: Option<Pending>,
    accepted: Option<String>,
    refused: Option<Nack>,
    pushes: u64,
    nacks: u64,
    /// Bytes for what the client has named.
    held: usize,
}

/// Returns the memory for a name, in bytes.
fn bytes_of(name: &str) -> usize {
    NAME_BYTES + name.len()
}

/// Checks names of resources that are to be kept.
fn check_names<'n>(names: impl IntoIterator<Item = &'n String>) -> Result<(), StreamRefusal> {
    let is_long = |name: &String| name.len() > LONGEST_RESOURCE;
    match names.into_iter().any(is_long) {
        true => Err(StreamRefusal::LongName),
        false => Ok(()),
    }
}

impl Subscription {
    /// True if all resources are wanted.
    pub fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    /// Returns the number of resources that are wanted by name.
    pub fn name_count(&self) -> usize {
        self.names.len()
    }

    /// Returns the version of the last answer that was accepted.
    pub fn accepted_version(&self) -> Option<&str> {
        self.accepted.as_deref()
    }

    /// Returns the version of the answer that is under way.
    pub fn pending_version(&self) -> Option<&str> {
        self.pending.as_ref().map(|pending| &*pending.version)
    }

    /// Returns the last answer that was refused.
    pub fn last_nack(&self) -> Option<&Nack> {
        self.refused.as_ref()
    }

    /// Returns the number of answers.
    pub fn push_count(&self) -> u64 {
        self.pushes
    }

    /// Returns the number of answers that were refused.
    pub fn nack_count(&self) -> u64 {
        self.nacks
    }

    fn wants_name(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// Takes in what the client says of the answer with this nonce; `None` if it is not the last one.
    fn take_verdict(&mut self, nonce: &str, error: Option<Status>) -> Option<bool> {
        let pending = self.pending.take_if(|pending| pending.nonce == nonce)?;
        let Some(error) = error else {
            self.accepted = Some(pending.version);
            return Some(true);
        };
        self.nacks += 1;
        self.refused = Some(Nack {
            version: pending.version,
            reason: shorten_text(&error.message, LONGEST_TEXT),
        });
        Some(false)
    }

    /// Adds a name that is wanted; returns true if that is news.
    fn add_name(&mut self, name: &str) -> bool {
        if name == ALL {
            self.has_named = true;
            return !std::mem::replace(&mut self.wildcard, true);
        }
        self.has_named = true;
        if self.names.contains(name) {
            return false;
        }
        self.held += bytes_of(name);
        self.names.insert(name.into())
    }

    /// Marks a wanted resource as to be sent, whether the client has it or not.
    fn mark_due(&mut self, name: &str) {
        if let Some(name) = self.names.get(name) {
            self.owed.insert(Arc::clone(name));
        }
    }

    /// Removes a name that is not wanted any more.
    fn remove_name(&mut self, name: &str) {
        if name == ALL {
            self.wildcard = false;
            let names = &self.names;
            self.has.retain(|name, _| names.contains(name));
            self.owed.retain(|name| names.contains(name));
            return;
        }
        if self.names.remove(name) {
            self.held = self.held.saturating_sub(bytes_of(name));
        }
        if !self.wildcard {
            self.has.remove(name);
            self.owed.remove(name);
        }
    }
}

/// Identity of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// Name of the client, as it says.
    pub node: String,
    /// Service that the client is part of, as it says.
    pub service: String,
    /// Program of the client and its version, as it says.
    pub program: String,
    /// Audience of the client, which says in which form the client gets resources.
    pub audience: Audience,
}

impl Identity {
    /// Returns the identity that a client states of itself.
    pub fn of_node(node: &Node) -> Self {
        let program = format!("{} {}", node.user_agent_name, node.user_agent_version);
        Identity {
            node: shorten_text(&node.id, LONGEST_NAME),
            service: shorten_text(&node.cluster, LONGEST_NAME),
            program: shorten_text(program.trim(), LONGEST_NAME),
            audience: Audience::of_node(node),
        }
    }
}

/// Returns at most `longest` characters of a text, on one line.
pub(crate) fn shorten_text(text: &str, longest: usize) -> String {
    let clean = text.chars().map(|char| match char.is_control() {
        true => ' ',
        false => char,
    });
    clean.take(longest).collect()
}

/// Stream of a client.
#[derive(Debug)]
pub struct Stream {
    variant: Variant,
    limits: Limits,
    /// Prefix of versions: they must not be versions of another process.
    epoch: Arc<str>,
    identity: Option<Identity>,
    subscriptions: BTreeMap<Kind, Subscription>,
    /// Number of answers.
    answers: u64,
}

impl Stream {
    /// Makes a stream on which nothing was said yet. `epoch` is another text in each process.
    pub fn new(variant: Variant, epoch: Arc<str>, limits: Limits) -> Self {
        Stream {
            variant,
            limits,
            epoch,
            identity: None,
            subscriptions: BTreeMap::new(),
            answers: 0,
        }
    }

    /// Returns the variant of the protocol.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Returns the identity of the client, once the client has stated it.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Returns the subscriptions, one for each type that the client wants.
    pub fn subscriptions(&self) -> impl Iterator<Item = (Kind, &Subscription)> {
        self.subscriptions.iter().map(|(kind, of)| (*kind, of))
    }

    /// Returns the subscription to a type.
    pub fn subscription(&self, kind: Kind) -> Option<&Subscription> {
        self.subscriptions.get(&kind)
    }

    /// Returns the bytes for all that the client has named.
    pub fn held_bytes(&self) -> usize {
        self.subscriptions.values().map(|of| of.held).sum()
    }

    /// Takes a request in.
    ///
    /// # Errors
    ///
    /// Why the stream has to end.
    pub fn take_request(&mut self, bytes: &[u8]) -> Result<RequestMeaning, StreamRefusal> {
        match self.variant {
            Variant::StateOfTheWorld => {
                let request =
                    DiscoveryRequest::decode(bytes).map_err(|_| StreamRefusal::Malformed)?;
                self.state_of_the_world(request)
            }
            Variant::Incremental => {
                let request = DeltaDiscoveryRequest::decode(bytes);
                self.take_incremental(request.map_err(|_| StreamRefusal::Malformed)?)
            }
        }
    }

    /// Takes who asks from the first request.
    fn take_identity(&mut self, node: Option<&Node>) {
        if self.identity.is_none() {
            let nobody = Node::default();
            self.identity = Some(Identity::of_node(node.unwrap_or(&nobody)));
        }
    }

    fn state_of_the_world(
        &mut self,
        request: DiscoveryRequest,
    ) -> Result<RequestMeaning, StreamRefusal> {
        self.take_identity(request.node.as_ref());
        let Some(kind) = Kind::of_url(&request.type_url) else {
            return Ok(RequestMeaning::Unknown);
        };
        let most = self.limits.subscriptions;
        if request.resource_names.len() > most {
            return Err(StreamRefusal::TooMany(most));
        }
        check_names(&request.resource_names)?;
        let of = self.subscriptions.entry(kind).or_default();
        // What is wanted counts even if the client has not seen the last answer yet: it may have dropped
        // something that it wants again by the time it has.
        let told = match of.take_verdict(&request.response_nonce, request.error_detail) {
            Some(true) => RequestMeaning::Accepted(kind),
            Some(false) => RequestMeaning::Refused(kind),
            None => RequestMeaning::Nothing,
        };
        let wanted: BTreeSet<&str> = request.resource_names.iter().map(String::as_str).collect();
        // Without names it is all of them, for types of which there may be all, and for clients
        // that have never named one.
        let all = match wanted.is_empty() {
            true => kind.is_whole() && !of.has_named,
            false => wanted.contains(ALL),
        };
        let gone = of.names.iter().filter(|name| !wanted.contains(&***name));
        let gone: Vec<Arc<str>> = gone.cloned().collect();
        if all && !of.wildcard {
            of.wildcard = true;
            (of.look_at_all, of.answer) = (true, true);
        }
        for name in wanted {
            let is_new = of.add_name(name);
            if is_new && name != ALL {
                of.mark_due(name);
                of.answer |= kind.is_whole();
            }
        }
        for name in gone {
            of.remove_name(&name);
        }
        if of.wildcard && !all {
            of.remove_name(ALL);
        }
        Ok(told)
    }

    fn take_incremental(
        &mut self,
        request: DeltaDiscoveryRequest,
    ) -> Result<RequestMeaning, StreamRefusal> {
        self.take_identity(request.node.as_ref());
        let Some(kind) = Kind::of_url(&request.type_url) else {
            return Ok(RequestMeaning::Unknown);
        };
        let most = self.limits.subscriptions;
        let is_first = !self.subscriptions.contains_key(&kind);
        let of = self.subscriptions.entry(kind).or_default();
        let more = request.resource_names_subscribe.len();
        let known = request.initial_resource_versions.len();
        if more.saturating_add(of.names.len()) > most || known > most {
            return Err(StreamRefusal::TooMany(most));
        }
        let before = request.initial_resource_versions.iter();
        let before = before.map(|pair| &pair.key);
        check_names(before.chain(&request.resource_names_subscribe))?;
        let told = match of.take_verdict(&request.response_nonce, request.error_detail) {
            Some(true) => RequestMeaning::Accepted(kind),
            Some(false) => RequestMeaning::Refused(kind),
            None => RequestMeaning::Nothing,
        };
        if is_first {
            // What it has from a stream before. A version that is none of ours is no version.
            let known = request.initial_resource_versions.into_iter();
            let known = known.map(|pair| {
                of.held += bytes_of(&pair.key);
                let version = u64::from_str_radix(&pair.value, 16).unwrap_or(0);
                (Arc::from(pair.key), version)
            });
            of.has.extend(known);
            if more == 0 && kind.is_whole() {
                of.wildcard = true;
            }
            (of.look_at_all, of.answer) = (true, true);
        }
        for name in &request.resource_names_subscribe {
            let is_new = of.add_name(name);
            if name == ALL {
                of.look_at_all |= is_new;
                of.answer |= is_new;
            } else if !is_first || !of.has.contains_key(&**name) {
                // Even what it had, as it may have forgotten that since.
                of.mark_due(name);
            }
        }
        for name in &request.resource_names_unsubscribe {
            of.remove_name(name);
        }
        Ok(told)
    }

    /// Returns the next answer that there is to be now, if there is one.
    pub fn next(&mut self, world: &ResourceSet) -> Option<Response> {
        let audience = &self.identity.as_ref()?.audience;
        for &kind in Kind::ALL {
            let Some(of) = self.subscriptions.get_mut(&kind) else {
                continue;
            };
            if of.pending.is_some() {
                continue;
            }
            let found = match (self.variant, kind.is_whole()) {
                (Variant::StateOfTheWorld, true) => of.whole_answer(kind, world, audience),
                _ => of.partial_answer(kind, world, audience, self.variant, self.limits.response),
            };
            let Some(found) = found else {
                continue;
            };
            self.answers += 1;
            let nonce = self.answers.to_string();
            let version = format!("{}-{}", self.epoch, world.version());
            of.pushes += 1;
            of.pending = Some(Pending {
                nonce: nonce.clone(),
                version: version.clone(),
            });
            let bytes = match self.variant {
                Variant::StateOfTheWorld => {
                    let resources = found.resources.iter();
                    let answer = DiscoveryResponse {
                        version_info: version,
                        resources: resources.map(|(_, form)| form.any.clone()).collect(),
                        type_url: kind.type_url().into(),
                        nonce,
                    };
                    answer.encode_to_vec()
                }
                Variant::Incremental => {
                    let resources = found.resources.iter().map(|(name, form)| Resource {
                        version: format!("{:016x}", form.version),
                        resource: form.any.clone(),
                        name: name.to_string(),
                    });
                    let answer = DeltaDiscoveryResponse {
                        system_version_info: version,
                        resources: resources.collect(),
                        type_url: kind.type_url().into(),
                        nonce,
                        removed_resources: found.removed,
                    };
                    answer.encode_to_vec()
                }
            };
            if let Some(dependent) = kind.dependent_kind()
                && let Some(of) = self.subscriptions.get_mut(&dependent)
            {
                let changed = found.changed.into_iter();
                let wanted = changed.filter(|name| of.wildcard || of.names.contains(name));
                let wanted = wanted.filter(|name| world.has_resource(dependent, name));
                of.owed.extend(wanted);
            }
            return Some(Response {
                kind,
                bytes: bytes.into(),
            });
        }
        None
    }
}

/// Content of an answer.
struct Found {
    resources: Vec<(Arc<str>, EncodedResource)>,
    /// Names of the resources that are gone, or not there.
    removed: Vec<String>,
    /// Names of the resources that the client has had otherwise, or not at all.
    changed: Vec<Arc<str>>,
}

impl Subscription {
    /// Returns an answer with all that is wanted, if there is to be one.
    fn whole_answer(
        &mut self,
        kind: Kind,
        world: &ResourceSet,
        audience: &Audience,
    ) -> Option<Found> {
        let mut changed = world.changed_since(kind, self.seen);
        let is_due = self.look_at_all
            || self.answer
            || !self.owed.is_empty()
            || world.removed_since(kind, self.seen)
            || changed.any(|name| self.wants_name(name));
        self.seen = world.version();
        if !is_due {
            return None;
        }
        let resources = self.all_wanted(kind, world);
        let resources = resources.into_iter().filter_map(|name| {
            let form = world.find_resource(kind, &name, audience)?;
            Some((name, form))
        });
        let resources: Vec<(Arc<str>, EncodedResource)> = resources.collect();
        let news = resources
            .iter()
            .filter(|(name, form)| self.has.get(name) != Some(&form.version));
        let news: Vec<Arc<str>> = news.map(|(name, _)| Arc::clone(name)).collect();
        // A change may have changed nothing for this client.
        if news.is_empty() && resources.len() == self.has.len() && !self.answer {
            self.clear_due();
            return None;
        }
        let has = resources
            .iter()
            .map(|(name, form)| (Arc::clone(name), form.version));
        self.has = has.collect();
        self.clear_due();
        Some(Found {
            resources,
            removed: Vec::new(),
            changed: news,
        })
    }

    /// Returns all names that are wanted, in their order.
    fn all_wanted(&self, kind: Kind, world: &ResourceSet) -> Vec<Arc<str>> {
        match self.wildcard {
            true => world.resource_names(kind).cloned().collect(),
            false => self.names.iter().cloned().collect(),
        }
    }

    /// Notes that nothing is due any more.
    fn clear_due(&mut self) {
        (self.look_at_all, self.answer) = (false, false);
        self.owed.clear();
    }

    /// Returns an answer with what has changed, if there is to be one.
    fn partial_answer(
        &mut self,
        kind: Kind,
        world: &ResourceSet,
        audience: &Audience,
        variant: Variant,
        most_bytes: usize,
    ) -> Option<Found> {
        let is_removed = world.removed_since(kind, self.seen);
        let owed = std::mem::take(&mut self.owed);
        let mut names: BTreeSet<Arc<str>> = owed.clone();
        if self.look_at_all || is_removed {
            names.extend(self.all_wanted(kind, world));
            // And what it has that is not there any more.
            names.extend(self.has.keys().cloned());
        } else {
            let changed = world.changed_since(kind, self.seen);
            names.extend(changed.filter(|name| self.wants_name(name)).cloned());
        }
        let mut found = Found {
            resources: Vec::new(),
            removed: Vec::new(),
            changed: Vec::new(),
        };
        let mut bytes = 0;
        for name in names {
            let is_owed = owed.contains(&name);
            match world.find_resource(kind, &name, audience) {
                Some(form) => {
                    let is_news = self.has.get(&name) != Some(&form.version);
                    if !is_owed && !is_news || !self.wants_name(&name) {
                        continue;
                    }
                    if bytes > 0 && bytes + form.any.len() > most_bytes {
                        // The next answer has it.
                        self.owed.insert(name);
                        continue;
                    }
                    bytes += form.any.len();
                    self.has.insert(Arc::clone(&name), form.version);
                    if is_news {
                        found.changed.push(Arc::clone(&name));
                    }
                    found.resources.push((name, form));
                }
                None => {
                    let had = self.has.remove(&name).is_some();
                    if variant == Variant::Incremental && (had || is_owed) {
                        found.removed.push(name.to_string());
                    }
                }
            }
        }
        self.seen = world.version();
        self.look_at_all = false;
        let answer = std::mem::take(&mut self.answer);
        let is_empty = found.resources.is_empty() && found.removed.is_empty();
        (answer && variant == Variant::Incremental || !is_empty).then_some(found)
    }
}

#[cfg(test)]
mod tests;

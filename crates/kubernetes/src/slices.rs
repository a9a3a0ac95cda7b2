//! Store of the slices of a service, or of pods.

use std::collections::BTreeMap;

use crate::list::{self, Event, Fault, ListError, Page, Store};
use crate::pod::RawPod;
use crate::slice::{Slice, parse_event, parse_page};

/// Most slices of a service.
pub(crate) const MAX_SLICES: usize = 2_000;

/// Most pods that a selector chooses.
const MAX_PODS: usize = 20_000;

/// Most endpoints in all slices of a service, of both families and all ports together.
const MAX_SERVICE_ENDPOINTS: usize = 50_000;

/// Slices of a service, or pods, by their names.
#[derive(Debug, Default)]
pub struct Slices {
    slices: BTreeMap<String, Slice>,
    are_pods: bool,
}

impl Slices {
    /// An empty store of pods, each of which is a slice.
    pub fn of_pods() -> Self {
        Slices {
            are_pods: true,
            ..Slices::default()
        }
    }

    /// Returns the slices.
    pub fn iter(&self) -> impl Iterator<Item = &Slice> {
        self.slices.values()
    }
}

impl Store for Slices {
    type Object = Slice;

    fn parse_page(&self, body: &[u8]) -> Result<Page<Slice>, ListError> {
        match self.are_pods {
            true => list::parse_page::<RawPod>(body),
            false => parse_page(body),
        }
    }

    fn parse_event(&self, line: &[u8]) -> Result<Event<Slice>, ListError> {
        match self.are_pods {
            true => list::parse_event::<RawPod>(line),
            false => parse_event(line),
        }
    }

    fn check(&self, slices: &BTreeMap<String, Slice>) -> Result<(), Fault> {
        let endpoints: usize = slices.values().map(|slice| slice.endpoints.len()).sum();
        let most = if self.are_pods { MAX_PODS } else { MAX_SLICES };
        if slices.len() <= most && endpoints <= MAX_SERVICE_ENDPOINTS {
            return Ok(());
        }
        Err(Fault::new(match self.are_pods {
            true => "the labels choose more than 20000 pods",
            false => "the service has more than 2000 slices or 50000 endpoints",
        }))
    }

    fn replace(&mut self, slices: BTreeMap<String, Slice>) {
        self.slices = slices;
    }

    fn put(&mut self, name: String, slice: Slice) -> Result<bool, Fault> {
        if self.slices.get(&name) == Some(&slice) {
            return Ok(false);
        }
        self.slices.insert(name, slice);
        self.check(&self.slices)?;
        Ok(true)
    }

    fn remove(&mut self, name: &str) -> bool {
        self.slices.remove(name).is_some()
    }
}

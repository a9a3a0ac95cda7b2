//! Answers of the balancer's own, and changes to responses, as they are in force: pages with what is in their files.

use std::net::IpAddr;
use std::path::Path;

use bytes::Bytes;
use evenkeel_net::http::answer::retry_after_seconds;

use crate::config::{ErrorPages, FieldChanges, FileName, Responses};
use crate::cors::CorsPolicy;
use crate::files::Files;

/// Answers of the balancer's own, and changes to responses, for requests that go one way: by a route to a group of a rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponsePolicy {
    config: Responses,
    /// Page of the maintenance.
    maintenance_page: Option<Page>,
    /// Pages by the status that they are for, in order.
    pages: Box<[(u16, Page)]>,
    cors: Option<Box<CorsPolicy>>,
}

/// A page of the administrator's.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// Media type of the body.
    pub media_type: Box<str>,
    /// Body of the page.
    pub body: Bytes,
}

impl Page {
    fn new(file: &FileName, media_type: &str, files: &Files) -> Option<Self> {
        let content = files.answers.get(&file.path)?;
        Some(Page {
            media_type: media_type.into(),
            body: Bytes::from_owner(std::sync::Arc::clone(content)),
        })
    }
}

/// Response to clients while the service is in maintenance.
#[derive(Clone, Copy, Debug)]
pub struct MaintenanceAnswer<'a> {
    /// Status of the response.
    pub status: u16,
    /// Seconds of `Retry-After`.
    pub retry_after: Option<u32>,
    /// The page, if there is one.
    pub page: Option<&'a Page>,
}

impl ResponsePolicy {
    /// The policy that `config` describes, with what is in `files`.
    pub fn new(config: Responses, files: &Files) -> Self {
        let maintenance = config.maintenance.as_ref();
        let maintenance_page = maintenance.and_then(|own| {
            let file = own.page.as_ref()?;
            Page::new(file, &own.content_type, files)
        });
        let pages = config.error_pages.0.iter();
        let pages = pages.filter_map(|(status, file)| {
            let media_type = ErrorPages::media_type(Path::new(&file.path));
            Some((*status, Page::new(file, media_type, files)?))
        });
        ResponsePolicy {
            maintenance_page,
            pages: pages.collect(),
            cors: CorsPolicy::new(config.cors.as_ref()).map(Box::new),
            config,
        }
    }

    /// State that the configuration says.
    pub(crate) fn config(&self) -> &Responses {
        &self.config
    }

    /// True if its pages are what `files` have.
    pub(crate) fn is_of(&self, files: &Files) -> bool {
        self.config.files().next().is_none()
            || *self == ResponsePolicy::new(self.config.clone(), files)
    }

    /// True if a client with this address is not served now, for maintenance.
    #[inline]
    pub fn is_in_maintenance(&self, client: Option<IpAddr>) -> bool {
        let maintenance = self.config.maintenance.as_ref();
        maintenance.is_some_and(|own| own.is_for(client))
    }

    /// Response to clients while the maintenance lasts.
    pub fn maintenance(&self) -> MaintenanceAnswer<'_> {
        let own = self.config.maintenance.as_ref();
        let seconds = |time| retry_after_seconds(time).get();
        MaintenanceAnswer {
            status: own.map_or(503, |own| own.status),
            retry_after: own.and_then(|own| own.retry_after).map(seconds),
            page: self.maintenance_page.as_ref(),
        }
    }

    /// The page that is for this status, if there is one.
    pub fn page(&self, status: u16) -> Option<&Page> {
        let at = self
            .pages
            .binary_search_by_key(&status, |(of, _)| *of)
            .ok()?;
        self.pages.get(at).map(|(_, page)| page)
    }

    /// Permissions for pages of other origins, if the balancer gives them.
    #[inline]
    pub fn cors(&self) -> Option<&CorsPolicy> {
        self.cors.as_deref()
    }

    /// Changes to the fields of responses, if there are any.
    #[inline]
    pub fn response_fields(&self) -> Option<&FieldChanges> {
        let changes = &self.config.response_fields;
        (!changes.is_empty()).then_some(changes)
    }
}

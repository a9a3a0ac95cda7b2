//! A request of HTTP that is under way: what its client knows of it, for all versions of HTTP.

use std::time::Instant;

use crate::plan::Plan;

/// A request of HTTP that is under way.
pub(crate) struct PendingRequest<'a> {
    /// Bytes that are ready, for the first origin over HTTP/1.1.
    pub ready: Option<&'a [u8]>,
    pub method: &'a str,
    pub has_body: bool,
    pub path: String,
    /// True if the client was sent to another host, which need not know the client's secrets.
    pub elsewhere: bool,
    /// Time when the first part of the request was sent.
    pub sent: Option<Instant>,
}

impl PendingRequest<'_> {
    /// The plan's fields that are for the host that is asked.
    pub(crate) fn allowed_headers<'p>(
        &self,
        plan: &'p Plan,
    ) -> impl Iterator<Item = &'p (String, String)> + use<'p> {
        let secrets: &[&str] = match self.elsewhere {
            true => &["authorization", "cookie", "host"],
            false => &[],
        };
        let is_secret =
            move |name: &str| secrets.iter().any(|known| name.eq_ignore_ascii_case(known));
        let fields = plan.headers.iter();
        fields.filter(move |(name, _)| !is_secret(name))
    }
}

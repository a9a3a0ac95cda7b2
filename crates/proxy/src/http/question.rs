//! Question to a group about a request.

use evenkeel_manager::auth;

use super::route::{RequestRoute, write_location};
use crate::http1::Hop;
use crate::http1::forward::write_question;
use crate::message;
use crate::session::Session;

/// Question to a group about a request.
pub(super) struct Question {
    pub(super) head: Vec<u8>,
    /// Hash of what the group's strategy wants to see of the request.
    pub(super) key: Option<u64>,
    /// Address to which the client is redirected if the answer has status 401.
    pub(super) login_page: Option<String>,
}

impl Question {
    pub(super) fn of_request(
        asked: &auth::Asked,
        routed: &RequestRoute,
        request: &message::Request<'_>,
        hop: &Hop,
        session: &Session,
    ) -> Self {
        let mut head = session.worker.buffers.take_head();
        write_question(request, hop, &asked.path, routed.own_cookies(), &mut head);
        let key = routed.to_ask(asked.target).and_then(|routed| {
            let group = routed.target().group.current.load();
            group.wants_key().and_then(|key| request.hash_part(key))
        });
        let page = asked.login_page.as_ref();
        let login_page = page.and_then(|page| write_location(page, request, request.path(), hop));
        Question {
            head,
            key,
            login_page,
        }
    }
}

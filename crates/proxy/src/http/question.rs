//! Question to a group about a request.

use evenkeel_manager::auth;

use super::route::RequestRoute;
use crate::http1::Hop;
use crate::http1::forward::write_question;
use crate::message;
use crate::session::Session;

/// Question to a group about a request.
pub(super) struct Question {
    pub(super) head: Vec<u8>,
    /// Hash of what the group's strategy wants to see of the request.
    pub(super) key: Option<u64>,
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
        Question { head, key }
    }
}

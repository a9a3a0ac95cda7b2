//! State of a client's connection of HTTP/2, which its streams share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_tls::handshake::HandshakeParameters;

use super::engine::Engine;
use crate::age::Age;
use crate::bindings::Bindings;
use crate::http1::Hop;
use crate::service::LocalRule;
use crate::session::Session;

/// State that the streams of a connection share.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) session: Session,
    pub(super) scheme: &'static str,
    /// Parameters agreed on with a client that speaks TLS.
    pub(super) agreed: Option<Arc<HandshakeParameters>>,
    /// Hop for the client, made for a rule: what members are told of the client.
    pub(super) hop: RefCell<Option<(Rc<LocalRule>, Rc<Hop>)>>,
    pub(super) local: Rc<str>,
    /// The member that the client is bound to, if the group binds for longer than a request.
    pub(crate) bindings: Rc<RefCell<Bindings>>,
    /// Frames, streams and windows of the connection.
    pub(super) engine: Rc<Engine>,
    pub(super) streams: Cell<u32>,
    pub(super) age: Cell<Age>,
    /// Errors of the client that were counted.
    pub(super) errors: Cell<u32>,
}

impl Connection {
    /// Returns what the members of the rule are told of the client.
    pub(crate) fn hop_for_rule(&self, rule: &Rc<LocalRule>) -> Rc<Hop> {
        let mut known = self.hop.borrow_mut();
        match &*known {
            Some((of, hop)) if Rc::ptr_eq(of, rule) => Rc::clone(hop),
            _ => {
                let local = Rc::clone(&self.local);
                let client = self.session.peer.ip();
                let hop = Hop::new(&rule.rule.http, client, self.scheme, local);
                let agreed = self.agreed.as_ref();
                let hop = hop.with_identity(agreed.and_then(|agreed| agreed.identity.as_deref()));
                let hop = Rc::new(hop.over_version("2.0", &rule.rule.http));
                *known = Some((Rc::clone(rule), Rc::clone(&hop)));
                hop
            }
        }
    }

    /// Returns the parameters agreed on with a client that speaks TLS.
    pub(crate) fn agreed_parameters(&self) -> Option<&HandshakeParameters> {
        self.agreed.as_deref()
    }

    /// Takes note that a stream has ended.
    pub(super) fn stream_ended(&self) {
        self.streams.set(self.streams.get().saturating_sub(1));
        if self.streams.get() == 0 {
            self.engine.wake_task();
        }
    }
}

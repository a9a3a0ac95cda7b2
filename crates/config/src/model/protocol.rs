//! What members speak.

use crate::schema::field::{blank, choice_field};

/// What members of an HTTP rule speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberProtocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2.
    Http2,
    /// What they choose in the handshake of TLS.
    Auto,
}

choice_field!(MemberProtocol,
    "http1" => MemberProtocol::Http1,
    "h2" => MemberProtocol::Http2,
    "auto" => MemberProtocol::Auto);
blank!(MemberProtocol);

/// How members are told who the client is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendProxy {
    /// PROXY protocol, version 1: a line of text.
    V1,
    /// Version 2, binary.
    #[default]
    V2,
}

choice_field!(SendProxy, "v1" => SendProxy::V1, "v2" => SendProxy::V2);
blank!(SendProxy);

/// Whose address connections to members come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The balancer's, as the system chooses it.
    #[default]
    Balancer,
    /// The client's (`IP_TRANSPARENT`).
    Client,
}

choice_field!(Source, "balancer" => Source::Balancer, "client" => Source::Client);

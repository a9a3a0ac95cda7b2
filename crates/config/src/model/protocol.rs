//! Protocols of members.

use crate::schema::field::{blank, choice_field};

/// Protocol of the members of an HTTP rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberProtocol {
    /// Protocol HTTP/1.1.
    #[default]
    Http1,
    /// Protocol HTTP/2.
    Http2,
    /// Protocol chosen by the member in the handshake of TLS.
    Auto,
}

choice_field!(MemberProtocol,
    "http1" => MemberProtocol::Http1,
    "h2" => MemberProtocol::Http2,
    "auto" => MemberProtocol::Auto);
blank!(MemberProtocol);

/// Version of the PROXY header that tells members the client.
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

/// Source address of connections to members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Address of the balancer, as the system chooses it.
    #[default]
    Balancer,
    /// Address of the client (`IP_TRANSPARENT`).
    Client,
}

choice_field!(Source, "balancer" => Source::Balancer, "client" => Source::Client);

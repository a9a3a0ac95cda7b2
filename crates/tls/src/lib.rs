//! TLS: certificates as the configuration names them, handshakes, and connections.
//!
//! | module | what it has |
//! |---|---|
//! | [`certificate`] | certificates and keys from files, with what is wrong with them |
//! | [`challenge`] | what an authority has to find that looks whether a name is ours |
//! | [`expiry`] | warnings before certificates expire |
//! | [`server`] | what a rule does for its clients: certificate by name, versions, client certificates |
//! | [`ticket`] | the keys of session tickets |
//! | [`identity`] | what a client's certificate says, for members |
//! | [`listener`] | TLS of the negotiator and of the admin API |
//! | [`handshake`] | handshakes with clients over a socket, and why one has failed |
//! | [`client`] | what it takes to be a client: whom it trusts, its own certificate, sessions |
//! | [`current`] | the same, following its files |
//! | [`connect`] | handshakes as a client, and why one has failed |
//! | [`record`] | records: what is encrypted and sent after a handshake |
//! | [`stream`] | a connection after its handshake |
//!
//! Handshakes are done by rustls. After one it hands the keys over, and records are sealed and
//! opened here: straight from and into the buffers of the data plane, so that an idle connection
//! holds no buffer, and no byte is copied more often than needed.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod authorities;
pub mod certificate;
pub mod challenge;
pub mod client;
pub mod connect;
pub mod current;
pub mod expiry;
pub mod handshake;
pub mod identity;
pub mod listener;
mod messages;
mod names;
pub mod record;
pub mod server;
mod sessions;
pub mod stream;
#[cfg(test)]
mod testing;
pub mod ticket;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

/// The algorithms, the same for all.
pub(crate) fn crypto_provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    &PROVIDER
}

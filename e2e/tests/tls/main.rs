//! TLS with clients, with members, passed through, and certificates by ACME.

mod acme;
mod member_tls;
mod sni;
mod tls;

//! Compression of fields (HPACK, RFC 7541).

pub(crate) mod decoder;
pub(crate) mod encoder;
pub(crate) mod huffman;
pub(crate) mod table;

//! The client engine: negotiates on the client's side and redirects standard clients.

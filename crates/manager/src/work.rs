//! Work that a subsystem does in its own time.

use std::future::Future;
use std::pin::Pin;

/// Something that a subsystem does in its own time.
pub type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

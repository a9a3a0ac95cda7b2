//! Traces of requests (W3C Trace Context): which requests are traced, what members are told, and what
//! is kept of a request that is.

mod context;
mod tracer;

pub use context::{Attempt, Context, Fields, Trace, trace_text};
pub(crate) use context::{PARENT, STATE, new_span, span_text};
pub use tracer::Tracer;

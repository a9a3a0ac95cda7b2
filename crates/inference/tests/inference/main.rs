//! Groups of engines as the proxy sees them: from the bytes of requests to the bytes of answers.

mod engines;
mod no_alloc;

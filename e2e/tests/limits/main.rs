//! What is limited, queued, refused, or runs out.

mod costs;
mod exhaustion;
mod limits;
mod overload;

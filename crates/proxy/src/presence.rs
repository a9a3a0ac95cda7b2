//! Clients that leave while their requests wait.

use std::task::Context;

use crate::io::Io;
use crate::session::Session;

impl Session {
    /// True if the client has reset its connection, looked at now and then
    /// ([`crate::watch::Watch::arm_and_look`]). Bytes that the client has sent before may hide the
    /// reset from a task that only reads. A FIN is a sign only if `ends_with_fin`, as the client may
    /// still want its answer.
    #[inline]
    pub(crate) fn is_gone(
        &self,
        cx: &mut Context<'_>,
        client: &mut Io,
        ends_with_fin: bool,
    ) -> bool {
        match client {
            // That of a stream is told.
            Io::Stream(stream) => stream.is_reset(cx),
            _ => {
                self.watch.take_look()
                    && match ends_with_fin {
                        true => client.has_ended(),
                        false => client.has_failed(),
                    }
            }
        }
    }
}

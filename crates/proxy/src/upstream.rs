//! Connections to members as requests use them: one of its own, or a stream of one that others use,
//! too.

use std::ops::{Deref, DerefMut};

use crate::files::ConnectionFile;
use crate::http2::call::Call;
use crate::io::Io;
use crate::pool::MemberConnection;

/// A connection to a member, or a stream of one.
#[derive(Debug)]
pub(crate) struct Upstream {
    io: Io,
    /// File of the connection; `None` for a stream, which is no connection.
    file: Option<ConnectionFile>,
    /// The number of the [`Client`](evenkeel_tls::client::Client) that has done the handshake; 0 is
    /// none.
    tls: u64,
    /// True if the member knows a client by it, who alone may use it.
    is_private: bool,
}

impl Upstream {
    /// A request in a connection that others use, too.
    pub(crate) fn of_call(call: Call) -> Self {
        Upstream {
            io: Io::Call(Box::new(call)),
            file: None,
            tls: 0,
            is_private: false,
        }
    }

    /// Keeps the connection from other clients from now on.
    pub(crate) fn set_private(&mut self) {
        self.is_private = true;
    }

    /// True if it is one client's, and no others'.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

    /// The number of what has done its handshake; 0 is nobody.
    pub(crate) fn tls_id(&self) -> u64 {
        self.tls
    }

    /// The connection, if requests of all clients may share it; `None` for a stream, too.
    pub(crate) fn into_shared_connection(self) -> Option<MemberConnection> {
        match (self.io, self.file) {
            (Io::Connection(connection), Some(file)) if !self.is_private => {
                Some(MemberConnection::new(connection, file, self.tls))
            }
            _ => None,
        }
    }
}

impl From<MemberConnection> for Upstream {
    fn from(connection: MemberConnection) -> Self {
        let tls = connection.tls_id();
        let (connection, file) = connection.into_parts();
        Upstream {
            io: Io::Connection(connection),
            file: Some(file),
            tls,
            is_private: false,
        }
    }
}

impl Deref for Upstream {
    type Target = Io;

    fn deref(&self) -> &Io {
        &self.io
    }
}

impl DerefMut for Upstream {
    fn deref_mut(&mut self) -> &mut Io {
        &mut self.io
    }
}

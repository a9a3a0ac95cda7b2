//! HTTP rules.

use tokio::net::TcpStream;

use crate::listen::Session;

/// Serves one client.
pub(crate) async fn serve(_session: Session, _client: TcpStream) {}

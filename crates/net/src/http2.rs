//! HTTP/2 as a client, for what is not the data path: a connection for one question.

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, Connection, SendRequest};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

/// Most bytes of the fields of an answer.
const MAX_FIELDS: u32 = 16 * 1024;

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection broke, or the other side does not speak HTTP/2.
    #[error("the connection broke: {0}")]
    Broken(#[from] h2::Error),
    /// The request cannot be made.
    #[error("the request cannot be made: {0}")]
    Invalid(#[from] http::Error),
}

/// Speaks HTTP/2 over a connection. The connection, which is answered second, must be polled.
///
/// # Errors
///
/// The connection is broken.
pub async fn start_client<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
) -> Result<(SendRequest<Bytes>, Connection<T, Bytes>), Error> {
    let mut builder = Builder::new();
    builder.max_header_list_size(MAX_FIELDS).enable_push(false);
    Ok(builder.handshake(io).await?)
}

/// The answer to a request, whose body is read in parts.
#[derive(Debug)]
pub struct Answer {
    /// Status of the final response.
    pub status: u16,
    body: RecvStream,
}

impl Answer {
    /// Gets the resource at `uri`, asked for with these fields.
    ///
    /// # Errors
    ///
    /// Reason why there is no answer.
    pub async fn get(
        client: SendRequest<Bytes>,
        uri: &str,
        fields: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let request = Request::get(uri);
        let request = fields.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let request = request.body(())?;
        let (answer, _) = client.ready().await?.send_request(request, true)?;
        let answer = answer.await?;
        Ok(Answer {
            status: answer.status().as_u16(),
            body: answer.into_body(),
        })
    }

    /// Returns the next part of the body; `None` at its end.
    ///
    /// # Errors
    ///
    /// The body breaks off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(data) = self.body.data().await else {
            return Ok(None);
        };
        let data = data?;
        self.body.flow_control().release_capacity(data.len())?;
        Ok(Some(data))
    }
}

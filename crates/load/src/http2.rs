//! Requests over HTTP/2: connections that several clients share, each with a stream at a time.

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use h2::client::SendRequest;

use crate::context::{Context, Failure};
use crate::plan::{Scheme, Url};
use crate::stats::Kind;

/// Flow control: bytes that the server may send before they are read.
const WINDOW: u32 = 1 << 20;

/// An answer.
pub(crate) struct Answer {
    pub status: u16,
    pub bytes: u64,
    /// Of a redirect.
    pub location: Option<String>,
}

/// Makes a connection.
pub(crate) async fn connect(
    context: &Context,
    client: usize,
) -> Result<SendRequest<Bytes>, Failure> {
    let stream = context.connect(&context.first, client).await?;
    if context.first.url.scheme == Scheme::Https && stream.alpn() != Some(b"h2") {
        let why = "the server does not speak HTTP/2 (ALPN); leave --http2 out";
        return Err(Failure::new(Kind::Tls, &why));
    }
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(crate::response::MAX_HEAD as u32)
        .enable_push(false);
    let (send, connection) = builder
        .handshake(stream)
        .await
        .map_err(|error| Failure::new(Kind::Malformed, &error))?;
    context.runtime.spawn_aside(async move {
        // What fails it fails its streams, which are counted.
        let _ = connection.await;
    });
    Ok(send)
}

fn kind(error: &h2::Error) -> Kind {
    if error.is_io() {
        Kind::Closed
    } else if error.is_reset() || error.is_go_away() {
        Kind::Rejected
    } else {
        Kind::Malformed
    }
}

/// Sends a request and reads its response.
pub(crate) async fn exchange(
    context: &Rc<Context>,
    client: usize,
    of_all: usize,
    url: &Url,
    method: &str,
    has_body: bool,
    sent: &mut Instant,
) -> Result<Answer, Kind> {
    let shared = context.shared.get(client % context.shared.len().max(1));
    let shared = shared.ok_or(Kind::Connect)?;
    let mut place = shared.lock().await;
    let send = match place.take() {
        Some(send) => send,
        None => {
            let send = connect(context, of_all).await?;
            *sent = Instant::now();
            send
        }
    };
    *place = Some(send.clone());
    drop(place);
    let ready = send.ready().await;
    let Ok(mut send) = ready else {
        // It has ended; the next client makes another one.
        *shared.lock().await = None;
        return Err(Kind::Closed);
    };
    let plan = &context.plan;
    let uri = format!("{}://{}{}", url.scheme.name(), url.authority(), url.path);
    let mut request = http::Request::builder().method(method).uri(uri);
    for (name, value) in &plan.headers {
        // HTTP/2 has none of these.
        let is_of_connection = ["connection", "host", "transfer-encoding", "upgrade"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known));
        if !is_of_connection {
            request = request.header(name, value);
        }
    }
    if !plan
        .headers
        .iter()
        .any(|(n, _)| n.eq_ignore_ascii_case("user-agent"))
    {
        request = request.header("user-agent", "evenkeel-load");
    }
    let request = request.body(()).map_err(|_| Kind::Redirect)?;
    let body = if has_body { &plan.body[..] } else { &[] };
    let failed = |error: h2::Error| kind(&error);
    let (response, mut upload) = send
        .send_request(request, body.is_empty())
        .map_err(failed)?;
    if !body.is_empty() {
        upload
            .send_data(Bytes::copy_from_slice(body), true)
            .map_err(failed)?;
    }
    let (head, mut body) = response.await.map_err(failed)?.into_parts();
    let mut bytes = 0u64;
    while let Some(part) = body.data().await {
        let part = part.map_err(|error| match kind(&error) {
            Kind::Closed => Kind::HalfBody,
            kind => kind,
        })?;
        bytes = bytes.saturating_add(part.len() as u64);
        let _ = body.flow_control().release_capacity(part.len());
    }
    let location = head.headers.get("location");
    let location = location.and_then(|value| value.to_str().ok());
    let status = head.status.as_u16();
    let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
    Ok(Answer {
        status,
        bytes,
        location: location.filter(|_| is_redirect).map(str::to_owned),
    })
}

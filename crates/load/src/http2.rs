//! Requests over HTTP/2: connections that several clients share, each with a stream at a time.

use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;

use crate::context::{Answer, Context, Failure, Origin};
use crate::pending_request::PendingRequest;
use crate::plan::Scheme;
use crate::response::{MAX_LOCATION, is_redirect, max_age};
use crate::stats::Kind;

/// Flow control: bytes that the server may send before they are read.
const WINDOW: u32 = 1 << 20;

/// Makes a connection.
pub(crate) async fn open_connection(
    context: &Context,
    origin: &Rc<Origin>,
    client: usize,
) -> Result<SendRequest<Bytes>, Failure> {
    let stream = context.connect(origin, client).await?;
    if origin.url.scheme == Scheme::Https && stream.alpn() != Some(b"h2") {
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

/// Returns true if a connection takes no more requests.
async fn has_ended(send: &SendRequest<Bytes>) -> bool {
    let mut send = send.clone();
    std::future::poll_fn(|cx| Poll::Ready(matches!(send.poll_ready(cx), Poll::Ready(Err(_))))).await
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

/// Most times that a request is sent which servers give back unread.
const TRIES: usize = 4;

/// Reason why a request has no answer.
struct Unanswered {
    kind: Kind,
    /// True if the server has said that it did nothing with the request, so that the request can be
    /// sent again.
    is_unread: bool,
}

impl From<Kind> for Unanswered {
    fn from(kind: Kind) -> Unanswered {
        Unanswered {
            kind,
            is_unread: false,
        }
    }
}

impl From<h2::Error> for Unanswered {
    /// Makes the reason of an error of HTTP/2. A request may be sent again if its stream is above the
    /// last stream of a server that takes no more, or if the server refused it (RFC 9113, section 8.7).
    fn from(error: h2::Error) -> Unanswered {
        let ends = error.is_go_away() && error.reason() == Some(Reason::NO_ERROR);
        let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        Unanswered {
            kind: kind(&error),
            is_unread: error.is_remote() && (ends || refused),
        }
    }
}

/// Sends a request of a client (its number in its thread, and of all) and reads its response. As
/// clients do, it is sent once more if the server has given it back unread: one that ends a
/// connection cannot know what is on its way there.
pub(crate) async fn exchange(
    context: &Context,
    client: (usize, usize),
    origin: &Rc<Origin>,
    pending: &mut PendingRequest<'_>,
    begun: Instant,
) -> Result<Answer, Kind> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        match attempt(context, client, origin, pending, begun).await {
            Ok(answer) => return Ok(answer),
            Err(why) if why.is_unread && tries > 0 => {}
            Err(why) => return Err(why.kind),
        }
    }
}

async fn attempt(
    context: &Context,
    (client, of_all): (usize, usize),
    origin: &Rc<Origin>,
    pending: &mut PendingRequest<'_>,
    begun: Instant,
) -> Result<Answer, Unanswered> {
    let shared = context
        .shared_connection(client, origin)
        .ok_or(Kind::Connect)?;
    let mut send = loop {
        let mut place = shared.lock().await;
        let known = match place.take() {
            Some(known) if !has_ended(&known).await => Some(known),
            _ => None,
        };
        let is_known = known.is_some();
        let send = match known {
            Some(known) => {
                pending.sent.get_or_insert(begun);
                known
            }
            None => {
                let send = open_connection(context, origin, of_all)
                    .await
                    .map_err(Kind::from)?;
                pending.sent.get_or_insert_with(Instant::now);
                send
            }
        };
        *place = Some(send.clone());
        drop(place);
        match send.ready().await {
            Ok(send) => break send,
            // The server has said that it takes no more there (GOAWAY), and nothing was sent.
            Err(_) if is_known => {}
            Err(_) => {
                // The next client makes another one.
                *shared.lock().await = None;
                return Err(Kind::Closed.into());
            }
        }
    };
    let plan = &context.plan;
    let url = &origin.url;
    let uri = format!(
        "{}://{}{}",
        url.scheme.name(),
        url.authority(),
        pending.path
    );
    let mut request = http::Request::builder().method(pending.method).uri(uri);
    for (name, value) in pending.allowed_headers(plan) {
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
    let body = if pending.has_body {
        &plan.body[..]
    } else {
        &[]
    };
    let (response, mut upload) = send.send_request(request, body.is_empty())?;
    if !body.is_empty() {
        upload.send_data(Bytes::copy_from_slice(body), true)?;
    }
    let (head, mut body) = response.await?.into_parts();
    let mut bytes = 0u64;
    while let Some(part) = body.data().await {
        let part = part.map_err(|error| match kind(&error) {
            Kind::Closed => Kind::HalfBody,
            kind => kind,
        })?;
        bytes = bytes.saturating_add(part.len() as u64);
        let _ = body.flow_control().release_capacity(part.len());
    }
    let status = head.status.as_u16();
    let fields = is_redirect(status).then_some(&head.headers);
    let location = fields.and_then(|fields| fields.get("location")?.to_str().ok());
    let location = location.filter(|location| location.len() <= MAX_LOCATION);
    let kept = fields.and_then(|fields| fields.get("cache-control"));
    Ok(Answer {
        status,
        bytes,
        location: location.map(str::to_owned),
        max_age: kept.and_then(|value| max_age(value.as_bytes())),
    })
}

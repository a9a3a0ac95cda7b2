//! The server: hyper with limits.

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, EXPECT, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::debug;

use super::{Answer, BoundedListener};

/// The head of a request.
pub type Head = hyper::http::request::Parts;

/// Answers requests.
pub trait Handler: 'static {
    /// The answer to a request, whose body is read and thrown away.
    fn answer(&self, head: Head, client: SocketAddr) -> impl Future<Output = Answer>;
}

/// Phase of a server, set from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serve clients.
    Serve,
    /// Accept nobody any more but those who have connected already. Connections go on until
    /// their clients, or their limits, end them: one that has just been accepted may carry a
    /// request that nobody has seen yet.
    Close,
    /// End, with a second for answers under way.
    Stop,
}

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Largest request head in bytes, at least 8192; a larger one gets 431.
    pub max_header_bytes: usize,
}

/// Most fields of a head.
const MAX_FIELDS: usize = 100;

/// Most bytes of a body that are read and thrown away. A client that has sent its body when the answer comes
/// would be reset before it has read the answer, if nobody took the body. A client that waits for
/// `100 Continue` does not send its body.
const MAX_DISCARDED: u64 = 256 * 1024;

/// Time that connections have for the answers under way when the server stops.
const GRACE: Duration = Duration::from_secs(1);

/// Answers on `listener` until `phase` says otherwise; nobody there to set it says stop.
/// Ends with the last connection. Must run in a [`tokio::task::LocalSet`].
pub async fn serve_listener<H: Handler>(
    mut listener: BoundedListener,
    settings: Settings,
    handler: Rc<H>,
    mut phase: watch::Receiver<Phase>,
) {
    let mut connections = JoinSet::new();
    let mut is_open = true;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept_connection() => accepted,
            _ = phase.wait_for(|phase| *phase >= Phase::Close), if is_open => {
                listener.close();
                is_open = false;
                continue;
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        let Some((connection, client)) = accepted else {
            break;
        };
        let handler = Rc::clone(&handler);
        let mut phase = phase.clone();
        let activity = connection.activity();
        connections.spawn_local(async move {
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let (handler, activity) = (Rc::clone(&handler), activity.clone());
                async move {
                    let (head, body) = request.into_parts();
                    let all_read = head.headers.contains_key(EXPECT) || discard_body(body).await;
                    activity.mark_complete();
                    let mut answer = handler.answer(head, client).await;
                    if !all_read {
                        let close = HeaderValue::from_static("close");
                        answer.headers_mut().insert(CONNECTION, close);
                    }
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            let mut server = http1::Builder::new();
            server
                .max_headers(MAX_FIELDS)
                .max_buf_size(settings.max_header_bytes.max(8192))
                // The connection has its own limit, which no trickle of bytes extends.
                .header_read_timeout(None);
            let served = server.serve_connection(TokioIo::new(connection), service);
            tokio::pin!(served);
            let result = tokio::select! {
                result = &mut served => result,
                _ = phase.wait_for(|phase| *phase == Phase::Stop) => {
                    served.as_mut().graceful_shutdown();
                    match tokio::time::timeout(GRACE, served).await {
                        Ok(result) => result,
                        Err(_) => return,
                    }
                }
            };
            if let Err(error) = result {
                debug!(%client, %error, "the connection of an HTTP client ended with an error");
            }
        });
    }
    while connections.join_next().await.is_some() {}
}

/// Reads a body and forgets it; whether that was all of it.
async fn discard_body(mut body: Incoming) -> bool {
    if body.is_end_stream() {
        return true;
    }
    if body.size_hint().lower() > MAX_DISCARDED {
        return false;
    }
    let mut left = MAX_DISCARDED;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return false;
        };
        let len = frame.data_ref().map_or(0, |data| data.len() as u64);
        match left.checked_sub(len) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;

    use super::*;
    use crate::http::answer;

    struct Echo;

    impl Handler for Echo {
        async fn answer(&self, head: Head, _: SocketAddr) -> Answer {
            let status = match head.uri.path() {
                "/teapot" => StatusCode::IM_A_TEAPOT,
                _ => StatusCode::OK,
            };
            answer::error(status, head.method.as_str(), head.uri.path(), Vec::new())
        }
    }

    /// Returns all that a server answers to `request` on one connection, which the client then ends on its
    /// side.
    async fn ask(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounded = BoundedListener::new(listener, "test", 10, Duration::from_secs(60));
        let (phase, phases) = watch::channel(Phase::Serve);
        let settings = Settings {
            max_header_bytes: 8192,
        };
        let local = LocalSet::new();
        let server = local.run_until(async {
            let server =
                tokio::task::spawn_local(serve_listener(bounded, settings, Rc::new(Echo), phases));
            let mut client = TcpStream::connect(address).await.unwrap();
            // The server may close while it is written to.
            let _ = client.write_all(request).await;
            let mut text = Vec::new();
            let mut part = [0; 4096];
            loop {
                match client.read(&mut part).await {
                    Ok(0) | Err(_) => break,
                    Ok(len) => text.extend_from_slice(&part[..len]),
                }
                if request.ends_with(b"keep") && text.ends_with(b"}") {
                    break;
                }
            }
            drop(client);
            phase.send_replace(Phase::Stop);
            server.await.unwrap();
            String::from_utf8(text).unwrap()
        });
        server.await
    }

    #[tokio::test]
    async fn pipelined_requests_are_answered_in_order() {
        let text = ask(
            b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /teapot HTTP/1.1\r\nHost: h\r\n\
            Connection: close\r\n\r\n",
        )
        .await;
        let first = text.find("HTTP/1.1 200").unwrap();
        let second = text.find("HTTP/1.1 418").unwrap();
        assert!(first < second, "{text}");
        assert!(text.contains("\r\ndate: "), "{text}");
    }

    #[tokio::test]
    async fn heads_that_are_too_large_are_refused() {
        let long = format!(
            "GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n",
            "x".repeat(10_000)
        );
        let text = ask(long.as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 431"), "{text}");
        let many = format!(
            "GET / HTTP/1.1\r\nHost: h\r\n{}\r\n",
            "X: y\r\n".repeat(150)
        );
        assert!(ask(many.as_bytes()).await.starts_with("HTTP/1.1 431"));
    }

    #[tokio::test]
    async fn bodies_are_not_in_the_way() {
        let small = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\
            GET /teapot HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        assert!(
            ask(small).await.contains("HTTP/1.1 418"),
            "the next request is found"
        );
        let announced = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\nabc";
        let text = ask(announced).await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.contains("connection: close"), "{text}");
        let waiting = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\
            Expect: 100-continue\r\n\r\n";
        let text = ask(waiting).await;
        assert!(text.starts_with("HTTP/1.1 200"), "no 100 Continue: {text}");
    }
}

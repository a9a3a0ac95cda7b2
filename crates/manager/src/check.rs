//! Active health checks (keep-alive): one task per member, results into
//! [`evenkeel_core::health`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_core::health::{Change, Limits};
use evenkeel_core::member::MemberId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Duration, sleep, timeout};
use tracing::{info, warn};

use crate::config::{HealthCheck, HealthCheckKind};
use crate::control::Tasks;
use crate::manager::Manager;
use crate::state::{Endpoint, GroupEntry};

/// Checks at the same time, so that their sockets stay few. Enough for 256 members that
/// let every check run into its timeout.
const CONCURRENT_CHECKS: usize = 256;

/// Within this time, or the frequency if that is shorter, all members are checked for
/// the first time, each at a random moment.
const START_SPREAD: Duration = Duration::from_secs(1);

/// The part of a response that is read: head and body together, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;

/// Header fields that a response may have.
const MAX_FIELDS: usize = 100;

/// The last check of a member.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub at: evenkeel_core::time::Instant,
    /// Why it failed.
    pub error: Option<Arc<str>>,
}

/// What a member's task has to do.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    address: SocketAddr,
    /// `Host` field, if the check names none.
    host: String,
    check: HealthCheck,
}

impl Target {
    fn of(endpoint: &Endpoint, check: &HealthCheck) -> Self {
        let port = check.port.unwrap_or(endpoint.port);
        let host = match endpoint.host.contains(':') {
            true => format!("[{}]", endpoint.host),
            false => endpoint.host.clone(),
        };
        Target {
            address: SocketAddr::new(endpoint.member.address.ip(), port),
            host: match port {
                80 => host,
                port => format!("{host}:{port}"),
            },
            check: check.clone(),
        }
    }
}

impl Manager {
    /// Checks all members of groups that have a check.
    pub(crate) async fn check_members(self: &Arc<Self>) {
        let permits = Arc::new(Semaphore::new(CONCURRENT_CHECKS));
        let mut tasks = Tasks::new();
        let mut changes = self.changes();
        loop {
            let wanted = self.lock().state.groups.iter().flat_map(targets).collect();
            tasks.reconcile(wanted, |member, target| {
                check_forever(Arc::clone(self), Arc::clone(&permits), member, target)
            });
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// A check of `member` is over.
    fn checked(&self, member: MemberId, check: &HealthCheck, result: Result<(), CheckError>) {
        let now = self.clock().now();
        let mut owned = self.lock();
        let Some((group, endpoint)) = owned.state.endpoint_mut(member) else {
            return;
        };
        let limits = Limits {
            fall: check.fall,
            rise: check.rise,
        };
        let slot = &endpoint.member.slot;
        let member = &endpoint.member.name;
        match endpoint.health.observe(result.is_ok(), limits, slot, now) {
            Some(Change::Up) => info!(%group, %member, "member is up"),
            Some(Change::Down) => {
                let error = result.as_ref().err().map(tracing::field::display);
                warn!(%group, %member, error, "member is down");
            }
            None => {}
        }
        endpoint.checked = Some(Checked {
            at: now,
            error: result.err().map(|error| error.to_string().into()),
        });
    }
}

fn targets(entry: &GroupEntry) -> Vec<(MemberId, Target)> {
    let Some(check) = &entry.config.health_check else {
        return Vec::new();
    };
    let resolved = entry.endpoints.iter().filter(|endpoint| endpoint.resolved);
    resolved
        .map(|endpoint| (endpoint.member.id, Target::of(endpoint, check)))
        .collect()
}

async fn check_forever(
    manager: Arc<Manager>,
    permits: Arc<Semaphore>,
    member: MemberId,
    target: Target,
) {
    let check = &target.check;
    sleep(check.frequency.min(START_SPREAD).mul_f32(fastrand::f32())).await;
    loop {
        let started = tokio::time::Instant::now();
        let result = {
            let _permit = permits.acquire().await;
            match timeout(check.timeout, check_once(&target)).await {
                Ok(result) => result,
                Err(_) => Err(CheckError::Timeout(check.timeout)),
            }
        };
        manager.checked(member, check, result);
        // A little earlier or later each time, so that checks do not fall into step.
        let pause = check.frequency.mul_f32(0.95 + 0.1 * fastrand::f32());
        sleep(pause.saturating_sub(started.elapsed())).await;
    }
}

/// Why a check has failed.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("not done within {0:?}")]
    Timeout(Duration),
    #[error("the connection was closed before the response was complete")]
    Closed,
    #[error("the response is not HTTP/1.x")]
    Garbage,
    #[error("the response head is longer than {MAX_RESPONSE} bytes")]
    LongHead,
    #[error("response code {0}")]
    Code(u16),
    #[error("the text was not found in the first {MAX_RESPONSE} bytes of the response")]
    Text,
}

async fn check_once(target: &Target) -> Result<(), CheckError> {
    let stream = TcpStream::connect(target.address).await;
    let mut stream = stream.map_err(CheckError::Connect)?;
    let HealthCheckKind::Http {
        path,
        host,
        codes,
        text,
    } = &target.check.kind
    else {
        return Ok(());
    };
    let host = host.as_ref().unwrap_or(&target.host);
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: evenkeel-health-check\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;

    let expected = Expected {
        codes,
        text: text.as_deref().unwrap_or_default().as_bytes(),
    };
    let mut response = Vec::new();
    loop {
        let left = MAX_RESPONSE - response.len();
        let read = (&mut stream)
            .take(left as u64)
            .read_buf(&mut response)
            .await?;
        let more = match read {
            0 if left == 0 => More::TooLong,
            0 => More::Closed,
            _ => More::Open,
        };
        if let Some(result) = expected.judge(&response, more) {
            return result;
        }
    }
}

/// What may follow the bytes that were read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    /// More bytes, perhaps.
    Open,
    /// Nothing: the peer has closed.
    Closed,
    /// Nothing that is read.
    TooLong,
}

/// What a response must be like.
struct Expected<'a> {
    codes: &'a [u16],
    /// Empty is in every body.
    text: &'a [u8],
}

impl Expected<'_> {
    /// What is to be thought of a response of which `bytes` were read; `None` if that
    /// depends on the rest of it.
    fn judge(&self, bytes: &[u8], more: More) -> Option<Result<(), CheckError>> {
        let head = match Head::parse(bytes) {
            Err(NotHttp) => return Some(Err(CheckError::Garbage)),
            Ok(Some(head)) => head,
            Ok(None) => {
                return match more {
                    More::Open => None,
                    More::Closed => Some(Err(CheckError::Closed)),
                    More::TooLong => Some(Err(CheckError::LongHead)),
                };
            }
        };
        if !self.codes.contains(&head.code) {
            return Some(Err(CheckError::Code(head.code)));
        }
        let (body, complete) = head.body(&bytes[head.length..]);
        let held = self.text.is_empty() || body.windows(self.text.len()).any(|w| w == self.text);
        if held {
            Some(Ok(()))
        } else if complete || more != More::Open {
            Some(Err(CheckError::Text))
        } else {
            None
        }
    }
}

/// The head of the final response.
struct Head {
    code: u16,
    /// Bytes up to the body, those of interim responses included.
    length: usize,
    framing: Framing,
}

enum Framing {
    Chunked,
    Length(usize),
    UntilClose,
}

struct NotHttp;

impl Head {
    fn parse(bytes: &[u8]) -> Result<Option<Head>, NotHttp> {
        let mut start = 0;
        loop {
            let rest = &bytes[start..];
            let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
            let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
            let mut response = httparse::Response::new(&mut fields);
            let length = match response.parse(rest) {
                Ok(httparse::Status::Complete(length)) => length,
                Ok(httparse::Status::Partial) => return Ok(None),
                Err(_) => return Err(NotHttp),
            };
            let code = response.code.unwrap_or_default();
            // The parser forgives a bare LF.
            if line.last() != Some(&b'\r') || !(100..=599).contains(&code) {
                return Err(NotHttp);
            }
            start += length;
            if (100..200).contains(&code) && code != 101 {
                continue;
            }
            let field = |name: &str| {
                let field = response
                    .headers
                    .iter()
                    .find(|field| field.name.eq_ignore_ascii_case(name))?;
                std::str::from_utf8(field.value).ok()
            };
            let chunked = field("transfer-encoding")
                .is_some_and(|value| value.to_ascii_lowercase().ends_with("chunked"));
            let length = field("content-length").and_then(|value| value.parse().ok());
            return Ok(Some(Head {
                code,
                length: start,
                framing: match length {
                    _ if chunked => Framing::Chunked,
                    Some(length) => Framing::Length(length),
                    None => Framing::UntilClose,
                },
            }));
        }
    }

    /// The body as far as it is in `bytes`, and whether that is all of it.
    fn body(&self, bytes: &[u8]) -> (Vec<u8>, bool) {
        match self.framing {
            Framing::Length(length) => {
                let held = bytes.len().min(length);
                (bytes[..held].to_vec(), bytes.len() >= length)
            }
            Framing::UntilClose => (bytes.to_vec(), false),
            Framing::Chunked => dechunk(bytes),
        }
    }
}

/// The data of the chunks in `bytes`, and whether the last one is among them. Ends at
/// what is no chunk, too.
fn dechunk(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut data = Vec::new();
    loop {
        let (start, size) = match httparse::parse_chunk_size(bytes) {
            Ok(httparse::Status::Complete((start, size))) => (start, size),
            Ok(httparse::Status::Partial) => return (data, false),
            Err(_) => return (data, true),
        };
        if size == 0 {
            return (data, true);
        }
        let rest = &bytes[start..];
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        data.extend_from_slice(&rest[..rest.len().min(size)]);
        match rest.get(size..).and_then(|after| after.get(2..)) {
            Some(after) => bytes = after,
            None => return (data, false),
        }
    }
}

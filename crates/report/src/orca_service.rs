//! ORCA out of band: a stream of load reports over gRPC, beside the traffic.
//!
//! The service is `xds.service.orca.v3.OpenRcaService`, its only method
//! `StreamCoreMetrics`: one request, which says how often, and any number of reports.
//!
//! Each report is all that the server says at that moment. Protocol Buffers do not write a
//! number that is 0, so a load that was reported before and is missing now is 0.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::address::Address;
use evenkeel_core::load::LoadId;
use evenkeel_core::member::MemberId;
use evenkeel_manager::config::sources::{NamedLoads, OrcaService, Sources};
use evenkeel_manager::config::{ClientTls, one_line};
use evenkeel_manager::counts::{Origin, ReportOutcome};
use evenkeel_net::Clock;
use evenkeel_net::grpc::{Call, CallError};
use evenkeel_net::http2;
use evenkeel_net::stream;
use evenkeel_tls::client::Client;
use evenkeel_tls::current::Current;
use evenkeel_tls::listener::Connection;
use evenkeel_wire::orca::{self, Invalid};
use evenkeel_wire::protobuf::put_varint;
use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::poll::{self, PolledGroup, ReportLog, ReportedLocation};
use crate::source::{Context, Source, SourceTargets};

/// Path of the method.
const METHOD: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

/// Waits between two attempts: the first, which doubles, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// A stream that is silent for this long is given up, and three intervals if those are
/// longer. Servers may choose a longer interval than they are asked for; those of gRPC do
/// not go below 30 s unless they are told to.
const SILENCE: Duration = Duration::from_secs(100);

/// Reason why a stream has ended.
#[derive(Debug, thiserror::Error)]
enum StreamEnd {
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("{0}")]
    Files(String),
    #[error("no connection with TLS: {0}")]
    Tls(String),
    #[error("the member does not choose h2 by ALPN")]
    NoHttp2,
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    #[error("the member sent no load report for {0:?}")]
    Silent(Duration),
    #[error("{0}")]
    Call(#[from] CallError),
}

impl StreamEnd {
    fn fate(&self) -> ReportOutcome {
        match self {
            StreamEnd::Connect(_) | StreamEnd::Files(_) | StreamEnd::Tls(_) => {
                ReportOutcome::Unreachable
            }
            StreamEnd::Timeout(_) | StreamEnd::Silent(_) => ReportOutcome::TimedOut,
            StreamEnd::Call(CallError::TooLong(..)) => ReportOutcome::TooLong,
            StreamEnd::Call(CallError::NotGrpc(_) | CallError::Compressed) | StreamEnd::NoHttp2 => {
                ReportOutcome::Malformed
            }
            StreamEnd::Call(_) => ReportOutcome::Failed,
        }
    }

    /// True if there is no such service, so that it is no use to ask again soon.
    fn is_final(&self) -> bool {
        const UNIMPLEMENTED: &str = "12";
        matches!(self, StreamEnd::Call(CallError::Status(status, _)) if status == UNIMPLEMENTED)
    }
}

/// Member and settings that a member's task works with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    address: Address,
    /// Name, or IP address.
    host: String,
    location: ReportedLocation,
    service: OrcaService,
    loads: NamedLoads,
}

/// Streams of reports, one to each member.
pub(crate) struct Streams;

impl Source for Streams {
    const ORIGIN: Origin = Origin("orca_out_of_band");
    type Key = MemberId;
    type Target = Target;

    fn tls(sources: &Sources) -> Option<ClientTls> {
        sources.orca.as_ref()?.out_of_band.as_ref()?.tls.clone()
    }

    fn want(group: &PolledGroup, wanted: &mut SourceTargets<MemberId, Target>) {
        let Some(orca) = &group.config.sources.orca else {
            return;
        };
        let Some(service) = &orca.out_of_band else {
            return;
        };
        for member in group.members() {
            let address = match service.port {
                None => Some(member.address.clone()),
                Some(port) => member.address.at_port(port).map(Address::Ip),
            };
            let Some(address) = address else {
                continue;
            };
            let target = Target {
                address,
                host: member.host.to_string(),
                location: ReportedLocation(Arc::clone(&member.location)),
                service: service.clone(),
                loads: orca.loads.clone(),
            };
            wanted.add_target(group, member.id, target, member.name.to_string());
        }
    }

    async fn ask(context: Context, _: MemberId, target: Target, journal: ReportLog) {
        stream_forever(context, target, journal).await;
    }
}

async fn stream_forever(context: Context, target: Target, journal: ReportLog) {
    let (clock, permits) = (context.manager.clock(), context.permits);
    let tls = target.service.tls.clone().map(Current::new);
    let mut reports = Reports {
        clock,
        tls,
        target,
        journal,
        seen: Vec::new(),
        count: 0,
    };
    let (shortest, longest) = BACKOFF;
    let mut wait = shortest;
    poll::wait_to_begin(reports.target.service.interval).await;
    loop {
        let before = reports.count;
        let Err(ended) = stream(&mut reports, &permits).await;
        reports.journal.note_fate(ended.fate(), Some(&ended));
        wait = match reports.count > before {
            true => shortest,
            false if ended.is_final() => longest,
            false => (wait * 2).min(longest),
        };
        // Members that went down together must not be asked together when they are back.
        sleep(wait.mul_f32(0.5 + 0.5 * fastrand::f32())).await;
    }
}

/// Keeps one stream. The stream ends by an error only: reports go on until the connection breaks.
async fn stream(
    reports: &mut Reports,
    permits: &Semaphore,
) -> Result<std::convert::Infallible, StreamEnd> {
    let limit = reports.target.service.timeout;
    let address = reports.target.address.clone();
    let tls = reports.tls.as_mut().map(Current::reload_client).transpose();
    let tls = tls.map_err(|problems| StreamEnd::Files(one_line(&problems)))?;
    let connect = async {
        let _permit = permits.acquire().await;
        let stream = stream::connect_address(&address)
            .await
            .map_err(StreamEnd::Connect)?;
        let stream = secured(stream, &reports.target.host, tls).await?;
        Ok::<_, StreamEnd>(http2::start_client(stream).await.map_err(CallError::from)?)
    };
    let connected = timeout(limit, connect).await;
    let (client, connection) = connected.map_err(|_| StreamEnd::Timeout(limit))??;
    tokio::select! {
        ended = talk(reports, client) => ended,
        ended = connection => match ended {
            Ok(()) => Err(CallError::Closed.into()),
            Err(error) => Err(CallError::from(error).into()),
        },
    }
}

/// Makes a connection with TLS, if there is to be TLS.
async fn secured(
    stream: TcpStream,
    host: &str,
    tls: Option<Arc<Client>>,
) -> Result<Connection, StreamEnd> {
    let Some(client) = tls else {
        return Ok(Connection::Plain(stream));
    };
    let connected = client.connect(stream, host, &["h2"]).await;
    let (stream, agreed) = connected.map_err(|failure| StreamEnd::Tls(failure.to_string()))?;
    match agreed.protocol.as_deref() {
        Some(b"h2") => Ok(Connection::Tls(stream)),
        _ => Err(StreamEnd::NoHttp2),
    }
}

async fn talk(
    reports: &mut Reports,
    client: SendRequest<Bytes>,
) -> Result<std::convert::Infallible, StreamEnd> {
    let service = &reports.target.service;
    let silence = SILENCE.max(service.interval * 3);
    let silent = |_| StreamEnd::Silent(silence);
    let (message, address) = (request(service.interval), reports.target.address.clone());
    let scheme = if service.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let uri = format!("{scheme}://{address}{METHOD}");
    let call = timeout(silence, Call::begin_default(client, &uri, &message)).await;
    let mut call = call.map_err(silent)??;
    loop {
        let message = timeout(silence, call.next()).await.map_err(silent)??;
        reports.take(&message);
    }
}

/// Returns the request: an `OrcaLoadReportRequest` with a `report_interval`, which is a
/// `google.protobuf.Duration`.
fn request(interval: Duration) -> Vec<u8> {
    let mut duration = Vec::new();
    put_varint(1, interval.as_secs(), &mut duration);
    put_varint(2, u64::from(interval.subsec_nanos()), &mut duration);
    let mut bytes = vec![1 << 3 | 2, duration.len() as u8];
    bytes.extend(duration);
    bytes
}

/// Handling of a member's reports.
struct Reports {
    clock: Clock,
    tls: Option<Current>,
    target: Target,
    journal: ReportLog,
    /// Loads that were ever reported.
    seen: Vec<LoadId>,
    /// Messages so far.
    count: u64,
}

impl Reports {
    fn take(&mut self, message: &[u8]) {
        self.count += 1;
        match self.loads(message) {
            Ok(()) => self.journal.note_fate(ReportOutcome::Taken, None),
            Err(invalid) => {
                let fate = ReportOutcome::from(invalid);
                let error = format!("the load report of the member is refused: {invalid}");
                self.journal.note_fate(fate, Some(&error));
            }
        }
    }

    fn loads(&mut self, message: &[u8]) -> Result<(), Invalid> {
        let wanted = |table: &str, field: &str| self.target.loads.find_load(table, field);
        let mut loads = orca::parse_message(message, &wanted)?;
        for &load in &self.seen {
            if loads.as_slice().iter().all(|(known, _)| *known != load) {
                loads.push(load, 0.0)?;
            }
        }
        if loads.as_slice().is_empty() {
            return Err(Invalid::Missing);
        }
        let now = self.clock.now();
        let refused = self.target.location.0.report_each(loads.as_slice(), now);
        self.seen = loads.as_slice().iter().map(|(load, _)| *load).collect();
        match refused {
            0 => Ok(()),
            _ => Err(Invalid::TooManyLoads),
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::{Manager, config};
    use h2::server;
    use http::{HeaderMap, Response};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn requests_are_small() {
        let expected = b"\x0a\x07\x08\x01\x10\x80\xe5\x9a\x77";
        assert_eq!(&request(Duration::from_millis(1250))[..], expected);
    }

    /// Answers each connection's call with one of `scripts`, in turn.
    async fn serve(listener: TcpListener, scripts: Vec<(&'static str, Vec<Bytes>)>) {
        for (status, parts) in scripts {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = server::handshake(stream).await.unwrap();
            let (request, mut respond) = connection.accept().await.unwrap().unwrap();
            assert_eq!(request.uri().path(), METHOD);
            let answer = Response::builder()
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let mut body = respond.send_response(answer, false).unwrap();
            for part in parts {
                body.send_data(part, false).unwrap();
            }
            if status.is_empty() {
                // It goes on: until the client has gone.
                while connection.accept().await.is_some() {}
                continue;
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.parse().unwrap());
            body.send_trailers(trailers).unwrap();
            while connection.accept().await.is_some() {}
        }
    }

    fn message(bytes: &[u8]) -> Vec<u8> {
        let mut message = vec![0];
        message.extend((bytes.len() as u32).to_be_bytes());
        message.extend(bytes);
        message
    }

    fn cpu(load: f64) -> Vec<u8> {
        let mut report = vec![1 << 3 | 1];
        report.extend(load.to_le_bytes());
        message(&report)
    }

    #[tokio::test]
    async fn a_stream_is_read_and_begun_anew() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = format!(
            "[group.g]\nmembers = [\"127.0.0.1:{port}\"]\n\
             orca = {{ headers = false, out_of_band = {{ interval = \"10ms\" }} }}"
        );
        let manager = Manager::new(Clock::start(), Arc::new(()));
        manager
            .apply_config(config::parse("t", &text).unwrap())
            .await
            .unwrap();
        let handle = manager.handles().remove(0);
        let count = |fate| handle.reports.count_of(Streams::ORIGIN, fate);

        // Two reports in three parts, and one that is NaN; then the server ends it.
        let both = [cpu(0.5), cpu(0.75)].concat();
        let (a, b) = both.split_at(7);
        let (b, c) = b.split_at(10);
        let parts = [a, b, c, &cpu(f64::NAN)].map(Bytes::copy_from_slice);
        let too_long = Bytes::from_static(b"\0\xff\xff\xff\xff");
        let serving = tokio::spawn(serve(
            listener,
            vec![
                ("14", parts.into()),
                ("0", vec![too_long]),
                // 0 is not written.
                ("", vec![cpu(0.25).into(), message(b"").into()]),
            ],
        ));
        let following = tokio::spawn(crate::run(Arc::clone(&manager)));
        let all_read = async {
            while count(ReportOutcome::Taken) < 4 {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(Duration::from_secs(30), all_read).await.unwrap();
        let location = manager.find_location("127.0.0.1").unwrap();
        let cpu = location
            .last_load(LoadId::CPU, manager.clock().now())
            .unwrap();
        assert_eq!(
            cpu.value.get(),
            0.0,
            "all that is said is that nothing is done"
        );
        assert_eq!(
            (
                count(ReportOutcome::BadValue),
                count(ReportOutcome::TooLong)
            ),
            (1, 1)
        );
        assert_eq!(count(ReportOutcome::Failed), 1);

        // Who is not followed any more is let go.
        manager
            .apply_config(config::Config::default())
            .await
            .unwrap();
        timeout(Duration::from_secs(30), serving)
            .await
            .unwrap()
            .unwrap();
        following.abort();
    }
}

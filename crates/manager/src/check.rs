//! Active health checks (keep-alive): one task per member, results into
//! [`evenkeel_control::health`].

use std::sync::Arc;

use evenkeel_control::health::{self, Change, Check, Limits, first_check, next_check};
use evenkeel_core::address::Address;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_limits::files;
use evenkeel_net::Tasks;
use evenkeel_tls::client::Client;
use tokio::sync::Semaphore;
use tokio::time::{Duration, sleep, timeout};
use tracing::{info, warn};

use crate::config::{HealthCheck, SendProxy};
use crate::manager::{ManageError, Manager, find_entry};
use crate::probe::{CheckError, Target, check_once};
use crate::sample::CheckedNow;
use crate::state::{Checked, Endpoint, GroupEntry};

/// A time limit is counted in pieces of this length, see [`within`].
const PIECE: Duration = Duration::from_millis(100);

impl Target {
    fn of(
        endpoint: &Endpoint,
        check: &HealthCheck,
        tls: Option<&Arc<Client>>,
        send_proxy: Option<SendProxy>,
    ) -> Self {
        let tls = tls.filter(|_| !check.plain);
        let usual = if tls.is_some() { 443 } else { 80 };
        let port = check.port.unwrap_or(endpoint.port);
        let own = &endpoint.member.address;
        let host = match own {
            Address::Unix(_) => "localhost".into(),
            Address::Ip(_) if endpoint.host.contains(':') => format!("[{}]", endpoint.host),
            Address::Ip(_) => endpoint.host.clone(),
        };
        let address = own.at_port(port).map(Address::Ip);
        Target {
            host: match address.is_none() || port == usual {
                true => host,
                false => format!("{host}:{port}"),
            },
            address: address.unwrap_or_else(|| own.clone()),
            name: endpoint.host.clone(),
            check: check.clone(),
            tls: tls.cloned(),
            // What answers at another port is somebody else.
            send_proxy: send_proxy.filter(|_| port == endpoint.port),
        }
    }
}

impl Manager {
    /// Checks all members of groups that have a check.
    pub(crate) async fn check_members(self: &Arc<Self>) {
        // So that their sockets stay few, and clients leave files for them. With files in
        // plenty, enough for 256 members that let every check run into its timeout.
        let permits = Arc::new(Semaphore::new(files::Shares::of_process().checks));
        let mut tasks = Tasks::default();
        let mut changes = self.subscribe_changes();
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
    ///
    /// Answers whether the member is dead: down, for certain.
    fn checked(
        &self,
        member: MemberId,
        check: &HealthCheck,
        result: Result<(), CheckError>,
    ) -> bool {
        let now = self.clock().now();
        let mut owned = self.lock();
        let Some((handle, endpoint)) = owned.state.endpoint_mut(member) else {
            return false;
        };
        let group = handle.current.load();
        let group = group.name();
        let own_port = check.port.is_none_or(|port| port == endpoint.port);
        let certain = own_port && result.as_ref().is_err_and(CheckError::is_certain);
        let found = match &result {
            Ok(()) => Check::Passed,
            Err(_) if certain => Check::Certain,
            Err(_) => Check::Failed,
        };
        let checked = take_in(endpoint, check, found, now);
        let member = &endpoint.member.name;
        let member_name = endpoint.member.given_name.as_deref();
        match checked.change {
            Some(Change::Up) => info!(%group, %member, member_name, "member is up"),
            Some(Change::Down) => {
                let error = result.as_ref().err().map(tracing::field::display);
                warn!(%group, %member, member_name, error, "member is down");
            }
            None => {}
        }
        if checked.makes_room {
            handle.queue.call_all();
        }
        endpoint.checked = Some(Checked {
            at: now,
            error: result.err().map(|error| error.to_string().into()),
        });
        checked.dead
    }
}

/// Takes the result of a check into the member's health.
pub(crate) fn take_in(
    endpoint: &mut Endpoint,
    check: &HealthCheck,
    found: Check,
    now: Instant,
) -> health::Checked {
    let limits = Limits {
        fall: check.fall,
        rise: check.rise,
    };
    let of = (&*endpoint.member.slot, &mut endpoint.source_reports);
    endpoint
        .health
        .apply_check(found, limits, of, endpoint.weight, now)
}

impl Manager {
    /// Checks a member once, now: as its group checks it, or whether it takes a connection where the group
    /// has no check. The result of a check counts as that of any other; a connection does not.
    ///
    /// # Errors
    ///
    /// There is no such group or member.
    pub async fn check_now(&self, group: &str, member: &str) -> Result<CheckedNow, ManageError> {
        let (id, configured, target) = {
            let owned = self.lock();
            let entry = find_entry(&owned.state, group)?;
            let endpoint = entry.find_endpoint(member);
            let endpoint = endpoint.ok_or_else(|| ManageError::NoMember {
                group: group.into(),
                member: member.into(),
            })?;
            let configured = entry.config.health_check.clone();
            let only_connects = HealthCheck {
                plain: true,
                ..HealthCheck::default()
            };
            let has_address = match &endpoint.member.address {
                Address::Ip(address) => endpoint.resolved && address.port() != 0,
                Address::Unix(_) => true,
            };
            let target = match &configured {
                _ if !has_address => None,
                Some(check) => Some(Target::of(
                    endpoint,
                    check,
                    entry.tls.as_ref(),
                    entry.config.send_proxy,
                )),
                None => Some(Target::of(endpoint, &only_connects, None, None)),
            };
            (endpoint.member.id, configured, target)
        };
        let Some(target) = target else {
            return Ok(CheckedNow {
                error: Some(
                    "the member has no address to connect to: its name is not resolved, or clients find the member by a reference".into(),
                ),
                took: Duration::ZERO,
                check_name: "nothing".into(),
            });
        };
        let _permit = self.asked_checks.acquire().await;
        let started = tokio::time::Instant::now();
        let limit = target.check.timeout;
        let result = match within(limit, check_once(&target)).await {
            Some(result) => result,
            None => Err(CheckError::Timeout(limit)),
        };
        let took = started.elapsed();
        let error = result.as_ref().err();
        let mut said = error.map(ToString::to_string);
        let shortage = error.and_then(CheckError::shortage);
        match (shortage, &configured) {
            (Some(shortage), _) => {
                shortage.report_failure("check a member's health");
                said =
                    said.map(|said| format!("{said}; the balancer has run out of a resource, so the check does not count"));
            }
            (None, Some(check)) => {
                self.checked(id, check, result);
            }
            (None, None) => {}
        }
        Ok(CheckedNow {
            error: said,
            took,
            check_name: match &configured {
                Some(_) => "the health check of the group".into(),
                None => {
                    "a connection only, which does not count: the group has no health check".into()
                }
            },
        })
    }
}

fn targets(entry: &GroupEntry) -> Vec<(MemberId, Target)> {
    let Some(check) = &entry.config.health_check else {
        return Vec::new();
    };
    let resolved = entry.endpoints.iter().filter(|endpoint| endpoint.resolved);
    resolved
        .map(|endpoint| {
            (
                endpoint.member.id,
                Target::of(endpoint, check, entry.tls.as_ref(), entry.config.send_proxy),
            )
        })
        .collect()
}

async fn check_forever(
    manager: Arc<Manager>,
    permits: Arc<Semaphore>,
    member: MemberId,
    target: Target,
) {
    let check = &target.check;
    sleep(first_check(check.interval, fastrand::f32())).await;
    loop {
        let started = tokio::time::Instant::now();
        let result = {
            let _permit = permits.acquire().await;
            match within(check.timeout, check_once(&target)).await {
                Some(result) => result,
                None => Err(CheckError::Timeout(check.timeout)),
            }
        };
        let shortage = result.as_ref().err().and_then(CheckError::shortage);
        let soon = match shortage {
            Some(shortage) => {
                // It says nothing about the member, which stays as it is.
                shortage.report_failure("check a member's health");
                true
            }
            // Panic mode does not use dead members: it must be found out soon when one is back.
            None => manager.checked(member, check, result),
        };
        let pause = next_check(check.interval, soon, fastrand::f32());
        sleep(pause.saturating_sub(started.elapsed())).await;
    }
}

/// Returns the answer of `future`, unless the answer takes longer than `limit`.
///
/// The limit is the peer's, so time in which this process did not run (the process was suspended, or got no
/// CPU) must not count: the process could not have seen what arrived meanwhile. Hence the limit is counted in
/// pieces, each of which counts as its length however long it took.
async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(future);
    let mut left = limit;
    while !left.is_zero() {
        let piece = left.min(PIECE);
        if let Ok(done) = timeout(piece, future.as_mut()).await {
            return Some(done);
        }
        left -= piece;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io;

    use evenkeel_limits::Shortage;
    use evenkeel_net::Clock;
    use evenkeel_wire::response::Reader;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::{Config, GroupConfig, HealthCheckKind, MemberConfig};
    use crate::probe::{FurtherInput, Judge, MAX_RESPONSE};

    fn http(codes: &[u16], text: Option<&str>) -> HealthCheck {
        HealthCheck {
            path: "/healthz?full=1".into(),
            codes: codes.to_vec(),
            text: text.map(Into::into),
            ..HealthCheck::new(HealthCheckKind::Http)
        }
    }

    /// A listener on loopback, and a target that checks it.
    async fn target(check: HealthCheck) -> (TcpListener, Target) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target {
            address: listener.local_addr().unwrap().into(),
            host: "app.example:8080".into(),
            name: "app.example".into(),
            check,
            tls: None,
            send_proxy: None,
        };
        (listener, target)
    }

    /// Answers one connection and closes it; returns what was asked.
    async fn answer(listener: &TcpListener, response: &[u8]) -> String {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            assert!(stream.read_buf(&mut request).await.unwrap() > 0);
        }
        // The checker may have seen enough and be gone.
        let _ = stream.write_all(response).await;
        String::from_utf8(request).unwrap()
    }

    async fn check(check: HealthCheck, response: &[u8]) -> Result<(), CheckError> {
        let (listener, target) = target(check).await;
        tokio::join!(check_once(&target), answer(&listener, response)).0
    }

    #[tokio::test]
    async fn asks_as_configured() {
        let (listener, mut target) = target(http(&[200], None)).await;
        let ok = b"HTTP/1.1 200 OK\r\n\r\n";
        let (result, asked) = tokio::join!(check_once(&target), answer(&listener, ok));
        result.unwrap();
        assert!(
            asked.starts_with("GET /healthz?full=1 HTTP/1.1\r\nHost: app.example:8080\r\n"),
            "{asked}"
        );
        target.check.host = Some("other".into());
        let (_, asked) = tokio::join!(check_once(&target), answer(&listener, ok));
        assert!(asked.contains("\r\nHost: other\r\n"), "{asked}");
    }

    #[tokio::test]
    async fn code_and_text_must_match() {
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nready";
        check(http(&[200], None), ok).await.unwrap();
        check(http(&[200], Some("ready")), ok).await.unwrap();
        let wrong = check(http(&[200], Some("Ready")), ok).await;
        assert!(matches!(wrong, Err(CheckError::Text)), "{wrong:?}");
        let wrong = check(http(&[204, 301], None), ok).await;
        assert!(matches!(wrong, Err(CheckError::Code(200))), "{wrong:?}");
        // The text must be in the body.
        let head = b"HTTP/1.1 200 OK\r\nX-State: ready\r\n\r\nbooting";
        let wrong = check(http(&[200], Some("ready")), head).await;
        assert!(matches!(wrong, Err(CheckError::Text)), "{wrong:?}");
        // Behind the end of the body is nothing.
        let more = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnotready";
        let wrong = check(http(&[200], Some("ready")), more).await;
        assert!(matches!(wrong, Err(CheckError::Text)), "{wrong:?}");
    }

    #[tokio::test]
    async fn text_over_several_chunks_is_found() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nall\r\n5;x=y\r\n is w\r\n3\r\nell\r\n0\r\n\r\n";
        check(http(&[200], Some("all is well")), chunked)
            .await
            .unwrap();
        let wrong = check(http(&[200], Some("5;x")), chunked).await;
        assert!(matches!(wrong, Err(CheckError::Text)), "{wrong:?}");
    }

    #[tokio::test]
    async fn an_interim_response_is_not_the_answer() {
        let early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 500 Oops\r\n\r\n";
        let wrong = check(http(&[103, 200], None), early).await;
        assert!(matches!(wrong, Err(CheckError::Code(500))), "{wrong:?}");
    }

    #[tokio::test]
    async fn what_is_not_http_fails() {
        for garbage in [
            &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
            b"HTTP/1.1 20 OK\r\n\r\n",
            b"HTTP/1.1 2000 OK\r\n\r\n",
            b"HTTP/2.0 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\n\n",
            b"HTTP/1.1 999 OK\r\n\r\n",
            b"\x16\x03\x01\x02\x00",
        ] {
            let shown = String::from_utf8_lossy(garbage);
            let result = check(http(&[200, 999], None), garbage).await;
            assert!(
                matches!(result, Err(CheckError::Garbage)),
                "{shown} {result:?}"
            );
        }
        let short = check(http(&[200], None), b"HTTP/1.1 200 OK\r\nServ").await;
        assert!(matches!(short, Err(CheckError::Closed)), "{short:?}");
    }

    #[tokio::test]
    async fn a_response_is_read_to_a_limit() {
        let mut endless = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
        endless.resize(MAX_RESPONSE + 10, b'x');
        let result = check(http(&[200], None), &endless).await;
        assert!(matches!(result, Err(CheckError::LongHead)), "{result:?}");

        let mut late = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        late.resize(MAX_RESPONSE, b' ');
        late.extend_from_slice(b"ready");
        let result = check(http(&[200], Some("ready")), &late).await;
        assert!(matches!(result, Err(CheckError::Text)), "{result:?}");
    }

    #[tokio::test]
    async fn a_connection_is_enough_for_tcp() {
        let (listener, target) = target(HealthCheck::default()).await;
        check_once(&target).await.unwrap();
        drop(listener);
        let refused = check_once(&target).await;
        assert!(
            matches!(refused, Err(CheckError::Connect(_))),
            "{refused:?}"
        );
    }

    #[test]
    fn s5_a_shortage_here_is_no_failed_check() {
        let code = io::Error::from_raw_os_error;
        let (too_many_files, no_port, refused) = (24, 99, 111);
        let connect = |number| CheckError::Connect(code(number)).shortage();
        assert_eq!(connect(too_many_files), Some(Shortage::Files));
        assert_eq!(connect(no_port), Some(Shortage::Ports));
        assert_eq!(connect(refused), None);
        assert_eq!(CheckError::Closed.shortage(), None);
        assert_eq!(CheckError::Timeout(PIECE).shortage(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn s5_time_in_which_we_stood_still_is_not_the_members() {
        // The member answers after 0.9 of its 1 s; in between this process stands still for
        // an hour.
        let limit = Duration::from_secs(1);
        let member = async {
            sleep(Duration::from_millis(300)).await;
            tokio::time::advance(Duration::from_secs(3600)).await;
            for _ in 0..6 {
                sleep(Duration::from_millis(100)).await;
            }
        };
        assert_eq!(within(limit, member).await, Some(()));
        let silent = sleep(Duration::from_millis(1001));
        assert_eq!(within(limit, silent).await, None);
    }

    /// A manager with one checked member, which listens at `listener`.
    async fn manager(listener: &TcpListener, check: HealthCheck) -> Arc<Manager> {
        let address = listener.local_addr().unwrap();
        let member = MemberConfig::new(&address.ip().to_string(), address.port());
        let mut group = GroupConfig::new("app", vec![member]);
        group.health_check = Some(HealthCheck {
            fall: 2,
            rise: 1,
            ..check
        });
        let manager = Manager::new(Clock::start(), Arc::new(()));
        let config = Config {
            groups: vec![group.into()],
            ..Config::default()
        };
        manager.apply_config(config).await.unwrap();
        manager
    }

    fn member(manager: &Manager) -> crate::status::MemberStatus {
        manager.status().groups.remove(0).members.remove(0)
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_accepts_and_never_answers_goes_down() {
        let (listener, _) = target(HealthCheck::default()).await;
        let manager = manager(&listener, http(&[200], None)).await;
        let running = tokio::spawn(Arc::clone(&manager).run());
        // The kernel accepts; nobody answers, so that only the timeout is left.
        while member(&manager).state != "down" {
            sleep(Duration::from_millis(100)).await;
        }
        let error = member(&manager).check.unwrap().error.unwrap();
        assert_eq!(error, "the check was not done within 1s");

        // Without the check nobody says that it is down.
        let mut config = manager.file_config();
        config.groups[0].health_check = None;
        manager.apply_config(config).await.unwrap();
        assert_eq!(member(&manager).check, None);
        assert!(member(&manager).reasons.is_empty());
        running.abort();
    }

    #[tokio::test]
    async fn a_member_goes_down_and_comes_back() {
        let (listener, _) = target(HealthCheck::default()).await;
        let check = http(&[200], None);
        let manager = manager(&listener, check.clone()).await;
        let group = manager.list_groups().remove(0);
        let id = group.members()[0].id;
        let check = HealthCheck {
            fall: 2,
            rise: 1,
            ..check
        };
        let checked = |result| {
            manager.checked(id, &check, result);
            member(&manager).state
        };
        assert_eq!(checked(Ok(())), "up");
        assert_eq!(checked(Err(CheckError::Code(503))), "up");
        assert_eq!(checked(Err(CheckError::Code(503))), "down");
        let error = member(&manager).check.unwrap().error;
        assert_eq!(error.as_deref(), Some("response code 503"));
        // A reload keeps what is known.
        manager.apply_config(manager.file_config()).await.unwrap();
        assert_eq!(member(&manager).state, "down");
        assert_eq!(checked(Ok(())), "warming");
        // A late result of a member that is gone is nobody's.
        manager.apply_config(Config::default()).await.unwrap();
        manager.checked(id, &check, Ok(()));
    }

    #[tokio::test]
    async fn who_refuses_connections_is_dead_even_in_panic_t1() {
        let (listener, _) = target(HealthCheck::default()).await;
        let manager = manager(&listener, HealthCheck::default()).await;
        let id = manager.list_groups().remove(0).members()[0].id;
        let check = |port| HealthCheck {
            fall: 1,
            rise: 2,
            port,
            ..HealthCheck::default()
        };
        let refused = || Err(CheckError::Connect(io::ErrorKind::ConnectionRefused.into()));
        let may_be_picked = || {
            manager.round_now();
            member(&manager).effective_weight > 0.0
        };
        // Another port may be refused for reasons of its own, and a timeout is an opinion:
        // nobody else could take the traffic, so it is not believed.
        manager.checked(id, &check(Some(1)), refused());
        assert_eq!(member(&manager).reasons, ["down"]);
        assert!(may_be_picked());
        assert!(manager.checked(id, &check(None), refused()));
        assert_eq!(member(&manager).reasons, ["down", "dead"]);
        assert!(!may_be_picked());
        // A reload knows it, too.
        manager.apply_config(manager.file_config()).await.unwrap();
        assert!(!may_be_picked());
        // As soon as it accepts a connection it may be tried, before it counts as up.
        assert!(!manager.checked(id, &check(None), Ok(())));
        assert_eq!(member(&manager).reasons, ["down"]);
        assert!(may_be_picked());
        assert!(manager.checked(id, &check(None), refused()));
        let mut config = manager.file_config();
        config.groups[0].health_check = None;
        manager.apply_config(config).await.unwrap();
        assert!(member(&manager).reasons.is_empty());
    }

    /// An answer that says that the member does not work is as certain as none at all: the one that works serves.
    #[tokio::test]
    async fn mission_d13_who_answers_wrongly_is_dead_even_in_panic() {
        let (listener, _) = target(HealthCheck::default()).await;
        let manager = manager(&listener, http(&[200], None)).await;
        let id = manager.list_groups().remove(0).members()[0].id;
        let check = |port| HealthCheck {
            fall: 1,
            rise: 1,
            port,
            ..http(&[200], None)
        };
        for (port, error, dead) in [
            (None, CheckError::Code(500), true),
            (None, CheckError::Text, true),
            (None, CheckError::NotServing("NOT_SERVING"), true),
            (None, CheckError::Timeout(Duration::from_secs(1)), false),
            (None, CheckError::Closed, false),
            (None, CheckError::Garbage, false),
            // Who answers at another port may be somebody else.
            (Some(1), CheckError::Code(500), false),
        ] {
            let what = format!("{error} {port:?}");
            assert_eq!(
                manager.checked(id, &check(port), Err(error)),
                dead,
                "{what}"
            );
            let reasons = member(&manager).reasons;
            assert_eq!(reasons.contains(&"dead".into()), dead, "{what}");
            manager.round_now();
            assert_eq!(member(&manager).effective_weight > 0.0, !dead, "{what}");
            assert!(!manager.checked(id, &check(None), Ok(())));
            assert!(member(&manager).reasons.is_empty());
        }
    }

    #[test]
    fn host_field_has_the_port_unless_it_is_80() {
        let host = |name: &str, port| {
            let mut state = crate::state::State::empty();
            let mut inputs = state.inputs.clone();
            let member = MemberConfig::new(name, port);
            Arc::make_mut(&mut inputs.config).groups =
                vec![GroupConfig::new("app", vec![member]).into()];
            state = state.next(inputs, 1, evenkeel_core::time::Instant::from_nanos(1));
            let check = HealthCheck::new(HealthCheckKind::Tcp);
            Target::of(&state.groups[0].endpoints[0], &check, None, None).host
        };
        assert_eq!(host("app.example", 80), "app.example");
        assert_eq!(host("app.example", 8080), "app.example:8080");
        assert_eq!(host("fd00::1", 80), "[fd00::1]");
        assert_eq!(host("fd00::1", 81), "[fd00::1]:81");
    }

    /// The beginning of a response, or of none, and bytes of all kinds.
    fn responses() -> impl Strategy<Value = Vec<u8>> {
        let head = prop_oneof![
            Just(&b""[..]),
            Just(&b"HTTP/1.1 200 OK\r\n\r\n"[..]),
            Just(&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..]),
            Just(&b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"[..]),
            Just(&b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"[..]),
        ];
        // Digits of chunks: one of a number, one that is a letter.
        let byte = prop_oneof![
            any::<u8>(),
            Just(b'\r'),
            Just(b'\n'),
            Just(b'1'),
            Just(b'3'),
            Just(b'f')
        ];
        let rest = proptest::collection::vec(byte, 0..60);
        (head, rest).prop_map(|(head, rest)| [head, &rest].concat())
    }

    proptest! {
        /// Whatever arrives, and in whatever pieces, there is a verdict at the end and
        /// no panic; an earlier verdict stays.
        #[test]
        fn any_bytes_are_judged(
            all in responses(),
        ) {
            let judge = || Judge {
                codes: &[200],
                text: b"1\n",
                response: Reader::new(),
                searched: 0,
            };
            let end = judge().next(&all, FurtherInput::Closed);
            prop_assert!(end.is_some());
            let mut dripped = judge();
            let mut early = all.chunks(1).filter_map(|byte| dripped.next(byte, FurtherInput::Open));
            if let Some(first) = early.next() {
                prop_assert_eq!(first.is_ok(), end.is_some_and(|end| end.is_ok()));
            }
        }
    }
}

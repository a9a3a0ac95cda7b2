//! Monitors and alerts against objects that answer, fail, lie and hang.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::Corba as Settings;
use evenkeel_core::load::{LoadId, Location, SheddingOrder};
use evenkeel_giop::any::Idl;
use evenkeel_giop::cdr::{Endian, Writer};
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::ior::Ior;
use evenkeel_giop::message::{Content, GiopError, Message, Version};
use evenkeel_giop::server::{ReplyOutput, Server, Service};
use tokio::net::TcpListener;
use tokio::task::LocalSet;

use crate::alerts::Alerts;
use crate::call::Outcome;
use crate::monitors::{self, LoadReportError, check_loads};
use crate::name::Name;
use crate::reply_to::ReplyTo;
use crate::service::LoadManager;
use crate::service::tests::{settings, start};
use crate::types::Load;

/// Behaviour of an object when it is called.
#[derive(Clone)]
enum Does {
    /// A monitor answers these loads; an alert carries out the call.
    Answer(Vec<Load>),
    /// The object raises TRANSIENT.
    Fail,
    /// The object does not answer.
    Hang,
}

/// Objects of the application. The first byte of a key is the number of the object.
#[derive(Default)]
struct Application {
    does: RefCell<Vec<Does>>,
    /// Calls: object and operation.
    called: RefCell<Vec<(u8, String)>>,
    address: Cell<Option<SocketAddr>>,
}

struct Objects(Rc<Application>);

impl Service for Objects {
    type Connection = ();

    fn connected(&self, _: SocketAddr) {}

    fn message(
        &self,
        (): &mut (),
        message: Message<'_>,
        out: &ReplyOutput<'_>,
    ) -> Result<(), GiopError> {
        let (version, endian) = (message.header.version, message.header.endian);
        let Content::Request(request) = message.read_content()? else {
            return Ok(());
        };
        let object = request.target.object_key().unwrap()[0];
        let call = (object, request.operation.to_string());
        self.0.called.borrow_mut().push(call);
        let reply_to = ReplyTo::of_request(&request, version, endian).unwrap();
        let outcome = match self.0.does.borrow()[usize::from(object)].clone() {
            Does::Hang => return Ok(()),
            Does::Fail => Outcome::System(SystemException::new(Kind::Transient)),
            Does::Answer(loads) => {
                let mut writer = Writer::at_offset(24, endian);
                loads.write(&mut writer);
                let void = request.operation != "_get_loads";
                Outcome::Reply(if void {
                    Vec::new()
                } else {
                    writer.into_bytes()
                })
            }
        };
        assert!(version == Version::V1_2 && endian == Endian::NATIVE);
        out.write(|out| reply_to.write_outcome(&outcome, out));
        Ok(())
    }
}

impl Application {
    /// Objects that do this, in the current local set.
    async fn start(does: Vec<Does>) -> Rc<Self> {
        let application = Rc::new(Application::default());
        *application.does.borrow_mut() = does;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        application.address.set(listener.local_addr().ok());
        let server = Server::new(evenkeel_giop::server::Settings::default());
        let objects = Rc::new(Objects(Rc::clone(&application)));
        tokio::task::spawn_local(async move {
            server
                .serve_clients(listener, objects, std::future::pending())
                .await;
        });
        application
    }

    fn reference(&self, object: u8) -> Ior {
        let address = self.address.get().unwrap();
        Ior::new_iiop("", &address.ip().to_string(), address.port(), &[object])
    }

    fn does(&self, object: u8, does: Does) {
        self.does.borrow_mut()[usize::from(object)] = does;
    }

    /// Operations that were called at an object.
    fn calls(&self, object: u8) -> Vec<String> {
        let called = self.called.borrow();
        let calls = called.iter().filter(|(of, _)| *of == object);
        calls.map(|(_, operation)| operation.clone()).collect()
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    // The test's own limit ends it otherwise.
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn quick() -> Settings {
    Settings {
        pull_interval: Duration::from_millis(20),
        // Many intervals, on a busy machine, too.
        pull_timeout: Duration::from_secs(2),
        alert_retry: Duration::from_millis(100),
        ..settings()
    }
}

fn cpu(value: f32) -> Vec<Load> {
    vec![Load { id: 0, value }]
}

fn place(lm: &LoadManager, name: &str) -> Arc<Location> {
    lm.manager().find_location(name).unwrap()
}

#[test]
fn loads_are_taken_as_a_whole_or_not_at_all() {
    assert_eq!(check_loads(&[]), Err(LoadReportError::Empty));
    for value in [f32::NAN, -0.1, f32::INFINITY, f32::NEG_INFINITY, 2e12] {
        let loads = [Load { id: 0, value: 0.5 }, Load { id: 4, value }];
        let refused = check_loads(&loads);
        assert!(
            matches!(refused, Err(LoadReportError::Value { id: LoadId(4), .. })),
            "{value}: {refused:?}"
        );
    }
    assert_eq!(check_loads(&cpu(0.5)).unwrap().len(), 1);
}

/// Fault: one failing monitor stopped the whole round, and monitors were asked one after
/// another.
#[tokio::test]
async fn a_monitor_that_hangs_or_lies_stops_nobody() {
    let local = LocalSet::new();
    local
        .run_until(async {
            let lies = vec![
                Load { id: 0, value: 0.2 },
                Load {
                    id: 1,
                    value: f32::NAN,
                },
            ];
            let application = Application::start(vec![
                Does::Hang,
                Does::Fail,
                Does::Answer(lies),
                Does::Answer(cpu(0.25)),
            ])
            .await;
            let lm = start(quick()).await;
            for (object, name) in (0..4).zip(["a", "b", "c", "d"]) {
                let (at, reference) = (Name::from_id(name), application.reference(object));
                assert!(lm.register_load_monitor(&at, reference).await.is_ok());
            }
            let counters = Arc::new(monitors::Counters::default());
            let asking = tokio::spawn(monitors::pull_loads(Arc::clone(&lm), Arc::clone(&counters)));
            let count = |what: &str| {
                let totals = counters.question_totals();
                totals.iter().find(|(name, _)| *name == what).unwrap().1
            };
            // It is asked again and again while the first one hangs.
            until(|| application.calls(3).len() > 2).await;
            assert_eq!(count("timeout"), 0);
            until(|| count("timeout") > 0).await;
            until(|| count("refused") > 1 && count("exception") > 1).await;
            let load = |name: &str| {
                let now = lm.manager().clock().now();
                place(&lm, name)
                    .last_load(LoadId::CPU, now)
                    .map(|load| load.value.get())
            };
            assert_eq!(
                [load("a"), load("b"), load("c"), load("d")],
                [None, None, None, Some(0.25)]
            );
            // One that recovers is heard.
            application.does(1, Does::Answer(cpu(0.75)));
            until(|| load("b") == Some(0.75)).await;
            // One that is gone is not asked any more.
            assert!(lm.remove_load_monitor(&Name::from_id("d")).await.is_ok());
            let asked = application.calls(1).len();
            until(|| application.calls(1).len() > asked + 1).await;
            let before = application.calls(3).len();
            until(|| application.calls(1).len() > asked + 4).await;
            assert_eq!(application.calls(3).len(), before);
            asking.abort();
        })
        .await;
}

#[tokio::test]
async fn alerts_are_told_until_they_acknowledge_and_one_that_hangs_stops_nobody() {
    let local = LocalSet::new();
    local
        .run_until(async {
            let application =
                Application::start(vec![Does::Answer(Vec::new()), Does::Fail, Does::Hang]).await;
            let lm = start(quick()).await;
            for (object, name) in (0..3).zip(["a", "b", "c"]) {
                let (at, reference) = (Name::from_id(name), application.reference(object));
                assert!(lm.register_load_alert(&at, reference).await.is_ok());
            }
            let alerts = Arc::new(Alerts::default());
            let (telling, service) = (Arc::clone(&alerts), Arc::clone(&lm));
            let telling = tokio::spawn(async move { telling.run(service).await });
            let acknowledged = |name: &str| {
                let states = alerts.list_states();
                states
                    .into_iter()
                    .find(|view| view.location == name)
                    .unwrap()
                    .acknowledged
            };
            // What they know is unknown at first, so they are told.
            until(|| acknowledged_by(&alerts, "a") == Some(false)).await;
            assert_eq!(application.calls(0), ["disable_alert"]);
            for name in ["a", "b", "c"] {
                place(&lm, name).set_tell(SheddingOrder::On);
            }
            until(|| acknowledged("a") == Some(true)).await;
            assert!(place(&lm, "a").is_shut(), "its clients are sent back");
            assert_eq!(application.calls(0), ["disable_alert", "enable_alert"]);

            until(|| {
                application
                    .calls(1)
                    .iter()
                    .filter(|c| *c == "enable_alert")
                    .count()
                    > 2
            })
            .await;
            assert_eq!(acknowledged("b"), None);
            application.does(1, Does::Answer(Vec::new()));
            until(|| acknowledged("b") == Some(true)).await;

            place(&lm, "a").set_tell(SheddingOrder::Pulses);
            until(|| acknowledged("a") == Some(false)).await;
            assert!(!place(&lm, "a").is_shut());
            // Nobody acknowledged, so it may still send clients away.
            place(&lm, "c").set_tell(SheddingOrder::Pulses);
            until(|| application.calls(2).last().unwrap() == "disable_alert").await;
            assert!(place(&lm, "c").is_shut());
            application.does(2, Does::Answer(Vec::new()));
            until(|| !place(&lm, "c").is_shut()).await;

            // Another object at the same place knows nothing.
            assert!(lm.remove_load_alert(&Name::from_id("a")).await.is_ok());
            let (at, reference) = (Name::from_id("a"), application.reference(0));
            assert!(lm.register_load_alert(&at, reference).await.is_ok());
            until(|| application.calls(0).len() == 4).await;
            assert_eq!(application.calls(0)[3], "disable_alert");
            telling.abort();
        })
        .await;
}

#[tokio::test]
async fn c8_only_alerts_of_which_there_is_news_are_looked_at() {
    const MANY: usize = 500;
    let local = LocalSet::new();
    local
        .run_until(async {
            let application = Application::start(vec![Does::Answer(Vec::new())]).await;
            let lm = start(quick()).await;
            let name = |number: usize| format!("place{number}");
            for number in 0..MANY {
                let (at, reference) = (Name::from_id(&name(number)), application.reference(0));
                assert!(lm.register_load_alert(&at, reference).await.is_ok());
            }
            let alerts = Arc::new(Alerts::default());
            let (telling, service) = (Arc::clone(&alerts), Arc::clone(&lm));
            let telling = tokio::spawn(async move { telling.run(service).await });
            until(|| {
                let states = alerts.list_states();
                states.len() == MANY && states.iter().all(|v| v.acknowledged == Some(false))
            })
            .await;
            let before = alerts.counters().count_object_looks();
            // Time in which all of them would be looked at again and again if that were how.
            tokio::time::sleep(Duration::from_millis(100)).await;
            place(&lm, &name(7)).set_tell(SheddingOrder::On);
            until(|| acknowledged_by(&alerts, &name(7)) == Some(true)).await;
            let looks = alerts.counters().count_object_looks() - before;
            assert!(looks < 20, "{looks} looks at {MANY} alerts for one of them");
            telling.abort();
        })
        .await;
}

/// The call that was under way when the service was switched off has no answer.
#[tokio::test]
async fn alerts_are_told_again_after_off_and_on_c1() {
    let local = LocalSet::new();
    local
        .run_until(async {
            let application = Application::start(vec![Does::Hang]).await;
            let lm = start(quick()).await;
            let (at, reference) = (Name::from_id("a"), application.reference(0));
            assert!(lm.register_load_alert(&at, reference).await.is_ok());
            let alerts = Arc::new(Alerts::default());
            let run = || {
                let (telling, service) = (Arc::clone(&alerts), Arc::clone(&lm));
                tokio::spawn(async move { telling.run(service).await })
            };
            let telling = run();
            until(|| !application.calls(0).is_empty()).await;
            telling.abort();
            assert!(telling.await.unwrap_err().is_cancelled());
            lm.close().unwrap();
            application.does(0, Does::Answer(Vec::new()));
            lm.configure(Arc::new(quick()), crate::service::tests::address())
                .unwrap();
            let telling = run();
            until(|| acknowledged_by(&alerts, "a") == Some(false)).await;
            place(&lm, "a").set_tell(SheddingOrder::On);
            until(|| acknowledged_by(&alerts, "a") == Some(true)).await;
            telling.abort();
        })
        .await;
}

fn acknowledged_by(alerts: &Alerts, name: &str) -> Option<bool> {
    let mut states = alerts.list_states().into_iter();
    states.find(|view| view.location == name)?.acknowledged
}

//! A server of the application: factories, and the members that they make.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

use evenkeel_giop::any::{Any, Idl};
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::ior::Ior;
use evenkeel_giop::message::{Content, GiopError, Message};
use evenkeel_giop::server::{self, ReplyOutput, Server, Service};
use tokio::sync::oneshot;

use crate::call::{Call, Outcome};
use crate::exceptions::UserException;
use crate::reply_to::ReplyTo;
use crate::service::raise::Raise;
use crate::types::Properties;

/// Actions and behaviour of the server.
#[derive(Default)]
pub(super) struct Doings {
    /// Number of members that the server has made.
    made: u32,
    /// Creation ids of the members that are there.
    pub there: BTreeSet<u32>,
    /// The criteria that factories were given, by their keys.
    pub criteria: BTreeMap<String, Properties>,
    /// Factories that make nothing.
    pub refuses: BTreeSet<String>,
    /// Exceptions that objects raise to any request, by their keys.
    pub raises: BTreeMap<String, Kind>,
    /// Objects that do not answer, by their keys.
    pub silent: BTreeSet<String>,
    /// Number of requests.
    pub asked: u32,
    /// Reference that factories return instead of the member that they make.
    pub gives: Option<Ior>,
    /// True if objects say that they have any type.
    pub has_type: bool,
}

/// A server that is there until this is dropped.
pub(super) struct Peer {
    address: SocketAddr,
    doings: Arc<Mutex<Doings>>,
    stop: Option<oneshot::Sender<()>>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.take();
    }
}

impl Peer {
    pub(super) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let doings = Arc::new(Mutex::new(Doings {
            has_type: true,
            ..Doings::default()
        }));
        let objects = Objects {
            address,
            doings: Arc::clone(&doings),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let serve = async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let server = Server::new(server::Settings::default());
                let stopped = async move {
                    let _ = stopped.await;
                };
                server
                    .serve_clients(listener, Rc::new(objects), stopped)
                    .await;
            };
            tokio::task::LocalSet::new().block_on(&runtime, serve);
        });
        Peer {
            address,
            doings,
            stop: Some(stop),
        }
    }

    /// The object with that key.
    pub(super) fn object(&self, type_id: &str, key: &str) -> Ior {
        Ior::new_iiop(type_id, "127.0.0.1", self.address.port(), key.as_bytes())
    }

    pub(super) fn lock_doings(&self) -> MutexGuard<'_, Doings> {
        self.doings.lock().unwrap()
    }
}

struct Objects {
    address: SocketAddr,
    doings: Arc<Mutex<Doings>>,
}

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
        let key = String::from_utf8(request.target.object_key().unwrap().to_vec()).unwrap();
        let question = ReplyTo::of_request(&request, version, endian).unwrap();
        let call = Call::new(&request, &message);
        if self.doings.lock().unwrap().silent.contains(&key) {
            return Ok(());
        }
        let outcome = self.answer(&key, &call);
        out.write(|out| question.write_outcome(&outcome, out));
        Ok(())
    }
}

impl Objects {
    fn answer(&self, key: &str, call: &Call) -> Outcome {
        let mut doings = self.doings.lock().unwrap();
        doings.asked += 1;
        if let Some(kind) = doings.raises.get(key) {
            return Outcome::System(SystemException::new(*kind));
        }
        let mut results = call.results_writer();
        let mut arguments = call.arguments();
        match &*call.operation {
            "create_object" => {
                let type_id = String::read(&mut arguments).unwrap();
                let criteria = Properties::read(&mut arguments).unwrap();
                doings.criteria.insert(key.into(), criteria);
                if doings.refuses.contains(key) {
                    let none = Raise::User(UserException::ObjectNotCreated);
                    return none.to_outcome(call, "tao.lb");
                }
                doings.made += 1;
                let made = doings.made;
                doings.there.insert(made);
                let member = format!("{key}-{made}");
                let port = self.address.port();
                let own = Ior::new_iiop(&type_id, "127.0.0.1", port, member.as_bytes());
                doings.gives.as_ref().unwrap_or(&own).write(&mut results);
                Any::new(&made).write(&mut results);
            }
            "delete_object" => {
                let creation = Any::read(&mut arguments).unwrap();
                doings.there.remove(&creation.get::<u32>().unwrap());
            }
            "_is_a" => results.write_bool(doings.has_type),
            "_non_existent" => results.write_bool(false),
            _ => return Outcome::System(SystemException::new(Kind::BadOperation)),
        }
        Outcome::Reply(results.into_bytes())
    }
}

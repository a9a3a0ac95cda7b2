//! Subsystems: what every part of the process has in common that serves or reports beside the manager.
//!
//! A subsystem (the proxy, the negotiator, the broker, the CORBA service, the monitor, the sources of load
//! reports) has its section of the configuration, which the manager passes on without knowing what is in it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::alerts::FleetExchange;
use evenkeel_core::address::Address;
use evenkeel_net::datagram;
use evenkeel_net::inherited::InheritedSocket;
use evenkeel_net::listen::{self, ListenError};
use evenkeel_net::unix;
use evenkeel_tls::certificate::Details;

use crate::config::{Config, Problem};
use crate::endpoint::Endpoint;
use crate::exposition::Exposition;
use crate::handover::Handover;
use crate::lists::found::FoundLists;
use crate::snapshot::Snapshot;
use crate::status::Status;
use crate::work::Work;

/// A part of the process that follows the configuration: it is told of each new snapshot
/// before that counts, so that a change takes place as a whole or not at all.
pub trait Subsystem: Send + Sync {
    /// Does for `next` whatever can fail, such as binding new listeners, but nothing
    /// that clients notice. The errors say what could not be done, each for itself.
    ///
    /// If all goes well, the manager makes `next` the current snapshot and calls the
    /// answer. If something else fails it drops the answer uncalled, and what was
    /// prepared must be given back.
    ///
    /// Files that the configuration names are read if `next` is of a [reload](Snapshot::reload),
    /// and not otherwise.
    ///
    /// Called with the manager's lock held: it must not call the manager.
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let _ = next;
        Ok(Box::new(|| ()))
    }

    /// Returns the addresses where the subsystem accepts TCP connections now: nobody may register these
    /// addresses as those of a member. Called as `prepare` is.
    fn listening(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// Returns the parts of `current`, which is in effect, that have no effect on the subsystem until the
    /// process is started again. Called as `prepare` is.
    fn needs_restart(&self, current: &Snapshot) -> Vec<&'static str> {
        let _ = current;
        Vec::new()
    }

    /// Returns the things that `config` wants for the subsystem and that only one process can have: a start
    /// waits for a while until its predecessor has given them up.
    fn exclusive(&self, config: &Config) -> Vec<Exclusive> {
        let _ = config;
        Vec::new()
    }

    /// Returns the problems that would keep the subsystem from starting with `config` on this machine, such
    /// as files that cannot be read. Takes nothing and changes nothing, and does not look at addresses.
    fn check(&self, config: &Config) -> PrepareErrors {
        let _ = config;
        Vec::new()
    }

    /// Gives its addresses up at once and for good, so that whoever takes over finds them
    /// free, and ends when what is under way has ended. May block.
    fn stop(&self) {}

    /// The sockets at which it is reached, under handles of their own, for a process that is to
    /// take the place of this one: [`net`](evenkeel_net::inherited) has them there. All of them, or
    /// an error: one that is missing would be opened anew there, at the same address or, where the
    /// system chooses the port, at another one. May block.
    fn sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        Ok(Vec::new())
    }

    /// Lets go of what only one of two processes may do: reading datagrams, writing a file. Tells the other
    /// process what it is to know. Datagrams that come meanwhile wait in the sockets. May block.
    fn hand_over(&self, to: &mut Handover) {
        let _ = to;
    }

    /// Accepts nobody any more, as the other process serves. Clients that are connected go on.
    fn rest(&self) {}

    /// Goes on as before [`Subsystem::hand_over`], as the other process has failed. May block.
    fn resume(&self) {}

    /// Takes over the state of the old process, if this one takes its place. Called before the first
    /// configuration.
    fn take_over(&self, from: &Handover) {
        let _ = from;
    }

    /// Returns the addresses where the subsystem listens with `current` in effect, as the process says when
    /// it starts: `negotiator on 10.0.0.1:80`.
    fn announce(&self, current: &Snapshot) -> Vec<String> {
        let _ = current;
        Vec::new()
    }

    /// Fills in its part of the status.
    fn status(&self, status: &mut Status) {
        let _ = status;
    }

    /// Writes its metrics.
    fn metrics(&self, out: &mut Exposition) {
        let _ = out;
    }

    /// Finds the members of the lists `names` of `config`, which is about to take effect. The answer comes within a few
    /// seconds. Lists that are not the subsystem's are left out.
    fn find_members(&self, config: &Config, names: HashSet<String>) -> Work<FoundLists> {
        let _ = (config, names);
        Box::pin(std::future::ready(FoundLists::new()))
    }

    /// Returns the council that decides upon load alerts together with this process. Called in each round of
    /// control, with the manager's lock held: the council must not call the manager.
    fn council(&self) -> Option<&dyn FleetExchange> {
        None
    }

    /// Returns the counts of each rule. Called every second while somebody watches.
    fn traffic(&self) -> Vec<RuleTraffic> {
        Vec::new()
    }

    /// Returns the endpoints of the subsystem in the admin API.
    fn endpoints(&self) -> Vec<Endpoint> {
        Vec::new()
    }

    /// The certificates that it shows to clients, each with who shows it, as in `rule web`.
    fn certificates(&self) -> Vec<(String, Details)> {
        Vec::new()
    }
}

/// Counts of a rule. The three numbers are: all, those that ended in a known way, and those of them that
/// failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTraffic {
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Counts of requests.
    pub requests: [u64; 3],
    /// Counts of connections.
    pub connections: [u64; 3],
}

/// Something that only one process can have at a time.
pub struct Exclusive {
    /// Name of the thing.
    pub resource_name: String,
    /// Time for which a predecessor that is told to end may keep the thing.
    pub patience: Duration,
    /// Function that returns true if some process has the thing.
    pub is_taken: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Whoever is told to end gives addresses up at once, but not before it has been told.
const PATIENCE: Duration = Duration::from_secs(5);

impl Exclusive {
    /// Addresses at which TCP connections are accepted.
    pub fn tcp(addresses: &[SocketAddr]) -> Vec<Self> {
        Self::addresses(addresses, listen::is_taken)
    }

    /// Places at which connections are accepted.
    pub fn of_rule(places: &[Address]) -> Vec<Self> {
        let unix = |path: &Arc<str>| {
            let path = Arc::clone(path);
            Exclusive {
                resource_name: format!("unix:{path}"),
                patience: PATIENCE,
                is_taken: Box::new(move || {
                    let taken = unix::check_free(&path);
                    taken.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
                }),
            }
        };
        let one = |place: &Address| match place {
            Address::Ip(address) => Self::tcp(&[*address]),
            Address::Unix(path) => vec![unix(path)],
        };
        places.iter().flat_map(one).collect()
    }

    /// Addresses at which datagrams arrive.
    pub fn udp(addresses: &[SocketAddr]) -> Vec<Self> {
        Self::addresses(addresses, datagram::is_taken)
    }

    fn addresses(addresses: &[SocketAddr], is_taken: fn(SocketAddr) -> bool) -> Vec<Self> {
        let one = |&address: &SocketAddr| Exclusive {
            resource_name: address.to_string(),
            patience: PATIENCE,
            is_taken: Box::new(move || address.port() != 0 && is_taken(address)),
        };
        addresses.iter().map(one).collect()
    }
}

/// Puts into effect what [`Subsystem::prepare`] has prepared. Cannot fail.
pub type Commit = Box<dyn FnOnce() + Send>;

/// Errors that keep a configuration from being put into effect.
pub type PrepareErrors = Vec<PrepareError>;

/// Something that keeps a configuration from being put into effect.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// An address cannot be listened on.
    #[error(
        "{whose}: cannot listen on {address}: {}; choose another address with listen in [{whose}]",
        evenkeel_net::listen::explain_error(error)
    )]
    Listen {
        /// The section of the configuration that names it.
        whose: &'static str,
        /// The address, with the transport if that is not TCP.
        address: String,
        /// Error of the system.
        error: io::Error,
    },
    /// A thread cannot be started.
    #[error("{whose}: cannot start a thread: {error}")]
    Thread {
        /// The section of the configuration that wants it.
        whose: &'static str,
        /// Error of the system.
        error: io::Error,
    },
    /// Two groups have the same name.
    #[error("two groups are called {name:?}, {} and {}: give one of them another name", owner(&.owners.0), owner(&.owners.1))]
    SameName {
        /// The name.
        name: String,
        /// Owners of the two groups; `None` is the configuration.
        owners: (Option<&'static str>, Option<&'static str>),
    },
    /// A file that cannot be used.
    #[error("{0}")]
    File(Box<Problem>),
    /// A rule cannot be served.
    #[error("{error}")]
    Rule {
        /// Name of the rule.
        rule: String,
        /// Reason of the failure.
        error: Box<dyn Error + Send + Sync>,
    },
    /// An error of the subsystem itself.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl PrepareError {
    /// Addresses that the section `whose` names and that cannot be listened on.
    pub fn listen(whose: &'static str) -> impl Fn(Vec<ListenError>) -> PrepareErrors {
        let error = move |ListenError { address, source }| PrepareError::Listen {
            whose,
            address: address.to_string(),
            error: source,
        };
        move |errors| errors.into_iter().map(error).collect()
    }

    /// Files that cannot be used.
    pub fn files(problems: Vec<Problem>) -> PrepareErrors {
        let all = problems.into_iter().map(Box::new);
        all.map(PrepareError::File).collect()
    }

    /// A rule that cannot be served.
    pub fn rule(rule: &str, error: impl Error + Send + Sync + 'static) -> Self {
        PrepareError::Rule {
            rule: rule.into(),
            error: Box::new(error),
        }
    }

    /// An error of the subsystem itself.
    pub fn other(error: impl Error + Send + Sync + 'static) -> Self {
        PrepareError::Other(Box::new(error))
    }
}

fn owner(owner: &Option<&'static str>) -> Cow<'static, str> {
    match owner {
        Some(owner) => format!("one of {owner}").into(),
        None => "one of the configuration".into(),
    }
}

/// A configuration that could not be put into effect. The old one goes on.
#[derive(Debug)]
pub struct ApplyError(pub PrepareErrors);

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}{error}")?;
        }
        Ok(())
    }
}

impl Error for ApplyError {}

impl From<PrepareErrors> for ApplyError {
    fn from(errors: PrepareErrors) -> Self {
        ApplyError(errors)
    }
}

/// A subsystem that does nothing: for tests, and for what only asks for decisions.
impl Subsystem for () {}

/// Several together: all of them are ready for what is next, or none goes on to it.
impl<S: Subsystem + ?Sized> Subsystem for Vec<Arc<S>> {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let mut commits = Vec::with_capacity(self.len());
        let mut errors = Vec::new();
        for subsystem in self {
            match subsystem.prepare(next) {
                Ok(commit) => commits.push(commit),
                Err(problems) => errors.extend(problems),
            }
        }
        if errors.is_empty() {
            Ok(Box::new(|| commits.into_iter().for_each(|commit| commit())))
        } else {
            Err(errors)
        }
    }

    fn listening(&self) -> Vec<SocketAddr> {
        self.iter().flat_map(|one| one.listening()).collect()
    }

    fn needs_restart(&self, current: &Snapshot) -> Vec<&'static str> {
        let all = self.iter();
        all.flat_map(|one| one.needs_restart(current)).collect()
    }

    fn check(&self, config: &Config) -> PrepareErrors {
        self.iter().flat_map(|one| one.check(config)).collect()
    }

    fn status(&self, status: &mut Status) {
        self.iter().for_each(|one| one.status(status));
    }

    fn metrics(&self, out: &mut Exposition) {
        self.iter().for_each(|one| one.metrics(out));
    }

    fn find_members(&self, config: &Config, names: HashSet<String>) -> Work<FoundLists> {
        let all = self
            .iter()
            .map(|one| one.find_members(config, names.clone()));
        let all: Vec<_> = all.collect();
        Box::pin(async move {
            let mut found = FoundLists::new();
            for one in all {
                found.extend(one.await);
            }
            found
        })
    }

    fn council(&self) -> Option<&dyn FleetExchange> {
        self.iter().find_map(|one| one.council())
    }

    fn traffic(&self) -> Vec<RuleTraffic> {
        self.iter().flat_map(|one| one.traffic()).collect()
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        self.iter().flat_map(|one| one.endpoints()).collect()
    }

    fn certificates(&self) -> Vec<(String, Details)> {
        self.iter().flat_map(|one| one.certificates()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Notes what is committed, or refuses.
    struct CommitRecorder(
        Arc<Mutex<Vec<&'static str>>>,
        Result<&'static str, &'static str>,
    );

    impl Subsystem for CommitRecorder {
        fn prepare(&self, _: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
            let name = self
                .1
                .map_err(|error| vec![PrepareError::Other(error.into())])?;
            let committed = Arc::clone(&self.0);
            Ok(Box::new(move || committed.lock().unwrap().push(name)))
        }
    }

    #[test]
    fn all_subsystems_go_on_or_none() {
        let committed = Arc::default();
        let subsystems = |second| -> Vec<Arc<dyn Subsystem>> {
            let one = |result| Arc::new(CommitRecorder(Arc::clone(&committed), result));
            vec![one(Ok("a")), one(second), one(Err("c")), one(Ok("d"))]
        };
        let refused = subsystems(Err("b")).prepare(&Arc::default());
        let refused = ApplyError(refused.err().unwrap());
        assert_eq!(refused.to_string(), "b; c");
        assert!(committed.lock().unwrap().is_empty());
        let mut good = subsystems(Ok("b"));
        good.remove(2);
        let commit = good.prepare(&Arc::default()).unwrap();
        assert!(
            committed.lock().unwrap().is_empty(),
            "not before the commit"
        );
        commit();
        assert_eq!(*committed.lock().unwrap(), ["a", "b", "d"]);
    }
}

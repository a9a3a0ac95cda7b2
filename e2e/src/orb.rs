//! Servers and clients of other ORBs, which tests of the CORBA service drive.
//!
//! Each ORB has a test program in `e2e/corba/NAME`: a server, a client, and an application that
//! calls the load manager. They do what the lines on their standard input say, and all speak the
//! language that those of omniORB describe. What is different is in the ORB's adapter.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::process::Command;

use crate::script::Script;

/// An adapter: how the test programs of one ORB are run.
pub trait Orb: Sized + 'static {
    /// Returns true if the tools that build the ORB's test program, and run it, are installed.
    fn can_run() -> bool;

    /// Makes the command of the ORB's test program with these words (`server NAME`, `client
    /// REFERENCE …`), and options for the ORB.
    fn program(words: &[&str], options: &[&str]) -> Command;

    /// The option of a server or client that speaks GIOP 1.`minor`.
    fn version(minor: u8) -> Vec<String>;

    /// The first minor version in which it sends wide strings: GIOP 1.0 has none, and 1.1 does
    /// not say everything of them.
    const WIDE: u8;

    /// The option of a client that gives a call up after two seconds: what is there answers by then
    /// on a busy machine, too.
    const IMPATIENT: &'static [&'static str];

    /// Text that such a client then says; further words may follow.
    const TIMEOUT: &'static str;

    /// A process that calls the load manager (`-ORBInitRef LoadManager=…`) through stubs that the
    /// ORB has made of the IDL: `manager.ask("create_object …")`.
    fn manager(options: &[&str]) -> Script;

    /// Makes a location of a server, with an alert, by our library for the ORB.
    fn open(server: &mut Server<Self>, at: &str, how: &Location);

    /// Waits until all that a server has at a location is registered.
    fn registered(server: &mut Server<Self>, at: &str);

    /// Tries to make a location that another process has, with a member of `group`; it is refused.
    fn is_refused(server: &mut Server<Self>, at: &str, group: &str);

    /// Makes that location when the other process is gone.
    fn take_over(server: &mut Server<Self>, at: &str, group: &str);
}

/// Location of a server: the loads that are measured there, and how often the server talks to the
/// load manager.
pub struct Location {
    /// `requests`, `in_flight`, `memory`, `disk`, `network`, `network=BITS_PER_SECOND`, `custom=ID` (the value is set by
    /// `load ID VALUE`).
    pub loads: &'static str,
    /// Milliseconds between two pushes of the loads; 0 is never.
    pub push: u32,
    /// Milliseconds between two looks whether everything is still registered.
    pub check: u32,
}

impl Default for Location {
    fn default() -> Self {
        Location {
            loads: "",
            push: 0,
            check: 500,
        }
    }
}

/// A server with a `PeerTest::Peer` and a `PeerTest::SessionFactory`, killed when dropped.
pub struct Server<O> {
    script: Script,
    peer: String,
    sessions: String,
    orb: PhantomData<O>,
}

impl<O: Orb> Server<O> {
    /// Starts a server that calls itself `name`, and waits until it serves. It listens on a port
    /// of its own unless `options` say where.
    pub fn start(name: &str, options: &[&str]) -> Self {
        let script = Script::start(&mut O::program(&["server", name], options));
        let [peer, sessions] = [script.read_line(), script.read_line()];
        assert!(peer.starts_with("IOR:"), "no reference: {peer}");
        assert_eq!(script.read_line(), "ready");
        Self {
            script,
            peer,
            sessions,
            orb: PhantomData,
        }
    }

    /// The reference of its `Peer`: `IOR:…`.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The reference of its `SessionFactory`.
    pub fn sessions(&self) -> &str {
        &self.sessions
    }

    /// Returns the number of requests that the server's objects have answered.
    pub fn served_count(&mut self) -> u64 {
        let served = self.script.ask_line("served");
        served.parse().expect("a number")
    }

    /// Makes a location of its own, and its `Peer` a member of the group there; waits until the
    /// manager knows. It was started with `-ORBInitRef LoadManager=…`.
    pub fn join_group(&mut self, at: &str, group: &str) {
        self.join_with(at, group, &Location::default());
    }

    /// Joins a group with loads.
    pub fn join_with(&mut self, at: &str, group: &str, how: &Location) {
        O::open(self, at, how);
        self.add_member(at, group);
    }

    /// Makes its `Peer` a member of the group at a location that is open.
    pub fn add_member(&mut self, at: &str, group: &str) {
        self.run_command(&format!("at {at} member {group}"));
        O::registered(self, at);
    }

    /// Waits until all that it has at a location is registered.
    pub fn wait_until_joined(&mut self, at: &str) {
        O::registered(self, at);
    }

    /// Returns true if the server sends clients of the members at a location back to their groups.
    pub fn is_alerted(&mut self, at: &str) -> bool {
        self.ask_line(&format!("at {at} alerted")) == "yes"
    }

    pub(crate) fn into_script(self) -> Script {
        self.script
    }
}

/// A client, killed when dropped. It knows nothing of load balancing.
pub struct Client<O> {
    script: Script,
    orb: PhantomData<O>,
}

impl<O: Orb> Client<O> {
    /// A client that makes the calls it is told to: `client.ask("who")`, and other operations as
    /// `client.cc` lists them. An exception is `error NAME MINOR COMPLETED`.
    ///
    /// `reference` may also be `corbaloc:…`, or a name given with `-ORBInitRef`.
    pub fn start(reference: &str, options: &[&str]) -> Self {
        let client = Self::repeat(reference, "", options);
        assert_eq!(client.read_line(), "ready");
        client
    }

    /// A client that repeats an operation, as told by `--count N`, `--rate HZ`, `--warm N`,
    /// `--each` and `--latencies`: see `client.cc` for what it prints.
    pub fn repeat(reference: &str, operation: &str, options: &[&str]) -> Self {
        let mut words = vec!["client", reference];
        words.extend(operation.split_whitespace());
        Self {
            script: Script::start(&mut O::program(&words, options)),
            orb: PhantomData,
        }
    }
}

impl<O> Deref for Server<O> {
    type Target = Script;

    fn deref(&self) -> &Script {
        &self.script
    }
}

impl<O> DerefMut for Server<O> {
    fn deref_mut(&mut self) -> &mut Script {
        &mut self.script
    }
}

impl<O> Deref for Client<O> {
    type Target = Script;

    fn deref(&self) -> &Script {
        &self.script
    }
}

impl<O> DerefMut for Client<O> {
    fn deref_mut(&mut self) -> &mut Script {
        &mut self.script
    }
}

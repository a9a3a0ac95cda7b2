//! Servers and clients of QUIC: a Python program that is told what to do.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::netns::Namespace;
use crate::python::python;

/// A server or a client of QUIC, killed when dropped.
pub struct QuicPeer {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl QuicPeer {
    /// Starts the program, in a network namespace if there is one; `None`, which is said, if it cannot run.
    fn start(arguments: &[&str], within: Option<&Namespace>) -> Option<Self> {
        let mut command = python("quic_peer.py", "aioquic")?;
        if let Some(namespace) = within {
            command = move_command(&command, namespace);
        }
        command.args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Some(QuicPeer { process, output })
    }

    /// A server at an address, whose port may be 0, with the address that it has.
    pub fn server(
        name: &str,
        at: SocketAddr,
        within: Option<&Namespace>,
    ) -> Option<(Self, SocketAddr)> {
        let [host, port] = [at.ip().to_string(), at.port().to_string()];
        let mut server = QuicPeer::start(&["server", name, &host, &port], within)?;
        let port: u16 = server.next_line().parse().unwrap();
        Some((server, SocketAddr::new(at.ip(), port)))
    }

    /// A client that has connected to an address.
    ///
    /// # Panics
    ///
    /// The program cannot run, or does not connect.
    pub fn client(at: SocketAddr, within: Option<&Namespace>) -> Self {
        let [host, port] = [at.ip().to_string(), at.port().to_string()];
        let mut client = QuicPeer::start(&["client", &host, &port], within).unwrap();
        assert_eq!(client.next_line(), "connected");
        client
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Gives a client a command, and returns what the client says.
    ///
    /// # Panics
    ///
    /// The client has ended.
    pub fn tell(&mut self, command: &str) -> String {
        let input = self.process.stdin.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
        self.next_line()
    }

    /// Gives a client another port, as a NAT device does that has forgotten the client; and another address, if there is
    /// one.
    ///
    /// # Panics
    ///
    /// The client has ended.
    pub fn rebind(&mut self, ip: Option<IpAddr>) {
        let ip = ip.map_or_else(String::new, |ip| ip.to_string());
        assert_eq!(self.tell(&format!("rebind {ip}")), "rebound");
    }
}

/// Returns a command that does the same in a network namespace.
fn move_command(command: &Command, namespace: &Namespace) -> Command {
    let mut inside = namespace.command(command.get_program());
    inside.args(command.get_args());
    let set = command.get_envs();
    inside.envs(set.filter_map(|(name, value)| Some((name, value?))));
    inside
}

impl Drop for QuicPeer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

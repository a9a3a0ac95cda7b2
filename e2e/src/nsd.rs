//! NSD, a DNS server, for one zone.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use crate::folder::Folder;
use crate::process::{Signal, parent_program, signal};
use crate::server::address;
use crate::wait_until;

/// A server for the zone `example.test`, killed when dropped.
pub struct Nsd {
    folder: Folder,
    address: SocketAddr,
    serial: u32,
    process: Option<Child>,
}

impl Nsd {
    /// Starts it with these records of the zone.
    pub fn start(records: &str) -> Self {
        let mut nsd = Nsd {
            folder: Folder::new(),
            address: address(),
            serial: 0,
            process: None,
        };
        nsd.write(records);
        nsd.run();
        nsd
    }

    fn write(&mut self, records: &str) {
        self.serial += 1;
        let zone = format!(
            "$ORIGIN example.test.\n$TTL 1\n\
             @ IN SOA ns root {} 3600 600 86400 1\n\
             @ IN NS ns\nns IN A 127.0.0.1\n{records}\n",
            self.serial
        );
        self.folder.write("zone", zone);
    }

    /// Starts it again after [`Nsd::kill`].
    pub fn run(&mut self) {
        let folder = self.folder.path().display();
        let (ip, port) = (self.address.ip(), self.address.port());
        let config = format!(
            "server:\n  ip-address: {ip}@{port}\n  username: \"\"\n  server-count: 1\n  \
             zonesdir: \"{folder}\"\n  pidfile: \"\"\n  xfrdfile: \"{folder}/xfrd\"\n  \
             zonelistfile: \"{folder}/zones\"\n  xfrdir: \"{folder}\"\n  \
             cookie-secret-file: \"\"\n\
             remote-control:\n  control-enable: no\n\
             zone:\n  name: example.test\n  zonefile: zone\n"
        );
        let config = self.folder.write("nsd.conf", config);
        let mut nsd = parent_program("nsd");
        nsd.arg("-d").arg("-c").arg(config).stdin(Stdio::null());
        let log = File::create(self.folder.join("nsd.log")).expect("a log");
        nsd.stdout(log.try_clone().expect("a log")).stderr(log);
        self.process = Some(nsd.spawn().expect("it starts"));
        let at = self.address;
        wait_until("it listens", || TcpStream::connect(at).is_ok());
    }

    /// Gives the zone other records.
    pub fn set(&mut self, records: &str) {
        self.write(records);
        if let Some(process) = &self.process {
            signal(process.id(), Signal::HUP);
        }
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Its children end with it when it may end them itself.
            signal(process.id(), Signal::TERM);
            let _ = process.wait();
        }
    }

    /// Returns the address at which the server answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Nsd {
    fn drop(&mut self) {
        self.kill();
    }
}

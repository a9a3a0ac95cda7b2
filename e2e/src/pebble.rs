//! Pebble, an authority that issues certificates by ACME, with a DNS server for which all names are
//! this machine.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use crate::folder::Folder;
use crate::process::{program, run_curl};
use crate::server::address;
use crate::tls::{Key, make_certificate};
use crate::wait_until;

/// An authority, killed when dropped.
pub struct Pebble {
    folder: Folder,
    directory: SocketAddr,
    management: SocketAddr,
    processes: Vec<Child>,
    /// Identifier and key (base64) of the accounts that new ones have to be bound to.
    binding: Option<(&'static str, &'static str)>,
}

impl Pebble {
    /// Makes a Pebble that does not run yet.
    pub fn new() -> Self {
        let (folder, directory) = (Folder::new(), address());
        make_certificate(&folder, "authority", Key::Ecdsa, "DNS:authority", None);
        let own = format!("IP:{}", directory.ip());
        make_certificate(&folder, "pebble", Key::Ecdsa, &own, Some("authority"));
        Pebble {
            folder,
            directory,
            management: address(),
            processes: Vec::new(),
            binding: None,
        }
    }

    /// Makes Pebble demand, from its start on, that accounts are bound to this account.
    pub fn require_binding(&mut self, id: &'static str, key: &'static str) {
        self.binding = Some((id, key));
    }

    /// Keys of `[acme]` that lead to it.
    pub fn keys(&self) -> String {
        let authority = self.folder.join("authority.crt");
        format!(
            "directory = \"https://{}/dir\"\nca_file = \"{}\"\n",
            self.directory,
            authority.display()
        )
    }

    /// Starts it. It looks at `http` or at `tls` whether a name is somebody's, and its certificates
    /// are good for so many seconds.
    pub fn start(&mut self, http: SocketAddr, tls: SocketAddr, validity: u64) {
        let (dns, web) = (address(), address());
        let pem = self.folder.join("pebble.pem").display().to_string();
        let keys = self.binding.into_iter();
        let keys: serde_json::Map<_, _> = keys.map(|(id, key)| (id.into(), key.into())).collect();
        let config = serde_json::json!({ "pebble": {
            "externalAccountBindingRequired": self.binding.is_some(),
            "externalAccountMACKeys": keys,
            "listenAddress": self.directory.to_string(),
            "managementListenAddress": self.management.to_string(),
            "certificate": pem,
            "privateKey": pem,
            "httpPort": http.port(),
            "tlsPort": tls.port(),
            "certificateValidityPeriod": validity,
        }});
        let config = self.folder.write("pebble.json", config.to_string());
        let mut names = program("pebble-challtestsrv");
        names.args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""]);
        names.args(["-http01", "", "-https01", "", "-tlsalpn01", ""]);
        names.args(["-dns01", &dns.to_string(), "-management", &web.to_string()]);
        let mut pebble = program("pebble");
        pebble.arg("-config").arg(config);
        pebble.args(["-dnsserver", &dns.to_string()]);
        pebble.env("PEBBLE_VA_NOSLEEP", "1");
        for (mut program, at, log) in [
            (names, dns, "names.log"),
            (pebble, self.directory, "pebble.log"),
        ] {
            let log = File::create(self.folder.join(log)).expect("a log");
            program.stdin(Stdio::null());
            program.stdout(log.try_clone().expect("a log")).stderr(log);
            self.processes.push(program.spawn().expect("it starts"));
            wait_until("it listens", || TcpStream::connect(at).is_ok());
        }
    }

    /// Kills it.
    pub fn kill(&mut self) {
        for mut process in self.processes.drain(..) {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Returns Pebble's root certificate, in a file: another one after each start.
    pub fn root(&self) -> String {
        let url = format!("https://{}/roots/0", self.management);
        let root = run_curl(&["--insecure", &url]);
        self.folder.write("root.pem", root).display().to_string()
    }
}

impl Default for Pebble {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.kill();
    }
}

//! FTP servers from packages, each with a folder and a configuration of its own.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::folder::Folder;
use crate::process::{Signal, are_installed, parent_program, program, report_skipped, signal};
use crate::server;
use crate::tls::{self, Key};
use crate::wait_until;

/// User who logs in.
pub const USER: &str = "alice";

/// Password of the user.
pub const PASSWORD: &str = "secret";

/// The user that servers become: `daemon`, who has a home.
const DAEMON: u32 = 1;

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// vsftpd, for anonymous users only.
    Vsftpd,
    /// ProFTPD, for the user and password above.
    Proftpd,
    /// Pure-FTPd, for the user and password above.
    PureFtpd,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Vsftpd, Kind::Proftpd, Kind::PureFtpd];

    /// Returns the user and password with which clients may log in.
    pub fn login(self) -> (&'static str, &'static str) {
        match self {
            Kind::Vsftpd => ("anonymous", "a@example.org"),
            Kind::Proftpd | Kind::PureFtpd => (USER, PASSWORD),
        }
    }
}

/// Returns true if servers can be started here: they are installed, and this is root, as they
/// change their user.
pub fn can_run() -> bool {
    if !are_installed(&["vsftpd", "proftpd", "pure-ftpd", "pure-pw", "openssl"]) {
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        report_skipped("FTP servers have to be started by root");
        return false;
    }
    true
}

/// A server, ended when dropped. What it serves is in `docs`, where `docs/up` may be written to.
pub struct FtpServer {
    /// Kind of the server.
    pub kind: Kind,
    address: SocketAddr,
    process: Child,
    folder: Folder,
}

impl FtpServer {
    /// Starts one on an IPv4 address of loopback.
    pub fn start(kind: Kind) -> Self {
        Self::start_at(kind, server::address())
    }

    /// Starts vsftpd with explicit TLS, and a certificate that it has from itself: `tls.crt`.
    pub fn start_with_tls() -> Self {
        Self::start_prepared(Kind::Vsftpd, server::address(), |folder| {
            tls::make_certificate(folder, "tls", Key::Ecdsa, "IP:127.0.0.1", None);
            let file = folder.join("tls.pem").display().to_string();
            // Clients of ftplib end a session of TLS 1.3 in another way than vsftpd expects.
            format!(
                "ssl_enable=YES\nallow_anon_ssl=YES\nforce_anon_logins_ssl=YES\nforce_anon_data_ssl=YES\n\
                 require_ssl_reuse=NO\nssl_ciphers=HIGH\nrsa_cert_file={file}\nrsa_private_key_file={file}\n"
            )
        })
    }

    /// A file in its folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts one on `[::1]`.
    pub fn start_v6(kind: Kind) -> Self {
        let free = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        Self::start_at(kind, address)
    }

    fn start_at(kind: Kind, address: SocketAddr) -> Self {
        Self::start_prepared(kind, address, |_| String::new())
    }

    /// `prepare` gives further lines of vsftpd's configuration.
    fn start_prepared(
        kind: Kind,
        address: SocketAddr,
        prepare: impl FnOnce(&Folder) -> String,
    ) -> Self {
        let folder = Folder::new();
        let more = prepare(&folder);
        let up = folder.make_folder("docs/up");
        chown(up, Some(DAEMON), Some(DAEMON)).expect("it may be given away");
        folder.make_folder("empty");
        // vsftpd refuses to show what others may write to.
        for name in ["docs", "docs/up", "empty"] {
            let rights = Permissions::from_mode(0o755);
            fs::set_permissions(folder.join(name), rights).expect("its rights");
        }
        let mut command = match kind {
            Kind::Vsftpd => {
                let config = folder.write("vsftpd.conf", vsftpd(&folder, address) + &more);
                let mut command = parent_program("vsftpd");
                command.arg(config);
                command
            }
            Kind::Proftpd => {
                secret(&folder, "passwd", &passwd(&folder));
                let config = folder.write("proftpd.conf", proftpd(&folder, address));
                let mut command = parent_program("proftpd");
                command.args(["-n", "-c"]).arg(config);
                command
            }
            Kind::PureFtpd => {
                let users = pure_users(&folder);
                let mut command = parent_program("pure-ftpd");
                command.args(["-S", &format!("{},{}", address.ip(), address.port())]);
                command.args(["-l", &users, "-E", "-A", "-H", "-u", "1", "-c", "2000"]);
                command.args(["-g", &folder.join("pid").display().to_string()]);
                command
            }
        };
        let output = File::create(folder.join("output.log")).expect("a file");
        let mut process = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("the same file"))
            .stderr(output)
            .spawn()
            .expect("the server starts");
        wait_until(&format!("{kind:?} serves on {address}"), || {
            if let Some(status) = process.try_wait().expect("its state") {
                panic!("{kind:?}: {status}: {}", folder.text("output.log"));
            }
            TcpStream::connect(address).is_ok()
        });
        FtpServer {
            kind,
            address,
            process,
            folder,
        }
    }

    /// Returns the address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts a file there.
    pub fn put_file(&self, name: &str, content: impl AsRef<[u8]>) {
        self.folder.write(&format!("docs/{name}"), content);
    }

    /// A file that is there.
    pub fn read(&self, name: &str) -> Vec<u8> {
        self.folder.read(&format!("docs/{name}"))
    }

    /// Returns true if there is such a file.
    pub fn has_file(&self, name: &str) -> bool {
        self.folder.join(&format!("docs/{name}")).exists()
    }
}

impl Drop for FtpServer {
    fn drop(&mut self) {
        signal(self.process.id(), Signal::TERM);
        let _ = self.process.wait();
    }
}

fn secret(folder: &Folder, name: &str, text: &str) {
    let file = folder.write(name, text);
    fs::set_permissions(file, Permissions::from_mode(0o600)).expect("its rights");
}

fn vsftpd(folder: &Folder, address: SocketAddr) -> String {
    let folder = folder.path().display();
    let (ip, port) = (address.ip(), address.port());
    let listen = match ip {
        IpAddr::V4(_) => format!("listen=YES\nlisten_address={ip}"),
        IpAddr::V6(_) => format!("listen=NO\nlisten_ipv6=YES\nlisten_address6={ip}"),
    };
    format!(
        "{listen}\nlisten_port={port}\nbackground=NO\nanonymous_enable=YES\nlocal_enable=NO\n\
         write_enable=YES\nanon_upload_enable=YES\nanon_other_write_enable=YES\nanon_umask=022\n\
         anon_root={folder}/docs\nftp_username=daemon\nnopriv_user=nobody\nsecure_chroot_dir={folder}/empty\n\
         seccomp_sandbox=NO\nasync_abor_enable=YES\nconnect_from_port_20=NO\n"
    )
}

fn passwd(folder: &Folder) -> String {
    let hash = program("openssl")
        .args(["passwd", "-6", PASSWORD])
        .output()
        .expect("openssl runs");
    let hash = String::from_utf8(hash.stdout).expect("a text");
    let home = folder.join("docs");
    let (hash, home) = (hash.trim(), home.display());
    format!("{USER}:{hash}:{DAEMON}:{DAEMON}::{home}:/bin/false\n")
}

fn proftpd(folder: &Folder, address: SocketAddr) -> String {
    let folder = folder.path().display();
    let (ip, port) = (address.ip(), address.port());
    let v6 = if ip.is_ipv6() { "on" } else { "off" };
    format!(
        "ServerType standalone\nDefaultServer on\nDefaultAddress {ip}\nPort {port}\nSocketBindTight on\n\
         UseIPv6 {v6}\nUser daemon\nGroup daemon\nAuthPAM off\nAuthOrder mod_auth_file.c\n\
         AuthUserFile {folder}/passwd\nRequireValidShell off\nWtmpLog off\n\
         ScoreboardFile {folder}/scoreboard\nPidFile {folder}/pid\nSystemLog {folder}/system.log\n\
         TransferLog none\nUseReverseDNS off\nDefaultRoot ~\nDelayEngine off\nMaxInstances none\n\
         AllowOverwrite on\nAllowStoreRestart on\n"
    )
}

fn pure_users(folder: &Folder) -> String {
    let (users, base) = (folder.join("users"), folder.join("users.pdb"));
    let home = folder.join("docs");
    let mut adding = program("pure-pw");
    adding.args(["useradd", USER, "-u", "daemon", "-g", "daemon", "-m", "-d"]);
    adding.arg(home).arg("-f").arg(users).arg("-F").arg(&base);
    let mut adding = adding
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("pure-pw runs");
    let mut stdin = adding.stdin.take().expect("it is piped");
    write!(stdin, "{PASSWORD}\n{PASSWORD}\n").expect("it reads");
    drop(stdin);
    assert!(adding.wait().expect("its state").success());
    format!("puredb:{}", base.display())
}

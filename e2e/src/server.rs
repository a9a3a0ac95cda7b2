//! Real servers: nginx and Apache httpd, each in the foreground with its own folder.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::folder::Folder;
use crate::process::{Signal, program, signal};
use crate::wait_until;

/// A server, killed when dropped.
///
/// Both kinds serve `/files/…` from `docs`, take uploads by PUT to `/dav/…`, answer
/// `/name` with their address, and write `access.log` as `X-Forwarded-For|Via|request
/// line|status`. What else they can is in their configurations below.
pub struct Server {
    kind: Kind,
    address: SocketAddr,
    folder: Folder,
    process: Option<Child>,
}

#[derive(Clone, Copy)]
enum Kind {
    Nginx,
    Apache,
}

/// An address on loopback that no other process uses: neither listens on it, nor has it
/// by chance for an outgoing connection, so that a server can come back to it. It makes
/// each server a location of its own, too.
pub fn address() -> SocketAddr {
    static GIVEN: AtomicU32 = AtomicU32::new(1);
    let process = id().to_be_bytes();
    let number = u8::try_from(GIVEN.fetch_add(1, Ordering::Relaxed)).expect("few servers");
    // Not 127.0: that is where everybody is.
    let ip = Ipv4Addr::new(127, process[2] | 1, process[3], number);
    let free = TcpListener::bind((ip, 0)).expect("a port");
    free.local_addr().expect("an address")
}

impl Server {
    /// Starts nginx. It answers any `/echo/…` with its target, and passes `/ws` on to
    /// `behind`, upgrades included.
    pub fn start_nginx(behind: Option<SocketAddr>) -> Self {
        Self::nginx_with(behind, "", "")
    }

    /// Starts several that have the same document at `/files/NAME`.
    pub fn nginx_alike<const N: usize>(name: &str, content: &str) -> [Self; N] {
        std::array::from_fn(|_| {
            let server = Self::start_nginx(None);
            server.put_document(name, content);
            server
        })
    }

    /// Starts nginx that listens at `other`, too: two servers that are equally fast, as one process
    /// serves both.
    pub fn nginx_also_at(other: SocketAddr) -> Self {
        Self::nginx_also(&format!("listen {other};"))
    }

    /// Starts nginx with further lines in its table `server`.
    pub fn nginx_also(lines: &str) -> Self {
        Self::nginx_with(None, "", lines)
    }

    /// Starts nginx with TLS. `listen` is `ssl`, or more; `lines` name certificates. It answers `/tls`
    /// with what was agreed on: `version|whether resumed|HTTP|client's certificate|name`.
    pub fn nginx_secured(listen: &str, lines: &str) -> Self {
        Self::nginx_secured_before(None, listen, lines)
    }

    /// Starts nginx with TLS, where `/ws` leads to `behind`; the rest is as with
    /// [`Server::nginx_secured`].
    pub fn nginx_secured_before(behind: Option<SocketAddr>, listen: &str, lines: &str) -> Self {
        let answer = "$ssl_protocol|$ssl_session_reused|$server_protocol|$ssl_client_verify|\
                      $ssl_server_name";
        let location = format!("location = /tls {{ return 200 \"{answer}\"; }}");
        Self::nginx_with(behind, listen, &format!("{lines}\n{location}"))
    }

    /// Starts nginx that speaks HTTP/2 in the clear, by prior knowledge, and nothing else.
    pub fn nginx_http2() -> Self {
        Self::nginx_with(None, "http2", "")
    }

    /// Starts nginx that is told who the client is (PROXY protocol). It answers `/who` with
    /// `client's address|port|address that the client has connected to`.
    pub fn nginx_told() -> Self {
        let answer = "$proxy_protocol_addr|$proxy_protocol_port|$proxy_protocol_server_addr";
        let location = format!("location = /who {{ return 200 \"{answer}\"; }}");
        Self::nginx_with(None, "proxy_protocol", &location)
    }

    /// Starts nginx that answers every request with what it got:
    /// `name|method|target|host|X-Real-IP|X-Remove|X-Added`. `listen` is `http2`, or nothing.
    pub fn nginx_telling(name: &str, listen: &str) -> Self {
        let answer = format!(
            "{name}|$request_method|$request_uri|$http_host|$http_x_real_ip|$http_x_remove|\
             $http_x_added"
        );
        let lines = format!("add_header X-From {name};\nreturn 200 \"{answer}\";");
        Self::nginx_with(None, listen, &lines)
    }

    fn nginx_with(behind: Option<SocketAddr>, listen: &str, lines: &str) -> Self {
        let folder = Folder::new();
        let address = address();
        let behind = behind.unwrap_or(address);
        let root = folder.path().display();
        folder.write(
            "server.conf",
            format!(
                r#"
daemon off;
master_process off;
pid {root}/nginx.pid;
error_log {root}/error.log;
events {{ worker_connections 1024; }}
http {{
    log_format seen '$http_x_forwarded_for|$http_via|$request|$status';
    access_log {root}/access.log seen;
    client_body_temp_path {root}/body;
    proxy_temp_path {root}/proxy;
    fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi;
    scgi_temp_path {root}/scgi;
    client_max_body_size 100m;
    keepalive_requests 100000000;
    server {{
        listen {address} {listen};
        {lines}
        root {root}/docs;
        location / {{ return 404; }}
        location /files/ {{ }}
        location /dav/ {{ dav_methods PUT DELETE; create_full_put_path on; }}
        location = /name {{ return 200 "{address}"; }}
        location /echo/ {{ return 200 "$request_uri"; }}
        location /ws {{
            proxy_pass http://{behind};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
        }}
    }}
}}
"#
            ),
        );
        Self::started(Kind::Nginx, address, folder)
    }

    /// Starts nginx with TLS: `certificate` has its key, too, and clients may have certificates from
    /// `clients`. It answers `/who` with `NAME|name asked for|verification|subject of the client`.
    pub fn nginx_tls(name: &str, certificate: &Path, clients: &Path) -> Self {
        let folder = Folder::new();
        let address = address();
        let root = folder.path().display();
        let (certificate, clients) = (certificate.display(), clients.display());
        folder.write(
            "server.conf",
            format!(
                r#"
daemon off;
master_process off;
pid {root}/nginx.pid;
error_log {root}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {root}/body;
    proxy_temp_path {root}/proxy;
    fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi;
    scgi_temp_path {root}/scgi;
    server {{
        listen {address} ssl;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_certificate {certificate};
        ssl_certificate_key {certificate};
        ssl_client_certificate {clients};
        ssl_verify_client optional;
        root {root}/docs;
        location / {{ return 404; }}
        location /files/ {{ }}
        location = /who {{
            return 200 "{name}|$ssl_server_name|$ssl_client_verify|$ssl_client_s_dn";
        }}
    }}
}}
"#
            ),
        );
        Self::started(Kind::Nginx, address, folder)
    }

    /// Starts Apache httpd. `/cgi/echo` answers a request with its body.
    pub fn start_apache() -> Self {
        Self::apache_with(&[], "")
    }

    /// Starts Apache httpd with TLS and HTTP/2. `lines` name certificates.
    pub fn apache_secured(lines: &str) -> Self {
        let lines = format!("SSLEngine on\nSSLSessionCache none\nProtocols h2 http/1.1\n{lines}");
        Self::apache_with(&["socache_shmcb", "ssl", "http2"], &lines)
    }

    fn apache_with(more: &[&str], lines: &str) -> Self {
        let folder = Folder::new();
        let address = address();
        let root = folder.path().display();
        folder.make_folder("cgi");
        let script = folder.write(
            "cgi/echo",
            // The server may write the whole body before it reads any answer.
            "#!/bin/sh\nset -e\nbody=$(mktemp)\ntrap 'rm -f \"$body\"' EXIT\ncat >\"$body\"\n\
             printf 'Content-Type: application/octet-stream\\r\\nX-Seen-Length: %s\\r\\n\\r\\n' \"$CONTENT_LENGTH\"\n\
             cat \"$body\"\n",
        );
        make_executable(&script);
        let modules = [
            "mpm_event",
            "authz_core",
            "mime",
            "alias",
            "cgi",
            "dav",
            "dav_fs",
            "rewrite",
        ];
        let modules: String = modules
            .iter()
            .chain(more)
            .map(|module| {
                format!("LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so\n")
            })
            .collect();
        folder.write(
            "server.conf",
            format!(
                r#"
{modules}
ServerRoot {root}
ServerName apache.example
User nobody
Group nogroup
Listen {address}
PidFile {root}/apache.pid
Mutex file:{root}
ErrorLog {root}/error.log
LogFormat "%{{X-Forwarded-For}}i|%{{Via}}i|%r|%>s" seen
CustomLog {root}/access.log seen
TypesConfig /dev/null
DocumentRoot {root}/docs
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 60
ServerLimit 1
ThreadsPerChild 64
MaxRequestWorkers 64
DavLockDB {root}/lock/dav
ScriptAlias /cgi/ {root}/cgi/
RewriteEngine On
RewriteRule ^/name$ /files/name [PT]
<Directory {root}>
    Require all granted
</Directory>
<Location /dav>
    Dav On
</Location>
{lines}
"#
            ),
        );
        folder.make_folder("lock");
        Self::started(Kind::Apache, address, folder)
    }

    fn started(kind: Kind, address: SocketAddr, folder: Folder) -> Self {
        for name in ["docs", "docs/files", "docs/dav"] {
            folder.make_folder(name);
        }
        folder.write("docs/files/name", address.to_string());
        let mut server = Self {
            kind,
            address,
            folder,
            process: None,
        };
        server.restart();
        server
    }

    /// Returns the address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts a document at `/files/NAME`.
    pub fn put_document(&self, name: &str, content: impl AsRef<[u8]>) {
        self.folder.write(&format!("docs/files/{name}"), content);
    }

    /// Returns the bytes that were uploaded to `/dav/NAME`.
    pub fn uploaded(&self, name: &str) -> Vec<u8> {
        self.folder.read(&format!("docs/dav/{name}"))
    }

    /// Lines of its access log.
    pub fn access_log(&self) -> Vec<String> {
        let log = self.folder.text("access.log");
        log.lines().map(str::to_owned).collect()
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Stops it where it is: it still accepts, and never answers.
    pub fn stop(&self) {
        signal(self.process.as_ref().expect("it runs").id(), Signal::STOP);
    }

    /// Lets it go on after `stop`.
    pub fn go_on(&self) {
        signal(self.process.as_ref().expect("it runs").id(), Signal::CONT);
    }

    /// Starts it, again after `kill`, and waits until it listens.
    pub fn restart(&mut self) {
        self.kill();
        let config = self.folder.join("server.conf");
        let mut command = match self.kind {
            Kind::Nginx => {
                let mut nginx = program("nginx");
                nginx.arg("-c").arg(config);
                nginx
            }
            Kind::Apache => {
                let mut apache = program("apache2");
                // One process, which is enough, and is killed as a whole.
                apache.args(["-X", "-f"]).arg(config);
                apache
            }
        };
        // What it says before it has read its configuration, of files that only root may
        // write, too.
        let output = File::create(self.folder.join("output.log")).expect("a file");
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .expect("the server starts");
        let process = self.process.insert(process);
        wait_until(&format!("a server listens on {}", self.address), || {
            if let Some(status) = process.try_wait().expect("its state") {
                let output = self.folder.text("output.log");
                let log = self.folder.text("error.log");
                panic!("the server ended with {status}: {output}{log}");
            }
            TcpStream::connect(self.address).is_ok()
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn make_executable(file: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    let rights = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(file, rights).expect("its rights");
}

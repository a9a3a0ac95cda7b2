//! Balancers as their own users would set them up: a few members, and the policy to choose by.

use std::error::Error;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_demo::stage::haproxy_configuration;
use tokio::net::TcpStream;

use crate::arms::{Arm, Places, TRAEFIK_VERSION, install_traefik};
use crate::server::{Server, free_address, processors};

/// A program that balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The product.
    Evenkeel,
    /// The newest HAProxy of Debian.
    Haproxy,
    /// The newest nginx of Debian.
    Nginx,
    /// HAProxy as the system's own package installs it.
    HaproxySystem,
    /// nginx as the system's own package installs it.
    NginxSystem,
    /// Envoy, from its Python wheel.
    Envoy,
    /// Traefik, from its Python wheel.
    Traefik,
}

/// A program, and its balancing policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// The program.
    pub program: Program,
    /// Policy as written in the program's configuration; unused for the product, which is measured unconfigured.
    pub policy: &'static str,
}

/// Envoy's policy that uses the members' reports of their load.
pub const CLIENT_SIDE_WEIGHTED: &str = "client_side_weighted_round_robin";

impl Program {
    /// The arm of the same program; none for Traefik.
    fn arm(self) -> Option<Arm> {
        match self {
            Self::Evenkeel => Some(Arm::Evenkeel),
            Self::Haproxy => Some(Arm::Haproxy),
            Self::Nginx => Some(Arm::Nginx),
            Self::HaproxySystem => Some(Arm::HaproxySystem),
            Self::NginxSystem => Some(Arm::NginxSystem),
            Self::Envoy => Some(Arm::Envoy),
            Self::Traefik => None,
        }
    }

    /// Name in tables and results.
    pub fn name(self) -> &'static str {
        self.arm().map_or("traefik", Arm::name)
    }

    /// Version of a peer; `None` for the product, and where the program does not say.
    pub fn version(self, program: &Path) -> Option<String> {
        match self.arm() {
            Some(arm) => arm.version(program),
            None => Some(TRAEFIK_VERSION.to_owned()),
        }
    }

    /// Finds the program, and installs what a package manager can.
    ///
    /// # Errors
    ///
    /// Returns an error if the program is not there and cannot be installed.
    pub fn install(self, places: &Places) -> Result<PathBuf, Box<dyn Error>> {
        match self.arm() {
            Some(arm) => arm.install(places),
            None => install_traefik(&places.cache),
        }
    }
}

impl Balancer {
    /// Starts `program`, with its files in `folder`, in front of these members, on the last
    /// processor. Does not block the thread, which may be the one that serves the members.
    ///
    /// # Errors
    ///
    /// Returns an error if the program does not listen within 20 seconds.
    pub async fn start(
        &self,
        program: &Path,
        folder: &Path,
        members: &[SocketAddr],
    ) -> Result<(Server, SocketAddr), Box<dyn Error>> {
        let mut rng = fastrand::Rng::new();
        let (listen, admin) = (free_address(&mut rng)?, free_address(&mut rng)?);
        fs::create_dir_all(folder)?;
        // Traefik tells formats apart by the end of the name.
        let file = folder.join("configuration.yml");
        fs::write(&file, self.configuration(listen, admin, members, folder))?;
        let mut command = Command::new(program);
        match self.program {
            Program::Evenkeel => command.arg("run").arg(&file),
            Program::Haproxy | Program::HaproxySystem => command.arg("-db").arg("-f").arg(&file),
            Program::Nginx | Program::NginxSystem => {
                command.arg("-p").arg(folder).arg("-c").arg(&file)
            }
            Program::Envoy => command
                .args(["--concurrency", "1", "--disable-hot-restart"])
                .args(["--log-level", "warning", "-c"])
                .arg(&file),
            Program::Traefik => command
                .arg(format!("--entrypoints.web.address={listen}"))
                .arg(format!("--providers.file.filename={}", file.display()))
                .args(["--log.level=ERROR", "--global.checknewversion=false"])
                .arg("--global.sendanonymoususage=false"),
        };
        let log_file = folder.join("log");
        let log = File::create(&log_file)?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // nginx's master takes the worker along only if it is asked to end.
        let cpu = *processors()?.last().ok_or("no processor")?;
        let mut server = Server::start(command, cpu, libc::SIGTERM)?;
        let listens = tokio::time::timeout(Duration::from_secs(20), async {
            while TcpStream::connect(listen).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        if listens.await.is_err() {
            let log = fs::read_to_string(&log_file).unwrap_or_default();
            let last = log.lines().last().unwrap_or_default();
            return Err(format!("does not listen; its last words: {last}").into());
        }
        server.wait_for(&[listen])?;
        Ok((server, listen))
    }

    /// Writes the configuration that a user would write for these members.
    fn configuration(
        &self,
        listen: SocketAddr,
        admin: SocketAddr,
        members: &[SocketAddr],
        folder: &Path,
    ) -> String {
        let each =
            |line: &dyn Fn(&SocketAddr) -> String| members.iter().map(line).collect::<String>();
        match self.program {
            Program::Evenkeel => format!(
                "workers = 1\n[admin]\nlisten = \"{admin}\"\n[rule.web]\nlisten = \"{listen}\"\n\
                 protocol = \"http\"\nmembers = [{}]\n",
                each(&|member| format!("\"{member}\", "))
            ),
            Program::Haproxy | Program::HaproxySystem => {
                haproxy_configuration(listen, members.iter().copied())
                    .replace("balance leastconn", &format!("balance {}", self.policy))
            }
            Program::Nginx | Program::NginxSystem => format!(
                "worker_processes 1;\ndaemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n\
                 events {{ worker_connections 4096; }}\nhttp {{\n  access_log off;\n  \
                 client_body_temp_path {folder}/body;\n  proxy_temp_path {folder}/proxy;\n  \
                 fastcgi_temp_path {folder}/fastcgi;\n  uwsgi_temp_path {folder}/uwsgi;\n  \
                 scgi_temp_path {folder}/scgi;\n  upstream web {{\n    {policy};\n{}    keepalive 64;\n  }}\n  \
                 server {{\n    listen {listen};\n    location / {{\n      proxy_pass http://web;\n      \
                 proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n    }}\n  }}\n}}\n",
                each(&|member| format!("    server {member};\n")),
                policy = self.policy,
                folder = folder.display()
            ),
            Program::Envoy => format!(
                "static_resources:\n  listeners:\n  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }}\n    \
                 filter_chains:\n    - filters:\n      - name: envoy.filters.network.http_connection_manager\n        \
                 typed_config:\n          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager\n          \
                 stat_prefix: web\n          route_config:\n            virtual_hosts:\n            - name: all\n              \
                 domains: [\"*\"]\n              routes:\n              - match: {{ prefix: \"/\" }}\n                \
                 route: {{ cluster: web }}\n          http_filters:\n          - name: envoy.filters.http.router\n            \
                 typed_config:\n              \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router\n  \
                 clusters:\n  - name: web\n    type: STATIC\n    connect_timeout: 5s\n{policy}    \
                 load_assignment:\n      cluster_name: web\n      endpoints:\n      - lb_endpoints:\n{}",
                listen.port(),
                each(&|member| format!(
                    "        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}\n",
                    member.port()
                )),
                // Weights count after ten seconds of reports by default, which is longer than a turn.
                policy = if self.policy == CLIENT_SIDE_WEIGHTED {
                    "    load_balancing_policy:\n      policies:\n      - typed_extension_config:\n          \
                     name: envoy.load_balancing_policies.client_side_weighted_round_robin\n          typed_config:\n            \
                     \"@type\": type.googleapis.com/envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin\n            \
                     blackout_period: 0.5s\n            weight_update_period: 0.5s\n".to_owned()
                } else {
                    format!("    lb_policy: {}\n", self.policy)
                }
            ),
            Program::Traefik => format!(
                "http:\n  routers:\n    web:\n      rule: PathPrefix(`/`)\n      service: web\n  services:\n    web:\n      \
                 loadBalancer:\n        strategy: {}\n        servers:\n{}",
                self.policy,
                each(&|member| format!("        - url: http://{member}\n"))
            ),
        }
    }
}

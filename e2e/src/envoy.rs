//! Envoy as a client of xDS: one listener, whose clusters come from the balancer.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::balancer::keep_log;
use crate::folder::Folder;
use crate::process::program;
use crate::python::package_file;
use crate::wait_until;
use crate::wire::Wire;

/// Settings of an Envoy that is to be a client.
pub struct Wanted<'a> {
    /// Name of the client.
    pub node: &'a str,
    /// Zone of the client, if it is to name its zone.
    pub zone: Option<&'a str>,
    /// Address of the server.
    pub server: SocketAddr,
    /// `GRPC`, or `DELTA_GRPC` for the incremental variant.
    pub variant: &'a str,
    /// The cluster that its listener forwards to.
    pub cluster: &'a str,
    /// Files of its certificate with key, and of the authority that it trusts, for TLS with the server.
    pub tls: Option<(&'a Path, &'a Path)>,
}

/// A running Envoy, killed when dropped.
pub struct Envoy {
    process: Child,
    admin: SocketAddr,
    log: Arc<Mutex<String>>,
    _folder: Folder,
}

/// Returns the path of the program; `None`, which is said, if it is not installed.
pub fn find_binary() -> Option<std::path::PathBuf> {
    package_file("envoy", "_bin/envoy")
}

impl Envoy {
    /// Starts one; `None`, which is said, if it is not installed.
    pub fn start(wanted: &Wanted<'_>) -> Option<Self> {
        let binary = find_binary()?;
        let folder = Folder::new();
        let file = folder.write("envoy.yaml", configuration(wanted));
        let admin = folder.join("admin");
        let mut command: Command = program(&binary.display().to_string());
        command
            .args(["--concurrency", "1", "--disable-hot-restart"])
            .args(["--log-level", "warning", "--admin-address-path"])
            .arg(&admin)
            .arg("-c")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = command.spawn().expect("Envoy starts");
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = process.stderr.take().expect("it is piped");
        keep_log(stderr, Arc::clone(&log));
        let mut address = None;
        wait_until("Envoy says where its administration is", || {
            if let Ok(Some(status)) = process.try_wait() {
                panic!(
                    "Envoy has ended with {status}: {}",
                    log.lock().expect("no panic")
                );
            }
            let text = std::fs::read_to_string(&admin).unwrap_or_default();
            address = text.trim().parse().ok();
            address.is_some()
        });
        Some(Self {
            process,
            admin: address.expect("it is there"),
            log,
            _folder: folder,
        })
    }

    /// Returns the answer of Envoy's administration.
    pub fn read_admin(&self, path: &str) -> String {
        let mut wire = Wire::connect(self.admin);
        wire.send(format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ));
        wire.read_response().text().into()
    }

    /// Returns the address of Envoy's listener, once the listener is there.
    pub fn address(&self) -> SocketAddr {
        let mut address = None;
        wait_until("the listener of Envoy is there", || {
            let all: Value = serde_json::from_str(&self.read_admin("/listeners?format=json"))
                .unwrap_or_default();
            let socket = &all["listener_statuses"][0]["local_address"]["socket_address"];
            let port = socket["port_value"]
                .as_u64()
                .and_then(|port| u16::try_from(port).ok());
            address = port.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
            address.is_some()
        });
        address.expect("it is there")
    }

    /// Returns what Envoy says of an endpoint of a cluster, such as the endpoint's `weight`.
    pub fn endpoint_field(
        &self,
        cluster: &str,
        endpoint: SocketAddr,
        what: &str,
    ) -> Option<String> {
        let start = format!("{cluster}::{endpoint}::{what}::");
        let all = self.read_admin("/clusters");
        let line = all.lines().find_map(|line| line.strip_prefix(&*start));
        line.map(str::to_owned)
    }

    /// Returns the value of a counter.
    pub fn read_counter(&self, name: &str) -> u64 {
        let start = format!("{name}: ");
        let all = self.read_admin(&format!("/stats?filter={name}"));
        let line = all.lines().find_map(|line| line.strip_prefix(&*start));
        line.and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            eprintln!("Envoy's log:\n{}", self.log.lock().expect("no panic"));
        }
    }
}

/// A bootstrap file.
fn configuration(wanted: &Wanted<'_>) -> String {
    let Wanted {
        node,
        zone,
        server,
        variant,
        cluster,
        tls,
    } = wanted;
    let port = server.port();
    let zone = zone.map_or_else(String::new, |zone| {
        format!(", locality: {{ zone: {zone} }}")
    });
    let tls = tls.map_or_else(String::new, |(own, authority)| {
        let (own, authority) = (own.display(), authority.display());
        format!(
            "    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: xds.test
        common_tls_context:
          tls_certificates:
          - certificate_chain: {{ filename: {own} }}
            private_key: {{ filename: {own} }}
          validation_context: {{ trusted_ca: {{ filename: {authority} }} }}
"
        )
    });
    format!(
        "node: {{ id: {node}, cluster: edge{zone} }}
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }} }}
cluster_manager:
  load_stats_config:
    api_type: GRPC
    transport_api_version: V3
    grpc_services: [{{ envoy_grpc: {{ cluster_name: xds }} }}]
dynamic_resources:
  ads_config:
    api_type: {variant}
    transport_api_version: V3
    grpc_services: [{{ envoy_grpc: {{ cluster_name: xds }} }}]
  cds_config: {{ ads: {{}}, resource_api_version: V3 }}
static_resources:
  listeners:
  - name: web
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          route_config:
            validate_clusters: false
            virtual_hosts: [{{ name: all, domains: [\"*\"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: {cluster} }} }}] }}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: xds
    type: STATIC
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http2_protocol_options: {{}} }}
    load_assignment:
      cluster_name: xds
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }}] }}]
{tls}"
    )
}

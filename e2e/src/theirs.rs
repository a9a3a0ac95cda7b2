//! Examples for other balancers in the manual, checked by these balancers themselves.
//!
//! The manual leaves out what is the same each time: each kind has a frame here that makes a whole of what it
//! shows. Services that are called `web` and are not said to be anything are added.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{are_installed, find};

/// Another balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// HAProxy's own language: blocks called `haproxy`.
    Haproxy,
    /// The language of nginx: blocks called `nginx`.
    Nginx,
    /// YAML with the mark `of: traefik`.
    Traefik,
    /// YAML with the mark `of: envoy`.
    Envoy,
}

impl Other {
    /// The balancer of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "haproxy" => Other::Haproxy,
            "nginx" => Other::Nginx,
            "traefik" => Other::Traefik,
            "envoy" => Other::Envoy,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Other::Haproxy => "haproxy",
            Other::Nginx => "nginx",
            Other::Traefik => "traefik",
            Other::Envoy => "envoy",
        }
    }

    /// The program, if it is there. Traefik and Envoy are where `make bench-balance` has put them, or on the path.
    fn program(self) -> Option<PathBuf> {
        let name = self.name();
        if matches!(self, Other::Haproxy | Other::Nginx) {
            return are_installed(&[name]).then(|| find(name))?;
        }
        let cache = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/.cache");
        let environments = fs::read_dir(cache).into_iter().flatten().flatten();
        let of_bench = environments
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(name))
            .map(|entry| entry.path().join("bin").join(name))
            .find(|program| program.exists());
        of_bench.or_else(|| find(name))
    }

    /// A shell command that succeeds if the balancer accepts what the manual shows; it writes files that begin
    /// with `path`. `None` if the balancer is not installed.
    pub fn check(self, shown: &str, path: &Path) -> Option<String> {
        let program = self.program()?;
        let program = program.display();
        let folder = path.parent().expect("a file in a folder").display();
        // Files that these name are where the reader is.
        let shown = shown.replace("/etc/ssl/", &format!("{folder}/"));
        let write = |end: &str, text: &str| {
            let path = path.with_extension(end);
            fs::write(&path, text).expect("the file is written");
            path.display().to_string()
        };
        Some(match self {
            Other::Haproxy => format!("{program} -c -f {}", write("cfg", &haproxy(&shown))),
            Other::Nginx => {
                let shown = shown.replace("/var/log/nginx/", &format!("{folder}/"));
                let file = write("conf", &nginx(&shown, &folder.to_string()));
                format!("{program} -t -q -p {folder} -c {file}")
            }
            Other::Envoy => {
                let file = write("yaml", &envoy(&shown));
                format!("{program} --mode validate --log-level error -c {file}")
            }
            Other::Traefik => {
                let (fixed, dynamic) = traefik(&shown);
                let is_empty = dynamic.is_empty();
                let dynamic = write("dynamic.yaml", &dynamic);
                let file = format!("providers: {{ file: {{ filename: {dynamic} }} }}\n");
                let fixed = write("yaml", &(fixed + &file));
                // It has no command to check a file: it says what is wrong with one that it runs with.
                let loaded = if is_empty { "" } else { "@file\"" };
                format!(
                    "({program} --configfile {fixed} > {fixed}.log 2>&1 & echo $! > {fixed}.pid
                     for i in $(seq 300); do
                       curl -s http://{TRAEFIK}/api/rawdata > {fixed}.seen && grep -q '{loaded}' {fixed}.seen && break
                       grep -q ERR {fixed}.log && break
                       sleep 0.1
                     done
                     kill $(cat {fixed}.pid); while kill -0 $(cat {fixed}.pid); do sleep 0.05; done) 2> /dev/null
                     cat {fixed}.log {fixed}.seen
                     grep -q '{loaded}' {fixed}.seen && ! grep -qE 'ERR' {fixed}.log \
                       && ! grep -qE '\"error\":|\"status\":\"disabled\"' {fixed}.seen"
                )
            }
        })
    }
}

/// Address at which Traefik tells what it has made of its configuration.
const TRAEFIK: &str = "127.0.0.1:9999";

fn haproxy(shown: &str) -> String {
    let mut text = String::from(
        "global\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n\n",
    );
    text += shown;
    let has = |start: &str| shown.lines().any(|line| line.trim().starts_with(start));
    if has("default_backend web") && !has("backend web") {
        text += "\nbackend web\n  server a 10.0.1.1:80\n";
    }
    if !has("bind ") {
        text += "\nfrontend frame\n  bind :8080\n";
    }
    text
}

fn nginx(shown: &str, folder: &str) -> String {
    let web = match shown.contains("http://web") && !shown.contains("upstream web") {
        true => "upstream web { server 10.0.1.1:80; }\n",
        false => "",
    };
    let body = match shown.starts_with("stream {") {
        true => shown.to_owned(),
        false => format!("http {{\n{web}{shown}}}\n"),
    };
    format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\npid {folder}/nginx.pid;\n\
         error_log stderr;\nevents {{}}\n{body}"
    )
}

/// The tables of a text of YAML at its outermost level, each with its key.
fn tables(text: &str) -> Vec<(&str, String)> {
    let mut tables: Vec<(&str, String)> = Vec::new();
    for line in text.lines() {
        match line.split_once(':') {
            Some((key, _)) if key.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                tables.push((key, line.to_owned()));
            }
            _ => {
                let (_, last) = tables.last_mut().expect("a key comes first");
                last.push('\n');
                last.push_str(line);
            }
        }
    }
    tables
}

fn indented(text: &str, by: usize) -> String {
    let by = " ".repeat(by);
    let lines = text.lines().map(|line| format!("{by}{line}\n"));
    lines.collect()
}

/// An item of a list.
fn item(text: &str, by: usize) -> String {
    let text = indented(text, by + 2);
    let at = by.min(text.len());
    format!("{}- {}", " ".repeat(by), text[at..].trim_start())
}

fn envoy(shown: &str) -> String {
    const MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    const ROUTER: &str = "\n  - name: envoy.filters.http.router\n    typed_config:\n      \
         \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router\n";
    const ROUTES: &str = "route_config:\n  virtual_hosts:\n    - name: all\n      domains: [\"*\"]\n      \
         routes:\n        - match: { prefix: / }\n          route: { cluster: web }\n";
    let tables = tables(shown);
    let given = |key: &str| {
        let found = tables.iter().find(|(known, _)| *known == key);
        found.map(|(_, text)| text.as_str())
    };
    let outside = [
        "admin",
        "clusters",
        "filter_chains",
        "http_filters",
        "listener_filters",
        "route_config",
        "transport_socket",
    ];
    let mut manager = format!("\"@type\": {MANAGER}\nstat_prefix: frame\n");
    for (_, text) in tables.iter().filter(|(key, _)| !outside.contains(key)) {
        manager += &format!("{text}\n");
    }
    manager += given("route_config").unwrap_or(ROUTES);
    manager += "\n";
    manager += given("http_filters").unwrap_or("http_filters:");
    manager += ROUTER;
    let mut chain = given("transport_socket").map_or_else(String::new, |text| format!("{text}\n"));
    chain +=
        "filters:\n  - name: envoy.filters.network.http_connection_manager\n    typed_config:\n";
    chain += &indented(&manager, 6);
    let chains = format!("filter_chains:\n{}", item(&chain, 2));
    let mut listener = String::from(
        "name: frame\naddress: { socket_address: { address: 127.0.0.1, port_value: 10000 } }\n",
    );
    listener += given("listener_filters").unwrap_or_default();
    listener += "\n";
    listener += given("filter_chains").unwrap_or(&chains);
    let mut clusters = given("clusters").unwrap_or("clusters:").to_owned();
    if let Some(inline) = clusters.strip_prefix("clusters: [") {
        let inline = inline.trim_end_matches(']').replace("}, {", "}\n  - {");
        clusters = format!("clusters:\n  - {inline}");
    }
    if !clusters.lines().any(|line| line == "  - name: web") {
        clusters += "\n  - name: web";
    }
    let admin = given("admin").unwrap_or_default();
    format!(
        "{admin}\nstatic_resources:\n  listeners:\n{}{}",
        item(&listener, 4),
        indented(&clusters, 2)
    )
}

/// Returns the configuration with which Traefik is started, and the configuration that it reads
/// then.
fn traefik(shown: &str) -> (String, String) {
    let (mut fixed, mut dynamic) = (String::new(), String::new());
    for (key, text) in tables(shown) {
        let is_fixed = ["accessLog", "api", "entryPoints", "metrics"].contains(&key);
        let of = if is_fixed { &mut fixed } else { &mut dynamic };
        *of += &format!("{text}\n");
    }
    let (_, services) = dynamic.split_once("\n  services:").unwrap_or_default();
    let leads_to_web = dynamic.contains("service: web") || dynamic.contains("name: web,");
    if leads_to_web && !services.lines().any(|line| line.starts_with("    web:")) {
        let web = "    web: { loadBalancer: { servers: [{ url: \"http://10.0.1.1:80\" }] } }\n";
        let services = "\n  services:\n";
        dynamic = match dynamic.contains(services) {
            true => dynamic.replace(services, &format!("{services}{web}")),
            // Before what stands at the outermost level after it.
            false => dynamic.replacen("http:\n", &format!("http:\n  services:\n{web}"), 1),
        };
    }
    let own = format!("  traefik: {{ address: \"{TRAEFIK}\" }}\n");
    fixed = match fixed.contains("entryPoints:\n") {
        // What is shown of this one gives way.
        true if fixed.contains("  traefik:\n") => fixed.replace("127.0.0.1:8404", TRAEFIK),
        true => fixed.replace("entryPoints:\n", &format!("entryPoints:\n{own}")),
        false => format!("entryPoints:\n{own}  web: {{ address: \":8080\" }}\n{fixed}"),
    };
    if !fixed.contains("api:\n") {
        fixed += "api: { insecure: true }\n";
    }
    fixed +=
        "log: { level: ERROR }\nglobal: { checkNewVersion: false, sendAnonymousUsage: false }\n";
    (fixed, dynamic)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::folder::Folder;

    /// Returns true if the balancer accepts its configuration; `None` where the balancer is not
    /// installed.
    fn accepts(other: Other, shown: &str) -> Option<bool> {
        let folder = Folder::new();
        let command = other.check(shown, &folder.join("block-1"))?;
        let mut shell = Command::new("bash");
        let output = shell.args(["-c", &command]).output().unwrap();
        Some(output.status.success())
    }

    #[test]
    fn u10_others_refuse_what_is_wrong_in_their_blocks() {
        let haproxy = "frontend a\n  bind 127.0.0.1:8080\n  default_backend web\n";
        let envoy = "clusters:\n  - name: shop\n    lb_policy: RANDOM\n";
        for (other, good, right, wrong) in [
            (
                Other::Haproxy,
                haproxy,
                "default_backend",
                "default_frontend",
            ),
            (Other::Envoy, envoy, "RANDOM", "RANDOMLY"),
            (Other::Envoy, envoy, "lb_policy", "policy"),
        ] {
            let Some(accepted) = accepts(other, good) else {
                continue;
            };
            assert!(accepted, "{other:?}: {good}");
            let bad = good.replace(right, wrong);
            assert_eq!(accepts(other, &bad), Some(false), "{other:?}: {bad}");
        }
    }

    #[test]
    fn u10_what_the_manual_leaves_out_is_added() {
        let fragment = "http:\n  routers:\n    web: { rule: a, service: web }\ntls:\n  x: y\n";
        let (fixed, dynamic) = traefik(fragment);
        assert!(fixed.contains("  traefik: {") && fixed.contains("insecure"));
        assert!(
            dynamic.starts_with("http:\n  services:\n    web: {"),
            "{dynamic}"
        );
        assert!(dynamic.ends_with("tls:\n  x: y\n"));
        let whole = envoy("clusters: [{ name: a }, { name: b }]\n");
        assert!(whole.contains("\n    - { name: a }\n    - { name: b }\n    - name: web\n"));
        assert!(whole.contains("\n    - name: frame\n      address: {"));
        let nginx = nginx("server { location / { proxy_pass http://web; } }\n", "/x");
        assert!(nginx.contains("http {\nupstream web {"));
    }
}

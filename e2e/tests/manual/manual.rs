//! Every command of the manual is run, in the order of its page, and every configuration
//! there is checked.
//!
//! How pages say what a block is: CONTRIBUTING.md, *Tests*.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::path::Path;

use evenkeel_e2e::manual::{Block, Mark, follow_page, pages, parse_blocks};
use evenkeel_e2e::process::{are_installed, report_skipped};
use evenkeel_e2e::{httpd, jacorb, libarm, omniorb};

/// A reader has installed the program.
const INSTALLED: &str = "PATH=\"$PWD/target/dist:$PATH\"\n";

/// Two servers, and a balancer before them as README shows it.
const BALANCED: &str = "
    serve 127.0.0.1:8001 127.0.0.1:8002
    cat > evenkeel.toml <<'END'
[rule.web]
listen = \"127.0.0.1:8080\"
members = [\"127.0.0.1:8001\", { address = \"127.0.0.1:8002\", location = \"machine-1\" }]
END
    ";

/// Pages whose commands are run, here or below.
const FOLLOWED: [&str; 38] = [
    "README.md",
    "docs/admin-api.md",
    "docs/agent.md",
    "docs/arm.md",
    "docs/cli.md",
    "docs/coming-from.md",
    "docs/configuration.md",
    "docs/corba.md",
    "docs/engine.md",
    "docs/fleet.md",
    "docs/http2.md",
    "docs/inference.md",
    "docs/ingress.md",
    "docs/kernel-forwarding.md",
    "docs/kernel-monitor.md",
    "docs/kubernetes.md",
    "docs/lab.md",
    "docs/limits.md",
    "docs/load-reports.md",
    "docs/members.md",
    "docs/negotiation.md",
    "docs/ftp.md",
    "docs/overload.md",
    "docs/proxy-protocol.md",
    "docs/routing.md",
    "docs/service.md",
    "docs/simulator.md",
    "docs/steer.md",
    "docs/store.md",
    "docs/strategies.md",
    "docs/telemetry.md",
    "docs/tls.md",
    "docs/tutorial-load-reports.md",
    "docs/udp.md",
    "docs/xds.md",
    "docs/zones.md",
    "modules/java/README.md",
    "modules/omniorb/README.md",
];

fn parsed(page: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    parse_blocks(page, &fs::read_to_string(path).unwrap()).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// No block is left out, and no page: what has commands or configurations is followed below.
#[test]
fn u10_every_block_of_every_page_is_accounted_for() {
    let pages = pages();
    for page in FOLLOWED {
        assert!(
            pages.iter().any(|known| known == page),
            "there is no {page}"
        );
        // Its place in the list is one, and the test that follows the page is another.
        let name = format!("\"{page}\"");
        let places = include_str!("manual.rs").matches(&name).count();
        assert!(places > 1, "no test follows {page}");
    }
    for page in pages {
        let runs = |block: &Block| match block.language.as_str() {
            "sh" | "console" => !block.marks.contains(&Mark::NotRun),
            language => language == "toml",
        };
        let first = parsed(&page).into_iter().find(runs);
        let followed = FOLLOWED.contains(&page.as_str());
        if let Some(block) = first {
            let line = block.line;
            assert!(
                followed,
                "{page}:{line}: nothing runs it; follow the page in {}",
                file!()
            );
        } else {
            assert!(!followed, "{page} has nothing to run");
        }
    }
}

#[test]
fn u10_readme() {
    follow_page("README.md", "serve 127.0.0.1:8001 127.0.0.1:8002");
}

#[test]
fn u10_admin_api() {
    follow_page(
        "docs/admin-api.md",
        &format!("{INSTALLED}{BALANCED} balance evenkeel.toml"),
    );
}

#[test]
fn u10_agent() {
    let key = "(umask 077; echo \"1:$(openssl rand -hex 32)\" > broker.key)";
    follow_page("docs/agent.md", &format!("{INSTALLED} {key}"));
}

#[test]
fn u10_arm() {
    let group = "(cat /etc/group; echo evenkeel:x:7777:) > /run/evenkeel-test/group
        mount --bind /run/evenkeel-test/group /etc/group";
    follow_page("docs/arm.md", group);
}

#[test]
fn u10_fleet() {
    follow_page("docs/fleet.md", INSTALLED);
}

#[test]
fn u10_service() {
    follow_page("docs/service.md", INSTALLED);
}

#[test]
fn u10_telemetry() {
    follow_page("docs/telemetry.md", INSTALLED);
}

#[test]
fn u10_cli() {
    if !are_installed(&["script"]) {
        return;
    }
    // Both at once are on one machine here.
    let more = "printf 'brokers = \"http://127.0.0.1:8088\"\\n[cluster.shop]\\nlisten = \"127.0.0.1:8090\"\\n' > engine.toml
        printf '[server.web]\\naddress = \"127.0.0.1:8001\"\\n[agent_check]\\nlisten = \"127.0.0.1:9910\"\\n' > agent.toml";
    follow_page("docs/cli.md", &format!("{INSTALLED}{BALANCED} {more}"));
}

#[test]
fn u10_configuration() {
    follow_page("docs/configuration.md", INSTALLED);
}

#[test]
fn u10_coming_from() {
    // Files that configurations name: ours, and theirs.
    let files = "openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
        -subj /CN=www.example.org -keyout www.key -out www.crt 2>/dev/null
        cat www.crt www.key > www.pem; chmod 600 www.key www.pem
        (umask 077; openssl rand -base64 48 > sticky.key; echo 0123456789abcdef > token)";
    follow_page("docs/coming-from.md", &format!("{INSTALLED} {files}"));
}

#[test]
fn u10_http2() {
    follow_page("docs/http2.md", INSTALLED);
}

#[test]
fn u10_inference() {
    // Engines in small: each answer is the same.
    let engines = r#"
        cat > engine.py <<'END'
import http.server, json, sys
class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer({})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": "To stay upright."}
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
        self.answer({"model": asked["model"], "choices": [{"index": 0, "message": message}], "usage": usage})
for_all = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Engine)
for_all.serve_forever()
END
        for port in 8001 8002; do
            (python3 engine.py $port > /dev/null 2>&1 &)
            listening 127.0.0.1:$port
        done
        "#;
    follow_page("docs/inference.md", &format!("{INSTALLED} {engines}"));
}

#[test]
fn u10_ftp() {
    follow_page("docs/ftp.md", INSTALLED);
}

#[test]
fn u10_udp() {
    follow_page("docs/udp.md", INSTALLED);
}

/// Makes the account of an API server that the pages name. `check` reads the file, and asks no server.
const ACCOUNT: &str = "
        mkdir .kube
        cat > .kube/config <<'END'
apiVersion: v1
kind: Config
current-context: shop
clusters: [{name: here, cluster: {server: \"https://127.0.0.1:6443\"}}]
users: [{name: balancer, user: {token: secret}}]
contexts: [{name: shop, context: {cluster: here, user: balancer}}]
END
        ";

#[test]
fn u10_kubernetes() {
    follow_page("docs/kubernetes.md", &format!("{INSTALLED} {ACCOUNT}"));
}

#[test]
fn u10_ingress() {
    follow_page("docs/ingress.md", &format!("{INSTALLED} {ACCOUNT}"));
}

#[test]
fn u10_proxy_protocol() {
    follow_page("docs/proxy-protocol.md", INSTALLED);
}

#[test]
fn u10_xds() {
    // Any certificate will do, for the server and as the authority of clients.
    let certificates =
        "openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
        -subj /CN=clients -keyout clients.key -out clients.pem 2>/dev/null
        (umask 077; cat clients.pem clients.key > xds.pem)";
    follow_page("docs/xds.md", &format!("{INSTALLED} {certificates}"));
}

#[test]
fn u10_members() {
    follow_page("docs/members.md", INSTALLED);
}

#[test]
fn u10_routing() {
    follow_page("docs/routing.md", INSTALLED);
}

#[test]
fn u10_tls() {
    // The authority of clients is any certificate.
    let clients = "openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
        -subj /CN=clients -keyout clients.key -out clients.pem 2>/dev/null";
    follow_page("docs/tls.md", &format!("{INSTALLED} {clients}"));
}

#[test]
fn u10_corba() {
    let Some(examples) = examples() else {
        return;
    };
    // For a file in the configuration.
    follow_page(
        "docs/corba.md",
        &format!("{INSTALLED} {examples} mkdir /run/evenkeel"),
    );
}

#[test]
fn u10_engine() {
    let broker = "
        names broker-1.example broker-2.example
        ip address add 10.0.0.2/32 dev lo
        serve 10.0.0.2:8080
        cat > broker.toml <<'END'
[negotiator]
listen = \"127.0.0.1:8088\"
[group.pool]
members = [\"10.0.0.2:8080\"]
[cluster.shop]
group = \"pool\"
hosts = [\"www.shop.example\"]
END
        balance broker.toml
        ";
    follow_page("docs/engine.md", &format!("{INSTALLED} {broker}"));
}

#[test]
fn u10_kernel_monitor() {
    // An interface whose driver runs XDP programs by itself, and a place for them.
    let machine = "
        ip tuntap add dev eth0 mode tap
        ip link set eth0 up
        mount -t bpf none /sys/fs/bpf
        ";
    if !Path::new("/sys/kernel/btf/vmlinux").exists() || !are_installed(&["clang", "openssl"]) {
        return report_skipped("the kernel has no BTF, or there is no clang");
    }
    follow_page("docs/kernel-monitor.md", &format!("{INSTALLED} {machine}"));
}

#[test]
fn u10_load_reports() {
    follow_page("docs/load-reports.md", INSTALLED);
}

#[test]
fn u10_lab() {
    follow_page("docs/lab.md", INSTALLED);
}

#[test]
fn u10_limits() {
    follow_page(
        "docs/limits.md",
        &format!("{INSTALLED} serve 127.0.0.1:8001 127.0.0.1:8002"),
    );
}

#[test]
fn u10_overload() {
    follow_page("docs/overload.md", INSTALLED);
}

#[test]
fn u10_negotiation() {
    let servers = "
        names www.shop.example www-1.shop.example www-2.shop.example
        ip address add 10.0.0.1/32 dev lo
        ip address add 10.0.0.2/32 dev lo
        serve 10.0.0.1:8080 10.0.0.2:8080
        ";
    follow_page("docs/negotiation.md", &format!("{INSTALLED} {servers}"));
}

#[test]
fn u10_simulator() {
    follow_page("docs/simulator.md", INSTALLED);
}

#[test]
fn u10_kernel_forwarding() {
    // The key of the fleet, which another chapter makes.
    let key = " (umask 077; echo \"1:$(openssl rand -hex 32)\" > fleet.key)";
    follow_page("docs/kernel-forwarding.md", &format!("{INSTALLED}{key}"));
}

#[test]
fn u10_steer() {
    // A file that the configuration names, and a folder for another one.
    let files = "mkdir nginx; (umask 077; echo \"1:$(openssl rand -hex 32)\" > broker.key)";
    follow_page(
        "docs/steer.md",
        &format!("{INSTALLED}{BALANCED} {files}; balance evenkeel.toml"),
    );
}

#[test]
fn u10_store() {
    if !are_installed(&["etcd"]) {
        return;
    }
    let store = "serve 127.0.0.1:8001 127.0.0.1:8002
        (etcd --data-dir /run/evenkeel-test/etcd > /dev/null 2>&1 &)
        listening 127.0.0.1:2379";
    follow_page("docs/store.md", &format!("{INSTALLED}{store}"));
}

#[test]
fn u10_strategies() {
    follow_page(
        "docs/strategies.md",
        &format!("{INSTALLED}{BALANCED} balance evenkeel.toml"),
    );
}

#[test]
fn u10_zones() {
    follow_page("docs/zones.md", INSTALLED);
}

#[test]
fn u10_tutorial_of_load_reports() {
    if !httpd::can_run() || !are_installed(&["hey", "openssl", "prometheus-node-exporter"]) {
        return;
    }
    let module = httpd::build_module();
    let built = format!(
        "mkdir target/dist/mod_evenkeel
         ln -s {}/libarm.so target/dist
         ln -s {} target/dist/mod_evenkeel",
        libarm::folder().display(),
        module.display()
    );
    follow_page("docs/tutorial-load-reports.md", &built);
}

#[test]
fn u10_readme_of_the_library_for_java() {
    let Some(examples) = examples() else {
        return;
    };
    let folder = "mkdir -p modules/java/target; ln -s $PWD/target/dist/java/lib modules/java/target
        cd modules/java";
    follow_page(
        "modules/java/README.md",
        &format!("{INSTALLED} {examples} {folder}"),
    );
}

#[test]
fn u10_readme_of_the_library_for_omniorb() {
    let Some(examples) = examples() else {
        return;
    };
    follow_page(
        "modules/omniorb/README.md",
        &format!("{INSTALLED} {examples}"),
    );
}

/// Commands that put the examples of our libraries for CORBA where `make` puts them.
fn examples() -> Option<String> {
    if !jacorb::can_run() || !omniorb::can_run() {
        return None;
    }
    let mut commands = format!(
        "mkdir -p target/dist/java target/dist/omniorb/example
         ln -s {} target/dist/java/lib
         unset OMNIORB_CONFIG JAVA_TOOL_OPTIONS\n",
        jacorb::classes().display()
    );
    for name in ["group", "server", "client"] {
        let program = omniorb::example_command(name);
        let path = Path::new(program.get_args().last().unwrap())
            .display()
            .to_string();
        commands += &format!("ln -s {path} target/dist/omniorb/example\n");
    }
    Some(commands)
}

//! The web console in a browser: each page and each change against a running balancer with users and members
//! under load.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_e2e::balancer::{Balancer, add_user};
use evenkeel_e2e::kubernetes::{ApiServer, Condition};
use evenkeel_e2e::load::Wrk;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, report_skipped};
use evenkeel_e2e::python::python;
use evenkeel_e2e::script::Script;
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Message;

/// Time for which a member works on a request.
const SERVICE_TIME: Duration = Duration::from_millis(50);

const PASSWORD: &str = "correct horse battery staple";

fn configuration(members: &[Member]) -> String {
    let names: Vec<String> = members
        .iter()
        .map(|member| format!("{:?}", member.address().to_string()))
        .collect();
    // Rules have an address that no other test uses: they are removed while clients go on, which would go to
    // whoever gets the port next.
    format!(
        "# What the console is tried with.\n[admin]\nlisten = \"127.0.0.1:0\"\nusers_file = \"users\"\n\n\
         [rule.web]\nlisten = \"127.0.0.77:0\"\nprotocol = \"http\"\ngroup = \"web\"\n\n\
         [rule.pictures]\nlisten = \"127.0.0.77:0\"\nprotocol = \"http\"\ngroup = \"pictures\"\n\n\
         [group.web]\nmembers = [{}] # Three of a kind.\nstrategy = \"adaptive\"\n\n\
         [group.pictures]\nmembers = [{}]\nstrategy = \"least_request\"\n\n\
         [group.zoned]\nhealth_check = false\nmembers = [\n\
         {{ address = \"127.0.0.77:1\", zone = \"north\" }},\n\
         {{ address = \"127.0.0.77:2\", zone = \"south\" }},\n]\n\n\
         [group.pods]\nhealth_check = false\nmembers = [{{ kubernetes = \"shop/web:http\" }}]\n\
         allowed_networks = [\"127.0.0.77/32\"]\n\n\
         [kubernetes]\nkubeconfig = \"kubeconfig\"\n\n\
         [kubernetes.gateway]\ncontroller = \"example.org/edge\"\n\n\
         [node]\nzone = \"north\"\n\n[xds]\nlisten = \"127.0.0.1:0\"\n",
        names[..3].join(", "),
        names[3..].join(", "),
    )
}

#[test]
fn pages_and_changes_in_a_browser() {
    if !are_installed(&["wrk", "npm"]) {
        return;
    }
    let console = Path::new(env!("CARGO_MANIFEST_DIR")).join("../console");
    let chromium = Path::new("/usr/bin/chromium");
    for (lacking, there) in [
        ("Debian's chromium is not installed", chromium.exists()),
        (
            "the console was not built: Node.js or npm is missing",
            console.join("dist/index.html").exists() && console.join("node_modules").exists(),
        ),
    ] {
        if !there {
            return report_skipped(lacking);
        }
    }
    // They take their time, so that the browser gets some of the CPU's.
    let answer = |request: &Message| {
        std::thread::sleep(SERVICE_TIME);
        ok_response(request.second_word())
    };
    let members: Vec<Member> = (0..5).map(|_| Member::answering_with(answer)).collect();
    let cluster = ApiServer::start();
    cluster.set_slice("web-1", 1, &[("127.0.0.77", Condition::Ready)]);
    let balancer = Balancer::start_with(&configuration(&members), |folder| {
        add_user(&folder.join("users"), "anna", PASSWORD);
        folder.write("kubeconfig", cluster.kubeconfig());
        folder.write_private("token", "first");
    });
    // A client of xDS that takes nothing that it is sent, if there is one.
    let refusing = python("xds_raw.py", "grpc").map(|mut command| {
        command
            .arg(balancer.xds_address().to_string())
            .arg("StreamAggregatedResources");
        let mut client = Script::start(&mut command);
        client.send_line("want edge-7 endpoints zoned");
        client.ask_line("next");
        client.send_line("nack endpoints not what I like");
        wait_until("the refusal is told", || {
            balancer.log().contains("not what I like")
        });
        client
    });
    // What is tried refuses some of their requests.
    let clients =
        ["web", "pictures"].map(|rule| Wrk::start(balancer.address(rule), "/picture", b"/picture"));
    let tried = Command::new("npm")
        .args(["run", "-s", "test"])
        .current_dir(&console)
        .env(
            "CONSOLE_URL",
            format!("http://{}", balancer.admin_address()),
        )
        .env("CONSOLE_USER", "anna")
        .env("CONSOLE_PASSWORD", PASSWORD)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&tried.stdout);
    assert!(
        tried.status.success(),
        "{told}\n{}\n{}",
        String::from_utf8_lossy(&tried.stderr),
        balancer.log()
    );
    drop(refusing);
    for client in clients {
        assert!(client.stop_and_tally().requests > 0);
    }
}

//! iperf3 as client and server: a TCP and a UDP rule at one address and port.

use std::fs::File;
use std::process::{Child, Stdio};

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::are_installed;

use super::*;

/// Bytes of a transfer to the client, which the client waits for. The contents of files (`--file`) cannot be compared: iperf3 3.12
/// repeats parts after a partial write.
const BYTES: u64 = 20 << 20;

/// Bytes of each UDP test: fewer datagrams than an interface's queue holds.
const DATAGRAMS: &str = "400K";

/// A server at the second member, killed when dropped.
struct Server {
    process: Child,
    folder: Folder,
}

impl Server {
    /// Starts a server, and waits until the server listens.
    fn start(machines: &Machines) -> Self {
        let folder = Folder::new();
        let at = machines.family.member(2);
        // Killed with this thread, too.
        let mut command = machines.pair.back.command("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "iperf3", "--server"]);
        command.args(["--forceflush", "--bind", &at.ip().to_string()]);
        command.args(["--port", &at.port().to_string()]);
        let output = File::create(folder.join("output.log")).unwrap();
        command.stdin(Stdio::null()).stdout(output);
        let process = command.stderr(Stdio::inherit()).spawn().unwrap();
        let mut server = Server { process, folder };
        wait_until("the server listens", || {
            let output = server.folder.text("output.log");
            if let Some(status) = server.process.try_wait().unwrap() {
                panic!("{status}: {output}");
            }
            output.contains("Server listening")
        });
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sums of a test as the client tells them.
#[derive(Debug)]
struct Sums {
    streams: u64,
    sent: u64,
    received: u64,
    /// Datagrams sent; 0 with TCP.
    packets: u64,
}

/// Runs a client with these words, and returns the sums of both ends.
fn run_client(machines: &Machines, words: &str) -> Sums {
    let rule = machines.family.rule();
    let mut command = machines.clients.command("timeout");
    command.args(["60", "iperf3", "--json", "--client", &rule.ip().to_string()]);
    command.args(["--port", &rule.port().to_string()]);
    command.args(words.split(' '));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let result: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    assert!(
        output.status.success() && result["error"].is_null(),
        "{words}: {}: {text}",
        output.status
    );
    let end = &result["end"];
    let read = |sum: &str, name: &str| end[sum][name].as_u64().unwrap_or(0);
    let sums = Sums {
        streams: end["streams"].as_array().unwrap().len() as u64,
        sent: read("sum_sent", "bytes"),
        received: read("sum_received", "bytes"),
        packets: read("sum_sent", "packets"),
    };
    assert!(
        sums.sent > 0 && sums.received <= sums.sent,
        "{words}: {sums:?}: {text}"
    );
    sums
}

/// Counts of a rule in the kernel: begun, bytes and datagrams of those that are over.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    begun: u64,
    bytes_in: u64,
    bytes_out: u64,
    datagrams_in: u64,
    datagrams_out: u64,
}

impl Expected {
    fn add(&mut self, sums: &Sums, is_reverse: bool) {
        let (bytes, datagrams) = if is_reverse {
            (&mut self.bytes_out, &mut self.datagrams_out)
        } else {
            (&mut self.bytes_in, &mut self.datagrams_in)
        };
        *bytes += sums.received;
        *datagrams += sums.packets;
        self.begun += sums.streams;
    }

    /// Waits until the rule has no connection or session, and at least these counts.
    fn wait_for(&self, machines: &Machines, balancer: &Balancer, rule: &str) {
        let expected = [
            ("begun", self.begun),
            ("bytes_in", self.bytes_in),
            ("bytes_out", self.bytes_out),
            ("datagrams_in", self.datagrams_in),
            ("datagrams_out", self.datagrams_out),
        ];
        let mut last = Value::Null;
        let what = format!("the kernel has the bytes of {rule}: {self:?}");
        wait_until(&what, || {
            let now = machines.forwarded(balancer);
            let rules = now["rule_counts"].as_array().unwrap();
            let found = rules.iter().find(|one| one["rule"] == rule);
            last = found.unwrap().clone();
            let has = |(name, least): &(&str, u64)| last[*name].as_u64() >= Some(*least);
            last["open"] == 0 && expected.iter().all(has)
        });
        assert_eq!(last["begun"], self.begun, "{rule}: {last}");
    }
}

/// Configuration with a TCP and a UDP rule at one address and port, both with the second member.
fn write_rules(machines: &Machines, path: &str) -> String {
    let more = format!("return_path = \"{path}\"");
    let config = machines.write_config("kernel", &[2], &more);
    let (_, rule) = config.split_once("[rule.db]\n").unwrap();
    let of_udp = rule.replace("\"tcp\"", "\"udp\"");
    format!("{config}[rule.streams]\n{of_udp}idle_timeout = \"3s\"\n")
}

fn check_iperf_measures_through_the_kernel(family: Family, path: &str) {
    if !are_installed(&["iperf3", "setpriv", "timeout"]) {
        return;
    }
    let Some(machines) = Machines::new(family) else {
        return;
    };
    if path == "nat" {
        machines.remove_routes();
    }
    let command = machines.pair.front.command(evenkeel_binary());
    let config = write_rules(&machines, path);
    let Some(balancer) = machines.start_balancer_by(command, &config) else {
        return;
    };
    wait_until("the kernel has both rules", || {
        let status = machines.admin_json(&balancer, "/v1/status");
        let rules = status["rules"].as_array().unwrap();
        rules.len() == 2 && rules.iter().all(|rule| rule["forward"] == "kernel")
    });
    let (mut of_tcp, mut of_udp) = (Expected::default(), Expected::default());
    let _server = Server::start(&machines);
    for parallel in ["", " --parallel 4"] {
        // The server ends with the client, and leaves out what is under way then.
        let sums = run_client(&machines, &format!("--time 1{parallel}"));
        assert!(sums.received > 0, "{sums:?}");
        of_tcp.add(&sums, false);
        let words = format!("--reverse --bytes {BYTES}{parallel}");
        let sums = run_client(&machines, &words);
        assert!(sums.received >= BYTES, "{words}: {sums:?}");
        of_tcp.add(&sums, true);
        // The connections by which both ends agree.
        of_tcp.begun += 2;
    }
    for words in ["", "--reverse", "--parallel 3", "--parallel 3 --reverse"] {
        let all = format!("--udp --bitrate 10M --bytes {DATAGRAMS} {words}");
        let sums = run_client(&machines, all.trim_end());
        let is_reverse = words.contains("--reverse");
        assert!(sums.packets > 0, "{words}: {sums:?}");
        of_udp.add(&sums, is_reverse);
        of_tcp.begun += 1;
    }
    of_tcp.wait_for(&machines, &balancer, "db");
    of_udp.wait_for(&machines, &balancer, "streams");
    let now = machines.forwarded(&balancer);
    for kind in [
        "dropped",
        "proxied_session",
        "proxied_ports",
        "proxied_rate",
    ] {
        assert_eq!(now["packets"][kind], 0, "{now}");
    }
}

#[test]
fn s41_iperf_measures_through_the_kernel() {
    for family in BOTH {
        for path in ["route", "nat"] {
            check_iperf_measures_through_the_kernel(family, path);
        }
    }
}

//! xDS: Envoy and clients of gRPC, which get their members and weights from the balancer.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::envoy::{self, Envoy, Wanted};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, program};
use evenkeel_e2e::python::python;
use evenkeel_e2e::script::Script;
use evenkeel_e2e::tls::{self, Key};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::{Value, json};

/// Shares of the requests that each server has answered, by name.
type Shares = BTreeMap<String, f64>;

fn shares(counts: BTreeMap<String, u64>) -> Shares {
    let all: u64 = counts.values().sum();
    let share = |(name, count)| (name, count as f64 / all as f64);
    counts.into_iter().map(share).collect()
}

/// Sends requests over one connection.
fn ask(address: SocketAddr, requests: usize) -> Shares {
    let mut wire = Wire::connect(address);
    let mut counts = BTreeMap::new();
    for _ in 0..requests {
        wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = wire.read_response();
        *counts.entry(answer.text().to_owned()).or_default() += 1;
    }
    shares(counts)
}

fn is_close(a: &Shares, b: &Shares) -> bool {
    let share = |of: &Shares, name: &str| of.get(name).copied().unwrap_or(0.0);
    let mut names = a.keys().chain(b.keys());
    names.all(|name| (share(a, name) - share(b, name)).abs() < 0.05)
}

/// A group `pool` of these members, at locations of their names, by `weighted_by_load`, which a rule
/// serves, too.
fn config(members: &[(&str, SocketAddr)], rule: &str, xds: &str) -> String {
    let member = |(name, address): &(&str, SocketAddr)| {
        format!("{{ address = \"{address}\", location = \"{name}\" }}")
    };
    let members: Vec<String> = members.iter().map(member).collect();
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [group.pool]\nmembers = [{}]\nload = \"utilization\"\nslow_start = \"0s\"\nhealth_check = false\n\
         strategy = {{ name = \"weighted_by_load\", limit = 2, update_interval = 100 }}\n\
         [group.spare]\nmembers = [\"127.0.0.1:1\"]\nhealth_check = false\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"pool\"\n{rule}\n\
         [xds]\nlisten = \"127.0.0.1:0\"\nload_report_interval = \"200ms\"\n{xds}\n",
        members.join(", ")
    )
}

/// Reports that `busy` has a utilisation of 0.9 and `idle` one of 0.1, until `work` is done.
fn with_loads<T>(balancer: &Balancer, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for (location, load) in [("busy", 0.9), ("idle", 0.1)] {
                    let words = format!("loads push {location} utilization={load}");
                    balancer.run_ctl(&words).unwrap();
                }
            }
        });
        // Even if it fails, or the thread would go on.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        match result {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Returns the streams of a client, as the admin API tells them.
fn client_streams(balancer: &Balancer, node: &str) -> Vec<Value> {
    let xds: Value = serde_json::from_str(&balancer.run_ctl("xds --json").unwrap()).unwrap();
    let all = xds["clients"].as_array().unwrap().iter();
    all.filter(|client| client["node"] == node)
        .cloned()
        .collect()
}

/// Returns the subscription of a type that the client wants, as the admin API tells it.
fn subscription(balancer: &Balancer, node: &str, kind: &str) -> Value {
    let streams = client_streams(balancer, node);
    let all = streams
        .iter()
        .filter_map(|stream| stream["subscriptions"].as_array());
    let mut all = all.flatten();
    all.find(|of| of["type"] == kind)
        .cloned()
        .unwrap_or_default()
}

/// A load of a location.
fn load(balancer: &Balancer, location: &str, id: &str) -> Option<f64> {
    let status = balancer.status();
    let mut all = status["locations"].as_array().unwrap().iter();
    let location = all.find(|known| known["name"] == location)?;
    let mut loads = location["loads"].as_array().unwrap().iter();
    loads.find(|load| load["id"] == id)?["value"].as_f64()
}

#[test]
fn envoy_follows_loads_as_our_own_proxy_does() {
    if envoy::find_binary().is_none() {
        return;
    }
    let members =
        ["busy", "idle"].map(|name| (name, Member::answering_with(move |_| ok_response(name))));
    let members = members
        .each_ref()
        .map(|(name, member)| (*name, member.address()));
    let balancer = Balancer::start(&config(&members, "", ""));
    for variant in ["GRPC", "DELTA_GRPC"] {
        let wanted = Wanted {
            node: variant,
            zone: None,
            server: balancer.xds_address(),
            variant,
            cluster: "pool",
            tls: None,
        };
        let Some(envoy) = Envoy::start(&wanted) else {
            return;
        };
        let [(_, busy), (_, idle)] = members;
        with_loads(&balancer, || {
            let weight = |of| {
                let weight = envoy.endpoint_field("pool", of, "weight");
                weight
                    .and_then(|weight| weight.parse::<f64>().ok())
                    .unwrap_or(0.0)
            };
            wait_until("the weights follow the loads", || {
                weight(idle) == 1000.0 && (240.0..265.0).contains(&weight(busy))
            });
            let ours = ask(balancer.address("web"), 400);
            let theirs = ask(envoy.address(), 400);
            println!("Envoy, {variant}: {theirs:?}; our own proxy: {ours:?}");
            assert!(is_close(&ours, &theirs), "{ours:?} {theirs:?}");
            assert!(ours["busy"] > 0.15 && ours["busy"] < 0.25, "{ours:?}");
            // What Envoy sees comes back.
            wait_until("Envoy reports its load", || {
                ask(envoy.address(), 20);
                load(&balancer, "idle", "requests_per_second").is_some_and(|rate| rate > 0.0)
                    && load(&balancer, "idle", "in_flight").is_some()
            });
        });
        let of = subscription(&balancer, variant, "endpoints");
        assert_eq!(
            (&of["nacks"], of["accepted"].is_string()),
            (&0.into(), true),
            "{of}"
        );
        let of = subscription(&balancer, variant, "cluster");
        assert_eq!(
            (&of["nacks"], &of["all"]),
            (&0.into(), &true.into()),
            "{of}"
        );
        // Nothing of the clusters has changed since the first answer: Envoy has not made them anew.
        assert_eq!(of["pushes"], 1, "{of}");
        assert_eq!(envoy.read_counter("cluster_manager.cluster_modified"), 0);
        // Drained: nothing new goes there.
        balancer.run_ctl(&format!("drain pool {idle}")).unwrap();
        wait_until("Envoy leaves the drained member", || {
            let health = envoy.endpoint_field("pool", idle, "health_flags");
            health.is_some_and(|health| health != "healthy")
        });
        let leaves = || ask(envoy.address(), 20).keys().eq(["busy"]);
        wait_until("its worker does so, too", leaves);
        assert!(leaves(), "nothing new goes there");
        balancer.run_ctl(&format!("ready pool {idle}")).unwrap();
        wait_until("Envoy comes back", || {
            ask(envoy.address(), 20).contains_key("idle")
        });
    }
}

/// Waits until requests through Envoy reach both members, and nobody else answers: its admin page shows what its main
/// thread knows, which tells the worker after that.
fn uses_both(envoy: &Envoy) {
    wait_until("Envoy's worker has its members", || {
        ask(envoy.address(), 20).keys().eq(["busy", "idle"])
    });
}

/// Asks through `envoy` again and again until it is told to stop: no request may fail. How many there were.
fn keep_asking(address: SocketAddr, done: &AtomicBool) -> u64 {
    let mut asked = 0;
    while !done.load(Ordering::Relaxed) {
        let seen = ask(address, 10);
        assert!(
            seen.keys().all(|who| who == "busy" || who == "idle"),
            "{seen:?}"
        );
        asked += 10;
    }
    asked
}

#[test]
fn envoys_and_balancers_come_and_go_and_no_request_is_lost() {
    if envoy::find_binary().is_none() {
        return;
    }
    let members =
        ["busy", "idle"].map(|name| (name, Member::answering_with(move |_| ok_response(name))));
    let members = members
        .each_ref()
        .map(|(name, member)| (*name, member.address()));
    let text = config(&members, "", "");
    let mut balancer = Balancer::start(&text);
    let variants = ["GRPC", "DELTA_GRPC"];
    let server = balancer.xds_address();
    let start = |variant| {
        let wanted = Wanted {
            node: variant,
            zone: None,
            server,
            variant,
            cluster: "pool",
            tls: None,
        };
        Envoy::start(&wanted).unwrap()
    };
    let envoys = variants.map(start);
    let health = |envoy: &Envoy, name: &str| {
        let (_, address) = members.iter().find(|(known, _)| *known == name).unwrap();
        envoy.endpoint_field("pool", *address, "health_flags")
    };
    let is_well = |envoy: &Envoy, name: &str| health(envoy, name).as_deref() == Some("healthy");
    for envoy in &envoys {
        wait_until("Envoy has its members", || {
            is_well(envoy, "busy") && is_well(envoy, "idle")
        });
        uses_both(envoy);
    }
    let addresses = envoys.each_ref().map(Envoy::address);
    let follows = |balancer: &Balancer, name: &str| {
        let (_, address) = members.iter().find(|(known, _)| *known == name).unwrap();
        balancer.run_ctl(&format!("drain pool {address}")).unwrap();
        for envoy in &envoys {
            wait_until("Envoy leaves the drained member", || {
                health(envoy, name).is_some_and(|health| health != "healthy")
            });
        }
        balancer.run_ctl(&format!("ready pool {address}")).unwrap();
        for envoy in &envoys {
            wait_until("Envoy comes back", || is_well(envoy, name));
        }
    };
    let is_connected = |balancer: &Balancer| {
        for variant in variants {
            wait_until("Envoy is connected", || {
                ["cluster", "endpoints"]
                    .iter()
                    .all(|kind| subscription(balancer, variant, kind)["accepted"].is_string())
            });
        }
    };
    let done = AtomicBool::new(false);
    let balancer = thread::scope(|scope| {
        let done = &done;
        let asking = addresses.map(|address| scope.spawn(move || keep_asking(address, done)));
        let work = std::panic::AssertUnwindSafe(|| {
            follows(&balancer, "busy");
            // Another process takes over: clients go on with what they have, and are told what is new by that one.
            balancer.upgrade().unwrap();
            is_connected(&balancer);
            follows(&balancer, "idle");
            // It is killed, and comes back at the same address.
            let text = text.replace(
                "[xds]\nlisten = \"127.0.0.1:0\"",
                &format!("[xds]\nlisten = \"{server}\""),
            );
            let balancer = balancer.replace(&text);
            is_connected(&balancer);
            follows(&balancer, "busy");
            // And without the section all clients keep what they have.
            let (without, _) = text.split_once("[xds]").unwrap();
            balancer.reconfigure(without);
            wait_until("the streams have ended", || {
                let metric = balancer.read_metric("evenkeel_xds_connections");
                metric == Some(0.0) && balancer.run_ctl("xds").unwrap().contains("no [xds]")
            });
            balancer.reconfigure(&text);
            is_connected(&balancer);
            follows(&balancer, "idle");
            balancer
        });
        let balancer = std::panic::catch_unwind(work);
        done.store(true, Ordering::Relaxed);
        for asking in asking {
            assert!(asking.join().unwrap() > 0);
        }
        balancer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    for envoy in &envoys {
        // It was never told that there are no clusters, nor to make one anew.
        let counter = |what| envoy.read_counter(&format!("cluster_manager.cluster_{what}"));
        let seen = ["added", "removed", "modified"].map(counter);
        assert_eq!(
            seen,
            [3, 0, 0],
            "with the server of xDS, which is in its file"
        );
    }
    // An Envoy that starts anew gets all of it, and the one before is gone from the list.
    drop(envoys);
    for variant in variants {
        wait_until("the stream is gone", || {
            client_streams(&balancer, variant).is_empty()
        });
        let envoy = start(variant);
        wait_until("Envoy has its members", || {
            is_well(&envoy, "busy") && is_well(&envoy, "idle")
        });
        uses_both(&envoy);
        let of = subscription(&balancer, variant, "endpoints");
        assert_eq!(of["nacks"], 0, "{of}");
    }
}

/// A server of gRPC, with the port that it listens at; it tells its utilisation with each answer.
fn grpc_server(name: &str, utilization: f64) -> Option<(Script, SocketAddr)> {
    let mut command = python("xds_server.py", "grpc")?;
    let script = Script::start(command.arg(name).arg(utilization.to_string()));
    let port = script.read_line();
    Some((script, format!("127.0.0.1:{port}").parse().unwrap()))
}

/// A client of gRPC that goes to a proxy.
fn plain_client(proxy: SocketAddr) -> Option<Script> {
    let mut command = python("xds_client.py", "grpc")?;
    command.arg(proxy.to_string());
    Some(Script::start(&mut command))
}

/// The libraries of gRPC with an implementation of xDS each: that of Python is the one of C++.
const LIBRARIES: [&str; 2] = ["grpcio", "grpc-go"];

/// A client of gRPC by such a library that finds the group `pool` by xDS, with the library's name as its own. It says
/// its zone, if there is one. `None`, which is said, if it cannot run.
fn grpc_client(
    balancer: &Balancer,
    library: &str,
    zone: Option<&str>,
    credentials: &Value,
) -> Option<Script> {
    let mut node = json!({ "id": library, "cluster": "shop" });
    if let Some(zone) = zone {
        node["locality"] = json!({ "zone": zone });
    }
    let bootstrap = json!({
        "xds_servers": [{
            "server_uri": balancer.xds_address().to_string(),
            "channel_creds": [credentials],
            "server_features": ["xds_v3"],
        }],
        "node": node,
    });
    let mut command = match library {
        "grpc-go" => are_installed(&["xds_go"]).then(|| program("xds_go"))?,
        _ => python("xds_client.py", "grpc")?,
    };
    command
        .arg("xds:///pool")
        .env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap.to_string());
    Some(Script::start(&mut command))
}

/// Returns the credentials of a client that speaks with the server of xDS without TLS.
fn insecure() -> Value {
    json!({ "type": "insecure" })
}

/// Starts a client by each library that is there, with its name.
fn grpc_clients(
    balancer: &Balancer,
    zone: Option<&str>,
    credentials: &Value,
) -> Vec<(&'static str, Script)> {
    let client = |library| Some((library, grpc_client(balancer, library, zone, credentials)?));
    LIBRARIES.into_iter().filter_map(client).collect()
}

/// Makes so many calls, a few at a time: a machine that is busy takes long for many, which is no hang.
fn calls(client: &mut Script, calls: u32) -> Shares {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut left = calls;
    while left > 0 {
        let some = left.min(100);
        let answer = client.ask_line(&some.to_string());
        let seen: BTreeMap<String, u64> = serde_json::from_str(&answer).unwrap();
        for (who, count) in seen {
            *counts.entry(who).or_default() += count;
        }
        left -= some;
    }
    shares(counts)
}

#[test]
fn clients_of_grpc_follow_loads_as_our_own_proxy_does() {
    let (Some(busy), Some(idle)) = (grpc_server("busy", 0.9), grpc_server("idle", 0.1)) else {
        return;
    };
    let members = [("busy", busy.1), ("idle", idle.1)];
    let rule = "[rule.web.http]\nmember_protocol = \"h2\"";
    let balancer = Balancer::start(&config(&members, rule, ""));
    let mut clients = grpc_clients(&balancer, None, &insecure());
    let Some(mut client_of_web) = plain_client(balancer.address("web")) else {
        return;
    };
    with_loads(&balancer, || {
        let follows = |client: &mut Script| {
            let seen = calls(client, 200);
            seen.get("busy").is_some_and(|share| *share < 0.27)
        };
        wait_until("the calls follow the loads", || {
            follows(&mut client_of_web) && clients.iter_mut().all(|(_, client)| follows(client))
        });
        let ours = calls(&mut client_of_web, 500);
        for (library, client) in &mut clients {
            // Each is drawn by weight: a share of a fifth has a standard deviation of 0.007.
            let seen = calls(client, 3000);
            println!("{library}: {seen:?}; our own proxy: {ours:?}");
            assert!(is_close(&ours, &seen), "{library}: {ours:?} {seen:?}");
            // Loads are the sums of what all clients report, and the others do nothing.
            let rate = || load(&balancer, "idle", "requests_per_second");
            wait_until("nobody reports requests", || rate() == Some(0.0));
            wait_until("the client reports its load", || {
                calls(client, 20);
                rate().is_some_and(|rate| rate > 0.0)
            });
        }
    });
    for (library, client) in &mut clients {
        for kind in ["listener", "route", "cluster", "endpoints"] {
            let of = subscription(&balancer, library, kind);
            assert_eq!(
                (&of["nacks"], of["accepted"].is_string()),
                (&0.into(), true),
                "{library}, {kind}: {of}"
            );
        }
        let streams = client_streams(&balancer, library);
        let about = |key: &str| -> Vec<&Value> { streams.iter().map(|of| &of[key]).collect() };
        assert_eq!(about("dialect"), ["grpc", "grpc"]);
        assert_eq!(about("stream"), ["state_of_the_world", "load_reports"]);
        let program = match *library {
            "grpc-go" => "gRPC Go ",
            _ => "gRPC C-core ",
        };
        let is_named = |of: &&Value| of.as_str().is_some_and(|of| of.starts_with(program));
        assert!(about("program").iter().all(is_named), "{streams:?}");
        let shown = balancer.run_ctl("xds").unwrap();
        assert!(
            shown.lines().any(|line| line.starts_with(*library)),
            "{shown}"
        );
        for away in ["drain", "maintenance"] {
            balancer
                .run_ctl(&format!("{away} pool {}", idle.1))
                .unwrap();
            wait_until("the client leaves the member", || {
                calls(client, 20).get("busy") == Some(&1.0)
            });
            balancer.run_ctl(&format!("ready pool {}", idle.1)).unwrap();
            wait_until("the client comes back", || {
                calls(client, 20).contains_key("idle")
            });
        }
    }
    // Clients that decide by themselves do so by the utilisation that these servers tell them. And Envoy speaks HTTP/2
    // with the members, as the rule does.
    let policy = "policy = \"client_side_weighted_round_robin\"";
    balancer.reconfigure(&config(&members, rule, policy));
    let wanted = Wanted {
        node: "edge-1",
        zone: None,
        server: balancer.xds_address(),
        variant: "DELTA_GRPC",
        cluster: "pool",
        tls: None,
    };
    let Some(envoy) = Envoy::start(&wanted) else {
        return;
    };
    wait_until("Envoy has its members", || {
        envoy.endpoint_field("pool", idle.1, "weight").is_some()
    });
    let mut client_of_envoy = plain_client(envoy.address()).unwrap();
    let own = Shares::from([("busy".to_owned(), 0.1), ("idle".to_owned(), 0.9)]);
    // They begin with it after ten seconds.
    wait_until("clients go by the servers' utilisation", || {
        let all = clients
            .iter_mut()
            .map(|(library, client)| (*library, client));
        let all = all.chain([("Envoy", &mut client_of_envoy)]);
        // Each of them has to have calls meanwhile.
        let seen: Vec<_> = all
            .map(|(library, client)| (library, calls(client, 200)))
            .collect();
        println!("by themselves: {seen:?}");
        seen.iter().all(|(_, seen)| is_close(seen, &own))
    });
    let libraries = clients.iter().map(|(library, _)| *library);
    for node in libraries.chain(["edge-1"]) {
        let of = subscription(&balancer, node, "cluster");
        assert_eq!(
            (&of["nacks"], &of["pending"]),
            (&0.into(), &Value::Null),
            "{node}: {of}"
        );
    }
}

#[test]
fn clients_of_grpc_go_on_while_balancers_come_and_go() {
    let (Some(busy), Some(idle)) = (grpc_server("busy", 0.9), grpc_server("idle", 0.1)) else {
        return;
    };
    let members = [("busy", busy.1), ("idle", idle.1)];
    let text = config(&members, "", "");
    let mut balancer = Balancer::start(&text);
    let server = balancer.xds_address();
    let mut clients = grpc_clients(&balancer, None, &insecure());
    // Whoever does not answer does not count, but no call may fail.
    let answering = |client: &mut Script| {
        let seen = calls(client, 20);
        let is_known = |who: &String| who == "busy" || who == "idle";
        assert!(seen.keys().all(is_known), "{seen:?}");
        seen.into_keys().collect::<Vec<_>>()
    };
    let mut follow = |balancer: &Balancer| {
        for (library, client) in &mut clients {
            wait_until("the client is connected", || {
                answering(client);
                ["listener", "route", "cluster", "endpoints"]
                    .iter()
                    .all(|kind| subscription(balancer, library, kind)["accepted"].is_string())
            });
        }
        for (away, there) in [(idle.1, "busy"), (busy.1, "idle")] {
            balancer.run_ctl(&format!("drain pool {away}")).unwrap();
            for (_, client) in &mut clients {
                wait_until("the client leaves the member", || {
                    answering(client) == [there]
                });
            }
            balancer.run_ctl(&format!("ready pool {away}")).unwrap();
            for (_, client) in &mut clients {
                wait_until("the client comes back", || {
                    answering(client) == ["busy", "idle"]
                });
            }
        }
    };
    follow(&balancer);
    // Another process takes over.
    balancer.upgrade().unwrap();
    follow(&balancer);
    // It is killed, and comes back at the same address.
    let text = text.replace(
        "[xds]\nlisten = \"127.0.0.1:0\"",
        &format!("[xds]\nlisten = \"{server}\""),
    );
    let balancer = balancer.replace(&text);
    follow(&balancer);
    // Without the section all keep what they have.
    let (without, _) = text.split_once("[xds]").unwrap();
    balancer.reconfigure(without);
    wait_until("the streams have ended", || {
        balancer.read_metric("evenkeel_xds_connections") == Some(0.0)
    });
    balancer.reconfigure(&text);
    follow(&balancer);
    // A group that they may not have any more is taken from them, until they may have it again.
    balancer.reconfigure(&format!("{text}groups = [\"spare\"]\n"));
    for (_, client) in &mut clients {
        wait_until("calls fail", || {
            let seen = calls(client, 1);
            !seen.contains_key("busy") && !seen.contains_key("idle")
        });
    }
    balancer.reconfigure(&text);
    for (_, client) in &mut clients {
        wait_until("calls succeed again", || {
            let seen = calls(client, 1);
            seen.contains_key("busy") || seen.contains_key("idle")
        });
    }
}

#[test]
fn clients_prefer_their_own_zone_as_long_as_it_serves() {
    if envoy::find_binary().is_none() {
        return;
    }
    let (Some(north), Some(south)) = (grpc_server("north", 0.5), grpc_server("south", 0.5)) else {
        return;
    };
    let members =
        ["north", "south"].map(|name| (name, Member::answering_with(move |_| ok_response(name))));
    let at = members.each_ref().map(|(_, member)| member.address());
    let text = |zones: &str| {
        let group = |name: &str, north: SocketAddr, south: SocketAddr| {
            format!(
                "[group.{name}]\nhealth_check = false\n{zones}\nmembers = [\n\
                 {{ address = \"{north}\", zone = \"north\" }},\n\
                 {{ address = \"{south}\", zone = \"south\" }},\n]\n"
            )
        };
        format!(
            "workers = 1\n[node]\nzone = \"north\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [xds]\nlisten = \"127.0.0.1:0\"\n{}{}",
            group("web", at[0], at[1]),
            group("pool", north.1, south.1)
        )
    };
    let balancer = Balancer::start(&text(""));
    let envoy = Envoy::start(&Wanted {
        node: "edge-south",
        zone: Some("south"),
        server: balancer.xds_address(),
        variant: "DELTA_GRPC",
        cluster: "web",
        tls: None,
    });
    let Some(envoy) = envoy else {
        return;
    };
    let mut shops = grpc_clients(&balancer, Some("south"), &insecure());
    wait_until("Envoy has its members", || {
        envoy.endpoint_field("web", at[1], "priority").as_deref() == Some("0")
            && envoy.endpoint_field("web", at[0], "priority").as_deref() == Some("1")
    });
    let only = |name: &str| Shares::from([(name.to_owned(), 1.0)]);
    // Envoy's worker is told after its main thread, whose page this was.
    wait_until("Envoy's worker has its members", || {
        ask(envoy.address(), 1) == only("south")
    });
    assert_eq!(ask(envoy.address(), 20), only("south"));
    for (library, shop) in &mut shops {
        assert_eq!(calls(shop, 20), only("south"), "{library}");
    }
    // Nobody of the zone is left: the other one takes over, until it is back.
    for (words, answers) in [("maintenance", "north"), ("ready", "south")] {
        balancer.run_ctl(&format!("{words} web {}", at[1])).unwrap();
        balancer
            .run_ctl(&format!("{words} pool {}", south.1))
            .unwrap();
        wait_until("clients go to the other zone, and back", || {
            let mut shops = shops.iter_mut().map(|(_, shop)| shop);
            ask(envoy.address(), 10) == only(answers)
                && shops.all(|shop| calls(shop, 10) == only(answers))
        });
    }
    assert_eq!(client_streams(&balancer, "edge-south")[0]["zone"], "south");
    // Where zones are not to count, they do not.
    balancer.reconfigure(&text("zones = false"));
    wait_until("both zones answer", || {
        let mut shops = shops.iter_mut().map(|(_, shop)| shop);
        ask(envoy.address(), 20).len() == 2 && shops.all(|shop| calls(shop, 50).len() == 2)
    });
}

#[test]
fn a_refused_answer_is_shown_by_name_with_its_reason() {
    if !are_installed(&["python3"]) {
        return;
    }
    let Some(mut command) = python("xds_raw.py", "grpc") else {
        return;
    };
    let members =
        ["busy", "idle"].map(|name| (name, Member::answering_with(move |_| ok_response(name))));
    let addresses = members
        .each_ref()
        .map(|(name, member)| (*name, member.address()));
    let balancer = Balancer::start(&config(&addresses, "", ""));
    let target = balancer.xds_address().to_string();
    let mut raw = Script::start(command.arg(&target).arg("StreamAggregatedResources"));
    let answer =
        |raw: &mut Script| -> Value { serde_json::from_str(&raw.ask_line("next")).unwrap() };
    raw.send_line("want edge-7 endpoints pool spare");
    let first = answer(&mut raw);
    assert_eq!(first["names"], json!(["pool", "spare"]));
    raw.send_line("ack endpoints pool spare");
    assert_eq!(raw.ask_line("none"), "none");
    // A change of one group sends that one.
    balancer
        .run_ctl(&format!("drain pool {}", addresses[0].1))
        .unwrap();
    let second = answer(&mut raw);
    assert_eq!(second["names"], json!(["pool"]));
    raw.send_line("nack endpoints not what I like");
    wait_until("the refusal is told", || {
        subscription(&balancer, "edge-7", "endpoints")["nacks"] == 1
    });
    let of = subscription(&balancer, "edge-7", "endpoints");
    assert_eq!(of["accepted"], first["version"], "{of}");
    assert_eq!(of["last_nack"]["version"], second["version"], "{of}");
    assert_eq!(of["last_nack"]["reason"], "not what I like", "{of}");
    assert_eq!(raw.ask_line("none"), "none", "it is not sent again");
    let series = "evenkeel_xds_nacks_total{client=\"edge-7\",type=\"endpoints\"}";
    assert_eq!(balancer.read_metric(series), Some(1.0));
    let shown = balancer.run_ctl("xds").unwrap();
    let is_shown = |line: &str| line.contains("edge-7") && line.contains("not what I like");
    assert!(shown.lines().any(is_shown), "{shown}");
    balancer.wait_for_log("not what I like");
    // What has changed since is sent.
    balancer
        .run_ctl(&format!("ready pool {}", addresses[0].1))
        .unwrap();
    let third = answer(&mut raw);
    assert_eq!(third["names"], json!(["pool"]));
    raw.send_line("garbage");
    let ended = raw.ask_line("end");
    assert_eq!(
        ended,
        "INVALID_ARGUMENT: the request is not a message of xDS"
    );
    wait_until("the stream is gone", || {
        client_streams(&balancer, "edge-7").is_empty()
    });
    // What there is not yet: a client is told so where the protocol has a word for it, and gets it as soon as it is there.
    let mut command = python("xds_raw.py", "grpc").unwrap();
    let mut raw = Script::start(command.arg(&target).arg("StreamAggregatedResources"));
    raw.send_line("want edge-9 cluster later");
    assert_eq!(answer(&mut raw)["names"], json!([]));
    raw.send_line("ack cluster later");
    let mut command = python("xds_raw.py", "grpc").unwrap();
    let mut of_endpoints = Script::start(command.arg(&target).arg("StreamAggregatedResources"));
    of_endpoints.send_line("want edge-9 endpoints later");
    assert_eq!(of_endpoints.ask_line("none"), "none");
    let more = "[group.later]\nmembers = [\"127.0.0.1:1\"]\nhealth_check = false";
    balancer.reconfigure(&config(&addresses, "", more));
    assert_eq!(answer(&mut raw)["names"], json!(["later"]));
    assert_eq!(answer(&mut of_endpoints)["names"], json!(["later"]));
    // A group that is taken out of the configuration is gone from the list of clusters, and the limits hold.
    let few = config(&addresses, "", "max_subscriptions = 1\ngroups = [\"pool\"]");
    balancer.reconfigure(&few);
    let mut command = python("xds_raw.py", "grpc").unwrap();
    let mut raw = Script::start(command.arg(&target).arg("StreamAggregatedResources"));
    raw.send_line("want edge-8 cluster");
    let clusters = answer(&mut raw);
    assert_eq!(clusters["names"], json!(["pool"]));
    raw.send_line("want edge-8 endpoints pool spare");
    let ended = raw.ask_line("end");
    assert!(ended.starts_with("RESOURCE_EXHAUSTED"), "{ended}");
}

#[test]
fn who_comes_too_much_or_asks_for_something_else_is_refused() {
    let raw = |balancer: &Balancer, method: &str| {
        let mut command = python("xds_raw.py", "grpc")?;
        command.arg(balancer.xds_address().to_string()).arg(method);
        Some(Script::start(&mut command))
    };
    let member = Member::answering_with(|_| ok_response("busy"));
    let few = config(&[("busy", member.address())], "", "max_clients = 1");
    let balancer = Balancer::start(&few);
    let Some(mut first) = raw(&balancer, "StreamAggregatedResources") else {
        return;
    };
    first.send_line("want first cluster");
    assert!(first.ask_line("next").contains("spare"));
    let mut second = raw(&balancer, "StreamAggregatedResources").unwrap();
    second.send_line("want second cluster");
    let ended = second.ask_line("end");
    assert!(ended.starts_with("UNAVAILABLE"), "{ended}");
    assert!(balancer.read_metric("evenkeel_xds_refused_total").unwrap() >= 1.0);
    assert!(client_streams(&balancer, "second").is_empty());
    drop((first, second));
    wait_until("there is room again", || {
        balancer.read_metric("evenkeel_xds_connections") == Some(0.0)
    });
    let mut other = raw(&balancer, "StreamNothing").unwrap();
    let ended = other.ask_line("end");
    assert!(
        ended.starts_with("UNIMPLEMENTED: this server does not have /envoy."),
        "{ended}"
    );
}

#[test]
fn clients_need_the_certificate_that_is_asked_for() {
    if envoy::find_binary().is_none() || !are_installed(&["openssl"]) {
        return;
    }
    let folder = Folder::new();
    tls::make_certificate(&folder, "ca", Key::Ecdsa, "DNS:ca.test", None);
    let by = Some("ca");
    let names = "DNS:xds.test,IP:127.0.0.1";
    tls::make_certificate(&folder, "xds", Key::Ecdsa, names, by);
    tls::make_certificate(&folder, "edge", Key::Ecdsa, "DNS:edge.test", by);
    tls::make_certificate(&folder, "stranger", Key::Ecdsa, "DNS:edge.test", None);
    let member = Member::answering_with(|_| ok_response("busy"));
    let secured = format!(
        "[xds.tls]\ncertificates = {:?}\n[xds.tls.client_certificates]\nca_file = {:?}\n",
        folder.join("xds.pem"),
        folder.join("ca.crt")
    );
    let balancer = Balancer::start(&config(&[("busy", member.address())], "", &secured));
    let (ca, edge, stranger) = (
        folder.join("ca.crt"),
        folder.join("edge.pem"),
        folder.join("stranger.pem"),
    );
    let start = |node, own| {
        Envoy::start(&Wanted {
            node,
            zone: None,
            server: balancer.xds_address(),
            variant: "DELTA_GRPC",
            cluster: "pool",
            tls: Some((own, &ca)),
        })
    };
    let known = start("known", &edge).unwrap();
    wait_until("Envoy has its members", || {
        known
            .endpoint_field("pool", member.address(), "weight")
            .is_some()
    });
    wait_until("its worker has them, too", || {
        ask(known.address(), 5).get("busy") == Some(&1.0)
    });
    let unknown = start("unknown", &stranger).unwrap();
    wait_until("the stranger is refused", || {
        let log = balancer.admin_get("/metrics").text().to_owned();
        let failed = |line: &&str| {
            line.starts_with("evenkeel_xds_tls_failures_total") && !line.ends_with(" 0")
        };
        log.lines().any(|line| failed(&line))
    });
    assert!(
        unknown
            .endpoint_field("pool", member.address(), "weight")
            .is_none()
    );
    assert!(client_streams(&balancer, "unknown").is_empty());
    // The same for clients of gRPC.
    let Some((_server, address)) = grpc_server("busy", 0.9) else {
        return;
    };
    balancer.reconfigure(&config(&[("busy", address)], "", &secured));
    let credentials = json!({
        "type": "tls",
        "config": {
            "certificate_file": edge,
            "private_key_file": edge,
            "ca_certificate_file": ca,
        },
    });
    let busy = Shares::from([("busy".to_owned(), 1.0)]);
    for (library, mut shop) in grpc_clients(&balancer, None, &credentials) {
        assert_eq!(calls(&mut shop, 5), busy, "{library}");
        assert!(!client_streams(&balancer, library).is_empty(), "{library}");
    }
}

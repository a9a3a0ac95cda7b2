//! Cost of giving weights to clients of xDS: many clusters, some of whose loads change all the time.
//!
//! Everything but the sockets is the product's: groups with members, reports of their loads, the look at
//! all groups several times a second, and streams of clients that accept each answer at once. The clock is the
//! program's own, so that the figure is the CPU time for a second of work: 0.5 is half a core.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use clap::Parser;
use evenkeel_config::{Xds, XdsGroup};
use evenkeel_core::group::{Group, GroupSettings, GroupState};
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::{self, Values};
use evenkeel_core::time::Instant;
use evenkeel_manager::snapshot::GroupHandle;
use evenkeel_xds::groups::Groups;
use evenkeel_xds::kind::Kind;
use evenkeel_xds::proto::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Node,
};
use evenkeel_xds::stream::{Limits, Stream, Variant};
use evenkeel_xds::world::ResourceSet;
use prost::Message;

/// Weights for clients of xDS: the CPU time of a second.
#[derive(Debug, Parser)]
#[command(name = "xds")]
struct Args {
    /// Number of clusters.
    #[arg(long, default_value_t = 1000)]
    clusters: usize,
    /// Endpoints of each.
    #[arg(long, default_value_t = 100)]
    endpoints: usize,
    /// Clusters a second in which a load changes.
    #[arg(long, default_value_t = 100)]
    changes: usize,
    /// Clients that want all clusters, half of them Envoy's incremental variant, half of them its other one.
    #[arg(long, default_value_t = 2)]
    clients: usize,
    /// Seconds that are played.
    #[arg(long, default_value_t = 20)]
    seconds: usize,
}

/// Looks a second.
const LOOKS: u64 = 10;

fn group(index: usize, endpoints: usize) -> Result<Arc<GroupHandle>, Box<dyn Error>> {
    let kind = strategy::find("weighted_by_load").ok_or("no such strategy")?;
    let members = (0..endpoints).map(|member| {
        let host = std::net::Ipv4Addr::from_bits(0x0a00_0000 + (index * endpoints + member) as u32);
        Member {
            id: MemberId((index * endpoints + member) as u64),
            name: format!("{host}:80").into(),
            given_name: None,
            host: host.to_string().into(),
            address: SocketAddr::from((host, 80)).into(),
            max_connections: None,
            location: Arc::new(Location::new(host.to_string())),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        }
    });
    let group = Group::new(
        format!("cluster-{index}"),
        GroupSettings::default(),
        &Values::defaults(kind),
        members.collect(),
        Arc::<GroupState>::default(),
    );
    Ok(Arc::new(GroupHandle::new(Arc::new(group), 0)))
}

/// A client, with what it has got.
struct Client {
    stream: Stream,
    variant: Variant,
    answers: u64,
    resources: u64,
    bytes: u64,
}

impl Client {
    fn new(index: usize, names: &[String]) -> Result<Self, Box<dyn Error>> {
        let variant = match index % 2 {
            0 => Variant::Incremental,
            _ => Variant::StateOfTheWorld,
        };
        let mut client = Client {
            stream: Stream::new(variant, "bench".into(), Limits::default()),
            variant,
            answers: 0,
            resources: 0,
            bytes: 0,
        };
        client.say(Kind::Cluster, Vec::new(), String::new())?;
        client.say(Kind::Endpoints, names.to_vec(), String::new())?;
        Ok(client)
    }

    fn say(&mut self, kind: Kind, names: Vec<String>, nonce: String) -> Result<(), Box<dyn Error>> {
        let node = Some(Node {
            id: "bench".into(),
            user_agent_name: "envoy".into(),
            ..Node::default()
        });
        let bytes = match self.variant {
            Variant::StateOfTheWorld => DiscoveryRequest {
                node,
                resource_names: names,
                type_url: kind.type_url().into(),
                response_nonce: nonce,
                ..DiscoveryRequest::default()
            }
            .encode_to_vec(),
            Variant::Incremental => DeltaDiscoveryRequest {
                node,
                resource_names_subscribe: names,
                type_url: kind.type_url().into(),
                response_nonce: nonce,
                ..DeltaDiscoveryRequest::default()
            }
            .encode_to_vec(),
        };
        self.stream.take_request(&bytes)?;
        Ok(())
    }

    /// Takes and accepts all that there is.
    fn receive(&mut self, world: &ResourceSet, names: &[String]) -> Result<(), Box<dyn Error>> {
        while let Some(answer) = self.stream.next(world) {
            self.answers += 1;
            self.bytes += answer.bytes.len() as u64;
            let (resources, nonce, names) = match self.variant {
                Variant::StateOfTheWorld => {
                    let read = DiscoveryResponse::decode(answer.bytes)?;
                    // A client of this variant names all that it wants each time.
                    let names = match answer.kind {
                        Kind::Endpoints => names.to_vec(),
                        _ => Vec::new(),
                    };
                    (read.resources.len(), read.nonce, names)
                }
                Variant::Incremental => {
                    let read = DeltaDiscoveryResponse::decode(answer.bytes)?;
                    (read.resources.len(), read.nonce, Vec::new())
                }
            };
            self.resources += resources as u64;
            self.say(answer.kind, names, nonce)?;
        }
        Ok(())
    }
}

/// CPU time of this process.
fn cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes to the place that is given, which is one of its type.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let handles = (0..args.clusters).map(|index| group(index, args.endpoints));
    let handles = handles.collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = (0..args.clusters)
        .map(|index| format!("cluster-{index}"))
        .collect();
    let served = names.iter().map(|name| XdsGroup {
        name: name.clone(),
        http2: false,
        tls: false,
    });
    let section = Xds {
        served: served.collect(),
        ..Xds::default()
    };
    let (mut groups, mut world) = (Groups::default(), ResourceSet::default());
    groups.set_section(&section, &mut world);
    groups.set_handles(handles.clone(), &mut world);
    let clients = (0..args.clients).map(|index| Client::new(index, &names));
    let mut clients = clients.collect::<Result<Vec<_>, _>>()?;
    let step = 1_000_000_000 / LOOKS;
    let mut now = step;
    groups.look_for_changes(Instant::from_nanos(now), &mut world);
    for client in &mut clients {
        client.receive(&world, &names)?;
    }
    println!(
        "first: {} answers, {} bytes",
        clients.iter().map(|client| client.answers).sum::<u64>(),
        clients.iter().map(|client| client.bytes).sum::<u64>()
    );
    let before: (u64, u64, u64) = sums(&clients);
    let changes = world.version();
    let mut rng = fastrand::Rng::with_seed(7);
    let (started, used) = (Wall::now(), cpu());
    for tick in 0..args.seconds as u64 * LOOKS {
        now += step;
        let at = Instant::from_nanos(now);
        for change in 0..args.changes as u64 / LOOKS {
            let which =
                (tick * (args.changes as u64 / LOOKS) + change) as usize % args.clusters.max(1);
            let group = handles.get(which).ok_or("no cluster")?.current.load_full();
            for member in group.members() {
                let load = LoadValue::new(rng.f64())?;
                member.location.report_load(LoadId::CPU, load, at)?;
            }
        }
        groups.look_for_changes(at, &mut world);
        for client in &mut clients {
            client.receive(&world, &names)?;
        }
    }
    let (used, passed) = (cpu() - used, started.elapsed());
    let after = sums(&clients);
    let seconds = args.seconds as f64;
    println!(
        "{} clusters with {} endpoints, {} clients, {} clusters changed a second for {} s",
        args.clusters, args.endpoints, args.clients, args.changes, args.seconds
    );
    println!(
        "changes of resources: {:.0} a second; for each client {:.1} answers, {:.0} resources, {:.0} kB a second",
        (world.version() - changes) as f64 / seconds,
        (after.0 - before.0) as f64 / seconds / args.clients.max(1) as f64,
        (after.1 - before.1) as f64 / seconds / args.clients.max(1) as f64,
        (after.2 - before.2) as f64 / 1e3 / seconds / args.clients.max(1) as f64,
    );
    println!(
        "CPU: {:.3} of a core (clients' part of the work included; it took {:.2} s)",
        used.as_secs_f64() / seconds,
        passed.as_secs_f64()
    );
    Ok(())
}

/// Answers, resources and bytes of all clients.
fn sums(clients: &[Client]) -> (u64, u64, u64) {
    clients.iter().fold((0, 0, 0), |sum, client| {
        (
            sum.0 + client.answers,
            sum.1 + client.resources,
            sum.2 + client.bytes,
        )
    })
}

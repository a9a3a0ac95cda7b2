//! Cost of the CORBA service with many groups, many clients that wait, and many alerts.
//!
//! - `changes`: what a change of a group costs with 100 groups and with 100,000 (processor
//!   time of the thread that carries it out, without the state file; and the time until it
//!   is answered, with the file), and how long a forward takes while 1,000 changes come in
//!   each second. The two sizes take turns in one process, so that their ratio is to be
//!   trusted more than either.
//! - `waiting`: the share of a core that 10,000 clients take which wait for a member that sends
//!   everybody back, and come again at once when they have been sent there.
//! - `alerts`: the share of a core that 100,000 load alerts take while nothing changes.
//!
//! All of it runs in this process, over real sockets where clients are concerned.
//!
//! `corba_scale [changes] [waiting] [alerts] [--groups N] [--clients N] [--alerts N]`

use std::future::pending;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use evenkeel_config::{Config, Corba as Settings};
use evenkeel_corba::alerts::Alerts;
use evenkeel_corba::call::{Call, Outcome};
use evenkeel_corba::directory::Directory;
use evenkeel_corba::dispatcher::{Counters, Dispatcher, Objects};
use evenkeel_corba::keys::{Key, Level};
use evenkeel_corba::name::Name;
use evenkeel_corba::relay::{self, Relay};
use evenkeel_corba::service::{Address, LoadManager, Parts, store};
use evenkeel_corba::types::{Properties, Property};
use evenkeel_giop::any::{Any, Idl};
use evenkeel_giop::cdr::{Endian, Reader, Writer};
use evenkeel_giop::client::{self, Client};
use evenkeel_giop::ior::Ior;
use evenkeel_giop::message::{
    Content, GiopError, Header, Message, Reply, ReplyStatus, Request, Target, Version,
};
use evenkeel_giop::server::{self, Server};
use evenkeel_manager::Manager;
use evenkeel_net::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, LocalSet};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
struct Options {
    /// Parts to measure; all parts if none is named.
    parts: Vec<String>,
    /// The larger number of groups; the manager takes 100,000, and the program makes some more.
    #[arg(long, default_value_t = 99_000)]
    groups: usize,
    /// Clients that wait.
    #[arg(long, default_value_t = 10_000)]
    clients: usize,
    /// Load alerts.
    #[arg(long, default_value_t = 100_000)]
    alerts: usize,
    /// Turns of each size.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Seconds for which each of the other parts is watched.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

const TYPE: &str = "IDL:Stock/Factory:1.0";

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corba_scale: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let wanted =
        |part: &str| options.parts.is_empty() || options.parts.iter().any(|known| known == part);
    if wanted("changes") {
        changes(options)?;
    }
    if wanted("waiting") {
        waiting(options)?;
    }
    if wanted("alerts") {
        alerts(options)?;
    }
    Ok(())
}

/// Processor time of this thread so far.
fn cpu() -> Duration {
    // SAFETY: both are plain numbers, and the call fills them in.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `time` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A load manager whose operations are carried out by the runtime that this is called in, and
/// whose manager runs on a thread of its own.
async fn open(state_file: Option<PathBuf>) -> Result<Arc<LoadManager>> {
    let manager = Manager::new(Clock::start(), Arc::new(()));
    manager.apply_config(Config::default()).await?;
    let running = Arc::clone(&manager);
    thread::spawn(move || {
        if let Ok(runtime) = runtime() {
            runtime.block_on(running.run());
        }
    });
    let parts = Parts {
        manager,
        directory: Arc::new(Directory::default()),
        client: Client::new(client::Settings::default()),
        runtime: tokio::runtime::Handle::current(),
    };
    let settings = Settings {
        state_file,
        liveness: None,
        ..Settings::default()
    };
    let address = Address {
        host: "127.0.0.1".into(),
        port: 2809,
        alternates: Vec::new(),
    };
    Ok(LoadManager::open(
        parts,
        Arc::new(settings),
        address,
        store::fresh_state(),
    )?)
}

async fn call(
    manager: &Arc<LoadManager>,
    operation: &str,
    arguments: impl FnOnce(&mut Writer),
) -> Result<Vec<u8>> {
    match manager.invoke(Call::new_local(operation, arguments)).await {
        Outcome::Reply(body) => Ok(body),
        other => Err(format!("{operation}: {other:?}").into()),
    }
}

async fn create(manager: &Arc<LoadManager>) -> Result<(Ior, Any)> {
    let style = "org.omg.PortableGroup.MembershipStyle";
    let by_hand: Properties = vec![Property::new(style, &0i32)];
    let body = call(manager, "create_object", |w| {
        w.write_string(TYPE);
        by_hand.write(w);
    });
    let body = body.await?;
    let mut reader = Reader::new(&body, Endian::NATIVE);
    Ok((Ior::read(&mut reader)?, Any::read(&mut reader)?))
}

async fn add(manager: &Arc<LoadManager>, group: &Ior, at: &str) -> Result<()> {
    let added = call(manager, "add_member", |w| {
        group.write(w);
        Name::from_id(at).write(w);
        Ior::new_iiop(TYPE, "127.0.0.1", 4711, b"key").write(w);
    });
    added.await.map(drop)
}

/// Four changes: a group comes, gets a member, loses it, and goes.
async fn four(manager: &Arc<LoadManager>) -> Result<()> {
    let (group, creation) = create(manager).await?;
    add(manager, &group, "host1").await?;
    let removed = call(manager, "remove_member", |w| {
        group.write(w);
        Name::from_id("host1").write(w);
    });
    removed.await?;
    let deleted = call(manager, "delete_object", |w| creation.write(w));
    deleted.await.map(drop)
}

/// A load manager with this many groups of two members each; returns one of the groups, too.
async fn filled(groups: usize, state_file: Option<PathBuf>) -> Result<(Arc<LoadManager>, Ior)> {
    let manager = open(state_file).await?;
    let mut last = create(&manager).await?.0;
    let mut making = JoinSet::new();
    for number in 0..groups {
        let manager = Arc::clone(&manager);
        making.spawn(async move {
            let made = async {
                let (group, _) = create(&manager).await?;
                add(&manager, &group, &format!("host{}", number % 500)).await?;
                add(&manager, &group, &format!("host{}", number % 499 + 500)).await?;
                Ok::<_, Box<dyn std::error::Error>>(group)
            };
            made.await.map_err(|error| error.to_string())
        });
        // Some at a time, which are written together.
        if making.len() >= 1000
            && let Some(made) = making.join_next().await
        {
            last = made??;
        }
    }
    while let Some(made) = making.join_next().await {
        last = made??;
    }
    Ok((manager, last))
}

fn changes(options: &Options) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("corba-scale-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let of = |groups: usize| Some(folder.join(format!("{groups}.json")));
    let done = runtime()?.block_on(async {
        let sizes = [100, options.groups];
        let begun = Instant::now();
        let mut managers = Vec::new();
        for groups in sizes {
            let plain = filled(groups, None).await?.0;
            let (kept, group) = filled(groups, of(groups)).await?;
            // The file is written anew with the first change after it has grown.
            managers.push((plain, kept, group));
        }
        println!("groups made in {:.1} s", begun.elapsed().as_secs_f64());
        let mut costs = [Vec::new(), Vec::new()];
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..options.rounds {
            for (index, (plain, kept, _)) in managers.iter().enumerate() {
                let before = cpu();
                for _ in 0..50 {
                    four(plain).await?;
                }
                costs[index].push((cpu() - before).as_secs_f64() * 1e6 / 200.0);
                let begun = Instant::now();
                for _ in 0..10 {
                    four(kept).await?;
                }
                times[index].push(begun.elapsed().as_secs_f64() * 1e6 / 40.0);
            }
        }
        let ratio = |of: &[Vec<f64>; 2]| {
            let ratios = of[0].iter().zip(&of[1]).map(|(few, many)| many / few);
            median(ratios.collect())
        };
        let (cost, time) = (ratio(&costs), ratio(&times));
        let [few, many] = costs.map(median);
        println!(
            "processor time of a change: {few:.1} us with 100 groups, {many:.1} us with {}: {cost:.2} times",
            options.groups
        );
        let [few, many] = times.map(median);
        println!(
            "until it is on disk: {few:.0} us with 100 groups, {many:.0} us with {}: {time:.2} times",
            options.groups
        );
        let Some((_, kept, group)) = managers.pop() else {
            return Ok(());
        };
        under_load(options, kept, &group).await
    });
    let _ = std::fs::remove_dir_all(&folder);
    done
}

/// Forwards while nothing changes, and while 1,000 changes come in each second.
async fn under_load(options: &Options, manager: Arc<LoadManager>, group: &Ior) -> Result<()> {
    let address = serve(manager.directory(), manager.manager().clock())?;
    let key = group.iiop_profiles().next().ok_or("no profile")?.object_key;
    let stop = Arc::new(AtomicBool::new(false));
    for per_second in [0u64, 1000] {
        stop.store(false, Ordering::Relaxed);
        let (stopped, key) = (Arc::clone(&stop), key.clone());
        let asking = thread::spawn(move || ask(address, &key, &stopped).map_err(|e| e.to_string()));
        let begun = Instant::now();
        let (mut made, mut running) = (0u64, JoinSet::new());
        let mut ticks = tokio::time::interval(Duration::from_millis(4));
        while begun.elapsed() < Duration::from_secs(options.seconds) {
            ticks.tick().await;
            if per_second > 0 {
                let manager = Arc::clone(&manager);
                running.spawn(async move { four(&manager).await.map_err(|e| e.to_string()) });
            }
            while let Some(done) = running.try_join_next() {
                done??;
                made += 4;
            }
        }
        let rate = made as f64 / begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        let mut times = asking.join().map_err(|_| "the client has panicked")??;
        times.sort_unstable();
        let at = |share: f64| {
            let index = ((times.len() - 1) as f64 * share) as usize;
            times[index].as_secs_f64() * 1e3
        };
        println!(
            "a forward with {rate:.0} changes a second: median {:.3} ms, 99.9 % {:.3} ms, longest {:.3} ms of {}",
            at(0.5),
            at(0.999),
            at(1.0),
            times.len()
        );
        while let Some(done) = running.join_next().await {
            done??;
        }
    }
    Ok(())
}

/// Nobody carries anything out.
struct Nobody;

impl Objects for Nobody {
    fn manager(&self, _: Call) -> impl Future<Output = Outcome> + use<> {
        pending()
    }

    fn strategy(&self, _: Level<'_>, _: Call) -> impl Future<Output = Outcome> + use<> {
        pending()
    }
}

/// The processor time of the thread that serves clients, in nanoseconds.
static SERVING: AtomicU64 = AtomicU64::new(0);

/// Answers clients on a thread of its own.
fn serve(directory: &Arc<Directory>, clock: Clock) -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let directory = Arc::clone(directory);
    thread::spawn(move || {
        let Ok(runtime) = runtime() else { return };
        LocalSet::new().block_on(&runtime, async move {
            let rng = fastrand::Rng::new();
            let relay = Relay::start(relay::Settings::default(), Arc::default(), clock, rng);
            let counters = Arc::new(Counters::default());
            let door = Dispatcher::new(clock, relay, directory, Rc::new(Nobody), counters);
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                return;
            };
            tokio::task::spawn_local(async {
                loop {
                    SERVING.store(cpu().as_nanos() as u64, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            });
            let settings = server::Settings {
                max_connections: 100_000,
                ..server::Settings::default()
            };
            let server = Server::new(settings);
            server
                .serve_clients(listener, Rc::new(door), pending())
                .await;
        });
    });
    Ok(address)
}

fn reply_to(key: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let request = Request::new(7, Target::Key(key), "work");
    request.encode(Version::V1_2, Endian::NATIVE, &mut bytes)?;
    Ok(bytes)
}

/// Asks one reply_to after the other, with a pause between; answers how long each took.
fn ask(address: SocketAddr, key: &[u8], stop: &AtomicBool) -> Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let (reply_to, mut times) = (reply_to(key)?, Vec::new());
    let mut answer = vec![0; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        stream.write_all(&reply_to)?;
        stream.read_exact(&mut answer[..Header::LEN])?;
        let header = Header::peek(&answer, usize::MAX)?.ok_or("no header")?;
        stream.read_exact(&mut answer[Header::LEN..header.total()])?;
        times.push(begun.elapsed());
        thread::sleep(Duration::from_micros(200));
    }
    Ok(times)
}

fn waiting(options: &Options) -> Result<()> {
    runtime()?.block_on(async {
        let manager = open(None).await?;
        let (group, _) = create(&manager).await?;
        add(&manager, &group, "host1").await?;
        let id = group.iiop_profiles().next().ok_or("no profile")?.object_key;
        let Some(Key::Group(id)) = Key::parse(&id) else {
            return Err("no key of a group".into());
        };
        let entry = manager.directory().load_snapshot().group(id).cloned();
        let entry = entry.ok_or("no group")?;
        for member in entry.handle.current.load().members() {
            member.location.set_shut(true);
        }
        let address = serve(manager.directory(), manager.manager().clock())?;
        let reply_to = Arc::new(reply_to(&Key::Group(id).to_bytes())?);
        let sent = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        for _ in 0..options.clients {
            let (reply_to, sent) = (Arc::clone(&reply_to), Arc::clone(&sent));
            let mut stream = tokio::net::TcpStream::connect(address).await?;
            clients.spawn(async move {
                let mut answer = vec![0; 256];
                while stream.write_all(&reply_to).await.is_ok()
                    && stream.read(&mut answer).await.is_ok_and(|len| len > 0)
                {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Until each has come back a few times.
        for seconds in [0, 10] {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let (before, answers) = (SERVING.load(Ordering::Relaxed), sent.load(Ordering::Relaxed));
            let begun = Instant::now();
            tokio::time::sleep(Duration::from_secs(options.seconds)).await;
            let elapsed = begun.elapsed().as_secs_f64();
            let cost = (SERVING.load(Ordering::Relaxed) - before) as f64 / 1e9 / elapsed;
            let answers = (sent.load(Ordering::Relaxed) - answers) as f64 / elapsed;
            println!(
                "{} clients that wait, from {seconds} s on: {:.2} % of a core, {answers:.0} sent on each second",
                clients.len(),
                cost * 100.0
            );
        }
        Ok(())
    })
}

/// Says yes to all calls.
struct Yes;

impl server::Service for Yes {
    type Connection = ();

    fn connected(&self, _: SocketAddr) {}

    fn message(
        &self,
        (): &mut (),
        message: Message<'_>,
        out: &server::ReplyOutput<'_>,
    ) -> std::result::Result<(), GiopError> {
        if let Content::Request(request) = message.read_content()? {
            let reply = Reply::new(request.request_id, ReplyStatus::NoException, &[]);
            out.write(|out| reply.encode(message.header.version, Endian::NATIVE, out))?;
        }
        Ok(())
    }
}

/// Objects that acknowledge their calls, on a thread of their own.
fn acknowledge() -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        let Ok(runtime) = runtime() else { return };
        LocalSet::new().block_on(&runtime, async move {
            if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                let server = Server::new(server::Settings::default());
                server
                    .serve_clients(listener, Rc::new(Yes), pending())
                    .await;
            }
        });
    });
    Ok(address)
}

fn alerts(options: &Options) -> Result<()> {
    let objects = acknowledge()?;
    runtime()?.block_on(async {
        let manager = open(None).await?;
        let begun = Instant::now();
        for number in 0..options.alerts {
            let registered = call(&manager, "register_load_alert", |w| {
                Name::from_id(&format!("place{number}")).write(w);
                Ior::new_iiop("IDL:A:1.0", "127.0.0.1", objects.port(), b"alert").write(w);
            });
            registered.await?;
        }
        println!(
            "{} alerts registered in {:.1} s",
            options.alerts,
            begun.elapsed().as_secs_f64()
        );
        let alerts = Arc::new(Alerts::default());
        let (telling, service) = (Arc::clone(&alerts), Arc::clone(&manager));
        tokio::spawn(async move { telling.run(service).await });
        // Each is told that it is off, as after a start.
        let told = Instant::now();
        while alerts.counters().call_totals()[2].1 < options.alerts as u64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!("all told in {:.1} s", told.elapsed().as_secs_f64());
        let (before, looks) = (cpu(), alerts.counters().count_object_looks());
        tokio::time::sleep(Duration::from_secs(options.seconds)).await;
        let cost = (cpu() - before).as_secs_f64() / options.seconds as f64;
        let looks =
            (alerts.counters().count_object_looks() - looks) as f64 / options.seconds as f64;
        println!(
            "{} alerts: {:.2} % of a core, {looks:.0} looked at each second",
            options.alerts,
            cost * 100.0
        );
        Ok(())
    })
}

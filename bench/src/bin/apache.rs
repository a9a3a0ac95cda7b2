//! What mod_evenkeel and libarm cost Apache httpd: plain httpd beside one that has them.
//!
//! Both run all the time, pinned to one processor, and the load on another drives them in
//! short turns: one arm, the other twice, the one again, and in the next round the other
//! way round. What else the machine does hits both arms of a round alike, so the figures
//! to trust are the medians of the rounds' ratios, and of these the CPU time per request.
//!
//! `apache [--mpm event] [--rounds N] [--seconds S] [--connections N] [--close]`

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use evenkeel_bench::load::{Outcome, Plan, Traffic, run};
use evenkeel_bench::report::median;
use evenkeel_bench::server::{Server, free_address, pin_to, processors, raise_file_limit};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
struct Options {
    /// httpd's multi-processing module: event, worker or prefork.
    #[arg(long, default_value = "event")]
    mpm: String,
    /// Rounds, each of two turns of each arm.
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// Seconds of a turn that are counted; a tenth more comes before.
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Connections at once.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// A connection for every request.
    #[arg(long)]
    close: bool,
    /// Measure what lies in target/dist, without building.
    #[arg(long)]
    as_built: bool,
}

/// One httpd.
struct Arm {
    name: &'static str,
    address: SocketAddr,
    server: Server,
    requests_per_s: Vec<f64>,
    cpu_us: Vec<f64>,
}

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apache: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()?;
    let dist = root.join("target/dist");
    let module = dist.join("mod_evenkeel");
    if !options.as_built {
        let mut library = Command::new("cargo");
        library.args([
            "build",
            "--quiet",
            "--profile",
            "dist",
            "--package",
            "evenkeel-arm",
        ]);
        succeed(library.current_dir(&root))?;
        let mut made = Command::new("make");
        made.arg("-C").arg(root.join("modules/apache"));
        made.arg(format!("BUILD={}", module.display()));
        made.arg(format!("LIBARM={}", dist.display()));
        succeed(made.stdout(Stdio::null()))?;
    }
    let processors = processors()?;
    let (Some(&serving), Some(&loading)) = (processors.first(), processors.last()) else {
        return Err("no processor to run on".into());
    };
    raise_file_limit()?;
    let mut rng = fastrand::Rng::new();
    let folder = Folder::new()?;
    let load = format!(
        "LoadFile {}\nLoadModule evenkeel_module {}",
        dist.join("libarm.so").display(),
        module.join("mod_evenkeel.so").display(),
    );
    // The shed valve is on, and not under alert, as in operation.
    let load = format!("{load}\nEvenkeelBalancer http://balancer.example/");
    let mut arms = Vec::new();
    for (name, lines) in [("plain", ""), ("module", load.as_str())] {
        let address = free_address(&mut rng)?;
        let config = configure(&folder.0, name, address, options, lines)?;
        let mut command = Command::new("/usr/sbin/apache2");
        command.arg("-DFOREGROUND").arg("-f").arg(config);
        command.env("EVENKEEL_ARM_DIR", "/dev/shm");
        command.stderr(fs::File::create(folder.0.join(format!("{name}.out")))?);
        // At its end it sends a signal to its whole group.
        command.process_group(0);
        let mut server = Server::start(command, serving, libc::SIGTERM)?;
        server.wait_for(&[address])?;
        arms.push(Arm {
            name,
            address,
            server,
            requests_per_s: Vec::new(),
            cpu_us: Vec::new(),
        });
    }
    pin_to(loading)?;
    for round in 0..options.rounds {
        let first = round % 2;
        let mut totals = [Total::default(); 2];
        for index in [first, 1 - first, 1 - first, first] {
            totals[index].add(&arms[index].turn(options)?);
        }
        for (arm, total) in arms.iter_mut().zip(totals) {
            arm.requests_per_s.push(total.requests / total.elapsed);
            arm.cpu_us.push(total.cpu * 1e6 / total.requests);
        }
    }
    println!("arm     requests/s  CPU us per request");
    for arm in &arms {
        let middle = |values: &Vec<f64>| median(values.clone()).unwrap_or(f64::NAN);
        println!(
            "{:6}  {:10.0}  {:18.2}",
            arm.name,
            middle(&arm.requests_per_s),
            middle(&arm.cpu_us)
        );
    }
    let [plain, module] = arms.as_slice() else {
        return Ok(());
    };
    print_ratio("requests/s", &plain.requests_per_s, &module.requests_per_s);
    print_ratio("CPU per request", &plain.cpu_us, &module.cpu_us);
    Ok(())
}

/// What the turns of an arm in one round add up to; times in seconds.
#[derive(Clone, Copy, Default)]
struct Total {
    requests: f64,
    elapsed: f64,
    cpu: f64,
}

impl Total {
    fn add(&mut self, outcome: &Outcome) {
        self.requests += outcome.requests as f64;
        self.elapsed += outcome.elapsed.as_secs_f64();
        self.cpu += outcome.cpu.as_secs_f64();
    }
}

impl Arm {
    fn turn(&self, options: &Options) -> Result<Outcome> {
        let measure = Duration::try_from_secs_f64(options.seconds)?;
        let path = "/small";
        let plan = Plan {
            target: self.address,
            traffic: if options.close {
                Traffic::HttpClose { path }
            } else {
                Traffic::Http { path }
            },
            connections: options.connections,
            rate: None,
            warm_up: measure / 10,
            measure,
        };
        let outcome = run(&plan, &mut || self.server.cpu_time())?;
        if outcome.failures > 0 {
            return Err(format!("{} failed {} requests", self.name, outcome.failures).into());
        }
        Ok(outcome)
    }
}

/// The median of the rounds' ratios, and where half of them lie.
fn print_ratio(what: &str, plain: &[f64], module: &[f64]) {
    let mut ratios: Vec<_> = module
        .iter()
        .zip(plain)
        .map(|(module, plain)| module / plain)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[(share * (ratios.len() - 1) as f64).round() as usize];
    println!(
        "{what}: module / plain = {:.4} (half of the rounds: {:.4} to {:.4})",
        at(0.5),
        at(0.25),
        at(0.75)
    );
}

fn configure(
    folder: &Path,
    name: &str,
    address: SocketAddr,
    options: &Options,
    lines: &str,
) -> Result<PathBuf> {
    let root = folder.join(name);
    fs::create_dir(&root)?;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
    fs::write(
        root.join("small"),
        "A small document, as small as bench's back-end\n",
    )?;
    // As many processes as ever, so that none ends and takes its CPU time along.
    let sizes = if options.mpm == "prefork" {
        "StartServers 16\nMinSpareServers 1\nMaxSpareServers 64\nMaxRequestWorkers 64"
    } else {
        "ServerLimit 1\nStartServers 1\nThreadsPerChild 32\nMaxRequestWorkers 32\n\
         MinSpareThreads 1\nMaxSpareThreads 32"
    };
    let config = root.join("server.conf");
    let (mpm, root) = (&options.mpm, root.display());
    let modules = "/usr/lib/apache2/modules";
    fs::write(
        &config,
        format!(
            "LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so\n\
             LoadModule authz_core_module {modules}/mod_authz_core.so\n\
             {lines}\n{sizes}\n\
             ServerRoot {root}\nServerName {name}.example\nUser nobody\nGroup nogroup\n\
             Listen {address}\nPidFile {root}/pid\nMutex file:{root}\n\
             ErrorLog {root}/error.log\nDocumentRoot {root}\n\
             KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 60\n\
             <Directory {root}>\nRequire all granted\n</Directory>\n"
        ),
    )?;
    Ok(config)
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{:?} ended with {status}", command.get_program()).into())
}

/// A temporary folder, gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("evenkeel-apache-{}", std::process::id()));
        fs::create_dir(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

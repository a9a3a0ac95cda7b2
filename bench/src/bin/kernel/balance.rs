//! Value of known loads for clients: eight web servers behind the balancer.
//!
//! A back-end is a cgroup with a part of a CPU, so that eight of them, the balancer and the
//! clients fit on two. Some have other work that the balancer does not send: 16 processes in
//! pairs that send each other 4 KB and back. The helper of ULM runs within the back-end's
//! cgroup, as it runs on the back-end; the responder in the kernel has a target for each.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_bench::report::median;
use evenkeel_sim::svg::{Line, Plot};

use super::clock::{self, CpuClocks};
use super::ground::{self, Cgroup, Folder, Link, Namespace, Process, Responder, Scheduling};
use super::table::{Table, Verdict};
use super::traffic::{Arrivals, Seen, Site};
use super::{Result, Run};

const BACKENDS: usize = 8;
/// CPU time of a back-end in each period.
const QUOTA: Duration = Duration::from_millis(3);
const PERIOD: Duration = Duration::from_millis(20);
/// Documents of a site, documents that a back-end keeps at hand, and microseconds of CPU time for a document that is at
/// hand and for another one.
const DOCUMENTS: usize = 1000;
const CACHE: &str = "100";
const HIT: &str = "500";
const MISS: &str = "4000";

const INTERVAL: Duration = Duration::from_millis(50);
const WARM_UP: u64 = 700_000_000;

/// Source of the load that the balancer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    No,
    Ulm,
    Kernel,
}

/// An arm: the balancer's strategy, and the load that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arm {
    name: &'static str,
    strategy: &'static str,
    known: Known,
    load: &'static str,
}

const fn arm(name: &'static str, strategy: &'static str, known: Known, load: &'static str) -> Arm {
    Arm {
        name,
        strategy,
        known,
        load,
    }
}

const RANDOM: Arm = arm("random", "random", Known::No, "cpu");
const ROUND_ROBIN: Arm = arm("round robin", "round_robin", Known::No, "cpu");
const ULM: Arm = arm("ULM", "k_least_loaded", Known::Ulm, "cpu");
const PKLM: Arm = arm("pKLM", "k_least_loaded", Known::Kernel, "cpu");
const KLM: Arm = arm("KLM", "k_least_loaded", Known::Kernel, "composite");
const ADAPTIVE: Arm = arm("KLM, adaptive", "adaptive", Known::Kernel, "composite");
const LEAST_REQUEST: Arm = arm("least request", "least_request", Known::No, "cpu");

const PUBLISHED: [Arm; 5] = [RANDOM, ROUND_ROBIN, ULM, PKLM, KLM];
const ALL: [Arm; 7] = [RANDOM, ROUND_ROBIN, ULM, PKLM, KLM, ADAPTIVE, LEAST_REQUEST];

/// A measurement that is made of every arm.
#[derive(Clone, Debug)]
struct Cell {
    x: f64,
    /// Back-ends with other work.
    loaded: usize,
    /// True if the other work comes and goes.
    changes: bool,
    /// Exponents and clients of the sites.
    sites: Vec<(f64, Arrivals)>,
    interval: Duration,
}

/// Cells that differ in one thing.
struct Sweep {
    name: &'static str,
    title: &'static str,
    x: &'static str,
    arms: Vec<Arm>,
    turns: usize,
    cells: Vec<Cell>,
}

fn sweeps(run: &Run) -> Vec<Sweep> {
    let clients = Arrivals::Closed(BACKENDS);
    let base = Cell {
        x: 0.0,
        loaded: 2,
        changes: false,
        sites: vec![(0.9, clients)],
        interval: INTERVAL,
    };
    let loaded = |counts: &[usize], changes: bool, arrivals: Arrivals| -> Vec<Cell> {
        let cell = |&loaded: &usize| Cell {
            x: loaded as f64,
            loaded,
            changes,
            sites: vec![(0.9, arrivals)],
            ..base.clone()
        };
        counts.iter().map(cell).collect()
    };
    let alphas: &[f64] = run.scale(&[0.1, 0.5, 0.9], &[0.1, 0.9]);
    let single = |&alpha: &f64| Cell {
        x: alpha,
        loaded: 0,
        sites: vec![(alpha, clients)],
        ..base.clone()
    };
    let others: &[f64] = run.scale(&[0.1, 0.5, 0.75], &[0.1]);
    let half = Arrivals::Closed(BACKENDS / 2);
    let shared = |&alpha: &f64| Cell {
        x: alpha,
        loaded: 0,
        sites: vec![(0.9, half), (alpha, half)],
        ..base.clone()
    };
    let intervals: &[u64] = run.scale(&[1, 10, 50, 200, 1000], &[1, 50, 1000]);
    let interval = |&millis: &u64| Cell {
        x: (millis as f64).log10(),
        changes: true,
        interval: Duration::from_millis(millis),
        ..base.clone()
    };
    let turns = run.scale(3, 1);
    vec![
        Sweep {
            name: "loaded",
            title: "Back-ends with other work (8 clients, exponent 0.9)",
            x: "back-ends with other work",
            arms: ALL.to_vec(),
            turns,
            cells: loaded(run.scale(&[0, 2, 4, 6], &[0, 2, 4]), false, clients),
        },
        Sweep {
            name: "changing",
            title: "The same where the other work comes and goes",
            x: "back-ends with other work",
            arms: ALL.to_vec(),
            turns,
            cells: loaded(run.scale(&[2, 4], &[4]), true, clients),
        },
        Sweep {
            name: "saturated",
            title: "Three times as many clients",
            x: "back-ends with other work",
            arms: ALL.to_vec(),
            turns: run.scale(2, 1),
            cells: loaded(&[2], false, Arrivals::Closed(3 * BACKENDS)),
        },
        Sweep {
            name: "open",
            title: "150 requests per second, whatever the answers do",
            x: "back-ends with other work",
            arms: ALL.to_vec(),
            turns: run.scale(2, 1),
            cells: loaded(run.scale(&[2, 4], &[2]), false, Arrivals::Open(150.0)),
        },
        Sweep {
            name: "alpha",
            title: "One web site, no other work",
            x: "Zipf exponent",
            arms: PUBLISHED.to_vec(),
            turns,
            cells: alphas.iter().map(single).collect(),
        },
        Sweep {
            name: "shared",
            title: "Two web sites on the same back-ends, one with exponent 0.9",
            x: "Zipf exponent of the other one",
            arms: PUBLISHED.to_vec(),
            turns,
            cells: others.iter().map(shared).collect(),
        },
        Sweep {
            name: "interval",
            title: "Polling interval; two back-ends with other work that comes and goes",
            x: "log10 of milliseconds",
            arms: vec![ULM, PKLM, KLM],
            turns: run.scale(2, 1),
            cells: intervals.iter().map(interval).collect(),
        },
    ]
}

/// Result of an arm's turn.
#[derive(Clone, Default)]
struct Turn {
    /// Requests per second of each site.
    throughput: Vec<f64>,
    seen: Seen,
    /// Mean over the time of the variance between back-ends of what they used of their CPU.
    variance: f64,
}

impl Turn {
    fn all(&self) -> f64 {
        self.throughput.iter().sum()
    }

    fn p99_ms(&self) -> f64 {
        self.seen.latency.quantile(0.99).as_secs_f64() * 1e3
    }
}

/// Medians of an arm's turns.
#[derive(Clone, Debug)]
struct Figures {
    throughput: f64,
    sites: Vec<f64>,
    p99_ms: f64,
    variance: f64,
    failures: u64,
}

pub(crate) fn measure(run: &Run) -> Result<Vec<Verdict>> {
    let stage = Stage::new(run)?;
    // Arms that cannot be measured here do not keep the others from being measured.
    let mut lacking: Vec<Arm> = Vec::new();
    let mut csv =
        String::from("sweep,x,arm,turn,site_requests_per_s,p50_ms,p99_ms,variance,failures\n");
    let mut text = String::new();
    let mut verdicts = Vec::new();
    for mut sweep in sweeps(run) {
        sweep.arms.retain(|arm| !lacking.contains(arm));
        if lacking.is_empty() {
            lacking = stage.lacking(&sweep.arms, &sweep.cells);
            sweep.arms.retain(|arm| !lacking.contains(arm));
        }
        // By arm and cell.
        let mut rows: Vec<Vec<Figures>> = vec![Vec::new(); sweep.arms.len()];
        for cell in &sweep.cells {
            let mut turns: Vec<Vec<Turn>> = vec![Vec::new(); sweep.arms.len()];
            for turn in 0..sweep.turns {
                let mut order: Vec<usize> = (0..sweep.arms.len()).collect();
                if turn % 2 == 1 {
                    order.reverse();
                }
                for index in order {
                    let arm = sweep.arms[index];
                    let played = stage.play(arm, cell, turn as u64);
                    let played = played.map_err(|error| format!("{}: {error}", arm.name))?;
                    let sites = played.throughput.iter().map(|rate| format!("{rate:.1}"));
                    writeln!(
                        csv,
                        "{},{:.2},\"{}\",{turn},{},{:.2},{:.2},{:.5},{}",
                        sweep.name,
                        cell.x,
                        arm.name,
                        sites.collect::<Vec<_>>().join(" "),
                        played.seen.latency.quantile(0.5).as_secs_f64() * 1e3,
                        played.p99_ms(),
                        played.variance,
                        played.seen.failures,
                    )?;
                    turns[index].push(played);
                }
            }
            for (row, turns) in rows.iter_mut().zip(&turns) {
                row.push(middle(turns));
            }
            // A run that is broken off has left what it found.
            run.write("balance.csv", &csv)?;
        }
        let told = describe(run, &sweep, &rows)?;
        println!("{told}");
        text += &told;
        verdicts.extend(judge(&sweep, &rows));
    }
    run.write("balance.md", &text)?;
    Ok(verdicts)
}

fn middle(turns: &[Turn]) -> Figures {
    let of = |figure: &dyn Fn(&Turn) -> f64| {
        median(turns.iter().map(figure).collect()).unwrap_or(f64::NAN)
    };
    let sites = turns.first().map_or(0, |turn| turn.throughput.len());
    Figures {
        throughput: of(&Turn::all),
        sites: (0..sites)
            .map(|site| of(&|turn| turn.throughput[site]))
            .collect(),
        p99_ms: of(&Turn::p99_ms),
        variance: of(&|turn| turn.variance),
        failures: turns.iter().map(|turn| turn.seen.failures).sum(),
    }
}

/// Tables and plots of a sweep.
fn describe(run: &Run, sweep: &Sweep, rows: &[Vec<Figures>]) -> Result<String> {
    let mut text = format!("**{}**\n\n", sweep.title);
    type Figure = fn(&Figures) -> f64;
    let kinds: [(&str, &str, Figure, usize); 3] = [
        ("throughput", "requests per second", |f| f.throughput, 0),
        ("p99", "p99, ms", |f| f.p99_ms, 0),
        ("variance", "variance between back-ends", |f| f.variance, 4),
    ];
    let base = sweep.arms.iter().position(|arm| *arm == RANDOM);
    for (kind, unit, figure, digits) in kinds {
        let heads = sweep.cells.iter().map(|cell| format!("{:.2}", cell.x));
        let heads: Vec<String> = std::iter::once(format!("{unit}; {}", sweep.x))
            .chain(heads)
            .collect();
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let mut table = Table::new(&heads);
        let mut lines = Vec::new();
        for (arm, row) in sweep.arms.iter().zip(rows) {
            let cells = row.iter().enumerate().map(|(at, f)| {
                let value = figure(f);
                let random = base.and_then(|base| rows[base].get(at)).map(figure);
                match random {
                    Some(random) if kind == "throughput" && random > 0.0 => {
                        let more = (value / random - 1.0) * 100.0;
                        format!("{value:.digits$} ({more:+.0} %)")
                    }
                    _ => format!("{value:.digits$}"),
                }
            });
            table.add_row(std::iter::once(arm.name.to_owned()).chain(cells));
            let points = sweep.cells.iter().zip(row);
            let points = points.map(|(cell, f)| (cell.x, figure(f)));
            lines.push(Line::new(arm.name, points.collect()));
        }
        writeln!(text, "{}", table.text())?;
        if sweep.cells.len() > 1 {
            let plot = Plot::from_zero(sweep.x, unit, lines);
            let name = format!("balance-{}-{kind}.svg", sweep.name);
            run.write(&name, &plot.file(sweep.title))?;
        }
    }
    if sweep.name == "shared" {
        text += &per_site(sweep, rows, base);
    }
    let failures: u64 = rows.iter().flatten().map(|f| f.failures).sum();
    if failures > 0 {
        writeln!(text, "{failures} requests failed.\n")?;
    }
    Ok(text)
}

/// By how much each site gains over random choice (their figure 7).
fn per_site(sweep: &Sweep, rows: &[Vec<Figures>], base: Option<usize>) -> String {
    let heads = sweep.cells.iter().map(|cell| format!("0.9 and {}", cell.x));
    let heads: Vec<String> = std::iter::once("gain over random, by site".to_owned())
        .chain(heads)
        .collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new(&heads);
    for (arm, row) in sweep.arms.iter().zip(rows) {
        let cells = row.iter().enumerate().map(|(at, f)| {
            let random = base.and_then(|base| rows[base].get(at));
            let random = random.map(|f| f.sites.as_slice()).unwrap_or_default();
            let gains = f.sites.iter().zip(random);
            let gains =
                gains.map(|(site, random)| format!("{:+.0} %", (site / random - 1.0) * 1e2));
            gains.collect::<Vec<_>>().join(", ")
        });
        table.add_row(std::iter::once(arm.name.to_owned()).chain(cells));
    }
    format!("{}\n", table.text())
}

fn judge(sweep: &Sweep, rows: &[Vec<Figures>]) -> Vec<Verdict> {
    // Cells with other work.
    let some: Vec<usize> = (0..sweep.cells.len())
        .filter(|&at| sweep.cells[at].loaded > 0 || sweep.name != "loaded")
        .collect();
    let mean = |arm: Arm, figure: fn(&Figures) -> f64| {
        let found = sweep.arms.iter().position(|known| *known == arm);
        let row = found.and_then(|at| rows.get(at));
        let values = some.iter().filter_map(|&at| Some(figure(row?.get(at)?)));
        values.sum::<f64>() / some.len().max(1) as f64
    };
    let means = |figure: fn(&Figures) -> f64| PUBLISHED.map(|arm| mean(arm, figure));
    let list = |means: &[f64; 5], digits: usize| {
        let seen = PUBLISHED.iter().zip(means).rev();
        let seen: Vec<String> = seen
            .map(|(arm, mean)| format!("{} {mean:.digits$}", arm.name))
            .collect();
        seen.join(", ")
    };
    let title = sweep.title;
    if ["interval", "saturated"].contains(&sweep.name) {
        return Vec::new();
    }
    if sweep
        .arms
        .iter()
        .filter(|arm| PUBLISHED.contains(arm))
        .count()
        < PUBLISHED.len()
    {
        let what = format!("as published: {title}");
        let why = "not all can be had here".to_owned();
        return vec![Verdict::not_measured("balance", &what, why)];
    }
    match sweep.name {
        "loaded" | "changing" | "alpha" | "shared" => {
            let throughput = means(|f| f.throughput);
            let best = throughput[..4].iter().all(|other| throughput[4] > *other);
            let what = format!("KLM's throughput above all others': {title}");
            let mut verdicts = vec![Verdict::new("balance", &what, list(&throughput, 0), best)];
            if sweep.name == "shared" {
                let variance = means(|f| f.variance);
                let half = variance[..4]
                    .iter()
                    .all(|other| variance[4] * 2.0 <= *other);
                let what = "KLM's variance between back-ends about half of the others' (published)";
                verdicts.push(Verdict::new("balance", what, list(&variance, 4), half));
            }
            verdicts
        }
        "open" => {
            let p99 = means(|f| f.p99_ms);
            let best = p99[..4].iter().all(|other| p99[4] < *other);
            let what = format!("KLM's p99 below all others': {title}");
            vec![Verdict::new("balance", &what, list(&p99, 0), best)]
        }
        _ => Vec::new(),
    }
}

/// A web server, and what else is in its cgroup.
struct Backend {
    server: Process,
    address: SocketAddr,
    others: Vec<Process>,
    /// CPU clocks of all of them.
    clocks: CpuClocks,
    cgroup: Cgroup,
}

impl Backend {
    fn new(link: &Link) -> Result<Self> {
        let cgroup = Cgroup::new()?;
        let how = Scheduling {
            cgroup: Some(&cgroup),
            ..Scheduling::default()
        };
        let ip = link.back.to_string();
        let words = ["serve", &ip, CACHE, HIT, MISS];
        let mut server = Process::start_helper(&words, Stdio::null(), how)?;
        let stdout = server.stdout().ok_or("no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse()?;
        let others = ground::ping_pong(how)?;
        others.iter().for_each(|other| other.signal(libc::SIGSTOP));
        let ids = std::iter::once(&server).chain(&others).map(Process::id);
        let clocks = CpuClocks::new(ids)?;
        // All programs have started at full speed.
        cgroup.set_quota(QUOTA, PERIOD)?;
        Ok(Backend {
            server,
            address,
            others,
            clocks,
            cgroup,
        })
    }

    /// Lets the other work go on, or stops it.
    fn load(&self, is_loaded: bool) {
        let signal = if is_loaded {
            libc::SIGCONT
        } else {
            libc::SIGSTOP
        };
        self.others.iter().for_each(|other| other.signal(signal));
    }
}

/// The cgroup of what the front-end has on a machine of its own elsewhere: this process while
/// it asks, and the balancer.
struct FrontEnd(Cgroup);

impl FrontEnd {
    fn new() -> Result<Self> {
        let cgroup = Cgroup::new()?;
        cgroup.set_weight(32)?;
        cgroup.add_process(std::process::id())?;
        Ok(FrontEnd(cgroup))
    }
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        let _ = self.0.remove_process(std::process::id());
    }
}

/// Everything but the balancer, which each turn has anew.
struct Stage<'a> {
    run: &'a Run,
    seconds: f64,
    key: PathBuf,
    // In the order in which they must go.
    responder: Option<Responder>,
    backends: Vec<Backend>,
    link: Link,
    front: Arc<Namespace>,
    front_end: FrontEnd,
    folder: Folder,
}

impl<'a> Stage<'a> {
    fn new(run: &'a Run) -> Result<Self> {
        let folder = Folder::new()?;
        let (key, _) = folder.make_key()?;
        let front = Namespace::new()?;
        let link = Link::new(&front)?;
        let front_end = FrontEnd::new()?;
        let backends: Result<Vec<_>> = (0..BACKENDS).map(|_| Backend::new(&link)).collect();
        let backends = backends?;
        let cgroups: Vec<&Cgroup> = backends.iter().map(|backend| &backend.cgroup).collect();
        let responder = Responder::attach(&run.evenkeel, &link, &key, "native", &cgroups);
        let responder = responder.map_err(|error| println!("no responder: {error}"));
        Ok(Stage {
            run,
            seconds: run.scale(2.0, 1.5),
            key,
            responder: responder.ok(),
            backends,
            link,
            front,
            front_end,
            folder,
        })
    }

    /// Returns the arms that cannot be measured on this machine.
    fn lacking(&self, arms: &[Arm], cells: &[Cell]) -> Vec<Arm> {
        let mut lacking = Vec::new();
        for arm in arms {
            let lacks = match arm.known {
                Known::No => Ok(()),
                Known::Kernel if self.responder.is_some() => Ok(()),
                Known::Kernel => Err("no responder in the kernel".to_owned()),
                Known::Ulm => match cells.first() {
                    Some(cell) => self.helpers(cell.interval).map(drop),
                    None => Ok(()),
                }
                .map_err(|error| error.to_string()),
            };
            if let Err(error) = lacks {
                println!("without {}: {error}", arm.name);
                lacking.push(*arm);
            }
        }
        lacking
    }

    /// A turn of an arm. The same turn has the same requests for all arms.
    fn play(&self, arm: Arm, cell: &Cell, turn: u64) -> Result<Turn> {
        for (index, backend) in self.backends.iter().enumerate() {
            backend.load(index < cell.loaded);
        }
        let helpers = match arm.known {
            Known::Ulm => self.helpers(cell.interval)?,
            _ => Vec::new(),
        };
        let (balancer, addresses) = self.balancer(arm, cell)?;
        let begin = clock::monotonic_nanos() + WARM_UP;
        let end = begin + (self.seconds * 1e9) as u64;
        let sites: Vec<Site> = cell
            .sites
            .iter()
            .zip(addresses)
            .enumerate()
            .map(|(name, (&(alpha, arrivals), address))| Site {
                address,
                name,
                alpha,
                documents: DOCUMENTS,
                arrivals,
                seed: 1000 * turn + 100 * name as u64,
            })
            .collect();
        let stop = AtomicBool::new(false);
        let (seen, variance) = std::thread::scope(|scope| -> Result<(Vec<Seen>, f64)> {
            let sampler = scope.spawn(|| self.variance(begin, end));
            if cell.changes {
                scope.spawn(|| self.change(cell.loaded, turn, &stop));
            }
            let asked = self.front.run_inside(|| {
                std::thread::scope(|scope| {
                    let asking: Vec<_> = sites
                        .iter()
                        .map(|site| scope.spawn(|| site.run(begin, end)))
                        .collect();
                    let seen = asking.into_iter().map(|site| match site.join() {
                        Ok(seen) => Ok(seen?),
                        Err(_) => Err("a client has panicked".into()),
                    });
                    seen.collect::<Result<Vec<Seen>>>()
                })
            });
            stop.store(true, Ordering::Relaxed);
            let variance = sampler.join().map_err(|_| "a thread has panicked")?;
            Ok((asked?, variance))
        })?;
        drop((balancer, helpers));
        let mut all = Seen::default();
        seen.iter().for_each(|site| all.add(site));
        if all.requests == 0 {
            return Err("nothing was answered".into());
        }
        let rates = seen.iter().map(|site| site.requests as f64 / self.seconds);
        Ok(Turn {
            throughput: rates.collect(),
            seen: all,
            variance,
        })
    }

    /// ULM's helpers, each in the cgroup of its back-end.
    fn helpers(&self, interval: Duration) -> Result<Vec<Process>> {
        let mut helpers = Vec::new();
        for (index, backend) in self.backends.iter().enumerate() {
            let page = self.page(index);
            let _ = fs::remove_file(&page);
            let words = ground::page_arguments(&page, interval, Some(&backend.cgroup));
            helpers.push(ground::start_serve(
                self.run,
                &words,
                Scheduling::default(),
            )?);
        }
        for (index, backend) in self.backends.iter().enumerate() {
            super::ask::Page::open(&self.page(index))?;
            // The helper has started at full speed; from here on it must be scheduled in the cgroup.
            backend.cgroup.add_process(helpers[index].id())?;
        }
        Ok(helpers)
    }

    fn page(&self, index: usize) -> PathBuf {
        self.folder.join(&format!("page{index}"))
    }

    /// Starts the balancer at the front-end; gives the address of each site.
    fn balancer(&self, arm: Arm, cell: &Cell) -> Result<(Process, Vec<SocketAddr>)> {
        let mut config = String::from("workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n");
        let Arm { strategy, load, .. } = arm;
        for site in 0..cell.sites.len() {
            writeln!(
                config,
                "[rule.site{site}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"http\"\n\
                 group = \"site{site}\"\n[group.site{site}]\nstrategy = \"{strategy}\"\n\
                 load = \"{load}\"\nslow_start = \"0s\"\nmembers = ["
            )?;
            for (index, backend) in self.backends.iter().enumerate() {
                let address = backend.address;
                writeln!(
                    config,
                    "  {{ address = \"{address}\", location = \"b{index}\" }},"
                )?;
            }
            config.push_str("]\n");
        }
        let interval = format!("interval = \"{}ms\"", cell.interval.as_millis());
        for index in 0..self.backends.len() {
            match arm.known {
                Known::No => {}
                Known::Ulm => writeln!(
                    config,
                    "[location.b{index}.monitor]\ntype = \"ulm\"\npath = {:?}\n{interval}",
                    self.page(index)
                )?,
                Known::Kernel => writeln!(
                    config,
                    "[location.b{index}.monitor]\ntype = \"kernel\"\nkey_file = {:?}\n\
                     address = \"{}\"\ntarget = {}\n{interval}",
                    self.key,
                    self.link.back,
                    index + 1
                )?,
            }
        }
        let file = self.folder.join("evenkeel.toml");
        fs::write(&file, config)?;
        let log = self.folder.join("log");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.front.path().display()));
        command.arg(&self.run.evenkeel).arg("run").arg(&file);
        command.env_remove("RUST_LOG").stdin(Stdio::null());
        command
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log)?);
        let how = Scheduling {
            cgroup: Some(&self.front_end.0),
            ..Scheduling::default()
        };
        let mut balancer = Process::start(command, how)?;
        let stdout = balancer.stdout().ok_or("no standard output")?;
        let mut addresses = Vec::new();
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["ready"] => return Ok((balancer, addresses)),
                ["listening:", "rule", _, "on", at] => addresses.push(at.parse()?),
                _ => {}
            }
        }
        let said = fs::read_to_string(&log).unwrap_or_default();
        Err(format!("evenkeel run does not start: {}", said.trim()).into())
    }

    /// Lets the other work of the first back-ends come and go.
    fn change(&self, loaded: usize, turn: u64, stop: &AtomicBool) {
        const MEAN: f64 = 500e6;
        let mut rng = fastrand::Rng::with_seed(turn);
        let mut gap = move || -(1.0 - rng.f64()).ln() * MEAN;
        let start = clock::monotonic_nanos();
        let mut changes: Vec<(u64, bool)> =
            (0..loaded).map(|_| (start + gap() as u64, true)).collect();
        while !stop.load(Ordering::Relaxed) {
            let now = clock::monotonic_nanos();
            for (index, (at, is_loaded)) in changes.iter_mut().enumerate() {
                if *at <= now {
                    *is_loaded = !*is_loaded;
                    self.backends[index].load(*is_loaded);
                    *at = now + gap() as u64;
                }
            }
            clock::sleep_until(now + 5_000_000);
        }
    }

    /// The mean variance between back-ends of the share of their CPU that they have used in
    /// 50 ms.
    fn variance(&self, begin: u64, end: u64) -> f64 {
        // Late samples are as good, since the time between them is measured.
        let _ = clock::be_first(70);
        let share = QUOTA.as_secs_f64() / PERIOD.as_secs_f64();
        let read = || {
            let used = self.backends.iter().map(|backend| backend.clocks.total());
            (clock::monotonic_nanos(), used.collect::<Vec<_>>())
        };
        clock::sleep_until(begin);
        let mut before = read();
        let mut variances = Vec::new();
        while before.0 < end {
            clock::sleep_until(before.0 + 50_000_000);
            let now = read();
            let elapsed = (now.0 - before.0) as f64;
            let shares = now.1.iter().zip(&before.1);
            let shares: Vec<f64> = shares
                .map(|(now, then)| (now - then) as f64 / elapsed / share)
                .collect();
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            let squares = shares.iter().map(|share| (share - mean).powi(2));
            variances.push(squares.sum::<f64>() / shares.len() as f64);
            before = now;
        }
        variances.iter().sum::<f64>() / variances.len().max(1) as f64
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // Processes need CPU time to end, and must not be stopped.
        let _ = self.cgroup.set_quota(PERIOD, PERIOD);
        self.load(true);
        self.server.signal(libc::SIGKILL);
    }
}

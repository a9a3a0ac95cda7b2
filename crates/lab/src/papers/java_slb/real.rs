//! The paper's test with real programs: Evenkeel in front of four servers, ten clients, and meters of CPU and
//! memory.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_sim::svg::{Line, Plot, Scale};

use super::clients::Client;
use super::measured::{
    ALGORITHMS, FTP, HTTP, LEAST, Played, ROUND_ROBIN, SERVERS, Service, Values, is_least, mean,
    order_text, over_time, ranks, record_findings, values, values_of,
};
use super::site::{FTP_FILES, FTP_MEGABYTES, SITE_FILES, site};
use crate::findings::{Cell, Chart, Findings, Table};
use crate::machine::Need;
use crate::product;
use crate::programs::{Folder, Meter, Process};
use crate::run::Run;

/// Requirements of the real run.
pub(super) const NEEDS: &[Need] = &[
    Need::Root,
    Need::Product,
    Need::Program("nginx", "nginx"),
    Need::Program("vsftpd", "vsftpd"),
    Need::Program("setpriv", "util-linux"),
    Need::Quiet(0.5),
];

/// Longest time until a program has started.
const START: Duration = Duration::from_secs(20);

/// Time after their start from which programs are measured.
const SETTLE: Duration = Duration::from_secs(1);

/// Pieces in which clients of FTP read: as `clients` has it.
const PIECE: f64 = 65_536.0;

/// Sizes of a run.
#[derive(Clone, Copy)]
struct Plan {
    /// Factor by which crawls and sessions are shorter than the paper's, at the same rate.
    shorter: usize,
    /// Time that each algorithm runs with each service in a round.
    length: Duration,
}

/// Figures of one algorithm with one service in a round.
#[derive(Clone, Default)]
struct Machines {
    played: Played,
    /// Memory of each server, and of the balancer, in kB, at each sample; the first one is before the first
    /// client.
    memory: Vec<Vec<f64>>,
    balancer_memory: Vec<f64>,
    /// CPU of the balancer at each sample, in % of one CPU.
    balancer_cpu: Vec<f64>,
}

/// Returns by how much a memory has grown since the start, at most.
fn growth(samples: impl Iterator<Item = f64> + Clone) -> f64 {
    let first = samples.clone().next().unwrap_or(0.0);
    samples.fold(0.0, |most, value| f64::max(most, value - first))
}

/// Returns by how much a memory is larger in the second half than in the first one, on average.
fn later(samples: &[f64]) -> f64 {
    let (first, second) = samples.split_at(samples.len() / 2);
    mean(second.iter().copied()) - mean(first.iter().copied())
}

impl Machines {
    fn server_memory(&self, server: usize) -> impl Iterator<Item = f64> + Clone + '_ {
        self.memory
            .iter()
            .filter_map(move |servers| servers.get(server))
            .copied()
    }

    fn balancer_load(&self) -> f64 {
        mean(self.balancer_cpu.iter().copied())
    }

    fn balancer_growth(&self) -> f64 {
        growth(self.balancer_memory.iter().copied())
    }

    fn server_load(&self) -> f64 {
        mean(self.played.cpu.iter().flatten().copied())
    }

    /// Growth of the servers' memory, on average.
    fn server_growth(&self) -> f64 {
        mean((0..SERVERS).map(|server| growth(self.server_memory(server))))
    }

    fn server_later(&self) -> f64 {
        let sums: Vec<f64> = self
            .memory
            .iter()
            .map(|servers| servers.iter().sum())
            .collect();
        later(&sums) / SERVERS as f64
    }
}

/// All of it.
pub(super) fn run(run: &Run<'_>) -> Result<Findings, String> {
    let plan = Plan {
        shorter: run.by_scale(10, 100),
        length: Duration::from_secs(run.by_scale(42, 6)),
    };
    let folder = Folder::new("slb")?;
    lay_out(&folder, &plan)?;
    let round = |round: usize| {
        let mut arms = [HTTP, FTP].map(|service| (service, Vec::new()));
        for (service, arms) in &mut arms {
            for (_, strategy) in ALGORITHMS {
                arms.push(one(&folder, service, strategy, round, &plan)?);
            }
        }
        Ok(arms.map(|(_, arms)| arms))
    };
    let found = |rounds: &[[Vec<Machines>; 2]]| {
        let arms = |service: usize| -> Vec<Vec<Machines>> {
            let arm = |arm: usize| rounds.iter().map(move |round| round[service][arm].clone());
            (0..ALGORITHMS.len()).map(|at| arm(at).collect()).collect()
        };
        findings(&arms(0), &arms(1), &plan)
    };
    run.repeat_rounds(run.by_scale(4, 3), round, found)
}

/// Makes the site, and the files of FTP. They are holes: nothing of them takes room.
fn lay_out(folder: &Folder, plan: &Plan) -> Result<(), String> {
    folder.make("site")?;
    for (number, size) in site(SITE_FILES).into_iter().enumerate() {
        folder.make_sparse_file(&format!("site/{number}"), size)?;
    }
    folder.make("ftp")?;
    folder.make("empty")?;
    for (number, size) in ftp_files(plan.shorter).into_iter().enumerate() {
        folder.make_sparse_file(&format!("ftp/{number}"), size)?;
    }
    Ok(())
}

/// Ten sizes, from one part to ten parts.
fn ftp_files(shorter: usize) -> Vec<u64> {
    let bytes = FTP_MEGABYTES as u64 * 1_000_000 / shorter as u64;
    let parts = (1..=FTP_FILES as u64).sum::<u64>();
    (1..=FTP_FILES as u64)
        .map(|part| bytes * part / parts)
        .collect()
}

/// Runs one algorithm with one service: all programs are new ones.
fn one(
    folder: &Folder,
    service: &Service,
    strategy: &str,
    round: usize,
    plan: &Plan,
) -> Result<Machines, String> {
    let is_http = service.name == "HTTP";
    let addresses = free(SERVERS + 1)?;
    let (balancer, servers) = addresses.split_first().ok_or("no addresses")?;
    let mut processes = Vec::new();
    for (index, address) in servers.iter().enumerate() {
        let process = match is_http {
            true => nginx(folder, index, *address)?,
            false => vsftpd(folder, index, *address)?,
        };
        processes.push(process);
    }
    for (process, address) in processes.iter_mut().zip(servers) {
        await_listener(process, *address)?;
    }
    let mut evenkeel = evenkeel(folder, is_http, strategy, (*balancer, servers))?;
    await_listener(&mut evenkeel, *balancer)?;
    // What they still do of their start is none of the clients'.
    std::thread::sleep(SETTLE);

    let mut machines = Machines::default();
    let begun = Instant::now();
    let until = begun + plan.length;
    let mut meters: Vec<Meter> = processes
        .iter()
        .map(|process| Meter::new(process.id()))
        .collect();
    let mut own = Meter::new(evenkeel.id());
    machines.note_memory(&meters, &own);
    let sessions = std::thread::scope(|scope| {
        let client = |number: usize| {
            let client = Client {
                // Other ones in each round, as it depends on them where a hash sends them.
                from: Ipv4Addr::new(127, 0, 1 + (round % 254) as u8, 11 + number as u8),
                to: *balancer,
                until,
            };
            let published = service
                .clients
                .get(number)
                .map_or(0.0, |client| client[ROUND_ROBIN]);
            scope.spawn(move || sessions(client, number, published, is_http, plan))
        };
        let running: Vec<_> = (0..service.clients.len()).map(client).collect();
        let second = Duration::from_secs(1);
        let mut next = begun + second;
        while next <= until && !running.iter().any(|client| client.is_finished()) {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let servers = meters.iter_mut().map(Meter::cpu);
            machines.played.cpu.push(servers.collect());
            machines.balancer_cpu.push(own.cpu());
            machines.note_memory(&meters, &own);
            next += second;
        }
        let ended = running.into_iter().map(|client| {
            let ended = client.join();
            ended.unwrap_or_else(|_| Err("a client has failed".into()))
        });
        ended.collect::<Result<Vec<_>, String>>()
    })?;
    machines.played.every = 1.0;
    machines.played.sessions = sessions;
    for process in processes.iter_mut().chain([&mut evenkeel]) {
        process.lives()?;
    }
    if machines.played.sessions.iter().any(Vec::is_empty) {
        return Err(format!(
            "{strategy}: a client has not ended a single {} session: the machine is too slow or too busy",
            service.name
        ));
    }
    Ok(machines)
}

impl Machines {
    fn note_memory(&mut self, servers: &[Meter], own: &Meter) {
        self.memory
            .push(servers.iter().map(Meter::memory).collect());
        self.balancer_memory.push(own.memory());
    }
}

/// A client's crawls or sessions, one after the other, and how long each took, at the paper's scale.
fn sessions(
    client: Client,
    number: usize,
    published: f64,
    is_http: bool,
    plan: &Plan,
) -> Result<Vec<f64>, String> {
    let (mut took, mut part) = (Vec::new(), number);
    let site: Vec<(usize, u64)> = site(SITE_FILES).into_iter().enumerate().collect();
    let files = ftp_files(plan.shorter);
    let per_piece = published * PIECE / (FTP_MEGABYTES as f64 * 1e6);
    loop {
        let ended = if is_http {
            let of = site.iter().skip(part % plan.shorter).step_by(plan.shorter);
            let of: Vec<_> = of.copied().collect();
            let pace = Duration::from_secs_f64(published / SITE_FILES as f64);
            client.crawl(&of, pace)?
        } else {
            client.run_ftp_session(&files, Duration::from_secs_f64(per_piece))?
        };
        let Some(ended) = ended else {
            return Ok(took);
        };
        took.push(ended.as_secs_f64() * plan.shorter as f64);
        part += 1;
    }
}

/// Returns `count` addresses at which no program listens.
fn free(count: usize) -> Result<Vec<SocketAddr>, String> {
    let bound = (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let bound: Vec<TcpListener> = bound
        .collect::<Result<_, _>>()
        .map_err(|error| format!("there is no free port: {error}"))?;
    let addresses = bound.iter().map(TcpListener::local_addr);
    addresses
        .collect::<Result<_, _>>()
        .map_err(|error| format!("there is no free port: {error}"))
}

fn await_listener(process: &mut Process, address: SocketAddr) -> Result<(), String> {
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        process.lives()?;
        if begun.elapsed() > START {
            return Err(format!("{}: does not listen at {address}", process.name()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn nginx(folder: &Folder, index: usize, address: SocketAddr) -> Result<Process, String> {
    let root = folder.path().display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {root}/nginx{index}-{what};"))
        .concat();
    let config = format!(
        "daemon off; worker_processes 1; user nobody nogroup; pid {root}/nginx{index}.pid; error_log stderr warn;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; sendfile on; {temporary} server {{ listen {address}; root {root}/site; }} }}\n"
    );
    let file = folder.write(&format!("nginx{index}.conf"), &config)?;
    let name = format!("nginx{index}");
    let arguments = [
        "-c".as_ref(),
        file.as_os_str(),
        "-e".as_ref(),
        "stderr".as_ref(),
    ];
    Process::start(folder, &name, Path::new("nginx"), &arguments)
}

fn vsftpd(folder: &Folder, index: usize, address: SocketAddr) -> Result<Process, String> {
    let (root, ip, port) = (folder.path().display(), address.ip(), address.port());
    let config = format!(
        "listen=YES\nlisten_address={ip}\nlisten_port={port}\nbackground=NO\nanonymous_enable=YES\n\
         local_enable=NO\nanon_root={root}/ftp\nftp_username=daemon\nnopriv_user=nobody\n\
         secure_chroot_dir={root}/empty\nseccomp_sandbox=NO\nconnect_from_port_20=NO\nxferlog_enable=NO\n"
    );
    let file = folder.write(&format!("vsftpd{index}.conf"), &config)?;
    let name = format!("vsftpd{index}");
    Process::start(folder, &name, Path::new("vsftpd"), &[file.as_os_str()])
}

/// Evenkeel with the rule of a service.
fn evenkeel(
    folder: &Folder,
    is_http: bool,
    strategy: &str,
    (address, servers): (SocketAddr, &[SocketAddr]),
) -> Result<Process, String> {
    let protocol = if is_http { "tcp" } else { "ftp" };
    // Without a bound, as in the paper.
    let bound = if strategy == "source_ip_hash" {
        ", bound = 0"
    } else {
        ""
    };
    let strategy = format!("{{ name = \"{strategy}\"{bound} }}");
    let members: Vec<String> = servers
        .iter()
        .map(|server| format!("\"{server}\""))
        .collect();
    let members = members.join(", ");
    let config = format!(
        "[rule.slb]\nlisten = \"{address}\"\nprotocol = \"{protocol}\"\nstrategy = {strategy}\n\
         members = [{members}]\n"
    );
    let file = folder.write("evenkeel.toml", &config)?;
    let program = product::find()?;
    Process::start(
        folder,
        "evenkeel",
        &program,
        &["run".as_ref(), file.as_os_str()],
    )
}

fn findings(http: &[Vec<Machines>], ftp: &[Vec<Machines>], plan: &Plan) -> Findings {
    let mut findings = Findings::default();
    for (service, arms) in [(&HTTP, http), (&FTP, ftp)] {
        let played = |arm: &Vec<Machines>| arm.iter().map(|run| run.played.clone()).collect();
        record_findings(
            service,
            &arms.iter().map(played).collect::<Vec<_>>(),
            &mut findings,
        );
    }
    let largest = |values: &Values| {
        values
            .iter()
            .map(|all| all.iter().copied().fold(0.0, f64::max))
            .collect()
    };
    let least = |values: &Values| {
        let least = |all: &[f64; 4]| all.iter().copied().fold(f64::INFINITY, f64::min);
        values.iter().map(least).collect::<Vec<f64>>()
    };
    let average = |values: &Values| {
        values
            .iter()
            .map(|all| mean(all.iter().copied()))
            .collect::<Vec<f64>>()
    };
    let load = [http, ftp].map(|arms| values(arms, Machines::balancer_load));
    let grown = [http, ftp].map(|arms| values(arms, Machines::balancer_growth));
    let servers = [http, ftp].map(|arms| values(arms, Machines::server_growth));
    findings.add_measured("balancer-http-cpu", largest(&load[0]));
    findings.add_measured("balancer-ftp-cpu", least(&load[1]));
    let more = average(&load[1]).into_iter().zip(average(&load[0]));
    findings.add_measured(
        "balancer-ftp-more",
        more.map(|(ftp, http)| ftp - http).collect(),
    );
    findings.add_measured(
        "servers-http-cpu",
        largest(&values(http, Machines::server_load)),
    );
    let later_of = |run: &Machines| later(&run.balancer_memory);
    findings.add_measured("balancer-anonymous-grows", average(&values(http, later_of)));
    findings.add_measured(
        "balancer-http-anonymous-rank",
        is_least(&grown[0], ROUND_ROBIN),
    );
    findings.add_measured("balancer-ftp-anonymous-rank", is_least(&grown[1], LEAST));
    findings.add_measured(
        "servers-anonymous-grows",
        average(&values(http, Machines::server_later)),
    );

    findings.tables.push(balancer(&load, &grown));
    findings
        .tables
        .push(server_memory("http-server-memory", &HTTP, http));
    findings
        .tables
        .push(server_memory("ftp-server-memory", &FTP, ftp));
    findings.tables.push(ranks(
        "memory-ranks",
        "Memory",
        &[
            ("HTTP, balancer", "RR, LC, RD, HIP", order_text(&grown[0])),
            ("HTTP, servers", "RD, RR, LC, HIP", order_text(&servers[0])),
            ("FTP, balancer", "LC, HIP, RR, RD", order_text(&grown[1])),
            ("FTP, servers", "LC, HIP, RR, RD", order_text(&servers[1])),
        ],
    ));
    for (name, title, arms, of) in [
        (
            "http-balancer-cpu",
            "HTTP: CPU of the balancer (figure 4)",
            http,
            true,
        ),
        (
            "http-balancer-memory",
            "HTTP: memory of the balancer (figure 5)",
            http,
            false,
        ),
        (
            "ftp-balancer-cpu",
            "FTP: CPU of the balancer (no figure there)",
            ftp,
            true,
        ),
        (
            "ftp-balancer-memory",
            "FTP: memory of the balancer (no figure there)",
            ftp,
            false,
        ),
    ] {
        let published = match name.starts_with("http") {
            true => ("published: less than 10 %", 10.0),
            false => ("published: more than 30 %", 30.0),
        };
        let published = of.then_some(published);
        findings
            .charts
            .push(balancer_chart(name, title, arms, of, published));
    }
    let names = [
        "http-memory-rr",
        "http-memory-hip",
        "http-memory-lc",
        "http-memory-rd",
    ];
    for (arm, (name, figure)) in http.iter().zip(names.into_iter().zip(7..)) {
        let Some(run) = arm.first() else { continue };
        let algorithm = ALGORITHMS
            .get(figure - 7)
            .map_or("", |(algorithm, _)| algorithm);
        findings.charts.push(Chart {
            name,
            title: format!("HTTP servers: memory with {algorithm} (figure {figure})"),
            plot: closer(over_time(
                "kB",
                run.memory.get(1..).unwrap_or_default(),
                1.0,
            )),
        });
    }
    let rounds = http.first().map_or(0, Vec::len);
    findings.notes.push(format!(
        "{rounds} rounds; in each, every algorithm ran for {} s with each service. Crawls and sessions are {} times \
         shorter than the paper's, at the same rate, and times are given at the paper's scale.",
        plan.length.as_secs(),
        plan.shorter
    ));
    findings.notes.push(
        "At these rates HTTP takes the balancer more CPU than FTP, where the paper has it the other way round: HTTP is 280 \
         connections per second here, and FTP ten connections at a time, whose bytes the kernel moves without a copy. So \
         the paper's 30 % for FTP are those of its program and machine."
            .into(),
    );
    if cfg!(debug_assertions) {
        findings.notes.push(
            "**This was a debug build**, whose balancer takes several times the CPU of a release build.".into(),
        );
    }
    findings
}

fn balancer(load: &[Values; 2], grown: &[Values; 2]) -> Table {
    let row = |(arm, (name, _)): (usize, &(&str, &str))| {
        let cell = |values: &Values| Cell::from(&values_of(values, arm)[..]);
        let cells = [&load[0], &grown[0], &load[1], &grown[1]].map(cell);
        [vec![Cell::from(*name)], cells.to_vec()].concat()
    };
    Table {
        name: "balancer",
        title: "The balancer: CPU, and the most that its memory grew (tables 2 and 8)".into(),
        head: [
            "algorithm",
            "HTTP: CPU (% of one CPU)",
            "HTTP: memory (kB)",
            "FTP: CPU (% of one CPU)",
            "FTP: memory (kB)",
        ]
        .map(String::from)
        .to_vec(),
        rows: ALGORITHMS.iter().enumerate().map(row).collect(),
    }
}

/// Tables 3 to 6.
fn server_memory(name: &'static str, service: &Service, arms: &[Vec<Machines>]) -> Table {
    // Of table 5 no value is in our copy of the text.
    let published = [
        "3200, 3500, 2800, 2700",
        "500, 2600, 2400, 1100",
        "-",
        "N.A., 1800, 1250, 1300 (heads and values in other orders)",
    ];
    let mut head = vec![String::from("algorithm")];
    if service.name == "HTTP" {
        head.push("published (kB; tables 3 to 6)".into());
    }
    head.extend((1..=SERVERS).map(|server| format!("server {server} (kB)")));
    let row = |(arm, (algorithm, _)): (usize, &(&str, &str))| {
        let mut cells = vec![Cell::from(*algorithm)];
        if service.name == "HTTP" {
            cells.extend(published.get(arm).map(|text| Cell::from(*text)));
        }
        for server in 0..SERVERS {
            let runs = arms.get(arm).into_iter().flatten();
            let grown = runs.map(|run| growth(run.server_memory(server)));
            cells.push(Cell::from(&grown.collect::<Vec<_>>()[..]));
        }
        cells
    };
    Table {
        name,
        title: format!("{} servers: the most that their memory grew", service.name),
        head,
        rows: ALGORITHMS.iter().enumerate().map(row).collect(),
    }
}

/// A plot of memory, which grows by little.
fn closer(plot: Plot) -> Plot {
    Plot {
        scales: (Scale::FromZero, Scale::Even),
        ..plot
    }
}

fn balancer_chart(
    name: &'static str,
    title: &str,
    arms: &[Vec<Machines>],
    is_cpu: bool,
    published: Option<(&str, f64)>,
) -> Chart {
    let line = |(arm, (algorithm, _)): (&Vec<Machines>, &(&str, &str))| {
        let run = arm.first();
        let samples = run.map_or(&[][..], |run| match is_cpu {
            true => &run.balancer_cpu,
            false => &run.balancer_memory,
        });
        Line {
            name: (*algorithm).into(),
            points: samples
                .iter()
                .enumerate()
                .map(|(at, value)| ((at + usize::from(is_cpu)) as f64, *value))
                .collect(),
            ..Default::default()
        }
    };
    let mut lines: Vec<Line> = arms.iter().zip(&ALGORITHMS).map(line).collect();
    if let Some((name, percent)) = published {
        let ends = lines.iter().filter_map(|line| line.points.last());
        let end = ends.map(|(at, _)| *at).fold(0.0, f64::max);
        lines.push(Line {
            name: name.into(),
            points: vec![(0.0, percent), (end, percent)],
            is_published: true,
            ..Line::default()
        });
    }
    let up = if is_cpu { "% of one CPU" } else { "kB" };
    let plot = Plot::over_time(up, lines);
    Chart {
        name,
        title: title.into(),
        plot: if is_cpu { plot } else { closer(plot) },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::papers::find;

    #[test]
    fn each_claim_names_a_figure_that_the_run_makes() {
        let plan = Plan {
            shorter: 10,
            length: Duration::from_secs(42),
        };
        let arms = vec![vec![Machines::default(); 3]; ALGORITHMS.len()];
        let found = findings(&arms, &arms, &plan);
        let made: BTreeSet<&str> = found.values.keys().copied().collect();
        let (_, experiment) = find("slb-machines")[0];
        let claimed = experiment.claims.iter().map(|claim| claim.id.as_str());
        assert_eq!(made, claimed.collect());
    }

    #[test]
    fn sessions_are_as_long_as_they_are_said_to_be() {
        let files = ftp_files(10);
        assert_eq!(files.len(), FTP_FILES);
        let all: u64 = files.iter().sum();
        assert!((39_999_980..=40_000_000).contains(&all), "{all}");
        let site = site(SITE_FILES);
        let all: u64 = site.iter().sum();
        assert!((151_990_000..=152_000_000).contains(&all), "{all}");
        let small = site.iter().filter(|size| **size < 25_000).count();
        assert!(small > SITE_FILES * 3 / 4, "{small}");
    }

    #[test]
    fn memory_counts_from_the_start() {
        assert_eq!(growth([5.0, 9.0, 7.0].into_iter()), 4.0);
        assert_eq!(growth([5.0, 3.0].into_iter()), 0.0);
        assert_eq!(later(&[1.0, 1.0, 3.0, 5.0]), 3.0);
    }
}

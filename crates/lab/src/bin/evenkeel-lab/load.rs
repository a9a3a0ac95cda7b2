//! `evenkeel-lab load`: load for servers and balancers, and how they answer.

use std::fs;
use std::io::{self, IsTerminal, Read, Write, stderr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use evenkeel_command::print_result;
use evenkeel_load::interval_log::{self, IntervalLog};
use evenkeel_load::plan::{PlannedRequest, Scheme, Tcp, Tls, Url, Workload};
use evenkeel_load::stats::{IntervalCounts, Second};
use evenkeel_load::surge::{Pace, Site};
use evenkeel_load::{Plan, compare, report};
use evenkeel_sim::log;

use crate::cli::{ArrivalsName, Load, LoadCommand};

/// For so long, if nothing else ends a run.
const USUAL: Duration = Duration::from_secs(10);
/// Pages of a session of SURGE on average.
const PAGES: f64 = 8.0;
/// Bytes of a file with a run that are read.
const MOST_BYTES: u64 = 1 << 30;
/// Paths that are read of a file.
const MOST_PATHS: usize = 1_000_000;

/// Sends load, or compares results of earlier runs.
pub(crate) fn run(args: &Load) -> Result<(), String> {
    match &args.command {
        Some(LoadCommand::Compare { a, b }) => {
            let names = [a.display().to_string(), b.display().to_string()];
            let text = compare::text(
                names.each_ref().map(String::as_str),
                &read_run(a)?,
                &read_run(b)?,
            );
            return print_result(text);
        }
        Some(LoadCommand::Site {
            folder,
            documents,
            seed,
        }) => return site(folder, *documents, *seed).and_then(print_result),
        None => {}
    }
    let plan = Arc::new(plan(args)?);
    let (logs, hgrms): (Vec<_>, Vec<_>) = args.hdr.iter().partition(|path| is_log(path));
    for path in hgrms.iter().copied().chain(&args.csv).chain(&args.json) {
        let mut options = fs::OpenOptions::new();
        let opened = options.append(true).create(true).open(path);
        opened.map_err(|error| cannot_write(path, &error))?;
    }
    let mut logs = logs
        .into_iter()
        .map(|path| Log::open(path))
        .collect::<Result<Vec<_>, _>>()?;
    let stop = Arc::new(AtomicBool::new(false));
    end_at_signals(&stop)?;
    let is_terminal = stderr().is_terminal();
    let mut show = |second: &Second, counted: &IntervalCounts| {
        for log in &mut logs {
            log.add(&plan, second, counted);
        }
        if !args.quiet {
            let start = if is_terminal { "\r\x1b[2K" } else { "" };
            let end = if is_terminal { "" } else { "\n" };
            // Nobody misses a line that cannot be written.
            let _ = write!(stderr(), "{start}{}{end}", report::format_second(second));
            let _ = stderr().flush();
        }
    };
    let outcome = evenkeel_load::run(&plan, &stop, &mut show)?;
    if is_terminal && !args.quiet {
        let _ = writeln!(stderr());
    }
    let record = report::make_record(&plan, &outcome);
    for log in logs {
        log.end()?;
    }
    for path in hgrms {
        write(path, &report::to_hgrm(&outcome.counted.corrected))?;
    }
    if let Some(path) = &args.csv {
        write(path, &report::to_csv(&record))?;
    }
    if let Some(path) = &args.json {
        write(path, &report::to_json(&record))?;
    }
    print_result(report::text(&record))
}

/// The first signal ends the run early, with its report; a second one ends the process.
fn end_at_signals(stop: &Arc<AtomicBool>) -> Result<(), String> {
    let stop = Arc::clone(stop);
    evenkeel_net::start_thread("signals", move |runtime| {
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                stop.store(true, Ordering::Relaxed);
            }
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(1);
            }
        });
    })
    .map_err(|error| error.to_string())?;
    Ok(())
}

fn plan(args: &Load) -> Result<Plan, String> {
    let url = args.url.as_deref().unwrap_or_default();
    let url = Url::parse(url)?;
    let ask = |path: &str| PlannedRequest {
        method: args.method.clone(),
        path: path.to_owned(),
    };
    let mut workload = Workload::Requests;
    let mut asks = vec![ask(&url.path)];
    if let Some(file) = &args.paths {
        asks = paths(file)?.iter().map(|path| ask(path)).collect();
    } else if !args.files.is_empty() {
        let files = args.files.iter();
        asks = files
            .map(|file| ask(&format!("/{}", file.trim_start_matches('/'))))
            .collect();
    } else if let Some(file) = &args.replay {
        (asks, workload) = replay(args, file)?;
    } else if let Some(documents) = args.surge {
        let folder = url.path.trim_end_matches('/').to_owned();
        let all = (0..documents).map(|number| ask(&format!("{folder}/{number}")));
        asks = all.collect();
        workload = Workload::Surge {
            site: Arc::new(surge_site(documents, args.seed)),
            pace: Pace {
                off: args.pace.clamp(0.0, 1000.0),
                pages: PAGES,
            },
        };
    }
    if !args.files.is_empty() && url.scheme != Scheme::Ftp {
        return Err("--file is for ftp:// only; use --paths".into());
    }
    if let Some(requests) = args.sessions {
        workload = Workload::Sessions {
            requests,
            think: args.think,
        };
    }
    let is_endless = args.requests.is_none() && !matches!(workload, Workload::Replay { .. });
    let body = match (&args.body, args.body_size) {
        (Some(body), _) => body.clone().into_bytes(),
        (None, size) => vec![b'x'; size.unwrap_or(0) as usize],
    };
    Ok(Plan {
        url,
        asks,
        zipf: args.zipf,
        workload,
        threads: args.threads.into(),
        connections: args.connections as usize,
        rate: args.rate,
        constant: args.arrivals == ArrivalsName::Constant,
        duration: args.duration.or(is_endless.then_some(USUAL)),
        requests: args.requests,
        warm_up: args.warm_up,
        timeout: args.timeout,
        seed: args.seed,
        headers: args.headers.clone(),
        body,
        tls: Tls {
            ca: args.ca.clone(),
            insecure: args.insecure,
            server_name: args.server_name.clone(),
        },
        http2: args.http2,
        streams: args.streams.into(),
        tcp: Tcp {
            send: args.send.clone().map(|bytes| bytes.0).unwrap_or_default(),
            receive: args.receive,
            connects: args.connect,
        },
        max_redirects: args.max_redirects,
        negotiate: args.negotiate,
        from: args.from.clone(),
    })
}

fn paths(file: &Path) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(file).map_err(|error| cannot_read(file, &error))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let all: Vec<_> = lines.take(MOST_PATHS + 1).map(str::to_owned).collect();
    if all.len() > MOST_PATHS {
        let file = file.display();
        return Err(format!("{file}: more than {MOST_PATHS} paths; take fewer"));
    }
    Ok(all)
}

/// The requests of a log, and when they are due.
fn replay(args: &Load, file: &Path) -> Result<(Vec<PlannedRequest>, Workload), String> {
    let source = fs::File::open(file).map_err(|error| cannot_read(file, &error))?;
    let format = args.log_format.map(log::Format::from);
    let log = log::read_requests(std::io::BufReader::new(source), format);
    let log = log.map_err(|error| cannot_read(file, &error))?;
    let mut order: Vec<(Duration, u32)> = Vec::new();
    let start = log.entries.first().map_or(0.0, |entry| entry.at);
    for entry in &log.entries {
        if let Some(request) = entry.request {
            let after = (entry.at - start).max(0.0) / 1e3 / args.speed;
            order.push((Duration::from_secs_f64(after), request));
        }
    }
    let asks: Vec<_> = log
        .requests
        .iter()
        .filter_map(|request| request.split_once(' '))
        .map(|(method, path)| PlannedRequest {
            method: method.to_owned(),
            path: path.to_owned(),
        })
        .collect();
    let left_out = log.left_out + log.unreadable + (log.entries.len() - order.len()) as u64;
    if left_out > 0 {
        let file = file.display();
        let _ = writeln!(
            stderr(),
            "{file}: {left_out} of {} lines are left out, as they have no request that can be replayed",
            log.lines
        );
        for line in &log.shown {
            let _ = writeln!(stderr(), "{file}: {line}");
        }
    }
    let workload = Workload::Replay {
        order: order.into(),
    };
    Ok((asks, workload))
}

/// The documents of SURGE: the same ones for the same seed.
fn surge_site(documents: u32, seed: u64) -> Site {
    Site::new(documents as usize, &mut fastrand::Rng::with_seed(seed))
}

fn site(folder: &Path, documents: u32, seed: u64) -> Result<String, String> {
    fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    let site = surge_site(documents, seed);
    let mut bytes = 0u64;
    for number in 0..documents {
        let length = site.length(number as usize);
        let path = folder.join(number.to_string());
        // A file with a hole: it is read as zeros and takes no room.
        let made = fs::File::create(&path).and_then(|file| file.set_len(length));
        made.map_err(|error| cannot_write(&path, &error))?;
        bytes = bytes.saturating_add(length);
    }
    Ok(format!(
        "{}: {documents} documents, {:.1} MB, {} pages\n",
        folder.display(),
        bytes as f64 / 1e6,
        site.pages()
    ))
}

/// An interval log that grows while a run continues, so that the log is there even if the run is cut.
struct Log<'a> {
    path: &'a Path,
    file: fs::File,
    log: Option<IntervalLog>,
    /// The first thing that went wrong.
    failed: Option<io::Error>,
}

fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "hlog")
}

impl<'a> Log<'a> {
    fn open(path: &'a Path) -> Result<Self, String> {
        let file = fs::File::create(path).map_err(|error| cannot_write(path, &error))?;
        Ok(Log {
            path,
            file,
            log: None,
            failed: None,
        })
    }

    fn add(&mut self, plan: &Plan, second: &Second, counted: &IntervalCounts) {
        let end = Duration::from_secs_f64(second.from + second.length);
        let start = || SystemTime::now() - end;
        let log = self
            .log
            .get_or_insert_with(|| IntervalLog::new(plan, start()));
        let written = log.format_second(second, counted);
        let written = written.and_then(|text| self.file.write_all(text.as_bytes()));
        if let Err(error) = written {
            self.failed.get_or_insert(error);
        }
    }

    fn end(self) -> Result<(), String> {
        match self.failed {
            Some(error) => Err(cannot_write(self.path, &error)),
            None => Ok(()),
        }
    }
}

/// Reads a run, from either of the files that have its seconds.
fn read_run(path: &Path) -> Result<compare::Run, String> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|error| cannot_read(path, &error))?;
    let read = file.take(MOST_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| cannot_read(path, &error))?;
    let run = match bytes.trim_ascii_start().first() {
        _ if bytes.len() as u64 > MOST_BYTES => Err("the file is longer than 1 GiB".to_owned()),
        Some(b'{') => std::str::from_utf8(&bytes)
            .map_err(|error| error.to_string())
            .and_then(report::read)
            .map(compare::Run::from),
        Some(_) if bytes.trim_ascii_start().starts_with(b"Value ") => {
            Err("a percentile distribution (.hgrm) has no seconds to compare".to_owned())
        }
        _ => interval_log::read(&bytes),
    };
    run.map_err(|error| {
        let path = path.display();
        format!(
            "{path}: {error}; `evenkeel-lab load compare` reads what `evenkeel-lab load --json FILE` and \
             `--hdr FILE.hlog` write"
        )
    })
}

fn cannot_read(path: &Path, error: &std::io::Error) -> String {
    format!("{}: cannot be read: {error}", path.display())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> String {
    format!("{}: cannot be written: {error}", path.display())
}

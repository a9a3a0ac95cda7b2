//! Time from a query to its answer.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use evenkeel_bench::report::quantile;
use evenkeel_kernel::query::{DEFAULT_PORT, Key};
use evenkeel_sim::svg::{Line, Plot};

use super::ask::Asker;
use super::ground::{self, Cgroup, Folder, Link, Namespace, Process, Responder, Scheduling};
use super::table::{Table, Verdict};
use super::{Result, Run, clock};

/// Priority of helpers with a real-time class; that of the front-end is higher.
const FIFO: i32 = 50;

/// A responder of some kind.
struct Arm {
    name: &'static str,
    asker: Asker,
    /// Nanoseconds that answers took: idle, busy.
    took: [Vec<u64>; 2],
    lost: [u64; 2],
}

/// Starts a responder in a process; the returned process keeps it running.
fn user(
    run: &Run,
    link: &Link,
    port: u16,
    key: &Path,
    more: &[&str],
    how: Scheduling<'_>,
) -> Result<Process> {
    let mut words = ground::respond_arguments(link, port, key);
    words.extend(more.iter().map(|&word| word.to_owned()));
    ground::start_serve(run, &words, how)
}

/// Starts all arms, asks them in turns, idle and busy.
pub(crate) fn measure(run: &Run) -> Result<Vec<Verdict>> {
    let (first, last) = ground::first_and_last()?;
    let folder = Folder::new()?;
    let (file, key) = folder.make_key()?;
    // The busy processes and helpers beside them; autogroups would separate them otherwise.
    let crowd = Cgroup::new()?;
    let alone = Cgroup::new()?;
    let front = Namespace::new()?;
    let [native, generic, plain] = [Link::new(&front)?, Link::new(&front)?, Link::new(&front)?];
    generic.steer_packets(last)?;
    let mut arms = Vec::new();
    let mut arm = |name, link: &Link, port, key: &Key| -> Result<()> {
        let mut asker = Asker::new(link, port, key, 0)?;
        asker.wait_for_answer(name)?;
        arms.push(Arm {
            name,
            asker,
            took: Default::default(),
            lost: [0; 2],
        });
        Ok(())
    };

    let mut responders = Vec::new();
    for (name, link, mode) in [
        ("XDP native", &native, "native"),
        ("XDP generic, other CPU", &generic, "generic"),
    ] {
        // A driver may lack the one, a kernel the other: the others are measured.
        match Responder::attach(&run.evenkeel, link, &file, mode, &[]) {
            Ok(responder) => {
                responders.push(responder);
                arm(name, link, DEFAULT_PORT, &key)?;
            }
            Err(error) => println!("{name} is missing: {error}"),
        }
    }
    let among = Scheduling {
        cgroup: Some(&crowd),
        cpu: Some(last),
        nice: 0,
    };
    let fifo = FIFO.to_string();
    let kinds: [(&str, &[&str], Scheduling<'_>); 4] = [
        ("user process", &[], among),
        (
            "user process, nice -20",
            &[],
            Scheduling { nice: -20, ..among },
        ),
        (
            "user process, own cgroup",
            &[],
            Scheduling {
                cgroup: Some(&alone),
                ..among
            },
        ),
        (
            "user process, SCHED_FIFO",
            &["--fifo", &fifo],
            Scheduling {
                cgroup: None,
                ..among
            },
        ),
    ];
    let mut helpers = Vec::new();
    for (index, (name, more, how)) in kinds.into_iter().enumerate() {
        let port = DEFAULT_PORT + 1 + index as u16;
        helpers.push(user(run, &plain, port, &file, more, how)?);
        if let Err(error) = arm(name, &plain, port, &key) {
            println!("{name} is missing: {error}");
            helpers.pop();
        }
    }

    let queries = run.scale(5000, 1000);
    const TURN: usize = 250;
    for busy in [false, true] {
        let crowd = if busy {
            ground::start_busy_processes(Some(&crowd))?
        } else {
            Vec::new()
        };
        std::thread::sleep(Duration::from_millis(500));
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&mut arms, first, queries, TURN, busy));
            asking.join().map_err(|_| "a thread has panicked")?
        })?;
        drop(crowd);
    }
    if helpers.iter_mut().any(Process::has_ended) {
        return Err("a helper has ended".into());
    }
    report(run, &arms)
}

/// All arms in turns, from a thread that nothing keeps waiting.
fn ask(
    arms: &mut [Arm],
    cpu: usize,
    queries: usize,
    turn: usize,
    busy: bool,
) -> std::result::Result<(), String> {
    evenkeel_bench::server::pin_to(cpu).map_err(|error| error.to_string())?;
    clock::be_first(60).map_err(|error| error.to_string())?;
    let mut rng = fastrand::Rng::new();
    for round in 0..queries / turn {
        let mut order: Vec<usize> = (0..arms.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let arm = &mut arms[index];
            for _ in 0..turn {
                // At no fixed distance from the ticks of the clock.
                clock::sleep_until(clock::monotonic_nanos() + rng.u64(300_000..1_500_000));
                match arm.asker.query_loads() {
                    Some((took, _)) => arm.took[usize::from(busy)].push(took),
                    None => arm.lost[usize::from(busy)] += 1,
                }
            }
        }
    }
    Ok(())
}

fn report(run: &Run, arms: &[Arm]) -> Result<Vec<Verdict>> {
    let mut csv = String::from("load,arm,queries,lost,p50_us,p99_us,max_us\n");
    let mut table = Table::new(&[
        "responder",
        "idle p50 / p99 / max, us",
        "busy p50 / p99 / max, us",
        "lost",
    ]);
    let mut busy_p99 = Vec::new();
    let mut lines = Vec::new();
    for arm in arms {
        let mut cells = Vec::new();
        for (busy, load) in ["idle", "busy"].into_iter().enumerate() {
            let mut took = arm.took[busy].clone();
            took.sort_unstable();
            let micros = took.iter().map(|nanos| *nanos as f64 / 1e3);
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(micros.clone(), share));
            writeln!(
                csv,
                "{load},\"{}\",{},{},{p50:.1},{p99:.1},{max:.1}",
                arm.name,
                took.len(),
                arm.lost[busy]
            )?;
            cells.push(format!("{p50:.0} / {p99:.0} / {max:.0}"));
            if busy == 1 {
                busy_p99.push((arm.name, p99));
                let point = |share: f64| {
                    let index = (share * took.len().saturating_sub(1) as f64) as usize;
                    let nanos = took.get(index).copied().unwrap_or(1).max(1);
                    // Decades to the right: 0 is a microsecond.
                    ((nanos as f64 / 1e3).log10().max(0.0), 100.0 * share)
                };
                let points = (0..=200).map(|step| point(f64::from(step) / 200.0));
                lines.push(Line::new(arm.name, points.collect()));
            }
        }
        let [idle, busy] = cells.as_slice() else {
            continue;
        };
        let lost = arm.lost.iter().sum::<u64>();
        table.add_row([
            arm.name.into(),
            idle.clone(),
            busy.clone(),
            lost.to_string(),
        ]);
    }
    run.write("latency.csv", &csv)?;
    run.write("latency.md", table.text())?;
    println!("{}", table.text());
    let plot = Plot::from_zero(
        "log10 of microseconds",
        "% of the answers that came within",
        lines,
    );
    run.write(
        "latency.svg",
        &plot.file("Answers beside 16 busy processes"),
    )?;

    let p99 = |name: &str| {
        let found = busy_p99.iter().find(|(known, _)| *known == name);
        found.map(|(_, p99)| *p99)
    };
    let (Some(user), Some(fifo)) = (p99("user process"), p99("user process, SCHED_FIFO")) else {
        return Err("no helper was measured".into());
    };
    let mut verdicts = Vec::new();
    for name in ["XDP native", "XDP generic, other CPU"] {
        let tenth = format!("{name}: p99 under saturation at most 1/10 of a user process's");
        let rival = format!("{name}: p99 under saturation no worse than with SCHED_FIFO");
        let Some(kernel) = p99(name) else {
            let why = "not attached".to_owned();
            verdicts.push(Verdict::not_measured("latency", &tenth, why));
            continue;
        };
        let seen = format!("{kernel:.0} us to {user:.0} us: 1/{:.1}", user / kernel);
        verdicts.push(Verdict::new("latency", &tenth, seen, kernel * 10.0 <= user));
        let seen = format!("{kernel:.0} us to {fifo:.0} us");
        verdicts.push(Verdict::new("latency", &rival, seen, kernel <= fifo));
    }
    Ok(verdicts)
}

//! Cost of a query for the back-end.

use std::fs;
use std::time::Duration;

use evenkeel_bench::report::median;
use evenkeel_bench::server::cpu_time;
use evenkeel_kernel::query::{DEFAULT_PORT, LONGEST, SHORT, WITH_PORTS};

use super::ask::Asker;
use super::ground::{self, Folder, Link, Namespace, Responder, Scheduling};
use super::table::{Table, Verdict};
use super::{Result, Run, bpf, clock};

/// Limit of a query's cost, in microseconds.
const LIMIT_US: f64 = 3.0;

/// Microseconds per query: of the BPF program alone, of all receive work with the driver, and
/// of a process that answers.
pub(crate) fn measure(run: &Run) -> Result<Vec<Verdict>> {
    let (first, last) = ground::first_and_last()?;
    let folder = Folder::new()?;
    let (file, key) = folder.make_key()?;
    let front = Namespace::new()?;
    let link = Link::new(&front)?;
    let generic_link = Link::new(&front)?;
    let plain = Link::new(&front)?;
    let _native = Responder::attach(&run.evenkeel, &link, &file, "native", &[])?;
    let _generic = Responder::attach(&run.evenkeel, &generic_link, &file, "generic", &[])?;
    // The other build has interfaces of its own.
    let other = match &run.against {
        None => None,
        Some(file_of_other) => {
            let (native, generic) = (Link::new(&front)?, Link::new(&front)?);
            let responders = [(&native, "native"), (&generic, "generic")]
                .map(|(link, mode)| Responder::attach(file_of_other, link, &file, mode, &[]));
            let [one, two] = responders;
            Some(((one?, two?), native, generic))
        }
    };
    let words = ground::respond_arguments(&plain, DEFAULT_PORT, &file);
    let among = Scheduling {
        cpu: Some(last),
        ..Scheduling::default()
    };
    let helper = ground::start_serve(run, &words, among)?;
    let _counting = Counting::start()?;
    // From here on only this thread asks, at the other end of the machine.
    evenkeel_bench::server::pin_to(first)?;

    let queries = run.scale(20_000, 4_000);
    let rounds = 5;
    let lengths = [
        ("base", SHORT),
        ("with ports", WITH_PORTS),
        ("with 4 CPUs", LONGEST),
    ];
    let mut csv = String::from("what,length,round,us_per_query\n");
    let mut table = Table::new(&[
        "bytes",
        "program, native, us",
        "program, generic, us",
        "program, in a flood, us",
        "all receive work, in a flood, us",
        "user process, us",
    ]);
    let mut asked = Vec::new();
    for (name, length) in lengths {
        let mut figures: [Vec<f64>; 5] = Default::default();
        let mut others: [Vec<f64>; 4] = Default::default();
        for round in 0..rounds {
            if let Some((_, native, generic)) = &other {
                let mut keep = |index: usize, what: &str, us: f64| {
                    others[index].push(us);
                    csv.push_str(&format!("{what} (compared),{length},{round},{us:.3}\n"));
                };
                for (index, link, what) in [(0, native, "native"), (1, generic, "generic")] {
                    keep(
                        index,
                        what,
                        one_at_a_time(link, &key, length, queries / 10, what)?,
                    );
                }
                if let Ok((program, all)) = receive_work(native, &key, length, last, queries) {
                    keep(2, "native in a flood", program);
                    keep(3, "receive work", all);
                }
            }
            let mut keep = |index: usize, what: &str, us: f64| {
                figures[index].push(us);
                csv.push_str(&format!("{what},{length},{round},{us:.3}\n"));
            };
            for (index, link, what) in [(0, &link, "native"), (1, &generic_link, "generic")] {
                keep(
                    index,
                    what,
                    one_at_a_time(link, &key, length, queries / 10, what)?,
                );
            }
            match receive_work(&link, &key, length, last, queries) {
                Ok((program, all)) => {
                    keep(2, "native in a flood", program);
                    keep(3, "receive work", all);
                }
                Err(error) if round == 0 => println!("receive work: {error}"),
                Err(_) => {}
            }
            let mut asker = Asker::new(&plain, DEFAULT_PORT, &key, 0)?;
            asker.set_length(length);
            if let Err(error) = asker.wait_for_answer("the helper") {
                println!("user process: {error}");
                continue;
            }
            let before = cpu_time(helper.id() as i32)?;
            let count = queries / 10;
            for _ in 0..count {
                asker.query_loads();
            }
            let spent = cpu_time(helper.id() as i32)? - before;
            keep(4, "user process", spent.as_secs_f64() * 1e6 / count as f64);
        }
        let middle = figures.map(|figures| median(figures).unwrap_or(f64::NAN));
        let figures = middle.map(|us| format!("{us:.2}"));
        table.add_row([format!("{length}, {name}")].into_iter().chain(figures));
        if other.is_some() {
            let figures = others.map(|figures| median(figures).unwrap_or(f64::NAN));
            let figures = figures.map(|us| format!("{us:.2}"));
            let row = [format!("{length}, {name}, compared build")].into_iter();
            table.add_row(row.chain(figures).chain([String::new()]));
        }
        asked.push((length, middle));
    }
    run.write("cost.csv", &csv)?;
    run.write("cost.md", table.text())?;
    println!("{}", table.text());

    let mut verdicts = Vec::new();
    for (length, [native, generic, flood, all, _]) in asked {
        // The balancer asks for this length by default.
        if length != WITH_PORTS {
            continue;
        }
        let what = "at most 3 us of CPU per query on the back-end: BPF program";
        let seen = format!(
            "{native:.2} us native, {generic:.2} us generic, one at a time; {flood:.2} us in a flood"
        );
        let worst = native.max(generic);
        verdicts.push(Verdict::new("cost", what, seen, worst <= LIMIT_US));
        let what = "at most 3 us of CPU per query on the back-end: with all receive work (veth)";
        verdicts.push(if all.is_nan() {
            Verdict::not_measured("cost", what, "no threaded NAPI".into())
        } else {
            Verdict::new("cost", what, format!("{all:.2} us"), all <= LIMIT_US)
        });
    }
    Ok(verdicts)
}

/// Microseconds of the program per query, one query at a time.
fn one_at_a_time(
    link: &Link,
    key: &evenkeel_kernel::query::Key,
    length: usize,
    queries: usize,
    what: &str,
) -> Result<f64> {
    let mut asker = Asker::new(link, DEFAULT_PORT, key, 0)?;
    asker.set_length(length);
    asker.wait_for_answer(what)?;
    let program = program_on(&link.interface)?;
    let before = bpf::program_time(program)?;
    // Pauses as between a monitor's queries: caches are as cold as they are then.
    for _ in 0..queries {
        clock::sleep_until(clock::monotonic_nanos() + 100_000);
        asker.query_loads();
    }
    let after = bpf::program_time(program)?;
    let runs = (after.1 - before.1).max(1) as f64;
    Ok((after.0 - before.0) as f64 / 1e3 / runs)
}

/// Microseconds per query in a flood: of the program, and of all that receiving and answering
/// costs, driver included. For that the work of the interface is given to a kernel thread, whose CPU time is known to the nanosecond.
fn receive_work(
    link: &Link,
    key: &evenkeel_kernel::query::Key,
    length: usize,
    cpu: usize,
    queries: usize,
) -> Result<(f64, f64)> {
    let switch = format!("/sys/class/net/{}/threaded", link.interface);
    fs::write(&switch, "1").map_err(|error| format!("{switch}: {error}"))?;
    let measured = (|| {
        let thread = napi_thread(&link.interface)?;
        ground::run("taskset", ["-pc", &cpu.to_string(), &thread.to_string()])?;
        let mut asker = Asker::new(link, DEFAULT_PORT, key, 0)?;
        asker.set_length(length);
        asker.wait_for_answer("responder")?;
        let program = program_on(&link.interface)?;
        let before = (run_time(thread)?, bpf::program_time(program)?);
        let answered = asker.flood_queries(queries);
        std::thread::sleep(Duration::from_millis(5));
        let spent = run_time(thread)? - before.0;
        let (time, runs) = bpf::program_time(program)?;
        let (time, runs) = (time - before.1.0, (runs - before.1.1).max(1));
        if answered < queries as u64 / 2 {
            return Err(format!("only {answered} of {queries} answered").into());
        }
        let all = spent as f64 / 1e3 / answered as f64;
        Ok((time as f64 / 1e3 / runs as f64, all))
    })();
    let _ = fs::write(&switch, "0");
    measured
}

/// The thread that does an interface's receive work.
fn napi_thread(interface: &str) -> Result<u32> {
    // The thread's name is cut off, so an interface's name must be short.
    let wanted = format!("napi/{interface}-");
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let Ok(process) = name.parse() else { continue };
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let comm = comm.trim_end();
        if comm.starts_with("napi/") && (comm.starts_with(&wanted) || wanted.starts_with(comm)) {
            return Ok(process);
        }
    }
    Err(format!("{interface} has no thread for its receive work").into())
}

/// Nanoseconds that a kernel thread has run.
fn run_time(thread: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat"))?;
    Ok(text
        .split(' ')
        .next()
        .ok_or("an empty schedstat")?
        .parse()?)
}

/// The number of the XDP program on an interface.
fn program_on(interface: &str) -> Result<u32> {
    let text = ground::run("ip", ["-j", "-d", "link", "show", "dev", interface])?;
    let links: serde_json::Value = serde_json::from_str(&text)?;
    let id = &links[0]["xdp"]["prog"]["id"];
    let id = id
        .as_u64()
        .ok_or_else(|| format!("{interface} has no XDP program: {text}"))?;
    Ok(u32::try_from(id)?)
}

/// Lets the kernel count what BPF programs cost; as before when dropped.
struct Counting(String);

impl Counting {
    const SWITCH: &'static str = "/proc/sys/kernel/bpf_stats_enabled";

    fn start() -> Result<Self> {
        let before = fs::read_to_string(Self::SWITCH)?;
        fs::write(Self::SWITCH, "1")?;
        Ok(Counting(before))
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = fs::write(Self::SWITCH, &self.0);
    }
}

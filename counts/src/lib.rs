//! Library of the counts and of the measurements of hot paths.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_core::group::{Group, GroupSettings, Outcome};
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::{Kind, Values};
use evenkeel_core::time::Instant;
use evenkeel_core::zone::ZoneSettings;

/// A group of a strategy with its defaults: members of two weights with fresh reports of CPU and observed latencies, as
/// in production. The group is the same each time.
///
/// # Panics
///
/// If a group cannot be made, which is a fault of this function.
pub fn group(kind: &'static Kind, members: usize) -> Group {
    build(kind, members, None)
}

/// A group with half of the members in the balancer's own zone, and half in another one.
///
/// # Panics
///
/// Panics like [`group`].
pub fn group_in_zones(kind: &'static Kind, members: usize) -> Group {
    build(kind, members, Some(["a", "b"]))
}

#[expect(clippy::unwrap_used, reason = "all values are known to be good")]
fn build(kind: &'static Kind, members: usize, zones: Option<[&str; 2]>) -> Group {
    let mut rng = fastrand::Rng::with_seed(2);
    let now = Instant::from_nanos(59_000_000_000);
    let members: Vec<Member> = (0..members)
        .map(|i| {
            let location = Location::new(format!("l{i}"));
            let load = LoadValue::new(rng.f64()).unwrap();
            location.report_load(LoadId::CPU, load, now).unwrap();
            Member {
                id: MemberId(i as u64),
                name: format!("m{i}").into(),
                given_name: None,
                address: std::net::SocketAddr::from(([192, 0, 2, 1], 80)).into(),
                host: "192.0.2.1".into(),
                max_connections: Some(1000),
                location: Arc::new(location),
                zone: zones.map(|zones| zones[i / 2 % 2].into()),
                slot: Arc::new(Slot::new(Weight::new([1.0, 2.0][i % 2]).unwrap())),
            }
        })
        .collect();
    let values = Values::defaults(kind);
    let settings = GroupSettings {
        load_max_age: Duration::from_secs(86_400),
        zones: Some(ZoneSettings {
            balancer_zone: zones.map(|[own, _]| own.into()),
            ..ZoneSettings::default()
        }),
        ..GroupSettings::default()
    };
    let group = Group::new("g", settings, &values, members, Arc::default());
    group.take_ranks();
    for index in 0..group.members().len() {
        let ticket = group.bind(index, now).unwrap();
        let took = Duration::from_micros(rng.u64(500..20_000));
        ticket.finish(Outcome::Success, now.after(took));
    }
    group
}

/// Name of the function whose instructions are counted.
const COUNTED: &str = "evenkeel_counted";

/// There is no valgrind.
#[derive(Clone, Copy, Debug)]
pub struct Missing;

/// Runs `program`, which is this package's, under valgrind: instructions per call, in the order
/// of the cases that it counts with these arguments.
///
/// # Errors
///
/// There is no valgrind.
///
/// # Panics
///
/// If the program does, or what valgrind says is not understood.
#[expect(clippy::unwrap_used, reason = "it fails by panicking, as a test does")]
pub fn count(program: &Path, arguments: &[&str]) -> Result<Vec<(String, u64)>, Missing> {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);

    let name = format!("evenkeel-counts-{}-{run}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let out = folder.join("out");
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--combine-dumps=yes",
        ])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--dump-after={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(arguments)
        // Nothing of where and how it is run.
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir("/")
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Missing),
        Err(error) => panic!("valgrind: {error}"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "valgrind: {said}");
    let names = String::from_utf8(output.stdout).unwrap();
    let dump = std::fs::read_to_string(PathBuf::from(&out)).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let totals: Vec<u64> = dump
        .lines()
        .filter_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
        // The last one is that of the end of the program.
        .collect();
    let names: Vec<(u64, &str)> = names
        .lines()
        .map(|line| {
            let (times, name) = line.split_once('\t').unwrap();
            (times.parse().unwrap(), name)
        })
        .collect();
    assert!(
        totals.len() >= names.len(),
        "{} counts for {} cases: {said}",
        totals.len(),
        names.len()
    );
    let pairs = names.into_iter().zip(totals);
    Ok(pairs
        .map(|((times, name), total)| (name.to_owned(), total / times))
        .collect())
}

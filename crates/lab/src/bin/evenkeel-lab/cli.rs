//! The command line, as data.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use evenkeel_command::AccessFormat;
use evenkeel_command::pages::Shell;

/// Experiments, a load generator and a demonstration for Evenkeel, the load balancer
#[derive(Debug, Parser)]
#[command(name = "evenkeel-lab", version, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 success; 1 failure, described on stderr; 2 wrong command line."
)]
pub(crate) struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of `evenkeel-lab`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the experiments of five papers
    List,
    /// Repeat experiments of papers, and judge what the papers claim
    ///
    /// docs/lab.md has the manual.
    Run(Experiments),
    /// Judge the results of earlier runs by the rules that claims have now
    ///
    /// Nothing is run. Verdicts and pages are written anew.
    Judge {
        /// Folder of the results
        #[arg(long, value_name = "FOLDER", default_value = "lab-results")]
        out: PathBuf,
    },
    /// Play strategies in random worlds, and tell how far each is from the best one
    ///
    /// docs/lab.md has the manual.
    Regret(Regret),
    /// Send load to a server or balancer, and tell how it answers
    ///
    /// With --rate requests are due at planned times, whatever answers do (open loop), and a latency counts
    /// from when its request was due. Without it each connection sends its next request when it has the
    /// answer to the last (closed loop). docs/load.md has the manual.
    Load(Box<Load>),
    /// Compare the default strategy with round robin, live
    ///
    /// Starts the program `evenkeel`, which is beside this one or in PATH.
    Demo {
        /// End after this many seconds; 0 runs until Ctrl-C
        #[arg(long, default_value_t = 0)]
        seconds: u64,
    },
    /// Print completions for a shell: what it offers after `evenkeel-lab` and Tab
    Completions {
        /// Name of the shell
        shell: Shell,
    },
    /// Write a manual page for each command into a folder
    #[command(hide = true)]
    Man {
        /// Folder; created if missing
        folder: PathBuf,
    },
}

/// `evenkeel-lab run`.
#[derive(Debug, Args)]
pub(crate) struct Experiments {
    /// An experiment, a paper (all its experiments), or "all"
    pub name: String,
    /// Use real programs on this machine instead of virtual time
    #[arg(long)]
    pub real: bool,
    /// Shortest run, to see whether the experiment works; its results say little
    #[arg(long)]
    pub quick: bool,
    /// Folder of the results; a quick run does not replace a full one there
    #[arg(long, value_name = "FOLDER", default_value = "lab-results")]
    pub out: PathBuf,
    /// The first seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u32,
    /// Show no progress bar on a terminal
    #[arg(long)]
    pub quiet: bool,
}

/// `evenkeel-lab regret`.
#[derive(Debug, Args)]
pub(crate) struct Regret {
    /// Number of worlds
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub worlds: usize,
    /// Number of worlds to skip before the first one that is played
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..1 << 60))]
    pub first: u64,
    /// Play the worlds that are kept for judging, and name none of them
    #[arg(long)]
    pub judge: bool,
    /// Play one world, by its number, and print the figures of each strategy
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["worlds", "first", "judge", "out"])]
    pub world: Option<u64>,
    /// Runs of each strategy in each world
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Threads; as many as there are processors if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Play these strategies only, and take the others from --known where it has them
    #[arg(long, value_name = "STRATEGY", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Figures of an earlier run (figures.json in its folder)
    #[arg(long, value_name = "FILE")]
    pub known: Option<PathBuf>,
    /// Folder of the results: a page with plots, the tables as text, and all figures
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Show no progress bar on a terminal
    #[arg(long)]
    pub quiet: bool,
}

/// `evenkeel-lab load`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Load {
    /// http://, https://, tcp://HOST:PORT or ftp://USER:PASSWORD@HOST
    #[arg(required = true)]
    pub url: Option<String>,
    /// Open loop: requests per second (sessions, where there are sessions)
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// Arrivals of an open loop
    #[arg(long, value_enum, default_value = "poisson")]
    pub arrivals: ArrivalsName,
    /// Length of the run after the warm-up; 10s if nothing else ends the run
    #[arg(long, value_parser = time)]
    pub duration: Option<Duration>,
    /// Requests (sessions, where there are sessions) after which the run ends, the warm-up included
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// Connections at once; users, where there are sessions
    #[arg(long, short = 'c', value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// Threads: each can use a core
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Length of the warm-up, which is not counted
    #[arg(long, value_parser = time, default_value = "0s")]
    pub warm_up: Duration,
    /// Method of every request
    #[arg(long, default_value = "GET")]
    pub method: String,
    /// Header field of every request; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// Body of every request
    #[arg(long, conflicts_with = "body_size")]
    pub body: Option<String>,
    /// Length of every request's body
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(..=1 << 28))]
    pub body_size: Option<u32>,
    /// Timeout of a request with all its redirects, and of its connection
    #[arg(long, value_parser = time, default_value = "10s")]
    pub timeout: Duration,
    /// Seed of the random numbers: the same seed draws the same arrivals and paths
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Certificates of the authorities to trust (PEM), instead of those of the system
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Trust any certificate
    #[arg(long)]
    pub insecure: bool,
    /// Name to ask for in TLS, instead of the host
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// HTTP/2: over TLS, or with prior knowledge
    #[arg(long)]
    pub http2: bool,
    /// Requests at once on each connection of HTTP/2
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub streams: u16,
    /// tcp://: text to send; \n, \r, \t, \\ and \xNN are understood
    #[arg(long, value_name = "TEXT", value_parser = escaped)]
    pub send: Option<Bytes>,
    /// tcp://: number of bytes to wait for
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub receive: u64,
    /// tcp://: a connection for each request
    #[arg(long)]
    pub connect: bool,
    /// ftp://: a file that each session reads; may be given several times
    #[arg(long = "file", value_name = "PATH")]
    pub files: Vec<String>,
    /// Request the paths in this file, one a line, at random
    #[arg(long, value_name = "FILE")]
    pub paths: Option<PathBuf>,
    /// Popularity of the paths: the one in line i is asked for in proportion to 1 / i^ALPHA
    #[arg(long, value_name = "ALPHA", requires = "paths", value_parser = alpha)]
    pub zipf: Option<f64>,
    /// Sessions of this many requests, each on connections of its own
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub sessions: Option<u32>,
    /// Mean time for which a user thinks between two requests of a session (exponential)
    #[arg(long, value_parser = time, default_value = "0s", requires = "sessions")]
    pub think: Duration,
    /// Users of the Web as in SURGE, on a site of this many documents (see `evenkeel-lab load site`)
    #[arg(long, value_name = "DOCUMENTS", conflicts_with_all = ["paths", "sessions", "replay"], value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub surge: Option<u32>,
    /// Factor on the times of users of SURGE
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "surge")]
    pub pace: f64,
    /// Send the requests of this access log once more, at their times
    #[arg(long, value_name = "LOG", conflicts_with_all = ["paths", "sessions", "rate"])]
    pub replay: Option<PathBuf>,
    /// Speed of the replay, as a multiple of the log's
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "replay", value_parser = rate)]
    pub speed: f64,
    /// Format of the log's lines; without it the first line decides
    #[arg(long, value_enum, requires = "replay")]
    pub log_format: Option<AccessFormat>,
    /// Redirects in a row to follow; 0 takes them as answers
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=100))]
    pub max_redirects: u32,
    /// Keep the server that a redirect names for as long as it allows (the quantum), then ask again
    #[arg(long)]
    pub negotiate: bool,
    /// Addresses of this machine to connect from, in turn
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub from: Vec<IpAddr>,
    /// Print no line for each second
    #[arg(long)]
    pub quiet: bool,
    /// Write the latencies as HdrHistogram's percentile distribution, or, if FILE ends in .hlog, as its
    /// interval log; may be given several times
    #[arg(long, value_name = "FILE")]
    pub hdr: Vec<PathBuf>,
    /// Write a row for each second
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write all figures, for `evenkeel-lab load compare` and other programs
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Option<LoadCommand>,
}

/// Commands beside sending load.
#[derive(Debug, Subcommand)]
pub(crate) enum LoadCommand {
    /// Compare two runs, from files that --json or --hdr (an interval log, .hlog) has written
    Compare {
        /// The first run
        a: PathBuf,
        /// The second run
        b: PathBuf,
    },
    /// Write the documents of a site for --surge into a folder, under their numbers
    Site {
        /// Folder; created if missing
        folder: PathBuf,
        /// Documents, as in --surge
        #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
        documents: u32,
        /// Seed, as in the run
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

/// Bytes of an argument.
#[derive(Clone, Debug)]
pub(crate) struct Bytes(pub Vec<u8>);

/// Arrivals of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArrivalsName {
    /// At random, independently of each other
    Poisson,
    /// At equal intervals
    Constant,
}

fn rate(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().unwrap_or(f64::NAN);
    match (1e-3..=1e7).contains(&value) {
        true => Ok(value),
        false => Err("expected a number from 0.001 to 10000000".into()),
    }
}

fn alpha(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().unwrap_or(f64::NAN);
    match (0.0..=10.0).contains(&value) {
        true => Ok(value),
        false => Err("expected a number from 0 to 10".into()),
    }
}

/// A time such as `10s`, `500ms` or `2m`.
fn time(text: &str) -> Result<Duration, String> {
    let longest = Duration::from_secs(30 * 24 * 3600);
    evenkeel_config::parse_duration(text)
        .filter(|time| *time <= longest)
        .ok_or_else(|| "expected a time such as 10s, 500ms or 2m, at most 30 days".into())
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or("expected NAME: VALUE, such as \"Accept: text/html\"")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Text with escapes.
fn escaped(text: &str) -> Result<Bytes, String> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find('\\') {
        let (before, after) = rest.split_at(at);
        bytes.extend_from_slice(before.as_bytes());
        let mut letters = after.chars().skip(1);
        rest = after.get(2..).unwrap_or_default();
        bytes.push(match letters.next() {
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some('\\') => b'\\',
            Some('x') => {
                let digits = rest.get(..2).unwrap_or_default();
                rest = rest.get(2..).unwrap_or_default();
                u8::from_str_radix(digits, 16).map_err(|_| "expected two digits after \\x")?
            }
            _ => return Err("after \\ comes n, r, t, \\ or xNN".into()),
        });
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(Bytes(bytes))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn refused(words: &str) -> String {
        Cli::try_parse_from(words.split(' '))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn load_has_a_url_or_a_command() {
        for good in [
            "http://h/ --rate 100",
            "compare a b",
            "site folder --documents 10",
        ] {
            let words = format!("evenkeel-lab load {good}");
            assert!(Cli::try_parse_from(words.split(' ')).is_ok(), "{good}");
        }
        refused("evenkeel-lab load");
        refused("evenkeel-lab load http://h/ compare a b");
        refused("evenkeel-lab load http://h/ --zipf 1");
        refused("evenkeel-lab load http://h/ --rate 0");
    }

    #[test]
    fn arguments_of_load_are_understood() {
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "1", "s", "-1s", "nans", "9999h"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert_eq!(header("A: b:c"), Ok(("A".into(), "b:c".into())));
        assert!(header("A").is_err());
        assert_eq!(escaped(r"a\r\n\x00\\ü").unwrap().0, "a\r\n\0\\ü".as_bytes());
        for bad in [r"\", r"\q", r"\x1", r"\xü"] {
            assert!(escaped(bad).is_err(), "{bad}");
        }
    }
}

//! The programs of a measurement that must be processes of their own: busy ones, web servers,
//! and the first ones of emulated machines. They are this same program, called with [`WORD`].

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::FromRawFd;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use super::{clock, machines};

/// The first argument that makes this program one of them.
pub(crate) const WORD: &str = "helper";

/// Bytes of a ping, and of its pong.
const PING: usize = 4096;

/// Runs one; the arguments name it.
pub(crate) fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let arguments: Vec<String> = arguments.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["spin"] => spin(),
        ["alternate", seed, start, least, most] => alternate(seed, start, least, most),
        // `ping` ends with the process at the other end.
        ["ping"] => pong(true).or(Ok(())),
        ["pong"] => pong(false).or(Ok(())),
        ["serve", ip, cache, hit, miss] => serve(ip, cache, hit, miss),
        ["back-end", cable] => number(cable).and_then(machines::run_back_end),
        ["front-end", rounds, millis] => machines::run_front_end(rounds, millis),
        _ => Err(io::Error::other(format!("what is {words:?}?"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("helper: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(|_| io::Error::other("not a number"))
}

fn spin() -> io::Result<()> {
    loop {
        std::hint::spin_loop();
    }
}

/// Spins and sleeps in turn, for random times between two numbers of milliseconds. All with
/// the same seed and start do it in step, however late they come.
fn alternate(seed: &str, start: &str, least: &str, most: &str) -> io::Result<()> {
    let mut rng = fastrand::Rng::with_seed(number(seed)?);
    let mut at = number(start)?;
    let (least, most) = (number(least)?, number(most)?);
    let mut length = || rng.u64(least..=most) * 1_000_000;
    loop {
        clock::sleep_until(at);
        at += length();
        while clock::monotonic_nanos() < at {
            (0..50).for_each(|_| std::hint::spin_loop());
        }
        at += length();
    }
}

/// Sends messages there and back again with the process at the other end of standard input.
fn pong(begins: bool) -> io::Result<()> {
    // SAFETY: standard input is open, and nobody else here uses it.
    let mut other = unsafe { File::from_raw_fd(0) };
    let mut message = vec![0; PING];
    if begins {
        other.write_all(&message)?;
    }
    loop {
        other.read_exact(&mut message)?;
        other.write_all(&message)?;
    }
}

/// A web server with a thread for each connection, as Apache has a process. It prints its
/// address. `/SITE/DOCUMENT` costs CPU time: `hit` microseconds if the document was among the
/// last `cache` that were asked for, else a time that is always the same for the document and
/// `miss` on average.
fn serve(ip: &str, cache: &str, hit: &str, miss: &str) -> io::Result<()> {
    let ip: IpAddr = ip.parse().map_err(io::Error::other)?;
    let (hit, miss) = (number(hit)? as f64 * 1e3, number(miss)? as f64 * 1e3);
    let cache = Arc::new(Mutex::new(Cache::new(number(cache)? as usize)));
    let listener = TcpListener::bind((ip, 0))?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", listener.local_addr()?)?;
    stdout.flush()?;
    loop {
        let (stream, _) = listener.accept()?;
        let cache = Arc::clone(&cache);
        std::thread::Builder::new()
            .stack_size(128 * 1024)
            .spawn(move || {
                let cost = |path: &str| {
                    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
                    if cache.has(path) {
                        hit
                    } else {
                        cost(path, hit, miss)
                    }
                };
                // A client that goes away ends it.
                let _ = converse(stream, cost);
            })?;
    }
}

fn converse(stream: TcpStream, cost: impl Fn(&str) -> f64) -> io::Result<()> {
    const BODY: &str = "A document, as far as its reader is concerned.\n";
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        while line.trim_end() != "" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
        }
        let end = clock::thread_cpu() + cost(&path) as u64;
        while clock::thread_cpu() < end {
            (0..200).for_each(|_| std::hint::spin_loop());
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BODY.len());
        writer.write_all([head.as_bytes(), BODY.as_bytes()].concat().as_slice())?;
    }
}

/// Nanoseconds of CPU time of a document that is not at hand: `hit` and an exponential time,
/// together `miss` on average over all documents.
fn cost(path: &str, hit: f64, miss: f64) -> f64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(path.as_bytes());
    let luck = (hasher.finish() >> 11) as f64 / (1u64 << 53) as f64;
    // No longer than ten times the mean, so that a single document decides nothing.
    hit - (miss - hit) * (1.0 - luck).ln().max(-10.0)
}

/// Documents that were asked for most recently.
struct Cache {
    room: usize,
    last: HashMap<Arc<str>, u64>,
    order: VecDeque<(Arc<str>, u64)>,
    asked: u64,
}

impl Cache {
    fn new(room: usize) -> Self {
        Cache {
            room,
            last: HashMap::new(),
            order: VecDeque::new(),
            asked: 0,
        }
    }

    /// Uses a document; returns true if it was there already.
    fn has(&mut self, path: &str) -> bool {
        self.asked += 1;
        let path: Arc<str> = path.into();
        self.order.push_back((Arc::clone(&path), self.asked));
        let had = self.last.insert(path, self.asked).is_some();
        while self.last.len() > self.room
            && let Some((oldest, asked)) = self.order.pop_front()
        {
            if self.last.get(&oldest) == Some(&asked) {
                self.last.remove(&oldest);
            }
        }
        had
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_cost_what_they_should_on_average() {
        let costs = (0..20_000).map(|document| cost(&format!("/0/{document}"), 100.0, 1000.0));
        let mean = costs.sum::<f64>() / 20_000.0;
        assert!((mean / 1000.0 - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn the_cache_forgets_what_was_not_asked_for_longest() {
        let mut cache = Cache::new(2);
        assert!(!cache.has("a"));
        assert!(!cache.has("b"));
        assert!(cache.has("a"));
        assert!(!cache.has("c"));
        assert!(cache.has("a"));
        assert!(!cache.has("b"));
    }
}

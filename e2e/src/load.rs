//! Steady load that notices every wrong answer.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::folder::Folder;
use crate::process::{Signal, program, signal};
use crate::wait_until;
use crate::wire::Wire;

/// `wrk` on one document; it compares each body.
pub struct Wrk {
    process: Child,
    _folder: Folder,
}

/// Counts of `wrk`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of responses.
    pub requests: u64,
    /// Responses with another status than 200 or with another body.
    pub wrong: u64,
    /// Connections that could not be made, reads and writes that failed, timeouts.
    pub errors: u64,
}

const SCRIPT: &str = r#"
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init(args)
  wrong, first = 0, ""
  local file = io.open(args[1], "rb")
  expected = file:read("*a")
  file:close()
end
function response(status, headers, body)
  if status ~= 200 or body ~= expected then
    wrong = wrong + 1
    if first == "" then first = status .. " " .. body:sub(1, 300) end
  end
end
function done(summary, latency, requests)
  local wrong = 0
  for _, thread in ipairs(threads) do
    wrong = wrong + thread:get("wrong")
    io.write("FIRST WRONG: ", thread:get("first"), "\n")
  end
  local e = summary.errors
  io.write("TALLY ", summary.requests, " ", wrong, " ", e.connect + e.read + e.write + e.timeout, "\n")
end
"#;

impl Wrk {
    /// Starts asking `address` for `path`, which has the given content.
    pub fn start(address: SocketAddr, path: &str, content: &[u8]) -> Self {
        Self::start_at(&format!("http://{address}{path}"), content)
    }

    /// Starts `wrk` with a whole URL, perhaps one with TLS. No certificate is verified.
    pub fn start_at(url: &str, content: &[u8]) -> Self {
        let folder = Folder::new();
        let process = program("wrk")
            .args(["--threads", "1", "--connections", "8"])
            // Until it is stopped; slow answers are found elsewhere.
            .args(["--duration", "10m", "--timeout", "60s", "--script"])
            .arg(folder.write("script.lua", SCRIPT))
            .arg(url)
            .arg("--")
            .arg(folder.write("expected", content))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("wrk starts");
        Self {
            process,
            _folder: folder,
        }
    }

    /// Ends it; answers what it saw.
    pub fn stop_and_tally(mut self) -> Tally {
        // It ends with its summary.
        signal(self.process.id(), Signal::INT);
        let mut output = String::new();
        let mut stdout = self.process.stdout.take().expect("it is piped");
        stdout.read_to_string(&mut output).expect("text");
        let tally = output.lines().find_map(|line| line.strip_prefix("TALLY "));
        let tally = tally.unwrap_or_else(|| panic!("no tally: {output}"));
        let numbers: Vec<u64> = tally
            .split(' ')
            .map(|number| number.parse().expect("a number"))
            .collect();
        let [requests, wrong, errors] = numbers[..] else {
            panic!("no tally: {output}");
        };
        if wrong + errors > 0 {
            eprintln!("{output}");
        }
        Tally {
            requests,
            wrong,
            errors,
        }
    }
}

impl Drop for Wrk {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Clients that ask for `/echo/…`, each time for another document, and compare: a
/// response that is lost, doubled, or another client's shows.
pub struct Clients {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Starts them. They keep their connections as long as these are kept for them.
    pub fn start(address: SocketAddr, count: usize) -> Self {
        Self::start_among(Arc::new(Mutex::new(vec![address])), count)
    }

    /// Starts clients of several servers: a new connection goes to one of the addresses that are in the list at that moment.
    pub fn start_among(addresses: Arc<Mutex<Vec<SocketAddr>>>, count: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicU64::new(0));
        let threads = (0..count)
            .map(|client| {
                let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
                let addresses = Arc::clone(&addresses);
                thread::spawn(move || ask(&addresses, client, &stop, &answered))
            })
            .collect();
        Self {
            stop,
            answered,
            threads,
        }
    }

    /// Returns the number of answers so far, all of them right.
    pub fn answer_count(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits for so many more right answers.
    pub fn wait_for(&self, more: u64) {
        let wanted = self.answer_count() + more;
        wait_until("clients are answered", || {
            let failed = self.threads.iter().any(JoinHandle::is_finished);
            assert!(!failed, "a client failed; see above");
            self.answer_count() >= wanted
        });
    }

    /// Ends them between two requests; panics if one had a wrong answer. Answers how many
    /// they had.
    pub fn stop_and_count(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a client was answered wrongly");
        }
        self.answer_count()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Connects to one of the addresses. An address that has left the list gets no connection from then on.
fn connect(addresses: &Mutex<Vec<SocketAddr>>) -> Wire {
    let addresses = addresses.lock().expect("no panic");
    Wire::connect(*fastrand::choice(&*addresses).expect("an address"))
}

fn ask(addresses: &Mutex<Vec<SocketAddr>>, client: usize, stop: &AtomicBool, answered: &AtomicU64) {
    let mut wire = connect(addresses);
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let target = format!("/echo/{client}/{number}");
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = wire.read_response();
        assert_eq!(
            (response.second_word(), response.text()),
            ("200", &*target),
            "to client {client}"
        );
        answered.fetch_add(1, Ordering::Relaxed);
        if response.values("connection").contains(&"close") {
            wire = connect(addresses);
        }
    }
}

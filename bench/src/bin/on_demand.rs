//! Cost for a client, after its first request, of a binding by a negotiator.
//!
//! Three clients with a connection each ask for the same small document, one request at a
//! time: `plain` knows the address of an httpd without our module; `direct` knows the
//! address of one that has it, with an agent that reports it to a broker; `bound` was sent
//! there by the negotiator. They take short turns, all three and then all three the other
//! way round, so what else the machine does hits all of a round alike. The figures to
//! trust are the medians of the rounds' ratios of median latencies.
//!
//! `on_demand [--rounds N] [--requests N] [--evenkeel FILE] [--as-built]`

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use evenkeel_bench::httpd::{Built, Folder, Httpd};
use evenkeel_bench::report::median;
use evenkeel_bench::server::{Server, free_address, pin_to, processors};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
struct Options {
    /// Rounds, each of two turns of each client.
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// Requests of a turn.
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// Program of the broker and the agent.
    #[arg(long, default_value = "target/dist/evenkeel")]
    evenkeel: PathBuf,
    /// Measure the module as it lies in target/dist, without building it.
    #[arg(long)]
    as_built: bool,
}

const SITE: &str = "www.example.org";
/// The tag of a file is longer while the file is young.
const SAME_LENGTH: &str = "FileETag None";
/// Longer than a request takes on any machine.
const HANG: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("on_demand: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let built = Built::new(options.as_built)?;
    let processors = processors()?;
    let (Some(&serving), Some(&other)) = (processors.first(), processors.last()) else {
        return Err("no processor to run on".into());
    };
    let mut rng = fastrand::Rng::new();
    let folder = Folder::new("on-demand")?;
    let [plain_at, direct_at] = [free_address(&mut rng)?, free_address(&mut rng)?];
    let httpd = |name, address, lines| Httpd {
        name,
        address,
        mpm: "event",
        lines,
        pages: folder.path(),
    };
    let _plain = httpd("plain", plain_at, SAME_LENGTH).start(&folder, serving)?;
    let lines = format!(
        "{SAME_LENGTH}\n{}\nEvenkeelBalancer http://{SITE}/.well-known/evenkeel/rebind",
        built.load_lines()
    );
    let _direct = httpd("direct", direct_at, &lines).start(&folder, serving)?;
    let (_broker, negotiator) = start_broker(options, folder.path(), other, direct_at)?;

    pin_to(other)?;
    let mut first = Client::connect(negotiator)?;
    let redirect = first.head(SITE)?;
    let to = format!("http://{direct_at}/small");
    if !redirect.starts_with("HTTP/1.1 307 ") || !redirect.contains(&to) {
        return Err(format!("the negotiator binds nobody: {redirect}").into());
    }
    let mut clients = Vec::new();
    for (name, address) in [
        ("plain", plain_at),
        ("direct", direct_at),
        ("bound", direct_at),
    ] {
        let mut client = Client::connect(address)?;
        client.first()?;
        clients.push((name, client, Vec::new()));
    }
    for _ in 0..options.rounds {
        let mut latencies: [Vec<f64>; 3] = Default::default();
        for index in [0, 1, 2, 2, 1, 0] {
            let (_, client, _) = &mut clients[index];
            for _ in 0..options.requests {
                latencies[index].push(client.again()?.as_secs_f64() * 1e6);
            }
        }
        for ((_, _, medians), latencies) in clients.iter_mut().zip(latencies) {
            medians.extend(median(latencies));
        }
    }
    println!("client  p50 us");
    for (name, _, medians) in &clients {
        let middle = median(medians.clone()).unwrap_or(f64::NAN);
        println!("{name:6}  {middle:6.2}");
    }
    let [(_, _, plain), (_, _, direct), (_, _, bound)] = clients.as_slice() else {
        return Ok(());
    };
    print_ratio("bound / direct, same httpd", bound, direct);
    print_ratio("bound / plain httpd", bound, plain);
    Ok(())
}

/// Starts broker and negotiator, and an agent beside the httpd; waits until it reports.
fn start_broker(
    options: &Options,
    folder: &Path,
    cpu: usize,
    member: SocketAddr,
) -> Result<([Server; 2], SocketAddr)> {
    let key = folder.join("key");
    fs::write(&key, "1:000102030405060708090a0b0c0d0e0f\n")?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    let config = folder.join("evenkeel.toml");
    fs::write(
        &config,
        format!(
            "[negotiator]\nlisten = \"127.0.0.1:0\"\n\
             [broker]\nlisten = \"127.0.0.1:0\"\nkey_file = {key:?}\n\
             [cluster.www]\ngroup = \"www\"\nhosts = [\"{SITE}\"]\nquantum = \"1h\"\n\
             [group.www]\nmembers = [\"{member}\"]\ngranularity = \"on_demand\"\n\
             alert = {{ threshold = 0.9 }}\n"
        ),
    )?;
    let start = |word: &str, file: &Path| -> Result<(Server, Vec<String>)> {
        let mut command = Command::new(&options.evenkeel);
        command.arg(word).arg(file);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Server::start(command, cpu, libc::SIGTERM)
            .map_err(|error| format!("{}: {error}", options.evenkeel.display()))?;
        let stdout = server.take_stdout().ok_or("no standard output")?;
        let mut lines = Vec::new();
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            if line == "ready" {
                return Ok((server, lines));
            }
            lines.push(line);
        }
        Err(format!("evenkeel {word} does not start").into())
    };
    let (broker, lines) = start("run", &config)?;
    let listening = |what: &str| -> Result<SocketAddr> {
        let mut found = lines.iter().filter_map(|line| line.strip_prefix(what));
        Ok(found.next().ok_or("the broker does not listen")?.parse()?)
    };
    let agent = folder.join("agent.toml");
    fs::write(
        &agent,
        format!(
            "arm_dir = {folder:?}\n\
             [broker.bench]\naddress = \"{}\"\nkey_file = {key:?}\n\
             [server.www]\naddress = \"{member}\"\napplication = \"direct.example:{}\"\n",
            listening("listening: broker on UDP ")?,
            member.port()
        ),
    )?;
    let (agent, _) = start("agent", &agent)?;
    Ok(([broker, agent], listening("listening: negotiator on ")?))
}

/// A connection on which one request follows the other.
struct Client {
    stream: TcpStream,
    request: String,
    /// Bytes of a response: the same for each of them.
    response: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HANG))?;
        Ok(Self {
            stream,
            request: format!("GET /small HTTP/1.1\r\nHost: {address}\r\n\r\n"),
            response: Vec::new(),
        })
    }

    /// The head of the answer to a request for this host.
    fn head(&mut self, host: &str) -> Result<String> {
        let request = format!("GET /small HTTP/1.1\r\nHost: {host}\r\n\r\n");
        self.stream.write_all(request.as_bytes())?;
        self.read_head()
    }

    fn read_head(&mut self) -> Result<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        Ok(String::from_utf8(head)?)
    }

    /// The first request, which tells how long responses are.
    fn first(&mut self) -> Result<()> {
        self.stream.write_all(self.request.as_bytes())?;
        let head = self.read_head()?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_it = name.eq_ignore_ascii_case("content-length");
            is_it.then(|| value.trim().parse::<usize>().ok())?
        });
        let (true, Some(length)) = (head.starts_with("HTTP/1.1 200 "), length) else {
            return Err(format!("not the document: {head}").into());
        };
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        self.response = vec![0; head.len() + length];
        Ok(())
    }

    /// Another one; answers how long it took.
    fn again(&mut self) -> Result<Duration> {
        let start = Instant::now();
        self.stream.write_all(self.request.as_bytes())?;
        self.stream.read_exact(&mut self.response)?;
        let took = start.elapsed();
        if self.response.starts_with(b"HTTP/1.1 200 ") {
            Ok(took)
        } else {
            Err("not the document".into())
        }
    }
}

/// The median of the rounds' ratios, and where half of them lie.
fn print_ratio(what: &str, above: &[f64], below: &[f64]) {
    let mut ratios: Vec<_> = above.iter().zip(below).map(|(a, b)| a / b).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[(share * (ratios.len() - 1) as f64).round() as usize];
    println!(
        "{what} = {:.4} (half of the rounds: {:.4} to {:.4})",
        at(0.5),
        at(0.25),
        at(0.75)
    );
}

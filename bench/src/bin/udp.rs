//! CPU time of a balancer for each datagram of UDP rules, with segmentation offload and without, and of different
//! builds.
//!
//! Each arm is a program; `=off` behind its path switches `segmentation_offload` off, and `=plain` leaves the key out, for
//! builds that do not know it. Arms take turns; all is on loopback.
//!
//! `udp PROGRAM[=off|=plain]... [--rounds N]`

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use evenkeel_bench::report::median;
use evenkeel_bench::server::{Server, free_address, processors};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Length of each datagram of a stream, as QUIC has them.
const SEGMENT: usize = 1200;

/// Datagrams of a stream that a member sends at once.
const TRAIN: usize = 40;

/// Clients that ask at the same time.
const CLIENTS: usize = 4;

/// Time after which a client asks for the next datagrams though some are lost.
const LOST: Duration = Duration::from_millis(200);

#[derive(Parser)]
struct Options {
    /// Programs to compare with the first one, each with `=off` or `=plain` if wanted.
    #[arg(required = true)]
    arms: Vec<String>,
    /// Number of measurements of each row and arm.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Questions of each client in a measurement.
    #[arg(long, default_value_t = 2_000)]
    questions: u32,
}

/// Traffic that is measured.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    session: &'static str,
    /// Length of a question.
    question: usize,
    /// Number of datagrams of the answer.
    answers: usize,
}

const ROWS: [Row; 3] = [
    Row {
        name: "question and answer of 64 bytes, a session for each",
        session: "datagram",
        question: 64,
        answers: 1,
    },
    Row {
        name: "question and answer of 64 bytes, a session for all",
        session: "client",
        question: 64,
        answers: 1,
    },
    Row {
        name: "question of 1 byte, answer of 40 datagrams of 1,200 bytes",
        session: "client",
        question: 1,
        answers: TRAIN,
    },
];

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("udp: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let member = start_member()?;
    for row in ROWS {
        let mut figures: Vec<Vec<f64>> = vec![Vec::new(); options.arms.len()];
        for _ in 0..options.rounds {
            for (arm, figures) in options.arms.iter().zip(&mut figures) {
                figures.push(measure_once(arm, row, member, options.questions)?);
            }
        }
        println!("{}: microseconds of CPU time for a datagram", row.name);
        let mut first = None;
        for (arm, figures) in options.arms.iter().zip(figures) {
            let middle = median(figures).ok_or("no rounds")?;
            let first = *first.get_or_insert(middle);
            println!("  {arm}: {middle:.2}, {:.2} of the first", middle / first);
        }
    }
    Ok(())
}

/// Starts a member, which echoes questions, and answers those of one byte with a stream.
fn start_member() -> Result<SocketAddr> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    // The kernel divides what is longer.
    let segment = SEGMENT as libc::c_int;
    // SAFETY: the value outlives the call, and has that length.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const segment).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error().into());
    }
    let address = socket.local_addr()?;
    std::thread::spawn(move || {
        let mut question = vec![0; 65_535];
        let stream = vec![7; SEGMENT * TRAIN];
        while let Ok((len, from)) = socket.recv_from(&mut question) {
            let answer = match len {
                1 => &stream[..],
                _ => &question[..len],
            };
            // A datagram that is not sent is lost, as others.
            let _ = socket.send_to(answer, from);
        }
    });
    Ok(address)
}

/// Returns the microseconds of CPU time that a program needs for each datagram.
fn measure_once(arm: &str, row: Row, member: SocketAddr, questions: u32) -> Result<f64> {
    let (program, option) = match arm.split_once('=') {
        None => (arm, ", segmentation_offload = true"),
        Some((program, "off")) => (program, ", segmentation_offload = false"),
        Some((program, "plain")) => (program, ""),
        Some((_, other)) => return Err(format!("{other:?} is neither off nor plain").into()),
    };
    let mut rng = fastrand::Rng::new();
    let (admin, listen) = (free_address(&mut rng)?, free_address(&mut rng)?);
    let file: PathBuf = std::env::temp_dir().join(format!("evenkeel-udp-{}.toml", admin.port()));
    std::fs::write(
        &file,
        format!(
            "workers = 1\n[admin]\nlisten = \"{admin}\"\n[rule.udp]\nlisten = \"{listen}\"\n\
             protocol = \"udp\"\nmembers = [\"{member}\"]\nudp = {{ session = \"{}\"{option} }}\n",
            row.session
        ),
    )?;
    let mut command = Command::new(program);
    command.arg("run").arg(&file);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let cpu = *processors()?.first().ok_or("no processor")?;
    let mut server = Server::start(command, cpu, libc::SIGKILL)?;
    let started = server.wait_for(&[admin]);
    std::fs::remove_file(&file)?;
    started.map_err(|error| format!("{arm}: {error}"))?;
    ask_members(listen, row, 20)?;
    let before = server.cpu_time()?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| std::thread::spawn(move || ask_members(listen, row, questions)))
        .collect();
    let mut datagrams = 0;
    for client in clients {
        datagrams += client.join().map_err(|_| "a client has failed")??;
    }
    let used = server.cpu_time()?.saturating_sub(before);
    Ok(used.as_secs_f64() * 1e6 / f64::from(datagrams))
}

/// Asks for answers, one question after the other, and returns the number of datagrams in both directions.
fn ask_members(at: SocketAddr, row: Row, questions: u32) -> io::Result<u32> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(LOST))?;
    socket.connect(at)?;
    let question = vec![1; row.question];
    let mut answer = vec![0; 65_535];
    let mut datagrams = 0;
    for _ in 0..questions {
        // Refused before the balancer listens.
        let _ = socket.send(&question);
        datagrams += 1;
        for _ in 0..row.answers {
            match socket.recv(&mut answer) {
                Ok(_) => datagrams += 1,
                Err(_) => break,
            }
        }
    }
    Ok(datagrams)
}

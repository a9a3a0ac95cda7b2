//! The load generator by hand, for profiling a proxy: see `load --help`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use evenkeel_bench::load::{Plan, Traffic, run};
use evenkeel_bench::server::cpu_time;

/// Drives a proxy on loopback and prints what it cost.
#[derive(Parser)]
struct Arguments {
    /// Traffic to send.
    traffic: Kind,
    /// Address of the proxy, on loopback.
    target: SocketAddr,
    /// Connections at once.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Open loop: requests per second.
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds that are counted; a tenth more comes before.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Processes whose CPU time is counted.
    #[arg(long = "pid")]
    pids: Vec<i32>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Keep-alive GET, small answer.
    Http,
    /// Keep-alive GET, 64 KiB answer.
    Http64k,
    /// Keep-alive GET over TLS, small answer.
    Https,
    /// Keep-alive GET over TLS, 64 KiB answer.
    Https64k,
    /// A connection for every handshake of TLS.
    TlsFull,
    /// A connection for every handshake of TLS, with resumed sessions.
    TlsResumed,
    /// A connection for every GET.
    HttpClose,
    /// Request and response of 64 bytes.
    TcpRr,
    /// Bytes as fast as they go through, half of the connections up, half down.
    TcpBulk,
    /// Files of FTP, half of them up, half down.
    FtpBulk,
}

fn main() -> ExitCode {
    match drive(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn drive(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    if !arguments.target.ip().is_loopback() {
        return Err(format!("{} is not on loopback", arguments.target).into());
    }
    let measure = Duration::try_from_secs_f64(arguments.seconds)?;
    let plan = Plan {
        target: arguments.target,
        traffic: match arguments.traffic {
            Kind::Http => Traffic::Http { path: "/" },
            Kind::Http64k => Traffic::Http { path: "/64k" },
            Kind::Https => Traffic::Https { path: "/" },
            Kind::Https64k => Traffic::Https { path: "/64k" },
            Kind::TlsFull => Traffic::Handshake { resumed: false },
            Kind::TlsResumed => Traffic::Handshake { resumed: true },
            Kind::HttpClose => Traffic::HttpClose { path: "/" },
            Kind::TcpRr => Traffic::TcpEcho { bytes: 64 },
            Kind::TcpBulk => Traffic::TcpBulk,
            Kind::FtpBulk => Traffic::FtpBulk,
        },
        connections: arguments.connections,
        rate: arguments.rate,
        warm_up: measure / 10,
        measure,
    };
    let outcome = run(&plan, &mut || {
        arguments.pids.iter().map(|pid| cpu_time(*pid)).sum()
    })?;
    let seconds = outcome.elapsed.as_secs_f64();
    let cpu_us = outcome.cpu.as_secs_f64() * 1e6;
    if outcome.bytes > 0 {
        let mebibytes = outcome.bytes as f64 / (1024.0 * 1024.0);
        println!(
            "{:.0} MiB/s, cpu {:.1} us/MiB",
            mebibytes / seconds,
            cpu_us / mebibytes
        );
    } else {
        println!(
            "{:.0} requests/s, p50 {:.0} us, p99 {:.0} us, cpu {:.2} us/request, {} failed",
            outcome.requests as f64 / seconds,
            outcome.latency.quantile(0.5).as_secs_f64() * 1e6,
            outcome.latency.quantile(0.99).as_secs_f64() * 1e6,
            cpu_us / outcome.requests as f64,
            outcome.failures
        );
    }
    Ok(())
}

//! What a process owes to those who run it: a log, a warning, and a word to the service
//! manager.

use std::io::{self, IsTerminal};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::process::{Resource, getrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::Failure;
use crate::cli::{self, LogFormat};

/// Fewer file descriptors than these are worth a warning: each client takes two.
const FEW_DESCRIPTORS: u64 = 10_000;

/// Starts the log as a command line wants it.
pub fn start_log_of(args: &cli::Run) -> Result<(), Failure> {
    start_log(args.log.as_deref(), args.log_format).map_err(|error| Failure {
        code: 2,
        message: format!("--log (or $RUST_LOG) is not understood: {error}"),
    })
}

/// Sends logs to stderr. `directives` win over `$RUST_LOG`.
fn start_log(directives: Option<&str>, format: LogFormat) -> Result<(), ParseError> {
    let from_environment = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let directives = directives.or(from_environment.as_deref()).unwrap_or("info");
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse(directives)?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// Warns if the process may open few files only. The data plane raises the limit as far
/// as it may; the rest is the administrator's.
pub fn warn_of_few_open_files() {
    // No limit is `None`.
    if let Some(files) = getrlimit(Resource::Nofile).maximum
        && files < FEW_DESCRIPTORS
    {
        tracing::warn!(
            files,
            "few open files are allowed, and each client takes two; raise the hard limit (ulimit -Hn, or LimitNOFILE= of the service)"
        );
    }
}

/// Tells the service manager, if there is one that listens (sd_notify(3)).
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let name = name.as_encoded_bytes();
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
    };
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, state, "could not tell the service manager ($NOTIFY_SOCKET)");
    }
}

/// The signals that end a process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes them over for the whole process.
    pub fn listen() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for a signal to end; answers its name.
    pub async fn end(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

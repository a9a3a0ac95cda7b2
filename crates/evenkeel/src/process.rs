//! Duties of a process to its administrator: a log, a warning, and a message to the service manager.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::time::Duration;

use evenkeel_limits::files;
use evenkeel_limits::log::Log;
use evenkeel_net::inherited;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::{self, LogFormat};
use crate::failure::Failure;

/// Fewer file descriptors than these are worth a warning: each client takes two.
const FEW_DESCRIPTORS: usize = 10_000;

/// Time for which the end of the process waits for the log to be written.
const LOG_PATIENCE: Duration = Duration::from_secs(1);

static LOG: OnceLock<Log> = OnceLock::new();

/// Starts the log as a command line wants it.
pub(crate) fn start_log_of(args: &cli::Log) -> Result<(), Failure> {
    start_log(filter_of(args)?, args)
}

/// Returns the filter of the log that a command line wants: `--log` wins over `$RUST_LOG`.
pub(crate) fn filter_of(args: &cli::Log) -> Result<Targets, Failure> {
    let from_environment = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let given = args.log.as_deref().or(from_environment.as_deref());
    // Unless they are asked for by name, messages of the HTTP/2 library are left out: it warns of each
    // stream that a client resets, which the metrics count.
    let filter = format!("h2=error,{}", given.unwrap_or("info")).parse::<Targets>();
    filter.map_err(|error| Failure {
        code: 2,
        message: format!("--log (or $RUST_LOG) is not understood: {error}"),
    })
}

/// Waits until the logged lines are on stderr, but not for a reader that does not read them.
pub(crate) fn flush_log() {
    if let Some(log) = LOG.get() {
        log.flush(LOG_PATIENCE);
    }
}

/// Sends logs to stderr, from a thread, and never waits for the reader.
pub(crate) fn start_log(filter: Targets, args: &cli::Log) -> Result<(), Failure> {
    let log = Log::start(io::stderr())
        .map_err(|error| Failure::new(format!("cannot start the thread of the log: {error}")))?;
    let log = LOG.get_or_init(|| log);
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(|| log.clone())
        .with_ansi(std::io::stderr().is_terminal());
    match args.log_format {
        LogFormat::Text => subscriber.finish().with(filter).init(),
        LogFormat::Json => subscriber.json().finish().with(filter).init(),
    }
    Ok(())
}

/// Lets the process open as many files as it may, and warns if these are few: the rest is
/// the administrator's.
pub(crate) fn raise_file_limit() {
    let files = files::raise_limit();
    if files < FEW_DESCRIPTORS {
        tracing::warn!(
            files,
            "few open files are allowed, and each client takes two; raise the hard limit (ulimit -Hn, or LimitNOFILE= of the service)"
        );
    }
}

/// The first file that a service manager passes.
const FIRST_PASSED: i32 = 3;

/// Keeps the sockets that the service manager has opened for this process, if it has (sd_listen_fds(3)), for the
/// listeners. Called before anything else opens a file.
pub(crate) fn take_sockets_of_service_manager() -> Result<(), Failure> {
    let number = |name| std::env::var(name).ok()?.parse::<i32>().ok();
    if number("LISTEN_PID") != i32::try_from(std::process::id()).ok() {
        return Ok(());
    }
    let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, 10_000);
    for fd in FIRST_PASSED..FIRST_PASSED + count {
        let refused = |error: io::Error| {
            Failure::new(format!(
                "cannot use file {fd} of the service manager (LISTEN_FDS): {error}"
            ))
        };
        // SAFETY: it is looked at, and nothing else, while this is called; if it is not open, that is
        // an error.
        let passed = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::io::fcntl_setfd(passed, rustix::io::FdFlags::CLOEXEC)
            .map_err(|error| refused(error.into()))?;
        // SAFETY: it is open, and was passed to this process, of which nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        inherited::put_unnamed(socket).map_err(refused)?;
    }
    Ok(())
}

/// Tells the service manager that the configuration is being read again, before that begins;
/// [`notify_service_manager`] `READY=1` says that it was.
pub(crate) fn notify_reloading() {
    let micros = evenkeel_net::clock::monotonic_nanos() / 1_000;
    notify_service_manager(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// Tells the service manager, if there is one that listens (sd_notify(3)).
pub(crate) fn notify_service_manager(state: &str) {
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
        tracing::warn!(%error, state, "could not notify the service manager ($NOTIFY_SOCKET)");
    }
}

/// The signals that end a process.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over for the whole process.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate()).map_err(Self::failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(Self::failed)?,
        })
    }

    /// Returns the failure to take the signals over.
    pub(crate) fn failed(error: io::Error) -> Failure {
        Failure::new(format!("cannot listen to signals: {error}"))
    }

    /// Waits for a signal to end; returns the signal's name.
    pub(crate) async fn wait_for_end(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// An event loop of this thread.
pub(crate) fn build_runtime() -> Result<Runtime, Failure> {
    evenkeel_net::new_runtime().map_err(|error| Failure::new(format!("cannot start: {error}")))
}

/// Is over when a signal to end has come, which is logged as `what` begins.
pub(crate) fn end_signal(what: &'static str) -> Result<impl Future<Output = ()>, Failure> {
    let mut signals = Signals::listen()?;
    Ok(async move {
        let name = signals.wait_for_end().await;
        tracing::info!("{name}: {what}");
        notify_service_manager("STOPPING=1");
    })
}

/// Says on standard output where something listens, and that it is ready.
pub(crate) fn announce_ready(listening: &str) {
    // Nobody has to read it.
    let _ = io::stdout().lock().write_all(listening.as_bytes());
    let _ = io::stdout().lock().flush();
    notify_service_manager("READY=1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_of_http2_is_logged_if_it_is_named() {
        let filter = |log: &str| {
            let args = cli::Log {
                log: Some(log.to_owned()),
                log_format: LogFormat::Text,
            };
            filter_of(&args).map(|filter| filter.to_string())
        };
        for (log, wanted) in [
            ("info", "h2=error"),
            ("debug", "h2=error"),
            ("info,h2=debug", "h2=debug"),
        ] {
            let filter = filter(log).unwrap();
            let of_h2: Vec<&str> = filter
                .split(',')
                .filter(|one| one.starts_with("h2"))
                .collect();
            assert_eq!(of_h2, [wanted], "{log}: {filter}");
        }
        assert!(filter("info,h2=loud").is_err());
    }
}

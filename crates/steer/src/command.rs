//! Programs that are run, with a time limit.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use rustix::thread::clear_ambient_capability_set;

/// Interval at which the end of a program is looked for.
const LOOK: Duration = Duration::from_millis(10);

/// Most of what a program says that is repeated, in bytes.
const MOST: u64 = 4 << 10;

/// Failure of a program, which did not do what it was run for.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The program cannot be run.
    #[error("cannot run {program}: {error}")]
    Run {
        /// Name of the program.
        program: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The program took too long, and was killed.
    #[error("{program} did not end within {limit:?}, and was killed")]
    Slow {
        /// Name of the program.
        program: String,
        /// The time limit.
        limit: Duration,
    },
    /// The program's exit code is not 0.
    #[error("{program}: {status}: {said}")]
    Status {
        /// Name of the program.
        program: String,
        /// Exit status of the program.
        status: String,
        /// Last output of the program.
        said: String,
    },
}

/// Runs a program with its arguments until its end. An empty command does nothing.
///
/// # Errors
///
/// The program cannot be run, takes longer than `limit`, or does not end with 0.
pub(crate) async fn run(command: &[String], limit: Duration) -> Result<(), Failed> {
    let Some((name, arguments)) = command.split_first() else {
        return Ok(());
    };
    let program = command.join(" ");
    let failed = |error| Failed::Run {
        program: program.clone(),
        error,
    };
    // What this process may do beyond its user is for its successor at an upgrade, which another thread starts.
    let _ = clear_ambient_capability_set();
    let child = Command::new(name)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    // Dropped before its end, it is killed.
    let mut child = Running(child.map_err(failed)?);
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait().map_err(failed)? {
            break status;
        }
        if started.elapsed() >= limit {
            return Err(Failed::Slow { program, limit });
        }
        tokio::time::sleep(LOOK).await;
    };
    if status.success() {
        return Ok(());
    }
    Err(Failed::Status {
        program,
        status: status.to_string(),
        said: child.take_output(),
    })
}

struct Running(Child);

impl Running {
    /// Returns the last output of the program. A program that it has started may still have the pipe.
    fn take_output(&mut self) -> String {
        let mut said = Vec::new();
        if let Some(pipe) = &mut self.0.stderr
            && ioctl_fionbio(&*pipe, true).is_ok()
        {
            // It ends with an error where nothing more is there.
            let _ = pipe.take(MOST).read_to_end(&mut said);
        }
        let text = String::from_utf8_lossy(&said);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        words.chars().filter(|c| !c.is_control()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, or has to.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[tokio::test]
    async fn n20_programs_do_not_get_the_capabilities_of_the_process() {
        use rustix::thread::{
            CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set,
            set_capabilities,
        };
        let bind = CapabilitySet::NET_BIND_SERVICE;
        let ambient = capabilities(None).and_then(|sets| {
            let inheritable = sets.inheritable | bind;
            set_capabilities(
                None,
                CapabilitySets {
                    inheritable,
                    ..sets
                },
            )?;
            configure_capability_in_ambient_set(bind, true)
        });
        if let Err(error) = ambient {
            use std::io::Write as _;
            let _ = writeln!(
                io::stderr(),
                "SKIPPED: n20_programs_do_not_get_the_capabilities_of_the_process: no right to give one: {error}"
            );
            return;
        }
        let script = "grep -E '^CapAmb:[[:space:]]0+$' /proc/self/status";
        let ended = run(&command(&["sh", "-c", script]), Duration::from_secs(20)).await;
        assert!(ended.is_ok(), "{ended:?}");
    }

    #[tokio::test]
    async fn programs_end_well_badly_or_not_at_all() {
        let long = Duration::from_secs(20);
        assert!(run(&[], long).await.is_ok());
        assert!(run(&command(&["true"]), long).await.is_ok());
        let script = command(&["sh", "-c", "echo out; echo no, really >&2; exit 3"]);
        let error = run(&script, long).await.unwrap_err().to_string();
        assert!(error.ends_with("exit status: 3: no, really"), "{error}");
        let error = run(&command(&["/nowhere"]), long).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot run /nowhere: "));
        let slow = command(&["sleep", "1000"]);
        let error = run(&slow, Duration::from_millis(1)).await.unwrap_err();
        assert!(error.to_string().contains("was killed"), "{error}");
        // One that leaves something behind which has the pipe holds nobody up.
        let script = command(&["sh", "-c", "sleep 30 & echo x >&2; exit 1"]);
        let error = run(&script, long).await.unwrap_err().to_string();
        assert!(error.ends_with(": x"), "{error}");
    }
}

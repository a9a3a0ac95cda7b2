//! A command that is run when a load alert begins or ends.

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Pause before a command that could not be run is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs a command, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Hook {
    running: Option<Child>,
    /// State of the alert that this agent has told the command last. In the beginning there is
    /// none: an agent that was killed may have left the server under an alert that is long
    /// over.
    told: Option<bool>,
    /// State of the alert that the command is to be told.
    wanted: bool,
    /// Time and kind of the error if the command could not be run the last time.
    failed: Option<(Instant, io::ErrorKind)>,
}

impl Hook {
    /// Tells the command, if there is one, whether `server` is under an alert; a change while the
    /// command runs is told when it has ended. To be called again and again.
    pub(crate) fn tell_alert(&mut self, command: &[String], server: &str, alert: bool) {
        self.wanted = alert;
        if let Some(child) = &mut self.running {
            match child.try_wait() {
                Ok(None) => return,
                Ok(Some(status)) if status.success() => {}
                Ok(Some(status)) => tracing::warn!(server, %status, "the on_alert command failed"),
                Err(error) => {
                    tracing::warn!(server, %error, "the result of the on_alert command is unknown")
                }
            }
            self.running = None;
        }
        let Some((program, arguments)) = command.split_first() else {
            self.failed = None;
            return;
        };
        let too_soon = |(at, _): &(Instant, _)| at.elapsed() < AGAIN;
        if self.told == Some(self.wanted) || self.failed.as_ref().is_some_and(too_soon) {
            return;
        }
        let child = Command::new(program)
            .args(arguments)
            .env("EVENKEEL_ALERT", if alert { "on" } else { "off" })
            .env("EVENKEEL_SERVER", server)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        match child {
            Ok(child) => {
                self.running = Some(child);
                self.told = Some(self.wanted);
                self.failed = None;
            }
            // There may have been no process, memory or file left for a moment.
            Err(error) => {
                let kind = error.kind();
                let before = self.failed.replace((Instant::now(), kind));
                if before.is_none_or(|(_, before)| before != kind) {
                    tracing::warn!(
                        server,
                        program,
                        %error,
                        "cannot run the on_alert command; retrying every {AGAIN:?}"
                    );
                }
            }
        }
    }

    /// Returns true if the command was running when it was last to be told something.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns true if the command is to be told another state than when it was started, or
    /// soon can be told a state that it was not told: a program that is not there is not waited
    /// for.
    pub(crate) fn is_behind(&self) -> bool {
        use io::ErrorKind::{NotFound, PermissionDenied};
        let failed = self.failed.as_ref();
        let soon = failed.is_some_and(|(_, kind)| !matches!(kind, NotFound | PermissionDenied));
        (self.is_running() || soon) && self.told != Some(self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_learns_of_each_change_one_at_a_time() {
        let name = format!("evenkeel-agent-hook-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let script = "echo $EVENKEEL_SERVER $EVENKEEL_ALERT $0 >>\"$1\"";
        let file_name = file.display().to_string();
        let command = ["sh", "-c", script, "me", &file_name].map(str::to_owned);
        let mut hook = Hook::default();
        let mut tell = |alert| {
            hook.tell_alert(&command, "shop", alert);
            while let Some(child) = &mut hook.running {
                child.wait().unwrap();
                hook.tell_alert(&command, "shop", alert);
            }
        };
        for alert in [false, false, true, true, false] {
            tell(alert);
        }
        let told = std::fs::read_to_string(&file).unwrap();
        // The first one ends what an agent before this one may have left behind.
        assert_eq!(told, "shop off me\nshop on me\nshop off me\n");
        std::fs::remove_file(file).unwrap();
        Hook::default().tell_alert(&["/nowhere".into()], "shop", true);
        Hook::default().tell_alert(&[], "shop", true);
    }

    /// Case in which there is no process left for a moment: the server is not left in an alert.
    #[test]
    fn c10_what_could_not_be_run_is_run_later() {
        let name = format!("evenkeel-agent-hook-later-{}", std::process::id());
        let place = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&place).unwrap();
        let (program, told) = (place.join("shed"), place.join("told"));
        let script = format!("echo $EVENKEEL_ALERT >>{}", told.display());
        let command = [program.display().to_string(), "-c".into(), script];
        let mut hook = Hook::default();
        // The system runs no program that somebody is writing.
        std::fs::copy("/bin/sh", &program).unwrap();
        let writing = std::fs::File::options().write(true).open(&program);
        hook.tell_alert(&command, "shop", false);
        assert!(hook.is_behind() && !hook.is_running());
        drop(writing);
        while hook.is_behind() || hook.is_running() {
            hook.tell_alert(&command, "shop", false);
            std::thread::yield_now();
        }
        assert_eq!(std::fs::read_to_string(&told).unwrap(), "off\n");
        // What is not there is tried again as well, but nobody waits for it at the end.
        std::fs::remove_file(&program).unwrap();
        hook.tell_alert(&command, "shop", true);
        assert!(!hook.is_behind());
        std::fs::copy("/bin/sh", &program).unwrap();
        while hook.told == Some(false) || hook.is_running() {
            hook.tell_alert(&command, "shop", true);
            std::thread::yield_now();
        }
        assert_eq!(std::fs::read_to_string(&told).unwrap(), "off\non\n");
        std::fs::remove_dir_all(place).unwrap();
    }
}

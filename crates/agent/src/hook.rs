//! A command that is run when a load alert begins or ends.

use std::process::{Child, Command, Stdio};

/// Runs a command, one at a time.
#[derive(Debug, Default)]
pub struct Hook {
    running: Option<Child>,
    /// What this agent has told it last. In the beginning that is nothing: an agent that
    /// was killed may have left the server under an alert that is long over.
    told: Option<bool>,
    /// What it is to be told.
    wanted: bool,
}

impl Hook {
    /// Tells the command, if there is one, whether `server` is under an alert; what has
    /// changed while it ran is told when it has ended. To be called again and again.
    pub fn tell(&mut self, command: &[String], server: &str, alert: bool) {
        self.wanted = alert;
        if let Some(child) = &mut self.running {
            match child.try_wait() {
                Ok(None) => return,
                Ok(Some(status)) if status.success() => {}
                Ok(Some(status)) => tracing::warn!(server, %status, "on_alert failed"),
                Err(error) => tracing::warn!(server, %error, "on_alert is lost"),
            }
            self.running = None;
        }
        let Some((program, arguments)) = command.split_first() else {
            return;
        };
        if self.told == Some(self.wanted) {
            return;
        }
        self.told = Some(self.wanted);
        let child = Command::new(program)
            .args(arguments)
            .env("EVENKEEL_ALERT", if alert { "on" } else { "off" })
            .env("EVENKEEL_SERVER", server)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        match child {
            Ok(child) => self.running = Some(child),
            Err(error) => tracing::warn!(server, program, %error, "cannot run on_alert"),
        }
    }

    /// Whether the command was running when it was last to be told something.
    pub fn runs(&self) -> bool {
        self.running.is_some()
    }

    /// Whether it is to be told something else than it was when it was started.
    pub fn is_behind(&self) -> bool {
        self.runs() && self.told != Some(self.wanted)
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
            hook.tell(&command, "shop", alert);
            while let Some(child) = &mut hook.running {
                child.wait().unwrap();
                hook.tell(&command, "shop", alert);
            }
        };
        for alert in [false, false, true, true, false] {
            tell(alert);
        }
        let told = std::fs::read_to_string(&file).unwrap();
        // The first one ends what an agent before this one may have left behind.
        assert_eq!(told, "shop off me\nshop on me\nshop off me\n");
        std::fs::remove_file(file).unwrap();
        Hook::default().tell(&["/nowhere".into()], "shop", true);
        Hook::default().tell(&[], "shop", true);
    }
}

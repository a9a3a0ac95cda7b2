//! Hand-over of the prompts that engines remember.

use std::fs::File;
use std::time::{Duration, Instant};

use evenkeel_core::engines::PROMPTS_VERSION;
use evenkeel_core::prompt_key::{prompt_secret, set_prompt_secret};
use tracing::warn;

use super::Manager;
use crate::handover::Handover;
use crate::state::{COPY_LIMIT, CopiedPrompts, NamedEngines, OtherPrompts};

/// Part of a [`Handover`].
const PROMPTS: &str = "prompts";

impl Manager {
    /// True if a group remembers prompts.
    pub fn has_prompts(&self) -> bool {
        let owned = self.lock();
        let mut groups = owned.state.groups.iter();
        groups.any(|entry| entry.group.engines().is_some())
    }

    /// Copies the prompts of all groups to a file and a part of the hand-over, for at most `limit` and ten seconds.
    pub fn copy_prompts(&self, mut file: &File, to: &mut Handover, limit: Duration) {
        let until = Instant::now() + COPY_LIMIT.min(limit);
        let mut copied = CopiedPrompts {
            secret: prompt_secret(),
            ..CopiedPrompts::default()
        };
        for engines in self.list_engines() {
            match engines.copy(&mut file, until) {
                Ok(group) => drop(copied.groups.insert(engines.group, group)),
                Err(error) => {
                    warn!(group = engines.group, %error, "upgrade: cannot copy the index of prompts: the new process starts without it");
                }
            }
        }
        to.give(PROMPTS, PROMPTS_VERSION, &copied);
    }

    fn list_engines(&self) -> Vec<NamedEngines> {
        let owned = self.lock();
        let groups = owned.state.groups.iter();
        groups.filter_map(NamedEngines::find).collect()
    }

    /// Takes over the prompts of another process, once the first configuration comes. `file` has the indexes.
    pub fn take_over_prompts(&self, from: &Handover, file: Option<File>) {
        let Some(file) = file else { return };
        let Some(copied) = from.take::<CopiedPrompts>(PROMPTS, PROMPTS_VERSION) else {
            return;
        };
        if !set_prompt_secret(copied.secret) {
            warn!(
                "upgrade: the key of the fleet is another one than in the old process: starting without its index of prompts"
            );
            return;
        }
        self.lock().state.prompts = Some(OtherPrompts { copied, file });
    }
}

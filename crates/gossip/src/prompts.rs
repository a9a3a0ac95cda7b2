//! Telling and hearing [prompts](crate::prompt_report) that balancers have sent to engines for language models.

use evenkeel_core::key;

use crate::fleet::Fleet;
use crate::prompt_report::{PromptBodies, ToldPrompt, decode_prompts};
use crate::seal::Kind;

/// Most prompts of a group that wait to be taken.
const MAX_WAITING: usize = 4096;

impl Fleet {
    /// Tells all others the prompts that this balancer has sent.
    pub fn send_prompts(&mut self, prompts: &PromptBodies) {
        self.counters.prompts_told += prompts.prompts;
        for body in &prompts.bodies {
            self.send_body(Kind::Prompts, None, body);
        }
    }

    /// True if another balancer is there to be told.
    pub fn has_listener(&self) -> bool {
        let mut peers = self.peers.values();
        peers.any(|peer| peer.active && peer.out.is_some())
    }

    /// Takes the prompts that others have sent to engines of a group since the last call. Those with another mark are
    /// forgotten: their hashes are made in another way.
    pub fn take_prompts(&mut self, group: &str, mark: u32) -> Vec<ToldPrompt> {
        let group = key::hash(group.as_bytes());
        let taken = self.heard_prompts.remove(&group).unwrap_or_default();
        let taken = taken.into_iter().filter(|(of, _)| *of == mark);
        let taken: Vec<_> = taken.map(|(_, prompt)| prompt).collect();
        self.counters.prompts_heard += taken.len() as u64;
        taken
    }

    /// Forgets the prompts that others have sent to a group: the group has no engines.
    pub fn forget_prompts(&mut self, group: &str) {
        self.heard_prompts.remove(&key::hash(group.as_bytes()));
    }

    /// Keeps prompts of another balancer until they are taken, as far as there is room. Groups that this balancer does not
    /// have are left out.
    pub(crate) fn hear_prompts(&mut self, body: &[u8]) -> Option<()> {
        let (group, mark, prompts) = decode_prompts(body)?;
        if self.groups.contains_key(&group) {
            let waiting = self.heard_prompts.entry(group).or_default();
            let room = MAX_WAITING.saturating_sub(waiting.len());
            let prompts = prompts.into_iter().take(room);
            waiting.extend(prompts.map(|prompt| (mark, prompt)));
        }
        Some(())
    }
}

//! Telling and hearing [work](crate::work_report) at engines for language models.

use std::collections::{BTreeMap, HashMap};

use evenkeel_core::engine_work::EngineWork;
use evenkeel_core::key;
use evenkeel_core::time::Instant;

use crate::fleet::Fleet;
use crate::seal::Kind;
use crate::work_report::{MAX_ENTRIES, WorkReport};

impl Fleet {
    /// Tells all others the work of this balancer at the members of a group, which are [numbers](evenkeel_core::key) for
    /// their addresses. Members without work that had some before are told once more.
    pub fn announce_work(&mut self, group: &str, own: impl Iterator<Item = (u64, EngineWork)>) {
        let group = key::hash(group.as_bytes());
        let before = self.told_work.remove(&group).unwrap_or_default();
        let ended = before.into_iter();
        let mut all: BTreeMap<u64, EngineWork> = ended
            .map(|member| (member, EngineWork::default()))
            .collect();
        all.extend(own.filter(|(_, work)| !work.is_idle()));
        if all.is_empty() {
            return;
        }
        let busy = all.iter().filter(|(_, work)| !work.is_idle());
        let busy: Vec<u64> = busy.map(|(member, _)| *member).collect();
        if !busy.is_empty() {
            self.told_work.insert(group, busy);
        }
        let all: Vec<(u64, EngineWork)> = all.into_iter().collect();
        for members in all.chunks(MAX_ENTRIES) {
            let members = members.to_vec();
            let body = WorkReport { group, members }.encode();
            self.send_body(Kind::Work, None, &body);
        }
    }

    /// Returns the work of all other balancers at the members of a group, as far as they have told it lately.
    pub fn work_of_others(&self, group: &str, now: Instant) -> HashMap<u64, EngineWork> {
        let group = key::hash(group.as_bytes());
        let mut sums: HashMap<u64, EngineWork> = HashMap::new();
        for peer in self.peers.values().filter(|peer| peer.active) {
            for (member, work) in peer.heard_work.list_fresh(group, now) {
                let sum = sums.entry(member).or_default();
                *sum = sum.add_work(work);
            }
        }
        sums
    }

    /// Takes in the work of another balancer. Work in groups that this balancer does not have is left out.
    pub(crate) fn hear_work(
        &mut self,
        from: std::net::SocketAddr,
        body: &[u8],
        count: u64,
        now: Instant,
    ) -> Option<()> {
        let report = WorkReport::decode(body)?;
        let is_known = self.groups.contains_key(&report.group);
        let peer = self.peers.get_mut(&from)?;
        if is_known {
            peer.heard_work.take_report(report, count, now);
        }
        Some(())
    }

    /// Forgets what was told of groups that this balancer no longer has.
    pub(crate) fn forget_work(&mut self) {
        let groups = &self.groups;
        self.told_work.retain(|group, _| groups.contains_key(group));
        let heard = &mut self.heard_prompts;
        heard.retain(|group, _| groups.contains_key(group));
    }
}

//! The ideal to compare with: one queue that knows everything.
//!
//! No balancer can do this: it holds every request back until the best member is
//! free, knows each member's speed at every moment, which members fail, and, if told
//! to, how long each request will take. For equal members it is the M/G/k queue.

use std::collections::VecDeque;

use super::server::{JobId, Server};

/// Requests looked at beyond the head of the queue.
const LOOK_AHEAD: usize = 64;

/// The queue in front of all members.
#[derive(Debug, Default)]
pub(super) struct Central {
    waiting: VecDeque<(JobId, f64)>,
    /// Scratch: the time at which each slot of each member will be free, and the member.
    free_at: Vec<(f64, usize)>,
}

impl Central {
    pub(super) fn push(&mut self, job: JobId, work: f64) {
        self.waiting.push_back((job, work));
    }

    /// The next request to send, and where to: each request in turn reserves the slot
    /// that would finish it first, its waiting time there included; it is sent once
    /// that slot is free. Members that are dead are `None`. `mean_work` stands in for every work if sizes are not known.
    pub(super) fn next<'a>(
        &mut self,
        servers: impl Iterator<Item = Option<&'a Server>>,
        mean_work: Option<f64>,
        now: u64,
    ) -> Option<(JobId, f64, usize)> {
        if self.waiting.is_empty() {
            return None;
        }
        let servers: Vec<Option<&Server>> = servers.collect();
        let mut up = servers.iter().flatten();
        let all_fail = up.all(|server| server.failing > 0.0);
        self.free_at.clear();
        for (index, server) in servers.iter().enumerate() {
            let Some(server) = server else {
                continue;
            };
            if server.failing > 0.0 && !all_fail {
                continue;
            }
            let slowness = server.slowness();
            let busy = server.in_flight();
            let left = server
                .left(now)
                .map(|left| mean_work.unwrap_or(left) * slowness);
            let idle = std::iter::repeat_n(0.0, server.slots().saturating_sub(busy));
            self.free_at
                .extend(left.chain(idle).map(|free_at| (free_at, index)));
        }
        for (place, &(job, work)) in self.waiting.iter().take(LOOK_AHEAD).enumerate() {
            let expected = mean_work.unwrap_or(work);
            let done = |&(free_at, server): &(f64, usize)| {
                free_at + expected * servers[server].map_or(1.0, Server::slowness)
            };
            let best = (0..self.free_at.len())
                .min_by(|&a, &b| done(&self.free_at[a]).total_cmp(&done(&self.free_at[b])))?;
            let (free_at, server) = self.free_at[best];
            if free_at == 0.0 {
                self.waiting.remove(place);
                return Some((job, work, server));
            }
            self.free_at[best].0 = done(&self.free_at[best]);
        }
        None
    }
}

//! A run of the demo under way: its script, its stage, and what has been asked of the balancer so far.

use std::time::{Duration, Instant};

use evenkeel_admin::client::Client;
use evenkeel_admin::wire::{Done, Report};
use evenkeel_manager::status::Status;

use crate::error::DemoError;
use crate::history::History;
use crate::load;
use crate::script::{Phase, Script};
use crate::stage::{self, Stage};

/// Interval in which the balancer is asked.
const ASK: Duration = Duration::from_millis(500);

/// Samples older than this are forgotten in a run without an end.
const REMEMBER: Duration = Duration::from_secs(600);

/// A run under way.
pub(crate) struct Show {
    script: Script,
    pub(crate) started: Instant,
    /// The phases so far, the current one last.
    pub(crate) phases: Vec<Phase>,
    pub(crate) history: History,
    pub(crate) stage: Stage,
    client: Client,
    pub(crate) status: Option<Status>,
    asked: Option<Instant>,
    /// Worker time of each back-end when its load was last reported.
    busy: Vec<Duration>,
    /// Shares of the members at the end of the last slow phase, per arm.
    pub(crate) shares: Vec<Vec<f64>>,
}

impl Show {
    /// Starts a run of `seconds`, or without an end if 0.
    pub(crate) fn new(stage: Stage, client: Client, seconds: u64) -> Self {
        Show {
            script: Script::new(seconds),
            started: Instant::now(),
            phases: Vec::new(),
            history: History::default(),
            stage,
            client,
            status: None,
            asked: None,
            busy: Vec::new(),
            shares: Vec::new(),
        }
    }

    /// Follows the script and asks the balancer; answers whether the run goes on.
    pub(crate) fn step(&mut self) -> Result<bool, DemoError> {
        if let Some(error) = self.stage.balancer_ended() {
            return Err(error);
        }
        let Some(phase) = self.script.phase_at(self.started.elapsed()) else {
            return Ok(false);
        };
        if self.phases.last() != Some(&phase) {
            if self.phases.last().is_some_and(|last| last.slow) {
                self.shares = self.status.iter().flat_map(shares).collect();
            }
            self.stage.set_slow(phase.slow);
            self.phases.push(phase);
        }
        if self.asked.is_none_or(|asked| asked.elapsed() >= ASK) {
            self.report_loads()?;
            self.status = Some(self.client.get(&["v1", "status"], &[])?);
            self.asked = Some(Instant::now());
        }
        self.history.add_finished_seconds(&self.stage, self.started);
        if let Some(forget) = Instant::now().checked_sub(REMEMBER) {
            for arm in &self.stage.arms {
                load::lock_seen(&arm.seen).forget_before(forget);
            }
        }
        Ok(true)
    }

    /// Tells the balancer how busy each back-end has been, as back-ends that know their
    /// load would do themselves.
    fn report_loads(&mut self) -> Result<(), DemoError> {
        let elapsed = self.asked.map(|asked| asked.elapsed());
        let mut busy = Vec::new();
        for arm in self.stage.own_arms() {
            for (index, backend) in arm.backends.iter().enumerate() {
                let before = self.busy.get(busy.len()).copied();
                let now = backend.busy_time();
                busy.push(now);
                let (Some(before), Some(elapsed)) = (before, elapsed) else {
                    continue;
                };
                let possible = elapsed.as_secs_f64() * backend.workers() as f64;
                let used = now.saturating_sub(before).as_secs_f64() / possible.max(1e-3);
                let location = stage::location_name(arm.name, index);
                let report = Report {
                    loads: [("cpu".to_owned(), used)].into(),
                };
                let path = ["v1", "locations", &location, "loads"];
                let _: Done = self.client.post_resource(&path, &report)?;
            }
        }
        self.busy = busy;
        Ok(())
    }
}

/// Shares of the members, per arm.
fn shares(status: &Status) -> Vec<Vec<f64>> {
    let groups = status.groups.iter();
    groups
        .map(|group| group.members.iter().map(|member| member.share).collect())
        .collect()
}

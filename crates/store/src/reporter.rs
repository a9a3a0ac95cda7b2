//! Reporter of what a balancer runs: writes reports to the store, under a lease.

use std::time::{Duration, Instant};

use tracing::{debug, error, warn};

use crate::etcd::{Etcd, EtcdError, Keys, Write};
use crate::judge::Counts;
use crate::model::Report;

/// Time for which a report stays in the store after the balancer's last sign of life.
const LEASE: Duration = Duration::from_secs(10);

/// Interval at which a lease is kept alive.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Interval at which counts are reported while a roll-out is on.
const COUNTS: Duration = Duration::from_secs(2);

/// Names that tell a balancer from others in the store.
pub(crate) struct Identity<'a> {
    /// Name of the balancer.
    pub(crate) name: &'a str,
    /// Random text that tells this process from others with the same name.
    pub(crate) process: &'a str,
}

/// Writes reports.
#[derive(Default)]
pub(crate) struct Reporter {
    lease: Option<(i64, Instant)>,
    /// The last report written, without counts, and its time.
    told: Option<(Report, Instant)>,
    /// True while another process reports by the same name.
    is_double: bool,
    is_failing: bool,
}

impl Reporter {
    /// Keeps the lease of the report under `key` alive, and checks that the report is the one of this process.
    pub(crate) async fn keep_lease(
        &mut self,
        etcd: &mut Etcd,
        key: &str,
        identity: &Identity<'_>,
    ) -> Result<(), EtcdError> {
        if let Some((lease, kept)) = self.lease
            && kept.elapsed() >= KEEP_ALIVE
        {
            match etcd.keep_alive(lease).await? {
                true => {
                    self.lease = Some((lease, Instant::now()));
                    if self.told.is_some() {
                        self.check_report(etcd, key, identity).await?;
                    }
                }
                // The lease has run out, or the store was restored.
                false => (self.lease, self.told) = (None, None),
            }
        }
        Ok(())
    }

    /// Writes `report` under `key`, if it has changed, or if its counts are due because a roll-out is on (`is_tried`).
    pub(crate) async fn write_report(
        &mut self,
        etcd: &mut Etcd,
        key: String,
        report: Report,
        is_tried: bool,
    ) -> Result<(), EtcdError> {
        let without_counts = Report {
            counts: Counts::default(),
            ..report.clone()
        };
        // Each report makes the store larger until the store is compacted.
        let is_due = match &self.told {
            None => true,
            Some((told, at)) => *told != without_counts || is_tried && at.elapsed() >= COUNTS,
        };
        if !is_due {
            return Ok(());
        }
        let lease = match self.lease {
            Some((lease, _)) => lease,
            None => {
                let lease = etcd.lease(LEASE).await?;
                self.lease = Some((lease, Instant::now()));
                lease
            }
        };
        let written = etcd
            .write(vec![Write::Put(key, report.write(), lease)])
            .await;
        if let Err(error) = written {
            // The lease may not exist any more.
            (self.lease, self.told) = (None, None);
            return Err(error);
        }
        self.told = Some((without_counts, Instant::now()));
        Ok(())
    }

    /// Checks that the written report is still in the store.
    async fn check_report(
        &mut self,
        etcd: &mut Etcd,
        key: &str,
        identity: &Identity<'_>,
    ) -> Result<(), EtcdError> {
        let read = etcd.read(Keys::One(key)).await?;
        let Some(entry) = read.entries.first() else {
            self.told = None;
            return Ok(());
        };
        let is_own = |report: Report| report.process == identity.process;
        let is_double = !Report::read(&entry.value).is_ok_and(is_own);
        if is_double && !self.is_double {
            error!(
                "another balancer is called {:?} in the store, too, so the store cannot tell what each of \
                 them runs: give each balancer a different `name` in [node]",
                identity.name
            );
        }
        self.is_double = is_double;
        Ok(())
    }

    /// Forgets the report that was written, so that the next one is written in any case.
    pub(crate) fn forget_report(&mut self) {
        self.told = None;
    }

    /// Notes that the reporter's work has succeeded.
    pub(crate) fn note_success(&mut self) {
        self.is_failing = false;
    }

    /// Notes that the reporter's work has failed, and logs the error.
    pub(crate) fn note_failure(&mut self, error: &EtcdError) {
        match std::mem::replace(&mut self.is_failing, true) {
            false => warn!("cannot write to the store which revision this balancer runs: {error}"),
            true => debug!("cannot write to the store which revision this balancer runs: {error}"),
        }
    }
}

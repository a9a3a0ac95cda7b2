//! Election of the balancer that writes statuses, by a Lease of the API server; no I/O, no clock.
//!
//! Whoever holds the lease renews it. Another balancer takes the lease once it has not seen a change for the lease's
//! duration, by its own clock: clocks of machines need not agree. A holder counts as the leader only for
//! [`DEADLINE`] after it asked for the renewal, which is shorter than the duration: so there are never two leaders.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::conditions::format_time;
use super::objects::{Metadata, ObjectName};

/// Time without a renewal after which another balancer may take the lease.
const DURATION: Duration = Duration::from_secs(15);

/// Time after the question for a renewal for which the holder is the leader.
const DEADLINE: Duration = Duration::from_secs(10);

/// Pause between two looks at the lease.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);

/// Longest pause after failures, half of which is the shortest pause then: a holder asks again before its term ends.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(8);

const _: () = assert!(LONGEST_PAUSE.as_secs() < DEADLINE.as_secs());

/// Lease as the API server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct LeaseSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u32>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i64>,
}

/// Lease with its version.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Lease {
    metadata: Metadata,
    spec: LeaseSpec,
}

/// Action of a balancer after a look at the lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// The balancer creates this lease.
    Create(Value),
    /// The balancer changes the lease: a merge patch.
    Change(Value),
    /// The balancer waits.
    Wait,
}

/// Election as a balancer knows it.
#[derive(Debug)]
pub(crate) struct Election {
    lease: ObjectName,
    /// Name of this process, unlike all others.
    identity: String,
    /// Lease that was seen last, and when it was seen first like this.
    seen: Option<(Lease, Instant)>,
}

impl Election {
    /// An election in which nothing is known.
    pub(crate) fn new(lease: ObjectName, identity: String) -> Self {
        Election {
            lease,
            identity,
            seen: None,
        }
    }

    /// Returns the step after a look at the lease, which is `None` if there is no lease. `now` is the time of the answer,
    /// and `unix` the same in microseconds since 1970.
    pub(crate) fn note_lease(&mut self, lease: Option<Lease>, now: Instant, unix: i64) -> Step {
        let Some(lease) = lease else {
            self.seen = None;
            return Step::Create(self.write_lease(None, unix));
        };
        let since = match &self.seen {
            Some((known, since)) if *known == lease => *since,
            _ => now,
        };
        self.seen = Some((lease.clone(), since));
        let holder = lease.spec.holder_identity.as_deref().unwrap_or_default();
        let duration = lease.spec.lease_duration_seconds.unwrap_or_default();
        let duration = Duration::from_secs(duration.clamp(1, 3_600).into());
        let is_free = holder.is_empty() || now.duration_since(since) >= duration;
        match holder == self.identity || is_free {
            true => Step::Change(self.write_lease(Some(&lease), unix)),
            false => Step::Wait,
        }
    }

    /// Returns the name of this process.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the holder of the lease that was seen last.
    pub(crate) fn find_holder(&self) -> Option<&str> {
        let (lease, _) = self.seen.as_ref()?;
        let holder = lease.spec.holder_identity.as_deref();
        holder.filter(|name| !name.is_empty())
    }

    /// Returns the time until which this balancer is the leader after a step that went well; `asked` is the time of the
    /// question.
    pub(crate) fn end_of_term(asked: Instant) -> Instant {
        asked + DEADLINE
    }

    /// Writes the lease of this balancer, as a whole or as a change of the lease before.
    fn write_lease(&self, before: Option<&Lease>, unix: i64) -> Value {
        let seconds = format_time(unix.div_euclid(1_000_000));
        let micros = unix.rem_euclid(1_000_000);
        let now = format!("{}.{micros:06}Z", seconds.trim_end_matches('Z'));
        let spec = before.map(|lease| lease.spec.clone()).unwrap_or_default();
        let is_holder = spec.holder_identity.as_ref() == Some(&self.identity);
        let transitions = spec.lease_transitions.unwrap_or_default();
        let (acquired, transitions) = match is_holder {
            true => (
                spec.acquire_time.unwrap_or_else(|| now.clone()),
                transitions,
            ),
            false => (
                now.clone(),
                transitions.saturating_add(i64::from(before.is_some())),
            ),
        };
        let spec = json!({
            "holderIdentity": self.identity,
            "leaseDurationSeconds": DURATION.as_secs(),
            "acquireTime": acquired,
            "renewTime": now,
            "leaseTransitions": transitions,
        });
        match before {
            // The version lets the API server refuse the change if another balancer was faster.
            Some(lease) => json!({
                "metadata": { "resourceVersion": lease.metadata.resource_version },
                "spec": spec,
            }),
            None => json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": { "namespace": self.lease.namespace, "name": self.lease.name },
                "spec": spec,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn election(identity: &str) -> Election {
        Election::new(ObjectName::new("evenkeel", "gateway"), identity.into())
    }

    /// API server with one lease.
    #[derive(Default)]
    struct Server {
        lease: Option<Value>,
        version: u64,
    }

    impl Server {
        fn read(&self) -> Option<Lease> {
            { self.lease.clone() }.map(|lease| Lease::deserialize(lease).unwrap())
        }

        /// Takes a step. Returns true if it was taken.
        fn write(&mut self, step: &Step) -> bool {
            let (object, is_good) = match step {
                Step::Create(object) => (object, self.lease.is_none()),
                Step::Change(patch) => {
                    let version = &patch["metadata"]["resourceVersion"];
                    let is_current = version.as_str() == Some(&self.version.to_string());
                    (patch, is_current)
                }
                Step::Wait => return false,
            };
            if is_good {
                self.version += 1;
                let metadata =
                    json!({ "name": "gateway", "resourceVersion": self.version.to_string() });
                self.lease = Some(json!({ "metadata": metadata, "spec": object["spec"] }));
            }
            is_good
        }
    }

    #[test]
    fn a_lease_is_created_renewed_and_taken_when_its_holder_is_gone() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut one, mut two) = (election("one"), election("two"));
        let at = |seconds| start + Duration::from_secs(seconds);
        let created = one.note_lease(server.read(), at(0), 951_827_696_000_042);
        let Step::Create(object) = &created else {
            panic!("{created:?}");
        };
        assert_eq!(object["spec"]["renewTime"], "2000-02-29T12:34:56.000042Z");
        assert_eq!(object["metadata"]["namespace"], "evenkeel");
        assert!(server.write(&created) && !server.write(&created));
        assert_eq!(two.find_holder(), None);
        assert_eq!(two.note_lease(server.read(), at(0), 0), Step::Wait);
        assert_eq!(two.find_holder(), Some("one"));
        let renewed = one.note_lease(server.read(), at(2), 1_000_000);
        assert!(server.write(&renewed) && !server.write(&renewed));
        let spec = &server.lease.as_ref().unwrap()["spec"];
        assert_eq!(spec["acquireTime"], "2000-02-29T12:34:56.000042Z");
        assert_eq!(spec["leaseTransitions"], 0);
        // The first one is gone.
        assert_eq!(two.note_lease(server.read(), at(14), 0), Step::Wait);
        assert_eq!(two.note_lease(server.read(), at(28), 0), Step::Wait);
        let taken = two.note_lease(server.read(), at(29), 0);
        assert!(server.write(&taken));
        let spec = &server.lease.as_ref().unwrap()["spec"];
        assert_eq!(
            (&spec["holderIdentity"], &spec["leaseTransitions"]),
            (&json!("two"), &json!(1))
        );
        assert_eq!(one.note_lease(server.read(), at(30), 0), Step::Wait);
        // A lease that somebody has given up is free at once.
        server.lease.as_mut().unwrap()["spec"]["holderIdentity"] = "".into();
        assert!(matches!(
            one.note_lease(server.read(), at(31), 0),
            Step::Change(_)
        ));
    }

    /// Balancer in the simulation.
    struct Candidate {
        election: Election,
        /// Time at which the next thing happens.
        due: u64,
        phase: Phase,
        leader_until: u64,
    }

    enum Phase {
        Pausing,
        Reading,
        Writing { asked: u64, step: Step },
        Hearing { asked: u64, went_well: bool },
    }

    proptest! {
        #[test]
        fn there_are_never_two_leaders_and_mostly_one(
            count in 2..5_usize,
            delays in prop::collection::vec(0..4_000_u64, 200..400),
            lost in prop::collection::vec(prop::bool::weighted(0.2), 50..100),
        ) {
            let (mut server, start) = (Server::default(), Instant::now());
            let mut candidates: Vec<Candidate> = (0..count)
                .map(|number| Candidate {
                    election: election(&number.to_string()),
                    due: 0,
                    phase: Phase::Pausing,
                    leader_until: 0,
                })
                .collect();
            let (mut delay, mut loss) = (delays.iter().cycle(), lost.iter().cycle());
            let (mut led, mut now) = (0, 0);
            for _ in 0..2_000 {
                let next = { candidates.iter_mut() }.min_by_key(|of| of.due).unwrap();
                now = next.due;
                let instant = |ms| start + Duration::from_millis(ms);
                let wait = *delay.next().unwrap();
                let phase = match std::mem::replace(&mut next.phase, Phase::Pausing) {
                    Phase::Pausing => Phase::Reading,
                    Phase::Reading => {
                        let step = next.election.note_lease(server.read(), instant(now), now as i64 * 1_000);
                        Phase::Writing { asked: now, step }
                    }
                    Phase::Writing { asked, step } => {
                        let arrives = !loss.next().unwrap();
                        let went_well = arrives && server.write(&step);
                        Phase::Hearing { asked, went_well: went_well && !loss.next().unwrap() }
                    }
                    Phase::Hearing { asked, went_well } => {
                        if went_well {
                            let end = Election::end_of_term(instant(asked)) - start;
                            next.leader_until = end.as_millis() as u64;
                        }
                        Phase::Pausing
                    }
                };
                next.phase = phase;
                next.due += 1 + match next.phase {
                    Phase::Pausing => PAUSE.as_millis() as u64,
                    _ => wait,
                };
                let leaders = candidates.iter().filter(|of| of.leader_until > now).count();
                prop_assert!(leaders <= 1);
                led += leaders;
            }
            prop_assert!(led > 500, "{led} of 2000 steps had a leader, until {now} ms");
        }
    }
}

//! Work of the balancers at engines for language models: tokens that are queued, requests that wait, and streams.
//!
//! Each balancer tells its own work at each engine that has some, ten times a second. The work is not noted
//! ([`note`](crate::note)), as nobody needs to confirm it: work that is not told for [`EXPIRY`] does not count any more.
//! A balancer that does not know the kind of datagram refuses the datagram, and nothing else. Entries of a later
//! version may be longer: the datagram says how long its entries are, and what follows the known numbers is skipped.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use evenkeel_core::engine_work::EngineWork;
use evenkeel_core::time::Instant;
use evenkeel_wire::input::Input;

use crate::reading::EXPIRY;
use crate::seal::MAX_BODY;

/// Bytes of an entry: the number of the member, and three numbers of four bytes.
const ENTRY_LEN: u8 = 20;

/// Bytes before the entries: the number of the group, and the length of an entry.
const HEAD_LEN: usize = 9;

/// Most entries of a datagram that is written.
pub(crate) const MAX_ENTRIES: usize = (MAX_BODY - HEAD_LEN) / ENTRY_LEN as usize;

/// Most engines of which the work of one other balancer is kept.
const MAX_WORK: usize = 1 << 16;

/// Work of a balancer at members of a group. Members are [numbers](evenkeel_core::key) for their addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkReport {
    /// Number of the group.
    pub group: u64,
    /// Members with the work there.
    pub members: Vec<(u64, EngineWork)>,
}

impl WorkReport {
    /// Encodes the report as the body of a datagram.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_LEN + usize::from(ENTRY_LEN) * self.members.len());
        out.extend(self.group.to_be_bytes());
        out.push(ENTRY_LEN);
        for (member, work) in &self.members {
            out.extend(member.to_be_bytes());
            for number in [work.queued_tokens, work.waiting, work.streams] {
                out.extend(number.to_be_bytes());
            }
        }
        out
    }

    /// Decodes the body of a datagram.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut input = Input(body);
        let group = input.read_u64()?;
        let len = usize::from(input.read_u8().filter(|len| *len >= ENTRY_LEN)?);
        let entries = input.0.chunks_exact(len);
        if !entries.remainder().is_empty() {
            return None;
        }
        let members = entries.map(|entry| {
            let mut input = Input(entry);
            let member = input.read_u64()?;
            let work = EngineWork {
                queued_tokens: input.read_u32()?,
                waiting: input.read_u32()?,
                streams: input.read_u32()?,
            };
            Some((member, work))
        });
        Some(WorkReport {
            group,
            members: members.collect::<Option<_>>()?,
        })
    }
}

/// Work of another balancer, by group and member.
#[derive(Debug, Default)]
pub(crate) struct HeardWork(BTreeMap<(u64, u64), HeardEntry>);

#[derive(Clone, Copy, Debug)]
struct HeardEntry {
    work: EngineWork,
    at: Instant,
    /// Number of the datagram.
    count: u64,
}

impl HeardEntry {
    fn is_fresh(&self, now: Instant) -> bool {
        now.since(self.at) <= EXPIRY
    }
}

impl HeardWork {
    pub(crate) fn take_report(&mut self, report: WorkReport, count: u64, now: Instant) {
        if self.0.len() + report.members.len() > MAX_WORK {
            self.0.retain(|_, entry| entry.is_fresh(now));
        }
        for (member, work) in report.members {
            let at = now;
            let entry = HeardEntry { work, at, count };
            let is_full = self.0.len() >= MAX_WORK;
            match self.0.entry((report.group, member)) {
                // A later datagram may have overtaken this one.
                Entry::Occupied(mut old) if old.get().count <= count => {
                    old.insert(entry);
                }
                Entry::Vacant(place) if !is_full => {
                    place.insert(entry);
                }
                _ => {}
            }
        }
    }

    /// Fresh work at the members of a group.
    pub(crate) fn list_fresh(
        &self,
        group: u64,
        now: Instant,
    ) -> impl Iterator<Item = (u64, EngineWork)> + '_ {
        let entries = self.0.range((group, 0)..=(group, u64::MAX));
        let fresh = entries.filter(move |(_, entry)| entry.is_fresh(now));
        fresh.map(|((_, member), entry)| (*member, entry.work))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(queued_tokens: u32, waiting: u32, streams: u32) -> EngineWork {
        EngineWork {
            queued_tokens,
            waiting,
            streams,
        }
    }

    #[test]
    fn reports_are_read_as_they_are_written() {
        let members: Vec<_> = (0..MAX_ENTRIES as u32)
            .map(|number| (u64::from(number), work(u32::MAX - number, number, u32::MAX)))
            .collect();
        let report = WorkReport {
            group: u64::MAX,
            members,
        };
        let bytes = report.encode();
        assert!(bytes.len() <= MAX_BODY);
        assert_eq!(WorkReport::decode(&bytes), Some(report));
        for len in 0..bytes.len() {
            let is_whole =
                len >= HEAD_LEN && (len - HEAD_LEN).is_multiple_of(usize::from(ENTRY_LEN));
            assert_eq!(
                WorkReport::decode(&bytes[..len]).is_some(),
                is_whole,
                "{len}"
            );
        }
    }

    #[test]
    fn longer_entries_of_a_later_version_are_understood_and_shorter_ones_are_refused() {
        let report = WorkReport {
            group: 5,
            members: vec![(1, work(2, 3, 4)), (6, work(7, 8, 9))],
        };
        let bytes = report.encode();
        let (head, entries) = bytes.split_at(HEAD_LEN);
        let rewrite = |len: u8| {
            let mut out = head.to_vec();
            out[HEAD_LEN - 1] = len;
            for entry in entries.chunks(usize::from(ENTRY_LEN)) {
                let mut entry = entry.to_vec();
                entry.resize(usize::from(len), 0xee);
                out.extend(entry);
            }
            WorkReport::decode(&out)
        };
        assert_eq!(rewrite(ENTRY_LEN + 5), Some(report.clone()));
        assert_eq!(rewrite(u8::MAX), Some(report));
        for len in [0, 1, ENTRY_LEN - 1] {
            assert_eq!(rewrite(len), None, "{len}");
        }
    }

    #[test]
    fn late_reports_do_not_count_and_old_work_expires() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut heard = HeardWork::default();
        let report = |members: &[(u64, EngineWork)]| WorkReport {
            group: 1,
            members: members.to_vec(),
        };
        heard.take_report(report(&[(1, work(5, 1, 0)), (2, work(6, 1, 0))]), 7, at(0));
        heard.take_report(report(&[(1, work(9, 9, 9))]), 6, at(1000));
        heard.take_report(report(&[(2, work(0, 0, 1))]), 8, at(2000));
        let list = |group, now| heard.list_fresh(group, at(now)).collect::<Vec<_>>();
        assert_eq!(list(1, 3000), [(1, work(5, 1, 0)), (2, work(0, 0, 1))]);
        assert_eq!(list(1, 3001), [(2, work(0, 0, 1))]);
        assert_eq!(list(0, 2000), []);
        assert_eq!(list(2, 2000), []);
    }

    #[test]
    fn work_is_kept_of_a_bounded_number_of_engines() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut heard = HeardWork::default();
        for first in (0..2 * MAX_WORK as u64).step_by(1000) {
            let members = (first..first + 1000).map(|member| (member, work(1, 1, 1)));
            let members = members.collect();
            heard.take_report(WorkReport { group: 1, members }, first, at(0));
        }
        assert_eq!(heard.0.len(), MAX_WORK);
        let members = vec![(u64::MAX, work(1, 1, 1))];
        heard.take_report(WorkReport { group: 1, members }, u64::MAX, at(3001));
        assert_eq!(heard.0.len(), 1, "what has expired gives room");
    }
}

//! Of which rank the zone of each member of a group is.

use crate::member::Member;
use crate::zone::{RANKS, ZoneSettings};

/// Of which rank each member of a group is.
#[derive(Debug)]
pub struct Ranks {
    of_member: Box<[u8]>,
    /// The zones of each rank in words.
    labels: Box<[String]>,
}

/// Zones of a rank that are named in messages. Further ones are counted.
const NAMED: usize = 4;

impl Ranks {
    /// Ranks of `members`; `None` if all have one rank, so that there is nothing to choose.
    pub(super) fn new(settings: &ZoneSettings, members: &[Member]) -> Option<Self> {
        let mut wanted: Vec<&str> = Vec::new();
        for zone in settings.balancer_zone.iter().chain(&settings.order) {
            if !wanted.contains(&&**zone) {
                wanted.push(zone);
            }
        }
        wanted.truncate(RANKS - 1);
        let place = |member: &Member| {
            let zone = member.zone.as_deref()?;
            wanted.iter().position(|wanted| *wanted == zone)
        };
        let places: Vec<usize> = members
            .iter()
            .map(|member| place(member).unwrap_or(wanted.len()))
            .collect();
        let mut present = places.clone();
        present.sort_unstable();
        present.dedup();
        if present.len() < 2 {
            return None;
        }
        let in_words = |place: &usize| {
            let of_it = members.iter().zip(&places).filter(|(_, at)| *at == place);
            label(of_it.map(|(member, _)| member.zone.as_deref()))
        };
        let rank = |place: &usize| present.partition_point(|other| other < place) as u8;
        Some(Ranks {
            of_member: places.iter().map(rank).collect(),
            labels: present.iter().map(in_words).collect(),
        })
    }

    /// Number of ranks, at least two.
    pub fn count(&self) -> usize {
        self.labels.len()
    }

    /// Rank of the member at `index`; the last rank if there is no such member.
    pub fn rank_at(&self, index: usize) -> usize {
        let rank = self.of_member.get(index);
        rank.map_or(self.count() - 1, |rank| usize::from(*rank))
    }

    /// The zones of a rank in words, as in "zone a" or "zones b and c".
    pub fn label(&self, rank: usize) -> &str {
        self.labels.get(rank).map_or("no zone", String::as_str)
    }
}

/// Zones in words.
fn label<'a>(zones: impl Iterator<Item = Option<&'a str>>) -> String {
    let mut zones: Vec<Option<&str>> = zones.collect();
    zones.sort_unstable();
    zones.dedup();
    let nameless = zones.first() == Some(&None);
    let mut names: Vec<String> = zones.iter().flatten().map(|&name| name.into()).collect();
    let several = names.len() > 1;
    if names.len() > NAMED {
        let more = names.len() - (NAMED - 1);
        names.truncate(NAMED - 1);
        names.push(format!("{more} more"));
    }
    let last = names.pop();
    let all = match (last, names.is_empty()) {
        (None, _) => return "no zone".into(),
        (Some(last), true) => last,
        (Some(last), false) => format!("{} and {last}", names.join(", ")),
    };
    let word = if several { "zones" } else { "zone" };
    let rest = if nameless { ", and no zone" } else { "" };
    format!("{word} {all}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::make_member;

    fn members(zones: &[Option<&str>]) -> Vec<Member> {
        let member = |(id, zone): (u64, &Option<&str>)| Member {
            zone: zone.map(Into::into),
            ..make_member(id)
        };
        (0..).zip(zones).map(member).collect()
    }

    fn settings(own: Option<&str>, order: &[&str]) -> ZoneSettings {
        ZoneSettings {
            balancer_zone: own.map(str::to_owned),
            order: order.iter().map(|&zone| zone.to_owned()).collect(),
            ..ZoneSettings::default()
        }
    }

    #[test]
    fn the_own_zone_is_first_then_the_order_then_all_others() {
        let members = members(&[Some("c"), Some("a"), None, Some("b"), Some("d"), Some("a")]);
        let of = |settings: &ZoneSettings| {
            let ranks = Ranks::new(settings, &members)?;
            let of: Vec<usize> = (0..members.len())
                .map(|index| ranks.rank_at(index))
                .collect();
            let labels = (0..ranks.count()).map(|rank| ranks.label(rank).to_owned());
            Some((of, labels.collect::<Vec<_>>()))
        };
        let rest = "zones b, c and d, and no zone";
        let (ranks, labels) = of(&settings(Some("a"), &[])).unwrap();
        assert_eq!(ranks, [1, 0, 1, 1, 1, 0]);
        assert_eq!(labels, ["zone a", rest]);
        let (ranks, labels) = of(&settings(Some("a"), &["d", "a", "b"])).unwrap();
        assert_eq!(ranks, [3, 0, 3, 2, 1, 0]);
        assert_eq!(labels[1..3], ["zone d", "zone b"]);
        // A zone without members leaves no gap, and one may have an order without a zone of its own.
        let (ranks, labels) = of(&settings(Some("x"), &["y", "d"])).unwrap();
        assert_eq!(ranks, [1, 1, 1, 1, 0, 1]);
        assert_eq!(labels, ["zone d", "zones a, b and c, and no zone"]);
        assert_eq!(of(&settings(None, &["c"])).unwrap().0, [0, 1, 1, 1, 1, 1]);
        assert!(of(&settings(None, &[])).is_none());
        assert!(of(&settings(Some("x"), &[])).is_none());
        assert!(Ranks::new(&settings(Some("a"), &[]), &members[1..2]).is_none());
        let many = ["a", "b", "c", "d", "e", "f"];
        assert_eq!(
            label(many.iter().map(|&zone| Some(zone))),
            "zones a, b, c and 3 more"
        );
        assert_eq!(label([None].into_iter()), "no zone");
    }
}

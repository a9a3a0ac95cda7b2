//! Mirrors: groups that get copies of requests.

use std::collections::HashMap;

use evenkeel_config::GroupShare;

use crate::config;

/// Copies of requests for another group.
#[derive(Debug)]
pub struct Mirror {
    /// The place of the group.
    pub target: u32,
    /// Place of the group whose requests are copied; `None` for the requests of all groups.
    pub source: Option<u32>,
    /// Number of requests, out of [`Mirror::ALL`], that are copied.
    pub parts: u32,
    /// Most bytes of a body.
    pub max_body: usize,
    /// Most copies that a worker has under way.
    pub max_concurrent: u32,
}

impl Mirror {
    /// Number of requests of which [`Mirror::parts`] is a part.
    pub const ALL: u32 = 1_000_000;

    /// Returns the mirror for the requests of the group at `source`; `None` if nothing is copied.
    fn new(
        mirror: &config::Mirror,
        places: &HashMap<&str, u32>,
        source: Option<u32>,
        is_primary: impl FnOnce(u32) -> bool,
    ) -> Option<Self> {
        let target = places.get(mirror.group.as_str()).copied()?;
        let parts = (f64::from(mirror.percent) / 100.0 * f64::from(Self::ALL)).round() as u32;
        (parts > 0 && !is_primary(target)).then_some(Mirror {
            target,
            source,
            parts,
            max_body: mirror.max_body,
            max_concurrent: mirror.max_concurrent,
        })
    }

    /// True if requests of the group at `place` are copied.
    #[inline]
    pub fn is_for(&self, place: u32) -> bool {
        self.source.is_none_or(|source| source == place)
    }
}

/// Returns the mirrors of a route: `mirrors` are those of the requests of all groups, and `is_only` says if the group at a
/// place is the only one.
pub(crate) fn list_mirrors(
    mirrors: &[config::Mirror],
    shares: &[GroupShare],
    places: &HashMap<&str, u32>,
    is_only: impl Fn(u32) -> bool,
) -> Box<[Mirror]> {
    let of_all = mirrors.iter();
    let of_all = of_all.filter_map(|mirror| Mirror::new(mirror, places, None, &is_only));
    let of_shares = shares.iter().flat_map(|share| {
        let source = places.get(share.name.as_str()).copied();
        let own = share.mirror.iter().flat_map(|mirrors| &mirrors.0);
        own.filter_map(move |mirror| {
            Mirror::new(mirror, places, source, |target| Some(target) == source)
        })
    });
    of_all.chain(of_shares).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_of_a_group_are_for_its_requests_alone() {
        let mirror = |group: &str, percent| config::Mirror {
            group: group.into(),
            percent,
            ..config::Mirror::default()
        };
        let share = GroupShare {
            name: "b".into(),
            mirror: Some(config::Mirrors(vec![mirror("b", 100.0), mirror("c", 0.5)])),
            ..GroupShare::default()
        };
        let places = HashMap::from([("a", 0), ("b", 1), ("c", 2)]);
        let all = [mirror("a", 100.0), mirror("c", 0.0)];
        let found = list_mirrors(&all, &[share], &places, |_| false);
        let found: Vec<_> = found
            .iter()
            .map(|of| (of.target, of.source, of.parts))
            .collect();
        assert_eq!(found, [(0, None, 1_000_000), (2, Some(1), 5_000)]);
        assert_eq!(
            list_mirrors(&all, &[], &places, |place| place == 0).len(),
            0
        );
    }
}

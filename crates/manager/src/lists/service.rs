//! Members that SRV records name (RFC 2782).

use evenkeel_core::member::Weight;

use crate::config::{MemberConfig, member_address};

/// An SRV record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Service {
    /// The lowest one is tried first.
    pub priority: u16,
    /// The name of the host, in lower case, without the final dot.
    pub host: String,
    pub port: u16,
    /// Share of the traffic relative to others of that priority.
    pub weight: u16,
}

/// Most records of one service that become members.
pub(crate) const MAX_SERVICES: usize = 1_000;

impl Service {
    /// A record as it came; `None` if it names no member: the root, which says that there is no
    /// such service, or a host that is none. An address in place of a name is none either: nobody
    /// would judge it as those of names are.
    pub(crate) fn new(priority: u16, weight: u16, port: u16, target: &str) -> Option<Self> {
        let target = target.strip_suffix('.').unwrap_or(target);
        let (host, port) = member_address(&format!("{target}:{port}")).ok()?;
        let is_name = host.parse::<std::net::IpAddr>().is_err();
        is_name.then_some(Service {
            priority,
            host,
            port,
            weight,
        })
    }
}

/// Returns the members that these records name, with the settings of `template`. Members with another than
/// the lowest priority are backups.
pub(crate) fn members(template: &MemberConfig, records: &[Service]) -> Vec<MemberConfig> {
    let mut records: Vec<&Service> = records.iter().collect();
    records.sort_unstable();
    let first = records.first().map(|record| record.priority);
    let mut known = std::collections::HashSet::new();
    records.retain(|record| known.insert((&record.host, record.port)));
    records.truncate(MAX_SERVICES);
    let member = |record: &&Service| {
        let alike = records
            .iter()
            .filter(|other| other.priority == record.priority);
        let most = alike.map(|other| other.weight).max().unwrap_or(0);
        MemberConfig {
            host: record.host.clone(),
            port: record.port,
            srv: None,
            backup: template.backup || Some(record.priority) != first,
            weight: weight(record.weight, most, template.weight),
            ..template.clone()
        }
    };
    records.iter().map(member).collect()
}

/// A weight of ours: in proportion to the record's, `most` of which is the largest. A record with
/// the weight 0 beside others gets a very small share; where all have it, all are alike.
fn weight(own: u16, most: u16, factor: Weight) -> Weight {
    let (own, most) = (f64::from(own), f64::from(most));
    let scale = match most > Weight::MAX {
        true => Weight::MAX / most,
        false => 1.0,
    };
    let weight = match (own > 0.0, most > 0.0) {
        (true, _) => own * scale,
        (false, true) => most * scale / 1000.0,
        (false, false) => 1.0,
    };
    let weight = weight * f64::from(factor.get());
    Weight::new(weight.min(Weight::MAX)).unwrap_or(Weight::ONE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(priority: u16, weight: u16, host: &str) -> Service {
        Service::new(priority, weight, 80, host).unwrap()
    }

    #[test]
    fn priorities_are_backups_and_weights_are_shares() {
        let template = MemberConfig {
            location: Some("far".into()),
            ..MemberConfig::default()
        };
        let records = [
            record(20, 0, "c.example."),
            record(10, 60, "B.example."),
            record(10, 20, "a.example."),
            record(30, 5, "a.example"),
        ];
        let found = members(&template, &records);
        let seen: Vec<_> = found
            .iter()
            .map(|m| (m.host.as_str(), m.weight.get(), m.backup))
            .collect();
        assert_eq!(
            seen,
            [
                ("a.example", 20.0, false),
                ("b.example", 60.0, false),
                ("c.example", 1.0, true),
            ]
        );
        assert!(found.iter().all(|m| m.location.as_deref() == Some("far")));
        assert!(members(&template, &[]).is_empty());
    }

    #[test]
    fn what_is_no_host_is_no_member() {
        for target in [".", "", "10.0.0.1.", "127.0.0.1", "a b.", "-.", "[::1]"] {
            assert_eq!(Service::new(0, 0, 80, target), None, "{target:?}");
        }
        assert_eq!(Service::new(0, 0, 0, "a.example."), None);
    }

    proptest! {
        #[test]
        fn weights_keep_their_proportions(weights in proptest::collection::vec(any::<u16>(), 1..20)) {
            let records: Vec<_> = weights.iter().enumerate()
                .map(|(i, &weight)| Service::new(7, weight, i as u16 + 1, "a.example").unwrap())
                .collect();
            let found = members(&MemberConfig::default(), &records);
            prop_assert_eq!(found.len(), weights.len());
            let most = f64::from(*weights.iter().max().unwrap());
            let largest = found.iter().map(|m| f64::from(m.weight.get())).fold(0.0, f64::max);
            for (member, &own) in found.iter().zip(&weights) {
                let weight = f64::from(member.weight.get());
                prop_assert!(weight > 0.0 && weight <= 1000.0 && !member.backup);
                if own > 0 {
                    prop_assert!((weight / largest - f64::from(own) / most).abs() < 1e-5);
                }
            }
        }
    }
}

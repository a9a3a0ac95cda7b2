//! Members that a subsystem finds: the endpoints of services of Kubernetes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;

use evenkeel_core::member::Weight;
use serde::{Deserialize, Serialize};

use crate::config::MemberConfig;

/// Members of lists, by the names of the lists. A list that could not be found has an error.
pub type FoundLists = HashMap<String, Result<Vec<FoundMember>, String>>;

/// Member that a subsystem finds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FoundMember {
    /// Address of the member.
    pub address: SocketAddr,
    /// Zone of the member, if it is known.
    pub zone: Option<String>,
    /// True if the member gets no new traffic, because it is about to end.
    pub drain: bool,
}

impl FoundMember {
    /// Returns the member with the settings of `template`.
    pub(crate) fn with_settings(&self, template: &MemberConfig) -> MemberConfig {
        MemberConfig {
            host: self.address.ip().to_string(),
            port: self.address.port(),
            zone: template.zone.clone().or_else(|| self.zone.clone()),
            drain: template.drain || self.drain,
            ..template.clone()
        }
    }
}

/// Returns the settings of each of the members that were found: with `split_weight`, those that take new traffic share the
/// weight.
pub(crate) fn share_template<'a>(
    template: &'a MemberConfig,
    found: &[FoundMember],
) -> Cow<'a, MemberConfig> {
    let taking = found.iter().filter(|member| !member.drain).count();
    if !template.split_weight || taking < 2 {
        return Cow::Borrowed(template);
    }
    let weight = f64::from(template.weight.get()) / taking as f64;
    Cow::Owned(MemberConfig {
        weight: Weight::new(weight).unwrap_or(template.weight),
        ..template.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_take_traffic_share_the_weight() {
        let found = |drain| FoundMember {
            address: "10.0.0.1:80".parse().unwrap(),
            zone: None,
            drain,
        };
        let weight = |split_weight, found: &[FoundMember]| {
            let template = MemberConfig {
                weight: Weight::new(600.0).unwrap(),
                split_weight,
                ..MemberConfig::default()
            };
            share_template(&template, found).weight.get()
        };
        let three = [found(false), found(false), found(true)];
        assert_eq!(weight(true, &three), 300.0);
        assert_eq!(weight(false, &three), 600.0);
        for few in [&three[..1], &three[2..], &[]] {
            assert_eq!(weight(true, few), 600.0);
        }
    }

    #[test]
    fn a_found_member_has_the_settings_of_its_list() {
        let template = MemberConfig {
            kubernetes: Some("shop/web:http".into()),
            max_connections: Some(7),
            ..MemberConfig::default()
        };
        let found = FoundMember {
            address: "[fd00::1]:80".parse().unwrap(),
            zone: Some("a".into()),
            drain: true,
        };
        let member = found.with_settings(&template);
        assert_eq!(member.name(), "[fd00::1]:80");
        assert_eq!((member.max_connections, member.drain), (Some(7), true));
        assert_eq!(
            (member.zone.as_deref(), member.kubernetes.as_deref()),
            (Some("a"), Some("shop/web:http"))
        );
        let template = MemberConfig {
            zone: Some("b".into()),
            ..template
        };
        assert_eq!(found.with_settings(&template).zone.as_deref(), Some("b"));
    }
}

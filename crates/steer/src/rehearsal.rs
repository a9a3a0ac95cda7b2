//! Rehearsal (`evenkeel steer --dry-run`): the orders that a balancer with this configuration would send when
//! it starts. The rehearsal only asks.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use evenkeel_config::{Config, GroupConfig, MemberConfig, Steer};
use evenkeel_control::shares::{ServiceState, Shares, TargetShare};
use evenkeel_core::address::Address;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;

use crate::haproxy::Haproxy;
use crate::nginx;
use crate::status::SteerStatus;
use crate::wanted::MemberShare;

/// Returns the orders that each `[steer.NAME]` of `config` would send, with the weights of the configuration:
/// loads and health are known only to a balancer that runs.
pub async fn rehearse_orders(config: &Config) -> Vec<SteerStatus> {
    let mut all = Vec::new();
    for steer in &config.steer {
        let group = config.groups.iter().find(|group| group.name == steer.group);
        let status = SteerStatus {
            name: steer.name.clone(),
            group: steer.group.clone(),
            target: steer.target(),
            dry_run: true,
            ..SteerStatus::default()
        };
        all.push(match group {
            Some(group) => rehearse_target(steer, group, status).await,
            None => status,
        });
    }
    all
}

async fn rehearse_target(steer: &Steer, group: &GroupConfig, status: SteerStatus) -> SteerStatus {
    let (wanted, problems) = wanted_members(steer, group);
    let mut status = match (&steer.haproxy, &steer.nginx) {
        (Some(haproxy), _) => match Haproxy::default().run_round(haproxy, &wanted, true).await {
            Ok(round) => SteerStatus {
                peer: Some(format!(
                    "HAProxy {}, process {}",
                    round.about.version, round.about.pid
                )),
                members: round.members,
                others: round.others,
                pending: round.orders.iter().map(ToString::to_string).collect(),
                ..status
            },
            Err(error) => SteerStatus {
                error: Some(error.to_string()),
                ..status
            },
        },
        (None, Some(nginx)) => {
            let text = nginx::text(&steer.name, &steer.group, nginx, &wanted);
            SteerStatus {
                members: nginx::list_members(&wanted),
                pending: text.lines().map(str::to_owned).collect(),
                ..status
            }
        }
        (None, None) => status,
    };
    if status.error.is_none() && !problems.is_empty() {
        status.error = Some(problems.join("; "));
    }
    status
}

/// The members of a group with the weights of the configuration, and what is wrong with others.
fn wanted_members(steer: &Steer, group: &GroupConfig) -> (Vec<MemberShare>, Vec<String>) {
    let mut problems = Vec::new();
    let mut found: Vec<(Option<IpAddr>, Address, &MemberConfig)> = Vec::new();
    for member in &group.members {
        if let Some(path) = member.unix() {
            found.push((None, Address::Unix(path.into()), member));
            continue;
        }
        let addresses: Vec<SocketAddr> = match (member.host.as_str(), member.port).to_socket_addrs()
        {
            Ok(addresses) => addresses.collect(),
            Err(error) => {
                problems.push(format!("{} has no address: {error}", member.shown_name()));
                continue;
            }
        };
        let several = addresses.len() > 1;
        for address in addresses {
            let of_many = several.then(|| address.ip());
            found.push((of_many, address.into(), member));
        }
    }
    if !group.services.is_empty() || !group.members_files.is_empty() {
        problems.push("the dry run leaves out members from DNS services and files".into());
    }
    let zones = group.settings.zones.as_ref();
    if zones.is_some_and(|zones| zones.balancer_zone.is_some() || !zones.order.is_empty()) {
        problems.push("the dry run ignores zones: members of all zones get their weights".into());
    }
    let seen: Vec<TargetShare> = found
        .iter()
        .zip(0u64..)
        .map(|((_, _, member), id)| TargetShare {
            id: MemberId(id),
            weight: member.weight.get(),
            standing: match (member.drain || member.weight.get() <= 0.0, member.backup) {
                (true, _) => ServiceState::Draining,
                (false, true) => ServiceState::Standby,
                (false, false) => ServiceState::Serving,
            },
        })
        .collect();
    let mut shares = Shares::new(crate::subsystem::share_settings(steer));
    let said = shares.update(Instant::from_nanos(1), &seen);
    let said = said.unwrap_or_default();
    let wanted = said
        .iter()
        .zip(found)
        .map(|(share, (of_many, address, member))| {
            let (identity, given_name) = member.names_at(of_many);
            MemberShare {
                name: given_name.as_deref().unwrap_or(&identity).into(),
                member: identity.into(),
                address,
                weight: share.weight,
                standing: share.standing,
            }
        });
    (wanted.collect(), problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_would_be_sent_is_told_without_a_balancer() {
        let folder = std::env::temp_dir().join("evenkeel-nobody-is-there");
        let text = format!(
            "[group.web]\nmembers = [\"127.0.0.1:1\", {{ address = \"127.0.0.1:2\", name = \"s2\", weight = 2 }}, \
             {{ address = \"127.0.0.1:3\", backup = true }}, {{ address = \"127.0.0.1:4\", drain = true }}]\n\
             [steer.edge]\ngroup = \"web\"\nhaproxy = {{ socket = \"unix:{0}/none\" }}\n\
             [steer.front]\ngroup = \"web\"\nnginx = {{ file = \"{0}/up.conf\" }}\n",
            folder.display()
        );
        let config = evenkeel_config::parse("evenkeel.toml", &text).unwrap();
        let all = rehearse_orders(&config).await;
        let [edge, front] = &all[..] else {
            panic!("{all:?}");
        };
        let error = edge.error.as_deref().unwrap();
        assert!(error.contains("does HAProxy run"), "{error}");
        assert_eq!(
            front.pending[1..],
            [
                "server 127.0.0.1:1 weight=128;",
                "server 127.0.0.1:2 weight=256;",
                "server 127.0.0.1:3 down; # standby",
                "server 127.0.0.1:4 down; # draining"
            ]
        );
        let names = front.members.iter().map(|of| (&*of.name, &*of.member));
        let names: Vec<_> = names.take(2).collect();
        assert_eq!(
            names,
            [("127.0.0.1:1", "127.0.0.1:1"), ("s2", "127.0.0.1:2")]
        );
        let table = crate::status::format_tables(&all);
        assert!(table.contains("\ns2 "), "{table}");
        assert!(!folder.exists());
    }
}

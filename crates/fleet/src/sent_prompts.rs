//! Prompts for engines of language models, which balancers of a fleet tell each other.

use std::collections::HashMap;

use evenkeel_core::group::Group;
use evenkeel_core::member::Member;
use evenkeel_core::prompt_key::prompt_mark;
use evenkeel_gossip::Fleet;
use evenkeel_gossip::prompt_report::PromptBodies;

/// Datagrams about a group to each other balancer after which a round takes no further prompt.
const MAX_DATAGRAMS: usize = 64;

/// Tells the other balancers the prompts that this one has sent to the engines of a group, and records those of the others:
/// a balancer then knows which engine holds a prompt that another one has sent there. `number` finds the number for a
/// member's address. What a round has no room for is for the next one.
pub(crate) fn exchange_prompts(fleet: &mut Fleet, group: &Group, number: impl Fn(&Member) -> u64) {
    if group.engines().is_none() {
        fleet.forget_prompts(group.name());
        return;
    }
    let mark = prompt_mark();
    let told = fleet.take_prompts(group.name(), mark);
    if !told.is_empty() {
        let members = group.members().iter().enumerate();
        let members: HashMap<u64, usize> = members
            .map(|(index, member)| (number(member), index))
            .collect();
        for prompt in told {
            if let Some(index) = members.get(&prompt.member) {
                group.record_prompt_elsewhere(*index, &prompt.links, prompt.unread_tokens);
            }
        }
    }
    if !fleet.has_listener() {
        group.stop_following_prompts();
        return;
    }
    let mut bodies = PromptBodies::new(group.name(), mark);
    while bodies.count() < MAX_DATAGRAMS
        && let Some(taken) = group.take_sent_prompts(1)
    {
        if taken.has_lost {
            tracing::debug!(
                group = %group.name(),
                "prompts come faster than other balancers are told"
            );
        }
        if taken.prompts.is_empty() {
            break;
        }
        for prompt in taken.prompts {
            if let Some(member) = group.members().get(prompt.member) {
                bodies.add_prompt(number(member), prompt.unread_tokens, &prompt.links);
            }
        }
    }
    fleet.send_prompts(&bodies);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_control::alerts::FleetExchange as _;
    use evenkeel_core::group::GroupSettings;
    use evenkeel_core::strategy::{self, Values};
    use evenkeel_core::time::Instant;
    use evenkeel_inference::chain::{ChainBuilder, HashKey};
    use evenkeel_inference::group::RequestFacts;
    use evenkeel_inference::scanner::Scanner;
    use evenkeel_net::Clock;

    use super::*;
    use crate::Gossip;

    #[test]
    fn a_balancer_without_a_fleet_notes_no_prompts() {
        let inference = Values::defaults(strategy::find("inference").unwrap());
        let settings = GroupSettings::default();
        let group = Group::new("g", settings, &inference, Vec::new(), Arc::default());
        let engines = group.engines().unwrap().group();
        let mut builder = ChainBuilder::new(HashKey::new([1, 2, 3]));
        let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "a".repeat(9000));
        Scanner::new().feed_bytes(body.as_bytes(), &mut builder);
        let plan = engines.plan_request(RequestFacts {
            model: builder.model_hash(),
            chain: builder.link_blocks(),
            max_tokens: None,
            is_stream: true,
            random: 1,
        });
        let send = || assert!(engines.begin_request(&plan, 0, 0).is_some());
        let take = || engines.follow_prompts().take_prompts(9).prompts.len();
        assert_eq!(take(), 0);
        send();
        assert_eq!(take(), 1);
        // The configuration has no [fleet] any more.
        let gossip = Gossip::new(Clock::start()).unwrap();
        send();
        gossip.learn(&group, Instant::ZERO);
        send();
        assert_eq!(take(), 0);
    }
}

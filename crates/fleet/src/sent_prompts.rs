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
    let mark = prompt_mark();
    let told = fleet.take_prompts(group.name(), mark);
    if group.engines().is_none() {
        return;
    }
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

//! Work and prompts that balancers of a fleet tell each other.

use evenkeel_core::engine_work::{EngineWork, WORK_LIFETIME};

use super::world::EngineWorld;

impl EngineWorld<'_> {
    /// Lets each balancer tell all others the prompts that it has sent since the last exchange.
    pub(super) fn exchange_prompts(&mut self) {
        let groups = self.balancers.iter();
        let groups: Vec<_> = groups.filter_map(|one| one.group.as_ref()).collect();
        for (from, group) in groups.iter().enumerate() {
            let taken = group.take_sent_prompts(usize::MAX).unwrap_or_default();
            let others = groups.iter().enumerate();
            for (_, other) in others.filter(|(to, _)| *to != from) {
                for prompt in &taken.prompts {
                    other.record_prompt_elsewhere(
                        prompt.member,
                        &prompt.links,
                        prompt.unread_tokens,
                    );
                }
            }
        }
    }

    /// Lets each balancer tell the others its work at the engines, and count what the others have told.
    pub(super) fn exchange_work(&mut self) {
        let now = self.queue.current_time();
        for balancer in &mut self.balancers {
            let Some(group) = &balancer.group else {
                continue;
            };
            let members = 0..group.members().len();
            let own = members.map(|member| group.take_engine_work(member, now).unwrap_or_default());
            balancer.told_work = own.collect();
        }
        for (index, balancer) in self.balancers.iter().enumerate() {
            let others = |member: usize| {
                let all = self.balancers.iter().enumerate();
                let others = all.filter(|(other, _)| *other != index);
                let told = others.filter_map(|(_, other)| other.told_work.get(member));
                told.fold(EngineWork::default(), |sum, work| sum.add_work(*work))
            };
            if let Some(group) = &balancer.group {
                group.set_work_elsewhere(others, now.after(WORK_LIFETIME));
            }
        }
    }
}

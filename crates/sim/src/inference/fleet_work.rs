//! Work that balancers of a fleet tell each other.

use std::time::Duration;

use evenkeel_core::engine_work::EngineWork;

use super::world::EngineWorld;

impl EngineWorld<'_> {
    /// Lets some balancers tell the others their work at the engines, and count the work that the others have told
    /// before. Each balancer does so once in an interval of this many `rounds`, and all take turns.
    pub(super) fn exchange_work(&mut self, round: u64, rounds: u64, interval: Duration) {
        let now = self.queue.current_time();
        let turn = round % rounds;
        for index in (0..self.balancers.len()).filter(|index| *index as u64 % rounds == turn) {
            let Some(group) = self.balancers[index].group.clone() else {
                continue;
            };
            let members = 0..group.members().len();
            let own = members.map(|member| group.engine_work(member, now).unwrap_or_default());
            self.balancers[index].told_work = own.collect();
            let others = |member: usize| {
                let all = self.balancers.iter().enumerate();
                let others = all.filter(|(other, _)| *other != index);
                let told = others.filter_map(|(_, other)| other.told_work.get(member));
                told.fold(EngineWork::default(), |sum, work| sum.add_work(*work))
            };
            group.set_work_elsewhere(others, now.after(2 * interval));
        }
    }
}

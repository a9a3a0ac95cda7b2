//! Work at engines for language models, which balancers of a fleet tell each other.

use evenkeel_core::engine_work::WORK_LIFETIME;
use evenkeel_core::group::Group;
use evenkeel_core::member::Member;
use evenkeel_core::time::Instant;
use evenkeel_gossip::Fleet;

/// Tells the other balancers the work at the engines of a group, and counts the work of the others. Groups with another
/// strategy have no work to tell. `number` finds the number for a member's address. To be called in each round.
pub(crate) fn exchange_work(
    fleet: &mut Fleet,
    group: &Group,
    number: impl Fn(&Member) -> u64,
    now: Instant,
) {
    if group.engines().is_none() {
        return;
    }
    let members = group.members().iter().enumerate();
    let own = members
        .filter_map(|(index, member)| Some((number(member), group.take_engine_work(index, now)?)));
    fleet.announce_work(group.name(), own);
    let others = fleet.work_of_others(group.name(), now);
    let work = |index: usize| {
        let member = group.members().get(index).filter(|_| !others.is_empty());
        let work = member.and_then(|member| others.get(&number(member)));
        work.copied().unwrap_or_default()
    };
    group.set_work_elsewhere(work, now.after(WORK_LIFETIME));
}

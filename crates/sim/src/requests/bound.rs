//! Clients that are bound to a member for longer than a request.

use std::collections::HashMap;

use evenkeel_core::binding::{Binding, Verdict};
use evenkeel_core::group::{Granularity, Group, PickError, Request, Ticket};

/// A connection, whether the request is the last one there, and what connections are bound to.
pub(super) type Bound<'a> = ((u64, bool), &'a mut HashMap<u64, Binding>);

/// The member of a request: the one that its connection is bound to, as the group's granularity has it, or
/// whom the strategy chooses.
pub(super) fn pick(
    group: &Group,
    bound: Option<Bound<'_>>,
    request: &Request<'_>,
    rng: &mut fastrand::Rng,
) -> Result<Ticket, PickError> {
    let is_bound = group.settings().granularity != Granularity::PerRequest;
    let Some(((connection, is_last), bindings)) = bound.filter(|_| is_bound) else {
        return group.pick(request, rng);
    };
    let (cost, now) = (request.cost, request.now);
    let binding = bindings.get_mut(&connection);
    let kept = match binding.filter(|binding| !request.excluded_members.contains(&binding.member()))
    {
        None => None,
        Some(binding) => match binding.check_request(group, now) {
            Verdict::Keep(index) => {
                Some(group.bind_for(index, cost, now).ok_or(PickError::AllFull)?)
            }
            Verdict::Move(index) => {
                let ticket = group.bind_for(index, cost, now);
                ticket.inspect(|_| binding.move_to(group, index, now))
            }
            Verdict::Rebind(_) => None,
        },
    };
    let ticket = match kept {
        Some(ticket) => ticket,
        None => {
            let ticket = group.pick(request, rng)?;
            let binding = Binding::new(group, ticket.member_index(), now, rng);
            bindings.extend(binding.map(|binding| (connection, binding)));
            ticket
        }
    };
    if is_last {
        bindings.remove(&connection);
    }
    Ok(ticket)
}

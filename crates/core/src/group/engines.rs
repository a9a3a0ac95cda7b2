//! Engines for language models as members of a group: numbers, requests with a plan, and what engines have forgotten.

use std::sync::Arc;

use evenkeel_inference::queue::QueueMoment;
use evenkeel_inference::sent_prompts::TakenPrompts;

use super::view::{Pool, View};
use super::{Group, Request, Ticket};
use crate::engine_traffic::EngineTraffic;
use crate::engine_work::EngineWork;
use crate::engines::{EnginePool, EngineRequest};
use crate::key::hash;
use crate::member::Reason;
use crate::strategy::kind::RequestNeeds;
use crate::time::Instant;
use crate::trace::Trace;

impl Pool {
    /// Gives the members numbers of engines.
    pub(super) fn number_engines(&mut self) {
        let decay = self.settings.latency_decay.as_secs_f32();
        let index_bytes = self.settings.inference.index_memory;
        let create = || EnginePool::new(index_bytes, decay);
        let engines = self.state.ensure_engines(create);
        let ids: Vec<_> = self.members.iter().map(|member| member.id).collect();
        let numbers = engines.assign_numbers(&ids);
        let highest = numbers.iter().flatten().max();
        let mut members = vec![None; highest.map_or(0, |highest| highest + 1)];
        for (seat, (number, index)) in self.seats.iter_mut().zip(numbers.into_iter().zip(0..)) {
            seat.engine = number.and_then(|number| u16::try_from(number).ok());
            if let Some(place) = number.and_then(|number| members.get_mut(number)) {
                *place = Some(index);
            }
        }
        self.engine_members = members.into_boxed_slice();
        let names = self.members.iter().map(|member| &member.name);
        self.name_hashes = names.map(|name| hash(name.as_bytes())).collect();
    }
}

impl Group {
    /// True if a member works, and gets requests now or once the member is below its connection limit.
    pub fn has_working_member(&self) -> bool {
        let mut slots = self.pool.seats.iter().map(|seat| &seat.slot);
        slots.any(|slot| slot.reason_bits() & !Reason::SOFT == 0 && slot.weight() > 0.0)
    }

    /// Engines of the group, if the strategy is `inference`.
    pub fn engines(&self) -> Option<&Arc<EnginePool>> {
        let is_needed = self.kind.request_needs == RequestNeeds::Body;
        self.pool.state.engines().filter(|_| is_needed)
    }

    /// Number of the engine of the member at `index`, and all engines.
    fn numbered_engine(&self, index: usize) -> Option<(&EnginePool, usize)> {
        let number = self.pool.seats.get(index)?.engine?;
        Some((self.engines()?, usize::from(number)))
    }

    /// Traffic of the engine of the member at `index`, if the strategy is `inference`.
    pub fn engine_traffic(&self, index: usize) -> Option<&EngineTraffic> {
        let (engines, number) = self.numbered_engine(index)?;
        engines.traffic(number)
    }

    /// Requests at the engine of the member at `index`, if the strategy is `inference`.
    pub fn engine_queue(&self, index: usize, now: Instant) -> Option<QueueMoment> {
        let (engines, number) = self.numbered_engine(index)?;
        engines.group().read_queue(number, now.as_nanos())
    }

    /// Takes the mean work of this balancer at the engine of the member at `index` since the last call, if the strategy is
    /// `inference`. For one caller, who tells other balancers.
    pub fn take_engine_work(&self, index: usize, now: Instant) -> Option<EngineWork> {
        let (engines, number) = self.numbered_engine(index)?;
        engines.take_mean_work(number, now)
    }

    /// Work of other balancers at the engine of the member at `index`, as far as they have told it lately.
    pub fn work_elsewhere(&self, index: usize, now: Instant) -> EngineWork {
        let engine = self.numbered_engine(index);
        engine.map_or_else(EngineWork::default, |(engines, number)| {
            engines.work_elsewhere().read_at(now).get(number)
        })
    }

    /// Sets the work that other balancers have at the engines: `work` returns the work at the member at an index. The
    /// work counts until a time, and replaces what was set before.
    pub fn set_work_elsewhere(&self, work: impl Fn(usize) -> EngineWork, until: Instant) {
        let Some(engines) = self.engines() else {
            return;
        };
        let members = self.pool.engine_members.iter();
        let members = members.map(|index| index.map(|index| index as usize));
        let all: Vec<_> = members
            .map(|index| index.map_or_else(EngineWork::default, &work))
            .collect();
        engines.work_elsewhere().set_all(&all, until);
    }

    /// Takes prompts that this balancer has sent to engines since the last call, `most` at most, with the index of each
    /// one's member. Prompts are noted from the first call on. `None` if the strategy is another one.
    pub fn take_sent_prompts(&self, most: usize) -> Option<TakenPrompts> {
        let mut taken = self.engines()?.group().follow_prompts().take_prompts(most);
        taken.prompts.retain_mut(|prompt| {
            let index = self.pool.engine_members.get(prompt.member).copied();
            let index = index.flatten();
            prompt.member = index.map_or(prompt.member, |index| index as usize);
            index.is_some()
        });
        Some(taken)
    }

    /// Forgets prompts that were not taken, and notes no others until they are taken again.
    pub fn stop_following_prompts(&self) {
        if let Some(engines) = self.engines() {
            engines.group().stop_following_prompts();
        }
    }

    /// Records a prompt that another balancer has sent to the engine of the member at an index: from now on the engine is
    /// believed to hold the prompt's blocks.
    pub fn record_prompt_elsewhere(&self, index: usize, links: &[u64], unread_tokens: u32) {
        if let Some((engines, number)) = self.numbered_engine(index) {
            engines
                .group()
                .record_elsewhere(links, number, unread_tokens);
        }
    }

    /// True if the request is to wait, as no member is expected to send the first token in time, by the strategy's last
    /// choice. A member that reads the request at once is in time, however long that takes.
    #[inline]
    pub(super) fn is_late(&self, view: &View<'_>, trace: &mut Trace) -> bool {
        let target = self.pool.settings.inference.ttft_target;
        let (Some(target), Some(plan)) = (target, view.request().plan) else {
            return false;
        };
        let seconds = plan.queued_seconds();
        let is_late = seconds > target.as_secs_f32();
        if is_late {
            trace.note_sentence(|| {
                format!(
                    "the request waits in the queue: the first token is expected in {seconds:.2} s at the earliest, \
                     and `ttft_target` is {:.2} s",
                    target.as_secs_f32()
                )
            });
        }
        is_late
    }

    /// Brings speeds of engines up to date, and forgets what members have read that certainly do not work now: they
    /// start with empty caches. To be called about once per second.
    pub fn keep_up_engines(&self, now: Instant) {
        let Some(engines) = self.engines() else {
            return;
        };
        engines.keep_up(now);
        for (index, seat) in self.pool.seats.iter().enumerate() {
            if seat.slot.has_reason(Reason::Dead) {
                self.forget_engine_memory(index);
            }
        }
    }

    /// Forgets what the engine of the member at `index` has read, if the strategy is `inference`: its server has failed,
    /// and has probably been restarted.
    pub fn forget_engine_memory(&self, index: usize) {
        let seat = self.pool.seats.get(index);
        if let (Some(engines), Some(number)) = (self.engines(), seat.and_then(|seat| seat.engine)) {
            engines.group().forget_memory(usize::from(number));
        }
    }

    /// Binds a request with a plan to the member at `index`, and counts the request at the member's engine. The way of
    /// all other requests stays without it, as each copy of a ticket costs 20 instructions.
    #[cold]
    #[inline(never)]
    pub(super) fn bind_planned(&self, index: usize, request: &Request<'_>) -> Option<Ticket> {
        let mut ticket = self.bind_for(index, request.cost, request.now)?;
        self.begin_at_engine(&mut ticket, request);
        Some(match request.client {
            Some(client) => ticket.of_client(client),
            None => ticket,
        })
    }

    /// Counts a bound request at the engine of its member, if the request has a plan. [`Group::pick`] does so itself.
    pub fn begin_at_engine(&self, ticket: &mut Ticket, request: &Request<'_>) {
        let Some(plan) = request.plan else { return };
        let number = self.pool.seats.get(ticket.member_index());
        let number = number.and_then(|seat| seat.engine).map(usize::from);
        if let (Some(engines), Some(number)) = (self.pool.state.engines(), number) {
            ticket.engine = EngineRequest::begin(engines, plan, number, request.now);
        }
    }
}

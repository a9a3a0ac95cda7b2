//! Object groups: an immutable snapshot of members with the strategy that picks.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::alert::AlertSettings;
use crate::binding::{Client, Relocation};
use crate::effective::Shaping;
use crate::ejection::EjectionSettings;
use crate::estimate::{FIRST_GROWTH, Growth, higher};
use crate::load::{LoadId, Location, Query, Report};
use crate::member::{Digest, Member, MemberId, Reason, Slot};
use crate::observe::Crowd;
use crate::strategy::key::Key;
use crate::strategy::{Sees, Strategy};
use crate::time::{Horizon, Instant};
use crate::trace::{Explanation, Trace};

/// When the strategy is asked (Schmidt et al., "Evaluating the performance of
/// middleware load balancing strategies", 2004).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// Once, when the client's connection starts.
    PerSession,
    /// For every request.
    #[default]
    PerRequest,
    /// Once, and again only when the bound location is under a load alert
    /// (non-adaptive: again after a fixed interval).
    OnDemand,
}

/// What a group needs to know beside its members. Parsed by the configuration;
/// every field has a default.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSettings {
    /// When the strategy is asked.
    pub granularity: Granularity,
    /// Whether load reports and alerts take part in decisions. If not, the strategy
    /// sees only what needs no feedback, and on demand rebinds at a fixed interval.
    pub adaptive: bool,
    /// Non-adaptive on demand: how long a binding lasts.
    pub rebind_interval: Duration,
    /// Which reported load strategies look at.
    pub load_id: LoadId,
    /// What strategy `hash` goes by.
    pub hash_key: Key,
    /// Whether taking turns begins with the first member, and not with any: for who expects
    /// it. Balancers that start together all begin with that one then.
    pub in_order: bool,
    /// A report older than this is unknown.
    pub load_max_age: Duration,
    /// How long a member that is new, or back, takes to get its full share.
    pub slow_start: Duration,
    /// Share of members that may be down or ejected; above it all are routed to.
    pub panic_threshold: f32,
    /// Time constant of the decay of observed latencies and penalties.
    pub latency_decay: Duration,
    /// What a failure costs at least, as if it were a latency. A failure is often
    /// fast; it must never look like a fast answer.
    pub failure_penalty: Duration,
    /// Load alerts.
    pub alert: AlertSettings,
    /// When members that fail are taken out.
    pub ejection: EjectionSettings,
}

impl Default for GroupSettings {
    fn default() -> Self {
        GroupSettings {
            granularity: Granularity::PerRequest,
            adaptive: true,
            rebind_interval: Duration::from_secs(60),
            load_id: LoadId::CPU,
            hash_key: Key::default(),
            in_order: false,
            load_max_age: Duration::from_secs(15),
            slow_start: Duration::from_secs(10),
            panic_threshold: 0.5,
            latency_decay: Duration::from_secs(10),
            failure_penalty: Duration::from_secs(5),
            alert: AlertSettings::default(),
            ejection: EjectionSettings::default(),
        }
    }
}

impl GroupSettings {
    /// Whether clients that go to members themselves are called back at a fixed interval:
    /// on demand, not adaptive, with alerts as
    /// [pulses](AlertSettings::pulses).
    pub fn rebinds(&self) -> bool {
        self.alert.pulses && !self.adaptive && self.granularity == Granularity::OnDemand
    }
}

/// What the decision may know about the request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The current instant.
    pub now: Instant,
    /// The client, for strategies that hash it.
    pub client: Option<IpAddr>,
    /// Hash of what [`Group::wants_key`] names, if the request has it
    /// ([`crate::strategy::key::hash`]).
    pub key: Option<u64>,
    /// Members that are out of the question for this request: tried already, or not able
    /// to do what it asks for. In ascending order: there may be as many as members.
    pub tried: &'a [MemberId],
}

impl Request<'_> {
    /// A request about which nothing else is known.
    pub fn at(now: Instant) -> Self {
        Request {
            now,
            client: None,
            key: None,
            tried: &[],
        }
    }
}

/// Why no member was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// The group has no member that may be used (none at all, all drained, or all
    /// tried already).
    #[error("no member of the group may be used")]
    NoneEligible,
    /// Members may be used, but all are at their connection limit: wait or refuse.
    #[error("all members of the group are at their connection limit")]
    AllFull,
}

/// What a group keeps over all its snapshots, beside the slots of its members.
#[derive(Debug, Default)]
pub struct GroupState {
    panic: AtomicBool,
    want_trace: AtomicBool,
    last: ArcSwapOption<Decision>,
    /// Whether there is a relocation: what there mostly is not costs one load.
    relocating: AtomicBool,
    relocation: ArcSwapOption<Arc<dyn Relocation>>,
    clients: Mutex<Clients>,
    /// Load that one client brings (f32 bits); 0 is not known.
    client: AtomicU32,
    /// The growth of latencies with requests in flight, less [`FIRST_GROWTH`] (f32 bits).
    growth: AtomicU32,
    /// Whether any location of the group was ever reported a load.
    reported: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Clients {
    all: Vec<Arc<Client>>,
    /// How many there were when last those were left out that have gone.
    were: usize,
}

/// A decision that was traced.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// When it was taken.
    pub at: Instant,
    /// Name of the strategy that took it.
    pub strategy: &'static str,
    /// Name of the chosen member, or why there was none.
    pub chosen: Result<Arc<str>, PickError>,
    /// What the strategy looked at.
    pub explanation: Explanation,
    /// Names of the members that the explanation's indices refer to.
    pub members: Vec<Arc<str>>,
}

impl Clients {
    fn leave_out(&mut self) {
        self.all.retain(|client| Arc::strong_count(client) > 1);
        self.were = self.all.len();
    }
}

impl GroupState {
    /// Whether so many members are down or ejected that those opinions are ignored and
    /// all members are routed to.
    #[inline]
    pub fn is_panicking(&self) -> bool {
        self.panic.load(Ordering::Relaxed)
    }

    /// Begins or ends panic mode; answers whether that changed anything.
    pub fn set_panicking(&self, panicking: bool) -> bool {
        self.panic.swap(panicking, Ordering::AcqRel) != panicking
    }

    /// Whether clients of the group are being relocated, or were lately.
    #[inline]
    pub fn is_relocating(&self) -> bool {
        self.relocating.load(Ordering::Acquire)
    }

    /// Who is to leave.
    pub fn relocation(&self) -> Option<Arc<Arc<dyn Relocation>>> {
        self.relocation.load_full()
    }

    /// Has clients of the group relocated, or no longer.
    pub fn relocate(&self, relocation: Option<Arc<dyn Relocation>>) {
        let some = relocation.is_some();
        self.relocation.store(relocation.map(Arc::new));
        self.relocating.store(some, Ordering::Release);
    }

    /// The client of whoever holds `client`; a new one is counted until nobody else holds it.
    pub fn client<'a>(&self, client: &'a mut Option<Arc<Client>>) -> &'a Arc<Client> {
        client.get_or_insert_with(|| {
            let client = Arc::<Client>::default();
            self.add_client(Arc::clone(&client));
            client
        })
    }

    /// Counts a client until nobody else holds it.
    fn add_client(&self, client: Arc<Client>) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.all.len() >= 2 * clients.were + 64 {
            clients.leave_out();
        }
        clients.all.push(client);
    }

    /// The clients that are there.
    pub fn clients(&self) -> Vec<Arc<Client>> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.leave_out();
        clients.all.clone()
    }

    /// Says what load one client brings.
    pub fn set_client_load(&self, load: f32) {
        self.client.store(load.to_bits(), Ordering::Relaxed);
    }

    /// Load that one client brings, as pulses have shown; 0 is not known.
    #[inline]
    pub fn client_load(&self) -> f32 {
        f32::from_bits(self.client.load(Ordering::Relaxed))
    }

    /// See [`View::growth`].
    #[inline]
    fn growth(&self) -> f32 {
        FIRST_GROWTH + f32::from_bits(self.growth.load(Ordering::Relaxed))
    }

    /// Moves it a part of the way.
    fn learn_growth(&self, growth: f32) {
        let learnt = self.growth() + (growth - self.growth()) / 8.0;
        self.growth
            .store((learnt - FIRST_GROWTH).to_bits(), Ordering::Relaxed);
    }

    /// Has the next decision traced and kept as the last one.
    pub fn want_trace(&self) {
        self.want_trace.store(true, Ordering::Relaxed);
    }

    /// The last decision that was traced.
    pub fn last_decision(&self) -> Option<Arc<Decision>> {
        self.last.load_full()
    }
}

/// An immutable snapshot of a group. Slots, locations and the state are shared between
/// snapshots; everything else is replaced as a whole.
#[derive(Debug)]
pub struct Group {
    name: Arc<str>,
    settings: GroupSettings,
    strategy: Box<dyn Strategy>,
    members: Box<[Member]>,
    seats: Box<[Seat]>,
    state: Arc<GroupState>,
    /// Whether any location here was ever reported a load: nearly never changes.
    reported: Arc<AtomicBool>,
    /// What is asked about loads, at some moment.
    query: Query,
}

/// What `pick` needs of a member, side by side with the others', so that drawing one
/// of many thousand costs one access to its slot and none to the rest of the member.
#[derive(Debug)]
struct Seat {
    slot: Arc<Slot>,
    location: Arc<Location>,
    max_connections: u32,
}

impl Seat {
    /// Most requests or connections at once.
    #[inline]
    fn limit(&self) -> u32 {
        self.max_connections.min(self.slot.reported_limit())
    }
}

impl Group {
    /// Puts a snapshot together.
    pub fn new(
        name: impl Into<Arc<str>>,
        settings: GroupSettings,
        strategy: Box<dyn Strategy>,
        members: Vec<Member>,
        state: Arc<GroupState>,
    ) -> Self {
        members.iter().for_each(|member| member.slot.prepare());
        let reported = Arc::clone(&state.reported);
        for member in &members {
            member.location.announce(&reported);
        }
        let seat = |member: &Member| Seat {
            slot: Arc::clone(&member.slot),
            location: Arc::clone(&member.location),
            max_connections: member.max_connections.unwrap_or(u32::MAX),
        };
        let horizon = Horizon::new(Instant::ZERO, settings.load_max_age);
        Group {
            name: name.into(),
            query: Query::new(settings.load_id, horizon),
            settings,
            strategy,
            seats: members.iter().map(seat).collect(),
            members: members.into_boxed_slice(),
            state,
            reported,
        }
    }

    /// The group's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The settings of this snapshot.
    pub fn settings(&self) -> &GroupSettings {
        &self.settings
    }

    /// The strategy of this snapshot.
    pub fn strategy(&self) -> &dyn Strategy {
        &*self.strategy
    }

    /// What of a request decisions go by, beside its client, if it has to be looked for.
    pub fn wants_key(&self) -> Option<&Key> {
        let key = &self.settings.hash_key;
        (self.strategy.sees() == Sees::Key && *key != Key::Client).then_some(key)
    }

    /// All members, eligible or not.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Where the member `id` is in this snapshot, looked for at `hint` first.
    pub fn find(&self, id: MemberId, hint: usize) -> Option<usize> {
        let is_it = |member: &Member| member.id == id;
        if self.members.get(hint).is_some_and(is_it) {
            return Some(hint);
        }
        self.members.iter().position(is_it)
    }

    /// Notes that a client is bound to the member at `index`. Noted only where it can be of
    /// use: where alerts are [pulses](AlertSettings::pulses).
    #[inline]
    pub fn bind_client(&self, client: &mut Option<Arc<Client>>, index: usize) {
        if self.settings.alert.pulses
            && let Some(member) = self.members.get(index)
        {
            self.state.client(client).set_member(Some(member.id));
            member.location.count_client();
        }
    }

    /// What outlives this snapshot.
    pub fn state(&self) -> &Arc<GroupState> {
        &self.state
    }

    /// The members as a strategy sees them for `request`.
    pub fn view<'a>(&'a self, request: &'a Request<'a>) -> View<'a> {
        debug_assert!(request.tried.is_sorted());
        View {
            group: self,
            seats: &self.seats,
            request,
            query: self.query.at(request.now),
            mask: self.mask(),
            rehearsal: false,
        }
    }

    /// Chooses a member and binds a request to it.
    pub fn pick(
        &self,
        request: &Request<'_>,
        rng: &mut fastrand::Rng,
    ) -> Result<Ticket, PickError> {
        // Another worker may take a member's last place between the decision and the
        // binding. Losing several times in a row means that the group is as good as full.
        for _ in 0..4 {
            let index = self.choose(request, rng)?;
            if let Some(ticket) = self.bind(index, request.now) {
                return Ok(match request.client {
                    Some(client) => ticket.of_client(client),
                    None => ticket,
                });
            }
        }
        Err(PickError::AllFull)
    }

    /// Chooses a member without binding to it, for clients that go there themselves;
    /// [`Group::assign`] then counts them.
    pub fn choose(
        &self,
        request: &Request<'_>,
        rng: &mut fastrand::Rng,
    ) -> Result<usize, PickError> {
        let view = self.view(request);
        if self.state.want_trace.load(Ordering::Relaxed) {
            self.state.want_trace.store(false, Ordering::Relaxed);
            let (chosen, decision) = self.explain(&view, rng);
            self.state.last.store(Some(Arc::new(decision)));
            chosen
        } else {
            self.ask(&view, rng, &mut Trace::off())
        }
    }

    /// What [`Group::pick`] would decide now, and why, without binding anything.
    pub fn explain_next(&self, request: &Request<'_>, rng: &mut fastrand::Rng) -> Decision {
        let mut view = self.view(request);
        view.rehearsal = true;
        self.explain(&view, rng).1
    }

    /// Binds a request to the member at `index`, whatever the strategy says; `None` if
    /// it is at its connection limit, or there is no such member.
    pub fn bind(&self, index: usize, now: Instant) -> Option<Ticket> {
        let seat = self.seats.get(index)?;
        // Counted first and compared then: several workers may want the last place.
        let others = seat.slot.begin();
        if others < seat.limit() {
            return Some(self.ticket(index, others, now));
        }
        seat.slot.end();
        None
    }

    /// Counts a client that was told to go to the member at `index` itself, and to ask
    /// again after `stay`. Nobody will tell when it has ended, so there is no ticket: it
    /// counts as bound since the last load report, so that the next client is not sent
    /// there for the same low load.
    pub fn assign(&self, index: usize, stay: Duration) {
        if let Some(seat) = self.seats.get(index) {
            seat.location.assign(stay);
            seat.slot.record().count_assigned();
        }
    }

    /// Says of a client that was just assigned to the member at `index` that it asks more often
    /// than one client would: what it may bring is no reason to refuse others
    /// ([`View::vouched_load`]).
    pub fn doubt(&self, index: usize) {
        if let Some(seat) = self.seats.get(index) {
            seat.location.doubt();
        }
    }

    /// The ticket of a request that is in the slot's count already.
    fn ticket(&self, index: usize, others: u32, now: Instant) -> Ticket {
        let member = &self.members[index];
        member.location.begin();
        member.slot.unanswered_begins(now);
        Ticket {
            others,
            slot: Arc::clone(&member.slot),
            location: Arc::clone(&member.location),
            index,
            client: None,
            started: now,
            digest: Digest {
                decay: self.settings.latency_decay,
                penalty: self.settings.failure_penalty,
                growth: self.state.growth(),
            },
            verdict: None,
            end: Outcome::Cancelled,
        }
    }

    fn ask(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Result<usize, PickError> {
        if let Some(index) = self.strategy.pick(view, rng, trace) {
            return Ok(index);
        }
        // An alert is no reason to refuse anybody.
        let all = view.despite_alerts();
        if all.eligible().next().is_none() {
            return Err(all.why_none());
        }
        trace.note(|| "nobody else can serve, so that load alerts are ignored".into());
        let chosen = self.strategy.pick(&all, rng, trace);
        chosen.ok_or_else(|| all.why_none())
    }

    fn explain(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
    ) -> (Result<usize, PickError>, Decision) {
        let mut trace = Trace::on();
        if self.state.is_panicking() {
            trace.note(|| "panic: too many members are down or ejected, so that is ignored".into());
        }
        let chosen = self.ask(view, rng, &mut trace);
        let view = match chosen {
            Ok(index) if !view.is_eligible(index) => view.despite_alerts(),
            _ => *view,
        };
        for index in 0..self.members.len() {
            if let Some(obstacle) = view.obstacle(index) {
                trace.candidate(index, None, || format!("not eligible: {obstacle}"));
            }
        }
        let decision = Decision {
            at: view.request.now,
            strategy: self.strategy.name(),
            chosen: chosen.map(|index| Arc::clone(&self.members[index].name)),
            explanation: trace.into_explanation().unwrap_or_default(),
            members: self.members.iter().map(|m| Arc::clone(&m.name)).collect(),
        };
        (chosen, decision)
    }

    /// The bits of [`Reason`] that count at the moment.
    fn mask(&self) -> u32 {
        match self.state.is_panicking() {
            true => !Reason::OVERRIDDEN_BY_PANIC,
            false => !0,
        }
    }
}

/// What a strategy sees: the members as they are for one request.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    group: &'a Group,
    seats: &'a [Seat],
    request: &'a Request<'a>,
    query: Query,
    mask: u32,
    rehearsal: bool,
}

/// Share of its weight with which a member begins slow start.
const RAMP_FLOOR: f32 = 0.1;

impl<'a> View<'a> {
    /// The request to decide about.
    #[inline]
    pub fn request(&self) -> &'a Request<'a> {
        self.request
    }

    /// The current instant.
    #[inline]
    pub fn now(&self) -> Instant {
        self.request.now
    }

    /// The group's settings.
    #[inline]
    pub fn settings(&self) -> &'a GroupSettings {
        &self.group.settings
    }

    /// All members, eligible or not.
    pub fn members(&self) -> &'a [Member] {
        &self.group.members
    }

    /// How many members there are, eligible or not.
    #[inline]
    pub fn len(&self) -> usize {
        self.seats.len()
    }

    /// Whether the group is empty.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// The same view, but a load alert ([`Reason::SOFT`]) stands in nobody's way.
    pub fn despite_alerts(self) -> Self {
        View {
            mask: self.mask & !Reason::SOFT,
            ..self
        }
    }

    /// Whether nothing will come of the decision: it is only explained, and a strategy
    /// with a memory must not take it for a step.
    pub fn is_rehearsal(&self) -> bool {
        self.rehearsal
    }

    /// What changes about the member at `index` with each request.
    #[inline]
    pub fn slot(&self, index: usize) -> &'a Slot {
        &self.seats[index].slot
    }

    /// Whether the member at `index` may be picked: nothing speaks against it (in panic
    /// mode: nothing but opinions about health), it has a weight, was not tried yet, and
    /// is below its connection limit.
    #[inline]
    pub fn is_eligible(&self, index: usize) -> bool {
        let seat = &self.seats[index];
        seat.slot.in_flight() < seat.limit() && self.may_serve(&seat.slot, index)
    }

    /// [`View::is_eligible`], but a member at its connection limit counts, too.
    #[inline]
    pub fn is_eligible_unless_full(&self, index: usize) -> bool {
        self.may_serve(self.slot(index), index)
    }

    #[inline]
    fn may_serve(&self, slot: &Slot, index: usize) -> bool {
        slot.reasons() & self.mask == 0
            && slot.weight() > 0.0
            && (self.request.tried.is_empty() || !self.was_tried(index))
    }

    #[cold]
    fn was_tried(&self, index: usize) -> bool {
        let id = self.group.members[index].id;
        self.request.tried.binary_search(&id).is_ok()
    }

    /// Indices of the members that may be picked.
    #[inline]
    pub fn eligible(&self) -> impl Iterator<Item = usize> + Clone + use<'a> {
        let view = *self;
        (0..self.len()).filter(move |&index| view.is_eligible(index))
    }

    /// Current weight of the member at `index`: greater than 0 if it is eligible.
    ///
    /// During slow start it is the configured weight times a factor that grows linearly
    /// from 0.1 to 1 over [`GroupSettings::slow_start`].
    #[inline]
    pub fn weight(&self, index: usize) -> f32 {
        self.weight_now(index).0
    }

    /// The same, and whether the member is in slow start.
    #[inline]
    pub(crate) fn weight_now(&self, index: usize) -> (f32, bool) {
        let slot = self.slot(index);
        match slot.ramp_from() {
            None => (slot.weight(), false),
            Some(from) => {
                let ramp = self.ramp(from);
                (slot.weight() * ramp, ramp < 1.0)
            }
        }
    }

    // Few members are in slow start, and what a decision does for each is to stay small.
    #[cold]
    fn ramp(&self, from: Instant) -> f32 {
        let whole = self.settings().slow_start.as_secs_f32();
        let age = self.now().since(from).as_secs_f32();
        if age >= whole {
            return 1.0;
        }
        RAMP_FLOOR + (1.0 - RAMP_FLOOR) * age / whole
    }

    /// Whether load reports count and there ever was one: if not, there is no need to ask
    /// for the load of each member.
    #[inline]
    pub fn has_reports(&self) -> bool {
        self.settings().adaptive && self.group.reported.load(Ordering::Relaxed)
    }

    /// Reported load of the location of the member at `index`, with what our own
    /// requests have added since ([`Location::projected`]). `None` is unknown: never
    /// reported, too old, or the group is not adaptive. An unknown load counts as
    /// average, not as idle.
    #[inline(always)]
    pub fn load(&self, index: usize) -> Option<f32> {
        self.of_report(index, |report| report.value + report.added)
    }

    /// The same without what those would add who are [doubted](Group::doubt).
    pub fn vouched_load(&self, index: usize) -> Option<f32> {
        let load = self.load(index)?;
        Some(load - self.location(index).doubtful(&self.query))
    }

    /// Effective load of the member at `index`, with what our own requests have added
    /// since the report; `None` is unknown, as with [`View::load`].
    #[inline(always)]
    pub fn effective_load(&self, index: usize, shaping: Option<Shaping>) -> Option<f32> {
        match shaping {
            None => self.load(index).map(|load| higher(load, 0.0)),
            Some(shaping) => self.shaped_load(index, shaping),
        }
    }

    #[inline(never)]
    fn shaped_load(&self, index: usize, shaping: Shaping) -> Option<f32> {
        let report = self.of_report(index, |report| report)?;
        Some(shaping.effective(report, self.slot(index)).expected)
    }

    /// Load that one client brings, as pulses have shown; 0 is not known.
    #[inline]
    pub(crate) fn client_load(&self) -> f32 {
        self.group.state.client_load()
    }

    /// Reported load of the location of the member at `index` as it was reported, and
    /// a number that tells the report from the next one; `None` is unknown.
    pub(crate) fn last_report(&self, index: usize) -> Option<(f32, u32)> {
        self.of_report(index, |report| (report.value, report.at))
    }

    /// What `of` makes of the report of the group's load by the location of the member at
    /// `index`, if it may be used.
    #[inline(always)]
    fn of_report<T>(&self, index: usize, of: impl Fn(Report) -> T) -> Option<T> {
        if !self.settings().adaptive {
            return None;
        }
        self.location(index).of_report(&self.query, of)
    }

    /// What is asked about the load that the group goes by.
    #[inline]
    pub(crate) fn query(&self) -> &Query {
        &self.query
    }

    /// The location of the member at `index`.
    #[inline]
    pub fn location(&self, index: usize) -> &'a Location {
        &self.seats[index].location
    }

    /// Observed latency of the member at `index` in seconds; `None` if there is none.
    #[inline]
    pub fn latency(&self, index: usize) -> Option<f32> {
        self.slot(index)
            .latency(self.now(), self.settings().latency_decay)
    }

    /// What the failures of the member at `index` cost, in seconds.
    #[inline]
    pub fn penalty(&self, index: usize) -> f32 {
        self.slot(index)
            .penalty(self.now(), self.settings().latency_decay)
    }

    /// Share of the recent requests at the member at `index` that failed, 0 to 1.
    #[inline]
    pub fn failure_share(&self, index: usize) -> f32 {
        let slot = self.slot(index);
        match slot.has_failed() {
            true => slot.failure_share(self.now(), self.settings().latency_decay),
            false => 0.0,
        }
    }

    /// How long the member at `index` takes for one request in seconds, queueing
    /// excluded; `None` if it has not answered yet.
    #[inline]
    pub fn service_time(&self, index: usize) -> Option<f32> {
        self.slot(index).service_time(self.now())
    }

    /// How many service times each request more in flight costs: 1 where a member works on one
    /// after the other, 0 where it works on all at once. Learnt for the group as a whole.
    #[inline]
    pub fn growth(&self) -> f32 {
        self.group.state.growth()
    }

    /// Learns that anew from what these members have shown.
    pub(crate) fn learn_growth(&self, members: impl Iterator<Item = usize>) {
        let mut growth = Growth::unknown();
        members.for_each(|index| growth.add(self.slot(index).regression()));
        self.group.state.learn_growth(growth.get());
    }

    /// How long ago the member at `index` last answered, if that is so long that it may
    /// have changed since.
    #[inline]
    pub fn stale_since(&self, index: usize) -> Option<Duration> {
        self.slot(index)
            .stale_since(self.now(), self.settings().latency_decay)
    }

    /// Requests in flight at the location of the member at `index` from everybody, if
    /// that is what is reported: other balancers' requests, too, which the slot cannot
    /// know. `None` is unknown.
    #[inline]
    pub fn reported_in_flight(&self, index: usize) -> Option<f32> {
        match self.query.id {
            LoadId::IN_FLIGHT => self.load(index),
            _ => None,
        }
    }

    /// Why the member at `index` may not be picked, in words; `None` if it may.
    pub fn obstacle(&self, index: usize) -> Option<String> {
        let slot = self.slot(index);
        let reasons = slot.reasons() & self.mask;
        let names = Reason::ALL
            .iter()
            .filter(|&&reason| reasons & reason as u32 != 0)
            .map(|reason| reason.name());
        if reasons != 0 {
            return Some(names.collect::<Vec<_>>().join(", "));
        }
        if slot.weight() <= 0.0 {
            return Some("weight 0".into());
        }
        if !self.is_eligible_unless_full(index) {
            return Some("tried already, or not good enough for this request".into());
        }
        let limit = self.seats[index].limit();
        (slot.in_flight() >= limit).then(|| format!("at its limit of {limit} connections"))
    }

    fn why_none(&self) -> PickError {
        match (0..self.len()).any(|index| self.is_eligible_unless_full(index)) {
            true => PickError::AllFull,
            false => PickError::NoneEligible,
        }
    }
}

/// How a request ended, as far as it tells about the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered.
    Success,
    /// The member failed as a server: connection refused or reset, timeout, garbage.
    /// Only these count as failures in a row, which the connection failure limit is
    /// about.
    Failure,
    /// The member answered, with an error of its own (5xx), or took a connection and broke
    /// it without a byte. It costs like a failure, but
    /// one client that keeps asking for a broken page must not have members ejected:
    /// that takes a larger share of errors than the other members have.
    Error,
    /// The member is alive and says that it has too much to do (429, 503), and
    /// perhaps for how long.
    Overloaded {
        /// What `Retry-After` said.
        retry_after: Option<Duration>,
    },
    /// Nothing is known: the client went away, or the proxy gave up.
    Cancelled,
}

/// A request that is bound to a member. Counts as in flight until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    slot: Arc<Slot>,
    location: Arc<Location>,
    index: usize,
    /// The bit by which the client is [known](Crowd).
    client: Option<NonZeroU64>,
    started: Instant,
    /// Requests that the member had already when this one was bound.
    others: u32,
    digest: Digest,
    verdict: Option<Verdict>,
    end: Outcome,
}

/// What was observed when the member began to answer.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    outcome: Outcome,
    /// The failures in a row that it ended.
    failures_before: u32,
}

impl Ticket {
    /// Says whose request it is: what one client gets is held against a member otherwise than
    /// what many get.
    #[must_use]
    pub fn of_client(mut self, client: IpAddr) -> Self {
        self.client = NonZeroU64::new(Crowd::bit(client));
        self
    }

    fn note_client(&self, failed: bool, now: Instant) {
        if let Some(client) = self.client {
            self.slot.record().note_client(client.get(), failed, now);
        }
    }

    /// Index of the member in the snapshot that picked.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The location of the member.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// When the request was bound.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The member has begun to answer (HTTP: response head complete; TCP: first byte).
    /// The time since [`Ticket::started`] is its latency: the rest of the response
    /// depends on the client's speed, too. Only the first call counts.
    pub fn responded(&mut self, outcome: Outcome, now: Instant) {
        if self.verdict.is_none() && outcome != Outcome::Cancelled {
            self.observe(outcome, now);
        }
    }

    /// The request is over. Without a `responded` before, `outcome` is the member's.
    /// After one, a failure means that the member broke off in the middle. Dropping a
    /// ticket instead means [`Outcome::Cancelled`].
    pub fn finish(mut self, outcome: Outcome, now: Instant) {
        self.end = outcome;
        match self.verdict {
            None => self.observe(outcome, now),
            Some(verdict) if verdict.outcome == Outcome::Success => {
                if !matches!(outcome, Outcome::Success | Outcome::Cancelled) {
                    let before = verdict.failures_before;
                    self.slot.observe_broken(before, now, self.digest);
                    self.note_client(true, now);
                }
            }
            // It had failed before it was over.
            Some(verdict) => self.end = verdict.outcome,
        }
    }

    fn observe(&mut self, outcome: Outcome, now: Instant) {
        let latency = now.since(self.started);
        self.slot.unanswered_ends(self.started);
        if outcome == Outcome::Success {
            self.slot
                .sample_service(latency, self.others, now, self.digest);
        }
        let failures_before = self.slot.observe(outcome, latency, now, self.digest);
        if outcome != Outcome::Cancelled {
            self.note_client(outcome != Outcome::Success, now);
        }
        self.verdict = Some(Verdict {
            outcome,
            failures_before,
        });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.verdict.is_none() {
            self.slot.unanswered_ends(self.started);
        }
        self.slot.record().count(self.end);
        self.slot.end();
        self.location.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::LoadValue;
    use crate::member::Weight;
    use crate::observe::Recent;
    use crate::strategy;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn group(members: usize, max_connections: Option<u32>) -> Group {
        let members: Vec<_> = (0..members)
            .map(|i| Member {
                id: MemberId(i as u64),
                name: format!("m{i}").into(),
                address: "192.0.2.1:80".parse().unwrap(),
                max_connections,
                location: Arc::new(Location::new(format!("l{i}"))),
                slot: Arc::new(Slot::new(Weight::ONE)),
            })
            .collect();
        let values = strategy::Values::defaults(strategy::find("random").unwrap());
        let strategy = (values.kind().build)(&values, &members);
        Group::new(
            "g",
            GroupSettings::default(),
            strategy,
            members,
            Arc::default(),
        )
    }

    const DECAY: Duration = Duration::from_secs(10);

    /// Three clients a second, each for half a minute, and a report a second: were the
    /// whole load taken for that of the clients of the last second, each member would get
    /// one in each, however small it is.
    #[test]
    fn clients_that_stay_are_sent_by_load_and_not_one_to_each_in_turn() {
        const CAPACITIES: [f64; 3] = [100.0, 50.0, 25.0];
        const STAY: usize = 30;
        let mut group = group(3, None);
        let kind = strategy::find("least_utilization").unwrap();
        group.strategy = (kind.build)(&strategy::Values::defaults(kind), group.members());
        let mut rng = fastrand::Rng::with_seed(8);
        let mut sent = vec![[0u32; 3]];
        let load = |sent: &[[u32; 3]], index: usize| {
            let there: u32 = sent.iter().rev().take(STAY).map(|sent| sent[index]).sum();
            f64::from(there) / CAPACITIES[index]
        };
        for second in 1..=200u64 {
            for (index, member) in group.members().iter().enumerate() {
                let load = LoadValue::new(load(&sent, index)).unwrap();
                let now = at(second * 1000);
                member.location.report(LoadId::CPU, load, now).unwrap();
            }
            let mut counts = [0; 3];
            for client in 0..3 {
                let request = Request::at(at(second * 1000 + client * 300));
                let index = group.choose(&request, &mut rng).unwrap();
                group.assign(index, Duration::from_secs(STAY as u64));
                counts[index] += 1;
            }
            sent.push(counts);
        }
        let loads = [0, 1, 2].map(|index| load(&sent, index));
        let (low, high) = (
            loads.iter().copied().fold(1.0, f64::min),
            loads.iter().copied().fold(0.0, f64::max),
        );
        assert!(high < 1.25 * low, "{loads:?}");
    }

    /// A hundred clients a second go to the members themselves, each for five seconds, and
    /// reports come once a second: in between nobody knows of the clients but we who sent
    /// them.
    #[test]
    fn assigned_clients_count_until_a_report_shows_them() {
        for (strategy, id, capacity) in [
            ("least_utilization", LoadId::CPU, 500.0),
            ("least_request", LoadId::IN_FLIGHT, 1.0),
            ("load_minimum", LoadId::REQUESTS_PER_SECOND, 1.0),
        ] {
            let mut group = group(3, None);
            let kind = strategy::find(strategy).unwrap();
            group.strategy = (kind.build)(&strategy::Values::defaults(kind), group.members());
            group.settings.load_id = id;
            let mut rng = fastrand::Rng::with_seed(7);
            let mut sent = vec![[0u32; 3]];
            for second in 1..=60u64 {
                for (index, member) in group.members().iter().enumerate() {
                    let there: u32 = sent.iter().rev().take(5).map(|sent| sent[index]).sum();
                    let load = LoadValue::new(f64::from(there) / capacity).unwrap();
                    let now = at(second * 1000);
                    member.location.report(id, load, now).unwrap();
                }
                let mut counts = [0; 3];
                for client in 0..100 {
                    let request = Request::at(at(second * 1000 + client * 10));
                    let index = group.choose(&request, &mut rng).unwrap();
                    group.assign(index, Duration::from_secs(5));
                    counts[index] += 1;
                }
                sent.push(counts);
            }
            // At first nothing is known about what a client costs.
            for counts in &sent[10..] {
                let most = counts.iter().max().copied();
                assert!(most <= Some(70), "{strategy} {counts:?}");
            }
            let record = |i: usize| group.members()[i].slot.record().assigned();
            assert_eq!((0..3).map(record).sum::<u64>(), 6000);
            assert!(group.members().iter().all(|m| m.slot.in_flight() == 0));
        }
    }

    #[test]
    fn a_ticket_counts_as_in_flight_until_it_is_gone() {
        let group = group(1, None);
        let slot = &group.members()[0].slot;
        let finished = group.bind(0, at(0)).unwrap();
        let dropped = group.bind(0, at(0)).unwrap();
        assert_eq!(slot.in_flight(), 2);
        finished.finish(Outcome::Success, at(10));
        assert_eq!(slot.in_flight(), 1);
        drop(dropped);
        assert_eq!(slot.in_flight(), 0);
        assert_eq!(group.members()[0].location.in_flight(), 0);
        let totals = slot.record().totals();
        assert_eq!((totals.successes, totals.cancelled), (1, 1));
        assert_eq!(totals.total(), 2);
    }

    #[test]
    fn latency_is_the_time_to_the_response_head() {
        let group = group(1, None);
        let slot = &group.members()[0].slot;
        let mut ticket = group.bind(0, at(1000)).unwrap();
        ticket.responded(Outcome::Success, at(1020));
        ticket.finish(Outcome::Success, at(9000));
        assert_eq!(slot.latency(at(1020), DECAY), Some(0.020));
        assert_eq!(slot.record().latencies().count(), 1);
    }

    #[test]
    fn a_cancelled_request_tells_nothing_about_the_member() {
        let group = group(1, None);
        let slot = &group.members()[0].slot;
        group
            .bind(0, at(0))
            .unwrap()
            .finish(Outcome::Cancelled, at(5000));
        assert_eq!(slot.latency(at(5000), DECAY), None);
        assert_eq!(slot.penalty(at(5000), DECAY), 0.0);
        assert_eq!(slot.consecutive_failures(), 0);
        let recent = slot.record().recent(at(5000), DECAY);
        assert_eq!(recent, Recent::default());
    }

    #[test]
    fn failures_cost_at_least_the_penalty_and_retry_after_is_capped() {
        let group = group(3, None);
        let cost = |index: usize, outcome, took| {
            group.bind(index, at(0)).unwrap().finish(outcome, at(took));
            group.members()[index].slot.penalty(at(took), DECAY)
        };
        assert_eq!(cost(0, Outcome::Failure, 1), 5.0);
        let hour = Some(Duration::from_secs(3600));
        let busy = Outcome::Overloaded { retry_after: hour };
        assert_eq!(cost(1, busy, 1), 300.0);
        // A timeout costs what it took.
        assert_eq!(cost(2, Outcome::Failure, 30_000), 30.0);
        assert_eq!(group.members()[0].slot.latency(at(1), DECAY), None);
    }

    #[test]
    fn a_member_that_breaks_off_every_answer_has_failures_in_a_row() {
        let group = group(1, None);
        let slot = &group.members()[0].slot;
        for round in 1..=5 {
            let mut ticket = group.bind(0, at(0)).unwrap();
            ticket.responded(Outcome::Success, at(1));
            ticket.finish(Outcome::Failure, at(2));
            assert_eq!(slot.consecutive_failures(), round);
        }
        let recent = slot.record().recent(at(2), DECAY);
        assert_eq!((recent.total, recent.failures), (5, 5));
        assert_eq!(slot.record().totals().failures, 5);
    }

    #[test]
    fn answers_with_an_error_cost_but_are_no_failures_in_a_row() {
        let group = group(1, None);
        let slot = &group.members()[0].slot;
        let end = |outcome| group.bind(0, at(0)).unwrap().finish(outcome, at(1));
        let busy = Outcome::Overloaded { retry_after: None };
        for answer in [Outcome::Error, busy] {
            end(Outcome::Failure);
            assert_eq!(slot.consecutive_failures(), 1);
            end(answer);
            assert_eq!(slot.consecutive_failures(), 0, "{answer:?} is an answer");
        }
        assert_eq!(slot.penalty(at(1), DECAY), 5.0);
        assert!(
            slot.failure_share(at(1), DECAY) > 0.2,
            "four of about sixteen"
        );
        let totals = slot.record().totals();
        assert_eq!((totals.failures, totals.overloads), (3, 1));
    }

    #[test]
    fn what_stands_in_the_way_is_told_apart() {
        let mut rng = fastrand::Rng::with_seed(1);
        let full = group(2, Some(1));
        let tickets: Vec<_> = (0..2).map(|i| full.bind(i, at(0)).unwrap()).collect();
        let error = full.pick(&Request::at(at(0)), &mut rng).unwrap_err();
        assert_eq!(error, PickError::AllFull);
        let tried = [MemberId(0), MemberId(1)];
        let request = Request {
            tried: &tried,
            ..Request::at(at(0))
        };
        let error = full.pick(&request, &mut rng).unwrap_err();
        assert_eq!(error, PickError::NoneEligible);
        drop(tickets);
        assert!(full.pick(&Request::at(at(0)), &mut rng).is_ok());
        let empty = group(0, None);
        let error = empty.pick(&Request::at(at(0)), &mut rng).unwrap_err();
        assert_eq!(error, PickError::NoneEligible);
    }

    #[test]
    fn panic_overrides_opinions_but_no_facts() {
        let mut rng = fastrand::Rng::with_seed(1);
        let group = group(2, None);
        group.members()[0].slot.set(Reason::Down, true);
        group.members()[1].slot.set(Reason::Maintenance, true);
        let request = Request::at(at(0));
        assert!(group.pick(&request, &mut rng).is_err());
        group.state().set_panicking(true);
        for _ in 0..20 {
            assert_eq!(group.pick(&request, &mut rng).unwrap().index(), 0);
        }
    }

    #[test]
    fn slow_start_ramps_the_weight() {
        let group = group(1, None);
        let slot = &group.members()[0].slot;
        slot.set_ramp_from(Some(at(1000)));
        let weight = |ms| group.view(&Request::at(at(ms))).weight(0);
        assert!((weight(1000) - 0.1).abs() < 1e-6);
        assert!((weight(6000) - 0.55).abs() < 1e-6);
        assert_eq!(weight(11_000), 1.0);
        slot.set_ramp_from(None);
        assert_eq!(weight(1000), 1.0);
    }

    #[test]
    fn the_next_decision_is_traced_on_demand_only() {
        let mut rng = fastrand::Rng::with_seed(1);
        let group = group(3, None);
        group.members()[1].slot.set(Reason::Down, true);
        let request = Request::at(at(7));
        drop(group.pick(&request, &mut rng));
        assert!(group.state().last_decision().is_none());
        group.state().want_trace();
        let ticket = group.pick(&request, &mut rng).unwrap();
        let decision = group.state().last_decision().unwrap();
        assert_eq!(
            decision.chosen,
            Ok(group.members()[ticket.index()].name.clone())
        );
        let down = |c: &&crate::trace::Candidate| c.verdict == "not eligible: down";
        assert_eq!(
            decision.explanation.candidates.iter().filter(down).count(),
            1
        );
        let next = group.explain_next(&request, &mut rng);
        assert!(next.chosen.is_ok());
        assert_eq!(
            group.members()[0].slot.in_flight() + group.members()[2].slot.in_flight(),
            1
        );
    }
}

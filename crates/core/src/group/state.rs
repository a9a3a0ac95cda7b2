//! State that a group keeps from one snapshot to the next.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwapOption;

use super::request::PickError;
use crate::engines::EnginePool;
use crate::estimate::{FIRST_GROWTH, pack, unpack};
use crate::learnt::{self, LearntSlot, LearntValues, Visit};
use crate::load::MemberMeans;
use crate::relocation::{Client, Relocation};
use crate::time::Instant;
use crate::trace::Explanation;
use crate::zone::Readings;

/// State that a group keeps over all its snapshots, beside the slots of its members.
#[derive(Debug, Default)]
pub struct GroupState {
    panic: AtomicBool,
    /// Additional work of decisions beside asking the strategy, in bits: mostly 0, and then decisions read no more than
    /// this.
    beside: AtomicU8,
    pub(super) last: ArcSwapOption<Decision>,
    /// True if there is a relocation. Mostly there is none, and then a decision reads no more than this flag.
    relocating: AtomicBool,
    relocation: ArcSwapOption<Arc<dyn Relocation>>,
    clients: Mutex<Clients>,
    /// Load that one client brings (f32 bits); 0 is not known.
    client: AtomicU32,
    /// The growth of latencies with requests in flight, less [`FIRST_GROWTH`] (f32 bits).
    growth: AtomicU32,
    /// True if members have different weights ([`Group::heed_weights`](super::Group::heed_weights)).
    pub(super) is_weighted: AtomicBool,
    /// True if clients were ever sent to members, to go there themselves and stay.
    pub(super) has_clients: AtomicBool,
    /// True if a member works on few requests at once, according to the learnt caps.
    pub(super) has_caps: AtomicBool,
    /// Time of a request at a typical member, in seconds, where a member works on few requests at once and none has a
    /// weight of its own (f32 bits); 0 means unknown.
    typical: AtomicU32,
    /// True if a load was ever reported for a location of the group.
    pub(super) reported: Arc<AtomicBool>,
    /// [`MemberMeans`], packed; 0 is not known.
    member_means: AtomicU64,
    zones: Readings,
    /// True if a member may have a trial that no request has taken. Mostly there is none, and then a request
    /// reads no more than this flag.
    trials: AtomicBool,
    /// Engines, once the group has had strategy `inference`.
    engines: OnceLock<Arc<EnginePool>>,
}

/// The next decision is traced and kept as the last one.
const TRACE: u8 = 1;

/// Members are of zones with different ranks.
const ZONES: u8 = 2;

/// Differences of the typical time up to this factor are ignored.
const SIMILAR: f32 = 1.5;

#[derive(Debug, Default)]
struct Clients {
    all: Vec<Arc<Client>>,
    /// Number of clients that were left when the gone ones were last removed.
    were: usize,
}

/// A decision that was traced.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Instant of the decision.
    pub at: Instant,
    /// True if the program in the kernel took it (`forward = "kernel"`).
    pub in_kernel: bool,
    /// Name of the strategy that took it.
    pub strategy: &'static str,
    /// Name of the chosen member, or why there was none.
    pub chosen: Result<Arc<str>, PickError>,
    /// Candidates and notes of the strategy.
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
    /// Words that were learnt about the group.
    pub fn export_learnt(&self) -> LearntValues {
        learnt::collect_words(|visit| self.words(visit))
    }

    /// Takes over what another process [has learnt](GroupState::export_learnt).
    pub fn import_learnt(&self, learnt: &LearntValues) {
        learnt::restore(learnt, |visit| self.words(visit));
    }

    fn words<'a>(&'a self, visit: Visit<'_, 'a>) {
        visit("panic", LearntSlot::Flag(&self.panic));
        visit("client", LearntSlot::Short(&self.client));
        visit("growth", LearntSlot::Short(&self.growth));
        visit("is_weighted", LearntSlot::Flag(&self.is_weighted));
        visit("has_clients", LearntSlot::Flag(&self.has_clients));
        visit("has_caps", LearntSlot::Flag(&self.has_caps));
        visit("typical", LearntSlot::Short(&self.typical));
        self.zones.visit_words(visit);
    }

    /// Engines of the group, if it has had strategy `inference`.
    #[inline]
    pub fn engines(&self) -> Option<&Arc<EnginePool>> {
        self.engines.get()
    }

    /// Engines of the group, which are created at the first call.
    pub(super) fn ensure_engines(&self, create: impl FnOnce() -> EnginePool) -> &Arc<EnginePool> {
        self.engines.get_or_init(|| Arc::new(create()))
    }

    /// Means of the members' reports, as learnt last.
    #[inline]
    pub(super) fn member_means(&self) -> Option<MemberMeans> {
        let word = self.member_means.load(Ordering::Relaxed);
        let (per_request, requests) = unpack(word);
        (word != 0).then_some(MemberMeans {
            per_request,
            requests,
        })
    }

    pub(super) fn learn_means(&self, means: MemberMeans) {
        let word = pack(means.per_request, means.requests);
        self.member_means.store(word, Ordering::Relaxed);
    }

    /// True if so many members are down or ejected that these opinions are ignored and all members get requests.
    #[inline]
    pub fn is_panicking(&self) -> bool {
        self.panic.load(Ordering::Relaxed)
    }

    /// Begins or ends panic mode; answers whether that changed anything.
    pub fn set_panicking(&self, panicking: bool) -> bool {
        self.panic.swap(panicking, Ordering::AcqRel) != panicking
    }

    /// True if a member may have a trial that no request has taken.
    #[inline]
    pub fn has_trials(&self) -> bool {
        self.trials.load(Ordering::Relaxed)
    }

    /// Says whether a member has a trial that no request has taken.
    pub fn set_trials(&self, some: bool) {
        self.trials.store(some, Ordering::Relaxed);
    }

    /// True if clients of the group are being relocated, or were lately.
    #[inline]
    pub fn is_relocating(&self) -> bool {
        self.relocating.load(Ordering::Acquire)
    }

    /// The current relocation, which says which clients are to leave.
    pub fn relocation(&self) -> Option<Arc<Arc<dyn Relocation>>> {
        self.relocation.load_full()
    }

    /// Has clients of the group relocated, or no longer.
    pub fn relocate(&self, relocation: Option<Arc<dyn Relocation>>) {
        let some = relocation.is_some();
        self.relocation.store(relocation.map(Arc::new));
        self.relocating.store(some, Ordering::Release);
    }

    /// Returns the client held as `client`; a new one is counted until no other owner holds it.
    pub fn ensure_client<'a>(&self, client: &'a mut Option<Arc<Client>>) -> &'a Arc<Client> {
        client.get_or_insert_with(|| {
            let client = Arc::<Client>::default();
            self.add_client(Arc::clone(&client));
            client
        })
    }

    /// Counts a client until no other owner holds it.
    fn add_client(&self, client: Arc<Client>) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.all.len() >= 2 * clients.were + 64 {
            clients.leave_out();
        }
        clients.all.push(client);
    }

    /// The clients that are there.
    pub fn list_clients(&self) -> Vec<Arc<Client>> {
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

    /// Growth of latencies ([`View::growth`](super::View::growth)).
    #[inline]
    pub(super) fn growth(&self) -> f32 {
        FIRST_GROWTH + f32::from_bits(self.growth.load(Ordering::Relaxed))
    }

    /// Moves it a part of the way.
    pub(super) fn learn_growth(&self, growth: f32) {
        let learnt = self.growth() + (growth - self.growth()) / 8.0;
        self.growth
            .store((learnt - FIRST_GROWTH).to_bits(), Ordering::Relaxed);
    }

    /// Time of a request at a typical member in seconds, for members' filters; 0 means unknown, or of no use.
    #[inline]
    pub(super) fn typical_time(&self) -> f32 {
        f32::from_bits(self.typical.load(Ordering::Relaxed))
    }

    /// Sets the typical time. Small differences change nothing, as all filters are in units of it.
    pub(super) fn set_typical(&self, time: f32) {
        let before = self.typical_time();
        let is_other = time > SIMILAR * before || SIMILAR * time < before;
        if is_other {
            self.typical.store(time.to_bits(), Ordering::Relaxed);
        }
    }

    /// Keeps a decision as the last one, which was taken elsewhere.
    pub fn keep_decision(&self, decision: Decision) {
        self.last.store(Some(Arc::new(decision)));
    }

    /// Has the next decision traced and kept as the last one.
    pub fn want_trace(&self) {
        self.beside.fetch_or(TRACE, Ordering::Relaxed);
    }

    /// True if a decision has more to do than to ask the strategy.
    #[inline]
    pub(super) fn is_beside(&self) -> bool {
        self.beside.load(Ordering::Relaxed) != 0
    }

    /// True if this decision is the one that is traced.
    pub(super) fn take_trace(&self) -> bool {
        let wanted = self.beside.load(Ordering::Relaxed) & TRACE != 0;
        wanted && self.beside.fetch_and(!TRACE, Ordering::Relaxed) & TRACE != 0
    }

    /// Says whether members are of zones with different ranks.
    pub(super) fn set_ranked(&self, is_ranked: bool) {
        match is_ranked {
            true => self.beside.fetch_or(ZONES, Ordering::Relaxed),
            false => self.beside.fetch_and(!ZONES, Ordering::Relaxed),
        };
    }

    /// Readings of the ranks of the group's zones, from the rounds of control.
    pub fn zones(&self) -> &Readings {
        &self.zones
    }

    /// The last decision that was traced.
    pub fn last_decision(&self) -> Option<Arc<Decision>> {
        self.last.load_full()
    }
}

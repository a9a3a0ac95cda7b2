//! Sees to it that a weight is a share, over time, of what members that are equally good get.
//!
//! Strategies that take the lowest score decide by the present state, and the present state consists of whole requests:
//! two in flight cannot be shared 5 to 2. So one of the candidates is *due* in each decision, in proportion to the
//! weights. The best one is taken all the same; if it has another weight than the one that was due, then members of its
//! weight are one request ahead, and members of the other weight behind. Members that are ahead have a higher score, up
//! to sixteen times, and members that are behind a lower one, down to a sixteenth. That makes shares exact where
//! members are equal. Where they are not, it gives way: a member that is slower than the others is due less often, and
//! a member whose queue has become far longer than its share is left, due or not.
//!
//! An account belongs to a weight and not to a member. Among members of one weight nothing changes, so a slow one falls
//! behind without a claim to anything; and groups whose weights are all the same, which are most groups, write nothing
//! and take no turns. Only members that may be picked are ever due, so a member that comes back after a while has no
//! arrears to catch up with. The accounts are bounded, and a new snapshot of the group begins anew.
//!
//! The member that is due is drawn by weight, and drawn anew with a chance that grows with how much worse than the
//! others the drawn one is: so only sums need to be worked out for all candidates.
//!
//! Requests in flight are compared by their excess over the share of their member. For a member of weight *v* times the
//! mean, with *n* requests where *x* are the mean, the excess is
//!
//! ```text
//! v >= 1: n / v          v < 1: n + (1 - v) x
//! ```
//!
//! Both are *x* where a member has its share, and *n* where all weights are equal. With `n / v`
//! for light ones, too, a single request would weigh as much as ten, and none at all would
//! make them the emptiest members, always.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use super::best::Best;
use super::urn::Urn;
use crate::estimate::{higher, log2, lower, pack, unpack};
use crate::group::view::View;
use crate::member::{Member, Slot};

/// Most requests that count as ahead or behind. Eight double the score or halve it, so this is
/// sixteen times the score, or a sixteenth.
const MOST: i32 = 32;

/// Scores up to this factor above the lowest one are as good if it is the candidate's turn.
const AS_GOOD: f32 = 1.5;

/// Number of powers of two by which a member may be worse than the others. A member that is worse by more is due less
/// often, by the square of the excess: a weight is the share that a member like the others deserves. A member that is
/// seldom asked is somewhat slower where machines are busy, whatever its speed.
const WORSE: f32 = 1.0;

/// Number of draws after which nobody is due: the drawn members were much worse than the others.
const DRAWS: usize = 16;

/// Interval of decisions at which the members' speed is measured, for the other decisions: one in this number.
const INTERVAL: u32 = 16;

/// Accounts by weight. Weights that meet in one of them are only shared by what there is at the
/// moment.
const ACCOUNTS: usize = 128;

/// The account of all members in slow start, whose weights change all the time: the last one.
const RAMPING: usize = ACCOUNTS;

/// The weight of the member at `index`, and its account.
#[inline]
pub(super) fn weight_and_account(view: &View<'_>, index: usize) -> (f32, u8) {
    let (weight, is_ramping) = view.weight_now(index);
    // Sign, exponent and five bits: weights that differ by less than 3 % share an account,
    // and so do some that differ by a factor of sixteen.
    let account = (weight.to_bits() >> 18) as usize % ACCOUNTS;
    (weight, if is_ramping { RAMPING } else { account } as u8)
}

#[cold]
fn price_at_bound(ahead: i32) -> f32 {
    PRICES[(ahead.clamp(-MOST, MOST) + MOST) as usize]
}

/// Factors of scores by the number of requests ahead, from `-MOST` on.
const PRICES: [f32; 2 * MOST as usize + 1] = prices();

const fn prices() -> [f32; 2 * MOST as usize + 1] {
    // The eighth root of two.
    let (step, mut price) = (1.090_507_732_665_257_7, 1.0 / 16.0);
    let mut prices = [0.0; 2 * MOST as usize + 1];
    let mut place = 0;
    while place < prices.len() {
        prices[place] = price as f32;
        price *= step;
        place += 1;
    }
    prices
}

/// The accounts of one group.
#[derive(Debug)]
pub(super) struct Shares {
    /// Scores that differ by less than this share count as equal.
    spread: f32,
    /// Draws by weight.
    urn: Urn,
    /// [`Means`] when all members were compared last (f32 bits), and whether their weights differed.
    means: AtomicU64,
    unequal: AtomicBool,
    /// Sums of [`Speeds`].
    speeds: [AtomicU64; 3],
    /// Number of requests by which the members of a weight are ahead of their share.
    ahead: [AtomicI32; ACCOUNTS + 1],
}

/// A member that may be picked, as the strategy sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) index: usize,
    /// Sum of the costs of the requests in flight.
    pub(super) in_flight: f32,
    pub(super) weight: f32,
    /// Service time of the member in seconds, as the strategy takes it; 0 where the strategy does not use it.
    pub(super) time: f32,
    /// Factor by which failures and reported load make the member worse; 1 means no effect.
    pub(super) cost: f32,
    /// Account of the member's weight ([`weight_and_account`]).
    pub(super) account: u8,
}

impl Candidate {
    /// A candidate for strategies that go by requests in flight.
    #[inline]
    pub(super) fn new(view: &View<'_>, index: usize, in_flight: f32) -> Self {
        let (weight, account) = weight_and_account(view, index);
        Candidate {
            index,
            in_flight,
            weight,
            time: 0.0,
            cost: 1.0,
            account,
        }
    }
}

/// Member that is due in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// All members that may be picked take turns: one of them is drawn.
    InTurn,
    /// The first candidate: it was drawn by weight.
    First,
    /// No member: the lowest score is taken.
    Nobody,
}

/// Says what a factor is for, in a verdict.
pub(super) struct Ahead(pub(super) f32);

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            price if price > 1.0 => write!(f, ", times {price:.2} for being ahead of its share"),
            price if price < 1.0 => write!(f, ", times {price:.2} for being behind its share"),
            _ => Ok(()),
        }
    }
}

/// Weights and requests in flight of the candidates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    weights: f32,
    in_flight: f32,
    count: u32,
    lightest: f32,
    heaviest: f32,
}

impl Default for Sums {
    fn default() -> Self {
        Sums {
            weights: 0.0,
            in_flight: 0.0,
            count: 0,
            lightest: f32::INFINITY,
            heaviest: 0.0,
        }
    }
}

impl Sums {
    #[inline]
    pub(super) fn add_member(&mut self, weight: f32, in_flight: f32) {
        self.lightest = lower(self.lightest, weight);
        self.heaviest = higher(self.heaviest, weight);
        self.weights += weight;
        self.in_flight += in_flight;
        self.count += 1;
    }

    /// True if nothing is in flight at any of them.
    #[inline]
    pub(super) fn are_idle(&self) -> bool {
        self.in_flight <= 0.0
    }

    #[inline]
    pub(super) fn means(&self) -> Means {
        Means {
            unequal: self.lightest < self.heaviest,
            weight: self.weights / self.count as f32,
            per_weight: self.in_flight / self.weights,
        }
    }
}

/// Means with which requests in flight are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// True if weights differ.
    unequal: bool,
    /// The mean weight.
    weight: f32,
    /// Requests in flight for each unit of weight.
    per_weight: f32,
}

impl Means {
    /// Requests in flight of a candidate for the comparison with the others.
    #[inline]
    fn compare(&self, candidate: &Candidate) -> f32 {
        match candidate.weight >= self.weight {
            true => candidate.in_flight * self.weight / candidate.weight,
            false => candidate.in_flight + (self.weight - candidate.weight) * self.per_weight,
        }
    }
}

/// A mean of logarithms, of which a member's own part can be left out; 0 means none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Logs {
    sum: f32,
    count: f32,
}

impl Logs {
    #[inline]
    pub(super) fn add(&mut self, log: f32) {
        self.sum += log;
        self.count += f32::from(u8::from(log > 0.0));
    }

    /// The mean without `own`, which was added; `None` if nothing else was.
    #[inline]
    pub(super) fn of_others(&self, own: f32) -> Option<f32> {
        let count = self.count - f32::from(u8::from(own > 0.0));
        (count > 0.0).then(|| (self.sum - own) / count)
    }

    /// Distance of `own`, which was added, above the mean of the others; 0 if one of the two is not known.
    fn above(&self, own: f32) -> f32 {
        match self.of_others(own) {
            Some(typical) if own > 0.0 => own - typical,
            _ => 0.0,
        }
    }

    fn hold(&self, word: &AtomicU64) {
        word.store(pack(self.sum, self.count), Ordering::Relaxed);
    }

    fn held(word: &AtomicU64) -> Self {
        let (sum, count) = unpack(word.load(Ordering::Relaxed));
        Logs { sum, count }
    }
}

/// Latencies and costs of the members, all in powers of two.
///
/// A member is slower than the others only if it is so both by the time that requests wait for an answer, and by this
/// time divided by the number of requests there. Where requests queue one behind the other, the second figure tells how
/// fast a member is; where all are worked on at once, the first figure does: so a long queue, which a weight may have
/// made, is not held against a member. Both are means of logarithms (`regression.rs`): otherwise a single stall of the
/// machine would be seen for longest at the member that answers least.
#[derive(Clone, Copy, Debug, Default)]
struct Speeds {
    latencies: Logs,
    times: Logs,
    costs: Logs,
}

impl Speeds {
    #[cold]
    #[inline(never)]
    fn add(&mut self, slot: &Slot, cost: f32) {
        let (latency, time) = slot.regression().typical_latency();
        self.latencies.add(latency);
        self.times.add(time);
        self.costs.add(log2(cost));
    }

    fn hold(&self, words: &[AtomicU64; 3]) {
        let logs = [&self.latencies, &self.times, &self.costs];
        logs.into_iter()
            .zip(words)
            .for_each(|(logs, word)| logs.hold(word));
    }

    #[inline]
    fn held(words: &[AtomicU64; 3]) -> Self {
        let [latencies, times, costs] = words.each_ref().map(Logs::held);
        Speeds {
            latencies,
            times,
            costs,
        }
    }

    /// True if a member that was drawn by its weight is due: with a probability equal to the deserved part of its
    /// weight.
    fn deserves(&self, view: &View<'_>, index: usize, cost: f32, rng: &mut fastrand::Rng) -> bool {
        let (latency, time) = view.slot(index).regression().typical_latency();
        let slower = lower(self.latencies.above(latency), self.times.above(time));
        let worse = higher(slower, 0.0) + higher(self.costs.above(log2(cost)), 0.0);
        worse <= WORSE || rng.f32() < libm::exp2f(2.0 * (WORSE - worse))
    }
}

impl Shares {
    pub(super) fn new(spread: f32, members: &[Member]) -> Self {
        let urn = Urn::new(members);
        Shares {
            spread,
            means: AtomicU64::new(pack(1.0, 0.0)),
            unequal: AtomicBool::new(!urn.is_even()),
            speeds: Default::default(),
            urn,
            ahead: [const { AtomicI32::new(0) }; ACCOUNTS + 1],
        }
    }

    /// Draws members by weight.
    #[inline]
    pub(super) fn urn(&self) -> &Urn {
        &self.urn
    }

    /// The candidate with the lowest score. `means` are those of the candidates; without them
    /// those of the decision before are taken, which also was about all members. `cost` is that
    /// of a member ([`Candidate::cost`]). `score` gets a candidate, its requests in flight as they
    /// compare with those of the others, and a factor for what it is ahead.
    // Inlined, so that no decision asks for figures that its strategy never uses.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "a decision has as many parts")]
    pub(super) fn pick_lowest(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        candidates: impl Iterator<Item = Candidate>,
        means: Option<Means>,
        cost: impl Fn(usize) -> f32,
        due: Due,
        mut score: impl FnMut(&Candidate, f32, f32) -> f32,
    ) -> Option<usize> {
        let (is_known, means) = (means.is_some(), means.unwrap_or_else(|| self.means()));
        let (unequal, first_is_due) = (means.unequal, due == Due::First);
        // Where weights are equal no member has to be due.
        let mut due = match due {
            Due::InTurn if unequal => self.urn.draw(view, rng),
            _ => None,
        };
        let in_turn = due.is_some();
        let looks = in_turn && rng.u32(..INTERVAL) == 0;

        let mut best = Best::new(self.spread);
        let (mut sums, mut speeds) = <(Sums, Speeds)>::default();
        let (mut due_score, mut due_cost) = (f32::INFINITY, 1.0);
        for candidate in candidates {
            if !is_known {
                sums.add_member(candidate.weight, candidate.in_flight);
            }
            if !unequal {
                // Of drawn ones that are equal the first stays, which was drawn by weight.
                let weight = if first_is_due { 0.0 } else { candidate.weight };
                let score = score(&candidate, candidate.in_flight, 1.0);
                best.offer(candidate.index, score, weight, rng);
                continue;
            }
            let price = self.price_of(candidate.account);
            let score = score(&candidate, means.compare(&candidate), price);
            best.offer(candidate.index, score, candidate.weight, rng);
            if first_is_due && due.is_none() {
                due = Some(candidate.index);
            }
            if due == Some(candidate.index) {
                (due_score, due_cost) = (score, candidate.cost);
            }
            if looks {
                speeds.add(view.slot(candidate.index), candidate.cost);
            }
        }
        let lowest = best.score();
        let best = best.index()?;
        if looks {
            speeds.hold(&self.speeds);
        }
        if !is_known {
            self.hold_means(&sums);
        }

        let Some(due) = due else {
            return Some(best);
        };
        if in_turn {
            let speeds = Speeds::held(&self.speeds);
            if !speeds.deserves(view, due, due_cost, rng) {
                // The accounts are kept for who is due instead, and they see to the rest.
                if let Some(due) = self.draw_again(view, rng, &speeds, cost) {
                    self.count(view, best, due);
                }
                return Some(best);
            }
        }
        let chosen = match due_score <= lowest * AS_GOOD {
            true => due,
            false => best,
        };
        self.count(view, chosen, due);
        Some(chosen)
    }

    fn means(&self) -> Means {
        let (weight, per_weight) = unpack(self.means.load(Ordering::Relaxed));
        Means {
            unequal: self.unequal.load(Ordering::Relaxed),
            weight,
            per_weight,
        }
    }

    fn hold_means(&self, sums: &Sums) {
        let Means {
            unequal,
            weight,
            per_weight,
        } = sums.means();
        // Mostly it stays: reading keeps the cache line shared.
        if self.unequal.load(Ordering::Relaxed) != unequal {
            self.unequal.store(unequal, Ordering::Relaxed);
        }
        if unequal {
            self.means
                .store(pack(weight, per_weight), Ordering::Relaxed);
        }
    }

    /// Draws until a member deserves to be due.
    #[cold]
    fn draw_again(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        speeds: &Speeds,
        cost: impl Fn(usize) -> f32,
    ) -> Option<usize> {
        for _ in 0..DRAWS {
            let index = self.urn.draw(view, rng)?;
            if speeds.deserves(view, index, cost(index), rng) {
                return Some(index);
            }
        }
        None
    }

    /// The eligible member with the fewest requests in flight, and clients bound to it, for its weight.
    pub(super) fn least_in_flight(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        without: Option<usize>,
    ) -> Option<usize> {
        let at = |index| Candidate::new(view, index, view.known_work(index));
        let members = view
            .eligible_indices()
            .filter(move |&index| Some(index) != without);
        let candidates = members.map(at);
        let own = view.cost();
        let score = |_: &Candidate, compares: f32, price: f32| (compares + own) * price;
        let due = match without {
            None => Due::InTurn,
            Some(_) => Due::Nobody,
        };
        self.pick_lowest(view, rng, candidates, None, |_| 1.0, due, score)
    }

    #[inline]
    fn price_of(&self, account: u8) -> f32 {
        let ahead = self.ahead[usize::from(account)].load(Ordering::Relaxed);
        // Workers that count at once may be past the bound by one request each.
        let place = ahead.wrapping_add(MOST) as usize;
        PRICES
            .get(place)
            .copied()
            .unwrap_or_else(|| price_at_bound(ahead))
    }

    /// Factor of the score of the member at `index`.
    #[inline]
    pub(super) fn score_factor(&self, view: &View<'_>, index: usize) -> f32 {
        self.price_of(weight_and_account(view, index).1)
    }

    /// Keeps the accounts when `chosen` was taken where `due` was due.
    pub(super) fn count(&self, view: &View<'_>, chosen: usize, due: usize) {
        if chosen == due || view.is_rehearsal() {
            return;
        }
        let (chosen, due) = (
            weight_and_account(view, chosen).1,
            weight_and_account(view, due).1,
        );
        if chosen != due {
            // Workers that count at once may miss the bound by one each: no matter.
            let [chosen, due] = [chosen, due].map(|account| &self.ahead[usize::from(account)]);
            // A single request does not fill an account, whatever it costs.
            let cost = (view.cost() as i32).clamp(1, MOST / 4);
            if chosen.load(Ordering::Relaxed) < MOST {
                chosen.fetch_add(cost, Ordering::Relaxed);
            }
            if due.load(Ordering::Relaxed) > -MOST {
                due.fetch_sub(cost, Ordering::Relaxed);
            }
        }
    }
}

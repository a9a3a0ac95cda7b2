//! The event engine: virtual time, and what is to happen at which moment of it.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::f64::consts::PI;
use std::time::Duration;

use evenkeel_core::time::Instant;

/// A queue of events. Of two at the same moment the one comes first that was scheduled first.
#[derive(Debug)]
pub struct Engine<E> {
    now: u64,
    events: BinaryHeap<Due<E>>,
    /// What was to happen `usual` nanoseconds later: such events are due in the order in which
    /// they were scheduled, and need no sorting.
    line: VecDeque<Due<E>>,
    usual: u64,
    scheduled: u64,
}

/// An event, when it is due, and which one it was of those that were scheduled.
#[derive(Debug)]
struct Due<E> {
    at: u64,
    order: u64,
    event: E,
}

impl<E> Due<E> {
    fn key(&self) -> u128 {
        u128::from(self.at) << 64 | u128::from(self.order)
    }
}

impl<E> Ord for Due<E> {
    /// The first one is the greatest, as heaps want it.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Due<E> {}

impl<E> Engine<E> {
    /// An engine in which nothing is to happen yet. Requests must not come at its first moment,
    /// which slots use for "never". Many events are to happen `usual` nanoseconds after they were
    /// scheduled.
    pub fn new(usual: f64) -> Self {
        Engine {
            now: 0,
            events: BinaryHeap::new(),
            line: VecDeque::new(),
            usual: usual as u64,
            scheduled: 0,
        }
    }

    /// Nanoseconds since the beginning.
    pub fn nanos(&self) -> u64 {
        self.now
    }

    /// The moment of the last event.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// Lets `event` happen so many nanoseconds from now.
    pub fn after(&mut self, nanos: f64, event: E) {
        self.scheduled += 1;
        let due = Due {
            at: self.now.saturating_add(nanos as u64),
            order: self.scheduled,
            event,
        };
        match nanos as u64 == self.usual {
            true => self.line.push_back(due),
            false => self.events.push(due),
        }
    }

    fn next(&mut self) -> Option<E> {
        let is_lined = match (self.line.front(), self.events.peek()) {
            (Some(line), Some(event)) => line.key() < event.key(),
            (line, _) => line.is_some(),
        };
        let due = match is_lined {
            true => self.line.pop_front(),
            false => self.events.pop(),
        }?;
        self.now = due.at;
        Some(due.event)
    }
}

/// What happens in virtual time.
pub trait World {
    /// What may happen.
    type Event;

    /// Its engine.
    fn engine(&mut self) -> &mut Engine<Self::Event>;

    /// Lets an event happen; `false` if that is the end.
    fn happen(&mut self, event: Self::Event) -> bool;
}

/// A world of which somebody is told now and then how far it has come.
pub struct Watched<'a, W> {
    /// The world.
    pub world: W,
    /// Gets the time, and answers whether to go on.
    pub tell: &'a mut dyn FnMut(Duration) -> bool,
    /// Events since it was told.
    pub events: u32,
}

impl<W: World> World for Watched<'_, W> {
    type Event = W::Event;

    fn engine(&mut self) -> &mut Engine<W::Event> {
        self.world.engine()
    }

    fn happen(&mut self, event: W::Event) -> bool {
        self.events += 1;
        if self.events == 10_000 {
            self.events = 0;
            let now = Duration::from_nanos(self.world.engine().nanos());
            if !(self.tell)(now) {
                return false;
            }
        }
        self.world.happen(event)
    }
}

/// Lets everything happen that is to, in the order of time.
pub fn run(world: &mut impl World) {
    while let Some(event) = world.engine().next() {
        if !world.happen(event) {
            return;
        }
    }
}

/// The length of a time in nanoseconds.
pub fn nanos(duration: Duration) -> f64 {
    // Of 128 bits a conversion is slow, and this is asked for with every event.
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX) as f64
}

/// A random number with an exponential distribution.
pub fn exponential(mean: f64, rng: &mut fastrand::Rng) -> f64 {
    // Not the C library's logarithm, whose last bit differs between machines.
    -libm::log(1.0 - rng.f64()) * mean
}

/// A random number whose logarithm has a normal distribution with mean `mu` and deviation `sigma`. Its mean
/// is exp(`mu` + `sigma`² / 2).
pub fn lognormal(mu: f64, sigma: f64, rng: &mut fastrand::Rng) -> f64 {
    // Box and Muller, A Note on the Generation of Random Normal Deviates (1958).
    let (one, other) = (1.0 - rng.f64(), rng.f64());
    let normal = (-2.0 * libm::log(one)).sqrt() * libm::cos(2.0 * PI * other);
    libm::exp(mu + sigma * normal)
}

/// A random number of `least` or more with a Pareto distribution. Its mean is `alpha` / (`alpha` - 1) times
/// `least`.
pub fn pareto(least: f64, alpha: f64, rng: &mut fastrand::Rng) -> f64 {
    least * libm::pow(1.0 - rng.f64(), -1.0 / alpha)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_scheduling() {
        let mut engine = Engine::new(50.0);
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        for number in 0..2_000u32 {
            let after = [0.0, 50.0, 50.0, 70.0, 200.0][rng.usize(..5)];
            expected.push((engine.nanos() + after as u64, number));
            engine.after(after, number);
            if number % 3 > 0 {
                found.extend(engine.next().map(|event| (engine.nanos(), event)));
            }
        }
        while let Some(event) = engine.next() {
            found.push((engine.nanos(), event));
        }
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}

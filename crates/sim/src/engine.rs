//! The event engine: virtual time, and the events scheduled in it.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::f64::consts::PI;
use std::time::Duration;

use evenkeel_core::time::Instant;

/// Queue of events. Of two events at the same moment, the one that was scheduled first comes first.
#[derive(Debug)]
pub struct Engine<E> {
    now: u64,
    events: BinaryHeap<Due<E>>,
    /// Events that were scheduled `usual` nanoseconds ahead: they are due in the order in which they were scheduled,
    /// and need no sorting.
    line: VecDeque<Due<E>>,
    usual: u64,
    scheduled: u64,
}

/// An event, the time at which it is due, and its number among all scheduled events.
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
    /// Reversed, because a heap returns its greatest element: the first event is the greatest.
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
    /// An engine without events. Requests must not come at time 0, which slots use for "never". `usual` is the number
    /// of nanoseconds ahead that many events are scheduled.
    pub fn new(usual: f64) -> Self {
        Engine {
            now: 0,
            events: BinaryHeap::new(),
            line: VecDeque::new(),
            usual: usual as u64,
            scheduled: 0,
        }
    }

    /// Virtual time in nanoseconds since the beginning.
    pub fn elapsed_nanos(&self) -> u64 {
        self.now
    }

    /// Time of the last event.
    pub fn current_time(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// Schedules `event` in `nanos` nanoseconds from now.
    pub fn schedule_after(&mut self, nanos: f64, event: E) {
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

/// A model that runs in virtual time.
pub trait World {
    /// Events of the model.
    type Event;

    /// The model's engine.
    fn engine(&mut self) -> &mut Engine<Self::Event>;

    /// Handles an event; `false` ends the run.
    fn happen(&mut self, event: Self::Event) -> bool;
}

/// A world that reports its virtual time now and then.
pub struct Watched<'a, W> {
    /// The world.
    pub world: W,
    /// Called with the time; returns false to stop the run.
    pub tell: &'a mut dyn FnMut(Duration) -> bool,
    /// Events since the last report.
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
            let now = Duration::from_nanos(self.world.engine().elapsed_nanos());
            if !(self.tell)(now) {
                return false;
            }
        }
        self.world.happen(event)
    }
}

/// Handles all events in the order of time, until none is left or the world ends the run.
pub fn run(world: &mut impl World) {
    while let Some(event) = world.engine().next() {
        if !world.happen(event) {
            return;
        }
    }
}

/// Converts a duration into nanoseconds.
pub fn duration_nanos(duration: Duration) -> f64 {
    // Conversion of 128 bits is slow, and this function is called with every event.
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX) as f64
}

/// A random number with an exponential distribution.
pub fn draw_exponential(mean: f64, rng: &mut fastrand::Rng) -> f64 {
    // Not the C library's logarithm, whose last bit differs between machines.
    -libm::log(1.0 - rng.f64()) * mean
}

/// A random number whose logarithm has a normal distribution with mean `mu` and deviation `sigma`. Its mean
/// is exp(`mu` + `sigma`² / 2).
pub fn draw_lognormal(mu: f64, sigma: f64, rng: &mut fastrand::Rng) -> f64 {
    // Box and Muller, A Note on the Generation of Random Normal Deviates (1958).
    let (one, other) = (1.0 - rng.f64(), rng.f64());
    let normal = (-2.0 * libm::log(one)).sqrt() * libm::cos(2.0 * PI * other);
    libm::exp(mu + sigma * normal)
}

/// A random number of `least` or more with a Pareto distribution. Its mean is `alpha` / (`alpha` - 1) times
/// `least`.
pub fn draw_pareto(least: f64, alpha: f64, rng: &mut fastrand::Rng) -> f64 {
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
            expected.push((engine.elapsed_nanos() + after as u64, number));
            engine.schedule_after(after, number);
            if number % 3 > 0 {
                found.extend(engine.next().map(|event| (engine.elapsed_nanos(), event)));
            }
        }
        while let Some(event) = engine.next() {
            found.push((engine.elapsed_nanos(), event));
        }
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}

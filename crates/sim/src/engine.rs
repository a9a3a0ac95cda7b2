//! The event engine: virtual time, and what is to happen at which moment of it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use evenkeel_core::time::Instant;

/// A queue of events. Of two at the same moment the one comes first that was scheduled first.
#[derive(Debug)]
pub(crate) struct Engine<E> {
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, E)>>,
    scheduled: u64,
}

impl<E: Ord> Engine<E> {
    /// An engine in which nothing is to happen yet. Requests must not come at its first moment,
    /// which slots use for "never".
    pub(crate) fn new() -> Self {
        Engine {
            now: 0,
            events: BinaryHeap::new(),
            scheduled: 0,
        }
    }

    /// Nanoseconds since the beginning.
    pub(crate) fn nanos(&self) -> u64 {
        self.now
    }

    /// The moment of the last event.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// Lets `event` happen so many nanoseconds from now.
    pub(crate) fn after(&mut self, nanos: f64, event: E) {
        self.scheduled += 1;
        let at = self.now.saturating_add(nanos as u64);
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn next(&mut self) -> Option<E> {
        let Reverse((at, _, event)) = self.events.pop()?;
        self.now = at;
        Some(event)
    }
}

/// What happens in virtual time.
pub(crate) trait World {
    /// What may happen.
    type Event: Ord;

    /// Its engine.
    fn engine(&mut self) -> &mut Engine<Self::Event>;

    /// Lets an event happen; `false` if that is the end.
    fn happen(&mut self, event: Self::Event) -> bool;
}

/// A world of which somebody is told now and then how far it has come.
pub(crate) struct Watched<'a, W> {
    /// The world.
    pub(crate) world: W,
    /// Gets the time.
    pub(crate) tell: &'a mut dyn FnMut(Duration),
    /// Events since it was told.
    pub(crate) events: u32,
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
            (self.tell)(Duration::from_nanos(self.world.engine().nanos()));
        }
        self.world.happen(event)
    }
}

/// Lets everything happen that is to, in the order of time.
pub(crate) fn run(world: &mut impl World) {
    while let Some(event) = world.engine().next() {
        if !world.happen(event) {
            return;
        }
    }
}

/// The length of a time in nanoseconds.
pub(crate) fn nanos(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

/// A random number with an exponential distribution.
pub(crate) fn exponential(mean: f64, rng: &mut fastrand::Rng) -> f64 {
    // Not the C library's logarithm, whose last bit differs between machines.
    -libm::log(1.0 - rng.f64()) * mean
}

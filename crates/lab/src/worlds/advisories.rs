//! Load advisories as the program of Othman, O'Ryan and Schmidt (2001) has them, in virtual time.
//!
//! The paper's text does not tell what a member does that gets an advisory; the source of its program, TAO, does.
//! Members report their load at an interval. The balancer keeps `dampening` times the old load and the rest of the new
//! one, and answers each report of a load above a multiple of the members' average with an advisory. A member that has
//! one sends its next request back, and forgets the advisory. The client of that request gets the member with the
//! least load. Messages take no time.
//!
//! None of this is Evenkeel's own: it is what the paper's figure is of.

use std::time::Duration;

use evenkeel_sim::engine::{self, Engine, World, duration_nanos};

/// Set-up of a run.
#[derive(Clone, Debug)]
pub struct Advisories {
    /// Number of members.
    pub members: usize,
    /// Requests per second of each client, and its first member.
    pub clients: Vec<(f64, usize)>,
    /// Time between two reports of a member.
    pub report_interval: Duration,
    /// Share of the old load that is kept at a report.
    pub dampening: f64,
    /// Multiple of the average load above which a member gets an advisory.
    pub threshold: f64,
    /// Length of the run.
    pub length: Duration,
}

/// Outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct Advised {
    /// Requests that each member served in each second.
    pub served: Vec<Vec<u32>>,
    /// Advisories that members got.
    pub advisories: u32,
    /// Clients that went to another member.
    pub moved: u32,
}

#[derive(Clone, Copy, Debug)]
enum Happening {
    Send(usize),
    Report(usize),
}

struct Running<'a> {
    play: &'a Advisories,
    engine: Engine<Happening>,
    /// Member of each client.
    bound: Vec<usize>,
    /// Requests of each member since its last report.
    counts: Vec<u32>,
    /// Time of each member's last report, in nanoseconds.
    reported: Vec<u64>,
    /// Dampened load of each member that has reported.
    loads: Vec<Option<f64>>,
    /// True for members that have an advisory.
    is_advised: Vec<bool>,
    advised: Advised,
}

/// Plays a run with a seed.
pub fn play_advisories(play: &Advisories, seed: u64) -> Advised {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut engine = Engine::new(0.0);
    for (client, (rate, _)) in play.clients.iter().enumerate() {
        engine.schedule_after(1.0 + rng.f64() * 1e9 / rate, Happening::Send(client));
    }
    for member in 0..play.members {
        let first = 1.0 + rng.f64() * duration_nanos(play.report_interval);
        engine.schedule_after(first, Happening::Report(member));
    }
    let mut running = Running {
        play,
        engine,
        bound: play.clients.iter().map(|(_, member)| *member).collect(),
        counts: vec![0; play.members],
        reported: vec![0; play.members],
        loads: vec![None; play.members],
        is_advised: vec![false; play.members],
        advised: Advised::default(),
    };
    if play.members > 0 {
        engine::run(&mut running);
    }
    running.advised
}

impl World for Running<'_> {
    type Event = Happening;

    fn engine(&mut self) -> &mut Engine<Happening> {
        &mut self.engine
    }

    fn happen(&mut self, event: Happening) -> bool {
        let is_running = self.engine.elapsed_nanos() as f64 <= duration_nanos(self.play.length);
        if is_running {
            match event {
                Happening::Send(client) => self.send(client),
                Happening::Report(member) => self.report(member),
            }
        }
        is_running
    }
}

impl Running<'_> {
    fn send(&mut self, client: usize) {
        let (rate, _) = self.play.clients[client];
        self.engine
            .schedule_after(1e9 / rate, Happening::Send(client));
        let before = self.bound[client];
        if std::mem::take(&mut self.is_advised[before]) {
            let known = self.loads.iter().enumerate();
            let known = known.filter_map(|(member, load)| Some((member, (*load)?)));
            let least = known.min_by(|one, other| one.1.total_cmp(&other.1));
            self.bound[client] = least.map_or(before, |(member, _)| member);
            self.advised.moved += u32::from(self.bound[client] != before);
        }
        let member = self.bound[client];
        self.counts[member] += 1;
        let second = (self.engine.elapsed_nanos() / 1_000_000_000) as usize;
        while self.advised.served.len() <= second {
            self.advised.served.push(vec![0; self.play.members]);
        }
        self.advised.served[second][member] += 1;
    }

    fn report(&mut self, member: usize) {
        let interval = self.play.report_interval;
        self.engine
            .schedule_after(duration_nanos(interval), Happening::Report(member));
        let count = std::mem::take(&mut self.counts[member]);
        let now = self.engine.elapsed_nanos();
        let since = std::mem::replace(&mut self.reported[member], now);
        // The first report is of a part of an interval.
        let new = f64::from(count) * 1e9 / (now - since).max(1) as f64;
        let old = self.loads[member].unwrap_or(new);
        let load = self.play.dampening * old + (1.0 - self.play.dampening) * new;
        self.loads[member] = Some(load);
        let known = || self.loads.iter().flatten();
        let average = known().sum::<f64>() / known().count() as f64;
        if load > self.play.threshold * average {
            self.is_advised[member] = true;
            self.advised.advisories += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uneven(dampening: f64, threshold: f64) -> Advisories {
        Advisories {
            members: 2,
            clients: vec![(100.0, 0), (50.0, 0), (50.0, 1)],
            report_interval: Duration::from_secs(1),
            dampening,
            threshold,
            length: Duration::from_secs(20),
        }
    }

    #[test]
    fn an_advisory_sends_one_request_back_and_is_forgotten() {
        let played = play_advisories(&uneven(0.0, 1.2), 1);
        assert!(
            played.advisories > 0 && played.moved <= played.advisories,
            "{played:?}"
        );
        // Nobody is lost on the way.
        for second in &played.served[1..19] {
            let all: u32 = second.iter().sum();
            assert!((199..=201).contains(&all), "{second:?}");
        }
    }

    #[test]
    fn no_load_above_the_threshold_moves_nobody() {
        let played = play_advisories(&uneven(0.0, 1.6), 1);
        assert_eq!((played.advisories, played.moved), (0, 0));
        assert_eq!(played.served[10], [150, 50]);
        assert_eq!(
            play_advisories(&uneven(0.9, 1.2), 7).served,
            play_advisories(&uneven(0.9, 1.2), 7).served
        );
        assert!(
            play_advisories(
                &Advisories {
                    members: 0,
                    clients: Vec::new(),
                    ..uneven(0.0, 1.0)
                },
                1
            )
            .served
            .is_empty()
        );
    }

    /// A dampened load takes longer to fall below the threshold than an undampened one takes.
    #[test]
    fn dampening_makes_advisories_last() {
        let count = |dampening| -> u32 {
            (1..=5)
                .map(|seed| play_advisories(&uneven(dampening, 1.2), seed).advisories)
                .sum()
        };
        assert!(count(0.9) > count(0.0), "{} {}", count(0.9), count(0.0));
    }
}

//! The mean service time of a server, learned from requests that were served alone.
//!
//! Source: Mohamed-Salem, Chen, Bochmann and Wong, "An Experimental Prototype for Scalable
//! Server Selection" (IPCCC 2003), section 2.2.2: a server that serves one request at a
//! time makes none wait, so the mean response time is the mean service time. The paper
//! measures that off line with a single client. Here it is learned while the server works,
//! from those requests that happened to have no other beside them.
//!
//! Requests that were alone are not a fair sample on a busy server: the longer one takes,
//! the more probably another arrives meanwhile. With Poisson arrivals of rate *λ* and
//! exponential service times of mean *s* the mean of those that stay alone is
//! `s / (1 + λ s)`: right on an idle server, half of it on one that is busy all the time.
//! So requests count the less, the busier the server was, and what was learned in quiet
//! times holds in busy ones.

use crate::activity::Activity;

/// Number of requests of a quiet server that replace two thirds of what was learned before.
const MEMORY: f64 = 1000.0;

/// Number of requests of a quiet server that are needed before anything counts as learned.
const ENOUGH: f64 = 5.0;

/// Learns a service time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Learner {
    /// Mean service time in seconds.
    mean: f64,
    /// Requests that it rests on, discounted, at most [`MEMORY`].
    evidence: f64,
}

impl Learner {
    /// Restores a learned service time: a mean in seconds, and the evidence for it. Numbers
    /// that cannot be are `None`.
    pub fn from_parts(mean: f64, evidence: f64) -> Option<Self> {
        let possible = mean.is_finite() && evidence.is_finite() && mean >= 0.0 && evidence > 0.0;
        let evidence = evidence.min(MEMORY);
        possible.then_some(Learner { mean, evidence })
    }

    /// Takes in what a server did in an interval.
    pub fn learn_from(&mut self, activity: &Activity) {
        if activity.alone == 0 || activity.length.is_zero() {
            return;
        }
        let mean = activity.alone_time.as_secs_f64() / activity.alone as f64;
        let busy = activity.busy.as_secs_f64() / activity.length.as_secs_f64();
        let quiet = 1.0 - busy.clamp(0.0, 1.0);
        // Squared: at half of the time busy, four of them are worth one. Never nothing: a
        // server that never rests has only these.
        let weight = activity.alone as f64 * (quiet * quiet).max(1e-3);
        let evidence = self.evidence + weight;
        self.mean += (mean - self.mean) * (weight / evidence);
        self.evidence = evidence.min(MEMORY);
    }

    /// The mean service time in seconds, if enough is known.
    pub fn service_time(&self) -> Option<f64> {
        (self.evidence >= ENOUGH).then_some(self.mean)
    }

    /// Mean and evidence, to be [restored](Self::from_parts) later.
    pub fn parts(&self) -> (f64, f64) {
        (self.mean, self.evidence)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A second of a server with one worker, Poisson arrivals and exponential service
    /// times: what its page would say.
    fn second(rate: f64, mean: f64, rng: &mut fastrand::Rng) -> Activity {
        let mut draw = |mean: f64| -mean * (1.0 - rng.f64()).ln();
        let mut activity = Activity::empty_interval(Duration::from_secs(1));
        let (mut now, mut free_at, mut found_idle) = (0.0, 0.0f64, None::<(f64, f64)>);
        let mut busy = 0.0;
        loop {
            now += draw(1.0 / rate);
            // The one before was alone if it has gone by now.
            if let Some((end, service)) = found_idle.take()
                && end <= now
            {
                activity.alone += 1;
                activity.alone_time += Duration::from_secs_f64(service);
            }
            if now >= 1.0 {
                break;
            }
            let service = draw(mean);
            if free_at <= now {
                found_idle = Some((now + service, service));
            }
            free_at = free_at.max(now) + service;
            busy += service;
        }
        activity.busy = Duration::from_secs_f64(busy.min(1.0));
        activity
    }

    #[test]
    fn quiet_hours_teach_what_busy_ones_cannot_spoil() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut learner = Learner::default();
        for _ in 0..600 {
            learner.learn_from(&second(5.0, 0.01, &mut rng));
        }
        let quiet = learner.service_time().unwrap();
        assert!((quiet / 0.01 - 1.0).abs() < 0.1, "{quiet}");
        // 80 % busy: those that are alone take 10 / 1.8 ms in the mean.
        for _ in 0..60 {
            learner.learn_from(&second(80.0, 0.01, &mut rng));
        }
        let busy = learner.service_time().unwrap();
        assert!((busy / 0.01 - 1.0).abs() < 0.2, "{busy}");
    }

    #[test]
    fn another_service_time_is_learned_in_its_turn() {
        let mut rng = fastrand::Rng::with_seed(8);
        let mut learner = Learner::default();
        for mean in [0.003, 0.015] {
            for _ in 0..2000 {
                learner.learn_from(&second(5.0, mean, &mut rng));
            }
            let learned = learner.service_time().unwrap();
            assert!((learned / mean - 1.0).abs() < 0.15, "{learned} for {mean}");
        }
    }

    #[test]
    fn a_few_requests_are_not_enough_and_nonsense_is_not_restored() {
        let mut learner = Learner::default();
        learner.learn_from(&Activity {
            alone: 4,
            alone_time: Duration::from_millis(4),
            ..Activity::empty_interval(Duration::from_secs(1))
        });
        assert_eq!(learner.service_time(), None);
        let (mean, evidence) = learner.parts();
        assert_eq!(Learner::from_parts(mean, evidence), Some(learner));
        for (mean, evidence) in [
            (f64::NAN, 1.0),
            (-1.0, 1.0),
            (1.0, f64::INFINITY),
            (1.0, 0.0),
        ] {
            assert_eq!(Learner::from_parts(mean, evidence), None);
        }
    }
}

//! The figures of a server: response time *r*, service time *s*, arrival rate *λ*,
//! utilisation *u* and think time *h*, per measurement interval.
//!
//! Source: Mohamed-Salem, Chen, Bochmann and Wong, "An Experimental Prototype for Scalable
//! Server Selection" (IPCCC 2003), section 2.2. Where an interval has nothing to measure,
//! the paper is silent; here a figure is then carried over for a while or left out, and
//! never reported as 0: what is not known is not idle.

use std::time::Duration;

use evenkeel_config::agent::ServiceTime;

use crate::activity::Activity;
use crate::learn::Learner;

/// Time for which *r*, a measured *s* and *h* outlive the interval that they are of, if nothing
/// newer is known. They describe requests, not load, so they do not age by the second.
const CARRY: Duration = Duration::from_secs(60);

/// Source of a service time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Response time less queueing time.
    Measured,
    /// Learned from requests that were served alone.
    Learned,
    /// Given in the configuration.
    Given,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Source::Measured => "measured",
            Source::Learned => "learned",
            Source::Given => "given",
        })
    }
}

/// The figures of one interval; `None` is not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// *λ*: requests that arrived, per second.
    pub arrival_rate: f64,
    /// Requests that completed, per second: the weight of the means.
    pub completion_rate: f64,
    /// Requests in flight at the end.
    pub in_flight: u64,
    /// *r*: mean response time in seconds.
    pub response_time: Option<f64>,
    /// *s*: mean service time in seconds, and how it was obtained.
    pub service_time: Option<(f64, Source)>,
    /// *u*: utilisation, 0 to 1.
    pub utilization: Option<f64>,
    /// True if more service time came out than there is, and *u* was cut to 1: `capacity` or
    /// the service time is probably too small or too large.
    pub clamped: bool,
    /// *h*: mean think time in seconds.
    pub think_time: Option<f64>,
}

/// Makes figures of what a server does, interval by interval.
#[derive(Debug)]
pub struct Meter {
    source: ServiceTime,
    response_time: CarriedFigure,
    measured: CarriedFigure,
    think_time: CarriedFigure,
    /// Busy time for which requests have been in flight without a completion.
    stuck: Duration,
}

impl Meter {
    /// A meter for a server whose service time comes from `source`.
    pub fn new(source: ServiceTime) -> Self {
        Meter {
            source,
            response_time: CarriedFigure::default(),
            measured: CarriedFigure::default(),
            think_time: CarriedFigure::default(),
            stuck: Duration::ZERO,
        }
    }

    /// Sets the source of the service time from now on.
    pub fn set_source(&mut self, source: ServiceTime) {
        self.source = source;
    }

    /// The figures of an interval in which the server did `activity`, `capacity` requests
    /// at once at best, which `learner` has seen, too.
    pub fn figures(&mut self, activity: &Activity, learner: &Learner, capacity: f64) -> Figures {
        let length = activity.length.as_secs_f64().max(1e-3);
        let mean =
            |sum: Duration, count: u64| (count > 0).then(|| sum.as_secs_f64() / count as f64);

        // Queueing is part of the response, so it cannot be longer; a server that says so
        // means something else.
        let response = mean(activity.response_time, activity.completions);
        let waiting = mean(activity.waiting_time, activity.waits);
        let measured = response
            .zip(waiting)
            .map(|(response, waiting)| response - waiting)
            .filter(|service| *service >= 0.0);
        let measured = self.measured.carry(measured, activity.length);
        let service_time = self.service_time(measured, learner);

        if activity.completions > 0 || activity.in_flight == 0 {
            self.stuck = Duration::ZERO;
        } else {
            self.stuck = self.stuck.saturating_add(activity.busy);
        }
        let carried = self.response_time.carry(response, activity.length);
        let response_time = if response.is_some() {
            response
        } else if activity.in_flight == 0 && activity.starts == 0 {
            // Idle: the next request will find no queue, and takes its service time.
            service_time.map(|(service, _)| service).or(carried)
        } else {
            // Something has been in flight for this long at least, and is not back yet.
            let so_far = Some(self.stuck.as_secs_f64()).filter(|time| *time > 0.0);
            carried.into_iter().chain(so_far).reduce(f64::max)
        };

        let (utilization, clamped) = utilization(activity, service_time, capacity, length);
        let think_time = mean(activity.think_time, activity.thinks);
        Figures {
            arrival_rate: activity.starts as f64 / length,
            completion_rate: activity.completions as f64 / length,
            in_flight: activity.in_flight,
            response_time,
            service_time,
            utilization,
            clamped,
            think_time: self.think_time.carry(think_time, activity.length),
        }
    }

    fn service_time(&self, measured: Option<f64>, learner: &Learner) -> Option<(f64, Source)> {
        let measured = || measured.map(|time| (time, Source::Measured));
        let learned = || learner.service_time().map(|time| (time, Source::Learned));
        match self.source {
            ServiceTime::Measured => measured(),
            ServiceTime::Learned => learned(),
            ServiceTime::Given(time) => Some((time.as_secs_f64(), Source::Given)),
            ServiceTime::Auto => measured().or_else(learned),
        }
    }
}

/// Total service time in the interval over the time that there was, and whether it had to
/// be cut.
fn utilization(
    activity: &Activity,
    service_time: Option<(f64, Source)>,
    capacity: f64,
    length: f64,
) -> (Option<f64>, bool) {
    let busy = activity.busy.as_secs_f64();
    let used = if activity.completions > 0 {
        match service_time {
            Some((service, _)) => activity.completions as f64 * service / capacity,
            // One at a time: then busy is busy, however long each of them takes.
            None if capacity <= 1.0 => busy,
            None => return (None, false),
        }
    } else {
        // Nothing to multiply, yet not idle if something is in flight.
        let at_once = (activity.in_flight as f64).clamp(1.0, capacity.max(1.0));
        busy * at_once / capacity.max(1.0)
    };
    let share = used / length;
    // Requests that began before the interval complete in it: a little more is no error.
    (Some(share.min(1.0)), share > 1.25)
}

/// A figure that outlives its interval for a while.
#[derive(Debug, Default)]
struct CarriedFigure {
    value: Option<f64>,
    age: Duration,
}

impl CarriedFigure {
    /// The new value, or the last one if it is young enough.
    fn carry(&mut self, new: Option<f64>, length: Duration) -> Option<f64> {
        self.age = self.age.saturating_add(length);
        if new.is_some() {
            *self = CarriedFigure {
                value: new,
                age: Duration::ZERO,
            };
        } else if self.age > CARRY {
            self.value = None;
        }
        self.value
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    /// 100 requests of 20 ms each, of which each was queued for 15 ms, in 2 s.
    fn queued() -> Activity {
        Activity {
            length: 2 * SECOND,
            processes: 1,
            in_flight: 3,
            starts: 110,
            completions: 100,
            response_time: 2 * SECOND,
            waits: 100,
            waiting_time: 1500 * MS,
            busy: 600 * MS,
            thinks: 10,
            think_time: 30 * SECOND,
            ..Activity::default()
        }
    }

    fn near(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| (a - b).abs() < 1e-9)
    }

    #[test]
    fn figures_are_those_of_the_paper() {
        let mut meter = Meter::new(ServiceTime::Measured);
        let figures = meter.figures(&queued(), &Learner::default(), 1.0);
        assert_eq!(figures.arrival_rate, 55.0);
        assert!(near(figures.response_time, 0.02), "{figures:?}");
        let (service, source) = figures.service_time.unwrap();
        assert!(near(Some(service), 0.005) && source == Source::Measured);
        // 100 times 5 ms in 2 s.
        assert!(near(figures.utilization, 0.25) && !figures.clamped);
        assert!(near(figures.think_time, 3.0));
        // Four at once: a quarter of that.
        let figures = meter.figures(&queued(), &Learner::default(), 4.0);
        assert!(near(figures.utilization, 0.0625));
    }

    #[test]
    fn a_given_service_time_needs_no_queue_and_too_much_of_it_is_cut_and_said() {
        let mut meter = Meter::new(ServiceTime::Given(50 * MS));
        let figures = meter.figures(&queued(), &Learner::default(), 1.0);
        assert_eq!(figures.service_time, Some((0.05, Source::Given)));
        assert_eq!((figures.utilization, figures.clamped), (Some(1.0), true));
    }

    #[test]
    fn an_idle_server_is_idle_and_answers_as_fast_as_it_serves() {
        let mut meter = Meter::new(ServiceTime::Auto);
        meter.figures(&queued(), &Learner::default(), 1.0);
        let idle = Activity::empty_interval(SECOND);
        let figures = meter.figures(&idle, &Learner::default(), 1.0);
        assert_eq!(figures.arrival_rate, 0.0);
        assert_eq!(figures.utilization, Some(0.0));
        assert!(
            near(figures.response_time, 0.005),
            "s, not the 20 ms of before"
        );
        assert!(near(figures.think_time, 3.0), "carried");
        // In the end nothing is known of requests, but still that there are none.
        for _ in 0..70 {
            meter.figures(&idle, &Learner::default(), 1.0);
        }
        let figures = meter.figures(&idle, &Learner::default(), 1.0);
        let expected = Figures {
            utilization: Some(0.0),
            ..Figures::default()
        };
        assert_eq!(figures, expected);
    }

    #[test]
    fn a_server_that_answers_nothing_gets_slower_and_not_idle() {
        let mut meter = Meter::new(ServiceTime::Given(5 * MS));
        meter.figures(&queued(), &Learner::default(), 4.0);
        let hung = Activity {
            in_flight: 3,
            starts: 2,
            busy: SECOND,
            ..Activity::empty_interval(SECOND)
        };
        let mut last = 0.02;
        for second in 1..5 {
            let figures = meter.figures(&hung, &Learner::default(), 4.0);
            assert_eq!(figures.response_time, Some(f64::from(second)));
            assert!(figures.response_time > Some(last));
            last = figures.response_time.unwrap();
            assert_eq!(figures.utilization, Some(0.75), "three of four slots");
        }
        // It is back.
        let figures = meter.figures(&queued(), &Learner::default(), 4.0);
        assert!(near(figures.response_time, 0.02));
    }

    #[test]
    fn requests_that_are_lost_took_no_time_that_is_known() {
        let mut meter = Meter::new(ServiceTime::Auto);
        let lost = Activity {
            starts: 3,
            ..Activity::empty_interval(SECOND)
        };
        let figures = meter.figures(&lost, &Learner::default(), 4.0);
        assert_eq!(figures.response_time, None);
        assert_eq!(figures.arrival_rate, 3.0);
    }

    #[test]
    fn without_a_service_time_only_a_server_of_one_slot_has_a_utilization() {
        let mut meter = Meter::new(ServiceTime::Auto);
        let unknown = Activity {
            waits: 0,
            waiting_time: Duration::ZERO,
            ..queued()
        };
        let figures = meter.figures(&unknown, &Learner::default(), 1.0);
        assert_eq!(figures.service_time, None);
        assert!(near(figures.utilization, 0.3), "busy for 600 ms of 2 s");
        let figures = meter.figures(&unknown, &Learner::default(), 2.0);
        assert_eq!(figures.utilization, None);
    }

    #[test]
    fn what_was_measured_is_better_than_what_was_learned() {
        let mut learner = Learner::default();
        learner.learn_from(&Activity {
            alone: 100,
            alone_time: 400 * MS,
            ..Activity::empty_interval(SECOND)
        });
        let mut meter = Meter::new(ServiceTime::Auto);
        let unknown = Activity {
            waits: 0,
            ..queued()
        };
        let figures = meter.figures(&unknown, &learner, 1.0);
        assert!(matches!(figures.service_time, Some((_, Source::Learned))));
        let figures = meter.figures(&queued(), &learner, 1.0);
        assert!(matches!(figures.service_time, Some((_, Source::Measured))));
    }

    prop_compose! {
        fn activities()(
            counts in prop::array::uniform7(any::<u64>()),
            times in prop::array::uniform6(any::<u64>()),
        ) -> Activity {
            let [in_flight, starts, completions, waits, alone, thinks, errors] = counts;
            let time = |index: usize| Duration::from_nanos(times[index]);
            Activity {
                length: time(0),
                processes: 1,
                in_flight, starts, completions, errors, waits, alone, thinks,
                response_time: time(1),
                waiting_time: time(2),
                alone_time: time(3),
                busy: time(4).min(time(0)),
                think_time: time(5),
            }
        }
    }

    proptest! {
        /// Pages are other people's: whatever they hold, what comes out is a number.
        #[test]
        fn whatever_a_page_says_figures_are_finite_and_in_range(
            activities in prop::collection::vec(activities(), 1..20),
            capacity in 0.01f64..1e6,
            source in 0..3,
        ) {
            let source = match source {
                0 => ServiceTime::Auto,
                1 => ServiceTime::Learned,
                _ => ServiceTime::Given(MS),
            };
            let (mut meter, mut learner) = (Meter::new(source), Learner::default());
            for activity in activities {
                learner.learn_from(&activity);
                let figures = meter.figures(&activity, &learner, capacity);
                let service = figures.service_time.map(|(time, _)| time);
                let rates = [Some(figures.arrival_rate), Some(figures.completion_rate)];
                let times = [figures.response_time, service, figures.think_time];
                for number in rates.into_iter().chain(times).flatten() {
                    prop_assert!(number.is_finite() && number >= 0.0, "{figures:?}");
                }
                let share = figures.utilization.unwrap_or(0.0);
                prop_assert!((0.0..=1.0).contains(&share), "{figures:?}");
            }
        }
    }
}

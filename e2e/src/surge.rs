//! A workload like that of Web users.
//!
//! Sizes, popularity and times are those of SURGE (Barford and Crovella, "Generating
//! Representative Web Workloads for Network and Server Performance Evaluation", 1998).
//! Its tails are cut off: with exponents between 1 and 2 a mean over minutes would be
//! that of its few largest samples. Each request draws its document independently, so
//! temporal locality is left out; nothing here caches.

use std::f64::consts::TAU;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;

/// The longest document, in bytes: one of a thousand drawn ones would be longer.
const LONGEST: f64 = 1e6;

/// The documents of a site: the first is the most popular one.
pub struct Site {
    lengths: Vec<u64>,
    /// Chance of each document and all more popular ones.
    popularity: Vec<f64>,
}

impl Site {
    /// Makes a site of `documents` documents.
    pub fn new(documents: u32, rng: &mut Rng) -> Self {
        let lengths = (0..documents).map(|_| length(rng)).collect();
        // Zipf: the frequency is in proportion to 1 / rank.
        let share = |rank: u32| 1.0 / f64::from(rank);
        let all: f64 = (1..=documents).map(share).sum();
        let mut sum = 0.0;
        let popularity = (1..=documents).map(|rank| {
            sum += share(rank) / all;
            sum
        });
        Self {
            lengths,
            popularity: popularity.collect(),
        }
    }

    /// Puts the documents into a folder, under their numbers.
    pub fn write(&self, folder: &Path) {
        for (number, &length) in self.lengths.iter().enumerate() {
            let file = File::create(folder.join(number.to_string())).expect("a document");
            file.set_len(length).expect("its length");
        }
    }

    /// A popular document's number, most often.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let chance = rng.f64();
        let found = self.popularity.partition_point(|&up_to| up_to <= chance);
        found.min(self.lengths.len() - 1)
    }

    /// Bytes of a document.
    pub fn length(&self, document: usize) -> u64 {
        self.lengths[document]
    }

    /// Mean length of the documents that are drawn, in bytes.
    pub fn mean_length(&self) -> f64 {
        let mut before = 0.0;
        let weighed = self.lengths.iter().zip(&self.popularity);
        let parts = weighed.map(|(&length, &up_to)| {
            let part = length as f64 * (up_to - before);
            before = up_to;
            part
        });
        parts.sum()
    }
}

/// Bytes of a document: a lognormal body and a Pareto tail.
fn length(rng: &mut Rng) -> u64 {
    let length = if rng.f64() < 0.93 {
        lognormal(9.357, 1.318, rng).min(LONGEST)
    } else {
        pareto(133_000.0, 1.1, LONGEST, rng)
    };
    length as u64
}

/// Pace of users. With factors of 1 their times are those of SURGE.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Factor on the time between two documents of a page.
    pub active: f64,
    /// Factor on the time for which a user thinks between two pages.
    pub think: f64,
    /// Mean number of pages of a session.
    pub pages: f64,
}

/// Next step of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The user waits.
    Wait(Duration),
    /// Asks for a document of the page.
    Ask,
    /// Begins a session.
    Begin,
}

/// A user: sessions of pages, each a document with others that it embeds.
pub struct User {
    pace: Pace,
    /// Documents left of the page, and pages left of the session, this one included.
    documents: u32,
    pages: u32,
    waited: bool,
}

impl User {
    /// Makes a user who is about to begin a session.
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            documents: 0,
            pages: 0,
            waited: true,
        }
    }

    /// The next step, after the one before is done. After each `Ask` comes a `Wait`.
    pub fn next(&mut self, rng: &mut Rng) -> Step {
        if !self.waited {
            self.waited = true;
            return Step::Wait(self.pause(rng));
        }
        if self.documents == 0 {
            self.documents = page(rng);
            if self.pages == 0 {
                self.pages = session(self.pace.pages, rng);
                return Step::Begin;
            }
        }
        self.documents -= 1;
        if self.documents == 0 {
            self.pages -= 1;
        }
        self.waited = false;
        Step::Ask
    }

    /// Returns the time of a pause: between documents of a page a Weibull time, between pages a
    /// Pareto time.
    fn pause(&self, rng: &mut Rng) -> Duration {
        let seconds = match self.documents {
            0 => self.pace.think * pareto(1.0, 1.5, 30.0, rng),
            _ => self.pace.active * weibull(1.46, 0.382, 30.0, rng),
        };
        Duration::from_secs_f64(seconds)
    }
}

/// Documents of a page: one, and those that it embeds.
fn page(rng: &mut Rng) -> u32 {
    1 + pareto(1.0, 2.43, 50.0, rng) as u32
}

/// Pages of a session: geometric.
fn session(mean: f64, rng: &mut Rng) -> u32 {
    let more = 1.0 - 1.0 / mean.max(1.0);
    let mut pages = 1;
    while rng.f64() < more {
        pages += 1;
    }
    pages
}

/// The distribution function is turned around, for a chance that ends at the limit.
fn pareto(scale: f64, shape: f64, limit: f64, rng: &mut Rng) -> f64 {
    let chance = rng.f64() * (1.0 - (scale / limit).powf(shape));
    scale / (1.0 - chance).powf(1.0 / shape)
}

fn weibull(scale: f64, shape: f64, limit: f64, rng: &mut Rng) -> f64 {
    let chance = rng.f64() * (1.0 - (-(limit / scale).powf(shape)).exp());
    scale * (-(1.0 - chance).ln()).powf(1.0 / shape)
}

fn lognormal(mu: f64, sigma: f64, rng: &mut Rng) -> f64 {
    // Box and Muller.
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    let normal = radius * (TAU * rng.f64()).cos();
    (mu + sigma * normal).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: u32 = 200_000;

    fn mean(mut sample: impl FnMut(&mut Rng) -> f64) -> f64 {
        let mut rng = Rng::with_seed(4);
        (0..SAMPLES).map(|_| sample(&mut rng)).sum::<f64>() / f64::from(SAMPLES)
    }

    fn is_about(found: f64, expected: f64) {
        assert!(
            (found / expected - 1.0).abs() < 0.03,
            "{found}, and not {expected}"
        );
    }

    /// Mean of a Pareto distribution up to a limit, by its integral.
    fn pareto_mean(scale: f64, shape: f64, limit: f64) -> f64 {
        let inside = 1.0 - (scale / limit).powf(shape);
        let whole = shape * scale / (shape - 1.0);
        whole * (1.0 - (scale / limit).powf(shape - 1.0)) / inside
    }

    #[test]
    fn distributions_have_their_means() {
        is_about(
            mean(|rng| pareto(1.0, 1.5, 30.0, rng)),
            pareto_mean(1.0, 1.5, 30.0),
        );
        is_about(
            mean(|rng| pareto(133_000.0, 1.1, LONGEST, rng)),
            pareto_mean(133_000.0, 1.1, LONGEST),
        );
        // exp(mu + sigma^2 / 2)
        is_about(
            mean(|rng| lognormal(9.357, 1.318, rng)),
            (9.357f64 + 1.318f64.powi(2) / 2.0).exp(),
        );
        // The median of a Weibull distribution is scale * ln(2)^(1 / shape).
        let median = 1.46 * 2.0f64.ln().powf(1.0 / 0.382);
        let below = mean(|rng| f64::from(weibull(1.46, 0.382, 1e9, rng) < median));
        is_about(below, 0.5);
        is_about(mean(|rng| f64::from(session(8.0, rng))), 8.0);
    }

    #[test]
    fn tails_end() {
        let mut rng = Rng::with_seed(5);
        for _ in 0..SAMPLES {
            assert!((1.0..=30.0).contains(&pareto(1.0, 1.5, 30.0, &mut rng)));
            assert!((0.0..=30.0).contains(&weibull(1.46, 0.382, 30.0, &mut rng)));
            assert!((2..=51).contains(&page(&mut rng)));
        }
    }

    #[test]
    fn the_most_popular_document_is_asked_for_most() {
        let mut rng = Rng::with_seed(6);
        let site = Site::new(2000, &mut rng);
        let mut asked = vec![0u32; 2000];
        let mut length = 0.0;
        for _ in 0..SAMPLES {
            let document = site.draw(&mut rng);
            asked[document] += 1;
            length += site.length(document) as f64;
        }
        is_about(length / f64::from(SAMPLES), site.mean_length());
        // The harmonic number of 2000 is 8.18.
        is_about(f64::from(asked[0]), f64::from(SAMPLES) / 8.18);
        is_about(f64::from(asked[9]), f64::from(SAMPLES) / 81.8);
    }

    #[test]
    fn a_session_is_a_beginning_and_then_pages() {
        let mut rng = Rng::with_seed(7);
        let pace = Pace {
            active: 1.0,
            think: 1.0,
            pages: 3.0,
        };
        let mut user = User::new(pace);
        assert_eq!(user.next(&mut rng), Step::Begin);
        let (mut asks, mut sessions) = (0u32, 1u32);
        for _ in 0..SAMPLES {
            match user.next(&mut rng) {
                Step::Begin => sessions += 1,
                Step::Ask => {
                    asks += 1;
                    assert!(matches!(user.next(&mut rng), Step::Wait(_)));
                }
                Step::Wait(_) => panic!("it waits for nothing"),
            }
        }
        let documents = mean(|rng| f64::from(page(rng)));
        is_about(f64::from(asks) / f64::from(sessions), 3.0 * documents);
    }
}

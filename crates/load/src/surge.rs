//! Web users as SURGE has them: the documents of a site, who asks for which, and when.
//!
//! Source: Barford and Crovella, "Generating Representative Web Workloads for Network and Server
//! Performance Evaluation" (SIGMETRICS 1998), with the classes of documents of their "A
//! Performance Evaluation of Hyper Text Transfer Protocols" (SIGMETRICS 1999). Tails are as long as
//! they are there; nothing is cut off.
//!
//! | what | distribution |
//! |---|---|
//! | lengths, 93 % of documents | lognormal, mu 9.357, sigma 1.318 |
//! | lengths, 7 % | Pareto, k 133,000, alpha 1.1 |
//! | lengths of what is asked for | Pareto, k 1,000, alpha 1.0 |
//! | popularity | Zipf: 1 / rank |
//! | classes | 30 % base documents, 38 % embedded in them, 32 % alone |
//! | documents that a base embeds | Pareto, k 1, alpha 2.43 |
//! | distance on the stack of last references | lognormal, mu 1.5, sigma 0.80 |
//! | between two documents of a page (active OFF) | Weibull, scale 1.46 s, shape 0.382 |
//! | between two pages (inactive OFF) | Pareto, k 1 s, alpha 1.5 |
//!
//! SURGE makes the list of all references beforehand. Here it is made while they are asked for, and
//! [`AHEAD`] references are drawn before, so that a run may be of any length and popularity
//! does not drift in it.

use std::collections::VecDeque;
use std::f64::consts::TAU;

use fastrand::Rng;

use evenkeel_sim::work::Popularity;

/// Shares of documents that are bases, and that are embedded; the others are alone.
const BASES: f64 = 0.30;
const EMBEDDED: f64 = 0.38;

/// References to pages that are drawn before they are put in order.
const AHEAD: usize = 1000;

/// The documents of a site.
#[derive(Clone, Debug)]
pub struct Site {
    /// Bytes of each document.
    lengths: Vec<u64>,
    /// Documents of each page, the most popular page first: a base and what it embeds, or one
    /// that is alone.
    pages: Vec<Vec<usize>>,
    /// Share of each document in all requests.
    shares: Vec<f64>,
}

impl Site {
    /// Makes a site of `documents` documents, 10 at least.
    pub fn new(documents: usize, rng: &mut Rng) -> Self {
        let count = documents.max(10);
        let bases = (BASES * count as f64) as usize;
        let embedded = (EMBEDDED * count as f64) as usize;
        // Those that are embedded come first, so that they are numbers below `embedded`.
        let mut heads: Vec<usize> = (embedded..count).collect();
        rng.shuffle(&mut heads);
        let is_base = |document: usize| document < embedded + bases;
        let mut next = (0..embedded).cycle();
        let page = |head: usize| {
            let more = match is_base(head) {
                true => (pareto(1.0, 2.43, rng) as usize).min(embedded),
                false => 0,
            };
            std::iter::once(head)
                .chain(next.by_ref().take(more))
                .collect()
        };
        let pages: Vec<Vec<usize>> = heads.into_iter().map(page).collect();
        let mut shares = vec![0.0; count];
        for (rank, page) in pages.iter().enumerate() {
            for &document in page {
                shares[document] += 1.0 / (rank + 1) as f64;
            }
        }
        let all: f64 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= all);
        let mut sizes: Vec<f64> = (0..count).map(|_| length(rng)).collect();
        sizes.sort_unstable_by(f64::total_cmp);
        Site {
            lengths: matched(&sizes, &shares),
            pages,
            shares,
        }
    }

    /// Bytes of a document; 0 if there is none of that number.
    pub fn length(&self, document: usize) -> u64 {
        self.lengths.get(document).copied().unwrap_or(0)
    }

    /// Returns the number of pages: bases, and documents that are alone.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Mean length of the documents that are asked for, in bytes.
    pub fn mean_length(&self) -> f64 {
        let parts = self.lengths.iter().zip(&self.shares);
        parts.map(|(&length, share)| length as f64 * share).sum()
    }

    /// Mean number of documents of the pages that are asked for.
    pub fn mean_documents(&self) -> f64 {
        let weights = || (1..=self.pages.len()).map(|rank| 1.0 / rank as f64);
        let parts = self.pages.iter().zip(weights());
        let documents: f64 = parts.map(|(page, weight)| page.len() as f64 * weight).sum();
        documents / weights().sum::<f64>()
    }
}

/// Gives each document its length, so that the lengths of requested documents have their intended
/// distribution: in the order of lengths, the most popular document that is left gets one as soon
/// as half of what it will be asked for is due there, and until then the least popular ones do.
fn matched(sizes: &[f64], shares: &[f64]) -> Vec<u64> {
    let mut order: VecDeque<usize> = (0..shares.len()).collect();
    let by_share = |a: &usize, b: &usize| shares[*b].total_cmp(&shares[*a]);
    order.make_contiguous().sort_by(by_share);
    let mut lengths = vec![0; shares.len()];
    let mut asked = 0.0;
    for (index, &size) in sizes.iter().enumerate() {
        let next = sizes.get(index + 1).copied().unwrap_or(f64::INFINITY);
        let due = requested(libm::sqrt(size * next)) - asked;
        let takes_first = order
            .front()
            .is_some_and(|&first| due >= shares[first] / 2.0);
        let document = match takes_first {
            true => order.pop_front(),
            false => order.pop_back(),
        };
        if let Some(document) = document {
            lengths[document] = size as u64;
            asked += shares[document];
        }
    }
    lengths
}

/// The share of what is asked for that is at most so long: Pareto.
fn requested(length: f64) -> f64 {
    1.0 - (1000.0 / length).min(1.0)
}

/// Bytes of a document.
fn length(rng: &mut Rng) -> f64 {
    match rng.f64() < 0.93 {
        true => lognormal(9.357, 1.318, rng),
        false => pareto(133_000.0, 1.1, rng),
    }
}

/// The pages that users ask for, one after the other. All users of a site share it.
#[derive(Clone, Debug)]
pub struct References {
    popularity: Popularity,
    /// Number of times that each page is still to be asked for, of the numbers that were drawn.
    due: Vec<u32>,
    /// Pages that are still to be asked for, the page asked for last in front.
    stack: VecDeque<usize>,
}

impl References {
    /// Makes the references of a site.
    pub fn new(site: &Site, rng: &mut Rng) -> Self {
        let pages = site.pages.len();
        let mut references = References {
            popularity: Popularity::new(pages, 1.0),
            due: vec![0; pages],
            stack: VecDeque::new(),
        };
        (0..AHEAD).for_each(|_| references.draw(rng));
        references
    }

    fn draw(&mut self, rng: &mut Rng) {
        let page = self.popularity.draw_rank(rng);
        if self.due[page] == 0 {
            self.stack.push_back(page);
        }
        self.due[page] += 1;
    }

    /// The next page: one at about the drawn distance, of those there more likely one that is due
    /// more often.
    fn next(&mut self, rng: &mut Rng) -> usize {
        self.draw(rng);
        let last = self.stack.len() - 1;
        let distance = lognormal(1.5, 0.80, rng) as usize;
        let (from, to) = (distance / 2, distance.saturating_mul(3) / 2);
        let window = from.min(last)..=to.min(last);
        let weight = |&place: &usize| u64::from(self.due[self.stack[place]]);
        let mut luck = rng.u64(..window.clone().map(|place| weight(&place)).sum::<u64>());
        let mut places = window.clone();
        let place = places.find(|place| {
            let is_here = luck < weight(place);
            luck = luck.saturating_sub(weight(place));
            is_here
        });
        let place = place.unwrap_or(*window.end());
        let page = self.stack.remove(place).unwrap_or(0);
        self.due[page] = self.due[page].saturating_sub(1);
        if self.due[page] > 0 {
            self.stack.push_front(page);
        }
        page
    }
}

/// Pace of users: how they spend their time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Factor on all times between documents and pages; 1 is SURGE's.
    pub off: f64,
    /// Mean number of pages of a session (geometric).
    pub pages: f64,
}

/// Next step of a user.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The user waits for this number of seconds.
    Wait(f64),
    /// The user asks for a document, and waits for the answer.
    Ask {
        /// Number of the document.
        document: usize,
        /// True if the document is the first one of a session.
        begins: bool,
    },
}

/// A user: sessions of pages, without end.
#[derive(Clone, Debug)]
pub struct User {
    pace: Pace,
    page: usize,
    /// Documents of the page that were asked for; pages of the session that are left.
    asked: usize,
    left: u32,
    waits: bool,
}

impl User {
    /// Makes a user who is about to begin a session.
    pub fn new(pace: Pace) -> Self {
        User {
            pace,
            page: 0,
            asked: 0,
            left: 0,
            waits: false,
        }
    }

    /// The next step, after the one before is done.
    pub fn next(&mut self, site: &Site, references: &mut References, rng: &mut Rng) -> Step {
        let documents = site.pages[self.page].len();
        if std::mem::take(&mut self.waits) {
            let seconds = match self.asked < documents {
                true => weibull(1.46, 0.382, rng),
                false => pareto(1.0, 1.5, rng),
            };
            return Step::Wait(self.pace.off * seconds);
        }
        let mut begins = false;
        if self.asked == 0 || self.asked >= documents {
            begins = self.left == 0;
            if begins {
                self.left = geometric(self.pace.pages, rng);
            }
            self.left -= 1;
            (self.page, self.asked) = (references.next(rng), 0);
        }
        let document = site.pages[self.page][self.asked];
        self.asked += 1;
        self.waits = true;
        Step::Ask { document, begins }
    }
}

/// At least 1, so many on average.
fn geometric(mean: f64, rng: &mut Rng) -> u32 {
    let more = 1.0 - 1.0 / mean.max(1.0);
    let count = libm::log(1.0 - rng.f64()) / libm::log(more);
    1 + count as u32
}

fn pareto(scale: f64, shape: f64, rng: &mut Rng) -> f64 {
    scale / libm::pow(1.0 - rng.f64(), 1.0 / shape)
}

fn weibull(scale: f64, shape: f64, rng: &mut Rng) -> f64 {
    scale * libm::pow(-libm::log(1.0 - rng.f64()), 1.0 / shape)
}

fn lognormal(mu: f64, sigma: f64, rng: &mut Rng) -> f64 {
    // Box and Muller.
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - rng.f64()));
    libm::exp(mu + sigma * radius * libm::cos(TAU * rng.f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: usize = 200_000;

    fn share(of: impl Fn(f64) -> bool, mut sample: impl FnMut(&mut Rng) -> f64) -> f64 {
        let mut rng = Rng::with_seed(4);
        let hits = (0..SAMPLES).filter(|_| of(sample(&mut rng)));
        hits.count() as f64 / SAMPLES as f64
    }

    fn is_about(found: f64, expected: f64, within: f64) {
        let off = (found / expected - 1.0).abs();
        assert!(off < within, "{found}, and not {expected}");
    }

    #[test]
    fn distributions_have_their_medians_and_tails() {
        // The median of a Weibull distribution is scale * ln(2)^(1 / shape).
        let median = 1.46 * libm::pow(libm::log(2.0), 1.0 / 0.382);
        is_about(
            share(|x| x < median, |rng| weibull(1.46, 0.382, rng)),
            0.5,
            0.02,
        );
        // exp(-(x / scale)^shape)
        let tail = libm::exp(-libm::pow(30.0 / 1.46, 0.382));
        is_about(
            share(|x| x > 30.0, |rng| weibull(1.46, 0.382, rng)),
            tail,
            0.05,
        );
        // (scale / x)^shape
        is_about(share(|x| x > 100.0, |rng| pareto(1.0, 1.5, rng)), 1e-3, 0.2);
        is_about(
            share(|x| x >= 2.0, |rng| pareto(1.0, 2.43, rng)),
            0.1856,
            0.03,
        );
        is_about(
            share(|x| x < libm::exp(9.357), |rng| lognormal(9.357, 1.318, rng)),
            0.5,
            0.02,
        );
        // Two deviations above.
        let far = libm::exp(9.357 + 2.0 * 1.318);
        is_about(
            share(|x| x > far, |rng| lognormal(9.357, 1.318, rng)),
            0.02275,
            0.05,
        );
        is_about(
            share(|x| x >= 1e6, length),
            0.07 * libm::pow(0.133, 1.1) + 0.93 * 0.00035,
            0.05,
        );
        let mut rng = Rng::with_seed(5);
        let pages: u32 = (0..SAMPLES).map(|_| geometric(8.0, &mut rng)).sum();
        is_about(f64::from(pages) / SAMPLES as f64, 8.0, 0.02);
        assert_eq!(geometric(1.0, &mut rng), 1);
    }

    #[test]
    fn a_site_has_its_classes_and_what_is_asked_for_has_its_lengths() {
        for seed in 0..5 {
            let site = Site::new(2000, &mut Rng::with_seed(seed));
            assert_eq!(site.pages.len(), 1240);
            let bases = site.pages.iter().filter(|page| page.len() > 1);
            assert_eq!(bases.count(), 600);
            assert!(site.pages.iter().flatten().all(|&document| document < 2000));
            // The largest difference of the two distribution functions. The most popular document
            // alone has up to a ninth of all requests, of which half is off.
            let mut order: Vec<usize> = (0..2000).collect();
            order.sort_by_key(|&document| site.length(document));
            let (mut sum, mut off) = (0.0, 0.0f64);
            for document in order {
                let expected = requested(site.length(document) as f64);
                off = off.max(
                    (sum - expected)
                        .abs()
                        .min((sum + site.shares[document] - expected).abs()),
                );
                sum += site.shares[document];
            }
            assert!(off < 0.08, "{off}");
            is_about(sum, 1.0, 1e-9);
        }
    }

    #[test]
    fn popularity_is_that_of_zipf_and_references_are_local() {
        let mut rng = Rng::with_seed(6);
        let site = Site::new(2000, &mut rng);
        let mut references = References::new(&site, &mut rng);
        let mut asked = vec![0.0; site.pages.len()];
        let mut recent: Vec<usize> = Vec::new();
        let mut distances = Vec::new();
        for _ in 0..SAMPLES {
            let page = references.next(&mut rng);
            asked[page] += 1.0 / SAMPLES as f64;
            if let Some(place) = recent.iter().rev().position(|&other| other == page) {
                distances.push(place);
                recent.remove(recent.len() - 1 - place);
            }
            recent.push(page);
        }
        // The harmonic number of 1240 is 7.70.
        for (rank, within) in [(1, 0.02), (2, 0.03), (10, 0.05), (100, 0.2)] {
            is_about(asked[rank - 1], 1.0 / (7.70 * rank as f64), within);
        }
        distances.sort_unstable();
        // exp(1.5) is 4.5. Drawn independently, the median would be far deeper.
        let median = distances[distances.len() / 2];
        assert!((2..=7).contains(&median), "{median}");
        let popularity = Popularity::new(1240, 1.0);
        recent.clear();
        let mut independent = Vec::new();
        for _ in 0..50_000 {
            let page = popularity.draw_rank(&mut rng);
            if let Some(place) = recent.iter().rev().position(|&other| other == page) {
                independent.push(place);
                recent.remove(recent.len() - 1 - place);
            }
            recent.push(page);
        }
        independent.sort_unstable();
        assert!(independent[independent.len() / 2] > 3 * median);
    }

    #[test]
    fn a_session_is_pages_and_waits_between_all_documents() {
        let mut rng = Rng::with_seed(7);
        let site = Site::new(2000, &mut rng);
        let mut references = References::new(&site, &mut rng);
        let mut user = User::new(Pace {
            off: 1.0,
            pages: 3.0,
        });
        let (mut asks, mut sessions, mut waited) = (0.0, 0.0, false);
        for step in 0..SAMPLES {
            match user.next(&site, &mut references, &mut rng) {
                Step::Ask { begins, document } => {
                    assert!(document < 2000 && (waited || step == 0));
                    (asks, waited) = (asks + 1.0, false);
                    sessions += f64::from(u8::from(begins));
                }
                Step::Wait(seconds) => {
                    assert!(seconds >= 0.0 && !waited);
                    waited = true;
                }
            }
        }
        is_about(asks / sessions, 3.0 * site.mean_documents(), 0.05);
    }
}

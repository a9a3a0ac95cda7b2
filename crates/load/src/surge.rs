//! Users of the Web as in SURGE (Barford and Crovella, "Generating Representative Web Workloads for
//! Network and Server Performance Evaluation", 1998): sizes, popularity, pages with embedded
//! documents, temporal locality and times of users, with bodies and tails whole.

use std::f64::consts::TAU;
use std::time::Duration;

use evenkeel_sim::work::Popularity;
use fastrand::Rng;

/// The longest document, in bytes: tails are not cut where anybody would notice.
const LONGEST: f64 = 1e9;
/// The longest time of a user.
const LONGEST_PAUSE: f64 = 3600.0;
/// Documents of a page at most.
const MOST_EMBEDDED: f64 = 150.0;
/// Documents of a user's last ones from which the next may be drawn.
const STACK: usize = 512;

/// The documents of a site. A base document is a page with documents embedded in it; a loner is a page
/// alone; the rest are embedded.
#[derive(Debug)]
pub struct Site {
    lengths: Vec<u64>,
    /// Numbers of the pages, the most popular first, and what each embeds.
    pages: Vec<(u32, Vec<u32>)>,
    popularity: Popularity,
}

impl Site {
    /// So many documents, from 3 on; the same ones for the same seed.
    pub fn new(documents: u32, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let lengths = (0..documents).map(|_| length(&mut rng)).collect();
        // 30 % are bases and 38 % are embedded; the rest stand alone.
        let (mut bases, mut embedded, mut loners) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..documents {
            match rng.f64() {
                luck if luck < 0.30 => bases.push(number),
                luck if luck < 0.68 => embedded.push(number),
                _ => loners.push(number),
            }
        }
        let mut pages: Vec<(u32, Vec<u32>)> = Vec::new();
        for base in bases {
            let count = pareto(1.0, 2.43, MOST_EMBEDDED, &mut rng) as usize;
            let parts = (0..count).filter_map(|_| {
                let at = rng.usize(..embedded.len().max(1));
                embedded.get(at).copied()
            });
            let parts = parts.collect();
            pages.push((base, parts));
        }
        pages.extend(loners.into_iter().map(|loner| (loner, Vec::new())));
        if pages.is_empty() {
            pages.push((0, Vec::new()));
        }
        rng.shuffle(&mut pages);
        Site {
            lengths,
            popularity: Popularity::new(pages.len(), 1.0),
            pages,
        }
    }

    /// Bytes of each document.
    pub fn lengths(&self) -> &[u64] {
        &self.lengths
    }

    /// Its pages: a document, and those that it embeds.
    pub fn pages(&self) -> &[(u32, Vec<u32>)] {
        &self.pages
    }
}

/// A lognormal body and a Pareto tail.
fn length(rng: &mut Rng) -> u64 {
    let length = if rng.f64() < 0.93 {
        lognormal(9.357, 1.318, rng)
    } else {
        pareto(133_000.0, 1.1, LONGEST, rng)
    };
    length.clamp(1.0, LONGEST) as u64
}

/// What a user does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asks for a document.
    Ask(u32),
    /// Waits.
    Wait(Duration),
    /// Leaves, and comes back as somebody else.
    Leave,
}

/// A user: sessions of pages, each a document and those that it embeds.
#[derive(Debug)]
pub struct User {
    /// Pages that it has seen, the last one at the end.
    stack: Vec<usize>,
    /// Documents of the page that are still to be asked for, the last one first.
    page: Vec<u32>,
    /// Pages left of the session.
    pages: u32,
    has_asked: bool,
    pace: f64,
}

/// Pages of a session on average.
const SESSION: f64 = 8.0;

impl User {
    /// One who comes.
    pub fn new(pace: f64) -> Self {
        User {
            stack: Vec::new(),
            page: Vec::new(),
            pages: 0,
            has_asked: false,
            pace,
        }
    }

    /// The next step, after the one before is done.
    pub fn next(&mut self, site: &Site, rng: &mut Rng) -> Step {
        if self.has_asked {
            self.has_asked = false;
            let seconds = match self.page.is_empty() {
                // Between pages a Pareto time, within one a Weibull time.
                true => pareto(1.0, 1.5, LONGEST_PAUSE, rng),
                false => weibull(1.46, 0.382, LONGEST_PAUSE, rng),
            };
            return Step::Wait(Duration::from_secs_f64(seconds * self.pace));
        }
        if self.page.is_empty() {
            if self.pages == 0 {
                self.pages = session(rng);
                let is_new = self.stack.is_empty();
                self.stack.clear();
                if !is_new {
                    return Step::Leave;
                }
            }
            self.pages -= 1;
            let page = self.choose(site, rng);
            if let Some((base, embedded)) = site.pages.get(page) {
                self.page.extend(embedded.iter().rev());
                self.page.push(*base);
            }
        }
        self.has_asked = true;
        Step::Ask(self.page.pop().unwrap_or(0))
    }

    /// A page by its popularity, or one that was seen not long ago: distances on the stack of
    /// what was seen are lognormal, which is the temporal locality of SURGE.
    fn choose(&mut self, site: &Site, rng: &mut Rng) -> usize {
        let depth = lognormal(1.5, 0.80, rng) as usize;
        let seen = (self.stack.len().checked_sub(depth + 1)).filter(|_| rng.f64() < 0.5);
        let page = match seen {
            Some(at) if at < self.stack.len() => self.stack.remove(at),
            _ => site.popularity.draw(rng),
        };
        self.stack.retain(|&other| other != page);
        if self.stack.len() >= STACK {
            self.stack.remove(0);
        }
        self.stack.push(page);
        page
    }
}

/// Pages of a session: geometric.
fn session(rng: &mut Rng) -> u32 {
    let mut pages = 1;
    while rng.f64() < 1.0 - 1.0 / SESSION && pages < 10_000 {
        pages += 1;
    }
    pages
}

/// The distribution function is turned around, for a chance that ends at the limit.
fn pareto(scale: f64, shape: f64, limit: f64, rng: &mut Rng) -> f64 {
    let chance = rng.f64() * (1.0 - libm::pow(scale / limit, shape));
    scale / libm::pow(1.0 - chance, 1.0 / shape)
}

fn weibull(scale: f64, shape: f64, limit: f64, rng: &mut Rng) -> f64 {
    let chance = rng.f64() * (1.0 - libm::exp(-libm::pow(limit / scale, shape)));
    scale * libm::pow(-libm::log(1.0 - chance), 1.0 / shape)
}

fn lognormal(mu: f64, sigma: f64, rng: &mut Rng) -> f64 {
    // Box and Muller.
    let radius = (-2.0 * libm::log(1.0 - rng.f64())).sqrt();
    libm::exp(mu + sigma * radius * libm::cos(TAU * rng.f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_the_same_for_a_seed_and_holds_together() {
        let site = Site::new(2000, 7);
        assert_eq!(site.lengths, Site::new(2000, 7).lengths);
        assert_ne!(site.lengths, Site::new(2000, 8).lengths);
        let loners = site.pages.iter().filter(|(_, parts)| parts.is_empty());
        // 32 of 62 pages; a base has at least one document embedded.
        let share = loners.count() as f64 / site.pages.len() as f64;
        assert!((0.42..0.62).contains(&share), "{share}");
        let all = site
            .pages
            .iter()
            .flat_map(|(base, parts)| parts.iter().chain([base]));
        assert!(all.into_iter().all(|&document| document < 2000));
        for few in 3..20 {
            assert!(!Site::new(few, 1).pages.is_empty());
        }
    }

    #[test]
    fn sizes_have_their_body_and_tail() {
        let mut rng = Rng::with_seed(4);
        let mut all: Vec<u64> = (0..100_000).map(|_| length(&mut rng)).collect();
        all.sort_unstable();
        // The median of the whole is the 0.5 / 0.93 quantile of the lognormal body.
        let median = (9.357f64 + 1.318 * 0.0945).exp();
        let found = all[50_000] as f64;
        assert!((found / median - 1.0).abs() < 0.1, "{found} {median}");
        let tail = all.iter().filter(|&&length| length >= 133_000).count();
        // 7 % are of the tail, and 3.2 % of the body are as large.
        assert!((9400..10_600).contains(&tail), "{tail}");
        assert!(all[99_999] > 10_000_000, "the tail is whole");
    }

    #[test]
    fn a_user_asks_for_pages_and_their_documents_and_leaves() {
        let site = Site::new(500, 2);
        let mut rng = Rng::with_seed(5);
        let mut user = User::new(1.0);
        let (mut asks, mut leaves) = (0u32, 0u32);
        for _ in 0..200_000 {
            match user.next(&site, &mut rng) {
                Step::Ask(document) => {
                    assert!(document < 500);
                    asks += 1;
                    assert!(matches!(user.next(&site, &mut rng), Step::Wait(_)));
                }
                Step::Leave => leaves += 1,
                Step::Wait(_) => panic!("it waits for nothing"),
            }
            assert!(user.stack.len() <= STACK);
        }
        let asks = f64::from(asks) / f64::from(leaves);
        // Eight pages, some with a document or more embedded.
        assert!((8.0..24.0).contains(&asks), "{asks}");
    }

    #[test]
    fn what_was_seen_is_asked_for_again() {
        let site = Site::new(20_000, 2);
        let mut rng = Rng::with_seed(5);
        let mut user = User::new(1.0);
        let mut near = 0;
        for _ in 0..2000 {
            let before: Vec<usize> = user.stack.iter().rev().take(10).copied().collect();
            let page = user.choose(&site, &mut rng);
            near += usize::from(before.contains(&page));
        }
        let mut by_chance = 0;
        let mut last: Vec<usize> = Vec::new();
        for _ in 0..2000 {
            let page = site.popularity.draw(&mut rng);
            by_chance += usize::from(last.iter().rev().take(10).any(|&seen| seen == page));
            last.push(page);
        }
        assert!(near > by_chance + 200, "{near} and {by_chance}");
    }
}

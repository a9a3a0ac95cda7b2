//! Files that clients fetch.

/// Files of the site, which together have 152 MB.
pub(super) const SITE_FILES: usize = 6_000;
const SITE_BYTES: f64 = 152e6;

/// Files of an FTP session, and how many MB they have together.
pub(super) const FTP_FILES: usize = 10;
pub(super) const FTP_MEGABYTES: usize = 400;

/// Sizes of the files of a site of 152 MB, most of them small (Pareto, 1.2, cut at 13 MB), in a random order that is
/// always the same.
pub(super) fn site(files: usize) -> Vec<u64> {
    let size = |index: usize| {
        let share = (index as f64 + 0.5) / files as f64;
        libm::pow(1.0 - share, -1.0 / 1.2)
    };
    let mut sizes: Vec<f64> = (0..files).map(size).collect();
    let all: f64 = sizes.iter().sum();
    sizes.iter_mut().for_each(|size| *size *= SITE_BYTES / all);
    fastrand::Rng::with_seed(1).shuffle(&mut sizes);
    sizes.into_iter().map(|size| size as u64).collect()
}

//! The pages of instrumented servers: found, read, and left when they are gone.
//!
//! Anybody may make files in a folder that is everybody's. Only pages of [`Owners`] are opened,
//! and if those are more than there is room for, each owner has an equal share of it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use arm::page::{self, Interval, Lease, Reader, Sample};

use crate::owners::{Owners, user_name};

/// Most pages: each is an open file.
const MAX_PAGES: usize = 512;

/// Most users whose pages are not read that are remembered, to name them.
const MAX_STRANGERS: usize = 16;

/// Most complaints, so that neither memory nor the log fills up with them.
const MAX_COMPLAINTS: usize = 100;

/// All pages in a folder.
#[derive(Debug)]
pub struct Pages {
    dir: PathBuf,
    owners: Owners,
    open: BTreeMap<PathBuf, Page>,
    /// Users with files here that look like pages, and are not read.
    strangers: BTreeSet<u32>,
    /// The group of the folder, if that was made for pages.
    group: Option<u32>,
    /// Complaints that were logged already, so that each is logged once.
    complained: BTreeSet<String>,
}

#[derive(Debug)]
struct Page {
    reader: Reader,
    last: Sample,
    interval: Interval,
    /// End of the alert in the page, as far as this agent has written it.
    alert: Option<Lease>,
}

impl Pages {
    /// The pages of `owners` in `dir`, or where the ARM library has them.
    pub fn new(dir: Option<PathBuf>, owners: Owners) -> Self {
        Pages {
            dir: dir.unwrap_or_else(page::default_dir),
            owners,
            open: BTreeMap::new(),
            strangers: BTreeSet::new(),
            group: None,
            complained: BTreeSet::new(),
        }
    }

    /// Reads those of other owners from now on.
    pub fn set_owners(&mut self, owners: Owners) {
        self.owners = owners;
        // Those that are pages of theirs, too, are opened anew at the next look.
        let (owners, group) = (&self.owners, self.group);
        self.open.retain(|_, page| page.is_of_one(owners, group));
    }

    /// Users with files in the folder that look like pages, but are not read.
    pub fn strangers(&self) -> impl Iterator<Item = String> {
        self.strangers.iter().map(|user| user_name(*user))
    }

    /// The folder.
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Looks at all pages at the time `now` of their clock: what happened since the last call is then to be had from
    /// [`Self::intervals_of`]. What a page counted before it was first looked at is not known to
    /// belong to the interval, and left out.
    pub fn sample_pages(&mut self, now: u64) {
        let mut said = Vec::new();
        for path in self.find(&mut said) {
            if let Err(error) = self.look_at(path, now) {
                said.push(error.to_string());
            }
        }
        for user in self.strangers() {
            let dir = self.dir.display();
            said.push(format!(
                "pages of user {user} in {dir} are not read: if a server runs as this user, name the \
                 user in page_owners"
            ));
        }
        for complaint in said {
            if self.is_new(&complaint) {
                tracing::warn!("{complaint}");
            }
        }
    }

    /// The pages to read: those of our owners, and of each no more than its share. Closes the
    /// others.
    fn find(&mut self, said: &mut Vec<String>) -> Vec<PathBuf> {
        self.group = std::fs::metadata(&self.dir).ok().and_then(|dir| {
            const SET_GROUP_ID_NOT_OTHERS: u32 = 0o2000;
            (dir.mode() & 0o2002 == SET_GROUP_ID_NOT_OTHERS).then_some(dir.gid())
        });
        self.strangers.clear();
        let mut users = Vec::new();
        let found = page::scan_if(&self.dir, |path| {
            let Ok(about) = std::fs::symlink_metadata(path) else {
                return false;
            };
            if !self.owners.owns_file(about.uid(), about.gid(), self.group) {
                if self.strangers.len() < MAX_STRANGERS {
                    self.strangers.insert(about.uid());
                }
                return false;
            }
            users.push((path.to_owned(), about.uid()));
            true
        });
        let found = found.unwrap_or_else(|error| {
            said.push(error.to_string());
            Vec::new()
        });
        let users: BTreeMap<PathBuf, u32> = users.into_iter().collect();
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for user in users.values() {
            *counts.entry(*user).or_default() += 1;
        }
        let share = share(&counts);
        if let Some((user, count)) = counts.iter().find(|(_, count)| **count > share) {
            said.push(format!(
                "{} has {count} pages of user {}, and {MAX_PAGES} are read in all: {share} of \
                 them; check which process creates them",
                self.dir.display(),
                user_name(*user)
            ));
        }
        // Those that are open first, so that new ones do not take their place.
        let (old, new): (Vec<_>, Vec<_>) =
            { found.into_iter() }.partition(|path| self.open.contains_key(path));
        let mut left: BTreeMap<u32, usize> = counts.keys().map(|user| (*user, share)).collect();
        let mut kept: Vec<PathBuf> = old
            .into_iter()
            .chain(new)
            .filter(|path| {
                let left = users.get(path).and_then(|user| left.get_mut(user));
                left.is_some_and(|left| {
                    let has_room = *left > 0;
                    *left = left.saturating_sub(1);
                    has_room
                })
            })
            .collect();
        kept.sort();
        self.open.retain(|path, _| kept.binary_search(path).is_ok());
        kept
    }

    /// Returns true if a complaint has to be logged: each is logged once, and no more than
    /// there is room for.
    fn is_new(&mut self, complaint: &str) -> bool {
        self.complained.len() < MAX_COMPLAINTS && self.complained.insert(complaint.to_owned())
    }

    fn look_at(&mut self, path: PathBuf, now: u64) -> Result<(), page::Error> {
        if let Some(known) = self.open.get_mut(&path) {
            let looked = known.look(now);
            // Another one's may be in its place now.
            if looked.is_err() || !known.is_of_one(&self.owners, self.group) {
                self.open.remove(&path);
            }
            return looked;
        }
        let mut reader = Reader::open(&path)?;
        let (user, group) = reader.owner();
        if !self.owners.owns_file(user, group, self.group) {
            return Ok(());
        }
        let last = reader.sample(now)?;
        let page = Page {
            reader,
            interval: last.interval_since(&last),
            last,
            alert: None,
        };
        self.open.insert(path, page);
        Ok(())
    }

    /// Returns the intervals of the pages that these owners have of these applications; an
    /// application may have several, a page for each user who runs it.
    pub fn intervals_of<'p>(
        &'p self,
        applications: &'p [String],
        owners: &'p Owners,
    ) -> impl Iterator<Item = &'p Interval> {
        let pages = self.open.values();
        let group = self.group;
        let wanted = move |page: &&Page| page.is_of(applications) && page.is_of_one(owners, group);
        pages.filter(wanted).map(|page| &page.interval)
    }

    /// The applications that there are pages of.
    pub fn applications(&self) -> BTreeSet<&str> {
        let pages = self.open.values();
        pages.map(|page| page.reader.application()).collect()
    }

    /// Puts these applications of these owners under an alert, or takes it back. Cheap enough to be called
    /// again and again, which also reaches pages that are new. Answers whether there is a
    /// page that took it.
    pub fn set_alert(
        &mut self,
        applications: &[String],
        owners: &Owners,
        alert: Option<Lease>,
    ) -> bool {
        let mut taken = false;
        let mut said = Vec::new();
        for page in self.open.values_mut() {
            if !page.is_of(applications) || !page.is_of_one(owners, self.group) {
                continue;
            }
            if page.alert == alert {
                taken = true;
                continue;
            }
            match page.reader.set_alert(alert) {
                Ok(()) => {
                    page.alert = alert;
                    taken = true;
                }
                Err(error) => said.push(error.to_string()),
            }
        }
        for complaint in said {
            if self.is_new(&complaint) {
                tracing::warn!("{complaint}; this server cannot be told to shed load");
            }
        }
        taken
    }
}

impl Page {
    fn is_of(&self, applications: &[String]) -> bool {
        let application = self.reader.application();
        applications.iter().any(|wanted| wanted == application)
    }

    fn is_of_one(&self, owners: &Owners, folder: Option<u32>) -> bool {
        let (user, group) = self.reader.owner();
        owners.owns_file(user, group, folder)
    }

    fn look(&mut self, now: u64) -> Result<(), page::Error> {
        let sample = self.reader.sample(now)?;
        if sample.epoch != self.last.epoch {
            // A page that has taken the place of the last one knows of no alert.
            self.alert = None;
        }
        self.interval = sample.interval_since(&self.last);
        self.last = sample;
        Ok(())
    }
}

/// The most pages of one owner, so that they are no more than [`MAX_PAGES`] in all and nobody
/// loses any to somebody who has more of them.
fn share(counts: &BTreeMap<u32, usize>) -> usize {
    let mut counts: Vec<usize> = counts.values().copied().collect();
    counts.sort_unstable();
    let (mut room, mut owners) = (MAX_PAGES, counts.len());
    for count in counts {
        if count.saturating_mul(owners) > room {
            return room / owners;
        }
        room -= count;
        owners -= 1;
    }
    MAX_PAGES
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A folder of pages that this process made as the library does, gone when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("evenkeel-agent-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            Folder(dir)
        }

        /// A page of `application`, as a server of the user `owner` would leave it.
        fn page(&self, name: &str, application: &str, owner: Option<u32>) -> PathBuf {
            let path = self.0.join(format!("{name}.arm"));
            page::write_empty(&path, application).unwrap();
            if owner.is_some() {
                std::os::unix::fs::chown(&path, owner, None).unwrap();
            }
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn owners(names: &[&str]) -> Owners {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Owners::from_names(&names).unwrap().unwrap()
    }

    #[test]
    fn s20_pages_of_users_who_are_not_listed_are_not_read() {
        let folder = Folder::new("strangers");
        folder.page("shop", "shop", None);
        let own = rustix::process::geteuid().as_raw();
        let other = owners(&["4000000001"]);
        let mut pages = Pages::new(Some(folder.0.clone()), other.clone());
        pages.sample_pages(1);
        assert!(pages.open.is_empty());
        let strangers: Vec<String> = pages.strangers().collect();
        assert_eq!(strangers, [user_name(own)]);
        assert!(
            pages
                .complained
                .iter()
                .any(|said| said.contains("page_owners"))
        );

        pages.set_owners(Owners::default());
        pages.sample_pages(2);
        let shop = ["shop".to_owned()];
        assert_eq!(pages.intervals_of(&shop, &Owners::default()).count(), 1);
        assert_eq!(pages.strangers().count(), 0);
        // A server may have owners of its own, and then only theirs.
        assert_eq!(pages.intervals_of(&shop, &other).count(), 0);
        assert!(!pages.set_alert(&shop, &other, None));
        pages.set_owners(other);
        assert!(pages.open.is_empty());
    }

    /// Needs the right to give files away.
    #[test]
    fn s20_who_makes_many_pages_hides_no_others() {
        if !rustix::process::geteuid().is_root() {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: s20_who_makes_many_pages_hides_no_others: only root gives files away"
            );
            return;
        }
        let folder = Folder::new("many");
        for number in 0..MAX_PAGES + 50 {
            folder.page(&format!("a{number:04}"), "shop", Some(4711));
        }
        folder.page("z", "shop", None);
        // Nobody listed them: there is one page, and the agent needs the memory of one.
        let mut pages = Pages::new(Some(folder.0.clone()), Owners::default());
        pages.sample_pages(1);
        assert_eq!(pages.open.len(), 1);
        assert_eq!(pages.complained.len(), 1, "{:?}", pages.complained);
        // Whoever is listed has no more than a share.
        let mut pages = Pages::new(Some(folder.0.clone()), owners(&["4711", "root"]));
        pages.sample_pages(1);
        assert_eq!(pages.open.len(), MAX_PAGES);
        assert!(pages.open.contains_key(&folder.0.join("z.arm")));
        assert!(pages.complained.iter().any(|said| said.contains("4711")));
        // What is read stays so, whatever comes before it in the alphabet.
        folder.page("0", "shop", Some(4711));
        pages.sample_pages(2);
        assert!(!pages.open.contains_key(&folder.0.join("0.arm")));

        // A page that somebody else puts in the place of one that was read.
        let own = Folder::new("replaced");
        let path = own.page("z", "shop", None);
        let mut pages = Pages::new(Some(own.0.clone()), Owners::default());
        pages.sample_pages(1);
        assert_eq!(pages.open.len(), 1);
        std::fs::remove_file(&path).unwrap();
        own.page("z", "shop", Some(4711));
        pages.sample_pages(2);
        assert!(pages.open.is_empty());
    }

    #[test]
    fn s20_room_is_shared_by_owners() {
        let share = |counts: &[usize]| {
            let numbered = { counts.iter() }.enumerate();
            super::share(
                &numbered
                    .map(|(user, count)| (user as u32, *count))
                    .collect(),
            )
        };
        assert_eq!(share(&[]), MAX_PAGES);
        assert_eq!(share(&[MAX_PAGES]), MAX_PAGES);
        assert_eq!(share(&[1, 100_000]), MAX_PAGES - 1);
        assert_eq!(share(&[1, usize::MAX, usize::MAX]), (MAX_PAGES - 1) / 2);
        for counts in [&[3, 4, 5][..], &[100; 9], &[1; 2000], &[600, 1, 600, 2, 7]] {
            let share = share(counts);
            let all: usize = counts.iter().map(|count| count.min(&share)).sum();
            assert!(all <= MAX_PAGES, "{counts:?}");
        }
    }

    #[test]
    fn a_folder_full_of_nonsense_fills_neither_memory_nor_log() {
        let name = format!("evenkeel-agent-pages-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        for number in 0..2 * MAX_COMPLAINTS {
            std::fs::write(dir.join(format!("{number}.arm")), "nonsense").unwrap();
        }
        let mut pages = Pages::new(Some(dir.clone()), Owners::default());
        pages.sample_pages(1);
        pages.sample_pages(2);
        assert_eq!(pages.complained.len(), MAX_COMPLAINTS);
        assert!(pages.open.is_empty());
        std::fs::remove_dir_all(dir).unwrap();
    }
}

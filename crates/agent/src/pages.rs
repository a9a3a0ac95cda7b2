//! The pages of instrumented servers: found, read, and left when they are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use arm::page::{self, Interval, Lease, Reader, Sample};

/// Most pages: each is an open file. Anybody may make some in a folder that is everybody's.
const MAX_PAGES: usize = 512;

/// Most complaints, so that neither memory nor the log fills up with them.
const MAX_COMPLAINTS: usize = 100;

/// All pages in a folder.
#[derive(Debug)]
pub struct Pages {
    dir: PathBuf,
    open: BTreeMap<PathBuf, Page>,
    /// What was said already, so that it is said once.
    complained: BTreeSet<String>,
}

#[derive(Debug)]
struct Page {
    reader: Reader,
    last: Sample,
    interval: Interval,
    /// Until when the alert in it holds, as far as this agent has written it.
    alert: Option<Lease>,
}

impl Pages {
    /// The pages in `dir`, or where the ARM library has them.
    pub fn new(dir: Option<PathBuf>) -> Self {
        Pages {
            dir: dir.unwrap_or_else(page::default_dir),
            open: BTreeMap::new(),
            complained: BTreeSet::new(),
        }
    }

    /// The folder.
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Looks at all pages at the time `now` of their clock: what happened since the last call is then to be had from
    /// [`Self::of`]. What a page counted before it was first looked at is not known to
    /// belong to the interval, and left out.
    pub fn sample(&mut self, now: u64) {
        let mut said = Vec::new();
        let found = page::scan(&self.dir).unwrap_or_else(|error| {
            said.push(error.to_string());
            Vec::new()
        });
        let mut too_many = false;
        self.open
            .retain(|path, _| found.binary_search(path).is_ok());
        for path in found {
            if self.open.len() >= MAX_PAGES && !self.open.contains_key(&path) {
                too_many = true;
                continue;
            }
            if let Err(error) = self.look_at(path, now) {
                said.push(error.to_string());
            }
        }
        if too_many {
            let dir = self.dir.display();
            said.push(format!(
                "{dir} has more than {MAX_PAGES} pages: some are not read; see who makes them, or \
                 name another folder with arm_dir"
            ));
        }
        for complaint in said {
            if self.is_new(&complaint) {
                tracing::warn!("{complaint}");
            }
        }
    }

    /// Whether a complaint has to be said: each is once, and no more than there is room for.
    fn is_new(&mut self, complaint: &str) -> bool {
        self.complained.len() < MAX_COMPLAINTS && self.complained.insert(complaint.to_owned())
    }

    fn look_at(&mut self, path: PathBuf, now: u64) -> Result<(), page::Error> {
        if let Some(known) = self.open.get_mut(&path) {
            let looked = known.look(now);
            if looked.is_err() {
                self.open.remove(&path);
            }
            return looked;
        }
        let mut reader = Reader::open(&path)?;
        let last = reader.sample(now)?;
        let page = Page {
            reader,
            interval: last.since(&last),
            last,
            alert: None,
        };
        self.open.insert(path, page);
        Ok(())
    }

    /// What happened on the pages of these applications; one may have several, a page for
    /// each user who runs it.
    pub fn of<'p>(&'p self, applications: &'p [String]) -> impl Iterator<Item = &'p Interval> {
        let pages = self.open.values();
        let wanted = |page: &&Page| page.is_of(applications);
        pages.filter(wanted).map(|page| &page.interval)
    }

    /// The applications that there are pages of.
    pub fn applications(&self) -> BTreeSet<&str> {
        let pages = self.open.values();
        pages.map(|page| page.reader.application()).collect()
    }

    /// Puts these applications under an alert, or takes it back. Cheap enough to be called
    /// again and again, which also reaches pages that are new. Answers whether there is a
    /// page that took it.
    pub fn set_alert(&mut self, applications: &[String], alert: Option<Lease>) -> bool {
        let mut taken = false;
        let mut said = Vec::new();
        for page in self.open.values_mut() {
            if !page.is_of(applications) {
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

    fn look(&mut self, now: u64) -> Result<(), page::Error> {
        let sample = self.reader.sample(now)?;
        if sample.epoch != self.last.epoch {
            // A page that has taken the place of the last one knows of no alert.
            self.alert = None;
        }
        self.interval = sample.since(&self.last);
        self.last = sample;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_full_of_nonsense_fills_neither_memory_nor_log() {
        let name = format!("evenkeel-agent-pages-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        for number in 0..2 * MAX_COMPLAINTS {
            std::fs::write(dir.join(format!("{number}.arm")), "nonsense").unwrap();
        }
        let mut pages = Pages::new(Some(dir.clone()));
        pages.sample(1);
        pages.sample(2);
        assert_eq!(pages.complained.len(), MAX_COMPLAINTS);
        assert!(pages.open.is_empty());
        std::fs::remove_dir_all(dir).unwrap();
    }
}

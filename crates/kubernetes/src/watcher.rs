//! List and watch of objects, such as the slices of a namespace, without I/O: what to ask next, and what the answers mean.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::list::{Event, Fault, Page, Status, Store};

/// Longest event of a watch, in bytes. An object of Kubernetes is at most 1.5 MB long.
const MAX_EVENT: usize = 4 << 20;

/// Question for the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A page of the list: the first page, or the page of this token.
    List(Option<String>),
    /// The changes after this version.
    Watch(String),
}

/// Objects as far as they are known, and the version of this knowledge.
#[derive(Debug)]
pub struct Watcher<S: Store> {
    store: S,
    /// Version from which a watch goes on; `None` if the objects must be listed.
    version: Option<String>,
    /// Pages of a list that is not complete, and the token of the next page.
    pages: Option<(BTreeMap<String, S::Object>, String)>,
    /// Start of an event whose end has not come.
    line: Vec<u8>,
}

impl<S: Store> Watcher<S> {
    /// A watcher that puts what it reads into `store`.
    pub fn with_store(store: S) -> Self {
        Watcher {
            store,
            version: None,
            pages: None,
            line: Vec::new(),
        }
    }

    /// Returns the next question.
    pub fn next_question(&self) -> Question {
        match (&self.version, &self.pages) {
            (Some(version), _) => Question::Watch(version.clone()),
            (None, Some((_, next))) => Question::List(Some(next.clone())),
            (None, None) => Question::List(None),
        }
    }

    /// Takes a page of the list. Returns true if the list is complete.
    ///
    /// # Errors
    ///
    /// The page cannot be used: the list starts again.
    pub fn take_page(&mut self, body: &[u8]) -> Result<bool, Fault> {
        let (mut known, _) = self.pages.take().unwrap_or_default();
        let Page {
            objects,
            version,
            next,
        } = self.store.parse_page(body)?;
        known.extend(objects);
        self.store.check(&known)?;
        if !next.is_empty() {
            self.pages = Some((known, next));
            return Ok(false);
        }
        self.store.note_version(&version);
        self.store.replace(known);
        self.version = Some(version);
        self.line.clear();
        Ok(true)
    }

    /// Takes bytes of a watch. Returns true if objects have changed; also if `fault` is set afterwards.
    pub fn take_bytes(&mut self, bytes: &[u8], fault: &mut Option<Fault>) -> bool {
        let mut has_changed = false;
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            let taken = match self.line.is_empty() {
                true => self.take_line(line),
                false => {
                    let mut whole = std::mem::take(&mut self.line);
                    whole.extend_from_slice(line);
                    self.take_line(&whole)
                }
            };
            match taken {
                Ok(changed) => has_changed |= changed,
                Err(error) => {
                    *fault = Some(error);
                    return has_changed;
                }
            }
        }
        self.line.extend_from_slice(rest);
        if self.line.len() > MAX_EVENT {
            self.list_again();
            *fault = Some(Fault::new("an event is longer than 4 MiB"));
        }
        has_changed
    }

    fn take_line(&mut self, line: &[u8]) -> Result<bool, Fault> {
        if line.trim_ascii().is_empty() {
            return Ok(false);
        }
        if line.len() > MAX_EVENT {
            self.list_again();
            return Err(Fault::new("an event is longer than 4 MiB"));
        }
        let event = self.store.parse_event(line);
        let event = event.inspect_err(|_| self.list_again())?;
        match event {
            Event::Changed(name, object, version) => {
                self.move_on(version)?;
                let put = self.store.put(name, object);
                put.inspect_err(|_| self.list_again())
            }
            Event::Deleted(name, version) => {
                self.move_on(version)?;
                Ok(self.store.remove(&name))
            }
            Event::Bookmark(version) => self.move_on(version).map(|()| false),
            Event::Failed(status) => Err(self.note_refusal(status)),
            Event::Other => Ok(false),
        }
    }

    /// Takes the version of an event. A version that is lower than the last one comes from a server that has lost
    /// changes.
    fn move_on(&mut self, version: String) -> Result<(), Fault> {
        let number = |text: &str| text.parse::<u64>().ok();
        let before = self.version.as_deref().and_then(number);
        if before
            .zip(number(&version))
            .is_some_and(|(before, next)| next < before)
        {
            self.list_again();
            let message = "the API server has gone back to an older version, as after a restore";
            return Err(Fault::new(message));
        }
        self.store.note_version(&version);
        self.version = Some(version);
        Ok(())
    }

    /// Takes an answer that is no success, and returns what it means. An answer of 429 or of a server's failure leaves
    /// the version; all others make the objects be listed again.
    pub fn note_refusal(&mut self, status: Status) -> Fault {
        let is_too_new = status.message.contains("Too large resource version");
        let is_passing = status.code == 429 || (500..600).contains(&status.code);
        if is_too_new || !is_passing {
            self.list_again();
        }
        self.line.clear();
        refusal_of(&status)
    }

    /// Takes the regular end of a watch. An event that is not complete comes again with the next watch.
    pub fn end_watch(&mut self) {
        self.line.clear();
    }

    /// Has the objects listed: the connection has broken, and the next server may be another one or have other data. The
    /// objects that are known stay until the list is complete.
    pub fn list_again(&mut self) {
        self.version = None;
        self.pages = None;
        self.line.clear();
    }
}

/// Returns the failure that an answer means which is no success.
pub(crate) fn refusal_of(status: &Status) -> Fault {
    let text = match (&*status.message, &*status.reason) {
        ("", "") => String::new(),
        ("", text) | (text, _) => format!(": {text}"),
    };
    let seconds = status.retry_after.map(u64::from);
    Fault {
        message: format!("the API server answers {}{text}", status.code),
        code: status.code,
        retry_after: seconds.map(Duration::from_secs),
    }
}

/// Pauses between questions, which grow with failures in a row.
#[derive(Clone, Debug)]
pub struct Pace {
    failures: u32,
    /// Pause after the first failure, at most; each further failure doubles the pause.
    first: Duration,
    /// Longest pause, but for one that the API server asks for.
    longest: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Pace::between(FIRST_PAUSE, LONGEST_PAUSE)
    }
}

/// Pause after the first failure by default.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Longest pause by default.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Longest pause that the API server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(300);

/// Time after which a watch counts as a success.
const STABLE: Duration = Duration::from_secs(5);

impl Pace {
    /// Makes pauses that begin with `first` and double up to `longest`.
    pub fn between(first: Duration, longest: Duration) -> Self {
        Pace {
            failures: 0,
            first,
            longest,
        }
    }

    /// Returns the pause after a failure. `random` is from 0 to 1; a server may ask for a longer pause.
    pub fn pause_after_failure(&mut self, asked: Option<Duration>, random: f32) -> Duration {
        let doublings = self.failures.min(10);
        self.failures = self.failures.saturating_add(1);
        let pause = self.first.saturating_mul(1 << doublings);
        let pause = pause.min(self.longest);
        let pause = pause.mul_f32(0.5 + 0.5 * random.clamp(0.0, 1.0));
        let asked = asked.unwrap_or_default().min(LONGEST_ASKED);
        // Those who were asked to wait do not come back all at once.
        pause.max(asked.mul_f32(1.0 + 0.2 * random.clamp(0.0, 1.0)))
    }

    /// Returns the pause after the regular end of a watch that lasted for `lasted`.
    pub fn pause_after_watch(&mut self, lasted: Duration, random: f32) -> Duration {
        if lasted < STABLE {
            return self.pause_after_failure(None, random);
        }
        self.failures = 0;
        Duration::from_secs(1).mul_f32(random.clamp(0.0, 1.0))
    }

    /// Notes a success: the next failure is the first one.
    pub fn note_success(&mut self) {
        self.failures = 0;
    }

    /// True if the last question failed.
    pub fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// Notes that a connection held for `lasted` before it failed: the failure is the first one.
    pub fn note_stable(&mut self, lasted: Duration) {
        if lasted >= STABLE {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::slice::EndpointState;
    use crate::slices::{MAX_SLICES, ServiceName, SharedSlices};

    /// Watcher of the slices of `default/web`, and the slices.
    struct Watched {
        watcher: Watcher<SharedSlices>,
        slices: SharedSlices,
    }

    fn web() -> ServiceName {
        ("default".into(), "web".into())
    }

    fn watched() -> Watched {
        let slices = SharedSlices::of_services([web()]);
        Watched {
            watcher: Watcher::with_store(slices.clone()),
            slices,
        }
    }

    impl Watched {
        fn take_page(&mut self, body: &[u8]) -> Result<bool, Fault> {
            if self.next_question() == Question::List(None) {
                self.slices.lock().begin_list();
            }
            self.watcher.take_page(body)
        }
    }

    impl std::ops::Deref for Watched {
        type Target = Watcher<SharedSlices>;

        fn deref(&self) -> &Self::Target {
            &self.watcher
        }
    }

    impl std::ops::DerefMut for Watched {
        fn deref_mut(&mut self) -> &mut Self::Target {
            &mut self.watcher
        }
    }

    fn object(name: &str, version: u64, addresses: &[&str]) -> String {
        let endpoints: Vec<_> = { addresses.iter() }
            .map(|address| format!(r#"{{"addresses":["{address}"]}}"#))
            .collect();
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"default","resourceVersion":"{version}","labels":{{"kubernetes.io/service-name":"web"}}}},"ports":[{{"name":"","port":80}}],"endpoints":[{}]}}"#,
            endpoints.join(",")
        )
    }

    fn event(kind: &str, object: &str) -> String {
        format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
    }

    fn list(version: u64, next: &str, objects: &[String]) -> Vec<u8> {
        let items = objects.join(",");
        format!(
            r#"{{"metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{items}]}}"#
        )
        .into_bytes()
    }

    fn addresses(watched: &Watched) -> Vec<String> {
        let slices = watched.slices.lock();
        let slices = slices.slices_of(&web()).into_iter().flatten();
        slices
            .flat_map(|slice| slice.endpoints.iter().map(|of| of.address.to_string()))
            .collect()
    }

    fn listed() -> Watched {
        let mut watcher = watched();
        let page = list(5, "", &[object("a", 3, &["10.0.0.1"])]);
        assert!(watcher.take_page(&page).unwrap());
        watcher
    }

    fn take(watcher: &mut Watched, text: &str) -> (bool, Option<Fault>) {
        let mut fault = None;
        (watcher.take_bytes(text.as_bytes(), &mut fault), fault)
    }

    #[test]
    fn pages_are_one_list_and_the_old_slices_stay_until_it_is_complete() {
        let mut watcher = watched();
        assert_eq!(watcher.next_question(), Question::List(None));
        assert!(watcher.slices.lock().slices_of(&web()).is_none());
        let page = list(5, "t", &[object("a", 3, &["10.0.0.1"])]);
        assert!(!watcher.take_page(&page).unwrap());
        assert_eq!(watcher.next_question(), Question::List(Some("t".into())));
        assert!(watcher.slices.lock().slices_of(&web()).is_none());
        let page = list(5, "", &[object("b", 4, &["10.0.0.2"])]);
        assert!(watcher.take_page(&page).unwrap());
        assert_eq!(addresses(&watcher), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(watcher.next_question(), Question::Watch("5".into()));
        watcher.list_again();
        assert_eq!(addresses(&watcher).len(), 2, "the last known slices stay");
        assert!(watcher.take_page(b"{").is_err());
        assert_eq!(addresses(&watcher).len(), 2);
        assert!(watcher.take_page(&list(2, "", &[])).unwrap());
        assert!(addresses(&watcher).is_empty());
        assert_eq!(watcher.next_question(), Question::Watch("2".into()));
    }

    #[test]
    fn events_change_slices_however_they_are_cut() {
        let text = [
            event("MODIFIED", &object("a", 6, &["10.0.0.1", "10.0.0.3"])),
            event("ADDED", &object("b", 7, &["10.0.0.2"])),
            event("BOOKMARK", r#"{"metadata":{"resourceVersion":"9"}}"#),
            event("DELETED", &object("a", 10, &[])),
            event("BOOKMARK", r#"{"metadata":{"resourceVersion":"12"}}"#),
        ];
        let text = text.concat();
        for size in [1, 7, 100, text.len()] {
            let mut watcher = listed();
            let mut changes = 0;
            for part in text.as_bytes().chunks(size) {
                let mut fault = None;
                changes += usize::from(watcher.take_bytes(part, &mut fault));
                assert!(fault.is_none());
            }
            assert!(changes >= 1);
            assert_eq!(addresses(&watcher), ["10.0.0.2"]);
            assert_eq!(watcher.next_question(), Question::Watch("12".into()));
            let slices = watcher.slices.lock();
            assert_eq!(slices.service(&web()).unwrap().events, 3);
        }
    }

    /// The answers are those of kube-apiserver 1.34.4.
    #[test]
    fn answers_of_a_real_server_are_read() {
        let text = include_bytes!("../../../fuzz/seeds/kubernetes_watch/apiserver-1.34");
        let end = text.iter().position(|&byte| byte == b'\n').unwrap();
        let mut watcher = watched();
        assert!(watcher.take_page(&text[..end]).unwrap());
        assert_eq!(addresses(&watcher), ["10.0.0.1", "10.0.0.2"]);
        let states: Vec<_> = {
            let slices = watcher.slices.lock();
            let slices = slices.slices_of(&web()).into_iter().flatten();
            slices
                .flat_map(|slice| slice.endpoints.iter().map(|of| of.state))
                .collect()
        };
        assert_eq!(states, [EndpointState::Ready, EndpointState::Serving]);
        let mut fault = None;
        assert!(watcher.take_bytes(&text[end..], &mut fault));
        assert!(fault.is_none() && addresses(&watcher).is_empty());
        assert_eq!(watcher.next_question(), Question::Watch("212".into()));
    }

    #[test]
    fn a_cut_event_comes_again_with_the_next_watch() {
        let mut watcher = listed();
        let whole = event("ADDED", &object("b", 7, &["10.0.0.2"]));
        assert!(!take(&mut watcher, &whole[..40]).0);
        watcher.end_watch();
        assert_eq!(watcher.next_question(), Question::Watch("5".into()));
        assert!(take(&mut watcher, &whole).0);
        // The same once more is no change.
        assert!(!take(&mut watcher, &whole).0);
    }

    #[test]
    fn failures_say_how_to_go_on() {
        let failed = |code, message: &str| {
            event(
                "ERROR",
                &format!(r#"{{"code":{code},"message":"{message}"}}"#),
            )
        };
        for (code, message, next) in [
            (410, "too old resource version", Question::List(None)),
            (429, "slow down", Question::Watch("5".into())),
            (500, "etcd", Question::Watch("5".into())),
            (
                504,
                "Timeout: Too large resource version: 9",
                Question::List(None),
            ),
            (403, "forbidden", Question::List(None)),
        ] {
            let mut watcher = listed();
            let (_, fault) = take(&mut watcher, &failed(code, message));
            let fault = fault.unwrap().message;
            assert!(fault.contains(message) && fault.contains(&code.to_string()));
            assert_eq!(watcher.next_question(), next, "{code}");
            assert_eq!(addresses(&watcher), ["10.0.0.1"]);
        }
        let mut watcher = listed();
        let (changed, fault) = take(
            &mut watcher,
            &(event("ADDED", &object("b", 9, &["10.0.0.2"]))
                + &event("ADDED", &object("c", 4, &[]))),
        );
        assert!(changed && fault.unwrap().message.contains("older version"));
        assert_eq!(watcher.next_question(), Question::List(None));
        let mut watcher = listed();
        let (_, fault) = take(&mut watcher, "{\"type\":7}\n");
        assert!(fault.unwrap().message.contains("cannot be read"));
        assert_eq!(watcher.next_question(), Question::List(None));
    }

    #[test]
    fn nothing_grows_without_bounds() {
        let mut watcher = listed();
        let part = vec![b'x'; 1 << 20];
        let mut fault = None;
        for _ in 0..5 {
            watcher.take_bytes(&part, &mut fault);
        }
        assert!(fault.unwrap().message.contains("longer than 4 MiB"));
        assert!(watcher.line.is_empty());
        let mut watcher = listed();
        let mut fault = None;
        for number in 0..=MAX_SLICES {
            let text = event("ADDED", &object(&format!("s{number}"), 7, &[]));
            watcher.take_bytes(text.as_bytes(), &mut fault);
        }
        assert!(fault.is_none());
        let slices = watcher.slices.lock();
        let error = slices.service(&web()).unwrap().error.clone();
        assert!(error.unwrap().contains("more than 2000 slices"));
        assert!(slices.slices_of(&web()).is_none(), "it is listed again");
    }

    #[test]
    fn pauses_grow_and_have_bounds() {
        let mut pace = Pace::default();
        let pauses: Vec<_> = { 0..12 }
            .map(|_| pace.pause_after_failure(None, 1.0).as_millis())
            .collect();
        assert_eq!(pauses[..4], [500, 1000, 2000, 4000]);
        assert_eq!(pauses[11], 30_000);
        let asked = Some(Duration::from_secs(60));
        let pause = pace.pause_after_failure(asked, 0.5);
        assert_eq!(pause, Duration::from_secs(66));
        let asked = Some(Duration::from_secs(1_000_000));
        assert!(pace.pause_after_failure(asked, 0.0) <= LONGEST_ASKED);
        // A watch that ends at once, again and again, is no busy loop.
        let mut pace = Pace::default();
        let short = Duration::from_millis(1);
        let pauses: Vec<_> = { 0..8 }
            .map(|_| pace.pause_after_watch(short, 0.0).as_millis())
            .collect();
        assert_eq!((pauses[0], pauses[7]), (250, 15_000));
        assert!(pace.pause_after_watch(Duration::from_secs(300), 1.0) <= Duration::from_secs(1));
        assert_eq!(pace.pause_after_failure(None, 0.0).as_millis(), 250);
    }

    proptest! {
        /// However an API server fails for ten minutes, it gets a question each five seconds at most, after the first few.
        #[test]
        fn ten_minutes_without_a_server_are_few_questions(
            questions in proptest::collection::vec((0..4u8, 0u64..8_000, 0..3u64, 0f32..1.0), 2_000..2_001),
            fails_always in any::<bool>(),
        ) {
            let (mut pace, mut at, mut asked) = (Pace::default(), Duration::ZERO, 0);
            for (end, millis, wanted, random) in questions {
                if at >= Duration::from_secs(600) {
                    break;
                }
                asked += 1;
                let lasted = Duration::from_millis(if fails_always { 0 } else { millis });
                let pause = match end {
                    0 if !fails_always => pace.pause_after_watch(lasted, random),
                    1 => {
                        pace.note_stable(lasted);
                        pace.pause_after_failure(None, random)
                    }
                    2 => pace.pause_after_failure(Some(Duration::from_secs(wanted)), random),
                    _ => pace.pause_after_failure(None, random),
                };
                at += lasted + pause;
            }
            let most = if fails_always { 47 } else { 128 };
            prop_assert!(at >= Duration::from_secs(600) && asked <= most, "{asked} in {at:?}");
        }

        #[test]
        fn any_bytes_are_taken(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..10)) {
            let mut watcher = listed();
            for part in parts {
                let mut fault = None;
                watcher.take_bytes(&part, &mut fault);
                prop_assert!(watcher.line.len() <= MAX_EVENT);
            }
            watcher.next_question();
        }
    }
}

//! Keeper of the last good copy: writes what is in effect to a file, and reads the file at a start while the API server is
//! away.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::{CopyContents, Kubernetes};
use evenkeel_manager::exposition::{Exposition, Type};
use evenkeel_manager::lists::found::FoundMember;
use evenkeel_manager::{Generated, Manager};
use evenkeel_tls::certificate::unix_now;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::access::Access;
use crate::copy::{Copy, GatewaysCopy, checksum_of};
use crate::gateway::conditions::format_time;

/// Shortest time between two copies.
const PAUSE: Duration = Duration::from_secs(5);

/// Time after which a copy that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Time for which a start waits for the API server, and a reload for members of new services.
pub(crate) const WAIT: Duration = Duration::from_secs(5);

/// Name of the file in the folder for the state of the service.
const NAME: &str = "kubernetes.copy";

/// File of the copy, and what it is to have, as a configuration says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CopyTarget {
    path: PathBuf,
    contents: CopyContents,
    /// Address of the API server.
    server: String,
    /// Checksum of the authorities of the API server's certificate; `None` if the system's authorities are trusted.
    authorities: Option<String>,
    /// Settings of the controller on which the text of gateways depends; `None` without a controller.
    gateways: Option<String>,
}

impl CopyTarget {
    /// Returns the target of a section; `None` if there is no place for a file.
    pub(crate) fn of_section(settings: &Kubernetes, access: &Access) -> Option<Self> {
        let in_state_folder = || {
            // systemd.exec(5): a list with colons.
            let folders = std::env::var_os("STATE_DIRECTORY")?;
            let folder = std::env::split_paths(&folders).find(|path| path.is_absolute())?;
            Some(folder.join(NAME))
        };
        let path = settings.copy_file.clone().or_else(in_state_folder)?;
        let gateways = settings.gateway.as_ref().map(|gateway| {
            let ingress = gateway.ingress.as_ref();
            let ingress =
                ingress.map(|of| json!([of.controller, of.class, of.http_port, of.https_port]));
            json!({
                "controller": gateway.controller,
                "class": gateway.class,
                "listen": gateway.listen,
                "pool": gateway.pool,
                "ingress": ingress,
            })
            .to_string()
        });
        let server = &access.server;
        // An error is told where a connection needs the file.
        let authorities = access.authorities.read().ok().flatten();
        Some(CopyTarget {
            path,
            contents: settings.copy_contents,
            authorities: authorities.map(|text| checksum_of(&text)),
            server: format!("{}{}", server.authority(), server.prefix),
            gateways,
        })
    }
}

impl CopyTarget {
    /// Returns the reason why a copy may be of another cluster, although the API server has the same address: clusters often
    /// have the same addresses inside.
    fn find_doubt(&self, copy: &Copy<'_>) -> Option<&'static str> {
        let known = self.authorities.as_deref().zip(copy.authorities.as_deref());
        let differs = known.is_some_and(|(now, before)| now != before);
        differs.then_some(
            "the API server's authorities were others: the copy may be of another cluster, or the authorities were renewed",
        )
    }
}

/// Source of the gateways that are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GatewaySource {
    /// Neither the API server nor the copy has told of gateways.
    #[default]
    Unknown,
    /// The copy of this time has told of gateways.
    Copy(i64),
    /// The API server has told of gateways.
    Server,
}

impl GatewaySource {
    fn time_of_copy(self) -> Option<i64> {
        match self {
            GatewaySource::Copy(at) => Some(at),
            GatewaySource::Unknown | GatewaySource::Server => None,
        }
    }
}

/// Number of seconds of a day.
const DAY: i64 = 86_400;

/// Writes the time of a copy for people, with its age if that is a day or more.
pub(crate) fn format_age(at: i64, now: i64) -> String {
    let time = format_time(at);
    match now.saturating_sub(at) / DAY {
        days if days < 1 => time,
        1 => format!("{time} (1 day ago)"),
        days => format!("{time} ({days} days ago)"),
    }
}

fn show_refusal(refusal: Option<&str>) -> Option<String> {
    refusal.map(|reason| format!("the last good copy is not used: {reason}"))
}

/// Last good copy. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastCopy {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Target of the configuration in effect.
    target: Option<CopyTarget>,
    /// Copy that was read for a target; `None` if the file has no copy that can be used.
    read: Option<(CopyTarget, Option<Arc<Copy<'static>>>)>,
    /// Reason why the copy is not used; `None` if it is, or if there is none.
    refusal: Option<String>,
    /// Reason why the gateways of the copy are not used.
    gateways_refusal: Option<String>,
    /// Reason why the copy may be of another cluster.
    doubt: Option<&'static str>,
    /// True once the process has started: then nothing comes from the copy any more.
    has_started: bool,
    /// True once a part of the start has waited in vain.
    has_waited: bool,
    /// Lists whose members come from the copy, with the time of the copy.
    lists: HashMap<String, i64>,
    gateways: GatewaySource,
    /// True once the API server has told of members or gateways.
    has_answer: bool,
    /// Error of the last copy that could not be written.
    told: Option<String>,
    writes: u64,
    failures: u64,
}

/// State of a balancer that a copy has.
struct Contents {
    target: CopyTarget,
    zone: Option<String>,
    members: Arc<HashMap<String, Arc<Vec<FoundMember>>>>,
    /// Lists whose members come from the copy before, with their times.
    earlier: BTreeMap<String, i64>,
    generated: Option<Generated>,
    /// Time of the copy before from which the gateways come.
    gateways_earlier: Option<i64>,
}

impl Contents {
    /// True if a copy of these contents is one of the others, too.
    fn is_same(&self, other: &Contents) -> bool {
        let generated = match (&self.generated, &other.generated) {
            (Some(one), Some(other)) => {
                one.text.is_same(&other.text) && Arc::ptr_eq(&one.files, &other.files)
            }
            (None, None) => true,
            _ => false,
        };
        generated
            && self.target == other.target
            && self.zone == other.zone
            && (&self.earlier, self.gateways_earlier) == (&other.earlier, other.gateways_earlier)
            && Arc::ptr_eq(&self.members, &other.members)
    }

    /// Writes the file.
    fn save(&self) -> io::Result<()> {
        let target = &self.target;
        let generated = self.generated.as_ref().zip(target.gateways.as_deref());
        let gateways = generated.map(|(generated, settings)| {
            let with_keys = target.contents == CopyContents::All;
            let text = generated.text.join_pieces();
            let mut copy = GatewaysCopy::new(settings, text, &generated.files, with_keys);
            copy.earlier = self.gateways_earlier;
            copy
        });
        let members = self.members.iter();
        let members = members.map(|(list, of)| {
            let members = Cow::Borrowed(of.as_slice());
            (Cow::Borrowed(list.as_str()), members)
        });
        let copy = Copy {
            at: unix_now(),
            server: Cow::Borrowed(&target.server),
            authorities: target.authorities.as_deref().map(Cow::Borrowed),
            zone: self.zone.as_deref().map(Cow::Borrowed),
            earlier: { self.earlier.iter() }
                .map(|(list, at)| (Cow::Borrowed(list.as_str()), *at))
                .collect(),
            members: members.collect::<BTreeMap<_, _>>(),
            gateways,
        };
        copy.save(&target.path)
    }
}

/// Removes a file, if it is there.
fn remove_copy(path: &Path) -> io::Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl LastCopy {
    /// Follows the target of the configuration in effect.
    pub(crate) fn follow(&self, target: Option<CopyTarget>) {
        self.inner.state.lock().target = target;
        self.inner.changed.notify_one();
    }

    /// Returns the copy for a target, while the process starts; `None` if there is no copy that can be used.
    pub(crate) async fn load(&self, target: &CopyTarget) -> Option<Arc<Copy<'static>>> {
        {
            let state = self.inner.state.lock();
            if state.has_started || target.contents == CopyContents::Nothing {
                return None;
            }
            if let Some((_, copy)) = state.read.as_ref().filter(|(of, _)| of == target) {
                return copy.clone();
            }
        }
        let CopyTarget { path, server, .. } = target.clone();
        let read = spawn_blocking(move || Copy::load(&path, &server)).await;
        let (copy, refusal) = match read {
            Ok(Ok(copy)) => (copy.map(Arc::new), None),
            Ok(Err(error)) => {
                warn!(
                    "kubernetes.copy_file: the last good copy in {} is not used: {error}",
                    target.path.display()
                );
                (None, Some(error.to_string()))
            }
            // It does not panic; if it did, there would be no copy.
            Err(_) => (None, None),
        };
        let doubt = copy.as_ref().and_then(|copy| target.find_doubt(copy));
        if let Some(doubt) = doubt {
            warn!(
                "kubernetes.copy_file: the last good copy in {} is used, but {doubt}",
                target.path.display()
            );
        }
        let mut state = self.inner.state.lock();
        (state.refusal, state.doubt) = (refusal, doubt);
        state.read = Some((target.clone(), copy.clone()));
        copy
    }

    /// Returns the copy for the configuration in effect, while the process starts.
    pub(crate) async fn load_for_effect(&self) -> Option<Arc<Copy<'static>>> {
        let target = self.inner.state.lock().target.clone()?;
        self.load(&target).await
    }

    /// Returns the gateways of the copy for the configuration in effect, while the process starts.
    pub(crate) async fn load_gateways(&self) -> Option<Arc<Copy<'static>>> {
        let target = self.inner.state.lock().target.clone()?;
        let copy = self.load(&target).await?;
        let gateways = copy.gateways.as_ref()?;
        if Some(&*gateways.settings) != target.gateways.as_deref() {
            let reason = "the settings in [kubernetes.gateway] were others";
            warn!(
                "kubernetes.copy_file: the gateways of the last good copy in {} are not used: {reason}",
                target.path.display()
            );
            self.inner.state.lock().gateways_refusal = Some(reason.into());
            return None;
        }
        Some(copy)
    }

    /// Tells in the log that a part of the balancer comes from the copy.
    pub(crate) fn log_use(&self, what: &str, at: i64) {
        let state = self.inner.state.lock();
        let path = state.read.as_ref().map(|(target, _)| target.path.display());
        if let Some(path) = path {
            warn!(
                "kubernetes: no good answer of the API server: {what} of {}, from the last good copy in {path}",
                format_age(at, unix_now())
            );
        }
    }

    /// Notes that the members of a list come from the copy of a time.
    pub(crate) fn note_copied_list(&self, list: &str, at: i64) {
        self.inner.state.lock().lists.insert(list.to_owned(), at);
    }

    /// Notes that the API server has told of the members of a list.
    pub(crate) fn note_list(&self, list: &str) {
        let mut state = self.inner.state.lock();
        let was_copied = state.lists.remove(list).is_some();
        if !std::mem::replace(&mut state.has_answer, true) || was_copied {
            self.inner.changed.notify_one();
        }
    }

    /// Forgets lists that nobody wants any more.
    pub(crate) fn retain_lists(&self, wanted: &HashSet<String>) {
        let mut state = self.inner.state.lock();
        state.lists.retain(|list, _| wanted.contains(list));
    }

    /// Returns the time of the copy from which the members of a list come; `None` if the API server has told of them.
    pub(crate) fn time_of_list(&self, list: &str) -> Option<i64> {
        self.inner.state.lock().lists.get(list).copied()
    }

    /// Returns what people are to know of the members of a list because of the copy: why it is not used for a list without
    /// members, and why its members may be wrong.
    pub(crate) fn explain_list(&self, list: &str, has_members: bool) -> Option<String> {
        let state = self.inner.state.lock();
        if has_members {
            let doubt = state.doubt.filter(|_| state.lists.contains_key(list));
            return doubt.map(Into::into);
        }
        show_refusal(state.refusal.as_deref().filter(|_| !state.has_answer))
    }

    /// Returns what people are to know of the gateways because of the copy: why it is not used while the API server has not
    /// told of any, and why they may be wrong.
    pub(crate) fn explain_gateways(&self) -> Option<String> {
        let state = self.inner.state.lock();
        match state.gateways {
            GatewaySource::Copy(_) => state.doubt.map(Into::into),
            GatewaySource::Unknown => {
                let refusal = state.refusal.as_ref().or(state.gateways_refusal.as_ref());
                show_refusal(refusal.map(String::as_str))
            }
            GatewaySource::Server => None,
        }
    }

    /// Waits for an answer of the API server. All parts of a start share one wait: once a part has waited in vain, the others
    /// do without an answer at once. `None` stands for no answer.
    pub(crate) async fn wait_for_answer<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let limit = {
            let state = self.inner.state.lock();
            match state.has_waited && !state.has_started {
                true => Duration::ZERO,
                false => WAIT,
            }
        };
        let answer = timeout(limit, answer).await.ok();
        if answer.is_none() {
            self.inner.state.lock().has_waited = true;
        }
        answer
    }

    /// Notes that the gateways of the copy of a time are served.
    pub(crate) fn note_copied_gateways(&self, at: i64) {
        self.inner.state.lock().gateways = GatewaySource::Copy(at);
    }

    /// Notes that the gateways of the API server are served.
    pub(crate) fn note_gateways(&self) {
        let mut state = self.inner.state.lock();
        state.has_answer = true;
        if std::mem::replace(&mut state.gateways, GatewaySource::Server) != GatewaySource::Server {
            self.inner.changed.notify_one();
        }
    }

    /// Returns the time of the copy from which the gateways come; `None` if they do not come from a copy.
    pub(crate) fn time_of_gateways(&self) -> Option<i64> {
        self.inner.state.lock().gateways.time_of_copy()
    }

    /// Returns the contents of the next copy; `None` while the API server has told of nothing yet.
    fn collect_contents(&self, manager: &Manager) -> Option<Contents> {
        let state = self.inner.state.lock();
        let target = state.target.clone()?;
        let knows_gateways = target.gateways.is_none() || state.gateways != GatewaySource::Unknown;
        if !state.has_answer || !knows_gateways {
            return None;
        }
        let earlier = state.lists.iter().map(|(list, at)| (list.clone(), *at));
        let earlier = earlier.collect();
        let gateways_earlier = state.gateways.time_of_copy();
        drop(state);
        Some(Contents {
            earlier,
            gateways_earlier,
            zone: manager.found_zone(),
            members: manager.found_members(),
            generated: manager.generated().filter(|_| target.gateways.is_some()),
            target,
        })
    }

    /// Keeps the file up to date for as long as the process runs.
    pub(crate) async fn keep(self, manager: Arc<Manager>) {
        {
            let mut state = self.inner.state.lock();
            (state.has_started, state.read) = (true, None);
        }
        let (mut changes, mut snapshots) = (manager.subscribe_changes(), manager.snapshots());
        let mut written: Option<Contents> = None;
        loop {
            self.remove_unwanted().await;
            let contents = self.collect_contents(&manager);
            let contents = contents.filter(|of| of.target.contents != CopyContents::Nothing);
            let is_same = |next: &Contents| written.as_ref().is_some_and(|of| of.is_same(next));
            let mut has_failed = false;
            if let Some(next) = contents.filter(|next| !is_same(next)) {
                written = self.write(next).await;
                has_failed = written.is_none();
                sleep(if has_failed { RETRY } else { PAUSE }).await;
            }
            if has_failed {
                continue;
            }
            // The manager outlives this task.
            tokio::select! {
                _ = changes.changed() => {}
                _ = snapshots.changed() => {}
                () = self.inner.changed.notified() => {}
            }
        }
    }

    /// Writes a copy. Returns its contents, if that went well.
    async fn write(&self, contents: Contents) -> Option<Contents> {
        let path = contents.target.path.clone();
        let saved = spawn_blocking(move || contents.save().map(|()| contents)).await;
        let saved = saved.map_err(io::Error::other).and_then(|saved| saved);
        let mut state = self.inner.state.lock();
        match saved {
            Ok(contents) => {
                state.writes += 1;
                state.told = None;
                Some(contents)
            }
            Err(error) => {
                state.failures += 1;
                let error = Some(error.to_string());
                if state.told != error {
                    warn!(
                        "kubernetes.copy_file: the last good copy cannot be written to {}, so that a restart needs the API \
                         server: {}",
                        path.display(),
                        error.as_deref().unwrap_or_default()
                    );
                    state.told = error;
                }
                None
            }
        }
    }

    /// Removes the file of a configuration that wants no copy: the file may have private keys.
    async fn remove_unwanted(&self) {
        let path = {
            let state = self.inner.state.lock();
            let target = state.target.as_ref();
            let unwanted = target.filter(|of| of.contents == CopyContents::Nothing);
            unwanted.map(|target| target.path.clone())
        };
        let Some(path) = path else {
            return;
        };
        let removed = {
            let path = path.clone();
            spawn_blocking(move || remove_copy(&path)).await
        };
        match removed {
            Ok(Ok(true)) => info!(
                "kubernetes: the last good copy in {} is removed",
                path.display()
            ),
            Ok(Err(error)) => warn!(
                "kubernetes.copy_file: the last good copy in {} cannot be removed: {error}",
                path.display()
            ),
            Ok(Ok(false)) | Err(_) => {}
        }
    }

    /// Writes the metrics of the copy.
    pub(crate) fn metrics(&self, out: &mut Exposition) {
        let state = self.inner.state.lock();
        let has_target = state.target.is_some();
        let members = state.lists.values().min().copied();
        let gateways = state.gateways.time_of_copy();
        out.begin_family(
            "evenkeel_kubernetes_copy_timestamp_seconds",
            Type::Gauge,
            "Time of the last good copy from which the part comes, in seconds since 1970; 0 if the part comes from the API server.",
        );
        for (part, at) in [("members", members), ("gateways", gateways)] {
            if has_target {
                out.add_sample(&[("part", part)], at.unwrap_or_default() as f64);
            }
        }
        for (name, help, count) in [
            (
                "evenkeel_kubernetes_copy_writes_total",
                "Copies of members and gateways that were written to the file.",
                state.writes,
            ),
            (
                "evenkeel_kubernetes_copy_failures_total",
                "Copies of members and gateways that could not be written.",
                state.failures,
            ),
        ] {
            out.begin_family(name, Type::Counter, help);
            if has_target {
                out.add_sample(&[], count as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_parts_of_a_start_share_one_wait() {
        let copy = LastCopy::default();
        let begin = Instant::now();
        assert_eq!(copy.wait_for_answer(ready(1)).await, Some(1));
        assert_eq!(copy.wait_for_answer(sleep(WAIT / 2)).await, Some(()));
        // A server that answers slowly has the whole time for the next question.
        assert_eq!(begin.elapsed(), WAIT / 2);
        for _ in 0..3 {
            assert_eq!(copy.wait_for_answer(pending::<()>()).await, None);
            assert_eq!(begin.elapsed(), WAIT / 2 + WAIT);
        }
        assert_eq!(copy.wait_for_answer(ready(2)).await, Some(2));
        // Reloads wait, too.
        copy.inner.state.lock().has_started = true;
        assert_eq!(copy.wait_for_answer(pending::<()>()).await, None);
        assert_eq!(begin.elapsed(), WAIT / 2 + WAIT * 2);
    }

    #[test]
    fn old_copies_show_their_age() {
        for (now, wanted) in [
            (-5, "1970-01-01T00:00:00Z"),
            (DAY - 1, "1970-01-01T00:00:00Z"),
            (DAY, "1970-01-01T00:00:00Z (1 day ago)"),
            (20 * DAY + 7, "1970-01-01T00:00:00Z (20 days ago)"),
        ] {
            assert_eq!(format_age(0, now), wanted);
        }
    }

    fn target(path: PathBuf, authorities: Option<&str>) -> CopyTarget {
        CopyTarget {
            path,
            contents: CopyContents::All,
            server: "10.96.0.1:443".into(),
            authorities: authorities.map(str::to_owned),
            gateways: None,
        }
    }

    #[tokio::test]
    async fn a_copy_that_may_be_of_another_cluster_is_told() {
        let folder =
            std::env::temp_dir().join(format!("evenkeel-last-copy-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(NAME);
        let contents = Contents {
            target: target(path.clone(), Some("one")),
            zone: None,
            members: Arc::new(HashMap::from([("a/b:80".to_owned(), Arc::default())])),
            earlier: BTreeMap::from([("a/b:80".to_owned(), 7)]),
            generated: None,
            gateways_earlier: None,
        };
        contents.save().unwrap();
        for (authorities, is_doubtful) in [(Some("one"), false), (None, false), (Some("two"), true)]
        {
            let copy = LastCopy::default();
            let loaded = copy.load(&target(path.clone(), authorities)).await.unwrap();
            assert_eq!(loaded.time_of_list("a/b:80"), 7);
            assert_eq!(loaded.time_of_list("a/c:80"), loaded.at);
            copy.note_copied_list("a/b:80", 7);
            let told = copy.explain_list("a/b:80", true);
            assert_eq!(told.is_some(), is_doubtful, "{told:?}");
            assert_eq!(copy.explain_list("a/b:80", false), None);
        }
        // One of another server is not used, and the status says why.
        let copy = LastCopy::default();
        let other = CopyTarget {
            server: "10.96.0.2:443".into(),
            ..target(path, None)
        };
        assert!(copy.load(&other).await.is_none());
        for told in [copy.explain_list("a/b:80", false), copy.explain_gateways()] {
            assert!(told.unwrap().contains("10.96.0.1:443"));
        }
        copy.note_list("a/b:80");
        assert_eq!(copy.explain_list("a/c:80", false), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

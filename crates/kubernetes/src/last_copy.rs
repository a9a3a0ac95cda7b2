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
use tokio::time::sleep;
use tracing::{info, warn};

use crate::access::Server;
use crate::copy::{Copy, GatewaysCopy};
use crate::gateway::conditions::format_time;

/// Shortest time between two copies.
const PAUSE: Duration = Duration::from_secs(5);

/// Time after which a copy that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Name of the file in the folder for the state of the service.
const NAME: &str = "kubernetes.copy";

/// File of the copy, and what it is to have, as a configuration says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CopyTarget {
    path: PathBuf,
    contents: CopyContents,
    /// Address of the API server.
    server: String,
    /// Settings of the controller on which the text of gateways depends; `None` without a controller.
    gateways: Option<String>,
}

impl CopyTarget {
    /// Returns the target of a section; `None` if there is no place for a file.
    pub(crate) fn of_section(settings: &Kubernetes, server: &Server) -> Option<Self> {
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
        Some(CopyTarget {
            path,
            contents: settings.copy_contents,
            server: format!("{}{}", server.authority(), server.prefix),
            gateways,
        })
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
    /// True once the process has started: then nothing comes from the copy any more.
    has_started: bool,
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
    generated: Option<Generated>,
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
            && Arc::ptr_eq(&self.members, &other.members)
    }

    /// Writes the file.
    fn save(&self) -> io::Result<()> {
        let target = &self.target;
        let generated = self.generated.as_ref().zip(target.gateways.as_deref());
        let gateways = generated.map(|(generated, settings)| {
            let with_keys = target.contents == CopyContents::All;
            GatewaysCopy::new(
                settings,
                generated.text.join_pieces(),
                &generated.files,
                with_keys,
            )
        });
        let members = self.members.iter();
        let members = members.map(|(list, of)| {
            let members = Cow::Borrowed(of.as_slice());
            (Cow::Borrowed(list.as_str()), members)
        });
        let copy = Copy {
            at: unix_now(),
            server: Cow::Borrowed(&target.server),
            zone: self.zone.as_deref().map(Cow::Borrowed),
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
        let copy = match read {
            Ok(Ok(copy)) => copy.map(Arc::new),
            Ok(Err(error)) => {
                warn!(
                    "kubernetes.copy_file: the last good copy in {} is not used: {error}",
                    target.path.display()
                );
                None
            }
            // It does not panic; if it did, there would be no copy.
            Err(_) => None,
        };
        self.inner.state.lock().read = Some((target.clone(), copy.clone()));
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
            warn!(
                "kubernetes.copy_file: the gateways of the last good copy in {} are not used: the settings in \
                 [kubernetes.gateway] were others",
                target.path.display()
            );
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
                format_time(at)
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
        state.lists.remove(list);
        if !std::mem::replace(&mut state.has_answer, true) {
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
        match self.inner.state.lock().gateways {
            GatewaySource::Copy(at) => Some(at),
            GatewaySource::Unknown | GatewaySource::Server => None,
        }
    }

    /// Returns the contents of the next copy; `None` while the API server has told of nothing yet.
    fn collect_contents(&self, manager: &Manager) -> Option<Contents> {
        let target = {
            let state = self.inner.state.lock();
            let target = state.target.clone()?;
            let knows_gateways =
                target.gateways.is_none() || state.gateways != GatewaySource::Unknown;
            (state.has_answer && knows_gateways).then_some(target)?
        };
        Some(Contents {
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
        let gateways = match state.gateways {
            GatewaySource::Copy(at) => Some(at),
            _ => None,
        };
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

//! Rules and groups that a controller has generated, beside those of the file.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use tracing::warn;

use super::{AppliedConfig, Generated, Manager, ReloadError};
use crate::config::kept::{self, MemoryFiles};
use crate::config::{self, Config};
use crate::handover::Handover;

/// Part of a [`Handover`].
const GENERATED: &str = "generated";

/// The form of the part: the text, and pairs of a path and its content in base64.
const GENERATED_VERSION: u32 = 1;

/// Contents of files for a [`Handover`].
fn encode_files(files: &MemoryFiles) -> BTreeMap<String, String> {
    let encode = |(path, content): (&std::path::PathBuf, &Arc<[u8]>)| {
        (path.display().to_string(), BASE64.encode(content))
    };
    files.iter().map(encode).collect()
}

impl Manager {
    /// Returns the rules and groups that a controller has generated, if they are in effect.
    pub fn generated(&self) -> Option<Generated> {
        let owned = self.lock();
        let (generated, _) = owned.generated.as_ref()?;
        Some(generated.clone())
    }

    /// Puts generated rules and groups in place of those before, beside the rules and groups of the file. `config` is what
    /// the parser has made of the text of `generated`.
    ///
    /// # Errors
    ///
    /// Reason why all is as it was.
    pub async fn apply_generated(
        &self,
        generated: Generated,
        config: Arc<Config>,
    ) -> Result<AppliedConfig, ReloadError> {
        let _one_at_a_time = self.reloading.lock().await;
        let own = Arc::clone(&self.lock().state.inputs.own);
        let before = kept::memory_files();
        let reads_files = before != generated.files;
        let mut both = MemoryFiles::clone(&before);
        both.extend(generated.files.iter().map(|(k, v)| (k.clone(), v.clone())));
        kept::set_memory_files(Arc::new(both));
        let result = { self.replace_with(own, Some(Arc::clone(&config)), reads_files) }.await;
        match &result {
            Ok(_) => {
                kept::set_memory_files(Arc::clone(&generated.files));
                self.lock().generated = Some((generated, config));
            }
            Err(_) => kept::set_memory_files(before),
        }
        Ok(result?)
    }

    /// Tells a process that takes the place of this one of generated rules and groups.
    pub(super) fn hand_over_generated(&self, to: &mut Handover) {
        if let Some(generated) = self.generated() {
            let files = encode_files(&generated.files);
            to.give(GENERATED, GENERATED_VERSION, &(&*generated.text, files));
        }
    }

    /// Goes on with the generated rules and groups of the process before.
    pub(super) fn take_over_generated(&self, from: &Handover) {
        let told: Option<(String, BTreeMap<String, String>)> =
            from.take(GENERATED, GENERATED_VERSION);
        let Some((text, files)) = told else {
            return;
        };
        let files = files
            .into_iter()
            .filter_map(|(path, content)| Some((path.into(), BASE64.decode(content).ok()?.into())));
        match config::parse_generated(&text) {
            Ok(config) => {
                let generated = Generated {
                    text: text.into(),
                    files: Arc::new(files.collect()),
                };
                kept::set_memory_files(Arc::clone(&generated.files));
                self.lock().generated = Some((generated, Arc::new(config)));
            }
            Err(error) => warn!(
                "upgrade: the old process's gateways cannot be read here, so they are served only once the API server has answered: {error}"
            ),
        }
    }

    /// Forgets generated rules and groups that cannot be put into effect. Returns true if there were such.
    pub(super) fn forget_generated(&self) -> bool {
        let forgotten = self.lock().generated.take().is_some();
        if forgotten {
            kept::set_memory_files(Arc::default());
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use evenkeel_net::Clock;

    use super::*;
    use crate::handover::Handover;
    use crate::snapshot::Snapshot;
    use crate::subsystem::{Commit, PrepareError, PrepareErrors, Subsystem};

    const OWN: &str =
        "[rule.own]\nlisten = \"127.0.0.1:1\"\nmembers = [\"127.0.0.1:2\"]\n[kubernetes.gateway]\n";

    fn generated(port: u16) -> Generated {
        let text = format!(
            "[rule.\"kubernetes.80\"]\nlisten = \"127.0.0.1:{port}\"\nmembers = [\"127.0.0.1:3\"]\n"
        );
        Generated {
            text: text.into(),
            files: Arc::default(),
        }
    }

    async fn apply(manager: &Manager, generated: Generated) -> Result<AppliedConfig, ReloadError> {
        let config = config::parse_generated(&generated.text).unwrap();
        manager.apply_generated(generated, Arc::new(config)).await
    }

    fn rules(manager: &Manager) -> Vec<String> {
        let snapshot: Arc<Snapshot> = Arc::clone(&manager.snapshots().borrow());
        let rules = snapshot.rules.iter();
        rules.map(|rule| rule.rule.name.clone()).collect()
    }

    #[tokio::test]
    async fn generated_rules_stay_over_reloads_and_upgrades() {
        let manager = Manager::new(Clock::start(), Arc::new(()));
        let own = config::parse("x", OWN).unwrap();
        manager.start(own.clone(), OWN.into()).await.unwrap();
        apply(&manager, generated(80)).await.unwrap();
        assert_eq!(rules(&manager), ["own", "kubernetes.80"]);
        // A reload has the file's own rules in view.
        let other = config::parse("x", &OWN.replace("rule.own", "rule.other")).unwrap();
        manager.apply_config(other).await.unwrap();
        assert_eq!(rules(&manager), ["other", "kubernetes.80"]);
        assert!(manager.loses_all_rules(&Config::default()));
        apply(&manager, generated(81)).await.unwrap();
        assert_eq!(rules(&manager), ["other", "kubernetes.80"]);
        assert_eq!(manager.generated(), Some(generated(81)));
        // A rule of the file has the name.
        let wrong = Generated {
            text: generated(82).text.replace("kubernetes.80", "other").into(),
            ..Generated::default()
        };
        assert!(apply(&manager, wrong).await.is_err());
        assert_eq!(manager.generated(), Some(generated(81)));

        let mut told = Handover::default();
        manager.hand_over(&mut told);
        let next = Manager::new(Clock::start(), Arc::new(()));
        next.take_over(&told, std::path::Path::new("x"));
        next.start(own.clone(), OWN.into()).await.unwrap();
        assert_eq!(rules(&next), ["own", "kubernetes.80"]);
        // Without a controller in the file they are gone.
        let without = config::parse("x", &OWN.replace("[kubernetes.gateway]\n", "")).unwrap();
        next.apply_config(without).await.unwrap();
        assert_eq!(rules(&next), ["own"]);
    }

    /// A subsystem that refuses configurations once it is told to.
    #[derive(Debug, Default)]
    struct Refusing(AtomicBool);

    impl Subsystem for Refusing {
        fn prepare(&self, _: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
            match self.0.load(Ordering::Relaxed) {
                true => Err(vec![PrepareError::other(std::io::Error::other("no"))]),
                false => Ok(Box::new(|| ())),
            }
        }
    }

    #[tokio::test]
    async fn a_change_beside_groups_leaves_them_where_they_are() {
        let refusing = Arc::new(Refusing::default());
        let manager = Manager::new(Clock::start(), Arc::clone(&refusing) as Arc<dyn Subsystem>);
        let own = config::parse("x", OWN).unwrap();
        manager.start(own, OWN.into()).await.unwrap();
        let first = config::parse_generated(&generated(80).text).unwrap();
        let apply = async |config: &Config, port| {
            let config = Arc::new(config.clone());
            manager.apply_generated(generated(port), config).await
        };
        let is_enabled = || {
            let snapshot: Arc<Snapshot> = Arc::clone(&manager.snapshots().borrow());
            snapshot.rules.last().map(|rule| rule.rule.enabled)
        };
        apply(&first, 80).await.unwrap();
        let built = || manager.lock().state.built;
        let (groups, count) = (manager.handles(), built());
        let mut changes = manager.subscribe_changes();
        changes.mark_unchanged();
        let mut second = first.clone();
        second.rules[0].enabled = false;
        apply(&second, 81).await.unwrap();
        assert_eq!((is_enabled(), built()), (Some(false), count));
        // There are no other members, names or locations.
        assert!(!changes.has_changed().unwrap());
        let shared = manager.shared_config();
        assert!(shared.groups.last().unwrap().is_same(&first.groups[0]));
        // What a subsystem refuses leaves everything as it was.
        refusing.0.store(true, Ordering::Relaxed);
        apply(&first, 82).await.unwrap_err();
        assert_eq!((is_enabled(), built()), (Some(false), count));
        assert!(Arc::ptr_eq(&shared, &manager.shared_config()));
        assert_eq!(manager.generated(), Some(generated(81)));
        refusing.0.store(false, Ordering::Relaxed);
        // A group that has changed is made anew, and so is one that comes again.
        let mut third = second.clone();
        third.groups[0].max_queue += 1;
        apply(&third, 83).await.unwrap();
        assert_eq!(built(), count + 1);
        assert!(changes.has_changed().unwrap());
        let none = Config::default();
        apply(&none, 84).await.unwrap();
        assert_eq!(manager.handles().len(), 1);
        apply(&first, 85).await.unwrap();
        assert!(is_enabled() == Some(true) && built() > count + 1);
        let now = manager.handles();
        assert!(Arc::ptr_eq(&now[0], &groups[0]) && !Arc::ptr_eq(&now[1], &groups[1]));
    }

    #[tokio::test]
    async fn a_file_without_rules_loses_none_that_are_generated() {
        let text = "[kubernetes.gateway]\n";
        let manager = Manager::new(Clock::start(), Arc::new(()));
        let own = config::parse("x", text).unwrap();
        manager.start(own.clone(), text.into()).await.unwrap();
        apply(&manager, generated(80)).await.unwrap();
        assert!(!manager.loses_all_rules(&own));
    }
}

//! Gateways of the last good copy, which a process serves that starts while the API server is away.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_config::kept::{MEMORY_FOLDER, MemoryFiles};
use evenkeel_config::{Config, parse_generated};
use evenkeel_manager::subsystem::{ApplyError, PrepareError};
use evenkeel_manager::{Generated, Manager, ReloadError};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::copy::{Copy, GatewaysCopy};
use crate::last_copy::LastCopy;

/// Most tries to put the copy into effect: each leaves out rules that were refused before.
const TRIES: usize = 16;

/// Puts the gateways of the copy into effect, if there is one. Returns false if there is none that can be used.
pub(super) async fn serve_copy(last_copy: &LastCopy, manager: &Manager) -> bool {
    let Some(copy) = last_copy.load_gateways().await else {
        return false;
    };
    match apply(Arc::clone(&copy), manager).await {
        Ok(()) => {
            let at = copy.time_of_gateways();
            last_copy.note_copied_gateways(at);
            last_copy.log_use("gateways and routes are served as they were, those", at);
            true
        }
        Err(error) => {
            warn!("gateways: the last good copy cannot be put into effect: {error}");
            false
        }
    }
}

/// Reads the text of a copy. Rules whose certificates have no keys in the copy are left out.
///
/// # Errors
///
/// This version cannot read the text.
fn read_config(copy: &GatewaysCopy<'_>, files: &MemoryFiles) -> Result<Config, String> {
    let mut config = parse_generated(&copy.text).map_err(|errors| errors.to_string())?;
    let is_missing = |path: &PathBuf| path.starts_with(MEMORY_FOLDER) && !files.contains_key(path);
    config.rules.retain(|rule| {
        let mut files = rule.tls.iter().flat_map(|tls| tls.files());
        let is_complete = !files.any(is_missing);
        if !is_complete {
            info!(
                "gateways: rule {} is left out until the API server answers: the last good copy has no private keys",
                rule.name
            );
        }
        is_complete
    });
    for group in &mut config.groups {
        let lacks_key = |of: &evenkeel_config::ClientTls| of.files().any(is_missing);
        if group.member_tls.as_ref().is_some_and(lacks_key)
            && let Some(tls) = &mut group.member_tls
        {
            // Members that ask for the certificate refuse the balancer.
            (tls.certificate, tls.key) = (None, None);
        }
    }
    Ok(config)
}

/// Puts the gateways of a copy into effect. Rules that are refused, such as those at a port of another program, are left
/// out until the API server answers.
async fn apply(copy: Arc<Copy<'static>>, manager: &Manager) -> Result<(), String> {
    // A long text takes a while, and others wait for this thread.
    let read = spawn_blocking(move || {
        let copy = copy.gateways.as_ref().ok_or("no gateways")?;
        let files = copy.read_files();
        let config = read_config(copy, &files)?;
        let generated = Generated {
            text: copy.text.clone().into(),
            files: Arc::new(files),
        };
        Ok::<_, String>((generated, config))
    });
    let (generated, mut config) = read.await.map_err(|error| error.to_string())??;
    for _ in 0..TRIES {
        let applied = manager
            .apply_generated(generated.clone(), Arc::new(config.clone()))
            .await;
        let Err(error) = applied else {
            return Ok(());
        };
        let refused = list_refused(&error);
        let before = config.rules.len();
        config.rules.retain(|rule| !refused.contains(&*rule.name));
        if config.rules.len() == before {
            return Err(error.to_string());
        }
        warn!("gateways: rules of the last good copy are left out: {error}");
    }
    Err("rules are refused again and again".into())
}

/// Returns the rules that an error is about.
fn list_refused(error: &ReloadError) -> HashSet<&str> {
    let errors = match error {
        ReloadError::Apply(ApplyError(errors)) => errors.as_slice(),
        _ => &[],
    };
    let rules = errors.iter().filter_map(|error| match error {
        PrepareError::Rule { rule, .. } => Some(rule.as_str()),
        _ => None,
    });
    rules.collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use evenkeel_manager::snapshot::Snapshot;
    use evenkeel_manager::subsystem::{Commit, PrepareErrors, Subsystem};
    use evenkeel_net::Clock;

    use super::*;

    const TEXT: &str = r#"[rule."kubernetes.80"]
listen = "127.0.0.1:1"
group = "kubernetes.a"
[rule."kubernetes.443"]
listen = "127.0.0.1:2"
group = "kubernetes.a"
tls.certificates = [{ certificate = "/proc/evenkeel/a/tls.crt", key = "/proc/evenkeel/a/tls.key" }]
[group."kubernetes.a"]
members = ["10.0.0.1:1"]
member_tls = { certificate = "/proc/evenkeel/b/tls.crt", key = "/proc/evenkeel/b/tls.key" }
"#;

    fn files() -> MemoryFiles {
        let content = |name: &str| match name.ends_with("key") {
            true => "-----BEGIN PRIVATE KEY-----",
            false => "certificate",
        };
        let names = ["a/tls.crt", "a/tls.key", "b/tls.crt", "b/tls.key"];
        let files = names.iter().map(|name| {
            let path = Path::new(MEMORY_FOLDER).join(name);
            (path, Arc::from(content(name).as_bytes()))
        });
        files.collect()
    }

    /// Data plane that cannot serve a rule, because another program has the port.
    struct Refusing(&'static str);

    impl Subsystem for Refusing {
        fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
            match next.rules.iter().any(|rule| *rule.rule.name == *self.0) {
                true => Err(vec![PrepareError::rule(
                    self.0,
                    std::io::Error::other("address in use"),
                )]),
                false => Ok(Box::new(|| ())),
            }
        }
    }

    #[tokio::test]
    async fn rules_that_are_refused_are_left_out() {
        let text = "[kubernetes.gateway]\n";
        let rules = "[rule.\"kubernetes.80\"]\nlisten = \"127.0.0.1:1\"\nmembers = [\"10.0.0.1:1\"]\n\
                     [rule.\"kubernetes.81\"]\nlisten = \"127.0.0.1:2\"\nmembers = [\"10.0.0.1:1\"]\n";
        let start = async |refused| {
            let manager = Manager::new(Clock::start(), Arc::new(Refusing(refused)));
            let config = evenkeel_config::parse("x", text).unwrap();
            manager.start(config, text.to_owned()).await.unwrap();
            let gateways = GatewaysCopy::new("", rules.to_owned(), &MemoryFiles::new(), true);
            let copy = Copy {
                gateways: Some(gateways),
                ..Copy::default()
            };
            apply(Arc::new(copy), &manager).await.unwrap();
            let config = manager.shared_config();
            let names = config.rules.iter().map(|rule| rule.name.clone());
            names.collect::<Vec<_>>()
        };
        assert_eq!(start("none").await, ["kubernetes.80", "kubernetes.81"]);
        assert_eq!(start("kubernetes.80").await, ["kubernetes.81"]);
    }

    #[test]
    fn rules_without_keys_are_left_out_and_members_are_shown_no_certificate() {
        for (with_keys, rules) in [
            (true, &["kubernetes.80", "kubernetes.443"][..]),
            (false, &["kubernetes.80"]),
        ] {
            let copy = GatewaysCopy::new("", TEXT.to_owned(), &files(), with_keys);
            let config = read_config(&copy, &copy.read_files()).unwrap();
            let names: Vec<&str> = config.rules.iter().map(|rule| &*rule.name).collect();
            assert_eq!(names, rules);
            let tls = config.groups[0].member_tls.as_ref().unwrap();
            assert_eq!(
                (tls.certificate.is_some(), tls.key.is_some()),
                (with_keys, with_keys)
            );
        }
    }
}

//! Surroundings of the process, which say how to reach the API server: a service account, or a kubeconfig file.

use std::path::{Path, PathBuf};

use evenkeel_config::{Kubernetes, Problem};

use crate::access::{Access, Data, MAX_FILE, Server};
use crate::kubeconfig::parse_kubeconfig;

/// Folder with the service account of a pod.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Surroundings of the process that say where the API server is.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Variable `KUBERNETES_SERVICE_HOST`.
    pub service_host: Option<String>,
    /// Variable `KUBERNETES_SERVICE_PORT`.
    pub service_port: Option<String>,
    /// Variable `KUBECONFIG`.
    pub kubeconfig: Option<String>,
    /// Variable `HOME`.
    pub home: Option<String>,
    /// Folder of the service account.
    pub service_account: PathBuf,
    /// Variable `KUBERNETES_NODE_NAME`: the node of the pod.
    pub node: Option<String>,
}

impl Environment {
    /// Returns the surroundings of this process.
    pub fn of_process() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        Environment {
            service_host: variable("KUBERNETES_SERVICE_HOST"),
            service_port: variable("KUBERNETES_SERVICE_PORT"),
            kubeconfig: variable("KUBECONFIG"),
            home: variable("HOME"),
            service_account: SERVICE_ACCOUNT.into(),
            node: variable("KUBERNETES_NODE_NAME"),
        }
    }

    /// Returns the kubeconfig file that is used by default.
    fn default_kubeconfig(&self) -> Option<PathBuf> {
        let listed = self.kubeconfig.iter().flat_map(|list| list.split(':'));
        let first = listed.map(PathBuf::from).find(|path| path.is_absolute());
        let at_home = || Some(Path::new(self.home.as_ref()?).join(".kube/config"));
        first.or_else(at_home)
    }

    fn is_in_cluster(&self) -> bool {
        self.service_host.is_some() && self.service_account.join("token").exists()
    }

    /// Returns the access that the configuration describes, in these surroundings.
    ///
    /// # Errors
    ///
    /// There is no way to an API server, or the kubeconfig file is wrong: with file and line.
    pub fn find_access(&self, settings: &Kubernetes) -> Result<Access, Box<Problem>> {
        let named = settings.kubeconfig.as_ref();
        let context = settings.context.as_deref();
        if named.is_none() && context.is_none() && self.is_in_cluster() {
            return self.account_access().ok_or_else(|| {
                let message = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not host and port of an API server";
                settings_problem(message.into())
            });
        }
        let path = named.map(|file| file.path.clone());
        let Some(path) = path.or_else(|| self.default_kubeconfig()) else {
            let message = "kubernetes: there is no API server to ask: this process runs in no pod with a service account, and \
                           there is no kubeconfig file; name one with `kubeconfig` in [kubernetes]";
            return Err(settings_problem(message.into()));
        };
        let shown = path.display();
        let at_key = |message: String| match named {
            Some(file) => Box::new(file.place.problem(message)),
            None => settings_problem(format!("kubernetes: {message}")),
        };
        let text = evenkeel_config::read_file(&path, MAX_FILE).map_err(|error| {
            at_key(format!("{shown} {error}; run in a pod with a service account, or name a kubeconfig file with `kubeconfig` in [kubernetes]"))
        })?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        parse_kubeconfig(&text, folder, context)
            .map_err(|error| at_key(format!("{shown}:{}: {}", error.line, error.message)))
    }

    fn account_access(&self) -> Option<Access> {
        let host = self.service_host.clone()?;
        let host = host.trim_matches(['[', ']']);
        let port = self.service_port.as_deref().unwrap_or("443");
        let file = |name: &str| Data::File(self.service_account.join(name));
        let is_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        is_host.then_some(())?;
        Some(Access {
            server: Server {
                has_tls: true,
                host: host.into(),
                port: port.parse().ok()?,
                prefix: String::new(),
            },
            authorities: file("ca.crt"),
            server_name: None,
            verify: true,
            certificate: None,
            token: file("token"),
        })
    }
}

/// Returns a problem of which the file says nothing.
fn settings_problem(message: String) -> Box<Problem> {
    let nowhere = evenkeel_config::FileName::default().place;
    Box::new(nowhere.problem(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("evenkeel-kubernetes-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.0.join(name), text).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_service_account_comes_first_and_its_token_is_read_again() {
        let folder = Folder::new("account");
        let around = Environment {
            service_host: Some("fd00::1".into()),
            service_port: Some("443".into()),
            kubeconfig: Some("/nowhere/config".into()),
            service_account: folder.0.clone(),
            ..Environment::default()
        };
        let settings = Kubernetes::default();
        let error = around.find_access(&settings).unwrap_err().message;
        assert!(error.contains("/nowhere/config"), "{error}");
        folder.write("token", "one\n");
        let mut access = around.find_access(&settings).unwrap();
        assert_eq!(access.server.authority(), "[fd00::1]:443");
        assert_eq!(access.files().count(), 2);
        let error = access.read_credentials(None).unwrap_err();
        assert!(error.contains("ca.crt"), "{error}");
        access.server.has_tls = false;
        let token = |access: &Access| access.read_credentials(None).map(|of| of.authorization);
        assert_eq!(token(&access).unwrap().as_deref(), Some("Bearer one"));
        folder.write("token", "two");
        assert_eq!(token(&access).unwrap().as_deref(), Some("Bearer two"));
        folder.write("token", "a\nb");
        assert!(token(&access).is_err());
        // A context is of a kubeconfig file.
        let settings = Kubernetes {
            context: Some("x".into()),
            ..Kubernetes::default()
        };
        assert!(around.find_access(&settings).is_err());
    }

    #[test]
    fn errors_of_kubeconfig_files_have_file_and_line() {
        let folder = Folder::new("config");
        folder.write("config", "a: [\n");
        let text = format!(
            "[kubernetes]\nkubeconfig = \"{}\"\n",
            folder.0.join("config").display()
        );
        let config = evenkeel_config::parse("f.toml", &text).unwrap();
        let settings = config.kubernetes.unwrap();
        let around = Environment::default();
        let error = around.find_access(&settings).unwrap_err().to_string();
        assert!(
            error.contains("f.toml:2:") && error.contains("config:"),
            "{error}"
        );
        let none = around.find_access(&Kubernetes::default()).unwrap_err();
        assert!(none.to_string().contains("no API server to ask"), "{none}");
    }
}

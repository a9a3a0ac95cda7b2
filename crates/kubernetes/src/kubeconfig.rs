//! Kubeconfig files: the server and the credentials of a context.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::access::{Access, Data, Server};
use crate::yaml::{Content, Value, YamlError, parse_document};

/// Reads the text of a kubeconfig file in `folder`, of which `context` is used, or else the current context.
///
/// # Errors
///
/// The first thing that is wrong, with its line.
pub fn parse_kubeconfig(
    text: &str,
    folder: &Path,
    context: Option<&str>,
) -> Result<Access, YamlError> {
    let file = parse_document(text)?;
    let context = match (context, file.get_text("current-context")?) {
        (Some(context), _) | (None, Some(context)) => context,
        (None, None) => {
            let message = "there is no current-context: set one, or `context` in [kubernetes]";
            return Err(YamlError::new(1, message));
        }
    };
    let context = find_named(&file, "contexts", "context", context)?;
    let required = |key: &str| {
        let text = context.get_text(key)?;
        text.ok_or_else(|| YamlError::new(context.line, format!("the context has no {key}")))
    };
    let cluster = find_named(&file, "clusters", "cluster", required("cluster")?)?;
    let user = match context.get_text("user")? {
        Some(user) => Some(find_named(&file, "users", "user", user)?),
        None => None,
    };
    let mut access = read_cluster(cluster, folder)?;
    if let Some(user) = user {
        read_user(user, folder, &mut access)?;
    }
    let has_secret = access.token != Data::None || access.certificate.is_some();
    if !access.server.has_tls && has_secret && !access.server.is_local() {
        let message = "the server has no TLS (http://), and everybody on the way could read the credentials: use https://";
        return Err(YamlError::new(cluster.line, message));
    }
    Ok(access)
}

/// Returns the value of the key `one` in the element called `name` of the list `list`.
fn find_named<'a>(
    file: &'a Value,
    list: &str,
    one: &str,
    name: &str,
) -> Result<&'a Value, YamlError> {
    let elements = match file.get(list).map(|value| &value.content) {
        Some(Content::List(elements)) => &elements[..],
        _ => &[],
    };
    let mut found = elements
        .iter()
        .filter(|element| matches!(element.get_text("name"), Ok(Some(of)) if of == name));
    let Some(element) = found.next() else {
        let line = file.get(list).map_or(1, |value| value.line);
        let message = format!("there is no {one} called {name:?} in {list}");
        return Err(YamlError::new(line, message));
    };
    element.get(one).ok_or_else(|| {
        YamlError::new(
            element.line,
            format!("the {one} called {name:?} has no content"),
        )
    })
}

fn read_cluster(cluster: &Value, folder: &Path) -> Result<Access, YamlError> {
    let here = |message: &str| YamlError::new(cluster.line, message);
    if let Some(proxy) = cluster.get("proxy-url") {
        let message = "proxy-url is not supported: the balancer needs a direct way to the server";
        return Err(YamlError::new(proxy.line, message));
    }
    let server = cluster.get_text("server")?;
    let server = server.ok_or_else(|| here("the cluster has no server"))?;
    let server = Server::from_url(server)
        .ok_or_else(|| here("the server is not a URL such as https://10.0.0.1:6443"))?;
    let verify = match cluster.get_text("insecure-skip-tls-verify")? {
        None | Some("false") => true,
        Some("true") => false,
        Some(_) => return Err(here("insecure-skip-tls-verify is not true or false")),
    };
    Ok(Access {
        server,
        authorities: read_data(cluster, "certificate-authority", folder)?,
        server_name: cluster.get_text("tls-server-name")?.map(str::to_owned),
        verify,
        certificate: None,
        token: Data::None,
    })
}

fn read_user(user: &Value, folder: &Path, access: &mut Access) -> Result<(), YamlError> {
    for (key, why) in [
        (
            "exec",
            "exec plugins are not supported: the balancer runs no programs",
        ),
        ("auth-provider", "auth-provider is not supported"),
        ("username", "user names with passwords are not supported"),
        ("as", "impersonation is not supported"),
    ] {
        if let Some(value) = user.get(key) {
            let message = format!(
                "{why}; make a service account for the balancer, and use its token (see docs/kubernetes.md)"
            );
            return Err(YamlError::new(value.line, message));
        }
    }
    let certificate = read_data(user, "client-certificate", folder)?;
    let key = read_data(user, "client-key", folder)?;
    access.certificate = match (certificate, key) {
        (Data::None, Data::None) => None,
        (Data::None, _) | (_, Data::None) => {
            let message = "client-certificate and client-key are needed together";
            return Err(YamlError::new(user.line, message));
        }
        both => Some(both),
    };
    access.token = match (user.get_text("tokenFile")?, user.get_text("token")?) {
        (Some(file), _) => Data::File(folder.join(file)),
        (None, Some(token)) => Data::Inline(token.as_bytes().to_vec()),
        (None, None) => Data::None,
    };
    Ok(())
}

/// Returns the data of a key: `KEY-data` in base64, or else the file that `KEY` names.
fn read_data(table: &Value, key: &str, folder: &Path) -> Result<Data, YamlError> {
    let data_key = format!("{key}-data");
    if let Some(text) = table.get_text(&data_key)? {
        let text: String = text.split_ascii_whitespace().collect();
        let decoded = STANDARD.decode(text);
        let line = table.get(&data_key).map_or(table.line, |value| value.line);
        let decoded =
            decoded.map_err(|_| YamlError::new(line, format!("{data_key} is not base64")));
        return decoded.map(Data::Inline);
    }
    let file = table.get_text(key)?.map(PathBuf::from);
    Ok(file.map_or(Data::None, |file| Data::File(folder.join(file))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "apiVersion: v1
kind: Config
current-context: one
contexts:
- name: one
  context: {cluster: c, user: u}
- name: two
  context: {cluster: c, user: v}
clusters:
- name: c
  cluster:
    server: https://10.0.0.1:6443/prefix/
    certificate-authority-data: Y2E=
users:
- name: u
  user:
    token: secret
- name: v
  user:
    client-certificate: own.pem
    client-key: /keys/own.key
";

    fn parse(text: &str, context: Option<&str>) -> Result<Access, YamlError> {
        parse_kubeconfig(text, Path::new("/home/x/.kube"), context)
    }

    #[test]
    fn the_context_says_who_asks_whom() {
        let access = parse(FILE, None).unwrap();
        assert_eq!(access.server.authority(), "10.0.0.1:6443");
        assert_eq!(access.server.prefix, "/prefix");
        assert_eq!(access.authorities, Data::Inline(b"ca".to_vec()));
        assert_eq!(access.token, Data::Inline(b"secret".to_vec()));
        let access = parse(FILE, Some("two")).unwrap();
        assert_eq!(access.token, Data::None);
        assert_eq!(
            access.certificate,
            Some((
                Data::File("/home/x/.kube/own.pem".into()),
                Data::File("/keys/own.key".into())
            ))
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let with = |from: &str, to: &str| FILE.replace(from, to);
        for (text, line, wanted) in [
            (with("current-context: one\n", ""), 1, "no current-context"),
            (
                with("current-context: one", "current-context: x"),
                5,
                "no context called \"x\"",
            ),
            (
                with("name: c\n", "name: d\n"),
                10,
                "no cluster called \"c\"",
            ),
            (
                with("    server: https://10.0.0.1:6443/prefix/\n", ""),
                12,
                "has no server",
            ),
            (with("https://10", "ftp://10"), 12, "not a URL"),
            (
                with("https://10", "http://10"),
                12,
                "could read the credentials",
            ),
            (with("Y2E=", "??"), 13, "is not base64"),
            (
                with("    token: secret", "    exec:\n      command: aws"),
                18,
                "exec plugins are not supported",
            ),
            (
                with("    token: secret", "    username: x\n    password: y"),
                17,
                "passwords are not supported",
            ),
            (
                with("    server:", "    proxy-url: http://p\n    server:"),
                12,
                "proxy-url",
            ),
            (
                with("    token: secret", "    client-key: x"),
                17,
                "needed together",
            ),
        ] {
            let error = parse(&text, None).unwrap_err();
            assert!(error.message.contains(wanted), "{error}");
            assert_eq!(error.line, line, "{error}");
        }
    }
}

//! Access to an API server: where it is, and the credentials for it, which may change while the balancer runs.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_config::Origin;
use evenkeel_tls::client::{Client, ClientPem};

/// Longest file of credentials, in bytes.
pub(crate) const MAX_FILE: u64 = 1 << 20;

/// Address of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// True for `https`.
    pub has_tls: bool,
    /// Name, or IP address without brackets.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Path before those of the API, without a slash at its end.
    pub prefix: String,
}

/// Something of a kubeconfig file, or of the service account.
#[derive(Clone, PartialEq, Eq)]
pub enum Data {
    /// No content.
    None,
    /// Content of the kubeconfig file itself.
    Inline(Vec<u8>),
    /// Content of another file, which is read again for each connection.
    File(PathBuf),
}

/// Shows no secret.
impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Data::None => f.write_str("None"),
            Data::Inline(_) => f.write_str("Inline"),
            Data::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Access to an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The server.
    pub server: Server,
    /// Certificates of the authorities that the server's certificate may come from; none: those that the system trusts.
    pub authorities: Data,
    /// Name in the server's certificate, unless that is its host.
    pub server_name: Option<String>,
    /// Verification of the server's certificate.
    pub verify: bool,
    /// Certificate of the client, and its key.
    pub certificate: Option<(Data, Data)>,
    /// Token of the client.
    pub token: Data,
}

/// Credentials as they are at the moment.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Client of TLS; `None` without TLS.
    pub tls: Option<Arc<Client>>,
    /// Value of the field `Authorization`, if there is one.
    pub authorization: Option<String>,
}

impl Server {
    /// Reads the URL of a server.
    pub fn from_url(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let origin: Origin = format!("{scheme}://{authority}").parse().ok()?;
        let prefix = path.trim_end_matches('/');
        let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~:%".contains(&byte);
        prefix.bytes().all(is_path).then(|| Server {
            has_tls: origin.is_secure(),
            host: origin.host().into(),
            port: origin.port(),
            prefix: prefix.into(),
        })
    }

    /// Returns host and port as in a URL.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// True if the server is on this machine.
    pub fn is_local(&self) -> bool {
        let ip: Option<IpAddr> = self.host.parse().ok();
        ip.is_some_and(|ip| ip.is_loopback()) || self.host == "localhost"
    }
}

impl Data {
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>, String> {
        match self {
            Data::None => Ok(None),
            Data::Inline(bytes) => Ok(Some(bytes.clone())),
            Data::File(path) => {
                let text = evenkeel_config::read_file(path, MAX_FILE);
                let text = text.map_err(|error| format!("{} {error}", path.display()))?;
                Ok(Some(text.into_bytes()))
            }
        }
    }

    fn file(&self) -> Option<&Path> {
        match self {
            Data::File(path) => Some(path),
            _ => None,
        }
    }
}

impl Access {
    /// Returns the files with credentials.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let of_client = self
            .certificate
            .iter()
            .flat_map(|(chain, key)| [chain, key]);
        let all = [&self.authorities, &self.token]
            .into_iter()
            .chain(of_client);
        all.filter_map(Data::file)
    }

    /// Reads the credentials as they are now. `before` are those of the last time, whose client of TLS is used again if
    /// its files are the same.
    ///
    /// # Errors
    ///
    /// The first file that is wrong.
    pub fn read_credentials(&self, before: Option<&Credentials>) -> Result<Credentials, String> {
        let token = self.token.read()?;
        let token = token.map(|bytes| {
            let text = String::from_utf8(bytes).unwrap_or_default();
            let text = text.trim().to_owned();
            let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
            is_token
                .then(|| format!("Bearer {text}"))
                .ok_or("the token is not a line of visible ASCII characters")
        });
        let authorization = token.transpose()?;
        if !self.server.has_tls {
            return Ok(Credentials {
                tls: None,
                authorization,
            });
        }
        let authorities = self.authorities.read()?;
        let certificate = match &self.certificate {
            Some((chain, key)) => chain.read()?.zip(key.read()?),
            None => None,
        };
        let pem = ClientPem {
            authorities: authorities.as_deref(),
            certificate: certificate.as_ref().map(|(chain, key)| (&**chain, &**key)),
            server_name: self.server_name.as_deref(),
            verify: self.verify,
        };
        let client = Arc::new(Client::from_pem(&pem)?);
        let known = before.and_then(|before| before.tls.clone());
        let tls = known.filter(|known| known.is_like(&client));
        Ok(Credentials {
            tls: Some(tls.unwrap_or(client)),
            authorization,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_servers() {
        let server = Server::from_url("https://[fd00::1]:6443/k8s/clusters/c-1/").unwrap();
        assert_eq!(server.authority(), "[fd00::1]:6443");
        assert_eq!(
            (&*server.host, &*server.prefix),
            ("fd00::1", "/k8s/clusters/c-1")
        );
        let server = Server::from_url("https://api.example").unwrap();
        assert_eq!((server.port, server.has_tls), (443, true));
        for bad in [
            "api.example",
            "ftp://a",
            "https://",
            "https://a b",
            "https://a/\r\n",
            "https://a/?x",
        ] {
            assert_eq!(Server::from_url(bad), None, "{bad}");
        }
    }
}

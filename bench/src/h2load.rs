//! Load over HTTP/2, by nghttp2's `h2load`.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Kind of call to send.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// GET /.
    Get,
    /// A unary call of gRPC with a message of eight bytes.
    Grpc,
}

/// Results of a run.
pub struct Outcome {
    /// Requests per second.
    pub rate: f64,
    /// CPU time that the meter has seen pass, connections included.
    pub cpu: Duration,
}

/// OpenSSL's defaults for `h2load`: the same for all proxies.
const OPENSSL: &str = "openssl_conf = all
[all]
ssl_conf = ssl
[ssl]
system_default = system
[system]
MinProtocol = TLSv1.3
Ciphersuites = TLS_AES_128_GCM_SHA256
Groups = X25519
";

/// A message of gRPC: not compressed, eight bytes.
const MESSAGE: &[u8] = b"\0\0\0\0\x08whatever";

/// Has `requests` answered over TLS. `folder` is for its files.
///
/// # Errors
///
/// Returns an error if `h2load` is not installed, or a request is not answered with 200.
pub fn run(
    target: SocketAddr,
    call: Call,
    requests: usize,
    (connections, streams): (usize, usize),
    folder: &Path,
    cpu_meter: &mut dyn FnMut() -> io::Result<Duration>,
) -> io::Result<Outcome> {
    let (settings, message) = (folder.join("openssl.cnf"), folder.join("message"));
    fs::write(&settings, OPENSSL)?;
    fs::write(&message, MESSAGE)?;
    let mut command = Command::new("h2load");
    command.env("OPENSSL_CONF", settings).stdin(Stdio::null());
    for (option, number) in [("-n", requests), ("-c", connections), ("-m", streams)] {
        command.arg(option).arg(number.to_string());
    }
    match call {
        Call::Get => command.arg(format!("https://{target}/")),
        Call::Grpc => command
            .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
            .arg("-d")
            .arg(message)
            .arg(format!("https://{target}/bench.Bench/Unary")),
    };
    let before = cpu_meter()?;
    let output = command
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("h2load: {error}")))?;
    let cpu = cpu_meter()?.saturating_sub(before);
    let said = String::from_utf8_lossy(&output.stdout);
    let rate = rate(&said, requests).ok_or_else(|| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        io::Error::other(format!("h2load: {said}{complaint}"))
    })?;
    Ok(Outcome { rate, cpu })
}

/// Requests per second, if all were answered with 2xx, in HTTP/2.
fn rate(said: &str, requests: usize) -> Option<f64> {
    let good = [
        "Application protocol: h2\n".into(),
        format!("{requests} succeeded, 0 failed, 0 errored"),
        format!("status codes: {requests} 2xx"),
    ];
    let finished = said
        .lines()
        .find_map(|line| line.strip_prefix("finished in "));
    let rate = finished?.split(", ").nth(1)?.strip_suffix(" req/s")?;
    let is_good = good.iter().all(|text: &String| said.contains(text));
    is_good.then_some(rate.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_without_a_failure_has_a_rate() {
        let good = "Application protocol: h2\n\nfinished in 245.47ms, 20368.88 req/s, 1.32MB/s\n\
            requests: 5000 total, 5000 started, 5000 done, 5000 succeeded, 0 failed, 0 errored, \
            0 timeout\nstatus codes: 5000 2xx, 0 3xx, 0 4xx, 0 5xx\n";
        assert_eq!(rate(good, 5000), Some(20_368.88));
        assert_eq!(rate(good, 6000), None);
        assert_eq!(rate(&good.replace("0 failed", "1 failed"), 5000), None);
        assert_eq!(rate(&good.replace(" h2\n", " http/1.1\n"), 5000), None);
    }
}

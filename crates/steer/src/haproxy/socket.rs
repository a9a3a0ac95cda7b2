//! A conversation with HAProxy: a connection, a line with commands, an answer up to its end.

use std::io;
use std::time::Duration;

use evenkeel_config::SteerHaproxy;
use evenkeel_net::stream::connect_unix;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::answers::{Unreadable, printable_text};
use super::plan::Order;

/// Longest answer to a question, in bytes: that of 100,000 servers.
pub(super) const MOST: usize = 32 << 20;

/// Most commands in a line, and most bytes: HAProxy's buffer has 16 KiB.
const BATCH: (usize, usize) = (64, 8 << 10);

/// Longest answer to commands that change something, which say nothing if all is well.
const MOST_OF_CHANGES: usize = 64 << 10;

/// Reason why HAProxy was not told.
#[derive(Debug, thiserror::Error)]
pub enum HaproxyError {
    /// HAProxy cannot be reached.
    #[error("cannot connect to {at}: {error}{}", hint(error))]
    Connect {
        /// The socket.
        at: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The connection failed.
    #[error("the connection to {at} broke: {error}")]
    Broken {
        /// The socket.
        at: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The answer took too long.
    #[error("no answer of {at} within {limit:?}")]
    Slow {
        /// The socket.
        at: String,
        /// The time limit.
        limit: Duration,
    },
    /// The answer is too long.
    #[error("the answer of {at} is longer than {most} bytes")]
    TooLong {
        /// The socket.
        at: String,
        /// The limit.
        most: usize,
    },
    /// The answer cannot be understood.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// HAProxy does not take changes.
    #[error(
        "HAProxy refuses changes at {at} ({said}): `stats socket` in its configuration needs `level admin`"
    )]
    Denied {
        /// The socket.
        at: String,
        /// Answer of HAProxy.
        said: String,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; does HAProxy run, and is this the path of its `stats socket`?"
        }
        io::ErrorKind::ConnectionRefused => "; does HAProxy run?",
        io::ErrorKind::PermissionDenied => {
            "; `stats socket` needs `mode 660` and a `group` that this process is in"
        }
        _ => "",
    }
}

/// Sends a line, and answers what comes until the end.
pub(super) async fn send_line(
    haproxy: &SteerHaproxy,
    line: &str,
    most: usize,
) -> Result<String, HaproxyError> {
    let limit = haproxy.timeout;
    let at = || haproxy.socket_address();
    match timeout(limit, conversation(haproxy, line, most)).await {
        Ok(answer) => answer,
        Err(_) => Err(HaproxyError::Slow { at: at(), limit }),
    }
}

async fn conversation(
    haproxy: &SteerHaproxy,
    line: &str,
    most: usize,
) -> Result<String, HaproxyError> {
    let at = || haproxy.socket_address();
    let connected = match haproxy.unix() {
        Some(path) => connect_unix(path),
        None => {
            let socket = &haproxy.socket;
            TcpStream::connect((socket.host.as_str(), socket.port)).await
        }
    };
    let stream = connected.map_err(|error| HaproxyError::Connect { at: at(), error })?;
    let broken = |error| HaproxyError::Broken { at: at(), error };
    let mut stream = stream;
    stream
        .write_all(format!("{line}\n").as_bytes())
        .await
        .map_err(broken)?;
    let mut answer = Vec::new();
    // A byte more says that there is more.
    let mut bounded = stream.take(most as u64 + 1);
    bounded.read_to_end(&mut answer).await.map_err(broken)?;
    if answer.len() > most {
        return Err(HaproxyError::TooLong { at: at(), most });
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Order that HAProxy did not carry out, with its answer.
pub(super) struct Refusal {
    pub(super) order: Order,
    pub(super) said: String,
}

/// Sends orders; answers which were not carried out.
///
/// Several go in one line. If HAProxy says anything to that, it does not say to which: then each is
/// sent by itself, which does no harm to those that were carried out. `before` comes before those that
/// go alone from the start.
pub(super) async fn send_orders(
    haproxy: &SteerHaproxy,
    orders: &[Order],
    before: &str,
) -> Result<Vec<Refusal>, HaproxyError> {
    let mut refused = Vec::new();
    for batch in batches(orders) {
        let texts: Vec<String> = batch.iter().map(Order::to_string).collect();
        let is_repeatable = batch.iter().all(Order::is_repeatable);
        if is_repeatable {
            let said = send_line(haproxy, &texts.join("; "), MOST_OF_CHANGES).await?;
            if said.trim().is_empty() {
                continue;
            }
        }
        for (order, text) in batch.iter().zip(&texts) {
            let before = if is_repeatable { "" } else { before };
            let said = send_line(haproxy, &format!("{before}{text}"), MOST_OF_CHANGES).await?;
            if order.is_success(&said) {
                continue;
            }
            let said = printable_text(&said);
            if said.to_ascii_lowercase().contains("permission denied") {
                return Err(HaproxyError::Denied {
                    at: haproxy.socket_address(),
                    said,
                });
            }
            let order = order.clone();
            refused.push(Refusal { order, said });
        }
    }
    Ok(refused)
}

/// Orders in groups that fit into a line; those that must not be repeated go alone.
fn batches(orders: &[Order]) -> Vec<&[Order]> {
    let (most, bytes) = BATCH;
    let mut batches = Vec::new();
    let mut rest = orders;
    while !rest.is_empty() {
        let mut length = 0;
        let fits = rest.iter().take(most).take_while(|order| {
            length += order.to_string().len() + 2;
            length <= bytes && order.is_repeatable()
        });
        let count = fits.count().max(1);
        let (batch, after) = rest.split_at(count);
        batches.push(batch);
        rest = after;
    }
    batches
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::super::plan::Set;
    use super::*;

    /// Starts a program at a Unix socket that answers each line, or, with `None`, never.
    fn somebody(
        name: &str,
        answer: impl Fn(&str) -> Option<String> + Send + 'static,
    ) -> SteerHaproxy {
        let path = format!("@evenkeel-steer-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&path[1..]).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                match answer(line.trim_end()) {
                    // Whoever asked may have had enough.
                    Some(answer) => drop(stream.write_all(answer.as_bytes())),
                    None => silent.push(stream),
                }
            }
        });
        let text = format!(
            "[group.g]\nmembers = [\"a:1\"]\n[steer.s]\ngroup = \"g\"\n\
             haproxy = {{ socket = \"unix:{path}\", timeout = \"20s\" }}\n"
        );
        let config = evenkeel_config::parse("test.toml", &text).unwrap();
        config.steer[0].haproxy.clone().unwrap()
    }

    #[tokio::test]
    async fn a_conversation_ends_whatever_the_other_side_does() {
        let mut silent = somebody("silent", |_| None);
        silent.timeout = Duration::from_millis(20);
        let error = send_line(&silent, "show info", 100).await.unwrap_err();
        assert!(matches!(error, HaproxyError::Slow { .. }), "{error}");
        let endless = somebody("endless", |_| Some("x".repeat(10_000_000)));
        let error = send_line(&endless, "show info", 1000).await.unwrap_err();
        assert!(matches!(error, HaproxyError::TooLong { .. }), "{error}");
        let plain = somebody("plain", |line| Some(format!("{line}!")));
        assert_eq!(
            send_line(&plain, "show info", 10).await.unwrap(),
            "show info!"
        );
        let mut nobody = plain.clone();
        nobody.socket.host = "unix:/nowhere/at/all".into();
        let error = send_line(&nobody, "show info", 10).await.unwrap_err();
        assert!(error.to_string().contains("does HAProxy run"), "{error}");
    }

    #[tokio::test]
    async fn each_order_gets_its_own_answer() {
        let haproxy = somebody("orders", |line| {
            let bad = line.split("; ").filter(|order| order.contains("/bad "));
            Some(match bad.count() {
                0 => "\n".into(),
                count => "No such server.\n\n".repeat(count),
            })
        });
        let order = |name: &str| Order {
            backend: "web".into(),
            server: name.into(),
            set: Set::Weight(1),
        };
        let orders = [order("a"), order("bad"), order("b")];
        let refused = send_orders(&haproxy, &orders, "").await.unwrap();
        let [Refusal { order: one, said }] = &refused[..] else {
            panic!("{} are refused", refused.len());
        };
        assert_eq!((one, &**said), (&orders[1], "No such server."));
        let denied = somebody("denied", |_| Some("Permission denied\n\n".into()));
        let error = send_orders(&denied, &orders, "").await.err().unwrap();
        assert!(error.to_string().contains("level admin"), "{error}");
    }

    #[test]
    fn lines_fit_into_the_buffer_of_haproxy() {
        let order = |length: usize| Order {
            backend: "web".into(),
            server: "s".repeat(length),
            set: Set::Weight(256),
        };
        let orders: Vec<Order> = (0..1000).map(|index| order(1 + index % 256)).collect();
        let batches = batches(&orders);
        assert!(batches.len() > 1000 / 64);
        for batch in &batches {
            let texts: Vec<_> = batch.iter().map(Order::to_string).collect();
            assert!(texts.join("; ").len() <= 8 << 10 && batch.len() <= 64);
        }
        assert_eq!(batches.concat(), orders);
        let long = [order(9000)];
        assert_eq!(super::batches(&long).len(), 1);
        let add = Order {
            set: Set::Added(([127, 0, 0, 1], 80).into(), String::new()),
            ..order(1)
        };
        let mixed = [order(1), order(1), add.clone(), add, order(1)];
        let batches = super::batches(&mixed);
        let sizes: Vec<_> = batches.iter().map(|batch| batch.len()).collect();
        assert_eq!(sizes, [2, 1, 1, 1]);
    }
}

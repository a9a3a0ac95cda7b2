//! `evenkeel kernel query`: asks a responder as the balancer does, and shows the record.

use std::io::{self, Write};
use std::time::Duration;

use evenkeel_kernel::keys;
use evenkeel_monitor::ask::{Asker, Options, resolve};
use evenkeel_net::key_file;

use crate::cli::kernel::Query;
use crate::failure::Failure;

/// Asks, and prints what comes.
pub(super) fn query(args: &Query) -> Result<(), Failure> {
    let keys = key_file::load_parsed(&args.key_file, keys::parse).map_err(Failure::of)?;
    let key = keys.into_iter().next();
    let options = Options {
        // There is at least one.
        key: key.ok_or_else(|| Failure::new("the key file has no key"))?,
        host: args.host.clone(),
        target: args.target,
        cpus: args.cpus,
        ports: args.ports,
        timeout: Duration::from_millis(args.timeout),
    };
    let to = resolve(&args.address).map_err(Failure::of)?;
    let mut asker = Asker::new(to, options).map_err(Failure::of)?;
    // Rates need something to compare with.
    let mut before = asker.ask_record().map_err(Failure::of)?.before();
    for _ in 0..args.count {
        std::thread::sleep(Duration::from_millis(args.interval));
        let reading = asker.ask_record().map_err(Failure::of)?;
        let loads = reading.loads_since(&before);
        let text = if args.json {
            format!("{}\n", reading.json(&loads))
        } else {
            reading.text(to, &loads)
        };
        if let Err(error) = io::stdout().lock().write_all(text.as_bytes()) {
            // Whoever reads it has seen enough.
            return match error.kind() {
                io::ErrorKind::BrokenPipe => Ok(()),
                _ => Err(Failure::new(format!("cannot print: {error}"))),
            };
        }
        before = reading.before();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;
    use std::thread;

    use evenkeel_kernel::serve::{self, Server};

    use super::*;

    const SECRET: &str = "000102030405060708090a0b0c0d0e0f";

    /// A responder of this machine, until the test is over.
    fn backend() -> String {
        let server = Server::start(serve::Options {
            interval: Duration::from_secs(1),
            respond: "127.0.0.1:0".parse().ok(),
            keys: keys::parse(SECRET).unwrap(),
            allow: vec!["127.0.0.0/8".parse().unwrap()],
            hosts: vec!["127.0.0.1".into()],
            ..serve::Options::default()
        });
        let server = server.unwrap();
        let (say, said) = mpsc::channel();
        thread::spawn(move || {
            let runtime = evenkeel_net::new_runtime().unwrap();
            let ready = |listening: &str| say.send(listening.to_owned()).unwrap();
            runtime.block_on(server.run(std::future::pending(), ready))
        });
        let listening = said.recv().unwrap();
        let line = listening.lines().next().unwrap();
        line.strip_prefix("listening: respond on ").unwrap().into()
    }

    #[test]
    fn the_command_reads_its_key_from_a_file() {
        let path = std::env::temp_dir().join(format!("evenkeel-query-{}", std::process::id()));
        std::fs::write(&path, SECRET).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let args = Query {
            address: backend(),
            key_file: path.clone(),
            host: None,
            target: 0,
            cpus: false,
            ports: false,
            interval: 1,
            count: 1,
            timeout: 5000,
            json: false,
        };
        let done = query(&args);
        std::fs::remove_file(&path).unwrap();
        done.unwrap();
        let args = Query {
            key_file: path.with_extension("missing"),
            ..args
        };
        let missing = query(&args).unwrap_err().message;
        assert!(missing.contains("cannot be read"), "{missing}");
    }
}
